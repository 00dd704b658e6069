//! Outbound calls: how they are answered, refused and ended, and digest authentication.

use std::net::UdpSocket;

use serde_json::json;

use super::rig::baresip::{Baresip, Kind};
use super::rig::kamailio::Kamailio;
use super::rig::sipp::{Run, Scenario, Sipp};
use super::rig::{certificates, ports};
use super::{Exchange, NUMBER, PHONE, ROOM, becomes};

pub const USER: &str = "alice";
pub const PASSWORD: &str = "correct horse";

/// The `sip` of a request to this gateway with these credentials.
pub fn trunk(gateway: &str, password: &str) -> serde_json::Value {
    json!({"outbound_address": gateway, "auth_username": USER, "auth_password": password})
}

#[tokio::test]
async fn a_call_rings_is_answered_and_ended_by_us() {
    // Of what changes within a few milliseconds only the last may be told: the telephone takes its time to ring, and to answer.
    let scenario = Scenario::called()
        .pause(300)
        .reply("180 Ringing")
        .pause(500)
        .answer()
        .receive("ACK")
        .ended();
    let mut telephone = Sipp::start(scenario).await;
    let exchange = Exchange::start();
    let mut session = exchange.session(ROOM).await;
    let id = exchange.call(&telephone.address()).await;
    assert!(id.starts_with("SCL_"), "{id}");
    let event = session.next("sip_call").await;
    assert_eq!(event.text("sip_call_id"), id);
    assert_eq!(event.text("participant_identity"), PHONE);
    assert_eq!(event.text("status"), "dialing");
    becomes(&mut session, "ringing").await;
    becomes(&mut session, "active").await;
    session.command("hangup").await;
    assert_eq!(becomes(&mut session, "hangup").await, "local");
    telephone.passed().await;
    assert_eq!(exchange.ended(&id).await, "local");
    // Whom it was for, and whose number was shown.
    let messages = telephone.messages();
    assert!(
        messages.contains(&format!("INVITE sip:{NUMBER}@127.0.0.1:")),
        "{messages}"
    );
    assert!(messages.contains("<sip:+14155550100@"), "{messages}");
}

#[tokio::test]
async fn a_telephone_ends_its_call() {
    let mut telephone = Baresip::start().await;
    let exchange = Exchange::start();
    let id = exchange.call(&telephone.address()).await;
    telephone.next("CALL_ESTABLISHED").await;
    exchange.answered(&id).await;
    telephone.hang_up().await;
    assert_eq!(exchange.ended(&id).await, "remote");
}

#[tokio::test]
async fn a_participant_who_is_removed_hangs_up() {
    let mut telephone = Baresip::start().await;
    let exchange = Exchange::start();
    let id = exchange.call(&telephone.address()).await;
    exchange.answered(&id).await;
    exchange.hang_up(ROOM, PHONE).await;
    telephone.next("CALL_CLOSED").await;
    assert_eq!(exchange.ended(&id).await, "local");
}

#[tokio::test]
async fn a_refusal_says_why() {
    let exchange = Exchange::start();
    let refusals = [
        ("486 Busy Here", "busy"),
        ("600 Busy Everywhere", "busy"),
        ("603 Decline", "declined"),
        ("480 Temporarily Unavailable", "no_answer"),
        ("404 Not Found", "not_found"),
        ("403 Forbidden", "unauthorized"),
        ("488 Not Acceptable Here", "media"),
        ("503 Service Unavailable", "failed"),
    ];
    let mut placed = Vec::new();
    for (status, cause) in refusals {
        let scenario = Scenario::called()
            .reply("180 Ringing")
            .reply(status)
            .receive("ACK");
        let telephone = Sipp::start(scenario).await;
        let room = format!("{ROOM}-{}", &status[..3]);
        let gateway = json!({"outbound_address": telephone.address()});
        let id = exchange.call_to(&room, gateway).await;
        placed.push((telephone, id, status, cause));
    }
    for (mut telephone, id, status, cause) in placed {
        assert_eq!(exchange.ended(&id).await, cause, "{status}");
        telephone.passed().await;
    }
}

#[tokio::test]
async fn a_call_that_nobody_takes_is_given_up() {
    let mut telephone = Sipp::start(Scenario::called().reply("180 Ringing").cancelled()).await;
    let exchange = Exchange::with(&[("SIP_RINGING_TIMEOUT_SECONDS", "1")]);
    let id = exchange.call(&telephone.address()).await;
    assert_eq!(exchange.ended(&id).await, "no_answer");
    telephone.passed().await;
}

