//! Calls of a LiveKit deployment, which its own SIP service carries: the promises of `/sip` and of sessions, kept with
//! LiveKit's server and service. With `VIVAVOCE_LONG`, as the service takes minutes to build.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::rig::baresip::Baresip;
use super::rig::livekit_sip::LiveKitSip;
use super::rig::sipp::{Scenario, Sipp};
use super::sound::{OURS, keys, persistent, understands};
use super::{Exchange, NUMBER, PHONE, becomes};
use crate::harness::livekit::{LiveKit, free_ports};
use crate::harness::redis::Redis;
use crate::harness::{PATIENCE, Server, client, is_long, share_of_words};
use crate::rooms::agent::{clip, understood};
use crate::rooms::events::posting_to;
use crate::rooms::{ask, server_elsewhere, token};
use crate::session::client::{Session, config};
use crate::webhooks::{self, Receiver};

const TARGET: &str = "+14155550111";
/// The room of callers.
const LOBBY: &str = "desk_+14155550123";

/// The host that callers call, and its hook.
const HOST: &str = "sip.example";

/// A server of ours, whose telephones call the service and are called by it.
struct Deployment {
    exchange: Exchange,
    receiver: Receiver,
    /// What its webhooks have told and no test has asked for.
    told: Vec<Value>,
    _service: LiveKitSip,
    _livekit: LiveKit,
    _redis: Redis,
}

/// One that calls by this gateway.
async fn deployment(gateway: &str) -> Deployment {
    let [port] = free_ports();
    let redis = Redis::start(&["--port", &port.to_string()]);
    let mut livekit = LiveKit::prepared();
    let receiver = Receiver::start(0, 0);
    let url = format!("http://127.0.0.1:{}/all", receiver.port);
    let hooks = json!([{"host": HOST, "url": url, "secret": webhooks::SECRET}]).to_string();
    let mut settings = webhooks::settings(&url).to_vec();
    settings.extend_from_slice(&[
        ("SIP_OUTBOUND_ADDRESS", gateway),
        ("SIP_ALLOW_PRIVATE_OUTBOUND", "true"),
        ("SIP_ROOM_PREFIX", "desk_"),
        ("SIP_ALLOWED_ADDRESSES", "127.0.0.1"),
        ("SIP_HOOKS_JSON", &hooks),
        ("SIP_ALLOW_INSECURE_HOOKS", "true"),
        ("SIP_ALLOW_PRIVATE_HOOKS", "true"),
    ]);
    let server = server_elsewhere(&livekit.url, &settings);
    livekit.start(&format!(
        "redis: {{address: '127.0.0.1:{port}'}}\n{}",
        posting_to(&server)
    ));
    let service = LiveKitSip::start(&livekit.url, port).await;
    takes_calls(&livekit).await;
    Deployment {
        exchange: Exchange::at(server, service.port),
        receiver,
        told: Vec::new(),
        _service: service,
        _livekit: livekit,
        _redis: redis,
    }
}

