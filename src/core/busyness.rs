//! Whether this thread has the time to do well what could be done quickly.
//!
//! What counts is the part of the time in which it runs or waits for a core, by the kernel's account of the thread: the first two
//! numbers of `schedstat` (proc_pid_schedstat(5)), in nanoseconds. A thread that shares its core with others is busy, too, if it does
//! little itself. Where the kernel keeps no account, nobody is busy.

use std::cell::RefCell;
use std::time::Duration;

use tokio::time::Instant;

/// How often the account is read.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The part of the time from which on a thread is busy, and below which it no longer is. What is done quickly takes less of it, down
/// to little more than half (libopus at complexity 0 instead of 5): the two are so far apart that a thread does not go to and fro.
const BUSY: f64 = 0.6;
const AT_EASE: f64 = 0.3;

thread_local! {
    static OWN: RefCell<Busyness> = const { RefCell::new(Busyness::new()) };
}

/// Whether this thread was busy between the last two looks, of which there is one a second at most.
pub fn is_busy() -> bool {
    OWN.with_borrow_mut(|own| own.look(Instant::now(), spent))
}

/// For how long this thread has run or waited for a core.
fn spent() -> Option<Duration> {
    let account = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let mut numbers = account.split_whitespace().map(str::parse::<u64>);
    let (runs, waits) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(Duration::from_nanos(runs.saturating_add(waits)))
}

#[derive(Debug)]
struct Busyness {
    /// When the account was read, and what it said.
    last: Option<(Instant, Duration)>,
    is_busy: bool,
}

impl Busyness {
    const fn new() -> Self {
        Self {
            last: None,
            is_busy: false,
        }
    }

    fn look(&mut self, now: Instant, spent: impl FnOnce() -> Option<Duration>) -> bool {
        let passed = |(at, _): (Instant, Duration)| now.saturating_duration_since(at);
        if self.last.is_some_and(|last| passed(last) < LOOK_EVERY) {
            return self.is_busy;
        }
        let spent = spent().unwrap_or_default();
        if let Some(last) = self.last {
            let share = spent.saturating_sub(last.1).as_secs_f64() / passed(last).as_secs_f64();
            self.is_busy = share >= if self.is_busy { AT_EASE } else { BUSY };
        }
        self.last = Some((now, spent));
        self.is_busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_busy_from_one_share_on_and_at_ease_below_another() {
        let mut busyness = Busyness::new();
        let (mut now, mut spent) = (Instant::now(), Duration::ZERO);
        let mut second = |share: f64| {
            now += LOOK_EVERY;
            spent += LOOK_EVERY.mul_f64(share);
            busyness.look(now, || Some(spent))
        };
        assert!(!second(1.0), "there is nothing to compare the first with");
        assert!(!second(0.59));
        assert!(second(0.61));
        assert!(second(0.45), "what is done quickly has made room");
        assert!(second(0.36), "as much as is left of what made it busy");
        assert!(!second(0.25));
        assert!(!second(0.55));
    }

    #[test]
    fn the_account_is_read_once_a_second() {
        let mut busyness = Busyness::new();
        let now = Instant::now();
        busyness.look(now, || Some(Duration::ZERO));
        busyness.look(now + LOOK_EVERY / 2, || unreachable!("too soon"));
        assert!(busyness.look(now + LOOK_EVERY, || Some(LOOK_EVERY)));
        // Where there is none, neither.
        let mut unknown = Busyness::new();
        for second in 0..3 {
            assert!(!unknown.look(now + LOOK_EVERY * second, || None));
            unknown.look(now + LOOK_EVERY * second, || unreachable!("too soon"));
        }
    }

    #[test]
    fn the_kernel_keeps_an_account() {
        let before = spent().unwrap();
        let until = std::time::Instant::now() + Duration::from_millis(30);
        while std::time::Instant::now() < until {
            std::hint::spin_loop();
        }
        assert!(spent().unwrap() - before >= Duration::from_millis(20));
    }
}
