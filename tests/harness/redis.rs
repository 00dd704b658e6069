//! Debian's Redis, which keeps nothing when it ends.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use super::{PATIENCE, which, within};

/// A running Redis. Dropping it kills it.
pub struct Redis {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Redis {
    /// One with these arguments, of which the first two are a port: `--port` or `--tls-port`.
    pub fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let child = Command::new(which("redis-server"))
            .args(["--save", "", "--bind", "127.0.0.1"])
            .args(arguments)
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let redis = Self {
            child,
            _folder: folder,
        };
        let port: u16 = arguments[1].parse().unwrap();
        within(PATIENCE, "Redis does not listen", || {
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        redis
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
