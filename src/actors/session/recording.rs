//! The recording of a session: its journal begins with the config that asks for it, its recorder starts when that config
//! is in force, and it ends with the session or with a config that asks for none.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::error_codes::Refusal;
use super::playback::Speak;
use super::protocol::{ErrorCode, ServerMessage, SessionParams, StreamId, WarningCode};
use super::{Player, SessionActor};
use crate::recorder::{RecorderActor, StopRecording, Tap};
use crate::start_in_span;
use vivavoce_audio::SampleRate;
use vivavoce_auth::TenantId;
use vivavoce_quotas::Refused;
use vivavoce_recordings::egress::{self, Egress};
use vivavoce_recordings::journal::Journal;
use vivavoce_recordings::{BeginError, Metadata, Participant};

/// Where a recording that is divided stays so.
const DIVIDED: &str = "what was recorded so far stays at the former server, as an incomplete recording: this server does not \
                       have its store (recording.backend s3 keeps one recording)";
/// The `id` of the utterance that says that a recording begins.
const ANNOUNCEMENT: &str = "recording_announcement";

/// The last millisecond of the year 9999.
const MAX_UNIX_MS: u64 = 253_402_300_799_999;
/// A recorder begins at most so long before its first sound: it holds 30 s. What is longer is added when parts are joined.
const MAX_MISSED: Duration = Duration::from_secs(20);

/// A recording in progress.
pub(super) struct Recording {
    pub(super) tap: Tap,
    actor: Addr<RecorderActor>,
    /// When it began, Unix time in milliseconds.
    began_at: u64,
    /// How much other servers have recorded.
    before: Duration,
    /// Whether the input is not recorded while keys are pressed.
    hides_keys: bool,
}

/// The part of a recording that another server has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FormerRecording {
    /// When its last part began and ended, Unix time in milliseconds.
    started_at: u64,
    ended_at: u64,
    /// How much there is of it in all.
    recorded: Duration,
    paused: bool,
    /// By what the servers that have its store know that.
    store: Option<String>,
}

impl FormerRecording {
    /// Whether there can be one: a date has four digits in a header.
    pub const fn is_possible(&self) -> bool {
        self.started_at <= self.ended_at
            && self.ended_at <= MAX_UNIX_MS
            && self.recorded.as_millis() <= MAX_UNIX_MS as u128
    }

    /// How long it is over, as far as the recorder goes back.
    fn since(&self, now: u64) -> Duration {
        let over = now.saturating_sub(self.ended_at);
        Duration::from_millis(over).min(MAX_MISSED)
    }
}

/// Unix time in milliseconds.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.actor.do_send(StopRecording);
    }
}

impl SessionActor {
    /// Begins the journal that a config asks for, unless the session is being recorded.
    pub(super) fn begin_recording(
        &mut self,
        config: u64,
        stream_id: &StreamId,
        wanted: &SessionParams,
    ) -> impl Future<Output = Result<Option<Journal>, Refusal>> + use<> {
        let begins = wanted.records() && self.recording.is_none();
        let is_taken_over = self.state.is_taken_over(config);
        let former = self
            .taken_over
            .recording
            .clone()
            .filter(|_| begins && is_taken_over);
        // One that had failed at the other server does not begin anew here.
        let begins = begins && (former.is_some() || !is_taken_over);
        let recordings = self.services.recordings.clone();
        let (quota, party) = (self.services.quotas.recordings.clone(), self.access.party());
        let mut metadata = begins.then(|| self.metadata(stream_id, wanted));
        if let (Some(metadata), Some(former)) = (&mut metadata, &former) {
            metadata.started_at -= former.since(metadata.started_at).as_millis() as u64;
            metadata.continues = Some(former.started_at);
        }
        async move {
            let Some(metadata) = metadata else {
                return Ok(None);
            };
            let Some(recordings) = recordings else {
                let problem = "recording: this server does not record";
                return Err(Refusal::new(ErrorCode::RecordingUnavailable, problem));
            };
            let refused = |error: Refused| Refusal::new(ErrorCode::Overloaded, error.to_string());
            let permit = quota.take(&party).map_err(refused)?;
            let identity = recordings.identity().await;
            let begun = match &former {
                Some(former) => {
                    let joins = identity.is_some() && identity == former.store.as_deref();
                    recordings.begin_part(metadata, joins).await
                }
                None => recordings.begin(metadata, true).await,
            };
            begun
                .map(|journal| Some(journal.counted(permit)))
                .map_err(|error| {
                    let code = match &error {
                        BeginError::Exists => ErrorCode::StreamIdInUse,
                        BeginError::Journal(_) => ErrorCode::RecordingUnavailable,
                    };
                    Refusal::new(code, error.to_string())
                })
        }
    }

