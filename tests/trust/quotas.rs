//! What one tenant, or one stranger, takes is not taken from the others: attacks on what all share, with somebody innocent
//! beside them.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::harness::*;
use crate::rooms::ask;
use crate::rooms::rest::{A, B, NOBODY, tenants, wish};
use crate::telephone::Exchange;
use crate::telephone::hostile::{SDP, answer, invite, socket};

/// A server with two tenants.
fn server(more: &[(&str, &str)]) -> Server {
    let tenants = tenants();
    let mut settings = vec![
        ("AUTH_REQUIRED", "true"),
        ("AUTH_API_SECRET", NOBODY),
        ("AUTH_API_SECRETS_JSON", &tenants),
        ("AUTH_SOCKET", "public"),
    ];
    settings.extend_from_slice(more);
    Server::start_with(&settings)
}

async fn post(server: &Server, path: &str, token: &str, body: &Value) -> Response {
    let request = client().post(format!("{}{path}", server.url));
    let request = request.bearer_auth(token).json(body);
    request.send().await.unwrap()
}

/// How many of so many rooms somebody gets, and the answer to the next.
async fn rooms(server: &Server, token: &str, whose: &str, most: usize) -> (usize, Response) {
    for made in 0..most {
        let room = wish(&format!("{whose}-{made}"));
        let answer = post(server, "/rtc/token", token, &room).await;
        if answer.status() != StatusCode::OK {
            return (made, answer);
        }
    }
    let last = post(server, "/rtc/token", token, &wish(&format!("{whose}-0"))).await;
    (most, last)
}

#[tokio::test]
async fn a_tenant_that_makes_rooms_without_end_leaves_some_to_others() {
    let server = server(&[("LIMITS_ROOMS", "40")]);
    let (made, refused) = rooms(&server, A, "a", 60).await;
    assert_eq!(made, 30);
    assert!(refused.headers().contains_key("retry-after"));
    let status = refused.status();
    let body: Value = refused.json().await.unwrap();
    assert_eq!(
        (status.as_u16(), &body["error"]),
        (429, &json!("RATE_LIMITED"))
    );
    assert_eq!(body["quota"], "rooms");
    let message = body["message"].as_str().unwrap();
    assert!(message.contains("limits.rooms"), "{message}");

    // An innocent one, and those who run the server.
    let (made, answer) = rooms(&server, B, "b", 5).await;
    assert_eq!((made, answer.status()), (5, StatusCode::OK));
    let page = client().get(format!("{}/metrics", server.url));
    let page = page.bearer_auth(NOBODY).send().await.unwrap();
    let page = page.text().await.unwrap();
    let counted = "vivavoce_quota_refusals_total{quota=\"rooms\"} 1";
    assert!(page.contains(counted), "{page}");
}

#[tokio::test]
async fn without_quotas_a_tenant_may_have_every_room_as_before() {
    let server = server(&[("LIMITS_ROOMS", "10"), ("LIMITS_SHARE_PERCENT", "100")]);
    let (made, refused) = rooms(&server, A, "a", 20).await;
    assert_eq!(made, 10);
    let body: Value = refused.json().await.unwrap();
    assert_eq!(
        (&body["error"], &body["quota"]),
        (&json!("OVERLOADED"), &json!("rooms"))
    );
}

#[tokio::test]
async fn those_who_run_the_server_are_bounded_by_its_limits_only() {
    // Without authentication, on loopback: a load generator.
    let server = Server::start_with(&[("LIMITS_SESSIONS", "8")]);
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(open(&server, None).await.unwrap());
    }
    assert_eq!(open(&server, None).await.unwrap_err(), 503);
}

type Socket =
    tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

/// A session's socket, or the status instead.
async fn open(server: &Server, token: Option<&str>) -> Result<Socket, u16> {
    open_from(server, token, None).await
}

