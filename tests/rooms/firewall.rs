//! Networks that let no datagram through: media goes over TCP (RFC 6544), or by the TURN server (RFC 8656).

use std::time::Duration;

use serde_json::{Value, json};

use super::client::{Client, Kind};
use super::join;
use super::network::{Network, Weather};
use crate::harness::{PATIENCE, Server};
use crate::takeover::longest_gap_in_room;
use crate::telephone::rig::certificates;

/// Somebody in a room on the thread that reads the ports: the next room is on another one.
async fn in_the_first_room(server: &Server) -> Client {
    join(server, Kind::Python, "attic", "first").await
}

/// Clients of three kinds hear each other.
async fn they_hear_each_other(server: &Server) {
    let first = in_the_first_room(server).await;
    let tones = [(Kind::Python, 440), (Kind::Node, 600), (Kind::Browser, 800)];
    let mut all = Vec::new();
    for (kind, hertz) in tones {
        let mut client = join(server, kind, "cellar", &format!("{kind:?}")).await;
        client.publish(hertz).await;
        all.push((kind, client));
    }
    for (listener, client) in &mut all {
        for (speaker, hertz) in tones.iter().filter(|(speaker, _)| speaker != listener) {
            client.hears(&format!("{speaker:?}"), *hertz).await;
        }
    }
    for (_, client) in all {
        client.leave().await;
    }
    first.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_udp_gets_through_people_hear_each_other_over_tcp() {
    without_udp().await;
}

pub(super) async fn without_udp() {
    let mut network = Network::open(Weather::FAIR, 1).await;
    network.down(true);
    let port = network.over_tcp().await;
    let [udp, advertised] = network.settings();
    let server = Server::start_with(&[udp, advertised, ("RTC_TCP_PORT", &port)]);
    they_hear_each_other(&server).await;
    let (seen, lost) = network.count();
    assert!(seen > 0 && lost == seen, "{lost} of {seen} were lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_else_is_reached_people_hear_each_other_by_the_turn_server_over_tcp() {
    by_turn_over_tcp().await;
}

pub(super) async fn by_turn_over_tcp() {
    let mut network = Network::open(Weather::FAIR, 1).await;
    network.down(true);
    let port = network.over_tcp().await;
    let [udp, advertised] = network.settings();
    let server = Server::start_with(&[
        udp,
        advertised,
        ("RTC_TCP_PORT", "off"),
        ("RTC_TURN_TCP_PORT", &port),
    ]);
    they_hear_each_other(&server).await;
    let (seen, lost) = network.count();
    assert!(seen > 0 && lost == seen, "{lost} of {seen} were lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_only_one_port_is_reached_people_hear_each_other_by_the_turn_server_over_udp() {
    by_turn_over_udp().await;
}

pub(super) async fn by_turn_over_udp() {
    // What the network carries is that port's alone.
    let network = Network::open(Weather::FAIR, 1).await;
    let [(_, turn), advertised] = network.settings();
    let server = Server::start_with(&[
        advertised,
        ("RTC_UDP_PORT", "0"),
        ("RTC_TCP_PORT", "off"),
        ("RTC_TURN_UDP_PORT", turn),
    ]);
    they_hear_each_other(&server).await;
    let (seen, _) = network.count();
    assert!(seen > 100, "{seen} went by it");
}

/// Waits until media of a browser goes like this.
pub(super) async fn goes_by(browser: &mut Client, expected: &Value) {
    let began = tokio::time::Instant::now();
    loop {
        let way = browser.command(json!({"do": "way"})).await;
        let is_so = |(name, value): (&String, &Value)| way[name] == *value;
        if expected.as_object().unwrap().iter().all(is_so) {
            return;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "it goes by {way}, not {expected}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_wants_one_way_only_is_reached_by_that() {
    let folder = tempfile::tempdir().unwrap();
    let (pair, _) = certificates(folder.path());
    let pair = pair.to_str().unwrap();
    let server = Server::start_with(&[
        ("RTC_TURN_TLS_PORT", "0"),
        ("RTC_TURN_DOMAIN", "localhost"),
        ("RTC_TURN_TLS_CERT", pair),
        ("RTC_TURN_TLS_KEY", pair),
    ]);
    let first = in_the_first_room(&server).await;
    let mut ann = join(&server, Kind::Python, "cellar", "ann").await;
    let mut bob = join(&server, Kind::Browser, "cellar", "bob").await;
    ann.publish(440).await;
    bob.publish(800).await;
    bob.hears("ann", 440).await;
    goes_by(&mut bob, &json!({"type": "host", "protocol": "udp"})).await;
    for (scenario, way) in [
        ("force tcp", json!({"protocol": "tcp"})),
        ("force tls", json!({"type": "relay", "relay": "tls"})),
    ] {
        bob.command(json!({"do": "simulate", "scenario": scenario}))
            .await;
        goes_by(&mut bob, &way).await;
        bob.hears("ann", 440).await;
        ann.hears("bob", 800).await;
    }
    ann.leave().await;
    bob.leave().await;
    first.leave().await;
}

/// A client that has forgotten nothing while the network between has.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_another_address_on_the_way_all_at_once_is_heard_and_hears_seconds_later() {
    with_another_address_all_at_once().await;
}

pub(super) async fn with_another_address_all_at_once() {
    let network = Network::open(Weather::FAIR, 1).await;
    let [udp, advertised] = network.settings();
    let server = Server::start_with(&[udp, advertised, ("RTC_TCP_PORT", "off")]);
    let first = in_the_first_room(&server).await;
    let mut ann = join(&server, Kind::Python, "cellar", "ann").await;
    let mut bob = join(&server, Kind::Browser, "cellar", "bob").await;
    // Only listens, and so sends little.
    let cleo = join(&server, Kind::Python, "cellar", "cleo").await;
    ann.publish(440).await;
    bob.publish(800).await;
    let mut all = [(ann, "bob", 800), (bob, "ann", 440), (cleo, "ann", 440)];
    for (client, whom, hertz) in &mut all {
        client.hears(whom, *hertz).await;
        if client.kind == Kind::Python {
            client
                .command(json!({"do": "keep", "identity": whom}))
                .await;
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    network.forget();
    tokio::time::sleep(Duration::from_secs(8)).await;
    for (client, whom, hertz) in &mut all {
        client.hears(whom, *hertz).await;
        if client.kind == Kind::Python {
            let gap = longest_gap_in_room(client, whom).await;
            println!("{}: {gap:?} without {whom}", client.identity);
            // Clients ask every two and a half seconds whether their way is still there, and cannot be found before.
            assert!(gap < Duration::from_secs(5), "{}: {gap:?}", client.identity);
        }
    }
    for (client, ..) in all {
        client.leave().await;
    }
    first.leave().await;
}

#[tokio::test]
async fn a_tcp_port_that_is_taken_stops_the_start_where_it_was_chosen_and_off_opens_none() {
    let taken = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let folder = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(crate::harness::VIVAVOCE)
        .args(["serve", "--port", "0", "--data-dir"])
        .arg(folder.path())
        .env("RTC_UDP_PORT", "0")
        .env("RTC_TCP_PORT", &port)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("rtc.tcp_port") && said.contains(&port),
        "{said}"
    );
    let _server = Server::start_with(&[("RTC_TCP_PORT", "off")]);
}
