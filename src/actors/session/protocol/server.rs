//! What the server sends. Messages are named here and nowhere else.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::{Origin, StreamId};
use crate::session::barge_in::InterruptionEvent;
use crate::session::turn::VoiceEvent;
use vivavoce_core::call::AnswerFinding;
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
    /// It is known who has answered a call; a later one corrects it.
    CallClassified {
        /// Which.
        sip_call_id: String,
        /// Whose.
        participant_identity: String,
        /// Who has answered.
        #[schemars(extend("enum" = ["person", "machine", "screening", "fax", "silence", "not_in_service", "busy"]))]
        result: &'static str,
        /// How sure that is, 0 to 1.
        confidence: f64,
        /// What tells it.
        #[schemars(extend("enum" = ["short_greeting", "long_greeting", "waits", "words", "beep", "information_tones", "busy_tone", "congestion_tone", "unobtainable_tone", "fax_tone", "no_sound"]))]
        reason: &'static str,
        /// From the answer until it was known.
        after_ms: u32,
        /// From the first word or tone until then; 0 where there was none.
        sound_ms: u32,
    },
    /// The beep of an answering machine is over, or does not come: `wait_for_beep` of the call.
    Beep {
        /// Which.
        sip_call_id: String,
        /// Whose.
        participant_identity: String,
        /// Whether there was one.
        heard: bool,
        /// From the answer until it was over, or was waited for no longer.
        after_ms: u32,
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
    /// A warm transfer in the room has come further.
    SipTransferState(TransferState),
    /// A telephone in the room waits in a queue, or does no longer.
    QueueState(QueueState),
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
    /// The message is not of the protocol, or a field of it is wrong; it was not carried out.
    ///
    /// Read `message`, which names the field. Nothing else has changed.
    InvalidMessage,
    /// No `config` came within `socket.config_timeout_seconds`.
    ///
    /// Send `config` as the first message, at once.
    ConfigTimeout,
    /// Something else came before `config`.
    ///
    /// Send `config` first, and wait for `ready` or `error`.
    NotConfigured,
    /// The token of the session has expired or was revoked.
    ///
    /// Get a new token and connect again.
    Unauthorized,
    /// The session takes no sound from the socket: it has `audio: false`, or it hears a room.
    ///
    /// Leave out the sound, or send a `config` that has `stt_config` and `tts_config` and no `rtc`.
    AudioDisabled,
    /// A session or a recording of yours has this `stream_id`.
    ///
    /// Choose another one, or leave it out; end a session with `DELETE /sessions/{stream_id}`.
    StreamIdInUse,
    /// There is no provider of this name.
    ///
    /// Name one of the slugs that `message` lists.
    UnsupportedProvider,
    /// `auth` has another shape than the provider takes.
    ///
    /// See the page of the provider for the fields of its credential.
    InvalidProviderAuth,
    /// The server has no credential for the provider, and `config` has none.
    ///
    /// Set the key of the provider, or send `auth`.
    MissingProviderAuth,
    /// The provider refused the credential.
    ///
    /// Check the key, its project and its region with the provider.
    ProviderAuth,
    /// The provider cannot be reached, or is not installed here.
    ///
    /// Try again, name a `fallback`; of `local`, see `vivavoce models list`.
    ProviderUnavailable,
    /// The provider refuses the request as it is: model, voice, language or text.
    ///
    /// Read `message`, which has the words of the provider, and change that field.
    ProviderRejected,
    /// The provider limits how many requests or streams there may be.
    ///
    /// Wait, ask for a higher limit, or name a `fallback`; `<provider>.stt_streams` keeps the server below a limit.
    ProviderRateLimited,
    /// The provider did not answer in time.
    ///
    /// Try again, raise `request_timeout`, or name a `fallback`.
    ProviderTimeout,
    /// Recognition has failed, with all fallbacks and after reconnecting.
    ///
    /// The session goes on without hearing: send `config` again, or connect anew.
    SttFailed,
    /// The utterance could not be spoken, or not to its end.
    ///
    /// Say it again from `heard_text` on; the session goes on.
    TtsFailed,
    /// The language model does not answer, or answers with an error.
    ///
    /// Check `LLM_URL`, its key and the name of the model; the session goes on.
    LlmFailed,
    /// `config` has `rtc`, and the server has no rooms.
    ///
    /// Unset `RTC_MODE=off`, or leave `rtc` out.
    RtcNotConfigured,
    /// The room cannot be joined, or was lost.
    ///
    /// Send `config` again; of a LiveKit deployment check `RTC_URL` and its keys.
    RtcFailed,
    /// The room belongs to another tenant, or may not be entered without a token.
    ///
    /// Use a room of your own, or the token of its owner.
    RoomAccessDenied,
    /// No telephone is in the room, or none of this identity.
    ///
    /// Wait for `sip_call` with `active`, and use its `participant_identity`.
    ParticipantNotFound,
    /// The telephone could not do what was asked.
    ///
    /// Read `message`; the call goes on.
    CallFailed,
    /// The session that `token` belongs to cannot go on at this socket.
    ///
    /// Begin a new one with `config`.
    CannotResume,
    /// The session cannot be recorded: recordings are off, their disk is full, or this caller may not record.
    ///
    /// Check `RECORDING_BACKEND` and the disk of `DATA_DIR`, or leave `recording` out.
    RecordingUnavailable,
    /// `loading_audio` is no sound that can be played in a loop.
    ///
    /// Send 16-bit PCM or WAV of 250 ms to 10 s.
    InvalidLoadingAudio,
    /// There is no loading sound to start.
    ///
    /// Send `loading_audio` in `config`; on a socket it needs `linear16`.
    LoadingUnavailable,
    /// A limit of the server or of the tenant is reached; what was asked was not done.
    ///
    /// Wait, or do less at once; `message` names the limit.
    Overloaded,
    /// The server has failed.
    ///
    /// Connect again; report it with the lines of the log that have the session.
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
    /// What was recorded before the session went on at this server is another recording.
    RecordingDivided,
}

/// How a warm transfer is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct TransferState {
    /// Which.
    pub transfer_id: String,
    /// How it is.
    #[schemars(extend("enum" = ["ringing", "consulting", "complete", "cancelled", "failed"]))]
    pub state: String,
    /// Why it was cancelled or has failed; null otherwise.
    pub reason: Option<String>,
    /// The caller.
    pub participant_identity: String,
    /// The person who was called.
    pub person_identity: String,
    /// The number of that person.
    pub transfer_to: String,
}

/// How a call in a queue is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct QueueState {
    /// The name of the queue.
    pub queue: String,
    /// Whose call.
    pub participant_identity: String,
    /// How it is.
    #[schemars(extend("enum" = ["waiting", "connecting", "connected", "left"]))]
    pub state: String,
    /// How many wait before it, itself included; null unless it waits.
    pub position: Option<u32>,
    /// Why it has left: `caller_left`, `removed`, `timeout`; null otherwise.
    pub reason: Option<String>,
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

    /// What was found out of who has answered a call.
    pub fn of_finding(
        sip_call_id: String,
        participant_identity: String,
        finding: AnswerFinding,
    ) -> Self {
        match finding {
            AnswerFinding::Classified(found) => Self::CallClassified {
                sip_call_id,
                participant_identity,
                result: found.result.as_str(),
                confidence: f64::from(found.confidence) / 100.0,
                reason: found.reason.as_str(),
                after_ms: found.after_ms,
                sound_ms: found.sound_ms,
            },
            AnswerFinding::Beep { heard, after_ms } => Self::Beep {
                sip_call_id,
                participant_identity,
                heard,
                after_ms,
            },
        }
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
