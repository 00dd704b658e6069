//! Video that adapts: to what a subscriber asks for, to its bandwidth, and to its codecs. Received video is counted in decoded
//! frames, sent video in bytes.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::client::{Client, Kind};
use super::namespaces::start;
use super::network::{Network, Weather};
use super::{KEYS, join, server, server_with};
use crate::harness::namespaces::{Firewall, Host, Internet};
use crate::harness::{Server, is_long};

/// How long a change may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

pub async fn join_with(
    server: &Server,
    kind: Kind,
    room: &str,
    who: &str,
    options: Value,
) -> Client {
    let (url, token) = super::admission(server, room, who).await;
    let mut client = Client::start(kind, &url, who, &token, &options);
    client.connected().await;
    client
}

/// What a browser has decoded of somebody so far.
async fn received(client: &mut Client, identity: &str) -> Value {
    client
        .command(json!({"do": "received", "identity": identity}))
        .await
}

fn number(of: &Value, name: &str) -> i64 {
    of[name].as_f64().unwrap_or_default() as i64
}

/// Waits until what is decoded has this height and goes on; gives how long that took.
pub async fn sees(client: &mut Client, identity: &str, is_right: impl Fn(i64) -> bool) -> Duration {
    let from = Instant::now();
    loop {
        let before = received(client, identity).await;
        sleep(Duration::from_millis(500)).await;
        let after = received(client, identity).await;
        let moves = number(&after, "frames") > number(&before, "frames");
        if moves && is_right(number(&after, "height")) {
            return from.elapsed();
        }
        assert!(from.elapsed() < PATIENCE, "{after}");
    }
}

/// Bytes that each layer has sent so far, by RID.
async fn sent(client: &mut Client) -> Vec<(String, i64)> {
    let told = client.command(json!({"do": "sent"})).await;
    let layers = told["layers"].as_object().unwrap();
    let bytes = layers.iter();
    bytes
        .map(|(name, layer)| (name.clone(), number(layer, "bytes")))
        .collect()
}

/// Waits until exactly these layers are sent, by the last letters of their names.
pub async fn sends(client: &mut Client, names: &[&str]) {
    let from = Instant::now();
    loop {
        let before = sent(client).await;
        sleep(Duration::from_millis(1_500)).await;
        let after = sent(client).await;
        let grown = after.iter().filter(|(name, bytes)| {
            let former = before.iter().find(|(other, _)| other == name);
            *bytes > former.map_or(0, |(_, bytes)| *bytes)
        });
        let mut grown: Vec<&str> = grown
            .map(|(name, _)| name.rsplit(' ').next().unwrap_or_default())
            .collect();
        grown.sort_unstable();
        if grown == names {
            let bytes = |all: &[(String, i64)]| all.iter().map(|(_, bytes)| bytes).sum::<i64>();
            let kbps = (bytes(&after) - bytes(&before)) * 8 / 1_500;
            println!(
                "| sends {names:?} | {kbps} kbit/s | after {:?} |",
                from.elapsed()
            );
            return;
        }
        assert!(from.elapsed() < PATIENCE, "{names:?}: {before:?} {after:?}");
    }
}

#[tokio::test]
async fn a_subscriber_gets_the_layer_it_asks_for_and_nothing_is_sent_that_nobody_watches() {
    let server = server();
    let room = "cinema";
    let options = json!({"dynacast": true});
    let mut publisher = join_with(&server, Kind::Browser, room, "publisher", options).await;
    let mut subscriber = join(&server, Kind::Browser, room, "subscriber").await;
    publisher.command(json!({"do": "publish_film"})).await;
    subscriber
        .wait("track_subscribed", &json!({"kind": "video"}))
        .await;
    // A busy browser does not send its highest layer at once.
    sees(&mut subscriber, "publisher", |height| height > 180).await;
    let ask = |what: &str, value: Value| json!({"do": "ask", "identity": "publisher", what: value});
    let size = json!({"do": "ask", "identity": "publisher", "width": 300, "height": 170});
    subscriber.command(size).await;
    sees(&mut subscriber, "publisher", |height| height == 180).await;
    sends(&mut publisher, &["q"]).await;
    subscriber.command(ask("enabled", json!(false))).await;
    sends(&mut publisher, &[]).await;
    let before = received(&mut subscriber, "publisher").await;
    sleep(Duration::from_secs(1)).await;
    let after = received(&mut subscriber, "publisher").await;
    assert_eq!(before["frames"], after["frames"]);
    subscriber.command(ask("enabled", json!(true))).await;
    subscriber
        .command(json!({"do": "ask", "identity": "publisher", "width": 960, "height": 540}))
        .await;
    sees(&mut subscriber, "publisher", |height| height > 180).await;
    let seen = received(&mut subscriber, "publisher").await;
    println!("| asked | all, 180, none, all | {seen} |");
}

