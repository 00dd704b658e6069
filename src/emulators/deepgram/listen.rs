//! `/v1/listen`: Nova. A segment is everything since the last final. Its interim results replace each other, and its final
//! may also end the utterance or answer a `Finalize`.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use futures_util::FutureExt;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::models::uuid;
use super::query::{Problem, Query};
use super::{Direction, Emulation, admitted, bad_request};
use crate::clock::Timer;
use crate::engine::{EngineError, Heard, Listening, Recogniser};
use crate::outlet::Gone;
use crate::socket::{Message, Socket, accept};
use crate::visit::Visit;
use vivavoce_audio::{AudioFormat, Channels, Encoding, Layout, SampleRate};
use vivavoce_seams::{Transcript, Word};

/// Without sound and messages a stream ends after so long.
pub(super) const IDLE: Duration = Duration::from_secs(10);
/// Silence that ends an utterance where the client does not say.
const ENDPOINTING: Duration = Duration::from_millis(10);
/// With less sound than this since the last final, a `Finalize` is not answered.
const HARDLY_ANYTHING: Duration = Duration::from_millis(100);
/// Of all keyterms together.
const MAX_KEYTERM_WORDS: usize = 500;
/// What models of this interface begin with.
const MODELS: &[&str] = &["nova", "enhanced", "base", "whisper", "general"];

/// What the client wants.
struct Options {
    model: String,
    format: AudioFormat,
    endpointing: Option<Duration>,
    utterance_end: Option<Duration>,
    interim_results: bool,
    vad_events: bool,
    wording: Wording,
    /// What `channel_index` counts.
    channels: usize,
}

/// What is told of each word.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wording {
    pub(super) punctuate: bool,
    /// The label of whoever speaks, where speakers are told apart.
    pub(super) speaker: Option<u32>,
    /// The language that words are said to be in, where several may be spoken.
    pub(super) language: Option<&'static str>,
}

impl Wording {
    pub(super) fn of(self, word: &Word) -> Value {
        let mut told = json!({
            "word": word.word, "start": word.start, "end": word.end, "confidence": word.confidence.unwrap_or_default(),
        });
        if self.punctuate {
            told["punctuated_word"] = json!(word.word);
        }
        if let Some(speaker) = self.speaker {
            told["speaker"] = json!(speaker);
        }
        if let Some(language) = self.language {
            told["language"] = json!(language);
        }
        told
    }
}

fn options(query: &Query) -> Result<Options, Problem> {
    let model = model(query)?;
    let interim_results = query.flag("interim_results", false)?;
    let utterance_end = query.number("utterance_end_ms", 1_000, 5_000)?;
    if utterance_end.is_some() && !interim_results {
        return Err("utterance_end_ms requires interim_results=true.".to_owned());
    }
    keyterms(query, &model)?;
    language(query)?;
    let diarize_model = query.text("diarize_model");
    if !matches!(diarize_model, None | Some("v1" | "latest")) {
        return Err("diarize_model: not supported on streaming.".to_owned());
    }
    let diarize = diarize_model.is_some() || query.flag("diarize", false)?;
    let channels = query.number("channels", 1_u64, 2)?.unwrap_or(1);
    let multichannel = query.flag("multichannel", false)?;
    let endpointing = match query.text("endpointing") {
        None | Some("true") => Some(ENDPOINTING),
        Some("false") => None,
        Some(_) => query
            .number("endpointing", 0, 60_000)?
            .map(Duration::from_millis),
    };
    let punctuate = query.flag("punctuate", false)?;
    let smart_format = query.flag("smart_format", false)?;
    Ok(Options {
        format: format(query, channels)?,
        endpointing,
        utterance_end: utterance_end.map(Duration::from_millis),
        interim_results,
        vad_events: query.flag("vad_events", false)?,
        wording: Wording {
            punctuate: punctuate || smart_format,
            speaker: diarize.then_some(0),
            language: (query.text("language") == Some("multi")).then_some("en"),
        },
        channels: if multichannel { channels as usize } else { 1 },
        model,
    })
}

