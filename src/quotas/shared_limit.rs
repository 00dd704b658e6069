//! A limit shared by many callers: in total, for all unauthenticated callers together, and for a single tenant or
//! address. Unlike with [quotas](super), the shares of unknown callers are fixed parts of the total; [`Tally`] does the
//! counting here, too. What is counted, permits or bytes, is released when its [`Permit`] is dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Party, Share, Tally};

/// The size of a limit and its shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// The total.
    pub total: usize,
    /// Of these, for all unauthenticated callers together.
    pub unauthenticated: usize,
    /// Of these, for one address. For a tenant, the upper bound: it may hold the same fraction of what it holds plus
    /// what is free as this is of the total.
    pub per_key: usize,
}

impl Size {
    /// A limit without shares: first come, first served.
    pub const fn undivided(total: usize) -> Self {
        Self {
            total,
            unauthenticated: total,
            per_key: total,
        }
    }
}

/// The bound that was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exceeded {
    /// The total is used up.
    Total,
    /// The part for unauthenticated callers is used up.
    Unauthenticated,
    /// This tenant or address holds its share.
    PerKey,
}

/// A limit shared by many callers.
#[derive(Debug)]
pub struct SharedLimit {
    size: Size,
    /// Who holds how much; the shares are applied here, not by the tally.
    held: Mutex<Tally>,
}

impl SharedLimit {
    /// A limit of this size.
    pub fn new(size: Size) -> Arc<Self> {
        Arc::new(Self {
            size,
            held: Mutex::new(Tally::new(size.total as u64, Share::NONE)),
        })
    }

    /// Takes `amount`, until the permit is dropped.
    pub fn acquire(self: &Arc<Self>, key: Party, amount: usize) -> Result<Permit, Exceeded> {
        let mut permit = self.empty(key);
        permit.resize(amount)?;
        Ok(permit)
    }

    /// A permit for nothing yet, to be resized.
    pub fn empty(self: &Arc<Self>, key: Party) -> Permit {
        Permit {
            limit: Arc::clone(self),
            key,
            amount: 0,
        }
    }

    /// How much is free.
    pub fn available(&self) -> usize {
        usize::try_from(self.held().free()).unwrap_or(usize::MAX)
    }

    fn held(&self) -> MutexGuard<'_, Tally> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, key: &Party, more: usize) -> Result<(), Exceeded> {
        let mut held = self.held();
        let fits = |now: u64, limit: usize| {
            let left = (limit as u64).checked_sub(now);
            left.is_some_and(|left| more as u64 <= left)
        };
        if !fits(held.total(), self.size.total) {
            return Err(Exceeded::Total);
        }
        let unauthenticated = matches!(key, Party::Address(_));
        if unauthenticated && !fits(held.addresses(), self.size.unauthenticated) {
            return Err(Exceeded::Unauthenticated);
        }
        let own = match key {
            Party::Operator => usize::MAX,
            Party::Address(_) => self.size.per_key,
            Party::Tenant(_) => self.of_a_tenant(held.of(key) + held.free()),
        };
        if !fits(held.of(key), own) {
            return Err(Exceeded::PerKey);
        }
        held.hold(key, more as u64);
        Ok(())
    }

    /// How much a tenant may hold, given the sum of what it holds and what is free: whatever others hold, something is
    /// left for the next.
    fn of_a_tenant(&self, reach: u64) -> usize {
        let (part, whole) = (self.size.per_key as u128, self.size.total.max(1) as u128);
        let part = (u128::from(reach) * part).div_ceil(whole);
        usize::try_from(part)
            .unwrap_or(usize::MAX)
            .min(self.size.per_key)
    }

    fn give_back(&self, key: &Party, amount: usize) {
        self.held().release(key, amount as u64);
    }
}

/// Part of a limit. Dropping it releases it.
#[derive(Debug)]
#[must_use = "it is given back when it is dropped"]
pub struct Permit {
    limit: Arc<SharedLimit>,
    key: Party,
    amount: usize,
}

