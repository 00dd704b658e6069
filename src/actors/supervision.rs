//! When a part that has failed is started again: a back-off with jitter and a budget per window of time. It only
//! says when; making the new part, and what to tell the client once the budget is spent, are the supervisor's.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// What a part must last to have worked.
const MOMENT: Duration = Duration::from_secs(1);

/// How patient a supervisor is with one kind of part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RestartPolicy {
    /// The delay before the first restart.
    pub first_delay: Duration,
    /// How much longer each further delay is.
    pub factor: f64,
    /// No delay is longer.
    pub max_delay: Duration,
    /// The share of a delay, 0–1, that is left to chance, so that many sessions do not come back in one moment.
    pub jitter_share: f64,
    /// Restarts within `window`; one more is refused.
    pub budget: usize,
    /// After this long a restart is forgiven.
    pub window: Duration,
}

impl RestartPolicy {
    /// For a recogniser: the budget is spent after about as long an outage as the feed's 30 s of sound can bridge.
    pub const RECOGNISER: Self = Self {
        first_delay: Duration::from_millis(100),
        factor: 2.0,
        max_delay: Duration::from_secs(5),
        jitter_share: 0.2,
        budget: 10,
        window: Duration::from_mins(1),
    };
}

impl RestartPolicy {
    /// For a synthesiser's actor: it dies only of our own faults.
    pub const SYNTHESISER: Self = Self {
        budget: 3,
        ..Self::RECOGNISER
    };
    /// For one utterance at a provider that fails before its first sound: somebody waits to hear it.
    pub const UTTERANCE: Self = Self {
        budget: 3,
        factor: 3.0,
        ..Self::RECOGNISER
    };
}

/// A random number, 0–1, for [`Restarts::next`].
pub fn jitter() -> f64 {
    fastrand::f64()
}

/// The restarts of one part.
#[derive(Debug, Clone)]
pub struct Restarts {
    policy: RestartPolicy,
    /// When each restart within the window was asked for; at most `budget`.
    recent: VecDeque<Instant>,
}

impl Restarts {
    /// A part that has not failed yet.
    pub fn new(policy: RestartPolicy) -> Self {
        Self {
            policy,
            recent: VecDeque::new(),
        }
    }

    /// The part has failed: how long to wait before its next life, or `None` once the budget is spent, which is for
    /// the supervisor to escalate. `jitter` is a random number, 0–1.
    pub fn next(&mut self, now: Instant, jitter: f64) -> Option<Duration> {
        let forgiven = |&at: &Instant| now.saturating_duration_since(at) >= self.policy.window;
        while self.recent.front().is_some_and(forgiven) {
            self.recent.pop_front();
        }
        if self.recent.len() >= self.policy.budget {
            return None;
        }
        let earlier = i32::try_from(self.recent.len()).unwrap_or(i32::MAX);
        self.recent.push_back(now);
        Some(self.delay(earlier, jitter))
    }

    /// The part works again: what lies more than a moment back counts no more, so that one whose lives are short but
    /// useful, as streams with a limit are, is not given up. One that fails as soon as it works still waits longer.
    pub fn forgive(&mut self, now: Instant) {
        let is_fresh = |&at: &Instant| now.saturating_duration_since(at) < MOMENT;
        self.recent.retain(is_fresh);
    }

    fn delay(&self, earlier: i32, jitter: f64) -> Duration {
        let policy = &self.policy;
        let grown = policy.first_delay.as_secs_f64() * policy.factor.powi(earlier);
        let longest = grown.min(policy.max_delay.as_secs_f64());
        let share = policy.jitter_share * jitter;
        Duration::try_from_secs_f64(longest * (1.0 - share))
            .map_or(policy.max_delay, |delay| delay.min(policy.max_delay))
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
        assert_eq!(restarts.next(healthy, 0.0), Some(POLICY.first_delay));
    }

    #[test]
    fn a_part_that_works_is_forgiven_what_it_did_before() {
        let mut restarts = Restarts::new(POLICY);
        let mut now = Instant::now();
        for _ in 0..100 {
            assert_eq!(restarts.next(now, 0.0), Some(POLICY.first_delay));
            now += MOMENT;
            restarts.forgive(now);
        }
        // Working for less than a moment is no excuse.
        restarts.next(now, 0.0);
        restarts.forgive(now + MOMENT / 2);
        assert_eq!(restarts.next(now, 0.0), Some(POLICY.first_delay * 2));
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
                    prop_assert!(delay <= POLICY.max_delay);
                    granted.push(since);
                }
            }
        }

        #[test]
        fn chance_only_shortens_a_delay_and_by_its_share(jitter in 0.0..=1.0) {
            let delay = Restarts::new(POLICY).next(Instant::now(), jitter).unwrap();
            prop_assert!(delay <= POLICY.first_delay);
            prop_assert!(delay >= POLICY.first_delay.mul_f64(1.0 - POLICY.jitter_share - 1e-9));
        }
    }
}
