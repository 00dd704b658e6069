//! The TURN server, asked over real sockets by those who may not: foreign credentials, peers elsewhere, floods of allocations
//! and of questions.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use livekit_protocol as proto;
use stun_types::attribute::{AttributeWrite, ErrorCode, Nonce, Realm, Username};
use stun_types::message::{
    BINDING, IntegrityAlgorithm, LongTermKeyCredentials, Message, MessageWrite, MessageWriteExt,
    MessageWriteVec, Method, TransactionId,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;
use turn_types::attribute::{ChannelNumber, Data, Lifetime, RequestedTransport, XorPeerAddress};
use turn_types::message::{ALLOCATE, CHANNEL_BIND, CREATE_PERMISSION, REFRESH, SEND};
use vivavoce::rooms::tcp::MOST_UNKNOWN;
use vivavoce::rooms::turn::{ANSWERS_TO_NETWORK, Credentials, MOST_OF_NAME, MOST_OF_PARTY};

use crate::harness::{PATIENCE, Server};
use crate::rooms::signal::Signal;
use crate::rooms::{KEYS, SECRET, admission, server_with};

const REALM: &str = "vivavoce";
/// UDP as a number (IANA).
const UDP: u8 = 17;
/// How long an answer may take that may not come at all, or have been lost.
const MOMENT: Duration = Duration::from_millis(500);

fn loopback(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

fn server(settings: &[(&str, &str)]) -> Server {
    let turn = [
        ("RTC_TURN_UDP_PORT", "0"),
        ("RTC_ADVERTISED_ADDRESSES", "127.0.0.1"),
    ];
    server_with(&[&turn[..], settings].concat())
}

/// What somebody who has joined is told of the TURN server. Leaving changes nothing about it.
async fn told(server: &Server, room: &str, identity: &str) -> (SocketAddr, proto::IceServer) {
    let (_, token) = admission(server, room, identity).await;
    let (_signal, join) = Signal::join(server, &token).await;
    let told = join.ice_servers.into_iter().next().unwrap();
    let address = told.urls[0].strip_prefix("turn:").unwrap();
    let address = address.split('?').next().unwrap().parse().unwrap();
    (address, told)
}

/// A client with a socket of its own.
struct Client {
    socket: UdpSocket,
    name: String,
    password: String,
    nonce: Option<String>,
}

/// The code of an error, or nothing where all is well.
type Code = Option<u16>;

impl Client {
    async fn new(from: IpAddr, server: SocketAddr, name: &str, password: &str) -> Self {
        let socket = UdpSocket::bind((from, 0)).await.unwrap();
        socket.connect(server).await.unwrap();
        Self {
            socket,
            name: name.to_owned(),
            password: password.to_owned(),
            nonce: None,
        }
    }

    async fn of(server: SocketAddr, told: &proto::IceServer) -> Self {
        Self::new(loopback(1), server, &told.username, &told.credential).await
    }

    /// Asks as it is known so far, again and again until there is an answer, as clients do.
    async fn ask(
        &mut self,
        method: Method,
        fill: impl Fn(TransactionId, &mut MessageWriteVec),
    ) -> Code {
        let mut message = Message::builder_request(method, MessageWriteVec::new());
        let transaction = message.transaction_id();
        fill(transaction, &mut message);
        if let Some(nonce) = &self.nonce {
            add(&mut message, &Username::new(&self.name).unwrap());
            add(&mut message, &Realm::new(REALM).unwrap());
            add(&mut message, &Nonce::new(nonce).unwrap());
            let known = LongTermKeyCredentials::new(
                self.name.clone(),
                self.password.clone(),
                REALM.to_owned(),
            );
            let key = known.make_key(IntegrityAlgorithm::Sha1);
            message
                .add_message_integrity_with_key(&key, IntegrityAlgorithm::Sha1)
                .unwrap();
        }
        let message = message.finish();
        let began = Instant::now();
        let mut buffer = [0; 2_048];
        while began.elapsed() < PATIENCE {
            self.socket.send(&message).await.unwrap();
            while let Ok(received) = timeout(MOMENT, self.socket.recv(&mut buffer)).await {
                let answer = Message::from_bytes(&buffer[..received.unwrap()]).unwrap();
                // Others are to what was asked twice.
                if answer.transaction_id() == transaction {
                    if let Ok(nonce) = answer.attribute::<Nonce>() {
                        self.nonce = Some(nonce.nonce().to_owned());
                    }
                    return answer.attribute::<ErrorCode>().ok().map(|code| code.code());
                }
            }
        }
        panic!("the TURN server does not answer");
    }

    async fn allocate(&mut self) -> Code {
        let fill = |_, message: &mut MessageWriteVec| add(message, &RequestedTransport::new(UDP));
        if self.nonce.is_none() {
            assert_eq!(self.ask(ALLOCATE, fill).await, Some(401), "a challenge");
        }
        self.ask(ALLOCATE, fill).await
    }

    async fn permit(&mut self, peer: SocketAddr) -> Code {
        self.ask(CREATE_PERMISSION, |transaction, message| {
            add(message, &XorPeerAddress::new(peer, transaction));
        })
        .await
    }

    async fn bind(&mut self, number: u16, peer: SocketAddr) -> Code {
        self.ask(CHANNEL_BIND, |transaction, message| {
            add(message, &ChannelNumber::new(number));
            add(message, &XorPeerAddress::new(peer, transaction));
        })
        .await
    }

    async fn send(&self, peer: SocketAddr, data: &[u8]) {
        let mut message = Message::builder_indication(SEND, MessageWriteVec::new());
        let transaction = message.transaction_id();
        add(&mut message, &XorPeerAddress::new(peer, transaction));
        add(&mut message, &Data::new(data));
        self.socket.send(&message.finish()).await.unwrap();
    }
}

fn add(message: &mut MessageWriteVec, attribute: &dyn AttributeWrite) {
    message.add_attribute(attribute).unwrap();
}

fn unix_s() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(now.unwrap().as_secs()).unwrap()
}

#[tokio::test]
async fn foreign_credentials_open_no_allocation() {
    let (ours, theirs) = (server(&KEYS), server(&[]));
    let (address, good) = told(&ours, "kitchen", "ann").await;
    let (_, foreign) = told(&theirs, "kitchen", "ann").await;
    let of_server = Credentials::of_secret(SECRET);
    let hour = Duration::from_hours(1);
    let expired = of_server.issue(("room kitchen", "PA_1"), unix_s() - 7_200, hour);
    let mut parts: Vec<&str> = good.username.split(':').collect();
    let prolonged = (unix_s() + 1_000_000).to_string();
    parts[0] = &prolonged;
    let prolonged = parts.join(":");
    let (_, other) = told(&ours, "cellar", "bob").await;
    let of_other = other.username.split(':').nth(1).unwrap();
    parts[0] = good.username.split(':').next().unwrap();
    parts[1] = of_other;
    let moved = parts.join(":");
    for (what, name, password) in [
        ("another server's", &foreign.username, &foreign.credential),
        ("expired", &expired.0, &expired.1),
        ("prolonged", &prolonged, &good.credential),
        ("counted for another room", &moved, &good.credential),
        ("another's password", &good.username, &other.credential),
        ("no name", &String::new(), &good.credential),
        (
            "a long name",
            &format!("{}:x:{}", unix_s() + 60, "y".repeat(400)),
            &good.credential,
        ),
    ] {
        let mut client = Client::new(loopback(1), address, name, password).await;
        assert_eq!(client.allocate().await, Some(401), "{what}");
        // Nor is there anything that it could use.
        assert_eq!(client.permit(address).await, Some(401), "{what}");
    }
    // Who has the right ones has to be where he was asked for them, and has no business with what is another's.
    let mut ann = Client::of(address, &good).await;
    assert_eq!(ann.allocate().await, None);
    let mut thief = Client::of(address, &good).await;
    thief.nonce.clone_from(&ann.nonce);
    assert_eq!(thief.allocate().await, Some(438));
    let mut bob = Client {
        name: other.username,
        password: other.credential,
        ..ann
    };
    let end = bob.ask(REFRESH, |_, message| add(message, &Lifetime::new(0)));
    assert_eq!(end.await, Some(441));
}

#[tokio::test]
async fn nothing_is_relayed_to_anywhere_but_the_media_port() {
    let victims =
        [loopback(1), loopback(2)].map(|host| std::net::UdpSocket::bind((host, 0)).unwrap());
    let sip = {
        let free = std::net::UdpSocket::bind((loopback(1), 0)).unwrap();
        free.local_addr().unwrap()
    };
    let server = server(&[("SIP_LISTEN", &format!("udp:{sip}"))]);
    let (turn, told) = told(&server, "kitchen", "ann").await;
    let api: SocketAddr = server.url.strip_prefix("http://").unwrap().parse().unwrap();
    let mut ann = Client::of(turn, &told).await;
    assert_eq!(ann.allocate().await, None);
    // A permission is for an address, which is also that of other ports.
    assert_eq!(ann.permit((loopback(1), 9).into()).await, None);
    let own = ann.socket.local_addr().unwrap();
    let peers = [
        ("HTTP", api, None),
        ("SIP", sip, None),
        ("the TURN server itself", turn, None),
        ("the client", own, None),
        (
            "a port of this machine",
            victims[0].local_addr().unwrap(),
            None,
        ),
        (
            "another address of this machine",
            victims[1].local_addr().unwrap(),
            Some(403),
        ),
        (
            "a private network",
            "10.0.0.1:80".parse().unwrap(),
            Some(403),
        ),
        (
            "a cloud's metadata",
            "169.254.169.254:80".parse().unwrap(),
            Some(403),
        ),
        ("everybody", "255.255.255.255:9".parse().unwrap(), Some(403)),
        ("a group", "224.0.0.251:5353".parse().unwrap(), Some(403)),
        ("a relay", "198.18.0.0:1025".parse().unwrap(), Some(403)),
        ("IPv6", "[::1]:80".parse().unwrap(), Some(403)),
        (
            "IPv4 in IPv6",
            "[::ffff:127.0.0.2]:80".parse().unwrap(),
            Some(403),
        ),
        (
            "IPv4's own address in IPv6",
            SocketAddr::new("::ffff:127.0.0.1".parse().unwrap(), api.port()),
            Some(403),
        ),
        ("nobody", "0.0.0.0:0".parse().unwrap(), Some(403)),
    ];
    for (number, (what, peer, code)) in (0x4000_u16..).zip(peers) {
        assert_eq!(ann.permit(peer).await, code, "{what}: {peer}");
        assert_eq!(ann.bind(number, peer).await, Some(403), "{what}: {peer}");
        ann.send(peer, b"relayed").await;
        // On a channel that was not bound.
        let [high, low] = number.to_be_bytes();
        ann.socket
            .send(&[high, low, 0, 7, b'r', b'e', b'l', b'a', b'y', b'e', b'd', 0])
            .await
            .unwrap();
    }
    // All of that has been looked at when this is answered, and what came of it came before this.
    assert_eq!(ann.permit((loopback(1), 9).into()).await, None);
    for victim in &victims {
        victim.set_read_timeout(Some(PATIENCE)).unwrap();
        let sender = std::net::UdpSocket::bind((loopback(1), 0)).unwrap();
        sender
            .send_to(b"direct", victim.local_addr().unwrap())
            .unwrap();
        let mut buffer = [0; 64];
        let (length, _) = victim.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"direct");
    }
    let mut buffer = [0; 64];
    let came = timeout(MOMENT, ann.socket.recv(&mut buffer)).await;
    assert!(came.is_err(), "{came:?} {buffer:?}");
}

