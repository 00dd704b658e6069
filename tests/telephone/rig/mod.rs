//! Third-party phones on loopback: SIPp, baresip, Linphone, Twinkle, Kamailio and LiveKit's SIP service, each on its own
//! ports and ended by its process id, and tones between them. They do not depend on our server, so they can be tested
//! against each other.

pub mod baresip;
pub mod kamailio;
pub mod linphone;
pub mod livekit_sip;
pub mod sipp;
pub mod softphone;
pub mod tone;
pub mod twinkle;

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::harness::{eventually, which};

/// How long a telephone may take for anything.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Where the next block of ports begins. Below the ports that systems hand out by themselves; another run of the tests
/// on this machine begins elsewhere.
static NEXT: LazyLock<AtomicU16> =
    LazyLock::new(|| AtomicU16::new(10_000 + (std::process::id() % 97) as u16 * 200));
const LAST: u16 = 32_000;

/// The first of so many neighbouring ports, the first one even, that nobody else of this process gets.
pub fn ports(count: u16) -> u16 {
    loop {
        let even = count.next_multiple_of(2);
        let first = NEXT.fetch_add(even, Ordering::Relaxed);
        if first > LAST {
            NEXT.store(10_000, Ordering::Relaxed);
        } else if (first..first + count).all(free) {
            return first;
        }
    }
}

fn free(port: u16) -> bool {
    let address = (Ipv4Addr::UNSPECIFIED, port);
    UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok()
}

/// How the kernel's table of TCP sockets writes that one listens.
const LISTENS: &str = "0A";

/// Waits until somebody listens at this port. Looks instead of trying, which would take the port away. Connections that
/// rest at the port of a server that has ended are not one that listens.
pub async fn listened(table: &str, port: u16) {
    let wanted = format!(":{port:04X}");
    let listening = || {
        let [four, six] = ["", "6"].map(|version| {
            std::fs::read_to_string(format!("/proc/net/{table}{version}")).unwrap_or_default()
        });
        let sockets = four + &six;
        sockets.lines().any(|line| {
            let mut columns = line.split_whitespace().skip(1);
            let local = columns.next().is_some_and(|local| local.ends_with(&wanted));
            local && (table != "tcp" || columns.nth(1) == Some(LISTENS))
        })
    };
    eventually(&format!("nobody listens at {table} port {port}"), listening).await;
}

/// Writes a certificate for 127.0.0.1 into a folder: with its key in one file, as baresip takes it, and alone, for those
/// who shall believe it.
pub fn certificates(folder: &Path) -> (PathBuf, PathBuf) {
    certificates_for(folder, "127.0.0.1")
}

/// The same for any name of this machine.
pub fn certificates_for(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let pair = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let [both, alone, key] =
        ["both.pem", "certificate.pem", "key.pem"].map(|name| folder.join(name));
    let (certificate, secret) = (pair.cert.pem(), pair.signing_key.serialize_pem());
    std::fs::write(&both, format!("{secret}{certificate}")).unwrap();
    std::fs::write(&alone, certificate).unwrap();
    std::fs::write(key, secret).unwrap();
    (both, alone)
}

/// A program with a folder of its own. Dropping it ends it and its children, and shows what it wrote if the test fails.
pub struct Program {
    name: &'static str,
    child: Child,
    folder: tempfile::TempDir,
    ended: Option<ExitStatus>,
}

impl Program {
    /// Starts an installed program in a folder.
    pub fn start(
        name: &'static str,
        folder: tempfile::TempDir,
        arguments: impl FnOnce(&mut Command),
    ) -> Self {
        Self::run(name, &which(name), folder, Stdio::null(), arguments)
    }

    /// The same of one that is not where programs are.
    pub fn start_at(
        name: &'static str,
        program: &Path,
        folder: tempfile::TempDir,
        arguments: impl FnOnce(&mut Command),
    ) -> Self {
        Self::run(name, program, folder, Stdio::null(), arguments)
    }

    /// The same with what is typed for it.
    pub fn typed_to(
        name: &'static str,
        folder: tempfile::TempDir,
        arguments: impl FnOnce(&mut Command),
    ) -> (Self, ChildStdin) {
        let mut program = Self::run(name, &which(name), folder, Stdio::piped(), arguments);
        let typed = program.child.stdin.take().unwrap();
        (program, typed)
    }

    fn run(
        name: &'static str,
        program: &Path,
        folder: tempfile::TempDir,
        typed: Stdio,
        arguments: impl FnOnce(&mut Command),
    ) -> Self {
        let log = File::create(folder.path().join("output")).unwrap();
        let mut command = Command::new(program);
        arguments(&mut command);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command
            .current_dir(folder.path())
            .stdin(typed)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let ended = None;
        Self {
            name,
            child,
            folder,
            ended,
        }
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A file in its folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What is in a file in its folder; nothing if there is none.
    pub fn text(&self, name: &str) -> String {
        let bytes = std::fs::read(self.file(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> ExitStatus {
        let what = format!("{} did not end", self.name);
        if self.ended.is_none() {
            let (child, ended) = (&mut self.child, &mut self.ended);
            eventually(&what, || {
                *ended = child.try_wait().unwrap();
                ended.is_some()
            })
            .await;
        }
        self.ended.unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.ended.is_none() && self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            for name in ["output", "errors", "messages"] {
                // baresip's meter is no news.
                let text = self.text(name);
                let lines = text.split(['\n', '\r']);
                let lines: Vec<_> = lines
                    .filter(|line| !line.contains("(bit/s)") && !line.trim().is_empty())
                    .collect();
                let tail = lines.len().saturating_sub(150);
                eprintln!("-- {} {name}:\n{}", self.name, lines[tail..].join("\n"));
            }
        }
    }
}
