//! Lives of a recogniser's stream whose far end the test plays itself, in virtual time.

use std::collections::VecDeque;
use std::sync::Mutex;

use actix::Addr;
use async_trait::async_trait;
use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::*;
use vivavoce_audio::{AudioFormat, Encoding, Layout, SampleRate, linear16};
use vivavoce_seams::{Accepts, AudioSink, SttInput, Word};

const RATE: SampleRate = SampleRate::HZ_8000;
const CHUNK: Duration = Duration::from_millis(20);
/// The first chunk; the others are louder by one each.
const LOUD: i16 = 1_000;
/// Chunks that wait in the sink.
const SINK_CHUNKS: usize = 4;

/// How the provider opens a stream.
#[derive(Clone, Copy)]
enum Opening {
    Takes(Duration),
    Fails,
    Panics,
    PanicsLater,
}

/// A provider whose streams are handed to the test as they open.
struct Scripted {
    openings: Mutex<VecDeque<Opening>>,
    stream_limit: Option<Duration>,
    answers_within: Option<Duration>,
    opened: mpsc::UnboundedSender<Far>,
}

/// The far end of a stream.
struct Far {
    input: mpsc::Receiver<SttInput>,
    events: mpsc::UnboundedSender<Result<SttEvent, ProviderError>>,
}

#[async_trait]
impl SpeechToText for Scripted {
    fn slug(&self) -> &'static str {
        "scripted"
    }

    fn accepts(&self) -> Accepts {
        Accepts {
            encodings: &[Encoding::Linear16],
            rates: &[8_000],
            stereo: false,
            stream_limit: self.stream_limit,
        }
    }

    fn answers_within(&self) -> Option<Duration> {
        self.answers_within
    }

    async fn open(&self, _: SttRequest) -> Result<SttStream, ProviderError> {
        let opening = self.openings.lock().unwrap().pop_front();
        let opening = opening.unwrap_or(Opening::Takes(Duration::ZERO));
        let (sink, input) = AudioSink::channel(SINK_CHUNKS);
        let (events, received) = mpsc::unbounded_channel();
        let mut events_end: Events = Box::pin(UnboundedReceiverStream::new(received));
        match opening {
            Opening::Takes(time) => sleep(time).await,
            Opening::Fails => return Err(failure()),
            Opening::Panics => panic!("a provider's mistake"),
            Opening::PanicsLater => {
                events_end = Box::pin(events_end.map(|_| panic!("a provider's mistake")));
            }
        }
        self.opened.send(Far { input, events }).unwrap();
        Ok(SttStream {
            sink,
            events: events_end,
        })
    }
}

fn failure() -> ProviderError {
    ProviderError::new("scripted", ErrorKind::Unavailable, "a scripted failure")
}

#[derive(Debug, PartialEq)]
enum Up {
    /// The chunks by their numbers.
    Chunk(i16),
    Finalize,
    End,
}

impl Far {
    /// What comes until nothing has come for a while.
    async fn everything(&mut self) -> Vec<Up> {
        let mut all = Vec::new();
        while let Ok(next) = timeout(Duration::from_millis(100), self.input.recv()).await {
            all.push(next.map_or(Up::End, up));
            if all.last() == Some(&Up::End) {
                return all;
            }
        }
        all
    }

    /// What has come by now.
    fn already(&mut self) -> Vec<Up> {
        std::iter::from_fn(|| self.input.try_recv().ok())
            .map(up)
            .collect()
    }

    fn says(&self, event: SttEvent) {
        self.events.send(Ok(event)).unwrap();
    }

    fn fails(self) {
        self.events.send(Err(failure())).unwrap();
    }
}

fn up(input: SttInput) -> Up {
    match input {
        SttInput::Audio(sound) => {
            let samples = linear16::samples(&sound);
            assert!(samples.iter().all(|sample| *sample == samples[0]));
            Up::Chunk(samples[0] - LOUD)
        }
        SttInput::Finalize => Up::Finalize,
    }
}

fn chunks(numbers: impl IntoIterator<Item = i16>) -> Vec<Up> {
    numbers.into_iter().map(Up::Chunk).collect()
}

/// A final whose words have these times.
fn heard(words: &[(f64, f64)]) -> Transcript {
    let word = |&(start, end): &(f64, f64)| Word {
        word: "word".to_owned(),
        start,
        end,
        confidence: None,
        speaker: None,
    };
    Transcript {
        text: "word".to_owned(),
        words: words.iter().map(word).collect(),
        ..Transcript::default()
    }
}

