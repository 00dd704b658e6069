//! `vivavoce serve --takeover`: this server is replaced by another on the same machine, or replaces one
//! (docs/takeover.md).

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use uuid::Uuid;

use super::ServerError;
use super::listening::{self, Served};
use crate::config::Settings;
use crate::http::SuccessorKey;
use crate::quotas::Quotas;
use vivavoce_rooms::RoomServer;
use vivavoce_takeover::{
    Door, Former, Offer, SocketName, SocketUse, Sockets, State, Successor, listen,
};

/// How often a server that was replaced says what it still does, and the one in its place which rooms are its.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// Where servers of this data folder ask each other.
fn path(settings: &Settings) -> PathBuf {
    settings.storage.data_dir.join("takeover.sock")
}

/// What a running server hands over, where there is one and `wanted`.
pub(super) async fn ask_former(
    settings: &Settings,
    wanted: bool,
) -> Result<(Option<Arc<Former>>, Sockets), ServerError> {
    if !wanted {
        return Ok((None, Sockets::default()));
    }
    match Former::ask(&path(settings)).await? {
        Some((former, sockets)) => Ok((Some(former), sockets)),
        None => {
            tracing::info!("no server runs with this data_dir: there is nothing to take over");
            Ok((None, Sockets::default()))
        }
    }
}

/// Tells the former server that this one serves.
pub(super) async fn take_over(former: Option<&Arc<Former>>, sockets: &Sockets) {
    let Some(former) = former else { return };
    match former.take_over(sockets).await {
        Ok(()) => tracing::info!(
            "the former server has handed over, and ends when its sessions, rooms and calls have"
        ),
        // Its sockets are here, whatever has become of it.
        Err(error) => tracing::warn!(%error, "the former server went before it had handed over"),
    }
}

/// Tells which rooms are in use here, for as long as the former server runs.
pub(super) async fn tell_rooms(former: Arc<Former>, rooms: RoomServer) {
    while former.is_there() {
        former.note_here(rooms.in_use().await);
        tokio::time::sleep(TELL_EVERY).await;
    }
}

/// What handing over needs besides what listens.
pub(super) struct Parts {
    /// What the resume tokens of this server begin with.
    pub(super) id: String,
    pub(super) sockets: Sockets,
    pub(super) served: Served,
    pub(super) quotas: Quotas,
}

/// Hands over to the server that comes next.
pub(super) struct Handover {
    parts: Parts,
    settings: Settings,
    /// What accepts connections, with the name of its socket.
    accepting: Vec<(SocketName, ServerHandle)>,
}

impl Handover {
    /// These accept connections until they are handed over.
    pub(super) const fn new(
        parts: Parts,
        settings: Settings,
        accepting: Vec<(SocketName, ServerHandle)>,
    ) -> Self {
        Self {
            parts,
            settings,
            accepting,
        }
    }

    /// Waits for successors, for as long as the server runs. `follows`: whether this server has itself replaced one.
    pub(super) async fn run(self, follows: bool) {
        let (path, sockets) = (path(&self.settings), &self.parts.sockets);
        let mut door = match open_door(&path, sockets, follows) {
            Ok(Some(door)) => door,
            Ok(None) => {
                let data_dir = self.settings.storage.data_dir.display();
                tracing::warn!(
                    %data_dir,
                    "another server uses this data_dir, too: both have its recordings, trunks and webhooks; with --takeover this one would have replaced it"
                );
                return;
            }
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "no other server will be able to take over from this one");
                return;
            }
        };
        loop {
            let successor = door.knocked().await;
            if self.parts.served.state.refuses() {
                successor.refuse("it is stopping already".to_owned()).await;
                continue;
            }
            if let Err(error) = self.hand_over(successor).await {
                tracing::warn!(%error, "a server that wanted to take over did not start: this one goes on");
                continue;
            }
            // The path was the successor's.
            door = match Door::open_anew(&path, sockets.clone()) {
                Ok(door) => door,
                Err(error) => {
                    tracing::warn!(%error, "no other server will be able to take over from this one");
                    return;
                }
            };
        }
    }

    /// Returns when the successor has gone, which takes over for longer than this server runs if all is well.
    async fn hand_over(&self, mut successor: Successor) -> io::Result<()> {
        let key = Uuid::new_v4().simple().to_string();
        let Parts {
            id, served, quotas, ..
        } = &self.parts;
        let shown = SuccessorKey(Some(key.clone()));
        let (address, entrance) = listening::entrance(&self.settings, quotas, served, shown)?;
        let handle = entrance.handle();
        // It ends through its handle.
        actix_web::rt::spawn(entrance);
        let offer = Offer::new(id.clone(), format!("http://{address}"), key);
        let taken = match successor.hand_over(offer).await {
            Ok(taken) => taken,
            Err(error) => {
                handle.stop(false).await;
                return Err(error);
            }
        };
        let paused = self.accepting.iter();
        let paused: Vec<_> = paused.filter(|(name, _)| taken.contains(name)).collect();
        for (_, listening) in &paused {
            listening.pause().await;
        }
        tracing::info!("another server has taken over: this one finishes what it has begun");
        served.state.given.cancel();
        loop {
            let rooms = match &served.state.embedded_rooms {
                Some(rooms) => rooms.in_use().await,
                None => Vec::new(),
            };
            if successor.tell(&State { rooms }).await.is_err() {
                break;
            }
            tokio::time::sleep(TELL_EVERY).await;
        }
        tracing::warn!(
            "the server that had taken over is gone: until another one does, new work is refused here"
        );
        drop(successor);
        for (_, listening) in &paused {
            listening.resume().await;
        }
        handle.stop(false).await;
        Ok(())
    }
}

fn open_door(path: &Path, sockets: &Sockets, follows: bool) -> io::Result<Option<Door>> {
    if follows {
        return Door::open_anew(path, sockets.clone()).map(Some);
    }
    Door::open(path, sockets.clone())
}

/// A listener for the API at an address of the settings.
pub(super) fn listener(
    sockets: &Sockets,
    of: SocketUse,
    address: SocketAddr,
) -> io::Result<(SocketName, std::net::TcpListener)> {
    let name = SocketName::new(of, address);
    let (listener, _) = sockets.listener(name, || listen(address))?;
    Ok((name, listener))
}

/// A listener for the successor alone.
pub(super) fn private_listener() -> io::Result<std::net::TcpListener> {
    listen((Ipv4Addr::LOCALHOST, 0).into())
}
