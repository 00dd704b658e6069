//! Uploads finished recordings, oldest first and a few concurrently, until the store has them: what an unavailable
//! store has not accepted waits in its journal, also for the next process. An unavailable store is probed with one
//! upload at a time; after an authorisation failure everything waits until the credentials have been fixed.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Tell;
use super::joining::{Joined, join};
use super::journal::{FinishedJournal, Journals};
use super::recording_location::RecordingLocation;
use super::upload::upload;
use vivavoce_auth::TenantId;
use vivavoce_core::backoff::Backoff;
use vivavoce_quotas::{Party, Permit, Quota, Share, Tally};
use vivavoce_seams::{RecordingStore, StoreError};
use vivavoce_telemetry::metrics;
use vivavoce_webhooks::{Event, EventKind, RecordingFile, Webhooks};

/// Concurrent uploads, of which one party may have four; one while the store is unavailable.
const MAX_CONCURRENT: usize = 5;
/// The pauses after failures.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_mins(5), 0.3);
/// The interval at which the folder is listed anyway, and the minimum interval.
const LOOK: Duration = Duration::from_secs(5);
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Exists in a journal that the store will never accept, and contains the reason.
const GIVEN_UP: &str = "given_up";
/// Exists beside the journals when somebody has asked for everything to be retried now.
const RETRY: &str = ".retry";

/// Asks the uploader of this data folder, running now or later, to retry everything at once, including what it has
/// given up. Returns how many journals had been given up. Blocks.
pub fn retry(journals: &Path) -> io::Result<usize> {
    let mut given_up = 0;
    for entry in fs::read_dir(journals)? {
        match fs::remove_file(entry?.path().join(GIVEN_UP)) {
            Ok(()) => given_up += 1,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) => {}
            Err(error) => return Err(error),
        }
    }
    fs::write(journals.join(RETRY), [])?;
    Ok(given_up)
}

/// Why the upload of a journal was given up, if it was. Blocks.
pub fn given_up(folder: &Path) -> Option<String> {
    fs::read_to_string(folder.join(GIVEN_UP)).ok()
}

/// The uploader.
pub struct Uploader {
    journals: Journals,
    store: Arc<dyn RecordingStore>,
    prefix: String,
    webhooks: Option<Webhooks>,
    waiting: HashMap<String, Waiting>,
    /// The round-robin order of parties.
    turns: VecDeque<Party>,
    /// Uploads in progress, by party.
    tally: Tally,
    quota: Option<Quota>,
    /// See [`super::Recordings::tell`].
    told: Option<Tell>,
    outage: Option<Outage>,
    /// The last attempt to list the journals failed.
    blind: bool,
}

/// A journal that waits.
#[derive(Debug)]
struct Waiting {
    /// The party whose turn it waits for.
    party: Party,
    _counted: Option<Permit>,
    /// Its position among waiting journals, by age.
    order: usize,
    in_progress: bool,
    failures: u32,
    due: Option<Instant>,
}

/// The store accepts nothing at present.
#[derive(Debug)]
struct Outage {
    failures: u32,
    until: Instant,
    /// The kind of error that was logged last.
    said: std::mem::Discriminant<StoreError>,
}

/// A finished attempt.
struct Ended {
    name: String,
    /// `None` if the journal was empty or could not be finished.
    journal: Option<FinishedJournal>,
    kept: Result<Kept, StoreError>,
}

/// What has become of a finished recording.
enum Kept {
    /// It is in the store.
    Stored,
    /// The part that it follows is not there yet.
    Waits,
}

impl Uploader {
    /// An uploader of these journals.
    pub fn new(
        journals: Journals,
        store: Arc<dyn RecordingStore>,
        prefix: String,
        webhooks: Option<Webhooks>,
    ) -> Self {
        Self {
            journals,
            store,
            prefix,
            webhooks,
            waiting: HashMap::new(),
            turns: VecDeque::new(),
            tally: Tally::new(MAX_CONCURRENT as u64, Share::default()),
            quota: None,
            told: None,
            outage: None,
            blind: false,
        }
    }

