//! Deepgram: its own client hears and speaks with our emulator; ours does too, word for word; and so does a session.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use vivavoce::audio::{AudioFormat, Encoding, SampleRate, linear16};
use vivavoce::config::Secret;
use vivavoce::emulators::Emulators;
use vivavoce::emulators::visit::Record;
use vivavoce::providers::{
    Credential, ErrorKind, ProviderError, ProviderTable, SpeechToText, SttEvent, SttRequest,
    SttStream, TextToSpeech, TtsRequest,
};

use super::{
    client, english, finals, numbers_in, providers, said, scripted, stt_request, tone_words,
    understood,
};
use crate::harness::{
    Server, eventually, ffprobe, share_of_words, text_stream, tts_request, words,
};
use crate::session::client::Session;
use crate::session::sound::{chopped, decoded};

const RATE: SampleRate = SampleRate::HZ_16000;
const SENTENCE: &str = "The quick brown fox jumps over the lazy dog.";

fn numbers(count: u16) -> Vec<u16> {
    (0..count).map(|n| n * 397 % 10_000).collect()
}

fn texts(numbers: &[u16]) -> Vec<String> {
    numbers.iter().map(u16::to_string).collect()
}

/// The providers of a server whose Deepgram is this emulator.
fn table(emulators: &Emulators, key: &str) -> ProviderTable {
    let address = format!("http://{}", emulators.plain);
    providers(&[
        ("providers.deepgram.stt_url", &address),
        ("providers.deepgram.tts_url", &address),
        ("providers.deepgram.api_key", key),
    ])
}

fn stt(emulators: &Emulators) -> Arc<dyn SpeechToText> {
    table(emulators, "good").speech_to_text("deepgram").unwrap()
}

fn tts(emulators: &Emulators) -> Arc<dyn TextToSpeech> {
    table(emulators, "good").text_to_speech("deepgram").unwrap()
}

fn records(emulators: &Emulators, direction: &str) -> Vec<Record> {
    let mut records = emulators.emulation.log.all();
    records.retain(|record| record.direction == direction);
    records
}

// --- the vendor's own client ---

/// Lets the vendor's client hear a sound.
async fn sdk_hears(emulators: &Emulators, key: &str, version: &str, sound: &[i16]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sound.s16");
    std::fs::write(&file, linear16::encode(sound)).unwrap();
    let address = emulators.plain.to_string();
    let arguments = [&address, key, version, "16000", file.to_str().unwrap()];
    client("deepgram_listen.py", &arguments).await
}

/// The messages of a kind.
fn of<'a>(told: &'a Value, kind: &str) -> Vec<&'a Value> {
    assert_eq!(told["problems"], json!([]), "{told}");
    let messages = told["told"].as_array().unwrap().iter();
    let messages = messages.filter(|message| message[0] == kind);
    messages.map(|message| &message[1]).collect()
}

#[tokio::test]
async fn the_vendors_client_hears_every_tone_word() {
    let emulators = scripted(&[]).await;
    let numbers = numbers(30);
    let told = sdk_hears(&emulators, "good", "V1", &tone_words(numbers.clone(), RATE)).await;
    let results = of(&told, "ListenV1Results");
    let (last, interim): (Vec<&Value>, Vec<&Value>) = results
        .into_iter()
        .partition(|results| results["is_final"] == true);
    assert!(interim.len() >= numbers.len());
    let best = |results: &Value| results["channel"]["alternatives"][0].clone();
    let heard: Vec<String> = last
        .iter()
        .flat_map(|results| words(best(results)["transcript"].as_str().unwrap()))
        .collect();
    assert_eq!(heard, texts(&numbers));
    let first = &best(last[0])["words"][0];
    assert_eq!(first["punctuated_word"], texts(&numbers)[0]);
    let placed = |name: &str| first[name].as_f64().unwrap();
    assert!(
        placed("start") < 0.05 && (0.3..0.5).contains(&placed("end")),
        "{first}"
    );
    assert_eq!(of(&told, "ListenV1SpeechStarted").len(), 1);
    assert!(last.iter().any(|results| results["from_finalize"] == true));
    let metadata = of(&told, "ListenV1Metadata");
    assert_eq!(metadata.len(), 1);
    assert_eq!(metadata[0]["request_id"], last[0]["metadata"]["request_id"]);
    let keyterms = records(&emulators, "stt").remove(0).query;
    let keyterms = keyterms.iter().filter(|(name, _)| name == "keyterm");
    assert_eq!(
        keyterms.map(|(_, term)| term).collect::<Vec<_>>(),
        ["foo bar", "baz"]
    );
}

