//! What every handler can reach.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::error::{ApiError, Code};
use vivavoce_actors::registry::calls::CallRegistry;
use vivavoce_actors::registry::hooks::HookRegistry;
use vivavoce_actors::registry::rooms::RoomRegistry;
use vivavoce_actors::registry::sessions::SessionRegistry;
use vivavoce_actors::registry::voices::VoiceRegistry;
use vivavoce_auth::Authenticator;
use vivavoce_quotas::FairQueue;
use vivavoce_recordings::Recordings;
use vivavoce_rooms::RoomServer;
use vivavoce_synthesis::Synthesizer;
use vivavoce_telephony::trunks::Trunks;

/// Shared by all workers.
pub struct AppState {
    /// Decides who comes in; `None` lets everybody in.
    pub auth: Option<Authenticator>,
    /// Makes one-shot speech.
    pub synthesizer: Arc<Synthesizer>,
    /// Knows the voices.
    pub voices: Addr<VoiceRegistry>,
    /// Knows the sessions.
    pub sessions: Addr<SessionRegistry>,
    /// Knows whose rooms there are.
    pub rooms: Addr<RoomRegistry>,
    /// Whoever wants a list of rooms takes turns.
    pub room_lists: FairQueue,
    /// Knows the calls.
    pub calls: Addr<CallRegistry>,
    /// Knows who is told of calls.
    pub hooks: Addr<HookRegistry>,
    /// The rooms of this process; `None` where they are elsewhere, or nowhere.
    pub embedded_rooms: Option<RoomServer>,
    /// Their trunks.
    pub trunks: Option<Arc<Trunks>>,
    /// Knows the recordings; `None` where nothing is recorded.
    pub recordings: Option<Arc<Recordings>>,
    /// Cancelled when the server begins to stop.
    pub draining: CancellationToken,
    /// What is being done; the server stops when it is done.
    pub work: TaskTracker,
}

impl AppState {
    /// Begins a piece of work that the server waits for before it stops; refused once it drains.
    pub fn begin_work(&self) -> Result<TaskTrackerToken, ApiError> {
        if self.draining.is_cancelled() {
            let message = "the server is stopping; try another";
            let patience = Duration::from_secs(1);
            return Err(ApiError::new(Code::Overloaded, message).retry_after(patience));
        }
        Ok(self.work.token())
    }
}
