//! How long the answer to a turn took, step by step: end of speech, final, first text, first sound, end. The client is
//! told once per turn, when the answer has been played, or when the next turn ends without one; so are the trace of the
//! session and the metrics.

use std::time::Duration;

use tokio::time::Instant;

use vivavoce_telemetry::conversation::{Activity, Conversation};
use vivavoce_telemetry::metrics;

use super::playback::{EventKind, UtteranceKey};
use super::protocol::ServerMessage;

/// The clock of the turns of a session.
#[derive(Debug)]
pub struct TurnClock {
    turns: u64,
    /// Somebody speaks: the turn that has not ended.
    speaking: Option<Activity>,
    /// When the last final of a turn was told.
    last_final: Option<Instant>,
    turn: Option<Turn>,
    /// Utterances that are played.
    playing: Vec<(UtteranceKey, Activity)>,
    /// Last, as the session's span ends with it.
    trace: Conversation,
}

/// A turn that has ended, and its answer so far.
#[derive(Debug)]
struct Turn {
    number: u64,
    activity: Activity,
    end_of_speech: Instant,
    heard: Option<Instant>,
    first_text: Option<Instant>,
    first_sound: Option<Instant>,
}

impl TurnClock {
    /// A clock that reports to this trace.
    pub const fn new(trace: Conversation) -> Self {
        Self {
            turns: 0,
            speaking: None,
            last_final: None,
            turn: None,
            playing: Vec::new(),
            trace,
        }
    }

    /// Somebody speaks: a turn begins, if none is going on.
    pub fn goes_on(&mut self) {
        self.speaking.get_or_insert_with(|| self.trace.turn());
    }

    /// The final of a turn is told.
    pub fn heard(&mut self, now: Instant) {
        self.last_final = Some(now);
    }

    /// A turn has ended for this reason, after this much silence; returns what is known of the one before, if that was not
    /// told.
    pub fn turn_ends(
        &mut self,
        reason: &'static str,
        silence: Duration,
        now: Instant,
    ) -> Option<ServerMessage> {
        metrics::turn_ended(reason);
        let before = self.turn.take().map(|turn| turn.tell(None, false));
        self.turns += 1;
        let activity = self.speaking.take().unwrap_or_else(|| self.trace.turn());
        activity.note("reason", reason);
        self.turn = Some(Turn {
            number: self.turns,
            activity,
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

    /// Something happens to an utterance; returns what the client is told, where that was the answer to a turn.
    pub fn playback(
        &mut self,
        utterance: UtteranceKey,
        event: &EventKind,
        now: Instant,
    ) -> Option<ServerMessage> {
        let cut = match event {
            EventKind::Progress { .. } => return None,
            EventKind::Started => {
                self.playing.push((utterance, self.trace.playout()));
                self.sound(now);
                return None;
            }
            EventKind::Complete { .. } => None,
            EventKind::Interrupted { played, .. } | EventKind::Failed { played, .. } => {
                Some(*played)
            }
        };
        let playing = self.playing.iter().position(|(key, _)| *key == utterance);
        if let Some(at) = playing {
            let (_, activity) = self.playing.swap_remove(at);
            activity.note("interrupted", cut.is_some());
            if let Some(played) = cut {
                activity.delay("played_ms", played);
            }
            if matches!(event, EventKind::Failed { .. }) {
                activity.failed("tts_failed");
            }
        }
        if matches!(event, EventKind::Interrupted { .. }) && playing.is_some() {
            metrics::speech_interrupted();
        }
        self.played(cut.is_some(), now)
    }

    /// The first sound of an utterance leaves.
    fn sound(&mut self, now: Instant) {
        // What was said before is no answer.
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.first_text.is_some()) {
            turn.first_sound.get_or_insert(now);
        }
    }

    /// An utterance has ended, cut off or not; returns what the client is told, where that was the answer.
    fn played(&mut self, interrupted: bool, now: Instant) -> Option<ServerMessage> {
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
        let [final_ms, first_text_ms, first_sound_ms, played_ms] =
            [self.heard, self.first_text, self.first_sound, played].map(since);
        for (key, ms) in [
            ("final_ms", final_ms),
            ("first_text_ms", first_text_ms),
            ("first_sound_ms", first_sound_ms),
            ("played_ms", played_ms),
        ] {
            if let Some(ms) = ms {
                self.activity.delay(key, Duration::from_millis(ms));
            }
        }
        self.activity.note("interrupted", interrupted);
        if let Some(ms) = first_sound_ms {
            metrics::turn_answered(Duration::from_millis(ms));
        }
        ServerMessage::TurnMetrics {
            turn: self.number,
            final_ms,
            first_text_ms,
            first_sound_ms,
            played_ms,
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
        let mut clock = TurnClock::new(Conversation::begin("", None));
        clock.heard(at(500));
        assert_eq!(
            clock.turn_ends("silence", Duration::from_millis(600), at(600)),
            None
        );
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
        let mut clock = TurnClock::new(Conversation::begin("", None));
        clock.turn_ends("silence", Duration::ZERO, at(0));
        clock.text(at(100));
        let told = clock.turn_ends("silence", Duration::ZERO, at(1_000));
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
