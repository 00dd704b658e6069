//! The TURN server's side of the protocol (RFC 8656), without sockets: what clients send goes in, what they are answered and
//! what goes to the media port comes out.
//!
//! A relay of ours relays to one place only, the media port of this server, and that in the same process: no socket is opened
//! for it, and a relayed address is a name by which the media port answers. So there is no way from here to anywhere else.
//!
//! Until a client has proven who it is, nothing is kept about it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use stun_types::attribute::{
    Attribute as _, AttributeStaticType as _, AttributeType, AttributeWrite,
};
use stun_types::attribute::{
    ErrorCode, Fingerprint, MessageIntegrity, MessageIntegritySha256, Nonce, Realm, Software,
    UnknownAttributes, Username, XorMappedAddress,
};
use stun_types::message::{
    BINDING, IntegrityAlgorithm, IntegrityKey, LongTermKeyCredentials, Message, MessageClass,
    MessageWrite, MessageWriteExt, MessageWriteVec, Method, TransactionId,
};
use turn_types::AddressFamily;
use turn_types::attribute::{
    ChannelNumber, Data, DontFragment, Lifetime, RequestedAddressFamily, RequestedTransport,
    XorPeerAddress, XorRelayedAddress,
};
use turn_types::channel::ChannelData;
use turn_types::message::{ALLOCATE, CHANNEL_BIND, CREATE_PERMISSION, DATA, REFRESH, SEND};

use super::super::Now;
use super::super::tcp::{MOST_CONNECTIONS, Path};
use super::credentials::{Credentials, is_valid, party_of};

/// How long an allocation lasts where a client asks for nothing, and at most (RFC 8656, section 3.2).
const USUAL: Duration = Duration::from_mins(10);
const LONGEST: Duration = Duration::from_hours(1);
/// How long a permission and the binding of a channel last (RFC 8656, sections 9 and 12).
const PERMITTED: Duration = Duration::from_mins(5);
const BOUND: Duration = Duration::from_mins(10);
/// Allocations in all, of one party (see [`super::credentials`]) and with one name: a browser makes one for each transport,
/// network and peer connection.
pub const MOST_ALLOCATIONS: usize = 16_384;
pub const MOST_OF_PARTY: usize = MOST_ALLOCATIONS / 4;
pub const MOST_OF_NAME: usize = 32;
/// Of the connections over TCP and TLS, too, a party has a part: each carries one allocation.
pub const MOST_CONNECTIONS_OF_PARTY: usize = MOST_CONNECTIONS / 4;
/// An allocation through which nothing went for so long is closed: those that are only kept in reserve are tried more often.
const UNUSED: Duration = Duration::from_mins(2);
/// Addresses of the media port are few.
const MOST_PERMISSIONS: usize = 32;
const MOST_CHANNELS: usize = 32;
/// UDP as a number (IANA).
const UDP: u8 = 17;
const FIRST_PORT: u32 = 1_024;
const PORTS: u32 = 0x1_0000 - FIRST_PORT;

/// What relays of a server share.
#[derive(Debug)]
pub struct Policy {
    pub realm: String,
    pub credentials: Credentials,
    /// The media port, as clients know it.
    pub media: Vec<SocketAddr>,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    next: u32,
    taken: usize,
    by_party: HashMap<String, usize>,
    /// Those over connections alone.
    connected: HashMap<String, usize>,
    by_name: HashMap<String, usize>,
}

/// Counts one less.
fn release(counted: &mut HashMap<String, usize>, of: &str) {
    if let Some(count) = counted.get_mut(of) {
        *count -= 1;
        if *count == 0 {
            counted.remove(of);
        }
    }
}

impl Policy {
    pub fn new(realm: String, credentials: Credentials, media: Vec<SocketAddr>) -> Self {
        Self {
            realm,
            credentials,
            media,
            places: Mutex::default(),
        }
    }

    fn key(&self, name: &str) -> IntegrityKey {
        let password = self.credentials.password(name);
        let credentials =
            LongTermKeyCredentials::new(name.to_owned(), password, self.realm.clone());
        credentials.make_key(IntegrityAlgorithm::Sha1)
    }

