//! Moving a participant to another room, as LiveKit's cloud does: its connection and its tracks stay, and nobody but the two
//! rooms notices.

use livekit_protocol as proto;
use proto::DisconnectReason;
use proto::participant_info::{Kind, State};
use proto::signal_response::Message;

use super::events::Event;
use super::operations::{OperationError, check_name};
use super::participant::{Link, Participant};
use super::sfu::Sfu;
use super::{Now, ParticipantKey, RoomKey, token};
use vivavoce_auth::{Owner, Principal};
use vivavoce_quotas::Party;

impl Sfu {
    /// Moves a participant, who is told (`room_moved`), and whose next tokens are for the other room. That is created if it
    /// does not exist, must be one in which the participant may be, and have nobody of this identity.
    pub fn move_participant(
        &mut self,
        room: &str,
        identity: &str,
        destination: &str,
        now: Now,
    ) -> Result<(), OperationError> {
        check_name(destination)?;
        let key = self.participant_key(room, identity)?;
        if room == destination {
            return Err(OperationError::InvalidArgument(
                "destination_room: the participant is in this room",
            ));
        }
        self.may_move(key)?;
        let to = match self.room_names.get(destination).copied() {
            Some(to) => {
                self.check_move(key, to)?;
                to
            }
            None if self.settings.auto_create => {
                let party = self.party_of(key);
                self.check_room(&party).map_err(OperationError::Quota)?;
                let settings = self.settings.room.clone();
                self.room_named(destination, settings, &party, now)
            }
            None => return Err(OperationError::NoRoom),
        };
        let from = self.depart(key, now);
        self.arrive(key, to, now);
        if let Some(from) = from {
            self.reconcile_room(from, now);
        }
        self.settle(now);
        Ok(())
    }

    fn party_of(&self, key: ParticipantKey) -> Party {
        let room = self
            .participants
            .get(&key)
            .map(|participant| participant.room);
        let room = room.and_then(|room| self.rooms.get(&room));
        room.map_or(Party::Operator, |room| room.party.clone())
    }

    /// Whether a participant is one that may be moved at all.
    fn may_move(&self, key: ParticipantKey) -> Result<(), OperationError> {
        let refused = |why| Err(OperationError::FailedPrecondition(why));
        let participant = self.participants.get(&key);
        let participant = participant.ok_or(OperationError::NoParticipant)?;
        if participant.claims.agent_job.is_some() {
            return refused("identity: an agent is in the room of its job");
        }
        let is_telephone = participant.claims.participant_kind() == Kind::Sip;
        if matches!(participant.link, Link::Local(_)) && !is_telephone {
            return refused("identity: a session stays in the room of its config");
        }
        if !participant.was_active {
            return refused("identity: the participant is not connected yet");
        }
        Ok(())
    }

    /// Whether a participant may be in another room, which exists.
    fn check_move(&self, key: ParticipantKey, to: RoomKey) -> Result<(), OperationError> {
        let refused = |why| Err(OperationError::FailedPrecondition(why));
        let (Some(participant), Some(room)) = (self.participants.get(&key), self.rooms.get(&to))
        else {
            return Err(OperationError::NoRoom);
        };
        if !self.lets_in(to, &participant.claims.principal()) {
            return refused("destination_room: belongs to somebody else");
        }
        if self.participant_in(to, &participant.identity).is_some() {
            return refused("destination_room: somebody there has this identity");
        }
        let most = room.settings.max_participants as usize;
        if room.members.len() >= self.settings.most_per_room
            || (most > 0 && self.counted(to) >= most)
        {
            return refused("destination_room: is full");
        }
        if participant.said_bytes() > self.room_bytes_left(to) {
            return refused(
                "destination_room: what its participants say of themselves is too much",
            );
        }
        // Where both rooms count for one party, nothing changes for it.
        if self.party_of(key) == room.party {
            return Ok(());
        }
        self.check_places(&room.party)
            .map_err(|refusal| match refusal.quota {
                Some(refused) => OperationError::Quota(refused),
                None => OperationError::FailedPrecondition("destination_room: is full"),
            })
    }

