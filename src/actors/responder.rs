//! The responder of one session: an actor that leads its conversation with a language model. It is told each turn of the
//! caller and what was heard of each answer, asks the model, and has its session say the answer, tell the client of it, and
//! have the client's functions called. What it remembers is what was said and heard.

use actix::prelude::*;
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};

use super::session::protocol::{
    AgentConfig, ErrorCode, ResponseStatus, ResponseUsage, ServerMessage,
};
use vivavoce_llm::history::{Item, ItemKind, Items, Part, Role, messages};
use vivavoce_llm::{AnswerEvent, ChatRequest, Endpoint, FunctionCall, LlmError};

/// Text is given to the voice from this length on, or where a sentence may end.
const PIECE_BYTES: usize = 48;

/// Something for its session to do.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub enum ResponderOrder {
    /// Tell the client this.
    Tell(ServerMessage),
    /// Say this as a part of the utterance with this id.
    Say {
        /// The id of the answer.
        id: String,
        /// What.
        text: String,
        /// Whether it is the last part.
        ends: bool,
    },
    /// Cut the utterance with this id.
    Cut(String),
}

/// The caller has ended a turn with this text.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Turn(pub String);

/// An utterance has ended.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct UtteranceEnded {
    /// The id that its client, or this actor, gave it.
    pub id: String,
    /// What was heard of it, where it was cut off.
    pub heard: Option<String>,
    /// Whether the voice has failed.
    pub failed: bool,
}

/// Of the client: the model shall answer now, whatever was said.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Respond {
    /// In place of those of the config.
    pub instructions: Option<String>,
}

/// Of the client: what a function returned.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct FunctionResult {
    /// That of the call.
    pub call_id: String,
    /// What the model is told.
    pub output: String,
}

/// What is being said, or made, is not wanted any more.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct CancelAnswer;

/// Goes on like this.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Instruct {
    /// What the client wants.
    pub config: AgentConfig,
    /// Whom it asks.
    pub endpoint: Endpoint,
}

/// The session does without it.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct DismissResponder;

/// An answer that is being made or heard.
struct Answer {
    id: String,
    /// Its item, once it has text.
    item: Option<String>,
    text: String,
    /// What the voice was not given yet.
    waiting: String,
    /// Whether it was given anything.
    is_voiced: bool,
    calls: Vec<(FunctionCall, String)>,
    usage: Option<ResponseUsage>,
    /// The request, while the model has not finished.
    asking: Option<SpawnHandle>,
    /// The model or the voice has failed.
    has_failed: bool,
}

/// The responder of one session.
pub struct ResponderActor {
    config: AgentConfig,
    endpoint: Endpoint,
    session: Recipient<ResponderOrder>,
    history: Items,
    answer: Option<Answer>,
    /// What is answered next, when the last answer is over.
    next: Option<Respond>,
    /// Calls of the last answer whose results have not come.
    open_calls: Vec<String>,
    /// It ends with what is being said.
    is_dismissed: bool,
    /// The conversation has begun, at another server.
    is_greeted: bool,
    /// How many answers there were.
    answers: u64,
    items: u64,
}

/// What a responder elsewhere needs to go on.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ConversationSoFar {
    history: Items,
    open_calls: Vec<String>,
    answers: u64,
    items: u64,
}

/// The most of a conversation that goes on elsewhere: it is one message, beside what was sent to the client.
const MAX_GIVEN_BYTES: usize = 1 << 20;

/// The conversation goes on elsewhere; `None` while something is being answered, and where it is too long.
#[derive(Message)]
#[rtype(result = "Option<ConversationSoFar>")]
pub struct GiveConversation;

/// A piece of the answer with this number.
struct Piece(u64, Result<AnswerEvent, LlmError>);

impl ResponderActor {
    /// A responder that does what the config says.
    pub fn new(
        config: AgentConfig,
        endpoint: Endpoint,
        session: Recipient<ResponderOrder>,
        before: Option<ConversationSoFar>,
    ) -> Self {
        let is_greeted = before.is_some();
        let before = before.unwrap_or_default();
        Self {
            config,
            endpoint,
            session,
            history: before.history,
            answer: None,
            next: None,
            open_calls: before.open_calls,
            is_dismissed: false,
            is_greeted,
            answers: before.answers,
            items: before.items,
        }
    }

