//! Who answers, over a folder of sounds that `generate.py` beside this file has made: `answers FOLDER [--words FILE] [--all]`. Each is
//! heard as a call would hear it, in packets of 20 ms; a table tells how many were right at first and in the end, and after how
//! much sound. `--words` names a file of `words.py`, what a recogniser has understood by when; `--all` lists what was wrong.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on ends")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use vivavoce_audio::{Layout, Pcm, Resampler, SampleRate, linear16};
use vivavoce_core::call::{AnswerFinding, Classification};
use vivavoce_telephony::classify::{Classifier, RATE, Wanted, networks, phrases};

/// What came of one sound.
struct Outcome {
    truth: String,
    kind: String,
    source: String,
    codec: String,
    noise: String,
    file: String,
    text: String,
    findings: Vec<Classification>,
    /// When the beep was over, and when that was told.
    beep: Option<(Option<u64>, Option<u64>)>,
    took: Duration,
    long: Duration,
}

impl Outcome {
    fn is_right(&self, found: Option<&Classification>) -> bool {
        found.is_some_and(|found| found.result.as_str() == self.truth)
    }

    fn first(&self) -> bool {
        self.is_right(self.findings.first())
    }

    fn last(&self) -> bool {
        self.is_right(self.findings.last())
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Whoever runs all targets does not name a folder.
    let Some(folder) = arguments
        .first()
        .map(PathBuf::from)
        .filter(|one| one.is_dir())
    else {
        println!("usage: answers FOLDER [--words FILE] [--all]");
        return;
    };
    let after = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)
    };
    let words: Option<Value> = after("--words").map(|file| read(Path::new(file)));
    let manifest = read(&folder.join("manifest.json"));
    let outcomes: Vec<Outcome> = manifest
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| listen(&folder, entry, words.as_ref()))
        .collect();
    table(&outcomes, "kind", |one| &one.kind);
    table(&outcomes, "truth", |one| &one.truth);
    table(&outcomes, "voice", |one| {
        one.source.split(' ').next().unwrap()
    });
    table(&outcomes, "codec", |one| &one.codec);
    table(&outcomes, "noise", |one| &one.noise);
    beeps(&outcomes);
    let told = outcomes.iter().filter_map(|one| one.findings.first());
    let (soon, all) = told.fold((0, 0), |(soon, all), found| {
        (soon + u32::from(found.sound_ms <= 2_500), all + 1)
    });
    println!("\nDecided within 2,500 ms of sound: {soon} of {all}");
    let took: Duration = outcomes.iter().map(|one| one.took).sum();
    let long: Duration = outcomes.iter().map(|one| one.long).sum();
    println!(
        "\nCPU: {:.2} ms for each second of sound",
        took.as_secs_f64() * 1_000.0 / long.as_secs_f64()
    );
    if arguments.iter().any(|argument| argument == "--all") {
        wrong(&outcomes);
    }
}

