//! Our detector of voice activity and our denoiser by their sources, with what they need.

#[path = "../../../src/audio/denoise.rs"]
pub mod denoise;
#[path = "../../../src/audio/format.rs"]
pub mod format;
#[path = "../../../src/audio/pcm.rs"]
pub mod pcm;
#[path = "../../../src/audio/resample.rs"]
pub mod resample;
#[path = "../../../src/audio/vad.rs"]
pub mod vad;
#[path = "../../../src/audio/window.rs"]
pub mod window;

pub use format::{AudioFormat, Channels, Encoding, FormatError, Layout, SampleRate};
pub use pcm::Pcm;
pub use resample::Resampler;
