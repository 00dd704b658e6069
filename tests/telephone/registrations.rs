//! Accounts at PBXs and carriers.

use std::time::Duration;

use serde_json::{Value, json};

use super::Exchange;
use super::rig::baresip::Baresip;
use super::rig::kamailio::Kamailio;
use super::rig::ports;
use crate::harness::client;

/// A server that registers as extension 101 at a PBX, and takes calls from nobody else.
fn exchange(port: u16, password: &str) -> Exchange {
    let account = json!([{"registrar": format!("127.0.0.1:{port}"), "user": "101", "domain": "office", "password": password}]);
    Exchange::with(&[
        ("SIP_REGISTRATIONS_JSON", &account.to_string()),
        ("SIP_ALLOWED_ADDRESSES", "192.0.2.1"),
    ])
}

/// The account once it is in this state.
async fn account(exchange: &Exchange, state: &str) -> Value {
    let there = |shown: &Value| {
        let account = &shown["sip_registrations"][0];
        (account["state"] == state).then(|| account.clone())
    };
    let what = format!("account that is {state}");
    exchange.shown_once(&what, there).await
}

/// Calls extension 101 by the PBX, is answered and hangs up.
async fn call(exchange: &Exchange, pbx: &Kamailio) {
    let mut telephone = Baresip::start().await;
    telephone
        .dial(&format!("sip:101@127.0.0.1:{}", pbx.port))
        .await;
    telephone.next("CALL_ESTABLISHED").await;
    let here = |call: &Value| call["room_name"] == "call-101" && call["status"] == "active";
    exchange.until("in the room of its extension", here).await;
    telephone.hang_up().await;
    let over = |call: &Value| call["cause"] == "remote";
    exchange.until("over", over).await;
}

#[tokio::test]
async fn calls_come_by_a_pbx_at_which_the_server_is_registered() {
    let pbx = Kamailio::pbx("101", "extension", 3_600).await;
    let exchange = exchange(pbx.port, "extension");
    let registered = account(&exchange, "registered").await;
    assert_eq!(registered["user"], "101");
    assert_eq!(registered["registrar"], format!("127.0.0.1:{}", pbx.port));
    assert!(registered["expires_at"].is_u64(), "{registered}");
    call(&exchange, &pbx).await;
    let metrics = client().get(format!("{}/metrics", exchange.server.url));
    let metrics = metrics.send().await;
    let metrics = metrics.unwrap().text().await.unwrap();
    for line in [
        "vivavoce_sip_registrations 1",
        "vivavoce_sip_registration_accounts 1",
        "vivavoce_sip_registration_attempts_total{outcome=\"registered\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in the metrics");
    }
}

#[tokio::test]
async fn a_registration_is_refreshed_before_it_expires() {
    // The PBX forgets whoever does not come back within 12 s.
    let pbx = Kamailio::pbx("101", "extension", 12).await;
    let exchange = exchange(pbx.port, "extension");
    account(&exchange, "registered").await;
    tokio::time::sleep(Duration::from_secs(14)).await;
    call(&exchange, &pbx).await;
}

#[tokio::test]
async fn a_wrong_password_is_told_and_nobody_may_call() {
    let pbx = Kamailio::pbx("101", "extension", 3_600).await;
    let exchange = exchange(pbx.port, "guessed");
    let refused = account(&exchange, "refused").await;
    assert_eq!(refused["status"], 401, "{refused}");
    let mut telephone = Baresip::start().await;
    telephone
        .dial(&format!("sip:101@{}", exchange.address()))
        .await;
    let closed = telephone.next("CALL_CLOSED").await;
    assert!(
        closed["param"].as_str().unwrap().starts_with("403"),
        "{closed}"
    );
    let log = exchange.server.log_so_far();
    assert!(log.contains("refuses an account") && !log.contains("guessed"));
}

#[tokio::test]
async fn a_pbx_that_comes_later_or_back_is_registered_at() {
    let port = ports(2);
    let exchange = exchange(port, "extension");
    account(&exchange, "unreachable").await;
    let pbx = Kamailio::pbx_at(port, "101", "extension", 12).await;
    account(&exchange, "registered").await;
    drop(pbx);
    account(&exchange, "unreachable").await;
    let pbx = Kamailio::pbx_at(port, "101", "extension", 3_600).await;
    account(&exchange, "registered").await;
    call(&exchange, &pbx).await;
}
