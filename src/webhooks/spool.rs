//! The webhooks on disk, from when they are accepted until they are delivered: one file each, written atomically,
//! bounded in number and bytes, in all and per [`Party`]. Webhooks about recordings have a capacity of their own.
//! Everything here blocks; when to deliver is decided in [`super::queue`].
//!
//! Each server has a folder of its own, which it has locked: the spool's own, or while another server has that, as when it is
//! being replaced, one in it. What is in a folder that nobody has locked was left by a server that has ended, and is
//! [adopted](Spool::adopt).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{Destination, HookAddress, Lane, Source};
use vivavoce_auth::TenantId;
use vivavoce_quotas::{Kind, Party, Refused, Share, Tally, Why};

/// The file name extension, and that of files which cannot be read and are set aside for inspection.
const EXTENSION: &str = "json";
const UNREADABLE: &str = "unreadable";

/// The capacity: of webhooks about recordings, and the same again for all others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) count: usize,
    /// Of these, for one receiver, so that one that is down leaves room for the others.
    pub(super) count_per_receiver: usize,
    pub(super) bytes: u64,
    /// The share of the capacity that one party may use.
    pub(super) share: Share,
}

/// Why a webhook was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The spool is full. The webhooks in it were promised earlier, so the new one is refused.
    #[error("{0}")]
    Quota(Refused),
    /// The disk failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A webhook to deliver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Webhook {
    /// The event id, the same at each attempt.
    pub(super) id: String,
    pub(super) to: Destination,
    pub(super) of: Source,
    /// JSON, sent byte for byte.
    pub(super) body: String,
}

/// What is kept in memory of a waiting webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SpoolEntry {
    pub(super) to: Destination,
    pub(super) of: Source,
    /// Below the spool's folder.
    file: PathBuf,
    bytes: u64,
}

impl SpoolEntry {
    /// Names it among all that wait.
    pub(super) fn name(&self) -> String {
        let name = self.file.with_extension("");
        name.to_string_lossy().replace('/', ".")
    }
}

#[derive(Serialize, Deserialize)]
struct Stored {
    id: String,
    /// Absent if it goes to the receiver named in the settings at the time of delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<StoredAddress>,
    /// The tenant it counts for; absent if it counts for the operator or an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    address: Option<IpAddr>,
    /// Whether it is about a recording.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    recording: bool,
    body: String,
}

#[derive(Serialize, Deserialize)]
struct StoredAddress {
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signer: Option<String>,
}

/// The spool's folder and what it holds.
#[derive(Debug)]
pub(super) struct Spool {
    folder: PathBuf,
    /// The folder of what this server writes, below that.
    own: PathBuf,
    bounds: Bounds,
    held: Mutex<Held>,
    /// By their names below the folder.
    locked: Mutex<HashMap<PathBuf, File>>,
}

#[derive(Debug)]
struct Held {
    recordings: Places,
    others: Places,
    /// Makes file names created within one millisecond distinct and ordered.
    serial: u64,
}

impl Held {
    fn new(bounds: Bounds) -> Self {
        Self {
            recordings: Places::new(bounds),
            others: Places::new(bounds),
            serial: 0,
        }
    }

    const fn of(&mut self, source: &Source) -> &mut Places {
        if source.recording {
            &mut self.recordings
        } else {
            &mut self.others
        }
    }
}

/// What waits of one of the two kinds.
#[derive(Debug)]
struct Places {
    count: Tally,
    count_by_receiver: HashMap<Lane, usize>,
    bytes: Tally,
}

impl Places {
    fn new(bounds: Bounds) -> Self {
        Self {
            count: Tally::new(bounds.count as u64, bounds.share),
            count_by_receiver: HashMap::new(),
            bytes: Tally::new(bounds.bytes, bounds.share),
        }
    }

