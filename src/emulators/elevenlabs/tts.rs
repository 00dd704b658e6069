//! Synthesis over both WebSockets: a single context that ends with the socket, or several named ones. What a context does
//! with its text is in [`super::contexts`].

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};

use super::contexts::{Context, Contexts, Said, Told};
use super::{Problem, by_key, catalogue, check_voice, key, output_format, query, refused, speed};
use crate::socket::{Message, Socket, accept};
use crate::{Direction, Emulation, Vendor};
use vivavoce_audio::AudioFormat;

/// What the query asks for.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    /// The format of the sound.
    pub(super) format: AudioFormat,
    /// Whether text is said as it comes.
    pub(super) auto_mode: bool,
    /// Whether each message tells its characters.
    pub(super) sync_alignment: bool,
    /// How long a client may send nothing.
    pub(super) patience: Duration,
}

/// `GET …/stream-input`.
pub(super) async fn single(
    request: HttpRequest,
    payload: web::Payload,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    open(&request, payload, &emulation, false)
}

/// `GET …/multi-stream-input`.
pub(super) async fn multi(
    request: HttpRequest,
    payload: web::Payload,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    open(&request, payload, &emulation, true)
}

fn open(
    request: &HttpRequest,
    payload: web::Payload,
    emulation: &web::Data<Emulation>,
    many: bool,
) -> Result<HttpResponse, actix_web::Error> {
    let visit = emulation.visit(request, Vendor::ElevenLabs, Direction::Tts);
    let key = key(request, &["authorization", "single_use_token"]);
    let known = match visit.admit(key.as_deref()) {
        Ok(()) => true,
        // The key may come with the first message.
        Err(refusal) if by_key(&refusal, key.as_deref(), &visit) => false,
        Err(refusal) => return Ok(refused(&refusal, &visit)),
    };
    let voice = request.match_info().query("voice_id");
    let asked = check_voice(voice).and_then(|()| Asked::parse(&query(request)));
    accept(request, payload, visit, async move |socket: &mut Socket| {
        let outcome = match asked {
            Ok(asked) => Speaking::new(asked, known, many).serve(socket).await,
            Err(problem) => Err(problem),
        };
        if let Err(problem) = outcome
            && socket.send_json(&problem.message()).await.is_ok()
        {
            socket.close(1008, problem.reason()).await;
        }
    })
}

impl Asked {
    fn parse(query: &[(String, String)]) -> Result<Self, Problem> {
        let value = |name: &str| {
            let pair = query.iter().find(|(known, _)| known == name);
            pair.map(|(_, value)| value.as_str())
        };
        let flag = |name: &str| match value(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Problem::invalid(format!("{name} must be true or false"))),
        };
        catalogue::speaks_on_sockets(value("model_id").unwrap_or("eleven_multilingual_v2"))?;
        let seconds = value("inactivity_timeout").map_or(Some(20), |text| text.parse().ok());
        let seconds = seconds.filter(|seconds| (1..=180).contains(seconds));
        let seconds =
            seconds.ok_or_else(|| Problem::invalid("inactivity_timeout must be from 1 to 180"))?;
        flag("enable_ssml_parsing")?;
        Ok(Self {
            format: output_format(value("output_format").unwrap_or("mp3_44100_128"), true)?,
            auto_mode: flag("auto_mode")?,
            sync_alignment: flag("sync_alignment")?,
            patience: Duration::from_secs(seconds),
        })
    }
}

/// A socket at work.
struct Speaking {
    asked: Asked,
    /// Whether the client has shown a good key.
    known: bool,
    many: bool,
    contexts: Contexts,
    /// Whether it closes when everything has been said.
    closing: bool,
}

