//! Sessions in rooms with participants that use LiveKit's clients: both hear each other.

pub mod failures;
pub mod tenants;
mod words;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine as _;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use vivavoce::audio::{Layout, SampleRate, wav};

use super::client::{Client, Kind};
use super::{admission, ask, join, keyed_server, server, server_elsewhere};
use crate::harness::*;
use crate::session::client::{Event, Session, config};
use crate::session::recorded::stored;

pub const AGENT: &str = "voice-agent";

/// Speech in a file, as the voice of a person in a room.
async fn spoken(server: &Server, folder: &TempDir, text: &str) -> PathBuf {
    let sound = json!({"audio_format": "wav", "sample_rate": 48000});
    let sound = speak(server, text, sound).await.bytes().await.unwrap();
    let file = folder.path().join("spoken.wav");
    std::fs::write(&file, sound).unwrap();
    file
}

/// The words in a file.
pub fn understood(file: &Path) -> String {
    stdout(&vivavoce(["transcribe".as_ref(), file.as_os_str()]))
}

/// What a session has understood so far.
pub fn heard(session: &Session) -> String {
    heard_where(session, |_| true)
}

/// The same of certain results.
fn heard_where(session: &Session, which: impl Fn(&Event) -> bool) -> String {
    let results = session.events_of("stt_result");
    let finals = results
        .iter()
        .filter(|result| result.is("is_final") && which(result));
    finals
        .map(|result| result.text("transcript").to_owned() + " ")
        .collect()
}

