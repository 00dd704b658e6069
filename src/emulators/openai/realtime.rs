//! `GET /v1/realtime?intent=transcription`: transcripts as somebody speaks. What is heard between two commits is an item;
//! the client commits, or silence does where turns are detected. Conversations are not emulated.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix_web::http::header::SEC_WEBSOCKET_PROTOCOL;
use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::refused;
use crate::engine::{EngineError, Heard, Listening, Recogniser};
use crate::outlet::Gone;
use crate::socket::{Message, Socket, accept};
use crate::visit::{Visit, header_credential};
use crate::{Direction, Emulation, Vendor};
use vivavoce_audio::{AudioFormat, Encoding, SampleRate};

/// Models, and whether they only hear streams: those tell words while they are spoken, and leave commits to the client.
const MODELS: [(&str, bool); 7] = [
    ("whisper-1", false),
    ("gpt-transcribe", false),
    ("gpt-4o-transcribe", false),
    ("gpt-4o-mini-transcribe", false),
    ("gpt-4o-mini-transcribe-2025-12-15", false),
    ("gpt-realtime-whisper", true),
    ("gpt-live-transcribe", true),
];
/// What a session's sound is set by.
const INPUT: [&str; 4] = [
    "format",
    "noise_reduction",
    "transcription",
    "turn_detection",
];
/// Less sound than this is not committed.
const LEAST_COMMIT: Duration = Duration::from_millis(100);
/// The silence that ends a turn where the client does not say.
const SILENCE: Duration = Duration::from_millis(500);
/// The same where it depends on what was said.
const SEMANTIC_SILENCE: Duration = Duration::from_millis(800);
/// How long a session may last.
const LONGEST: Duration = Duration::from_hours(1);
/// The most base64 in an event.
const MOST_AUDIO: usize = 15 << 20;
/// Commits that may wait for their transcripts.
const MOST_WAITING: usize = 100;
/// What browsers put before their key when they offer it as a subprotocol.
const KEY_PROTOCOL: &str = "openai-insecure-api-key.";

/// Opens the socket.
pub(super) async fn open(
    request: HttpRequest,
    payload: web::Payload,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    let visit = emulation.visit(&request, Vendor::OpenAi, Direction::Stt);
    let key = header_credential(&request, "authorization").or_else(|| offered_key(&request));
    if let Err(refusal) = visit.admit(key) {
        return Ok(refused(&refusal, &visit));
    }
    let query = form_urlencoded::parse(request.query_string().as_bytes());
    let transcribes = query
        .into_iter()
        .any(|(name, value)| name == "intent" && value == "transcription");
    if !transcribes {
        let problem = "Conversations are not emulated: intent has to be transcription.";
        return Ok(super::Problem::of("intent", problem).response(&visit));
    }
    accept(&request, payload, visit, async move |socket| {
        // Whoever has gone is told nothing.
        let _ = Realtime::new(socket.visit().clone()).run(socket).await;
    })
}

fn offered_key(request: &HttpRequest) -> Option<&str> {
    let offered = request
        .headers()
        .get(SEC_WEBSOCKET_PROTOCOL)?
        .to_str()
        .ok()?;
    let mut offered = offered.split(',').map(str::trim);
    offered.find_map(|protocol| protocol.strip_prefix(KEY_PROTOCOL))
}

/// Why an event has no effect.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    code: &'static str,
    param: Option<String>,
    message: String,
}

impl Fault {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            param: None,
            message: message.into(),
        }
    }

    fn of(code: &'static str, param: &str, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.to_owned()),
            ..Self::new(code, message)
        }
    }
}

/// What is set for a session.
#[derive(Debug, Clone, PartialEq)]
struct Settings {
    /// As it is told.
    input: Value,
    format: AudioFormat,
    model: Option<String>,
    /// The silence that ends a turn; absent where the client says.
    silence: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            input: json!({
                "format": {"type": "audio/pcm", "rate": 24_000}, "noise_reduction": null, "transcription": null,
                "turn_detection": vad(),
            }),
            format: AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_24000),
            model: None,
            silence: Some(SILENCE),
        }
    }
}

