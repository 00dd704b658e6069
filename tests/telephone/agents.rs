//! Agents that the server dials for calls: the one of `examples/`, and others that are away, slow, or refuse.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

use super::rig::PATIENCE;
use super::rig::baresip::{Baresip, Kind};
use super::{Exchange, rig};
use crate::examples::{in_repository, installed};
use crate::harness::*;
use crate::rooms::client::Kind as Sort;
use crate::rooms::join;
use crate::session::sound::{spoken, then, wav_file};
use vivavoce::audio::{AudioFormat, Encoding, Pcm, SampleRate};

const CALLED: &str = "+14155550199";
const LOBBY: &str = "call-+14155550199";
const SECRET: &str = "0123456789abcdef";

/// A server that dials agents at these addresses.
fn exchange(urls: &[String], more: &[(&str, &str)]) -> Exchange {
    let mut settings = vec![
        ("AGENT_URL", urls[0].as_str()),
        ("AGENT_SECRET", SECRET),
        ("AGENT_ALLOW_INSECURE", "true"),
        ("AGENT_ALLOW_PRIVATE", "true"),
    ];
    if let Some(second) = urls.get(1) {
        settings.push(("AGENT_FALLBACK_URL", second));
    }
    settings.extend_from_slice(more);
    Exchange::with(&settings)
}

async fn dial(exchange: &Exchange, telephone: &mut Baresip) {
    telephone
        .dial(&format!("sip:{CALLED}@{}", exchange.address()))
        .await;
    telephone.next("CALL_ESTABLISHED").await;
}

/// An agent of the tests.
struct Agent {
    listener: TcpListener,
}

type Socket = WebSocketStream<TcpStream>;

impl Agent {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        Self { listener }
    }

    fn url(&self) -> String {
        format!(
            "ws://{}/calls?tenant=none",
            self.listener.local_addr().unwrap()
        )
    }

    /// The next call that the server brings, and the headers of its handshake.
    async fn accept(&self) -> (Socket, Request) {
        let accepted = tokio::time::timeout(PATIENCE, self.listener.accept()).await;
        let (stream, _) = accepted.expect("nobody dials the agent").unwrap();
        let mut asked = None;
        #[expect(clippy::result_large_err, reason = "the type of the library")]
        let keep = |request: &Request, response: Response| {
            asked = Some(request.clone());
            Ok(response)
        };
        let socket = tokio_tungstenite::accept_hdr_async(stream, keep)
            .await
            .unwrap();
        (socket, asked.unwrap())
    }
}

/// The next event of this type.
async fn next(socket: &mut Socket, kind: &str) -> Value {
    let found = async {
        while let Some(message) = socket.next().await {
            let Message::Text(text) = message.unwrap() else {
                continue;
            };
            let event: Value = serde_json::from_str(&text).unwrap();
            assert_ne!(event["type"], "error", "{event}");
            if event["type"] == kind {
                return event;
            }
        }
        panic!("the socket has closed before {kind}");
    };
    let found = tokio::time::timeout(PATIENCE, found).await;
    found.unwrap_or_else(|_| panic!("no {kind}"))
}

async fn say(socket: &mut Socket, message: &Value) {
    socket
        .send(Message::text(message.to_string()))
        .await
        .unwrap();
}

/// A `config` that leaves out what the server knows.
fn config() -> Value {
    json!({"type": "config", "stt_config": {"provider": "null"},
        "tts_config": {"provider": "null", "model": ""}})
}

/// The example as a program of its own.
pub struct Example {
    program: Child,
    printed: PathBuf,
    _folder: tempfile::TempDir,
}

