//! Both recognisers: one finalises on command, by plain words, and sends what follows the last final; the other detects
//! turns and sends each as it grows.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Deserialize;
use serde_json::{Value, json};

use super::pcm::{Raw, Reader};
use super::{Caller, Problem};
use crate::engine::{Heard, Listening, Recogniser};
use crate::outlet::Gone;
use crate::socket::{Message, Socket, accept};
use crate::{Direction, Emulation};
use vivavoce_audio::{AudioFormat, SampleRate};
use vivavoce_seams::Transcript;

/// Nothing from the client for so long closes its socket.
const IDLE: Duration = Duration::from_mins(3);
/// The silence after which Ink-whisper makes its text final by itself, where it was not told another.
const SILENCE: Duration = Duration::from_millis(800);
/// The silence by which this emulator believes that a turn has ended.
const TURN_SILENCE: Duration = Duration::from_secs(1);
/// The time-out of a turn: that is its least, and its most.
const TURN_TIMEOUT_MS: std::ops::RangeInclusive<f64> = 640.0..=11_200.0;
const MANUAL_MODELS: &[&str] = &["ink-2", "ink-whisper", "ink-whisper-2025-06-04"];
const TURNS_MODELS: &[&str] = &["ink-2"];
const MAX_KEYTERMS: usize = 100;
const MAX_KEYTERM_CHARS: usize = 1_200;

/// What a client asks for.
struct Asked {
    raw: Raw,
    format: AudioFormat,
    whisper: bool,
    language: String,
    silence: Duration,
}

impl Asked {
    fn parse(query: &str, models: &[&str]) -> Result<Self, Problem> {
        let query: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        let get = |name: &str| {
            let found = query.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.as_str())
        };
        let missing =
            |name: &str| Problem::bad("Missing parameter", format!("{name} is required."));
        let model = get("model").ok_or_else(|| missing("model"))?;
        if !models.contains(&model) {
            return Err(invalid_model());
        }
        let raw = Raw::named(get("encoding").ok_or_else(|| missing("encoding"))?);
        let raw =
            raw.ok_or_else(|| Problem::bad("Invalid encoding", "There is no such encoding."))?;
        let rate = get("sample_rate").ok_or_else(|| missing("sample_rate"))?;
        let rate = rate
            .parse::<u64>()
            .ok()
            .and_then(|hz| SampleRate::new(hz).ok());
        let rate = rate.ok_or_else(|| Problem::bad("Invalid sample rate", "Must be in hertz."))?;
        let whisper = model.starts_with("ink-whisper");
        let language = get("language").unwrap_or("en");
        check_language(language, whisper)?;
        check_keyterms(query.iter().filter(|(name, _)| name == "keyterm"))?;
        let silence = match get("max_silence_duration_secs").map(str::parse) {
            None => SILENCE,
            Some(Ok(seconds)) => Duration::try_from_secs_f64(seconds).unwrap_or(SILENCE),
            Some(Err(_)) => {
                let message = "max_silence_duration_secs must be a number.";
                return Err(Problem::bad("Invalid parameter", message));
            }
        };
        Ok(Self {
            raw,
            format: AudioFormat::mono(raw.ours(), rate),
            whisper,
            language: language.to_owned(),
            silence,
        })
    }

    async fn listen(&self, socket: &Socket, endpointing: Option<Duration>) -> Option<Recogniser> {
        let format = self.format;
        let listening = Listening {
            format,
            endpointing,
        };
        socket.visit().listen(listening).await.ok()
    }
}

pub(super) fn invalid_model() -> Problem {
    Problem {
        code: Some("model_not_found"),
        ..Problem::bad(
            "Invalid model",
            "The model is not valid, make sure it is a valid model ID.",
        )
    }
}

fn check_language(language: &str, whisper: bool) -> Result<(), Problem> {
    let known = if whisper {
        (2..=3).contains(&language.len()) && language.bytes().all(|b| b.is_ascii_lowercase())
    } else {
        language == "en"
    };
    let message = "The language is not one of this model's, in ISO-639-1.";
    known
        .then_some(())
        .ok_or_else(|| Problem::bad("Invalid language", message))
}