/// Timers ring at the next millisecond.
fn has_lasted(began: Instant, time: Duration) -> bool {
    began.elapsed().abs_diff(time) < Duration::from_millis(10)
}

struct Listener(mpsc::UnboundedSender<SttReport>);

impl Actor for Listener {
    type Context = Context<Self>;
}

impl Handler<SttReport> for Listener {
    type Result = ();
    fn handle(&mut self, report: SttReport, _: &mut Context<Self>) {
        self.0.send(report).unwrap();
    }
}

/// A session that hears nothing but its recogniser.
struct Session {
    buffer: ReplayBuffer,
    provider: Arc<Scripted>,
    streams: mpsc::UnboundedReceiver<Far>,
    listener: Addr<Listener>,
    reports: mpsc::UnboundedReceiver<SttReport>,
    attempts: u32,
    pushed: i16,
}

impl Session {
    fn new(openings: &[Opening]) -> Self {
        Self::with_limits(openings, None, None)
    }

    fn with_stream_limit(openings: &[Opening], stream_limit: Option<Duration>) -> Self {
        Self::with_limits(openings, stream_limit, None)
    }

    fn with_limits(
        openings: &[Opening],
        stream_limit: Option<Duration>,
        answers_within: Option<Duration>,
    ) -> Self {
        tokio::time::pause();
        let (opened, streams) = mpsc::unbounded_channel();
        let (told, reports) = mpsc::unbounded_channel();
        let buffer = ReplayBuffer::new(Layout::mono(RATE), Duration::ZERO);
        buffer.limit(LIMIT);
        Self {
            buffer,
            provider: Arc::new(Scripted {
                openings: Mutex::new(openings.iter().copied().collect()),
                stream_limit,
                answers_within,
                opened,
            }),
            streams,
            listener: Listener(told).start(),
            reports,
            attempts: 0,
            pushed: 0,
        }
    }

    fn live(&mut self) -> Addr<SttActor> {
        self.attempts += 1;
        let request = SttRequest {
            party: vivavoce_core::party::Party::Operator,
            language: "en-US".to_owned(),
            model: String::new(),
            punctuation: true,
            keyterms: Vec::new(),
            languages: Vec::new(),
            diarize: false,
            translate: false,
            credential: None,
            format: AudioFormat::mono(Encoding::Linear16, RATE),
        };
        let provider = Arc::clone(&self.provider) as Arc<dyn SpeechToText>;
        let report = self.listener.clone().recipient();
        SttActor::new(
            provider,
            request,
            self.buffer.clone(),
            report,
            self.attempts,
        )
        .start()
    }

    /// So many times half a second of speech, in real time, which the far end reads.
    async fn speak(&mut self, far: &mut Far, times: usize) {
        for _ in 0..times {
            for _ in 0..25 {
                self.push(1, true);
                tokio::time::advance(CHUNK).await;
            }
            far.everything().await;
        }
    }

    async fn stream(&mut self) -> Far {
        self.streams.recv().await.unwrap()
    }

    /// An attempt, its opened stream, and the news of it.
    async fn open(&mut self) -> (Addr<SttActor>, Far) {
        let attempt = self.live();
        let stream = self.stream().await;
        assert!(matches!(self.news().await, SttNews::Opened));
        (attempt, stream)
    }

    /// Pushes numbered chunks of 20 ms.
    fn push(&mut self, count: i16, speech: bool) {
        for _ in 0..count {
            self.buffer.push(&[LOUD + self.pushed; 160], speech);
            self.pushed += 1;
        }
    }

    /// Pushes chunks of silence, where there is no voice activity detection.
    fn rest(&mut self, count: usize) {
        self.buffer.push(&vec![0; count * 160], true);
    }

    async fn news(&mut self) -> SttNews {
        let report = self.reports.recv().await.unwrap();
        assert_eq!(report.attempt, self.attempts);
        report.news
    }

    async fn words(&mut self) -> Vec<(f64, f64)> {
        match self.news().await {
            SttNews::Heard(SttEvent::Final(heard)) => heard
                .words
                .iter()
                .map(|word| (word.start, word.end))
                .collect(),
            other => panic!("{other:?} is no final"),
        }
    }

