//! `vivavoce bench calls`: how many telephone calls a core carries, how long they take to be answered, and whether
//! their audio gets through. The server, with its SIP bridge and rooms, is a process of its own on a core of its own;
//! this process is all telephones. Two of them meet in each room, so that every call is decoded, encoded, forwarded and
//! mixed, or with `--relay` gets the other's packets as they are.

mod telephone;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::getpid;
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::telephone::{Call, CallError, Counted, Line, Voice};
use super::participant::{KEY, PACKET, Phase, SECRET};
use super::spread::Spread;
use super::under_test::{Cores, UnderTest, Usage};
use super::{ConfigArgs, Failure, sessions};

/// From the last call to the first look: everybody has spoken once.
const SETTLING: Duration = Duration::from_secs(4);
/// Packets of sound in a second, each way.
const PACKETS_HZ: f64 = 50.0;
/// Packets from one telephone's voice to that of the other in its room.
const TURN: usize = 100;
/// What the kernel calls the threads of the sound of calls, and that of the rooms.
const CALL_THREADS: &str = "call-media";
const ROOM_THREAD: &str = "rooms";
/// Where the server's ports for sound begin, below those that the system gives away.
const FIRST_MEDIA_PORT: u16 = 20_000;
/// Ports for each call, of which it uses two: others may have some of them.
const PORTS: u16 = 4;
const SPARE_PORTS: u16 = 400;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce bench calls                                       20 calls in 10 rooms\n  \
    vivavoce bench calls --calls 400 --seconds 60\n  \
    vivavoce bench calls --calls 400 --always --json calls.json\n  \
    vivavoce bench calls --calls 800 --relay                   nothing is decoded\n\n\
    Telephones with PCMU call one room after the other, the two of a room at once; each of the two speaks for 2 s of every 4, in turn, or \
    all the time with `--always`, and sends its packets in pauses too, as telephones do. Answered = from INVITE to its 200, \
    with joining the room. Calls per core = calls / cores that the whole server was busy on: signalling, decoding, Opus \
    towards the room, forwarding, jitter buffer, decoding, mixing, encoding. With `--relay` the two get each other's packets as they \
    are, as calls do by default where nobody else is in the room (sip.relay). CPU of a call = 100 / calls per core. Ctrl-C ends it early.")]
pub(super) struct Arguments {
    /// Concurrent calls
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=2_500))]
    calls: u16,
    /// Seconds to measure, after a warm-up
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Speak all the time
    #[arg(long)]
    always: bool,
    /// Relay packets between the two of a room, without decoding them
    #[arg(long)]
    relay: bool,
    /// Write all results to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What was measured; the JSON file.
#[derive(Debug, Serialize)]
struct Document {
    version: &'static str,
    calls: u16,
    always: bool,
    relay: bool,
    /// How long it was looked at.
    measured_seconds: f64,
    answered: Option<Spread>,
    /// Calls whose telephone got sound while it was measured.
    with_sound: usize,
    /// Packets of all telephones, and what they should have got.
    packets_sent: u64,
    packets_expected: f64,
    packets_received: u64,
    /// Of those received, the ones in which somebody speaks.
    packets_with_voice: u64,
    /// Packets of telephones that the server missed.
    packets_lost_there: u64,
    /// How much later than its place after the first one a packet was.
    lateness: Option<Spread>,
    /// Cores that the server was busy on: all of it, the sound of calls, and the rooms.
    server_load: f64,
    call_threads_load: f64,
    room_thread_load: f64,
    /// Seconds per second that the server wanted a core which others had. Where this is much, delays are not the server's.
    server_waited: f64,
    calls_per_core: f64,
    bytes_per_call: f64,
    /// Cores that the telephones were busy on.
    generator_load: f64,
    /// Calls that ended too early.
    failures: usize,
}

pub(super) fn run(config: &ConfigArgs, arguments: &Arguments) -> Result<(), Failure> {
    let cores = Cores::divide().map_err(Failure::work)?;
    if cores.is_none() {
        eprintln!("there is one core only: the telephones slow the server down");
    }
    sessions::raise_file_limit(usize::from(arguments.calls) * 2)?;
    let runtime = super::runtime(cores.as_ref()).map_err(Failure::work)?;
    let stop = super::stop_token(&runtime).map_err(Failure::work)?;
    let bench = Bench {
        config,
        arguments,
        cores,
        stop,
    };
    let Some(document) = bench.measure(&runtime)? else {
        return Ok(());
    };
    print!("{}", document.table());
    if let Some(file) = &arguments.json {
        super::write_json(file, &document)?;
    }
    match document.failures {
        0 => Ok(()),
        failures => Err(Failure::work(format!("{failures} calls ended too early"))),
    }
}

