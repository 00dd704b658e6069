//! The doors: who gets in with what, against a running server and a real authentication service that verifies every
//! question with the public key.

mod authority;
mod ends;
pub mod keys;
mod matrix;
pub mod service;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::harness::*;
use keys::{EC, RSA, TestKey};
use service::{AuthService, Reply, Seen, ok};

/// Belongs to no tenant; 32 bytes and more, like the others.
pub const HOUSE: &str = "house-0123456789-0123456789-012345";
/// Of tenant `a`.
pub const OF_A: &str = "of-a-0123456789-0123456789-0123456";
pub const OF_B: &str = "of-b-0123456789-0123456789-0123456";

/// The secrets of the tenants `a` and `b`, as the server takes them.
pub fn tenants() -> String {
    json!([{"id": "a", "secret": OF_A}, {"id": "b", "secret": OF_B}]).to_string()
}

/// A server with these secrets.
pub fn with_secrets(more: &[(&str, &str)]) -> Server {
    let tenants = tenants();
    let mut environment = vec![
        ("AUTH_REQUIRED", "true"),
        ("AUTH_API_SECRET", HOUSE),
        ("AUTH_API_SECRETS_JSON", tenants.as_str()),
        ("NULL_ENABLED", "true"),
    ];
    environment.extend(more);
    Server::start_with(&environment)
}

/// A key file that can be exchanged.
pub struct KeyFile {
    folder: tempfile::TempDir,
}

impl KeyFile {
    /// A file with this key.
    pub fn new(pem: &str) -> Self {
        let file = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        file.put(pem);
        file
    }

    /// A file with an RSA key.
    pub fn of_rsa() -> Self {
        Self::new(&RSA.pkcs8)
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("key.pem")
    }

    /// Puts another file in its place, at once.
    fn put(&self, pem: &str) {
        let next = self.folder.path().join("next.pem");
        std::fs::write(&next, pem).unwrap();
        std::fs::rename(next, self.path()).unwrap();
    }
}

/// A server that asks this service.
pub fn asking(service: &AuthService, key: &Path, more: &[(&str, &str)]) -> Server {
    let (url, key) = (service.url(), key.display().to_string());
    let mut environment = vec![
        ("AUTH_REQUIRED", "true"),
        ("AUTH_SERVICE_URL", url.as_str()),
        ("AUTH_SIGNING_KEY_PATH", key.as_str()),
        ("NULL_ENABLED", "true"),
    ];
    environment.extend(more);
    Server::start_with(&environment)
}

/// `GET` with a token.
async fn get(server: &Server, path: &str, token: &str) -> Response {
    let request = client().get(format!("{}{path}", server.url));
    request.bearer_auth(token).send().await.unwrap()
}

/// A text said by the provider that needs nothing.
fn speech(text: &str) -> Value {
    json!({"text": text, "tts_config": {"provider": "null", "model": ""}})
}

async fn say(server: &Server, token: &str, body: &Value) -> Response {
    let request = client().post(format!("{}/speak", server.url));
    request.bearer_auth(token).json(body).send().await.unwrap()
}

async fn assert_unauthorized(response: Response, code: &str) {
    assert_eq!(response.headers()["www-authenticate"], "Bearer");
    assert_error(response, 401, code, "").await;
}

