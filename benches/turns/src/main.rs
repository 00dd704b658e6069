//! Measures where turns end: flite's sentences with pauses of known length inside turns and between them, in noise, go
//! through voice activity detection and the turn detector of a session. Counted are ends inside a turn, ends that never
//! came, and the delay from the last sample of speech to the end of its turn. The recogniser is an ideal one whose finals
//! come a quarter of a second after each phrase, and which never says itself that a turn is over.
//!
//! `cargo run --release [SVG]` from this folder prints the tables and writes the plot. Needs flite (Debian). Everything
//! is seeded.

#![allow(dead_code, unused_imports)] // of the sources that are taken whole

mod plot;
mod scores;
mod speech;
#[path = "../../../src/actors/session/turn.rs"]
mod turn;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use scores::{CANDIDATES, Candidate, UNGATED};
use speech::{Noise, Phrase, Scene};
use turn::{Moment, TurnDetector, TurnEvent, TurnSettings, VoiceEventKind};
use vivavoce_audio::vad::{FRAME as FRAME_OF_A_SCORE, RATE, Score, Vad, network};
use vivavoce_seams::{SttEvent, Transcript, Word};

/// Silences that end a turn, in milliseconds, and the one that detectors are compared at.
pub const SILENCES: [u64; 5] = [200, 300, 500, 800, 1_200];
pub const COMPARED_AT: u64 = 500;
/// How much louder than the noise speech is, in decibels.
pub const SNRS: [f64; 3] = [20.0, 10.0, 5.0];
const THRESHOLDS: [f32; 8] = [0.2, 0.35, 0.5, 0.65, 0.75, 0.85, 0.9, 0.95];
/// How long after a phrase its final comes.
const FINAL: Duration = Duration::from_millis(250);
/// What is heard at a time.
const FRAME: usize = 320;

/// What was counted over a scene.
#[derive(Debug, Default, Clone)]
pub struct Outcome {
    /// Pauses inside turns that are shorter than the silence that ends one, and those of them that ended it.
    pub short: usize,
    pub false_ends: usize,
    /// The longer ones: what ends in those ends as the setting wants it.
    pub long: usize,
    pub wanted_ends: usize,
    pub turns: usize,
    /// Turns that had not ended when the next one began.
    pub missed: usize,
    /// Milliseconds from the last sample of speech to the end of the turn.
    pub delays: Vec<u64>,
}

impl Outcome {
    /// Where no turn ended there is none.
    pub fn delay(&self, share: f64) -> Option<u64> {
        let mut delays = self.delays.clone();
        delays.sort_unstable();
        let place = (delays.len().saturating_sub(1)) as f64 * share;
        delays.get(place.round() as usize).copied()
    }

    fn add(&mut self, other: Self) {
        self.short += other.short;
        self.false_ends += other.false_ends;
        self.long += other.long;
        self.wanted_ends += other.wanted_ends;
        self.turns += other.turns;
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
            onset: vad.is_onset(),
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
            let ended = ends.iter().any(|at| *at > pair[0].begin && *at <= limit);
            let short = ((pair[1].begin - pair[0].end).as_millis() as u64) < silence;
            let (pauses, ended_in) = if short {
                (&mut outcome.short, &mut outcome.false_ends)
            } else {
                (&mut outcome.long, &mut outcome.wanted_ends)
            };
            *pauses += 1;
            *ended_in += usize::from(ended);
        }
        let (Some(last), next) = (phrases.last(), scene.phrases.get(turn.end)) else {
            continue;
        };
        let until = next.map_or(scene.lasts, |next| next.begin);
        let own_end = ends.iter().find(|at| **at > last.begin && **at <= until);
        outcome.turns += 1;
        match own_end {
            Some(at) => outcome
                .delays
                .push(at.saturating_sub(last.end).as_millis() as u64),
            None => outcome.missed += 1,
        }
    }
    outcome
}

/// What one detector makes of one sound.
struct Heard {
    candidate: usize,
    suppressed: bool,
    noise: Noise,
    snr: f64,
    sound: Arc<Vec<i16>>,
    scores: Vec<f32>,
}

/// All that was heard, and the scene that it was heard of.
pub struct Measurement {
    scene: Scene,
    heard: Vec<Heard>,
}

impl Measurement {
    fn new() -> Self {
        let scene = Scene::new(20_261_122);
        let mut heard = Vec::new();
        for noise in Noise::ALL {
            for snr in SNRS {
                let noisy = Arc::new(scene.in_noise(noise, snr));
                let quiet = Arc::new(scores::denoised(&noisy));
                for (suppressed, sound) in [(false, noisy), (true, quiet)] {
                    for (candidate, by) in CANDIDATES.iter().enumerate() {
                        heard.push(Heard {
                            candidate,
                            suppressed,
                            noise,
                            snr,
                            scores: scores(by, &sound),
                            sound: Arc::clone(&sound),
                        });
                    }
                }
            }
        }
        Self { scene, heard }
    }

