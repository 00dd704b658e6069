//! The trait of the telephone: calls that join rooms, carried by the embedded bridge or LiveKit's SIP service. A call is a
//! participant of kind SIP, described by LiveKit's `sip.…` attributes. Who may call whom is decided elsewhere.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use livekit_protocol::participant_info::{Kind, KindDetail};
use livekit_protocol::{DisconnectReason, ParticipantInfo};
use tokio::sync::{mpsc, oneshot};

pub use vivavoce_core::call::{
    AnswerFinding, AnswerReason, Answerer, Classification, Direction, HangupCause, MediaReport,
};

use vivavoce_auth::{Owner, Principal, TenantId};
use vivavoce_config::{Secret, SipTransport};
use vivavoce_core::phone::{Gateway, PhoneNumber};
use vivavoce_quotas::Permit;

/// News that wait to be read. Whoever tells them waits then.
pub const WAITING_NEWS: usize = 1_024;

/// Attributes of telephone participants, as LiveKit names them.
pub mod attribute {
    /// The call's id, `SCL_…`.
    pub const CALL_ID: &str = "sip.callID";
    /// `Call-ID` of its dialog.
    pub const CALL_ID_FULL: &str = "sip.callIDFull";
    /// Tag of the other side.
    pub const CALL_TAG: &str = "sip.callTag";
    /// `dialing`, `ringing`, `automation`, `active`, `hangup`.
    pub const CALL_STATUS: &str = "sip.callStatus";
    /// The number outside.
    pub const PHONE_NUMBER: &str = "sip.phoneNumber";
    /// Ours.
    pub const TRUNK_PHONE_NUMBER: &str = "sip.trunkPhoneNumber";
    /// Where the other side is.
    pub const HOSTNAME: &str = "sip.hostname";
    /// The trunk.
    pub const TRUNK_ID: &str = "sip.trunkID";
    /// The dispatch rule that chose the room of an inbound call.
    pub const RULE_ID: &str = "sip.ruleID";
    /// What headers of the INVITE begin with; their names follow in lower case.
    pub const HEADER: &str = "sip.h.";
    /// How it ended, as [`super::CallStatus::Hangup`] says it. Ours, not LiveKit's.
    pub const CAUSE: &str = "sip.cause";
    /// `true` while it is on hold. Ours, not LiveKit's, as are those of transfers.
    pub const HOLD: &str = "sip.hold";
    /// The warm transfer that the call is part of, `TRF_…`.
    pub const TRANSFER_ID: &str = "sip.transferID";
    /// How it is.
    pub const TRANSFER_STATE: &str = "sip.transferState";
    /// Why it is over, where it failed or was cancelled.
    pub const TRANSFER_REASON: &str = "sip.transferReason";
    /// The number that is called.
    pub const TRANSFER_TO: &str = "sip.transferTo";
    /// Identity of the caller.
    pub const TRANSFER_CALLER: &str = "sip.transferCaller";
    /// Identity of the person who is called.
    pub const TRANSFER_PERSON: &str = "sip.transferPerson";
    /// The queue in which the caller waits, or has waited. Ours, not LiveKit's, as is what follows.
    pub const QUEUE: &str = "sip.queue";
    /// `waiting`, `connecting`, `connected`, `left`.
    pub const QUEUE_STATE: &str = "sip.queueState";
    /// How many wait before, this one included.
    pub const QUEUE_POSITION: &str = "sip.queuePosition";
    /// Why it has left.
    pub const QUEUE_REASON: &str = "sip.queueReason";
    /// `true` where it is listened to who answers. Ours, not LiveKit's, as is what follows.
    pub const CLASSIFIES: &str = "sip.classify";
    /// How many seconds the beep of a machine is waited for, where that is wished by an attribute.
    pub const WAITS_FOR_BEEP: &str = "sip.waitForBeep";
    /// Who has answered, as [`super::Answerer`] says it.
    pub const ANSWERED_BY: &str = "sip.answeredBy";
    /// How sure that is: 0 to 1.
    pub const ANSWERED_BY_CONFIDENCE: &str = "sip.answeredByConfidence";
    /// What tells it, as [`super::AnswerReason`] says it.
    pub const ANSWERED_BY_REASON: &str = "sip.answeredByReason";
    /// Milliseconds from the answer until it was known.
    pub const ANSWERED_BY_AFTER: &str = "sip.answeredByAfterMs";
    /// Milliseconds from the first sound until then.
    pub const ANSWERED_BY_SOUND: &str = "sip.answeredBySoundMs";
    /// `heard` once the beep of a machine is over, `none` where it did not come.
    pub const BEEP: &str = "sip.beep";
    /// Milliseconds from the answer until then.
    pub const BEEP_AFTER: &str = "sip.beepAfterMs";
    /// The carrier whose socket the call comes by, as in `/carrier/{kind}`. Ours, not LiveKit's.
    pub const CARRIER: &str = "carrier.kind";
    /// What parameters of such a call begin with; their names follow.
    pub const CARRIER_PARAMETER: &str = "carrier.parameter.";
}