impl Speaking {
    fn new(asked: Asked, known: bool, many: bool) -> Self {
        Self {
            asked,
            known,
            many,
            contexts: Contexts::default(),
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
                        Some(Message::Text(text)) => self.take(&text, socket)?,
                        Some(Message::Binary(_)) => return Err(Problem::invalid("Messages are text")),
                        Some(Message::Close { .. }) | None => return Ok(()),
                    }
                }
                said = self.contexts.next() => {
                    if let Some(message) = self.told(said?)
                        && socket.send_json(&message).await.is_err()
                    {
                        return Ok(());
                    }
                }
                () = idle.expired() => {
                    let seconds = self.asked.patience.as_secs();
                    let words = format!("No new text input was received within {seconds} seconds; the stream ends");
                    return Err(Problem { code: "input_timeout_exceeded", ..Problem::invalid(words) });
                }
                () = limit.expired() => return Err(Problem::invalid("The connection has lasted as long as one may")),
            }
        }
    }

    fn told(&self, said: Said) -> Option<Value> {
        let mut message = match said.told {
            Told::Sound(audio, [alignment, normalized]) => json!({
                "audio": audio, "isFinal": null, "alignment": alignment, "normalizedAlignment": normalized,
            }),
            Told::Generated => return None,
            Told::Ended => {
                json!({"audio": null, "isFinal": true, "alignment": null, "normalizedAlignment": null})
            }
        };
        if self.many {
            message["contextId"] = json!(said.context_id);
        }
        Some(message)
    }

    fn take(&mut self, text: &str, socket: &Socket) -> Result<(), Problem> {
        let message: Value =
            serde_json::from_str(text).map_err(|error| Problem::invalid(error.to_string()))?;
        if !message.is_object() {
            return Err(Problem::invalid("A message is an object"));
        }
        self.check_key(&message, socket)?;
        if self.many {
            self.take_named(&message, socket)
        } else {
            self.take_only(&message, socket)
        }
    }

    /// The first message may bring the key.
    fn check_key(&mut self, message: &Value, socket: &Socket) -> Result<(), Problem> {
        let key = ["xi_api_key", "xi-api-key", "authorization"]
            .iter()
            .find_map(|name| message[*name].as_str())
            .unwrap_or_default();
        self.known |= socket.visit().emulation().admits(super::credential(key));
        if self.known {
            return Ok(());
        }
        let status = actix_web::http::StatusCode::UNAUTHORIZED;
        Err(Problem::new(status, "invalid_api_key", "Invalid API key"))
    }

    fn take_only(&mut self, message: &Value, socket: &Socket) -> Result<(), Problem> {
        let text = message["text"].as_str();
        let text = text.ok_or_else(|| Problem::invalid("text is missing"))?;
        if self.closing {
            return Err(Problem::invalid("The stream has been ended"));
        }
        if self.contexts.find("").is_none() {
            if text != " " {
                return Err(Problem::invalid(
                    "The first message must have a single space as its text",
                ));
            }
            return self.begin("", message, socket);
        }
        let asked = self.asked.clone();
        let Some(context) = self.contexts.find("") else {
            return Ok(());
        };
        if text.is_empty() {
            context.flush(socket.visit())?;
            context.close();
            self.closing = true;
            return Ok(());
        }
        let trigger = message["try_trigger_generation"] == json!(true);
        context.text(text, asked.auto_mode || trigger, socket.visit())?;
        if message["flush"] == json!(true) {
            context.flush(socket.visit())?;
        }
        Ok(())
    }

    fn take_named(&mut self, message: &Value, socket: &Socket) -> Result<(), Problem> {
        if message["close_socket"] == json!(true) {
            self.closing = true;
            return self.contexts.close_all(socket.visit());
        }
        let id = message["context_id"]
            .as_str()
            .or_else(|| message["contextId"].as_str());
        let id = id.unwrap_or("default").to_owned();
        if message["close_context"] == json!(true) {
            if let Some(context) = self.contexts.find(&id) {
                context.close();
            }
            return Ok(());
        }
        let settings = [
            "voice_settings",
            "generation_config",
            "pronunciation_dictionary_locators",
        ];
        if self.contexts.find(&id).is_none() {
            self.begin(&id, message, socket)?;
        } else if settings.iter().any(|name| !message[*name].is_null()) {
            return Err(Problem::invalid(
                "Settings go with the first message of a context only",
            ));
        }
        let auto_mode = self.asked.auto_mode;
        let Some(context) = self.contexts.find(&id) else {
            return Ok(());
        };
        if let Some(text) = message["text"]
            .as_str()
            .filter(|text| !text.trim().is_empty())
        {
            context.text(text, auto_mode, socket.visit())?;
        }
        if message["flush"] == json!(true) {
            context.flush(socket.visit())?;
        }
        Ok(())
    }

    fn begin(&mut self, id: &str, message: &Value, socket: &Socket) -> Result<(), Problem> {
        let schedule = match &message["generation_config"]["chunk_length_schedule"] {
            Value::Null => vec![120, 160, 250, 290],
            schedule => serde_json::from_value::<Vec<usize>>(schedule.clone())
                .ok()
                .filter(|schedule| {
                    !schedule.is_empty() && schedule.iter().all(|least| (5..=500).contains(least))
                })
                .ok_or_else(|| Problem::invalid("chunk_length_schedule: numbers from 5 to 500"))?,
        };
        let speed = speed(&message["voice_settings"])?;
        socket.visit().note(format!("context {id} speed {speed}"));
        socket.visit().asked_by(message);
        self.contexts
            .add(Context::new(id, &self.asked, speed, schedule))
    }
}
