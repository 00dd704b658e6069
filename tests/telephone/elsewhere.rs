//! Calls carried by another server: requested by LiveKit's own clients, and by another server of ours that takes it for a
//! LiveKit deployment.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use livekit_protocol as proto;
use livekit_protocol::sip_dispatch_rule::Rule;
use prost::Message;
use reqwest::Method;
use serde_json::{Value, json};

use super::rig::sipp::{Scenario, Sipp};
use super::{Exchange, NUMBER, PHONE};
use crate::harness::{Server, eventually};
use crate::rooms::api_clients::{Api, NAMES};
use crate::rooms::{KEY, SECRET, ask, server_elsewhere, token};
use crate::webhooks::{self, Receiver};

const TARGET: &str = "+14155550111";
const USER: &str = "the-servers-user";
const PASSWORD: &str = "the-servers-password";

/// A server that LiveKit's clients have the key of.
fn deployment() -> Exchange {
    Exchange::with(&[("RTC_API_KEY", KEY), ("RTC_API_SECRET", SECRET)])
}

/// A telephone that wants this password and is moved elsewhere.
async fn movable(user: &str, password: &str) -> Sipp {
    let scenario = Scenario::called()
        .challenge(user, password)
        .answer()
        .receive("ACK")
        .transfers(&["100 Trying", "200 OK"])
        .ended();
    Sipp::start(scenario).await
}

#[tokio::test]
async fn livekits_clients_call_and_move_telephones() {
    let exchange = deployment();
    for name in NAMES {
        // The user and the password of their trunks.
        let mut telephone = movable("ann", "secret").await;
        let options = json!({"key": KEY, "secret": SECRET});
        let mut api = Api::open(name, &exchange.server, &options).await;
        let mut ok = async |method: &str, call: Value| {
            let answer = api.call(method, call).await;
            answer.unwrap_or_else(|code| panic!("{name}: {method}: {code}"))
        };
        let trunk = json!({"name": name, "address": telephone.address()});
        let trunk = ok("make trunk", trunk).await;
        let text = |answer: &Value, camel: &str, snake: &str| {
            let text = answer[camel].as_str().or(answer[snake].as_str());
            text.unwrap_or_else(|| panic!("{answer}")).to_owned()
        };
        let trunk = text(&trunk, "sipTrunkId", "sip_trunk_id");
        let call = json!({
            "sid": trunk, "to": NUMBER, "room": name, "identity": PHONE, "wait": true,
        });
        let placed = ok("dial", call).await;
        let id = text(&placed, "sipCallId", "sip_call_id");
        exchange.answered(&id).await;
        let to = format!("tel:{TARGET}");
        ok(
            "transfer",
            json!({"room": name, "identity": PHONE, "to": to}),
        )
        .await;
        telephone.passed().await;
        assert_eq!(exchange.ended(&id).await, "transferred", "{name}");
    }
}

/// Places a call as LiveKit's clients do, with these fields more.
async fn dial(exchange: &Exchange, gateway: &str, more: &Value) -> (u16, Value) {
    let mut said = json!({
        "trunk": {"hostname": gateway}, "sipNumber": "+14155550100", "sipCallTo": NUMBER,
        "roomName": "desk", "participantIdentity": PHONE,
    });
    for (field, value) in more.as_object().unwrap() {
        said[field] = value.clone();
    }
    let token = token(600, &json!({}), &json!({"sip": {"call": true}}));
    let path = "/twirp/livekit.SIP/CreateSIPParticipant";
    ask(&exchange.server, Method::POST, path, Some(&token), &said).await
}

#[tokio::test]
async fn a_number_that_is_hidden_is_nowhere_in_the_room() {
    let exchange = deployment();
    let mut telephone = Sipp::start(Scenario::answers().ended()).await;
    let hidden = json!({"hidePhoneNumber": true, "displayName": "Front desk"});
    let (status, answer) = dial(&exchange, &telephone.address(), &hidden).await;
    assert_eq!(status, 200, "{answer}");
    let id = answer["sipCallId"].as_str().unwrap();
    exchange.answered(id).await;
    let grants = json!({"roomAdmin": true, "room": "desk"});
    let who = json!({"room": "desk", "identity": PHONE});
    let (status, seen) =
        crate::rooms::call(&exchange.server, "GetParticipant", &grants, &who).await;
    assert_eq!(
        (status, &seen["attributes"]["sip.callID"]),
        (200, &json!(id))
    );
    for name in ["sip.phoneNumber", "sip.trunkPhoneNumber", "sip.hostname"] {
        assert_eq!(seen["attributes"][name], Value::Null, "{seen}");
    }
    assert!(!seen.to_string().contains("415555"), "{seen}");
    exchange.hang_up("desk", PHONE).await;
    telephone.passed().await;
    let messages = telephone.messages();
    assert!(
        messages.contains("From: \"Front desk\" <sip:+14155550100@"),
        "{messages}"
    );
}

