//! Egress of embedded rooms: what LiveKit's egress API starts, lists and stops. An egress is a participant that nobody sees and
//! a recording ([`run`]), which is kept, uploaded, found and removed like the recordings of sessions, by the egress's id.
//!
//! Notes on disk ([`notes`]) tell of egresses for a day, also after a killed process: its recordings are finished by the next
//! one, which then reports their end. LiveKit's webhooks report each change, `recording.stored` the file as of any recording.

pub mod file_name;
mod notes;
pub mod request;
mod run;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use livekit_protocol as proto;
use proto::{EgressInfo, EgressSourceType, EgressStatus, FileInfo, WebhookEvent};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::ids::alphanumeric;
use crate::threads::Threads;
use file_name::{Names, file_name};
use notes::{Note, Notes};
use request::{Automatic, Wanted, What};
use run::{End, Plan};
use vivavoce_auth::{Owner, Principal, TenantId};
use vivavoce_core::unix_time::unix_ms;
use vivavoce_quotas::{Party, Quota, Refused};
use vivavoce_recordings::{Metadata, Recordings, Whereabouts};
use vivavoce_seams::rooms::link::Listen;
use vivavoce_seams::{RoomError, RoomProvider, StoreError};
use vivavoce_webhooks::RoomEvents;

/// How long the store may take to say whether a file is there.
const STORE_TIMEOUT: Duration = Duration::from_secs(3);
/// Why an egress of a killed process has no file.
const NEVER_BEGAN: &str = "the server ended before there was anything to record";