#[tokio::test]
async fn the_vendors_client_hears_turns() {
    let emulators = scripted(&[]).await;
    let numbers = numbers(8);
    let mut sound = tone_words(numbers[..4].iter().copied(), RATE);
    sound.resize(sound.len() + 16_000, 0);
    sound.extend(tone_words(numbers[4..].iter().copied(), RATE));
    let told = sdk_hears(&emulators, "good", "V2", &sound).await;
    assert_eq!(of(&told, "ListenV2Connected").len(), 1);
    let turns = of(&told, "ListenV2TurnInfo");
    let ended: Vec<_> = turns
        .iter()
        .filter(|turn| turn["event"] == "EndOfTurn")
        .map(|turn| turn["transcript"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        ended,
        [
            texts(&numbers[..4]).join(" "),
            texts(&numbers[4..]).join(" ")
        ]
    );
    assert!(turns.iter().any(|turn| turn["event"] == "EagerEndOfTurn"));
}

#[tokio::test]
async fn the_vendors_client_hears_and_says_english() {
    let emulators = english().await;
    let folder = sdk_says(&emulators, SENTENCE).await.1;
    let sound = std::fs::read(folder.path().join("socket.s16")).unwrap();
    let mut sound = linear16::samples(&sound);
    sound.resize(sound.len() + 16_000, 0);
    let told = sdk_hears(&emulators, "good", "V1", &sound).await;
    let mut heard = String::new();
    for results in of(&told, "ListenV1Results") {
        if results["is_final"] == true {
            heard += results["channel"]["alternatives"][0]["transcript"]
                .as_str()
                .unwrap();
            heard.push(' ');
        }
    }
    assert!(share_of_words(SENTENCE, &heard) >= 0.8, "{heard}");
}

/// Lets the vendor's client say a text in every way; gives what it was told, and the folder with the sounds.
async fn sdk_says(emulators: &Emulators, text: &str) -> (Value, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let address = emulators.plain.to_string();
    let arguments = [&address, "good", folder.path().to_str().unwrap(), text];
    (client("deepgram_speak.py", &arguments).await, folder)
}

#[tokio::test]
async fn the_vendors_client_says_every_tone_word_in_every_format() {
    let emulators = scripted(&[]).await;
    let numbers = numbers(5);
    let (told, folder) = sdk_says(&emulators, &texts(&numbers).join(" ")).await;
    let file = |name: &str| folder.path().join(name);
    for name in ["socket.s16", "plain.s16"] {
        let sound = linear16::samples(&std::fs::read(file(name)).unwrap());
        assert_eq!(numbers_in(&sound, RATE), numbers, "{name}");
    }
    for (name, codec, hz) in [
        ("linear.wav", "pcm_s16le", "24000"),
        ("mulaw.wav", "pcm_mulaw", "8000"),
        ("sound.mp3", "mp3", "22050"),
        ("sound.ogg", "opus", "48000"),
    ] {
        let probed = ffprobe(&file(name), &[]);
        let stream = &probed["streams"][0];
        assert_eq!(
            (&stream["codec_name"], &stream["sample_rate"]),
            (&json!(codec), &json!(hz)),
            "{name}"
        );
    }
    assert_eq!(told["told"], json!(["Metadata", "Flushed", "Cleared"]));
    let thalia = &told["voices"]["aura-2-thalia-en"];
    assert_eq!(*thalia, json!([["en", "en-US"], ["feminine", "clear"]]));
    assert_eq!(told["token"], "good");
}

#[tokio::test]
async fn the_vendors_client_for_javascript_hears_and_says_every_tone_word() {
    let emulators = scripted(&[]).await;
    let address = emulators.plain.to_string();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (sound, wav) = (file("sound.s16"), file("sound.wav"));
    let numbers = numbers(5);
    let text = texts(&numbers).join(" ");
    let script = "deepgram_sdk.mjs";
    let told = client(script, &["say", &address, "good", &text, &sound, &wav]).await;
    assert_eq!(told["types"], json!(["Metadata", "Flushed"]));
    let said = linear16::samples(&std::fs::read(&sound).unwrap());
    assert_eq!(numbers_in(&said, RATE), numbers);
    let probed = ffprobe(wav.as_ref(), &[]);
    assert_eq!(probed["streams"][0]["codec_name"], "pcm_s16le");

    let told = client(script, &["hear", &address, "good", &sound]).await;
    let heard = told["nova"].as_array().unwrap();
    let heard: Vec<_> = heard.iter().map(|text| text.as_str().unwrap()).collect();
    assert_eq!(heard.join(" "), text, "{told}");
    assert_eq!(told["turn"], text, "{told}");
    assert_eq!(told["words"].as_array().unwrap().len(), numbers.len());
    assert!(told["interim"].as_u64().unwrap() > 0, "{told}");

    let told = client(script, &["voices", &address, "good"]).await;
    let voices = told["voices"].as_array().unwrap();
    assert!(voices.contains(&json!("aura-2-thalia-en")), "{told}");
    let told = client(script, &["voices", &address, "bad"]).await;
    assert_eq!(told["refused"], 401);
    assert_eq!(told["body"]["err_code"], "INVALID_AUTH");
}

#[tokio::test]
async fn a_bad_key_is_the_vendors_clients_error_of_authentication() {
    let emulators = scripted(&[]).await;
    for version in ["V1", "V2"] {
        let told = sdk_hears(&emulators, "bad", version, &[]).await;
        assert_eq!(told, json!({"refused": 401}));
    }
    let folder = tempfile::tempdir().unwrap();
    let address = emulators.plain.to_string();
    let arguments = [&address, "bad", folder.path().to_str().unwrap(), "1"];
    let told = client("deepgram_speak.py", &arguments).await;
    assert_eq!(
        (&told["refused"], &told["listed"]),
        (&json!(401), &json!(401))
    );
    assert_eq!(told["body"]["err_code"], "INVALID_AUTH");
}

// --- our client ---

async fn hears(
    emulators: &Emulators,
    request: SttRequest,
    sound: &[i16],
) -> Result<Vec<SttEvent>, ProviderError> {
    let stream = stt(emulators).open(request).await?;
    understood(stream, sound, RATE).await
}

#[tokio::test]
async fn words_in_are_words_out_with_times_and_both_models() {
    let emulators = scripted(&[]).await;
    let numbers = numbers(60);
    let sound = tone_words(numbers.clone(), RATE);
    for model in ["", "nova-2", "flux-general-en", "flux-general-multi"] {
        let request = SttRequest {
            model: model.into(),
            keyterms: vec!["a term".into()],
            ..stt_request(RATE)
        };
        let events = hears(&emulators, request, &sound).await.unwrap();
        assert_eq!(finals(&events), texts(&numbers), "{model}");
        let partials = events
            .iter()
            .filter(|event| matches!(event, SttEvent::Partial(_)));
        assert!(partials.count() >= numbers.len() / 2, "{model}");
        assert!(
            matches!(events.last(), Some(SttEvent::EndOfSpeech)),
            "{model}: {:?}",
            events.last()
        );
        let placed = events.iter().flat_map(|event| match event {
            SttEvent::Final(heard) => heard.words.clone(),
            _ => Vec::new(),
        });
        for (index, word) in placed.enumerate() {
            let meant = index as f64 * 0.48;
            assert!((word.start - meant).abs() < 0.02, "{model}: {word:?}");
        }
    }
}

#[tokio::test]
async fn a_pause_is_the_end_of_speech_once() {
    let emulators = scripted(&[]).await;
    let mut sound = tone_words([11, 22], RATE);
    sound.resize(sound.len() + 3 * 16_000, 0);
    sound.extend(tone_words([33], RATE));
    let events = hears(&emulators, stt_request(RATE), &sound).await.unwrap();
    let outline: Vec<String> = events
        .iter()
        .filter_map(|event| match event {
            SttEvent::Final(heard) => Some(heard.text.clone()),
            SttEvent::EndOfSpeech => Some("end".to_owned()),
            _ => None,
        })
        .collect();
    assert_eq!(outline, ["11 22", "end", "33", "end"]);
}

#[tokio::test]
async fn what_was_heard_becomes_final_when_asked_for() {
    use futures_util::StreamExt;
    let emulators = scripted(&[]).await;
    for model in ["nova-3", "flux-general-en"] {
        let request = SttRequest {
            model: model.into(),
            ..stt_request(RATE)
        };
        let SttStream { sink, mut events } = stt(&emulators).open(request).await.unwrap();
        let sound = tone_words([11, 22], RATE);
        sink.send(linear16::encode(&sound)).await.unwrap();
        sink.finalize().await.unwrap();
        let heard = loop {
            if let SttEvent::Final(heard) = events.next().await.unwrap().unwrap() {
                break heard;
            }
        };
        assert_eq!(heard.text, "11 22", "{model}");
        let sound = tone_words([33], RATE);
        sink.send(linear16::encode(&sound)).await.unwrap();
        sink.close();
        let rest: Vec<_> = events.map(Result::unwrap).collect().await;
        assert_eq!(finals(&rest), ["33"], "{model}");
    }
}

/// A synthesiser's request for linear16 at this rate.
fn asks(rate: SampleRate) -> TtsRequest {
    TtsRequest {
        preferred: AudioFormat::mono(Encoding::Linear16, rate),
        ..tts_request(None)
    }
}

#[tokio::test]
async fn words_of_a_text_are_words_of_the_sound_at_every_rate() {
    let emulators = scripted(&["deepgram:tts:odd*2"]).await;
    let tts = tts(&emulators);
    let numbers = numbers(12);
    let parts: Vec<String> = texts(&numbers)
        .iter()
        .map(|word| format!("{word}. "))
        .collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    for rate in [
        SampleRate::HZ_8000,
        SampleRate::HZ_16000,
        SampleRate::HZ_24000,
    ] {
        let stream = tts
            .synthesize(asks(rate), text_stream(&parts))
            .await
            .unwrap();
        assert_eq!(stream.format, AudioFormat::mono(Encoding::Linear16, rate));
        let sound = said(stream).await.unwrap();
        assert_eq!(sound.len() % 2, 0);
        let sound = linear16::samples(&sound);
        assert_eq!(numbers_in(&sound, rate), numbers, "{rate:?}");
    }
}

#[tokio::test]
async fn one_socket_says_one_utterance_after_the_other_and_forgets_what_was_called_off() {
    use futures_util::StreamExt;
    let emulators = scripted(&["deepgram:tts:trickle=30ms"]).await;
    let tts = tts(&emulators);
    let say = async |text: &str| {
        let stream = tts
            .synthesize(asks(RATE), text_stream(&[text]))
            .await
            .unwrap();
        let sound = linear16::samples(&said(stream).await.unwrap());
        numbers_in(&sound, RATE)
    };
    assert_eq!(say("1 2").await, [1, 2]);
    let mut called_off = tts
        .synthesize(asks(RATE), text_stream(&["6 6 6 6 6 6 6 6 6 6"]))
        .await
        .unwrap();
    called_off.events.next().await.unwrap().unwrap();
    drop(called_off);
    // Its socket comes back to the pool when the vendor has answered.
    let cleared = || {
        let records = records(&emulators, "tts");
        records[0].messages_in >= 5
    };
    eventually("the utterance was not called off", cleared).await;
    assert_eq!(say("3 4").await, [3, 4]);
    assert_eq!(
        say(r#"5 \{"word": "8", "pronounce": "x"\} 7"#)
            .await
            .first(),
        Some(&5)
    );
    let records = records(&emulators, "tts");
    assert!(records.len() <= 2, "{} sockets", records.len());
    let noted = records.iter().flat_map(|record| &record.notes);
    assert_eq!(
        noted.filter(|note| note.contains("pronunciation")).count(),
        0
    );
}

#[tokio::test]
async fn a_socket_is_not_flushed_more_often_than_the_vendor_bears() {
    let emulators = scripted(&[]).await;
    let tts = tts(&emulators);
    for number in 0..25_u16 {
        let text = number.to_string();
        let stream = tts
            .synthesize(asks(RATE), text_stream(&[&text]))
            .await
            .unwrap();
        let sound = linear16::samples(&said(stream).await.unwrap());
        assert_eq!(numbers_in(&sound, RATE), [number]);
    }
    assert_eq!(records(&emulators, "tts").len(), 2);
}

#[tokio::test]
async fn nothing_to_say_is_no_sound_and_no_error() {
    let emulators = scripted(&[]).await;
    let stream = tts(&emulators)
        .synthesize(asks(RATE), text_stream(&[" "]))
        .await;
    assert!(said(stream.unwrap()).await.unwrap().is_empty());
}

#[tokio::test]
async fn every_refusal_is_the_right_error_in_both_directions() {
    let limited = |seconds| ErrorKind::RateLimited {
        retry_after: Some(Duration::from_secs(seconds)),
    };
    for (fault, kind, part) in [
        ("status=400", ErrorKind::InvalidRequest, "400"),
        ("status=401", ErrorKind::Auth, "Invalid credentials"),
        ("status=402", ErrorKind::Quota, "enough credits"),
        (
            "status=403",
            ErrorKind::Auth,
            "access to the requested model",
        ),
        ("status=429,retry=7", limited(7), "Too many requests"),
        ("status=503", ErrorKind::Unavailable, "503"),
        ("refuse", ErrorKind::Unavailable, ""),
    ] {
        let emulators = scripted(&[&format!("deepgram:any:{fault}")]).await;
        let heard = hears(&emulators, stt_request(RATE), &[]).await.unwrap_err();
        let spoken = tts(&emulators)
            .synthesize(asks(RATE), text_stream(&["1"]))
            .await;
        let spoken = said(spoken.unwrap()).await.unwrap_err();
        let listed = tts(&emulators).voices().await.unwrap_err();
        for error in [heard, spoken, listed] {
            assert_eq!(error.kind, kind, "{fault}: {error}");
            assert!(error.message.contains(part), "{fault}: {error}");
        }
    }
}

#[tokio::test]
async fn every_close_is_the_right_error_in_both_directions() {
    for (fault, kind) in [
        ("close@100ms", ErrorKind::Unavailable),
        ("close=1011,NET-0001@100ms", ErrorKind::Timeout),
        ("close=1008,DATA-0000@100ms", ErrorKind::InvalidRequest),
        ("close=1006@100ms", ErrorKind::Unavailable),
        ("reset@100ms", ErrorKind::Unavailable),
    ] {
        let emulators = scripted(&[&format!("deepgram:any:{fault}"), "deepgram:tts:slow=5s"]).await;
        let SttStream { sink, events } = stt(&emulators).open(stt_request(RATE)).await.unwrap();
        let events: Vec<_> = futures_util::StreamExt::collect(events).await;
        drop(sink);
        let heard = events.into_iter().next_back().unwrap().unwrap_err();
        let spoken = tts(&emulators)
            .synthesize(asks(RATE), text_stream(&["1"]))
            .await;
        let spoken = said(spoken.unwrap()).await.unwrap_err();
        for error in [heard, spoken] {
            assert_eq!(error.kind, kind, "{fault}: {error}");
        }
    }
}

#[tokio::test]
async fn what_the_vendor_does_not_have_is_refused_in_its_words() {
    let emulators = scripted(&[]).await;
    let request = SttRequest {
        model: "nova-3&x=y".into(),
        language: "klingon".into(),
        ..stt_request(RATE)
    };
    let error = hears(&emulators, request, &[]).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidRequest);
    assert!(error.message.contains("No such model/language"), "{error}");
    assert!(error.message.contains("(request "), "{error}");
    let nobody = TtsRequest {
        voice_id: Some("nobody".into()),
        ..asks(RATE)
    };
    let stream = tts(&emulators)
        .synthesize(nobody, text_stream(&["1"]))
        .await;
    let error = said(stream.unwrap()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidRequest);
    assert!(error.message.contains("nobody"), "{error}");
}

#[tokio::test]
async fn the_callers_own_key_is_the_one_that_arrives() {
    let settings = vivavoce::emulators::Settings {
        key: Some("callers".into()),
        ..vivavoce::emulators::Settings::new(vivavoce::emulators::engine::Engine::Scripted)
    };
    let emulators = super::start(settings).await;
    let own = || Some(Credential::new([("api_key", Secret::new("callers"))]));
    let sound = tone_words([42], RATE);
    let refused = hears(&emulators, stt_request(RATE), &sound).await;
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Auth);
    let request = SttRequest {
        credential: own(),
        ..stt_request(RATE)
    };
    assert_eq!(
        finals(&hears(&emulators, request, &sound).await.unwrap()),
        ["42"]
    );
    let request = TtsRequest {
        credential: own(),
        ..asks(RATE)
    };
    let stream = tts(&emulators)
        .synthesize(request, text_stream(&["42"]))
        .await;
    assert!(!said(stream.unwrap()).await.unwrap().is_empty());
}

