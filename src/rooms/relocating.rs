//! Rooms that go from one thread to another. Participants are moved and forwarded between rooms of one thread: a room whose
//! participant is to come to a room of another thread goes there first, with all that belongs to it, and nobody in it notices.
//!
//! Rooms between which somebody is forwarded are on one thread, and go together.

use std::collections::HashSet;

use super::addressees::Source;
use super::participant::{Participant, Side};
use super::peer::Queued;
use super::room::Room;
use super::sfu::Sfu;
use super::{ConnectionId, Now, ParticipantKey, RoomKey};

/// Rooms on their way, with everybody in them.
pub(super) struct Parcel {
    rooms: Vec<(RoomKey, Room)>,
    participants: Vec<Participant>,
    routes: Vec<(Source, (ParticipantKey, Side))>,
    unreconciled: Vec<ParticipantKey>,
}

impl Parcel {
    /// The names of the rooms.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.rooms.iter().map(|(_, room)| room.name.as_str())
    }

    /// The signalling connections of those in the rooms.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        let participants = self.participants.iter();
        participants.filter_map(|participant| participant.connection)
    }
}

impl Sfu {
    /// How many participants go with a room, if it exists.
    pub(super) fn weight(&self, room: &str) -> Option<usize> {
        let rooms = self.joined_by_forwarding(room);
        let weight = rooms.iter().map(|room| self.members(*room).count()).sum();
        (!rooms.is_empty()).then_some(weight)
    }

    /// The room of this name and those that it cannot be parted from.
    fn joined_by_forwarding(&self, room: &str) -> Vec<RoomKey> {
        let mut found: Vec<RoomKey> = self.room_names.get(room).copied().into_iter().collect();
        let mut known: HashSet<RoomKey> = found.iter().copied().collect();
        let mut next = 0;
        while let Some(room) = found.get(next).copied() {
            next += 1;
            for member in self.members(room) {
                let others = member
                    .source()
                    .into_iter()
                    .chain(member.forwarded.iter().copied());
                let others = others.filter_map(|other| self.participants.get(&other));
                for other in others {
                    if known.insert(other.room) {
                        found.push(other.room);
                    }
                }
            }
        }
        found
    }

    /// Takes a room out of this thread, with those that it cannot be parted from. What it has to send was sent before.
    pub(super) fn pack(&mut self, room: &str) -> Parcel {
        let mut parcel = Parcel {
            rooms: Vec::new(),
            participants: Vec::new(),
            routes: Vec::new(),
            unreconciled: Vec::new(),
        };
        for key in self.joined_by_forwarding(room) {
            let Some(room) = self.rooms.remove(&key) else {
                continue;
            };
            self.room_names.remove(&room.name);
            for member in &room.members {
                self.pack_participant(*member, &mut parcel);
            }
            parcel.rooms.push((key, room));
        }
        let participants = parcel.participants.iter();
        let gone: HashSet<ParticipantKey> = participants.map(|one| one.key).collect();
        parcel.routes = self.forget_routes(|key| gone.contains(&key));
        parcel
    }

    fn pack_participant(&mut self, key: ParticipantKey, parcel: &mut Parcel) {
        let Some(mut participant) = self.participants.remove(&key) else {
            return;
        };
        if let Some(connection) = participant.connection {
            self.connections.remove(&connection);
        }
        for side in participant.link.sides() {
            let peer = participant.link.peer_mut(side);
            if let Some(at) = peer.and_then(|peer| peer.deadline.take()) {
                self.deadlines.remove(&(at, key, side));
            }
        }
        if self.unreconciled.remove(&key) {
            self.reconciling.retain(|waiting| *waiting != key);
            parcel.unreconciled.push(key);
        }
        parcel.participants.push(*participant);
    }

    /// Takes rooms of another thread in.
    pub(super) fn unpack(&mut self, parcel: Parcel, now: Now) {
        for (key, room) in parcel.rooms {
            self.room_names.insert(room.name.clone(), key);
            self.rooms.insert(key, room);
        }
        for participant in parcel.participants {
            self.unpack_participant(participant);
        }
        for (source, owner) in parcel.routes {
            self.route_to(source, owner);
        }
        for key in parcel.unreconciled {
            self.reconcile_later(key, now);
        }
        self.settle(now);
    }

    fn unpack_participant(&mut self, mut participant: Participant) {
        let key = participant.key;
        if let Some(connection) = participant.connection {
            self.connections.insert(connection, key);
        }
        for side in participant.link.sides() {
            let Some(peer) = participant.link.peer_mut(side) else {
                continue;
            };
            peer.names.go_to(self.thread);
            // What it was given leaves when it is due, which is now.
            peer.queued = Queued::No;
            peer.deadline = Some(peer.due);
            self.deadlines.insert((peer.due, key, side));
        }
        self.participants.insert(key, Box::new(participant));
    }
}
