//! REST: synthesis, voices, and the token exchange. A token is the local part of the account's address, so that tests know
//! whose it is.

use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::{Value, json};
use tonic::Status;

use super::{refusals, tts};
use crate::visit::{Visit, header_credential};
use crate::{Direction, Emulation, Vendor};
use vivavoce_providers::google::wire::texttospeech::{
    AudioConfig, AudioEncoding, InputSource, ListVoicesRequest, SsmlVoiceGender, SynthesisInput,
    SynthesizeSpeechRequest, VoiceSelectionParams,
};

/// Seconds that a token holds.
const HOLDS: u64 = 3_599;

/// Its routes, on the listeners for HTTP.
pub(crate) fn routes(service: &mut web::ServiceConfig) {
    service
        .route("/v1/text:synthesize", web::post().to(synthesize))
        .route("/v1/voices", web::get().to(list))
        .route("/token", web::post().to(token));
}

/// Opens the visit of a request, where it is let in.
fn admit(
    request: &HttpRequest,
    emulation: &web::Data<Emulation>,
    direction: Direction,
) -> Result<Visit, Status> {
    let visit = emulation.visit(request, Vendor::Google, direction);
    let query = form_urlencoded::parse(request.query_string().as_bytes());
    let in_query = query
        .filter(|(name, _)| name == "key")
        .map(|(_, key)| key.into_owned())
        .next();
    let key = header_credential(request, "authorization")
        .or_else(|| header_credential(request, "x-goog-api-key"))
        .or(in_query.as_deref());
    match visit.admit(key) {
        Ok(()) => Ok(visit),
        Err(refusal) => Err(refusals::status(&refusal, key.is_some())),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Synthesize {
    #[serde(default)]
    input: Input,
    #[serde(default)]
    voice: VoiceParams,
    #[serde(default)]
    audio_config: Audio,
}

#[derive(Default, Deserialize)]
struct Input {
    text: Option<String>,
    ssml: Option<String>,
    markup: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VoiceParams {
    language_code: String,
    name: String,
    model_name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Audio {
    #[serde(rename = "audioEncoding")]
    encoding: Value,
    speaking_rate: f64,
    pitch: f64,
    volume_gain_db: f64,
    sample_rate_hertz: i32,
}

/// Clients write enumerations as names and as numbers.
fn encoding(written: &Value) -> i32 {
    const NAMES: &[(&str, AudioEncoding)] = &[
        ("LINEAR16", AudioEncoding::Linear16),
        ("MP3", AudioEncoding::Mp3),
        ("OGG_OPUS", AudioEncoding::OggOpus),
        ("MULAW", AudioEncoding::Mulaw),
        ("ALAW", AudioEncoding::Alaw),
        ("PCM", AudioEncoding::Pcm),
        ("M4A", AudioEncoding::M4a),
    ];
    if let Some(number) = written.as_i64() {
        return i32::try_from(number).unwrap_or_default();
    }
    let named = NAMES
        .iter()
        .find(|(name, _)| written.as_str() == Some(*name));
    named.map_or(0, |(_, encoding)| (*encoding).into())
}

impl From<Synthesize> for SynthesizeSpeechRequest {
    fn from(body: Synthesize) -> Self {
        let input = body.input;
        let source = input
            .text
            .map(InputSource::Text)
            .or_else(|| input.ssml.map(InputSource::Ssml))
            .or_else(|| input.markup.map(InputSource::Markup));
        Self {
            input: Some(SynthesisInput {
                input_source: source,
            }),
            voice: Some(VoiceSelectionParams {
                language_code: body.voice.language_code,
                name: body.voice.name,
                model_name: body.voice.model_name,
            }),
            audio_config: Some(AudioConfig {
                audio_encoding: encoding(&body.audio_config.encoding),
                speaking_rate: body.audio_config.speaking_rate,
                pitch: body.audio_config.pitch,
                volume_gain_db: body.audio_config.volume_gain_db,
                sample_rate_hertz: body.audio_config.sample_rate_hertz,
            }),
        }
    }
}

async fn synthesize(
    request: HttpRequest,
    body: web::Bytes,
    emulation: web::Data<Emulation>,
) -> HttpResponse {
    let visit = match admit(&request, &emulation, Direction::Tts) {
        Ok(visit) => visit,
        Err(refused) => return refusals::response(&refused),
    };
    visit.received(body.len());
    let Ok(body) = serde_json::from_slice::<Synthesize>(&body) else {
        let problem = "Invalid JSON payload received.";
        return refusals::response(&Status::invalid_argument(problem));
    };
    match tts::whole(&visit, body.into()).await {
        Ok(said) => {
            visit.sent(said.audio_content.len());
            HttpResponse::Ok().json(json!({"audioContent": STANDARD.encode(&said.audio_content)}))
        }
        Err(status) => refusals::response(&status),
    }
}

async fn list(request: HttpRequest, emulation: web::Data<Emulation>) -> HttpResponse {
    if let Err(refused) = admit(&request, &emulation, Direction::Voices) {
        return refusals::response(&refused);
    }
    let query: Vec<_> = form_urlencoded::parse(request.query_string().as_bytes()).collect();
    let parameter = |name: &str| {
        query
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_ref())
    };
    let numbers = parameter("$alt").is_some_and(|alt| alt.contains("enum-encoding=int"));
    let question = ListVoicesRequest {
        language_code: parameter("languageCode").unwrap_or_default().to_owned(),
    };
    let voices = tts::voices(&question).voices;
    let voices: Vec<_> = voices
        .iter()
        .map(|voice| {
            let gender = match voice.ssml_gender() {
                _ if numbers => json!(voice.ssml_gender),
                SsmlVoiceGender::Male => json!("MALE"),
                SsmlVoiceGender::Female => json!("FEMALE"),
                SsmlVoiceGender::Neutral => json!("NEUTRAL"),
                SsmlVoiceGender::Unspecified => json!("SSML_VOICE_GENDER_UNSPECIFIED"),
            };
            json!({
                "languageCodes": voice.language_codes,
                "name": voice.name,
                "ssmlGender": gender,
                "naturalSampleRateHertz": voice.natural_sample_rate_hertz,
            })
        })
        .collect();
    HttpResponse::Ok().json(json!({ "voices": voices }))
}

/// The form of the exchange (RFC 7523).
#[derive(Deserialize)]
struct Exchange {
    grant_type: String,
    assertion: String,
}

async fn token(
    request: HttpRequest,
    form: web::Form<Exchange>,
    emulation: web::Data<Emulation>,
) -> HttpResponse {
    let visit = emulation.visit(&request, Vendor::Google, Direction::Voices);
    // Who asks is in the claim; here only faults refuse.
    if let Err(refusal) = visit.admit(Some("claim"))
        && refusal.status != actix_web::http::StatusCode::UNAUTHORIZED
    {
        return refusal
            .response()
            .json(json!({"error": "temporarily_unavailable"}));
    }
    let refused = |error: &str, description: &str| {
        HttpResponse::BadRequest().json(json!({"error": error, "error_description": description}))
    };
    if form.grant_type != "urn:ietf:params:oauth:grant-type:jwt-bearer" {
        return refused("unsupported_grant_type", "Invalid grant_type");
    }
    let Some(name) = issuer(&form.assertion) else {
        return refused("invalid_grant", "Invalid JWT: Failed to parse.");
    };
    if name.is_empty() || name.starts_with("bad") {
        return refused("invalid_grant", "Invalid grant: account not found");
    }
    HttpResponse::Ok()
        .json(json!({"access_token": name, "expires_in": HOLDS, "token_type": "Bearer"}))
}

/// The local part of the address that has signed a claim. Whether it has, nobody here can know.
fn issuer(claim: &str) -> Option<String> {
    let mut parts = claim.split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    let name = claims["iss"].as_str()?.split('@').next()?;
    let complete =
        claims["scope"].is_string() && claims["aud"].is_string() && claims["exp"].is_u64();
    complete.then(|| name.to_owned())
}
