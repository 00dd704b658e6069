//! What the vendors' plugins of other frameworks ask for by default, message by message, with tone-words.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message as Sent};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::engine::Engine;
use super::tone_words::speak;
use super::*;
use vivavoce_audio::wav::{self, DataLength, SampleFormat};
use vivavoce_audio::{Layout, SampleRate, linear16};

const RATE: SampleRate = SampleRate::HZ_16000;
const PATIENCE: Duration = Duration::from_secs(20);

async fn emulators() -> Emulators {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    Emulators::start(Settings::new(Engine::Scripted))
        .await
        .unwrap()
}

fn tone_words(numbers: &[u16], rate: SampleRate) -> Vec<u8> {
    let samples = numbers.iter().flat_map(|&number| speak(number, rate));
    linear16::encode(&samples.collect::<Vec<_>>()).to_vec()
}

/// The same as a file.
fn file(numbers: &[u16]) -> Vec<u8> {
    let sound = tone_words(numbers, RATE);
    let length = DataLength::Known(sound.len() as u32);
    let header = wav::header_of(SampleFormat::I16, Layout::mono(RATE), length);
    [&header[..], &sound].concat()
}

struct Client(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Client {
    async fn dial(emulators: &Emulators, path: &str, key: (&'static str, &str)) -> Self {
        let url = format!("ws://{}{path}", emulators.plain);
        let mut request = url.into_client_request().unwrap();
        request.headers_mut().insert(key.0, key.1.parse().unwrap());
        Self(tokio_tungstenite::connect_async(request).await.unwrap().0)
    }

    async fn send(&mut self, message: Value) {
        self.0.send(Sent::text(message.to_string())).await.unwrap();
    }

    /// As it comes, though faster: what was heard must be known before all of it has gone by.
    async fn send_sound(&mut self, sound: &[u8]) {
        for piece in sound.chunks(3_200) {
            self.0.send(Sent::binary(piece.to_vec())).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The next message; sound is its length.
    async fn next(&mut self) -> Value {
        loop {
            let message = tokio::time::timeout(PATIENCE, self.0.next()).await;
            match message.expect("a message").expect("an open socket") {
                Ok(Sent::Text(text)) => return serde_json::from_str(&text).unwrap(),
                Ok(Sent::Binary(sound)) => return json!({"type": "sound", "bytes": sound.len()}),
                Ok(Sent::Close(frame)) => {
                    let code = frame.map(|frame| u16::from(frame.code));
                    return json!({"type": "closed", "code": code});
                }
                Ok(_) => {}
                Err(tungstenite::Error::ConnectionClosed) => return json!({"type": "gone"}),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Everything up to a message that has this value, which comes last.
    async fn until(&mut self, name: &str, value: &Value) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            let message = self.next().await;
            let last = message[name] == *value;
            assert!(message["type"] != "gone", "{messages:?}");
            messages.push(message);
            if last {
                return messages;
            }
        }
    }
}

fn kinds(messages: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<_> = messages
        .iter()
        .map(|message| message["type"].as_str().unwrap())
        .collect();
    kinds.dedup();
    kinds
}

fn notes(emulators: &Emulators, path: &str) -> Vec<String> {
    let records = emulators.emulation.log.all().into_iter();
    records
        .filter(|record| record.path == path)
        .flat_map(|record| record.notes)
        .collect()
}

#[tokio::test]
async fn what_nobody_answers_is_in_the_log() {
    let emulators = emulators().await;
    let url = format!(
        "http://{}/v9/sing?api_key=secret&loud=true",
        emulators.plain
    );
    let answer = reqwest::Client::new().put(url).send().await.unwrap();
    assert_eq!(answer.status(), 404);
    assert_eq!(
        notes(&emulators, "/v9/sing"),
        ["no such path: PUT /v9/sing"]
    );
    let record = emulators.emulation.log.all().remove(0);
    assert_eq!((record.vendor, record.direction), ("unknown", "unknown"));
    assert_eq!(record.query[0].1, "***");
}

#[tokio::test]
async fn deepgram_transcribes_a_file() {
    let emulators = emulators().await;
    let url = format!(
        "http://{}/v1/listen?model=nova-3&punctuate=true&detect_language=true&utterances=true",
        emulators.plain
    );
    let request = reqwest::Client::new()
        .post(&url)
        .header("authorization", "Token good");
    let answer = request.body(file(&[12, 34])).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let answer: Value = answer.json().await.unwrap();
    let channel = &answer["results"]["channels"][0];
    let best = &channel["alternatives"][0];
    assert_eq!(
        (&best["transcript"], &channel["detected_language"]),
        (&json!("12 34"), &json!("en"))
    );
    assert_eq!(best["words"][1]["punctuated_word"], "34");
    assert_eq!(answer["results"]["utterances"][0]["transcript"], "12 34");
    assert!(answer["metadata"]["request_id"].is_string());

    let request = reqwest::Client::new()
        .post(url)
        .header("authorization", "Token good");
    let refused = request.body("no sound").send().await.unwrap();
    assert_eq!(refused.status(), 400);
}

#[tokio::test]
async fn elevenlabs_transcribes_a_file() {
    let emulators = emulators().await;
    let form = |file: &[u8]| {
        let mut body = b"--b\r\ncontent-disposition: form-data; name=\"model_id\"\r\n\r\nscribe_v2\r\n\
            --b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\ncontent-type: audio/x-wav\r\n\r\n"
            .to_vec();
        body.extend_from_slice(file);
        body.extend_from_slice(b"\r\n--b--\r\n");
        body
    };
    let post = async |body: Vec<u8>, key: &str| {
        let url = format!("http://{}/v1/speech-to-text", emulators.plain);
        let request = reqwest::Client::new().post(url).header("xi-api-key", key);
        let request = request.header("content-type", "multipart/form-data; boundary=b");
        request.body(body).send().await.unwrap()
    };
    let answer = post(form(&file(&[7, 8])), "good").await;
    assert_eq!(answer.status(), 200);
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["text"], "7 8");
    assert_eq!(answer["words"][1]["type"], "spacing");
    assert_eq!(post(form(&file(&[7])), "bad").await.status(), 401);
    assert_eq!(post(form(b"no sound"), "good").await.status(), 400);
    assert_eq!(post(b"--b--\r\n".to_vec(), "good").await.status(), 422);
}

const DEEPGRAM: (&str, &str) = ("authorization", "Token good");

#[tokio::test]
async fn flux_ends_a_turn_in_silence_and_tells_what_it_hears_until_then() {
    let emulators = emulators().await;
    let path = "/v2/listen?model=flux-general-en&encoding=linear16&sample_rate=16000";
    let mut client = Client::dial(&emulators, path, DEEPGRAM).await;
    client.send_sound(&tone_words(&[1, 2], RATE)).await;
    client.send_sound(&vec![0; 32_000]).await;
    let messages = client.until("event", &json!("EndOfTurn")).await;
    let last = messages.last().unwrap();
    assert_eq!(
        (&last["transcript"], &last["trigger"]),
        (&json!("1 2"), &json!("model"))
    );
    let updates = messages
        .iter()
        .filter(|message| message["event"] == "Update");
    assert!(updates.clone().any(|update| update["transcript"] == "1"));
    assert!(updates.count() > 2);
}

#[tokio::test]
async fn flux_ends_a_turn_that_it_is_not_sure_of_after_the_timeout() {
    let emulators = emulators().await;
    let path = "/v2/listen?model=flux-general-en&encoding=linear16&sample_rate=16000&eot_threshold=1.0&\
                eager_eot_threshold=0.4&eot_timeout_ms=1500";
    let mut client = Client::dial(&emulators, path, DEEPGRAM).await;
    client.send_sound(&tone_words(&[1], RATE)).await;
    client.send_sound(&vec![0; 32_000]).await;
    client.until("event", &json!("EagerEndOfTurn")).await;
    client.send_sound(&tone_words(&[2], RATE)).await;
    client.until("event", &json!("TurnResumed")).await;
    client.send_sound(&vec![0; 64_000]).await;
    let messages = client.until("event", &json!("EndOfTurn")).await;
    let last = messages.last().unwrap();
    assert_eq!(
        (&last["transcript"], &last["trigger"]),
        (&json!("1 2"), &json!("timeout"))
    );
}

const FLUX_VOICE: &str = "/v2/speak?model=flux-alexis-en&encoding=linear16&sample_rate=24000";

#[tokio::test]
async fn flux_speaks_in_turns() {
    let emulators = emulators().await;
    let mut client = Client::dial(&emulators, FLUX_VOICE, DEEPGRAM).await;
    for message in [
        json!({"type": "Speak", "text": "1 2. "}),
        json!({"type": "Speak", "text": "3"}),
        json!({"type": "Flush"}),
        json!({"type": "Speak", "text": "4"}),
        json!({"type": "Close"}),
    ] {
        client.send(message).await;
    }
    let messages = client.until("type", &json!("closed")).await;
    let turn = ["SpeechStarted", "sound", "SpeechMetadata", "Flushed"];
    let expected: Vec<_> = ["Connected"]
        .into_iter()
        .chain(turn)
        .chain(turn)
        .chain(["SessionMetadata", "closed"])
        .collect();
    assert_eq!(kinds(&messages), expected);
    let first = messages
        .iter()
        .find(|message| message["type"] == "SpeechMetadata")
        .unwrap();
    assert_eq!(first["billable_character_count"], 6);
    assert!(first["audio_duration_ms"].as_u64().unwrap() > 1_000);
    assert_eq!(messages.last().unwrap()["code"], 1000);
}

#[tokio::test]
async fn flux_is_interrupted_and_told_how_much_was_heard() {
    let emulators = emulators().await;
    let mut client = Client::dial(&emulators, FLUX_VOICE, DEEPGRAM).await;
    client.send(json!({"type": "Interrupt"})).await;
    let warned = client.until("type", &json!("Warning")).await;
    assert_eq!(warned.last().unwrap()["code"], "NO_ACTIVE_SPEECH");
    client.send(json!({"type": "Configure", "speed": 2})).await;
    let failed = client.next().await;
    assert_eq!(
        (&failed["type"], &failed["code"]),
        (&json!("ConfigureFailure"), &json!("SPEED_OUT_OF_RANGE"))
    );
    client
        .send(json!({"type": "Configure", "speed": 0.95}))
        .await;
    assert_eq!(client.next().await["applied"]["speed"], 0.95);
    // A turn that is not flushed goes on until it is interrupted.
    client
        .send(json!({"type": "Speak", "text": "1 2 3. "}))
        .await;
    client.until("type", &json!("sound")).await;
    let offset = json!({"type": "time_ms", "value": 700});
    client
        .send(json!({"type": "Interrupt", "playback_offset": offset}))
        .await;
    let messages = client.until("type", &json!("SpeechInterrupted")).await;
    let interrupted = messages.last().unwrap();
    assert_eq!(interrupted["audio_played_ms"], 700);
    assert_eq!(interrupted["text_spoken"], "1");
    assert_eq!(interrupted["text_remaining"], " 2 3. ");
    client.send(json!({"type": "Sing"})).await;
    let messages = client.until("type", &json!("closed")).await;
    assert_eq!(messages[0]["code"], "MESSAGE-0000");
}

const ELEVENLABS: (&str, &str) = ("xi-api-key", "good");
const DIALOGUE: &str = "/v1/text-to-dialogue/multi-stream-input?model_id=eleven_v3&output_format=pcm_24000&sync_alignment=true";
const VOICE: &str = "JBFqnCBsd6RMkjVDRZzb";

#[tokio::test]
async fn a_dialogue_is_spoken_context_by_context() {
    let emulators = emulators().await;
    let mut client = Client::dial(&emulators, DIALOGUE, ELEVENLABS).await;
    for message in [
        json!({"context_id": "a", "voices": [VOICE]}),
        json!({"context_id": "b", "voices": [VOICE], "voice_settings": {"stability": 0.5}}),
        json!({"context_id": "b", "keep_alive": true}),
        json!({"context_id": "a", "inputs": [{"text": "1 2 ", "voice_id": VOICE, "new_turn": true}], "flush": true}),
        json!({"context_id": "a", "inputs": [{"text": "3", "voice_id": VOICE}]}),
        json!({"context_id": "a", "close_context": true}),
    ] {
        client.send(message).await;
    }
    let messages = client.until("is_final", &json!(true)).await;
    let chars: String = messages
        .iter()
        .flat_map(|message| {
            message["alignment"]["chars"]
                .as_array()
                .into_iter()
                .flatten()
        })
        .map(|letter| letter.as_str().unwrap())
        .collect();
    let words: Vec<_> = chars.split_whitespace().collect();
    assert_eq!(words, ["1", "2", "3"]);
    let generated = messages
        .iter()
        .filter(|message| message["is_final_audio_for_turn"] == true);
    assert_eq!(generated.count(), 2);
    // A context that is closed has to be opened anew.
    client.send(json!({"context_id": "a", "flush": true})).await;
    let refused = client.next().await;
    assert!(refused["error"].is_string(), "{refused}");
    assert_eq!(client.next().await["code"], 1008);
}

#[tokio::test]
async fn a_dialogue_is_spoken_as_a_whole() {
    let emulators = emulators().await;
    let post = async |body: Value| {
        let url = format!(
            "http://{}/v1/text-to-dialogue/stream?output_format=pcm_16000",
            emulators.plain
        );
        let request = reqwest::Client::new()
            .post(url)
            .header("xi-api-key", "good");
        let request = request.header("content-type", "application/json");
        request.body(body.to_string()).send().await.unwrap()
    };
    let inputs = json!([{"text": "1", "voice_id": VOICE}, {"text": "2", "voice_id": VOICE}]);
    let answer = post(json!({"inputs": inputs, "model_id": "eleven_v3"})).await;
    assert_eq!(answer.status(), 200);
    assert!(answer.bytes().await.unwrap().len() > 16_000);
    let other = post(json!({"inputs": inputs, "model_id": "eleven_flash_v2_5"})).await;
    assert_eq!(other.status(), 400);
    assert_eq!(post(json!({"text": "1"})).await.status(), 422);
}

const OPENAI: (&str, &str) = ("authorization", "Bearer good");

async fn transcription(emulators: &Emulators, model: &str, turn_detection: Value) -> Client {
    let path = "/v1/realtime?intent=transcription";
    let mut client = Client::dial(emulators, path, OPENAI).await;
    assert_eq!(client.next().await["type"], "session.created");
    client
        .send(json!({"type": "session.update", "session": {"type": "transcription", "audio": {"input": {
            "format": {"type": "audio/pcm", "rate": 24_000}, "transcription": {"model": model},
            "turn_detection": turn_detection,
        }}}}))
        .await;
    assert_eq!(client.next().await["type"], "session.updated");
    client
}

async fn append(client: &mut Client, sound: &[u8]) {
    for piece in sound.chunks(4_800) {
        let audio = STANDARD.encode(piece);
        client
            .send(json!({"type": "input_audio_buffer.append", "audio": audio}))
            .await;
    }
}

const COMPLETED: &str = "conversation.item.input_audio_transcription.completed";
const DELTA: &str = "conversation.item.input_audio_transcription.delta";

#[tokio::test]
async fn openai_transcribes_turns_that_it_detects() {
    let emulators = emulators().await;
    let detection = json!({"type": "server_vad", "silence_duration_ms": 300});
    let mut client = transcription(&emulators, "gpt-4o-transcribe", detection).await;
    append(&mut client, &tone_words(&[5, 6], SampleRate::HZ_24000)).await;
    append(&mut client, &vec![0; 48_000]).await;
    let messages = client.until("type", &json!(COMPLETED)).await;
    assert_eq!(
        kinds(&messages),
        [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
            DELTA,
            COMPLETED,
        ]
    );
    let last = messages.last().unwrap();
    assert_eq!(last["transcript"], "5 6");
    assert_eq!(last["item_id"], messages[0]["item_id"]);
}

#[tokio::test]
async fn openai_transcribes_what_is_committed() {
    let emulators = emulators().await;
    let mut client = transcription(&emulators, "gpt-realtime-whisper", Value::Null).await;
    client
        .send(json!({"type": "input_audio_buffer.commit", "event_id": "mine"}))
        .await;
    let refused = client.next().await;
    assert_eq!(refused["error"]["code"], "input_audio_buffer_commit_empty");
    assert_eq!(refused["error"]["event_id"], "mine");
    append(&mut client, &tone_words(&[5, 6], SampleRate::HZ_24000)).await;
    // It tells words while they are spoken.
    let messages = client.until("type", &json!(DELTA)).await;
    let item = messages.last().unwrap()["item_id"].clone();
    client
        .send(json!({"type": "input_audio_buffer.commit"}))
        .await;
    let messages = client.until("type", &json!(COMPLETED)).await;
    let last = messages.last().unwrap();
    assert_eq!(
        (&last["transcript"], &last["item_id"]),
        (&json!("5 6"), &item)
    );
    append(&mut client, &tone_words(&[7], SampleRate::HZ_24000)).await;
    client
        .send(json!({"type": "input_audio_buffer.clear"}))
        .await;
    client
        .until("type", &json!("input_audio_buffer.cleared"))
        .await;
}
