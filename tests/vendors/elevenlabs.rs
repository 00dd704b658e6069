//! ElevenLabs: its Python client against our emulator, then our client and a session against the same.

use std::fs;
use std::path::Path;
use std::slice;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::Message;
use vivavoce::audio::{AudioFormat, Encoding, SampleRate, linear16};
use vivavoce::config::value::Secret;
use vivavoce::emulators::clock::Clock;
use vivavoce::emulators::engine::Engine;
use vivavoce::emulators::tone_words::GAP;
use vivavoce::emulators::visit::Record;
use vivavoce::emulators::{Emulators, Settings};
use vivavoce::providers::{
    Credential, ErrorKind, ProviderError, ProviderTable, SttEvent, TtsEvent, TtsRequest, TtsStream,
};

use super::{
    client, client_in, english, finals, numbers_in, providers, said, scripted, start, stt_request,
    tone_words, understood,
};
use crate::harness::{SENTENCES, Server, ffprobe, share_of_words, text_stream, tts_request};
use crate::session::client::{Session, config};

const SLUG: &str = "elevenlabs";
const SCRIPT: &str = "elevenlabs_client.py";
const HZ_16000: SampleRate = SampleRate::HZ_16000;

/// The vendor's client with these tasks, over HTTP and plain sockets.
async fn sdk(emulators: &Emulators, key: &str, tasks: Value) -> Vec<Value> {
    let url = format!("http://{}", emulators.plain);
    let results = client(SCRIPT, &[&url, key, &tasks.to_string()]).await;
    results.as_array().unwrap().clone()
}

/// The same over TLS, which it insists on for speech over a socket.
async fn sdk_tls(emulators: &Emulators, key: &str, tasks: Value) -> Vec<Value> {
    let url = format!("https://{}", emulators.tls);
    let ca = emulators.ca_file();
    let trust = [("SSL_CERT_FILE", ca.to_str().unwrap())];
    let results = client_in(&trust, SCRIPT, &[&url, key, &tasks.to_string()]).await;
    results.as_array().unwrap().clone()
}

fn text(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no text"))
}

fn samples(path: &Path) -> Vec<i16> {
    linear16::samples(&fs::read(path).unwrap())
}

/// A file of tone-words with a pause behind them, as raw linear16.
fn recorded(folder: &TempDir, numbers: &[u16], rate: SampleRate, pause: Duration) -> String {
    let mut sound = tone_words(numbers.iter().copied(), rate);
    sound.resize(sound.len() + rate.frames_in(pause), 0);
    let path = folder.path().join("words.raw");
    fs::write(&path, linear16::encode(&sound)).unwrap();
    path.display().to_string()
}

#[actix_web::test]
async fn the_vendors_client_hears_what_it_says() {
    let emulators = english().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sentence.raw").display().to_string();
    let sentence = SENTENCES[0];
    let results = sdk(
        &emulators,
        "k1",
        json!([
            ["speech", "convert", "pcm_16000", sentence, path],
            ["hear", 16000, "manual", path],
        ]),
    )
    .await;
    let heard = &results[1];
    let committed = text(&heard["committed"][0]);
    assert!(share_of_words(sentence, committed) > 0.8, "{committed}");
    let timed = &heard["timed"][0];
    assert_eq!(timed["text"], heard["committed"][0]);
    let words: Vec<&Value> = timed["words"].as_array().unwrap().iter().collect();
    let spoken = words.iter().filter(|word| word["type"] == "word");
    let spoken: Vec<&str> = spoken.map(|word| text(&word["text"])).collect();
    assert_eq!(spoken.join(" "), committed);
    assert!(!heard["partial"].as_array().unwrap().is_empty());
}

