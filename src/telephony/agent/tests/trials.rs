//! Calls on trial, by a socket that sends forged requests and acknowledges nothing.

use super::*;

struct Forger {
    socket: UdpSocket,
    /// The `Contact` of its requests; its own address by default.
    contact: Option<SocketAddr>,
    called: Called,
}

impl Forger {
    async fn with(most: usize, patience: Duration) -> Self {
        let bounds = Unacknowledged {
            most,
            most_of_address: most,
            patience,
        };
        let allowed = vec![HERE.parse().unwrap()];
        let (agent, invitations) = Agent::start(allowed, bounds, TlsSettings::default(), None);
        let listen = Listen {
            protocol: Protocol::Udp,
            address: (Ipv4Addr::LOCALHOST, 0).into(),
        };
        let address = agent.listen(&listen).await.unwrap();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        socket.connect(address).await.unwrap();
        let called = Called {
            agent,
            address,
            invitations,
        };
        Self {
            socket,
            contact: None,
            called,
        }
    }

    async fn send(&self, method: &str, call: &str, more: &str) {
        self.send_to(None, method, call, more).await;
    }

    /// Within the dialog with this remote tag, or without one.
    async fn send_to(&self, tag: Option<&str>, method: &str, call: &str, more: &str) {
        let local = self.socket.local_addr().unwrap();
        let contact = self.contact.unwrap_or(local);
        let branch = tag.map_or(call.to_owned(), |tag| format!("{call}{tag}"));
        let tag = tag.map(|tag| format!(";tag={tag}")).unwrap_or_default();
        let text = format!(
            "{method} sip:1@h SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bK{branch};rport\r\nMax-Forwards: 70\r\n\
             From: <sip:x@{local}>;tag=f\r\nTo: <sip:1@h>{tag}\r\nCall-ID: {call}\r\nCSeq: 1 {method}\r\n\
             Contact: <sip:x@{contact}>\r\n{more}Content-Length: 0\r\n\r\n"
        );
        self.socket.send(text.as_bytes()).await.unwrap();
    }

    /// The status code of the next final response to a request with this method and call.
    async fn told(&self, method: &str, call: &str) -> u16 {
        loop {
            let mut bytes = vec![0; 65_535];
            let received = timeout(PATIENCE, self.socket.recv(&mut bytes)).await;
            let length = received.unwrap().unwrap();
            let response = rsipstack::sip::Response::try_from(&bytes[..length]).unwrap();
            let code = response.status_code.code();
            let about = response
                .cseq_header()
                .unwrap()
                .method()
                .unwrap()
                .to_string();
            let id = response.call_id_header().unwrap().value().to_owned();
            if code >= 200 && about == method && id == call {
                return code;
            }
        }
    }

    async fn take(&mut self) -> Leg {
        invitation(&mut self.called).await.take()
    }
}

#[tokio::test]
async fn who_acknowledges_nothing_gives_way_to_the_next() {
    let mut forger = Forger::with(2, Duration::from_secs(30)).await;
    let mut legs = Vec::new();
    for call in ["first", "second"] {
        forger.send("INVITE", call, "").await;
        let leg = forger.take().await;
        leg.answer("v=0\r\n".to_owned());
        assert_eq!(forger.told("INVITE", call).await, 200);
        legs.push(leg);
    }
    forger.send("INVITE", "third", "").await;
    assert_eq!(forger.told("INVITE", "third").await, 503);
    // A new call after a while replaces the first.
    let mut number = 0;
    let taken = loop {
        let call = format!("next{number}");
        forger.send("INVITE", &call, "").await;
        let next = timeout(Duration::from_millis(100), forger.called.invitations.recv());
        if let Ok(invitation) = next.await {
            break invitation.unwrap();
        }
        number += 1;
        assert!(number < 100, "nobody gives way");
    };
    assert!(matches!(next(&mut legs[0]).await, LegEvent::Unacknowledged));
    taken.refuse(486);
}

#[tokio::test]
async fn an_answer_is_not_repeated_for_longer_than_the_settings_say() {
    let mut forger = Forger::with(1, Duration::from_millis(100)).await;
    forger.send("INVITE", "only", "").await;
    let mut leg = forger.take().await;
    leg.answer("v=0\r\n".to_owned());
    assert_eq!(forger.told("INVITE", "only").await, 200);
    assert!(matches!(next(&mut leg).await, LegEvent::Unacknowledged));
    // Its place is free; calls that were cancelled or refused keep none either.
    for round in 0..3 {
        let call = format!("again{round}");
        let mut tries = 0;
        let leg = loop {
            forger.send("INVITE", &call, "").await;
            let next = timeout(Duration::from_millis(100), forger.called.invitations.recv());
            if let Ok(invitation) = next.await {
                break invitation.unwrap();
            }
            tries += 1;
            assert!(tries < 50, "the place of round {round} is not free");
        };
        if round == 0 {
            let mut leg = leg.take();
            forger.send("CANCEL", &call, "").await;
            assert!(matches!(next(&mut leg).await, LegEvent::Cancelled));
        } else {
            leg.refuse(486);
        }
    }
}

