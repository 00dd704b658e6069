//! What the server sends. Messages are named here and nowhere else.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::{Origin, StreamId};
use crate::session::barge_in::InterruptionEvent;
use crate::session::turn::VoiceEvent;
use vivavoce_core::dialect::Dialect;
use vivavoce_seams::SttResult;

/// What we tell a client. Times are milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ServerMessage {
    /// The session is as it was configured.
    Ready {
        /// Its name.
        stream_id: StreamId,
        /// The room that it is in.
        #[serde(flatten)]
        room: Option<RoomOfSession>,
        /// With it a client goes on at another socket, once, where its config asked for `resume`.
        resume_token: String,
    },
    /// Somebody said something in writing in the room.
    Message {
        /// What.
        message: RoomText,
    },
    /// Somebody is in the room; those who were there before are told too.
    ParticipantConnected {
        /// Who.
        participant: RoomParticipant,
    },
    /// Somebody has left the room.
    ParticipantDisconnected {
        /// Who.
        participant: RoomParticipant,
    },
    /// Somebody is heard from now on.
    TrackSubscribed {
        /// Of whom.
        track: RoomTrack,
    },
    /// A telephone call of the room has come further.
    SipCall {
        /// Which.
        sip_call_id: String,
        /// Whose.
        participant_identity: String,
        /// Where it is.
        #[schemars(extend("enum" = ["dialing", "ringing", "active", "hangup"]))]
        status: &'static str,
        /// Why it is over; null before.
        cause: Option<&'static str>,
    },
    /// Somebody has pressed a key of their telephone.
    Dtmf {
        /// 0 to 9, `*`, `#`, A to D.
        digit: String,
        /// Who.
        identity: String,
        /// Unix time.
        timestamp: u64,
    },
    /// A telephone call was moved, or was over before it could be.
    SipTransferComplete {
        /// As it was dialled.
        transfer_to: String,
        /// Whose.
        participant_identity: String,
    },
    /// A telephone call was not moved; it goes on as it was.
    SipTransferError {
        /// For people.
        message: String,
        /// For programs.
        code: TransferErrorCode,
    },
    /// What was heard.
    SttResult(SttResult),
    /// What the voice does.
    VadEvent(VoiceEvent),
    /// Whether somebody who speaks over playback interrupts it.
    Interruption(InterruptionEvent),
    /// The first sound of an utterance leaves.
    TtsStarted {
        /// Of its `speak`.
        id: Option<String>,
        /// Unix time.
        timestamp: u64,
    },
    /// The listener begins to hear a word of an utterance: `tts_config.progress`.
    TtsProgress {
        /// Of its `speak`.
        id: Option<String>,
        /// The number of the word in the utterance, from 0.
        word_index: u64,
        /// The word as it was sent, with the marks that belong to it.
        text: String,
        /// Where the word begins in the utterance's sound.
        played_ms: u64,
        /// Whether that was estimated from the sound, as the voice does not tell it.
        estimated: bool,
    },
    /// The last sample of an utterance has been played out.
    TtsPlaybackComplete {
        /// Unix time.
        timestamp: u64,
        /// Of its `speak`.
        id: Option<String>,
        /// How long it was.
        duration_ms: u64,
    },
    /// An utterance was cut off.
    TtsInterrupted {
        /// Of its `speak`.
        id: Option<String>,
        /// Unix time.
        timestamp: u64,
        /// How much was played.
        played_ms: u64,
        /// What was heard of it.
        heard_text: String,
    },
    /// A provider's fate.
    ProviderEvent {
        /// `stt`, `tts`, `rtc` or `recording`.
        #[schemars(extend("enum" = ["stt", "tts", "rtc", "recording"]))]
        kind: &'static str,
        /// `reconnecting`, `recovered`, `switched` (the provider is the new one), `ignored` (wishes that it does not know)
        /// or `failed`.
        #[schemars(extend("enum" = ["reconnecting", "recovered", "switched", "ignored", "failed"]))]
        state: &'static str,
        /// Its slug.
        provider: String,
        /// For people.
        message: String,
    },
    /// How long the answer to a turn took: milliseconds from the end of speech, null where it did not come to that.
    TurnMetrics {
        /// The number of the turn in the session, from 1.
        turn: u64,
        /// Until its final.
        final_ms: Option<u64>,
        /// Until the first text of the answer came.
        first_text_ms: Option<u64>,
        /// Until the first sound of it left.
        first_sound_ms: Option<u64>,
        /// Until it had been played, or was cut off.
        played_ms: Option<u64>,
        /// Whether it was cut off.
        interrupted: bool,
    },
    /// The language model of `agent` begins an answer.
    ResponseStarted {
        /// Of its utterance.
        id: String,
    },
    /// More of what it says, as it writes.
    ResponseText {
        /// Of its utterance.
        id: String,
        /// What.
        text: String,
    },
    /// It has a function called: `function_result` answers.
    FunctionCall {
        /// Of the answer in which it does.
        id: String,
        /// Names the call.
        call_id: String,
        /// The function.
        name: String,
        /// JSON, as the model wrote it.
        arguments: String,
    },
    /// An answer is over: it was heard, cut off, or there was none.
    ResponseDone {
        /// Of its utterance.
        id: String,
        /// How.
        status: ResponseStatus,
        /// What was said of it, where it was cut off what was heard: what the model remembers.
        text: String,
        /// What it cost, where the endpoint says so.
        usage: Option<ResponseUsage>,
    },
    /// To an agent that the server has dialled, first of all: the call that it is for.
    Call {
        /// The room of the call; `config` need not name it. Null for a call by a carrier's socket that is in no room.
        room_name: Option<String>,
        /// The caller in the room.
        participant_identity: String,
        /// The calling number; null where it is withheld, and for people in rooms.
        from: Option<String>,
        /// The called number; null likewise.
        to: Option<String>,
        /// The known SIP headers of the call, by their names in lower case.
        headers: BTreeMap<String, String>,
        /// The id of the session, unless `config` chooses one.
        stream_id: String,
        /// The carrier, where the call came by a carrier's socket.
        #[serde(skip_serializing_if = "Option::is_none")]
        carrier: Option<CarrierOfCall>,
    },
    /// The recording was paused, or goes on.
    RecordingState {
        /// Whether sound is recorded, or silence.
        #[schemars(extend("enum" = ["recording", "paused"]))]
        state: &'static str,
        /// How much of it there is by then, in milliseconds.
        position_ms: u64,
    },
    /// The server is going to stop.
    Draining {
        /// When sessions are ended that have not ended by then, Unix time.
        deadline: u64,
    },
    /// Something has been carried out, and probably not with the effect that was wanted.
    Warning {
        /// For people: what is probably wrong, and the remedy.
        message: String,
        /// For programs.
        code: WarningCode,
        /// The message of the client that it is about, `binary` for its sound.
        in_reply_to: Option<&'static str>,
        /// The utterance, where it is about one.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
    },
    /// Something that was asked for cannot be done.
    Error {
        /// For people.
        message: String,
        /// For programs.
        code: ErrorCode,
        /// Whether the session ends.
        fatal: bool,
        /// The utterance, where it is about one.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The message of the client that it answers.
        #[serde(skip_serializing_if = "Option::is_none")]
        in_reply_to: Option<&'static str>,
        /// How much was played of the utterance that it ends; absent where it ends none.
        #[serde(skip_serializing_if = "Option::is_none")]
        played_ms: Option<u64>,
        /// What was heard of that utterance.
        #[serde(skip_serializing_if = "Option::is_none")]
        heard_text: Option<String>,
    },
}