fn vad() -> Value {
    json!({
        "type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": SILENCE.as_millis() as u64,
    })
}

impl Settings {
    /// Whether the model tells words while they are spoken.
    fn is_live(&self) -> bool {
        let live = |(name, live): &(&str, bool)| *live && self.model.as_deref() == Some(*name);
        MODELS.iter().any(live)
    }

    /// These with what a `session.update` changes.
    fn updated(&self, session: &Value) -> Result<Self, Fault> {
        if session["type"] != json!("transcription") {
            let message = "Passing a session of another type is not supported: 'session.type' must be 'transcription'.";
            return Err(Fault::of("invalid_value", "session.type", message));
        }
        known(session, "session", &["type", "audio", "include"])?;
        known(&session["audio"], "session.audio", &["input"])?;
        let wanted = &session["audio"]["input"];
        known(wanted, "session.audio.input", &INPUT)?;
        let mut new = self.clone();
        for (name, value) in wanted.as_object().into_iter().flatten() {
            new.input[name.as_str()] = value.clone();
        }
        new.format = format(&new.input["format"])?;
        new.model = model(&new.input["transcription"])?;
        let detection = wanted.get("turn_detection");
        if new.is_live() {
            if detection.is_some_and(|detection| !detection.is_null()) {
                let message = "Turn detection is not supported by this transcription model.";
                let param = "session.audio.input.turn_detection";
                return Err(Fault::of("invalid_value", param, message));
            }
            new.input["turn_detection"] = Value::Null;
        }
        new.silence = silence(&mut new.input["turn_detection"])?;
        Ok(new)
    }
}

/// Refuses fields that there are not.
fn known(object: &Value, place: &str, names: &[&str]) -> Result<(), Fault> {
    let mut keys = object.as_object().into_iter().flatten();
    match keys.find(|(name, _)| !names.contains(&name.as_str())) {
        Some((name, _)) => {
            let param = format!("{place}.{name}");
            let message = format!("Unknown parameter: '{param}'.");
            Err(Fault::of("unknown_parameter", &param, message))
        }
        None => Ok(()),
    }
}

fn format(format: &Value) -> Result<AudioFormat, Fault> {
    match (format["type"].as_str(), format["rate"].as_u64()) {
        (Some("audio/pcm"), None | Some(24_000)) => {
            Ok(AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_24000))
        }
        (Some("audio/pcmu"), _) => Ok(AudioFormat::mono(Encoding::Mulaw, SampleRate::HZ_8000)),
        (Some("audio/pcma"), _) => Ok(AudioFormat::mono(Encoding::Alaw, SampleRate::HZ_8000)),
        _ => Err(Fault::of(
            "invalid_value",
            "session.audio.input.format",
            "Supported formats are 'audio/pcm' at 24000 Hz, 'audio/pcmu' and 'audio/pcma'.",
        )),
    }
}

fn model(transcription: &Value) -> Result<Option<String>, Fault> {
    let place = "session.audio.input.transcription";
    if transcription.is_null() {
        return Ok(None);
    }
    let fields = [
        "model",
        "language",
        "languages",
        "prompt",
        "keywords",
        "delay",
    ];
    known(transcription, place, &fields)?;
    let model = transcription["model"].as_str().unwrap_or_default();
    if MODELS.iter().any(|(known, _)| *known == model) {
        Ok(Some(model.to_owned()))
    } else {
        let param = format!("{place}.model");
        let message = format!("Invalid value: '{model}'. It is no transcription model.");
        Err(Fault::of("invalid_value", &param, message))
    }
}

