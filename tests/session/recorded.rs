//! Sessions that are recorded, and what became of their recordings.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::Session;
use super::sound::{WIDE, chopped, tone};
use crate::harness::{PATIENCE, Server, client};

/// A `config` of the providers that cost nothing, recorded.
pub fn recording(stream_id: &str) -> Value {
    json!({
        "type": "config", "stream_id": stream_id, "recording": true,
        "stt_config": {"provider": "null"}, "tts_config": {"provider": "null", "model": ""},
    })
}

/// A session that hears a second of sound, says something, and is closed by its client.
pub async fn recorded(server: &Server, stream_id: &str) {
    let mut session = Session::open(server, recording(stream_id)).await;
    hears(&session, 1).await;
    session.speak("one", "Hello.").await;
    session.completion_of("one").await;
    session.close().await;
}

/// So many seconds of sound, as they come from a microphone, from now on.
pub fn hears(session: &Session, seconds: u64) -> impl Future<Output = ()> + use<> {
    let sound = tone(WIDE.layout, 440.0, 9_000.0, Duration::from_secs(seconds));
    session.hear(chopped(&sound, 640))
}

/// What `GET /recording/{stream_id}` gives once the recording is stored.
pub async fn stored(server: &Server, stream_id: &str) -> Vec<u8> {
    let url = format!("{}/recording/{stream_id}", server.url);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let response = client().get(&url).send().await.unwrap();
        let status = response.status().as_u16();
        if status == 200 {
            return response.bytes().await.unwrap().to_vec();
        }
        // Not finished yet, or the store is away.
        assert!(matches!(status, 404 | 503), "{status}");
        assert!(Instant::now() < deadline, "{stream_id} is never stored");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What `metadata.json` in a server's own folder says.
pub fn known(server: &Server, stream_id: &str) -> Value {
    let folder = server.data.path().join("recordings").join(stream_id);
    serde_json::from_slice(&std::fs::read(folder.join("metadata.json")).unwrap()).unwrap()
}

/// The journal of a recording whose process has died.
pub fn left_behind(journal: &Path, stream_id: &str, sound: &[u8]) {
    std::fs::create_dir_all(journal).unwrap();
    let known = json!({
        "stream_id": stream_id, "started_at": 1, "duration_ms": 0, "size": 0, "sha256": "", "channels": 0,
        "participants": [], "complete": false,
    });
    for (name, content) in [
        ("session.json", known.to_string().as_bytes()),
        ("audio.ogg", sound),
        ("transcript.jsonl", b""),
    ] {
        std::fs::write(journal.join(name), content).unwrap();
    }
}
