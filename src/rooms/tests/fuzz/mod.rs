//! Fuzzing of the SFU: every entry point gets mutated samples of real input (`mutation`) while a well-behaved participant
//! is present. Afterwards it is served as before, and nothing has grown.
//!
//! By default each target has a few hundred rounds with one seed. `VIVAVOCE_FUZZ_SECONDS` sets a time and takes the seed
//! from the clock, `VIVAVOCE_LONG` sets ten minutes. A failure is printed with its input in base64. Panics of str0m that a
//! peer connection contains are printed at the end by location and do not fail a test: they cost one participant.

mod requests;
mod transports;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Once;
use std::time::{Duration, Instant};
use vivavoce_core::fuzzing::mutation;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

thread_local! {
    static PANICS: RefCell<Option<BTreeMap<String, u64>>> = const { RefCell::new(None) };
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The rounds of one target.
struct Rounds {
    name: &'static str,
    seed: u64,
    most: u64,
    done: u64,
    until: Option<Instant>,
    memory_kib: u64,
    slowest: Duration,
    slow_input: Vec<u8>,
    began: Option<Instant>,
}

impl Rounds {
    /// So many rounds, unless a time is set.
    fn new(name: &'static str, most: u64) -> Self {
        count_panics();
        PANICS.with_borrow_mut(|panics| *panics = Some(BTreeMap::new()));
        let given = std::env::var("VIVAVOCE_FUZZ_SECONDS").ok();
        let long = std::env::var_os("VIVAVOCE_LONG").map(|_| 600);
        let seconds = given.and_then(|seconds| seconds.parse().ok()).or(long);
        Self {
            name,
            seed: seconds.map_or(1, |_| super::Now::read().unix_ms as u64),
            most: seconds.map_or(most, |_| u64::MAX),
            done: 0,
            until: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
            memory_kib: 0,
            slowest: Duration::ZERO,
            slow_input: vec![],
            began: None,
        }
    }

    /// Whether there is another round.
    fn go_on(&mut self) -> bool {
        self.took();
        // Caches and buffers filled by the first rounds are no growth.
        if self.done == 2_000 {
            self.memory_kib = resident_kib();
        }
        let over = self.until.is_some_and(|until| Instant::now() >= until);
        if over || self.done >= self.most {
            return false;
        }
        self.done += 1;
        true
    }

    /// Notes the current input, in case it is the last.
    fn trying(&mut self, input: &[u8]) {
        self.took();
        INPUT.with_borrow_mut(|last| input.clone_into(last));
        self.began = Some(Instant::now());
    }

    fn took(&mut self) {
        let Some(began) = self.began.take() else {
            return;
        };
        if began.elapsed() > self.slowest {
            self.slowest = began.elapsed();
            self.slow_input = INPUT.with_borrow(Clone::clone);
        }
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        let panics = PANICS.with_borrow_mut(Option::take).unwrap_or_default();
        println!(
            "{}: {} rounds of seed {}, the slowest {:?}; resident memory {} KiB, after 2,000 rounds {} KiB; panics: {panics:?}",
            self.name,
            self.done,
            self.seed,
            self.slowest,
            resident_kib(),
            self.memory_kib
        );
        if std::thread::panicking() {
            INPUT.with_borrow(|input| println!("the input was {}", STANDARD.encode(input)));
        } else if self.slowest > Duration::from_secs(1) {
            println!(
                "the slowest input was {}",
                STANDARD.encode(&self.slow_input)
            );
        }
    }
}

/// Counts panics of fuzzing threads by location; those of other threads are printed as always.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let shown = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let place = panic
                .location()
                .map(ToString::to_string)
                .unwrap_or_default();
            let counted = PANICS.try_with(|panics| {
                let mut panics = panics.try_borrow_mut().ok()?;
                *panics.as_mut()?.entry(place.clone()).or_default() += 1;
                Some(())
            });
            // Failed assertions of the tests are always printed.
            if !matches!(counted, Ok(Some(()))) || place.contains("rooms") {
                shown(panic);
            }
        }));
    });
}

/// Memory of the whole process, so it is meaningful only if one test runs.
fn resident_kib() -> u64 {
    let page_kib = rustix::param::page_size() as u64 / 1_024;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0u64) * page_kib
}
