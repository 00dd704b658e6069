//! The former server's side: where the next one asks, and what it is given.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::messages::{Answer, Offer, Question, Reader, Ready, State, VERSION, send};
use crate::sockets::{SocketName, Sockets};

/// How long whoever comes may take to say what they want.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the new server may take to start; it may load models first.
const STARTS_WITHIN: Duration = Duration::from_mins(2);

/// Where a server that is to replace this one asks.
#[derive(Debug)]
pub struct Door {
    listener: UnixListener,
    sockets: Sockets,
}

impl Door {
    /// Waits at this path for a server that is to have these sockets. `None` where another server waits there. Must be
    /// called in a tokio runtime.
    pub fn open(path: &Path, sockets: Sockets) -> io::Result<Option<Self>> {
        if StdUnixStream::connect(path).is_ok() {
            return Ok(None);
        }
        Self::open_anew(path, sockets).map(Some)
    }

    /// The same in the place of the server that waits there.
    pub fn open_anew(path: &Path, sockets: Sockets) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(Self { listener, sockets })
    }

    /// Waits for a server that wants to replace this one.
    pub async fn knocked(&self) -> Successor {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let asked = timeout(PATIENCE, Successor::of(stream, self.sockets.clone()));
                    match asked.await {
                        Ok(Ok(successor)) => return successor,
                        // Another server that uses this folder has only looked.
                        Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                        Ok(Err(error)) => {
                            tracing::warn!(%error, "a server that wanted to take over was refused");
                        }
                        Err(_) => tracing::debug!("somebody came to take over and said nothing"),
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "nobody can ask to take over now");
                    tokio::time::sleep(PATIENCE).await;
                }
            }
        }
    }
}

/// The server that is to replace this one.
#[derive(Debug)]
pub struct Successor {
    stream: UnixStream,
    reader: Reader,
    sockets: Sockets,
    has_taken: bool,
}

impl Successor {
    async fn of(stream: UnixStream, sockets: Sockets) -> io::Result<Self> {
        let (theirs, ours) = (
            stream.peer_cred()?.uid(),
            rustix::process::getuid().as_raw(),
        );
        if theirs != ours {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "it runs as another user",
            ));
        }
        let mut reader = Reader::default();
        let (question, _) = reader.next::<Question>(&stream).await?;
        if question.version != VERSION {
            let why = format!(
                "the running server hands over in version {VERSION}, not {}: stop it and start the new one",
                question.version
            );
            send(&stream, &Answer::Refused(why.clone()), &[]).await?;
            return Err(io::Error::other(why));
        }
        Ok(Self {
            stream,
            reader,
            sockets,
            has_taken: false,
        })
    }

    /// Tells why it gets nothing.
    pub async fn refuse(self, why: String) {
        // It may have gone.
        let _ = send(&self.stream, &Answer::Refused(why), &[]).await;
    }

    /// Hands the sockets over once the new server says that it serves; returns those that it has taken. Until then, and if it
    /// fails, nothing has changed.
    pub async fn hand_over(&mut self, mut offer: Offer) -> io::Result<Vec<SocketName>> {
        let (sockets, descriptors) = self.sockets.offered()?;
        offer.sockets = sockets;
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        send(&self.stream, &Answer::Offer(offer), &borrowed).await?;
        drop(descriptors);
        let ready = timeout(STARTS_WITHIN, self.reader.next::<Ready>(&self.stream));
        let (Ready { taken }, _) = ready.await.map_err(|_| io::ErrorKind::TimedOut)??;
        self.sockets.give(&taken);
        self.has_taken = true;
        Ok(taken)
    }

    /// Tells what is still done here. Fails when the new server has gone.
    pub async fn tell(&self, state: &State) -> io::Result<()> {
        send(&self.stream, state, &[]).await
    }
}

impl Drop for Successor {
    /// Without the new server, what comes is for this one.
    fn drop(&mut self) {
        if self.has_taken {
            self.sockets.take_back();
        }
    }
}
