//! What sound is and how it changes. Nothing here talks to the outside or knows a vendor.

pub mod adpcm;
pub mod bus;
pub mod companding;
pub mod convert;
pub mod decode;
pub mod denoise;
pub mod encode;
pub mod format;
pub mod jitter;
pub mod linear16;
pub mod mix;
pub mod mp3;
pub mod mpeg;
pub mod offline;
pub mod ogg;
pub mod opus;
pub mod pacer;
pub mod pcm;
pub mod resample;
pub mod room_mix;
pub mod stretch;
pub mod timeline;
pub mod vad;
pub mod wav;
pub mod window;

pub use format::{AudioFormat, Channels, Encoding, FormatError, Layout, SampleRate};
pub use offline::OfflineResampler;
pub use pcm::Pcm;
pub use resample::Resampler;
