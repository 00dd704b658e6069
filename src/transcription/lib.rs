//! Transcription of files: sound that is there as a whole in, utterances out. `vivavoce transcribe` and
//! `/v1/audio/transcriptions` use it. Recognisers are behind [`vivavoce_seams::SpeechToText`], the same as in sessions; a
//! file is sent to them as fast as they take it.
//!
//! The file is decoded on a thread for blocking work and never held in memory: it waits for the recogniser. A vendor that
//! limits how long a stream may last is sent a longer file in several streams, divided where nobody speaks. Whoever drops a
//! [`Transcription`] ends it.

use std::io::{Read, Seek};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, Fuse};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use vivavoce_audio::decode::{DecodeError, FileDecoder, FileLimits};
use vivavoce_audio::{AudioFormat, Encoding, Layout, OfflineResampler, SampleRate, linear16};
use vivavoce_seams::{
    AudioSink, ErrorKind, ProviderError, SpeechToText, SttEvent, SttRequest, SttStream, Transcript,
};

/// The chunks in which sound is sent.
const CHUNK: Duration = Duration::from_millis(100);
/// How long a stream may take to open.
const OPENING: Duration = Duration::from_secs(30);
/// How long a recogniser may neither take sound nor tell anything.
const STALLED: Duration = Duration::from_mins(2);
/// From this share of the longest stream on the next quiet chunk ends it; at the other it ends in any case.
const ENDS_QUIETLY: f64 = 0.7;
const ENDS: f64 = 0.9;
/// A chunk is quiet below this mean square (−50 dBFS), or where it has this part of the loudest one's.
const QUIET: f64 = 100.0 * 100.0;
const FAINTER: f64 = 1.0 / 100.0;

/// Why a transcription has ended early.
#[derive(Debug, thiserror::Error)]
pub enum TranscriptionError {
    /// The file cannot be decoded any further.
    #[error(transparent)]
    File(#[from] DecodeError),
    /// The recogniser failed.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The runtime is shutting down.
    #[error("the transcription was abandoned")]
    Abandoned,
}

/// Sound that was opened, of which the first has been decoded.
#[derive(Debug)]
pub struct Recorded(FileDecoder);

impl Recorded {
    /// Opens a WAV, MP3, FLAC or Ogg/Opus file, at most `longest` of which is transcribed. Blocks.
    pub fn open(
        file: impl Read + Seek + Send + Sync + 'static,
        longest: Duration,
    ) -> Result<Self, DecodeError> {
        FileDecoder::open(file, FileLimits { duration: longest }).map(Self)
    }

    /// How long it is, if the file tells.
    pub const fn duration(&self) -> Option<Duration> {
        self.0.duration()
    }
}

/// A file that is being transcribed.
pub struct Transcription {
    slug: &'static str,
    /// The streams, in the order of the sound.
    parts: mpsc::Receiver<Part>,
    part: Option<Part>,
    /// `None` once it has been reported how it ended.
    feeding: Option<JoinHandle<Result<(), TranscriptionError>>>,
    sent_ms: Arc<AtomicU64>,
}

/// What comes back from one stream.
struct Part {
    /// Where its sound begins in the file.
    begins: Duration,
    events: Fuse<BoxStream<'static, Result<SttEvent, ProviderError>>>,
}

impl Transcription {
    /// Begins to send a file to a recogniser. The format of the request is set here.
    pub async fn begin(
        provider: Arc<dyn SpeechToText>,
        request: SttRequest,
        Recorded(decoder): Recorded,
    ) -> Result<Self, ProviderError> {
        let offered = AudioFormat {
            encoding: Encoding::Linear16,
            layout: decoder.layout(),
        };
        let accepts = provider.accepts();
        let request = SttRequest {
            format: accepts.nearest(offered),
            ..request
        };
        let slug = provider.slug();
        let SttStream { sink, events } = open(&*provider, &request).await?;
        let (parts, received) = mpsc::channel(2);
        let first = Part {
            begins: Duration::ZERO,
            events: events.fuse(),
        };
        let sent_ms = Arc::<AtomicU64>::default();
        let feeder = Feeder {
            layout: request.format.layout,
            limit: accepts.stream_limit,
            provider,
            request,
            parts,
            sink,
            sent: Duration::ZERO,
            of_part: Duration::ZERO,
            loudest: 0.0,
            sent_ms: Arc::clone(&sent_ms),
        };
        Ok(Self {
            slug,
            parts: received,
            part: Some(first),
            feeding: Some(tokio::task::spawn_blocking(move || feeder.feed(decoder))),
            sent_ms,
        })
    }

