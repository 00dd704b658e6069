//! Coughs, backchannels and real interruptions, in virtual time: what is decided, why, and how fast.

use std::fmt::Write;

use super::*;
use crate::session::backchannel::Lists;

/// What happens, and how many milliseconds after the first speech over playback.
#[derive(Debug, Clone)]
enum Heard {
    Voice,
    Pause,
    Partial(&'static str),
    Final(&'static str),
}
use Heard::{Final, Partial, Pause, Voice};

struct Stage {
    detector: BargeInDetector,
    start: Instant,
    decided: Vec<(u64, InterruptionState, InterruptionReason)>,
    cut: bool,
    yields: bool,
}

impl Stage {
    fn new(language: &str) -> Self {
        let vad = VadConfig {
            interruption: InterruptionMode::Duck,
            ..VadConfig::default()
        };
        let mut detector = BargeInDetector::default();
        assert_eq!(
            detector.configure(&vad, Lists::default().of([language]), Duration::ZERO),
            []
        );
        Self {
            detector,
            start: Instant::now(),
            decided: Vec::new(),
            cut: false,
            yields: false,
        }
    }

    fn moment(&self, at: u64) -> Moment {
        let at = Duration::from_millis(at);
        Moment {
            now: self.start + at,
            heard: at,
            onset: false,
        }
    }

    fn take(&mut self, at: u64, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Yield(mode) => {
                    assert_eq!(mode, InterruptionMode::Duck);
                    assert!(!std::mem::replace(&mut self.yields, true));
                }
                Step::Resume => assert!(std::mem::take(&mut self.yields)),
                Step::Cut => {
                    self.cut = true;
                    self.yields = false;
                }
                Step::Tell(told) => {
                    assert_eq!(told.timestamp_ms, at);
                    self.decided.push((at, told.state, told.reason));
                }
            }
        }
    }

    /// Lets time pass up to a moment.
    fn pass(&mut self, until: u64) {
        while let Some(due) = self.detector.next_deadline() {
            let at = due.duration_since(self.start).as_millis() as u64;
            if at > until {
                return;
            }
            let steps = self.detector.tick(self.moment(at), !self.cut);
            self.take(at, steps);
        }
    }

    fn hears(&mut self, at: u64, heard: &Heard) {
        self.pass(at);
        let (moment, playing) = (self.moment(at), !self.cut);
        let sample = at * 16;
        let transcript = |text: &str| Transcript {
            text: text.to_owned(),
            ..Transcript::default()
        };
        let steps = match heard {
            Voice => self
                .detector
                .vad(VadEvent::SpeechStart { at: sample }, moment, playing),
            Pause => self
                .detector
                .vad(VadEvent::SilenceBegan { at: sample }, moment, playing),
            Partial(text) => {
                let event = SttEvent::Partial(transcript(text));
                self.detector.stt(&event, moment, playing)
            }
            Final(text) => {
                let event = SttEvent::Final(transcript(text));
                self.detector.stt(&event, moment, playing)
            }
        };
        self.take(at, steps);
    }

    /// The decisions behind the suspicion.
    fn decisions(&self) -> Vec<(u64, InterruptionState, InterruptionReason)> {
        let mut decided = self.decided.clone();
        decided.retain(|(_, state, _)| *state != InterruptionState::Suspected);
        decided
    }
}

/// What is said over playback and in which language, when it is heard, and when what is decided why.
type Case = (
    &'static str,
    &'static str,
    Vec<(u64, Heard)>,
    (u64, InterruptionState, InterruptionReason),
);

fn coughs_and_backchannels() -> Vec<Case> {
    use InterruptionReason::{Backchannel, TooShort};
    use InterruptionState::Resumed;
    vec![
        (
            "a cough",
            "en-US",
            vec![(0, Voice), (250, Pause)],
            (600, Resumed, TooShort),
        ),
        (
            "two coughs",
            "en-US",
            vec![(0, Voice), (150, Pause), (300, Voice), (450, Pause)],
            (600, Resumed, TooShort),
        ),
        (
            "mhm",
            "en-US",
            vec![(0, Voice), (300, Partial("mhm")), (350, Pause)],
            (350, Resumed, Backchannel),
        ),
        (
            "mhm, understood late",
            "en-US",
            vec![(0, Voice), (350, Pause), (480, Final("Mhm."))],
            (480, Resumed, Backchannel),
        ),
        (
            "uh-huh, piece by piece",
            "en-US",
            vec![
                (0, Voice),
                (200, Partial("uh")),
                (400, Partial("uh hu")),
                (450, Pause),
            ],
            (450, Resumed, Backchannel),
        ),
        (
            "okay, yeah, I see",
            "en-US",
            vec![
                (0, Voice),
                (300, Partial("okay yeah I")),
                (550, Partial("okay yeah I see")),
                (590, Pause),
            ],
            (590, Resumed, Backchannel),
        ),
        (
            "a drawn-out mhm",
            "en-US",
            vec![(0, Voice), (500, Partial("mmm"))],
            (600, Resumed, Backchannel),
        ),
        (
            "ja genau",
            "de",
            vec![(0, Voice), (300, Partial("Ja, genau")), (420, Pause)],
            (420, Resumed, Backchannel),
        ),
    ]
}

