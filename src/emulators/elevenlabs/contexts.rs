//! Contexts: each collects text until there is enough to say, and ends on request once everything was spoken.

use std::collections::VecDeque;

use actix_web::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::FutureExt;
use futures_util::future::{pending, select_all};
use serde_json::Value;

use super::Problem;
use super::alignment::Characters;
use super::tts::Asked;
use crate::speech::{Piece, Saying, Speech};
use crate::visit::Visit;
use vivavoce_audio::Encoding;

/// Contexts that a socket may have at once.
const MOST_CONTEXTS: usize = 5;
/// Characters that a context may keep to be said.
const MOST_TEXT: usize = 1 << 20;

/// What a context has to tell.
pub(super) struct Said {
    pub(super) context_id: String,
    pub(super) told: Told,
}

pub(super) enum Told {
    /// A piece of sound with its alignments.
    Sound(String, [Value; 2]),
    /// That there is no more sound of the text that was flushed.
    Generated,
    /// That it has ended.
    Ended,
}

/// The contexts of a socket.
#[derive(Default)]
pub(super) struct Contexts(Vec<Context>);

impl Contexts {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn find(&mut self, id: &str) -> Option<&mut Context> {
        // One that is closing is none any more; its name is free for another.
        self.0
            .iter_mut()
            .find(|context| context.id == id && !context.closing)
    }

    /// Whether there is one of this name, be it closing.
    pub(super) fn has(&self, id: &str) -> bool {
        self.0.iter().any(|context| context.id == id)
    }

    pub(super) fn add(&mut self, context: Context) -> Result<(), Problem> {
        if self.0.len() >= MOST_CONTEXTS {
            return Err(Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "max_active_conversations",
                format!("Maximum simultaneous contexts per connection exceeded ({MOST_CONTEXTS})"),
            ));
        }
        self.0.push(context);
        Ok(())
    }

    /// Says the rest of everything.
    pub(super) fn close_all(&mut self, visit: &Visit) -> Result<(), Problem> {
        for context in self.0.iter_mut().filter(|context| !context.closing) {
            context.flush(visit)?;
            context.close();
        }
        Ok(())
    }

    /// What any context tells next. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Result<Said, Problem> {
        let busy: Vec<_> = self
            .0
            .iter_mut()
            .filter(|context| context.speech.is_some() || context.closing)
            .map(|context| context.next().boxed_local())
            .collect();
        if busy.is_empty() {
            pending::<()>().await;
        }
        let (said, _, others) = select_all(busy).await;
        drop(others);
        let said = said?;
        if matches!(said.told, Told::Ended) {
            let ended = self
                .0
                .iter()
                .position(|context| context.id == said.context_id && context.has_ended());
            ended.map(|index| self.0.remove(index));
        }
        Ok(said)
    }
}

/// One context.
pub(super) struct Context {
    id: String,
    saying: Saying,
    sync_alignment: bool,
    /// Characters that must have gathered before they are said, one time after the other.
    schedule: VecDeque<usize>,
    gathered: String,
    /// What is to be said after the speech under way.
    waiting: VecDeque<String>,
    speech: Option<Speech>,
    visit: Option<Visit>,
    characters: Characters,
    /// Bytes of sound that were told.
    told_bytes: usize,
    /// Whether the speech before was cut within its last sample, by a fault: the next one makes up for it.
    cut: bool,
    closing: bool,
}

impl Context {
    pub(super) fn new(id: &str, asked: &Asked, speed: f64, schedule: Vec<usize>) -> Self {
        Self {
            id: id.to_owned(),
            saying: Saying {
                speaking_rate: speed,
                format: asked.format,
            },
            sync_alignment: asked.sync_alignment,
            schedule: schedule.into(),
            gathered: String::new(),
            waiting: VecDeque::new(),
            speech: None,
            visit: None,
            characters: Characters::default(),
            told_bytes: 0,
            cut: false,
            closing: false,
        }
    }

    /// More text; said at once, or when enough has gathered.
    pub(super) fn text(&mut self, text: &str, at_once: bool, visit: &Visit) -> Result<(), Problem> {
        let waiting: usize = self.waiting.iter().map(String::len).sum();
        if self.gathered.len() + waiting + text.len() > MOST_TEXT {
            return Err(Problem::new(
                StatusCode::BAD_REQUEST,
                "max_character_limit_exceeded",
                "Too much text waits",
            ));
        }
        self.gathered.push_str(text);
        let enough = self.schedule.front().copied().unwrap_or_default();
        if at_once || self.gathered.chars().count() >= enough {
            if self.schedule.len() > 1 {
                self.schedule.pop_front();
            }
            self.flush(visit)?;
        }
        Ok(())
    }

    /// Says what has gathered.
    pub(super) fn flush(&mut self, visit: &Visit) -> Result<(), Problem> {
        let text = std::mem::take(&mut self.gathered);
        if text.trim().is_empty() {
            return Ok(());
        }
        self.visit = Some(visit.clone());
        self.waiting.push_back(text);
        if self.speech.is_none() {
            self.begin()?;
        }
        Ok(())
    }

    /// Takes no more text, and forgets what was not flushed.
    pub(super) fn close(&mut self) {
        self.gathered.clear();
        self.closing = true;
    }

    fn has_ended(&self) -> bool {
        self.closing && self.speech.is_none() && self.waiting.is_empty()
    }

    fn begin(&mut self) -> Result<(), Problem> {
        self.characters.next_speech();
        self.cut = self.saying.format.encoding == Encoding::Linear16 && self.told_bytes % 2 == 1;
        self.speech = match (self.waiting.pop_front(), &self.visit) {
            (Some(text), Some(visit)) => Some(
                visit
                    .say(&text, &self.saying)
                    .map_err(|error| Problem::failed(&error))?,
            ),
            _ => None,
        };
        Ok(())
    }

    /// What it tells next; not to be asked when there is nothing to say and it is not closing.
    async fn next(&mut self) -> Result<Said, Problem> {
        let context_id = self.id.clone();
        let told = match &mut self.speech {
            Some(speech) => match speech.next().await {
                Some(Ok(piece)) => {
                    let (audio, alignment) = self.told(&piece);
                    Told::Sound(audio, alignment)
                }
                Some(Err(error)) => return Err(Problem::failed(&error)),
                None => {
                    self.begin()?;
                    Told::Generated
                }
            },
            None if self.closing => Told::Ended,
            None => pending().await,
        };
        Ok(Said { context_id, told })
    }

    fn told(&mut self, piece: &Piece) -> (String, [Value; 2]) {
        let alignment = self.characters.of(piece, self.sync_alignment);
        let mut audio = vec![0; usize::from(std::mem::take(&mut self.cut))];
        audio.extend_from_slice(&piece.audio);
        self.told_bytes += audio.len();
        (STANDARD.encode(audio), alignment)
    }
}
