//! `/v2/listen`: Flux. Each message has everything since the last end of turn.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Deserialize;
use serde_json::{Value, json};

use super::listen::{IDLE, format};
use super::query::{Problem, Query};
use super::{Direction, Emulation, admitted, bad_request};
use crate::clock::Timer;
use crate::engine::{EngineError, Heard, Listening, Recogniser};
use crate::outlet::Gone;
use crate::socket::{Message, Socket, accept};
use crate::visit::Visit;
use vivavoce_audio::AudioFormat;
use vivavoce_seams::{Transcript, Word};

const MODELS: &[&str] = &["flux-general-en", "flux-general-multi"];
const MULTILINGUAL: &str = "flux-general-multi";
/// The silence after which this model takes a turn for ended, and how sure it is then.
const END_OF_TURN: Duration = Duration::from_millis(400);
const SURE: f64 = 0.9;
/// It tells what it hears as often as this, of sound.
const UPDATES: Duration = Duration::from_millis(250);

struct Options {
    format: AudioFormat,
    eager: bool,
    thresholds: Thresholds,
    languages: bool,
}

/// When a turn ends.
#[derive(Clone, Copy)]
struct Thresholds {
    /// How sure the model must be.
    confidence: f64,
    /// The silence after which it ends anyway.
    timeout: Duration,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            confidence: 0.7,
            timeout: Duration::from_secs(5),
        }
    }
}

fn options(query: &Query) -> Result<Options, Problem> {
    let model = query.text("model").ok_or("model is required.")?;
    if !MODELS.contains(&model) {
        return Err("No such model found.".to_owned());
    }
    // What only the other interface knows.
    let foreign = [
        "language",
        "channels",
        "interim_results",
        "punctuate",
        "endpointing",
    ];
    if let Some(key) = foreign.into_iter().find(|key| query.has(key)) {
        return Err(format!("Unknown parameter: {key}."));
    }
    if query.has("language_hint") && model != MULTILINGUAL {
        return Err("language_hint requires flux-general-multi.".to_owned());
    }
    let usual = Thresholds::default();
    let confidence = query.number("eot_threshold", 0.5, 1.0)?;
    let timeout = query.number("eot_timeout_ms", 500, 60_000)?;
    Ok(Options {
        format: format(query, 1)?,
        thresholds: Thresholds {
            confidence: confidence.unwrap_or(usual.confidence),
            timeout: timeout.map_or(usual.timeout, Duration::from_millis),
        },
        eager: query.number("eager_eot_threshold", 0.3, 0.9)?.is_some(),
        languages: model == MULTILINGUAL,
    })
}

/// `GET /v2/listen`.
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
        let listening = Listening {
            format: options.format,
            endpointing: Some(END_OF_TURN),
        };
        match socket.visit().listen(listening).await {
            Ok(recogniser) => {
                let mut stream = Stream::new(socket.visit().clone(), options, recogniser);
                // Whoever has gone is told nothing.
                let _ = stream.run(socket).await;
            }
            Err(_) => socket.close(1011, "NET-0000").await,
        }
    })?;
    super::tell_request_id(&mut response, request_id);
    Ok(response)
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Command {
    CloseStream,
    ForceEndTurn,
    Configure {
        #[serde(default)]
        thresholds: Value,
        #[serde(default)]
        keyterms: Value,
        #[serde(default)]
        language_hints: Value,
    },
}

struct Stream {
    options: Options,
    visit: Visit,
    recogniser: Recogniser,
    idle: Timer,
    limit: Timer,
    sequence: u64,
    turn: u64,
    state: State,
    /// Seconds at which the turn begins.
    began: f64,
    /// Finals of the turn.
    said: Said,
    /// What else was heard of it, which may change.
    partial: Said,
    /// Up to where something was heard.
    heard_until: Duration,
    /// Up to where the client was told something.
    told_until: Duration,
    finished: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nobody speaks.
    Quiet,
    /// A turn has begun.
    Speaking,
    /// The client was told that the turn may have ended.
    EagerlyEnded,
    /// Its end was asked for, because it was silent for so long.
    TimedOut,
}

/// A text and its words.
#[derive(Clone, Default)]
struct Said {
    text: String,
    words: Vec<Word>,
}

impl Said {
    fn of(transcript: Transcript) -> Self {
        Self {
            text: transcript.text,
            words: transcript.words,
        }
    }

    fn and(&self, more: &Self) -> Self {
        let space = if self.text.is_empty() || more.text.is_empty() {
            ""
        } else {
            " "
        };
        Self {
            text: format!("{}{space}{}", self.text, more.text),
            words: [&self.words[..], &more.words].concat(),
        }
    }
}

