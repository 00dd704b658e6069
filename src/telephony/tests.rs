//! Two bridges that call each other on loopback, with rooms that consist of link ends only.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;

use super::agent::{Listen, Protocol, TlsSettings, Unacknowledged};
use super::bridge::{Bridge, BridgeSettings, Owners, Rooms};
use super::media::{Codec, Encryption, MediaSettings};
use vivavoce_auth::{Owner, Principal, Takeover, TenantId};
use vivavoce_config::{AcceptReplaces, RoomMode, SipTransport};
use vivavoce_core::phone::{Gateway, PhoneNumber};
use vivavoce_quotas::{Kind, Party, Quota, Share};
use vivavoce_seams::rooms::link::{Ending, Join, JoinKind, LinkEnd, LinkEvent, RoomLink, pair};
use vivavoce_seams::rooms::telephone::{
    CallErrorKind, CallNews, CallOf, CallStatus, Callee, CallerIdentity, HangupCause, Line,
    NewCall, NewTransfer, TransferTarget, Trunk, WAITING_NEWS,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// Rooms that admit everyone, the names of those that were kept, and of one that no call may take unless by its number.
#[derive(Default)]
struct Hall(
    Mutex<Vec<(Join, LinkEnd)>>,
    Mutex<Vec<String>>,
    Option<&'static str>,
);

#[async_trait]
impl Rooms for Hall {
    async fn join(&self, join: Join) -> Result<RoomLink, String> {
        let (link, end) = pair(&join, |_| {});
        let connected = LinkEvent::Connected {
            sid: "PA_1".to_owned(),
            identity: join.identity.clone(),
        };
        assert!(end.tell(connected));
        self.0.lock().unwrap().push((join, end));
        Ok(link)
    }

    async fn has(&self, room: &str, identity: &str) -> bool {
        let joined = self.0.lock().unwrap();
        let mut joins = joined.iter().map(|(join, _)| join);
        joins.any(|join| join.room == room && join.identity == identity)
    }

    async fn may_take(&self, room: &str, call: &Takeover) -> bool {
        call.by_number || self.2 != Some(room)
    }

    async fn keep(&self, room: &str) {
        self.1.lock().unwrap().push(room.to_owned());
    }
}

impl Hall {
    fn joined(&self) -> Join {
        self.0.lock().unwrap().last().unwrap().0.clone()
    }

    fn kept(&self) -> Vec<String> {
        self.1.lock().unwrap().clone()
    }

    fn tell(&self, event: LinkEvent) {
        assert!(self.0.lock().unwrap().last().unwrap().1.tell(event));
    }

    fn remove(&self) {
        let (_, end) = self.0.lock().unwrap().pop().unwrap();
        end.end(Ending::Removed);
    }
}

struct House {
    bridge: Bridge,
    hall: Arc<Hall>,
    news: mpsc::Receiver<CallNews>,
}

/// Rooms whose joins take time.
#[derive(Default)]
struct Slow {
    hall: Hall,
    asked: Notify,
    open: Notify,
}

#[async_trait]
impl Rooms for Slow {
    async fn join(&self, join: Join) -> Result<RoomLink, String> {
        self.asked.notify_one();
        self.open.notified().await;
        self.hall.join(join).await
    }

    async fn has(&self, room: &str, identity: &str) -> bool {
        self.hall.has(room, identity).await
    }

    async fn may_take(&self, room: &str, call: &Takeover) -> bool {
        self.hall.may_take(room, call).await
    }

    async fn keep(&self, room: &str) {
        self.hall.keep(room).await;
    }
}

async fn house(protocol: Protocol, most_calls: usize) -> House {
    let hall = Arc::new(Hall::default());
    let (bridge, news) = bridge(protocol, most_calls, hall.clone()).await;
    House { bridge, hall, news }
}

/// A bridge with media ports of its own.
async fn bridge(
    protocol: Protocol,
    most_calls: usize,
    rooms: Arc<dyn Rooms>,
) -> (Bridge, mpsc::Receiver<CallNews>) {
    bridge_with(protocol, most_calls, rooms, RoomMode::Number, None).await
}

/// The same with an owner per call.
async fn bridge_with(
    protocol: Protocol,
    most_calls: usize,
    rooms: Arc<dyn Rooms>,
    room_mode: RoomMode,
    owners: Option<Owners>,
) -> (Bridge, mpsc::Receiver<CallNews>) {
    let unacknowledged = Unacknowledged::default();
    bridge_bounded(
        protocol,
        most_calls,
        rooms,
        room_mode,
        owners,
        unacknowledged,
        lines(most_calls),
    )
    .await
}

fn lines(most_calls: usize) -> Quota {
    Quota::new(Kind::Calls, most_calls, Share::default())
}

/// A line of nobody's.
fn line() -> Line {
    Line {
        owner: Owner::Nobody,
        permit: lines(1).hold(&Party::Operator),
    }
}

/// The same with limits of calls on trial, and of tenants.
async fn bridge_bounded(
    protocol: Protocol,
    most_calls: usize,
    rooms: Arc<dyn Rooms>,
    room_mode: RoomMode,
    owners: Option<Owners>,
    unacknowledged: Unacknowledged,
    quota: Quota,
) -> (Bridge, mpsc::Receiver<CallNews>) {
    use std::sync::atomic::{AtomicU16, Ordering};
    static PORTS: AtomicU16 = AtomicU16::new(0);
    // Other test runs on this machine use other ports. Clients of theirs may have some of these: there are twice as many as the
    // most calls need.
    let own = 40_000 + u16::try_from(std::process::id() % 200).unwrap() * 100;
    let first = own + PORTS.fetch_add(1, Ordering::Relaxed) * 16;
    let settings = BridgeSettings {
        trunks: None,
        prompts: None,
        trace_numbers: false,
        gateways: Vec::new(),
        gateway_checks: Duration::ZERO,
        redirects: None,
        referrals: None,
        phones: Vec::new(),
        registrations: Vec::new(),
        replaces: AcceptReplaces::SameAddress,
        refers_by_sip: false,
        sockets: vivavoce_takeover::Sockets::default(),
        listen: vec![Listen {
            protocol,
            address: (Ipv4Addr::LOCALHOST, 0).into(),
        }],
        allowed: vec!["127.0.0.1/32".parse().unwrap()],
        advertised: None,
        tls: TlsSettings::default(),
        room_prefix: "call-".to_owned(),
        room_mode,
        owners,
        quota,
        most_calls,
        most_calls_per_room: 2,
        unacknowledged,
        max_duration: Duration::from_mins(10),
        media: MediaSettings {
            ports: first..=first + 15,
            threads: 1,
            timeout: Duration::from_secs(30),
            encryption: Encryption::Off,
            codecs: vec![Codec::Pcmu],
            advertised: Vec::new(),
            sources: [].into(),
            complexity: 0,
            relay: true,
        },
    };
    let (sender, news) = mpsc::channel(WAITING_NEWS);
    let bridge = Bridge::start(settings, rooms, sender).await.unwrap();
    (bridge, news)
}

impl House {
    fn new_call(other: &Self, protocol: Protocol) -> NewCall {
        let address = other.bridge.addresses()[0];
        NewCall {
            room: "room".to_owned(),
            identity: "phone".to_owned(),
            principal: Principal::Operator,
            name: "Phone".to_owned(),
            metadata: String::new(),
            from: PhoneNumber::parse("+14155550100").unwrap(),
            display_name: None,
            hides_caller: false,
            to: Callee::Number(PhoneNumber::parse("+14155550199").unwrap()),
            trunk: Trunk {
                gateway: Gateway::parse(&address.to_string()).unwrap(),
                transport: match protocol {
                    Protocol::Udp => SipTransport::Udp,
                    Protocol::Tcp => SipTransport::Tcp,
                    Protocol::Tls => SipTransport::Tls,
                    Protocol::Ws | Protocol::Wss => {
                        unreachable!("nobody calls a browser by a trunk")
                    }
                },
                login: None,
                private: true,
                from_domain: None,
                headers: Vec::new(),
                via: None,
                identity: CallerIdentity::default(),
            },
            alternatives: Vec::new(),
            attributes: Vec::new(),
            hides_numbers: false,
            ringing_timeout: Duration::from_secs(30),
            max_duration: Duration::from_mins(10),
            dtmf: String::new(),
            classify: None,
        }
    }

    /// The only call there is.
    fn call(&self) -> CallOf {
        let report = self.bridge.calls().remove(0);
        CallOf {
            room: report.room,
            identity: report.identity,
            sip_call_id: report.sip_call_id,
        }
    }

    async fn becomes(&mut self, status: CallStatus) -> CallNews {
        let news = timeout(PATIENCE, self.news.recv()).await;
        let news = news.unwrap().unwrap();
        assert_eq!(news.status, status, "{news:?}");
        news
    }
}

/// Two bridges.
async fn connected(protocol: Protocol) -> (House, House) {
    let (mut ann, mut bob) = tokio::join!(house(protocol, 4), house(protocol, 4));
    let placed = ann
        .bridge
        .call(House::new_call(&bob, protocol), line())
        .await
        .unwrap();
    assert_eq!(placed.participant_sid, "PA_1");
    ann.becomes(CallStatus::Dialing).await;
    ann.becomes(CallStatus::Ringing).await;
    bob.becomes(CallStatus::Ringing).await;
    bob.hall.tell(LinkEvent::Listened);
    bob.becomes(CallStatus::Active).await;
    ann.becomes(CallStatus::Active).await;
    (ann, bob)
}

#[tokio::test]
async fn a_call_goes_from_one_room_into_another() {
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        let (mut ann, mut bob) = connected(protocol).await;
        let join = bob.hall.joined();
        assert_eq!(
            (join.room.as_str(), join.identity.as_str(), join.kind),
            ("call-+14155550199", "sip_+14155550100", JoinKind::Caller)
        );
        let attribute = |name: &str| {
            let found = join.attributes.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.as_str())
        };
        assert_eq!(attribute("sip.phoneNumber"), Some("+14155550100"));
        assert_eq!(attribute("sip.trunkPhoneNumber"), Some("+14155550199"));
        assert_eq!(attribute("sip.callStatus"), Some("ringing"));
        assert!(attribute("sip.callIDFull").is_some() && attribute("sip.callTag").is_some());
        let call = ann.call();
        // A report belongs to its call, not to a later one with the same ports.
        let others = CallOf {
            sip_call_id: "SCL_other".to_owned(),
            ..call.clone()
        };
        let elsewhere = CallOf {
            room: "another".to_owned(),
            ..call.clone()
        };
        let nobodys = CallOf {
            identity: "nobody".to_owned(),
            ..call.clone()
        };
        for other in [others, elsewhere, nobodys] {
            let gone = ann.bridge.hang_up(&other).await.unwrap_err();
            assert_eq!(gone.kind, CallErrorKind::NotFound, "{other:?}");
        }
        ann.bridge.hang_up(&call).await.unwrap();
        ann.becomes(CallStatus::Hangup(HangupCause::Local)).await;
        bob.becomes(CallStatus::Hangup(HangupCause::Remote)).await;
    }
}

