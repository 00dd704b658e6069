//! Sessions whose clients may come back with another socket, by the token that their last `ready` carried.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use actix::Recipient;
use bytes::Bytes;
use bytestring::ByteString;
use dashmap::DashMap;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::session::{Expel, cannot_resume};
use vivavoce_auth::Access;
use vivavoce_socket::{DetachedSocket, SocketWriter};

/// The most messages on their way from a socket to its session, which may live on another thread.
const MESSAGES: usize = 2_048;
/// The most bytes of them.
const BYTES: usize = 8 << 20;

/// Why a token does not lead to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "token: no session waits for it: it has ended, a later ready carried another token, or its config did not ask for resume"
)]
pub struct NoSession;

/// The sessions that may be resumed.
#[derive(Default)]
pub struct Resumes {
    sessions: DashMap<String, ResumableSession>,
}

/// Where a session takes its next socket.
#[derive(Clone)]
pub struct ResumableSession {
    /// Who opened it: nobody else may go on with it.
    pub access: Access,
    /// Ends it when its client is no longer authorised.
    pub expel: Recipient<Expel>,
    pub resuming_sockets: mpsc::Sender<ResumingSocket>,
    /// Its present socket.
    pub writer: SocketWriter,
}

/// A socket that has come for a session.
pub struct ResumingSocket {
    /// Taken by the session.
    pub socket: Option<DetachedSocket>,
    /// The token with which it came.
    pub token: String,
    /// The last event that its client has seen.
    pub last_event: u64,
    /// How many bytes of sound it has, where it says so.
    pub received_bytes: Option<u64>,
    pub input: Relayed,
}

impl Drop for ResumingSocket {
    /// The session has gone before it took it.
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            cannot_resume(socket, "the session has ended");
        }
    }
}

/// A token that is valid as long as this lives.
pub struct ResumeToken {
    token: String,
    resumes: Arc<Resumes>,
}

impl Resumes {
    /// A new token for a session.
    pub fn register(self: &Arc<Self>, session: ResumableSession) -> ResumeToken {
        let token = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        self.sessions.insert(token.clone(), session);
        ResumeToken {
            token,
            resumes: Arc::clone(self),
        }
    }

    /// The session of a token. Those of others are not there. The token stays good until the client is known to have the
    /// next one ([`Self::use_up`]): its socket may break again before.
    pub fn find(&self, token: &str, access: &Access) -> Result<ResumableSession, NoSession> {
        let session = self.sessions.get(token).ok_or(NoSession)?;
        let is_theirs = session.access == *access;
        is_theirs.then(|| session.clone()).ok_or(NoSession)
    }

    /// The client has a later token.
    pub fn use_up(&self, token: &str) {
        self.sessions.remove(token);
    }

    /// Whether this caller may resume a session.
    pub fn has_one_of(&self, access: &Access) -> bool {
        self.sessions
            .iter()
            .any(|session| session.access == *access)
    }
}

impl ResumeToken {
    pub fn token(&self) -> &str {
        &self.token
    }
}

impl Drop for ResumeToken {
    fn drop(&mut self) {
        self.resumes.sessions.remove(&self.token);
    }
}

/// What a client sends.
#[derive(Debug)]
pub enum FromClient {
    Text(ByteString),
    Binary(Bytes),
}

impl FromClient {
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Binary(bytes) => bytes.len(),
        }
    }
}

/// Passes on what a client sends to a session that is not on its socket's thread.
pub struct Relay {
    messages: mpsc::Sender<FromClient>,
    bytes: Arc<AtomicUsize>,
}

/// What comes of a [`Relay`].
pub struct Relayed {
    messages: mpsc::Receiver<FromClient>,
    bytes: Arc<AtomicUsize>,
}

/// A relay and its end.
pub fn relay() -> (Relay, Relayed) {
    let (sender, receiver) = mpsc::channel(MESSAGES);
    let bytes = Arc::<AtomicUsize>::default();
    let relay = Relay {
        messages: sender,
        bytes: Arc::clone(&bytes),
    };
    let messages = receiver;
    (relay, Relayed { messages, bytes })
}

impl Relay {
    /// Passes on a message; `false` where too much is on its way.
    pub fn pass_on(&self, message: FromClient) -> bool {
        let length = message.len();
        let on_its_way = self.bytes.fetch_add(length, Ordering::Relaxed);
        let fits = on_its_way + length <= BYTES || on_its_way == 0;
        fits && self.messages.try_send(message).is_ok()
    }
}

impl Relayed {
    /// The next message; `None` once the socket has gone.
    pub async fn next(&mut self) -> Option<FromClient> {
        let message = self.messages.recv().await?;
        self.bytes.fetch_sub(message.len(), Ordering::Relaxed);
        Some(message)
    }
}
