//! `/inspect`: what it shows of sessions, and to whom; tokens that look at things and change nothing.

use futures_util::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::auth::{HOUSE, OF_A, OF_B, with_secrets};
use crate::harness::*;
use crate::openapi;
use crate::session::client::Session;

/// Sees what the operator sees.
pub const READS: &str = "reads-0123456789-0123456789-012345";
/// Sees what tenant `a` sees.
const READS_A: &str = "reads-a-0123456789-0123456789-0123";

/// A session of this name, of whoever has the token.
pub async fn opened(server: &Server, token: &str, stream_id: &str) -> Session {
    let mut session = Session::connect_as(server, Some(token)).await;
    let config = json!({
        "type": "config", "stream_id": stream_id,
        "stt_config": {"provider": "null", "auth": {}}, "tts_config": {"provider": "null", "model": ""},
    });
    session.send(config).await;
    session.next("ready").await;
    session
}

fn with_readers(more: &[(&str, &str)]) -> Server {
    let tenants = json!([
        {"id": "a", "secret": OF_A}, {"id": "b", "secret": OF_B},
        {"id": "a", "secret": READS_A, "read_only": true},
    ]);
    let tenants = tenants.to_string();
    let mut environment = vec![
        ("AUTH_READ_SECRET", READS),
        ("AUTH_API_SECRETS_JSON", tenants.as_str()),
    ];
    environment.extend(more);
    with_secrets(&environment)
}

async fn get(server: &Server, token: &str, path: &str) -> reqwest::Response {
    let request = client().get(format!("{}{path}", server.url));
    request.bearer_auth(token).send().await.unwrap()
}

async fn seen(server: &Server, token: &str, path: &str) -> Value {
    let answer = get(server, token, path).await;
    assert_eq!(answer.status(), StatusCode::OK, "{path}");
    answer.json().await.unwrap()
}

fn names(list: &Value) -> Vec<&str> {
    let list = list["sessions"].as_array().unwrap().iter();
    list.map(|one| one["stream_id"].as_str().unwrap()).collect()
}

#[actix_web::test]
async fn a_token_that_reads_gets_what_the_other_gets_and_changes_nothing() {
    let server = with_readers(&[("LOG_LEVEL", "warn")]);
    let _session = opened(&server, OF_A, "of-a").await;
    let api = openapi::described(&server, "/openapi.json").await;
    let (mut read, mut refused) = (0, 0);
    for (path, method, operation) in openapi::operations(&api) {
        if operation.get("security").is_none() {
            continue;
        }
        let url = openapi::example_url(&server, &path, &operation);
        for (full, reads) in [(HOUSE, READS), (OF_A, READS_A)] {
            let ask = async |token: &str| {
                let request = client().request(method.clone(), url.clone());
                let request = match operation.pointer("/requestBody/content/application~1json") {
                    Some(content) => {
                        let examples = content["examples"].as_object().unwrap();
                        request.json(&examples.values().next().unwrap()["value"])
                    }
                    None => request,
                };
                request.bearer_auth(token).send().await.unwrap()
            };
            let answer = ask(reads).await;
            if method == Method::GET && path != "/ws" || method == Method::HEAD {
                assert_eq!(answer.status(), ask(full).await.status(), "{method} {path}");
                read += 1;
            } else {
                assert_error(answer, 403, "READ_ONLY", "not change").await;
                refused += 1;
            }
        }
    }
    assert!(read > 40 && refused > 20, "{read} {refused}");
    // What was refused has not happened.
    assert_eq!(names(&seen(&server, READS, "/sessions").await), ["of-a"]);
    // Beside the document: other doors of sessions.
    for path in ["/v1/realtime?model=null", "/ws"] {
        let request = client().get(format!("{}{path}", server.url));
        let request = request
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        let answer = request.bearer_auth(READS).send().await.unwrap();
        assert_eq!(answer.status(), 403, "{path}");
    }
    let caller = seen(&server, READS_A, "/inspect/caller").await;
    assert_eq!(caller["role"], "tenant");
    assert_eq!(
        (&caller["tenant"], &caller["read_only"]),
        (&json!("a"), &json!(true))
    );
}

#[actix_web::test]
async fn a_tenant_watches_its_own_sessions_and_nobody_elses() {
    let server = with_readers(&[]);
    let mut of_a = opened(&server, OF_A, "of-a").await;
    let of_b = opened(&server, OF_B, "of-b").await;
    of_a.speak("one", "A secret of tenant a.").await;
    of_a.completion_of("one").await;
    let all = seen(&server, READS, "/inspect/sessions").await;
    assert_eq!(names(&all), ["of-a", "of-b"]);
    for token in [OF_A, READS_A] {
        assert_eq!(
            names(&seen(&server, token, "/inspect/sessions").await),
            ["of-a"]
        );
    }
    let id = all["sessions"][0]["id"].as_u64().unwrap();
    let timeline = format!("/inspect/sessions/{id}");
    let told = seen(&server, OF_A, &timeline).await;
    assert!(told.to_string().contains("A secret of tenant a."), "{told}");
    let log = format!("/inspect/log?session={id}");
    for path in [&timeline, &log] {
        assert_error(get(&server, OF_B, path).await, 404, "NOT_FOUND", "id").await;
        assert_eq!(get(&server, READS_A, path).await.status(), 200);
    }
    for path in ["/inspect/settings", "/inspect/vendors", "/inspect/log"] {
        assert_error(get(&server, OF_A, path).await, 403, "OPERATOR_ONLY", "").await;
    }
    // No secret is told, neither of the settings nor of anybody's config.
    let settings = get(&server, READS, "/inspect/settings")
        .await
        .text()
        .await
        .unwrap();
    for secret in [HOUSE, OF_A, READS, READS_A] {
        assert!(!settings.contains(secret));
    }
    assert!(
        settings.contains("\"auth.read_secret\",\"env\":\"AUTH_READ_SECRET\",\"value\":\"***\"")
    );
    // Only what is new is told again.
    let version = told["version"].as_u64().unwrap();
    let news = seen(&server, OF_A, &format!("{timeline}?version={version}")).await;
    assert_eq!(news["entries"], json!([]));
    of_b.close().await;
}

#[actix_web::test]
async fn the_live_list_is_whole_first_and_then_tells_what_has_changed() {
    let server = with_readers(&[]);
    let _before = opened(&server, OF_A, "before").await;
    let mut streams = Vec::new();
    for token in [READS, OF_A, OF_B] {
        let request = client().get(format!("{}/inspect/sessions", server.url));
        let request = request.header("accept", "text/event-stream");
        let answer = request.bearer_auth(token).send().await.unwrap();
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        streams.push(answer.bytes_stream());
    }
    let [operator, a, b] = &mut streams[..] else {
        unreachable!()
    };
    for (stream, sees) in [(&mut *operator, true), (a, true), (&mut *b, false)] {
        let whole = stream.next().await.unwrap().unwrap();
        let whole = String::from_utf8(whole.to_vec()).unwrap();
        assert!(whole.starts_with("event: sessions\ndata: {"), "{whole}");
        assert_eq!(whole.contains("\"before\""), sees, "{whole}");
    }
    let of_b = opened(&server, OF_B, "later").await;
    for stream in [operator, b] {
        let until = async {
            let mut all = String::new();
            while !all.contains("\"later\"") {
                let news = stream.next().await.unwrap().unwrap();
                all.push_str(std::str::from_utf8(&news).unwrap());
            }
            all
        };
        let news = tokio::time::timeout(PATIENCE, until).await.unwrap();
        assert!(news.contains("event: changed"), "{news}");
    }
    of_b.close().await;
}
