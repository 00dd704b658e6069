//! Emulates ElevenLabs, as far as its own SDKs and our client use it: recognition over the realtime WebSocket and of whole
//! files, synthesis of texts and dialogues over WebSockets and HTTP, lists of voices and models. This file has what they
//! share: keys, formats and errors.

mod alignment;
mod catalogue;
mod contexts;
mod dialogue;
mod http;
mod scribe;
mod transcribe;
mod tts;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, guard, web};
use serde_json::{Value, json};

use super::engine::EngineError;
use super::visit::{Refusal, Visit, credential, header_credential};
use vivavoce_audio::{AudioFormat, Encoding, SampleRate};

/// Its routes, on the listeners for HTTP.
pub(super) fn routes(service: &mut web::ServiceConfig) {
    let speech = "/v1/text-to-speech/{voice_id}";
    let at = |path: &str| format!("{speech}{path}");
    service
        .route(
            "/v1/speech-to-text/realtime",
            web::get().to(scribe::realtime),
        )
        .route("/v1/speech-to-text", web::post().to(transcribe::answer))
        .route(
            "/v1/text-to-dialogue/multi-stream-input",
            web::get().to(dialogue::multi),
        )
        .route("/v1/text-to-dialogue", web::post().to(http::whole_dialogue))
        .route(
            "/v1/text-to-dialogue/stream",
            web::post().to(http::stream_dialogue),
        )
        .route(&at("/stream-input"), web::get().to(tts::single))
        .route(&at("/multi-stream-input"), web::get().to(tts::multi))
        .route(speech, web::post().to(http::whole))
        .route(&at("/stream"), web::post().to(http::stream))
        .route(
            &at("/with-timestamps"),
            web::post().to(http::whole_with_timestamps),
        )
        .route(
            &at("/stream/with-timestamps"),
            web::post().to(http::stream_with_timestamps),
        )
        .route("/v2/voices", web::get().to(catalogue::voices))
        .route(
            "/v1/voices",
            // Google has the same path.
            web::get()
                .guard(guard::fn_guard(is_elevenlabs))
                .to(catalogue::all_voices),
        )
        .route("/v1/models", web::get().to(catalogue::models));
}

/// Whether a request on a path that other vendors have, too, is for this one.
pub(super) fn is_elevenlabs(request: &guard::GuardContext<'_>) -> bool {
    request.head().headers().contains_key("xi-api-key")
}

/// The key of a request: in the header or, where the vendor takes it there, in the query.
fn key(request: &HttpRequest, in_query: &[&str]) -> Option<String> {
    let in_header = header_credential(request, "xi-api-key").map(str::to_owned);
    in_header.or_else(|| {
        query(request)
            .into_iter()
            .find(|(name, _)| in_query.contains(&name.as_str()))
            .map(|(_, value)| credential(&value).to_owned())
    })
}

fn query(request: &HttpRequest) -> Vec<(String, String)> {
    url::form_urlencoded::parse(request.query_string().as_bytes())
        .into_owned()
        .collect()
}

/// Why a request is refused, as the vendor says it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Problem {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            status,
            code,
            message,
        }
    }

    /// The engine behind it does not work.
    fn failed(error: &EngineError) -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self::new(status, "internal_error", error.to_string())
    }

    fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_parameters", message)
    }

    /// By HTTP.
    fn response(&self, visit: &Visit) -> HttpResponse {
        with_id(HttpResponse::build(self.status), visit).json(self.body(visit))
    }

    fn body(&self, visit: &Visit) -> Value {
        json!({"detail": {
            "type": "error",
            "code": self.code,
            "status": self.code,
            "message": self.message,
            "request_id": visit.request_id().to_string(),
            "param": null,
        }})
    }

    /// On the sockets that speak, which then close with 1008.
    fn message(&self) -> Value {
        json!({"message": self.message, "error": self.code, "code": 1008})
    }

    /// The reason of a close.
    fn reason(&self) -> &str {
        let end = self.message.floor_char_boundary(120);
        &self.message[..end]
    }
}

fn with_id(
    mut builder: actix_web::HttpResponseBuilder,
    visit: &Visit,
) -> actix_web::HttpResponseBuilder {
    builder.insert_header(("request-id", visit.request_id().to_string()));
    builder
}

