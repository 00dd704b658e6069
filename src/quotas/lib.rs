//! Quotas and fair queues: what one caller may use of what all callers share. `docs/quotas.md` describes every quota of
//! [`TABLE`]; a test compares the two.
//!
//! # Who is counted
//!
//! Resources are counted per [`Party`]: a tenant, an address (or network) without a token, or the operator. The operator
//! is limited only by the totals.
//!
//! # The fair-share rule
//!
//! One rule applies to all quotas ([`Share`], `limits.share_percent`): a party is granted more as long as it holds less
//! than its share of what it holds plus what is free. With a share of 75 %, a party that is alone may take three
//! quarters of the total; two parties that want everything end up with about the same; and something is always left for
//! the next. While authentication is on, all addresses together count as one party, so that many addresses do not add
//! up to many shares.
//!
//! # The types
//!
//! * [`Quota`] counts things that are held for a while, such as sessions or calls. A [`Permit`] releases its unit when
//!   dropped; a refusal names the quota, is counted in the metrics, and becomes 429 or 503.
//! * [`FairQueue`] has a few slots for short work, such as one synthesis: waiters get them in round-robin order of their
//!   parties, so that nobody waits for longer than one round.
//! * [`shared_limit`] is a limit with fixed parts for unauthenticated callers, for connections, sockets and unfinished
//!   bodies, where callers are not known yet.
//! * [`Tally`] is the plain counter behind them, for code with a lock or thread of its own.
//!
//! Counting takes a short lock and happens when something begins and ends, never per packet or per audio frame. Memory
//! grows with the number of parties that hold something.
//!
//! # Example
//!
//! ```
//! use vivavoce_core::party::{Party, TenantId};
//! use vivavoce_quotas::{Kind, Quota, Share};
//!
//! let calls = Quota::new(Kind::Calls, 8, Share::percent(75));
//! let [shop, bank] = ["shop", "bank"].map(|id| Party::Tenant(TenantId::new(id).unwrap()));
//!
//! // However many calls the shop wants, it gets six of eight …
//! let held: Vec<_> = std::iter::from_fn(|| calls.take(&shop).ok()).collect();
//! assert_eq!(held.len(), 6);
//! // … so that the bank can call, too.
//! assert!(calls.take(&bank).is_ok());
//!
//! drop(held);
//! assert_eq!(calls.of(&shop), 0);
//! ```

pub mod queue;
pub mod shared_limit;
mod tally;
#[cfg(test)]
mod tests;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

pub use queue::{FairQueue, RoundRobin, Slot};
pub use tally::{Share, Tally};
use vivavoce_config::Settings;
pub use vivavoce_core::party::Party;
use vivavoce_telemetry::metrics;

/// The resources that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Connections on which somebody has authenticated.
    Connections,
    /// Rooms of the embedded SFU.
    Rooms,
    /// Participants of embedded rooms.
    Participants,
    /// Agent workers.
    AgentWorkers,
    /// Jobs of agents that have not ended.
    AgentJobs,
    /// Telephone calls.
    Calls,
    /// Session WebSockets.
    Sessions,
    /// Syntheses, including waiting ones.
    Syntheses,
    /// Audio streams being recognised.
    Recognisers,
    /// Recordings being made or waiting for upload.
    Recordings,
    /// Call hooks added through the API.
    Hooks,
    /// Webhooks waiting for delivery.
    Webhooks,
    /// Synthesised speech on disk, in bytes.
    Cache,
}

/// A row of `docs/quotas.md`.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The resource.
    pub kind: Kind,
    /// The name used in refusals.
    pub name: &'static str,
    /// The setting, or a constant in words, that gives the total.
    pub whole: &'static str,
}

