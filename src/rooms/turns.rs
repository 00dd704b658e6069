//! Whose turn it is: rooms take turns, and in each room its connections. State only.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;

/// Those who wait, each once at most.
#[derive(Debug)]
pub struct Turns<R, C> {
    rooms: VecDeque<R>,
    waiting: HashMap<R, VecDeque<C>>,
    everybody: HashSet<C>,
}

impl<R, C> Default for Turns<R, C> {
    fn default() -> Self {
        Self {
            rooms: VecDeque::new(),
            waiting: HashMap::new(),
            everybody: HashSet::new(),
        }
    }
}

impl<R: Clone + Eq + Hash, C: Copy + Eq + Hash> Turns<R, C> {
    /// Lets somebody wait for a turn.
    pub fn push(&mut self, room: &R, who: C) {
        if !self.everybody.insert(who) {
            return;
        }
        match self.waiting.get_mut(room) {
            Some(waiting) => waiting.push_back(who),
            None => {
                self.waiting.insert(room.clone(), VecDeque::from([who]));
                self.rooms.push_back(room.clone());
            }
        }
    }

    /// Whoever has the next turn.
    pub fn next(&mut self) -> Option<C> {
        let room = self.rooms.pop_front()?;
        let waiting = self.waiting.get_mut(&room)?;
        let who = waiting.pop_front()?;
        self.everybody.remove(&who);
        if waiting.is_empty() {
            self.waiting.remove(&room);
        } else {
            self.rooms.push_back(room);
        }
        Some(who)
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.rooms.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_take_turns_and_in_them_connections() {
        let mut turns = Turns::default();
        for who in 0..100 {
            turns.push(&"crowd", who);
        }
        turns.push(&"pair", 200);
        turns.push(&"pair", 201);
        let mut order = Vec::new();
        for _ in 0..12 {
            let who = turns.next().unwrap();
            order.push(who);
            // Everybody in the crowd always has more to say.
            if who < 100 {
                turns.push(&"crowd", who);
            }
        }
        assert_eq!(order, [0, 200, 1, 201, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn whoever_waits_has_one_turn() {
        let mut turns = Turns::default();
        turns.push(&"room", 1);
        turns.push(&"room", 1);
        assert_eq!(turns.next(), Some(1));
        assert_eq!(turns.next(), None);
        assert!(turns.is_empty());
    }
}
