//! Worker processes: at most so many of a kind, one of them loaded before it is needed, each leased for one piece of work
//! and taken back afterwards. A worker that dies, hangs or talks nonsense is killed, and the next lease gets another. What
//! is said to a worker in which order is its [`Protocol`]'s business.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_stream::StreamExt;
use tokio_util::codec::{Decoder, FramedRead};
use tokio_util::sync::CancellationToken;

use vivavoce_core::process::confinement::{self, Bounds};
use vivavoce_quotas::{FairQueue, Party, Share, Slot};
use vivavoce_seams::ErrorKind;
use vivavoce_telemetry::metrics;

/// How long a worker that closed its output may take to be gone, so that its exit status can be told.
const EXIT_GRACE: Duration = Duration::from_millis(200);

/// How long a worker may work from the beginning of a lease on, and at loading its model: far more than either
/// takes.
const WORK: Duration = Duration::from_mins(5);

/// What a worker does that is sent something.
const TAKE: &str = "take audio";

/// How often the warm worker is looked after.
const TENDING: Duration = Duration::from_secs(2);

/// How long after the start the first worker loads ahead of need: loading takes a core for a second, which is for those who
/// come first.
const HEAD_START: Duration = Duration::from_millis(500);

/// How the server and a kind of worker understand each other.
pub trait Protocol: std::fmt::Debug + Send + Sync + Unpin + 'static {
    /// What such a worker reports.
    type Report: Send;
    /// How reports are read.
    type Codec: Decoder<Item = Self::Report, Error = WireError>
        + Default
        + Send
        + Sync
        + Unpin
        + std::fmt::Debug;
    /// What a worker is, in errors.
    const NAME: &'static str;

    /// A metric of how many of them work.
    fn busy() -> Option<metrics::Present> {
        None
    }

    /// What a report means to the pool.
    fn news(report: &Self::Report) -> News<'_>;
}

/// What the pool reads from a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News<'r> {
    /// The model is loaded.
    Ready,
    /// The worker ends, and why.
    Failed(&'r str),
    /// Something for whoever has leased it, and what it is called.
    Other(&'static str),
}

/// Why a report cannot be read.
#[derive(Debug)]
pub enum WireError {
    /// It is not the protocol.
    Garbage(String),
    /// The pipe.
    Io(std::io::Error),
}

impl From<std::io::Error> for WireError {
    fn from(error: std::io::Error) -> Self {
        // Bytes that are no UTF-8 are as little a report as words that are no JSON.
        if error.kind() == std::io::ErrorKind::InvalidData {
            return Self::Garbage(error.to_string());
        }
        Self::Io(error)
    }
}

/// How many workers, of which program, with which patience.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// The program that is a worker when it is called with `arguments`: our own.
    pub program: PathBuf,
    /// What it is called with.
    pub arguments: Vec<OsString>,
    /// What it may read besides what is installed.
    pub readable: Vec<PathBuf>,
    /// The most memory that one may take, in bytes.
    pub memory: u64,
    /// Whether sound that is due now goes before what they compute.
    pub may_wait: bool,
    /// The most workers at a time.
    pub size: usize,
    /// How long each step may take.
    pub deadlines: Deadlines,
    /// What one party may have of them.
    pub share: Share,
}

/// How long each step may take before the worker counts as hung.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// Waiting for a free worker.
    pub lease: Duration,
    /// From its start until it has loaded its model.
    pub ready: Duration,
    /// Taking one request.
    pub write: Duration,
    /// From a whole request to its answer, beside the length of its sound.
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
    #[error("all {size} {name}s are busy")]
    Busy {
        /// What they are.
        name: &'static str,
        /// How many there are.
        size: usize,
    },
    /// The program cannot be started.
    #[error("the {name}'s worker cannot be started: {cause}")]
    Start {
        /// What it is.
        name: &'static str,
        /// Why not.
        cause: std::io::Error,
    },
    /// It ended by itself or was killed by somebody else.
    #[error("the {name}'s worker has died ({cause})")]
    Died {
        /// What it was.
        name: &'static str,
        /// What of.
        cause: String,
    },
    /// It said why it cannot go on.
    #[error("{0}")]
    Failed(String),
    /// It said something that is not the protocol; it was killed.
    #[error("the {name}'s worker answered with something that is not its protocol: {said}")]
    Garbage {
        /// What it is.
        name: &'static str,
        /// What it said.
        said: String,
    },
    /// It hung; it was killed.
    #[error("the {name}'s worker did not {step} within {} ms", limit.as_millis())]
    Hung {
        /// What it is.
        name: &'static str,
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
            Self::Busy { .. } => ErrorKind::Overloaded,
            Self::Start { .. } | Self::Died { .. } | Self::Failed(_) => ErrorKind::Unavailable,
            Self::Garbage { .. } => ErrorKind::Protocol,
            Self::Hung { .. } => ErrorKind::Timeout,
        }
    }
}

