//! Helper programs (flite, espeak-ng, lame) run as bounded child processes: with a deadline, a limit on their
//! output, the end of their standard error kept for the error message, and killed on drop. Text is passed as arguments
//! or on standard input, never through a shell. What a child may access is restricted by [`confinement`].

pub mod confinement;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use confinement::Bounds;

/// Bytes of standard error kept for the error message.
const STDERR_KEPT: usize = 2048;
/// The most that one [`RunningProgram::read`] returns.
const READ_CHUNK: usize = 16 * 1024;

/// The upper bound of every deadline, so that computing it cannot overflow the clock.
const LONGEST_RUN: Duration = Duration::from_hours(24);

/// A program that may be installed, and the Debian package that provides it.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// The name on the `PATH`.
    pub name: &'static str,
    /// The Debian package that provides it.
    pub package: &'static str,
}

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It is not installed.
    #[error("the program {name} is not installed; install the Debian package {package}")]
    Missing {
        /// The program.
        name: &'static str,
        /// The Debian package to install.
        package: &'static str,
    },
    /// It could not be started, written to or read from.
    #[error("{name}: {source}")]
    Io {
        /// The program.
        name: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// It exceeded its deadline and was killed.
    #[error("{name} did not finish within {} ms", limit.as_millis())]
    Timeout {
        /// The program.
        name: &'static str,
        /// The deadline.
        limit: Duration,
    },
    /// It exceeded its output limit and was killed.
    #[error("{name} printed more than {limit} bytes")]
    TooMuch {
        /// The program.
        name: &'static str,
        /// The limit, in bytes.
        limit: usize,
    },
    /// It exited with a failure.
    #[error("{name} failed ({status}){}{said}", if said.is_empty() { "" } else { ": " })]
    Failed {
        /// The program.
        name: &'static str,
        /// The exit status.
        status: std::process::ExitStatus,
        /// The last line of its standard error.
        said: String,
    },
}

/// The limits of a child.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Time from start to exit.
    pub time: Duration,
    /// Bytes of standard output.
    pub output: usize,
}

impl Program {
    /// Finds the program on the `PATH`.
    pub fn find(&self) -> Result<PathBuf, ProgramError> {
        self.find_in(&std::env::var_os("PATH").unwrap_or_default())
    }

    /// Finds the program in a search path written like `PATH`.
    pub fn find_in(&self, search_path: &OsStr) -> Result<PathBuf, ProgramError> {
        std::env::split_paths(search_path)
            .map(|folder| folder.join(self.name))
            .find(|file| is_executable(file))
            .ok_or(ProgramError::Missing {
                name: self.name,
                package: self.package,
            })
    }

    /// Starts the program. Standard input is a pipe: take it with [`RunningProgram::take_stdin`], otherwise it is
    /// closed at the first read.
    pub fn start<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
        limits: Limits,
    ) -> Result<RunningProgram, ProgramError> {
        self.start_file(&self.find()?, arguments, limits)
    }

    /// Like [`Program::start`], for an executable that was found before.
    pub fn start_file<A: AsRef<OsStr>>(
        &self,
        file: &Path,
        arguments: impl IntoIterator<Item = A>,
        limits: Limits,
    ) -> Result<RunningProgram, ProgramError> {
        let io = |source| ProgramError::Io {
            name: self.name,
            source,
        };
        let mut command = Command::new(file);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            // A process group of its own: Ctrl-C in the terminal is meant for the server, which then lets running
            // work finish.
            .process_group(0);
        // A child that computes all the time ends with its deadline.
        let bounds = Bounds {
            work: limits.time.min(LONGEST_RUN),
            memory: confinement::MEMORY,
            may_wait: false,
        };
        let mut child = confinement::spawn(&mut command, file, &[], bounds).map_err(io)?;
        let gone = || io(std::io::ErrorKind::BrokenPipe.into());
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().ok_or_else(gone)?;
        let stderr = child.stderr.take().ok_or_else(gone)?;
        Ok(RunningProgram {
            name: self.name,
            limits,
            deadline: Instant::now() + limits.time.min(LONGEST_RUN),
            printed: 0,
            stdin,
            stdout,
            last_words: tokio::spawn(keep_tail(stderr)),
            child,
        })
    }
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct RunningProgram {
    name: &'static str,
    limits: Limits,
    deadline: Instant,
    printed: usize,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    last_words: JoinHandle<String>,
    child: Child,
}

