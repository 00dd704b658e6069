//! The traits between the server and its providers: [`SpeechToText`], [`TextToSpeech`], [`TurnModel`],
//! [`RecordingStore`] and, in
//! [`rooms`], rooms and telephone calls; their requests and events, and what a provider declares about itself as data
//! ([`Accepts`], [`Speaks`], [`OutputFormat`]). Providers and the rest of the server both depend on this crate, not on each
//! other.

#![warn(missing_docs)]

mod credential;
mod output_format;
pub mod parameters;
pub mod rooms;
mod store;
mod stt_result;
mod table;
mod turn_model;
pub mod veil;

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::mpsc;

pub use credential::{Credential, CredentialField, OwnCredential};
pub use output_format::OutputFormat;
use parameters::Parameter;
pub use rooms::{
    ApiKey, Creation, EventError, RoomError, RoomErrorKind, RoomPass, RoomProvider, SignedEvent,
    Supervision, TrackOf,
};
pub use store::{ByteStream, Listing, ObjectInfo, RecordingStore, StoreError, StoredFile};
pub use stt_result::SttResult;
pub use table::{ProviderTable, canonical_slug};
pub use turn_model::{NoAnswer, TURN_RATE, TURN_SOUND, TurnModel};

pub use vivavoce_core::provider_error::{ErrorKind, ProviderError};

use vivavoce_audio::format::{AudioFormat, Channels, Encoding, Layout, SampleRate};
use vivavoce_core::party::Party;
use vivavoce_core::ssml::Ssml;

/// Which audio a recogniser takes. The pipeline converts whatever a client sends to [`Accepts::nearest`].
#[derive(Debug, Clone, Copy)]
pub struct Accepts {
    /// Encodings, best first. The first must be [`Encoding::Linear16`].
    pub encodings: &'static [Encoding],
    /// Rates in hertz, ascending; empty means any rate of the wire.
    pub rates: &'static [u32],
    /// Whether two channels are taken.
    pub stereo: bool,
    /// How long one stream may last before the provider ends it.
    pub stream_limit: Option<Duration>,
}

impl Accepts {
    /// The format nearest to `offered` that the provider takes: the same encoding where it can, the next higher rate
    /// where the offered one is missing (nothing is lost), else the highest.
    pub fn nearest(&self, offered: AudioFormat) -> AudioFormat {
        let rate = offered.layout.rate;
        let rate = match self.rates {
            [] => rate,
            rates => rates
                .iter()
                .chain(rates.last())
                .find(|&&hz| hz >= rate.hz() || Some(&hz) == rates.last())
                .and_then(|&hz| SampleRate::new(hz).ok())
                .unwrap_or(rate),
        };
        let channels = if self.stereo {
            offered.layout.channels
        } else {
            Channels::Mono
        };
        let layout = Layout::new(rate, channels);
        let encoding = if layout == offered.layout && self.encodings.contains(&offered.encoding) {
            offered.encoding
        } else {
            Encoding::Linear16
        };
        AudioFormat { encoding, layout }
    }
}

/// What to listen for. The audio that follows is in the format that was agreed on by [`Accepts::nearest`].
#[derive(Debug, Clone)]
pub struct SttRequest {
    /// BCP-47; empty only where it is found out ([`SpeechToText::finds_language`]).
    pub language: String,
    /// The provider's model; empty means its default.
    pub model: String,
    /// Whether punctuation is wanted.
    pub punctuation: bool,
    /// The format of the audio that will be sent.
    pub format: AudioFormat,
    /// Words and phrases to be listened for.
    pub keyterms: Vec<String>,
    /// BCP-47: further languages that may be spoken.
    pub languages: Vec<String>,
    /// Whether speakers shall be told apart.
    pub diarize: bool,
    /// Whether what is said in another language is written in English; asked of those that do
    /// ([`SpeechToText::translates`]).
    pub translate: bool,
    /// The caller's own credential; the server's when absent.
    pub credential: Option<Credential>,
    /// Who waits, where several have to.
    pub party: Party,
}