impl Example {
    pub fn start(port: u16) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let printed = folder.path().join("printed");
        let program = Command::new(installed(".clients/python/bin/python"))
            .arg(in_repository("examples/phone_agent.py"))
            .env("PORT", port.to_string())
            .env("AGENT_SECRET", SECRET)
            .stdout(std::fs::File::create(&printed).unwrap())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        Self {
            program,
            printed,
            _folder: folder,
        }
    }

    pub async fn prints(&self, wanted: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let printed = std::fs::read_to_string(&self.printed).unwrap();
            if printed.contains(wanted) {
                return printed;
            }
            assert!(Instant::now() < deadline, "no {wanted:?} in {printed:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

#[tokio::test]
async fn the_agent_of_the_examples_answers_a_telephone() {
    let port = rig::ports(2);
    let agent = Example::start(port);
    agent.prints("waiting for calls").await;
    let exchange = exchange(&[format!("ws://127.0.0.1:{port}/")], &[]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("caller.wav");
    // After the greeting; then enough silence for the answer.
    let narrow = AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_8000);
    let mut sound = Pcm::empty(narrow.layout);
    let question = "The weather is very nice in the summer.";
    for (pause, text) in [(4, question), (9, "Thank you, and goodbye.")] {
        let silence = Pcm::silence(narrow.layout, Duration::from_secs(pause));
        sound = then(sound, &silence);
        sound = then(sound, &spoken(&exchange.server, text, narrow).await);
    }
    let sound = then(sound, &Pcm::silence(narrow.layout, Duration::from_secs(20)));
    std::fs::write(&file, wav_file(&sound)).unwrap();
    let mut telephone = Baresip::of(Kind {
        says: Some(file),
        ..Kind::default()
    })
    .await;
    dial(&exchange, &mut telephone).await;
    let heard = agent.prints("heard: ").await;
    assert!(
        heard.contains(&format!("to {CALLED} in {LOBBY}")),
        "{heard}"
    );
    // By telephone some words are understood otherwise.
    assert!(share_of_words(question, &heard) >= 0.5, "{heard}");
    // It says goodbye, and hangs up.
    let over = agent.prints("over: ").await;
    assert!(over.contains("over: local"), "{over}");
    telephone.next("CALL_CLOSED").await;
}

#[tokio::test]
async fn an_agent_is_told_of_its_call_and_has_the_rest_filled_in() {
    let agent = Agent::start().await;
    let exchange = exchange(&[agent.url()], &[]);
    let mut telephone = Baresip::start().await;
    dial(&exchange, &mut telephone).await;
    let (mut socket, asked) = agent.accept().await;
    assert_eq!(asked.uri().to_string(), "/calls?tenant=none");
    // The example checks it.
    let signature = asked.headers()["x-service-signature"].to_str().unwrap();
    assert!(signature.starts_with("v1="), "{signature}");
    let call = next(&mut socket, "call").await;
    assert_eq!(call["room_name"], LOBBY, "{call}");
    assert_eq!(call["to"], CALLED, "{call}");
    let identity = call["participant_identity"].as_str().unwrap();
    assert!(identity.starts_with("sip_"), "{call}");
    assert!(
        call["headers"]["to"].as_str().unwrap().contains(CALLED),
        "{call}"
    );
    say(&mut socket, &config()).await;
    let ready = next(&mut socket, "ready").await;
    assert_eq!(ready["stream_id"], call["stream_id"], "{ready}");
    assert_eq!(ready["rtc_room_name"], LOBBY, "{ready}");
    // It hears the caller, speaks to them, and has the rights of any session in the room.
    telephone.press("7").await;
    assert_eq!(next(&mut socket, "dtmf").await["digit"], "7");
    say(
        &mut socket,
        &json!({"type": "speak", "text": "Hello.", "id": "a"}),
    )
    .await;
    assert_eq!(next(&mut socket, "tts_playback_complete").await["id"], "a");
    say(&mut socket, &json!({"type": "hangup"})).await;
    telephone.next("CALL_CLOSED").await;
}

#[tokio::test]
async fn where_one_agent_is_away_slow_or_refuses_the_other_takes_the_call() {
    let second = Agent::start().await;
    // Nobody listens there.
    let away = format!(
        "ws://{}/",
        SocketAddr::from((Ipv4Addr::LOCALHOST, rig::ports(2)))
    );
    // It takes connections and never answers.
    let slow = Agent::start().await;
    // It answers the handshake and never sends `config`.
    let silent = Agent::start().await;
    let silent_url = silent.url();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        loop {
            kept.push(silent.accept().await);
        }
    });
    // It is a web server.
    let web = Server::start();
    let refusing = web.url.replace("http://", "ws://") + "/healthz";
    for first in [away, slow.url(), silent_url, refusing] {
        let limits = [("AGENT_CONNECT_TIMEOUT_SECONDS", "2")];
        let exchange = exchange(&[first.clone(), second.url()], &limits);
        let mut telephone = Baresip::start().await;
        dial(&exchange, &mut telephone).await;
        let (mut socket, _) = second.accept().await;
        next(&mut socket, "call").await;
        say(&mut socket, &config()).await;
        let ready = next(&mut socket, "ready").await;
        assert_eq!(ready["rtc_room_name"], LOBBY, "{first}: {ready}");
        telephone.hang_up().await;
    }
}

#[tokio::test]
async fn an_agent_whose_socket_breaks_is_dialled_again_while_the_caller_is_there() {
    let agent = Agent::start().await;
    let exchange = exchange(&[agent.url()], &[]);
    let mut telephone = Baresip::start().await;
    dial(&exchange, &mut telephone).await;
    let (mut socket, _) = agent.accept().await;
    let first = next(&mut socket, "call").await;
    say(&mut socket, &config()).await;
    next(&mut socket, "ready").await;
    drop(socket);
    let (mut socket, _) = agent.accept().await;
    let again = next(&mut socket, "call").await;
    assert_eq!(again["room_name"], first["room_name"]);
    assert_ne!(again["stream_id"], first["stream_id"]);
    say(&mut socket, &config()).await;
    next(&mut socket, "ready").await;
    // One that closes properly has done its work.
    socket.close(None).await.unwrap();
    while socket.next().await.is_some_and(|message| message.is_ok()) {}
    let nobody = tokio::time::timeout(Duration::from_secs(2), agent.listener.accept()).await;
    assert!(nobody.is_err(), "it was dialled again");
}

