//! Hooks: who is told, by the host that was called, that a telephone has joined a room (protocol, section 4). Which hold and
//! who may change them is decided in [`table`]; here they are kept, on disk or in Redis, so that a change is either made
//! and survives, or refused. What is told is written in [`announcement`], and sent by the registry.

pub mod announcement;
mod configured;
mod file;
mod host;
mod owners;
mod shared;
mod table;
mod url;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

pub use configured::Configured;
use file::HookFile;
pub use host::Host;
pub use owners::{CallOwners, TenantNumbers};
use shared::{Shared, SharedError};
use table::{Added, Change, Table};
pub use table::{Hook, HookError, Wish};
pub use url::LONGEST_URL;

use vivavoce_auth::{Access, TenantId};
use vivavoce_config::{Secret, Settings};

/// How often a change is decided anew because others make one meanwhile …
const MOST_ATTEMPTS: u64 = 32;
/// … after a pause by chance, of at most so much more each time: whoever lost once would lose to the same again.
const PAUSE_MS: u64 = 2;
/// How often servers that share their hooks look for changes of others: they agree within a second.
const LOOK: Duration = Duration::from_millis(400);
/// The longest pause after Redis did not answer; the first is twice as long as between looks, and each is twice the last.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What is wrong with the settings of hooks.
pub fn problems(settings: &Settings) -> Vec<String> {
    let mut problems = Configured::new(settings).err().unwrap_or_default();
    let redis = settings.redis.url.as_ref().and_then(shared::problem);
    problems.extend(redis.map(|problem| format!("redis.url: {problem}")));
    let sip = &settings.sip;
    if let Err(wrong) = TenantNumbers::read(sip.tenant_numbers.as_ref()) {
        let named = |problem| format!("sip.tenant_numbers: {problem}");
        problems.extend(wrong.into_iter().map(named));
    }
    if sip.tenant_numbers.is_some() && !settings.auth.required {
        problems.push(
            "sip.tenant_numbers: means nothing while auth.required is false: nobody asks whose a call is"
                .to_owned(),
        );
    }
    problems
}

/// The hooks of this server, or of all that share them. Clones are the same.
#[derive(Clone)]
pub struct Hooks(Arc<Inner>);

struct Inner {
    configured: Configured,
    /// What was last known; read without waiting for anybody.
    added: RwLock<Arc<Added>>,
    /// One change at a time.
    kept: Mutex<Kept>,
}

/// Where they are kept.
struct Kept {
    file: HookFile,
    /// Whether the file has been read.
    loaded: bool,
    shared: Option<Shared>,
    /// Of what was last known of the shared ones.
    version: String,
    /// Whether Redis has answered the last time.
    reached: bool,
}

/// What holds for a host: the hook, and whether one of the settings signs for it.
#[derive(Debug, Clone)]
pub struct Found {
    /// The hook.
    pub hook: Hook,
    /// Whether it is one of the settings.
    pub configured: bool,
}

impl Hooks {
    /// Hooks that are kept in a folder.
    pub fn in_folder(configured: Configured, folder: PathBuf) -> Self {
        Self::new(configured, folder, None)
    }

    /// Hooks that are shared through Redis; the folder holds what was last known. `tls` is used where the address asks for
    /// it. An error completes the sentence "redis.url …".
    pub fn in_redis(
        configured: Configured,
        folder: PathBuf,
        url: &Secret,
        tls: Arc<rustls::ClientConfig>,
    ) -> Result<Self, String> {
        Ok(Self::new(configured, folder, Some(Shared::new(url, tls)?)))
    }

    fn new(configured: Configured, folder: PathBuf, shared: Option<Shared>) -> Self {
        Self(Arc::new(Inner {
            configured,
            added: RwLock::default(),
            kept: Mutex::new(Kept {
                file: HookFile::new(folder),
                loaded: false,
                shared,
                version: String::new(),
                reached: true,
            }),
        }))
    }

    /// What the settings say.
    pub fn configured(&self) -> &Configured {
        &self.0.configured
    }

    /// What a caller may see.
    pub async fn shown(&self, access: &Access) -> Result<Vec<Hook>, HookError> {
        self.load().await?;
        let added = self.added();
        Ok(self.table(&added).shown(access))
    }

    /// The hook for a call to a host, as far as is known, by whose number was called.
    pub fn find(&self, host: &Host, number_of: Option<&TenantId>) -> Option<Found> {
        let added = self.added();
        let holding = self.table(&added).find_for(host, number_of);
        holding.map(|holding| Found {
            hook: holding.hook().clone(),
            configured: matches!(holding, table::Holding::Configured(_)),
        })
    }

    /// Adds or replaces hooks, all of them or none; gives what the caller sees then.
    pub async fn put(&self, access: &Access, wishes: Vec<Wish>) -> Result<Vec<Hook>, HookError> {
        let decide = |table: Table<'_>| table.put(access, wishes.clone());
        self.change(access, decide).await
    }

