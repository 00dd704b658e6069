//! Calls that take the place of others (RFC 3891): of a transfer whose two parties are connected by their own exchange, and
//! of somebody who calls in the place of another.

use reqwest::Method;
use serde_json::json;

use super::handover::{AGENT, PERSON, becomes, begin, finish, post};
use super::rig::PATIENCE;
use super::rig::baresip::Baresip;
use super::rig::sipp::{Run, Scenario, Sipp};
use super::{Exchange, PHONE, ROOM};
use crate::harness::{client, eventually};
use crate::rooms::client::{Client, Kind};
use crate::rooms::{KEY, SECRET, ask, join, token};

const CALLER: u32 = 440;
const CALLED: &str = "+14155550199";
const LOBBY: &str = "call-+14155550199";

/// The dialog of a telephone: Call-ID, its own tag, and the server's.
#[derive(Debug)]
struct Dialog {
    call_id: String,
    own: String,
    servers: String,
}

impl Dialog {
    /// The header with which somebody takes its place at the server.
    fn replaced(&self) -> String {
        format!(
            "Replaces: {};to-tag={};from-tag={}\n",
            self.call_id, self.servers, self.own
        )
    }
}

/// What is seen of its first answered INVITE.
fn dialog(telephone: &Sipp, calls: bool) -> Option<Dialog> {
    let messages = telephone.messages();
    let start = messages.find("SIP/2.0 200")?;
    let answer = messages.get(start..)?.split("\r\n\r\n").next()?;
    let value = |name: &str| {
        let line = answer.lines().find(|line| line.starts_with(name))?;
        Some(line[name.len()..].trim().to_owned())
    };
    let tag = |name| Some(value(name)?.split_once("tag=")?.1.trim().to_owned());
    let (from, to) = (tag("From:")?, tag("To:")?);
    let (own, servers) = if calls { (from, to) } else { (to, from) };
    Some(Dialog {
        call_id: value("Call-ID:")?,
        own,
        servers,
    })
}

/// A text in which `%` is followed by two digits.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('%');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |known, part| {
        let (digits, rest) = part.split_at(2);
        let escaped = u8::from_str_radix(digits, 16).unwrap();
        known + &char::from(escaped).to_string() + rest
    })
}

