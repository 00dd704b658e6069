//! The installed synthesisers, and stand-ins for them that misbehave.

use std::ffi::OsString;
use std::time::Duration;

use crate::harness::{eventually, text_stream as text, tts_request as request, write_script};
use futures_util::StreamExt;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use vivavoce::providers::local::tts::{EngineState, LocalTts, LocalTtsSettings, probe};
use vivavoce::providers::{
    ErrorKind, ProviderError, TextToSpeech, TtsEvent, TtsRequest, TtsStream,
};

async fn hear(stream: TtsStream) -> Result<Vec<i16>, ProviderError> {
    let mut sound = Vec::new();
    let mut events = stream.events;
    while let Some(event) = events.next().await {
        match event? {
            TtsEvent::Audio(bytes) => sound.extend_from_slice(&bytes),
            TtsEvent::Word { .. } => {}
            TtsEvent::Done => {
                assert!(events.next().await.is_none(), "something follows Done");
                assert_eq!(sound.len() % 2, 0);
                let samples = sound.chunks_exact(2);
                return Ok(samples.map(|s| i16::from_le_bytes([s[0], s[1]])).collect());
            }
        }
    }
    panic!("the synthesis ended without Done");
}

async fn say(tts: &LocalTts, request: TtsRequest, words: &str) -> Result<Vec<i16>, ProviderError> {
    hear(tts.synthesize(request, text(&[words])).await?).await
}

async fn seconds(tts: &LocalTts, request: TtsRequest, words: &str) -> f64 {
    let stream = tts.synthesize(request, text(&[words])).await.unwrap();
    let rate = stream.format.layout.rate;
    let samples = hear(stream).await.unwrap();
    rate.duration_of(samples.len()).as_secs_f64()
}

fn installed() -> LocalTts {
    LocalTts::new(LocalTtsSettings::default())
}

/// A folder with a `flite` that lists the voice `slt` and otherwise runs `script`, and where the shell is.
fn folder_with_flite(script: &str) -> (TempDir, LocalTts) {
    let folder = tempfile::tempdir().unwrap();
    let listing = "case \"$1\" in -lv) echo 'Voices available: slt'; exit;; esac";
    write_script(
        &folder.path().join("flite"),
        &format!("{listing}\n{script}"),
    );
    let tts = LocalTts::new(LocalTtsSettings {
        search_path: folder.path().into(),
        ..LocalTtsSettings::default()
    });
    (folder, tts)
}

/// Processes of the programs of a folder: it is the first on the path that they are given, and they can write nothing down.
fn running(folder: &TempDir) -> usize {
    let path = format!("PATH={}:", folder.path().display());
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let environments =
        processes.filter_map(|process| std::fs::read(process.path().join("environ")).ok());
    environments
        .filter(|given| {
            given
                .split(|&byte| byte == 0)
                .any(|one| one.starts_with(path.as_bytes()))
        })
        .count()
}

/// Waits until every program that was started in `folder` is gone.
async fn assert_nothing_runs(folder: &TempDir) {
    eventually("a program is left running", || running(folder) == 0).await;
}

/// Whether `fault` is what is reported, nothing is left, and the real program is heard afterwards.
async fn fault_is_reported(script: &str, kind: ErrorKind, cause: &str) {
    let (folder, tts) = folder_with_flite(script);
    let hurried = TtsRequest {
        request_timeout: Duration::from_millis(400),
        ..request(None)
    };
    let error = say(&tts, hurried, "Hello there.").await.unwrap_err();
    assert_eq!(error.kind, kind, "{error}");
    assert!(error.to_string().contains(cause), "{error}");
    assert_nothing_runs(&folder).await;

    let file = folder.path().join("flite");
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/usr/bin/flite", &file).unwrap();
    let samples = say(&tts, request(None), "Hello there.").await.unwrap();
    assert!(samples.len() > 8_000);
}

