//! One vendor's client in one direction for so and so many seconds of sound, to be run under callgrind by `run.py` beside
//! this file: `vendors SCENARIO SECONDS`. Settings come from the environment; the vendors are emulators in another
//! process, which is not counted.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "../vowel/mod.rs"]
mod vowel;

use std::hint::black_box;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::interval;
use vivavoce::audio::convert::Converter;
use vivavoce::audio::{AudioFormat, Encoding, Layout, SampleRate, linear16};
use vivavoce::config::Config;
use vivavoce::providers::{ProviderTable, SttRequest, TtsEvent, TtsRequest};
use vivavoce::server;

const FRAME: Duration = Duration::from_millis(20);
/// What a session hears and says.
const FORMAT: AudioFormat = AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000);
const PATIENCE: Duration = Duration::from_mins(1);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let scenario = arguments.get(1).map_or("", String::as_str);
    let seconds: usize = arguments.get(2).map_or(0, |count| count.parse().unwrap());
    // Bare runs of `cargo bench` have nothing to measure.
    let Some((vendor, direction)) = scenario.split_once('-') else {
        return;
    };
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .unwrap();
    let settings = Config::load(&[], None).unwrap().settings;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let table = server::providers(&settings).unwrap();
        match direction {
            "ticks" => ticks(seconds).await,
            "up" => up(&table, vendor, seconds).await,
            "down" => down(&table, vendor, seconds).await,
            other => panic!("no direction {other:?}"),
        }
    });
}

/// The clock alone by which frames are sent.
async fn ticks(seconds: usize) {
    let mut ticks = interval(FRAME);
    for _ in 0..seconds * 50 {
        black_box(ticks.tick().await);
    }
}

/// Sound in its time, in frames of 20 ms, as a session sends it. It holds no words: nothing comes back but that there is
/// a voice.
async fn up(table: &ProviderTable, vendor: &str, seconds: usize) {
    let provider = table.speech_to_text(vendor).unwrap();
    let request = SttRequest {
        party: vivavoce::quotas::Party::Operator,
        language: "en-US".to_owned(),
        model: String::new(),
        punctuation: true,
        format: provider.accepts().nearest(FORMAT),
        keyterms: Vec::new(),
        languages: Vec::new(),
        diarize: false,
        translate: false,
        credential: None,
    };
    assert_eq!(request.format, FORMAT);
    let mut stream = provider.open(request).await.unwrap();
    let layout = Layout::mono(SampleRate::HZ_16000);
    let frames = vowel::frames(layout, layout.samples_in(FRAME), 50);
    let frames: Vec<_> = frames
        .iter()
        .map(|frame| linear16::encode(frame.samples()))
        .collect();
    let mut ticks = interval(FRAME);
    for frame in frames.iter().cycle().take(seconds * 50) {
        ticks.tick().await;
        stream.sink.send(frame.clone()).await.unwrap();
    }
    stream.sink.close();
    while let Some(event) = stream.events.next().await {
        black_box(event.unwrap());
    }
}

/// A text whose sound lasts so long, as fast as it comes, made the sound that a session says.
async fn down(table: &ProviderTable, vendor: &str, seconds: usize) {
    let provider = table.text_to_speech(vendor).unwrap();
    let request = TtsRequest {
        party: vivavoce::quotas::Party::Operator,
        voice_id: None,
        model: String::new(),
        speaking_rate: 1.0,
        preferred: FORMAT,
        connection_timeout: PATIENCE,
        request_timeout: PATIENCE,
        credential: None,
    };
    // A tone-word with its pause lasts 480 ms: twenty-five of them twelve seconds.
    let words: Vec<String> = (0..seconds * 25 / 12)
        .map(|word| (1_000 + word).to_string())
        .collect();
    let text = stream::iter([words.join(" ")]).boxed();
    let mut speech = provider.synthesize(request, text).await.unwrap();
    let mut converter = Converter::live(speech.format, FORMAT, 1.0).unwrap();
    let mut bytes = 0;
    while let Some(event) = speech.events.next().await {
        if let TtsEvent::Audio(sound) = event.unwrap() {
            bytes += black_box(converter.push(&sound).await.unwrap()).len();
        }
    }
    bytes += converter.finish().await.unwrap().len();
    assert_eq!(bytes, seconds * 32_000);
}
