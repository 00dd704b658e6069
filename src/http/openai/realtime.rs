//! `GET /v1/realtime`: the handshake of Realtime sessions. What is said over the socket is known to `vivavoce_realtime`.

use std::sync::Arc;
use std::time::Duration;

use actix_web::http::header::{AUTHORIZATION, HeaderName, HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};
use serde::Deserialize;
use serde_json::Value;

use super::models::{Models, Named};
use super::speech::{OPENAI, is_openais_voice};
use super::transcriptions::spoken_in;
use crate::auth;
use crate::entries::{Callers, Handling};
use crate::error::{ApiError, Code};
use crate::limits::Limits;
use crate::requests::RequestId;
use crate::rtc;
use crate::state::AppState;
use crate::ws::Sockets;
use crate::{handshake, limits};
use vivavoce_actors::session::{Caller, Places};
use vivavoce_auth::{Access, Pass};
use vivavoce_realtime as realtime;
use vivavoce_realtime::{Begin, Kind, Names, Open, Problem, SessionObject, Version, is_openais};
use vivavoce_seams::ProviderTable;
use vivavoce_socket::{self as socket, MAX_TEXT_BYTES};

/// With which browsers say their key: they cannot set a header.
const KEY_PROTOCOL: &str = "openai-insecure-api-key.";
/// With which clients ask for the shape of the beta.
const BETA_PROTOCOL: &str = "openai-beta.realtime-v1";
const BETA_HEADER: HeaderName = HeaderName::from_static("openai-beta");
const PROTOCOL: &str = "realtime";

/// The entry.
pub fn handling() -> Handling {
    auth::public(open)
        .for_callers(Callers::Authenticated)
        .with_messages(
            MAX_TEXT_BYTES,
            "socket.idle_timeout_seconds",
            "limits.sessions",
        )
}

/// What a client says when it connects.
#[derive(Debug, Deserialize)]
pub(super) struct Said {
    /// The language model; of transcription sessions the recogniser's.
    pub(super) model: Option<String>,
    /// `transcription`, or nothing.
    pub(super) intent: Option<String>,
}

/// What names mean at this server.
pub(super) struct ServerNames {
    models: Arc<Models>,
    table: Arc<ProviderTable>,
    /// What the settings name.
    stt: String,
    tts: String,
}

impl ServerNames {
    pub(super) fn new(state: &AppState) -> Self {
        Self {
            models: Arc::clone(&state.openai.models),
            table: Arc::clone(&state.providers),
            stt: state.openai.realtime_stt.clone(),
            tts: state.openai.realtime_tts.clone(),
        }
    }

    fn find(&self, name: &str) -> Result<Named, String> {
        let found = self.models.find(name, &self.table);
        found.map_err(|error| error.to_string())
    }
}

fn named(named: Named) -> realtime::Named {
    realtime::Named {
        provider: named.provider,
        model: named.model,
        voice: named.voice,
    }
}

impl Names for ServerNames {
    fn recogniser(&self, name: Option<&str>) -> Result<realtime::Named, String> {
        let found = match name {
            // OpenAI's own recognisers for this interface.
            Some("gpt-realtime-whisper" | "gpt-live-transcribe") | None => self.find(&self.stt)?,
            Some(name) => self.find(name)?,
        };
        if self.table.speech_to_text(&found.provider).is_none() {
            return Err(format!("model: {} has no recogniser", found.provider));
        }
        Ok(named(found))
    }

    fn voice(&self, name: Option<&str>) -> Result<realtime::Named, String> {
        let own = self.find(&self.tts)?;
        let has_openais = own.provider == OPENAI;
        let found = match name {
            None => own,
            Some(voice) if is_openais_voice(voice) && !has_openais => own,
            Some(name) => match self.find(name) {
                Ok(found) if self.table.text_to_speech(&found.provider).is_some() => found,
                _ => Named {
                    voice: Some(name.to_owned()),
                    ..own
                },
            },
        };
        if self.table.text_to_speech(&found.provider).is_none() {
            return Err(format!("{} has no voices", found.provider));
        }
        Ok(named(found))
    }

    fn language(&self, language: &str) -> String {
        spoken_in(language)
    }

    fn has_turn_model(&self) -> bool {
        self.table.turn_model().is_some()
    }
}

fn refused(problem: Problem) -> ApiError {
    let Problem {
        code,
        message,
        param,
    } = problem;
    let code = match code {
        "model_not_found" => Code::ModelNotFound,
        _ => Code::InvalidRequest,
    };
    let message = match param {
        Some(param) if !message.starts_with(&format!("{param}: ")) => format!("{param}: {message}"),
        _ => message,
    };
    ApiError::new(code, message)
}

/// Whether a name is of a recogniser of OpenAI's: who connects with one wants transcripts.
fn is_recogniser(model: &str) -> bool {
    model.contains("transcribe") || model.contains("whisper")
}

