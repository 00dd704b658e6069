//! Rooms in the box: unmodified LiveKit clients in the embedded room server, and the server's own paths beside them.

mod api;
pub mod client;
mod events;
mod matrix;
mod rest;

use reqwest::Method;
use serde_json::{Value, json};

use self::client::{Client, Kind};
use crate::harness::{Server, client};

/// A server whose media come in at a port of its own.
pub fn server() -> Server {
    server_with(&[])
}

/// The same with further settings.
pub fn server_with(environment: &[(&str, &str)]) -> Server {
    let mut settings = vec![("RTC_MODE", "embedded"), ("RTC_UDP_PORT", "0")];
    settings.extend_from_slice(environment);
    Server::start_with(&settings)
}

/// Asks a path with a JSON body as somebody with this token; gives the status and the answer.
pub async fn ask(
    server: &Server,
    method: Method,
    path: &str,
    token: Option<&str>,
    body: &Value,
) -> (u16, Value) {
    let mut request = client().request(method, format!("{}{path}", server.url));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    if !body.is_null() {
        request = request.json(body);
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap_or_default())
}

/// A token for a room and where to use it, from `POST /rtc/token`.
pub async fn admission(server: &Server, room: &str, identity: &str) -> (String, String) {
    let body =
        json!({"room_name": room, "participant_name": identity, "participant_identity": identity});
    let (status, answer) = ask(server, Method::POST, "/rtc/token", None, &body).await;
    assert_eq!(status, 200, "{answer}");
    let text = |field: &str| answer[field].as_str().unwrap().to_owned();
    (text("rtc_url"), text("token"))
}

/// Somebody who is in a room.
pub async fn join(server: &Server, kind: Kind, room: &str, identity: &str) -> Client {
    let (url, token) = admission(server, room, identity).await;
    let mut client = Client::start(kind, &url, identity, &token, &json!({}));
    client.connected().await;
    client
}