/// Carries calls.
#[async_trait]
pub trait Telephone: Send + Sync {
    /// Places a call: its participant joins the room, and the INVITE is sent. The answer does not wait for anybody to
    /// pick up. The line is given back when nothing of the call is left, which may be later than its end is told: who has
    /// ended a call has not freed its place yet.
    async fn call(&self, call: NewCall, line: Line) -> Result<PlacedCall, CallError>;

    /// Moves a participant's call to another number by REFER, and waits for the outcome. `accepted` is told when the
    /// other side has taken the wish, where that can be seen before. A call that has ended meanwhile counts as moved.
    async fn transfer(
        &self,
        transfer: NewTransfer,
        accepted: oneshot::Sender<()>,
    ) -> Result<(), CallError>;

    /// Connects the other sides of two calls without us: the first is moved to the second by REFER with `Replaces`, and both end
    /// here. After an error both are as before.
    async fn connect(&self, _first: &CallOf, _second: &CallOf) -> Result<(), CallError> {
        Err(cannot("these calls cannot be connected elsewhere"))
    }

    /// Ends a call, also one that rings.
    async fn hang_up(&self, call: &CallOf) -> Result<(), CallError>;

    /// Puts a call that is answered on hold, or takes it off: its participant is not heard in the room and does not hear it.
    async fn hold(&self, _call: &CallOf, _hold: Hold) -> Result<(), CallError> {
        Err(cannot("these calls cannot be held"))
    }

    /// Tells somebody on hold where they are in a queue, in place of what they hear, and how long that takes; not at all where
    /// there is nothing to say it with.
    async fn say_position(&self, _call: &CallOf, _position: u32) -> Result<Duration, CallError> {
        Err(cannot("these calls cannot be held"))
    }

    /// Changes attributes of a call's participant; those that are empty are removed.
    async fn describe(
        &self,
        _call: &CallOf,
        _attributes: Vec<(String, String)>,
    ) -> Result<(), CallError> {
        Err(cannot("these calls cannot be described"))
    }

    /// Ends the call of somebody who was called for a caller: they hear that the caller has gone, then they are hung up.
    async fn dismiss(&self, call: &CallOf) -> Result<(), CallError> {
        self.hang_up(call).await
    }

    /// Whether it finds out who answers a call that wants that ([`NewCall::classify`]).
    fn classifies(&self) -> bool {
        false
    }

    /// Somebody has understood this of what the other side of a call has said, which may tell who has answered it.
    fn heard(&self, _call: &CallOf, _text: &str) {}

    /// The calls that there are, and those that ended in the last minute; empty where somebody else carries them.
    fn calls(&self) -> Vec<CallReport>;

    /// The inbound calls that were refused lately, the newest last.
    fn refused(&self) -> Vec<RefusedCall> {
        Vec::new()
    }

    /// What was seen of the signalling of calls: of those that there are, and of those that were refused or have failed lately,
    /// the newest last. Without the messages.
    fn traces(&self) -> Vec<CallTrace> {
        Vec::new()
    }

