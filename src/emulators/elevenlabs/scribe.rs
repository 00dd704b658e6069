//! Recognition over the realtime WebSocket: partials that grow until a segment is committed, by the client or by silence,
//! and errors as messages.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{by_key, key, query, refused};
use crate::engine::{Heard, Listening, Recogniser};
use crate::socket::{Message, Socket, accept};
use crate::{Direction, Emulation, Vendor};
use vivavoce_audio::{AudioFormat, Encoding, SampleRate};
use vivavoce_seams::{Transcript, Word};

/// Sound before which there are no partials.
const WARMING_UP: Duration = Duration::from_secs(2);
/// Less sound than this is not committed.
const LEAST_COMMIT: Duration = Duration::from_millis(300);
/// Sound is committed by itself after so long.
const LONGEST_SEGMENT: Duration = Duration::from_secs(90);
/// A client that says nothing for so long has gone.
const IDLE: Duration = Duration::from_secs(20);
/// The most of base64 in a message.
const MAX_CHUNK_BYTES: usize = 1 << 20;

/// What the query asks for.
#[derive(Debug, Clone)]
struct Asked {
    format: AudioFormat,
    /// The silence behind a segment that commits it; `None` leaves it to the client.
    vad: Option<Duration>,
    timestamps: bool,
    language: Option<String>,
    config: Value,
}

