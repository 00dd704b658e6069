//! The handover from one recogniser to the next: the former one drains the audio that it was sent, and the transcripts
//! of its successor wait until it has finished, so that the client gets words in the order in which they were said.
//! Pure; which recogniser is started and stopped when is decided by the [session](super::state).

use std::time::{Duration, Instant};

use super::protocol::ListenConfig;
use vivavoce_seams::SttEvent;

/// How long a recogniser may take to drain.
pub const PATIENCE: Duration = Duration::from_secs(8);
/// How often a recogniser that fails while it drains is started again.
const MAX_ATTEMPTS: u8 = 2;
/// The most recognisers that drain at once. Each may take a stream of the vendor.
const MAX_DRAINING: usize = 3;
/// The most events that wait. Beyond it no recogniser is waited for any longer.
const MAX_WAITING: usize = 256;

/// A recogniser that was replaced and has not finished.
#[derive(Debug)]
pub struct Draining {
    /// Its position among the session's recognisers: a lower one was sent earlier audio.
    pub order: u32,
    /// The current attempt.
    pub attempt: u32,
    /// The config whose audio it is sent.
    pub config: u64,
    pub listen: ListenConfig,
    /// When it is given up on.
    until: Instant,
    attempts_left: u8,
}

/// An event that waits for former recognisers, and how much audio the session had heard when it came.
#[derive(Debug)]
struct Waiting {
    order: u32,
    event: SttEvent,
    heard: Duration,
}

/// The draining recognisers of a session and the events that wait for them.
#[derive(Debug, Default)]
pub struct SttHandover {
    draining: Vec<Draining>,
    waiting: Vec<Waiting>,
}

impl SttHandover {
    /// A recogniser has been replaced and drains. Returns the oldest if it has to end because there are too many.
    pub fn retire(
        &mut self,
        (order, attempt): (u32, u32),
        config: u64,
        listen: ListenConfig,
        now: Instant,
    ) -> Option<Draining> {
        let is_full = self.draining.len() >= MAX_DRAINING;
        let oldest = is_full.then(|| self.draining.remove(0));
        self.draining.push(Draining {
            order,
            attempt,
            config,
            listen,
            until: now + PATIENCE,
            attempts_left: MAX_ATTEMPTS,
        });
        oldest
    }

    /// The order of the draining recogniser whose current attempt this is.
    pub fn order_of(&self, attempt: u32) -> Option<u32> {
        let draining = self
            .draining
            .iter()
            .find(|draining| draining.attempt == attempt);
        draining.map(|draining| draining.order)
    }

    /// How the draining recogniser whose current attempt this is was asked to listen.
    pub fn listen_of(&self, attempt: u32) -> Option<&ListenConfig> {
        let mut draining = self.draining.iter();
        let its = draining.find(|draining| draining.attempt == attempt);
        its.map(|draining| &draining.listen)
    }

    /// Whether no recogniser drains.
    pub fn is_over(&self) -> bool {
        self.draining.is_empty()
    }

    /// Whether a recogniser still drains the audio of this config.
    pub fn needs(&self, config: u64) -> bool {
        self.draining
            .iter()
            .any(|draining| draining.config == config)
    }

    /// Returns an event that need not wait. Others are kept, an interim result only until the next one.
    pub fn take(&mut self, order: u32, event: SttEvent, heard: Duration) -> Option<SttEvent> {
        if self.draining.iter().all(|draining| draining.order >= order) {
            return Some(event);
        }
        self.waiting.retain(|waiting| {
            waiting.order != order || !matches!(waiting.event, SttEvent::Partial(_))
        });
        self.waiting.push(Waiting {
            order,
            event,
            heard,
        });
        if self.waiting.len() > MAX_WAITING {
            self.draining.clear();
        }
        None
    }

    /// An attempt has failed while it drained: the next one, with this number, drains the rest. `None` if there have been
    /// too many.
    pub fn revive(&mut self, ended: u32, attempt: u32) -> Option<&Draining> {
        let draining = self
            .draining
            .iter_mut()
            .find(|draining| draining.attempt == ended)?;
        draining.attempts_left = draining.attempts_left.checked_sub(1)?;
        draining.attempt = attempt;
        Some(draining)
    }

    /// A recogniser has finished or failed.
    pub fn ended(&mut self, attempt: u32) -> Option<Draining> {
        let index = self
            .draining
            .iter()
            .position(|draining| draining.attempt == attempt)?;
        Some(self.draining.remove(index))
    }

    /// When the next recogniser is given up on.
    pub fn deadline(&self) -> Option<Instant> {
        self.draining.iter().map(|draining| draining.until).min()
    }