impl Permit {
    /// Changes the amount. After a refusal the permit is unchanged.
    pub fn resize(&mut self, amount: usize) -> Result<(), Exceeded> {
        if amount > self.amount {
            self.limit.take(&self.key, amount - self.amount)?;
        } else if amount < self.amount {
            self.limit.give_back(&self.key, self.amount - amount);
        }
        self.amount = amount;
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.limit.give_back(&self.key, self.amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use vivavoce_core::party::TenantId;

    fn limit() -> Arc<SharedLimit> {
        SharedLimit::new(Size {
            total: 8,
            unauthenticated: 6,
            per_key: 2,
        })
    }

    fn address(last: u8) -> Party {
        Party::Address(IpAddr::from([192, 0, 2, last]))
    }

    fn tenant(id: &str) -> Party {
        Party::Tenant(TenantId::new(id).unwrap())
    }

    #[test]
    fn unauthenticated_callers_leave_something_for_the_others_however_many_addresses_they_have() {
        let limit = limit();
        let strangers: Vec<_> = (0..100)
            .filter_map(|last| limit.acquire(address(last), 1).ok())
            .collect();
        assert_eq!(strangers.len(), 6);
        assert_eq!(
            limit.acquire(address(200), 1).unwrap_err(),
            Exceeded::Unauthenticated
        );
        let _operator = limit.acquire(Party::Operator, 1).unwrap();
        let _tenant = limit.acquire(tenant("a"), 1).unwrap();
        assert_eq!(limit.acquire(tenant("b"), 1).unwrap_err(), Exceeded::Total);
        drop(strangers);
        assert!(limit.acquire(address(200), 1).is_ok());
    }

    #[test]
    fn one_tenant_or_address_has_its_share_and_an_operator_all() {
        let limit = limit();
        for key in [address(1), tenant("a")] {
            let _held = limit.acquire(key.clone(), 2).unwrap();
            assert_eq!(limit.acquire(key, 1).unwrap_err(), Exceeded::PerKey);
        }
        assert!(limit.acquire(Party::Operator, 8).is_ok());
    }

    #[test]
    fn a_tenant_leaves_something_for_the_next_also_where_strangers_have_all_that_they_may() {
        let limit = SharedLimit::new(Size {
            total: 200,
            unauthenticated: 150,
            per_key: 50,
        });
        let all_of = |key: Party| -> Vec<_> {
            std::iter::from_fn(|| limit.acquire(key.clone(), 1).ok()).collect()
        };
        let alone = all_of(tenant("a"));
        assert_eq!(alone.len(), 50);
        drop(alone);
        let strangers: Vec<_> = (0..4).map(|last| all_of(address(last))).collect();
        assert_eq!(strangers.iter().map(Vec::len).sum::<usize>(), 150);
        let held = ["a", "b", "c", "d"].map(|id| all_of(tenant(id)));
        assert!(
            held.iter().all(|held| held.len() >= 5),
            "{:?}",
            held.map(|held| held.len())
        );
    }

    #[test]
    fn what_is_given_back_leaves_nothing_behind() {
        let limit = limit();
        let mut permit = limit.acquire(address(1), 1).unwrap();
        permit.resize(2).unwrap();
        assert_eq!(permit.resize(3), Err(Exceeded::PerKey));
        assert_eq!(limit.available(), 6);
        permit.resize(0).unwrap();
        assert!(limit.held().is_empty());
        permit.resize(2).unwrap();
        drop(permit);
        assert!(limit.held().is_empty());
    }

    #[test]
    fn amounts_that_overflow_are_refused() {
        let limit = SharedLimit::new(Size::undivided(usize::MAX));
        let _all = limit.acquire(Party::Operator, usize::MAX).unwrap();
        let more = limit.acquire(address(1), usize::MAX);
        assert_eq!(more.unwrap_err(), Exceeded::Total);
    }
}