#[tokio::test]
async fn a_call_is_asked_no_more_than_it_can_say() {
    let mut forger = Forger::with(2, Duration::from_secs(30)).await;
    forger.send("INVITE", "busy", "").await;
    let leg = forger.take().await;
    leg.answer("v=0\r\n".to_owned());
    let local = forger.socket.local_addr().unwrap();
    let (mut taken, mut refused) = (0, 0);
    for number in 0..200_u32 {
        let text = format!(
            "OPTIONS sip:1@h SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKo{number};rport\r\n\
             From: <sip:x@{local}>;tag=f\r\nTo: <sip:1@h>;tag={}\r\nCall-ID: busy\r\nCSeq: {} OPTIONS\r\n\
             Content-Length: 0\r\n\r\n",
            leg.local_tag(),
            number + 2,
        );
        forger.socket.send(text.as_bytes()).await.unwrap();
        match forger.told("OPTIONS", "busy").await {
            200 => taken += 1,
            503 => refused += 1,
            other => panic!("{other}"),
        }
    }
    let most = MOST_REQUESTS_AT_ONCE + 20 * REQUESTS_PER_SECOND;
    assert!(taken >= MOST_REQUESTS_AT_ONCE && taken <= most, "{taken}");
    assert_eq!(taken + refused, 200);
}

#[tokio::test]
async fn an_acknowledgement_of_somebody_who_has_not_read_the_answer_counts_for_nothing() {
    let mut forger = Forger::with(1, Duration::from_millis(300)).await;
    forger.send("INVITE", "blind", "").await;
    let mut leg = forger.take().await;
    leg.answer("v=0\r\n".to_owned());
    assert_eq!(forger.told("INVITE", "blind").await, 200);
    // It matches the transaction, whose branch the forger has chosen, but not the dialog, whose tag it cannot know.
    forger.send("ACK", "blind", "").await;
    assert!(matches!(next(&mut leg).await, LegEvent::Unacknowledged));
}

/// Whether a BYE arrives soon.
async fn is_hung_up_on(socket: &UdpSocket) -> bool {
    let comes = async {
        let mut bytes = vec![0; 65_535];
        loop {
            let (length, _) = socket.recv_from(&mut bytes).await.unwrap();
            if bytes[..length].starts_with(b"BYE ") {
                return;
            }
        }
    };
    timeout(Duration::from_secs(1), comes).await.is_ok()
}

#[tokio::test]
async fn who_is_named_as_the_contact_of_a_call_is_asked_for_nothing_before_the_answer_was_read() {
    // No ACK, one without our tag, and one of a peer that has read the response.
    for (case, asked) in [(None, false), (Some("guessed"), false), (Some(""), true)] {
        let mut forger = Forger::with(1, Duration::from_secs(30)).await;
        let named = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        forger.contact = Some(named.local_addr().unwrap());
        forger.send("INVITE", "call", "").await;
        let mut leg = forger.take().await;
        leg.answer("v=0\r\n".to_owned());
        assert_eq!(forger.told("INVITE", "call").await, 200);
        if let Some(guess) = case {
            let own = leg.local_tag().to_owned();
            let tag = if asked { own.as_str() } else { guess };
            forger.send_to(Some(tag), "ACK", "call", "").await;
        }
        if asked {
            assert!(matches!(
                next(&mut leg).await,
                LegEvent::Acknowledged { .. }
            ));
        }
        leg.hang_up_within(Duration::from_millis(200));
        let (at_named, at_forger) =
            tokio::join!(is_hung_up_on(&named), is_hung_up_on(&forger.socket),);
        assert_eq!((at_named, at_forger), (asked, !asked), "{case:?}");
    }
}

#[tokio::test]
async fn a_request_that_is_repeated_without_a_pause_is_not_answered_each_time() {
    let mut forger = Forger::with(10, Duration::from_secs(30)).await;
    // An ACK before the final response is one more repetition to the stack.
    for (method, answered) in [
        ("INVITE", false),
        ("CANCEL", false),
        ("ACK", false),
        ("INVITE", true),
    ] {
        let call = format!("{method}{answered}");
        forger.send("INVITE", &call, "").await;
        let leg = forger.take().await;
        if answered {
            leg.answer("v=0\r\n".to_owned());
            assert_eq!(forger.told("INVITE", &call).await, 200);
        }
        // Fewer than fit into the sockets' buffers.
        for _ in 0..40 {
            forger.send(method, &call, "").await;
        }
        // What was sent before has been taken when this is answered.
        forger.send("OPTIONS", "after", "").await;
        let mut answers = 0;
        loop {
            let mut bytes = vec![0; 65_535];
            let received = timeout(PATIENCE, forger.socket.recv(&mut bytes)).await;
            let length = received.unwrap().unwrap();
            let response = rsipstack::sip::Response::try_from(&bytes[..length]).unwrap();
            if response.call_id_header().unwrap().value() == "after" {
                break;
            }
            answers += 1;
        }
        // The first answers, and those of repetitions, four a second.
        assert!(answers < 10, "{method} {answered}: {answers}");
        drop(leg);
    }
}