fn check_keyterms<'a>(terms: impl Iterator<Item = &'a (String, String)>) -> Result<(), Problem> {
    let (count, chars) = terms.fold((0, 0), |(count, chars), (_, term)| {
        (count + 1, chars + term.chars().count())
    });
    if count > MAX_KEYTERMS || chars > MAX_KEYTERM_CHARS {
        let message = "At most 100 keyterms with 1200 characters can be given.";
        return Err(Problem::bad("Too many keyterms", message));
    }
    Ok(())
}

/// `/stt/websocket`.
pub(super) async fn manual(
    request: HttpRequest,
    payload: web::Payload,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    let caller = match Caller::admit(&request, &emulation, Direction::Stt) {
        Ok(caller) => caller,
        Err(answer) => return Ok(*answer),
    };
    match Asked::parse(request.query_string(), MANUAL_MODELS) {
        Ok(asked) => accept(&request, payload, caller.visit, async move |socket| {
            Manual::new(asked).run(socket).await;
        }),
        Err(problem) => Ok(caller.answer(&problem)),
    }
}

/// `/stt/turns/websocket`.
pub(super) async fn turns(
    request: HttpRequest,
    payload: web::Payload,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    let caller = match Caller::admit(&request, &emulation, Direction::Stt) {
        Ok(caller) => caller,
        Err(answer) => return Ok(*answer),
    };
    let asked = Asked::parse(request.query_string(), TURNS_MODELS);
    let timeout = turn_timeout(request.query_string());
    match asked.and_then(|asked| Ok((asked, timeout?))) {
        Ok((asked, timeout)) => accept(&request, payload, caller.visit, async move |socket| {
            Turns::new(timeout).run(asked, socket).await;
        }),
        Err(problem) => Ok(caller.answer(&problem)),
    }
}

fn turn_timeout(query: &str) -> Result<Duration, Problem> {
    let mut query = form_urlencoded::parse(query.as_bytes());
    match query.find(|(name, _)| name == "turn_end_timeout_ms") {
        None => Ok(Duration::from_millis(5_600)),
        Some((_, ms)) => checked_timeout(ms.parse().unwrap_or(f64::NAN)),
    }
}

fn checked_timeout(ms: f64) -> Result<Duration, Problem> {
    if TURN_TIMEOUT_MS.contains(&ms) {
        return Ok(Duration::from_secs_f64(ms / 1_000.0));
    }
    let message = "The time-out of a turn must be 640 to 11200 ms.";
    Err(Problem::bad("Invalid parameter", message))
}

/// A stream that is told when to make its text final.
struct Manual {
    asked: Asked,
    /// Whether a final has been told: the next text begins with a space then.
    spoke: bool,
}

impl Manual {
    fn new(asked: Asked) -> Self {
        Self {
            asked,
            spoke: false,
        }
    }

    async fn run(mut self, socket: &mut Socket) {
        let endpointing = self.asked.whisper.then_some(self.asked.silence);
        let Some(mut recogniser) = self.asked.listen(socket, endpointing).await else {
            return socket.close(1011, "Internal error").await;
        };
        let mut reader = Reader::new(self.asked.raw);
        let mut idle = socket.visit().timer(IDLE);
        let limit = socket.visit().stream_limit(None);
        loop {
            tokio::select! {
                message = socket.recv() => {
                    idle.restart();
                    let taken = match message {
                        Some(Message::Binary(audio)) => {
                            recogniser.push(&reader.read(audio)).await.map_err(|_| Gone)
                        }
                        Some(Message::Text(command)) => obey(&command, &mut recogniser, socket).await,
                        Some(Message::Close { .. }) | None => return,
                    };
                    if taken.is_err() {
                        return socket.close(1011, "Internal error").await;
                    }
                }
                heard = recogniser.next() => match heard {
                    Some(Ok(heard)) => if self.tell(heard, socket).await.is_err() {
                        return;
                    },
                    Some(Err(_)) => return socket.close(1011, "Internal error").await,
                    None => {
                        let _gone = socket.send_json(&named("done", socket)).await;
                        return socket.close(1000, "").await;
                    }
                },
                () = idle.expired() => return socket.close(1000, "Idle timeout").await,
                () = limit.expired() => return socket.close(1001, "Going away").await,
            }
        }
    }

