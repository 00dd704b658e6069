//! The contexts of one WebSocket. Text is collected until a sentence is complete or the wait for more times out, and spoken
//! in order. A context that receives nothing for a while after its last audio has ended.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::Problem;
use super::{Container, Manner, Output, done, told};
use crate::clock;
use crate::engine::EngineError;
use crate::outlet::Gone;
use crate::socket::{Message, Socket};
use crate::speech::{Piece, Saying, Speech};

/// A socket on which nothing happens is closed.
const IDLE: Duration = Duration::from_mins(5);
/// How long a context that was not ended waits for more after its last sound.
const EXPIRY: Duration = Duration::from_secs(1);
/// How long text waits for more of it, where the client does not say.
const BUFFERING_MS: u64 = 3_000;
const LONGEST_BUFFERING_MS: u64 = 5_000;
/// Contexts of one socket.
const MOST: usize = 100;
/// Text of one context that waits.
const MOST_TEXT: usize = 64 << 10;

/// A request for speech.
#[derive(Deserialize)]
struct Generation {
    context_id: String,
    #[serde(flatten)]
    manner: Manner,
    transcript: String,
    #[serde(default, rename = "continue")]
    more: bool,
    #[serde(default)]
    flush: bool,
    max_buffer_delay_ms: Option<u64>,
}

struct Context {
    id: String,
    manner: Manner,
    output: Output,
    saying: Saying,
    /// Text that waits for more.
    pending: String,
    /// When it waits no longer; when nothing is left to say, when the context is over.
    due: Option<Instant>,
    /// Texts to be said, and flushes to be confirmed.
    ready: VecDeque<Ready>,
    flushes: u32,
    /// Whether there is no more text.
    ended: bool,
    /// The sound of the texts before.
    offset: Duration,
    /// Bytes of sound so far.
    bytes: usize,
}

enum Ready {
    Text(String),
    Flush(u32),
}

/// What is being said.
struct Utterance {
    id: String,
    speech: Speech,
    /// How much of it there was.
    said: Duration,
}

#[derive(Default)]
struct Contexts {
    open: VecDeque<Context>,
    speaking: Option<Utterance>,
}

/// What happens next.
enum Next {
    Said(Option<Message>),
    Spoken(Option<Result<Piece, EngineError>>),
    Due,
    Closed(u16, &'static str),
}

pub(super) async fn serve(socket: &mut Socket) {
    let mut contexts = Contexts::default();
    let mut idle = socket.visit().timer(IDLE);
    let limit = socket.visit().stream_limit(None);
    loop {
        let due = contexts.due();
        let next = tokio::select! {
            message = socket.recv() => Next::Said(message),
            piece = contexts.piece() => Next::Spoken(piece),
            () = clock::at(due) => Next::Due,
            () = idle.expired() => Next::Closed(1000, "Idle timeout"),
            () = limit.expired() => Next::Closed(1001, "Going away"),
        };
        idle.restart();
        let told = match next {
            Next::Said(Some(Message::Text(text))) => contexts.take(&text, socket).await,
            Next::Said(Some(Message::Binary(_))) => {
                let problem = Problem::bad("Invalid message", "Send JSON.");
                refuse(&problem, None, socket).await
            }
            Next::Said(Some(Message::Close { .. }) | None) => return,
            Next::Spoken(piece) => contexts.spoken(piece, socket).await,
            Next::Due => {
                contexts.release();
                Ok(())
            }
            Next::Closed(code, reason) => return socket.close(code, reason).await,
        };
        if told.is_err() || contexts.go_on(socket).await.is_err() {
            return;
        }
    }
}

async fn refuse(problem: &Problem, id: Option<&str>, socket: &Socket) -> Result<(), Gone> {
    let mut event = problem.event(socket.visit());
    if let Some(id) = id {
        event["context_id"] = id.into();
    }
    socket.send_json(&event).await
}

async fn tell(mut message: Value, id: &str, socket: &Socket) -> Result<(), Gone> {
    message["context_id"] = id.into();
    socket.send_json(&message).await
}

impl Contexts {
    /// When something has to happen next that no message brings about.
    fn due(&self) -> Option<Instant> {
        self.open.iter().filter_map(|context| context.due).min()
    }

