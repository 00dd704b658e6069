//! What S3's errors mean for whoever keeps recordings (codes: "Error responses" of Amazon's S3 API reference).

use std::error::Error;
use std::time::Duration;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};

use crate::StoreError;

/// The kind of an error, with what the store said.
pub(super) fn store_error<E>(error: &SdkError<E, HttpResponse>) -> StoreError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    let answer = error.raw_response();
    let status = answer.map(|answer| answer.status().as_u16());
    let retry_after = answer.and_then(|answer| answer.headers().get("retry-after")?.parse().ok());
    let code = error.code().unwrap_or_default();
    let message = match (code, error.message()) {
        ("", _) => vivavoce_core::causes::causes(error),
        (code, None) => code.to_owned(),
        (code, Some(message)) => format!("{code}: {message}"),
    };
    match (code, status) {
        ("NoSuchBucket", _) => StoreError::Unavailable {
            retry_after: None,
            message,
        },
        ("PreconditionFailed", _) | (_, Some(412)) => StoreError::Exists,
        ("InsufficientStorage" | "QuotaExceeded" | "XMinioStorageFull", _) | (_, Some(507)) => {
            StoreError::Full
        }
        (_, Some(401 | 403)) => StoreError::Denied(message),
        ("NoSuchKey" | "NotFound" | "NoSuchUpload", _) | (_, Some(404)) => StoreError::NotFound,
        (_, None) if without_credentials(error) => StoreError::Denied(message),
        _ => StoreError::Unavailable {
            retry_after: retry_after.map(Duration::from_secs),
            message,
        },
    }
}

/// Nobody can say whether it comes back; people do make buckets that are missing.
pub(super) fn no_bucket() -> StoreError {
    StoreError::Unavailable {
        retry_after: None,
        message: "there is no such bucket".to_owned(),
    }
}

/// An answer that has broken off.
pub(super) fn away(error: &dyn Error) -> StoreError {
    StoreError::Unavailable {
        retry_after: None,
        message: vivavoce_core::causes::causes(error),
    }
}

/// The default chain of AWS has found none.
fn without_credentials(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<CredentialsError>() {
            return true;
        }
        cause = error.source();
    }
    false
}