/// What a session begins with. A conversation needs a language model.
pub(super) fn begins(
    state: &AppState,
    access: &Access,
    version: Version,
    said: &Said,
    given: Option<&Value>,
) -> Result<(SessionObject, ServerNames), ApiError> {
    let names = ServerNames::new(state);
    let kind = match (
        said.intent.as_deref(),
        given.and_then(|given| given["type"].as_str()),
    ) {
        (Some("transcription"), _) | (_, Some("transcription")) => Kind::Transcription,
        (None, None) if said.model.as_deref().is_some_and(is_recogniser) => Kind::Transcription,
        (None | Some("conversation" | ""), _) => Kind::Conversation,
        (Some(_), _) => {
            let problem = "intent: must be transcription, or left out";
            return Err(ApiError::new(Code::InvalidRequest, problem));
        }
    };
    let model = said.model.clone().filter(|model| !model.is_empty());
    let mut session = SessionObject::new(kind, model);
    if let Some(given) = given {
        session = session.update(version, given, "session").map_err(refused)?;
    }
    session.config("", &names).map_err(refused)?;
    if kind == Kind::Conversation {
        let model = session.model.as_deref();
        let found = state.llm.of_model(model, access.tenant(), is_openais);
        found.map_err(|error| {
            let problem = format!(
                "model: {error}; ?intent=transcription asks for transcripts alone, which need none"
            );
            ApiError::new(Code::ModelNotFound, problem)
        })?;
    }
    Ok((session, names))
}

/// What a handshake offers as subprotocols.
fn protocols(request: &HttpRequest) -> Vec<String> {
    let headers = request.headers().get_all(SEC_WEBSOCKET_PROTOCOL);
    let headers = headers.filter_map(|header| header.to_str().ok());
    headers
        .flat_map(|header| header.split(','))
        .map(|protocol| protocol.trim().to_owned())
        .collect()
}

/// Who asks, and with what the session begins where the key says so.
async fn identify(
    state: &AppState,
    request: &HttpRequest,
    protocols: &[String],
) -> Result<(Access, Option<Pass>, Option<(Value, Version)>), ApiError> {
    let offered = protocols
        .iter()
        .find_map(|name| name.strip_prefix(KEY_PROTOCOL));
    let header = request.headers().get(AUTHORIZATION);
    let header = header.and_then(|header| header.to_str().ok());
    let bearer = header.and_then(|header| header.strip_prefix("Bearer "));
    let key = bearer.or(offered);
    if let Some(opened) = key.and_then(|key| state.openai.secrets.open(key.trim())) {
        let opened = opened?;
        limits::authenticated(request, opened.access.tenant())?;
        let access = match state.auth {
            None => opened.access.counted_by(auth::stranger(request)),
            Some(_) => opened.access,
        };
        return Ok((access, None, Some((opened.session, opened.version))));
    }
    let offered = offered.filter(|_| bearer.is_none());
    let offered = offered.map(|key| format!("Bearer {key}"));
    let (access, pass) = auth::at_door(state, request, offered.as_deref()).await?;
    Ok((access, pass, None))
}

/// Opens a session.
pub async fn open(
    state: web::Data<AppState>,
    sockets: web::Data<Sockets>,
    limits: web::Data<Limits>,
    said: web::Query<Said>,
    request: HttpRequest,
    payload: web::Payload,
) -> actix_web::Result<HttpResponse> {
    let protocols = protocols(&request);
    let (access, pass, given) = identify(&state, &request, &protocols).await?;
    let work = state.begin_work()?;
    limits.admit_tenant(&access)?;
    let wants_beta = request
        .headers()
        .get(BETA_HEADER)
        .is_some_and(|beta| beta.to_str().is_ok_and(|beta| beta.contains("realtime=v1")));
    let is_beta = wants_beta || protocols.iter().any(|name| name == BETA_PROTOCOL);
    let version = match &given {
        Some((_, version)) => *version,
        None if is_beta => Version::Beta,
        None => Version::Current,
    };
    let given = given.as_ref().map(|(session, _)| session);
    let (session, names) = begins(&state, &access, version, &said, given)?;
    let places = Places {
        session: Some(limits.session(&access)?),
        unconfigured: limits.unconfigured_socket(&request)?,
        work,
    };
    let key = limits.party(&request);
    request.extensions_mut().insert(key);
    let open = Open {
        services: Arc::clone(sockets.services()),
        settings: sockets.settings().clone(),
        places,
        begin: Begin {
            version,
            session,
            seed: uuid::Uuid::new_v4().simple().to_string(),
            names: Arc::new(names),
            endpoints: Arc::clone(&state.llm),
            tenant: access.tenant().cloned(),
        },
        caller: Caller {
            access,
            pass,
            request_id: RequestId::of(&request),
            own_url: rtc::own_url(&request),
            handshake: None,
            takes: false,
            least_lead: Duration::ZERO,
        },
    };
    let opened = socket::open(&request, payload, sockets.settings(), |writer| {
        realtime::open(open, writer)
    });
    let mut response = opened.map_err(handshake::refused)?;
    if protocols.iter().any(|name| name == PROTOCOL) {
        let protocol = HeaderValue::from_static(PROTOCOL);
        response
            .headers_mut()
            .insert(SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    Ok(response)
}
