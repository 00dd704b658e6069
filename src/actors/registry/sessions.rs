//! The sessions that are configured, by name: who has a name keeps it until it ends, and whoever is asked to end one
//! finds it here. The registry knows how to reach a session, never what it does.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use actix::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::actors::session::{EndSession, StreamId};
use crate::auth::{Access, TenantId};

/// A session, as `GET /sessions` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SessionInfo {
    /// Its name.
    pub stream_id: StreamId,
    /// When its first config arrived, Unix time in milliseconds.
    pub started_at: u64,
}

/// Asks for a name. `Err` means that a live session has it.
#[derive(Message)]
#[rtype(result = "Result<Registration, NameTaken>")]
pub struct Register {
    /// The name.
    pub stream_id: StreamId,
    /// Whose session it is.
    pub access: Access,
    /// How to reach it.
    pub session: Recipient<EndSession>,
}

/// A live session has this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameTaken;

/// Lists the sessions that somebody may see, oldest first.
#[derive(Message)]
#[rtype(result = "Vec<SessionInfo>")]
pub struct ListSessions {
    /// Who asks.
    pub access: Access,
}

/// Ends a session. `None` means that whoever asks may see none of this name; what comes back is cancelled when the
/// session has gone.
#[derive(Message)]
#[rtype(result = "Option<CancellationToken>")]
pub struct EndByName {
    /// Which.
    pub stream_id: StreamId,
    /// Who asks.
    pub access: Access,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Unregister(StreamId);

/// A name, held. Dropping it gives the name back.
pub struct Registration {
    stream_id: StreamId,
    registry: Addr<SessionRegistry>,
    gone: CancellationToken,
}

impl Drop for Registration {
    fn drop(&mut self) {
        // One message per session at most, and it must arrive: the mailbox's bound does not apply.
        self.registry.do_send(Unregister(self.stream_id.clone()));
        self.gone.cancel();
    }
}

struct Entry {
    info: SessionInfo,
    owner: Option<TenantId>,
    session: Recipient<EndSession>,
    gone: CancellationToken,
}

/// The actor.
#[derive(Default)]
pub struct SessionRegistry {
    sessions: HashMap<StreamId, Entry>,
}

impl Actor for SessionRegistry {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        context.set_mailbox_capacity(1024);
    }
}

impl Handler<Register> for SessionRegistry {
    type Result = MessageResult<Register>;

    fn handle(&mut self, message: Register, context: &mut Context<Self>) -> Self::Result {
        let Register {
            stream_id,
            access,
            session,
        } = message;
        if self.sessions.contains_key(&stream_id) {
            return MessageResult(Err(NameTaken));
        }
        let gone = CancellationToken::new();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let info = SessionInfo {
            stream_id: stream_id.clone(),
            started_at: now.map_or(0, |now| now.as_millis() as u64),
        };
        let entry = Entry {
            info,
            owner: access.tenant().cloned(),
            session,
            gone: gone.clone(),
        };
        self.sessions.insert(stream_id.clone(), entry);
        MessageResult(Ok(Registration {
            stream_id,
            registry: context.address(),
            gone,
        }))
    }
}

impl Handler<Unregister> for SessionRegistry {
    type Result = ();

    fn handle(&mut self, Unregister(stream_id): Unregister, _: &mut Context<Self>) {
        self.sessions.remove(&stream_id);
    }
}

impl Handler<ListSessions> for SessionRegistry {
    type Result = MessageResult<ListSessions>;

    fn handle(&mut self, message: ListSessions, _: &mut Context<Self>) -> Self::Result {
        let mut list: Vec<_> = self
            .sessions
            .values()
            .filter(|entry| message.access.may_see(entry.owner.as_ref()))
            .map(|entry| entry.info.clone())
            .collect();
        list.sort_by(|a, b| {
            (a.started_at, a.stream_id.as_str()).cmp(&(b.started_at, b.stream_id.as_str()))
        });
        MessageResult(list)
    }
}

impl Handler<EndByName> for SessionRegistry {
    type Result = MessageResult<EndByName>;

    fn handle(&mut self, message: EndByName, _: &mut Context<Self>) -> Self::Result {
        let entry = self.sessions.get(&message.stream_id);
        let entry = entry.filter(|entry| message.access.may_see(entry.owner.as_ref()));
        MessageResult(entry.map(|entry| {
            let order = EndSession {
                code: 1000,
                reason: "ended by request",
            };
            // A session whose mailbox is full ends all the same: the order is not one of the client's messages.
            entry.session.do_send(order);
            entry.gone.clone()
        }))
    }
}
