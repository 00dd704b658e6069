//! Call hooks: which URL is notified when a telephone participant has joined a room, selected by the SIP host that was
//! called (protocol, section 4). Delivery is left to `vivavoce_webhooks`.
//!
//! # The rules
//!
//! Hooks come from two sources. *Configured* hooks (`sip.hooks_json`) cannot be changed at run time; *added* hooks are
//! managed through `/sip/hooks`. [`table`] decides which one applies and who may change it: a tenant may only name hosts
//! that it was granted and that nobody else has, and its hook does not apply to calls to numbers of another tenant. The
//! tenant of the hook, or of the called number, owns the call and its room ([`CallOwners`]).
//!
//! # Storage
//!
//! Added hooks are a file in the cache folder, replaced atomically, or a Redis hash that several servers share. Changes
//! that arrive while others are being stored wait and are stored together: there is one write at a time, whatever the
//! number of requests, and no more than some megabytes a second. A change is acknowledged once it is stored. With
//! Redis, changes are applied only to the version they were based on and retried if another server was faster; all servers
//! poll for changes and agree within a second. While Redis is unavailable, the last known hooks apply and cannot be
//! changed. Lookups read an in-memory snapshot and never wait.
//!
//! There are at most 10,000 added hooks, 1,000 per tenant.
//!
//! # Notifications
//!
//! [`announcement`] derives the notification from the room's event: the numbers, the participant and the SIP headers
//! that LiveKit's conventions put into its attributes. Those headers are chosen by the caller, so they are parsed
//! defensively ([`Host::of_header`], RFC 3261 section 20.10).
//!
//! # Example
//!
//! ```
//! use vivavoce_hooks::Host;
//!
//! let to = "\"Support\" <sip:100@Gateway.Example.:5060;user=phone>;tag=1";
//! assert_eq!(Host::of_header(to).unwrap().as_str(), "gateway.example");
//! // Ambiguous or missing hosts select no hook.
//! assert!(Host::of_header("tel:+14155550100").is_none());
//! ```

pub mod announcement;
mod configured;
mod file;
mod host;
mod owners;
mod shared;
mod table;
mod url;

use std::io;
#[cfg(test)]
use std::path::PathBuf;
use std::sync::{Arc, Mutex as Lock, PoisonError, RwLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Mutex, oneshot};
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::{Instant, sleep, sleep_until};

pub use configured::Configured;
pub use file::HookFile;
pub use host::Host;
pub use owners::{CallOwners, TenantNumbers};
use shared::Shared;
use table::{Added, Change, Table};
pub use table::{Hook, HookError, RequestedHook};
pub use url::MAX_URL_BYTES;
/// What goes to the receiver of the settings, which is described beside the notification of hooks.
pub use vivavoce_webhooks::Event as WebhookEvent;

use vivavoce_auth::{Access, TenantId};
use vivavoce_config::{Secret, Settings};
use vivavoce_core::backoff::Backoff;
use vivavoce_replicas::{self as replicas, SharedError};

/// How often a change is retried because another server was faster …
const MAX_ATTEMPTS: u64 = 32;
/// … after a random pause whose upper bound grows by this much each time, so that contenders spread out.
const PAUSE_MS: u64 = 2;
/// The polling interval for changes by other servers: they agree within a second.
const POLL_INTERVAL: Duration = Duration::from_millis(400);
/// The file is written at this rate at most, so that a caller who changes a hook again and again does not keep the disk
/// busy with everybody's; and the longest pause that follows from it.
const BYTES_PER_SECOND: f64 = (4 << 20) as f64;
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The pauses after Redis failed to answer.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(800), Duration::from_secs(2), 0.2);

/// Problems with the settings of hooks.
pub fn problems(settings: &Settings) -> Vec<String> {
    let mut problems = Configured::new(settings).err().unwrap_or_default();
    let redis = settings.redis.url.as_ref().and_then(replicas::problem);
    problems.extend(redis.map(|problem| format!("redis.url: {problem}")));
    let sip = &settings.sip;
    if let Err(wrong) = TenantNumbers::read(sip.tenant_numbers.as_ref()) {
        let named = |problem| format!("sip.tenant_numbers: {problem}");
        problems.extend(wrong.into_iter().map(named));
    }
    if sip.tenant_numbers.is_some() && !settings.auth.required {
        problems.push("sip.tenant_numbers: has no effect while auth.required is false".to_owned());
    }
    problems
}

