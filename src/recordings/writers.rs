//! The threads that write recordings: they encode the sessions' audio and append it to the journals. What people hear now
//! comes first: the threads have a lower priority than the sessions' own, as a recording may wait. What has waited for long
//! is written with a higher one, so that audio reaches the disk even while the machine is busy. Where the system does not allow
//! that, the threads keep the priority of the others: it could not be taken back. A separate thread syncs all files that have
//! grown, so that no recording waits for another's `fsync`.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use vivavoce_core::{busyness, priority};
use vivavoce_telemetry::metrics;

/// Capacity of the job queue: each recording has at most one job in it.
const WAITING: usize = 4096;
/// The most threads, of which each encodes for some hundreds of recordings.
const MAX_THREADS: usize = 16;
/// By how much less nice than those of sessions the threads are while they write what has waited for long.
const RAISED_BY: i32 = 10;
/// What has waited for this long goes first, and is done quickly: so it is written before it is [`LATE`].
const GOES_FIRST: Duration = Duration::from_millis(250);
/// The interval between two rounds of syncing.
const ROUND: Duration = Duration::from_millis(500);
/// Audio that is not on disk by then is late: half of what may be lost when the process is killed.
pub const LATE: Duration = Duration::from_millis(500);
/// The minimum interval between two warnings about that.
const WARNING: Duration = Duration::from_secs(10);

/// A job for a writer thread.
pub struct Job {
    /// What is done. It is told whether that should be quickly rather than well.
    pub work: Box<dyn FnOnce(bool) + Send>,
    /// Since when what it writes has waited.
    pub since: Instant,
}

/// The writer threads. Clones share them; they end with the last clone.
#[derive(Debug, Clone)]
pub struct Writers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// `None` if jobs run on the caller's thread.
    threads: Option<Threads>,
    late: Late,
}

#[derive(Debug)]
struct Threads {
    jobs: SyncSender<Job>,
    dirty: Arc<DirtyFiles>,
}

/// How often recordings were late, and when that was last logged.
#[derive(Debug, Default)]
struct Late {
    times: AtomicU64,
    said: Mutex<Option<Instant>>,
}

/// A file that is synced to disk in the background.
#[derive(Debug)]
pub struct Durable {
    file: File,
    /// Why syncing failed, if it did.
    failed: OnceLock<String>,
}

impl Durable {
    /// Wraps a file.
    pub fn new(file: File) -> Arc<Self> {
        Arc::new(Self {
            file,
            failed: OnceLock::new(),
        })
    }

    /// The file. After a failed sync it fails for good, because its content on disk is unknown.
    pub fn file(&self) -> io::Result<&File> {
        match self.failed.get() {
            Some(problem) => Err(io::Error::other(problem.clone())),
            None => Ok(&self.file),
        }
    }

    fn write_through(&self) {
        if let Err(error) = self.file.sync_data() {
            // Only the first failure counts.
            let _ = self.failed.set(error.to_string());
        }
    }
}

/// Files that have grown since they were last synced.
#[derive(Debug, Default)]
struct DirtyFiles {
    state: Mutex<DirtyState>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct DirtyState {
    /// By address, so that each file is listed once however often it has grown.
    files: HashMap<usize, Arc<Durable>>,
    closed: bool,
}

impl DirtyFiles {
    fn state(&self) -> MutexGuard<'_, DirtyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The files that have grown, as soon as there are any; `None` once there never will be.
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
        self.dirty.state().closed = true;
        self.dirty.more.notify_all();
    }
}

impl Writers {
    /// Starts the threads.
    pub fn start() -> io::Result<Self> {
        let (jobs, waiting) = sync_channel::<Job>(WAITING);
        let waiting = Arc::new(Mutex::new(waiting));
        let count = thread::available_parallelism().map_or(1, usize::from);
        for number in 0..count.min(MAX_THREADS) {
            let waiting = Arc::clone(&waiting);
            let thread = thread::Builder::new().name(format!("recording-{number}"));
            thread.spawn(move || work(&waiting, number == 0))?;
        }
        let dirty = Arc::<DirtyFiles>::default();
        let all = Arc::clone(&dirty);
        let thread = thread::Builder::new().name("recording-sync".to_owned());
        thread.spawn(move || {
            while let Some(files) = all.next() {
                files.iter().for_each(|file| file.write_through());
                drop(files);
                all.pause();
            }
        })?;
        Ok(Self(Arc::new(Inner {
            threads: Some(Threads { jobs, dirty }),
            late: Late::default(),
        })))
    }

    /// No threads: jobs run on the caller's thread, for tests with virtual time.
    pub fn none() -> Self {
        Self(Arc::new(Inner {
            threads: None,
            late: Late::default(),
        }))
    }

    /// Queues a job; returns it if the queue is full.
    pub fn submit(&self, job: Job) -> Result<(), Job> {
        let Some(threads) = &self.0.threads else {
            (job.work)(false);
            return Ok(());
        };
        threads.jobs.try_send(job).map_err(|refused| match refused {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
        })
    }