#[actix_web::test]
async fn the_vendors_client_recognises_exactly_and_is_told_what_is_wrong() {
    let emulators = scripted(&[]).await;
    let folder = tempfile::tempdir().unwrap();
    let numbers = [4711, 0, 17, 9999, 17];
    let pause = Duration::from_secs(2);
    let words = recorded(&folder, &numbers, HZ_16000, pause);
    let results = sdk(
        &emulators,
        "k1",
        json!([
            ["hear", 16000, "manual", words],
            ["hear", 16000, "vad", words, {"vad_silence_threshold_secs": 0.5, "keyterms": ["a b"]}],
            ["hear", 16000, "manual", words, {"language_code": "en-US"}],
        ]),
    )
    .await;
    for heard in &results[..2] {
        assert_eq!(heard["committed"], json!(["4711 0 17 9999 17"]));
        let words = heard["timed"][0]["words"].as_array().unwrap();
        let starts: Vec<f64> = words
            .iter()
            .filter(|word| word["type"] == "word")
            .map(|word| word["start"].as_f64().unwrap())
            .collect();
        assert_eq!(starts.len(), numbers.len());
        assert!(
            starts[0] < 0.02 && (starts[4] - 4.0 * 0.48).abs() < 0.02,
            "{starts:?}"
        );
        assert_eq!(
            heard["partial"].as_array().unwrap().last().unwrap(),
            "4711 0 17 9999 17"
        );
        assert_eq!(heard["error"], json!([]));
    }
    assert_eq!(results[0]["throttled"].as_array().unwrap().len(), 1);
    assert_eq!(results[1]["session"][0]["keyterms"], json!(["a b"]));
    assert_eq!(results[2]["error"][0]["message_type"], "invalid_request");
    assert_eq!(results[2]["closed"][0]["code"], 1008);
}

#[actix_web::test]
async fn the_vendors_client_gets_every_format_that_it_asks_for() {
    let emulators = scripted(&[]).await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let speech = |form: &str, format: &str, name: &str| {
        json!(["speech", form, format, "1 22 333 4444", path(name)])
    };
    let results = sdk(
        &emulators,
        "k1",
        json!([
            speech("convert", "pcm_24000", "a.raw"),
            speech("stream", "pcm_8000", "b.raw"),
            speech("convert", "mp3_44100_128", "c.mp3"),
            speech("stream", "opus_48000_64", "d.ogg"),
            speech("convert", "wav_22050", "e.wav"),
            speech("stream", "ulaw_8000", "f.ulaw"),
            ["slow", path("slow.raw")],
            ["timed", "11 2222"],
            ["voices", 50],
            ["models"],
            speech("stream", "wav_22050", "g.wav"),
            speech("convert", "pcm_11025", "h.raw"),
        ]),
    )
    .await;
    let numbers = [1, 22, 333, 4444];
    assert_eq!(
        numbers_in(&samples(&path("a.raw")), SampleRate::HZ_24000),
        numbers
    );
    assert_eq!(
        numbers_in(&samples(&path("b.raw")), SampleRate::HZ_8000),
        numbers
    );
    for (name, codec, hz) in [
        ("c.mp3", "mp3", "44100"),
        ("d.ogg", "opus", "48000"),
        ("e.wav", "pcm_s16le", "22050"),
    ] {
        let probed = ffprobe(&path(name), &[]);
        let stream = &probed["streams"][0];
        assert_eq!(
            (&stream["codec_name"], &stream["sample_rate"]),
            (&json!(codec), &json!(hz))
        );
    }
    let telephone = fs::read(path("f.ulaw")).unwrap().len();
    assert_eq!(telephone * 2, fs::read(path("b.raw")).unwrap().len());
    let slow = samples(&path("slow.raw"));
    assert_eq!(numbers_in(&slow, SampleRate::HZ_8000), [1, 2, 3, 4]);
    assert!(slow.len() * 2 > telephone * 2 * 4 / 3, "slower is longer");

    let timed = &results[7];
    assert_eq!(
        (&timed["characters"], &timed["streamed"]),
        (&json!("11 2222 "), &json!("11 2222 "))
    );
    assert_eq!(timed["starts"][3], 0.48);
    let listed = results[8]["ids"].as_array().unwrap();
    assert_eq!(json!(listed.len()), results[8]["total"]);
    assert!(listed.len() > 100);
    assert!(
        results[9]
            .as_array()
            .unwrap()
            .contains(&json!("eleven_flash_v2_5"))
    );
    for refused in &results[10..] {
        assert_eq!(refused["status"], 400);
        assert_eq!(refused["body"]["detail"]["status"], "invalid_parameters");
    }
}

