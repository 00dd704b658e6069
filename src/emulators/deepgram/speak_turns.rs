//! `/v2/speak`: Flux, which speaks in turns. On a WebSocket a turn is everything up to a `Flush`, and is spoken sentence by
//! sentence as its text comes; turns are spoken one after the other, and an `Interrupt` ends the one that is being spoken.
//! Over HTTP it is as Aura.

use std::collections::VecDeque;
use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::models::uuid;
use super::query::{Problem, Query};
use super::speak::{End, Family, Wanted, next, say_whole, spoken, wanted_on_socket};
use super::{Direction, Emulation, admitted, bad_request};
use crate::engine::{EngineError, spoken_words};
use crate::outlet::Gone;
use crate::socket::{Message, Socket, accept};
use crate::speech::{Piece, Speech, SpokenWord};
use crate::visit::Visit;

const VOICES: &[&str] = &["flux-alexis-en", "flux-haley-en", "flux-heather-en"];
/// What the query of a socket may have.
const PARAMETERS: &[&str] = &[
    "model",
    "encoding",
    "sample_rate",
    "speed",
    "expressivity",
    "mip_opt_out",
    "tag",
];
/// Speeds, and the steps between them.
const SPEEDS: std::ops::RangeInclusive<f64> = 0.5..=1.5;
const SPEED_STEP: f64 = 0.05;
/// A socket on which nothing is said.
const IDLE: Duration = Duration::from_mins(1);
const LONGEST: Duration = Duration::from_hours(1);
/// Bytes of text that may wait to be spoken, and turns.
const MOST_TEXT: usize = 1 << 20;
const MOST_TURNS: usize = 1_000;
/// What a sentence ends with.
const ENDS: [char; 3] = ['.', '!', '?'];

const FLUX: Family = Family {
    voice,
    linear_rates: &[8_000, 16_000, 24_000, 32_000, 44_100, 48_000],
};

fn voice(query: &Query) -> Result<(String, f64), Problem> {
    let model = query.text("model").ok_or("model is required.")?;
    if !VOICES.contains(&model) {
        return Err(format!("No such model: {model}."));
    }
    query.number("expressivity", -2, 2)?;
    query.flag("mip_opt_out", false)?;
    let speed = match query.text("speed") {
        None => 1.0,
        Some(speed) => {
            let speed = speed.parse().unwrap_or(f64::NAN);
            check_speed(speed).map_err(|(code, problem)| format!("{code}: {problem}"))?;
            speed
        }
    };
    Ok((model.to_owned(), speed))
}

/// The code and description of a failure.
fn check_speed(speed: f64) -> Result<(), (&'static str, &'static str)> {
    if !SPEEDS.contains(&speed) {
        return Err((
            "SPEED_OUT_OF_RANGE",
            "The speed must be between 0.5 and 1.5.",
        ));
    }
    let steps = speed / SPEED_STEP;
    if (steps - steps.round()).abs() > 1e-6 {
        return Err((
            "SPEED_INCREMENT_INVALID",
            "The speed must be a multiple of 0.05.",
        ));
    }
    Ok(())
}

fn wanted(query: &Query) -> Result<Wanted, Problem> {
    match query.names().find(|name| !PARAMETERS.contains(name)) {
        Some(name) => Err(format!("Unknown parameter: {name}.")),
        None => wanted_on_socket(&FLUX, query),
    }
}

/// `POST /v2/speak`.
pub(super) async fn answer(
    request: HttpRequest,
    body: Bytes,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    say_whole(&FLUX, &request, &body, &emulation).await
}

/// `GET /v2/speak`, which is a socket.
pub(super) async fn open(
    request: HttpRequest,
    payload: web::Payload,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    let visit = admitted(&request, &emulation, Direction::Tts)?;
    let wanted = wanted(&Query::of(request.query_string()));
    let wanted = wanted.map_err(|problem| bad_request(&visit, &problem))?;
    let request_id = visit.request_id();
    let mut response = accept(&request, payload, visit, async move |socket| {
        let mut speaker = Speaker::new(socket.visit().clone(), wanted);
        if let End::Close(code, reason) = speaker.run(socket).await {
            // Whoever has gone is told nothing.
            let _ = speaker.fail(reason, socket).await;
            socket.close(code, reason).await;
        }
    })?;
    super::tell_request_id(&mut response, request_id);
    Ok(response)
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Command {
    Speak {
        text: String,
    },
    Flush,
    Interrupt {
        #[serde(default)]
        playback_offset: Option<Offset>,
    },
    Configure {
        #[serde(default)]
        speed: Option<f64>,
    },
    Close,
}

/// How much of the session's sound was heard.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Offset {
    TimeMs { value: u64 },
}

