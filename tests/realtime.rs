//! OpenAI's Realtime interface: its own clients, unmodified, against this server and a small language model.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::auth::{HOUSE, OF_A, tenants};
use crate::harness::models::all;
use crate::harness::*;
use crate::vendors::client as run;

const HELLO: &str = "Hello there, how can I help you today?";

/// A language model.
pub struct ChatServer {
    child: Child,
    port: String,
}

impl Drop for ChatServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ChatServer {
    pub fn start() -> Self {
        Self::calling(&json!({}))
    }

    /// One that calls a function where it is told a word.
    pub fn calling(functions: &Value) -> Self {
        let root = env!("CARGO_MANIFEST_DIR");
        let mut child = Command::new(format!("{root}/.clients/python/bin/python"))
            .arg(format!("{root}/tests/clients/chat_server.py"))
            .arg(functions.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        lines.read_line(&mut port).unwrap();
        let port = port.trim().to_owned();
        Self { child, port }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    /// What it was asked so far.
    pub async fn requests(&self) -> Vec<Value> {
        let url = format!("http://127.0.0.1:{}/requests", self.port);
        client()
            .get(url)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap()
    }
}

fn base(server: &Server) -> String {
    format!("{}/v1", server.url)
}

/// A server that wants tokens, and has this language model.
fn locked(model: &ChatServer) -> Server {
    Server::start_with(&[
        ("AUTH_REQUIRED", "true"),
        ("AUTH_API_SECRET", HOUSE),
        ("AUTH_API_SECRETS_JSON", &tenants()),
        ("LLM_URL", &model.url()),
        ("LLM_MODEL", "small"),
        ("LLM_API_KEY", "key of the operator"),
    ])
}

/// A file of samples in which the text is said.
async fn said(server: &Server, folder: &Path, text: &str) -> String {
    let body = json!({"model": "local", "input": text, "response_format": "pcm"});
    let url = format!("{}/audio/speech", base(server));
    let answer = client()
        .post(url)
        .bearer_auth(HOUSE)
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    let file = folder.join("said.pcm");
    std::fs::write(&file, answer.bytes().await.unwrap()).unwrap();
    file.to_str().unwrap().to_owned()
}

fn understood(text: &Value, of: &str) {
    let text = text.as_str().unwrap_or_else(|| panic!("{text}"));
    let share = share_of_words(of, text);
    assert!(share > 0.5, "{text}");
}

/// The text of the first part of the first item of a response.
fn first_text(response: &Value) -> &str {
    let part = &response["output"][0]["content"][0];
    let text = part["transcript"].as_str().or(part["text"].as_str());
    text.unwrap_or_else(|| panic!("{response}"))
}

#[tokio::test]
async fn pythons_client_talks_with_a_language_model() {
    let model = ChatServer::start();
    let server = locked(&model);
    let folder = tempfile::tempdir().unwrap();
    let file = said(&server, folder.path(), HELLO).await;
    let told = run(
        "realtime_sdk.py",
        &["conversation", &base(&server), OF_A, &file],
    )
    .await;
    understood(&told["heard"], HELLO);
    let response = &told["response"];
    assert_eq!(response["status"], "completed", "{response}");
    assert_eq!(
        first_text(response),
        format!("You said: {}", told["heard"].as_str().unwrap())
    );
    assert_eq!(response["usage"]["total_tokens"], 18);
    assert!(told["seconds"].as_f64().unwrap() > 1.0, "{told}");
    assert_eq!(
        told["limits"][0],
        json!({"name": "requests", "limit": 100, "remaining": 99, "reset_seconds": 1.0})
    );
    let session = &told["session"];
    assert_eq!(session["instructions"], "You are brief.");
    assert_eq!(
        session["audio"]["input"]["turn_detection"]["type"],
        "server_vad"
    );
    let types: Vec<&str> = told["types"]
        .as_array()
        .unwrap()
        .iter()
        .map(|kind| kind.as_str().unwrap())
        .collect();
    let order = [
        "session.created",
        "session.updated",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.done",
    ];
    let mut at = 0;
    for kind in order {
        let found = types[at..].iter().position(|known| *known == kind);
        at += found.unwrap_or_else(|| panic!("{kind}: {types:?}"));
    }
    assert!(types.contains(&"response.output_audio.delta"));
    let asked = model.requests().await;
    assert_eq!(asked[0]["model"], "small");
    assert_eq!(
        asked[0]["authorization"],
        json!(["authorization: Bearer key of the operator"])
    );
    assert_eq!(
        asked[0]["messages"][0],
        json!({"role": "system", "content": "You are brief."})
    );
}

#[tokio::test]
async fn answers_in_writing_and_apart_from_the_conversation() {
    let model = ChatServer::start();
    let server = locked(&model);
    let told = run("realtime_sdk.py", &["text", &base(&server), OF_A]).await;
    let (first, apart) = (&told["first"], &told["apart"]);
    assert_eq!(first_text(first), "You said: Good day.");
    assert_eq!(first["output_modalities"], json!(["text"]));
    assert!(first["conversation_id"].is_string(), "{first}");
    assert_eq!(first_text(apart), "You said: Good day.");
    assert_eq!(apart["conversation_id"], Value::Null);
    assert_eq!(apart["metadata"], json!({"topic": "test"}));
    assert_eq!(told["deltas"], "You said: Good day.You said: Good day.");
    assert_eq!(told["retrieved"]["content"][0]["text"], "Good day.");
    // What was said apart is no item of the conversation.
    assert_eq!(told["items"], 2);
    let asked = model.requests().await;
    assert_eq!(
        asked[1]["messages"],
        json!([{"role": "system", "content": "Elsewhere."}, {"role": "user", "content": "Good day."}])
    );
}

#[tokio::test]
async fn a_function_is_called_and_what_it_returns_is_said() {
    let model = ChatServer::start();
    let server = locked(&model);
    let folder = tempfile::tempdir().unwrap();
    let file = said(&server, folder.path(), "What is the weather today?").await;
    let told = run("realtime_sdk.py", &["tools", &base(&server), OF_A, &file]).await;
    assert_eq!(told["called"]["name"], "get_weather");
    assert_eq!(told["called"]["arguments"], r#"{"city": "Bonn"}"#);
    assert_eq!(told["first"]["output"][0]["type"], "function_call");
    assert_eq!(
        first_text(&told["second"]),
        "The function says: It rains in Bonn."
    );
    assert!(told["seconds"].as_f64().unwrap() > 1.0, "{told}");
    let asked = model.requests().await;
    assert_eq!(asked[0]["tools"][0]["function"]["name"], "get_weather");
    let last = asked[1]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .take(2)
        .collect::<Vec<_>>();
    assert_eq!(
        *last[0],
        json!({"role": "tool", "tool_call_id": "call_1", "content": "It rains in Bonn"})
    );
    assert_eq!(
        last[1]["tool_calls"][0]["function"]["arguments"],
        r#"{"city": "Bonn"}"#
    );
}

#[tokio::test]
async fn an_answer_that_is_interrupted_is_remembered_as_it_was_heard() {
    let model = ChatServer::start();
    let server = locked(&model);
    let folder = tempfile::tempdir().unwrap();
    let file = said(&server, folder.path(), HELLO).await;
    let told = run(
        "realtime_sdk.py",
        &["interrupt", &base(&server), OF_A, &file],
    )
    .await;
    let cut = &told["cut"];
    assert_eq!(cut["status"], "cancelled");
    assert_eq!(
        cut["status_details"],
        json!({"type": "cancelled", "reason": "turn_detected"})
    );
    let heard = first_text(cut).to_owned();
    assert!(
        heard.starts_with("This is sentence number one") && !heard.contains("number ten"),
        "{heard}"
    );
    let milliseconds = told["truncated"]["audio_end_ms"].as_u64().unwrap();
    assert!((2_500..8_000).contains(&milliseconds), "{told}");
    assert_eq!(told["answered"]["status"], "completed");
    // The model is told what was heard, and no more.
    let asked = model.requests().await;
    let messages = asked[1]["messages"].as_array().unwrap();
    let remembered = messages
        .iter()
        .find(|message| message["role"] == "assistant")
        .unwrap();
    assert_eq!(remembered["content"], heard);
    let cancelled = &told["cancelled"];
    assert_eq!(cancelled["status_details"]["reason"], "client_cancelled");
    assert_eq!(told["sound_after"], 0);
    let shorter = told["shorter"]["content"][0]["transcript"]
        .as_str()
        .unwrap();
    assert!(
        shorter.len() < first_text(cancelled).len()
            && "This is sentence number one".starts_with(shorter),
        "{shorter}"
    );
}

#[tokio::test]
async fn a_client_may_end_turns_itself_and_send_sound_as_an_item() {
    let model = ChatServer::start();
    let server = locked(&model);
    let folder = tempfile::tempdir().unwrap();
    let file = said(&server, folder.path(), HELLO).await;
    let told = run("realtime_sdk.py", &["manual", &base(&server), OF_A, &file]).await;
    understood(&told["heard"], HELLO);
    assert_eq!(
        first_text(&told["first"]),
        format!("You said: {}", told["heard"].as_str().unwrap())
    );
    assert_eq!(told["refused"]["code"], "input_audio_buffer_commit_empty");
    understood(&told["burst"], HELLO);
    understood(&json!(first_text(&told["second"])), HELLO);
    let types = told["types"].to_string();
    assert!(!types.contains("speech_started"), "{types}");
}

#[tokio::test]
async fn what_is_wrong_is_told_by_its_field_and_ends_nothing() {
    let model = ChatServer::start();
    let server = locked(&model);
    let told = run("realtime_sdk.py", &["errors", &base(&server), OF_A]).await;
    for (event, code, param) in [
        ("a", "unknown_parameter", json!("session.speed")),
        ("b", "invalid_value", json!("session.audio.output.format")),
        ("c", "invalid_value", json!("session.type")),
        ("d", "response_cancel_not_active", json!("response_id")),
        ("e", "item_not_found", json!("item_id")),
        ("f", "invalid_value", json!("audio")),
        ("g", "invalid_value", json!("type")),
        ("h", "unsupported_value", json!("session.tools[0]")),
        ("i", "input_audio_buffer_commit_empty", Value::Null),
        ("None", "invalid_json", Value::Null),
    ] {
        let error = &told["told"][event];
        assert_eq!(error["code"], code, "{event}: {told}");
        assert_eq!(
            error.get("param").cloned().unwrap_or_default(),
            param,
            "{event}: {told}"
        );
    }
    let statuses = told["statuses"].as_array().unwrap();
    let status = |at: usize| statuses[at]["status"].as_str().unwrap();
    assert_eq!(
        (status(0), status(1), status(2), status(3)),
        ("failed", "failed", "completed", "completed")
    );
    let error = &statuses[0]["status_details"]["error"];
    assert_eq!(error["code"], "invalid_request");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("this model cannot"),
        "{error}"
    );
    assert_eq!(statuses[2]["output"], json!([]));
}

#[tokio::test]
async fn transcripts_need_no_language_model_and_conversations_do() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let file = said(&server, folder.path(), HELLO).await;
    let told = run(
        "realtime_sdk.py",
        &["transcription", &base(&server), "any", &file],
    )
    .await;
    understood(&told["heard"]["transcript"], HELLO);
    assert_eq!(told["deltas"], told["heard"]["transcript"]);
    assert!(told["heard"]["usage"]["seconds"].as_f64().unwrap() > 1.0);
    assert_eq!(told["session"]["type"], "transcription");
    assert!(
        told["refused"]["message"]
            .as_str()
            .unwrap()
            .contains("transcription session"),
        "{told}"
    );
    assert!(!told["types"].to_string().contains("response."), "{told}");
    let answer = client()
        .get(format!("{}/realtime?model=gpt-realtime", base(&server)))
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 404);
    let error: Value = answer.json().await.unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("LLM_URL") && message.contains("intent=transcription"),
        "{message}"
    );
}