    /// What the recogniser says next; `None` when all of the file has been transcribed. After an error there is nothing more.
    pub async fn next(&mut self) -> Option<Result<SttEvent, TranscriptionError>> {
        loop {
            let Some(part) = &mut self.part else {
                self.part = self.parts.recv().await;
                if self.part.is_none() {
                    return self.ended().await;
                }
                continue;
            };
            let before = self.sent_ms.load(Relaxed);
            match timeout(STALLED, part.events.next()).await {
                Ok(Some(Ok(event))) => return Some(Ok(later(event, part.begins))),
                Ok(Some(Err(error))) => return Some(Err(self.fail(error))),
                Ok(None) => self.part = None,
                Err(_) if self.sent_ms.load(Relaxed) == before => {
                    let problem = "has neither taken sound nor told anything for too long";
                    let error = ProviderError::new(self.slug, ErrorKind::Timeout, problem);
                    return Some(Err(self.fail(error)));
                }
                Err(_) => {}
            }
        }
    }

    fn fail(&mut self, error: ProviderError) -> TranscriptionError {
        self.part = None;
        self.feeding = None;
        self.parts.close();
        error.into()
    }

    async fn ended(&mut self) -> Option<Result<SttEvent, TranscriptionError>> {
        match self.feeding.take()?.await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(Err(error)),
            Err(_) => Some(Err(TranscriptionError::Abandoned)),
        }
    }

    /// How much of the file the recogniser has been sent.
    pub fn position(&self) -> Duration {
        Duration::from_millis(self.sent_ms.load(Relaxed))
    }
}

/// The format of a request before it is known what is transcribed.
pub const ANY_FORMAT: AudioFormat = AudioFormat {
    encoding: Encoding::Linear16,
    layout: Layout::mono(SampleRate::HZ_16000),
};

async fn open(
    provider: &dyn SpeechToText,
    request: &SttRequest,
) -> Result<SttStream, ProviderError> {
    let opened = timeout(OPENING, provider.open(request.clone())).await;
    opened.unwrap_or_else(|_| {
        let problem = "did not open a stream in time";
        Err(ProviderError::new(
            provider.slug(),
            ErrorKind::Timeout,
            problem,
        ))
    })
}

/// An event in the time of the file.
fn later(event: SttEvent, begins: Duration) -> SttEvent {
    let begins = begins.as_secs_f64();
    let shifted = |mut heard: Transcript| {
        for word in &mut heard.words {
            word.start += begins;
            word.end += begins;
        }
        heard.end = heard.end.map(|end| end + begins);
        heard
    };
    match event {
        SttEvent::Partial(heard) => SttEvent::Partial(shifted(heard)),
        SttEvent::Final(heard) => SttEvent::Final(shifted(heard)),
        event => event,
    }
}

/// Decodes, converts and sends the sound. It blocks.
struct Feeder {
    provider: Arc<dyn SpeechToText>,
    request: SttRequest,
    layout: Layout,
    /// How long one stream may last.
    limit: Option<Duration>,
    parts: mpsc::Sender<Part>,
    sink: AudioSink,
    /// Of the whole file, and of this stream.
    sent: Duration,
    of_part: Duration,
    /// The greatest mean square of a chunk.
    loudest: f64,
    sent_ms: Arc<AtomicU64>,
}

impl Feeder {
    fn feed(mut self, decoder: FileDecoder) -> Result<(), TranscriptionError> {
        let channels = self.layout.channels;
        let from = Layout::new(decoder.layout().rate, channels);
        let mut resampler = OfflineResampler::new(from, self.layout.rate);
        let mut samples = Vec::new();
        for sound in decoder {
            let sound = sound?.into_channels(channels);
            resampler.push(sound.samples(), &mut samples);
            self.send(&mut samples)?;
        }
        resampler.finish(&mut samples);
        self.send(&mut samples)
    }