#[tokio::test]
async fn the_room_of_a_call_is_kept_only_once_its_answer_was_acknowledged() {
    let (ann, mut bob) = tokio::join!(house(Protocol::Udp, 4), house(Protocol::Udp, 4));
    let call = House::new_call(&bob, Protocol::Udp);
    ann.bridge.call(call, line()).await.unwrap();
    assert_eq!(ann.hall.kept(), ["room"], "it was we who called");
    bob.becomes(CallStatus::Ringing).await;
    ann.bridge.hang_up(&ann.call()).await.unwrap();
    bob.becomes(CallStatus::Hangup(HangupCause::Cancelled))
        .await;
    assert_eq!(bob.hall.kept(), [""; 0], "it was taken back");
    let (_ann, bob) = connected(Protocol::Udp).await;
    let acknowledged = async {
        while bob.hall.kept().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, acknowledged).await.unwrap();
    assert_eq!(bob.hall.kept(), ["call-+14155550199"]);
}

/// An INVITE of a telephone that sends and receives what the test says, and no more.
async fn invite(socket: &UdpSocket, call: &str) {
    invite_as(socket, call, "x").await;
}

/// The same from somebody.
async fn invite_as(socket: &UdpSocket, call: &str, user: &str) {
    let local = socket.local_addr().unwrap();
    let sdp = format!(
        "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n\
         m=audio {} RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n",
        local.port(),
    );
    let text = format!(
        "INVITE sip:100@h SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bK{call};rport\r\n\
         From: <sip:{user}@{local}>;tag=f\r\nTo: <sip:100@h>\r\nCall-ID: {call}\r\nCSeq: 1 INVITE\r\n\
         Contact: <sip:x@{local}>\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{sdp}",
        sdp.len(),
    );
    socket.send(text.as_bytes()).await.unwrap();
}