/// All quotas, in the order of the page.
#[rustfmt::skip]
pub const TABLE: &[Row] = &[
    Row { kind: Kind::Connections, name: "connections", whole: "limits.connections" },
    Row { kind: Kind::Rooms, name: "rooms", whole: "limits.rooms" },
    Row { kind: Kind::Participants, name: "participants", whole: "limits.participants" },
    Row { kind: Kind::AgentWorkers, name: "agent_workers", whole: "1,000" },
    Row { kind: Kind::AgentJobs, name: "agent_jobs", whole: "10,000" },
    Row { kind: Kind::Calls, name: "calls", whole: "sip.max_calls" },
    Row { kind: Kind::Sessions, name: "sessions", whole: "limits.sessions" },
    Row { kind: Kind::Syntheses, name: "syntheses", whole: "limits.syntheses" },
    Row { kind: Kind::Recognisers, name: "recognisers", whole: "limits.recognisers" },
    Row { kind: Kind::Recordings, name: "recordings", whole: "limits.recordings" },
    Row { kind: Kind::Hooks, name: "hooks", whole: "10,000, 1,000 of a tenant" },
    Row { kind: Kind::Webhooks, name: "webhooks", whole: "10,000 and 64 MiB, and as much again for recordings" },
    Row { kind: Kind::Cache, name: "cache", whole: "cache.max_bytes" },
];

impl Kind {
    fn row(self) -> Option<&'static Row> {
        TABLE.iter().find(|row| row.kind == self)
    }

    /// The name used in refusals and metrics.
    pub fn name(self) -> &'static str {
        self.row().map_or("", |row| row.name)
    }
}

/// Why a request for more was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The party holds its fair share. Contains how the message refers to the party.
    Share(&'static str),
    /// The tenant holds as many as a setting allows any tenant. Contains the setting.
    Cap(&'static str),
    /// Everything is in use.
    Full,
}

/// A refusal by a quota. The message names the quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The resource.
    pub kind: Kind,
    /// The reason.
    pub why: Why,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, whole) = self
            .kind
            .row()
            .map_or(("", ""), |row| (row.name, row.whole));
        match self.why {
            Why::Share(who) => write!(
                f,
                "the quota {name} is used up: {who} holds as many as it may while others need some \
                 (limits.share_percent of {whole})"
            ),
            Why::Cap(setting) => write!(
                f,
                "the quota {name} is used up: this tenant has as many {name} as {setting} allows"
            ),
            Why::Full => write!(f, "there are as many {name} as {whole} allows"),
        }
    }
}

impl std::error::Error for Refused {}

impl Refused {
    /// Whether the caller itself has too much, rather than all callers together.
    pub const fn is_callers(&self) -> bool {
        matches!(self.why, Why::Share(_) | Why::Cap(_))
    }
}

