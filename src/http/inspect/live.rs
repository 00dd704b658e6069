//! The live list of sessions as server-sent events (HTML, section 9.2): the whole list first, as `sessions`, then what has
//! changed, at most once a second, as `changed`.

use std::sync::Arc;
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::header;
use actix_web::web::{self, Bytes};
use futures_util::stream;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::super::error::{ApiError, Code};
use super::super::state::AppState;
use super::feed::{Change, Feed};
use vivavoce_auth::Access;
use vivavoce_quotas::shared_limit::Permit;

/// The media type.
pub const EVENT_STREAM: &str = "text/event-stream";

/// After such a silence a comment is sent, so that nobody in between takes the connection for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// After this the client comes again, with a token that is still good.
const LASTS: Duration = Duration::from_mins(5);

/// Somebody who watches.
struct Watcher {
    first: Option<Bytes>,
    feed: Arc<Feed>,
    access: Access,
    changes: broadcast::Receiver<Arc<Change>>,
    until: Instant,
    draining: CancellationToken,
    _permit: Permit,
}

impl Watcher {
    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            let change = tokio::select! {
                () = self.draining.cancelled() => return None,
                change = timeout_at(self.until, timeout(KEEP_ALIVE, self.changes.recv())) => change.ok()?,
            };
            let event = match change {
                Err(_) => Bytes::from_static(b":\n\n"),
                Ok(Ok(change)) => change.seen_by(&self.access),
                Ok(Err(RecvError::Lagged(_))) => self.feed.whole(&self.access).await?,
                Ok(Err(RecvError::Closed)) => return None,
            };
            if !event.is_empty() {
                return Some(event);
            }
        }
    }
}

/// Starts the stream.
pub async fn stream_sessions(
    state: &web::Data<AppState>,
    access: Access,
) -> Result<HttpResponse, ApiError> {
    let overloaded = |message| ApiError::new(Code::Overloaded, message).retry_after(LASTS / 100);
    if state.draining.is_cancelled() {
        return Err(overloaded("the server is stopping"));
    }
    let watching = state.feed.watch(&access);
    let too_many = "too many watch the sessions already; ask for the list without events";
    let (permit, changes) = watching.map_err(|_| overloaded(too_many))?;
    // After the watch has begun: what changes meanwhile comes again.
    let first = state.feed.whole(&access).await;
    let watcher = Watcher {
        first: Some(first.ok_or_else(|| overloaded("the server is stopping"))?),
        feed: Arc::clone(&state.feed),
        access,
        changes,
        until: Instant::now() + LASTS,
        draining: state.draining.clone(),
        _permit: permit,
    };
    let events = stream::unfold(watcher, async |mut watcher| {
        let event = watcher.next().await?;
        Some((Ok::<_, std::convert::Infallible>(event), watcher))
    });
    Ok(HttpResponse::Ok()
        .content_type(EVENT_STREAM)
        .insert_header((header::CACHE_CONTROL, "no-store"))
        // A proxy that waits for more would make the list stand still.
        .insert_header(("x-accel-buffering", "no"))
        .streaming(events))
}
