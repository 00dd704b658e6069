//! Cartesia: its own client against our emulator, then ours, then a session.

use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Value, json};
use tempfile::TempDir;
use vivavoce::audio::{AudioFormat, Encoding, Layout, Pcm, SampleRate, linear16};
use vivavoce::config::value::Secret;
use vivavoce::emulators::engine::Engine;
use vivavoce::emulators::visit::Record;
use vivavoce::emulators::{Emulators, Settings};
use vivavoce::providers::{
    Credential, ErrorKind, ProviderError, ProviderTable, SttEvent, SttRequest, SttStream, TtsEvent,
    TtsRequest, TtsStream,
};

use super::{
    client, client_in, english, finals, numbers_in, providers, said, scripted, stt_request,
    tone_words, understood,
};
use crate::harness::{
    PATIENCE, SENTENCES, Server, ffprobe, share_of_words, text_stream, tts_request,
};
use crate::session::client::{Session, config, with};
use crate::session::sound;

const RATE: SampleRate = SampleRate::HZ_16000;
const SCRIPT: &str = "cartesia_sdk.py";
const NUMBERS: [u16; 6] = [12, 4711, 9999, 7, 4711, 305];

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn path(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

fn written(numbers: &[u16]) -> String {
    let words: Vec<String> = numbers.iter().map(u16::to_string).collect();
    words.join(" ")
}

/// Our client, of this emulator, with the server's key. It speaks over one socket at a time.
fn ours(emulators: &Emulators) -> ProviderTable {
    let url = format!("http://{}", emulators.plain);
    providers(&[
        ("providers.cartesia.api_key", "servers"),
        ("providers.cartesia.stt_url", &url),
        ("providers.cartesia.tts_url", &url),
        ("providers.cartesia.tts_streams", "1"),
    ])
}

/// The numbers, with a second of silence behind them.
fn spoken(numbers: &[u16]) -> Vec<i16> {
    let mut sound = tone_words(numbers.iter().copied(), RATE);
    sound.resize(sound.len() + 16_000, 0);
    sound
}

#[tokio::test(flavor = "multi_thread")]
async fn the_vendors_own_client_hears_every_word_in_every_way() {
    let emulators = scripted(&[]).await;
    let folder = folder();
    let file = path(&folder, "sound.pcm");
    std::fs::write(&file, linear16::encode(&spoken(&NUMBERS))).unwrap();
    let address = emulators.plain.to_string();
    let told = client(SCRIPT, &["hear", &address, "good", &file]).await;

    let words = written(&NUMBERS);
    for way in ["ink", "whisper", "floats"] {
        let told = &told[way];
        assert_eq!(told["final"], words.as_str(), "{way}: {told}");
        assert!(told["partials"].as_u64().unwrap() >= 5, "{way}: {told}");
        assert_eq!(told["words"].as_array().unwrap().len(), NUMBERS.len());
        let types = told["types"].as_array().unwrap();
        assert!(types.contains(&json!("flush_done")), "{way}: {told}");
        assert_eq!(types.last(), Some(&json!("done")), "{way}: {told}");
    }
    let first = &told["ink"]["words"][0];
    assert_eq!(first["word"], "12");
    assert!(first["start"].as_f64().unwrap() < first["end"].as_f64().unwrap());
    assert_eq!(told["turns"]["turns"], json!([words]));
    let types = told["turns"]["types"].as_array().unwrap();
    for kind in [
        "connected",
        "turn.start",
        "turn.update",
        "turn.eager_end",
        "turn.end",
    ] {
        assert!(types.contains(&json!(kind)), "{types:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_vendors_own_client_hears_and_says_english() {
    let emulators = english().await;
    let folder = folder();
    let address = emulators.plain.to_string();
    let text = SENTENCES[0];
    let place = folder.path().to_str().unwrap();
    client(SCRIPT, &["say", &address, "good", place, text]).await;
    let file = path(&folder, "context.pcm");
    let told = client(SCRIPT, &["hear", &address, "good", &file]).await;
    for heard in [
        &told["whisper"]["final"],
        &told["ink"]["final"],
        &told["turns"]["turns"][0],
    ] {
        let heard = heard.as_str().unwrap();
        assert!(share_of_words(text, heard) >= 0.7, "{text} became {heard}");
    }
}

fn linear(bytes: &[u8]) -> Vec<i16> {
    bytes
        .chunks_exact(2)
        .map(|two| i16::from_le_bytes([two[0], two[1]]))
        .collect()
}

fn read(folder: &TempDir, name: &str) -> Vec<u8> {
    std::fs::read(folder.path().join(name)).unwrap()
}

fn probe(folder: &TempDir, name: &str) -> (Value, Value) {
    let stream = ffprobe(Path::new(&path(folder, name)), &[])["streams"][0].clone();
    (stream["codec_name"].clone(), stream["sample_rate"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_vendors_own_client_is_told_every_word_in_every_format() {
    let emulators = scripted(&[]).await;
    let folder = folder();
    let address = emulators.plain.to_string();
    let place = folder.path().to_str().unwrap();
    let told = client(
        SCRIPT,
        &["say", &address, "good", place, &written(&NUMBERS)],
    )
    .await;

    for file in ["context.pcm", "events.pcm"] {
        let sound = linear(&read(&folder, file));
        assert_eq!(numbers_in(&sound, RATE), NUMBERS, "{file}");
    }
    let floats = read(&folder, "default.f32");
    let samples: Vec<i16> = floats
        .chunks_exact(4)
        .map(|four| (f32::from_le_bytes(four.try_into().unwrap()) * 32_767.0) as i16)
        .collect();
    let rate = SampleRate::new(44_100u32).unwrap();
    assert_eq!(numbers_in(&samples, rate), NUMBERS);
    assert_eq!(
        linear(&read(&folder, "bytes.wav")[44..]).len() * 2 + 44,
        read(&folder, "bytes.wav").len()
    );
    assert_eq!(
        probe(&folder, "bytes.wav"),
        (json!("pcm_s16le"), json!("16000"))
    );
    assert_eq!(
        probe(&folder, "floats.wav"),
        (json!("pcm_f32le"), json!("44100"))
    );
    assert_eq!(probe(&folder, "bytes.mp3"), (json!("mp3"), json!("44100")));
    // 480 ms for each word, one byte for each sample.
    assert_eq!(read(&folder, "bytes.mulaw").len(), NUMBERS.len() * 3_840);

    let words = told["context"]["words"].as_array().unwrap();
    assert_eq!(words.len(), NUMBERS.len());
    // The second text of the context goes on where the first has ended.
    let start = words[3][1].as_f64().unwrap();
    assert!((start - 3.0 * 0.48).abs() < 0.05, "{words:?}");
    assert_eq!(
        told["context"]["types"].as_array().unwrap().last(),
        Some(&json!("done"))
    );
    assert_eq!(
        told["events"].as_array().unwrap().last(),
        Some(&json!("done"))
    );
    assert_eq!(told["wrong"]["status"], 400);
    assert_eq!(told["bad_model"], "model_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_vendors_own_client_lists_all_voices_and_knows_a_bad_key() {
    let emulators = scripted(&[]).await;
    let address = emulators.plain.to_string();
    let told = client(SCRIPT, &["voices", &address, "good"]).await;
    let listed = told["voices"].as_array().unwrap();
    assert!(listed.len() > 100 && told["language"] == "en-US", "{told}");
    assert_eq!(told["opened"], true);

    let ours = ours(&emulators).text_to_speech("cartesia").unwrap();
    let ids: Vec<_> = ours
        .voices()
        .await
        .unwrap()
        .into_iter()
        .map(|voice| json!(voice.id))
        .collect();
    assert_eq!(&ids, listed);

    let told = client(SCRIPT, &["voices", &address, "bad"]).await;
    assert_eq!(
        told["refused"],
        json!({"status": 401, "title": "Unauthorized"})
    );
    assert_eq!(told["socket_refused"], 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_vendors_own_client_for_javascript_hears_and_says_every_word() {
    const SCRIPT: &str = "cartesia_sdk.mjs";
    let emulators = scripted(&[]).await;
    let authority = emulators.ca_file().display().to_string();
    let run = async |arguments: &[&str]| {
        // It speaks nothing but TLS.
        let environment = [("NODE_EXTRA_CA_CERTS", authority.as_str())];
        client_in(&environment, SCRIPT, arguments).await
    };
    let address = emulators.tls.to_string();
    let folder = folder();
    let (sound, wav) = (path(&folder, "sound.pcm"), path(&folder, "sound.wav"));
    let words = written(&NUMBERS);
    let (first, second) = words.split_at(8);
    let told = run(&["say", &address, "good", first, second, &sound, &wav]).await;
    assert_eq!(
        told["words"],
        json!(NUMBERS.map(|number| number.to_string()))
    );
    assert_eq!(
        told["types"].as_array().unwrap().last(),
        Some(&json!("done"))
    );
    let said = linear(&read(&folder, "sound.pcm"));
    assert_eq!(numbers_in(&said, RATE), NUMBERS);
    assert_eq!(
        probe(&folder, "sound.wav"),
        (json!("pcm_s16le"), json!("16000"))
    );

    std::fs::write(&sound, linear16::encode(&spoken(&NUMBERS))).unwrap();
    let told = run(&["hear", &address, "good", &sound]).await;
    assert_eq!(told["whisper"], json!([words]), "{told}");
    assert_eq!(told["turns"], json!([words]), "{told}");
    assert_eq!(told["failures"], json!([]));

    let told = run(&["voices", &address, "good"]).await;
    assert!(told["voices"].as_array().unwrap().len() > 100, "{told}");
    let told = run(&["voices", &address, "bad"]).await;
    assert_eq!(told["refused"], 401);
}

fn partials(events: &[SttEvent]) -> usize {
    let is_partial = |event: &&SttEvent| matches!(event, SttEvent::Partial(_));
    events.iter().filter(is_partial).count()
}

fn request(model: &str) -> SttRequest {
    SttRequest {
        model: model.to_owned(),
        ..stt_request(RATE)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn words_in_are_words_out_by_both_sockets() {
    let emulators = scripted(&[]).await;
    let ink = ours(&emulators).speech_to_text("cartesia").unwrap();
    let numbers: Vec<u16> = (0..50).map(|number| number * 199 + 3).collect();
    for model in ["", "ink-whisper"] {
        let stream = ink.open(request(model)).await.unwrap();
        let events = understood(stream, &spoken(&numbers), RATE).await.unwrap();
        assert_eq!(finals(&events).join(" "), written(&numbers), "{model}");
        assert!(partials(&events) > 40);
        let ended = events
            .iter()
            .any(|event| matches!(event, SttEvent::EndOfSpeech));
        assert_eq!(
            ended,
            model.is_empty(),
            "only turns are ended by the vendor"
        );
    }
    let record = &emulators.emulation.log.all()[0];
    let query = |name: &str| {
        record
            .query
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    };
    assert_eq!(record.path, "/stt/turns/websocket");
    assert_eq!(
        (query("model"), query("sample_rate")),
        (Some("ink-2"), Some("16000"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn telephone_sound_is_heard_as_it_is() {
    let emulators = scripted(&[]).await;
    let ink = ours(&emulators).speech_to_text("cartesia").unwrap();
    for encoding in [Encoding::Mulaw, Encoding::Alaw] {
        let format = AudioFormat::mono(encoding, SampleRate::HZ_8000);
        let request = SttRequest {
            format,
            ..request("")
        };
        let SttStream { sink, events } = ink.open(request).await.unwrap();
        let sound = Pcm::new(Layout::mono(RATE), spoken(&NUMBERS));
        for piece in sound::encoded(&sound, format).await {
            sink.send(piece.data).await.unwrap();
        }
        sink.close();
        let events: Vec<_> = events.map(Result::unwrap).collect().await;
        assert_eq!(finals(&events).join(" "), written(&NUMBERS), "{encoding}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_heard_becomes_final_when_asked_and_the_stream_goes_on() {
    let emulators = scripted(&[]).await;
    let ink = ours(&emulators).speech_to_text("cartesia").unwrap();
    for model in ["", "ink-whisper"] {
        let mut stream = ink.open(request(model)).await.unwrap();
        for numbers in [[11, 12], [13, 14]] {
            let sound = tone_words(numbers, RATE);
            stream.sink.send(linear16::encode(&sound)).await.unwrap();
            // Only when it is known that somebody speaks can a turn be hurried.
            let heard = next(&mut stream, |event| matches!(event, SttEvent::Partial(heard) if heard.text.contains(&numbers[1].to_string()))).await;
            assert!(matches!(heard, SttEvent::Partial(_)));
            stream.sink.finalize().await.unwrap();
            let heard = next(&mut stream, |event| matches!(event, SttEvent::Final(_))).await;
            assert_eq!(finals(&[heard]).join(" "), written(&numbers), "{model}");
        }
        let events = understood(stream, &spoken(&[15]), RATE).await.unwrap();
        assert_eq!(finals(&events), ["15"], "{model}");
    }
}

/// The next event of this kind.
async fn next(stream: &mut SttStream, is_it: impl Fn(&SttEvent) -> bool) -> SttEvent {
    let coming = async {
        loop {
            let event = stream
                .events
                .next()
                .await
                .expect("the stream goes on")
                .unwrap();
            if is_it(&event) {
                return event;
            }
        }
    };
    tokio::time::timeout(PATIENCE, coming)
        .await
        .expect("it comes")
}

async fn say(
    table: &ProviderTable,
    request: TtsRequest,
    parts: &[&str],
) -> Result<TtsStream, ProviderError> {
    let sonic = table.text_to_speech("cartesia").unwrap();
    sonic.synthesize(request, text_stream(parts)).await
}

fn preferring(hz: u32) -> TtsRequest {
    TtsRequest {
        preferred: AudioFormat::mono(Encoding::Linear16, SampleRate::new(hz).unwrap()),
        ..tts_request(None)
    }
}

fn spoken_by(emulators: &Emulators) -> Vec<Record> {
    let records = emulators.emulation.log.all().into_iter();
    records.filter(|record| record.direction == "tts").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_word_is_said_once_at_every_rate_and_over_one_socket() {
    let emulators = scripted(&[]).await;
    let table = ours(&emulators);
    let words = written(&NUMBERS);
    let (first, second) = words.split_at(8);
    for hz in [8_000, 24_000, 48_000] {
        let stream = say(&table, preferring(hz), &[first, second]).await.unwrap();
        let rate = stream.format.layout.rate;
        assert_eq!(
            (stream.format.encoding, rate.hz()),
            (Encoding::Linear16, hz)
        );
        let sound = linear(&said(stream).await.unwrap());
        assert_eq!(numbers_in(&sound, rate), NUMBERS, "{hz}");
    }
    assert_eq!(spoken_by(&emulators).len(), 1, "one socket for all");
}

#[tokio::test(flavor = "multi_thread")]
async fn words_are_told_with_their_times() {
    let emulators = scripted(&[]).await;
    let stream = say(&ours(&emulators), preferring(16_000), &["1 2. ", "3 4"]).await;
    let mut events = stream.unwrap().events;
    let mut words = Vec::new();
    while let Some(event) = events.next().await {
        if let TtsEvent::Word { word, start } = event.unwrap() {
            words.push((word, start.as_millis()));
        }
    }
    let expected = [("1", 0), ("2.", 480), ("3", 960), ("4", 1_440)];
    let words: Vec<_> = words
        .iter()
        .map(|(word, start)| (word.as_str(), *start))
        .collect();
    assert_eq!(words, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_called_off_utterance_leaves_its_socket_to_the_next() {
    let emulators = scripted(&[]).await;
    let table = ours(&emulators);
    let long: Vec<u16> = (0..400).collect();
    let stream = say(&table, preferring(16_000), &[&written(&long)])
        .await
        .unwrap();
    let mut events = stream.events;
    loop {
        let event = events.next().await.expect("it is said").unwrap();
        if matches!(event, TtsEvent::Audio(_)) {
            break;
        }
    }
    drop(events);
    // There is one permit, which is given back when the socket is free.
    let stream = say(&table, preferring(16_000), &[&written(&NUMBERS)])
        .await
        .unwrap();
    let sound = linear(&said(stream).await.unwrap());
    assert_eq!(numbers_in(&sound, RATE), NUMBERS);
    assert_eq!(spoken_by(&emulators).len(), 1, "the same socket");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sample_that_is_cut_shifts_nothing() {
    let emulators = scripted(&["cartesia:tts:odd"]).await;
    let table = ours(&emulators);
    for _ in 0..2 {
        let stream = say(&table, preferring(16_000), &["12 4711. ", "9999 7"])
            .await
            .unwrap();
        let sound = linear(&said(stream).await.unwrap());
        assert_eq!(numbers_in(&sound, RATE), [12, 4711, 9999, 7]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn telephone_sound_is_the_vendors_own() {
    let emulators = scripted(&[]).await;
    let request = TtsRequest {
        preferred: AudioFormat::mono(Encoding::Mulaw, SampleRate::HZ_8000),
        ..tts_request(None)
    };
    let stream = say(&ours(&emulators), request, &["12 7"]).await.unwrap();
    assert_eq!(stream.format.encoding, Encoding::Mulaw);
    assert_eq!(said(stream).await.unwrap().len(), 2 * 3_840);
}

/// What becomes of a recognition and of a synthesis with this fault.
async fn failures(fault: &str) -> [Option<ProviderError>; 2] {
    let emulators = scripted(&[&format!("cartesia:any:{fault}")]).await;
    let table = ours(&emulators);
    let ink = table.speech_to_text("cartesia").unwrap();
    let heard = match ink.open(request("")).await {
        Ok(stream) => understood(stream, &spoken(&[1, 2, 3]), RATE).await.err(),
        Err(error) => Some(error),
    };
    let spoken = say(&table, preferring(16_000), &["1 2 3"]).await.unwrap();
    [heard, said(spoken).await.err()]
}

#[tokio::test(flavor = "multi_thread")]
async fn each_failure_of_the_vendor_has_its_kind_and_the_vendors_words() {
    let limited = |seconds: Option<u64>| ErrorKind::RateLimited {
        retry_after: seconds.map(Duration::from_secs),
    };
    for (fault, kind, words) in [
        ("status=400", ErrorKind::InvalidRequest, "Bad request"),
        ("status=401", ErrorKind::Auth, "Unauthorized"),
        ("status=402", ErrorKind::Quota, "Out of credits"),
        ("status=403", ErrorKind::Auth, "Forbidden"),
        ("status=404", ErrorKind::InvalidRequest, "Not found"),
        (
            "status=429,retry=7",
            limited(Some(7)),
            "Too many concurrent requests",
        ),
        ("status=429", limited(None), "concurrency limit"),
        (
            "status=500",
            ErrorKind::Unavailable,
            "Internal server error",
        ),
        ("status=503", ErrorKind::Unavailable, "(request 76697661"),
        ("refuse", ErrorKind::Unavailable, ""),
        ("close", ErrorKind::Unavailable, "1011 Internal error"),
        ("close=1012,restart", ErrorKind::Unavailable, "1012 restart"),
        (
            "close=1008,policy",
            ErrorKind::InvalidRequest,
            "1008 policy",
        ),
        ("close=1003,what", ErrorKind::Protocol, "1003 what"),
        ("reset", ErrorKind::Unavailable, ""),
    ] {
        for error in failures(fault).await {
            let error = error.unwrap_or_else(|| panic!("{fault} passes unnoticed"));
            assert_eq!(error.kind, kind, "{fault}: {error}");
            assert!(error.message.contains(words), "{fault}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_vendor_does_not_have_is_refused_in_its_words() {
    let emulators = scripted(&[]).await;
    let table = ours(&emulators);
    let wrong_voice = TtsRequest {
        voice_id: Some("nobody".to_owned()),
        ..preferring(16_000)
    };
    let wrong_model = TtsRequest {
        model: "nobody".to_owned(),
        ..preferring(16_000)
    };
    for (wrong, words) in [
        (wrong_voice, "Voice not found"),
        (wrong_model, "Invalid model"),
    ] {
        let stream = say(&table, wrong, &["1"]).await.unwrap();
        let error = said(stream).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidRequest);
        assert!(error.message.contains(words), "{error}");
    }
    let ink = table.speech_to_text("cartesia").unwrap();
    let error = ink.open(request("nobody")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidRequest);
    assert!(error.message.contains("Invalid model"), "{error}");
    let terms = SttRequest {
        keyterms: vec!["x".to_owned(); 101],
        ..request("")
    };
    let error = ink.open(terms).await.unwrap_err();
    assert!(error.message.contains("Too many keyterms"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_callers_own_credential_is_what_arrives() {
    let mut settings = Settings::new(Engine::Scripted);
    settings.key = Some("callers".to_owned());
    let emulators = super::start(settings).await;
    let table = ours(&emulators);
    let credential = Some(Credential::new([("api_key", Secret::new("callers"))]));
    let ink = table.speech_to_text("cartesia").unwrap();
    assert_eq!(
        ink.open(request("")).await.unwrap_err().kind,
        ErrorKind::Auth
    );
    let own = SttRequest {
        credential: credential.clone(),
        ..request("")
    };
    ink.open(own).await.unwrap();
    let stream = say(&table, preferring(16_000), &["1"]).await.unwrap();
    assert_eq!(said(stream).await.unwrap_err().kind, ErrorKind::Auth);
    let own = TtsRequest {
        credential,
        ..preferring(16_000)
    };
    said(say(&table, own, &["1"]).await.unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_hears_and_speaks_by_it() {
    let emulators = scripted(&[]).await;
    let url = format!("http://{}", emulators.plain);
    let server = Server::start_with(&[
        ("CARTESIA_API_KEY", "servers"),
        ("CARTESIA_STT_URL", &url),
        ("CARTESIA_TTS_URL", &url),
    ]);
    let provider = json!({"provider": "cartesia"});
    let mut session = Session::open(
        &server,
        config(json!({
            "stt_config": provider,
            "tts_config": with(provider.clone(), json!({"model": "", "sample_rate": 24000})),
        })),
    )
    .await;
    session.speak("u1", &written(&NUMBERS)).await;
    session.end_of("u1").await;
    let sound = sound::decoded(&session.sound_of("u1"), sound::OUTPUT);
    assert_eq!(numbers_in(sound.samples(), SampleRate::HZ_24000), NUMBERS);

    let heard = Pcm::new(Layout::mono(RATE), spoken(&NUMBERS));
    session
        .hear(sound::encoded(&heard, sound::WIDE).await)
        .await;
    let end = session.end_of_turn().await;
    assert_eq!(end.text("turn_transcript"), written(&NUMBERS));
    session.close().await;
}
