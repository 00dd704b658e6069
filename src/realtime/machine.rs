//! What is done with each event: of the client, of the session that hears and speaks for it, and of the language model. A
//! pure state machine: time and names are arguments, and what is to be done is returned as [`Output`]s.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use vivavoce_auth::TenantId;
use vivavoce_llm::history::{Item, ItemKind, Items, NoPlace, Part, messages};
use vivavoce_llm::{AnswerEvent, ChatRequest, Endpoint, Endpoints, LlmError, RateLimit};

use crate::items::{self, missing};
use crate::names::{Named, Names};
use crate::response::{self, Call, Create, End, Message, Response};
use crate::session::{
    Detector, Kind, Problem, SessionObject, Sound, Version, chat_tool_choice, chat_tools,
};

/// The most answers apart from the conversation at once.
const MAX_APART: usize = 4;
/// The least sound that makes an item.
const LEAST_MS: u64 = 100;
/// The most answers of which it is known when each word was heard.
const MAX_SPOKEN: usize = 16;
/// How often the model goes on by itself while nobody speaks.
const MAX_IDLES: u32 = 3;
/// The most sounds of items that wait to be recognised.
const MAX_AWAITED: usize = 8;
/// The most updates that wait.
const MAX_UPDATES: usize = 64;

/// What is to be done.
#[derive(Debug)]
pub enum Output {
    /// Send this event to the client.
    Tell(String),
    /// Send this message to the session.
    Send(String),
    /// Send this sound to it.
    Sound(Bytes),
    /// Ask for an answer; [`Realtime::answer`] takes it.
    Ask {
        /// Names the response.
        key: u64,
        /// Of whom.
        endpoint: Box<Endpoint>,
        /// What.
        request: Box<ChatRequest>,
    },
    /// No more of that answer is wanted.
    Forget(u64),
    /// Recognise this sound; [`Realtime::transcribed`] takes its text.
    Transcribe {
        /// Of which item.
        item: String,
        /// In the session's input format.
        sound: Vec<u8>,
        /// That format.
        format: Sound,
        /// By this recogniser.
        recogniser: Named,
        /// In this language.
        language: String,
    },
}

/// What a conversation begins with.
pub struct Begin {
    /// The shape of the interface.
    pub version: Version,
    /// What the client has set so far.
    pub session: SessionObject,
    /// Unique: ids are made from it.
    pub seed: String,
    /// What names mean.
    pub names: Arc<dyn Names>,
    /// The language models.
    pub endpoints: Arc<Endpoints>,
    /// Whose session it is.
    pub tenant: Option<TenantId>,
}

/// What the caller says.
#[derive(Debug)]
struct UserTurn {
    item: String,
    start_ms: u64,
    /// Whether the client knows that it has begun.
    is_told: bool,
    text: String,
    segments: Vec<String>,
}

/// An update that the session carries out.
struct Update {
    session: SessionObject,
    event_id: Option<String>,
    /// Whether the client waits for `session.updated`.
    is_asked: bool,
}

/// A conversation.
pub struct Realtime {
    version: Version,
    names: Arc<dyn Names>,
    endpoints: Arc<Endpoints>,
    tenant: Option<TenantId>,
    seed: String,
    made: u64,
    /// With all updates.
    session: SessionObject,
    /// As the session has it.
    in_force: SessionObject,
    config: Value,
    updates: VecDeque<Update>,
    items: Items,
    turn: Option<UserTurn>,
    /// The item of a turn that ended without its text.
    owed: Option<String>,
    /// What was said since the last commit, where the client ends turns.
    said: Vec<String>,
    /// Turns that the client has ended and whose end was not told: their items, `None` where their text is not wanted.
    commits: VecDeque<Option<String>>,
    /// Bytes since the last commit.
    uncommitted: u64,
    /// Items whose text is not known yet.
    awaited: HashSet<String>,
    response: Option<Response>,
    apart: Vec<Response>,
    /// The next answer of the conversation.
    queued: Option<Create>,
    keys: u64,
    /// The item that is being heard.
    playing: Option<String>,
    /// What was said last: a client may say later how much of it was heard.
    spoken: VecDeque<Message>,
    idle_at: Option<Instant>,
    /// How often the model went on by itself since somebody spoke.
    idles: u32,
    outputs: Vec<Output>,
}

#[derive(Deserialize)]
struct Append<'a> {
    #[serde(borrow)]
    r#type: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    audio: Option<std::borrow::Cow<'a, str>>,
}

impl Realtime {
    /// A conversation whose client has just connected.
    pub fn new(begin: Begin) -> Self {
        let mut this = Self {
            version: begin.version,
            names: begin.names,
            endpoints: begin.endpoints,
            tenant: begin.tenant,
            seed: begin.seed,
            made: 0,
            in_force: begin.session.clone(),
            session: begin.session,
            config: Value::Null,
            updates: VecDeque::new(),
            items: Items::default(),
            turn: None,
            owed: None,
            said: Vec::new(),
            commits: VecDeque::new(),
            uncommitted: 0,
            awaited: HashSet::new(),
            response: None,
            apart: Vec::new(),
            queued: None,
            keys: 0,
            playing: None,
            spoken: VecDeque::new(),
            idle_at: None,
            idles: 0,
            outputs: Vec::new(),
        };
        let shown = this.shown_session();
        this.tell("session.created", json!({"session": shown}));
        if this.version == Version::Beta && this.session.kind == Kind::Conversation {
            let id = this.conversation();
            let conversation = json!({"id": id, "object": "realtime.conversation"});
            this.tell(
                "conversation.created",
                json!({"conversation": conversation}),
            );
        }
        this.configure(None, false);
        this
    }