    /// Takes a participant out of its room, without a word to itself.
    fn depart(&mut self, key: ParticipantKey, now: Now) -> Option<RoomKey> {
        let participant = self.participants.get(&key)?;
        let (from, keeps_room) = (participant.room, participant.keeps_room());
        let tracks: Vec<proto::TrackInfo> = published(participant);
        let visible = participant.visible();
        let mut info = participant.info();
        info.state = State::Disconnected as i32;
        info.disconnect_reason = DisconnectReason::Migration as i32;
        info.tracks.clear();
        info.version += 1;
        let sid = participant.sid.clone();
        self.take_out(key, from, (&sid, keeps_room), now);
        for track in tracks {
            self.record(
                Event::TrackUnpublished,
                from,
                Some(info.clone()),
                Some(track),
                now,
            );
        }
        self.record(Event::ParticipantLeft, from, Some(info.clone()), None, now);
        if visible {
            let update = proto::ParticipantUpdate {
                participants: vec![info],
            };
            self.tell_room(from, Message::Update(update), None, None);
        }
        Some(from)
    }

    /// Lets a participant into another room, whom everybody there then knows.
    fn arrive(&mut self, key: ParticipantKey, to: RoomKey, now: Now) {
        let valid_s = i64::try_from(self.settings.token_validity.as_secs()).unwrap_or(i64::MAX);
        let Some(room) = self.rooms.get_mut(&to) else {
            return;
        };
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        participant.room = to;
        participant.version += 1;
        participant.claims.video.room.clone_from(&room.name);
        // Both were about people who are not there.
        participant.choices.clear();
        participant.subscription_permission = None;
        let (principal, by_sip) = (
            participant.claims.principal(),
            participant.claims.participant_kind() == Kind::Sip,
        );
        room.on_trial &= by_sip;
        room.members.push(key);
        room.counts_changed = true;
        if participant.keeps_room() {
            room.ends_at = None;
        }
        self.places.participants.hold(&room.party, 1);
        self.pair(to);
        self.open_to_agents(to, now);
        // As whoever joins it, a tenant's participant makes a room that nobody owns its tenant's.
        if let Principal::Tenant(tenant) = principal
            && self.owner_of(to) == Owner::Nobody
        {
            self.give_room(to, &Owner::Tenant(tenant), now);
        }
        let (Some(room), Some(participant)) = (self.rooms.get(&to), self.participants.get(&key))
        else {
            return;
        };
        let others = self
            .members(to)
            .filter(|other| other.key != key && other.visible());
        let mut claims = participant.claims.clone();
        claims.set_permission(&participant.permission);
        let moved = proto::RoomMovedResponse {
            room: Some(self.room_info(room)),
            token: token::refresh(&claims, &self.settings.keys, now.unix_s(), valid_s)
                .unwrap_or_default(),
            participant: Some(participant.info()),
            other_participants: others.map(Participant::info).collect(),
        };
        let (info, tracks) = (participant.info(), published(participant));
        let connection = participant.connection;
        let name = room.name.as_str().into();
        self.outputs
            .moves
            .extend(connection.map(|connection| (connection, name)));
        self.tell(key, Message::RoomMoved(moved));
        self.announce_to_others(key);
        self.record(Event::ParticipantJoined, to, Some(info.clone()), None, now);
        for track in tracks {
            self.record(
                Event::TrackPublished,
                to,
                Some(info.clone()),
                Some(track),
                now,
            );
        }
        self.reconcile(key, now);
        self.reconcile_room(to, now);
    }
}

fn published(participant: &Participant) -> Vec<proto::TrackInfo> {
    let tracks = participant.published();
    tracks.map(|publication| publication.info.clone()).collect()
}