    fn send(&mut self, samples: &mut Vec<i16>) -> Result<(), TranscriptionError> {
        for chunk in samples.chunks(self.layout.samples_in(CHUNK)) {
            if self.is_over(chunk) {
                self.begin_part()?;
            }
            let audio: Bytes = linear16::encode(chunk);
            let sending = timeout(STALLED, self.sink.send(audio));
            match Handle::current().block_on(sending) {
                Ok(Ok(())) => {}
                // Its events say why, if it says so.
                Ok(Err(_)) => return Err(self.broken("ended before all of the file was heard")),
                Err(_) => return Err(self.broken("has stopped taking sound")),
            }
            let frames = chunk.len() / self.layout.channels.count();
            let time = self.layout.rate.duration_of(frames);
            self.of_part += time;
            self.sent += time;
            self.sent_ms.store(self.sent.as_millis() as u64, Relaxed);
        }
        samples.clear();
        Ok(())
    }

    /// Whether this chunk is better sent to another stream.
    fn is_over(&mut self, chunk: &[i16]) -> bool {
        let Some(limit) = self.limit else {
            return false;
        };
        let energy: f64 = chunk.iter().map(|&sample| f64::from(sample).powi(2)).sum();
        let energy = energy / chunk.len().max(1) as f64;
        self.loudest = self.loudest.max(energy);
        let quiet = energy < QUIET.max(self.loudest * FAINTER);
        self.of_part >= limit.mul_f64(if quiet { ENDS_QUIETLY } else { ENDS })
    }

    /// What follows goes to a stream of its own.
    fn begin_part(&mut self) -> Result<(), TranscriptionError> {
        let opening = open(&*self.provider, &self.request);
        let SttStream { sink, events } = Handle::current().block_on(opening)?;
        let part = Part {
            begins: self.sent,
            events: events.fuse(),
        };
        // The former stream ends, and tells what is left of it.
        self.sink = sink;
        self.of_part = Duration::ZERO;
        let told = self.parts.blocking_send(part);
        told.map_err(|_| TranscriptionError::Abandoned)
    }

    fn broken(&self, problem: &str) -> TranscriptionError {
        ProviderError::new(self.provider.slug(), ErrorKind::Unavailable, problem).into()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use async_trait::async_trait;
    use vivavoce_core::party::Party;
    use vivavoce_seams::{Accepts, SttInput, Word};

    use super::*;

    /// Says how many samples it was sent, and fails after so many.
    #[derive(Default)]
    struct Counting {
        fails_after: Option<usize>,
        ends_after: Option<usize>,
        limit: Option<Duration>,
    }

    #[async_trait]
    impl SpeechToText for Counting {
        fn slug(&self) -> &'static str {
            "counting"
        }

        fn accepts(&self) -> Accepts {
            Accepts {
                encodings: &[Encoding::Linear16],
                rates: &[16_000],
                stereo: false,
                stream_limit: self.limit,
            }
        }

        async fn open(&self, request: SttRequest) -> Result<SttStream, ProviderError> {
            assert_eq!(request.format.layout, Layout::mono(SampleRate::HZ_16000));
            let (sink, mut input) = AudioSink::channel(2);
            let (events, heard) = mpsc::channel(8);
            let (fails, ends) = (self.fails_after, self.ends_after);
            tokio::spawn(async move {
                let mut samples = 0;
                while let Some(SttInput::Audio(audio)) = input.recv().await {
                    samples += audio.len() / 2;
                    if fails.is_some_and(|most| samples > most) {
                        let error = ProviderError::new("counting", ErrorKind::Unavailable, "full");
                        let _ = events.send(Err(error)).await;
                        return;
                    }
                    if ends.is_some_and(|most| samples > most) {
                        return;
                    }
                }
                let word = samples.to_string();
                let counted = Transcript {
                    text: word.clone(),
                    words: vec![Word {
                        word,
                        start: 0.25,
                        end: 0.5,
                        confidence: None,
                        speaker: None,
                    }],
                    ..Transcript::default()
                };
                let _ = events.send(Ok(SttEvent::Final(counted))).await;
            });
            let events = tokio_stream(heard).boxed();
            Ok(SttStream { sink, events })
        }
    }

