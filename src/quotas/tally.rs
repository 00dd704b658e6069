//! The rule of all quotas, and how much each party holds. Plain state without locks, for those who have a thread or a lock
//! of their own.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{Party, Why};
use vivavoce_config::Settings;

/// The rule: somebody is given more as long as they hold less than this share of what they hold and what is free together.
/// Whoever is alone may so have that share of the whole, several who want everything have about the same each, and
/// something is always left for whoever comes.
///
/// All callers of whom only the address is known are together one such party while authentication is on, and each address
/// is one among them: however many addresses somebody has, tenants keep their part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    percent: u8,
    /// Whether addresses are together no more than one party.
    strangers_are_one: bool,
}

impl Default for Share {
    fn default() -> Self {
        Self::percent(75)
    }
}

impl Share {
    /// Everybody may have everything.
    pub const NONE: Self = Self::percent(100);

    /// So many hundredths; 100 is no rule at all.
    pub const fn percent(percent: u8) -> Self {
        Self {
            percent,
            strangers_are_one: false,
        }
    }

    /// That of the settings.
    pub const fn of(settings: &Settings) -> Self {
        Self {
            percent: settings.limits.share_percent,
            strangers_are_one: settings.auth.required,
        }
    }

    /// The same, with addresses that are together no more than one party.
    #[cfg(any(test, feature = "testing"))]
    pub const fn with_strangers_as_one(self) -> Self {
        Self {
            strangers_are_one: true,
            ..self
        }
    }

    /// The most that somebody may hold who holds this while so much is free.
    pub(super) fn most(self, held: u64, free: u64) -> u64 {
        let all = u128::from(held) + u128::from(free);
        let most = (all * u128::from(self.percent)).div_ceil(100);
        u64::try_from(most).unwrap_or(u64::MAX)
    }
}

/// How much of something there is, and who holds it.
#[derive(Debug)]
pub struct Tally {
    whole: u64,
    share: Share,
    total: u64,
    /// Of addresses.
    strangers: u64,
    held: HashMap<Party, u64>,
}

impl Tally {
    /// So much in all.
    pub fn new(whole: u64, share: Share) -> Self {
        Self {
            whole,
            share,
            total: 0,
            strangers: 0,
            held: HashMap::new(),
        }
    }

    /// How much somebody holds; of whoever runs the server nobody keeps count.
    pub fn of(&self, party: &Party) -> u64 {
        self.held.get(party).copied().unwrap_or_default()
    }

    /// How much all hold.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// How much addresses hold together.
    pub const fn strangers(&self) -> u64 {
        self.strangers
    }

    /// What nobody holds.
    pub const fn free(&self) -> u64 {
        self.whole.saturating_sub(self.total)
    }

    /// Whether somebody may have so much more.
    pub fn check(&self, party: &Party, more: u64) -> Result<(), Why> {
        self.check_within(party, more, u64::MAX)
    }

    /// The same where no more than so much is free for another reason.
    pub fn check_within(&self, party: &Party, more: u64, free: u64) -> Result<(), Why> {
        let free = self.free().min(free);
        if more > free {
            return Err(Why::Full);
        }
        let Share {
            percent,
            strangers_are_one,
        } = self.share;
        if *party == Party::Operator || percent >= 100 {
            return Ok(());
        }
        let fits = |held: u64, free: u64| held.saturating_add(more) <= self.share.most(held, free);
        let free = if strangers_are_one && matches!(party, Party::Address(_)) {
            let most = self.share.most(self.strangers, free);
            if !fits(self.strangers, free) {
                return Err(Why::Share("all callers without a token together"));
            }
            most - self.strangers.min(most)
        } else {
            free
        };
        if fits(self.of(party), free) {
            Ok(())
        } else {
            Err(Why::Share(party.shown()))
        }
    }

    /// Gives somebody so much more, if they may have it.
    pub fn take(&mut self, party: &Party, more: u64) -> Result<(), Why> {
        self.check(party, more)?;
        self.hold(party, more);
        Ok(())
    }

    /// Somebody has so much more, whatever the rule says.
    pub fn hold(&mut self, party: &Party, more: u64) {
        self.total = self.total.saturating_add(more);
        match party {
            Party::Operator => return,
            Party::Address(_) => self.strangers = self.strangers.saturating_add(more),
            Party::Tenant(_) => {}
        }
        let held = self.held.entry(party.clone()).or_default();
        *held = held.saturating_add(more);
    }

    /// Somebody gives so much back.
    pub fn release(&mut self, party: &Party, less: u64) {
        self.total = self.total.saturating_sub(less);
        match party {
            Party::Operator => return,
            Party::Address(_) => self.strangers = self.strangers.saturating_sub(less),
            Party::Tenant(_) => {}
        }
        if let Entry::Occupied(mut held) = self.held.entry(party.clone()) {
            *held.get_mut() = held.get().saturating_sub(less);
            if *held.get() == 0 {
                held.remove();
            }
        }
    }

    /// Whoever holds most, with how much.
    pub fn largest(&self) -> Option<(&Party, u64)> {
        let known: u64 = self.held.values().sum();
        let nobodys = (&Party::Operator, self.total.saturating_sub(known));
        let held = self.held.iter().map(|(party, held)| (party, *held));
        held.chain([nobodys])
            .filter(|(_, held)| *held > 0)
            .max_by_key(|(_, held)| *held)
    }

    /// Whether nobody holds anything.
    #[cfg(any(test, feature = "testing"))]
    pub fn is_empty(&self) -> bool {
        self.total == 0 && self.strangers == 0 && self.held.is_empty()
    }
}
