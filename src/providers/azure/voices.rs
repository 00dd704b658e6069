//! Azure's list of voices, a single response.

use serde::Deserialize;

use super::{KEY, Location, SLUG, SUBSCRIPTION_KEY};
use crate::transport::{VendorEndpoint, shortened};
use vivavoce_seams::{ErrorKind, ProviderError, Voice};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    short_name: String,
    #[serde(default)]
    display_name: String,
    #[serde(default)]
    gender: String,
    locale: String,
    #[serde(default)]
    locale_name: String,
    #[serde(default)]
    secondary_locale_list: Vec<String>,
    /// A number in a text.
    #[serde(default)]
    sample_rate_hertz: String,
    #[serde(default)]
    voice_type: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    style_list: Vec<String>,
    #[serde(default)]
    voice_tag: Tags,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Tags {
    tailored_scenarios: Vec<String>,
    voice_personalities: Vec<String>,
}

impl From<Listed> for Voice {
    fn from(listed: Listed) -> Self {
        let mut languages = vec![listed.locale.clone()];
        languages.extend(listed.secondary_locale_list);
        let mut tags = vec![listed.voice_type, listed.status];
        tags.extend(listed.style_list);
        tags.extend(listed.voice_tag.tailored_scenarios);
        tags.extend(listed.voice_tag.voice_personalities);
        tags.retain(|tag| !tag.is_empty());
        Self {
            id: listed.short_name,
            name: listed.display_name,
            language: listed.locale,
            languages,
            gender: gender(&listed.gender),
            accent: region_of(&listed.locale_name),
            sample: String::new(),
            sample_rates: listed.sample_rate_hertz.parse().into_iter().collect(),
            tags,
        }
    }
}

fn gender(listed: &str) -> String {
    let lower = listed.to_ascii_lowercase();
    let known = ["female", "male", "neutral"].contains(&lower.as_str());
    if known { lower } else { String::new() }
}

/// `English (United States)` is spoken in the United States.
fn region_of(locale_name: &str) -> String {
    let region = locale_name
        .split_once('(')
        .and_then(|(_, region)| region.strip_suffix(')'));
    region.unwrap_or_default().to_owned()
}

/// The voices that the server's credential may use; none without one.
pub(super) async fn list(
    vendor: &VendorEndpoint,
    location: Location,
) -> Result<Vec<Voice>, ProviderError> {
    let Ok(credential) = &vendor.own else {
        return Ok(Vec::new());
    };
    let path = ["cognitiveservices", "voices", "list"];
    let url = location.address(vendor, credential, "tts", path)?;
    let request = vendor.transport.http().get(url);
    let request = request.header(SUBSCRIPTION_KEY, credential.get(KEY));
    let body = vendor.answer(request).await?;
    let listed: Vec<Listed> =
        serde_json::from_slice(&body).map_err(|error| unreadable(&error.to_string()))?;
    Ok(listed.into_iter().map(Voice::from).collect())
}

fn unreadable(problem: &str) -> ProviderError {
    let problem = format!("the list of voices: {}", shortened(problem));
    ProviderError::new(SLUG, ErrorKind::Protocol, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_voice_becomes_one_of_ours() {
        let listed = r#"{"Name":"Microsoft Server Speech Text to Speech Voice (en-US, AvaMultilingualNeural)",
            "DisplayName":"Ava Multilingual","LocalName":"Ava","ShortName":"en-US-AvaMultilingualNeural",
            "Gender":"Female","Locale":"en-US","LocaleName":"English (United States)",
            "SecondaryLocaleList":["de-DE"],"SampleRateHertz":"24000","VoiceType":"Neural","Status":"GA",
            "StyleList":["chat"],"VoiceTag":{"TailoredScenarios":["Assistant"],"VoicePersonalities":["Warm"]}}"#;
        let voice: Voice = serde_json::from_str::<Listed>(listed).unwrap().into();
        assert_eq!(
            voice,
            Voice {
                id: "en-US-AvaMultilingualNeural".into(),
                name: "Ava Multilingual".into(),
                language: "en-US".into(),
                languages: vec!["en-US".into(), "de-DE".into()],
                gender: "female".into(),
                accent: "United States".into(),
                sample: String::new(),
                sample_rates: vec![24_000],
                tags: ["Neural", "GA", "chat", "Assistant", "Warm"]
                    .map(str::to_owned)
                    .into(),
            }
        );
    }

    #[test]
    fn a_voice_that_says_little_of_itself_is_listed_too() {
        let listed = r#"{"ShortName":"x","Locale":"de-DE","Gender":"Robot"}"#;
        let voice: Voice = serde_json::from_str::<Listed>(listed).unwrap().into();
        assert_eq!((voice.gender.as_str(), voice.accent.as_str()), ("", ""));
        assert!(voice.sample_rates.is_empty() && voice.tags.is_empty());
    }
}
