//! Two user agents, or one and a script, on loopback.

mod answers;
mod torture;
mod transports;
mod trials;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::*;

const HERE: &str = "127.0.0.1/32";
const PATIENCE: Duration = Duration::from_secs(10);

struct Called {
    agent: Agent,
    address: SocketAddr,
    invitations: mpsc::Receiver<Invitation>,
}

async fn called(protocol: Protocol, allowed: &[&str]) -> Called {
    let allowed = allowed.iter().map(|net| net.parse().unwrap()).collect();
    let (agent, invitations) = Agent::start(
        allowed,
        Unacknowledged::default(),
        TlsSettings::default(),
        None,
    );
    let listen = Listen {
        protocol,
        address: (Ipv4Addr::LOCALHOST, 0).into(),
    };
    let address = agent.listen(&listen).await.unwrap();
    Called {
        agent,
        address,
        invitations,
    }
}

fn outbound(protocol: Protocol, remote: SocketAddr, password: &str) -> Outbound {
    Outbound {
        protocol,
        remote,
        host: remote.to_string(),
        to: "+14155550100".to_owned(),
        from: "#31#1000".to_owned(),
        from_domain: None,
        proxy: None,
        identity: vivavoce_seams::rooms::telephone::CallerIdentity::Untold,
        hides_caller: false,
        display_name: Some("A \"B\"".to_owned()),
        credentials: Some(Credentials {
            username: "user".to_owned(),
            password: password.to_owned(),
        }),
        headers: vec![("X-One".to_owned(), "1".to_owned())],
        private: true,
    }
}

async fn call(agent: &Agent, protocol: Protocol, remote: SocketAddr) -> Leg {
    let outbound = outbound(protocol, remote, "secret");
    let reached = agent.reach(protocol, remote, &outbound.host).await.unwrap();
    let offer = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\n".to_owned();
    agent.call(reached, outbound, offer).unwrap()
}

async fn next(leg: &mut Leg) -> LegEvent {
    timeout(PATIENCE, leg.next()).await.unwrap().unwrap()
}

async fn until<T>(leg: &mut Leg, mut wanted: impl FnMut(LegEvent) -> Option<T>) -> T {
    loop {
        if let Some(found) = wanted(next(leg).await) {
            return found;
        }
    }
}

async fn invitation(called: &mut Called) -> Invitation {
    timeout(PATIENCE, called.invitations.recv())
        .await
        .unwrap()
        .unwrap()
}

async fn connected(protocol: Protocol) -> (Called, Called, Leg, Leg) {
    let mut callee = called(protocol, &[HERE]).await;
    let caller = called(protocol, &[]).await;
    let mut leg = call(&caller.agent, protocol, callee.address).await;
    let invitation = invitation(&mut callee).await;
    assert_eq!(invitation.called().as_deref(), Some("+14155550100"));
    assert!(invitation.offer().unwrap().starts_with("v=0"));
    let headers = invitation.headers();
    let header = |name: &str| {
        let found = headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str()).unwrap_or_default()
    };
    assert_eq!(header("x-one"), "1");
    let from = header::Address::parse(header("from"));
    assert_eq!(from.user().as_deref(), Some("#31#1000"));
    assert_eq!(from.display, Some("\"A \\\"B\\\"\""));
    let mut other = invitation.take();
    other.ring(None);
    let code = until(&mut leg, |event| match event {
        LegEvent::Progress { code: 180, .. } => Some(180),
        LegEvent::Progress { .. } => None,
        other => panic!("{other:?}"),
    });
    assert_eq!(code.await, 180);
    other.answer("v=0\r\ns=answer\r\n".to_owned());
    let answer = until(&mut leg, |event| match event {
        LegEvent::Answered { sdp, .. } => sdp,
        other => panic!("{other:?}"),
    });
    assert!(answer.await.contains("s=answer"));
    assert!(matches!(
        next(&mut other).await,
        LegEvent::Acknowledged { sdp: None }
    ));
    (caller, callee, leg, other)
}

