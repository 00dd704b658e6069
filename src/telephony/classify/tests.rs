//! The classifier on sound that is made here: speech is noise, which a detector of loudness takes for it. Real voices are
//! measured by `benches/answers`.

use std::f32::consts::TAU;
use std::time::Duration;

use super::*;
use vivavoce_audio::vad::Score;

fn meaning(text: &str) -> Meaning {
    phrases::meaning(text).unwrap()
}

/// Takes whatever is loud for speech.
fn loudness() -> Score {
    Box::new(|frame| {
        let loud = frame.iter().filter(|sample| sample.unsigned_abs() > 500);
        if loud.count() > frame.len() / 4 {
            1.0
        } else {
            0.0
        }
    })
}

/// A far end, and what is found out about it.
struct Line {
    classifier: Classifier,
    findings: Vec<AnswerFinding>,
    noise: u32,
}

impl Line {
    fn to(number: &str, beep_within: Option<Duration>) -> Self {
        let mut classifier = Classifier::new(Wanted {
            network: networks::of_number(number),
            beep_within,
        });
        let settings = VadSettings {
            hang_over: Duration::from_millis(200),
            min_speech: Duration::from_millis(80),
            ..VadSettings::default()
        };
        classifier.vad = Vad::with_score(settings, loudness());
        Self {
            classifier,
            findings: Vec::new(),
            noise: 1,
        }
    }

    fn answered(number: &str) -> Self {
        let mut line = Self::to(number, None);
        line.classifier.answered();
        line
    }

    fn play(&mut self, ms: u64, mut sample: impl FnMut(u64) -> f32) -> &mut Self {
        let sound: Vec<i16> = (0..ms * 16).map(|n| sample(n) as i16).collect();
        // As packets come, and as they do not.
        for part in sound.chunks(333) {
            self.classifier.push(part, &mut self.findings);
        }
        self
    }

    fn quiet(&mut self, ms: u64) -> &mut Self {
        self.play(ms, |_| 0.0)
    }

    fn speech(&mut self, ms: u64) -> &mut Self {
        let mut noise = self.noise;
        self.play(ms, |n| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let loud = ((noise >> 18) as f32) - 8_192.0;
            // Syllables.
            if n / 16 % 200 >= 160 {
                loud / 16.0
            } else {
                loud
            }
        });
        self.noise = noise;
        self
    }

    fn tone(&mut self, hz: &[f32], ms: u64) -> &mut Self {
        let amplitude = 6_000.0 / hz.len() as f32;
        self.play(ms, |n| {
            let time = n as f32 / 16_000.0;
            let sum: f32 = hz.iter().map(|hz| (TAU * hz * time).sin()).sum();
            sum * amplitude
        })
    }

    fn all(&self) -> Vec<(Answerer, AnswerReason)> {
        let told = self.findings.iter().filter_map(|finding| match finding {
            AnswerFinding::Classified(found) => Some((found.result, found.reason)),
            AnswerFinding::Beep { .. } => None,
        });
        told.collect()
    }

    fn first(&self) -> Classification {
        match self.findings[..] {
            [AnswerFinding::Classified(found), ..] => found,
            _ => panic!("{:?}", self.findings),
        }
    }
}

const ANYBODY: &str = "+4930123456";

#[test]
fn somebody_who_says_a_word_and_waits_is_a_person() {
    let mut line = Line::answered(ANYBODY);
    line.quiet(600).speech(500).quiet(3_000);
    let found = line.first();
    assert_eq!(
        line.all(),
        [(Answerer::Person, AnswerReason::ShortGreeting)]
    );
    assert!((1_100..1_400).contains(&found.sound_ms), "{found:?}");
    assert!(
        found.after_ms.abs_diff(found.sound_ms + 600) < 60,
        "{found:?}"
    );
}

#[test]
fn whoever_goes_on_talking_is_a_machine_within_two_and_a_half_seconds() {
    let mut line = Line::answered(ANYBODY);
    line.quiet(300);
    for _ in 0..5 {
        line.speech(1_300).quiet(200);
    }
    assert_eq!(
        line.all(),
        [(Answerer::Machine, AnswerReason::LongGreeting)]
    );
    assert!(line.first().sound_ms <= 2_500, "{:?}", line.first());
}