pub(super) fn model(query: &Query) -> Result<String, Problem> {
    let model = query.text("model").unwrap_or("general");
    if MODELS.iter().any(|known| model.starts_with(known)) {
        Ok(model.to_owned())
    } else {
        // Flux is at home elsewhere.
        Err("No such model/language/tier combination found.".to_owned())
    }
}

pub(super) fn language(query: &Query) -> Result<(), Problem> {
    let language = query.text("language").unwrap_or("en");
    let parts = || language.split('-');
    let known = parts().next().is_some_and(|primary| {
        matches!(primary.len(), 2 | 3) && primary.bytes().all(|byte| byte.is_ascii_lowercase())
    });
    let fits = parts().all(|part| part.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    if language == "multi" || known && fits {
        Ok(())
    } else {
        Err("No such model/language/tier combination found.".to_owned())
    }
}

pub(super) fn keyterms(query: &Query, model: &str) -> Result<(), Problem> {
    let nova_3 = model.starts_with("nova-3");
    if query.has("keyterm") && !nova_3 {
        return Err("Keyterms are only supported with nova-3.".to_owned());
    }
    if query.has("keywords") && nova_3 {
        return Err("Keywords are not supported with nova-3; use keyterm.".to_owned());
    }
    let words = query.all("keyterm").flat_map(str::split_whitespace);
    if words.count() > MAX_KEYTERM_WORDS {
        return Err("Keyterm limit exceeded.".to_owned());
    }
    Ok(())
}

/// The format of the sound. Without `encoding` it has a header, here that of a WAV file.
pub(super) fn format(query: &Query, channels: u64) -> Result<AudioFormat, Problem> {
    let encoding = match query.text("encoding") {
        None => Encoding::Wav,
        Some("linear16") => Encoding::Linear16,
        Some("mulaw") => Encoding::Mulaw,
        Some("alaw") => Encoding::Alaw,
        Some("opus") => Encoding::Opus,
        Some("ogg-opus") => Encoding::OggOpus,
        Some(other) => return Err(format!("Unsupported encoding: {other}.")),
    };
    let raw = !matches!(encoding, Encoding::Wav | Encoding::OggOpus);
    let hz = query.number("sample_rate", 8_000_u64, 48_000)?;
    if raw && hz.is_none() {
        return Err("sample_rate is required when encoding is specified.".to_owned());
    }
    let rate = SampleRate::new(hz.unwrap_or(16_000)).map_err(|error| error.to_string())?;
    let channels = Channels::try_from(channels).map_err(|error| error.to_string())?;
    Ok(AudioFormat {
        encoding,
        layout: Layout::new(rate, channels),
    })
}

/// `GET /v1/listen`.
pub(super) async fn open(
    request: HttpRequest,
    payload: web::Payload,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    let visit = admitted(&request, &emulation, Direction::Stt)?;
    let options = options(&Query::of(request.query_string()));
    let options = options.map_err(|problem| bad_request(&visit, &problem))?;
    let request_id = visit.request_id();
    let mut response = accept(&request, payload, visit, async move |socket| {
        recognise(socket, options).await;
    })?;
    super::tell_request_id(&mut response, request_id);
    Ok(response)
}

/// What a client may say.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum Command {
    KeepAlive,
    Finalize,
    CloseStream,
    Configure {
        #[serde(default)]
        keyterms: Vec<String>,
    },
}

/// Why a stream is over: the client has gone, or it is closed with this.
enum End {
    Gone,
    Close(u16, &'static str),
}

impl From<Gone> for End {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

impl From<EngineError> for End {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Decode(_) | EngineError::Encode(_) => Self::Close(1008, "DATA-0000"),
            EngineError::Provider(_) => Self::Close(1011, "NET-0000"),
        }
    }
}

async fn recognise(socket: &mut Socket, options: Options) {
    let end = match Stream::open(socket.visit(), options).await {
        Ok(mut stream) => stream.run(socket).await,
        Err(error) => error.into(),
    };
    if let End::Close(code, reason) = end {
        socket.close(code, reason).await;
    }
}

