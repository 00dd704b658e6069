//! `vivavoce bench rooms`: the cost of forwarding a packet in an embedded room, the added delay, and the memory per
//! participant. The server is a process of its own on a core of its own; this process is all clients. A bare relay of
//! datagrams of the same sizes at the same pace shows the cost of the sockets alone.

pub(super) mod relay;
mod stamps;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::stamps::{Received, Stamps};
use super::participant::{self, Joining, PACKET, Phase};
use super::spread::Spread;
use super::under_test::{Cores, UnderTest};
use super::{ConfigArgs, Failure};

const ROOM: &str = "bench";
/// From the last join to the first look.
const SETTLING: Duration = Duration::from_secs(2);
/// How long all may take to join.
const PATIENCE: Duration = Duration::from_mins(1);
/// The room server's thread: the kernel shows this name.
const MEDIA_THREAD: &str = "rooms";

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce bench rooms                                      4 who speak to 25 listeners\n  \
    vivavoce bench rooms --publishers 1 --subscribers 100     one who speaks to a hundred\n  \
    vivavoce bench rooms --seconds 60 --json rooms.json\n\n\
    Each publisher sends a packet of sound every 20 ms, each subscriber gets all of them. Packets per CPU second = packets \
    that arrived / CPU time of the server's media thread. Delays run from one client's clock to another's in this process, \
    with the sockets and the encryption of both; what is above the relay's is the server's. Ctrl-C ends it early.")]
pub(super) struct Arguments {
    /// Speakers
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=100))]
    publishers: u16,
    /// Listeners
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    subscribers: u16,
    /// Seconds to measure, after a warm-up
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Bytes of audio per packet; 80 are 32 kbit/s
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u16).range(8..=1_000))]
    bytes: u16,
    /// Write all results to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What was measured of one of the two.
#[derive(Debug, Clone, Copy, Serialize)]
struct Outcome {
    packets: u64,
    /// Of those that were due.
    arrived_share: f64,
    cpu_seconds: f64,
    packets_per_cpu_second: f64,
    delay: Option<Spread>,
    /// Of one datagram to a subscriber.
    datagram_bytes: u64,
}

/// The JSON file.
#[derive(Serialize)]
struct Document {
    version: &'static str,
    publishers: u16,
    subscribers: u16,
    seconds: u32,
    rooms: Outcome,
    relay: Outcome,
    bytes_per_participant: u64,
}

pub(super) fn run(config: &ConfigArgs, arguments: &Arguments) -> Result<(), Failure> {
    let cores = Cores::divide().map_err(Failure::work)?;
    if cores.is_none() {
        eprintln!("there is one core only: the clients slow the server down");
    }
    let runtime = super::runtime(cores.as_ref()).map_err(Failure::work)?;
    let stop = super::stop_token(&runtime).map_err(Failure::work)?;
    let bench = Bench {
        config,
        arguments,
        runtime,
        cores,
        stop,
    };
    let (rooms, bytes_per_participant) = bench.rooms()?;
    let relay = bench.relay(rooms.datagram_bytes as usize)?;
    let document = Document {
        version: env!("CARGO_PKG_VERSION"),
        publishers: arguments.publishers,
        subscribers: arguments.subscribers,
        seconds: arguments.seconds,
        rooms,
        relay,
        bytes_per_participant,
    };
    print!("{}", document.table());
    if let Some(file) = &arguments.json {
        super::write_json(file, &document)?;
    }
    Ok(())
}

struct Bench<'a> {
    config: &'a ConfigArgs,
    arguments: &'a Arguments,
    runtime: Runtime,
    cores: Option<Cores>,
    stop: CancellationToken,
}

