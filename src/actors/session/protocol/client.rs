//! What a client sends. A message is checked here once and trusted inside.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde_json::Value;

use super::config::{ConfigUpdate, SessionConfig, WireConfig};
use super::{misfit, required};
use crate::registry::calls::queues::table::QueueOf;
use crate::registry::calls::warm::machine::Agent;
use crate::registry::calls::warm::{Finish, Way};
use crate::responder::{FunctionResult, Respond};
use crate::session::playback::Speak;
use std::sync::Arc;
use vivavoce_core::json::{self, Misfit};
use vivavoce_core::ssml::Ssml;
use vivavoce_seams::rooms::link::TelephoneKey;
use vivavoce_seams::rooms::telephone::Hold;
use vivavoce_synthesis::TextType;

/// What a client asks for.
#[derive(Debug)]
pub enum ClientMessage {
    /// Goes on with a session whose socket broke.
    Resume(Resume),
    /// Begins a session, or changes it.
    Config(Box<SessionConfig>),
    /// Changes a part of it while it runs.
    UpdateConfig(Box<ConfigUpdate>),
    /// Says a text.
    Speak(Speak),
    /// Stops what is being said, or the utterances of one id.
    Clear {
        /// Which; all where absent.
        id: Option<String>,
    },
    /// The speaker has finished.
    EndTurn,
    /// The language model shall answer now.
    Respond(Respond),
    /// What a function returned.
    FunctionResult(FunctionResult),
    /// Starts the loading sound.
    LoadingStart,
    /// Stops it.
    LoadingStop,
    /// Records silence from now on, or sound again.
    PauseRecording(bool),
    /// Relays a message into the room.
    SendMessage(SendMessage),
    /// Moves the telephone call, ends it, or presses keys on it.
    Call(CallCommand),
}

/// The longest result of a function.
const MAX_OUTPUT_BYTES: usize = 256 << 10;
/// Longer texts that are no messages are not looked at again.
const LONGEST_MISFIT: usize = 64 << 10;

/// Which message of a client an error answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The `type` of the message, where it is one of ours.
    pub message: Option<&'static str>,
    /// The `id` of the utterance that it names.
    pub id: Option<String>,
}

/// `resume`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// That of the last `ready`.
    pub token: String,
    /// The `seq` of the last event that came.
    pub last_event: u64,
    /// The bytes of sound that came, over all sockets of the session.
    pub received_bytes: Option<u64>,
}

/// `send_message`.
#[derive(Debug, Clone, PartialEq)]
pub struct SendMessage {
    /// What is sent.
    pub message: String,
    /// For example `user` or `assistant`.
    pub role: String,
    /// `messages` when absent.
    pub topic: String,
    /// Anything.
    pub debug: Option<Value>,
}

#[derive(Deserialize)]
struct Named {
    r#type: Option<String>,
}

/// Says a text.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Speak")]
struct WireSpeak {
    /// What is said. At most 64 KiB wait.
    #[schemars(required)]
    text: Option<String>,
    /// What the text is: `ssml` is a whole document, at most 64 KiB, for a provider that takes it; `flush` is true then.
    #[schemars(extend("default" = "plain"))]
    text_type: Option<TextType>,
    /// Whether it is said now, with whatever waited before it; else complete sentences are, and the rest waits.
    #[schemars(extend("default" = true))]
    flush: Option<bool>,
    /// Whether `clear` and `replace` may cut it.
    #[schemars(extend("default" = true))]
    allow_interruption: Option<bool>,
    /// Whether it clears first.
    #[schemars(extend("default" = false))]
    replace: Option<bool>,
    /// Comes back in the events of this utterance.
    id: Option<String>,
}

/// Goes on with a session whose socket broke. The first message of another socket.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Resume")]
struct WireResume {
    /// `resume_token` of the last `ready`.
    #[schemars(required)]
    token: Option<String>,
    /// `seq` of the last event that came.
    #[schemars(required)]
    last_event: Option<u64>,
    /// Bytes of sound that came, over all sockets of the session; what the last socket took when absent.
    received_bytes: Option<u64>,
}