    /// The trace of this id, with its messages.
    fn trace(&self, _id: &str) -> Option<CallTrace> {
        None
    }

    /// The gateways of the settings.
    fn gateways(&self) -> Vec<GatewayReport> {
        Vec::new()
    }

    /// The telephones that may register here.
    fn phones(&self) -> Vec<PhoneReport> {
        Vec::new()
    }

    /// The accounts at PBXs and carriers that are kept registered.
    fn registrations(&self) -> Vec<RegistrationReport> {
        Vec::new()
    }
}

/// What was seen of the signalling of a call.
#[derive(Debug, Clone)]
pub struct CallTrace {
    /// `SCL_…` of a call, `SRF_…` of one that was refused before it was one.
    pub id: String,
    /// How the call is.
    pub state: TraceState,
    /// Who called whom.
    pub direction: Direction,
    /// Whose call; `None` where that was not decided, or is the operator's.
    pub owner: Option<Owner>,
    /// When it was noticed last: the beginning of a call, the latest refusal.
    pub at: SystemTime,
    /// The room; empty where there is none.
    pub room: String,
    /// The identity in the room; empty likewise.
    pub identity: String,
    /// The SIP status that refused it, if there was one.
    pub status: Option<u16>,
    /// Why it is over, for people; empty before.
    pub reason: String,
    /// How often the same was refused.
    pub times: u64,
    /// How many messages there are.
    pub seen: usize,
    /// Messages between the first and the last ones that are not kept.
    pub left_out: u64,
    /// The messages, in order.
    pub messages: Vec<SipMessage>,
}

/// How a traced call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceState {
    /// It goes on.
    Live,
    /// It is over, as calls are.
    Ended,
    /// It has failed.
    Failed,
    /// It was refused before it was a call.
    Refused,
}

impl TraceState {
    /// As the API says it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Ended => "ended",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }
}

/// A message of SIP, without its headers and its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SipMessage {
    /// When it was sent or received for the first time.
    pub at: SystemTime,
    /// Whether this server has sent it.
    pub sent: bool,
    /// `udp`, `tcp` or `tls`.
    pub transport: &'static str,
    /// The address of the other side; empty where nobody knows it.
    pub remote: String,
    /// Request and URI, or status and phrase.
    pub line: String,
    /// The number of the request and its method.
    pub cseq: String,
    /// What is told with it: that it carries SDP, and why (Reason, Warning).
    pub note: String,
    /// How often the same was sent or received.
    pub times: u64,
}

fn cannot(message: &str) -> CallError {
    CallError::new(CallErrorKind::Unavailable, message)
}

/// What somebody on hold hears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// The room: they are not on hold.
    Off,
    /// Nothing.
    Silence,
    /// Music, or words, of the settings.
    Music,
}

/// An inbound call that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedCall {
    /// The id of its trace, `SRF_…`.
    pub trace_id: String,
    /// When, for the last time.
    pub at: SystemTime,
    /// The address that it came from.
    pub source: String,
    /// The calling number; empty where it was refused before anybody looked.
    pub from: String,
    /// The called number; empty likewise.
    pub to: String,
    /// The SIP status that it got.
    pub status: u16,
    /// Why, for people.
    pub reason: String,
    /// How often.
    pub times: u64,
}

/// An account at a PBX or carrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistrationReport {
    /// Who is called there.
    pub user: String,
    /// Where.
    pub registrar: String,
    /// How it is.
    pub state: RegistrationState,
    /// Until when it is registered.
    pub expires_at: Option<SystemTime>,
}

/// How an account is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistrationState {
    /// It is tried for the first time.
    Trying,
    /// Calls come.
    Registered,
    /// The registrar refuses it with this status.
    Refused(u16),
    /// Nobody answers.
    Unreachable,
}

impl RegistrationState {
    /// As metrics and the API say it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Trying => "trying",
            Self::Registered => "registered",
            Self::Refused(_) => "refused",
            Self::Unreachable => "unreachable",
        }
    }
}