    /// Whether one more may wait, where one receiver may have `per_receiver`.
    fn check(
        &self,
        lane: &Lane,
        party: &Party,
        bytes: u64,
        per_receiver: usize,
    ) -> Result<(), Why> {
        let waiting = self
            .count_by_receiver
            .get(lane)
            .copied()
            .unwrap_or_default();
        let free = per_receiver.saturating_sub(waiting) as u64;
        self.count.check_within(party, 1, free)?;
        self.bytes.check(party, bytes)
    }

    fn take(&mut self, lane: Lane, party: &Party, bytes: u64) {
        self.count.hold(party, 1);
        *self.count_by_receiver.entry(lane).or_default() += 1;
        self.bytes.hold(party, bytes);
    }

    fn release(&mut self, lane: Lane, party: &Party, bytes: u64) {
        self.count.release(party, 1);
        self.bytes.release(party, bytes);
        if let Entry::Occupied(mut per_receiver) = self.count_by_receiver.entry(lane) {
            *per_receiver.get_mut() -= 1;
            if *per_receiver.get() == 0 {
                per_receiver.remove();
            }
        }
    }
}

impl Spool {
    /// Opens the folder and returns what an earlier process has left in it, oldest first.
    pub(super) fn open(folder: PathBuf, bounds: Bounds) -> io::Result<(Self, Vec<SpoolEntry>)> {
        make(&folder)?;
        let mut spool = Self {
            own: PathBuf::new(),
            folder,
            bounds,
            held: Mutex::new(Held::new(bounds)),
            locked: Mutex::default(),
        };
        if !spool.lock(Path::new(""))? {
            spool.own = PathBuf::from(format!("{:016x}", fastrand::u64(..)));
            make(&spool.folder.join(&spool.own))?;
            let own = spool.own.clone();
            if !spool.lock(&own)? {
                return Err(io::Error::other("another server has just the same folder"));
            }
        }
        let mut entries = spool.load_all(Path::new(""))?.unwrap_or_default();
        entries.extend(spool.adopt()?);
        Ok((spool, entries))
    }

