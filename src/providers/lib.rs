//! Whom we talk to: one folder per vendor behind the seams of [`vivavoce_seams`]. A provider states what it accepts as data
//! ([`Accepts`](vivavoce_seams::Accepts), [`Speaks`](vivavoce_seams::Speaks)); converting to it is the pipeline's work. Nothing here knows of sessions, HTTP or sockets.

pub mod azure;
pub mod cartesia;
pub mod deepgram;
pub mod elevenlabs;
pub mod google;
pub mod local;
pub mod null;
pub mod s3;
pub mod transport;