    /// Counts waiting recordings.
    pub fn counting(self, quota: Option<Quota>) -> Self {
        Self { quota, ..self }
    }

    /// Tells what has become of recordings.
    pub fn telling(self, told: Option<Tell>) -> Self {
        Self { told, ..self }
    }

    /// Runs until `closing`, and from then on as long as uploads succeed at once.
    pub async fn run(mut self, closing: CancellationToken) {
        let mut in_progress = JoinSet::new();
        let (mut look, mut looked) = (true, Instant::now());
        loop {
            if look {
                self.look().await;
                looked = Instant::now();
            }
            let now = Instant::now();
            while let Some(name) = self.next(now) {
                in_progress.spawn(self.attempt(name));
            }
            if closing.is_cancelled() && in_progress.is_empty() {
                return;
            }
            let next_look = (looked + LOOK).saturating_duration_since(now);
            let patience = self.patience(now).min(next_look);
            // The end of an upload does not change what is in the folder otherwise.
            look = false;
            let may_look = looked + LOOK_PAUSE;
            tokio::select! {
                Some(ended) = in_progress.join_next() => match ended {
                    Ok(ended) => self.ended(ended).await,
                    // Uploads do not panic; if one did, its journal would wait for the next process.
                    Err(error) => tracing::error!(%error, "an upload task panicked"),
                },
                () = self.journals.ends() => {
                    tokio::time::sleep_until(may_look).await;
                    look = true;
                }
                () = closing.cancelled(), if !closing.is_cancelled() => look = true,
                () = tokio::time::sleep(patience) => look = true,
            }
        }
    }

    /// Lists the journals.
    async fn look(&mut self) {
        let journals = self.journals.clone();
        let known: HashSet<String> = self.waiting.keys().cloned().collect();
        let looked = blocking(move || {
            let root = journals.folder();
            let wanted = fs::remove_file(root.join(RETRY)).is_ok();
            let mut there = journals.ended()?;
            there.retain(|name| given_up(&root.join(name)).is_none());
            let oldest = there
                .first()
                .and_then(|name| fs::metadata(root.join(name)).ok()?.modified().ok());
            // The owner is read from the journal once.
            let there = there.into_iter().map(|name| {
                let party = (!known.contains(&name)).then(|| owner(&journals, &name));
                (name, party)
            });
            Ok((there.collect::<Vec<_>>(), oldest, wanted))
        });
        match looked.await {
            Ok((there, oldest, wanted)) => {
                self.blind = false;
                let names: HashSet<&str> = there.iter().map(|(name, _)| name.as_str()).collect();
                self.waiting
                    .retain(|name, waiting| waiting.in_progress || names.contains(name.as_str()));
                for (order, (name, party)) in there.into_iter().enumerate() {
                    self.waits(name, party, order);
                }
                self.forget_turns();
                if wanted {
                    self.outage = None;
                    self.waiting
                        .values_mut()
                        .for_each(|waiting| waiting.due = None);
                }
                let age = oldest.and_then(|oldest| SystemTime::now().duration_since(oldest).ok());
                metrics::recordings_waiting(self.waiting.len(), age.unwrap_or_default());
            }
            Err(error) if !self.blind => {
                self.blind = true;
                tracing::warn!(%error, "the journals of recordings cannot be listed");
            }
            Err(_) => {}
        }
    }

    fn waits(&mut self, name: String, party: Option<Party>, order: usize) {
        match self.waiting.entry(name) {
            Entry::Occupied(mut known) => known.get_mut().order = order,
            Entry::Vacant(location) => {
                let party = party.unwrap_or(NOBODY);
                location.insert(Waiting {
                    _counted: self.quota.as_ref().map(|quota| quota.hold(&party)),
                    party,
                    order,
                    in_progress: false,
                    failures: 0,
                    due: None,
                });
            }
        }
    }

