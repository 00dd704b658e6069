//! The local recogniser with the models of `vivavoce models`: what it understands of people, and what becomes of an
//! utterance when a model or its worker fails.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::harness::human_speech::{linear16, spoken, transcribed, words_right};
use crate::harness::{children_of, eventually, models};
use bytes::Bytes;
use tempfile::TempDir;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use vivavoce::audio::{AudioFormat, Encoding, SampleRate};
use vivavoce::providers::local::neural::Models;
use vivavoce::providers::local::stt::{LocalStt, LocalSttSettings};
use vivavoce::providers::{
    ErrorKind, ProviderError, SpeechToText, SttEvent, SttRequest, SttStream, Transcript,
};
use vivavoce::quotas::{Party, Share};

/// Nothing here takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_mins(2);
const RUNTIME: &str = "onnxruntime";
const MODEL: &str = "moonshine-tiny-en";

/// A copy of some of them, to be spoiled.
fn copied(names: &[&str]) -> TempDir {
    let copy = TempDir::new().unwrap();
    for name in names {
        let to = copy.path().join(name);
        fs::create_dir(&to).unwrap();
        for file in fs::read_dir(models::all().join(name)).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    copy
}

fn recogniser(models: &Path) -> LocalStt {
    LocalStt::new(LocalSttSettings {
        models: Models::new(env!("CARGO_BIN_EXE_vivavoce"), models),
        size: 1,
        preload: false,
        share: Share::NONE,
        pocketsphinx: "/nonexistent".into(),
    })
}

fn request(model: &str) -> SttRequest {
    SttRequest {
        party: Party::Operator,
        language: "en-US".to_owned(),
        model: model.to_owned(),
        punctuation: true,
        keyterms: Vec::new(),
        languages: Vec::new(),
        diarize: false,
        translate: false,
        credential: None,
        format: AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000),
    }
}

/// What a stream reported.
#[derive(Debug, Default)]
struct Heard {
    finals: Vec<Transcript>,
    partials: Vec<Transcript>,
    lost: Vec<ProviderError>,
}

impl Heard {
    fn text(&self) -> String {
        let texts: Vec<&str> = self.finals.iter().map(|f| f.text.as_str()).collect();
        spoken(&texts.join(" "))
    }
}

/// Sends samples, in real time where `paced`, closes, and collects all events.
async fn hear(stt: &LocalStt, request: SttRequest, audio: &[u8], paced: bool) -> Heard {
    let SttStream { sink, mut events } = stt.open(request).await.unwrap();
    let send = async {
        for chunk in audio.chunks(640) {
            if sink.send(Bytes::copy_from_slice(chunk)).await.is_err() {
                break;
            }
            if paced {
                tokio::time::sleep(Duration::from_millis(19)).await;
            }
        }
        sink.close();
    };
    let receive = async {
        let mut heard = Heard::default();
        while let Some(event) = events.next().await {
            match event.unwrap() {
                SttEvent::Partial(partial) => heard.partials.push(partial),
                SttEvent::Final(transcript) => heard.finals.push(transcript),
                SttEvent::UtteranceLost(error) => heard.lost.push(error),
                SttEvent::EndOfSpeech => panic!("it does not know whether a turn is over"),
            }
        }
        heard
    };
    let (heard, ()) = timeout(PATIENCE, async { tokio::join!(receive, send) })
        .await
        .expect("a stream ends");
    heard
}

/// Sentences that were read aloud, each with a second of silence.
fn read_aloud() -> Vec<(Vec<u8>, String)> {
    let sentences = transcribed("librivox", "transcription");
    let sentences = sentences.into_iter().map(|(file, said)| {
        let mut audio = linear16(&file);
        audio.extend(vec![0; 32_000]);
        (audio, said)
    });
    sentences.collect()
}