    /// One answer at a time is carried out, and how long one may be is bounded.
    fn order(&self, order: ResponderOrder) {
        self.session.do_send(order);
    }

    fn tell(&self, message: ServerMessage) {
        self.order(ResponderOrder::Tell(message));
    }

    fn remember(&mut self, kind: ItemKind) -> String {
        self.items += 1;
        let id = format!("item-{}", self.items);
        self.history.push(Item {
            id: id.clone(),
            kind,
            status: "completed",
        });
        id
    }

    fn remember_text(&mut self, role: Role, text: String) -> String {
        let parts = vec![Part::Text(text)];
        self.remember(ItemKind::Message { role, parts })
    }

    fn correct(&mut self, item: &str, said: &str) {
        if let Some(item) = self.history.get_mut(item)
            && let ItemKind::Message { parts, .. } = &mut item.kind
            && let Some(Part::Text(text)) = parts.first_mut()
        {
            said.clone_into(text);
        }
    }

    /// Begins what is answered next, if nothing is being said any more.
    fn go_on(&mut self, context: &mut Context<Self>) {
        if self.answer.is_some() {
            return;
        }
        let Some(Respond { instructions }) = self.next.take() else {
            return;
        };
        let number = self.new_answer();
        let instructions = instructions.as_ref().unwrap_or(&self.config.instructions);
        let request = ChatRequest {
            messages: messages(instructions, self.history.iter()),
            tools: self.config.tools.clone(),
            temperature: self.config.temperature,
            max_tokens: self.config.max_tokens,
            ..ChatRequest::default()
        };
        let endpoint = self.endpoint.clone();
        let answers = stream::once(async move { endpoint.answer(request).await });
        let pieces = answers.flat_map(|answer| match answer {
            Ok(answer) => stream::unfold(answer, |mut answer| async move {
                let event = answer.next().await?;
                Some((event, answer))
            })
            .left_stream(),
            Err(error) => stream::iter([Err(error)]).right_stream(),
        });
        let asking = context.add_stream(pieces.map(move |event| Piece(number, event)));
        if let Some(answer) = &mut self.answer {
            answer.asking = Some(asking);
        }
    }

    fn new_answer(&mut self) -> u64 {
        self.answers += 1;
        let id = format!("answer-{}", self.answers);
        self.tell(ServerMessage::ResponseStarted { id: id.clone() });
        self.answer = Some(Answer {
            id,
            item: None,
            text: String::new(),
            waiting: String::new(),
            is_voiced: false,
            calls: Vec::new(),
            usage: None,
            asking: None,
            has_failed: false,
        });
        self.answers
    }

    /// Says what does not come of the model.
    fn greet(&mut self) {
        if let Some(greeting) = self.config.greeting.clone() {
            self.new_answer();
            self.more_text(&greeting);
            self.complete();
        }
    }

    fn more_text(&mut self, text: &str) {
        let Some(answer) = &mut self.answer else {
            return;
        };
        answer.text.push_str(text);
        answer.waiting.push_str(text);
        let id = answer.id.clone();
        let so_far = answer.text.clone();
        let ends = |c: char| {
            matches!(
                c,
                '.' | '?' | '!' | ';' | ':' | ',' | '\n' | '。' | '？' | '！' | '，'
            )
        };
        let is_due = answer.waiting.len() >= PIECE_BYTES || text.contains(ends);
        let has_words = answer.is_voiced || !answer.waiting.trim().is_empty();
        let piece = (is_due && has_words).then(|| {
            answer.is_voiced = true;
            std::mem::take(&mut answer.waiting)
        });
        match answer.item.clone() {
            Some(item) => self.correct(&item, &so_far),
            None => {
                let item = self.remember_text(Role::Assistant, so_far);
                if let Some(answer) = &mut self.answer {
                    answer.item = Some(item);
                }
            }
        }
        self.tell(ServerMessage::ResponseText {
            id: id.clone(),
            text: text.to_owned(),
        });
        if let Some(text) = piece {
            let ends = false;
            self.order(ResponderOrder::Say { id, text, ends });
        }
    }

