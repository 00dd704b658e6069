//! `/inspect`: what goes on in the server, for people who look, as the console shows it. Reading alone, but for sending
//! webhooks again. Whoever has a tenant sees what is the tenant's; what is of the whole server (settings, vendors, the log
//! without a session) is for callers without one.

mod feed;
pub mod live;

use std::sync::Arc;

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, web};
use arc_swap::ArcSwap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::body::JsonBody;
use super::error::{ApiError, Code};
use super::state::AppState;
use crate::auth::Entered;
pub use feed::{Feed, SessionRow};
use live::stream_sessions;
use vivavoce_actors::registry::hooks::{ListWaiting, SendAgain, WaitingWebhooks};
use vivavoce_actors::registry::sessions::{ObserveSession, ObserveSessions, ObservedSession};
use vivavoce_auth::Access;
use vivavoce_config::Resolved;
use vivavoce_recordings::search::{FoundPage, Sought};
use vivavoce_socket::{LEVEL, TimelineEntry};
use vivavoce_telemetry::log_tail::{self, LogLine};
use vivavoce_telemetry::vendors::{self, VendorHealth};

/// Lines of the log in one answer.
const MAX_LINES: usize = 500;
/// The longest list of words to be looked for.
const MAX_WORDS_BYTES: usize = 200;
/// A vendor fails if there was an error so lately, or if so many of a hundred requests were errors.
const FAILED_LATELY_MS: u64 = 60_000;
const FAILING_PERCENT: usize = 20;

/// Refuses whoever has a tenant.
fn operator_only(access: &Access, what: &str) -> Result<(), ApiError> {
    if access.tenant().is_some() {
        let message = format!("{what} are of the whole server: for callers without a tenant");
        return Err(ApiError::new(Code::OperatorOnly, message));
    }
    Ok(())
}

/// Response of `GET /inspect/caller`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Caller {
    /// `operator` sees everything, `tenant` what is the tenant's.
    #[schemars(extend("enum" = ["operator", "tenant"]))]
    role: &'static str,
    /// The tenant; null without one.
    tenant: Option<String>,
    /// Whether the token changes nothing.
    read_only: bool,
    /// Whether tokens are needed at all.
    authentication: bool,
    /// The server's version.
    version: &'static str,
}

/// Who asks.
pub async fn caller(
    Entered(access): Entered,
    state: web::Data<AppState>,
) -> Result<web::Json<Caller>, ApiError> {
    Ok(web::Json(Caller {
        role: if access.tenant().is_some() {
            "tenant"
        } else {
            "operator"
        },
        tenant: access.tenant().map(|tenant| tenant.as_str().to_owned()),
        read_only: access.reads_only(),
        authentication: state.auth.is_some(),
        version: env!("CARGO_PKG_VERSION"),
    }))
}

/// Response of `GET /inspect/sessions`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SessionRows {
    /// Those that are open, and those that have ended in the last ten minutes, at most 200.
    sessions: Vec<SessionRow>,
}

/// Lists sessions with what they do; as events for whoever accepts those.
pub async fn sessions(
    Entered(access): Entered,
    state: web::Data<AppState>,
    request: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let accepts = request.headers().get(header::ACCEPT);
    let streams = accepts.is_some_and(|accepts| {
        accepts
            .as_bytes()
            .starts_with(live::EVENT_STREAM.as_bytes())
    });
    if streams {
        return stream_sessions(&state, access).await;
    }
    let observed = state.sessions.send(ObserveSessions { access }).await?;
    let mut sessions: Vec<_> = observed.iter().map(SessionRow::of).collect();
    sessions.sort_by_key(SessionRow::id);
    let list = SessionRows { sessions };
    Ok(HttpResponse::Ok()
        .insert_header((header::CACHE_CONTROL, "no-store"))
        .json(list))
}

/// Query of a session's timeline.
#[derive(Debug, Deserialize)]
pub struct After {
    /// The `version` of the answer before.
    version: Option<u64>,
    /// The first level wanted.
    level: Option<u64>,
}

