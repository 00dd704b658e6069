//! Brings finished recordings into the store, oldest first and a few at once, for as long as it takes: what a store
//! that is away has not taken waits in its journal, also for another process. A store that does not answer is asked by
//! one at a time; wrong credentials keep what there is until somebody has changed them.

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

use super::AUDIO;
use super::journal::{FinishedJournal, Journals};
use super::place::Place;
use super::upload::upload;
use vivavoce_auth::TenantId;
use vivavoce_quotas::{Party, Permit, Quota, Share, Tally};
use vivavoce_seams::{RecordingStore, StoreError};
use vivavoce_telemetry::metrics;
use vivavoce_webhooks::{Notice, NoticeEvent, RecordingFile, Webhooks};

/// On their way at once, of which one party has four at most; one while the store is away.
const AT_ONCE: usize = 5;
/// The first pause after a failure, twice as long each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(5);
/// The share of a pause that is left to chance, so that many servers do not come back in one moment.
const JITTER: f64 = 0.3;
/// How often the folder is looked at anyway, and how often at most.
const LOOK: Duration = Duration::from_secs(5);
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// In a journal that the store will never take: why.
const GIVEN_UP: &str = "given_up";
/// Beside the journals: somebody wants everything to be tried now.
const RETRY: &str = ".retry";

/// Asks the uploader of this data folder, now or when it next runs, to try everything at once, also what it has given
/// up. Gives how many of those there were. Blocks.
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

/// Why a journal is not tried any more, if it is not. Blocks.
pub fn given_up(folder: &Path) -> Option<String> {
    fs::read_to_string(folder.join(GIVEN_UP)).ok()
}

/// Who brings them.
pub struct Uploader {
    journals: Journals,
    store: Arc<dyn RecordingStore>,
    prefix: String,
    webhooks: Option<Webhooks>,
    waiting: HashMap<String, Waiting>,
    /// Whose turn it is.
    turns: VecDeque<Party>,
    /// Those under way.
    tally: Tally,
    quota: Option<Quota>,
    outage: Option<Outage>,
    /// The journals could not be listed when it looked last.
    blind: bool,
}

/// A journal that waits.
#[derive(Debug)]
struct Waiting {
    /// Whose turn it waits for.
    party: Party,
    _counted: Option<Permit>,
    /// Its place among those that wait, by age.
    order: usize,
    under_way: bool,
    failures: u32,
    due: Option<Instant>,
}

/// The store does not take anything.
#[derive(Debug)]
struct Outage {
    failures: u32,
    until: Instant,
    /// What was said last about it.
    said: std::mem::Discriminant<StoreError>,
}

/// One attempt: whose, and what came of it.
struct Ended {
    name: String,
    /// `None` where there was nothing in it, or it could not be finished.
    journal: Option<FinishedJournal>,
    kept: Result<(), StoreError>,
}