    /// What is to be done now, in this order.
    pub fn take(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// When [`Realtime::tick`] is due.
    pub const fn deadline(&self) -> Option<Instant> {
        self.idle_at
    }

    fn id(&mut self, kind: &str) -> String {
        self.made += 1;
        format!("{kind}_{}{:04}", self.seed, self.made)
    }

    fn conversation(&self) -> String {
        format!("conv_{}", self.seed)
    }

    fn session_id(&self) -> String {
        format!("sess_{}", self.seed)
    }

    fn shown_session(&self) -> Value {
        self.in_force
            .shown(self.version, &self.session_id(), &*self.names)
    }

    fn tell(&mut self, kind: &str, mut event: Value) {
        let id = self.id("event");
        event["type"] = json!(kind);
        event["event_id"] = json!(id);
        self.outputs.push(Output::Tell(event.to_string()));
    }

    fn send(&mut self, message: &Value) {
        self.outputs.push(Output::Send(message.to_string()));
    }

    fn refuse(&mut self, problem: &Problem, event_id: Option<&str>) {
        let kind = match problem.code {
            "server_error" => "server_error",
            _ => "invalid_request_error",
        };
        let error = json!({
            "type": kind, "code": problem.code, "message": problem.message,
            "param": problem.param, "event_id": event_id,
        });
        self.tell("error", json!({"error": error}));
    }

    /// The name of an event in the client's version.
    const fn name(&self, current: &'static str, beta: &'static str) -> &'static str {
        match self.version {
            Version::Current => current,
            Version::Beta => beta,
        }
    }
}

/// The client.
impl Realtime {
    /// Takes an event of the client.
    pub fn client(&mut self, text: &str, now: Instant) {
        // What comes fifty times a second.
        if let Ok(append) = serde_json::from_str::<Append<'_>>(text)
            && append.r#type == "input_audio_buffer.append"
        {
            if let Err(problem) = self.append(append.audio.as_deref()) {
                let event: Value = serde_json::from_str(text).unwrap_or_default();
                self.refuse(&problem, event["event_id"].as_str());
            }
            return;
        }
        let event: Value = match serde_json::from_str(text) {
            Ok(event @ Value::Object(_)) => event,
            _ => {
                let problem =
                    Problem::general("invalid_json", "an event is a JSON object with a type");
                return self.refuse(&problem, None);
            }
        };
        if let Err(problem) = self.carry_out(&event, now) {
            self.refuse(&problem, event["event_id"].as_str());
        }
    }

    /// The client sends more than is taken.
    pub fn too_fast(&mut self) {
        let message = "an event was dropped: they may come 200 times a second";
        self.refuse(&Problem::general("rate_limit_exceeded", message), None);
    }

    /// The client sends what is no event.
    pub fn binary(&mut self) {
        let message =
            "binary messages have no meaning here: sound is sent in input_audio_buffer.append";
        self.refuse(&Problem::general("invalid_json", message), None);
    }

    fn carry_out(&mut self, event: &Value, now: Instant) -> Result<(), Problem> {
        let kind = event["type"].as_str().unwrap_or_default();
        let is_conversation = self.session.kind == Kind::Conversation;
        match kind {
            "session.update" => self.update(event, "session"),
            // The beta's name for transcription sessions.
            "transcription_session.update" if !is_conversation => self.update(event, "session"),
            "input_audio_buffer.commit" => self.commit(now),
            "input_audio_buffer.clear" => {
                self.clear_input();
                Ok(())
            }
            _ if !is_conversation => {
                let message = format!("{kind:?} has no meaning in a transcription session");
                Err(Problem::new("invalid_value", "type", message))
            }
            "conversation.item.create" => self.create_item(event),
            "conversation.item.retrieve" => {
                let item = self.items.get(Self::named(event)?);
                let shown = item.map(|item| items::shown(item, self.version));
                let shown = shown
                    .ok_or_else(|| missing(event["item_id"].as_str().unwrap_or(""), "item_id"))?;
                self.tell("conversation.item.retrieved", json!({"item": shown}));
                Ok(())
            }
            "conversation.item.delete" => {
                let id = Self::named(event)?.to_owned();
                self.items
                    .remove(&id)
                    .ok_or_else(|| missing(&id, "item_id"))?;
                self.tell("conversation.item.deleted", json!({"item_id": id}));
                Ok(())
            }
            "conversation.item.truncate" => self.truncate(event, now),
            "response.create" => {
                let mut create = self.read_create(event.get("response"))?;
                create.is_asked = true;
                create.event_id = event["event_id"].as_str().map(str::to_owned);
                self.respond(create, now)
            }
            "response.cancel" => self.cancel_asked(event["response_id"].as_str(), now),
            "output_audio_buffer.clear" => {
                let response = self.response.as_ref().map(|response| response.id.clone());
                self.cancel("client_cancelled", now);
                self.tell(
                    "output_audio_buffer.cleared",
                    json!({"response_id": response}),
                );
                Ok(())
            }
            _ => {
                let kind: String = kind.chars().take(60).collect();
                let message = format!("there is no event {kind:?}");
                Err(Problem::new("invalid_value", "type", message))
            }
        }
    }

    fn named(event: &Value) -> Result<&str, Problem> {
        let missing = || {
            Problem::new(
                "missing_required_parameter",
                "item_id",
                "item_id is required",
            )
        };
        event["item_id"].as_str().ok_or_else(missing)
    }

    fn update(&mut self, event: &Value, name: &str) -> Result<(), Problem> {
        if self.updates.len() >= MAX_UPDATES {
            let message = "too many updates wait; wait for session.updated";
            return Err(Problem::general("rate_limit_exceeded", message));
        }
        let before = self.session.clone();
        self.session = self.session.update(self.version, &event[name], name)?;
        // What cannot be found is refused before anything changes.
        if let Err(problem) = self.session.config("", &*self.names) {
            self.session = before;
            return Err(problem);
        }
        self.configure(event["event_id"].as_str(), true);
        Ok(())
    }

    /// Has the session do what the client has set.
    fn configure(&mut self, event_id: Option<&str>, is_asked: bool) {
        let config = match self.session.config(&self.seed, &*self.names) {
            Ok(config) => config,
            Err(problem) => return self.refuse(&problem, event_id),
        };
        let changes = config != self.config;
        if changes {
            self.send(&config);
            self.config = config;
        }
        if changes || !self.updates.is_empty() {
            self.updates.push_back(Update {
                session: self.session.clone(),
                event_id: event_id.map(str::to_owned),
                is_asked,
            });
            // An update without a change of its own waits for those before it.
            if !changes {
                self.send(&self.config.clone());
            }
            return;
        }
        self.in_force = self.session.clone();
        if is_asked {
            self.tell_updated();
        }
    }

