//! Names of models. `provider/model[:voice]` says all; the slug of a provider alone, with or without a voice, means its
//! default model; any other name is looked up among those of `openai.models_json` and OpenAI's own.

use std::collections::BTreeMap;

use actix_web::web;
use serde::{Deserialize, Serialize};

use crate::auth::Entered;
use crate::error::{ApiError, Code};
use crate::state::AppState;
use vivavoce_config::{JsonText, Settings};
use vivavoce_seams::ProviderTable;

/// OpenAI's names that programs have as their defaults. They mean the local engines, if nothing else is said of them.
const OPENAIS: [&str; 10] = [
    "gpt-4o-mini-transcribe",
    "gpt-4o-mini-transcribe-2025-12-15",
    "gpt-4o-mini-tts",
    "gpt-4o-mini-tts-2025-12-15",
    "gpt-4o-transcribe",
    "gpt-4o-transcribe-diarize",
    "gpt-transcribe",
    "tts-1",
    "tts-1-hd",
    "whisper-1",
];
/// The provider that there always is.
const LOCAL: &str = "local";
/// How much of an unknown name an error repeats.
const SHOWN: usize = 60;

/// What a name means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The provider's slug.
    pub provider: String,
    /// Its model; empty means its default.
    pub model: String,
    /// The voice, where the name has one.
    pub voice: Option<String>,
}

/// The names that are not of the form `provider/model[:voice]`.
pub struct Models(BTreeMap<String, Named>);

impl Default for Models {
    fn default() -> Self {
        let local = Named::read(LOCAL);
        let named = OPENAIS.map(|name| (name.to_owned(), local.clone()));
        Self(named.into())
    }
}

impl Named {
    fn read(name: &str) -> Self {
        let (provider, rest) = match name.find(['/', ':']) {
            Some(at) => name.split_at(at),
            None => (name, ""),
        };
        let (model, voice) = match rest.split_once(':') {
            Some((model, voice)) => (model, Some(voice).filter(|voice| !voice.is_empty())),
            None => (rest, None),
        };
        Self {
            provider: provider.to_owned(),
            model: model.strip_prefix('/').unwrap_or(model).to_owned(),
            voice: voice.map(str::to_owned),
        }
    }

    fn exists(&self, table: &ProviderTable) -> bool {
        let slug = self.provider.as_str();
        table.text_to_speech(slug).is_some() || table.speech_to_text(slug).is_some()
    }
}

impl Models {
    /// From `openai.models_json`; on failure all problems.
    pub fn new(setting: Option<&JsonText>) -> Result<Self, Vec<String>> {
        let mut named = Self::default();
        let Some(JsonText(json)) = setting else {
            return Ok(named);
        };
        let shape = || vec!["must be {\"name\": \"provider/model:voice\", …}".to_owned()];
        let given = BTreeMap::<String, String>::deserialize(json).map_err(|_| shape())?;
        let mut problems = Vec::new();
        for (name, meaning) in given {
            if name.is_empty() || meaning.is_empty() {
                problems.push(format!("{name:?} and its meaning must not be empty"));
            }
            named.0.insert(name, Named::read(&meaning));
        }
        if problems.is_empty() {
            Ok(named)
        } else {
            Err(problems)
        }
    }

    /// What a name means, if there is such a provider.
    pub fn find(&self, name: &str, table: &ProviderTable) -> Result<Named, ApiError> {
        let model = self.0.get(name).cloned();
        let model = model.unwrap_or_else(|| Named::read(name));
        if model.exists(table) {
            return Ok(model);
        }
        let shown: String = name.chars().take(SHOWN).collect();
        let problem = format!(
            "model: there is no {shown:?}; GET /v1/models lists the names, and provider/model[:voice] names any other"
        );
        Err(ApiError::new(Code::ModelNotFound, problem))
    }

    fn names<'a>(&'a self, table: &'a ProviderTable) -> impl Iterator<Item = (&'a str, &'a str)> {
        let known = self.0.iter();
        let known = known.filter(|(_, model)| model.exists(table));
        known.map(|(name, model)| (name.as_str(), model.provider.as_str()))
    }
}