    /// Updates the round-robin order: parties with waiting journals stay, new ones are added at the end.
    fn forget_turns(&mut self) {
        let mut with: HashSet<&Party> = self.waiting.values().map(|one| &one.party).collect();
        self.turns.retain(|party| with.remove(party));
        let new: Vec<Party> = with.into_iter().cloned().collect();
        self.turns.extend(new);
    }

    /// The oldest journal that may be uploaded now, of the party whose turn it is.
    fn next(&mut self, now: Instant) -> Option<String> {
        let in_progress = self
            .waiting
            .values()
            .filter(|waiting| waiting.in_progress)
            .count();
        let allowed = match &self.outage {
            Some(outage) if outage.until > now => 0,
            Some(_) => 1,
            None => MAX_CONCURRENT,
        };
        if in_progress >= allowed {
            return None;
        }
        let ready =
            |waiting: &Waiting| !waiting.in_progress && waiting.due.is_none_or(|due| due <= now);
        let mut first: HashMap<&Party, (usize, &String)> = HashMap::new();
        for (name, waiting) in self.waiting.iter().filter(|(_, waiting)| ready(waiting)) {
            let first = first.entry(&waiting.party).or_insert((waiting.order, name));
            *first = (*first).min((waiting.order, name));
        }
        let may = |party: &Party| first.contains_key(party) && self.tally.check(party, 1).is_ok();
        let at = self.turns.iter().position(may)?;
        let name = first.get(self.turns.get(at)?)?.1.clone();
        let party = self.turns.remove(at)?;
        self.tally.hold(&party, 1);
        self.turns.push_back(party);
        self.waiting.get_mut(&name)?.in_progress = true;
        Some(name)
    }

    /// How long until something can start, if nothing else happens.
    fn patience(&self, now: Instant) -> Duration {
        let outage = self.outage.as_ref().map(|outage| outage.until);
        let idle = self.waiting.values().filter(|waiting| !waiting.in_progress);
        let due = idle.filter_map(|waiting| waiting.due);
        let next = due.chain(outage).filter(|&at| at > now).min();
        next.map_or(LOOK, |at| at.saturating_duration_since(now).min(LOOK))
    }

    fn attempt(&self, name: String) -> impl Future<Output = Ended> + Send + use<> {
        let (journals, store) = (self.journals.clone(), Arc::clone(&self.store));
        let (prefix, webhooks) = (self.prefix.clone(), self.webhooks.clone());
        async move {
            let finish = name.clone();
            let finished = blocking(move || journals.finish(&finish)).await;
            let (journal, kept) = match finished {
                Ok(Some(journal)) => match join(&*store, &prefix, journal).await {
                    Ok(Joined::Whole(journal)) => {
                        let kept = keep(&*store, &prefix, webhooks.as_ref(), &journal).await;
                        (Some(*journal), kept.map(|()| Kept::Stored))
                    }
                    // Whoever has joined it has told of it.
                    Ok(Joined::Stored(journal)) => {
                        let removed = blocking(move || journal.remove()).await;
                        (None, removed.map(|()| Kept::Stored).map_err(StoreError::Io))
                    }
                    Ok(Joined::Waits) => (None, Ok(Kept::Waits)),
                    Err(error) => (None, Err(error)),
                },
                Ok(None) => (None, Ok(Kept::Stored)),
                Err(error) => (None, Err(StoreError::Io(error))),
            };
            Ended {
                name,
                journal,
                kept,
            }
        }
    }

