//! Google: its own Python clients against our emulator, our client against the same, and whole sessions.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use futures_util::StreamExt;
use rsa::pkcs8::{EncodePrivateKey, LineEnding};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_stream::wrappers::ReceiverStream;
use vivavoce::audio::g711::Law;
use vivavoce::audio::{Encoding, SampleRate, linear16};
use vivavoce::emulators::Emulators;
use vivavoce::emulators::engine::Engine;
use vivavoce::emulators::visit::Record;
use vivavoce::providers::{
    Credential, ErrorKind, ProviderError, ProviderTable, SttEvent, SttRequest, TtsEvent,
    TtsRequest, TtsStream,
};

use super::{
    client, english, finals, numbers_in, providers, said, scripted, start, stt_request, tone_words,
    understood,
};
use crate::harness::{
    PATIENCE, SENTENCES, Server, eventually, ffprobe, run, share_of_words, text_stream, tts_request,
};
use crate::session::client::Session;

const RATE: SampleRate = SampleRate::HZ_16000;
const SLUG: &str = "google";

/// A service account by this name, whose tokens the emulators give.
pub(super) fn account(emulators: &Emulators, name: &str) -> Value {
    static KEY: LazyLock<String> = LazyLock::new(|| {
        let key = rsa::RsaPrivateKey::new(&mut rsa::rand_core::OsRng, 2048).unwrap();
        key.to_pkcs8_pem(LineEnding::LF).unwrap().to_string()
    });
    json!({
        "type": "service_account",
        "project_id": "voices-1",
        "private_key": *KEY,
        "client_email": format!("{name}@voices-1.iam.gserviceaccount.com"),
        "token_uri": format!("http://{}/token", emulators.plain),
    })
}

/// A server's credential: its file, in a folder that must be kept.
pub(super) fn credential(emulators: &Emulators, name: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("account.json");
    std::fs::write(&file, account(emulators, name).to_string()).unwrap();
    (folder, file)
}

/// A server's providers, whose account has this name.
fn providers_as(emulators: &Emulators, name: &str) -> ProviderTable {
    let (_folder, file) = credential(emulators, name);
    let url = format!("http://{}", emulators.grpc);
    providers(&[
        ("providers.google.credentials", file.to_str().unwrap()),
        ("providers.google.stt_url", &url),
        ("providers.google.tts_url", &url),
    ])
}

/// The records of calls of gRPC in a direction.
fn calls(emulators: &Emulators, direction: &str) -> Vec<Record> {
    let mut records = emulators.emulation.log.all();
    records.retain(|record| record.direction == direction);
    records
}

/// Words of the finals of our client, sent these numbers.
async fn hear(
    table: &ProviderTable,
    request: SttRequest,
    numbers: impl IntoIterator<Item = u16>,
) -> Result<Vec<SttEvent>, ProviderError> {
    let rate = request.format.layout.rate;
    let stream = table.speech_to_text(SLUG).unwrap().open(request).await?;
    understood(stream, &tone_words(numbers, rate), rate).await
}

async fn say(
    table: &ProviderTable,
    request: TtsRequest,
    text: &str,
) -> Result<TtsStream, ProviderError> {
    let synthesiser = table.text_to_speech(SLUG).unwrap();
    synthesiser.synthesize(request, text_stream(&[text])).await
}

fn at_rate(hz: u32) -> TtsRequest {
    let mut request = tts_request(None);
    request.model = String::new();
    request.preferred.encoding = Encoding::Linear16;
    request.preferred.layout.rate = SampleRate::new(hz).unwrap();
    request
}

fn samples(bytes: &[u8]) -> Vec<i16> {
    let mut samples = Vec::new();
    linear16::decode(bytes, &mut samples);
    samples
}

/// The numbers in everything that is said.
async fn numbers_said(stream: TtsStream) -> Result<Vec<u16>, ProviderError> {
    let rate = stream.format.layout.rate;
    Ok(numbers_in(&samples(&said(stream).await?), rate))
}