/// What a subscriber sees and hears in some time.
async fn watch(client: &mut Client, what: &str, seconds: u64) -> Value {
    let before = received(client, "publisher").await;
    sleep(Duration::from_secs(seconds)).await;
    let after = received(client, "publisher").await;
    let by = |name: &str| number(&after, name) - number(&before, name);
    println!(
        "| {what} | {} high | {} frames in {seconds} s | {} kbit/s | {} keyframes, {} asked for | {} packets lost | {} of {} samples concealed |",
        number(&after, "height"),
        by("frames"),
        by("bytes") * 8 / 1_000 / seconds as i64,
        by("keyframes"),
        by("plis"),
        by("lost"),
        by("concealed"),
        by("samples"),
    );
    json!({
        "frames": by("frames"), "height": after["height"], "concealed": by("concealed"), "samples": by("samples"),
    })
}

fn narrow(bits_per_second: u32) -> Weather {
    Weather {
        bits_per_second: Some(bits_per_second),
        ..Weather::FAIR
    }
}

/// A path whose weather changes: by a router of the kernel, or by a proxy before the server.
enum Path {
    Router(Internet, Host),
    Proxy(Network),
}

impl Path {
    fn turn(&self, weather: Weather) {
        match self {
            Self::Router(internet, host) => {
                let loss = (weather.loss * 100.0) as u32;
                internet.weather(host, weather.bits_per_second, loss);
            }
            Self::Proxy(network) => network.turn(weather),
        }
    }
}

/// A subscriber behind such a path, and a publisher with video and a tone who is not.
struct Cinema {
    path: Path,
    _server: Server,
    _publisher: Client,
    subscriber: Client,
}

impl Cinema {
    async fn routed(mut internet: Internet, weather: Weather) -> Self {
        let server = internet.server(&KEYS);
        let home = internet.network("home", Firewall::Open);
        let office = internet.network("office", Firewall::Open);
        let path = Path::Router(internet, office);
        path.turn(weather);
        let Path::Router(_, office) = &path else {
            unreachable!()
        };
        let mut subscriber = start(office, Kind::Browser, "subscriber");
        let mut publisher = start(&home, Kind::Browser, "publisher");
        subscriber.connected().await;
        publisher.connected().await;
        Self::shown(path, server, publisher, subscriber).await
    }

    async fn proxied(weather: Weather) -> Self {
        let network = Network::open(weather, 11).await;
        let server = server_with(&network.settings());
        let subscriber = join(&server, Kind::Browser, "cinema", "subscriber").await;
        network.spare_newcomers();
        let publisher = join(&server, Kind::Browser, "cinema", "publisher").await;
        Self::shown(Path::Proxy(network), server, publisher, subscriber).await
    }

    async fn shown(
        path: Path,
        server: Server,
        mut publisher: Client,
        mut subscriber: Client,
    ) -> Self {
        publisher.publish(440).await;
        publisher.command(json!({"do": "publish_film"})).await;
        for kind in ["audio", "video"] {
            let kind = json!({"kind": kind});
            subscriber.wait("track_subscribed", &kind).await;
        }
        Self {
            path,
            _server: server,
            _publisher: publisher,
            subscriber,
        }
    }
}

/// Waits for a second in which nothing that is heard is made up: what was on its way at the former rate has filled the path, and
/// nobody can take it back.
async fn settles(client: &mut Client) {
    let from = Instant::now();
    loop {
        let before = received(client, "publisher").await;
        sleep(Duration::from_secs(1)).await;
        let after = received(client, "publisher").await;
        if number(&after, "concealed") == number(&before, "concealed") {
            return;
        }
        assert!(from.elapsed() < PATIENCE, "{after}");
    }
}

/// Less than four percent of what is heard is made up.
fn is_heard(seen: &Value) {
    let share = number(seen, "concealed") as f64 / number(seen, "samples").max(1) as f64;
    assert!(share < 0.04, "{seen}");
}