#[actix_web::test]
async fn the_vendors_client_speaks_over_its_socket() {
    let emulators = scripted(&[]).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.raw");
    let results = sdk_tls(
        &emulators,
        "k1",
        json!([["speech", "realtime", "pcm_16000", "1 22 |333 |4444", path]]),
    )
    .await;
    assert_eq!(results, [Value::Null]);
    assert_eq!(numbers_in(&samples(&path), HZ_16000), [1, 22, 333, 4444]);
}

#[actix_web::test]
async fn a_bad_key_is_the_error_of_a_bad_key_to_the_vendors_client() {
    let emulators = scripted(&[]).await;
    let folder = tempfile::tempdir().unwrap();
    let words = recorded(&folder, &[1], HZ_16000, Duration::ZERO);
    let plain = sdk(
        &emulators,
        "bad1",
        json!([
            ["voices", 10],
            [
                "speech",
                "stream",
                "pcm_16000",
                "1",
                folder.path().join("a")
            ],
            ["hear", 16000, "manual", words],
        ]),
    );
    let tls = sdk_tls(
        &emulators,
        "bad1",
        json!([[
            "speech",
            "realtime",
            "pcm_16000",
            "1 ",
            folder.path().join("b")
        ]]),
    );
    let (plain, tls) = tokio::join!(plain, tls);
    for refused in &plain[..2] {
        assert_eq!(refused["status"], 401);
        assert_eq!(refused["body"]["detail"]["status"], "invalid_api_key");
    }
    assert_eq!(plain[2]["error"][0]["message_type"], "auth_error");
    assert_eq!(tls[0]["status"], 1008);
    // Where the close has arrived before the client's first words, it shows the close's reason and not the message before.
    let shown = &tls[0]["body"];
    let told = shown["error"] == "invalid_api_key" || shown == "Invalid API key";
    assert!(told, "{shown}");
}

