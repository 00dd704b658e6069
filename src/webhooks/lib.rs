//! Signed webhooks: what happened, told to whoever wants to know, at least once (protocol, sections 4 and 7). Each is on
//! disk before anybody relies on it ([`spool`]), and is delivered until its receiver has it or has been away too long
//! ([`queue`], [`delivery`]). What there is to tell is for others to say.

mod delivery;
mod notice;
mod queue;
mod rooms;
mod signature;
mod spool;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use reqwest::Url;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use delivery::Postman;
pub use notice::{Notice, NoticeEvent, RecordingFile, TransferOutcome};
pub use rooms::RoomEvents;
pub use spool::SpoolError;
use spool::{Bounds, Slip, Spool, Webhook};
use vivavoce_config::{HttpUrl, Secret, Settings};
use vivavoce_core::outgoing::Authorities;
use vivavoce_core::outgoing::reach::Reach;
use vivavoce_quotas::{FairQueue, Kind, Party, Share};
use vivavoce_telemetry::metrics;

/// The shortest secret that signs.
pub const MIN_SECRET_BYTES: usize = 16;
/// Where they wait, below the data folder.
const FOLDER: &str = "webhooks";
const COUNT: usize = 10_000;
const COUNT_OF_ONE: usize = 8_000;
const BYTES: u64 = 64 << 20;
/// Written at once: whoever brings more waits for their turn.
const WRITTEN_AT_ONCE: usize = 8;

/// For whom a webhook counts while it waits, and whether it is one of those about recordings, which have places of their
/// own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Source {
    party: Party,
    recording: bool,
}

/// Who gets a webhook: where, with whose signature, and how far away that may be.
#[derive(Clone, PartialEq, Eq)]
pub struct Receiver {
    /// Where to post.
    pub url: Url,
    /// What signs.
    pub secret: Secret,
    /// Which addresses it may have.
    pub reach: Reach,
}

impl fmt::Debug for Receiver {
    /// A URL may hold a secret in its path or query.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Receiver({})", self.url.host_str().unwrap_or_default())
    }
}

/// Where a webhook goes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Addressee {
    /// To the receiver that the settings name when it is delivered.
    Settings,
    /// To one of its own.
    Hook(HookAddress),
}

/// A receiver that is no setting. What signs, and how far away it may be, are settings all the same, as they are when it is
/// delivered.
#[derive(Clone, PartialEq, Eq)]
pub struct HookAddress {
    /// Where to post.
    pub url: Url,
    /// Whose own secret signs, if there is one ([`HookKeys`]).
    pub signer: Option<String>,
}

impl fmt::Debug for HookAddress {
    /// A URL may hold a secret in its path or query.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "HookAddress({})",
            self.url.host_str().unwrap_or_default()
        )
    }
}

/// What signs for receivers that are no settings.
#[derive(Debug, Clone, Default)]
pub struct HookKeys {
    /// By the signer.
    pub own: HashMap<String, Secret>,
    /// For everybody else.
    pub common: Option<Secret>,
    /// How far away they may be.
    pub reach: Reach,
}

impl HookKeys {
    /// The receiver at an address; `None` where nothing signs for it.
    fn receiver(&self, address: &HookAddress) -> Option<Receiver> {
        let own = address
            .signer
            .as_ref()
            .and_then(|signer| self.own.get(signer));
        Some(Receiver {
            url: address.url.clone(),
            secret: own.or(self.common.as_ref())?.clone(),
            reach: self.reach,
        })
    }
}

/// What is delivered one behind the other: everything for one URL; `None` is that of the settings.
type Lane = Option<Url>;

impl Addressee {
    fn lane(&self) -> Lane {
        match self {
            Self::Settings => None,
            Self::Hook(address) => Some(address.url.clone()),
        }
    }
}

/// What the settings say about webhooks.
#[derive(Debug, Clone)]
pub struct WebhookSettings {
    /// Where they wait.
    pub folder: PathBuf,
    /// Who is told about recordings and sessions, if anybody.
    pub receiver: Option<Receiver>,
    /// What signs for all others.
    pub hooks: HookKeys,
    /// How long each is tried, counted anew when the server starts.
    pub patience: Duration,
    /// What one party may have of the places.
    pub share: Share,
}

