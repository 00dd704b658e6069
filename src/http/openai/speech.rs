//! `POST /v1/audio/speech`: as `/speak`, sent as it is made.

use std::pin::Pin;

use actix_web::body::BodyStream;
use actix_web::http::header;
use actix_web::{HttpResponse, web};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{errors, invalid, models, name_ignored};
use crate::auth::Entered;
use crate::body::JsonBody;
use crate::error::{ApiError, Code};
use crate::speak::{Sound, as_it_comes, check_text, say};
use crate::state::AppState;
use vivavoce_audio::Layout;
use vivavoce_audio::flac::{FlacEncoder, FlacError};
use vivavoce_audio::linear16;
use vivavoce_synthesis::{SpeechConfig, SynthesisError, TtsConfig};

/// The provider whose voices these are.
pub(super) const OPENAI: &str = "openai";

/// OpenAI's own voices: whoever names one has to name something. At other providers they mean the voice of the model's name,
/// or the default.
const OPENAIS: [&str; 13] = [
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage",
    "shimmer", "verse",
];

/// Whether a name is of one of them.
pub(super) fn is_openais_voice(name: &str) -> bool {
    OPENAIS.contains(&name)
}

/// What the sound is written in: OpenAI's name, ours, and the media type.
const FORMATS: [(&str, &str, &str); 5] = [
    ("mp3", "mp3", "audio/mpeg"),
    ("opus", "ogg_opus", "audio/ogg"),
    ("wav", "wav", "audio/wav"),
    ("pcm", "linear16", "audio/pcm"),
    // It is written here, from samples.
    (FLAC, "linear16", "audio/flac"),
];
const FLAC: &str = "flac";

/// Body of `POST /v1/audio/speech`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeechRequest {
    model: Option<String>,
    input: Option<String>,
    voice: Option<Value>,
    instructions: Option<String>,
    response_format: Option<String>,
    speed: Option<f64>,
    stream_format: Option<String>,
}

/// How the sound is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    Bytes,
    Events,
}

type Chunks = Pin<Box<dyn Stream<Item = Result<Bytes, ApiError>>>>;

/// Returns the sound of a text.
pub async fn speak(
    Entered(access): Entered,
    state: web::Data<AppState>,
    JsonBody(request): JsonBody<SpeechRequest>,
) -> Result<HttpResponse, ApiError> {
    let work = state.begin_work()?;
    let model = models::wanted(&state, request.model.as_deref())?;
    let has_openais = model.provider == OPENAI;
    let (voice, ignores_voice) = voice(request.voice.as_ref(), model.voice, has_openais)?;
    let text = check_text("input", request.input)?;
    let (format, audio_format, media_type) = format(request.response_format.as_deref())?;
    let sending = sending(request.stream_format.as_deref())?;
    let speed = request.speed.unwrap_or(1.0);
    if !(0.25..=4.0).contains(&speed) {
        return Err(invalid("speed: must be from 0.25 to 4.0"));
    }
    let config = config(&json!({
        "provider": model.provider, "model": model.model, "voice_id": voice,
        "audio_format": audio_format, "speaking_rate": speed,
        // Long texts are read for longer than `/speak` waits by default.
        "request_timeout": 600,
    }))?;
    state.synthesizer.check(&config).map_err(in_openais_words)?;
    let said = say(&state, &config, (&text, None), &access, true).await?;
    let Sound::Coming(first, speech) = said.sound else {
        return Err(ApiError::new(
            Code::Internal,
            "the sound did not come in pieces",
        ));
    };
    let chunks = as_it_comes(first, speech, work);
    let chunks: Chunks = if format == FLAC {
        Box::pin(written_as_flac(chunks.boxed_local(), config.format.layout)?)
    } else {
        Box::pin(chunks)
    };
    let mut response = HttpResponse::Ok();
    let mut ignored = Vec::new();
    // How to speak, in words, is passed on to no voice.
    if request.instructions.is_some_and(|text| !text.is_empty()) {
        ignored.push("instructions");
    }
    if ignores_voice {
        ignored.push("voice");
    }
    name_ignored(&mut response, ignored);
    Ok(match sending {
        Sending::Bytes => {
            response.insert_header((header::CONTENT_TYPE, media_type));
            response.body(BodyStream::new(chunks))
        }
        Sending::Events => {
            response.insert_header((header::CONTENT_TYPE, "text/event-stream"));
            let characters = text.chars().count();
            response.body(BodyStream::new(events(chunks, characters)))
        }
    })
}

