//! Embedded rooms: unmodified LiveKit clients in the embedded room server, and the server's own routes.

pub mod agent;
mod api;
pub mod api_clients;
mod behaviours;
pub mod client;
mod doors;
mod egress;
mod egress_api;
pub mod events;
mod firewall;
mod forwarded;
mod livekit;
mod matrix;
mod moving;
mod namespaces;
pub mod network;
mod proxy;
mod resilience;
pub mod rest;
pub mod signal;
mod video;
mod warm_transfer;
mod whip;
pub mod workers;

use reqwest::Method;
use serde_json::{Value, json};

use self::client::{Client, Kind};
use self::proxy::Proxy;
use crate::harness::{Server, client};

/// The key pair of [`keyed_server`].
pub const KEY: &str = "key";
/// See [`KEY`].
pub const SECRET: &str = "a secret of at least thirty-two bytes";

/// Both as settings.
pub const KEYS: [(&str, &str); 2] = [("RTC_API_KEY", KEY), ("RTC_API_SECRET", SECRET)];

/// A server whose media come in at a port of its own.
pub fn server() -> Server {
    server_with(&[])
}

/// The same with a key pair that the tests have too.
pub fn keyed_server() -> Server {
    server_with(&KEYS)
}

/// A token of that key pair, valid for so many seconds, with these grants and what else it shall say.
pub fn token(seconds: i64, grants: &Value, more: &Value) -> String {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let now = i64::try_from(now).unwrap();
    let mut claims = json!({"iss": KEY, "nbf": now - 600, "exp": now + seconds, "video": grants});
    for (name, value) in more.as_object().unwrap() {
        claims[name] = value.clone();
    }
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET.as_bytes());
    jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap()
}

/// Calls the server API of rooms with these grants, in JSON.
pub async fn call(server: &Server, method: &str, grants: &Value, body: &Value) -> (u16, Value) {
    let path = format!("/twirp/livekit.RoomService/{method}");
    let token = token(600, grants, &json!({}));
    ask(server, Method::POST, &path, Some(&token), body).await
}

/// A server whose rooms are kept by the one at this address, as by a LiveKit deployment with that key pair.
pub fn server_elsewhere(url: &str, environment: &[(&str, &str)]) -> Server {
    server_elsewhere_over(tempfile::tempdir().unwrap(), url, environment)
}

/// The same over a data folder that may hold something already.
pub fn server_elsewhere_over(
    data: tempfile::TempDir,
    url: &str,
    environment: &[(&str, &str)],
) -> Server {
    let mut settings = vec![
        ("RTC_MODE", "livekit"),
        ("RTC_URL", url),
        ("RTC_API_KEY", KEY),
        ("RTC_API_SECRET", SECRET),
    ];
    settings.extend_from_slice(environment);
    Server::start_in(data, &settings)
}

/// A server of [`server`] with further settings.
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

/// The same through a proxy, with options.
pub async fn join_by(
    proxy: &Proxy,
    server: &Server,
    kind: Kind,
    room: &str,
    identity: &str,
    options: &Value,
) -> Client {
    let (_, token) = admission(server, room, identity).await;
    let mut client = Client::start(kind, &proxy.url, identity, &token, options);
    client.connected().await;
    client
}
