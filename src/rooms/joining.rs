//! Joining a room: access and quotas, the room that is created by a join, and the `JoinResponse`, the first message to a
//! client ([protocol]).
//!
//! [protocol]: https://github.com/livekit/protocol/blob/main/protobufs/livekit_rtc.proto

use std::collections::HashMap;
use std::time::Duration;

use livekit_protocol as proto;
use proto::DisconnectReason;
use proto::leave_request::Action;
use proto::participant_info::Kind;
use proto::signal_response::Message;

use super::admission::{Admission, IDENTITY_TAKEN, NO_ROOM, NOT_ADMITTED, Refusal, Route};
use super::events::Event;
use super::limits;
use super::local::Local;
use super::offers::{DescriptionError, Offer};
use super::outbound::{Held, Topic};
use super::pace::Pace;
use super::participant::{Link, OnResume, Participant, Side};
use super::peer::Peer;
use super::room::{Room, RoomSettings, Way, enabled_codecs};
use super::session::{JOIN_PATIENCE, PING_INTERVAL_S, PING_TIMEOUT_S};
use super::sfu::Sfu;
use super::{ConnectionId, Now, ParticipantKey, RoomKey};
use vivavoce_auth::{Owner, Principal, Takeover};
use vivavoce_quotas::{self as quotas, Party, Refused, Why};
use vivavoce_telemetry::metrics;

/// Members that make one unit of work of a join or a resume, which lists them.
pub(super) const MEMBERS_PER_UNIT: usize = 8;

/// Counts a refusal because of a quota.
fn refused(kind: quotas::Kind, why: Why) -> Refused {
    metrics::quota_refused(kind.name());
    Refused { kind, why }
}

impl Sfu {
    /// Whether an admission would be accepted now. The token was checked before; this checks the room.
    pub fn check(&self, admission: &Admission) -> Result<(), Refusal> {
        // An agent that comes when its job has ended would bring the room back.
        if let Some(job) = &admission.claims.agent_job
            && !self
                .shared
                .agents()
                .dispatcher
                .expects(job, admission.identity())
        {
            return Err(Refusal::new(403, "the job of this agent has ended"));
        }
        let Some(key) = self.room_names.get(&admission.room) else {
            if !self.settings.auto_create {
                return Err(Refusal::new(404, NO_ROOM));
            }
            self.check_room(&admission.party)
                .map_err(Refusal::of_quota)?;
            return self.check_places(&admission.party);
        };
        if !self.admits(*key, admission) {
            return Err(Refusal::new(403, NOT_ADMITTED));
        }
        if let Some(present) = self.participant_in(*key, admission.identity()) {
            if self.gives_way(present, admission) {
                return Ok(());
            }
            return Err(Refusal::new(403, IDENTITY_TAKEN));
        }
        let most = self
            .rooms
            .get(key)
            .map_or(0, |room| room.settings.max_participants);
        let members = self.rooms.get(key).map_or(0, |room| room.members.len());
        if members >= self.settings.most_per_room {
            return Err(Refusal::new(
                503,
                "the room has as many participants as this server allows",
            ));
        }
        // Whoever comes for others takes no place from them.
        let for_others = admission.claims.agent_job.is_some() || admission.claims.video.recorder;
        if most > 0 && !for_others && self.counted(*key) >= most as usize {
            return Err(Refusal::new(
                503,
                "the room has reached its max_participants",
            ));
        }
        match self.rooms.get(key) {
            Some(room) => self.check_places(&room.party),
            None => Ok(()),
        }
    }

    /// Whether a principal may join an existing room: its owner and the operator may. An unowned room is claimed by the
    /// tenant who joins, if that is enabled and there is no call in it.
    pub(super) fn admits(&self, key: RoomKey, admission: &Admission) -> bool {
        if let Some(call) = &admission.owner {
            return call.may_take(&self.owner_of(key));
        }
        self.lets_in(key, &admission.claims.principal())
    }

    /// The same for somebody who brings nothing along.
    pub(super) fn lets_in(&self, key: RoomKey, principal: &Principal) -> bool {
        if *principal == Principal::Operator {
            return true;
        }
        let calls = || {
            self.members(key)
                .any(|member| member.claims.participant_kind() == Kind::Sip)
        };
        match (principal, self.owner_of(key)) {
            (Principal::Tenant(_), Owner::Nobody) => self.settings.claim_unowned && !calls(),
            (Principal::Public, Owner::Nobody) => !calls(),
            (principal, owner) => owner.admits(principal),
        }
    }

