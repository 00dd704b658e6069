//! Rooms recorded by their deployment. LiveKit's egress needs Chrome and Redis, so a proxy in front of an embedded server
//! answers its API as LiveKit documents it, and forwards everything else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use livekit_protocol::encoded_file_output::Output;
use livekit_protocol::{
    EgressInfo, EgressStatus, EncodedFileType, FileInfo, ListEgressRequest, ListEgressResponse,
    RoomCompositeEgressRequest, StopEgressRequest,
};
use prost::Message;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::{keyed_server, server_elsewhere_over};
use crate::harness::*;
use crate::s3::sessions::{borrowed, into};
use crate::s3::{ACCESS_KEY, BUCKET, S3sFs, SECRET_KEY};
use crate::session::client::{Session, config};
use crate::webhooks::{self, Receiver};

const SERVICE: &str = "/twirp/livekit.Egress/";
/// What the egress "records".
const SOUND: &[u8] = b"OggS and so on";

/// What the egress knows.
#[derive(Default)]
struct Known {
    refuses: bool,
    started: Vec<RoomCompositeEgressRequest>,
    tokens: Vec<Value>,
    egresses: HashMap<String, EgressInfo>,
}

/// A deployment with an egress.
struct Deployment {
    url: String,
    known: Arc<Mutex<Known>>,
    s3: S3sFs,
    _rooms: Server,
    _task: AbortOnDropHandle<()>,
}

impl Deployment {
    async fn start() -> Self {
        let rooms = keyed_server();
        let target = rooms.url.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let known = Arc::<Mutex<Known>>::default();
        let answers = Arc::clone(&known);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, target.clone(), Arc::clone(&answers)));
            }
        });
        Self {
            url,
            known,
            s3: S3sFs::start(),
            _rooms: rooms,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// A server that uses it, with a receiver of its webhooks.
    fn used(&self, data: tempfile::TempDir, receiver: &Receiver) -> Server {
        let hook = format!("http://127.0.0.1:{}/", receiver.port);
        let mut settings = into(&self.s3.address);
        let own = webhooks::settings(&hook).map(|(name, value)| (name, value.to_owned()));
        settings.extend(own);
        server_elsewhere_over(data, &self.url, &borrowed(&settings))
    }

    /// What an egress has come to.
    fn end(&self, status: EgressStatus, error: &str) {
        let mut known = self.known.lock().unwrap();
        for egress in known.egresses.values_mut() {
            egress.set_status(status);
            error.clone_into(&mut egress.error);
            egress.file_results = vec![FileInfo {
                duration: 1_500_000_000,
                ..FileInfo::default()
            }];
        }
    }

    fn status(&self) -> Option<EgressStatus> {
        let known = self.known.lock().unwrap();
        let egress = known.egresses.values().next();
        egress.map(EgressInfo::status)
    }

    async fn is_stopped(&self) {
        let ending = Some(EgressStatus::EgressEnding);
        eventually("the recording was not stopped", || self.status() == ending).await;
    }

    fn stores(&self, stream_id: &str) {
        let file = self.s3.object(&format!("recordings/{stream_id}/audio.ogg"));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, SOUND).unwrap();
    }
}

async fn serve(mut client: TcpStream, target: String, known: Arc<Mutex<Known>>) {
    let mut read = Vec::new();
    let end = loop {
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        if !matches!(client.read_buf(&mut read).await, Ok(1..)) {
            return;
        }
    };
    let head = String::from_utf8_lossy(&read[..end]).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default();
    let Some(method) = path.strip_prefix(SERVICE) else {
        return pass(client, &target, &head, &read[end..]).await;
    };
    let header = |wanted: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(':'));
        let mut found = lines.filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.next().map(|(_, value)| value.trim().to_owned())
    };
    let length: usize = header("content-length").unwrap().parse().unwrap();
    let mut body = read.split_off(end + 4);
    while body.len() < length {
        client.read_buf(&mut body).await.unwrap();
    }
    let claims = header("authorization").unwrap();
    let claims = URL_SAFE_NO_PAD.decode(claims.split('.').nth(1).unwrap());
    let claims = serde_json::from_slice(&claims.unwrap()).unwrap();
    let (status, kind, body) = match answer(&known, method, &body, claims) {
        Ok(body) => ("200 OK", "application/protobuf", body),
        Err(error) => ("503 Service Unavailable", "application/json", error.into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).await.unwrap();
    client.write_all(&body).await.unwrap();
}