    /// Why the attempt has stopped; it says nothing afterwards.
    async fn stopped(&mut self) -> Result<(), ErrorKind> {
        let SttNews::Stopped(outcome) = self.news().await else {
            panic!("the attempt goes on");
        };
        tokio::time::advance(Duration::from_mins(1)).await;
        assert!(self.reports.recv().now_or_never().is_none());
        outcome.map_err(|error| error.kind)
    }
}

#[actix::test]
async fn after_a_drop_the_next_life_hears_the_sound_since_the_last_final_and_nothing_before() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    session.push(100, true);
    assert_eq!(far.everything().await, chunks(0..100));
    far.says(SttEvent::Final(heard(&[(0.1, 0.5), (0.6, 1.0)])));
    assert_eq!(session.words().await, [(0.1, 0.5), (0.6, 1.0)]);
    session.push(10, true);
    assert_eq!(far.everything().await, chunks(100..110));
    far.fails();
    assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
    session.push(10, true);

    let (_attempt, mut far) = session.open().await;
    session.push(10, true);
    assert_eq!(far.everything().await, chunks(50..130));
    far.says(SttEvent::Final(heard(&[(0.0, 1.6)])));
    assert_eq!(session.words().await, [(1.0, 2.6)]);
    assert_eq!(session.buffer.lost(), Duration::ZERO);
    assert_eq!(session.buffer.kept(), Duration::ZERO);
    assert_eq!(session.buffer.position(), CHUNK * 130);
}

#[actix::test]
async fn sound_is_with_the_recogniser_when_the_call_that_brings_it_returns() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    session.push(1, true);
    assert_eq!(far.everything().await, chunks(0..1));
    session.push(3, true);
    assert_eq!(far.already(), chunks(1..4));
    // What it does not take at once waits in its order, and so does a request among it.
    session.push(10, true);
    assert_eq!(far.already(), chunks(4..8));
    session.push(2, true);
    session.buffer.finalize();
    session.push(3, true);
    let mut expected = chunks(8..16);
    expected.push(Up::Finalize);
    expected.extend(chunks(16..19));
    assert_eq!(far.everything().await, expected);
    session.push(1, true);
    assert_eq!(far.already(), chunks(19..20));
    assert_eq!(session.buffer.sent(), CHUNK * 20);
    // Who has left is sent nothing, and the next is sent everything.
    drop(far);
    session.push(1, true);
    assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
    let (_attempt, mut far) = session.open().await;
    let mut again = chunks(0..16);
    again.push(Up::Finalize);
    again.extend(chunks(16..21));
    assert_eq!(far.everything().await, again);
}

#[actix::test]
async fn a_stream_that_leaves_speech_unanswered_is_dead_once_until_words_come() {
    let mut session = Session::with_limits(&[], None, Some(Duration::from_secs(3)));
    let (_attempt, mut far) = session.open().await;
    for _ in 0..2 {
        session.speak(&mut far, 4).await;
        // Any answer counts.
        far.says(SttEvent::Partial(Transcript::default()));
        assert!(matches!(session.news().await, SttNews::Heard(_)));
    }
    session.speak(&mut far, 4).await;
    assert!(session.reports.recv().now_or_never().is_none());
    session.speak(&mut far, 2).await;
    assert_eq!(session.stopped().await, Err(ErrorKind::Timeout));

    // It may be no speech.
    let (_attempt, mut far) = session.open().await;
    session.speak(&mut far, 20).await;
    assert!(session.reports.recv().now_or_never().is_none());
    far.says(SttEvent::Partial(heard(&[(0.0, 0.5)])));
    assert!(matches!(session.news().await, SttNews::Heard(_)));
    session.speak(&mut far, 6).await;
    assert_eq!(session.stopped().await, Err(ErrorKind::Timeout));
}

#[actix::test]
async fn words_are_where_they_were_said_though_the_replay_left_silence_out() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    for (count, speech) in [(100, false), (50, true), (100, false), (50, true)] {
        session.push(count, speech);
    }
    assert_eq!(far.everything().await, chunks(0..300));
    far.fails();
    assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));

    let (_attempt, mut far) = session.open().await;
    let replayed = (75..175).chain(225..300);
    assert_eq!(far.everything().await, chunks(replayed));
    // Half a second of silence, a second of speech, half a second after it, and as much before the next.
    far.says(SttEvent::Final(heard(&[
        (0.5, 1.5),
        (1.75, 2.0),
        (2.0, 2.5),
        (2.5, 3.5),
    ])));
    let said = [(2.0, 3.0), (3.25, 3.5), (4.5, 5.0), (5.0, 6.0)];
    assert_eq!(session.words().await, said);
}