    /// A place for one more allocation; the code of the error where there is none.
    fn place(self: &Arc<Self>, name: &str, is_v6: bool, is_connection: bool) -> Result<Place, u16> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.taken >= MOST_ALLOCATIONS {
            return Err(ErrorCode::INSUFFICIENT_CAPACITY);
        }
        let party = party_of(name);
        let of_party = places.by_party.get(party).copied().unwrap_or_default();
        let of_name = places.by_name.get(name).copied().unwrap_or_default();
        let connected = places.connected.get(party).copied().unwrap_or_default();
        if of_party >= MOST_OF_PARTY
            || of_name >= MOST_OF_NAME
            || is_connection && connected >= MOST_CONNECTIONS_OF_PARTY
        {
            return Err(ErrorCode::ALLOCATION_QUOTA_REACHED);
        }
        places.by_party.insert(party.to_owned(), of_party + 1);
        if is_connection {
            places.connected.insert(party.to_owned(), connected + 1);
        }
        places.by_name.insert(name.to_owned(), of_name + 1);
        places.taken += 1;
        // After four thousand million of them nobody has the first ones any more.
        places.next = places.next.wrapping_add(1);
        Ok(Place {
            relayed: relayed(places.next, is_v6),
            name: name.to_owned(),
            is_connection,
            policy: Arc::clone(self),
        })
    }
}

/// An address of the networks for benchmarks (RFC 2544, RFC 5180), from which nothing ever comes.
fn relayed(number: u32, is_v6: bool) -> SocketAddr {
    let (host, port) = (number / PORTS, FIRST_PORT + number % PORTS);
    let address: IpAddr = if is_v6 {
        let [a, b, c, d] = host.to_be_bytes().map(u16::from);
        Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, (a << 8) | b, (c << 8) | d).into()
    } else {
        Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 0).to_bits() | (host % 0x2_0000)).into()
    };
    SocketAddr::new(address, u16::try_from(port).unwrap_or(u16::MAX))
}

/// Whether this is the address of a relay.
pub fn is_relayed(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => matches!(address.octets(), [198, 18 | 19, ..]),
        IpAddr::V6(address) => matches!(address.segments(), [0x2001, 2, 0, ..]),
    }
}

#[derive(Debug)]
struct Place {
    relayed: SocketAddr,
    name: String,
    is_connection: bool,
    policy: Arc<Policy>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.policy.places.lock();
        let places = places
            .as_mut()
            .unwrap_or_else(|poisoned| poisoned.get_mut());
        places.taken = places.taken.saturating_sub(1);
        release(&mut places.by_party, party_of(&self.name));
        if self.is_connection {
            release(&mut places.connected, party_of(&self.name));
        }
        release(&mut places.by_name, &self.name);
    }
}

struct Allocation {
    place: Place,
    /// A secret.
    key: IntegrityKey,
    /// When something went through it.
    used: Instant,
    /// Of the request that made it, which may come again.
    transaction: TransactionId,
    lifetime: Duration,
    expires: Instant,
    permissions: HashMap<IpAddr, Instant>,
    channels: HashMap<u16, (SocketAddr, Instant)>,
}

impl std::fmt::Debug for Allocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Allocation")
            .field("place", &self.place)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

impl Allocation {
    fn permits(&self, peer: IpAddr, now: Instant) -> bool {
        self.permissions
            .get(&peer)
            .is_some_and(|until| now < *until)
    }

    fn channel_of(&self, peer: SocketAddr, now: Instant) -> Option<u16> {
        let bound = |(_, (to, until)): &(&u16, &(SocketAddr, Instant))| *to == peer && now < *until;
        self.channels.iter().find(bound).map(|(number, _)| *number)
    }
}

/// What comes of something that a client has sent.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What it is answered.
    pub answer: Option<Vec<u8>>,
    /// A datagram for the media port, and from which relay to which address.
    pub datagram: Option<(Path, Bytes)>,
    /// A relay that there is now.
    pub opened: Option<SocketAddr>,
    /// A relay that there was.
    pub closed: Option<SocketAddr>,
    /// Whether the client has proven who it is.
    pub is_known: bool,
}

impl Outcome {
    fn answer(answer: Vec<u8>) -> Self {
        Self {
            answer: Some(answer),
            ..Self::default()
        }
    }
}

