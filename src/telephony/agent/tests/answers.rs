//! Responses to INVITE: which are accepted, what is acknowledged and where, and how a call ends whose peer is gone.

use std::fmt::Write as _;

use futures_util::FutureExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use super::*;

async fn answered(leg: &mut Leg) {
    let answered = until(leg, |event| {
        matches!(event, LegEvent::Answered { .. }).then_some(())
    });
    answered.await;
}

fn number(request: &Request) -> u32 {
    request.cseq_header().unwrap().seq().unwrap()
}

#[tokio::test]
async fn an_answer_leads_to_no_private_address_where_that_is_not_allowed() {
    let caller = called(Protocol::Udp, &[]).await;
    let inside = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let private = inside.local_addr().unwrap();
    for route in ["", "Record-Route"] {
        let mut script = Script::start().await;
        let protocol = Protocol::Udp;
        let mut outbound = outbound(protocol, script.address(), "secret");
        outbound.private = false;
        let reached = caller
            .agent
            .reach(protocol, script.address(), &outbound.host);
        let reached = reached.await.unwrap();
        let mut leg = caller
            .agent
            .call(reached, outbound, "v=0".to_owned())
            .unwrap();
        let invite = script.request(Method::Invite).await;
        let mut headers = format!("Contact: <sip:x@{private};transport=tcp>\r\n");
        if !route.is_empty() {
            let _ = write!(headers, "{route}: <sip:{private};transport=tcp;lr>\r\n");
        }
        script.answer(&invite, "200 OK", &headers).await;
        // The called host receives what is addressed to the named one.
        let ack = script.request(Method::Ack).await;
        assert_eq!(number(&ack), number(&invite));
        assert!(ack.uri.to_string().contains(&private.to_string()));
        answered(&mut leg).await;
        leg.refer(0, "<sip:b@h>", &[]);
        let refer = script.request(Method::Refer).await;
        script.answer(&refer, "603 Decline", "").await;
        leg.bye();
        let bye = script.request(Method::Bye).await;
        script.answer(&bye, "200 OK", "").await;
    }
    assert!(inside.accept().now_or_never().is_none());
}

#[tokio::test]
async fn an_answer_is_acknowledged_each_time_by_the_route_that_it_tells() {
    let caller = called(Protocol::Udp, &[]).await;
    let (mut script, mut proxy) = (Script::start().await, Script::start().await);
    let mut leg = call(&caller.agent, Protocol::Udp, script.address()).await;
    let invite = script.request(Method::Invite).await;
    let route = format!("<sip:{};lr>", proxy.address());
    let more = format!("{}Record-Route: {route}\r\n", script.contact());
    script.answer(&invite, "180 Ringing", "").await;
    script.answer(&invite, "200 OK", &more).await;
    let first = proxy.request(Method::Ack).await;
    answered(&mut leg).await;
    script.answer(&invite, "200 OK", &more).await;
    let second = proxy.request(Method::Ack).await;
    for ack in [&first, &second] {
        assert_eq!(number(ack), number(&invite));
        assert_eq!(
            ack.uri.to_string(),
            format!("sip:script@{}", script.address())
        );
        assert!(ack.to_string().contains(&format!("Route: {route}\r\n")));
        assert!(ack.to_header().unwrap().value().ends_with(";tag=script"));
    }
    // Another fork has answered, too.
    script
        .answer_as("other", &invite, "200 OK", &script.contact())
        .await;
    let ack = script.request(Method::Ack).await;
    let bye = script.request(Method::Bye).await;
    for request in [&ack, &bye] {
        assert!(request.to_header().unwrap().value().ends_with(";tag=other"));
    }
    script.answer_as("other", &bye, "200 OK", "").await;
}

