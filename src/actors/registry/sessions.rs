//! The configured sessions, by tenant and name. A session keeps its name until it ends; other tenants may use the same name.
//! The registry knows how to reach a session, for those who want to end it, not what it does.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use actix::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::session::{EndSession, StreamId};
use vivavoce_auth::{Access, TenantId, Whose};
use vivavoce_core::unix_time::unix_ms;
use vivavoce_socket::{SocketWriter, Timeline};

/// How many sessions that have ended can still be looked at, and how long.
const MAX_ENDED: usize = 200;
const ENDED_FOR: Duration = Duration::from_mins(10);

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

/// Lists the sessions that a caller may see, with what they do: those that have ended lately first, then the others, in no
/// order.
#[derive(Message)]
#[rtype(result = "Vec<ObservedSession>")]
pub struct ObserveSessions {
    pub access: Access,
}

/// One of them, by its number.
#[derive(Message)]
#[rtype(result = "Option<ObservedSession>")]
pub struct ObserveSession {
    pub number: u64,
    pub access: Access,
}

/// A session that somebody looks at.
#[derive(Debug, Clone)]
pub struct ObservedSession {
    /// Tells it from all others of this process, whatever they are called.
    pub number: u64,
    /// Whose it is.
    pub owner: Option<TenantId>,
    /// What it is called.
    pub info: SessionInfo,
    /// When it ended, Unix time in milliseconds.
    pub ended_at: Option<u64>,
    /// What happens in it.
    pub timeline: Timeline,
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
    timeline: Timeline,
    /// Tells it from one that had the name before.
    number: u64,
    gone: CancellationToken,
}

impl Entry {
    fn observed(&self, (owner, _): &Name) -> ObservedSession {
        ObservedSession {
            number: self.number,
            owner: owner.clone(),
            info: self.info.clone(),
            ended_at: None,
            timeline: self.timeline.clone(),
        }
    }
}

#[derive(Default)]
pub struct SessionRegistry {
    sessions: HashMap<Name, Entry>,
    /// Sessions that have ended lately, the newest last, and when.
    ended: VecDeque<(Instant, ObservedSession)>,
    registered: u64,
}

impl SessionRegistry {
    fn forget_ended(&mut self, now: Instant) {
        let is_past = |(at, _): &(Instant, _)| now.saturating_duration_since(*at) >= ENDED_FOR;
        while self.ended.len() > MAX_ENDED || self.ended.front().is_some_and(is_past) {
            self.ended.pop_front();
        }
    }
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
        let info = SessionInfo {
            stream_id,
            tenant: access.tenant().map(|tenant| tenant.as_str().to_owned()),
            started_at: unix_ms(SystemTime::now()),
        };
        let timeline = socket.as_ref().map(SocketWriter::timeline);
        let entry = Entry {
            info,
            session,
            timeline: timeline.cloned().unwrap_or_default(),
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
            let now = Instant::now();
            if let Some(entry) = self.sessions.remove(&name) {
                entry.timeline.end();
                let ended_at = Some(unix_ms(SystemTime::now()));
                let observed = entry.observed(&name);
                let observed = ObservedSession {
                    ended_at,
                    ..observed
                };
                self.ended.push_back((now, observed));
            }
            self.forget_ended(now);
        }
    }
}

impl Handler<ObserveSessions> for SessionRegistry {
    type Result = MessageResult<ObserveSessions>;

    fn handle(&mut self, message: ObserveSessions, _: &mut Context<Self>) -> Self::Result {
        let access = message.access;
        self.forget_ended(Instant::now());
        let ended = self.ended.iter().map(|(_, observed)| observed);
        let ended = ended.filter(|observed| access.may_see(observed.owner.as_ref()));
        let live = self.sessions.iter();
        let live = live.filter(|((owner, _), _)| access.may_see(owner.as_ref()));
        let live = live.map(|(name, entry)| entry.observed(name));
        MessageResult(ended.cloned().chain(live).collect())
    }
}

impl Handler<ObserveSession> for SessionRegistry {
    type Result = MessageResult<ObserveSession>;

    fn handle(&mut self, message: ObserveSession, _: &mut Context<Self>) -> Self::Result {
        let ObserveSession { number, access } = message;
        self.forget_ended(Instant::now());
        let mut live = self.sessions.iter();
        let live = live
            .find(|(_, entry)| entry.number == number)
            .map(|(name, entry)| entry.observed(name));
        let found = live.or_else(|| {
            let mut ended = self.ended.iter().map(|(_, observed)| observed);
            ended.find(|observed| observed.number == number).cloned()
        });
        MessageResult(found.filter(|observed| access.may_see(observed.owner.as_ref())))
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

    #[actix_web::test]
    async fn a_session_that_has_ended_is_shown_to_whom_it_was_shown_before() {
        let registry = SessionRegistry::default().start();
        let [a, b] = ["a", "b"].map(Access::of_tenant);
        let registered = registry.send(Register {
            stream_id: StreamId::parse("call").unwrap(),
            access: a.clone(),
            session: InputRefused.start().recipient(),
            socket: None,
        });
        let of_a = registered.await.unwrap().ok().unwrap();
        let seen = async |access: &Access| {
            let access = access.clone();
            registry.send(ObserveSessions { access }).await.unwrap()
        };
        let number = seen(&a).await[0].number;
        let one = async |access: &Access| {
            let access = access.clone();
            registry
                .send(ObserveSession { number, access })
                .await
                .unwrap()
        };
        for ended in [false, true] {
            let all = seen(&a).await;
            assert_eq!(all.len(), 1);
            assert_eq!(all[0].ended_at.is_some(), ended);
            assert_eq!(one(&a).await.unwrap().ended_at.is_some(), ended);
            assert_eq!(seen(&Access::anonymous()).await.len(), 1);
            assert!(seen(&b).await.is_empty() && one(&b).await.is_none());
            if !ended {
                registry
                    .send(Unregister {
                        name: of_a.name.clone(),
                        number,
                    })
                    .await
                    .unwrap();
            }
        }
    }
}
