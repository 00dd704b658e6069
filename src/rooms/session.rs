//! The life of a session after the join: resume, reconnect, removal, tokens, and the end of rooms.
//!
//! A client whose signalling connection breaks *resumes*: it connects again with its participant's sid, keeps its peer
//! connections, and restarts ICE. If that is not possible, or the server sends a `leave` with the action `RECONNECT`, it
//! *reconnects* with a new session ([client protocol]). Until then, its participant stays in the room as long as media
//! flows, or for a grace period.
//!
//! [client protocol]: https://docs.livekit.io/reference/internals/client-protocol/

use std::time::Duration;

use livekit_protocol as proto;
use proto::DisconnectReason;
use proto::leave_request::Action;
use proto::participant_info::State;
use proto::signal_response::Message;

use super::admission::Admission;
use super::events::Event;
use super::joining::MEMBERS_PER_UNIT;
use super::offers::{DescriptionError, Offer};
use super::outbound::Topic;
use super::participant::{Link, OnResume, Participant, Side};
use super::sfu::Sfu;
use super::{ConnectionId, Now, ParticipantKey, RoomKey, Settings, limits, token};
use vivavoce_auth::Principal;

/// The protocol version that is reported. With 18, clients would number their data channels themselves, without opening
/// them.
const PROTOCOL: i32 = 17;
/// The version of the agent protocol.
const AGENT_PROTOCOL: i32 = 1;
/// Seconds between the pings of clients, and until they give up.
pub(super) const PING_INTERVAL_S: i32 = 5;
pub(super) const PING_TIMEOUT_S: i32 = 15;
/// A signalling connection is dead after so long without a message; a little more than the client's own timeout.
const SIGNAL_SILENCE: Duration = Duration::from_secs(PING_TIMEOUT_S as u64 + 5);
/// A participant whose media is not connected after so long is removed.
pub(super) const JOIN_PATIENCE: Duration = Duration::from_mins(1);
/// How long a connection is measured before its quality is first reported. Browsers ignore the quality of others until they
/// consider themselves connected, and it is not repeated until it changes.
pub(super) const FIRST_JUDGEMENT: Duration = Duration::from_secs(5);
/// If a requested offer does not arrive in time, the client has to reconnect.
const OFFER_PATIENCE: Duration = Duration::from_secs(15);
/// The interval at which tokens are refreshed.
pub(super) const TOKEN_INTERVAL: Duration = Duration::from_mins(5);

/// What clients and workers are told of this server.
pub(super) fn server_info(settings: &Settings) -> proto::ServerInfo {
    proto::ServerInfo {
        edition: proto::server_info::Edition::Standard as i32,
        version: settings.version.clone(),
        protocol: PROTOCOL,
        region: settings.region.clone(),
        node_id: settings.node_id.clone(),
        agent_protocol: AGENT_PROTOCOL,
        ..Default::default()
    }
}

/// What a resuming client is told of its reliable messages: the last that has arrived. LiveKit's client for browsers takes 0
/// for a server that does not count, and then never sends what it held back while it was away (livekit-client 2.23,
/// `resumeConnection`). Its first message, where it is on its way, arrives without being repeated.
fn told_sequence(participant: &Participant) -> u32 {
    let last = participant.outbox.last_sequence();
    if participant.client.sdk == proto::client_info::Sdk::Js as i32 {
        last.max(1)
    } else {
        last
    }
}

impl Sfu {
    /// The participants of a room.
    pub(super) fn members(&self, room: RoomKey) -> impl Iterator<Item = &Participant> {
        let members = self
            .rooms
            .get(&room)
            .map(|room| room.members.as_slice())
            .unwrap_or_default();
        members
            .iter()
            .filter_map(|key| self.participants.get(key).map(Box::as_ref))
    }

    /// The participant with this identity in a room.
    pub(super) fn participant_in(&self, room: RoomKey, identity: &str) -> Option<ParticipantKey> {
        self.members(room)
            .find(|member| &*member.identity == identity)
            .map(|member| member.key)
    }

