//! Dialogue: the models of the third and fourth generation, which speak with several voices. Over a WebSocket each context
//! registers its voices first and is then sent inputs; over HTTP all inputs come at once. Here all voices sound alike.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};

use super::contexts::{Context, Contexts, Said, Told};
use super::tts::Asked;
use super::{Problem, by_key, catalogue, check_voice, key, output_format, query, refused};
use crate::socket::{Message, Socket, accept};
use crate::visit::Visit;
use crate::{Direction, Emulation, Vendor};

/// Characters that must have gathered before they are said.
const ENOUGH: usize = 40;
/// Voices of one dialogue.
pub(super) const MOST_VOICES: usize = 10;
/// How long a client may send nothing.
const IDLE: Duration = Duration::from_secs(20);

/// `GET /v1/text-to-dialogue/multi-stream-input`.
pub(super) async fn multi(
    request: HttpRequest,
    payload: web::Payload,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    let visit = emulation.visit(&request, Vendor::ElevenLabs, Direction::Tts);
    let key = key(&request, &["authorization", "single_use_token"]);
    let asked = match visit.admit(key.as_deref()) {
        Ok(()) => asked(&query(&request)),
        Err(refusal) if by_key(&refusal, key.as_deref(), &visit) => Err(Problem::new(
            refusal.status,
            "invalid_api_key",
            "Invalid API key",
        )),
        Err(refusal) => return Ok(refused(&refusal, &visit)),
    };
    accept(
        &request,
        payload,
        visit,
        async move |socket: &mut Socket| {
            let outcome = match asked {
                Ok(asked) => Speaking::new(asked).serve(socket).await,
                Err(problem) => Err(problem),
            };
            if let Err(problem) = outcome
                && socket.send_json(&problem.message()).await.is_ok()
            {
                socket.close(1008, problem.reason()).await;
            }
        },
    )
}

fn asked(query: &[(String, String)]) -> Result<Asked, Problem> {
    let value = |name: &str| {
        let pair = query.iter().find(|(known, _)| known == name);
        pair.map(|(_, value)| value.as_str())
    };
    for name in ["sync_alignment", "enable_logging"] {
        if !matches!(value(name), None | Some("true" | "false")) {
            return Err(Problem::invalid(format!("{name} must be true or false")));
        }
    }
    if !matches!(
        value("apply_text_normalization"),
        None | Some("auto" | "on" | "off")
    ) {
        return Err(Problem::invalid(
            "apply_text_normalization must be auto, on or off",
        ));
    }
    if value("seed").is_some_and(|seed| seed.parse::<u32>().is_err()) {
        return Err(Problem::invalid("seed must be from 0 to 4294967295"));
    }
    catalogue::speaks_dialogue(value("model_id").unwrap_or("eleven_v3"))?;
    Ok(Asked {
        format: output_format(value("output_format").unwrap_or("mp3_44100_128"), true)?,
        auto_mode: false,
        // The times of each message are those of its own sound.
        sync_alignment: true,
        patience: IDLE,
    })
}

/// A socket at work.
struct Speaking {
    asked: Asked,
    contexts: Contexts,
    /// The voices of contexts that are open.
    voices: Vec<(String, Vec<String>)>,
    /// Whether it closes when everything has been said.
    closing: bool,
}

impl Speaking {
    fn new(asked: Asked) -> Self {
        Self {
            asked,
            contexts: Contexts::default(),
            voices: Vec::new(),
            closing: false,
        }
    }

    async fn serve(mut self, socket: &mut Socket) -> Result<(), Problem> {
        let mut idle = socket.visit().timer(self.asked.patience);
        let limit = socket.visit().stream_limit(None);
        loop {
            if self.closing && self.contexts.is_empty() {
                // Leaving closes with 1000.
                return Ok(());
            }
            tokio::select! {
                message = socket.recv() => {
                    idle.restart();
                    match message {
                        Some(Message::Text(text)) => self.take(&text, socket.visit())?,
                        Some(Message::Binary(_)) => return Err(Problem::invalid("Messages are text")),
                        Some(Message::Close { .. }) | None => return Ok(()),
                    }
                }
                said = self.contexts.next() => {
                    if socket.send_json(&told(said?)).await.is_err() {
                        return Ok(());
                    }
                }
                () = idle.expired() => {
                    let words = "No message was received within 20 seconds; the connection ends";
                    return Err(Problem { code: "input_timeout_exceeded", ..Problem::invalid(words) });
                }
                () = limit.expired() => return Err(Problem::invalid("The connection has lasted as long as one may")),
            }
        }
    }

