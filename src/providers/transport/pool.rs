//! Sockets that have said what they had to and may say more: kept for a while, so that the next utterance need not
//! dial. Each is kept by a task that answers pings, notices when the vendor closes it, and gives it to whoever asks.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::Outgoing;
use super::websocket::{Received, Socket, receive};

/// Sockets that one vendor's pool keeps; the one that was used longest ago goes first.
pub(super) const MOST: usize = 64;

/// What two utterances must have in common to use the same socket: the URL with its parameters, and the credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Where it leads, with everything that the handshake decides.
    pub url: String,
    /// Whose it is.
    pub credential: [u8; 32],
}

/// How long a vendor bears a socket on which nothing is said.
#[derive(Debug, Clone, Copy)]
pub struct Idle {
    /// It is closed after so long.
    pub longest: Duration,
    /// What is sent so that the vendor bears it, and how often.
    pub keep_alive: Option<(Duration, &'static str)>,
    /// A socket is not used again when it is older than this.
    pub oldest: Duration,
}

/// The sockets of one vendor that nobody uses.
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
    /// Asks the keeper for the socket; a keeper that has none any more is gone.
    ask: oneshot::Sender<oneshot::Sender<Socket>>,
}

impl Pool {
    /// The socket of this key that was used last.
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

    /// Keeps a socket.
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
                    // Whoever asked may have gone; then the socket goes too.
                    let _ = give.send(socket);
                    return;
                }
                break;
            }
            received = receive(socket.provider, &mut socket.stream) => {
                // What an utterance that was called off still had to say is nobody's.
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
    // It is over either way.
    let _ = socket.send(&mut out).await;
}