#[tokio::test]
async fn an_answer_may_name_a_connection() {
    let caller = called(Protocol::Udp, &[]).await;
    let edge = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let mut script = Script::start().await;
    let mut leg = call(&caller.agent, Protocol::Udp, script.address()).await;
    let invite = script.request(Method::Invite).await;
    let contact = edge.local_addr().unwrap();
    let contact = format!("Contact: <sip:x@{contact};transport=tcp>\r\n");
    script.answer(&invite, "200 OK", &contact).await;
    answered(&mut leg).await;
    let (stream, _) = timeout(PATIENCE, edge.accept()).await.unwrap().unwrap();
    let mut begin = [0; 4];
    let read = async {
        let mut stream = stream;
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut begin).await
    };
    timeout(PATIENCE, read).await.unwrap().unwrap();
    assert_eq!(&begin, b"ACK ");
}

/// A request of the callee with this tag.
async fn send(script: &Script, invite: &Request, tag: &str, method: &str, number: u32) {
    let ours = invite.from_header().unwrap().value().to_owned();
    let theirs = invite.to_header().unwrap().value().to_owned();
    let call_id = invite.call_id_header().unwrap().value();
    let text = format!(
        "{method} sip:a@h SIP/2.0\r\nVia: SIP/2.0/UDP {};branch=z9hG4bK{tag}{number};rport\r\nFrom: {theirs};tag={tag}\r\n\
         To: {ours}\r\nCall-ID: {call_id}\r\nCSeq: {number} {method}\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n",
        script.address(),
    );
    let to = script.from.unwrap();
    script.socket.send_to(text.as_bytes(), to).await.unwrap();
}

/// The next response to a request with this method.
async fn status(socket: &UdpSocket, method: &str) -> (u16, String) {
    loop {
        let mut bytes = vec![0; 65_535];
        let received = timeout(PATIENCE, socket.recv(&mut bytes)).await;
        let length = received.expect("an answer").unwrap();
        if let Ok(response) = rsipstack::sip::Response::try_from(&bytes[..length])
            && response.cseq_header().unwrap().value().ends_with(method)
            && response.status_code.code() > 100
        {
            let to = response.to_header().unwrap().value().to_owned();
            return (response.status_code.code(), to);
        }
    }
}

#[tokio::test]
async fn a_telephone_that_rang_as_well_ends_nothing() {
    let caller = called(Protocol::Udp, &[]).await;
    let mut script = Script::start().await;
    let mut leg = call(&caller.agent, Protocol::Udp, script.address()).await;
    let invite = script.request(Method::Invite).await;
    script.answer(&invite, "200 OK", &script.contact()).await;
    answered(&mut leg).await;
    for (tag, code) in [("other", 481), ("script", 200)] {
        // The other fork's CSeq is not counted either.
        let count = if tag == "other" { 9 } else { 2 };
        send(&script, &invite, tag, "BYE", count).await;
        assert_eq!(status(&script.socket, "BYE").await.0, code, "{tag}");
    }
    assert!(matches!(next(&mut leg).await, LegEvent::Ended));
}

#[tokio::test]
async fn a_goodbye_is_said_until_it_is_heard() {
    let caller = called(Protocol::Udp, &[]).await;
    let mut script = Script::start().await;
    let mut leg = call(&caller.agent, Protocol::Udp, script.address()).await;
    let invite = script.request(Method::Invite).await;
    script.answer(&invite, "200 OK", &script.contact()).await;
    answered(&mut leg).await;
    assert!(timeout(Duration::ZERO, leg.hang_up()).await.is_err());
    drop(leg);
    let first = script.request(Method::Bye).await;
    let again = script.request(Method::Bye).await;
    assert_eq!(first.to_string(), again.to_string());
    script.answer(&again, "200 OK", "").await;
}

/// A request of the caller.
fn calling(method: &str, protocol: &str, from: SocketAddr) -> String {
    format!(
        "{method} sip:1@h SIP/2.0\r\nVia: SIP/2.0/{protocol} {from};branch=z9hG4bKcalling;rport\r\n\
         From: <sip:a@h>;tag=f\r\nTo: <sip:1@h>\r\nCall-ID: c\r\nCSeq: 1 {method}\r\nMax-Forwards: 70\r\n\
         Contact: <sip:a@{from}>\r\nContent-Length: 0\r\n\r\n"
    )
}