/// Everything else. One request a connection, so that the next one is looked at too.
async fn pass(mut client: TcpStream, target: &str, head: &str, rest: &[u8]) {
    let mut server = TcpStream::connect(target).await.unwrap();
    let mut head = head.to_owned();
    if !head.to_ascii_lowercase().contains("\r\nupgrade:") {
        head += "\r\nconnection: close";
    }
    server.write_all(head.as_bytes()).await.unwrap();
    server.write_all(rest).await.unwrap();
    let _ended = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}

fn answer(
    known: &Mutex<Known>,
    method: &str,
    body: &[u8],
    claims: Value,
) -> Result<Vec<u8>, &'static str> {
    let known = &mut *known.lock().unwrap();
    known.tokens.push(claims);
    match method {
        "StartRoomCompositeEgress" => {
            if known.refuses {
                return Err(r#"{"code":"unavailable","msg":"no response from servers"}"#);
            }
            let request = RoomCompositeEgressRequest::decode(body).unwrap();
            known.started.push(request);
            let egress = EgressInfo {
                egress_id: format!("EG_{}", known.started.len()),
                status: EgressStatus::EgressActive.into(),
                ..EgressInfo::default()
            };
            let id = egress.egress_id.clone();
            known.egresses.insert(id, egress.clone());
            Ok(egress.encode_to_vec())
        }
        "StopEgress" => {
            let StopEgressRequest { egress_id } = StopEgressRequest::decode(body).unwrap();
            let egress = known.egresses.get_mut(&egress_id).unwrap();
            egress.set_status(EgressStatus::EgressEnding);
            Ok(egress.encode_to_vec())
        }
        "ListEgress" => {
            let request = ListEgressRequest::decode(body).unwrap();
            let found = known.egresses.get(&request.egress_id);
            let answer = ListEgressResponse {
                items: found.cloned().into_iter().collect(),
                ..ListEgressResponse::default()
            };
            Ok(answer.encode_to_vec())
        }
        other => panic!("nobody asked for {other}"),
    }
}

fn recorded_there(stream_id: &str) -> Value {
    let room = json!({"room_name": "kitchen", "enable_recording": true, "recording": "egress"});
    config(json!({"stream_id": stream_id, "rtc": room}))
}

