//! A client of the TURN server, written with the messages of the protocol.

use stun_types::message::MessageType;

use super::*;

const REALM: &str = "vivavoce";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn media() -> SocketAddr {
    address("203.0.113.1:7882")
}

struct Stage {
    allocations: Allocations,
    policy: Arc<Policy>,
    now: Now,
}

impl Stage {
    fn new() -> Self {
        let media = vec![media(), address("[2001:db8::1]:7882")];
        let credentials = Credentials::of_secret("a secret");
        let policy = Arc::new(Policy::new(REALM.to_owned(), credentials, media));
        Self {
            allocations: Allocations::of_socket(Arc::clone(&policy)),
            policy,
            now: Now::read(),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now.instant += time;
        self.now.unix_ms += i64::try_from(time.as_millis()).unwrap();
    }

    fn client(&self, at: &str) -> Client {
        let valid = Duration::from_mins(1);
        let (name, password) =
            self.policy
                .credentials
                .issue(("kitchen", "PA_1"), self.now.unix_s(), valid);
        Client {
            at: address(at),
            name,
            password,
            nonce: None,
        }
    }

    fn ask(
        &mut self,
        client: &Client,
        method: Method,
        attributes: &[&dyn AttributeWrite],
    ) -> Answer {
        let message = client.message(method, attributes);
        self.answer(client, &message)
    }

    fn answer(&mut self, client: &Client, message: &[u8]) -> Answer {
        let outcome = self.allocations.receive(client.at, message, self.now);
        Answer {
            bytes: outcome.answer.clone().expect("a request is answered"),
            outcome,
        }
    }

    /// A client with an allocation; the address of its relay.
    fn allocated(&mut self, at: &str) -> (Client, SocketAddr) {
        let mut client = self.client(at);
        let challenge = self.ask(&client, ALLOCATE, &[&RequestedTransport::new(UDP)]);
        assert_eq!(challenge.code(), Some(401));
        client.nonce = Some(challenge.nonce());
        let answer = self.ask(&client, ALLOCATE, &[&RequestedTransport::new(UDP)]);
        assert_eq!(answer.code(), None);
        let relayed = answer.outcome.opened.unwrap();
        (client, relayed)
    }

    fn permit(&mut self, client: &Client, peer: SocketAddr) -> Option<u16> {
        let message = client.with(CREATE_PERMISSION, |transaction, message| {
            add(message, &XorPeerAddress::new(peer, transaction));
        });
        self.answer(client, &message).code()
    }

    fn bind(&mut self, client: &Client, number: u16, peer: SocketAddr) -> Option<u16> {
        let message = client.with(CHANNEL_BIND, |transaction, message| {
            add(message, &ChannelNumber::new(number));
            add(message, &XorPeerAddress::new(peer, transaction));
        });
        self.answer(client, &message).code()
    }

    /// What comes to the media port of a datagram to this peer.
    fn sends(&mut self, client: &Client, peer: SocketAddr) -> Option<(Path, Bytes)> {
        let mut message = Message::builder_indication(SEND, MessageWriteVec::new());
        let transaction = message.transaction_id();
        add(&mut message, &XorPeerAddress::new(peer, transaction));
        add(&mut message, &Data::new(b"media"));
        self.allocations
            .receive(client.at, &message.finish(), self.now)
            .datagram
    }
}

struct Client {
    at: SocketAddr,
    name: String,
    password: String,
    nonce: Option<String>,
}

impl Client {
    fn message(&self, method: Method, attributes: &[&dyn AttributeWrite]) -> Vec<u8> {
        self.with(method, |_, message| {
            for attribute in attributes {
                add(message, *attribute);
            }
        })
    }

    fn with(&self, method: Method, fill: impl Fn(TransactionId, &mut MessageWriteVec)) -> Vec<u8> {
        let mut message = Message::builder_request(method, MessageWriteVec::new());
        fill(message.transaction_id(), &mut message);
        let Some(nonce) = &self.nonce else {
            return message.finish();
        };
        add(&mut message, &Username::new(&self.name).unwrap());
        add(&mut message, &Realm::new(REALM).unwrap());
        add(&mut message, &Nonce::new(nonce).unwrap());
        let credentials =
            LongTermKeyCredentials::new(self.name.clone(), self.password.clone(), REALM.to_owned());
        signed(message, &credentials.make_key(IntegrityAlgorithm::Sha1))
    }
}

struct Answer {
    bytes: Vec<u8>,
    outcome: Outcome,
}

impl Answer {
    fn code(&self) -> Option<u16> {
        let message = Message::from_bytes(&self.bytes).unwrap();
        assert!(message.is_response());
        let code = message.attribute::<ErrorCode>().ok();
        code.map(|code| code.code())
    }

