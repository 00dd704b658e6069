//! Telephony: calls between our server and third-party phones and networks, with audio. The calls are observed by `GET
//! /sessions`, the WebSocket, participants in the room, and the phones.

pub mod agents;
mod answers;
mod browsers;
mod cluster;
mod doors;
mod elsewhere;
mod gateways;
mod handover;
mod hooks;
pub mod hostile;
mod inbound;
mod outbound;
mod peers;
mod phones;
mod queues;
mod registrations;
mod relay;
mod replaces;
pub mod rig;
mod rigs;
mod signalling;
mod softphones;
mod sound;
mod traces;
mod transfers;
mod trunks;

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use self::rig::PATIENCE;
use crate::harness::Server;
use crate::rooms::ask;
use crate::session::client::Session;

/// The room of all calls that are placed here, of which each server has one.
pub const ROOM: &str = "line";
/// Who is called there.
pub const PHONE: &str = "phone";
/// Whom they call.
const NUMBER: &str = "+14155550123";

/// A server with a telephone side of its own.
pub struct Exchange {
    pub server: Server,
    settings: Vec<(String, String)>,
    /// Where it listens with UDP and TCP; with TLS at the next port, where it has a certificate.
    port: u16,
}

impl Exchange {
    /// A server that takes calls from this machine into rooms that begin with `call-`, and calls anybody.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// The same with further settings.
    pub fn with(settings: &[(&str, &str)]) -> Self {
        let port = rig::ports(2);
        let media = rig::ports(160);
        let ports = format!("{media}-{}", media + 159);
        let mut listen = format!("udp:127.0.0.1:{port},tcp:127.0.0.1:{port}");
        if settings.iter().any(|(name, _)| *name == "SIP_TLS_CERT") {
            listen += &format!(",tls:127.0.0.1:{}", port + 1);
        }
        let mut environment = vec![
            ("RTC_MODE", "embedded"),
            ("SIP_LISTEN", listen.as_str()),
            ("SIP_RTP_PORTS", ports.as_str()),
            ("SIP_ROOM_PREFIX", "call-"),
            ("SIP_ALLOWED_ADDRESSES", "127.0.0.1"),
            ("SIP_ALLOW_PRIVATE_OUTBOUND", "true"),
            ("NULL_ENABLED", "true"),
        ];
        environment.extend_from_slice(settings);
        let server = Server::start_logged(&environment);
        let settings = environment.iter();
        let settings = settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self {
            server,
            settings: settings.collect(),
            port,
        }
    }

    /// A server whose telephone side is elsewhere on this machine, at this port.
    pub fn at(server: Server, port: u16) -> Self {
        Self {
            server,
            settings: Vec::new(),
            port,
        }
    }

    /// The server that replaces it.
    pub fn replaced(&self) -> Self {
        let settings = self.settings.iter();
        let settings: Vec<_> = settings
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        Self {
            server: self.server.replaced(&settings),
            settings: self.settings.clone(),
            port: self.port,
        }
    }

    /// Where telephones call it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Places a call by this gateway; gives its id.
    pub async fn call(&self, gateway: &str) -> String {
        self.call_to(ROOM, json!({"outbound_address": gateway}))
            .await
    }

    /// Places a call into a room with these fields of `sip`, or without.
    async fn call_to(&self, room: &str, sip: Value) -> String {
        let body = json!({
            "room_name": room, "participant_name": "Phone", "participant_identity": PHONE,
            "from_phone_number": "+14155550100", "to_phone_number": NUMBER, "sip": sip,
        });
        let (status, answer) = ask(&self.server, Method::POST, "/sip/call", None, &body).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["status"], "initiated", "{answer}");
        assert_eq!(answer["room_name"], room, "{answer}");
        assert_eq!(answer["participant_identity"], PHONE, "{answer}");
        answer["sip_call_id"].as_str().unwrap().to_owned()
    }

    /// What the server tells of its calls, telephones, gateways and registrations.
    async fn shown(&self) -> Value {
        ask(&self.server, Method::GET, "/sessions", None, &Value::Null)
            .await
            .1
    }

    /// All calls that the server knows.
    async fn calls(&self) -> Vec<Value> {
        self.shown().await["calls"].as_array().unwrap().clone()
    }

    /// What is found in what the server tells, once it is there.
    pub async fn shown_once<T>(&self, what: &str, found: impl Fn(&Value) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.shown().await;
            if let Some(found) = found(&shown) {
                return found;
            }
            assert!(Instant::now() < deadline, "there is no {what}: {shown}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The first call for which this holds.
    pub async fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let found = |shown: &Value| {
            let mut calls = shown["calls"].as_array()?.iter();
            calls.find(|call| wanted(call)).cloned()
        };
        self.shown_once(&format!("call that is {what}"), found)
            .await
    }

    /// Waits until a call is answered.
    pub async fn answered(&self, id: &str) -> Value {
        let answered = |call: &Value| call["sip_call_id"] == id && call["status"] == "active";
        self.until("active", answered).await
    }

    /// Waits until a call is over; gives why.
    async fn ended(&self, id: &str) -> String {
        let over = |call: &Value| call["sip_call_id"] == id && call["status"] == "hangup";
        let call = self.until("over", over).await;
        call["cause"].as_str().unwrap().to_owned()
    }

    /// Ends the call of somebody in a room.
    pub async fn hang_up(&self, room: &str, identity: &str) {
        let body = json!({"room_name": room, "participant_identity": identity});
        let (status, answer) = ask(
            &self.server,
            Method::DELETE,
            "/rtc/participant",
            None,
            &body,
        )
        .await;
        assert_eq!(status, 200, "{answer}");
    }

    /// A session in a room that neither hears nor says anything.
    pub async fn session(&self, room: &str) -> Session {
        let config = json!({
            "type": "config", "rtc": {"room_name": room},
            "stt_config": {"provider": "null"}, "tts_config": {"provider": "null", "model": ""},
        });
        Session::open(&self.server, config).await
    }
}

/// The next `sip_call` has this status; gives its cause, empty where there is none.
async fn becomes(session: &mut Session, status: &str) -> String {
    let event = session.next("sip_call").await;
    assert_eq!(event.text("status"), status, "{event}");
    event["cause"].as_str().unwrap_or_default().to_owned()
}