/// One recognised word with its place in the session's audio.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Word {
    /// The word as recognised.
    pub word: String,
    /// Seconds from the first sample that was sent.
    pub start: f64,
    /// Seconds from the first sample that was sent.
    pub end: f64,
    /// 0–1 where the provider gives one.
    #[schemars(range(min = 0, max = 1))]
    pub confidence: Option<f32>,
    /// Who said it, where the provider was asked to tell speakers apart: a label of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speaker: Option<String>,
}

/// A stretch of recognised speech.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Transcript {
    /// The text of this segment.
    pub text: String,
    /// 0–1 where the provider gives one.
    pub confidence: Option<f32>,
    /// Words with times where known; otherwise empty.
    pub words: Vec<Word>,
    /// BCP-47 where the provider says which language it heard.
    pub language: Option<String>,
    /// Where the sound of this segment ends, in seconds from the first sample that was sent, where the provider says:
    /// what follows is not part of it. A final never names sound that later ones may still transcribe.
    pub end: Option<f64>,
}

/// What a recogniser reports.
#[derive(Debug, Clone)]
pub enum SttEvent {
    /// The segment as heard so far; later ones replace it.
    Partial(Transcript),
    /// The segment as it will stay.
    Final(Transcript),
    /// The provider itself says that the speaker has finished.
    EndOfSpeech,
    /// One utterance could not be recognised; the stream goes on with the next.
    UtteranceLost(ProviderError),
}

/// What goes up to a recogniser.
#[derive(Debug)]
pub enum SttInput {
    /// Audio in the agreed format, whole frames.
    Audio(Bytes),
    /// Whatever was heard shall become final now; the stream goes on.
    Finalize,
}

/// The way up to a recogniser: bounded, so that a slow one is felt and not buffered. Dropping it ends the stream: the
/// provider finishes what it has and its events end.
#[derive(Debug, Clone)]
pub struct AudioSink {
    input: mpsc::Sender<SttInput>,
}

/// The recogniser's end of the stream is gone; its events say why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the recogniser has ended this stream")]
pub struct SttClosed;

impl AudioSink {
    /// A sink and the provider's end of it, holding at most `capacity` chunks.
    pub fn channel(capacity: usize) -> (Self, mpsc::Receiver<SttInput>) {
        let (input, receiver) = mpsc::channel(capacity);
        (Self { input }, receiver)
    }

    /// Audio in the agreed format. Waits while the provider is behind.
    pub async fn send(&self, audio: Bytes) -> Result<(), SttClosed> {
        self.input
            .send(SttInput::Audio(audio))
            .await
            .map_err(|_| SttClosed)
    }

    /// Reserves the place of a chunk, if the provider takes one at once.
    pub fn try_reserve(&self) -> Option<AudioPermit<'_>> {
        self.input.try_reserve().ok().map(AudioPermit)
    }

    /// Asks for a final of everything heard so far.
    pub async fn finalize(&self) -> Result<(), SttClosed> {
        self.input
            .send(SttInput::Finalize)
            .await
            .map_err(|_| SttClosed)
    }

    /// Ends the stream.
    pub fn close(self) {}
}

/// The place of a chunk, which is given up where nothing is sent.
#[derive(Debug)]
pub struct AudioPermit<'a>(mpsc::Permit<'a, SttInput>);

impl AudioPermit<'_> {
    /// Sends audio in the agreed format.
    pub fn send(self, audio: Bytes) {
        self.0.send(SttInput::Audio(audio));
    }
}

/// An open recogniser. An `Err` event is the last one; the events end by themselves after the sink was dropped.
pub struct SttStream {
    /// The way up.
    pub sink: AudioSink,
    /// What comes back.
    pub events: BoxStream<'static, Result<SttEvent, ProviderError>>,
}

impl fmt::Debug for SttStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SttStream").finish_non_exhaustive()
    }
}

/// How long after somebody has stopped speaking a recogniser's final comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinalDelay {
    /// Half of all finals are there by then.
    pub median: Duration,
    /// Nineteen of twenty are.
    pub p95: Duration,
}

impl FinalDelay {
    /// Of whom nothing is known.
    pub const UNKNOWN: Self = Self::of_ms(900, 1_200);

    /// Measured milliseconds.
    pub const fn of_ms(median: u64, p95: u64) -> Self {
        Self {
            median: Duration::from_millis(median),
            p95: Duration::from_millis(p95),
        }
    }

