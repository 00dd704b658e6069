//! `/v1/speak`: Aura, over a WebSocket and over HTTP. On a WebSocket text is collected until it is flushed, and flushes are
//! spoken in order.

use std::collections::VecDeque;
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::http::header::CONTENT_TYPE;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::models::{has_voice, uuid};
use super::query::{Problem, Query};
use super::{Direction, Emulation, admitted, bad_request, failure};
use crate::engine::EngineError;
use crate::outlet::Gone;
use crate::socket::{Message, Socket, accept};
use crate::speech::{Piece, Saying, Speech};
use crate::visit::Visit;
use vivavoce_audio::g711::Law;
use vivavoce_audio::wav::{self, DataLength, SampleFormat};
use vivavoce_audio::{AudioFormat, Encoding, Layout, SampleRate};

const DEFAULT_MODEL: &str = "aura-asteria-en";
/// Of one request, and of what may wait to be flushed.
const MAX_CHARS: usize = 2_000;
/// Flushes that are taken within [`FLUSH_WINDOW`].
const MAX_FLUSHES: usize = 20;
const FLUSH_WINDOW: Duration = Duration::from_mins(1);
/// A socket on which nothing is said.
const IDLE: Duration = Duration::from_mins(1);
const LONGEST: Duration = Duration::from_hours(1);

/// Rates of linear16, over both ways.
const LINEAR_RATES: &[u32] = &[8_000, 16_000, 24_000, 32_000, 48_000];
const COMPANDED_RATES: &[u32] = &[8_000, 16_000];

/// Voices that are spoken with in the same way.
pub(super) struct Family {
    /// The voice that a query names and how fast it shall speak.
    pub(super) voice: fn(&Query) -> Result<(String, f64), Problem>,
    /// Rates of linear16.
    pub(super) linear_rates: &'static [u32],
}

const AURA: Family = Family {
    voice,
    linear_rates: LINEAR_RATES,
};

/// What is to be said in which way.
pub(super) struct Wanted {
    pub(super) model: String,
    pub(super) saying: Saying,
    /// Whether a header comes first, which says how long the sound is.
    wav: bool,
    content_type: String,
}

fn voice(query: &Query) -> Result<(String, f64), Problem> {
    let model = query.text("model").unwrap_or(DEFAULT_MODEL);
    if !has_voice(model) {
        return Err(format!("No such model: {model}."));
    }
    let speed = query.number("speed", 0.7, 1.5)?;
    let adjustable =
        model.starts_with("aura-2-") && (model.ends_with("-en") || model.ends_with("-es"));
    if speed.is_some() && !adjustable {
        return Err(format!("speed is not supported with {model}."));
    }
    Ok((model.to_owned(), speed.unwrap_or(1.0)))
}

/// One of these rates, the default where none is asked for.
fn rate(query: &Query, rates: &[u32], default: u32) -> Result<SampleRate, Problem> {
    let hz = query
        .number("sample_rate", 0_u32, u32::MAX)?
        .unwrap_or(default);
    if !rates.contains(&hz) {
        return Err(format!("Unsupported sample_rate: {hz}."));
    }
    SampleRate::new(hz).map_err(|error| error.to_string())
}

/// What a socket can be asked for: headerless sound only.
pub(super) fn wanted_on_socket(family: &Family, query: &Query) -> Result<Wanted, Problem> {
    let (model, speaking_rate) = (family.voice)(query)?;
    let (encoding, rate) = match query.text("encoding").unwrap_or("linear16") {
        "linear16" => (
            Encoding::Linear16,
            rate(query, family.linear_rates, 24_000)?,
        ),
        "mulaw" => (Encoding::Mulaw, rate(query, COMPANDED_RATES, 8_000)?),
        "alaw" => (Encoding::Alaw, rate(query, COMPANDED_RATES, 8_000)?),
        other => return Err(format!("Unsupported encoding: {other}.")),
    };
    Ok(Wanted {
        model,
        saying: Saying {
            speaking_rate,
            format: AudioFormat::mono(encoding, rate),
        },
        wav: false,
        content_type: String::new(),
    })
}

