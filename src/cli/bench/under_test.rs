//! The server under test: a process of its own on a core of its own, and its resource usage.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tempfile::TempDir;

/// A server of ours. Dropping it kills it.
#[derive(Debug)]
pub(super) struct UnderTest {
    child: Child,
    /// `host:port`.
    pub(super) address: String,
    /// Its working folder, empty when it starts: no settings file of the caller's.
    _folder: TempDir,
}

impl UnderTest {
    /// Starts this program with these arguments and waits until it says where it listens.
    pub(super) fn start(arguments: &[String]) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            // Its rooms do not ask for the port of those of another server.
            .env("RTC_UDP_PORT", "0")
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Ctrl-C is for the measurement, which ends its server itself.
            .process_group(0)
            .spawn()?;
        let printed = child.stdout.take().map(BufReader::new);
        let mut lines = printed.into_iter().flat_map(BufRead::lines);
        let address = lines.find_map(|line| {
            let line = line.ok()?;
            let (_, address) = line.split_once("listens on http://")?;
            Some(address.to_owned())
        });
        // What else it prints must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let server = Self {
            child,
            address: address.unwrap_or_default(),
            _folder: folder,
        };
        if server.address.is_empty() {
            let message = "the server under test ended before it said where it listens";
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, message));
        }
        Ok(server)
    }

    /// What it has used so far.
    pub(super) fn usage(&self) -> io::Result<Usage> {
        Usage::of(Pid::from_child(&self.child))
    }

    /// Files and sockets that it has open.
    pub(super) fn open_files(&self) -> io::Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count())
    }

    /// How long its threads of this name were on a core so far, or all of them.
    pub(super) fn thread_cpu(&self, name: Option<&str>) -> io::Result<Duration> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id()))?.flatten();
        let times = threads.filter_map(|thread| {
            let read = |file| std::fs::read_to_string(thread.path().join(file)).ok();
            let named = read("comm")?;
            let counts = name.is_none_or(|name| named.trim_end() == name);
            // Running, waiting and slices, in nanoseconds. A thread may end while we look.
            let schedule = read("schedstat").filter(|_| counts)?;
            schedule.split_whitespace().next()?.parse().ok()
        });
        let nanoseconds: Vec<u64> = times.collect();
        if nanoseconds.is_empty() {
            let message = format!(
                "the server under test has no thread {}",
                name.unwrap_or("at all")
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        Ok(Duration::from_nanos(nanoseconds.iter().sum()))
    }
}

impl Drop for UnderTest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    /// Time on any core, its own and the system's for it.
    pub(super) cpu: Duration,
    /// Time that its threads wanted a core and had to wait for one: what others took, or too few cores.
    pub(super) waited: Duration,
    /// Memory that it holds now and that is its own. What it maps of its program is not: that comes when it is first used, once
    /// for all sessions, and would count as theirs.
    pub(super) own_bytes: u64,
}

impl Usage {
    /// Of a process that runs.
    pub(super) fn of(process: Pid) -> io::Result<Self> {
        let folder = format!("/proc/{}", process.as_raw_nonzero());
        let stat = std::fs::read_to_string(format!("{folder}/stat"))?;
        let statm = std::fs::read_to_string(format!("{folder}/statm"))?;
        let usage = Self::parse(
            &stat,
            &statm,
            rustix::param::clock_ticks_per_second(),
            rustix::param::page_size() as u64,
        );
        let usage = usage.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, stat))?;
        let threads = std::fs::read_dir(format!("{folder}/task"))?.flatten();
        let waited = threads.filter_map(|thread| {
            // Running, waiting and slices, in nanoseconds. A thread may end while we look.
            let schedule = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            schedule.split_whitespace().nth(1)?.parse().ok()
        });
        Ok(Self {
            waited: waited.map(Duration::from_nanos).sum(),
            ..usage
        })
    }

    /// From a line of `/proc/<pid>/stat` (proc_pid_stat(5)): utime and stime are its fields 14 and 15; and one of
    /// `/proc/<pid>/statm` (proc_pid_statm(5)): resident pages, and those of them that are shared, are its fields 2 and 3.
    fn parse(stat: &str, statm: &str, ticks_per_second: u64, page_bytes: u64) -> Option<Self> {
        // The second field is a name that may hold anything; field 3 follows its last parenthesis.
        let (_, from_third) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = from_third.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = field(14)? + field(15)?;
        let mut pages = statm.split_whitespace().skip(1).map(str::parse::<u64>);
        let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
        Some(Self {
            cpu: Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64),
            waited: Duration::ZERO,
            own_bytes: resident.saturating_sub(shared) * page_bytes,
        })
    }
}

/// Which cores the server and the load have, so that neither takes the other's.
#[derive(Debug)]
pub(super) struct Cores {
    server: CpuSet,
    load: CpuSet,
    /// How many are the load's.
    pub(super) for_load: usize,
}

impl Cores {
    /// The first core that we may use for the server, the others for this thread and those that it starts from now on;
    /// `None` where there is only one.
    pub(super) fn divide() -> io::Result<Option<Self>> {
        let ours = sched_getaffinity(None)?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| ours.is_set(core));
        let (mut server, mut load) = (CpuSet::new(), CpuSet::new());
        cores.by_ref().take(1).for_each(|core| server.set(core));
        cores.for_each(|core| load.set(core));
        let for_load = load.count() as usize;
        if for_load == 0 {
            return Ok(None);
        }
        sched_setaffinity(None, &load)?;
        Ok(Some(Self {
            server,
            load,
            for_load,
        }))
    }

    /// Starts something on the server's core: a child stays where its parent was.
    pub(super) fn on_server_core<T>(&self, start: impl FnOnce() -> T) -> io::Result<T> {
        sched_setaffinity(None, &self.server)?;
        let started = start();
        sched_setaffinity(None, &self.load)?;
        Ok(started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_behind_a_name_that_holds_anything() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 4 0 100 9999 300 18446744073709551615";
        let statm = "9999 500 200 100 0 1000 0";
        let usage = Usage::parse(stat, statm, 100, 4096).unwrap();
        assert_eq!(usage.cpu, Duration::from_secs(3));
        assert_eq!(usage.own_bytes, 300 * 4096);
        assert_eq!(Usage::parse("42 (a) S 1", statm, 100, 4096), None);
        assert_eq!(Usage::parse(stat, "9999 500", 100, 4096), None);
    }

    #[test]
    fn a_process_that_works_uses_time_and_memory() {
        let me = rustix::process::getpid();
        let before = Usage::of(me).unwrap();
        while Usage::of(me).unwrap().cpu == before.cpu {}
        assert!(before.own_bytes > 100_000);
    }
}
