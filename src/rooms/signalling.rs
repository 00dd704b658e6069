//! What a client asks on its signalling connection, and the answers. Requests that are not known are passed over: newer
//! clients ask for things that this server does not have.

use std::time::Duration;

use bytes::Bytes;
use livekit_protocol as proto;
use prost::Message as _;
use proto::DisconnectReason;
use proto::leave_request::Action;
use proto::request_response::Reason;
use proto::signal_request::Message as Request;
use proto::signal_response::Message;
use proto::simulate_scenario::Scenario;

use super::limits;
use super::participant::OnResume;
use super::world::World;
use super::{ConnectionId, Now, ParticipantKey};

/// The longest time that a client may have itself called a speaker.
const LONGEST_SIMULATION: Duration = Duration::from_mins(1);

impl World {
    /// A `SignalRequest` on a connection. One that cannot be read closes the connection, so that the client resumes.
    pub fn signal(&mut self, connection: ConnectionId, bytes: &Bytes, now: Now) {
        let Some(&key) = self.connections.get(&connection) else {
            return;
        };
        let request = (bytes.len() <= limits::SIGNAL_BYTES)
            .then(|| proto::SignalRequest::decode(bytes.clone()));
        let Some(Ok(request)) = request else {
            tracing::debug!("a signalling message could not be read; its connection is closed");
            self.outputs.closes.push(connection);
            self.disconnected(connection, now);
            return;
        };
        if let Some(participant) = self.participants.get_mut(&key) {
            participant.signalled = now.instant;
        }
        if let Some(request) = request.message {
            self.requested(key, request, now);
        }
        self.settle(now);
    }

    fn requested(&mut self, key: ParticipantKey, request: Request, now: Now) {
        match request {
            Request::Offer(offer) => self.offered(key, &offer, now),
            Request::Answer(answer) => self.answered(key, &answer, now),
            Request::AddTrack(track) => self.add_track(key, track, now),
            Request::Mute(mute) => self.muted(key, &mute.sid, mute.muted),
            Request::Subscription(subscription) => {
                self.choose(key, &subscription, now);
                self.refuse_absent(key, &subscription);
                self.reconcile(key, now);
            }
            Request::TrackSetting(setting) => self.track_setting(key, &setting, now),
            Request::Leave(_) => self.remove(key, DisconnectReason::ClientInitiated, now),
            Request::SubscriptionPermission(permission) => {
                self.subscription_permission(key, permission, now);
            }
            Request::SyncState(state) => self.sync(key, state, now),
            Request::Simulate(simulated) => {
                if let Some(scenario) = simulated.scenario {
                    self.simulate(key, scenario, now);
                }
            }
            Request::Ping(_) => self.tell(key, Message::Pong(now.unix_ms)),
            Request::PingReq(ping) => {
                let pong = proto::Pong {
                    last_ping_timestamp: ping.timestamp,
                    timestamp: now.unix_ms,
                };
                self.tell(key, Message::PongResp(pong));
            }
            Request::UpdateMetadata(update) => self.update_own(key, update, now),
            // Candidates of clients are not needed with ICE-lite: the address that checks come from is the one.
            // Layers, audio features and data tracks are the client's business or not had here.
            _ => {}
        }
    }

    /// Answers a request that names an id; the ones without (old clients) are not answered.
    fn respond(&mut self, key: ParticipantKey, request_id: u32, reason: Reason, message: &str) {
        let response = proto::RequestResponse {
            request_id,
            reason: reason as i32,
            message: message.to_owned(),
            ..Default::default()
        };
        self.tell(key, Message::RequestResponse(response));
    }

    fn update_own(
        &mut self,
        key: ParticipantKey,
        update: proto::UpdateParticipantMetadata,
        now: Now,
    ) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        let id = update.request_id;
        if !participant.permission.can_update_metadata {
            self.respond(
                key,
                id,
                Reason::NotAllowed,
                "the token does not grant canUpdateOwnMetadata",
            );
            return;
        }
        match participant.change(Some(update.name), Some(update.metadata), update.attributes) {
            Ok(()) => {
                self.announce(key);
                self.respond(key, id, Reason::Ok, "");
                self.tell_token(key, now);
            }
            Err(what) => self.respond(key, id, Reason::LimitExceeded, what),
        }
    }

    fn simulate(&mut self, key: ParticipantKey, scenario: Scenario, now: Now) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        let connection = participant.connection;
        match scenario {
            Scenario::SpeakerUpdate(seconds) => {
                let length = Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
                    .min(LONGEST_SIMULATION);
                participant.simulated_speaker_until = Some(now.instant + length);
            }
            // As if this server had gone: nobody is told anything, the client finds out and comes anew.
            Scenario::NodeFailure(_) => {
                if let Some(connection) = participant.connection.take() {
                    self.outputs.closes.push(connection);
                    self.connections.remove(&connection);
                }
                self.remove(key, DisconnectReason::ServerShutdown, now);
            }
            Scenario::ServerLeave(_) => self.remove(key, DisconnectReason::ServerShutdown, now),
            Scenario::Migration(_) => {
                if let Some(connection) = connection {
                    self.leave_on(connection, Action::Resume, DisconnectReason::Migration);
                }
            }
            Scenario::DisconnectSignalOnResume(_) => {
                participant.on_resume = Some(OnResume::CloseAfter);
                self.drop_signalling(connection, now);
            }
            Scenario::DisconnectSignalOnResumeNoMessages(_) => {
                participant.on_resume = Some(OnResume::CloseBefore);
                self.drop_signalling(connection, now);
            }
            Scenario::LeaveRequestFullReconnect(_) => {
                self.renew(key, DisconnectReason::UnknownReason);
            }
            Scenario::SwitchCandidateProtocol(_) | Scenario::SubscriberBandwidth(_) => {}
        }
    }

    fn drop_signalling(&mut self, connection: Option<ConnectionId>, now: Now) {
        if let Some(connection) = connection {
            self.outputs.closes.push(connection);
            self.disconnected(connection, now);
        }
    }
}