#[tokio::test]
async fn a_client_secret_opens_what_it_was_made_for_and_nothing_else() {
    let model = ChatServer::start();
    let server = locked(&model);
    let told = run("realtime_sdk.py", &["secret", &base(&server), OF_A]).await;
    assert!(told["made"]["value"].as_str().unwrap().starts_with("ek_"));
    assert_eq!(told["made"]["session"]["instructions"], "Of the key.");
    assert_eq!(told["session"]["instructions"], "Of the key.");
    assert_eq!(told["session"]["output_modalities"], json!(["text"]));
    assert_eq!(told["elsewhere"], "AuthenticationError");
}

#[tokio::test]
async fn openais_agents_call_functions_and_are_interrupted() {
    let model = ChatServer::start();
    let server = Server::start_with(&[
        ("MODELS_PATH", all().to_str().unwrap()),
        ("LLM_URL", &model.url()),
        ("LLM_MODEL", "small"),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let hello = said(&server, folder.path(), HELLO).await;
    let weather = tempfile::tempdir().unwrap();
    let weather = said(&server, weather.path(), "What is the weather today?").await;
    let url = base(&server).replacen("http", "ws", 1) + "/realtime?model=gpt-realtime";
    let root = env!("CARGO_MANIFEST_DIR");
    let output = tokio::process::Command::new(format!("{root}/.clients/openai-agents/bin/python"))
        .arg(format!("{root}/tests/clients/realtime_agents.py"))
        .args([&url, "key", &weather, &hello])
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    // It checks each event against the interface's types.
    assert_eq!(told["errors"], json!([]));
    assert_eq!(told["called"], json!(["Bonn"]));
    assert_eq!(told["interrupted"], 1);
    let said: Vec<&str> = told["transcripts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line[1].as_str().unwrap())
        .collect();
    assert_eq!(said.len(), 6, "{said:?}");
    assert_eq!(said[1], "The function says: It rains in Bonn.");
    assert!(
        said[3].starts_with("This is sentence number one") && !said[3].contains("number ten"),
        "{said:?}"
    );
}

#[tokio::test]
async fn javascripts_client_is_answered_in_speech() {
    let model = ChatServer::start();
    // This client knows no address without TLS.
    let (folder, name) = (tempfile::tempdir().unwrap(), "localhost");
    let pair = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (cert, key) = (file("cert.pem"), file("key.pem"));
    std::fs::write(&cert, pair.cert.pem()).unwrap();
    std::fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
    let server = Server::start_with(&[
        ("SERVER_TLS_CERT", &cert),
        ("SERVER_TLS_KEY", &key),
        ("LLM_URL", &model.url()),
        ("LLM_MODEL", "small"),
    ]);
    let port = server.url.rsplit(':').next().unwrap();
    let url = format!("https://{name}:{port}/v1");
    let trusted = [("NODE_EXTRA_CA_CERTS", cert.as_str())];
    let told = crate::vendors::client_in(&trusted, "realtime_sdk.mjs", &[&url, "key"]).await;
    assert_eq!(told["said"], "You said: Good day.");
    assert_eq!(told["response"]["status"], "completed");
    assert!(told["seconds"].as_f64().unwrap() > 0.8, "{told}");
}
