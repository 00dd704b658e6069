//! The worker processes: at most so many, one of them loaded before it is needed, each leased for one utterance and
//! taken back afterwards. A worker that dies, hangs or talks nonsense is killed, and the next lease gets another. What
//! is said to a worker in which order is the session's business.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_stream::StreamExt;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::sync::CancellationToken;

use super::wire::{Command, MAX_REPORT_BYTES, Report};
use super::worker::SUBCOMMAND;
use vivavoce_core::process::confinement::{self, Bounds};
use vivavoce_quotas::{FairQueue, Party, Share, Slot};
use vivavoce_seams::ErrorKind;
use vivavoce_telemetry::metrics;

/// How long a worker that closed its output may take to be gone, so that its exit status can be told.
const EXIT_GRACE: Duration = Duration::from_millis(200);

/// How long a worker may work from the beginning of an utterance on, and at loading its model: far more than either
/// takes.
const UTTERANCE: Duration = Duration::from_mins(5);

/// How often the warm worker is looked after.
const TENDING: Duration = Duration::from_secs(2);

/// How long after the start the first worker loads ahead of need: loading takes a core for a second, which is for those who
/// come first.
const HEAD_START: Duration = Duration::from_millis(500);

/// How many workers, of which program, with which patience.
#[derive(Debug, Clone)]
pub struct PoolSettings {
    /// The program that is a worker when it is called with [`SUBCOMMAND`] and the model directory: our own.
    pub program: PathBuf,
    /// The directory that holds the model.
    pub model: PathBuf,
    /// The most workers at a time, each 90 MB; the usual number is one for every core.
    pub size: usize,
    /// Whether one is loaded before the first is asked for.
    pub preload: bool,
    /// How long each step may take.
    pub deadlines: Deadlines,
    /// What one party may have of them.
    pub share: Share,
}

impl PoolSettings {
    /// Where Debian's `pocketsphinx-en-us` puts the model.
    pub const DEBIAN_MODEL: &str = "/usr/share/pocketsphinx/model/en-us";

    /// Workers of `program`, as many as there are cores, with Debian's model.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            model: Self::DEBIAN_MODEL.into(),
            size: std::thread::available_parallelism().map_or(1, usize::from),
            preload: true,
            deadlines: Deadlines::default(),
            share: Share::default(),
        }
    }
}

/// How long each step may take before the worker counts as hung.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// Waiting for a free worker.
    pub lease: Duration,
    /// From its start until it has loaded its model.
    pub ready: Duration,
    /// Taking one chunk of audio.
    pub write: Duration,
    /// From the end of an utterance to its final, beside the length of the utterance.
    pub answer: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            // The sound waits meanwhile and is heard then; late words are better than none.
            lease: Duration::from_secs(15),
            ready: Duration::from_secs(10),
            write: Duration::from_secs(5),
            answer: Duration::from_secs(10),
        }
    }
}

/// What a worker, or the lack of one, did to an utterance.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// All are busy.
    #[error("all {0} recognisers are busy")]
    Busy(usize),
    /// The program cannot be started.
    #[error("the recogniser's worker cannot be started: {0}")]
    Start(std::io::Error),
    /// It ended by itself or was killed by somebody else.
    #[error("the recogniser's worker has died ({0})")]
    Died(String),
    /// It said why it cannot go on.
    #[error("{0}")]
    Failed(String),
    /// It said something that is not the protocol; it was killed.
    #[error("the recogniser's worker answered with something that is not its protocol: {0}")]
    Garbage(String),
    /// It hung; it was killed.
    #[error("the recogniser's worker did not {step} within {} ms", limit.as_millis())]
    Hung {
        /// What it should have done.
        step: &'static str,
        /// The deadline.
        limit: Duration,
    },
}

impl PoolError {
    /// What it is to a caller.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Busy(_) => ErrorKind::Overloaded,
            Self::Start(_) | Self::Died(_) | Self::Failed(_) => ErrorKind::Unavailable,
            Self::Garbage(_) => ErrorKind::Protocol,
            Self::Hung { .. } => ErrorKind::Timeout,
        }
    }
}

/// Where the model is: its folder, and what is linked to from there.
fn model_files(model: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(model).into_iter().flatten().flatten();
    let linked = entries.filter_map(|entry| entry.path().canonicalize().ok());
    std::iter::once(model.to_owned()).chain(linked).collect()
}