    async fn ended(&mut self, ended: Ended) {
        let Ended {
            name,
            journal,
            kept,
        } = ended;
        let failures = match self.waiting.get_mut(&name) {
            Some(waiting) => {
                waiting.in_progress = false;
                self.tally.release(&waiting.party, 1);
                waiting.failures += 1;
                waiting.failures
            }
            None => 1,
        };
        match (kept, journal) {
            (Ok(Kept::Waits), _) => {
                tracing::debug!(journal = name, "a recording waits for the part before it");
                if let Some(waiting) = self.waiting.get_mut(&name) {
                    waiting.due = Some(Instant::now() + pause(failures));
                }
            }
            (Ok(Kept::Stored), journal) => {
                self.waiting.remove(&name);
                if let Some(journal) = journal {
                    if let Some(tell) = &self.told {
                        tell(&journal.metadata, Ok(()));
                    }
                    self.back();
                    metrics::recording_stored();
                    tracing::info!(journal = name, "recording stored");
                }
            }
            (Err(error @ StoreError::Exists), Some(journal)) => {
                self.back();
                self.give_up(&name, &journal, &error).await;
            }
            (Err(error), _) => {
                metrics::recording_upload_failed();
                let pause = pause(failures);
                if is_outage(&error) {
                    self.away(&error);
                } else {
                    tracing::warn!(journal = name, %error, "a recording could not be uploaded; retrying later");
                    if let Some(waiting) = self.waiting.get_mut(&name) {
                        waiting.due = Some(Instant::now() + pause);
                    }
                }
            }
        }
    }

    /// Logs once that the store is unavailable and why, until that changes.
    fn away(&mut self, error: &StoreError) {
        let kind = std::mem::discriminant(error);
        let before = self.outage.as_ref();
        if before.is_none_or(|outage| outage.said != kind) {
            tracing::error!(store = self.store.slug(), %error, "the store is unavailable; recordings wait on local disk");
        }
        let failures = before.map_or(0, |outage| outage.failures) + 1;
        let asked = match error {
            StoreError::Unavailable { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        let pause = pause(failures).max(asked.min(BACKOFF.longest));
        self.outage = Some(Outage {
            failures,
            until: Instant::now() + pause,
            said: kind,
        });
    }

    fn back(&mut self) {
        if self.outage.take().is_some() {
            tracing::info!(store = self.store.slug(), "the store is available again");
        }
    }

    /// The journal stays where it is, so that nothing is lost: somebody has to look at it.
    async fn give_up(&mut self, name: &str, journal: &FinishedJournal, error: &StoreError) {
        tracing::error!(journal = %journal.folder.display(), %error, "a recording cannot be uploaded and is kept on local disk");
        metrics::recording_upload_failed();
        let message = error.to_string();
        let written = tokio::fs::write(journal.folder.join(GIVEN_UP), &message).await;
        if let Err(error) = written {
            tracing::warn!(journal = name, %error, "could not record that an upload was given up; it will be attempted again");
        }
        self.waiting.remove(name);
        if let Some(tell) = &self.told {
            tell(&journal.metadata, Err(message.clone()));
        }
        if let Some(webhooks) = &self.webhooks {
            let file = sound(&self.prefix, journal);
            let failed = EventKind::RecordingFailed { file, message };
            webhooks.enqueue(&event(journal, failed)).await;
        }
    }
}

/// The party of recordings without a tenant.
const NOBODY: Party = Party::Address(IpAddr::V4(Ipv4Addr::UNSPECIFIED));

/// The owner of a journal. Blocks.
fn owner(journals: &Journals, name: &str) -> Party {
    let metadata = journals.look_into(name).ok().flatten();
    let tenant = metadata.and_then(|metadata| TenantId::new(&metadata.tenant?).ok());
    tenant.map_or(NOBODY, Party::Tenant)
}

/// Uploads a journal, reports the event and removes the journal. If the process dies in between, the event is reported
/// again.
async fn keep(
    store: &dyn RecordingStore,
    prefix: &str,
    webhooks: Option<&Webhooks>,
    journal: &FinishedJournal,
) -> Result<(), StoreError> {
    upload(store, prefix, journal).await?;
    if let Some(webhooks) = webhooks {
        let stored = EventKind::RecordingStored(sound(prefix, journal));
        webhooks.enqueue(&event(journal, stored)).await;
    }
    let journal = journal.clone();
    Ok(blocking(move || journal.remove()).await?)
}

fn sound(prefix: &str, journal: &FinishedJournal) -> RecordingFile {
    let metadata = &journal.metadata;
    RecordingFile {
        key: RecordingLocation::of(metadata).audio(prefix, metadata),
        duration_ms: metadata.duration_ms,
        size: metadata.size,
        sha256: metadata.sha256.clone(),
        goes_on: metadata.goes_on,
    }
}

fn event(journal: &FinishedJournal, event: EventKind) -> Event {
    let metadata = &journal.metadata;
    Event::now(&metadata.stream_id, metadata.tenant.as_deref(), event)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Whether an error concerns the store rather than one recording.
const fn is_outage(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Unavailable { .. } | StoreError::Denied(_) | StoreError::Full
    )
}

/// The pause after so many failures.
fn pause(failures: u32) -> Duration {
    BACKOFF.delay(failures.saturating_sub(1), fastrand::f64())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::ops::Range;
    use std::sync::Mutex;

    use async_trait::async_trait;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::{AUDIO, METADATA, TRANSCRIPT};
    use vivavoce_file_store::FileStore;
    use vivavoce_quotas::Kind;
    use vivavoce_seams::{ByteStream, Listing, ObjectInfo, StoredFile};

    /// A store in a folder that first fails with the given errors.
    struct FailingStore {
        inner: FileStore,
        fails_with: Mutex<VecDeque<StoreError>>,
    }

    #[async_trait]
    impl RecordingStore for FailingStore {
        fn slug(&self) -> &'static str {
            "moody"
        }
        async fn identity(&self) -> Result<String, StoreError> {
            self.inner.identity().await
        }
        async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
            self.inner.head(key).await
        }
        async fn get(
            &self,
            key: &str,
            range: Option<Range<u64>>,
        ) -> Result<ByteStream, StoreError> {
            self.inner.get(key, range).await
        }
        async fn put(&self, key: &str, file: StoredFile<'_>) -> Result<ObjectInfo, StoreError> {
            let next = self.fails_with.lock().unwrap().pop_front();
            match next {
                Some(error) => Err(error),
                None => self.inner.put(key, file).await,
            }
        }
        async fn delete(&self, key: &str) -> Result<(), StoreError> {
            self.inner.delete(key).await
        }
        async fn list(
            &self,
            prefix: &str,
            after: Option<&str>,
            limit: usize,
        ) -> Result<Listing, StoreError> {
            self.inner.list(prefix, after, limit).await
        }
    }

