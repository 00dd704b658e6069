//! The voices, page by page, and access tokens for browsers.

use std::sync::LazyLock;

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Caller, Problem};
use crate::{Direction, Emulation};

/// Voices of the vendor's that people know.
const KNOWN: &[(&str, &str, &str, &str)] = &[
    (
        "6ccbfb76-1fc6-48f7-b71d-91ac6298247b",
        "Tessa",
        "en-US",
        "feminine",
    ),
    (
        "a0e99841-438c-4a64-b679-ae501e7d6091",
        "Barry",
        "en-US",
        "masculine",
    ),
    (
        "f786b574-daa5-4673-aa0c-cbe3e8534c02",
        "Katie",
        "en-US",
        "feminine",
    ),
    (
        "71a7ad14-091c-4e8e-a314-022ece01c121",
        "British Reading Lady",
        "en-GB",
        "feminine",
    ),
    (
        "79a125e8-cd45-4c13-8a67-188112f4dd22",
        "British Lady",
        "en-GB",
        "feminine",
    ),
    (
        "86e30c1d-714b-4074-a1f2-1cb6b552fb49",
        "Carson",
        "en-US",
        "masculine",
    ),
];
/// So many more, so that the list has pages.
const MORE: u128 = 120;
const PAGE: usize = 10;

static VOICES: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let known = KNOWN
        .iter()
        .map(|(id, name, locale, gender)| voice(id, name, locale, gender));
    let more = (1..=MORE).map(|number| {
        let id = Uuid::from_u128(0x4361_7274_6573_4961_8000_0000_0000_0000 | number);
        let locale = ["en-GB", "de-DE", "es-MX", "ja-JP"][number as usize % 4];
        let gender = ["masculine", "gender_neutral"][number as usize % 2];
        voice(&id.to_string(), &format!("Voice {number}"), locale, gender)
    });
    known.chain(more).collect()
});

fn voice(id: &str, name: &str, locale: &str, gender: &str) -> Value {
    let (language, country) = locale.split_once('-').unwrap_or((locale, ""));
    json!({
        "id": id, "name": name, "tagline": "Emulated", "description": format!("{name} speaks {locale}."),
        "language": language, "country": country, "gender": gender, "accent": null,
        "locales": [{"locale": locale, "is_native": true}],
        "access": "public", "visibility": "all", "is_owner": false, "created_at": "2026-01-01T00:00:00Z",
    })
}

/// Whether there is a voice of this id.
pub(super) fn exists(id: &str) -> bool {
    VOICES.iter().any(|voice| voice["id"] == id)
}

pub(super) fn not_found() -> Problem {
    let status = actix_web::http::StatusCode::NOT_FOUND;
    let message = "The voice was not found, make sure it is a valid voice ID.";
    Problem::new(status, Some("voice_not_found"), "Voice not found", message)
}

/// `GET /voices`.
pub(super) async fn list(request: HttpRequest, emulation: web::Data<Emulation>) -> HttpResponse {
    let caller = match Caller::admit(&request, &emulation, Direction::Voices) {
        Ok(caller) => caller,
        Err(answer) => return *answer,
    };
    match page(request.query_string()) {
        Ok(page) => HttpResponse::Ok().json(page),
        Err(problem) => caller.answer(&problem),
    }
}

fn page(query: &str) -> Result<Value, Problem> {
    let query: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes())
        .into_owned()
        .collect();
    let get = |name: &str| {
        let found = query.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    };
    let limit = get("limit").map_or(Ok(PAGE), str::parse);
    let limit = limit.ok().filter(|limit| (1..=100).contains(limit));
    let limit = limit.ok_or_else(|| Problem::bad("Invalid limit", "Must be 1 to 100."))?;
    let wanted = |voice: &&Value| {
        let gender = get("gender").is_none_or(|gender| voice["gender"] == gender);
        let owner = get("is_owner").is_none_or(|owner| owner == "false");
        gender && owner && get("q").is_none_or(|words| matches(voice, words))
    };
    let voices: Vec<&Value> = VOICES.iter().filter(wanted).collect();
    let place = |id: &str| {
        let place = voices.iter().position(|voice| voice["id"] == id);
        place.ok_or_else(not_found)
    };
    let (data, has_more) = match (get("starting_after"), get("ending_before")) {
        (_, Some(before)) => {
            let end = place(before)?;
            let start = end.saturating_sub(limit);
            (&voices[start..end], start > 0)
        }
        (after, None) => {
            let start = after.map(place).transpose()?.map_or(0, |place| place + 1);
            let end = (start + limit).min(voices.len());
            (&voices[start..end], end < voices.len())
        }
    };
    let preview = query
        .iter()
        .any(|(name, value)| name.starts_with("expand") && value.contains("preview_file_url"));
    let data = data.iter().map(|voice| shown(voice, preview));
    Ok(json!({"data": data.collect::<Vec<_>>(), "has_more": has_more}))
}

fn matches(voice: &Value, words: &str) -> bool {
    let words = words.to_lowercase();
    ["name", "description", "id"].iter().any(|field| {
        let text = voice[field].as_str().unwrap_or_default();
        text.to_lowercase().contains(&words)
    })
}

fn shown(voice: &Value, preview: bool) -> Value {
    let mut voice = voice.clone();
    if preview {
        let id = voice["id"].as_str().unwrap_or_default();
        voice["preview_file_url"] = format!("https://files.cartesia.ai/files/{id}").into();
    }
    voice
}

/// `GET /voices/{id}`.
pub(super) async fn one(
    request: HttpRequest,
    id: web::Path<String>,
    emulation: web::Data<Emulation>,
) -> HttpResponse {
    let caller = match Caller::admit(&request, &emulation, Direction::Voices) {
        Ok(caller) => caller,
        Err(answer) => return *answer,
    };
    match VOICES.iter().find(|voice| voice["id"] == id.as_str()) {
        Some(voice) => HttpResponse::Ok().json(voice),
        None => caller.answer(&not_found()),
    }
}

/// `POST /access-token`: a token that opens what the key opens is the key.
pub(super) async fn access_token(
    request: HttpRequest,
    emulation: web::Data<Emulation>,
) -> HttpResponse {
    match Caller::admit(&request, &emulation, Direction::Voices) {
        Ok(caller) => HttpResponse::Ok().json(json!({"token": caller.key})),
        Err(answer) => *answer,
    }
}
