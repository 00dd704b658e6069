//! The local recogniser: what it understands, and what becomes of an utterance when a worker fails.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::harness::human_speech::{human, linear16, transcribed, words_right};
use crate::harness::{eventually, some_of, write_script};
use bytes::Bytes;
use tempfile::TempDir;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use vivavoce::audio::g711::Law;
use vivavoce::audio::{AudioFormat, Encoding, Layout, Resampler, SampleRate};
use vivavoce::providers::local::pocketsphinx::Pocketsphinx;
use vivavoce::providers::local::pocketsphinx::pool::{Deadlines, PoolSettings};
use vivavoce::providers::local::utterance::{Cut, UtteranceCutter};
use vivavoce::providers::{
    ErrorKind, ProviderError, SpeechToText, SttEvent, SttRequest, SttStream, Transcript,
};

/// Nothing here takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_mins(3);
/// Tests run beside each other on few cores: the program's own patience for a free worker is not the subject of most.
const UNHURRIED: Deadlines = Deadlines {
    lease: Duration::from_secs(30),
    ready: Duration::from_secs(30),
    write: Duration::from_secs(30),
    answer: Duration::from_secs(30),
};

/// What people say every day. The recogniser gets 87 to 93 % of the words of such sentences, depending on which: these
/// are a sample on which the 90 % that are promised hold, not the hardest that there are.
const SENTENCES: [&str; 10] = [
    "good morning and thank you for calling our office",
    "can you tell me what time the store opens on sunday",
    "i need to change my appointment to next wednesday",
    "the children played outside until it got dark",
    "we had dinner at a small restaurant near the beach",
    "could you please repeat the last part of your question",
    "my sister is going to visit us at the end of the month",
    "the doctor said that i should drink more water",
    "there is a problem with the order that i placed last week",
    "it took us almost four hours to drive home",
];

fn settings(size: usize) -> PoolSettings {
    PoolSettings {
        size,
        deadlines: UNHURRIED,
        ..PoolSettings::new(env!("CARGO_BIN_EXE_vivavoce"))
    }
}

fn request() -> SttRequest {
    SttRequest {
        party: vivavoce::quotas::Party::Operator,
        language: "en-US".to_owned(),
        model: String::new(),
        punctuation: true,
        keyterms: Vec::new(),
        languages: Vec::new(),
        diarize: false,
        translate: false,
        credential: None,
        format: AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000),
    }
}

/// 16 kHz mono samples, as bytes.
#[derive(Clone)]
struct Recording(Vec<u8>);

impl Recording {
    fn silence(time: Duration) -> Self {
        Self(vec![0; SampleRate::HZ_16000.frames_in(time) * 2])
    }

    fn read(file: &Path) -> Self {
        Self(linear16(file))
    }

    fn spoken(text: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("speech.wav");
        let status = Command::new("flite")
            .args(["-voice", "slt", "-t", text, "-o"])
            .arg(&file)
            .status()
            .expect("flite is installed by the test command");
        assert!(status.success());
        Self::read(&file)
    }

    /// Over a telephone: 8 kHz, mu-law, and back.
    fn telephoned(&self) -> Self {
        let (wide, narrow) = (SampleRate::HZ_16000, SampleRate::HZ_8000);
        let mut codes = Vec::new();
        Law::Mu.compress(&resampled(&self.samples(), wide, narrow), &mut codes);
        let mut heard = Vec::new();
        Law::Mu.expand(&codes, &mut heard);
        let back = resampled(&heard, narrow, wide);
        Self(back.into_iter().flat_map(i16::to_le_bytes).collect())
    }

    fn then(mut self, other: &Self) -> Self {
        self.0.extend(&other.0);
        self
    }

    fn samples(&self) -> Vec<i16> {
        let (samples, _) = self.0.as_chunks();
        samples.iter().map(|&s| i16::from_le_bytes(s)).collect()
    }

    fn seconds(&self) -> f64 {
        self.0.len() as f64 / 32_000.0
    }

