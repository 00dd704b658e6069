//! `GET /v1/audio/voices`: OpenAI has no list of voices; programs that ask for one know it from servers like this.

use actix_web::web;
use serde::Serialize;

use crate::auth::Entered;
use crate::error::ApiError;
use crate::state::AppState;
use crate::voices;

/// A voice.
#[derive(Debug, Serialize)]
pub struct VoiceObject {
    /// What goes into `voice`, with a model of this provider.
    id: String,
    object: &'static str,
    name: String,
    provider: &'static str,
    language: String,
    gender: String,
}

/// All voices.
#[derive(Debug, Serialize)]
pub struct VoiceObjects {
    object: &'static str,
    voices: Vec<VoiceObject>,
}

/// The voices of all providers that answer, or of one.
pub async fn list(
    _: Entered,
    state: web::Data<AppState>,
    query: web::Query<voices::Query>,
) -> Result<web::Json<VoiceObjects>, ApiError> {
    let lists = voices::lists(&state, query.into_inner()).await?;
    let mut all = Vec::new();
    for (provider, list) in lists {
        all.extend(list.iter().map(|voice| VoiceObject {
            id: voice.id.clone(),
            object: "voice",
            name: voice.name.clone(),
            provider,
            language: voice.language.clone(),
            gender: voice.gender.clone(),
        }));
    }
    Ok(web::Json(VoiceObjects {
        object: "list",
        voices: all,
    }))
}
