//! Trunks and dispatch rules of LiveKit's SIP API, made by LiveKit's own client: each is enforced, each violation refused.

use livekit_api::services::sip::{
    CreateSIPDispatchRuleOptions, CreateSIPInboundTrunkOptions, SIPClient,
};
use livekit_protocol as proto;
use proto::sip_dispatch_rule::Rule;
use reqwest::Method;
use serde_json::{Value, json};

use super::Exchange;
use super::rig::baresip::{Baresip, Kind};
use super::rig::sipp::{Run, Scenario, Sipp};
use super::rig::tone;
use crate::harness::{eventually, stderr, stdout, vivavoce};
use crate::rooms::client::Kind as Sort;
use crate::rooms::{KEY, SECRET, ask, join, workers};

/// A number of the trunk, and one that no trunk names.
const SHOP: &str = "+14155550150";
const OTHER: &str = "+14155550160";

/// An exchange with LiveKit's client for it.
pub fn exchange(more: &[(&str, &str)]) -> (Exchange, SIPClient) {
    let mut settings = vec![("RTC_API_KEY", KEY), ("RTC_API_SECRET", SECRET)];
    settings.extend_from_slice(more);
    let exchange = Exchange::with(&settings);
    let client = SIPClient::with_api_key(&exchange.server.url, KEY, SECRET);
    (exchange, client)
}

/// A trunk has to name somebody: those who call from this address.
fn callers_from(address: &str) -> CreateSIPInboundTrunkOptions {
    CreateSIPInboundTrunkOptions {
        allowed_addresses: Some(vec![address.to_owned()]),
        ..Default::default()
    }
}

/// A trunk for the shop's number; its id.
async fn trunk(client: &SIPClient, options: CreateSIPInboundTrunkOptions) -> String {
    let numbers = vec![SHOP.to_owned()];
    let made = client.create_sip_inbound_trunk("shop".to_owned(), numbers, options);
    made.await.unwrap().sip_trunk_id
}

async fn rule(client: &SIPClient, rule: Rule, options: CreateSIPDispatchRuleOptions) -> String {
    let made = Box::pin(client.create_sip_dispatch_rule(rule, options)).await;
    made.unwrap().sip_dispatch_rule_id
}

fn direct(room: &str, pin: &str) -> Rule {
    Rule::DispatchRuleDirect(proto::SipDispatchRuleDirect {
        room_name: room.to_owned(),
        pin: pin.to_owned(),
    })
}

/// Calls and is refused.
async fn refused(exchange: &Exchange, number: &str, status: u16) {
    let scenario = Scenario::is_refused("", status);
    Sipp::call(&scenario, number, &exchange.address())
        .passed()
        .await;
}

/// Calls, is in this room, and hangs up.
async fn comes_into(exchange: &Exchange, number: &str, scenario: Scenario, room: &str) -> Value {
    let scenario = scenario.pause(400).ends();
    let mut telephone = Sipp::call(&scenario, number, &exchange.address());
    let here = |call: &Value| call["room_name"] == room && call["status"] == "active";
    let call = exchange.until(&format!("in {room}"), here).await;
    telephone.passed().await;
    call
}

/// Numbers that no trunk names follow the settings, as before; and the password of the one that there is was not logged.
async fn others_follow_the_settings(exchange: &Exchange) {
    let room = "call-+14155550160";
    comes_into(exchange, OTHER, Scenario::is_answered(""), room).await;
    assert!(!exchange.server.log_so_far().contains("an-open-sesame"));
}

/// Those that the settings name hold as those of the API do, which lists them and changes nothing of them.
#[tokio::test]
async fn trunks_and_rules_of_the_settings_hold_from_the_start() {
    let trunks = json!({
        "inbound": [{"sip_trunk_id": "ST_shop", "numbers": [SHOP],
            "auth_username": "shop", "auth_password": "an-open-sesame"}],
        "rules": [{"trunk_ids": ["ST_shop"], "rule": {"dispatch_rule_direct": {"room_name": "counter"}}}],
    });
    let (exchange, client) = exchange(&[("SIP_TRUNKS_JSON", &trunks.to_string())]);
    refused(&exchange, SHOP, 401).await;
    let right = || Scenario::logs_in("shop", "an-open-sesame").until_answered();
    comes_into(&exchange, SHOP, right(), "counter").await;
    let listed = client
        .list_sip_inbound_trunk(livekit_api::services::sip::ListSIPInboundTrunkFilter::All)
        .await
        .unwrap();
    assert_eq!(listed[0].sip_trunk_id, "ST_shop");
    let refused = client.delete_sip_trunk("ST_shop").await.unwrap_err();
    assert!(refused.to_string().contains("sip.trunks_json"), "{refused}");
    comes_into(&exchange, SHOP, right(), "counter").await;
    others_follow_the_settings(&exchange).await;
}

