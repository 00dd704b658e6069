//! A session's place in a room, from the permission to enter it to the leaving, however the session ends: the link is left,
//! and the room deleted if it was to be.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use super::{ENTRY_PATIENCE, listen};
use crate::registry::rooms::{EnterRoom, OpenRoom, RoomRegistry, RoomsError};
use crate::session::messages::{DeleteRoom, RoomConfig};
use vivavoce_auth::Access;
use vivavoce_seams::rooms::link::{
    Join, JoinKind, LinkControl, LinkEvent, LinkEvents, PublishSink, RoomLink,
};
use vivavoce_seams::{RoomError, RoomProvider};

/// How long leaving may take, and deleting after it: a session leaves nothing behind after five seconds.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);

/// Why a room was not entered.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// It may not be, or there are no rooms.
    #[error(transparent)]
    Rooms(#[from] RoomsError),
    /// The provider failed.
    #[error(transparent)]
    Provider(#[from] RoomError),
    /// The link ended before its media was up, or that took too long.
    #[error("{provider}: {problem}")]
    Link {
        /// Whose.
        provider: &'static str,
        /// For people.
        problem: String,
    },
    /// The registry has gone.
    #[error("the rooms cannot be asked")]
    Registry,
}

/// A place in a room. Dropping it leaves.
pub struct Entered {
    provider: Arc<dyn RoomProvider>,
    /// What is to be done when it is left; gone only then.
    leaving: Option<Leaving>,
    events: Option<LinkEvents>,
    publish: Option<PublishSink>,
}

/// A session's stays in rooms, one after the other.
#[derive(Debug, Clone, Default)]
pub struct Turn(Arc<Mutex<()>>);

/// Enters the room of a config.
pub async fn enter(
    registry: Addr<RoomRegistry>,
    access: Access,
    config: RoomConfig,
    audio: bool,
    work: TaskTrackerToken,
    turn: Turn,
) -> Result<Entered, EnterError> {
    // What an attempt that failed leaves behind goes first: its end of the room would be the end of this one's.
    let turn = timeout(LEAVE_PATIENCE, turn.0.lock_owned()).await.ok();
    let principal = access.principal();
    let wish = EnterRoom {
        access: access.clone(),
        room: config.room_name.clone(),
        identity: config.identity.clone(),
    };
    let asked = registry.send(wish).await;
    let OpenRoom { provider, created } = asked.map_err(|_| EnterError::Registry)??;
    let mut entered = Entered {
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
            _turn: turn,
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
        // From here on it is left when this is given up.
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
    /// Who keeps the room.
    pub fn provider(&self) -> &'static str {
        self.provider.slug()
    }

    /// Where clients connect; `None` is this server's own address.
    pub fn url(&self) -> Option<&str> {
        self.provider.url()
    }

    /// What is wished of the link; there is one until it is left.
    pub(super) fn control(&self) -> Option<&LinkControl> {
        self.leaving.as_ref()?.control.as_ref()
    }

    /// What happens, once.
    pub(super) const fn take_events(&mut self) -> Option<LinkEvents> {
        self.events.take()
    }

    /// The way to speak, once.
    pub const fn take_publish(&mut self) -> Option<PublishSink> {
        self.publish.take()
    }

    /// What becomes of the room when it is left.
    pub(super) const fn deletes(&mut self, delete: DeleteRoom) {
        if let Some(leaving) = &mut self.leaving {
            leaving.delete = delete;
        }
    }

    /// Whether the session records the room; everybody in it may see that.
    pub(super) fn shows_recording(&mut self, recorded: bool) {
        let Some(leaving) = &mut self.leaving else {
            return;
        };
        if std::mem::replace(&mut leaving.recorded, recorded) != recorded {
            let (provider, room) = (Arc::clone(&self.provider), leaving.room.clone());
            let show = async move {
                if let Err(error) = provider.show_recording(&room, recorded).await {
                    tracing::warn!(%error, "a room does not show whether it is recorded");
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

/// What is left to do in a room.
struct Leaving {
    provider: Arc<dyn RoomProvider>,
    access: Access,
    room: String,
    identity: String,
    created: bool,
    delete: DeleteRoom,
    recorded: bool,
    control: Option<LinkControl>,
    /// Whoever comes next waits for it.
    _turn: Option<OwnedMutexGuard<()>>,
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
            // Unless it is somebody else's by now, who may be on the telephone there.
            match self.delete {
                // Whoever nobody knows sends nobody out.
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
            Ok(Err(error)) => tracing::warn!(%error, "a room was left as it is"),
            Err(_) => tracing::warn!("a room was left as it is: its provider does not answer"),
        }
    }
}
