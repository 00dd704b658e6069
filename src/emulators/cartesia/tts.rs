//! Synthesis: contexts over a WebSocket, whose text is collected until there is enough to say; and whole texts over HTTP, as
//! bytes or as server-sent events.

mod contexts;

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{Stream, stream};
use serde::Deserialize;
use serde_json::{Value, json};

use super::pcm::Raw;
use super::stt::invalid_model;
use super::{Caller, Problem, voices};
use crate::socket::accept;
use crate::speech::{Piece, Saying, Speech};
use crate::visit::Visit;
use crate::{Direction, Emulation};
use vivavoce_audio::wav::{self, DataLength};
use vivavoce_audio::{AudioFormat, Encoding, Layout, SampleRate};

const RATES: &[u32] = &[8_000, 16_000, 22_050, 24_000, 44_100, 48_000];
const MP3_BIT_RATES: &[u32] = &[32_000, 64_000, 96_000, 128_000, 192_000];
const SPEEDS: std::ops::RangeInclusive<f64> = 0.6..=1.5;

/// What every request for speech says.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Manner {
    model_id: String,
    voice: Voice,
    output_format: OutputFormat,
    generation_config: Option<GenerationConfig>,
    language: Option<String>,
    locale: Option<String>,
    #[serde(default)]
    add_timestamps: bool,
}

