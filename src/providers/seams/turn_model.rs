//! The seam of a model that hears whether a speaker has finished. When it is asked and what follows from its answer is
//! decided by the sessions ([protocol](../../../docs/protocol.md), "End-of-turn model").

use std::time::Duration;

use async_trait::async_trait;

/// The rate of the sound that the model hears: that of voice activity detection, whose audio it is.
pub const TURN_RATE: vivavoce_audio::SampleRate = vivavoce_audio::SampleRate::HZ_16000;
/// The most sound that it is given.
pub const TURN_SOUND: Duration = Duration::from_secs(8);

/// Why there is no answer. In each case silence decides.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// Too many wait for it already.
    #[error("the end-of-turn model is busy")]
    Busy,
    /// It has not answered in time.
    #[error("the end-of-turn model was late")]
    Late,
    /// It cannot answer.
    #[error("the end-of-turn model has failed: {0}")]
    Failed(String),
}

/// Hears whether a speaker has finished. One serves all sessions.
#[async_trait]
pub trait TurnModel: Send + Sync {
    /// Its name on the wire.
    fn name(&self) -> &'static str;
    /// A session may ask soon: what takes long is done now, in the background.
    fn warm_up(&self) {}
    /// How likely it is, 0–1, that whoever said this has finished: the sound of a turn, mono at [`TURN_RATE`], up to and
    /// including the pause in which this is asked, at most [`TURN_SOUND`]. Resolves within a deadline of its own, after which silence decides, and never makes
    /// others wait for an answer that nobody wants any more.
    async fn finished(&self, sound: Vec<i16>) -> Result<f32, NoAnswer>;
}
