//! Measures where turns end: flite's sentences with pauses of known length inside turns and between them, in noise, go
//! through voice activity detection and the turn detector of a session. Counted are ends inside a turn, ends that never
//! came, and the delay from the last sample of speech to the end of its turn. The recogniser is an ideal one whose finals
//! come a quarter of a second after each phrase.
//!
//! `cargo run --release [SVG]` from this folder prints the tables and writes the plot. Needs flite (Debian). Everything
//! is seeded.

#![allow(dead_code, unused_imports)] // of the sources that are taken whole

mod audio;
mod plot;
mod providers;
mod scores;
mod speech;
#[path = "../../../src/actors/session/turn.rs"]
mod turn;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use turn::{Moment, TurnDetector, TurnEvent, TurnSettings, VoiceEventKind};
use audio::vad::Vad;
use providers::{SttEvent, Transcript, Word};
use scores::{CANDIDATES, Candidate};
use speech::{Noise, Scene};

/// Silences that end a turn, in milliseconds.
pub const SILENCES: [u64; 5] = [200, 300, 500, 800, 1_200];
/// How long after a phrase its final comes.
const FINAL: Duration = Duration::from_millis(250);
/// What is heard at a time.
const FRAME: usize = 320;

/// What was counted over a scene.
#[derive(Debug, Default, Clone)]
pub struct Outcome {
    /// Ends inside turns, and those of them in pauses shorter than the silence that ends a turn.
    pub early: usize,
    pub unjustified: usize,
    /// Turns that had not ended when the next one began.
    pub missed: usize,
    /// Milliseconds from the last sample of speech to the end of the turn.
    pub delays: Vec<u64>,
}

impl Outcome {
    pub fn delay(&self, share: f64) -> u64 {
        let mut delays = self.delays.clone();
        delays.sort_unstable();
        let place = (delays.len().saturating_sub(1)) as f64 * share;
        delays.get(place.round() as usize).copied().unwrap_or(0)
    }

    fn add(&mut self, other: Self) {
        self.early += other.early;
        self.unjustified += other.unjustified;
        self.missed += other.missed;
        self.delays.extend(other.delays);
    }
}

/// A series of scores, one for each frame that the detector asks about.
type Scores = Arc<Mutex<Vec<f32>>>;

/// Every score of a candidate for some sound.
fn scores(candidate: &Candidate, sound: &[i16]) -> Vec<f32> {
    let noted = Scores::default();
    let note = Arc::clone(&noted);
    let mut score = (candidate.score)();
    let noting = move |frame: &[i16]| {
        let score = score(frame);
        note.lock().unwrap().push(score);
        score
    };
    let settings = TurnSettings::default().vad();
    Vad::with_score(settings, Box::new(noting)).push(sound);
    let noted = noted.lock().unwrap();
    noted.clone()
}

/// Where the turns of a scene end by these scores.
fn ends(scene: &Scene, sound: &[i16], scores: &[f32], settings: TurnSettings) -> Vec<Duration> {
    let mut left = scores.to_vec().into_iter();
    let told = move |_: &[i16]| left.next().unwrap_or(0.0);
    let mut vad = Vad::with_score(settings.vad(), Box::new(told));
    let mut turns = TurnDetector::new(settings);
    let begin = Instant::now();
    let mut phrases = scene.phrases.iter().peekable();
    let mut partial_until = Duration::ZERO;
    let mut ends = Vec::new();
    for (number, frame) in sound.chunks(FRAME).enumerate() {
        let heard = Duration::from_millis(20) * (number as u32 + 1);
        let moment = Moment {
            now: begin + heard,
            heard,
        };
        let mut told = Vec::new();
        for event in vad.push(frame) {
            told.extend(turns.vad(event, moment));
        }
        if let Some(phrase) = phrases.peek() {
            if heard > phrase.begin + FINAL && partial_until < phrase.begin {
                partial_until = phrase.end;
                told.extend(turns.stt(SttEvent::Partial(words("so", phrase.end)), moment));
            }
            if heard > phrase.end + FINAL {
                told.extend(turns.stt(SttEvent::Final(words("so far", phrase.end)), moment));
                phrases.next();
            }
        }
        if turns.next_deadline().is_some_and(|due| due <= moment.now) {
            told.extend(turns.tick(moment));
        }
        let ended = told.iter().any(|event| match event {
            TurnEvent::Voice(voice) => voice.event == VoiceEventKind::TurnEnd,
            _ => false,
        });
        if ended {
            ends.push(heard);
        }
    }
    ends
}

