//! How often somebody may ask, whose word about addresses is believed, which pages may use the server, and what is told
//! of each request.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use crate::harness::*;
use crate::session::client::{Session, config};

/// The answer to a request from one of the machines behind a proxy at this server's own address.
async fn ask_from(server: &Server, path: &str, address: &str) -> reqwest::Response {
    ask_by(&client(), server, path, address).await
}

async fn ask_by(
    client: &reqwest::Client,
    server: &Server,
    path: &str,
    address: &str,
) -> reqwest::Response {
    let request = client.get(format!("{}{path}", server.url));
    let request = request.header("x-forwarded-for", address);
    request.send().await.unwrap()
}

/// How many of so many requests are refused.
async fn refused(server: &Server, path: &str, address: &str, times: usize) -> usize {
    // A new client for each would take longer than the server needs to allow another request.
    let client = client();
    let mut refused = 0;
    for _ in 0..times {
        let answer = ask_by(&client, server, path, address).await;
        refused += usize::from(answer.status() == StatusCode::TOO_MANY_REQUESTS);
    }
    refused
}

/// So few that a test which takes its time does not earn itself another request.
const RARELY: (&str, &str) = ("LIMITS_REQUESTS_PER_SECOND", "1");

#[tokio::test]
async fn who_asks_too_often_is_told_when_to_come_again_in_the_usual_words() {
    let server = Server::start_with(&[RARELY]);
    for _ in 0..2 {
        assert_eq!(
            ask_from(&server, "/sessions", "192.0.2.1").await.status(),
            200
        );
    }
    let answer = ask_from(&server, "/sessions", "192.0.2.2").await;
    let seconds: u64 = answer.headers()["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=2).contains(&seconds), "{seconds}");
    assert!(answer.headers().contains_key("x-request-id"));
    assert_error(answer, 429, "RATE_LIMITED", "limits.requests_per_second").await;
}

#[tokio::test]
async fn probes_are_never_refused() {
    let server = Server::start_with(&[RARELY]);
    assert!(refused(&server, "/sessions", "192.0.2.1", 5).await > 0);
    for path in ["/", "/healthz", "/readyz"] {
        assert_eq!(refused(&server, path, "192.0.2.1", 5).await, 0, "{path}");
    }
    for path in ["/metrics", "/%6detrics"] {
        // However slow the machine is: not every one of them has waited for a second.
        assert!(refused(&server, path, "192.0.2.1", 5).await > 0, "{path}");
    }
}

#[tokio::test]
async fn machines_behind_a_trusted_proxy_are_counted_each_for_itself() {
    let server = Server::start_with(&[RARELY, ("SERVER_TRUSTED_PROXIES", "127.0.0.0/8")]);
    assert!(refused(&server, "/sessions", "192.0.2.1", 5).await > 0);
    assert_eq!(refused(&server, "/sessions", "192.0.2.2", 2).await, 0);
    // What a caller writes before the proxy's own line does not make it another.
    assert!(refused(&server, "/sessions", "198.51.100.1, 192.0.2.1", 5).await > 0);
}

/// A connection from an address of this machine.
pub fn connect_from(server: &Server, address: &str) -> TcpStream {
    let local: std::net::SocketAddr = format!("{address}:0").parse().unwrap();
    let remote: std::net::SocketAddr = server.url.strip_prefix("http://").unwrap().parse().unwrap();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&local.into()).unwrap();
    socket.connect(&remote.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The beginning of an answer, empty where the connection was cut.
pub fn ask_at(server: &Server, address: &str, request: &str) -> (TcpStream, String) {
    let mut stream = connect_from(server, address);
    let mut head = [0; 12];
    let answered = stream
        .write_all(request.as_bytes())
        .and_then(|()| stream.read_exact(&mut head));
    let head = answered.map(|()| String::from_utf8_lossy(&head).into_owned());
    (stream, head.unwrap_or_default())
}

const PROBE: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[test]
fn an_address_has_so_many_connections_and_others_have_their_own() {
    let server = Server::start_with(&[("LIMITS_CONNECTIONS_PER_ADDRESS", "2")]);
    let (first, one) = ask_at(&server, "127.0.0.1", PROBE);
    let (_second, two) = ask_at(&server, "127.0.0.1", PROBE);
    assert_eq!([one, two], ["HTTP/1.1 200", "HTTP/1.1 200"]);
    assert_eq!(ask_at(&server, "127.0.0.1", PROBE).1, "");
    assert_eq!(ask_at(&server, "127.0.0.2", PROBE).1, "HTTP/1.1 200");
    drop(first);
    within(PATIENCE, "no place was given back", || {
        (ask_at(&server, "127.0.0.1", PROBE).1 == "HTTP/1.1 200").then_some(())
    });
}

#[test]
fn connections_of_a_trusted_proxy_are_not_one_machines() {
    let server = Server::start_with(&[
        ("LIMITS_CONNECTIONS_PER_ADDRESS", "1"),
        ("SERVER_TRUSTED_PROXIES", "127.0.0.1"),
    ]);
    let held: Vec<_> = (0..3)
        .map(|_| ask_at(&server, "127.0.0.1", PROBE))
        .collect();
    assert!(held.iter().all(|(_, head)| head == "HTTP/1.1 200"));
}

pub const UPGRADE: &str = "GET /ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
                       sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// Where strangers may open sockets, and others have a token.
pub const LOCKED: [(&str, &str); 3] = [
    ("AUTH_REQUIRED", "true"),
    ("AUTH_API_SECRET", "a-secret-of-tests-and-of-nobody-else"),
    ("AUTH_SOCKET", "public"),
];

#[test]
fn an_address_has_a_quarter_of_the_sockets_without_config() {
    let server =
        Server::start_with(&[&LOCKED[..], &[("LIMITS_UNCONFIGURED_SOCKETS", "8")]].concat());
    let held = [0, 1].map(|_| ask_at(&server, "127.0.0.1", UPGRADE));
    assert!(held.iter().all(|(_, head)| head == "HTTP/1.1 101"));
    assert_eq!(ask_at(&server, "127.0.0.1", UPGRADE).1, "HTTP/1.1 429");
    assert_eq!(ask_at(&server, "127.0.0.2", UPGRADE).1, "HTTP/1.1 101");
    drop(held);
    within(PATIENCE, "no place was given back", || {
        (ask_at(&server, "127.0.0.1", UPGRADE).1 == "HTTP/1.1 101").then_some(())
    });
}

/// Text that is begun and never ends, in fragments, with a mask of noughts.
fn unfinished(bytes: usize) -> Vec<u8> {
    const PART: usize = 60_000;
    let mut wire = Vec::new();
    for part in 0..bytes.div_ceil(PART) {
        wire.extend([u8::from(part == 0), 0xfe]);
        wire.extend((PART as u16).to_be_bytes());
        wire.extend([0; 4]);
        wire.resize(wire.len() + PART, b'a');
    }
    wire
}

/// The first frame of a socket behind the answer to its handshake.
fn first_frame(socket: &mut TcpStream) -> Vec<u8> {
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        seen.extend(byte);
    }
    let mut head = [0; 2];
    socket.read_exact(&mut head).unwrap();
    let mut payload = vec![0; head[1].into()];
    socket.read_exact(&mut payload).unwrap();
    [&head[..], &payload].concat()
}

/// Bytes of memory that the server has.
pub fn resident(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    let kilobytes = line.unwrap().split_whitespace().nth(1).unwrap();
    kilobytes.parse::<usize>().unwrap() * 1024
}

#[test]
fn sockets_that_never_finish_a_message_hold_no_more_than_their_budget() {
    const SOCKETS: usize = 150;
    const BUDGET: usize = 16 << 20;
    const PING: [u8; 6] = [0x89, 0x80, 0, 0, 0, 0];
    let server = Server::start_with(&[
        ("LIMITS_UNFINISHED_MESSAGE_BYTES", "16MiB"),
        ("LIMITS_UNCONFIGURED_SOCKETS", "1000"),
        ("SOCKET_CONFIG_TIMEOUT_SECONDS", "600"),
        ("SOCKET_MESSAGE_TIMEOUT_SECONDS", "600"),
    ]);
    let before = resident(&server);
    let flood = unfinished(3 << 20);
    let mut held = Vec::new();
    let mut most = 0;
    for _ in 0..SOCKETS {
        let (mut socket, head) = ask_at(&server, "127.0.0.1", UPGRADE);
        assert_eq!(head, "HTTP/1.1 101");
        // Whoever is closed in the midst of it cannot send the rest.
        let _ = socket.write_all(&flood);
        held.push(socket);
        most = most.max(resident(&server).saturating_sub(before));
    }
    // What a session costs and what its connection reads at once come on top.
    let bound = BUDGET + SOCKETS * (512 << 10);
    println!("{most} bytes for {SOCKETS} sockets of 3 MiB each");
    assert!(most < bound, "{most} bytes for {SOCKETS} sockets");
    let refused = first_frame(held.last_mut().unwrap());
    assert_eq!(
        (refused[0], &refused[2..4]),
        (0x88, &1013_u16.to_be_bytes()[..])
    );

    // Short messages go on, also in fragments.
    let (mut short, _) = ask_at(&server, "127.0.0.1", UPGRADE);
    short
        .write_all(&[&[0x01, 0x81, 0, 0, 0, 0, b'a'], &PING[..]].concat())
        .unwrap();
    assert_eq!(first_frame(&mut short), [0x8a, 0]);

    drop(held);
    within(PATIENCE, "the memory was not given back", || {
        let (mut socket, _) = ask_at(&server, "127.0.0.1", UPGRADE);
        let _ = socket.write_all(&[&flood[..], &PING].concat());
        (first_frame(&mut socket)[0] == 0x8a).then_some(())
    });
}

#[tokio::test]
async fn a_long_config_that_comes_slowly_is_taken() {
    let server = Server::start_with(&[("LIMITS_UNFINISHED_MESSAGE_BYTES", "6MiB")]);
    let mut session = Session::connect(&server).await;
    let config = config(json!({
        "loading_audio": {"data": "A".repeat(2_500_000), "format": "pcm", "sample_rate": 48_000, "channels": 2},
    }));
    let text = config.to_string();
    let mut pieces = text.as_bytes().chunks(50_000).peekable();
    let mut kind = Data::Text;
    while let Some(piece) = pieces.next() {
        let last = pieces.peek().is_none();
        let frame = Frame::message(piece.to_vec(), OpCode::Data(kind), last);
        session.send_all([Message::Frame(frame)]).await;
        // Not before the server has read it.
        session.round_trip().await;
        kind = Data::Continue;
    }
    session.next("ready").await;
    assert_eq!(session.events().len(), 1);
    session.close().await;
}

#[tokio::test]
async fn a_message_that_does_not_end_in_time_closes_its_socket() {
    let server = Server::start_with(&[("SOCKET_MESSAGE_TIMEOUT_SECONDS", "0.5")]);
    let mut session = Session::open(&server, config(json!({}))).await;
    let begun = Frame::message("{", OpCode::Data(Data::Text), false);
    session.send_all([Message::Frame(begun)]).await;
    assert_eq!(session.closed().await, 4408);
    let page = client()
        .get(format!("{}/metrics", server.url))
        .send()
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    assert!(page.contains("vivavoce_messages_cut_off_total 1"), "{page}");
}

#[tokio::test]
async fn nobody_is_limited_by_default() {
    let server = Server::start();
    assert_eq!(refused(&server, "/", "192.0.2.1", 200).await, 0);
}

#[test]
fn limits_of_nought_are_refused_at_the_start() {
    for name in ["LIMITS_REQUESTS_PER_SECOND", "LIMITS_SESSIONS_PER_TENANT"] {
        let output = std::process::Command::new(VIVAVOCE)
            .arg("check")
            .env(name, "0")
            .output();
        let said = stderr(&output.unwrap());
        assert!(
            said.contains("must be a whole number from 1"),
            "{name}: {said}"
        );
    }
}

const PAGE: &str = "https://app.example";

async fn preflight(server: &Server, origin: &str) -> reqwest::Response {
    let url = format!("{}/speak", server.url);
    let request = client()
        .request(Method::OPTIONS, url)
        .header("origin", origin);
    let request = request.header("access-control-request-method", "POST");
    let request = request.header(
        "access-control-request-headers",
        "authorization,content-type",
    );
    request.send().await.unwrap()
}

fn header(answer: &reqwest::Response, name: &str) -> String {
    let values = answer.headers().get_all(name).iter();
    let values: Vec<_> = values.map(|value| value.to_str().unwrap()).collect();
    values.join(", ").to_lowercase()
}

#[tokio::test]
async fn pages_on_the_list_may_ask_and_read_the_answers() {
    let server = Server::start_with(&[("SERVER_CORS_ORIGINS", PAGE)]);
    let answer = preflight(&server, PAGE).await;
    assert_eq!(answer.status(), 204);
    assert_eq!(header(&answer, "access-control-allow-origin"), PAGE);
    assert!(header(&answer, "access-control-allow-methods").contains("post"));
    for name in ["authorization", "content-type"] {
        assert!(header(&answer, "access-control-allow-headers").contains(name));
    }
    assert!(header(&answer, "vary").contains("origin"));
    let url = format!("{}/voices", server.url);
    let answer = client()
        .get(url)
        .header("origin", PAGE)
        .send()
        .await
        .unwrap();
    assert_eq!(header(&answer, "access-control-allow-origin"), PAGE);
    assert_eq!(header(&answer, "access-control-allow-credentials"), "");
    assert!(header(&answer, "vary").contains("origin"));
}

#[tokio::test]
async fn pages_on_the_list_may_read_refusals_too() {
    let server = Server::start_with(&[("SERVER_CORS_ORIGINS", PAGE), RARELY]);
    let url = format!("{}/nothing", server.url);
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let answer = client()
            .get(&url)
            .header("origin", PAGE)
            .send()
            .await
            .unwrap();
        assert_eq!(header(&answer, "access-control-allow-origin"), PAGE);
        assert!(header(&answer, "access-control-expose-headers").contains("retry-after"));
        statuses.push(answer.status().as_u16());
    }
    assert!(
        statuses.contains(&404) && statuses.contains(&429),
        "{statuses:?}"
    );
}