    /// What servers have left that have ended since.
    pub(super) fn adopt(&self) -> io::Result<Vec<SpoolEntry>> {
        let mut places = vec![PathBuf::new()];
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                places.push(entry.file_name().into());
            }
        }
        let mut adopted = Vec::new();
        for place in places {
            if !self.is_locked_here(&place) && self.lock(&place)? {
                adopted.extend(self.load_all(&place)?.unwrap_or_default());
                self.leave_if_empty(&place, &adopted);
            }
        }
        Ok(adopted)
    }

    fn is_locked_here(&self, place: &Path) -> bool {
        let locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        locked.contains_key(place)
    }

    /// Whether this server has the place now.
    fn lock(&self, place: &Path) -> io::Result<bool> {
        let file = match File::open(self.folder.join(place)) {
            // It has just been removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            opened => opened?,
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let mut locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        locked.insert(place.to_owned(), file);
        Ok(true)
    }

    /// Removes the folder of a server that has left nothing.
    fn leave_if_empty(&self, place: &Path, entries: &[SpoolEntry]) {
        let is_used = entries
            .iter()
            .any(|entry| entry.file.parent() == Some(place));
        if place.as_os_str().is_empty() || is_used {
            return;
        }
        // Unreadable files stay for whoever looks into them, with their folder.
        let _ = fs::remove_dir(self.folder.join(place));
    }

    /// The webhooks in a place that this server has; `None` if another has it.
    fn load_all(&self, place: &Path) -> io::Result<Option<Vec<SpoolEntry>>> {
        if !self.is_locked_here(place) {
            return Ok(None);
        }
        let folder = self.folder.join(place);
        let mut names = Vec::new();
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if Path::new(&name)
                .extension()
                .is_some_and(|ending| ending == EXTENSION)
            {
                names.push(name);
            } else if name.starts_with(".tmp") {
                // A webhook that was never acknowledged.
                fs::remove_file(entry.path())?;
            }
        }
        names.sort_unstable();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries = Vec::new();
        for name in names {
            let path = folder.join(&name);
            match load(&path) {
                Ok((webhook, bytes)) => {
                    let places = held.of(&webhook.of);
                    places.take(webhook.to.lane(), &webhook.of.party, bytes);
                    entries.push(SpoolEntry {
                        to: webhook.to,
                        of: webhook.of,
                        file: place.join(name),
                        bytes,
                    });
                }
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "a webhook in the spool cannot be read and is set aside");
                    fs::rename(&path, path.with_extension(UNREADABLE))?;
                }
            }
        }
        Ok(Some(entries))
    }

    /// Writes a webhook to disk. Once this returns, it survives the process and a power failure.
    pub(super) fn put(&self, webhook: &Webhook, now: SystemTime) -> Result<SpoolEntry, SpoolError> {
        let to = match &webhook.to {
            Destination::Settings => None,
            Destination::Hook(address) => Some(StoredAddress {
                url: address.url.to_string(),
                signer: address.signer.clone(),
            }),
        };
        let stored = Stored {
            id: webhook.id.clone(),
            to,
            tenant: webhook.of.party.tenant().map(|id| id.as_str().to_owned()),
            address: match webhook.of.party {
                Party::Address(address) => Some(address),
                Party::Operator | Party::Tenant(_) => None,
            },
            recording: webhook.of.recording,
            body: webhook.body.clone(),
        };
        let text = serde_json::to_vec(&stored).map_err(io::Error::other)?;
        let bytes = text.len() as u64;
        let file = self.reserve(webhook, bytes, now)?;
        match self.write(&file, &text) {
            Ok(()) => Ok(SpoolEntry {
                to: webhook.to.clone(),
                of: webhook.of.clone(),
                file,
                bytes,
            }),
            Err(error) => {
                self.release(webhook.to.lane(), &webhook.of, bytes);
                Err(error.into())
            }
        }
    }

    /// Reads a waiting webhook.
    pub(super) fn read(&self, entry: &SpoolEntry) -> io::Result<Webhook> {
        load(&self.folder.join(&entry.file)).map(|(webhook, _)| webhook)
    }

    /// Removes a webhook.
    pub(super) fn remove(&self, entry: &SpoolEntry) -> io::Result<()> {
        fs::remove_file(self.folder.join(&entry.file))?;
        self.release(entry.to.lane(), &entry.of, entry.bytes);
        Ok(())
    }

    fn reserve(
        &self,
        webhook: &Webhook,
        bytes: u64,
        now: SystemTime,
    ) -> Result<PathBuf, SpoolError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (lane, party) = (webhook.to.lane(), &webhook.of.party);
        let places = held.of(&webhook.of);
        let checked = places.check(&lane, party, bytes, self.bounds.count_per_receiver);
        let kind = Kind::Webhooks;
        checked.map_err(|why| SpoolError::Quota(Refused { kind, why }))?;
        places.take(lane, party, bytes);
        held.serial += 1;
        let at = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let (at, serial, chance) = (at.as_millis(), held.serial, fastrand::u32(..));
        let name = format!("{at:014}-{serial:010}-{chance:08x}.{EXTENSION}");
        Ok(self.own.join(name))
    }

    fn release(&self, lane: Lane, source: &Source, bytes: u64) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.of(source).release(lane, &source.party, bytes);
    }

    /// Writes atomically: the name appears once the content is on disk. Only this user can read the file.
    fn write(&self, name: &Path, text: &[u8]) -> io::Result<()> {
        let folder = self.folder.join(&self.own);
        let mut file = tempfile::Builder::new()
            .prefix(".tmp")
            .tempfile_in(&folder)?;
        file.write_all(text)?;
        file.as_file().sync_all()?;
        file.persist_noclobber(self.folder.join(name))
            .map_err(|error| error.error)?;
        File::open(&folder)?.sync_all()
    }
}

