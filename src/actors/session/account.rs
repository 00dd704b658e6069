//! What a session has used, told to whoever the settings name when it has ended (`session.ended`; protocol, section 7).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use vivavoce_auth::{Access, TenantId};
use vivavoce_core::party::Party;
use vivavoce_webhooks::{Notice, NoticeEvent, Webhooks};

use super::messages::StreamId;

/// Of one session.
#[derive(Debug)]
pub(super) struct Account {
    webhooks: Option<Webhooks>,
    tenant: Option<TenantId>,
    party: Party,
    /// Of the config that is being carried out, or of the session.
    stream_id: Option<StreamId>,
    /// When its first config was carried out.
    began: Option<Instant>,
    reason: &'static str,
    characters: u64,
    /// What was transcribed of participants, each alone, all together.
    participants: Rc<Cell<Duration>>,
}

impl Account {
    /// Of a session that has not begun.
    pub(super) fn new(webhooks: Option<Webhooks>, access: &Access) -> Self {
        Self {
            webhooks,
            tenant: access.tenant().cloned(),
            party: access.party(),
            stream_id: None,
            began: None,
            reason: "the client has gone",
            characters: 0,
            participants: Rc::default(),
        }
    }

    /// It has asked for this name.
    pub(super) fn asks(&mut self, stream_id: &StreamId) {
        self.stream_id = Some(stream_id.clone());
    }

    /// A config is in force.
    pub(super) fn begins(&mut self) {
        self.began.get_or_insert_with(Instant::now);
    }

    /// It speaks.
    pub(super) fn speaks(&mut self, text: &str) {
        self.characters += text.chars().count() as u64;
    }

    /// Whoever transcribes participants alone adds here how much of each.
    pub(super) fn of_participants(&self) -> Rc<Cell<Duration>> {
        Rc::clone(&self.participants)
    }

    /// It will end, not because its client has gone.
    pub(super) const fn closes(&mut self, reason: &'static str) {
        self.reason = reason;
    }

    /// It has ended, and has heard so much beside participants.
    pub(super) fn ends(&self, heard: Duration) {
        let heard = heard + self.participants.get();
        #[cfg(test)]
        super::tests::STT_SECONDS.set(heard.as_secs_f64());
        let (Some(webhooks), Some(stream_id), Some(began)) =
            (&self.webhooks, &self.stream_id, self.began)
        else {
            return;
        };
        let ended = NoticeEvent::SessionEnded {
            reason: self.reason.to_owned(),
            duration_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            stt_seconds: heard.as_secs_f64(),
            tts_characters: self.characters,
        };
        let tenant = self.tenant.as_ref().map(TenantId::as_str);
        let notice = Notice::now(stream_id.as_str(), tenant, ended);
        webhooks.tell_later(notice.counted_for(self.party.clone()));
    }
}