    fn take(&mut self, text: &str, visit: &Visit) -> Result<(), Problem> {
        let message: Value =
            serde_json::from_str(text).map_err(|error| Problem::invalid(error.to_string()))?;
        if message["close_socket"] == json!(true) {
            self.closing = true;
            return self.contexts.close_all(visit);
        }
        let Some(id) = message["context_id"].as_str() else {
            return Err(Problem::invalid("context_id is missing"));
        };
        if !message["voices"].is_null() {
            return self.register(id, &message, visit);
        }
        let voices = self.voices.iter().find(|(known, _)| known == id);
        let (Some(context), Some((_, voices))) = (self.contexts.find(id), voices) else {
            return Err(Problem::invalid(format!(
                "The context {id} is not open: its first message must register its voices"
            )));
        };
        if !message["voice_settings"].is_null() {
            return Err(Problem::invalid(
                "Settings go with the first message of a context only",
            ));
        }
        for input in message["inputs"].as_array().into_iter().flatten() {
            let (Some(text), Some(voice)) = (input["text"].as_str(), input["voice_id"].as_str())
            else {
                return Err(Problem::invalid("An input has a text and a voice_id"));
            };
            if !voices.iter().any(|known| known == voice) {
                return Err(Problem::invalid(format!(
                    "The voice {voice} is not registered in the context {id}"
                )));
            }
            context.text(text, false, visit)?;
        }
        if message["flush"] == json!(true) {
            context.flush(visit)?;
        }
        if message["close_context"] == json!(true) {
            // What it still holds is said.
            context.flush(visit)?;
            context.close();
            self.voices.retain(|(known, _)| known != id);
        }
        Ok(())
    }

    /// Opens a context.
    fn register(&mut self, id: &str, message: &Value, visit: &Visit) -> Result<(), Problem> {
        if self.contexts.has(id) {
            return Err(Problem::invalid(format!("The context {id} exists already")));
        }
        let voices: Option<Vec<String>> = serde_json::from_value(message["voices"].clone()).ok();
        let voices = voices.filter(|voices| (1..=MOST_VOICES).contains(&voices.len()));
        let voices =
            voices.ok_or_else(|| Problem::invalid("voices: a list of 1 to 10 ids of voices"))?;
        voices.iter().try_for_each(|voice| check_voice(voice))?;
        check_settings(&message["voice_settings"])?;
        visit.asked_by(message);
        let context = Context::new(id, &self.asked, 1.0, vec![ENOUGH]);
        self.contexts.add(context)?;
        self.voices.push((id.to_owned(), voices));
        Ok(())
    }
}

/// Of these models' settings only one has an effect.
pub(super) fn check_settings(settings: &Value) -> Result<(), Problem> {
    match &settings["stability"] {
        Value::Null => Ok(()),
        stability => stability
            .as_f64()
            .filter(|stability| (0.0..=1.0).contains(stability))
            .map(|_| ())
            .ok_or_else(|| Problem::invalid("stability must be from 0 to 1")),
    }
}

fn told(said: Said) -> Value {
    let mut message = match said.told {
        Told::Sound(audio, [alignment, normalized]) => json!({
            "audio": audio, "alignment": renamed(&alignment), "normalized_alignment": renamed(&normalized),
        }),
        Told::Generated => json!({"is_final_audio_for_turn": true}),
        Told::Ended => json!({"is_final": true}),
    };
    message["context_id"] = json!(said.context_id);
    message
}

/// An alignment by the names that it has here.
fn renamed(alignment: &Value) -> Value {
    if alignment.is_null() {
        return Value::Null;
    }
    json!({
        "chars": alignment["chars"],
        "char_start_times_ms": alignment["charStartTimesMs"],
        "char_durations_ms": alignment["charDurationsMs"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Asked, Problem> {
        let pairs = url::form_urlencoded::parse(text.as_bytes());
        asked(&pairs.into_owned().collect::<Vec<_>>())
    }

    #[test]
    fn what_the_plugins_ask_is_understood() {
        for query in [
            "model_id=eleven_v3&output_format=mp3_22050_32&enable_logging=true&apply_text_normalization=auto&sync_alignment=true",
            "model_id=eleven_v4_turbo&output_format=pcm_24000&sync_alignment=true&seed=7&language_code=en",
        ] {
            assert!(parsed(query).is_ok(), "{query}");
        }
    }

    #[test]
    fn what_the_vendor_refuses_is_refused() {
        for query in [
            "model_id=eleven_flash_v2_5",
            "model_id=nobody",
            "model_id=eleven_v3&output_format=wav_16000",
            "model_id=eleven_v3&apply_text_normalization=maybe",
            "model_id=eleven_v3&seed=-1",
        ] {
            assert!(parsed(query).is_err(), "{query}");
        }
        assert!(check_settings(&json!({"stability": 2})).is_err());
        assert!(check_settings(&json!({"stability": 0.5, "speed": 9})).is_ok());
    }

    #[test]
    fn messages_are_named_as_this_interface_does() {
        let alignment = json!({"chars": ["a"], "charStartTimesMs": [0], "charDurationsMs": [9]});
        let message = told(Said {
            context_id: "c".to_owned(),
            told: Told::Sound("AA==".to_owned(), [alignment, Value::Null]),
        });
        assert_eq!(
            message,
            json!({
                "context_id": "c", "audio": "AA==", "normalized_alignment": null,
                "alignment": {"chars": ["a"], "char_start_times_ms": [0], "char_durations_ms": [9]},
            })
        );
        let last = told(Said {
            context_id: "c".to_owned(),
            told: Told::Ended,
        });
        assert_eq!(last, json!({"context_id": "c", "is_final": true}));
    }
}