/// A refusal of the doorkeeper, by HTTP.
fn refused(refusal: &Refusal, visit: &Visit) -> HttpResponse {
    let (code, message) = match refusal.status.as_u16() {
        401 => ("invalid_api_key", "Invalid API key"),
        402 => ("payment_required", "This account has an unpaid invoice"),
        403 => (
            "missing_permissions",
            "This key may not use what was asked for",
        ),
        404 => ("voice_not_found", "A voice of this id was not found"),
        429 => (
            "too_many_concurrent_requests",
            "Too many concurrent requests for this plan",
        ),
        500..=599 => ("internal_error", "An internal error has occurred"),
        _ => ("invalid_parameters", "The request cannot be carried out"),
    };
    let problem = Problem::new(refusal.status, code, message);
    with_id(refusal.response(), visit).json(problem.body(visit))
}

/// Whether a refusal is due to the key alone: sockets open then, and tell it by a message.
fn by_key(refusal: &Refusal, key: Option<&str>, visit: &Visit) -> bool {
    let admitted = key.is_some_and(|key| visit.emulation().admits(key));
    refusal.status == StatusCode::UNAUTHORIZED && !admitted
}

/// What `output_format` says. `streamed` leaves out what needs its length in front.
fn output_format(name: &str, streamed: bool) -> Result<AudioFormat, Problem> {
    const MP3: &[&str] = &[
        "22050_32",
        "24000_48",
        "44100_32",
        "44100_64",
        "44100_96",
        "44100_128",
        "44100_192",
    ];
    const OPUS: &[&str] = &["48000_32", "48000_64", "48000_96", "48000_128", "48000_192"];
    const PCM: &[&str] = &["8000", "16000", "22050", "24000", "32000", "44100", "48000"];
    let (kind, rest) = name.split_once('_').unwrap_or((name, ""));
    let (encoding, known) = match kind {
        "mp3" => (Encoding::Mp3, MP3),
        "opus" => (Encoding::OggOpus, OPUS),
        "pcm" => (Encoding::Linear16, PCM),
        "wav" if !streamed => (Encoding::Wav, PCM),
        "ulaw" => (Encoding::Mulaw, &PCM[..1]),
        "alaw" => (Encoding::Alaw, &PCM[..1]),
        _ => (Encoding::Linear16, &[][..]),
    };
    let rate = rest.split('_').next().and_then(|hz| hz.parse::<u32>().ok());
    let rate = rate.and_then(|hz| SampleRate::new(hz).ok());
    match rate.filter(|_| known.contains(&rest)) {
        Some(rate) => Ok(AudioFormat::mono(encoding, rate)),
        None => Err(Problem::invalid(format!(
            "Output format {name} does not exist here"
        ))),
    }
}

/// What is refused everywhere about who shall speak.
fn check_voice(voice_id: &str) -> Result<(), Problem> {
    if catalogue::has_voice(voice_id) {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::NOT_FOUND,
        "voice_not_found",
        format!("A voice with the voice_id {voice_id} was not found."),
    ))
}

/// `voice_settings.speed`; 1.0 where nothing is said.
fn speed(voice_settings: &Value) -> Result<f64, Problem> {
    match &voice_settings["speed"] {
        Value::Null => Ok(1.0),
        speed => speed
            .as_f64()
            .filter(|speed| (0.7..=1.2).contains(speed))
            .ok_or_else(|| Problem::invalid("speed must be from 0.7 to 1.2")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_those_of_the_vendor_and_no_others() {
        let format = |name, streamed| {
            output_format(name, streamed)
                .map(|f| (f.encoding, f.layout.rate.hz()))
                .ok()
        };
        assert_eq!(format("mp3_44100_128", true), Some((Encoding::Mp3, 44_100)));
        assert_eq!(
            format("pcm_32000", true),
            Some((Encoding::Linear16, 32_000))
        );
        assert_eq!(format("ulaw_8000", true), Some((Encoding::Mulaw, 8_000)));
        assert_eq!(format("alaw_8000", true), Some((Encoding::Alaw, 8_000)));
        assert_eq!(
            format("opus_48000_64", true),
            Some((Encoding::OggOpus, 48_000))
        );
        assert_eq!(format("wav_16000", false), Some((Encoding::Wav, 16_000)));
        for unknown in [
            "wav_16000",
            "pcm_11025",
            "ulaw_16000",
            "mp3_44100",
            "pcm",
            "",
            "pcm_24000_1",
        ] {
            assert_eq!(format(unknown, true), None, "{unknown}");
        }
    }
}
