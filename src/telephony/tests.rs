//! Two bridges that call each other on loopback, each with rooms of which nothing is there but the ends of links.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;

use super::agent::{Listen, Protocol, TlsSettings};
use super::bridge::{Bridge, BridgeSettings, Rooms};
use super::media::{Codec, Encryption, MediaSettings};
use crate::config::SipTransport;
use crate::phone::{Gateway, PhoneNumber};
use crate::providers::rooms::link::{Ending, Join, JoinKind, LinkEnd, LinkEvent, RoomLink, pair};
use crate::providers::rooms::telephone::{
    CallErrorKind, CallNews, CallStatus, HangupCause, NewCall, NewTransfer, TransferTarget, Trunk,
    WAITING_NEWS,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// Rooms that take everybody.
#[derive(Default)]
struct Hall(Mutex<Vec<(Join, LinkEnd)>>);

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
}

impl Hall {
    fn joined(&self) -> Join {
        self.0.lock().unwrap().last().unwrap().0.clone()
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

/// Rooms that take their time.
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
    use std::sync::atomic::{AtomicU16, Ordering};
    static PORTS: AtomicU16 = AtomicU16::new(0);
    // Those of other test runs on this machine are elsewhere.
    let own = 40_000 + u16::try_from(std::process::id() % 200).unwrap() * 100;
    let first = own + PORTS.fetch_add(1, Ordering::Relaxed) * 8;
    let settings = BridgeSettings {
        listen: vec![Listen {
            protocol,
            address: (Ipv4Addr::LOCALHOST, 0).into(),
        }],
        allowed: vec!["127.0.0.1/32".parse().unwrap()],
        advertised: None,
        tls: TlsSettings::default(),
        room_prefix: "call-".to_owned(),
        most_calls,
        max_duration: Duration::from_mins(10),
        media: MediaSettings {
            ports: first..=first + 7,
            threads: 1,
            timeout: Duration::from_secs(30),
            encryption: Encryption::Off,
            codecs: vec![Codec::Pcmu],
            advertised: Vec::new(),
            complexity: 0,
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
            name: "Phone".to_owned(),
            metadata: String::new(),
            from: PhoneNumber::parse("+14155550100").unwrap(),
            display_name: None,
            to: PhoneNumber::parse("+14155550199").unwrap(),
            trunk: Trunk {
                gateway: Gateway::parse(&address.to_string()).unwrap(),
                transport: match protocol {
                    Protocol::Udp => SipTransport::Udp,
                    Protocol::Tcp => SipTransport::Tcp,
                    Protocol::Tls => SipTransport::Tls,
                },
                login: None,
                private: true,
            },
            attributes: Vec::new(),
            hides_numbers: false,
            ringing_timeout: Duration::from_secs(30),
            max_duration: Duration::from_mins(10),
            dtmf: String::new(),
        }
    }

    async fn becomes(&mut self, status: CallStatus) -> CallNews {
        let news = timeout(PATIENCE, self.news.recv()).await;
        let news = news.unwrap().unwrap();
        assert_eq!(news.status, status, "{news:?}");
        news
    }
}

/// Two who speak.
async fn connected(protocol: Protocol) -> (House, House) {
    let (mut ann, mut bob) = tokio::join!(house(protocol, 4), house(protocol, 4));
    let placed = ann
        .bridge
        .call(House::new_call(&bob, protocol))
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
            ("call-+14155550199", "sip_+14155550100", JoinKind::Telephone)
        );
        let attribute = |name: &str| {
            let found = join.attributes.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.as_str())
        };
        assert_eq!(attribute("sip.phoneNumber"), Some("+14155550100"));
        assert_eq!(attribute("sip.trunkPhoneNumber"), Some("+14155550199"));
        assert_eq!(attribute("sip.callStatus"), Some("ringing"));
        assert!(attribute("sip.callIDFull").is_some() && attribute("sip.callTag").is_some());
        ann.bridge.hang_up("room", "phone").await.unwrap();
        ann.becomes(CallStatus::Hangup(HangupCause::Local)).await;
        bob.becomes(CallStatus::Hangup(HangupCause::Remote)).await;
        let gone = ann.bridge.hang_up("room", "nobody").await.unwrap_err();
        assert_eq!(gone.kind, CallErrorKind::NotFound);
    }
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
        room: "room".to_owned(),
        identity: "phone".to_owned(),
        to: TransferTarget::Number(PhoneNumber::parse("1000").unwrap()),
        ringing_timeout: Duration::from_secs(30),
    };
    let (accepted, _) = oneshot::channel();
    let refused = timeout(PATIENCE, ann.bridge.transfer(transfer, accepted));
    let refused = refused.await.unwrap().unwrap_err();
    assert_eq!(refused.kind, CallErrorKind::Rejected(603));
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
    let placing = tokio::spawn(async move { caller.call(call).await });
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
        .call(House::new_call(&bob, Protocol::Udp))
        .await
        .unwrap();
    bob.becomes(CallStatus::Ringing).await;
    let second = NewCall {
        identity: "second".to_owned(),
        ..House::new_call(&bob, Protocol::Udp)
    };
    ann.bridge.call(second).await.unwrap();
    let full = ann.bridge.call(House::new_call(&bob, Protocol::Udp)).await;
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

#[tokio::test]
async fn a_server_that_is_about_to_stop_begins_no_call_and_ends_none() {
    let (mut ann, mut bob) = connected(Protocol::Udp).await;
    for bridge in [&ann.bridge, &bob.bridge] {
        bridge.take_no_more();
    }
    let placed = ann.bridge.call(House::new_call(&bob, Protocol::Udp)).await;
    assert_eq!(placed.unwrap_err().kind, CallErrorKind::Full);
    // What comes is refused as well.
    let mut cid = house(Protocol::Udp, 1).await;
    cid.bridge
        .call(House::new_call(&bob, Protocol::Udp))
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
