//! The rooms that the settings ask for, from their opening to their end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, Recipient};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use super::ServerError;
use crate::actors::registry::calls::{CallRegistry, CallRules, Calls, Ledger, News};
use crate::actors::registry::hooks::CallJoined;
use crate::actors::registry::rooms::{RoomHappening, RoomRegistry, Rooms};
use crate::config::{RtcMode, Settings};
use crate::hooks::CallOwners;
use crate::http::tls;
use crate::outgoing::Authorities;
use crate::providers::RoomProvider;
use crate::providers::embedded;
use crate::providers::embedded::telephone::EmbeddedTelephone;
use crate::providers::livekit::{self, LiveKit};
use crate::providers::rooms::telephone::{CallNews, WAITING_NEWS};
use crate::quotas::Quota;
use crate::rooms::{Bounds, RoomEvent, RoomServer};
use crate::telephony::agent::TlsSettings;
use crate::telephony::trunks::Trunks;
use crate::webhooks::{RoomEvents, Webhooks};

/// Rooms that are open, and who decides about them.
pub(super) struct OpenRooms {
    /// The actor that the doors ask; it says so where there are no rooms.
    pub(super) registry: Addr<RoomRegistry>,
    /// The actor that the doors ask about calls; it says so where there are no rooms.
    pub(super) calls: Addr<CallRegistry>,
    /// The rooms of this process.
    pub(super) embedded: Option<RoomServer>,
    /// Who carries calls into them.
    telephone: Option<Arc<EmbeddedTelephone>>,
    /// Their trunks.
    pub(super) trunks: Option<Arc<Trunks>>,
    telling: Option<Telling>,
    /// What the telephone tells.
    news: Option<News>,
    /// The deployment elsewhere is told who may call in.
    provisioning: Option<AbortOnDropHandle<()>>,
}

/// What happens in the rooms of this process, on its way to those who want to know.
struct Telling {
    task: JoinHandle<()>,
    webhooks: RoomEvents,
}

impl OpenRooms {
    /// Opens them; `hooks` are told when a telephone joins one, and `owners` say whose its call is. Must be called in an actor system.
    pub(super) async fn open(
        settings: &Settings,
        authorities: &Authorities,
        webhooks: &Webhooks,
        hooks: &Recipient<CallJoined>,
        owners: Option<CallOwners>,
        calls: &Quota,
    ) -> Result<Self, ServerError> {
        let rtc = &settings.rtc;
        match livekit::mode(rtc) {
            RtcMode::Off => Ok(Self::nowhere()),
            RtcMode::Livekit => {
                let (sender, news) = mpsc::channel(WAITING_NEWS);
                let deployment = LiveKit::from_settings(rtc, super::transport(settings)?, sender);
                let Some(deployment) = deployment else {
                    return Ok(Self::nowhere());
                };
                let provisioning = deployment.provision(&settings.sip);
                let provisioning =
                    provisioning.map(|task| AbortOnDropHandle::new(actix_web::rt::spawn(task)));
                Ok(Self {
                    provisioning,
                    ..Self::of(settings, Arc::new(deployment), news, webhooks, hooks, calls)
                })
            }
            RtcMode::Embedded => {
                let data_dir = &settings.storage.data_dir;
                let (sender, news) = mpsc::channel(WAITING_NEWS);
                let claim_unowned = settings.auth.claim_unowned_rooms;
                let bounds = Bounds::new(settings);
                let started = embedded::start(rtc, data_dir, claim_unowned, bounds)?;
                let rooms = (started.server.clone(), started.key.key.clone());
                let tls = telephone_tls(settings)?;
                let telephone =
                    EmbeddedTelephone::start(&settings.sip, rtc, tls, rooms, owners, sender).await;
                let telephone = Arc::new(telephone.map_err(ServerError::Telephone)?);
                let provider = started.provider.with_telephone(telephone.clone());
                let trunks = Trunks::open(data_dir).map_err(ServerError::Trunks)?;
                let events = RoomEvents::open(settings, &started.key, authorities);
                let events = events.map_err(ServerError::RoomEvents)?;
                let open = Self::of(settings, Arc::new(provider), news, webhooks, hooks, calls);
                Ok(Self {
                    telling: Some(Telling::begin(
                        started.events,
                        open.registry.clone(),
                        events,
                    )),
                    embedded: Some(started.server),
                    telephone: Some(telephone),
                    trunks: Some(Arc::new(trunks)),
                    ..open
                })
            }
        }
    }