    /// Has the room's provider record it, if a config asks for that and it does not yet.
    pub(super) fn begin_egress(
        &self,
        stream_id: &StreamId,
        wanted: &SessionParams,
    ) -> impl Future<Output = Result<Option<Egress>, Refusal>> + use<> {
        let room = wanted.room_for_egress().filter(|_| self.egress.is_none());
        let begins = room.map(|room| {
            // All participants are mixed.
            let metadata = Metadata {
                channels: 1,
                ..self.metadata(stream_id, wanted)
            };
            (room.to_owned(), metadata)
        });
        let egresses = self.services.egresses.clone();
        async move {
            let Some((room, metadata)) = begins else {
                return Ok(None);
            };
            let Some(egresses) = egresses else {
                let problem = "rtc.recording: \"egress\" needs rooms of a LiveKit deployment (rtc.mode) and \
                               recordings in S3 (recording.backend)";
                return Err(Refusal::new(ErrorCode::RecordingUnavailable, problem));
            };
            let begun = egresses.begin(metadata, room).await;
            begun.map(Some).map_err(|error| {
                let code = match &error {
                    egress::BeginError::Exists => ErrorCode::StreamIdInUse,
                    _ => ErrorCode::RecordingUnavailable,
                };
                Refusal::new(code, error.to_string())
            })
        }
    }

    /// Whether the room's provider records it is up to the config that has come into force.
    pub(super) fn record_egress(
        &mut self,
        wanted: bool,
        begun: Option<Egress>,
        context: &mut Context<Self>,
    ) {
        if !wanted {
            self.egress = None;
        }
        let Some(mut egress) = begun.filter(|_| wanted) else {
            return;
        };
        let ends = egress.ends().into_actor(self);
        context.spawn(ends.map(|problem, session, context| {
            if let (Some(problem), Some(egresses)) = (problem, &session.services.egresses) {
                session.egress = None;
                session.state.recording_failed(egresses.slug(), problem);
                session.carry_out(context);
            }
        }));
        self.egress = Some(egress);
    }

    fn metadata(&self, stream_id: &StreamId, wanted: &SessionParams) -> Metadata {
        let participant = |identity: &str, provider: Option<&String>| Participant {
            identity: identity.to_owned(),
            provider: provider.cloned(),
        };
        Metadata {
            stream_id: stream_id.as_str().to_owned(),
            tenant: self
                .access
                .tenant()
                .map(|tenant| tenant.as_str().to_owned()),
            public: self.access.is_public(),
            started_at: now(),
            duration_ms: 0,
            size: 0,
            sha256: String::new(),
            channels: 0,
            participants: vec![
                participant("client", wanted.stt.as_ref().map(|stt| &stt.provider)),
                participant("agent", wanted.tts.as_ref().map(|tts| &tts.provider)),
            ],
            complete: false,
            goes_on: false,
            parts: Vec::new(),
            cut: false,
            continues: None,
            file: None,
        }
    }