#[tokio::test]
async fn a_caller_for_whom_there_is_no_agent_hears_why_and_is_hung_up() {
    let away = format!(
        "ws://{}/",
        SocketAddr::from((Ipv4Addr::LOCALHOST, rig::ports(2)))
    );
    let text = "All our lines are busy. Please call again later.";
    let exchange = exchange(
        &[away],
        &[
            ("AGENT_PATIENCE_SECONDS", "0.5"),
            ("AGENT_UNAVAILABLE_TEXT", text),
        ],
    );
    let mut telephone = Baresip::of(Kind {
        hertz: 0,
        ..Kind::default()
    })
    .await;
    dial(&exchange, &mut telephone).await;
    telephone.next("CALL_CLOSED").await;
    let heard = telephone.recording("dec").expect("it has recorded nothing");
    // A recogniser understands this voice over a telephone most of the time only; how long it speaks is certain.
    let narrow = AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_8000);
    let meant = spoken(&exchange.server, text, narrow).await;
    let (meant, heard) = (loud(meant.samples()), loud(&rig::tone::samples(&heard)));
    let ratio = heard as f64 / meant as f64;
    assert!((0.8..1.2).contains(&ratio), "{heard} of {meant} pieces");
    let page = client().get(format!("{}/metrics", exchange.server.url));
    let page = page.send().await.unwrap().text().await.unwrap();
    let counted = "vivavoce_agent_dials_total{outcome=\"unanswered\"} 1";
    assert!(page.contains(counted), "{page}");
}

#[tokio::test]
async fn the_agent_of_a_tenant_has_the_rights_of_the_tenant_and_no_others() {
    let agent = Agent::start().await;
    let acme = "a-secret-of-thirty-two-bytes-acme";
    let other = "a-secret-of-thirty-two-bytes-othr";
    let secrets = json!([{"id": "acme", "secret": acme}, {"id": "other", "secret": other}]);
    let routes = json!([{"tenant": "acme", "url": agent.url(), "secret": SECRET}]);
    let numbers = json!({"acme": [CALLED]});
    let exchange = Exchange::with(&[
        ("AUTH_REQUIRED", "true"),
        ("AUTH_API_SECRETS_JSON", &secrets.to_string()),
        ("SIP_TENANT_NUMBERS", &numbers.to_string()),
        ("AGENT_ROUTES_JSON", &routes.to_string()),
        ("AGENT_ALLOW_INSECURE", "true"),
        ("AGENT_ALLOW_PRIVATE", "true"),
    ]);
    let mut telephone = Baresip::start().await;
    dial(&exchange, &mut telephone).await;
    let (mut socket, _) = agent.accept().await;
    let call = next(&mut socket, "call").await;
    say(&mut socket, &config()).await;
    next(&mut socket, "ready").await;
    let sessions = async |secret| {
        let asked = client().get(format!("{}/sessions", exchange.server.url));
        let answer = asked.bearer_auth(secret).send().await.unwrap();
        answer.json::<Value>().await.unwrap()["sessions"].take()
    };
    let own = sessions(acme).await;
    assert_eq!(own[0]["stream_id"], call["stream_id"], "{own}");
    assert_eq!(sessions(other).await, json!([]));
}

#[tokio::test]
async fn an_agent_is_dialled_for_people_in_rooms_where_that_is_wanted_and_once_for_a_room() {
    let agent = Agent::start().await;
    let exchange = exchange(&[agent.url()], &[("AGENT_ROOMS", "true")]);
    let _ann = join(&exchange.server, Sort::Python, "lounge", "ann").await;
    let (mut socket, _) = agent.accept().await;
    let call = next(&mut socket, "call").await;
    let expected = json!({"type": "call", "room_name": "lounge", "participant_identity": "ann",
        "from": null, "to": null, "headers": {}, "stream_id": call["stream_id"]});
    assert_eq!(call, expected);
    say(&mut socket, &config()).await;
    next(&mut socket, "ready").await;
    let _ben = join(&exchange.server, Sort::Python, "lounge", "ben").await;
    next(&mut socket, "participant_connected").await;
    let nobody = tokio::time::timeout(Duration::from_secs(1), agent.listener.accept()).await;
    assert!(nobody.is_err(), "the room has an agent");
}

/// How many pieces of 20 ms are not silent, at 8 kHz.
fn loud(samples: &[i16]) -> usize {
    let level = |piece: &[i16]| {
        piece
            .iter()
            .map(|&sample| f64::from(sample).abs())
            .sum::<f64>()
    };
    let pieces = samples.chunks_exact(160);
    pieces.filter(|piece| level(piece) > 200.0 * 160.0).count()
}
