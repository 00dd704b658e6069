//! The rooms configured in the settings, from start to shutdown.

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
use crate::providers::RoomProvider;
use crate::providers::embedded;
use crate::providers::embedded::sip::{BridgeParts, EmbeddedSip};
use crate::providers::livekit::{self, LiveKit};
use crate::providers::rooms::telephone::{CallNews, WAITING_NEWS};
use crate::quotas::Quota;
use crate::rooms::{Bounds, EventReceiver, RoomServer};
use crate::telephony::agent::TlsSettings;
use crate::telephony::bridge::Prompts;
use crate::telephony::trunks::Trunks;
use crate::tls_roots::Authorities;
use crate::webhooks::{RoomEvents, Webhooks};
use rustls::ServerConfig;
use vivavoce_takeover::{Former, Sockets};

/// The running rooms and the actors in front of them.
pub(super) struct OpenRooms {
    /// The registry of rooms; without rooms, it answers that there are none.
    pub(super) registry: Addr<RoomRegistry>,
    /// The registry of calls; without rooms, it answers that there are none.
    pub(super) calls: Addr<CallRegistry>,
    /// The embedded SFU.
    pub(super) embedded: Option<RoomServer>,
    /// The embedded SIP bridge.
    telephone: Option<Arc<EmbeddedSip>>,
    /// The SIP trunks of the embedded rooms.
    pub(super) trunks: Option<Arc<Trunks>>,
    event_forwarder: Option<EventForwarder>,
    /// Forwards call events.
    news: Option<News>,
    /// Keeps the LiveKit deployment's SIP configuration up to date.
    provisioning: Option<AbortOnDropHandle<()>>,
}

/// Forwards events of the embedded rooms to the registry and to webhooks.
struct EventForwarder {
    task: JoinHandle<()>,
    webhooks: RoomEvents,
}

