//! Recognition of streams and of whole files by Speech-to-Text v2 and v1: its validation, its limits and its results. The
//! versions differ in models, limits and the wording of errors; messages of v1 come and go as those of v2.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tonic::{Status, Streaming};

use super::link::Answers;
use super::messages::{RecognizeRequest, RecognizeResponse, SpeechRecognitionResult};
use crate::clock::Timer;
use crate::engine::{EngineError, Heard, Listening, Recogniser, announced};
use crate::visit::Visit;
use vivavoce_audio::{AudioFormat, Encoding, SampleRate};
use vivavoce_providers::google::wire::speech::{
    DecodingConfig, RecognitionConfig, RecognitionFeatures, RecognitionResponseMetadata, Request,
    SpeechEventType, SpeechRecognitionAlternative, StreamingRecognitionConfig,
    StreamingRecognitionFeatures, StreamingRecognitionResult, StreamingRecognizeRequest,
    StreamingRecognizeResponse, WordInfo,
};
use vivavoce_seams::Transcript;

pub(super) type Question = StreamingRecognizeRequest;
pub(super) type Answer = StreamingRecognizeResponse;

/// The most bytes of sound in a message of v2.
const MAX_CHUNK_BYTES: usize = 25_600;
/// The most bytes of a message.
pub(super) const MAX_REQUEST_BYTES: usize = 10 << 20;
/// How long a file may last that is sent as one message.
const LONGEST_FILE: Duration = Duration::from_mins(1);
/// Languages of v1 beside the first.
const MAX_ALTERNATIVES: usize = 3;
/// Models of v1.
const MODELS_V1: &[&str] = &[
    "",
    "default",
    "latest_long",
    "latest_short",
    "command_and_search",
    "phone_call",
    "video",
    "telephony",
    "telephony_short",
    "medical_conversation",
    "medical_dictation",
];
/// Models of v2, and whether each is everywhere.
const MODELS: &[(&str, bool)] = &[
    ("chirp_3", false),
    ("chirp_2", false),
    ("chirp", false),
    ("long", true),
    ("short", true),
    ("latest_long", true),
    ("latest_short", true),
    ("telephony", true),
    ("telephony_short", true),
];
/// Sensitivities of endpointing.
const SUPERSHORT: i32 = 2;
const SHORT: i32 = 3;
const MALORDERED: &str =
    "Malordered Data Received. Send exactly one config, followed by audio data.";

/// Which interface a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V2,
}

impl Version {
    /// How long a client may send nothing: the shortest that was reported.
    const fn patience(self) -> Duration {
        match self {
            Self::V1 => Duration::from_secs(10),
            Self::V2 => Duration::from_secs(5),
        }
    }

    fn impatient(self) -> Status {
        match self {
            Self::V1 => Status::out_of_range(
                "Audio Timeout Error: Long duration elapsed without audio. Audio should be sent close to real time.",
            ),
            Self::V2 => {
                Status::aborted("Stream timed out after receiving no more client requests.")
            }
        }
    }

    /// How long a stream may last.
    const fn longest(self) -> Duration {
        match self {
            Self::V1 => Duration::from_secs(305),
            Self::V2 => Duration::from_mins(5),
        }
    }

    fn too_long(self) -> Status {
        match self {
            Self::V1 => {
                Status::out_of_range("Exceeded maximum allowed stream duration of 305 seconds.")
            }
            Self::V2 => Status::aborted("Max duration of 5 minutes reached for stream."),
        }
    }

    fn file_too_long(self) -> Status {
        Status::invalid_argument(match self {
            Self::V1 => {
                "Sync input too long. For audio longer than 1 min use LongRunningRecognize with a 'uri' parameter."
            }
            Self::V2 => "Audio can be of a maximum of 60 seconds.",
        })
    }
}

/// Answers one stream.
pub(super) async fn converse<Q, A>(
    version: Version,
    visit: Visit,
    questions: Streaming<Q>,
    answers: Answers<A>,
) where
    Q: Message + Into<Question>,
    A: From<Answer>,
{
    let client = Client {
        version,
        idle: visit.timer(version.patience()),
        visit,
        questions,
    };
    if let Err(status) = recognise(client, &answers).await {
        // The client may have gone.
        let _ = answers.send(Err(status)).await;
    }
}