/// What a bare client is told on a socket that speaks, to its end, and the code with which it is closed.
async fn told(emulators: &Emulators, socket: &str, sent: &[Value]) -> (Vec<Value>, u16) {
    let voice = "JBFqnCBsd6RMkjVDRZzb";
    let url = format!(
        "ws://{}/v1/text-to-speech/{voice}/{socket}",
        emulators.plain
    );
    let (mut client, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    for message in sent {
        client
            .send(Message::text(message.to_string()))
            .await
            .unwrap();
    }
    let mut told = Vec::new();
    loop {
        match client.next().await.unwrap().unwrap() {
            Message::Text(text) => told.push(serde_json::from_str(&text).unwrap()),
            Message::Close(frame) => return (told, frame.unwrap().code.into()),
            other => panic!("{other:?}"),
        }
    }
}

#[actix_web::test]
async fn sockets_that_speak_keep_the_vendors_rules() {
    let mut settings = Settings::new(Engine::Scripted);
    settings.clock = Clock::new(100.0).unwrap();
    let emulators = start(settings).await;
    let multi = "multi-stream-input?model_id=eleven_flash_v2_5&authorization=k1";
    let single = "stream-input?output_format=pcm_8000";
    let open = |id: &str| json!({"text": " ", "context_id": id});
    let six: Vec<Value> = ["a", "b", "c", "d", "e", "f"].map(open).into();
    let settled = json!({"text": "x ", "context_id": "a", "voice_settings": {"speed": 1.1}});
    let close = json!({"context_id": "a", "close_context": true});
    let keyed = json!({"text": " ", "xi_api_key": "k1"});
    let rows: [(&str, &[Value], &str); 7] = [
        (multi, &six, "max_active_conversations"),
        (multi, &[open("a"), settled], "invalid_parameters"),
        (multi, &[open("a")], "input_timeout_exceeded"),
        (single, &[json!({"text": " "})], "invalid_api_key"),
        (
            single,
            &[json!({"text": "a ", "xi_api_key": "k1"})],
            "invalid_parameters",
        ),
        (single, slice::from_ref(&keyed), "input_timeout_exceeded"),
        (
            "stream-input?model_id=eleven_v3",
            slice::from_ref(&keyed),
            "invalid_parameters",
        ),
    ];
    for (socket, sent, name) in rows {
        let (told, code) = told(&emulators, socket, sent).await;
        assert_eq!((&told[0]["error"], code), (&json!(name), 1008), "{sent:?}");
    }

    // What was not flushed when a context is closed is not said, and a name may be used again.
    let mut again = vec![
        open("a"),
        json!({"text": "1 ", "context_id": "a"}),
        close.clone(),
    ];
    again.extend([
        open("a"),
        json!({"text": "2 ", "context_id": "a", "flush": true}),
        close,
    ]);
    again.push(json!({"close_socket": true}));
    let (said, code) = told(
        &emulators,
        &format!("{multi}&output_format=pcm_8000"),
        &again,
    )
    .await;
    let finals = said.iter().filter(|said| said["isFinal"] == true).count();
    assert_eq!((finals, code), (2, 1000));
    assert!(said.iter().all(|said| said["contextId"] == "a"));
    let ended = [keyed, json!({"text": "12 34 "}), json!({"text": ""})];
    let (said, code) = told(&emulators, single, &ended).await;
    assert_eq!(
        (said.last().unwrap()["isFinal"].as_bool(), code),
        (Some(true), 1000)
    );
    let records = sockets(&emulators);
    let said: Vec<&[String]> = records.iter().map(|record| &record.said[..]).collect();
    assert_eq!(said[7], ["2"]);
    assert_eq!(said[8], ["12", "34"]);
}

/// Our providers, with the server's key `k1`.
fn ours(emulators: &Emulators) -> ProviderTable {
    let url = format!("ws://{}", emulators.plain);
    providers(&[
        ("providers.elevenlabs.api_key", "k1"),
        ("providers.elevenlabs.stt_url", &url),
        ("providers.elevenlabs.tts_url", &url),
    ])
}

async fn hear(
    emulators: &Emulators,
    sound: &[i16],
    rate: SampleRate,
) -> Result<Vec<SttEvent>, ProviderError> {
    let stt = ours(emulators).speech_to_text(SLUG).unwrap();
    let stream = stt.open(stt_request(rate)).await?;
    understood(stream, sound, rate).await
}

fn words(numbers: impl IntoIterator<Item = u16>) -> Vec<String> {
    numbers
        .into_iter()
        .map(|number| number.to_string())
        .collect()
}

#[actix_web::test]
async fn every_word_is_heard_once_and_in_its_place() {
    let emulators = scripted(&[]).await;
    let numbers: Vec<u16> = (0..30).map(|index| index * 331 % 10_000).collect();
    let mut sound = tone_words(numbers[..25].iter().copied(), HZ_16000);
    // A pause in which the vendor itself finds that the speaker has finished; the last words have none behind them.
    let pause = HZ_16000.frames_in(Duration::from_secs(2));
    sound.resize(sound.len() + pause, 0);
    sound.extend(tone_words(numbers[25..].iter().copied(), HZ_16000));
    let events = hear(&emulators, &sound, HZ_16000).await.unwrap();
    assert_eq!(finals(&events), words(numbers.iter().copied()));

    let ends = events
        .iter()
        .filter(|event| matches!(event, SttEvent::EndOfSpeech));
    assert_eq!(ends.count(), 1);
    let partials = events
        .iter()
        .filter(|event| matches!(event, SttEvent::Partial(_)));
    assert!(partials.count() > 20);
    let starts: Vec<f64> = events
        .iter()
        .filter_map(|event| match event {
            SttEvent::Final(transcript) => Some(&transcript.words),
            _ => None,
        })
        .flatten()
        .map(|word| word.start)
        .collect();
    for (index, start) in starts.iter().enumerate() {
        let pause = if index < 25 { 0.0 } else { 2.0 };
        let expected = index as f64 * 0.48 + pause;
        assert!(
            (start - expected).abs() < 0.02,
            "{index}: {start}, not {expected}"
        );
    }
    assert_eq!(starts.len(), numbers.len());
}

#[actix_web::test]
async fn what_is_finalized_is_final_and_the_stream_goes_on() {
    let emulators = scripted(&[]).await;
    let stt = ours(&emulators).speech_to_text(SLUG).unwrap();
    let rate = SampleRate::HZ_8000;
    let mut stream = stt.open(stt_request(rate)).await.unwrap();
    for numbers in [[1, 2], [3, 4]] {
        let sound = linear16::encode(&tone_words(numbers, rate));
        stream.sink.send(sound).await.unwrap();
        stream.sink.finalize().await.unwrap();
        let transcript = loop {
            match stream.events.next().await.unwrap().unwrap() {
                SttEvent::Final(transcript) => break transcript,
                SttEvent::Partial(_) => {}
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(transcript.text, words(numbers).join(" "));
        assert_eq!(transcript.words.len(), 2);
        assert!(transcript.confidence.is_some());
        assert_eq!(transcript.language.as_deref(), Some("en"));
    }
    stream.sink.close();
    assert!(stream.events.next().await.is_none());
}

/// What one request for speech is.
fn asked(encoding: Encoding, hz: u32) -> TtsRequest {
    let rate = SampleRate::new(hz).unwrap();
    TtsRequest {
        preferred: AudioFormat::mono(encoding, rate),
        ..tts_request(None)
    }
}

async fn speak(
    table: &ProviderTable,
    request: TtsRequest,
    text: &[&str],
) -> Result<TtsStream, ProviderError> {
    let tts = table.text_to_speech(SLUG).unwrap();
    tts.synthesize(request, text_stream(text)).await
}

fn heard_in(sound: &[u8], rate: SampleRate) -> Vec<u16> {
    numbers_in(&linear16::samples(sound), rate)
}

/// Visits of sockets that speak.
fn sockets(emulators: &Emulators) -> Vec<Record> {
    let all = emulators.emulation.log.all();
    all.into_iter()
        .filter(|record| record.direction == "tts")
        .collect()
}

#[actix_web::test]
async fn speech_is_exact_at_each_rate() {
    let emulators = scripted(&[]).await;
    let table = ours(&emulators);
    for (hz, native) in [
        (8_000, 8_000),
        (22_050, 22_050),
        (24_000, 24_000),
        (44_100, 48_000),
    ] {
        let stream = speak(
            &table,
            asked(Encoding::Linear16, hz),
            &["12 3", "45", " 678"],
        )
        .await
        .unwrap();
        assert_eq!(stream.format.layout.rate.hz(), native);
        let rate = stream.format.layout.rate;
        assert_eq!(heard_in(&said(stream).await.unwrap(), rate), [12, 345, 678]);
    }
    let telephone = speak(&table, asked(Encoding::Mulaw, 8_000), &["12"])
        .await
        .unwrap();
    assert_eq!(telephone.format.encoding, Encoding::Mulaw);
    assert_eq!(said(telephone).await.unwrap().len(), 8 * 480);
}

#[actix_web::test]
async fn words_are_told_when_they_begin() {
    let emulators = scripted(&[]).await;
    let table = ours(&emulators);
    let mut request = asked(Encoding::Linear16, 16_000);
    request.speaking_rate = 0.8;
    let mut stream = speak(&table, request, &["One, 2222", " drei!"])
        .await
        .unwrap();
    let mut told = Vec::new();
    let mut sound = 0;
    while let Some(event) = stream.events.next().await {
        match event.unwrap() {
            TtsEvent::Word { word, start } => told.push((word, start)),
            TtsEvent::Audio(audio) => sound += audio.len(),
            TtsEvent::Done => break,
        }
    }
    let names: Vec<&str> = told.iter().map(|(word, _)| word.as_str()).collect();
    assert_eq!(names, ["One,", "2222", "drei!"]);
    let each = HZ_16000.duration_of(sound / 2) / 3;
    for (index, (_, start)) in told.iter().enumerate() {
        let expected = each * index as u32;
        assert!(
            start.abs_diff(expected) < Duration::from_millis(5),
            "{start:?}, not {expected:?}"
        );
    }
    assert!(each > GAP * 5, "slower speech is longer");
}

#[actix_web::test]
async fn utterances_share_a_socket_and_one_that_is_called_off_is_not_heard_in_the_next() {
    let emulators = scripted(&[]).await;
    let table = ours(&emulators);
    let request = || asked(Encoding::Linear16, 16_000);
    for number in [7, 8] {
        let text = number.to_string();
        let stream = speak(&table, request(), &[&text]).await.unwrap();
        assert_eq!(heard_in(&said(stream).await.unwrap(), HZ_16000), [number]);
    }
    let mut long = speak(&table, request(), &["1 2 3 4 5 6 7 8 9"])
        .await
        .unwrap();
    let first = long.events.next().await.unwrap().unwrap();
    assert!(matches!(first, TtsEvent::Word { .. } | TtsEvent::Audio(_)));
    drop(long);
    let stream = speak(&table, request(), &["77"]).await.unwrap();
    assert_eq!(heard_in(&said(stream).await.unwrap(), HZ_16000), [77]);
    assert!(sockets(&emulators).len() <= 2, "a socket for each");
    // Whether it was the same socket depends on when the vendor had done with the other.
    let stream = speak(&table, request(), &["78"]).await.unwrap();
    assert_eq!(heard_in(&said(stream).await.unwrap(), HZ_16000), [78]);
    assert!(sockets(&emulators).len() <= 2);
}

#[actix_web::test]
async fn cut_samples_and_empty_messages_shift_nothing() {
    for fault in [
        "elevenlabs:tts:odd",
        "elevenlabs:tts:empty",
        "elevenlabs:tts:burst=300ms",
    ] {
        let emulators = scripted(&[fault]).await;
        let stream = speak(
            &ours(&emulators),
            asked(Encoding::Linear16, 16_000),
            &["1 22. 333"],
        )
        .await
        .unwrap();
        let sound = said(stream).await.unwrap();
        assert_eq!(sound.len() % 2, 0);
        assert_eq!(heard_in(&sound, HZ_16000), [1, 22, 333], "{fault}");
    }
}

#[actix_web::test]
async fn every_refusal_is_told_as_what_it_is() {
    let rate_limited = ErrorKind::RateLimited {
        retry_after: Some(Duration::from_secs(7)),
    };
    let rows = [
        ("status=401", ErrorKind::Auth, "Invalid API key"),
        ("status=402", ErrorKind::Quota, "unpaid"),
        ("status=403", ErrorKind::Auth, "may not use"),
        ("status=404", ErrorKind::InvalidRequest, "not found"),
        ("status=429,retry=7", rate_limited, "Too many concurrent"),
        ("status=503", ErrorKind::Unavailable, "internal error"),
        ("refuse", ErrorKind::Unavailable, ""),
    ];
    for (fault, kind, words) in rows {
        let emulators = scripted(&[&format!("elevenlabs:any:{fault}")]).await;
        let table = ours(&emulators);
        let unheard = hear(&emulators, &[0; 160], HZ_16000).await.unwrap_err();
        let stream = speak(&table, asked(Encoding::Linear16, 16_000), &["1"])
            .await
            .unwrap();
        let unsaid = said(stream).await.unwrap_err();
        let unlisted = table
            .text_to_speech(SLUG)
            .unwrap()
            .voices()
            .await
            .unwrap_err();
        for error in [unheard, unsaid, unlisted] {
            assert_eq!(error.kind, kind, "{fault}: {error}");
            assert!(error.message.contains(words), "{fault}: {error}");
            assert!(!error.message.contains("k1"));
        }
    }
}

#[actix_web::test]
async fn a_stream_that_the_vendor_ends_says_why() {
    let sound = tone_words(0..20, HZ_16000);
    for (fault, kind) in [
        ("close=1011@100ms", ErrorKind::Unavailable),
        ("close=1008,quota_exceeded@100ms", ErrorKind::Quota),
        ("reset@100ms", ErrorKind::Unavailable),
        ("limit=100ms", ErrorKind::Timeout),
    ] {
        let emulators = scripted(&[&format!("elevenlabs:stt:{fault}")]).await;
        let stt = ours(&emulators).speech_to_text(SLUG).unwrap();
        let mut stream = stt.open(stt_request(HZ_16000)).await.unwrap();
        // It is not ended by us.
        let _ = stream.sink.send(linear16::encode(&sound)).await;
        let error = loop {
            if let Err(error) = stream.events.next().await.unwrap() {
                break error;
            }
        };
        assert_eq!(error.kind, kind, "{fault}: {error}");
    }
    let emulators = scripted(&["elevenlabs:tts:close=1008,max_active_conversations"]).await;
    let stream = speak(&ours(&emulators), asked(Encoding::Linear16, 16_000), &["1"])
        .await
        .unwrap();
    let error = said(stream).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::RateLimited { retry_after: None });
}

#[actix_web::test]
async fn what_cannot_be_asked_for_is_refused_with_the_vendors_words() {
    let emulators = scripted(&[]).await;
    let table = ours(&emulators);
    let request = |voice: Option<&str>, model: &str| TtsRequest {
        voice_id: voice.map(str::to_owned),
        model: model.to_owned(),
        ..asked(Encoding::Linear16, 16_000)
    };
    for (voice, model, words) in [
        (Some("nobody"), "", "nobody was not found"),
        (None, "eleven_none", "eleven_none does not exist"),
    ] {
        let stream = speak(&table, request(voice, model), &["1"]).await.unwrap();
        let error = said(stream).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidRequest);
        assert!(error.message.contains(words), "{error}");
    }
    let here = speak(&table, request(None, "eleven_v3"), &["1"])
        .await
        .unwrap_err();
    assert_eq!(here.kind, ErrorKind::InvalidRequest);
    assert!(
        sockets(&emulators).len() == 2,
        "this one does not even knock"
    );

    let stt = table.speech_to_text(SLUG).unwrap();
    let mut odd = stt_request(HZ_16000);
    odd.keyterms = vec!["longer than twenty characters".to_owned()];
    let error = stt.open(odd).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidRequest);
    assert!(error.message.contains("keyterms"));
}

