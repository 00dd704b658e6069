//! Finding recordings again: by name, page by page, always for somebody, who never learns of what is not theirs.

use std::collections::{HashMap, VecDeque};

use futures_util::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Serialize;

use super::place::{self, BEHIND_TENANTS, Place};
use super::{AUDIO, METADATA, Metadata, Recordings, TRANSCRIPT, egress};
use vivavoce_auth::{Access, TenantId, Whose};
use vivavoce_core::stream_id::StreamId;
use vivavoce_seams::{ByteStream, RecordingStore, StoreError};

/// Recordings that are looked at for one page at most, whoever they belong to.
const LOOKED_AT: usize = 1_000;
/// Names that are asked for at once where all are wanted.
const PAGE: usize = 1_000;
/// Folders of tenants that are looked into at once.
const AT_ONCE: usize = 16;
/// No `metadata.json` of ours is longer.
const MAX_METADATA: usize = 64 * 1024;

/// What there is under a name, for somebody.
#[derive(Debug)]
pub enum Found {
    /// A recording.
    Stored(Kept),
    /// One that is not finished, or not in the store yet.
    NotYet,
    /// Several tenants have one of this name, and whoever asks may see more than one of them.
    Several,
    /// Nothing that is there for them.
    Nothing,
}

/// Whether a recording is there for somebody, for what they want of it.
pub type Shows = fn(&Metadata, &Access) -> bool;

/// A recording in the store.
#[derive(Debug)]
pub struct Kept {
    /// What is known of it.
    pub metadata: Metadata,
    place: Place,
}

