//! What gateways and PBXs ask of signalling beyond a plain call: who calls, proxies, redirections, reliable ringing, forks, fax, keys
//! in signalling, and both IP versions.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::rig::baresip::Baresip;
use super::rig::sipp::{Scenario, Sipp};
use super::{Exchange, PHONE, ROOM};
use crate::harness::{PATIENCE, client, eventually};
use crate::rooms::ask;
use crate::session::client::Session;

async fn ends(exchange: &Exchange, id: &str, telephone: &mut Sipp) {
    exchange.answered(id).await;
    exchange.hang_up(ROOM, PHONE).await;
    telephone.passed().await;
}

/// Calls with these fields in place of the usual ones; a null removes one.
async fn call_with(exchange: &Exchange, fields: Value) -> (u16, Value) {
    let mut body = json!({
        "room_name": ROOM, "participant_name": "Phone", "participant_identity": PHONE,
        "from_phone_number": "+14155550100", "to_phone_number": super::NUMBER,
    });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body.as_object_mut()
        .unwrap()
        .retain(|_, value| !value.is_null());
    ask(&exchange.server, Method::POST, "/sip/call", None, &body).await
}

#[tokio::test]
async fn a_caller_who_is_not_to_be_seen_is_told_to_the_gateway_alone_and_a_proxy_has_its_route() {
    let mut telephone = Sipp::start(Scenario::answers().ended()).await;
    let gateways =
        json!([{"address": "pbx.example", "proxy": telephone.address(), "identity": "asserted"}]);
    let exchange = Exchange::with(&[
        ("SIP_GATEWAYS_JSON", &gateways.to_string()),
        ("SIP_CODECS", "PCMA,PCMU"),
    ]);
    let fields = json!({"from_display_name": "Front \"Desk\"", "hide_caller_id": true});
    let (status, placed) = call_with(&exchange, fields).await;
    assert_eq!(status, 200, "{placed}");
    ends(
        &exchange,
        placed["sip_call_id"].as_str().unwrap(),
        &mut telephone,
    )
    .await;
    let messages = telephone.messages();
    for line in [
        "INVITE sip:+14155550123@pbx.example SIP/2.0".to_owned(),
        format!("Route: <sip:{};lr>", telephone.address()),
        "From: \"Anonymous\" <sip:anonymous@anonymous.invalid>".to_owned(),
        "P-Asserted-Identity: \"Front \\\"Desk\\\"\" <sip:+14155550100@127.0.0.1>".to_owned(),
        "Privacy: id".to_owned(),
        // The codecs in the order of the settings.
        "RTP/AVP 8 0 101".to_owned(),
    ] {
        assert!(messages.contains(&line), "{line} is not in {messages}");
    }
    assert!(!messages.contains("Contact: <sip:+1415"), "{messages}");
}

#[tokio::test]
async fn a_sip_uri_is_called_at_the_hosts_that_the_settings_allow() {
    let mut telephone = Sipp::start(Scenario::answers().ended()).await;
    let exchange = Exchange::with(&[
        ("SIP_ALLOWED_HOSTS", "*.example.org, 127.0.0.1"),
        ("SIP_EMERGENCY_NUMBERS", "US"),
    ]);
    let to = |uri: &str| json!({"to_sip_uri": uri, "to_phone_number": null});
    let at = telephone.address();
    let (status, placed) = call_with(&exchange, to(&format!("sip:bob@{at}"))).await;
    assert_eq!(status, 200, "{placed}");
    ends(
        &exchange,
        placed["sip_call_id"].as_str().unwrap(),
        &mut telephone,
    )
    .await;
    assert!(
        telephone
            .messages()
            .contains(&format!("INVITE sip:bob@{at} SIP/2.0"))
    );
    for (uri, status, code) in [
        (
            "sip:bob@elsewhere.example".to_owned(),
            400,
            "DESTINATION_NOT_ALLOWED",
        ),
        (format!("sip:911@{at}"), 400, "DESTINATION_NOT_ALLOWED"),
        (format!("sip:bob:pw@{at}"), 400, "INVALID_REQUEST"),
        ("sip:bob".to_owned(), 500, "CALL_FAILED"),
    ] {
        let (told, answer) = call_with(&exchange, to(&uri)).await;
        assert_eq!(
            (told, &answer["error"]),
            (status, &json!(code)),
            "{uri}: {answer}"
        );
    }
    let both = json!({"to_sip_uri": format!("sip:bob@{at}")});
    assert_eq!(call_with(&exchange, both).await.0, 400);
}