#[actix_web::test]
async fn a_callers_own_key_is_the_one_that_is_used() {
    let mut settings = Settings::new(Engine::Scripted);
    settings.key = Some("own".to_owned());
    let emulators = start(settings).await;
    let table = ours(&emulators);
    let own = || Some(Credential::new([("api_key", Secret::new("own"))]));

    let mut request = asked(Encoding::Linear16, 16_000);
    let refused = speak(&table, request.clone(), &["1"]).await.unwrap();
    assert_eq!(said(refused).await.unwrap_err().kind, ErrorKind::Auth);
    request.credential = own();
    let stream = speak(&table, request, &["1"]).await.unwrap();
    assert_eq!(heard_in(&said(stream).await.unwrap(), HZ_16000), [1]);

    let stt = table.speech_to_text(SLUG).unwrap();
    let mut request = stt_request(HZ_16000);
    let refused = stt.open(request.clone()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Auth);
    request.credential = own();
    let stream = stt.open(request).await.unwrap();
    let events = understood(stream, &tone_words([5], HZ_16000), HZ_16000).await;
    assert_eq!(finals(&events.unwrap()), ["5"]);
}

#[actix_web::test]
async fn every_page_of_voices_is_listed() {
    let emulators = scripted(&[]).await;
    let voices = ours(&emulators)
        .text_to_speech(SLUG)
        .unwrap()
        .voices()
        .await
        .unwrap();
    assert!(voices.len() > 100);
    let george = voices.iter().find(|voice| voice.name == "George").unwrap();
    assert_eq!(
        (george.language.as_str(), george.gender.as_str()),
        ("en-GB", "male")
    );
    let none = providers(&[]).text_to_speech(SLUG).unwrap();
    assert!(none.voices().await.unwrap().is_empty());
}

