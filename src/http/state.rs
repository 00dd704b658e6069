//! What every handler can reach.

use std::sync::Arc;

use actix::Addr;
use tokio_util::sync::CancellationToken;

use crate::actors::registry::voices::VoiceRegistry;
use crate::synthesis::Synthesizer;

/// Shared by all workers.
pub struct AppState {
    /// Makes one-shot speech.
    pub synthesizer: Arc<Synthesizer>,
    /// Knows the voices.
    pub voices: Addr<VoiceRegistry>,
    /// Cancelled when the server begins to stop.
    pub draining: CancellationToken,
}