async fn dialog_of(telephone: &Sipp, calls: bool) -> Dialog {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        if let Some(dialog) = dialog(telephone, calls) {
            return dialog;
        }
        assert!(std::time::Instant::now() < deadline, "it is not answered");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_two_of_a_transfer_are_connected_by_their_own_exchange() {
    let scenario = Scenario::answers()
        .transfers(&["100 Trying", "200 OK"])
        .ended();
    let mut caller = Sipp::start(scenario).await;
    // The caller would have its place. It does not end the call with us.
    let mut person = Sipp::start(Scenario::answers().ended()).await;
    let exchange = Exchange::start();
    let mut ann = join(&exchange.server, Kind::Python, ROOM, "ann").await;
    ann.publish(AGENT).await;
    let call = exchange.call(&caller.address()).await;
    exchange.answered(&call).await;
    let id = begin(&exchange, &person.address()).await;
    becomes(&exchange, &id, "consulting").await;
    let done = finish(&exchange, &id, "complete", json!({"by": "refer"})).await;
    assert_eq!(done["state"], "complete", "{done}");
    assert_eq!(done["connected_by"], "refer", "{done}");
    caller.passed().await;
    person.passed().await;
    assert_eq!(exchange.ended(&call).await, "transferred");
    // The dialog is named as the person knows it.
    let messages = caller.messages();
    let line = messages.lines().find(|line| line.starts_with("Refer-To:"));
    let uri = line.unwrap().trim_start_matches("Refer-To:").trim();
    let uri = uri.trim_matches(['<', '>']);
    let (target, headers) = uri.split_once('?').unwrap();
    assert!(target.contains(&person.address()), "{uri}");
    let (replaces, require) = headers.split_once('&').unwrap();
    assert_eq!(require, "Require=replaces");
    let value = replaces.strip_prefix("Replaces=").unwrap();
    let value = unescaped(value);
    let known = dialog_of(&person, false).await;
    let meant = format!(
        "{};to-tag={};from-tag={}",
        known.call_id, known.own, known.servers
    );
    assert_eq!(value, meant);
    ann.leave().await;
}

#[tokio::test]
async fn the_two_of_a_transfer_are_connected_in_the_room_if_their_exchange_does_not_do_it() {
    let refuses = Scenario::answers()
        .receive("REFER")
        .reply("501 Not Implemented")
        .ended();
    let fails = Scenario::answers()
        .transfers(&["100 Trying", "420 Bad Extension"])
        .ended();
    for scenario in [refuses, fails] {
        let mut caller = Sipp::start(scenario).await;
        let mut person = Sipp::start(Scenario::answers().tone(PERSON).play().ended()).await;
        let exchange = Exchange::start();
        let mut ann = join(&exchange.server, Kind::Python, ROOM, "ann").await;
        let call = exchange.call(&caller.address()).await;
        exchange.answered(&call).await;
        let id = begin(&exchange, &person.address()).await;
        becomes(&exchange, &id, "consulting").await;
        let body = json!({"by": "refer", "agent": "stay"});
        let done = finish(&exchange, &id, "complete", body).await;
        assert_eq!(
            (&done["state"], &done["connected_by"]),
            (&json!("complete"), &json!("room"))
        );
        exchange.answered(&call).await;
        // The caller echoes what it hears: it is off hold.
        ann.hears(PHONE, PERSON).await;
        exchange.hang_up(ROOM, PHONE).await;
        exchange.hang_up(ROOM, "person").await;
        caller.passed().await;
        person.passed().await;
        ann.leave().await;
    }
}

/// A telephone that calls and plays a tone until the server ends the call.
fn plays(headers: &str, hertz: u32) -> Scenario {
    Scenario::plays_when_answered(headers, hertz).ended()
}

#[tokio::test]
async fn somebody_else_goes_on_in_the_place_of_a_caller() {
    let exchange = Exchange::with(&[("SIP_ALLOWED_ADDRESSES", "127.0.0.1,127.0.0.2")]);
    let mut ann: Client = join(&exchange.server, Kind::Python, LOBBY, "ann").await;
    ann.publish(AGENT).await;
    let mut first = Sipp::call(&plays("", CALLER), CALLED, &exchange.address());
    let known = dialog_of(&first, true).await;
    let active = |call: &serde_json::Value| call["status"] == "active";
    let call = exchange.until("an active one", active).await;
    let identity = call["participant_identity"].as_str().unwrap().to_owned();
    ann.hears(&identity, CALLER).await;
    let replaces = |call_id: &str, to: &str, from: &str| {
        format!("Replaces: {call_id};to-tag={to};from-tag={from}\nRequire: replaces\n")
    };
    let meant = replaces(&known.call_id, &known.servers, &known.own);
    // Whoever knows it not, comes too late or from elsewhere has no place.
    let early = meant.replace("\nRequire", ";early-only\nRequire");
    for (headers, host, status) in [
        (
            replaces(&known.call_id, &known.own, &known.servers),
            "127.0.0.1",
            481,
        ),
        (
            replaces("somebody@else", &known.servers, &known.own),
            "127.0.0.1",
            481,
        ),
        (early, "127.0.0.1", 486),
        (meant.clone(), "127.0.0.2", 403),
        ("Replaces: nothing\n".to_owned(), "127.0.0.1", 400),
    ] {
        let scenario = Scenario::is_refused(&headers, status);
        let run = Run {
            host,
            ..Run::default()
        };
        let mut other = Sipp::call_with(&scenario, CALLED, &exchange.address(), run);
        other.passed().await;
    }
    let sessions = client().get(format!("{}/sessions", exchange.server.url));
    let sessions = sessions.send().await.unwrap().text().await.unwrap();
    assert!(sessions.contains("(sip.accept_replaces)"), "{sessions}");
    // Nor has who offers no sound that there could be, or none at all. The call goes on.
    for scenario in [
        Scenario::offers_a_codec_that_is_not_known(&meant, 488),
        Scenario::offers_nothing(&meant, 488),
    ] {
        Sipp::call(&scenario, CALLED, &exchange.address())
            .passed()
            .await;
    }
    still_hears(&mut ann, &identity, CALLER).await;
    let mut second = Sipp::call(&plays(&meant, PERSON), "anybody", &exchange.address());
    first.passed().await;
    ann.hears(&identity, PERSON).await;
    // It is the same call, of the same participant.
    let calls = exchange.until("the same one", active).await;
    assert_eq!(calls["sip_call_id"], call["sip_call_id"]);
    let mut present = ann.command(json!({"do": "participants"})).await;
    let attributes = present["participants"][&identity]["attributes"].take();
    let now = dialog_of(&second, true).await;
    assert_eq!(
        attributes["sip.callIDFull"],
        now.call_id.as_str(),
        "{attributes}"
    );
    exchange.hang_up(LOBBY, &identity).await;
    second.passed().await;
    ann.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_at_the_former_server_of_a_takeover_is_replaced_there() {
    let mut exchange = Exchange::start();
    let mut ann = join(&exchange.server, Kind::Python, LOBBY, "ann").await;
    let mut first = Sipp::call(&plays("", CALLER), CALLED, &exchange.address());
    let known = dialog_of(&first, true).await;
    let active = |call: &serde_json::Value| call["status"] == "active";
    let call = exchange.until("an active one", active).await;
    let identity = call["participant_identity"].as_str().unwrap().to_owned();
    ann.hears(&identity, CALLER).await;
    let next = tokio::task::block_in_place(|| exchange.replaced());
    let replaces = known.replaced();
    let scenario = Scenario::plays_when_answered(&replaces, PERSON)
        .pause(3_000)
        .ends();
    let mut second = Sipp::call(&scenario, CALLED, &next.address());
    first.passed().await;
    ann.hears(&identity, PERSON).await;
    second.passed().await;
    ann.leave().await;
    assert_eq!(exchange.server.ended().code(), Some(0));
    drop(next);
}

#[tokio::test]
async fn a_caller_who_hangs_up_while_the_exchange_is_asked_has_not_been_connected() {
    let scenario = Scenario::answers().receive("REFER").pause(300).ends();
    let mut caller = Sipp::start(scenario).await;
    let mut person = Sipp::start(Scenario::answers().ended()).await;
    let exchange = Exchange::start();
    let call = exchange.call(&caller.address()).await;
    exchange.answered(&call).await;
    let id = begin(&exchange, &person.address()).await;
    becomes(&exchange, &id, "consulting").await;
    let path = format!("/sip/transfers/{id}/complete");
    let (status, answer) = post(&exchange, &path, json!({"by": "refer"})).await;
    assert_eq!(status, 500, "{answer}");
    assert_eq!(becomes(&exchange, &id, "failed").await, "caller_left");
    caller.passed().await;
    person.passed().await;
}

#[tokio::test]
async fn a_call_that_a_trunk_has_let_in_is_replaced_by_way_of_that_trunk_only() {
    let keys = [("RTC_API_KEY", KEY), ("RTC_API_SECRET", SECRET)];
    let exchange = Exchange::with(&keys);
    let trunk = json!({"trunk": {"name": "t", "numbers": [CALLED], "authUsername": "u", "authPassword": "p"}});
    let grants = json!({});
    let token = token(600, &grants, &json!({"sip": {"admin": true}}));
    let path = "/twirp/livekit.SIP/CreateSIPInboundTrunk";
    let (status, answer) = ask(&exchange.server, Method::POST, path, Some(&token), &trunk).await;
    assert_eq!(status, 200, "{answer}");
    let scenario = Scenario::logs_in("u", "p").until_answered().ended();
    let mut first = Sipp::call(&scenario, CALLED, &exchange.address());
    let known = dialog_of(&first, true).await;
    let call = exchange
        .until("active", |call| call["status"] == "active")
        .await;
    let replaces = known.replaced();
    // By a name that no trunk has, no password would be asked for.
    let scenario = Scenario::is_refused(&replaces, 403);
    Sipp::call(&scenario, "anybody", &exchange.address())
        .passed()
        .await;
    let identity = call["participant_identity"].as_str().unwrap();
    exchange.hang_up(LOBBY, identity).await;
    first.passed().await;
}

/// The tone goes on: longer than what is measured of it.
async fn still_hears(ann: &mut Client, identity: &str, hertz: u32) {
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    ann.hears(identity, hertz).await;
}

#[tokio::test]
async fn nobody_takes_the_place_of_a_caller_where_that_is_off() {
    let exchange = Exchange::with(&[("SIP_ACCEPT_REPLACES", "off")]);
    let mut first = Sipp::call(&plays("", CALLER), CALLED, &exchange.address());
    let known = dialog_of(&first, true).await;
    let call = exchange
        .until("active", |call| call["status"] == "active")
        .await;
    let replaces = known.replaced();
    let scenario = Scenario::is_refused(&replaces, 403);
    Sipp::call(&scenario, CALLED, &exchange.address())
        .passed()
        .await;
    let identity = call["participant_identity"].as_str().unwrap();
    exchange.hang_up(LOBBY, identity).await;
    first.passed().await;
}

/// Settings with which a call may be referred to telephones here.
const REFERS: [(&str, &str); 2] = [
    ("SIP_ACCEPT_REFER", "true"),
    ("SIP_ALLOWED_HOSTS", "127.0.0.1"),
];

/// Somebody who calls and, after a while, asks for somebody else in their place, and is told this, one after the other.
fn refers(to: &str, hertz: u32, told: usize) -> Scenario {
    let headers = format!("Refer-To: <{to}>\n");
    let mut scenario = Scenario::plays_when_answered("", hertz)
        .pause(1_500)
        .request_with("REFER", &headers, "")
        .response(202);
    for _ in 0..told {
        scenario = scenario.receive("NOTIFY").reply("200 OK");
    }
    scenario
}

#[tokio::test]
async fn whom_the_other_side_asks_for_goes_on_in_its_place() {
    let mut carol = Sipp::start(Scenario::answers().tone(PERSON).play().ended()).await;
    let exchange = Exchange::with(&REFERS);
    let mut ann = join(&exchange.server, Kind::Python, LOBBY, "ann").await;
    ann.publish(AGENT).await;
    let replaces = "Replaces=a%40b%3Bto-tag%3D1%3Bfrom-tag%3D2";
    let target = format!("sip:carol@{}?{replaces}", carol.address());
    let scenario = refers(&target, CALLER, 2).ended();
    let mut caller = Sipp::call(&scenario, CALLED, &exchange.address());
    let active = |call: &serde_json::Value| call["status"] == "active";
    let call = exchange.until("an active one", active).await;
    let identity = call["participant_identity"].as_str().unwrap().to_owned();
    ann.hears(&identity, CALLER).await;
    caller.passed().await;
    ann.hears(&identity, PERSON).await;
    let same = exchange.until("the same one", active).await;
    assert_eq!(same["sip_call_id"], call["sip_call_id"]);
    exchange.hang_up(LOBBY, &identity).await;
    carol.passed().await;
    let told = caller.messages();
    let fragments: Vec<&str> = told
        .lines()
        .filter(|line| line.starts_with("SIP/2.0 100 T") || line.trim() == "SIP/2.0 200 OK")
        .collect();
    assert!(fragments.contains(&"SIP/2.0 100 Trying"), "{told}");
    assert!(told.contains("Subscription-State: terminated"), "{told}");
    // The dialog that carol is to leave is named to her.
    assert!(
        carol
            .messages()
            .contains("Replaces: a@b;to-tag=1;from-tag=2")
    );
    ann.leave().await;
}

#[tokio::test]
async fn a_telephone_moves_its_call_to_another_one() {
    let mut carol = Sipp::start(Scenario::answers().ended()).await;
    let exchange = Exchange::with(&REFERS);
    let mut telephone = Baresip::start().await;
    let number = format!("sip:{CALLED}@{}", exchange.address());
    telephone.dial(&number).await;
    telephone.next("CALL_ESTABLISHED").await;
    let active = |call: &serde_json::Value| call["status"] == "active";
    let call = exchange.until("an active one", active).await;
    let target = format!("sip:carol@{}", carol.address());
    telephone.command("transfer", &target).await;
    telephone.next("CALL_CLOSED").await;
    let acknowledged = || carol.messages().contains("\nACK ");
    eventually("carol is not called", acknowledged).await;
    let same = exchange.until("the same one", active).await;
    assert_eq!(same["sip_call_id"], call["sip_call_id"]);
    let identity = call["participant_identity"].as_str().unwrap();
    exchange.hang_up(LOBBY, identity).await;
    carol.passed().await;
}

#[tokio::test]
async fn who_asks_for_somebody_else_and_hangs_up_at_once_is_replaced_all_the_same() {
    let answers = Scenario::called()
        .reply("180 Ringing")
        .pause(1_500)
        .answer();
    let mut carol = Sipp::start(answers.receive("ACK").tone(PERSON).ended()).await;
    let exchange = Exchange::with(&REFERS);
    let target = format!("sip:carol@{}", carol.address());
    let scenario = refers(&target, CALLER, 1).ends();
    let mut caller = Sipp::call(&scenario, CALLED, &exchange.address());
    let active = |call: &serde_json::Value| call["status"] == "active";
    let call = exchange.until("an active one", active).await;
    caller.passed().await;
    exchange
        .answered(call["sip_call_id"].as_str().unwrap())
        .await;
    let identity = call["participant_identity"].as_str().unwrap().to_owned();
    let acknowledged = || carol.messages().contains("\nACK ");
    eventually("carol is not called", acknowledged).await;
    exchange
        .answered(call["sip_call_id"].as_str().unwrap())
        .await;
    exchange.hang_up(LOBBY, &identity).await;
    carol.passed().await;
}

#[tokio::test]
async fn a_call_goes_on_where_nobody_takes_its_place() {
    let mut busy = Sipp::start(Scenario::called().reply("486 Busy Here").receive("ACK")).await;
    let exchange = Exchange::with(&REFERS);
    // Busy, and at a host that may not be called.
    for (target, told, status) in [
        (format!("sip:carol@{}", busy.address()), 2, "486 Busy Here"),
        ("sip:carol@198.51.100.7".to_owned(), 1, "603 Decline"),
        ("sip:112@127.0.0.1".to_owned(), 1, "603 Decline"),
    ] {
        let scenario = refers(&target, CALLER, told).ended();
        let mut caller = Sipp::call(&scenario, CALLED, &exchange.address());
        let active = |call: &serde_json::Value| call["status"] == "active";
        let call = exchange.until("an active one", active).await;
        let is_told = || caller.messages().contains(&format!("SIP/2.0 {status}"));
        eventually("it is not told", is_told).await;
        exchange
            .answered(call["sip_call_id"].as_str().unwrap())
            .await;
        let identity = call["participant_identity"].as_str().unwrap();
        exchange.hang_up(LOBBY, identity).await;
        caller.passed().await;
        exchange
            .until("over", |call| call["status"] == "hangup")
            .await;
    }
    busy.passed().await;
    // Nobody may ask where that is off, which is so if nothing is said.
    let exchange = Exchange::start();
    let scenario = Scenario::plays_when_answered("", CALLER)
        .request_with("REFER", "Refer-To: <sip:carol@127.0.0.1>\n", "")
        .response(405)
        .ends();
    Sipp::call(&scenario, CALLED, &exchange.address())
        .passed()
        .await;
}