#[test]
fn a_long_greeting_that_is_followed_by_a_pause_is_a_persons_after_all() {
    let mut line = Line::answered(ANYBODY);
    line.speech(3_200).quiet(4_000);
    assert_eq!(
        line.all(),
        [
            (Answerer::Machine, AnswerReason::LongGreeting),
            (Answerer::Person, AnswerReason::Waits),
        ]
    );
}

#[test]
fn nothing_to_hear_is_silence_and_what_comes_later_corrects_it() {
    let mut line = Line::answered(ANYBODY);
    line.quiet(4_200);
    assert_eq!(line.all(), [(Answerer::Silence, AnswerReason::NoSound)]);
    assert_eq!(line.first().sound_ms, 0);
    line.quiet(2_000).speech(500).quiet(1_500);
    assert_eq!(
        line.all()[1],
        (Answerer::Person, AnswerReason::ShortGreeting)
    );
}

#[test]
fn information_tones_are_heard_before_the_answer_too() {
    for answered in [false, true] {
        let mut line = Line::to(ANYBODY, None);
        if answered {
            line.classifier.answered();
        }
        line.quiet(200).tone(&[950.0], 330).tone(&[1_400.0], 330);
        line.tone(&[1_800.0], 330).quiet(300);
        let tones = (Answerer::NotInService, AnswerReason::InformationTones);
        assert_eq!(line.all(), [tones]);
        assert!(line.first().sound_ms < 1_100, "{:?}", line.first());
        // It is answered by the announcement.
        line.classifier.answered();
        line.speech(4_000).quiet(2_000);
        assert_eq!(line.all(), [tones]);
    }
}

#[test]
fn ringing_before_the_answer_says_nothing_and_after_it_is_waited_for() {
    let mut line = Line::to(ANYBODY, None);
    line.tone(&[425.0], 1_000).quiet(4_000).speech(3_000);
    assert_eq!(line.all(), []);
    line.classifier.answered();
    line.tone(&[425.0], 1_000)
        .quiet(3_600)
        .tone(&[425.0], 1_000);
    assert_eq!(line.all(), []);
    line.quiet(500).speech(600).quiet(1_000);
    assert_eq!(
        line.all(),
        [(Answerer::Person, AnswerReason::ShortGreeting)]
    );
}

#[test]
fn busy_is_the_busy_tone_of_the_country() {
    let mut line = Line::answered("+14155550123");
    for _ in 0..3 {
        line.tone(&[480.0, 620.0], 500).quiet(500);
    }
    assert_eq!(line.all(), [(Answerer::Busy, AnswerReason::BusyTone)]);
    let mut line = Line::answered(ANYBODY);
    for _ in 0..3 {
        line.tone(&[425.0], 240).quiet(240);
    }
    assert_eq!(line.all(), [(Answerer::Busy, AnswerReason::CongestionTone)]);
    let mut line = Line::answered("+442012345678");
    line.tone(&[400.0], 3_000);
    assert_eq!(
        line.all(),
        [(Answerer::NotInService, AnswerReason::UnobtainableTone)]
    );
}

#[test]
fn a_fax_is_known_by_its_tones() {
    let mut line = Line::answered(ANYBODY);
    line.quiet(500).tone(&[2_100.0], 3_000).quiet(500);
    assert_eq!(line.all(), [(Answerer::Fax, AnswerReason::FaxTone)]);
    let mut line = Line::answered(ANYBODY);
    line.quiet(500).tone(&[1_100.0], 500).quiet(3_000);
    assert_eq!(line.all(), [(Answerer::Fax, AnswerReason::FaxTone)]);
}