fn words() -> Vec<Case> {
    use InterruptionReason::{Speech, Words};
    use InterruptionState::Confirmed;
    vec![
        (
            "the same where nobody knows German",
            "en-US",
            vec![(0, Voice), (300, Partial("Ja, genau")), (420, Pause)],
            (300, Confirmed, Words),
        ),
        (
            "stop",
            "en-US",
            vec![(0, Voice), (250, Partial("stop")), (350, Final("Stop."))],
            (350, Confirmed, Words),
        ),
        (
            "stop, and no final",
            "en-US",
            vec![(0, Voice), (250, Partial("stop")), (300, Pause)],
            (600, Confirmed, Words),
        ),
        (
            "wait a minute",
            "en-US",
            vec![(0, Voice), (300, Partial("wait a"))],
            (300, Confirmed, Words),
        ),
        (
            "okay but wait",
            "en-US",
            vec![
                (0, Voice),
                (300, Partial("okay")),
                (500, Partial("okay but wait")),
            ],
            (500, Confirmed, Words),
        ),
        (
            "speech that is not understood yet",
            "en-US",
            vec![(0, Voice)],
            (600, Confirmed, Speech),
        ),
    ]
}

#[test]
fn coughs_and_backchannels_resume_and_words_cut() {
    let mut table = String::from(
        "| what is said over playback | decision | reason | after |\n|---|---|---|---|\n",
    );
    for (name, language, script, expected) in [coughs_and_backchannels(), words()].concat() {
        let mut stage = Stage::new(language);
        for (at, heard) in script {
            stage.hears(at, &heard);
        }
        stage.pass(5_000);
        assert_eq!(stage.decisions(), [expected], "{name}");
        let (at, state, reason) = expected;
        assert_eq!(stage.cut, state == InterruptionState::Confirmed, "{name}");
        writeln!(table, "| {name} | {state:?} | {reason:?} | {at} ms |").unwrap();
    }
    println!("{table}");
}

#[test]
fn what_was_let_pass_is_cut_when_it_turns_out_to_be_words() {
    let mut stage = Stage::new("en");
    stage.hears(0, &Voice);
    stage.hears(200, &Pause);
    stage.hears(900, &Final("Stop it!"));
    let told: Vec<_> = stage.decided.iter().map(|told| (told.0, told.1)).collect();
    let expected = [
        (0, InterruptionState::Suspected),
        (600, InterruptionState::Resumed),
        (900, InterruptionState::Suspected),
        (900, InterruptionState::Confirmed),
    ];
    assert_eq!(told, expected);
}

#[test]
fn words_that_were_said_before_playback_interrupt_nothing() {
    let mut stage = Stage::new("en");
    stage.hears(0, &Partial("what is the weather"));
    stage.hears(100, &Voice);
    stage.hears(200, &Partial("what is the weather"));
    stage.hears(300, &Pause);
    stage.hears(400, &Final("What is the weather?"));
    stage.pass(5_000);
    let expected = (
        700,
        InterruptionState::Resumed,
        InterruptionReason::TooShort,
    );
    assert_eq!(stage.decisions(), [expected]);
    stage.hears(5_000, &Final("And words without any voice"));
    assert!(!stage.cut);
}

#[test]
fn sound_that_is_late_is_waited_for_once() {
    let mut stage = Stage::new("en");
    stage.hears(0, &Voice);
    // Of its sound only 200 ms have come.
    let late = |at| Moment {
        heard: Duration::from_millis(200),
        ..stage.moment(at)
    };
    let (first, second) = (late(600), late(1_200));
    assert_eq!(stage.detector.tick(first, true), []);
    let resumed = resumed(InterruptionReason::TooShort, Duration::from_millis(200));
    assert_eq!(stage.detector.tick(second, true), resumed);
}

#[test]
fn what_ends_or_is_cleared_by_the_client_is_not_decided() {
    let mut stage = Stage::new("en");
    stage.hears(0, &Voice);
    let steps = stage
        .detector
        .abandon(InterruptionReason::Cleared, Duration::from_millis(100));
    stage.take(100, steps);
    stage.hears(300, &Pause);
    stage.hears(400, &Voice);
    let steps = stage.detector.tick(stage.moment(500), false);
    stage.take(500, steps);
    stage.pass(5_000);
    let resumed = InterruptionState::Resumed;
    let expected = [
        (100, resumed, InterruptionReason::Cleared),
        (500, resumed, InterruptionReason::Ended),
    ];
    assert_eq!(stage.decisions(), expected);
    // Where nothing is said nothing is suspected.
    let steps = stage
        .detector
        .vad(VadEvent::SpeechStart { at: 0 }, stage.moment(6_000), false);
    assert_eq!(steps, []);
}

proptest::proptest! {
    #[test]
    fn every_suspicion_is_decided_once(
        inputs in proptest::collection::vec((0..6u8, 0..400u64, proptest::bool::ANY), 0..60)
    ) {
        let mut stage = Stage::new("en");
        let mut at = 0;
        for (input, pause, playing) in inputs {
            at += pause;
            stage.cut = !playing;
            let heard = [Voice, Pause, Partial("mhm"), Final("okay"), Partial("stop"), Final("stop now")];
            stage.hears(at, &heard[usize::from(input)]);
        }
        stage.cut = false;
        stage.pass(at + 60_000);
        let mut open = false;
        for (_, state, _) in stage.decided {
            let suspects = state == InterruptionState::Suspected;
            proptest::prop_assert_eq!(open, !suspects);
            open = suspects;
        }
        proptest::prop_assert!(!open);
    }
}
