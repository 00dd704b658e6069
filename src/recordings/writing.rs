//! The threads that write recordings: they encode what the sessions bring and append it to the journals, beside the
//! threads that sessions live on and before them where the system lets us, so that what was heard is on the disk while the
//! machine is busy. That it also survives the end of the machine is another thread's matter, which has all files that
//! have grown written through together: nobody's page waits for that of somebody else.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use vivavoce_telemetry::metrics;

/// Pieces of work that wait for a thread: each recording has one at most.
const WAITING: usize = 4096;
/// More threads than this write no faster.
const MAX_THREADS: usize = 4;
/// How much is asked for above the other threads of the machine, by `nice`.
const PRIORITY: i32 = -10;
/// Between two rounds of writing through.
const ROUND: Duration = Duration::from_millis(200);
/// What is not on the disk by then is late: half of what may be lost when the process is killed.
pub const LATE: Duration = Duration::from_millis(500);
/// Between two warnings of that.
const WARNING: Duration = Duration::from_secs(10);

/// One piece of work.
pub type Job = Box<dyn FnOnce() + Send>;

/// The threads. Clones are the same; they end with the last of them.
#[derive(Debug, Clone)]
pub struct Writers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// None where everything is done on the caller's own thread.
    threads: Option<Threads>,
    late: Late,
}

#[derive(Debug)]
struct Threads {
    jobs: SyncSender<Job>,
    grown: Arc<Grown>,
}

/// What is late, and when that was last said.
#[derive(Debug, Default)]
struct Late {
    times: AtomicU64,
    said: Mutex<Option<Instant>>,
}

/// A file whose content is to survive the end of the machine.
#[derive(Debug)]
pub struct Durable {
    file: File,
    /// Why it could not be written through.
    failed: OnceLock<String>,
}

impl Durable {
    /// This one.
    pub fn new(file: File) -> Arc<Self> {
        Arc::new(Self {
            file,
            failed: OnceLock::new(),
        })
    }

    /// The file. Once it could not be written through it fails for good: nobody knows what it holds.
    pub fn file(&self) -> io::Result<&File> {
        match self.failed.get() {
            Some(problem) => Err(io::Error::other(problem.clone())),
            None => Ok(&self.file),
        }
    }

    fn write_through(&self) {
        if let Err(error) = self.file.sync_data() {
            // The first failure is what counts.
            let _ = self.failed.set(error.to_string());
        }
    }
}