/// The hooks of this server, or of all servers that share them. Clones share the same state.
#[derive(Clone)]
pub struct Hooks(Arc<Inner>);

struct Inner {
    configured: ArcSwap<Configured>,
    /// The last known state, readable without waiting.
    added: RwLock<Arc<Added>>,
    /// Changes that wait to be stored: one of each request in progress.
    waiting: Lock<Vec<Waiting>>,
    /// Held by whoever stores the waiting changes, its own and those of others.
    store: Mutex<Storage>,
}

/// A requested change, and who is told the outcome: what the caller may see afterwards.
struct Waiting {
    access: Access,
    wish: Wish,
    reply: oneshot::Sender<Result<Vec<Hook>, HookError>>,
}

/// What is to be changed.
enum Wish {
    Put(Vec<RequestedHook>),
    Remove(Vec<String>),
}

/// Where the hooks are stored.
struct Storage {
    file: HookFile,
    /// When the file may be written again.
    next_write: Instant,
    /// How often it was written.
    #[cfg(test)]
    writes: u64,
    /// Whether the file has been read.
    loaded: bool,
    shared: Option<Shared>,
    /// The version of the last known shared state.
    version: String,
    /// Whether Redis answered the last request.
    reached: bool,
}

/// The hook for a host.
#[derive(Debug, Clone)]
pub struct Found {
    /// The hook.
    pub hook: Hook,
    /// Whether it is a configured one.
    pub configured: bool,
}

impl Hooks {
    /// Hooks stored in a folder.
    #[cfg(test)]
    pub(crate) fn in_folder(configured: Configured, folder: PathBuf) -> Self {
        Self::in_file(configured, HookFile::new(folder))
    }

    /// Hooks stored in a file.
    pub fn in_file(configured: Configured, file: HookFile) -> Self {
        Self::new(configured, file, None)
    }

    /// Hooks shared through Redis; the file stores the last known state. `tls` is used if the URL asks for it. An
    /// error completes the sentence "redis.url …".
    pub fn in_redis(
        configured: Configured,
        file: HookFile,
        url: &Secret,
        tls: Arc<rustls::ClientConfig>,
    ) -> Result<Self, String> {
        Ok(Self::new(configured, file, Some(Shared::new(url, tls)?)))
    }

    fn new(configured: Configured, file: HookFile, shared: Option<Shared>) -> Self {
        Self(Arc::new(Inner {
            configured: ArcSwap::from_pointee(configured),
            added: RwLock::default(),
            waiting: Lock::default(),
            store: Mutex::new(Storage {
                file,
                next_write: Instant::now(),
                #[cfg(test)]
                writes: 0,
                loaded: false,
                shared,
                version: String::new(),
                reached: true,
            }),
        }))
    }

    /// What the settings say about hooks.
    pub fn configured(&self) -> Arc<Configured> {
        self.0.configured.load_full()
    }

    /// The settings say this about hooks from now on.
    pub fn reload(&self, configured: Configured) {
        self.0.configured.store(Arc::new(configured));
    }

    /// The hooks that a caller may see.
    pub async fn shown(&self, access: &Access) -> Result<Vec<Hook>, HookError> {
        self.load().await?;
        let (configured, added) = (self.configured(), self.added());
        Ok(Table::of(&configured, &added).shown(access))
    }

    /// The hook for a call to a host, from the last known state. `number_of` is the tenant that owns the called number.
    pub fn find(&self, host: &Host, number_of: Option<&TenantId>) -> Option<Found> {
        let (configured, added) = (self.configured(), self.added());
        let holding = Table::of(&configured, &added).find_for(host, number_of);
        holding.map(|holding| Found {
            hook: holding.hook().clone(),
            configured: matches!(holding, table::Applicable::Configured(_)),
        })
    }

    /// Adds or replaces hooks atomically; returns what the caller may see afterwards.
    pub async fn put(
        &self,
        access: &Access,
        requests: Vec<RequestedHook>,
    ) -> Result<Vec<Hook>, HookError> {
        self.change(access, Wish::Put(requests)).await
    }

    /// Removes the hooks of these hosts atomically; returns what the caller may see afterwards.
    pub async fn remove(&self, access: &Access, hosts: &[String]) -> Result<Vec<Hook>, HookError> {
        self.change(access, Wish::Remove(hosts.to_vec())).await
    }