struct Stream {
    options: Options,
    visit: Visit,
    recogniser: Recogniser,
    idle: Timer,
    limit: Timer,
    /// Seconds at which the segment begins.
    segment: f64,
    /// Where the last final word ended, and that `UtteranceEnd` has not said so.
    last_word_end: Option<f64>,
    heard_sound: bool,
    /// Whether the recogniser still has to answer a `Finalize`.
    finalizing: bool,
    finished: bool,
    hash: Sha256,
}

impl Stream {
    async fn open(visit: &Visit, options: Options) -> Result<Self, EngineError> {
        let listening = Listening {
            format: options.format,
            endpointing: options.endpointing,
        };
        Ok(Self {
            recogniser: visit.listen(listening).await?,
            idle: visit.timer(IDLE),
            limit: visit.stream_limit(None),
            visit: visit.clone(),
            options,
            segment: 0.0,
            last_word_end: None,
            heard_sound: false,
            finalizing: false,
            finished: false,
            hash: Sha256::new(),
        })
    }

    async fn run(&mut self, socket: &mut Socket) -> End {
        loop {
            let outcome = tokio::select! {
                message = socket.recv() => match message {
                    Some(message) => self.message(message, socket).await,
                    None => return End::Gone,
                },
                heard = self.recogniser.next() => match heard {
                    Some(Ok(heard)) => self.heard(heard, socket).await,
                    Some(Err(error)) => return error.into(),
                    None => {
                        return match self.sum_up(socket).await {
                            Ok(()) => End::Close(1000, ""),
                            Err(Gone) => End::Gone,
                        };
                    }
                },
                () = self.idle.expired(), if !self.finished => return End::Close(1011, "NET-0001"),
                () = self.limit.expired() => return End::Close(1011, "NET-0003"),
            };
            if let Err(end) = outcome {
                return end;
            }
        }
    }

    async fn message(&mut self, message: Message, socket: &Socket) -> Result<(), End> {
        match message {
            Message::Close { .. } => return Err(End::Gone),
            _ if self.finished => {}
            // An empty message is taken for the end.
            Message::Binary(sound) if sound.is_empty() => self.finish().await,
            Message::Binary(sound) => {
                self.heard_sound = true;
                self.idle.restart();
                self.hash.update(&sound);
                self.recogniser.push(&sound).await?;
                self.utterance_end(socket).await?;
            }
            Message::Text(text) => match serde_json::from_str(&text) {
                Ok(command) => self.command(command, socket).await?,
                Err(error) => {
                    let failure = json!({
                        "type": "Error", "variant": "SchemaError", "description": "Could not deserialize last text message",
                        "message": error.to_string(),
                    });
                    socket.send_json(&failure).await?;
                    return Err(End::Close(1008, "DATA-0000"));
                }
            },
        }
        Ok(())
    }

    async fn command(&mut self, command: Command, socket: &Socket) -> Result<(), Gone> {
        // What keeps a stream alive has to have heard something first.
        if self.heard_sound {
            self.idle.restart();
        }
        match command {
            Command::KeepAlive => {}
            Command::Finalize => {
                self.finalizing = true;
                self.recogniser.finalize().await;
            }
            Command::CloseStream => self.finish().await,
            Command::Configure { keyterms } => {
                let request_id = self.visit.request_id().to_string();
                let answer = if keyterms.is_empty() || self.options.model.starts_with("nova-3") {
                    json!({"type": "ConfigureSuccess", "request_id": request_id, "keyterms": keyterms})
                } else {
                    json!({
                        "type": "ConfigureFailure", "request_id": request_id, "code": "CONFIGURE_KEYTERMS_NOT_SUPPORTED",
                        "description": "The model does not support keyterms.",
                    })
                };
                socket.send_json(&answer).await?;
            }
        }
        Ok(())
    }

    async fn finish(&mut self) {
        self.finished = true;
        self.recogniser.finish().await;
    }

