//! The Scribe realtime protocol. Scribe commits a segment when it detects the end of speech or is asked to. Each commit
//! arrives twice, without and with word timestamps, and is reported once.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use tokio::time::Instant;

use super::{SLUG, errors};
use crate::transport::stt_driver::{Flow, Protocol, SttIo};
use crate::transport::websocket::Received;
use crate::transport::{Outgoing, shortened};
use vivavoce_audio::format::SampleRate;
use vivavoce_seams::{ErrorKind, ProviderError, SttEvent, Transcript, Word};

/// The sound of a message, as the vendor advises.
const CHUNK: Duration = Duration::from_millis(100);
/// The vendor bears to be sent nothing for longer than this.
const KEEP_ALIVE: Duration = Duration::from_secs(8);
/// A commit without the times of its words is told without them after so long.
const TIMES_LATE: Duration = Duration::from_millis(500);
/// How long the last commit may take.
const LAST_COMMIT: Duration = Duration::from_secs(5);
/// A commit that comes when the last one is waited for may be one that the vendor made by itself just before: another
/// may follow within this time.
const LAST_WORDS: Duration = TIMES_LATE;
/// Speech without a pause is committed after so much sound: the vendor itself would wait for 90 s, and what is not committed
/// has to be heard again when the stream is lost, of which the session keeps 30 s.
const LONGEST_SEGMENT: Duration = Duration::from_secs(15);
/// The vendor refuses to commit less sound than this, so the sound is ended by as much silence.
const LEAST_COMMIT: Duration = Duration::from_millis(300);

/// One stream.
pub(super) struct Scribe {
    rate: SampleRate,
    open: bool,
    /// Whether sound was sent that no commit was asked for.
    unasked: bool,
    /// Bytes of sound since the last commit.
    uncommitted: usize,
    /// Commits that were asked for and have not come.
    asked: usize,
    /// Whether something was heard that is not committed.
    hearing: bool,
    /// A commit that waits for the times of its words.
    held: Option<Held>,
    /// A text that was told without times because they were late.
    told_early: Option<String>,
    /// The last text that was told with times, and when it was said.
    told: Option<(String, f64, f64)>,
    /// Once the sound has ended: when it is time to go.
    ending: Option<Instant>,
}

struct Held {
    text: String,
    /// Told without times then.
    due: Instant,
    /// Whether it is the vendor's own decision that the speaker has finished.
    end_of_speech: bool,
}

#[derive(Deserialize)]
struct Message {
    #[serde(rename = "message_type")]
    name: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    words: Option<Vec<MessageWord>>,
    #[serde(default)]
    language_code: Option<String>,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Deserialize)]
struct MessageWord {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    start: Option<f64>,
    #[serde(default)]
    end: Option<f64>,
    #[serde(default)]
    r#type: Option<String>,
    #[serde(default)]
    logprob: Option<f64>,
    #[serde(default)]
    speaker_id: Option<String>,
}

impl Scribe {
    /// A stream of linear16 at this rate.
    pub(super) fn new(rate: SampleRate) -> Self {
        Self {
            rate,
            open: false,
            unasked: false,
            uncommitted: 0,
            asked: 0,
            hearing: false,
            held: None,
            told_early: None,
            told: None,
            ending: None,
        }
    }

    fn bytes_of(&self, time: Duration) -> usize {
        2 * self.rate.frames_in(time)
    }

