//! `GET /ws`: the WebSocket of a session.

use std::sync::Arc;
use std::time::Duration;

use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};

use super::auth;
use super::cors::Origins;
use super::entries::{Callers, Handling};
use super::handshake;
use super::limits::{self, Limits};
use super::requests::RequestId;
use super::rtc;
use super::state::AppState;
use vivavoce_actors::session::{self, Caller, Places, SessionServices};
use vivavoce_config::Settings;
use vivavoce_quotas::Share;
use vivavoce_replicas::{FORWARDED, Handshake, Replicas, TAKES_SESSIONS};
use vivavoce_socket::{self as socket, Backlog, MessageBudget, SocketSettings};

/// What `GET /ws` needs besides [`AppState`].
pub struct Sockets {
    settings: SocketSettings,
    services: Arc<SessionServices>,
}

impl Sockets {
    /// The limits configured in the settings.
    pub fn new(settings: &Settings, services: Arc<SessionServices>) -> Self {
        let unfinished = settings.limits.unfinished_message_bytes.0;
        let unfinished = usize::try_from(unfinished).unwrap_or(usize::MAX);
        Self {
            settings: SocketSettings {
                allowed_origins: Origins::new(&settings.server.cors_origins.0),
                idle_timeout: settings.socket.idle_timeout_seconds,
                message_timeout: settings.socket.message_timeout_seconds,
                unfinished: MessageBudget::shared(limits::size(settings, unfinished)),
                backlog: Backlog::new(Share::of(settings)),
                max_buffered_audio: settings.socket.max_buffered_audio_ms.0,
            },
            services,
        }
    }

    /// The settings of sockets, with the memory that all of them share.
    pub const fn settings(&self) -> &SocketSettings {
        &self.settings
    }

    /// What all sessions share.
    pub const fn services(&self) -> &Arc<SessionServices> {
        &self.services
    }
}

/// The entry.
pub fn handling() -> Handling {
    auth::public(open)
        .for_callers(Callers::AuthenticatedIfRequired)
        .with_messages(
            socket::MAX_TEXT_BYTES,
            "socket.idle_timeout_seconds",
            "limits.sessions",
        )
}

/// Opens a session. Authentication happens here rather than in the middleware: the socket may be public, and its
/// payload is not a body.
pub async fn open(
    state: web::Data<AppState>,
    sockets: web::Data<Sockets>,
    limits: web::Data<Limits>,
    request: HttpRequest,
    payload: web::Payload,
) -> actix_web::Result<HttpResponse> {
    let (access, pass) = auth::at_socket(&state, &request).await?;
    // A session that waits for its client has its place, and its share of a drain. Looked for only where there is none.
    // Sessions of other replicas have theirs there.
    let replicas = sockets.services.replicas.as_deref();
    let replicas = replicas.filter(|replicas| replicas.has_others());
    let may_resume = || replicas.is_some() || sockets.services.resumes.has_one_of(&access);
    let (work, may_begin) = match state.begin_work() {
        Err(_) if may_resume() => (state.work.token(), false),
        work => (work?, true),
    };
    limits.admit_tenant(&access)?;
    let session = match limits.session(&access) {
        Ok(place) => may_begin.then_some(place),
        Err(_) if may_resume() => None,
        Err(refused) => return Err(refused.into()),
    };
    let places = Places {
        session,
        unconfigured: limits.unconfigured_socket(&request)?,
        work,
    };
    let key = limits.party(&request);
    request.extensions_mut().insert(key);
    let own_url = rtc::own_url(&request);
    let caller = Caller {
        access,
        pass,
        request_id: RequestId::of(&request),
        takes: takes(&request),
        least_lead: Duration::ZERO,
        handshake: replicas
            .filter(|replicas| may_pass_on(replicas, &request))
            .map(|_| handshake_of(&request, &limits).with_rooms_url(&own_url)),
        own_url,
    };
    let services = Arc::clone(&sockets.services);
    socket::open(&request, payload, &sockets.settings, |writer| {
        session::open(services, places, caller, writer)
    })
    .map_err(handshake::refused)
}

/// Whether this socket may go on at another replica.
fn may_pass_on(replicas: &Replicas, request: &HttpRequest) -> bool {
    let forwarded = request.headers().get(FORWARDED);
    forwarded.is_none_or(|replica| replicas.passes_on(replica.as_bytes()))
}

/// Whether another replica has opened this socket, and takes the session that is here.
fn takes(request: &HttpRequest) -> bool {
    let headers = request.headers();
    let takes = headers.get(TAKES_SESSIONS);
    headers.contains_key(FORWARDED) && takes.is_some_and(|format| format == "1")
}

/// How this socket was opened, for another replica.
fn handshake_of(request: &HttpRequest, limits: &Limits) -> Handshake {
    let headers = request.headers().iter();
    let headers = headers.map(|(name, value)| (name.as_str(), value.as_bytes()));
    let authorization = auth::credentials(request).bearer();
    Handshake::new(headers, authorization, limits.address(request))
}
