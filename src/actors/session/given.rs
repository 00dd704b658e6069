//! A session that goes on at another server (protocol, section 1, "Resuming"): the server that drains gives it away when nothing
//! is being said, as data, and the one to which its client comes back begins it anew with that. What can be said as messages of
//! `/ws` is said so: the config with its updates, and the utterances that nobody has heard yet.

use std::time::Duration;

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tracing::Instrument;

use super::SessionActor;
use super::playback::{CutIds, Speak};
use super::player::Player;
use super::protocol::{ClientMessage, ServerMessage};
use super::recording::FormerRecording;
use super::usage::UsageSoFar;
use crate::registry::resumes::ResumeToken;
use crate::responder::{ConversationSoFar, GiveConversation};
use vivavoce_socket::{MOVES, SentState};

/// The format of [`GivenSession`].
pub const FORMAT: u32 = 1;
/// How often a draining server looks whether a session can go.
const LOOKS_EVERY: Duration = Duration::from_millis(100);
/// How often it asks whether there is another server by now: the one that is to replace it may come later.
const ASKS_EVERY: Duration = Duration::from_secs(1);
/// The most sound that is taken for heard: a year of it.
const MOST_HEARD: Duration = Duration::from_hours(366 * 24);
/// What the other server's answer begins with.
const KIND: &str = "given_session";
/// Why the socket of a session that goes on elsewhere closes.
const REASON: &str = "the session goes on at another server: resume it";

/// What another server needs to go on with a session, but for what was sent.
#[derive(Debug, Serialize, Deserialize)]
pub struct Given {
    /// The config in force with its updates, then the utterances that wait, as the client has said them.
    messages: Vec<Value>,
    /// How much of the messages are configs.
    configs: u64,
    /// How much sound it has heard.
    heard: Duration,
    usage: UsageSoFar,
    cut_ids: CutIds,
    /// Of the language model, where that leads the conversation.
    conversation: Option<ConversationSoFar>,
    /// A turn that it has not answered.
    unanswered: Option<String>,
    /// What it has recorded.
    #[serde(default)]
    recording: Option<FormerRecording>,
}

/// The answer to a socket that has come for a session.
#[derive(Debug, Serialize, Deserialize)]
pub struct GivenSession {
    r#type: String,
    format: u32,
    pub given: Given,
    pub sent: SentState,
}

impl GivenSession {
    pub fn new(given: Given, sent: SentState) -> Self {
        Self {
            r#type: KIND.to_owned(),
            format: FORMAT,
            given,
            sent,
        }
    }

    /// Reads the first message of another server; `None` where that is one for the client, or no session can be so.
    pub fn read(text: &str) -> Option<Self> {
        let read: Self = serde_json::from_str(text).ok()?;
        let is_one = read.r#type == KIND && read.format == FORMAT;
        let recording = read.given.recording.as_ref();
        let is_one = is_one && recording.is_none_or(FormerRecording::is_possible);
        (is_one && read.given.heard <= MOST_HEARD && read.sent.is_possible()).then_some(read)
    }

