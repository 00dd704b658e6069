//! A form with a file (`multipart/form-data`), within limits. What its fields mean is up to the vendor's code.

use actix_multipart::Multipart;
use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::{Map, Value, json};

/// Fields of one form.
const MOST_FIELDS: usize = 100;
/// The most bytes of a field that is no file.
const FIELD_BYTES: usize = 1 << 16;

/// A form, without the `[]` behind names of lists.
#[derive(Debug, Default)]
pub(super) struct Form {
    /// The field `file`.
    pub(super) file: Option<Bytes>,
    /// The others: a text, or a list where there are several of a name.
    pub(super) fields: Map<String, Value>,
}

/// Why a form cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum FormError {
    /// It is none.
    #[error("{0}")]
    Broken(#[from] actix_multipart::MultipartError),
    /// It has too much.
    #[error("the form has too many fields")]
    TooMany,
    /// A field has too much.
    #[error("the field {0} is too large")]
    TooLarge(String),
}

impl Form {
    /// Reads a form whose file may have so many bytes.
    pub(super) async fn read(mut form: Multipart, file_bytes: usize) -> Result<Self, FormError> {
        let mut read = Self::default();
        let mut count = 0;
        while let Some(part) = form.next().await {
            let mut part = part?;
            count += 1;
            if count > MOST_FIELDS {
                return Err(FormError::TooMany);
            }
            let name = part.name().unwrap_or_default().to_owned();
            let limit = if name == "file" {
                file_bytes
            } else {
                FIELD_BYTES
            };
            let bytes = part.bytes(limit).await;
            let bytes = bytes.map_err(|_| FormError::TooLarge(name.clone()))??;
            if name == "file" {
                read.file = Some(bytes);
                continue;
            }
            let name = name.split('[').next().unwrap_or_default().to_owned();
            let value = String::from_utf8_lossy(&bytes).into_owned();
            match read.fields.get_mut(&name) {
                None => drop(read.fields.insert(name, value.into())),
                Some(Value::Array(all)) => all.push(value.into()),
                Some(one) => *one = json!([one.take(), value]),
            }
        }
        Ok(read)
    }

    /// A field that is there once.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.fields.get(name)?.as_str()
    }

    /// Every value of a field.
    pub(super) fn all(&self, name: &str) -> Vec<&str> {
        match self.fields.get(name) {
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
            Some(one) => one.as_str().into_iter().collect(),
            None => Vec::new(),
        }
    }
}