#[tokio::test]
async fn a_call_is_taken_and_hung_up_by_either_side_over_udp_and_tcp() {
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        let (_caller, _callee, mut leg, other) = connected(protocol).await;
        other.hang_up().await;
        assert!(matches!(next(&mut leg).await, LegEvent::Ended));
        let (_caller, _callee, leg, mut other) = connected(protocol).await;
        leg.hang_up().await;
        assert!(matches!(next(&mut other).await, LegEvent::Ended));
    }
}

#[tokio::test]
async fn a_call_is_taken_back_before_it_is_taken() {
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        let mut callee = called(protocol, &[HERE]).await;
        let caller = called(protocol, &[]).await;
        let leg = call(&caller.agent, protocol, callee.address).await;
        let mut other = invitation(&mut callee).await.take();
        leg.cancel();
        assert!(matches!(next(&mut other).await, LegEvent::Cancelled));
    }
}

#[tokio::test]
async fn a_refusal_is_told_with_its_status() {
    let mut callee = called(Protocol::Udp, &[HERE]).await;
    let caller = called(Protocol::Udp, &[]).await;
    for code in [486, 603, 404, 503] {
        let mut leg = call(&caller.agent, Protocol::Udp, callee.address).await;
        invitation(&mut callee).await.refuse(code);
        let failure = until(&mut leg, |event| match event {
            LegEvent::Failed(Failure::Refused { code, .. }) => Some(code),
            LegEvent::Progress { .. } => None,
            other => panic!("{other:?}"),
        });
        assert_eq!(failure.await, code);
    }
}

#[tokio::test]
async fn whoever_is_not_allowed_is_refused() {
    let callee = called(Protocol::Udp, &["192.0.2.0/24"]).await;
    let caller = called(Protocol::Udp, &[]).await;
    let mut leg = call(&caller.agent, Protocol::Udp, callee.address).await;
    let refused = until(&mut leg, |event| match event {
        LegEvent::Failed(Failure::Refused { code, .. }) => Some(code),
        other => panic!("{other:?}"),
    });
    assert_eq!(refused.await, 403);
}

#[tokio::test]
async fn a_wish_to_move_the_call_is_refused() {
    let (_caller, _callee, mut leg, _other) = connected(Protocol::Udp).await;
    leg.refer(1, "<tel:+442071838750>", &[]);
    assert!(matches!(
        next(&mut leg).await,
        LegEvent::Referred {
            attempt: 1,
            code: Some(405)
        }
    ));
}

/// A peer that follows a script.
struct Script {
    socket: UdpSocket,
    from: Option<SocketAddr>,
}

impl Script {
    async fn start() -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        Self { socket, from: None }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    /// The next request with this method.
    async fn request(&mut self, method: Method) -> Request {
        loop {
            let mut bytes = vec![0; 65_535];
            let received = timeout(PATIENCE, self.socket.recv_from(&mut bytes));
            let (length, from) = received.await.unwrap().unwrap();
            self.from = Some(from);
            if let Ok(request) = Request::try_from(&bytes[..length])
                && request.method == method
            {
                return request;
            }
        }
    }

    async fn answer(&self, request: &Request, status: &str, more: &str) {
        self.answer_as("script", request, status, more).await;
    }

    async fn answer_as(&self, tag: &str, request: &Request, status: &str, more: &str) {
        let copied = |header: &&Header| {
            matches!(
                header,
                Header::Via(_) | Header::From(_) | Header::CallId(_) | Header::CSeq(_)
            )
        };
        let copied: Vec<String> = request
            .headers
            .iter()
            .filter(copied)
            .map(ToString::to_string)
            .collect();
        let to = request.to_header().unwrap().value();
        let to = to.split(";tag").next().unwrap();
        let text = format!(
            "SIP/2.0 {status}\r\n{}\r\nTo: {to};tag={tag}\r\n{more}Content-Length: 0\r\n\r\n",
            copied.join("\r\n"),
        );
        let from = self.from.unwrap();
        self.socket.send_to(text.as_bytes(), from).await.unwrap();
    }

