//! Every fault against every vendor, through a running server's `/ws`: what is said is heard and what is written is spoken,
//! with no word lost, doubled or swapped, or there is one clear error. Words are tone-words, so that they are counted
//! exactly. The matrix is printed.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use vivavoce::audio::{SampleRate, linear16};
use vivavoce::emulators::{Emulators, Vendor};

use super::{Backed, numbers_in, scripted, tone_words};
use crate::harness::{PATIENCE, some_of};
use crate::session::client::{Session, config};

/// The rate of everything that is heard and said here.
const RATE: SampleRate = SampleRate::HZ_16000;
/// How much faster than a microphone the clients send.
const HURRY: u32 = 4;

/// What must come of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Everything, in order, once.
    Everything,
    /// One error of this code, and nothing that was not said.
    Error(&'static str),
}
use Outcome::{Error, Everything};

/// Faults of recognition.
const HEARING: &[(&str, Outcome)] = &[
    ("refuse", Error("provider_unavailable")),
    ("status=401", Error("provider_auth")),
    ("status=429,retry=1", Error("provider_rate_limited")),
    ("status=503", Error("provider_unavailable")),
    ("slow=500ms", Everything),
    ("trickle=50ms", Everything),
    ("stall=1s@500ms", Everything),
    ("burst=500ms", Everything),
    ("late=1s", Everything),
    ("close@700ms*1", Everything),
    ("close=1012@700ms*2", Everything),
    ("reset@700ms*1", Everything),
    ("truncate@700ms*1", Everything),
    ("half-open@700ms*1", Everything),
    ("limit=1500ms", Everything),
];

/// Faults of synthesis.
const SPEAKING: &[(&str, Outcome)] = &[
    ("refuse*1", Everything),
    ("refuse", Error("provider_unavailable")),
    ("status=401", Error("provider_auth")),
    ("status=429,retry=1*1", Everything),
    ("status=503*1", Everything),
    ("slow=500ms", Everything),
    ("trickle=50ms", Everything),
    ("stall=1s@100ms", Everything),
    ("burst=500ms", Everything),
    ("odd", Everything),
    ("empty", Everything),
    // Sound comes faster than it is heard: without the delay it would be complete before the end.
    ("trickle=100ms+close@300ms", Error("provider_unavailable")),
    ("trickle=100ms+reset@300ms", Error("provider_unavailable")),
    (
        "trickle=100ms+truncate@300ms",
        Error("provider_unavailable"),
    ),
    ("trickle=100ms+half-open@300ms", Error("provider_timeout")),
];

/// What came of it, and what was heard or said.
#[derive(Debug)]
struct Seen {
    outcome: String,
    as_demanded: bool,
}

fn seen(sent: &[u16], got: &[u16], errors: &[String], demanded: &Outcome) -> Seen {
    let complete = got == sent && errors.is_empty();
    let outcome = match errors {
        [] if complete => "everything".to_owned(),
        [] => format!("lost or doubled: {got:?}"),
        [one] => one.clone(),
        many => many.join("+"),
    };
    let as_demanded = match demanded {
        Everything => complete,
        // A vendor that looks at a stream only when it hears something fails in the session instead of before it.
        Error(code) => {
            let told = [*code, "stt_failed"];
            errors.len() == 1 && told.contains(&errors[0].as_str()) && sent.starts_with(got)
        }
    };
    Seen {
        outcome,
        as_demanded,
    }
}

/// One session that is spoken to.
async fn hear(backed: &Backed, vendor: Vendor, demanded: &Outcome) -> Seen {
    let sent: Vec<u16> = (100..112).collect();
    let mut session = Session::connect(&backed.server).await;
    let listen = json!({
        "stt_config": {"provider": vendor.slug()},
        // Tones are no voice: what is sent again after a drop must not be shortened as silence.
        "vad": {"enabled": false},
    });
    session.send(config(listen)).await;
    if session.next_of(&["ready", "error"]).await.kind() == "ready" {
        let mut sound = tone_words(sent.iter().copied(), RATE);
        sound.resize(sound.len() + RATE.hz() as usize, 0);
        for frame in sound.chunks(RATE.hz() as usize / 50) {
            session.send_sound(linear16::encode(frame)).await;
            tokio::time::sleep(Duration::from_millis(20) / HURRY).await;
        }
        session.until_heard(sent.len(), PATIENCE).await;
    }
    let errors = codes(&session);
    let got = heard_numbers(&session);
    let seen = seen(&sent, &got, &errors, demanded);
    if !seen.as_demanded {
        println!("{}: {:?}", vendor.slug(), session.events());
    }
    session.close().await;
    seen
}

