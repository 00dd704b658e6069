//! Signalling: the requests of a client on its WebSocket, and the responses. Messages are [`SignalRequest`] and
//! [`SignalResponse`] of LiveKit's protocol. Unknown requests are ignored: newer clients use features that this server does
//! not have.
//!
//! [`SignalRequest`]: https://github.com/livekit/protocol/blob/main/protobufs/livekit_rtc.proto
//! [`SignalResponse`]: https://github.com/livekit/protocol/blob/main/protobufs/livekit_rtc.proto

use std::time::Duration;

use livekit_protocol as proto;
use proto::DisconnectReason;
use proto::leave_request::Action;
use proto::request_response::Reason;
use proto::signal_request::Message as Request;
use proto::signal_response::Message;
use proto::simulate_scenario::Scenario;

use super::limits;
use super::offers::{Answer, DescriptionError, Offer, Reduced};
use super::participant::OnResume;
use super::room::Way;
use super::sfu::Sfu;
use super::shapes::Shaped as _;
use super::wire::Excess;
use super::{ConnectionId, Now, ParticipantKey};
use vivavoce_telemetry::metrics::{self, RoomInput};

/// How long a client may simulate being a speaker.
const LONGEST_SIMULATION: Duration = Duration::from_mins(1);

/// A parsed signalling message. Parsing may take long, so it is done off the media thread.
#[derive(Debug)]
pub enum Asked {
    /// An offer, or why it is refused.
    Offer(Box<Result<Offer, DescriptionError>>),
    /// An answer to our offer.
    Answer(Box<Result<Answer, DescriptionError>>),
    /// Any other request.
    Other(Box<Request>),
    /// An empty message.
    Nothing,
    /// A message that exceeds a limit or cannot be decoded.
    Unreadable(Excess),
}

impl Asked {
    /// Parses a `SignalRequest`.
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

    /// What the request costs the media thread, in units of work, apart from what the room adds; `bytes` long as it came.
    pub fn work(&self, bytes: usize) -> u32 {
        let sections = match self {
            Self::Offer(offer) => sections_of(offer.as_ref().as_ref().map(|offer| &offer.reduced)),
            Self::Answer(answer) => {
                sections_of(answer.as_ref().as_ref().map(|answer| &answer.reduced))
            }
            Self::Other(_) | Self::Nothing | Self::Unreadable(_) => 0,
        };
        let units = sections.max(bytes / limits::BYTES_PER_WORK_UNIT);
        1 + u32::try_from(units).unwrap_or(u32::MAX / 2)
    }

    /// Whether the request is of no use once the client is gone.
    pub fn wants_an_answer(&self) -> bool {
        matches!(self, Self::Offer(_) | Self::Answer(_))
    }
}

/// The media sections of a description; one that is refused costs nothing.
fn sections_of(description: Result<&Reduced, &DescriptionError>) -> usize {
    description.map_or(0, |reduced| reduced.sections)
}

impl Sfu {
    /// Handles a `SignalRequest`.
    #[cfg(test)]
    pub fn signal(&mut self, connection: ConnectionId, bytes: &bytes::Bytes, now: Now) {
        self.asked(connection, Asked::read(bytes), now);
    }

    /// Handles a parsed `SignalRequest`. An unreadable one closes the connection, so that the client reconnects.
    pub fn asked(&mut self, connection: ConnectionId, asked: Asked, now: Now) {
        self.take_work();
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
                tracing::debug!(%excess, "refused a signalling message and closed its connection");
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
            Request::Mute(mute) => self.muted(key, &mute.sid, mute.muted, now),
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
            // Descriptions were separated when parsed. Trickled candidates are not needed by an ICE-lite server, which
            // learns addresses from connectivity checks. Layers, audio features and data tracks concern clients only, or
            // are not supported.
            _ => {}
        }
    }

    /// Responds to a request with an id; old clients send none.
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
        let participant = self.participants.get(&key);
        let room_bytes = participant.map_or(0, |participant| self.bytes_left(participant));
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
                self.announce(key, now);
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
            // As if the server had crashed: nobody is told, and the client has to find out.
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
            Scenario::SwitchCandidateProtocol(protocol) => self.only_by(key, protocol),
            Scenario::SubscriberBandwidth(_) => {}
        }
    }

    /// From the next time on that this participant joins the room, which it does by itself, it is reached by this protocol only,
    /// until it asks for UDP.
    fn only_by(&mut self, key: ParticipantKey, protocol: i32) {
        let way = match proto::CandidateProtocol::try_from(protocol) {
            // Where this server has no such way, there would be none at all.
            Ok(proto::CandidateProtocol::Tcp) if self.settings.addresses.tcp.is_empty() => return,
            Ok(proto::CandidateProtocol::Tcp) => Some(Way::Tcp),
            Ok(proto::CandidateProtocol::Tls) => {
                let turn = self.settings.turn.as_ref();
                if turn.is_none_or(|turn| !turn.has_tls()) {
                    return;
                }
                Some(Way::Relayed)
            }
            _ => None,
        };
        let Some(participant) = self.participants.get(&key) else {
            return;
        };
        let Some(room) = self.rooms.get_mut(&participant.room) else {
            return;
        };
        match way {
            Some(way) if room.ways.len() < limits::WAYS_PER_ROOM => {
                room.ways.insert((&*participant.identity).into(), way);
            }
            Some(_) => {}
            None => {
                room.ways.remove(&*participant.identity);
            }
        }
    }

    fn drop_signalling(&mut self, connection: Option<ConnectionId>, now: Now) {
        if let Some(connection) = connection {
            self.outputs.closes.push(connection);
            self.disconnected(connection, now);
        }
    }
}
