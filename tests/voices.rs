//! `GET /voices` as a client sees it.

use serde_json::Value;

use crate::harness::*;

async fn voices(server: &Server, query: &str) -> reqwest::Response {
    client()
        .get(format!("{}/voices{query}", server.url))
        .send()
        .await
        .unwrap()
}

#[actix_web::test]
async fn the_voices_of_the_installed_engines_are_listed_and_each_of_a_sample_speaks() {
    let server = Server::start();
    let lists: Value = voices(&server, "").await.json().await.unwrap();
    let local = lists["local"].as_array().unwrap();
    assert!(local.len() > 50, "{} voices", local.len());
    for voice in local {
        for field in ["id", "name", "language", "gender", "accent", "sample"] {
            assert!(voice[field].is_string(), "{field} of {voice}");
        }
        for field in ["languages", "sample_rates", "tags"] {
            assert!(voice[field].is_array(), "{field} of {voice}");
        }
        assert_eq!(voice.as_object().unwrap().len(), 9, "{voice}");
    }
    for language in ["en-US", "de", "fr-FR", "es"] {
        let voice = local.iter().find(|voice| voice["language"] == language);
        let id = voice.unwrap_or_else(|| panic!("no voice for {language}"))["id"].clone();
        let answer = speak(
            &server,
            "Radio.",
            serde_json::json!({"voice_id": id, "sample_rate": 16000}),
        )
        .await;
        assert_eq!(answer.status(), 200, "{id}");
        assert!(answer.bytes().await.unwrap().len() > 8_000, "{id}");
    }
}

#[actix_web::test]
async fn one_provider_may_be_asked_for_and_an_unknown_one_is_refused() {
    let server = Server::start();
    let one: Value = voices(&server, "?provider=local")
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(
        one.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["local"]
    );
    assert_error(
        voices(&server, "?provider=nobody").await,
        400,
        "UNSUPPORTED_PROVIDER",
        "nobody",
    )
    .await;
}
