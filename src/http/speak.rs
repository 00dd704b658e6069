//! `POST /speak`: text in, audio out, in one request.

use actix_web::body::{BodyStream, SizedStream};
use actix_web::http::header::{self, HeaderName};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::body::JsonBody;
use super::error::{ApiError, Code};
use super::state::AppState;
use crate::auth::Entered;
use vivavoce_audio::{AudioFormat, Encoding};
use vivavoce_auth::Access;
use vivavoce_core::ssml::Ssml;
use vivavoce_synthesis::{
    InvalidField, MAX_TEXT_BYTES, Speech, SpeechConfig, SynthesisError, TextType, TtsConfig,
};

const AUDIO_FORMAT: HeaderName = HeaderName::from_static("x-audio-format");
const SAMPLE_RATE: HeaderName = HeaderName::from_static("x-sample-rate");
const PROVIDER: HeaderName = HeaderName::from_static("x-provider");
const CACHE: HeaderName = HeaderName::from_static("x-cache");

/// The content type of the specification, whatever the format.
const AS_SPECIFIED: &str = "audio/pcm";

/// The chunk size of long responses: the connection copies a chunk, and the client's reading rate is measured per
/// chunk.
const PIECE_BYTES: usize = 64 << 10;

/// Body of `POST /speak`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct SpeakRequest {
    /// The text, at most 32 KiB.
    #[schemars(required, length(min = 1, max = MAX_TEXT_BYTES), regex(pattern = r"\S"))]
    text: Option<String>,
    /// What the text is; `ssml` is a document for a provider that takes it.
    #[schemars(extend("default" = "plain"))]
    text_type: Option<TextType>,
    /// How to synthesise it.
    #[schemars(with = "TtsConfig")]
    tts_config: Option<TtsConfig>,
}

/// Query of `POST /speak`.
#[derive(Debug, Deserialize)]
pub struct Query {
    #[serde(default)]
    stream: bool,
}

/// Returns the audio of a text.
pub async fn speak(
    Entered(access): Entered,
    state: web::Data<AppState>,
    request: HttpRequest,
    query: web::Query<Query>,
    body: JsonBody<SpeakRequest>,
) -> Result<HttpResponse, ApiError> {
    let work = state.begin_work()?;
    let JsonBody(SpeakRequest {
        text,
        text_type,
        tts_config,
    }) = body;
    let text = check_text("text", text)?;
    let document = match text_type.unwrap_or_default() {
        TextType::Plain => None,
        TextType::Ssml => Some(
            Ssml::parse(&text)
                .map_err(|error| ApiError::new(Code::InvalidRequest, format!("text: {error}")))?,
        ),
    };
    let tts_config =
        tts_config.ok_or_else(|| ApiError::new(Code::InvalidRequest, "tts_config: is required"))?;
    let config = tts_config
        .check()
        .map_err(|field: InvalidField| ApiError::new(Code::InvalidRequest, field.to_string()))?;
    let format = config.format;
    if format.encoding == Encoding::Opus {
        let problem = "tts_config.audio_format: opus is for the socket only; ogg_opus is the same sound in a file";
        return Err(ApiError::new(Code::InvalidRequest, problem));
    }
    state.synthesizer.check(&config)?;
    if let Some(document) = &document {
        let checked = state.synthesizer.check_ssml(&config, document);
        checked.map_err(SynthesisError::from)?;
    }
    let said = (text.as_str(), document.as_ref());
    let said = say(&state, &config, said, &access, query.stream).await?;
    let mut response = HttpResponse::Ok();
    response
        .insert_header((header::CONTENT_TYPE, content_type(&state, &request, format)))
        .insert_header((header::VARY, "accept"))
        .insert_header((AUDIO_FORMAT, format.encoding.name()))
        .insert_header((SAMPLE_RATE, format.layout.rate.hz()))
        .insert_header((PROVIDER, said.provider))
        .insert_header((CACHE, if said.cached { "hit" } else { "miss" }));
    let (chunks, speech) = match said.sound {
        Sound::Coming(first, speech) => {
            return Ok(stream_as_it_comes(response, first, speech, work));
        }
        Sound::Whole(chunks, speech) => (chunks, speech),
    };
    let length = chunks.iter().map(Bytes::len).sum::<usize>() as u64;
    let pieces = stream::iter(chunks.into_iter().flat_map(pieces));
    // The memory stays counted until the body has been sent, or the connection is closed.
    let pieces = pieces.map(move |piece| {
        let _held = &speech;
        Ok::<_, ApiError>(piece)
    });
    Ok(response.body(SizedStream::new(length, pieces)))
}

/// Splits audio into chunks that a connection takes one by one.
fn pieces(mut sound: Bytes) -> impl Iterator<Item = Bytes> {
    std::iter::from_fn(move || {
        let piece = sound.split_to(sound.len().min(PIECE_BYTES));
        (!piece.is_empty()).then_some(piece)
    })
}

