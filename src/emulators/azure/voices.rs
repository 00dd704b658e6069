//! The list of voices: a few of the service's, in its own format.

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};

use super::refusal;
use crate::{Direction, Emulation, Vendor};

/// Short name, display name, gender, locale, name of the locale, further locales, rate.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static str,
);

const ENGLISH: &str = "English (United States)";
const GERMAN: &str = "German (Germany)";
const VOICES: &[Row] = &[
    (
        "en-US-AvaMultilingualNeural",
        "Ava Multilingual",
        "Female",
        "en-US",
        ENGLISH,
        &["de-DE", "fr-FR"],
        "24000",
    ),
    (
        "en-US-AndrewMultilingualNeural",
        "Andrew Multilingual",
        "Male",
        "en-US",
        ENGLISH,
        &["de-DE", "fr-FR"],
        "24000",
    ),
    (
        "en-US-Ava:DragonHDLatestNeural",
        "Ava Dragon HD Latest",
        "Female",
        "en-US",
        ENGLISH,
        &[],
        "24000",
    ),
    (
        "en-US-JennyNeural",
        "Jenny",
        "Female",
        "en-US",
        ENGLISH,
        &[],
        "24000",
    ),
    (
        "en-US-SaraNeural",
        "Sara",
        "Female",
        "en-US",
        ENGLISH,
        &[],
        "24000",
    ),
    (
        "en-US-GuyNeural",
        "Guy",
        "Male",
        "en-US",
        ENGLISH,
        &[],
        "48000",
    ),
    (
        "en-GB-SoniaNeural",
        "Sonia",
        "Female",
        "en-GB",
        "English (United Kingdom)",
        &[],
        "48000",
    ),
    (
        "de-DE-KatjaNeural",
        "Katja",
        "Female",
        "de-DE",
        GERMAN,
        &[],
        "24000",
    ),
    (
        "fr-FR-DeniseNeural",
        "Denise",
        "Female",
        "fr-FR",
        "French (France)",
        &[],
        "24000",
    ),
];

/// Whether there is a voice by this name.
pub(super) fn exists(name: &str) -> bool {
    VOICES
        .iter()
        .any(|(short, ..)| short.eq_ignore_ascii_case(name))
}

/// Answers with all of them.
pub(super) async fn list(request: HttpRequest, emulation: web::Data<Emulation>) -> HttpResponse {
    let visit = emulation.visit(&request, Vendor::Azure, Direction::Voices);
    if let Some(refused) = refusal(&visit, &request) {
        return refused;
    }
    HttpResponse::Ok().json(VOICES.iter().map(listed).collect::<Vec<_>>())
}

fn listed((short, display, gender, locale, locale_name, others, rate): &Row) -> Value {
    let local = short
        .strip_prefix(locale)
        .unwrap_or(short)
        .trim_start_matches('-');
    let mut voice = json!({
        "Name": format!("Microsoft Server Speech Text to Speech Voice ({locale}, {local})"),
        "DisplayName": display, "LocalName": display, "ShortName": short, "Gender": gender,
        "Locale": locale, "LocaleName": locale_name, "SampleRateHertz": rate, "VoiceType": "Neural",
        "Status": "GA", "WordsPerMinute": "150",
        "VoiceTag": {"TailoredScenarios": ["Assistant"], "VoicePersonalities": ["Friendly"]},
    });
    if !others.is_empty() {
        voice["SecondaryLocaleList"] = json!(others);
    }
    voice
}
