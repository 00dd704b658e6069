//! Looking up and listing stored recordings. Every query is made on behalf of somebody ([`Access`]) and never reveals
//! that recordings of other tenants exist.

use std::collections::{HashMap, VecDeque};

use futures_util::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Serialize;

use super::recording_location::{self, BEHIND_TENANTS, RecordingLocation};
use super::{METADATA, Metadata, Recordings, TRANSCRIPT, egress};
use vivavoce_auth::{Access, TenantId, Whose};
use vivavoce_core::stream_id::StreamId;
use vivavoce_seams::{ByteStream, RecordingStore, StoreError};

/// Recordings examined for one page, including those that the caller may not see.
const MAX_EXAMINED: usize = 1_000;
/// Names requested per listing when all are wanted.
const PAGE: usize = 1_000;
/// Tenant folders looked into concurrently.
const MAX_CONCURRENT: usize = 16;
/// The maximum size of `metadata.json`.
const MAX_METADATA: usize = 64 * 1024;

/// The result of looking up a name for somebody.
#[derive(Debug)]
pub enum Found {
    /// A stored recording.
    Stored(Box<StoredRecording>),
    /// A recording that is not finished, or not uploaded yet.
    NotYet,
    /// Several tenants have a recording of this name, and the caller may see more than one of them.
    Ambiguous,
    /// No recording that the caller may see.
    Nothing,
}

/// Decides whether somebody may see a recording for a given purpose.
pub type Shows = fn(&Metadata, &Access) -> bool;

/// A recording in the store.
#[derive(Debug)]
pub struct StoredRecording {
    /// Its metadata.
    pub metadata: Metadata,
    location: RecordingLocation,
}

impl StoredRecording {
    /// One whose metadata was read at this place.
    pub(super) const fn new(metadata: Metadata, location: RecordingLocation) -> Self {
        Self { metadata, location }
    }
}

