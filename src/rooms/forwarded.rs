//! Participants forwarded to other rooms, as LiveKit's cloud does it.
//!
//! Somebody who is forwarded stays where it is. In the other room a *forwarded participant* stands for it: a member of that room
//! with the same identity, name, metadata and attributes, and with the same tracks, but without a link of its own. The
//! packets of the tracks are forwarded to the subscribers of both rooms (`media`), whose wishes for keyframes and layers reach the
//! one publisher (`adapting`). Nothing comes back: the forwarded participant subscribes to nothing, and data is neither sent nor
//! received by it.
//!
//! What changes at the source is *reflected*. The forwarding ends with the source, with the other room, when the forwarded
//! participant is removed there, and when the source is moved.

use super::moving::Coming;
use super::operations::OperationError;
use super::participant::{Link, Participant, Publication};
use super::publishing::Changes;
use super::session::FIRST_JUDGEMENT;
use super::sfu::Sfu;
use super::{Now, ParticipantKey, RoomKey, limits};
use livekit_protocol as proto;
use proto::DisconnectReason;
use proto::participant_info::State;

impl Sfu {
    /// Forwards a participant with its tracks to another room. That is created if it does not exist, must be one in which the
    /// participant may be, and have nobody of this identity.
    pub fn forward_participant(
        &mut self,
        room: &str,
        identity: &str,
        destination: &str,
        now: Now,
    ) -> Result<(), OperationError> {
        let key = self.bound_for(room, identity, destination)?;
        self.may_forward(key)?;
        let to = self.destination(key, destination, Coming::Forwarded, now)?;
        self.stand_in(key, to, now);
        self.settle(now);
        Ok(())
    }

    /// Whether a participant is one that may be forwarded at all.
    fn may_forward(&self, key: ParticipantKey) -> Result<(), OperationError> {
        let refused = |why| Err(OperationError::FailedPrecondition(why));
        let participant = self.participants.get(&key);
        let participant = participant.ok_or(OperationError::NoParticipant)?;
        if !participant.visible() {
            return refused("identity: the participant is hidden");
        }
        if !participant.was_active {
            return refused("identity: the participant is not connected yet");
        }
        if participant.forwarded.len() >= limits::FORWARDED_TO {
            return refused("identity: the participant is forwarded to as many rooms as it may be");
        }
        Ok(())
    }

    /// Lets a forwarded participant into a room.
    fn stand_in(&mut self, source: ParticipantKey, to: RoomKey, now: Now) {
        let key = ParticipantKey(self.fresh_key());
        let id = (key, self.sid("PA_"));
        let name = self.rooms.get(&to).map(|room| room.name.clone());
        let (Some(original), Some(name)) = (self.participants.get_mut(&source), name) else {
            return;
        };
        original.forwarded.push(key);
        let from = original.room;
        let mut claims = original.claims.clone();
        claims.video.room = name;
        let mut forwarded = Participant {
            state: State::Active,
            was_active: true,
            judged_from: Some(now.instant + FIRST_JUDGEMENT),
            ..Participant::new(id, to, claims, Link::Forwarded(source), now)
        };
        forwarded.reflect(original);
        self.participants.insert(key, Box::new(forwarded));
        self.pair(from, now);
        self.settle_in(key, to, now);
        self.introduce(key, to, now);
    }

    /// Who publishes the tracks of a member of a room: itself, or whom it stands for.
    pub(super) fn publisher<'a>(&'a self, member: &'a Participant) -> &'a Participant {
        let source = member.source();
        let source = source.and_then(|source| self.participants.get(&source));
        source.map_or(member, Box::as_ref)
    }

    /// Brings those that stand for a participant up to date.
    pub(super) fn reflect(&mut self, key: ParticipantKey, now: Now) {
        let source = self.participants.get(&key);
        let forwarded = source.map(|source| source.forwarded.clone());
        for forwarded in forwarded.unwrap_or_default() {
            let pair = self.participants.get_disjoint_mut([&key, &forwarded]);
            let [Some(source), Some(reflecting)] = pair else {
                continue;
            };
            let changes = reflecting.reflect(source);
            if changes.is_empty() {
                self.announce(forwarded, now);
            } else {
                self.published_changed(forwarded, changes, now);
            }
        }
    }

    /// Ends all forwarding of a participant.
    pub(super) fn end_forwarding(&mut self, key: ParticipantKey, now: Now) {
        let source = self.participants.get_mut(&key);
        let forwarded = source.map(|source| std::mem::take(&mut source.forwarded));
        for forwarded in forwarded.unwrap_or_default() {
            self.remove(forwarded, DisconnectReason::Migration, now);
        }
    }

    /// Somebody is no longer forwarded by this one.
    pub(super) fn forget_forwarded(&mut self, source: ParticipantKey, forwarded: ParticipantKey) {
        if let Some(source) = self.participants.get_mut(&source) {
            source.forwarded.retain(|other| *other != forwarded);
        }
    }
}

impl Participant {
    /// Takes over what can be seen of the one that it stands for. Returns how its tracks have changed.
    fn reflect(&mut self, source: &Self) -> Changes {
        self.name.clone_from(&source.name);
        self.metadata.clone_from(&source.metadata);
        self.attributes.clone_from(&source.attributes);
        self.said_of_itself = source.said_of_itself;
        self.permission = proto::ParticipantPermission {
            can_subscribe: false,
            can_publish_data: false,
            can_update_metadata: false,
            ..source.permission.clone()
        };
        let reflected = source.published().map(Publication::reflected).collect();
        let before: Vec<Publication> = std::mem::replace(&mut self.publications, reflected);
        let (begun, ended) = (
            tracks_beside(&self.publications, &before),
            tracks_beside(&before, &self.publications),
        );
        Changes {
            begun,
            ended,
            ..Changes::default()
        }
    }
}

/// The tracks of which others know nothing.
fn tracks_beside(tracks: &[Publication], others: &[Publication]) -> Vec<proto::TrackInfo> {
    let is_new = |track: &&Publication| others.iter().all(|other| other.sid != track.sid);
    let beside = tracks.iter().filter(is_new);
    beside.map(|track| track.info.clone()).collect()
}
