//! Hears the same two words in every second of sound, whatever sound it is. Nothing runs beside the caller: the events
//! are made when they are asked for, from what has arrived by then. The model `onsets` is [`onsets`]' matter.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;

use super::SLUG;
use super::onsets::{self, Onsets};
use vivavoce_audio::format::{Encoding, Layout};
use vivavoce_seams::{
    Accepts, AudioSink, ErrorKind, ProviderError, SpeechToText, SttEvent, SttInput, SttRequest,
    SttStream, Transcript, Word,
};

/// Sound after which it reports; every second report is final.
const REPORT: Duration = Duration::from_millis(500);
/// Reports of a segment.
const REPORTS: usize = 2;
/// What is heard, a word per report.
const WORDS: [&str; REPORTS] = ["one", "two"];
/// Chunks that may wait for it.
const CHUNKS_HELD: usize = 64;

/// The recogniser `null`.
pub(super) struct NullStt;

#[async_trait]
impl SpeechToText for NullStt {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn accepts(&self) -> Accepts {
        Accepts {
            encodings: &[Encoding::Linear16],
            rates: &[],
            stereo: true,
            stream_limit: None,
        }
    }

    async fn open(&self, request: SttRequest) -> Result<SttStream, ProviderError> {
        if request.format.encoding != Encoding::Linear16 {
            let problem = "hears linear16 only";
            return Err(ProviderError::new(SLUG, ErrorKind::InvalidRequest, problem));
        }
        let (sink, input) = AudioSink::channel(CHUNKS_HELD);
        let layout = request.format.layout;
        let events = if request.model == onsets::MODEL {
            let hearing = (input, Onsets::new(layout));
            stream::unfold(hearing, onsets::next).map(Ok).boxed()
        } else {
            let hearing = (input, Hearing::new(layout));
            stream::unfold(hearing, next).map(Ok).boxed()
        };
        Ok(SttStream { sink, events })
    }
}

/// The next event, once enough has arrived for it; `None` when the input has ended and all of it was reported.
async fn next(
    (mut input, mut hearing): (mpsc::Receiver<SttInput>, Hearing),
) -> Option<(SttEvent, (mpsc::Receiver<SttInput>, Hearing))> {
    loop {
        if let Some(event) = hearing.report() {
            return Some((event, (input, hearing)));
        }
        match input.recv().await {
            Some(SttInput::Audio(audio)) => {
                hearing.bytes += audio.len() as u64;
                hearing.unsettled = true;
            }
            Some(SttInput::Finalize) => return Some((hearing.settle(), (input, hearing))),
            None if hearing.unsettled => return Some((hearing.settle(), (input, hearing))),
            None => return None,
        }
    }
}

/// How far the sound has come, and how much of it was reported.
struct Hearing {
    layout: Layout,
    bytes: u64,
    /// Where the segment begins.
    segment: Duration,
    /// Reports of the segment so far.
    reports: usize,
    /// Whether sound has come since the last final.
    unsettled: bool,
}

impl Hearing {
    fn new(layout: Layout) -> Self {
        Self {
            layout,
            bytes: 0,
            segment: Duration::ZERO,
            reports: 0,
            unsettled: false,
        }
    }

    fn position(&self) -> Duration {
        let bytes_per_frame = 2 * self.layout.channels.count() as u64;
        let frames = self.bytes / bytes_per_frame;
        self.layout.rate.duration_of(frames as usize)
    }

    /// What is due by now.
    fn report(&mut self) -> Option<SttEvent> {
        let due = REPORT * (self.reports as u32 + 1);
        if self.position() < self.segment + due {
            return None;
        }
        self.reports += 1;
        if self.reports < REPORTS {
            return Some(SttEvent::Partial(self.transcript()));
        }
        let heard = self.transcript();
        self.begin_segment(self.segment + due);
        self.unsettled = self.position() > self.segment;
        Some(SttEvent::Final(heard))
    }