/// What a request can be asked for. Of the vendor's formats, FLAC and AAC are not to be had here.
fn wanted_by_request(family: &Family, query: &Query) -> Result<Wanted, Problem> {
    let (model, speaking_rate) = (family.voice)(query)?;
    let encoding = query.text("encoding").unwrap_or("mp3");
    let container = query.text("container");
    let wav = match (encoding, container) {
        ("linear16" | "mulaw" | "alaw", None | Some("wav")) => true,
        ("linear16" | "mulaw" | "alaw", Some("none"))
        | ("mp3", None)
        | ("opus", None | Some("ogg")) => false,
        _ => {
            return Err(format!(
                "Unsupported combination of encoding {encoding} and container."
            ));
        }
    };
    if matches!(encoding, "mp3" | "opus") && query.has("sample_rate") {
        return Err(format!(
            "sample_rate is not applicable when encoding={encoding}."
        ));
    }
    query.number("bit_rate", 4_000, 650_000)?;
    let (encoding, rate, kind) = match encoding {
        "linear16" => (
            Encoding::Linear16,
            rate(query, family.linear_rates, 24_000)?,
            "audio/l16",
        ),
        "mulaw" => (
            Encoding::Mulaw,
            rate(query, COMPANDED_RATES, 8_000)?,
            "audio/mulaw",
        ),
        "alaw" => (
            Encoding::Alaw,
            rate(query, COMPANDED_RATES, 8_000)?,
            "audio/alaw",
        ),
        "opus" => (
            Encoding::OggOpus,
            SampleRate::HZ_48000,
            "audio/ogg;codecs=opus",
        ),
        _ => {
            let rate = SampleRate::new(22_050_u32).map_err(|error| error.to_string())?;
            (Encoding::Mp3, rate, "audio/mpeg")
        }
    };
    let content_type = match encoding {
        _ if wav => "audio/wav".to_owned(),
        Encoding::Mp3 | Encoding::OggOpus => kind.to_owned(),
        _ => format!("{kind};rate={}", rate.hz()),
    };
    Ok(Wanted {
        model,
        saying: Saying {
            speaking_rate,
            format: AudioFormat::mono(encoding, rate),
        },
        wav,
        content_type,
    })
}

/// A text as it is spoken: of a pronunciation in it, the word. That there was one is noted.
pub(super) fn spoken(text: &str, visit: &Visit) -> String {
    #[derive(Deserialize)]
    struct Pronunciation {
        word: String,
    }
    let mut spoken = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, inside)) = rest.split_once(r"\{") {
        spoken.push_str(before);
        let Some((inside, after)) = inside.split_once(r"\}") else {
            rest = inside;
            continue;
        };
        if let Ok(pronunciation) = serde_json::from_str::<Pronunciation>(&format!("{{{inside}}}")) {
            visit.note("a pronunciation");
            spoken.push_str(&pronunciation.word);
        }
        rest = after;
    }
    spoken + rest
}

/// `POST /v1/speak`.
pub(super) async fn answer(
    request: HttpRequest,
    body: Bytes,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    say_whole(&AURA, &request, &body, &emulation).await
}

/// The same by any family.
pub(super) async fn say_whole(
    family: &Family,
    request: &HttpRequest,
    body: &Bytes,
    emulation: &web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    #[derive(Deserialize)]
    struct Body {
        text: String,
    }
    let visit = admitted(request, emulation, Direction::Tts)?;
    visit.received(body.len());
    let body: Result<Body, _> = serde_json::from_slice(body);
    let text = body.map(|body| body.text).map_err(|error| {
        let problem = format!("Failed to deserialize JSON payload: {error}.");
        bad_request(&visit, &problem)
    })?;
    let chars = text.chars().count();
    if text.trim().is_empty() {
        return Err(bad_request(&visit, "Text must not be empty."));
    }
    if chars > MAX_CHARS {
        let response = HttpResponse::build(StatusCode::PAYLOAD_TOO_LARGE);
        let problem = format!("Input text exceeds maximum character limit of {MAX_CHARS}.");
        return Err(failure(response, &visit, "Input Text Too Long", &problem));
    }
    let wanted = wanted_by_request(family, &Query::of(request.query_string()));
    let wanted = wanted.map_err(|problem| bad_request(&visit, &problem))?;
    let speech = visit.say(&spoken(&text, &visit), &wanted.saying);
    let speech = speech.map_err(|error| bad_request(&visit, &error.to_string()))?;
    whole_or_streamed(&visit, wanted, chars, speech).await
}

