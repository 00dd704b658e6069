//! What waits to be delivered, for people who look, and having it sent again at once. Whoever has a tenant sees what counts
//! for it.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::oneshot;

use super::retries::Outcome;
use super::spool::SpoolEntry;
use super::{Destination, Source, Webhooks};
use vivavoce_auth::Access;

/// Questions that wait for an answer.
pub(super) const MAX_ASKS: usize = 16;
/// Webhooks shown at once, those that fail first.
pub(super) const MAX_SHOWN: usize = 200;

/// A question to whoever has the queue.
#[derive(Debug)]
pub(super) enum Ask {
    /// What waits, and how much in all.
    Waiting(Access, oneshot::Sender<(usize, Vec<Shown>)>),
    /// Deliver now: the one of this name, or all.
    Again(Access, Option<String>, oneshot::Sender<usize>),
}

/// A webhook in the queue.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) tenant: Option<String>,
    pub(super) entry: SpoolEntry,
    pub(super) attempts: u32,
    pub(super) last: Option<Outcome>,
    pub(super) due_in: Duration,
}

/// Whether somebody may see what counts for this source.
pub(super) fn may_see(access: &Access, of: &Source) -> bool {
    access.may_see(of.party.tenant())
}

/// A webhook that waits.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WaitingWebhook {
    /// Names it.
    pub id: String,
    /// What it tells; empty where its body does not say.
    pub event: String,
    /// The session, call or recording that it is about, where its body says so.
    pub about: Option<String>,
    /// Whose it is; null where it has no tenant.
    pub tenant: Option<String>,
    /// The receiver's host; null for that of the settings.
    pub host: Option<String>,
    /// Attempts that have failed.
    pub attempts: u32,
    /// How the last one ended: it was `refused`, or nobody was there; null before the first.
    #[schemars(extend("enum" = ["refused", "unavailable", null]))]
    pub last: Option<&'static str>,
    /// When the next one is, in milliseconds from now.
    pub due_in_ms: u64,
}

/// The webhooks that wait.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct WaitingWebhooks {
    /// How many there are in all.
    pub count: usize,
    /// At most 200 of them, those that have failed first, and of these the oldest.
    pub waiting: Vec<WaitingWebhook>,
}

impl Webhooks {
    /// What waits of what the caller may see. What is being posted at this moment is not among it.
    pub async fn waiting(&self, access: Access) -> WaitingWebhooks {
        let (answer, answered) = oneshot::channel();
        if self.asks.send(Ask::Waiting(access, answer)).await.is_err() {
            return WaitingWebhooks::default();
        }
        let Ok((count, shown)) = answered.await else {
            return WaitingWebhooks::default();
        };
        let spool = Arc::clone(&self.spool);
        let read = move || {
            let waiting = shown.into_iter().map(|one| {
                let body = spool.read(&one.entry).ok();
                let body = body.and_then(|webhook| serde_json::from_str(&webhook.body).ok());
                one.with_body(&body.unwrap_or_default())
            });
            waiting.collect()
        };
        let waiting = tokio::task::spawn_blocking(read).await;
        let waiting = waiting.unwrap_or_default();
        WaitingWebhooks { count, waiting }
    }

    /// Has one of those sent again now, or all; how many there are.
    pub async fn send_again(&self, access: Access, id: Option<String>) -> usize {
        let (answer, answered) = oneshot::channel();
        let ask = Ask::Again(access, id, answer);
        if self.asks.send(ask).await.is_err() {
            return 0;
        }
        answered.await.unwrap_or(0)
    }
}

impl Shown {
    fn with_body(self, body: &Value) -> WaitingWebhook {
        let text = |names: &[&str]| {
            let mut found = names.iter().filter_map(|name| body[*name].as_str());
            found.next().map(str::to_owned)
        };
        WaitingWebhook {
            id: self.entry.name(),
            event: text(&["event", "type"]).unwrap_or_default(),
            about: text(&["stream_id", "sip_call_id", "call_id", "room_name"]),
            tenant: self.tenant,
            host: match &self.entry.to {
                Destination::Settings => None,
                Destination::Hook(address) => address.url.host_str().map(str::to_owned),
            },
            attempts: self.attempts,
            last: self.last.map(|last| match last {
                Outcome::Unavailable => "unavailable",
                // What was delivered does not wait.
                Outcome::Refused { .. } | Outcome::Delivered => "refused",
            }),
            due_in_ms: u64::try_from(self.due_in.as_millis()).unwrap_or(u64::MAX),
        }
    }
}
