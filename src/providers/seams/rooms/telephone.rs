//! The trait of the telephone: calls that join rooms, carried by the embedded bridge or LiveKit's SIP service. A call is a
//! participant of kind SIP, described by LiveKit's `sip.…` attributes. Who may call whom is decided elsewhere.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use livekit_protocol::participant_info::Kind;
use livekit_protocol::{DisconnectReason, ParticipantInfo};
use tokio::sync::{mpsc, oneshot};

pub use vivavoce_core::call::{Direction, HangupCause, MediaReport};

use vivavoce_auth::{Owner, Principal};
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

    /// Ends a call, also one that rings.
    async fn hang_up(&self, call: &CallOf) -> Result<(), CallError>;

    /// The calls that there are, and those that ended in the last minute; empty where somebody else carries them.
    fn calls(&self) -> Vec<CallReport>;

    /// The inbound calls that were refused lately, the newest last.
    fn refused(&self) -> Vec<RefusedCall> {
        Vec::new()
    }

    /// The accounts at PBXs and carriers that are kept registered.
    fn registrations(&self) -> Vec<RegistrationReport> {
        Vec::new()
    }
}

/// An inbound call that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedCall {
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
    /// Whom to call.
    pub to: PhoneNumber,
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
}

/// What a call that is placed holds of the quota of calls, and for whom.
#[derive(Debug)]
pub struct Line {
    /// Whose room it is in. The call's news say so, whatever becomes of the room.
    pub owner: Owner,
    /// Held as long as the call has a place.
    pub permit: Permit,
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

/// Where a participant's call is; `None` where they are not on a telephone, or it does not say.
pub fn status_of(participant: &ParticipantInfo) -> Option<CallStatus> {
    if participant.kind() != Kind::Sip {
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