#[tokio::test]
async fn voices_are_those_of_the_servers_key() {
    let emulators = scripted(&[]).await;
    let voices = tts(&emulators).voices().await.unwrap();
    let thalia = voices
        .iter()
        .find(|voice| voice.id == "aura-2-thalia-en")
        .unwrap();
    assert_eq!(
        (thalia.name.as_str(), thalia.gender.as_str()),
        ("thalia", "female")
    );
    assert_eq!(thalia.language, "en-US");
    let without_key = providers(&[]).text_to_speech("deepgram").unwrap();
    assert!(without_key.voices().await.unwrap().is_empty());
}

// --- a session ---

#[tokio::test]
async fn a_session_hears_and_speaks_with_it() {
    let emulators = scripted(&[]).await;
    let address = format!("http://{}", emulators.plain);
    let server = Server::start_with(&[
        ("DEEPGRAM_STT_URL", &address),
        ("DEEPGRAM_TTS_URL", &address),
        ("DEEPGRAM_API_KEY", "servers"),
    ]);
    let config = json!({
        "type": "config", "stt_config": {"provider": "deepgram"},
        "tts_config": {"provider": "deepgram", "model": "", "sample_rate": 16_000},
    });
    let mut session = Session::open(&server, config).await;
    let numbers = numbers(6);
    let mut sound = tone_words(numbers.clone(), RATE);
    sound.resize(sound.len() + 16_000, 0);
    let sound = vivavoce::audio::Pcm::new(vivavoce::audio::Layout::mono(RATE), sound);
    let speaking = session.hear(chopped(&sound, 640));
    let turn = session.end_of_turn().await;
    assert_eq!(words(turn.text("turn_transcript")), texts(&numbers));
    speaking.await;
    session.speak("u1", &texts(&numbers).join(" ")).await;
    session.completion_of("u1").await;
    let format = AudioFormat::mono(Encoding::Linear16, RATE);
    let said = decoded(&session.sound_of("u1"), format);
    assert_eq!(numbers_in(said.samples(), RATE), numbers);
    session.close().await;
}