/// The silence of a turn detection, which is completed.
fn silence(detection: &mut Value) -> Result<Option<Duration>, Fault> {
    let place = "session.audio.input.turn_detection";
    match detection["type"].as_str() {
        None if detection.is_null() => Ok(None),
        Some("semantic_vad") => Ok(Some(SEMANTIC_SILENCE)),
        Some("server_vad") => {
            let mut whole = vad();
            for (name, value) in detection.as_object().into_iter().flatten() {
                whole[name.as_str()] = value.clone();
            }
            let ms = whole["silence_duration_ms"].as_u64();
            let ms = ms.filter(|ms| *ms <= 60_000).ok_or_else(|| {
                let param = format!("{place}.silence_duration_ms");
                Fault::of("invalid_value", &param, "It must be from 0 to 60000.")
            })?;
            *detection = whole;
            Ok(Some(Duration::from_millis(ms)))
        }
        _ => Err(Fault::of(
            "invalid_value",
            &format!("{place}.type"),
            "Supported values are: 'server_vad' and 'semantic_vad'.",
        )),
    }
}

/// A session at work.
struct Realtime {
    visit: Visit,
    settings: Settings,
    /// Opened with the first sound.
    recogniser: Option<Recogniser>,
    /// Sound that recognisers before it have heard.
    before: Duration,
    /// Up to where sound was committed or cleared.
    committed: Duration,
    /// The item that is being spoken, where turns are detected.
    speaking: Option<String>,
    /// Committed items whose transcripts were asked for.
    waiting: VecDeque<String>,
    /// The item that was committed last.
    previous: Option<String>,
    /// What was heard since the last transcript, and what was told of it.
    text: String,
    told: String,
    minted: u64,
}

impl Realtime {
    fn new(visit: Visit) -> Self {
        Self {
            visit,
            settings: Settings::default(),
            recogniser: None,
            before: Duration::ZERO,
            committed: Duration::ZERO,
            speaking: None,
            waiting: VecDeque::new(),
            previous: None,
            text: String::new(),
            told: String::new(),
            minted: 0,
        }
    }

    async fn run(&mut self, socket: &mut Socket) -> Result<(), Gone> {
        let limit = self.visit.stream_limit(Some(LONGEST));
        let session = json!({"session": self.session()});
        self.send("session.created", session, socket).await?;
        loop {
            tokio::select! {
                message = socket.recv() => match message {
                    Some(Message::Text(text)) => self.take(&text, socket).await?,
                    Some(Message::Binary(_)) => {
                        let fault = Fault::new("invalid_event", "Events are text.");
                        self.tell(fault, &Value::Null, socket).await?;
                    }
                    Some(Message::Close { .. }) | None => return Err(Gone),
                },
                heard = next(self.recogniser.as_mut()) => match heard {
                    Some(Ok(heard)) => self.heard(heard, socket).await?,
                    Some(Err(error)) => self.fail(&error, socket).await?,
                    None => self.recogniser = None,
                },
                () = limit.expired() => {
                    let message = "Your session hit the maximum duration of 60 minutes.";
                    let fault = Fault::new("session_expired", message);
                    self.tell(fault, &Value::Null, socket).await?;
                    socket.close(1001, "").await;
                    return Ok(());
                }
            }
        }
    }

    async fn take(&mut self, text: &str, socket: &Socket) -> Result<(), Gone> {
        let event: Value = match serde_json::from_str(text) {
            Ok(event @ Value::Object(_)) => event,
            _ => {
                let fault = Fault::new("invalid_json", "The event is no JSON object.");
                return self.tell(fault, &Value::Null, socket).await;
            }
        };
        let taken = match event["type"].as_str().unwrap_or_default() {
            "session.update" => self.update(&event["session"], socket).await?,
            "input_audio_buffer.append" => self.append(&event["audio"]).await,
            "input_audio_buffer.commit" => self.commit(socket).await?,
            "input_audio_buffer.clear" => {
                self.begin_anew();
                self.send("input_audio_buffer.cleared", json!({}), socket)
                    .await?;
                Ok(())
            }
            other => Err(Fault::of(
                "invalid_value",
                "type",
                format!("Invalid value: '{other}'. It is no event of a transcription session."),
            )),
        };
        match taken {
            Ok(()) => Ok(()),
            Err(fault) => self.tell(fault, &event["event_id"], socket).await,
        }
    }