#[test]
fn the_beep_is_told_when_it_is_over_and_once() {
    let mut line = Line::to(ANYBODY, Some(Duration::from_secs(10)));
    line.classifier.answered();
    line.speech(3_500)
        .quiet(300)
        .tone(&[1_000.0], 400)
        .quiet(600);
    line.tone(&[1_000.0], 400).quiet(500);
    assert_eq!(
        line.all(),
        [(Answerer::Machine, AnswerReason::LongGreeting)]
    );
    let beeps: Vec<_> = line.findings[1..].to_vec();
    let [
        AnswerFinding::Beep {
            heard: true,
            after_ms,
        },
    ] = beeps[..]
    else {
        panic!("{beeps:?}");
    };
    assert!((4_150..4_400).contains(&after_ms), "{after_ms}");
    assert!(line.classifier.is_over());
}

#[test]
fn a_beep_that_does_not_come_is_told() {
    let mut line = Line::to(ANYBODY, Some(Duration::from_secs(3)));
    line.classifier.answered();
    line.speech(6_000).quiet(100);
    assert!(matches!(
        line.findings[..],
        [
            AnswerFinding::Classified(_),
            AnswerFinding::Beep {
                heard: false,
                after_ms: 5_300..5_600
            }
        ]
    ));
}

#[test]
fn a_short_greeting_with_a_beep_is_a_machines() {
    let mut line = Line::to(ANYBODY, Some(Duration::from_secs(10)));
    line.classifier.answered();
    line.speech(1_000).quiet(200).tone(&[800.0], 300).quiet(500);
    assert_eq!(line.all(), [(Answerer::Machine, AnswerReason::Beep)]);
    assert!(matches!(
        line.findings[1],
        AnswerFinding::Beep { heard: true, .. }
    ));
}

#[test]
fn words_say_who_it_is_and_correct_what_was_thought() {
    let mut line = Line::answered(ANYBODY);
    line.speech(500).quiet(900);
    assert_eq!(phrases::meaning("Hello."), None);
    line.classifier.words(meaning(
        "Hello. If you record your name and reason for calling",
    ));
    line.quiet(100);
    assert_eq!(
        line.all(),
        [
            (Answerer::Person, AnswerReason::ShortGreeting),
            (Answerer::Screening, AnswerReason::Words),
        ]
    );
    // A machine that says so is not told twice, and is none that waits.
    let mut line = Line::answered(ANYBODY);
    line.speech(3_000);
    line.classifier.words(meaning("please leave a message"));
    line.quiet(4_000);
    assert_eq!(
        line.all(),
        [(Answerer::Machine, AnswerReason::LongGreeting)]
    );
}

#[test]
fn what_people_say_as_well_makes_no_machine_of_a_person() {
    let mut line = Line::answered(ANYBODY);
    line.speech(500).quiet(900);
    for text in [
        "Can I call you back?",
        "What is your reason for calling?",
        "He is not available.",
    ] {
        line.classifier.words(meaning(text));
        line.quiet(100);
    }
    assert_eq!(
        line.all(),
        [(Answerer::Person, AnswerReason::ShortGreeting)]
    );
}

#[test]
fn somebody_may_answer_behind_an_announcement() {
    let mut line = Line::to(ANYBODY, None);
    line.classifier.words(meaning("that is not in service"));
    line.quiet(100);
    line.classifier.answered();
    line.quiet(300);
    line.classifier.words(meaning("how can i help you"));
    line.quiet(100);
    assert_eq!(
        line.all(),
        [
            (Answerer::NotInService, AnswerReason::Words),
            (Answerer::Person, AnswerReason::Words),
        ]
    );
}

#[test]
fn decisions_and_memory_are_bounded() {
    let mut line = Line::answered(ANYBODY);
    for n in 0..40 {
        line.speech(200).quiet(200).tone(&[700.0 + n as f32], 150);
        line.classifier.words(meaning("how can i help you"));
        line.quiet(50)
            .classifier
            .words(meaning("leave a message after the tone"));
        line.quiet(50);
    }
    assert!(
        line.all().len() <= usize::from(MOST_DECISIONS),
        "{:?}",
        line.all()
    );
    assert!(line.classifier.heard.len() <= REMEMBERED);
    line.quiet(25_000);
    assert!(line.classifier.is_over());
}
