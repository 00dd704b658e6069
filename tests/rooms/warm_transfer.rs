//! LiveKit Agents' own warm transfer, unmodified: the agent talks to a person whom it has called into a room of their own, and moves
//! that person to the caller.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use vivavoce::audio::{Layout, SampleRate, linear16, wav};
use vivavoce::emulators::Emulators;

use super::api_clients::Api;
use super::client::{Client, Kind};
use super::workers::create;
use super::{KEY, KEYS, SECRET, call};
use crate::harness::PATIENCE;
use crate::realtime::ChatServer;
use crate::telephone::rig::baresip::{self, Baresip};
use crate::telephone::rig::sipp::{Scenario, Sipp};
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
fn says_ready(folder: &Path) -> PathBuf {
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

/// A caller who talks to a support agent, which calls somebody at this address when it is asked for a person.
struct Desk {
    exchange: Exchange,
    caller: Baresip,
    worker: Client,
    /// What the agent thinks and hears with.
    _model: ChatServer,
    _emulators: Emulators,
}

impl Desk {
    async fn open(person: &str) -> Self {
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
        let caller = Baresip::start().await;
        let mut api = Api::open("Python", server, &json!({"key": KEY, "secret": SECRET})).await;
        let trunk = json!({"name": "people", "address": person});
        let made = api.call("make trunk", trunk).await.unwrap();
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
        create(server, ROOM, json!({"agents": agents})).await;
        let id = exchange.call(&caller.address()).await;
        exchange.answered(&id).await;
        worker.wait("asked_for_a_person", &json!({})).await;
        Self {
            exchange,
            caller,
            worker,
            _model: model,
            _emulators: emulators,
        }
    }

    async fn people(&self, room: &str) -> Vec<String> {
        let grants = json!({"roomAdmin": true, "room": room});
        let body = json!({"room": room});
        let (_, answer) = call(&self.exchange.server, "ListParticipants", &grants, &body).await;
        let listed = answer["participants"].as_array().cloned();
        let identities = listed.unwrap_or_default().into_iter();
        identities
            .map(|one| one["identity"].as_str().unwrap().to_owned())
            .collect()
    }

    async fn has(&self, room: &str, identity: &str) -> bool {
        let there = self.people(room).await;
        there.iter().any(|other| other == identity)
    }

    /// Waits until nobody is in a room.
    async fn deserted(&self, room: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let there = self.people(room).await;
            if there.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{room}: {there:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn livekits_warm_transfer_brings_caller_and_person_together() {
    let folder = tempfile::tempdir().unwrap();
    let says = Some(says_ready(folder.path()));
    let mut person = Baresip::of(baresip::Kind {
        says,
        ..baresip::Kind::default()
    })
    .await;
    let mut desk = Desk::open(&person.address()).await;
    // They talk in a room of their own, while the caller waits.
    person.next("CALL_ESTABLISHED").await;
    assert!(desk.has(CONSULTATION, PERSON).await);
    assert!(!desk.has(ROOM, PERSON).await);

    let transferred = desk.worker.wait("transferred", &json!({})).await;
    assert_eq!(transferred["identity"], PERSON);
    desk.caller.hears(PERSON_HZ).await;
    person.hears(CALLER_HZ).await;
    // The call is where the person is now, and nobody is left where they talked.
    let moved = |call: &Value| call["participant_identity"] == PERSON && call["room_name"] == ROOM;
    desk.exchange.until("in the caller's room", moved).await;
    desk.deserted(CONSULTATION).await;
    assert!(desk.has(ROOM, PERSON).await && desk.has(ROOM, PHONE).await);

    // The framework ends the room when either of the two hangs up.
    desk.caller.hang_up().await;
    person.next("CALL_CLOSED").await;
    desk.deserted(ROOM).await;
    desk.worker.wait("over", &json!({})).await;
    desk.worker.leave().await;
}

/// The caller still has the agent, and nobody is where it wanted to talk to the person.
async fn is_given_back(mut desk: Desk) {
    desk.worker.wait("not_transferred", &json!({})).await;
    desk.deserted(CONSULTATION).await;
    let there = desk.people(ROOM).await;
    assert_eq!(
        (there.len(), desk.has(ROOM, PHONE).await),
        (2, true),
        "{there:?}"
    );
    desk.caller.hang_up().await;
    desk.worker.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_caller_of_livekits_warm_transfer_is_given_back_where_the_person_is_busy_or_hangs_up() {
    let mut busy = Sipp::start(Scenario::called().reply("486 Busy Here").receive("ACK")).await;
    let desk = Desk::open(&busy.address()).await;
    busy.passed().await;
    is_given_back(desk).await;

    let mut person = Baresip::start().await;
    let desk = Desk::open(&person.address()).await;
    person.next("CALL_ESTABLISHED").await;
    person.hang_up().await;
    is_given_back(desk).await;
}