    fn contact(&self) -> String {
        format!("Contact: <sip:script@{}>\r\n", self.address())
    }
}

/// A request of the script within the call that `invite` began.
fn within(invite: &Request, script: &Script, method: &str, cseq: u32, more: &str) -> String {
    let to = invite.from_header().unwrap().value();
    let from = invite.to_header().unwrap().value();
    let call_id = invite.call_id_header().unwrap().value();
    let body = if more.contains("application/sdp") {
        "v=0\r\n"
    } else {
        "SIP/2.0 486 Busy Here\r\n"
    };
    format!(
        "{method} sip:here SIP/2.0\r\nVia: SIP/2.0/UDP {};branch=z9hG4bK{method}{cseq};rport\r\n\
         From: {from};tag=script\r\nTo: {to}\r\nCall-ID: {call_id}\r\nCSeq: {cseq} {method}\r\n\
         Max-Forwards: 70\r\n{}{more}Content-Length: {}\r\n\r\n{body}",
        script.address(),
        script.contact(),
        body.len(),
    )
}

impl Script {
    /// Sends a request; the status code of the response.
    async fn ask(&self, request: &str) -> u16 {
        let from = self.from.unwrap();
        self.socket.send_to(request.as_bytes(), from).await.unwrap();
        loop {
            let mut bytes = vec![0; 65_535];
            let received = timeout(PATIENCE, self.socket.recv_from(&mut bytes));
            let (length, _) = received.await.unwrap().unwrap();
            let response = rsipstack::sip::Response::try_from(&bytes[..length]);
            if let Ok(response) = response
                && response.status_code.code() >= 200
            {
                return response.status_code.code();
            }
        }
    }
}

const OFFER: &str = "Content-Type: application/sdp\r\n";

#[tokio::test]
async fn who_wants_other_media_while_our_offer_is_open_is_to_try_again() {
    let caller = called(Protocol::Udp, &[]).await;
    let mut script = Script::start().await;
    let mut leg = call(&caller.agent, Protocol::Udp, script.address()).await;
    let invite = script.request(Method::Invite).await;
    script.answer(&invite, "180 Ringing", "").await;
    let update = within(&invite, &script, "UPDATE", 1, OFFER);
    assert_eq!(script.ask(&update).await, 491);
    // Without an offer, it only checks that we are there.
    let update = within(&invite, &script, "UPDATE", 2, "");
    let update = update.replace("SIP/2.0 486 Busy Here\r\n", "");
    let update = update.replace("Content-Length: 23", "Content-Length: 0");
    let (status, ()) = tokio::join!(script.ask(&update), async {
        let offered = until(&mut leg, |event| match event {
            LegEvent::Offered(offered) => Some(offered),
            _ => None,
        });
        offered.await.accept(None);
    });
    assert_eq!(status, 200);
    script.answer(&invite, "200 OK", &script.contact()).await;
    let answered = until(&mut leg, |event| {
        matches!(event, LegEvent::Answered { .. }).then_some(())
    });
    answered.await;
    script.request(Method::Ack).await;
    let update = within(&invite, &script, "UPDATE", 3, OFFER);
    let (status, ()) = tokio::join!(script.ask(&update), async {
        let LegEvent::Offered(offered) = next(&mut leg).await else {
            panic!("no offer");
        };
        offered.accept(Some("v=0\r\n".to_owned()));
    });
    assert_eq!(status, 200);
    // Our offer in the response to their INVITE is pending until the ACK.
    let invite_again = within(&invite, &script, "INVITE", 4, "");
    let invite_again = invite_again.replace("SIP/2.0 486 Busy Here\r\n", "");
    let invite_again = invite_again.replace("Content-Length: 23", "Content-Length: 0");
    let (status, ()) = tokio::join!(script.ask(&invite_again), async {
        let LegEvent::Offered(offered) = next(&mut leg).await else {
            panic!("no offer");
        };
        assert!(offered.offerless);
        offered.accept(Some("v=0\r\n".to_owned()));
    });
    assert_eq!(status, 200);
    let update = within(&invite, &script, "UPDATE", 5, OFFER);
    assert_eq!(script.ask(&update).await, 491);
}