/// The next message that begins like this.
async fn told(socket: &UdpSocket, beginning: &str) -> String {
    let mut bytes = [0; 4_096];
    loop {
        let received = timeout(PATIENCE, socket.recv(&mut bytes)).await;
        let text = String::from_utf8_lossy(&bytes[..received.unwrap().unwrap()]).into_owned();
        if text.starts_with(beginning) {
            return text;
        }
    }
}

#[tokio::test]
async fn whoever_never_acknowledges_keeps_no_line_while_it_is_hung_up_on() {
    let hall = Arc::new(Hall::default());
    let bounds = Unacknowledged {
        patience: Duration::from_millis(50),
        ..Unacknowledged::default()
    };
    let mode = RoomMode::Call;
    let rooms = hall.clone();
    let (bridge, news) =
        bridge_bounded(Protocol::Udp, 1, rooms, mode, None, bounds, lines(1)).await;
    let mut bob = House { bridge, hall, news };
    let forger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    forger.connect(bob.bridge.addresses()[0]).await.unwrap();
    invite(&forger, "forged").await;
    bob.becomes(CallStatus::Ringing).await;
    bob.hall.tell(LinkEvent::Listened);
    told(&forger, "SIP/2.0 200 ").await;
    bob.becomes(CallStatus::Active).await;
    bob.becomes(CallStatus::Hangup(HangupCause::Unreachable))
        .await;
    bob.hall.remove();
    // The first BYE, and half a second later the next.
    for _ in 0..2 {
        told(&forger, "BYE ").await;
    }
    invite(&forger, "next").await;
    bob.becomes(CallStatus::Ringing).await;
}

