//! `vivavoce bench agents`: the cost of a session in a room, its input and output delay, and whether sessions that have
//! ended leave anything behind. The server is a process of its own on a core of its own, a second one stands in for a
//! LiveKit deployment, and this process is all clients.

mod cycles;
mod pair;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use rustix::process::getpid;
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::cycles::Cycles;
use self::pair::{Heard, Meeting, PairError, Voice};
use super::load::CYCLE;
use super::participant::Phase;
use super::spread::Spread;
use super::under_test::{Cores, UnderTest, Usage};
use super::{ConfigArgs, Failure, sessions};

/// The key pair of the rooms, which nobody else can reach.
const KEY: &str = super::participant::KEY;
const SECRET: &str = super::participant::SECRET;
/// From the last join to the first look: everybody has begun, and been heard once.
const SETTLING: Duration = CYCLE.saturating_mul(2);
/// Files that the load and the server have open for a pair, with some to spare.
const FILES: usize = 4;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce bench agents                                      4 sessions in 4 rooms, over each link\n  \
    vivavoce bench agents --sessions 100 --seconds 600\n  \
    vivavoce bench agents --sessions 0 --cycles 1000           only come and go\n  \
    vivavoce bench agents --link livekit --json agents.json\n\n\
    In each room a session with providers that cost nothing and a person: the session speaks for 2 s of every 4, then the \
    person does. From mouth to STT = from the person's first packet of a voice until the recogniser's word of its sound is \
    at the session's client. From TTS to ear = from `speak` until the person gets the first packet. Both have the hops \
    of WebSocket, actors and codec in them, and leave out the jitter buffer that a person's own client would have. With \
    `--link livekit` the rooms are those of a second server, whose time and memory are not in the numbers. Ctrl-C ends it \
    early.")]
pub(super) struct Arguments {
    /// Concurrent sessions, each in a room of its own
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(0..=10_000))]
    sessions: u16,
    /// Seconds to measure, after a warm-up
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// How sessions join rooms; default: both ways
    #[arg(long)]
    link: Option<Link>,
    /// Sessions that join and leave afterwards, one after the other
    #[arg(long, default_value_t = 0)]
    cycles: u32,
    /// Write all results to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Whose the rooms are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Link {
    /// The server's own, reached within the process
    Embedded,
    /// Another server's, reached as a LiveKit deployment is
    Livekit,
}

/// What was measured of one link.
#[derive(Debug, Serialize)]
struct Outcome {
    link: Link,
    #[serde(flatten)]
    talk: Option<Talk>,
    cycles: Option<Cycles>,
}

/// What sessions at once came to.
#[derive(Debug, Serialize)]
struct Talk {
    sessions: u16,
    /// How long it was looked at.
    measured_seconds: f64,
    /// Milliseconds of a core for a second of a session.
    cpu_ms_per_second: f64,
    /// Seconds per second that the server wanted a core which others had. Where this is much, delays are not the server's.
    server_waited: f64,
    bytes_per_session: f64,
    mouth_to_stt: Option<Spread>,
    /// Voices that the recogniser did not hear, and what it heard without one.
    unheard: u64,
    unasked: u64,
    tts_to_ear: Option<Spread>,
    /// Speech of which nobody heard anything.
    unspoken: u64,
    /// How much later than its place after the first one a packet was.
    lateness: Option<Spread>,
    late: u64,
    missing: u64,
    /// Cores that everybody else was busy on.
    generator_load: f64,
    /// Pairs that ended too early.
    failures: usize,
}

/// The JSON file.
#[derive(Serialize)]
struct Document<'a> {
    version: &'static str,
    outcomes: &'a [Outcome],
}

pub(super) fn run(config: &ConfigArgs, arguments: &Arguments) -> Result<(), Failure> {
    let cores = Cores::divide().map_err(Failure::work)?;
    if cores.is_none() {
        eprintln!("there is one core only: the load slows the server down");
    }
    sessions::raise_file_limit(usize::from(arguments.sessions) * FILES)?;
    let runtime = super::runtime(cores.as_ref()).map_err(Failure::work)?;
    let stop = super::stop_token(&runtime).map_err(Failure::work)?;
    let bench = Bench {
        config,
        arguments,
        runtime,
        cores,
        stop,
    };
    let mut outcomes = Vec::new();
    for link in [Link::Embedded, Link::Livekit] {
        let wanted = arguments.link.is_none_or(|wanted| wanted == link);
        if wanted && !bench.stop.is_cancelled() {
            outcomes.push(bench.of(link)?);
        }
    }
    print!("{}", table(&outcomes));
    if let Some(file) = &arguments.json {
        let document = Document {
            version: env!("CARGO_PKG_VERSION"),
            outcomes: &outcomes,
        };
        super::write_json(file, &document)?;
    }
    match outcomes.iter().map(Outcome::failures).sum() {
        0 => Ok(()),
        failures => Err(Failure::work(format!("{failures} failures, see above"))),
    }
}

struct Bench<'a> {
    config: &'a ConfigArgs,
    arguments: &'a Arguments,
    runtime: Runtime,
    cores: Option<Cores>,
    stop: CancellationToken,
}

