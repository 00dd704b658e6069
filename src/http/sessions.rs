//! `GET /sessions` and `DELETE /sessions/{stream_id}`: live sessions and telephone calls.

use std::time::Duration;

use actix_web::web;
use schemars::JsonSchema;
use serde::Serialize;

use super::error::{ApiError, Code};
use super::recording::{Of, several};
use super::state::AppState;
use crate::auth::Entered;
use vivavoce_actors::registry::calls::{CallInfo, ListCalls};
use vivavoce_actors::registry::sessions::{EndByName, ListSessions, NotEnded, SessionInfo};
use vivavoce_actors::session::StreamId;

/// How long ending a session may take; longer than it takes to play out its last words.
const PATIENCE: Duration = Duration::from_secs(8);

/// Response of `GET /sessions`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SessionList {
    sessions: Vec<SessionInfo>,
    /// Telephone calls, including those that ended in the last minute.
    calls: Vec<CallInfo>,
}

/// Response of `DELETE /sessions/{stream_id}`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Ended {
    #[schemars(extend("const" = "ended"))]
    status: &'static str,
    stream_id: StreamId,
}

/// Lists configured sessions, and calls.
pub async fn list(
    Entered(access): Entered,
    state: web::Data<AppState>,
) -> Result<web::Json<SessionList>, ApiError> {
    let calls = ListCalls {
        access: access.clone(),
    };
    let calls = state.calls.send(calls).await?;
    let list = state.sessions.send(ListSessions { access }).await;
    let sessions = list?;
    Ok(web::Json(SessionList { sessions, calls }))
}

/// Ends a session, and responds when it has ended.
pub async fn end(
    Entered(access): Entered,
    state: web::Data<AppState>,
    name: web::Path<String>,
    of: web::Query<Of>,
) -> Result<web::Json<Ended>, ApiError> {
    let unknown = || ApiError::new(Code::NotFound, "stream_id: no live session has this name");
    let stream_id = StreamId::parse(&name).map_err(|_| unknown())?;
    let order = EndByName {
        stream_id: stream_id.clone(),
        whose: of.whose()?,
        access,
    };
    let gone = state.sessions.send(order).await?;
    let gone = gone.map_err(|why| match why {
        NotEnded::Unknown => unknown(),
        NotEnded::Several => several(),
    })?;
    let ended = tokio::time::timeout(PATIENCE, gone.cancelled()).await;
    ended.map_err(|_| ApiError::new(Code::Internal, "the session does not end"))?;
    let status = "ended";
    Ok(web::Json(Ended { status, stream_id }))
}