    async fn heard(&mut self, heard: Heard, socket: &Socket) -> Result<(), End> {
        let ends = Flags {
            is_final: true,
            ..Flags::default()
        };
        if let Heard::Finalized { .. } = heard {
            self.finalizing = false;
        }
        match heard {
            Heard::SpeechStarted { at } if self.options.vad_events => {
                let started = json!({"type": "SpeechStarted", "channel": [0, self.options.channels], "timestamp": at.as_secs_f64()});
                socket.send_json(&started).await?;
            }
            Heard::Partial(transcript) if self.options.interim_results => {
                let position = self.recogniser.position().as_secs_f64();
                let results = self.results(&transcript, position, Flags::default());
                socket.send_json(&results).await?;
            }
            Heard::Final(transcript) => self.last(transcript, socket).await?,
            Heard::EndOfSpeech { at } => {
                let flags = Flags {
                    speech_final: true,
                    ..ends
                };
                let end = self.end_of_pause(at);
                self.settle(&Transcript::default(), end, flags, socket)
                    .await?;
            }
            Heard::Finalized { at } if self.hears_something(at) => {
                let flags = Flags {
                    from_finalize: true,
                    ..ends
                };
                let end = at.as_secs_f64();
                self.settle(&Transcript::default(), end, flags, socket)
                    .await?;
            }
            Heard::SpeechStarted { .. } | Heard::Partial(_) | Heard::Finalized { .. } => {}
        }
        Ok(())
    }

    /// Whether there is sound, if only silence, that no final covers.
    fn hears_something(&self, until: Duration) -> bool {
        until.as_secs_f64() - self.segment >= HARDLY_ANYTHING.as_secs_f64()
    }

    /// Where the silence behind an utterance was long enough to end it: more may have come since.
    fn end_of_pause(&self, begin: Duration) -> f64 {
        let silence = self.options.endpointing.unwrap_or_default();
        (begin + silence)
            .min(self.recogniser.position())
            .as_secs_f64()
    }

    /// A final says in one message what else is known by now: that it ends the utterance, or that it was asked for.
    async fn last(&mut self, transcript: Transcript, socket: &Socket) -> Result<(), End> {
        // What was asked for comes, however late the recogniser is.
        let next = if self.finalizing {
            self.recogniser.next().await
        } else {
            self.recogniser.next().now_or_never().flatten()
        };
        let next = next.transpose()?;
        if let Some(Heard::Finalized { .. }) = next {
            self.finalizing = false;
        }
        let flags = Flags {
            is_final: true,
            speech_final: matches!(next, Some(Heard::EndOfSpeech { .. })),
            from_finalize: matches!(next, Some(Heard::Finalized { .. })),
        };
        let end = match next {
            Some(Heard::EndOfSpeech { at }) => self.end_of_pause(at),
            Some(Heard::Finalized { at }) => at.as_secs_f64(),
            _ => transcript
                .end
                .unwrap_or_else(|| self.recogniser.position().as_secs_f64()),
        };
        self.settle(&transcript, end, flags, socket).await?;
        match next {
            None | Some(Heard::EndOfSpeech { .. } | Heard::Finalized { .. }) => Ok(()),
            Some(heard) => Box::pin(self.heard(heard, socket)).await,
        }
    }

    /// Sends the last results of a segment, which ends there, and begins the next.
    async fn settle(
        &mut self,
        transcript: &Transcript,
        end: f64,
        flags: Flags,
        socket: &Socket,
    ) -> Result<(), Gone> {
        let end = end.max(self.segment);
        let results = self.results(transcript, end, flags);
        self.segment = end;
        if let Some(last) = transcript.words.last() {
            self.last_word_end = Some(last.end);
        }
        socket.send_json(&results).await
    }

    async fn utterance_end(&mut self, socket: &Socket) -> Result<(), Gone> {
        let Some(gap) = self.options.utterance_end else {
            return Ok(());
        };
        let position = self.recogniser.position().as_secs_f64();
        let ended = self
            .last_word_end
            .take_if(|end| position - *end >= gap.as_secs_f64());
        if let Some(end) = ended {
            let message = json!({"type": "UtteranceEnd", "channel": [0, self.options.channels], "last_word_end": end});
            socket.send_json(&message).await?;
        }
        Ok(())
    }

