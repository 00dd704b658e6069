//! What a client asks on its signalling connection, and the answers. Requests that are not known are passed over: newer
//! clients ask for things that this server does not have.

use std::time::Duration;

use livekit_protocol as proto;
use proto::DisconnectReason;
use proto::leave_request::Action;
use proto::request_response::Reason;
use proto::signal_request::Message as Request;
use proto::signal_response::Message;
use proto::simulate_scenario::Scenario;

use super::limits;
use super::offers::{Answer, DescriptionError, Offer};
use super::participant::OnResume;
use super::shapes::Shaped as _;
use super::wire::Excess;
use super::world::World;
use super::{ConnectionId, Now, ParticipantKey};
use vivavoce_telemetry::metrics::{self, RoomInput};

/// The longest time that a client may have itself called a speaker.
const LONGEST_SIMULATION: Duration = Duration::from_mins(1);

/// A signalling message that was read, which may take long: it is done where nothing waits for it.
#[derive(Debug)]
pub enum Asked {
    /// An offer, or why it is none.
    Offer(Box<Result<Offer, DescriptionError>>),
    /// An answer to ours.
    Answer(Box<Result<Answer, DescriptionError>>),
    /// Anything else.
    Other(Box<Request>),
    /// What nobody asks for: an empty message.
    Nothing,
    /// Too much of something, or no message at all.
    Unreadable(Excess),
}

impl Asked {
    /// Reads a `SignalRequest`.
    pub fn read(bytes: &[u8]) -> Self {
        if bytes.len() > limits::SIGNAL_BYTES {
            return Self::Unreadable(Excess::Long("the message", limits::SIGNAL_BYTES));
        }
        match proto::SignalRequest::read(bytes).map(|request| request.message) {
            Ok(Some(Request::Offer(offer))) => Self::Offer(Box::new(Offer::read(&offer))),
            Ok(Some(Request::Answer(answer))) => Self::Answer(Box::new(Answer::read(&answer))),
            Ok(Some(request)) => Self::Other(Box::new(request)),
            Ok(None) => Self::Nothing,
            Err(excess) => Self::Unreadable(excess),
        }
    }

    /// Whether it asks for something that only a client can use that is still there.
    pub fn wants_an_answer(&self) -> bool {
        matches!(self, Self::Offer(_) | Self::Answer(_))
    }
}

impl World {
    /// A `SignalRequest` on a connection.
    #[cfg(test)]
    pub fn signal(&mut self, connection: ConnectionId, bytes: &bytes::Bytes, now: Now) {
        self.asked(connection, Asked::read(bytes), now);
    }

    /// A `SignalRequest` on a connection, read before. One that cannot be read closes the connection, so that the client comes again.
    pub fn asked(&mut self, connection: ConnectionId, asked: Asked, now: Now) {
        let Some(&key) = self.connections.get(&connection) else {
            return;
        };
        if let Some(participant) = self.participants.get_mut(&key) {
            participant.signalled = now.instant;
        }
        match asked {
            Asked::Offer(offer) => self.offered(key, *offer, now),
            Asked::Answer(answer) => self.answered(key, *answer, now),
            Asked::Other(request) => self.requested(key, *request, now),
            Asked::Nothing => {}
            Asked::Unreadable(excess) => {
                tracing::debug!(%excess, "a signalling message is refused; its connection is closed");
                self.counters.refused_signals += 1;
                metrics::room_input_refused(RoomInput::Signal);
                self.renew(key, DisconnectReason::UnknownReason);
                self.outputs.closes.push(connection);
                self.disconnected(connection, now);
            }
        }
        self.settle(now);
    }

    fn requested(&mut self, key: ParticipantKey, request: Request, now: Now) {
        match request {
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
            // Descriptions were told from the rest when they were read. Candidates of clients are not needed with ICE-lite: the
            // address that checks come from is the one. Layers, audio features and data tracks are the client's business or
            // not had here.
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
        let Some(room) = self.participants.get(&key).map(|found| found.room) else {
            return;
        };
        let room_bytes = self.room_bytes_left(room);
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
        let (name, metadata) = (Some(update.name), Some(update.metadata));
        match participant.change(name, metadata, update.attributes, room_bytes) {
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