/// Stops what is being said.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Clear")]
struct WireClear {
    /// The utterances with this id only; everything where absent.
    id: Option<String>,
}

/// Relays a message into the room.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "SendMessage")]
struct WireSendMessage {
    /// What is sent.
    #[schemars(required)]
    message: Option<String>,
    /// For example `user` or `assistant`.
    #[schemars(required)]
    role: Option<String>,
    /// Under which topic.
    #[schemars(extend("default" = "messages"))]
    topic: Option<String>,
    /// Anything.
    debug: Option<Value>,
}

/// Has the language model of `agent` answer now, whatever was said.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Respond")]
struct WireRespond {
    /// What the model is told first, in place of the instructions of `config`, for this answer.
    instructions: Option<String>,
}

/// What a function returned that the language model of `agent` has called. When all results are there, it answers.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "FunctionResult")]
struct WireFunctionResult {
    /// That of `function_call`.
    #[schemars(required)]
    call_id: Option<String>,
    /// What the model is told, at most 256 KiB.
    #[schemars(required)]
    output: Option<String>,
}

impl WireFunctionResult {
    fn check(self) -> Result<FunctionResult, Misfit> {
        let output = required(self.output, "output")?;
        if output.len() > MAX_OUTPUT_BYTES {
            return Err(misfit("output", "must have at most 256 KiB"));
        }
        let call_id = required(self.call_id, "call_id")?;
        Ok(FunctionResult { call_id, output })
    }
}

/// Starts or stops the loading sound.
#[derive(JsonSchema)]
#[schemars(rename = "Loading")]
struct WireLoading {}

/// Records silence from now on, and no transcript, until `resume_recording`: for what nobody may keep.
#[derive(JsonSchema)]
#[schemars(rename = "PauseRecording")]
struct WirePauseRecording {}

/// Records sound again.
#[derive(JsonSchema)]
#[schemars(rename = "ResumeRecording")]
struct WireResumeRecording {}

/// The speaker has finished: the turn ends once what was said before is text.
#[derive(JsonSchema)]
#[schemars(rename = "EndTurn")]
struct WireEndTurn {}

/// A kind of message: its name on the wire, its schema and how it is read. What it does is decided in
/// [`state`](crate::session::state).
pub struct MessageKind {
    /// The value of `type`.
    pub name: &'static str,
    /// Makes its schema.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
    parse: fn(&[u8]) -> Result<ClientMessage, Misfit>,
}

impl MessageKind {
    const fn new<Wire: JsonSchema>(
        name: &'static str,
        parse: fn(&[u8]) -> Result<ClientMessage, Misfit>,
    ) -> Self {
        Self {
            name,
            schema: Wire::json_schema,
            parse,
        }
    }
}