#[tokio::test]
async fn a_call_is_cancelled_while_it_rings() {
    // Of what becomes of a participant within a moment the newest is told.
    let scenario = Scenario::called()
        .pause(300)
        .reply("180 Ringing")
        .cancelled();
    let mut telephone = Sipp::start(scenario).await;
    let exchange = Exchange::start();
    let mut session = exchange.session(ROOM).await;
    let id = exchange.call(&telephone.address()).await;
    becomes(&mut session, "dialing").await;
    becomes(&mut session, "ringing").await;
    session.command("hangup").await;
    assert_eq!(becomes(&mut session, "hangup").await, "cancelled");
    telephone.passed().await;
    assert_eq!(exchange.ended(&id).await, "cancelled");
}

/// SIP itself waits 32 s for an answer (RFC 3261, timer B), which is more than this test does.
#[tokio::test]
async fn a_gateway_that_does_not_answer_is_given_up() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let exchange = Exchange::with(&[("SIP_RINGING_TIMEOUT_SECONDS", "1")]);
    let id = exchange
        .call(&silent.local_addr().unwrap().to_string())
        .await;
    assert_eq!(exchange.ended(&id).await, "unreachable");
    // The same where nobody is at home at all.
    let gateway = format!("127.0.0.1:{}", ports(2));
    let id = exchange
        .call_to("elsewhere", json!({"outbound_address": gateway}))
        .await;
    assert_eq!(exchange.ended(&id).await, "unreachable");
}

#[tokio::test]
async fn a_telephone_that_wants_a_password_gets_it() {
    let scenario = Scenario::called()
        .challenge(USER, PASSWORD)
        .answer()
        .receive("ACK")
        .ended();
    let mut telephone = Sipp::start(scenario).await;
    let address = telephone.address();
    let exchange = Exchange::with(&[
        ("SIP_OUTBOUND_ADDRESS", address.as_str()),
        ("SIP_OUTBOUND_AUTH_USERNAME", USER),
        ("SIP_OUTBOUND_AUTH_PASSWORD", PASSWORD),
    ]);
    let id = exchange.call_to(ROOM, json!(null)).await;
    exchange.answered(&id).await;
    exchange.hang_up(ROOM, PHONE).await;
    telephone.passed().await;
    assert!(!telephone.messages().contains(PASSWORD));
}

#[tokio::test]
async fn a_proxy_that_wants_a_password_gets_it() {
    let mut telephone = Baresip::start().await;
    let proxy = Kamailio::start(telephone.port, USER, PASSWORD).await;
    let gateway = format!("127.0.0.1:{}", proxy.port);
    let exchange = Exchange::start();
    let id = exchange.call_to(ROOM, trunk(&gateway, PASSWORD)).await;
    telephone.next("CALL_ESTABLISHED").await;
    exchange.answered(&id).await;
    exchange.hang_up(ROOM, PHONE).await;
    telephone.next("CALL_CLOSED").await;
    assert_eq!(exchange.ended(&id).await, "local");
}

#[tokio::test]
async fn a_proxy_and_a_telephone_behind_it_both_get_their_passwords() {
    let scenario = Scenario::called()
        .challenge_as_proxy()
        .challenge(USER, PASSWORD)
        .answer()
        .receive("ACK")
        .ended();
    let mut telephone = Sipp::start(scenario).await;
    let exchange = Exchange::start();
    let id = exchange
        .call_to(ROOM, trunk(&telephone.address(), PASSWORD))
        .await;
    exchange.answered(&id).await;
    exchange.hang_up(ROOM, PHONE).await;
    telephone.passed().await;
    // The last INVITE has both.
    let messages = telephone.messages();
    let last = messages.rsplit("INVITE sip:").next().unwrap();
    let head = last.split("UDP message").next().unwrap();
    assert!(head.contains("Proxy-Authorization:"), "{head}");
    assert!(
        head.lines().any(|line| line.starts_with("Authorization:")),
        "{head}"
    );
}