#[actix::test]
async fn silence_during_an_outage_pushes_no_speech_out() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    session.push(50, true);
    assert_eq!(far.everything().await, chunks(0..50));
    far.fails();
    assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
    session.push(3_000, false);
    session.push(50, true);
    let (_attempt, mut far) = session.open().await;
    let replayed = (0..75).chain(3_025..3_100);
    assert_eq!(far.everything().await, chunks(replayed));
    assert_eq!(session.buffer.lost(), Duration::ZERO);
}

#[actix::test]
async fn a_slow_opening_keeps_the_last_ten_seconds_exactly_and_counts_the_rest() {
    let mut session = Session::new(&[Opening::Takes(Duration::from_secs(9))]);
    session.buffer.limit(LIMIT_WHILE_CONFIGURED);
    session.push(200, false);
    session.push(100, true);
    session.push(300, false);
    let (_attempt, mut far) = session.open().await;
    assert_eq!(far.everything().await, chunks(100..600));
    assert_eq!(session.buffer.lost(), CHUNK * 100);
}

#[actix::test]
async fn an_opening_that_fails_or_takes_too_long_ends_the_life_and_costs_no_sound() {
    let mut session = Session::new(&[Opening::Takes(OPENING * 2), Opening::Fails]);
    session.push(100, false);
    let _attempt = session.live();
    assert_eq!(session.stopped().await, Err(ErrorKind::Timeout));
    let _attempt = session.live();
    assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
    let (_attempt, mut far) = session.open().await;
    assert_eq!(far.everything().await, chunks(0..100));
}

#[actix::test]
async fn a_sink_that_hangs_ends_the_life_and_all_it_took_is_heard_again() {
    let mut session = Session::new(&[]);
    let (_attempt, _far) = session.open().await;
    let began = Instant::now();
    session.push(100, true);
    let SttNews::Stopped(Err(error)) = session.news().await else {
        panic!("a sink that hangs is a failure");
    };
    assert_eq!(error.kind, ErrorKind::Timeout);
    assert!(has_lasted(began, SENDING));
    let (_attempt, mut far) = session.open().await;
    assert_eq!(far.everything().await, chunks(0..100));
}

#[actix::test]
async fn a_panic_of_the_provider_is_the_end_of_a_life_like_any_other() {
    let mut session = Session::new(&[Opening::Panics, Opening::PanicsLater]);
    session.push(50, true);
    let _attempt = session.live();
    assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
    let (_attempt, mut far) = session.open().await;
    assert_eq!(far.everything().await, chunks(0..50));
    far.says(SttEvent::EndOfSpeech);
    assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
    let (_attempt, mut far) = session.open().await;
    assert_eq!(far.everything().await, chunks(0..50));
}

#[actix::test]
async fn events_that_end_before_the_sound_are_a_failure() {
    let mut session = Session::new(&[]);
    let (_attempt, far) = session.open().await;
    drop(far.events);
    assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
}

#[actix::test]
async fn after_the_end_the_last_finals_are_still_told() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    session.push(10, true);
    session.buffer.push(&[LOUD + 10; 40], true);
    session.buffer.end();
    session.push(10, true);
    let mut all = chunks(0..11);
    all.push(Up::End);
    assert_eq!(far.everything().await, all);
    far.says(SttEvent::Final(heard(&[(0.0, 0.2)])));
    drop(far);
    assert_eq!(session.words().await, [(0.0, 0.2)]);
    assert_eq!(session.stopped().await, Ok(()));
}

#[actix::test]
async fn a_recogniser_that_does_not_come_to_an_end_is_left() {
    let mut session = Session::new(&[]);
    let (_attempt, _far) = session.open().await;
    let began = Instant::now();
    session.buffer.end();
    assert!(matches!(session.news().await, SttNews::Stopped(Ok(()))));
    assert!(has_lasted(began, LAST_FINALS));
}

#[actix::test]
async fn a_life_without_an_address_or_told_to_stop_closes_its_stream_at_once() {
    let mut session = Session::new(&[]);
    for tell in [false, true] {
        let (attempt, mut far) = session.open().await;
        let began = Instant::now();
        if tell {
            attempt.do_send(Stop);
        } else {
            drop(attempt);
        }
        assert!(far.input.recv().await.is_none());
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
    }
}