/// A page of recordings: tenants' recordings first, ordered by folder and name.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Page {
    /// The recordings.
    pub recordings: Vec<Metadata>,
    /// More recordings may follow: pass this as `after`. A page may be short, or empty, and still have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Recordings {
    /// Looks up a recording by name. `whose` selects one where several tenants have the name, and `shows` decides which
    /// are visible.
    pub async fn find(
        &self,
        name: &str,
        whose: Option<&Whose>,
        access: &Access,
        shows: Shows,
    ) -> Result<Found, StoreError> {
        // All recordings have valid names, and no other name is safe as part of a key.
        if StreamId::parse(name).is_err() {
            return Ok(Found::Nothing);
        }
        match (whose, access.tenant()) {
            (Some(whose), _) => {
                let owner = whose.tenant().map(TenantId::as_str);
                self.find_of(owner, name, access, shows).await
            }
            (None, Some(tenant)) => {
                match self
                    .find_of(Some(tenant.as_str()), name, access, shows)
                    .await?
                {
                    Found::Nothing => self.find_of(None, name, access, shows).await,
                    found => Ok(found),
                }
            }
            (None, None) => self.find_of_anybody(name, access, shows).await,
        }
    }

    /// Looks among the recordings of one owner.
    async fn find_of(
        &self,
        owner: Option<&str>,
        name: &str,
        access: &Access,
        shows: Shows,
    ) -> Result<Found, StoreError> {
        let theirs =
            |metadata: &Metadata| metadata.tenant.as_deref() == owner && shows(metadata, access);
        let location = RecordingLocation::new(owner, name);
        let top = RecordingLocation::top(name);
        // Checked first: a journal is removed only after everything has been stored.
        let mut in_progress = self
            .in_progress(&location)
            .await?
            .is_some_and(|known| theirs(&known));
        if owner.is_some() && !in_progress {
            // A journal written by version 0.1.0.
            in_progress = self
                .in_progress(&top)
                .await?
                .is_some_and(|known| theirs(&known));
        }
        let locations = if owner.is_some() {
            vec![location, top]
        } else {
            vec![top]
        };
        for location in locations {
            match self.metadata(&location).await {
                Ok(metadata) if theirs(&metadata) => {
                    let kept = StoredRecording { metadata, location };
                    return Ok(Found::Stored(Box::new(kept)));
                }
                Ok(_) | Err(StoreError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(if in_progress {
            Found::NotYet
        } else {
            Found::Nothing
        })
    }

    /// Looks among the recordings of all owners, for a caller without a tenant. Costs one request per tenant that has
    /// recordings.
    async fn find_of_anybody(
        &self,
        name: &str,
        access: &Access,
        shows: Shows,
    ) -> Result<Found, StoreError> {
        let mut found: HashMap<Option<String>, Found> = HashMap::new();
        let stream_id = name.to_owned();
        let journals = self.in_journals(move |journals| journals.all_of(&stream_id));
        let mut in_progress = journals.await?;
        in_progress.extend(egress::all_of(self, name).await?);
        for known in in_progress {
            if known.stream_id == name && shows(&known, access) {
                found.insert(known.tenant, Found::NotYet);
            }
        }
        let mut locations = vec![RecordingLocation::top(name)];
        if access.sees_every_tenant() {
            let tenants = tenants(self.store.as_ref(), &self.prefix).await?;
            locations.extend(
                tenants
                    .iter()
                    .map(|folder| RecordingLocation::listed(folder, name)),
            );
        }
        let mut looked = stream::iter(locations)
            .map(async |location| (self.metadata(&location).await, location))
            .buffer_unordered(MAX_CONCURRENT);
        while let Some((known, location)) = looked.next().await {
            match known {
                Ok(metadata) if shows(&metadata, access) => {
                    let kept = StoredRecording { metadata, location };
                    found.insert(kept.metadata.tenant.clone(), Found::Stored(Box::new(kept)));
                }
                Ok(_) | Err(StoreError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        let mut found = found.into_values();
        match (found.next(), found.next()) {
            (None, _) => Ok(Found::Nothing),
            (Some(one), None) => Ok(one),
            (Some(_), Some(_)) => Ok(Found::Ambiguous),
        }
    }

    /// The metadata of a recording that is not in the store yet.
    async fn in_progress(
        &self,
        location: &RecordingLocation,
    ) -> Result<Option<Metadata>, StoreError> {
        let journal = location.clone();
        let journal = self.in_journals(move |journals| journals.look_up(&journal));
        match journal.await? {
            None => Ok(egress::look_up(self, location).await?),
            journal => Ok(journal),
        }
    }

    /// The audio of a recording, or a range of its bytes.
    pub async fn sound(
        &self,
        kept: &StoredRecording,
        range: Option<std::ops::Range<u64>>,
    ) -> Result<ByteStream, StoreError> {
        self.store
            .get(&kept.location.audio(&self.prefix, &kept.metadata), range)
            .await
    }

    /// The transcript of a recording, with its size in bytes.
    pub async fn transcript(
        &self,
        kept: &StoredRecording,
    ) -> Result<(u64, ByteStream), StoreError> {
        let key = kept.location.key(&self.prefix, TRANSCRIPT);
        let size = self.store.head(&key).await?.size;
        Ok((size, self.store.get(&key, Some(0..size)).await?))
    }

    /// Deletes a recording. The metadata goes last, so that the owner can try again after a failure.
    pub async fn remove(&self, kept: &StoredRecording) -> Result<(), StoreError> {
        let audio = kept.location.audio(&self.prefix, &kept.metadata);
        self.store.delete(&audio).await?;
        for file in [TRANSCRIPT, METADATA] {
            self.store
                .delete(&kept.location.key(&self.prefix, file))
                .await?;
        }
        Ok(())
    }

    /// A page of the recordings that the caller may see, after `after`.
    pub async fn page(
        &self,
        access: &Access,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let _turn = self.listings.acquire(&access.party()).await;
        let mut page = Page::default();
        let mut walk = match access.tenant() {
            Some(tenant) => {
                Walk::of_tenant(&recording_location::tenant_folder(tenant.as_str()), after)
            }
            None if access.sees_every_tenant() => Walk::of_all(after),
            None => Walk::of_nobody(after),
        };
        let mut left = MAX_EXAMINED;
        while left > 0 {
            let (locations, more) = walk.next(self.store.as_ref(), &self.prefix, left).await?;
            left -= locations.len().clamp(1, left);
            for location in locations {
                if page.recordings.len() >= limit {
                    return Ok(page);
                }
                page.next = Some(location.path().into_owned());
                match self.metadata(&location).await {
                    Ok(metadata) if metadata.may_be_seen_by(access) => {
                        page.recordings.push(metadata);
                    }
                    // Another tenant's, half uploaded, or deleted in the meantime.
                    Ok(_) | Err(StoreError::NotFound) => {}
                    Err(error) => return Err(error),
                }
            }
            if !more {
                page.next = None;
                break;
            }
        }
        Ok(page)
    }

    pub(super) async fn metadata(
        &self,
        location: &RecordingLocation,
    ) -> Result<Metadata, StoreError> {
        metadata(self.store.as_ref(), &self.prefix, location).await
    }
}

/// An iterator over the store, one listing at a time: through the tenants' folders, and through the names directly
/// below the prefix.
#[derive(Debug)]
pub struct Walk {
    /// The tenant folder being listed, and the last name listed in it.
    inside: Option<(String, Option<String>)>,
    /// The last name listed below the prefix, the names still to be visited, and whether the listing has more.
    listed: Option<String>,
    names: VecDeque<String>,
    more: bool,
    /// Whether to descend into tenant folders.
    descends: bool,
}

impl Walk {
    const fn new(
        inside: Option<(String, Option<String>)>,
        listed: Option<String>,
        descends: bool,
    ) -> Self {
        Self {
            inside,
            listed,
            names: VecDeque::new(),
            more: true,
            descends,
        }
    }

    /// Everything, after a path returned before.
    pub fn of_all(after: Option<&str>) -> Self {
        match after.map(folder_of) {
            Some((Some(folder), name)) => {
                let inside = (folder.to_owned(), Some(name.to_owned()));
                Self::new(Some(inside), Some(folder.to_owned()), true)
            }
            Some((None, name)) => Self::new(None, Some(name.to_owned()), true),
            None => Self::new(None, None, true),
        }
    }

    /// One tenant's folder, and what version 0.1.0 stored directly below the prefix.
    pub(super) fn of_tenant(own: &str, after: Option<&str>) -> Self {
        let behind = match after.map(folder_of) {
            Some((None, _)) => return Self::of_nobody(after),
            Some((Some(folder), name)) if folder == own => Some(name.to_owned()),
            // Nothing of this tenant is in another tenant's folder.
            _ => None,
        };
        let top = Some(BEHIND_TENANTS.to_owned());
        Self::new(Some((own.to_owned(), behind)), top, false)
    }

    /// The names directly below the prefix.
    pub(super) fn of_nobody(after: Option<&str>) -> Self {
        let top = after.unwrap_or_default().max(BEHIND_TENANTS);
        Self::new(None, Some(top.to_owned()), false)
    }

    /// The next recordings, and whether there may be more.
    pub async fn next(
        &mut self,
        store: &dyn RecordingStore,
        prefix: &str,
        limit: usize,
    ) -> Result<(Vec<RecordingLocation>, bool), StoreError> {
        if let Some((folder, after)) = self.inside.take() {
            let below = format!("{prefix}/{folder}");
            let listing = store.list(&below, after.as_deref(), limit).await?;
            let locations = listing
                .names
                .iter()
                .map(|name| RecordingLocation::listed(&folder, name));
            let locations = locations.collect();
            if let Some(last) = listing.names.into_iter().last().filter(|_| listing.more) {
                self.inside = Some((folder, Some(last)));
            }
            return Ok((locations, true));
        }
        if self.names.is_empty() && self.more {
            let listing = store.list(prefix, self.listed.as_deref(), limit).await?;
            self.listed = listing.names.last().cloned().or(self.listed.take());
            self.more = listing.more && !listing.names.is_empty();
            self.names = listing.names.into();
        }
        let mut locations = Vec::new();
        while let Some(name) = self.names.pop_front() {
            if !recording_location::is_tenant(&name) {
                locations.push(RecordingLocation::top(&name));
            } else if self.descends {
                self.inside = Some((name, None));
                break;
            }
        }
        let more = self.inside.is_some() || !self.names.is_empty() || self.more;
        Ok((locations, more))
    }
}

/// Splits a path into the tenant's folder, if any, and the name.
fn folder_of(path: &str) -> (Option<&str>, &str) {
    match path.split_once('/') {
        Some((folder, name)) if recording_location::is_tenant(folder) => (Some(folder), name),
        _ => (None, path),
    }
}

/// The locations of all recordings.
pub async fn all(
    store: &dyn RecordingStore,
    prefix: &str,
) -> Result<Vec<RecordingLocation>, StoreError> {
    let mut walk = Walk::of_all(None);
    let mut all = Vec::new();
    loop {
        let (locations, more) = walk.next(store, prefix, PAGE).await?;
        all.extend(locations);
        if !more {
            return Ok(all);
        }
    }
}

/// The folders of tenants that have recordings.
async fn tenants(store: &dyn RecordingStore, prefix: &str) -> Result<Vec<String>, StoreError> {
    let mut tenants: Vec<String> = Vec::new();
    loop {
        let after = tenants.last().map(String::as_str);
        let listing = store.list(prefix, after, PAGE).await?;
        let listed = listing.names.len();
        let before = tenants.len();
        // In listing order, tenant folders come first.
        tenants.extend(
            listing
                .names
                .into_iter()
                .take_while(|name| recording_location::is_tenant(name)),
        );
        if !listing.more || listed == 0 || tenants.len() - before < listed {
            return Ok(tenants);
        }
    }
}

/// The metadata of a stored recording, whoever it belongs to.
pub async fn metadata(
    store: &dyn RecordingStore,
    prefix: &str,
    location: &RecordingLocation,
) -> Result<Metadata, StoreError> {
    let mut pieces = store.get(&location.key(prefix, METADATA), None).await?;
    let mut text = Vec::new();
    while let Some(piece) = pieces.next().await {
        text.extend_from_slice(&piece?);
        if text.len() > MAX_METADATA {
            break;
        }
    }
    let metadata = serde_json::from_slice::<Metadata>(&text).ok();
    metadata
        .filter(|metadata| location.holds(metadata))
        .ok_or(StoreError::NotFound)
}