impl Uploader {
    /// One for these journals.
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
            tally: Tally::new(AT_ONCE as u64, Share::default()),
            quota: None,
            outage: None,
            blind: false,
        }
    }

    /// The same, counting those that wait.
    pub fn counting(self, quota: Option<Quota>) -> Self {
        Self { quota, ..self }
    }

    /// Works until it is `closing` and then only as long as there is something that the store takes at once.
    pub async fn run(mut self, closing: CancellationToken) {
        let mut under_way = JoinSet::new();
        let (mut look, mut looked) = (true, Instant::now());
        loop {
            if look {
                self.look().await;
                looked = Instant::now();
            }
            let now = Instant::now();
            while let Some(name) = self.next(now) {
                under_way.spawn(self.attempt(name));
            }
            if closing.is_cancelled() && under_way.is_empty() {
                return;
            }
            let next_look = (looked + LOOK).saturating_duration_since(now);
            let patience = self.patience(now).min(next_look);
            // What ended is known: the folder has not changed otherwise.
            look = false;
            let may_look = looked + LOOK_PAUSE;
            tokio::select! {
                Some(ended) = under_way.join_next() => match ended {
                    Ok(ended) => self.ended(ended).await,
                    // It does not panic; if it did, the journal would wait for the next process.
                    Err(error) => tracing::error!(%error, "an upload has died"),
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

    /// Takes note of what is there.
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
            // Whose it is stands in it, and is read once.
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
                    .retain(|name, waiting| waiting.under_way || names.contains(name.as_str()));
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
            Entry::Vacant(place) => {
                let party = party.unwrap_or(NOBODY);
                place.insert(Waiting {
                    _counted: self.quota.as_ref().map(|quota| quota.hold(&party)),
                    party,
                    order,
                    under_way: false,
                    failures: 0,
                    due: None,
                });
            }
        }
    }

    /// Whoever has something that waits has a turn; newcomers come last.
    fn forget_turns(&mut self) {
        let mut with: HashSet<&Party> = self.waiting.values().map(|one| &one.party).collect();
        self.turns.retain(|party| with.remove(party));
        let new: Vec<Party> = with.into_iter().cloned().collect();
        self.turns.extend(new);
    }

    /// The oldest that may be tried now, of whoever's turn it is.
    fn next(&mut self, now: Instant) -> Option<String> {
        let under_way = self
            .waiting
            .values()
            .filter(|waiting| waiting.under_way)
            .count();
        let allowed = match &self.outage {
            Some(outage) if outage.until > now => 0,
            Some(_) => 1,
            None => AT_ONCE,
        };
        if under_way >= allowed {
            return None;
        }
        let ready =
            |waiting: &Waiting| !waiting.under_way && waiting.due.is_none_or(|due| due <= now);
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
        self.waiting.get_mut(&name)?.under_way = true;
        Some(name)
    }

    /// How long nothing can begin, if nothing else happens.
    fn patience(&self, now: Instant) -> Duration {
        let outage = self.outage.as_ref().map(|outage| outage.until);
        let idle = self.waiting.values().filter(|waiting| !waiting.under_way);
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
                Ok(Some(journal)) => {
                    let kept = keep(&*store, &prefix, webhooks.as_ref(), &journal).await;
                    (Some(journal), kept)
                }
                Ok(None) => (None, Ok(())),
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
                waiting.under_way = false;
                self.tally.release(&waiting.party, 1);
                waiting.failures += 1;
                waiting.failures
            }
            None => 1,
        };
        match (kept, journal) {
            (Ok(()), journal) => {
                self.waiting.remove(&name);
                if journal.is_some() {
                    self.back();
                    metrics::recording_stored();
                    tracing::info!(journal = name, "a recording is stored");
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
                    tracing::warn!(journal = name, %error, "a recording could not be stored and is tried again");
                    if let Some(waiting) = self.waiting.get_mut(&name) {
                        waiting.due = Some(Instant::now() + pause);
                    }
                }
            }
        }
    }

    /// Says once that the store is away, and why, until that changes.
    fn away(&mut self, error: &StoreError) {
        let kind = std::mem::discriminant(error);
        let before = self.outage.as_ref();
        if before.is_none_or(|outage| outage.said != kind) {
            tracing::error!(store = self.store.slug(), %error, "recordings wait on this disk until the store takes them");
        }
        let failures = before.map_or(0, |outage| outage.failures) + 1;
        let asked = match error {
            StoreError::Unavailable { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        let pause = pause(failures).max(asked.min(LONGEST_PAUSE));
        self.outage = Some(Outage {
            failures,
            until: Instant::now() + pause,
            said: kind,
        });
    }

    fn back(&mut self) {
        if self.outage.take().is_some() {
            tracing::info!(
                store = self.store.slug(),
                "the store takes recordings again"
            );
        }
    }

    /// The journal stays where it is, so that nothing is lost: somebody has to look at it.
    async fn give_up(&mut self, name: &str, journal: &FinishedJournal, error: &StoreError) {
        tracing::error!(journal = %journal.folder.display(), %error, "a recording cannot be stored and is kept here");
        metrics::recording_upload_failed();
        let message = error.to_string();
        let written = tokio::fs::write(journal.file(GIVEN_UP), &message).await;
        if let Err(error) = written {
            tracing::warn!(journal = name, %error, "this will be found out again");
        }
        self.waiting.remove(name);
        if let Some(webhooks) = &self.webhooks {
            let file = sound(&self.prefix, journal);
            let failed = NoticeEvent::RecordingFailed { file, message };
            webhooks.tell(&notice(journal, failed)).await;
        }
    }
}

/// Whoever records without a tenant.
const NOBODY: Party = Party::Address(IpAddr::V4(Ipv4Addr::UNSPECIFIED));

/// Whose a journal is. Blocks.
fn owner(journals: &Journals, name: &str) -> Party {
    let metadata = journals.look_into(name).ok().flatten();
    let tenant = metadata.and_then(|metadata| TenantId::new(&metadata.tenant?).ok());
    tenant.map_or(NOBODY, Party::Tenant)
}

/// Keeps it, says so, and removes the journal; whoever dies in between says the same thing again.
async fn keep(
    store: &dyn RecordingStore,
    prefix: &str,
    webhooks: Option<&Webhooks>,
    journal: &FinishedJournal,
) -> Result<(), StoreError> {
    upload(store, prefix, journal).await?;
    if let Some(webhooks) = webhooks {
        let stored = NoticeEvent::RecordingStored(sound(prefix, journal));
        webhooks.tell(&notice(journal, stored)).await;
    }
    let journal = journal.clone();
    Ok(blocking(move || journal.remove()).await?)
}

fn sound(prefix: &str, journal: &FinishedJournal) -> RecordingFile {
    let metadata = &journal.metadata;
    RecordingFile {
        key: Place::of(metadata).key(prefix, AUDIO),
        duration_ms: metadata.duration_ms,
        size: metadata.size,
        sha256: metadata.sha256.clone(),
    }
}

fn notice(journal: &FinishedJournal, event: NoticeEvent) -> Notice {
    let metadata = &journal.metadata;
    Notice::now(&metadata.stream_id, metadata.tenant.as_deref(), event)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// What one recording has met says something about all of them.
const fn is_outage(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Unavailable { .. } | StoreError::Denied(_) | StoreError::Full
    )
}

fn pause(failures: u32) -> Duration {
    let doubled =
        FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1).min(16)));
    doubled
        .min(LONGEST_PAUSE)
        .mul_f64(1.0 - JITTER * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::ops::Range;
    use std::sync::Mutex;

    use async_trait::async_trait;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::{METADATA, TRANSCRIPT};
    use vivavoce_file_store::FileStore;
    use vivavoce_quotas::Kind;
    use vivavoce_seams::{ByteStream, Listing, ObjectInfo, StoredFile};

    /// A store in a folder that first says what it is told to say.
    struct Moody {
        inner: FileStore,
        says: Mutex<VecDeque<StoreError>>,
    }

    #[async_trait]
    impl RecordingStore for Moody {
        fn slug(&self) -> &'static str {
            "moody"
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
            let next = self.says.lock().unwrap().pop_front();
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
        store: Arc<Moody>,
        _uploader: AbortOnDropHandle<()>,
    }

    impl Scene {
        /// A journal that is finished, and a store that says these things first.
        fn with(says: impl IntoIterator<Item = StoreError>) -> Self {
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
            let store = Arc::new(Moody {
                inner: FileStore::new(folder.path().join("store")),
                says: Mutex::new(says.into_iter().collect()),
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

        /// Lets virtual time pass until it is so.
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

    /// A journal of a tenant's that nobody writes any more.
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
        // And so on in turn, as long as both have something.
        leave(&journals, "another", Some("innocent"));
        uploader.look().await;
        let ended = Ended {
            name: "innocent".to_owned(),
            journal: None,
            kept: Ok(()),
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
        tokio::time::sleep(LONGEST_PAUSE * 3).await;
        assert!(scene.journal().join(AUDIO).exists());
        assert_eq!(retry(&scene.folder.path().join("journals")).unwrap(), 1);
        scene.until_stored().await;
    }

    #[tokio::test(start_paused = true)]
    async fn somebody_who_says_retry_need_not_wait() {
        let scene = Scene::with(std::iter::repeat_with(away).take(12));
        scene
            .until(|scene| scene.store.says.lock().unwrap().len() <= 1)
            .await;
        let asked = Instant::now();
        retry(&scene.folder.path().join("journals")).unwrap();
        scene
            .until(|scene| scene.store.says.lock().unwrap().is_empty())
            .await;
        retry(&scene.folder.path().join("journals")).unwrap();
        scene.until_stored().await;
        assert!(asked.elapsed() < LONGEST_PAUSE / 2);
    }
}
