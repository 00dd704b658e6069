//! People behind real firewalls and address translation, in network namespaces: they hear each other, and how long that takes
//! is printed. What `firewall` shows by a proxy in this process is shown here by the kernel.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tokio::time::Instant;

use super::client::{Client, Kind};
use super::firewall::goes_by;
use super::{KEYS, firewall, token};
use crate::harness::namespaces::{API_URL, Firewall, Host, Internet, TURN_NAME};
use crate::harness::{PATIENCE, Server};

/// The room of all of them, and the tones of its people.
const ROOM: &str = "cellar";
const WITNESS_HERTZ: u32 = 440;
const ONLY_443: Firewall = Firewall::Only(&["tcp dport 443"]);
/// How long somebody has to be heard without a break until it counts as heard again.
const STEADY: Duration = Duration::from_secs(5);

const fn hertz(kind: Kind) -> u32 {
    match kind {
        Kind::Python => 520,
        Kind::Node => 600,
        Kind::Browser => 800,
    }
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Python => "Python",
        Kind::Node => "Node",
        Kind::Browser => "Chromium",
    }
}

/// A server in the world, somebody with an open network, and others with another one.
struct Scene {
    internet: Internet,
    _server: Server,
    office: Host,
    witness: Client,
}

/// Somebody at a host who enters the room.
pub(super) fn start(host: &Host, kind: Kind, identity: &str) -> Client {
    let grants = json!({"roomJoin": true, "room": ROOM});
    let token = token(600, &grants, &json!({"sub": identity}));
    Client::start_at(host, kind, API_URL, identity, &token)
}

impl Scene {
    async fn set(mut internet: Internet, firewall: Firewall, settings: &[(&str, &str)]) -> Self {
        let settings = [&KEYS, settings].concat();
        let server = internet.server(&settings);
        let home = internet.network("home", Firewall::Open);
        let office = internet.network("office", firewall);
        let mut witness = start(&home, Kind::Python, "witness");
        witness.connected().await;
        witness.publish(WITNESS_HERTZ).await;
        Self {
            internet,
            _server: server,
            office,
            witness,
        }
    }

    /// Somebody in the office and the witness hear each other; says how long that took.
    async fn heard(&mut self, what: &str, kind: Kind) -> Client {
        let name = name(kind);
        let mut client = start(&self.office, kind, name);
        client.wait("connecting", &json!({})).await;
        let connecting = Instant::now();
        client.connected().await;
        client.hears("witness", WITNESS_HERTZ).await;
        let hears = connecting.elapsed();
        let publishing = Instant::now();
        client.publish(hertz(kind)).await;
        self.witness.hears(name, hertz(kind)).await;
        let is_heard = publishing.elapsed();
        println!(
            "| {what} | {name} | hears {} ms after it began to connect | is heard {} ms after it began to publish |",
            hears.as_millis(),
            is_heard.as_millis()
        );
        client
    }

    /// The firewall was in somebody's way.
    fn dropped(&self) {
        let lost = self.internet.lost(&self.office);
        assert!(lost > 0, "the firewall has dropped nothing");
    }

    async fn all_heard(&mut self, what: &str) -> Vec<Client> {
        let mut all = Vec::new();
        for kind in Kind::ALL {
            all.push(self.heard(what, kind).await);
        }
        all
    }
}

/// Waits until somebody is heard for some time; gives since when, after now.
async fn silence(client: &mut Client, identity: &str, hertz: u32) -> Duration {
    let began = Instant::now();
    let mut silent = began;
    while silent.elapsed() < STEADY {
        if !client.hears_now(identity, hertz).await.0 {
            silent = Instant::now();
        }
        assert!(
            began.elapsed() < PATIENCE,
            "{} does not hear {identity}",
            client.identity
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    silent - began
}

/// Everybody hears everybody again after something has happened; says how long that took.
async fn all_heard_again(what: &str, scene: &mut Scene, people: &mut [Client]) {
    let listening = people.iter_mut().map(|client| async move {
        let silent = silence(client, "witness", WITNESS_HERTZ).await;
        println!(
            "| {what} | {} | hears again after {} ms |",
            client.identity,
            silent.as_millis()
        );
    });
    join_all(listening).await;
    for kind in Kind::ALL {
        scene.witness.hears(name(kind), hertz(kind)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_firewall_that_drops_udp_people_hear_each_other() {
    let Some(internet) = Internet::open_or_say() else {
        return firewall::without_udp().await;
    };
    let mut scene = Scene::set(internet, Firewall::WithoutUdp, &[]).await;
    scene.all_heard("UDP dropped").await;
    scene.dropped();
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_firewall_that_opens_443_alone_people_hear_each_other_over_tcp() {
    let Some(internet) = Internet::open_or_say() else {
        return firewall::without_udp().await;
    };
    let settings = [("RTC_TCP_PORT", "443")];
    let mut scene = Scene::set(internet, ONLY_443, &settings).await;
    scene.all_heard("only TCP 443, media over TCP").await;
    scene.dropped();
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_firewall_that_opens_443_alone_people_hear_each_other_by_the_turn_server_over_tls()
{
    let Some(internet) = Internet::open_or_say() else {
        return firewall::by_turn_over_tcp().await;
    };
    let settings = [("RTC_TURN_TLS_PORT", "443"), ("RTC_TURN_DOMAIN", TURN_NAME)];
    let mut scene = Scene::set(internet, ONLY_443, &settings).await;
    // LiveKit's other clients know the authorities of the web alone, by a list of their own.
    let mut browser = scene
        .heard("only TCP 443, TURN over TLS", Kind::Browser)
        .await;
    goes_by(&mut browser, &json!({"type": "relay", "relay": "tls"})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_firewall_that_opens_443_alone_people_hear_each_other_by_the_turn_server_over_tcp()
{
    let Some(internet) = Internet::open_or_say() else {
        return firewall::by_turn_over_tcp().await;
    };
    let settings = [("RTC_TURN_TCP_PORT", "443")];
    let mut scene = Scene::set(internet, ONLY_443, &settings).await;
    scene.all_heard("only TCP 443, TURN over TCP").await;
    scene.dropped();
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_symmetric_nat_people_hear_each_other() {
    let Some(internet) = Internet::open_or_say() else {
        return firewall::without_udp().await;
    };
    let mut scene = Scene::set(internet, Firewall::Open, &[("RTC_TCP_PORT", "off")]).await;
    scene.all_heard("symmetric NAT, media over UDP").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_symmetric_nat_that_reaches_the_turn_server_alone_people_hear_each_other_by_it() {
    let Some(internet) = Internet::open_or_say() else {
        return firewall::by_turn_over_udp().await;
    };
    let only = Firewall::Only(&["tcp dport 443", "udp dport 3478"]);
    let settings = [("RTC_TURN_UDP_PORT", "3478")];
    let mut scene = Scene::set(internet, only, &settings).await;
    scene.all_heard("symmetric NAT, TURN over UDP").await;
    scene.dropped();
}

#[tokio::test(flavor = "multi_thread")]
async fn whose_address_changes_in_mid_call_is_heard_and_hears_again() {
    let Some(internet) = Internet::open_or_say() else {
        return firewall::with_another_address_all_at_once().await;
    };
    let mut scene = Scene::set(internet, Firewall::Open, &[]).await;
    let mut people = scene.all_heard("open").await;
    scene.internet.forget();
    all_heard_again("NAT forgot its ports", &mut scene, &mut people).await;
    scene.internet.change_address();
    all_heard_again("NAT has another address", &mut scene, &mut people).await;
    scene.office.change_address();
    all_heard_again("client has another address", &mut scene, &mut people).await;
}
