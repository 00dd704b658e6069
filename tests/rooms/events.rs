//! Webhooks of room events: parsed with LiveKit's own packages, and received by another server of ours.

use std::collections::VecDeque;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use livekit_api::access_token::TokenVerifier;
use livekit_api::services::room::{CreateRoomOptions, RoomClient};
use livekit_api::webhooks::WebhookReceiver;
use serde_json::{Value, json};

use super::client::Kind;
use super::{KEY, SECRET, join, server_elsewhere, server_with};
use crate::harness::livekit::LiveKit;
use crate::harness::{Server, client, eventually};

/// What was posted.
#[derive(Debug, Clone)]
pub struct Posted {
    pub body: String,
    pub authorization: String,
    content_type: String,
    status: u16,
}

/// Somebody to whom events are posted.
#[derive(Clone, Default)]
pub struct Inbox {
    posted: Arc<Mutex<Vec<Posted>>>,
    /// The statuses of the next answers; 200 when there are none.
    statuses: Arc<Mutex<VecDeque<u16>>>,
}

impl Inbox {
    /// Opens it; gives its address.
    pub fn open(&self) -> String {
        let inbox = web::Data::new(self.clone());
        let take = async |inbox: web::Data<Inbox>, request: HttpRequest, body: String| {
            let header = |name| {
                let value = request.headers().get(name);
                value.map_or("", |value| value.to_str().unwrap()).to_owned()
            };
            let status = inbox.statuses.lock().unwrap().pop_front().unwrap_or(200);
            inbox.posted.lock().unwrap().push(Posted {
                body,
                authorization: header("authorization"),
                content_type: header("content-type"),
                status,
            });
            HttpResponse::build(StatusCode::from_u16(status).unwrap()).finish()
        };
        let server = HttpServer::new(move || {
            App::new()
                .app_data(inbox.clone())
                .default_service(web::to(take))
        });
        let server = server
            .workers(1)
            .disable_signals()
            .bind(("127.0.0.1", 0))
            .unwrap();
        let url = format!("http://{}/events?of=rooms", server.addrs()[0]);
        actix_web::rt::spawn(server.run());
        url
    }

    /// What was posted and taken, in order.
    pub fn taken(&self) -> Vec<Posted> {
        let posted = self.posted.lock().unwrap();
        posted
            .iter()
            .filter(|posted| posted.status == 200)
            .cloned()
            .collect()
    }

    fn names(&self) -> Vec<String> {
        let name = |posted: &Posted| json_of(posted)["event"].as_str().unwrap().to_owned();
        self.taken().iter().map(name).collect()
    }
}

pub fn json_of(posted: &Posted) -> Value {
    serde_json::from_str(&posted.body).unwrap()
}

fn telling(urls: &str) -> Server {
    server_with(&[
        ("RTC_API_KEY", KEY),
        ("RTC_API_SECRET", SECRET),
        ("RTC_WEBHOOK_URLS", urls),
        ("WEBHOOKS_ALLOW_INSECURE", "true"),
        ("WEBHOOKS_ALLOW_PRIVATE", "true"),
    ])
}