#[tokio::test]
async fn a_redirection_is_followed_to_where_calls_may_go() {
    let mut target = Sipp::start(Scenario::answers().ended()).await;
    let contact = format!(
        "Contact: <sip:eve@evil.example>;q=0.9, <sip:bob@{}>;q=0.5\n",
        target.address()
    );
    let moved = || {
        Scenario::called()
            .reply_with("302 Moved Temporarily", &contact)
            .receive("ACK")
    };
    let mut first = Sipp::start(moved()).await;
    let exchange = Exchange::with(&[
        ("SIP_OUTBOUND_ADDRESS", &first.address()),
        ("SIP_ALLOWED_HOSTS", "127.0.0.1"),
    ]);
    let id = exchange.call_to(ROOM, Value::Null).await;
    ends(&exchange, &id, &mut target).await;
    first.passed().await;
    assert!(target.messages().contains("INVITE sip:bob@"));
    let mut second = Sipp::start(moved()).await;
    let strict = Exchange::with(&[("SIP_OUTBOUND_ADDRESS", &second.address())]);
    let id = strict.call_to(ROOM, Value::Null).await;
    assert_eq!(strict.ended(&id).await, "failed");
    second.passed().await;
    let trace = super::traces::trace(&strict, |trace| trace["trace_id"] == id.as_str()).await;
    assert_eq!(
        (&trace["state"], &trace["status"]),
        (&json!("failed"), &json!(302))
    );
}