/// Memory of a process that is its own, in KiB.
fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test]
async fn a_flood_of_allocations_ends_at_its_share_and_others_get_in() {
    let server = server(&[]);
    let (address, first) = told(&server, "flood", "0").await;
    let before = resident_kib(server.pid());
    let (mut made, mut asked) = (0, 0_u16);
    let began = Instant::now();
    let mut told_now = first;
    for number in 1.. {
        let mut of_name = 0;
        // An allocation stays when its socket has gone.
        let refused = loop {
            // From an address that no other one had.
            let [high, low] = asked.to_be_bytes();
            let from = Ipv4Addr::new(127, 1, high, low).into();
            asked += 1;
            let (name, password) = (&told_now.username, &told_now.credential);
            let mut client = Client::new(from, address, name, password).await;
            match client.allocate().await {
                None => of_name += 1,
                Some(code) => break code,
            }
            assert!(of_name <= MOST_OF_NAME);
        };
        assert_eq!(refused, 486);
        made += of_name;
        if of_name < MOST_OF_NAME || made >= MOST_OF_PARTY {
            break;
        }
        (_, told_now) = told(&server, "flood", &number.to_string()).await;
    }
    assert_eq!(made, MOST_OF_PARTY);
    let (_, told_last) = told(&server, "flood", "last").await;
    let mut last = Client::of(address, &told_last).await;
    assert_eq!(last.allocate().await, Some(486));
    let grown = resident_kib(server.pid()).saturating_sub(before);
    println!(
        "| {made} allocations of one room in {:?} | {grown} KiB more |",
        began.elapsed()
    );
    // A few kilobytes each, with the participants that had to join for them.
    assert!(grown < 64 << 10, "{grown} KiB");
    let (_, told) = told(&server, "kitchen", "ann").await;
    let mut ann = Client::of(address, &told).await;
    assert_eq!(ann.allocate().await, None);
    assert_eq!(ann.permit((loopback(1), 9).into()).await, None);
}