#[tokio::test]
async fn a_program_that_hangs_is_a_timeout() {
    fault_is_reported("exec sleep 600", ErrorKind::Timeout, "flite did not finish").await;
}

#[tokio::test]
async fn a_program_that_hangs_after_some_sound_is_a_timeout() {
    let script = "printf 'RIFF\\0\\0\\0\\0WAVEfmt \\020\\0\\0\\0\\001\\0\\001\\0\\200\\076\\0\\0\\0\\175\\0\\0\\002\\0\\020\\0data\\0\\0\\0\\0abcdefg'; exec sleep 600";
    fault_is_reported(script, ErrorKind::Timeout, "flite did not finish").await;
}

#[tokio::test]
async fn a_program_that_prints_garbage_is_not_heard() {
    fault_is_reported("exec head -c 5000 /dev/urandom", ErrorKind::Protocol, "WAV").await;
}

#[tokio::test]
async fn a_program_that_prints_nothing_is_an_error() {
    fault_is_reported("exit 0", ErrorKind::Protocol, "no sound").await;
}

#[tokio::test]
async fn a_program_that_prints_without_end_is_stopped() {
    let script = "printf 'RIFF\\0\\0\\0\\0WAVEfmt \\020\\0\\0\\0\\001\\0\\001\\0\\200\\076\\0\\0\\0\\175\\0\\0\\002\\0\\020\\0data\\0\\0\\0\\0'; exec cat /dev/zero";
    fault_is_reported(script, ErrorKind::Protocol, "more than").await;
}

#[tokio::test]
async fn a_program_that_fails_says_why() {
    let script = "echo 'cannot open voice' >&2; exit 1";
    fault_is_reported(script, ErrorKind::Unavailable, "cannot open voice").await;
}

#[tokio::test]
async fn sound_at_another_rate_than_declared_is_an_error() {
    let script = "printf 'RIFF\\0\\0\\0\\0WAVEfmt \\020\\0\\0\\0\\001\\0\\001\\0\\100\\037\\0\\0\\200\\076\\0\\0\\002\\0\\020\\0data\\0\\0\\0\\0abcd'";
    fault_is_reported(script, ErrorKind::Protocol, "8000 Hz").await;
}

#[tokio::test]
async fn a_cancelled_synthesis_leaves_no_program_running() {
    let (folder, tts) = folder_with_flite("exec sleep 600");
    let stream = tts
        .synthesize(request(None), text(&["Hello."]))
        .await
        .unwrap();
    eventually("the program was not started", || running(&folder) > 0).await;
    drop(stream);
    assert_nothing_runs(&folder).await;
}

#[tokio::test]
async fn without_a_permit_in_time_it_is_overloaded() {
    let (folder, _) = folder_with_flite("exec sleep 600");
    let tts = LocalTts::new(LocalTtsSettings {
        search_path: folder.path().into(),
        concurrency: 1,
        ..LocalTtsSettings::default()
    });
    let first = tts
        .synthesize(request(None), text(&["Hello."]))
        .await
        .unwrap();
    eventually("the program was not started", || running(&folder) > 0).await;
    let hurried = TtsRequest {
        connection_timeout: Duration::from_millis(200),
        ..request(None)
    };
    let error = say(&tts, hurried, "Hello.").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Overloaded);
    drop(first);
    assert_nothing_runs(&folder).await;
}

