//! Heard words: where sessions say that the words of an utterance are, against where its tone-words really are, and what
//! is told of an utterance that is cut. Exact where the vendor tells its words, else estimated.

use std::fmt::Write;

use futures_util::future::join_all;
use serde_json::json;
use vivavoce::audio::{SampleRate, linear16};
use vivavoce::emulators::Vendor;
use vivavoce::emulators::tone_words::{Listener, ToneWord};

use super::{Backed, scripted};
use crate::session::client::{Session, config};

const RATE: SampleRate = SampleRate::HZ_16000;
/// Each of its words sounds equally long, so they are about as long: what is estimated goes by letters.
const TEXT: &str = "Could three people maybe share seven small round tables after eight, under those large yellow lamps?";
/// Moments of an interruption that are tried on each utterance.
const MOMENTS: u64 = 1_000;

/// The tone-words of a session's sound.
fn sounding(session: &Session) -> Vec<ToneWord> {
    let sound = session.sound();
    let samples: Vec<i16> = sound
        .iter()
        .flat_map(|chunk| linear16::samples(&chunk.data))
        .collect();
    let mut listener = Listener::new(RATE);
    let mut words = listener.hear(&samples);
    words.extend(listener.finish());
    words
}

fn ms(sample: u64) -> u64 {
    sample * 1_000 / u64::from(RATE.hz())
}

/// How many of these moments have been passed, ascending.
fn passed(moments: &[u64], now: u64) -> i64 {
    moments.partition_point(|moment| *moment <= now) as i64
}

#[tokio::test(flavor = "multi_thread")]
async fn words_are_where_they_sound() {
    let backed = Backed::by(scripted(&[]).await);
    let mut table = String::from(
        "| vendor | words told by | start off by at most | no word off | one word off | more |\n|---|---|---:|---:|---:|---:|\n",
    );
    let sessions = join_all(Vendor::STREAMING.map(async |vendor| {
        let says = json!({"provider": vendor.slug(), "model": "", "sample_rate": RATE.hz(), "progress": true});
        let mut session = Session::open(&backed.server, config(json!({"tts_config": says}))).await;
        session.speak("whole", TEXT).await;
        session.completion_of("whole").await;
        (vendor, session)
    }));
    for (vendor, session) in sessions.await {
        let told = session.events_of("tts_progress");
        let texts: Vec<_> = told.iter().map(|event| event.text("text")).collect();
        assert_eq!(texts, TEXT.split(' ').collect::<Vec<_>>(), "{vendor:?}");
        let estimated = told.iter().all(|event| event.is("estimated"));
        let exact = told.iter().all(|event| !event.is("estimated"));
        assert!(estimated || exact, "{vendor:?}");
        let starts: Vec<_> = told
            .iter()
            .map(|event| event.time("played_ms").as_millis() as u64)
            .collect();
        let truth: Vec<_> = sounding(&session)
            .iter()
            .map(|word| ms(word.start))
            .collect();
        assert_eq!(starts.len(), truth.len(), "{vendor:?}");
        let off = starts.iter().zip(&truth).map(|(a, b)| a.abs_diff(*b)).max();
        let mut seed = 20_261_122_u64;
        let mut counts = [0_u32; 3];
        for _ in 0..MOMENTS {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let now = (seed >> 33) % (truth[truth.len() - 1] + 300);
            // Two milliseconds are what the listener itself may be wrong by.
            let near = truth.iter().any(|start| start.abs_diff(now) <= 2);
            let error = if near {
                0
            } else {
                passed(&starts, now).abs_diff(passed(&truth, now))
            };
            counts[(error as usize).min(2)] += 1;
        }
        let [none, one, more] = counts;
        let by = if exact { "vendor" } else { "estimate" };
        writeln!(
            table,
            "| {vendor:?} | {by} | {} ms | {none} | {one} | {more} |",
            off.unwrap()
        )
        .unwrap();
        assert_eq!(more, 0, "{table}");
        assert!(!exact || one == 0, "{table}");
        session.close().await;
    }
    println!("{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_cut_at_any_moment_was_heard_up_to_there() {
    let backed = Backed::by(scripted(&[]).await);
    let cuts = Vendor::STREAMING.into_iter().zip([3, 8, 5, 11, 6]);
    let cuts = cuts.map(async |(vendor, words)| {
        let says = json!({"provider": vendor.slug(), "model": "", "sample_rate": RATE.hz(), "progress": true});
        let mut session = Session::open(&backed.server, config(json!({"tts_config": says}))).await;
        session.speak("whole", TEXT).await;
        session.completion_of("whole").await;
        let truth: Vec<_> = sounding(&session).iter().map(|word| ms(word.end)).collect();
        session.speak("cut", TEXT).await;
        // Also from the cache the vendor's words are known.
        let mut told = session.next("tts_progress").await;
        while told["id"] != "cut" || told["word_index"].as_u64() < Some(words) {
            told = session.next("tts_progress").await;
        }
        session.command("clear").await;
        let interrupted = session.next("tts_interrupted").await;
        let heard = interrupted.text("heard_text");
        assert!(TEXT.starts_with(heard), "{interrupted}");
        let played = interrupted.time("played_ms").as_millis() as u64;
        let near = truth.iter().any(|end| end.abs_diff(played) <= 20);
        let off = (heard.split_whitespace().count() as i64).abs_diff(passed(&truth, played));
        println!("{vendor:?}: {heard:?} after {played} ms, {off} words off");
        let may = u64::from(told.is("estimated") || near);
        assert!(off <= may, "{vendor:?} {interrupted}: {off} words off");
        session.close().await;
    });
    join_all(cuts).await;
}
