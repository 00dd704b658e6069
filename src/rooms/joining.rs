//! Joining: whether there is a place, the room that a join makes, and the first thing that a client is told.

use std::collections::HashMap;
use std::time::Duration;

use livekit_protocol as proto;
use proto::DisconnectReason;
use proto::leave_request::Action;
use proto::participant_info::State;
use proto::signal_response::Message;

use super::admission::{Admission, NO_ROOM, Refusal, Route};
use super::data::Outbox;
use super::events::Event;
use super::limits;
use super::local::Local;
use super::participant::{Link, Participant};
use super::peer::Peer;
use super::room::{Room, RoomSettings, enabled_codecs};
use super::session::{JOIN_PATIENCE, PING_INTERVAL_S, PING_TIMEOUT_S, TOKEN_INTERVAL};
use super::world::World;
use super::{ConnectionId, Now, ParticipantKey, RoomKey};

impl World {
    /// Whether an admission would be taken now: what the room says, after what the token said.
    pub fn check(&self, admission: &Admission) -> Result<(), Refusal> {
        let Some(key) = self.room_names.get(&admission.room) else {
            if !self.settings.auto_create {
                return Err(Refusal::new(404, NO_ROOM));
            }
            if self.rooms.len() >= self.settings.most_rooms {
                return Err(Refusal::new(
                    503,
                    "this server has no place for another room",
                ));
            }
            return self.check_places();
        };
        let present = self.participant_in(*key, admission.identity());
        if present.is_some() {
            return Ok(());
        }
        let most = self
            .rooms
            .get(key)
            .map_or(0, |room| room.settings.max_participants);
        if most > 0 && self.counted(*key) >= most as usize {
            return Err(Refusal::new(
                503,
                "the room has its maximum of participants",
            ));
        }
        self.check_places()
    }

    fn check_places(&self) -> Result<(), Refusal> {
        if self.participants.len() >= self.settings.most_participants {
            return Err(Refusal::new(
                503,
                "this server has no place for another participant",
            ));
        }
        Ok(())
    }

    fn counted(&self, room: RoomKey) -> usize {
        self.members(room).filter(|member| member.counts()).count()
    }

    /// Lets somebody in: inside the process with `local`.
    pub(super) fn join(
        &mut self,
        connection: ConnectionId,
        admission: Admission,
        local: Option<Box<Local>>,
        now: Now,
    ) {
        if self.check(&admission).is_err() {
            self.refuse(
                connection,
                Action::Disconnect,
                DisconnectReason::JoinFailure,
                now,
            );
            return;
        }
        let settings = self.settings_of(&admission);
        let room = self.room_named(&admission.room, settings, now);
        if let Some(older) = self.participant_in(room, admission.identity()) {
            self.remove(older, DisconnectReason::DuplicateIdentity, now);
        }
        let offer = admission.offer.clone();
        let tracks = admission.tracks.clone();
        let key = self.enter(room, connection, admission, local, now);
        self.tell_joined(key, now);
        self.announce_to_others(key);
        for track in tracks {
            self.add_track(key, track, now);
        }
        if let Some(offer) = offer {
            self.offered(key, &offer, now);
        }
        self.reconcile(key, now);
    }

    /// What a room that this admission makes is made with.
    fn settings_of(&self, admission: &Admission) -> RoomSettings {
        let mut settings = self.settings.room.clone();
        if let Some(config) = &admission.claims.room_config {
            let given = |value: u32, default| if value == 0 { default } else { value };
            settings.empty_timeout_s = given(config.empty_timeout, settings.empty_timeout_s);
            settings.departure_timeout_s =
                given(config.departure_timeout, settings.departure_timeout_s);
            settings.max_participants = given(config.max_participants, settings.max_participants);
            if !config.metadata.is_empty() && config.metadata.len() <= limits::METADATA_BYTES {
                settings.metadata.clone_from(&config.metadata);
            }
        }
        settings
    }