/// Somebody says a text until a session has understood most of it: on a machine with much else to do the sound of a
/// program's microphone has holes.
pub async fn says_until_heard(
    ann: &mut Client,
    session: &mut Session,
    file: &Path,
    text: &str,
) -> Value {
    let mut say = json!({"do": "say", "file": file});
    for _ in 0..4 {
        let said = ann.command(say.clone()).await;
        say["sid"] = said["sid"].clone();
        for _ in 0..50 {
            if share_of_words(text, &heard(session)) >= 0.7 {
                return said;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    panic!("{text:?} is understood as {:?}", heard(session));
}

/// A WAV file.
fn file_of(layout: Layout, samples: &[i16]) -> Vec<u8> {
    let bytes: Vec<u8> = samples
        .iter()
        .flat_map(|sample| sample.to_le_bytes())
        .collect();
    let length = u32::try_from(bytes.len()).unwrap();
    [&wav::header(layout, Some(length))[..], &bytes].concat()
}

/// A loading sound of 600 Hz.
pub fn clip() -> String {
    let layout = Layout::mono(SampleRate::HZ_48000);
    let sample = |at: usize| {
        let phase = at as f64 * std::f64::consts::TAU * 600.0 / 48_000.0;
        (phase.sin() * 6_000.0) as i16
    };
    let samples: Vec<i16> = (0..24_000).map(sample).collect();
    base64::engine::general_purpose::STANDARD.encode(file_of(layout, &samples))
}

/// What the server shows of a room.
async fn shown(server: &Server, room: &str) -> Value {
    let path = format!("/rtc/rooms/{room}");
    let (status, shown) = ask(server, Method::GET, &path, None, &Value::Null).await;
    assert_eq!(status, 200, "{shown}");
    shown
}

/// A person with LiveKit's client for Python and a session talk in this room, to which clients connect at this address.
pub async fn talk(server: &Server, url: &str, room: &str) {
    let folder = tempfile::tempdir().unwrap();
    let config = config(json!({
        "stream_id": room,
        "rtc": {"room_name": room, "enable_recording": true},
        "loading_audio": {"data": clip(), "format": "wav"},
    }));
    let mut session = Session::open(server, config).await;
    let ready = session.events_of("ready").remove(0);
    assert_eq!(ready.text("rtc_room_name"), room);
    assert_eq!(ready.text("rtc_url"), url);
    let mut ann = join(server, Kind::Python, room, "ann").await;
    let connected = session.next("participant_connected").await;
    assert_eq!(connected["participant"]["identity"], "ann");

    // She is heard.
    let file = spoken(server, &folder, SENTENCES[2]).await;
    let said = says_until_heard(&mut ann, &mut session, &file, SENTENCES[2]).await;
    let subscribed = session.events_of("track_subscribed");
    assert_eq!(subscribed[0]["track"]["track_sid"], said["sid"]);

    // She hears.
    ann.wait("track_subscribed", &json!({"identity": AGENT}))
        .await;
    ann.command(json!({"do": "keep", "identity": AGENT})).await;
    session.speak("a", SENTENCES[6]).await;
    session.completion_of("a").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let file = folder.path().join("heard.wav");
    ann.command(json!({"do": "save", "identity": AGENT, "file": file}))
        .await;
    let heard = understood(&file);
    assert!(
        share_of_words(SENTENCES[6], &heard) >= 0.8,
        "understood {heard:?}"
    );

    // Both write.
    ann.command(json!({"do": "send", "text": "a note", "topic": "notes"}))
        .await;
    let message = session.next("message").await;
    assert_eq!(message["message"]["message"], "a note");
    assert_eq!(message["message"]["identity"], "ann");
    assert_eq!(message["message"]["topic"], "notes");
    session
        .send(json!({"type": "send_message", "message": "an answer", "role": "assistant"}))
        .await;
    let data = ann.wait("data", &json!({"topic": "messages"})).await;
    let body: Value = serde_json::from_str(data["text"].as_str().unwrap()).unwrap();
    assert_eq!(body, json!({"message": "an answer", "role": "assistant"}));
    assert_eq!(data["identity"], AGENT);

    // The loading sound.
    session.command("loading_start").await;
    ann.hears(AGENT, 600).await;
    session.command("loading_stop").await;
    ann.hears(AGENT, 0).await;

    let now = shown(server, room).await;
    // A deployment shows recordings of its own alone.
    let embedded = server.url.replacen("http", "ws", 1) == url;
    assert_eq!(now["active_recording"], embedded, "{now}");
    assert_eq!(now["num_participants"], 2, "{now}");
    session.close().await;
    ann.wait("participant_disconnected", &json!({"identity": AGENT}))
        .await;
    let now = shown(server, room).await;
    assert_eq!(now["active_recording"], false, "{now}");
    ann.leave().await;

    // The recording holds both sides.
    let sound = stored(server, room).await;
    let file = folder.path().join("recording.ogg");
    std::fs::write(&file, sound).unwrap();
    for (channel, text) in [(0, SENTENCES[2]), (1, SENTENCES[6])] {
        let side = folder.path().join(format!("{channel}.wav"));
        let pan = format!("pan=mono|c0=c{channel}");
        let arguments = [
            "-v",
            "error",
            "-i",
            file.to_str().unwrap(),
            "-af",
            pan.as_str(),
            side.to_str().unwrap(),
        ];
        assert!(run("ffmpeg", arguments).status.success());
        let heard = understood(&side);
        assert!(
            share_of_words(text, &heard) >= 0.6,
            "side {channel}: {heard:?}"
        );
    }
}

#[tokio::test]
async fn a_person_and_a_session_talk_in_an_embedded_room() {
    let server = server();
    let url = server.url.replacen("http", "ws", 1);
    talk(&server, &url, "kitchen").await;
}

#[tokio::test]
async fn a_person_and_a_session_talk_in_a_room_of_a_deployment() {
    let deployment = keyed_server();
    let url = deployment.url.replacen("http", "ws", 1);
    talk(&server_elsewhere(&url, &[]), &url, "kitchen").await;
}

/// A person in Chromium and a session talk in this room.
pub async fn talk_in_a_browser(server: &Server, room: &str) {
    let folder = tempfile::tempdir().unwrap();
    let rtc = json!({"room_name": room});
    let mut session = Session::open(server, config(json!({"rtc": rtc}))).await;
    let file = spoken(server, &folder, SENTENCES[3]).await;
    let (url, token) = admission(server, room, "ann").await;
    let options = json!({"microphone": file});
    let mut ann = Client::start(Kind::Browser, &url, "ann", &token, &options);
    ann.connected().await;
    ann.command(json!({"do": "publish_microphone"})).await;
    while share_of_words(SENTENCES[3], &heard(&session)) < 0.7 {
        session.news().await;
    }
    ann.wait("track_subscribed", &json!({"identity": AGENT}))
        .await;
    ann.command(json!({"do": "keep", "identity": AGENT})).await;
    session.speak("a", SENTENCES[2]).await;
    session.completion_of("a").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let taken = ann.command(json!({"do": "taken", "identity": AGENT})).await;
    let sound = base64::engine::general_purpose::STANDARD.decode(taken["sound"].as_str().unwrap());
    let sound = sound.unwrap();
    let (samples, _) = sound.as_chunks::<2>();
    let samples: Vec<i16> = samples.iter().map(|two| i16::from_le_bytes(*two)).collect();
    let rate = SampleRate::new(taken["rate"].as_u64().unwrap()).unwrap();
    let file = folder.path().join("heard.wav");
    std::fs::write(&file, file_of(Layout::mono(rate), &samples)).unwrap();
    let heard = understood(&file);
    assert!(
        share_of_words(SENTENCES[2], &heard) >= 0.7,
        "understood {heard:?}"
    );
    session.close().await;
    ann.leave().await;
}

#[tokio::test]
async fn a_person_in_a_browser_talks_with_a_session() {
    talk_in_a_browser(&server(), "kitchen").await;
}

/// Sessions in this room are removed, and lose their client.
pub async fn leave_when_they_must(server: &Server, room: &str) {
    let mut ann = join(server, Kind::Python, room, "ann").await;
    let rtc = json!({"room_name": room, "service_participant_identity": "helper", "service_participant_name": "Helper"});
    let mut session = Session::open(server, config(json!({"rtc": rtc}))).await;
    ann.wait("participant_connected", &json!({"identity": "helper"}))
        .await;
    let now = shown(server, room).await;
    let participants = now["participants"].as_array().unwrap();
    let helper = participants
        .iter()
        .find(|one| one["identity"] == "helper")
        .unwrap();
    assert_eq!(
        (&helper["kind"], &helper["name"]),
        (&json!("AGENT"), &json!("Helper"))
    );
    let body = json!({"room_name": room, "participant_identity": "helper"});
    let (status, answer) = ask(server, Method::DELETE, "/rtc/participant", None, &body).await;
    assert_eq!(status, 200, "{answer}");
    let event = session.next("provider_event").await;
    assert_eq!((event.text("kind"), event.text("state")), ("rtc", "failed"));
    assert_eq!(session.closed().await, 1000);
    ann.wait("participant_disconnected", &json!({"identity": "helper"}))
        .await;

    // A client that vanishes takes its session out of the room.
    let rtc = json!({"room_name": room, "service_participant_identity": "second"});
    let session = Session::open(server, config(json!({"rtc": rtc}))).await;
    ann.wait("participant_connected", &json!({"identity": "second"}))
        .await;
    drop(session);
    ann.wait("participant_disconnected", &json!({"identity": "second"}))
        .await;
    ann.leave().await;
}

#[tokio::test]
async fn a_session_that_is_removed_or_killed_leaves_its_room() {
    leave_when_they_must(&server(), "kitchen").await;
}

/// Two people say different things at the same time.
pub async fn transcribes_each(server: &Server, room: &str) {
    let rtc = json!({"room_name": room, "stt_mode": "per_participant"});
    let session = Session::open(server, config(json!({"rtc": rtc}))).await;
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let texts = [SENTENCES[2], SENTENCES[6]];
    let mut ann = join(server, Kind::Python, room, "ann").await;
    let mut bob = join(server, Kind::Python, room, "bob").await;
    let [mut of_ann, mut of_bob] = [json!({"do": "say"}), json!({"do": "say"})];
    of_ann["file"] = json!(spoken(server, &folders[0], texts[0]).await);
    of_bob["file"] = json!(spoken(server, &folders[1], texts[1]).await);
    let of = |identity| heard_where(&session, |result| result["identity"] == identity);
    let understood = || {
        let heard = ["ann", "bob"].map(of);
        [0, 1].map(|who| share_of_words(texts[who], &heard[who]))
    };
    // On a machine with much else to do the sound of a program's microphone has holes.
    for _ in 0..4 {
        let said = tokio::join!(ann.command(of_ann.clone()), bob.command(of_bob.clone()));
        (of_ann["sid"], of_bob["sid"]) = (said.0["sid"].clone(), said.1["sid"].clone());
        for _ in 0..50 {
            if understood().iter().all(|share| *share >= 0.7) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let heard = ["ann", "bob"].map(of);
    assert!(understood().iter().all(|share| *share >= 0.7), "{heard:?}");
    // Neither said what the other one did.
    assert!(share_of_words(texts[0], &heard[1]) < 0.5, "{heard:?}");
    assert!(share_of_words(texts[1], &heard[0]) < 0.5, "{heard:?}");
    session.close().await;
    ann.leave().await;
    bob.leave().await;
}

#[tokio::test]
async fn each_participant_is_transcribed_by_name() {
    transcribes_each(&server(), "kitchen").await;
}

/// A session is cut off while it speaks, and speaks again.
pub async fn is_cut(server: &Server, room: &str) {
    let mut session = Session::open(server, config(json!({"rtc": {"room_name": room}}))).await;
    let mut ann = join(server, Kind::Python, room, "ann").await;
    ann.wait("track_subscribed", &json!({"identity": AGENT}))
        .await;
    session.speak("a", &SENTENCES.join(" ")).await;
    ann.hears_anything_of(AGENT).await;
    session.command("clear").await;
    let cut = session.next("tts_interrupted").await;
    assert_eq!(cut["id"], "a");
    assert!(words(cut.text("heard_text")).len() < 40, "{cut}");
    ann.hears(AGENT, 0).await;
    session.speak("b", SENTENCES[6]).await;
    ann.hears_anything_of(AGENT).await;
    session.completion_of("b").await;
    session.close().await;
    ann.leave().await;
}

#[tokio::test]
async fn a_session_that_is_cut_off_falls_silent() {
    is_cut(&server(), "kitchen").await;
}

/// A session deletes its room, and whoever is in it is told. Of a room that it made and that is empty it leaves nothing.
pub async fn ends_with_its_room(server: &Server, room: &str, is_deployment: bool) {
    let empty = format!("{room}-empty");
    let enters = |room: &str, identity: &str, delete: &str| {
        let rtc = json!({
            "room_name": room, "service_participant_identity": identity, "delete_room": delete,
        });
        Session::open(server, config(json!({"rtc": rtc})))
    };
    let mut stays = enters(room, "stays", "never").await;
    let mut ann = join(server, Kind::Python, room, "ann").await;
    ann.mark();
    enters(room, "deletes", "always").await.close().await;
    let event = stays.next("provider_event").await;
    assert_eq!(event.text("kind"), "rtc", "{event}");
    // LiveKit's server may close a connection before it has said why, and whoever it was joins the room anew, which makes it again.
    if is_deployment && event.text("state") == "reconnecting" {
        let event = stays.next("provider_event").await;
        assert_eq!(event.text("state"), "recovered", "{event}");
        stays.close().await;
    } else {
        assert_eq!(event.text("state"), "failed", "{event}");
        assert!(event.text("message").contains("deleted"), "{event}");
        assert_eq!(stays.closed().await, 1000);
    }
    let left = ann.first_of(&["disconnected", "reconnecting"]).await;
    if left["event"] == "disconnected" || !is_deployment {
        assert_eq!(left["reason"], 5, "{left}");
    }

    enters(&empty, "alone", "auto").await.close().await;
    let path = format!("/rtc/rooms/{empty}");
    let there = async || ask(server, Method::GET, &path, None, &Value::Null).await.0 == 200;
    let deadline = Instant::now() + PATIENCE;
    while there().await {
        assert!(Instant::now() < deadline, "the room outlives its session");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_session_ends_with_its_room_and_deletes_its_own() {
    ends_with_its_room(&server(), "kitchen", false).await;
}