#[tokio::test]
async fn other_pages_are_told_nothing() {
    for server in [
        Server::start(),
        Server::start_with(&[("SERVER_CORS_ORIGINS", PAGE)]),
    ] {
        let answer = preflight(&server, "https://evil.example").await;
        assert_eq!(answer.status(), 405);
        assert_eq!(header(&answer, "access-control-allow-origin"), "");
        let url = format!("{}/voices", server.url);
        let request = client().get(url).header("origin", "https://evil.example");
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(header(&answer, "access-control-allow-origin"), "");
        // But that there is a server, as LiveKit's client for browsers asks.
        let request = client().get(format!("{}/", server.url));
        let answer = request.header("origin", "https://evil.example").send();
        let answer = answer.await.unwrap();
        assert_eq!(header(&answer, "access-control-allow-origin"), "*");
    }
}

#[tokio::test]
async fn every_answer_has_an_id_the_callers_own_where_it_sent_a_good_one() {
    let server = Server::start();
    for (path, status) in [
        ("/", 200),
        ("/nothing", 404),
        ("/ws", 400),
        ("/recording/x", 404),
    ] {
        let url = format!("{}{path}", server.url);
        let answer = client().get(&url).send().await.unwrap();
        assert_eq!(
            (
                answer.status().as_u16(),
                header(&answer, "x-request-id").len()
            ),
            (status, 32)
        );
        let answer = client()
            .get(&url)
            .header("x-request-id", "mine-7")
            .send()
            .await
            .unwrap();
        assert_eq!(header(&answer, "x-request-id"), "mine-7", "{path}");
        let answer = client()
            .get(&url)
            .header("x-request-id", "two words")
            .send()
            .await
            .unwrap();
        assert_eq!(header(&answer, "x-request-id").len(), 32, "{path}");
    }
}

