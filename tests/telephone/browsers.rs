//! Telephones in browsers, by SIP.js and JsSIP as they come: SIP over WebSocket, ICE, DTLS-SRTP.

use reqwest::Method;
use serde_json::{Value, json};
use tokio_tungstenite::connect_async;

use super::rig::{certificates, ports};
use super::{Exchange, PHONE, ROOM};
use crate::rooms::client::{Client, Kind};
use crate::rooms::{ask, join};

const PASSWORD: &str = "browser-phone-1";
/// Whom a telephone calls, and the room of that number.
const CALLED: &str = "+14155550199";
const LOBBY: &str = "call-+14155550199";

/// A server where bob and eve have telephones, and where it speaks SIP over WebSocket.
fn exchange(scheme: &str, more: &[(&str, &str)]) -> (Exchange, String) {
    let phones =
        json!([{"user": "bob", "password": PASSWORD}, {"user": "eve", "password": PASSWORD}]);
    let port = ports(2);
    let listen = format!("{scheme}:127.0.0.1:{port}");
    let phones = phones.to_string();
    let mut settings = vec![
        ("SIP_LISTEN", listen.as_str()),
        ("SIP_PHONES_JSON", &phones),
    ];
    settings.extend_from_slice(more);
    (
        Exchange::with(&settings),
        format!("{scheme}://127.0.0.1:{port}"),
    )
}

/// A browser's telephone, which says a tone.
async fn telephone(url: &str, library: &str, user: &str, password: &str) -> Client {
    let options = json!({
        "page": "../telephones/browser_phone.mjs", "library": library, "user": user, "password": password, "hertz": 880,
    });
    let mut telephone = Client::start(Kind::Browser, url, user, "", &options);
    telephone.connected().await;
    telephone.command(json!({"do": "register"})).await;
    telephone
}

/// Calls, is called, presses keys, is put on hold and hangs up, with sound both ways.
async fn it_is_a_telephone(library: &str) {
    let (exchange, url) = exchange("ws", &[]);
    let mut ann = join(&exchange.server, Kind::Python, LOBBY, "ann").await;
    ann.publish(440).await;
    let mut session = exchange.session(LOBBY).await;
    let mut bob = telephone(&url, library, "bob", PASSWORD).await;
    bob.wait("registered", &json!({})).await;

    bob.command(json!({"do": "call", "to": CALLED})).await;
    bob.wait("established", &json!({})).await;
    let active = |call: &Value| call["direction"] == "inbound" && call["status"] == "active";
    let call = exchange.until("an active inbound one", active).await;
    let identity = call["participant_identity"].as_str().unwrap().to_owned();
    ann.hears(&identity, 880).await;
    bob.hears("", 440).await;
    let path = bob.command(json!({"do": "path"})).await;
    assert_eq!(path["dtls"], "connected", "{path}");
    bob.command(json!({"do": "press", "digits": "5"})).await;
    assert_eq!(session.next("dtmf").await.text("digit"), "5");
    bob.command(json!({"do": "hold", "held": true})).await;
    bob.hears("", 0).await;
    bob.command(json!({"do": "hold", "held": false})).await;
    bob.hears("", 440).await;
    ann.hears(&identity, 880).await;
    bob.command(json!({"do": "hangUp"})).await;
    let id = call["sip_call_id"].as_str().unwrap();
    assert_eq!(exchange.ended(id).await, "remote");
    bob.wait("over", &json!({})).await;

    // It is called by its name.
    let mut carl = join(&exchange.server, Kind::Python, ROOM, "carl").await;
    carl.publish(600).await;
    let body = json!({
        "room_name": ROOM, "participant_name": "Bob", "participant_identity": PHONE,
        "from_phone_number": "100", "to_sip_uri": "sip:bob",
    });
    bob.mark();
    let (status, placed) = ask(&exchange.server, Method::POST, "/sip/call", None, &body).await;
    assert_eq!(status, 200, "{placed}");
    bob.next("incoming", &json!({"from": "100"})).await;
    bob.next("established", &json!({})).await;
    carl.hears(PHONE, 880).await;
    bob.hears("", 600).await;
    exchange.hang_up(ROOM, PHONE).await;
    bob.next("over", &json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_with_sip_js_is_a_telephone() {
    it_is_a_telephone("sip.js").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_with_jssip_is_a_telephone() {
    it_is_a_telephone("jssip").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_a_page_calls_that_knows_a_password_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let (_, certificate) = certificates(folder.path());
    let key = folder.path().join("key.pem").display().to_string();
    let certificate = certificate.display().to_string();
    let secured = [
        ("SIP_TLS_CERT", certificate.as_str()),
        ("SIP_TLS_KEY", &key),
    ];
    let (exchange, url) = exchange("wss", &secured);
    // The address may call, and the page has no password.
    let mut stranger = telephone(&url, "sip.js", "bob", "guessed-guessed").await;
    let refused = stranger.wait("refused", &json!({})).await;
    assert!(
        [401, 403].contains(&refused["status"].as_i64().unwrap()),
        "{refused}"
    );
    stranger.mark();
    stranger.command(json!({"do": "call", "to": CALLED})).await;
    stranger.next("refused", &json!({"status": 403})).await;
    let mut bob = telephone(&url, "sip.js", "bob", PASSWORD).await;
    bob.wait("registered", &json!({})).await;
    bob.command(json!({"do": "call", "to": CALLED})).await;
    bob.wait("established", &json!({})).await;
    let calls = exchange.calls().await;
    assert_eq!(calls.len(), 1, "{calls:?}");
    bob.command(json!({"do": "hangUp"})).await;
    bob.wait("over", &json!({})).await;
}

#[tokio::test]
async fn the_port_of_browsers_says_what_it_is_to_who_asks_for_something_else() {
    let (_exchange, url) = exchange("ws", &[]);
    let error = connect_async(&url).await.unwrap_err().to_string();
    assert!(error.contains("400"), "{error}");
}