fn text_of(numbers: &[u16]) -> String {
    let words: Vec<_> = numbers.iter().map(ToString::to_string).collect();
    words.join(" ")
}

fn texts(numbers: impl IntoIterator<Item = u16>) -> Vec<String> {
    numbers
        .into_iter()
        .map(|number| number.to_string())
        .collect()
}

fn error_is(refusal: &Value, kind: &str, part: &str) {
    assert_eq!(refusal["error"], kind, "{refusal}");
    let message = refusal["message"].as_str().unwrap();
    assert!(message.contains(part), "{refusal}");
}

async fn speech_sdk(emulators: &Emulators, sound: &[u8], rate: SampleRate) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sound.pcm");
    std::fs::write(&file, sound).unwrap();
    let (address, rate) = (emulators.grpc.to_string(), rate.hz().to_string());
    let arguments = [&address, "key", file.to_str().unwrap(), &rate];
    client("google_speech.py", &arguments).await
}

#[tokio::test(flavor = "multi_thread")]
async fn googles_own_client_hears_each_word_and_is_refused_in_googles_words() {
    let emulators = scripted(&[]).await;
    let numbers = 100..130;
    let sound = linear16::encode(&tone_words(numbers.clone(), RATE));
    let heard = speech_sdk(&emulators, &sound, RATE).await;
    assert_eq!(heard["text"], texts(numbers.clone()).join(" "), "{heard}");
    assert!(heard["interims"].as_u64().unwrap() > 10, "{heard}");
    let words = heard["words"].as_array().unwrap();
    let spelt: Vec<_> = words.iter().map(|word| word[0].as_str().unwrap()).collect();
    assert_eq!(spelt, texts(numbers));
    // The same by v1, and of whole files.
    for by in ["v1_whole", "v2_whole"] {
        assert_eq!(heard[by], heard["text"], "{by}: {heard}");
    }
    assert_eq!(heard["v1"]["text"], heard["text"], "{heard}");
    assert_eq!(heard["v1"]["ends"].as_array().unwrap().len(), words.len());
    let refused = heard["v1_refused"].as_str().unwrap();
    assert!(refused.contains("not supported for language"), "{refused}");
    for (index, word) in words.iter().enumerate() {
        let (start, end) = (word[1].as_f64().unwrap(), word[2].as_f64().unwrap());
        assert!(
            (start - index as f64 * 0.48).abs() < 0.05 && end > start,
            "{word}"
        );
    }
    assert_eq!(heard["events"][0], "SPEECH_ACTIVITY_BEGIN", "{heard}");
    error_is(
        &heard["bad_key"],
        "Unauthenticated",
        "invalid authentication credentials",
    );
    error_is(
        &heard["no_key"],
        "Unauthenticated",
        "missing required authentication",
    );
    error_is(
        &heard["long_chunk"],
        "InvalidArgument",
        "maximum of 25600 bytes",
    );
    error_is(
        &heard["second_config"],
        "InvalidArgument",
        "does not exist in the location",
    );
    error_is(
        &heard["model_elsewhere"],
        "InvalidArgument",
        "\"chirp_3\" does not exist",
    );
    error_is(&heard["word_times"], "InvalidArgument", "word_timestamps");
}

#[tokio::test(flavor = "multi_thread")]
async fn googles_own_client_understands_a_sentence() {
    let emulators = english().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sentence.wav");
    let sentence = SENTENCES[0];
    let said = run(
        "flite",
        [
            "-voice",
            "slt",
            "-t",
            sentence,
            "-o",
            file.to_str().unwrap(),
        ],
    );
    assert!(said.status.success());
    let wav = std::fs::read(&file).unwrap();
    let mut sound = wav[44..].to_vec();
    sound.resize(sound.len() + 2 * RATE.hz() as usize, 0);
    let heard = speech_sdk(&emulators, &sound, RATE).await;
    let share = share_of_words(sentence, heard["text"].as_str().unwrap());
    assert!(share >= 0.8, "{sentence}: {heard}");
}

