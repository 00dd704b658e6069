//! The lists of voices and models.

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};

use super::{Problem, key, query, refused, with_id};
use crate::visit::Visit;
use crate::{Direction, Emulation, Vendor};

/// Id, name, gender, accent, language, locale.
const STOCK: [[&str; 6]; 5] = [
    [
        "JBFqnCBsd6RMkjVDRZzb",
        "George",
        "male",
        "british",
        "en",
        "en-GB",
    ],
    [
        "21m00Tcm4TlvDq8ikWAM",
        "Rachel",
        "female",
        "american",
        "en",
        "en-US",
    ],
    [
        "EXAVITQu4vr4xnSDxMaL",
        "Sarah",
        "female",
        "american",
        "en",
        "en-US",
    ],
    [
        "hpp4J3VqNfWAUOO0d1Us",
        "Bella",
        "female",
        "american",
        "en",
        "en-US",
    ],
    [
        "SAz9YHcvj6GT2YYXdXww",
        "River",
        "neutral",
        "american",
        "en",
        "en-US",
    ],
];
/// Voices that the account has made itself: so many that they fill more than a page.
const OWN: usize = 120;
/// Id, characters at once, whether it speaks on the sockets; the others speak dialogue.
const MODELS: [(&str, usize, bool); 9] = [
    ("eleven_flash_v2_5", 40_000, true),
    ("eleven_turbo_v2_5", 40_000, true),
    ("eleven_flash_v2", 30_000, true),
    ("eleven_turbo_v2", 30_000, true),
    ("eleven_multilingual_v2", 10_000, true),
    ("eleven_v3", 5_000, false),
    ("eleven_v3_conversational", 5_000, false),
    ("eleven_v4", 10_000, false),
    ("eleven_v4_turbo", 10_000, false),
];

/// Whether there is such a voice.
pub(super) fn has_voice(id: &str) -> bool {
    STOCK.iter().any(|voice| voice[0] == id) || (0..OWN).any(|number| own_id(number) == id)
}

/// The most characters that a model says at once.
pub(super) fn text_limit(model: &str) -> Result<usize, Problem> {
    known(model).map(|(_, limit, _)| limit)
}

/// Whether a model speaks on the sockets.
pub(super) fn speaks_on_sockets(model: &str) -> Result<(), Problem> {
    let (_, _, speaks) = known(model)?;
    if speaks {
        return Ok(());
    }
    Err(Problem::invalid(format!(
        "Model {model} is not supported on this websocket"
    )))
}

/// Whether a model speaks dialogue.
pub(super) fn speaks_dialogue(model: &str) -> Result<(), Problem> {
    let (_, _, on_sockets) = known(model)?;
    if on_sockets {
        return Err(Problem::invalid(format!(
            "Model {model} does not support text to dialogue"
        )));
    }
    Ok(())
}

fn known(model: &str) -> Result<(&'static str, usize, bool), Problem> {
    let found = MODELS.into_iter().find(|(id, _, _)| *id == model);
    found.ok_or_else(|| Problem::invalid(format!("A model with the id {model} does not exist")))
}

fn own_id(number: usize) -> String {
    format!("vivavoce{number:012}")
}

fn list() -> Vec<Value> {
    let stock = STOCK.iter().map(|[id, name, gender, accent, language, locale]| {
        json!({
            "voice_id": id, "name": name, "category": "premade",
            "labels": {"gender": gender, "accent": accent, "language": language, "age": "middle_aged", "use_case": "conversational"},
            "preview_url": format!("https://samples.example/{id}.mp3"),
            "high_quality_base_model_ids": ["eleven_flash_v2_5", "eleven_multilingual_v2"],
            "verified_languages": [{"language": language, "model_id": "eleven_flash_v2_5", "accent": accent, "locale": locale, "preview_url": null}],
        })
    });
    let own = (0..OWN).map(|number| {
        json!({
            "voice_id": own_id(number), "name": format!("Voice {number}"), "category": "cloned",
            "labels": {}, "preview_url": null, "high_quality_base_model_ids": [], "verified_languages": null,
        })
    });
    stock.chain(own).collect()
}

/// `GET /v2/voices`: a page.
pub(super) async fn voices(request: HttpRequest, emulation: web::Data<Emulation>) -> HttpResponse {
    let visit = emulation.visit(&request, Vendor::ElevenLabs, Direction::Voices);
    if let Err(refusal) = visit.admit(key(&request, &[]).as_deref()) {
        return refused(&refusal, &visit);
    }
    let query = query(&request);
    let asked = |name: &str| {
        let pair = query.iter().find(|(known, _)| known == name);
        pair.map(|(_, value)| value.as_str())
    };
    let size = asked("page_size").map_or(Some(10), |size| size.parse().ok());
    let Some(size) = size.filter(|size| (1..=100).contains(size)) else {
        return Problem::invalid("page_size must be from 1 to 100").response(&visit);
    };
    let Some(first) = asked("next_page_token").map_or(Some(0), |token| token.parse().ok()) else {
        return Problem::invalid("next_page_token is none of ours").response(&visit);
    };
    let search = asked("search").unwrap_or_default().to_lowercase();
    let all: Vec<Value> = list()
        .into_iter()
        .filter(|voice| {
            voice["name"]
                .as_str()
                .is_some_and(|name| name.to_lowercase().contains(&search))
        })
        .collect();
    let page: Vec<_> = all.iter().skip(first).take(size).collect();
    let next = first.saturating_add(size);
    let has_more = next < all.len();
    answer(
        &visit,
        &json!({
            "voices": page, "has_more": has_more, "total_count": all.len(),
            "next_page_token": has_more.then(|| next.to_string()),
        }),
    )
}

/// `GET /v1/voices`: all of them at once.
pub(super) async fn all_voices(
    request: HttpRequest,
    emulation: web::Data<Emulation>,
) -> HttpResponse {
    let visit = emulation.visit(&request, Vendor::ElevenLabs, Direction::Voices);
    match visit.admit(key(&request, &[]).as_deref()) {
        Ok(()) => answer(&visit, &json!({"voices": list()})),
        Err(refusal) => refused(&refusal, &visit),
    }
}

/// `GET /v1/models`.
pub(super) async fn models(request: HttpRequest, emulation: web::Data<Emulation>) -> HttpResponse {
    let visit = emulation.visit(&request, Vendor::ElevenLabs, Direction::Voices);
    if let Err(refusal) = visit.admit(key(&request, &[]).as_deref()) {
        return refused(&refusal, &visit);
    }
    let models = MODELS.map(|(id, limit, _)| {
        json!({
            "model_id": id, "name": id, "can_do_text_to_speech": true, "can_do_voice_conversion": false,
            "can_be_finetuned": false, "maximum_text_length_per_request": limit,
            "languages": [{"language_id": "en", "name": "English"}],
        })
    });
    answer(&visit, &json!(models))
}

fn answer(visit: &Visit, body: &Value) -> HttpResponse {
    with_id(HttpResponse::Ok(), visit).json(body)
}