/// One worker process. Dropping it kills it.
#[derive(Debug)]
struct Worker {
    child: Child,
    commands: ChildStdin,
    reports: FramedRead<ChildStdout, LinesCodec>,
    started: Instant,
    ready: bool,
}

impl Worker {
    /// Starts a worker; it loads its model by itself from here on.
    fn start(settings: &PoolSettings) -> Result<Self, PoolError> {
        let mut command = tokio::process::Command::new(&settings.program);
        command
            .arg(SUBCOMMAND)
            .arg(&settings.model)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What went wrong is reported in the protocol.
            .stderr(Stdio::null())
            .kill_on_drop(true)
            // Ctrl-C at a terminal is for the server, which then lets running work end.
            .process_group(0);
        let model = model_files(&settings.model);
        let readable: Vec<_> = model.iter().map(PathBuf::as_path).collect();
        let bounds = Bounds { work: UTTERANCE };
        let mut child = confinement::spawn(&mut command, &settings.program, &readable, bounds)
            .map_err(PoolError::Start)?;
        let gone = || PoolError::Start(std::io::ErrorKind::BrokenPipe.into());
        let commands = child.stdin.take().ok_or_else(gone)?;
        let stdout = child.stdout.take().ok_or_else(gone)?;
        let lines = LinesCodec::new_with_max_length(MAX_REPORT_BYTES);
        Ok(Self {
            child,
            commands,
            reports: FramedRead::new(stdout, lines),
            started: Instant::now(),
            ready: false,
        })
    }

    fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it has loaded its model.
    async fn ready(&mut self, limit: Duration) -> Result<(), PoolError> {
        if self.ready {
            return Ok(());
        }
        match timeout_at(self.started + limit, self.report()).await {
            Ok(Ok(Report::Ready)) => {
                self.ready = true;
                Ok(())
            }
            Ok(Ok(other)) => Err(out_of_turn(&other)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(PoolError::Hung {
                step: "load its model",
                limit,
            }),
        }
    }

    async fn report(&mut self) -> Result<Report, PoolError> {
        match self.reports.next().await {
            Some(Ok(line)) => match Report::parse(&line) {
                Ok(Report::Failed { message }) => Err(PoolError::Failed(message)),
                Ok(report) => Ok(report),
                Err(error) => Err(PoolError::Garbage(error.to_string())),
            },
            Some(Err(LinesCodecError::MaxLineLengthExceeded)) => {
                Err(PoolError::Garbage("a line without end".to_owned()))
            }
            // Bytes that are no UTF-8 are as little a report as words that are no JSON.
            Some(Err(LinesCodecError::Io(error)))
                if error.kind() == std::io::ErrorKind::InvalidData =>
            {
                Err(PoolError::Garbage(error.to_string()))
            }
            Some(Err(LinesCodecError::Io(_))) | None => Err(self.death().await),
        }
    }

    async fn death(&mut self) -> PoolError {
        PoolError::Died(match timeout(EXIT_GRACE, self.child.wait()).await {
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "its output ended".to_owned(),
        })
    }
}

/// A report that is none at this point.
pub fn out_of_turn(report: &Report) -> PoolError {
    let name = match report {
        Report::Ready => "ready",
        Report::Partial { .. } => "a partial",
        Report::Final { .. } => "a final",
        Report::Failed { .. } => "a failure",
    };
    PoolError::Garbage(format!("{name} out of turn"))
}

/// A bounded pool of workers. Dropping it kills them all and ends the sessions that use them.
#[derive(Debug)]
pub struct WorkerPool {
    shared: Arc<Shared>,
}

/// The pool as its sessions see it.
#[derive(Debug)]
pub struct Shared {
    settings: PoolSettings,
    /// Workers without a lease. With the permits that are taken they never number more than the pool's size: a worker
    /// is started for a permit when none is idle, or ahead of one that is free, and both are decided under this lock.
    idle: Mutex<Vec<Worker>>,
    permits: FairQueue,
    closed: CancellationToken,
}

impl WorkerPool {
    /// A pool without any worker yet.
    pub fn new(settings: PoolSettings) -> Self {
        let size = settings.size.max(1);
        Self {
            shared: Arc::new(Shared {
                permits: FairQueue::new(size, settings.share),
                settings: PoolSettings { size, ..settings },
                idle: Mutex::default(),
                closed: CancellationToken::new(),
            }),
        }
    }

