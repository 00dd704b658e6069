//! The voices of an ElevenLabs account, page by page.

use reqwest::header::HeaderValue;
use serde::Deserialize;

use super::tts::FORMATS;
use super::{KEY, KEY_HEADER, SLUG};
use crate::transport::VendorEndpoint;
use vivavoce_seams::{ErrorKind, OutputFormat, ProviderError, Voice};

/// Voices of a page: as many as the vendor gives.
const PAGE: &str = "100";
/// Pages that are read.
const MOST_PAGES: usize = 100;

#[derive(Deserialize)]
struct Page {
    voices: Vec<Listed>,
    #[serde(default)]
    has_more: bool,
    #[serde(default)]
    next_page_token: Option<String>,
}

#[derive(Deserialize)]
struct Listed {
    voice_id: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    category: Option<String>,
    #[serde(default)]
    labels: Option<Labels>,
    #[serde(default)]
    preview_url: Option<String>,
    #[serde(default)]
    high_quality_base_model_ids: Option<Vec<String>>,
    #[serde(default)]
    verified_languages: Option<Vec<Verified>>,
}

#[derive(Default, Deserialize)]
struct Labels {
    #[serde(default)]
    gender: Option<String>,
    #[serde(default)]
    accent: Option<String>,
    #[serde(default)]
    age: Option<String>,
    #[serde(default)]
    descriptive: Option<String>,
    #[serde(default)]
    use_case: Option<String>,
    #[serde(default)]
    language: Option<String>,
}

#[derive(Deserialize)]
struct Verified {
    language: String,
    #[serde(default)]
    locale: Option<String>,
}

/// Every voice that the server's key may use; none without one.
pub(super) async fn list(vendor: &VendorEndpoint) -> Result<Vec<Voice>, ProviderError> {
    let Ok(credential) = &vendor.own else {
        return Ok(Vec::new());
    };
    let mut voices = Vec::new();
    let mut token: Option<String> = None;
    for _ in 0..MOST_PAGES {
        let page = page(vendor, credential.get(KEY), token.as_deref()).await?;
        voices.extend(page.voices.into_iter().map(Voice::from));
        let next = page.next_page_token.filter(|_| page.has_more);
        if next.is_none() || next == token {
            break;
        }
        token = next;
    }
    Ok(voices)
}

async fn page(
    vendor: &VendorEndpoint,
    key: &str,
    token: Option<&str>,
) -> Result<Page, ProviderError> {
    let mut url = vendor.url.at(["v2", "voices"]);
    url.query_pairs_mut().append_pair("page_size", PAGE);
    if let Some(token) = token {
        url.query_pairs_mut().append_pair("next_page_token", token);
    }
    let fail =
        |kind, problem: &dyn std::fmt::Display| ProviderError::new(SLUG, kind, problem.to_string());
    let mut key = HeaderValue::from_str(key).map_err(|error| fail(ErrorKind::Auth, &error))?;
    key.set_sensitive(true);
    let request = vendor.transport.http().get(url).header(KEY_HEADER, key);
    let body = vendor.answer(request).await?;
    serde_json::from_slice(&body)
        .map_err(|error| fail(ErrorKind::Protocol, &format!("list of voices: {error}")))
}

impl From<Listed> for Voice {
    fn from(listed: Listed) -> Self {
        let labels = listed.labels.unwrap_or_default();
        let mut languages: Vec<String> = Vec::new();
        for verified in listed.verified_languages.into_iter().flatten() {
            let language = verified.locale.unwrap_or(verified.language);
            if !languages.contains(&language) {
                languages.push(language);
            }
        }
        let best = labels.language.unwrap_or_default();
        let first = languages
            .iter()
            .find(|language| language.split('-').next() == Some(best.as_str()))
            .or(languages.first().filter(|_| best.is_empty()));
        let language = first.cloned().unwrap_or(best);
        if languages.is_empty() && !language.is_empty() {
            languages.push(language.clone());
        }
        let gender = match labels.gender.as_deref() {
            Some(gender @ ("female" | "male" | "neutral")) => gender,
            Some("non-binary" | "non_binary") => "neutral",
            _ => "",
        };
        let models = listed.high_quality_base_model_ids.into_iter().flatten();
        let tags = [
            listed.category,
            labels.age,
            labels.descriptive,
            labels.use_case,
        ];
        Self {
            id: listed.voice_id,
            name: listed.name.unwrap_or_default(),
            language,
            languages,
            gender: gender.to_owned(),
            accent: labels.accent.unwrap_or_default(),
            sample: listed.preview_url.unwrap_or_default(),
            sample_rates: OutputFormat::linear_rates(FORMATS),
            tags: tags.into_iter().flatten().chain(models).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn voice(value: Value) -> Voice {
        Voice::from(serde_json::from_value::<Listed>(value).unwrap())
    }

    #[test]
    fn a_voice_keeps_what_the_vendor_says_of_it() {
        let full = voice(json!({
            "voice_id": "v1", "name": "George", "category": "premade", "preview_url": "https://x/y.mp3",
            "labels": {"gender": "male", "accent": "british", "age": "middle_aged", "use_case": "narration",
                       "language": "en", "descriptive": "warm"},
            "high_quality_base_model_ids": ["eleven_flash_v2_5"],
            "verified_languages": [
                {"language": "fr", "model_id": "m", "locale": "fr-FR"},
                {"language": "en", "model_id": "m", "locale": "en-GB"},
                {"language": "en", "model_id": "n", "locale": "en-GB"},
                {"language": "pl", "model_id": "m", "locale": null},
            ],
            "settings": {"speed": 1.0},
        }));
        assert_eq!((full.id.as_str(), full.name.as_str()), ("v1", "George"));
        assert_eq!(full.language, "en-GB");
        assert_eq!(full.languages, ["fr-FR", "en-GB", "pl"]);
        assert_eq!(
            (full.gender.as_str(), full.accent.as_str()),
            ("male", "british")
        );
        assert_eq!(full.sample, "https://x/y.mp3");
        let tags = [
            "premade",
            "middle_aged",
            "warm",
            "narration",
            "eleven_flash_v2_5",
        ];
        assert_eq!(full.tags, tags);
    }

    #[test]
    fn a_voice_of_which_little_is_known_is_listed_too() {
        let bare = voice(json!({"voice_id": "v2", "labels": null, "verified_languages": null}));
        assert_eq!((bare.language.as_str(), bare.gender.as_str()), ("", ""));
        let labelled =
            voice(json!({"voice_id": "v3", "labels": {"language": "de", "gender": "non-binary"}}));
        assert_eq!(labelled.languages, ["de"]);
        assert_eq!(labelled.gender, "neutral");
    }
}