    async fn tell(&mut self, heard: Heard, socket: &Socket) -> Result<(), Gone> {
        let event = match heard {
            Heard::Partial(transcript) => self.transcript(&transcript, false, socket),
            Heard::Final(transcript) => {
                let event = self.transcript(&transcript, true, socket);
                self.spoke = true;
                event
            }
            Heard::Finalized { .. } => named("flush_done", socket),
            Heard::SpeechStarted { .. } | Heard::EndOfSpeech { .. } => return Ok(()),
        };
        socket.send_json(&event).await
    }

    fn transcript(&self, heard: &Transcript, is_final: bool, socket: &Socket) -> Value {
        let mut event = named("transcript", socket);
        let words = heard
            .words
            .iter()
            .map(|word| json!({"word": word.word, "start": word.start, "end": word.end}));
        let ends = heard.words.first().zip(heard.words.last());
        let space = if self.spoke { " " } else { "" };
        event["text"] = format!("{space}{}", heard.text).into();
        event["is_final"] = is_final.into();
        event["duration"] = ends
            .map_or(0.0, |(first, last)| last.end - first.start)
            .into();
        event["language"] = self.asked.language.as_str().into();
        event["words"] = words.collect();
        event
    }
}

/// A message that says nothing but its name.
fn named(name: &str, socket: &Socket) -> Value {
    json!({"type": name, "request_id": socket.visit().request_id().to_string()})
}

/// Commands are bare words: `"done"` with its quotes is none.
async fn obey(command: &str, recogniser: &mut Recogniser, socket: &Socket) -> Result<(), Gone> {
    match command {
        "finalize" => recogniser.finalize().await,
        "close" | "done" => recogniser.finish().await,
        _ => {
            let problem = Problem::bad("Invalid command", "Send finalize or close.");
            return socket.send_json(&problem.event(socket.visit())).await;
        }
    }
    Ok(())
}

/// A stream that finds turns.
struct Turns {
    /// The silence that ends a turn whatever the model thinks.
    timeout: Duration,
    /// What the finals of the open turn have said; absent between turns.
    turn: Option<String>,
    /// Up to where something was heard.
    heard_until: Duration,
}

/// Settings that change while it hears, and the end.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Command {
    Close,
    Config { turn: Option<TurnConfig> },
}

#[derive(Deserialize)]
struct TurnConfig {
    end_timeout_ms: Option<f64>,
}

