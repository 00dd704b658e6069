//! The messages of recognition that no provider of ours sends: those of v1, and whole files of both versions. Field numbers
//! are Google's; unlisted fields are ignored. What v1 says is read as what v2 would say; results are the same on the wire.

use bytes::Bytes;
use prost::{Message, Oneof};
use uuid::Uuid;

use vivavoce_providers::google::wire::Duration;
use vivavoce_providers::google::wire::speech::{
    self as v2, AutoDetectDecodingConfig, DecodingConfig, ExplicitDecodingConfig,
    RecognitionFeatures, RecognitionResponseMetadata, SpeechRecognitionAlternative,
    StreamingRecognitionFeatures, StreamingRecognitionResult,
};

/// A whole file, v2.
pub(super) const RECOGNIZE: &str = "/google.cloud.speech.v2.Speech/Recognize";
/// A stream, v1.
pub(super) const STREAMING_RECOGNIZE_V1: &str = "/google.cloud.speech.v1.Speech/StreamingRecognize";
/// A whole file, v1.
pub(super) const RECOGNIZE_V1: &str = "/google.cloud.speech.v1.Speech/Recognize";

/// Numbers of v1's encodings, and of the same in v2.
const ENCODINGS: [(i32, i32); 5] = [(1, 1), (3, 2), (6, 8), (8, 7), (9, 9)];

