//! `GET /voices`: the voices of each provider.

use std::collections::BTreeMap;

use actix_web::web;
use serde::Deserialize;

use super::error::{ApiError, Code};
use super::state::AppState;
use crate::auth::Entered;
use vivavoce_actors::registry::voices::{ListVoices, VoiceList};

/// Query of `GET /voices`.
#[derive(Debug, Deserialize)]
pub struct Query {
    provider: Option<String>,
}

/// Returns an object of lists, by provider slug.
pub async fn list(
    _: Entered,
    state: web::Data<AppState>,
    query: web::Query<Query>,
) -> Result<web::Json<BTreeMap<&'static str, VoiceList>>, ApiError> {
    lists(&state, query.into_inner()).await.map(web::Json)
}

/// The lists by provider slug.
pub(super) async fn lists(
    state: &AppState,
    Query { provider }: Query,
) -> Result<BTreeMap<&'static str, VoiceList>, ApiError> {
    let answer = state
        .voices
        .send(ListVoices {
            provider: provider.clone(),
        })
        .await;
    let lists = answer
        .map_err(|error| {
            ApiError::new(
                Code::Internal,
                format!("the list of voices is not to be had: {error}"),
            )
        })?
        .map_err(|error| ApiError::new(Code::ProviderError, error.to_string()))?;
    match (lists, provider) {
        (Some(lists), _) => Ok(lists),
        (None, None) => Ok(BTreeMap::new()),
        (None, Some(slug)) => Err(ApiError::new(
            Code::UnsupportedProvider,
            format!(
                "no provider {:?}",
                slug.chars().take(40).collect::<String>()
            ),
        )),
    }
}