    pub fn to_json(&self) -> String {
        // Names, numbers and values that were read: they can always be written.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Reads what another server may answer, for the fuzz target `given_session`; whether it is a session.
#[doc(hidden)]
pub fn fuzz_given(text: &str) -> bool {
    let Some(read) = GivenSession::read(text) else {
        return false;
    };
    let again = GivenSession::read(&read.to_json());
    assert_eq!(again.map(|again| again.sent), Some(read.sent.clone()));
    for message in read.given.messages() {
        let _parsed = ClientMessage::parse(message.as_bytes());
    }
    vivavoce_socket::fuzz_sent(read.sent);
    true
}

impl Given {
    /// The messages that begin the session anew.
    pub fn messages(&self) -> impl Iterator<Item = String> {
        self.messages.iter().map(Value::to_string)
    }

    pub const fn heard(&self) -> Duration {
        self.heard
    }
}

/// A server asks for the session.
#[derive(Message)]
#[rtype(result = "()")]
pub struct GiveAway {
    /// `None`: it stays here.
    pub told: oneshot::Sender<Option<Given>>,
}

/// The session was another server's.
#[derive(Message)]
#[rtype(result = "()")]
pub struct TakeOver {
    /// Its messages follow.
    pub given: Given,
    /// The token with which its client has come, for as long as it may not have the next one.
    pub token: String,
}

/// What has been taken over and is not in force yet.
#[derive(Default)]
pub struct TakenOver {
    conversation: Option<ConversationSoFar>,
    unanswered: Option<String>,
    pub(super) recording: Option<FormerRecording>,
}

/// A session on its way to another server.
#[derive(Default)]
pub struct Giving {
    /// Looks for the moment at which it can go.
    looking: Option<SpawnHandle>,
    /// Whether the language model is answering.
    is_answering: bool,
    /// Whoever waits for the session, while its last words are waited for.
    waiting: Option<(oneshot::Sender<Option<Given>>, Given)>,
}

impl SessionActor {
    /// The server drains: the session moves as soon as it can, where there is a server to which it can.
    pub(super) fn begin_to_move(&mut self, context: &mut Context<Self>) {
        let Some(replicas) = self.services.replicas.clone() else {
            return;
        };
        if !self.writer.keeps_sent() || self.services.replaced.is_cancelled() {
            return;
        }
        let looking = async move {
            while !replicas.another_is_there().await {
                tokio::time::sleep(ASKS_EVERY).await;
            }
        };
        let looking = looking.in_current_span().into_actor(self);
        context.spawn(looking.map(|(), session, context| {
            let looking = context.run_interval(LOOKS_EVERY, Self::look_for_rest);
            session.giving.looking = Some(looking);
        }));
    }

    fn look_for_rest(&mut self, context: &mut Context<Self>) {
        // Whoever is away may come back by another server.
        if self.writer.is_cut_off() {
            return;
        }
        let may_go = self.may_go() && self.state.may_be_given().is_some();
        // What is being said is said to its end, and nothing begins after it.
        self.to_player(|player| player.rest(may_go));
        if may_go && self.unsaid().is_some() {
            tracing::debug!("a session moves");
            self.stop_looking(context);
            self.writer.close(MOVES, REASON);
        }
    }

    /// Whether nobody speaks or is about to, and no loading sound promises that somebody will: what is queued must not wait then.
    fn may_go(&self) -> bool {
        let loads = self.output.as_ref().is_some_and(Player::loads);
        self.state.is_quiet(self.listening.input.moment().now)
            && !self.giving.is_answering
            && !loads
    }

    /// The language model tells how far its answer is.
    pub(super) const fn look_at_answer(&mut self, message: &ServerMessage) {
        match message {
            ServerMessage::ResponseStarted { .. } => self.giving.is_answering = true,
            ServerMessage::ResponseDone { .. } => self.giving.is_answering = false,
            _ => {}
        }
    }

    fn stop_looking(&mut self, context: &mut Context<Self>) {
        if let Some(looking) = self.giving.looking.take() {
            context.cancel_future(looking);
        }
    }

    /// Its client has come back here: it stays, if that was its way to another server.
    pub(super) fn stays(&self) {
        if self.giving.looking.is_none() {
            self.to_player(|player| player.rest(false));
        }
    }

    /// What nobody has heard yet; `None` while something is being said.
    fn unsaid(&self) -> Option<Vec<Speak>> {
        self.output
            .as_ref()
            .map_or_else(|| Some(Vec::new()), Player::unsaid)
    }

    /// What is given away now; `None` where that cannot be.
    fn given(&self) -> Option<Given> {
        if !self.services.draining.is_cancelled() || !self.may_go() {
            return None;
        }
        let mut messages = self.state.may_be_given()?;
        let configs = messages.len() as u64;
        messages.extend(self.unsaid()?.iter().map(Speak::to_message));
        let cut_ids = self.output.as_ref().map(Player::cut_ids);
        Some(Given {
            messages,
            configs,
            heard: Duration::ZERO,
            usage: self.usage.so_far(),
            cut_ids: cut_ids.unwrap_or_else(|| self.cut_ids.clone()),
            conversation: None,
            unanswered: None,
            recording: None,
        })
    }

    /// Ends here what goes on elsewhere, once the last words of what was heard have been told.
    fn go(
        &mut self,
        told: oneshot::Sender<Option<Given>>,
        given: Given,
        context: &mut Context<Self>,
    ) {
        self.to_player(Player::forget);
        self.giving.waiting = Some((told, given));
        let moment = self.moment();
        self.state.end(MOVES, REASON, moment);
        self.carry_out(context);
    }

    /// Whether the session goes on elsewhere instead of being closed; it is given away, then.
    pub(super) fn is_given(&mut self) -> bool {
        let Some((told, mut given)) = self.giving.waiting.take() else {
            return false;
        };
        given.heard = self.listening.input.position();
        given.recording = self.leave_recording();
        self.usage.goes_on_elsewhere();
        // A server that has gone meanwhile takes nothing, and its client cannot know of this one any more.
        let _gone = told.send(Some(given));
        true
    }

    /// A turn that ends while the session goes is answered where it goes on.
    pub(super) fn keeps_turn(&mut self, text: &str) -> bool {
        let Some((_, given)) = &mut self.giving.waiting else {
            return false;
        };
        given.unanswered = Some(text.to_owned());
        true
    }

    /// What the conversation was at the other server.
    pub(super) fn take_conversation(&mut self) -> Option<ConversationSoFar> {
        self.taken_over.conversation.take()
    }

    /// What was not answered at the other server.
    pub(super) fn take_unanswered(&mut self) -> Option<String> {
        self.taken_over.unanswered.take()
    }

    /// The token with which a client has come is good here, too, until it has the next one.
    fn keep_token(&mut self, token: String, address: &Addr<Self>) {
        let session = self.resumable(address);
        let ticket: ResumeToken = self.services.resumes.register_as(token, session);
        self.resume_tokens.push_front(ticket);
    }
}

impl Speak {
    /// As a client says it.
    fn to_message(&self) -> Value {
        let (text, kind) = match &self.ssml {
            Some(document) => (document.document(), "ssml"),
            None => (self.text.clone(), "plain"),
        };
        json!({"type": "speak", "text": text, "text_type": kind, "flush": self.flush,
            "allow_interruption": self.allow_interruption, "id": self.id})
    }
}

impl Handler<GiveAway> for SessionActor {
    type Result = ();

    fn handle(&mut self, GiveAway { told }: GiveAway, context: &mut Context<Self>) {
        let Some(given) = self.given() else {
            // Whoever waits may have gone.
            let _gone = told.send(None);
            return;
        };
        let Some(responder) = self.responder.clone() else {
            return self.go(told, given, context);
        };
        let asked = responder.send(GiveConversation).into_actor(self);
        context.wait(asked.map(|conversation, session, context| {
            match conversation {
                // It is answering, or has too much to tell.
                Ok(None) => drop(told.send(None)),
                Ok(Some(conversation)) => {
                    let conversation = Some(conversation);
                    let given = Given {
                        conversation,
                        ..given
                    };
                    session.go(told, given, context);
                }
                Err(_) => session.go(told, given, context),
            }
        }));
    }
}

impl Handler<TakeOver> for SessionActor {
    type Result = ();

    fn handle(&mut self, TakeOver { given, token }: TakeOver, context: &mut Context<Self>) {
        self.usage.takes_over(given.usage);
        self.cut_ids = given.cut_ids;
        self.taken_over = TakenOver {
            conversation: given.conversation,
            unanswered: given.unanswered,
            recording: given.recording,
        };
        self.state.takes_over(given.configs);
        self.keep_token(token, &context.address());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_read_and_nothing_else_is() {
        let given = json!({"messages": [{"type": "config"}], "configs": 1, "heard": {"secs": 1, "nanos": 5},
            "usage": {"lasted": {"secs": 2, "nanos": 0}, "characters": 3}, "cut_ids": {"ids": [{"hash": u64::MAX, "goes_on": true}]},
            "conversation": null, "unanswered": null,
            "recording": {"started_at": 5, "ended_at": 7, "recorded": {"secs": 0, "nanos": 2}, "paused": false, "store": null}});
        let sent = json!({"seq": 2, "forgotten": 0, "sound_before": 4, "sent": [{"event": {"seq": 2, "text": "{}"}}]});
        let message = |format: u32| {
            json!({"type": KIND, "format": format, "given": given, "sent": sent}).to_string()
        };
        let read: GivenSession = serde_json::from_str(&message(FORMAT)).unwrap();
        assert_eq!(
            read.given.messages().collect::<Vec<_>>(),
            [r#"{"type":"config"}"#]
        );
        let again = GivenSession::read(&read.to_json()).unwrap();
        assert_eq!(again.to_json(), read.to_json());
        assert!(GivenSession::read(&message(FORMAT + 1)).is_none());
        let impossible = message(FORMAT).replace("\"ended_at\":7", "\"ended_at\":4");
        assert!(GivenSession::read(&impossible).is_none());
        assert!(GivenSession::read(r#"{"type": "ready", "seq": 1}"#).is_none());
    }
}