#[tokio::test(flavor = "multi_thread")]
async fn googles_own_client_says_every_format_and_lists_the_voices() {
    let emulators = scripted(&[]).await;
    let folder = tempfile::tempdir().unwrap();
    let (grpc, http) = (
        emulators.grpc.to_string(),
        format!("http://{}", emulators.plain),
    );
    let folder_name = folder.path().to_str().unwrap();
    let arguments = [
        &grpc,
        &http,
        "key",
        folder_name,
        "11 12 13. ",
        "14 15",
        " 16 17.",
    ];
    let learnt = client("google_texttospeech.py", &arguments).await;

    let numbers: Vec<u16> = (11..=17).collect();
    let file = |name: &str| folder.path().join(name);
    for (name, hz) in [
        ("stream-8000.pcm", 8_000),
        ("stream-24000.pcm", 24_000),
        ("whole.pcm", 16_000),
    ] {
        let sound = samples(&std::fs::read(file(name)).unwrap());
        assert_eq!(
            numbers_in(&sound, SampleRate::new(hz as u64).unwrap()),
            numbers,
            "{name}"
        );
    }
    for (name, codec, hz) in [
        ("whole.wav", "pcm_s16le", "24000"),
        ("whole.mp3", "mp3", "24000"),
        ("whole.ogg", "opus", "48000"),
        ("mulaw.wav", "pcm_mulaw", "8000"),
        ("alaw.wav", "pcm_alaw", "8000"),
        ("stream.ogg", "opus", "48000"),
        ("rest.wav", "pcm_s16le", "16000"),
    ] {
        let probed = ffprobe(&file(name), &[]);
        let stream = &probed["streams"][0];
        assert_eq!(
            (&stream["codec_name"], &stream["sample_rate"]),
            (&json!(codec), &json!(hz)),
            "{name}"
        );
        assert_eq!(decoded(&file(name), &[]), numbers, "{name}");
    }
    let raw = ["-f", "mulaw", "-ar", "8000", "-ac", "1"];
    assert_eq!(decoded(&file("stream.mulaw"), &raw), numbers);

    let voices = learnt["voices"].as_array().unwrap();
    assert!(
        voices.contains(&json!(["en-US-Chirp3-HD-Charon", ["en-US"], "MALE"])),
        "{learnt}"
    );
    let german = learnt["rest_voices"].as_array().unwrap();
    assert!(!german.is_empty() && german.len() < voices.len());
    assert!(
        german.iter().all(|voice| voice[1] == json!(["de-DE"])),
        "{learnt}"
    );

    error_is(
        &learnt["bad_key"],
        "Unauthenticated",
        "invalid authentication credentials",
    );
    error_is(
        &learnt["rest_bad_key"],
        "Unauthorized",
        "invalid authentication credentials",
    );
    error_is(
        &learnt["no_streaming"],
        "InvalidArgument",
        "only Chirp 3: HD voices",
    );
    error_is(&learnt["no_mp3"], "InvalidArgument", "audio encoding");
    error_is(&learnt["no_voice"], "InvalidArgument", "does not exist");
    error_is(&learnt["long_text"], "InvalidArgument", "5000 bytes");
}

