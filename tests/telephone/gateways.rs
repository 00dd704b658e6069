//! Outbound calls by several gateways, of which some fail.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::rig::sipp::{Scenario, Sipp};
use super::rig::{PATIENCE, ports};
use super::{Exchange, ROOM};

/// A server that calls by these gateways, the first one before the others.
fn exchange(gateways: &[String]) -> Exchange {
    let entries: Vec<Value> = gateways
        .iter()
        .enumerate()
        .map(|(place, address)| json!({"address": address, "priority": place}))
        .collect();
    Exchange::with(&[("SIP_GATEWAYS_JSON", &Value::from(entries).to_string())])
}

/// Where nobody is, and where somebody is who says nothing.
fn nobody() -> String {
    format!("127.0.0.1:{}", ports(1))
}

async fn call(exchange: &Exchange) -> String {
    exchange.call_to(ROOM, Value::Null).await
}

#[tokio::test]
async fn a_gateway_that_refuses_for_a_reason_of_its_own_gives_way_to_the_next() {
    for status in ["503 Service Unavailable", "408 Request Timeout"] {
        let mut full = Sipp::start(Scenario::called().reply(status).receive("ACK")).await;
        let mut other = Sipp::start(Scenario::answers().ended()).await;
        let exchange = exchange(&[full.address(), other.address()]);
        let began = Instant::now();
        let id = call(&exchange).await;
        exchange.answered(&id).await;
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{status}: {:?}",
            began.elapsed()
        );
        full.passed().await;
        exchange.hang_up(ROOM, super::PHONE).await;
        assert_eq!(exchange.ended(&id).await, "local");
        other.passed().await;
    }
}

#[tokio::test]
async fn what_the_called_side_says_is_final() {
    let mut busy = Sipp::start(Scenario::called().reply("486 Busy Here").receive("ACK")).await;
    let exchange = exchange(&[busy.address(), nobody()]);
    let id = call(&exchange).await;
    assert_eq!(exchange.ended(&id).await, "busy");
    busy.passed().await;
}

#[tokio::test]
async fn a_gateway_that_is_silent_gives_way_and_is_not_the_first_one_for_a_while() {
    // Bound, so that nothing comes back.
    let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let mut other = Sipp::start(Scenario::answers().ended()).await;
    let exchange = exchange(&[address, other.address()]);
    let began = Instant::now();
    let id = call(&exchange).await;
    exchange.answered(&id).await;
    assert!(began.elapsed() >= Duration::from_secs(4));
    exchange.hang_up(ROOM, super::PHONE).await;
    other.passed().await;
    let mut asked = 0;
    let mut datagram = [0; 2_048];
    while silent.try_recv(&mut datagram).is_ok() {
        asked += 1;
    }
    assert!(asked > 0, "the first gateway was not tried");
    // The second call goes to the one that works: somebody looks at what comes there now.
    let address = other.address();
    drop(other);
    let working = tokio::net::UdpSocket::bind(&address).await.unwrap();
    call(&exchange).await;
    let first = tokio::time::timeout(Duration::from_secs(2), working.recv_from(&mut datagram));
    let (bytes, _) = first.await.expect("it is not called first").unwrap();
    assert!(datagram[..bytes].starts_with(b"INVITE "));
    assert!(
        silent.try_recv(&mut datagram).is_err(),
        "the silent one is called first"
    );
}

#[tokio::test]
async fn a_call_that_finds_nobody_fails_with_the_reason_of_the_last() {
    let mut first = Sipp::start(
        Scenario::called()
            .reply("503 Service Unavailable")
            .receive("ACK"),
    )
    .await;
    let mut second = Sipp::start(
        Scenario::called()
            .reply("503 Service Unavailable")
            .receive("ACK"),
    )
    .await;
    let exchange = exchange(&[first.address(), second.address()]);
    let id = call(&exchange).await;
    assert_eq!(exchange.ended(&id).await, "failed");
    first.passed().await;
    second.passed().await;
}

#[tokio::test]
async fn a_gateway_gets_the_callers_domain_and_the_headers_that_it_wants() {
    let mut telephone = Sipp::start(Scenario::answers().ended()).await;
    let gateways = json!([{"address": telephone.address(), "from_domain": "office.example",
        "headers": {"P-Asserted-Identity": "<sip:+14155550100@office.example>", "X-Account": "12"}}]);
    let exchange = Exchange::with(&[("SIP_GATEWAYS_JSON", &gateways.to_string())]);
    let id = call(&exchange).await;
    exchange.answered(&id).await;
    exchange.hang_up(ROOM, super::PHONE).await;
    telephone.passed().await;
    let messages = telephone.messages();
    for line in [
        "From: <sip:+14155550100@office.example>",
        "P-Asserted-Identity: <sip:+14155550100@office.example>",
        "X-Account: 12",
    ] {
        assert!(messages.contains(line), "{line} is not in {messages}");
    }
}

#[tokio::test]
async fn a_gateway_that_dies_takes_its_call_with_it_and_no_other_whatever_the_phase() {
    let phases = [
        // Before the call: the other one has it, at once or after 4 s.
        (None, "local"),
        (
            Some((Scenario::called().reply("100 Trying"), "100 Trying")),
            "no_answer",
        ),
        (
            Some((Scenario::called().reply("180 Ringing"), "180 Ringing")),
            "no_answer",
        ),
        (Some((Scenario::answers(), "200 OK")), "media_timeout"),
    ];
    for (dying, cause) in phases {
        let mut other = Sipp::start(Scenario::answers().ended()).await;
        let dying = match dying {
            Some((scenario, says)) => Some((Sipp::start(scenario.pause(60_000)).await, says)),
            None => None,
        };
        let address = dying.as_ref().map_or_else(nobody, |(one, _)| one.address());
        let entries = [address, other.address()].into_iter().enumerate();
        let entries =
            entries.map(|(place, address)| json!({"address": address, "priority": place}));
        let exchange = Exchange::with(&[
            ("SIP_GATEWAYS_JSON", &entries.collect::<Value>().to_string()),
            // Longer than the patience with a gateway that says nothing.
            ("SIP_RINGING_TIMEOUT_SECONDS", "7"),
            ("SIP_MEDIA_TIMEOUT_SECONDS", "2"),
        ]);
        let mut id = call(&exchange).await;
        if let Some((gateway, says)) = dying {
            let deadline = Instant::now() + PATIENCE;
            while !gateway.messages().contains(says) {
                assert!(Instant::now() < deadline, "it never says {says}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            if cause == "media_timeout" {
                exchange.answered(&id).await;
            }
            drop(gateway);
            assert_eq!(exchange.ended(&id).await, cause);
            id = call(&exchange).await;
        }
        exchange.answered(&id).await;
        exchange.hang_up(ROOM, super::PHONE).await;
        assert_eq!(exchange.ended(&id).await, "local");
        other.passed().await;
    }
}