/// Some recordings: those of tenants first, in the order of their folders and names.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Page {
    /// What is known of them.
    pub recordings: Vec<Metadata>,
    /// There may be more behind this one: give it as `after`. A page may be short, or empty, and still have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Recordings {
    /// Looks up a name; `whose` says which where several have it, and `shows` whether one is there for somebody.
    pub async fn find(
        &self,
        name: &str,
        whose: Option<&Whose>,
        access: &Access,
        shows: Shows,
    ) -> Result<Found, StoreError> {
        // No recording of ours has another name, and no other name is a safe key.
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

    /// What somebody may see of one owner's.
    async fn find_of(
        &self,
        owner: Option<&str>,
        name: &str,
        access: &Access,
        shows: Shows,
    ) -> Result<Found, StoreError> {
        let theirs =
            |metadata: &Metadata| metadata.tenant.as_deref() == owner && shows(metadata, access);
        let place = Place::new(owner, name);
        let top = Place::top(name);
        // Asked first: a journal goes only when the store has everything.
        let mut under_way = self
            .under_way(&place)
            .await?
            .is_some_and(|known| theirs(&known));
        if owner.is_some() && !under_way {
            // One that version 0.1.0 has left.
            under_way = self
                .under_way(&top)
                .await?
                .is_some_and(|known| theirs(&known));
        }
        let places = if owner.is_some() {
            vec![place, top]
        } else {
            vec![top]
        };
        for place in places {
            match self.metadata(&place).await {
                Ok(metadata) if theirs(&metadata) => {
                    return Ok(Found::Stored(Kept { metadata, place }));
                }
                Ok(_) | Err(StoreError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(if under_way {
            Found::NotYet
        } else {
            Found::Nothing
        })
    }

    /// What somebody without a tenant may see, whoever it belongs to. Costs a question for every tenant that has recordings.
    async fn find_of_anybody(
        &self,
        name: &str,
        access: &Access,
        shows: Shows,
    ) -> Result<Found, StoreError> {
        let mut found: HashMap<Option<String>, Found> = HashMap::new();
        let stream_id = name.to_owned();
        let journals = self.in_journals(move |journals| journals.all_of(&stream_id));
        let mut under_way = journals.await?;
        under_way.extend(egress::all_of(self, name).await?);
        for known in under_way {
            if known.stream_id == name && shows(&known, access) {
                found.insert(known.tenant, Found::NotYet);
            }
        }
        let mut places = vec![Place::top(name)];
        if access.sees_every_tenant() {
            let tenants = tenants(self.store.as_ref(), &self.prefix).await?;
            places.extend(tenants.iter().map(|folder| Place::listed(folder, name)));
        }
        let mut looked = stream::iter(places)
            .map(async |place| (self.metadata(&place).await, place))
            .buffer_unordered(AT_ONCE);
        while let Some((known, place)) = looked.next().await {
            match known {
                Ok(metadata) if shows(&metadata, access) => {
                    let kept = Kept { metadata, place };
                    found.insert(kept.metadata.tenant.clone(), Found::Stored(kept));
                }
                Ok(_) | Err(StoreError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        let mut found = found.into_values();
        match (found.next(), found.next()) {
            (None, _) => Ok(Found::Nothing),
            (Some(one), None) => Ok(one),
            (Some(_), Some(_)) => Ok(Found::Several),
        }
    }

    /// What is known of one that is not in the store yet.
    async fn under_way(&self, place: &Place) -> Result<Option<Metadata>, StoreError> {
        let journal = place.clone();
        let journal = self.in_journals(move |journals| journals.look_up(&journal));
        match journal.await? {
            None => Ok(egress::look_up(self, place).await?),
            journal => Ok(journal),
        }
    }

    /// The sound of a recording, or a part of it.
    pub async fn sound(
        &self,
        kept: &Kept,
        range: Option<std::ops::Range<u64>>,
    ) -> Result<ByteStream, StoreError> {
        self.store
            .get(&kept.place.key(&self.prefix, AUDIO), range)
            .await
    }

    /// What was said in a recording, with its size in bytes.
    pub async fn transcript(&self, kept: &Kept) -> Result<(u64, ByteStream), StoreError> {
        let key = kept.place.key(&self.prefix, TRANSCRIPT);
        let size = self.store.head(&key).await?.size;
        Ok((size, self.store.get(&key, Some(0..size)).await?))
    }

    /// Removes a recording. What is known of it goes last, so that its owner can try again.
    pub async fn remove(&self, kept: &Kept) -> Result<(), StoreError> {
        for file in [AUDIO, TRANSCRIPT, METADATA] {
            self.store
                .delete(&kept.place.key(&self.prefix, file))
                .await?;
        }
        Ok(())
    }

    /// Some of those that are there for somebody, behind one that was told before.
    pub async fn page(
        &self,
        access: &Access,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let _turn = self.listings.acquire(&access.party()).await;
        let mut page = Page::default();
        let mut walk = match access.tenant() {
            Some(tenant) => Walk::of_tenant(&place::tenant_folder(tenant.as_str()), after),
            None if access.sees_every_tenant() => Walk::of_all(after),
            None => Walk::of_nobody(after),
        };
        let mut left = LOOKED_AT;
        while left > 0 {
            let (places, more) = walk.next(self.store.as_ref(), &self.prefix, left).await?;
            left -= places.len().clamp(1, left);
            for place in places {
                if page.recordings.len() >= limit {
                    return Ok(page);
                }
                page.next = Some(place.path().into_owned());
                match self.metadata(&place).await {
                    Ok(metadata) if metadata.may_be_seen_by(access) => {
                        page.recordings.push(metadata);
                    }
                    // Another's, half uploaded, or removed meanwhile.
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

    async fn metadata(&self, place: &Place) -> Result<Metadata, StoreError> {
        metadata(self.store.as_ref(), &self.prefix, place).await
    }
}

/// A way through what is stored, a listing at a time: through the folders of tenants, and along what lies directly below
/// the prefix.
#[derive(Debug)]
pub struct Walk {
    /// The folder that it is in, and how far it has got there.
    inside: Option<(String, Option<String>)>,
    /// How far the names below the prefix are listed, which of those are to come, and whether there are more.
    listed: Option<String>,
    names: VecDeque<String>,
    more: bool,
    /// Whether it goes into the folders that it finds.
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

    /// Through everything, behind a place that was told before.
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

    /// Through what is a tenant's, and what lies where version 0.1.0 has put it.
    fn of_tenant(own: &str, after: Option<&str>) -> Self {
        let behind = match after.map(folder_of) {
            Some((None, _)) => return Self::of_nobody(after),
            Some((Some(folder), name)) if folder == own => Some(name.to_owned()),
            // There is nothing of theirs in the folder of another.
            _ => None,
        };
        let top = Some(BEHIND_TENANTS.to_owned());
        Self::new(Some((own.to_owned(), behind)), top, false)
    }

    /// Along what lies directly below the prefix.
    fn of_nobody(after: Option<&str>) -> Self {
        let top = after.unwrap_or_default().max(BEHIND_TENANTS);
        Self::new(None, Some(top.to_owned()), false)
    }

    /// The next places, and whether there may be more behind them.
    pub async fn next(
        &mut self,
        store: &dyn RecordingStore,
        prefix: &str,
        limit: usize,
    ) -> Result<(Vec<Place>, bool), StoreError> {
        if let Some((folder, after)) = self.inside.take() {
            let below = format!("{prefix}/{folder}");
            let listing = store.list(&below, after.as_deref(), limit).await?;
            let places = listing
                .names
                .iter()
                .map(|name| Place::listed(&folder, name));
            let places = places.collect();
            if let Some(last) = listing.names.into_iter().last().filter(|_| listing.more) {
                self.inside = Some((folder, Some(last)));
            }
            return Ok((places, true));
        }
        if self.names.is_empty() && self.more {
            let listing = store.list(prefix, self.listed.as_deref(), limit).await?;
            self.listed = listing.names.last().cloned().or(self.listed.take());
            self.more = listing.more && !listing.names.is_empty();
            self.names = listing.names.into();
        }
        let mut places = Vec::new();
        while let Some(name) = self.names.pop_front() {
            if !place::is_tenant(&name) {
                places.push(Place::top(&name));
            } else if self.descends {
                self.inside = Some((name, None));
                break;
            }
        }
        let more = self.inside.is_some() || !self.names.is_empty() || self.more;
        Ok((places, more))
    }
}

/// The folder of a tenant and the name in it, or a name directly below the prefix.
fn folder_of(path: &str) -> (Option<&str>, &str) {
    match path.split_once('/') {
        Some((folder, name)) if place::is_tenant(folder) => (Some(folder), name),
        _ => (None, path),
    }
}

/// All places where something is stored.
pub async fn all(store: &dyn RecordingStore, prefix: &str) -> Result<Vec<Place>, StoreError> {
    let mut walk = Walk::of_all(None);
    let mut all = Vec::new();
    loop {
        let (places, more) = walk.next(store, prefix, PAGE).await?;
        all.extend(places);
        if !more {
            return Ok(all);
        }
    }
}

/// The folders of tenants that have something in the store.
async fn tenants(store: &dyn RecordingStore, prefix: &str) -> Result<Vec<String>, StoreError> {
    let mut tenants: Vec<String> = Vec::new();
    loop {
        let after = tenants.last().map(String::as_str);
        let listing = store.list(prefix, after, PAGE).await?;
        let listed = listing.names.len();
        let before = tenants.len();
        // They come before everything else.
        tenants.extend(
            listing
                .names
                .into_iter()
                .take_while(|name| place::is_tenant(name)),
        );
        if !listing.more || listed == 0 || tenants.len() - before < listed {
            return Ok(tenants);
        }
    }
}

/// What the store knows of a recording, whoever it belongs to.
pub async fn metadata(
    store: &dyn RecordingStore,
    prefix: &str,
    place: &Place,
) -> Result<Metadata, StoreError> {
    let mut pieces = store.get(&place.key(prefix, METADATA), None).await?;
    let mut text = Vec::new();
    while let Some(piece) = pieces.next().await {
        text.extend_from_slice(&piece?);
        if text.len() > MAX_METADATA {
            break;
        }
    }
    let metadata = serde_json::from_slice::<Metadata>(&text).ok();
    metadata
        .filter(|metadata| place.holds(metadata))
        .ok_or(StoreError::NotFound)
}