#[tokio::test]
async fn a_wrong_password_is_told() {
    let scenario = Scenario::called()
        .challenge(USER, PASSWORD)
        .answer()
        .receive("ACK");
    let mut telephone = Sipp::start(scenario).await;
    let behind = Baresip::start().await;
    let proxy = Kamailio::start(behind.port, USER, PASSWORD).await;
    let exchange = Exchange::start();
    let direct = exchange
        .call_to("direct", trunk(&telephone.address(), "wrong"))
        .await;
    let gateway = format!("127.0.0.1:{}", proxy.port);
    let proxied = exchange.call_to("proxied", trunk(&gateway, "wrong")).await;
    let without = exchange
        .call_to("without", json!({"outbound_address": gateway}))
        .await;
    for id in [direct, proxied, without] {
        assert_eq!(exchange.ended(&id).await, "unauthorized");
    }
    telephone.passed().await;
    assert!(behind.all("CALL_INCOMING").is_empty());
}

#[tokio::test]
async fn calls_go_by_tcp() {
    let run = Run {
        transport: "t1",
        ..Run::default()
    };
    let mut telephone = Sipp::start_with(Scenario::answers().ended(), run).await;
    let exchange = Exchange::with(&[("SIP_OUTBOUND_TRANSPORT", "tcp")]);
    let id = exchange.call(&telephone.address()).await;
    exchange.answered(&id).await;
    exchange.hang_up(ROOM, PHONE).await;
    telephone.passed().await;
    assert_eq!(exchange.ended(&id).await, "local");
}

#[tokio::test]
async fn calls_go_by_tls_to_whom_we_believe() {
    let folder = tempfile::tempdir().unwrap();
    let (both, alone) = certificates(folder.path());
    let kind = Kind {
        certificate: Some(both),
        ..Kind::default()
    };
    let mut telephone = Baresip::of(kind).await;
    let gateway = format!("127.0.0.1:{}", telephone.port + 1);
    let stranger = Exchange::with(&[("SIP_OUTBOUND_TRANSPORT", "tls")]);
    let id = stranger.call(&gateway).await;
    assert_eq!(stranger.ended(&id).await, "unreachable");
    let alone = alone.display().to_string();
    let settings = [
        ("SIP_OUTBOUND_TRANSPORT", "tls"),
        ("OUTGOING_CA_FILE", alone.as_str()),
    ];
    let exchange = Exchange::with(&settings);
    let id = exchange.call(&gateway).await;
    telephone.next("CALL_ESTABLISHED").await;
    exchange.answered(&id).await;
    telephone.hang_up().await;
    assert_eq!(exchange.ended(&id).await, "remote");
}

#[tokio::test]
async fn twenty_calls_go_at_once() {
    let run = Run {
        calls: 20,
        ..Run::default()
    };
    let scenario = Scenario::answers().pause(1_000).ends();
    let mut telephones = Sipp::start_with(scenario, run).await;
    let exchange = Exchange::start();
    let gateway = json!({"outbound_address": telephones.address()});
    let rooms: Vec<String> = (0..20).map(|number| format!("{ROOM}-{number}")).collect();
    let calls = rooms
        .iter()
        .map(|room| exchange.call_to(room, gateway.clone()));
    for id in futures_util::future::join_all(calls).await {
        assert_eq!(exchange.ended(&id).await, "remote");
    }
    telephones.passed().await;
    let calls = exchange.calls().await;
    let received = |call: &serde_json::Value| call["media"]["packets_received"].as_u64();
    assert!(
        calls.iter().all(|call| received(call) > Some(10)),
        "{calls:?}"
    );
}

#[tokio::test]
async fn no_more_calls_are_placed_than_there_may_be() {
    let mut telephone = Sipp::start(Scenario::answers().ended()).await;
    let exchange = Exchange::with(&[("SIP_MAX_CALLS", "1")]);
    let id = exchange.call(&telephone.address()).await;
    exchange.answered(&id).await;
    let body = json!({
        "room_name": "another", "participant_name": "Phone", "participant_identity": PHONE,
        "from_phone_number": "+14155550100", "to_phone_number": NUMBER,
        "sip": {"outbound_address": telephone.address()},
    });
    let path = "/sip/call";
    let (status, answer) =
        crate::rooms::ask(&exchange.server, reqwest::Method::POST, path, None, &body).await;
    assert_eq!(
        (status, &answer["error"]),
        (503, &json!("OVERLOADED")),
        "{answer}"
    );
    exchange.hang_up(ROOM, PHONE).await;
    telephone.passed().await;
}
