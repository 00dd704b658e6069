//! A TCP proxy between clients and a server's signalling: it cuts or stalls connections as a network would, and reports the
//! requested paths. Media bypasses it.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::harness::Server;

/// See the module. Dropping it cuts everything and takes no more connections.
pub struct Proxy {
    /// `ws://host:port`.
    pub url: String,
    asked: Arc<Mutex<Vec<String>>>,
    cuts: watch::Sender<u64>,
    hole: watch::Sender<bool>,
    down: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// In front of a server.
    pub async fn before(server: &Server) -> Self {
        Self::to(&server.url).await
    }

    /// In front of what is at this address.
    pub async fn to(url: &str) -> Self {
        let target = url.split_once("://").unwrap().1.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let cuts = watch::Sender::new(0);
        let hole = watch::Sender::new(false);
        let (paths, cut, swallows) = (Arc::clone(&asked), cuts.subscribe(), hole.subscribe());
        let down = Arc::new(AtomicBool::new(false));
        let refuses = Arc::clone(&down);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if refuses.load(SeqCst) {
                    continue;
                }
                let (target, paths) = (target.clone(), Arc::clone(&paths));
                let (cut, swallows) = (cut.clone(), swallows.clone());
                tokio::spawn(relay(client, target, paths, cut, swallows));
            }
        });
        Self {
            url,
            asked,
            cuts,
            hole,
            down,
            task,
        }
    }

    /// Ends all connections that there are, without a goodbye of either side's.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Whether it ends every connection, those that there are and those to come.
    pub fn down(&self, down: bool) {
        self.down.store(down, SeqCst);
        if down {
            self.cut();
        }
    }

    /// Whether nothing comes through, of either side's, and nobody is told: what is sent waits, as where packets are lost.
    pub fn black_hole(&self, hole: bool) {
        self.hole.send_replace(hole);
    }

    /// The paths of the requests so far, without their queries.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

async fn relay(
    mut client: TcpStream,
    target: String,
    asked: Arc<Mutex<Vec<String>>>,
    mut cut: watch::Receiver<u64>,
    mut hole: watch::Receiver<bool>,
) {
    cut.mark_unchanged();
    if hole.wait_for(|hole| !hole).await.is_err() {
        return;
    }
    let Ok(mut server) = TcpStream::connect(target).await else {
        return;
    };
    let mut head = Vec::new();
    while !head.contains(&b'\n') {
        if !matches!(client.read_buf(&mut head).await, Ok(1..)) {
            return;
        }
    }
    let line = String::from_utf8_lossy(&head);
    let path = line.split([' ', '?']).nth(1).unwrap_or_default().to_owned();
    asked.lock().unwrap().push(path);
    if server.write_all(&head).await.is_err() {
        return;
    }
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::select! {
        () = carry(from_client, to_server, hole.clone()) => {}
        () = carry(from_server, to_client, hole) => {}
        _ = cut.changed() => {}
    }
}

/// One direction, until either end is gone.
async fn carry(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, mut hole: watch::Receiver<bool>) {
    let mut piece = vec![0; 16_384];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        let open = hole.wait_for(|hole| !hole).await.is_ok();
        if !open || to.write_all(&piece[..read]).await.is_err() {
            return;
        }
    }
}