    struct Scene {
        folder: tempfile::TempDir,
        store: Arc<FailingStore>,
        _uploader: AbortOnDropHandle<()>,
    }

    impl Scene {
        /// A finished journal, and a store that first fails with these errors.
        fn with(fails_with: impl IntoIterator<Item = StoreError>) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let journals = Journals::open(folder.path().join("journals")).unwrap();
            let journal = folder.path().join("journals/a");
            fs::create_dir(&journal).unwrap();
            let known = serde_json::json!({
                "stream_id": "a", "started_at": 1, "duration_ms": 1, "size": 5, "sha256": "",
                "channels": 1, "participants": [], "complete": true,
            });
            for (file, text) in [
                (AUDIO, "sound"),
                (TRANSCRIPT, ""),
                (METADATA, &known.to_string()),
            ] {
                fs::write(journal.join(file), text).unwrap();
            }
            let store = Arc::new(FailingStore {
                inner: FileStore::new(folder.path().join("store")),
                fails_with: Mutex::new(fails_with.into_iter().collect()),
            });
            let uploader = Uploader::new(journals, Arc::clone(&store) as _, "r".to_owned(), None);
            let uploader = tokio::spawn(uploader.run(CancellationToken::new()));
            Self {
                folder,
                store,
                _uploader: AbortOnDropHandle::new(uploader),
            }
        }

        fn journal(&self) -> std::path::PathBuf {
            self.folder.path().join("journals/a")
        }