/// What a client may send.
pub const CLIENT_MESSAGES: [MessageKind; 22] = [
    MessageKind::new::<WireConfig>("config", |text| {
        let config = json::parse::<WireConfig>(text)?.check()?;
        Ok(ClientMessage::Config(Box::new(config)))
    }),
    MessageKind::new::<ConfigUpdate>("update_config", |text| {
        Ok(ClientMessage::UpdateConfig(json::parse(text)?))
    }),
    MessageKind::new::<WireResume>("resume", |text| {
        let resume = json::parse::<WireResume>(text)?.check()?;
        Ok(ClientMessage::Resume(resume))
    }),
    MessageKind::new::<WireSpeak>("speak", |text| {
        let speak = json::parse::<WireSpeak>(text)?.check()?;
        Ok(ClientMessage::Speak(speak))
    }),
    MessageKind::new::<WireClear>("clear", |text| {
        let WireClear { id } = json::parse(text)?;
        Ok(ClientMessage::Clear { id })
    }),
    MessageKind::new::<WireEndTurn>("end_turn", |_| Ok(ClientMessage::EndTurn)),
    MessageKind::new::<WireRespond>("respond", |text| {
        let WireRespond { instructions } = json::parse(text)?;
        Ok(ClientMessage::Respond(Respond { instructions }))
    }),
    MessageKind::new::<WireFunctionResult>("function_result", |text| {
        let result = json::parse::<WireFunctionResult>(text)?.check()?;
        Ok(ClientMessage::FunctionResult(result))
    }),
    MessageKind::new::<WireLoading>("loading_start", |_| Ok(ClientMessage::LoadingStart)),
    MessageKind::new::<WireLoading>("loading_stop", |_| Ok(ClientMessage::LoadingStop)),
    MessageKind::new::<WirePauseRecording>("pause_recording", |_| {
        Ok(ClientMessage::PauseRecording(true))
    }),
    MessageKind::new::<WireResumeRecording>("resume_recording", |_| {
        Ok(ClientMessage::PauseRecording(false))
    }),
    MessageKind::new::<WireSendMessage>("send_message", |text| {
        let message = json::parse::<WireSendMessage>(text)?.check()?;
        Ok(ClientMessage::SendMessage(message))
    }),
    MessageKind::new::<WireSipTransfer>("sip_transfer", |text| {
        let transfer = json::parse::<WireSipTransfer>(text)?.check()?;
        Ok(ClientMessage::Call(transfer))
    }),
    MessageKind::new::<WireCompleteTransfer>("complete_transfer", |text| {
        let complete = json::parse::<WireCompleteTransfer>(text)?.check()?;
        Ok(ClientMessage::Call(complete))
    }),
    MessageKind::new::<WireCancelTransfer>("cancel_transfer", |text| {
        let WireCancelTransfer { transfer_id } = json::parse(text)?;
        Ok(ClientMessage::Call(CallCommand::Finish {
            transfer_id,
            finish: Finish::Cancel,
        }))
    }),
    MessageKind::new::<WireHold>("hold", |text| {
        Ok(ClientMessage::Call(json::parse::<WireHold>(text)?.check()))
    }),
    MessageKind::new::<WireQueueCall>("queue_call", |text| {
        let call = json::parse::<WireQueueCall>(text)?.check()?;
        Ok(ClientMessage::Call(call))
    }),
    MessageKind::new::<WireLeaveQueue>("leave_queue", |text| {
        let WireLeaveQueue {
            participant_identity,
        } = json::parse(text)?;
        Ok(ClientMessage::Call(CallCommand::LeaveQueue {
            participant_identity,
        }))
    }),
    MessageKind::new::<WireNextCall>("next_call", |text| {
        let queue = required(json::parse::<WireNextCall>(text)?.queue, "queue")?;
        Ok(ClientMessage::Call(CallCommand::Next { queue }))
    }),
    MessageKind::new::<WireHangup>("hangup", |text| {
        Ok(ClientMessage::Call(
            json::parse::<WireHangup>(text)?.check(),
        ))
    }),
    MessageKind::new::<WireSendDtmf>("send_dtmf", |text| {
        let keys = json::parse::<WireSendDtmf>(text)?.check()?;
        Ok(ClientMessage::Call(keys))
    }),
];

impl ClientMessage {
    /// The message of a text frame.
    pub fn parse(text: &[u8]) -> Result<Self, Misfit> {
        let named: Named = json::parse(text)?;
        let Some(name) = named.r#type.as_deref() else {
            return Err(misfit("type", "is required"));
        };
        match CLIENT_MESSAGES.iter().find(|kind| kind.name == name) {
            Some(kind) => (kind.parse)(text),
            None => {
                let name: String = name.chars().take(40).collect();
                let known: Vec<&str> = CLIENT_MESSAGES.iter().map(|kind| kind.name).collect();
                let known = known.join(", ");
                let problem = format!("unknown message {name:?}; there are {known}");
                Err(misfit("type", problem))
            }
        }
    }

    /// What an error about this message answers.
    pub fn origin(&self) -> Origin {
        let (message, id) = match self {
            Self::Resume(_) => ("resume", None),
            Self::Config(_) => ("config", None),
            Self::UpdateConfig(_) => ("update_config", None),
            Self::Speak(speak) => ("speak", speak.id.as_ref()),
            Self::Clear { id } => ("clear", id.as_ref()),
            Self::EndTurn => ("end_turn", None),
            Self::Respond(_) => ("respond", None),
            Self::FunctionResult(_) => ("function_result", None),
            Self::LoadingStart => ("loading_start", None),
            Self::LoadingStop => ("loading_stop", None),
            Self::PauseRecording(true) => ("pause_recording", None),
            Self::PauseRecording(false) => ("resume_recording", None),
            Self::SendMessage(_) => ("send_message", None),
            Self::Call(command) => (command.name(), None),
        };
        Origin {
            message: Some(message),
            id: id.cloned(),
        }
    }
}

