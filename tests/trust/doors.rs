//! The doors of HTTP while somebody leans against them: unfinished bodies, idle connections and sockets, and pages that
//! point their own name at this machine.

use std::io::{Read, Write};

use reqwest::StatusCode;

use crate::harness::*;
use crate::limits::{LOCKED, UPGRADE, ask_at, connect_from};
use crate::rooms::rest::{A, B, NOBODY, guarded, tenants};

const TOKEN: &str = "authorization: Bearer a-secret-of-tests-and-of-nobody-else";

/// A request of which only the head comes.
fn head(line: &str, headers: &[&str]) -> String {
    let headers = headers
        .iter()
        .map(|header| format!("{header}\r\n"))
        .collect::<Vec<_>>()
        .concat();
    format!("{line} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n")
}

#[test]
fn a_body_of_a_stranger_is_refused_before_its_first_byte() {
    let server = Server::start_with(&LOCKED);
    let json = "content-type: application/json";
    let long = "content-length: 999000";
    let unsigned = "authorization: Bearer e30.e30.";
    let create = "POST /twirp/livekit.RoomService/CreateRoom";
    let call = "POST /twirp/livekit.SIP/CreateSIPParticipant";
    for (line, headers) in [
        (create, [json, long].as_slice()),
        (create, [json, long, unsigned].as_slice()),
        (call, [json, long].as_slice()),
        ("POST /rtc/webhook", [long].as_slice()),
        ("POST /rtc/webhook", [long, unsigned].as_slice()),
        ("POST /speak", [json, long].as_slice()),
        ("POST /sip/hooks", [json, long, unsigned].as_slice()),
    ] {
        let (_open, answer) = ask_at(&server, "127.0.0.1", &head(line, headers));
        assert_eq!(answer, "HTTP/1.1 401", "{line} {headers:?}");
    }
}

#[test]
fn bodies_that_strangers_never_finish_do_not_keep_a_good_token_out() {
    let settings = [("LIMITS_CONNECTIONS", "32"), ("SERVER_WORKERS", "1")];
    let server = Server::start_with(&[&LOCKED[..], &settings].concat());
    // Answered, and yet held: what is left of a body in chunks is read for as long as it comes.
    let chunked = head("GET /voices", &["transfer-encoding: chunked"]);
    let mut held = Vec::new();
    for n in 0..200 {
        let address = format!("127.0.0.{}", 2 + n % 4);
        let mut stream = connect_from(&server, &address);
        // Whoever is cut at once cannot send it.
        let _ = stream.write_all(chunked.as_bytes());
        held.push(stream);
        if n % 50 == 49 {
            let request = head("GET /sessions", &[TOKEN]);
            let (_open, answer) = ask_at(&server, "127.0.0.1", &request);
            assert_eq!(answer, "HTTP/1.1 200", "after {n} connections of strangers");
        }
    }
}

#[test]
fn requests_behind_an_answer_that_is_not_read_cost_no_work() {
    let server = Server::start_with(&LOCKED);
    let stream = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    stream.set_recv_buffer_size(4_096).unwrap();
    let address: std::net::SocketAddr = server.url["http://".len()..].parse().unwrap();
    stream.connect(&address.into()).unwrap();
    let mut stream = std::net::TcpStream::from(stream);
    stream.set_write_timeout(Some(PATIENCE / 6)).unwrap();
    let many = head("GET /openapi.json", &[]) + &head("GET /healthz", &[]).repeat(16);
    // And more than the parser keeps, without the end of a head. Who reads nothing has 30 s; such a connection is cut at once.
    let junk = [b'x'; 1_024];
    let mut sent = stream.write_all(many.as_bytes());
    for _ in 0..4_096 {
        sent = sent.and_then(|()| stream.write_all(&junk));
    }
    let kind = sent.unwrap_err().kind();
    let cut = [
        std::io::ErrorKind::ConnectionReset,
        std::io::ErrorKind::BrokenPipe,
    ];
    assert!(cut.contains(&kind), "{kind}");
}

