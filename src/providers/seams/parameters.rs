//! What becomes of each field of `stt_config` and `tts_config` at a vendor, as data. The table in `docs/providers.md` is
//! generated from it, and sessions report ignored fields by it.

use serde::Serialize;

/// What a vendor makes of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Honoured {
    /// Its own parameter of this name does it.
    Own(&'static str),
    /// We do it before or behind the vendor.
    Converted(&'static str),
    /// Nothing does it, and why. A session that asks for it is told once.
    Ignored(&'static str),
}

/// A field and what becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Parameter {
    /// Its name on the wire.
    pub field: &'static str,
    /// What becomes of it.
    pub honoured: Honoured,
}

/// A row of a vendor's table: `own("model", "model")`.
pub const fn own(field: &'static str, parameter: &'static str) -> Parameter {
    let honoured = Honoured::Own(parameter);
    Parameter { field, honoured }
}

/// A row of a vendor's table: what we do ourselves.
pub const fn converted(field: &'static str, how: &'static str) -> Parameter {
    let honoured = Honoured::Converted(how);
    Parameter { field, honoured }
}

/// A row of a vendor's table: what it does not know.
pub const fn ignored(field: &'static str, why: &'static str) -> Parameter {
    let honoured = Honoured::Ignored(why);
    Parameter { field, honoured }
}

/// Every field of `stt_config` that concerns the vendor; each vendor's table has these rows.
pub const STT_FIELDS: &[&str] = &[
    "language",
    "languages",
    "model",
    "encoding",
    "sample_rate",
    "channels",
    "punctuation",
    "keyterms",
    "diarize",
    "min_confidence",
    "words",
    "auth",
];

/// Every field of `tts_config` that concerns the vendor; each vendor's table has these rows.
pub const TTS_FIELDS: &[&str] = &[
    "model",
    "voice_id",
    "audio_format",
    "sample_rate",
    "speaking_rate",
    "pronunciations",
    "words",
    "auth",
];

/// That a vendor ignores a field, and why, for people; `None` where it is honoured.
pub fn ignored_because(table: &[Parameter], field: &str) -> Option<String> {
    let row = table.iter().find(|row| row.field == field)?;
    match row.honoured {
        Honoured::Ignored(why) => Some(format!("{field}: {why}")),
        Honoured::Own(_) | Honoured::Converted(_) => None,
    }
}