    fn tell_updated(&mut self) {
        let shown = self.shown_session();
        let kind = match (self.version, self.session.kind) {
            (Version::Beta, Kind::Transcription) => "transcription_session.updated",
            _ => "session.updated",
        };
        self.tell(kind, json!({"session": shown}));
    }

    fn append(&mut self, audio: Option<&str>) -> Result<(), Problem> {
        let missing = || Problem::new("missing_required_parameter", "audio", "audio is required");
        let sound = BASE64.decode(audio.ok_or_else(missing)?);
        let sound = sound.map_err(|_| Problem::value("audio", "must be Base64"))?;
        self.uncommitted += sound.len() as u64;
        if !sound.is_empty() {
            self.outputs.push(Output::Sound(sound.into()));
        }
        Ok(())
    }

    fn commit(&mut self, now: Instant) -> Result<(), Problem> {
        let sent = self.session.input.milliseconds(self.uncommitted);
        if sent < LEAST_MS || (self.session.turn_detection.is_some() && self.turn.is_none()) {
            let message = format!(
                "the input has {sent} ms of sound that was not committed; at least {LEAST_MS} ms with speech are"
            );
            return Err(Problem::general("input_audio_buffer_commit_empty", message));
        }
        self.uncommitted = 0;
        self.send(&json!({"type": "end_turn"}));
        if self.session.turn_detection.is_none() {
            let item = self.id("item");
            self.commits.push_back(Some(item.clone()));
            self.awaited.insert(item.clone());
            self.add_spoken(item, None, now);
        }
        Ok(())
    }

    fn clear_input(&mut self) {
        self.uncommitted = 0;
        self.turn = None;
        self.commits.push_back(None);
        self.send(&json!({"type": "end_turn"}));
        self.tell("input_audio_buffer.cleared", json!({}));
    }

    fn create_item(&mut self, event: &Value) -> Result<(), Problem> {
        let made = self.id("item");
        let created = items::read(&event["item"], &made, "item")?;
        let item = created.item;
        if self.items.get(&item.id).is_some() {
            let message = "an item of this id exists";
            return Err(Problem::new("item_already_exists", "item.id", message));
        }
        let previous = event.get("previous_item_id").and_then(Value::as_str);
        let place = self.items.place(previous).map_err(|why| match why {
            NoPlace::NoSuchItem => missing(previous.unwrap_or_default(), "previous_item_id"),
            NoPlace::Full => {
                let message = "a conversation has at most 2000 items; delete some";
                Problem::general("conversation_full", message)
            }
        })?;
        if let Some(sound) = created.sound {
            if self.awaited.len() >= MAX_AWAITED {
                let message = "too many sounds wait to be recognised; wait for their transcripts";
                return Err(Problem::general("rate_limit_exceeded", message));
            }
            let sound = BASE64.decode(sound);
            let sound =
                sound.map_err(|_| Problem::value("item.content", "has audio that is no Base64"))?;
            let (recogniser, language) = self.session.listens(&*self.names)?;
            self.outputs.push(Output::Transcribe {
                item: item.id.clone(),
                sound,
                format: self.session.input,
                recogniser,
                language,
            });
            self.awaited.insert(item.id.clone());
        }
        self.items.insert(place, item.clone());
        let previous = self.items.before(place).map(str::to_owned);
        self.tell_item(&item, previous.as_deref(), true);
        Ok(())
    }

    /// Tells of an item that is there now, and perhaps complete.
    fn tell_item(&mut self, item: &Item, previous: Option<&str>, is_complete: bool) {
        let shown = items::shown(item, self.version);
        let event = json!({"previous_item_id": previous, "item": shown});
        let kind = self.name("conversation.item.added", "conversation.item.created");
        self.tell(kind, event.clone());
        if is_complete && self.version == Version::Current {
            self.tell("conversation.item.done", event);
        }
    }

    fn truncate(&mut self, event: &Value, now: Instant) -> Result<(), Problem> {
        let id = Self::named(event)?.to_owned();
        let end = event["audio_end_ms"].as_u64();
        let end =
            end.ok_or_else(|| Problem::value("audio_end_ms", "must be a whole number from 0"))?;
        let sound = self.in_force.output;
        let response = self.response.as_mut();
        let message = response.and_then(|response| response.message.as_mut());
        if let Some(message) = message.filter(|message| message.item == id && !message.is_done) {
            // The client has stopped playing what is still being said.
            let sent = response::sent_ms(message, sound);
            if end > sent {
                return Err(too_short(sent));
            }
            message.cut_ms = Some(end);
            self.cancel("client_cancelled", now);
            return Ok(());
        }
        let item = self.items.get_mut(&id);
        let item = item.ok_or_else(|| missing(&id, "item_id"))?;
        let Some(heard) = item.heard_mut() else {
            let message = "only what the assistant has said can be truncated";
            return Err(Problem::new("invalid_value", "item_id", message));
        };
        let known = self.spoken.iter().find(|message| message.item == id);
        if let Some(message) = known {
            let sent = response::sent_ms(message, sound);
            if end > sent {
                return Err(too_short(sent));
            }
            let before = heard.take().unwrap_or_default();
            let by_then = message.heard_by(end);
            // What was cut off before is not heard again.
            let shorter = if by_then.len() < before.len() {
                by_then.to_owned()
            } else {
                before
            };
            *heard = Some(shorter);
        } else if end == 0 {
            *heard = Some(String::new());
        }
        self.tell_truncated(&id, end);
        Ok(())
    }

    fn tell_truncated(&mut self, item: &str, end: u64) {
        let event = json!({"item_id": item, "content_index": 0, "audio_end_ms": end});
        self.tell("conversation.item.truncated", event);
    }

    fn read_create(&mut self, value: Option<&Value>) -> Result<Create, Problem> {
        let made = self.id("item");
        let items = &self.items;
        let mut count = 0;
        Create::read(self.version, &self.session, value, |value, param| {
            if value["type"] == "item_reference" {
                let id = value["id"].as_str().unwrap_or_default();
                let found = items.get(id).cloned();
                return found.ok_or_else(|| missing(id, &format!("{param}.id")));
            }
            count += 1;
            let created = items::read(value, &format!("{made}_{count}"), param)?;
            if created.sound.is_some() {
                let message = "sound is recognised in the conversation: create the item first, and refer to it";
                return Err(Problem::new("unsupported_value", param, message));
            }
            Ok(created.item)
        })
    }
}