async fn words_understood(model: &str) -> (usize, usize) {
    let stt = recogniser(&models::all());
    let (mut right, mut all) = (0, 0);
    for (audio, said) in read_aloud() {
        let heard = hear(&stt, request(model), &audio, false).await;
        assert!(heard.lost.is_empty(), "{heard:?}");
        let heard_as = heard.text().replace("mr ", "mister ");
        let (r, s) = words_right(&said, &heard_as);
        println!("{r:2}/{s:2} heard as {:?}", heard.text());
        (right, all) = (right + r, all + s);
        for transcript in &heard.finals {
            let mut before = 0.0;
            let end = transcript.end.unwrap();
            assert!(!transcript.words.is_empty());
            for word in &transcript.words {
                let ordered = before <= word.start && word.start <= word.end && word.end <= end;
                assert!(ordered, "{word:?} after {before}, before {end}");
                before = word.start;
                assert!((0.0..=1.0).contains(&word.confidence.unwrap()), "{word:?}");
            }
        }
    }
    (right, all)
}

#[tokio::test]
async fn people_are_understood_by_moonshine() {
    let (right, all) = words_understood("").await;
    assert!(right * 100 >= all * 95, "{right} of {all} words");
}

#[tokio::test]
async fn people_are_understood_by_whisper_tiny() {
    let (right, all) = words_understood("whisper-tiny.en").await;
    assert!(right * 100 >= all * 90, "{right} of {all} words");
}

#[tokio::test]
async fn people_are_understood_by_whisper_base_which_finds_their_language() {
    let stt = recogniser(&models::all());
    let (audio, said) = read_aloud().swap_remove(0);
    let request = SttRequest {
        language: "de-DE".to_owned(),
        languages: vec!["en-US".to_owned(), "fr-FR".to_owned()],
        ..request("whisper-base")
    };
    let heard = hear(&stt, request, &audio, false).await;
    let (right, all) = words_right(&said, &heard.text());
    assert!(right * 100 >= all * 90, "{heard:?}");
    assert_eq!(heard.finals[0].language.as_deref(), Some("en"));
}

#[tokio::test]
async fn where_no_model_of_many_languages_is_installed_english_is_heard_by_the_usual_model() {
    let copy = copied(&[RUNTIME, MODEL]);
    let stt = recogniser(copy.path());
    let (audio, said) = read_aloud().swap_remove(0);
    let languages = vec!["en-US".to_owned(), "fr-FR".to_owned()];
    let request = SttRequest {
        languages,
        ..request("")
    };
    let heard = hear(&stt, request, &audio, false).await;
    let (right, all) = words_right(&said, &heard.text());
    assert!(right * 100 >= all * 90, "{heard:?}");
}

#[tokio::test]
async fn what_the_model_that_is_taken_ignores_is_told() {
    let stt = recogniser(&models::all());
    let ignored = |field: &str, model: &str, spoken: &[&str]| {
        let why = stt.ignored_because(field, model, spoken)?;
        assert!(why.starts_with(field), "{why}");
        Some(why)
    };
    let (one, two): (&[&str], &[&str]) = (&["en-US"], &["en-US", "fr-FR"]);
    for (model, spoken, ignores) in [
        ("", one, ["keyterms"].as_slice()),
        // The usual model for several languages is Whisper.
        ("", two, &[]),
        (MODEL, two, &["keyterms", "languages"]),
        ("whisper-tiny.en", two, &["languages"]),
        ("whisper-base", two, &[]),
        ("pocketsphinx", two, &["keyterms", "languages"]),
    ] {
        for field in ["keyterms", "languages"] {
            let told = ignored(field, model, spoken).is_some();
            let expected = ignores.contains(&field) || (field == "languages" && spoken == one);
            assert_eq!(told, expected, "{field} {model:?} {spoken:?}");
        }
        assert!(ignored("diarize", model, spoken).is_some());
        assert!(ignored("words", model, spoken).is_none());
    }
}

#[tokio::test]
async fn while_somebody_speaks_partials_grow_into_the_final() {
    let stt = recogniser(&models::all());
    let (audio, said) = read_aloud().swap_remove(0);
    // The first utterance finds a worker that has loaded its model.
    hear(&stt, request(""), &audio, false).await;
    let heard = hear(&stt, request(""), &audio, true).await;
    assert_eq!(heard.finals.len(), 1, "{heard:?}");
    assert!(heard.partials.len() >= 3, "{heard:?}");
    let halfway = spoken(&heard.partials[heard.partials.len() / 2].text);
    let (right, of) = words_right(&halfway, &said);
    assert!(right > 0 && right < of, "{halfway:?}");
}