    fn results(&self, transcript: &Transcript, end: f64, flags: Flags) -> Value {
        let words: Vec<_> = transcript
            .words
            .iter()
            .map(|word| self.options.wording.of(word))
            .collect();
        let mut alternative = json!({
            "transcript": transcript.text, "confidence": transcript.confidence.unwrap_or_default(), "words": words,
        });
        if let Some(language) = self.options.wording.language {
            alternative["languages"] = json!([language]);
        }
        json!({
            "type": "Results", "channel_index": [0, self.options.channels], "start": self.segment,
            "duration": (end - self.segment).max(0.0), "is_final": flags.is_final,
            "speech_final": flags.speech_final, "from_finalize": flags.from_finalize,
            "channel": {"alternatives": [alternative]},
            "metadata": {
                "request_id": self.visit.request_id().to_string(), "model_uuid": uuid(&self.options.model),
                "model_info": {"name": self.options.model, "version": "2025-01-09.0", "arch": self.options.model},
            },
        })
    }

    async fn sum_up(&mut self, socket: &Socket) -> Result<(), Gone> {
        let hash = std::mem::take(&mut self.hash).finalize();
        let sha256 = format!("{hash:x}");
        let metadata = json!({
            "type": "Metadata", "transaction_key": "deprecated", "request_id": self.visit.request_id().to_string(), "sha256": sha256,
            // Nobody is known to read it.
            "created": "2026-11-20T10:00:00.000Z",
            "duration": self.recogniser.position().as_secs_f64(), "channels": self.options.format.layout.channels.count(),
            "models": [uuid(&self.options.model)],
        });
        socket.send_json(&metadata).await
    }
}

#[derive(Clone, Copy, Default)]
struct Flags {
    is_final: bool,
    speech_final: bool,
    from_finalize: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_vendor_refuses_is_refused() {
        let sound = "encoding=linear16&sample_rate=16000";
        for (query, problem) in [
            ("model=flux-general-en", "No such model"),
            ("model=gpt", "No such model"),
            ("language=klingon", "No such model"),
            ("encoding=linear16", "sample_rate is required"),
            ("encoding=pcm&sample_rate=8000", "Unsupported encoding"),
            ("sample_rate=7000", "Invalid value for sample_rate"),
            ("interim_results=yes", "Invalid value for interim_results"),
            ("utterance_end_ms=1000", "requires interim_results"),
            (
                "utterance_end_ms=500&interim_results=true",
                "Invalid value for utterance_end_ms",
            ),
            ("model=nova-2&keyterm=x", "only supported with nova-3"),
            ("model=nova-3&keywords=x:1", "use keyterm"),
            ("diarize_model=v2", "not supported on streaming"),
            ("endpointing=soon", "Invalid value for endpointing"),
        ] {
            let refused = options(&Query::of(&format!("{query}&{sound}")));
            let refused = if query.contains("encoding") || query.contains("sample_rate") {
                options(&Query::of(query))
            } else {
                refused
            };
            let told = refused.err().unwrap_or_default();
            assert!(told.contains(problem), "{query}: {told}");
        }
        let many = "&keyterm=x".repeat(501);
        assert!(options(&Query::of(&format!("model=nova-3{many}"))).is_err());
    }

    #[test]
    fn the_sdks_own_query_is_understood() {
        let query = "channels=1&encoding=linear16&endpointing=300&interim_results=true&keyterm=foo+bar&keyterm=baz&\
                     language=en-US&model=nova-3&punctuate=true&sample_rate=16000&smart_format=true&\
                     utterance_end_ms=1000&vad_events=true";
        let options = options(&Query::of(query)).unwrap();
        assert_eq!(options.endpointing, Some(Duration::from_millis(300)));
        assert_eq!(options.utterance_end, Some(Duration::from_secs(1)));
        assert!(options.interim_results && options.wording.punctuate && options.vad_events);
        assert_eq!(
            options.format,
            AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000)
        );
    }
}
