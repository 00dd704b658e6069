//! Synthesis: turns of SSML or streamed text over a WebSocket, and whole documents over HTTP.

use std::collections::VecDeque;
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_TYPE, USER_AGENT};
use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};

use super::frames::{Frame, field, flag, send, send_sound};
use super::ssml::Ssml;
use super::{IDLE, IDLE_REASON, new_id, parameter, refusal, ticks, voices};
use crate::engine::EngineError;
use crate::outlet::Gone;
use crate::socket::{Message, Socket, accept};
use crate::speech::{Piece, Saying, Speech, SpokenWord};
use crate::{Direction, Emulation, Vendor};
use vivavoce_audio::{AudioFormat, Encoding, SampleRate};
use vivavoce_core::sentences;

/// The longest document.
const MAX_SSML_BYTES: usize = 64 << 10;
/// A socket is closed after so long.
const LONGEST: Duration = Duration::from_mins(10);

/// The formats that this emulator can make, by the service's names.
const FORMATS: &[(&str, Encoding, u32)] = &[
    ("raw-8khz-16bit-mono-pcm", Encoding::Linear16, 8_000),
    ("raw-16khz-16bit-mono-pcm", Encoding::Linear16, 16_000),
    ("raw-22050hz-16bit-mono-pcm", Encoding::Linear16, 22_050),
    ("raw-24khz-16bit-mono-pcm", Encoding::Linear16, 24_000),
    ("raw-44100hz-16bit-mono-pcm", Encoding::Linear16, 44_100),
    ("raw-48khz-16bit-mono-pcm", Encoding::Linear16, 48_000),
    ("riff-8khz-16bit-mono-pcm", Encoding::Wav, 8_000),
    ("riff-16khz-16bit-mono-pcm", Encoding::Wav, 16_000),
    ("riff-22050hz-16bit-mono-pcm", Encoding::Wav, 22_050),
    ("riff-24khz-16bit-mono-pcm", Encoding::Wav, 24_000),
    ("riff-44100hz-16bit-mono-pcm", Encoding::Wav, 44_100),
    ("riff-48khz-16bit-mono-pcm", Encoding::Wav, 48_000),
    ("raw-8khz-8bit-mono-mulaw", Encoding::Mulaw, 8_000),
    ("raw-8khz-8bit-mono-alaw", Encoding::Alaw, 8_000),
    ("audio-16khz-32kbitrate-mono-mp3", Encoding::Mp3, 16_000),
    ("audio-16khz-64kbitrate-mono-mp3", Encoding::Mp3, 16_000),
    ("audio-16khz-128kbitrate-mono-mp3", Encoding::Mp3, 16_000),
    ("audio-24khz-48kbitrate-mono-mp3", Encoding::Mp3, 24_000),
    ("audio-24khz-96kbitrate-mono-mp3", Encoding::Mp3, 24_000),
    ("audio-24khz-160kbitrate-mono-mp3", Encoding::Mp3, 24_000),
    ("audio-48khz-96kbitrate-mono-mp3", Encoding::Mp3, 48_000),
    ("audio-48khz-192kbitrate-mono-mp3", Encoding::Mp3, 48_000),
    ("ogg-16khz-16bit-mono-opus", Encoding::OggOpus, 16_000),
    ("ogg-24khz-16bit-mono-opus", Encoding::OggOpus, 24_000),
    ("ogg-48khz-16bit-mono-opus", Encoding::OggOpus, 48_000),
];

fn format(name: &str) -> Option<AudioFormat> {
    let (_, encoding, hz) = FORMATS.iter().find(|(known, ..)| *known == name)?;
    Some(AudioFormat::mono(*encoding, SampleRate::new(*hz).ok()?))
}

/// A socket for synthesis.
pub(super) async fn open(
    request: HttpRequest,
    payload: web::Payload,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    let visit = emulation.visit(&request, Vendor::Azure, Direction::Tts);
    if let Some(refused) = refusal(&visit, &request) {
        return Ok(refused);
    }
    let pieces = match request.match_info().get("version") {
        Some("v1") => false,
        Some("v2") => true,
        _ => return Ok(HttpResponse::NotFound().finish()),
    };
    let any_voice = parameter(&request, "deploymentId").is_some();
    accept(&request, payload, visit, async move |socket| {
        // A client that has gone needs no goodbye.
        let _ = speak(socket, pieces, any_voice).await;
    })
}

