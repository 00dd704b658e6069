//! The usage of a session, reported by webhook when it has ended (`session.ended`; protocol, section 7).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use vivavoce_auth::{Access, TenantId};
use vivavoce_core::party::Party;
use vivavoce_webhooks::{Event, EventKind, Webhooks};

use super::protocol::StreamId;

/// The usage of one session.
#[derive(Debug)]
pub(super) struct Usage {
    webhooks: Option<Webhooks>,
    tenant: Option<TenantId>,
    party: Party,
    /// The session's name, or the one that its pending config asks for.
    stream_id: Option<StreamId>,
    /// When its first config came into force.
    began: Option<Instant>,
    reason: &'static str,
    /// How many characters providers have spoken.
    characters: Rc<Cell<u64>>,
    /// How much was transcribed of all participants together, where each has a recogniser.
    participants: Rc<Cell<Duration>>,
}

/// The usage of a session that goes on at another server.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct UsageSoFar {
    lasted: Duration,
    characters: u64,
}

impl Usage {
    /// What another server counts on from.
    pub(super) fn so_far(&self) -> UsageSoFar {
        UsageSoFar {
            lasted: self.began.map_or(Duration::ZERO, |began| began.elapsed()),
            characters: self.characters.get(),
        }
    }

    /// Another server reports the session.
    pub(super) fn goes_on_elsewhere(&mut self) {
        let stream_id = self.stream_id.take();
        let stream_id = stream_id.as_ref().map(StreamId::as_str);
        tracing::info!(stream_id, "a session goes on at another server");
    }

    /// Counts on from what it was at another server.
    pub(super) fn takes_over(&mut self, so_far: UsageSoFar) {
        // Longer than the clock has run is as long as that.
        self.began = Instant::now().checked_sub(so_far.lasted);
        self.characters.set(so_far.characters);
        tracing::info!("a session goes on that was at another server");
    }

    /// The usage of a session that has no config yet.
    pub(super) fn new(webhooks: Option<Webhooks>, access: &Access) -> Self {
        Self {
            webhooks,
            tenant: access.tenant().cloned(),
            party: access.party(),
            stream_id: None,
            began: None,
            reason: "the client has gone",
            characters: Rc::default(),
            participants: Rc::default(),
        }
    }

    /// A config asks for this name.
    pub(super) fn asks(&mut self, stream_id: &StreamId) {
        self.stream_id = Some(stream_id.clone());
    }

    /// A config is in force.
    pub(super) fn begins(&mut self) {
        if self.began.is_none() {
            let stream_id = self.stream_id.as_ref().map(StreamId::as_str);
            let tenant = self.tenant.as_ref().map(TenantId::as_str);
            tracing::info!(stream_id, tenant, "a session has begun");
        }
        self.began.get_or_insert_with(Instant::now);
    }

    /// The counter of the characters that providers have spoken.
    pub(super) fn of_speech(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.characters)
    }

    /// The counter to which the transcription of each participant adds.
    pub(super) fn of_participants(&self) -> Rc<Cell<Duration>> {
        Rc::clone(&self.participants)
    }

    /// The session ends for this reason, not because its client has gone.
    pub(super) const fn closes(&mut self, reason: &'static str) {
        self.reason = reason;
    }

    /// Reports the session, which has ended; `heard` is its audio without that of participants.
    pub(super) fn ends(&self, heard: Duration) {
        let heard = heard + self.participants.get();
        #[cfg(test)]
        super::tests::STT_SECONDS.set(heard.as_secs_f64());
        #[cfg(test)]
        super::tests::TTS_CHARACTERS.set(self.characters.get());
        let (Some(stream_id), Some(began)) = (&self.stream_id, self.began) else {
            return;
        };
        let tenant = self.tenant.as_ref().map(TenantId::as_str);
        tracing::info!(
            stream_id = stream_id.as_str(),
            tenant,
            reason = self.reason,
            seconds = began.elapsed().as_secs_f64(),
            "a session has ended"
        );
        let Some(webhooks) = &self.webhooks else {
            return;
        };
        let ended = EventKind::SessionEnded {
            reason: self.reason.to_owned(),
            duration_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            stt_seconds: heard.as_secs_f64(),
            tts_characters: self.characters.get(),
        };
        let event = Event::now(stream_id.as_str(), tenant, ended);
        webhooks.enqueue_later(event.counted_for(self.party.clone()));
    }
}