/// Everything up to a flush.
struct Turn {
    id: String,
    /// All of its text.
    text: String,
    /// Up to where that was given to the voice.
    given: usize,
    flushed: bool,
    /// Whether the client was told that it begins.
    started: bool,
    /// Sound of the session before it.
    from: Duration,
    /// Its own sound so far.
    duration: Duration,
    /// What was spoken of it; times are from its beginning.
    words: Vec<SpokenWord>,
}

impl Turn {
    /// What can be spoken next: whole sentences, or the rest once it is flushed.
    fn take(&mut self) -> Option<&str> {
        let rest = &self.text[self.given..];
        let length = if self.flushed {
            rest.len()
        } else {
            let gap = rest
                .char_indices()
                .rev()
                .find(|(at, letter)| letter.is_whitespace() && rest[..*at].ends_with(ENDS));
            gap.map_or(0, |(at, _)| at)
        };
        self.given += length;
        let text = &rest[..length];
        (!text.trim().is_empty()).then_some(text)
    }

    /// Its text up to the word that was heard last, and the rest.
    fn split(&self, heard: Duration) -> (&str, &str) {
        let mut end = 0;
        for word in self.words.iter().take_while(|word| word.end <= heard) {
            let found = self.text[end..].find(&word.word);
            end += found.map_or(0, |at| at + word.word.len());
        }
        self.text.split_at(end)
    }

    fn metadata(&self) -> Value {
        let characters = self.text.chars().count();
        json!({
            "speech_id": self.id, "audio_duration_ms": self.duration.as_millis() as u64,
            "input_character_count": characters, "billable_character_count": characters,
            "controls_applied": {"pronunciations_applied": 0, "breaks_applied": 0, "pronunciation_warnings": 0},
        })
    }
}

struct Speaker {
    visit: Visit,
    wanted: Wanted,
    /// The first is being spoken.
    turns: VecDeque<Turn>,
    minted: u64,
    speech: Option<Speech>,
    /// Sound of the session.
    position: Duration,
    /// What the client had heard at its last interruption.
    interrupted_at: Option<Duration>,
    characters: usize,
    closing: bool,
}

impl Speaker {
    fn new(visit: Visit, wanted: Wanted) -> Self {
        Self {
            visit,
            wanted,
            turns: VecDeque::new(),
            minted: 0,
            speech: None,
            position: Duration::ZERO,
            interrupted_at: None,
            characters: 0,
            closing: false,
        }
    }

