//! What one client may not do to the server or to the others: not reading, sending garbage, coming and going in every
//! way. The numbers are small by default; `VIVAVOCE_LONG` makes them those of the promise.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::client::{Hiccups, Session, config, hears};
use super::protocol::{delete, left};
use super::sound::{Playout, WIDE, encoded, sentences};
use crate::harness::{SENTENCES, Server, eventually, share_of_words};

/// `short`, or `long` in the long run.
pub fn times(short: usize, long: usize) -> usize {
    std::env::var_os("VIVAVOCE_LONG").map_or(short, |_| long)
}

/// Memory of the server that is really in use.
fn resident_bytes(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let mut lines = status.lines();
    let kilobytes = lines.find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    kilobytes.unwrap().parse::<usize>().unwrap() << 10
}

/// Entries of a folder of the server's process.
fn entries(server: &Server, of: &str) -> usize {
    let folder = format!("/proc/{}/{of}", server.pid());
    std::fs::read_dir(folder).unwrap().count()
}

// What comes is stamped by threads that send nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_heard_in_bounded_memory_and_alone() {
    let server = Server::start_with(&[("LOCAL_STT_PRELOAD", "true")]);
    let said: Vec<_> = SENTENCES
        .iter()
        .copied()
        .cycle()
        .take(times(2, 18))
        .collect();
    let speech = sentences(&server, &said, Duration::from_secs(3)).await;
    let speech = encoded(&speech, WIDE).await;
    let hiccups = Hiccups::watch();
    let mut other = Session::open(&server, config(json!({}))).await;
    let mut deaf = Session::connect_narrow(&server).await;
    deaf.send(config(json!({}))).await;
    deaf.next("ready").await;
    // The recogniser and everything else is there.
    other.speak("warm", &said.join(" ")).await;
    other.next("tts_started").await;
    let before = resident_bytes(&server);

    deaf.stop_reading();
    for n in 0..30 {
        deaf.speak(&n.to_string(), SENTENCES[n % 10]).await;
    }
    deaf.hear(speech).await;
    let grown = resident_bytes(&server).saturating_sub(before);
    assert!(grown < 8 << 20, "the server has grown by {grown} bytes");
    other.completion_of("warm").await;
    let gap = Playout::of(&other.sound_of("warm")).longest_gap;
    assert!(
        gap <= hiccups.worst(),
        "the other had nothing to play for {gap:?}"
    );

    deaf.go_on_reading();
    // A sentence for whose words a busy machine needs longer than the pause behind it ends in one turn with the next.
    let (said, mut heard) = (said.join(" "), String::new());
    while share_of_words(&said, &heard) < 0.85 {
        let turn = deaf.end_of_turn().await;
        heard = format!("{heard} {}", turn.text("turn_transcript"));
    }
    deaf.command("clear").await;
    for n in 0..30 {
        deaf.end_of(&n.to_string()).await;
    }
    deaf.close().await;
    other.close().await;
}

/// Bytes without meaning, the same every time.
fn noise(length: usize, mut state: u64) -> Vec<u8> {
    let byte = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u8
    };
    (0..length).map(byte).collect()
}

