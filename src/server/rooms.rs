//! The rooms that the settings ask for, from their opening to their end.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, Recipient};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::ServerError;
use crate::actors::registry::hooks::CallJoined;
use crate::actors::registry::rooms::{RoomHappening, RoomRegistry, Rooms};
use crate::config::{RtcMode, Settings};
use crate::outgoing::Authorities;
use crate::providers::RoomProvider;
use crate::providers::embedded;
use crate::providers::livekit::{self, LiveKit};
use crate::rooms::{RoomEvent, RoomServer};
use crate::webhooks::RoomEvents;

/// Rooms that are open, and who decides about them.
pub(super) struct OpenRooms {
    /// The actor that the doors ask; it says so where there are no rooms.
    pub(super) registry: Addr<RoomRegistry>,
    /// The rooms of this process.
    pub(super) embedded: Option<RoomServer>,
    telling: Option<Telling>,
}

/// What happens in the rooms of this process, on its way to those who want to know.
struct Telling {
    task: JoinHandle<()>,
    webhooks: RoomEvents,
}

impl OpenRooms {
    /// Opens them; `calls` is told when a telephone joins one. Must be called in an actor system.
    pub(super) fn open(
        settings: &Settings,
        authorities: &Authorities,
        calls: &Recipient<CallJoined>,
    ) -> Result<Self, ServerError> {
        let rtc = &settings.rtc;
        let registry = |provider: Option<Arc<dyn RoomProvider>>| {
            let rooms = provider.map(|provider| Rooms {
                provider,
                token_lifetime: rtc.token_ttl_seconds,
                claim_unowned: settings.auth.claim_unowned_rooms,
            });
            let registry = RoomRegistry::new(rooms).telling(calls.clone());
            registry.start()
        };
        let elsewhere = |registry| Self {
            registry,
            embedded: None,
            telling: None,
        };
        match livekit::mode(rtc) {
            RtcMode::Off => Ok(elsewhere(registry(None))),
            RtcMode::Livekit => {
                let deployment = LiveKit::from_settings(rtc, super::transport(settings)?);
                let provider = deployment.map(|deployment| Arc::new(deployment) as Arc<_>);
                Ok(elsewhere(registry(provider)))
            }
            RtcMode::Embedded => {
                let started = embedded::start(rtc, &settings.storage.data_dir)?;
                let registry = registry(Some(Arc::new(started.provider)));
                let webhooks = RoomEvents::open(settings, &started.key, authorities);
                let webhooks = webhooks.map_err(ServerError::RoomEvents)?;
                Ok(Self {
                    telling: Some(Telling::begin(started.events, registry.clone(), webhooks)),
                    registry,
                    embedded: Some(started.server),
                })
            }
        }
    }

    /// Ends the rooms of this process; their last events are told for `patience` at most.
    pub(super) async fn finish(self, patience: Duration) {
        if let Some(rooms) = self.embedded {
            let _stopped = rooms.stop().await;
        }
        if let Some(Telling { task, webhooks }) = self.telling {
            // It ends with the rooms.
            let _told = tokio::time::timeout(patience, task).await;
            webhooks.finish(patience).await;
        }
    }
}

impl Telling {
    fn begin(
        mut events: mpsc::Receiver<RoomEvent>,
        registry: Addr<RoomRegistry>,
        webhooks: RoomEvents,
    ) -> Self {
        let outwards = webhooks.clone();
        let task = actix_web::rt::spawn(async move {
            while let Some(event) = events.recv().await {
                let event = Arc::new(embedded::told(event));
                outwards.tell(&event);
                // Waits while the registry has much to do; what comes meanwhile waits in the channel, which is bounded.
                if let Err(error) = registry.send(RoomHappening(event)).await {
                    tracing::warn!(%error, "an event of a room was not heard of");
                }
            }
        });
        Self { task, webhooks }
    }
}