impl Origin {
    /// What an error about this message answers.
    pub fn of(message: &'static str) -> Self {
        Self {
            message: Some(message),
            id: None,
        }
    }

    /// What an error about a text frame answers that is no message of ours.
    pub fn of_misfit(text: &[u8]) -> Self {
        if text.len() > LONGEST_MISFIT {
            return Self::default();
        }
        let value: Value = serde_json::from_slice(text).unwrap_or_default();
        let named = |field: &str| value.get(field).and_then(Value::as_str);
        let kind = CLIENT_MESSAGES
            .iter()
            .find(|kind| Some(kind.name) == named("type"));
        Self {
            message: kind.map(|kind| kind.name),
            id: named("id").map(str::to_owned),
        }
    }
}

impl WireResume {
    fn check(self) -> Result<Resume, Misfit> {
        Ok(Resume {
            token: required(self.token, "token")?,
            last_event: required(self.last_event, "last_event")?,
            received_bytes: self.received_bytes,
        })
    }
}

impl WireSpeak {
    fn check(self) -> Result<Speak, Misfit> {
        let text = required(self.text, "text")?;
        let flush = self.flush.unwrap_or(true);
        let ssml = match self.text_type.unwrap_or_default() {
            TextType::Plain => None,
            TextType::Ssml if !flush => {
                let problem = "a document comes whole: with text_type ssml it must be true";
                return Err(misfit("flush", problem));
            }
            TextType::Ssml => {
                let document = Ssml::parse(&text);
                Some(document.map_err(|error| misfit("text", error.to_string()))?)
            }
        };
        let text = ssml.as_ref().map_or(text, |ssml| ssml.text().to_owned());
        Ok(Speak {
            text,
            ssml: ssml.map(Arc::new),
            flush,
            allow_interruption: self.allow_interruption.unwrap_or(true),
            replace: self.replace.unwrap_or(false),
            id: self.id,
        })
    }
}

impl WireSendMessage {
    fn check(self) -> Result<SendMessage, Misfit> {
        Ok(SendMessage {
            message: required(self.message, "message")?,
            role: required(self.role, "role")?,
            topic: self.topic.unwrap_or_else(|| "messages".to_owned()),
            debug: self.debug,
        })
    }
}

/// Characters of a name or an identity in a room.
const MAX_NAME_CHARS: usize = 256;
/// Keys of one message.
const MAX_DIGITS: usize = 32;

/// What a client wants of the telephone. Who is meant is the first telephone participant where nobody is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallCommand {
    /// `sip_transfer`.
    Transfer(SipTransfer),
    /// `complete_transfer`, `cancel_transfer`.
    Finish {
        /// Which; the one of the room when absent.
        transfer_id: Option<String>,
        /// How.
        finish: Finish,
    },
    /// `hold`.
    Hold {
        /// What is heard then.
        hold: Hold,
        /// Whose call.
        participant_identity: Option<String>,
    },
    /// `queue_call`.
    Queue {
        /// Where it waits.
        queue: String,
        /// Whose call.
        participant_identity: Option<String>,
    },
    /// `leave_queue`.
    LeaveQueue {
        /// Whose call.
        participant_identity: Option<String>,
    },
    /// `next_call`.
    Next {
        /// Who waits longest there comes into the session's room.
        queue: String,
    },
    /// `hangup`.
    HangUp {
        /// Whose call.
        participant_identity: Option<String>,
    },
    /// `send_dtmf`.
    Press {
        /// Which keys, one after the other.
        keys: Vec<TelephoneKey>,
        /// On whose call.
        participant_identity: Option<String>,
    },
}