#[actix::test]
async fn a_finalize_keeps_its_place_in_the_sound_and_in_its_replay() {
    let mut session = Session::new(&[]);
    session.push(10, true);
    session.buffer.finalize();
    session.push(10, true);
    let mut all = chunks(0..10);
    all.push(Up::Finalize);
    all.extend(chunks(10..20));
    let (_attempt, mut far) = session.open().await;
    assert_eq!(far.everything().await, all);
    session.buffer.finalize();
    assert_eq!(far.everything().await, [Up::Finalize]);
    far.fails();
    assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
    all.push(Up::Finalize);
    let (_attempt, mut far) = session.open().await;
    assert_eq!(far.everything().await, all);
}

/// What [`Session::rest`] pushes.
const SILENT: Up = Up::Chunk(-LOUD);

#[actix::test]
async fn a_final_that_is_requested_within_a_word_waits_for_its_end_and_so_does_its_replay() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    session.push(3, true);
    session.buffer.finalize_at_pause(false);
    // A closure within the word is no pause.
    session.rest(2);
    session.push(4, true);
    session.rest(5);
    session.push(3, true);
    let all: Vec<Up> = chunks(0..3)
        .into_iter()
        .chain([SILENT, SILENT])
        .chain(chunks(3..7))
        .chain([SILENT, SILENT, SILENT, Up::Finalize, SILENT, SILENT])
        .chain(chunks(7..10))
        .collect();
    assert_eq!(far.everything().await, all);
    far.fails();
    assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
    let (_attempt, mut far) = session.open().await;
    assert_eq!(far.everything().await, all);
}

#[actix::test]
async fn a_final_that_is_requested_in_a_pause_waits_for_nothing() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    session.push(3, true);
    session.rest(3);
    // The beginning of a word, less than a chunk.
    session.buffer.push(&[LOUD + 3; 80], true);
    session.buffer.finalize_at_pause(false);
    session.buffer.push(&[LOUD + 3; 80], true);
    let mut all = chunks(0..3);
    all.extend([SILENT, SILENT, SILENT, Up::Finalize, Up::Chunk(3)]);
    assert_eq!(far.everything().await, all);
    // Voice activity detection knows pauses that are not quiet.
    session.pushed = 4;
    session.push(1, false);
    session.buffer.finalize_at_pause(false);
    assert_eq!(far.everything().await, [Up::Chunk(4), Up::Finalize]);
}

#[actix::test]
async fn a_final_that_is_requested_in_a_noisy_pause_does_not_cut_the_next_word() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    session.push(3, true);
    session.buffer.finalize_at_pause(true);
    session.push(40, true);
    let mut all = chunks(0..3);
    all.push(Up::Finalize);
    all.extend(chunks(3..43));
    assert_eq!(far.everything().await, all);
}

#[actix::test]
async fn speech_without_a_pause_and_audio_that_stops_coming_delay_a_final_by_no_more_than_a_word() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    session.push(2, true);
    session.buffer.finalize_at_pause(false);
    session.push(40, true);
    let mut all = chunks(0..32);
    all.push(Up::Finalize);
    all.extend(chunks(32..42));
    assert_eq!(far.everything().await, all);
    session.push(1, true);
    session.buffer.finalize_at_pause(false);
    assert_eq!(far.everything().await, chunks(42..43));
    tokio::time::advance(replay_buffer::NO_MORE_AUDIO).await;
    assert_eq!(far.everything().await, [Up::Finalize]);
    session.push(1, true);
    tokio::time::advance(replay_buffer::NO_MORE_AUDIO).await;
    session.buffer.finalize_at_pause(false);
    assert_eq!(far.everything().await, [Up::Chunk(43), Up::Finalize]);
}

#[actix::test]
async fn a_mebibyte_at_once_is_heard_up_to_the_bound_and_the_rest_is_counted() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    let samples = vec![1; (1 << 20) / 2];
    session.buffer.push(&samples, true);
    assert!(session.buffer.kept() <= LIMIT);
    session.buffer.finalize();
    let heard = far.everything().await.len() as u32 - 1;
    // As many as are kept, and one that had left before the last was cut.
    assert_eq!(heard, 1_501);
    let cut_short = RATE.duration_of(samples.len() % 160);
    let all = RATE.duration_of(samples.len());
    let difference = (session.buffer.lost() + CHUNK * (heard - 1) + cut_short).abs_diff(all);
    assert!(difference < CHUNK, "{difference:?}");
}