/// Answers a whole file.
pub(super) async fn whole(
    version: Version,
    visit: &Visit,
    question: RecognizeRequest,
) -> Result<RecognizeResponse, Status> {
    visit.received(question.encoded_len());
    let RecognizeRequest {
        config,
        recognizer,
        content,
        uri,
    } = question;
    visit.asked(format!("{config:?}"));
    let config =
        config.ok_or_else(|| Status::invalid_argument("Invalid value for config: must be set."))?;
    let wishes = Wishes::new(version, &recognizer, &config, None)?;
    if !uri.is_empty() {
        return Err(Status::not_found("Requested entity was not found."));
    }
    if content.is_empty() {
        return Err(Status::invalid_argument("RecognitionAudio not set."));
    }
    let heard = visit.hear(wishes.format(&content)?, &content).await;
    let heard = heard.map_err(|error| undecodable(&error))?;
    if heard.duration > LONGEST_FILE {
        return Err(version.file_too_long());
    }
    let results = heard.parts.iter().enumerate().map(|(index, part)| {
        let result = wishes.last(part, index > 0);
        SpeechRecognitionResult {
            alternatives: result.alternatives,
            result_end_offset: result.result_end_offset,
            language_code: result.language_code,
        }
    });
    Ok(RecognizeResponse {
        results: results.collect(),
        metadata: Some(RecognitionResponseMetadata {
            request_id: visit.request_id().to_string(),
            // Every second that was begun.
            total_billed_duration: Some(
                Duration::from_secs(heard.duration.as_millis().div_ceil(1_000) as u64).into(),
            ),
        }),
    })
}

fn undecodable(error: &EngineError) -> Status {
    Status::invalid_argument(format!(
        "Audio data does not appear to be in a supported encoding: {error}"
    ))
}

struct Client<Q> {
    version: Version,
    visit: Visit,
    questions: Streaming<Q>,
    idle: Timer,
}

impl<Q: Message + Into<Question>> Client<Q> {
    /// The next message; `None` after the half-close. May be dropped and called again.
    async fn next(&mut self) -> Result<Option<Question>, Status> {
        tokio::select! {
            question = self.questions.message() => {
                self.idle.restart();
                let question = question?;
                if let Some(question) = &question {
                    self.visit.received(question.encoded_len());
                }
                Ok(question.map(Into::into))
            }
            () = self.idle.expired() => Err(self.version.impatient()),
        }
    }

    /// The sound of the next message; `None` after the half-close.
    async fn sound(&mut self) -> Result<Option<Bytes>, Status> {
        match self.next().await? {
            None => Ok(None),
            Some(Question {
                request: Some(Request::Audio(audio)),
                ..
            }) if self.version == Version::V2 && audio.len() > MAX_CHUNK_BYTES => {
                Err(Status::invalid_argument(format!(
                    "Audio chunk can be of a maximum of {MAX_CHUNK_BYTES} bytes. Received audio chunk of {} bytes.",
                    audio.len()
                )))
            }
            Some(Question {
                request: Some(Request::Audio(audio)),
                ..
            }) => Ok(Some(audio)),
            Some(_) => Err(Status::invalid_argument(MALORDERED)),
        }
    }
}

async fn recognise<Q, A>(mut client: Client<Q>, answers: &Answers<A>) -> Result<(), Status>
where
    Q: Message + Into<Question>,
    A: From<Answer>,
{
    let version = client.version;
    let limit = client.visit.stream_limit(Some(version.longest()));
    let mut limit = pin!(limit.expired());
    let wishes = match client.next().await? {
        Some(first) => {
            client.visit.asked(format!("{first:?}"));
            Wishes::of(version, first)?
        }
        None => return Err(Status::invalid_argument(MALORDERED)),
    };
    let Some(first) = client.sound().await? else {
        return Ok(());
    };
    let listening = wishes.listening(&first)?;
    let undecodable = |error| undecodable(&error);
    let mut recogniser: Recogniser = client.visit.listen(listening).await.map_err(undecodable)?;
    recogniser.push(&first).await.map_err(undecodable)?;
    let mut open = true;
    let mut said_something = false;
    loop {
        // A stream without time left hears nothing, however soon it could have.
        tokio::select! {
            biased;
            () = &mut limit => {
                return Err(version.too_long());
            }
            heard = recogniser.next() => {
                let Some(heard) = heard else { return Ok(()) };
                let heard = heard.map_err(|_| Status::internal("Internal error encountered."))?;
                let Some(mut answer) = wishes.answer(&client.visit, heard, &mut said_something) else {
                    continue;
                };
                // v1 tells it at the end.
                if let (Version::V1, true, Some(metadata)) = (version, open, &mut answer.metadata) {
                    metadata.total_billed_duration = None;
                }
                if answers.send(Ok(answer.into())).await.is_err() {
                    return Ok(());
                }
            }
            sound = client.sound(), if open => match sound? {
                Some(sound) => recogniser.push(&sound).await.map_err(undecodable)?,
                None => {
                    open = false;
                    recogniser.finish().await;
                }
            },
        }
    }
}

