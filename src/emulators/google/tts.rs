//! Text-to-Speech v1: streaming and whole synthesis, and the list of voices.

use std::pin::pin;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::link::Answers;
use crate::azure::ssml::Ssml;
use crate::engine::EngineError;
use crate::speech::{Saying, Speech};
use crate::visit::Visit;
use vivavoce_audio::g711::Law;
use vivavoce_audio::wav::{self, DataLength, SampleFormat};
use vivavoce_audio::{AudioFormat, Encoding, Layout, SampleRate};
use vivavoce_core::sentences::spoken_lines;
use vivavoce_providers::google::wire::texttospeech::{
    AudioEncoding, InputSource, ListVoicesRequest, ListVoicesResponse, Request, SsmlVoiceGender,
    StreamingInputSource, StreamingSynthesizeConfig, StreamingSynthesizeRequest,
    StreamingSynthesizeResponse, SynthesizeSpeechRequest, SynthesizeSpeechResponse, Voice,
    VoiceSelectionParams,
};

pub(super) type Question = StreamingSynthesizeRequest;
pub(super) type Answer = StreamingSynthesizeResponse;

/// The longest text at once.
const MAX_TEXT_BYTES: usize = 5_000;
/// How long a client may send no text.
const IDLE: Duration = Duration::from_secs(5);
/// Pieces of text that may wait.
const TEXTS: usize = 64;
/// The family whose voices speak text as it comes.
const STREAMING: &str = "-Chirp3-HD-";

/// Languages, with the voices of each family.
const LANGUAGES: &[&str] = &["en-US", "en-GB", "de-DE", "fr-FR", "es-ES"];
const FAMILIES: &[(&str, SsmlVoiceGender)] = &[
    ("Chirp3-HD-Aoede", SsmlVoiceGender::Female),
    ("Chirp3-HD-Charon", SsmlVoiceGender::Male),
    ("Chirp3-HD-Kore", SsmlVoiceGender::Female),
    ("Chirp3-HD-Puck", SsmlVoiceGender::Male),
    ("Neural2-A", SsmlVoiceGender::Female),
    ("Wavenet-B", SsmlVoiceGender::Male),
    ("Standard-C", SsmlVoiceGender::Female),
];

/// The voices of a language, or all.
pub(super) fn voices(question: &ListVoicesRequest) -> ListVoicesResponse {
    let wanted = question.language_code.as_str();
    let of_language = |language: &&&str| {
        wanted.is_empty()
            || language.eq_ignore_ascii_case(wanted)
            || language.split('-').next() == Some(wanted)
    };
    let voices = LANGUAGES.iter().filter(of_language).flat_map(|language| {
        FAMILIES.iter().map(move |(name, gender)| Voice {
            language_codes: vec![(*language).to_owned()],
            name: format!("{language}-{name}"),
            ssml_gender: (*gender).into(),
            natural_sample_rate_hertz: 24_000,
        })
    });
    ListVoicesResponse {
        voices: voices.collect(),
    }
}

/// Refuses a voice that does not exist.
fn check_voice(voice: &VoiceSelectionParams) -> Result<(), Status> {
    let invalid = Status::invalid_argument;
    if voice.language_code.is_empty() {
        return Err(invalid(
            "Must provide language_code in VoiceSelectionParams.",
        ));
    }
    if voice.name.is_empty() || voice.model_name.starts_with("gemini") {
        return Ok(());
    }
    let known = voices(&ListVoicesRequest::default());
    let Some(known) = known.voices.iter().find(|known| known.name == voice.name) else {
        return Err(invalid(&format!(
            "Voice '{}' does not exist. Is it misspelled?",
            voice.name
        )));
    };
    if !known.language_codes.contains(&voice.language_code) {
        return Err(invalid(&format!(
            "Requested language code '{}' doesn't match the voice '{}''s language code '{}'. Either correct the language code or remove the voice name.",
            voice.language_code, voice.name, known.language_codes[0]
        )));
    }
    if !voice.model_name.is_empty() {
        return Err(invalid("The model name is not supported by this voice."));
    }
    Ok(())
}

fn rate_of_speech(asked: f64) -> Result<f64, Status> {
    if asked == 0.0 {
        Ok(1.0)
    } else if (0.25..=2.0).contains(&asked) {
        Ok(asked)
    } else {
        Err(Status::invalid_argument(format!(
            "Invalid speaking_rate: {asked}. It must be between 0.25 and 2.0."
        )))
    }
}