fn too_short(sent: u64) -> Problem {
    let message = format!("audio_end_ms: of this item {sent} ms were sent");
    Problem::new("invalid_value", "audio_end_ms", message)
}

/// The session that hears and speaks.
impl Realtime {
    /// Takes sound of the session.
    pub fn sound(&mut self, bytes: &Bytes) {
        let Some(playing) = &self.playing else {
            return;
        };
        let responses = self.response.iter_mut().chain(&mut self.apart);
        let mut messages =
            responses.filter_map(|response| Some((&response.id, response.message.as_mut()?)));
        let Some((response, message)) = messages.find(|(_, message)| message.item == *playing)
        else {
            return;
        };
        message.sound_bytes += bytes.len() as u64;
        let event = json!({
            "response_id": response, "item_id": message.item, "output_index": message.index,
            "content_index": 0, "delta": BASE64.encode(bytes),
        });
        let kind = self.name("response.output_audio.delta", "response.audio.delta");
        self.tell(kind, event);
    }

    /// Takes an event of the session.
    pub fn session_event(&mut self, text: &str, now: Instant) {
        let event: Value = serde_json::from_str(text).unwrap_or_default();
        let number = |name: &str| event[name].as_u64().unwrap_or(0);
        let word = |name: &str| event[name].as_str().unwrap_or_default();
        match word("type") {
            "ready" => self.ready(),
            "stt_result" => self.heard(&event, now),
            "vad_event" => match word("event") {
                "speech_start" => self.speech_starts(number("timestamp_ms"), now),
                "turn_end" => self.turn_ends(number("timestamp_ms"), word("reason"), now),
                _ => {}
            },
            "interruption" if word("state") == "confirmed" => {
                self.tell_started();
                self.interrupt(now);
            }
            "tts_started" => self.playing = Some(word("id").to_owned()),
            "tts_progress" => {
                if let Some(message) = self.message_mut(word("id")) {
                    message.word(word("text"), number("played_ms"));
                }
            }
            "tts_playback_complete" => self.played(word("id"), None, now),
            "tts_interrupted" => {
                let heard = (word("heard_text"), number("played_ms"));
                self.played(word("id"), Some(heard), now);
            }
            "error" => self.session_error(&event, now),
            _ => {}
        }
    }

    fn ready(&mut self) {
        let Some(update) = self.updates.pop_front() else {
            return;
        };
        self.in_force = update.session;
        if update.is_asked {
            self.tell_updated();
        }
    }

    fn session_error(&mut self, event: &Value, now: Instant) {
        let word = |name: &str| event[name].as_str().unwrap_or_default();
        let (code, message) = (word("code").to_owned(), word("message").to_owned());
        if word("in_reply_to") == "config" {
            let update = self.updates.pop_front();
            if self.updates.is_empty() {
                self.session = self.in_force.clone();
                self.config = Value::Null;
            }
            let event_id = update.and_then(|update| update.event_id);
            let problem = Problem::general("invalid_value", message);
            return self.refuse(&problem, event_id.as_deref());
        }
        if event["played_ms"].is_u64()
            && let Some(response) = self.response_of(word("id"))
        {
            response.end.get_or_insert(End::Failed { code, message });
            let heard = (word("heard_text"), event["played_ms"].as_u64().unwrap_or(0));
            return self.played(word("id"), Some(heard), now);
        }
        if code == "overloaded"
            && let Some(response) = self.response_of(word("id"))
        {
            // More than the voice can still take.
            let key = response.key;
            response.end.get_or_insert(End::Failed { code, message });
            return self.stop(key, now);
        }
        if code == "stt_failed" || code.starts_with("provider_") {
            let failed: Vec<String> = self.commits.iter().flatten().cloned().collect();
            for item in failed {
                self.tell_failed(&item, &message);
            }
        }
        let code = if event["fatal"] == true {
            "session_failed"
        } else {
            "server_error"
        };
        self.refuse(&Problem::general(code, message), None);
    }

    fn speech_starts(&mut self, at_ms: u64, now: Instant) {
        self.owed = None;
        self.idle_at = None;
        self.idles = 0;
        if self.in_force.turn_detection.is_none() {
            return;
        }
        let item = self.id("item");
        self.turn = Some(UserTurn {
            item,
            start_ms: at_ms,
            is_told: false,
            text: String::new(),
            segments: Vec::new(),
        });
        // Whoever may only say "mhm" over speech has not interrupted it yet: the session decides that.
        let decides = self.in_force.is_semantic(&*self.names)
            && self
                .in_force
                .turn_detection
                .as_ref()
                .is_some_and(|turns| turns.interrupt_response);
        if !(decides && self.playing.is_some()) {
            self.tell_started();
            self.interrupt(now);
        }
    }

    /// Tells that the caller speaks, once.
    fn tell_started(&mut self) {
        let Some(turn) = self.turn.as_mut().filter(|turn| !turn.is_told) else {
            return;
        };
        turn.is_told = true;
        let event = json!({"audio_start_ms": turn.start_ms, "item_id": turn.item});
        self.tell("input_audio_buffer.speech_started", event);
    }

    /// The caller speaks over an answer.
    fn interrupt(&mut self, now: Instant) {
        let turns = self.in_force.turn_detection.as_ref();
        if turns.is_some_and(|turns| turns.interrupt_response) {
            self.cancel("turn_detected", now);
        }
    }

