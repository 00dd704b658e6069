//! Every endpoint with every kind of caller, as a table that `--nocapture` shows, and sessions by their tenants.

use std::collections::BTreeSet;

use futures_util::{SinkExt, StreamExt};
use reqwest::Url;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::*;
use crate::openapi;

pub type Socket = WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>;

/// Opens a socket; the status where it is refused.
async fn connect(server: &Server, authorization: Option<&str>) -> Result<Socket, u16> {
    let url = server.url.replace("http://", "ws://") + "/ws";
    let mut request = url.into_client_request().unwrap();
    if let Some(value) = authorization {
        let value = value.parse().unwrap();
        request.headers_mut().insert("authorization", value);
    }
    match tokio_tungstenite::connect_async(request).await {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
        Err(error) => panic!("{error}"),
    }
}

/// A session of this name.
pub async fn session(server: &Server, token: Option<&str>, stream_id: &str) -> Socket {
    let authorization = token.map(|token| format!("Bearer {token}"));
    let mut socket = connect(server, authorization.as_deref()).await.unwrap();
    let config = json!({"type": "config", "audio": false, "stream_id": stream_id});
    socket
        .send(Message::text(config.to_string()))
        .await
        .unwrap();
    let ready = socket.next().await.unwrap().unwrap();
    let ready: Value = serde_json::from_str(ready.to_text().unwrap()).unwrap();
    assert_eq!(
        (&ready["type"], &ready["stream_id"]),
        (&json!("ready"), &json!(stream_id))
    );
    socket
}

async fn sessions(server: &Server, token: &str) -> Vec<String> {
    let list: Value = get(server, "/sessions", token).await.json().await.unwrap();
    let list = list["sessions"].as_array().unwrap();
    list.iter()
        .map(|session| session["stream_id"].as_str().unwrap().to_owned())
        .collect()
}

async fn end(server: &Server, token: &str, stream_id: &str) -> Response {
    let request = client().delete(format!("{}/sessions/{stream_id}", server.url));
    request.bearer_auth(token).send().await.unwrap()
}

#[actix_web::test]
async fn a_session_belongs_to_the_tenant_that_opened_it() {
    let server = with_secrets(&[("AUTH_SOCKET", "public")]);
    let _a = session(&server, Some(OF_A), "of-a").await;
    let _b = session(&server, Some(OF_B), "of-b").await;
    let _nobody = session(&server, None, "of-nobody").await;
    assert_eq!(sessions(&server, OF_A).await, ["of-a"]);
    assert_eq!(sessions(&server, OF_B).await, ["of-b"]);
    assert_eq!(
        sessions(&server, HOUSE).await,
        ["of-a", "of-b", "of-nobody"]
    );
    for name in ["of-a", "of-nobody", "not-there"] {
        assert_error(end(&server, OF_B, name).await, 404, "NOT_FOUND", "").await;
    }
    assert_eq!(end(&server, OF_A, "of-a").await.status(), 200);
    assert_eq!(end(&server, HOUSE, "of-nobody").await.status(), 200);
    assert_eq!(sessions(&server, HOUSE).await, ["of-b"]);
}

#[actix_web::test]
async fn a_tenant_has_so_many_sessions_at_once() {
    let server = with_secrets(&[
        ("AUTH_SOCKET", "public"),
        ("LIMITS_SESSIONS_PER_TENANT", "2"),
    ]);
    let bearer = |token| Some(format!("Bearer {token}"));
    let first = session(&server, Some(OF_A), "first").await;
    let _second = session(&server, Some(OF_A), "second").await;
    let of_a = bearer(OF_A);
    assert_eq!(connect(&server, of_a.as_deref()).await.err(), Some(429));
    // Others are others, and nobody in particular is bounded by the sessions in all.
    let _b = session(&server, Some(OF_B), "of-b").await;
    for name in ["1", "2", "3"] {
        drop(session(&server, None, name).await);
    }
    drop(first);
    let again = async {
        while connect(&server, of_a.as_deref()).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, again).await.unwrap();
}

#[actix_web::test]
async fn a_tenant_is_counted_wherever_it_asks_from() {
    let server = with_secrets(&[
        ("LIMITS_REQUESTS_PER_SECOND", "1"),
        ("SERVER_TRUSTED_PROXIES", "127.0.0.0/8"),
    ]);
    let ask = async |path: &str, token: &str, from: u8| {
        let request = client().get(format!("{}{path}", server.url));
        let request = request.header("x-forwarded-for", format!("192.0.2.{from}"));
        request.bearer_auth(token).send().await.unwrap()
    };
    let mut refused = Vec::new();
    for from in 1..=9 {
        let answer = ask("/sessions", OF_A, from).await;
        if answer.status() == 429 {
            refused.push(answer);
        }
    }
    assert!(refused.len() > 1, "{}", refused.len());
    let answer = refused.remove(0);
    assert!(answer.headers().contains_key("retry-after"));
    assert_error(answer, 429, "RATE_LIMITED", "of this tenant").await;
    assert_eq!(ask("/sessions", OF_B, 11).await.status(), 200);
    for from in 21..=29 {
        assert_eq!(ask("/sessions", HOUSE, from).await.status(), 200);
        assert_eq!(ask("/healthz", OF_A, from).await.status(), 200);
    }
}