/// One session that speaks.
async fn say(backed: &Backed, vendor: Vendor, demanded: &Outcome) -> Seen {
    let sent: Vec<u16> = (200..206).collect();
    let speak = json!({
        "tts_config": {"provider": vendor.slug(), "model": "", "sample_rate": RATE.hz(), "connection_timeout": 5},
    });
    let mut session = Session::open(&backed.server, config(speak)).await;
    let text: Vec<_> = sent.iter().map(u16::to_string).collect();
    session.speak("u", &text.join(" ")).await;
    session.end_of("u").await;
    let errors = codes(&session);
    let sound: Vec<i16> = session
        .sound()
        .iter()
        .flat_map(|chunk| linear16::samples(&chunk.data))
        .collect();
    session.close().await;
    seen(&sent, &numbers_in(&sound, RATE), &errors, demanded)
}

fn codes(session: &Session) -> Vec<String> {
    let errors = session.events_of("error");
    errors
        .iter()
        .map(|error| error.text("code").to_owned())
        .collect()
}

/// The numbers in the finals.
pub fn heard_numbers(session: &Session) -> Vec<u16> {
    let results = session.events_of("stt_result");
    let finals = results.iter().filter(|result| result.is("is_final"));
    finals
        .flat_map(|result| {
            let words = result.text("transcript").split_whitespace();
            words
                .map(|word| word.parse().unwrap())
                .collect::<Vec<u16>>()
        })
        .collect()
}

/// The vendors of a direction. OpenAI is sent whole utterances, and tone-words are none.
pub fn vendors(direction: &str) -> &'static [Vendor] {
    match direction {
        "stt" => &Vendor::STREAMING,
        _ => &Vendor::ALL,
    }
}

/// Runs a row for every vendor at once.
async fn row(
    direction: &str,
    fault: &str,
    demanded: &Outcome,
    backed: impl Fn(Emulators) -> Backed,
) -> (String, Vec<(&'static str, Seen)>) {
    let faults = fault
        .split('+')
        .map(|fault| format!("any:{direction}:{fault}"));
    let faults: Vec<_> = faults.collect();
    let faults: Vec<_> = faults.iter().map(String::as_str).collect();
    let emulators = scripted(&faults).await;
    let backed = backed(emulators);
    let sessions = vendors(direction).iter().map(|&vendor| {
        let backed = &backed;
        async move {
            let seen = match direction {
                "stt" => hear(backed, vendor, demanded).await,
                _ => say(backed, vendor, demanded).await,
            };
            (vendor.slug(), seen)
        }
    });
    (fault.to_owned(), join_all(sessions).await)
}

/// Prints some rows, in a long run all of them; every outcome is the demanded one.
pub async fn matrix(
    direction: &str,
    rows: &[(&str, Outcome)],
    backed: impl Fn(Emulators) -> Backed,
) {
    let mut printed = format!("{direction:30}");
    for vendor in vendors(direction) {
        printed += &format!("{:24}", vendor.slug());
    }
    let mut wrong = BTreeMap::new();
    // A few servers at a time: all at once would only wait for the processor.
    for some in some_of(rows, 8).chunks(4) {
        let some = some
            .iter()
            .map(|(fault, demanded)| row(direction, fault, demanded, &backed));
        for (fault, vendors) in join_all(some).await {
            printed += &format!("\n{fault:30}");
            for (vendor, seen) in vendors {
                printed += &format!("{:24}", seen.outcome.chars().take(23).collect::<String>());
                if !seen.as_demanded {
                    wrong.insert((fault.clone(), vendor), seen.outcome);
                }
            }
        }
    }
    println!("{printed}");
    assert!(wrong.is_empty(), "{wrong:#?}\n{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_of_recognition_loses_and_doubles_nothing_or_is_one_clear_error() {
    matrix("stt", HEARING, Backed::by).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_of_synthesis_loses_and_doubles_nothing_or_is_one_clear_error() {
    matrix("tts", SPEAKING, Backed::by).await;
}
