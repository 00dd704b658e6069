//! The handshake of a WebSocket that this server opens (RFC 6455, section 4.1).

use reqwest::header::{
    CONNECTION, HeaderMap, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use reqwest::{Client, StatusCode, Upgraded, Url};
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use vivavoce_core::causes::causes;

/// Why a WebSocket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The server cannot be reached.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// It answers with another status than 101.
    #[error("it answers with {0}")]
    Refused(StatusCode),
    /// It answers, but not as a WebSocket does.
    #[error("its answer is no WebSocket handshake")]
    NoWebSocket,
}

/// Opens a WebSocket; `headers` go with the request. The client must not follow redirects, and speak HTTP/1.1.
pub async fn dial(client: &Client, url: Url, headers: HeaderMap) -> Result<Upgraded, DialError> {
    let key = generate_key();
    let request = client
        .get(url)
        .headers(headers)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_VERSION, "13")
        .header(SEC_WEBSOCKET_KEY, &key);
    // The URL may contain a secret.
    let unreachable = |error: reqwest::Error| DialError::Unreachable(causes(&error.without_url()));
    let answer = request.send().await.map_err(unreachable)?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(DialError::Refused(answer.status()));
    }
    if !accepts(answer.headers(), &key) {
        return Err(DialError::NoWebSocket);
    }
    answer.upgrade().await.map_err(unreachable)
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