fn words(text: &str, end: Duration) -> Transcript {
    Transcript {
        text: text.to_owned(),
        words: vec![Word {
            word: text.to_owned(),
            start: 0.0,
            end: end.as_secs_f64(),
            confidence: None,
            speaker: None,
        }],
        ..Transcript::default()
    }
}

/// Counts the ends of one run.
fn count(scene: &Scene, ends: &[Duration], silence: u64) -> Outcome {
    let mut outcome = Outcome::default();
    for turn in &scene.turns {
        let phrases = &scene.phrases[turn.clone()];
        for pair in phrases.windows(2) {
            // An end that is found when speech has begun again is still that of the pause.
            let limit = pair[1].begin + Duration::from_millis(100);
            let early = ends.iter().filter(|at| **at > pair[0].begin && **at <= limit);
            let early = early.count();
            outcome.early += early;
            if ((pair[1].begin - pair[0].end).as_millis() as u64) < silence {
                outcome.unjustified += early;
            }
        }
        let (Some(last), next) = (phrases.last(), scene.phrases.get(turn.end)) else {
            continue;
        };
        let until = next.map_or(scene.lasts, |next| next.begin);
        let own_end = ends.iter().find(|at| **at > last.begin && **at <= until);
        match own_end {
            Some(at) => outcome
                .delays
                .push(at.saturating_sub(last.end).as_millis() as u64),
            None => outcome.missed += 1,
        }
    }
    outcome
}

/// Runs one candidate over one kind of sound at every silence.
fn row(scene: &Scene, sound: &[i16], candidate: &Candidate) -> Vec<Outcome> {
    let scores = scores(candidate, sound);
    let outcome = |silence| {
        let settings = TurnSettings {
            silence: Duration::from_millis(silence),
            threshold: candidate.threshold,
            final_patience: Duration::from_millis(447),
            ..TurnSettings::default()
        };
        count(scene, &ends(scene, sound, &scores, settings), silence)
    };
    SILENCES.map(outcome).to_vec()
}

fn main() {
    let scene = Scene::new(20_261_122);
    let inside = scene.phrases.len() - scene.turns.len();
    println!(
        "{} turns of {} phrases, {:.0} s of sound; {inside} pauses inside turns, 200 to 2000 ms.\n",
        scene.turns.len(),
        scene.phrases.len(),
        scene.lasts.as_secs_f64()
    );
    println!("| detector | noise suppression | SNR | silence_ms | ends inside turns | of them in pauses shorter than silence_ms | missed ends (of {}) | delay median / p95 |", 3 * scene.turns.len());
    println!("|---|---|---|---:|---:|---:|---:|---:|");
    let mut lines = Vec::new();
    for candidate in &CANDIDATES {
        for suppressed in [false, true] {
            for snr in [20.0, 10.0, 5.0] {
                let mut sums = vec![Outcome::default(); SILENCES.len()];
                for noise in Noise::ALL {
                    let mut sound = scene.in_noise(noise, snr);
                    if suppressed {
                        sound = scores::denoised(&sound);
                    }
                    for (sum, outcome) in sums.iter_mut().zip(row(&scene, &sound, candidate)) {
                        sum.add(outcome);
                    }
                }
                for (silence, sum) in SILENCES.iter().zip(&sums) {
                    let on = if suppressed { "on" } else { "off" };
                    println!(
                        "| {} | {on} | {snr:.0} dB | {silence} | {} | {} | {} | {} / {} ms |",
                        candidate.name,
                        sum.early,
                        sum.unjustified,
                        sum.missed,
                        sum.delay(0.5),
                        sum.delay(0.95)
                    );
                }
                lines.push(plot::Line {
                    candidate: candidate.name,
                    suppressed,
                    snr,
                    outcomes: sums,
                });
            }
        }
    }
    println!("\nOf {} pauses inside turns, over three kinds of noise.", 3 * inside);
    if let Some(path) = std::env::args().nth(1) {
        std::fs::write(path, plot::svg(&lines, 3 * inside, 3 * scene.turns.len())).unwrap();
    }
}