/// What the receiver is told of the recording.
fn told(receiver: &mut Receiver) -> Value {
    loop {
        let seen = receiver.next();
        assert_eq!(seen["good"], true, "{seen}");
        if seen["body"]["event"] != "session.ended" {
            return seen["body"].clone();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_room_that_its_deployment_records_lies_where_our_recordings_do() {
    let deployment = Deployment::start().await;
    let mut receiver = Receiver::start(0, 0);
    let server = deployment.used(tempfile::tempdir().unwrap(), &receiver);
    let session = Session::open(&server, recorded_there("talk")).await;
    {
        let known = deployment.known.lock().unwrap();
        let [request] = &known.started[..] else {
            panic!("one recording and not {}", known.started.len())
        };
        assert_eq!((&*request.room_name, request.audio_only), ("kitchen", true));
        let [file] = &request.file_outputs[..] else {
            panic!("one file")
        };
        assert_eq!(file.file_type(), EncodedFileType::Ogg);
        assert_eq!(file.filepath, "recordings/talk/audio.ogg");
        let Some(Output::S3(upload)) = &file.output else {
            panic!("it goes to S3")
        };
        assert_eq!(
            (&*upload.bucket, &*upload.access_key, &*upload.secret),
            (BUCKET, ACCESS_KEY, SECRET_KEY)
        );
        assert!(upload.force_path_style);
        assert!(upload.endpoint.contains(&deployment.s3.address));
        assert_eq!(known.tokens[0]["video"]["roomRecord"], true);
    }
    let url = format!("{}/recording/talk", server.url);
    let early = client().get(&url).send().await.unwrap();
    assert_eq!(early.status(), 404);
    assert!(early.headers().contains_key("retry-after"));

    session.close().await;
    deployment.is_stopped().await;
    deployment.stores("talk");
    deployment.end(EgressStatus::EgressComplete, "");
    let stored = told(&mut receiver);
    assert_eq!(stored["event"], "recording.stored");
    assert_eq!(stored["stream_id"], "talk");
    assert_eq!(stored["key"], "recordings/talk/audio.ogg");
    assert_eq!(
        (&stored["size"], &stored["duration_ms"]),
        (&json!(SOUND.len()), &json!(1_500))
    );
    let got = client().get(&url).send().await.unwrap();
    assert_eq!(got.status(), 200);
    assert_eq!(&*got.bytes().await.unwrap(), SOUND);
    let page = client().get(format!("{}/recordings", server.url));
    let page: Value = page.send().await.unwrap().json().await.unwrap();
    assert_eq!(page["recordings"][0]["stream_id"], "talk");
    assert_eq!(page["recordings"][0]["sha256"], stored["sha256"]);
    assert_eq!(page["recordings"][0]["complete"], true);

    let mut again = Session::connect(&server).await;
    again.send(recorded_there("talk")).await;
    again.refused("stream_id_in_use").await;
    assert_eq!(client().delete(&url).send().await.unwrap().status(), 200);
    assert!(!deployment.s3.object("recordings/talk/audio.ogg").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_when_its_deployment_records_no_longer() {
    let deployment = Deployment::start().await;
    let mut receiver = Receiver::start(0, 0);
    let server = deployment.used(tempfile::tempdir().unwrap(), &receiver);
    let mut session = Session::open(&server, recorded_there("talk")).await;
    deployment.end(EgressStatus::EgressFailed, "the bucket is gone");
    let event = session.next("provider_event").await;
    assert_eq!(
        (
            event.text("kind"),
            event.text("state"),
            event.text("provider")
        ),
        ("recording", "failed", "livekit")
    );
    assert_eq!(event.text("message"), "the bucket is gone");
    let failed = told(&mut receiver);
    assert_eq!(failed["event"], "recording.failed");
    assert_eq!(failed["message"], "the bucket is gone");
    session.speak("a", SENTENCES[1]).await;
    session.completion_of("a").await;
    session.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_does_not_record_refuses_the_config() {
    let deployment = Deployment::start().await;
    let receiver = Receiver::start(0, 0);
    let server = deployment.used(tempfile::tempdir().unwrap(), &receiver);
    deployment.known.lock().unwrap().refuses = true;
    let mut session = Session::connect(&server).await;
    session.send(recorded_there("talk")).await;
    let refused = session.refused("recording_unavailable").await;
    assert!(refused.text("message").contains("no response"), "{refused}");
    // The name is free.
    deployment.known.lock().unwrap().refuses = false;
    session.send(recorded_there("talk")).await;
    session.next("ready").await;

    let embedded = keyed_server();
    let mut session = Session::connect(&embedded).await;
    session.send(recorded_there("talk")).await;
    let refused = session.refused("recording_unavailable").await;
    assert!(
        refused.text("message").contains("rtc.recording"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_server_leaves_to_be_recorded_is_stopped_and_told_by_the_next() {
    let deployment = Deployment::start().await;
    let mut receiver = Receiver::start(0, 0);
    let server = deployment.used(tempfile::tempdir().unwrap(), &receiver);
    let _session = Session::open(&server, recorded_there("talk")).await;
    let data = server.kill();
    assert_eq!(deployment.status(), Some(EgressStatus::EgressActive));
    let server = deployment.used(data, &receiver);
    deployment.is_stopped().await;
    deployment.stores("talk");
    deployment.end(EgressStatus::EgressComplete, "");
    assert_eq!(told(&mut receiver)["event"], "recording.stored");
    let got = client().get(format!("{}/recording/talk", server.url));
    assert_eq!(got.send().await.unwrap().status(), 200);
}