/// How long strangers ask, and how much.
const FLOOD: Duration = Duration::from_secs(4);
const FLOOD_PER_SECOND: u32 = 5_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_questions_is_answered_in_part_and_others_get_in() {
    let server = server(&[]);
    let (address, told) = told(&server, "kitchen", "ann").await;
    let began = Instant::now();
    let flood = tokio::spawn(async move {
        let socket = UdpSocket::bind((loopback(66), 0)).await.unwrap();
        socket.connect(address).await.unwrap();
        let ask = |method| Message::builder_request(method, MessageWriteVec::new()).finish();
        let (mut asked, mut answered, mut bytes) = (0, 0, [0, 0]);
        let mut buffer = [0; 2_048];
        let mut rounds = tokio::time::interval(Duration::from_millis(10));
        while began.elapsed() < FLOOD {
            rounds.tick().await;
            for number in 0..FLOOD_PER_SECOND / 100 {
                let question = ask(if number % 2 == 0 { ALLOCATE } else { BINDING });
                if socket.try_send(&question).is_ok() {
                    asked += 1;
                    bytes[0] += question.len();
                }
            }
            while let Ok(length) = socket.try_recv(&mut buffer) {
                answered += 1;
                bytes[1] += length;
            }
        }
        (asked, answered, bytes)
    });
    let mut waited = Vec::new();
    while began.elapsed() < FLOOD {
        let asking = Instant::now();
        let mut ann = Client::new(loopback(2), address, &told.username, &told.credential).await;
        let code = ann.allocate().await;
        let end = ann.ask(REFRESH, |_, message| add(message, &Lifetime::new(0)));
        assert_eq!((code, end.await), (None, None));
        waited.push(asking.elapsed());
    }
    let (asked, answered, bytes) = flood.await.unwrap();
    let took = began.elapsed();
    waited.sort_unstable();
    println!(
        "| {asked} questions in {took:?}, {} bytes | {answered} answers, {} bytes | {} allocations of another, half of them within {:?}, all within {:?} |",
        bytes[0],
        bytes[1],
        waited.len(),
        waited[waited.len() / 2],
        waited.last().unwrap()
    );
    // The seconds of the server may begin anywhere in ours.
    let most = f64::from(ANSWERS_TO_NETWORK) * (2.0 + took.as_secs_f64());
    assert!(f64::from(answered) < most, "{answered} of at most {most}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_a_stranger_are_few_and_short_and_others_get_in() {
    let server = server(&[("RTC_TURN_TCP_PORT", "0")]);
    let (_, token) = admission(&server, "kitchen", "ann").await;
    let (_signal, join) = Signal::join(&server, &token).await;
    let mut urls = join.ice_servers.iter().flat_map(|told| &told.urls);
    let url = urls.find(|url| url.ends_with("tcp")).unwrap();
    let address = url.trim_start_matches("turn:").split('?').next().unwrap();
    let address: SocketAddr = address.parse().unwrap();
    let connect = async |from| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(address).await.unwrap()
    };
    // Each says that it is there, and nothing more.
    let question = Message::builder_request(BINDING, MessageWriteVec::new()).finish();
    let answered = async |stream: &mut TcpStream| {
        let mut answer = [0; 20];
        stream.write_all(&question).await.is_ok() && stream.read_exact(&mut answer).await.is_ok()
    };
    let (mut held, mut open) = (Vec::new(), 0);
    for _ in 0..MOST_UNKNOWN {
        let mut stream = connect(loopback(66)).await;
        open += usize::from(answered(&mut stream).await);
        held.push(stream);
    }
    assert!(0 < open && open < MOST_UNKNOWN / 2, "{open}");
    assert!(answered(&mut connect(loopback(2)).await).await);
    // Nor do they stay.
    for stream in &mut held {
        let mut rest = Vec::new();
        let _ended = timeout(PATIENCE, stream.read_to_end(&mut rest))
            .await
            .unwrap();
    }
    println!("| {open} of {MOST_UNKNOWN} connections of one address were served |");
}
