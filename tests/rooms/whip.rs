//! WHIP and WHEP: browsers without an SDK and Python's WebRTC publish into rooms and hear them, beside LiveKit's clients.

use std::time::Duration;

use reqwest::header::{ALLOW, CONTENT_TYPE, LOCATION};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::client::{Client, Kind};
use super::{admission, join, keyed_server, token};
use crate::harness::*;

/// A page without an SDK.
async fn page(server: &Server, room: &str, identity: &str, mut options: Value) -> Client {
    options["page"] = "whip_page.mjs".into();
    let (_, token) = admission(server, room, identity).await;
    let mut page = Client::start(Kind::Browser, &server.url, identity, &token, &options);
    page.connected().await;
    page
}

/// How many are in a room.
async fn members(server: &Server, room: &str) -> Vec<String> {
    let (status, answer) = super::ask(
        server,
        Method::GET,
        &format!("/rtc/rooms/{room}"),
        None,
        &Value::Null,
    )
    .await;
    if status != 200 {
        return Vec::new();
    }
    let members = answer["participants"].as_array().unwrap().iter();
    members
        .map(|member| member["identity"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[actix_web::test]
async fn a_browser_without_an_sdk_publishes_by_whip_and_hears_one_or_all_by_whep() {
    let server = keyed_server();
    let mut ann = join(&server, Kind::Python, "kitchen", "ann").await;
    ann.publish(440).await;
    let mut caster = page(&server, "kitchen", "caster", json!({"hertz": 1_000})).await;
    ann.hears("caster", 1_000).await;
    let one = json!({"listen": "/whep?participant=caster"});
    let mut of_one = page(&server, "kitchen", "one", one).await;
    of_one.hears("caster", 1_000).await;
    let all = json!({"listen": "/whep", "tones": [440, 1_000, 3_000]});
    let mut of_all = page(&server, "kitchen", "all", all).await;
    // Both tones at once, in one track.
    let hears_both = |levels: &[Value]| {
        let [low, high, other] = [0, 1, 2].map(|at| levels[at].as_f64().unwrap_or(-200.0));
        low > other + 30.0 && high > other + 30.0
    };
    let mut heard = Value::Null;
    for attempt in 0.. {
        heard = of_all.command(json!({"do": "measure"})).await;
        if heard["levels"]
            .as_array()
            .is_some_and(|levels| hears_both(levels))
        {
            break;
        }
        assert!(attempt < 200, "{heard}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("the mix has {heard}");
    // Who mixes is not seen.
    let mut there = members(&server, "kitchen").await;
    there.sort_unstable();
    assert_eq!(there, ["all", "ann", "caster", "one"]);
    // Somebody comes later, and is heard in the section that there is.
    let two = json!({"listen": "/whep?participant=late"});
    let mut of_late = page(&server, "kitchen", "two", two).await;
    let mut late = join(&server, Kind::Python, "kitchen", "late").await;
    late.publish(660).await;
    of_late.hears("late", 660).await;
    let patched = caster.command(json!({"do": "patch"})).await;
    assert_eq!(patched["status"], 405);
    let left = caster.command(json!({"do": "leave"})).await;
    assert_eq!(left["status"], 200);
    ann.wait("participant_disconnected", &json!({"identity": "caster"}))
        .await;
}

#[actix_web::test]
async fn pythons_own_webrtc_publishes_by_whip_and_hears_the_mix_by_whep() {
    let server = keyed_server();
    let begin = async |identity: &str, options: Value| {
        let (_, token) = admission(&server, "kitchen", identity).await;
        let arguments = [server.url.as_str(), &token, &options.to_string()];
        let mut client = Client::run("whip_aiortc.py", Kind::Python, identity, arguments);
        client.connected().await;
        client
    };
    let caster = begin("caster", json!({"hertz": 1_000})).await;
    let mut player = begin("player", json!({"listen": "/whep"})).await;
    player.hears("caster", 1_000).await;
    caster.leave().await;
    player.hears("caster", 0).await;
    // A player that is killed is gone once its connection is.
    player.leave().await;
    assert!(members(&server, "kitchen").await.is_empty());
}

#[tokio::test]
async fn offers_that_come_without_a_grant_or_are_none_are_refused_in_words() {
    let server = keyed_server();
    let offer = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0\r\n\
         m=audio 9 UDP/TLS/RTP/SAVPF 111\r\nc=IN IP4 0.0.0.0\r\na=rtcp-mux\r\na=mid:0\r\n\
         a=ice-ufrag:abcd\r\na=ice-pwd:abcdefghijklmnopqrstuvwx\r\n\
         a=fingerprint:sha-256 00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF:00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF\r\n\
         a=setup:actpass\r\na=sendonly\r\na=rtpmap:111 opus/48000/2\r\n";
    let grants = |more: Value| {
        let mut grants = json!({"roomJoin": true, "room": "kitchen"});
        for (key, value) in more.as_object().unwrap() {
            grants[key] = value.clone();
        }
        token(600, &grants, &json!({"sub": "ann"}))
    };
    let post = async |path: &str, token: &str, kind: &str, body: String| {
        let request = client().post(format!("{}{path}", server.url));
        let request = request
            .bearer_auth(token)
            .header(CONTENT_TYPE, kind)
            .body(body);
        request.send().await.unwrap()
    };
    let whole = grants(json!({}));
    let silent = grants(json!({"canPublish": false}));
    let deaf = grants(json!({"canSubscribe": false}));
    let nowhere = token(600, &json!({"roomList": true}), &json!({"sub": "ann"}));
    let camera = grants(json!({"canPublishSources": ["camera"]}));
    let sdp = "application/sdp";
    let listening = offer.replace("sendonly", "recvonly");
    for (path, token, kind, body, status, part) in [
        ("/whip", "", sdp, offer, 401, "no access token"),
        ("/whip", &nowhere, sdp, offer, 401, "roomJoin"),
        ("/whip", &silent, sdp, offer, 403, "canPublish"),
        ("/whep", &deaf, sdp, offer, 403, "canSubscribe"),
        ("/whip", &camera, sdp, offer, 403, "audio"),
        (
            "/whip",
            &whole,
            "application/json",
            offer,
            415,
            "application/sdp",
        ),
        ("/whip", &whole, sdp, "v=0", 400, ""),
        ("/whip", &whole, sdp, &listening, 400, "sends nothing"),
        ("/whep", &whole, sdp, offer, 400, "receives nothing"),
    ] {
        let answer = post(path, token, kind, body.to_owned()).await;
        let (is, text) = (answer.status(), answer.text().await.unwrap());
        assert_eq!(is.as_u16(), status, "{path} {part}: {text}");
        assert!(text.contains(part), "{path} {part}: {text}");
    }
    let long = post("/whip", &whole, sdp, "v".repeat(800 << 10)).await;
    assert_eq!(long.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let begun = post("/whip", &whole, sdp, offer.to_owned()).await;
    assert_eq!(begun.status(), StatusCode::CREATED);
    let place = begun.headers()[LOCATION].to_str().unwrap().to_owned();
    let answer = begun.text().await.unwrap();
    assert!(
        answer.contains("a=recvonly") && answer.contains("a=candidate:"),
        "{answer}"
    );
    let at = |method: Method, token: &str| {
        let request = client().request(method, format!("{}{place}", server.url));
        request.bearer_auth(token)
    };
    let patched = at(Method::PATCH, &whole).send().await.unwrap();
    assert_eq!(patched.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(patched.headers()[ALLOW], "DELETE, OPTIONS");
    let other = token(
        600,
        &json!({"roomJoin": true, "room": "kitchen"}),
        &json!({"sub": "bob"}),
    );
    for (token, status) in [
        (other.as_str(), 404),
        ("x", 401),
        (&whole, 200),
        (&whole, 404),
    ] {
        let ended = at(Method::DELETE, token).send().await.unwrap();
        assert_eq!(ended.status().as_u16(), status);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(members(&server, "kitchen").await.is_empty());
}