impl WebhookSettings {
    /// From the settings of the server, and the keys of its hooks.
    pub fn new(settings: &Settings, hooks: HookKeys) -> Self {
        let own = &settings.webhooks;
        let receiver = own.url.clone().zip(own.secret.clone());
        Self {
            folder: settings.storage.data_dir.join(FOLDER),
            receiver: receiver.map(|(HttpUrl(url), secret)| Receiver {
                url,
                secret,
                reach: reach(settings),
            }),
            hooks,
            patience: own.retry_seconds,
            share: Share::of(settings),
        }
    }
}

const fn reach(settings: &Settings) -> Reach {
    Reach {
        insecure: settings.webhooks.allow_insecure,
        private: settings.webhooks.allow_private,
    }
}

/// What is wrong with the settings of webhooks.
pub fn problems(settings: &Settings) -> Vec<String> {
    let own = &settings.webhooks;
    let mut problems = rooms::problems(settings);
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
        && let Err(error) = reach(settings).check(url)
    {
        let allow = "unless webhooks.allow_insecure, webhooks.allow_private say otherwise";
        problems.push(format!("webhooks.url: {error}, {allow}"));
    }
    problems
}

/// Where webhooks are handed in. Clones are the same.
#[derive(Debug, Clone)]
pub struct Webhooks {
    spool: Arc<Spool>,
    /// Whether the settings name a receiver.
    told: bool,
    /// As many as the spool may hold, so that a slip always has room.
    slips: mpsc::Sender<(String, Slip)>,
    /// Webhooks on their way to the disk.
    writing: TaskTracker,
    writers: FairQueue,
    /// Where they are written: sessions, and the threads that they live on, end before it does.
    runtime: Handle,
    closing: CancellationToken,
}

impl Webhooks {
    /// Opens the spool and begins to deliver what an earlier process has left in it. Blocks for as long as that takes to
    /// read; must be called in a runtime.
    pub fn open(settings: &WebhookSettings, authorities: &Authorities) -> io::Result<Self> {
        let bounds = Bounds {
            count: COUNT,
            count_of_one: COUNT_OF_ONE,
            bytes: BYTES,
            share: settings.share,
        };
        let (spool, found) = Spool::open(settings.folder.clone(), bounds)?;
        let spool = Arc::new(spool);
        let (slips, receiver) = mpsc::channel(2 * COUNT);
        let closing = CancellationToken::new();
        let postman = Postman::new(Arc::clone(&spool), settings, authorities)?;
        tokio::spawn(postman.run(found, receiver, closing.clone()));
        Ok(Self {
            spool,
            told: settings.receiver.is_some(),
            slips,
            writing: TaskTracker::new(),
            writers: FairQueue::new(WRITTEN_AT_ONCE, settings.share),
            runtime: Handle::current(),
            closing,
        })
    }

    /// Tells the receiver of the settings, if there is one. When this returns it will be told, whatever happens to the
    /// process. A full spool or disk is logged and counted here; there is nobody else whom it could be told.
    pub async fn tell(&self, notice: &Notice) {
        if !self.told {
            return;
        }
        match serde_json::to_string(notice) {
            Ok(body) => drop(
                self.post(
                    notice.event_id(),
                    Addressee::Settings,
                    notice.source(),
                    body,
                )
                .await,
            ),
            Err(error) => tracing::error!(%error, "a webhook cannot be written"),
        }
    }

    /// The same for whoever cannot wait; [`Self::finish`] waits instead.
    pub fn tell_later(&self, notice: Notice) {
        if self.told {
            let this = self.clone();
            self.writing
                .spawn_on(async move { this.tell(&notice).await }, &self.runtime);
        }
    }

    /// Sends `body` (JSON) to a receiver of somebody's own under this id. When this returns it will be told, whatever happens
    /// to the process.
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
        self.post(id, Addressee::Hook(to), source, body).await
    }

    async fn post(
        &self,
        id: uuid::Uuid,
        to: Addressee,
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
            Ok(slip) => {
                // Whatever is not delivered before the process ends is found by the next.
                let _ = self.slips.send((id, slip)).await;
                Ok(())
            }
            Err(error) => {
                metrics::webhook_lost(metrics::WebhookLoss::Spool);
                if matches!(error, SpoolError::Quota(_)) {
                    metrics::quota_refused(Kind::Webhooks.name());
                }
                tracing::error!(%error, "a webhook cannot be kept and is lost");
                Err(error)
            }
        }
    }

    /// Waits until everything that was handed in is on disk, and delivers nothing from then on.
    pub async fn finish(&self) {
        self.writing.close();
        self.writing.wait().await;
        self.closing.cancel();
    }
}