fn config(wire: &Value) -> Result<SpeechConfig, ApiError> {
    let config = TtsConfig::deserialize(wire);
    let config = config.map_err(|error| ApiError::new(Code::Internal, error.to_string()))?;
    config.check().map_err(|wrong| {
        let field = match wrong.field {
            "tts_config.speaking_rate" => "speed",
            "tts_config.voice_id" => "voice",
            _ => "model",
        };
        invalid(format!("{field}: {}", wrong.problem))
    })
}

/// A provider that only hears is not found here, as one that only speaks is not elsewhere.
fn in_openais_words(error: SynthesisError) -> ApiError {
    match error {
        SynthesisError::UnsupportedProvider { .. } => {
            ApiError::new(Code::ModelNotFound, format!("model: {error}"))
        }
        error => error.into(),
    }
}

/// The voice that is asked for, else that of the model's name; and whether the name that was given has no effect.
fn voice(
    asked: Option<&Value>,
    of_model: Option<String>,
    has_openais: bool,
) -> Result<(Option<String>, bool), ApiError> {
    let name = match asked {
        None | Some(Value::Null) => return Ok((of_model, false)),
        Some(Value::String(name)) => name,
        Some(Value::Object(voice)) => match voice.get("id") {
            Some(Value::String(id)) => id,
            _ => return Err(invalid("voice.id: must be a text")),
        },
        Some(_) => return Err(invalid("voice: must be a text, or an object with an id")),
    };
    let is_openais = is_openais_voice(name) && !has_openais;
    if name.is_empty() || is_openais {
        return Ok((of_model, is_openais));
    }
    Ok((Some(name.clone()), false))
}

fn format(name: Option<&str>) -> Result<(&'static str, &'static str, &'static str), ApiError> {
    let name = name.unwrap_or("mp3");
    if let Some(known) = FORMATS.iter().find(|(known, ..)| *known == name) {
        return Ok(*known);
    }
    let names = FORMATS.map(|(name, ..)| name).join(", ");
    let why = if name == "aac" {
        "aac is not written by this server"
    } else {
        "is none of OpenAI's formats"
    };
    Err(invalid(format!(
        "response_format: {why}; use one of {names}"
    )))
}

fn sending(name: Option<&str>) -> Result<Sending, ApiError> {
    match name {
        None | Some("audio") => Ok(Sending::Bytes),
        Some("sse") => Ok(Sending::Events),
        Some(_) => Err(invalid("stream_format: must be audio or sse")),
    }
}

/// `speech.audio.delta` for each piece, and `speech.audio.done`. A failure is the last event.
fn events(chunks: Chunks, characters: usize) -> impl Stream<Item = Result<Bytes, ApiError>> {
    let deltas = stream::unfold(Some(chunks), move |chunks| async move {
        let mut chunks = chunks?;
        let (event, rest) = match chunks.next().await {
            Some(Ok(chunk)) => {
                let audio = STANDARD.encode(&chunk);
                let delta = json!({"type": "speech.audio.delta", "audio": audio});
                (delta.to_string(), Some(chunks))
            }
            Some(Err(error)) => return Some((Ok(error_event(&error)), None)),
            None => {
                let usage = json!({
                    "input_tokens": characters, "output_tokens": 0, "total_tokens": characters,
                });
                let done = json!({"type": "speech.audio.done", "usage": usage});
                (done.to_string(), None)
            }
        };
        Some((Ok(event_bytes(&event)), rest))
    });
    Box::pin(deltas)
}

/// One event, as a stream of events has it.
pub(super) fn event_bytes(data: &str) -> Bytes {
    format!("data: {data}\n\n").into()
}

