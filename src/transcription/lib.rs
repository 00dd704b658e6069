//! Transcription of files: sound that is there as a whole in, utterances out. `vivavoce transcribe` and
//! `/v1/audio/transcriptions` use it. Recognisers are behind [`vivavoce_seams::SpeechToText`], the same as in sessions; a
//! file is sent to them as fast as they take it.
//!
//! The file is decoded on a thread for blocking work and never held in memory: it waits for the recogniser. Whoever drops a
//! [`Transcription`] ends it.

use std::io::{Read, Seek};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, Fuse};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use vivavoce_audio::decode::{DecodeError, FileDecoder, FileLimits};
use vivavoce_audio::{AudioFormat, Encoding, Layout, OfflineResampler, SampleRate, linear16};
use vivavoce_seams::{AudioSink, ProviderError, SpeechToText, SttEvent, SttRequest};

/// The chunks in which sound is sent.
const CHUNK: Duration = Duration::from_millis(100);

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
    events: Fuse<BoxStream<'static, Result<SttEvent, ProviderError>>>,
    /// `None` once it has been reported how it ended.
    feeding: Option<JoinHandle<Result<(), DecodeError>>>,
    sent_ms: Arc<AtomicU64>,
}

impl Transcription {
    /// Begins to send a file to a recogniser. The format of the request is set here.
    pub async fn begin(
        provider: &dyn SpeechToText,
        request: SttRequest,
        Recorded(decoder): Recorded,
    ) -> Result<Self, ProviderError> {
        let offered = AudioFormat {
            encoding: Encoding::Linear16,
            layout: decoder.layout(),
        };
        let format = provider.accepts().nearest(offered);
        let stream = provider.open(SttRequest { format, ..request }).await?;
        let sent_ms = Arc::<AtomicU64>::default();
        let (sink, sent) = (stream.sink, Arc::clone(&sent_ms));
        let feeding = move || feed(decoder, format.layout, &sink, &sent);
        Ok(Self {
            events: stream.events.fuse(),
            feeding: Some(tokio::task::spawn_blocking(feeding)),
            sent_ms,
        })
    }

    /// What the recogniser says next; `None` when all of the file has been transcribed. After an error there is nothing more.
    pub async fn next(&mut self) -> Option<Result<SttEvent, TranscriptionError>> {
        if let Some(event) = self.events.next().await {
            if event.is_err() {
                self.feeding = None;
            }
            return Some(event.map_err(TranscriptionError::from));
        }
        // A recogniser that has ended first has said why.
        match self.feeding.take()?.await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(Err(error.into())),
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

/// Decodes, converts and sends the sound.
fn feed(
    decoder: FileDecoder,
    layout: Layout,
    sink: &AudioSink,
    sent_ms: &AtomicU64,
) -> Result<(), DecodeError> {
    let from = Layout::new(decoder.layout().rate, layout.channels);
    let mut resampler = OfflineResampler::new(from, layout.rate);
    let mut samples = Vec::new();
    let mut sent = Duration::ZERO;
    for sound in decoder {
        let sound = sound?;
        sent += sound.duration();
        resampler.push(sound.into_channels(layout.channels).samples(), &mut samples);
        if !send(&mut samples, layout, sink) {
            return Ok(());
        }
        sent_ms.store(sent.as_millis() as u64, Relaxed);
    }
    resampler.finish(&mut samples);
    send(&mut samples, layout, sink);
    Ok(())
}

/// Returns `false` if the recogniser has ended.
fn send(samples: &mut Vec<i16>, layout: Layout, sink: &AudioSink) -> bool {
    let sent = samples.chunks(layout.samples_in(CHUNK)).all(|chunk| {
        let audio: Bytes = linear16::encode(chunk);
        Handle::current().block_on(sink.send(audio)).is_ok()
    });
    samples.clear();
    sent
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use async_trait::async_trait;
    use tokio::sync::mpsc;
    use vivavoce_core::party::Party;
    use vivavoce_seams::{Accepts, ErrorKind, SttInput, SttStream, Transcript};

    use super::*;

    /// Says how many samples it was sent, and fails after so many.
    struct Counting {
        fails_after: usize,
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
                stream_limit: None,
            }
        }

        async fn open(&self, request: SttRequest) -> Result<SttStream, ProviderError> {
            assert_eq!(request.format.layout, Layout::mono(SampleRate::HZ_16000));
            let (sink, mut input) = AudioSink::channel(2);
            let (events, heard) = mpsc::channel(8);
            let most = self.fails_after;
            tokio::spawn(async move {
                let mut samples = 0;
                while let Some(SttInput::Audio(audio)) = input.recv().await {
                    samples += audio.len() / 2;
                    if samples > most {
                        let error = ProviderError::new("counting", ErrorKind::Unavailable, "full");
                        let _ = events.send(Err(error)).await;
                        return;
                    }
                }
                let text = samples.to_string();
                let counted = Transcript {
                    text,
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
            credential: None,
            party: Party::Operator,
        }
    }

    /// A second of silence at 8 kHz.
    fn file() -> Vec<u8> {
        let layout = Layout::mono(SampleRate::HZ_8000);
        let mut file = vivavoce_audio::wav::header(layout, Some(16_000)).to_vec();
        file.resize(file.len() + 16_000, 0);
        file
    }

    fn recorded(file: Vec<u8>, longest: Duration) -> Recorded {
        Recorded::open(Cursor::new(file), longest).unwrap()
    }

    #[tokio::test]
    async fn all_of_a_file_is_sent_in_the_format_that_is_taken() {
        let sound = recorded(file(), Duration::from_secs(9));
        assert_eq!(sound.duration(), Some(Duration::from_secs(1)));
        let provider = Counting {
            fails_after: 99_999,
        };
        let begun = Transcription::begin(&provider, request(), sound).await;
        let mut transcription = begun.unwrap();
        let Some(Ok(SttEvent::Final(counted))) = transcription.next().await else {
            panic!("nothing was counted");
        };
        assert_eq!(counted.text, "16000");
        assert_eq!(transcription.position(), Duration::from_secs(1));
        assert!(transcription.next().await.is_none());
    }

    #[tokio::test]
    async fn a_recogniser_that_fails_and_a_file_that_is_too_long_are_told_once() {
        let provider = Counting { fails_after: 4_000 };
        let sound = recorded(file(), Duration::from_secs(9));
        let begun = Transcription::begin(&provider, request(), sound).await;
        let mut transcription = begun.unwrap();
        let failed = transcription.next().await;
        assert!(matches!(failed, Some(Err(TranscriptionError::Provider(_)))));
        assert!(transcription.next().await.is_none());

        let provider = Counting {
            fails_after: 99_999,
        };
        let sound = recorded(file(), Duration::from_millis(100));
        let begun = Transcription::begin(&provider, request(), sound).await;
        let mut transcription = begun.unwrap();
        let heard = transcription.next().await;
        assert!(matches!(heard, Some(Ok(SttEvent::Final(_)))));
        let failed = transcription.next().await;
        assert!(matches!(
            failed,
            Some(Err(TranscriptionError::File(DecodeError::TooLong(_))))
        ));
        assert!(transcription.next().await.is_none());
    }
}