/// The allocations of clients that reach the server by one socket or connection.
#[derive(Debug)]
pub struct Allocations {
    policy: Arc<Policy>,
    /// Whether that is a connection, of which there are fewer than allocations.
    is_connection: bool,
    by_client: HashMap<SocketAddr, Allocation>,
    clients: HashMap<SocketAddr, SocketAddr>,
}

impl Allocations {
    /// Those of the clients of one socket.
    pub fn of_socket(policy: Arc<Policy>) -> Self {
        Self::new(policy, false)
    }

    /// The one of a connection.
    pub fn of_connection(policy: Arc<Policy>) -> Self {
        Self::new(policy, true)
    }

    fn new(policy: Arc<Policy>, is_connection: bool) -> Self {
        Self {
            policy,
            is_connection,
            by_client: HashMap::new(),
            clients: HashMap::new(),
        }
    }

    /// Takes what a client has sent: one message, whole.
    pub fn receive(&mut self, client: SocketAddr, bytes: &[u8], now: Now) -> Outcome {
        if bytes.first().is_some_and(|first| *first & 0xc0 == 0x40) {
            return self.channel_data(client, bytes, now.instant);
        }
        let Ok(message) = Message::from_bytes(bytes) else {
            return Outcome::default();
        };
        match (message.class(), message.method()) {
            (MessageClass::Request, BINDING) => Outcome::answer(own_address(&message, client)),
            (MessageClass::Request, method) => self.request(method, &message, client, now),
            (MessageClass::Indication, SEND) => self.send(client, &message, now.instant),
            _ => Outcome::default(),
        }
    }

    fn request(
        &mut self,
        method: Method,
        message: &Message<'_>,
        client: SocketAddr,
        now: Now,
    ) -> Outcome {
        if ![ALLOCATE, REFRESH, CREATE_PERMISSION, CHANNEL_BIND].contains(&method) {
            return Outcome::answer(self.refusal(
                message,
                ErrorCode::BAD_REQUEST,
                client,
                now,
                None,
            ));
        }
        let (name, key) = match self.authenticated(message, client, now) {
            Ok(known) => known,
            Err(code) => {
                return Outcome::answer(self.refusal(message, code, client, now, None));
            }
        };
        let unknown = unknown_attributes(message);
        let done = if unknown.is_empty() {
            match method {
                ALLOCATE => self.allocate(message, client, &name, &key, now),
                REFRESH => self.refresh(message, client, &key, now),
                CREATE_PERMISSION => self.permit(message, client, &key, now),
                _ => self.bind(message, client, &key, now),
            }
        } else {
            Err(ErrorCode::UNKNOWN_ATTRIBUTE)
        };
        let refused = |code| {
            Outcome::answer(self.refusal(message, code, client, now, Some((&key, &unknown))))
        };
        Outcome {
            is_known: true,
            ..done.unwrap_or_else(refused)
        }
    }

    /// Who has sent a request; the code of the error where nobody known has.
    fn authenticated(
        &self,
        message: &Message<'_>,
        client: SocketAddr,
        now: Now,
    ) -> Result<(String, IntegrityKey), u16> {
        let name = message.attribute::<Username>();
        let nonce = message.attribute::<Nonce>();
        let (Ok(name), Ok(nonce)) = (name, nonce) else {
            return Err(ErrorCode::UNAUTHORIZED);
        };
        if !self
            .policy
            .credentials
            .is_fresh(nonce.nonce(), client, now.unix_s())
        {
            return Err(ErrorCode::STALE_NONCE);
        }
        let name = name.username();
        let key = match self.by_client.get(&client) {
            // Lives on when the name has expired.
            Some(allocation) if allocation.place.name == name => allocation.key.clone(),
            Some(_) => return Err(ErrorCode::WRONG_CREDENTIALS),
            None if is_valid(name, now.unix_s()) => self.policy.key(name),
            None => return Err(ErrorCode::UNAUTHORIZED),
        };
        let proven = message.validate_integrity_with_key(&key);
        proven.map_err(|_| ErrorCode::UNAUTHORIZED)?;
        Ok((name.to_owned(), key))
    }