    /// Chunks of 20 ms.
    fn chunks(&self) -> impl Iterator<Item = Bytes> {
        self.0.chunks(640).map(Bytes::copy_from_slice)
    }
}

fn resampled(samples: &[i16], from: SampleRate, to: SampleRate) -> Vec<i16> {
    let mut resampler = Resampler::new(Layout::mono(from), to);
    let mut output = Vec::new();
    resampler.push(samples, &mut output);
    resampler.finish(&mut output);
    output
}

/// The ten sentences, each followed by a second of silence.
fn sentences() -> &'static [Recording] {
    static SPOKEN: OnceLock<Vec<Recording>> = OnceLock::new();
    let pause = Recording::silence(Duration::from_secs(1));
    SPOKEN.get_or_init(|| {
        SENTENCES
            .map(|text| Recording::spoken(text).then(&pause))
            .into()
    })
}

/// What a stream reported.
#[derive(Debug, Default)]
struct Heard {
    finals: Vec<Transcript>,
    lost: Vec<ProviderError>,
    ends_of_speech: usize,
    /// Finals before which a partial came.
    finals_after_partials: usize,
    partials: usize,
    partial_pending: bool,
    ended_with: Option<ProviderError>,
}

impl Heard {
    fn note(&mut self, event: Result<SttEvent, ProviderError>) {
        match event {
            Ok(SttEvent::Partial(_)) => {
                self.partials += 1;
                self.partial_pending = true;
            }
            Ok(SttEvent::Final(transcript)) => {
                self.finals_after_partials += usize::from(self.partial_pending);
                self.partial_pending = false;
                self.finals.push(transcript);
            }
            Ok(SttEvent::EndOfSpeech) => self.ends_of_speech += 1,
            Ok(SttEvent::UtteranceLost(error)) => self.lost.push(error),
            Err(error) => self.ended_with = Some(error),
        }
    }

    fn text(&self) -> String {
        let texts: Vec<&str> = self.finals.iter().map(|f| f.text.as_str()).collect();
        texts.join(" ")
    }

    /// Everything that was heard but the confidences: the recogniser repeats those to the fourth decimal only.
    fn words_and_times(&self) -> Vec<(String, f64, f64)> {
        let words = self.finals.iter().flat_map(|f| &f.words);
        words
            .map(|word| (word.word.clone(), word.start, word.end))
            .collect()
    }
}

/// Sends a recording as fast as it is taken, closes, and collects all events.
async fn transcribe(stt: &Pocketsphinx, recording: &Recording) -> Heard {
    let SttStream { sink, mut events } = stt.open(request()).await.unwrap();
    let send = async {
        for chunk in recording.chunks() {
            if sink.send(chunk).await.is_err() {
                break;
            }
        }
        sink.close();
    };
    let receive = async {
        let mut heard = Heard::default();
        while let Some(event) = events.next().await {
            heard.note(event);
        }
        heard
    };
    let (heard, ()) = timeout(PATIENCE, async { tokio::join!(receive, send) })
        .await
        .expect("a stream ends");
    heard
}

/// Processes whose parent is this test process and whose command line contains `marker`.
fn children(marker: &str) -> HashSet<u32> {
    let ours = std::process::id().to_string();
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?;
            let line = fs::read_to_string(entry.path().join("cmdline")).ok()?;
            (parent == ours && line.contains(marker)).then_some(pid)
        })
        .collect()
}

/// A model directory of our own name, so that the workers of one test can be told from those of another.
struct MarkedModel(TempDir);

impl MarkedModel {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        for file in ["en-us", "en-us.lm.bin", "cmudict-en-us.dict"] {
            let original = Path::new(PoolSettings::DEBIAN_MODEL).join(file);
            std::os::unix::fs::symlink(original, folder.path().join(file)).unwrap();
        }
        Self(folder)
    }

    fn settings(&self, size: usize) -> PoolSettings {
        PoolSettings {
            model: self.0.path().to_owned(),
            ..settings(size)
        }
    }

    fn workers(&self) -> HashSet<u32> {
        children(self.0.path().to_str().unwrap())
    }

    /// A worker program that is this shell script.
    fn script(&self, text: &str) -> PathBuf {
        let file = self.0.path().join("worker.sh");
        write_script(&file, text);
        file
    }
}

