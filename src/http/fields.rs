//! Validation of fields shared by several endpoints; errors name the field.

use super::error::{ApiError, Code};
use vivavoce_core::phone::PhoneNumber;

/// The maximum length of a name or identity, in characters.
pub const MAX_NAME_CHARS: usize = 256;

/// A required text that is not blank.
pub fn required(value: Option<String>, field: &str) -> Result<String, ApiError> {
    let refused =
        |problem: &str| ApiError::new(Code::InvalidRequest, format!("{field}: {problem}"));
    match value {
        None => Err(refused("is required")),
        Some(text) if text.trim().is_empty() => Err(refused("must not be empty")),
        Some(text) if text.chars().count() > MAX_NAME_CHARS => Err(refused(&format!(
            "must be at most {MAX_NAME_CHARS} characters"
        ))),
        Some(text) => Ok(text),
    }
}

/// A required telephone number.
pub fn phone_number(value: Option<String>, field: &str) -> Result<PhoneNumber, ApiError> {
    let text = required(value, field)?;
    PhoneNumber::parse(&text)
        .map_err(|error| ApiError::new(Code::InvalidPhoneNumber, format!("{field}: {error}")))
}

/// A field that may be absent, read as one that may not if it is there.
pub fn if_given<T>(
    value: Option<String>,
    field: &str,
    read: fn(Option<String>, &str) -> Result<T, ApiError>,
) -> Result<Option<T>, ApiError> {
    value.map(|value| read(Some(value), field)).transpose()
}