    fn tokio_stream<T: Send + 'static>(
        receiver: mpsc::Receiver<T>,
    ) -> impl futures_util::Stream<Item = T> + Send {
        futures_util::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|item| (item, receiver))
        })
    }

    fn request() -> SttRequest {
        SttRequest {
            language: "en-US".to_owned(),
            model: String::new(),
            punctuation: true,
            format: ANY_FORMAT,
            keyterms: Vec::new(),
            languages: Vec::new(),
            diarize: false,
            translate: false,
            credential: None,
            party: Party::Operator,
        }
    }

    /// So many seconds of silence at 8 kHz.
    fn file(seconds: usize) -> Vec<u8> {
        let layout = Layout::mono(SampleRate::HZ_8000);
        let mut file = vivavoce_audio::wav::header(layout, Some(16_000 * seconds as u32)).to_vec();
        file.resize(file.len() + 16_000 * seconds, 0);
        file
    }

    async fn begun(provider: Counting, seconds: usize, longest: Duration) -> Transcription {
        let sound = recorded(file(seconds), longest);
        let begun = Transcription::begin(Arc::new(provider), request(), sound).await;
        begun.unwrap()
    }

    fn recorded(file: Vec<u8>, longest: Duration) -> Recorded {
        Recorded::open(Cursor::new(file), longest).unwrap()
    }

    const LONG: Duration = Duration::from_secs(99);

    #[tokio::test]
    async fn all_of_a_file_is_sent_in_the_format_that_is_taken() {
        let sound = recorded(file(1), LONG);
        assert_eq!(sound.duration(), Some(Duration::from_secs(1)));
        let mut transcription = begun(Counting::default(), 1, LONG).await;
        let Some(Ok(SttEvent::Final(counted))) = transcription.next().await else {
            panic!("nothing was counted");
        };
        assert_eq!(counted.text, "16000");
        assert_eq!(transcription.position(), Duration::from_secs(1));
        assert!(transcription.next().await.is_none());
        assert!(transcription.next().await.is_none());
    }

    #[tokio::test]
    async fn a_recogniser_that_fails_or_ends_and_a_file_that_is_too_long_are_told_once() {
        let fails = Counting {
            fails_after: Some(4_000),
            ..Counting::default()
        };
        let mut transcription = begun(fails, 1, LONG).await;
        let failed = transcription.next().await;
        assert!(matches!(failed, Some(Err(TranscriptionError::Provider(_)))));
        assert!(transcription.next().await.is_none());

        let ends = Counting {
            ends_after: Some(4_000),
            ..Counting::default()
        };
        let mut transcription = begun(ends, 1, LONG).await;
        let Some(Err(TranscriptionError::Provider(error))) = transcription.next().await else {
            panic!("it has heard all");
        };
        assert!(error.message.contains("before all of the file"), "{error}");
        assert!(transcription.next().await.is_none());

        let mut transcription = begun(Counting::default(), 1, Duration::from_millis(100)).await;
        let heard = transcription.next().await;
        assert!(matches!(heard, Some(Ok(SttEvent::Final(_)))));
        let failed = transcription.next().await;
        assert!(matches!(
            failed,
            Some(Err(TranscriptionError::File(DecodeError::TooLong(_))))
        ));
        assert!(transcription.next().await.is_none());
    }

    #[tokio::test]
    async fn a_file_that_is_longer_than_a_stream_may_be_is_sent_in_several() {
        let limited = Counting {
            limit: Some(Duration::from_secs(10)),
            ..Counting::default()
        };
        let mut transcription = begun(limited, 20, LONG).await;
        let mut heard = Vec::new();
        while let Some(event) = transcription.next().await {
            if let SttEvent::Final(counted) = event.unwrap() {
                let samples: usize = counted.text.parse().unwrap();
                heard.push((samples, counted.words[0].start));
            }
        }
        // In silence, at about 7 s each; nothing is lost or given twice, and times go on.
        assert_eq!(heard.len(), 3, "{heard:?}");
        let mut before = 0;
        for (samples, start) in heard {
            let expected = 0.25 + before as f64 / 16_000.0;
            assert!((start - expected).abs() < 0.001, "{start} {expected}");
            assert!((80_000..=160_000).contains(&samples), "{samples}");
            before += samples;
        }
        assert_eq!(before, 20 * 16_000);
    }
}