/// A call to be placed.
#[derive(Debug, Clone)]
pub struct NewCall {
    /// The room, which is there.
    pub room: String,
    /// Who, as the room knows them.
    pub identity: String,
    /// On whose behalf. Only the rooms of this process compare it with their owner.
    pub principal: Principal,
    /// What people read.
    pub name: String,
    /// What others and the server read about them.
    pub metadata: String,
    /// Whose number is shown.
    pub from: PhoneNumber,
    /// What is shown beside it, where the gateway passes it on.
    pub display_name: Option<String>,
    /// Whether the called side is not to see who calls (RFC 3325, `Privacy: id`).
    pub hides_caller: bool,
    /// Whom to call.
    pub to: Callee,
    /// Where to.
    pub trunk: Trunk,
    /// Where to if that fails, in this order. LiveKit's SIP service calls the first one alone.
    pub alternatives: Vec<Trunk>,
    /// More attributes, beside those of the call.
    pub attributes: Vec<(String, String)>,
    /// Whether the attributes say nothing of the numbers and the gateway.
    pub hides_numbers: bool,
    /// How long it may ring.
    pub ringing_timeout: Duration,
    /// How long it may last.
    pub max_duration: Duration,
    /// Keys that are pressed once it is answered; `w` is half a second of waiting.
    pub dtmf: String,
    /// Whether it is listened to who answers. LiveKit's SIP service does not.
    pub classify: Option<Classify>,
}

/// What is to be found out of who answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classify {
    /// How long the beep of a machine is waited for; not at all where absent.
    pub beep_within: Option<Duration>,
}

/// What a call that is placed holds of the quota of calls, and for whom.
#[derive(Debug)]
pub struct Line {
    /// Whose room it is in. The call's news say so, whatever becomes of the room.
    pub owner: Owner,
    /// Held as long as the call has a place.
    pub permit: Permit,
}

/// Whom to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Callee {
    /// A telephone number.
    Number(PhoneNumber),
    /// A user of the gateway.
    User(String),
    /// A telephone that is registered here; a tenant calls its own.
    Phone {
        /// Its name.
        user: String,
        /// Who calls; `None` is the operator, who may call all.
        tenant: Option<TenantId>,
    },
}

impl Callee {
    /// As it is dialled.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Number(number) => number.as_str(),
            Self::User(user) | Self::Phone { user, .. } => user,
        }
    }
}

/// How a gateway is told the caller's number besides `From` (RFC 3325).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CallerIdentity {
    /// It is not.
    #[default]
    Untold,
    /// By `P-Asserted-Identity`: it trusts this server.
    Asserted,
    /// By `P-Preferred-Identity`.
    Preferred,
}

/// Another place by which a gateway is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Via {
    /// Where requests are sent.
    pub at: Gateway,
    /// Whether they have a `Route` that says so, as an outbound proxy expects.
    pub routed: bool,
    /// Whether they go over the WebSocket that a browser has opened from there.
    pub over_websocket: bool,
}

/// A gateway and how it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trunk {
    /// Where.
    pub gateway: Gateway,
    /// By which transport.
    pub transport: SipTransport,
    /// Who we are there.
    pub login: Option<Login>,
    /// Whether a loopback, link-local or private address is meant.
    pub private: bool,
    /// The domain of `From`; the server's own address where absent.
    pub from_domain: Option<String>,
    /// Headers of its INVITEs, whose names [`may_send`] has allowed.
    pub headers: Vec<(String, String)>,
    /// Where requests are sent, if not there.
    pub via: Option<Via>,
    /// How it is told who calls.
    pub identity: CallerIdentity,
}

/// A gateway that is asked how it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayReport {
    /// Where.
    pub address: String,
    /// `udp`, `tcp` or `tls`.
    pub transport: &'static str,
    /// How it is.
    pub state: GatewayState,
    /// When it was asked last.
    pub checked_at: Option<SystemTime>,
    /// How long its answer took.
    pub round_trip: Option<Duration>,
}