#[actix::test]
async fn before_a_providers_limit_the_stream_is_changed_at_a_pause_with_its_last_final_first() {
    let mut session = Session::with_stream_limit(&[], Some(Duration::from_secs(100)));
    let (_attempt, mut far) = session.open().await;
    tokio::time::advance(Duration::from_secs(85)).await;
    session.push(10, true);
    assert_eq!(far.everything().await, chunks(0..10));
    session.push(1, false);
    let mut rest = chunks([10]);
    rest.push(Up::End);
    assert_eq!(far.everything().await, rest);
    session.push(10, true);
    let mut next = session.stream().await;
    assert_eq!(next.everything().await, []);
    far.says(SttEvent::Final(heard(&[(0.0, 0.2)])));
    drop(far);
    assert_eq!(session.words().await, [(0.0, 0.2)]);
    assert_eq!(next.everything().await, chunks(11..21));
    next.says(SttEvent::Final(heard(&[(0.0, 0.2)])));
    let words = session.words().await;
    assert!((words[0].0 - 0.22).abs() < 1e-9, "{words:?}");
}

#[actix::test]
async fn without_a_pause_the_stream_is_changed_just_before_the_limit() {
    let mut session = Session::with_stream_limit(&[], Some(Duration::from_secs(100)));
    let began = Instant::now();
    let (_attempt, far) = session.open().await;
    session.push(1, true);
    let _next = session.stream().await;
    assert!(has_lasted(began, Duration::from_secs(98)));
    drop(far);
}

#[actix::test]
async fn an_idle_session_holds_less_than_two_seconds_even_after_a_cough() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    for speech in [0, 20] {
        session.push(speech, true);
        for _ in 0..60 {
            session.push(50, false);
            far.everything().await;
        }
        assert!(session.buffer.kept() < Duration::from_secs(2));
    }
    assert_eq!(session.buffer.lost(), Duration::ZERO);
}

#[actix::test]
async fn speech_that_only_the_recogniser_hears_is_kept_for_the_replay() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    session.push(50, false);
    far.everything().await;
    far.says(SttEvent::Partial(heard(&[])));
    assert!(matches!(session.news().await, SttNews::Heard(_)));
    session.push(100, false);
    far.everything().await;
    far.fails();
    assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
    let (_attempt, mut far) = session.open().await;
    let replayed = (0..75).chain(125..150);
    assert_eq!(far.everything().await, chunks(replayed));
}

#[actix::test]
async fn a_final_without_word_times_covers_the_sound_up_to_its_pause() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    for (count, speech) in [(20, true), (30, false), (10, true)] {
        session.push(count, speech);
    }
    far.everything().await;
    far.says(SttEvent::Final(heard(&[])));
    assert!(matches!(session.news().await, SttNews::Heard(_)));
    far.fails();
    assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
    let (_attempt, mut far) = session.open().await;
    assert_eq!(far.everything().await, chunks(25..60));
}

/// What is heard again after a drop when this final came last.
async fn heard_again(mut session: Session, mut far: Far, last: Transcript) -> Vec<Up> {
    far.everything().await;
    far.says(SttEvent::Final(last));
    assert!(matches!(session.news().await, SttNews::Heard(_)));
    far.fails();
    assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
    let (_attempt, mut far) = session.open().await;
    far.everything().await
}

#[actix::test]
async fn a_final_covers_no_sound_behind_its_end() {
    let mut session = Session::new(&[]);
    let (_attempt, far) = session.open().await;
    session.push(50, true);
    let last = Transcript {
        end: Some(0.5),
        ..heard(&[])
    };
    assert_eq!(heard_again(session, far, last).await, chunks(25..50));
}

#[actix::test]
async fn an_empty_final_covers_no_sound_behind_its_end() {
    let mut session = Session::new(&[]);
    let (_attempt, far) = session.open().await;
    session.push(50, true);
    let last = Transcript {
        end: Some(0.5),
        ..Transcript::default()
    };
    assert_eq!(heard_again(session, far, last).await, chunks(25..50));
}

