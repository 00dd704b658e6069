//! Vendors that fall silent and say nothing of it: a recogniser whose connection is half open, a voice that stalls in the middle
//! of a sentence, one that does not begin. What was said is heard whole, and what was written is said whole, by the vendor
//! when it is dialled again or by the fallback. How long that took is printed, and judged by nobody.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use vivavoce::audio::{SampleRate, linear16};
use vivavoce::emulators::Vendor;

use super::faults::heard_numbers;
use super::{Backed, numbers_in, scripted, tone_words};
use crate::harness::is_long;
use crate::session::client::{Chunk, Event, Session, config};

const RATE: SampleRate = SampleRate::HZ_16000;
const FRAME: Duration = Duration::from_millis(20);
/// Chooses the moments of the failures, and which of them are tried where not all are.
const SEED: u64 = 11;
/// So many are tried at once: more would wait for each other on the fewest cores that these tests are run on.
const AT_ONCE: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silence {
    /// The connection of a recogniser is half open; the next one is not.
    RecogniserOnce,
    /// So is every other, from its beginning.
    Recogniser,
    /// A voice stops in the middle of a sentence.
    VoiceStalls,
    /// A voice does not begin.
    VoiceSlow,
}
use Silence::{Recogniser, RecogniserOnce, VoiceSlow, VoiceStalls};

impl Silence {
    const ALL: [Self; 4] = [RecogniserOnce, Recogniser, VoiceStalls, VoiceSlow];

    const fn title(self) -> &'static str {
        match self {
            RecogniserOnce => "half-open recogniser, once",
            Recogniser => "half-open recogniser, always",
            VoiceStalls => "voice stalls in mid-sentence",
            VoiceSlow => "slow first sound",
        }
    }

    fn faults(self, vendor: Vendor, ms: u64) -> Vec<String> {
        let vendor = vendor.slug();
        match self {
            RecogniserOnce => vec![format!("{vendor}:stt:half-open@{ms}ms*1")],
            Recogniser => vec![
                format!("{vendor}:stt:half-open@{ms}ms*1"),
                format!("{vendor}:stt:half-open@50ms"),
            ],
            // About as fast as it is heard, so that nothing that came ahead hides the silence.
            VoiceStalls => vec![
                format!("{vendor}:tts:trickle=70ms"),
                format!("{vendor}:tts:stall=60s@{ms}ms"),
            ],
            VoiceSlow => vec![format!("{vendor}:tts:slow=60s")],
        }
    }
}

/// What came of one.
struct Row {
    vendor: Vendor,
    silence: Silence,
    fallback: Vendor,
    outcome: &'static str,
    /// Words that were told twice.
    repeated: usize,
    /// From when the vendor fell silent to the first that was heard after that.
    until_heard: Duration,
}

/// A vendor tells when each word begins; after another the fallback begins with the next utterance.
const fn tells_words(vendor: Vendor) -> bool {
    !matches!(vendor, Vendor::Deepgram | Vendor::Google)
}

/// The state changes of providers, with their providers.
fn changes(session: &Session) -> Vec<(String, String, Instant)> {
    let events = session.events_of("provider_event");
    let change = |event: &Event| {
        let [state, provider] = ["state", "provider"].map(|field| event.text(field).to_owned());
        (state, provider, event.at)
    };
    events.iter().map(change).collect()
}

fn no_errors(session: &Session) {
    let errors = session.events_of("error");
    assert!(errors.is_empty(), "{errors:?}");
}

/// A recogniser is spoken to as by a microphone: every word is heard once, in order, and the words after it as well.
async fn hears(backed: &Backed, silence: Silence, from: Vendor, to: Vendor, ms: u64) -> Row {
    let sent: Vec<u16> = (100..124).collect();
    let mut session = Session::connect(&backed.server).await;
    let listen = json!({
        "stt_config": {"provider": from.slug(), "fallback": [{"provider": to.slug()}]},
        // Tones are no voice: what is sent again must not be shortened as silence.
        "vad": {"enabled": false},
    });
    session.send(config(listen)).await;
    session.next("ready").await;
    let mut sound = tone_words(sent.iter().copied(), RATE);
    // Longer silence would be speech without an answer.
    sound.resize(sound.len() + RATE.hz() as usize, 0);
    let mut due = tokio::time::interval(FRAME);
    for frame in sound.chunks(RATE.frames_in(FRAME)) {
        due.tick().await;
        session.send_sound(linear16::encode(frame)).await;
    }
    let last = sent.last().unwrap();
    while !heard_numbers(&session).contains(last) {
        session.news().await;
    }
    no_errors(&session);
    let heard = heard_numbers(&session);
    if from == Vendor::Cartesia {
        // Its Ink 2 says of no final where it ends: rather than being lost, words may be told twice.
        let mut rest = heard.iter();
        let all = sent.iter().all(|word| rest.any(|heard| heard == word));
        assert!(all, "{heard:?}");
    } else {
        assert_eq!(heard, sent);
    }
    let repeated = heard.len() - sent.len();
    let changes = changes(&session);
    // Where the next connection answers late, the fallback takes over as well.
    let is_back = |state: &str| matches!(state, "recovered" | "switched");
    let back = changes.iter().find(|(state, ..)| is_back(state));
    let (state, provider, at) = back.unwrap_or_else(|| panic!("{changes:?}"));
    let switched = changes.iter().find(|(state, ..)| state == "switched");
    assert!(switched.is_none_or(|(_, provider, _)| provider == to.slug()));
    // One that is half open may well be opened: what counts is who hears.
    let (outcome, at) = match switched {
        Some((.., at)) if silence == Recogniser => ("the fallback hears all", *at),
        Some(_) => ("dialled again, later the fallback; all is heard", *at),
        None => ("dialled again, hears all", *at),
    };
    assert!(
        state == "switched" || provider == from.slug(),
        "{changes:?}"
    );
    let records = backed.emulators.emulation.log.all();
    let first = records
        .iter()
        .find(|record| record.vendor == from.slug() && record.direction == "stt");
    let opened = backed.emulators.emulation.moment(first.unwrap().opened_ms);
    let silent = opened.into_std() + Duration::from_millis(ms);
    let results = session.events_of("stt_result");
    let next = results.iter().find(|result| result.at > at).unwrap();
    let until_heard = next.at.saturating_duration_since(silent);
    session.close().await;
    Row {
        vendor: from,
        silence,
        fallback: to,
        outcome,
        repeated,
        until_heard,
    }
}

