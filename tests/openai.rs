//! OpenAI's own clients, unmodified, against this server: another base URL, and a token of ours as the key.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::auth::{HOUSE, OF_A, tenants};
use crate::harness::human_speech::words_right;
use crate::harness::*;
use crate::vendors::client as run;

const TEXT: &str = "Hello there, how can I help you today?";

/// A server that wants tokens.
fn locked() -> Server {
    let tenants = tenants();
    Server::start_with(&[
        ("AUTH_REQUIRED", "true"),
        ("AUTH_API_SECRET", HOUSE),
        ("AUTH_API_SECRETS_JSON", &tenants),
    ])
}

fn base(server: &Server) -> String {
    format!("{}/v1", server.url)
}

/// How long the sound of a file lasts, in seconds: what is streamed does not say it at its beginning.
fn seconds(file: &Path) -> f64 {
    let decoded = Command::new(which("ffmpeg"))
        .args(["-v", "error", "-i"])
        .arg(file)
        .args(["-f", "s16le", "-ac", "1", "-ar", "24000", "-"])
        .output()
        .unwrap();
    assert!(decoded.status.success(), "{}", stderr(&decoded));
    decoded.stdout.len() as f64 / 48_000.0
}

#[tokio::test]
async fn pythons_client_gets_speech_in_every_format_whole_streamed_and_as_events() {
    let server = locked();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let told = run(
        "openai_sdk.py",
        &["say", &base(&server), OF_A, path.to_str().unwrap(), TEXT],
    )
    .await;
    let bytes = |name: &str| std::fs::metadata(path.join(name)).unwrap().len() as f64;
    let whole = bytes("whole.pcm") / 48_000.0;
    assert!((1.0..6.0).contains(&whole), "{whole}");
    for (name, begins) in [
        ("mp3", &[0xff_u8][..]),
        ("opus", b"OggS"),
        ("flac", b"fLaC"),
        ("wav", b"RIFF"),
    ] {
        let file = path.join(format!("whole.{name}"));
        assert!(std::fs::read(&file).unwrap().starts_with(begins), "{name}");
        let its = seconds(&file);
        assert!((its - whole).abs() < 0.15, "{name}: {its}, {whole}");
    }
    // By another voice, at twice the speed.
    let streamed = bytes("streamed.pcm") / 48_000.0;
    assert!(
        streamed > 0.5 && streamed < whole * 0.75,
        "{streamed}, {whole}"
    );
    assert!(told["pieces"].as_u64().unwrap() > 1, "{told}");
    assert_eq!(told["ignored"], "instructions");
    assert_eq!(told["media_type"], "audio/pcm");
    let as_events = seconds(&path.join("events.wav"));
    assert!((1.0..6.0).contains(&as_events), "{as_events}");
    assert_eq!(
        told["types"],
        json!(["speech.audio.delta", "speech.audio.done"])
    );
    assert_eq!(told["last"], "speech.audio.done");
    assert_eq!(told["usage"]["input_tokens"], TEXT.len());
}

/// A file in which the text is said.
async fn said(server: &Server, folder: &Path) -> String {
    let body = json!({"model": "local/flite", "input": TEXT, "response_format": "wav"});
    let answer = client()
        .post(format!("{}/audio/speech", base(server)))
        .bearer_auth(HOUSE)
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    let file = folder.join("said.wav");
    std::fs::write(&file, answer.bytes().await.unwrap()).unwrap();
    file.to_str().unwrap().to_owned()
}

/// As a recogniser without punctuation writes it.
fn plainly(text: &str) -> String {
    let plain = |c: char| {
        if c.is_alphanumeric() || c == '\'' {
            c
        } else {
            ' '
        }
    };
    text.to_lowercase().chars().map(plain).collect()
}

fn understood(text: &Value) {
    let text = text.as_str().unwrap();
    let (right, of) = words_right(&plainly(TEXT), &plainly(text));
    assert!(right * 2 > of, "{text}");
}

