//! Azure: the Speech SDKs for Python (native) and JavaScript against our emulator, then our client and a whole session.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Value, json};
use vivavoce::audio::g711::Law;
use vivavoce::audio::{AudioFormat, Encoding, Pcm, SampleRate, linear16};
use vivavoce::emulators::engine::Engine;
use vivavoce::emulators::visit::Record;
use vivavoce::emulators::{Emulators, Settings};
use vivavoce::providers::{
    Credential, ErrorKind, ProviderError, SpeechToText, SttEvent, SttRequest, SttStream,
    TextToSpeech, TtsEvent, TtsRequest, Word,
};

use super::faults::heard_numbers;
use super::{
    Backed, client, english, finals, numbers_in, providers, said, scripted, start, stt_request,
    tone_words, understood,
};
use crate::harness::{
    PATIENCE, SENTENCES, Server, client as http, eventually, ffprobe, share_of_words, text_stream,
    tts_request,
};
use crate::session::client::{Session, config};
use crate::session::sound::{self, encoded};

const WIDE: SampleRate = SampleRate::HZ_16000;
/// A tone-word with the gap behind it.
const SLOT: f64 = 0.48;

fn host(emulators: &Emulators) -> String {
    format!("ws://{}", emulators.plain)
}

/// Ten words, with a pause of two slots in their midst: little more than the SDKs send without a delay of their own.
const NUMBERS: [u16; 10] = [1, 22, 333, 4444, 5555, 6666, 7777, 888, 99, 0];

/// A folder with their sound.
fn spoken_numbers() -> (tempfile::TempDir, String) {
    let mut sound = tone_words(NUMBERS[..5].iter().copied(), WIDE);
    sound.resize(
        sound.len() + (2.0 * SLOT * f64::from(WIDE.hz())) as usize,
        0,
    );
    sound.extend(tone_words(NUMBERS[5..].iter().copied(), WIDE));
    sound.resize(
        sound.len() + (2.0 * SLOT * f64::from(WIDE.hz())) as usize,
        0,
    );
    written(&sound)
}

fn written(sound: &[i16]) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sound");
    std::fs::write(&file, linear16::encode(sound)).unwrap();
    let name = file.display().to_string();
    (folder, name)
}

/// The words of an SDK's finals.
fn words_of(result: &Value) -> Vec<String> {
    assert_eq!(result["error"], Value::Null, "{result}");
    let finals = result["finals"].as_array().unwrap().iter();
    let texts: Vec<_> = finals.map(|heard| heard[0].as_str().unwrap()).collect();
    texts.join(" ").split(' ').map(str::to_owned).collect()
}

fn texts(numbers: impl IntoIterator<Item = u16>) -> Vec<String> {
    numbers
        .into_iter()
        .map(|number| number.to_string())
        .collect()
}

