//! Deepgram's list of voices, a single response.

use reqwest::header::{AUTHORIZATION, HeaderValue};
use serde::Deserialize;

use super::tts::FORMATS;
use super::{SLUG, authorization, errors};
use crate::transport::VendorEndpoint;
use vivavoce_seams::{ErrorKind, OutputFormat, ProviderError, Voice};

#[derive(Deserialize)]
struct Models {
    #[serde(default)]
    tts: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    /// What is asked for; an entry without it is no voice.
    canonical_name: Option<String>,
    name: Option<String>,
    #[serde(default)]
    languages: Vec<String>,
    #[serde(default)]
    metadata: Option<Metadata>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    accent: Option<String>,
    sample: Option<String>,
    tags: Option<Vec<String>>,
    use_cases: Option<Vec<String>>,
}

/// All that the server's key opens; none without one.
pub(super) async fn all(vendor: &VendorEndpoint) -> Result<Vec<Voice>, ProviderError> {
    let Ok(credential) = &vendor.own else {
        return Ok(Vec::new());
    };
    // A key that cannot stand in a header opens nothing.
    let key = HeaderValue::from_str(&authorization(credential));
    let mut key = key.map_err(|_| {
        let problem = "DEEPGRAM_API_KEY holds characters that no key has";
        ProviderError::new(SLUG, ErrorKind::Auth, problem)
    })?;
    key.set_sensitive(true);
    let url = vendor.url.at(["v1", "models"]);
    let request = vendor.transport.http().get(url);
    let request = request.header(AUTHORIZATION, key);
    voices(&vendor.answer(request).await?)
}

fn voices(body: &[u8]) -> Result<Vec<Voice>, ProviderError> {
    let models: Models = serde_json::from_slice(body).map_err(errors::unreadable)?;
    Ok(models.tts.into_iter().filter_map(voice).collect())
}

fn voice(model: Model) -> Option<Voice> {
    let id = model.canonical_name?;
    let Metadata {
        accent,
        sample,
        tags,
        use_cases,
    } = model.metadata.unwrap_or_default();
    let tags = tags.unwrap_or_default();
    // Looked for as whole words: "male" is in "female".
    let has = |tag: &str| tags.iter().any(|known| known == tag);
    let gender = match (has("feminine"), has("masculine")) {
        (true, false) => "female",
        (false, true) => "male",
        _ => "",
    };
    Some(Voice {
        name: model.name.unwrap_or_else(|| id.clone()),
        id,
        language: best(&model.languages),
        languages: model.languages,
        gender: gender.to_owned(),
        accent: accent.unwrap_or_default(),
        sample: sample.unwrap_or_default(),
        sample_rates: OutputFormat::linear_rates(FORMATS),
        tags: tags
            .into_iter()
            .chain(use_cases.unwrap_or_default())
            .collect(),
    })
}

/// The most precise of the tags, which stand beside their own language: `en`, `en-US`.
fn best(languages: &[String]) -> String {
    let precise = languages.iter().find(|tag| tag.contains('-'));
    precise.or(languages.first()).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_a_voice() {
        let list = voices(
            br##"{"stt":[{"name":"nova-3"}],"tts":[
            {"name":"thalia","canonical_name":"aura-2-thalia-en","architecture":"aura-2","languages":["en","en-US"],
             "version":"1","uuid":"u","metadata":{"accent":"American","age":"Adult","color":"#fff","image":"i",
             "sample":"https://s.example/t.wav","tags":["feminine","clear"],"use_cases":["ivr"]}},
            {"name":"zeus","canonical_name":"aura-zeus-en","metadata":{"tags":["masculine"],"accent":null}},
            {"name":"bare","canonical_name":"aura-2-bare-de","languages":["de"],"metadata":null}]}"##,
        )
        .unwrap();
        assert_eq!(
            list[0],
            Voice {
                id: "aura-2-thalia-en".into(),
                name: "thalia".into(),
                language: "en-US".into(),
                languages: vec!["en".into(), "en-US".into()],
                gender: "female".into(),
                accent: "American".into(),
                sample: "https://s.example/t.wav".into(),
                sample_rates: OutputFormat::linear_rates(FORMATS),
                tags: vec!["feminine".into(), "clear".into(), "ivr".into()],
            }
        );
        let told = |voice: &Voice| (voice.gender.clone(), voice.language.clone());
        assert_eq!(told(&list[1]), ("male".into(), String::new()));
        assert_eq!(told(&list[2]), (String::new(), "de".into()));
        assert_eq!(voices(b"[7]").unwrap_err().kind, ErrorKind::Protocol);
    }
}
