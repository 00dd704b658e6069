//! The media port over TCP, for clients whose network lets no UDP through: ICE over TCP (RFC 6544) with the server as the
//! passive side. What is a datagram over UDP has two bytes of length in front of it here (RFC 4571).
//!
//! Anybody can connect. Until a connection has sent something that belongs to a participant, it is one of a few, also of
//! its network, and has five seconds. One whose participant has gone is closed; of one participant there are a few.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener as StdTcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::ParticipantKey;
use super::participant::Side;
use super::turn::is_relayed;
use bytes::Bytes;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use vivavoce_takeover::{Given, SocketName, SocketUse, Sockets};

/// Connections in all, and of those that have not shown that they belong to somebody.
pub const MOST_CONNECTIONS: usize = 4_096;
pub const MOST_UNKNOWN: usize = 256;
const MOST_UNKNOWN_OF_NETWORK: usize = 32;
/// Connections of one peer connection of a participant: a client tries each of its addresses, and begins anew where one fails.
pub const MOST_OF_ONE: usize = 8;
/// How long a connection may be unknown.
pub const UNKNOWN_FOR: Duration = Duration::from_secs(5);
/// How long a connection may send nothing that belongs to a participant, once it has.
const STRANGE: Duration = Duration::from_mins(1);
/// How long a connection may say nothing: participants prove every few seconds that they are there.
const SILENT: Duration = Duration::from_secs(30);
/// How long a datagram may take to be written.
pub(super) const WRITE_PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes that the kernel holds unsent.
const MAX_UNSENT_BYTES: u32 = 16 << 10;
/// Datagrams that wait to be written. A network that does not take them is full: as over UDP, they are lost.
pub(super) const OUTGOING: usize = 64;
/// What comes of all connections and waits for the media thread; connections wait for their turn beyond that.
const INCOMING: usize = 512;
/// The largest datagram of media.
const DATAGRAM_BYTES: usize = 2_048;
/// Pause after the system refuses to accept, as when there are too many open files.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where a connection comes from and has come to, as its client sees it.
pub(super) type Path = (SocketAddr, SocketAddr);

/// What happens to a connection.
#[derive(Debug)]
pub(super) enum Arrival {
    Opened(Path, Writer),
    Datagram(Path, Bytes),
    Closed(Path),
}

/// What happens, to all of them.
pub(super) type Arrivals = (mpsc::Sender<Arrival>, mpsc::Receiver<Arrival>);

/// What comes of connections and relays.
pub(super) fn arrivals() -> Arrivals {
    mpsc::channel(INCOMING)
}

/// Sends over one connection, or by the relays of a TURN server.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    datagrams: mpsc::Sender<(Path, Bytes)>,
    /// Datagrams that belonged to a participant.
    known: Arc<AtomicU64>,
}

impl Writer {
    pub(super) const fn new(datagrams: mpsc::Sender<(Path, Bytes)>, known: Arc<AtomicU64>) -> Self {
        Self { datagrams, known }
    }
}

/// Listeners at the media port, with the addresses that clients are told.
#[derive(Debug, Default)]
pub struct Listeners(Vec<(StdTcpListener, Given, SocketAddr)>);

impl Listeners {
    /// Listens at `port` (0: any that is free on all addresses) on pairs of local and advertised address.
    pub fn bind(addresses: &[(IpAddr, IpAddr)], port: u16) -> io::Result<Self> {
        Self::take_or_bind((&Sockets::default(), SocketUse::RoomsTcp), addresses, port)
    }

    /// The same, or those that a former server had for this use.
    pub fn take_or_bind(
        (all, of): (&Sockets, SocketUse),
        addresses: &[(IpAddr, IpAddr)],
        port: u16,
    ) -> io::Result<Self> {
        const ATTEMPTS: usize = 16;
        let mut bound = Self::bind_once((all, of), addresses, port);
        for _ in 1..if port == 0 { ATTEMPTS } else { 1 } {
            if bound.is_ok() {
                break;
            }
            all.forget(of);
            bound = Self::bind_once((all, of), addresses, port);
        }
        if bound.is_err() {
            all.forget(of);
        }
        bound
    }

    fn bind_once(
        (all, of): (&Sockets, SocketUse),
        addresses: &[(IpAddr, IpAddr)],
        wanted: u16,
    ) -> io::Result<Self> {
        let (mut listeners, mut port) = (Vec::new(), wanted);
        for (local, advertised) in addresses {
            let name = SocketName::new(of, (*local, wanted).into());
            let (listener, given) = all.listener(name, || StdTcpListener::bind((*local, port)))?;
            listener.set_nonblocking(true)?;
            port = listener.local_addr()?.port();
            listeners.push((listener, given, SocketAddr::from((*advertised, port))));
        }
        Ok(Self(listeners))
    }