    fn allocate(
        &mut self,
        message: &Message<'_>,
        client: SocketAddr,
        name: &str,
        key: &IntegrityKey,
        now: Now,
    ) -> Result<Outcome, u16> {
        let transport = message.attribute::<RequestedTransport>();
        let transport = transport.map_err(|_| ErrorCode::BAD_REQUEST)?;
        if transport.protocol() != UDP {
            return Err(ErrorCode::UNSUPPORTED_TRANSPORT_PROTOCOL);
        }
        let transaction = message.transaction_id();
        if let Some(allocation) = self.by_client.get(&client) {
            if allocation.transaction != transaction {
                return Err(ErrorCode::ALLOCATION_MISMATCH);
            }
            // Its answer was lost.
            return Ok(Outcome::answer(allocated(message, client, allocation)));
        }
        let family = message.attribute::<RequestedAddressFamily>();
        let is_v6 = family.is_ok_and(|family| family.family() == AddressFamily::IPV6);
        if !self
            .policy
            .media
            .iter()
            .any(|media| media.is_ipv6() == is_v6)
        {
            return Err(ErrorCode::ADDRESS_FAMILY_NOT_SUPPORTED);
        }
        let lifetime = lifetime(message).max(USUAL);
        let allocation = Allocation {
            place: self.policy.place(name, is_v6, self.is_connection)?,
            key: key.clone(),
            used: now.instant,
            transaction,
            lifetime,
            expires: now.instant + lifetime,
            permissions: HashMap::new(),
            channels: HashMap::new(),
        };
        let relayed = allocation.place.relayed;
        let answer = allocated(message, client, &allocation);
        self.by_client.insert(client, allocation);
        self.clients.insert(relayed, client);
        Ok(Outcome {
            opened: Some(relayed),
            ..Outcome::answer(answer)
        })
    }

    fn refresh(
        &mut self,
        message: &Message<'_>,
        client: SocketAddr,
        key: &IntegrityKey,
        now: Now,
    ) -> Result<Outcome, u16> {
        let asked = lifetime(message);
        let mut closed = None;
        if asked.is_zero() {
            closed = self.close(client);
        } else {
            let allocation = self.by_client.get_mut(&client);
            let allocation = allocation.ok_or(ErrorCode::ALLOCATION_MISMATCH)?;
            allocation.expires = now.instant + asked;
        }
        let mut answer = Message::builder_success(message, MessageWriteVec::new());
        add(&mut answer, &Lifetime::new(seconds(asked)));
        Ok(Outcome {
            closed,
            ..Outcome::answer(signed(answer, key))
        })
    }

    fn permit(
        &mut self,
        message: &Message<'_>,
        client: SocketAddr,
        key: &IntegrityKey,
        now: Now,
    ) -> Result<Outcome, u16> {
        let transaction = message.transaction_id();
        let peers = message.iter_attributes().filter_map(|(_, raw)| {
            let is_peer = raw.get_type() == XorPeerAddress::TYPE;
            is_peer.then(|| XorPeerAddress::try_from(&raw).map(|peer| peer.addr(transaction).ip()))
        });
        let peers: Result<Vec<IpAddr>, _> = peers.take(MOST_PERMISSIONS).collect();
        let peers = peers.map_err(|_| ErrorCode::BAD_REQUEST)?;
        if peers.is_empty() {
            return Err(ErrorCode::BAD_REQUEST);
        }
        let is_media = |peer: &IpAddr| self.policy.media.iter().any(|media| media.ip() == *peer);
        if !peers.iter().all(is_media) {
            return Err(ErrorCode::FORBIDDEN);
        }
        let allocation = self.by_client.get_mut(&client);
        let allocation = allocation.ok_or(ErrorCode::ALLOCATION_MISMATCH)?;
        let until = now.instant + PERMITTED;
        allocation
            .permissions
            .extend(peers.into_iter().map(|peer| (peer, until)));
        let answer = Message::builder_success(message, MessageWriteVec::new());
        Ok(Outcome::answer(signed(answer, key)))
    }