    async fn change(&self, access: &Access, wish: Wish) -> Result<Vec<Hook>, HookError> {
        let (reply, mut outcome) = oneshot::channel();
        let access = access.clone();
        self.waiting().push(Waiting {
            access,
            wish,
            reply,
        });
        let mut store = self.0.store.lock().await;
        // Whoever held it before may have stored this change, too.
        if let Ok(outcome) = outcome.try_recv() {
            return outcome;
        }
        // Those that arrive during the pause are stored with it.
        sleep_until(store.next_write).await;
        let waiting = std::mem::take(&mut *self.waiting());
        self.store_all(&mut store, waiting).await;
        drop(store);
        outcome
            .await
            .unwrap_or_else(|_| Err(storage("the change was interrupted; try again")))
    }

    /// Decides about changes one after the other, stores them together, and tells everybody the outcome.
    async fn store_all(&self, store: &mut Storage, waiting: Vec<Waiting>) {
        let (decided, stored) = self.decide_and_store(store, &waiting).await;
        let (configured, added) = (self.configured(), self.added());
        for (Waiting { access, reply, .. }, decided) in waiting.into_iter().zip(decided) {
            let outcome = decided.and_then(|()| stored.clone());
            let shown = outcome.map(|()| Table::of(&configured, &added).shown(&access));
            // Fails if nobody waits any more.
            let _told = reply.send(shown);
            yield_now().await;
        }
    }

    /// Returns the decision about each change, and whether those that were not refused are stored.
    async fn decide_and_store(
        &self,
        store: &mut Storage,
        waiting: &[Waiting],
    ) -> (Vec<Result<(), HookError>>, Result<(), HookError>) {
        let mut decisions = vec![Ok(()); waiting.len()];
        if let Err(error) = self.load_into(store).await {
            return (decisions, Err(error));
        }
        for attempt in 0..MAX_ATTEMPTS {
            sleep(Duration::from_millis(fastrand::u64(0..=attempt * PAUSE_MS))).await;
            if store.shared.is_some()
                && let Err(error) = self.look(store).await
            {
                return (decisions, Err(storage(error)));
            }
            let mut after = Added::clone(&self.added());
            let mut changes = Vec::new();
            decisions.clear();
            for one in waiting {
                let decided = self.decide(&after, one);
                decisions.push(decided.map(|change| {
                    after.apply(&change);
                    changes.push(change);
                }));
                // A decision takes a while where there are many hooks.
                yield_now().await;
            }
            let all = Change::of_all(changes);
            if all.is_empty() {
                return (decisions, Ok(()));
            }
            match store.make(&all, &after).await {
                Ok(true) => {
                    self.know(after);
                    return (decisions, Ok(()));
                }
                Ok(false) => {}
                Err(error) => return (decisions, Err(error)),
            }
        }
        let error = storage("other servers keep changing them; try again");
        (decisions, Err(error))
    }

