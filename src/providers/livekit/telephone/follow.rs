//! Progress of the calls placed through a deployment. The state of a call is an attribute of its participant, whose changes
//! the deployment does not report, so the participant is polled. Why a call ended is known from the `participant_left`
//! webhook, where the deployment sends webhooks to this server, or because the call was ended here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use livekit_protocol::{SipParticipantInfo, WebhookEvent};
use tokio::sync::{Notify, OwnedRwLockReadGuard, RwLock};
use tokio::time::{Instant, timeout};

use crate::server_api::{ApiError, ServerApi, code};
use vivavoce_quotas::Permit;
use vivavoce_seams::rooms::telephone::{
    CallNews, CallStatus, Direction, HangupCause, Line, NewCall, NewsSender, cause_of, status_of,
};

/// How often a participant is looked at before the answer, and after.
const RINGING: Duration = Duration::from_secs(1);
const ACTIVE: Duration = Duration::from_secs(5);
/// A call is followed for so long beyond what it may last, if its deployment never says that it is over.
const SLACK: Duration = Duration::from_mins(5);

/// The calls that are followed; clones are the same.
#[derive(Clone)]
pub struct Followers {
    api: Arc<ServerApi>,
    news: NewsSender,
    calls: Arc<Mutex<HashMap<String, Followed>>>,
}

/// A call, by the sid of its participant.
struct Followed {
    active: bool,
    /// Why it was ended here, and why it is over as the deployment has told it.
    ended: Option<HangupCause>,
    told: Option<HangupCause>,
    /// The event of the leaving has come.
    left: Arc<Notify>,
    moving: Moving,
}

/// Read by each transfer of a call whose outcome is not known yet.
type Moving = Arc<RwLock<()>>;

impl Followers {
    pub fn new(api: Arc<ServerApi>, news: NewsSender) -> Self {
        Self {
            api,
            news,
            calls: Arc::default(),
        }
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<String, Followed>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows a call until it is over, and holds its line as long.
    pub fn follow(&self, call: &NewCall, placed: &SipParticipantInfo, line: Line) {
        let left = Arc::new(Notify::new());
        let moving = Moving::default();
        let followed = Followed {
            active: false,
            ended: None,
            told: None,
            left: Arc::clone(&left),
            moving: Arc::clone(&moving),
        };
        self.calls().insert(placed.participant_id.clone(), followed);
        let patience = call.ringing_timeout + call.max_duration + SLACK;
        let follower = Follower {
            all: self.clone(),
            sid: placed.participant_id.clone(),
            news: CallNews {
                sip_call_id: placed.sip_call_id.clone(),
                direction: Direction::Outbound,
                room: call.room.clone(),
                identity: call.identity.clone(),
                owner: Some(line.owner),
                status: CallStatus::Dialing,
                finding: None,
            },
            left,
            moving,
            _permit: line.permit,
        };
        tokio::spawn(async move { follower.run(patience).await });
    }

    /// The call of this participant will be over because it was wished here; `cause` is asked whether it was answered.
    pub fn ends(&self, sid: &str, cause: impl FnOnce(bool) -> HangupCause) {
        if let Some(call) = self.calls().get_mut(sid) {
            call.ended.get_or_insert_with(|| cause(call.active));
        }
    }

    /// The call of this participant is about to be transferred: as long as what this gives is kept, nobody is told why it is
    /// over, as a telephone may go before the deployment answers that it was moved.
    pub fn moves(&self, sid: &str) -> Option<OwnedRwLockReadGuard<()>> {
        let moving = Arc::clone(&self.calls().get(sid)?.moving);
        moving.try_read_owned().ok()
    }

    /// Whether the call of this participant was ended here or in its room, as far as is known.
    pub fn is_sent_away(&self, sid: &str) -> bool {
        let calls = self.calls();
        let known = calls.get(sid).and_then(|call| why(call.ended, call.told));
        known.is_some_and(|cause| cause != HangupCause::Remote)
    }

    /// The deployment has told an event.
    pub fn happened(&self, event: &WebhookEvent) {
        let Some(participant) = event.participant.as_ref() else {
            return;
        };
        if event.event != "participant_left" {
            return;
        }
        if let Some(call) = self.calls().get_mut(&participant.sid) {
            // It may have been answered since it was looked at: what is refused is never active, nor does it hang up.
            let since = status_of(participant);
            let active =
                call.active || matches!(since, Some(CallStatus::Active | CallStatus::Hangup(_)));
            let told = cause_of(participant, active);
            call.told.get_or_insert(told);
            call.left.notify_one();
        }
    }
}

struct Follower {
    all: Followers,
    sid: String,
    news: CallNews,
    left: Arc<Notify>,
    moving: Moving,
    _permit: Permit,
}

impl Follower {
    async fn run(mut self, patience: Duration) {
        self.tell(CallStatus::Dialing).await;
        let until = Instant::now() + patience;
        let cause = loop {
            let active = self.news.status == CallStatus::Active;
            let pause = if active { ACTIVE } else { RINGING };
            if timeout(pause, self.left.notified()).await.is_ok() || Instant::now() >= until {
                break None;
            }
            let looked = self
                .all
                .api
                .participant(&self.news.room, &self.news.identity)
                .await;
            match looked {
                Ok(participant) if participant.sid == self.sid => match status_of(&participant) {
                    Some(CallStatus::Hangup(cause)) => break Some(cause),
                    Some(status) => self.tell(status).await,
                    None => {}
                },
                // Another one has the identity by now.
                Ok(_) => break None,
                Err(error) if is_gone(&error) => break None,
                // It is there again, or it is not: the next look tells.
                Err(_) => {}
            }
        };
        let moved = self.moving.write().await;
        let told = self
            .all
            .calls()
            .remove(&self.sid)
            .and_then(|call| why(call.ended, call.told));
        drop(moved);
        let unknown = match self.news.status {
            CallStatus::Active => HangupCause::Remote,
            _ => HangupCause::Failed,
        };
        self.tell(CallStatus::Hangup(told.or(cause).unwrap_or(unknown)))
            .await;
    }

    async fn tell(&mut self, status: CallStatus) {
        if status == self.news.status && status != CallStatus::Dialing {
            return;
        }
        self.news.status = status;
        if status == CallStatus::Active
            && let Some(call) = self.all.calls().get_mut(&self.sid)
        {
            call.active = true;
        }
        // Whoever does not read them any more has ended.
        let _ = self.all.news.send(self.news.clone()).await;
    }
}

/// Why a call is over, by what was wished here and by what the deployment has told.
fn why(ended: Option<HangupCause>, told: Option<HangupCause>) -> Option<HangupCause> {
    match (ended, told) {
        // It was ended otherwise before it was moved, of which the deployment makes no difference.
        (Some(HangupCause::Transferred), Some(told)) if told != HangupCause::Remote => Some(told),
        // It was answered in the moment in which it was given up.
        (Some(HangupCause::Cancelled), Some(HangupCause::Local)) => told,
        (ended, told) => ended.or(told),
    }
}

pub(super) fn is_gone(error: &ApiError) -> bool {
    error
        .twirp()
        .is_some_and(|answer| answer.code == code::NOT_FOUND)
}