/// Response of `GET /inspect/sessions/{id}`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SessionTimeline {
    /// The session.
    session: SessionRow,
    /// To ask for what comes after this.
    version: u64,
    /// How long the session has lasted, in milliseconds.
    now_ms: u64,
    /// What was sent and received; of what was told before, only what has changed.
    entries: Vec<TimelineLine>,
    /// How long each level is.
    level_ms: u64,
    /// The number of the first level.
    first_level: u64,
    /// How loud it was that was heard: magnitudes, 0 to 255.
    heard: Vec<u8>,
    /// The same of what was played.
    played: Vec<u8>,
}

/// Something that was sent or received.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TimelineLine {
    /// Names it in this session.
    id: u64,
    /// When, in milliseconds since the session began.
    at_ms: u64,
    /// The last time, where there were several that are one.
    until_ms: u64,
    /// How often.
    times: u32,
    /// Whether the client sent it.
    from_client: bool,
    /// The message, as `/schemas/socket.json` describes it; of a client's, what may be shown.
    message: Value,
}

impl From<TimelineEntry> for TimelineLine {
    fn from(entry: TimelineEntry) -> Self {
        Self {
            id: entry.id,
            at_ms: entry.at_ms,
            until_ms: entry.until_ms,
            times: entry.times,
            from_client: entry.from_client,
            message: serde_json::from_str(&entry.text).unwrap_or_default(),
        }
    }
}

async fn find(state: &AppState, access: Access, id: &str) -> Result<ObservedSession, ApiError> {
    let unknown = || ApiError::new(Code::NotFound, "id: no session has this number");
    let number = id.parse().map_err(|_| unknown())?;
    let found = state
        .sessions
        .send(ObserveSession { number, access })
        .await?;
    found.ok_or_else(unknown)
}

/// What has happened in a session lately.
pub async fn session(
    Entered(access): Entered,
    state: web::Data<AppState>,
    id: web::Path<String>,
    after: web::Query<After>,
) -> Result<web::Json<SessionTimeline>, ApiError> {
    let found = find(&state, access, &id).await?;
    let version = after.version.unwrap_or(0);
    let part = found.timeline.since(version, after.level.unwrap_or(0));
    Ok(web::Json(SessionTimeline {
        session: SessionRow::of(&found),
        version: part.version,
        now_ms: part.now_ms,
        entries: part.entries.into_iter().map(TimelineLine::from).collect(),
        level_ms: LEVEL.as_millis() as u64,
        first_level: part.first_level,
        heard: part.heard,
        played: part.played,
    }))
}

/// Query of the search for recordings.
#[derive(Debug, Deserialize)]
pub struct RecordingQuery {
    from: Option<u64>,
    until: Option<u64>,
    words: Option<String>,
    after: Option<String>,
}

/// Finds recordings by time and words.
pub async fn recordings(
    Entered(access): Entered,
    state: web::Data<AppState>,
    query: web::Query<RecordingQuery>,
) -> Result<web::Json<FoundPage>, ApiError> {
    let recordings = state.recordings.as_ref();
    let recordings = recordings.ok_or_else(super::recording::unavailable)?;
    let words = query.words.as_deref().unwrap_or_default();
    if words.len() > MAX_WORDS_BYTES {
        let problem = format!("words: must be at most {MAX_WORDS_BYTES} bytes");
        return Err(ApiError::new(Code::InvalidRequest, problem));
    }
    let sought = Sought::new(query.from, query.until, words);
    let found = recordings
        .search(&access, &sought, query.after.as_deref())
        .await;
    let found = found.map_err(|error| super::recording::failed(&error))?;
    Ok(web::Json(found))
}

/// The webhooks that wait.
pub async fn webhooks(
    Entered(access): Entered,
    state: web::Data<AppState>,
) -> Result<web::Json<WaitingWebhooks>, ApiError> {
    let waiting = state.hooks.send(ListWaiting { access }).await?;
    Ok(web::Json(waiting))
}

/// Body of `POST /inspect/webhooks/retry`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    /// Which one; all that wait where it is absent.
    #[serde(default)]
    id: Option<String>,
}

/// Response of `POST /inspect/webhooks/retry`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Retried {
    /// How many are sent again now.
    retried: usize,
}

/// Sends webhooks again now.
pub async fn retry_webhooks(
    Entered(access): Entered,
    state: web::Data<AppState>,
    JsonBody(request): JsonBody<RetryRequest>,
) -> Result<web::Json<Retried>, ApiError> {
    let named = request.id.is_some();
    let id = request.id;
    let retried = state.hooks.send(SendAgain { access, id }).await?;
    if named && retried == 0 {
        let message = "id: no webhook that waits has this id";
        return Err(ApiError::new(Code::NotFound, message));
    }
    Ok(web::Json(Retried { retried }))
}

