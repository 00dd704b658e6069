//! LiveKit's own server, as `./test` installs it: one that all tests of this process share, and others that a test configures,
//! kills and starts again.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use super::{PATIENCE, within};
use crate::rooms::{KEY, SECRET};

/// Runs a program until it ends, or its own standard input does: whoever starts this may be killed, and leaves nothing behind.
const ATTENDED: &str = r#"
exec 3<&0
"$0" "$@" 3<&- & program=$!
{ read -r _ <&3; kill -9 $program; } & attendant=$!
exec 3<&-
wait $program 2>/dev/null
kill $attendant 2>/dev/null
"#;
/// How often it is started with other ports when it ends at once.
const ATTEMPTS: usize = 5;

/// A LiveKit server on the loopback interface. Dropping it kills it.
pub struct LiveKit {
    /// `ws://host:port`.
    pub url: String,
    signal_port: u16,
    media_port: u16,
    process: Option<Child>,
}

impl LiveKit {
    /// One that does not run yet, for whoever must know its address before.
    pub fn prepared() -> Self {
        let [signal_port, media_port] = free_ports();
        Self {
            url: format!("ws://127.0.0.1:{signal_port}"),
            signal_port,
            media_port,
            process: None,
        }
    }

    /// A running one with these further settings, lines of YAML.
    pub fn started(settings: &str) -> Self {
        // Somebody may take its ports before it does.
        for _ in 0..ATTEMPTS {
            let mut livekit = Self::prepared();
            if livekit.attempt(settings) {
                return livekit;
            }
        }
        panic!("LiveKit's server does not start, see above");
    }

    /// The address of the one that all share, which runs until this process ends. Each test has rooms of names of its own.
    pub fn shared() -> &'static str {
        static SHARED: OnceLock<LiveKit> = OnceLock::new();
        // Outside of what others wait for: they shall say the same if it is missing.
        server();
        let settings = "room: {enable_remote_unmute: true}";
        &SHARED.get_or_init(|| Self::started(settings)).url
    }

    /// Starts it, for the first time or again.
    pub fn start(&mut self, settings: &str) {
        assert!(self.attempt(settings), "LiveKit's server does not start");
    }

    /// Kills it where it stands.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.stdin.take());
            let _ended = process.wait();
        }
    }

    fn attempt(&mut self, settings: &str) -> bool {
        let Self {
            signal_port,
            media_port,
            ..
        } = self;
        let config = format!(
            "port: {signal_port}\n\
             bind_addresses: [127.0.0.1]\n\
             rtc: {{udp_port: {media_port}, tcp_port: 0, use_external_ip: false, node_ip: 127.0.0.1, \
             interfaces: {{includes: [lo]}}, enable_loopback_candidate: true}}\n\
             keys: {{{KEY}: {SECRET}}}\n\
             logging: {{level: error, pion_level: error}}\n\
             {settings}\n"
        );
        let mut process = Command::new("sh")
            .args(["-c", ATTENDED])
            .arg(server())
            .args(["--config-body", &config])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let address = ("127.0.0.1", *signal_port);
        let listens = within(PATIENCE, "LiveKit's server does not listen", || {
            if process.try_wait().unwrap().is_some() {
                return Some(false);
            }
            TcpStream::connect(address).ok().map(|_| true)
        });
        self.process = Some(process);
        listens
    }
}

impl Drop for LiveKit {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A program of LiveKit's own in this folder of the clients.
pub fn installed(folder: &str, program: &str) -> PathBuf {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join(".clients");
    let file = clients.join(folder).join(program);
    assert!(
        file.is_file(),
        "this test needs {folder}, and {} is missing: ./test installs it, or ./test --long, of the version that \
         tests/clients/{folder}.txt names",
        file.display()
    );
    file
}

/// LiveKit's server.
fn server() -> PathBuf {
    installed("livekit-server", "server")
}

/// Ports of TCP and UDP that are free, below those that systems give to whoever asks for any, as other tests do.
pub fn free_ports<const N: usize>() -> [u16; N] {
    std::array::from_fn(|_| {
        let free = |port: &u16| {
            TcpListener::bind(("127.0.0.1", *port)).is_ok()
                && UdpSocket::bind(("127.0.0.1", *port)).is_ok()
        };
        let mut some = std::iter::repeat_with(|| fastrand::u16(10_000..32_000));
        some.find(free).unwrap()
    })
}