fn sample_rate(asked: i32) -> Result<SampleRate, Status> {
    let hz = if asked == 0 { 24_000 } else { asked };
    let rate = u64::try_from(hz)
        .ok()
        .filter(|hz| (8_000..=48_000).contains(hz));
    rate.and_then(|hz| SampleRate::new(hz).ok())
        .ok_or_else(|| Status::invalid_argument(format!("Invalid sample_rate_hertz: {asked}.")))
}

fn check_text(text: &str) -> Result<(), Status> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(Status::invalid_argument(
            "Either `input.text` or `input.ssml` is longer than the limit of 5000 bytes. This limit is different from quotas. To fix, reduce the byte length of the characters in this request, or consider using the Long Audio API.",
        ));
    }
    Ok(())
}

/// A failure of the engine, as whoever asked for the format is told.
fn failed(error: &EngineError) -> Status {
    match error {
        EngineError::Encode(error) => Status::invalid_argument(error.to_string()),
        _ => Status::internal("Internal error encountered."),
    }
}

/// Answers one call of streaming synthesis.
pub(super) async fn converse(
    visit: Visit,
    questions: Streaming<Question>,
    answers: Answers<Answer>,
) {
    if let Err(status) = stream(visit, questions, &answers).await {
        // The client may have gone.
        let _ = answers.send(Err(status)).await;
    }
}

fn streaming(first: Question) -> Result<Saying, Status> {
    let invalid = Status::invalid_argument;
    let Some(Request::StreamingConfig(StreamingSynthesizeConfig {
        voice,
        streaming_audio_config,
    })) = first.request
    else {
        return Err(invalid(
            "The first message must contain a streaming_config.",
        ));
    };
    let voice = voice.unwrap_or_default();
    check_voice(&voice)?;
    if !voice.name.contains(STREAMING) && !voice.model_name.starts_with("gemini") {
        return Err(invalid(
            "Currently, only Chirp 3: HD voices are supported for streaming synthesis.",
        ));
    }
    let audio = streaming_audio_config.unwrap_or_default();
    let encoding = match audio.audio_encoding() {
        AudioEncoding::Unspecified | AudioEncoding::Pcm => Encoding::Linear16,
        AudioEncoding::Mulaw => Encoding::Mulaw,
        AudioEncoding::Alaw => Encoding::Alaw,
        AudioEncoding::OggOpus => Encoding::OggOpus,
        _ => {
            return Err(invalid(
                "Unsupported audio encoding for streaming synthesis.",
            ));
        }
    };
    Ok(Saying {
        speaking_rate: rate_of_speech(audio.speaking_rate)?,
        format: AudioFormat::mono(encoding, sample_rate(audio.sample_rate_hertz)?),
    })
}

async fn stream(
    visit: Visit,
    mut questions: Streaming<Question>,
    answers: &Answers<Answer>,
) -> Result<(), Status> {
    let mut idle = visit.timer(IDLE);
    let late = || {
        Status::aborted(
            "Stream aborted due to long duration elapsed without input sent. Input must be sent continuously, at least every 5s seconds.",
        )
    };
    let first = tokio::select! {
        first = questions.message() => first?,
        () = idle.expired() => return Err(late()),
    };
    let first = first.unwrap_or_default();
    visit.asked(format!("{first:?}"));
    let saying = streaming(first)?;
    let limit = visit.stream_limit(None);
    let mut limit = pin!(limit.expired());
    let (texts, waiting) = mpsc::channel(TEXTS);
    let mut texts = Some(texts);
    let mut lines = spoken_lines(ReceiverStream::new(waiting).boxed());
    let mut speech: Option<Speech> = None;
    let mut said_bytes = 0;
    idle.restart();
    loop {
        let room = texts.as_ref().is_some_and(|texts| texts.capacity() > 0);
        // A stream without time left says nothing, however soon it could have.
        tokio::select! {
            biased;
            () = &mut limit => return Err(Status::aborted("Max duration of stream reached.")),
            question = questions.message(), if room => {
                idle.restart();
                match question? {
                    Some(question) => {
                        visit.received(prost::Message::encoded_len(&question));
                        let text = text_of(question)?;
                        if let Some(texts) = &texts {
                            // There is room.
                            let _ = texts.try_send(text);
                        }
                    }
                    None => texts = None,
                }
            }
            line = lines.next(), if speech.is_none() => match line {
                Some(line) => speech = Some(visit.say(&line, &saying).map_err(|error| failed(&error))?),
                None => return Ok(()),
            },
            piece = next(&mut speech), if speech.is_some() => match piece {
                None => speech = None,
                Some(piece) => {
                    let piece = piece.map_err(|error| failed(&error))?;
                    let audio = aligned(piece.audio, piece.start, said_bytes, saying.format.encoding);
                    said_bytes += audio.len();
                    if answers.send(Ok(Answer { audio_content: audio })).await.is_err() {
                        return Ok(());
                    }
                }
            },
            () = idle.expired(), if room => return Err(late()),
        }
    }
}

