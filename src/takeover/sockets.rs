//! The sockets that a server listens at: those of a former server where it has handed some over, else bound ones. Each is
//! kept once more, for the server that comes next.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};
use tokio::sync::watch;

use crate::datagrams::{self, Datagrams};
use crate::given::Given;
use crate::messages::{MAX_DESCRIPTORS, OfferedSocket};

/// Connections that wait to be accepted, as while a server is being replaced.
const BACKLOG: i32 = 1_024;

/// Listens at an address.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// What a socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketUse {
    /// The API.
    Http,
    /// Metrics at an address of their own.
    Metrics,
    /// The media port of rooms.
    RoomsUdp,
    /// The same over TCP.
    RoomsTcp,
    /// The TURN server over UDP.
    TurnUdp,
    /// The same over TCP.
    TurnTcp,
    /// The same over TLS.
    TurnTls,
    /// SIP over UDP.
    SipUdp,
    /// SIP over TCP.
    SipTcp,
    /// SIP over TLS.
    SipTls,
    /// SIP over WebSocket.
    SipWs,
    /// SIP over WebSocket and TLS.
    SipWss,
}

/// Which socket: what for, and the address as the settings have it, where a port of 0 is any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketName {
    /// What it is for.
    pub of: SocketUse,
    /// The address.
    pub address: SocketAddr,
}

impl SocketName {
    /// The socket for this, at this address.
    pub const fn new(of: SocketUse, address: SocketAddr) -> Self {
        Self { of, address }
    }
}

/// A socket of a former server.
#[derive(Debug)]
pub(crate) struct Inherited {
    pub(crate) name: SocketName,
    pub(crate) socket: OwnedFd,
    pub(crate) feed: Option<OwnedFd>,
}

/// A socket of this server, for the next one.
#[derive(Debug)]
struct Kept {
    name: SocketName,
    socket: OwnedFd,
    feed: Option<OwnedFd>,
    given: watch::Sender<bool>,
    inherited: bool,
}

/// All listening sockets of a server. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Sockets(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    inherited: Vec<Inherited>,
    kept: Vec<Kept>,
}

impl Sockets {
    /// Those of a former server.
    pub(crate) fn inherited(inherited: Vec<Inherited>) -> Self {
        let kept = Vec::new();
        Self(Arc::new(Mutex::new(Held { inherited, kept })))
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A listener: that of the former server, else a new one. It must not be accepted from while it is [`Given`].
    pub fn listener(
        &self,
        name: SocketName,
        bind: impl FnOnce() -> io::Result<TcpListener>,
    ) -> io::Result<(TcpListener, Given)> {
        let former = self.take(name);
        let inherited = former.is_some();
        let listener = match former {
            Some(former) => TcpListener::from(former.socket),
            None => bind()?,
        };
        let given = self.keep(name, listener.as_fd(), None, inherited)?;
        Ok((listener, given))
    }

    /// A socket for datagrams: that of the former server, else a new one.
    pub fn datagrams(
        &self,
        name: SocketName,
        bind: impl FnOnce() -> io::Result<UdpSocket>,
    ) -> io::Result<Datagrams> {
        let former = self.take(name);
        let inherited = former.is_some();
        let (socket, former) = match former {
            Some(former) => (UdpSocket::from(former.socket), former.feed),
            None => (bind()?, None),
        };
        // Where there is no loopback interface, there is no taking over either.
        let (here, there) = datagrams::pair().ok().unzip();
        let there = there.map(OwnedFd::from);
        let given = match there {
            Some(_) => self.keep(name, socket.as_fd(), there, inherited)?,
            None => Given::pair().1,
        };
        Ok(Datagrams {
            socket,
            feed: here,
            former: former.map(UdpSocket::from),
            given,
        })
    }

    fn take(&self, name: SocketName) -> Option<Inherited> {
        let mut held = self.lock();
        let at = held.inherited.iter().position(|one| one.name == name)?;
        Some(held.inherited.swap_remove(at))
    }

    fn keep(
        &self,
        name: SocketName,
        socket: BorrowedFd<'_>,
        feed: Option<OwnedFd>,
        inherited: bool,
    ) -> io::Result<Given> {
        let socket = socket.try_clone_to_owned()?;
        let (sender, given) = Given::pair();
        self.lock().kept.push(Kept {
            name,
            socket,
            feed,
            given: sender,
            inherited,
        });
        Ok(given)
    }

    /// Lets go of those of this use that were bound here, as another port is tried.
    pub fn forget(&self, of: SocketUse) {
        let mut held = self.lock();
        held.kept
            .retain(|kept| kept.name.of != of || kept.inherited);
    }

    /// Those that were a former server's. What else it had is closed here.
    pub(crate) fn taken(&self) -> Vec<SocketName> {
        let mut held = self.lock();
        held.inherited.clear();
        let taken = held.kept.iter().filter(|kept| kept.inherited);
        taken.map(|kept| kept.name).collect()
    }

    /// From now on these are read by the next server, until they are [taken back](Self::take_back).
    pub(crate) fn give(&self, taken: &[SocketName]) {
        for kept in &self.lock().kept {
            if taken.contains(&kept.name) {
                kept.given.send_replace(true);
            }
        }
    }

    pub(crate) fn take_back(&self) {
        for kept in &self.lock().kept {
            kept.given.send_replace(false);
        }
    }

    /// Closes what is kept: nobody takes over any more.
    pub fn close(&self) {
        let mut held = self.lock();
        held.inherited.clear();
        held.kept.clear();
    }

    /// What the next server may have, and the descriptors of it.
    pub(crate) fn offered(&self) -> io::Result<(Vec<OfferedSocket>, Vec<OwnedFd>)> {
        let held = self.lock();
        let (mut sockets, mut descriptors) = (Vec::new(), Vec::new());
        for kept in &held.kept {
            sockets.push(OfferedSocket {
                name: kept.name,
                feed: kept.feed.is_some(),
            });
            descriptors.push(kept.socket.try_clone()?);
            if let Some(feed) = &kept.feed {
                descriptors.push(feed.try_clone()?);
            }
        }
        drop(held);
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(io::Error::other("too many sockets to hand over"));
        }
        Ok((sockets, descriptors))
    }
}