/// A gateway that answers an INVITE with this status, and says nothing to CANCEL, BYE and whatever else.
async fn answers_once(gateway: &UdpSocket, status: &str, sdp: &str) {
    let mut bytes = [0; 4_096];
    let (text, from) = loop {
        let received = timeout(PATIENCE, gateway.recv_from(&mut bytes)).await;
        let (length, from) = received.unwrap().unwrap();
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        if text.starts_with("INVITE ") {
            break (text, from);
        }
    };
    let of_the_call = text.lines().filter(|line| {
        let name = line.split(':').next().unwrap_or_default();
        ["Via", "From", "To", "Call-ID", "CSeq"].contains(&name)
    });
    let headers = of_the_call.map(|line| {
        let tag = if line.starts_with("To:") {
            ";tag=g"
        } else {
            ""
        };
        format!("{line}{tag}\r\n")
    });
    let answer = format!(
        "SIP/2.0 {status}\r\n{}Contact: <sip:g@{}>\r\nContent-Type: application/sdp\r\n\
         Content-Length: {}\r\n\r\n{sdp}",
        headers.collect::<String>(),
        gateway.local_addr().unwrap(),
        sdp.len(),
    );
    gateway.send_to(answer.as_bytes(), from).await.unwrap();
}

/// Else whoever ends calls at a gateway of its own would have as many more as it can end while that is silent.
#[tokio::test]
async fn a_call_counts_until_its_place_is_free_however_silent_the_other_side_is_at_the_end() {
    let mut ann = house(Protocol::Udp, 1).await;
    let gateway = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = gateway.local_addr().unwrap();
    let sdp = format!(
        "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n\
         m=audio {} RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n",
        address.port(),
    );
    let quota = lines(1);
    let tenant = TenantId::new("a").unwrap();
    let party = Party::Tenant(tenant.clone());
    let other = house(Protocol::Udp, 1).await;
    for (status, sdp, reached, cause) in [
        (
            "180 Ringing",
            "",
            CallStatus::Ringing,
            HangupCause::Cancelled,
        ),
        ("200 OK", &sdp, CallStatus::Active, HangupCause::Local),
    ] {
        let call = || {
            let mut call = House::new_call(&other, Protocol::Udp);
            call.trunk.gateway = Gateway::parse(&address.to_string()).unwrap();
            call
        };
        let line = Line {
            owner: Owner::Tenant(tenant.clone()),
            permit: quota.take(&party).unwrap(),
        };
        let placing = ann.bridge.call(call(), line);
        let (placed, ()) = tokio::join!(placing, answers_once(&gateway, status, sdp));
        placed.unwrap();
        let news = ann.becomes(CallStatus::Dialing).await;
        assert_eq!(news.owner, Some(Owner::Tenant(tenant.clone())));
        ann.becomes(reached).await;
        let call_of = CallOf {
            room: news.room,
            identity: news.identity,
            sip_call_id: news.sip_call_id,
        };
        ann.bridge.hang_up(&call_of).await.unwrap();
        ann.becomes(CallStatus::Hangup(cause)).await;
        // It is over, and its place is not free.
        let full = ann.bridge.call(call(), self::line()).await.unwrap_err();
        assert_eq!((full.kind, quota.of(&party)), (CallErrorKind::Full, 1));
        let given_back = async {
            while quota.of(&party) > 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, given_back).await.unwrap();
    }
}

