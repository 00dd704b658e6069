//! The resources an SFU holds, so that a test can tell whether something grew.

use super::super::sfu::Sfu;

/// Everything that clients can make grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    pub rooms: usize,
    pub participants: usize,
    pub connections: usize,
    /// Source addresses.
    pub routes: usize,
    /// Timers of peer connections.
    pub deadlines: usize,
    /// Connections that were told to leave and are still open.
    pub leaving: usize,
    pub publications: usize,
    pub slots: usize,
    /// Slots that carry a track.
    pub carrying: usize,
    /// Explicit subscriptions.
    pub choices: usize,
    /// Queued bytes, and bytes kept for resuming participants.
    pub queued_bytes: usize,
    pub kept_bytes: usize,
}

impl Sfu {
    /// What is held now.
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
            held.choices += participant.choices.len() + participant.wishes.len();
            held.kept_bytes += participant.outbox.kept_bytes();
            // Participants in this process have neither slots nor queues here.
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
