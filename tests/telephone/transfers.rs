//! Transfers by REFER (RFC 3515), and their outcomes.

use reqwest::Method;
use serde_json::{Value, json};

use super::outbound::{PASSWORD, USER, trunk};
use super::rig::baresip::Baresip;
use super::rig::kamailio::Kamailio;
use super::rig::sipp::{Scenario, Sipp};
use super::{Exchange, PHONE, ROOM};
use crate::rooms::{KEY, SECRET, ask, token};
use crate::session::client::{Event, Session};

const TARGET: &str = "+14155550111";

/// A session asks for its telephone to be moved once it is answered; gives what it is told.
async fn transferred(exchange: &Exchange, gateway: &str) -> (Session, Event, String) {
    let mut session = exchange.session(ROOM).await;
    let id = exchange.call(gateway).await;
    exchange.answered(&id).await;
    session
        .send(json!({"type": "sip_transfer", "transfer_to": TARGET}))
        .await;
    let event = session
        .next_of(&["sip_transfer_complete", "sip_transfer_error"])
        .await;
    (session, event, id)
}

#[tokio::test]
async fn a_call_is_moved() {
    let scenario = Scenario::answers()
        .transfers(&["100 Trying", "180 Ringing", "200 OK"])
        .ended();
    let mut telephone = Sipp::start(scenario).await;
    let exchange = Exchange::start();
    let (_session, event, id) = transferred(&exchange, &telephone.address()).await;
    assert_eq!(event.kind(), "sip_transfer_complete", "{event}");
    assert_eq!(event.text("transfer_to"), TARGET);
    assert_eq!(event.text("participant_identity"), PHONE);
    telephone.passed().await;
    assert_eq!(exchange.ended(&id).await, "transferred");
    let messages = telephone.messages();
    assert!(messages.contains(&format!("tel:{TARGET}")), "{messages}");
}

#[tokio::test]
async fn a_refused_transfer_leaves_the_call_as_it_was() {
    let scenario = Scenario::answers()
        .receive("REFER")
        .reply("603 Decline")
        .ended();
    let mut telephone = Sipp::start(scenario).await;
    let exchange = Exchange::start();
    let (session, event, id) = transferred(&exchange, &telephone.address()).await;
    assert_eq!(event.text("code"), "transfer_failed", "{event}");
    exchange.answered(&id).await;
    session.command("hangup").await;
    telephone.passed().await;
    assert_eq!(exchange.ended(&id).await, "local");
}

#[tokio::test]
async fn a_transfer_that_fails_later_leaves_the_call_as_it_was() {
    let scenario = Scenario::answers()
        .transfers(&["100 Trying", "486 Busy Here"])
        .ended();
    let mut telephone = Sipp::start(scenario).await;
    let exchange = Exchange::start();
    let (session, event, id) = transferred(&exchange, &telephone.address()).await;
    assert_eq!(event.text("code"), "transfer_failed", "{event}");
    assert!(event.text("message").contains("486"), "{event}");
    exchange.answered(&id).await;
    session.command("hangup").await;
    telephone.passed().await;
}

#[tokio::test]
async fn a_telephone_that_hangs_up_instead_of_telling_has_been_moved() {
    let scenario = Scenario::answers().transfers(&["100 Trying"]).ends();
    let mut telephone = Sipp::start(scenario).await;
    let exchange = Exchange::start();
    let (_session, event, _) = transferred(&exchange, &telephone.address()).await;
    assert_eq!(event.kind(), "sip_transfer_complete", "{event}");
    telephone.passed().await;
}

#[tokio::test]
async fn a_telephone_calls_whom_it_is_moved_to() {
    let telephone = Baresip::start().await;
    is_moved(json!({"outbound_address": telephone.address()})).await;
}

#[tokio::test]
async fn a_telephone_behind_a_proxy_that_wants_a_password_calls_whom_it_is_moved_to() {
    let telephone = Baresip::start().await;
    let proxy = Kamailio::start(telephone.port, USER, PASSWORD).await;
    is_moved(trunk(&format!("127.0.0.1:{}", proxy.port), PASSWORD)).await;
}

/// A telephone that is called with this `sip` of a request is moved to another, which takes the call.
async fn is_moved(sip: Value) {
    let mut other = Sipp::start(Scenario::answers()).await;
    let exchange = Exchange::with(&[("RTC_API_KEY", KEY), ("RTC_API_SECRET", SECRET)]);
    let id = exchange.call_to(ROOM, sip).await;
    exchange.answered(&id).await;
    // An address, because numbers lead nowhere without a network.
    let target = format!("sip:carol@{}", other.address());
    let body = json!({"room_name": ROOM, "participant_identity": PHONE, "transfer_to": target});
    let grants = json!({"roomAdmin": true, "room": ROOM});
    let token = token(600, &grants, &json!({"sip": {"call": true}}));
    let path = "/twirp/livekit.SIP/TransferSIPParticipant";
    let (status, answer) = ask(&exchange.server, Method::POST, path, Some(&token), &body).await;
    assert_eq!(status, 200, "{answer}");
    other.passed().await;
    assert_eq!(exchange.ended(&id).await, "transferred");
}