    /// How long a final is worth waiting for: half as long again as nearly all of them take.
    pub fn patience(self) -> Duration {
        self.p95 + self.p95 / 2
    }
}

/// A streaming recogniser.
#[async_trait]
pub trait SpeechToText: Send + Sync {
    /// The slug on the wire.
    fn slug(&self) -> &'static str;
    /// What audio it takes.
    fn accepts(&self) -> Accepts;
    /// The fields of a credential for it; none where it needs no credential.
    fn credential_fields(&self) -> &'static [CredentialField] {
        &[]
    }
    /// What becomes of each field of `stt_config`; empty where all are honoured.
    fn parameters(&self) -> &'static [Parameter] {
        &[]
    }
    /// Why it ignores a field of `stt_config`, for people; `None` where it does not. That may depend on the model and on the
    /// languages that are spoken, the expected one first.
    fn ignored_because(&self, field: &str, _model: &str, _spoken: &[&str]) -> Option<String> {
        parameters::ignored_because(self.parameters(), field)
    }
    /// How long its finals take, as measured: what the end of a turn waits for.
    fn final_delay(&self) -> FinalDelay {
        FinalDelay::UNKNOWN
    }
    /// How long it may leave speech without any answer before its stream is suspected to be dead; `None` where it answers
    /// only when the speech is over, or runs in this machine.
    fn answers_within(&self) -> Option<Duration> {
        None
    }
    /// Whether its [`SttEvent::EndOfSpeech`] says no more than that there was a pause: then a model that hears whether the
    /// speaker has finished knows better.
    fn ends_at_pauses(&self) -> bool {
        false
    }
    /// Whether this model writes in English what is said in another language.
    fn translates(&self, _model: &str) -> bool {
        false
    }
    /// Whether this model finds out which language is spoken.
    fn finds_language(&self, _model: &str) -> bool {
        false
    }
    /// Opens a stream: connected, and what was asked for not refused so far.
    async fn open(&self, request: SttRequest) -> Result<SttStream, ProviderError>;
}

/// What a synthesiser can do itself; the pipeline does the rest (time-stretch, resampling, encoding).
#[derive(Debug, Clone)]
pub struct Speaks {
    /// Rates of speech that it takes; the pipeline asks for the nearest and stretches the remainder.
    pub speaking_rates: RangeInclusive<f64>,
}

/// What to say and how.
#[derive(Debug, Clone)]
pub struct TtsRequest {
    /// One of [`TextToSpeech::voices`]; `None` means the provider's default.
    pub voice_id: Option<String>,
    /// The provider's model; empty means its default.
    pub model: String,
    /// 1.0 is normal; always within [`Speaks::speaking_rates`].
    pub speaking_rate: f64,
    /// The format that the caller would like best. The provider may answer in another, which it declares.
    pub preferred: AudioFormat,
    /// How long connecting may take.
    pub connection_timeout: Duration,
    /// How long the whole synthesis may take.
    pub request_timeout: Duration,
    /// The caller's own credential; the server's when absent.
    pub credential: Option<Credential>,
    /// Who waits, where several have to.
    pub party: Party,
}

/// What a synthesiser sends.
#[derive(Debug, Clone)]
pub enum TtsEvent {
    /// Audio in the declared format. Chunks are cut anywhere.
    Audio(Bytes),
    /// A word of the text begins this far into the audio.
    Word {
        /// The word.
        word: String,
        /// From the first sample.
        start: Duration,
    },
    /// Everything was said. Without it the synthesis is incomplete.
    Done,
}

/// What a synthesiser takes of SSML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakesSsml {
    /// The largest document.
    pub bytes: usize,
    /// Whether the tags of the document itself are paid for like those within it.
    pub counts_root: bool,
}

impl TakesSsml {
    /// The characters of a document that are paid for.
    pub fn characters(self, document: &Ssml) -> usize {
        let counted = if self.counts_root {
            document.document()
        } else {
            document.content()
        };
        counted.chars().count()
    }
}

