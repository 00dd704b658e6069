//! The cache of synthesised speech: frequently used entries in memory, all on disk. Both are bounded by size and age.
//! An entry is complete or absent, and what is read from disk is verified against its hash. Functions that touch the
//! disk block, so callers run them on a blocking thread. Time is an argument.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use quick_cache::{Weighter, sync::Cache as LruCache};
use sha2::{Digest, Sha256};

use super::request::CacheKey;
use vivavoce_quotas::{Party, Share, Tally};

/// The first bytes of an entry's file: type and version of the format.
const MAGIC: &[u8; 8] = b"VVSPEEC2";
/// Magic, creation time in Unix seconds, SHA-256 of the body.
const HEADER: usize = 8 + 8 + 32;
/// Overhead counted per entry, so that many tiny entries are bounded, too.
const OVERHEAD: u64 = 256;

/// An entry may take at most this part (1/n) of the memory.
const LARGEST_SHARE: u64 = 16;

/// The bounds of the cache.
#[derive(Debug, Clone)]
pub struct CacheSettings {
    /// The folder of the entries on disk.
    pub path: PathBuf,
    /// Older entries are not used.
    pub ttl: Duration,
    /// Maximum bytes on disk.
    pub max_bytes: u64,
    /// Maximum bytes in memory.
    pub memory_bytes: u64,
}

#[derive(Debug, Clone)]
struct Entry {
    sound: Bytes,
    created: SystemTime,
}

#[derive(Clone)]
struct BySize;

impl Weighter<CacheKey, Entry> for BySize {
    fn weight(&self, _: &CacheKey, entry: &Entry) -> u64 {
        entry.sound.len() as u64 + OVERHEAD
    }
}

/// The cache.
pub struct Cache {
    memory: LruCache<CacheKey, Entry, BySize>,
    disk: Disk,
    ttl: Duration,
}

impl Cache {
    /// Opens the folder, creating it if it does not exist. Entries of earlier runs are served at once, but counted only
    /// after [`Cache::scan`].
    pub fn open(settings: &CacheSettings) -> io::Result<Self> {
        let expected_entries = (settings.memory_bytes / 65_536).max(64) as usize;
        Ok(Self {
            memory: LruCache::with_weighter(expected_entries, settings.memory_bytes, BySize),
            disk: Disk::open(&settings.path, settings.max_bytes)?,
            ttl: settings.ttl,
        })
    }

    /// Looks up an entry in memory; never blocks.
    pub fn in_memory(&self, key: &CacheKey, now: SystemTime) -> Option<Bytes> {
        let entry = self.memory.get(key)?;
        self.is_fresh(&entry, now).then_some(entry.sound)
    }

    /// Looks up an entry on disk, and counts it for the party from now on. Damaged and outdated entries are removed.
    pub fn on_disk(&self, key: &CacheKey, party: &Party, now: SystemTime) -> Option<Bytes> {
        let entry = self.disk.read(key, party, now)?;
        if !self.is_fresh(&entry, now) {
            self.disk.remove(key);
            return None;
        }
        self.memory.insert(*key, entry.clone());
        Some(entry.sound)
    }

    /// Stores a complete entry in memory, unless it would displace too many others.
    pub fn keep_in_memory(&self, key: CacheKey, chunks: &[Bytes], now: SystemTime) {
        let length: usize = chunks.iter().map(Bytes::len).sum();
        if length as u64 > self.memory.capacity() / LARGEST_SHARE {
            return;
        }
        let mut sound = BytesMut::with_capacity(length);
        chunks
            .iter()
            .for_each(|chunk| sound.extend_from_slice(chunk));
        let sound = sound.freeze();
        self.memory.insert(
            key,
            Entry {
                sound,
                created: now,
            },
        );
    }

    /// Stores a complete entry of the party on disk, evicting others if necessary.
    pub fn keep_on_disk(
        &self,
        key: &CacheKey,
        party: &Party,
        chunks: &[Bytes],
        now: SystemTime,
    ) -> io::Result<()> {
        self.disk.write(key, party, chunks, now)
    }

    /// Counts the entries of earlier runs and removes partly written ones.
    pub fn scan(&self) -> io::Result<()> {
        self.disk.scan()
    }

    /// The age of an entry from the future (the clock was set back) is unknown, so it is not used.
    fn is_fresh(&self, entry: &Entry, now: SystemTime) -> bool {
        now.duration_since(entry.created)
            .is_ok_and(|age| age <= self.ttl)
    }
}