    fn bind(
        &mut self,
        message: &Message<'_>,
        client: SocketAddr,
        key: &IntegrityKey,
        now: Now,
    ) -> Result<Outcome, u16> {
        let number = message.attribute::<ChannelNumber>();
        let peer = message.attribute::<XorPeerAddress>();
        let (Ok(number), Ok(peer)) = (number, peer) else {
            return Err(ErrorCode::BAD_REQUEST);
        };
        let (number, peer) = (number.channel(), peer.addr(message.transaction_id()));
        if !(0x4000..=0x4fff).contains(&number) {
            return Err(ErrorCode::BAD_REQUEST);
        }
        if !self.policy.media.contains(&peer) {
            return Err(ErrorCode::FORBIDDEN);
        }
        let allocation = self.by_client.get_mut(&client);
        let allocation = allocation.ok_or(ErrorCode::ALLOCATION_MISMATCH)?;
        let bound = allocation.channels.get(&number);
        // A channel keeps its peer, and a peer its channel.
        if bound.is_some_and(|(to, _)| *to != peer)
            || allocation
                .channel_of(peer, now.instant)
                .is_some_and(|other| other != number)
        {
            return Err(ErrorCode::BAD_REQUEST);
        }
        if bound.is_none() && allocation.channels.len() >= MOST_CHANNELS {
            return Err(ErrorCode::INSUFFICIENT_CAPACITY);
        }
        allocation
            .channels
            .insert(number, (peer, now.instant + BOUND));
        allocation
            .permissions
            .insert(peer.ip(), now.instant + PERMITTED);
        let answer = Message::builder_success(message, MessageWriteVec::new());
        Ok(Outcome::answer(signed(answer, key)))
    }

    fn send(&mut self, client: SocketAddr, message: &Message<'_>, now: Instant) -> Outcome {
        let peer = message.attribute::<XorPeerAddress>();
        let data = message.attribute::<Data<'_>>();
        let (Ok(peer), Ok(data)) = (peer, data) else {
            return Outcome::default();
        };
        let peer = peer.addr(message.transaction_id());
        self.relay(client, peer, data.data(), now)
    }

    fn channel_data(&mut self, client: SocketAddr, bytes: &[u8], now: Instant) -> Outcome {
        let allocation = self.by_client.get(&client);
        let Ok(data) = ChannelData::parse(bytes) else {
            return Outcome::default();
        };
        let bound = allocation.and_then(|allocation| allocation.channels.get(&data.id()));
        match bound.copied() {
            Some((peer, until)) if now < until => self.relay(client, peer, data.data(), now),
            _ => Outcome::default(),
        }
    }

    fn relay(
        &mut self,
        client: SocketAddr,
        peer: SocketAddr,
        bytes: &[u8],
        now: Instant,
    ) -> Outcome {
        let media = &self.policy.media;
        let allocation = self.by_client.get_mut(&client).filter(|allocation| {
            now < allocation.expires && allocation.permits(peer.ip(), now) && media.contains(&peer)
        });
        let Some(allocation) = allocation else {
            return Outcome::default();
        };
        allocation.used = now;
        let path = (allocation.place.relayed, peer);
        Outcome {
            datagram: Some((path, Bytes::copy_from_slice(bytes))),
            is_known: true,
            ..Outcome::default()
        }
    }

    /// What the media port has sent to a relay, as its client gets it.
    pub fn to_client(
        &self,
        (relayed, peer): Path,
        bytes: &[u8],
        now: Instant,
    ) -> Option<(SocketAddr, Vec<u8>)> {
        let client = *self.clients.get(&relayed)?;
        let allocation = self.by_client.get(&client)?;
        if !allocation.permits(peer.ip(), now) {
            return None;
        }
        if let Some(number) = allocation.channel_of(peer, now) {
            let data = ChannelData::new(number, bytes);
            let mut written = vec![0; 4 + bytes.len()];
            data.write_into_unchecked(&mut written);
            return Some((client, written));
        }
        let mut message = Message::builder_indication(DATA, MessageWriteVec::new());
        let transaction = message.transaction_id();
        add(&mut message, &XorPeerAddress::new(peer, transaction));
        add(&mut message, &Data::new(bytes));
        Some((client, message.finish()))
    }

    /// The relays whose time is over.
    pub fn expire(&mut self, now: Instant) -> Vec<SocketAddr> {
        let over = self
            .by_client
            .iter()
            .filter(|(_, allocation)| allocation.expires <= now || allocation.used + UNUSED <= now);
        let over: Vec<SocketAddr> = over.map(|(client, _)| *client).collect();
        over.into_iter()
            .filter_map(|client| self.close(client))
            .collect()
    }

    /// Ends all of them.
    pub fn close_all(&mut self) -> Vec<SocketAddr> {
        let clients: Vec<SocketAddr> = self.by_client.keys().copied().collect();
        clients
            .into_iter()
            .filter_map(|client| self.close(client))
            .collect()
    }

