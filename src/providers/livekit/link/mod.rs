//! A place in a room of a LiveKit deployment: signalling over a WebSocket, media through `str0m`. Written against the
//! protocol of LiveKit server 1.13.5 (protocol 16; `/rtc/v1`, and `/rtc` where a server does not know that), and tried
//! against the embedded server, which has both. Links run on threads of their own.
//!
//! Lost sound is asked for again where the server has a stream for that (RFC 4588), as the embedded one has on `/rtc/v1`.
//! LiveKit's own would repeat it in the same stream, which is not asked for: there it is concealed.
//!
//! Not had: TURN and TCP (a network that lets no UDP through), end-to-end encryption, video, text streams and RPC.

mod driver;
mod media;
mod pc;
mod request;
mod session;

use std::io;
use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Runtime;
use tokio::sync::{Notify, oneshot};

pub use driver::Server;
pub use session::Options;

use driver::Sockets;
use session::Session;
use vivavoce_seams::rooms::link::{Ending, RoomLink, pair};

/// More threads than these gain nothing: a link is one decrypted and one encrypted packet every 20 ms per track.
const MOST_THREADS: usize = 4;

/// The threads of links. Dropping it ends them.
#[derive(Debug)]
pub struct Links {
    runtime: Option<Runtime>,
}

impl Links {
    /// Starts the threads.
    pub fn start() -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(cores.min(MOST_THREADS))
            .thread_name("room-links")
            .enable_all()
            .build()?;
        Ok(Self {
            runtime: Some(runtime),
        })
    }

    /// Joins a room. The answer comes when it was joined, or will not be.
    pub async fn connect(&self, server: Server, options: Options) -> Result<RoomLink, Ending> {
        let woken = Arc::new(Notify::new());
        let wake = Arc::clone(&woken);
        let (link, end) = pair(&options.join, move |_| wake.notify_one());
        let (joined, answer) = oneshot::channel();
        let runtime = self.runtime.as_ref().ok_or_else(stopped)?;
        runtime.spawn(async move {
            let sockets = match Sockets::open() {
                Ok(sockets) => sockets,
                Err(error) => {
                    let why = format!("no socket for media: {error}");
                    let _ = joined.send(Err(Ending::Network(why)));
                    return;
                }
            };
            let session = Session::new(options, sockets.addresses(), end, Instant::now());
            Box::pin(driver::run(session, server, sockets, woken, joined)).await;
        });
        answer.await.map_err(|_| stopped())??;
        Ok(link)
    }
}

fn stopped() -> Ending {
    Ending::Network("the threads of room links have ended".to_owned())
}

impl Drop for Links {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