    fn send(&self, audio: &[u8], commit: bool, out: &mut Outgoing) {
        let mut text = String::with_capacity(128 + audio.len().div_ceil(3) * 4);
        text.push_str(r#"{"message_type":"input_audio_chunk","audio_base_64":""#);
        STANDARD.encode_string(audio, &mut text);
        text.push_str(if commit {
            r#"","commit":true,"sample_rate":"#
        } else {
            r#"","commit":false,"sample_rate":"#
        });
        text.push_str(&self.rate.hz().to_string());
        text.push('}');
        out.text(text);
    }

    fn ask_for_commit(&mut self, out: &mut Outgoing) {
        self.send(&[], true, out);
        self.asked += 1;
        self.unasked = false;
    }

    /// A segment has been committed. True where nobody had asked for it.
    fn committed(&mut self, now: Instant) -> bool {
        self.hearing = false;
        self.uncommitted = 0;
        let by_itself = self.asked == 0;
        self.answered(now);
        by_itself
    }

    fn answered(&mut self, now: Instant) {
        self.asked = self.asked.saturating_sub(1);
        if let Some(until) = self.ending.as_mut().filter(|_| self.asked == 0) {
            *until = now + LAST_WORDS;
        }
    }

    fn untimed(&mut self, text: String, io: &mut SttIo<'_>) {
        if self.held.as_ref().is_some_and(|held| held.text == text) {
            return;
        }
        let end_of_speech = self.committed(io.now);
        self.tell_held(io);
        if !text.is_empty() {
            self.held = Some(Held {
                text,
                due: io.now + TIMES_LATE,
                end_of_speech,
            });
        }
    }

    fn timed(&mut self, transcript: Transcript, io: &mut SttIo<'_>) {
        if transcript.text.is_empty() {
            return;
        }
        let said = transcript
            .words
            .first()
            .zip(transcript.words.last())
            .map(|(first, last)| (transcript.text.clone(), first.start, last.end));
        let mine = self.held.take_if(|held| held.text == transcript.text);
        if said.is_some() && said == self.told {
            // The vendor repeats a commit now and then.
            return;
        }
        if mine.is_none()
            && self
                .told_early
                .take_if(|text| *text == transcript.text)
                .is_some()
        {
            return;
        }
        let end_of_speech = match mine {
            Some(held) => held.end_of_speech,
            None => {
                self.tell_held(io);
                self.committed(io.now)
            }
        };
        self.told_early = None;
        self.told = said;
        tell(transcript, end_of_speech, io);
    }

    /// Tells a commit whose times have not come.
    fn tell_held(&mut self, io: &mut SttIo<'_>) {
        if let Some(held) = self.held.take() {
            self.told_early = Some(held.text.clone());
            let transcript = Transcript {
                text: held.text,
                ..Transcript::default()
            };
            tell(transcript, held.end_of_speech, io);
        }
    }

    fn closed(
        &mut self,
        frame: Option<&(u16, String)>,
        io: &mut SttIo<'_>,
    ) -> Result<Flow, ProviderError> {
        self.tell_held(io);
        if self.ending.is_some() && self.asked == 0 {
            return Ok(Flow::Finished);
        }
        Err(errors::closed(frame))
    }
}

fn tell(transcript: Transcript, end_of_speech: bool, io: &mut SttIo<'_>) {
    io.events.push(SttEvent::Final(transcript));
    if end_of_speech {
        io.events.push(SttEvent::EndOfSpeech);
    }
}

impl Message {
    fn text(&self) -> String {
        self.text.as_deref().unwrap_or_default().trim().to_owned()
    }

    fn transcript(self) -> Transcript {
        let text = self.text();
        let words: Vec<Word> = self.words.into_iter().flatten().filter_map(word).collect();
        let known: Vec<f32> = words.iter().filter_map(|word| word.confidence).collect();
        Transcript {
            text,
            confidence: (!known.is_empty()).then(|| known.iter().sum::<f32>() / known.len() as f32),
            words,
            language: self.language_code.filter(|code| !code.is_empty()),
            end: None,
        }
    }
}

/// A word with its place; spaces and sounds that are no words have none.
fn word(heard: MessageWord) -> Option<Word> {
    if heard.r#type.is_some_and(|kind| kind != "word") {
        return None;
    }
    Some(Word {
        word: heard.text.filter(|text| !text.trim().is_empty())?,
        start: heard.start?,
        end: heard.end?,
        confidence: heard
            .logprob
            .map(|logprob| logprob.exp().clamp(0.0, 1.0) as f32),
        speaker: heard.speaker_id,
    })
}

impl Protocol for Scribe {
    fn is_open(&self) -> bool {
        self.open
    }

    fn chunk_bytes(&self) -> usize {
        self.bytes_of(CHUNK)
    }

    fn audio(&mut self, audio: Bytes, io: &mut SttIo<'_>) {
        self.send(&audio, false, io.out);
        self.unasked = true;
        self.uncommitted += audio.len();
        if self.hearing && self.asked == 0 && self.uncommitted >= self.bytes_of(LONGEST_SEGMENT) {
            self.ask_for_commit(io.out);
        }
    }

    fn finalize(&mut self, io: &mut SttIo<'_>) {
        if self.unasked {
            self.ask_for_commit(io.out);
        }
    }

    fn end(&mut self, io: &mut SttIo<'_>) {
        if self.unasked {
            self.send(&vec![0; self.bytes_of(LEAST_COMMIT)], false, io.out);
            self.ask_for_commit(io.out);
        }
        let nothing_is_due = self.asked == 0 && self.held.is_none();
        self.ending = Some(if nothing_is_due {
            io.now
        } else {
            io.now + LAST_COMMIT
        });
    }