#[tokio::test]
async fn a_gateway_that_does_not_answer_options_comes_last_before_any_call() {
    // Bound, so that nothing comes back.
    let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let telephone = Baresip::start().await;
    let gateways = json!([
        {"address": silent.local_addr().unwrap().to_string(), "priority": 0},
        {"address": telephone.address(), "priority": 1},
    ]);
    let exchange = Exchange::with(&[
        ("SIP_GATEWAYS_JSON", &gateways.to_string()),
        ("SIP_GATEWAY_CHECK_SECONDS", "1"),
    ]);
    let asked = |shown: &Value| {
        let gateways = shown["sip_gateways"].as_array()?;
        let states = gateways.iter().map(|one| one["state"].as_str().unwrap());
        states.eq(["down", "up"]).then(|| gateways[1].clone())
    };
    let up = exchange.shown_once("gateway down, then up", asked).await;
    assert!(up["round_trip_ms"].is_number(), "{up}");
    let metrics = client().get(format!("{}/metrics", exchange.server.url));
    let metrics = metrics.send().await;
    let metrics = metrics.unwrap().text().await.unwrap();
    for line in [
        "vivavoce_sip_gateways{state=\"up\"} 1",
        "vivavoce_sip_gateways{state=\"down\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
    let id = exchange.call_to(ROOM, Value::Null).await;
    exchange.answered(&id).await;
    let mut datagram = [0; 2_048];
    while let Ok(length) = silent.try_recv(&mut datagram) {
        assert!(
            !datagram[..length].starts_with(b"INVITE"),
            "it is called first"
        );
    }
}

#[tokio::test]
async fn reliable_ringing_is_acknowledged_and_a_call_may_ring_at_several_telephones() {
    let mut telephone = Sipp::start(
        Scenario::called()
            .reply_of_fork("180 Ringing", "another")
            .reply_sound_with("183 Session Progress", "Require: 100rel\nRSeq: 7\n")
            .acknowledged_ringing()
            .answer_invite()
            .receive("ACK")
            .ended(),
    )
    .await;
    let exchange = Exchange::start();
    let id = exchange.call(&telephone.address()).await;
    ends(&exchange, &id, &mut telephone).await;
    let messages = telephone.messages();
    assert!(messages.contains("Supported: 100rel"), "{messages}");
    let rack = messages
        .lines()
        .find(|line| line.starts_with("RAck: "))
        .unwrap();
    let invite = messages
        .lines()
        .find(|line| line.ends_with(" INVITE"))
        .unwrap();
    assert_eq!(
        rack.trim(),
        format!("RAck: 7 {}", invite.trim().trim_start_matches("CSeq: "))
    );
}

#[tokio::test]
async fn a_caller_may_require_reliable_ringing() {
    let exchange = Exchange::start();
    let scenario = Scenario::acknowledges_ringing().ends();
    let mut telephone = Sipp::call(&scenario, "+14155550123", &exchange.address());
    telephone.passed().await;
}

#[tokio::test]
async fn fax_is_refused_and_the_call_goes_on() {
    let exchange = Exchange::start();
    let fax = "v=0\no=sipp 1 2 IN IP4 127.0.0.1\ns=-\nc=IN IP4 127.0.0.1\nt=0 0\nm=image 4000 udptl t38\na=T38FaxVersion:0\n";
    let scenario = Scenario::is_answered("")
        .request_with("INVITE", "Content-Type: application/sdp\n", fax)
        .until_refused(488)
        .pause(200)
        .ends();
    let mut telephone = Sipp::call(&scenario, "+14155550123", &exchange.address());
    telephone.passed().await;
    let messages = telephone.messages();
    assert!(
        messages.contains("Warning: 399") && messages.contains("T.38 is not supported"),
        "{messages}"
    );
}

/// A telephone that takes keys by INFO alone, of which it answers two like this, in a call in which these are pressed.
async fn takes_keys_by_info(answers: [&str; 2], digits: &str) -> (Sipp, Exchange, Session) {
    let answered = Scenario::called()
        .without_events()
        .reply("180 Ringing")
        .answer_with("Allow: INVITE, ACK, BYE, INFO\n")
        .receive("ACK");
    let scenario = answers.iter().fold(answered, |scenario, answer| {
        scenario.receive("INFO").reply(answer)
    });
    let telephone = Sipp::start(scenario.ended()).await;
    let exchange = Exchange::start();
    let session = exchange.session(ROOM).await;
    let id = exchange.call(&telephone.address()).await;
    exchange.answered(&id).await;
    session
        .send(json!({"type": "send_dtmf", "digits": digits}))
        .await;
    (telephone, exchange, session)
}

#[tokio::test]
async fn keys_are_sent_by_info_where_there_are_no_events() {
    let (mut telephone, exchange, _session) = takes_keys_by_info(["200 OK"; 2], "5#").await;
    let deadline = Instant::now() + PATIENCE;
    while telephone.messages().matches("INFO sip:").count() < 2 {
        assert!(Instant::now() < deadline, "{}", telephone.messages());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    exchange.hang_up(ROOM, PHONE).await;
    telephone.passed().await;
    let messages = telephone.messages();
    let (first, second) = (messages.find("Signal=5"), messages.find("Signal=#"));
    assert!(first.is_some() && first < second, "{messages}");
}

/// As Linphone does while a key of its own is under way.
#[tokio::test]
async fn a_key_that_comes_at_the_wrong_moment_is_sent_again() {
    let (mut telephone, exchange, _session) =
        takes_keys_by_info(["491 Request Pending", "200 OK"], "5").await;
    let again = || telephone.messages().matches("Signal=5").count() >= 2;
    eventually("the key is not sent again", again).await;
    exchange.hang_up(ROOM, PHONE).await;
    telephone.passed().await;
}

#[tokio::test]
async fn media_of_the_other_address_family_is_answered() {
    let exchange = Exchange::start();
    let scenario = Scenario::calls_with_media_at(6, "::1").ends();
    let mut telephone = Sipp::call(&scenario, "+14155550123", &exchange.address());
    telephone.passed().await;
    assert!(
        telephone
            .messages()
            .contains("c=IN IP6 ::1\r\nt=0 0\r\nm=audio"),
        "{}",
        telephone.messages()
    );
}