    fn decide(&self, added: &Added, waiting: &Waiting) -> Result<Change, HookError> {
        let configured = self.configured();
        let table = Table::of(&configured, added);
        match &waiting.wish {
            Wish::Put(requests) => table.put(&waiting.access, requests.clone()),
            Wish::Remove(hosts) => table.remove(&waiting.access, hosts),
        }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<Waiting>> {
        self.0
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls for changes by other servers until it is dropped. Returns immediately if nothing is shared.
    pub async fn watch(&self) {
        let mut pause = POLL_INTERVAL;
        let mut failures = 0;
        loop {
            sleep(pause).await;
            let mut store = self.0.store.lock().await;
            if store.shared.is_none() {
                return;
            }
            if self.look(&mut store).await.is_ok() {
                (pause, failures) = (POLL_INTERVAL, 0);
            } else {
                pause = BACKOFF.delay(failures, fastrand::f64());
                failures = failures.saturating_add(1);
            }
        }
    }

    /// Loads the stored hooks. If Redis does not answer, the last known state is used.
    pub async fn open(&self) {
        let mut store = self.0.store.lock().await;
        if let Err(error) = self.load_into(&mut store).await {
            tracing::error!(%error, "the hooks added through the API cannot be loaded and are inactive");
        }
        if store.shared.is_some() {
            let _said = self.look(&mut store).await;
        }
        let (configured, added) = (self.configured(), self.added());
        let idle = Table::of(&configured, &added).not_granted();
        if idle > 0 {
            tracing::warn!(
                hooks = idle,
                "hooks that tenants have added apply only to calls to their own numbers: the settings do not give them the hosts (sip.tenant_hosts, sip.claim_unowned_hosts)"
            );
        }
    }

    async fn load(&self) -> Result<(), HookError> {
        // Readers do not wait for a change in progress.
        let Ok(mut store) = self.0.store.try_lock() else {
            return Ok(());
        };
        self.load_into(&mut store).await
    }

    async fn load_into(&self, store: &mut Storage) -> Result<(), HookError> {
        if store.loaded {
            return Ok(());
        }
        let file = store.file.clone();
        let loaded = blocking(move || file.load()).await;
        match loaded {
            Ok(added) => self.know(added),
            // Redis is authoritative, not the file.
            Err(error) if store.shared.is_some() => {
                tracing::warn!(%error, "the last known state of the shared hooks cannot be read");
            }
            Err(error) => return Err(storage(error)),
        }
        store.loaded = true;
        Ok(())
    }

    /// Fetches changes made by others.
    async fn look(&self, store: &mut Storage) -> Result<(), SharedError> {
        let looked = self.look_quietly(store).await;
        match &looked {
            Ok(()) if !store.reached => tracing::info!("Redis answers again; hooks are shared"),
            Err(error) if store.reached => {
                tracing::warn!(%error, "Redis does not answer; using the last known hooks");
            }
            _ => {}
        }
        store.reached = looked.is_ok();
        looked
    }

    async fn look_quietly(&self, store: &mut Storage) -> Result<(), SharedError> {
        let Some(shared) = &mut store.shared else {
            return Ok(());
        };
        let known = self.added();
        if shared.version().await? == store.version
            && (!store.version.is_empty() || known.is_empty())
        {
            return Ok(());
        }
        let mut there = shared.load().await?;
        if there.version.is_empty() && !known.is_empty() {
            // Redis has lost the hooks, or never had any.
            let all = Change {
                put: known.hooks().cloned().collect(),
                removed: Vec::new(),
            };
            if let Some(version) = shared.change("", &all).await? {
                tracing::info!(
                    hooks = all.put.len(),
                    "Redis has no hooks; writing the last known ones to it"
                );
                store.version = version;
                return Ok(());
            }
            there = shared.load().await?;
        }
        store.version = there.version;
        if there.added != *known {
            store.remember(&there.added).await;
            self.know(there.added);
        }
        Ok(())
    }

    fn know(&self, added: Added) {
        let mut known = self.0.added.write().unwrap_or_else(PoisonError::into_inner);
        *known = Arc::new(added);
    }

    fn added(&self) -> Arc<Added> {
        let known = self.0.added.read();
        Arc::clone(&known.unwrap_or_else(PoisonError::into_inner))
    }
}

impl Storage {
    /// Applies a change to the authoritative store; `false` if another server was faster.
    async fn make(&mut self, change: &Change, after: &Added) -> Result<bool, HookError> {
        let Some(shared) = &mut self.shared else {
            self.save(after).await.map_err(storage)?;
            return Ok(true);
        };
        let made = shared.change(&self.version, change).await;
        let Some(version) = made.map_err(storage)? else {
            return Ok(false);
        };
        self.version = version;
        self.remember(after).await;
        Ok(true)
    }

    async fn save(&mut self, added: &Added) -> io::Result<()> {
        let (file, added) = (self.file.clone(), added.clone());
        let bytes = blocking(move || file.save(&added)).await?;
        #[cfg(test)]
        {
            self.writes += 1;
        }
        let pause = Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND);
        self.next_write = Instant::now() + pause.min(LONGEST_PAUSE);
        Ok(())
    }

    /// Stores the last known shared state on disk; a failure is harmless as long as Redis answers.
    async fn remember(&mut self, added: &Added) {
        if let Err(error) = self.save(added).await {
            tracing::warn!(%error, "the state of the shared hooks cannot be written to disk, where it would be used while Redis is unavailable");
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    spawn_blocking(work).await.map_err(io::Error::other)?
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "it is what errors are mapped with"
)]
fn storage(error: impl ToString) -> HookError {
    HookError::Storage(error.to_string())
}

#[cfg(test)]
mod tests;