fn read(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// A file as Python's `wave` writes it.
fn sound_of(file: &Path) -> Pcm {
    let bytes = std::fs::read(file).unwrap();
    let (header, samples) = bytes.split_at(44);
    let [.., a, b, c, d] = header[..28] else {
        unreachable!("a header has 44 bytes");
    };
    let rate = SampleRate::new(u32::from_le_bytes([a, b, c, d])).unwrap();
    Pcm::new(Layout::mono(rate), linear16::samples(samples))
}

fn listen(folder: &Path, entry: &Value, words: Option<&Value>) -> Outcome {
    let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    let file = text("file");
    let sound = sound_of(&folder.join(&file));
    let mut resampler = Resampler::new(sound.layout(), RATE);
    let mut classifier = Classifier::new(Wanted {
        network: networks::of_number(&text("number")),
        beep_within: Some(Duration::from_mins(1)),
    });
    classifier.answered();
    let heard = words.map(|words| words[&file].as_array().cloned().unwrap_or_default());
    let mut heard = heard.unwrap_or_default().into_iter().peekable();
    let mut findings = Vec::new();
    let mut samples = Vec::new();
    let began = Instant::now();
    for packet in sound
        .samples()
        .chunks(sound.rate().frames_in(Duration::from_millis(20)))
    {
        samples.clear();
        resampler.push(packet, &mut samples);
        classifier.push(&samples, &mut findings);
        let now = classifier.position() / 16;
        while let Some(next) = heard.next_if(|next| next[0].as_u64().unwrap() <= now) {
            if let Some(meaning) = phrases::meaning(next[1].as_str().unwrap()) {
                classifier.words(meaning);
            }
        }
    }
    let took = began.elapsed();
    let told = findings.iter().find_map(|finding| match finding {
        AnswerFinding::Beep {
            heard: true,
            after_ms,
        } => Some(u64::from(*after_ms)),
        _ => None,
    });
    let beep = entry["beep_ms"].as_u64();
    let classified = findings.iter().filter_map(|finding| match finding {
        AnswerFinding::Classified(found) => Some(*found),
        AnswerFinding::Beep { .. } => None,
    });
    Outcome {
        truth: text("truth"),
        kind: text("kind"),
        source: text("source"),
        codec: text("codec"),
        noise: text("noise"),
        text: text("text"),
        file,
        findings: classified.collect(),
        beep: (beep.is_some() || told.is_some()).then_some((beep, told)),
        took,
        long: sound.duration(),
    }
}

fn table<'a>(outcomes: &'a [Outcome], title: &str, of: impl Fn(&'a Outcome) -> &'a str) {
    let mut groups: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        groups.entry(of(outcome)).or_default().push(outcome);
        groups.entry("~ all").or_default().push(outcome);
    }
    println!(
        "\n| {title} | sounds | right at first | right in the end | wrong in the end as | ms of sound: middle, 90 %, most |"
    );
    println!("|---|---:|---:|---:|---|---|");
    for (name, group) in groups {
        let count = |right: fn(&Outcome) -> bool| group.iter().filter(|one| right(one)).count();
        let mut wrong: BTreeMap<&str, usize> = BTreeMap::new();
        for outcome in group.iter().filter(|one| !one.last()) {
            let result = outcome
                .findings
                .last()
                .map_or("nothing", |found| found.result.as_str());
            *wrong.entry(result).or_default() += 1;
        }
        let wrong: Vec<String> = wrong
            .iter()
            .map(|(result, n)| format!("{result} {n}"))
            .collect();
        let mut delays: Vec<u32> = group
            .iter()
            .filter_map(|one| one.findings.first())
            .map(|found| found.sound_ms)
            .collect();
        delays.sort_unstable();
        let at = |percent: usize| {
            delays
                .get(delays.len().saturating_sub(1) * percent / 100)
                .copied()
                .unwrap_or_default()
        };
        println!(
            "| {} | {} | {} | {} | {} | {}, {}, {} |",
            name.trim_start_matches("~ "),
            group.len(),
            count(Outcome::first),
            count(Outcome::last),
            wrong.join(", "),
            at(50),
            at(90),
            at(100),
        );
    }
}

fn beeps(outcomes: &[Outcome]) {
    let (mut right, mut missed, mut early, mut false_ones) = (0, 0, 0, 0);
    let mut delays = Vec::new();
    for beep in outcomes.iter().filter_map(|one| one.beep) {
        match beep {
            (Some(due), Some(told)) if told + 60 >= due => {
                right += 1;
                delays.push(told.saturating_sub(due));
            }
            (Some(_), Some(_)) => early += 1,
            (Some(_), None) => missed += 1,
            (None, _) => false_ones += 1,
        }
    }
    delays.sort_unstable();
    let middle = delays.get(delays.len() / 2).copied().unwrap_or_default();
    let most = delays.last().copied().unwrap_or_default();
    println!(
        "\nBeeps: {right} told {middle} ms (middle) to {most} ms (most) after their end, {early} before it, {missed} missed, \
         {false_ones} told where there was none"
    );
}

fn wrong(outcomes: &[Outcome]) {
    println!();
    for one in outcomes.iter().filter(|one| !one.first() || !one.last()) {
        let told: Vec<String> = one
            .findings
            .iter()
            .map(|found| {
                format!(
                    "{} ({}, {} ms)",
                    found.result.as_str(),
                    found.reason.as_str(),
                    found.sound_ms
                )
            })
            .collect();
        println!(
            "{} {} [{}; {}; {}; {}] {}: {}",
            one.file,
            one.truth,
            one.kind,
            one.source,
            one.codec,
            one.noise,
            one.text,
            told.join(" → ")
        );
    }
    for one in outcomes {
        if let Some((due, told)) = one.beep
            && (due.is_none() || told.is_none())
        {
            println!(
                "{} beep due {due:?}, told {told:?} [{}; {}]",
                one.file, one.source, one.noise
            );
        }
    }
}