    fn heard(&mut self, result: &Value, now: Instant) {
        let text = |name: &str| result[name].as_str().unwrap_or_default();
        if result["backchannel"] == true || result["is_final"] != true {
            return;
        }
        let whole = result["turn_transcript"].as_str();
        if self.in_force.turn_detection.is_none() {
            self.said
                .extend(whole.filter(|said| !said.is_empty()).map(str::to_owned));
            return;
        }
        // The text of a turn that had ended without it.
        if self.turn.is_none()
            && let (Some(item), Some(said)) = (self.owed.take(), whole)
        {
            self.transcript_known(&item, Some(said.to_owned()), &[], 0);
            return self.respond_to_turn(now);
        }
        if self.turn.is_none() {
            // The recogniser has heard what voice activity detection has not.
            let words = result["words"].as_array().and_then(|words| words.first());
            let start = words.and_then(|word| word["start"].as_f64()).unwrap_or(0.0);
            let item = self.id("item");
            self.turn = Some(UserTurn {
                item,
                start_ms: (start * 1_000.0) as u64,
                is_told: false,
                text: String::new(),
                segments: Vec::new(),
            });
        }
        if let Some(turn) = &mut self.turn {
            if !text("transcript").is_empty() {
                turn.segments.push(text("transcript").to_owned());
            }
            if let Some(whole) = whole {
                whole.clone_into(&mut turn.text);
            }
        }
    }

    fn turn_ends(&mut self, at_ms: u64, reason: &str, now: Instant) {
        if reason == "client"
            && let Some(commit) = self.commits.pop_front()
        {
            let said = std::mem::take(&mut self.said);
            self.turn = None;
            if let Some(item) = commit {
                self.transcript_known(&item, Some(said.join(" ")), &said, at_ms);
                self.awaited.remove(&item);
                self.go_on(now);
            }
            return;
        }
        if self.in_force.turn_detection.is_none() {
            return;
        }
        let Some(turn) = self.turn.take() else {
            return;
        };
        let has_text = !turn.text.is_empty();
        if !has_text && !turn.is_told {
            return;
        }
        let (item, length) = (turn.item.clone(), at_ms.saturating_sub(turn.start_ms));
        let (text, segments) = (turn.text.clone(), turn.segments.clone());
        self.turn = Some(turn);
        self.tell_started();
        self.turn = None;
        let event = json!({"audio_end_ms": at_ms, "item_id": item});
        self.tell("input_audio_buffer.speech_stopped", event);
        self.uncommitted = 0;
        self.add_spoken(item.clone(), Some(text.clone()), now);
        self.transcript_known(&item, Some(text), &segments, length);
        if has_text {
            self.respond_to_turn(now);
        } else if reason == "timeout" {
            self.owed = Some(item);
        }
    }

    /// The model answers a turn, where it is to.
    fn respond_to_turn(&mut self, now: Instant) {
        let turns = self.in_force.turn_detection.as_ref();
        let answers = turns.is_some_and(|turns| turns.create_response);
        if !answers || self.in_force.kind == Kind::Transcription {
            return;
        }
        if let Err(problem) = self.respond(Create::default(), now) {
            self.refuse(&problem, None);
        }
    }

    /// Tells of what the caller has said, whose text may come later.
    fn add_spoken(&mut self, id: String, text: Option<String>, _: Instant) {
        let previous = self.items.last().map(str::to_owned);
        let event = json!({"previous_item_id": previous, "item_id": id});
        self.tell("input_audio_buffer.committed", event);
        let item = Item::spoken(id, text);
        let is_known = matches!(self.session.kind, Kind::Conversation);
        let mut shown = item.clone();
        if let Some(transcript) = shown.transcript_mut() {
            // It comes with an event of its own.
            *transcript = None;
        }
        self.items.push(item);
        if is_known || self.version == Version::Current {
            self.tell_item(&shown, previous.as_deref(), true);
        }
    }

    /// The text of an item is known now.
    fn transcript_known(&mut self, id: &str, text: Option<String>, segments: &[String], ms: u64) {
        let text = text.unwrap_or_default();
        if let Some(transcript) = self.items.get_mut(id).and_then(Item::transcript_mut) {
            *transcript = Some(text.clone());
        }
        if self.in_force.transcription.is_none() {
            return;
        }
        for (index, segment) in segments.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            let event = json!({
                "item_id": id, "content_index": 0, "delta": format!("{space}{segment}"),
            });
            self.tell("conversation.item.input_audio_transcription.delta", event);
        }
        let usage = json!({"type": "duration", "seconds": ms as f64 / 1_000.0});
        let event = json!({
            "item_id": id, "content_index": 0, "transcript": text, "usage": usage,
        });
        self.tell(
            "conversation.item.input_audio_transcription.completed",
            event,
        );
    }

    fn tell_failed(&mut self, id: &str, message: &str) {
        if self.in_force.transcription.is_none() {
            return;
        }
        let error = json!({
            "type": "server_error", "code": "transcription_failed", "message": message, "param": null,
        });
        let event = json!({"item_id": id, "content_index": 0, "error": error});
        self.tell("conversation.item.input_audio_transcription.failed", event);
    }

    /// Takes the text of an item that was created with its sound.
    pub fn transcribed(&mut self, id: &str, text: Result<(String, u64), String>, now: Instant) {
        self.awaited.remove(id);
        match text {
            Ok((text, ms)) => {
                let segments = [text.clone()];
                self.transcript_known(id, Some(text), &segments, ms);
            }
            Err(problem) => self.tell_failed(id, &problem),
        }
        self.go_on(now);
    }

    fn response_of(&mut self, item: &str) -> Option<&mut Response> {
        let mut responses = self.response.iter_mut().chain(&mut self.apart);
        responses.find(|response| {
            let message = response.message.as_ref();
            message.is_some_and(|message| message.item == item)
        })
    }

    fn message_mut(&mut self, item: &str) -> Option<&mut Message> {
        self.response_of(item)?.message.as_mut()
    }

    /// An utterance has ended, cut off where `heard` says what was heard of it and for how long.
    fn played(&mut self, item: &str, heard: Option<(&str, u64)>, now: Instant) {
        if self.playing.as_deref() == Some(item) {
            self.playing = None;
        }
        let speaks_now = self.turn.is_some();
        let Some(response) = self.response_of(item) else {
            return;
        };
        let (key, is_apart) = (response.key, response.is_apart);
        let Some(message) = &mut response.message else {
            return;
        };
        if let Some((heard, played_ms)) = heard {
            let by_client = message
                .cut_ms
                .map(|ms| (message.heard_by(ms).to_owned(), ms));
            let (text, ms) = match by_client {
                Some((text, ms)) if text.len() < heard.len() => (text, ms),
                _ => (heard.to_owned(), played_ms),
            };
            message.text.clone_from(&text);
            message.cut_ms = Some(ms);
            // Where nobody speaks, the voice was changed.
            let reason = if speaks_now {
                "turn_detected"
            } else {
                "client_cancelled"
            };
            response.end.get_or_insert(End::Cancelled(reason));
            if !is_apart && let Some(heard) = self.items.get_mut(item).and_then(Item::heard_mut) {
                *heard = Some(text);
            }
            self.outputs.push(Output::Forget(key));
            self.tell_truncated(item, ms);
        }
        self.finish(key, now);
    }
}