fn samples(chunks: &[Chunk]) -> Vec<i16> {
    let all = chunks.iter();
    all.flat_map(|chunk| linear16::samples(&chunk.data))
        .collect()
}

/// A voice is given an utterance, and another one behind it: every word is said once, in order. Where the vendor tells no
/// times of words, the rest of an utterance that has begun is one error, and not said twice.
async fn says(backed: &Backed, silence: Silence, from: Vendor, to: Vendor) -> Row {
    let (first, second): (Vec<u16>, Vec<u16>) = ((200..216).collect(), (300..304).collect());
    let speak = json!({"tts_config": {
        "provider": from.slug(), "model": "", "sample_rate": RATE.hz(),
        "fallback": [{"provider": to.slug(), "model": ""}],
    }});
    let mut session = Session::open(&backed.server, config(speak)).await;
    let text = |numbers: &[u16]| {
        let words: Vec<_> = numbers.iter().map(u16::to_string).collect();
        words.join(" ")
    };
    let asked = Instant::now();
    session.speak("first", &text(&first)).await;
    session.speak("second", &text(&second)).await;
    let end = session.end_of("first").await;
    session.completion_of("second").await;
    let said = numbers_in(&samples(&session.sound_of("first")), RATE);
    let mut repeated = 0;
    let outcome = if silence == VoiceSlow {
        assert_eq!(end.kind(), "tts_playback_complete", "{end}");
        assert_eq!(said, first);
        "the fallback says all"
    } else if tells_words(from) {
        assert_eq!(end.kind(), "tts_playback_complete", "{end}");
        // The word in which it stalled is said again from its beginning.
        let mut whole = said.clone();
        let again = whole.windows(2).position(|two| two[0] == two[1]);
        again.map(|again| whole.remove(again));
        repeated = said.len() - whole.len();
        assert_eq!(whole, first, "{said:?}");
        "the fallback says the rest"
    } else {
        assert_eq!(end.kind(), "error", "{end}");
        assert!(first.starts_with(&said), "{said:?}");
        "one error; the fallback says the next"
    };
    assert_eq!(
        numbers_in(&samples(&session.sound_of("second")), RATE),
        second
    );
    let changes = changes(&session);
    let (.., at) = changes
        .iter()
        .find(|(state, provider, _)| state == "switched" && *provider == to.slug())
        .unwrap_or_else(|| panic!("{changes:?}"));
    let sound = session.sound();
    let before = sound.iter().rfind(|chunk| chunk.at < *at);
    let after = sound.iter().find(|chunk| chunk.at >= *at).unwrap();
    let silent = before.map_or(asked, |chunk| chunk.at);
    session.close().await;
    Row {
        vendor: from,
        silence,
        fallback: to,
        outcome,
        repeated,
        until_heard: after.at.saturating_duration_since(silent),
    }
}

async fn row(silence: Silence, from: Vendor, to: Vendor, ms: u64) -> Row {
    let faults = silence.faults(from, ms);
    let faults: Vec<_> = faults.iter().map(String::as_str).collect();
    let backed = Backed::by(scripted(&faults).await);
    match silence {
        RecogniserOnce | Recogniser => hears(&backed, silence, from, to, ms).await,
        VoiceStalls | VoiceSlow => says(&backed, silence, from, to).await,
    }
}

/// All of them with `VIVAVOCE_LONG`, else one for each kind of silence.
#[tokio::test(flavor = "multi_thread")]
async fn a_vendor_that_falls_silent_costs_no_word() {
    let mut random = SEED;
    let mut next = move |most: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % most
    };
    let long = is_long();
    let vendors = Vendor::STREAMING.len();
    let mut trials = Vec::new();
    for silence in Silence::ALL {
        let chosen = next(vendors as u64) as usize;
        for (index, from) in Vendor::STREAMING.into_iter().enumerate() {
            let other = index + 1 + next(vendors as u64 - 1) as usize;
            let to = Vendor::STREAMING[other % vendors];
            // ElevenLabs hears two seconds before it says anything.
            let ms = match silence {
                RecogniserOnce | Recogniser => 2_600 + next(1_000),
                VoiceStalls | VoiceSlow => 700 + next(600),
            };
            if long || index == chosen {
                trials.push((silence, from, to, ms));
            }
        }
    }
    let mut table = String::from(
        "| vendor | what happens | fallback | outcome | words twice | until heard |\n|---|---|---|---|---:|---:|\n",
    );
    for some in trials.chunks(AT_ONCE) {
        let some = some
            .iter()
            .map(|&(silence, from, to, ms)| row(silence, from, to, ms));
        for row in join_all(some).await {
            table += &format!(
                "| {} | {} | {} | {} | {} | {:.1} s |\n",
                row.vendor.slug(),
                row.silence.title(),
                row.fallback.slug(),
                row.outcome,
                row.repeated,
                row.until_heard.as_secs_f64()
            );
        }
    }
    println!("{table}");
}