/// Problems with the setting.
pub fn problems(settings: &Settings) -> Vec<String> {
    let problems = Models::new(settings.openai.models_json.as_ref()).err();
    let problems = problems.unwrap_or_default().into_iter();
    problems
        .map(|problem| format!("openai.models_json: {problem}"))
        .collect()
}

/// The model that a request names.
pub(super) fn wanted(state: &AppState, name: Option<&str>) -> Result<Named, ApiError> {
    let missing = || ApiError::new(Code::InvalidRequest, "model: is required");
    let name = name.filter(|name| !name.is_empty()).ok_or_else(missing)?;
    state.openai.models.find(name, &state.providers)
}

/// A model, as OpenAI describes one.
#[derive(Debug, Serialize)]
pub struct ModelObject {
    id: String,
    object: &'static str,
    /// Not known.
    created: u64,
    owned_by: String,
}

impl ModelObject {
    fn new(id: impl Into<String>, owner: &str) -> Self {
        Self {
            id: id.into(),
            object: "model",
            created: 0,
            owned_by: owner.to_owned(),
        }
    }
}

/// `GET /v1/models`.
#[derive(Debug, Serialize)]
pub struct ModelList {
    object: &'static str,
    data: Vec<ModelObject>,
}

/// OpenAI's names and those of the settings, each provider, and the local models that are installed.
pub async fn list(_: Entered, state: web::Data<AppState>) -> web::Json<ModelList> {
    let table = &state.providers;
    let named = state.openai.models.names(table);
    let mut data: Vec<ModelObject> = named
        .map(|(name, owner)| ModelObject::new(name, owner))
        .collect();
    let mut slugs = table.text_to_speech_slugs();
    slugs.extend(table.speech_to_text_slugs());
    slugs.sort_unstable();
    slugs.dedup();
    data.extend(slugs.iter().map(|slug| ModelObject::new(*slug, slug)));
    let installed = (state.models)();
    data.extend(
        installed
            .iter()
            .map(|model| ModelObject::new(format!("{LOCAL}/{model}"), LOCAL)),
    );
    web::Json(ModelList {
        object: "list",
        data,
    })
}

/// `GET /v1/models/{model}`.
pub async fn show(
    _: Entered,
    state: web::Data<AppState>,
    name: web::Path<String>,
) -> Result<web::Json<ModelObject>, ApiError> {
    let model = wanted(&state, Some(&name))?;
    Ok(web::Json(ModelObject::new(
        name.into_inner(),
        &model.provider,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(provider: &str, model: &str, voice: Option<&str>) -> Named {
        Named {
            provider: provider.to_owned(),
            model: model.to_owned(),
            voice: voice.map(str::to_owned),
        }
    }

    #[test]
    fn a_name_says_provider_model_and_voice() {
        for (name, wanted) in [
            ("local", model("local", "", None)),
            ("local:slt", model("local", "", Some("slt"))),
            ("local/hibari", model("local", "hibari", None)),
            ("deepgram/nova-3", model("deepgram", "nova-3", None)),
            (
                "elevenlabs/eleven_flash_v2_5:JBFq",
                model("elevenlabs", "eleven_flash_v2_5", Some("JBFq")),
            ),
            (
                "azure/:en-US-AvaMultilingualNeural",
                model("azure", "", Some("en-US-AvaMultilingualNeural")),
            ),
            ("google/a/b:c:d", model("google", "a/b", Some("c:d"))),
            ("local:", model("local", "", None)),
        ] {
            assert_eq!(Named::read(name), wanted, "{name}");
        }
    }

    #[test]
    fn openais_names_mean_the_local_engines_unless_a_setting_says_otherwise() {
        let setting = JsonText(serde_json::json!({
            "tts-1": "elevenlabs/eleven_flash_v2_5:JBFq", "mine": "azure",
        }));
        let Models(named) = Models::new(Some(&setting)).unwrap_or_default();
        assert_eq!(named["whisper-1"], model("local", "", None));
        assert_eq!(named["tts-1"].provider, "elevenlabs");
        assert_eq!(named["mine"].provider, "azure");
        for wrong in [serde_json::json!([]), serde_json::json!({"a": ""})] {
            assert!(Models::new(Some(&JsonText(wrong))).is_err());
        }
    }
}