/// The language model.
impl Realtime {
    /// Has the model answer, now or when what it has to know is known.
    fn respond(&mut self, create: Create, now: Instant) -> Result<(), Problem> {
        if create.is_apart {
            if self.apart.len() >= MAX_APART {
                let message = "too many responses are being made apart from the conversation";
                return Err(Problem::general("rate_limit_exceeded", message));
            }
            return self.begin(&create);
        }
        let is_generating = self
            .response
            .as_ref()
            .is_some_and(|response| response.generated.is_none() && response.end.is_none());
        if is_generating || self.queued.is_some() {
            let message = "a response is being made; wait for response.done, or cancel it";
            return Err(Problem::general(
                "conversation_already_has_active_response",
                message,
            ));
        }
        self.queued = Some(create);
        self.go_on(now);
        Ok(())
    }

    /// Begins the answer that waits, if nothing keeps it waiting any more.
    fn go_on(&mut self, _: Instant) {
        if self.response.is_some() || !self.awaited.is_empty() {
            return;
        }
        if let Some(create) = self.queued.take() {
            let event_id = create.event_id.clone();
            if let Err(problem) = self.begin(&create) {
                self.refuse(&problem, event_id.as_deref());
            }
        }
    }

    fn begin(&mut self, create: &Create) -> Result<(), Problem> {
        self.idle_at = None;
        // With updates that are not in force yet: what is said comes behind them.
        let session = &self.session;
        let model = session.model.as_deref();
        let endpoint = self
            .endpoints
            .of_model(model, self.tenant.as_ref(), is_openais);
        let endpoint = endpoint
            .map_err(|error| Problem::new("model_not_found", "model", format!("model: {error}")))?;
        let instructions = create
            .instructions
            .as_deref()
            .unwrap_or(&session.instructions);
        let messages = match &create.input {
            Some(input) => messages(instructions, input.iter()),
            None => messages(instructions, self.items.iter()),
        };
        let tools = create.tools.as_ref().unwrap_or(&session.tools);
        let choice = create.tool_choice.as_ref().unwrap_or(&session.tool_choice);
        let request = ChatRequest {
            messages,
            tools: chat_tools(tools),
            tool_choice: Some(chat_tool_choice(choice)),
            parallel_tool_calls: create.parallel_tool_calls.or(session.parallel_tool_calls),
            temperature: create.temperature.or(session.temperature),
            max_tokens: create.max_output_tokens.or(session.max_output_tokens),
            reasoning_effort: create
                .reasoning_effort
                .clone()
                .or_else(|| session.reasoning_effort.clone()),
        };
        let speaks = create.speaks.unwrap_or(session.speaks);
        let shown_session = session.shown(self.version, "", &*self.names);
        let id = self.id("resp");
        let conversation = self.conversation();
        let conversation = (!create.is_apart).then_some(conversation.as_str());
        let about = (speaks, &create.metadata);
        let shown = response::shown(self.version, &id, conversation, about, &shown_session);
        self.keys += 1;
        let response = Response {
            key: self.keys,
            id,
            is_apart: create.is_apart,
            speaks,
            message: None,
            calls: Vec::new(),
            shown,
            items: 0,
            generated: None,
            end: None,
        };
        let event = json!({"response": response.shown(self.version, false)});
        self.tell("response.created", event);
        self.outputs.push(Output::Ask {
            key: response.key,
            endpoint: Box::new(endpoint),
            request: Box::new(request),
        });
        if create.is_apart {
            self.apart.push(response);
        } else {
            self.response = Some(response);
        }
        Ok(())
    }

    /// The endpoint has begun to answer, and says this of its limits.
    pub fn rate_limits(&mut self, limits: &[RateLimit]) {
        let limits = limits.iter().map(|limit| {
            json!({
                "name": limit.name, "limit": limit.limit, "remaining": limit.remaining,
                "reset_seconds": limit.reset_seconds,
            })
        });
        let limits: Value = limits.collect();
        self.tell("rate_limits.updated", json!({"rate_limits": limits}));
    }

    fn by_key(&mut self, key: u64) -> Option<&mut Response> {
        let mut responses = self.response.iter_mut().chain(&mut self.apart);
        responses.find(|response| response.key == key)
    }

    /// Takes a piece of an answer.
    pub fn answer(&mut self, key: u64, event: Result<AnswerEvent, LlmError>, now: Instant) {
        let is_over =
            |response: &mut Response| response.end.is_some() || response.generated.is_some();
        if self.by_key(key).is_none_or(is_over) {
            return;
        }
        match event {
            Ok(AnswerEvent::Text(text)) => self.more_text(key, &text),
            Ok(AnswerEvent::Call {
                index,
                begins,
                arguments,
            }) => {
                if let Some(function) = begins {
                    self.begin_call(key, function);
                }
                self.more_arguments(key, index, &arguments);
            }
            Ok(AnswerEvent::Done { finish, usage }) => {
                if let Some(response) = self.by_key(key) {
                    response.generated = Some((finish, usage));
                }
                self.generated(key, now);
            }
            Err(error) => {
                let code = if error.is_callers() {
                    "invalid_request"
                } else {
                    "model_failed"
                };
                if let Some(response) = self.by_key(key) {
                    response.end = Some(End::Failed {
                        code: code.to_owned(),
                        message: error.to_string(),
                    });
                }
                self.stop(key, now);
            }
        }
    }