#[tokio::test]
async fn a_call_that_must_be_encrypted_is_placed_where_every_call_is() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let gateway = silent.local_addr().unwrap().to_string();
    let wish = json!({"mediaEncryption": "SIP_MEDIA_ENCRYPT_REQUIRE"});
    for (setting, expected) in [("off", 400), ("allow", 400), ("require", 200)] {
        let exchange = Exchange::with(&[
            ("RTC_API_KEY", KEY),
            ("RTC_API_SECRET", SECRET),
            ("SIP_MEDIA_ENCRYPTION", setting),
        ]);
        let (status, answer) = dial(&exchange, &gateway, &wish).await;
        assert_eq!(status, expected, "{setting}: {answer}");
        let problem = answer["msg"].as_str().unwrap_or("media_encryption: ");
        assert!(problem.starts_with("media_encryption: "), "{answer}");
    }
}

/// A server whose rooms and telephones are those of the deployment.
fn server_of(exchange: &Exchange, gateway: &str, receiver: &Receiver) -> Server {
    let url = format!("http://127.0.0.1:{}/all", receiver.port);
    let mut settings = webhooks::settings(&url).to_vec();
    settings.extend_from_slice(&[
        ("SIP_OUTBOUND_ADDRESS", gateway),
        ("SIP_OUTBOUND_AUTH_USERNAME", USER),
        ("SIP_OUTBOUND_AUTH_PASSWORD", PASSWORD),
        ("SIP_ROOM_PREFIX", "desk-"),
        ("SIP_ALLOWED_ADDRESSES", "192.0.2.7"),
    ]);
    server_elsewhere(&exchange.server.url.replacen("http", "ws", 1), &settings)
}

async fn place(server: &Server, room: &str) -> String {
    let body = json!({
        "room_name": room, "participant_name": "Phone", "participant_identity": PHONE,
        "from_phone_number": "+14155550100", "to_phone_number": NUMBER,
    });
    let (status, answer) = ask(server, Method::POST, "/sip/call", None, &body).await;
    assert_eq!(
        (status, &answer["status"]),
        (200, &json!("initiated")),
        "{answer}"
    );
    answer["sip_call_id"].as_str().unwrap().to_owned()
}

/// What is told next, of this call.
fn told(receiver: &mut Receiver, event: &str) -> Value {
    let body = receiver.next()["body"].clone();
    assert_eq!(body["event"], event, "{body}");
    assert_eq!(body["participant_identity"], PHONE, "{body}");
    body
}

/// Reads what is told until the call is answered: the states on the way there may be too short to be seen from elsewhere.
fn told_until_answered(receiver: &mut Receiver, id: &str) {
    loop {
        let body = told(receiver, "call.status");
        assert_eq!(
            (&body["sip_call_id"], &body["direction"]),
            (&json!(id), &json!("outbound")),
            "{body}"
        );
        match body["status"].as_str().unwrap() {
            "dialing" | "ringing" => {}
            status => return assert_eq!(status, "active", "{body}"),
        }
    }
}

