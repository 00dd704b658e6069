//! The state of all calls: where each one is, who owns it, and what is reported when that changes. The telephone's events are
//! its only source; media statistics are asked of the telephone on demand.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use crate::registry::rooms::Owner;
use vivavoce_seams::rooms::telephone::{
    CallNews, CallReport, CallStatus, Direction, HangupCause, MediaReport,
};
use vivavoce_telemetry::metrics;

/// How long calls that are over are shown, and how many of them at most.
const SHOWN: Duration = Duration::from_mins(1);
const MOST_SHOWN: usize = 1_000;

/// A call, as `GET /sessions` shows it. Times are Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CallInfo {
    /// Its id.
    pub sip_call_id: String,
    /// The room.
    pub room_name: String,
    /// The identity of the call's participant in the room.
    pub participant_identity: String,
    /// `inbound` or `outbound`.
    #[schemars(extend("enum" = ["inbound", "outbound"]))]
    pub direction: &'static str,
    /// Where it is.
    #[schemars(extend("enum" = ["dialing", "ringing", "active", "hangup"]))]
    pub status: &'static str,
    /// Why it is over; null before.
    pub cause: Option<&'static str>,
    /// When it began.
    pub started_at: u64,
    /// When it was answered; null before.
    pub answered_at: Option<u64>,
    /// When it ended; null before.
    pub ended_at: Option<u64>,
    /// Its sound; null where there is none, or another server carries it.
    pub media: Option<CallMedia>,
}

/// The sound of a call.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CallMedia {
    /// `PCMU`, `PCMA`, `G722` or `opus`.
    pub codec: &'static str,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// Packets that came.
    pub packets_received: u64,
    /// Packets that should have come and did not.
    pub packets_lost: u64,
    /// Packets that were sent.
    pub packets_sent: u64,
    /// Packets that were sent as another telephone had sent them, without decoding (`sip.relay`).
    pub packets_relayed: u64,
    /// Packets that the other side missed, by its reports.
    pub packets_lost_there: u64,
    /// Of arrivals, in milliseconds (RFC 3550, section 6.4.1).
    pub jitter_ms: f64,
    /// From the answer to the first packet that came, in milliseconds; null before.
    pub first_packet_received_ms: Option<u64>,
    /// From the answer to the first packet that was sent, in milliseconds; null before.
    pub first_packet_sent_ms: Option<u64>,
}

impl From<MediaReport> for CallMedia {
    fn from(report: MediaReport) -> Self {
        Self {
            codec: report.codec,
            encrypted: report.encrypted,
            packets_received: report.received,
            packets_lost: report.lost,
            packets_sent: report.sent,
            packets_relayed: report.relayed,
            packets_lost_there: report.lost_there,
            jitter_ms: report.jitter_ms,
            first_packet_received_ms: report.first_received.map(millis),
            first_packet_sent_ms: report.first_sent.map(millis),
        }
    }
}

/// What a call's news change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Whose room it is in.
    pub owner: Owner,
    /// How long it has been spoken, from the answer on.
    pub talked: Duration,
}

/// The calls.
#[derive(Default)]
pub struct Ledger {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    calls: HashMap<String, Entry>,
}

struct Entry {
    room: String,
    identity: String,
    direction: Direction,
    owner: Owner,
    status: CallStatus,
    began: Instant,
    started_at: u64,
    answered: Option<(Instant, u64)>,
    ended: Option<(Instant, u64)>,
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn wall_clock() -> u64 {
    millis(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    )
}

const fn rank(status: CallStatus) -> u8 {
    match status {
        CallStatus::Dialing => 0,
        CallStatus::Ringing => 1,
        CallStatus::Active => 2,
        CallStatus::Hangup(_) => 3,
    }
}

impl Ledger {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose room a call is in that has news already.
    pub fn owner(&self, sip_call_id: &str) -> Option<Owner> {
        let state = self.state();
        let entry = state.calls.get(sip_call_id)?;
        Some(entry.owner.clone())
    }

    /// Takes a call's news; `None` where they say nothing new.
    pub fn note(&self, news: &CallNews, owner: Owner, now: Instant) -> Option<Change> {
        let mut state = self.state();
        state.forget_old(now);
        let wall = wall_clock();
        let is_new = !state.calls.contains_key(&news.sip_call_id);
        if is_new {
            metrics::call_began(news.direction);
        }
        let entry = state
            .calls
            .entry(news.sip_call_id.clone())
            .or_insert_with(|| Entry {
                room: news.room.clone(),
                identity: news.identity.clone(),
                direction: news.direction,
                owner,
                status: news.status,
                began: now,
                started_at: wall,
                answered: None,
                ended: None,
            });
        // It may have been moved.
        if entry.room != news.room {
            entry.room.clone_from(&news.room);
            self.changed.notify_waiters();
        }
        if !is_new && rank(news.status) <= rank(entry.status) {
            return None;
        }
        entry.status = news.status;
        match news.status {
            CallStatus::Dialing | CallStatus::Ringing => {}
            CallStatus::Active => {
                entry.answered = Some((now, wall));
                metrics::call_answered(news.direction, now.saturating_duration_since(entry.began));
            }
            CallStatus::Hangup(cause) => {
                entry.ended = Some((now, wall));
                metrics::call_ended(news.direction, cause);
            }
        }
        let talked = entry
            .answered
            .map_or(Duration::ZERO, |(at, _)| now.saturating_duration_since(at));
        let owner = entry.owner.clone();
        drop(state);
        self.changed.notify_waiters();
        Some(Change { owner, talked })
    }

