//! Takes the telephone's events into the ledger and reports them by webhooks, one after the other, so that the webhooks of a
//! call come in order. While a disk or a room provider is slow, the events wait at the telephone.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::ledger::{Change, Ledger};
use crate::registry::rooms::{Owner, Rooms};
use vivavoce_seams::rooms::telephone::{AnswerFinding, CallNews, HangupCause};
use vivavoce_telemetry::metrics;
use vivavoce_webhooks::{Event, EventKind, Webhooks};

/// How long a room's owner is asked for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whoever takes the news.
#[derive(Debug)]
pub struct News {
    task: JoinHandle<()>,
    closing: CancellationToken,
}

impl News {
    /// Begins to take them.
    pub fn follow(
        mut news: mpsc::Receiver<CallNews>,
        rooms: Rooms,
        ledger: Arc<Ledger>,
        webhooks: Webhooks,
    ) -> Self {
        let closing = CancellationToken::new();
        let closed = closing.clone();
        let task = actix::spawn(async move {
            loop {
                let next = tokio::select! {
                    next = news.recv() => next,
                    () = closed.cancelled(), if !news.is_closed() => {
                        // What was told before is still there to be read.
                        news.close();
                        continue;
                    }
                };
                let Some(next) = next else { return };
                // What was decided with the call is so, whosever the room is at this moment.
                let owner = match next
                    .owner
                    .clone()
                    .or_else(|| ledger.owner(&next.sip_call_id))
                {
                    Some(owner) => owner,
                    None => owner(&rooms, &next.room).await,
                };
                if let Some(finding) = next.finding {
                    webhooks.enqueue(&found(next, &owner, finding)).await;
                    continue;
                }
                if let Some(change) = ledger.note(&next, owner, Instant::now()) {
                    count_sound(&rooms, &next);
                    webhooks.enqueue(&event(next, &change)).await;
                }
            }
        });
        Self { task, closing }
    }

    /// Takes what a telephone that has ended has told, for `patience` at most.
    pub async fn finish(self, patience: Duration) {
        self.closing.cancel();
        if timeout(patience, self.task).await.is_err() {
            tracing::warn!("the last news of calls were not told");
        }
    }
}

/// The audio of a call that is over, where it was carried here.
fn count_sound(rooms: &Rooms, news: &CallNews) {
    if news.status.cause().is_none() {
        return;
    }
    let telephone = rooms.provider.telephone();
    let reports = telephone.map_or_else(Vec::new, |telephone| telephone.calls());
    let report = reports
        .into_iter()
        .find(|report| report.sip_call_id == news.sip_call_id);
    if let Some(media) = report.and_then(|report| report.media) {
        metrics::call_sounded(&media);
    }
}

/// Whose room it is; nobody knows where its provider does not say it.
async fn owner(rooms: &Rooms, room: &str) -> Owner {
    match timeout(PATIENCE, rooms.provider.room(room)).await {
        Ok(Ok(Some(room))) => Owner::of(&room.metadata),
        Ok(Ok(None)) => Owner::Nobody,
        Ok(Err(error)) => {
            tracing::warn!(%error, "the owner of a call's room is not known");
            Owner::Unknown
        }
        Err(_) => {
            tracing::warn!("the owner of a call's room is not known: its provider does not answer");
            Owner::Unknown
        }
    }
}

/// What was found out of who has answered a call.
fn found(news: CallNews, owner: &Owner, finding: AnswerFinding) -> Event {
    let CallNews {
        sip_call_id,
        room: room_name,
        identity: participant_identity,
        ..
    } = news;
    let event = match finding {
        AnswerFinding::Classified(found) => {
            metrics::call_classified(&found);
            EventKind::CallClassified {
                sip_call_id,
                room_name,
                participant_identity,
                result: found.result.as_str(),
                confidence: f64::from(found.confidence) / 100.0,
                reason: found.reason.as_str(),
                after_ms: found.after_ms,
                sound_ms: found.sound_ms,
            }
        }
        AnswerFinding::Beep { heard, after_ms } => EventKind::CallBeep {
            sip_call_id,
            room_name,
            participant_identity,
            heard,
            after_ms,
        },
    };
    Event::of_room(owner.tenant(), event)
}

fn event(news: CallNews, change: &Change) -> Event {
    let CallNews {
        sip_call_id,
        direction,
        room,
        identity,
        owner: _,
        status,
        finding: _,
    } = news;
    let over = status.cause();
    let event = EventKind::CallStatus {
        sip_call_id,
        room_name: room,
        participant_identity: identity,
        direction: direction.as_str(),
        status: status.as_str(),
        cause: over.map(HangupCause::as_str),
        duration_ms: over.map(|_| u64::try_from(change.talked.as_millis()).unwrap_or(u64::MAX)),
    };
    Event::of_room(change.owner.tenant(), event)
}