/// Response of `GET /inspect/vendors`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct VendorList {
    /// By what they do.
    vendors: Vec<Vendor>,
}

/// A provider, and how it did in the last 15 minutes. Delays are milliseconds: the middle one, and the one that nineteen of
/// twenty were not above.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Vendor {
    /// What it does; empty where only its errors are known.
    #[schemars(extend("enum" = ["stt", "tts", "llm", ""]))]
    task: &'static str,
    /// Its slug.
    provider: String,
    /// `idle` where nobody asked it, else whether it does what it is asked.
    #[schemars(extend("enum" = ["idle", "good", "failing"]))]
    state: &'static str,
    /// Requests, at most the last 200.
    requests: usize,
    /// Errors, by their kinds.
    errors: std::collections::BTreeMap<&'static str, usize>,
    /// How long ago the last one was, in milliseconds; null where there is none.
    last_error_ago_ms: Option<u64>,
    /// How often it took over from another.
    took_over: usize,
    /// To the first audio of a voice, or to the open stream of a recogniser.
    began_ms: Option<[u64; 2]>,
    /// From the end of the text to the last audio, or from the end of the audio to the final.
    finished_ms: Option<[u64; 2]>,
}

impl From<VendorHealth> for Vendor {
    fn from(health: VendorHealth) -> Self {
        let ms = |delay: std::time::Duration| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        let failed: usize = health.errors.values().sum();
        let lately = health.last_error_ago.map(ms);
        let is_failing = lately.is_some_and(|ago| ago < FAILED_LATELY_MS)
            || failed * 100 > FAILING_PERCENT * (health.requests + failed);
        Self {
            state: match (is_failing, health.requests + failed) {
                (_, 0) => "idle",
                (true, _) => "failing",
                (false, _) => "good",
            },
            task: health.task,
            provider: health.provider,
            requests: health.requests,
            errors: health.errors,
            last_error_ago_ms: lately,
            took_over: health.took_over,
            began_ms: health.began.map(|delays| delays.map(ms)),
            finished_ms: health.finished.map(|delays| delays.map(ms)),
        }
    }
}

/// How the vendors do.
pub async fn vendors(
    Entered(access): Entered,
    state: web::Data<AppState>,
) -> Result<web::Json<VendorList>, ApiError> {
    operator_only(&access, "the vendors' numbers")?;
    let mut known: Vec<Vendor> = vendors::health().into_iter().map(Vendor::from).collect();
    let all = [
        ("stt", state.providers.speech_to_text_slugs()),
        ("tts", state.providers.text_to_speech_slugs()),
    ];
    for (task, slugs) in all {
        for slug in slugs {
            let is_known = |vendor: &Vendor| vendor.task == task && vendor.provider == slug;
            if !known.iter().any(is_known) {
                known.push(Vendor::from(VendorHealth {
                    task,
                    provider: slug.to_owned(),
                    requests: 0,
                    errors: std::collections::BTreeMap::new(),
                    last_error_ago: None,
                    took_over: 0,
                    began: None,
                    finished: None,
                }));
            }
        }
    }
    known.sort_by(|a, b| (a.task, &a.provider).cmp(&(b.task, &b.provider)));
    Ok(web::Json(VendorList { vendors: known }))
}

/// Response of `GET /inspect/models`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ModelList {
    /// Those of the catalogue.
    models: Vec<Model>,
}

/// A model of local speech.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// What it does.
    #[schemars(extend("enum" = ["engine", "recognition", "synthesis", "turn"]))]
    pub task: &'static str,
    /// What it is, for people.
    pub about: String,
    /// BCP-47, `*` for many.
    pub languages: Vec<String>,
    /// SPDX.
    pub licence: String,
    /// What its files have, in bytes.
    pub size: u64,
    /// Whether it can be used.
    #[schemars(extend("enum" = ["installed", "missing", "partial", "damaged", "unsupported"]))]
    pub state: &'static str,
}