    /// Where a call is; `None` of one that nobody has told of yet, or any more.
    pub fn status(&self, sip_call_id: &str) -> Option<CallStatus> {
        let state = self.state();
        state.calls.get(sip_call_id).map(|entry| entry.status)
    }

    /// The next change of any call.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Waits until a call is answered, or over.
    pub async fn answered(&self, sip_call_id: &str) -> Result<(), HangupCause> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            match self
                .state()
                .calls
                .get(sip_call_id)
                .map(|entry| entry.status)
            {
                Some(CallStatus::Active) => return Ok(()),
                Some(CallStatus::Hangup(cause)) => return Err(cause),
                _ => {}
            }
            changed.await;
        }
    }

    /// Waits until a call has arrived in a room, or is over.
    pub async fn is_in(&self, sip_call_id: &str, room: &str) {
        self.until(sip_call_id, |entry| entry.room == room).await;
    }

    /// Waits until a call is over.
    pub async fn over(&self, sip_call_id: &str) {
        self.until(sip_call_id, |_| false).await;
    }

    /// Waits until this is so of a call, or it is over.
    async fn until(&self, sip_call_id: &str, is_so: impl Fn(&Entry) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            let waits = |entry: &Entry| entry.ended.is_none() && !is_so(entry);
            if !self.state().calls.get(sip_call_id).is_some_and(waits) {
                return;
            }
            changed.await;
        }
    }

    /// The id of the call that somebody in a room is on.
    pub fn id_of(&self, room: &str, identity: &str) -> Option<String> {
        let state = self.state();
        let mut calls = state.calls.iter();
        let is_theirs = |entry: &Entry| {
            entry.ended.is_none() && entry.room == room && entry.identity == identity
        };
        calls
            .find(|(_, entry)| is_theirs(entry))
            .map(|(id, _)| id.clone())
    }

    /// Those that somebody may see, oldest first, with what the telephone says of their sound.
    pub fn list(
        &self,
        sees: impl Fn(&Owner) -> bool,
        reports: Vec<CallReport>,
        now: Instant,
    ) -> Vec<CallInfo> {
        let mut state = self.state();
        state.forget_old(now);
        let mut media: HashMap<String, MediaReport> = reports
            .into_iter()
            .filter_map(|report| Some((report.sip_call_id, report.media?)))
            .collect();
        let mut list: Vec<CallInfo> = state
            .calls
            .iter()
            .filter(|(_, entry)| sees(&entry.owner))
            .map(|(id, entry)| entry.info(id, media.remove(id)))
            .collect();
        list.sort_by(|a, b| (a.started_at, &a.sip_call_id).cmp(&(b.started_at, &b.sip_call_id)));
        list
    }
}

impl State {
    fn forget_old(&mut self, now: Instant) {
        self.calls.retain(|_, entry| {
            let ended = entry.ended.map(|(at, _)| now.saturating_duration_since(at));
            ended.is_none_or(|age| age < SHOWN)
        });
        // Of whoever has most the oldest: the calls of one keep none of another's from being shown for its minute.
        let mut over: HashMap<Option<&str>, BTreeSet<(Instant, &str)>> = HashMap::new();
        let mut count = 0;
        for (id, entry) in &self.calls {
            if let Some((at, _)) = entry.ended {
                count += 1;
                let theirs = over.entry(entry.owner.tenant()).or_default();
                theirs.insert((at, id.as_str()));
            }
        }
        let mut dropped = Vec::new();
        for _ in MOST_SHOWN..count {
            let most = over.values_mut().max_by_key(|theirs| theirs.len());
            let oldest = most.and_then(BTreeSet::pop_first);
            dropped.extend(oldest.map(|(_, id)| id.to_owned()));
        }
        for id in dropped {
            self.calls.remove(&id);
        }
    }
}

