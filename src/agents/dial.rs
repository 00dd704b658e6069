//! The handshake with an agent: a WebSocket (RFC 6455, section 4.1) whose request is signed as webhooks are, over an empty
//! body. Addresses are checked when connecting, redirects are not followed.

use std::io;

use reqwest::header::{
    CONNECTION, HeaderMap, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use reqwest::{Client, StatusCode, Upgraded, Url, redirect};
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use vivavoce_config::Secret;
use vivavoce_core::causes::causes;
use vivavoce_core::egress_policy::{EgressDenied, EgressPolicy, PublicOnly};
use vivavoce_core::tls_roots::Authorities;
use vivavoce_webhooks::signed;

/// Why an agent could not be dialled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// The egress policy forbids its address.
    #[error("its address {0}")]
    Denied(#[from] EgressDenied),
    /// It cannot be reached.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// It answers with another status than 101.
    #[error("it answers with {0}")]
    Refused(StatusCode),
    /// It answers, but not as a WebSocket does.
    #[error("its answer is no WebSocket handshake")]
    NoWebSocket,
}

/// HTTP clients that dial agents.
#[derive(Debug, Clone)]
pub(crate) struct Clients {
    client: Client,
    egress: EgressPolicy,
}

impl Clients {
    pub(crate) fn new(authorities: &Authorities, egress: EgressPolicy) -> io::Result<Self> {
        let client = authorities
            .client()
            .user_agent(concat!("vivavoce/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            // A proxy would connect to addresses that were not checked.
            .no_proxy()
            // Each socket has a connection of its own.
            .pool_max_idle_per_host(0)
            .http1_only();
        let client = if egress.private {
            client
        } else {
            client.dns_resolver(PublicOnly)
        };
        let client = client.build().map_err(io::Error::other)?;
        Ok(Self { client, egress })
    }

    /// Opens a WebSocket.
    pub(crate) async fn dial(
        &self,
        url: &Url,
        secret: &Secret,
        id: &str,
    ) -> Result<Upgraded, DialError> {
        self.egress.check(url)?;
        let key = generate_key();
        let mut request = self
            .client
            .get(url.clone())
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, &key);
        for (name, value) in signed(secret, id, "") {
            request = request.header(name, value);
        }
        // The URL may contain a secret.
        let unreachable =
            |error: reqwest::Error| DialError::Unreachable(causes(&error.without_url()));
        let answer = request.send().await.map_err(unreachable)?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(DialError::Refused(answer.status()));
        }
        if !accepts(answer.headers(), &key) {
            return Err(DialError::NoWebSocket);
        }
        answer.upgrade().await.map_err(unreachable)
    }
}

/// Whether the answer is that to a request with this key.
fn accepts(headers: &HeaderMap, key: &str) -> bool {
    let is = |name, value: &str| {
        let told = headers.get(name).and_then(|told| told.to_str().ok());
        told.is_some_and(|told| told.eq_ignore_ascii_case(value))
    };
    let accepted = headers.get(SEC_WEBSOCKET_ACCEPT);
    let expected = derive_accept_key(key.as_bytes());
    is(UPGRADE, "websocket") && accepted.is_some_and(|told| told.as_bytes() == expected.as_bytes())
}
