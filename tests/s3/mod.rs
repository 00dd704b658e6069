//! Recordings in S3, against servers that nobody here wrote: s3s-fs, which checks signatures and keeps objects in a
//! folder, and moto, which knows conditions under which s3s-fs is none. Between them and ours lies a wire that can be
//! cut, can stall, and can answer in the server's place.

pub mod sessions;
mod store;

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_util::task::AbortOnDropHandle;

use crate::harness::{PATIENCE, client, within};

pub const BUCKET: &str = "recordings-of-tests";
pub const ACCESS_KEY: &str = "AKIDOFTESTS";
pub const SECRET_KEY: &str = "a secret key";
const MIB: usize = 1 << 20;

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(".clients")
}

/// A program that says where it listens. Dropping it kills it.
struct Peer(Child);

impl Peer {
    /// Starts it and waits for the line with its address.
    fn start(mut command: Command) -> (Self, String) {
        // One of them says it on one of them, one on the other.
        let (reader, writer) = std::io::pipe().unwrap();
        command.stdout(writer.try_clone().unwrap()).stderr(writer);
        let child = command.stdin(Stdio::null()).spawn();
        let program = command.get_program().to_owned();
        let child = child
            .unwrap_or_else(|error| panic!("{}: {error}; ./test installs it", program.display()));
        // Its ends of the pipe would keep it open.
        drop(command);
        let mut lines = BufReader::new(reader).lines().map_while(Result::ok);
        let address = lines.find_map(|line| {
            let said = line.split_once("unning ")?.1;
            Some(said.split_once("http://")?.1.trim().to_owned())
        });
        std::thread::spawn(move || lines.for_each(drop));
        (Self(child), address.expect("it ended before it listened"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// s3s-fs with a bucket. It can die and come back at the same address.
pub struct S3sFs {
    runtime: Option<Runtime>,
    /// `host:port`.
    pub address: String,
    folder: TempDir,
}

impl S3sFs {
    /// One that is empty.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(BUCKET)).unwrap();
        let (runtime, address) = Self::serve(folder.path(), 0);
        Self {
            runtime: Some(runtime),
            address,
            folder,
        }
    }

    /// Serves a folder on a runtime of its own, whose end is that of all connections.
    fn serve(folder: &Path, port: u16) -> (Runtime, String) {
        let mut builder = S3ServiceBuilder::new(FileSystem::new(folder).unwrap());
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = builder.build();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let http = auto::Builder::new(TokioExecutor::new());
                    let _gone = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        (runtime, address)
    }

    fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    fn start_again(&mut self) {
        self.kill();
        let (_, port) = self.address.split_once(':').unwrap();
        let port = port.parse().unwrap();
        // The runtime before may not have let go of it yet.
        let free = || {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port));
            listener.is_ok().then_some(())
        };
        within(PATIENCE, "the port is still taken", free);
        self.runtime = Some(Self::serve(self.folder.path(), port).0);
    }

    /// The file in which it keeps an object.
    pub fn object(&self, key: &str) -> PathBuf {
        self.folder.path().join(BUCKET).join(key)
    }
}

impl Drop for S3sFs {
    /// A runtime must not be waited for where tests are asynchronous.
    fn drop(&mut self) {
        self.kill();
    }
}

/// moto with a bucket, which believes any credential.
struct Moto {
    _peer: Peer,
    address: String,
}

impl Moto {
    async fn with_bucket() -> Self {
        let mut command = Command::new(clients().join("python/bin/moto_server"));
        command.args(["-H", "127.0.0.1", "-p", "0"]);
        let (peer, address) = Peer::start(command);
        let made = client().put(format!("http://{address}/{BUCKET}"));
        assert!(made.send().await.unwrap().status().is_success());
        Self {
            _peer: peer,
            address,
        }
    }
}

/// What the wire does.
#[derive(Default)]
struct Faults {
    /// Bytes towards the server until it is cut; below 0 it is never.
    cut_after: AtomicI64,
    /// Whether it stalls instead of being cut.
    stalls: AtomicBool,
    /// So many connections are answered 503 SlowDown.
    slow_down: AtomicI64,
    /// The parts that were begun to be sent.
    parts: Mutex<Vec<u32>>,
}

/// A wire to the server.
struct Wire {
    address: String,
    faults: Arc<Faults>,
    _task: AbortOnDropHandle<()>,
}

impl Wire {
    async fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let faults = Arc::new(Faults::default());
        faults.cut_after.store(-1, SeqCst);
        let (server, behind) = (server.to_owned(), Arc::clone(&faults));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server.clone(), Arc::clone(&behind)));
            }
        });
        Self {
            address,
            faults,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Lets so many bytes pass, and then none.
    fn cut_after(&self, bytes: usize) {
        self.faults.cut_after.store(bytes as i64, SeqCst);
    }

    /// Lets everything pass, and counts parts anew.
    fn mend(&self) {
        self.faults.cut_after.store(-1, SeqCst);
        self.faults.parts.lock().unwrap().clear();
    }

    /// The numbers of the parts that were sent, each once.
    fn parts(&self) -> Vec<u32> {
        let mut parts = self.faults.parts.lock().unwrap().clone();
        parts.sort_unstable();
        parts.dedup();
        parts
    }
}

async fn carry(mut client: TcpStream, server: String, faults: Arc<Faults>) {
    if faults.slow_down.fetch_sub(1, SeqCst) > 0 {
        return slow_down(client).await;
    }
    let Ok(mut upstream) = TcpStream::connect(server).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = upstream.split();
    let up = async {
        let mut piece = vec![0; 65_536];
        while let Ok(read @ 1..) = from_client.read(&mut piece).await {
            let piece = &piece[..read];
            faults.parts.lock().unwrap().extend(part_number(piece));
            let left = faults.cut_after.load(SeqCst);
            if left >= 0 {
                if left < read as i64 {
                    if faults.stalls.load(SeqCst) {
                        std::future::pending::<()>().await;
                    }
                    return;
                }
                faults.cut_after.fetch_sub(read as i64, SeqCst);
            }
            if to_server.write_all(piece).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = up => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
}

/// Which part a request brings, if it does: a request begins with a write of its own.
fn part_number(piece: &[u8]) -> Option<u32> {
    let line = piece
        .strip_prefix(b"PUT ")?
        .split(|&byte| byte == b'\r')
        .next()?;
    let query = std::str::from_utf8(line).ok()?.split_once("partNumber=")?.1;
    let digits = query.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

async fn slow_down(mut client: TcpStream) {
    let body = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
    let mut head = vec![0; 4096];
    let _ = client.read(&mut head).await;
    let answer = format!(
        "HTTP/1.1 503 Slow Down\r\nretry-after: 7\r\nconnection: close\r\ncontent-type: application/xml\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let _ = client.write_all(answer.as_bytes()).await;
    // Whatever else comes is read, so that the answer is not lost to a reset.
    let _ = tokio::time::timeout(Duration::from_secs(5), async {
        let mut rest = vec![0; 4096];
        while client.read(&mut rest).await.is_ok_and(|read| read > 0) {}
    })
    .await;
}