impl Entry {
    fn info(&self, id: &str, media: Option<MediaReport>) -> CallInfo {
        CallInfo {
            sip_call_id: id.to_owned(),
            room_name: self.room.clone(),
            participant_identity: self.identity.clone(),
            direction: self.direction.as_str(),
            status: self.status.as_str(),
            cause: self.status.cause().map(HangupCause::as_str),
            started_at: self.started_at,
            answered_at: self.answered.map(|(_, at)| at),
            ended_at: self.ended.map(|(_, at)| at),
            media: media.map(CallMedia::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_auth::TenantId;

    fn news(id: &str, status: CallStatus) -> CallNews {
        CallNews {
            sip_call_id: id.to_owned(),
            direction: Direction::Outbound,
            room: "kitchen".to_owned(),
            identity: "caller".to_owned(),
            owner: None,
            status,
            finding: None,
        }
    }

    fn ids(ledger: &Ledger, now: Instant) -> Vec<String> {
        let list = ledger.list(|_| true, Vec::new(), now).into_iter();
        list.map(|call| call.sip_call_id).collect()
    }

    #[test]
    fn a_call_goes_only_forward_and_each_step_is_told_once() {
        let ledger = Ledger::default();
        let now = Instant::now();
        let note = |status, at| ledger.note(&news("a", status), Owner::Unknown, at);
        assert_eq!(ledger.owner("a"), None);
        assert!(note(CallStatus::Dialing, now).is_some());
        assert_eq!(ledger.owner("a"), Some(Owner::Unknown));
        assert!(note(CallStatus::Dialing, now).is_none());
        assert!(note(CallStatus::Active, now).is_some());
        assert!(note(CallStatus::Ringing, now).is_none());
        let later = now + Duration::from_secs(7);
        let change = note(CallStatus::Hangup(HangupCause::Remote), later).unwrap();
        assert_eq!(change.talked, Duration::from_secs(7));
        assert!(note(CallStatus::Hangup(HangupCause::Local), later).is_none());
    }

    #[test]
    fn the_calls_of_one_tenant_hide_no_call_of_another() {
        let ledger = Ledger::default();
        let now = Instant::now();
        let over = CallStatus::Hangup(HangupCause::Busy);
        let [a, b] = ["a", "b"].map(|id| Owner::Tenant(TenantId::new(id).unwrap()));
        ledger.note(&news("of a", over), a.clone(), now);
        for n in 0..2 * MOST_SHOWN as u64 {
            // Within the minute.
            let at = now + Duration::from_millis(n);
            ledger.note(&news(&n.to_string(), over), b.clone(), at);
        }
        let later = now + Duration::from_secs(59);
        let of = |whose: &Owner| ledger.list(|owner| owner == whose, Vec::new(), later);
        assert_eq!(of(&a).len(), 1);
        assert_eq!(of(&b).len(), MOST_SHOWN - 1);
        // Of those of b the newest.
        let newest = (2 * MOST_SHOWN - 1).to_string();
        assert!(of(&b).iter().any(|call| call.sip_call_id == newest));
    }

    #[test]
    fn a_call_that_is_over_is_shown_for_a_minute() {
        let ledger = Ledger::default();
        let now = Instant::now();
        let over = CallStatus::Hangup(HangupCause::Busy);
        ledger.note(&news("over", over), Owner::Nobody, now);
        ledger.note(&news("on", CallStatus::Active), Owner::Nobody, now);
        assert_eq!(ids(&ledger, now + Duration::from_secs(59)).len(), 2);
        assert_eq!(ids(&ledger, now + Duration::from_mins(1)), ["on"]);
        for n in 0..2 * MOST_SHOWN {
            ledger.note(
                &news(&n.to_string(), over),
                Owner::Nobody,
                now + Duration::from_mins(1),
            );
        }
        assert!(ids(&ledger, now + Duration::from_secs(61)).len() <= MOST_SHOWN + 1);
    }

    #[test]
    fn a_call_is_shown_to_those_who_may_see_its_room() {
        let ledger = Ledger::default();
        let now = Instant::now();
        ledger.note(&news("a", CallStatus::Active), Owner::Nobody, now);
        ledger.note(&news("b", CallStatus::Active), Owner::Unknown, now);
        let seen = ledger.list(|owner| *owner == Owner::Nobody, Vec::new(), now);
        assert_eq!(seen.len(), 1);
        assert_eq!(ledger.id_of("kitchen", "nobody"), None);
        assert!(ledger.id_of("kitchen", "caller").is_some());
    }

    #[tokio::test]
    async fn who_waits_for_an_answer_learns_of_it_or_of_the_end() {
        let ledger = Ledger::default();
        let now = Instant::now();
        ledger.note(&news("a", CallStatus::Dialing), Owner::Nobody, now);
        let tell = async { ledger.note(&news("a", CallStatus::Active), Owner::Nobody, now) };
        let (answered, _) = tokio::join!(ledger.answered("a"), tell);
        assert_eq!(answered, Ok(()));
        ledger.note(
            &news("b", CallStatus::Hangup(HangupCause::Busy)),
            Owner::Nobody,
            now,
        );
        assert_eq!(ledger.answered("b").await, Err(HangupCause::Busy));
    }
}
