//! The list of models and voices, and access tokens, which are as good as the key that they are granted for.

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};

use super::{Direction, Emulation, admitted, key};

/// A voice: its model, gender, accent, and languages.
type Voice = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
);

/// Some of the vendor's voices: among them those that programs for it use unless they are told another.
const VOICES: &[Voice] = &[
    ("aura-2-thalia-en", "feminine", "American", &["en", "en-US"]),
    (
        "aura-2-apollo-en",
        "masculine",
        "American",
        &["en", "en-US"],
    ),
    (
        "aura-2-andromeda-en",
        "feminine",
        "American",
        &["en", "en-US"],
    ),
    ("aura-2-helena-en", "feminine", "American", &["en", "en-US"]),
    ("aura-2-draco-en", "masculine", "British", &["en", "en-GB"]),
    (
        "aura-2-celeste-es",
        "feminine",
        "Colombian",
        &["es", "es-CO"],
    ),
    ("aura-2-viktoria-de", "feminine", "German", &["de", "de-DE"]),
    ("aura-asteria-en", "feminine", "American", &["en", "en-US"]),
    ("aura-orion-en", "masculine", "American", &["en", "en-US"]),
];

/// Some of its recognisers.
const RECOGNISERS: &[&str] = &[
    "nova-3-general",
    "nova-2-general",
    "flux-general-en",
    "flux-general-multi",
];

/// Whether there is such a voice.
pub(super) fn has_voice(model: &str) -> bool {
    VOICES.iter().any(|(name, ..)| *name == model)
}

/// A name that stays, for what has a number only.
pub(super) fn uuid(name: &str) -> String {
    let number = name.bytes().fold(7_u128, |number, byte| {
        number.wrapping_mul(257).wrapping_add(u128::from(byte))
    });
    uuid::Builder::from_custom_bytes(number.to_be_bytes())
        .into_uuid()
        .to_string()
}

fn voice(&(model, gender, accent, languages): &Voice) -> Value {
    let architecture = if model.starts_with("aura-2-") {
        "aura-2"
    } else {
        "aura"
    };
    let name = model
        .trim_start_matches(architecture)
        .trim_start_matches('-');
    let name = name.split('-').next().unwrap_or(name);
    json!({
        "name": name, "canonical_name": model, "architecture": architecture, "languages": languages,
        "version": "2025-04-07.0", "uuid": uuid(model),
        "metadata": {
            "accent": accent, "age": "Adult", "color": "#7800ED", "image": format!("https://static.deepgram.com/{name}.jpg"),
            "sample": format!("https://static.deepgram.com/{name}.wav"), "tags": [gender, "clear"], "use_cases": ["ivr"],
        },
    })
}

fn recogniser(model: &&str) -> Value {
    json!({
        "name": model, "canonical_name": model, "architecture": model.split("-general").next(), "languages": ["en", "en-US"],
        "version": "2025-01-09.0", "uuid": uuid(model), "batch": !model.starts_with("flux"), "streaming": true,
        "formatted_output": true,
    })
}

/// `GET /v1/models`.
pub(super) async fn list(
    request: HttpRequest,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    let visit = admitted(&request, &emulation, Direction::Voices)?;
    let stt: Vec<_> = RECOGNISERS.iter().map(recogniser).collect();
    let tts: Vec<_> = VOICES.iter().map(voice).collect();
    Ok(HttpResponse::Ok()
        .insert_header(("dg-request-id", visit.request_id().to_string()))
        .json(json!({"stt": stt, "tts": tts})))
}

/// `POST /v1/auth/grant`.
pub(super) async fn grant(
    request: HttpRequest,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    admitted(&request, &emulation, Direction::Voices)?;
    Ok(HttpResponse::Ok().json(json!({"access_token": key(&request), "expires_in": 30})))
}