    /// Counts over all noises of a kind, steady or babble.
    pub fn outcome(&self, of: Condition, threshold: f32, silence: u64) -> Outcome {
        let settings = TurnSettings {
            silence: Duration::from_millis(silence),
            threshold,
            final_patience: Duration::from_millis(447),
            ..TurnSettings::default()
        };
        let mut sum = Outcome::default();
        for heard in self.heard.iter().filter(|heard| of.is_of(heard)) {
            let ends = ends(&self.scene, &heard.sound, &heard.scores, settings);
            sum.add(count(&self.scene, &ends, silence));
        }
        sum
    }

    /// The threshold with the fewest false and missed ends together, in steady noise of every level.
    pub fn best_threshold(&self, candidate: usize, suppressed: bool) -> f32 {
        let errors = |threshold| -> usize {
            let of = |snr| Condition {
                candidate,
                suppressed,
                steady: true,
                snr,
            };
            let outcomes = SNRS.map(|snr| self.outcome(of(snr), threshold, COMPARED_AT));
            outcomes.iter().map(|o| o.false_ends + o.missed).sum()
        };
        let best = THRESHOLDS.into_iter().min_by_key(|&it| errors(it));
        best.unwrap_or(OURS)
    }
}

/// The default of `vad.threshold`.
pub const OURS: f32 = 0.65;

/// A detector in a kind of noise.
#[derive(Debug, Clone, Copy)]
pub struct Condition {
    pub candidate: usize,
    pub suppressed: bool,
    pub steady: bool,
    pub snr: f64,
}

impl Condition {
    fn is_of(self, heard: &Heard) -> bool {
        (heard.candidate, heard.suppressed) == (self.candidate, self.suppressed)
            && heard.snr == self.snr
            && matches!(heard.noise, Noise::Babble) != self.steady
    }
}

/// `false ends | missed | delay`, as columns.
fn columns(outcome: &Outcome) -> String {
    let delays = match (outcome.delay(0.5), outcome.delay(0.95)) {
        (Some(median), Some(most)) => format!("{median} / {most} ms"),
        _ => "–".to_owned(),
    };
    format!(
        "{} of {} | {} of {} | {delays}",
        outcome.false_ends, outcome.short, outcome.missed, outcome.turns,
    )
}

fn kind(steady: bool) -> &'static str {
    if steady { "steady" } else { "babble" }
}

fn ours_by_silence(measured: &Measurement) {
    println!("\n### Ours, by silence_ms\n");
    println!(
        "| noise | SNR | silence_ms | false ends | missed ends | delay median / p95 | suppressed: false | missed | delay |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|");
    for steady in [true, false] {
        for snr in SNRS {
            for silence in SILENCES {
                let [off, on] = [false, true].map(|suppressed| {
                    let of = Condition {
                        candidate: 0,
                        suppressed,
                        steady,
                        snr,
                    };
                    columns(&measured.outcome(of, OURS, silence))
                });
                println!(
                    "| {} | {snr:.0} dB | {silence} | {off} | {on} |",
                    kind(steady)
                );
            }
        }
    }
}

fn ours_by_threshold(measured: &Measurement) {
    println!("\n### Ours, by threshold, silence_ms {COMPARED_AT}\n");
    println!(
        "| threshold | 20 dB: false / missed / median | 10 dB | 5 dB | babble, 20 dB | babble, 10 dB |"
    );
    println!("|---:|---:|---:|---:|---:|---:|");
    for threshold in THRESHOLDS {
        let cells = [
            (true, 20.0),
            (true, 10.0),
            (true, 5.0),
            (false, 20.0),
            (false, 10.0),
        ];
        let cells = cells.map(|(steady, snr)| {
            let of = Condition {
                candidate: 0,
                suppressed: false,
                steady,
                snr,
            };
            short(&measured.outcome(of, threshold, COMPARED_AT))
        });
        println!("| {threshold} | {} |", cells.join(" | "));
    }
}

fn short(outcome: &Outcome) -> String {
    let delay = outcome.delay(0.5);
    let delay = delay.map_or_else(|| "–".to_owned(), |median| format!("{median} ms"));
    format!("{} / {} / {delay}", outcome.false_ends, outcome.missed)
}