/// The numbers in a file that ffmpeg can read.
fn decoded(file: &Path, raw: &[&str]) -> Vec<u16> {
    let name = file.to_str().unwrap();
    let all = [
        &["-v", "error"],
        raw,
        &["-i", name, "-f", "s16le", "-ar", "16000", "-ac", "1", "-"],
    ];
    let output = run("ffmpeg", all.concat());
    assert!(output.status.success(), "{name}");
    numbers_in(&samples(&output.stdout), RATE)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_word_that_goes_in_comes_out_once_at_its_place() {
    let emulators = scripted(&[]).await;
    let table = providers_as(&emulators, "server");
    for rate in [SampleRate::HZ_8000, RATE, SampleRate::HZ_48000] {
        let events = hear(&table, stt_request(rate), 200..260).await.unwrap();
        assert_eq!(finals(&events), texts(200..260));
        let partials = events
            .iter()
            .filter(|event| matches!(event, SttEvent::Partial(_)));
        assert!(partials.count() > 20);
        let words = events.iter().filter_map(|event| match event {
            SttEvent::Final(heard) => Some(&heard.words),
            _ => None,
        });
        for (index, word) in words.flatten().enumerate() {
            assert!((word.start - index as f64 * 0.48).abs() < 0.05, "{word:?}");
        }
    }
    for (encoding, law) in [(Encoding::Mulaw, Law::Mu), (Encoding::Alaw, Law::A)] {
        let mut request = stt_request(SampleRate::HZ_8000);
        request.format.encoding = encoding;
        let recogniser = table.speech_to_text(SLUG).unwrap();
        let stream = recogniser.open(request).await.unwrap();
        let mut sound = Vec::new();
        law.compress(&tone_words(7..12, SampleRate::HZ_8000), &mut sound);
        stream.sink.send(sound.into()).await.unwrap();
        stream.sink.close();
        let events: Vec<_> = stream.events.map(Result::unwrap).collect().await;
        assert_eq!(finals(&events), texts(7..12));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_heard_becomes_final_when_asked_and_the_stream_goes_on() {
    let emulators = scripted(&[]).await;
    let table = providers_as(&emulators, "server");
    let recogniser = table.speech_to_text(SLUG).unwrap();
    let mut stream = recogniser.open(stt_request(RATE)).await.unwrap();
    // With nothing said there is nothing to make final.
    stream.sink.finalize().await.unwrap();
    for group in 0..8u16 {
        let sound = linear16::encode(&tone_words(group * 10..group * 10 + 3, RATE));
        stream.sink.send(sound).await.unwrap();
        stream.sink.finalize().await.unwrap();
    }
    stream.sink.close();
    let mut words = Vec::new();
    while let Some(event) = stream.events.next().await {
        if let SttEvent::Final(heard) = event.unwrap() {
            words.extend(heard.words);
        }
    }
    let spelt: Vec<_> = words.iter().map(|word| word.word.clone()).collect();
    let expected = (0..8u16).flat_map(|group| group * 10..group * 10 + 3);
    assert_eq!(spelt, texts(expected));
    for (index, word) in words.iter().enumerate() {
        assert!((word.start - index as f64 * 0.48).abs() < 0.05, "{word:?}");
    }
    assert_eq!(calls(&emulators, "stt").len(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_in_the_sound_ends_a_call_and_loses_no_word() {
    let emulators = scripted(&[]).await;
    let table = providers_as(&emulators, "server");
    let recogniser = table.speech_to_text(SLUG).unwrap();
    let mut stream = recogniser.open(stt_request(RATE)).await.unwrap();
    let words = |numbers| linear16::encode(&tone_words(numbers, RATE));
    stream.sink.send(words(1..4)).await.unwrap();
    // Only the end of the call makes them final: nothing was asked for, and there is no silence in the sound.
    let mut events = Vec::new();
    while finals(&events).is_empty() {
        events.push(stream.events.next().await.unwrap().unwrap());
    }
    stream.sink.send(words(4..7)).await.unwrap();
    stream.sink.close();
    while let Some(event) = stream.events.next().await {
        events.push(event.unwrap());
    }
    assert_eq!(finals(&events), texts(1..7));
    assert_eq!(calls(&emulators, "stt").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_speech_is_told_behind_its_final() {
    let emulators = scripted(&[]).await;
    let table = providers_as(&emulators, "server");
    let recogniser = table.speech_to_text(SLUG).unwrap();
    let mut sound = tone_words(1..3, RATE);
    sound.resize(sound.len() + 2 * RATE.hz() as usize, 0);
    sound.extend(tone_words(3..5, RATE));
    let stream = recogniser.open(stt_request(RATE)).await.unwrap();
    let events = understood(stream, &sound, RATE).await.unwrap();
    let told: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            SttEvent::Final(heard) => Some(heard.text.as_str()),
            SttEvent::EndOfSpeech => Some("."),
            _ => None,
        })
        .collect();
    assert_eq!(told[..3], ["1 2", ".", "3 4"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_word_is_said_at_the_rate_that_is_told() {
    let emulators = scripted(&[]).await;
    let table = providers_as(&emulators, "server");
    let numbers: Vec<u16> = (300..320).collect();
    for hz in [8_000, 24_000, 44_100] {
        let stream = say(&table, at_rate(hz), &text_of(&numbers)).await.unwrap();
        assert_eq!(stream.format.layout.rate.hz(), hz);
        assert_eq!(numbers_said(stream).await.unwrap(), numbers);
    }
    let other = TtsRequest {
        voice_id: Some("de-DE-Neural2-A".to_owned()),
        ..at_rate(16_000)
    };
    let stream = say(&table, other, &text_of(&numbers)).await.unwrap();
    assert_eq!(numbers_said(stream).await.unwrap(), numbers);
    let paths: Vec<_> = calls(&emulators, "tts")
        .into_iter()
        .map(|record| record.path)
        .collect();
    assert!(paths[0].ends_with("StreamingSynthesize") && paths[3].ends_with("SynthesizeSpeech"));
}

#[tokio::test(flavor = "multi_thread")]
async fn text_that_comes_late_is_said_behind_what_was_said() {
    let emulators = scripted(&[]).await;
    let table = providers_as(&emulators, "server");
    let (text, pieces) = tokio::sync::mpsc::channel(4);
    let synthesiser = table.text_to_speech(SLUG).unwrap();
    let pieces = ReceiverStream::new(pieces).boxed();
    let stream = synthesiser
        .synthesize(at_rate(16_000), pieces)
        .await
        .unwrap();
    let numbers = tokio::spawn(numbers_said(stream));
    text.send("21 22 ".to_owned()).await.unwrap();
    text.send("23. ".to_owned()).await.unwrap();
    let ended = |record: &Record| record.lasted_ms.is_some();
    eventually("the call ends for want of text", || {
        calls(&emulators, "tts").iter().any(ended)
    })
    .await;
    text.send("24 25.".to_owned()).await.unwrap();
    drop(text);
    assert_eq!(numbers.await.unwrap().unwrap(), [21, 22, 23, 24, 25]);
    assert_eq!(calls(&emulators, "tts").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_utterance_that_is_called_off_leaves_the_next_one_alone() {
    let emulators = scripted(&["google:tts:trickle=20ms*1"]).await;
    let table = providers_as(&emulators, "server");
    let long: Vec<u16> = (0..200).collect();
    let mut stream = say(&table, at_rate(16_000), &text_of(&long)).await.unwrap();
    assert!(matches!(
        stream.events.next().await,
        Some(Ok(TtsEvent::Audio(_)))
    ));
    drop(stream);
    let next = say(&table, at_rate(16_000), "1 2 3").await.unwrap();
    assert_eq!(numbers_said(next).await.unwrap(), [1, 2, 3]);
    let ended = |record: &Record| record.lasted_ms.is_some();
    eventually("the first call ends", || {
        calls(&emulators, "tts").iter().all(ended)
    })
    .await;
    assert!(calls(&emulators, "tts")[0].said.len() < long.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sample_that_is_cut_shifts_nothing() {
    let emulators = scripted(&["google:tts:odd", "google:tts:empty"]).await;
    let table = providers_as(&emulators, "server");
    for voice in ["en-US-Chirp3-HD-Kore", "en-US-Neural2-A"] {
        let request = TtsRequest {
            voice_id: Some(voice.to_owned()),
            ..at_rate(16_000)
        };
        let stream = say(&table, request, "1 2 3. 4 5 6. 7 8.").await.unwrap();
        assert_eq!(
            numbers_said(stream).await.unwrap(),
            [1, 2, 3, 4, 5, 6, 7, 8]
        );
    }
}

/// How our client fails in both directions with this fault.
async fn failures(fault: &str) -> [ProviderError; 2] {
    let emulators = scripted(&[
        &format!("google:stt:{fault}"),
        &format!("google:tts:{fault}"),
        // Else so little may be said before the fault's first moment.
        "google:tts:trickle=100ms",
    ])
    .await;
    let table = providers_as(&emulators, "server");
    let heard = async {
        let heard = hear(&table, stt_request(RATE), 0..20).await;
        heard.expect_err(fault)
    };
    let said = async {
        match say(&table, at_rate(16_000), "1 2 3 4 5 6 7 8 9").await {
            Ok(stream) => numbers_said(stream).await.expect_err(fault),
            Err(error) => error,
        }
    };
    let (heard, said) = tokio::join!(heard, said);
    [heard, said]
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_of_their_kind_and_in_googles_words() {
    let after = |seconds| ErrorKind::RateLimited {
        retry_after: Some(Duration::from_secs(seconds)),
    };
    for (fault, kind, part) in [
        ("status=401", ErrorKind::Auth, "Unauthenticated"),
        ("status=403", ErrorKind::Auth, "IAM_PERMISSION_DENIED"),
        ("status=400", ErrorKind::InvalidRequest, "invalid argument"),
        ("status=404", ErrorKind::InvalidRequest, "not found"),
        (
            "status=429",
            ErrorKind::RateLimited { retry_after: None },
            "Quota exceeded",
        ),
        ("status=429,retry=7", after(7), "RATE_LIMIT_EXCEEDED"),
        ("status=504", ErrorKind::Timeout, "Deadline"),
        ("status=500", ErrorKind::Unavailable, "Internal"),
        (
            "status=503",
            ErrorKind::Unavailable,
            "currently unavailable",
        ),
        ("refuse", ErrorKind::Unavailable, ""),
        ("reset", ErrorKind::Unavailable, ""),
        ("truncate", ErrorKind::Unavailable, ""),
        (
            "close=4010,Max duration of 5 minutes reached for stream.",
            ErrorKind::Unavailable,
            "Max duration",
        ),
        ("close", ErrorKind::Unavailable, "Unavailable"),
        ("limit=0s", ErrorKind::Unavailable, "Max duration"),
    ] {
        for error in failures(fault).await {
            assert_eq!(error.kind, kind, "{fault}: {error}");
            assert!(error.message.contains(part), "{fault}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_end_that_comes_too_early_is_none() {
    let emulators = scripted(&["google:any:close=1000"]).await;
    let table = providers_as(&emulators, "server");
    let recogniser = table.speech_to_text(SLUG).unwrap();
    let mut stream = recogniser.open(stt_request(RATE)).await.unwrap();
    let sound = linear16::encode(&tone_words(1..3, RATE));
    stream.sink.send(sound).await.unwrap();
    let heard = stream.events.next().await.unwrap().unwrap_err();
    let stream = say(&table, at_rate(16_000), "1 2").await.unwrap();
    let said = numbers_said(stream).await.unwrap_err();
    for error in [heard, said] {
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        assert!(error.message.contains("ended"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_dead_without_a_word_is_found_out() {
    for error in failures("half-open").await {
        let passing = matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Timeout);
        assert!(passing, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_google_does_not_have_is_refused_in_its_words() {
    let emulators = scripted(&[]).await;
    let table = providers_as(&emulators, "server");
    let request = SttRequest {
        model: "nonsense".to_owned(),
        ..stt_request(RATE)
    };
    let refused = hear(&table, request, 0..3).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidRequest);
    assert!(refused.message.contains("nonsense"), "{refused}");
    for voice in ["en-US-Chirp3-HD-Nobody", "nobody"] {
        let request = TtsRequest {
            voice_id: Some(voice.to_owned()),
            ..at_rate(16_000)
        };
        let stream = say(&table, request, "1").await.unwrap();
        let refused = numbers_said(stream).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidRequest);
        assert!(refused.message.contains(voice), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_callers_own_credential_is_what_opens() {
    let mut settings = vivavoce::emulators::Settings::new(Engine::Scripted);
    settings.key = Some("caller".to_owned());
    let emulators = start(settings).await;
    let table = providers_as(&emulators, "server");
    let refused = hear(&table, stt_request(RATE), 1..3).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Auth);
    let auth = |account: Value| {
        let auth = serde_json::from_value(json!({"credentials": account})).unwrap();
        let fields = table.speech_to_text(SLUG).unwrap().credential_fields();
        Credential::of_caller(&auth, fields).unwrap()
    };
    let own = auth(account(&emulators, "caller"));
    let request = SttRequest {
        credential: own.clone(),
        ..stt_request(RATE)
    };
    let events = hear(&table, request, 1..3).await.unwrap();
    assert_eq!(finals(&events), ["1", "2"]);
    let request = TtsRequest {
        credential: own,
        ..at_rate(16_000)
    };
    let stream = say(&table, request, "4 5").await.unwrap();
    assert_eq!(numbers_said(stream).await.unwrap(), [4, 5]);
    let mut elsewhere = account(&emulators, "caller");
    elsewhere["token_uri"] = json!("http://192.0.2.1/token");
    let bad = [elsewhere, account(&emulators, "bad")];
    for account in bad {
        let request = SttRequest {
            credential: auth(account),
            ..stt_request(RATE)
        };
        let refused = hear(&table, request, 1..3).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Auth, "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn voices_are_listed_and_one_token_serves_many_calls() {
    let emulators = scripted(&[]).await;
    let table = providers_as(&emulators, "server");
    let synthesiser = table.text_to_speech(SLUG).unwrap();
    let voices = synthesiser.voices().await.unwrap();
    let charon = voices
        .iter()
        .find(|voice| voice.id == "en-US-Chirp3-HD-Charon");
    let charon = charon.expect("the default voice is listed");
    assert_eq!(
        (charon.language.as_str(), charon.gender.as_str()),
        ("en-US", "male")
    );
    synthesiser.voices().await.unwrap();
    let tokens = calls(&emulators, "voices");
    let tokens = tokens.iter().filter(|record| record.path == "/token");
    assert_eq!(tokens.count(), 1);
    let without = providers(&[]);
    let synthesiser = without.text_to_speech(SLUG).unwrap();
    assert_eq!(synthesiser.voices().await.unwrap(), []);
    let refused = say(&without, at_rate(16_000), "1").await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NoCredential);
    assert!(refused.message.contains("GOOGLE_APPLICATION_CREDENTIALS"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_hears_and_speaks_by_google() {
    let emulators = scripted(&[]).await;
    let (_folder, file) = credential(&emulators, "server");
    let url = format!("http://{}", emulators.grpc);
    let server = Server::start_with(&[
        ("GOOGLE_APPLICATION_CREDENTIALS", file.to_str().unwrap()),
        ("GOOGLE_STT_URL", &url),
        ("GOOGLE_TTS_URL", &url),
    ]);
    let mut session = Session::open(
        &server,
        json!({
            "type": "config",
            "stt_config": {"provider": SLUG, "sample_rate": 16_000},
            "tts_config": {"provider": SLUG, "model": "", "sample_rate": 16_000},
        }),
    )
    .await;
    session.speak("u", "31 32 33.").await;
    session.completion_of("u").await;
    let sound: Vec<u8> = session
        .sound_of("u")
        .iter()
        .flat_map(|chunk| chunk.data.to_vec())
        .collect();
    assert_eq!(numbers_in(&samples(&sound), RATE), [31, 32, 33]);

    let mut sound = tone_words(40..44, RATE);
    sound.resize(sound.len() + 2 * RATE.hz() as usize, 0);
    for frame in sound.chunks(320) {
        session.send_sound(linear16::encode(frame)).await;
    }
    let heard = tokio::time::timeout(PATIENCE, session.end_of_turn())
        .await
        .unwrap();
    assert_eq!(heard.text("turn_transcript"), "40 41 42 43", "{heard}");
}