/// The models of local speech.
pub async fn models(
    Entered(_): Entered,
    state: web::Data<AppState>,
) -> Result<web::Json<ModelList>, ApiError> {
    let list = Arc::clone(&state.model_list);
    // It looks at files.
    let models = web::block(move || list()).await;
    let models = models.map_err(|error| ApiError::new(Code::Internal, error.to_string()))?;
    Ok(web::Json(ModelList { models }))
}

/// The settings in force, which may change while the server runs.
pub struct SettingsInForce(ArcSwap<Vec<Resolved>>);

impl SettingsInForce {
    /// These settings.
    pub fn new(settings: Vec<Resolved>) -> Self {
        Self(ArcSwap::from_pointee(settings))
    }

    /// These, from now on.
    pub fn replace(&self, settings: Vec<Resolved>) {
        self.0.store(Arc::new(settings));
    }
}

/// Response of `GET /inspect/settings`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SettingList {
    /// In the order of the documents.
    settings: Vec<SettingInForce>,
}

/// A setting as it is in force.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SettingInForce {
    /// Its key.
    key: &'static str,
    /// Its environment name.
    env: &'static str,
    /// The value; `***` for a secret, as for credentials in URLs; empty where there is none.
    value: String,
    /// Where the value comes from.
    origin: String,
    /// The default.
    default: &'static str,
    /// What it means.
    meaning: &'static str,
    /// Whether SIGHUP has it read again.
    reloaded: bool,
}

/// The settings in force.
pub async fn settings(
    Entered(access): Entered,
    state: web::Data<AppState>,
) -> Result<web::Json<SettingList>, ApiError> {
    operator_only(&access, "settings")?;
    let settings = state.settings.0.load();
    let settings = settings.iter().map(|resolved| SettingInForce {
        key: resolved.setting.key,
        env: resolved.setting.env,
        value: resolved.shown().into_owned(),
        origin: resolved.origin.to_string(),
        default: resolved.setting.default,
        meaning: resolved.setting.meaning.trim(),
        reloaded: resolved.setting.is_reloaded(),
    });
    let settings = settings.collect();
    Ok(web::Json(SettingList { settings }))
}

/// Query of the log.
#[derive(Debug, Deserialize)]
pub struct LogQuery {
    session: Option<String>,
    level: Option<String>,
    after: Option<u64>,
}

/// Response of `GET /inspect/log`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LogTail {
    /// The oldest first.
    lines: Vec<Line>,
}

/// A line of the log.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Line {
    /// Its number: pass the last one as `after`.
    number: u64,
    /// When, Unix time in milliseconds.
    at: u64,
    /// How bad it is.
    #[schemars(extend("enum" = ["ERROR", "WARN", "INFO"]))]
    level: &'static str,
    /// The part of the server.
    target: &'static str,
    /// What it says.
    text: String,
    /// The request that it is about; empty where there is none.
    request_id: String,
}

impl From<LogLine> for Line {
    fn from(line: LogLine) -> Self {
        Self {
            number: line.number,
            at: line.at,
            level: line.level,
            target: line.target,
            text: line.text,
            request_id: line.request_id,
        }
    }
}

/// The last lines of the log.
pub async fn log(
    Entered(access): Entered,
    state: web::Data<AppState>,
    query: web::Query<LogQuery>,
) -> Result<web::Json<LogTail>, ApiError> {
    let session = query.session.as_ref().filter(|id| !id.is_empty());
    let request_id = match session {
        Some(id) => {
            let found = find(&state, access, id).await?;
            Some(found.timeline.summary().facts.request_id)
        }
        None => {
            operator_only(&access, "log lines without a session")?;
            None
        }
    };
    let levels: &[&str] = match query.level.as_deref() {
        None | Some("info") => &["ERROR", "WARN", "INFO"],
        Some("warn") => &["ERROR", "WARN"],
        Some("error") => &["ERROR"],
        Some(_) => {
            let problem = "level: must be error, warn or info";
            return Err(ApiError::new(Code::InvalidRequest, problem));
        }
    };
    let lines = log_tail::lines(query.after.unwrap_or(0), MAX_LINES, |line| {
        let of_session = request_id
            .as_ref()
            .is_none_or(|id| !id.is_empty() && line.request_id == *id);
        of_session && levels.contains(&line.level)
    });
    let lines = lines.into_iter().map(Line::from).collect();
    Ok(web::Json(LogTail { lines }))
}
