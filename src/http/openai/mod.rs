//! OpenAI's audio and Realtime API, for programs that are written for it: `/v1/realtime`, `/v1/audio/speech`, `/v1/audio/transcriptions`,
//! `/v1/audio/translations`, `/v1/audio/voices` and `/v1/models`. Another base URL and one of our tokens as the key are all that changes.
//! `docs/openai.md` says what becomes of each field, generated from [`fields`].
//!
//! Names of models are `provider/model[:voice]`, or OpenAI's own, which mean the local engines unless `openai.models_json`
//! says otherwise ([`models`]). Errors have OpenAI's shape ([`shape_errors`]); everything else (who may ask, limits, the work
//! itself) is what `/speak` and sessions use.

mod client_secrets;
mod errors;
pub mod fields;
mod models;
mod realtime;
mod speech;
mod subtitles;
mod transcriptions;
mod upload;
mod voices;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use actix_web::HttpResponseBuilder;
use actix_web::http::Method;

use super::auth::protected;
use super::entries::{Endpoint, at};
use super::error::{ApiError, Code};
use client_secrets::ClientSecrets;
pub use errors::shape_errors;
pub use fields::page;
use models::Models;
use vivavoce_config::Settings;
use vivavoce_quotas::{FairQueue, Share};

/// What the handlers need beside the rest of the server's state.
pub struct OpenAi {
    models: Arc<Models>,
    /// The recogniser and the voice of Realtime sessions that name none.
    realtime_stt: String,
    realtime_tts: String,
    /// Keys for browsers.
    secrets: ClientSecrets,
    /// Where files are kept while they are transcribed.
    folder: PathBuf,
    /// Files that are received and transcribed at once.
    transcriptions: FairQueue,
}

impl OpenAi {
    /// From valid settings.
    pub fn new(settings: &Settings) -> Self {
        let named = settings.openai.models_json.as_ref();
        Self {
            models: Arc::new(Models::new(named).unwrap_or_default()),
            realtime_stt: settings.openai.realtime_stt.clone(),
            realtime_tts: settings.openai.realtime_tts.clone(),
            secrets: ClientSecrets::new(settings.openai.client_secret_key.as_ref()),
            folder: settings.storage.data_dir.clone(),
            transcriptions: FairQueue::new(settings.limits.transcriptions, Share::of(settings)),
        }
    }
}

/// Problems with the settings.
pub fn problems(settings: &Settings) -> Vec<String> {
    let mut problems = models::problems(settings);
    let key = settings.openai.client_secret_key.as_ref();
    problems.extend(client_secrets::problem(key));
    for (setting, name) in [
        ("openai.realtime_stt", &settings.openai.realtime_stt),
        ("openai.realtime_tts", &settings.openai.realtime_tts),
    ] {
        if name.is_empty() {
            problems.push(format!("{setting}: must not be empty"));
        }
    }
    problems
}

/// Below this everything is OpenAI's.
pub const PREFIX: &str = "/v1/";

/// How long a form with a file may take to arrive.
const UPLOAD: Duration = Duration::from_mins(10);

/// A request that cannot be carried out, with the field that is wrong.
fn invalid(problem: impl Into<String>) -> ApiError {
    ApiError::new(Code::InvalidRequest, problem)
}

/// Tells in a header which fields of the request had no effect.
fn name_ignored(response: &mut HttpResponseBuilder, mut fields: Vec<&'static str>) {
    fields.sort_unstable();
    fields.dedup();
    if !fields.is_empty() {
        response.insert_header(("x-ignored", fields.join(", ")));
    }
}

/// The paths, which OpenAI documents.
pub fn endpoints() -> Vec<Endpoint> {
    let form = |handling: super::entries::Handling| {
        handling.with_upload(upload::FORM_BYTES, UPLOAD, "limits.transcriptions")
    };
    vec![
        at("/v1/models").get(protected(models::list)),
        at("/v1/models/{model:.*}").get(protected(models::show)),
        at("/v1/audio/voices").get(protected(voices::list)),
        at("/v1/realtime").on(Method::GET, realtime::handling()),
        at("/v1/realtime/client_secrets")
            .on(Method::POST, protected(client_secrets::create).with_body()),
        at("/v1/realtime/sessions").on(
            Method::POST,
            protected(client_secrets::create_beta).with_body(),
        ),
        at("/v1/realtime/transcription_sessions").on(
            Method::POST,
            protected(client_secrets::create_beta_transcription).with_body(),
        ),
        at("/v1/audio/speech").on(Method::POST, protected(speech::speak).with_body()),
        at("/v1/audio/transcriptions")
            .on(Method::POST, form(protected(transcriptions::transcribe))),
        at("/v1/audio/translations").on(Method::POST, form(protected(transcriptions::translate))),
    ]
}
