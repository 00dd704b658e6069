//! The configured sessions, by tenant and name. A session keeps its name until it ends; other tenants may use the same name.
//! The registry knows how to reach a session, for those who want to end it, not what it does.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use actix::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::session::{EndSession, StreamId};
use vivavoce_auth::{Access, TenantId, Whose};
use vivavoce_socket::SocketWriter;

/// A session, as `GET /sessions` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SessionInfo {
    /// Its name.
    pub stream_id: StreamId,
    /// Whose it is; absent where it has no tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// When its first config arrived, Unix time in milliseconds.
    pub started_at: u64,
}

/// Registers a name. `Err` means that a live session of the same tenant has it.
#[derive(Message)]
#[rtype(result = "Result<Registration, NameTaken>")]
pub struct Register {
    /// The name.
    pub stream_id: StreamId,
    /// Whose session it is.
    pub access: Access,
    /// How to reach it.
    pub session: Recipient<EndSession>,
    /// Its socket, which may break and leave it waiting for its client.
    pub socket: Option<SocketWriter>,
}

/// A live session has this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameTaken;

/// Lists the sessions that a caller may see, oldest first.
#[derive(Message)]
#[rtype(result = "Vec<SessionInfo>")]
pub struct ListSessions {
    pub access: Access,
}

/// Ends a session. The returned token is cancelled when the session is gone.
#[derive(Message)]
#[rtype(result = "Result<CancellationToken, NotEnded>")]
pub struct EndByName {
    /// Which.
    pub stream_id: StreamId,
    /// Whose; not said where one of this name is there for them at most.
    pub whose: Option<Whose>,
    pub access: Access,
}

/// Why no session was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotEnded {
    /// The caller may see no session of this name.
    Unknown,
    /// The caller may see several.
    Several,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Unregister {
    name: Name,
    number: u64,
}

/// A name, and whose it is.
type Name = (Option<TenantId>, StreamId);

/// A registered name. Dropping it frees the name.
pub struct Registration {
    name: Name,
    number: u64,
    registry: Addr<SessionRegistry>,
    gone: CancellationToken,
}

impl Drop for Registration {
    fn drop(&mut self) {
        // At most once per session, and it must arrive: the bound of the mailbox does not apply.
        self.registry.do_send(Unregister {
            name: self.name.clone(),
            number: self.number,
        });
        self.gone.cancel();
    }
}

struct Entry {
    info: SessionInfo,
    session: Recipient<EndSession>,
    socket: Option<SocketWriter>,
    /// Tells it from one that had the name before.
    number: u64,
    gone: CancellationToken,
}

#[derive(Default)]
pub struct SessionRegistry {
    sessions: HashMap<Name, Entry>,
    registered: u64,
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
            socket,
        } = message;
        let name = (access.tenant().cloned(), stream_id.clone());
        if let Some(known) = self.sessions.get(&name) {
            let waits = known.socket.as_ref().is_some_and(SocketWriter::is_cut_off);
            if !waits {
                return MessageResult(Err(NameTaken));
            }
            // Its client begins anew.
            known.session.do_send(EndSession {
                code: 1000,
                reason: "its client has begun another session of this name",
            });
        }
        self.registered += 1;
        let number = self.registered;
        let gone = CancellationToken::new();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let info = SessionInfo {
            stream_id,
            tenant: access.tenant().map(|tenant| tenant.as_str().to_owned()),
            started_at: now.map_or(0, |now| now.as_millis() as u64),
        };
        let entry = Entry {
            info,
            session,
            socket,
            number,
            gone: gone.clone(),
        };
        self.sessions.insert(name.clone(), entry);
        MessageResult(Ok(Registration {
            name,
            number,
            registry: context.address(),
            gone,
        }))
    }
}

impl Handler<Unregister> for SessionRegistry {
    type Result = ();

    fn handle(&mut self, message: Unregister, _: &mut Context<Self>) {
        let Unregister { name, number } = message;
        if self
            .sessions
            .get(&name)
            .is_some_and(|entry| entry.number == number)
        {
            self.sessions.remove(&name);
        }
    }
}

