//! The new server's side: asking the former one, and what that still does.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::messages::{Answer, Offer, Question, Reader, Ready, State, VERSION, send};
use crate::sockets::{Inherited, Sockets};

/// How long the former server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a running server could not be replaced.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// It said no.
    #[error("the running server cannot be replaced: {0}")]
    Refused(String),
    /// It does not answer.
    #[error("the running server does not answer")]
    Late,
    /// It could not be asked.
    #[error("the running server could not be asked: {0}")]
    Io(#[from] io::Error),
}

/// The server that this one replaces, for as long as it has something to do.
#[derive(Debug)]
pub struct Former {
    /// What the resume tokens of its sessions begin with.
    pub id: String,
    /// Where it answers this server.
    pub url: String,
    /// What is shown there.
    pub key: String,
    connection: Mutex<Option<(UnixStream, Reader)>>,
    rooms: RwLock<Rooms>,
    gone: CancellationToken,
}

/// In which rooms somebody is.
#[derive(Debug, Default)]
struct Rooms {
    /// At the former server.
    there: HashSet<String>,
    /// At this one.
    here: HashSet<String>,
}

impl Former {
    /// Asks the server that waits at this path for its sockets; `None` where none runs. Nothing has changed for it until
    /// [`Self::take_over`]. Must be called in a tokio runtime.
    pub async fn ask(path: &Path) -> Result<Option<(Arc<Self>, Sockets)>, TakeoverError> {
        let stream = match UnixStream::connect(path).await {
            Ok(stream) => stream,
            Err(error) if is_absence(&error) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let asking = timeout(PATIENCE, Self::ask_over(stream));
        let asked = asking.await.map_err(|_| TakeoverError::Late)??;
        Ok(Some(asked))
    }

    async fn ask_over(stream: UnixStream) -> Result<(Arc<Self>, Sockets), TakeoverError> {
        send(&stream, &Question { version: VERSION }, &[]).await?;
        let mut reader = Reader::default();
        let (offer, descriptors) = match reader.next(&stream).await? {
            (Answer::Offer(offer), descriptors) => (offer, descriptors),
            (Answer::Refused(why), _) => return Err(TakeoverError::Refused(why)),
        };
        let mut descriptors = descriptors.into_iter();
        let missing = || io::Error::new(io::ErrorKind::InvalidData, "it named more than it sent");
        let mut inherited = Vec::new();
        for socket in &offer.sockets {
            inherited.push(Inherited {
                name: socket.name,
                socket: descriptors.next().ok_or_else(missing)?,
                feed: if socket.feed {
                    Some(descriptors.next().ok_or_else(missing)?)
                } else {
                    None
                },
            });
        }
        let Offer { id, url, key, .. } = offer;
        let former = Self {
            id,
            url,
            key,
            connection: Mutex::new(Some((stream, reader))),
            rooms: RwLock::default(),
            gone: CancellationToken::new(),
        };
        Ok((Arc::new(former), Sockets::inherited(inherited)))
    }

    /// Tells the former server that this one serves: from now on it accepts nothing that came to the sockets that were taken.
    /// Follows what it still does until it has ended.
    pub async fn take_over(self: &Arc<Self>, sockets: &Sockets) -> io::Result<()> {
        let connection = self.connection.lock();
        let connection = connection.unwrap_or_else(PoisonError::into_inner).take();
        let (stream, mut reader) = connection.ok_or(io::ErrorKind::NotConnected)?;
        let taken = sockets.taken();
        send(&stream, &Ready { taken }, &[]).await?;
        // Which rooms are its, before anybody can join one of them here.
        self.note(timeout(PATIENCE, reader.next(&stream)).await??.0);
        let former = Arc::clone(self);
        tokio::spawn(async move {
            while let Ok((state, _)) = reader.next(&stream).await {
                former.note(state);
            }
            former.note(State::default());
            former.gone.cancel();
            tracing::info!("the former server has ended");
        });
        Ok(())
    }

    fn note(&self, state: State) {
        let mut rooms = self.rooms.write().unwrap_or_else(PoisonError::into_inner);
        rooms.there = state.rooms.into_iter().collect();
    }

    /// In which rooms somebody is at this server: who comes for one of these stays.
    pub fn note_here(&self, in_use: Vec<String>) {
        let mut rooms = self.rooms.write().unwrap_or_else(PoisonError::into_inner);
        rooms.here = in_use.into_iter().collect();
    }

    /// Whether it still runs.
    pub fn is_there(&self) -> bool {
        !self.gone.is_cancelled()
    }

    /// Whether this room is there: somebody is in it there, and nobody here.
    pub fn has_room(&self, name: &str) -> bool {
        let rooms = self.rooms.read().unwrap_or_else(PoisonError::into_inner);
        self.is_there() && rooms.there.contains(name) && !rooms.here.contains(name)
    }
}

/// Whether nobody waits at a path.
fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}
