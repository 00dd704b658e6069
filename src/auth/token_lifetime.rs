//! The lifetime of the token that opened a session: until its `exp` claim, or until the service, which is asked again
//! at intervals, no longer accepts it. How the session then ends is up to the session.
//!
//! [`Pass`] is our own name, after a day pass: no standard term covers "authorised until further notice".

use std::future::pending;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::time::{Instant, sleep, sleep_until};

/// Why a session's token is no longer valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withdrawn {
    /// It has expired.
    Expired,
    /// The service no longer accepts it, or attributes it to somebody else.
    Revoked,
}

impl Withdrawn {
    /// The reason for people, short enough for a close frame.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Expired => "the token of this session has expired",
            Self::Revoked => "the token of this session is not accepted any more",
        }
    }
}

/// Resolves when the token of a session is no longer valid, which may be never.
pub type Pass = LocalBoxFuture<'static, Withdrawn>;

/// Waits for expiry or revocation. `is_good` asks the service again; it is called at the interval `every`, if set.
pub(super) async fn withdrawn(
    expires: Option<Instant>,
    every: Option<Duration>,
    mut is_good: impl AsyncFnMut() -> bool,
) -> Withdrawn {
    let expired = async {
        match expires {
            Some(at) => sleep_until(at).await,
            None => pending().await,
        }
    };
    let revoked = async {
        let Some(every) = every else {
            return pending().await;
        };
        loop {
            sleep(every).await;
            if !is_good().await {
                return;
            }
        }
    };
    tokio::select! {
        () = expired => Withdrawn::Expired,
        () = revoked => Withdrawn::Revoked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const MINUTE: Duration = Duration::from_mins(1);

    /// How and when a token ends that the service accepts a given number of times.
    async fn end(
        expires_in: Option<Duration>,
        every: Option<Duration>,
        good: u32,
    ) -> (Withdrawn, Duration) {
        let begun = Instant::now();
        let asked = Cell::new(0);
        let is_good = async || {
            asked.set(asked.get() + 1);
            asked.get() <= good
        };
        let expires = expires_in.map(|time| begun + time);
        let why = withdrawn(expires, every, is_good).await;
        (why, begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_ends_when_it_says_so_or_when_the_service_says_so() {
        for (expires_in, every, good, expected) in [
            (Some(MINUTE), None, 0, (Withdrawn::Expired, MINUTE)),
            (None, Some(MINUTE), 0, (Withdrawn::Revoked, MINUTE)),
            (None, Some(MINUTE), 9, (Withdrawn::Revoked, 10 * MINUTE)),
            (
                Some(5 * MINUTE / 2),
                Some(MINUTE),
                9,
                (Withdrawn::Expired, 5 * MINUTE / 2),
            ),
            (
                Some(9 * MINUTE),
                Some(MINUTE),
                1,
                (Withdrawn::Revoked, 2 * MINUTE),
            ),
        ] {
            let (why, after) = end(expires_in, every, good).await;
            // Timers have millisecond resolution.
            let late = after.abs_diff(expected.1);
            assert!(
                why == expected.0 && late <= Duration::from_millis(20),
                "{why:?} after {after:?} instead of {expected:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_without_end_that_nobody_is_asked_about_is_good_for_ever() {
        let years = Duration::from_hours(24 * 365);
        let ended = tokio::time::timeout(years, end(None, None, 0)).await;
        assert!(ended.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_expires_while_the_service_is_asked() {
        let begun = Instant::now();
        let is_good = async || pending().await;
        let why = withdrawn(Some(begun + 2 * MINUTE), Some(MINUTE), is_good).await;
        assert_eq!(why, Withdrawn::Expired);
    }
}