#[actix::test]
async fn a_final_that_names_no_end_covers_no_second_utterance() {
    let mut session = Session::new(&[]);
    let (_attempt, far) = session.open().await;
    for speech in [true, false, true, false] {
        session.push(20, speech);
    }
    let again = heard_again(session, far, heard(&[])).await;
    assert_eq!(again, chunks(20..80));
}

#[actix::test]
async fn without_voice_activity_detection_an_utterance_ends_where_it_is_quiet() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    session.push(20, true);
    session.buffer.push(&[0; 160 * 20], true);
    session.push(20, true);
    far.everything().await;
    far.says(SttEvent::Final(heard(&[])));
    assert!(matches!(session.news().await, SttNews::Heard(_)));
    assert_eq!(session.buffer.kept(), CHUNK * 40);
}

#[actix::test]
async fn a_final_that_names_no_end_covers_what_was_sent_long_ago() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    session.push(30, true);
    far.everything().await;
    tokio::time::advance(TRANSCRIBED_WITHIN).await;
    session.push(20, true);
    let again = heard_again(session, far, heard(&[])).await;
    assert_eq!(again, chunks(30..50));
}

#[actix::test]
async fn a_final_of_which_nothing_is_known_covers_nothing() {
    let mut session = Session::new(&[]);
    let (_attempt, far) = session.open().await;
    session.push(50, true);
    let again = heard_again(session, far, heard(&[])).await;
    assert_eq!(again, chunks(0..50));
}

#[actix::test]
async fn a_feed_that_begins_late_in_the_session_counts_from_there() {
    let mut session = Session::new(&[]);
    let start = Duration::from_secs(10);
    session.buffer = ReplayBuffer::new(Layout::mono(RATE), start);
    let (_attempt, mut far) = session.open().await;
    session.push(100, true);
    far.everything().await;
    far.says(SttEvent::Final(heard(&[(0.5, 1.0)])));
    assert_eq!(session.words().await, [(10.5, 11.0)]);
    assert_eq!(session.buffer.position(), start + CHUNK * 100);
    far.fails();
    assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
    let (_attempt, mut far) = session.open().await;
    assert_eq!(far.everything().await, chunks(50..100));
}

#[actix::test]
async fn the_end_of_speech_covers_what_was_said_unless_a_final_of_it_is_owed() {
    let mut session = Session::new(&[]);
    for (owed, kept) in [(true, 20), (false, 0)] {
        let (_attempt, mut far) = session.open().await;
        if owed {
            session.push(20, true);
            session.push(10, false);
            far.everything().await;
            far.says(SttEvent::Partial(heard(&[])));
            assert!(matches!(session.news().await, SttNews::Heard(_)));
        }
        far.everything().await;
        far.says(SttEvent::EndOfSpeech);
        assert!(matches!(session.news().await, SttNews::Heard(_)));
        far.fails();
        assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
        assert_eq!(session.buffer.kept(), CHUNK * (kept + 10));
    }
}

#[actix::test]
async fn the_end_of_speech_covers_nothing_behind_its_final() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    for speech in [true, false, true, false] {
        session.push(20, speech);
    }
    far.everything().await;
    far.says(SttEvent::Final(heard(&[(0.0, 0.4)])));
    assert_eq!(session.words().await, [(0.0, 0.4)]);
    far.says(SttEvent::EndOfSpeech);
    assert!(matches!(session.news().await, SttNews::Heard(_)));
    far.fails();
    assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
    let (_attempt, mut far) = session.open().await;
    assert_eq!(far.everything().await, chunks(20..80));
}

#[actix::test]
async fn an_utterance_that_the_recogniser_gave_up_is_not_heard_again() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    session.push(20, true);
    far.everything().await;
    far.says(SttEvent::UtteranceLost(failure()));
    assert!(matches!(session.news().await, SttNews::Heard(_)));
    session.push(10, true);
    far.everything().await;
    far.fails();
    assert_eq!(session.stopped().await, Err(ErrorKind::Unavailable));
    let (_attempt, mut far) = session.open().await;
    assert_eq!(far.everything().await, chunks(20..30));
}

#[actix::test]
async fn times_that_are_no_times_cost_nothing() {
    let mut session = Session::new(&[]);
    let (_attempt, mut far) = session.open().await;
    session.push(20, true);
    far.everything().await;
    for end in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
        far.says(SttEvent::Final(heard(&[(end, end)])));
        assert_eq!(session.words().await.len(), 1);
    }
    session.push(20, true);
    assert_eq!(far.everything().await, chunks(20..40));
}