/// How a gateway is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatewayState {
    /// It is not asked, or was not yet.
    Unknown,
    /// It answers.
    Up,
    /// It does not.
    Down,
}

impl GatewayState {
    /// As metrics and the API say it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// A telephone that may register here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhoneReport {
    /// Its name.
    pub user: String,
    /// Whose it is.
    pub tenant: Option<TenantId>,
    /// Where it is, while it is registered.
    pub address: Option<String>,
    /// Until when.
    pub expires_at: Option<SystemTime>,
}

/// Headers that an INVITE may have beside those that begin with `X-`: what tells who calls, why, and how it is to ring.
const SENT: [&str; 12] = [
    "alert-info",
    "call-info",
    "diversion",
    "history-info",
    "p-asserted-identity",
    "p-charging-vector",
    "p-preferred-identity",
    "priority",
    "privacy",
    "remote-party-id",
    "subject",
    "user-to-user",
];

/// Whether a request may have its INVITE carry this header: none that steers the call itself.
pub fn may_send(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_token = |sign: u8| sign.is_ascii_alphanumeric() || b"-_.".contains(&sign);
    let is_known = SENT.contains(&&*name) || name.len() > 2 && name.starts_with("x-");
    is_known && name.bytes().all(is_token)
}

/// A name and its password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The name.
    pub username: String,
    /// May be empty.
    pub password: Secret,
}

/// A call that was placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedCall {
    /// The participant, `PA_…`.
    pub participant_sid: String,
    /// `SCL_…`.
    pub sip_call_id: String,
}

/// A call that there is, as it was seen in its room. By its id it is no other one that has taken its place meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallOf {
    /// The room.
    pub room: String,
    /// Who, as the room knows them.
    pub identity: String,
    /// `SCL_…`; empty where the room does not say it, which is no call's.
    pub sip_call_id: String,
}

impl CallOf {
    /// The call of a participant.
    pub fn participant(room: &str, participant: &ParticipantInfo) -> Self {
        let id = participant.attributes.get(attribute::CALL_ID);
        Self {
            room: room.to_owned(),
            identity: participant.identity.clone(),
            sip_call_id: id.cloned().unwrap_or_default(),
        }
    }
}

/// A wish to move a call.
#[derive(Debug, Clone)]
pub struct NewTransfer {
    /// Which.
    pub call: CallOf,
    /// Where to.
    pub to: TransferTarget,
    /// How long the new one may ring.
    pub ringing_timeout: Duration,
}

/// Where a call is moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransferTarget {
    /// A number: `tel:` where it is international, else a user of the gateway.
    Number(PhoneNumber),
    /// A whole URI, `sip:`, `sips:` or `tel:`; without control characters, spaces, `<` and `>`.
    Uri(String),
}

/// Where a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallStatus {
    /// It is on its way.
    Dialing,
    /// It rings, here or there.
    Ringing,
    /// They speak.
    Active,
    /// It is over.
    Hangup(HangupCause),
}

impl CallStatus {
    /// Why it is over, where it is.
    pub const fn cause(self) -> Option<HangupCause> {
        match self {
            Self::Hangup(cause) => Some(cause),
            Self::Dialing | Self::Ringing | Self::Active => None,
        }
    }

    /// As the attribute and the events say it.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Dialing => "dialing",
            Self::Ringing => "ringing",
            Self::Active => "active",
            Self::Hangup(_) => "hangup",
        }
    }
}

/// Whether a participant is in another room, and forwarded to this one.
pub fn is_forwarded(participant: &ParticipantInfo) -> bool {
    let details = &participant.kind_details;
    details.contains(&(KindDetail::Forwarded as i32))
}

/// Whether a participant's call is in this room: whoever is forwarded here is on the telephone in another.
pub fn is_on_the_phone(participant: &ParticipantInfo) -> bool {
    participant.kind() == Kind::Sip && !is_forwarded(participant)
}

