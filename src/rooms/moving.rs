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

/// How a participant comes to another room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coming {
    /// It leaves its own.
    Moved,
    /// It is in both from then on.
    Forwarded,
}

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
        let key = self.bound_for(room, identity, destination)?;
        self.may_move(key)?;
        let to = self.destination(key, destination, Coming::Moved, now)?;
        self.end_forwarding(key, now);
        let from = self.depart(key, now);
        self.arrive(key, to, now);
        if let Some(from) = from {
            self.reconcile_room(from, now);
        }
        self.settle(now);
        Ok(())
    }

    /// Somebody in a room who is to come to another one.
    pub(super) fn bound_for(
        &self,
        room: &str,
        identity: &str,
        destination: &str,
    ) -> Result<ParticipantKey, OperationError> {
        check_name(destination)?;
        let key = self.resident_key(room, identity)?;
        if room == destination {
            return Err(OperationError::InvalidArgument(
                "destination_room: the participant is in this room",
            ));
        }
        Ok(key)
    }

    /// The room of this name, to which a participant may come. It is created if it does not exist.
    pub(super) fn destination(
        &mut self,
        key: ParticipantKey,
        name: &str,
        coming: Coming,
        now: Now,
    ) -> Result<RoomKey, OperationError> {
        if let Some(to) = self.room_names.get(name).copied() {
            self.check_destination(key, to, coming)?;
            return Ok(to);
        }
        if !self.settings.auto_create {
            return Err(OperationError::NoRoom);
        }
        let party = self.party_of(key);
        self.check_room(&party).map_err(OperationError::Quota)?;
        if coming == Coming::Forwarded {
            self.check_place(&party)?;
        }
        let settings = self.settings.room.clone();
        Ok(self.room_named(name, settings, &party, now))
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
    fn check_destination(
        &self,
        key: ParticipantKey,
        to: RoomKey,
        coming: Coming,
    ) -> Result<(), OperationError> {
        let refused = |why| Err(OperationError::FailedPrecondition(why));
        let (Some(participant), Some(room)) = (self.participants.get(&key), self.rooms.get(&to))
        else {
            return Err(OperationError::NoRoom);
        };
        if !self.lets_in(to, &participant.claims.principal()) {
            return refused("destination_room: belongs to somebody else");
        }
        if let Some(present) = self.participant_in(to, &participant.identity) {
            if !participant.forwarded.contains(&present) {
                return refused("destination_room: somebody there has this identity");
            }
            // Whoever is moved to where it is forwarded to takes the place that it has there.
            return match coming {
                Coming::Moved => Ok(()),
                Coming::Forwarded => {
                    refused("destination_room: the participant is forwarded there already")
                }
            };
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
        if coming == Coming::Moved && self.party_of(key) == room.party {
            return Ok(());
        }
        self.check_place(&room.party)
    }

    fn check_place(&self, party: &Party) -> Result<(), OperationError> {
        self.check_places(party)
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
        let Some(name) = self.rooms.get(&to).map(|room| room.name.clone()) else {
            return;
        };
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        participant.room = to;
        participant.version += 1;
        participant.claims.video.room = name;
        // Both were about people who are not there.
        participant.choices.clear();
        participant.subscription_permission = None;
        self.settle_in(key, to, now);
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
        let connection = participant.connection;
        let name = room.name.as_str().into();
        self.outputs
            .moves
            .extend(connection.map(|connection| (connection, name)));
        self.tell(key, Message::RoomMoved(moved));
        self.introduce(key, to, now);
        self.reconcile(key, now);
    }

    /// Makes somebody a member of the room that it comes to without having asked for it. As whoever joins it, a tenant's
    /// participant makes a room that nobody owns its tenant's.
    pub(super) fn settle_in(&mut self, key: ParticipantKey, to: RoomKey, now: Now) {
        self.take_in(key, now);
        let Some(participant) = self.participants.get(&key) else {
            return;
        };
        let principal = participant.claims.principal();
        let by_sip = participant.claims.participant_kind() == Kind::Sip;
        if let Some(room) = self.rooms.get_mut(&to) {
            room.on_trial &= by_sip;
        }
        self.open_to_agents(to, now);
        if let Principal::Tenant(tenant) = principal
            && self.owner_of(to) == Owner::Nobody
        {
            self.give_room(to, &Owner::Tenant(tenant), now);
        }
    }

    /// Lets everybody in a room know somebody who has come there with its tracks.
    pub(super) fn introduce(&mut self, key: ParticipantKey, to: RoomKey, now: Now) {
        self.announce_to_others(key);
        let Some(participant) = self.participants.get(&key) else {
            return;
        };
        let (info, tracks) = (participant.info(), published(participant));
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
        self.reconcile_room(to, now);
    }
}

fn published(participant: &Participant) -> Vec<proto::TrackInfo> {
    let tracks = participant.published();
    tracks.map(|publication| publication.info.clone()).collect()
}