        /// Advances virtual time until the condition holds.
        async fn until(&self, what: impl Fn(&Self) -> bool) {
            for _ in 0..10_000 {
                if what(self) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            panic!("it is not so after a long time");
        }

        async fn until_stored(&self) {
            self.until(|scene| !scene.journal().exists()).await;
            assert_eq!(self.store.head("r/a/audio.ogg").await.unwrap().size, 5);
            assert!(self.store.head("r/a/metadata.json").await.is_ok());
        }
    }

    /// A tenant's journal that is not in use.
    fn leave(journals: &Journals, name: &str, tenant: Option<&str>) {
        let folder = journals.folder().join(name);
        fs::create_dir(&folder).unwrap();
        let known = serde_json::json!({
            "stream_id": name, "tenant": tenant, "started_at": 1, "duration_ms": 1, "size": 5,
            "sha256": "", "channels": 1, "participants": [], "complete": true,
        });
        fs::write(folder.join("session.json"), known.to_string()).unwrap();
    }

    #[tokio::test]
    async fn hundreds_of_recordings_of_strangers_delay_a_tenants_by_no_more_than_its_turn() {
        let folder = tempfile::tempdir().unwrap();
        let journals = Journals::open(folder.path().join("journals")).unwrap();
        for number in 0..300 {
            leave(&journals, &format!("{number}"), None);
        }
        let store = Arc::new(FileStore::new(folder.path().join("store")));
        let quota = Quota::new(Kind::Recordings, 1_000, Share::default());
        let uploader = Uploader::new(journals.clone(), store, "r".to_owned(), None);
        let mut uploader = uploader.counting(Some(quota.clone()));
        uploader.look().await;
        let now = Instant::now();
        let strangers: Vec<_> = std::iter::from_fn(|| uploader.next(now)).collect();
        assert_eq!(strangers.len(), 4, "{strangers:?}");
        leave(&journals, "innocent", Some("innocent"));
        uploader.look().await;
        assert_eq!(uploader.next(now).as_deref(), Some("innocent"));
        let innocent = Party::Tenant(TenantId::new("innocent").unwrap());
        assert_eq!((quota.of(&NOBODY), quota.of(&innocent)), (300, 1));
        // And so on in turn, as long as both have journals.
        leave(&journals, "another", Some("innocent"));
        uploader.look().await;
        let ended = Ended {
            name: "innocent".to_owned(),
            journal: None,
            kept: Ok(Kept::Stored),
        };
        uploader.ended(ended).await;
        assert_eq!(quota.of(&innocent), 1);
        let next: Vec<_> = std::iter::from_fn(|| uploader.next(now)).collect();
        assert_eq!(next, ["another"]);
    }

    fn away() -> StoreError {
        StoreError::Unavailable {
            retry_after: None,
            message: "gone fishing".to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_away_or_refuses_gets_everything_when_it_is_back() {
        let denied = || StoreError::Denied("no".to_owned());
        let scene = Scene::with([away(), away(), denied(), StoreError::Full, denied(), away()]);
        scene.until_stored().await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_store_will_never_take_is_kept_here_until_somebody_says_retry() {
        let scene = Scene::with([StoreError::Exists]);
        scene
            .until(|scene| given_up(&scene.journal()).is_some())
            .await;
        tokio::time::sleep(BACKOFF.longest * 3).await;
        assert!(scene.journal().join(AUDIO).exists());
        assert_eq!(retry(&scene.folder.path().join("journals")).unwrap(), 1);
        scene.until_stored().await;
    }

    #[tokio::test(start_paused = true)]
    async fn somebody_who_says_retry_need_not_wait() {
        let scene = Scene::with(std::iter::repeat_with(away).take(12));
        scene
            .until(|scene| scene.store.fails_with.lock().unwrap().len() <= 1)
            .await;
        let asked = Instant::now();
        retry(&scene.folder.path().join("journals")).unwrap();
        scene
            .until(|scene| scene.store.fails_with.lock().unwrap().is_empty())
            .await;
        retry(&scene.folder.path().join("journals")).unwrap();
        scene.until_stored().await;
        assert!(asked.elapsed() < BACKOFF.longest / 2);
    }
}
