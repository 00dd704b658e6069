//! The fair-share rule, and how much each party holds. Plain state without locks, for callers that have a thread or a
//! lock of their own.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{Party, Why};
use vivavoce_config::Settings;

/// The fair-share rule: a party is granted more as long as it holds less than this share of the sum of what it holds
/// and what is free. So a party that is alone may hold that share of the total, several that want everything get about
/// the same each, and something is always left for newcomers.
///
/// While authentication is on, all callers known only by their address count together as one such party, and each
/// address as a party among them: however many addresses somebody has, tenants keep their part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    percent: u8,
    /// Whether all addresses together count as one party.
    addresses_as_one: bool,
}

impl Default for Share {
    fn default() -> Self {
        Self::percent(75)
    }
}

impl Share {
    /// No limit on what one party holds.
    pub const NONE: Self = Self::percent(100);

    /// A share in percent; 100 disables the rule.
    pub const fn percent(percent: u8) -> Self {
        Self {
            percent,
            addresses_as_one: false,
        }
    }

    /// The share configured in the settings.
    pub const fn of(settings: &Settings) -> Self {
        Self {
            percent: settings.limits.share_percent,
            addresses_as_one: settings.auth.required,
        }
    }

    /// The same share, with all addresses together counting as one party.
    #[cfg(any(test, feature = "testing"))]
    pub const fn with_addresses_as_one(self) -> Self {
        Self {
            addresses_as_one: true,
            ..self
        }
    }

    /// The most that a party may hold that holds `held` while `free` is free.
    pub(super) fn most(self, held: u64, free: u64) -> u64 {
        let all = u128::from(held) + u128::from(free);
        let most = (all * u128::from(self.percent)).div_ceil(100);
        u64::try_from(most).unwrap_or(u64::MAX)
    }
}

/// How much of a resource there is, and who holds how much of it.
#[derive(Debug)]
pub struct Tally {
    whole: u64,
    share: Share,
    total: u64,
    /// Held by addresses together.
    addresses: u64,
    held: HashMap<Party, u64>,
}

impl Tally {
    /// `whole` in total.
    pub fn new(whole: u64, share: Share) -> Self {
        Self {
            whole,
            share,
            total: 0,
            addresses: 0,
            held: HashMap::new(),
        }
    }

    /// There is so much from now on; what is held beyond it stays.
    pub const fn set_whole(&mut self, whole: u64) {
        self.whole = whole;
    }

    /// How much the party holds. Not counted for the operator.
    pub fn of(&self, party: &Party) -> u64 {
        self.held.get(party).copied().unwrap_or_default()
    }

    /// How much is held in total.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// How much is held by addresses together.
    pub const fn addresses(&self) -> u64 {
        self.addresses
    }

    /// How much is free.
    pub const fn free(&self) -> u64 {
        self.whole.saturating_sub(self.total)
    }

    /// Checks whether the party may have `more`.
    pub fn check(&self, party: &Party, more: u64) -> Result<(), Why> {
        self.check_within(party, more, u64::MAX)
    }

    /// The same if no more than `free` is available for another reason.
    pub fn check_within(&self, party: &Party, more: u64, free: u64) -> Result<(), Why> {
        let free = self.free().min(free);
        if more > free {
            return Err(Why::Full);
        }
        let Share {
            percent,
            addresses_as_one,
        } = self.share;
        if *party == Party::Operator || percent >= 100 {
            return Ok(());
        }
        let fits = |held: u64, free: u64| held.saturating_add(more) <= self.share.most(held, free);
        let free = if addresses_as_one && matches!(party, Party::Address(_)) {
            let most = self.share.most(self.addresses, free);
            if !fits(self.addresses, free) {
                return Err(Why::Share("all callers without a token together"));
            }
            most - self.addresses.min(most)
        } else {
            free
        };
        if fits(self.of(party), free) {
            Ok(())
        } else {
            Err(Why::Share(party.shown()))
        }
    }

    /// Grants the party `more`, if the rule allows it.
    pub fn take(&mut self, party: &Party, more: u64) -> Result<(), Why> {
        self.check(party, more)?;
        self.hold(party, more);
        Ok(())
    }

    /// Counts `more` for the party, whatever the rule says.
    pub fn hold(&mut self, party: &Party, more: u64) {
        self.total = self.total.saturating_add(more);
        match party {
            Party::Operator => return,
            Party::Address(_) => self.addresses = self.addresses.saturating_add(more),
            Party::Tenant(_) => {}
        }
        let held = self.held.entry(party.clone()).or_default();
        *held = held.saturating_add(more);
    }

    /// Releases `less` of what the party holds.
    pub fn release(&mut self, party: &Party, less: u64) {
        self.total = self.total.saturating_sub(less);
        match party {
            Party::Operator => return,
            Party::Address(_) => self.addresses = self.addresses.saturating_sub(less),
            Party::Tenant(_) => {}
        }
        if let Entry::Occupied(mut held) = self.held.entry(party.clone()) {
            *held.get_mut() = held.get().saturating_sub(less);
            if *held.get() == 0 {
                held.remove();
            }
        }
    }

    /// The party that holds most, with its amount.
    pub fn largest(&self) -> Option<(&Party, u64)> {
        let known: u64 = self.held.values().sum();
        let nobodys = (&Party::Operator, self.total.saturating_sub(known));
        let held = self.held.iter().map(|(party, held)| (party, *held));
        held.chain([nobodys])
            .filter(|(_, held)| *held > 0)
            .max_by_key(|(_, held)| *held)
    }

    /// Whether nothing is held.
    #[cfg(any(test, feature = "testing"))]
    pub fn is_empty(&self) -> bool {
        self.total == 0 && self.addresses == 0 && self.held.is_empty()
    }
}
