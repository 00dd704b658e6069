//! OpenAI's own clients, unmodified, against this server: another base URL, and a token of ours as the key.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use vivavoce::audio::SampleRate;

use crate::auth::{HOUSE, OF_A, tenants};
use crate::harness::human_speech::words_right;
use crate::harness::*;
use crate::vendors::{Backed, client as run, scripted, tone_words};

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
    ("translation", "BadRequestError", 400, "invalid_request", "model"),
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

const BOUNDARY: &str = "--------------------------8a3f0c";

/// A form with a file, and its type.
fn form(fields: &[(&str, &str)], file: &[u8]) -> (String, Vec<u8>) {
    let mut body = Vec::new();
    for (name, text) in fields {
        let part = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n"
        );
        body.extend_from_slice(part.as_bytes());
    }
    let head = format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
         Content-Type: audio/wav\r\n\r\n"
    );
    body.extend_from_slice(head.as_bytes());
    body.extend_from_slice(file);
    body.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
    (format!("multipart/form-data; boundary={BOUNDARY}"), body)
}

fn transcribe(server: &Server, fields: &[(&str, &str)], file: &[u8]) -> reqwest::RequestBuilder {
    let (media_type, body) = form(fields, file);
    let url = format!("{}/audio/transcriptions", base(server));
    let request = client().post(url).header("content-type", media_type);
    request.body(body)
}

/// Sound at 16 kHz in a file.
fn wav(samples: &[i16]) -> Vec<u8> {
    let bytes = (samples.len() * 2) as u32;
    let mut file = Vec::new();
    file.extend_from_slice(b"RIFF");
    file.extend_from_slice(&(36 + bytes).to_le_bytes());
    file.extend_from_slice(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    file.extend_from_slice(&16_000_u32.to_le_bytes());
    file.extend_from_slice(&32_000_u32.to_le_bytes());
    file.extend_from_slice(b"\x02\0\x10\0data");
    file.extend_from_slice(&bytes.to_le_bytes());
    file.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    file
}

/// Each sample is the empty line that ends a request's head.
#[tokio::test]
async fn files_of_any_bytes_go_over_one_connection_one_after_the_other() {
    let server = Server::start_with(&[("NULL_ENABLED", "true")]);
    let address = server.url.strip_prefix("http://").unwrap();
    let file = wav(&vec![i16::from_le_bytes(*b"\n\n"); 40_000]);
    let (media_type, body) = form(&[("model", "null")], &file);
    let head = format!(
        "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: {address}\r\nContent-Type: {media_type}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let mut connection = BufReader::new(TcpStream::connect(address).await.unwrap());
    for _ in 0..5 {
        connection.write_all(head.as_bytes()).await.unwrap();
        connection.write_all(&body).await.unwrap();
        let (mut status, mut length, mut line) = (String::new(), 0, String::new());
        loop {
            line.clear();
            assert_ne!(connection.read_line(&mut line).await.unwrap(), 0, "closed");
            let lower = line.trim().to_ascii_lowercase();
            if let Some(its) = lower.strip_prefix("content-length: ") {
                length = its.parse().unwrap();
            }
            if status.is_empty() {
                status.clone_from(&lower);
            }
            if lower.is_empty() {
                break;
            }
        }
        assert!(status.ends_with("200 ok"), "{status}");
        let mut answer = vec![0; length];
        connection.read_exact(&mut answer).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert!(answer["text"].is_string(), "{answer}");
    }
}

#[tokio::test]
async fn who_leaves_gives_its_turn_back() {
    let server = Server::start_with(&[("LIMITS_TRANSCRIPTIONS", "1")]);
    let folder = tempfile::tempdir().unwrap();
    let file = std::fs::read(said(&server, folder.path()).await).unwrap();
    // More than can be recognised while this test lasts.
    let speech: Vec<i16> = file[44..]
        .chunks_exact(2)
        .map(|sample| i16::from_le_bytes([sample[0], sample[1]]))
        .collect();
    let many = wav(&speech.repeat(200));
    let fields = [("model", "local/pocketsphinx"), ("stream", "true")];
    let mut long = transcribe(&server, &fields, &many[..many.len().min(24 << 20)])
        .send()
        .await
        .unwrap();
    assert_eq!(long.status(), 200);
    let first = long.chunk().await.unwrap().unwrap();
    assert!(first.starts_with(b"data: "), "{first:?}");
    let short = transcribe(&server, &fields[..1], &file).send();
    tokio::pin!(short);
    let waited = tokio::time::timeout(Duration::from_secs(1), &mut short).await;
    assert!(waited.is_err(), "two at a time");
    drop(long);
    let answered = tokio::time::timeout(Duration::from_secs(20), short).await;
    let answer = answered.expect("the turn is free").unwrap();
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn a_vendor_that_fails_while_events_are_sent_is_an_event() {
    let faults = ["openai:stt:status=503"];
    let backed = Backed::by(scripted(&faults).await);
    let folder = tempfile::tempdir().unwrap();
    let file = std::fs::read(said(&backed.server, folder.path()).await).unwrap();
    let fields = [("model", "openai/gpt-4o-transcribe"), ("stream", "true")];
    let answer = transcribe(&backed.server, &fields, &file)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    let text = answer.text().await.unwrap();
    let event = text.strip_prefix("event: error\ndata: ");
    let event = event.unwrap_or_else(|| panic!("{text}"));
    let event: Value = serde_json::from_str(event).unwrap();
    assert_eq!(event["error"]["code"], "provider_error", "{event}");
}

#[tokio::test]
async fn a_file_goes_to_the_vendor_that_the_model_names_and_back() {
    let backed = Backed::by(scripted(&[]).await);
    let speech = tone_words(1..6, SampleRate::HZ_16000);
    for model in [
        "deepgram/nova-3",
        "google",
        "azure",
        "elevenlabs",
        "cartesia",
    ] {
        let fields = [("model", model)];
        let answer = transcribe(&backed.server, &fields, &wav(&speech))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 200, "{model}");
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(answer["text"], "1 2 3 4 5", "{model}: {answer}");
    }
}
