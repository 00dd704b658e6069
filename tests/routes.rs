//! Routes that are there before what is behind them: validation first, then the specified answer.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Server, client};

async fn ask(server: &Server, method: &Method, path: &str, body: &Value) -> (u16, String, String) {
    let url = format!("{}{path}", server.url);
    let mut request = client().request(method.clone(), url);
    if !body.is_null() {
        request = request.json(body);
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let body: Value = response.json().await.unwrap_or_default();
    let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
    (status, text("error"), text("message"))
}

/// A request, its status, its code and what its message names.
type Case = (Method, &'static str, Value, u16, &'static str, &'static str);

fn with(of: &Value, field: &str, value: impl Into<Value>) -> Value {
    let mut of = of.clone();
    of[field] = value.into();
    of
}

#[rustfmt::skip]
fn rooms() -> Vec<Case> {
    let (get, post, delete) = (|| Method::GET, || Method::POST, || Method::DELETE);
    let room = json!({"room_name": "a", "participant_name": "b", "participant_identity": "c"});
    let mute = json!({"room_name": "a", "participant_identity": "b", "track_sid": "c", "muted": true});
    vec![
        (post(), "/rtc/token", with(&room, "room_name", " "), 400, "INVALID_REQUEST", "room_name"),
        (post(), "/rtc/token", json!({"room_name": "a"}), 400, "INVALID_REQUEST", "participant_name"),
        (post(), "/rtc/token", with(&room, "room_name", 7), 400, "INVALID_REQUEST", "room_name"),
        (get(), "/rtc/rooms/a", Value::Null, 404, "ROOM_NOT_FOUND", "room_name"),
        (delete(), "/rtc/participant", room, 404, "ROOM_NOT_FOUND", "room_name"),
        (delete(), "/rtc/participant", json!({"room_name": "a"}), 400, "INVALID_REQUEST", "participant_identity"),
        (post(), "/rtc/participant/mute", mute.clone(), 404, "ROOM_NOT_FOUND", "room_name"),
        (post(), "/rtc/participant/mute", with(&mute, "muted", Value::Null), 400, "INVALID_REQUEST", "muted"),
        (post(), "/rtc/participant/mute", with(&mute, "track_sid", ""), 400, "INVALID_REQUEST", "track_sid"),
        (post(), "/rtc/webhook", Value::Null, 401, "unauthorized", "Authorization"),
        (get(), "/recording/abc", Value::Null, 404, "RECORDING_NOT_FOUND", "stream_id"),
        (delete(), "/recording/abc", Value::Null, 404, "RECORDING_NOT_FOUND", "stream_id"),
        (get(), "/recordings?limit=0", Value::Null, 400, "INVALID_REQUEST", "limit"),
        (get(), "/recording/", Value::Null, 400, "INVALID_REQUEST", "stream_id"),
        (get(), "/recording/a%2Fb", Value::Null, 400, "INVALID_REQUEST", "stream_id"),
        (get(), "/recording/a..b", Value::Null, 400, "INVALID_REQUEST", "stream_id"),
        (get(), "/recording/abc/transcript", Value::Null, 404, "RECORDING_NOT_FOUND", "stream_id"),
        (get(), "/recording//transcript", Value::Null, 400, "INVALID_REQUEST", "stream_id"),
        (get(), "/recording/a/b/transcript", Value::Null, 400, "INVALID_REQUEST", "stream_id"),
        (get(), "/recording/a..b/transcript", Value::Null, 400, "INVALID_REQUEST", "stream_id"),
    ]
}

#[rustfmt::skip]
fn telephone() -> Vec<Case> {
    let (post, delete) = (|| Method::POST, || Method::DELETE);
    let call = json!({"room_name": "a", "participant_name": "b", "participant_identity": "c",
        "from_phone_number": "+12125550100", "to_phone_number": "tel:+1 (212) 555-0101"});
    let transfer = json!({"room_name": "nowhere", "participant_identity": "b", "transfer_to": "1000"});
    let through = |address: &str| with(&call, "sip", json!({"outbound_address": address}));
    let hook = |host: &str| json!({"host": host, "url": "https://x.example/"});
    vec![
        (post(), "/sip/call", call.clone(), 500, "OUTBOUND_ADDRESS_NOT_CONFIGURED", ""),
        (post(), "/sip/call", through("sip.example.org:5060"), 500, "CALL_FAILED", ""),
        (post(), "/sip/call", through("a b"), 400, "INVALID_REQUEST", "sip.outbound_address"),
        (post(), "/sip/call", with(&call, "to_phone_number", "nobody"), 400, "INVALID_PHONE_NUMBER", "to_phone_number"),
        (post(), "/sip/call", with(&call, "from_phone_number", ""), 400, "INVALID_REQUEST", "from_phone_number"),
        (post(), "/sip/call", with(&through("sip.example.org"), "to_phone_number", "112"), 400, "DESTINATION_NOT_ALLOWED", "to_phone_number"),
        (post(), "/sip/transfer", transfer.clone(), 404, "ROOM_NOT_FOUND", "room_name"),
        (post(), "/sip/transfer", with(&transfer, "transfer_to", "911"), 400, "DESTINATION_NOT_ALLOWED", "transfer_to"),
        (post(), "/sip/transfer", with(&transfer, "transfer_to", "+1"), 400, "INVALID_PHONE_NUMBER", "transfer_to"),
        (post(), "/sip/hooks", json!([hook("a.example"), hook("A.example")]), 400, "INVALID_REQUEST", "hooks[1].host"),
        (post(), "/sip/hooks", json!([{"host": 5}]), 400, "INVALID_REQUEST", "host"),
        (post(), "/sip/hooks", json!([]), 400, "INVALID_REQUEST", "hooks"),
        (post(), "/sip/hooks", json!("x"), 400, "INVALID_REQUEST", "array of hooks"),
        (delete(), "/sip/hooks", json!({"hosts": []}), 400, "INVALID_REQUEST", "hosts"),
    ]
}

#[tokio::test]
async fn what_is_not_there_yet_says_so_after_the_request_was_checked() {
    let server = Server::start();
    for (method, path, body, status, code, named) in rooms().into_iter().chain(telephone()) {
        let (got, error, message) = ask(&server, &method, path, &body).await;
        let what = format!("{method} {path} {body}: {message}");
        assert_eq!((got, error.as_str()), (status, code), "{what}");
        assert!(message.contains(named), "{what}");
    }
    let (status, ..) = ask(&server, &Method::GET, "/sip/hooks", &Value::Null).await;
    assert_eq!(status, 200);
}