/// An error message: its name and what it says.
type Told = (&'static str, String);

/// `GET /v1/speech-to-text/realtime`.
pub(super) async fn realtime(
    request: HttpRequest,
    payload: web::Payload,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    let visit = emulation.visit(&request, Vendor::ElevenLabs, Direction::Stt);
    let key = key(&request, &["token", "authorization"]);
    let asked = match visit.admit(key.as_deref()) {
        Ok(()) => Asked::parse(&query(&request)),
        Err(refusal) if by_key(&refusal, key.as_deref(), &visit) => Err((
            "auth_error",
            "You must be authenticated to use this endpoint.".to_owned(),
        )),
        Err(refusal) => return Ok(refused(&refusal, &visit)),
    };
    accept(
        &request,
        payload,
        visit,
        async move |socket: &mut Socket| match asked {
            Ok(asked) => recognise(socket, asked).await,
            Err(told) => tell_and_close(socket, told).await,
        },
    )
}

async fn tell_and_close(socket: &mut Socket, (name, words): Told) {
    let told = json!({"message_type": name, "error": words});
    if socket.send_json(&told).await.is_ok() {
        let code = if name == "transcriber_error" {
            1011
        } else {
            1008
        };
        socket.close(code, name).await;
    }
}

impl Asked {
    fn parse(query: &[(String, String)]) -> Result<Self, Told> {
        let refuse = |words: String| ("invalid_request", words);
        let value = |name: &str| {
            let pair = query.iter().find(|(known, _)| known == name);
            pair.map(|(_, value)| value.as_str())
        };
        let number = |name: &str, least: f64, most: f64, usual: f64| {
            let Some(text) = value(name) else {
                return Ok(usual);
            };
            let number = text
                .parse()
                .ok()
                .filter(|number| (least..=most).contains(number));
            number.ok_or_else(|| refuse(format!("{name} must be from {least} to {most}")))
        };
        let flag = |name: &str| match value(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(refuse(format!("{name} must be true or false"))),
        };
        let model = value("model_id").unwrap_or("scribe_v2_realtime");
        if !["scribe_v2_realtime", "scribe_v3_live"].contains(&model) {
            return Err(refuse(format!("model_id {model} is not a realtime model")));
        }
        let name = value("audio_format").unwrap_or("pcm_16000");
        let format = audio_format(name)
            .ok_or_else(|| refuse(format!("audio_format {name} is not supported")))?;
        let silence = number("vad_silence_threshold_secs", 0.3, 3.0, 1.5)?;
        number("vad_threshold", 0.1, 0.9, 0.4)?;
        number("min_speech_duration_ms", 50.0, 2000.0, 100.0)?;
        number("min_silence_duration_ms", 50.0, 2000.0, 100.0)?;
        let strategy = value("commit_strategy").unwrap_or("manual");
        let vad = match strategy {
            "manual" => None,
            "vad" => Some(Duration::from_secs_f64(silence)),
            other => {
                return Err(refuse(format!(
                    "commit_strategy {other} is not supported by {model}"
                )));
            }
        };
        let timestamps = flag("include_timestamps")?;
        if timestamps && flag("filter_background_audio")? {
            return Err(refuse(
                "filter_background_audio cannot be combined with include_timestamps".to_owned(),
            ));
        }
        let detects = flag("include_language_detection")?;
        let languages = ["language_code", "secondary_languages"];
        let is_code = |code: &str| {
            matches!(code.len(), 2 | 3) && code.bytes().all(|byte| byte.is_ascii_lowercase())
        };
        if let Some((name, code)) = query
            .iter()
            .find(|(name, code)| languages.contains(&name.as_str()) && !is_code(code))
        {
            return Err(refuse(format!("{name} {code} is not an ISO 639 code")));
        }
        let keyterms: Vec<_> = query
            .iter()
            .filter(|(name, _)| name == "keyterms")
            .map(|(_, term)| term)
            .collect();
        if keyterms.len() > 50 || keyterms.iter().any(|term| term.chars().count() > 20) {
            return Err(refuse(
                "keyterms: at most 50 of at most 20 characters".to_owned(),
            ));
        }
        let language = value("language_code").map(str::to_owned);
        let config = json!({
            "sample_rate": format.layout.rate.hz(), "audio_format": name, "language_code": language,
            "commit_strategy": strategy, "vad_silence_threshold_secs": silence, "model_id": model,
            "include_timestamps": timestamps, "include_language_detection": detects, "keyterms": keyterms,
        });
        Ok(Self {
            format,
            vad,
            timestamps: timestamps || detects,
            language,
            config,
        })
    }
}

fn audio_format(name: &str) -> Option<AudioFormat> {
    const RATES: [u32; 6] = [8_000, 16_000, 22_050, 24_000, 44_100, 48_000];
    if name == "ulaw_8000" {
        return Some(AudioFormat::mono(Encoding::Mulaw, SampleRate::HZ_8000));
    }
    let hz: u32 = name.strip_prefix("pcm_")?.parse().ok()?;
    let rate = SampleRate::new(hz).ok().filter(|_| RATES.contains(&hz))?;
    Some(AudioFormat::mono(Encoding::Linear16, rate))
}

/// What a client sends.
#[derive(Deserialize)]
struct Chunk {
    message_type: String,
    audio_base_64: String,
    #[serde(default)]
    commit: Option<bool>,
    #[serde(default)]
    sample_rate: Option<u32>,
    #[serde(default)]
    previous_text: Option<String>,
}

/// A stream and its uncommitted segment.
struct Stream {
    asked: Asked,
    recogniser: Recogniser,
    /// What is heard for certain of the segment.
    words: Vec<Word>,
    text: String,
    /// Where the segment begins.
    from: Duration,
    chunks: usize,
}

async fn recognise(socket: &mut Socket, asked: Asked) {
    let listening = Listening {
        format: asked.format,
        endpointing: asked.vad,
    };
    let recogniser = match socket.visit().listen(listening).await {
        Ok(recogniser) => recogniser,
        Err(error) => {
            return tell_and_close(socket, ("transcriber_error", error.to_string())).await;
        }
    };
    let started = json!({
        "message_type": "session_started", "session_id": socket.visit().request_id().to_string(), "config": asked.config,
    });
    if socket.send_json(&started).await.is_err() {
        return;
    }
    let mut stream = Stream {
        asked,
        recogniser,
        words: Vec::new(),
        text: String::new(),
        from: Duration::ZERO,
        chunks: 0,
    };
    if let Err(told) = stream.serve(socket).await {
        tell_and_close(socket, told).await;
    }
}

impl Stream {
    /// Until the client goes; an error is told to it.
    async fn serve(&mut self, socket: &mut Socket) -> Result<(), Told> {
        let limit = socket.visit().stream_limit(None);
        let mut idle = socket.visit().timer(IDLE);
        loop {
            let answers = tokio::select! {
                message = socket.recv() => {
                    idle.restart();
                    match message {
                        Some(Message::Text(text)) => self.take(&text).await?,
                        Some(Message::Binary(_)) => return Err(("input_error", "Messages are text".to_owned())),
                        Some(Message::Close { .. }) | None => return Ok(()),
                    }
                }
                heard = self.recogniser.next() => match heard {
                    Some(Ok(heard)) => self.hear(heard),
                    Some(Err(error)) => return Err(("transcriber_error", error.to_string())),
                    None => return Ok(()),
                },
                () = limit.expired() => {
                    return Err(("session_time_limit_exceeded", "The session has lasted as long as one may".to_owned()));
                }
                () = idle.expired() => {
                    return Err(("insufficient_audio_activity", "No audio came for too long".to_owned()));
                }
            };
            for answer in answers {
                if socket.send_json(&answer).await.is_err() {
                    return Ok(());
                }
            }
        }
    }

    async fn take(&mut self, text: &str) -> Result<Vec<Value>, Told> {
        let wrong = |words: &str| ("input_error", words.to_owned());
        let chunk: Chunk = serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
        if chunk.message_type != "input_audio_chunk" {
            return Err(wrong("message_type must be input_audio_chunk"));
        }
        if chunk.audio_base_64.len() > MAX_CHUNK_BYTES {
            return Err(("chunk_size_exceeded", "The chunk is too large".to_owned()));
        }
        if chunk
            .sample_rate
            .is_some_and(|hz| hz != self.asked.format.layout.rate.hz())
        {
            return Err(wrong("sample_rate is not that of audio_format"));
        }
        if chunk.previous_text.is_some() && self.chunks > 0 {
            return Err(wrong("previous_text goes with the first chunk only"));
        }
        let audio = STANDARD
            .decode(&chunk.audio_base_64)
            .map_err(|_| wrong("audio_base_64 is not base64"))?;
        if !audio.is_empty() {
            self.chunks += 1;
            self.recogniser
                .push(&audio)
                .await
                .map_err(|error| wrong(&error.to_string()))?;
        }
        let uncommitted = self.recogniser.position().saturating_sub(self.from);
        if chunk.commit == Some(true) && uncommitted < LEAST_COMMIT {
            let words = format!(
                "Commit request ignored: only {:.1}s of uncommitted audio",
                uncommitted.as_secs_f64()
            );
            return Ok(vec![
                json!({"message_type": "commit_throttled", "error": words}),
            ]);
        }
        if chunk.commit == Some(true) || uncommitted >= LONGEST_SEGMENT {
            // What is asked for twice is told twice: the segment begins anew here.
            self.from = self.recogniser.position();
            self.recogniser.finalize().await;
        }
        Ok(Vec::new())
    }

    fn hear(&mut self, heard: Heard) -> Vec<Value> {
        match heard {
            Heard::Partial(partial) if self.recogniser.position() >= WARMING_UP => {
                let text = joined(&self.text, &partial.text);
                vec![json!({"message_type": "partial_transcript", "text": text})]
            }
            Heard::Final(transcript) => {
                self.keep(transcript);
                Vec::new()
            }
            Heard::Finalized { .. } => self.commit(),
            Heard::EndOfSpeech { .. } if self.asked.vad.is_some() && !self.text.is_empty() => {
                self.from = self.recogniser.position();
                self.commit()
            }
            Heard::Partial(_) | Heard::SpeechStarted { .. } | Heard::EndOfSpeech { .. } => {
                Vec::new()
            }
        }
    }

    fn keep(&mut self, transcript: Transcript) {
        self.text = joined(&self.text, &transcript.text);
        self.words.extend(transcript.words);
    }

    /// The segment, once without and, if asked for, once with the times of its words.
    fn commit(&mut self) -> Vec<Value> {
        let text = std::mem::take(&mut self.text);
        let words = std::mem::take(&mut self.words);
        let mut told = vec![json!({"message_type": "committed_transcript", "text": text})];
        if self.asked.timestamps {
            let language = self.asked.language.as_deref().unwrap_or("en");
            told.push(json!({
                "message_type": "committed_transcript_with_timestamps", "text": text, "language_code": language,
                "words": timed(&words),
            }));
        }
        told
    }
}

fn joined(before: &str, after: &str) -> String {
    if before.is_empty() {
        after.to_owned()
    } else {
        format!("{before} {after}")
    }
}

/// Words and the spaces between them.
pub(super) fn timed(words: &[Word]) -> Vec<Value> {
    let mut told: Vec<Value> = Vec::with_capacity(2 * words.len());
    for word in words {
        if let Some(end) = told.last().map(|last| last["end"].clone()) {
            told.push(json!({
                "text": " ", "start": end, "end": word.start, "type": "spacing", "speaker_id": null, "logprob": 0.0,
            }));
        }
        told.push(json!({
            "text": word.word, "start": word.start, "end": word.end, "type": "word", "speaker_id": null,
            "logprob": word.confidence.map_or(0.0, |confidence| f64::from(confidence).ln()),
        }));
    }
    told
}