    /// Each with whether it is here, and the address that clients are told.
    pub(super) fn into_parts(self) -> Vec<(StdTcpListener, Given, SocketAddr)> {
        self.0
    }

    /// The addresses that clients are told.
    pub fn advertised(&self) -> Vec<SocketAddr> {
        self.0
            .iter()
            .map(|(_, _, advertised)| *advertised)
            .collect()
    }
}

/// Whom a connection belongs to.
pub(super) type Owner = (ParticipantKey, Side);

/// A connection.
struct Open {
    writer: Writer,
    owner: Option<Owner>,
    /// When something of its owner's came last, in such datagrams of all connections.
    heard: u64,
}

/// The connections of the media port.
pub(super) struct Connections {
    arrivals: mpsc::Receiver<Arrival>,
    open: HashMap<Path, Open>,
    /// Datagrams that belonged to somebody.
    heard: u64,
    _accepting: Vec<AbortOnDropHandle<()>>,
}

impl Connections {
    /// Accepts connections from now on. Must be called in the runtime that they are to run in.
    pub(super) fn accept(listeners: Listeners, (told, arrivals): Arrivals) -> io::Result<Self> {
        let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        let newcomers = Arc::<Newcomers>::default();
        let accepting = listeners
            .0
            .into_iter()
            .map(|(listener, given, advertised)| {
                let listener = (TcpListener::from_std(listener)?, given);
                let (told, places) = (told.clone(), Arc::clone(&places));
                let accepting = accept(listener, advertised, told, places, Arc::clone(&newcomers));
                Ok(AbortOnDropHandle::new(tokio::spawn(accepting)))
            });
        Ok(Self {
            arrivals,
            open: HashMap::new(),
            heard: 0,
            _accepting: accepting.collect::<io::Result<_>>()?,
        })
    }

    /// Waits for something to happen.
    pub(super) async fn changed(&mut self) -> Option<Arrival> {
        self.arrivals.recv().await
    }

    /// What has happened already.
    pub(super) fn next(&mut self) -> Option<Arrival> {
        self.arrivals.try_recv().ok()
    }

    /// Takes note of what has happened; a datagram is returned.
    pub(super) fn note(&mut self, arrival: Arrival) -> Option<(Path, Bytes)> {
        match arrival {
            Arrival::Opened(path, writer) => {
                let open = Open {
                    writer,
                    owner: None,
                    heard: 0,
                };
                self.open.insert(path, open);
                None
            }
            Arrival::Datagram(path, bytes) => Some((path, bytes)),
            Arrival::Closed(path) => {
                self.open.remove(&path);
                None
            }
        }
    }

    /// What came over this connection belongs to somebody. Of too many connections of one the one that was silent for
    /// longest is closed.
    pub(super) fn belongs(&mut self, path: Path, owner: Owner) {
        let Some(open) = self.open.get_mut(&path) else {
            return;
        };
        open.writer.known.fetch_add(1, Ordering::Relaxed);
        self.heard += 1;
        open.heard = self.heard;
        // A client's relays are bounded where they are made.
        if open.owner.replace(owner) == Some(owner) || is_relayed(path.0.ip()) {
            return;
        }
        let others = self.open.iter().filter(|(other, open)| {
            open.owner == Some(owner) && **other != path && !is_relayed(other.0.ip())
        });
        let is_full = others.clone().count() >= MOST_OF_ONE;
        let silent = others.min_by_key(|(_, open)| open.heard);
        if is_full && let Some(silent) = silent.map(|(path, _)| *path) {
            // The task of its socket ends as nobody writes any more.
            self.open.remove(&silent);
        }
    }

    /// Whether there is this way to a client.
    pub(super) fn is_open(&self, path: Path) -> bool {
        self.open.contains_key(&path)
    }

    /// Sends a datagram; `false` if it is lost.
    pub(super) fn send(&self, path: Path, datagram: &[u8]) -> bool {
        let Some(open) = self.open.get(&path) else {
            return false;
        };
        let datagram = Bytes::copy_from_slice(datagram);
        open.writer.datagrams.try_send((path, datagram)).is_ok()
    }
}

/// Whom an address belongs to: a host with IPv6 has a whole network of 64 bits.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

/// Connections that have not shown that they belong to somebody, by network.
pub(super) type Newcomers = Mutex<HashMap<IpAddr, usize>>;

/// One of them.
pub(super) struct Newcomer {
    all: Arc<Newcomers>,
    network: IpAddr,
}