    /// Whether this is not for the server that this one replaces, which may know the client.
    pub fn is_for_this_server(&self, client: SocketAddr, bytes: &[u8]) -> bool {
        let begins = || {
            let message = Message::from_bytes(bytes);
            message.is_ok_and(|message| [BINDING, ALLOCATE].contains(&message.method()))
        };
        self.by_client.contains_key(&client) || begins()
    }

    fn close(&mut self, client: SocketAddr) -> Option<SocketAddr> {
        let allocation = self.by_client.remove(&client)?;
        self.clients.remove(&allocation.place.relayed);
        Some(allocation.place.relayed)
    }

    /// An error; for a client that is known, signed with its key and naming the attributes that nobody here knows.
    fn refusal(
        &self,
        message: &Message<'_>,
        code: u16,
        client: SocketAddr,
        now: Now,
        known: Option<(&IntegrityKey, &[AttributeType])>,
    ) -> Vec<u8> {
        let mut answer = Message::builder_error(message, MessageWriteVec::new());
        if let Ok(error) = ErrorCode::builder(code).build() {
            add(&mut answer, &error);
        }
        let Some((key, unknown)) = known else {
            let nonce = self.policy.credentials.nonce(client, now.unix_s());
            if let (Ok(realm), Ok(nonce)) = (Realm::new(&self.policy.realm), Nonce::new(&nonce)) {
                add(&mut answer, &realm);
                add(&mut answer, &nonce);
            }
            return answer.finish();
        };
        if !unknown.is_empty() {
            add(&mut answer, &UnknownAttributes::new(unknown));
        }
        signed(answer, key)
    }
}

fn own_address(message: &Message<'_>, client: SocketAddr) -> Vec<u8> {
    let mut answer = Message::builder_success(message, MessageWriteVec::new());
    add(
        &mut answer,
        &XorMappedAddress::new(client, message.transaction_id()),
    );
    answer.finish()
}

fn allocated(message: &Message<'_>, client: SocketAddr, allocation: &Allocation) -> Vec<u8> {
    let transaction = message.transaction_id();
    let mut answer = Message::builder_success(message, MessageWriteVec::new());
    add(
        &mut answer,
        &XorRelayedAddress::new(allocation.place.relayed, transaction),
    );
    add(&mut answer, &Lifetime::new(seconds(allocation.lifetime)));
    add(&mut answer, &XorMappedAddress::new(client, transaction));
    signed(answer, &allocation.key)
}

/// How long a client wants an allocation to last, within what may be.
fn lifetime(message: &Message<'_>) -> Duration {
    let asked = message.attribute::<Lifetime>();
    let asked = asked.map(|asked| Duration::from_secs(asked.seconds().into()));
    asked.unwrap_or(USUAL).min(LONGEST)
}

fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

/// Attributes that a server has to understand, and this one does not (RFC 8489, section 6.3.1).
fn unknown_attributes(message: &Message<'_>) -> Vec<AttributeType> {
    const KNOWN: [AttributeType; 15] = [
        Username::TYPE,
        Realm::TYPE,
        Nonce::TYPE,
        MessageIntegrity::TYPE,
        MessageIntegritySha256::TYPE,
        Fingerprint::TYPE,
        Software::TYPE,
        ChannelNumber::TYPE,
        Lifetime::TYPE,
        XorPeerAddress::TYPE,
        Data::TYPE,
        RequestedAddressFamily::TYPE,
        RequestedTransport::TYPE,
        XorMappedAddress::TYPE,
        // Nothing is fragmented on the way to this process.
        DontFragment::TYPE,
    ];
    let types = message.iter_attributes().map(|(_, raw)| raw.get_type());
    types
        .filter(|kind| kind.comprehension_required() && !KNOWN.contains(kind))
        .collect()
}

/// Answers are far smaller than a message may be.
fn add(answer: &mut MessageWriteVec, attribute: &dyn AttributeWrite) {
    let _fits = answer.add_attribute(attribute);
}

fn signed(mut answer: MessageWriteVec, key: &IntegrityKey) -> Vec<u8> {
    let _fits = answer.add_message_integrity_with_key(key, IntegrityAlgorithm::Sha1);
    answer.finish()
}

#[cfg(test)]
mod tests;
