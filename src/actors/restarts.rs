//! When a child that has failed is started again: exponential back-off with jitter, and a budget per window of time.
//! Starting the child, and telling the client once the budget is spent, is left to the supervisor.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use vivavoce_core::backoff::Backoff;

/// How long a child must last to have worked.
const MOMENT: Duration = Duration::from_secs(1);

/// The restart policy for one kind of child.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RestartPolicy {
    /// The delays before restarts.
    pub backoff: Backoff,
    /// Restarts within `window`; one more is refused.
    pub budget: usize,
    /// After this long a restart no longer counts.
    pub window: Duration,
}

impl RestartPolicy {
    /// For a recogniser: the budget lasts for about as long an outage as the 30 s of the replay buffer can bridge.
    pub const RECOGNISER: Self = Self {
        backoff: Backoff::doubling(Duration::from_millis(100), Duration::from_secs(5), 0.2),
        budget: 10,
        window: Duration::from_mins(1),
    };
}

impl RestartPolicy {
    /// For the actor of a synthesiser, which ends only by our own bugs.
    pub const SYNTHESISER: Self = Self {
        budget: 3,
        ..Self::RECOGNISER
    };
    /// For one utterance at a provider that fails before its first audio, while a user waits for it.
    pub const UTTERANCE: Self = Self {
        backoff: Backoff {
            factor: 3.0,
            ..Self::RECOGNISER.backoff
        },
        budget: 3,
        ..Self::RECOGNISER
    };
}

/// A random number, 0–1, for [`Restarts::next`].
pub fn jitter() -> f64 {
    fastrand::f64()
}

/// The restarts of one child.
#[derive(Debug, Clone)]
pub struct Restarts {
    policy: RestartPolicy,
    /// When each restart within the window was requested; at most `budget`.
    recent: VecDeque<Instant>,
}

impl Restarts {
    /// For a child that has not failed yet.
    pub fn new(policy: RestartPolicy) -> Self {
        Self {
            policy,
            recent: VecDeque::new(),
        }
    }

    /// The child has failed: how long to wait before the next attempt, or `None` once the budget is spent, which the
    /// supervisor has to escalate. `jitter` is a random number, 0–1.
    pub fn next(&mut self, now: Instant, jitter: f64) -> Option<Duration> {
        let forgiven = |&at: &Instant| now.saturating_duration_since(at) >= self.policy.window;
        while self.recent.front().is_some_and(forgiven) {
            self.recent.pop_front();
        }
        if self.recent.len() >= self.policy.budget {
            return None;
        }
        let earlier = u32::try_from(self.recent.len()).unwrap_or(u32::MAX);
        self.recent.push_back(now);
        Some(self.policy.backoff.delay(earlier, jitter))
    }

    /// The child works again: restarts more than a moment ago no longer count, so that a child whose attempts are short but
    /// useful, such as a stream with a time limit, is not given up on. One that fails as soon as it works still waits longer.
    pub fn forgive(&mut self, now: Instant) {
        let is_fresh = |&at: &Instant| now.saturating_duration_since(at) < MOMENT;
        self.recent.retain(is_fresh);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POLICY: RestartPolicy = RestartPolicy::RECOGNISER;

    #[test]
    fn delays_grow_to_their_longest_and_then_the_budget_is_spent() {
        let mut restarts = Restarts::new(POLICY);
        let now = Instant::now();
        let delays: Vec<_> = std::iter::from_fn(|| restarts.next(now, 0.0))
            .map(|delay| delay.as_millis())
            .collect();
        assert_eq!(
            delays,
            [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000, 5000]
        );
    }

    #[test]
    fn a_healthy_window_forgives() {
        let mut restarts = Restarts::new(POLICY);
        let now = Instant::now();
        while restarts.next(now, 0.0).is_some() {}
        let almost = now + POLICY.window - Duration::from_millis(1);
        assert_eq!(restarts.next(almost, 0.0), None);
        let healthy = now + POLICY.window;
        assert_eq!(restarts.next(healthy, 0.0), Some(POLICY.backoff.first));
    }

    #[test]
    fn a_part_that_works_is_forgiven_what_it_did_before() {
        let mut restarts = Restarts::new(POLICY);
        let mut now = Instant::now();
        for _ in 0..100 {
            assert_eq!(restarts.next(now, 0.0), Some(POLICY.backoff.first));
            now += MOMENT;
            restarts.forgive(now);
        }
        // Working for less than a moment is no excuse.
        restarts.next(now, 0.0);
        restarts.forgive(now + MOMENT / 2);
        assert_eq!(restarts.next(now, 0.0), Some(POLICY.backoff.first * 2));
    }

    proptest! {
        #[test]
        fn no_window_sees_more_restarts_than_the_budget_and_no_delay_is_out_of_bounds(
            failures in prop::collection::vec((0u64..20_000, any::<f64>()), 0..200),
        ) {
            let mut restarts = Restarts::new(POLICY);
            let (start, mut since) = (Instant::now(), Duration::ZERO);
            let mut granted: Vec<Duration> = Vec::new();
            for (gap_ms, jitter) in failures {
                since += Duration::from_millis(gap_ms);
                let recent = granted.iter().filter(|&&at| since - at < POLICY.window).count();
                let delay = restarts.next(start + since, jitter);
                prop_assert_eq!(delay.is_some(), recent < POLICY.budget);
                if let Some(delay) = delay {
                    prop_assert!(delay <= POLICY.backoff.longest);
                    granted.push(since);
                }
            }
        }

        #[test]
        fn chance_only_shortens_a_delay_and_by_its_share(jitter in 0.0..=1.0) {
            let delay = Restarts::new(POLICY).next(Instant::now(), jitter).unwrap();
            prop_assert!(delay <= POLICY.backoff.first);
            prop_assert!(delay >= POLICY.backoff.first.mul_f64(1.0 - POLICY.backoff.jitter - 1e-9));
        }
    }
}
