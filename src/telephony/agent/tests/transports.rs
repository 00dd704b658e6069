//! Dual-stack sockets, certificates, and connections from unknown addresses.

use std::net::Ipv6Addr;

use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::super::transports::{MOST_STRANGERS, MOST_STRANGERS_OF_ADDRESS};
use super::*;

#[tokio::test]
async fn one_socket_takes_calls_of_both_families() {
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        let (agent, mut invitations) = Agent::start(
            vec![HERE.parse().unwrap()],
            Unacknowledged::default(),
            TlsSettings::default(),
            None,
        );
        let listen = Listen {
            protocol,
            address: (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let port = agent.listen(&listen).await.unwrap().port();
        let there = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let caller = called(protocol, &[]).await;
        let mut leg = call(&caller.agent, protocol, there).await;
        let invitation = timeout(PATIENCE, invitations.recv())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(invitation.source(), Ipv4Addr::LOCALHOST);
        assert_eq!(invitation.local_address(), there);
        let mut other = invitation.take();
        assert!(other.remote_address().is_ipv4());
        other.answer("v=0".to_owned());
        let answered = until(&mut leg, |event| {
            matches!(event, LegEvent::Answered { .. }).then_some(())
        });
        answered.await;
        assert!(matches!(
            next(&mut other).await,
            LegEvent::Acknowledged { .. }
        ));
        other.hang_up().await;
        assert!(matches!(next(&mut leg).await, LegEvent::Ended));
        // Outbound calls leave from the listening address.
        let host = caller.address.to_string();
        let reached = agent.reach(protocol, caller.address, &host).await.unwrap();
        assert_eq!(reached.local_address(), there);
    }
}

#[tokio::test]
async fn a_call_goes_both_ways_through_one_socket_for_both_families() {
    let (agent, _invitations) = Agent::start(
        Vec::new(),
        Unacknowledged::default(),
        TlsSettings::default(),
        None,
    );
    let listen = Listen {
        protocol: Protocol::Udp,
        address: (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let port = agent.listen(&listen).await.unwrap().port();
    let mut callee = called(Protocol::Udp, &[HERE]).await;
    let mut leg = call(&agent, Protocol::Udp, callee.address).await;
    let mut other = invitation(&mut callee).await.take();
    assert_eq!(other.remote_address().port(), port);
    other.answer("v=0".to_owned());
    assert!(matches!(
        next(&mut other).await,
        LegEvent::Acknowledged { .. }
    ));
    other.bye();
    until(&mut leg, |event| {
        matches!(event, LegEvent::Ended).then_some(())
    })
    .await;
}

/// TLS configuration of a gateway with this name, and of peers that trust it.
fn tls(name: &str) -> TlsSettings {
    let pair = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let certificate: CertificateDer<'static> = pair.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der());
    let crypto = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&crypto))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key.into())
        .unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = rustls::ClientConfig::builder_with_provider(crypto)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsSettings {
        server: Some(Arc::new(server)),
        web: None,
        client: Some(Arc::new(client)),
    }
}

#[tokio::test]
async fn a_certificate_is_looked_at_for_each_name_and_each_connection() {
    let protocol = Protocol::Tls;
    let (agent, mut invitations) = Agent::start(
        vec![HERE.parse().unwrap()],
        Unacknowledged::default(),
        tls("gateway.example"),
        None,
    );
    let listen = Listen {
        protocol,
        address: (Ipv4Addr::LOCALHOST, 0).into(),
    };
    let address = agent.listen(&listen).await.unwrap();
    // Only the client verifies, and only the name.
    let (client, _none) = Agent::start(
        Vec::new(),
        Unacknowledged::default(),
        agent.transports.tls().clone(),
        None,
    );
    let port = address.port();
    let outbound = |host: &str| Outbound {
        host: format!("{host}:{port}"),
        ..outbound(protocol, address, "secret")
    };
    let place = async |host: &str| {
        let outbound = outbound(host);
        let reached = client
            .reach(protocol, address, &outbound.host)
            .await
            .unwrap();
        client.call(reached, outbound, "v=0".to_owned()).unwrap()
    };
    let mut leg = place("gateway.example").await;
    let invitation = timeout(PATIENCE, invitations.recv()).await.unwrap();
    let mut other = invitation.unwrap().take();
    other.answer("v=0".to_owned());
    until(&mut leg, |event| {
        matches!(event, LegEvent::Answered { .. }).then_some(())
    })
    .await;
    assert!(matches!(
        next(&mut other).await,
        LegEvent::Acknowledged { .. }
    ));
    // The same address, but its certificate was not verified.
    let mut elsewhere = place("other.example").await;
    assert!(matches!(
        next(&mut elsewhere).await,
        LegEvent::Failed(Failure::Unreachable)
    ));
    // A connection that is opened again must lead to the same peer.
    let flow = client::lock(&leg.caller().flow).clone();
    flow.connection.cancel_token().unwrap().cancel();
    let heard = timeout(PATIENCE, leg.hang_up());
    heard.await.unwrap();
    assert!(matches!(next(&mut other).await, LegEvent::Ended));
}

async fn connect(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

#[tokio::test]
async fn strangers_take_no_place_of_those_who_may_call() {
    let callee = called(Protocol::Tcp, &[HERE]).await;
    let stranger = |number: usize| Ipv4Addr::new(127, 0, 0, 2 + number as u8);
    let mut strangers = Vec::new();
    for number in 0..MOST_STRANGERS {
        let stranger = stranger(number / MOST_STRANGERS_OF_ADDRESS);
        let mut stream = connect(stranger, callee.address).await;
        // Every admitted connection gets a response.
        stream.write_all(b"\r\n\r\n").await.unwrap();
        let mut pong = [0; 2];
        timeout(PATIENCE, stream.read_exact(&mut pong))
            .await
            .unwrap()
            .unwrap();
        strangers.push(stream);
        // One address has no more than its share.
        if number + 1 == MOST_STRANGERS_OF_ADDRESS {
            let mut more = connect(stranger, callee.address).await;
            let ended = timeout(PATIENCE, more.read(&mut [0; 1])).await.unwrap();
            assert!(!matches!(ended, Ok(1..)));
        }
    }
    let mut more = connect(stranger(99), callee.address).await;
    let ended = timeout(PATIENCE, more.read(&mut [0; 1])).await.unwrap();
    assert!(!matches!(ended, Ok(1..)));
    let mut friend = connect(Ipv4Addr::LOCALHOST, callee.address).await;
    friend.write_all(b"\r\n\r\n").await.unwrap();
    let mut pong = [0; 2];
    let answered = timeout(PATIENCE, friend.read_exact(&mut pong)).await;
    assert_eq!((answered.unwrap().unwrap(), &pong), (2, b"\r\n"));
}