/// The servers of one link.
struct Servers {
    /// That of the sessions.
    sessions: UnderTest,
    /// That of the rooms where it is another.
    rooms: Option<UnderTest>,
}

impl Servers {
    fn meeting(&self) -> Meeting {
        let rooms = self.rooms.as_ref().unwrap_or(&self.sessions);
        Meeting {
            sessions: format!("ws://{}/ws", self.sessions.address),
            rooms: rooms.address.clone(),
            clock: Instant::now(),
        }
    }
}

impl Bench<'_> {
    fn of(&self, link: Link) -> Result<Outcome, Failure> {
        let servers = self.start(link)?;
        let some = self.arguments.sessions > 0;
        let talk = some.then(|| self.runtime.block_on(self.talk(&servers)));
        let talk = talk.transpose()?.flatten();
        let cycles = self.arguments.cycles;
        let cycles = (cycles > 0).then(|| {
            let come_and_go = cycles::come_and_go(&servers.sessions, cycles, &self.stop);
            self.runtime.block_on(come_and_go)
        });
        Ok(Outcome {
            link,
            talk,
            cycles: cycles.transpose()?,
        })
    }

    fn start(&self, link: Link) -> Result<Servers, Failure> {
        if link == Link::Embedded {
            return Ok(Servers {
                sessions: self.under_test(&own_rooms())?,
                rooms: None,
            });
        }
        // On the load's cores.
        let rooms = UnderTest::start(&self.server_arguments(&own_rooms()));
        let rooms = rooms.map_err(Failure::work)?;
        let url = format!("rtc.url=ws://{}", rooms.address);
        let mut settings = vec!["rtc.mode=livekit".to_owned(), url];
        settings.extend(key_pair());
        Ok(Servers {
            sessions: self.under_test(&settings)?,
            rooms: Some(rooms),
        })
    }

    fn under_test(&self, settings: &[String]) -> Result<UnderTest, Failure> {
        let arguments = self.server_arguments(settings);
        let start = || UnderTest::start(&arguments);
        let started = match &self.cores {
            Some(cores) => cores.on_server_core(start).and_then(|started| started),
            None => start(),
        };
        started.map_err(Failure::work)
    }

    fn server_arguments(&self, settings: &[String]) -> Vec<String> {
        let first = "serve --host 127.0.0.1 --port 0 --data-dir data";
        let mut arguments: Vec<String> = first.split(' ').map(str::to_owned).collect();
        // Those that come and go may overlap.
        let most = usize::from(self.arguments.sessions) + 100;
        let own = [
            "server.workers=1".to_owned(),
            "providers.null.enabled=true".to_owned(),
            "cache.enabled=false".to_owned(),
            "log.level=error".to_owned(),
            format!("limits.sessions={most}"),
            format!("limits.unconfigured_sockets={}", most * 4),
            "limits.connections_per_address=0".to_owned(),
            format!("limits.syntheses_per_provider={most}"),
        ];
        let callers = self.config.set.iter();
        let callers = callers.map(|(key, value)| format!("{key}={value}"));
        for setting in own
            .into_iter()
            .chain(settings.iter().cloned())
            .chain(callers)
        {
            arguments.extend(["--set".to_owned(), setting]);
        }
        arguments
    }

    /// Fills the rooms, lets them talk for a while, and takes what came of it.
    /// `None` when it was stopped before.
    async fn talk(&self, servers: &Servers) -> Result<Option<Talk>, Failure> {
        let usage = || servers.sessions.usage().map_err(Failure::work);
        let own = || Usage::of(getpid()).map_err(Failure::work);
        let idle = usage()?.own_bytes;
        let sessions = self.arguments.sessions;
        eprintln!("{sessions} sessions join their rooms");
        let phase = watch::Sender::new(Phase::Warming);
        let mut pairs = self.fill(servers, &phase).await?;
        self.pause(SETTLING).await;
        if self.stop.is_cancelled() {
            return Ok(None);
        }
        let (began, before, own_before) = (Instant::now(), usage()?, own()?);
        phase.send_replace(Phase::Measured);
        eprintln!("measuring for {} s", self.arguments.seconds);
        self.pause(Duration::from_secs(self.arguments.seconds.into()))
            .await;
        let (lasted, after, own_after) = (began.elapsed().as_secs_f64(), usage()?, own()?);
        phase.send_replace(Phase::Over);
        let (mut heard, mut failures) = (Heard::default(), 0);
        while let Some(ended) = pairs.join_next().await {
            match ended.map_err(Failure::work)? {
                Ok(one) => heard.add(one),
                Err(error) => {
                    failures += 1;
                    eprintln!("a pair ended: {error}");
                }
            }
        }
        let busy = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() / lasted;
        let count = f64::from(sessions);
        let grown = after.own_bytes.saturating_sub(idle);
        Ok(Some(Talk {
            sessions,
            measured_seconds: lasted,
            cpu_ms_per_second: busy(before.cpu, after.cpu) * 1e3 / count,
            server_waited: busy(before.waited, after.waited),
            bytes_per_session: grown as f64 / count,
            mouth_to_stt: Spread::of(heard.to_session_ms),
            unheard: heard.unheard,
            unasked: heard.unasked,
            tts_to_ear: Spread::of(heard.to_person_ms),
            unspoken: heard.unspoken,
            lateness: Spread::of(heard.late_ms.into_iter().map(f64::from)),
            late: heard.late,
            missing: heard.missing,
            generator_load: busy(own_before.cpu, own_after.cpu),
            failures,
        }))
    }

    async fn fill(
        &self,
        servers: &Servers,
        phase: &watch::Sender<Phase>,
    ) -> Result<JoinSet<Result<Heard, PairError>>, Failure> {
        let meeting = servers.meeting();
        let voice = Voice::new().map_err(Failure::work)?;
        let mut pairs = JoinSet::new();
        for number in 0..self.arguments.sessions {
            if self.stop.is_cancelled() {
                break;
            }
            let room = format!("bench-{number}");
            // Evenly over what repeats, and so over the 20 ms of a packet too.
            let offset = CYCLE * u32::from(number) / u32::from(self.arguments.sessions);
            let meet = pair::meet(&meeting, &room, &voice, offset, phase.subscribe());
            let pair = meet.await;
            pairs.spawn(pair.map_err(|error| Failure::work(format!("{room}: {error}")))?);
        }
        Ok(pairs)
    }

    async fn pause(&self, time: Duration) {
        // Ctrl-C only shortens what is measured.
        let _ = timeout(time, self.stop.cancelled()).await;
    }
}

