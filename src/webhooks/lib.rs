//! Signed webhooks, delivered at least once (protocol, sections 4 and 7). What is reported, and when, is decided by
//! others: recordings, sessions, calls and rooms.
//!
//! # Delivery
//!
//! A webhook is written to disk before [`Webhooks::enqueue`] or [`Webhooks::send`] returns, so that it survives the
//! process and a power failure ([`spool`]). It is posted until the receiver answers with a 2xx status or
//! `webhooks.retry_seconds` have passed ([`retries`], [`delivery`]). The pauses between attempts grow from half a second
//! to a minute, with jitter. Every attempt has the same event id, by which receivers recognise duplicates; ids of events
//! about recordings are derived from their content, so that even another process reports them under the same id.
//!
//! Each receiver has a lane of its own with at most four concurrent deliveries, so a slow receiver delays nobody else.
//! When a receiver cannot be reached, a single delivery at a time probes it. Within a lane parties take turns.
//!
//! # Bounds
//!
//! The spool holds 10,000 webhooks and 64 MiB, and the same again for webhooks about recordings; at most 8,000 for one
//! receiver, and for one party its fair share (`vivavoce_quotas`). What does not fit is refused, logged and counted.
//! Responses are read up to their head, redirects are not followed, and each attempt takes at most ten seconds.
//!
//! # Security
//!
//! Receivers verify `X-Service-Signature`: HMAC-SHA256 over version, timestamp, event id and body ([`signature`]). URLs
//! from tenants are subject to the [egress policy](vivavoce_core::egress_policy), which is checked for the addresses
//! actually connected to. URLs are not logged, because they may contain secrets.
//!
//! [`RoomEvents`] is the exception to all of this: events of embedded rooms are posted as LiveKit posts them, signed
//! with its scheme, kept in memory only and dropped after half a minute.
//!
//! # Example
//!
//! ```
//! use vivavoce_webhooks::{Event, EventKind, Webhooks};
//!
//! async fn report_end(webhooks: &Webhooks, stream_id: &str) {
//!     let ended = EventKind::SessionEnded {
//!         reason: "the client closed the socket".to_owned(),
//!         duration_ms: 61_000,
//!         stt_seconds: 58.5,
//!         tts_characters: 420,
//!     };
//!     // Once this returns, the event is on disk.
//!     webhooks.enqueue(&Event::now(stream_id, Some("shop"), ended)).await;
//! }
//! ```

mod delivery;
mod event;
mod retries;
mod room_events;
mod signature;
mod spool;
mod waiting;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use reqwest::Url;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use delivery::WebhookSender;
pub use event::{Event, EventKind, RecordingFile, TransferOutcome};
pub use room_events::RoomEvents;
pub use signature::signed;
pub use spool::SpoolError;
use spool::{Bounds, Spool, SpoolEntry, Webhook};
use vivavoce_config::{HttpUrl, Secret, Settings};
use vivavoce_core::dialect::Dialect;
use vivavoce_core::egress_policy::EgressPolicy;
use vivavoce_core::tls_roots::Authorities;
use vivavoce_quotas::{FairQueue, Kind, Party, Share};
use vivavoce_telemetry::metrics;
pub use waiting::{WaitingWebhook, WaitingWebhooks};

/// The minimum length of a signing secret.
pub const MIN_SECRET_BYTES: usize = 16;
/// How often is looked for what another server has left: most have the folder for themselves and find nothing.
const ADOPT_EVERY: Duration = Duration::from_secs(2);
/// How long receivers have to answer what they were sent just before the end.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// The spool's folder, below the data folder.
const FOLDER: &str = "webhooks";
const MAX_WEBHOOKS: usize = 10_000;
const MAX_WEBHOOKS_PER_RECEIVER: usize = 8_000;
const MAX_BYTES: u64 = 64 << 20;
/// Webhooks written to disk concurrently; more wait in a fair queue.
const MAX_CONCURRENT_WRITES: usize = 8;

/// Who a webhook counts for while it waits, and whether it is about a recording: those have a capacity of their own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Source {
    party: Party,
    recording: bool,
}

/// The receiver of a webhook, with the secret that signs for it and the addresses it may have.
#[derive(Clone, PartialEq, Eq)]
pub struct Receiver {
    /// The URL to post to.
    pub url: Url,
    /// The signing secret.
    pub secret: Secret,
    /// Which addresses may be connected to.
    pub egress: EgressPolicy,
}