/// `response_done.status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResponseStatus {
    /// All of it was heard.
    Completed,
    /// It was cut off.
    Interrupted,
    /// There was none: an `error` says why.
    Failed,
}

/// Tokens of the language model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ResponseUsage {
    /// What it was told.
    pub input_tokens: u64,
    /// What it said.
    pub output_tokens: u64,
}

/// Where a call by a carrier's socket comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CarrierOfCall {
    /// The carrier, as in `/carrier/{kind}`.
    pub kind: String,
    /// The carrier's id of the call.
    pub call_id: String,
    /// What the answer document gave to the call.
    pub parameters: BTreeMap<String, String>,
}

/// The room of a session, as `ready` names it.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
pub struct RoomOfSession {
    /// Its name.
    pub rtc_room_name: String,
    /// Where clients connect.
    pub rtc_url: String,
    /// Who the session is in it.
    pub service_participant_identity: String,
    /// What it is called there.
    pub service_participant_name: String,
    /// In which these fields are named.
    #[schemars(skip)]
    pub dialect: Arc<Dialect>,
}

impl Serialize for RoomOfSession {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = [
            ("rtc_room_name", &self.rtc_room_name),
            ("rtc_url", &self.rtc_url),
            (
                "service_participant_identity",
                &self.service_participant_identity,
            ),
            ("service_participant_name", &self.service_participant_name),
        ];
        let fields = fields.map(|(name, value)| (self.dialect.field(name), value));
        serializer.collect_map(fields)
    }
}

