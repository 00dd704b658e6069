//! The rooms configured in the settings, from start to shutdown.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, Recipient};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use super::ServerError;
use crate::actors::egress::EgressService;
use crate::actors::mixes::RoomMixes;
use crate::actors::registry::calls::{CallRegistry, CallRules, Calls, Ledger, News};
use crate::actors::registry::hooks::CallJoined;
use crate::actors::registry::rooms::{RoomHappening, RoomRegistry, Rooms};
use crate::config::{RtcMode, Settings};
use crate::hooks::CallOwners;
use crate::http::tls::{self, TlsError};
use crate::providers::RoomProvider;
use crate::providers::embedded;
use crate::providers::embedded::sip::{BridgeParts, EmbeddedSip};
use crate::providers::livekit::{self, LiveKit};
use crate::providers::rooms::telephone::{CallNews, WAITING_NEWS};
use crate::quotas::Quota;
use crate::recordings::Recordings;
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
    /// Records embedded rooms; `None` if recording is off.
    pub(super) egress: Option<EgressService>,
    /// Mixes embedded rooms.
    pub(super) mixes: Option<RoomMixes>,
    /// Forwards call events.
    news: Option<News>,
    /// Keeps the LiveKit deployment's SIP configuration up to date.
    provisioning: Option<AbortOnDropHandle<()>>,
}

/// The recordings, if there are any, and their quota.
pub(super) type RecordingsOf<'a> = (Option<&'a Arc<Recordings>>, &'a Quota);

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
        (calls, prompts, recordings): (&Quota, Arc<dyn Prompts>, RecordingsOf<'_>),
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
                let trunks =
                    Trunks::open(data_dir).map_err(super::in_data_dir(settings, "trunks"))?;
                let trunks = embedded::sip::trunks(&settings.sip)
                    .and_then(|configured| trunks.with(&configured))
                    .map_err(ServerError::Trunks)?;
                let trunks = Arc::new(trunks);
                let rules = Arc::new(CallRules::new(&settings.sip));
                let referred = Arc::clone(&rules);
                let parts = BridgeParts {
                    trunks: Arc::clone(&trunks),
                    prompts,
                    tls: sip_tls(settings)?,
                    rooms: (started.server.clone(), started.key.key.clone()),
                    owners,
                    quota: calls.clone(),
                    news: sender,
                    sockets: sockets.clone(),
                    gateways: rules.gateways(),
                    redirects: Arc::new(move |uri: &str| rules.redirected(uri)),
                    referrals: Arc::new(move |uri: &str| referred.referred(uri)),
                };
                let telephone = EmbeddedSip::start(&settings.sip, rtc, parts).await;
                let telephone = Arc::new(telephone.map_err(ServerError::Telephone)?);
                let provider = started.provider.with_telephone(telephone.clone());
                let replaces = former.is_some();
                let provider = Arc::new(provider.with_former(former));
                let events = RoomEvents::open(settings, &started.key, authorities);
                let events = events.map_err(ServerError::RoomEvents)?;
                let egress = egress(settings, provider.clone(), recordings, &events)?;
                if let Some(egress) = egress.clone().filter(|_| !replaces) {
                    egress.recover().await;
                }
                let mixes =
                    RoomMixes::new(provider.clone(), rtc.complexity, super::workers(settings));
                let open = Self::of(settings, provider, news, webhooks, hooks, calls);
                Ok(Self {
                    event_forwarder: Some(EventForwarder::begin(
                        started.events,
                        open.registry.clone(),
                        (events, egress.clone()),
                    )),
                    egress,
                    mixes: Some(mixes),
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
            egress: None,
            mixes: None,
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
            transfers: Arc::default(),
            queues: Arc::default(),
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
        if let Some(egress) = self.egress {
            egress.finish(patience).await;
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

/// The egress of embedded rooms; `None` if recording is off.
fn egress(
    settings: &Settings,
    rooms: Arc<dyn RoomProvider>,
    (recordings, quota): RecordingsOf<'_>,
    events: &RoomEvents,
) -> Result<Option<EgressService>, ServerError> {
    let Some(recordings) = recordings else {
        return Ok(None);
    };
    let place = (
        settings.storage.data_dir.as_path(),
        super::workers(settings),
    );
    let recordings = Arc::clone(recordings);
    let service = EgressService::open(rooms, recordings, quota.clone(), events.clone(), place);
    service
        .map(Some)
        .map_err(super::in_data_dir(settings, "recordings of rooms"))
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
pub(super) fn turn_tls(settings: &Settings) -> Result<Option<ServerConfig>, ServerError> {
    let (rtc, server) = (&settings.rtc, &settings.server);
    if rtc.turn_tls_port.is_none() {
        return Ok(None);
    }
    if let (Some(cert), Some(key)) = (&rtc.turn_tls_cert, &rtc.turn_tls_key) {
        let named = |error| ServerError::Io(named_as("rtc.turn.tls_", &error));
        return tls::server_config(cert, key).map(Some).map_err(named);
    }
    let shared = server.tls_cert.as_deref().zip(server.tls_key.as_deref());
    let config = shared.map(|(cert, key)| tls::server_config(cert, key));
    Ok(config.transpose()?)
}

/// The same error, of settings that begin otherwise than `server.tls.`.
fn named_as(settings: &str, error: &TlsError) -> io::Error {
    io::Error::other(error.to_string().replace("server.tls.", settings))
}

/// The TLS configuration of the SIP bridge.
pub(super) fn sip_tls(settings: &Settings) -> Result<TlsSettings, ServerError> {
    let sip = &settings.sip;
    let (server, web) = match (&sip.tls_cert, &sip.tls_key) {
        (Some(cert), Some(key)) => {
            let named = |error| ServerError::Telephone(named_as("sip.tls_", &error));
            let web = Arc::new(tls::server_config(cert, key).map_err(named)?);
            let server = match &sip.tls_client_ca {
                None => Arc::clone(&web),
                Some(authorities) => {
                    let config = tls::server_config_for(cert, key, authorities);
                    Arc::new(config.map_err(named)?)
                }
            };
            (Some(server), Some(web))
        }
        _ => (None, None),
    };
    let mut client = super::transport(settings)?.tls();
    if let (Some(cert), Some(key)) = (&sip.tls_client_cert, &sip.tls_client_key) {
        let own = tls::client_certificate(cert, key)
            .map_err(|error| ServerError::Telephone(named_as("sip.tls_client_", &error)))?;
        let mut with_own = (*client).clone();
        with_own.client_auth_cert_resolver = own;
        client = Arc::new(with_own);
    }
    Ok(TlsSettings {
        server,
        web,
        client: Some(client),
    })
}

impl EventForwarder {
    fn begin(
        mut events: EventReceiver,
        registry: Addr<RoomRegistry>,
        (webhooks, egress): (RoomEvents, Option<EgressService>),
    ) -> Self {
        let outwards = webhooks.clone();
        let task = actix_web::rt::spawn(async move {
            while let Some(event) = events.recv().await {
                let of = event.of.clone();
                let event = Arc::new(embedded::told(event));
                outwards.enqueue(&event, of).await;
                if let Some(egress) = &egress {
                    egress.observe(&event);
                }
                // Waits while the registry is busy; meanwhile events queue up, within the bounds of their owners.
                if let Err(error) = registry.send(RoomHappening(event)).await {
                    tracing::warn!(%error, "a room event could not be delivered to the registry of rooms");
                }
            }
        });
        Self { task, webhooks }
    }
}