/// A quota. Clones share the same counts.
#[derive(Debug, Clone)]
pub struct Quota(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: Kind,
    /// The maximum per tenant regardless of others, and the setting that says so.
    cap: Mutex<Option<(u64, &'static str)>>,
    tally: Mutex<Tally>,
}

/// A counted resource. Dropping the permit releases it.
#[derive(Debug)]
#[must_use = "dropping it gives it back"]
pub struct Permit {
    quota: Quota,
    party: Party,
    count: u64,
}

impl Quota {
    /// A quota of `whole` in total.
    pub fn new(kind: Kind, whole: usize, share: Share) -> Self {
        Self::capped(kind, whole, share, None)
    }

    fn capped(
        kind: Kind,
        whole: usize,
        share: Share,
        cap: Option<(NonZeroU32, &'static str)>,
    ) -> Self {
        Self(Arc::new(Inner {
            kind,
            cap: Mutex::new(numbers(cap)),
            tally: Mutex::new(Tally::new(whole as u64, share)),
        }))
    }

    /// There are so many from now on. Nobody loses what they hold.
    fn set(&self, whole: usize, cap: Option<(NonZeroU32, &'static str)>) {
        self.tally().set_whole(whole as u64);
        *self.0.cap.lock().unwrap_or_else(PoisonError::into_inner) = numbers(cap);
    }

    /// Takes one for a party, if the quota allows it.
    pub fn take(&self, party: &Party) -> Result<Permit, Refused> {
        let kind = self.0.kind;
        let mut tally = self.tally();
        let cap = *self.0.cap.lock().unwrap_or_else(PoisonError::into_inner);
        let capped = cap.filter(|_| party.tenant().is_some());
        let taken = match capped {
            Some((cap, setting)) if tally.of(party) >= cap => Err(Why::Cap(setting)),
            _ => tally.take(party, 1),
        };
        drop(tally);
        taken.map_err(|why| {
            metrics::quota_refused(kind.name());
            Refused { kind, why }
        })?;
        Ok(self.permit(party))
    }

    /// Counts one that the party already has, whatever the quota says; it reduces what further requests are granted.
    pub fn hold(&self, party: &Party) -> Permit {
        self.tally().hold(party, 1);
        self.permit(party)
    }

    /// How many the party holds.
    pub fn of(&self, party: &Party) -> u64 {
        self.tally().of(party)
    }

    fn permit(&self, party: &Party) -> Permit {
        Permit {
            quota: self.clone(),
            party: party.clone(),
            count: 1,
        }
    }

    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.0.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn numbers(cap: Option<(NonZeroU32, &'static str)>) -> Option<(u64, &'static str)> {
    cap.map(|(cap, setting)| (cap.get().into(), setting))
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.quota.tally().release(&self.party, self.count);
    }
}

/// The quotas checked by HTTP handlers and sessions. Those of rooms, webhooks and the cache are counted where these
/// live.
#[derive(Debug, Clone)]
pub struct Quotas {
    /// The share that applies to all of them.
    pub share: Share,
    /// Session WebSockets.
    pub sessions: Quota,
    /// Syntheses, including waiting ones.
    pub syntheses: Quota,
    /// Recognisers.
    pub recognisers: Quota,
    /// Telephone calls.
    pub calls: Quota,
    /// Recordings being made or waiting for upload.
    pub recordings: Quota,
}

impl Quotas {
    /// The quotas configured in the settings.
    pub fn new(settings: &Settings) -> Self {
        let share = Share::of(settings);
        let limits = &settings.limits;
        let per_tenant = sessions_per_tenant(settings);
        Self {
            share,
            sessions: Quota::capped(Kind::Sessions, limits.sessions, share, per_tenant),
            syntheses: Quota::new(Kind::Syntheses, limits.syntheses, share),
            recognisers: Quota::new(Kind::Recognisers, limits.recognisers, share),
            calls: Quota::new(Kind::Calls, settings.sip.max_calls, share),
            recordings: Quota::new(Kind::Recordings, limits.recordings, share),
        }
    }

    /// Takes the totals of other settings. What is held stays; the share needs a restart.
    pub fn reload(&self, settings: &Settings) {
        let limits = &settings.limits;
        self.sessions
            .set(limits.sessions, sessions_per_tenant(settings));
        self.syntheses.set(limits.syntheses, None);
        self.recognisers.set(limits.recognisers, None);
        self.calls.set(settings.sip.max_calls, None);
        self.recordings.set(limits.recordings, None);
    }

    /// Quotas without limits, for programs and tests with a single caller.
    pub fn unlimited() -> Self {
        let share = Share::NONE;
        let quota = |kind| Quota::new(kind, usize::MAX, share);
        Self {
            share,
            sessions: quota(Kind::Sessions),
            syntheses: quota(Kind::Syntheses),
            recognisers: quota(Kind::Recognisers),
            calls: quota(Kind::Calls),
            recordings: quota(Kind::Recordings),
        }
    }
}

fn sessions_per_tenant(settings: &Settings) -> Option<(NonZeroU32, &'static str)> {
    let most = settings.limits.sessions_per_tenant?;
    Some((most, "limits.sessions_per_tenant"))
}
