//! What a message costs on its way into an actor on the same thread (`try_send`, wake, `handle`), beside a plain call
//! and a hop through a channel of tokio's. One at a time each message pays for waking its receiver; sixteen at a time
//! share it.

// A measurement that cannot be made shall stop.
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

use actix::prelude::*;
use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use tokio::sync::mpsc;
use tokio::task::yield_now;

/// Messages between two looks at the receiver.
const BATCHES: [u64; 2] = [1, 16];

/// As large as a frame on its way: a handle to bytes.
#[derive(Message)]
#[rtype(result = "()")]
struct Frame(Bytes);

/// Counts what it gets.
#[derive(Clone, Default)]
struct Sink(Rc<Cell<u64>>);

impl Sink {
    fn take(&self, frame: &Frame) {
        self.0.set(self.0.get() + black_box(frame.0.len() as u64));
    }

    /// Waits until it has got so many.
    async fn reaches(&self, count: u64) {
        while self.0.get() < count {
            yield_now().await;
        }
    }
}

impl Actor for Sink {
    type Context = Context<Self>;
}

impl Handler<Frame> for Sink {
    type Result = ();

    fn handle(&mut self, frame: Frame, _: &mut Context<Self>) {
        self.take(&frame);
    }
}

fn frame() -> Frame {
    Frame(Bytes::from_static(b"x"))
}

/// Sends `count` messages, in batches, and waits for each batch.
async fn send(sink: &Sink, count: u64, batch: u64, mut try_send: impl FnMut(Frame)) -> Duration {
    let begin = Instant::now();
    let mut sent = 0;
    while sent < count {
        let size = batch.min(count - sent);
        (0..size).for_each(|_| try_send(frame()));
        sent += size;
        sink.reaches(sent).await;
    }
    begin.elapsed()
}

async fn through_an_actor(count: u64, batch: u64) -> Duration {
    let sink = Sink::default();
    let actor = sink.clone().start();
    send(&sink, count, batch, |frame| actor.try_send(frame).unwrap()).await
}

async fn asking_an_actor(count: u64) -> Duration {
    let actor = Sink::default().start();
    let begin = Instant::now();
    for _ in 0..count {
        actor.send(frame()).await.unwrap();
    }
    begin.elapsed()
}

async fn through_a_channel(count: u64, batch: u64) -> Duration {
    let sink = Sink::default();
    let (sender, mut receiver) = mpsc::channel(16);
    let receiving = sink.clone();
    let task = actix::spawn(async move {
        while let Some(frame) = receiver.recv().await {
            receiving.take(&frame);
        }
    });
    let time = send(&sink, count, batch, |frame| {
        sender
            .try_send(frame)
            .unwrap_or_else(|_| unreachable!("the batch fits into the channel"));
    });
    let time = time.await;
    drop(sender);
    task.await.unwrap();
    time
}

fn hop(criterion: &mut Criterion) {
    let system = System::new();
    let mut group = criterion.benchmark_group("hop");
    group.bench_function("call", |bencher| {
        let sink = Sink::default();
        bencher.iter(|| sink.take(&black_box(frame())));
    });
    for batch in BATCHES {
        group.bench_function(BenchmarkId::new("actor", batch), |bencher| {
            bencher.iter_custom(|count| system.block_on(through_an_actor(count, batch)));
        });
        group.bench_function(BenchmarkId::new("channel", batch), |bencher| {
            bencher.iter_custom(|count| system.block_on(through_a_channel(count, batch)));
        });
    }
    group.bench_function("actor, answered", |bencher| {
        bencher.iter_custom(|count| system.block_on(asking_an_actor(count)));
    });
    group.finish();
}

criterion_group!(benches, hop);
criterion_main!(benches);