#[tokio::test]
async fn a_missing_engine_names_its_package_and_the_other_speaks() {
    let empty = tempfile::tempdir().unwrap();
    let nothing = LocalTts::new(LocalTtsSettings {
        search_path: empty.path().into(),
        ..LocalTtsSettings::default()
    });
    for (voice, package) in [(None, "flite"), (Some("espeak-de"), "espeak-ng")] {
        let error = say(&nothing, request(voice), "Hello.").await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(
            error.message.ends_with(&format!("package {package}")),
            "{error}"
        );
    }
    assert!(nothing.voices().await.unwrap().is_empty());
    let missing = [
        ("flite", EngineState::Missing("flite")),
        ("espeak-ng", EngineState::Missing("espeak-ng")),
    ];
    assert_eq!(probe(empty.path().as_os_str()), missing);

    std::os::unix::fs::symlink("/usr/bin/espeak-ng", empty.path().join("espeak-ng")).unwrap();
    let espeak = LocalTts::new(LocalTtsSettings {
        search_path: empty.path().into(),
        ..LocalTtsSettings::default()
    });
    let stream = espeak
        .synthesize(request(None), text(&["Hello."]))
        .await
        .unwrap();
    assert_eq!(stream.format.layout.rate.hz(), 22_050);
    assert!(hear(stream).await.unwrap().len() > 8_000);
    assert!(
        espeak
            .voices()
            .await
            .unwrap()
            .iter()
            .all(|v| v.id.starts_with("espeak-"))
    );
}

#[tokio::test]
async fn voices_are_those_that_are_installed_and_each_says_its_rate() {
    let tts = installed();
    let voices = tts.voices().await.unwrap();
    assert_eq!(voices[0].id, "flite-slt");
    assert!(
        voices
            .iter()
            .any(|v| v.id == "espeak-de" && v.language == "de")
    );
    assert!(
        voices
            .iter()
            .all(|v| !v.id.contains("mb-") && !v.tags.is_empty())
    );
    let mut ids: Vec<&str> = voices.iter().map(|v| v.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), voices.len(), "ids are unique");

    for voice in voices
        .iter()
        .filter(|v| v.id.starts_with("flite-") || v.language.starts_with("fr"))
    {
        let stream = tts
            .synthesize(request(Some(&voice.id)), text(&["One two three."]))
            .await
            .unwrap();
        assert_eq!(voice.sample_rates, [stream.format.layout.rate.hz()]);
        assert!(!hear(stream).await.unwrap().is_empty(), "{}", voice.id);
    }
}

#[tokio::test]
async fn an_unknown_voice_or_model_is_refused_by_name() {
    let tts = installed();
    let unknown = say(&tts, request(Some("nobody")), "Hi.").await.unwrap_err();
    assert_eq!(unknown.kind, ErrorKind::InvalidRequest);
    assert!(unknown.message.contains("nobody") && unknown.message.contains("flite-slt"));
    for (model, voice) in [("gpt", None), ("flite", Some("espeak-de"))] {
        let request = TtsRequest {
            model: model.into(),
            ..request(voice)
        };
        let error = say(&tts, request, "Hi.").await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidRequest, "{error}");
    }
}

#[tokio::test]
async fn every_sentence_is_said_and_nothing_twice() {
    let tts = installed();
    let both = "The first sentence is here. The second one follows it.";
    let together = say(&tts, request(None), both).await.unwrap();
    let first = say(&tts, request(None), "The first sentence is here.")
        .await
        .unwrap();
    let second = say(&tts, request(None), "The second one follows it.")
        .await
        .unwrap();
    assert_eq!(together, [first, second].concat());

    let parts = [
        "The fir",
        "st sentence is",
        " here. The second one",
        " follows it.",
    ];
    let stream = tts.synthesize(request(None), text(&parts)).await.unwrap();
    assert_eq!(hear(stream).await.unwrap(), together);
}

#[tokio::test]
async fn a_sentence_is_heard_before_the_next_is_written() {
    let tts = installed();
    let (writer, written) = mpsc::channel(4);
    let text = ReceiverStream::new(written).boxed();
    let mut stream = tts.synthesize(request(None), text).await.unwrap();
    writer.send("Hello there. ".to_owned()).await.unwrap();
    let heard = stream.events.next().await.unwrap().unwrap();
    assert!(matches!(heard, TtsEvent::Audio(_)));
    writer.send("Bye.".to_owned()).await.unwrap();
    drop(writer);
    assert!(hear(stream).await.unwrap().len() > 5_000);
}