/// That an SDK was told of every word once and in its place, in two phrases, and of each as it came.
fn assert_heard(result: &Value, what: &str) {
    assert_eq!(words_of(result), texts(NUMBERS), "{what}");
    assert_eq!(result["partials"].as_array().unwrap().len(), 10, "{what}");
    assert_eq!(result["finals"].as_array().unwrap().len(), 2, "{what}");
    let words = result["words"].as_array().unwrap();
    for (index, word) in words.iter().enumerate() {
        let slot = if index < 5 { index } else { index + 2 };
        let start = word[1].as_f64().unwrap() / 1e7;
        assert!(
            (start - slot as f64 * SLOT).abs() < 0.03,
            "{what}: {words:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sdk_for_python_hears_every_word_on_both_paths() {
    let emulators = scripted(&[]).await;
    let (_folder, sound) = spoken_numbers();
    for path in ["", "/stt/speech/universal/v2"] {
        let address = host(&emulators) + path;
        let arguments = ["recognise", &address, "key", &sound, "0", "Contoso"];
        assert_heard(&client("azure_speech.py", &arguments).await, path);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sdk_for_python_loses_nothing_when_its_turns_are_ended() {
    let emulators = scripted(&["azure:stt:limit=30ms"]).await;
    let (_folder, sound) = spoken_numbers();
    let address = host(&emulators);
    // A turn that ends within a phrase makes two finals of it, so it is the words that the client waits for.
    let words = NUMBERS.len().to_string();
    let arguments = ["recognise", &address, "key", &sound, &words];
    let result = client("azure_speech.py", &arguments).await;
    assert_eq!(words_of(&result), texts(NUMBERS));
    assert!(turns_ended(&emulators) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sdk_for_javascript_hears_every_word() {
    let emulators = scripted(&[]).await;
    let (_folder, sound) = spoken_numbers();
    let address = format!("http://{}", emulators.plain);
    let result = client("azure_speech.mjs", &["recognise", &address, "key", &sound]).await;
    assert_heard(&result, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sdk_for_python_hears_english() {
    let emulators = english().await;
    let local = providers(&[]).text_to_speech("local").unwrap();
    let request = TtsRequest {
        preferred: AudioFormat::mono(Encoding::Linear16, WIDE),
        ..tts_request(None)
    };
    let speech = local
        .synthesize(request, text_stream(&[SENTENCES[1]]))
        .await
        .unwrap();
    assert_eq!(speech.format.layout.rate, WIDE);
    let (_folder, sound) = written(&linear16::samples(&said(speech).await.unwrap()));
    let address = host(&emulators);
    let result = client("azure_speech.py", &["recognise", &address, "key", &sound]).await;
    let heard = words_of(&result).join(" ");
    assert!(share_of_words(SENTENCES[1], &heard) > 0.6, "{heard}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_key_is_the_sdks_authentication_error() {
    let emulators = scripted(&[]).await;
    let (_folder, sound) = spoken_numbers();
    let address = host(&emulators);
    let result = client("azure_speech.py", &["recognise", &address, "bad", &sound]).await;
    assert_eq!(result["error"]["code"], "AuthenticationFailure", "{result}");
    let web = format!("http://{}", emulators.plain);
    let result = client("azure_speech.mjs", &["recognise", &web, "bad", &sound]).await;
    let details = result["error"]["details"].as_str().unwrap();
    assert!(details.contains("401"), "{details}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_sdks_say_decodes_as_the_format_that_they_asked_for() {
    let emulators = scripted(&[]).await;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let web = format!("http://{}", emulators.plain);
    let v2 = host(&emulators) + "/cognitiveservices/websocket/v2";
    let plain = host(&emulators);
    for (script, action, address, format, codec, rate) in [
        (
            "azure_speech.py",
            "synthesise",
            &plain,
            "Riff24Khz16BitMonoPcm",
            "pcm_s16le",
            "24000",
        ),
        (
            "azure_speech.py",
            "synthesise",
            &plain,
            "Audio24Khz48KBitRateMonoMp3",
            "mp3",
            "24000",
        ),
        (
            "azure_speech.py",
            "stream",
            &v2,
            "Riff16Khz16BitMonoPcm",
            "pcm_s16le",
            "16000",
        ),
        (
            "azure_speech.mjs",
            "synthesise",
            &web,
            "Riff24Khz16BitMonoPcm",
            "pcm_s16le",
            "24000",
        ),
    ] {
        let sound = file(format);
        let name = sound.display().to_string();
        let result = client(
            script,
            &[action, address, "key", "12 345 6789", format, &name],
        )
        .await;
        assert_eq!(
            result["reason"], "SynthesizingAudioCompleted",
            "{script} {action}: {result}"
        );
        let words = result["words"].as_array().unwrap().iter();
        let words: Vec<_> = words.map(|word| word[0].as_str().unwrap()).collect();
        assert_eq!(words, ["12", "345", "6789"], "{script} {action}");
        let probed = ffprobe(&sound, &[]);
        assert_eq!(probed["streams"][0]["codec_name"], codec, "{probed}");
        assert_eq!(probed["streams"][0]["sample_rate"], rate, "{probed}");
        if codec == "pcm_s16le" {
            assert_eq!(numbers_in_wav(&sound), [12, 345, 6789], "{script} {action}");
        }
    }
}

fn numbers_in_wav(file: &Path) -> Vec<u16> {
    let bytes = std::fs::read(file).unwrap();
    let rate = u32::from_le_bytes(bytes[24..28].try_into().unwrap());
    let data = bytes
        .windows(4)
        .position(|window| window == b"data")
        .unwrap();
    numbers_in(
        &linear16::samples(&bytes[data + 8..]),
        SampleRate::new(rate).unwrap(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sdks_list_the_voices() {
    let emulators = scripted(&[]).await;
    let web = format!("http://{}", emulators.plain);
    for (script, address) in [
        ("azure_speech.py", &host(&emulators)),
        ("azure_speech.mjs", &web),
    ] {
        let result = client(script, &["voices", address, "key"]).await;
        let voices = result["voices"].as_array().unwrap();
        assert!(
            voices.iter().any(|voice| voice[0] == "de-DE-KatjaNeural"),
            "{script}: {result}"
        );
    }
}

#[tokio::test]
async fn the_emulator_speaks_over_http_to_whoever_asks_properly() {
    let emulators = scripted(&[]).await;
    let url = format!("http://{}/cognitiveservices/v1", emulators.plain);
    let post = async |kind: &str, format: &str, voice: &str| {
        let ssml = format!("<speak version='1.0'><voice name='{voice}'>12 345</voice></speak>");
        let request = http().post(&url).body(ssml).header("content-type", kind);
        let request = request.header("ocp-apim-subscription-key", "key");
        let request = request.header("user-agent", "test");
        let answer = request
            .header("x-microsoft-outputformat", format)
            .send()
            .await
            .unwrap();
        (answer.status().as_u16(), answer.bytes().await.unwrap())
    };
    let (ssml, raw, voice) = (
        "application/ssml+xml",
        "raw-16khz-16bit-mono-pcm",
        "en-US-JennyNeural",
    );
    let (status, sound) = post(ssml, raw, voice).await;
    assert_eq!(
        (status, numbers_in(&linear16::samples(&sound), WIDE)),
        (200, vec![12, 345])
    );
    assert_eq!(post("text/plain", raw, voice).await.0, 415);
    assert_eq!(post(ssml, "wav", voice).await.0, 400);
    assert_eq!(post(ssml, raw, "Nobody").await.0, 400);
}

/// Our client of these emulators.
struct Azure {
    stt: Arc<dyn SpeechToText>,
    tts: Arc<dyn TextToSpeech>,
}

fn azure(emulators: &Emulators) -> Azure {
    let url = format!("http://{}", emulators.plain);
    let table = providers(&[
        ("providers.azure.subscription_key", "server-key"),
        ("providers.azure.stt_url", &url),
        ("providers.azure.tts_url", &url),
    ]);
    Azure {
        stt: table.speech_to_text("azure").unwrap(),
        tts: table.text_to_speech("azure").unwrap(),
    }
}

fn records(emulators: &Emulators, direction: &str) -> Vec<Record> {
    let mut records = emulators.emulation.log.all();
    records.retain(|record| record.direction == direction);
    records
}

#[tokio::test]
async fn our_client_hears_every_word_once_in_every_format() {
    let emulators = scripted(&[]).await;
    let azure = azure(&emulators);
    for rate in [SampleRate::HZ_8000, WIDE] {
        let stream = azure.stt.open(stt_request(rate)).await.unwrap();
        let sound = tone_words(200..245, rate);
        let heard = understood(stream, &sound, rate).await.unwrap();
        assert_eq!(finals(&heard), texts(200..245), "{} Hz", rate.hz());
        let partials = heard
            .iter()
            .filter(|event| matches!(event, SttEvent::Partial(_)));
        assert_eq!(partials.count(), 45);
        assert_in_place(&words_in(&heard), 0);
    }
    for (encoding, law) in [(Encoding::Mulaw, Law::Mu), (Encoding::Alaw, Law::A)] {
        let format = AudioFormat::mono(encoding, SampleRate::HZ_8000);
        let request = SttRequest {
            format,
            ..stt_request(SampleRate::HZ_8000)
        };
        let SttStream { sink, events } = azure.stt.open(request).await.unwrap();
        let sound = tone_words([7, 4711], SampleRate::HZ_8000);
        let mut companded = Vec::new();
        law.compress(&sound, &mut companded);
        sink.send(companded.into()).await.unwrap();
        sink.close();
        let heard: Vec<_> = events.map(Result::unwrap).collect().await;
        assert_eq!(finals(&heard), ["7", "4711"], "{encoding:?}");
    }
}

fn words_in(events: &[SttEvent]) -> Vec<Word> {
    let words = events.iter().filter_map(|event| match event {
        SttEvent::Final(heard) => Some(heard.words.clone()),
        _ => None,
    });
    words.flatten().collect()
}

/// The n-th word begins in the n-th slot, from the `first` on.
fn assert_in_place(words: &[Word], first: usize) {
    for (index, word) in words.iter().enumerate() {
        let meant = (first + index) as f64 * SLOT;
        assert!((word.start - meant).abs() < 0.03, "{index}: {words:?}");
    }
}

/// Reads events until a final; gives its words.
async fn next_final(stream: &mut SttStream) -> Vec<Word> {
    let reading = async {
        while let Some(event) = stream.events.next().await {
            if let SttEvent::Final(heard) = event.unwrap() {
                return heard.words;
            }
        }
        panic!("the events have ended")
    };
    tokio::time::timeout(PATIENCE, reading).await.unwrap()
}

#[tokio::test]
async fn finals_that_are_asked_for_lose_nothing_and_shift_nothing() {
    let emulators = scripted(&[]).await;
    let mut stream = azure(&emulators).stt.open(stt_request(WIDE)).await.unwrap();
    for round in 0..5u16 {
        let numbers = [3 * round, 3 * round + 1, 3 * round + 2];
        let sound = linear16::encode(&tone_words(numbers, WIDE));
        stream.sink.send(sound).await.unwrap();
        stream.sink.finalize().await.unwrap();
        let words = next_final(&mut stream).await;
        let heard: Vec<_> = words.iter().map(|word| word.word.clone()).collect();
        assert_eq!(heard, texts(numbers));
        assert_in_place(&words, usize::from(numbers[0]));
    }
}

/// How many turns the emulator has ended at will.
fn turns_ended(emulators: &Emulators) -> usize {
    let records = records(emulators, "stt");
    let notes = records.iter().flat_map(|record| &record.notes);
    notes
        .filter(|note| note.as_str() == "a turn was ended")
        .count()
}

#[tokio::test]
async fn turns_that_azure_ends_at_will_lose_nothing_and_double_nothing() {
    let emulators = scripted(&["azure:stt:limit=20ms"]).await;
    let mut stream = azure(&emulators).stt.open(stt_request(WIDE)).await.unwrap();
    for round in 0..10u16 {
        let numbers: Vec<_> = (4 * round..4 * round + 4).collect();
        let first = tone_words(numbers[..2].iter().copied(), WIDE);
        stream.sink.send(linear16::encode(&first)).await.unwrap();
        // Azure forgets what it has heard of the phrase: the turn is over.
        until_partial(&mut stream, "").await;
        let mut rest = tone_words(numbers[2..].iter().copied(), WIDE);
        rest.resize(rest.len() + (2.0 * SLOT * f64::from(WIDE.hz())) as usize, 0);
        stream.sink.send(linear16::encode(&rest)).await.unwrap();
        let words = next_final(&mut stream).await;
        let heard: Vec<_> = words.iter().map(|word| word.word.clone()).collect();
        assert_eq!(heard, texts(numbers));
        assert_in_place(&words, usize::from(6 * round));
    }
    stream.sink.close();
    let rest: Vec<_> = stream.events.map(Result::unwrap).collect().await;
    assert!(finals(&rest).is_empty(), "{rest:?}");
    assert!(turns_ended(&emulators) >= 10);
}

async fn until_partial(stream: &mut SttStream, text: &str) {
    let reading = async {
        while let Some(event) = stream.events.next().await {
            if matches!(event.unwrap(), SttEvent::Partial(heard) if heard.text == text) {
                return;
            }
        }
        panic!("the events have ended")
    };
    tokio::time::timeout(PATIENCE, reading).await.unwrap();
}

/// What a synthesiser says to this text, as numbers, and the words that it announces.
async fn numbers_said(
    tts: &dyn TextToSpeech,
    request: TtsRequest,
    text: &[&str],
) -> Result<(Vec<u16>, Vec<(String, Duration)>), ProviderError> {
    let stream = tts.synthesize(request, text_stream(text)).await?;
    let rate = stream.format.layout.rate;
    let (mut sound, mut words) = (Vec::new(), Vec::new());
    let mut events = stream.events;
    loop {
        let event = tokio::time::timeout(PATIENCE, events.next()).await;
        match event.unwrap().expect("Done is the last")? {
            TtsEvent::Audio(bytes) => sound.extend_from_slice(&bytes),
            TtsEvent::Word { word, start } => words.push((word, start)),
            TtsEvent::Done => break,
        }
    }
    Ok((numbers_in(&linear16::samples(&sound), rate), words))
}

#[tokio::test]
async fn our_client_says_every_word_at_every_rate() {
    let emulators = scripted(&[]).await;
    let azure = azure(&emulators);
    let text = ["12 345. ", "Then 6789 & 1 < 2."];
    for voice in [None, Some("de-DE-KatjaNeural")] {
        for hz in [8_000u32, 16_000, 24_000, 48_000] {
            let request = TtsRequest {
                preferred: AudioFormat::mono(Encoding::Linear16, SampleRate::new(hz).unwrap()),
                ..tts_request(voice)
            };
            let (numbers, words) = numbers_said(azure.tts.as_ref(), request, &text)
                .await
                .unwrap();
            assert_eq!(numbers[..2], [12, 345], "{voice:?} {hz}");
            assert_eq!(
                (numbers[3], numbers.len()),
                (6789, words.len()),
                "{words:?}"
            );
            for (index, (word, start)) in words.iter().enumerate() {
                let meant = index as f64 * SLOT;
                let off = (start.as_secs_f64() - meant).abs();
                assert!(off < 0.03, "{word} is at {start:?}, not at {meant}");
            }
        }
    }
    let sockets = records(&emulators, "tts").len();
    assert_eq!(sockets, 2, "one for each interface");
    let fast = TtsRequest {
        speaking_rate: 1.1,
        ..tts_request(None)
    };
    let (numbers, words) = numbers_said(azure.tts.as_ref(), fast, &["5 6 7"])
        .await
        .unwrap();
    assert_eq!(numbers, [5, 6, 7]);
    let last = words[2].1.as_secs_f64();
    assert!((last - 2.0 * SLOT / 1.1).abs() < 0.03, "{words:?}");
}

#[tokio::test]
async fn samples_that_are_cut_in_two_do_not_shift_what_follows() {
    let emulators = scripted(&["azure:tts:odd"]).await;
    let azure = azure(&emulators);
    // Sentences in turns of their own, each of which ends with half a sample.
    let text = ["12 345. ", "6 78. ", "90."];
    for voice in [None, Some("de-DE-KatjaNeural")] {
        let request = tts_request(voice);
        let (numbers, _) = numbers_said(azure.tts.as_ref(), request, &text)
            .await
            .unwrap();
        assert_eq!(numbers, [12, 345, 6, 78, 90], "{voice:?}");
    }
}

#[tokio::test]
async fn an_utterance_that_is_dropped_does_not_disturb_the_next() {
    let emulators = scripted(&[]).await;
    let azure = azure(&emulators);
    let long: Vec<String> = texts(1..400);
    let text = text_stream(&[&long.join(" ")]);
    let mut dropped = azure.tts.synthesize(tts_request(None), text).await.unwrap();
    while !matches!(
        dropped.events.next().await.unwrap().unwrap(),
        TtsEvent::Audio(_)
    ) {}
    drop(dropped);
    eventually("the utterance is called off", || {
        let said = records(&emulators, "tts")[0].said.len();
        said < 399
    })
    .await;
    for _ in 0..2 {
        let (numbers, _) = numbers_said(azure.tts.as_ref(), tts_request(None), &["7 8 9"])
            .await
            .unwrap();
        assert_eq!(numbers, [7, 8, 9]);
    }
    let sockets = records(&emulators, "tts").len();
    assert!(sockets <= 2, "{sockets}");
}

#[tokio::test]
async fn failures_are_told_apart() {
    let emulators = scripted(&[]).await;
    let azure = azure(&emulators);
    let limited = |retry_after| ErrorKind::RateLimited { retry_after };
    for (fault, kind) in [
        ("status=401", ErrorKind::Auth),
        ("status=403", ErrorKind::Auth),
        ("status=429,retry=7", limited(Some(Duration::from_secs(7)))),
        ("status=500", ErrorKind::Unavailable),
        ("status=503", ErrorKind::Unavailable),
        ("refuse", ErrorKind::Unavailable),
        ("reset", ErrorKind::Unavailable),
        ("close=1000,Idle timeout", ErrorKind::Timeout),
        ("close=1007,Quota exceeded", limited(None)),
        (
            "close=1007,Throttled due to too many requests",
            limited(None),
        ),
        ("close=1007,Unsupported voice", ErrorKind::InvalidRequest),
        ("close=1011", ErrorKind::Unavailable),
        (
            "close=1012,Instance is shutting down",
            ErrorKind::Unavailable,
        ),
        ("close=4429,throttled", limited(None)),
    ] {
        for direction in ["stt", "tts"] {
            let fault = format!("azure:{direction}:{fault}*1");
            emulators
                .emulation
                .faults
                .add(fault.parse().unwrap())
                .unwrap();
            let error = match direction {
                "stt" => heard_one(&azure).await.unwrap_err(),
                _ => {
                    let said = numbers_said(azure.tts.as_ref(), tts_request(None), &["1 2"]);
                    said.await.unwrap_err()
                }
            };
            assert_eq!(error.kind, kind, "{fault}: {error}");
            assert!(!error.message.contains("server-key"), "{error}");
        }
    }
    heard_one(&azure).await.unwrap();
}

async fn heard_one(azure: &Azure) -> Result<Vec<SttEvent>, ProviderError> {
    let stream = azure.stt.open(stt_request(WIDE)).await?;
    understood(stream, &tone_words([1], WIDE), WIDE).await
}

#[tokio::test]
async fn what_azure_does_not_know_is_refused_in_its_words() {
    let emulators = scripted(&[]).await;
    let azure = azure(&emulators);
    let nobody = tts_request(Some("xx-XX-NobodyNeural"));
    let error = numbers_said(azure.tts.as_ref(), nobody, &["1"])
        .await
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidRequest);
    assert!(
        error
            .message
            .contains("Unsupported voice xx-XX-NobodyNeural"),
        "{error}"
    );
    let nowhere = SttRequest {
        language: "english".to_owned(),
        ..stt_request(WIDE)
    };
    let error = azure.stt.open(nowhere).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidRequest, "{error}");
}

#[tokio::test]
async fn a_callers_own_credential_is_the_one_that_arrives() {
    let mut settings = Settings::new(Engine::Scripted);
    settings.key = Some("callers-key".to_owned());
    let emulators = start(settings).await;
    let azure = azure(&emulators);
    assert_eq!(heard_one(&azure).await.unwrap_err().kind, ErrorKind::Auth);
    let voices = azure.tts.voices().await.unwrap_err();
    assert_eq!(voices.kind, ErrorKind::Auth);
    let own = json!({"api_key": "callers-key", "region": "westeurope"});
    let own = serde_json::from_value(own).unwrap();
    let own = Credential::of_caller(&own, azure.stt.credential_fields()).unwrap();
    let request = SttRequest {
        credential: own.clone(),
        ..stt_request(WIDE)
    };
    let stream = azure.stt.open(request).await.unwrap();
    let heard = understood(stream, &tone_words([42], WIDE), WIDE)
        .await
        .unwrap();
    assert_eq!(finals(&heard), ["42"]);
    let request = TtsRequest {
        credential: own,
        ..tts_request(None)
    };
    let (numbers, _) = numbers_said(azure.tts.as_ref(), request, &["42"])
        .await
        .unwrap();
    assert_eq!(numbers, [42]);
}

#[tokio::test]
async fn our_voices_are_those_of_the_list() {
    let emulators = scripted(&[]).await;
    let voices = azure(&emulators).tts.voices().await.unwrap();
    let guy = voices
        .iter()
        .find(|voice| voice.id == "en-US-GuyNeural")
        .unwrap();
    assert_eq!(
        (guy.gender.as_str(), guy.accent.as_str()),
        ("male", "United States")
    );
    assert_eq!(guy.sample_rates, [48_000]);
    let keyless = providers(&[]).text_to_speech("azure").unwrap();
    assert!(keyless.voices().await.unwrap().is_empty());
}

/// Without voice activity detection, the session asks for a final whenever there was no text for a while, also within a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_final_that_a_session_asks_for_cuts_no_word_in_two() {
    let emulators = scripted(&[]).await;
    let backed = Backed::by(emulators);
    let mut session = Session::connect(&backed.server).await;
    let listen = json!({
        "stt_config": {"provider": "azure"},
        "vad": {"enabled": false, "speech_final_timeout_ms": 300},
    });
    session.send(config(listen)).await;
    session.next_of(&["ready"]).await;
    let sent: Vec<u16> = (100..112).collect();
    let mut words = tone_words(sent.iter().copied(), WIDE);
    words.resize(words.len() + WIDE.hz() as usize, 0);
    // As fast as a microphone, so that there is no text for so long within each word.
    let sound = Pcm::new(sound::WIDE.layout, words);
    session.hear(encoded(&sound, sound::WIDE).await).await;
    session.until_heard(sent.len(), PATIENCE).await;
    assert_eq!(heard_numbers(&session), sent, "{:?}", session.events());
    session.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_hears_and_speaks_by_azure() {
    let emulators = scripted(&[]).await;
    let url = format!("http://{}", emulators.plain);
    let server = Server::start_with(&[
        ("AZURE_STT_URL", &url),
        ("AZURE_TTS_URL", &url),
        ("AZURE_SPEECH_SUBSCRIPTION_KEY", "server-key"),
    ]);
    let config = json!({
        "type": "config",
        "stt_config": {"provider": "azure"},
        "tts_config": {"provider": "azure", "model": "", "sample_rate": 24_000},
    });
    let mut session = Session::open(&server, config).await;
    let mut sound = tone_words([11, 22, 33], WIDE);
    sound.extend(vec![0; WIDE.hz() as usize]);
    session.send_sound(linear16::encode(&sound)).await;
    let turn = session.end_of_turn().await;
    assert_eq!(turn.text("transcript"), "11 22 33", "{turn}");
    session.speak("a", "44 55 66").await;
    session.completion_of("a").await;
    let said: Vec<u8> = session
        .sound_of("a")
        .iter()
        .flat_map(|chunk| chunk.data.to_vec())
        .collect();
    let numbers = numbers_in(&linear16::samples(&said), SampleRate::HZ_24000);
    assert_eq!(numbers, [44, 55, 66]);
    session.close().await;
}
