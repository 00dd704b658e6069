//! LiveKit Agents' own warm transfer, unmodified: the agent talks to a person whom it has called into a room of their own, and moves
//! that person to the caller.

use std::path::Path;

use serde_json::{Value, json};
use vivavoce::audio::{Layout, SampleRate, linear16, wav};

use super::api_clients::Api;
use super::client::{Client, Kind};
use super::{KEY, KEYS, SECRET, call};
use crate::harness::{PATIENCE, Server, eventually};
use crate::realtime::ChatServer;
use crate::telephone::rig::baresip::{self, Baresip};
use crate::telephone::rig::tone;
use crate::telephone::{Exchange, PHONE, ROOM};
use crate::vendors::{scripted, tone_words};

const CALLER_HZ: u32 = 440;
const PERSON_HZ: u32 = 600;
/// The word by which the person says that they are ready.
const READY: u16 = 2_222;
/// How the framework's task names them.
const PERSON: &str = "human-agent-sip";
const CONSULTATION: &str = "line-human-agent";

/// A file in which the person says that they are ready, some times, and then plays their tone for two minutes.
fn says_ready(folder: &Path) -> std::path::PathBuf {
    let rate = SampleRate::HZ_8000;
    let mut samples = vec![0; 8_000];
    for _ in 0..8 {
        samples.extend(tone_words([READY], rate));
        samples.resize(samples.len() + 2 * 8_000, 0);
    }
    let played = folder.join("tone.wav");
    tone::wav(&played, rate.hz(), PERSON_HZ, 120);
    samples.extend(tone::samples(&played));
    let file = folder.join("ready.wav");
    let bytes = linear16::encode(&samples);
    let head = wav::header(Layout::mono(rate), u32::try_from(bytes.len()).ok());
    std::fs::write(&file, [&head[..], &bytes].concat()).unwrap();
    file
}

async fn people(server: &Server, room: &str) -> Vec<String> {
    let grants = json!({"roomAdmin": true, "room": room});
    let (_, answer) = call(server, "ListParticipants", &grants, &json!({"room": room})).await;
    let listed = answer["participants"].as_array().cloned();
    let identities = listed.unwrap_or_default().into_iter();
    identities
        .map(|one| one["identity"].as_str().unwrap().to_owned())
        .collect()
}

/// Waits until exactly these are in a room.
async fn gather(server: &Server, room: &str, expected: &[&str]) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let mut there = people(server, room).await;
        there.sort();
        if there == expected {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{room}: {there:?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn livekits_warm_transfer_brings_caller_and_person_together() {
    let emulators = scripted(&[]).await;
    let vendors = format!("http://{}", emulators.plain);
    let mut settings = KEYS.to_vec();
    settings.extend([
        ("DEEPGRAM_API_KEY", "key"),
        ("DEEPGRAM_STT_URL", vendors.as_str()),
        ("ELEVENLABS_API_KEY", "key"),
        ("ELEVENLABS_TTS_URL", vendors.as_str()),
    ]);
    let exchange = Exchange::with(&settings);
    let server = &exchange.server;
    let folder = tempfile::tempdir().unwrap();
    let mut caller = Baresip::start().await;
    let mut person = Baresip::of(baresip::Kind {
        says: Some(says_ready(folder.path())),
        ..baresip::Kind::default()
    })
    .await;
    let mut api = Api::open("Python", server, &json!({"key": KEY, "secret": SECRET})).await;
    let made = api
        .call(
            "make trunk",
            json!({"name": "people", "address": person.address()}),
        )
        .await
        .unwrap();
    let model = ChatServer::calling(&json!({
        "talk to a person": "transfer_to_person", READY.to_string(): "connect_to_caller",
    }));
    let options = json!({
        "key": KEY, "secret": SECRET, "trunk": made["sipTrunkId"], "number": "+14155550123", "model": model.url(),
    });
    let arguments = [server.url.as_str(), "", &options.to_string()];
    let mut worker = Client::run("warm_transfer_worker.py", Kind::Python, "worker", arguments);
    worker.connected().await;
    let agents = json!([{"agentName": "support"}]);
    super::workers::create(server, ROOM, json!({"agents": agents})).await;
    let id = exchange.call(&caller.address()).await;
    exchange.answered(&id).await;

    worker.wait("asked_for_a_person", &json!({})).await;
    // They talk in a room of their own, while the caller waits.
    person.next("CALL_ESTABLISHED").await;
    let there = people(server, CONSULTATION).await;
    assert!(there.iter().any(|identity| identity == PERSON), "{there:?}");
    let there = people(server, ROOM).await;
    assert!(
        !there.iter().any(|identity| identity == PERSON),
        "{there:?}"
    );

    let transferred: Value = worker.wait("transferred", &json!({})).await;
    assert_eq!(transferred["identity"], PERSON);
    caller.hears(PERSON_HZ).await;
    person.hears(CALLER_HZ).await;
    // The call is where the person is now, and nobody is left where they talked.
    let moved = |call: &Value| call["participant_identity"] == PERSON && call["room_name"] == ROOM;
    exchange.until("in the caller's room", moved).await;
    gather(server, CONSULTATION, &[]).await;
    let there = people(server, ROOM).await;
    assert!(
        [PHONE, PERSON]
            .iter()
            .all(|one| there.iter().any(|identity| identity == one)),
        "{there:?}"
    );

    // The framework ends the room when either of the two hangs up.
    caller.hang_up().await;
    person.next("CALL_CLOSED").await;
    gather(server, ROOM, &[]).await;
    eventually("the job does not end", || {
        worker.count("over", &json!({})) == 1
    })
    .await;
    worker.leave().await;
}