/// An id, alone or in an object.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
enum Voice {
    Id(String),
    Object { id: String },
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct OutputFormat {
    container: String,
    encoding: Option<String>,
    sample_rate: u32,
    bit_rate: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct GenerationConfig {
    speed: Option<f64>,
}

/// How sound leaves.
#[derive(Debug, Clone, Copy)]
struct Output {
    container: Container,
    raw: Raw,
    rate: SampleRate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Raw,
    Wav,
    Mp3,
}

/// A body of `/tts/bytes` and `/tts/sse`.
#[derive(Deserialize)]
struct Whole {
    #[serde(flatten)]
    manner: Manner,
    transcript: String,
    context_id: Option<String>,
}

impl Manner {
    /// How to say it, or what is wrong with it.
    fn check(&self) -> Result<(Output, Saying), Problem> {
        if !self.model_id.starts_with("sonic") {
            return Err(invalid_model());
        }
        let (Voice::Id(id) | Voice::Object { id }) = &self.voice;
        if !voices::exists(id) {
            return Err(voices::not_found());
        }
        if self.language.is_some() && self.locale.is_some() {
            let message = "A request may set language or locale, never both.";
            return Err(Problem::bad("Invalid language", message));
        }
        let speed = self
            .generation_config
            .as_ref()
            .and_then(|config| config.speed);
        let speed = speed.unwrap_or(1.0);
        if !SPEEDS.contains(&speed) {
            let message = "The speed must be between 0.6 and 1.5.";
            return Err(Problem::bad("Invalid speed", message));
        }
        let output = self.output_format.check()?;
        let encoding = match output.container {
            Container::Mp3 => Encoding::Mp3,
            Container::Raw | Container::Wav => output.raw.ours(),
        };
        let saying = Saying {
            speaking_rate: speed,
            format: AudioFormat::mono(encoding, output.rate),
        };
        Ok((output, saying))
    }
}

impl OutputFormat {
    fn check(&self) -> Result<Output, Problem> {
        let bad = |message: &str| Problem::bad("Invalid output format", message);
        let container = match self.container.as_str() {
            "raw" => Container::Raw,
            "wav" => Container::Wav,
            "mp3" => Container::Mp3,
            _ => return Err(bad("The container must be raw, wav or mp3.")),
        };
        if !RATES.contains(&self.sample_rate) {
            return Err(bad("The sample rate is not one of those that there are."));
        }
        let rate = SampleRate::new(self.sample_rate).map_err(|error| bad(&error.to_string()))?;
        if container == Container::Mp3 && !self.bit_rate.is_some_and(|r| MP3_BIT_RATES.contains(&r))
        {
            return Err(bad("The bit rate is not one of those that there are."));
        }
        let raw = match (container, self.encoding.as_deref()) {
            (Container::Mp3, _) => Raw::Ours(Encoding::Linear16),
            (_, Some("pcm_f32le")) => Raw::F32,
            (_, Some(name @ ("pcm_s16le" | "pcm_mulaw" | "pcm_alaw"))) => {
                Raw::named(name).unwrap_or(Raw::F32)
            }
            _ => return Err(bad("The encoding is not one of those that there are.")),
        };
        Ok(Output {
            container,
            raw,
            rate,
        })
    }
}

/// `/tts/websocket`.
pub(super) async fn websocket(
    request: HttpRequest,
    payload: web::Payload,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    match Caller::admit(&request, &emulation, Direction::Tts) {
        Ok(caller) => accept(&request, payload, caller.visit, contexts::serve),
        Err(answer) => Ok(*answer),
    }
}

/// `/tts/bytes`.
pub(super) async fn bytes(
    request: HttpRequest,
    body: Bytes,
    emulation: web::Data<Emulation>,
) -> HttpResponse {
    let caller = match Caller::admit(&request, &emulation, Direction::Tts) {
        Ok(caller) => caller,
        Err(answer) => return *answer,
    };
    let (_, output, speech) = match begin(&body, &caller.visit) {
        Ok(begun) => begun,
        Err(problem) => return caller.answer(&problem),
    };
    let mut response = HttpResponse::Ok();
    match output.container {
        Container::Wav => {
            response.content_type("audio/wav");
            match speech.whole().await {
                Ok(whole) => response.body(wave(&output.raw.write(whole.audio), output)),
                Err(error) => caller.answer(&Problem::inside(error)),
            }
        }
        Container::Raw | Container::Mp3 => {
            let mp3 = output.container == Container::Mp3;
            response.content_type(if mp3 {
                "audio/mpeg"
            } else {
                "application/octet-stream"
            });
            caller.visit.stream(response, raw(speech, output.raw))
        }
    }
}

/// `/tts/sse`.
pub(super) async fn sse(
    request: HttpRequest,
    body: Bytes,
    emulation: web::Data<Emulation>,
) -> HttpResponse {
    let caller = match Caller::admit(&request, &emulation, Direction::Tts) {
        Ok(caller) => caller,
        Err(answer) => return *answer,
    };
    let (whole, output, speech) = match begin(&body, &caller.visit) {
        Ok((_, output, _)) if output.container != Container::Raw => {
            let problem = Problem::bad("Invalid output format", "The container must be raw.");
            return caller.answer(&problem);
        }
        Ok(begun) => begun,
        Err(problem) => return caller.answer(&problem),
    };
    let mut response = HttpResponse::Ok();
    response.content_type("text/event-stream");
    let timestamps = whole.manner.add_timestamps;
    caller.visit.stream(
        response,
        events(speech, output.raw, whole.context_id, timestamps),
    )
}

fn begin(body: &[u8], visit: &Visit) -> Result<(Whole, Output, Speech), Problem> {
    let whole: Whole = serde_json::from_slice(body)
        .map_err(|error| Problem::bad("Invalid request", error.to_string()))?;
    if whole.transcript.trim().is_empty() {
        return Err(Problem::bad(
            "Invalid transcript",
            "The transcript is empty.",
        ));
    }
    let (output, saying) = whole.manner.check()?;
    let speech = visit
        .say(&whole.transcript, &saying)
        .map_err(Problem::inside)?;
    Ok((whole, output, speech))
}

fn raw(speech: Speech, raw: Raw) -> impl Stream<Item = Bytes> {
    stream::unfold(speech, move |mut speech| async move {
        let piece = speech.next().await?.ok()?;
        Some((raw.write(piece.audio), speech))
    })
}

fn events(
    speech: Speech,
    raw: Raw,
    context_id: Option<String>,
    timestamps: bool,
) -> impl Stream<Item = Bytes> {
    stream::unfold(Some(speech), move |speech| {
        let context_id = context_id.clone();
        async move {
            let mut speech = speech?;
            let (messages, rest) = match speech.next().await {
                Some(Ok(piece)) => (told(&piece, raw, Duration::ZERO, timestamps), Some(speech)),
                Some(Err(_)) | None => (vec![done()], None),
            };
            let mut lines = String::new();
            for mut message in messages {
                message["context_id"] = context_id.clone().into();
                let name = message["type"].as_str().unwrap_or_default();
                lines.push_str(&format!("event: {name}\ndata: {message}\n\n"));
            }
            Some((Bytes::from(lines), rest))
        }
    })
}

/// The messages about a piece of speech that begins so far into its context.
fn told(piece: &Piece, raw: Raw, offset: Duration, timestamps: bool) -> Vec<Value> {
    let mut messages = Vec::new();
    if timestamps && !piece.words.is_empty() {
        let seconds = |time: Duration| (offset + time).as_secs_f64();
        let words = piece.words.iter();
        messages.push(json!({
            "type": "timestamps", "done": false, "status_code": 206,
            "word_timestamps": {
                "words": words.clone().map(|word| word.word.as_str()).collect::<Vec<_>>(),
                "start": words.clone().map(|word| seconds(word.start)).collect::<Vec<_>>(),
                "end": words.map(|word| seconds(word.end)).collect::<Vec<_>>(),
            },
        }));
    }
    messages.push(json!({
        "type": "chunk", "done": false, "status_code": 206, "step_time": 12.3,
        "data": STANDARD.encode(raw.write(piece.audio.clone())),
    }));
    messages
}

fn done() -> Value {
    json!({"type": "done", "done": true, "status_code": 200})
}

/// Sound behind a RIFF header.
fn wave(sound: &[u8], output: Output) -> Bytes {
    let length = DataLength::Known(sound.len() as u32);
    let header = wav::header_of(output.raw.samples(), Layout::mono(output.rate), length);
    [&header[..], sound].concat().into()
}
