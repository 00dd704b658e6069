//! Speech that reaches a session over a bad network: as many words are recognised as over a good one, in the recording of
//! what the session received.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use vivavoce::audio::{Layout, SampleRate};

use super::{file_of, understood};
use crate::harness::*;
use crate::rooms::client::Kind;
use crate::rooms::network::{Network, Weather};
use crate::rooms::{KEY, SECRET, join, server, server_elsewhere, server_with};
use crate::session::client::Session;
use crate::session::recorded::stored;

const BAD: Weather = Weather {
    loss: 0.05,
    jitter: Duration::from_millis(30),
    bits_per_second: None,
};
/// Silence behind a sentence, long enough that it is heard to its end.
const PAUSE: usize = 24_000;

/// What became of the words.
struct Heard {
    errors: usize,
    words: usize,
    datagrams: u64,
    lost: u64,
    text: String,
}

impl Heard {
    fn rate(&self) -> f64 {
        self.errors as f64 / self.words as f64
    }
}

/// The sentences as files.
async fn voiced(folder: &Path) -> Vec<PathBuf> {
    let server = server();
    let mut files = Vec::new();
    for (number, text) in SENTENCES.iter().enumerate() {
        let sound = json!({"audio_format": "linear16", "sample_rate": 48000});
        let sound = speak(&server, text, sound).await.bytes().await.unwrap();
        let (samples, _) = sound.as_chunks::<2>();
        let samples = samples.iter().map(|two| i16::from_le_bytes(*two));
        let samples: Vec<i16> = samples.chain(std::iter::repeat_n(0, PAUSE)).collect();
        let file = folder.join(format!("{number}.wav"));
        std::fs::write(&file, file_of(Layout::mono(SampleRate::HZ_48000), &samples)).unwrap();
        files.push(file);
    }
    files
}

/// Somebody says so many sentences to a session that is behind this network.
async fn say(files: &[PathBuf], sentences: usize, weather: Weather, seed: u64) -> Heard {
    let network = Network::open(weather, seed).await;
    let mut settings = vec![("RTC_API_KEY", KEY), ("RTC_API_SECRET", SECRET)];
    settings.extend(network.settings());
    let deployment = server_with(&settings);
    let server = server_elsewhere(&deployment.url, &[("NULL_ENABLED", "true")]);
    let stream_id = format!("words-{seed}");
    let config = json!({
        "type": "config", "stream_id": stream_id,
        "stt_config": {"provider": "null"}, "tts_config": {"provider": "null", "model": ""},
        "rtc": {"room_name": "kitchen", "enable_recording": true},
    });
    let session = Session::open(&server, config).await;
    network.spare_newcomers();
    let mut ann = join(&deployment, Kind::Python, "kitchen", "ann").await;
    let mut command = json!({"do": "say"});
    for file in files.iter().cycle().take(sentences) {
        command["file"] = json!(file);
        command["sid"] = ann.command(command.clone()).await["sid"].clone();
    }
    session.close().await;
    ann.leave().await;

    let folder = tempfile::tempdir().unwrap();
    let [whole, side] = ["whole.ogg", "heard.wav"].map(|name| folder.path().join(name));
    std::fs::write(&whole, stored(&server, &stream_id).await).unwrap();
    let [from, to] = [&whole, &side].map(|file| file.to_str().unwrap());
    run(
        "ffmpeg",
        ["-v", "error", "-i", from, "-af", "pan=mono|c0=c0", to],
    );
    let text = understood(&side);
    let said = SENTENCES.iter().cycle().take(sentences);
    let said: Vec<String> = said.flat_map(|text| words(text)).collect();
    let (datagrams, lost) = network.count();
    Heard {
        errors: word_errors(&said, &words(&text)),
        words: said.len(),
        datagrams,
        lost,
        text,
    }
}

/// 59 words and a seed; with `VIVAVOCE_LONG` 528 words and three.
#[tokio::test(flavor = "multi_thread")]
async fn words_are_understood_over_a_bad_network() {
    let long = is_long();
    // In a short text a single word is two points.
    let (sentences, seeds, points) = if long { (60, 3, 5.0) } else { (7, 1, 10.0) };
    let folder = tempfile::tempdir().unwrap();
    let files = voiced(folder.path()).await;
    let runs = (0..=seeds).map(|seed| {
        let files = files.clone();
        let weather = if seed == 0 { Weather::FAIR } else { BAD };
        // Each on a thread of its own: what reads the recordings blocks.
        tokio::spawn(async move { say(&files, sentences, weather, seed).await })
    });
    let mut heard = Vec::new();
    for run in runs.collect::<Vec<_>>() {
        heard.push(run.await.unwrap());
    }
    println!("| network | words | wrong | datagrams | lost |\n|---|---|---|---|---|");
    for (seed, heard) in heard.iter().enumerate() {
        let network = if seed == 0 {
            "good".to_owned()
        } else {
            format!("5 %, 30 ms, seed {seed}")
        };
        let (wrong, lost) = (heard.errors, heard.lost);
        let (rate, share) = (
            100.0 * heard.rate(),
            100.0 * lost as f64 / heard.datagrams as f64,
        );
        let (words, datagrams) = (heard.words, heard.datagrams);
        println!(
            "| {network} | {words} | {wrong} ({rate:.1} %) | {datagrams} | {lost} ({share:.1} %) |"
        );
    }
    let good = &heard[0];
    assert_eq!(good.lost, 0);
    assert!(good.rate() <= 0.2, "understood {:?}", good.text);
    for bad in &heard[1..] {
        // The sound did go through the bad network: a second of speech is 50 datagrams.
        assert!(bad.datagrams >= 50 * sentences as u64, "{}", bad.datagrams);
        assert!(
            bad.lost * 100 >= 2 * bad.datagrams,
            "{} of {}",
            bad.lost,
            bad.datagrams
        );
        let allowed = good.rate() + points / 100.0;
        assert!(bad.rate() <= allowed, "understood {:?}", bad.text);
    }
}