impl fmt::Debug for Receiver {
    /// A URL may contain a secret in its path or query.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Receiver({})", self.url.host_str().unwrap_or_default())
    }
}

/// The destination of a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Destination {
    /// The receiver named in the settings at the time of delivery.
    Settings,
    /// The receiver of a call hook.
    Hook(HookAddress),
}

/// The URL of a call hook. The secret and the egress policy are taken from the settings at the time of delivery.
#[derive(Clone, PartialEq, Eq)]
pub struct HookAddress {
    /// The URL to post to.
    pub url: Url,
    /// The hook whose own secret signs, if it has one ([`HookKeys`]).
    pub signer: Option<String>,
}

impl fmt::Debug for HookAddress {
    /// A URL may contain a secret in its path or query.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "HookAddress({})",
            self.url.host_str().unwrap_or_default()
        )
    }
}

/// The secrets for call hooks.
#[derive(Debug, Clone, Default)]
pub struct HookKeys {
    /// Secrets of hooks that have their own, by [`HookAddress::signer`].
    pub own: HashMap<String, Secret>,
    /// The secret for all others.
    pub common: Option<Secret>,
    /// Which addresses hooks may have.
    pub egress: EgressPolicy,
}

impl HookKeys {
    /// The receiver at an address; `None` where there is no secret for it.
    fn receiver(&self, address: &HookAddress) -> Option<Receiver> {
        let own = address
            .signer
            .as_ref()
            .and_then(|signer| self.own.get(signer));
        Some(Receiver {
            url: address.url.clone(),
            secret: own.or(self.common.as_ref())?.clone(),
            egress: self.egress,
        })
    }
}

/// The queue a webhook waits in: one per URL; `None` is the receiver of the settings.
type Lane = Option<Url>;

impl Destination {
    fn lane(&self) -> Lane {
        match self {
            Self::Settings => None,
            Self::Hook(address) => Some(address.url.clone()),
        }
    }
}

/// Where webhooks go, and what signs them: what may change while the server runs.
#[derive(Debug, Clone, Default)]
pub struct Receivers {
    /// The receiver of events about recordings, sessions and calls, if any.
    pub own: Option<Receiver>,
    /// The secrets for call hooks.
    pub hooks: HookKeys,
}

impl Receivers {
    /// From the server's settings and the secrets of its hooks.
    pub fn new(settings: &Settings, hooks: HookKeys) -> Self {
        let own = settings.webhooks.url.clone();
        let own = own.zip(settings.webhooks.secret.clone());
        Self {
            own: own.map(|(HttpUrl(url), secret)| Receiver {
                url,
                secret,
                egress: egress_policy(settings),
            }),
            hooks,
        }
    }

    fn of(&self, destination: &Destination) -> Option<Receiver> {
        match destination {
            Destination::Hook(address) => self.hooks.receiver(address),
            Destination::Settings => self.own.clone(),
        }
    }
}

/// The settings of webhooks.
#[derive(Debug, Clone)]
pub struct WebhookSettings {
    /// The spool's folder.
    pub folder: PathBuf,
    /// Where they go.
    pub receivers: Receivers,
    /// Which addresses the receiver of the settings may have.
    pub egress: EgressPolicy,
    /// How long delivery is attempted, counted from when the webhook was accepted or the server started.
    pub patience: Duration,
    /// The share of the spool that one party may use.
    pub share: Share,
    /// How headers are named.
    pub dialect: Dialect,
}

impl WebhookSettings {
    /// From the server's settings and the secrets of its hooks.
    pub fn new(settings: &Settings, hooks: HookKeys) -> Self {
        Self {
            folder: settings.storage.data_dir.join(FOLDER),
            receivers: Receivers::new(settings, hooks),
            egress: egress_policy(settings),
            patience: settings.webhooks.retry_seconds,
            share: Share::of(settings),
            dialect: settings.dialect.words(),
        }
    }
}

const fn egress_policy(settings: &Settings) -> EgressPolicy {
    EgressPolicy {
        insecure: settings.webhooks.allow_insecure,
        private: settings.webhooks.allow_private,
    }
}