    /// The model has finished: the voice is given the rest, and functions are called.
    fn complete(&mut self) {
        let Some(answer) = &mut self.answer else {
            return;
        };
        answer.asking = None;
        let id = answer.id.clone();
        let calls = std::mem::take(&mut answer.calls);
        let rest = std::mem::take(&mut answer.waiting);
        let is_voiced = answer.is_voiced || !rest.trim().is_empty();
        answer.is_voiced = is_voiced;
        for (number, (FunctionCall { id: call_id, name }, arguments)) in
            calls.into_iter().enumerate()
        {
            // Some endpoints begin to count anew with each answer.
            let call_id = if self.history.has_call(&call_id) {
                format!("call_{id}_{number}")
            } else {
                call_id
            };
            self.remember(ItemKind::Call {
                call_id: call_id.clone(),
                name: name.clone(),
                arguments: arguments.clone(),
            });
            self.open_calls.push(call_id.clone());
            self.tell(ServerMessage::FunctionCall {
                id: id.clone(),
                call_id,
                name,
                arguments,
            });
        }
        if is_voiced {
            let (text, ends) = (rest, true);
            self.order(ResponderOrder::Say { id, text, ends });
        } else {
            self.over(ResponseStatus::Completed, None);
        }
    }

    /// Stops what is being said or made; where something was said, the session says how much of it was heard.
    fn stop(&mut self, context: &mut Context<Self>) {
        let Some(answer) = &mut self.answer else {
            return;
        };
        if let Some(asking) = answer.asking.take() {
            context.cancel_future(asking);
        }
        if answer.is_voiced {
            let id = answer.id.clone();
            self.order(ResponderOrder::Cut(id));
        } else {
            self.over(ResponseStatus::Interrupted, Some(""));
        }
    }

    /// An answer is over, cut off where `heard` says what was heard of it.
    fn over(&mut self, status: ResponseStatus, heard: Option<&str>) {
        let Some(answer) = self.answer.take() else {
            return;
        };
        let text = heard.map_or(answer.text, str::to_owned);
        let status = if answer.has_failed {
            ResponseStatus::Failed
        } else {
            status
        };
        if let (Some(item), Some(heard)) = (&answer.item, heard) {
            self.correct(item, heard);
        }
        self.tell(ServerMessage::ResponseDone {
            id: answer.id,
            status,
            text,
            usage: answer.usage,
        });
    }

    fn failed(&mut self, error: &LlmError) {
        tracing::warn!(%error, "a language model does not answer");
        let Some(answer) = &mut self.answer else {
            return;
        };
        answer.asking = None;
        answer.has_failed = true;
        // What the voice was not given is not said.
        let said = answer.text.len().saturating_sub(answer.waiting.len());
        answer.text.truncate(said);
        let (id, is_voiced) = (answer.id.clone(), answer.is_voiced);
        let (item, text) = (answer.item.clone(), answer.text.clone());
        if let Some(item) = item {
            self.correct(&item, &text);
        }
        let mut refusal = ServerMessage::refusal(ErrorCode::LlmFailed, error.to_string());
        if let ServerMessage::Error { id: of, .. } = &mut refusal {
            *of = Some(id.clone());
        }
        self.tell(refusal);
        if is_voiced {
            // What there is of it is said to its end.
            let (text, ends) = (String::new(), true);
            self.order(ResponderOrder::Say { id, text, ends });
        } else {
            self.over(ResponseStatus::Failed, Some(""));
        }
    }
}

impl Actor for ResponderActor {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Context<Self>) {
        if !self.is_greeted {
            self.greet();
        }
    }
}