    /// Whether the session is recorded, and at which rates, is up to the config that has come into force.
    pub(super) fn record(
        &mut self,
        wanted: Option<(SampleRate, SampleRate)>,
        journal: Option<Journal>,
        announces: bool,
        context: &Context<Self>,
    ) {
        let Some((heard, played)) = wanted else {
            self.recording = None;
            return self.tap(None);
        };
        let (Some(journal), Some(recordings)) = (journal, self.services.recordings.as_ref()) else {
            // The recording in progress goes on.
            return;
        };
        let settings = recordings.settings();
        let tenant = self.access.tenant();
        let rules = recordings.rules(tenant.map(TenantId::as_str)).clone();
        let began_at = journal.metadata().started_at;
        let former = self.taken_over.recording.take();
        let missed = former.as_ref().map(|former| former.since(now()));
        let tap = self.listening.input.record(|since| {
            let since = missed
                .and_then(|missed| Instant::now().checked_sub(missed))
                .unwrap_or(since);
            Tap::new(heard, played, settings.channels, since)
                .redacting(rules.redaction)
                .silencing(journal.silences())
        });
        if former.as_ref().is_some_and(|former| former.paused) {
            tap.pause(true);
        }
        let before = former.map_or(Duration::ZERO, |former| former.recorded);
        self.divided = journal.stays_apart();
        let report = context.address().recipient();
        let work = self.work.clone();
        let recorder = RecorderActor::new(tap.clone(), journal, settings, work, report);
        let actor = start_in_span(move |_| recorder);
        self.recording = Some(Recording {
            tap: tap.clone(),
            actor,
            began_at,
            before,
            hides_keys: rules.hides_keys,
        });
        self.tap(Some(&tap));
        self.announcement = rules.announcement.filter(|_| announces);
    }

    /// Ends the recording here, as the session goes on at another server; what that has to know.
    pub(super) fn leave_recording(&self) -> Option<FormerRecording> {
        let recording = self.recording.as_ref()?;
        let recorded = recording.before + recording.tap.leave();
        let recordings = self.services.recordings.as_ref();
        let store = recordings.and_then(|recordings| recordings.known_identity());
        Some(FormerRecording {
            started_at: recording.began_at,
            ended_at: now().max(recording.began_at),
            recorded,
            paused: recording.tap.is_paused(),
            store: store.map(str::to_owned),
        })
    }

    /// Says that the recording has begun, where that is to be said, or that its first part stays elsewhere.
    pub(super) fn announce_recording(&mut self) {
        if std::mem::take(&mut self.divided) {
            self.tell(&ServerMessage::Warning {
                message: DIVIDED.to_owned(),
                code: WarningCode::RecordingDivided,
                in_reply_to: None,
                id: None,
            });
        }
        if let Some(text) = self.announcement.take() {
            self.queue_speech(Speak {
                text,
                flush: true,
                allow_interruption: false,
                replace: false,
                id: Some(ANNOUNCEMENT.to_owned()),
                ssml: None,
            });
        }
    }

    /// A key of a telephone was pressed.
    pub(super) fn hide_key(&self) {
        if let Some(recording) = self.recording.as_ref().filter(|one| one.hides_keys) {
            recording.tap.hide_key();
        }
    }

    /// Pauses the recording, or lets it go on, and tells from where on.
    pub(super) fn pause_recording(&mut self, paused: bool) {
        let Some(recording) = &self.recording else {
            return;
        };
        let position = recording.before + recording.tap.pause(paused);
        let state = if paused { "paused" } else { "recording" };
        tracing::info!(state, "a recording is paused or goes on");
        self.tell(&ServerMessage::RecordingState {
            state,
            position_ms: position.as_millis() as u64,
        });
    }

    /// Connects the player to the recorder, or disconnects both sides from it.
    pub(super) fn tap(&self, tap: Option<&Tap>) {
        if tap.is_none() {
            self.listening.input.record_nothing();
        }
        if let Some(player) = &self.output {
            Player::set_recorder(player, tap.cloned());
        }
    }
}
