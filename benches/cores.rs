//! What all threads have in common, at the rates of a machine with many cores: metrics that are counted for each frame of sound, on one
//! thread and on all of this machine at once, beside counters that the threads share; and the registry of sessions, in which 64,000
//! are, by one that begins and ends, for a thread that waits for each and for one that begins 64 at a time.

// A measurement that cannot be made shall stop.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use actix::prelude::*;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures_util::future::join_all;
use vivavoce_actors::registry::sessions::{Register, Registration, SessionRegistry};
use vivavoce_actors::session::{EndSession, StreamId};
use vivavoce_auth::Access;
use vivavoce_telemetry::metrics::Delays;

/// As many as 64 cores with 1,000 each.
const LIVE_SESSIONS: u64 = 64_000;

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

/// A session that is only registered.
struct Registered;

impl Actor for Registered {
    type Context = Context<Self>;
}

impl Handler<EndSession> for Registered {
    type Result = ();

    fn handle(&mut self, _: EndSession, _: &mut Context<Self>) {}
}

async fn register(
    registry: &Addr<SessionRegistry>,
    session: &Addr<Registered>,
    number: u64,
) -> Registration {
    let registered = registry.send(Register {
        stream_id: StreamId::parse(&format!("session-{number}")).unwrap(),
        access: Access::anonymous(),
        session: session.clone().recipient(),
        socket: None,
    });
    let registered = registered.await.unwrap();
    registered.unwrap_or_else(|_| unreachable!("the name is new"))
}

fn registry(criterion: &mut Criterion) {
    let system = System::new();
    let mut group = criterion.benchmark_group("registry");
    group.throughput(Throughput::Elements(1));
    group.sample_size(10);
    // On a thread of its own, as in the server.
    let arbiter = Arbiter::new();
    let registry =
        SessionRegistry::start_in_arbiter(&arbiter.handle(), |_| SessionRegistry::default());
    let session = system.block_on(async { Registered.start() });
    let mut number = 0;
    let mut next = || {
        number += 1;
        number
    };
    let live: Vec<Registration> = system.block_on(async {
        let mut live = Vec::new();
        for _ in 0..LIVE_SESSIONS {
            live.push(register(&registry, &session, next()).await);
        }
        live
    });
    for at_a_time in [1, 64] {
        group.bench_function(BenchmarkId::new("begins and ends", at_a_time), |bencher| {
            bencher.iter_custom(|count| {
                let rounds = count.div_ceil(at_a_time);
                let began = Instant::now();
                system.block_on(async {
                    for _ in 0..rounds {
                        let begins = (0..at_a_time).map(|_| register(&registry, &session, next()));
                        drop(join_all(begins).await);
                    }
                });
                let took = began.elapsed().as_secs_f64();
                Duration::from_secs_f64(took * count as f64 / (rounds * at_a_time) as f64)
            });
        });
    }
    group.finish();
    drop(live);
    arbiter.stop();
}

criterion_group!(benches, delays, registry);
criterion_main!(benches);