// What comes is stamped by threads that send nothing.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_harms_nobody_but_its_sender() {
    let server = Server::start();
    let hiccups = Hiccups::watch();
    let mut good = Session::open(&server, config(json!({}))).await;
    good.speak("long", &SENTENCES[..4].join(" ")).await;
    good.next("tts_started").await;

    let crowd = &server;
    let sound = ["linear16", "mulaw", "alaw", "opus", "ogg_opus"].map(|encoding| async move {
        let mut session = Session::open(crowd, hears(json!({"encoding": encoding}))).await;
        for n in 0..40u64 {
            let length = [0, 1, 3, 640, 1_275, 20_000][n as usize % 6];
            session.send_sound(noise(length, n)).await;
        }
        if encoding.contains("opus") {
            // Decoding is not done by who answers, and may be later.
            session.next("error").await;
        }
        session.speak("after", "Yes.").await;
        session.completion_of("after").await;
        let errors = session.events_of("error");
        // What cannot be decoded is told, once and not once a message.
        let expected = if encoding.contains("opus") {
            1..=2
        } else {
            0..=0
        };
        let told = errors.len();
        assert!(expected.contains(&told), "{encoding}: {errors:?}");
        assert!(errors.iter().all(|error| error["fatal"] == false));
        session.close().await;
    });
    let text = async {
        let mut session = Session::open(&server, config(json!({}))).await;
        let deep = format!("{{\"type\":\"speak\",\"text\":{}", "[".repeat(100_000));
        let long = format!("{{\"type\":\"{}\"}}", "x".repeat(1 << 20));
        let mess = String::from_utf8_lossy(&noise(10_000, 7)).into_owned();
        for text in [deep, long, mess, "\0".to_owned(), "💥".repeat(1_000)] {
            session.send_text(&text).await;
            let error = session.refused("invalid_message").await;
            assert!(error.text("message").len() < 1_000, "{error}");
        }
        // A burst of everything.
        let burst = (0..1_000).map(|n| match n % 4 {
            0 => Message::text(r#"{"type":"clear"}"#),
            1 => Message::text(r#"{"type":"speak","text":"Yes.","id":"burst"}"#),
            2 => Message::binary(noise(320, n)),
            _ => Message::Ping(bytes::Bytes::from_static(b"?")),
        });
        session.send_all(burst).await;
        session.command("clear").await;
        session.speak("after", "Yes.").await;
        // All others were cleared, so none was refused.
        let complete = session.next("tts_playback_complete").await;
        assert_eq!(complete["id"], "after");
        session.close().await;
    };
    tokio::join!(join_all(sound), text);

    good.completion_of("long").await;
    let playout = Playout::of(&good.sound());
    let (gap, after) = (playout.longest_gap, playout.gap_after);
    assert!(
        gap <= hiccups.worst(),
        "the other had nothing to play for {gap:?} after {after:?}"
    );
    assert_eq!(good.events_of("error").len(), 0);
    good.close().await;
}

/// A session that ends in one of all ways.
async fn come_and_go(server: &Server, n: usize) {
    let id = format!("visitor-{n}");
    let mut session = Session::connect(server).await;
    session.send(config(json!({"stream_id": id}))).await;
    let way = n % 6;
    if way == 0 {
        // In the middle of the config.
        return;
    }
    session.next("ready").await;
    session.send_sound(noise(6_400, n as u64)).await;
    if way == 1 {
        return session.close().await;
    }
    session.speak("x", SENTENCES[n % 10]).await;
    match way {
        2 => {}
        3 => session.close().await,
        4 => {
            session.next("tts_started").await;
        }
        _ => {
            assert_eq!(delete(server, &id).await.status(), 200);
            session.closed().await;
        }
    }
}

async fn visits(server: &Server, visitors: std::ops::Range<usize>) {
    let visits = stream::iter(visitors).map(|n| come_and_go(server, n));
    visits.buffer_unordered(20).collect::<Vec<()>>().await;
    left(server, &[]).await;
}

#[tokio::test]
async fn sessions_that_come_and_go_in_every_way_leave_nothing_behind() {
    let server = Server::start();
    let (first, then) = (times(120, 500), times(240, 1_500));
    visits(&server, 0..first).await;
    let settled = || {
        ["flite", "espeak-ng", "lame"]
            .iter()
            .all(|program| server.children(program).is_empty())
    };
    eventually("programs are left", settled).await;
    let (memory, tasks) = (resident_bytes(&server), entries(&server, "task"));
    let files = entries(&server, "fd");

    visits(&server, first..first + then).await;
    eventually("programs are left", settled).await;
    eventually("files or connections are left", || {
        entries(&server, "fd") <= files + 2
    })
    .await;
    assert!(entries(&server, "task") <= tasks + 2);
    let grown = resident_bytes(&server).saturating_sub(memory);
    println!("the server has grown by {grown} bytes in {then} sessions");
    assert!(grown <= 5 << 20, "the server has grown by {grown} bytes");
}

// What comes is stamped by threads that send nothing.
#[tokio::test(flavor = "multi_thread")]
async fn many_sessions_speak_at_once_without_a_gap() {
    let server = Server::start();
    let hiccups = Hiccups::watch();
    let sessions = (0..20).map(|n| {
        let server = &server;
        async move {
            let mut session = Session::open(server, config(json!({}))).await;
            session.speak("x", SENTENCES[n % 10]).await;
            session.completion_of("x").await;
            let gap = Playout::of(&session.sound()).longest_gap;
            session.close().await;
            gap
        }
    });
    let gaps = join_all(sessions).await;
    let worst = gaps.into_iter().max().unwrap();
    assert!(worst <= hiccups.worst(), "nothing to play for {worst:?}");
}