/// What the first message asks for.
struct Wishes {
    version: Version,
    decoding: DecodingConfig,
    language: String,
    features: RecognitionFeatures,
    streaming: StreamingRecognitionFeatures,
}

impl Wishes {
    /// Of the first message of a stream.
    fn of(version: Version, first: Question) -> Result<Self, Status> {
        let Some(Request::StreamingConfig(StreamingRecognitionConfig {
            config: Some(config),
            streaming_features,
        })) = first.request
        else {
            return Err(Status::invalid_argument(MALORDERED));
        };
        Self::new(version, &first.recognizer, &config, streaming_features)
    }

    fn new(
        version: Version,
        recognizer: &str,
        config: &RecognitionConfig,
        streaming: Option<StreamingRecognitionFeatures>,
    ) -> Result<Self, Status> {
        let invalid = Status::invalid_argument;
        match version {
            Version::V1 => check_v1(config)?,
            Version::V2 => check_model(config, &location(recognizer)?)?,
        }
        let features = config.features.unwrap_or_default();
        if config.model == "chirp_3" && features.enable_word_time_offsets {
            return Err(invalid(
                "Recognizer does not support feature: word_timestamps",
            ));
        }
        let decoding = config
            .decoding_config
            .ok_or_else(|| invalid("Invalid value for decoding_config: must be set."))?;
        let language = config.language_codes.first();
        Ok(Self {
            version,
            decoding,
            language: language.map(|code| code.to_lowercase()).unwrap_or_default(),
            features,
            streaming: streaming.unwrap_or_default(),
        })
    }

    fn listening(&self, first: &[u8]) -> Result<Listening, Status> {
        Ok(Listening {
            format: self.format(first)?,
            endpointing: Some(match self.streaming.endpointing_sensitivity {
                SUPERSHORT => Duration::from_millis(300),
                SHORT => Duration::from_millis(500),
                _ => Duration::from_millis(800),
            }),
        })
    }

    /// The format of the sound, which begins like this.
    fn format(&self, first: &[u8]) -> Result<AudioFormat, Status> {
        let invalid = |problem: String| Status::invalid_argument(problem);
        match self.decoding {
            DecodingConfig::Auto(_) => announced(first).ok_or_else(|| {
                let problem = "Audio data does not appear to be in a supported encoding. If you believe this to be incorrect, try explicitly specifying the decoding parameters.";
                invalid(problem.to_owned())
            }),
            // Of v1, a header in front of samples is read.
            DecodingConfig::Explicit(explicit)
                if self.version == Version::V1
                    && explicit.encoding == 1
                    && first.starts_with(b"RIFF") =>
            {
                Ok(AudioFormat::mono(Encoding::Wav, SampleRate::HZ_16000))
            }
            DecodingConfig::Explicit(explicit) => {
                let encoding = match explicit.encoding {
                    1 => Encoding::Linear16,
                    2 => Encoding::Mulaw,
                    3 => Encoding::Alaw,
                    7 => Encoding::Mp3,
                    8 => Encoding::OggOpus,
                    other => return Err(invalid(format!("Invalid encoding: {other}."))),
                };
                let hertz = explicit.sample_rate_hertz;
                let rate = u64::try_from(hertz)
                    .ok()
                    .filter(|hz| (8_000..=48_000).contains(hz))
                    .and_then(|hz| SampleRate::new(hz).ok())
                    .ok_or_else(|| {
                        invalid(format!(
                            "Invalid sample_rate_hertz: {hertz}. It must be between 8000 and 48000."
                        ))
                    })?;
                if !(1..=2).contains(&explicit.audio_channel_count) {
                    let problem = format!(
                        "Invalid audio_channel_count: {}.",
                        explicit.audio_channel_count
                    );
                    return Err(invalid(problem));
                }
                let mut format = AudioFormat::mono(encoding, rate);
                if explicit.audio_channel_count == 2 {
                    format.layout.channels = vivavoce_audio::Channels::Stereo;
                }
                Ok(format)
            }
        }
    }