/// A document over HTTP.
pub(super) async fn post(
    request: HttpRequest,
    body: web::Bytes,
    emulation: web::Data<Emulation>,
) -> HttpResponse {
    let visit = emulation.visit(&request, Vendor::Azure, Direction::Tts);
    if let Some(refused) = refusal(&visit, &request) {
        return refused;
    }
    let header = |name: &str| request.headers().get(name)?.to_str().ok();
    let refuse = |status: StatusCode| HttpResponse::build(status).finish();
    let ssml = header(CONTENT_TYPE.as_str()).unwrap_or_default();
    if !ssml.starts_with("application/ssml+xml") {
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    let agent = header(USER_AGENT.as_str()).is_some_and(|agent| agent.len() < 255);
    let format = header("x-microsoft-outputformat").and_then(format);
    let ssml = Ssml::parse(&String::from_utf8_lossy(&body)).ok();
    let (Some(format), Some(ssml), true) = (format, ssml, agent) else {
        return refuse(StatusCode::BAD_REQUEST);
    };
    if !voices::exists(&ssml.voice) {
        return refuse(StatusCode::BAD_REQUEST);
    }
    let saying = Saying {
        speaking_rate: ssml.rate,
        format,
    };
    match visit.say(&ssml.text, &saying) {
        Ok(speech) => {
            let mut response = HttpResponse::Ok();
            response.content_type(format.encoding.media_type());
            visit.stream(response, speech.bytes())
        }
        Err(_) => refuse(StatusCode::BAD_REQUEST),
    }
}

/// What a context asks for.
struct Context {
    format: AudioFormat,
    words: bool,
    punctuation: bool,
    session_end: bool,
    /// The voice of text that comes in pieces.
    streamed: Option<String>,
}

impl Context {
    fn read(context: &Value) -> Result<Self, String> {
        let name = field(context, &["synthesis", "audio", "outputFormat"]).and_then(Value::as_str);
        let name = name.unwrap_or_default();
        let format = format(name).ok_or_else(|| format!("Unsupported output format {name}."))?;
        let option = |name| flag(context, &["synthesis", "audio", "metadataOptions", name]);
        let input = ["synthesis", "input", "bidirectionalStreamingMode"];
        let voice = field(context, &["synthesis", "input", "voiceName"]).and_then(Value::as_str);
        Ok(Self {
            format,
            words: option("wordBoundaryEnabled"),
            punctuation: option("punctuationBoundaryEnabled"),
            session_end: option("sessionEndEnabled"),
            streamed: flag(context, &input).then(|| voice.unwrap_or_default().to_owned()),
        })
    }
}

/// The turn that is being said.
struct Turn {
    request: String,
    context: Context,
    stream: String,
    rate: f64,
    /// Text of which no sentence is complete yet.
    pending: String,
    text_ended: bool,
    /// Sentences that wait.
    sentences: VecDeque<String>,
    speech: Option<Speech>,
    begun: bool,
    /// How long the sentences before this one were.
    before: Duration,
    position: Duration,
    /// By a fault, half a sample is missing: only the end of a turn may be cut.
    odd: bool,
}

/// Why a socket is closed.
struct Refused(u16, String);

fn refuse(reason: impl Into<String>) -> Refused {
    Refused(1007, reason.into())
}

async fn speak(socket: &mut Socket, pieces: bool, any_voice: bool) -> Result<(), Gone> {
    let mut turn: Option<Turn> = None;
    let mut idle = socket.visit().timer(IDLE);
    let limit = socket.visit().stream_limit(Some(LONGEST));
    loop {
        tokio::select! {
            message = socket.recv() => {
                idle.restart();
                let Some(message) = message else { return Err(Gone) };
                if matches!(message, Message::Close { .. }) {
                    return Ok(());
                }
                let Some(frame) = Frame::read(message) else {
                    socket.close(1002, "Malformed message").await;
                    return Ok(());
                };
                let taken = take(socket, &mut turn, &frame, pieces, any_voice).await?;
                if let Err(Refused(code, reason)) = taken {
                    socket.close(code, &reason).await;
                    return Ok(());
                }
            }
            piece = next(&mut turn) => {
                let Some(current) = &mut turn else { continue };
                match piece {
                    Some(Ok(piece)) => current.sound(socket, &piece).await?,
                    Some(Err(_)) => {
                        socket.close(1011, "Internal server error").await;
                        return Ok(());
                    }
                    None => {
                        current.speech = None;
                        current.before = current.position;
                        current.go_on(socket).await?;
                    }
                }
            }
            () = idle.expired() => {
                socket.close(1000, IDLE_REASON).await;
                return Ok(());
            }
            () = limit.expired() => {
                socket.close(1000, "Exceeded maximum websocket connection duration").await;
                return Ok(());
            }
        }
        turn.take_if(|turn| turn.request.is_empty());
    }
}

async fn next(turn: &mut Option<Turn>) -> Option<Result<Piece, EngineError>> {
    match turn.as_mut().and_then(|turn| turn.speech.as_mut()) {
        Some(speech) => speech.next().await,
        None => std::future::pending().await,
    }
}

/// A message of the client's.
async fn take(
    socket: &Socket,
    turn: &mut Option<Turn>,
    frame: &Frame,
    pieces: bool,
    any_voice: bool,
) -> Result<Result<(), Refused>, Gone> {
    if frame.path == "synthesis.context" {
        socket.visit().asked_by(&frame.json());
        let context = match Context::read(&frame.json()) {
            Ok(context) => context,
            Err(problem) => return Ok(Err(refuse(problem))),
        };
        match &context.streamed {
            Some(_) if !pieces => return Ok(Err(refuse("Text streaming needs the v2 endpoint."))),
            Some(voice) if !any_voice && !voices::exists(voice) => {
                return Ok(Err(refuse(format!("Unsupported voice {voice}."))));
            }
            _ => *turn = Some(Turn::new(frame.request.clone(), context)),
        }
        return Ok(Ok(()));
    }
    let Some(turn) = turn.as_mut().filter(|turn| turn.request == frame.request) else {
        // Configuration, telemetry, and what belongs to a turn that is over.
        return Ok(Ok(()));
    };
    match (frame.path.as_str(), turn.context.streamed.is_some()) {
        ("ssml", false) if frame.body.len() > MAX_SSML_BYTES => {
            return Ok(Err(Refused(1009, "The SSML is too long.".to_owned())));
        }
        ("ssml", false) => match Ssml::parse(&frame.text()) {
            Ok(ssml) if any_voice || voices::exists(&ssml.voice) => {
                socket.visit().asked(frame.text());
                turn.rate = ssml.rate;
                turn.pending = ssml.text;
                turn.text_ended = true;
            }
            Ok(ssml) => return Ok(Err(refuse(format!("Unsupported voice {}.", ssml.voice)))),
            Err(error) => return Ok(Err(refuse(error.to_string()))),
        },
        ("text.piece", true) => turn.pending.push_str(&frame.text()),
        ("text.end", true) => turn.text_ended = true,
        ("ssml" | "text.piece" | "text.end", _) => {
            return Ok(Err(refuse("The input does not match the context.")));
        }
        ("synthesis.control", _) => {
            turn.stop();
        }
        _ => return Ok(Ok(())),
    }
    turn.go_on(socket).await.map(Ok)
}

impl Turn {
    fn new(request: String, context: Context) -> Self {
        Self {
            request,
            context,
            stream: new_id(),
            rate: 1.0,
            pending: String::new(),
            text_ended: false,
            sentences: VecDeque::new(),
            speech: None,
            begun: false,
            before: Duration::ZERO,
            position: Duration::ZERO,
            odd: false,
        }
    }

    async fn send(&self, socket: &Socket, path: &str, body: &Value) -> Result<(), Gone> {
        send(socket, &self.request, path, body).await
    }

    /// Nothing more is said.
    fn stop(&mut self) {
        self.speech = None;
        self.sentences.clear();
        self.pending.clear();
        self.text_ended = true;
    }

    /// Says the next sentence that is complete, or ends.
    async fn go_on(&mut self, socket: &Socket) -> Result<(), Gone> {
        let complete = if self.text_ended {
            self.pending.len()
        } else {
            sentences::complete_len(&self.pending)
        };
        let rest = self.pending.split_off(complete);
        let sentence = std::mem::replace(&mut self.pending, rest);
        if !sentence.trim().is_empty() {
            self.sentences.push_back(sentence);
        }
        if self.speech.is_some() {
            return Ok(());
        }
        let Some(sentence) = self.sentences.pop_front() else {
            return if self.text_ended {
                self.end(socket).await
            } else {
                Ok(())
            };
        };
        self.begin(socket).await?;
        if std::mem::take(&mut self.odd) {
            send_sound(socket, &self.request, &self.stream, &[0]).await?;
        }
        let saying = Saying {
            speaking_rate: self.rate,
            format: self.context.format,
        };
        // All formats of the table can be made.
        self.speech = socket.visit().say(&sentence, &saying).ok();
        Ok(())
    }

    async fn begin(&mut self, socket: &Socket) -> Result<(), Gone> {
        if std::mem::replace(&mut self.begun, true) {
            return Ok(());
        }
        let tag = json!({"serviceTag": new_id()});
        self.send(socket, "turn.start", &json!({"context": tag}))
            .await?;
        let audio = json!({"type": "inline", "streamId": self.stream});
        let response = json!({"context": tag, "audio": audio});
        self.send(socket, "response", &response).await
    }

    async fn sound(&mut self, socket: &Socket, piece: &Piece) -> Result<(), Gone> {
        let mut metadata = Vec::new();
        for word in &piece.words {
            self.boundaries(word, &mut metadata);
        }
        if !metadata.is_empty() {
            let metadata = json!({"Metadata": metadata});
            self.send(socket, "audio.metadata", &metadata).await?;
        }
        self.position = self.before + piece.start + piece.duration;
        if piece.audio.is_empty() {
            // An empty message is the end.
            return Ok(());
        }
        let linear = self.context.format.encoding == Encoding::Linear16;
        self.odd ^= linear && piece.audio.len() % 2 == 1;
        send_sound(socket, &self.request, &self.stream, &piece.audio).await
    }

    /// A word, and the punctuation that is written at its end.
    fn boundaries(&self, word: &SpokenWord, metadata: &mut Vec<Value>) {
        let boundary = |kind: &str, text: &str, start: Duration, end: Duration| {
            json!({"Type": "WordBoundary", "Data": {
                "Offset": ticks(self.before + start), "Duration": ticks(end.saturating_sub(start)),
                "text": {"Text": text, "Length": text.chars().count(), "BoundaryType": kind},
            }})
        };
        let bare = word
            .word
            .trim_end_matches(|c: char| c.is_ascii_punctuation());
        let mark = &word.word[bare.len()..];
        if self.context.words && !bare.is_empty() {
            metadata.push(boundary("WordBoundary", bare, word.start, word.end));
        }
        if self.context.punctuation && !mark.is_empty() {
            metadata.push(boundary("PunctuationBoundary", mark, word.end, word.end));
        }
    }

    async fn end(&mut self, socket: &Socket) -> Result<(), Gone> {
        self.begin(socket).await?;
        if self.context.session_end {
            let end = json!({"Type": "SessionEnd", "Data": {"Offset": ticks(self.position)}});
            let metadata = json!({"Metadata": [end]});
            self.send(socket, "audio.metadata", &metadata).await?;
        }
        send_sound(socket, &self.request, &self.stream, &[]).await?;
        self.send(socket, "turn.end", &json!({})).await?;
        self.request.clear();
        Ok(())
    }
}
