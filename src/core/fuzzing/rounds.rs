//! Runs a target on mutated samples. By default a fixed number of rounds with a fixed seed; with
//! `VIVAVOCE_FUZZ_SECONDS` for that many seconds with a seed from the clock, with `VIVAVOCE_LONG` for two minutes. The
//! input that made a target fail is printed in base64.

use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::mutation::Mutator;

/// Seconds per target with `VIVAVOCE_LONG`.
const LONG_SECONDS: u64 = 120;

/// Prints the input if the target panics.
struct Trying<'a>(&'a str, &'a [u8]);

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}: the input was {}", self.0, STANDARD.encode(self.1));
        }
    }
}

/// Runs `target` on mutated samples for `rounds` rounds, or for the time given in the environment; with `text`,
/// mutations mostly keep lines intact.
pub fn fuzz(name: &str, rounds: u64, text: bool, samples: Vec<Vec<u8>>, target: impl Fn(&[u8])) {
    let given = std::env::var("VIVAVOCE_FUZZ_SECONDS").ok();
    let long = std::env::var_os("VIVAVOCE_LONG").map(|_| LONG_SECONDS);
    let seconds = given.and_then(|seconds| seconds.parse().ok()).or(long);
    let clock = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let seed = seconds.map_or(1, |_| clock.as_millis() as u64);
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    for sample in &samples {
        let trying = Trying(name, sample);
        target(sample);
        drop(trying);
    }
    let mut mutator = Mutator::new(seed, samples);
    let (mut done, mut slowest) = (0, (Duration::ZERO, Vec::new()));
    while until.map_or(done < rounds, |until| Instant::now() < until) {
        let input = if text && mutator.rng.u8(..4) > 0 {
            mutator.make_text().into_bytes()
        } else {
            mutator.make()
        };
        let began = Instant::now();
        let trying = Trying(name, &input);
        target(&input);
        drop(trying);
        if began.elapsed() > slowest.0 {
            slowest = (began.elapsed(), input);
        }
        done += 1;
    }
    let (took, input) = slowest;
    println!(
        "{name}: {done} rounds of seed {seed}, the slowest {took:?} for {} bytes",
        input.len()
    );
}