async fn whole_or_streamed(
    visit: &Visit,
    wanted: Wanted,
    chars: usize,
    speech: Speech,
) -> Result<HttpResponse, actix_web::Error> {
    let mut response = HttpResponse::Ok();
    response
        .insert_header((CONTENT_TYPE, wanted.content_type))
        .insert_header(("dg-request-id", visit.request_id().to_string()))
        .insert_header(("dg-model-uuid", uuid(&wanted.model)))
        .insert_header(("dg-model-name", wanted.model))
        .insert_header(("dg-char-count", chars.to_string()));
    if !wanted.wav {
        return Ok(visit.stream(response, speech.bytes()));
    }
    let speech = speech.whole().await;
    let Piece { audio, .. } = speech.map_err(|error| bad_request(visit, &error.to_string()))?;
    let head = wav_head(wanted.saying.format, audio.len());
    visit.sent(audio.len());
    Ok(response.body([&head[..], &audio].concat()))
}

/// The header of a WAV file. The engine's own is for sound whose length is not known.
fn wav_head(format: AudioFormat, bytes: usize) -> [u8; wav::HEADER_LEN] {
    let samples = match format.encoding {
        Encoding::Mulaw => SampleFormat::Companded(Law::Mu),
        Encoding::Alaw => SampleFormat::Companded(Law::A),
        _ => SampleFormat::I16,
    };
    let mono = Layout::mono(format.layout.rate);
    wav::header_of(samples, mono, DataLength::Known(bytes as u32))
}

