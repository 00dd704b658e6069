//! Sessions whose token ends while they run: against a real service that changes its mind, and by the time in the token.

use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::StreamExt;
use tokio_tungstenite::tungstenite::Message;

use super::matrix::{Socket, session};
use super::*;

/// Reads the next event, and the code of the close behind it.
async fn end(mut socket: Socket) -> (Value, u16) {
    let read = async {
        let mut event = Value::Null;
        loop {
            match socket.next().await.unwrap().unwrap() {
                Message::Text(text) => event = serde_json::from_str(&text).unwrap(),
                Message::Close(frame) => return (event, frame.unwrap().code.into()),
                _ => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap()
}

fn assert_unauthorized(event: &Value, part: &str) {
    let message = event["message"].as_str().unwrap();
    assert!(message.contains(part), "{event}");
    let fields = (&event["type"], &event["code"], &event["fatal"]);
    assert_eq!(
        fields,
        (&json!("error"), &json!("unauthorized"), &json!(true))
    );
}

#[actix_web::test]
async fn a_session_ends_when_the_service_revokes_its_token_and_not_when_the_service_is_away() {
    let file = KeyFile::new(&EC.pkcs8);
    let status = Arc::new(AtomicU16::new(200));
    let answers = Arc::clone(&status);
    let service = AuthService::start(move |_| {
        let status = answers.load(Ordering::SeqCst);
        Reply::Answer(status, r#"{"id": "a"}"#.to_owned())
    });
    let settings = [
        ("AUTH_SESSION_RECHECK_SECONDS", "0.05"),
        ("AUTH_CACHE_SECONDS", "3600"),
    ];
    let server = asking(&service, &file.path(), &settings);
    let socket = session(&server, Some("t"), "of-a").await;
    for kept in [200, 503, 500, 429, 200] {
        let asked = service.seen().len();
        status.store(kept, Ordering::SeqCst);
        eventually("the service was not asked again", || {
            service.seen().len() > asked + 2
        })
        .await;
    }
    status.store(401, Ordering::SeqCst);
    let (event, code) = end(socket).await;
    assert_unauthorized(&event, "not accepted any more");
    assert_eq!(code, 1008);
    let asked = service.seen();
    let questions: Vec<_> = asked.iter().map(|seen| &seen.claims["auth_data"]).collect();
    assert!(
        questions.iter().all(|question| *question == questions[0]),
        "{questions:#?}"
    );
}

#[actix_web::test]
async fn a_session_ends_when_its_token_becomes_somebody_elses() {
    let file = KeyFile::new(&EC.pkcs8);
    let first = AtomicBool::new(true);
    let service = AuthService::start(move |_| {
        let id = if first.swap(false, Ordering::SeqCst) {
            "a"
        } else {
            "b"
        };
        ok(&json!({ "id": id }).to_string())
    });
    let settings = [("AUTH_SESSION_RECHECK_SECONDS", "0.05")];
    let server = asking(&service, &file.path(), &settings);
    let (event, code) = end(session(&server, Some("t"), "of-a").await).await;
    assert_unauthorized(&event, "not accepted any more");
    assert_eq!(code, 1008);
}

#[actix_web::test]
async fn a_session_ends_at_the_time_that_stands_in_its_token() {
    let file = KeyFile::new(&EC.pkcs8);
    let service = AuthService::start(|_| ok(r#"{"id": "a"}"#));
    let settings = [("AUTH_SESSION_RECHECK_SECONDS", "0")];
    let server = asking(&service, &file.path(), &settings);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let token = |exp: f64| {
        let claims = URL_SAFE_NO_PAD.encode(json!({ "exp": exp }).to_string());
        format!("e30.{claims}.c2ln")
    };
    let expiry = now().as_secs_f64() + 1.0;
    let _over = session(&server, Some(&token(expiry - 3600.0)), "over").await;
    let _later = session(&server, Some(&token(expiry + 3600.0)), "later").await;
    let socket = session(&server, Some(&token(expiry)), "soon").await;
    let (event, code) = end(socket).await;
    assert!(now().as_secs_f64() >= expiry);
    assert_unauthorized(&event, "expired");
    assert_eq!(code, 1008);
    assert_eq!(
        service
            .seen()
            .iter()
            .filter(|seen| seen.claims["auth_data"]["request_path"] == "/ws")
            .count(),
        3,
        "nobody asked again"
    );
}