    /// The room of this name, made with these settings if there is none.
    pub(super) fn room_named(&mut self, name: &str, settings: RoomSettings, now: Now) -> RoomKey {
        if let Some(key) = self.room_names.get(name) {
            return *key;
        }
        let key = RoomKey(self.fresh_key());
        let ends_at = now.instant + Duration::from_secs(settings.empty_timeout_s.into());
        let room = Room {
            sid: self.sid("RM_").to_string(),
            name: name.to_owned(),
            settings,
            created_ms: now.unix_ms,
            members: Vec::new(),
            ends_at: Some(ends_at),
            speakers: Vec::new(),
            counts_changed: false,
            nonces: std::collections::VecDeque::new(),
            recordings: 0,
        };
        self.rooms.insert(key, room);
        self.room_names.insert(name.to_owned(), key);
        self.record(Event::RoomStarted, key, None, None, now);
        key
    }

    fn enter(
        &mut self,
        room: RoomKey,
        connection: ConnectionId,
        admission: Admission,
        local: Option<Box<Local>>,
        now: Now,
    ) -> ParticipantKey {
        let key = ParticipantKey(self.fresh_key());
        let addresses = &self.settings.addresses;
        let link = match (local, admission.route) {
            (Some(local), _) => Link::Local(local),
            (None, Route::OneConnection) => Link::One(Box::new(Peer::new(addresses, now.instant))),
            (None, Route::TwoConnections) => Link::Two {
                publisher: None,
                subscriber: Box::new(Peer::new(addresses, now.instant)),
            },
        };
        let claims = admission.claims;
        let chosen = |own: String, tokens: &str| {
            if own.is_empty() {
                tokens.to_owned()
            } else {
                own
            }
        };
        let mut attributes = claims.attributes.clone();
        attributes.extend(admission.attributes);
        let participant = Participant {
            key,
            room,
            sid: self.sid("PA_"),
            identity: claims.identity().into(),
            name: claims.name.clone(),
            metadata: chosen(admission.metadata, &claims.metadata),
            attributes,
            permission: claims.permission(),
            claims,
            client: admission.client,
            state: State::Joined,
            version: 0,
            joined_at_ms: now.unix_ms,
            disconnect_reason: DisconnectReason::UnknownReason,
            connection: Some(connection),
            link,
            auto_subscribe: admission.auto_subscribe,
            choices: HashMap::new(),
            disabled: Vec::new(),
            publications: Vec::new(),
            subscription_permission: None,
            outbox: Outbox::default(),
            was_active: false,
            joined: now.instant,
            remove_at: Some(now.instant + JOIN_PATIENCE),
            signalled: now.instant,
            refresh_at: now.instant + TOKEN_INTERVAL,
            offer_asked: None,
            stale: false,
            judged_from: None,
            loss: 0.0,
            quality: None,
            on_resume: None,
            simulated_speaker_until: None,
        };
        self.participants.insert(key, participant);
        self.connections.insert(connection, key);
        if let Some(room) = self.rooms.get_mut(&room) {
            room.members.push(key);
            room.ends_at = None;
            room.counts_changed = true;
        }
        key
    }

    fn tell_joined(&mut self, key: ParticipantKey, now: Now) {
        let Some(participant) = self.participants.get(&key) else {
            return;
        };
        let Some(room) = self.rooms.get(&participant.room) else {
            return;
        };
        let two = matches!(participant.link, Link::Two { .. });
        let others = self
            .members(participant.room)
            .filter(|other| other.key != key && other.visible());
        let join = proto::JoinResponse {
            room: Some(self.room_info(room)),
            participant: Some(participant.info()),
            other_participants: others.map(Participant::info).collect(),
            server_version: self.settings.version.clone(),
            server_region: self.settings.region.clone(),
            subscriber_primary: two && participant.permission.can_subscribe,
            client_configuration: Some(proto::ClientConfiguration::default()),
            ping_timeout: PING_TIMEOUT_S,
            ping_interval: PING_INTERVAL_S,
            server_info: Some(self.server_info()),
            enabled_publish_codecs: enabled_codecs(),
            fast_publish: participant.permission.can_publish,
            ..Default::default()
        };
        self.tell(key, Message::Join(join));
        self.tell_token(key, now);
        if two {
            self.offer_subscriber(key, true, now);
        }
    }

    fn announce_to_others(&mut self, key: ParticipantKey) {
        let Some(participant) = self.participants.get(&key) else {
            return;
        };
        if participant.visible() {
            let update = proto::ParticipantUpdate {
                participants: vec![participant.info()],
            };
            self.tell_room(participant.room, Message::Update(update), Some(key));
        }
    }
}
