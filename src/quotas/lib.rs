//! What one caller may take from the others: quotas of everything that callers share, counted by [`Party`]. One rule holds
//! for all of them ([`Share`]); whatever must be waited for is waited for in turn ([`queue`]). What is counted is taken
//! where it begins and given back when it ends; nothing here is asked for per packet or per frame.
//!
//! `docs/quotas.md` describes every quota of [`TABLE`]; a test compares the two.

pub mod queue;
pub mod shared_limit;
mod tally;
#[cfg(test)]
mod tests;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

pub use queue::{FairQueue, InTurn, Place};
pub use tally::{Share, Tally};
use vivavoce_config::Settings;
pub use vivavoce_core::party::Party;
use vivavoce_telemetry::metrics;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Connections on which somebody has shown a token.
    Connections,
    /// Embedded rooms.
    Rooms,
    /// Participants of embedded rooms.
    Participants,
    /// Telephone calls.
    Calls,
    /// Sockets of sessions.
    Sessions,
    /// Syntheses, those that wait included.
    Syntheses,
    /// Streams of sound that are recognised.
    Recognisers,
    /// Recordings that are being made or wait for the store.
    Recordings,
    /// Hooks of calls that were added.
    Hooks,
    /// Webhooks that wait for their receivers.
    Webhooks,
    /// Synthesised speech on disk.
    Cache,
}

/// A quota as its page shows it.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// What is counted.
    pub kind: Kind,
    /// Its name in refusals.
    pub name: &'static str,
    /// The setting, or the constant in words, that says how much there is in all.
    pub whole: &'static str,
}

/// Every quota, in the order of the page.
#[rustfmt::skip]
pub const TABLE: &[Row] = &[
    Row { kind: Kind::Connections, name: "connections", whole: "limits.connections" },
    Row { kind: Kind::Rooms, name: "rooms", whole: "limits.rooms" },
    Row { kind: Kind::Participants, name: "participants", whole: "limits.participants" },
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

    /// Its name in refusals and metrics.
    pub fn name(self) -> &'static str {
        self.row().map_or("", |row| row.name)
    }
}

/// Why there is nothing more for somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// They hold what one of them may.
    Share(&'static str),
    /// They hold what a setting allows a tenant, whoever else is there.
    Cap(&'static str),
    /// Everything that there is is held.
    Full,
}

/// There is nothing more for somebody. Its text names the quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Of what.
    pub kind: Kind,
    /// Why.
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
    /// Whether it is the caller who has too much; if not, all callers together have.
    pub const fn is_callers(&self) -> bool {
        matches!(self.why, Why::Share(_) | Why::Cap(_))
    }
}

/// A quota. Clones are the same.
#[derive(Debug, Clone)]
pub struct Quota(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: Kind,
    /// What a tenant may have whoever else is there, and the setting that says so.
    cap: Option<(u64, &'static str)>,
    tally: Mutex<Tally>,
}

/// One of what is counted, or several, as long as it is kept.
#[derive(Debug)]
#[must_use = "dropping it gives it back"]
pub struct Permit {
    quota: Quota,
    party: Party,
    count: u64,
}

impl Quota {
    /// So many in all.
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
            cap: cap.map(|(cap, setting)| (cap.get().into(), setting)),
            tally: Mutex::new(Tally::new(whole as u64, share)),
        }))
    }

    /// One more for somebody.
    pub fn take(&self, party: &Party) -> Result<Permit, Refused> {
        let kind = self.0.kind;
        let mut tally = self.tally();
        let capped = self.0.cap.filter(|_| party.tenant().is_some());
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

    /// One more for somebody who has it already, whatever the quota says: it counts for those that they ask for.
    pub fn hold(&self, party: &Party) -> Permit {
        self.tally().hold(party, 1);
        self.permit(party)
    }

    /// How many somebody holds.
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

impl Drop for Permit {
    fn drop(&mut self) {
        self.quota.tally().release(&self.party, self.count);
    }
}

/// The quotas of a server that are taken at its doors and in its sessions. Those of rooms, webhooks and the cache are
/// counted where these are kept.
#[derive(Debug, Clone)]
pub struct Quotas {
    /// The rule.
    pub share: Share,
    /// Sockets of sessions.
    pub sessions: Quota,
    /// Syntheses, those that wait included.
    pub syntheses: Quota,
    /// Recognisers.
    pub recognisers: Quota,
    /// Telephone calls.
    pub calls: Quota,
    /// Recordings that are being made or wait for the store.
    pub recordings: Quota,
}

impl Quotas {
    /// Those that the settings name.
    pub fn new(settings: &Settings) -> Self {
        let share = Share::of(settings);
        let limits = &settings.limits;
        let per_tenant = limits.sessions_per_tenant;
        let per_tenant = per_tenant.map(|most| (most, "limits.sessions_per_tenant"));
        Self {
            share,
            sessions: Quota::capped(Kind::Sessions, limits.sessions, share, per_tenant),
            syntheses: Quota::new(Kind::Syntheses, limits.syntheses, share),
            recognisers: Quota::new(Kind::Recognisers, limits.recognisers, share),
            calls: Quota::new(Kind::Calls, settings.sip.max_calls, share),
            recordings: Quota::new(Kind::Recordings, limits.recordings, share),
        }
    }

    /// Such as nobody meets, for programs and tests in which there is one caller.
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