    /// Whether an inbound call may take the room of this name: another's is not for every call.
    pub(super) fn may_take(&self, room: &str, call: &Takeover) -> bool {
        let key = self.room_names.get(room);
        key.is_none_or(|key| call.may_take(&self.owner_of(*key)))
    }

    /// Whether a participant is replaced by another with the same identity. If the owner of its session is unknown, only
    /// one that was told to reconnect is: it is the same client coming back. By an inbound call, only the same call is.
    fn gives_way(&self, present: ParticipantKey, admission: &Admission) -> bool {
        let present = self.participants.get(&present);
        if admission.puts_nobody_out {
            // Its attributes have the id of the call.
            return present.is_none_or(|present| {
                present.claims.kind == admission.claims.kind
                    && present.claims.attributes == admission.claims.attributes
                    && present.on_resume == Some(OnResume::StartAnew)
            });
        }
        admission.claims.principal() != Principal::Public
            || present.is_none_or(|present| {
                present.claims.principal() == Principal::Public
                    && present.on_resume == Some(OnResume::StartAnew)
            })
    }

    pub(super) fn owner_of(&self, key: RoomKey) -> Owner {
        let room = self.rooms.get(&key);
        room.map_or(Owner::Nobody, |room| Owner::of(&room.settings.metadata))
    }

    /// Transfers a room to this owner. Participants who may not be in it any more are removed first.
    pub(super) fn give_room(&mut self, key: RoomKey, owner: &Owner, now: Now) {
        let Some(room) = self.rooms.get_mut(&key) else {
            return;
        };
        let before = &room.settings.metadata;
        let kept = *owner == Owner::Operator && Owner::of(before) == Owner::Unknown;
        let metadata = owner.in_place_of(before);
        // Unreadable metadata already means that the operator owns the room.
        let changes = !kept && metadata != *before;
        if changes {
            room.settings.metadata = metadata;
            self.shared
                .agents()
                .dispatcher
                .room_owned(&room.name, owner.clone());
            // From now on it counts for its new owner, even beyond the quota of its creator.
            let (party, members) = (owner.party(), room.members.len() as u64);
            let former = std::mem::replace(&mut room.party, party.clone());
            let mut places = self.shared.places();
            places.rooms.release(&former, 1);
            places.rooms.hold(&party, 1);
            places.participants.release(&former, members);
            places.participants.hold(&party, members);
        }
        // Removed participants do not learn the new owner.
        self.enforce_owner(key, now);
        if changes {
            self.tell_room_info(key);
        }
    }

    /// Removes participants who may not be in a room by its changed metadata. An unowned room is left as it is.
    pub(super) fn enforce_owner(&mut self, key: RoomKey, now: Now) {
        let owner = self.owner_of(key);
        if owner == Owner::Nobody {
            return;
        }
        let may_not_stay = |member: &&Participant| !owner.admits(&member.claims.principal());
        let removed: Vec<ParticipantKey> = self
            .members(key)
            .filter(may_not_stay)
            .map(|member| member.key)
            .collect();
        for member in removed {
            metrics::removed_by_owner();
            self.remove(member, DisconnectReason::ParticipantRemoved, now);
        }
    }

    /// Whether a party may have one more room.
    pub(super) fn check_room(&self, party: &Party) -> Result<(), Refused> {
        let kind = quotas::Kind::Rooms;
        let checked = self.shared.places().rooms.check(party, 1);
        checked.map_err(|why| refused(kind, why))
    }

    /// Whether a party's rooms may have one more participant.
    pub(super) fn check_places(&self, party: &Party) -> Result<(), Refusal> {
        let kind = quotas::Kind::Participants;
        let checked = self.shared.places().participants.check(party, 1);
        checked.map_err(|why| Refusal::of_quota(refused(kind, why)))
    }

    pub(super) fn counted(&self, room: RoomKey) -> usize {
        let counts = |member: &&Participant| member.counts() && member.keeps_room();
        self.members(room).filter(counts).count()
    }