#[tokio::test]
async fn what_is_told_of_an_earlier_transfer_is_not_told_of_the_last() {
    let caller = called(Protocol::Udp, &[]).await;
    let mut script = Script::start().await;
    let mut leg = call(&caller.agent, Protocol::Udp, script.address()).await;
    let invite = script.request(Method::Invite).await;
    script.answer(&invite, "200 OK", &script.contact()).await;
    let answered = until(&mut leg, |event| {
        matches!(event, LegEvent::Answered { .. }).then_some(())
    });
    answered.await;
    let cseq = |request: &Request| request.cseq_header().unwrap().seq().unwrap();
    let mut refers = Vec::new();
    for attempt in [1, 2] {
        leg.refer(attempt, "<tel:+442071838750>", &[]);
        // The first is challenged, so it has two CSeqs.
        let mut refer = script.request(Method::Refer).await;
        refers.push(cseq(&refer));
        if attempt == 1 {
            script.answer(&refer, "401 Unauthorized", SERVER).await;
            while refers.contains(&cseq(&refer)) {
                refer = script.request(Method::Refer).await;
            }
            refers.push(cseq(&refer));
        }
        script.answer(&refer, "202 Accepted", "").await;
        let LegEvent::Referred {
            attempt: said,
            code,
        } = next(&mut leg).await
        else {
            panic!("no answer");
        };
        assert_eq!((said, code), (attempt, Some(202)));
    }
    let event = |id: u32| format!("Event: refer;id={id}\r\n");
    for (number, id) in (1..).zip(&refers) {
        let notify = within(&invite, &script, "NOTIFY", number, &event(*id));
        assert_eq!(script.ask(&notify).await, 200);
    }
    let busy = Notification {
        code: Some(486),
        last: false,
    };
    // One of three.
    assert!(matches!(next(&mut leg).await, LegEvent::Notified(told) if told == busy));
    // A peer that counts in another way is accepted.
    for (number, event) in [(4, "Event: refer\r\n".to_owned()), (5, event(999_999))] {
        let notify = within(&invite, &script, "NOTIFY", number, &event);
        assert_eq!(script.ask(&notify).await, 200);
        assert!(matches!(next(&mut leg).await, LegEvent::Notified(_)));
    }
    let bye = within(&invite, &script, "BYE", 6, "");
    assert_eq!(script.ask(&bye).await, 200);
    assert!(matches!(next(&mut leg).await, LegEvent::Ended));
}

const PROXY: &str = "Proxy-Authenticate: Digest realm=\"proxy\", nonce=\"p1\", qop=\"auth\"\r\n";
const SERVER: &str =
    "WWW-Authenticate: Digest realm=\"server\", nonce=\"s1\", algorithm=SHA-256\r\n";

#[tokio::test]
async fn a_proxy_and_a_server_that_both_ask_are_answered_in_one_call() {
    let caller = called(Protocol::Udp, &[]).await;
    let mut script = Script::start().await;
    let mut leg = call(&caller.agent, Protocol::Udp, script.address()).await;
    let first = script.request(Method::Invite).await;
    script
        .answer(&first, "407 Proxy Authentication Required", PROXY)
        .await;
    let ack = script.request(Method::Ack).await;
    assert_eq!(
        ack.cseq_header().unwrap().seq().unwrap(),
        first.cseq_header().unwrap().seq().unwrap()
    );
    let second = script.request(Method::Invite).await;
    script.answer(&second, "401 Unauthorized", SERVER).await;
    let third = script.request(Method::Invite).await;
    assert!(third.authorization_header().is_some());
    let text = third.to_string();
    assert!(
        text.contains("Proxy-Authorization: Digest username=\"user\", realm=\"proxy\""),
        "{text}"
    );
    assert!(!text.contains("secret"));
    assert_eq!(
        first.call_id_header().unwrap(),
        third.call_id_header().unwrap()
    );
    assert_eq!(first.from_header().unwrap(), third.from_header().unwrap());
    script.answer(&third, "200 OK", &script.contact()).await;
    let answered = until(&mut leg, |event| {
        matches!(event, LegEvent::Answered { .. }).then_some(())
    });
    answered.await;
    // Requests within the call carry both, too.
    leg.bye();
    let bye = script.request(Method::Bye).await;
    assert!(bye.authorization_header().is_some());
    script.answer(&bye, "200 OK", "").await;
}