impl Stream {
    fn new(visit: Visit, options: Options, recogniser: Recogniser) -> Self {
        Self {
            idle: visit.timer(IDLE),
            limit: visit.stream_limit(None),
            visit,
            options,
            recogniser,
            sequence: 0,
            turn: 0,
            state: State::Quiet,
            began: 0.0,
            said: Said::default(),
            partial: Said::default(),
            heard_until: Duration::ZERO,
            told_until: Duration::ZERO,
            finished: false,
        }
    }

    async fn run(&mut self, socket: &mut Socket) -> Result<(), Gone> {
        self.send(json!({"type": "Connected"}), socket).await?;
        loop {
            // What was heard comes first: where there was silence, it is known before more sound is taken.
            tokio::select! {
                biased;
                heard = self.recogniser.next() => match heard {
                    Some(Ok(heard)) => {
                        self.heard(heard, socket).await?;
                        // All sound may have gone by before this was known, and no more may come.
                        self.pass(socket).await?;
                    }
                    Some(Err(error)) => return self.fail(&error, socket).await,
                    None => {
                        if !self.said.text.is_empty() {
                            let all = self.recogniser.position();
                            self.end_of_turn("model", all, socket).await?;
                        }
                        socket.close(1000, "").await;
                        return Ok(());
                    }
                },
                message = socket.recv() => match message {
                    None | Some(Message::Close { .. }) => return Err(Gone),
                    Some(_) if self.finished => {}
                    Some(Message::Binary(sound)) => {
                        self.idle.restart();
                        if let Err(error) = self.recogniser.push(&sound).await {
                            return self.fail(&error, socket).await;
                        }
                        self.pass(socket).await?;
                    }
                    Some(Message::Text(text)) => match serde_json::from_str(&text) {
                        Ok(command) => self.command(command, socket).await?,
                        Err(error) => {
                            let words = error.to_string();
                            return self.fatal("MESSAGE-0000", &words, (1008, "MESSAGE-0000"), socket).await;
                        }
                    },
                },
                () = self.idle.expired(), if !self.finished => {
                    return self.fatal("NET-0001", "no audio was received", (1011, "NET-0001"), socket).await;
                }
                () = self.limit.expired() => {
                    return self.fatal("NET-0003", "the session is too long", (1011, "NET-0003"), socket).await;
                }
            }
        }
    }

    async fn command(&mut self, command: Command, socket: &Socket) -> Result<(), Gone> {
        match command {
            Command::CloseStream => {
                self.finished = true;
                self.recogniser.finish().await;
                Ok(())
            }
            Command::ForceEndTurn => {
                self.recogniser.finalize().await;
                Ok(())
            }
            Command::Configure {
                thresholds,
                keyterms,
                language_hints,
            } => {
                self.configure(&thresholds);
                let answer = json!({
                    "type": "ConfigureSuccess", "thresholds": thresholds, "keyterms": keyterms, "language_hints": language_hints,
                });
                self.send(answer, socket).await
            }
        }
    }

    /// Takes the thresholds that are within their bounds.
    fn configure(&mut self, wanted: &Value) {
        let known = &mut self.options.thresholds;
        let confidence = wanted["eot_threshold"].as_f64();
        if let Some(confidence) = confidence.filter(|sure| (0.5..=1.0).contains(sure)) {
            known.confidence = confidence;
        }
        let timeout = wanted["eot_timeout_ms"].as_u64();
        if let Some(timeout) = timeout.filter(|ms| (500..=60_000).contains(ms)) {
            known.timeout = Duration::from_millis(timeout);
        }
    }

    /// What is due by now, as sound goes by: news of the turn, or its end in silence.
    async fn pass(&mut self, socket: &Socket) -> Result<(), Gone> {
        if matches!(self.state, State::Quiet | State::TimedOut) {
            return Ok(());
        }
        let position = self.recogniser.position();
        let silence = position.saturating_sub(self.heard_until);
        if silence >= self.options.thresholds.timeout {
            self.state = State::TimedOut;
            self.recogniser.finalize().await;
        } else if position.saturating_sub(self.told_until) >= UPDATES {
            self.update(socket).await?;
        }
        Ok(())
    }