    /// Adds a participant; with `local`, one in this process.
    pub(super) fn join(
        &mut self,
        connection: ConnectionId,
        mut admission: Admission,
        offer: Option<Result<Offer, DescriptionError>>,
        local: Option<Box<Local>>,
        now: Now,
    ) {
        // The owner of a call gets the room before anything else is checked: a participant waiting there takes no place
        // from it.
        if let (Some(call), Some(key)) = (&admission.owner, self.room_names.get(&admission.room))
            && call.may_take(&self.owner_of(*key))
        {
            self.give_room(*key, &call.owner.clone(), now);
        }
        // What sessions and calls say about themselves is bounded; participants must not keep them out.
        let has_room = local.is_some() || self.has_room_for(&admission);
        if self.check(&admission).is_err() || !has_room {
            self.refuse(
                connection,
                Action::Disconnect,
                DisconnectReason::JoinFailure,
                now,
            );
            return;
        }
        let settings = self.settings_of(&admission);
        let is_new = !self.room_names.contains_key(&admission.room);
        let by_sip = local.is_some() && admission.claims.participant_kind() == Kind::Sip;
        let room = self.room_named(&admission.room, settings, &admission.party, now);
        if let Some(room) = self.rooms.get_mut(&room) {
            room.on_trial = by_sip && (is_new || room.on_trial);
        }
        self.open_to_agents(room, now);
        if let Some(owner) = admission.makes_owner()
            && self.owner_of(room) == Owner::Nobody
        {
            self.give_room(room, &owner, now);
        }
        if let Some(older) = self.participant_in(room, admission.identity()) {
            self.remove(older, DisconnectReason::DuplicateIdentity, now);
        }
        let tracks = std::mem::take(&mut admission.tracks);
        let key = self.enter(room, connection, admission, local, now);
        self.worked(self.members(room).count(), MEMBERS_PER_UNIT);
        self.tell_joined(key, now);
        self.announce_to_others(key);
        for track in tracks {
            self.add_track(key, track, now);
        }
        if let Some(offer) = offer {
            self.offered(key, offer, now);
        }
        self.reconcile(key, now);
    }

    /// Bytes that the participants of a room may still add to what they say about themselves.
    pub(super) fn room_bytes_left(&self, room: RoomKey) -> usize {
        let said: usize = self.members(room).map(Participant::said_bytes).sum();
        limits::ROOM_STATE_BYTES.saturating_sub(said)
    }

    /// The same for one of them, in its own room and in those that it is forwarded to.
    pub(super) fn bytes_left(&self, participant: &Participant) -> usize {
        let forwarded = participant.forwarded.iter();
        let forwarded = forwarded.filter_map(|forwarded| self.participants.get(forwarded));
        let left = forwarded.map(|forwarded| self.room_bytes_left(forwarded.room));
        left.fold(self.room_bytes_left(participant.room), usize::min)
    }

    /// Whether what a participant says about itself fits into the room.
    fn has_room_for(&self, admission: &Admission) -> bool {
        let said = [&admission.attributes, &admission.claims.attributes].map(limits::size_of);
        let texts = [&admission.metadata, &admission.claims.metadata].map(String::len);
        let said = said.iter().sum::<usize>() + texts.iter().max().copied().unwrap_or_default();
        let room = self.room_names.get(&admission.room);
        said == 0 || room.is_none_or(|room| said <= self.room_bytes_left(*room))
    }

    /// The settings of a room created by this admission.
    fn settings_of(&self, admission: &Admission) -> RoomSettings {
        let mut settings = self.settings.room.clone();
        if let Some(config) = &admission.claims.room_config {
            let given = |value: u32, default| if value == 0 { default } else { value };
            settings.empty_timeout_s = given(config.empty_timeout, settings.empty_timeout_s);
            settings.departure_timeout_s =
                given(config.departure_timeout, settings.departure_timeout_s);
            settings.max_participants = given(config.max_participants, settings.max_participants);
            settings.agents.clone_from(&config.agents);
        }
        let metadata = match &admission.owner {
            Some(call) => Some(call.owner.in_place_of("")),
            None => admission.claims.metadata_of_new_room(),
        };
        if let Some(metadata) = metadata.filter(|text| text.len() <= limits::METADATA_BYTES) {
            settings.metadata = metadata;
        }
        settings
    }