    async fn update(&mut self, wanted: &Value, socket: &Socket) -> Result<Result<(), Fault>, Gone> {
        self.visit.asked_by(wanted);
        let new = match self.settings.updated(wanted) {
            Ok(new) => new,
            Err(fault) => return Ok(Err(fault)),
        };
        if (new.format, new.silence) != (self.settings.format, self.settings.silence) {
            self.begin_anew();
        }
        self.settings = new;
        let session = json!({"session": self.session()});
        self.send("session.updated", session, socket).await?;
        Ok(Ok(()))
    }

    async fn append(&mut self, audio: &Value) -> Result<(), Fault> {
        let audio = audio.as_str().filter(|audio| audio.len() <= MOST_AUDIO);
        let audio = audio.and_then(|audio| STANDARD.decode(audio).ok());
        let Some(audio) = audio else {
            let message = "Invalid 'audio'. Expected base64-encoded audio bytes of at most 15 MiB.";
            return Err(Fault::of("invalid_value", "audio", message));
        };
        if self.recogniser.is_none() {
            let listening = Listening {
                format: self.settings.format,
                endpointing: self.settings.silence,
            };
            let opened = self.visit.listen(listening).await;
            self.recogniser = Some(opened.map_err(|error| failed(&error))?);
        }
        match &mut self.recogniser {
            Some(recogniser) => recogniser
                .push(&audio)
                .await
                .map_err(|error| failed(&error)),
            None => Ok(()),
        }
    }

    /// Commits what was said since the last commit.
    async fn commit(&mut self, socket: &Socket) -> Result<Result<(), Fault>, Gone> {
        let length = self.position().saturating_sub(self.committed);
        if length < LEAST_COMMIT || self.waiting.len() >= MOST_WAITING {
            let message = format!(
                "Error committing input audio buffer: buffer too small. Expected at least 100ms of audio, but buffer only has {:.2}ms of audio.",
                length.as_secs_f64() * 1_000.0
            );
            return Ok(Err(Fault::new("input_audio_buffer_commit_empty", message)));
        }
        let item = self.speaking.take().unwrap_or_else(|| self.item());
        self.committed(&item, socket).await?;
        self.waiting.push_back(item);
        if let Some(recogniser) = &mut self.recogniser {
            recogniser.finalize().await;
        }
        Ok(Ok(()))
    }

    /// Forgets what was heard and not committed.
    fn begin_anew(&mut self) {
        self.before = self.position();
        self.committed = self.before;
        self.recogniser = None;
        self.speaking = None;
        self.waiting.clear();
        self.text.clear();
        self.told.clear();
    }

    /// How much sound was taken in all.
    fn position(&self) -> Duration {
        let current = self.recogniser.as_ref().map(Recogniser::position);
        self.before + current.unwrap_or_default()
    }

    async fn heard(&mut self, heard: Heard, socket: &Socket) -> Result<(), Gone> {
        let detects = self.settings.silence.is_some();
        match heard {
            Heard::SpeechStarted { at } if detects && self.speaking.is_none() => {
                let item = self.item();
                let event = json!({"audio_start_ms": ms(self.before + at), "item_id": item});
                self.speaking = Some(item);
                self.send("input_audio_buffer.speech_started", event, socket)
                    .await?;
            }
            Heard::Partial(partial) if self.settings.is_live() => {
                let text = joined(&self.text, &partial.text);
                self.delta(&text, socket).await?;
            }
            Heard::Final(transcript) => {
                self.text = joined(&self.text, &transcript.text);
                if self.settings.is_live() {
                    let text = self.text.clone();
                    self.delta(&text, socket).await?;
                }
            }
            Heard::EndOfSpeech { at } if detects => {
                let Some(item) = self.speaking.take() else {
                    return Ok(());
                };
                let event = json!({"audio_end_ms": ms(self.before + at), "item_id": item});
                self.send("input_audio_buffer.speech_stopped", event, socket)
                    .await?;
                self.committed(&item, socket).await?;
                self.complete(&item, socket).await?;
            }
            Heard::Finalized { .. } => {
                if let Some(item) = self.waiting.pop_front() {
                    self.complete(&item, socket).await?;
                }
            }
            Heard::SpeechStarted { .. } | Heard::Partial(_) | Heard::EndOfSpeech { .. } => {}
        }
        Ok(())
    }

