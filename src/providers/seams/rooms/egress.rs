//! The trait of services that record rooms by themselves and store the recordings in our bucket: LiveKit's egress. When to
//! start and stop, and what becomes of a recording, is decided in `src/recordings/egress.rs`.

use std::time::Duration;

use async_trait::async_trait;

use super::RoomError;

/// Records rooms.
#[async_trait]
pub trait RoomEgress: Send + Sync {
    /// Its name in messages.
    fn slug(&self) -> &'static str;

    /// Begins to record all sound of a room into the object of this key, and gives the recording's id.
    async fn start(&self, room: &str, key: &str) -> Result<String, RoomError>;

    /// Stops a recording. One that has ended by itself may be refused.
    async fn stop(&self, id: &str) -> Result<(), RoomError>;

    /// What has become of a recording.
    async fn look(&self, id: &str) -> Result<EgressState, RoomError>;
}

/// What has become of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EgressState {
    /// It goes on, begins, or is being put away.
    Goes,
    /// It is where it should be.
    Stored {
        /// How long its sound lasts.
        duration: Duration,
        /// Whether it was stopped, and not cut off.
        complete: bool,
    },
    /// It will never be there; why, for people.
    Failed(String),
}