/// Why an egress is refused.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// It names a field.
    #[error("{0}")]
    InvalidArgument(String),
    /// A room, participant, track or egress is not there.
    #[error("{0}")]
    NotFound(&'static str),
    /// The file is there already.
    #[error("{0}: there is such a file, and recordings are never overwritten")]
    Exists(&'static str),
    /// The state of the egress does not allow it.
    #[error("{0}")]
    FailedPrecondition(String),
    /// A quota is used up.
    #[error(transparent)]
    Quota(#[from] Refused),
    /// Rooms, disk or threads are not available.
    #[error("{0}")]
    Unavailable(String),
}

impl From<RoomError> for EgressError {
    fn from(error: RoomError) -> Self {
        Self::Unavailable(error.message)
    }
}

impl From<io::Error> for EgressError {
    fn from(error: io::Error) -> Self {
        Self::Unavailable(format!("the note of the egress: {error}"))
    }
}

/// The egress of the embedded rooms. Clones share it.
#[derive(Clone)]
pub struct EgressService(Arc<Inner>);

struct Inner {
    rooms: Arc<dyn RoomProvider>,
    recordings: Arc<Recordings>,
    quota: Quota,
    notes: Notes,
    /// Those that run here, or whose recordings wait for the store here.
    live: Mutex<HashMap<String, Live>>,
    /// One of them is no more.
    left: Notify,
    /// One change at a time, so that notes and webhooks have the order of the changes.
    changing: tokio::sync::Mutex<()>,
    /// By the room's sid.
    automatic: Mutex<HashMap<String, Automatic>>,
    /// Where LiveKit's webhooks go, until the server stops.
    events: Mutex<Option<RoomEvents>>,
    work: TaskTracker,
    threads: Threads,
}

struct Live {
    note: Note,
    stop: CancellationToken,
    /// Why its recording was cut off.
    problem: Option<String>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EgressService {
    /// The egress of these rooms into these recordings, on so many threads.
    pub fn open(
        rooms: Arc<dyn RoomProvider>,
        recordings: Arc<Recordings>,
        quota: Quota,
        events: RoomEvents,
        (data_dir, threads): (&Path, usize),
    ) -> io::Result<Self> {
        let service = Self(Arc::new(Inner {
            rooms,
            recordings,
            quota,
            notes: Notes::open(data_dir)?,
            live: Mutex::default(),
            left: Notify::new(),
            changing: tokio::sync::Mutex::default(),
            automatic: Mutex::default(),
            events: Mutex::new(Some(events)),
            work: TaskTracker::new(),
            threads: Threads::new(threads),
        }));
        let inner = Arc::downgrade(&service.0);
        service.0.recordings.tell(Arc::new(move |metadata, kept| {
            let Some(inner) = inner.upgrade() else {
                return;
            };
            if metadata.stream_id.starts_with("EG_") {
                let metadata = metadata.clone();
                tokio::spawn(async move { Self(inner).settle(&metadata, kept).await });
            }
        }));
        Ok(service)
    }

    fn rooms(&self) -> &Arc<dyn RoomProvider> {
        &self.0.rooms
    }

    fn recordings(&self) -> &Arc<Recordings> {
        &self.0.recordings
    }

    fn work(&self) -> TaskTrackerToken {
        self.0.work.token()
    }

    /// Takes over what a killed process has left, before anything is started here, and not while that process may still run.
    pub async fn recover(&self) {
        let Ok(mut left) = self.all().await else {
            return;
        };
        left.retain(|note| !note.has_ended());
        let service = self.clone();
        // The store may be slow.
        tokio::spawn(async move { service.take_over(left).await });
    }

    async fn take_over(&self, left: Vec<Note>) {
        for note in left {
            match self.0.recordings.whereabouts(&note.metadata).await {
                // Its upload will tell.
                Ok(Whereabouts::Journal) => {}
                Ok(Whereabouts::Store(metadata)) => self.settle(&metadata, Ok(())).await,
                Ok(Whereabouts::Nowhere) => {
                    self.settle(&note.metadata, Err(NEVER_BEGAN.to_owned()))
                        .await;
                }
                Err(error) => {
                    tracing::warn!(%error, "the store could not be asked for the recording of an egress");
                }
            }
        }
    }

    /// Starts an egress on behalf of somebody.
    pub async fn start(&self, wanted: Wanted, by: &Principal) -> Result<EgressInfo, EgressError> {
        const NO_ROOM: EgressError = EgressError::NotFound("requested room does not exist");
        let room = self.0.rooms.room(&wanted.room).await?.ok_or(NO_ROOM)?;
        let owner = Owner::of(&room.metadata);
        if !owner.admits(by) || *by == Principal::Public {
            return Err(NO_ROOM);
        }
        let source = self.source(&wanted).await?;
        let mut names = Names {
            room_name: room.name.clone(),
            room_id: room.sid.clone(),
            unnamed: room.name.clone(),
            at: Some(SystemTime::now()),
            ..Names::default()
        };
        let (identity, listen) = match source {
            None => (None, Listen::All),
            Some((identity, track)) => {
                names.publisher_identity = Some(identity.clone());
                if let What::Track(sid) = &wanted.what {
                    names.unnamed.clone_from(sid);
                    names.track_id = Some(sid.clone());
                    let source = track.map(|track| track.source().as_str_name().to_lowercase());
                    names.track_source = source;
                } else {
                    names.unnamed.clone_from(&identity);
                }
                (Some(identity.clone()), Listen::Only(vec![identity]))
            }
        };
        let (template, field) = &wanted.filepath;
        let file = file_name(template, &names);
        let file =
            file.map_err(|problem| EgressError::InvalidArgument(format!("{field}: {problem}")))?;
        let id = format!("EG_{}", alphanumeric(14));
        let participant = |identity| vivavoce_recordings::Participant {
            identity,
            provider: None,
        };
        let metadata = Metadata {
            stream_id: id.clone(),
            tenant: owner.tenant().map(str::to_owned),
            public: false,
            started_at: unix_ms(SystemTime::now()),
            duration_ms: 0,
            size: 0,
            sha256: String::new(),
            channels: 1,
            participants: identity.into_iter().map(participant).collect(),
            complete: false,
            goes_on: false,
            parts: Vec::new(),
            cut: false,
            continues: None,
            file,
        };
        let permit = self.0.quota.take(&owner.party())?;
        self.check_file(&metadata, field).await?;
        let now = unix_ns();
        let file = FileInfo {
            filename: self.0.recordings.audio_key(&metadata),
            location: format!("/recording/{id}"),
            ..FileInfo::default()
        };
        let info = EgressInfo {
            egress_id: id.clone(),
            room_id: room.sid,
            room_name: room.name.clone(),
            source_type: EgressSourceType::Sdk.into(),
            status: EgressStatus::EgressStarting.into(),
            updated_at: now,
            file_results: vec![file],
            request: Some(wanted.request),
            ..EgressInfo::default()
        };
        let stop = CancellationToken::new();
        let plan = Plan {
            id: id.clone(),
            room: room.name,
            what: wanted.what,
            listen,
            principal: match owner {
                Owner::Tenant(tenant) => Principal::Tenant(tenant),
                _ => Principal::Operator,
            },
            metadata: metadata.clone(),
            permit,
            stop: stop.clone(),
        };
        let note = Note { info, metadata };
        self.begin(note.clone(), stop, plan).await?;
        Ok(note.info)
    }

    async fn begin(
        &self,
        note: Note,
        stop: CancellationToken,
        plan: Plan,
    ) -> Result<(), EgressError> {
        let one_at_a_time = self.0.changing.lock().await;
        let file = |live: &Live| {
            let (its, wanted) = (&live.note.metadata, &note.metadata);
            wanted.file.is_some() && its.file == wanted.file && its.tenant == wanted.tenant
        };
        if locked(&self.0.live).values().any(file) {
            return Err(EgressError::Exists("filepath"));
        }
        self.write(note.clone()).await?;
        let id = note.info.egress_id.clone();
        self.report("egress_started", &note).await;
        let live = Live {
            note,
            stop,
            problem: None,
        };
        locked(&self.0.live).insert(id.clone(), live);
        let (service, working) = (self.clone(), self.work());
        let begun = self.0.threads.next().spawn_fn(move || {
            actix::spawn(async move {
                run::run(service, plan).await;
                drop(working);
            });
        });
        if begun {
            return Ok(());
        }
        drop(one_at_a_time);
        let why = "the server is stopping";
        self.close(&id, EgressStatus::EgressFailed, why).await;
        Err(EgressError::Unavailable(why.to_owned()))
    }

    /// It is over, here.
    fn forget(&self, id: &str) {
        locked(&self.0.live).remove(id);
        self.0.left.notify_waiters();
    }

    /// The participant, and the track, that a request names.
    async fn source(
        &self,
        wanted: &Wanted,
    ) -> Result<Option<(String, Option<proto::TrackInfo>)>, EgressError> {
        if wanted.what == What::Room {
            return Ok(None);
        }
        let participants = self.0.rooms.participants(&wanted.room).await?;
        match &wanted.what {
            What::Room => Ok(None),
            What::Participant(identity) => {
                let there = participants.iter().any(|there| there.identity == *identity);
                let absent = EgressError::NotFound("requested participant does not exist");
                there.then(|| Some((identity.clone(), None))).ok_or(absent)
            }
            What::Track(sid) => {
                let mut tracks = participants.into_iter().flat_map(|participant| {
                    let identity = participant.identity;
                    participant
                        .tracks
                        .into_iter()
                        .map(move |track| (identity.clone(), track))
                });
                let found = tracks.find(|(_, track)| track.sid == *sid);
                let absent = EgressError::NotFound("requested track does not exist");
                let (identity, track) = found.ok_or(absent)?;
                if track.r#type() != proto::TrackType::Audio {
                    let problem = "track_id: embedded rooms record sound only, and this is video";
                    return Err(EgressError::InvalidArgument(problem.to_owned()));
                }
                Ok(Some((identity, Some(track))))
            }
        }
    }

    /// Refuses a file that is there, as far as the store can be asked.
    async fn check_file(
        &self,
        metadata: &Metadata,
        field: &'static str,
    ) -> Result<(), EgressError> {
        if metadata.file.is_none() {
            return Ok(());
        }
        let key = self.0.recordings.audio_key(metadata);
        let there = self.0.recordings.store().head(&key);
        match tokio::time::timeout(STORE_TIMEOUT, there).await {
            Ok(Ok(_)) => Err(EgressError::Exists(field)),
            // A store that is away gets the recording later, as any other.
            Ok(Err(StoreError::NotFound)) | Err(_) => Ok(()),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the store could not be asked whether a file exists");
                Ok(())
            }
        }
    }

    /// Egresses that somebody may see, oldest first: of this room, of this id, or those that go on; empty means all.
    pub async fn list(
        &self,
        said: &proto::ListEgressRequest,
        by: &Principal,
    ) -> Result<Vec<EgressInfo>, EgressError> {
        let all = self.all().await?.into_iter();
        let wanted = all.filter(|note| {
            may_see(by, note)
                && (said.room_name.is_empty() || note.info.room_name == said.room_name)
                && (said.egress_id.is_empty() || note.info.egress_id == said.egress_id)
                && (!said.active || !note.has_ended())
        });
        Ok(wanted.map(|note| note.info).collect())
    }

    /// Stops an egress.
    pub async fn stop(&self, id: &str, by: &Principal) -> Result<EgressInfo, EgressError> {
        let note = self.note(id).await.filter(|note| may_see(by, note));
        let note = note.ok_or(EgressError::NotFound("requested egress does not exist"))?;
        let status = note.info.status();
        let goes = [EgressStatus::EgressStarting, EgressStatus::EgressActive];
        if !goes.contains(&status) {
            let problem = format!(
                "egress with status {} cannot be stopped",
                status.as_str_name()
            );
            return Err(EgressError::FailedPrecondition(problem));
        }
        let stop = locked(&self.0.live).get(id).map(|live| live.stop.clone());
        let elsewhere = "it is at the server that this one replaces".to_owned();
        let stop = stop.ok_or(EgressError::Unavailable(elsewhere))?;
        let note = self.ending(id).await.unwrap_or(note);
        stop.cancel();
        Ok(note.info)
    }

    /// What `CreateRoom` asked to be recorded of a room. The first such request counts.
    pub async fn record_room(
        &self,
        room: &proto::Room,
        automatic: Automatic,
        by: &Principal,
    ) -> Result<(), EgressError> {
        let whole = automatic.room.clone();
        {
            let mut all = locked(&self.0.automatic);
            if all.contains_key(&room.sid) {
                return Ok(());
            }
            all.insert(room.sid.clone(), automatic);
        }
        if let Some(whole) = whole {
            self.start(Wanted::of_room(whole)?, by).await?;
        }
        Ok(())
    }

    /// Follows the events of rooms: participants and tracks that are to be recorded come, and rooms end.
    pub fn observe(&self, event: &WebhookEvent) {
        let Some(room) = &event.room else {
            return;
        };
        if event.event == "room_finished" {
            locked(&self.0.automatic).remove(&room.sid);
            return;
        }
        let automatic = locked(&self.0.automatic).get(&room.sid).cloned();
        let Some(automatic) = automatic else {
            return;
        };
        let wanted = match (event.event.as_str(), &event.participant, &event.track) {
            ("participant_joined", Some(joined), _) if is_recorded(joined) => {
                automatic.of_participant(&room.name, &joined.identity)
            }
            ("track_published", _, Some(track)) if track.r#type() == proto::TrackType::Audio => {
                automatic.of_track(&room.name, &track.sid)
            }
            _ => None,
        };
        if let Some(Ok(wanted)) = wanted {
            let service = self.clone();
            self.0.work.spawn(async move {
                // The key pair's holder asked for it.
                if let Err(error) = service.start(wanted, &Principal::Operator).await {
                    tracing::warn!(%error, "an automatic egress could not be started");
                }
            });
        }
    }

    /// Ends all, because the server stops, and waits until they are in the store, for `patience` at most.
    pub async fn finish(&self, patience: Duration) {
        for live in locked(&self.0.live).values() {
            live.stop.cancel();
        }
        self.0.work.close();
        let finished = async {
            self.0.work.wait().await;
            loop {
                let left = self.0.left.notified();
                tokio::pin!(left);
                // From here on none that leaves is missed.
                left.as_mut().enable();
                if locked(&self.0.live).is_empty() {
                    return;
                }
                left.await;
            }
        };
        let _what_is_left_is_told_by_the_next_process =
            tokio::time::timeout(patience, finished).await;
        locked(&self.0.events).take();
    }

    async fn all(&self) -> io::Result<Vec<Note>> {
        let notes = self.0.notes.clone();
        blocking(move || notes.all()).await
    }

    async fn note(&self, id: &str) -> Option<Note> {
        let live = locked(&self.0.live).get(id).map(|live| live.note.clone());
        if live.is_some() {
            return live;
        }
        let (notes, id) = (self.0.notes.clone(), id.to_owned());
        blocking(move || Ok(notes.read(&id))).await.ok()?
    }

    async fn write(&self, note: Note) -> io::Result<()> {
        let notes = self.0.notes.clone();
        blocking(move || notes.write(&note)).await
    }

    /// The recording has begun.
    async fn active(&self, id: &str) {
        let change = |info: &mut EgressInfo| {
            info.status = EgressStatus::EgressActive.into();
            info.started_at = info.updated_at;
            if let Some(file) = info.file_results.first_mut() {
                file.started_at = info.started_at;
            }
            Some("egress_updated")
        };
        self.change(id, change).await;
    }

    /// It was stopped, or has ended by itself.
    async fn ending(&self, id: &str) -> Option<Note> {
        let change = |info: &mut EgressInfo| {
            if info.status() == EgressStatus::EgressEnding {
                return None;
            }
            info.status = EgressStatus::EgressEnding.into();
            info.ended_at = info.updated_at;
            Some("egress_updated")
        };
        self.change(id, change).await
    }

    /// It has left the room.
    async fn ran(&self, id: &str, end: End) {
        match end {
            End::Recorded(problem) => {
                if let Some(live) = locked(&self.0.live).get_mut(id) {
                    live.problem = problem;
                }
                // Its upload tells the rest.
                self.ending(id).await;
            }
            End::Aborted(why) => self.close(id, EgressStatus::EgressAborted, why).await,
            End::Failed(why) => self.close(id, EgressStatus::EgressFailed, &why).await,
        }
    }

    async fn close(&self, id: &str, status: EgressStatus, why: &str) {
        let change = |info: &mut EgressInfo| {
            info.status = status.into();
            if info.ended_at == 0 {
                info.ended_at = info.updated_at;
            }
            why.clone_into(&mut info.error);
            info.file_results.clear();
            Some("egress_ended")
        };
        self.change(id, change).await;
        self.forget(id);
    }

    /// The recording is in the store, or never will be.
    async fn settle(&self, metadata: &Metadata, kept: Result<(), String>) {
        let id = &metadata.stream_id;
        if let Err(why) = kept {
            return self.close(id, EgressStatus::EgressFailed, &why).await;
        }
        let problem = locked(&self.0.live)
            .get(id)
            .and_then(|live| live.problem.clone());
        let key = self.0.recordings.audio_key(metadata);
        let change = |info: &mut EgressInfo| {
            let ns = |ms: u64| i64::try_from(ms).unwrap_or(0).saturating_mul(1_000_000);
            info.status = EgressStatus::EgressComplete.into();
            info.started_at = ns(metadata.started_at);
            let ended_at = ns(metadata.started_at + metadata.duration_ms);
            if info.ended_at == 0 {
                info.ended_at = ended_at;
            }
            if !metadata.complete {
                let why = problem.as_deref().unwrap_or("the server process ended");
                info.details = format!("the recording was cut off: {why}");
            }
            info.file_results = vec![FileInfo {
                filename: key,
                started_at: info.started_at,
                ended_at,
                duration: ns(metadata.duration_ms),
                size: i64::try_from(metadata.size).unwrap_or(i64::MAX),
                location: format!("/recording/{}", metadata.stream_id),
            }];
            Some("egress_ended")
        };
        self.change(id, change).await;
        self.forget(id);
    }

    /// Changes what is known of an egress that has not ended, and reports it by the event that the change names.
    async fn change(
        &self,
        id: &str,
        change: impl FnOnce(&mut EgressInfo) -> Option<&'static str>,
    ) -> Option<Note> {
        let _one_at_a_time = self.0.changing.lock().await;
        let mut note = self.note(id).await.filter(|note| !note.has_ended())?;
        note.info.updated_at = unix_ns();
        let Some(event) = change(&mut note.info) else {
            return Some(note);
        };
        if let Some(live) = locked(&self.0.live).get_mut(id) {
            live.note = note.clone();
        }
        if let Err(error) = self.write(note.clone()).await {
            tracing::warn!(%error, "the note of an egress could not be written");
        }
        self.report(event, &note).await;
        Some(note)
    }

    async fn report(&self, event: &str, note: &Note) {
        let Some(events) = locked(&self.0.events).clone() else {
            return;
        };
        let event = WebhookEvent {
            event: event.to_owned(),
            egress_info: Some(note.info.clone()),
            id: format!("EV_{}", uuid::Uuid::new_v4().simple()),
            created_at: i64::try_from(unix_ms(SystemTime::now()) / 1_000).unwrap_or(0),
            ..WebhookEvent::default()
        };
        let tenant = note
            .metadata
            .tenant
            .as_deref()
            .and_then(|id| TenantId::new(id).ok());
        let of = tenant.map_or(Party::Operator, Party::Tenant);
        events.enqueue(&Arc::new(event), of).await;
    }
}

/// Whether somebody may see an egress: the operator all, a tenant those of its rooms.
fn may_see(by: &Principal, note: &Note) -> bool {
    match by {
        Principal::Operator => true,
        Principal::Tenant(tenant) => note.metadata.tenant.as_deref() == Some(tenant.as_str()),
        Principal::Public => false,
    }
}

/// Whether a participant who comes is one to be recorded.
fn is_recorded(joined: &proto::ParticipantInfo) -> bool {
    let hidden = joined.permission.as_ref().is_some_and(|may| may.hidden);
    !hidden && joined.kind() != proto::participant_info::Kind::Egress
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn unix_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX)
}
