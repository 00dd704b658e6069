//! A recogniser and a synthesiser that do next to nothing: what they answer depends on how much they are given, never
//! on what, and costs the same every time. For measuring everything around them; off unless the operator asks.

mod onsets;
mod stt;
mod tts;

use std::sync::Arc;

use vivavoce_config as config;
use vivavoce_seams::ProviderTable;

/// The slug of both.
pub const SLUG: &str = "null";

/// Adds them where the settings say so.
pub fn add_to(table: &mut ProviderTable, settings: &config::Providers) {
    if settings.null_enabled {
        table.add_speech_to_text(Arc::new(stt::NullStt));
        table.add_text_to_speech(Arc::new(tts::NullTts));
    }
}