    fn more_text(&mut self, key: u64, text: &str) {
        let made = self.id("item");
        let Some(response) = self.by_key(key) else {
            return;
        };
        if response.message.is_none() {
            response.message = Some(Message::new(made, response.items, response.speaks));
            response.items += 1;
            self.tell_message(key);
        }
        let Some(response) = self.by_key(key) else {
            return;
        };
        let (id, speaks, is_apart) = (response.id.clone(), response.speaks, response.is_apart);
        let Some(message) = &mut response.message else {
            return;
        };
        let piece = message.push(text);
        let (item, index) = (message.item.clone(), message.index);
        let event = json!({
            "response_id": id, "item_id": item, "output_index": index,
            "content_index": 0, "delta": text,
        });
        if !is_apart
            && let Some(known) = self.items.get_mut(&item)
            && let ItemKind::Message { parts, .. } = &mut known.kind
            && let Some(Part::Text(so_far) | Part::Spoken(Some(so_far))) = parts.first_mut()
        {
            so_far.push_str(text);
        }
        let kind = if speaks {
            self.name(
                "response.output_audio_transcript.delta",
                "response.audio_transcript.delta",
            )
        } else {
            self.name("response.output_text.delta", "response.text.delta")
        };
        self.tell(kind, event);
        if let Some(piece) = piece {
            self.send(&json!({"type": "speak", "text": piece, "flush": false, "id": item}));
        }
    }

    /// Tells that a message begins.
    fn tell_message(&mut self, key: u64) {
        let Some(response) = self.by_key(key) else {
            return;
        };
        let Some(message) = &response.message else {
            return;
        };
        let item = response.message_item(message);
        let (id, index, speaks) = (response.id.clone(), message.index, response.speaks);
        let is_apart = response.is_apart;
        self.tell_output_item(&id, index, &item, is_apart);
        let part = if speaks {
            json!({"type": "audio", "transcript": ""})
        } else {
            json!({"type": "text", "text": ""})
        };
        let event = json!({
            "response_id": id, "item_id": item.id, "output_index": index,
            "content_index": 0, "part": part,
        });
        self.tell("response.content_part.added", event);
    }

    fn tell_output_item(&mut self, response: &str, index: usize, item: &Item, is_apart: bool) {
        let shown = items::shown(item, self.version);
        let event = json!({"response_id": response, "output_index": index, "item": shown});
        self.tell("response.output_item.added", event);
        if !is_apart {
            let previous = self.items.last().map(str::to_owned);
            self.items.push(item.clone());
            self.tell_item(item, previous.as_deref(), false);
        }
    }

    fn begin_call(&mut self, key: u64, function: vivavoce_llm::FunctionCall) {
        let made = self.id("item");
        let mut function = function;
        if self.items.has_call(&function.id) {
            // Some endpoints begin to count anew with each answer.
            function.id = format!("call_{made}");
        }
        let Some(response) = self.by_key(key) else {
            return;
        };
        let call = Call {
            item: made,
            index: response.items,
            function,
            arguments: String::new(),
        };
        response.items += 1;
        let item = response.call_item(&call);
        let (id, index, is_apart) = (response.id.clone(), call.index, response.is_apart);
        response.calls.push(call);
        self.tell_output_item(&id, index, &item, is_apart);
    }

    fn more_arguments(&mut self, key: u64, index: usize, more: &str) {
        let Some(response) = self.by_key(key) else {
            return;
        };
        let id = response.id.clone();
        let Some(call) = response.calls.get_mut(index).filter(|_| !more.is_empty()) else {
            return;
        };
        call.arguments.push_str(more);
        let event = json!({
            "response_id": id, "item_id": call.item, "output_index": call.index,
            "call_id": call.function.id, "delta": more,
        });
        self.tell("response.function_call_arguments.delta", event);
    }

    /// The model has finished: the voice is given the rest, and functions are called.
    fn generated(&mut self, key: u64, now: Instant) {
        let Some(response) = self.by_key(key) else {
            return;
        };
        let (id, is_apart) = (response.id.clone(), response.is_apart);
        let message = response.message.as_mut();
        let rest = message.and_then(|message| Some((message.rest()?, message.item.clone())));
        let calls = response.calls.iter();
        let calls: Vec<(usize, Item, Value)> = calls.map(|call| response.call_done(call)).collect();
        if let Some((rest, item)) = rest {
            self.send(&json!({"type": "speak", "text": rest, "flush": true, "id": item}));
        }
        for (index, item, event) in calls {
            self.tell("response.function_call_arguments.done", event);
            self.item_done(&id, index, &item, is_apart);
        }
        let waits = self
            .by_key(key)
            .is_some_and(|response| response.is_to_be_heard());
        if !waits {
            self.finish(key, now);
        }
    }

    fn item_done(&mut self, response: &str, index: usize, item: &Item, is_apart: bool) {
        let shown = items::shown(item, self.version);
        let event = json!({"response_id": response, "output_index": index, "item": shown});
        self.tell("response.output_item.done", event);
        if is_apart {
            return;
        }
        let at = self.items.iter().position(|known| known.id == item.id);
        let previous = at.and_then(|at| self.items.before(at)).map(str::to_owned);
        if let Some(known) = self.items.get_mut(&item.id) {
            known.clone_from(item);
        }
        if self.version == Version::Current {
            let event =
                json!({"previous_item_id": previous, "item": items::shown(item, self.version)});
            self.tell("conversation.item.done", event);
        }
    }

    fn cancel_asked(&mut self, id: Option<&str>, now: Instant) -> Result<(), Problem> {
        let mut active = self.response.iter().chain(&self.apart);
        let found = match id {
            None => self.response.as_ref(),
            Some(id) => active.find(|response| response.id == id),
        };
        let Some(found) = found.filter(|response| response.end.is_none()) else {
            if id.is_none() && self.forget_queued() {
                return Ok(());
            }
            let message = "there is no such response to cancel";
            return Err(Problem::new(
                "response_cancel_not_active",
                "response_id",
                message,
            ));
        };
        let key = found.key;
        if let Some(response) = self.by_key(key) {
            response.end = Some(End::Cancelled("client_cancelled"));
        }
        self.stop(key, now);
        Ok(())
    }

