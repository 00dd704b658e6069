//! OpenAI: its own client against the emulator, then our client and whole sessions against it, and against a server of ours
//! that speaks the same interface.

use futures_util::StreamExt;
use serde_json::json;
use vivavoce::audio::{AudioFormat, Encoding, SampleRate, linear16};
use vivavoce::emulators::Vendor;
use vivavoce::providers::{ProviderTable, SttEvent, TtsEvent, TtsRequest};

use super::{Backed, client, english, numbers_in, providers, scripted, stt_request, understood};
use crate::harness::human_speech::words_right;
use crate::harness::*;
use crate::session::client::{Session, config};
use crate::session::sound::{WIDE, chopped, decoded};

const TEXT: &str = "hello there how can i help you today";
const RATE: SampleRate = SampleRate::HZ_16000;

/// Providers whose OpenAI is at this address.
fn ours(base: &str) -> ProviderTable {
    providers(&[
        ("providers.openai.api_key", "key"),
        ("providers.openai.stt_url", base),
        ("providers.openai.tts_url", base),
    ])
}

fn plainly(text: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() { c } else { ' ' };
    text.to_lowercase().chars().map(plain).collect()
}

fn is_understood(heard: &str) {
    let (right, of) = words_right(TEXT, &plainly(heard));
    assert!(right * 2 > of, "{heard}");
}

/// The text, said by flite at 16 kHz.
async fn said() -> Vec<i16> {
    let server = Server::start();
    let answer = speak(
        &server,
        TEXT,
        json!({"model": "flite", "sample_rate": 16_000}),
    )
    .await;
    let sound = answer.bytes().await.unwrap();
    linear16::samples(&sound)
}

