//! The messages of Google's speech interfaces that are used here: Speech-to-Text v2, Text-to-Speech v1 and the error details
//! of `google.rpc`. Field numbers are Google's; unlisted fields are ignored.

use std::time::Duration as Time;

use prost::{Message, Oneof};

/// The method of recognition.
pub const STREAMING_RECOGNIZE: &str = "/google.cloud.speech.v2.Speech/StreamingRecognize";
/// The method of synthesis in both directions at once.
pub const STREAMING_SYNTHESIZE: &str =
    "/google.cloud.texttospeech.v1.TextToSpeech/StreamingSynthesize";
/// The method of synthesis of a whole text.
pub const SYNTHESIZE_SPEECH: &str = "/google.cloud.texttospeech.v1.TextToSpeech/SynthesizeSpeech";
/// The method that lists the voices.
pub const LIST_VOICES: &str = "/google.cloud.texttospeech.v1.TextToSpeech/ListVoices";

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Duration {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl From<Time> for Duration {
    fn from(time: Time) -> Self {
        Self {
            seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            nanos: time.subsec_nanos() as i32,
        }
    }
}

impl Duration {
    /// Negative and impossible ones are nought.
    pub fn time(self) -> Time {
        let seconds = u64::try_from(self.seconds).unwrap_or_default();
        let nanos = u32::try_from(self.nanos).unwrap_or_default();
        Time::from_secs(seconds).saturating_add(Time::from_nanos(nanos.into()))
    }
}

/// The request and answer of recognition.
pub mod speech {
    use super::{Duration, Message, Oneof};

    #[derive(Clone, PartialEq, Message)]
    pub struct StreamingRecognizeRequest {
        #[prost(string, tag = "3")]
        pub recognizer: String,
        #[prost(oneof = "Request", tags = "5, 6")]
        pub request: Option<Request>,
    }

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Request {
        #[prost(bytes = "bytes", tag = "5")]
        Audio(bytes::Bytes),
        #[prost(message, tag = "6")]
        StreamingConfig(StreamingRecognitionConfig),
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct StreamingRecognitionConfig {
        #[prost(message, optional, tag = "1")]
        pub config: Option<RecognitionConfig>,
        #[prost(message, optional, tag = "2")]
        pub streaming_features: Option<StreamingRecognitionFeatures>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct StreamingRecognitionFeatures {
        #[prost(bool, tag = "1")]
        pub enable_voice_activity_events: bool,
        #[prost(bool, tag = "2")]
        pub interim_results: bool,
        /// 1 standard, 2 supershort, 3 short.
        #[prost(int32, tag = "8")]
        pub endpointing_sensitivity: i32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct RecognitionConfig {
        #[prost(message, optional, tag = "2")]
        pub features: Option<RecognitionFeatures>,
        #[prost(message, optional, tag = "6")]
        pub adaptation: Option<SpeechAdaptation>,
        #[prost(oneof = "DecodingConfig", tags = "7, 8")]
        pub decoding_config: Option<DecodingConfig>,
        #[prost(string, tag = "9")]
        pub model: String,
        #[prost(string, repeated, tag = "10")]
        pub language_codes: Vec<String>,
    }

    #[derive(Clone, Copy, PartialEq, Oneof)]
    pub enum DecodingConfig {
        #[prost(message, tag = "7")]
        Auto(AutoDetectDecodingConfig),
        #[prost(message, tag = "8")]
        Explicit(ExplicitDecodingConfig),
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct AutoDetectDecodingConfig {}

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct ExplicitDecodingConfig {
        /// 1 linear16, 2 mulaw, 3 alaw, 7 mp3, 8 Ogg/Opus.
        #[prost(int32, tag = "1")]
        pub encoding: i32,
        #[prost(int32, tag = "2")]
        pub sample_rate_hertz: i32,
        #[prost(int32, tag = "3")]
        pub audio_channel_count: i32,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct RecognitionFeatures {
        #[prost(bool, tag = "2")]
        pub enable_word_time_offsets: bool,
        #[prost(bool, tag = "3")]
        pub enable_word_confidence: bool,
        #[prost(bool, tag = "4")]
        pub enable_automatic_punctuation: bool,
        #[prost(message, optional, tag = "9")]
        pub diarization_config: Option<SpeakerDiarizationConfig>,
        #[prost(int32, tag = "16")]
        pub max_alternatives: i32,
        /// 1 is a recognition for each channel.
        #[prost(int32, tag = "17")]
        pub multi_channel_mode: i32,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct SpeakerDiarizationConfig {
        #[prost(int32, tag = "2")]
        pub min_speaker_count: i32,
        #[prost(int32, tag = "3")]
        pub max_speaker_count: i32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct SpeechAdaptation {
        #[prost(message, repeated, tag = "1")]
        pub phrase_sets: Vec<AdaptationPhraseSet>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct AdaptationPhraseSet {
        #[prost(message, optional, tag = "2")]
        pub inline_phrase_set: Option<PhraseSet>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct PhraseSet {
        #[prost(message, repeated, tag = "3")]
        pub phrases: Vec<Phrase>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Phrase {
        #[prost(string, tag = "1")]
        pub value: String,
        #[prost(float, tag = "2")]
        pub boost: f32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct StreamingRecognizeResponse {
        #[prost(enumeration = "SpeechEventType", tag = "3")]
        pub speech_event_type: i32,
        #[prost(message, optional, tag = "5")]
        pub metadata: Option<RecognitionResponseMetadata>,
        #[prost(message, repeated, tag = "6")]
        pub results: Vec<StreamingRecognitionResult>,
        #[prost(message, optional, tag = "7")]
        pub speech_event_offset: Option<Duration>,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
    #[repr(i32)]
    pub enum SpeechEventType {
        Unspecified = 0,
        EndOfSingleUtterance = 1,
        SpeechActivityBegin = 2,
        SpeechActivityEnd = 3,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct RecognitionResponseMetadata {
        #[prost(message, optional, tag = "6")]
        pub total_billed_duration: Option<Duration>,
        #[prost(string, tag = "9")]
        pub request_id: String,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct StreamingRecognitionResult {
        #[prost(message, repeated, tag = "1")]
        pub alternatives: Vec<SpeechRecognitionAlternative>,
        #[prost(bool, tag = "2")]
        pub is_final: bool,
        #[prost(float, tag = "3")]
        pub stability: f32,
        #[prost(message, optional, tag = "4")]
        pub result_end_offset: Option<Duration>,
        #[prost(int32, tag = "5")]
        pub channel_tag: i32,
        #[prost(string, tag = "6")]
        pub language_code: String,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct SpeechRecognitionAlternative {
        #[prost(string, tag = "1")]
        pub transcript: String,
        #[prost(float, tag = "2")]
        pub confidence: f32,
        #[prost(message, repeated, tag = "3")]
        pub words: Vec<WordInfo>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct WordInfo {
        #[prost(message, optional, tag = "1")]
        pub start_offset: Option<Duration>,
        #[prost(message, optional, tag = "2")]
        pub end_offset: Option<Duration>,
        #[prost(string, tag = "3")]
        pub word: String,
        #[prost(float, tag = "4")]
        pub confidence: f32,
        #[prost(string, tag = "6")]
        pub speaker_label: String,
    }
}

/// The requests and answers of synthesis.
pub mod texttospeech {
    use super::{Message, Oneof};

    #[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
    #[repr(i32)]
    pub enum AudioEncoding {
        Unspecified = 0,
        Linear16 = 1,
        Mp3 = 2,
        OggOpus = 3,
        Mulaw = 5,
        Alaw = 6,
        Pcm = 7,
        M4a = 8,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct StreamingSynthesizeRequest {
        #[prost(oneof = "Request", tags = "1, 2")]
        pub request: Option<Request>,
    }

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Request {
        #[prost(message, tag = "1")]
        StreamingConfig(StreamingSynthesizeConfig),
        #[prost(message, tag = "2")]
        Input(StreamingSynthesisInput),
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct StreamingSynthesizeConfig {
        #[prost(message, optional, tag = "1")]
        pub voice: Option<VoiceSelectionParams>,
        #[prost(message, optional, tag = "4")]
        pub streaming_audio_config: Option<StreamingAudioConfig>,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct StreamingAudioConfig {
        #[prost(enumeration = "AudioEncoding", tag = "1")]
        pub audio_encoding: i32,
        #[prost(int32, tag = "2")]
        pub sample_rate_hertz: i32,
        #[prost(double, tag = "3")]
        pub speaking_rate: f64,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct StreamingSynthesisInput {
        #[prost(oneof = "StreamingInputSource", tags = "1, 5")]
        pub input_source: Option<StreamingInputSource>,
    }

    #[derive(Clone, PartialEq, Oneof)]
    pub enum StreamingInputSource {
        #[prost(string, tag = "1")]
        Text(String),
        #[prost(string, tag = "5")]
        Markup(String),
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct StreamingSynthesizeResponse {
        #[prost(bytes = "bytes", tag = "1")]
        pub audio_content: bytes::Bytes,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct SynthesizeSpeechRequest {
        #[prost(message, optional, tag = "1")]
        pub input: Option<SynthesisInput>,
        #[prost(message, optional, tag = "2")]
        pub voice: Option<VoiceSelectionParams>,
        #[prost(message, optional, tag = "3")]
        pub audio_config: Option<AudioConfig>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct SynthesizeSpeechResponse {
        #[prost(bytes = "bytes", tag = "1")]
        pub audio_content: bytes::Bytes,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct SynthesisInput {
        #[prost(oneof = "InputSource", tags = "1, 2, 5")]
        pub input_source: Option<InputSource>,
    }

    #[derive(Clone, PartialEq, Oneof)]
    pub enum InputSource {
        #[prost(string, tag = "1")]
        Text(String),
        #[prost(string, tag = "2")]
        Ssml(String),
        #[prost(string, tag = "5")]
        Markup(String),
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct VoiceSelectionParams {
        #[prost(string, tag = "1")]
        pub language_code: String,
        #[prost(string, tag = "2")]
        pub name: String,
        #[prost(string, tag = "6")]
        pub model_name: String,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct AudioConfig {
        #[prost(enumeration = "AudioEncoding", tag = "1")]
        pub audio_encoding: i32,
        #[prost(double, tag = "2")]
        pub speaking_rate: f64,
        #[prost(double, tag = "3")]
        pub pitch: f64,
        #[prost(double, tag = "4")]
        pub volume_gain_db: f64,
        #[prost(int32, tag = "5")]
        pub sample_rate_hertz: i32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ListVoicesRequest {
        #[prost(string, tag = "1")]
        pub language_code: String,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ListVoicesResponse {
        #[prost(message, repeated, tag = "1")]
        pub voices: Vec<Voice>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Voice {
        #[prost(string, repeated, tag = "1")]
        pub language_codes: Vec<String>,
        #[prost(string, tag = "2")]
        pub name: String,
        #[prost(enumeration = "SsmlVoiceGender", tag = "3")]
        pub ssml_gender: i32,
        #[prost(int32, tag = "4")]
        pub natural_sample_rate_hertz: i32,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
    #[repr(i32)]
    pub enum SsmlVoiceGender {
        Unspecified = 0,
        Male = 1,
        Female = 2,
        Neutral = 3,
    }
}

/// What an error says beside its code and message: the trailer `grpc-status-details-bin`.
pub mod rpc {
    use super::{Duration, Message};

    #[derive(Clone, PartialEq, Message)]
    pub struct Status {
        #[prost(int32, tag = "1")]
        pub code: i32,
        #[prost(string, tag = "2")]
        pub message: String,
        #[prost(message, repeated, tag = "3")]
        pub details: Vec<Any>,
    }

    /// `google.protobuf.Any`.
    #[derive(Clone, PartialEq, Message)]
    pub struct Any {
        #[prost(string, tag = "1")]
        pub type_url: String,
        #[prost(bytes = "vec", tag = "2")]
        pub value: Vec<u8>,
    }

    impl Any {
        /// The URL of a type of `google.rpc`.
        pub fn new(name: &str, message: &impl Message) -> Self {
            Self {
                type_url: format!("type.googleapis.com/google.rpc.{name}"),
                value: message.encode_to_vec(),
            }
        }
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ErrorInfo {
        #[prost(string, tag = "1")]
        pub reason: String,
        #[prost(string, tag = "2")]
        pub domain: String,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct RetryInfo {
        #[prost(message, optional, tag = "1")]
        pub retry_delay: Option<Duration>,
    }
}
