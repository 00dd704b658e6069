//! What sound is and how it changes. Nothing here talks to the outside or knows a vendor.

pub mod format;
pub mod mix;
pub mod pcm;
pub mod resample;
pub mod stretch;

pub use format::{AudioFormat, Channels, Encoding, FormatError, Layout, SampleRate};
pub use pcm::Pcm;
pub use resample::Resampler;