/// Else the calls to one tenant's number would keep those of all others out.
#[tokio::test]
async fn inbound_calls_leave_lines_to_others_than_the_tenant_whom_they_are_for() {
    let quota = lines(4);
    let owners: Owners = Arc::new(|headers: &[(String, String)], _: &str| {
        let of_tenant = headers.iter().any(|(_, value)| value.contains("for-b"));
        let owner = if of_tenant {
            Owner::Tenant(TenantId::new("b").unwrap())
        } else {
            Owner::Operator
        };
        Takeover {
            owner,
            by_number: true,
        }
    });
    let hall = Arc::new(Hall::default());
    let (bridge, mut news) = bridge_bounded(
        Protocol::Udp,
        4,
        hall.clone(),
        RoomMode::Call,
        Some(owners),
        Unacknowledged::default(),
        quota.clone(),
    )
    .await;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.connect(bridge.addresses()[0]).await.unwrap();
    let party = Party::Tenant(TenantId::new("b").unwrap());
    for number in 0..4 {
        invite_as(&socket, &format!("b{number}"), "for-b").await;
    }
    let refused = told(&socket, "SIP/2.0 503 ").await;
    assert!(refused.contains("\r\nRetry-After: 1\r\n"), "{refused}");
    assert_eq!(quota.of(&party), 3);
    // Those of the operator have all that are left.
    invite_as(&socket, "operators", "x").await;
    let mut begun = 0;
    while begun < 4 {
        let next = timeout(PATIENCE, news.recv()).await.unwrap().unwrap();
        begun += usize::from(next.status == CallStatus::Ringing);
    }
    bridge.stop().await;
    assert_eq!(quota.of(&party), 0);
}