impl RunningProgram {
    /// The child's standard input; dropping it closes the pipe.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.stdin.take()
    }

    /// The next bytes of output; `None` after the child has exited successfully.
    pub async fn read(&mut self) -> Result<Option<Bytes>, ProgramError> {
        self.stdin = None;
        let mut chunk = BytesMut::with_capacity(READ_CHUNK);
        let read = timeout_at(self.deadline, self.stdout.read_buf(&mut chunk));
        let Ok(read) = read.await else {
            return Err(self.timed_out());
        };
        match read {
            Ok(0) => self.ended().await.map(|()| None),
            Ok(n) => {
                self.printed += n;
                if self.printed > self.limits.output {
                    return Err(ProgramError::TooMuch {
                        name: self.name,
                        limit: self.limits.output,
                    });
                }
                Ok(Some(chunk.freeze()))
            }
            Err(source) => Err(ProgramError::Io {
                name: self.name,
                source,
            }),
        }
    }

    /// All output until the child exits.
    pub async fn read_all(&mut self) -> Result<BytesMut, ProgramError> {
        let mut all = BytesMut::new();
        while let Some(chunk) = self.read().await? {
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }

    async fn ended(&mut self) -> Result<(), ProgramError> {
        let Ok(status) = timeout_at(self.deadline, self.child.wait()).await else {
            return Err(self.timed_out());
        };
        let status = status.map_err(|source| ProgramError::Io {
            name: self.name,
            source,
        })?;
        if status.success() {
            return Ok(());
        }
        // A grandchild may keep standard error open: do not wait for it beyond the deadline.
        let said = match timeout_at(self.deadline, &mut self.last_words).await {
            Ok(Ok(said)) => said,
            _ => String::new(),
        };
        Err(ProgramError::Failed {
            name: self.name,
            status,
            said,
        })
    }

    fn timed_out(&self) -> ProgramError {
        ProgramError::Timeout {
            name: self.name,
            limit: self.limits.time,
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.last_words.abort();
        // Kill everything the program has started, too. The pid cannot have been reused: the child has not been
        // waited for.
        if let Some(group) = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()))
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Reads standard error to its end, so that the child never blocks on it, and keeps the last line.
async fn keep_tail(mut stderr: ChildStderr) -> String {
    let mut tail = Vec::with_capacity(STDERR_KEPT);
    let mut chunk = [0; 1024];
    while let Ok(n @ 1..) = stderr.read(&mut chunk).await {
        tail.extend_from_slice(&chunk[..n]);
        let excess = tail.len().saturating_sub(STDERR_KEPT);
        tail.drain(..excess);
    }
    let text = String::from_utf8_lossy(&tail);
    text.trim().lines().last().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SH: Program = Program {
        name: "sh",
        package: "dash",
    };
    const LIMITS: Limits = Limits {
        time: Duration::from_secs(20),
        output: 1_000_000,
    };

    #[tokio::test]
    async fn a_program_that_hangs_is_ended_at_its_deadline() {
        let limits = Limits {
            time: Duration::from_millis(50),
            ..LIMITS
        };
        let mut hanging = SH
            .start(["-c", "echo hello; exec sleep 600"], limits)
            .unwrap();
        assert_eq!(hanging.read().await.unwrap().unwrap(), "hello\n");
        assert!(matches!(
            hanging.read().await,
            Err(ProgramError::Timeout { .. })
        ));
    }

    #[tokio::test]
    async fn what_a_program_has_started_ends_with_it() {
        let script = "sleep 600 & echo $!; wait";
        let mut running = SH.start(["-c", script], LIMITS).unwrap();
        let printed = running.read().await.unwrap().unwrap();
        let grandchild = String::from_utf8_lossy(&printed).trim().to_owned();
        let state = || std::fs::read_to_string(format!("/proc/{grandchild}/stat"));
        assert!(state().is_ok());
        drop(running);
        // Killed synchronously, but it stays visible until the kernel has reaped it.
        while state().is_ok_and(|state| !state.contains(") Z")) {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_program_that_prints_without_end_is_ended_at_its_limit() {
        let limits = Limits {
            output: 100_000,
            ..LIMITS
        };
        let mut endless = SH.start(["-c", "exec yes"], limits).unwrap();
        assert!(matches!(
            endless.read_all().await,
            Err(ProgramError::TooMuch { .. })
        ));
    }

    #[tokio::test]
    async fn the_last_words_of_a_failing_program_are_in_its_error() {
        let mut failing = SH
            .start(
                ["-c", "echo first >&2; echo 'no such voice' >&2; exit 3"],
                LIMITS,
            )
            .unwrap();
        let error = failing.read_all().await.unwrap_err().to_string();
        assert!(
            error.contains("no such voice") && error.contains('3'),
            "{error}"
        );
    }

    const BASH: Program = Program {
        name: "bash",
        package: "bash",
    };

    async fn said(script: &str) -> String {
        let mut running = BASH.start(["-c", script], LIMITS).unwrap();
        let said = running.read_all().await.unwrap();
        String::from_utf8_lossy(&said).into_owned()
    }

    #[tokio::test]
    async fn a_program_has_the_servers_priority_and_cannot_raise_it() {
        let own = crate::priority::of_this_thread();
        assert_eq!(said("nice").await.trim(), own.to_string());
        // Nobody goes before the server.
        let said = said("nice -n -1 nice 2>&1").await;
        assert!(
            !said.lines().any(|line| line == (own - 1).to_string()),
            "{said}"
        );
    }

    #[tokio::test]
    async fn a_program_is_given_nothing_of_our_environment() {
        // The parent's environment is not empty.
        assert!(std::env::vars_os().any(|(name, _)| name == "CARGO_MANIFEST_DIR"));
        let given = said("/usr/bin/env").await;
        let mut names: Vec<_> = given
            .lines()
            .filter_map(|line| line.split('=').next())
            .collect();
        // Variables that the shell itself sets.
        names.retain(|name| !["PWD", "SHLVL", "_", "OLDPWD"].contains(name));
        names.sort_unstable();
        let kept = ["ESPEAK_DATA_PATH", "LD_LIBRARY_PATH"];
        names.retain(|name| !kept.contains(name));
        let expected = [
            "LANG",
            "MIMALLOC_ARENA_EAGER_COMMIT",
            "OPENBLAS_NUM_THREADS",
            "PATH",
        ];
        assert_eq!(names, expected, "{given}");
    }

    #[tokio::test]
    async fn a_program_reaches_no_network_and_no_file_of_ours() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        std::fs::write(&secret, "mArKeR").unwrap();
        let script = format!(
            "cat '{0}'; echo x > '{1}/written'; ls '{1}'; exec 3<>/dev/tcp/127.0.0.1/{port}; echo x > /tmp/mArKeR",
            secret.display(),
            folder.path().display(),
        );
        let said = said(&format!("({script}) 2>/dev/null; echo over")).await;
        assert_eq!(said, "over\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let nobody = listener.accept().unwrap_err();
        assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
    }

    #[tokio::test]
    async fn a_program_has_no_privilege_no_file_and_no_more_of_the_machine_than_it_is_given() {
        let mut running = BASH.start(["-c", "echo ready; read"], LIMITS).unwrap();
        let _input = running.take_stdin();
        let mut ready = [0; 6];
        running.stdout.read_exact(&mut ready).await.unwrap();
        let of = |file: &str| {
            let path = format!("/proc/{}/{file}", running.child.id().unwrap());
            std::fs::read_to_string(path).unwrap()
        };
        let status = of("status");
        for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
            assert!(status.contains(line), "{status}");
        }
        let limits = of("limits");
        for (name, limit) in [
            ("Max core file size", 0),
            ("Max file size", 64 << 20),
            ("Max data size", 1 << 30),
            ("Max open files", 64),
            ("Max cpu time", 21),
        ] {
            let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
            let soft = line[name.len()..].split_whitespace().next().unwrap();
            assert_eq!(soft, limit.to_string(), "{line}");
        }
        let open = |pid: u32| -> std::collections::BTreeMap<String, std::path::PathBuf> {
            let files = std::fs::read_dir(format!("/proc/{pid}/fd"))
                .unwrap()
                .flatten();
            let known = |file: std::fs::DirEntry| {
                Some((
                    file.file_name().into_string().ok()?,
                    std::fs::read_link(file.path()).ok()?,
                ))
            };
            files.filter_map(known).collect()
        };
        // Descriptors inherited from whatever runs these tests are not ours.
        let theirs = open(std::os::unix::process::parent_id());
        let mut open = open(running.child.id().unwrap());
        open.retain(|number, file| theirs.get(number) != Some(file));
        let open: Vec<_> = open.into_keys().collect();
        assert_eq!(open, ["0", "1", "2"]);
    }

    #[tokio::test]
    async fn a_program_cannot_raise_its_own_bounds_or_take_more_memory() {
        // The child may run before its limits are set; our own programs wait for input that we send afterwards.
        let said = said("until [ \"$(ulimit -t)\" != unlimited ]; do :; done; ulimit -t unlimited 2>/dev/null && echo raised; dd if=/dev/zero of=/dev/null bs=1400M count=1 2>&1 || true").await;
        assert!(said.contains("memory exhausted"), "{said}");
        assert!(!said.contains("raised"), "{said}");
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let error = Program {
            name: "no-such-program",
            package: "some-package",
        }
        .find()
        .unwrap_err();
        assert!(error.to_string().contains("some-package"));
    }
}
