//! What a service manager is told of the server's state (`Type=notify`).

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::*;

/// In the place of systemd: it listens at `NOTIFY_SOCKET`.
struct Manager {
    socket: UnixDatagram,
    folder: tempfile::TempDir,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, folder }
    }

    fn path(&self) -> String {
        self.folder.path().join("notify").display().to_string()
    }

    /// The next message, as its lines.
    fn told(&self) -> Vec<String> {
        let mut message = [0; 1024];
        let length = self.socket.recv(&mut message).unwrap();
        let message = std::str::from_utf8(&message[..length]).unwrap();
        message.lines().map(str::to_owned).collect()
    }

    /// All that it has been told and has not looked at.
    fn told_meanwhile(&self) -> Vec<Vec<String>> {
        self.socket.set_nonblocking(true).unwrap();
        let next = || {
            let mut message = [0; 1024];
            match self.socket.recv(&mut message) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                length => Some(String::from_utf8_lossy(&message[..length.unwrap()]).into_owned()),
            }
        };
        let told = std::iter::from_fn(next);
        told.map(|text| text.lines().map(str::to_owned).collect())
            .collect()
    }
}

fn has(lines: &[String], wanted: &str) -> bool {
    lines.iter().any(|line| line == wanted)
}

#[test]
fn a_service_manager_is_told_when_the_server_serves_reloads_and_stops() {
    let manager = Manager::new();
    let mut server = Server::start_with(&[("NOTIFY_SOCKET", &manager.path())]);
    let main = format!("MAINPID={}", server.pid());
    let serves = manager.told();
    assert!(has(&serves, "READY=1") && has(&serves, &main), "{serves:?}");
    let pid = Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    let reloads = manager.told();
    let dated = reloads
        .iter()
        .any(|line| line.starts_with("MONOTONIC_USEC="));
    assert!(has(&reloads, "RELOADING=1") && dated, "{reloads:?}");
    let reloaded = manager.told();
    assert!(has(&reloaded, "READY=1"), "{reloaded:?}");
    assert!(!has(&reloaded, &main), "{reloaded:?}");
    server.terminate();
    let stops = manager.told();
    // The drain of 30 s, and what comes after it.
    let longer = stops.iter().any(|line| {
        let microseconds = line.strip_prefix("EXTEND_TIMEOUT_USEC=");
        microseconds.is_some_and(|text| text.parse::<u64>().unwrap() > 30_000_000)
    });
    assert!(has(&stops, "STOPPING=1") && longer, "{stops:?}");
    assert!(server.ended().success());
}

#[test]
fn a_server_that_takes_over_is_the_main_process_and_the_former_one_does_not_say_that_the_service_stops()
 {
    let manager = Manager::new();
    let socket = manager.path();
    let environment = [("NOTIFY_SOCKET", socket.as_str())];
    let mut former = Server::start_with(&environment);
    assert!(has(&manager.told(), "READY=1"));
    let next = former.replaced(&environment);
    assert!(former.ended().success());
    let told = manager.told_meanwhile();
    let main = format!("MAINPID={}", next.pid());
    assert!(told.iter().any(|lines| has(lines, &main)), "{told:?}");
    assert!(
        !told.iter().any(|lines| has(lines, "STOPPING=1")),
        "{told:?}"
    );
}
