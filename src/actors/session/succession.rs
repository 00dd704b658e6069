//! When one recogniser follows another, the former one finishes what it has heard, and what its successor understands
//! meanwhile waits: a client is told words in the order in which they were said. Pure; who is started and ended when is
//! the [session's](super::state) decision.

use std::time::{Duration, Instant};

use super::messages::ListenConfig;
use vivavoce_seams::SttEvent;

/// How long former recognisers may take over their last words.
pub const PATIENCE: Duration = Duration::from_secs(8);
/// Lives that a former recogniser may have after it was replaced.
const LIVES: u8 = 2;
/// Events that wait at most. Beyond it nobody is waited for any longer.
const MAX_WAITING: usize = 256;

/// A recogniser that was replaced and has not said its last.
#[derive(Debug)]
pub struct Former {
    /// Its place in the order: whoever is before has heard earlier sound.
    pub seat: u32,
    /// Which of its lives is under way.
    pub life: u32,
    /// The config whose sound it hears.
    pub config: u64,
    /// What it listens for.
    pub listen: ListenConfig,
    /// When it is given up.
    until: Instant,
    lives: u8,
}

/// An event that waits for its turn, and how much of the session's audio had been heard when it came.
#[derive(Debug)]
struct Waiting {
    seat: u32,
    event: SttEvent,
    heard: Duration,
}

/// The former recognisers of a session and what waits for them.
#[derive(Debug, Default)]
pub struct Succession {
    former: Vec<Former>,
    waiting: Vec<Waiting>,
}

impl Succession {
    /// A recogniser is replaced and finishes.
    pub fn retire(
        &mut self,
        (seat, life): (u32, u32),
        config: u64,
        listen: ListenConfig,
        now: Instant,
    ) {
        self.former.push(Former {
            seat,
            life,
            config,
            listen,
            until: now + PATIENCE,
            lives: LIVES,
        });
    }

    /// The seat of a former recogniser's life.
    pub fn seat_of(&self, life: u32) -> Option<u32> {
        let former = self.former.iter().find(|former| former.life == life);
        former.map(|former| former.seat)
    }

    /// Whether nobody finishes.
    pub fn is_over(&self) -> bool {
        self.former.is_empty()
    }

    /// Whether somebody still hears the sound of this config.
    pub fn needs(&self, config: u64) -> bool {
        self.former.iter().any(|former| former.config == config)
    }

    /// Gives back an event whose turn it is; else it waits, an interim result only until the next one.
    pub fn take(&mut self, seat: u32, event: SttEvent, heard: Duration) -> Option<SttEvent> {
        if self.former.iter().all(|former| former.seat >= seat) {
            return Some(event);
        }
        self.waiting.retain(|waiting| {
            waiting.seat != seat || !matches!(waiting.event, SttEvent::Partial(_))
        });
        self.waiting.push(Waiting { seat, event, heard });
        if self.waiting.len() > MAX_WAITING {
            self.former.clear();
        }
        None
    }

    /// A former recogniser's life has ended in the middle: the next one, which `life` numbers, hears what is left. `None`
    /// when there were enough.
    pub fn revive(&mut self, ended: u32, life: u32) -> Option<&Former> {
        let former = self.former.iter_mut().find(|former| former.life == ended)?;
        former.lives = former.lives.checked_sub(1)?;
        former.life = life;
        Some(former)
    }

    /// A former recogniser has said its last, or will not.
    pub fn ended(&mut self, life: u32) -> Option<Former> {
        let index = self.former.iter().position(|former| former.life == life)?;
        Some(self.former.remove(index))
    }

    /// When somebody is given up.
    pub fn deadline(&self) -> Option<Instant> {
        self.former.iter().map(|former| former.until).min()
    }

    /// Those who have taken too long.
    pub fn give_up(&mut self, now: Instant) -> Vec<Former> {
        let late = |former: &mut Former| former.until <= now;
        self.former.extract_if(.., late).collect()
    }

    /// Nobody is waited for any longer.
    pub fn end(&mut self) {
        self.former.clear();
    }

    /// What need not wait any longer, in order, with how much had been heard when it came.
    pub fn due(&mut self) -> Vec<(SttEvent, Duration)> {
        let first = self.former.iter().map(|former| former.seat).min();
        let is_due = |waiting: &mut Waiting| first.is_none_or(|first| waiting.seat <= first);
        let mut due: Vec<_> = self.waiting.extract_if(.., is_due).collect();
        due.sort_by_key(|waiting| waiting.seat);
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

    fn due(succession: &mut Succession) -> Vec<String> {
        let due = succession.due();
        due.iter()
            .map(|(event, _)| text(event).to_owned())
            .collect()
    }

    #[test]
    fn words_are_told_in_the_order_of_those_who_heard_them() {
        let mut succession = Succession::default();
        let now = Instant::now();
        succession.retire((1, 1), 1, listen(), now);
        succession.retire((2, 2), 2, listen(), now);
        let mut take = |seat, text: &str| {
            let taken = succession.take(seat, said(text), Duration::ZERO);
            taken.is_some()
        };
        assert!(!take(3, "four"));
        assert!(!take(2, "two"));
        assert!(take(1, "one"));
        assert!(!take(3, "five"));
        assert!(!take(2, "three"));
        // The second has finished before the first.
        assert!(succession.ended(2).is_some());
        assert_eq!(due(&mut succession), [""; 0]);
        assert!(succession.ended(1).is_some());
        assert_eq!(due(&mut succession), ["two", "three", "four", "five"]);
        assert!(succession.is_over());
    }

    #[test]
    fn of_interim_results_only_the_latest_waits_and_others_have_a_bound() {
        let mut succession = Succession::default();
        succession.retire((1, 1), 1, listen(), Instant::now());
        for number in 0..1_000 {
            let partial = SttEvent::Partial(Transcript {
                text: number.to_string(),
                ..Transcript::default()
            });
            assert!(succession.take(2, partial, Duration::ZERO).is_none());
        }
        assert_eq!(succession.waiting.len(), 1);
        for number in 0..=MAX_WAITING {
            assert!(!succession.is_over(), "{number}");
            let waits = succession.take(2, said("x"), Duration::ZERO).is_none();
            assert!(waits);
            if succession.is_over() {
                break;
            }
        }
        assert_eq!(due(&mut succession).len(), MAX_WAITING + 1);
    }

    #[test]
    fn a_former_recogniser_has_a_few_more_lives_and_some_time() {
        let mut succession = Succession::default();
        let now = Instant::now();
        succession.retire((1, 1), 7, listen(), now);
        assert_eq!(succession.revive(1, 5).map(|former| former.config), Some(7));
        assert_eq!(succession.seat_of(5), Some(1));
        assert!(succession.revive(5, 6).is_some());
        assert!(succession.revive(6, 7).is_none());
        assert!(succession.needs(7));
        assert!(succession.give_up(now + PATIENCE / 2).is_empty());
        assert_eq!(succession.deadline(), Some(now + PATIENCE));
        assert_eq!(succession.give_up(now + PATIENCE).len(), 1);
        assert!(succession.is_over());
    }
}