    /// Tells that an item is committed.
    async fn committed(&mut self, item: &str, socket: &Socket) -> Result<(), Gone> {
        self.committed = self.position();
        let previous = self.previous.replace(item.to_owned());
        let event = json!({"item_id": item, "previous_item_id": previous});
        self.send("input_audio_buffer.committed", event, socket)
            .await?;
        for name in ["conversation.item.added", "conversation.item.done"] {
            let event = json!({"previous_item_id": previous, "item": {
                "id": item, "object": "realtime.item", "type": "message", "status": "completed", "role": "user",
                "content": [{"type": "input_audio", "transcript": null}],
            }});
            self.send(name, event, socket).await?;
        }
        Ok(())
    }

    /// The item that is being heard.
    fn current(&mut self) -> String {
        let committed = self.waiting.front().cloned();
        committed.unwrap_or_else(|| {
            if self.speaking.is_none() {
                self.speaking = Some(self.item());
            }
            self.speaking.clone().unwrap_or_default()
        })
    }

    /// Tells what has come to a text: what was told stays.
    async fn delta(&mut self, text: &str, socket: &Socket) -> Result<(), Gone> {
        let Some(more) = text
            .strip_prefix(&self.told)
            .filter(|more| !more.is_empty())
        else {
            return Ok(());
        };
        let event = json!({"item_id": self.current(), "content_index": 0, "delta": more});
        self.told = text.to_owned();
        let name = "conversation.item.input_audio_transcription.delta";
        self.send(name, event, socket).await
    }

    /// Tells the transcript of an item.
    async fn complete(&mut self, item: &str, socket: &Socket) -> Result<(), Gone> {
        let text = std::mem::take(&mut self.text);
        let told = std::mem::take(&mut self.told);
        let Some(model) = self.settings.model.clone() else {
            return Ok(());
        };
        let rest = text.strip_prefix(&told).unwrap_or_default();
        for delta in rest.split_inclusive(' ') {
            let event = json!({"item_id": item, "content_index": 0, "delta": delta});
            let name = "conversation.item.input_audio_transcription.delta";
            self.send(name, event, socket).await?;
        }
        let usage = if model == "whisper-1" {
            json!({"type": "duration", "seconds": 1})
        } else {
            json!({
                "type": "tokens", "input_tokens": 10, "input_token_details": {"text_tokens": 0, "audio_tokens": 10},
                "output_tokens": 1, "total_tokens": 11,
            })
        };
        let event =
            json!({"item_id": item, "content_index": 0, "transcript": text, "usage": usage});
        let name = "conversation.item.input_audio_transcription.completed";
        self.send(name, event, socket).await
    }

    /// What was being heard is lost; the session goes on.
    async fn fail(&mut self, error: &EngineError, socket: &Socket) -> Result<(), Gone> {
        let mut lost: Vec<String> = self.waiting.drain(..).collect();
        lost.extend(self.speaking.take());
        self.begin_anew();
        for item in lost {
            let event = json!({"item_id": item, "content_index": 0, "error": {
                "type": "server_error", "code": "transcription_failed", "message": error.to_string(), "param": null,
            }});
            let name = "conversation.item.input_audio_transcription.failed";
            self.send(name, event, socket).await?;
        }
        Ok(())
    }