struct Bench<'a> {
    config: &'a ConfigArgs,
    arguments: &'a Arguments,
    cores: Option<Cores>,
    stop: CancellationToken,
}

/// What the server has used at a moment.
struct Used {
    at: Instant,
    all: Usage,
    calls: Duration,
    rooms: Duration,
    own: Duration,
}

impl Used {
    fn now(server: &UnderTest) -> std::io::Result<Self> {
        Ok(Self {
            at: Instant::now(),
            all: server.usage()?,
            calls: server.thread_cpu(Some(CALL_THREADS))?,
            rooms: server.thread_cpu(Some(ROOM_THREAD))?,
            own: Usage::of(getpid())?.cpu,
        })
    }
}

/// One telephone calls: how long that took, and the call. The rooms are spread over the cycle; the two in a room take turns.
async fn call(
    line: &Line,
    number: u16,
    phase: &watch::Sender<Phase>,
) -> Result<(Duration, Call), Failure> {
    let room = format!("+1555{:07}", number / 2);
    let own = format!("+1666{number:07}");
    let place = usize::from(number / 2) * 7 + usize::from(number % 2) * TURN;
    let called = line.call(&room, &own, place, phase.subscribe()).await;
    called.map_err(|error| Failure::work(format!("call {number}: {error}")))
}

/// Telephones that talk.
struct Calls {
    phase: watch::Sender<Phase>,
    tasks: JoinSet<Result<Counted, CallError>>,
    answered_ms: Vec<f64>,
}

impl Bench<'_> {
    /// `None` when it was stopped before there was anything to measure.
    fn measure(&self, runtime: &Runtime) -> Result<Option<Document>, Failure> {
        let sip = free_address().map_err(Failure::work)?;
        let arguments = self.server_arguments(sip);
        let start = || UnderTest::start(&arguments);
        let server = match &self.cores {
            Some(cores) => cores.on_server_core(start).and_then(|started| started),
            None => start(),
        };
        let server = server.map_err(Failure::work)?;
        runtime.block_on(self.talk(&server, sip))
    }

    async fn talk(&self, server: &UnderTest, sip: SocketAddr) -> Result<Option<Document>, Failure> {
        let used = || Used::now(server).map_err(Failure::work);
        let idle = used()?.all.own_bytes;
        let calls = self.place(sip).await?;
        self.pause(SETTLING).await;
        if self.stop.is_cancelled() {
            return Ok(None);
        }
        let before = used()?;
        calls.phase.send_replace(Phase::Measured);
        eprintln!("measuring for {} s", self.arguments.seconds);
        self.pause(Duration::from_secs(self.arguments.seconds.into()))
            .await;
        let after = used()?;
        calls.phase.send_replace(Phase::Over);
        Ok(Some(self.document(calls, idle, &before, &after).await?))
    }

    /// Everybody calls.
    async fn place(&self, sip: SocketAddr) -> Result<Calls, Failure> {
        let count = self.arguments.calls;
        eprintln!("{count} telephones call");
        let line = Line::new(sip, Voice::new(self.arguments.always));
        let mut calls = Calls {
            phase: watch::Sender::new(Phase::Warming),
            tasks: JoinSet::new(),
            answered_ms: Vec::new(),
        };
        for room in 0..count.div_ceil(2) {
            if self.stop.is_cancelled() {
                break;
            }
            let (first, second) = (room * 2, room * 2 + 1);
            let called = if second < count {
                let called = tokio::join!(
                    call(&line, first, &calls.phase),
                    call(&line, second, &calls.phase)
                );
                vec![called.0?, called.1?]
            } else {
                vec![call(&line, first, &calls.phase).await?]
            };
            for (took, call) in called {
                calls.answered_ms.push(took.as_secs_f64() * 1e3);
                calls.tasks.spawn(call.run());
            }
            // Not all in the same of the 20 ms of a packet.
            self.pause(PACKET * u32::from(room % 8) / 8).await;
        }
        Ok(calls)
    }

    async fn document(
        &self,
        mut calls: Calls,
        idle_bytes: u64,
        before: &Used,
        after: &Used,
    ) -> Result<Document, Failure> {
        let (mut counted, mut with_sound, mut failures) = (Counted::default(), 0, 0);
        while let Some(ended) = calls.tasks.join_next().await {
            match ended.map_err(Failure::work)? {
                Ok(one) => {
                    with_sound += usize::from(one.received > 0);
                    counted.add(one);
                }
                Err(error) => {
                    failures += 1;
                    eprintln!("a call ended: {error}");
                }
            }
        }
        let count = f64::from(self.arguments.calls);
        let lasted = after.at.duration_since(before.at).as_secs_f64();
        let busy = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() / lasted;
        let server_load = busy(before.all.cpu, after.all.cpu);
        let grown = after.all.own_bytes.saturating_sub(idle_bytes);
        Ok(Document {
            version: env!("CARGO_PKG_VERSION"),
            calls: self.arguments.calls,
            always: self.arguments.always,
            relay: self.arguments.relay,
            measured_seconds: lasted,
            answered: Spread::of(calls.answered_ms),
            with_sound,
            packets_sent: counted.sent,
            packets_expected: count * lasted * PACKETS_HZ,
            packets_received: counted.received,
            packets_with_voice: counted.voiced,
            packets_lost_there: counted.lost_there,
            lateness: Spread::of(counted.late_ms.into_iter().map(f64::from)),
            server_load,
            call_threads_load: busy(before.calls, after.calls),
            room_thread_load: busy(before.rooms, after.rooms),
            server_waited: busy(before.all.waited, after.all.waited),
            calls_per_core: count / server_load,
            bytes_per_call: grown as f64 / count,
            generator_load: busy(before.own, after.own),
            failures,
        })
    }

    async fn pause(&self, time: Duration) {
        // Ctrl-C only shortens what is measured.
        let _ = timeout(time, self.stop.cancelled()).await;
    }

    fn server_arguments(&self, sip: SocketAddr) -> Vec<String> {
        let first = "serve --host 127.0.0.1 --port 0 --data-dir data";
        let mut arguments: Vec<String> = first.split(' ').map(str::to_owned).collect();
        let calls = self.arguments.calls;
        let last_port = FIRST_MEDIA_PORT + calls * PORTS + SPARE_PORTS - 1;
        let own = [
            "server.workers=1".to_owned(),
            "log.level=error".to_owned(),
            "rtc.mode=embedded".to_owned(),
            "rtc.udp_port=0".to_owned(),
            "rtc.advertised_addresses=127.0.0.1".to_owned(),
            format!("rtc.api_key={KEY}"),
            format!("rtc.api_secret={SECRET}"),
            format!("sip.listen=udp:{sip}"),
            format!("sip.rtp_ports={FIRST_MEDIA_PORT}-{last_port}"),
            format!("sip.relay={}", self.arguments.relay),
            "sip.room_prefix=bench-".to_owned(),
            "sip.allowed_addresses=127.0.0.1".to_owned(),
            format!("sip.max_calls={calls}"),
        ];
        let callers = self.config.set.iter();
        let callers = callers.map(|(key, value)| format!("{key}={value}"));
        for setting in own.into_iter().chain(callers) {
            arguments.extend(["--set".to_owned(), setting]);
        }
        arguments
    }
}