#[test]
fn sockets_of_strangers_leave_places_for_good_tokens() {
    for (limit, name) in [
        ("LIMITS_UNCONFIGURED_SOCKETS", "limits.unconfigured_sockets"),
        ("LIMITS_SESSIONS", "limits.sessions"),
    ] {
        let server = Server::start_with(&[&LOCKED[..], &[(limit, "8")]].concat());
        let ask = |n: u8, request: &str| ask_at(&server, &format!("127.0.0.{n}"), request);
        let strangers: Vec<_> = (1..=8).map(|n| ask(n, UPGRADE)).collect();
        let taken = strangers
            .iter()
            .filter(|(_, answer)| answer == "HTTP/1.1 101");
        assert_eq!(taken.count(), 6, "{limit}");
        let known = UPGRADE.replacen("\r\n", &format!("\r\n{TOKEN}\r\n"), 1);
        let known = [1, 2].map(|n| ask(n, &known));
        assert!(
            known.iter().all(|(_, answer)| answer == "HTTP/1.1 101"),
            "{limit}"
        );
        let (mut refused, answer) = ask(9, UPGRADE);
        assert_eq!(answer, "HTTP/1.1 503");
        let mut text = String::new();
        while !text.ends_with('}') {
            let mut byte = [0];
            refused.read_exact(&mut byte).unwrap();
            text.push(byte[0].into());
        }
        assert!(text.contains(name), "{text}");
    }
}

#[test]
fn one_tenants_token_on_every_connection_keeps_nobody_out() {
    let tenants = tenants();
    let settings = [("LIMITS_CONNECTIONS", "32"), ("SERVER_WORKERS", "1")];
    let server = Server::start_with(&[&guarded(&tenants)[..], &settings].concat());
    let ask = |token: &str| {
        let bearer = format!("authorization: Bearer {token}");
        ask_at(&server, "127.0.0.1", &head("GET /sessions", &[&bearer]))
    };
    let mut held = Vec::new();
    let mut refused = loop {
        let (connection, answer) = ask(A);
        if answer != "HTTP/1.1 200" {
            assert_eq!(answer, "HTTP/1.1 429", "after {}", held.len());
            break connection;
        }
        held.push(connection);
        assert!(held.len() <= 24, "as many as are asked for");
    };
    // The connection ends with the refusal, which names the quota.
    let mut rest = String::new();
    refused.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"quota\":\"connections\""), "{rest}");
    for token in [B, NOBODY, B] {
        let (connection, answer) = ask(token);
        assert_eq!(answer, "HTTP/1.1 200");
        held.push(connection);
    }
}

/// Asks as a page does that has pointed its own name at this machine.
async fn ask_for(server: &Server, path: &str, host: &str) -> StatusCode {
    let url = format!("{}{path}", server.url);
    let request = client().get(url).header("host", host);
    request.send().await.unwrap().status()
}

#[tokio::test]
async fn a_page_that_points_its_name_at_this_machine_gets_nothing() {
    let server = Server::start_with(&[("SERVER_ALLOWED_HOSTS", "voice.internal")]);
    for path in [
        "/",
        "/voices",
        "/ws",
        "/rtc/validate",
        "/rtc/v1",
        "/sessions",
        "/nothing",
        "/console",
    ] {
        let refused = ask_for(&server, path, "evil.example:3001").await;
        assert_eq!(refused, StatusCode::MISDIRECTED_REQUEST, "{path}");
        for host in [
            "localhost:3001",
            "LOCALHOST.",
            "127.0.0.1",
            "[::1]:3001",
            "voice.internal",
        ] {
            let answer = ask_for(&server, path, host).await;
            assert_ne!(answer, StatusCode::MISDIRECTED_REQUEST, "{path} of {host}");
        }
    }
    let url = format!("{}/twirp/livekit.RoomService/ListRooms", server.url);
    let posted = client()
        .post(url)
        .header("host", "evil.example")
        .send()
        .await;
    assert_error(
        posted.unwrap(),
        421,
        "MISDIRECTED_REQUEST",
        "server.allowed_hosts",
    )
    .await;
}

#[tokio::test]
async fn where_a_token_is_needed_or_any_host_is_allowed_names_do_not_matter() {
    let locked = Server::start_with(&LOCKED);
    assert_eq!(ask_for(&locked, "/", "voice.example").await, StatusCode::OK);
    let any = Server::start_with(&[("SERVER_ALLOWED_HOSTS", "*")]);
    assert_eq!(ask_for(&any, "/", "voice.example").await, StatusCode::OK);
}