impl OpenRooms {
    /// Starts the rooms. `hooks` is notified when a telephone joins one, and `owners` determines who owns its call.
    /// Must be called in an actor system.
    pub(super) async fn open(
        settings: &Settings,
        authorities: &Authorities,
        webhooks: &Webhooks,
        hooks: &Recipient<CallJoined>,
        owners: Option<CallOwners>,
        (calls, prompts): (&Quota, Arc<dyn Prompts>),
        (sockets, former): (&Sockets, Option<Arc<Former>>),
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
                let parts = (sockets, turn_tls(settings)?);
                let started = embedded::start(rtc, data_dir, claim_unowned, bounds, parts)?;
                let trunks = Trunks::open(data_dir).map_err(ServerError::Trunks)?;
                let trunks = Arc::new(trunks);
                let parts = BridgeParts {
                    trunks: Arc::clone(&trunks),
                    prompts,
                    tls: sip_tls(settings)?,
                    rooms: (started.server.clone(), started.key.key.clone()),
                    owners,
                    quota: calls.clone(),
                    news: sender,
                    sockets: sockets.clone(),
                };
                let telephone = EmbeddedSip::start(&settings.sip, rtc, parts).await;
                let telephone = Arc::new(telephone.map_err(ServerError::Telephone)?);
                let provider = started.provider.with_telephone(telephone.clone());
                let provider = provider.with_former(former);
                let events = RoomEvents::open(settings, &started.key, authorities);
                let events = events.map_err(ServerError::RoomEvents)?;
                let open = Self::of(settings, Arc::new(provider), news, webhooks, hooks, calls);
                Ok(Self {
                    event_forwarder: Some(EventForwarder::begin(
                        started.events,
                        open.registry.clone(),
                        events,
                    )),
                    embedded: Some(started.server),
                    telephone: Some(telephone),
                    trunks: Some(trunks),
                    ..open
                })
            }
        }
    }

    fn nowhere() -> Self {
        Self::asked(RoomRegistry::new(None), CallRegistry::new(None))
    }

    /// What all modes have: the registries.
    fn asked(registry: RoomRegistry, calls: CallRegistry) -> Self {
        Self {
            registry: registry.start(),
            calls: calls.start(),
            embedded: None,
            telephone: None,
            trunks: None,
            event_forwarder: None,
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
        let ledger = Arc::new(Ledger::default());
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

    /// The embedded SIP bridge.
    pub(super) fn telephone(&self) -> Option<Arc<EmbeddedSip>> {
        self.telephone.clone()
    }

    /// Stops the rooms; their last events are delivered within `patience`.
    pub(super) async fn finish(self, patience: Duration) {
        if let Some(telephone) = self.telephone {
            telephone.stop().await;
        }
        if let Some(rooms) = self.embedded {
            rooms.stop().await;
        }
        if let Some(EventForwarder { task, webhooks }) = self.event_forwarder {
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

/// Checks whether the SIP bridge could start. The error names the setting.
pub(crate) fn check_telephone(settings: &Settings) -> Result<(), ServerError> {
    if livekit::mode(&settings.rtc) == RtcMode::Embedded {
        sip_tls(settings)?;
        EmbeddedSip::check(&settings.sip).map_err(ServerError::Telephone)?;
    }
    Ok(())
}

/// What the settings of the TURN server lack.
pub(super) fn turn_problems(settings: &Settings) -> Vec<String> {
    let (rtc, server) = (&settings.rtc, &settings.server);
    let mut problems = Vec::new();
    if rtc.turn_tls_cert.is_some() != rtc.turn_tls_key.is_some() {
        problems.push("rtc.turn.tls_cert, rtc.turn.tls_key: one needs the other".to_owned());
    }
    if rtc.turn_tls_port.is_none() {
        return problems;
    }
    if rtc.turn_domain.is_none() {
        problems.push(
            "rtc.turn.tls_port: needs rtc.turn.domain, the name in the certificate".to_owned(),
        );
    }
    if rtc.turn_tls_cert.is_none() && server.tls_cert.is_none() {
        problems.push("rtc.turn.tls_port: needs rtc.turn.tls_cert and rtc.turn.tls_key, or those of server.tls".to_owned());
    }
    problems
}

/// The TLS configuration of the TURN server.
fn turn_tls(settings: &Settings) -> Result<Option<ServerConfig>, ServerError> {
    let (rtc, server) = (&settings.rtc, &settings.server);
    if rtc.turn_tls_port.is_none() {
        return Ok(None);
    }
    let own = rtc
        .turn_tls_cert
        .as_deref()
        .zip(rtc.turn_tls_key.as_deref());
    let shared = server.tls_cert.as_deref().zip(server.tls_key.as_deref());
    let config = own
        .or(shared)
        .map(|(cert, key)| tls::server_config(cert, key));
    Ok(config.transpose()?)
}

/// The TLS configuration of the SIP bridge.
fn sip_tls(settings: &Settings) -> Result<TlsSettings, ServerError> {
    let sip = &settings.sip;
    let server = match (&sip.tls_cert, &sip.tls_key) {
        (Some(cert), Some(key)) => {
            let config = tls::server_config(cert, key).map_err(|error| {
                // The same kind of error, for another pair of settings.
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

impl EventForwarder {
    fn begin(
        mut events: EventReceiver,
        registry: Addr<RoomRegistry>,
        webhooks: RoomEvents,
    ) -> Self {
        let outwards = webhooks.clone();
        let task = actix_web::rt::spawn(async move {
            while let Some(event) = events.recv().await {
                let of = event.of.clone();
                let event = Arc::new(embedded::told(event));
                outwards.enqueue(&event, of).await;
                // Waits while the registry is busy; meanwhile events queue up, within the bounds of their owners.
                if let Err(error) = registry.send(RoomHappening(event)).await {
                    tracing::warn!(%error, "a room event could not be delivered to the registry of rooms");
                }
            }
        });
        Self { task, webhooks }
    }
}