#[tokio::test]
async fn whoever_calls_puts_nobody_out_who_has_their_number_as_an_identity() {
    let (ann, mut bob) = tokio::join!(house(Protocol::Udp, 4), house(Protocol::Udp, 4));
    let (room, taken) = ("call-+14155550199", "sip_+14155550100");
    let present = Join {
        room: room.to_owned(),
        identity: taken.to_owned(),
        name: String::new(),
        kind: JoinKind::Agent,
        principal: Principal::Operator,
        owner: None,
        metadata: String::new(),
        attributes: Vec::new(),
        room_config: None,
        listen: vivavoce_seams::rooms::link::Listen::All,
        audio: true,
    };
    let _session = bob.hall.join(present).await.unwrap();
    let call = House::new_call(&bob, Protocol::Udp);
    ann.bridge.call(call, line()).await.unwrap();
    let news = bob.becomes(CallStatus::Ringing).await;
    let id = news.sip_call_id.trim_start_matches("SCL_");
    assert_eq!(
        (news.room.as_str(), news.identity),
        (room, format!("{taken}_{id}"))
    );
    let report = bob.bridge.calls().remove(0);
    assert_eq!(report.identity, format!("{taken}_{id}"));
    while bob.hall.0.lock().unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(bob.hall.joined().identity, format!("{taken}_{id}"));
}

#[tokio::test]
async fn whoever_is_removed_from_the_room_hangs_up() {
    let (mut ann, mut bob) = connected(Protocol::Udp).await;
    bob.hall.remove();
    bob.becomes(CallStatus::Hangup(HangupCause::Local)).await;
    ann.becomes(CallStatus::Hangup(HangupCause::Remote)).await;
}

#[tokio::test]
async fn a_transfer_that_is_refused_leaves_the_call() {
    let (mut ann, mut bob) = connected(Protocol::Udp).await;
    let transfer = NewTransfer {
        call: ann.call(),
        to: TransferTarget::Number(PhoneNumber::parse("1000").unwrap()),
        ringing_timeout: Duration::from_secs(30),
    };
    let (accepted, _) = oneshot::channel();
    let refused = timeout(PATIENCE, ann.bridge.transfer(transfer, accepted));
    let refused = refused.await.unwrap().unwrap_err();
    assert_eq!(refused.kind, CallErrorKind::Rejected(405));
    assert_eq!(ann.bridge.calls()[0].status, CallStatus::Active);
    bob.bridge.stop().await;
    bob.becomes(CallStatus::Hangup(HangupCause::Shutdown)).await;
    ann.becomes(CallStatus::Hangup(HangupCause::Remote)).await;
}

#[tokio::test]
async fn a_call_that_is_being_placed_when_the_server_stops_ends_before_it_does() {
    let bob = house(Protocol::Udp, 1).await;
    let slow = Arc::new(Slow::default());
    let (ann, _news) = bridge(Protocol::Udp, 1, slow.clone()).await;
    let (caller, call) = (ann.clone(), House::new_call(&bob, Protocol::Udp));
    let placing = tokio::spawn(async move { caller.call(call, line()).await });
    slow.asked.notified().await;
    let opening = async { slow.open.notify_one() };
    let (stopped, ()) = tokio::join!(timeout(PATIENCE, ann.stop()), opening);
    stopped.unwrap();
    let calls = ann.calls();
    let status: Vec<CallStatus> = calls.iter().map(|call| call.status).collect();
    assert_eq!(status, [CallStatus::Hangup(HangupCause::Shutdown)]);
    placing.await.unwrap().unwrap();
}