/// Every kind of answer, by the token that gets it; beside it, what becomes of the request.
#[allow(clippy::too_many_lines)] // a table
fn table() -> Vec<(&'static str, Reply, u16, &'static str)> {
    let answer = |status: u16, body: &str| Reply::Answer(status, body.to_owned());
    let head = |status: &str, more: &str| Reply::Raw(format!("HTTP/1.1 {status}\r\n{more}\r\n"));
    let long = format!("{{\"id\": \"{}\"}}", "x".repeat(64 << 10));
    let failed = "auth_service_error";
    vec![
        ("tenant", ok(r#"{"id": "a"}"#), 200, ""),
        ("no-id", ok("{}"), 200, ""),
        ("null-id", ok(r#"{"id": null}"#), 200, ""),
        ("empty", ok(""), 200, ""),
        ("no-json", ok("<p>Welcome</p>"), 200, ""),
        ("blank", ok(" \r\n"), 200, ""),
        ("no-object", ok(r#"["id"]"#), 502, failed),
        (
            "half-character",
            ok(r#"{"id": "a", "name": "\ud800"}"#),
            502,
            failed,
        ),
        (
            "too-large-number",
            ok(r#"{"id": "a", "x": 1e999}"#),
            502,
            failed,
        ),
        (
            "byte-order-mark",
            ok("\u{feff}{\"id\": \"a\"}"),
            502,
            failed,
        ),
        (
            "said-to-be-json",
            head(
                "200 OK",
                "content-type: application/json\r\ncontent-length: 2\r\n\r\nOK",
            ),
            502,
            failed,
        ),
        (
            "compressed",
            head(
                "200 OK",
                "content-encoding: gzip\r\ncontent-length: 2\r\n\r\nOK",
            ),
            502,
            failed,
        ),
        ("end-unmarked", head("200 OK", ""), 502, failed),
        (
            "chunked",
            Reply::Raw(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
                    .to_owned(),
            ),
            200,
            "",
        ),
        ("id-number", ok(r#"{"id": 7}"#), 502, failed),
        ("id-empty", ok(r#"{"id": ""}"#), 502, failed),
        ("id-object", ok(r#"{"id": {"id": "a"}}"#), 502, failed),
        ("oversized", ok(&long), 502, failed),
        (
            "endless",
            Reply::Stuck(format!("HTTP/1.1 200 OK\r\n\r\n{long}")),
            502,
            failed,
        ),
        ("no-content", head("204 No Content", ""), 502, failed),
        ("created", answer(201, r#"{"id": "a"}"#), 502, failed),
        (
            "moved",
            head("302 Found", "location: /check\r\ncontent-length: 0\r\n"),
            502,
            failed,
        ),
        (
            "moved-for-good",
            head(
                "308 Permanent Redirect",
                "location: /check\r\ncontent-length: 0\r\n",
            ),
            502,
            failed,
        ),
        ("unknown", answer(401, ""), 401, "unauthorized"),
        ("bad-request", answer(400, ""), 401, failed),
        ("forbidden", answer(403, ""), 401, failed),
        ("teapot", answer(418, ""), 401, failed),
        ("broken", answer(500, r#"{"id": "a"}"#), 502, failed),
        ("away", answer(503, ""), 502, failed),
        ("reset", Reply::Reset, 503, "auth_service_unavailable"),
        (
            "cut",
            head("200 OK", "content-length: 100\r\n"),
            503,
            "auth_service_unavailable",
        ),
        (
            "no-http",
            Reply::Raw("hello\r\n\r\n".to_owned()),
            503,
            "auth_service_unavailable",
        ),
    ]
}

fn by_the_table(seen: &Seen) -> Reply {
    let row = table()
        .into_iter()
        .find(|(token, ..)| *token == seen.token());
    row.unwrap().1
}

async fn every_answer_means_what_the_table_says(key: &TestKey) {
    let file = KeyFile::new(&key.pkcs8);
    let service = AuthService::start(by_the_table);
    let server = asking(&service, &file.path(), &[]);
    for (token, _, status, code) in table() {
        println!("{:5} {token:15} {status} {code}", key.name);
        let response = get(&server, "/sessions", token).await;
        match status {
            200 => assert_eq!(response.status(), 200, "{token}"),
            401 => assert_unauthorized(response, code).await,
            _ => assert_error(response, status, code, "").await,
        }
        let asked = service
            .seen()
            .into_iter()
            .filter(|seen| seen.token() == token);
        assert_eq!(
            asked.count(),
            1,
            "{token} was asked about once: no redirect was followed"
        );
    }
    assert_eq!(service.signed_with(key), table().len());
}

#[actix_web::test]
async fn every_answer_of_the_service_means_what_the_table_says_with_an_rsa_key() {
    every_answer_means_what_the_table_says(&RSA).await;
}

#[actix_web::test]
async fn every_answer_of_the_service_means_what_the_table_says_with_an_elliptic_key() {
    every_answer_means_what_the_table_says(&EC).await;
}

#[actix_web::test]
async fn a_service_that_does_not_answer_in_time_or_at_all_is_unavailable() {
    let file = KeyFile::new(&EC.pkcs8);
    let service = AuthService::start(|seen| match seen.token() {
        "silent" => Reply::Stuck(String::new()),
        "half" => Reply::Stuck("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_owned()),
        other => panic!("unexpected token {other}"),
    });
    let server = asking(&service, &file.path(), &[("AUTH_TIMEOUT_SECONDS", "0.3")]);
    for token in ["silent", "half"] {
        let response = get(&server, "/sessions", token).await;
        assert!(response.headers().contains_key("retry-after"));
        assert_error(response, 503, "auth_service_unavailable", "").await;
    }
    // Nobody listens there any more.
    drop(service);
    let response = get(&server, "/sessions", "silent").await;
    assert_error(response, 503, "auth_service_unavailable", "").await;
}

#[actix_web::test]
async fn a_key_that_cannot_sign_is_told_and_nobody_is_asked() {
    let file = KeyFile::new(&RSA.pkcs8);
    let service = AuthService::start(|_| ok(""));
    let server = asking(&service, &file.path(), &[]);
    file.put(&keys::unable());
    let response = get(&server, "/sessions", "t").await;
    assert_error(response, 500, "config_error", "").await;
    assert!(service.seen().is_empty());
    file.put(&RSA.pkcs8);
    assert_eq!(get(&server, "/sessions", "t").await.status(), 200);
}

#[actix_web::test]
async fn keys_may_have_their_traditional_forms() {
    for key in [&*RSA, &*EC] {
        let file = KeyFile::new(&key.traditional);
        let service = AuthService::start(|_| ok(""));
        let server = asking(&service, &file.path(), &[]);
        assert_eq!(get(&server, "/sessions", "t").await.status(), 200);
        assert_eq!(service.signed_with(key), 1);
    }
}

#[actix_web::test]
async fn the_service_is_told_what_is_asked_for_and_by_whom() {
    let file = KeyFile::new(&RSA.pkcs8);
    let service = AuthService::start(|_| ok(r#"{"id": "a"}"#));
    let server = asking(&service, &file.path(), &[]);
    let body = speech("Hello.");
    let response = client()
        .post(format!(
            "{}/speak?stream=true&api_key=the%20token",
            server.url
        ))
        .header("authorization", "Basic dTpw")
        .send()
        .await
        .unwrap();
    // A token with a space in it is none.
    assert_unauthorized(response, "invalid_auth_header").await;
    let response = client()
        .post(format!(
            "{}/speak?stream=true&api_key=a%2Btoken",
            server.url
        ))
        .header("authorization", "Basic dTpw")
        .header("cookie", "hidden")
        .header("x-forwarded-for", "hidden")
        .header("x-service-thing", "hidden")
        .header("x-real-ip", "hidden")
        .header("x-thing", "one")
        .header("x-thing", "two")
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert!(
        response.bytes().await.unwrap().len() > 1_000,
        "the handler got the body too"
    );
    let [seen] = service.seen().try_into().unwrap();
    let data = &seen.claims["auth_data"];
    let length = body.to_string().len().to_string();
    let headers = json!({
        "accept": "*/*", "content-length": length, "content-type": "application/json", "x-thing": "one, two",
    });
    assert_eq!(
        *data,
        json!({
            "token": "a+token", "request_body": body, "request_headers": headers,
            "request_path": "/speak", "request_method": "POST",
        })
    );
    assert_eq!(seen.claims.as_object().unwrap().len(), 4, "{}", seen.claims);
    let response = get(&server, "/voices?provider=null", "t").await;
    assert_eq!(response.status(), 200);
    let data = service.seen().pop().unwrap().claims["auth_data"].clone();
    assert_eq!(data["request_body"], json!({}));
    assert_eq!(
        (&data["request_path"], &data["request_method"]),
        (&json!("/voices"), &json!("GET"))
    );
}

#[actix_web::test]
async fn a_body_that_is_too_large_is_refused_before_anybody_is_asked_about_it() {
    let file = KeyFile::new(&EC.pkcs8);
    let service = AuthService::start(|_| ok(""));
    let server = asking(&service, &file.path(), &[]);
    let large = vec![b' '; (1 << 20) + 1];
    let chunks = large
        .chunks(1 << 16)
        .map(|chunk| Ok::<_, std::io::Error>(chunk.to_vec()));
    let chunks = futures_util::stream::iter(chunks.collect::<Vec<_>>());
    for body in [
        reqwest::Body::from(large.clone()),
        reqwest::Body::wrap_stream(chunks),
    ] {
        let request = client().post(format!("{}/speak", server.url));
        let request = request.header("content-type", "application/json");
        let response = request.bearer_auth("t").body(body).send().await.unwrap();
        assert_error(response, 413, "PAYLOAD_TOO_LARGE", "").await;
    }
    assert!(service.seen().is_empty());
    // What just fits is told and handed on.
    let body = json!({"text": "", "padding": "x".repeat((1 << 20) - 100)});
    assert_error(
        say(&server, "t", &body).await,
        400,
        "INVALID_REQUEST",
        "text",
    )
    .await;
    assert_eq!(service.seen()[0].claims["auth_data"]["request_body"], body);
}

#[actix_web::test]
async fn a_body_that_the_service_could_not_be_told_is_refused_before_it_is_asked() {
    let file = KeyFile::new(&EC.pkcs8);
    let service = AuthService::start(|_| ok(""));
    let server = asking(&service, &file.path(), &[]);
    let post = async |content_type: Option<&str>, body: &'static [u8]| {
        let request = client()
            .post(format!("{}/speak", server.url))
            .bearer_auth("t");
        let request = match content_type {
            Some(content_type) => request.header("content-type", content_type),
            None => request,
        };
        request.body(body).send().await.unwrap()
    };
    let json = Some("application/json");
    for body in [
        &b"{\"x\": \"\xff\", \"text\": \"a\"}"[..],
        b"text",
        b"{} {}",
    ] {
        assert_error(post(json, body).await, 400, "INVALID_REQUEST", "").await;
    }
    for content_type in [None, Some("text/plain")] {
        let refused = post(content_type, b"{}").await;
        assert_error(refused, 415, "UNSUPPORTED_MEDIA_TYPE", "").await;
    }
    assert!(service.seen().is_empty());
}

#[actix_web::test]
async fn the_service_is_told_the_path_that_routes_were_found_by() {
    let file = KeyFile::new(&EC.pkcs8);
    let service = AuthService::start(|_| ok(""));
    let server = asking(&service, &file.path(), &[]);
    assert_eq!(get(&server, "/%73essi%6Fns", "t").await.status(), 200);
    let told = &service.seen()[0].claims["auth_data"]["request_path"];
    assert_eq!(*told, json!("/sessions"));
}

#[actix_web::test]
async fn the_body_of_a_get_is_not_waited_for() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let file = KeyFile::new(&EC.pkcs8);
    let service = AuthService::start(|_| Reply::Answer(401, String::new()));
    let server = asking(&service, &file.path(), &[]);
    let address = server.url.strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = "GET /sessions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer t\r\ncontent-length: 1000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    // Sooner than the 30 s that a body may take.
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_exact(&mut answer));
    read.await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 401");
}

#[actix_web::test]
async fn secrets_are_looked_at_first_and_the_service_is_asked_about_the_rest() {
    let file = KeyFile::new(&EC.pkcs8);
    let service = AuthService::start(|seen| match seen.token() {
        "of-the-service" => ok(""),
        _ => Reply::Answer(401, String::new()),
    });
    let tenants = tenants();
    let secrets = [
        ("AUTH_API_SECRET", HOUSE),
        ("AUTH_API_SECRETS_JSON", tenants.as_str()),
    ];
    let server = asking(&service, &file.path(), &secrets);
    for token in [HOUSE, OF_A] {
        assert_eq!(get(&server, "/sessions", token).await.status(), 200);
    }
    assert!(service.seen().is_empty(), "a secret went to the service");
    assert_eq!(
        get(&server, "/sessions", "of-the-service").await.status(),
        200
    );
    assert_unauthorized(get(&server, "/sessions", &HOUSE[1..]).await, "unauthorized").await;
    assert_eq!(service.seen().len(), 2);
}

#[actix_web::test]
async fn good_answers_are_kept_for_the_same_question_only() {
    let file = KeyFile::new(&EC.pkcs8);
    let service = AuthService::start(|seen| match seen.token() {
        "a" | "b" => ok(&json!({"id": seen.token()}).to_string()),
        "away" => Reply::Answer(503, String::new()),
        _ => Reply::Answer(401, String::new()),
    });
    let server = asking(&service, &file.path(), &[("AUTH_CACHE_SECONDS", "3600")]);
    let (hello, bye) = (speech("Hello."), speech("Good bye."));
    for (body, token, questions) in [
        (&hello, "a", 1),
        (&hello, "a", 1),
        (&bye, "a", 2),
        (&hello, "b", 3),
        (&bye, "a", 3),
    ] {
        assert_eq!(say(&server, token, body).await.status(), 200);
        assert_eq!(service.seen().len(), questions);
    }
    for (path, questions) in [
        ("/voices?provider=null", 4),
        ("/sessions", 5),
        ("/sessions", 5),
    ] {
        assert_eq!(get(&server, path, "a").await.status(), 200);
        assert_eq!(service.seen().len(), questions, "{path}");
    }
    for (token, status) in [("x", 401), ("x", 401), ("away", 502), ("away", 502)] {
        assert_eq!(get(&server, "/sessions", token).await.status(), status);
    }
    assert_eq!(service.seen().len(), 9, "bad answers are not kept");
}

#[actix_web::test]
async fn who_is_refused_is_counted_at_the_door_where_it_happened() {
    let server = with_secrets(&[]);
    assert_unauthorized(get(&server, "/sessions", "wrong").await, "unauthorized").await;
    let page = get(&server, "/metrics", HOUSE).await.text().await.unwrap();
    let expected = r#"vivavoce_http_requests_total{method="GET",route="/sessions",status="401"} 1"#;
    assert!(page.contains(expected), "{expected} is missing in\n{page}");
}

#[actix_web::test]
async fn where_a_tenant_is_required_a_token_without_one_is_refused() {
    let file = KeyFile::new(&EC.pkcs8);
    let service = AuthService::start(|seen| match seen.token() {
        "a" => ok(r#"{"id": "a"}"#),
        "nobody" => ok("{}"),
        _ => ok("OK"),
    });
    let server = asking(&service, &file.path(), &[("AUTH_REQUIRE_TENANT", "true")]);
    assert_eq!(get(&server, "/sessions", "a").await.status(), 200);
    for token in ["nobody", "text"] {
        assert_unauthorized(get(&server, "/sessions", token).await, "unauthorized").await;
    }
}

#[actix_web::test]
async fn a_key_that_is_exchanged_under_load_costs_no_request() {
    let file = KeyFile::new(&RSA.pkcs8);
    let service = AuthService::start(|_| ok(""));
    let server = asking(&service, &file.path(), &[]);
    let done = AtomicBool::new(false);
    let load = async {
        let client = client();
        let one = async || {
            let mut answers = 0;
            while !done.load(Ordering::SeqCst) {
                let request = client
                    .get(format!("{}/sessions", server.url))
                    .bearer_auth("t");
                let response = request.send().await.unwrap();
                assert_eq!(response.status(), 200, "{:?}", response.text().await);
                answers += 1;
            }
            answers
        };
        futures_util::future::join_all((0..4).map(|_| one()))
            .await
            .iter()
            .sum::<usize>()
    };
    let exchange = async {
        for key in [&*EC, &*RSA, &*EC] {
            let before = service.signed_with(key);
            file.put(&key.pkcs8);
            eventually("the new key was not used", || {
                service.signed_with(key) >= before + 20
            })
            .await;
        }
        done.store(true, Ordering::SeqCst);
    };
    let (answers, ()) = tokio::join!(load, exchange);
    assert_eq!(service.seen().len(), answers);
}

#[actix_web::test]
async fn a_key_that_is_spoilt_is_a_mistake_of_ours_until_it_is_repaired() {
    let file = KeyFile::new(&RSA.pkcs8);
    let service = AuthService::start(|_| ok(""));
    let server = asking(&service, &file.path(), &[("AUTH_API_SECRET", HOUSE)]);
    let spoilt: [&dyn Fn(); 3] = [
        &|| file.put("no key"),
        &|| file.put(&RSA.pkcs8.replace('A', "B")),
        &|| std::fs::remove_file(file.path()).unwrap(),
    ];
    for spoil in spoilt {
        assert_eq!(get(&server, "/sessions", "t").await.status(), 200);
        let asked = service.seen().len();
        spoil();
        let response = get(&server, "/sessions", "t").await;
        assert_error(response, 500, "config_error", "").await;
        assert_eq!(service.seen().len(), asked);
        assert_eq!(get(&server, "/sessions", HOUSE).await.status(), 200);
        file.put(&EC.pkcs8);
    }
    assert_eq!(get(&server, "/sessions", "t").await.status(), 200);
    assert!(service.signed_with(&EC) >= 1);
}

#[tokio::test]
async fn a_service_that_is_away_fills_no_log_whoever_asks() {
    let file = KeyFile::new(&EC.pkcs8);
    let key = file.path().display().to_string();
    let mut server = Server::start_logged(&[
        ("AUTH_REQUIRED", "true"),
        ("AUTH_SERVICE_URL", "http://127.0.0.1:9/"),
        ("AUTH_SIGNING_KEY_PATH", &key),
    ]);
    let begun = std::time::Instant::now();
    for n in 0..200 {
        let response = get(&server, "/sessions", &format!("guess-{n}")).await;
        assert_eq!(response.status(), 503);
    }
    let most = 1 + begun.elapsed().as_secs() / 10;
    let log = server.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("cannot be reached"));
    let lines = lines.count() as u64;
    assert!((1..=most).contains(&lines), "{lines} lines");
}

#[test]
fn settings_that_do_not_fit_stop_the_start_and_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let [no_key, small] = ["no.pem", "small.pem"].map(|name| folder.path().join(name));
    std::fs::write(
        &small,
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    )
    .unwrap();
    let foreign = folder.path().join("foreign.pem");
    std::fs::write(&foreign, keys::unable()).unwrap();
    let [no_key, small, foreign] = [no_key, small, foreign].map(|path| path.display().to_string());
    let on = ("AUTH_REQUIRED", "true");
    let url = ("AUTH_SERVICE_URL", "http://127.0.0.1:9/");
    let twice = r#"[{"id":"a","secret":"marker-1"},{"id":"a","secret":"marker-2"}]"#;
    let cases: [(&[(&str, &str)], &str); 12] = [
        (&[on], "auth.required"),
        (&[("AUTH_REQUIRED", "ture")], "auth.required"),
        (&[on, url], "auth.signing_key_path"),
        (&[on, ("AUTH_SIGNING_KEY_PATH", &small)], "auth.service_url"),
        (
            &[on, url, ("AUTH_SIGNING_KEY_PATH", &no_key)],
            "auth.signing_key_path",
        ),
        (
            &[on, url, ("AUTH_SIGNING_KEY_PATH", &small)],
            "auth.signing_key_path",
        ),
        (
            &[on, url, ("AUTH_SIGNING_KEY_PATH", &foreign)],
            "auth.signing_key_path",
        ),
        (&[on, ("AUTH_SERVICE_URL", "ftp://x/")], "auth.service_url"),
        (
            &[on, ("AUTH_API_SECRETS_JSON", r#"{"a":"marker"}"#)],
            "auth.api_secrets_json",
        ),
        (
            &[on, ("AUTH_API_SECRETS_JSON", twice)],
            "auth.api_secrets_json",
        ),
        (&[on, ("AUTH_API_SECRET", "mar ker")], "auth.api_secret"),
        (
            &[("AUTH_SOCKET", "pubic"), ("AUTH_TIMEOUT_SECONDS", "0")],
            "auth.socket",
        ),
    ];
    for (environment, key) in cases {
        for command in ["serve", "check"] {
            let output = Command::new(VIVAVOCE)
                .arg(command)
                .envs(environment.iter().copied())
                .env("PORT", "0")
                .current_dir(folder.path())
                .output()
                .unwrap();
            let said = stderr(&output);
            assert!(!output.status.success(), "{command} {environment:?}");
            assert!(said.contains(key), "{command} {environment:?}: {said}");
            let shown = ["marker", "mar ker"].iter().any(|part| said.contains(part));
            assert!(!shown, "{said}");
        }
    }
}

#[actix_web::test]
async fn speech_that_was_made_for_one_tenant_is_not_given_to_another() {
    let server = with_secrets(&[]);
    for (token, cache) in [
        (OF_A, "miss"),
        (OF_A, "hit"),
        (OF_B, "miss"),
        (HOUSE, "miss"),
    ] {
        let response = say(&server, token, &speech("Hello.")).await;
        assert_eq!(response.headers()["x-cache"], cache);
        response.bytes().await.unwrap();
    }
}

#[actix_web::test]
async fn no_token_secret_or_question_is_in_a_log_line_or_an_answer() {
    let secret = format!("{HOUSE}-marker");
    let tenants = json!([{"id": "a", "secret": format!("{OF_A}-marker")}]).to_string();
    let file = KeyFile::new(&RSA.pkcs8);
    let service = AuthService::start(|seen| {
        let token = seen.token().trim_end_matches("-marker");
        let row = table().into_iter().find(|(name, ..)| *name == token);
        row.map_or(Reply::Answer(401, String::new()), |(_, reply, ..)| reply)
    });
    let (url, key) = (service.url(), file.path().display().to_string());
    let environment = [
        ("AUTH_REQUIRED", "true"),
        ("AUTH_API_SECRET", secret.as_str()),
        ("AUTH_API_SECRETS_JSON", tenants.as_str()),
        ("AUTH_SERVICE_URL", url.as_str()),
        ("AUTH_SIGNING_KEY_PATH", key.as_str()),
        ("AUTH_CACHE_SECONDS", "60"),
        ("LOG_LEVEL", "trace"),
    ];
    let log = tempfile::NamedTempFile::new().unwrap();
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start_logging(data, &environment, log.reopen().unwrap());
    let mut said = String::new();
    let names = table().into_iter().map(|(name, ..)| name);
    for token in names
        .chain([HOUSE, OF_A, "x"])
        .map(|name| format!("{name}-marker"))
    {
        said += &get(&server, "/sessions", &token)
            .await
            .text()
            .await
            .unwrap();
        said += &get(&server, &format!("/sessions?api_key={token}"), "two marker")
            .await
            .text()
            .await
            .unwrap();
        said += &get(&server, "/ws", &token).await.text().await.unwrap();
    }
    file.put("marker");
    said += &get(&server, "/voices", "y-marker")
        .await
        .text()
        .await
        .unwrap();
    server.terminate();
    server.ended();
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert!(
        log.contains("authentication service") && log.contains("auth.signing_key_path"),
        "{log}"
    );
    // A question begins with the encoded header of its token.
    for text in [&log, &said] {
        assert!(
            !text.contains("marker") && !text.contains("eyJ") && !text.contains("BEGIN"),
            "{text}"
        );
    }
}
