//! How long the answer to a turn took, step by step: end of speech, final, first text, first sound, end. The client is
//! told once per turn, when the answer has been played, or when the next turn ends without one.

use std::time::Duration;

use tokio::time::Instant;

use super::protocol::ServerMessage;

/// The clock of the turns of a session.
#[derive(Debug, Default)]
pub struct TurnClock {
    turns: u64,
    /// When the last final of a turn was told.
    last_final: Option<Instant>,
    turn: Option<Turn>,
}

/// A turn that has ended, and its answer so far.
#[derive(Debug)]
struct Turn {
    number: u64,
    end_of_speech: Instant,
    heard: Option<Instant>,
    first_text: Option<Instant>,
    first_sound: Option<Instant>,
}

impl TurnClock {
    /// The final of a turn is told.
    pub fn heard(&mut self, now: Instant) {
        self.last_final = Some(now);
    }

    /// A turn has ended after this much silence; returns what is known of the one before, if that was not told.
    pub fn turn_ends(&mut self, silence: Duration, now: Instant) -> Option<ServerMessage> {
        let before = self.turn.take().map(|turn| turn.tell(None, false));
        self.turns += 1;
        self.turn = Some(Turn {
            number: self.turns,
            end_of_speech: now.checked_sub(silence).unwrap_or(now),
            heard: self.last_final.take(),
            first_text: None,
            first_sound: None,
        });
        before
    }

    /// The client sends text to say.
    pub fn text(&mut self, now: Instant) {
        if let Some(turn) = &mut self.turn {
            turn.first_text.get_or_insert(now);
        }
    }

    /// The first sound of an utterance leaves.
    pub fn sound(&mut self, now: Instant) {
        // What was said before is no answer.
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.first_text.is_some()) {
            turn.first_sound.get_or_insert(now);
        }
    }

    /// An utterance has ended, cut off or not; returns what the client is told, where that was the answer.
    pub fn played(&mut self, interrupted: bool, now: Instant) -> Option<ServerMessage> {
        let turn = self.turn.take_if(|turn| turn.first_sound.is_some())?;
        Some(turn.tell(Some(now), interrupted))
    }
}

impl Turn {
    fn tell(&self, played: Option<Instant>, interrupted: bool) -> ServerMessage {
        let since = |at: Option<Instant>| {
            let since = at?.saturating_duration_since(self.end_of_speech);
            Some(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
        };
        ServerMessage::TurnMetrics {
            turn: self.number,
            final_ms: since(self.heard),
            first_text_ms: since(self.first_text),
            first_sound_ms: since(self.first_sound),
            played_ms: since(played),
            interrupted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn metrics(turn: u64, at: [Option<u64>; 4], interrupted: bool) -> ServerMessage {
        let [final_ms, first_text_ms, first_sound_ms, played_ms] = at;
        ServerMessage::TurnMetrics {
            turn,
            final_ms,
            first_text_ms,
            first_sound_ms,
            played_ms,
            interrupted,
        }
    }

    #[test]
    fn each_step_counts_from_the_end_of_speech() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut clock = TurnClock::default();
        clock.heard(at(500));
        assert_eq!(clock.turn_ends(Duration::from_millis(600), at(600)), None);
        // Something that was said before ends.
        clock.sound(at(610));
        assert_eq!(clock.played(false, at(620)), None);
        clock.text(at(900));
        clock.text(at(950));
        clock.sound(at(1_100));
        let told = clock.played(false, at(3_000));
        let steps = [Some(500), Some(900), Some(1_100), Some(3_000)];
        assert_eq!(told, Some(metrics(1, steps, false)));
        assert_eq!(clock.played(false, at(3_100)), None);
    }

    #[test]
    fn a_turn_without_an_answer_is_told_when_the_next_one_ends() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut clock = TurnClock::default();
        clock.turn_ends(Duration::ZERO, at(0));
        clock.text(at(100));
        let told = clock.turn_ends(Duration::ZERO, at(1_000));
        assert_eq!(told, Some(metrics(1, [None, Some(100), None, None], false)));
        clock.text(at(1_100));
        clock.sound(at(1_200));
        let told = clock.played(true, at(1_300));
        assert_eq!(
            told,
            Some(metrics(2, [None, Some(100), Some(200), Some(300)], true))
        );
    }
}
