//! `vivavoce bench sessions`: how many sessions a core carries, the cost of each, and the added delay. The server is a
//! process of its own on a core of its own; this process is the load. A bare echo under the same traffic shows the cost
//! of the sockets alone.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustix::process::{Resource, Rlimit, getpid, getrlimit, setrlimit};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_tungstenite::tungstenite::http::Uri;
use tokio_util::sync::CancellationToken;

use super::load::{self, Load, Peer, SPREAD};
use super::outcome::{Interval, Outcome, State, table};
use super::sound::Sounds;
use super::under_test::{Cores, UnderTest, Usage};
use super::{ConfigArgs, Failure};

/// The largest added delay with which a ramp goes on, of 99 in 100 frames.
const GOAL: Duration = Duration::from_millis(2);
/// How often a step of a ramp is tried: whoever shares the machine may have disturbed it.
const TRIES: u32 = 2;
/// A ramp ends when it knows the answer to within this share.
const RAMP_PRECISION: f64 = 0.05;
/// Files that a process has open beside its sessions.
const OTHER_FILES: u64 = 200;
/// From the last session's begin to the first look.
const SETTLING: Duration = Duration::from_secs(1);
/// Of a measurement as long as this each interval is told of.
const LONG: Duration = Duration::from_mins(1);

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce bench sessions                            200 sessions, and a bare echo beside them\n  \
    vivavoce bench sessions --sessions 800 --json capacity.json\n  \
    vivavoce bench sessions --ramp                     find how many stay within 2 ms\n  \
    vivavoce bench sessions --seconds 7200 --every 60  two hours, told of by the minute\n  \
    vivavoce bench sessions --record                   the same, recorded\n  \
    vivavoce bench sessions --session '{\"vad\": {\"enabled\": false}}'   without voice activity detection\n  \
    vivavoce bench sessions --set socket.lead_ms=100   the server's settings may be changed\n  \
    vivavoce bench sessions --url ws://10.0.0.5:3001   a server that runs, with NULL_ENABLED=true\n\n\
    Each session sends 20 ms frames of 16 kHz linear16: speech of a local voice for 2 s of every 4 s, no two alike at \
    one time, and noise 20 dB below it otherwise, during which 2 s of speech are spoken to it. The providers cost \
    nothing; voice activity is detected, as it is by default. Sessions per core = sessions / CPU seconds of the server \
    per second. Added delays are the server's own (/metrics), answers are what the client sees. An echo sends half of \
    the frames back. Ctrl-C ends a measurement early.")]
pub(super) struct Arguments {
    /// Concurrent sessions; the start of a ramp
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sessions: u32,
    /// Seconds to measure, after a warm-up
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Seconds of the intervals that are looked at by themselves; a run of a minute and more tells of each
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    #[arg(default_value_t = 1)]
    every: u32,
    /// A running server to use instead of starting one; its CPU time and memory are not measured
    #[arg(long, value_name = "WS-URL", conflicts_with_all = ["ramp", "echo"])]
    url: Option<Uri>,
    /// Only the bare echo
    #[arg(long, conflicts_with = "ramp")]
    echo: bool,
    /// Find the largest number of sessions at which nothing is later than 2 ms (p99), at the client too; a step that is
    /// later is tried twice
    #[arg(long)]
    ramp: bool,
    /// Record each session
    #[arg(long, conflicts_with = "echo")]
    record: bool,
    /// Fields of each session's `config`, such as '{"vad": {"enabled": false}}'
    #[arg(long, value_name = "JSON", value_parser = object, conflicts_with = "echo")]
    session: Option<Map<String, Value>>,
    /// Write all results to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The JSON file.
#[derive(Serialize)]
struct Document<'a> {
    version: &'static str,
    outcomes: &'a [Outcome],
}

/// A JSON object.
fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("must be a JSON object: {error}"))
}

