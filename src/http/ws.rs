//! `GET /ws`: the door to a session.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::auth;
use super::cors::Origins;
use super::error::{ApiError, Code};
use super::limits::Limits;
use super::requests::RequestId;
use super::rtc;
use super::socket::{self, MessageBudget, SocketSettings};
use super::state::AppState;
use crate::actors::session::{self, Caller, Places, SessionServices};
use crate::config::Settings;

/// What `GET /ws` needs beside [`AppState`].
pub struct Sockets {
    settings: SocketSettings,
    services: Arc<SessionServices>,
    sessions: Arc<Semaphore>,
    unconfigured: Arc<Semaphore>,
}

impl Sockets {
    /// The bounds that the settings name.
    pub fn new(settings: &Settings, services: Arc<SessionServices>) -> Self {
        // More than a semaphore can count is more than there can be.
        let places = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        let unfinished = settings.limits.unfinished_message_bytes.0;
        let unfinished = usize::try_from(unfinished).unwrap_or(usize::MAX);
        Self {
            settings: SocketSettings {
                allowed_origins: Origins::new(&settings.server.cors_origins.0),
                idle_timeout: settings.socket.idle_timeout_seconds,
                message_timeout: settings.socket.message_timeout_seconds,
                unfinished: Arc::new(MessageBudget::new(unfinished)),
                max_buffered_audio: settings.socket.max_buffered_audio_ms.0,
            },
            services,
            sessions: places(settings.limits.sessions),
            unconfigured: places(settings.limits.unconfigured_sockets),
        }
    }
}

/// Opens a session. Who asks is found here: a socket may be public, and its payload is not a body.
pub async fn open(
    state: web::Data<AppState>,
    sockets: web::Data<Sockets>,
    limits: web::Data<Limits>,
    request: HttpRequest,
    payload: web::Payload,
) -> actix_web::Result<HttpResponse> {
    let work = state.begin_work()?;
    let (access, pass) = auth::at_socket(&state, &request).await?;
    limits.admit_tenant(&access)?;
    let places = Places {
        session: place(
            &sockets.sessions,
            "as many sessions as limits.sessions allows",
        )?,
        unconfigured: (
            place(
                &sockets.unconfigured,
                "as many sockets without config as limits.unconfigured_sockets allows",
            )?,
            limits.unconfigured_place(&request)?,
        ),
        of_tenant: limits.place_for(&access)?,
        work,
    };
    let caller = Caller {
        access,
        pass,
        request_id: RequestId::of(&request),
        own_url: rtc::own_url(&request),
    };
    let services = Arc::clone(&sockets.services);
    let response = socket::open(&request, payload, &sockets.settings, |writer| {
        session::open(services, places, caller, writer)
    })?;
    Ok(response)
}

fn place(places: &Arc<Semaphore>, full: &str) -> Result<OwnedSemaphorePermit, ApiError> {
    Arc::clone(places).try_acquire_owned().map_err(|_| {
        ApiError::new(Code::Overloaded, format!("there are {full}"))
            .retry_after(std::time::Duration::from_secs(1))
    })
}
