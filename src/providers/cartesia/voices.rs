//! Cartesia's list of voices, page by page.

use serde::Deserialize;

use super::tts::FORMATS;
use super::{API_KEY, VERSION, errors};
use crate::transport::VendorEndpoint;
use vivavoce_seams::{Credential, OutputFormat, ProviderError, Voice};

/// Voices on a page: the vendor's most.
const PAGE: &str = "100";
/// Pages that are read: more than there are.
const MOST_PAGES: usize = 100;

#[derive(Deserialize)]
struct Page {
    data: Vec<Entry>,
    has_more: bool,
}

#[derive(Deserialize)]
struct Entry {
    id: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    language: String,
    locales: Option<Vec<Locale>>,
    gender: Option<String>,
    accent: Option<String>,
    tagline: Option<String>,
}

#[derive(Deserialize)]
struct Locale {
    locale: String,
    #[serde(default)]
    is_native: bool,
}

/// All that the server's credential can see; none without one.
pub(super) async fn all(vendor: &VendorEndpoint) -> Result<Vec<Voice>, ProviderError> {
    let Ok(credential) = &vendor.own else {
        return Ok(Vec::new());
    };
    let mut voices: Vec<Voice> = Vec::new();
    for _ in 0..MOST_PAGES {
        let after = voices.last().map(|voice| voice.id.clone());
        let page = page(vendor, credential, after.as_deref()).await?;
        let empty = page.data.is_empty();
        voices.extend(page.data.into_iter().map(Entry::voice));
        if empty || !page.has_more {
            break;
        }
    }
    Ok(voices)
}

async fn page(
    vendor: &VendorEndpoint,
    credential: &Credential,
    after: Option<&str>,
) -> Result<Page, ProviderError> {
    let mut url = vendor.url.at(["voices"]);
    url.query_pairs_mut().append_pair("limit", PAGE);
    if let Some(after) = after {
        url.query_pairs_mut().append_pair("starting_after", after);
    }
    let (name, value) = VERSION;
    let request = vendor.transport.http().get(url).header(name, value);
    let request = request.bearer_auth(credential.get(API_KEY));
    let page = vendor.answer(request).await?;
    serde_json::from_slice(&page).map_err(errors::unreadable)
}

impl Entry {
    fn voice(self) -> Voice {
        let locales = self.locales.unwrap_or_default();
        let native = locales.iter().find(|locale| locale.is_native);
        let language = native
            .map_or(&self.language, |native| &native.locale)
            .clone();
        let mut languages: Vec<String> = locales.into_iter().map(|locale| locale.locale).collect();
        if languages.is_empty() {
            languages.push(language.clone());
        }
        let gender = match self.gender.as_deref() {
            Some("feminine") => "female",
            Some("masculine") => "male",
            Some("gender_neutral") => "neutral",
            _ => "",
        };
        Voice {
            id: self.id,
            name: self.name,
            language,
            languages,
            gender: gender.to_owned(),
            accent: self.accent.unwrap_or_default(),
            // The vendor's samples open with a key only.
            sample: String::new(),
            sample_rates: OutputFormat::linear_rates(FORMATS),
            tags: self
                .tagline
                .into_iter()
                .filter(|tag| !tag.is_empty())
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voice(entry: &str) -> Voice {
        serde_json::from_str::<Entry>(entry).unwrap().voice()
    }

    #[test]
    fn a_voice_has_its_native_language_and_all_others() {
        let voice = voice(
            r#"{"id":"v1","name":"Tess","tagline":"Calm","language":"en","accent":"southern-us","gender":"feminine",
            "locales":[{"locale":"es-MX","is_native":false},{"locale":"en-US","is_native":true}]}"#,
        );
        assert_eq!((voice.id.as_str(), voice.name.as_str()), ("v1", "Tess"));
        assert_eq!(voice.language, "en-US");
        assert_eq!(voice.languages, ["es-MX", "en-US"]);
        assert_eq!(
            (voice.gender.as_str(), voice.accent.as_str()),
            ("female", "southern-us")
        );
        assert_eq!(voice.tags, ["Calm"]);
    }

    #[test]
    fn a_voice_of_which_little_is_said_is_a_voice() {
        let voice =
            voice(r#"{"id":"v2","language":"de","gender":null,"accent":null,"tagline":""}"#);
        assert_eq!(
            (voice.language.as_str(), &voice.languages[..]),
            ("de", &["de".to_owned()][..])
        );
        assert_eq!(voice.gender, "");
        assert!(voice.tags.is_empty());
    }
}