    fn answer(&self, visit: &Visit, heard: Heard, said_something: &mut bool) -> Option<Answer> {
        let activity = |of: SpeechEventType, at: Duration| {
            self.streaming.enable_voice_activity_events.then(|| Answer {
                speech_event_type: of.into(),
                speech_event_offset: Some(at.into()),
                ..Answer::default()
            })
        };
        match heard {
            Heard::SpeechStarted { at } => activity(SpeechEventType::SpeechActivityBegin, at),
            Heard::EndOfSpeech { at } => activity(SpeechEventType::SpeechActivityEnd, at),
            Heard::Partial(heard) => self.streaming.interim_results.then(|| Answer {
                results: self.interim(&heard, *said_something),
                ..Answer::default()
            }),
            Heard::Final(heard) => {
                let metadata = RecognitionResponseMetadata {
                    request_id: visit.request_id().to_string(),
                    total_billed_duration: end(&heard),
                };
                let results = vec![self.last(&heard, *said_something)];
                *said_something = true;
                Some(Answer {
                    results,
                    metadata: Some(metadata),
                    ..Answer::default()
                })
            }
            Heard::Finalized { .. } => None,
        }
    }

    /// What will hardly change, and the last word, which may.
    fn interim(&self, heard: &Transcript, goes_on: bool) -> Vec<StreamingRecognitionResult> {
        let text = heard.text.as_str();
        let (stable, tail) = text.rsplit_once(' ').unwrap_or(("", text));
        let result = |text: String, stability| StreamingRecognitionResult {
            alternatives: vec![SpeechRecognitionAlternative {
                transcript: text,
                ..SpeechRecognitionAlternative::default()
            }],
            stability,
            result_end_offset: end(heard),
            language_code: self.language.clone(),
            ..StreamingRecognitionResult::default()
        };
        let space = if goes_on { " " } else { "" };
        if stable.is_empty() {
            vec![result(format!("{space}{tail}"), 0.01)]
        } else {
            vec![
                result(format!("{space}{stable}"), 0.9),
                result(format!(" {tail}"), 0.01),
            ]
        }
    }

    fn last(&self, heard: &Transcript, goes_on: bool) -> StreamingRecognitionResult {
        let offset = |seconds: f64| Duration::try_from_secs_f64(seconds).ok().map(Into::into);
        let words = heard.words.iter().map(|word| WordInfo {
            word: word.word.clone(),
            start_offset: offset(word.start).filter(|_| self.features.enable_word_time_offsets),
            end_offset: offset(word.end).filter(|_| self.features.enable_word_time_offsets),
            confidence: word
                .confidence
                .filter(|_| self.features.enable_word_confidence)
                .unwrap_or_default(),
            speaker_label: String::new(),
        });
        let wants_words =
            self.features.enable_word_time_offsets || self.features.enable_word_confidence;
        StreamingRecognitionResult {
            alternatives: vec![SpeechRecognitionAlternative {
                transcript: format!("{}{}", if goes_on { " " } else { "" }, heard.text),
                confidence: heard.confidence.unwrap_or(0.9),
                words: words.filter(|_| wants_words).collect(),
            }],
            is_final: true,
            result_end_offset: end(heard),
            language_code: self.language.clone(),
            ..StreamingRecognitionResult::default()
        }
    }
}

fn end(heard: &Transcript) -> Option<vivavoce_providers::google::wire::Duration> {
    let last = heard.words.last()?;
    Duration::try_from_secs_f64(last.end).ok().map(Into::into)
}

/// The location of `projects/…/locations/…/recognizers/_`.
fn location(recognizer: &str) -> Result<String, Status> {
    let parts: Vec<_> = recognizer.split('/').collect();
    match parts[..] {
        [
            "projects",
            project,
            "locations",
            location,
            "recognizers",
            id,
        ] if !project.is_empty() && !location.is_empty() => {
            if id == "_" {
                Ok(location.to_owned())
            } else {
                Err(Status::not_found(format!(
                    "Unable to find Recognizer {id} from project {project} in location {location}."
                )))
            }
        }
        _ => Err(Status::invalid_argument(
            "Invalid resource field value in the request.",
        )),
    }
}

fn check_model(config: &RecognitionConfig, location: &str) -> Result<(), Status> {
    let model = &config.model;
    let known = MODELS.iter().find(|(known, _)| known == model);
    if !known.is_some_and(|(_, everywhere)| *everywhere || location != "global") {
        return Err(Status::invalid_argument(format!(
            "The model \"{model}\" does not exist in the location named \"{location}\"."
        )));
    }
    if config.language_codes.is_empty() {
        return Err(Status::invalid_argument(
            "Invalid value for language_codes: at least one language code is required.",
        ));
    }
    match unknown_language(config) {
        Some(code) => Err(Status::invalid_argument(format!(
            "The language \"{code}\" is not supported by the model \"{model}\" in the location named \"{location}\"."
        ))),
        None => Ok(()),
    }
}