#[tokio::test]
async fn text_can_be_neither_option_nor_command_nor_trap() {
    let tts = installed();
    let long = "word ".repeat(2_000);
    let strange = [
        "--help",
        "-v",
        "-o /tmp/x",
        "$(touch /tmp/x)",
        "; exit 1",
        "a\0b",
        "a\u{1b}[2Jb\u{7}",
        "[[phonemes]]",
        "<speak>ssml</speak>",
        "\u{202e}abc\u{feff}",
        "hello 😀👨‍👩‍👧 world",
        &long,
    ];
    for voice in ["flite-kal16", "espeak-de"] {
        for words in strange {
            let samples = say(&tts, request(Some(voice)), words).await.unwrap();
            assert!(
                samples.len() > 2_000,
                "{voice}: {:?}",
                &words[..words.len().min(30)]
            );
        }
        for silent in ["", "   ", "...", "?!", "😀", "\0\0", "\n\n"] {
            assert!(
                say(&tts, request(Some(voice)), silent)
                    .await
                    .unwrap()
                    .is_empty()
            );
        }
    }
}

#[tokio::test]
async fn the_rate_of_speech_is_what_was_asked_for() {
    let tts = installed();
    let sentences = [
        (
            "flite-slt",
            "The quick brown fox jumps over the lazy dog, and then it went home to sleep.",
        ),
        (
            "flite-kal",
            "The quick brown fox jumps over the lazy dog, and then it went home to sleep.",
        ),
        (
            "en-GB",
            "The quick brown fox jumps over the lazy dog, and then it went home to sleep.",
        ),
        (
            "de",
            "Der schnelle braune Fuchs springt über den faulen Hund, und dann ging er nach Hause.",
        ),
        (
            "fr",
            "Le renard brun saute par-dessus le chien paresseux, puis il rentre chez lui pour dormir.",
        ),
        ("zh-CN", "今天天气很好，我们一起去公园散步吧。"),
    ];
    for (voice, words) in sentences {
        let normal = seconds(&tts, request(Some(voice)), words).await;
        assert!((3.0..8.0).contains(&normal), "{voice}: {normal} s");
        for rate in [0.5, 0.75, 1.25, 1.5] {
            let request = TtsRequest {
                speaking_rate: rate,
                ..request(Some(voice))
            };
            let error = seconds(&tts, request, words).await * rate / normal - 1.0;
            assert!(error.abs() < 0.05, "{voice} at {rate}: {error}");
        }
    }
}

#[tokio::test]
async fn a_rate_or_deadline_beyond_all_measure_is_no_panic() {
    let tts = installed();
    for rate in [f64::NAN, 0.0, -1.0, f64::INFINITY] {
        let request = TtsRequest {
            speaking_rate: rate,
            ..request(None)
        };
        let error = say(&tts, request, "Hi.").await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidRequest);
    }
    let patient = TtsRequest {
        connection_timeout: Duration::MAX,
        request_timeout: Duration::MAX,
        credential: None,
        ..request(None)
    };
    assert!(!say(&tts, patient, "Hi.").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_slow_listener_holds_no_permit() {
    let tts = LocalTts::new(LocalTtsSettings {
        concurrency: 1,
        ..LocalTtsSettings::default()
    });
    let mut slow = tts
        .synthesize(
            request(Some("espeak-de")),
            text(&[&"Das ist ein Satz. ".repeat(50)]),
        )
        .await
        .unwrap();
    slow.events.next().await.unwrap().unwrap();
    let quick = say(&tts, request(None), "Hello there.").await.unwrap();
    assert!(quick.len() > 8_000);
    assert!(hear(slow).await.unwrap().len() > 22_050 * 20);
}

#[test]
fn the_search_path_is_the_environments_by_default() {
    let path: OsString = std::env::var_os("PATH").unwrap();
    assert_eq!(LocalTtsSettings::default().search_path, path);
}