fn candidates(measured: &Measurement) {
    println!("\n### Detectors, each at its best threshold, silence_ms {COMPARED_AT}\n");
    println!(
        "| detector | suppression | threshold | 20 dB: false / missed / median | 10 dB | 5 dB | babble, 20 dB | babble, 10 dB |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|");
    for (candidate, named) in CANDIDATES.iter().enumerate() {
        for suppressed in [false, true] {
            let threshold = measured.best_threshold(candidate, suppressed);
            let cells = [
                (true, 20.0),
                (true, 10.0),
                (true, 5.0),
                (false, 20.0),
                (false, 10.0),
            ];
            let cells = cells.map(|(steady, snr)| {
                let of = Condition {
                    candidate,
                    suppressed,
                    steady,
                    snr,
                };
                short(&measured.outcome(of, threshold, COMPARED_AT))
            });
            let on = if suppressed { "on" } else { "off" };
            println!(
                "| {} | {on} | {threshold} | {} |",
                named.name,
                cells.join(" | ")
            );
        }
    }
}

/// Of the frames that lie in a phrase, and of those that do not, those whose score says speech.
fn found(scene: &Scene, scores: &[f32]) -> (f64, f64) {
    let frame = RATE.duration_of(FRAME_OF_A_SCORE);
    let (mut within, mut without) = ((0, 0), (0, 0));
    for (number, score) in scores.iter().enumerate() {
        let (begin, end) = (frame * number as u32, frame * (number as u32 + 1));
        let in_it = |phrase: &Phrase| phrase.begin <= begin && end <= phrase.end;
        let touches = |phrase: &Phrase| phrase.begin < end && begin < phrase.end;
        let of = if scene.phrases.iter().any(in_it) {
            &mut within
        } else if scene.phrases.iter().any(touches) {
            continue;
        } else {
            &mut without
        };
        of.0 += 1;
        of.1 += usize::from(*score >= OURS);
    }
    let share = |(all, some): (usize, usize)| some as f64 / all as f64 * 100.0;
    (share(within), share(without))
}

fn what_the_gate_spares(measured: &Measurement) {
    println!("\n### What the gate spares, threshold {OURS}\n");
    println!(
        "| noise | SNR | frames that the network is asked about | recall, every frame asked | with the gate | false alarms, every frame asked | with the gate |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for heard in measured
        .heard
        .iter()
        .filter(|h| h.candidate == 0 && !h.suppressed)
    {
        let (mut score, asked) = scores::gated();
        let frames = heard.sound.chunks_exact(FRAME_OF_A_SCORE);
        let all = frames.len();
        frames.for_each(|frame| {
            score(frame);
        });
        let asked = asked.load(std::sync::atomic::Ordering::Relaxed);
        let other = measured.heard.iter().find(|h| {
            (h.candidate, h.suppressed, h.snr) == (UNGATED, false, heard.snr)
                && Arc::ptr_eq(&h.sound, &heard.sound)
        });
        let (before, false_before) = found(&measured.scene, &other.unwrap().scores);
        let (after, false_after) = found(&measured.scene, &heard.scores);
        println!(
            "| {:?} | {:.0} dB | {:.0} % | {before:.2} % | {after:.2} % | {false_before:.2} % | {false_after:.2} % |",
            heard.noise,
            heard.snr,
            asked as f64 / all as f64 * 100.0,
        );
    }
}

/// Microseconds for 20 ms of sound, the best of three runs.
fn cost(score: impl Fn() -> Score, sound: &[i16]) -> f64 {
    let runs = (0..3).map(|_| {
        let mut score = score();
        let began = Instant::now();
        for frame in sound.chunks_exact(FRAME_OF_A_SCORE) {
            std::hint::black_box(score(frame));
        }
        began.elapsed().as_secs_f64() * 1e6
    });
    runs.fold(f64::MAX, f64::min) / (sound.len() as f64 / FRAME as f64)
}

fn what_detection_costs(measured: &Measurement) {
    println!("\n### What detection costs, µs per 20 ms\n");
    println!(
        "| noise | SNR | earshot by itself | its network, every frame asked | with the gate |"
    );
    println!("|---|---:|---:|---:|---:|");
    for heard in measured
        .heard
        .iter()
        .filter(|h| h.candidate == 0 && !h.suppressed)
    {
        let costs = [
            cost(scores::earshot, &heard.sound),
            cost(network, &heard.sound),
            cost(|| scores::gated().0, &heard.sound),
        ];
        println!(
            "| {:?} | {:.0} dB | {:.2} | {:.2} | {:.2} |",
            heard.noise, heard.snr, costs[0], costs[1], costs[2]
        );
    }
}

fn main() {
    let measured = Measurement::new();
    let scene = &measured.scene;
    println!(
        "{} turns, {} phrases, {:.0} s of sound.",
        scene.turns.len(),
        scene.phrases.len(),
        scene.lasts.as_secs_f64()
    );
    ours_by_silence(&measured);
    ours_by_threshold(&measured);
    candidates(&measured);
    what_the_gate_spares(&measured);
    what_detection_costs(&measured);
    if let Some(path) = std::env::args().nth(1) {
        std::fs::write(path, plot::svg(&measured)).unwrap();
    }
}