    async fn heard(&mut self, heard: Heard, socket: &Socket) -> Result<(), Gone> {
        match heard {
            Heard::SpeechStarted { .. } => {
                self.heard_until = self.recogniser.position();
                self.begin(socket).await
            }
            Heard::Partial(segment) => {
                self.begin(socket).await?;
                self.heard_until = self.recogniser.position();
                self.partial = Said::of(segment);
                self.update(socket).await
            }
            Heard::Final(segment) => {
                self.begin(socket).await?;
                let end = segment.words.last().map(|word| word.end);
                let end = end.and_then(|end| Duration::try_from_secs_f64(end).ok());
                self.heard_until = end.unwrap_or_else(|| self.recogniser.position());
                self.said = self.said.and(&Said::of(segment));
                self.partial = Said::default();
                self.update(socket).await
            }
            Heard::EndOfSpeech { at } if self.state != State::Quiet => {
                let waits = self.state != State::TimedOut;
                if waits && self.options.eager && !self.said.text.is_empty() {
                    self.state = State::EagerlyEnded;
                    let turn = self.turn_info("EagerEndOfTurn", &self.said, 0.6);
                    self.send(turn, socket).await?;
                }
                if self.options.thresholds.confidence <= SURE {
                    self.end_of_turn("model", at, socket).await?;
                }
                Ok(())
            }
            Heard::Finalized { at } if self.state != State::Quiet => {
                let trigger = if self.state == State::TimedOut {
                    "timeout"
                } else {
                    "manual"
                };
                self.end_of_turn(trigger, at, socket).await
            }
            Heard::EndOfSpeech { .. } | Heard::Finalized { .. } => Ok(()),
        }
    }

    async fn begin(&mut self, socket: &Socket) -> Result<(), Gone> {
        let event = match self.state {
            State::Quiet => "StartOfTurn",
            State::EagerlyEnded => "TurnResumed",
            State::Speaking | State::TimedOut => return Ok(()),
        };
        self.state = State::Speaking;
        let turn = self.turn_info(event, &self.said, 0.0);
        self.send(turn, socket).await
    }

    async fn update(&mut self, socket: &Socket) -> Result<(), Gone> {
        self.told_until = self.recogniser.position();
        let turn = self.turn_info("Update", &self.said.and(&self.partial), 0.1);
        self.send(turn, socket).await
    }

    /// More may have been sent than the turn had until its end.
    async fn end_of_turn(
        &mut self,
        trigger: &str,
        at: Duration,
        socket: &Socket,
    ) -> Result<(), Gone> {
        let mut turn = self.turn_info("EndOfTurn", &self.said, SURE);
        turn["trigger"] = json!(trigger);
        turn["audio_window_end"] = json!(at.as_secs_f64());
        self.state = State::Quiet;
        self.said = Said::default();
        self.partial = Said::default();
        self.turn += 1;
        self.began = at.as_secs_f64();
        self.send(turn, socket).await
    }

    fn turn_info(&self, event: &str, said: &Said, confidence: f64) -> Value {
        let words = said.words.iter().map(|word| {
            json!({
                "word": word.word, "confidence": word.confidence.unwrap_or_default(), "start": word.start, "end": word.end,
            })
        });
        let mut turn = json!({
            "type": "TurnInfo", "event": event, "turn_index": self.turn, "audio_window_start": self.began,
            "audio_window_end": self.recogniser.position().as_secs_f64(), "transcript": said.text,
            "words": words.collect::<Vec<_>>(), "end_of_turn_confidence": confidence,
        });
        if self.options.languages && !said.text.is_empty() {
            turn["languages"] = json!(["en"]);
        }
        turn
    }

    async fn send(&mut self, mut message: Value, socket: &Socket) -> Result<(), Gone> {
        message["request_id"] = json!(self.visit.request_id().to_string());
        message["sequence_id"] = json!(self.sequence);
        self.sequence += 1;
        socket.send_json(&message).await
    }

    async fn fail(&mut self, error: &EngineError, socket: &mut Socket) -> Result<(), Gone> {
        let (code, close) = match error {
            EngineError::Decode(_) | EngineError::Encode(_) => ("DATA-0000", (1008, "DATA-0000")),
            EngineError::Provider(_) => ("NET-0000", (1011, "NET-0000")),
        };
        self.fatal(code, &error.to_string(), close, socket).await
    }

    async fn fatal(
        &mut self,
        code: &str,
        description: &str,
        (close, reason): (u16, &str),
        socket: &mut Socket,
    ) -> Result<(), Gone> {
        let error = json!({"type": "Error", "code": code, "description": description});
        self.send(error, socket).await?;
        socket.close(close, reason).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_vendor_refuses_is_refused() {
        let sound = "encoding=linear16&sample_rate=16000";
        for query in [
            "",
            "model=nova-3",
            "model=flux-general-en&language=en",
            "model=flux-general-en&interim_results=true",
            "model=flux-general-en&language_hint=de",
            "model=flux-general-en&eot_threshold=0.2",
            "model=flux-general-en&eot_timeout_ms=100",
        ] {
            assert!(
                options(&Query::of(&format!("{query}&{sound}"))).is_err(),
                "{query}"
            );
        }
        for query in [
            "model=flux-general-en",
            "model=flux-general-multi&language_hint=de&language_hint=en",
        ] {
            assert!(
                options(&Query::of(&format!("{query}&{sound}"))).is_ok(),
                "{query}"
            );
        }
    }
}
