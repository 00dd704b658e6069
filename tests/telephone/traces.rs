//! Why a call failed: what the server has seen of its signalling.

use std::process::Command;

use reqwest::Method;
use serde_json::{Value, json};

use super::Exchange;
use super::rig::sipp::{Scenario, Sipp};
use crate::harness::{VIVAVOCE, client};
use crate::rooms::ask;

/// The trace for which this holds, with its ladder.
pub async fn trace(exchange: &Exchange, wanted: impl Fn(&Value) -> bool) -> Value {
    let get = async |path: &str| ask(&exchange.server, Method::GET, path, None, &Value::Null).await;
    let (status, answer) = get("/sip/traces").await;
    assert_eq!(status, 200, "{answer}");
    let traces = answer["traces"].as_array().unwrap();
    let found = traces.iter().find(|trace| wanted(trace));
    let found = found.unwrap_or_else(|| panic!("no such trace: {answer}"));
    let id = found["trace_id"].as_str().unwrap();
    let (status, trace) = get(&format!("/sip/traces/{id}")).await;
    assert_eq!(status, 200, "{trace}");
    trace
}

/// The ladder as text: an arrow and the first line of each message.
pub fn ladder(trace: &Value) -> Vec<String> {
    let messages = trace["ladder"].as_array().unwrap().iter();
    let rung = |message: &Value| {
        let arrow = if message["direction"] == "sent" {
            '>'
        } else {
            '<'
        };
        let line = message["line"].as_str().unwrap();
        format!("{arrow} {}", line.split('@').next().unwrap())
    };
    messages.map(rung).collect()
}

/// What `vivavoce sip trace` says, and whether it found the call to be fine.
async fn follow(exchange: &Exchange, id: &str) -> (bool, String) {
    let url = exchange.server.url.clone();
    let id = id.to_owned();
    let told = tokio::task::spawn_blocking(move || {
        let port = url.rsplit(':').next().unwrap().to_owned();
        let mut command = Command::new(VIVAVOCE);
        command.args(["sip", "trace", &id]).env("PORT", port);
        command.output().unwrap()
    });
    let told = told.await.unwrap();
    let text = [told.stdout, told.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (told.status.success(), text.concat())
}

#[tokio::test]
async fn a_refused_call_has_a_line_a_metric_and_a_ladder() {
    let exchange = Exchange::with(&[("SIP_MEDIA_ENCRYPTION", "require")]);
    let mut telephone = Sipp::call(
        &Scenario::is_refused("", 488),
        "+14155550199",
        &exchange.address(),
    );
    telephone.passed().await;
    let refused = |trace: &Value| trace["state"] == "refused";
    let trace = trace(&exchange, refused).await;
    assert_eq!(
        (&trace["status"], &trace["times"]),
        (&json!(488), &json!(1))
    );
    assert_eq!(
        ladder(&trace),
        [
            "< INVITE sip:…99",
            "> 488 Not Acceptable Here",
            "< ACK sip:…99"
        ],
        "{trace}"
    );
    assert_eq!(trace["ladder"][0]["note"], "SDP");
    let remote = format!("127.0.0.1:{}", telephone.port);
    for message in trace["ladder"].as_array().unwrap() {
        assert_eq!(
            (&message["remote"], &message["transport"]),
            (&json!(remote), &json!("udp"))
        );
    }
    // Those who look at the list of refused calls find it from there.
    let (_, shown) = ask(
        &exchange.server,
        Method::GET,
        "/sessions",
        None,
        &Value::Null,
    )
    .await;
    assert_eq!(shown["refused_calls"][0]["trace_id"], trace["trace_id"]);
    let metrics = client().get(format!("{}/metrics", exchange.server.url));
    let metrics = metrics.send().await;
    let metrics = metrics.unwrap().text().await.unwrap();
    assert!(metrics.contains("vivavoce_sip_refused_calls_total{status=\"488\"} 1"));
    let log = exchange.server.log_so_far();
    assert_eq!(log.matches("refused a call").count(), 1, "{log}");
}

#[tokio::test]
async fn a_call_that_fails_is_followed_and_its_password_is_in_no_ladder() {
    let mut telephone = Sipp::start(
        Scenario::called()
            .challenge("operator", "s3cret")
            .reply("180 Ringing")
            .pause(500)
            .reply_with(
                "486 Busy Here",
                "Reason: Q.850;cause=17;text=\"user busy\"\n",
            )
            .receive("ACK"),
    )
    .await;
    let exchange = Exchange::with(&[
        ("SIP_OUTBOUND_ADDRESS", &telephone.address()),
        ("SIP_OUTBOUND_AUTH_USERNAME", "operator"),
        ("SIP_OUTBOUND_AUTH_PASSWORD", "s3cret"),
        ("SIP_TRACE_NUMBERS", "true"),
    ]);
    let id = exchange.call_to(super::ROOM, Value::Null).await;
    let (fine, told) = follow(&exchange, &id).await;
    telephone.passed().await;
    assert!(!fine, "{told}");
    let mut rest = told.as_str();
    for expected in [
        "INVITE sip:+14155550123@127.0.0.1",
        "401 Unauthorized",
        "ACK sip:",
        "INVITE sip:",
        "180 Ringing",
        "486 Busy Here  (",
        "Reason: Q.850;cause=17",
        "failed  room: line  status: 486  reason: busy",
    ] {
        let at = rest.find(expected);
        let at = at.unwrap_or_else(|| panic!("{expected} does not follow in\n{told}"));
        rest = &rest[at + expected.len()..];
    }
    let trace = trace(&exchange, |trace| trace["trace_id"] == id.as_str()).await;
    assert_eq!(
        (&trace["state"], &trace["status"]),
        (&json!("failed"), &json!(486))
    );
    for text in [told, trace.to_string(), exchange.server.log_so_far()] {
        assert!(
            !text.contains("Digest") && !text.contains("s3cret"),
            "{text}"
        );
    }
    assert!(exchange.server.log_so_far().contains("call failed"));
}