struct Disk {
    folder: PathBuf,
    max_bytes: u64,
    index: Mutex<Index>,
}

/// The entries on disk, by owner and by order of last use. Entries of earlier runs count together for the operator
/// until they are used, because their owner is not stored.
struct Index {
    entries: HashMap<CacheKey, IndexEntry>,
    by_use: HashMap<Party, BTreeMap<u64, CacheKey>>,
    held: Tally,
    uses: u64,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            by_use: HashMap::new(),
            // Nothing is refused: the tally only decides who gives up entries.
            held: Tally::new(u64::MAX, Share::NONE),
            uses: 0,
        }
    }
}

#[derive(Clone)]
struct IndexEntry {
    bytes: u64,
    last_use: u64,
    party: Party,
}

impl Index {
    fn used(&mut self, key: CacheKey, party: &Party, bytes: u64) {
        self.forget(&key);
        self.uses += 1;
        self.entries.insert(
            key,
            IndexEntry {
                bytes,
                last_use: self.uses,
                party: party.clone(),
            },
        );
        let theirs = self.by_use.entry(party.clone()).or_default();
        theirs.insert(self.uses, key);
        self.held.hold(party, bytes);
    }

    fn forget(&mut self, key: &CacheKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.held.release(&entry.party, entry.bytes);
            if let Some(theirs) = self.by_use.get_mut(&entry.party) {
                theirs.remove(&entry.last_use);
                if theirs.is_empty() {
                    self.by_use.remove(&entry.party);
                }
            }
        }
    }

    /// Removes the least recently used entries of the largest holder until the rest fits.
    fn shrink_to(&mut self, max_bytes: u64) -> Vec<CacheKey> {
        let mut evicted = Vec::new();
        while self.held.total() > max_bytes
            && let Some((largest, _)) = self.held.largest()
            && let Some(key) = self.by_use.get(largest).and_then(|all| all.values().next())
        {
            let key = *key;
            self.forget(&key);
            evicted.push(key);
        }
        evicted
    }
}

impl Disk {
    fn open(path: &Path, max_bytes: u64) -> io::Result<Self> {
        let folder = path.join("speech");
        make_folder(&folder)?;
        Ok(Self {
            folder,
            max_bytes,
            index: Mutex::default(),
        })
    }

    fn file(&self, key: &CacheKey) -> PathBuf {
        let name = key.hex();
        self.folder.join(&name[..2]).join(name)
    }

    /// A poisoned lock is usable: every step leaves the index consistent.
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, key: &CacheKey, party: &Party, now: SystemTime) -> Option<Entry> {
        let mut file = File::open(self.file(key)).ok()?;
        let entry = read_entry(&mut file, self.max_bytes);
        if let Some(entry) = &entry {
            // The modification time is the time of last use, so that the order survives a restart.
            let _ = file.set_modified(now);
            let bytes = entry.sound.len() as u64 + OVERHEAD;
            self.index().used(*key, party, bytes);
        } else {
            tracing::warn!("removed a damaged entry of the synthesis cache");
            self.remove(key);
        }
        entry
    }

    fn write(
        &self,
        key: &CacheKey,
        party: &Party,
        chunks: &[Bytes],
        now: SystemTime,
    ) -> io::Result<()> {
        let length: usize = chunks.iter().map(Bytes::len).sum();
        let bytes = length as u64 + OVERHEAD;
        if bytes > self.max_bytes {
            return Ok(());
        }
        let file = self.file(key);
        let parent = file.parent().unwrap_or(&self.folder);
        make_folder(parent)?;
        let mut written = tempfile::Builder::new()
            .prefix(".part-")
            .tempfile_in(parent)?;
        let created = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        written.write_all(MAGIC)?;
        written.write_all(&created.to_le_bytes())?;
        let mut hash = Sha256::new();
        chunks.iter().for_each(|chunk| hash.update(chunk));
        written.write_all(&hash.finalize())?;
        for chunk in chunks {
            written.write_all(chunk)?;
        }
        written.as_file().set_modified(now)?;
        written.persist(&file)?;
        let evicted = {
            let mut index = self.index();
            index.used(*key, party, bytes);
            index.shrink_to(self.max_bytes)
        };
        for key in evicted {
            let _ = fs::remove_file(self.file(&key));
        }
        Ok(())
    }

    fn remove(&self, key: &CacheKey) {
        self.index().forget(key);
        let _ = fs::remove_file(self.file(key));
    }

    fn scan(&self) -> io::Result<()> {
        let mut found = Vec::new();
        for folder in fs::read_dir(&self.folder)? {
            let Ok(files) = fs::read_dir(folder?.path()) else {
                continue;
            };
            for file in files.flatten() {
                let Ok(meta) = file.metadata() else { continue };
                match file.file_name().to_str().and_then(key_of_name) {
                    Some(key) => found.push((
                        meta.modified()?,
                        key,
                        meta.len().saturating_sub(HEADER as u64),
                    )),
                    None if is_abandoned(&file.path(), &meta) => drop(fs::remove_file(file.path())),
                    None => {}
                }
            }
        }
        found.sort_by_key(|(modified, ..)| *modified);
        let evicted = {
            let mut index = self.index();
            // Entries used since the start are more recent than anything found.
            let mut in_use: Vec<_> = index
                .entries
                .iter()
                .map(|(key, entry)| (*key, entry.clone()))
                .collect();
            in_use.sort_by_key(|(_, entry)| entry.last_use);
            for (_, key, length) in found {
                index.used(key, &Party::Operator, length + OVERHEAD);
            }
            for (key, entry) in in_use {
                index.used(key, &entry.party, entry.bytes);
            }
            index.shrink_to(self.max_bytes)
        };
        for key in evicted {
            let _ = fs::remove_file(self.file(&key));
        }
        Ok(())
    }
}

fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// A partly written file whose writer is gone; a recent one may be another process's.
fn is_abandoned(file: &Path, meta: &fs::Metadata) -> bool {
    let is_part = file
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with(".part-"));
    let age = meta
        .modified()
        .ok()
        .and_then(|modified| modified.elapsed().ok());
    is_part && age.is_some_and(|age| age > Duration::from_hours(1))
}

fn key_of_name(name: &str) -> Option<CacheKey> {
    let name = name.as_bytes();
    let mut key = [0; 32];
    if name.len() != 64 {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(name.chunks_exact(2)) {
        let digit = |c: u8| (c as char).to_digit(16).filter(|_| !c.is_ascii_uppercase());
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(CacheKey(key))
}

fn read_entry(file: &mut File, max_bytes: u64) -> Option<Entry> {
    let mut header = [0; HEADER];
    file.read_exact(&mut header).ok()?;
    let (magic, rest) = header.split_at(8);
    let (created, hash) = rest.split_at(8);
    if magic != MAGIC {
        return None;
    }
    let mut sound = Vec::new();
    file.take(max_bytes).read_to_end(&mut sound).ok()?;
    if Sha256::digest(&sound).as_slice() != hash {
        return None;
    }
    let created = u64::from_le_bytes(created.try_into().ok()?);
    let created = UNIX_EPOCH.checked_add(Duration::from_secs(created))?;
    Some(Entry {
        sound: sound.into(),
        created,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;
    use vivavoce_auth::TenantId;

    const NOW: SystemTime = UNIX_EPOCH;

    fn cache(folder: &Path, max_bytes: u64) -> Cache {
        let path = folder.to_owned();
        let ttl = Duration::from_secs(100);
        Cache::open(&CacheSettings {
            path,
            ttl,
            max_bytes,
            memory_bytes: 100_000,
        })
        .unwrap()
    }

    fn key(number: u8) -> CacheKey {
        CacheKey([number; 32])
    }

    #[test]
    fn what_was_kept_is_found_after_a_restart_until_it_is_too_old() {
        let folder = tempfile::tempdir().unwrap();
        cache(folder.path(), 10_000)
            .keep_on_disk(
                &key(1),
                &Party::Operator,
                &[Bytes::from_static(b"sound")],
                NOW,
            )
            .unwrap();
        let cache = cache(folder.path(), 10_000);
        assert!(cache.in_memory(&key(1), NOW).is_none());
        assert_eq!(
            cache.on_disk(&key(1), &Party::Operator, NOW).unwrap(),
            "sound"
        );
        assert_eq!(
            cache
                .in_memory(&key(1), NOW + Duration::from_secs(100))
                .unwrap(),
            "sound"
        );
        let later = NOW + Duration::from_secs(101);
        assert!(cache.in_memory(&key(1), later).is_none());
        assert!(cache.on_disk(&key(1), &Party::Operator, later).is_none());
        assert!(!cache.disk.file(&key(1)).exists());
    }

    #[test]
    fn a_damaged_entry_is_a_miss_whichever_byte_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 10_000);
        cache
            .keep_on_disk(
                &key(1),
                &Party::Operator,
                &[Bytes::from_static(b"sound")],
                NOW,
            )
            .unwrap();
        let file = cache.disk.file(&key(1));
        let whole = fs::read(&file).unwrap();
        for length in 0..whole.len() {
            fs::write(&file, &whole[..length]).unwrap();
            assert!(
                cache.on_disk(&key(1), &Party::Operator, NOW).is_none(),
                "cut at {length}"
            );
        }
        for place in (0..8).chain(16..whole.len()) {
            let mut damaged = whole.clone();
            damaged[place] ^= 1;
            fs::write(&file, damaged).unwrap();
            assert!(
                cache.on_disk(&key(1), &Party::Operator, NOW).is_none(),
                "damaged at {place}"
            );
        }
    }

    #[test]
    fn the_entries_used_longest_ago_make_room_also_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let max_bytes = 3 * (1_000 + OVERHEAD);
        let first = cache(folder.path(), max_bytes);
        for number in 1..=3 {
            first
                .keep_on_disk(
                    &key(number),
                    &Party::Operator,
                    &[vec![number; 1_000].into()],
                    NOW + Duration::from_secs(number.into()),
                )
                .unwrap();
        }
        assert!(
            first
                .on_disk(&key(1), &Party::Operator, NOW + Duration::from_secs(50))
                .is_some()
        );
        let again = cache(folder.path(), max_bytes);
        again.scan().unwrap();
        again
            .keep_on_disk(
                &key(4),
                &Party::Operator,
                &[vec![4; 1_000].into()],
                NOW + Duration::from_secs(51),
            )
            .unwrap();
        let now = NOW + Duration::from_secs(52);
        let kept: Vec<_> = (1..=4)
            .filter(|&number| again.on_disk(&key(number), &Party::Operator, now).is_some())
            .collect();
        assert_eq!(kept, [1, 3, 4]);
    }

    #[test]
    fn what_one_tenant_has_said_a_thousand_times_pushes_out_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 10 * (1_000 + OVERHEAD));
        let [greedy, innocent] =
            ["greedy", "innocent"].map(|id| Party::Tenant(TenantId::new(id).unwrap()));
        let keep = |number: u8, party: &Party| {
            let sound = [Bytes::from(vec![number; 1_000])];
            cache
                .keep_on_disk(&key(number), party, &sound, NOW)
                .unwrap();
        };
        (0..3).for_each(|number| keep(number, &innocent));
        (10..250).for_each(|number| keep(number, &greedy));
        let kept = |number: u8| cache.disk.file(&key(number)).exists();
        assert!((0..3).all(kept));
        assert_eq!((10..250).filter(|number| kept(*number)).count(), 7);
        // Entries not used since the restart are evicted first, whoever used them before.
        let again = self::cache(folder.path(), 10 * (1_000 + OVERHEAD));
        again.scan().unwrap();
        assert!(again.on_disk(&key(0), &innocent, NOW).is_some());
        let sound = [Bytes::from(vec![1; 1_000])];
        (10..200).for_each(|number| {
            again
                .keep_on_disk(&key(number), &greedy, &sound, NOW)
                .unwrap();
        });
        assert!(kept(0));
    }

    #[test]
    fn files_are_readable_by_their_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 10_000);
        cache
            .keep_on_disk(
                &key(1),
                &Party::Operator,
                &[Bytes::from_static(b"sound")],
                NOW,
            )
            .unwrap();
        let file = cache.disk.file(&key(1));
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            fs::metadata(file.parent().unwrap())
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o700
        );
    }

    #[test]
    fn names_and_keys_are_the_same_thing() {
        assert_eq!(key_of_name(&key(0xa7).hex()), Some(key(0xa7)));
        assert_eq!(key_of_name(&key(0xa7).hex().to_uppercase()), None);
        assert_eq!(key_of_name("short"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn the_disk_part_never_exceeds_its_bound(sizes in proptest::collection::vec((0u8..20, 0usize..3_000), 0..30)) {
            let folder = tempfile::tempdir().unwrap();
            let cache = cache(folder.path(), 10_000);
            for (number, size) in sizes {
                cache.keep_on_disk(&key(number), &Party::Operator, &[vec![0; size].into()], NOW).unwrap();
                let on_disk: u64 = (0..20)
                    .filter_map(|number| fs::metadata(cache.disk.file(&key(number))).ok())
                    .map(|meta| meta.len())
                    .sum();
                prop_assert!(on_disk <= 10_000);
                prop_assert!(cache.disk.index().held.total() <= 10_000);
            }
        }
    }
}