#[tokio::test]
async fn there_are_no_more_calls_than_there_may_be() {
    let (mut ann, mut bob) = tokio::join!(house(Protocol::Udp, 2), house(Protocol::Udp, 1));
    ann.bridge
        .call(House::new_call(&bob, Protocol::Udp), line())
        .await
        .unwrap();
    bob.becomes(CallStatus::Ringing).await;
    let second = NewCall {
        identity: "second".to_owned(),
        ..House::new_call(&bob, Protocol::Udp)
    };
    ann.bridge.call(second, line()).await.unwrap();
    let full = ann
        .bridge
        .call(House::new_call(&bob, Protocol::Udp), line())
        .await;
    assert_eq!(full.unwrap_err().kind, CallErrorKind::Full);
    loop {
        let news = timeout(PATIENCE, ann.news.recv()).await.unwrap().unwrap();
        if let CallStatus::Hangup(cause) = news.status {
            assert_eq!(
                (news.identity.as_str(), cause),
                ("second", HangupCause::Failed)
            );
            break;
        }
    }
}

/// Each participant of a room hears all others: the cost is quadratic.
#[tokio::test]
async fn there_are_no_more_calls_in_a_room_than_there_may_be() {
    let (mut ann, mut bob) = tokio::join!(house(Protocol::Udp, 4), house(Protocol::Udp, 4));
    let call = |room: &str, identity: &str, to: &str| NewCall {
        room: room.to_owned(),
        identity: identity.to_owned(),
        to: Callee::Number(PhoneNumber::parse(to).unwrap()),
        ..House::new_call(&bob, Protocol::Udp)
    };
    let calls = [
        call("room", "first", "+14155550199"),
        call("room", "second", "+14155550199"),
        call("room", "third", "+14155550199"),
        call("elsewhere", "third", "+14155550199"),
        call("elsewhere", "fourth", "+14155550198"),
    ];
    let mut placed = Vec::new();
    for call in calls {
        let error = ann.bridge.call(call, line()).await.err();
        placed.push(error.map(|error| error.kind));
    }
    assert_eq!(placed, [None, None, Some(CallErrorKind::Full), None, None]);
    // The third inbound call to a room gets 486; one to another room does not.
    let busy = loop {
        let news = timeout(PATIENCE, ann.news.recv()).await.unwrap().unwrap();
        if let CallStatus::Hangup(cause) = news.status {
            break (news.identity, cause);
        }
    };
    assert_eq!(busy, ("third".to_owned(), HangupCause::Busy));
    for _ in 0..3 {
        bob.becomes(CallStatus::Ringing).await;
    }
}

#[tokio::test]
async fn a_server_that_is_about_to_stop_begins_no_call_and_ends_none() {
    let (mut ann, mut bob) = connected(Protocol::Udp).await;
    for bridge in [&ann.bridge, &bob.bridge] {
        bridge.take_no_more();
    }
    let placed = ann
        .bridge
        .call(House::new_call(&bob, Protocol::Udp), line())
        .await;
    assert_eq!(placed.unwrap_err().kind, CallErrorKind::Full);
    // Inbound calls are refused as well.
    let mut cid = house(Protocol::Udp, 1).await;
    cid.bridge
        .call(House::new_call(&bob, Protocol::Udp), line())
        .await
        .unwrap();
    cid.becomes(CallStatus::Dialing).await;
    cid.becomes(CallStatus::Hangup(HangupCause::Failed)).await;
    ann.bridge.stop().await;
    for house in [&mut ann, &mut bob] {
        let ended = timeout(PATIENCE, house.news.recv()).await.unwrap().unwrap();
        assert!(ended.status.cause().is_some(), "{ended:?}");
    }
}

/// Rooms and owners of calls to one number that overlap.
async fn rooms_of_calls(mode: RoomMode, owners: Option<&'static [&str]>) -> Vec<(Join, CallNews)> {
    rooms_in(Hall::default(), mode, owners, true).await
}