impl Bench<'_> {
    /// Of the server, and what a participant takes of its memory.
    fn rooms(&self) -> Result<(Outcome, u64), Failure> {
        let server = self.start(&self.server_arguments())?;
        let memory = || server.usage().map(|usage| usage.own_bytes);
        let before = memory().map_err(Failure::work)?;
        let arguments = self.arguments;
        let epoch = Instant::now();
        let outcome = self.runtime.block_on(async {
            let mut load = Load::new();
            let stamps = |load: &Load| Stamps {
                epoch,
                bytes: arguments.bytes.into(),
                phase: load.measuring.subscribe(),
                received: Received::default(),
            };
            // Those who listen find everything there, and receive it with their first description.
            for index in 0..arguments.publishers {
                let identity = format!("publisher {index}");
                let joining = Joining {
                    address: &server.address,
                    room: ROOM,
                    identity: &identity,
                    voice: Some(PACKET * u32::from(index) / u32::from(arguments.publishers)),
                    hears: 0,
                };
                load.join(joining, stamps(&load)).await?;
            }
            for index in 0..arguments.subscribers {
                let identity = format!("subscriber {index}");
                let joining = Joining {
                    address: &server.address,
                    room: ROOM,
                    identity: &identity,
                    voice: None,
                    hears: arguments.publishers,
                };
                load.join(joining, stamps(&load)).await?;
            }
            let cpu = || server.thread_cpu(Some(MEDIA_THREAD)).map_err(Failure::work);
            self.measure(load, cpu).await
        })?;
        let participants = u64::from(self.arguments.publishers + self.arguments.subscribers);
        let grown = memory().map_err(Failure::work)?.saturating_sub(before);
        Ok((outcome, grown / participants))
    }

    /// Of the relay, with datagrams as long as the server's.
    fn relay(&self, datagram_bytes: usize) -> Result<Outcome, Failure> {
        let relay = self.start(&["bench".to_owned(), "relay".to_owned()])?;
        let address = relay.address.parse().map_err(Failure::work)?;
        let epoch = Instant::now();
        self.runtime.block_on(async {
            let mut load = Load::new();
            for _ in 0..self.arguments.subscribers {
                let receiver = relay::receive(address, epoch, load.measuring.subscribe());
                let receiver = receiver.await.map_err(Failure::work)?;
                load.tasks.spawn(receiver);
            }
            for index in 0..self.arguments.publishers {
                let phase = PACKET * u32::from(index) / u32::from(self.arguments.publishers);
                let measuring = load.measuring.subscribe();
                let sender = relay::send(address, epoch, phase, datagram_bytes, measuring);
                load.tasks.spawn(sender.await.map_err(Failure::work)?);
            }
            let cpu = || relay.thread_cpu(None).map_err(Failure::work);
            self.measure(load, cpu).await
        })
    }

    /// Lets the load run for a while and takes what came of it.
    async fn measure(
        &self,
        mut load: Load,
        cpu: impl Fn() -> Result<Duration, Failure>,
    ) -> Result<Outcome, Failure> {
        self.pause(SETTLING).await;
        let (began, cpu_before) = (Instant::now(), cpu()?);
        load.measuring.send_replace(Phase::Measured);
        let seconds = Duration::from_secs(self.arguments.seconds.into());
        self.pause(seconds).await;
        let (lasted, cpu_after) = (began.elapsed(), cpu()?);
        load.measuring.send_replace(Phase::Over);
        let mut received = Received::default();
        while let Some(ended) = load.tasks.join_next().await {
            let one = ended.map_err(Failure::work)?;
            received.add(one.map_err(Failure::work)?);
        }
        let streams = f64::from(self.arguments.publishers) * f64::from(self.arguments.subscribers);
        let due = streams * lasted.as_secs_f64() / PACKET.as_secs_f64();
        let cpu_seconds = cpu_after.saturating_sub(cpu_before).as_secs_f64();
        let packets = received.delays_ms.len() as u64;
        Ok(Outcome {
            packets,
            arrived_share: packets as f64 / due,
            cpu_seconds,
            packets_per_cpu_second: packets as f64 / cpu_seconds,
            datagram_bytes: received.datagram_bytes,
            delay: Spread::of(received.delays_ms.into_iter().map(f64::from)),
        })
    }

    async fn pause(&self, time: Duration) {
        // Ctrl-C only shortens what is measured.
        let _ = timeout(time, self.stop.cancelled()).await;
    }

    fn start(&self, arguments: &[String]) -> Result<UnderTest, Failure> {
        let start = || UnderTest::start(arguments);
        let started = match &self.cores {
            Some(cores) => cores.on_server_core(start).and_then(|started| started),
            None => start(),
        };
        started.map_err(Failure::work)
    }

    fn server_arguments(&self) -> Vec<String> {
        let first = "serve --host 127.0.0.1 --port 0 --data-dir data";
        let mut arguments: Vec<String> = first.split(' ').map(str::to_owned).collect();
        let own = [
            "server.workers=1".to_owned(),
            "log.level=error".to_owned(),
            "limits.connections_per_address=0".to_owned(),
            "rtc.mode=embedded".to_owned(),
            "rtc.udp_port=0".to_owned(),
            "rtc.advertised_addresses=127.0.0.1".to_owned(),
            format!("rtc.api_key={}", participant::KEY),
            format!("rtc.api_secret={}", participant::SECRET),
        ];
        let callers = self.config.set.iter();
        let callers = callers.map(|(key, value)| format!("{key}={value}"));
        for setting in own.into_iter().chain(callers) {
            arguments.extend(["--set".to_owned(), setting]);
        }
        arguments
    }
}

/// The clients that run.
struct Load {
    measuring: watch::Sender<Phase>,
    tasks: JoinSet<Result<Received, participant::Lost>>,
}

impl Load {
    fn new() -> Self {
        Self {
            measuring: watch::Sender::new(Phase::Warming),
            tasks: JoinSet::new(),
        }
    }

    /// Has a participant join and waits until its media flow.
    async fn join(&mut self, joining: Joining<'_>, stamps: Stamps) -> Result<(), Failure> {
        let who = joining.identity;
        let joined = participant::join(joining, stamps, self.measuring.subscribe());
        let joined = timeout(PATIENCE, Box::pin(joined)).await;
        let running = joined
            .map_err(|_| Failure::work(format!("{who} is not connected in time")))?
            .map_err(|error| Failure::work(format!("{who}: {error}")))?;
        self.tasks.spawn(async move { Ok(running.await?.received) });
        Ok(())
    }
}

impl Document {
    fn table(&self) -> String {
        let mut table = format!(
            "{} × {}, {} s\n\n\
             | | packets | arrived | CPU of the media thread | packets per CPU second | delay p50 / p99 |\n\
             |---|---:|---:|---:|---:|---:|\n",
            self.publishers, self.subscribers, self.seconds
        );
        for (name, one) in [("rooms", self.rooms), ("bare relay", self.relay)] {
            table += &format!(
                "| {name} | {} | {:.2} % | {:.2} s | {:.0} | {} ms |\n",
                one.packets,
                one.arrived_share * 100.0,
                one.cpu_seconds,
                one.packets_per_cpu_second,
                Spread::shown(one.delay)
            );
        }
        let ratio = self.relay.packets_per_cpu_second / self.rooms.packets_per_cpu_second;
        table
            + &format!(
                "\nA packet costs {ratio:.2} times what it costs the relay; datagrams of {} bytes; {:.0} KiB of memory per participant.\n",
                self.rooms.datagram_bytes,
                self.bytes_per_participant as f64 / 1024.0
            )
    }
}