#[tokio::test]
async fn a_call_needs_the_password_of_its_trunk_whatever_the_rules() {
    let (exchange, client) = exchange(&[]);
    // Before there is a trunk the settings decide.
    comes_into(
        &exchange,
        SHOP,
        Scenario::is_answered(""),
        "call-+14155550150",
    )
    .await;
    trunk(
        &client,
        CreateSIPInboundTrunkOptions {
            auth_username: Some("shop".to_owned()),
            auth_password: Some("an-open-sesame".to_owned()),
            ..Default::default()
        },
    )
    .await;
    refused(&exchange, SHOP, 401).await;
    let wrong = Scenario::logs_in("shop", "guessed").until_refused(403);
    Sipp::call(&wrong, SHOP, &exchange.address()).passed().await;
    let right = Scenario::logs_in("shop", "an-open-sesame").until_answered();
    comes_into(&exchange, SHOP, right, "call-+14155550150").await;
    let mut telephone = Baresip::of(Kind {
        credentials: Some(("shop", "an-open-sesame")),
        ..Kind::default()
    })
    .await;
    telephone
        .dial(&format!("sip:{SHOP}@{}", exchange.address()))
        .await;
    telephone.next("CALL_ESTABLISHED").await;
    telephone.hang_up().await;
    others_follow_the_settings(&exchange).await;
}

#[tokio::test]
async fn a_trunk_lets_in_its_callers_and_its_addresses_only() {
    let (exchange, client) = exchange(&[("SIP_ALLOWED_ADDRESSES", "127.0.0.0/8")]);
    let id = trunk(&client, callers_from("127.0.0.9")).await;
    refused(&exchange, SHOP, 403).await;
    let run = Run {
        host: "127.0.0.9",
        ..Run::default()
    };
    let scenario = Scenario::is_answered("").ends();
    let mut telephone = Sipp::call_with(&scenario, SHOP, &exchange.address(), run);
    telephone.passed().await;
    // Whoever looks for the call that never came finds why.
    let (_, shown) = ask(
        &exchange.server,
        Method::GET,
        "/sessions",
        None,
        &Value::Null,
    )
    .await;
    let refused_calls = shown["refused_calls"].as_array().unwrap();
    let [one] = refused_calls.as_slice() else {
        panic!("{shown}");
    };
    assert_eq!((&one["status"], &one["times"]), (&json!(403), &json!(1)));
    assert_eq!(
        (&one["from"], &one["to"]),
        (&json!("+14155550100"), &json!(SHOP))
    );
    assert_eq!(one["source"], "127.0.0.1");
    let reason = one["reason"].as_str().unwrap();
    assert!(
        reason.contains(&id) && reason.contains("allowed_addresses"),
        "{reason}"
    );
    let only = |numbers: &[&str], addresses: &[&str]| {
        let set = |items: &[&str]| {
            Some(proto::ListUpdate {
                set: items.iter().map(|item| (*item).to_owned()).collect(),
                clear: items.is_empty(),
                ..Default::default()
            })
        };
        proto::SipInboundTrunkUpdate {
            allowed_numbers: set(numbers),
            allowed_addresses: set(addresses),
            ..Default::default()
        }
    };
    let update = client.update_sip_inbound_trunk(id.clone(), only(&["+14155550199"], &[]));
    update.await.unwrap();
    refused(&exchange, SHOP, 403).await;
    // Numbers are the same however they are written.
    let update = client.update_sip_inbound_trunk(id, only(&["+1 (415) 555-0100"], &[]));
    update.await.unwrap();
    comes_into(
        &exchange,
        SHOP,
        Scenario::is_answered(""),
        "call-+14155550150",
    )
    .await;
    let two = client.create_sip_inbound_trunk(
        "two".to_owned(),
        vec!["1 415 555 0150".to_owned()],
        CreateSIPInboundTrunkOptions::default(),
    );
    let error = two.await.unwrap_err().to_string();
    assert!(error.contains("same numbers"), "{error}");
}