#[actix_web::test]
async fn a_public_socket_takes_no_bad_token_and_a_locked_one_needs_a_good_one() {
    let bad = ["Bearer wrong", "Basic dTpw", "Bearer"].map(Some);
    let public = with_secrets(&[("AUTH_SOCKET", "public")]);
    assert!(connect(&public, None).await.is_ok());
    let locked = with_secrets(&[]);
    assert_eq!(connect(&locked, None).await.err(), Some(401));
    for server in [&public, &locked] {
        for authorization in bad {
            assert_eq!(
                connect(server, authorization).await.err(),
                Some(401),
                "{authorization:?}"
            );
        }
        assert!(
            connect(server, Some(&format!("bearer {HOUSE}")))
                .await
                .is_ok()
        );
    }
}

#[actix_web::test]
async fn the_service_is_asked_about_sockets_too() {
    let file = KeyFile::new(&EC.pkcs8);
    let service = AuthService::start(|seen| match seen.token() {
        "a" => ok(r#"{"id": "a"}"#),
        _ => Reply::Answer(403, String::new()),
    });
    let server = asking(&service, &file.path(), &[]);
    assert_eq!(connect(&server, Some("Bearer x")).await.err(), Some(401));
    let _session = session(&server, Some("a"), "of-a").await;
    assert_eq!(sessions(&server, "a").await, ["of-a"]);
    let asked = &service.seen()[1].claims["auth_data"];
    assert_eq!(
        (&asked["request_path"], &asked["request_body"]),
        (&json!("/ws"), &json!({}))
    );
}

/// Who asks: what a column of the table is called, and the `Authorization` header. What there is belongs to tenant `a`.
const CALLERS: [(&str, Option<&str>); 6] = [
    ("no token", None),
    ("malformed", Some("Basic dTpw")),
    ("wrong", Some("Bearer wrong")),
    (
        "other tenant",
        Some("Bearer of-b-0123456789-0123456789-0123456"),
    ),
    ("right", Some("Bearer of-a-0123456789-0123456789-0123456")),
    (
        "without tenant",
        Some("Bearer house-0123456789-0123456789-012345"),
    ),
];

/// What each of them gets.
type Cells = [&'static str; CALLERS.len()];

const OPEN: Cells = ["200"; CALLERS.len()];

/// Behind the door all get the same.
const fn locked(answer: &'static str) -> Cells {
    behind_the_door([answer; 3])
}

/// What the last three get.
const fn behind_the_door([other, right, without]: [&'static str; 3]) -> Cells {
    [
        "401 missing_auth_header",
        "401 invalid_auth_header",
        "401 unauthorized",
        other,
        right,
        without,
    ]
}

/// Every operation of the document with the example that is sent, and what comes back. Each `HEAD` is answered like its
/// `GET`.
const OPERATIONS: [(&str, &str, &str, Cells); 50] = [
    ("GET", "/", "asked", OPEN),
    ("GET", "/healthz", "asked", OPEN),
    ("GET", "/readyz", "asked", OPEN),
    ("GET", "/openapi.json", "asked", OPEN),
    ("GET", "/schemas/socket.json", "asked", OPEN),
    ("GET", "/docs", "asked", OPEN),
    ("GET", "/console", "asked", OPEN),
    ("GET", "/console/{file}", "asked", OPEN),
    ("GET", "/inspect/caller", "asked", locked("200")),
    (
        "GET",
        "/inspect/sessions",
        "asked",
        behind_the_door(["200 []", "200 [my-session]", "200 [my-session]"]),
    ),
    (
        "GET",
        "/inspect/sessions/{id}",
        "unknown",
        locked("404 NOT_FOUND"),
    ),
    ("GET", "/inspect/recordings", "asked", locked("200")),
    ("GET", "/inspect/webhooks", "asked", locked("200")),
    ("POST", "/inspect/webhooks/retry", "all", locked("200")),
    ("GET", "/inspect/vendors", "asked", FOR_THE_OPERATOR),
    ("GET", "/inspect/models", "asked", locked("200")),
    ("GET", "/inspect/settings", "asked", FOR_THE_OPERATOR),
    ("GET", "/inspect/log", "asked", FOR_THE_OPERATOR),
    ("GET", "/metrics", "asked", FOR_THE_OPERATOR),
    ("GET", "/voices", "of-one-provider", locked("200")),
    ("POST", "/speak", "local-voice", locked("200")),
    // No handshake; whoever is let in is told so. Without a token it is public.
    (
        "GET",
        "/ws",
        "without-a-handshake",
        [
            NO_HANDSHAKE,
            locked("")[1],
            locked("")[2],
            NO_HANDSHAKE,
            NO_HANDSHAKE,
            NO_HANDSHAKE,
        ],
    ),
    (
        "GET",
        "/sessions",
        "asked",
        behind_the_door(["200 []", "200 [my-session]", "200 [my-session]"]),
    ),
    (
        "DELETE",
        "/sessions/{stream_id}",
        "unknown",
        behind_the_door(["404 NOT_FOUND", "200", "200"]),
    ),
    // The room is made by the first of them, and is theirs.
    (
        "POST",
        "/rtc/token",
        "join",
        behind_the_door(["200", "403 ROOM_ACCESS_DENIED", "200"]),
    ),
    ("GET", "/rtc/rooms", "asked", locked("200")),
    (
        "GET",
        "/rtc/rooms/{room_name}",
        "unknown",
        behind_the_door(["200", "404 ROOM_NOT_FOUND", "200"]),
    ),
    (
        "DELETE",
        "/rtc/participant",
        "unknown",
        behind_the_door([NOBODY, "404 ROOM_NOT_FOUND", NOBODY]),
    ),
    (
        "POST",
        "/rtc/participant/mute",
        "unknown",
        behind_the_door([NOBODY, "404 ROOM_NOT_FOUND", NOBODY]),
    ),
    // Its signature lets it in, not a token.
    ("POST", "/rtc/webhook", "unsigned", ["401 unauthorized"; 6]),
    ("GET", "/recordings", "asked", locked("200")),
    ("GET", "/recording/{stream_id}", "asked", NO_RECORDINGS),
    (
        "GET",
        "/recording/{stream_id}/transcript",
        "asked",
        NO_RECORDINGS,
    ),
    ("DELETE", "/recording/{stream_id}", "asked", NO_RECORDINGS),
    (
        "POST",
        "/sip/call",
        "through-the-server's-gateway",
        locked("500 OUTBOUND_ADDRESS_NOT_CONFIGURED"),
    ),
    (
        "POST",
        "/sip/transfer",
        "transfer",
        behind_the_door([NOBODY, "404 ROOM_NOT_FOUND", NOBODY]),
    ),
    ("GET", "/sip/traces", "asked", locked("200")),
    (
        "GET",
        "/sip/traces/{trace_id}",
        "asked",
        locked("404 NOT_FOUND"),
    ),
    ("GET", "/sip/transfers", "asked", locked("200")),
    (
        "GET",
        "/sip/transfers/{transfer_id}",
        "asked",
        locked("404 NOT_FOUND"),
    ),
    (
        "POST",
        "/sip/transfers/{transfer_id}/complete",
        "the-agent-leaves",
        locked("404 NOT_FOUND"),
    ),
    (
        "POST",
        "/sip/transfers/{transfer_id}/cancel",
        "cancel",
        locked("404 NOT_FOUND"),
    ),
    (
        "POST",
        "/sip/hold",
        "hold",
        behind_the_door([NOBODY, "404 ROOM_NOT_FOUND", NOBODY]),
    ),
    ("GET", "/sip/queues", "asked", locked("200")),
    (
        "POST",
        "/sip/queues/{queue_name}/calls",
        "a-caller",
        behind_the_door([NOBODY, "404 ROOM_NOT_FOUND", NOBODY]),
    ),
    (
        "DELETE",
        "/sip/queues/{queue_name}/calls/{sip_call_id}",
        "asked",
        locked("404 NOT_FOUND"),
    ),
    (
        "POST",
        "/sip/queues/{queue_name}/next",
        "to-a-number",
        locked("404 NOT_FOUND"),
    ),
    ("GET", "/sip/hooks", "asked", locked("200")),
    // One host after the other: of the other tenant, then of nobody.
    (
        "POST",
        "/sip/hooks",
        "add",
        behind_the_door(["200", "400 INVALID_REQUEST", "200"]),
    ),
    (
        "DELETE",
        "/sip/hooks",
        "remove",
        behind_the_door(["400 INVALID_REQUEST", "400 INVALID_REQUEST", "200"]),
    ),
];

const FOR_THE_OPERATOR: Cells = behind_the_door(["403 OPERATOR_ONLY", "403 OPERATOR_ONLY", "200"]);
const NO_HANDSHAKE: &str = "400 INVALID_REQUEST";
const NOBODY: &str = "404 PARTICIPANT_NOT_FOUND";
const NO_RECORDINGS: Cells = locked("404 RECORDING_NOT_FOUND");

/// Beside the document: what is not there is not there for anybody.
const ELSEWHERE: [(&str, &str, Cells); 2] = [
    ("GET", "/nowhere", ["404 NOT_FOUND"; 6]),
    ("PUT", "/voices", ["405 METHOD_NOT_ALLOWED"; 6]),
];

#[actix_web::test]
async fn every_operation_of_the_document_is_in_the_table() {
    let server = with_secrets(&[]);
    let api = openapi::described(&server, "/openapi.json").await;
    let of_document = openapi::operations(&api);
    let of_document = of_document
        .iter()
        .filter(|(_, method, _)| method != Method::HEAD)
        .map(|(path, method, _)| format!("{method} {path}"));
    let of_table = OPERATIONS.map(|(method, path, ..)| format!("{method} {path}"));
    assert_eq!(
        of_document.collect::<BTreeSet<_>>(),
        of_table.into_iter().collect()
    );
}

#[actix_web::test]
async fn every_endpoint_lets_in_whom_it_should() {
    let server = with_secrets(&[("AUTH_SOCKET", "public"), ("LOG_LEVEL", "warn")]);
    let api = openapi::described(&server, "/openapi.json").await;
    let mut table = Table::new(&server);
    for (method, path, example, cells) in OPERATIONS {
        let item = &api["paths"][path];
        let operation = &item[method.to_lowercase()];
        let mut url = openapi::example_url(&server, path, operation);
        if url
            .query()
            .is_some_and(|query| query.starts_with("tenant="))
        {
            // Whose the session is that is asked for.
            url.set_query(Some("tenant=a"));
        }
        let body = operation.pointer("/requestBody/content/application~1json");
        let body = body.map(|content| &content["examples"][example]["value"]);
        assert!(operation["x-examples"].get(example).is_some(), "{path}");
        table.row(method, &url, body, cells).await;
        if method == "GET" && item.get("head").is_some() {
            // The status without the code.
            table
                .row("HEAD", &url, body, cells.map(|cell| &cell[..3]))
                .await;
        }
    }
    for (method, path, cells) in ELSEWHERE {
        let url = format!("{}{path}", server.url).parse().unwrap();
        table.row(method, &url, None, cells).await;
    }
    assert!(table.wrong.is_empty(), "{:#?}", table.wrong);
}

/// Prints what it finds, and keeps what should be otherwise.
struct Table<'a> {
    server: &'a Server,
    /// Of the first tenant, made anew when it has been ended.
    session: Option<Socket>,
    wrong: Vec<String>,
}

impl<'a> Table<'a> {
    fn new(server: &'a Server) -> Self {
        print_row("", CALLERS.map(|(name, _)| name.to_owned()));
        Self {
            server,
            session: None,
            wrong: Vec::new(),
        }
    }

    /// Asks as every caller.
    async fn row(&mut self, method: &str, url: &Url, body: Option<&Value>, expected: Cells) {
        let name = format!("{method} {}", url.path());
        let mut cells = expected.map(str::to_owned);
        for ((caller, authorization), cell) in CALLERS.into_iter().zip(&mut cells) {
            if sessions(self.server, HOUSE).await.is_empty() {
                self.session = Some(session(self.server, Some(OF_A), "my-session").await);
            }
            let mut request = client().request(method.parse().unwrap(), url.clone());
            if let Some(value) = authorization {
                request = request.header("authorization", value);
            }
            if let Some(body) = body {
                request = request.json(body);
            }
            let got = outcome(request.send().await.unwrap()).await;
            if got != *cell {
                self.wrong
                    .push(format!("{name}, {caller}: {got} instead of {cell}"));
            }
            *cell = got;
        }
        print_row(&name, cells);
    }
}

fn print_row(name: &str, cells: [String; CALLERS.len()]) {
    let cells = cells.map(|cell| format!("{cell:35}"));
    println!("{name:32}{}", cells.concat().trim_end());
}

/// The status, and the code of an error or the names of the sessions.
async fn outcome(response: Response) -> String {
    let status = response.status().as_u16();
    let body = response.bytes().await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    if let Some(sessions) = body["sessions"].as_array() {
        let names = sessions.iter().map(|known| known["stream_id"].as_str());
        let names: Vec<&str> = names.map(Option::unwrap).collect();
        return format!("{status} [{}]", names.join(", "));
    }
    match body["error"].as_str() {
        Some(code) => format!("{status} {code}"),
        None => status.to_string(),
    }
}