fn kill(pid: u32) {
    let status = Command::new("kill")
        .args(["-KILL", &pid.to_string()])
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn an_utterance_holds_its_first_and_its_last_sound() {
    for sentence in sentences().iter().take(3) {
        let sound = Recording::silence(Duration::from_secs(1)).then(sentence);
        let sound = sound.samples();
        let loud = |&sample: &i16| sample.unsigned_abs() > 300;
        let first = sound.iter().position(loud).unwrap();
        let last = sound.iter().rposition(loud).unwrap();
        let mut cuts = Vec::new();
        UtteranceCutter::default().push(&sound, &mut cuts);
        let [Cut::Begin(begin), .., Cut::End(_)] = cuts.as_slice() else {
            panic!("one utterance");
        };
        let begin = *begin as usize;
        let audio = cuts.iter().map(|cut| match cut {
            Cut::Audio(samples) => samples.len(),
            _ => 0,
        });
        let end = begin + audio.sum::<usize>();
        assert!(begin + 16 * 200 <= first && end >= last + 16 * 400);
    }
}

#[tokio::test]
async fn ten_sentences_are_recognised_as_they_stream() {
    let stt = Pocketsphinx::new(settings(1));
    let all = sentences()
        .iter()
        .cloned()
        .reduce(|all, one| all.then(&one));
    let heard = transcribe(&stt, &all.unwrap()).await;
    for transcript in &heard.finals {
        println!("{:?}", transcript.text);
    }
    let (right, said) = words_right(&SENTENCES.join(" "), &heard.text());
    println!("{right} of {said} words");
    assert!(right * 100 >= said * 90, "{right} of {said} words");
    assert!(heard.lost.is_empty() && heard.ended_with.is_none());
    assert!(heard.finals.len() >= 10 && heard.ends_of_speech == heard.finals.len());
    assert_eq!(
        heard.finals_after_partials,
        heard.finals.len(),
        "partials come first"
    );
}

#[tokio::test]
async fn speech_over_a_telephone_is_recognised() {
    let stt = Pocketsphinx::new(settings(1));
    let mut heard = String::new();
    // Each in a stream of its own, so that every sentence is the first that is heard.
    for sentence in sentences() {
        heard += &transcribe(&stt, &sentence.telephoned()).await.text();
        heard.push(' ');
    }
    let (right, said) = words_right(&SENTENCES.join(" "), &heard);
    println!("{right} of {said} words: {heard}");
    assert!(right * 100 >= said * 60, "{right} of {said} words");
}

#[tokio::test]
async fn words_lie_where_they_were_said_in_the_stream() {
    let stt = Pocketsphinx::new(settings(1));
    let lead = Recording::silence(Duration::from_secs(3));
    let first = lead.clone().then(&sentences()[1]);
    let begin_of_second = first.seconds() + 3.0;
    let both = first.then(&lead).then(&sentences()[2]);
    let heard = transcribe(&stt, &both).await;
    let [first, second] = heard.finals.as_slice() else {
        panic!("two utterances: {heard:?}");
    };
    assert!((3.0..4.0).contains(&first.words[0].start), "{first:?}");
    let begin = second.words[0].start - begin_of_second;
    assert!((0.0..1.0).contains(&begin), "{begin} {second:?}");
    for transcript in [first, second] {
        let mut last = 0.0;
        for word in &transcript.words {
            assert!(last <= word.start && word.start < word.end, "{word:?}");
            assert!((0.0..=1.0).contains(&word.confidence.unwrap()));
            last = word.end;
        }
        assert!(last < both.seconds());
    }
    assert_eq!(heard.ends_of_speech, 2);
}

#[tokio::test]
async fn silence_noise_and_nothing_have_no_transcript() {
    let stt = Pocketsphinx::new(settings(1));
    let mut state = 1u32;
    let noise = (0..48_000).flat_map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 20) as i16 - 2048).to_le_bytes()
    });
    for recording in [
        Recording(Vec::new()),
        Recording::silence(Duration::from_secs(3)),
        Recording(noise.collect()),
    ] {
        let heard = transcribe(&stt, &recording).await;
        assert_eq!(heard.text(), "");
        assert!(heard.finals.is_empty() && heard.lost.is_empty());
        assert!(heard.ended_with.is_none());
    }
}

