//! What a caller hears for whom there is no agent: a session of the server's own enters the room, if the call is in one, says the
//! text of the settings in the default voice, and hangs up.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;

use vivavoce_seams::ProviderTable;
use vivavoce_socket::{Frames, Input, text_frame_of_server};

/// The longest apology, from entering the room to hanging up.
const LONGEST: Duration = Duration::from_mins(1);
/// Bytes between the apology and its session.
pub(crate) const BUFFER: usize = 64 << 10;

/// Apologises over the far end of a session's socket, in the place of an agent. Ends when the call has.
pub(crate) async fn apologise(
    mut far: DuplexStream,
    providers: &ProviderTable,
    room: Option<&str>,
    text: &str,
) {
    // A session hears and speaks.
    let hears = slug(&providers.speech_to_text_slugs());
    let speaks = slug(&providers.text_to_speech_slugs());
    let config = json!({
        "type": "config",
        "stt_config": {"provider": hears},
        "tts_config": {"provider": speaks, "model": ""},
        "vad": {"enabled": false},
        "rtc": room.map(|room| json!({"room_name": room, "empty_timeout_seconds": 1})),
    });
    let speak = json!({"type": "speak", "text": text, "allow_interruption": false});
    let conversation = async {
        say(&mut far, &config).await?;
        let mut frames = Frames::default();
        let mut bytes = vec![0; BUFFER];
        let mut hung_up = false;
        loop {
            let read = far.read(&mut bytes).await?;
            if read == 0 {
                return Ok(());
            }
            frames.push(bytes.get(..read).unwrap_or_default());
            while let Ok(Some(input)) = frames.next_frame() {
                let Input::Text(event) = input else { continue };
                let event: Value = serde_json::from_str(&event).unwrap_or_default();
                match event["type"].as_str() {
                    Some("ready") => say(&mut far, &speak).await?,
                    Some("tts_playback_complete" | "tts_interrupted") => {
                        hung_up = true;
                        say(&mut far, &json!({"type": "hangup"})).await?;
                    }
                    // There is no telephone to hang up, or nothing that could do it.
                    Some("error") if hung_up || event["fatal"] == true => return Ok(()),
                    Some("error") => {
                        tracing::warn!(
                            code = event["code"].as_str(),
                            "an apology could not be said"
                        );
                        hung_up = true;
                        say(&mut far, &json!({"type": "hangup"})).await?;
                    }
                    Some("sip_call") if event["status"] == "hangup" => return Ok(()),
                    _ => {}
                }
            }
        }
    };
    // Its session ends with its socket.
    let _ended: Result<std::io::Result<()>, _> = timeout(LONGEST, conversation).await;
}

/// The local engine where there is one.
fn slug(known: &[&'static str]) -> &'static str {
    let local = known.iter().find(|slug| **slug == "local");
    local.or(known.first()).copied().unwrap_or("local")
}

async fn say(far: &mut DuplexStream, message: &Value) -> std::io::Result<()> {
    far.write_all(&text_frame_of_server(message.to_string()))
        .await
}
