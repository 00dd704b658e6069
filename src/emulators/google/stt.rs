//! `StreamingRecognize` of Speech-to-Text v2: its validation, its limits and its results.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use tonic::{Status, Streaming};

use super::link::Answers;
use crate::clock::Timer;
use crate::engine::{Heard, Listening, Recogniser};
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

/// The most bytes of sound in a message.
const MAX_CHUNK_BYTES: usize = 25_600;
/// How long a client may send nothing: the shortest that was reported.
const IDLE: Duration = Duration::from_secs(5);
/// How long a stream may last.
const LONGEST: Duration = Duration::from_mins(5);
/// Models, and whether each is everywhere.
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

/// Answers one call.
pub(super) async fn converse(
    visit: Visit,
    questions: Streaming<Question>,
    answers: Answers<Answer>,
) {
    let client = Client {
        idle: visit.timer(IDLE),
        visit,
        questions,
    };
    if let Err(status) = recognise(client, &answers).await {
        // The client may have gone.
        let _ = answers.send(Err(status)).await;
    }
}

struct Client {
    visit: Visit,
    questions: Streaming<Question>,
    idle: Timer,
}

impl Client {
    /// The next message; `None` after the half-close. May be dropped and called again.
    async fn next(&mut self) -> Result<Option<Question>, Status> {
        tokio::select! {
            question = self.questions.message() => {
                self.idle.restart();
                let question = question?;
                if let Some(question) = &question {
                    self.visit.received(prost::Message::encoded_len(question));
                }
                Ok(question)
            }
            () = self.idle.expired() => Err(Status::aborted(
                "Stream timed out after receiving no more client requests.",
            )),
        }
    }

    /// The sound of the next message; `None` after the half-close.
    async fn sound(&mut self) -> Result<Option<Bytes>, Status> {
        match self.next().await? {
            None => Ok(None),
            Some(Question {
                request: Some(Request::Audio(audio)),
                ..
            }) if audio.len() > MAX_CHUNK_BYTES => Err(Status::invalid_argument(format!(
                "Audio chunk can be of a maximum of {MAX_CHUNK_BYTES} bytes. Received audio chunk of {} bytes.",
                audio.len()
            ))),
            Some(Question {
                request: Some(Request::Audio(audio)),
                ..
            }) => Ok(Some(audio)),
            Some(_) => Err(Status::invalid_argument(MALORDERED)),
        }
    }
}

async fn recognise(mut client: Client, answers: &Answers<Answer>) -> Result<(), Status> {
    let limit = client.visit.stream_limit(Some(LONGEST));
    let mut limit = pin!(limit.expired());
    let wishes = match client.next().await? {
        Some(first) => {
            client.visit.asked(format!("{first:?}"));
            Wishes::new(first)?
        }
        None => return Err(Status::invalid_argument(MALORDERED)),
    };
    let Some(first) = client.sound().await? else {
        return Ok(());
    };
    let listening = wishes.listening(&first)?;
    let undecodable = |error: crate::engine::EngineError| {
        Status::invalid_argument(format!(
            "Audio data does not appear to be in a supported encoding: {error}"
        ))
    };
    let mut recogniser: Recogniser = client.visit.listen(listening).await.map_err(undecodable)?;
    recogniser.push(&first).await.map_err(undecodable)?;
    let mut open = true;
    let mut said_something = false;
    loop {
        // A stream without time left hears nothing, however soon it could have.
        tokio::select! {
            biased;
            () = &mut limit => {
                return Err(Status::aborted("Max duration of 5 minutes reached for stream."));
            }
            heard = recogniser.next() => {
                let Some(heard) = heard else { return Ok(()) };
                let heard = heard.map_err(|_| Status::internal("Internal error encountered."))?;
                if let Some(answer) = wishes.answer(&client.visit, heard, &mut said_something)
                    && answers.send(Ok(answer)).await.is_err()
                {
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
    decoding: DecodingConfig,
    language: String,
    features: RecognitionFeatures,
    streaming: StreamingRecognitionFeatures,
}

impl Wishes {
    fn new(first: Question) -> Result<Self, Status> {
        let invalid = Status::invalid_argument;
        let location = location(&first.recognizer)?;
        let Some(Request::StreamingConfig(StreamingRecognitionConfig {
            config: Some(config),
            streaming_features,
        })) = first.request
        else {
            return Err(invalid(MALORDERED));
        };
        let features = config.features.unwrap_or_default();
        let streaming = streaming_features.unwrap_or_default();
        check_model(&config, &location)?;
        if config.model == "chirp_3" && features.enable_word_time_offsets {
            return Err(invalid(
                "Recognizer does not support feature: word_timestamps",
            ));
        }
        let decoding = config
            .decoding_config
            .ok_or_else(|| invalid("Invalid value for decoding_config: must be set."))?;
        Ok(Self {
            decoding,
            language: config.language_codes[0].to_lowercase(),
            features,
            streaming,
        })
    }

    fn listening(&self, first: &[u8]) -> Result<Listening, Status> {
        let invalid = |problem: String| Status::invalid_argument(problem);
        let format = match self.decoding {
            DecodingConfig::Auto(_) => {
                let encoding = match first {
                    [b'R', b'I', b'F', b'F', ..] => Encoding::Wav,
                    [b'O', b'g', b'g', b'S', ..] => Encoding::OggOpus,
                    [b'I', b'D', b'3', ..] | [0xff, 0xe0..=0xff, ..] => Encoding::Mp3,
                    _ => {
                        let problem = "Audio data does not appear to be in a supported encoding. If you believe this to be incorrect, try explicitly specifying the decoding parameters.";
                        return Err(invalid(problem.to_owned()));
                    }
                };
                AudioFormat::mono(encoding, SampleRate::HZ_16000)
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
                format
            }
        };
        Ok(Listening {
            format,
            endpointing: Some(match self.streaming.endpointing_sensitivity {
                SUPERSHORT => Duration::from_millis(300),
                SHORT => Duration::from_millis(500),
                _ => Duration::from_millis(800),
            }),
        })
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
    let is_language = |code: &String| {
        let primary = code.split('-').next().unwrap_or_default();
        (2..=3).contains(&primary.len())
            && code
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    match config.language_codes.iter().find(|code| !is_language(code)) {
        Some(code) => Err(Status::invalid_argument(format!(
            "The language \"{code}\" is not supported by the model \"{model}\" in the location named \"{location}\"."
        ))),
        None => Ok(()),
    }
}