/// Waits until a deployment was told who may call in; the service drops a call for which there is no rule yet, without a word.
async fn takes_calls(livekit: &LiveKit) {
    let url = livekit.url.replacen("ws", "http", 1) + "/twirp/livekit.SIP/ListSIPDispatchRule";
    let token = token(600, &json!({}), &json!({"sip": {"admin": true}}));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let asked = client().post(&url).bearer_auth(&token).json(&json!({}));
        let rules: Value = asked.send().await.unwrap().json().await.unwrap();
        if rules["items"][0].is_object() {
            return;
        }
        assert!(Instant::now() < deadline, "there is no rule: {rules}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

impl Deployment {
    /// A session in a room, with a loading sound of 600 Hz.
    async fn session(&self, room: &str) -> Session {
        let config = config(json!({
            "rtc": {"room_name": room}, "loading_audio": {"data": clip(), "format": "wav"},
        }));
        Session::open(&self.exchange.server, config).await
    }

    /// Places a call into a room by the gateway of the settings.
    async fn call(&self, room: &str) -> String {
        self.exchange.call_to(room, Value::Null).await
    }

    /// What webhooks tell of this event with this status. Events of a call and of its transfer come by ways of their own, so
    /// that others may come before it, and are kept.
    fn told(&mut self, event: &str, status: &str) -> Value {
        let wanted = |body: &Value| body["event"] == event && body["status"] == status;
        loop {
            if let Some(at) = self.told.iter().position(wanted) {
                return self.told.remove(at);
            }
            self.told.push(self.receiver.next()["body"].clone());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_telephone_and_a_session_talk_through_livekits_sip_service() {
    if !is_long() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let speaker = Server::start();
    let mut telephone = persistent(&speaker, folder.path()).await;
    let mut deployment = deployment(&telephone.address()).await;
    let mut session = deployment.session("line").await;
    let id = deployment.call("line").await;
    telephone.next("CALL_ESTABLISHED").await;
    while next_status(&mut session).await != "active" {}
    let answered = deployment.told("call.status", "active");
    assert_eq!(answered["sip_call_id"], id.as_str(), "{answered}");

    understands(&mut session).await;
    for id in ["a", "b", "c"] {
        session.speak(id, OURS).await;
        session.completion_of(id).await;
    }
    session.command("loading_start").await;
    telephone.hears(600).await;
    session.command("loading_stop").await;

    keys(&mut telephone, &mut session).await;

    telephone.hang_up().await;
    assert_eq!(becomes(&mut session, "hangup").await, "remote");
    let over = deployment.told("call.status", "hangup");
    assert_eq!(over["cause"], "remote", "{over}");
    let heard = understood(&telephone.recording("dec").unwrap());
    assert!(
        share_of_words(OURS, &heard) >= 0.6,
        "the telephone heard {heard:?}"
    );
    session.close().await;
}

/// The status that the next `sip_call` tells.
async fn next_status(session: &mut Session) -> String {
    session.next("sip_call").await.text("status").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_a_telephone_does_not_take_is_over() {
    if !is_long() {
        return;
    }
    let scenario = Scenario::called()
        .reply("180 Ringing")
        .reply("486 Busy Here")
        .receive("ACK");
    let mut telephone = Sipp::start(scenario).await;
    let mut deployment = deployment(&telephone.address()).await;
    let mut session = deployment.session("line").await;
    let id = deployment.call("line").await;
    telephone.passed().await;
    while next_status(&mut session).await != "hangup" {}
    let over = deployment.told("call.status", "hangup");
    assert_eq!(over["sip_call_id"], id.as_str(), "{over}");
    // The service says of each refusal alike that the user has rejected it.
    assert_eq!(over["cause"], "declined", "{over}");
    session.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_moved_by_livekits_sip_service_or_stays_where_the_telephone_refuses() {
    if !is_long() {
        return;
    }
    let refuses = Scenario::answers()
        .receive("REFER")
        .reply("603 Decline")
        .ended();
    let goes = Scenario::answers()
        .transfers(&["100 Trying", "200 OK"])
        .ended();
    let goes_without_a_word = Scenario::answers().transfers(&["100 Trying"]).ends();
    for (scenario, outcome, cause) in [
        (refuses, "failed", "local"),
        (goes, "complete", "transferred"),
        (goes_without_a_word, "complete", "transferred"),
    ] {
        let mut telephone = Sipp::start(scenario).await;
        let mut deployment = deployment(&telephone.address()).await;
        let mut session = deployment.session("line").await;
        let id = deployment.call("line").await;
        while next_status(&mut session).await != "active" {}
        if outcome == "failed" {
            let wish = json!({"type": "sip_transfer", "transfer_to": TARGET});
            session.send(wish).await;
            let event = session.next("sip_transfer_error").await;
            assert_eq!(event.text("code"), "transfer_failed", "{event}");
            session.command("hangup").await;
        } else {
            let wish =
                json!({"room_name": "line", "participant_identity": PHONE, "transfer_to": TARGET});
            let server = &deployment.exchange.server;
            let (status, answer) = ask(server, Method::POST, "/sip/transfer", None, &wish).await;
            assert_eq!(status, 200, "{answer}");
        }
        let told = deployment.told("transfer.status", outcome);
        assert_eq!(told["sip_call_id"], id.as_str(), "{told}");
        assert_eq!(told["transfer_to"], TARGET, "{told}");
        let messages = telephone.messages();
        assert!(messages.contains(&format!("tel:{TARGET}")), "{messages}");
        let over = deployment.told("call.status", "hangup");
        assert_eq!(over["cause"], cause, "{over}");
        telephone.passed().await;
        session.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_comes_into_the_room_of_the_number_through_livekits_sip_service() {
    if !is_long() {
        return;
    }
    let mut deployment = deployment("127.0.0.1:9").await;
    let mut session = deployment.session(LOBBY).await;
    let mut telephone = Baresip::start().await;
    let address = deployment.exchange.address();
    telephone.dial(&format!("sip:{NUMBER}@{address}")).await;
    telephone.next("CALL_ESTABLISHED").await;
    let who = session.next("participant_connected").await;
    let identity = who["participant"]["identity"].as_str().unwrap().to_owned();
    session.command("loading_start").await;
    telephone.hears(600).await;
    telephone.press("5").await;
    let event = session.next("dtmf").await;
    assert_eq!(
        (event.text("digit"), event.text("identity")),
        ("5", identity.as_str())
    );
    let server = &deployment.exchange.server;
    let hang_up = async |identity: &str| {
        let body = json!({"room_name": LOBBY, "participant_identity": identity});
        let (status, answer) = ask(server, Method::DELETE, "/rtc/participant", None, &body).await;
        assert_eq!(status, 200, "{answer}");
    };
    hang_up(&identity).await;
    telephone.next("CALL_CLOSED").await;

    // Who is called by a host has its hook told.
    let caller = Scenario::is_answered(&format!("X-To-IP: {HOST}\n")).ended();
    let mut caller = Sipp::call(&caller, NUMBER, &address);
    let who = session.next("participant_connected").await;
    let identity = who["participant"]["identity"].as_str().unwrap().to_owned();
    let hook = loop {
        let seen = deployment.receiver.next();
        if seen["body"]["sip_host"] == HOST {
            break seen;
        }
    };
    assert_eq!(hook["good"], true, "{hook}");
    assert_eq!(hook["body"]["room"]["name"], LOBBY, "{hook}");
    assert_eq!(hook["body"]["participant"]["identity"], identity, "{hook}");
    hang_up(&identity).await;
    caller.passed().await;
    session.close().await;
}