    /// The answer that waits will not be made; who has asked for it learns that.
    fn forget_queued(&mut self) -> bool {
        let Some(create) = self.queued.take() else {
            return false;
        };
        if let Some(event_id) = create.event_id.as_deref().or(create.is_asked.then_some("")) {
            let message = "the response that waited was cancelled before it began";
            let problem = Problem::general("response_cancelled", message);
            self.refuse(&problem, Some(event_id).filter(|id| !id.is_empty()));
        }
        true
    }

    /// Ends the answer of the conversation, and forgets one that waits.
    fn cancel(&mut self, reason: &'static str, now: Instant) {
        self.forget_queued();
        let Some(response) = self
            .response
            .as_mut()
            .filter(|response| response.end.is_none())
        else {
            return;
        };
        response.end = Some(End::Cancelled(reason));
        let key = response.key;
        self.stop(key, now);
    }

    /// Ends an answer whose end is decided: at once, or when the session has said what was heard of it.
    fn stop(&mut self, key: u64, now: Instant) {
        self.outputs.push(Output::Forget(key));
        let Some(response) = self.by_key(key) else {
            return;
        };
        let waits = response.is_to_be_heard();
        match &response.message {
            Some(message) if waits => {
                let clear = json!({"type": "clear", "id": message.item});
                self.send(&clear);
            }
            _ => {
                self.unsaid(key);
                self.finish(key, now);
            }
        }
    }

    /// Nothing of an answer was heard that ends before its voice has begun.
    fn unsaid(&mut self, key: u64) {
        let Some(response) = self.by_key(key).filter(|response| response.speaks) else {
            return;
        };
        let Some(message) = response.message.as_mut().filter(|message| !message.is_done) else {
            return;
        };
        message.text.clear();
        message.cut_ms = Some(0);
        let item = message.item.clone();
        if let Some(heard) = self.items.get_mut(&item).and_then(Item::heard_mut) {
            *heard = Some(String::new());
        }
        self.tell_truncated(&item, 0);
    }

    /// An answer is over.
    fn finish(&mut self, key: u64, now: Instant) {
        // What was all heard may still be in the making.
        let is_over =
            |response: &&mut Response| response.generated.is_some() || response.end.is_some();
        let Some(response) = self.by_key(key).filter(is_over) else {
            return;
        };
        let (id, speaks, is_apart) = (response.id.clone(), response.speaks, response.is_apart);
        if let Some(message) = &mut response.message {
            message.is_done = true;
        }
        let message = response.message.as_ref().map(|message| {
            (
                message.index,
                response.message_item(message),
                message.text.clone(),
            )
        });
        let broken: Vec<(usize, Item, Value)> = if response.generated.is_some() {
            Vec::new()
        } else {
            let calls = response.calls.iter();
            calls.map(|call| response.call_done(call)).collect()
        };
        if let Some((index, item, text)) = message {
            self.tell_message_done(&id, index, &item, (speaks, &text));
            self.item_done(&id, index, &item, is_apart);
        }
        for (index, item, event) in broken {
            self.tell("response.function_call_arguments.done", event);
            self.item_done(&id, index, &item, is_apart);
        }
        let response = match self.response.take_if(|response| response.key == key) {
            Some(response) => response,
            None => {
                let Some(at) = self.apart.iter().position(|response| response.key == key) else {
                    return;
                };
                self.apart.remove(at)
            }
        };
        let event = json!({"response": response.shown(self.version, true)});
        self.tell("response.done", event);
        if let Some(message) = response.message.filter(|_| speaks && !is_apart) {
            self.spoken.push_front(message);
            self.spoken.truncate(MAX_SPOKEN);
        }
        if !is_apart {
            self.wait_for_speech(now);
            self.go_on(now);
        }
    }

    fn tell_message_done(
        &mut self,
        id: &str,
        index: usize,
        item: &Item,
        (speaks, text): (bool, &str),
    ) {
        let event = |name: Option<&str>| {
            let mut event = json!({
                "response_id": id, "item_id": item.id, "output_index": index, "content_index": 0,
            });
            if let Some(name) = name {
                event[name] = json!(text);
            }
            event
        };
        let part = if speaks {
            let kind = self.name("response.output_audio.done", "response.audio.done");
            self.tell(kind, event(None));
            let kind = self.name(
                "response.output_audio_transcript.done",
                "response.audio_transcript.done",
            );
            self.tell(kind, event(Some("transcript")));
            json!({"type": "audio", "transcript": text})
        } else {
            let kind = self.name("response.output_text.done", "response.text.done");
            self.tell(kind, event(Some("text")));
            json!({"type": "text", "text": text})
        };
        let mut done = event(None);
        done["part"] = part;
        self.tell("response.content_part.done", done);
    }

    /// The model goes on by itself if the caller says nothing for long enough.
    fn wait_for_speech(&mut self, now: Instant) {
        let detector = self
            .in_force
            .turn_detection
            .as_ref()
            .map(|turns| &turns.detector);
        let timeout = match detector {
            Some(Detector::ServerVad {
                idle_timeout_ms, ..
            }) if self.turn.is_none() && self.idles < MAX_IDLES => *idle_timeout_ms,
            _ => None,
        };
        self.idle_at = timeout.and_then(|ms| now.checked_add(Duration::from_millis(ms)));
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        if self.idle_at.is_none_or(|at| at > now) {
            return;
        }
        self.idle_at = None;
        self.idles += 1;
        let item = self.id("item");
        let event = json!({"audio_start_ms": 0, "audio_end_ms": 0, "item_id": item});
        self.tell("input_audio_buffer.timeout_triggered", event);
        self.add_spoken(item, Some(String::new()), now);
        if let Err(problem) = self.respond(Create::default(), now) {
            self.refuse(&problem, None);
        }
    }
}

/// OpenAI's own names of models for conversations: whoever names one has to name something.
pub fn is_openais(model: &str) -> bool {
    [
        "gpt-realtime",
        "gpt-4o-realtime",
        "gpt-4o-mini-realtime",
        "gpt-audio",
    ]
    .iter()
    .any(|prefix| model.starts_with(prefix))
}

#[cfg(test)]
mod tests;
