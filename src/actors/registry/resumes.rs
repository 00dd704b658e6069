//! Sessions whose clients may come back with another socket, by the token that their last `ready` carried.

use std::sync::Arc;

use actix::Recipient;
use dashmap::DashMap;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::session::{Expel, cannot_resume};
use vivavoce_auth::Access;
use vivavoce_socket::{DetachedSocket, Relayed, SocketWriter};

/// Why a token does not lead to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "token: no session waits for it: it has ended, a later ready carried another token, or its config did not ask for resume"
)]
pub struct NoSession;

/// The sessions that may be resumed.
#[derive(Default)]
pub struct Resumes {
    /// What tokens begin with, so that other replicas find this one.
    prefix: String,
    sessions: DashMap<String, ResumableSession>,
}

/// Where a session takes its next socket.
#[derive(Clone)]
pub struct ResumableSession {
    /// Who opened it: nobody else may go on with it.
    pub access: Access,
    /// Ends it when its client is no longer authorised.
    pub expel: Recipient<Expel>,
    /// Boxed, as a channel keeps places for 32 of them.
    pub resuming_sockets: mpsc::Sender<Box<ResumingSocket>>,
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
    /// Whether the server that passes it on takes the session.
    pub takes: bool,
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
    /// No sessions yet; their tokens will begin like this.
    pub fn with_prefix(prefix: String) -> Self {
        Self {
            prefix,
            sessions: DashMap::default(),
        }
    }

    /// A new token for a session.
    pub fn register(self: &Arc<Self>, session: ResumableSession) -> ResumeToken {
        let prefix = &self.prefix;
        let token = format!(
            "{prefix}{}{}",
            Uuid::new_v4().simple(),
            Uuid::new_v4().simple()
        );
        self.register_as(token, session)
    }

    /// The same, with a token that another server has made.
    pub fn register_as(self: &Arc<Self>, token: String, session: ResumableSession) -> ResumeToken {
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