#[tokio::test]
async fn all_answers_to_one_call_are_of_one_dialog() {
    let mut callee = called(Protocol::Udp, &[HERE]).await;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.connect(callee.address).await.unwrap();
    let from = socket.local_addr().unwrap();
    let invite = calling("INVITE", "UDP", from);
    socket.send(invite.as_bytes()).await.unwrap();
    let mut leg = invitation(&mut callee).await.take();
    leg.ring(None);
    let (code, rung) = status(&socket, "INVITE").await;
    assert_eq!(code, 180);
    let cancel = calling("CANCEL", "UDP", from);
    socket.send(cancel.as_bytes()).await.unwrap();
    assert_eq!(status(&socket, "CANCEL").await.0, 200);
    assert_eq!(status(&socket, "INVITE").await, (487, rung));
    assert!(matches!(next(&mut leg).await, LegEvent::Cancelled));
}

#[tokio::test]
async fn who_calls_and_closes_the_connection_has_given_up() {
    for answer in [false, true] {
        let mut callee = called(Protocol::Tcp, &[HERE]).await;
        let mut stream = TcpStream::connect(callee.address).await.unwrap();
        let invite = calling("INVITE", "TCP", stream.local_addr().unwrap());
        stream.write_all(invite.as_bytes()).await.unwrap();
        let mut leg = invitation(&mut callee).await.take();
        leg.ring(None);
        let flow = client::lock(&leg.caller().flow).clone();
        drop(stream);
        if answer {
            // Too late: the peer is gone.
            timeout(PATIENCE, flow.closed()).await.unwrap();
            leg.answer("v=0".to_owned());
        }
        let event = next(&mut leg).await;
        let cancelled = matches!(event, LegEvent::Cancelled);
        let unheard = answer && matches!(event, LegEvent::Unacknowledged);
        assert!(cancelled || unheard, "{answer}: {event:?}");
    }
}

#[tokio::test]
async fn a_call_that_nobody_answers_for_is_forgotten() {
    let mut callee = called(Protocol::Udp, &[HERE]).await;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.connect(callee.address).await.unwrap();
    let from = socket.local_addr().unwrap();
    let invite = calling("INVITE", "UDP", from);
    socket.send(invite.as_bytes()).await.unwrap();
    let leg = invitation(&mut callee).await.take();
    leg.ring(None);
    assert_eq!(status(&socket, "INVITE").await.0, 180);
    let flow = client::lock(&leg.caller().flow).clone();
    let calls = || flow.endpoint.transactions.len();
    assert_eq!(calls(), 1);
    drop(leg);
    tokio::time::pause();
    let forgotten = async {
        while calls() > 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let minute = Duration::from_mins(1);
    timeout(minute, forgotten).await.expect("it is forgotten");
}

#[tokio::test]
async fn only_who_was_asked_answers() {
    let caller = called(Protocol::Udp, &[]).await;
    let mut script = Script::start().await;
    let mut leg = call(&caller.agent, Protocol::Udp, script.address()).await;
    let invite = script.request(Method::Invite).await;
    // Another hop has read the branch; it has only another address.
    let other = Script {
        socket: UdpSocket::bind(("127.0.0.2", 0)).await.unwrap(),
        from: script.from,
    };
    let contact = other.contact();
    other.answer(&invite, "180 Ringing", "").await;
    other.answer(&invite, "200 OK", &contact).await;
    other.answer(&invite, "486 Busy Here", "").await;
    // Another port of the address that was asked is one of the same user agent.
    let another_port = Script {
        socket: UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap(),
        from: script.from,
    };
    another_port
        .answer(&invite, "183 Session Progress", "")
        .await;
    assert!(matches!(
        next(&mut leg).await,
        LegEvent::Progress { code: 183, .. }
    ));
    other.answer(&invite, "486 Busy Here", "").await;
    script.answer(&invite, "200 OK", &script.contact()).await;
    answered(&mut leg).await;
    // Neither is a further 2xx of somewhere else acknowledged and hung up as another fork.
    other.answer_as("fork", &invite, "200 OK", &contact).await;
    script.answer(&invite, "200 OK", &script.contact()).await;
    script.request(Method::Ack).await;
    script.request(Method::Ack).await;
    let mut bytes = [0; 4_096];
    assert!(other.socket.try_recv_from(&mut bytes).is_err());
}