pub(super) fn run(config: &ConfigArgs, arguments: &Arguments) -> Result<(), Failure> {
    let cores = Cores::divide().map_err(Failure::work)?;
    if cores.is_none() {
        eprintln!("there is one core only: the load slows the server down");
    }
    let runtime = super::runtime(cores.as_ref()).map_err(Failure::work)?;
    let stop = super::stop_token(&runtime).map_err(Failure::work)?;
    let bench = Bench {
        config,
        seconds: arguments.seconds,
        every: arguments.every,
        session: session_config(arguments),
        sounds: Arc::new(Sounds::spoken()?),
        runtime,
        cores,
        stop,
    };
    let sessions = arguments.sessions as usize;
    let outcomes = match &arguments.url {
        Some(url) => vec![bench.running_server(url, sessions)?],
        None if arguments.ramp => bench.ramp(sessions)?,
        None if arguments.echo => vec![bench.of(Peer::Echo, sessions)?],
        None => bench.side_by_side(sessions)?,
    };
    let outcomes: Vec<Outcome> = outcomes.into_iter().flatten().collect();
    tell!(
        "Load: speech for {0} s of every {1} s, noise 20 dB below it otherwise; 2 s of speech asked for every {1} s.\n",
        load::CYCLE.as_secs() / 2,
        load::CYCLE.as_secs()
    );
    print!("{}", table(&outcomes));
    if let Some(file) = &arguments.json {
        let document = Document {
            version: env!("CARGO_PKG_VERSION"),
            outcomes: &outcomes,
        };
        super::write_json(file, &document)?;
    }
    match outcomes.iter().map(|outcome| outcome.failures).sum() {
        0 => Ok(()),
        failures => Err(Failure::work(format!("{failures} failures, see above"))),
    }
}

/// What the arguments say of each session.
fn session_config(arguments: &Arguments) -> Map<String, Value> {
    let mut fields = arguments.session.clone().unwrap_or_default();
    if arguments.record {
        fields.insert("recording".to_owned(), true.into());
    }
    fields
}

/// What all measurements of one call share.
struct Bench<'a> {
    config: &'a ConfigArgs,
    seconds: u32,
    every: u32,
    /// What else is in each session's `config`.
    session: Map<String, Value>,
    sounds: Arc<Sounds>,
    runtime: Runtime,
    cores: Option<Cores>,
    stop: CancellationToken,
}

/// A server that is to be measured.
struct Target {
    peer: Peer,
    url: String,
    /// `host:port` of its metrics.
    metrics: Option<String>,
    process: Option<UnderTest>,
}