#[tokio::test]
async fn noise_and_silence_are_no_words() {
    let stt = recogniser(&models::all());
    let mut seed = 7u32;
    let mut noise = |level: f64| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((f64::from(seed >> 8) / f64::from(1u32 << 24) - 0.5) * level) as i16
    };
    let tone = |at: usize| (f64::sin(at as f64 * 0.17) * 8_000.0) as i16;
    let sounds: [Vec<i16>; 4] = [
        vec![0; 48_000],
        (0..48_000).map(|_| noise(3_000.0)).collect(),
        (0..48_000).map(tone).collect(),
        // A door: a burst that dies away.
        (0..48_000)
            .map(|at| noise(30_000.0 * f64::exp(-f64::from(at) / 2_000.0)))
            .collect(),
    ];
    for sound in sounds {
        let bytes: Vec<u8> = sound
            .iter()
            .flat_map(|sample| sample.to_le_bytes())
            .collect();
        let heard = hear(&stt, request(""), &bytes, false).await;
        assert_eq!(heard.text(), "", "{heard:?}");
    }
}

#[tokio::test]
async fn an_utterance_survives_the_worker_that_hears_it() {
    let copy = copied(&[RUNTIME, MODEL]);
    let stt = recogniser(copy.path());
    let marker = copy.path().to_str().unwrap().to_owned();
    let workers = || {
        let children = children_of(std::process::id(), "vivavoce").into_iter();
        let ours = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&marker)
        };
        children.filter(ours).collect::<Vec<_>>()
    };
    let (audio, said) = read_aloud().swap_remove(0);
    let killed = async {
        eventually("a worker", || !workers().is_empty()).await;
        for worker in workers() {
            let pid = rustix::process::Pid::from_raw(worker.cast_signed()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    };
    let (heard, ()) = tokio::join!(hear(&stt, request(""), &audio, false), killed);
    let (right, all) = words_right(&said, &heard.text());
    assert!(right * 100 >= all * 90, "{heard:?}");
    drop(stt);
    eventually("no worker outlives its pool", || workers().is_empty()).await;
}

#[tokio::test]
async fn what_is_missing_or_damaged_is_an_error_with_its_remedy_and_never_a_crash() {
    let stt = recogniser(&models::all());
    for (request, says) in [
        (request("whisper-enormous"), "there are"),
        (
            SttRequest {
                language: "de-DE".to_owned(),
                ..request(MODEL)
            },
            "English only",
        ),
    ] {
        let refused = stt.open(request).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidRequest);
        assert!(refused.message.contains(says), "{refused}");
    }
    let empty = TempDir::new().unwrap();
    let refused = recogniser(empty.path())
        .open(request("whisper-base"))
        .await
        .unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidRequest);
    assert!(
        refused
            .message
            .contains("vivavoce models fetch whisper-base"),
        "{refused}"
    );
    let (audio, _) = read_aloud().swap_remove(1);
    // The right sizes, and no networks.
    for (file, from) in [
        (format!("{MODEL}/encoder_model.ort"), 0),
        (format!("{MODEL}/decoder_model_merged.ort"), 1_000_000),
        (format!("{RUNTIME}/libonnxruntime.so"), 0),
    ] {
        let copy = copied(&[RUNTIME, MODEL]);
        let path = copy.path().join(&file);
        let mut bytes = fs::read(&path).unwrap();
        bytes[from..].fill(0x5a);
        fs::write(&path, bytes).unwrap();
        let heard = hear(&recogniser(copy.path()), request(""), &audio, false).await;
        // Weights that are garbage may still be a network, which then hears nonsense.
        let told = heard
            .lost
            .iter()
            .any(|error| error.kind == ErrorKind::Unavailable);
        assert!(told || from > 0, "{file}: {heard:?}");
    }
    // Half a file is no installed model.
    let copy = copied(&[RUNTIME, MODEL]);
    let half = copy.path().join(MODEL).join("encoder_model.ort");
    let bytes = fs::read(&half).unwrap();
    fs::write(&half, &bytes[..bytes.len() / 2]).unwrap();
    let refused = recogniser(copy.path())
        .open(request(MODEL))
        .await
        .unwrap_err();
    assert!(
        refused.message.contains("vivavoce models fetch"),
        "{refused}"
    );
}