    /// For a session.
    pub fn share(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.shared.closed.cancel();
        self.shared.idle().clear();
    }
}

impl Shared {
    /// How long each step may take.
    pub fn deadlines(&self) -> Deadlines {
        self.settings.deadlines
    }

    /// Resolves when the pool is dropped.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Sees to it that one worker is loaded or loading ahead of need, where the size allows it. Returns at once.
    pub fn keep_one_warm(&self) {
        let mut idle = self.idle();
        idle.retain_mut(Worker::is_alive);
        let room = self.permits.free() > 0 && !self.closed.is_cancelled();
        if idle.is_empty() && room {
            match Worker::start(&self.settings) {
                Ok(worker) => idle.push(worker),
                Err(error) => tracing::warn!(%error, "no recogniser is kept warm"),
            }
        }
    }

    /// Loads a worker ahead of need, a moment after the start, and replaces it when it dies, until the pool is dropped.
    pub async fn tend(self: Arc<Self>) {
        let mut pause = HEAD_START;
        loop {
            tokio::select! {
                () = self.closed() => return,
                () = sleep(pause) => self.keep_one_warm(),
            }
            pause = TENDING;
        }
    }

    /// A worker for one utterance of somebody, when it is their turn, ready to hear it.
    pub async fn lease(self: &Arc<Self>, party: &Party) -> Result<Lease, PoolError> {
        let Deadlines { lease, ready, .. } = self.settings.deadlines;
        let busy = || PoolError::Busy(self.settings.size);
        let permit = timeout(lease, self.permits.acquire(party));
        let permit = permit.await.map_err(|_| busy())?;
        let worker = self.take_idle_or_start()?;
        let mut lease = Lease {
            worker,
            pool: Arc::clone(self),
            _permit: permit,
            _busy: metrics::recogniser_works(),
        };
        self.keep_one_warm();
        lease.worker.ready(ready).await?;
        // It cannot have worked for longer than it has been there, so one that does its work never meets this bound.
        let work = lease.worker.started.elapsed() + UTTERANCE;
        confinement::allow_work(&lease.worker.child, work);
        Ok(lease)
    }

    fn take_idle_or_start(&self) -> Result<Worker, PoolError> {
        let mut idle = self.idle();
        idle.retain_mut(Worker::is_alive);
        if idle.is_empty() {
            return Worker::start(&self.settings);
        }
        // The oldest: it has had the most time to load.
        Ok(idle.remove(0))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Worker>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker for one utterance. Dropping the lease kills the worker, unless it was given back.
#[derive(Debug)]
pub struct Lease {
    // Before the permit, so that the worker is killed before another may take its place.
    worker: Worker,
    pool: Arc<Shared>,
    _permit: Slot,
    _busy: metrics::Present,
}

impl Lease {
    /// Tells the worker something; waits while it is behind.
    pub async fn send(&mut self, command: &Command) -> Result<(), PoolError> {
        let limit = self.pool.settings.deadlines.write;
        let bytes = command.to_bytes();
        match timeout(limit, self.worker.commands.write_all(&bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(self.last_words().await),
            Err(_) => Err(PoolError::Hung {
                step: "take audio",
                limit,
            }),
        }
    }

    /// The next report. Cancel-safe.
    pub async fn report(&mut self) -> Result<Report, PoolError> {
        self.worker.report().await
    }

    /// Gives a worker back that has finished its utterance.
    pub fn give_back(self) {
        let Self {
            worker,
            pool,
            _permit,
            _busy,
        } = self;
        let mut idle = pool.idle();
        if !pool.closed.is_cancelled() {
            idle.push(worker);
        }
    }

    /// Why a worker does not listen any more: what it still reported, or its death.
    async fn last_words(&mut self) -> PoolError {
        let limit = self.pool.settings.deadlines.write;
        let words = async {
            loop {
                if let Err(error) = self.worker.report().await {
                    return error;
                }
            }
        };
        match timeout(limit, words).await {
            Ok(error) => error,
            Err(_) => PoolError::Hung {
                step: "take audio",
                limit,
            },
        }
    }
}
