//! The live list of sessions, made once a second for all who watch it together, and not at all while nobody does: what has
//! changed is found and written once; each watcher is given the same bytes, or those of its tenant.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix::Addr;
use actix_web::web::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::broadcast;
use tokio::time::MissedTickBehavior;

use vivavoce_actors::registry::sessions::{ObserveSessions, ObservedSession, SessionRegistry};
use vivavoce_auth::{Access, TenantId};
use vivavoce_quotas::shared_limit::{Exceeded, Permit, SharedLimit, Size};
use vivavoce_socket::TimelineSummary;

/// How often the list changes.
const EVERY: Duration = Duration::from_secs(1);
/// Who watches at once: in all, without a token while nobody needs one, and of one tenant or address.
const WATCHERS: Size = Size {
    total: 64,
    unauthenticated: 32,
    per_key: 8,
};
/// Changes that a watcher may be behind before it is given the whole list again.
const MAX_BEHIND: usize = 4;

/// A session in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SessionRow {
    /// Its number in this process, by which it is asked for.
    id: u64,
    /// Its name.
    stream_id: String,
    /// Whose it is; null where it has no tenant.
    tenant: Option<String>,
    /// When its first config arrived, Unix time in milliseconds.
    started_at: u64,
    /// When it ended; null while it has not.
    ended_at: Option<u64>,
    /// What it does.
    #[schemars(extend("enum" = ["begins", "waits", "hears", "answers", "speaks", "ended"]))]
    doing: &'static str,
    /// Turns that have ended.
    turns: u64,
    /// How long the last answer took, from the end of speech to its first sound; null where there was none.
    answer_ms: Option<u64>,
    /// Errors that its client was told.
    errors: u64,
    /// How often another provider took over.
    fallbacks: u64,
    /// The recogniser; null without one.
    stt: Option<String>,
    /// The voice's provider; null without one.
    tts: Option<String>,
    /// BCP-47; null without a recogniser.
    language: Option<String>,
    /// The silence that ends a turn, in milliseconds; null where none does.
    silence_ms: Option<u64>,
    /// The room; null without one.
    room: Option<String>,
    /// Whether the server leads the conversation with a language model.
    led: bool,
}

impl SessionRow {
    /// The row of a session.
    pub fn of(observed: &ObservedSession) -> Self {
        let TimelineSummary {
            facts,
            doing,
            turns,
            answer_ms,
            errors,
            fallbacks,
            last_ms: _,
        } = observed.timeline.summary();
        let ended = observed.ended_at.map(|_| "ended");
        Self {
            id: observed.number,
            stream_id: observed.info.stream_id.as_str().to_owned(),
            tenant: observed.info.tenant.clone(),
            started_at: observed.info.started_at,
            ended_at: observed.ended_at,
            doing: ended.unwrap_or(doing.as_str()),
            turns,
            answer_ms,
            errors,
            fallbacks,
            stt: facts.stt,
            tts: facts.tts,
            language: facts.language,
            silence_ms: facts.silence_ms,
            room: facts.room,
            led: facts.led,
        }
    }

    /// Its number.
    pub const fn id(&self) -> u64 {
        self.id
    }
}

/// Whose something is.
type Owner = Option<TenantId>;

/// What has changed in a second.
pub struct Change {
    rows: Vec<(Owner, String)>,
    gone: Vec<(Owner, u64)>,
    /// As events: for whoever sees everything, and by tenant.
    everything: Bytes,
    of_tenants: Mutex<HashMap<String, Bytes>>,
}

impl Change {
    /// What somebody sees of it; empty where that is nothing.
    pub fn seen_by(&self, access: &Access) -> Bytes {
        if access.sees_every_tenant() {
            return self.everything.clone();
        }
        let key = access.tenant().map_or("", TenantId::as_str);
        let mut of_tenants = self
            .of_tenants
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = of_tenants.get(key) {
            return known.clone();
        }
        let rows = self.rows.iter();
        let rows = rows.filter(|(owner, _)| access.may_see(owner.as_ref()));
        let gone = self.gone.iter();
        let gone = gone.filter(|(owner, _)| access.may_see(owner.as_ref()));
        let event = event("changed", rows.map(|(_, row)| row), gone.map(|(_, id)| *id));
        // At most one for each tenant that watches.
        of_tenants.insert(key.to_owned(), event.clone());
        event
    }
}

/// An event of the stream; empty where it would say nothing.
fn event<'a>(
    name: &str,
    rows: impl Iterator<Item = &'a String>,
    gone: impl Iterator<Item = u64>,
) -> Bytes {
    let rows: Vec<&str> = rows.map(String::as_str).collect();
    let gone: Vec<String> = gone.map(|id| id.to_string()).collect();
    if name == "changed" && rows.is_empty() && gone.is_empty() {
        return Bytes::new();
    }
    let (rows, gone) = (rows.join(","), gone.join(","));
    Bytes::from(format!(
        "event: {name}\ndata: {{\"sessions\":[{rows}],\"gone\":[{gone}]}}\n\n"
    ))
}

fn written(observed: &ObservedSession) -> String {
    // Strings and numbers can always be serialised.
    serde_json::to_string(&SessionRow::of(observed)).unwrap_or_default()
}