/// Files that have grown since they were last written through.
#[derive(Debug, Default)]
struct Grown {
    state: Mutex<GrownState>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct GrownState {
    /// By their address, so that each is there once, however often it has grown.
    files: HashMap<usize, Arc<Durable>>,
    closed: bool,
}

impl Grown {
    fn state(&self) -> MutexGuard<'_, GrownState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that have grown, as soon as there are some; `None` once there never will be.
    fn next(&self) -> Option<Vec<Arc<Durable>>> {
        let mut state = self.state();
        while state.files.is_empty() {
            if state.closed {
                return None;
            }
            state = self
                .more
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Some(state.files.drain().map(|(_, file)| file).collect())
    }

    /// Waits for the next round, or for the end.
    fn pause(&self) {
        let state = self.state();
        if !state.closed {
            let _state = self
                .more
                .wait_timeout_while(state, ROUND, |state| !state.closed);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.grown.state().closed = true;
        self.grown.more.notify_all();
    }
}

impl Writers {
    /// Starts them.
    pub fn start() -> io::Result<Self> {
        let (jobs, waiting) = sync_channel::<Job>(WAITING);
        let waiting = Arc::new(Mutex::new(waiting));
        let count = thread::available_parallelism().map_or(1, usize::from);
        for number in 0..count.min(MAX_THREADS) {
            let waiting = Arc::clone(&waiting);
            let thread = thread::Builder::new().name(format!("recording-{number}"));
            thread.spawn(move || work(&waiting, number == 0))?;
        }
        let grown = Arc::<Grown>::default();
        let all = Arc::clone(&grown);
        let thread = thread::Builder::new().name("recording-sync".to_owned());
        thread.spawn(move || {
            while let Some(files) = all.next() {
                files.iter().for_each(|file| file.write_through());
                drop(files);
                all.pause();
            }
        })?;
        Ok(Self(Arc::new(Inner {
            threads: Some(Threads { jobs, grown }),
            late: Late::default(),
        })))
    }

    /// None at all: everything is done where it is asked for, for tests whose time is not the machine's.
    pub fn none() -> Self {
        Self(Arc::new(Inner {
            threads: None,
            late: Late::default(),
        }))
    }

    /// Has something done soon; gives it back where too much waits already.
    pub fn submit(&self, job: Job) -> Result<(), Job> {
        let Some(threads) = &self.0.threads else {
            job();
            return Ok(());
        };
        threads.jobs.try_send(job).map_err(|refused| match refused {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
        })
    }

    /// Has what was written to a file written through.
    pub fn sync(&self, file: &Arc<Durable>) {
        let Some(threads) = &self.0.threads else {
            return file.write_through();
        };
        let mut state = threads.grown.state();
        state
            .files
            .entry(Arc::as_ptr(file) as usize)
            .or_insert_with(|| Arc::clone(file));
        drop(state);
        threads.grown.more.notify_one();
    }

    /// Something was not on the disk in time. Counted each time, and said now and then.
    pub fn late(&self, by: Duration) {
        metrics::recording_late();
        let late = &self.0.late;
        let times = late.times.fetch_add(1, Ordering::Relaxed) + 1;
        let mut said = late.said.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if said.is_none_or(|said| now.duration_since(said) >= WARNING) {
            *said = Some(now);
            let ms = by.as_millis();
            tracing::warn!(
                times,
                "a recording is {ms} ms behind on its way to the disk: who is killed now loses more than the last second \
                 of it"
            );
            late.times.store(0, Ordering::Relaxed);
        }
    }
}

/// Does one piece after the other until nobody can bring any more.
fn work(waiting: &Mutex<Receiver<Job>>, says: bool) {
    // Of this thread alone: that is what Linux takes it for.
    if let Err(error) = rustix::process::setpriority_process(None, PRIORITY)
        && says
    {
        tracing::debug!(%error, "recordings are written without priority (CAP_SYS_NICE or RLIMIT_NICE would give it)");
    }
    loop {
        let next = waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv();
        let Ok(job) = next else {
            return;
        };
        // Whoever waits for it is told by what it drops.
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!("a recording could not be written: a bug");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_piece_of_work_that_panics_costs_no_thread() {
        let writers = Writers::start().unwrap();
        for _ in 0..MAX_THREADS * 2 {
            assert!(writers.submit(Box::new(|| panic!("on purpose"))).is_ok());
        }
        let (tell, told) = channel();
        assert!(
            writers
                .submit(Box::new(move || tell.send(1).unwrap()))
                .is_ok()
        );
        assert_eq!(told.recv(), Ok(1));
    }

    #[test]
    fn more_work_than_may_wait_is_given_back() {
        let writers = Writers::start().unwrap();
        let (go, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let held = |gate: &Arc<Mutex<Receiver<()>>>| -> Job {
            let gate = Arc::clone(gate);
            Box::new(move || {
                let _ = gate.lock().unwrap().recv();
            })
        };
        let taken = (0..WAITING * 2).take_while(|_| writers.submit(held(&gate)).is_ok());
        assert!((WAITING..=WAITING + MAX_THREADS).contains(&taken.count()));
        drop(go);
    }

    #[test]
    fn a_file_that_grows_often_is_written_through_once_a_round() {
        let writers = Writers::start().unwrap();
        let file = Durable::new(tempfile::tempfile().unwrap());
        for _ in 0..1_000 {
            file.file().unwrap().write_all(b"x").unwrap();
            writers.sync(&file);
        }
        let waiting = writers
            .0
            .threads
            .as_ref()
            .unwrap()
            .grown
            .state()
            .files
            .len();
        assert!(waiting <= 1);
    }
}