impl StreamHandler<Piece> for ResponderActor {
    fn handle(&mut self, Piece(number, event): Piece, context: &mut Context<Self>) {
        let is_asked = self
            .answer
            .as_ref()
            .is_some_and(|answer| answer.asking.is_some());
        if number != self.answers || !is_asked {
            return;
        }
        match event {
            Ok(AnswerEvent::Text(text)) => self.more_text(&text),
            Ok(AnswerEvent::Call {
                index,
                begins,
                arguments,
            }) => {
                if let Some(answer) = &mut self.answer {
                    answer
                        .calls
                        .extend(begins.map(|call| (call, String::new())));
                    if let Some((_, known)) = answer.calls.get_mut(index) {
                        known.push_str(&arguments);
                    }
                }
            }
            Ok(AnswerEvent::Done { usage, .. }) => {
                if let Some(answer) = &mut self.answer {
                    answer.usage = usage.map(|usage| ResponseUsage {
                        input_tokens: usage.input,
                        output_tokens: usage.output,
                    });
                }
                self.complete();
                self.go_on(context);
            }
            Err(error) => {
                self.failed(&error);
                self.go_on(context);
            }
        }
    }

    /// An answer ends, and the actor does not.
    fn finished(&mut self, _: &mut Context<Self>) {}
}

impl Handler<Turn> for ResponderActor {
    type Result = ();

    fn handle(&mut self, Turn(text): Turn, context: &mut Context<Self>) {
        self.remember_text(Role::User, text);
        // The conversation goes on without what has not come.
        self.open_calls.clear();
        self.next = Some(Respond { instructions: None });
        self.stop(context);
        self.go_on(context);
    }
}

impl Handler<UtteranceEnded> for ResponderActor {
    type Result = ();

    fn handle(&mut self, ended: UtteranceEnded, context: &mut Context<Self>) {
        let Some(answer) = self.answer.as_mut().filter(|answer| answer.id == ended.id) else {
            return;
        };
        if let Some(asking) = answer.asking.take() {
            context.cancel_future(asking);
        }
        answer.has_failed |= ended.failed;
        match ended.heard {
            None => self.over(ResponseStatus::Completed, None),
            Some(heard) => self.over(ResponseStatus::Interrupted, Some(&heard)),
        }
        if self.is_dismissed {
            context.stop();
        }
        self.go_on(context);
    }
}

impl Handler<Respond> for ResponderActor {
    type Result = ();

    fn handle(&mut self, respond: Respond, context: &mut Context<Self>) {
        self.next = Some(respond);
        self.go_on(context);
    }
}

impl Handler<FunctionResult> for ResponderActor {
    type Result = ();

    fn handle(&mut self, result: FunctionResult, context: &mut Context<Self>) {
        let FunctionResult { call_id, output } = result;
        let Some(at) = self.open_calls.iter().position(|open| *open == call_id) else {
            let problem = "call_id: no function with this id waits for its result";
            let refusal = ServerMessage::refusal(ErrorCode::InvalidMessage, problem);
            return self.tell(refusal);
        };
        self.open_calls.remove(at);
        self.remember(ItemKind::Output { call_id, output });
        if self.open_calls.is_empty() {
            self.next.get_or_insert(Respond { instructions: None });
            self.go_on(context);
        }
    }
}

impl Handler<CancelAnswer> for ResponderActor {
    type Result = ();

    fn handle(&mut self, _: CancelAnswer, context: &mut Context<Self>) {
        self.next = None;
        self.stop(context);
    }
}

impl Handler<Instruct> for ResponderActor {
    type Result = ();

    fn handle(&mut self, Instruct { config, endpoint }: Instruct, _: &mut Context<Self>) {
        self.config = config;
        self.endpoint = endpoint;
    }
}

impl Handler<GiveConversation> for ResponderActor {
    type Result = Option<ConversationSoFar>;

    fn handle(&mut self, _: GiveConversation, _: &mut Context<Self>) -> Self::Result {
        let rests = self.answer.is_none() && self.next.is_none();
        let fits = self.history.bytes() <= MAX_GIVEN_BYTES;
        (rests && fits).then(|| ConversationSoFar {
            history: std::mem::take(&mut self.history),
            open_calls: std::mem::take(&mut self.open_calls),
            answers: self.answers,
            items: self.items,
        })
    }
}

impl Handler<DismissResponder> for ResponderActor {
    type Result = ();

    fn handle(&mut self, _: DismissResponder, context: &mut Context<Self>) {
        self.next = None;
        self.is_dismissed = true;
        self.stop(context);
        // Else it is told first what was heard of its last answer.
        if self.answer.is_none() {
            context.stop();
        }
    }
}