/// `GET /v1/speak`, which is a socket.
pub(super) async fn open(
    request: HttpRequest,
    payload: web::Payload,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    let visit = admitted(&request, &emulation, Direction::Tts)?;
    let wanted = wanted_on_socket(&AURA, &Query::of(request.query_string()));
    let wanted = wanted.map_err(|problem| bad_request(&visit, &problem))?;
    let request_id = visit.request_id();
    let mut response = accept(&request, payload, visit, async move |socket| {
        if let End::Close(code, reason) = Speaker::new(socket.visit().clone(), wanted)
            .run(socket)
            .await
        {
            socket.close(code, reason).await;
        }
    })?;
    super::tell_request_id(&mut response, request_id);
    Ok(response)
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Command {
    Speak { text: String },
    Flush,
    Clear,
    Close,
}

/// Why a socket is over: the client has gone, or it is closed with this.
pub(super) enum End {
    Gone,
    Close(u16, &'static str),
}

impl From<Gone> for End {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

struct Speaker {
    visit: Visit,
    wanted: Wanted,
    /// What was not flushed.
    text: String,
    /// What was flushed and is not yet being said.
    flushed: VecDeque<String>,
    speech: Option<Speech>,
    /// When flushes came, the last ones.
    flushes: VecDeque<Instant>,
    sequence: u64,
    closing: bool,
}

impl Speaker {
    fn new(visit: Visit, wanted: Wanted) -> Self {
        Self {
            visit,
            wanted,
            text: String::new(),
            flushed: VecDeque::new(),
            speech: None,
            flushes: VecDeque::new(),
            sequence: 0,
            closing: false,
        }
    }

    async fn run(mut self, socket: &mut Socket) -> End {
        let mut idle = self.visit.timer(IDLE);
        let limit = self.visit.stream_limit(Some(LONGEST));
        if socket.send_json(&self.metadata()).await.is_err() {
            return End::Gone;
        }
        loop {
            if self.speech.is_none() && !self.begin() {
                return End::Close(1011, "NET-0000");
            }
            if self.closing && self.speech.is_none() {
                return End::Close(1000, "");
            }
            let outcome = tokio::select! {
                message = socket.recv() => match message {
                    Some(message) => {
                        idle.restart();
                        self.message(message, socket).await
                    }
                    None => return End::Gone,
                },
                piece = next(self.speech.as_mut()) => self.say(piece, socket).await,
                () = idle.expired() => return End::Close(1011, "NET-0001"),
                () = limit.expired() => return End::Close(1011, "NET-0003"),
            };
            if let Err(end) = outcome {
                return end;
            }
        }
    }

    /// Begins to say what was flushed next; false where that cannot be said.
    fn begin(&mut self) -> bool {
        let Some(text) = self.flushed.pop_front() else {
            return true;
        };
        self.speech = self.visit.say(&text, &self.wanted.saying).ok();
        self.speech.is_some()
    }

    async fn say(
        &mut self,
        piece: Option<Result<Piece, EngineError>>,
        socket: &Socket,
    ) -> Result<(), End> {
        match piece {
            Some(Ok(piece)) => socket.send_binary(piece.audio).await?,
            Some(Err(_)) => return Err(End::Close(1011, "NET-0000")),
            None => {
                self.speech = None;
                self.answer("Flushed", socket).await?;
            }
        }
        Ok(())
    }

    async fn message(&mut self, message: Message, socket: &Socket) -> Result<(), End> {
        let text = match message {
            Message::Text(text) => text,
            Message::Binary(_) => return Err(End::Close(1003, "MESSAGE-0000")),
            Message::Close { .. } => return Err(End::Gone),
        };
        let Ok(value) = serde_json::from_str::<Value>(&text) else {
            return Err(End::Close(1003, "MESSAGE-0000"));
        };
        let Ok(command) = serde_json::from_value(value) else {
            return Err(End::Close(1008, "DATA-0000"));
        };
        match command {
            _ if self.closing => {}
            Command::Speak { text } => {
                self.text.push_str(&text);
                if self.text.chars().count() > MAX_CHARS {
                    return Err(End::Close(1008, "DATA-0001"));
                }
            }
            Command::Flush => self.flush(socket).await?,
            Command::Clear => {
                self.text.clear();
                self.flushed.clear();
                self.speech = None;
                self.answer("Cleared", socket).await?;
            }
            Command::Close => {
                self.closing = true;
                self.take_text();
            }
        }
        Ok(())
    }

    async fn flush(&mut self, socket: &Socket) -> Result<(), Gone> {
        let window = self.visit.emulation().clock.real(FLUSH_WINDOW);
        let now = Instant::now();
        self.flushes.retain(|flush| now - *flush < window);
        if self.flushes.len() >= MAX_FLUSHES {
            let warning = json!({
                "type": "Warning", "code": "EXCESSIVE_FLUSH",
                "description": "Cannot process any more Flush messages until the 60-second window has passed.",
            });
            return socket.send_json(&warning).await;
        }
        self.flushes.push_back(now);
        self.take_text();
        Ok(())
    }

    fn take_text(&mut self) {
        let text = std::mem::take(&mut self.text);
        if !(self.closing && text.is_empty()) {
            self.flushed.push_back(spoken(&text, &self.visit));
        }
    }

    async fn answer(&mut self, kind: &str, socket: &Socket) -> Result<(), Gone> {
        let answer = json!({"type": kind, "sequence_id": self.sequence});
        self.sequence += 1;
        socket.send_json(&answer).await
    }

    fn metadata(&self) -> Value {
        let model = &self.wanted.model;
        json!({
            "type": "Metadata", "request_id": self.visit.request_id().to_string(), "model_name": model,
            "model_version": "2025-04-07.0", "model_uuid": uuid(model),
        })
    }
}

/// The next piece; never where nothing is being said.
pub(super) async fn next(speech: Option<&mut Speech>) -> Option<Result<Piece, EngineError>> {
    match speech {
        Some(speech) => speech.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_vendor_refuses_is_refused() {
        for query in [
            "model=nobody",
            "encoding=mp3",
            "encoding=pcm",
            "sample_rate=44100",
            "encoding=mulaw&sample_rate=24000",
            "model=aura-asteria-en&speed=1.2",
            "model=aura-2-thalia-en&speed=2",
        ] {
            assert!(
                wanted_on_socket(&AURA, &Query::of(query)).is_err(),
                "{query}"
            );
        }
        for query in [
            "encoding=mp3&sample_rate=22050",
            "encoding=mp3&container=wav",
            "encoding=linear16&container=ogg",
            "encoding=linear16&sample_rate=22050",
        ] {
            assert!(
                wanted_by_request(&AURA, &Query::of(query)).is_err(),
                "{query}"
            );
        }
    }

    #[test]
    fn every_format_has_its_content_type() {
        for (query, content_type) in [
            ("", "audio/mpeg"),
            ("encoding=linear16", "audio/wav"),
            (
                "encoding=linear16&container=none&sample_rate=8000",
                "audio/l16;rate=8000",
            ),
            ("encoding=mulaw&container=none", "audio/mulaw;rate=8000"),
            ("encoding=alaw", "audio/wav"),
            ("encoding=opus", "audio/ogg;codecs=opus"),
        ] {
            let wanted = wanted_by_request(&AURA, &Query::of(query)).unwrap();
            assert_eq!(wanted.content_type, content_type, "{query}");
        }
    }
}