    /// Handles a new signalling connection with this admission.
    #[cfg(test)]
    pub fn connect(&mut self, connection: ConnectionId, mut admission: Admission, now: Now) {
        let offer = admission.offer.take();
        let offer = offer.map(|offer| Offer::read(&offer));
        self.connect_with(connection, admission, offer, now);
    }

    /// Handles a new signalling connection with this admission, whose offer was parsed before; the text in the admission is
    /// not used.
    pub fn connect_with(
        &mut self,
        connection: ConnectionId,
        mut admission: Admission,
        offer: Option<Result<Offer, DescriptionError>>,
        now: Now,
    ) {
        self.take_work();
        match admission.resume.take() {
            Some(sid) => self.resume(connection, &sid, admission, now),
            None => self.join(connection, admission, offer, None, now),
        }
        self.settle(now);
    }

    /// Sends a `leave` on a connection, with or without a participant.
    pub(super) fn leave_on(
        &mut self,
        connection: ConnectionId,
        action: Action,
        reason: DisconnectReason,
    ) {
        let leave = proto::LeaveRequest {
            can_reconnect: action != Action::Disconnect,
            reason: reason as i32,
            action: action as i32,
            ..Default::default()
        };
        self.tell_connection(connection, Message::Leave(leave));
    }

    pub(super) fn refuse(
        &mut self,
        connection: ConnectionId,
        action: Action,
        reason: DisconnectReason,
        now: Now,
    ) {
        self.leave_on(connection, action, reason);
        self.close_soon(connection, now);
    }

    pub(super) fn server_info(&self) -> proto::ServerInfo {
        server_info(&self.settings)
    }