/// One worker process. Dropping it kills it.
#[derive(Debug)]
struct Worker<P: Protocol> {
    child: Child,
    requests: ChildStdin,
    reports: FramedRead<ChildStdout, P::Codec>,
    started: Instant,
    ready: bool,
}

impl<P: Protocol> Worker<P> {
    /// Starts a worker; it loads its model by itself from here on.
    fn start(settings: &WorkerSettings) -> Result<Self, PoolError> {
        let failed = |cause| PoolError::Start {
            name: P::NAME,
            cause,
        };
        let mut command = tokio::process::Command::new(&settings.program);
        command
            .args(&settings.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What went wrong is reported in the protocol.
            .stderr(Stdio::null())
            .kill_on_drop(true)
            // Ctrl-C at a terminal is for the server, which then lets running work end.
            .process_group(0);
        let readable: Vec<_> = settings.readable.iter().map(PathBuf::as_path).collect();
        let bounds = Bounds {
            work: WORK,
            memory: settings.memory,
            may_wait: settings.may_wait,
        };
        let mut child = confinement::spawn(&mut command, &settings.program, &readable, bounds)
            .map_err(failed)?;
        let gone = || failed(std::io::ErrorKind::BrokenPipe.into());
        let requests = child.stdin.take().ok_or_else(gone)?;
        let stdout = child.stdout.take().ok_or_else(gone)?;
        Ok(Self {
            child,
            requests,
            reports: FramedRead::new(stdout, P::Codec::default()),
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
        let report = timeout_at(self.started + limit, self.report()).await;
        let report = report.map_err(|_| hung::<P>("load its model", limit))??;
        match P::news(&report) {
            News::Ready => {
                self.ready = true;
                Ok(())
            }
            _ => Err(out_of_turn::<P>(&report)),
        }
    }

    async fn report(&mut self) -> Result<P::Report, PoolError> {
        match self.reports.next().await {
            Some(Ok(report)) => match P::news(&report) {
                News::Failed(message) => Err(PoolError::Failed(message.to_owned())),
                _ => Ok(report),
            },
            Some(Err(WireError::Garbage(said))) => Err(PoolError::Garbage {
                name: P::NAME,
                said,
            }),
            Some(Err(WireError::Io(_))) | None => Err(self.death().await),
        }
    }

    async fn death(&mut self) -> PoolError {
        let cause = match timeout(EXIT_GRACE, self.child.wait()).await {
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "its output ended".to_owned(),
        };
        PoolError::Died {
            name: P::NAME,
            cause,
        }
    }
}

/// A report that is none at this point.
pub fn out_of_turn<P: Protocol>(report: &P::Report) -> PoolError {
    let what = match P::news(report) {
        News::Ready => "ready",
        News::Failed(_) => "a failure",
        News::Other(what) => what,
    };
    PoolError::Garbage {
        name: P::NAME,
        said: format!("{what} out of turn"),
    }
}

/// A step that took too long.
pub fn hung<P: Protocol>(step: &'static str, limit: Duration) -> PoolError {
    PoolError::Hung {
        name: P::NAME,
        step,
        limit,
    }
}

/// A bounded pool of workers. Dropping it kills them all and ends the sessions that use them.
#[derive(Debug)]
pub struct WorkerPool<P: Protocol> {
    shared: Arc<Shared<P>>,
}

/// The pool as its sessions see it.
#[derive(Debug)]
pub struct Shared<P: Protocol> {
    settings: WorkerSettings,
    /// Workers without a lease. With the permits that are taken they never number more than the pool's size: a worker
    /// is started for a permit when none is idle, or ahead of one that is free, and both are decided under this lock.
    idle: Mutex<Vec<Worker<P>>>,
    permits: FairQueue,
    closed: CancellationToken,
}

impl<P: Protocol> WorkerPool<P> {
    /// A pool without any worker yet.
    pub fn new(settings: WorkerSettings) -> Self {
        let size = settings.size.max(1);
        Self {
            shared: Arc::new(Shared {
                permits: FairQueue::new(size, settings.share),
                settings: WorkerSettings { size, ..settings },
                idle: Mutex::default(),
                closed: CancellationToken::new(),
            }),
        }
    }

    /// For a session.
    pub fn share(&self) -> Arc<Shared<P>> {
        Arc::clone(&self.shared)
    }
}

impl<P: Protocol> Drop for WorkerPool<P> {
    fn drop(&mut self) {
        self.shared.closed.cancel();
        self.shared.idle().clear();
    }
}

impl<P: Protocol> Shared<P> {
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
                Err(error) => tracing::warn!(%error, "no {} is kept warm", P::NAME),
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

    /// Whether nobody would have to wait.
    pub fn is_free(&self) -> bool {
        self.permits.free() > 0
    }

    /// A worker for somebody, when it is their turn, with its model loaded.
    pub async fn lease(self: &Arc<Self>, party: &Party) -> Result<Lease<P>, PoolError> {
        let Deadlines { lease, ready, .. } = self.settings.deadlines;
        self.lease_within(party, lease, ready).await
    }

    /// The same, with a patience of one's own for each of both.
    pub async fn lease_within(
        self: &Arc<Self>,
        party: &Party,
        turn: Duration,
        ready: Duration,
    ) -> Result<Lease<P>, PoolError> {
        let busy = || PoolError::Busy {
            name: P::NAME,
            size: self.settings.size,
        };
        let permit = timeout(turn, self.permits.acquire(party));
        let permit = permit.await.map_err(|_| busy())?;
        let worker = self.take_idle_or_start()?;
        let mut lease = Lease {
            worker,
            pool: Arc::clone(self),
            _permit: permit,
            _busy: P::busy(),
        };
        self.keep_one_warm();
        lease.worker.ready(ready).await?;
        // It cannot have worked for longer than it has been there, so one that does its work never meets this bound.
        let work = lease.worker.started.elapsed() + WORK;
        confinement::allow_work(&lease.worker.child, work);
        Ok(lease)
    }

    fn take_idle_or_start(&self) -> Result<Worker<P>, PoolError> {
        let mut idle = self.idle();
        idle.retain_mut(Worker::is_alive);
        if idle.is_empty() {
            return Worker::start(&self.settings);
        }
        // The oldest: it has had the most time to load.
        Ok(idle.remove(0))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Worker<P>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A leased worker. Dropping the lease kills the worker, unless it was given back.
#[derive(Debug)]
pub struct Lease<P: Protocol> {
    // Before the permit, so that the worker is killed before another may take its place.
    worker: Worker<P>,
    pool: Arc<Shared<P>>,
    _permit: Slot,
    _busy: Option<metrics::Present>,
}

impl<P: Protocol> Lease<P> {
    /// Tells the worker something; waits while it is behind.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), PoolError> {
        let limit = self.pool.settings.deadlines.write;
        match timeout(limit, self.worker.requests.write_all(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(self.last_words().await),
            Err(_) => Err(hung::<P>(TAKE, limit)),
        }
    }

    /// The next report. Cancel-safe.
    pub async fn report(&mut self) -> Result<P::Report, PoolError> {
        self.worker.report().await
    }

    /// Gives a worker back that has finished its work.
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
        timeout(limit, words)
            .await
            .unwrap_or_else(|_| hung::<P>(TAKE, limit))
    }
}