pub(super) fn check_text(field: &str, text: Option<String>) -> Result<String, ApiError> {
    let refused = |problem: String| {
        Err(ApiError::new(
            Code::InvalidRequest,
            format!("{field}: {problem}"),
        ))
    };
    match text {
        None => refused("is required".to_owned()),
        Some(text) if text.trim().is_empty() => refused("must not be empty".to_owned()),
        Some(text) if text.len() > MAX_TEXT_BYTES => refused(format!(
            "{} bytes are more than {MAX_TEXT_BYTES}",
            text.len()
        )),
        Some(text) => Ok(text),
    }
}

/// Speech that has begun.
pub(super) struct Said {
    /// The slug of whoever speaks: the provider that was asked for, or a fallback.
    provider: String,
    /// Whether it comes from the cache.
    cached: bool,
    pub(super) sound: Sound,
}

/// The content of a response.
pub(super) enum Sound {
    /// All of the audio, with the guard that counts its memory.
    Whole(Vec<Bytes>, Speech),
    /// The first chunk, and the rest.
    Coming(Option<Bytes>, Speech),
}

/// Synthesises with the provider and then with its fallbacks, until one succeeds: as long as nothing has been sent, a
/// failure can be hidden. When streaming, the first chunk is awaited, so that an immediate failure gets the right
/// status.
pub(super) async fn say(
    state: &AppState,
    config: &SpeechConfig,
    (text, document): (&str, Option<&Ssml>),
    access: &Access,
    as_it_comes: bool,
) -> Result<Said, ApiError> {
    let party = &access.party();
    let mut choices = config.choices().into_iter().peekable();
    while let Some(choice) = choices.next() {
        let provider = choice.provider.clone();
        let said = async {
            let synthesizer = &state.synthesizer;
            let mut speech = match document {
                Some(document) if synthesizer.takes_ssml(&choice).is_some() => {
                    synthesizer.speak_ssml(choice, document, party).await?
                }
                // A fallback that takes no documents says what is in them.
                Some(document) => synthesizer.speak(choice, document.text(), party).await?,
                None => synthesizer.speak(choice, text, party).await?,
            };
            let cached = speech.cached;
            let sound = if as_it_comes {
                let first = speech.next().await.transpose()?;
                Sound::Coming(first, speech)
            } else {
                Sound::Whole(speech.whole().await?, speech)
            };
            Ok::<_, SynthesisError>(Said {
                provider,
                cached,
                sound,
            })
        };
        match said.await {
            Err(SynthesisError::Provider { error, .. }) if choices.peek().is_some() => {
                tracing::warn!(provider = error.provider, kind = ?error.kind, "a fallback speaks");
            }
            outcome => return outcome.map_err(ApiError::from),
        }
    }
    Err(ApiError::new(Code::Internal, "there was nobody to ask"))
}

/// After the first chunk a failure can only abort the connection, which a chunked body shows to the client as
/// incomplete.
fn stream_as_it_comes(
    mut response: actix_web::HttpResponseBuilder,
    first: Option<Bytes>,
    speech: Speech,
    work: TaskTrackerToken,
) -> HttpResponse {
    response.body(BodyStream::new(as_it_comes(first, speech, work)))
}

/// The sound in pieces that a connection takes one by one, until the first failure.
pub(super) fn as_it_comes(
    first: Option<Bytes>,
    speech: Speech,
    work: TaskTrackerToken,
) -> impl Stream<Item = Result<Bytes, ApiError>> {
    stream::unfold(
        (first, speech, work),
        |(first, mut speech, work)| async move {
            let mut next = match first {
                Some(chunk) => chunk,
                None => match speech.next().await? {
                    Ok(chunk) => chunk,
                    Err(error) => return Some((Err(ApiError::from(error)), (None, speech, work))),
                },
            };
            let piece = next.split_to(next.len().min(PIECE_BYTES));
            let rest = (!next.is_empty()).then_some(next);
            Some((Ok(piece), (rest, speech, work)))
        },
    )
}

/// The format's registered type. As in the specification `audio/pcm` for every format where the client asks for it, or
/// was written for another server of its family; there a registered type is for those who ask for that.
fn content_type(state: &AppState, request: &HttpRequest, format: AudioFormat) -> &'static str {
    let registered = format.encoding.media_type();
    let accepts = |wanted: &str| {
        let values = request.headers().get_all(header::ACCEPT);
        values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|accept| accept.split(','))
            .any(|range| {
                let media_type = range.split(';').next().unwrap_or_default().trim();
                media_type.eq_ignore_ascii_case(wanted)
            })
    };
    let is_specified = accepts(AS_SPECIFIED) || !state.dialect.is_ours();
    if is_specified && !accepts(registered) {
        AS_SPECIFIED
    } else {
        registered
    }
}