    fn nowhere() -> Self {
        Self::asked(RoomRegistry::new(None), CallRegistry::new(None))
    }

    /// What every mode has: those that are asked.
    fn asked(registry: RoomRegistry, calls: CallRegistry) -> Self {
        Self {
            registry: registry.start(),
            calls: calls.start(),
            embedded: None,
            telephone: None,
            trunks: None,
            telling: None,
            news: None,
            provisioning: None,
        }
    }

    fn of(
        settings: &Settings,
        provider: Arc<dyn RoomProvider>,
        news: mpsc::Receiver<CallNews>,
        webhooks: &Webhooks,
        hooks: &Recipient<CallJoined>,
        quota: &Quota,
    ) -> Self {
        let rooms = Rooms {
            provider,
            token_lifetime: settings.rtc.token_ttl_seconds,
            claim_unowned: settings.auth.claim_unowned_rooms,
            guarded: settings.auth.required,
        };
        let ledger = Arc::new(Ledger::counting(quota.clone()));
        let news = News::follow(news, rooms.clone(), Arc::clone(&ledger), webhooks.clone());
        let calls = Calls {
            rooms: rooms.clone(),
            rules: CallRules::new(&settings.sip),
            quota: quota.clone(),
            ledger,
            webhooks: Some(webhooks.clone()),
        };
        let registry = RoomRegistry::new(Some(rooms)).telling(hooks.clone());
        Self {
            news: Some(news),
            ..Self::asked(registry, CallRegistry::new(Some(calls)))
        }
    }

    /// The telephone of this process.
    pub(super) fn telephone(&self) -> Option<Arc<EmbeddedTelephone>> {
        self.telephone.clone()
    }

    /// Ends the rooms of this process; their last events are told for `patience` at most.
    pub(super) async fn finish(self, patience: Duration) {
        if let Some(telephone) = self.telephone {
            telephone.stop().await;
        }
        if let Some(rooms) = self.embedded {
            rooms.stop().await;
        }
        if let Some(Telling { task, webhooks }) = self.telling {
            // It ends with the rooms.
            let _told = tokio::time::timeout(patience, task).await;
            webhooks.finish(patience).await;
        }
        drop(self.provisioning);
        if let Some(news) = self.news {
            news.finish(patience).await;
        }
    }
}

/// Whether the telephone would start. The error names the setting.
pub(crate) fn check_telephone(settings: &Settings) -> Result<(), ServerError> {
    if livekit::mode(&settings.rtc) == RtcMode::Embedded {
        telephone_tls(settings)?;
        EmbeddedTelephone::check(&settings.sip).map_err(ServerError::Telephone)?;
    }
    Ok(())
}

/// What the telephone speaks TLS with.
fn telephone_tls(settings: &Settings) -> Result<TlsSettings, ServerError> {
    let sip = &settings.sip;
    let server = match (&sip.tls_cert, &sip.tls_key) {
        (Some(cert), Some(key)) => {
            let config = tls::server_config(cert, key).map_err(|error| {
                // The same pair of files under another name.
                let text = error.to_string().replace("server.tls.", "sip.tls_");
                ServerError::Telephone(io::Error::other(text))
            })?;
            Some(Arc::new(config))
        }
        _ => None,
    };
    Ok(TlsSettings {
        server,
        client: Some(super::transport(settings)?.tls()),
    })
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
                let of = event.of.clone();
                let event = Arc::new(embedded::told(event));
                outwards.tell(&event, of).await;
                // Waits while the registry has much to do; what comes meanwhile waits in the channel, which is bounded.
                if let Err(error) = registry.send(RoomHappening(event)).await {
                    tracing::warn!(%error, "an event of a room was not heard of");
                }
            }
        });
        Self { task, webhooks }
    }
}
