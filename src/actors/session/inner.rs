//! A session whose client is another part of this server: the door of another protocol speaks to it in the words of `/ws`.

use bytes::Bytes;
use bytestring::ByteString;
use std::sync::Arc;

use super::{Caller, Places, SessionServices, SessionSocket, open};
use vivavoce_socket::{Closed, ClosedBy, InnerClient, SocketHandler, SocketSettings, open_inner};

/// Sends to a session; the session ends when this is dropped.
pub struct InnerSession(Option<SessionSocket>);

/// Starts a session, and returns how to send to it and what it sends.
pub fn open_session(
    services: Arc<SessionServices>,
    settings: &SocketSettings,
    places: Places,
    caller: Caller,
) -> (InnerSession, InnerClient) {
    let (writer, client) = open_inner(settings, caller.access.party());
    let socket = open(services, places, caller, writer);
    (InnerSession(Some(socket)), client)
}

impl InnerSession {
    /// Takes messages at any rate from now on: for a part of the server that limits what it passes on itself.
    pub fn take_any_rate(&mut self) {
        if let Some(socket) = &mut self.0 {
            socket.take_any_rate();
        }
    }

    /// Sends a message of `/ws`.
    pub fn text(&mut self, text: impl Into<ByteString>) {
        if let Some(socket) = &mut self.0 {
            socket.text(text.into());
        }
    }

    /// Sends sound.
    pub fn binary(&mut self, bytes: Bytes) {
        if let Some(socket) = &mut self.0 {
            socket.binary(bytes);
        }
    }
}

impl Drop for InnerSession {
    fn drop(&mut self) {
        if let Some(socket) = self.0.take() {
            socket.closed(Closed {
                code: 1000,
                reason: String::new(),
                by: ClosedBy::Client,
            });
        }
    }
}