/// Where a participant's call is; `None` where they are not on a telephone, or it does not say.
pub fn status_of(participant: &ParticipantInfo) -> Option<CallStatus> {
    if !is_on_the_phone(participant) {
        return None;
    }
    match participant.attributes.get(attribute::CALL_STATUS)?.as_str() {
        "dialing" => Some(CallStatus::Dialing),
        // Keys are pressed, by us or by them, before they speak.
        "ringing" | "automation" => Some(CallStatus::Ringing),
        "active" => Some(CallStatus::Active),
        "hangup" => Some(CallStatus::Hangup(cause_of(participant, true))),
        _ => None,
    }
}

/// Why the call of a participant who has left is over: as the bridge of this process says it, else as far as LiveKit's
/// reason tells it. `active` is whether it was answered.
pub fn cause_of(participant: &ParticipantInfo, active: bool) -> HangupCause {
    let said = participant.attributes.get(attribute::CAUSE);
    if let Some(cause) = said.and_then(|cause| HangupCause::parse(cause)) {
        return cause;
    }
    match participant.disconnect_reason() {
        DisconnectReason::UserUnavailable => HangupCause::NoAnswer,
        DisconnectReason::UserRejected => HangupCause::Declined,
        DisconnectReason::SipTrunkFailure => HangupCause::Failed,
        DisconnectReason::MediaFailure => HangupCause::Media,
        DisconnectReason::ServerShutdown => HangupCause::Shutdown,
        DisconnectReason::ParticipantRemoved
        | DisconnectReason::RoomDeleted
        | DisconnectReason::RoomClosed
        | DisconnectReason::DuplicateIdentity
            if active =>
        {
            HangupCause::Local
        }
        DisconnectReason::ParticipantRemoved
        | DisconnectReason::RoomDeleted
        | DisconnectReason::RoomClosed
        | DisconnectReason::DuplicateIdentity => HangupCause::Cancelled,
        _ if active => HangupCause::Remote,
        _ => HangupCause::Failed,
    }
}

/// What happens to calls, in the order in which it does.
#[derive(Debug, Clone)]
pub struct CallNews {
    /// `SCL_…`.
    pub sip_call_id: String,
    /// Who called whom.
    pub direction: Direction,
    /// The room.
    pub room: String,
    /// Whose call.
    pub identity: String,
    /// Whose room it is in, where that was decided with the call.
    pub owner: Option<Owner>,
    /// Where it is now.
    pub status: CallStatus,
    /// What was found out of who has answered; such news change no status.
    pub finding: Option<AnswerFinding>,
}

/// Where a [`Telephone`] tells its news. It has room for [`WAITING_NEWS`].
pub type NewsSender = mpsc::Sender<CallNews>;

/// How a call does.
#[derive(Debug, Clone)]
pub struct CallReport {
    /// `SCL_…`.
    pub sip_call_id: String,
    /// Who called whom.
    pub direction: Direction,
    /// The room.
    pub room: String,
    /// Whose call.
    pub identity: String,
    /// Where it is.
    pub status: CallStatus,
    /// How long ago it began.
    pub age: Duration,
    /// How long it took until it was answered.
    pub answered_after: Option<Duration>,
    /// Its sound, once there is some.
    pub media: Option<MediaReport>,
}

/// What went wrong, in the distinctions that a caller acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallErrorKind {
    /// Nobody of this identity is in the room, or not by telephone.
    NotFound,
    /// What was asked for cannot be: no such address, no ports, no line.
    Refused,
    /// It is not a moment for it: the call is not answered yet, or is being moved elsewhere.
    Precondition,
    /// The other side said no; the status is its answer.
    Rejected(u16),
    /// It did not happen in time.
    Timeout,
    /// There are as many calls as there may be.
    Full,
    /// The provider cannot be reached, or fails.
    Unavailable,
}

/// A call's failure.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// What kind.
    pub kind: CallErrorKind,
    /// For people. Never a secret or a number.
    pub message: String,
}

impl CallError {
    /// An error.
    pub fn new(kind: CallErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}
