//! `POST /sip/call` and `POST /sip/transfer` by the specification: statuses, order of checks, tenants, and which
//! credentials are sent to which gateway.

use std::net::UdpSocket;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::rig::ports;
use super::rig::sipp::{Scenario, Sipp};
use super::{Exchange, PHONE};
use crate::harness::Server;
use crate::rooms::ask;
use crate::rooms::rest::{A, B, NOBODY, guarded, outcome, tenants};

const USER: &str = "the-servers-user";
const PASSWORD: &str = "the-servers-password";

fn wish(room: &str) -> Value {
    json!({
        "room_name": room, "participant_name": "Phone", "participant_identity": PHONE,
        "from_phone_number": "+14155550100", "to_phone_number": "+14155550123",
    })
}

fn with(wish: &Value, field: &str, value: Value) -> Value {
    let mut wish = wish.clone();
    wish[field] = value;
    wish
}

async fn call(server: &Server, token: Option<&str>, wish: &Value) -> (u16, Value) {
    ask(server, Method::POST, "/sip/call", token, wish).await
}

async fn transfer(
    server: &Server,
    token: Option<&str>,
    room: &str,
    who: &str,
    to: &str,
) -> (u16, Value) {
    let wish = json!({"room_name": room, "participant_identity": who, "transfer_to": to});
    ask(server, Method::POST, "/sip/transfer", token, &wish).await
}

async fn owner(server: &Server, room: &str) -> Value {
    let path = format!("/rtc/rooms/{room}");
    let (_, room) = ask(server, Method::GET, &path, Some(NOBODY), &Value::Null).await;
    let metadata: Value =
        serde_json::from_str(room["metadata"].as_str().unwrap_or("{}")).unwrap_or_default();
    metadata["auth_id"].clone()
}

async fn make_room(server: &Server, token: Option<&str>, room: &str) {
    let wish = json!({"room_name": room, "participant_name": "x", "participant_identity": "x"});
    let (status, answer) = ask(server, Method::POST, "/rtc/token", token, &wish).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn a_call_is_placed_into_rooms_of_its_tenant_alone() {
    let telephone = Sipp::start(Scenario::answers().ended()).await;
    let gateway = telephone.address();
    let tenants = tenants();
    let mut settings = guarded(&tenants).to_vec();
    settings.push(("SIP_OUTBOUND_ADDRESS", gateway.as_str()));
    let exchange = Exchange::with(&settings);
    let server = &exchange.server;
    make_room(server, Some(B), "of-b").await;
    assert_eq!(call(server, None, &wish("of-a")).await.0, 401);
    let refused = call(server, Some(A), &wish("of-b")).await;
    assert_eq!(outcome(&refused), (404, "ROOM_NOT_FOUND"));
    let (status, answer) = call(server, Some(A), &wish("of-a")).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(
        (
            &answer["status"],
            &answer["room_name"],
            &answer["participant_identity"]
        ),
        (&json!("initiated"), &json!("of-a"), &json!(PHONE))
    );
    assert!(
        answer["participant_id"]
            .as_str()
            .unwrap()
            .starts_with("PA_"),
        "{answer}"
    );
    assert!(
        answer["sip_call_id"].as_str().unwrap().starts_with("SCL_"),
        "{answer}"
    );
    assert_eq!(owner(server, "of-a").await, "a");
    // Only its tenant, and a caller without one, sees the call.
    for (token, seen) in [(A, 1), (B, 0), (NOBODY, 1)] {
        let (_, list) = ask(server, Method::GET, "/sessions", Some(token), &Value::Null).await;
        assert_eq!(list["calls"].as_array().unwrap().len(), seen, "{list}");
    }
    for (token, room, who, expected) in [
        (None, "of-a", PHONE, (401, "missing_auth_header")),
        (Some(B), "of-a", PHONE, (404, "ROOM_NOT_FOUND")),
        (Some(A), "nowhere", PHONE, (404, "ROOM_NOT_FOUND")),
        (Some(A), "of-a", "nobody", (404, "PARTICIPANT_NOT_FOUND")),
    ] {
        let refused = transfer(server, token, room, who, "1000").await;
        assert_eq!(outcome(&refused), expected, "{token:?} {room} {who}");
    }
}

#[tokio::test]
async fn a_call_that_cannot_be_is_refused_with_what_is_wrong_with_it() {
    let exchange = Exchange::with(&[("SIP_ALLOWED_DESTINATIONS", "+1,1")]);
    let server = &exchange.server;
    let gateway = |address: &str| json!({"sip": {"outbound_address": address}});
    let to = |number: &str| with(&gateway("192.0.2.1"), "to_phone_number", json!(number));
    let wishes = [
        (json!({"room_name": ""}), (400, "INVALID_REQUEST")),
        (json!({"participant_name": null}), (400, "INVALID_REQUEST")),
        (
            json!({"participant_identity": " "}),
            (400, "INVALID_REQUEST"),
        ),
        (
            json!({"from_phone_number": "me"}),
            (400, "INVALID_PHONE_NUMBER"),
        ),
        (to("+0123456789"), (400, "INVALID_PHONE_NUMBER")),
        (gateway("a b"), (400, "INVALID_REQUEST")),
        (
            json!({"sip": {"auth_password": "x"}}),
            (400, "INVALID_REQUEST"),
        ),
        (json!({}), (500, "OUTBOUND_ADDRESS_NOT_CONFIGURED")),
        (to("112"), (400, "DESTINATION_NOT_ALLOWED")),
        (to("+442079460000"), (400, "DESTINATION_NOT_ALLOWED")),
        (gateway("nowhere.invalid"), (500, "CALL_FAILED")),
    ];
    let last = format!("room {}", wishes.len() - 1);
    for (index, (more, expected)) in wishes.into_iter().enumerate() {
        let mut wish = wish(&format!("room {index}"));
        for (field, value) in more.as_object().unwrap() {
            wish[field] = value.clone();
        }
        assert_eq!(
            outcome(&call(server, None, &wish).await),
            expected,
            "{wish}"
        );
    }
    // What is refused before it has a room makes none. A call that fails leaves its room to others who may know of it.
    let (_, rooms) = ask(server, Method::GET, "/rtc/rooms", None, &Value::Null).await;
    let names: Vec<&str> = rooms["rooms"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|room| room["name"].as_str())
        .collect();
    assert_eq!(names, [last]);
}

#[tokio::test]
async fn a_private_gateway_of_a_request_needs_the_settings_leave() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let exchange = Exchange::with(&[("SIP_ALLOW_PRIVATE_OUTBOUND", "false")]);
    let sip = json!({"outbound_address": silent.local_addr().unwrap().to_string()});
    let refused = call(&exchange.server, None, &with(&wish("r"), "sip", sip)).await;
    assert_eq!(outcome(&refused), (500, "CALL_FAILED"));
    let problem = refused.1["message"].as_str().unwrap();
    assert!(problem.starts_with("sip.outbound_address: "), "{problem}");
    silent.set_nonblocking(true).unwrap();
    assert!(
        silent.recv(&mut [0; 16]).is_err(),
        "something was sent to it"
    );
}