    async fn run(&mut self, socket: &mut Socket) -> End {
        let mut idle = self.visit.timer(IDLE);
        let limit = self.visit.stream_limit(Some(LONGEST));
        let model = &self.wanted.model;
        let connected = json!({
            "type": "Connected", "request_id": self.visit.request_id().to_string(), "model_name": model,
            "model_version": "2026.06.01", "model_uuids": [uuid(model)],
        });
        if socket.send_json(&connected).await.is_err() {
            return End::Gone;
        }
        loop {
            if let Err(end) = self.proceed(socket).await {
                return end;
            }
            if self.closing && self.turns.is_empty() {
                return self.sum_up(socket).await;
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

    /// Begins what can be spoken next, and ends turns that have been.
    async fn proceed(&mut self, socket: &Socket) -> Result<(), End> {
        while self.speech.is_none() {
            let Some(turn) = self.turns.front_mut() else {
                return Ok(());
            };
            if !std::mem::replace(&mut turn.started, true) {
                turn.from = self.position;
                let started = json!({"type": "SpeechStarted", "speech_id": turn.id});
                socket.send_json(&started).await?;
            }
            if let Some(text) = turn.take() {
                let text = spoken(text, &self.visit);
                let speech = self.visit.say(&text, &self.wanted.saying);
                self.speech = Some(speech.map_err(|_| End::Close(1011, "NET-0000"))?);
            } else if turn.flushed {
                self.end_turn(socket).await?;
            } else {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn say(
        &mut self,
        piece: Option<Result<Piece, EngineError>>,
        socket: &Socket,
    ) -> Result<(), End> {
        match piece {
            Some(Ok(piece)) => {
                if let Some(turn) = self.turns.front_mut() {
                    // Each speech of a turn has times of its own.
                    let before = turn.duration.saturating_sub(piece.start);
                    let words = piece.words.into_iter().map(|word| SpokenWord {
                        start: before + word.start,
                        end: before + word.end,
                        word: word.word,
                    });
                    turn.words.extend(words);
                    turn.duration += piece.duration;
                }
                self.position += piece.duration;
                socket.send_binary(piece.audio).await?;
            }
            Some(Err(_)) => return Err(End::Close(1011, "NET-0000")),
            None => self.speech = None,
        }
        Ok(())
    }

    async fn end_turn(&mut self, socket: &Socket) -> Result<(), Gone> {
        let Some(turn) = self.turns.pop_front() else {
            return Ok(());
        };
        if spoken_words(&turn.text).next().is_none() {
            let problem = "The turn has no text that can be spoken.";
            warn("NO_SYNTHESIZABLE_TEXT", problem, socket).await?;
        }
        let mut metadata = turn.metadata();
        metadata["type"] = json!("SpeechMetadata");
        socket.send_json(&metadata).await?;
        let flushed = json!({"type": "Flushed", "speech_id": turn.id});
        socket.send_json(&flushed).await
    }

    async fn message(&mut self, message: Message, socket: &Socket) -> Result<(), End> {
        let text = match message {
            Message::Text(text) => text,
            Message::Binary(_) => return Err(End::Close(1003, "MESSAGE-0000")),
            Message::Close { .. } => return Err(End::Gone),
        };
        let command = serde_json::from_str(&text);
        match command.map_err(|_| End::Close(1008, "MESSAGE-0000"))? {
            _ if self.closing => {}
            Command::Speak { text } => self.speak(&text)?,
            Command::Flush => match self.turns.back_mut().filter(|turn| !turn.flushed) {
                Some(turn) => turn.flushed = true,
                None => nothing_is_said(socket).await?,
            },
            Command::Interrupt { playback_offset } => {
                self.interrupt(playback_offset, socket).await?;
            }
            Command::Configure { speed } => self.configure(speed, socket).await?,
            Command::Close => {
                self.closing = true;
                if let Some(turn) = self.turns.back_mut() {
                    turn.flushed = true;
                }
            }
        }
        Ok(())
    }

    fn speak(&mut self, text: &str) -> Result<(), End> {
        // A pronunciation goes with the usual speed only.
        if text.contains(r"\{") && (self.wanted.saying.speaking_rate - 1.0).abs() > 1e-6 {
            return Err(End::Close(1008, "DATA-0002"));
        }
        let waiting: usize = self.turns.iter().map(|turn| turn.text.len()).sum();
        if waiting + text.len() > MOST_TEXT || self.turns.len() > MOST_TURNS {
            return Err(End::Close(1009, "BIG-0000"));
        }
        self.characters += text.chars().count();
        if self.turns.back().is_none_or(|turn| turn.flushed) {
            self.minted += 1;
            let id = self.visit.request_id().as_u128() as u64;
            self.turns.push_back(Turn {
                id: format!(
                    "dg_sp_{:06x}{:06x}",
                    id & 0xff_ffff,
                    self.minted & 0xff_ffff
                ),
                text: String::new(),
                given: 0,
                flushed: false,
                started: false,
                from: Duration::ZERO,
                duration: Duration::ZERO,
                words: Vec::new(),
            });
        }
        if let Some(turn) = self.turns.back_mut() {
            turn.text.push_str(text);
        }
        Ok(())
    }

    async fn interrupt(&mut self, offset: Option<Offset>, socket: &Socket) -> Result<(), Gone> {
        let offset = offset.map(|Offset::TimeMs { value }| Duration::from_millis(value));
        if self.turns.is_empty() {
            return nothing_is_said(socket).await;
        }
        if self.position.is_zero() {
            let problem = "There is no audio that could be interrupted.";
            return warn("NO_AUDIO_GENERATED", problem, socket).await;
        }
        if offset.is_some_and(|offset| self.interrupted_at.is_some_and(|last| offset <= last)) {
            let problem = "The playback offset must advance past that of the last interruption.";
            return warn("INVALID_INTERRUPT_OFFSET", problem, socket).await;
        }
        let Some(turn) = self.turns.pop_front() else {
            return Ok(());
        };
        self.speech = None;
        let played = offset.unwrap_or(self.position);
        let mut answer = json!({
            "type": "SpeechInterrupted", "audio_played_ms": played.as_millis() as u64, "metadata": turn.metadata(),
        });
        if offset.is_some() {
            let (heard, rest) = turn.split(played.saturating_sub(turn.from));
            answer["text_spoken"] = json!(heard);
            answer["text_remaining"] = json!(rest);
        }
        // The session goes on from what was heard.
        self.position = played.min(self.position);
        self.interrupted_at = Some(played);
        socket.send_json(&answer).await
    }

    async fn configure(&mut self, speed: Option<f64>, socket: &Socket) -> Result<(), Gone> {
        let checked = speed.map_or(Ok(()), check_speed);
        let answer = match checked {
            Ok(()) => {
                let saying = &mut self.wanted.saying;
                saying.speaking_rate = speed.unwrap_or(saying.speaking_rate);
                let applied = speed.map_or(json!({}), |speed| json!({"speed": speed}));
                json!({"type": "ConfigureSuccess", "applied": applied})
            }
            Err((code, problem)) => json!({
                "type": "ConfigureFailure", "code": code, "field": "speed", "value": speed, "description": problem,
            }),
        };
        socket.send_json(&answer).await
    }

    async fn sum_up(&self, socket: &mut Socket) -> End {
        let summary = json!({
            "type": "SessionMetadata", "total_audio_duration_ms": self.position.as_millis() as u64,
            "total_input_character_count": self.characters, "total_billable_character_count": self.characters,
        });
        if socket.send_json(&summary).await.is_ok() {
            socket.close(1000, "").await;
        }
        End::Gone
    }

    async fn fail(&self, code: &str, socket: &Socket) -> Result<(), Gone> {
        let description = match code {
            "MESSAGE-0000" => "The message could not be read.",
            "DATA-0002" => "A pronunciation cannot be combined with a speed.",
            "BIG-0000" => "Too much text waits to be spoken.",
            "NET-0001" => "No message was received for too long.",
            "NET-0003" => "The session has lasted as long as one may.",
            _ => "The speech could not be made.",
        };
        let error = json!({"type": "Error", "code": code, "description": description});
        socket.send_json(&error).await
    }
}

async fn warn(code: &str, description: &str, socket: &Socket) -> Result<(), Gone> {
    let warning = json!({"type": "Warning", "code": code, "description": description});
    socket.send_json(&warning).await
}

async fn nothing_is_said(socket: &Socket) -> Result<(), Gone> {
    warn("NO_ACTIVE_SPEECH", "There is no active turn.", socket).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_vendor_refuses_is_refused() {
        for query in [
            "",
            "model=aura-2-thalia-en",
            "model=flux-alexis-en&encoding=mp3",
            "model=flux-alexis-en&sample_rate=22050",
            "model=flux-alexis-en&speed=1.6",
            "model=flux-alexis-en&speed=1.01",
            "model=flux-alexis-en&expressivity=3",
            "model=flux-alexis-en&container=none",
        ] {
            assert!(wanted(&Query::of(query)).is_err(), "{query}");
        }
        for query in [
            "model=flux-alexis-en&encoding=linear16&sample_rate=24000&mip_opt_out=false",
            "model=flux-heather-en&encoding=linear16&sample_rate=44100&speed=1.05&tag=a&tag=b",
        ] {
            assert!(wanted(&Query::of(query)).is_ok(), "{query}");
        }
    }

    fn turn(text: &str, flushed: bool) -> Turn {
        let words = text.split_whitespace().enumerate().map(|(index, word)| {
            let start = Duration::from_millis(100 * index as u64);
            SpokenWord {
                word: word.to_owned(),
                start,
                end: start + Duration::from_millis(80),
            }
        });
        Turn {
            id: String::new(),
            text: text.to_owned(),
            given: 0,
            flushed,
            started: false,
            from: Duration::ZERO,
            duration: Duration::ZERO,
            words: words.collect(),
        }
    }

    #[test]
    fn sentences_are_spoken_as_they_come_and_the_rest_when_it_is_flushed() {
        let mut turn = turn("One. Two! Thr", false);
        assert_eq!(turn.take(), Some("One. Two!"));
        assert_eq!(turn.take(), None);
        turn.text.push_str("ee");
        assert_eq!(turn.take(), None);
        turn.flushed = true;
        assert_eq!(turn.take(), Some(" Three"));
        assert_eq!(turn.take(), None);
    }

    #[test]
    fn a_text_is_split_behind_the_last_word_that_was_heard() {
        let turn = turn("one one two", true);
        let split = |ms| turn.split(Duration::from_millis(ms));
        assert_eq!(split(0), ("", "one one two"));
        assert_eq!(split(190), ("one one", " two"));
        assert_eq!(split(1_000), ("one one two", ""));
    }
}