/// A message of a room; `message` where it is UTF-8, else `data`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RoomText {
    /// As it came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("contentEncoding" = "base64"))]
    pub data: Option<String>,
    /// Who sent it; null where the server's API did.
    pub identity: Option<String>,
    /// What it is about; null where it does not say.
    pub topic: Option<String>,
    /// Where.
    pub room: String,
    /// Unix time.
    pub timestamp: u64,
}

/// Somebody in a room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RoomParticipant {
    /// Who, as the room knows them.
    pub identity: String,
    /// What people read.
    pub name: String,
    /// Where.
    pub room: String,
    /// Unix time.
    pub timestamp: u64,
}

/// A track of somebody in a room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RoomTrack {
    /// Whose.
    pub identity: String,
    /// What they call it.
    pub name: String,
    /// `audio`: nothing else is subscribed to.
    #[schemars(extend("const" = "audio"))]
    pub track_kind: &'static str,
    /// Its id.
    pub track_sid: String,
    /// Where.
    pub room: String,
    /// Unix time.
    pub timestamp: u64,
}

/// `error.code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The message is not of the protocol; it is ignored.
    InvalidMessage,
    /// No `config` came in time.
    ConfigTimeout,
    /// Something else came before `config`.
    NotConfigured,
    /// The token of the session has expired or was revoked.
    Unauthorized,
    /// The session has no sound.
    AudioDisabled,
    /// The name is taken.
    StreamIdInUse,
    /// No such provider.
    UnsupportedProvider,
    /// A credential of the wrong shape.
    InvalidProviderAuth,
    /// No credential.
    MissingProviderAuth,
    /// The provider refused the credential.
    ProviderAuth,
    /// The provider is not there.
    ProviderUnavailable,
    /// The provider will never accept this.
    ProviderRejected,
    /// The provider asks for patience.
    ProviderRateLimited,
    /// The provider was too slow.
    ProviderTimeout,
    /// Hearing failed.
    SttFailed,
    /// Speaking failed.
    TtsFailed,
    /// The language model does not answer.
    LlmFailed,
    /// There are no rooms.
    RtcNotConfigured,
    /// The room failed.
    RtcFailed,
    /// The room belongs to somebody else.
    RoomAccessDenied,
    /// Nobody is on the telephone, or not who was named.
    ParticipantNotFound,
    /// The telephone call could not be ended.
    CallFailed,
    /// The session cannot go on at this socket.
    CannotResume,
    /// It cannot be recorded.
    RecordingUnavailable,
    /// The loading sound is none.
    InvalidLoadingAudio,
    /// There is no loading sound.
    LoadingUnavailable,
    /// A bound of ours is reached.
    Overloaded,
    /// Our own fault.
    Internal,
}

/// `warning.code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WarningCode {
    /// A message has fields that are not of the protocol.
    UnknownFields,
    /// The sound begins like a file, where raw samples are due.
    ContainerAsSamples,
    /// The sound looks like base64.
    Base64AsSamples,
    /// The sound looks like two channels, where one is due.
    StereoAsMono,
    /// Speech sounds as it does with the samples of another rate.
    WrongSampleRate,
    /// A text has tags that this voice says as words.
    MarkupAsText,
    /// A text has nothing that a voice could say.
    NothingToSay,
    /// Speech that a client has missed is not kept any more.
    SoundLost,
}

/// `sip_transfer_error.code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TransferErrorCode {
    /// It is no telephone number.
    InvalidPhoneNumber,
    /// This number is not called.
    DestinationNotAllowed,
    /// Nobody is on the telephone, or not who was named.
    ParticipantNotFound,
    /// The other side would not, or could not.
    TransferFailed,
}

impl ServerMessage {
    /// The text frame.
    pub fn to_json(&self) -> String {
        // Strings, numbers and null cannot fail to be written.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// A provider's change of state.
    pub fn provider_event(
        kind: &'static str,
        state: &'static str,
        provider: &str,
        message: String,
    ) -> Self {
        Self::ProviderEvent {
            kind,
            state,
            provider: provider.to_owned(),
            message,
        }
    }

    /// An error that leaves the session as it is.
    pub fn refusal(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::Error {
            message: message.into(),
            code,
            fatal: false,
            id: None,
            in_reply_to: None,
            played_ms: None,
            heard_text: None,
        }
    }

    /// The same, where it answers a message of the client; nothing for other messages.
    #[must_use]
    pub fn answering(mut self, origin: &Origin) -> Self {
        self.answer(origin);
        self
    }

    /// Names what an error answers, where that was not named yet.
    pub fn answer(&mut self, origin: &Origin) {
        if let Self::Error {
            id, in_reply_to, ..
        } = self
            && in_reply_to.is_none()
        {
            *in_reply_to = origin.message;
            id.clone_from(&origin.id);
        }
    }
}
