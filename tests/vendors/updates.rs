//! `update_config` under way in a stream of words: a session that changes provider and language again and again, in the
//! middle of words, hears every word once and in order, and says every one that was queued, before and after.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use vivavoce::audio::{SampleRate, linear16};
use vivavoce::emulators::Vendor;

use super::faults::heard_numbers;
use super::{Backed, numbers_in, scripted, tone_words};
use crate::harness::PATIENCE;
use crate::session::client::{Session, config};

const RATE: SampleRate = SampleRate::HZ_16000;
/// How much faster than a microphone the clients send.
const HURRY: u32 = 3;
/// Words that are heard in all, and frames of 20 ms between two updates: no whole number of words.
const WORDS: u16 = 60;
const BETWEEN: usize = 173;
const LANGUAGES: [&str; 2] = ["de-DE", "en-US"];

/// A session that begins with one vendor and is told to change to the next ones in turn. Gives what it heard and said
/// beside what was said to it.
async fn changing(
    backed: &Backed,
    first: usize,
    vad: bool,
) -> (String, [Vec<u16>; 2], [Vec<u16>; 2]) {
    let vendors = || Vendor::STREAMING.into_iter().cycle().skip(first);
    let slug = vendors().next().unwrap().slug();
    let begin = json!({
        "stt_config": {"provider": slug},
        "tts_config": {"provider": slug, "model": "", "sample_rate": RATE.hz()},
        // Tones are no voice: with and without it the pauses have to be found.
        "vad": {"enabled": vad},
    });
    let mut session = Session::open(&backed.server, config(begin)).await;
    let numbers: Vec<u16> = (100..100 + WORDS).collect();
    let mut sound = tone_words(numbers.iter().copied(), RATE);
    sound.resize(sound.len() + 2 * RATE.hz() as usize, 0);
    let mut spoken = Vec::new();
    let mut next = vendors().skip(1);
    let mut languages = LANGUAGES.iter().cycle();
    let mut updates = 0;
    for (place, frame) in sound.chunks(RATE.hz() as usize / 50).enumerate() {
        if place % BETWEEN == BETWEEN - 1 {
            for after in [false, true] {
                let number = 500 + spoken.len() as u16;
                spoken.push(number);
                session
                    .speak(&number.to_string(), &number.to_string())
                    .await;
                if !after {
                    let slug = next.next().unwrap().slug();
                    session
                        .send(json!({
                            "type": "update_config",
                            "stt_config": {"provider": slug, "language": languages.next()},
                            "tts_config": {"provider": slug},
                        }))
                        .await;
                    updates += 1;
                }
            }
        }
        session.send_sound(linear16::encode(frame)).await;
        tokio::time::sleep(Duration::from_millis(20) / HURRY).await;
    }
    session.until_heard(numbers.len(), PATIENCE).await;
    for number in &spoken {
        session.completion_of(&number.to_string()).await;
    }
    let heard = heard_numbers(&session);
    let samples: Vec<i16> = session
        .sound()
        .iter()
        .flat_map(|chunk| linear16::samples(&chunk.data))
        .collect();
    let said = numbers_in(&samples, RATE);
    let ready = session.events_of("ready").len();
    let name = format!("{slug}, vad {vad}, {ready} of {} ready", updates + 1);
    let errors = session.events_of("error");
    assert!(
        errors.is_empty() && ready == updates + 1,
        "{name}: {errors:?}"
    );
    session.close().await;
    (name, [numbers, heard], [spoken, said])
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_in_a_stream_of_words_lose_double_and_swap_none() {
    let backed = Backed::by(scripted(&[]).await);
    let sessions =
        (0..Vendor::STREAMING.len()).map(|first| changing(&backed, first, first % 2 == 0));
    for (name, [sent, heard], [written, said]) in join_all(sessions).await {
        assert_eq!(heard, sent, "heard: {name}");
        assert_eq!(said, written, "said: {name}");
        println!("{name}: {} words heard, {} said", heard.len(), said.len());
    }
}