fn check_v1(config: &RecognitionConfig) -> Result<(), Status> {
    let invalid = |problem: &str| {
        Err(Status::invalid_argument(format!(
            "Invalid recognition 'config': {problem}"
        )))
    };
    let language = config.language_codes.first().map_or("", String::as_str);
    if language.is_empty() {
        return invalid("language_code is required.");
    }
    if config.language_codes.len() > 1 + MAX_ALTERNATIVES {
        return invalid("Only up to 3 alternative language codes are supported.");
    }
    if unknown_language(config).is_some() {
        return invalid("bad language code.");
    }
    if !MODELS_V1.contains(&config.model.as_str()) {
        return invalid(&format!(
            "The requested model is currently not supported for language : {language}."
        ));
    }
    match config.decoding_config {
        Some(DecodingConfig::Explicit(explicit)) if explicit.encoding == 0 => {
            invalid("bad encoding..")
        }
        Some(DecodingConfig::Explicit(explicit))
            if !(8_000..=48_000).contains(&explicit.sample_rate_hertz) =>
        {
            invalid("bad sample rate hertz.")
        }
        _ => Ok(()),
    }
}

/// The first of the languages that is none.
fn unknown_language(config: &RecognitionConfig) -> Option<&String> {
    let is_language = |code: &str| {
        let primary = code.split('-').next().unwrap_or_default();
        (2..=3).contains(&primary.len())
            && code
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    config.language_codes.iter().find(|code| !is_language(code))
}

#[cfg(test)]
mod tests {
    use super::super::messages::{RecognitionConfigV1, StreamingRecognizeResponseV1};
    use super::*;

    fn v1(config: RecognitionConfigV1) -> Result<Wishes, Status> {
        Wishes::new(Version::V1, "", &config.into(), None)
    }

    fn latest_long() -> RecognitionConfigV1 {
        RecognitionConfigV1 {
            encoding: 1,
            sample_rate_hertz: 16_000,
            language_code: "en-US".to_owned(),
            enable_word_time_offsets: true,
            model: "latest_long".to_owned(),
            ..RecognitionConfigV1::default()
        }
    }

    #[test]
    fn what_v1_is_asked_is_understood() {
        let wishes = v1(latest_long()).unwrap();
        let format = wishes.format(&[0; 320]).unwrap();
        assert_eq!(
            format,
            AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000)
        );
        assert!(wishes.features.enable_word_time_offsets);
        assert_eq!(wishes.language, "en-us");
        let with_header = wishes.format(b"RIFF....").unwrap();
        assert_eq!(with_header.encoding, Encoding::Wav);
        let mulaw = RecognitionConfigV1 {
            encoding: 3,
            sample_rate_hertz: 8_000,
            ..latest_long()
        };
        let format = v1(mulaw).unwrap().format(&[0; 160]).unwrap();
        assert_eq!(format.encoding, Encoding::Mulaw);
    }

    #[test]
    fn what_v1_refuses_is_refused() {
        for (config, problem) in [
            (
                RecognitionConfigV1 {
                    language_code: String::new(),
                    ..latest_long()
                },
                "language_code",
            ),
            (
                RecognitionConfigV1 {
                    model: "chirp_2".to_owned(),
                    ..latest_long()
                },
                "not supported for language",
            ),
            (
                RecognitionConfigV1 {
                    sample_rate_hertz: 0,
                    ..latest_long()
                },
                "sample rate",
            ),
            (
                RecognitionConfigV1 {
                    encoding: 7,
                    ..latest_long()
                },
                "encoding",
            ),
            (
                RecognitionConfigV1 {
                    alternative_language_codes: vec!["de-DE".to_owned(); 4],
                    ..latest_long()
                },
                "alternative",
            ),
        ] {
            let refused = v1(config).err().unwrap();
            assert!(refused.message().contains(problem), "{refused:?}");
        }
    }

    #[test]
    fn an_answer_of_v1_has_the_same_results_and_a_number_as_its_id() {
        let answer = Answer {
            metadata: Some(RecognitionResponseMetadata {
                request_id: uuid::Uuid::from_u128(7).to_string(),
                total_billed_duration: None,
            }),
            results: vec![StreamingRecognitionResult {
                is_final: true,
                ..StreamingRecognitionResult::default()
            }],
            ..Answer::default()
        };
        let told = StreamingRecognizeResponseV1::from(answer);
        assert_eq!((told.request_id, told.results[0].is_final), (7, true));
    }
}