#[tokio::test]
async fn pythons_client_gets_transcriptions_in_every_format_and_streamed() {
    let server = locked();
    let folder = tempfile::tempdir().unwrap();
    let file = said(&server, folder.path()).await;
    let told = run(
        "openai_sdk.py",
        &["hear", &base(&server), OF_A, &file, "local"],
    )
    .await;
    for form in ["text", "plain", "deltas", "done"] {
        understood(&told[form]);
    }
    let text = told["text"].as_str().unwrap();
    assert_eq!(told["deltas"], text);
    assert_eq!(told["usage"]["type"], "duration");
    let seconds = seconds(Path::new(&file));
    assert!((told["usage"]["seconds"].as_f64().unwrap() - seconds).abs() <= 1.0);
    let verbose = &told["verbose"];
    assert!(
        (verbose["duration"].as_f64().unwrap() - seconds).abs() < 0.1,
        "{verbose}"
    );
    let words = verbose["words"].as_array().unwrap();
    assert_eq!(words.len(), text.split_whitespace().count(), "{verbose}");
    let place = |at: &Value, name: &str| at[name].as_f64().unwrap();
    let segments = verbose["segments"].as_array().unwrap();
    assert!(!segments.is_empty());
    for at in words.iter().chain(segments) {
        let (start, end) = (place(at, "start"), place(at, "end"));
        assert!(0.0 <= start && start <= end && end <= seconds + 0.1, "{at}");
    }
    let (srt, vtt) = (told["srt"].as_str().unwrap(), told["vtt"].as_str().unwrap());
    assert!(
        srt.starts_with("1\n00:00:0") && srt.contains(" --> 00:00:0"),
        "{srt}"
    );
    assert!(vtt.starts_with("WEBVTT\n\n00:00:0"), "{vtt}");
    let events: Vec<&str> = told["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(events.last(), Some(&"transcript.text.done"));
    assert_eq!(told["ignored"], "temperature");
    // Nothing is left of the files.
    let left = std::fs::read_dir(server.data.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        left.iter()
            .all(|name| !name.to_string_lossy().contains("tmp")),
        "{left:?}"
    );
}

/// What is asked for wrongly, and the client's kind of error, the status, the code and the field.
#[rustfmt::skip]
const PROBLEMS: &[(&str, &str, u16, &str, &str)] = &[
    ("model", "NotFoundError", 404, "model_not_found", "model"),
    ("voice", "BadRequestError", 400, "invalid_request", ""),
    ("aac", "BadRequestError", 400, "invalid_request", "response_format"),
    ("input", "BadRequestError", 400, "invalid_request", "input"),
    ("no_sound", "BadRequestError", 400, "invalid_request", "file"),
    ("larger", "APIStatusError", 413, "payload_too_large", "file"),
    ("too_large", "APIStatusError", 413, "payload_too_large", ""),
    ("diarized", "BadRequestError", 400, "invalid_request", "response_format"),
    ("translation", "BadRequestError", 400, "invalid_request", ""),
    ("stranger", "AuthenticationError", 401, "invalid_api_key", ""),
    ("stranger_speaks", "AuthenticationError", 401, "invalid_api_key", ""),
    ("path", "NotFoundError", 404, "not_found", ""),
    ("method", "APIStatusError", 405, "method_not_allowed", ""),
];

#[tokio::test]
async fn pythons_client_makes_its_own_kinds_of_errors_of_ours() {
    let server = locked();
    let folder = tempfile::tempdir().unwrap();
    let file = said(&server, folder.path()).await;
    let told = run("openai_sdk.py", &["fail", &base(&server), OF_A, &file]).await;
    for (name, kind, status, code, param) in PROBLEMS {
        let got = &told[name];
        let is = (&got["kind"], &got["status"], &got["code"]);
        let wanted = (&json!(kind), &json!(status), &json!(code));
        assert_eq!(is, wanted, "{name}: {got}");
        assert_eq!(
            got["param"].as_str().unwrap_or_default(),
            *param,
            "{name}: {got}"
        );
        assert!(
            !got["message"].as_str().unwrap().is_empty(),
            "{name}: {got}"
        );
    }
    let unknown = &told["unknown"];
    assert_eq!(unknown["status"], 400, "{unknown}");
    assert!(
        unknown["message"].as_str().unwrap().contains("colour"),
        "{unknown}"
    );
}

#[tokio::test]
async fn models_and_voices_are_listed() {
    let server = locked();
    let told = run("openai_sdk.py", &["models", &base(&server), OF_A]).await;
    let ids: Vec<&str> = told["ids"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    for id in ["whisper-1", "gpt-4o-mini-tts", "local", "deepgram"] {
        assert!(ids.contains(&id), "{ids:?}");
    }
    assert_eq!(told["one"]["owned_by"], "local");
    let voices = told["voices"]["voices"].as_array().unwrap();
    assert!(
        voices.iter().any(|voice| voice["id"] == "flite-slt"),
        "{voices:?}"
    );
}

#[tokio::test]
async fn nodes_client_says_hears_and_fails_alike() {
    let server = locked();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let told = run("openai_sdk.mjs", &[&base(&server), OF_A, path, TEXT]).await;
    understood(&told["text"]);
    assert_eq!(told["deltas"], told["text"]);
    let types = told["types"].as_array().unwrap();
    assert_eq!(types.last(), Some(&json!("transcript.text.done")));
    assert!(told["ids"].as_array().unwrap().contains(&json!("local")));
    assert_eq!(
        told["problem"],
        json!({"kind": "NotFoundError", "status": 404, "code": "model_not_found", "param": "model"})
    );
}

#[tokio::test]
async fn names_of_the_settings_mean_what_they_say() {
    let server = Server::start_with(&[
        (
            "OPENAI_MODELS_JSON",
            r#"{"tts-1": "local/flite:slt", "mine": "null", "nobodys": "nobody/nothing"}"#,
        ),
        ("NULL_ENABLED", "true"),
    ]);
    let speak = async |model: &str| {
        let body =
            json!({"model": model, "voice": "nova", "input": TEXT, "response_format": "pcm"});
        let url = format!("{}/audio/speech", base(&server));
        let answer = client().post(url).json(&body).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.bytes().await.unwrap())
    };
    let (status, by_name) = speak("tts-1").await;
    assert_eq!(status, 200);
    let (_, in_full) = speak("local/flite:slt").await;
    assert!(by_name == in_full && !by_name.is_empty());
    assert_eq!(speak("mine").await.0, 200);
    assert_eq!(speak("nobodys").await.0, 404);
    let listed = client()
        .get(format!("{}/models", base(&server)))
        .send()
        .await
        .unwrap();
    let listed: Value = listed.json().await.unwrap();
    let ids: Vec<&Value> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert!(
        ids.contains(&&json!("mine")) && !ids.contains(&&json!("nobodys")),
        "{ids:?}"
    );
    let wrong = vivavoce(["check", "--set", r#"openai.models_json={"a": 7}"#]);
    assert!(!wrong.status.success());
    let told = stderr(&wrong);
    assert!(told.contains("openai.models_json"), "{told}");
}