/// A sentence that was cut within its last sample must not shift the next one.
fn aligned(audio: Bytes, start: Duration, before: usize, encoding: Encoding) -> Bytes {
    if encoding != Encoding::Linear16 || !start.is_zero() || before.is_multiple_of(2) {
        return audio;
    }
    let mut padded = BytesMut::with_capacity(audio.len() + 1);
    padded.put_u8(0);
    padded.extend_from_slice(&audio);
    padded.freeze()
}

async fn next(speech: &mut Option<Speech>) -> Option<Result<crate::speech::Piece, EngineError>> {
    speech.as_mut()?.next().await
}

fn text_of(question: Question) -> Result<String, Status> {
    let Some(Request::Input(input)) = question.request else {
        return Err(Status::invalid_argument(
            "Only the first message may contain a streaming_config.",
        ));
    };
    let Some(StreamingInputSource::Text(text) | StreamingInputSource::Markup(text)) =
        input.input_source
    else {
        return Err(Status::invalid_argument("Input must be set."));
    };
    check_text(&text)?;
    Ok(text)
}

/// Says a whole text.
pub(super) async fn whole(
    visit: &Visit,
    question: SynthesizeSpeechRequest,
) -> Result<SynthesizeSpeechResponse, Status> {
    let invalid = Status::invalid_argument;
    let (voice, audio) = (&question.voice, &question.audio_config);
    visit.asked(format!("{voice:?} {audio:?}"));
    let voice = question.voice.unwrap_or_default();
    check_voice(&voice)?;
    let (text, prosody) = match question.input.and_then(|input| input.input_source) {
        Some(InputSource::Text(text) | InputSource::Markup(text)) => (text, 1.0),
        Some(InputSource::Ssml(document)) => {
            check_text(&document)?;
            visit.asked(document.as_str());
            let read = Ssml::read(&document);
            let ssml = read.map_err(|_| {
                invalid("Invalid SSML. Newer voices like Neural2 require valid SSML.")
            })?;
            (ssml.text, ssml.rate)
        }
        None => {
            return Err(invalid(
                "Request contains an invalid argument: input must be set.",
            ));
        }
    };
    if text.trim().is_empty() {
        return Err(invalid(
            "Request contains an invalid argument: input must not be empty.",
        ));
    }
    check_text(&text)?;
    let audio = question.audio_config.unwrap_or_default();
    if voice.name.contains(STREAMING) && audio.pitch != 0.0 {
        return Err(invalid(
            "This voice does not support pitch parameters at this time.",
        ));
    }
    let asked = audio.audio_encoding();
    let encoding = match asked {
        AudioEncoding::Pcm | AudioEncoding::Linear16 => Encoding::Linear16,
        AudioEncoding::Mp3 => Encoding::Mp3,
        AudioEncoding::OggOpus => Encoding::OggOpus,
        AudioEncoding::Mulaw => Encoding::Mulaw,
        AudioEncoding::Alaw => Encoding::Alaw,
        _ => return Err(invalid("Invalid audio_encoding.")),
    };
    let rate = sample_rate(audio.sample_rate_hertz)?;
    let saying = Saying {
        speaking_rate: (rate_of_speech(audio.speaking_rate)? * prosody).clamp(0.25, 2.0),
        format: AudioFormat::mono(encoding, rate),
    };
    let speech = visit.say(&text, &saying).map_err(|error| failed(&error))?;
    let said = speech.whole().await.map_err(|error| failed(&error))?.audio;
    let audio_content = match asked {
        AudioEncoding::Linear16 => with_header(SampleFormat::I16, rate, &said),
        AudioEncoding::Mulaw => with_header(SampleFormat::Companded(Law::Mu), rate, &said),
        AudioEncoding::Alaw => with_header(SampleFormat::Companded(Law::A), rate, &said),
        _ => said,
    };
    Ok(SynthesizeSpeechResponse { audio_content })
}

/// A WAV file: what Google makes of whole texts but for PCM, also in G.711.
fn with_header(samples: SampleFormat, rate: SampleRate, audio: &[u8]) -> Bytes {
    let length = u32::try_from(audio.len()).map_or(DataLength::Unknown, DataLength::Known);
    let header = wav::header_of(samples, Layout::mono(rate), length);
    [&wav::with_extension_size(header)[..], audio]
        .concat()
        .into()
}