    fn nonce(&self) -> String {
        let message = Message::from_bytes(&self.bytes).unwrap();
        message.attribute::<Nonce>().unwrap().nonce().to_owned()
    }
}

#[test]
fn nothing_is_kept_about_who_has_not_proven_who_he_is() {
    let mut stage = Stage::new();
    let mut client = stage.client("198.51.100.7:4000");
    let transport = RequestedTransport::new(UDP);
    let challenge = stage.ask(&client, ALLOCATE, &[&transport]);
    assert_eq!(challenge.code(), Some(401));
    assert!(!challenge.outcome.is_known);
    client.nonce = Some(challenge.nonce());
    client.password = "guessed".to_owned();
    assert_eq!(
        stage.ask(&client, ALLOCATE, &[&transport]).code(),
        Some(401)
    );
    client.name = format!("{}:x:PA_1", stage.now.unix_s() - 1);
    client.password = stage.policy.credentials.password(&client.name);
    assert_eq!(
        stage.ask(&client, ALLOCATE, &[&transport]).code(),
        Some(401),
        "expired"
    );
    let mut right = stage.client("198.51.100.7:4001");
    right.nonce = client.nonce.clone();
    assert_eq!(
        stage.ask(&right, ALLOCATE, &[&transport]).code(),
        Some(438),
        "another's nonce"
    );
    assert_eq!(stage.permit(&right, media()), Some(438));
    assert!(stage.allocations.by_client.is_empty() && stage.sends(&right, media()).is_none());
}

#[test]
fn media_go_both_ways_by_indications_and_by_channels() {
    let mut stage = Stage::new();
    let (client, relayed) = stage.allocated("198.51.100.7:4000");
    assert!(is_relayed(relayed.ip()));
    assert_eq!(
        stage.sends(&client, media()),
        None,
        "nothing is permitted yet"
    );
    assert_eq!(stage.permit(&client, media()), None);
    let path = (relayed, media());
    assert_eq!(
        stage.sends(&client, media()),
        Some((path, Bytes::from_static(b"media")))
    );
    let (to, indication) = stage
        .allocations
        .to_client(path, b"back", stage.now.instant)
        .unwrap();
    assert_eq!(to, client.at);
    let indication = Message::from_bytes(&indication).unwrap();
    assert_eq!(
        indication.get_type(),
        MessageType::from_class_method(MessageClass::Indication, DATA)
    );
    assert_eq!(indication.attribute::<Data<'_>>().unwrap().data(), b"back");

    assert_eq!(stage.bind(&client, 0x4000, media()), None);
    let (_, channel) = stage
        .allocations
        .to_client(path, b"back", stage.now.instant)
        .unwrap();
    assert_eq!(channel, [&[0x40, 0, 0, 4][..], b"back"].concat());
    let sent = stage
        .allocations
        .receive(client.at, &[0x40, 0, 0, 2, 1, 2], stage.now);
    assert_eq!(sent.datagram, Some((path, Bytes::from_static(&[1, 2]))));
    // Neither is for ever.
    stage.pass(PERMITTED);
    assert_eq!(stage.sends(&client, media()), None);
    stage.pass(BOUND - PERMITTED);
    let late = stage
        .allocations
        .receive(client.at, &[0x40, 0, 0, 2, 1, 2], stage.now);
    assert_eq!(late.datagram, None);
}

#[test]
fn there_is_no_way_to_anywhere_else() {
    let mut stage = Stage::new();
    let (client, _) = stage.allocated("198.51.100.7:4000");
    for elsewhere in [
        "192.168.0.1:22",
        "127.0.0.1:8080",
        "203.0.113.2:7882",
        "[::1]:80",
    ] {
        let elsewhere = address(elsewhere);
        assert_eq!(stage.permit(&client, elsewhere), Some(403), "{elsewhere}");
        assert_eq!(
            stage.bind(&client, 0x4000, elsewhere),
            Some(403),
            "{elsewhere}"
        );
        assert_eq!(stage.sends(&client, elsewhere), None);
    }
    // A permission is for a host; of this one only the media port is relayed to.
    assert_eq!(stage.permit(&client, media()), None);
    let other_port = address("203.0.113.1:22");
    assert_eq!(stage.bind(&client, 0x4000, other_port), Some(403));
    assert_eq!(stage.sends(&client, other_port), None);
    // Nor is there any over TCP.
    let mut other = stage.client("198.51.100.7:4001");
    other.nonce = Some(stage.ask(&other, ALLOCATE, &[]).nonce());
    assert_eq!(
        stage
            .ask(&other, ALLOCATE, &[&RequestedTransport::new(6)])
            .code(),
        Some(442)
    );
    assert_eq!(stage.ask(&other, ALLOCATE, &[]).code(), Some(400));
}

#[test]
fn an_allocation_lives_on_by_refreshing_it_and_ends_when_asked() {
    let mut stage = Stage::new();
    let (mut client, relayed) = stage.allocated("198.51.100.7:4000");
    // Its name expires, which ends nothing; nor does anything else while it is used and refreshed.
    for _ in 0..60 {
        stage.pass(Duration::from_mins(1));
        assert!(stage.allocations.expire(stage.now.instant).is_empty());
        let refreshed = stage.ask(&client, REFRESH, &[&Lifetime::new(600)]);
        if refreshed.code() == Some(438) {
            // After an hour it is told its next nonce.
            client.nonce = Some(refreshed.nonce());
        } else {
            assert_eq!(refreshed.code(), None);
        }
        assert_eq!(stage.permit(&client, media()), None);
        assert!(stage.sends(&client, media()).is_some());
    }
    let ended = stage.ask(&client, REFRESH, &[&Lifetime::new(0)]);
    assert_eq!((ended.code(), ended.outcome.closed), (None, Some(relayed)));
    let (_, second) = stage.allocated("198.51.100.7:4000");
    assert_ne!(second, relayed);
    // One that nothing goes through is not kept.
    stage.pass(UNUSED);
    assert_eq!(stage.allocations.expire(stage.now.instant), [second]);
}

#[test]
fn a_lost_answer_comes_again_and_a_second_allocation_does_not() {
    let mut stage = Stage::new();
    let mut client = stage.client("198.51.100.7:4000");
    let transport = RequestedTransport::new(UDP);
    client.nonce = Some(stage.ask(&client, ALLOCATE, &[&transport]).nonce());
    let request = client.message(ALLOCATE, &[&transport]);
    let first = stage.answer(&client, &request);
    let again = stage.answer(&client, &request);
    assert_eq!(first.bytes, again.bytes);
    assert_eq!(
        (first.outcome.opened.is_some(), again.outcome.opened),
        (true, None)
    );
    assert_eq!(
        stage.ask(&client, ALLOCATE, &[&transport]).code(),
        Some(437)
    );
    // Nobody else has any business with it.
    let mut other = stage.client("198.51.100.7:4000");
    other.name = format!("{}:x:PA_2", stage.now.unix_s() + 60);
    other.password = stage.policy.credentials.password(&other.name);
    other.nonce = client.nonce.clone();
    assert_eq!(
        stage.ask(&other, REFRESH, &[&Lifetime::new(0)]).code(),
        Some(441)
    );
}

#[test]
fn one_name_has_a_few_allocations_and_an_address_of_ipv6_where_asked() {
    let mut stage = Stage::new();
    for port in 0..MOST_OF_NAME {
        stage.allocated(&format!("198.51.100.7:{}", 4_000 + port));
    }
    let mut client = stage.client("198.51.100.7:9000");
    let transport = RequestedTransport::new(UDP);
    client.nonce = Some(stage.ask(&client, ALLOCATE, &[&transport]).nonce());
    assert_eq!(
        stage.ask(&client, ALLOCATE, &[&transport]).code(),
        Some(486)
    );
    assert_eq!(stage.allocations.close_all().len(), MOST_OF_NAME);
    let family = RequestedAddressFamily::new(AddressFamily::IPV6);
    let answer = stage.ask(&client, ALLOCATE, &[&transport, &family]);
    let relayed = answer.outcome.opened.unwrap();
    assert!(relayed.is_ipv6() && is_relayed(relayed.ip()));
}

#[test]
fn a_party_has_a_part_of_the_connections_and_leaves_others_the_rest() {
    let mut stage = Stage::new();
    let issue = |stage: &Stage, party, number: usize| {
        let valid = Duration::from_mins(1);
        let who = format!("PB_{}", number / MOST_OF_NAME);
        let now = stage.now.unix_s();
        stage.policy.credentials.issue((party, &who), now, valid)
    };
    let connect = |stage: &mut Stage, party, number: usize| {
        stage.allocations = Allocations::of_connection(Arc::clone(&stage.policy));
        let mut client = stage.client("198.51.100.7:4000");
        (client.name, client.password) = issue(stage, party, number);
        let transport = RequestedTransport::new(UDP);
        client.nonce = Some(stage.ask(&client, ALLOCATE, &[&transport]).nonce());
        stage.ask(&client, ALLOCATE, &[&transport]).code()
    };
    let mut open = Vec::new();
    for number in 0..MOST_CONNECTIONS_OF_PARTY {
        assert_eq!(connect(&mut stage, "kitchen", number), None);
        let next = Allocations::of_socket(Arc::clone(&stage.policy));
        open.push(std::mem::replace(&mut stage.allocations, next));
    }
    let last = MOST_CONNECTIONS_OF_PARTY;
    assert_eq!(connect(&mut stage, "kitchen", last), Some(486));
    assert_eq!(connect(&mut stage, "cellar", last), None);
    // By datagrams it has more, and by a connection again when one has ended.
    stage.allocations = Allocations::of_socket(Arc::clone(&stage.policy));
    stage.allocated("198.51.100.7:4000");
    open.pop();
    assert_eq!(connect(&mut stage, "kitchen", last), None);
}

#[test]
fn what_a_client_has_to_be_understood_by_is_named_where_it_is_not() {
    let mut stage = Stage::new();
    let (client, _) = stage.allocated("198.51.100.7:4000");
    // EVEN-PORT
    let unknown = stun_types::attribute::RawAttribute::new(AttributeType::new(0x18), &[0x80]);
    let refused = stage.ask(&client, REFRESH, &[&unknown]);
    assert_eq!(refused.code(), Some(420));
    let message = Message::from_bytes(&refused.bytes).unwrap();
    let named = message.attribute::<UnknownAttributes>().unwrap();
    assert!(named.has_attribute(AttributeType::new(0x18)));
}

#[test]
fn nonsense_is_not_answered_and_nobody_needs_to_be_known_for_his_own_address() {
    let mut stage = Stage::new();
    let from = address("198.51.100.7:4000");
    for nonsense in [
        &[][..],
        &[0],
        &[0x40],
        &[0x40, 0, 0xff, 0xff],
        &[0xff; 40],
        &[0; 20],
    ] {
        let outcome = stage.allocations.receive(from, nonsense, stage.now);
        assert!(
            outcome.answer.is_none() && outcome.datagram.is_none(),
            "{nonsense:?}"
        );
    }
    let request = Message::builder_request(BINDING, MessageWriteVec::new());
    let transaction = request.transaction_id();
    let answer = stage
        .allocations
        .receive(from, &request.finish(), stage.now)
        .answer
        .unwrap();
    let answer = Message::from_bytes(&answer).unwrap();
    let own = answer.attribute::<XorMappedAddress>().unwrap();
    assert_eq!(own.addr(transaction), from);
}

#[test]
fn relays_have_addresses_of_their_own_that_nobody_else_has() {
    let all: std::collections::HashSet<SocketAddr> =
        (0..200_000).map(|number| relayed(number, false)).collect();
    assert_eq!(all.len(), 200_000);
    for number in [0, PORTS - 1, PORTS, u32::MAX] {
        for is_v6 in [false, true] {
            let address = relayed(number, is_v6);
            assert!(
                is_relayed(address.ip()) && address.port() >= 1_024,
                "{address}"
            );
        }
    }
    assert!(
        !is_relayed("198.20.0.1".parse().unwrap()) && !is_relayed("2001:db8::1".parse().unwrap())
    );
}
