//! Sessions that the server leads itself: `agent` in `config`, with a small language model.

use std::time::Duration;

use serde_json::{Value, json};
use vivavoce::audio::Pcm;

use super::client::{Session, config, with};
use super::sound::{WIDE, encoded, spoken, then};
use crate::harness::*;
use crate::realtime::ChatServer;

fn led(server_fields: Value) -> Value {
    config(
        json!({"agent": with(json!({"llm": {"instructions": "You are brief."}}), server_fields)}),
    )
}

fn server(model: &ChatServer) -> Server {
    Server::start_with(&[("LLM_URL", &model.url()), ("LLM_MODEL", "small")])
}

/// The sound of a text, and a pause.
pub async fn question(server: &Server, text: &str) -> Pcm {
    let silence = Pcm::silence(WIDE.layout, Duration::from_millis(1_500));
    then(spoken(server, text, WIDE).await, &silence)
}

#[tokio::test]
async fn the_server_greets_answers_and_remembers_what_was_heard() {
    let model = ChatServer::start();
    let server = server(&model);
    let fields = json!({"greeting": "Good morning, this is a test."});
    let mut session = Session::open(&server, led(fields)).await;
    let greeting = session.next("response_done").await;
    assert_eq!(greeting["status"], "completed", "{greeting}");
    assert_eq!(greeting["text"], "Good morning, this is a test.");

    let sound = question(&server, "Tell me a story about the sea.").await;
    session.hear(encoded(&sound, WIDE).await).await;
    let begun = session.next("response_started").await;
    let id = begun.text("id").to_owned();
    let first = session.next("response_text").await;
    assert_eq!(
        (first.text("id"), first.text("text")),
        (id.as_str(), "This ")
    );
    assert_eq!(session.next("tts_started").await.text("id"), id);

    // Somebody speaks over it: what was heard of it is remembered, and the next turn is answered.
    let sound = question(&server, "Please stop, I would like to ask something else.").await;
    session.hear(encoded(&sound, WIDE).await).await;
    let cut = session.next("response_done").await;
    assert_eq!(
        (cut.text("id"), cut.text("status")),
        (id.as_str(), "interrupted")
    );
    let heard = cut.text("text").to_owned();
    assert!(
        heard.starts_with("This") && !heard.contains("number ten"),
        "{heard}"
    );
    let answered = session.next("response_done").await;
    assert_eq!(answered["status"], "completed", "{answered}");
    assert_eq!(
        answered["usage"],
        json!({"input_tokens": 11, "output_tokens": 7})
    );

    let asked = model.requests().await;
    assert_eq!(asked.len(), 2, "{asked:?}");
    let messages = asked[1]["messages"].as_array().unwrap();
    let roles: Vec<&Value> = messages.iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["system", "assistant", "user", "assistant", "user"]);
    assert_eq!(messages[0]["content"], "You are brief.");
    assert_eq!(messages[1]["content"], "Good morning, this is a test.");
    assert_eq!(messages[3]["content"], heard);
}

#[tokio::test]
async fn functions_are_called_by_the_client_and_a_model_that_fails_ends_nothing() {
    let model = ChatServer::start();
    let server = server(&model);
    let tool = json!({"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}});
    let fields = json!({"llm": {"tools": [tool]}});
    let mut session = Session::open(&server, led(fields)).await;
    let sound = question(&server, "What is the weather today?").await;
    session.hear(encoded(&sound, WIDE).await).await;
    let call = session.next("function_call").await;
    assert_eq!(
        (call.text("name"), call.text("arguments")),
        ("get_weather", r#"{"city": "Bonn"}"#)
    );
    // It only called.
    assert_eq!(session.next("response_done").await["text"], "");
    session
        .send(json!({"type": "function_result", "call_id": "nobody", "output": ""}))
        .await;
    let refused = session.next("error").await;
    assert_eq!(refused["code"], "invalid_message", "{refused}");
    let result =
        json!({"type": "function_result", "call_id": call["call_id"], "output": "It rains"});
    session.send(result).await;
    assert_eq!(
        session.next("response_done").await["text"],
        "The function says: It rains."
    );

    let sound = question(&server, "This will fail.").await;
    session.hear(encoded(&sound, WIDE).await).await;
    let failed = session.next("error").await;
    assert_eq!(failed["code"], "llm_failed", "{failed}");
    let done = session.next("response_done").await;
    assert_eq!(
        (&done["status"], &done["id"]),
        (&json!("failed"), &failed["id"])
    );
    session
        .send(json!({"type": "respond", "instructions": "nothing"}))
        .await;
    assert_eq!(session.next("error").await["code"], "llm_failed");
    assert_eq!(session.next("response_done").await["status"], "failed");
}

#[tokio::test]
async fn what_cannot_be_led_is_refused_by_its_field() {
    let model = ChatServer::start();
    let server = server(&model);
    for (agent, named) in [
        (json!({}), "agent.llm"),
        (json!({"llm": {"endpoint": "nobody"}}), "nobody"),
        (
            json!({"llm": {"url": "https://models.example/v1", "model": "m"}}),
            "llm.allow_client_urls",
        ),
        (json!({"llm": {"api_key": "k"}}), "agent.llm.api_key"),
        (json!({"llm": {"temperature": 7}}), "agent.llm.temperature"),
        (
            json!({"llm": {"tools": [{"name": "f"}]}}),
            "agent.llm.tools[0]",
        ),
    ] {
        let mut session = Session::connect(&server).await;
        session.send(config(json!({"agent": agent}))).await;
        let error = session.next("error").await;
        assert_eq!(error["code"], "invalid_message", "{error}");
        assert!(error.text("message").contains(named), "{error}");
    }
    let mut session = Session::open(&server, config(json!({}))).await;
    session.send(json!({"type": "respond"})).await;
    let error = session.next("error").await;
    assert!(error.text("message").contains("agent"), "{error}");
}
