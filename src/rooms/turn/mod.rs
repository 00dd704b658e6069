//! An embedded TURN server (RFC 8656) for clients whose network lets nothing else through, as where only port 443 is open.
//! They ask it over UDP, TCP or TLS; it relays to the media port of this server and nowhere else.
//!
//! * [`credentials`]: names and passwords that participants are told when they join, and that expire.
//! * [`allocations`]: the protocol, without sockets.
//! * [`carriers`]: the sockets.
//! * [`strangers`]: how many answers go to those who are not known.

mod allocations;
mod carriers;
mod credentials;
mod strangers;

use std::time::Duration;

use livekit_protocol as proto;

pub use allocations::{
    Allocations, MOST_ALLOCATIONS, MOST_CONNECTIONS_OF_PARTY, MOST_OF_NAME, MOST_OF_PARTY, Policy,
    is_relayed,
};
pub(super) use carriers::start;
pub use carriers::{MAX_MESSAGE_BYTES, TurnSockets};
pub use credentials::Credentials;
pub use strangers::{ANSWERS_TO_NETWORK, ANSWERS_TO_STRANGERS};

/// How long a participant may make allocations after it was told how; those that it has live on.
const VALID: Duration = Duration::from_hours(6);

/// What participants are told of the TURN server.
#[derive(Debug, Clone)]
pub struct Offer {
    /// `turn:` and `turns:` (RFC 7065).
    pub urls: Vec<String>,
    pub credentials: Credentials,
}

impl Offer {
    /// Whether it is reached over TLS.
    pub(super) fn has_tls(&self) -> bool {
        self.urls.iter().any(|url| is_tls(url))
    }

    /// What this participant of a party is told; of URLs only those of TLS where it wants no others.
    pub(super) fn of(
        &self,
        participant: (&str, &str),
        now_s: i64,
        only_tls: bool,
    ) -> proto::IceServer {
        let (username, credential) = self.credentials.issue(participant, now_s, VALID);
        let urls = self.urls.iter();
        let urls = urls.filter(|url| !only_tls || is_tls(url));
        proto::IceServer {
            urls: urls.cloned().collect(),
            username,
            credential,
        }
    }
}

fn is_tls(url: &str) -> bool {
    url.starts_with("turns:")
}