    async fn take(&mut self, text: &str, socket: &Socket) -> Result<(), Gone> {
        let message: Value = match serde_json::from_str(text) {
            Ok(message) => message,
            Err(error) => {
                let problem = Problem::bad("Invalid message", error.to_string());
                return refuse(&problem, None, socket).await;
            }
        };
        let id = message["context_id"].as_str().map(str::to_owned);
        if let (Some(id), Some(true)) = (&id, message["cancel"].as_bool()) {
            self.drop_context(id);
            return Ok(());
        }
        let is_this = |context: &Context| Some(&context.id) == id.as_ref();
        if !self.open.iter().any(is_this) {
            socket.visit().asked_by(&message);
        }
        let generation = serde_json::from_value::<Generation>(message)
            .map_err(|error| Problem::bad("Invalid request", error.to_string()));
        match generation.and_then(|generation| self.add(&generation, socket)) {
            Ok(()) => Ok(()),
            Err(problem) => {
                if let Some(id) = &id {
                    self.drop_context(id);
                }
                refuse(&problem, id.as_deref(), socket).await
            }
        }
    }

    /// What was not yet said of it never will be, and nothing more is told of it.
    fn drop_context(&mut self, id: &str) {
        self.open.retain(|context| context.id != id);
        if self
            .speaking
            .as_ref()
            .is_some_and(|speaking| speaking.id == id)
        {
            self.speaking = None;
        }
    }

    fn add(&mut self, generation: &Generation, socket: &Socket) -> Result<(), Problem> {
        let delay = generation.max_buffer_delay_ms.unwrap_or(BUFFERING_MS);
        if delay > LONGEST_BUFFERING_MS {
            let message = "max_buffer_delay_ms must be 0 to 5000.";
            return Err(Problem::bad("Invalid buffering", message));
        }
        let index = match self
            .open
            .iter()
            .position(|context| context.id == generation.context_id)
        {
            Some(index) => index,
            None => self.open(generation)?,
        };
        let Some(context) = self.open.get_mut(index) else {
            return Ok(());
        };
        if context.manner != generation.manner {
            let message = "All fields but the transcript must stay as they are in a context.";
            return Err(Problem::bad("Context changed", message));
        }
        if context.ended {
            return Err(Problem::bad("Context ended", "It takes no more text."));
        }
        if context.pending.is_empty() {
            // It does not expire any more.
            context.due = None;
        }
        context.pending.push_str(&generation.transcript);
        if context.pending.len() > MOST_TEXT {
            return Err(Problem::bad("Invalid transcript", "It is too long."));
        }
        context.ended = !generation.more;
        let complete = context
            .pending
            .trim_end()
            .ends_with(['.', '!', '?', '…', '。']);
        if complete || delay == 0 || generation.flush || context.ended {
            context.release();
        } else {
            let delay = Duration::from_millis(delay);
            let clock = socket.visit().emulation().clock;
            context.due = context.due.or_else(|| clock.after(Instant::now(), delay));
        }
        if generation.flush {
            context.flushes += 1;
            context.ready.push_back(Ready::Flush(context.flushes));
        }
        Ok(())
    }

    fn open(&mut self, generation: &Generation) -> Result<usize, Problem> {
        let (output, saying) = generation.manner.check()?;
        if output.container != Container::Raw {
            let message = "The container must be raw.";
            return Err(Problem::bad("Invalid output format", message));
        }
        if self.open.len() >= MOST {
            return Err(Problem::of(actix_web::http::StatusCode::TOO_MANY_REQUESTS));
        }
        self.open.push_back(Context {
            id: generation.context_id.clone(),
            manner: generation.manner.clone(),
            output,
            saying,
            pending: String::new(),
            due: None,
            ready: VecDeque::new(),
            flushes: 0,
            ended: false,
            offset: Duration::ZERO,
            bytes: 0,
        });
        Ok(self.open.len() - 1)
    }