#[derive(Clone, PartialEq, Message)]
pub(super) struct RecognizeRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) config: Option<v2::RecognitionConfig>,
    #[prost(string, tag = "3")]
    pub(super) recognizer: String,
    #[prost(bytes = "bytes", tag = "5")]
    pub(super) content: Bytes,
    #[prost(string, tag = "6")]
    pub(super) uri: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RecognizeResponse {
    #[prost(message, optional, tag = "2")]
    pub(super) metadata: Option<RecognitionResponseMetadata>,
    #[prost(message, repeated, tag = "3")]
    pub(super) results: Vec<SpeechRecognitionResult>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SpeechRecognitionResult {
    #[prost(message, repeated, tag = "1")]
    pub(super) alternatives: Vec<SpeechRecognitionAlternative>,
    #[prost(message, optional, tag = "4")]
    pub(super) result_end_offset: Option<Duration>,
    #[prost(string, tag = "5")]
    pub(super) language_code: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StreamingRecognizeRequestV1 {
    #[prost(oneof = "RequestV1", tags = "1, 2")]
    pub(super) request: Option<RequestV1>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum RequestV1 {
    #[prost(message, tag = "1")]
    StreamingConfig(StreamingRecognitionConfigV1),
    #[prost(bytes = "bytes", tag = "2")]
    Audio(Bytes),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StreamingRecognitionConfigV1 {
    #[prost(message, optional, tag = "1")]
    pub(super) config: Option<RecognitionConfigV1>,
    #[prost(bool, tag = "3")]
    pub(super) interim_results: bool,
    #[prost(bool, tag = "5")]
    pub(super) enable_voice_activity_events: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RecognitionConfigV1 {
    #[prost(int32, tag = "1")]
    pub(super) encoding: i32,
    #[prost(int32, tag = "2")]
    pub(super) sample_rate_hertz: i32,
    #[prost(string, tag = "3")]
    pub(super) language_code: String,
    #[prost(int32, tag = "7")]
    pub(super) audio_channel_count: i32,
    #[prost(bool, tag = "8")]
    pub(super) enable_word_time_offsets: bool,
    #[prost(bool, tag = "11")]
    pub(super) enable_automatic_punctuation: bool,
    #[prost(string, tag = "13")]
    pub(super) model: String,
    #[prost(bool, tag = "15")]
    pub(super) enable_word_confidence: bool,
    #[prost(string, repeated, tag = "18")]
    pub(super) alternative_language_codes: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StreamingRecognizeResponseV1 {
    #[prost(message, repeated, tag = "2")]
    pub(super) results: Vec<StreamingRecognitionResult>,
    #[prost(int32, tag = "4")]
    pub(super) speech_event_type: i32,
    #[prost(message, optional, tag = "5")]
    pub(super) total_billed_time: Option<Duration>,
    #[prost(message, optional, tag = "8")]
    pub(super) speech_event_time: Option<Duration>,
    #[prost(int64, tag = "10")]
    pub(super) request_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RecognizeRequestV1 {
    #[prost(message, optional, tag = "1")]
    pub(super) config: Option<RecognitionConfigV1>,
    #[prost(message, optional, tag = "2")]
    pub(super) audio: Option<RecognitionAudioV1>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RecognitionAudioV1 {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) content: Bytes,
    #[prost(string, tag = "2")]
    pub(super) uri: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RecognizeResponseV1 {
    #[prost(message, repeated, tag = "2")]
    pub(super) results: Vec<SpeechRecognitionResult>,
    #[prost(message, optional, tag = "3")]
    pub(super) total_billed_time: Option<Duration>,
    #[prost(int64, tag = "8")]
    pub(super) request_id: i64,
}

impl From<RecognitionConfigV1> for v2::RecognitionConfig {
    fn from(config: RecognitionConfigV1) -> Self {
        let decoding = if config.encoding == 0 {
            DecodingConfig::Auto(AutoDetectDecodingConfig {})
        } else {
            let known = ENCODINGS.iter().find(|(v1, _)| *v1 == config.encoding);
            DecodingConfig::Explicit(ExplicitDecodingConfig {
                encoding: known.map_or(0, |(_, v2)| *v2),
                sample_rate_hertz: config.sample_rate_hertz,
                audio_channel_count: config.audio_channel_count.max(1),
            })
        };
        let mut language_codes = config.alternative_language_codes;
        language_codes.insert(0, config.language_code);
        Self {
            features: Some(RecognitionFeatures {
                enable_word_time_offsets: config.enable_word_time_offsets,
                enable_word_confidence: config.enable_word_confidence,
                enable_automatic_punctuation: config.enable_automatic_punctuation,
                ..RecognitionFeatures::default()
            }),
            decoding_config: Some(decoding),
            model: config.model,
            language_codes,
            ..Self::default()
        }
    }
}

impl From<StreamingRecognizeRequestV1> for v2::StreamingRecognizeRequest {
    fn from(question: StreamingRecognizeRequestV1) -> Self {
        let request = question.request.map(|request| match request {
            RequestV1::Audio(audio) => v2::Request::Audio(audio),
            RequestV1::StreamingConfig(config) => {
                v2::Request::StreamingConfig(v2::StreamingRecognitionConfig {
                    config: config.config.map(Into::into),
                    streaming_features: Some(StreamingRecognitionFeatures {
                        enable_voice_activity_events: config.enable_voice_activity_events,
                        interim_results: config.interim_results,
                        endpointing_sensitivity: 0,
                    }),
                })
            }
        });
        Self {
            recognizer: String::new(),
            request,
        }
    }
}

impl From<v2::StreamingRecognizeResponse> for StreamingRecognizeResponseV1 {
    fn from(answer: v2::StreamingRecognizeResponse) -> Self {
        let metadata = answer.metadata.unwrap_or_default();
        Self {
            results: answer.results,
            speech_event_type: answer.speech_event_type,
            total_billed_time: metadata.total_billed_duration,
            speech_event_time: answer.speech_event_offset,
            request_id: number(&metadata.request_id),
        }
    }
}

impl From<RecognizeRequestV1> for RecognizeRequest {
    fn from(question: RecognizeRequestV1) -> Self {
        let audio = question.audio.unwrap_or_default();
        Self {
            config: question.config.map(Into::into),
            recognizer: String::new(),
            content: audio.content,
            uri: audio.uri,
        }
    }
}

impl From<RecognizeResponse> for RecognizeResponseV1 {
    fn from(answer: RecognizeResponse) -> Self {
        let metadata = answer.metadata.unwrap_or_default();
        Self {
            results: answer.results,
            total_billed_time: metadata.total_billed_duration,
            request_id: number(&metadata.request_id),
        }
    }
}

/// The id of a request as v1 has it; nought where there is none.
fn number(request_id: &str) -> i64 {
    let id = Uuid::parse_str(request_id).unwrap_or_default();
    (id.as_u128() & u128::from(i64::MAX.unsigned_abs())) as i64
}
