//! The engines that need no key.

pub mod pocketsphinx;
mod utterance;

/// The slug on the wire.
pub const SLUG: &str = "local";
