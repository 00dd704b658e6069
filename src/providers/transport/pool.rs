//! Idle sockets, kept for reuse so that the next utterance need not connect first. A task per socket answers pings, notices
//! when the vendor closes it, and hands it over on request.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::Outgoing;
use super::websocket::{Received, Socket, receive};

/// The capacity of a vendor's pool; the least recently used socket is evicted first.
pub(super) const MOST: usize = 64;

/// Utterances with the same key may use the same socket: same URL with its parameters, same credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The URL of the handshake with its parameters.
    pub url: String,
    /// The fingerprint of the credential.
    pub credential: [u8; 32],
}

/// How long a vendor keeps an idle socket open.
#[derive(Debug, Clone, Copy)]
pub struct Idle {
    /// An idle socket is closed after this time.
    pub longest: Duration,
    /// The keep-alive message and its interval.
    pub keep_alive: Option<(Duration, &'static str)>,
    /// The maximum age at which a socket is reused.
    pub oldest: Duration,
}

/// The idle sockets of one vendor.
#[derive(Default)]
pub struct Pool {
    kept: Mutex<VecDeque<Kept>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

struct Kept {
    key: Key,
    /// Requests the socket from its task; closed when the task has ended.
    ask: oneshot::Sender<oneshot::Sender<Socket>>,
}

impl Pool {
    /// Takes the most recently used socket of this key.
    pub async fn take(&self, key: &Key) -> Option<Socket> {
        loop {
            let kept = {
                let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                let index = kept.iter().rposition(|kept| kept.key == *key)?;
                kept.remove(index)?
            };
            let (give, socket) = oneshot::channel();
            if kept.ask.send(give).is_ok()
                && let Ok(socket) = socket.await
            {
                return Some(socket);
            }
        }
    }

    /// Keeps a socket for reuse.
    pub fn put(&self, key: Key, socket: Socket, idle: Idle) {
        let now = Instant::now();
        let until = (now + idle.longest).min(socket.opened + idle.oldest);
        if until <= now {
            return;
        }
        let (ask, asked) = oneshot::channel();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|kept| !kept.ask.is_closed());
        if kept.len() >= MOST {
            kept.pop_front();
        }
        kept.push_back(Kept { key, ask });
        drop(kept);
        tokio::spawn(keep(socket, asked, until, idle.keep_alive));
    }
}

async fn keep(
    mut socket: Socket,
    mut asked: oneshot::Receiver<oneshot::Sender<Socket>>,
    until: Instant,
    keep_alive: Option<(Duration, &'static str)>,
) {
    let mut out = Outgoing::default();
    let mut last_sent = Instant::now();
    loop {
        let due = keep_alive.map_or(until, |(every, _)| (last_sent + every).min(until));
        tokio::select! {
            biased;
            asked = &mut asked => {
                if let Ok(give) = asked {
                    // Where the requester is gone, the socket is dropped.
                    let _ = give.send(socket);
                    return;
                }
                break;
            }
            received = receive(socket.provider, &mut socket.stream) => {
                // Late messages of a cancelled utterance are dropped.
                if !matches!(received, Ok(None | Some(Received::Text(_) | Received::Binary(_)))) {
                    return;
                }
            }
            () = sleep_until(due) => {
                if due >= until {
                    break;
                }
                if let Some((_, message)) = keep_alive {
                    out.text(message);
                }
                last_sent = due;
                if socket.send(&mut out).await.is_err() {
                    return;
                }
            }
        }
    }
    out.close();
    // The socket is dropped either way.
    let _ = socket.send(&mut out).await;
}
