//! What all threads have in common, at the rates of a machine with many cores: metrics that are counted for each frame of sound, on one
//! thread and on all of this machine at once, beside counters that the threads share.

// A measurement that cannot be made shall stop.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use vivavoce_telemetry::metrics::Delays;

/// How long `count` calls on each of so many threads take at once.
fn at_once(threads: usize, count: u64, call: impl Fn() + Sync) -> Duration {
    let barrier = Barrier::new(threads);
    let took = std::thread::scope(|scope| {
        let measured = || {
            barrier.wait();
            let began = Instant::now();
            for _ in 0..count {
                call();
            }
            began.elapsed()
        };
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(measured)).collect();
        let all = all.into_iter().map(|one| one.join().unwrap());
        all.max()
    });
    took.unwrap_or_default()
}

fn delays(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("delay");
    group.throughput(Throughput::Elements(1));
    let delay = Duration::from_micros(350);
    let own = Delays::default();
    let shared = [const { AtomicU64::new(0) }; 2];
    for threads in [1, available_parallelism().map_or(1, usize::from)] {
        group.bench_function(BenchmarkId::new("own", threads), |bencher| {
            bencher.iter_custom(|count| at_once(threads, count, || own.observe(black_box(delay))));
        });
        group.bench_function(BenchmarkId::new("shared", threads), |bencher| {
            let observe = || {
                shared[0].fetch_add(1, Relaxed);
                shared[1].fetch_add(black_box(350_000), Relaxed);
            };
            bencher.iter_custom(|count| at_once(threads, count, observe));
        });
    }
    group.finish();
}

criterion_group!(benches, delays);
criterion_main!(benches);
