//! How much a world holds, so that a test can tell whether something grew.

use super::super::world::World;

/// Everything that clients can make grow, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    pub rooms: usize,
    pub participants: usize,
    pub connections: usize,
    /// Addresses that packets come from.
    pub routes: usize,
    /// Peer connections that want to be woken.
    pub deadlines: usize,
    /// Connections that were told to leave and still are open.
    pub leaving: usize,
    pub publications: usize,
    pub slots: usize,
    /// Slots that carry a track.
    pub carrying: usize,
    /// What subscribers said about tracks by name.
    pub choices: usize,
    /// Bytes that wait for receivers, and that are kept for those who resume.
    pub queued_bytes: usize,
    pub kept_bytes: usize,
}

impl World {
    /// How much is held now.
    pub fn held(&self) -> Held {
        let mut held = Held {
            rooms: self.rooms.len(),
            participants: self.participants.len(),
            connections: self.connections.len(),
            routes: self.routes.len(),
            deadlines: self.deadlines.len(),
            leaving: self.leaving.len(),
            ..Held::default()
        };
        for participant in self.participants.values() {
            held.publications += participant.publications.len();
            held.choices += participant.choices.len() + participant.disabled.len();
            held.kept_bytes += participant.outbox.kept_bytes();
            // Somebody inside the process has neither slots nor queues here.
            let Some(down) = participant.link.down() else {
                continue;
            };
            held.slots += down.slots.iter().count();
            held.carrying += down
                .slots
                .iter()
                .filter(|slot| slot.carries.is_some())
                .count();
            held.queued_bytes += down.queued_bytes();
        }
        held
    }
}
