//! Long conversations with vendors that end their streams again and again: what is counted is words.

use std::time::{Duration, Instant};

use serde_json::json;
use vivavoce::audio::{SampleRate, linear16};
use vivavoce::emulators::clock::Clock;
use vivavoce::emulators::engine::Engine;
use vivavoce::emulators::{Emulators, Settings, Vendor};

use super::faults::heard_numbers;
use super::{Backed, start, tone_words};
use crate::session::client::{Session, config};

const RATE: SampleRate = SampleRate::HZ_16000;
/// How much faster than real time the clock runs.
const SPEED: u32 = 10;

async fn hurried(fault: &str) -> Emulators {
    let mut settings = Settings::new(Engine::Scripted);
    settings.clock = Clock::new(f64::from(SPEED)).unwrap();
    settings.faults = vec![fault.parse().unwrap()];
    start(settings).await
}

/// Speaks so many minutes of tone-words, with a pause behind every tenth, to a vendor whose streams last twenty seconds.
async fn converse(backed: &Backed, vendor: Vendor, minutes: u32) -> (Vec<u16>, Vec<u16>) {
    let mut session = Session::connect(&backed.server).await;
    session
        .send(config(json!({
            "stt_config": {"provider": vendor.slug()},
            "vad": {"enabled": false},
        })))
        .await;
    session.next("ready").await;
    let mut sent = Vec::new();
    let mut number = 0u16;
    let (begun, mut sounded) = (Instant::now(), Duration::ZERO);
    while sounded < Duration::from_mins(u64::from(minutes)) {
        let said: Vec<u16> = (0..10)
            .map(|_| {
                number = (number + 1) % 10_000;
                number
            })
            .collect();
        let mut sound = tone_words(said.iter().copied(), RATE);
        sound.resize(sound.len() + RATE.hz() as usize, 0);
        sent.extend(said);
        for frame in sound.chunks(RATE.hz() as usize / 50) {
            session.send_sound(linear16::encode(frame)).await;
        }
        sounded += RATE.duration_of(sound.len());
        tokio::time::sleep_until((begun + sounded / SPEED).into()).await;
    }
    session
        .until_heard(sent.len(), Duration::from_secs(30))
        .await;
    let heard = heard_numbers(&session);
    session.close().await;
    (sent, heard)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_outlives_the_limits_of_streams_with_every_word_heard_once() {
    let minutes = if std::env::var_os("VIVAVOCE_LONG").is_some() {
        30
    } else {
        2
    };
    let backed = Backed::by(hurried("any:stt:limit=20s").await);
    // ElevenLabs is missing: at this speed nothing of it becomes final, which is not understood yet.
    let vendors = Vendor::ALL
        .into_iter()
        .filter(|vendor| *vendor != Vendor::ElevenLabs);
    let all = vendors.map(|vendor| {
        let backed = &backed;
        async move { (vendor, converse(backed, vendor, minutes).await) }
    });
    let mut wrong = Vec::new();
    for (vendor, (sent, heard)) in futures_util::future::join_all(all).await {
        let slug = vendor.slug();
        println!("{slug}: {} words in, {} words out", sent.len(), heard.len());
        if sent != heard {
            wrong.push((slug, first_difference(&sent, &heard)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

fn first_difference(sent: &[u16], heard: &[u16]) -> String {
    let place = sent.iter().zip(heard).take_while(|(a, b)| a == b).count();
    let near = |all: &[u16]| {
        all.iter()
            .skip(place.saturating_sub(1))
            .take(4)
            .copied()
            .collect::<Vec<_>>()
    };
    format!("word {place}: {:?} became {:?}", near(sent), near(heard))
}