#[tokio::test]
async fn a_narrow_path_gets_less_video_and_all_audio_and_a_wide_one_again_more() {
    let mut cinema = Cinema::proxied(narrow(4_000_000)).await;
    let (path, subscriber) = (&cinema.path, &mut cinema.subscriber);
    let took = sees(subscriber, "publisher", |height| height == 540).await;
    println!("| 4 Mbit/s | 540 high after {took:?} |");
    path.turn(narrow(350_000));
    let took = sees(subscriber, "publisher", |height| height == 180).await;
    println!("| 350 kbit/s | 180 high after {took:?} |");
    settles(subscriber).await;
    let seen = watch(subscriber, "350 kbit/s", 3).await;
    is_heard(&seen);
    path.turn(Weather::FAIR);
    let took = sees(subscriber, "publisher", |height| height == 540).await;
    println!("| as wide as it is | 540 high after {took:?} |");
}

/// The long form; with `VIVAVOCE_LONG`.
#[tokio::test]
async fn every_bandwidth_and_a_lossy_path_have_their_layer() {
    if !is_long() {
        return;
    }
    let wide = narrow(4_000_000);
    let mut cinema = match Internet::open_or_say() {
        Some(internet) => Cinema::routed(internet, wide).await,
        None => Cinema::proxied(wide).await,
    };
    let (path, subscriber) = (&cinema.path, &mut cinema.subscriber);
    for (what, weather, heights) in [
        ("4 Mbit/s", narrow(4_000_000), [540, 540]),
        ("1 Mbit/s", narrow(1_000_000), [360, 540]),
        ("200 kbit/s", narrow(200_000), [0, 180]),
        ("1 Mbit/s", narrow(1_000_000), [360, 540]),
        ("4 Mbit/s", narrow(4_000_000), [540, 540]),
        (
            "10 % loss",
            Weather {
                loss: 0.1,
                ..Weather::FAIR
            },
            [180, 540],
        ),
        ("4 Mbit/s", narrow(4_000_000), [540, 540]),
    ] {
        path.turn(weather);
        watch(subscriber, &format!("{what}, at first"), 20).await;
        let seen = watch(subscriber, what, 20).await;
        // Of what is paused the browser goes on to tell the height of its last frame.
        let is_paused = number(&seen, "frames") == 0;
        let height = if is_paused {
            0
        } else {
            number(&seen, "height")
        };
        let states = subscriber.all("stream_state");
        println!("| {what} | {height} high | {} states told |", states.len());
        assert!(
            (heights[0]..=heights[1]).contains(&height),
            "{what}: {seen}"
        );
        if what != "10 % loss" {
            is_heard(&seen);
        }
    }
}

const CODECS: [&str; 4] = ["VP8", "H264", "VP9", "AV1"];

/// A publisher of a codec is seen by these, each of them joining after it.
async fn codec(server: &Server, from: Kind, codec: &str, to: &[Kind]) {
    let room = format!("{from:?}-{codec}").to_lowercase();
    let mut publisher = join(server, from, &room, "publisher").await;
    let command = if from == Kind::Browser {
        json!({"do": "publish_film", "codec": codec.to_lowercase(), "width": 640, "height": 360})
    } else {
        json!({"do": "publish_video", "codec": codec, "luma": 200})
    };
    publisher.command(command).await;
    for kind in to {
        let mut subscriber = join(server, *kind, &room, "subscriber").await;
        let seen = json!({"identity": "publisher", "frames": 10});
        let seen = subscriber.wait("video", &seen).await;
        let known = subscriber.command(json!({"do": "participants"})).await;
        let mime = known["participants"]["publisher"]["tracks"][0]["mime"].clone();
        assert_eq!(mime, format!("video/{}", codec.to_lowercase()));
        println!("| {codec} | {from:?} | {kind:?} | {seen} |");
        subscriber.leave().await;
    }
    publisher.leave().await;
}

/// One of the new ones of each publisher; with `VIVAVOCE_LONG` each codec with each publisher and subscriber.
#[tokio::test]
async fn each_codec_is_seen_by_everybody() {
    let server = server();
    if is_long() {
        for name in CODECS {
            for publisher in Kind::ALL {
                codec(&server, publisher, name, &Kind::ALL).await;
            }
        }
    } else {
        codec(&server, Kind::Browser, "VP9", &[Kind::Browser]).await;
        codec(&server, Kind::Python, "AV1", &[Kind::Browser]).await;
        codec(&server, Kind::Browser, "H264", &[Kind::Python]).await;
    }
}