fn key_pair() -> [String; 2] {
    [
        format!("rtc.api_key={KEY}"),
        format!("rtc.api_secret={SECRET}"),
    ]
}

/// Settings of a server with rooms of its own.
fn own_rooms() -> Vec<String> {
    let own = [
        "rtc.mode=embedded",
        "rtc.udp_port=0",
        "rtc.advertised_addresses=127.0.0.1",
    ];
    own.map(str::to_owned)
        .into_iter()
        .chain(key_pair())
        .collect()
}

impl Outcome {
    fn failures(&self) -> usize {
        let talk = self.talk.as_ref().map_or(0, |talk| talk.failures);
        let cycles = self.cycles.as_ref();
        talk + usize::from(cycles.is_some_and(Cycles::left_something))
    }
}

/// A row of the table: its title and a cell.
type Row<T> = (&'static str, fn(&T) -> String);

const TALK: &[Row<Talk>] = &[
    ("sessions", |t| t.sessions.to_string()),
    ("CPU per session, ms per s", |t| {
        format!("{:.2}", t.cpu_ms_per_second)
    }),
    ("server, waiting for a core that others had", |t| {
        format!("{:.3}", t.server_waited)
    }),
    ("memory per session, kB", |t| {
        format!("{:.0}", t.bytes_per_session / 1e3)
    }),
    ("mouth → STT, ms", |t| Spread::shown(t.mouth_to_stt)),
    ("voices, of them unheard; heard without one", |t| {
        let heard = t.mouth_to_stt.map_or(0, |spread| spread.count);
        format!("{}, {}; {}", heard as u64 + t.unheard, t.unheard, t.unasked)
    }),
    ("TTS → ear, ms", |t| Spread::shown(t.tts_to_ear)),
    ("spoken, of them unheard", |t| {
        let spoken = t.tts_to_ear.map_or(0, |spread| spread.count);
        format!("{}, {}", spoken as u64 + t.unspoken, t.unspoken)
    }),
    ("packets at the person, missing, over 20 ms late", |t| {
        let packets = t.lateness.map_or(0, |spread| spread.count);
        format!("{packets}, {}, {}", t.missing, t.late)
    }),
    ("later than its place after the first, ms", |t| {
        Spread::shown(t.lateness)
    }),
    ("everybody else, cores busy", |t| {
        format!("{:.3}", t.generator_load)
    }),
    ("pairs that ended too early", |t| t.failures.to_string()),
];

/// Markdown, with a column for each link; delays are p50 / p99.
fn table(outcomes: &[Outcome]) -> String {
    let mut table = String::from("| |");
    for outcome in outcomes {
        table += match outcome.link {
            Link::Embedded => " embedded |",
            Link::Livekit => " livekit |",
        };
    }
    table += "\n|---|";
    table += &"---:|".repeat(outcomes.len());
    table.push('\n');
    let talks: Vec<&Talk> = outcomes
        .iter()
        .filter_map(|one| one.talk.as_ref())
        .collect();
    rows(&mut table, TALK, &talks);
    let cycles: Vec<&Cycles> = outcomes
        .iter()
        .filter_map(|one| one.cycles.as_ref())
        .collect();
    rows(&mut table, cycles::ROWS, &cycles);
    table
}

fn rows<T>(table: &mut String, rows: &[Row<T>], of: &[&T]) {
    for (title, cell) in rows.iter().filter(|_| !of.is_empty()) {
        let cells: Vec<String> = of.iter().map(|one| cell(one)).collect();
        *table += &format!("| {title} | {} |\n", cells.join(" | "));
    }
}