#[tokio::test]
async fn a_wrong_password_is_a_refusal() {
    let caller = called(Protocol::Udp, &[]).await;
    let mut script = Script::start().await;
    let mut leg = call(&caller.agent, Protocol::Udp, script.address()).await;
    for _ in 0..2 {
        let invite = script.request(Method::Invite).await;
        script.answer(&invite, "401 Unauthorized", SERVER).await;
    }
    let refused = until(&mut leg, |event| match event {
        LegEvent::Failed(Failure::Refused { code, .. }) => Some(code),
        _ => None,
    });
    assert_eq!(refused.await, 401);
}

#[tokio::test]
async fn an_answer_that_crosses_a_cancel_is_hung_up() {
    let caller = called(Protocol::Udp, &[]).await;
    let mut script = Script::start().await;
    let leg = call(&caller.agent, Protocol::Udp, script.address()).await;
    let invite = script.request(Method::Invite).await;
    script.answer(&invite, "180 Ringing", "").await;
    leg.cancel();
    let cancel = script.request(Method::Cancel).await;
    let via = |request: &Request| request.via_header().unwrap().value().to_owned();
    assert_eq!(via(&cancel), via(&invite));
    script.answer(&invite, "200 OK", &script.contact()).await;
    script.answer(&cancel, "200 OK", "").await;
    let bye = script.request(Method::Bye).await;
    script.answer(&bye, "200 OK", "").await;
}

#[tokio::test]
async fn a_cancel_waits_until_somebody_has_answered_at_all() {
    let caller = called(Protocol::Udp, &[]).await;
    let mut script = Script::start().await;
    let leg = call(&caller.agent, Protocol::Udp, script.address()).await;
    let invite = script.request(Method::Invite).await;
    leg.cancel();
    // The INVITE is retransmitted, and there is no CANCEL before a response.
    let again = script.request(Method::Invite).await;
    assert_eq!(invite.to_string(), again.to_string());
    script.answer(&again, "100 Trying", "").await;
    script.request(Method::Cancel).await;
}

#[tokio::test]
async fn broken_messages_end_nothing() {
    let mut callee = called(Protocol::Udp, &[HERE]).await;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let invite = format!(
        "INVITE sip:1@h SIP/2.0\r\nVia: SIP/2.0/UDP {};branch=z9hG4bK1;rport\r\nFrom: <sip:a@h>;tag=f\r\nTo: <sip:1@h>\r\n\
         Call-ID: c\r\nCSeq: 1 INVITE\r\nContact: <sip:a@h>\r\nContent-Length: 0\r\n\r\n",
        socket.local_addr().unwrap()
    );
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..2_000 {
        let mut bytes = invite.clone().into_bytes();
        for _ in 0..random.usize(1..6) {
            let at = random.usize(..bytes.len());
            match random.u8(..3) {
                0 => bytes[at] = random.u8(..),
                1 if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => bytes.truncate(at.max(1)),
            }
        }
        let _ = socket.send_to(&bytes, callee.address).await;
        while callee.invitations.try_recv().is_ok() {}
    }
    let caller = called(Protocol::Udp, &[]).await;
    let _leg = call(&caller.agent, Protocol::Udp, callee.address).await;
    let found = async {
        while invitation(&mut callee).await.called().as_deref() != Some("+14155550100") {}
    };
    timeout(PATIENCE, found).await.unwrap();
}