#[tokio::test]
async fn requests_are_counted_by_the_pattern_of_their_route() {
    let server = Server::start();
    for id in ["marker-a", "marker-b"] {
        let url = format!("{}/sessions/{id}?token=marker-c", server.url);
        client().delete(url).send().await.unwrap();
    }
    client()
        .get(format!("{}/marker-d", server.url))
        .send()
        .await
        .unwrap();
    let brew = Method::from_bytes(b"MARKER").unwrap();
    client()
        .request(brew, format!("{}/voices", server.url))
        .send()
        .await
        .unwrap();
    let page = client()
        .get(format!("{}/metrics", server.url))
        .send()
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    for expected in [
        r#"vivavoce_http_requests_total{method="DELETE",route="/sessions/{stream_id}",status="404"} 2"#,
        r#"vivavoce_http_requests_total{method="GET",route="none",status="404"} 1"#,
        r#"vivavoce_http_requests_total{method="other",route="/voices",status="405"} 1"#,
        r#"vivavoce_http_request_duration_seconds_count{route="/sessions/{stream_id}"} 2"#,
    ] {
        assert!(page.contains(expected), "{expected} is missing in\n{page}");
    }
    assert!(!page.to_lowercase().contains("marker"), "{page}");
}

#[tokio::test]
async fn refused_strangers_do_not_fill_the_access_log_and_known_callers_have_a_line_each() {
    const TOKEN: &str = "0123456789-0123456789-0123456789";
    let mut server = Server::start_logged(&[
        ("LOG_FORMAT", "json"),
        ("AUTH_REQUIRED", "true"),
        ("AUTH_API_SECRET", TOKEN),
        ("AUTH_SOCKET", "public"),
    ]);
    let (client, url) = (client(), format!("{}/sessions", server.url));
    let socket = format!("{}/ws", server.url);
    let begun = Instant::now();
    for _ in 0..600 {
        let refused = client.get(&url).send().await.unwrap();
        assert_eq!(refused.status(), 401);
        // Counted for its address, which makes nobody known.
        let refused = client.get(&socket).send().await.unwrap();
        assert_eq!(refused.status(), 400);
    }
    let seconds = begun.elapsed().as_secs() + 1;
    for _ in 0..150 {
        let request = client.get(&url).bearer_auth(TOKEN).send();
        assert_eq!(request.await.unwrap().status(), 200);
    }
    let request = client.get(format!("{}/metrics", server.url));
    let page = request.bearer_auth(TOKEN).send().await.unwrap();
    let page = page.text().await.unwrap();
    let counted =
        r#"vivavoce_http_requests_total{method="GET",route="/sessions",status="401"} 600"#;
    assert!(page.contains(counted), "{page}");
    let log = server.log();
    let lines = |status: u16| {
        let lines = log
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let answered = lines.filter(|line| line["fields"]["message"] == "answered");
        answered
            .filter(|line| line["fields"]["status"] == status)
            .count() as u64
    };
    // A burst of 100, and 10 a second.
    let refused = lines(401) + lines(400);
    assert!(refused <= 101 + 10 * seconds, "{refused} lines");
    assert_eq!(lines(200), 150);
}

#[tokio::test]
async fn the_access_log_tells_the_route_and_the_id_of_each_request_and_nothing_of_its_path() {
    let mut server = Server::start_logged(&[("LOG_FORMAT", "json")]);
    let url = format!("{}/sessions/marker?api_key=marker", server.url);
    let request = client().delete(url).header("x-request-id", "mine-7");
    request.send().await.unwrap();
    client()
        .get(format!("{}/healthz", server.url))
        .send()
        .await
        .unwrap();
    let log = server.log();
    let lines = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let answered: Vec<_> = lines
        .filter(|line| line["fields"]["message"] == "answered")
        .collect();
    let [line] = answered.as_slice() else {
        panic!("{log}");
    };
    let fields = &line["fields"];
    assert_eq!(fields["method"], "DELETE");
    assert_eq!(fields["route"], "/sessions/{stream_id}");
    assert_eq!(fields["status"], 404);
    assert!(fields["duration_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(line["span"]["request_id"], "mine-7");
    assert!(!log.contains("marker"), "{log}");
}