    /// Sends a fresh token with the participant's current permissions, for its next connection.
    pub(super) fn tell_token(&mut self, key: ParticipantKey, now: Now) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        // Each is signed anew, with the participant's metadata and attributes.
        let rested = participant
            .token_at
            .is_none_or(|at| now.instant.saturating_duration_since(at) >= limits::TOKEN_PAUSE);
        if !rested {
            let due = now.instant + limits::TOKEN_PAUSE;
            participant.refresh_at = participant.refresh_at.min(due);
            return;
        }
        participant.token_at = Some(now.instant);
        participant.refresh_at = now.instant + TOKEN_INTERVAL;
        let mut claims = participant.claims.clone();
        claims.set_permission(&participant.permission);
        claims.name.clone_from(&participant.name);
        claims.metadata.clone_from(&participant.metadata);
        claims.attributes.clone_from(&participant.attributes);
        let valid_s = i64::try_from(self.settings.token_validity.as_secs()).unwrap_or(i64::MAX);
        if let Some(token) = token::refresh(&claims, &self.settings.keys, now.unix_s(), valid_s) {
            self.tell_newest(key, Message::RefreshToken(token), Some(Topic::Token));
        }
    }

    fn resume(&mut self, connection: ConnectionId, sid: &str, admission: Admission, now: Now) {
        let room = self.room_names.get(&admission.room).copied();
        if room.is_some_and(|room| !self.admits(room, &admission)) {
            // The token was issued for an earlier owner.
            self.refuse(
                connection,
                Action::Disconnect,
                DisconnectReason::JoinFailure,
                now,
            );
            return;
        }
        let key = room.and_then(|room| self.participant_in(room, admission.identity()));
        let participant = key.and_then(|key| self.participants.get_mut(&key));
        // A client that should reconnect resumes instead if its connection was lost before it was told.
        let principal = admission.claims.principal();
        let goes_on = |participant: &&mut Box<Participant>| {
            (sid.is_empty() || &*participant.sid == sid)
                && (principal == Principal::Operator || principal == participant.claims.principal())
                && participant.on_resume != Some(OnResume::StartAnew)
                && participant.source().is_none()
        };
        let Some(participant) = participant.filter(goes_on) else {
            self.refuse(
                connection,
                Action::Reconnect,
                DisconnectReason::StateMismatch,
                now,
            );
            return;
        };
        let key = participant.key;
        let on_resume = participant.on_resume.take();
        if on_resume == Some(OnResume::CloseBefore) {
            self.outputs.closes.push(connection);
            return;
        }
        participant.signalled = now.instant;
        participant.offer_asked = None;
        if participant.was_active && participant.remove_at.is_some() {
            // The participant is back and reconnects its media.
            participant.remove_at = Some(now.instant + OFFER_PATIENCE);
        }
        participant.client = proto::ClientInfo {
            capabilities: participant.client.capabilities.clone(),
            ..admission.client
        };
        let last_message_seq = told_sequence(participant);
        let older = participant.connection.replace(connection);
        self.connections.insert(connection, key);
        if let Some(older) = older {
            self.connections.remove(&older);
            self.outputs.closes.push(older);
        }
        let server_info = Some(self.server_info());
        let participant = self.participants.get(&key);
        let (client_configuration, ice_servers) = participant
            .map(|participant| {
                let servers = self.ice_servers(participant, now);
                (Self::client_configuration(participant), servers)
            })
            .unzip();
        let reconnect = proto::ReconnectResponse {
            server_info,
            client_configuration,
            ice_servers: ice_servers.unwrap_or_default(),
            last_message_seq,
        };
        self.tell(key, Message::Reconnect(reconnect));
        self.tell_token(key, now);
        self.tell_everything(key);
        if let Some(sync_state) = admission.sync_state {
            self.sync(key, sync_state, now);
        }
        self.restart_subscriber(key, now);
        if on_resume == Some(OnResume::CloseAfter) {
            self.outputs.closes.push(connection);
        }
    }

    /// Sends the whole state of the room to a participant that may have missed updates.
    fn tell_everything(&mut self, key: ParticipantKey) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        participant.version += 1;
        let room = participant.room;
        self.worked(self.members(room).count(), MEMBERS_PER_UNIT);
        let present = self
            .members(room)
            .filter(|member| member.key == key || member.visible())
            .map(Participant::info);
        let update = proto::ParticipantUpdate {
            participants: present.collect(),
        };
        self.tell(key, Message::Update(update));
        if let Some(room) = self.rooms.get(&room) {
            let update = proto::RoomUpdate {
                room: Some(self.room_info(room)),
            };
            self.tell(key, Message::RoomUpdate(update));
        }
    }

    /// Handles the state that a resuming client assumes: with an unknown publication it has to reconnect.
    pub(super) fn sync(&mut self, key: ParticipantKey, state: proto::SyncState, now: Now) {
        let Some(participant) = self.participants.get(&key) else {
            return;
        };
        let knows = |sid: &str| {
            participant
                .publications
                .iter()
                .any(|publication| &*publication.sid == sid)
        };
        let published = state
            .publish_tracks
            .iter()
            .filter_map(|published| published.track.as_ref());
        if published.clone().any(|track| !knows(&track.sid)) {
            self.renew(key, DisconnectReason::StateMismatch);
            return;
        }
        if let Some(subscription) = state.subscription {
            self.choose(key, &subscription, now);
        }
        // No data is sent again, whatever the client says it has received: its data channels still exist, and what it lacks
        // is on its way. Older Rust SDKs would take a duplicate for a new message.
        self.reconcile(key, now);
    }

    /// Asks a client to reconnect, with a new peer connection.
    pub(super) fn renew(&mut self, key: ParticipantKey, reason: DisconnectReason) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        let known = participant.on_resume == Some(OnResume::StartAnew);
        participant.on_resume = Some(OnResume::StartAnew);
        // Once is enough: many such messages would overflow the signalling queue of a receiver that is behind already.
        if let Some(connection) = participant.connection
            && !known
        {
            self.leave_on(connection, Action::Reconnect, reason);
        }
    }

    /// A signalling connection is lost.
    pub fn disconnected(&mut self, connection: ConnectionId, now: Now) {
        let Some(key) = self.connections.remove(&connection) else {
            return;
        };
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        if participant.connection != Some(connection) {
            return;
        }
        participant.connection = None;
        if matches!(participant.link, Link::Local(_)) {
            self.remove(key, DisconnectReason::ClientInitiated, now);
            return self.settle(now);
        }
        if participant.was_active {
            // While media flows the participant stays; the grace period begins when media is lost.
            return;
        }
        self.remove(key, DisconnectReason::SignalClose, now);
        self.settle(now);
    }

    /// Removes a participant, tells it and the others, and starts the timeout of an empty room.
    pub(super) fn remove(&mut self, key: ParticipantKey, reason: DisconnectReason, now: Now) {
        let Some(mut participant) = self.participants.remove(&key) else {
            return;
        };
        let connected = participant.connection.is_some();
        if let Some(connection) = participant.connection.take() {
            if reason != DisconnectReason::ClientInitiated {
                self.leave_on(connection, Action::Disconnect, reason);
            }
            self.connections.remove(&connection);
            self.close_soon(connection, now);
        }
        // A client that was told leaves by itself. If its media closed before it has read why, it would take that for a
        // fault and reconnect.
        let told = reason != DisconnectReason::ClientInitiated && connected;
        self.retire(&mut participant, !told, now);
        let room_key = participant.room;
        let (sid, keeps_room) = (&participant.sid, participant.keeps_room());
        self.take_out(key, room_key, (sid, keeps_room), now);
        let unpublished: Vec<proto::TrackInfo> = participant
            .published()
            .map(|publication| publication.info.clone())
            .collect();
        let was_active = participant.was_active;
        participant.publications.clear();
        participant.state = State::Disconnected;
        participant.disconnect_reason = reason;
        participant.version += 1;
        let info = participant.info();
        for track in unpublished {
            self.record(
                Event::TrackUnpublished,
                room_key,
                Some(info.clone()),
                Some(track),
                now,
            );
        }
        let left = if was_active {
            Event::ParticipantLeft
        } else {
            Event::ParticipantConnectionAborted
        };
        self.record(left, room_key, Some(info.clone()), None, now);
        if participant.visible() {
            let update = proto::ParticipantUpdate {
                participants: vec![info],
            };
            // Not replacing a queued update: a client that has not read of the joining has no use for the leaving.
            self.tell_room(room_key, Message::Update(update), None, None);
        }
        self.reconcile_room(room_key, now);
        if let Some(source) = participant.source() {
            self.forget_forwarded(source, key);
        }
        for forwarded in participant.forwarded {
            self.remove(forwarded, reason, now);
        }
    }

    /// Makes a participant a member of its room, which stays open for it.
    pub(super) fn take_in(&mut self, key: ParticipantKey, now: Now) {
        let Some(participant) = self.participants.get(&key) else {
            return;
        };
        let Some(room) = self.rooms.get_mut(&participant.room) else {
            return;
        };
        self.shared.places().participants.hold(&room.party, 1);
        room.members.push(key);
        room.counts_changed = true;
        if participant.keeps_room() {
            room.ends_at = None;
        }
        let room = participant.room;
        self.pair(room, now);
    }

    /// Takes a member out of its room, which waits for its end from now on if nobody is left who keeps it.
    pub(super) fn take_out(
        &mut self,
        key: ParticipantKey,
        room_key: RoomKey,
        (sid, keeps_room): (&str, bool),
        now: Now,
    ) {
        let Some(room) = self.rooms.get_mut(&room_key) else {
            return;
        };
        self.shared.places().participants.release(&room.party, 1);
        room.members.retain(|member| *member != key);
        room.counts_changed = true;
        room.speakers.retain(|(speaker, _)| speaker != sid);
        let members = &room.members;
        let mut others = members
            .iter()
            .filter_map(|key| self.participants.get(key).map(Box::as_ref));
        if keeps_room && !others.any(Participant::keeps_room) {
            room.ends_at =
                Some(now.instant + Duration::from_secs(room.settings.departure_timeout_s.into()));
            if room.on_trial {
                self.deserted.push(room_key);
            }
        }
    }

    /// Ends a room and all its sessions.
    pub(super) fn end_room(&mut self, key: RoomKey, reason: DisconnectReason, now: Now) {
        // Participants are not told of each other's leaving, only to leave.
        let members = self
            .rooms
            .get_mut(&key)
            .map(|room| std::mem::take(&mut room.members))
            .unwrap_or_default();
        for member in members {
            self.remove(member, reason, now);
        }
        self.record(Event::RoomFinished, key, None, None, now);
        if let Some(room) = self.rooms.remove(&key) {
            self.room_names.remove(&room.name);
            self.outputs.ended.push(room.name.clone());
            self.shared.places().rooms.release(&room.party, 1);
        }
    }

    /// Ends all rooms, because the server stops.
    pub fn end_all_rooms(&mut self, now: Now) {
        let rooms: Vec<RoomKey> = self.rooms.keys().copied().collect();
        for room in rooms {
            self.end_room(room, DisconnectReason::ServerShutdown, now);
        }
    }

    pub(super) fn media_connected(&mut self, key: ParticipantKey, side: Side, now: Now) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        // With two peer connections, the subscriber's decides, if there is anything to subscribe to.
        if participant.was_active
            || (participant.permission.can_subscribe && side != participant.link.down_side())
        {
            return;
        }
        participant.was_active = true;
        participant.judged_from = Some(now.instant + FIRST_JUDGEMENT);
        participant.remove_at = None;
        participant.state = State::Active;
        let room = participant.room;
        self.announce(key, now);
        let participant = self.participants.get(&key);
        let info = participant.map(|participant| participant.info());
        self.record(Event::ParticipantJoined, room, info, None, now);
        self.reconcile(key, now);
    }

    /// Media is lost: the client is asked to resume, and removed if it does not.
    pub(super) fn media_lost(&mut self, key: ParticipantKey, side: Side, now: Now) {
        let grace = self.settings.grace;
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        if side != participant.link.down_side() || participant.remove_at.is_some() {
            return;
        }
        participant.remove_at = Some(now.instant + grace);
        // Its socket stays open: the Rust SDK takes a resume request followed by a closed socket for two failures, and
        // reconnects.
        if let Some(connection) = participant.connection {
            self.leave_on(
                connection,
                Action::Resume,
                DisconnectReason::ConnectionTimeout,
            );
        }
    }

    pub(super) fn media_heard(&mut self, key: ParticipantKey) {
        if let Some(participant) = self
            .participants
            .get_mut(&key)
            .filter(|participant| participant.was_active)
        {
            participant.remove_at = None;
        }
    }

    /// The other side has closed its peer connection: it leaves, or reconnects.
    pub(super) fn media_closed(&mut self, key: ParticipantKey, side: Side, now: Now) {
        let grace = self.settings.grace;
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        if side == participant.link.down_side() && participant.remove_at.is_none() {
            participant.remove_at = Some(now.instant + grace);
        }
    }

    /// Handles the timers of a participant.
    pub(super) fn check_timers(&mut self, key: ParticipantKey, now: Now) {
        let Some(participant) = self.participants.get(&key) else {
            return;
        };
        if participant.remove_at.is_some_and(|at| at <= now.instant) {
            let reason = if participant.was_active {
                DisconnectReason::ConnectionTimeout
            } else {
                DisconnectReason::JoinFailure
            };
            self.remove(key, reason, now);
            return;
        }
        let connection = participant.connection;
        // A local participant sends no pings: it is there until it leaves.
        let remote = !matches!(participant.link, Link::Local(_));
        let silent =
            remote && now.instant.saturating_duration_since(participant.signalled) > SIGNAL_SILENCE;
        let unanswered = participant
            .offer_asked
            .is_some_and(|at| now.instant.saturating_duration_since(at) > OFFER_PATIENCE);
        let token_due = participant.refresh_at <= now.instant;
        if let Some(connection) = connection.filter(|_| silent) {
            self.outputs.closes.push(connection);
            self.disconnected(connection, now);
        } else if connection.is_some() && unanswered {
            if let Some(participant) = self.participants.get_mut(&key) {
                participant.offer_asked = None;
            }
            self.renew(key, DisconnectReason::UnknownReason);
        } else if connection.is_some() && token_due {
            self.tell_token(key, now);
        }
        self.tell_quality(key, now);
        let participant = self.participants.get_mut(&key);
        if participant.is_some_and(|participant| participant.pace.rest()) {
            self.announce(key, now);
        }
    }
}