    /// The room with this name, created with these settings if there is none.
    pub(super) fn room_named(
        &mut self,
        name: &str,
        mut settings: RoomSettings,
        party: &Party,
        now: Now,
    ) -> RoomKey {
        if let Some(key) = self.room_names.get(name) {
            return *key;
        }
        let key = RoomKey(self.fresh_key());
        let ends_at = now.instant + Duration::from_secs(settings.empty_timeout_s.into());
        let agents = std::mem::take(&mut settings.agents);
        let owner = Owner::of(&settings.metadata);
        self.shared
            .agents()
            .dispatcher
            .room_created(name, owner, agents, now);
        let room = Room {
            sid: self.sid("RM_").to_string(),
            name: name.to_owned(),
            settings,
            created_ms: now.unix_ms,
            members: Vec::new(),
            ends_at: Some(ends_at),
            on_trial: false,
            speakers: Vec::new(),
            counts_changed: false,
            nonces: std::collections::VecDeque::new(),
            ways: HashMap::new(),
            recordings: 0,
            party: party.clone(),
            pace: Pace::default(),
            held: Held::default(),
            present: metrics::room_opened(),
        };
        self.shared.places().rooms.hold(party, 1);
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
        let way = self.way_to(room, admission.identity());
        let addresses = &self.settings.addresses.only(way);
        let certificate = &self.certificate;
        let link = match (local, admission.route) {
            (Some(local), _) => Link::Local(local),
            (None, Route::OneConnection) => {
                let names = self.names(key, Side::Publisher);
                let mut peer = Peer::new(certificate, addresses, names, now.instant);
                peer.offered_once = admission.once.is_some();
                Link::One(Box::new(peer))
            }
            (None, Route::TwoConnections) => {
                let names = self.names(key, Side::Subscriber);
                let peer = Peer::new(certificate, addresses, names, now.instant);
                Link::Two {
                    publisher: None,
                    subscriber: Box::new(peer),
                }
            }
        };
        let claims = admission.claims;
        let mut attributes = claims.attributes.clone();
        attributes.extend(admission.attributes);
        let metadata = if admission.metadata.is_empty() {
            claims.metadata.clone()
        } else {
            admission.metadata
        };
        let id = (key, self.sid("PA_"));
        let participant = Participant {
            said_of_itself: metadata.len() + limits::size_of(&attributes),
            metadata,
            attributes,
            client: admission.client,
            connection: Some(connection),
            auto_subscribe: admission.auto_subscribe,
            remove_at: Some(now.instant + JOIN_PATIENCE),
            way,
            once: admission.once,
            ..Participant::new(id, room, claims, link, now)
        };
        self.participants.insert(key, Box::new(participant));
        self.connections.insert(connection, key);
        self.take_in(key, now);
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
            client_configuration: Some(Self::client_configuration(participant)),
            ice_servers: self.ice_servers(participant, now),
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

    /// The only way of media to somebody in a room, where they want one.
    fn way_to(&self, room: RoomKey, identity: &str) -> Option<Way> {
        let room = self.rooms.get(&room)?;
        room.ways.get(identity).copied()
    }

    pub(super) fn client_configuration(participant: &Participant) -> proto::ClientConfiguration {
        let mut configuration = proto::ClientConfiguration::default();
        if participant.way == Some(Way::Relayed) {
            configuration.force_relay = proto::ClientConfigSetting::Enabled as i32;
        }
        configuration
    }

    /// The TURN server, where there is one, as this participant may use it.
    pub(super) fn ice_servers(&self, participant: &Participant, now: Now) -> Vec<proto::IceServer> {
        let only_tls = participant.way == Some(Way::Relayed);
        // Of the operator's, whose tokens anybody may have been given, each room counts by itself.
        let room = self.rooms.get(&participant.room);
        let party = room.map(|room| match &room.party {
            Party::Operator => format!("room {}", room.name),
            party => format!("{party:?}"),
        });
        let who = (party.unwrap_or_default(), &participant.sid);
        let turn = self.settings.turn.iter();
        turn.map(|turn| turn.of((&who.0, who.1), now.unix_s(), only_tls))
            .collect()
    }

    pub(super) fn announce_to_others(&mut self, key: ParticipantKey) {
        let Some(participant) = self.participants.get(&key) else {
            return;
        };
        if participant.visible() {
            let update = proto::ParticipantUpdate {
                participants: vec![participant.info()],
            };
            let topic = Some(Topic::Participant(key));
            self.tell_room(participant.room, Message::Update(update), topic, Some(key));
        }
    }
}
