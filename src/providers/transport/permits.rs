//! Limits the concurrent connections of one credential at a vendor. Vendors' plans have such caps, and exceeding one makes
//! the vendor refuse every user of that credential.

use std::num::NonZeroU32;
use std::time::Duration;

use dashmap::DashMap;
use tokio::time::timeout;

use vivavoce_quotas::{FairQueue, Party, Share, Slot};
use vivavoce_seams::{ErrorKind, ProviderError};

/// Above this number of credentials, those without connections are forgotten.
const MANY: usize = 256;

/// The permits of one vendor in one direction.
#[derive(Debug)]
pub struct Permits {
    provider: &'static str,
    each: Option<usize>,
    share: Share,
    of: DashMap<[u8; 32], FairQueue>,
}

/// A permit for one connection, returned on drop.
#[derive(Debug)]
pub struct Permit {
    _held: Option<Slot>,
}

impl Permits {
    /// `each` permits per credential; unlimited where it is absent.
    pub fn new(provider: &'static str, each: Option<NonZeroU32>) -> Self {
        Self {
            provider,
            each: each.map(|each| each.get() as usize),
            share: Share::default(),
            of: DashMap::new(),
        }
    }

    /// Limits each party to this share.
    #[must_use]
    pub fn shared(self, share: Share) -> Self {
        Self { share, ..self }
    }

    /// Waits up to `patience` until it is this party's turn to get a permit of this credential.
    pub async fn acquire(
        &self,
        credential: [u8; 32],
        party: &Party,
        patience: Duration,
    ) -> Result<Permit, ProviderError> {
        let Some(each) = self.each else {
            return Ok(Permit { _held: None });
        };
        if self.of.len() > MANY {
            self.of.retain(|_, permits| !permits.is_idle());
        }
        let permits = self
            .of
            .entry(credential)
            .or_insert_with(|| FairQueue::new(each, self.share))
            .value()
            .clone();
        match timeout(patience, permits.acquire(party)).await {
            Ok(held) => Ok(Permit { _held: Some(held) }),
            Err(_) => Err(ProviderError::new(
                self.provider,
                ErrorKind::Overloaded,
                format!("{each} connections are open with this credential, which may have no more"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_credential_has_its_own_cap_and_waits_for_it() {
        let permits = Permits::new("vendor", NonZeroU32::new(1));
        let patience = Duration::from_secs(1);
        let first = permits
            .acquire([1; 32], &Party::Operator, patience)
            .await
            .unwrap();
        let _other = permits
            .acquire([2; 32], &Party::Operator, patience)
            .await
            .unwrap();
        let refused = permits
            .acquire([1; 32], &Party::Operator, patience)
            .await
            .unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Overloaded);
        drop(first);
        permits
            .acquire([1; 32], &Party::Operator, patience)
            .await
            .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn credentials_that_nobody_uses_are_forgotten() {
        let permits = Permits::new("vendor", NonZeroU32::new(1));
        let held = permits
            .acquire([255; 32], &Party::Operator, Duration::ZERO)
            .await
            .unwrap();
        for number in 0..2000u32 {
            let mut credential = [0; 32];
            credential[..4].copy_from_slice(&number.to_le_bytes());
            permits
                .acquire(credential, &Party::Operator, Duration::ZERO)
                .await
                .unwrap();
        }
        assert!(permits.of.len() <= MANY + 1);
        drop(held);
    }
}