impl Newcomer {
    /// `None` where there are too many.
    pub(super) fn enter(all: &Arc<Newcomers>, address: IpAddr) -> Option<Self> {
        let mut counted = all.lock().unwrap_or_else(PoisonError::into_inner);
        let network = network(address);
        let of_network = counted.get(&network).copied().unwrap_or_default();
        let is_full = counted.values().sum::<usize>() >= MOST_UNKNOWN;
        if is_full || of_network >= MOST_UNKNOWN_OF_NETWORK {
            return None;
        }
        counted.insert(network, of_network + 1);
        drop(counted);
        let all = Arc::clone(all);
        Some(Self { all, network })
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        let mut counted = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_network) = counted.get_mut(&self.network) {
            *of_network -= 1;
            if *of_network == 0 {
                counted.remove(&self.network);
            }
        }
    }
}

async fn accept(
    (listener, given): (TcpListener, Given),
    advertised: SocketAddr,
    told: mpsc::Sender<Arrival>,
    places: Arc<Semaphore>,
    newcomers: Arc<Newcomers>,
) {
    loop {
        let Ok((stream, source)) = given.accept(&listener).await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Nobody comes from where relays are said to be. What is beyond the limits is closed: others may come.
        if is_relayed(source.ip()) {
            continue;
        }
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            continue;
        };
        let Some(newcomer) = Newcomer::enter(&newcomers, source.ip()) else {
            continue;
        };
        let path = (source, advertised);
        let told = told.clone();
        tokio::spawn(async move {
            carry(stream, path, &told, newcomer).await;
            let _stopping = told.send(Arrival::Closed(path)).await;
            drop(place);
        });
    }
}

/// Carries datagrams both ways until the connection ends, from either side.
async fn carry(stream: TcpStream, path: Path, told: &mpsc::Sender<Arrival>, newcomer: Newcomer) {
    if set_up(&stream).is_err() {
        return;
    }
    let (datagrams, outgoing) = mpsc::channel(OUTGOING);
    let known = Arc::<AtomicU64>::default();
    let writer = Writer::new(datagrams, Arc::clone(&known));
    if told.send(Arrival::Opened(path, writer)).await.is_err() {
        return;
    }
    let (from, to) = stream.into_split();
    let strange = async {
        let (mut newcomer, mut before, mut pause) = (Some(newcomer), 0, UNKNOWN_FOR);
        loop {
            sleep(pause).await;
            let so_far = known.load(Ordering::Relaxed);
            if so_far == before {
                return;
            }
            drop(newcomer.take());
            (before, pause) = (so_far, STRANGE);
        }
    };
    tokio::select! {
        () = read(BufReader::new(from), path, told) => {}
        () = write(to, outgoing) => {}
        () = strange => {}
    }
}

/// Media that waits is late: what the network does not take is lost here, as it is over UDP.
pub(super) fn set_up(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_notsent_lowat(MAX_UNSENT_BYTES)?;
    Ok(())
}

async fn read(mut from: impl AsyncRead + Unpin, path: Path, told: &mpsc::Sender<Arrival>) {
    let mut buffer = [0; DATAGRAM_BYTES];
    loop {
        let reading = async {
            let length = usize::from(from.read_u16().await?);
            let datagram = buffer.get_mut(..length).ok_or(io::ErrorKind::InvalidData)?;
            from.read_exact(datagram).await?;
            Ok::<_, io::Error>(Bytes::copy_from_slice(datagram))
        };
        let Ok(Ok(datagram)) = timeout(SILENT, reading).await else {
            return;
        };
        if told.send(Arrival::Datagram(path, datagram)).await.is_err() {
            return;
        }
    }
}