/// The same in these rooms.
async fn rooms_in(
    hall: Hall,
    mode: RoomMode,
    owners: Option<&'static [&str]>,
    by_number: bool,
) -> Vec<(Join, CallNews)> {
    let hall = Arc::new(hall);
    let asked = Arc::new(Mutex::new(0));
    let of_call = owners.map(|owners| -> Owners {
        Arc::new(move |headers: &[(String, String)], number: &str| {
            assert_eq!(number, "+14155550199");
            assert!(headers.iter().any(|(name, _)| name == "sip.h.to"));
            let mut asked = asked.lock().unwrap();
            *asked += 1;
            let owner = match owners[*asked - 1] {
                "" => Owner::Operator,
                id => Owner::Tenant(TenantId::new(id).unwrap()),
            };
            Takeover { owner, by_number }
        })
    });
    let (bridge, news) = bridge_with(Protocol::Udp, 4, hall.clone(), mode, of_call).await;
    let mut bob = House { bridge, hall, news };
    let ann = house(Protocol::Udp, 4).await;
    let mut seen = Vec::new();
    for index in 0..owners.map_or(2, <[&str]>::len) {
        let call = NewCall {
            identity: format!("phone-{index}"),
            room: format!("out-{index}"),
            ..House::new_call(&bob, Protocol::Udp)
        };
        ann.bridge.call(call, line()).await.unwrap();
        let news = loop {
            let news = timeout(PATIENCE, bob.news.recv()).await.unwrap().unwrap();
            if news.status == CallStatus::Ringing {
                break news;
            }
        };
        while bob.hall.0.lock().unwrap().len() <= index {
            tokio::task::yield_now().await;
        }
        bob.hall.tell(LinkEvent::Listened);
        bob.becomes(CallStatus::Active).await;
        seen.push((bob.hall.joined(), news));
    }
    seen
}

#[tokio::test]
async fn calls_share_a_room_or_have_one_each_as_the_mode_says() {
    for (mode, shared) in [(RoomMode::Number, true), (RoomMode::Call, false)] {
        let calls = rooms_of_calls(mode, None).await;
        let [(first, _), (further, news)] = calls.as_slice() else {
            panic!("{calls:?}")
        };
        assert_eq!(first.room, "call-+14155550199");
        let own = format!("call-+14155550199_{}", news.sip_call_id);
        let expected = if shared { &first.room } else { &own };
        assert_eq!((&further.room, &news.room), (expected, expected));
        // There are no tenants.
        assert_eq!(
            (&further.principal, &further.owner),
            (&Principal::Operator, &None)
        );
    }
}

#[tokio::test]
async fn a_call_joins_for_its_owner_and_never_where_another_owners_call_lasts() {
    const OWNERS: [&str; 4] = ["a", "a", "b", ""];
    let calls = rooms_of_calls(RoomMode::Number, Some(&OWNERS)).await;
    for ((join, news), id) in calls.iter().zip(OWNERS) {
        let (owner, principal) = match id {
            "" => (Owner::Operator, Principal::Operator),
            id => {
                let tenant = TenantId::new(id).unwrap();
                (Owner::Tenant(tenant.clone()), Principal::Tenant(tenant))
            }
        };
        assert_eq!(
            (join.owner.as_ref().map(|call| &call.owner), &join.principal),
            (Some(&owner), &principal)
        );
        assert_eq!(news.owner, Some(owner));
        assert_eq!(join.room, news.room);
        let own = format!("call-+14155550199_{}", news.sip_call_id);
        let expected = if id == "a" { "call-+14155550199" } else { &own };
        assert_eq!(join.room, expected);
    }
}

#[tokio::test]
async fn a_call_whose_room_is_anothers_has_one_of_its_own_unless_by_its_number() {
    const ROOM: &str = "call-+14155550199";
    for mode in [RoomMode::Number, RoomMode::Call] {
        for (by_number, others, shared) in [
            (false, Some(ROOM), false),
            (true, Some(ROOM), true),
            (false, None, true),
        ] {
            let hall = Hall(Mutex::default(), Mutex::default(), others);
            let calls = rooms_in(hall, mode, Some(&[""]), by_number).await;
            let [(join, news)] = calls.as_slice() else {
                panic!("{calls:?}")
            };
            let own = format!("{ROOM}_{}", news.sip_call_id);
            assert_eq!(join.room, if shared { ROOM } else { &own });
            assert_eq!(join.room, news.room);
            assert_eq!(join.owner.as_ref().unwrap().by_number, by_number);
        }
    }
}