#[tokio::test(flavor = "multi_thread")]
async fn pythons_client_says_and_hears_at_the_emulator() {
    let emulators = english().await;
    let folder = tempfile::tempdir().unwrap();
    let sound = said().await;
    let file = folder.path().join("said.wav");
    let bytes = linear16::encode(&sound);
    let head = vivavoce::audio::wav::header(WIDE.layout, u32::try_from(bytes.len()).ok());
    std::fs::write(&file, [&head[..], &bytes[..]].concat()).unwrap();
    let base = format!("http://{}/v1", emulators.plain);
    let [folder_path, file] = [folder.path(), &file].map(|path| path.to_str().unwrap());
    let told = client(
        "openai_sdk.py",
        &["vendor", &base, "key", folder_path, file, TEXT],
    )
    .await;
    // WAV that is streamed does not say how long it is, at which programs stumble.
    for (name, codec) in [("mp3", "mp3"), ("opus", "opus")] {
        let known = ffprobe(&folder.path().join(format!("vendor.{name}")), &[]);
        assert_eq!(known["streams"][0]["codec_name"], codec);
    }
    assert_eq!(
        told["events"],
        json!(["speech.audio.delta", "speech.audio.done"])
    );
    for form in ["whisper", "whole", "deltas"] {
        is_understood(told[form].as_str().unwrap());
    }
    assert!(told["words"].as_array().unwrap().len() > 4, "{told}");
    let types = told["types"].as_array().unwrap();
    assert_eq!(types.last(), Some(&json!("transcript.text.done")));
    let problems = &told["problems"];
    for (name, status, code, param) in [
        ("key", 401, json!("invalid_api_key"), json!(null)),
        ("model", 404, json!("model_not_found"), json!("model")),
        ("voice", 400, json!(null), json!("voice")),
        ("format", 400, json!(null), json!("response_format")),
    ] {
        let got = &problems[name];
        let is = (&got["status"], &got["code"], &got["param"]);
        assert_eq!(is, (&json!(status), &code, &param), "{name}: {got}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_is_said_line_by_line() {
    let emulators = scripted(&[]).await;
    let table = ours(&format!("http://{}/v1", emulators.plain));
    let voice = table.text_to_speech("openai").unwrap();
    let request = TtsRequest {
        model: "tts-1".to_owned(),
        preferred: AudioFormat::mono(Encoding::Linear16, RATE),
        ..tts_request(Some("nova"))
    };
    let text = text_stream(&["200 201 202. ", "203 204 ", "205."]);
    let mut stream = voice.synthesize(request, text).await.unwrap();
    let rate = stream.format.layout.rate;
    assert_eq!(rate, SampleRate::HZ_24000);
    let mut sound = Vec::new();
    while let Some(event) = stream.events.next().await {
        if let TtsEvent::Audio(audio) = event.unwrap() {
            assert_eq!(audio.len() % 2, 0);
            sound.extend(linear16::samples(&audio));
        }
    }
    assert_eq!(numbers_in(&sound, rate), [200, 201, 202, 203, 204, 205]);
    let mut asked = emulators.emulation.log.all();
    asked.retain(|record| record.direction == "tts");
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked[0].asked[0].contains("\"nova\""), "{asked:?}");
    let ids: Vec<String> = voice
        .voices()
        .await
        .unwrap()
        .into_iter()
        .map(|voice| voice.id)
        .collect();
    // The emulator has no list of voices, as OpenAI has none.
    assert!(ids.is_empty(), "{ids:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn utterances_are_heard_with_words_by_whisper_and_as_they_are_found_by_others() {
    let emulators = english().await;
    let table = ours(&format!("http://{}/v1", emulators.plain));
    let ears = table.speech_to_text("openai").unwrap();
    let mut sound = said().await;
    // A pause ends it.
    sound.resize(sound.len() + 16_000, 0);
    let length = sound.len() as f64 / 16_000.0;
    for (model, has_words) in [("whisper-1", true), ("gpt-transcribe", false)] {
        let request = vivavoce::providers::SttRequest {
            model: model.to_owned(),
            keyterms: vec!["help".to_owned()],
            languages: vec!["de-DE".to_owned()],
            ..stt_request(RATE)
        };
        let stream = ears.open(request).await.unwrap();
        let events = understood(stream, &sound, RATE).await.unwrap();
        let finals: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                SttEvent::Final(heard) => Some(heard.clone()),
                _ => None,
            })
            .collect();
        let text: Vec<_> = finals.iter().map(|heard| heard.text.as_str()).collect();
        is_understood(&text.join(" "));
        assert!(
            matches!(events.last(), Some(SttEvent::EndOfSpeech)),
            "{events:?}"
        );
        let partials = events
            .iter()
            .any(|event| matches!(event, SttEvent::Partial(_)));
        assert_eq!(partials, !has_words, "{model}: {events:?}");
        let heard = &finals[0];
        assert_eq!(!heard.words.is_empty(), has_words, "{model}: {heard:?}");
        for word in &heard.words {
            assert!(0.0 <= word.start && word.end <= length, "{heard:?}");
        }
        assert!(heard.end.unwrap() <= length, "{heard:?}");
        let asked = emulators.emulation.log.all().pop().unwrap().asked.concat();
        let wished = if has_words {
            "\"prompt\":\"help\""
        } else {
            "\"keywords\":\"help\""
        };
        assert!(asked.contains(wished), "{asked}");
        let languages = if has_words {
            "\"language\":\"en\""
        } else {
            "[\"en\",\"de\"]"
        };
        assert!(asked.contains(languages), "{asked}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_fail_are_errors_of_their_kind() {
    for (fault, status, code) in [
        ("openai:tts:status=401", 500, "PROVIDER_AUTH"),
        (
            "openai:tts:status=429,retry=7",
            429,
            "PROVIDER_RATE_LIMITED",
        ),
        ("openai:tts:status=503", 500, "PROVIDER_ERROR"),
        ("openai:tts:refuse", 500, "PROVIDER_ERROR"),
    ] {
        let backed = Backed::by(scripted(&[fault]).await);
        let body =
            json!({"text": "200 201", "tts_config": {"provider": "openai", "model": "tts-1"}});
        let answer = post_speak(&backed.server, body).await;
        let got = answer.status().as_u16();
        let told = answer.text().await.unwrap();
        assert_eq!(got, status, "{fault}: {told}");
        assert!(told.contains(code), "{fault}: {told}");
    }
    for (fault, codes) in [
        ("openai:stt:status=401", ["provider_auth", "stt_failed"]),
        (
            "openai:stt:status=503",
            ["provider_unavailable", "stt_failed"],
        ),
    ] {
        let backed = Backed::by(scripted(&[fault]).await);
        let fields = json!({"stt_config": {"provider": "openai", "model": "whisper-1"}});
        let mut session = Session::open(&backed.server, config(fields)).await;
        let mut sound = said().await;
        sound.resize(sound.len() + 16_000, 0);
        let sound = vivavoce::audio::Pcm::new(WIDE.layout, sound);
        let _hearing = session.hear(chopped(&sound, 640));
        let error = session.next("error").await;
        assert!(codes.contains(&error.text("code")), "{fault}: {error:?}");
        session.close().await;
    }
    assert_eq!(Vendor::OpenAi.slug(), "openai");
}

/// One of our servers stands behind another, as any server with OpenAI's interface can.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_the_same_interface_hears_and_speaks_for_ours() {
    let behind = Server::start();
    let base = format!("{}/v1", behind.url);
    let server = Server::start_with(&[("OPENAI_STT_URL", &base), ("OPENAI_TTS_URL", &base)]);
    let fields = json!({
        "stt_config": {"provider": "openai", "model": "local"},
        "tts_config": {"provider": "openai", "model": "local", "voice_id": "slt", "sample_rate": 16_000},
    });
    let mut session = Session::open(&server, config(fields)).await;
    session.speak("a", TEXT).await;
    session.completion_of("a").await;
    let mut sound = decoded(&session.sound(), WIDE).into_samples();
    assert!(sound.len() > 16_000, "{}", sound.len());
    sound.resize(sound.len() + 32_000, 0);
    let sound = vivavoce::audio::Pcm::new(WIDE.layout, sound);
    let hearing = session.hear(chopped(&sound, 640));
    let mut heard = String::new();
    while !plainly(&heard).contains("today") && plainly(&heard).split_whitespace().count() < 5 {
        let result = session.next("stt_result").await;
        if result.is("is_final") {
            heard += " ";
            heard += result.text("transcript");
        }
    }
    is_understood(&heard);
    hearing.await;
    session.close().await;
    let voices = client_of_voices(&server).await;
    assert!(voices.iter().any(|id| id == "flite-slt"), "{voices:?}");
}

async fn client_of_voices(server: &Server) -> Vec<String> {
    let url = format!("{}/voices?provider=openai", server.url);
    let lists: serde_json::Value = crate::harness::client()
        .get(url)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let list = lists["openai"].as_array().unwrap();
    list.iter()
        .map(|voice| voice["id"].as_str().unwrap().to_owned())
        .collect()
}