    /// Schedules a sync of what was written to a file.
    pub fn sync(&self, file: &Arc<Durable>) {
        let Some(threads) = &self.0.threads else {
            return file.write_through();
        };
        let mut state = threads.dirty.state();
        state
            .files
            .entry(Arc::as_ptr(file) as usize)
            .or_insert_with(|| Arc::clone(file));
        drop(state);
        threads.dirty.more.notify_one();
    }

    /// Reports that audio was late. Counted each time, logged at intervals.
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
                "writing a recording to disk is {ms} ms behind: if the process is killed now, more than the last second is lost"
            );
            late.times.store(0, Ordering::Relaxed);
        }
    }
}

/// Runs jobs until no more can arrive.
fn work(waiting: &Mutex<Receiver<Job>>, logs: bool) {
    let mut priority = Priority::of_this_thread(logs);
    loop {
        let next = waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv();
        let Ok(job) = next else {
            return;
        };
        // By now, not by when it was handed over: it may have waited here.
        let goes_first = job.since.elapsed() > GOES_FIRST;
        priority.raise(goes_first);
        let quickly = busyness::is_busy() || goes_first;
        // A panic is noticed by whoever waits for what the job drops.
        if catch_unwind(AssertUnwindSafe(|| (job.work)(quickly))).is_err() {
            tracing::error!("writing a recording panicked; this is a bug");
        }
    }
}

/// The priority of a thread.
struct Priority {
    /// The `nice` value of the threads of sessions.
    others: i32,
    is_raised: bool,
    /// Whether it may be raised.
    may_change: bool,
}

impl Priority {
    /// Lowers it, if it may be raised again.
    fn of_this_thread(logs: bool) -> Self {
        let others = priority::of_this_thread();
        let may_change = match priority::set(others - RAISED_BY) {
            Ok(()) => priority::set(others + priority::MAY_WAIT).is_ok(),
            Err(error) => {
                if logs {
                    tracing::debug!(%error, "recordings have the priority of sessions (CAP_SYS_NICE or RLIMIT_NICE would let them wait, and go first when they are late)");
                }
                false
            }
        };
        Self {
            others,
            is_raised: false,
            may_change,
        }
    }

    fn raise(&mut self, raised: bool) {
        if !self.may_change || self.is_raised == raised {
            return;
        }
        let nice = if raised {
            self.others - RAISED_BY
        } else {
            self.others + priority::MAY_WAIT
        };
        if priority::set(nice).is_ok() {
            self.is_raised = raised;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc::channel;

    use super::*;

    fn job(work: impl FnOnce() + Send + 'static) -> Job {
        Job {
            work: Box::new(|_| work()),
            since: Instant::now(),
        }
    }

    /// What a job that has waited since then is told, and the priority of its thread.
    fn of_a_job(writers: &Writers, since: Instant) -> (bool, i32) {
        let (tell, told) = channel();
        let job = Job {
            work: Box::new(move |quickly| {
                tell.send((quickly, priority::of_this_thread())).unwrap();
            }),
            since,
        };
        assert!(writers.submit(job).is_ok());
        told.recv().unwrap()
    }

    #[test]
    fn what_has_waited_for_long_goes_before_sessions_and_what_has_not_after_them() {
        let writers = Writers::start().unwrap();
        let others = priority::of_this_thread();
        let raised = thread::spawn(move || priority::set(others - RAISED_BY).is_ok());
        let (first, behind) = if raised.join().unwrap() {
            (others - RAISED_BY, others + priority::MAY_WAIT)
        } else {
            (others, others)
        };
        for _ in 0..3 {
            let now = Instant::now();
            let long_ago = now.checked_sub(2 * GOES_FIRST).unwrap();
            assert_eq!(of_a_job(&writers, long_ago), (true, first));
            // However long this test itself is kept waiting. Whether the thread is busy depends on the machine, too.
            let never = now + Duration::from_hours(1);
            assert_eq!(of_a_job(&writers, never).1, behind);
        }
    }

    #[test]
    fn a_piece_of_work_that_panics_costs_no_thread() {
        let writers = Writers::start().unwrap();
        for _ in 0..MAX_THREADS * 2 {
            assert!(writers.submit(job(|| panic!("on purpose"))).is_ok());
        }
        let (tell, told) = channel();
        assert!(writers.submit(job(move || tell.send(1).unwrap())).is_ok());
        assert_eq!(told.recv(), Ok(1));
    }

    #[test]
    fn more_work_than_may_wait_is_given_back() {
        let writers = Writers::start().unwrap();
        let (go, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let held = |gate: &Arc<Mutex<Receiver<()>>>| -> Job {
            let gate = Arc::clone(gate);
            job(move || {
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
            .dirty
            .state()
            .files
            .len();
        assert!(waiting <= 1);
    }
}