#[tokio::test]
async fn without_rooms_there_are_no_calls() {
    let server = Server::start_with(&[("RTC_MODE", "off"), ("SIP_OUTBOUND_ADDRESS", "192.0.2.1")]);
    let refused = call(&server, None, &wish("r")).await;
    assert_eq!(outcome(&refused), (500, "RTC_NOT_CONFIGURED"));
    let refused = transfer(&server, None, "r", PHONE, "1000").await;
    assert_eq!(outcome(&refused), (500, "RTC_NOT_CONFIGURED"));
}

/// A gateway that asks everybody for a password and keeps what it was sent.
fn challenge(socket: &UdpSocket) -> String {
    let mut all = String::new();
    let mut datagram = [0; 4_096];
    loop {
        let (bytes, from) = socket.recv_from(&mut datagram).unwrap();
        let text = String::from_utf8_lossy(&datagram[..bytes]).into_owned();
        all += &text;
        if text.starts_with("ACK") {
            return all;
        }
        if !text.starts_with("INVITE") {
            continue;
        }
        let mut answer = "SIP/2.0 401 Unauthorized\r\n".to_owned();
        for line in text.lines() {
            let name = line
                .split(':')
                .next()
                .unwrap_or_default()
                .to_ascii_lowercase();
            match name.as_str() {
                "to" => answer += &format!("{line};tag=1\r\n"),
                "via" | "from" | "call-id" | "cseq" => answer += &format!("{line}\r\n"),
                _ => {}
            }
        }
        answer += "WWW-Authenticate: Digest realm=\"foreign\", nonce=\"abc\", algorithm=MD5, qop=\"auth\"\r\n";
        answer += "Content-Length: 0\r\n\r\n";
        socket.send_to(answer.as_bytes(), from).unwrap();
    }
}

#[tokio::test]
async fn a_gateway_that_a_request_names_never_sees_the_servers_credentials() {
    let foreign = UdpSocket::bind("127.0.0.1:0").unwrap();
    foreign
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let address = foreign.local_addr().unwrap().to_string();
    let own = format!("127.0.0.1:{}", ports(1));
    let exchange = Exchange::with(&[
        ("SIP_OUTBOUND_ADDRESS", own.as_str()),
        ("SIP_OUTBOUND_AUTH_USERNAME", USER),
        ("SIP_OUTBOUND_AUTH_PASSWORD", PASSWORD),
    ]);
    let seen = tokio::task::spawn_blocking(move || challenge(&foreign));
    let id = exchange.call(&address).await;
    assert_eq!(exchange.ended(&id).await, "unauthorized");
    let seen = seen.await.unwrap();
    assert!(seen.contains("INVITE sip:"), "{seen}");
    assert!(!seen.contains("Authorization"), "{seen}");
    assert!(!seen.contains(USER) && !seen.contains(PASSWORD), "{seen}");
}

#[tokio::test]
async fn the_configured_gateway_knows_the_server() {
    let mut telephone = Sipp::start(
        Scenario::called()
            .challenge(USER, PASSWORD)
            .answer()
            .receive("ACK")
            .ended(),
    )
    .await;
    let own = telephone.address();
    let exchange = Exchange::with(&[
        ("SIP_OUTBOUND_ADDRESS", own.as_str()),
        ("SIP_OUTBOUND_AUTH_USERNAME", USER),
        ("SIP_OUTBOUND_AUTH_PASSWORD", PASSWORD),
    ]);
    let id = exchange.call_to("r", Value::Null).await;
    exchange.answered(&id).await;
    exchange.hang_up("r", PHONE).await;
    exchange.ended(&id).await;
    telephone.passed().await;
}
