//! Places of words in audio that is made up, and in real speech.

use std::fs;
use std::process::Command;

use proptest::prelude::*;

use super::*;

fn texts<'a>(text: &'a str, placed: &[PlacedWord]) -> Vec<&'a str> {
    placed.iter().map(|word| &text[word.text.clone()]).collect()
}

#[test]
fn marks_belong_to_the_word_that_they_touch() {
    let text = "He said: \"Yes – (perhaps) 3.5 %!\" 今天。";
    let sound = Sound {
        loudness: &[],
        duration: Duration::from_secs(3),
        finished: true,
    };
    let words = texts(text, &place(text, &[], sound)).join("|");
    assert_eq!(words, "He|said:|\"Yes|– (perhaps)|3.5|%!\" 今|天。");
}

#[test]
fn clauses_end_in_pauses() {
    let text = "a long beginning, and its end";
    // Spoken so that by letters alone the pause would lie elsewhere.
    let mut loudness = vec![1_000; 180];
    loudness.extend([0; 30]);
    loudness.extend([1_000; 90]);
    let sound = Sound {
        loudness: &loudness,
        duration: FRAME * 300,
        finished: true,
    };
    let placed = place(text, &[], sound);
    assert_eq!(texts(text, &placed)[2..4], ["beginning,", "and"]);
    assert_eq!((placed[2].end, placed[3].start), (FRAME * 180, FRAME * 210));
}

proptest! {
    #[test]
    fn any_text_has_its_words_in_order_whatever_is_told(
        text in "\\PC{0,80}",
        told in prop::collection::vec((0..90usize, 0..5_000u64), 0..9),
        loudness in prop::collection::vec(0..3_000u16, 0..200),
        ms in 0..3_000u64,
        finished: bool,
    ) {
        let told: Vec<_> = told.into_iter().map(|(at, ms)| (at, Duration::from_millis(ms))).collect();
        let duration = Duration::from_millis(ms);
        let placed = place(&text, &told, Sound { loudness: &loudness, duration, finished });
        for word in &placed {
            prop_assert!(text.get(word.text.clone()).is_some());
            prop_assert!(word.start <= word.end);
        }
        for pair in placed.windows(2) {
            prop_assert!(pair[0].text.end <= pair[1].text.start);
        }
    }
}

/// One sentence as `benches/heard/espeak.py` writes it.
struct Spoken {
    text: String,
    rate: f64,
    samples: Vec<i16>,
    /// Bytes of the text, and the seconds where the words there begin.
    words: Vec<(usize, f64)>,
}

impl Spoken {
    fn read(folder: &str, number: usize) -> Option<Self> {
        let sound = fs::read(format!("{folder}/{number}.pcm")).ok()?;
        let samples = sound
            .chunks_exact(2)
            .map(|c| i16::from_le_bytes([c[0], c[1]]));
        let written = fs::read_to_string(format!("{folder}/{number}.txt")).unwrap();
        let (head, places) = written.split_once('\n').unwrap();
        let (rate, text) = head.split_once(' ').unwrap();
        let rate: f64 = rate.parse().unwrap();
        let place = |line: &str| {
            let (at, sample) = line.split_once(' ').unwrap();
            (at.parse().unwrap(), sample.parse::<f64>().unwrap() / rate)
        };
        Some(Self {
            text: text.to_owned(),
            rate,
            samples: samples.collect(),
            words: places.lines().map(place).collect(),
        })
    }

    fn seconds(&self) -> f64 {
        self.samples.len() as f64 / self.rate
    }

    fn place(&self) -> Vec<PlacedWord> {
        let frame = (self.rate / 100.0) as usize;
        let mean = |frame: &[i16]| {
            let sum: u64 = frame
                .iter()
                .map(|sample| u64::from(sample.unsigned_abs()))
                .sum();
            (sum / frame.len() as u64) as u16
        };
        let loudness: Vec<_> = self.samples.chunks(frame).map(mean).collect();
        let sound = Sound {
            loudness: &loudness,
            duration: Duration::from_secs_f64(self.seconds()),
            finished: true,
        };
        place(&self.text, &[], sound)
    }

    /// Where each of these words ends: with the last audio before the next begins.
    fn ends(&self, placed: &[PlacedWord]) -> Vec<f64> {
        let start = |word: &PlacedWord| {
            let told = self.words.iter().find(|(at, _)| word.text.contains(at));
            told.expect("every word is told").1
        };
        let next = placed.iter().skip(1).map(start).chain([self.seconds()]);
        let end = |next: f64| {
            let next = ((next * self.rate) as usize).min(self.samples.len());
            let last = self.samples[..next]
                .iter()
                .rposition(|sample| sample.unsigned_abs() > 150);
            last.unwrap_or(0) as f64 / self.rate
        };
        next.map(end).collect()
    }
}

/// How often the number of words heard whole is off by none, one, two and more, at 1,000 moments of each sentence that a
/// script has a voice say.
fn words_off(script: &str) -> [u32; 4] {
    let folder = tempfile::tempdir().unwrap();
    let spoken = Command::new("python3")
        .arg(format!(
            "{}/../../benches/heard/{script}",
            env!("CARGO_MANIFEST_DIR")
        ))
        .arg(folder.path())
        .output()
        .unwrap();
    let failure = String::from_utf8_lossy(&spoken.stderr);
    assert!(spoken.status.success(), "{failure}");
    let folder = folder.path().to_str().unwrap();
    let mut errors = [0_u32; 4];
    let mut seed = 20_261_122_u64;
    for spoken in (0..).map_while(|number| Spoken::read(folder, number)) {
        let placed = spoken.place();
        let truth = spoken.ends(&placed);
        for _ in 0..1_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let now = (seed >> 11) as f64 / (1_u64 << 53) as f64 * spoken.seconds();
            let heard = placed
                .iter()
                .rposition(|word| word.end.as_secs_f64() <= now);
            let true_count = truth.iter().filter(|end| **end <= now).count();
            let error = heard.map_or(0, |last| last + 1).abs_diff(true_count);
            errors[error.min(3)] += 1;
        }
    }
    errors
}

#[test]
fn places_of_real_speech_are_estimated_within_a_word() {
    // Of a hundred moments so many; flite's voices differ more in how long their sounds last.
    for (script, sentences, most) in [("espeak.py", 13, 97), ("flite.py", 7, 95)] {
        let errors = words_off(script);
        println!(
            "{script}: words off: none {}, one {}, two {}, more {}",
            errors[0], errors[1], errors[2], errors[3]
        );
        let all: u32 = errors.iter().sum();
        assert_eq!(all, sentences * 1_000, "{script}");
        assert!(
            (errors[0] + errors[1]) * 100 >= all * most,
            "{script}: {errors:?}"
        );
    }
}