/// A synthesis under way. Dropping it cancels it.
pub struct TtsStream {
    /// The format of the audio events.
    pub format: AudioFormat,
    /// Audio and words, ended by [`TtsEvent::Done`] or an `Err`.
    pub events: BoxStream<'static, Result<TtsEvent, ProviderError>>,
}

impl fmt::Debug for TtsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TtsStream")
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

/// Text that comes as it is written: whole sentences or parts of them, in order.
pub type TextStream = BoxStream<'static, String>;

/// A voice, as `GET /voices` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Voice {
    /// What goes into `voice_id`.
    pub id: String,
    /// For people.
    pub name: String,
    /// BCP-47: the language that it speaks best.
    pub language: String,
    /// BCP-47: every language that it speaks.
    pub languages: Vec<String>,
    /// `female`, `male`, `neutral` or empty.
    pub gender: String,
    /// For people, or empty.
    pub accent: String,
    /// URL of a sample, or empty.
    pub sample: String,
    /// Rates in hertz that it produces itself.
    pub sample_rates: Vec<u32>,
    /// Free labels.
    pub tags: Vec<String>,
}

/// A synthesiser.
#[async_trait]
pub trait TextToSpeech: Send + Sync {
    /// The slug on the wire.
    fn slug(&self) -> &'static str;
    /// Where it speaks, where that is a setting: two endpoints may sound different.
    fn endpoint(&self) -> &str {
        ""
    }
    /// What it can do itself.
    fn speaks(&self) -> Speaks;
    /// What it can do itself with this voice and model, where not all of them can do the same.
    fn speaks_as(&self, _voice_id: Option<&str>, _model: &str) -> Speaks {
        self.speaks()
    }
    /// The fields of a credential for it; none where it needs no credential.
    fn credential_fields(&self) -> &'static [CredentialField] {
        &[]
    }
    /// Names the server's own credential: other sound is kept for another credential.
    fn credential_fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
    /// Whether tags in a text are instructions to it, and no words.
    fn takes_tags(&self) -> bool {
        false
    }
    /// What it takes of SSML; `None` where it says tags as words, or has some of its own.
    fn takes_ssml(&self) -> Option<TakesSsml> {
        None
    }
    /// What becomes of each field of `tts_config`; empty where all are honoured.
    fn parameters(&self) -> &'static [Parameter] {
        &[]
    }
    /// Starts saying a document, where it takes SSML.
    async fn synthesize_ssml(
        &self,
        _request: TtsRequest,
        _document: &Ssml,
    ) -> Result<TtsStream, ProviderError> {
        let problem = "takes no SSML";
        Err(ProviderError::new(
            self.slug(),
            ErrorKind::InvalidRequest,
            problem,
        ))
    }
    /// Starts saying `text`.
    async fn synthesize(
        &self,
        request: TtsRequest,
        text: TextStream,
    ) -> Result<TtsStream, ProviderError>;
    /// The voices that can be had now; none without a credential of the server's.
    async fn voices(&self) -> Result<Vec<Voice>, ProviderError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audio_is_converted_to_the_next_rate_that_loses_nothing() {
        let accepts = Accepts {
            encodings: &[Encoding::Linear16, Encoding::Mulaw],
            rates: &[8_000, 16_000],
            stereo: false,
            stream_limit: None,
        };
        let nearest = |encoding, hz: u32, channels| {
            let layout = Layout::new(SampleRate::new(hz).unwrap(), channels);
            let format = accepts.nearest(AudioFormat { encoding, layout });
            (
                format.encoding,
                format.layout.rate.hz(),
                format.layout.channels,
            )
        };
        use Channels::{Mono, Stereo};
        assert_eq!(
            nearest(Encoding::Mulaw, 8_000, Mono),
            (Encoding::Mulaw, 8_000, Mono)
        );
        assert_eq!(
            nearest(Encoding::Mulaw, 11_025, Mono),
            (Encoding::Linear16, 16_000, Mono)
        );
        assert_eq!(
            nearest(Encoding::Linear16, 48_000, Stereo),
            (Encoding::Linear16, 16_000, Mono)
        );
        assert_eq!(
            nearest(Encoding::Opus, 16_000, Mono),
            (Encoding::Linear16, 16_000, Mono)
        );
    }
}