#[tokio::test]
async fn a_rule_says_which_room_and_what_the_room_knows() {
    let (exchange, client) = exchange(&[]);
    let id = trunk(&client, callers_from("127.0.0.1")).await;
    let agent = proto::RoomAgentDispatch {
        agent_name: "receptionist".to_owned(),
        metadata: "for the shop".to_owned(),
        ..Default::default()
    };
    let options = CreateSIPDispatchRuleOptions {
        trunk_ids: vec![id.clone()],
        hide_phone_number: true,
        metadata: "a guest".to_owned(),
        attributes: [("shop".to_owned(), "12".to_owned())].into(),
        room_config: Some(proto::RoomConfiguration {
            agents: vec![agent],
            metadata: "the lobby".to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let placed = rule(&client, direct("lobby", ""), options).await;
    let mut worker = workers::worker(
        &exchange.server,
        "worker",
        &json!({"agent_name": "receptionist"}),
    )
    .await;
    let mut telephone = Baresip::start().await;
    telephone
        .dial(&format!("sip:{SHOP}@{}", exchange.address()))
        .await;
    telephone.next("CALL_ESTABLISHED").await;
    worker.wait("job", &json!({"room": "lobby"})).await;
    let here = |call: &Value| call["room_name"] == "lobby" && call["status"] == "active";
    let call = exchange.until("in the lobby", here).await;
    let mut ann = join(&exchange.server, Sort::Python, "lobby", "ann").await;
    let identity = call["participant_identity"].as_str().unwrap();
    let present = ann.command(json!({"do": "participants"})).await;
    let caller = &present["participants"][identity];
    assert_eq!(caller["metadata"], "a guest", "{caller}");
    let attributes = &caller["attributes"];
    for (name, value) in [
        ("shop", "12"),
        ("sip.trunkID", id.as_str()),
        ("sip.ruleID", placed.as_str()),
        ("sip.callStatus", "active"),
    ] {
        assert_eq!(attributes[name], value, "{attributes}");
    }
    // Who calls whom is nowhere to be read.
    let number = "14155550123";
    let shown = caller.to_string();
    assert!(
        !identity.contains(number) && !shown.contains(number),
        "{identity} {shown}"
    );
    assert!(!shown.contains("14155550150"), "{shown}");
    telephone.hang_up().await;
    let same = client.create_sip_dispatch_rule(
        direct("elsewhere", ""),
        CreateSIPDispatchRuleOptions {
            trunk_ids: vec![id],
            ..Default::default()
        },
    );
    let error = Box::pin(same).await.unwrap_err().to_string();
    assert!(error.contains("Conflicting SIP Dispatch Rules"), "{error}");
}

#[tokio::test]
async fn individual_and_callee_rules_name_their_rooms() {
    let (exchange, client) = exchange(&[]);
    let id = trunk(&client, callers_from("127.0.0.1")).await;
    let individual = Rule::DispatchRuleIndividual(proto::SipDispatchRuleIndividual {
        room_prefix: "guest".to_owned(),
        ..Default::default()
    });
    let of_trunk = || CreateSIPDispatchRuleOptions {
        trunk_ids: vec![id.clone()],
        ..Default::default()
    };
    let made = rule(&client, individual, of_trunk()).await;
    let scenario = Scenario::is_answered("").pause(400).ends();
    let mut telephone = Sipp::call(&scenario, SHOP, &exchange.address());
    let guest = |call: &Value| {
        let room = call["room_name"].as_str().unwrap_or_default();
        room.starts_with("guest_+14155550100_") && call["status"] == "active"
    };
    exchange.until("a guest", guest).await;
    telephone.passed().await;
    client.delete_sip_dispatch_rule(&made).await.unwrap();
    let callee = Rule::DispatchRuleCallee(proto::SipDispatchRuleCallee {
        room_prefix: "line".to_owned(),
        ..Default::default()
    });
    rule(&client, callee, of_trunk()).await;
    comes_into(
        &exchange,
        SHOP,
        Scenario::is_answered(""),
        "line_+14155550150",
    )
    .await;
}

#[tokio::test]
async fn a_pin_opens_its_room_and_is_asked_for_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let file = |hertz: u32| {
        let file = folder.path().join(format!("{hertz}.wav"));
        tone::wav(&file, 16_000, hertz, 3);
        file.display().to_string()
    };
    let (question, wrong) = (file(700), file(1_100));
    let (exchange, client) = exchange(&[
        ("SIP_PIN_SOUND", question.as_str()),
        ("SIP_WRONG_PIN_SOUND", wrong.as_str()),
    ]);
    trunk(&client, callers_from("127.0.0.1")).await;
    for (room, pin) in [("blue", "1234"), ("red", "98765"), ("hall", "")] {
        rule(
            &client,
            direct(room, pin),
            CreateSIPDispatchRuleOptions::default(),
        )
        .await;
    }
    let letters = |error: String| assert!(error.contains("pin: must be"), "{error}");
    let bad = client
        .create_sip_dispatch_rule(direct("x", "12a"), CreateSIPDispatchRuleOptions::default());
    letters(Box::pin(bad).await.unwrap_err().to_string());
    let target = format!("sip:{SHOP}@{}", exchange.address());
    let here = |room: &'static str| {
        move |call: &Value| call["room_name"] == room && call["status"] == "active"
    };
    // The second PIN, after a wrong one.
    let mut telephone = Baresip::start().await;
    telephone.dial(&target).await;
    telephone.next("CALL_ESTABLISHED").await;
    telephone.hears(700).await;
    telephone.press("1111#").await;
    telephone.hears(1_100).await;
    telephone.press("98765").await;
    exchange.until("in red", here("red")).await;
    let mut ann = join(&exchange.server, Sort::Python, "red", "ann").await;
    ann.publish(520).await;
    telephone.hears(520).await;
    telephone.hang_up().await;
    // Nothing but the hash: the open one.
    telephone.dial(&target).await;
    telephone.next("CALL_ESTABLISHED").await;
    telephone.press("#").await;
    exchange.until("in the hall", here("hall")).await;
    telephone.hang_up().await;
    // Three wrong ones.
    telephone.dial(&target).await;
    telephone.next("CALL_ESTABLISHED").await;
    telephone.press("1#2#3#").await;
    telephone.next("CALL_CLOSED").await;
    let unauthorized = |call: &Value| call["cause"] == "unauthorized";
    let call = exchange.until("refused", unauthorized).await;
    assert_eq!(call["room_name"], "", "{call}");
    eventually("the log does not tell", || {
        exchange
            .server
            .log_so_far()
            .contains("has not entered the PIN")
    })
    .await;
    assert!(!exchange.server.log_so_far().contains("98765"));
}

#[tokio::test]
async fn it_is_said_beforehand_what_becomes_of_a_call() {
    let (exchange, client) = exchange(&[]);
    let invite = |from: &str, to: &str| {
        format!(
            "INVITE sip:{to}@voice.example SIP/2.0\nVia: SIP/2.0/UDP 127.0.0.1:5070;branch=z9hG4bK1\n\
             From: <sip:{from}@127.0.0.1>;tag=1\nTo: <sip:{to}@voice.example>\nCall-ID: 1\nCSeq: 1 INVITE\nContent-Length: 0\n\n"
        )
    };
    let told = |text: String, more: &'static [&'static str]| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let file_name = file.path().display().to_string();
        let data = format!("data_dir={}", exchange.server.data.path().display());
        let mut arguments = vec!["sip", "rules", "test", &file_name, "--set", &data];
        arguments.extend(["--set", "sip.allowed_addresses=127.0.0.1"]);
        arguments.extend(["--set", "sip.room_prefix=call-"]);
        arguments.extend_from_slice(more);
        let output = vivavoce(arguments);
        let said = stdout(&output) + &stderr(&output);
        (output.status.code().unwrap(), said)
    };
    let (status, said) = told(invite("+14155550100", SHOP), &[]);
    assert_eq!(status, 0, "{said}");
    assert!(
        said.contains("no trunk is for this number") && said.contains("room \"call-+14155550150\""),
        "{said}"
    );
    let id = trunk(
        &client,
        CreateSIPInboundTrunkOptions {
            auth_username: Some("shop".to_owned()),
            auth_password: Some("an-open-sesame".to_owned()),
            allowed_numbers: Some(vec!["+14155550100".to_owned()]),
            ..Default::default()
        },
    )
    .await;
    rule(
        &client,
        direct("blue", "1234"),
        CreateSIPDispatchRuleOptions::default(),
    )
    .await;
    let (status, said) = told(invite("+14155550100", SHOP), &[]);
    assert!(
        status == 0 && said.contains(&format!("trunk {id} (shop): the call comes by it")),
        "{said}"
    );
    assert!(
        said.contains("are asked for (401), as shop") && said.contains("asked for a PIN"),
        "{said}"
    );
    assert!(
        !said.contains("an-open-sesame") && !said.contains("1234\n"),
        "{said}"
    );
    let (status, said) = told(invite("+14155550100", SHOP), &["--pin", "1234"]);
    assert!(status == 0 && said.contains("room \"blue\""), "{said}");
    let (status, said) = told(invite("+14155550199", SHOP), &[]);
    assert!(
        status == 1 && said.contains("none of allowed_numbers"),
        "{said}"
    );
    let (status, said) = told(invite("+14155550100", SHOP), &["--source", "192.0.2.1"]);
    assert!(
        status == 1 && said.contains("none of sip.allowed_addresses"),
        "{said}"
    );
    let (status, said) = told("hello".to_owned(), &[]);
    assert_eq!(status, 2, "{said}");
}
