//! Each LiveKit client as publisher with each as subscriber, with one peer connection, the current default, and with two,
//! as in older versions.

use serde_json::{Value, json};

use super::client::{Client, Kind};
use super::proxy::Proxy;
use super::{join_by, server};
use crate::harness::some_of;

/// What a pair of clients is put through, each step of it something that a user would miss.
async fn pair(publisher: &mut Client, subscriber: &mut Client) {
    let (from, to) = (publisher.identity.clone(), subscriber.identity.clone());
    let of = json!({"identity": from});

    let track = publisher.publish(440).await;
    subscriber
        .wait("track_subscribed", &json!({"sid": track}))
        .await;
    subscriber.hears(&from, 440).await;

    // LiveKit's client for Node cannot mute what it publishes.
    if publisher.kind != Kind::Node {
        subscriber.mark();
        publisher.command(json!({"do": "mute", "sid": track})).await;
        subscriber.next("track_muted", &json!({"sid": track})).await;
        subscriber.hears(&from, 0).await;
        publisher
            .command(json!({"do": "unmute", "sid": track}))
            .await;
        subscriber
            .next("track_unmuted", &json!({"sid": track}))
            .await;
        subscriber.hears(&from, 440).await;
    }

    for on in [false, true] {
        subscriber
            .command(json!({"do": "subscribe", "sid": track, "on": on}))
            .await;
        subscriber.hears(&from, if on { 440 } else { 0 }).await;
    }

    subscriber.mark();
    publisher
        .command(json!({"do": "unpublish", "sid": track}))
        .await;
    subscriber
        .next("track_unpublished", &json!({"sid": track}))
        .await;
    let track = publisher.publish(660).await;
    subscriber
        .next("track_subscribed", &json!({"sid": track}))
        .await;
    subscriber.hears(&from, 660).await;

    for (text, reliable, receivers) in [
        ("reliable to all", true, json!([])),
        ("reliable to one", true, json!([to])),
        ("lossy to all", false, json!([])),
    ] {
        let command = json!({"do": "send", "text": text, "reliable": reliable, "to": receivers, "topic": "t"});
        publisher.command(command).await;
        let expected = json!({"text": text, "topic": "t", "identity": from});
        subscriber.wait("data", &expected).await;
    }
    // Somebody else's message does not come: one that is sent later does.
    for (text, receivers) in [("not for you", json!(["nobody"])), ("for you", json!([to]))] {
        publisher
            .command(json!({"do": "send", "text": text, "to": receivers}))
            .await;
    }
    subscriber.wait("data", &json!({"text": "for you"})).await;
    assert_eq!(subscriber.count("data", &json!({"text": "not for you"})), 0);

    let long = "ein längerer Text. ".repeat(3_000);
    publisher.command(json!({"do": "text", "text": long})).await;
    subscriber
        .wait("text_stream", &json!({"text": long, "identity": from}))
        .await;
    let answer = publisher
        .command(json!({"do": "rpc", "to": to, "payload": "ping"}))
        .await;
    assert_eq!(answer["payload"], "ping");

    subscriber.mark();
    publisher
        .command(json!({"do": "attributes", "attributes": {"mood": "good"}}))
        .await;
    let changed = subscriber.next("participant_attributes_changed", &of).await;
    assert_eq!(changed["changed"], json!({"mood": "good"}));
    publisher
        .command(json!({"do": "metadata", "metadata": "about me"}))
        .await;
    subscriber
        .next(
            "participant_metadata_changed",
            &json!({"identity": from, "metadata": "about me"}),
        )
        .await;
}

/// One subscriber for each publisher and way; in a long run all of them.
async fn matrix(from: Kind, options: Value, path: &str) {
    let server = server();
    let proxy = Proxy::before(&server).await;
    for to in some_of(&Kind::ALL, 1) {
        let room = format!("{from:?}-{to:?}").to_lowercase();
        let mut publisher = join_by(&proxy, &server, from, &room, "publisher", &options).await;
        let mut subscriber = join_by(&proxy, &server, to, &room, "subscriber", &options).await;
        publisher
            .wait("participant_connected", &json!({"identity": "subscriber"}))
            .await;
        pair(&mut publisher, &mut subscriber).await;
        publisher.leave().await;
        subscriber
            .wait(
                "participant_disconnected",
                &json!({"identity": "publisher"}),
            )
            .await;
        subscriber.leave().await;
        println!(
            "| {path} | {from:?} | {to:?} | heard, mute, subscription, unpublish, data, text, rpc, attributes |"
        );
    }
    let asked = proxy.asked();
    assert!(asked.iter().all(|asked| asked == path), "{asked:?}");
}

#[tokio::test]
async fn python_publishes_to_everybody() {
    matrix(Kind::Python, json!({}), "/rtc/v1").await;
}

#[tokio::test]
async fn node_publishes_to_everybody() {
    matrix(Kind::Node, json!({}), "/rtc/v1").await;
}

#[tokio::test]
async fn a_browser_publishes_to_everybody() {
    matrix(Kind::Browser, json!({}), "/rtc/v1").await;
}

#[tokio::test]
async fn python_with_two_connections_publishes_to_everybody() {
    matrix(Kind::Python, json!({"two": true}), "/rtc").await;
}

#[tokio::test]
async fn node_with_two_connections_publishes_to_everybody() {
    matrix(Kind::Node, json!({"two": true}), "/rtc").await;
}

#[tokio::test]
async fn a_browser_with_two_connections_publishes_to_everybody() {
    matrix(Kind::Browser, json!({"two": true}), "/rtc").await;
}