/// Contradictions in the settings of webhooks.
pub fn problems(settings: &Settings) -> Vec<String> {
    let own = &settings.webhooks;
    let mut problems = room_events::problems(settings);
    if own.url.is_some() != own.secret.is_some() {
        problems.push("webhooks.url, webhooks.secret: one needs the other".to_owned());
    }
    let short = |secret: &Secret| secret.expose().len() < MIN_SECRET_BYTES;
    if own.secret.as_ref().is_some_and(short) {
        problems.push(format!(
            "webhooks.secret: must have {MIN_SECRET_BYTES} bytes or more"
        ));
    }
    if let Some(HttpUrl(url)) = &own.url
        && let Err(error) = egress_policy(settings).check(url)
    {
        let allow = "unless webhooks.allow_insecure, webhooks.allow_private say otherwise";
        problems.push(format!("webhooks.url: {error}, {allow}"));
    }
    problems
}

/// The handle to which webhooks are given. Clones share the same spool.
#[derive(Debug, Clone)]
pub struct Webhooks {
    spool: Arc<Spool>,
    /// Has capacity for as many entries as the spool, so that sending never waits.
    entries: mpsc::Sender<(String, SpoolEntry)>,
    /// To whoever has the queue.
    asks: mpsc::Sender<waiting::Ask>,
    receivers: Arc<ArcSwap<Receivers>>,
    egress: EgressPolicy,
    /// Webhooks being written to disk.
    writing: TaskTracker,
    /// What delivers them.
    delivering: TaskTracker,
    writers: FairQueue,
    /// The runtime that writes: sessions and their threads end before it does.
    runtime: Handle,
    closing: CancellationToken,
}

impl Webhooks {
    /// Opens the spool and starts to deliver what an earlier process has left in it. Blocks while reading the spool;
    /// must be called in a tokio runtime.
    pub fn open(settings: &WebhookSettings, authorities: &Authorities) -> io::Result<Self> {
        let bounds = Bounds {
            count: MAX_WEBHOOKS,
            count_per_receiver: MAX_WEBHOOKS_PER_RECEIVER,
            bytes: MAX_BYTES,
            share: settings.share,
        };
        let (spool, found) = Spool::open(settings.folder.clone(), bounds)?;
        let spool = Arc::new(spool);
        let (entries, receiver) = mpsc::channel(2 * MAX_WEBHOOKS);
        let (asks, asked) = mpsc::channel(waiting::MAX_ASKS);
        let closing = CancellationToken::new();
        let receivers = Arc::new(ArcSwap::from_pointee(settings.receivers.clone()));
        let known = Arc::clone(&receivers);
        let sender = WebhookSender::new(Arc::clone(&spool), settings, known, authorities)?;
        let delivering = TaskTracker::new();
        delivering.spawn(sender.run(found, receiver, asked, closing.clone()));
        tokio::spawn(adopt(
            Arc::clone(&spool),
            entries.downgrade(),
            closing.clone(),
        ));
        Ok(Self {
            spool,
            entries,
            asks,
            receivers,
            egress: settings.egress,
            writing: TaskTracker::new(),
            delivering,
            writers: FairQueue::new(MAX_CONCURRENT_WRITES, settings.share),
            runtime: Handle::current(),
            closing,
        })
    }

    /// Sends to these from now on, also what waits. Which addresses the receiver of the settings may have, as those of rooms,
    /// stays as it was at the start.
    pub fn reload(&self, mut receivers: Receivers) {
        if let Some(own) = &mut receivers.own {
            own.egress = self.egress;
        }
        self.receivers.store(Arc::new(receivers));
    }

    /// Whether the settings name a receiver.
    fn has_receiver(&self) -> bool {
        self.receivers.load().own.is_some()
    }

    /// Queues an event for the receiver of the settings, if there is one. Once this returns, the event survives the
    /// process. A full spool or disk is logged and counted here, because the caller could not do anything about it.
    pub async fn enqueue(&self, event: &Event) {
        if !self.has_receiver() {
            return;
        }
        match serde_json::to_string(event) {
            Ok(body) => drop(
                self.post(
                    event.event_id(),
                    Destination::Settings,
                    event.source(),
                    body,
                )
                .await,
            ),
            Err(error) => tracing::error!(%error, "a webhook cannot be serialised"),
        }
    }

    /// Like [`Self::enqueue`], without waiting for the disk; [`Self::finish`] waits for it.
    pub fn enqueue_later(&self, event: Event) {
        if self.has_receiver() {
            let this = self.clone();
            self.writing
                .spawn_on(async move { this.enqueue(&event).await }, &self.runtime);
        }
    }