/// Runs one of the packages' receivers over what was posted.
fn read_with(program: &str, script: &str, posted: &[Value]) -> Vec<Value> {
    let root = env!("CARGO_MANIFEST_DIR");
    let mut child = Command::new(program.replace("{root}", root))
        .arg(format!("{root}/tests/clients/rooms/{script}"))
        .args([KEY, SECRET])
        .env("NODE_CLIENTS", format!("{root}/.clients/node"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    for one in posted {
        writeln!(input, "{one}").unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

const LIFE: [&str; 6] = [
    "room_started",
    "participant_joined",
    "track_published",
    "track_unpublished",
    "participant_left",
    "room_finished",
];

/// Somebody whom a server lets in publishes in a room at this address and leaves it, and it is deleted. Gives the track.
async fn live(server: &Server, rooms: &str) -> String {
    let mut ann = join(server, Kind::Python, "kitchen", "ann").await;
    let sid = ann.publish(440).await;
    // A track that ends before it is negotiated has never been published.
    let api = RoomClient::with_api_key(rooms, KEY, SECRET);
    while api.list_participants("kitchen").await.unwrap()[0]
        .tracks
        .is_empty()
    {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ann.command(json!({"do": "unpublish", "sid": sid})).await;
    ann.leave().await;
    api.delete_room("kitchen").await.unwrap();
    sid
}

/// Waits until a server has taken each event of that life, once.
async fn has_taken_each(server: &Server) {
    for name in LIFE {
        let line = format!("room_events_total{{event=\"{name}\"}} 1");
        for attempt in 0.. {
            let page = client().get(format!("{}/metrics", server.url)).send().await;
            let page = page.unwrap().text().await.unwrap();
            if page.contains(&line) {
                break;
            }
            assert!(attempt < 100, "{line} is not in {page}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// LiveKit's own server posts to ours.
#[actix_web::test]
async fn the_life_of_a_room_of_livekits_own_server_is_told_by_it() {
    let mut livekit = LiveKit::prepared();
    let server = server_elsewhere(&livekit.url, &[]);
    livekit.start(&posting_to(&server));
    live(&server, &livekit.url.replace("ws", "http")).await;
    has_taken_each(&server).await;
}

/// Settings of LiveKit's server that posts to this one.
pub fn posting_to(server: &Server) -> String {
    let url = format!("{}/rtc/webhook", server.url);
    format!("webhook: {{api_key: {KEY}, urls: ['{url}']}}")
}

#[actix_web::test]
async fn the_life_of_a_room_is_told_in_order_signed_as_livekits_packages_check_it() {
    let inbox = Inbox::default();
    // The first answers are those of a receiver that is not ready yet.
    inbox.statuses.lock().unwrap().extend([503, 429]);
    // Another of our servers, which knows the same key.
    let other = server_with(&[
        ("RTC_MODE", "livekit"),
        ("RTC_URL", "http://127.0.0.1:9"),
        ("RTC_API_KEY", KEY),
        ("RTC_API_SECRET", SECRET),
    ]);
    let urls = format!("{},{}/rtc/webhook", inbox.open(), other.url);
    let server = telling(&urls);
    let sid = live(&server, &server.url).await;
    for attempt in 0..600 {
        if inbox.names().len() >= LIFE.len() {
            break;
        }
        assert!(attempt < 599, "{:?}", inbox.names());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(inbox.names(), LIFE);

    let taken = inbox.taken();
    let all_are = |field: fn(&Posted) -> &str, value| taken.iter().all(|one| field(one) == value);
    assert!(all_are(|one| &one.content_type, "application/webhook+json"));
    let track = json_of(&taken[2]);
    assert_eq!(track["track"]["sid"], sid);
    assert_eq!(track["participant"]["identity"], "ann");
    assert_eq!(track["room"]["name"], "kitchen");
    assert!(track["createdAt"].is_string(), "{track}");
    let ids = taken.iter().map(|one| json_of(one)["id"].clone());
    let mut ids: Vec<String> = ids.map(|id| id.as_str().unwrap().to_owned()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), LIFE.len());

    // LiveKit's packages for Rust, Python and JavaScript take them, and nothing that was altered.
    let crate_of_livekit = WebhookReceiver::new(TokenVerifier::with_api_key(KEY, SECRET));
    for one in &taken {
        let read = crate_of_livekit.receive(&one.body, &one.authorization);
        assert_eq!(read.unwrap().event, json_of(one)["event"]);
    }
    let posted = |one: &Posted| json!({"body": one.body, "authorization": one.authorization});
    let mut all: Vec<Value> = taken.iter().map(posted).collect();
    let altered = Posted {
        body: taken[0].body.replace("kitchen", "cellar"),
        ..taken[0].clone()
    };
    all.push(posted(&altered));
    for (program, script) in [
        ("{root}/.clients/python/bin/python", "webhook_receiver.py"),
        ("node", "webhook_receiver.mjs"),
    ] {
        let read = read_with(program, script, &all);
        for (read, name) in read.iter().zip(LIFE) {
            assert_eq!(*read, json!({"event": name, "room": "kitchen"}), "{script}");
        }
        assert!(read[LIFE.len()]["error"].is_string(), "{script}: {read:?}");
    }

    has_taken_each(&other).await;
}

#[actix_web::test]
async fn an_event_that_is_not_signed_with_the_rooms_own_key_is_not_taken() {
    let inbox = Inbox::default();
    let server = telling(&inbox.open());
    let api = RoomClient::with_api_key(&server.url, KEY, SECRET);
    api.create_room("kitchen", CreateRoomOptions::default())
        .await
        .unwrap();
    eventually("nothing is told", || !inbox.taken().is_empty()).await;
    let Posted {
        body,
        authorization,
        ..
    } = inbox.taken().remove(0);
    let stranger = server_with(&[
        ("RTC_API_KEY", KEY),
        (
            "RTC_API_SECRET",
            "another secret that is as long as it must be",
        ),
    ]);
    let altered = body.replace("kitchen", "cellar");
    for (to, authorization, body, status) in [
        (&server, authorization.as_str(), &body, 200),
        (&server, &format!("Bearer {authorization}"), &body, 200),
        (&server, "", &body, 401),
        (&server, "Bearer", &body, 401),
        (&server, authorization.as_str(), &altered, 401),
        (&stranger, authorization.as_str(), &body, 401),
    ] {
        let request = client().post(format!("{}/rtc/webhook", to.url));
        let request = request
            .header("authorization", authorization)
            .header("content-type", "application/webhook+json")
            .body(body.clone());
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{authorization} {body}");
    }
}

#[actix_web::test]
async fn rooms_that_end_with_the_server_are_told_too_and_a_dead_receiver_holds_nobody_up() {
    let inbox = Inbox::default();
    let urls = format!("{},http://127.0.0.1:9/", inbox.open());
    let mut server = telling(&urls);
    let api = RoomClient::with_api_key(&server.url, KEY, SECRET);
    for room in ["kitchen", "cellar"] {
        api.create_room(room, CreateRoomOptions::default())
            .await
            .unwrap();
    }
    server.terminate();
    assert!(server.ended().success());
    let mut names = inbox.names();
    names.sort_unstable();
    let [finished, started] = ["room_finished", "room_started"];
    assert_eq!(names, [finished, finished, started, started]);
}

#[actix_web::test]
async fn addresses_out_of_reach_are_refused_when_the_server_starts() {
    let output = Command::new(crate::harness::VIVAVOCE)
        .args(["check"])
        .env(
            "RTC_WEBHOOK_URLS",
            "https://hooks.example/,http://10.0.0.1/",
        )
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("rtc.webhook_urls: must be https"), "{said}");
}