/// The last event of a stream that fails.
pub(super) fn error_event(error: &ApiError) -> Bytes {
    format!("event: error\ndata: {}\n\n", errors::text(error)).into()
}

/// What a stream of FLAC is made of while it is written.
struct Flac {
    chunks: Pin<Box<dyn Stream<Item = Result<Bytes, ApiError>>>>,
    encoder: Option<FlacEncoder>,
    /// Half a sample.
    rest: Option<u8>,
}

fn written_as_flac(
    chunks: Chunks,
    layout: Layout,
) -> Result<impl Stream<Item = Result<Bytes, ApiError>>, ApiError> {
    let (encoder, head) = FlacEncoder::start(layout).map_err(|error| unwritten(&error))?;
    let flac = Flac {
        chunks,
        encoder: Some(encoder),
        rest: None,
    };
    let body = stream::unfold(flac, |mut flac| async {
        loop {
            let written = flac.next().await?;
            if !matches!(&written, Ok(bytes) if bytes.is_empty()) {
                return Some((written, flac));
            }
        }
    });
    Ok(stream::once(async { Ok(Bytes::from(head)) }).chain(body))
}

impl Flac {
    /// What the next of the sound is written as; nothing after the end or a failure.
    async fn next(&mut self) -> Option<Result<Bytes, ApiError>> {
        let encoder = self.encoder.as_mut()?;
        let written = match self.chunks.next().await {
            Some(Ok(chunk)) => {
                let mut bytes: Vec<u8> = self.rest.take().into_iter().chain(chunk).collect();
                if bytes.len() % 2 == 1 {
                    self.rest = bytes.pop();
                }
                encoder.push(&linear16::samples(&bytes))
            }
            Some(Err(error)) => {
                self.encoder = None;
                return Some(Err(error));
            }
            None => self.encoder.take()?.finish(),
        };
        Some(written.map(Bytes::from).map_err(|error| unwritten(&error)))
    }
}

fn unwritten(error: &FlacError) -> ApiError {
    ApiError::new(Code::SynthesisFailed, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_voice_wins_and_openais_own_names_are_the_default() {
        let of_model = || Some("of the model".to_owned());
        for (asked, wanted, ignored) in [
            (json!("slt"), "slt", false),
            (json!({"id": "slt"}), "slt", false),
            (json!("alloy"), "of the model", true),
            (json!(""), "of the model", false),
            (Value::Null, "of the model", false),
        ] {
            let (voice, is_ignored) = voice(Some(&asked), of_model(), false).unwrap();
            assert_eq!(
                (voice.as_deref(), is_ignored),
                (Some(wanted), ignored),
                "{asked}"
            );
        }
        let alloy = json!("alloy");
        assert_eq!(voice(Some(&alloy), None, false).unwrap(), (None, true));
        let own = voice(Some(&alloy), of_model(), true).unwrap();
        assert_eq!(own, (Some("alloy".to_owned()), false));
        for wrong in [json!(7), json!({"name": "slt"})] {
            assert!(voice(Some(&wrong), None, false).is_err());
        }
    }

    #[tokio::test]
    async fn samples_that_are_cut_anywhere_become_one_stream_of_flac() {
        let samples: Vec<i16> = (0..5_000).map(|at| (at * 7) as i16).collect();
        let bytes = linear16::encode(&samples);
        let chunks: Vec<_> = bytes.chunks(333).map(Bytes::copy_from_slice).collect();
        let chunks: Chunks = Box::pin(stream::iter(chunks.into_iter().map(Ok)));
        let layout = Layout::mono(vivavoce_audio::SampleRate::HZ_24000);
        let written = written_as_flac(chunks, layout).unwrap();
        let written: Vec<Bytes> = written.map(Result::unwrap).collect().await;
        let file = std::io::Cursor::new(written.concat());
        let limits = vivavoce_audio::decode::FileLimits {
            duration: std::time::Duration::from_secs(9),
        };
        let decoder = vivavoce_audio::decode::FileDecoder::open(file, limits).unwrap();
        let again: Vec<i16> = decoder
            .flat_map(|sound| sound.unwrap().into_samples())
            .collect();
        assert_eq!(again, samples);
    }
}
