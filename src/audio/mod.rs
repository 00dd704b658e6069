//! What sound is and how it changes. Nothing here talks to the outside or knows a vendor.

pub mod format;
pub mod pcm;
pub mod resample;

pub use format::{AudioFormat, Channels, Encoding, FormatError, Layout, SampleRate};
pub use pcm::Pcm;
pub use resample::Resampler;