    /// A final of whatever has come since the last one; without words where that was less than a word.
    fn settle(&mut self) -> SttEvent {
        let end = self.position();
        let heard = Transcript {
            end: Some(end.as_secs_f64()),
            ..self.transcript()
        };
        self.begin_segment(end);
        self.unsettled = false;
        SttEvent::Final(heard)
    }

    fn begin_segment(&mut self, at: Duration) {
        self.segment = at;
        self.reports = 0;
    }

    fn transcript(&self) -> Transcript {
        let heard = &WORDS[..self.reports];
        let begins = (0..).map(|index| (self.segment + REPORT * index).as_secs_f64());
        let words = heard.iter().zip(begins).map(|(word, start)| Word {
            word: (*word).to_owned(),
            start,
            end: start + REPORT.as_secs_f64(),
            confidence: Some(1.0),
            speaker: None,
        });
        Transcript {
            text: heard.join(" "),
            confidence: Some(1.0),
            words: words.collect(),
            language: None,
            end: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use futures_util::FutureExt;
    use futures_util::stream::BoxStream;
    use vivavoce_audio::format::{AudioFormat, SampleRate};

    type Events = BoxStream<'static, Result<SttEvent, ProviderError>>;

    async fn open() -> (AudioSink, Events) {
        let request = SttRequest {
            party: vivavoce_quotas::Party::Operator,
            language: "en-US".to_owned(),
            model: String::new(),
            punctuation: true,
            keyterms: Vec::new(),
            languages: Vec::new(),
            diarize: false,
            translate: false,
            credential: None,
            format: AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000),
        };
        let SttStream { sink, events } = NullStt.open(request).await.unwrap();
        (sink, events)
    }

    /// So many frames of 20 ms, and what has been said by then, each event with its text and times.
    async fn hear(sink: &AudioSink, events: &mut Events, frames: usize) -> Vec<String> {
        let mut said = Vec::new();
        for _ in 0..frames {
            sink.send(Bytes::from_static(&[0; 640])).await.unwrap();
            said.extend(waiting(events));
        }
        said
    }

    fn waiting(events: &mut Events) -> Vec<String> {
        let ready = std::iter::from_fn(|| events.next().now_or_never().flatten());
        ready.map(|event| describe(&event.unwrap())).collect()
    }

    fn describe(event: &SttEvent) -> String {
        let (kind, heard) = match event {
            SttEvent::Partial(heard) => ("partial", heard),
            SttEvent::Final(heard) => ("final", heard),
            other => panic!("{other:?}"),
        };
        let words = heard.words.iter();
        words.fold(kind.to_owned(), |text, word| {
            format!("{text} {}@{}-{}", word.word, word.start, word.end)
        })
    }

    #[tokio::test]
    async fn every_second_of_sound_gives_a_partial_and_a_final_with_times() {
        let (sink, mut events) = open().await;
        assert_eq!(hear(&sink, &mut events, 24).await, [""; 0]);
        assert_eq!(hear(&sink, &mut events, 1).await, ["partial one@0-0.5"]);
        assert_eq!(
            hear(&sink, &mut events, 100).await,
            [
                "final one@0-0.5 two@0.5-1",
                "partial one@1-1.5",
                "final one@1-1.5 two@1.5-2",
                "partial one@2-2.5"
            ]
        );
    }

    #[tokio::test]
    async fn what_was_heard_becomes_final_when_asked_for_and_at_the_end() {
        let (sink, mut events) = open().await;
        hear(&sink, &mut events, 30).await;
        sink.finalize().await.unwrap();
        assert_eq!(waiting(&mut events), ["final one@0-0.5"]);
        assert_eq!(
            hear(&sink, &mut events, 25).await,
            ["partial one@0.6-1.1"],
            "the next segment begins where the last one ended"
        );
        sink.close();
        assert_eq!(
            events.next().await.map(|e| describe(&e.unwrap())),
            Some("final one@0.6-1.1".to_owned())
        );
        assert!(events.next().await.is_none());
    }
}