    /// Queues `body` (JSON) for a call hook under this id. Once this returns, the webhook survives the process.
    pub async fn send(
        &self,
        id: uuid::Uuid,
        to: HookAddress,
        of: Party,
        body: String,
    ) -> Result<(), SpoolError> {
        let source = Source {
            party: of,
            recording: false,
        };
        self.post(id, Destination::Hook(to), source, body).await
    }

    async fn post(
        &self,
        id: uuid::Uuid,
        to: Destination,
        of: Source,
        body: String,
    ) -> Result<(), SpoolError> {
        let _turn = self.writers.acquire(&of.party).await;
        let id = id.to_string();
        let webhook = Webhook {
            id: id.clone(),
            to,
            of,
            body,
        };
        let spool = Arc::clone(&self.spool);
        let put = move || spool.put(&webhook, SystemTime::now());
        let put = tokio::task::spawn_blocking(put)
            .await
            .map_err(io::Error::other)?;
        match put {
            Ok(entry) => {
                // If the process ends before the delivery, the next one finds the entry on disk.
                let _ = self.entries.send((id, entry)).await;
                Ok(())
            }
            Err(error) => {
                metrics::webhook_lost(metrics::WebhookLoss::Spool);
                if matches!(error, SpoolError::Quota(_)) {
                    metrics::quota_refused(Kind::Webhooks.name());
                }
                tracing::error!(%error, "a webhook cannot be written to the spool and is dropped");
                Err(error)
            }
        }
    }

    /// Waits until everything that was queued is on disk, then begins no further delivery, and waits a moment for those that
    /// have begun: what is cut off comes a second time, from the next process.
    pub async fn finish(&self) {
        self.writing.close();
        self.writing.wait().await;
        self.closing.cancel();
        self.delivering.close();
        let _late = timeout(LAST_ANSWERS, self.delivering.wait()).await;
    }
}

/// Delivers what servers leave that end while this one runs.
async fn adopt(
    spool: Arc<Spool>,
    entries: mpsc::WeakSender<(String, SpoolEntry)>,
    closing: CancellationToken,
) {
    loop {
        tokio::select! {
            () = closing.cancelled() => return,
            () = tokio::time::sleep(ADOPT_EVERY) => {}
        }
        let looking = Arc::clone(&spool);
        let adopted = match tokio::task::spawn_blocking(move || looking.adopt()).await {
            Ok(Ok(adopted)) => adopted,
            Ok(Err(error)) => {
                tracing::warn!(%error, "what another server may have left in the spool cannot be read");
                continue;
            }
            // The runtime is shutting down.
            Err(_) => return,
        };
        for entry in adopted {
            let Some(entries) = entries.upgrade() else {
                return;
            };
            if entries.send((String::new(), entry)).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A receiver that has a webhook and has not answered yet.
    #[tokio::test]
    async fn what_is_being_delivered_at_the_end_does_not_come_again() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let egress = EgressPolicy {
            insecure: true,
            private: true,
        };
        let receiver = Receiver {
            url: format!("http://{address}/").parse().unwrap(),
            secret: Secret::new("secret".to_owned()),
            egress,
        };
        let settings = WebhookSettings {
            folder: folder.path().to_owned(),
            receivers: Receivers {
                own: Some(receiver),
                hooks: HookKeys::default(),
            },
            egress,
            patience: Duration::from_mins(1),
            share: Share::default(),
            dialect: Dialect::default(),
        };
        let webhooks = Webhooks::open(&settings, &Authorities::read(None).unwrap()).unwrap();
        let ended = EventKind::SessionEnded {
            reason: "client closed".to_owned(),
            duration_ms: 1,
            stt_seconds: 0.0,
            tts_characters: 0,
        };
        webhooks.enqueue(&Event::now("a", None, ended)).await;
        let (mut connection, _) = listener.accept().await.unwrap();
        let taken = connection.read(&mut [0; 4_096]).await.unwrap();
        assert!(taken > 0);
        let answering = async {
            // `finish` is polled first.
            tokio::task::yield_now().await;
            let answer = b"HTTP/1.1 204 No Content\r\n\r\n";
            connection.write_all(answer).await.unwrap();
        };
        tokio::join!(biased; webhooks.finish(), answering);
        drop(webhooks);
        let (_, left) = Spool::open(
            folder.path().to_owned(),
            Bounds {
                count: MAX_WEBHOOKS,
                count_per_receiver: MAX_WEBHOOKS_PER_RECEIVER,
                bytes: MAX_BYTES,
                share: Share::default(),
            },
        )
        .unwrap();
        assert_eq!(left.len(), 0);
    }
}