    /// The next piece of what is being said. May be dropped and called again.
    async fn piece(&mut self) -> Option<Result<Piece, EngineError>> {
        match &mut self.speaking {
            Some(speaking) => speaking.speech.next().await,
            None => std::future::pending().await,
        }
    }

    async fn spoken(
        &mut self,
        piece: Option<Result<Piece, EngineError>>,
        socket: &Socket,
    ) -> Result<(), Gone> {
        let Some(mut speaking) = self.speaking.take() else {
            return Ok(());
        };
        let mut open = self.open.iter_mut();
        let Some(context) = open.find(|context| context.id == speaking.id) else {
            return Ok(());
        };
        match piece {
            Some(Ok(piece)) => {
                speaking.said += piece.duration;
                self.speaking = Some(speaking);
                for message in context.told(piece) {
                    tell(message, &context.id, socket).await?;
                }
                Ok(())
            }
            Some(Err(error)) => {
                self.drop_context(&speaking.id);
                refuse(&Problem::inside(error), Some(&speaking.id), socket).await
            }
            None => {
                context.offset += speaking.said;
                Ok(())
            }
        }
    }

    /// Lets text that has waited long enough be said, and contexts end that have.
    fn release(&mut self) {
        let now = Instant::now();
        for context in &mut self.open {
            if context.due.is_some_and(|due| due <= now) {
                context.ended |= context.pending.is_empty();
                context.release();
            }
        }
    }

    /// Begins the next text, where nothing is being said; ends the contexts that have nothing more to say.
    async fn go_on(&mut self, socket: &Socket) -> Result<(), Gone> {
        while self.speaking.is_none() {
            let Some(index) = self.open.iter().position(Context::has_something_to_do) else {
                break;
            };
            let Some(context) = self.open.get_mut(index) else {
                break;
            };
            match context.ready.pop_front() {
                Some(Ready::Text(text)) => match socket.visit().say(&text, &context.saying) {
                    Ok(speech) => {
                        self.speaking = Some(Utterance {
                            id: context.id.clone(),
                            speech,
                            said: Duration::ZERO,
                        });
                    }
                    Err(error) => {
                        let id = context.id.clone();
                        self.drop_context(&id);
                        refuse(&Problem::inside(error), Some(&id), socket).await?;
                    }
                },
                Some(Ready::Flush(flush_id)) => {
                    let flushed = json!({
                        "type": "flush_done", "done": false, "flush_done": true, "flush_id": flush_id, "status_code": 206,
                    });
                    tell(flushed, &context.id, socket).await?;
                }
                None => {
                    let id = context.id.clone();
                    self.drop_context(&id);
                    tell(done(), &id, socket).await?;
                }
            }
        }
        let clock = socket.visit().emulation().clock;
        let expiry = clock.after(Instant::now(), EXPIRY);
        let speaking = self.speaking.as_ref().map(|speaking| speaking.id.as_str());
        for context in &mut self.open {
            let waits = context.pending.is_empty()
                && context.ready.is_empty()
                && Some(context.id.as_str()) != speaking;
            if waits && context.due.is_none() {
                context.due = expiry;
            }
        }
        Ok(())
    }
}

impl Context {
    fn has_something_to_do(&self) -> bool {
        !self.ready.is_empty() || self.ended
    }

    /// The messages about a piece. The sound of a context goes on from text to text: a sample that a fault has cut at the
    /// end of one is made whole before the next.
    fn told(&mut self, mut piece: Piece) -> Vec<Value> {
        if piece.start.is_zero() && self.output.raw.width() == 2 && self.bytes % 2 == 1 {
            piece.audio = [&[0], &piece.audio[..]].concat().into();
        }
        self.bytes += piece.audio.len();
        told(
            &piece,
            self.output.raw,
            self.offset,
            self.manner.add_timestamps,
        )
    }

    /// What waits for more need not wait any longer.
    fn release(&mut self) {
        self.due = None;
        if !self.pending.trim().is_empty() {
            self.ready
                .push_back(Ready::Text(std::mem::take(&mut self.pending)));
        }
        self.pending.clear();
    }
}
