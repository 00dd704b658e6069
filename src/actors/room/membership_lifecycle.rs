//! The lifecycle of a session's membership in a room, from the permission to enter to leaving. However the session ends,
//! the link is closed, and the room is deleted where the config says so.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{sleep, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use super::{ENTRY_PATIENCE, listen};
use crate::registry::rooms::{EnterRoom, OpenRoom, ReturnToRoom, RoomRegistry, RoomsError};
use crate::session::protocol::{DeleteRoom, RoomConfig};
use vivavoce_auth::Access;
use vivavoce_core::backoff::Backoff;
use vivavoce_seams::rooms::link::{
    Ending, Join, JoinKind, LinkControl, LinkEvent, LinkEvents, PublishSink, RoomLink,
};
use vivavoce_seams::{RoomError, RoomProvider};

/// How long leaving may take, and deleting the room after it. Nothing of a session is left five seconds after its end.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);

/// How often it is asked whose the room is that was joined anew, and the pauses between.
const RETURN_ATTEMPTS: u32 = 5;
const RETURN_BACKOFF: Backoff =
    Backoff::doubling(Duration::from_millis(200), Duration::from_secs(2), 0.2);

/// Why a room could not be joined.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// The registry refused: no permission, or no rooms.
    #[error(transparent)]
    Rooms(#[from] RoomsError),
    /// The provider failed.
    #[error(transparent)]
    Provider(#[from] RoomError),
    /// The link ended before its media was up, or that took too long.
    #[error("{provider}: {problem}")]
    Link {
        provider: &'static str,
        problem: String,
    },
    /// The registry has stopped.
    #[error("the room registry is not running")]
    Registry,
}

/// A membership in a room. Dropping it leaves the room.
pub struct Entered {
    registry: Addr<RoomRegistry>,
    provider: Arc<dyn RoomProvider>,
    /// `None` only while it is dropped.
    leaving: Option<Leaving>,
    events: Option<LinkEvents>,
    publish: Option<PublishSink>,
}

/// Serialises the memberships of one session: the next one waits until the last one has left.
#[derive(Debug, Clone, Default)]
pub struct MembershipLock(Arc<Mutex<()>>);

/// Joins the room of a config.
pub async fn enter(
    registry: Addr<RoomRegistry>,
    access: Access,
    config: RoomConfig,
    audio: bool,
    work: TaskTrackerToken,
    lock: MembershipLock,
) -> Result<Entered, EnterError> {
    // An attempt that failed must have left first: deleting its room would delete this one's.
    let lock = timeout(LEAVE_PATIENCE, lock.0.lock_owned()).await.ok();
    let principal = access.principal();
    let wish = EnterRoom {
        access: access.clone(),
        room: config.room_name.clone(),
        identity: config.identity.clone(),
    };
    let asked = registry.send(wish).await;
    let OpenRoom { provider, created } = asked.map_err(|_| EnterError::Registry)??;
    let mut entered = Entered {
        registry,
        provider: Arc::clone(&provider),
        leaving: Some(Leaving {
            provider: Arc::clone(&provider),
            access,
            room: config.room_name.clone(),
            identity: config.identity.clone(),
            created,
            delete: config.delete_room,
            recorded: false,
            control: None,
            _lock: lock,
            _work: work,
        }),
        events: None,
        publish: None,
    };
    let join = Join {
        room: config.room_name.clone(),
        identity: config.identity.clone(),
        name: config.name.clone(),
        kind: JoinKind::Agent,
        principal,
        owner: None,
        metadata: String::new(),
        attributes: Vec::new(),
        room_config: None,
        listen: listen(&config),
        audio,
    };
    let failed = |problem: String| EnterError::Link {
        provider: provider.slug(),
        problem,
    };
    let connect = async {
        let RoomLink {
            mut events,
            publish,
            control,
        } = provider.connect(join).await?;
        // From here on dropping `entered` closes the link.
        if let Some(leaving) = &mut entered.leaving {
            leaving.control = Some(control);
        }
        match events.next().await {
            Some(LinkEvent::Connected { .. }) => {}
            Some(LinkEvent::Ended(ending)) => return Err(failed(ending.to_string())),
            _ => return Err(failed("the link did not say that it is there".to_owned())),
        }
        entered.events = Some(events);
        entered.publish = Some(publish);
        Ok(())
    };
    match timeout(ENTRY_PATIENCE, connect).await {
        Ok(connected) => connected?,
        Err(_) => {
            let seconds = ENTRY_PATIENCE.as_secs();
            let late = format!("the room could not be joined within {seconds} s");
            return Err(failed(late));
        }
    }
    Ok(entered)
}

impl Entered {
    /// The slug of the room provider.
    pub fn provider(&self) -> &'static str {
        self.provider.slug()
    }

    /// The URL that clients connect to; `None` means this server.
    pub fn url(&self) -> Option<&str> {
        self.provider.url()
    }

    /// Finds out whether the session may stay in a room that it has joined anew; `None` where that was seen to as it joined.
    pub(super) fn returned(&self) -> Option<impl Future<Output = Result<(), Ending>> + use<>> {
        if self.provider.keeps_owners() {
            return None;
        }
        let leaving = self.leaving.as_ref()?;
        let registry = self.registry.clone();
        let wish = ReturnToRoom {
            access: leaving.access.clone(),
            room: leaving.room.clone(),
        };
        Some(async move {
            for attempt in 0.. {
                let problem = match registry.send(wish.clone()).await {
                    Ok(Ok(())) => break,
                    Ok(Err(RoomsError::AccessDenied)) => return Err(Ending::Disowned),
                    Ok(Err(error)) => error.to_string(),
                    Err(error) => error.to_string(),
                };
                tracing::warn!(problem, "whose a room is could not be found out");
                if attempt + 1 == RETURN_ATTEMPTS {
                    return Err(Ending::Network(problem));
                }
                sleep(RETURN_BACKOFF.delay(attempt, fastrand::f64())).await;
            }
            Ok(())
        })
    }

    /// Commands to the link.
    pub(super) fn control(&self) -> Option<&LinkControl> {
        self.leaving.as_ref()?.control.as_ref()
    }

    /// The link's events; `None` after the first call.
    pub(super) const fn take_events(&mut self) -> Option<LinkEvents> {
        self.events.take()
    }

    /// The sink of the published track; `None` after the first call.
    pub const fn take_publish(&mut self) -> Option<PublishSink> {
        self.publish.take()
    }

    /// Sets what happens to the room on leaving.
    pub(super) const fn deletes(&mut self, delete: DeleteRoom) {
        if let Some(leaving) = &mut self.leaving {
            leaving.delete = delete;
        }
    }

    /// Shows or hides the recording indicator of the room.
    pub(super) fn shows_recording(&mut self, recorded: bool) {
        let Some(leaving) = &mut self.leaving else {
            return;
        };
        if std::mem::replace(&mut leaving.recorded, recorded) != recorded {
            let (provider, room) = (Arc::clone(&self.provider), leaving.room.clone());
            let show = async move {
                if let Err(error) = provider.show_recording(&room, recorded).await {
                    tracing::warn!(%error, "the recording indicator of a room could not be set");
                }
            };
            actix::spawn(show.in_current_span());
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(leaving) = self.leaving.take() {
            actix::spawn(leaving.run().in_current_span());
        }
    }
}

/// What has to be done on leaving.
struct Leaving {
    provider: Arc<dyn RoomProvider>,
    access: Access,
    room: String,
    identity: String,
    created: bool,
    delete: DeleteRoom,
    recorded: bool,
    control: Option<LinkControl>,
    /// Held until the room is left.
    _lock: Option<OwnedMutexGuard<()>>,
    /// The server waits for it when it stops.
    _work: TaskTrackerToken,
}

impl Leaving {
    async fn run(mut self) {
        if let Some(control) = self.control.take() {
            let _left = timeout(LEAVE_PATIENCE, control.leave()).await;
        }
        let (provider, room) = (&self.provider, &self.room);
        let rest = async {
            if self.recorded {
                provider.show_recording(room, false).await?;
            }
            // The provider checks the owner: the room may belong to another tenant by now.
            match self.delete {
                // A session without a token may not remove others.
                DeleteRoom::Always if !self.access.is_public() => {
                    provider.delete(room, &self.access).await
                }
                DeleteRoom::Auto if !self.created => Ok(()),
                DeleteRoom::Always | DeleteRoom::Auto => {
                    let identity = &self.identity;
                    provider.delete_deserted(room, identity, &self.access).await
                }
                DeleteRoom::Never => Ok(()),
            }
        };
        match timeout(LEAVE_PATIENCE, rest).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "a room was not cleaned up"),
            Err(_) => tracing::warn!("a room was not cleaned up: its provider does not answer"),
        }
    }
}
