//! Whether a socket is read by a new server now.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Whether a socket was handed over, and is read elsewhere for as long as its new server runs.
#[derive(Debug, Clone)]
pub struct Given(watch::Receiver<bool>);

impl Given {
    pub(crate) fn pair() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Whether it is handed over now.
    pub fn is_given(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is handed over, for ever if nobody can any more.
    pub async fn until_given(&self) {
        self.until(true).await;
    }

    /// Waits until it is read here, as it is at first.
    pub async fn until_here(&self) {
        self.until(false).await;
    }

    /// Waits for a connection that comes while the listener is here.
    pub async fn accept(&self, listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            self.until_here().await;
            tokio::select! {
                accepted = listener.accept() => return accepted,
                () = self.until_given() => {}
            }
        }
    }

    async fn until(&self, given: bool) {
        let mut receiver = self.0.clone();
        if receiver.wait_for(|now| *now == given).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use tokio::time::{Duration, timeout};

    #[tokio::test]
    async fn a_socket_is_here_until_it_is_given_and_again_when_it_is_taken_back() {
        let (sender, given) = Given::pair();
        given.until_here().await;
        let mut waiting = pin!(given.until_given());
        assert!(
            timeout(Duration::from_millis(10), &mut waiting)
                .await
                .is_err()
        );
        sender.send_replace(true);
        waiting.await;
        assert!(given.is_given());
        sender.send_replace(false);
        given.until_here().await;
        drop(sender);
        given.until_here().await;
        let never = timeout(Duration::from_millis(10), given.until_given());
        assert!(never.await.is_err());
    }
}