impl Bench<'_> {
    fn side_by_side(&self, sessions: usize) -> Result<Vec<Option<Outcome>>, Failure> {
        let server = self.of(Peer::Server, sessions)?;
        if self.stop.is_cancelled() {
            return Ok(vec![server]);
        }
        Ok(vec![server, self.of(Peer::Echo, sessions)?])
    }

    /// Doubles the sessions until the delay is too large twice, then halves the doubt. The outcome of every step.
    fn ramp(&self, sessions: usize) -> Result<Vec<Option<Outcome>>, Failure> {
        let mut outcomes = Vec::new();
        let (mut good, mut bad) = (0, None);
        let mut next = sessions;
        let mut tries = 0;
        loop {
            let Some(outcome) = self.of(Peer::Server, next)? else {
                return Ok(outcomes);
            };
            let within = outcome.added_p99().is_some_and(|delay| delay <= GOAL);
            let sound = outcome.failures == 0 && outcome.is_full_load();
            eprintln!("{next} sessions: {}", verdict(&outcome, within));
            outcomes.push(Some(outcome));
            if self.stop.is_cancelled() {
                return Ok(outcomes);
            }
            tries += 1;
            if within && sound {
                good = next;
            } else if tries < TRIES {
                continue;
            } else {
                bad = Some(next);
            }
            tries = 0;
            next = match bad {
                None => good * 2,
                Some(bad) if (bad - good) as f64 <= 1.0_f64.max(RAMP_PRECISION * bad as f64) => {
                    tell!("{good} sessions stay within {} ms\n", GOAL.as_millis());
                    return Ok(outcomes);
                }
                Some(bad) => usize::midpoint(good, bad),
            };
        }
    }

    fn start(&self, arguments: &[String]) -> io::Result<UnderTest> {
        match &self.cores {
            Some(cores) => cores.on_server_core(|| UnderTest::start(arguments))?,
            None => UnderTest::start(arguments),
        }
    }

    fn of(&self, peer: Peer, sessions: usize) -> Result<Option<Outcome>, Failure> {
        let arguments = match peer {
            Peer::Server => self.server_arguments(sessions),
            Peer::Echo => vec!["bench".to_owned(), "echo".to_owned()],
        };
        raise_file_limit(sessions)?;
        let process = self.start(&arguments).map_err(Failure::work)?;
        let address = process.address.clone();
        let target = Target {
            peer,
            url: match peer {
                Peer::Server => format!("ws://{address}/ws"),
                Peer::Echo => format!("ws://{address}"),
            },
            metrics: (peer == Peer::Server).then_some(address),
            process: Some(process),
        };
        self.runtime.block_on(self.measure(&target, sessions))
    }

    fn running_server(&self, url: &Uri, sessions: usize) -> Result<Option<Outcome>, Failure> {
        raise_file_limit(sessions)?;
        let address = url
            .authority()
            .ok_or_else(|| Failure::usage("--url must look like ws://host:port/ws"))?;
        let path = Some(url.path())
            .filter(|path| *path != "/")
            .unwrap_or("/ws");
        let target = Target {
            peer: Peer::Server,
            url: format!("ws://{address}{path}"),
            metrics: Some(address.to_string()),
            process: None,
        };
        self.runtime.block_on(self.measure(&target, sessions))
    }

    /// One worker, providers that cost nothing, and no cache, so that every utterance is synthesised.
    fn server_arguments(&self, sessions: usize) -> Vec<String> {
        let mut arguments: Vec<String> = [
            "serve",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--data-dir",
            "data",
        ]
        .map(str::to_owned)
        .into();
        let own = [
            "server.workers=1".to_owned(),
            "providers.null.enabled=true".to_owned(),
            "cache.enabled=false".to_owned(),
            "log.level=warn".to_owned(),
            format!("limits.sessions={sessions}"),
            // All of them come from one address.
            format!("limits.unconfigured_sockets={}", sessions.saturating_mul(4)),
            "limits.connections_per_address=0".to_owned(),
            format!("limits.syntheses_per_provider={sessions}"),
        ];
        let callers = self
            .config
            .set
            .iter()
            .map(|(key, value)| format!("{key}={value}"));
        for setting in own.into_iter().chain(callers) {
            arguments.extend(["--set".to_owned(), setting]);
        }
        arguments
    }

    /// Connects, warms up, measures. `None` when it was stopped before there was anything to measure.
    async fn measure(&self, target: &Target, sessions: usize) -> Result<Option<Outcome>, Failure> {
        let idle = target.usage()?.map_or(0, |usage| usage.own_bytes);
        eprintln!("connecting {sessions} sessions to the {}", target.name());
        let load = tokio::select! {
            ready = load::connect(&target.url, target.peer, sessions, &self.session) => {
                ready.map_err(|error| Failure::work(format!("{}: {error}", target.url)))?.start(&self.sounds)
            }
            () = self.stop.cancelled() => return Ok(None),
        };
        let seconds = Duration::from_secs(self.seconds.into());
        let warm_up = SPREAD + SETTLING;
        eprintln!("warming up for {} s", warm_up.as_secs());
        tokio::select! {
            () = sleep(warm_up) => {}
            () = self.stop.cancelled() => return Ok(None),
        }
        let begin = Instant::now();
        let before = target.state(&load).await?;
        eprintln!("measuring for {} s", seconds.as_secs());
        let mut course = Vec::new();
        let mut latest = None;
        let mut until = Duration::ZERO;
        while until < seconds && !self.stop.is_cancelled() {
            until = seconds.min(until + Duration::from_secs(self.every.into()));
            tokio::select! {
                () = sleep_until(begin + until) => {}
                () = self.stop.cancelled() => {}
            }
            let now = match target.state(&load).await {
                Ok(now) => now,
                Err(error) if until < seconds => {
                    eprintln!("no look after {} s: {}", until.as_secs(), error.message);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let states = [latest.as_ref().unwrap_or(&before), &now];
            let outcome = Outcome::between(target.name(), sessions, idle, states, 0);
            let interval = outcome.interval(begin.elapsed());
            if seconds >= LONG {
                eprintln!("{}", progress(&interval));
            }
            course.push(interval);
            latest = Some(now);
        }
        let after = match latest {
            Some(latest) => latest,
            None => target.state(&load).await?,
        };
        if let Some(failure) = load.tally.first_failure() {
            eprintln!("the first failure: {failure}");
        }
        let failures = load
            .tally
            .failures
            .load(std::sync::atomic::Ordering::Relaxed);
        let states = [&before, &after];
        let whole = Outcome::between(target.name(), sessions, idle, states, failures);
        Ok(Some(Outcome { course, ..whole }))
    }
}

fn progress(interval: &Interval) -> String {
    let number = |value: Option<f64>, unit: f64| {
        value.map_or_else(|| "–".to_owned(), |value| format!("{:.3}", value / unit))
    };
    format!(
        "{:.0} s: p99 of input {} ms, output {} ms, answer {} ms; {} cores; {} kB a session",
        interval.until,
        number(interval.input_p99_ms, 1.0),
        number(interval.output_p99_ms, 1.0),
        number(interval.answer_p99_ms, 1.0),
        number(interval.server_load, 1.0),
        number(interval.bytes_per_session, 1e3),
    )
}

fn verdict(outcome: &Outcome, within: bool) -> String {
    let added = outcome.added_p99().unwrap_or_default().as_secs_f64() * 1e3;
    let cores = outcome.server_load.unwrap_or_default();
    let end = if !outcome.is_full_load() {
        "the load was not what it should have been: one of the two is at its limit"
    } else if within {
        "well"
    } else {
        "too late"
    };
    format!("p99 {added:.3} ms, {cores:.2} cores: {end}")
}

impl Target {
    const fn name(&self) -> &'static str {
        match self.peer {
            Peer::Server => "server",
            Peer::Echo => "echo",
        }
    }

    fn usage(&self) -> Result<Option<Usage>, Failure> {
        self.process
            .as_ref()
            .map(UnderTest::usage)
            .transpose()
            .map_err(Failure::work)
    }

    async fn state(&self, load: &Load) -> Result<State, Failure> {
        let page = match &self.metrics {
            Some(address) => super::page(address, "/metrics")
                .await
                .map_err(|error| Failure::work(format!("http://{address}/metrics: {error}")))?,
            None => String::new(),
        };
        let own = Usage::of(getpid()).map_err(Failure::work)?;
        Ok(State::now(&load.tally, self.usage()?, own, &page))
    }
}

/// Sees to it that this process and its children may open a connection per session. The server holds two handles to
/// each.
pub(super) fn raise_file_limit(sessions: usize) -> Result<(), Failure> {
    let needed = 2 * sessions as u64 + OTHER_FILES;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if let Some(maximum) = maximum.filter(|maximum| *maximum < needed) {
        return Err(Failure::work(format!(
            "{sessions} sessions need {needed} open files, and at most {maximum} are allowed here; raise the hard limit (ulimit -Hn)"
        )));
    }
    let raised = Rlimit {
        current: Some(needed),
        maximum,
    };
    setrlimit(Resource::Nofile, raised).map_err(|error| {
        Failure::work(format!("the limit of open files cannot be raised: {error}"))
    })
}