    fn keep_alive(&self) -> Option<Duration> {
        Some(KEEP_ALIVE)
    }

    fn idle(&mut self, io: &mut SttIo<'_>) {
        self.send(&[], false, io.out);
    }

    fn deadline(&self) -> Option<Instant> {
        let held = self.held.as_ref().map(|held| held.due);
        self.ending.into_iter().chain(held).min()
    }

    fn tick(&mut self, io: &mut SttIo<'_>) -> Result<Flow, ProviderError> {
        if self.held.as_ref().is_some_and(|held| io.now >= held.due) {
            self.tell_held(io);
        }
        if self.ending.is_none_or(|until| io.now < until) {
            return Ok(Flow::Continue);
        }
        self.tell_held(io);
        if self.hearing && self.asked > 0 {
            let problem = format!(
                "sent no committed transcript within {} s",
                LAST_COMMIT.as_secs()
            );
            return Err(ProviderError::new(SLUG, ErrorKind::Timeout, problem));
        }
        Ok(Flow::Finished)
    }

    fn receive(&mut self, message: Received, io: &mut SttIo<'_>) -> Result<Flow, ProviderError> {
        let text = match message {
            Received::Text(text) => text,
            Received::Binary(_) => return Ok(Flow::Continue),
            Received::Closed(frame) => return self.closed(frame.as_ref(), io),
        };
        let message: Message = serde_json::from_str(&text).map_err(|error| {
            let problem = format!("sent an invalid message: {error}");
            ProviderError::new(SLUG, ErrorKind::Protocol, shortened(&problem))
        })?;
        match message.name.as_str() {
            "session_started" => self.open = true,
            "partial_transcript" => {
                let text = message.text();
                self.hearing = !text.is_empty();
                // What belongs to the next segment does not come before this one has been told.
                if self.hearing && self.held.is_none() {
                    io.events.push(SttEvent::Partial(Transcript {
                        text,
                        ..Transcript::default()
                    }));
                }
            }
            "committed_transcript" => self.untimed(message.text(), io),
            "committed_transcript_with_timestamps" => self.timed(message.transcript(), io),
            // There was too little to commit; it goes with the next.
            "commit_throttled" => {
                self.unasked = true;
                self.answered(io.now);
            }
            name => {
                if let Some(words) = message.error.as_deref().filter(|_| name != "warning") {
                    self.tell_held(io);
                    return Err(errors::told(name, words));
                }
            }
        }
        Ok(Flow::Continue)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::transport::testing::SttScene;

    type Stream = SttScene<Scribe>;

    impl SttScene<Scribe> {
        /// A stream that has begun.
        fn begun() -> Self {
            let mut stream = Self::new(Scribe::new(SampleRate::HZ_16000));
            assert!(!stream.protocol.is_open());
            stream.is_told(
                &json!({"message_type": "session_started", "session_id": "s", "config": {}}),
            );
            assert!(stream.protocol.is_open());
            stream
        }

        fn is_told(&mut self, message: &Value) {
            assert_eq!(self.flow(&message.to_string()), Ok(Flow::Continue));
        }

        fn partial(&mut self, text: &str) {
            self.is_told(&json!({"message_type": "partial_transcript", "text": text}));
        }

        fn untimed(&mut self, text: &str) {
            self.is_told(&json!({"message_type": "committed_transcript", "text": text}));
        }

        fn timed(&mut self, text: &str, start: f64) {
            self.is_told(&json!({
                "message_type": "committed_transcript_with_timestamps", "text": text, "language_code": "en",
                "words": [
                    {"text": text, "start": start, "end": start + 0.5, "type": "word", "logprob": -0.5},
                    {"text": " ", "start": start + 0.5, "end": start + 0.5, "type": "spacing"},
                    {"text": "(laughs)", "start": start, "end": start, "type": "audio_event"},
                ],
            }));
        }

        fn audio(&mut self) {
            self.step(|scribe, io| scribe.audio(Bytes::from_static(&[1, 2, 3, 4]), io));
        }

        fn after(&mut self, time: Duration) -> Result<Flow, ProviderError> {
            self.now += time;
            if self.protocol.deadline().is_none_or(|due| due > self.now) {
                return Ok(Flow::Continue);
            }
            self.step(Scribe::tick)
        }

        /// What was heard, in short.
        fn heard(&mut self) -> Vec<String> {
            let short = |event| match event {
                SttEvent::Partial(heard) => format!("~{}", heard.text),
                SttEvent::Final(heard) => match heard.words.first() {
                    Some(word) => format!("{}@{}", heard.text, word.start),
                    None => heard.text,
                },
                SttEvent::EndOfSpeech => "end".to_owned(),
                SttEvent::UtteranceLost(error) => error.to_string(),
            };
            self.events.drain(..).map(short).collect()
        }
    }

    #[test]
    fn sound_is_sent_as_the_vendors_own_client_sends_it() {
        let mut stream = Stream::begun();
        assert_eq!(stream.protocol.chunk_bytes(), 3200);
        stream.audio();
        stream.step(Scribe::finalize);
        stream.step(Scribe::finalize);
        stream.step(Scribe::idle);
        let sent = stream.sent();
        let chunk = |audio: &str, commit: bool| {
            json!({
                "message_type": "input_audio_chunk", "audio_base_64": audio, "commit": commit, "sample_rate": 16000,
            })
        };
        assert_eq!(
            sent,
            [chunk("AQIDBA==", false), chunk("", true), chunk("", false)]
        );
    }

    #[test]
    fn speech_without_a_pause_is_committed_before_too_much_hangs_on_the_stream() {
        let mut stream = Stream::begun();
        let second = Bytes::from(vec![0; 32_000]);
        let commits = |seconds: usize, stream: &mut Stream| {
            for _ in 0..seconds {
                stream.step(|scribe, io| scribe.audio(second.clone(), io));
            }
            let sent = stream.out.texts();
            let asked = |text: &&String| text.contains(r#""commit":true"#);
            sent.iter().filter(asked).count()
        };
        // Silence may last.
        assert_eq!(commits(20, &mut stream), 0);
        stream.partial("and");
        assert_eq!(commits(30, &mut stream), 1);
        stream.untimed("and so on");
        stream.partial("and");
        assert_eq!(commits(14, &mut stream), 0);
        assert_eq!(commits(1, &mut stream), 1);
    }

    #[test]
    fn a_segment_is_told_once_with_its_words() {
        let mut stream = Stream::begun();
        stream.audio();
        stream.partial("");
        stream.partial("hello");
        stream.untimed("Hello");
        stream.partial("wor");
        stream.timed("Hello", 0.25);
        assert_eq!(stream.heard(), ["~hello", "Hello@0.25", "end"]);
        stream.partial("world");
        assert_eq!(stream.heard(), ["~world"]);
    }

    #[test]
    fn words_have_their_confidence_and_no_other_is_made_up() {
        let mut stream = Stream::begun();
        stream.untimed("Hello");
        stream.timed("Hello", 0.25);
        let [SttEvent::Final(heard), SttEvent::EndOfSpeech] = &stream.events[..] else {
            panic!("{:?}", stream.events);
        };
        let confidence = Some((-0.5f64).exp() as f32);
        assert_eq!(heard.confidence, confidence);
        assert_eq!(heard.language.as_deref(), Some("en"));
        let word = Word {
            word: "Hello".to_owned(),
            start: 0.25,
            end: 0.75,
            confidence,
            speaker: None,
        };
        assert_eq!(heard.words, [word]);
        let mut untimed = Stream::begun();
        untimed.untimed("Hello");
        untimed.after(TIMES_LATE).unwrap();
        let [SttEvent::Final(heard), SttEvent::EndOfSpeech] = &untimed.events[..] else {
            panic!("{:?}", untimed.events);
        };
        assert_eq!(heard.confidence, None);
    }

    #[test]
    fn a_commit_that_was_asked_for_is_no_end_of_speech() {
        let mut stream = Stream::begun();
        stream.audio();
        stream.step(Scribe::finalize);
        stream.untimed("One");
        stream.timed("One", 0.0);
        stream.untimed("Two");
        stream.timed("Two", 1.0);
        assert_eq!(stream.heard(), ["One@0", "Two@1", "end"]);
    }

    #[test]
    fn times_that_are_late_or_early_make_no_second_final() {
        let mut stream = Stream::begun();
        stream.untimed("One");
        stream.after(TIMES_LATE).unwrap();
        assert_eq!(stream.heard(), ["One", "end"]);
        stream.timed("One", 0.0);
        assert!(stream.heard().is_empty());
        // Times that never come do not hold the next segment up.
        stream.untimed("Two");
        stream.untimed("Three");
        assert_eq!(stream.heard(), ["Two", "end"]);
        stream.timed("Three", 2.0);
        assert_eq!(stream.heard(), ["Three@2", "end"]);
    }

    #[test]
    fn a_commit_that_the_vendor_repeats_is_told_once() {
        let mut stream = Stream::begun();
        for _ in 0..2 {
            stream.untimed("Yes");
            stream.timed("Yes", 1.0);
        }
        stream.untimed("No");
        stream.untimed("No");
        stream.timed("No", 2.0);
        assert_eq!(stream.heard(), ["Yes@1", "end", "No@2", "end"]);
        // The same word said again is another.
        stream.untimed("No");
        stream.timed("No", 4.0);
        assert_eq!(stream.heard(), ["No@4", "end"]);
    }

    #[test]
    fn the_last_words_are_waited_for() {
        let mut stream = Stream::begun();
        stream.audio();
        stream.step(Scribe::end);
        let sent = stream.out.texts();
        assert_eq!(sent.len(), 3);
        assert!(sent[1].len() > 9600 * 4 / 3 && sent[1].contains(r#""commit":false"#));
        assert!(sent[2].contains(r#""commit":true"#));
        // One that the vendor had made before, then the one that was asked for.
        stream.untimed("One");
        stream.timed("One", 0.0);
        assert_eq!(stream.after(LAST_WORDS / 2).unwrap(), Flow::Continue);
        stream.untimed("Two");
        assert_eq!(stream.after(LAST_WORDS / 2).unwrap(), Flow::Continue);
        assert_eq!(stream.after(LAST_WORDS / 2).unwrap(), Flow::Finished);
        assert_eq!(stream.heard(), ["One@0", "Two", "end"]);
    }

    #[test]
    fn a_stream_that_owes_nothing_ends_at_once() {
        let mut silent = Stream::begun();
        silent.step(Scribe::end);
        assert!(silent.out.texts().is_empty());
        assert_eq!(silent.after(Duration::ZERO).unwrap(), Flow::Finished);
        let mut throttled = Stream::begun();
        throttled.audio();
        throttled.step(Scribe::end);
        throttled.is_told(&json!({"message_type": "commit_throttled", "error": "too little"}));
        assert_eq!(throttled.after(LAST_WORDS).unwrap(), Flow::Finished);
    }

    #[test]
    fn sound_that_was_too_little_to_commit_is_committed_at_the_end() {
        let mut stream = Stream::begun();
        stream.audio();
        stream.step(Scribe::finalize);
        stream.is_told(&json!({"message_type": "commit_throttled", "error": "too little"}));
        stream.out.texts();
        stream.step(Scribe::end);
        assert!(stream.out.texts()[1].contains(r#""commit":true"#));
    }

    #[test]
    fn words_that_are_never_committed_are_an_error() {
        let mut stream = Stream::begun();
        stream.audio();
        stream.partial("hello");
        stream.step(Scribe::end);
        let error = stream.after(LAST_COMMIT).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Timeout);
    }

    #[test]
    fn what_is_committed_is_told_before_an_error_or_a_close() {
        let mut stream = Stream::begun();
        stream.audio();
        stream.untimed("One");
        let told = json!({"message_type": "quota_exceeded", "error": "none is left"}).to_string();
        let error = stream.receive(Received::Text(told)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Quota);
        assert_eq!(error.message, "quota_exceeded: none is left");
        assert_eq!(stream.heard(), ["One", "end"]);

        let mut stream = Stream::begun();
        stream.audio();
        stream.step(Scribe::end);
        stream.untimed("One");
        let closed = stream.receive(Received::Closed(Some((1000, String::new()))));
        assert_eq!(closed.unwrap(), Flow::Finished);
        assert_eq!(stream.heard(), ["One"]);

        let mut stream = Stream::begun();
        stream.audio();
        let closed = stream.receive(Received::Closed(Some((1011, String::new()))));
        assert_eq!(closed.unwrap_err().kind, ErrorKind::Unavailable);
    }

    #[test]
    fn messages_that_nobody_knows_are_borne_and_garbage_is_not() {
        let mut stream = Stream::begun();
        stream.is_told(&json!({"message_type": "speakers_merged", "x": 1}));
        stream.is_told(&json!({"message_type": "warning", "error": "soon"}));
        stream.is_told(&json!({"message_type": "committed_transcript_with_timestamps", "text": "", "words": null}));
        assert!(stream.heard().is_empty());
        for garbage in ["", "[]", "{\"message_type\":7}"] {
            let error = stream.receive(Received::Text(garbage.to_owned()));
            assert_eq!(error.unwrap_err().kind, ErrorKind::Protocol);
        }
    }
}