    /// Removes the hooks of these hosts, all of them or none; gives what the caller sees then.
    pub async fn remove(&self, access: &Access, hosts: &[String]) -> Result<Vec<Hook>, HookError> {
        let decide = |table: Table<'_>| table.remove(access, hosts);
        self.change(access, decide).await
    }

    async fn change(
        &self,
        access: &Access,
        decide: impl Fn(Table<'_>) -> Result<Change, HookError>,
    ) -> Result<Vec<Hook>, HookError> {
        let mut kept = self.0.kept.lock().await;
        self.load_into(&mut kept).await?;
        for attempt in 0..MOST_ATTEMPTS {
            sleep(Duration::from_millis(fastrand::u64(0..=attempt * PAUSE_MS))).await;
            if kept.shared.is_some() {
                self.look(&mut kept).await.map_err(storage)?;
            }
            let added = self.added();
            let change = decide(self.table(&added))?;
            let after = added.with(&change);
            if change.is_empty() || kept.make(&change, &after).await? {
                self.know(after);
                let added = self.added();
                return Ok(self.table(&added).shown(access));
            }
        }
        Err(storage("others keep changing them; try again"))
    }

    /// Looks for changes of others until it is dropped. Where nothing is shared there are none.
    pub async fn watch(&self) {
        let mut pause = LOOK;
        loop {
            sleep(pause).await;
            let mut kept = self.0.kept.lock().await;
            if kept.shared.is_none() {
                return;
            }
            pause = match self.look(&mut kept).await {
                Ok(()) => LOOK,
                Err(_) => (pause * 2)
                    .min(LONGEST_PAUSE)
                    .mul_f64(1.0 - 0.2 * fastrand::f64()),
            };
        }
    }

    /// Reads what is kept, for the first time. Redis that does not answer is no failure: what was last known holds.
    pub async fn open(&self) {
        let mut kept = self.0.kept.lock().await;
        if let Err(error) = self.load_into(&mut kept).await {
            tracing::error!(%error, "hooks that were added do not hold");
        }
        if kept.shared.is_some() {
            let _said = self.look(&mut kept).await;
        }
    }

    async fn load(&self) -> Result<(), HookError> {
        // Whoever only wants to see them does not wait for a change that is under way.
        let Ok(mut kept) = self.0.kept.try_lock() else {
            return Ok(());
        };
        self.load_into(&mut kept).await
    }

    async fn load_into(&self, kept: &mut Kept) -> Result<(), HookError> {
        if kept.loaded {
            return Ok(());
        }
        let file = kept.file.clone();
        let loaded = blocking(move || file.load()).await;
        match loaded {
            Ok(added) => self.know(added),
            // The file is not what counts.
            Err(error) if kept.shared.is_some() => {
                tracing::warn!(%error, "what was last known of the hooks cannot be read");
            }
            Err(error) => return Err(storage(error)),
        }
        kept.loaded = true;
        Ok(())
    }

    /// Learns what others have changed.
    async fn look(&self, kept: &mut Kept) -> Result<(), SharedError> {
        let looked = self.look_quietly(kept).await;
        match &looked {
            Ok(()) if !kept.reached => tracing::info!("Redis answers again: hooks are shared"),
            Err(error) if kept.reached => {
                tracing::warn!(%error, "Redis does not answer: hooks stay as they were last known");
            }
            _ => {}
        }
        kept.reached = looked.is_ok();
        looked
    }

    async fn look_quietly(&self, kept: &mut Kept) -> Result<(), SharedError> {
        let Some(shared) = &mut kept.shared else {
            return Ok(());
        };
        let known = self.added();
        if shared.version().await? == kept.version && (!kept.version.is_empty() || known.is_empty())
        {
            return Ok(());
        }
        let mut there = shared.load().await?;
        if there.version.is_empty() && !known.is_empty() {
            // Redis has lost them, or never had any.
            let all = Change {
                put: known.hooks().cloned().collect(),
                removed: Vec::new(),
            };
            if let Some(version) = shared.change("", &all).await? {
                tracing::info!(
                    hooks = all.put.len(),
                    "Redis holds no hooks: those that were last known are put there"
                );
                kept.version = version;
                return Ok(());
            }
            there = shared.load().await?;
        }
        kept.version = there.version;
        if there.added != *known {
            kept.remember(&there.added).await;
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

    fn table<'a>(&'a self, added: &'a Added) -> Table<'a> {
        Table {
            configured: &self.0.configured,
            added,
        }
    }
}

impl Kept {
    /// Makes a change where it counts; `false` where others were faster.
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

    async fn save(&self, added: &Added) -> io::Result<()> {
        let (file, added) = (self.file.clone(), added.clone());
        blocking(move || file.save(&added)).await
    }

    /// What is shared is safe where it is shared.
    async fn remember(&self, added: &Added) {
        if let Err(error) = self.save(added).await {
            tracing::warn!(%error, "what is known of the hooks cannot be kept for times without Redis");
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