/// Where nobody listens: the server does not say which port it was given.
fn free_address() -> std::io::Result<SocketAddr> {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// A row of the table: its title and its value.
type Row = (&'static str, fn(&Document) -> String);

const ROWS: &[Row] = &[
    ("calls, of them with sound", |d| {
        format!("{}, {}", d.calls, d.with_sound)
    }),
    ("INVITE → answered, ms", |d| Spread::shown(d.answered)),
    ("packets to telephones, of those due", |d| {
        let share = d.packets_received as f64 / d.packets_expected * 100.0;
        format!("{}, {share:.2} %", d.packets_received)
    }),
    ("with a voice", |d| d.packets_with_voice.to_string()),
    ("later than its place after the first, ms", |d| {
        Spread::shown(d.lateness)
    }),
    ("packets of telephones, missed by the server", |d| {
        format!("{}, {}", d.packets_sent, d.packets_lost_there)
    }),
    ("server, cores busy", |d| format!("{:.3}", d.server_load)),
    ("of which sound of calls, rooms", |d| {
        format!("{:.3}, {:.3}", d.call_threads_load, d.room_thread_load)
    }),
    ("server, waiting for a core that others had", |d| {
        format!("{:.3}", d.server_waited)
    }),
    ("calls per core, % of a core for each", |d| {
        format!("{:.0}, {:.3}", d.calls_per_core, 100.0 / d.calls_per_core)
    }),
    ("memory per call, kB", |d| {
        format!("{:.0}", d.bytes_per_call / 1e3)
    }),
    ("telephones, cores busy", |d| {
        format!("{:.3}", d.generator_load)
    }),
    ("calls that ended too early", |d| d.failures.to_string()),
];

impl Document {
    /// Markdown; delays are p50 / p99.
    fn table(&self) -> String {
        let speaking = if self.always {
            "all the time"
        } else {
            "2 s of every 4"
        };
        let way = if self.relay { "relayed" } else { "decoded" };
        let mut table = format!("| {way}, each speaks {speaking} | |\n|---|---:|\n");
        for (title, value) in ROWS {
            table += &format!("| {title} | {} |\n", value(self));
        }
        table
    }
}