/// The live list.
pub struct Feed {
    sessions: Addr<SessionRegistry>,
    watchers: Arc<SharedLimit>,
    changes: broadcast::Sender<Arc<Change>>,
    /// Whether somebody makes the list.
    runs: Mutex<bool>,
}

impl Feed {
    /// A list of these sessions.
    pub fn new(sessions: Addr<SessionRegistry>) -> Arc<Self> {
        Arc::new(Self {
            sessions,
            watchers: SharedLimit::new(WATCHERS),
            changes: broadcast::Sender::new(MAX_BEHIND),
            runs: Mutex::new(false),
        })
    }

    /// Somebody watches from now on.
    pub fn watch(
        self: &Arc<Self>,
        access: &Access,
    ) -> Result<(Permit, broadcast::Receiver<Arc<Change>>), Exceeded> {
        let permit = self.watchers.acquire(access.party(), 1)?;
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = self.changes.subscribe();
        if !std::mem::replace(&mut *runs, true) {
            actix_web::rt::spawn(Arc::clone(self).run());
        }
        drop(runs);
        Ok((permit, changes))
    }

    /// The whole list, as an event; `None` if the server stops.
    pub async fn whole(&self, access: &Access) -> Option<Bytes> {
        let access = access.clone();
        let observed = self.sessions.send(ObserveSessions { access }).await.ok()?;
        let rows: Vec<String> = observed.iter().map(written).collect();
        Some(event("sessions", rows.iter(), std::iter::empty()))
    }

    /// Whether nobody watches any more; whoever comes next starts anew.
    fn is_deserted(&self) -> bool {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if self.changes.receiver_count() == 0 {
            *runs = false;
        }
        !*runs
    }

    async fn run(self: Arc<Self>) {
        let mut known = HashMap::new();
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.is_deserted() {
                return;
            }
            let access = Access::anonymous();
            let Ok(observed) = self.sessions.send(ObserveSessions { access }).await else {
                return;
            };
            let change = difference(&mut known, &observed);
            if !change.everything.is_empty() {
                // Nobody may be there any more.
                let _ = self.changes.send(Arc::new(change));
            }
        }
    }
}

/// What differs from what is known, which is brought up to date.
fn difference(known: &mut HashMap<u64, (Owner, String)>, observed: &[ObservedSession]) -> Change {
    let mut before = std::mem::take(known);
    let mut rows = Vec::new();
    for session in observed {
        let row = written(session);
        let former = before.remove(&session.number);
        if former.is_none_or(|(_, former)| former != row) {
            rows.push((session.owner.clone(), row.clone()));
        }
        known.insert(session.number, (session.owner.clone(), row));
    }
    let gone = before.into_iter().map(|(id, (owner, _))| (owner, id));
    let gone: Vec<_> = gone.collect();
    let everything = event(
        "changed",
        rows.iter().map(|(_, row)| row),
        gone.iter().map(|(_, id)| *id),
    );
    Change {
        rows,
        gone,
        everything,
        of_tenants: Mutex::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_actors::registry::sessions::SessionInfo;
    use vivavoce_actors::session::StreamId;
    use vivavoce_socket::Timeline;

    fn session(number: u64, tenant: Option<&str>) -> ObservedSession {
        let stream_id = StreamId::parse(&format!("call-{number}")).unwrap();
        ObservedSession {
            number,
            owner: tenant.map(|id| TenantId::new(id).unwrap()),
            info: SessionInfo {
                stream_id,
                tenant: tenant.map(str::to_owned),
                started_at: 1,
            },
            ended_at: None,
            timeline: Timeline::default(),
        }
    }

    fn text(change: &Change, access: &Access) -> String {
        String::from_utf8(change.seen_by(access).to_vec()).unwrap()
    }

    #[test]
    fn only_what_has_changed_is_told_and_to_those_alone_whose_it_is() {
        let [a, b] = ["a", "b"].map(Access::of_tenant);
        let operator = Access::anonymous();
        let mut known = HashMap::new();
        let sessions = [
            session(1, Some("a")),
            session(2, Some("b")),
            session(3, None),
        ];
        let first = difference(&mut known, &sessions);
        let all = text(&first, &operator);
        for name in ["call-1", "call-2", "call-3"] {
            assert!(all.contains(name), "{all}");
        }
        for _ in 0..2 {
            let of_a = text(&first, &a);
            assert!(
                of_a.contains("call-1") && !of_a.contains("call-2") && !of_a.contains("call-3")
            );
        }
        // Nothing has happened.
        let change = difference(&mut known, &sessions);
        assert!(change.everything.is_empty() && change.seen_by(&a).is_empty());
        sessions[0].timeline.describe(|facts| facts.led = true);
        let change = difference(&mut known, &sessions[..1]);
        let all = text(&change, &operator);
        assert!(all.contains("call-1") && !all.contains("call-2"), "{all}");
        let of_b = text(&change, &b);
        assert!(
            of_b.ends_with("data: {\"sessions\":[],\"gone\":[2]}\n\n"),
            "{of_b}"
        );
        assert!(!text(&change, &a).contains("gone\":[2"));
    }
}
