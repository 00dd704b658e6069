//! The state shared by all handlers.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::error::{ApiError, Code};
use super::former::AtFormer;
use super::inspect::{Feed, Model, SettingsInForce};
use super::openai::OpenAi;
use super::whip::Sessions as WhipSessions;
use vivavoce_actors::egress::EgressService;
use vivavoce_actors::mixes::RoomMixes;
use vivavoce_actors::registry::calls::CallRegistry;
use vivavoce_actors::registry::hooks::HookRegistry;
use vivavoce_actors::registry::rooms::RoomRegistry;
use vivavoce_actors::registry::sessions::SessionRegistry;
use vivavoce_actors::registry::voices::VoiceRegistry;
use vivavoce_auth::Authenticator;
use vivavoce_core::dialect::Dialect;
use vivavoce_llm::Endpoints;
use vivavoce_quotas::{FairQueue, Quota};
use vivavoce_recordings::Recordings;
use vivavoce_rooms::RoomServer;
use vivavoce_seams::ProviderTable;
use vivavoce_synthesis::Synthesizer;
use vivavoce_telephony::trunks::Trunks;

/// The shared state.
pub struct AppState {
    /// The authenticator; `None` if authentication is off.
    pub auth: Option<Authenticator>,
    /// The synthesiser.
    pub synthesizer: Arc<Synthesizer>,
    /// The providers, for what is transcribed in one request.
    pub providers: Arc<ProviderTable>,
    /// Counts recognisers.
    pub recognisers: Quota,
    /// What OpenAI's interface needs beside the rest.
    pub openai: OpenAi,
    /// The language models.
    pub llm: Arc<Endpoints>,
    /// The registry of voices.
    pub voices: Addr<VoiceRegistry>,
    /// The registry of sessions.
    pub sessions: Addr<SessionRegistry>,
    /// The registry of rooms.
    pub rooms: Addr<RoomRegistry>,
    /// Serialises listing rooms, in fair order.
    pub room_lists: FairQueue,
    /// The registry of calls.
    pub calls: Addr<CallRegistry>,
    /// The registry of call hooks.
    pub hooks: Addr<HookRegistry>,
    /// The embedded SFU; `None` if rooms are elsewhere or off.
    pub embedded_rooms: Option<RoomServer>,
    /// The server that this one replaces.
    pub former: Option<AtFormer>,
    /// The SIP trunks of the embedded rooms.
    pub trunks: Option<Arc<Trunks>>,
    /// The recordings; `None` if recording is off.
    pub recordings: Option<Arc<Recordings>>,
    /// The egress of the embedded rooms; `None` without such rooms or if recording is off.
    pub egress: Option<EgressService>,
    /// The mixes of the embedded rooms; `None` without such rooms.
    pub mixes: Option<RoomMixes>,
    /// The sessions by WHIP and WHEP.
    pub whip: WhipSessions,
    /// Which models of local speech are installed, looked up at each call.
    pub models: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// The models of the catalogue and their states, looked up at each call.
    pub model_list: Arc<dyn Fn() -> Vec<Model> + Send + Sync>,
    /// The settings in force.
    pub settings: SettingsInForce,
    /// The live list of sessions.
    pub feed: Arc<Feed>,
    /// Cancelled when the server begins to stop.
    pub draining: CancellationToken,
    /// Cancelled once another server has taken over: what still comes here came over connections from before, and nobody else
    /// can answer it.
    pub given: CancellationToken,
    /// Work in progress; the server stops when it is finished.
    pub work: TaskTracker,
    /// In which clients name things.
    pub dialect: Arc<Dialect>,
}

impl AppState {
    /// Whether whoever comes now is refused: others can go to another server.
    pub fn refuses(&self) -> bool {
        self.draining.is_cancelled() && !self.given.is_cancelled()
    }

    /// Starts work that the server waits for before it stops; refused while it drains.
    pub fn begin_work(&self) -> Result<TaskTrackerToken, ApiError> {
        if self.refuses() {
            let message = "the server is stopping; try another";
            let patience = Duration::from_secs(1);
            return Err(ApiError::new(Code::Overloaded, message).retry_after(patience));
        }
        Ok(self.work.token())
    }
}
