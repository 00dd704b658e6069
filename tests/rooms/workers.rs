//! Agent workers: LiveKit's agents framework for Python, unmodified, gets jobs in embedded rooms. What its workers never do
//! is done by bare connections.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use livekit_protocol as proto;
use prost::Message as _;
use proto::server_message::Message as Told;
use proto::worker_message::Message as Said;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::client::{Client, Kind};
use super::{KEY, SECRET, ask, call, join, keyed_server, token};
use crate::harness::{PATIENCE, Server, client, eventually, is_long};

/// A worker of the framework with these options.
pub async fn worker(server: &Server, name: &str, options: &Value) -> Client {
    let mut options = options.clone();
    options["key"] = KEY.into();
    options["secret"] = SECRET.into();
    let arguments = [server.url.as_str(), "", &options.to_string()];
    let mut worker = Client::run("agent_worker.py", Kind::Python, name, arguments);
    worker.connected().await;
    worker
}

/// What the server shows of workers or jobs.
pub async fn shown(server: &Server, what: &str) -> Vec<Value> {
    let (_, answer) = ask(server, Method::GET, "/sessions", None, &Value::Null).await;
    answer[what].as_array().unwrap().clone()
}

/// Waits until this holds for the jobs of the server.
pub async fn jobs_until(server: &Server, what: &str, wanted: impl Fn(&[Value]) -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let jobs = shown(server, "agent_jobs").await;
        if wanted(&jobs) {
            return;
        }
        let late = tokio::time::Instant::now() > deadline;
        assert!(!late, "the jobs are not {what}: {jobs:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

pub async fn create(server: &Server, name: &str, more: Value) {
    let mut body = json!({"name": name, "departureTimeout": 1});
    for (field, value) in more.as_object().unwrap() {
        body[field] = value.clone();
    }
    let (status, answer) = call(server, "CreateRoom", &json!({"roomCreate": true}), &body).await;
    assert_eq!(status, 200, "{answer}");
}

/// Calls the dispatch service for a room.
async fn dispatch(server: &Server, method: &str, room: &str, body: Value) -> (u16, Value) {
    let grants = json!({"roomAdmin": true, "room": room});
    let path = format!("/twirp/livekit.AgentDispatchService/{method}");
    let token = token(600, &grants, &json!({}));
    ask(server, Method::POST, &path, Some(&token), &body).await
}

/// Tells the agents of a room to leave.
async fn dismiss(server: &Server, room: &str) {
    let grants = json!({"roomAdmin": true, "room": room});
    // "leave" in base64.
    let body = json!({"room": room, "data": "bGVhdmU=", "kind": "RELIABLE"});
    let (status, answer) = call(server, "SendData", &grants, &body).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn each_room_gets_an_agent_whom_a_browser_sees_and_that_leaves_with_the_room() {
    let server = keyed_server();
    let mut worker = worker(&server, "worker", &json!({})).await;
    create(&server, "kitchen", json!({})).await;
    let ann = join(&server, Kind::Browser, "kitchen", "ann").await;
    let job = worker.wait("job", &json!({"room": "kitchen"})).await;
    let agent = job["identity"].as_str().unwrap().to_owned();
    assert_eq!(agent, format!("agent-{}", job["job"].as_str().unwrap()));
    let there = json!({"identity": agent});
    eventually("the browser does not see the agent", || {
        ann.count("present", &there) + ann.count("participant_connected", &there) == 1
    })
    .await;
    jobs_until(
        &server,
        "running",
        |jobs| matches!(jobs, [job] if job["state"] == "running" && job["agent_identity"] == agent),
    )
    .await;
    let [registered] = &shown(&server, "agent_workers").await[..] else {
        panic!("there is not one worker")
    };
    assert_eq!(registered["jobs"], 1, "{registered}");
    // It is full for as long as its job begins.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while shown(&server, "agent_workers").await[0]["status"] != "available" {
        assert!(tokio::time::Instant::now() < deadline, "it stays full");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut listening = Value::Null;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while listening["attributes"]["lk.agent.state"] != "listening" {
        assert!(tokio::time::Instant::now() < deadline, "{listening}");
        let path = "/rtc/rooms/kitchen";
        let (_, room) = ask(&server, Method::GET, path, None, &Value::Null).await;
        let people = room["participants"].as_array().unwrap();
        listening = people
            .iter()
            .find(|one| one["identity"] == agent)
            .unwrap()
            .clone();
    }
    assert_eq!(listening["kind"], "AGENT");
    assert_eq!(listening["name"], "Agent");
    assert_eq!(listening["attributes"]["flavour"], "salt");
    let metrics = client().get(format!("{}/metrics", server.url));
    let metrics = metrics.send().await.unwrap().text().await.unwrap();
    for line in ["vivavoce_agent_workers 1", "vivavoce_agent_jobs 1"] {
        assert!(
            metrics.lines().any(|one| one == line),
            "{line} of {metrics}"
        );
    }
    // The agent keeps no room open.
    ann.leave().await;
    worker.wait("over", &json!({"job": job["job"]})).await;
    jobs_until(&server, "over", <[Value]>::is_empty).await;
}

#[tokio::test]
async fn a_named_agent_is_dispatched_by_rooms_by_tokens_and_by_the_api() {
    let server = keyed_server();
    let mut cook = worker(&server, "cook", &json!({"agent_name": "cook"})).await;
    let asked = json!([{"agentName": "cook", "metadata": "by the room"}]);
    create(&server, "a", json!({"agents": asked})).await;
    let job = cook.wait("job", &json!({"room": "a"})).await;
    assert_eq!(
        (&job["metadata"], &job["agent"]),
        (&json!("by the room"), &json!("cook"))
    );
    let config = json!({"agents": [{"agentName": "cook", "metadata": "by the token"}]});
    let grants = json!({"roomJoin": true, "room": "b"});
    let more = json!({"sub": "ann", "roomConfig": config});
    let pass = token(600, &grants, &more);
    let mut ann = Client::start(Kind::Python, &server.url, "ann", &pass, &json!({}));
    ann.connected().await;
    let job = cook.wait("job", &json!({"room": "b"})).await;
    assert_eq!(job["metadata"], "by the token");
    // A room that names nobody does not get the named one; a dispatch brings it.
    create(&server, "c", json!({})).await;
    let body = json!({"room": "c", "agentName": "cook", "metadata": "by the api"});
    let (status, created) = dispatch(&server, "CreateDispatch", "c", body).await;
    assert_eq!(status, 200, "{created}");
    let job = cook.wait("job", &json!({"room": "c"})).await;
    assert_eq!(job["metadata"], "by the api");
    jobs_until(&server, "three running", |jobs| {
        jobs.len() == 3 && jobs.iter().all(|job| job["state"] == "running")
    })
    .await;
    let (_, list) = dispatch(&server, "ListDispatch", "c", json!({"room": "c"})).await;
    let list = list["agentDispatches"].as_array().unwrap();
    let ours = list.iter().find(|one| one["id"] == created["id"]).unwrap();
    assert_eq!(ours["state"]["jobs"][0]["id"], job["job"], "{ours}");
    assert_eq!(
        ours["state"]["jobs"][0]["state"]["status"], "JS_RUNNING",
        "{ours}"
    );
    let body = json!({"room": "c", "dispatchId": created["id"]});
    let (status, deleted) = dispatch(&server, "DeleteDispatch", "c", body.clone()).await;
    assert_eq!(status, 200, "{deleted}");
    cook.wait("over", &json!({"job": job["job"]})).await;
    let (status, again) = dispatch(&server, "DeleteDispatch", "c", body).await;
    assert_eq!((status, &again["code"]), (404, &json!("not_found")));
    assert_eq!(cook.count("asked", &json!({})), 3);
    // A dispatch makes the room that it names.
    let body = json!({"room": "d", "agentName": "cook"});
    let (status, created) = dispatch(&server, "CreateDispatch", "d", body).await;
    assert_eq!((status, &created["agentName"]), (200, &json!("cook")));
    cook.wait("job", &json!({"room": "d"})).await;
    let body = json!({"room": "e", "agentName": "x".repeat(300)});
    let (status, refused) = dispatch(&server, "CreateDispatch", "e", body).await;
    assert_eq!(status, 400, "{refused}");
    assert!(
        refused["msg"].as_str().unwrap().contains("agent_name"),
        "{refused}"
    );
    let (status, _) = dispatch(&server, "ListDispatch", "a", json!({"room": "b"})).await;
    assert_eq!(status, 401);
}

#[tokio::test]
async fn two_workers_share_the_rooms_and_one_that_drains_finishes_its_own() {
    let server = keyed_server();
    let options = json!({});
    let (mut first, mut second) = tokio::join!(
        worker(&server, "first", &options),
        worker(&server, "second", &options)
    );
    for room in 0..4 {
        create(&server, &format!("r{room}"), json!({})).await;
    }
    eventually("the rooms have no agents", || {
        first.count("job", &json!({})) + second.count("job", &json!({})) == 4
    })
    .await;
    let mine = first.all("job");
    assert!((1..=3).contains(&mine.len()), "{mine:?}");
    // It answers when its jobs are over.
    let draining = tokio::spawn(async move {
        first.command(json!({"do": "drain"})).await;
        first
    });
    let mut full = 0;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while full == 0 {
        assert!(tokio::time::Instant::now() < deadline, "no worker is full");
        let workers = shown(&server, "agent_workers").await;
        full = workers.iter().filter(|one| one["status"] == "full").count();
    }
    for room in 4..6 {
        let name = format!("r{room}");
        create(&server, &name, json!({})).await;
        second.wait("job", &json!({"room": name})).await;
    }
    assert!(!draining.is_finished());
    for job in &mine {
        dismiss(&server, job["room"].as_str().unwrap()).await;
    }
    let first = draining.await.unwrap();
    assert_eq!(first.count("job", &json!({})), mine.len());
    assert_eq!(first.count("over", &json!({})), mine.len());
    jobs_until(&server, "those of the other worker", |jobs| {
        jobs.len() == 6 - mine.len()
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_is_killed_before_or_during_its_job_is_replaced() {
    let server = keyed_server();
    let mut doomed = Bare::registered(&server, &json!({}), "").await;
    create(&server, "kitchen", json!({})).await;
    let job = doomed.offered().await;
    doomed.accept(&job).await;
    let assignment = doomed.assigned().await;
    assert_eq!(assignment.job.unwrap().id, job);
    drop(doomed);
    // It had the job, and its agent never came.
    let mut second = worker(&server, "second", &json!({})).await;
    let taken = second.wait("job", &json!({"room": "kitchen"})).await;
    assert_eq!(taken["job"], job);
    jobs_until(&server, "running", |jobs| jobs[0]["state"] == "running").await;
    let mut third = worker(&server, "third", &json!({})).await;
    second.kill().await;
    let taken = third.wait("job", &json!({"room": "kitchen"})).await;
    assert_eq!(taken["job"], job);
    jobs_until(&server, "running", |jobs| {
        jobs.len() == 1 && jobs[0]["state"] == "running"
    })
    .await;
}

#[tokio::test]
async fn a_worker_for_publishers_has_a_job_for_each() {
    let server = keyed_server();
    let mut worker = worker(
        &server,
        "worker",
        &json!({"type": "publisher", "hidden": true}),
    )
    .await;
    let mut ann = join(&server, Kind::Python, "kitchen", "ann").await;
    let mut bob = join(&server, Kind::Python, "kitchen", "bob").await;
    ann.publish(440).await;
    worker.wait("job", &json!({"participant": "ann"})).await;
    bob.publish(500).await;
    worker.wait("job", &json!({"participant": "bob"})).await;
    ann.publish(600).await;
    jobs_until(&server, "two", |jobs| {
        let of = |name: &str| jobs.iter().any(|job| job["participant_identity"] == name);
        jobs.len() == 2 && of("ann") && of("bob")
    })
    .await;
    // They may be neither seen nor heard.
    assert_eq!(ann.count("participant_connected", &json!({})), 1);
}

#[tokio::test]
async fn a_worker_that_declines_every_job_leaves_it_to_others() {
    let server = keyed_server();
    let mut picky = worker(&server, "picky", &json!({"refuse": true})).await;
    create(&server, "kitchen", json!({})).await;
    picky.wait("asked", &json!({"room": "kitchen"})).await;
    let mut other = worker(&server, "other", &json!({})).await;
    other.wait("job", &json!({"room": "kitchen"})).await;
    // It is asked again and again, but ever less often.
    assert!(picky.count("asked", &json!({})) < 9);
}

/// Fifty rooms at once; with `VIVAVOCE_LONG`.
#[tokio::test]
async fn fifty_rooms_have_their_agents() {
    if !is_long() {
        return;
    }
    let server = keyed_server();
    let worker = worker(&server, "worker", &json!({})).await;
    for room in 0..50 {
        create(&server, &format!("r{room}"), json!({})).await;
    }
    let deadline = tokio::time::Instant::now() + Duration::from_mins(3);
    loop {
        let jobs = shown(&server, "agent_jobs").await;
        let running = jobs.iter().filter(|job| job["state"] == "running");
        if running.count() == 50 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{jobs:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    eventually("not every agent is in its room", || {
        worker.count("job", &json!({})) == 50
    })
    .await;
}

#[tokio::test]
async fn who_may_not_work_is_refused_and_a_tenants_worker_works_for_the_tenant() {
    let server = keyed_server();
    let agent = json!({"agent": true});
    let good = token(600, &agent, &json!({}));
    for (token, status) in [
        (String::new(), 401),
        ("nonsense".to_owned(), 401),
        (
            token(600, &json!({"roomJoin": true, "room": "a"}), &json!({})),
            401,
        ),
        (token(-600, &agent, &json!({})), 401),
        (token(600, &agent, &json!({"vivavoce": "public"})), 401),
    ] {
        assert_eq!(Bare::open(&server, &token).await.err(), Some(status));
    }
    let answer = client()
        .get(format!("{}/agent", server.url))
        .bearer_auth(&good);
    assert_eq!(answer.send().await.unwrap().status(), 404);
    let mut of_tenant = Bare::registered(&server, &json!({"vivavoce": {"tenant": "a"}}), "").await;
    let mut operators = Bare::registered(&server, &json!({}), "").await;
    create(&server, "nobody's", json!({})).await;
    let job = operators.offered().await;
    create(&server, "a's", json!({"metadata": "{\"auth_id\":\"a\"}"})).await;
    let of_a = of_tenant.offered().await;
    assert_ne!(job, of_a);
    of_tenant.accept(&of_a).await;
    let assignment = of_tenant.assigned().await;
    assert_eq!(assignment.job.unwrap().room.unwrap().name, "a's");
    // The token opens the room of the tenant, and no other.
    let claims = jsonwebtoken::dangerous::insecure_decode_claims(&assignment.token);
    let claims: Value = claims.unwrap();
    assert_eq!(claims["vivavoce"]["tenant"], "a");
    assert_eq!(claims["video"]["room"], "a's");
}

#[tokio::test]
async fn a_worker_may_speak_json_and_what_cannot_be_read_ends_its_connection() {
    let server = keyed_server();
    let token = token(600, &json!({"agent": true}), &json!({}));
    let mut worker = Bare::open(&server, &token).await.unwrap();
    let said = json!({"register": {"type": "JT_ROOM", "agentName": "cook", "namespace": "n"}});
    worker
        .socket
        .send(Message::text(said.to_string()))
        .await
        .unwrap();
    let told = worker.text().await;
    let id = told["register"]["workerId"].as_str().unwrap();
    assert!(id.starts_with("AW_"), "{told}");
    assert_eq!(told["register"]["serverInfo"]["agentProtocol"], 1);
    let ping = json!({"ping": {"timestamp": "5"}});
    worker
        .socket
        .send(Message::text(ping.to_string()))
        .await
        .unwrap();
    assert_eq!(worker.text().await["pong"]["lastTimestamp"], "5");
    create(
        &server,
        "kitchen",
        json!({"agents": [{"agentName": "cook"}]}),
    )
    .await;
    let told = worker.text().await;
    assert_eq!(told["availability"]["job"]["namespace"], "n", "{told}");
    worker
        .socket
        .send(Message::text("{\"register\": 7}"))
        .await
        .unwrap();
    worker.closed().await;
    assert_eq!(worker.closed_code, 1007);
    for bytes in [vec![0x0B; 40], [0x3A, 0].repeat(40_000)] {
        let mut worker = Bare::registered(&server, &json!({}), "").await;
        worker.socket.send(Message::binary(bytes)).await.unwrap();
        worker.closed().await;
        assert_eq!(worker.closed_code, 1007);
    }
    let left = shown(&server, "agent_workers").await;
    assert!(left.is_empty(), "{left:?}");
}

/// A worker without a framework.
pub struct Bare {
    socket: WebSocketStream<TcpStream>,
    closed_code: u16,
}

impl Bare {
    /// Connects; the error is the status that refuses it.
    async fn open(server: &Server, token: &str) -> Result<Self, u16> {
        let address = server.url.strip_prefix("http://").unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let url = format!("ws://{address}/agent?access_token={token}&protocol=1");
        match tokio_tungstenite::client_async(url, stream).await {
            Ok((socket, _)) => Ok(Self {
                socket,
                closed_code: 0,
            }),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    /// A worker whose token says this beside its grant.
    pub async fn registered(server: &Server, more: &Value, agent_name: &str) -> Self {
        let token = token(600, &json!({"agent": true}), more);
        let mut worker = Self::open(server, &token).await.unwrap();
        worker
            .say(Said::Register(proto::RegisterWorkerRequest {
                agent_name: agent_name.to_owned(),
                ..Default::default()
            }))
            .await;
        let told = worker.next().await;
        assert!(matches!(told, Told::Register(_)), "{told:?}");
        worker
    }

    async fn say(&mut self, message: Said) {
        let message = proto::WorkerMessage {
            message: Some(message),
        };
        let bytes = message.encode_to_vec();
        self.socket.send(Message::binary(bytes)).await.unwrap();
    }

    async fn frame(&mut self) -> Message {
        loop {
            let frame = tokio::time::timeout(PATIENCE, self.socket.next()).await;
            match frame.unwrap().unwrap().unwrap() {
                Message::Ping(_) | Message::Pong(_) => {}
                frame => return frame,
            }
        }
    }

    async fn next(&mut self) -> Told {
        let frame = self.frame().await;
        let message = proto::ServerMessage::decode(frame.into_data());
        message.unwrap().message.unwrap()
    }

    async fn text(&mut self) -> Value {
        let frame = self.frame().await;
        serde_json::from_str(frame.to_text().unwrap()).unwrap()
    }

    /// Waits until the server closes.
    async fn closed(&mut self) {
        while self.closed_code == 0 {
            if let Message::Close(Some(reason)) = self.frame().await {
                self.closed_code = reason.code.into();
            }
        }
    }

    /// The job that it is asked to take.
    pub async fn offered(&mut self) -> String {
        match self.next().await {
            Told::Availability(request) => request.job.unwrap().id,
            other => panic!("{other:?}"),
        }
    }

    async fn accept(&mut self, job: &str) {
        self.say(Said::Availability(proto::AvailabilityResponse {
            job_id: job.to_owned(),
            available: true,
            ..Default::default()
        }))
        .await;
    }

    async fn assigned(&mut self) -> proto::JobAssignment {
        match self.next().await {
            Told::Assignment(assignment) => assignment,
            other => panic!("{other:?}"),
        }
    }
}