async fn write(mut to: impl AsyncWrite + Unpin, mut outgoing: mpsc::Receiver<(Path, Bytes)>) {
    while let Some((_, datagram)) = outgoing.recv().await {
        let Ok(length) = u16::try_from(datagram.len()) else {
            continue;
        };
        let framed = [&length.to_be_bytes(), &datagram[..]].concat();
        let writing = timeout(WRITE_PATIENCE, to.write_all(&framed)).await;
        if !matches!(writing, Ok(Ok(()))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn next(connections: &mut Connections) -> Option<(Path, Bytes)> {
        let arrival = timeout(UNKNOWN_FOR * 2, connections.changed()).await;
        let arrival = arrival.expect("something happens").unwrap();
        connections.note(arrival)
    }

    fn listening() -> (Connections, SocketAddr) {
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        let listeners = Listeners::bind(&[(loopback, loopback)], 0).unwrap();
        let address = listeners.advertised()[0];
        (Connections::accept(listeners, arrivals()).unwrap(), address)
    }

    fn owner(number: u64) -> Owner {
        (ParticipantKey(number), Side::Publisher)
    }

    #[tokio::test]
    async fn one_participant_has_few_connections_and_the_silent_ones_are_closed() {
        let (mut connections, address) = listening();
        let mut clients = Vec::new();
        let of_others = MOST_OF_ONE / 2;
        for number in 0..of_others + MOST_OF_ONE + 2 {
            let client = TcpStream::connect(address).await.unwrap();
            let path = (client.local_addr().unwrap(), address);
            // That another one has closed may be told before.
            while !connections.is_open(path) {
                assert_eq!(next(&mut connections).await, None);
            }
            let is_others = number < of_others;
            connections.belongs(path, owner(u64::from(!is_others)));
            clients.push((client, path));
            // The first one goes on speaking.
            let first = clients.get(of_others).map(|(_, path)| *path);
            first
                .into_iter()
                .for_each(|first| connections.belongs(first, owner(1)));
        }
        for closed in [1, 2].map(|nth| of_others + nth) {
            let (client, path) = &mut clients[closed];
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "{closed}");
            assert!(!connections.is_open(*path));
        }
        assert_eq!(connections.open.len(), of_others + MOST_OF_ONE);
    }

    #[test]
    fn one_network_has_a_part_of_the_places_for_newcomers() {
        let all = &Arc::<Newcomers>::default();
        let mut places: Vec<Newcomer> = Vec::new();
        let of_network = |network: u16| {
            let hosts = (0..100_u16).map(move |host| [0x2001, 0xdb8, 0, network, 0, 0, 0, host]);
            hosts.filter_map(|host| Newcomer::enter(all, IpAddr::from(host)))
        };
        places.extend(of_network(0));
        assert_eq!(places.len(), MOST_UNKNOWN_OF_NETWORK);
        assert_eq!(of_network(1).count(), 100, "each leaves at once");
        places.clear();
        places.extend(of_network(0));
        assert_eq!(places.len(), MOST_UNKNOWN_OF_NETWORK);
    }

    #[tokio::test]
    async fn datagrams_go_both_ways_whole_however_they_are_cut_up() {
        let (mut connections, address) = listening();
        let mut client = TcpStream::connect(address).await.unwrap();
        let path = (client.local_addr().unwrap(), address);
        assert_eq!(next(&mut connections).await, None);
        client.write_all(&[0, 3, 1]).await.unwrap();
        client.flush().await.unwrap();
        client.write_all(&[2, 3, 0, 0, 0, 1, 4]).await.unwrap();
        for expected in [&[1, 2, 3][..], &[], &[4]] {
            let (from, bytes) = next(&mut connections).await.unwrap();
            assert_eq!((from, &bytes[..]), (path, expected));
        }
        assert!(connections.send(path, &[5, 6]));
        let mut answer = [0; 4];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, [0, 2, 5, 6]);
        assert!(!connections.send((address, address), &[7]));
        drop(client);
        assert_eq!(next(&mut connections).await, None);
        assert!(!connections.send(path, &[8]), "it has ended");
    }

    #[tokio::test]
    async fn what_is_too_long_and_who_never_shows_whose_he_is_is_closed() {
        let (mut connections, address) = listening();
        let mut rude = TcpStream::connect(address).await.unwrap();
        assert_eq!(next(&mut connections).await, None);
        rude.write_all(&[0xff, 0xff, 0]).await.unwrap();
        assert_eq!(next(&mut connections).await, None);
        assert!(connections.open.is_empty());
        let known = TcpStream::connect(address).await.unwrap();
        assert_eq!(next(&mut connections).await, None);
        let path = (known.local_addr().unwrap(), address);
        let stranger = TcpStream::connect(address).await.unwrap();
        assert_eq!(next(&mut connections).await, None);
        connections.belongs(path, owner(1));
        assert_eq!(next(&mut connections).await, None);
        assert_eq!(connections.open.keys().collect::<Vec<_>>(), [&path]);
        drop(stranger);
    }

    #[tokio::test]
    async fn strangers_have_few_places() {
        let (mut connections, address) = listening();
        let mut all = Vec::new();
        for _ in 0..MOST_UNKNOWN_OF_NETWORK {
            all.push(TcpStream::connect(address).await.unwrap());
            assert_eq!(next(&mut connections).await, None);
        }
        let mut late = TcpStream::connect(address).await.unwrap();
        assert_eq!(late.read(&mut [0]).await.unwrap(), 0, "it is closed");
        assert_eq!(connections.open.len(), MOST_UNKNOWN_OF_NETWORK);
    }
}