#[tokio::test]
async fn a_server_calls_and_moves_telephones_through_its_deployment() {
    let exchange = deployment();
    let mut telephone = movable(USER, PASSWORD).await;
    let mut receiver = Receiver::start(0, 0);
    let server = server_of(&exchange, &telephone.address(), &receiver);
    let id = place(&server, "far").await;
    exchange.answered(&id).await;
    told_until_answered(&mut receiver, &id);
    let body = json!({"room_name": "far", "participant_identity": PHONE, "transfer_to": TARGET});
    let (status, answer) = ask(&server, Method::POST, "/sip/transfer", None, &body).await;
    assert_eq!(
        (status, &answer["status"]),
        (200, &json!("initiated")),
        "{answer}"
    );
    telephone.passed().await;
    // The outcome of the transfer and the end of the call come by ways of their own.
    let mut outcomes = [receiver.next(), receiver.next()].map(|seen| seen["body"].clone());
    outcomes.sort_by_key(|body| body["event"].to_string());
    let [ended, moved] = outcomes;
    assert_eq!(
        (&ended["event"], &ended["status"]),
        (&json!("call.status"), &json!("hangup")),
        "{ended}"
    );
    assert_eq!(
        (&moved["event"], &moved["status"], &moved["transfer_to"]),
        (
            &json!("transfer.status"),
            &json!("complete"),
            &json!(TARGET)
        ),
        "{moved}"
    );
    assert_eq!(exchange.ended(&id).await, "transferred");
}

#[tokio::test]
async fn a_server_hangs_up_through_its_deployment() {
    let exchange = deployment();
    let scenario = Scenario::called().challenge(USER, PASSWORD);
    let mut telephone = Sipp::start(scenario.answer().receive("ACK").ended()).await;
    let mut receiver = Receiver::start(0, 0);
    let server = server_of(&exchange, &telephone.address(), &receiver);
    let id = place(&server, "far").await;
    told_until_answered(&mut receiver, &id);
    let body = json!({"room_name": "far", "participant_identity": PHONE});
    let (status, answer) = ask(&server, Method::DELETE, "/rtc/participant", None, &body).await;
    assert_eq!(status, 200, "{answer}");
    telephone.passed().await;
    let ended = told(&mut receiver, "call.status");
    assert_eq!(ended["status"], "hangup", "{ended}");
    assert!(ended["duration_ms"].is_u64(), "{ended}");
}

/// Methods with the bodies of requests.
type Asked = Mutex<Vec<(String, Vec<u8>)>>;

/// What a deployment was asked of its SIP service, in order. It makes whatever is asked for.
struct Told {
    url: String,
    asked: Arc<Asked>,
}

impl Told {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let asked = Arc::<Asked>::default();
        let noted = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Whoever goes away without a question has asked for nothing.
                let _gone = answer(stream, &noted);
            }
        });
        Self { url, asked }
    }

    /// The body of the only request for a method.
    async fn only<T: Message + Default>(&self, method: &str) -> T {
        let of = || {
            let asked = self.asked.lock().unwrap();
            let of = asked.iter().filter(|(name, _)| name == method);
            of.map(|(_, body)| body.clone()).collect::<Vec<_>>()
        };
        eventually(method, || !of().is_empty()).await;
        let [body] = &of()[..] else {
            panic!("{method} came more than once")
        };
        T::decode(&body[..]).unwrap()
    }
}

/// Answers one request of a server of ours.
fn answer(mut stream: TcpStream, asked: &Asked) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split_whitespace().nth(1).unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let made = match name.as_str() {
        "CreateSIPInboundTrunk" => {
            let request = proto::CreateSipInboundTrunkRequest::decode(&body[..]).unwrap();
            let mut trunk = request.trunk.unwrap();
            "ST_made".clone_into(&mut trunk.sip_trunk_id);
            trunk.encode_to_vec()
        }
        _ => Vec::new(),
    };
    asked.lock().unwrap().push((name, body));
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: application/protobuf\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        made.len()
    )?;
    stream.write_all(&made)
}

#[tokio::test]
async fn a_deployment_is_told_who_may_call_in() {
    let deployment = Told::start();
    let settings = [
        ("SIP_ROOM_PREFIX", "desk-"),
        ("SIP_ALLOWED_ADDRESSES", "192.0.2.7"),
    ];
    let _server = server_elsewhere(&deployment.url, &settings);
    let trunk: proto::CreateSipInboundTrunkRequest = deployment.only("CreateSIPInboundTrunk").await;
    let trunk = trunk.trunk.unwrap();
    assert_eq!(trunk.allowed_addresses, ["192.0.2.7/32"]);
    let rule: proto::CreateSipDispatchRuleRequest = deployment.only("CreateSIPDispatchRule").await;
    let rule = rule.dispatch_rule.unwrap();
    assert_eq!(rule.trunk_ids, ["ST_made"]);
    let Some(Rule::DispatchRuleCallee(callee)) = rule.rule.unwrap().rule else {
        panic!("another rule")
    };
    assert_eq!(callee.room_prefix, "desk-");
}