/// The same for one of the machines behind a proxy.
async fn open_from(
    server: &Server,
    token: Option<&str>,
    address: Option<&str>,
) -> Result<Socket, u16> {
    let url = server.url.replacen("http", "ws", 1) + "/ws";
    let mut request = url.into_client_request().unwrap();
    if let Some(token) = token {
        let bearer = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert("authorization", bearer);
    }
    if let Some(address) = address {
        let address = address.parse().unwrap();
        request.headers_mut().insert("x-forwarded-for", address);
    }
    match tokio_tungstenite::connect_async(request).await {
        Ok((socket, _)) => Ok(socket),
        Err(tokio_tungstenite::tungstenite::Error::Http(answer)) => Err(answer.status().as_u16()),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn without_authentication_one_address_leaves_sessions_to_others() {
    let server = Server::start_with(&[
        ("LIMITS_SESSIONS", "8"),
        ("SERVER_TRUSTED_PROXIES", "127.0.0.1"),
    ]);
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(open_from(&server, None, Some("192.0.2.1")).await.unwrap());
    }
    let refused = open_from(&server, None, Some("192.0.2.1")).await;
    assert_eq!(refused.unwrap_err(), 429);
    held.push(open_from(&server, None, Some("192.0.2.2")).await.unwrap());
    // Whoever is on this machine may have the last.
    held.push(open(&server, None).await.unwrap());
}

#[tokio::test]
async fn however_many_sessions_strangers_open_a_tenant_finds_a_place() {
    let server = server(&[("LIMITS_SESSIONS", "12")]);
    let mut strangers = Vec::new();
    let refused = loop {
        match open(&server, None).await {
            Ok(socket) => strangers.push(socket),
            Err(status) => break status,
        }
    };
    assert_eq!(refused, 429);
    assert!((3..=9).contains(&strangers.len()), "{}", strangers.len());
    let _innocent = open(&server, Some(A)).await.unwrap();
    // What strangers have given back they may have again.
    drop(strangers);
    eventually_open(&server).await;
}

async fn eventually_open(server: &Server) {
    let open = async {
        while open(server, None).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, open).await.unwrap();
}

fn speech(text: &str) -> Value {
    json!({
        "text": text,
        "tts_config": {"provider": "local", "model": "", "connection_timeout": 60},
    })
}

#[tokio::test]
async fn long_texts_of_one_tenant_do_not_stand_before_anothers_word() {
    const LONG: usize = 24;
    let server = server(&[
        ("LIMITS_SYNTHESES_PER_PROVIDER", "2"),
        ("CACHE_ENABLED", "false"),
    ]);
    let server = &server;
    let long = "One of the many words that somebody wants to hear. ".repeat(6);
    let mut greedy: FuturesUnordered<_> = (0..LONG)
        .map(|number| {
            let body = speech(&format!("{number} {long}"));
            async move {
                post(server, "/speak", A, &body)
                    .await
                    .bytes()
                    .await
                    .unwrap()
            }
        })
        .collect();
    // All of them were asked before.
    greedy.next().await.unwrap();
    let hello = speech("Hello.");
    let innocent = post(server, "/speak", B, &hello);
    tokio::pin!(innocent);
    let mut before = 1;
    let answer = loop {
        tokio::select! {
            answer = &mut innocent => break answer,
            Some(_) = greedy.next() => before += 1,
        }
    };
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(before < LONG / 2, "{before} of {LONG} came first");
}

const OF_A: &str = "+14155550101";
const OF_B: &str = "+14155550102";
/// How many calls there may be, and how many of them one tenant may have while there are no others.
const LINES: usize = 12;
const SHARE: usize = 9;

/// A telephone with two tenants, each of whom has a number, and few lines.
fn exchange() -> Exchange {
    let tenants = tenants();
    let numbers = json!({"a": [OF_A], "b": [OF_B]}).to_string();
    Exchange::with(&[
        ("AUTH_REQUIRED", "true"),
        ("AUTH_API_SECRET", NOBODY),
        ("AUTH_API_SECRETS_JSON", &tenants),
        ("SIP_TENANT_NUMBERS", &numbers),
        ("SIP_MAX_CALLS", &LINES.to_string()),
    ])
}

/// Places a call of a tenant's at a gateway.
async fn places(
    exchange: &Exchange,
    token: &str,
    from: &str,
    identity: &str,
    gateway: &str,
) -> (u16, Value) {
    let body = json!({
        "room_name": format!("room-of-{}", &token[..12]), "participant_name": "x", "participant_identity": identity,
        "from_phone_number": from, "to_phone_number": "+14155550199", "sip": {"outbound_address": gateway},
    });
    ask(
        &exchange.server,
        Method::POST,
        "/sip/call",
        Some(token),
        &body,
    )
    .await
}

/// A gateway that lets every call ring, and says nothing to CANCEL and BYE.
async fn rings_and_never_ends() -> String {
    let gateway = UdpSocket::bind(("127.0.0.1", 0)).await.unwrap();
    let address = gateway.local_addr().unwrap();
    tokio::spawn(async move {
        let mut bytes = [0; 8_192];
        while let Ok((length, from)) = gateway.recv_from(&mut bytes).await {
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            if !text.starts_with("INVITE ") {
                continue;
            }
            let of_the_call = text.lines().filter(|line| {
                let name = line.split(':').next().unwrap_or_default();
                ["Via", "From", "Call-ID", "CSeq"].contains(&name)
            });
            let headers: Vec<&str> = of_the_call.collect();
            let headers = headers.join("\r\n");
            let to = text.lines().find(|line| line.starts_with("To:")).unwrap();
            let ringing = format!(
                "SIP/2.0 180 Ringing\r\n{headers}\r\n{to};tag=g\r\nContact: <sip:g@{address}>\r\nContent-Length: 0\r\n\r\n"
            );
            let _sent = gateway.send_to(ringing.as_bytes(), from).await;
        }
    });
    address.to_string()
}

#[tokio::test]
async fn whoever_replaces_calls_that_never_end_has_no_more_lines_than_its_share() {
    let exchange = exchange();
    let gateway = rings_and_never_ends().await;
    for _ in 0..LINES {
        // Each takes the identity, and so the place in the room, of the one before.
        let (status, answer) = places(&exchange, B, OF_B, "one", &gateway).await;
        if status != 200 {
            let refused = (status, &answer["quota"]);
            assert_eq!(refused, (429, &json!("calls")), "{answer}");
            break;
        }
    }
    let (status, answer) = places(&exchange, A, OF_A, "one", &gateway).await;
    assert_eq!(status, 200, "{answer}");
}

/// The final answer to a call to a number.
async fn calls(exchange: &Exchange, number: &str, id: &str) -> u16 {
    let (socket, local) = socket(exchange).await;
    let message = invite(&local, id, SDP).replace("+14155550199", number);
    answer(&socket, &message, id).await
}

#[tokio::test]
async fn whoever_calls_one_tenants_number_without_end_leaves_lines_to_calls_of_others() {
    let exchange = exchange();
    let ids: Vec<String> = (0..LINES)
        .map(|number| format!("call{number}of-b"))
        .collect();
    let all = ids.iter().map(|id| calls(&exchange, OF_B, id));
    let answers = futures_util::future::join_all(all).await;
    let with = |status: u16| answers.iter().filter(|answer| **answer == status).count();
    assert_eq!(
        (with(200), with(503)),
        (SHARE, LINES - SHARE),
        "{answers:?}"
    );
    assert_eq!(calls(&exchange, OF_A, "of-a").await, 200);
    // Those of the operator may have the last.
    assert_eq!(calls(&exchange, "+14155550103", "of-nobody").await, 200);
}

#[tokio::test]
async fn nobody_shows_a_number_of_another_tenant_however_it_is_written() {
    let exchange = exchange();
    let gateway = rings_and_never_ends().await;
    for (number, from) in [
        OF_A,
        "14155550101",
        "0014155550101",
        "00 1 (415) 555-0101",
        "tel:+1-415-555-0101",
    ]
    .into_iter()
    .enumerate()
    {
        let identity = number.to_string();
        let (status, answer) = places(&exchange, B, from, &identity, &gateway).await;
        assert_eq!(
            (status, &answer["error"]),
            (400, &json!("INVALID_REQUEST")),
            "{from}"
        );
        let (status, answer) = places(&exchange, A, from, &identity, &gateway).await;
        assert_eq!(status, 200, "{from}: {answer}");
    }
}