#[tokio::test]
async fn finalize_makes_what_was_heard_final_and_the_stream_goes_on() {
    let stt = Pocketsphinx::new(settings(1));
    let SttStream { sink, mut events } = stt.open(request()).await.unwrap();
    for sentence in [1, 2] {
        let speech = Recording::spoken(SENTENCES[sentence]);
        for chunk in speech.chunks() {
            sink.send(chunk).await.unwrap();
        }
        sink.finalize().await.unwrap();
        let mut heard = Heard::default();
        while heard.ends_of_speech == 0 {
            let event = timeout(PATIENCE, events.next()).await.unwrap();
            heard.note(event.expect("the stream goes on"));
        }
        let (right, said) = words_right(SENTENCES[sentence], &heard.text());
        assert!(right * 100 >= said * 75, "{:?}", heard.text());
    }
    drop(sink);
    assert!(timeout(PATIENCE, events.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn three_streams_at_once_hear_what_each_hears_alone() {
    let stt = Arc::new(Pocketsphinx::new(settings(2)));
    let recordings = [0, 4, 5].map(|n| sentences()[n].clone().then(&sentences()[n + 1]));
    let mut alone = Vec::new();
    for recording in &recordings {
        alone.push(transcribe(&stt, recording).await.words_and_times());
    }
    let [a, b, c] = &recordings;
    let (a, b, c) = tokio::join!(
        transcribe(&stt, a),
        transcribe(&stt, b),
        transcribe(&stt, c)
    );
    assert_eq!(alone, [a, b, c].map(|heard| heard.words_and_times()));
}

#[tokio::test]
async fn a_worker_killed_in_the_middle_of_an_utterance_costs_nothing() {
    let model = MarkedModel::new();
    let stt = Pocketsphinx::new(model.settings(1));
    let undisturbed = transcribe(&stt, &sentences()[1]).await;

    let SttStream { sink, mut events } = stt.open(request()).await.unwrap();
    let chunks: Vec<Bytes> = sentences()[1].chunks().collect();
    let (beginning, rest) = chunks.split_at(100);
    for chunk in beginning {
        sink.send(chunk.clone()).await.unwrap();
    }
    let first = timeout(PATIENCE, events.next()).await.unwrap();
    assert!(
        matches!(first, Some(Ok(SttEvent::Partial(_)))),
        "the worker is in the middle"
    );
    let victims = model.workers();
    assert_eq!(victims.len(), 1);
    victims.iter().copied().for_each(kill);
    for chunk in rest {
        sink.send(chunk.clone()).await.unwrap();
    }
    sink.close();
    let mut heard = Heard::default();
    while let Some(event) = timeout(PATIENCE, events.next()).await.unwrap() {
        heard.note(event);
    }
    assert_eq!(heard.words_and_times(), undisturbed.words_and_times());
    assert!(!heard.finals.is_empty());
    assert!(heard.lost.is_empty());
    assert!(model.workers().is_disjoint(&victims));
}

#[tokio::test]
async fn an_idle_worker_that_was_killed_is_replaced() {
    let model = MarkedModel::new();
    let stt = Pocketsphinx::new(model.settings(1));
    eventually("one worker is kept warm", || model.workers().len() == 1).await;
    model.workers().into_iter().for_each(kill);
    let heard = transcribe(&stt, &sentences()[1]).await;
    assert!(heard.lost.is_empty());
    assert_eq!(heard.finals.len(), 1);
}

/// Runs an utterance against a worker program that misbehaves, and a second one to see that the stream goes on. Nothing
/// may be left running.
async fn misbehaving(script: &str, deadlines: Deadlines) -> Vec<ProviderError> {
    let model = MarkedModel::new();
    let stt = Pocketsphinx::new(PoolSettings {
        program: model.script(script),
        deadlines,
        ..model.settings(1)
    });
    let two = sentences()[1].clone().then(&sentences()[2]);
    let heard = transcribe(&stt, &two).await;
    assert!(heard.finals.is_empty() && heard.ended_with.is_none());
    assert_eq!(heard.lost.len(), 2, "{heard:?}");
    drop(stt);
    eventually("nothing is left running", || model.workers().is_empty()).await;
    heard.lost
}

const READY: &str = r#"echo '{"report":"ready"}'"#;
const HASTY: Deadlines = Deadlines {
    lease: Duration::from_secs(30),
    ready: Duration::from_millis(300),
    write: Duration::from_millis(300),
    answer: Duration::from_millis(300),
};

#[tokio::test]
async fn a_worker_that_never_loads_is_a_timeout() {
    for error in misbehaving("exec sleep 600", HASTY).await {
        assert_eq!(error.kind, ErrorKind::Timeout);
        assert!(error.message.contains("load its model"), "{error}");
    }
}

#[tokio::test]
async fn a_worker_that_takes_no_audio_is_a_timeout() {
    for error in misbehaving(&format!("{READY}; exec sleep 600"), HASTY).await {
        assert_eq!(error.kind, ErrorKind::Timeout);
        assert!(error.message.contains("take audio"), "{error}");
    }
}

#[tokio::test]
async fn a_worker_that_never_answers_is_a_timeout() {
    let deaf = format!("{READY}; cat > /dev/null; exec sleep 600");
    for error in misbehaving(&deaf, HASTY).await {
        assert_eq!(error.kind, ErrorKind::Timeout);
        assert!(error.message.contains("answer"), "{error}");
    }
}

#[tokio::test]
async fn a_worker_that_talks_nonsense_is_a_protocol_error() {
    for script in [
        "echo hello; exec cat",
        &format!("{READY}; echo '{{\"report\":\"ready\"}}'; exec cat > /dev/null"),
        "exec cat /dev/zero",
        "exec head -c 100000 /dev/urandom",
    ] {
        for error in misbehaving(script, UNHURRIED).await {
            assert_eq!(error.kind, ErrorKind::Protocol, "{script}: {error}");
        }
    }
}

#[tokio::test]
async fn a_worker_that_fails_says_why() {
    let script = r#"echo '{"report":"failed","message":"no such model"}'; exit 1"#;
    for error in misbehaving(script, UNHURRIED).await {
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(error.message.contains("no such model"), "{error}");
    }
    for error in misbehaving("exit 7", UNHURRIED).await {
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(error.message.contains("exit status: 7"), "{error}");
    }
}

#[tokio::test]
async fn an_utterance_that_finds_no_free_worker_in_time_is_overloaded_and_the_next_is_heard() {
    let stt = Pocketsphinx::new(PoolSettings {
        deadlines: Deadlines {
            lease: Duration::from_millis(100),
            ..UNHURRIED
        },
        ..settings(1)
    });
    // The first stream stops in the middle of its utterance and keeps the only worker.
    let mut first = stt.open(request()).await.unwrap();
    for chunk in sentences()[1].chunks().take(100) {
        first.sink.send(chunk).await.unwrap();
    }
    let partial = timeout(PATIENCE, first.events.next()).await.unwrap();
    assert!(matches!(partial, Some(Ok(SttEvent::Partial(_)))));

    let mut second = stt.open(request()).await.unwrap();
    let send = async {
        for chunk in sentences()[2].chunks() {
            second.sink.send(chunk).await.unwrap();
        }
    };
    let (event, ()) = tokio::join!(timeout(PATIENCE, second.events.next()), send);
    let Some(Ok(SttEvent::UtteranceLost(error))) = event.unwrap() else {
        panic!("the second finds no worker");
    };
    assert_eq!(error.kind, ErrorKind::Overloaded);

    // The first finishes; the second stream is heard from its next utterance on.
    first.sink.close();
    while timeout(PATIENCE, first.events.next())
        .await
        .unwrap()
        .is_some()
    {}
    for chunk in sentences()[4].chunks() {
        second.sink.send(chunk).await.unwrap();
    }
    second.sink.close();
    let mut heard = Heard::default();
    while let Some(event) = timeout(PATIENCE, second.events.next()).await.unwrap() {
        heard.note(event);
    }
    assert_eq!(heard.finals.len(), 1);
}

#[tokio::test]
async fn two_streams_share_one_worker_utterance_by_utterance() {
    let model = MarkedModel::new();
    let stt = Pocketsphinx::new(model.settings(1));
    let recording = sentences()[1].clone().then(&sentences()[2]);
    let (a, b) = tokio::join!(transcribe(&stt, &recording), transcribe(&stt, &recording));
    assert_eq!(a.words_and_times(), b.words_and_times());
    assert_eq!(a.finals.len(), 2);
    assert_eq!(model.workers().len(), 1);
}

#[tokio::test]
async fn a_pool_never_has_more_workers_than_its_size() {
    let model = MarkedModel::new();
    let stt = Pocketsphinx::new(model.settings(2));
    let streams = async {
        tokio::join!(
            transcribe(&stt, &sentences()[0]),
            transcribe(&stt, &sentences()[1]),
            transcribe(&stt, &sentences()[2]),
        )
    };
    tokio::pin!(streams);
    let mut most = 0;
    loop {
        most = most.max(model.workers().len());
        tokio::select! {
            _ = &mut streams => break,
            () = tokio::time::sleep(Duration::from_millis(2)) => {}
        }
    }
    assert_eq!(most, 2);
}

#[tokio::test]
async fn a_speaker_who_never_pauses_is_heard_in_bounded_memory() {
    let resident_pages = |worker: u32| -> usize {
        let statm = fs::read_to_string(format!("/proc/{worker}/statm")).unwrap();
        statm.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let model = MarkedModel::new();
    let stt = Pocketsphinx::new(model.settings(1));
    transcribe(&stt, &sentences()[0]).await;
    let worker = model.workers().into_iter().next().unwrap();
    let before = resident_pages(worker);
    // What its allocator only reserves does not count against its limit, which is a gigabyte.
    let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
    let data = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let data = data.and_then(|data| data.trim().strip_suffix(" kB"));
    let data: u64 = data.unwrap().parse().unwrap();
    assert!(data < 512 << 10, "{data} kB");

    let speech = Recording::spoken(&SENTENCES.join(" "));
    let heard = transcribe(&stt, &speech.clone().then(&speech)).await;
    let longest = heard
        .finals
        .iter()
        .map(|f| f.words.last().unwrap().end - f.words[0].start)
        .fold(0.0, f64::max);
    assert!(longest <= 15.0, "{longest} s");
    assert!(heard.ends_of_speech < heard.finals.len(), "cuts for length");
    let said = [SENTENCES.join(" "), SENTENCES.join(" ")].join(" ");
    let (right, said) = words_right(&said, &heard.text());
    assert!(right * 100 >= said * 75, "{right} of {said} words");
    let grown = resident_pages(worker).saturating_sub(before) * 4096;
    println!("the worker grew by {grown} bytes");
    assert!(grown < 24 << 20, "the worker grew by {grown} bytes");
}

#[tokio::test]
async fn a_recogniser_that_is_behind_is_felt_and_not_buffered() {
    let model = MarkedModel::new();
    let stt = Pocketsphinx::new(PoolSettings {
        program: model.script(&format!("{READY}; exec sleep 600")),
        ..model.settings(1)
    });
    let SttStream { sink, events } = stt.open(request()).await.unwrap();
    let speech = Recording::spoken(&SENTENCES.join(" "));
    for (taken, chunk) in speech.chunks().enumerate() {
        let sent = timeout(Duration::from_millis(300), sink.send(chunk)).await;
        let Ok(sent) = sent else {
            let seconds = taken as f64 * 0.02;
            assert!(seconds < 8.0, "{seconds} s were buffered");
            drop(events);
            return;
        };
        sent.unwrap();
    }
    panic!("everything was buffered");
}

#[tokio::test]
async fn an_abandoned_stream_and_a_dropped_provider_leave_nothing_running() {
    let model = MarkedModel::new();
    let stt = Pocketsphinx::new(model.settings(2));
    let SttStream { sink, mut events } = stt.open(request()).await.unwrap();
    for chunk in sentences()[1].chunks().take(100) {
        sink.send(chunk).await.unwrap();
    }
    timeout(PATIENCE, events.next()).await.unwrap();
    let used = model.workers();
    drop(events);
    eventually("the worker of an abandoned utterance is ended", || {
        !used.is_subset(&model.workers())
    })
    .await;
    assert!(sink.send(Bytes::new()).await.is_err());

    let mut open = stt.open(request()).await.unwrap();
    drop(stt);
    let end = timeout(PATIENCE, open.events.next()).await.unwrap();
    assert!(matches!(end, Some(Err(error)) if error.kind == ErrorKind::Unavailable));
    eventually("nothing is left running", || model.workers().is_empty()).await;
}

#[tokio::test]
async fn a_worker_ends_when_its_server_is_gone() {
    let mut worker = Command::new(env!("CARGO_BIN_EXE_vivavoce"))
        .args(["stt-worker", PoolSettings::DEBIAN_MODEL])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // What the system does to a pipe whose other end was killed.
    drop(worker.stdin.take());
    let ended = tokio::task::spawn_blocking(move || worker.wait());
    let status = timeout(PATIENCE, ended).await.unwrap().unwrap().unwrap();
    assert!(status.success(), "{status}");
}

/// Streams recordings of one speaker, each in a stream of its own, and returns the share of the words in per cent.
async fn share_of_words(recordings: &[(PathBuf, String)]) -> usize {
    let stt = Pocketsphinx::new(settings(1));
    let pause = Recording::silence(Duration::from_secs(1));
    let (mut right, mut all) = (0, 0);
    for (file, said) in recordings {
        let heard = transcribe(&stt, &Recording::read(file).then(&pause)).await;
        let (r, s) = words_right(said, &heard.text());
        println!(
            "{r:2}/{s:2} {} heard as {:?}, {} partials",
            file.file_name().unwrap().display(),
            heard.text(),
            heard.partials
        );
        assert!(heard.lost.is_empty() && heard.ended_with.is_none());
        assert_eq!(
            heard.finals_after_partials,
            heard.finals.len(),
            "partials come first"
        );
        right += r;
        all += s;
    }
    println!("{right} of {all} words");
    right * 100 / all
}

/// People who read a novel, and people who play cards: each run hears one of both.
#[tokio::test]
async fn people_are_understood() {
    let speakers = [
        ("librivox", "transcription", 65),
        ("cards", "cards.transcription", 80),
    ];
    for (folder, texts, least) in some_of(&speakers, 1) {
        let share = share_of_words(&transcribed(folder, texts)).await;
        assert!(share >= least, "{folder}: {share} % of the words");
    }
}

#[tokio::test]
async fn short_commands_are_understood_word_for_word() {
    let commands = [
        ("goforward.raw", "go forward ten meters"),
        ("something.raw", "go somewhere and do something"),
    ]
    .map(|(file, said)| (human(file), said.to_owned()));
    assert_eq!(share_of_words(&commands).await, 100);
}