impl CallCommand {
    /// The message of the client.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Transfer(_) => "sip_transfer",
            Self::Finish {
                finish: Finish::Complete(..),
                ..
            } => "complete_transfer",
            Self::Finish {
                finish: Finish::Cancel,
                ..
            } => "cancel_transfer",
            Self::Hold { .. } => "hold",
            Self::Queue { .. } => "queue_call",
            Self::LeaveQueue { .. } => "leave_queue",
            Self::Next { .. } => "next_call",
            Self::HangUp { .. } => "hangup",
            Self::Press { .. } => "send_dtmf",
        }
    }
}

/// `sip_transfer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SipTransfer {
    /// Where to, as the client wrote it.
    pub transfer_to: String,
    /// Who; the first telephone participant when absent.
    pub participant_identity: Option<String>,
    /// Of a warm one.
    pub warm: Option<WarmTransfer>,
}

/// What a warm `sip_transfer` says of the person who is called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WarmTransfer {
    /// The caller ID, as the client wrote it.
    pub from_phone_number: Option<String>,
    /// Their identity in the room.
    pub person_identity: Option<String>,
    /// Their display name.
    pub person_name: Option<String>,
}

/// Moves the telephone call.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "SipTransfer")]
struct WireSipTransfer {
    /// The number to call instead.
    #[schemars(required)]
    transfer_to: Option<String>,
    /// Whose call; the first telephone participant's when absent.
    participant_identity: Option<String>,
    /// `blind`: the other side is asked to call the number. `warm`: the number is called into the room while the caller is on
    /// hold, and the two are connected by `complete_transfer`.
    #[schemars(extend("enum" = ["blind", "warm", null], "default" = "blind"))]
    mode: Option<String>,
    /// The caller ID of a warm transfer; our number of the caller's call when absent.
    from_phone_number: Option<String>,
    /// The identity of the person who is called by a warm transfer.
    #[schemars(length(min = 1, max = 256))]
    person_identity: Option<String>,
    /// The display name of that person.
    #[schemars(length(min = 1, max = 256))]
    person_name: Option<String>,
}

/// Connects the caller and the person of a warm transfer.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "CompleteTransfer")]
struct WireCompleteTransfer {
    /// Which; the one of the room when absent.
    transfer_id: Option<String>,
    /// Whether this session leaves the room then, or stays and all three hear each other.
    #[schemars(extend("enum" = ["leave", "stay", null], "default" = "leave"))]
    agent: Option<String>,
    /// How the two are connected: in the room, or by their own exchange (REFER with `Replaces`), which leaves this server out; where
    /// that does not take it, in the room.
    #[schemars(extend("enum" = ["room", "refer", null], "default" = "room"))]
    by: Option<String>,
}

/// Ends a warm transfer: the person is hung up, the caller off hold.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "CancelTransfer")]
struct WireCancelTransfer {
    /// Which; the one of the room when absent.
    transfer_id: Option<String>,
}

/// Puts the telephone call on hold, or takes it off.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Hold")]
struct WireHold {
    /// Whether it is on hold from now on.
    #[schemars(extend("default" = true))]
    held: Option<bool>,
    /// Whether music, or words, of the settings are heard meanwhile.
    #[schemars(extend("default" = true))]
    music: Option<bool>,
    /// Whose call; the first telephone participant's when absent.
    participant_identity: Option<String>,
}

/// Puts the telephone call into a queue, on hold, until somebody takes it.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "QueueCall")]
struct WireQueueCall {
    /// The name of the queue.
    #[schemars(required, regex(pattern = QueueOf::PATTERN))]
    queue: Option<String>,
    /// Whose call; the first telephone participant's when absent.
    participant_identity: Option<String>,
}

/// Takes the telephone call out of its queue, off hold.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "LeaveQueue")]
struct WireLeaveQueue {
    /// Whose call; the first telephone participant's when absent.
    participant_identity: Option<String>,
}