#[actix_web::test]
async fn a_session_hears_and_speaks_with_it() {
    let emulators = scripted(&[]).await;
    let url = format!("http://{}", emulators.plain);
    let server = Server::start_with(&[
        ("ELEVENLABS_API_KEY", "k1"),
        ("ELEVENLABS_STT_URL", &url),
        ("ELEVENLABS_TTS_URL", &url),
    ]);
    let mut session = Session::open(
        &server,
        config(json!({
            "stt_config": {"provider": SLUG, "sample_rate": 16000},
            "tts_config": {"provider": SLUG, "model": "", "audio_format": "linear16", "sample_rate": 16000},
        })),
    )
    .await;
    session.speak("a", "101 202 303").await;
    session.end_of("a").await;
    let sound: Vec<u8> = session
        .sound()
        .iter()
        .flat_map(|chunk| chunk.data.to_vec())
        .collect();
    assert_eq!(heard_in(&sound, HZ_16000), [101, 202, 303]);

    let mut speech = tone_words([11, 22, 33], HZ_16000);
    speech.resize(speech.len() + HZ_16000.frames_in(Duration::from_secs(3)), 0);
    for frame in speech.chunks(320) {
        session.send_sound(linear16::encode(frame)).await;
    }
    let turn = session.end_of_turn().await;
    assert_eq!(turn.text("turn_transcript"), "11 22 33");
}