fn make(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

fn load(path: &Path) -> io::Result<(Webhook, u64)> {
    let text = fs::read(path)?;
    let stored: Stored = serde_json::from_slice(&text).map_err(io::Error::other)?;
    let to = match stored.to {
        None => Destination::Settings,
        Some(to) => Destination::Hook(HookAddress {
            url: to.url.parse().map_err(io::Error::other)?,
            signer: to.signer,
        }),
    };
    let webhook = Webhook {
        id: stored.id,
        to,
        of: Source {
            party: match (stored.tenant, stored.address) {
                (Some(tenant), _) => {
                    Party::Tenant(TenantId::new(&tenant).map_err(io::Error::other)?)
                }
                (None, Some(address)) => Party::Address(address),
                (None, None) => Party::Operator,
            },
            recording: stored.recording,
        },
        body: stored.body,
    };
    Ok((webhook, text.len() as u64))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        count: 4,
        count_per_receiver: 3,
        bytes: 10_000,
        share: Share::percent(75),
    };

    fn webhook(id: &str) -> Webhook {
        Webhook {
            id: id.to_owned(),
            to: Destination::Settings,
            of: Source::default(),
            body: format!("{{\"n\":\"{id}\"}}"),
        }
    }

    fn hook() -> Destination {
        Destination::Hook(HookAddress {
            url: "https://hooks.example/a?b=c".parse().unwrap(),
            signer: Some("sip.example".to_owned()),
        })
    }

    #[test]
    fn what_was_taken_is_found_by_the_next_process_in_order_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("webhooks");
        let (spool, found) = Spool::open(path.clone(), BOUNDS).unwrap();
        assert!(found.is_empty());
        let now = SystemTime::now();
        let to_hook = Webhook {
            to: hook(),
            ..webhook("b")
        };
        spool.put(&webhook("a"), now).unwrap();
        spool.put(&to_hook, now).unwrap();
        fs::write(path.join(".tmpabc"), "torn").unwrap();

        drop(spool);
        let (spool, found) = Spool::open(path.clone(), BOUNDS).unwrap();
        let read: Vec<_> = found
            .iter()
            .map(|entry| spool.read(entry).unwrap())
            .collect();
        assert_eq!(read, [webhook("a"), to_hook]);
        for entry in fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(
                entry.metadata().unwrap().permissions().mode() & 0o777,
                0o600
            );
            assert!(!entry.file_name().to_string_lossy().starts_with(".tmp"));
        }
        spool.remove(&found[0]).unwrap();
        spool.remove(&found[1]).unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    }

    #[test]
    fn two_servers_deliver_each_their_own_until_one_of_them_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Spool::open(folder.path().to_owned(), BOUNDS).unwrap();
        let now = SystemTime::now();
        let read = |spool: &Spool, found: &[SpoolEntry]| {
            let read = found.iter().map(|entry| spool.read(entry).unwrap());
            read.collect::<Vec<_>>()
        };
        let (former, _) = open();
        former.put(&webhook("a"), now).unwrap();
        let (new, found) = open();
        assert_eq!(found, []);
        new.put(&webhook("b"), now).unwrap();
        assert_eq!(new.adopt().unwrap(), []);
        // The new one has a folder of its own, which the one after it finds; the former has the usual one.
        let (next, found) = open();
        assert_eq!(found, []);
        drop(former);
        let adopted = new.adopt().unwrap();
        assert_eq!(read(&new, &adopted), [webhook("a")]);
        new.remove(&adopted[0]).unwrap();
        assert_eq!(new.adopt().unwrap(), []);
        drop(new);
        let adopted = next.adopt().unwrap();
        assert_eq!(read(&next, &adopted), [webhook("b")]);
        next.remove(&adopted[0]).unwrap();
        drop(next);
        // Folders without anything in them go.
        let (last, found) = open();
        assert_eq!(found, []);
        drop(last);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_full_spool_refuses_the_new_one_and_takes_again_when_there_is_room() {
        let folder = tempfile::tempdir().unwrap();
        let (spool, _) = Spool::open(folder.path().to_owned(), BOUNDS).unwrap();
        let now = SystemTime::now();
        let first = spool.put(&webhook("a"), now).unwrap();
        spool.put(&webhook("b"), now).unwrap();
        let large = Webhook {
            body: "x".repeat(10_000),
            ..webhook("c")
        };
        assert!(matches!(spool.put(&large, now), Err(SpoolError::Quota(_))));
        spool.put(&webhook("c"), now).unwrap();
        assert!(matches!(
            spool.put(&webhook("d"), now),
            Err(SpoolError::Quota(_))
        ));
        // Another receiver has its own limit.
        let other = Webhook {
            to: hook(),
            ..webhook("e")
        };
        spool.put(&other, now).unwrap();
        assert!(matches!(spool.put(&other, now), Err(SpoolError::Quota(_))));
        spool.remove(&first).unwrap();
        spool.put(&webhook("d"), now).unwrap();
    }

    /// Puts webhooks until one is refused, and counts them.
    fn all_of(spool: &Spool, of: &Source) -> usize {
        let take = |n: usize| {
            let webhook = Webhook {
                of: of.clone(),
                ..webhook(&n.to_string())
            };
            spool.put(&webhook, SystemTime::now()).ok()
        };
        (0..1_000).map_while(take).count()
    }

    fn of(party: Party, recording: bool) -> Source {
        Source { party, recording }
    }

    fn tenant(id: &str) -> Party {
        Party::Tenant(TenantId::new(id).unwrap())
    }

    const WIDE: Bounds = Bounds {
        count: 40,
        count_per_receiver: 32,
        bytes: 1 << 20,
        share: Share::percent(75),
    };

    #[test]
    fn however_many_sessions_of_strangers_end_a_tenants_webhooks_and_all_recordings_have_places() {
        let folder = tempfile::tempdir().unwrap();
        let bounds = Bounds {
            share: WIDE.share.with_addresses_as_one(),
            ..WIDE
        };
        let (spool, _) = Spool::open(folder.path().to_owned(), bounds).unwrap();
        let strangers: usize = (0..50)
            .map(|n| all_of(&spool, &of(Party::Address([192, 0, 2, n].into()), false)))
            .sum();
        assert!((10..=24).contains(&strangers), "{strangers}");
        assert!(all_of(&spool, &of(tenant("a"), false)) >= 4);
        assert!(all_of(&spool, &of(tenant("a"), true)) >= 24);
        assert!(all_of(&spool, &of(tenant("b"), true)) >= 4);
    }

    #[test]
    fn whose_a_webhook_is_outlives_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let sources = [
            of(tenant("a"), true),
            of(Party::Address([192, 0, 2, 1].into()), false),
            of(Party::Operator, false),
        ];
        let (spool, _) = Spool::open(folder.path().to_owned(), WIDE).unwrap();
        for source in &sources {
            let webhook = Webhook {
                of: source.clone(),
                ..webhook("x")
            };
            spool.put(&webhook, SystemTime::now()).unwrap();
        }
        all_of(&spool, &of(tenant("greedy"), false));
        drop(spool);
        let (spool, found) = Spool::open(folder.path().to_owned(), WIDE).unwrap();
        let kept: Vec<_> = found.iter().take(3).map(|entry| entry.of.clone()).collect();
        assert_eq!(kept, sources);
        assert_eq!(all_of(&spool, &of(tenant("greedy"), false)), 0);
        assert!(all_of(&spool, &of(tenant("b"), false)) > 0);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_left_aside_and_stops_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let (spool, _) = Spool::open(folder.path().to_owned(), BOUNDS).unwrap();
        spool.put(&webhook("a"), SystemTime::now()).unwrap();
        fs::write(folder.path().join("00.json"), "{\"id\":").unwrap();
        drop(spool);
        let (_, found) = Spool::open(folder.path().to_owned(), BOUNDS).unwrap();
        assert_eq!(found.len(), 1);
        assert!(folder.path().join("00.unreadable").exists());
    }
}
