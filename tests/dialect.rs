//! Clients that were written for another server of the family, whose words the settings give.

use serde_json::{Value, json};

use crate::auth::service::{AuthService, ok};
use crate::auth::{KeyFile, asking};
use crate::harness::*;
use crate::session::client::{Session, config, with};
use crate::webhooks::{Receiver, settings};

const WORDS: [(&str, &str); 2] = [
    ("DIALECT_ROOM_PROVIDER", "livekit"),
    ("DIALECT_SERVICE", "vox"),
];

async fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let request = client().post(format!("{}{path}", server.url)).json(body);
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test]
async fn tokens_and_rooms_are_asked_for_and_answered_in_the_words_of_the_dialect() {
    let server = Server::start_with(&WORDS);
    let wanted =
        json!({"room_name": "tea room", "participant_name": "Ann", "participant_identity": "ann"});
    for path in ["/livekit/token", "/rtc/token"] {
        let (status, answer) = post(&server, path, &wanted).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(
            answer["livekit_url"],
            server.url.replace("http", "ws"),
            "{answer}"
        );
        assert_eq!(answer["participant_identity"], "ann");
        assert!(
            answer["token"].is_string() && answer.get("rtc_url").is_none(),
            "{answer}"
        );
    }
    for path in ["/livekit/rooms", "/rtc/rooms", "/livekit/rooms?x=1"] {
        let answer = client()
            .get(format!("{}{path}", server.url))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        let rooms: Value = answer.json().await.unwrap();
        assert!(rooms["rooms"].is_array(), "{path}: {rooms}");
    }
    let gone = json!({"room_name": "tea room", "participant_identity": "nobody"});
    let request = client()
        .delete(format!("{}/livekit/participant", server.url))
        .json(&gone);
    assert_eq!(request.send().await.unwrap().status(), 404);
    let (status, answer) = post(&server, "/livekit/nothing", &json!({})).await;
    assert_eq!(
        (status, &answer["error"]),
        (404, &json!("NOT_FOUND")),
        "{answer}"
    );
    // Without the words there are no such paths.
    let plain = Server::start();
    assert_eq!(post(&plain, "/livekit/token", &wanted).await.0, 404);
}

#[tokio::test]
async fn a_session_is_configured_and_told_its_room_in_the_words_of_the_dialect() {
    let mut receiver = Receiver::in_dialect("Vox");
    let url = format!("http://127.0.0.1:{}/", receiver.port);
    let environment = [&settings(&url)[..], &WORDS[..]].concat();
    let server = Server::start_with(&environment);
    for room in [
        json!({"livekit": {"room_name": "den", "vox_participant_identity": "me", "vox_participant_name": "Me"}}),
        json!({"rtc": {"room_name": "den", "service_participant_identity": "me", "service_participant_name": "Me"}}),
    ] {
        let mut session = Session::connect(&server).await;
        session
            .send(config(with(json!({"audio": false, "strict": true}), room)))
            .await;
        let ready = session.next("ready").await;
        assert_eq!(ready["livekit_room_name"], "den", "{ready}");
        assert_eq!(
            ready["livekit_url"],
            server.url.replace("http", "ws"),
            "{ready}"
        );
        assert_eq!(ready["vox_participant_identity"], "me", "{ready}");
        assert_eq!(ready["vox_participant_name"], "Me", "{ready}");
        assert!(ready["rtc_url"].is_null(), "{ready}");
        let room = client().get(format!("{}/livekit/rooms/den", server.url));
        let room = room.send().await.unwrap();
        assert_eq!(room.status(), 200);
        let room: Value = room.json().await.unwrap();
        assert_eq!(room["participants"][0]["identity"], "me", "{room}");
        session.close().await;
        // Its end is told under headers of the dialect.
        let told = receiver.next();
        assert_eq!(told["good"], true, "{told}");
        assert_eq!(told["body"]["event"], "session.ended", "{told}");
    }
    // What is wrong is named as it was sent.
    let mut session = Session::connect(&server).await;
    let wrong =
        json!({"audio": false, "livekit": {"room_name": "den", "vox_participant_identity": 7}});
    session.send(config(wrong)).await;
    let error = session.next("error").await;
    let told = error.text("message");
    assert!(
        told.starts_with("livekit.vox_participant_identity: "),
        "{error}"
    );
    session.close().await;
}

#[actix_web::test]
async fn the_authentication_service_is_asked_in_the_words_of_the_dialect() {
    let file = KeyFile::of_rsa();
    let service = AuthService::asked_as("vox-auth", |_| ok(r#"{"id": "a"}"#));
    let server = asking(&service, &file.path(), &WORDS);
    let body = json!({"room_name": "r", "participant_name": "n", "participant_identity": "i"});
    let request = client().post(format!("{}/livekit/token", server.url));
    let request = request
        .bearer_auth("token")
        .header("x-vox-thing", "hidden")
        .header("x-thing", "told");
    let answer = request.json(&body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let [seen] = service.seen().try_into().unwrap();
    assert_eq!(seen.claims["sub"], "vox-auth");
    let data = &seen.claims["auth_data"];
    assert_eq!(data["request_path"], "/livekit/token", "{data}");
    assert_eq!(data["request_headers"]["x-thing"], "told", "{data}");
    assert!(
        data["request_headers"].get("x-vox-thing").is_none(),
        "{data}"
    );
}

#[test]
fn a_word_that_is_none_is_refused_by_its_setting() {
    for (setting, word) in [
        ("dialect.service", "Vox"),
        ("dialect.room_provider", "live/kit"),
    ] {
        let checked = vivavoce(["check", "--set", &format!("{setting}={word}")]);
        assert!(!checked.status.success());
        let told = stderr(&checked);
        assert!(
            told.contains(setting) && told.contains("one word"),
            "{told}"
        );
    }
}
