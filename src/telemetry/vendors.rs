//! How the providers do lately, for people who look: delays of the last requests, errors of the last minutes, and how often
//! others had to take over. [`metrics`](super::metrics) count the same for good; this forgets.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::metrics::Task;

/// How many delays of each kind, and how many errors, are kept of a provider, and for how long.
const KEPT: usize = 200;
const LATELY: Duration = Duration::from_mins(15);
/// The most providers: there are as many as are compiled in.
const MAX_VENDORS: usize = 64;

static VENDORS: Mutex<Vendors> = Mutex::new(Vendors(BTreeMap::new()));

/// The providers, by what they do and their slug.
struct Vendors(BTreeMap<(&'static str, String), Recent>);

/// What one of them did lately.
#[derive(Debug, Default)]
struct Recent {
    began: VecDeque<(Instant, Duration)>,
    finished: VecDeque<(Instant, Duration)>,
    failed: VecDeque<(Instant, &'static str)>,
    took_over: VecDeque<Instant>,
}

/// How a provider does.
#[derive(Debug, Clone, PartialEq)]
pub struct VendorHealth {
    /// `stt`, `tts`, or `llm`.
    pub task: &'static str,
    /// Its slug.
    pub provider: String,
    /// Requests that began, of the last 200 in the last 15 minutes.
    pub requests: usize,
    /// Errors, likewise, by kind.
    pub errors: BTreeMap<&'static str, usize>,
    /// How long ago the last one was.
    pub last_error_ago: Option<Duration>,
    /// How often it took over from another.
    pub took_over: usize,
    /// Delays of the beginning: half and nineteen of twenty were shorter.
    pub began: Option<[Duration; 2]>,
    /// Likewise of the end.
    pub finished: Option<[Duration; 2]>,
}

/// A task's name.
const fn name(task: Task) -> &'static str {
    match task {
        Task::Stt => "stt",
        Task::Tts => "tts",
    }
}

fn change(task: &'static str, provider: &str, change: impl FnOnce(&mut Recent, Instant)) {
    let now = Instant::now();
    let mut vendors = VENDORS.lock().unwrap_or_else(PoisonError::into_inner);
    vendors.change(task, provider, now, change);
}

pub(super) fn began(task: Task, provider: &'static str, delay: Duration) {
    change(name(task), provider, |of, now| {
        keep(&mut of.began, (now, delay));
    });
}

pub(super) fn finished(task: Task, provider: &'static str, delay: Duration) {
    change(name(task), provider, |of, now| {
        keep(&mut of.finished, (now, delay));
    });
}

pub(super) fn failed(provider: &'static str, kind: &'static str) {
    // An error does not say in which task; whoever has both shows it with both.
    let now = Instant::now();
    let mut vendors = VENDORS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut known = false;
    for ((_, slug), of) in &mut vendors.0 {
        if slug == provider {
            keep(&mut of.failed, (now, kind));
            known = true;
        }
    }
    if !known {
        vendors.change("", provider, now, |of, now| {
            keep(&mut of.failed, (now, kind));
        });
    }
}

/// A provider took over from one that failed: `kind` as in `provider_event`.
pub fn took_over(kind: &'static str, provider: &str) {
    change(kind, provider, |of, now| keep(&mut of.took_over, now));
}

/// All that were asked lately.
pub fn health() -> Vec<VendorHealth> {
    let vendors = VENDORS.lock().unwrap_or_else(PoisonError::into_inner);
    vendors.health(Instant::now())
}

fn keep<T>(of: &mut VecDeque<T>, one: T) {
    if of.len() == KEPT {
        of.pop_front();
    }
    of.push_back(one);
}

/// The middle one, and that which nineteen of twenty are not above.
fn quantiles(of: impl Iterator<Item = Duration>) -> Option<[Duration; 2]> {
    let mut delays: Vec<_> = of.collect();
    delays.sort_unstable();
    let at = |percent: usize| delays.get((delays.len() * percent / 100).min(delays.len() - 1));
    if delays.is_empty() {
        return None;
    }
    Some([*at(50)?, *at(95)?])
}

impl Vendors {
    fn change(
        &mut self,
        task: &'static str,
        provider: &str,
        now: Instant,
        change: impl FnOnce(&mut Recent, Instant),
    ) {
        let key = (task, provider.to_owned());
        if self.0.len() < MAX_VENDORS || self.0.contains_key(&key) {
            change(self.0.entry(key).or_default(), now);
        }
    }

    fn health(&self, now: Instant) -> Vec<VendorHealth> {
        let lately = |at: &Instant| now.saturating_duration_since(*at) < LATELY;
        let vendors = self.0.iter().map(|((task, provider), of)| {
            let began = of.began.iter().filter(|(at, _)| lately(at));
            let finished = of.finished.iter().filter(|(at, _)| lately(at));
            let mut errors = BTreeMap::new();
            for (_, kind) in of.failed.iter().filter(|(at, _)| lately(at)) {
                *errors.entry(*kind).or_default() += 1;
            }
            let last_error = of.failed.back().filter(|(at, _)| lately(at));
            VendorHealth {
                task,
                provider: provider.clone(),
                requests: began.clone().count(),
                errors,
                last_error_ago: last_error.map(|(at, _)| now.saturating_duration_since(*at)),
                took_over: of.took_over.iter().filter(|at| lately(at)).count(),
                began: quantiles(began.map(|(_, delay)| *delay)),
                finished: quantiles(finished.map(|(_, delay)| *delay)),
            }
        });
        vendors.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_past_is_not_shown_and_little_is_kept() {
        let start = Instant::now();
        let mut vendors = Vendors(BTreeMap::new());
        for n in 0..2 * KEPT as u64 {
            vendors.change("stt", "x", start, |of, now| {
                keep(&mut of.began, (now, Duration::from_millis(n)));
                keep(&mut of.failed, (now, "timeout"));
            });
        }
        let health = vendors.health(start + Duration::from_mins(1));
        let [x] = &health[..] else {
            panic!("{health:?}")
        };
        assert_eq!((x.requests, x.errors["timeout"]), (KEPT, KEPT));
        let middle = x.began.unwrap().map(|delay| delay.as_millis());
        assert_eq!(middle, [300, 390]);
        assert_eq!(x.last_error_ago, Some(Duration::from_mins(1)));
        let later = &vendors.health(start + LATELY)[0];
        assert_eq!((later.requests, later.errors.len()), (0, 0));
        assert_eq!((later.began, later.last_error_ago), (None, None));
        for n in 0..2 * MAX_VENDORS {
            vendors.change("tts", &n.to_string(), start, |_, _| {});
        }
        assert_eq!(vendors.0.len(), MAX_VENDORS);
    }
}