    async fn tell(&mut self, fault: Fault, cause: &Value, socket: &Socket) -> Result<(), Gone> {
        let event = json!({"error": {
            "type": "invalid_request_error", "code": fault.code, "message": fault.message, "param": fault.param,
            "event_id": cause,
        }});
        self.send("error", event, socket).await
    }

    async fn send(&mut self, name: &str, mut event: Value, socket: &Socket) -> Result<(), Gone> {
        event["type"] = json!(name);
        event["event_id"] = json!(self.mint("event"));
        socket.send_json(&event).await
    }

    fn session(&self) -> Value {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let expires = now.unwrap_or_default() + LONGEST;
        json!({
            "type": "transcription", "object": "realtime.transcription_session",
            "id": format!("sess_{}", self.visit.request_id().simple()), "expires_at": expires.as_secs(),
            "audio": {"input": self.settings.input}, "include": null,
        })
    }

    fn item(&mut self) -> String {
        self.mint("item")
    }

    /// A new id.
    fn mint(&mut self, kind: &str) -> String {
        self.minted += 1;
        format!(
            "{kind}_{}_{}",
            self.visit.request_id().simple(),
            self.minted
        )
    }
}

/// What is heard next; never where nobody listens.
async fn next(recogniser: Option<&mut Recogniser>) -> Option<Result<Heard, EngineError>> {
    match recogniser {
        Some(recogniser) => recogniser.next().await,
        None => std::future::pending().await,
    }
}

fn failed(error: &EngineError) -> Fault {
    Fault::new("server_error", error.to_string())
}

fn joined(before: &str, after: &str) -> String {
    let space = if before.is_empty() || after.is_empty() {
        ""
    } else {
        " "
    };
    format!("{before}{space}{after}")
}

fn ms(time: Duration) -> u64 {
    time.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(input: &Value) -> Value {
        json!({"type": "transcription", "audio": {"input": input}})
    }

    #[test]
    fn what_the_plugins_ask_is_understood() {
        let settings = Settings::default()
            .updated(&session(&json!({
                "format": {"type": "audio/pcm", "rate": 24_000},
                "transcription": {"model": "gpt-4o-mini-transcribe", "language": "en", "prompt": ""},
                "turn_detection": {"type": "server_vad", "silence_duration_ms": 350},
            })))
            .unwrap();
        assert_eq!(settings.silence, Some(Duration::from_millis(350)));
        assert_eq!(settings.input["turn_detection"]["threshold"], 0.5);
        let settings = settings
            .updated(&session(&json!({"turn_detection": null})))
            .unwrap();
        assert_eq!(settings.silence, None);
        assert_eq!(settings.model.as_deref(), Some("gpt-4o-mini-transcribe"));
    }

    #[test]
    fn a_model_that_only_hears_streams_detects_no_turns() {
        let transcription = json!({"model": "gpt-realtime-whisper"});
        let asked = session(&json!({"transcription": transcription}));
        let settings = Settings::default().updated(&asked).unwrap();
        assert_eq!((settings.silence, settings.is_live()), (None, true));
        let asked = session(&json!({"transcription": transcription, "turn_detection": vad()}));
        assert!(Settings::default().updated(&asked).is_err());
    }

    #[test]
    fn what_the_vendor_refuses_is_refused() {
        for (asked, param) in [
            (json!({"type": "realtime"}), "session.type"),
            (
                json!({"type": "transcription", "voice": "alloy"}),
                "session.voice",
            ),
            (session(&json!({"vad": null})), "session.audio.input.vad"),
            (
                session(&json!({"format": {"type": "audio/pcm", "rate": 16_000}})),
                "session.audio.input.format",
            ),
            (
                session(&json!({"transcription": {"model": "tts-1"}})),
                "session.audio.input.transcription.model",
            ),
            (
                session(&json!({"turn_detection": {"type": "none"}})),
                "session.audio.input.turn_detection.type",
            ),
        ] {
            let fault = Settings::default().updated(&asked).unwrap_err();
            assert_eq!(fault.param.as_deref(), Some(param), "{asked}");
        }
    }
}
