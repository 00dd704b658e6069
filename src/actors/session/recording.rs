//! The recording of a session: its journal begins with the config that asks for it, its recorder starts when that config
//! is in force, and it ends with the session or with a config that asks for none.

use std::time::{SystemTime, UNIX_EPOCH};

use actix::prelude::*;

use super::error_codes::Refusal;
use super::playback::Speak;
use super::protocol::{ErrorCode, ServerMessage, SessionParams, StreamId};
use super::{Player, SessionActor};
use crate::recorder::{RecorderActor, StopRecording, Tap};
use crate::start_in_span;
use vivavoce_audio::SampleRate;
use vivavoce_auth::TenantId;
use vivavoce_quotas::Refused;
use vivavoce_recordings::egress::{self, Egress};
use vivavoce_recordings::journal::Journal;
use vivavoce_recordings::{BeginError, Metadata, Participant};

/// The `id` of the utterance that says that a recording begins.
const ANNOUNCEMENT: &str = "recording_announcement";

/// A recording in progress.
pub(super) struct Recording {
    pub(super) tap: Tap,
    actor: Addr<RecorderActor>,
    /// Whether the input is not recorded while keys are pressed.
    hides_keys: bool,
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.actor.do_send(StopRecording);
    }
}

impl SessionActor {
    /// Begins the journal that a config asks for, unless the session is being recorded.
    pub(super) fn begin_recording(
        &self,
        stream_id: &StreamId,
        wanted: &SessionParams,
    ) -> impl Future<Output = Result<Option<Journal>, Refusal>> + use<> {
        let begins = wanted.records() && self.recording.is_none();
        let recordings = self.services.recordings.clone();
        let (quota, party) = (self.services.quotas.recordings.clone(), self.access.party());
        let metadata = begins.then(|| self.metadata(stream_id, wanted));
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
            let begun = recordings.begin(metadata).await;
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
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Metadata {
            stream_id: stream_id.as_str().to_owned(),
            tenant: self
                .access
                .tenant()
                .map(|tenant| tenant.as_str().to_owned()),
            public: self.access.is_public(),
            started_at: now.map_or(0, |now| now.as_millis() as u64),
            duration_ms: 0,
            size: 0,
            sha256: String::new(),
            channels: 0,
            participants: vec![
                participant("client", wanted.stt.as_ref().map(|stt| &stt.provider)),
                participant("agent", wanted.tts.as_ref().map(|tts| &tts.provider)),
            ],
            complete: false,
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
        let tap = self.listening.input.record(|since| {
            Tap::new(heard, played, settings.channels, since).redacting(rules.redaction)
        });
        let report = context.address().recipient();
        let work = self.work.clone();
        let recorder = RecorderActor::new(tap.clone(), journal, settings, work, report);
        let actor = start_in_span(move |_| recorder);
        self.recording = Some(Recording {
            tap: tap.clone(),
            actor,
            hides_keys: rules.hides_keys,
        });
        self.tap(Some(&tap));
        self.announcement = rules.announcement.filter(|_| announces);
    }

    /// Says that the recording has begun, where that is to be said.
    pub(super) fn announce_recording(&mut self) {
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
        let position = recording.tap.pause(paused);
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