/// Brings the caller who waits longest into the session's room.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "NextCall")]
struct WireNextCall {
    /// The name of the queue.
    #[schemars(required, regex(pattern = QueueOf::PATTERN))]
    queue: Option<String>,
}

/// Ends the telephone call.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Hangup")]
struct WireHangup {
    /// Whose call; the first telephone participant's when absent.
    participant_identity: Option<String>,
}

/// Presses keys on the telephone call.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "SendDtmf")]
struct WireSendDtmf {
    /// Which, one after the other.
    #[schemars(required, regex(pattern = r"^[0-9*#A-Da-d]{1,32}$"))]
    digits: Option<String>,
    /// On whose call; the first telephone participant's when absent.
    participant_identity: Option<String>,
}

impl WireSipTransfer {
    fn check(self) -> Result<CallCommand, Misfit> {
        let is_warm = match self.mode.as_deref() {
            None | Some("blind") => false,
            Some("warm") => true,
            Some(_) => return Err(misfit("mode", "must be blind or warm")),
        };
        for (field, value) in [
            ("from_phone_number", &self.from_phone_number),
            ("person_identity", &self.person_identity),
            ("person_name", &self.person_name),
        ] {
            if value.is_some() && !is_warm {
                return Err(misfit(field, "is for mode warm"));
            }
        }
        for (field, value) in [
            ("person_identity", &self.person_identity),
            ("person_name", &self.person_name),
        ] {
            let fits = |value: &String| {
                !value.trim().is_empty() && value.chars().count() <= MAX_NAME_CHARS
            };
            if !value.as_ref().is_none_or(fits) {
                return Err(misfit(field, "must have 1 to 256 characters"));
            }
        }
        Ok(CallCommand::Transfer(SipTransfer {
            transfer_to: required(self.transfer_to, "transfer_to")?,
            participant_identity: self.participant_identity,
            warm: is_warm.then_some(WarmTransfer {
                from_phone_number: self.from_phone_number,
                person_identity: self.person_identity,
                person_name: self.person_name,
            }),
        }))
    }
}

impl WireCompleteTransfer {
    fn check(self) -> Result<CallCommand, Misfit> {
        let agent = match self.agent.as_deref() {
            None | Some("leave") => Agent::Leave,
            Some("stay") => Agent::Stay,
            Some(_) => return Err(misfit("agent", "must be leave or stay")),
        };
        let way = Way::parse(self.by.as_deref());
        let way = way.ok_or_else(|| misfit("by", "must be room or refer"))?;
        Ok(CallCommand::Finish {
            transfer_id: self.transfer_id,
            finish: Finish::Complete(agent, way),
        })
    }
}

impl WireHold {
    fn check(self) -> CallCommand {
        CallCommand::Hold {
            hold: match (self.held.unwrap_or(true), self.music.unwrap_or(true)) {
                (false, _) => Hold::Off,
                (true, false) => Hold::Silence,
                (true, true) => Hold::Music,
            },
            participant_identity: self.participant_identity,
        }
    }
}

impl WireQueueCall {
    fn check(self) -> Result<CallCommand, Misfit> {
        Ok(CallCommand::Queue {
            queue: required(self.queue, "queue")?,
            participant_identity: self.participant_identity,
        })
    }
}

impl WireHangup {
    fn check(self) -> CallCommand {
        CallCommand::HangUp {
            participant_identity: self.participant_identity,
        }
    }
}

impl WireSendDtmf {
    fn check(self) -> Result<CallCommand, Misfit> {
        let digits = required(self.digits, "digits")?;
        let keys: Option<Vec<TelephoneKey>> = digits.chars().map(TelephoneKey::new).collect();
        let keys = keys.filter(|keys| (1..=MAX_DIGITS).contains(&keys.len()));
        Ok(CallCommand::Press {
            keys: keys.ok_or_else(|| misfit("digits", "must be 1 to 32 of 0-9 * # A-D"))?,
            participant_identity: self.participant_identity,
        })
    }
}