impl Handler<ListSessions> for SessionRegistry {
    type Result = MessageResult<ListSessions>;

    fn handle(&mut self, message: ListSessions, _: &mut Context<Self>) -> Self::Result {
        let mut list: Vec<_> = self
            .sessions
            .iter()
            .filter(|((owner, _), _)| message.access.may_see(owner.as_ref()))
            .map(|(_, entry)| entry.info.clone())
            .collect();
        list.sort_by(|a, b| {
            let order = |info: &SessionInfo| (info.started_at, info.stream_id.as_str().to_owned());
            order(a)
                .cmp(&order(b))
                .then_with(|| a.tenant.cmp(&b.tenant))
        });
        MessageResult(list)
    }
}

impl Handler<EndByName> for SessionRegistry {
    type Result = MessageResult<EndByName>;

    fn handle(&mut self, message: EndByName, _: &mut Context<Self>) -> Self::Result {
        let EndByName {
            stream_id,
            whose,
            access,
        } = message;
        let mut found = self.sessions.iter().filter(|((owner, name), _)| {
            let wanted = whose
                .as_ref()
                .is_none_or(|whose| whose.tenant() == owner.as_ref());
            *name == stream_id && wanted && access.may_see(owner.as_ref())
        });
        let entry = match (found.next(), found.next()) {
            (None, _) => return MessageResult(Err(NotEnded::Unknown)),
            (Some((_, entry)), None) => entry,
            (Some(_), Some(_)) => return MessageResult(Err(NotEnded::Several)),
        };
        let order = EndSession {
            code: 1000,
            reason: "ended by request",
        };
        // A session whose mailbox is full ends all the same: the order is not one of the client's messages. Whoever gives it
        // waits for the end, and the first that the session reads is its end.
        entry.session.do_send(order);
        MessageResult(Ok(entry.gone.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session that hears nothing.
    struct InputRefused;

    impl Actor for InputRefused {
        type Context = Context<Self>;
    }

    impl Handler<EndSession> for InputRefused {
        type Result = ();

        fn handle(&mut self, _: EndSession, _: &mut Context<Self>) {}
    }

    #[actix_web::test]
    async fn a_name_is_a_tenants_own_and_who_sees_several_says_whose() {
        let registry = SessionRegistry::default().start();
        let stream_id = StreamId::parse("call").unwrap();
        let register = |access| {
            registry.send(Register {
                stream_id: stream_id.clone(),
                access,
                session: InputRefused.start().recipient(),
                socket: None,
            })
        };
        let end = |access, whose: Option<&str>| {
            registry.send(EndByName {
                stream_id: stream_id.clone(),
                whose: whose.and_then(Whose::parse),
                access,
            })
        };
        let ended = async |access, whose| end(access, whose).await.unwrap().map(drop);
        let [a, b] = ["a", "b"].map(Access::of_tenant);
        let _of_a = register(a.clone()).await.unwrap().ok().unwrap();
        assert_eq!(register(a.clone()).await.unwrap().err(), Some(NameTaken));
        // Whoever else uses it is told nothing of that.
        assert_eq!(ended(b.clone(), None).await, Err(NotEnded::Unknown));
        let of_b = register(b.clone()).await.unwrap().ok().unwrap();
        assert_eq!(ended(b.clone(), Some("a")).await, Err(NotEnded::Unknown));
        assert_eq!(ended(b.clone(), None).await, Ok(()));
        assert_eq!(
            ended(Access::anonymous(), None).await,
            Err(NotEnded::Several)
        );
        assert_eq!(ended(Access::anonymous(), Some("b")).await, Ok(()));
        assert_eq!(
            ended(Access::anonymous(), Some("")).await,
            Err(NotEnded::Unknown)
        );
        drop(of_b);
        assert_eq!(ended(Access::anonymous(), None).await, Ok(()));
        assert!(register(b).await.unwrap().is_ok());
    }
}
