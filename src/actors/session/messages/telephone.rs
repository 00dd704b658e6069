//! The socket's messages about the telephone, both ways.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{misfit, required};
use vivavoce_core::json::Misfit;
use vivavoce_seams::rooms::link::TelephoneKey;

/// Keys of one message.
const MAX_DIGITS: usize = 32;

/// What a client wants of the telephone. Who is meant is the first telephone participant where nobody is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TelephoneWish {
    /// `sip_transfer`.
    Transfer(SipTransfer),
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

/// `sip_transfer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SipTransfer {
    /// Where to, as the client wrote it.
    pub transfer_to: String,
    /// Who; the first telephone participant when absent.
    pub participant_identity: Option<String>,
}

/// Moves the telephone call.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "SipTransfer")]
pub(super) struct WireSipTransfer {
    /// The number to call instead.
    #[schemars(required)]
    transfer_to: Option<String>,
    /// Whose call; the first telephone participant's when absent.
    participant_identity: Option<String>,
}

/// Ends the telephone call.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Hangup")]
pub(super) struct WireHangup {
    /// Whose call; the first telephone participant's when absent.
    participant_identity: Option<String>,
}

/// Presses keys on the telephone call.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "SendDtmf")]
pub(super) struct WireSendDtmf {
    /// Which, one after the other.
    #[schemars(required, regex(pattern = r"^[0-9*#A-Da-d]{1,32}$"))]
    digits: Option<String>,
    /// On whose call; the first telephone participant's when absent.
    participant_identity: Option<String>,
}

impl WireSipTransfer {
    pub(super) fn check(self) -> Result<TelephoneWish, Misfit> {
        Ok(TelephoneWish::Transfer(SipTransfer {
            transfer_to: required(self.transfer_to, "transfer_to")?,
            participant_identity: self.participant_identity,
        }))
    }
}

impl WireHangup {
    pub(super) fn check(self) -> TelephoneWish {
        TelephoneWish::HangUp {
            participant_identity: self.participant_identity,
        }
    }
}

impl WireSendDtmf {
    pub(super) fn check(self) -> Result<TelephoneWish, Misfit> {
        let digits = required(self.digits, "digits")?;
        let keys: Option<Vec<TelephoneKey>> = digits.chars().map(TelephoneKey::new).collect();
        let keys = keys.filter(|keys| (1..=MAX_DIGITS).contains(&keys.len()));
        Ok(TelephoneWish::Press {
            keys: keys.ok_or_else(|| misfit("digits", "must be 1 to 32 of 0-9 * # A-D"))?,
            participant_identity: self.participant_identity,
        })
    }
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