impl Turns {
    fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            turn: None,
            heard_until: Duration::ZERO,
        }
    }

    async fn run(mut self, asked: Asked, socket: &mut Socket) {
        let Some(mut recogniser) = asked.listen(socket, Some(TURN_SILENCE)).await else {
            return socket.close(1011, "Internal error").await;
        };
        if socket.send_json(&named("connected", socket)).await.is_err() {
            return;
        }
        let mut reader = Reader::new(asked.raw);
        let mut idle = socket.visit().timer(IDLE);
        let limit = socket.visit().stream_limit(None);
        loop {
            tokio::select! {
                message = socket.recv() => {
                    let taken = match message {
                        Some(Message::Binary(audio)) => {
                            idle.restart();
                            let taken = recogniser.push(&reader.read(audio)).await;
                            self.hurry(&mut recogniser).await;
                            taken.map_err(|_| Gone)
                        }
                        Some(Message::Text(text)) => self.obey(&text, &mut recogniser, socket).await,
                        Some(Message::Close { .. }) | None => return,
                    };
                    if taken.is_err() {
                        return socket.close(1011, "Internal error").await;
                    }
                }
                heard = recogniser.next() => match heard {
                    Some(Ok(heard)) => if self.tell(heard, recogniser.position(), socket).await.is_err() {
                        return;
                    },
                    Some(Err(_)) => return socket.close(1011, "Internal error").await,
                    None => {
                        let _gone = self.end_turn(socket).await;
                        return socket.close(1000, "").await;
                    }
                },
                () = idle.expired() => return socket.close(1000, "Idle timeout").await,
                () = limit.expired() => return socket.close(1001, "Going away").await,
            }
        }
    }

    /// Ends a turn whose silence has lasted for its time-out, where that is shorter than what the model waits for.
    async fn hurry(&mut self, recogniser: &mut Recogniser) {
        let silence = recogniser.position().saturating_sub(self.heard_until);
        if self.turn.is_some() && self.timeout < TURN_SILENCE && silence >= self.timeout {
            // Once for this silence.
            self.heard_until = recogniser.position();
            recogniser.finalize().await;
        }
    }

    async fn obey(
        &mut self,
        text: &str,
        recogniser: &mut Recogniser,
        socket: &Socket,
    ) -> Result<(), Gone> {
        let obeyed = match serde_json::from_str(text) {
            Ok(Command::Close) => {
                recogniser.finish().await;
                Ok(())
            }
            Ok(Command::Config { turn }) => match turn.and_then(|turn| turn.end_timeout_ms) {
                Some(ms) => checked_timeout(ms).map(|timeout| self.timeout = timeout),
                None => Ok(()),
            },
            Err(error) => Err(Problem::bad("Invalid command", error.to_string())),
        };
        match obeyed {
            Ok(()) => Ok(()),
            Err(problem) => socket.send_json(&problem.event(socket.visit())).await,
        }
    }

    async fn tell(
        &mut self,
        heard: Heard,
        position: Duration,
        socket: &Socket,
    ) -> Result<(), Gone> {
        match heard {
            Heard::SpeechStarted { .. } => self.begin_turn(position, socket).await,
            Heard::Partial(transcript) => {
                self.begin_turn(position, socket).await?;
                self.note_end(&transcript, position);
                let text = self.with(&transcript.text);
                self.say("turn.update", Some(&text), socket).await
            }
            Heard::Final(transcript) => {
                self.begin_turn(position, socket).await?;
                self.turn = Some(self.with(&transcript.text));
                Ok(())
            }
            Heard::EndOfSpeech { .. } | Heard::Finalized { .. } => self.end_turn(socket).await,
        }
    }

    async fn begin_turn(&mut self, position: Duration, socket: &Socket) -> Result<(), Gone> {
        if self.turn.is_some() {
            return Ok(());
        }
        self.turn = Some(String::new());
        self.heard_until = position;
        self.say("turn.start", None, socket).await
    }

    async fn end_turn(&mut self, socket: &Socket) -> Result<(), Gone> {
        let Some(text) = self.turn.take() else {
            return Ok(());
        };
        self.say("turn.eager_end", Some(&text), socket).await?;
        self.say("turn.end", Some(&text), socket).await
    }

    fn note_end(&mut self, heard: &Transcript, position: Duration) {
        let end = heard.words.last().map(|word| word.end);
        let end = end.and_then(|end| Duration::try_from_secs_f64(end).ok());
        self.heard_until = end.unwrap_or(position);
    }

    /// The turn with more text.
    fn with(&self, text: &str) -> String {
        let before = self.turn.as_deref().unwrap_or_default();
        let space = if before.is_empty() { "" } else { " " };
        format!("{before}{space}{text}")
    }

    async fn say(&self, name: &str, transcript: Option<&str>, socket: &Socket) -> Result<(), Gone> {
        let mut event = named(name, socket);
        if let Some(transcript) = transcript {
            event["transcript"] = transcript.into();
        }
        socket.send_json(&event).await
    }
}