    /// Removes the recognisers that have taken too long.
    pub fn give_up(&mut self, now: Instant) -> Vec<Draining> {
        let late = |draining: &mut Draining| draining.until <= now;
        self.draining.extract_if(.., late).collect()
    }

    /// No recogniser is waited for any longer.
    pub fn end(&mut self) {
        self.draining.clear();
    }

    /// Removes the events that need not wait any longer, in order, with how much audio had been heard when they came.
    pub fn due(&mut self) -> Vec<(SttEvent, Duration)> {
        let first = self.draining.iter().map(|draining| draining.order).min();
        let is_due = |waiting: &mut Waiting| first.is_none_or(|first| waiting.order <= first);
        let mut due: Vec<_> = self.waiting.extract_if(.., is_due).collect();
        due.sort_by_key(|waiting| waiting.order);
        let event = |waiting: Waiting| (waiting.event, waiting.heard);
        due.into_iter().map(event).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_audio::format::{AudioFormat, Encoding, SampleRate};
    use vivavoce_seams::Transcript;

    fn listen() -> ListenConfig {
        ListenConfig {
            provider: "scripted".to_owned(),
            language: "en-US".to_owned(),
            format: AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000),
            punctuation: true,
            model: String::new(),
            auth: vivavoce_seams::OwnCredential::default(),
            keyterms: Vec::new(),
            languages: Vec::new(),
            diarize: false,
            min_confidence: 0.0,
            fallback: Vec::new(),
        }
    }

    fn said(text: &str) -> SttEvent {
        SttEvent::Final(Transcript {
            text: text.to_owned(),
            ..Transcript::default()
        })
    }

    fn text(event: &SttEvent) -> &str {
        match event {
            SttEvent::Partial(heard) | SttEvent::Final(heard) => &heard.text,
            _ => "",
        }
    }

    fn due(handover: &mut SttHandover) -> Vec<String> {
        let due = handover.due();
        due.iter()
            .map(|(event, _)| text(event).to_owned())
            .collect()
    }

    #[test]
    fn words_are_told_in_the_order_of_those_who_heard_them() {
        let mut handover = SttHandover::default();
        let now = Instant::now();
        assert!(handover.retire((1, 1), 1, listen(), now).is_none());
        assert!(handover.retire((2, 2), 2, listen(), now).is_none());
        let mut take = |order, text: &str| {
            let taken = handover.take(order, said(text), Duration::ZERO);
            taken.is_some()
        };
        assert!(!take(3, "four"));
        assert!(!take(2, "two"));
        assert!(take(1, "one"));
        assert!(!take(3, "five"));
        assert!(!take(2, "three"));
        // The second has finished before the first.
        assert!(handover.ended(2).is_some());
        assert_eq!(due(&mut handover), [""; 0]);
        assert!(handover.ended(1).is_some());
        assert_eq!(due(&mut handover), ["two", "three", "four", "five"]);
        assert!(handover.is_over());
    }

    #[test]
    fn of_interim_results_only_the_latest_waits_and_others_have_a_bound() {
        let mut handover = SttHandover::default();
        let oldest = handover.retire((1, 1), 1, listen(), Instant::now());
        assert!(oldest.is_none());
        for number in 0..1_000 {
            let partial = SttEvent::Partial(Transcript {
                text: number.to_string(),
                ..Transcript::default()
            });
            assert!(handover.take(2, partial, Duration::ZERO).is_none());
        }
        assert_eq!(handover.waiting.len(), 1);
        for number in 0..=MAX_WAITING {
            assert!(!handover.is_over(), "{number}");
            let waits = handover.take(2, said("x"), Duration::ZERO).is_none();
            assert!(waits);
            if handover.is_over() {
                break;
            }
        }
        assert_eq!(due(&mut handover).len(), MAX_WAITING + 1);
    }

    #[test]
    fn a_former_recogniser_has_a_few_more_lives_and_some_time() {
        let mut handover = SttHandover::default();
        let now = Instant::now();
        assert!(handover.retire((1, 1), 7, listen(), now).is_none());
        assert_eq!(
            handover.revive(1, 5).map(|draining| draining.config),
            Some(7)
        );
        assert_eq!(handover.order_of(5), Some(1));
        assert!(handover.revive(5, 6).is_some());
        assert!(handover.revive(6, 7).is_none());
        assert!(handover.needs(7));
        assert!(handover.give_up(now + PATIENCE / 2).is_empty());
        assert_eq!(handover.deadline(), Some(now + PATIENCE));
        assert_eq!(handover.give_up(now + PATIENCE).len(), 1);
        assert!(handover.is_over());
    }
}
