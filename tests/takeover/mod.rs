//! `serve --takeover`: a server is replaced by another on the same machine, and nobody notices.

mod load;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tokio::time::Instant;

use crate::harness::*;
use crate::rooms::client::{Client, Kind};
use crate::rooms::join;
use crate::session::client::{Session, config};
use crate::session::endurance::times;
use crate::session::recorded::stored;
use crate::session::resume::{BREAKS, Stubborn, assert_whole, said_in_pieces};
use crate::session::sound::{OUTPUT, spoken};
use crate::telephone::Exchange;
use crate::telephone::rig::baresip::Baresip;
use crate::telephone::rig::tone;
use crate::webhooks::{Receiver, settings};

/// A number that is called.
const CALLED: &str = "+14155550199";

/// Requests that anybody makes meanwhile; how many were answered, and none was refused.
struct Visitors {
    running: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    all: Vec<tokio::task::JoinHandle<()>>,
}

impl Visitors {
    fn of(server: &Server) -> Self {
        let running = Arc::new(AtomicBool::new(true));
        let answered = Arc::<AtomicUsize>::default();
        // Each request over a connection of its own.
        let client = builder_of_clients()
            .pool_max_idle_per_host(0)
            .build()
            .unwrap();
        let visit = |path: &'static str| {
            let client = client.clone();
            let (running, answered) = (Arc::clone(&running), Arc::clone(&answered));
            let url = format!("{}{path}", server.url);
            tokio::spawn(async move {
                while running.load(SeqCst) {
                    let answer = client.get(&url).send().await.unwrap();
                    assert_eq!(answer.status(), 200, "{url}");
                    answered.fetch_add(1, SeqCst);
                    // The processor is for others, too.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
        };
        let all = ["/", "/voices", "/openapi.json"].map(visit).into();
        Self {
            running,
            answered,
            all,
        }
    }

    /// As many as until now have been answered once more.
    async fn some_more(&self) {
        let before = self.answered.load(SeqCst);
        eventually("nobody is answered any more", || {
            self.answered.load(SeqCst) > before + 20
        })
        .await;
    }

    async fn go(self) {
        self.running.store(false, SeqCst);
        for one in self.all {
            one.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_go_on_where_they_are_and_nobody_who_comes_is_refused() {
    let mut former = Server::start_logged(&[]);
    let meant = spoken(&former, SENTENCES[0], OUTPUT).await;
    let mut staying = Session::open(&former, config(json!({}))).await;
    let visitors = Visitors::of(&former);
    visitors.some_more().await;
    // What each breaks off comes back at whoever has the address then.
    let talk = (0..times(12, 200) as u64).map(|seed| {
        let next = [&former; BREAKS];
        said_in_pieces(&former, next, seed)
    });
    let replacing = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        tokio::task::block_in_place(|| former.replaced(&[]))
    };
    let (said, mut new) = tokio::join!(join_all(talk), replacing);
    visitors.some_more().await;
    // One whose socket never broke is told, and may stay until it has said everything.
    staying.next("draining").await;
    staying.speak("last", SENTENCES[0]).await;
    staying.completion_of("last").await;
    assert!(
        new.log_so_far()
            .contains("the former server has handed over")
    );
    staying.close().await;
    assert_eq!(former.ended().code(), Some(0));
    // The new one takes everything over its own door.
    let mut session = Session::open(&new, config(json!({}))).await;
    session.speak("first", SENTENCES[0]).await;
    session.completion_of("first").await;
    session.close().await;
    let last = new.replaced(&[]);
    assert_eq!(new.ended().code(), Some(0));
    visitors.some_more().await;
    visitors.go().await;
    drop(last);
    // At the end, as it takes long: a drain does not wait for that.
    assert_whole(&meant, &said);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_is_whole_and_each_webhook_comes_once() {
    let mut receiver = Receiver::start(0, 0);
    let url = format!("http://127.0.0.1:{}/", receiver.port);
    let settings = settings(&url);
    let mut former = Server::start_with(&settings);
    let fields = json!({"recording": true, "stream_id": "through"});
    let mut session = Session::open(&former, config(fields)).await;
    session.speak("a", SENTENCES[0]).await;
    let new = tokio::task::block_in_place(|| former.replaced(&settings));
    session.completion_of("a").await;
    // Nobody takes the recording for one that was left.
    let mut other = Session::open(
        &new,
        config(json!({"recording": true, "stream_id": "after"})),
    )
    .await;
    other.speak("b", SENTENCES[1]).await;
    other.completion_of("b").await;
    other.close().await;
    stored(&new, "after").await;
    session.speak("c", SENTENCES[2]).await;
    session.completion_of("c").await;
    session.close().await;
    assert_eq!(former.ended().code(), Some(0));
    stored(&new, "through").await;
    let metadata = client().get(format!("{}/recordings", new.url));
    let listed: serde_json::Value = metadata.send().await.unwrap().json().await.unwrap();
    let listed = listed["recordings"].as_array().unwrap();
    assert!(
        listed.iter().all(|one| one["complete"] == true),
        "{listed:?}"
    );
    let next = |receiver: &mut Receiver| {
        let told = receiver.next();
        assert_eq!(told["good"], true, "{told}");
        let text = |field: &str| told["body"][field].as_str().unwrap().to_owned();
        (text("event"), text("stream_id"))
    };
    // What the former server has left in its spool comes when the new one has found it there.
    let mut seen = Vec::new();
    while seen.len() < 4 {
        let (event, of) = next(&mut receiver);
        seen.push(format!("{event} {of}"));
    }
    // The next one's comes after whatever would come twice.
    let last = Session::open(&new, config(json!({"stream_id": "last"}))).await;
    last.close().await;
    loop {
        let (event, of) = next(&mut receiver);
        if of == "last" {
            break;
        }
        seen.push(format!("{event} {of}"));
    }
    seen.sort();
    assert_eq!(
        seen,
        [
            "recording.stored after",
            "recording.stored through",
            "session.ended after",
            "session.ended through",
        ]
    );
}

/// How long a tone may be missing. The short run shares its machine with other tests, and says only that it goes on.
fn gap_that_may_be() -> Duration {
    Duration::from_millis(times(1_000, 100) as u64)
}

/// The longest time in a WAV file of 16-bit samples during which its tone is missing.
pub fn longest_gap(file: &Path, rate: u32) -> Duration {
    let samples = tone::samples(file);
    let loudness = |part: &[i16]| {
        let squares = part.iter().map(|&sample| f64::from(sample).powi(2));
        squares.sum::<f64>().sqrt()
    };
    let parts: Vec<f64> = samples
        .chunks_exact(rate as usize / 100)
        .map(loudness)
        .collect();
    assert!(parts.len() > 100, "only {} ms were heard", parts.len() * 10);
    let mut sorted = parts.clone();
    sorted.sort_by(f64::total_cmp);
    let usual = sorted[sorted.len() / 2];
    let is_there = |part: &&f64| **part >= usual / 4.0;
    // Before the tone began nothing is missing.
    let began = parts.iter().position(|part| is_there(&part)).unwrap();
    let (mut longest, mut now) = (0, 0);
    for part in &parts[began..] {
        now = if is_there(&part) { 0 } else { now + 1 };
        longest = longest.max(now);
    }
    Duration::from_millis(longest * 10)
}

/// The same in what was received from somebody since it was to be kept.
pub async fn longest_gap_in_room(client: &mut Client, identity: &str) -> Duration {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("heard.wav");
    client
        .command(json!({"do": "save", "identity": identity, "file": file}))
        .await;
    longest_gap(&file, 48_000)
}

#[tokio::test(flavor = "multi_thread")]
async fn people_in_rooms_hear_each_other_all_the_time_and_who_comes_later_hears_them() {
    // As long as browsers may take to start on a machine that has much else to do.
    let patient = [
        &crate::rooms::KEYS[..],
        &[("SHUTDOWN_DRAIN_SECONDS", "180")],
    ];
    let mut former = crate::rooms::server_with(&patient.concat());
    let mut ann = join(&former, Kind::Python, "lounge", "ann").await;
    let mut bob = join(&former, Kind::Python, "lounge", "bob").await;
    ann.publish(440).await;
    bob.hears("ann", 440).await;
    bob.command(json!({"do": "keep", "identity": "ann"})).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let new = tokio::task::block_in_place(|| former.replaced(&crate::rooms::KEYS));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let gap = longest_gap_in_room(&mut bob, "ann").await;
    assert!(gap <= gap_that_may_be(), "{gap:?} without the tone");
    // Into the room of the former server by the address of the new one.
    let mut cleo = join(&new, Kind::Browser, "lounge", "cleo").await;
    cleo.hears("ann", 440).await;
    cleo.publish(800).await;
    bob.hears("cleo", 800).await;
    let (status, room) = crate::rooms::ask(
        &new,
        reqwest::Method::GET,
        "/rtc/rooms/lounge",
        None,
        &serde_json::Value::Null,
    )
    .await;
    assert_eq!(status, 200, "{room}");
    assert_eq!(room["participants"].as_array().unwrap().len(), 3, "{room}");
    // So does a session, whose clients are told the address that they know.
    let room = json!({"rtc": {"room_name": "lounge"}, "audio": false});
    let mut session = Session::connect(&new).await;
    session.send(config(room)).await;
    let ready = session.next("ready").await;
    assert_eq!(
        ready.text("rtc_url"),
        new.url.replace("http", "ws"),
        "{ready}"
    );
    bob.wait(
        "participant_connected",
        &json!({"identity": ready["service_participant_identity"]}),
    )
    .await;
    let list = async |method, path| {
        let nothing = serde_json::json!({});
        let token = crate::rooms::token(600, &serde_json::json!({"roomList": true}), &nothing);
        let (status, list) = crate::rooms::ask(&new, method, path, Some(&token), &nothing).await;
        assert_eq!(status, 200, "{list}");
        list
    };
    let sessions = list(reqwest::Method::GET, "/sessions").await;
    assert_eq!(
        sessions["sessions"][0]["stream_id"], ready["stream_id"],
        "{sessions}"
    );
    session.close().await;
    // And into a room that is new.
    let mut dan = join(&new, Kind::Python, "den", "dan").await;
    // Nobody goes from one to the other.
    for method in ["MoveParticipant", "ForwardParticipant"] {
        let grants = json!({"roomAdmin": true, "room": "den", "destinationRoom": "lounge"});
        let body = json!({"room": "den", "identity": "dan", "destinationRoom": "lounge"});
        let (_, answer) = crate::rooms::call(&new, method, &grants, &body).await;
        assert_eq!(answer["code"], "failed_precondition", "{answer}");
        let why = answer["msg"].as_str().unwrap();
        assert!(why.starts_with("destination_room: people are"), "{why}");
    }
    // Lists have the rooms of both.
    for (method, path) in [
        (reqwest::Method::GET, "/rtc/rooms"),
        (
            reqwest::Method::POST,
            "/twirp/livekit.RoomService/ListRooms",
        ),
    ] {
        let rooms = list(method, path).await;
        let rooms = rooms["rooms"].as_array().unwrap();
        let names: Vec<_> = rooms.iter().map(|room| &room["name"]).collect();
        assert_eq!(names, ["den", "lounge"]);
    }
    let mut eve = join(&new, Kind::Browser, "den", "eve").await;
    dan.publish(600).await;
    eve.hears("dan", 600).await;
    for client in [ann, bob, cleo] {
        client.leave().await;
    }
    assert_eq!(former.ended().code(), Some(0));
    eve.hears("dan", 600).await;
    dan.leave().await;
    eve.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_go_on_and_the_next_ones_come_to_the_new_server() {
    let mut exchange = Exchange::start();
    let mut session = exchange.session("call-+14155550199").await;
    let mut telephone = Baresip::start().await;
    let address = format!("sip:{CALLED}@{}", exchange.address());
    telephone.dial(&address).await;
    telephone.next("CALL_ESTABLISHED").await;
    while session.next("sip_call").await.text("status") != "active" {}
    let next = exchange.replaced();
    // What belongs to the call comes to the new server, which passes it on.
    session.speak("a", SENTENCES[0]).await;
    session.completion_of("a").await;
    let mut another = Baresip::start().await;
    another.dial(&address).await;
    another.next("CALL_ESTABLISHED").await;
    telephone.hang_up().await;
    while session.next("sip_call").await.text("status") != "hangup" {}
    session.close().await;
    assert_eq!(exchange.server.ended().code(), Some(0));
    let active = |call: &serde_json::Value| call["status"] == "active";
    next.until("active at the new server", active).await;
    another.hang_up().await;
    next.until("over", |call| call["status"] == "hangup").await;
    drop(next);
}

#[tokio::test]
async fn a_server_that_cannot_start_takes_nothing_over() {
    let server = Server::start();
    let mut session = Session::open(&server, config(json!({}))).await;
    let data = server.data.path();
    let output = Command::new(VIVAVOCE)
        .args(["serve", "--takeover", "--port", "0", "--data-dir"])
        .arg(data)
        .env("RTC_UDP_PORT", "0")
        .env("AGENT_URL", "nonsense")
        .output()
        .unwrap();
    assert!(!output.status.success());
    session.speak("a", SENTENCES[0]).await;
    session.completion_of("a").await;
    // Neither does one that goes before it serves.
    let mut stopped = Command::new(VIVAVOCE)
        .args(["serve", "--takeover", "--port", "0", "--data-dir"])
        .arg(data)
        .env("RTC_UDP_PORT", "0")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    stopped.kill().unwrap();
    stopped.wait().unwrap();
    let next = Session::open(&server, config(json!({}))).await;
    next.close().await;
    session.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_new_server_dies_the_former_one_answers_until_another_takes_over() {
    let mut former = Server::start();
    let mut client = Stubborn::open(&former, json!({})).await;
    client.session.speak("a", SENTENCES[0]).await;
    let new = tokio::task::block_in_place(|| former.replaced(&[]));
    client.session.next("draining").await;
    drop(new.kill());
    let began = Instant::now();
    let refused = loop {
        let refused = crate::harness::client()
            .get(format!("{}/readyz", former.url))
            .send();
        match refused.await {
            Ok(answer) => break answer,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
    };
    assert_eq!(refused.status(), 503);
    let last = tokio::task::block_in_place(|| former.replaced(&[]));
    let ready = crate::harness::client()
        .get(format!("{}/readyz", last.url))
        .send();
    assert_eq!(ready.await.unwrap().status(), 200);
    client.session.completion_of("a").await;
    client.session.close().await;
    assert_eq!(former.ended().code(), Some(0));
}

#[test]
fn without_a_running_server_it_starts_as_always() {
    let server = Server::start_flagged("--takeover", &[]);
    assert!(
        server
            .log_so_far()
            .contains("there is nothing to take over")
    );
}
