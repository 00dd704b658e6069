//! Every endpoint with every kind of caller, as a table that `--nocapture` shows, and sessions by their tenants.

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::*;

type Socket = WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>;

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
async fn session(server: &Server, token: Option<&str>, stream_id: &str) -> Socket {
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
    let server = with_secrets(&[]);
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
    let server = with_secrets(&[("LIMITS_SESSIONS_PER_TENANT", "2")]);
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
        assert_eq!(ask("/metrics", OF_A, from).await.status(), 200);
    }
}

#[actix_web::test]
async fn a_public_socket_takes_no_bad_token_and_a_locked_one_needs_a_good_one() {
    let bad = ["Bearer wrong", "Basic dTpw", "Bearer"].map(Some);
    let public = with_secrets(&[]);
    assert!(connect(&public, None).await.is_ok());
    let locked = with_secrets(&[("AUTH_SOCKET", "required")]);
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

/// Who asks: what a column of the table is called, the `Authorization` header, and the query.
const CALLERS: [(&str, Option<&str>, &str); 6] = [
    ("no token", None, ""),
    ("malformed", Some("Basic dTpw"), ""),
    ("wrong", Some("Bearer wrong"), ""),
    (
        "other tenant",
        Some("Bearer of-b-0123456789-0123456789-0123456"),
        "",
    ),
    (
        "tenant",
        Some("Bearer of-a-0123456789-0123456789-0123456"),
        "",
    ),
    (
        "in the query",
        None,
        "?api_key=house-0123456789-0123456789-012345",
    ),
];

/// What each gets there. The session is of the first tenant; once it is gone it is not found.
const ENDPOINTS: [(&str, &str, [&str; 6]); 13] = [
    ("GET", "/", ["200"; 6]),
    ("GET", "/healthz", ["200"; 6]),
    ("GET", "/readyz", ["200"; 6]),
    ("GET", "/console", ["200"; 6]),
    ("GET", "/nowhere", ["404 NOT_FOUND"; 6]),
    ("PUT", "/voices", ["405 METHOD_NOT_ALLOWED"; 6]),
    ("GET", "/metrics", PROTECTED),
    ("GET", "/voices", PROTECTED),
    (
        "HEAD",
        "/voices",
        ["401", "401", "401", "200", "200", "200"],
    ),
    ("POST", "/speak", PROTECTED),
    ("GET", "/sessions", PROTECTED),
    (
        "DELETE",
        "/sessions/of-a",
        [
            REFUSED[0],
            REFUSED[1],
            REFUSED[2],
            "404 NOT_FOUND",
            "200",
            "404 NOT_FOUND",
        ],
    ),
    // No handshake; whoever is let in is told so.
    (
        "GET",
        "/ws",
        [
            "400 INVALID_REQUEST",
            REFUSED[1],
            REFUSED[2],
            "400 INVALID_REQUEST",
            "400 INVALID_REQUEST",
            "400 INVALID_REQUEST",
        ],
    ),
];

const REFUSED: [&str; 3] = [
    "401 missing_auth_header",
    "401 invalid_auth_header",
    "401 unauthorized",
];
const PROTECTED: [&str; 6] = [REFUSED[0], REFUSED[1], REFUSED[2], "200", "200", "200"];

#[actix_web::test]
async fn every_endpoint_lets_in_whom_it_should() {
    let server = with_secrets(&[]);
    let _session = session(&server, Some(OF_A), "of-a").await;
    let mut wrong = Vec::new();
    let row = |cells: Vec<&str>| {
        let cells = cells.iter().map(|cell| format!("{cell:24}"));
        println!("{}", cells.collect::<String>().trim_end());
    };
    row([""]
        .into_iter()
        .chain(CALLERS.map(|(name, ..)| name))
        .collect());
    for (method, path, expected) in ENDPOINTS {
        let mut cells = vec![format!("{method} {path}")];
        for ((caller, authorization, query), expected) in CALLERS.into_iter().zip(expected) {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let mut request = client().request(method, format!("{}{path}{query}", server.url));
            if let Some(value) = authorization {
                request = request.header("authorization", value);
            }
            if path == "/speak" {
                request = request.json(&speech("Hello."));
            }
            let cell = outcome(request.send().await.unwrap()).await;
            if cell != expected {
                wrong.push(format!(
                    "{method} {path}, {caller}: {cell} instead of {expected}",
                    method = cells[0]
                ));
            }
            cells.push(cell);
        }
        row(cells.iter().map(String::as_str).collect());
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The status, and the code of an error.
async fn outcome(response: Response) -> String {
    let status = response.status().as_u16();
    let body = response.bytes().await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    match body["error"].as_str() {
        Some(code) => format!("{status} {code}"),
        None => status.to_string(),
    }
}
