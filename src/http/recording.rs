//! `/recording/{stream_id}`, its transcript, and `/recordings`. Callers who may not see a recording get the same answer
//! as if it did not exist.

use std::ops::Range;
use std::time::Duration;

use actix_web::body::{MessageBody, SizedStream};
use actix_web::http::header::{
    self, ContentDisposition, ContentRange, ContentRangeSpec, DispositionParam, DispositionType,
    ETag, EntityTag, Header, IfMatch, IfNoneMatch, IfRange,
};
use actix_web::http::{Method, StatusCode};
use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::{ApiError, Code};
use super::limits::Limits;
use super::requests::RequestId;
use super::state::AppState;
use crate::auth::Entered;
use vivavoce_auth::{Access, Whose};
use vivavoce_recordings::audit::{self, Action};
use vivavoce_recordings::catalogue::{Found, Page, Shows, StoredRecording};
use vivavoce_recordings::{Metadata, Recordings};
use vivavoce_seams::{ByteStream, StoreError};

/// `Retry-After` for a recording that is not finished.
const NOT_YET: Duration = Duration::from_secs(5);
/// `Retry-After` if the store is unavailable and gives none.
const AWAY: Duration = Duration::from_secs(10);
/// The maximum number of recordings per page.
const LIMIT: usize = 50;
const MAX_LIMIT: usize = 500;

/// Response of `DELETE /recording/{stream_id}`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Deleted {
    #[schemars(extend("const" = "deleted"))]
    status: &'static str,
    stream_id: String,
}

/// Query of `GET /recordings`.
#[derive(Debug, Deserialize)]
pub struct Wanted {
    limit: Option<usize>,
    after: Option<String>,
}

/// Query of recordings by name, which several tenants may use.
#[derive(Debug, Deserialize)]
pub struct Of {
    tenant: Option<String>,
}

impl Of {
    /// The owner, if one is given.
    pub fn whose(&self) -> Result<Option<Whose>, ApiError> {
        let problem = "tenant: must be a tenant's id, or empty for what belongs to none";
        let whose = self.tenant.as_deref().map(|tenant| {
            Whose::parse(tenant).ok_or_else(|| ApiError::new(Code::InvalidRequest, problem))
        });
        whose.transpose()
    }
}

/// Returns a recording, or a range of its bytes.
pub async fn download(
    Entered(access): Entered,
    state: web::Data<AppState>,
    stream_id: web::Path<String>,
    of: web::Query<Of>,
    request: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let recordings = recordings(&state, &stream_id)?;
    let kept = find(
        recordings,
        &stream_id,
        &of,
        &access,
        Metadata::may_be_read_by,
    )
    .await?;
    let metadata = &kept.metadata;
    if request.method() != Method::HEAD {
        note(recordings, Action::Audio, metadata, &access, &request).await?;
    }
    // The content never changes, so its hash is its entity tag.
    let tag = EntityTag::new_strong(metadata.sha256.clone());
    if let Some(response) = precondition(&request, &tag) {
        return Ok(response);
    }
    let (status, part) = match range(&request, &tag, metadata.size) {
        Asked::All => (StatusCode::OK, 0..metadata.size),
        Asked::Part(part) => (StatusCode::PARTIAL_CONTENT, part),
        Asked::Nothing => return Ok(unsatisfiable(metadata.size)),
    };
    let mut response = HttpResponse::build(status);
    response
        .content_type("audio/ogg")
        .insert_header(ETag(tag))
        .insert_header((header::ACCEPT_RANGES, "bytes"))
        .insert_header((header::CACHE_CONTROL, "private, no-cache"))
        .insert_header(ContentDisposition {
            disposition: DispositionType::Attachment,
            parameters: vec![DispositionParam::Filename(format!(
                "{}.ogg",
                metadata.stream_id
            ))],
        });
    if status == StatusCode::PARTIAL_CONTENT {
        response.insert_header(ContentRange(ContentRangeSpec::Bytes {
            range: Some((part.start, part.end - 1)),
            instance_length: Some(metadata.size),
        }));
    }
    response.no_chunking(part.end - part.start);
    if request.method() == Method::HEAD || part.is_empty() {
        let nothing = futures_util::stream::empty::<Result<web::Bytes, actix_web::Error>>();
        let body = SizedStream::new(part.end - part.start, nothing);
        return Ok(response.body(body));
    }
    let length = part.end - part.start;
    let sound = recordings.sound(&kept, Some(part)).await;
    // It may have been deleted a moment ago.
    let sound = sound.map_err(|error| failed(&error))?;
    Ok(response.body(sized(length, sound)))
}

/// Returns a transcript: one JSON object per line.
pub async fn transcript(
    Entered(access): Entered,
    state: web::Data<AppState>,
    stream_id: web::Path<String>,
    of: web::Query<Of>,
    request: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let recordings = recordings(&state, &stream_id)?;
    let kept = find(
        recordings,
        &stream_id,
        &of,
        &access,
        Metadata::may_be_read_by,
    )
    .await?;
    if request.method() != Method::HEAD {
        note(
            recordings,
            Action::Transcript,
            &kept.metadata,
            &access,
            &request,
        )
        .await?;
    }
    let found = recordings.transcript(&kept).await;
    let (size, lines) = found.map_err(|error| failed(&error))?;
    let mut response = HttpResponse::Ok();
    response
        .content_type("application/x-ndjson")
        .insert_header((header::CACHE_CONTROL, "private, no-cache"))
        .no_chunking(size);
    Ok(response.body(sized(size, lines)))
}

/// A body of known length. If the store fails midway, the response is cut off.
fn sized(length: u64, pieces: ByteStream) -> impl MessageBody {
    let pieces = pieces.map(|piece| {
        piece.map_err(|error| {
            tracing::warn!(%error, "a recording could not be read to its end");
            actix_web::error::ErrorInternalServerError("the recording cannot be read")
        })
    });
    SizedStream::new(length, pieces)
}

/// Deletes a recording.
pub async fn delete(
    Entered(access): Entered,
    state: web::Data<AppState>,
    stream_id: web::Path<String>,
    of: web::Query<Of>,
    request: HttpRequest,
) -> Result<web::Json<Deleted>, ApiError> {
    let recordings = recordings(&state, &stream_id)?;
    let kept = find(
        recordings,
        &stream_id,
        &of,
        &access,
        Metadata::may_be_seen_by,
    )
    .await?;
    note(
        recordings,
        Action::Delete,
        &kept.metadata,
        &access,
        &request,
    )
    .await?;
    let removed = recordings.remove(&kept).await;
    removed.map_err(|error| failed(&error))?;
    Ok(web::Json(Deleted {
        status: "deleted",
        stream_id: kept.metadata.stream_id,
    }))
}

/// Lists recordings: those of tenants first, each ordered by name.
pub async fn list(
    Entered(access): Entered,
    state: web::Data<AppState>,
    wanted: web::Query<Wanted>,
) -> Result<web::Json<Page>, ApiError> {
    let recordings = state.recordings.as_ref().ok_or_else(unavailable)?;
    let limit = wanted.limit.unwrap_or(LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        let problem = format!("limit: must be 1 to {MAX_LIMIT}");
        return Err(ApiError::new(Code::InvalidRequest, problem));
    }
    let page = recordings
        .page(&access, wanted.after.as_deref(), limit)
        .await;
    page.map(web::Json).map_err(|error| failed(&error))
}

/// Notes that somebody has access to a recording, which is refused where that fails.
async fn note(
    recordings: &Recordings,
    action: Action,
    metadata: &Metadata,
    access: &Access,
    request: &HttpRequest,
) -> Result<(), ApiError> {
    let tenant = access.tenant().map(|tenant| tenant.as_str().to_owned());
    let id = RequestId::of(request);
    let limits = request.app_data::<web::Data<Limits>>();
    let noted = audit::Access {
        action,
        stream_id: metadata.stream_id.clone(),
        owner: metadata.tenant.clone(),
        by_tenant: tenant,
        address: limits.and_then(|limits| limits.address(request)),
        request_id: (!id.is_empty()).then_some(id),
    };
    recordings.audit().note(noted).await.map_err(|error| {
        tracing::error!(%error, "recording.audit_file cannot be written: an access to a recording is refused");
        ApiError::new(Code::StorageError, "the access cannot be noted")
    })
}

fn recordings<'a>(state: &'a AppState, stream_id: &str) -> Result<&'a Recordings, ApiError> {
    check(stream_id)?;
    state.recordings.as_deref().ok_or_else(unavailable)
}

async fn find(
    recordings: &Recordings,
    stream_id: &str,
    of: &Of,
    access: &Access,
    shows: Shows,
) -> Result<StoredRecording, ApiError> {
    let whose = of.whose()?;
    let found = recordings.find(stream_id, whose.as_ref(), access, shows);
    match found.await {
        Ok(Found::Stored(kept)) => Ok(*kept),
        Ok(Found::Ambiguous) => Err(several()),
        Ok(Found::NotYet) => {
            let message = "stream_id: this recording is not finished yet";
            Err(ApiError::new(Code::RecordingNotFound, message).retry_after(NOT_YET))
        }
        Ok(Found::Nothing) => Err(not_found()),
        Err(error) => Err(failed(&error)),
    }
}

/// Conditional requests: the entity tags that the client has.
fn precondition(request: &HttpRequest, tag: &EntityTag) -> Option<HttpResponse> {
    let strong = |known: &EntityTag| known.strong_eq(tag);
    let matches = match request.get_header::<IfMatch>() {
        Some(IfMatch::Items(tags)) if request.headers().contains_key(header::IF_MATCH) => {
            tags.iter().any(strong)
        }
        _ => true,
    };
    if !matches {
        return Some(HttpResponse::PreconditionFailed().finish());
    }
    if !request.headers().contains_key(header::IF_NONE_MATCH) {
        return None;
    }
    let known = match IfNoneMatch::parse(request) {
        Ok(IfNoneMatch::Any) => true,
        Ok(IfNoneMatch::Items(tags)) => tags.iter().any(|known| known.weak_eq(tag)),
        Err(_) => false,
    };
    known.then(|| {
        let mut response = HttpResponse::NotModified();
        response.insert_header(ETag(tag.clone())).finish()
    })
}

/// The part of a recording that is requested.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    All,
    Part(Range<u64>),
    Nothing,
}

/// A single range is honoured; several ranges, or an invalid one, get the whole content (RFC 9110, section 14.2).
fn range(request: &HttpRequest, tag: &EntityTag, size: u64) -> Asked {
    let Some(text) = request.headers().get(header::RANGE) else {
        return Asked::All;
    };
    if request.headers().contains_key(header::IF_RANGE) {
        let same = matches!(IfRange::parse(request), Ok(IfRange::EntityTag(known)) if known.strong_eq(tag));
        if !same {
            return Asked::All;
        }
    }
    let text = text.to_str().ok();
    text.map_or(Asked::All, |text| part(text, size))
}

pub(super) fn part(text: &str, size: u64) -> Asked {
    let text = text.trim();
    let is_bytes = text
        .get(..6)
        .is_some_and(|unit| unit.eq_ignore_ascii_case("bytes="));
    let Some((first, last)) = text
        .get(6..)
        .filter(|_| is_bytes)
        .and_then(|text| text.split_once('-'))
    else {
        return Asked::All;
    };
    // A number that overflows is beyond any end.
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let (first, last) = (first.trim(), last.trim());
    let part = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(size),
        (Some(first), None) if last.is_empty() => first..size,
        (None, Some(suffix)) if first.is_empty() => size.saturating_sub(suffix)..size,
        _ => return Asked::All,
    };
    if part.start >= part.end {
        Asked::Nothing
    } else {
        Asked::Part(part)
    }
}

fn unsatisfiable(size: u64) -> HttpResponse {
    HttpResponse::RangeNotSatisfiable()
        .insert_header(ContentRange(ContentRangeSpec::Bytes {
            range: None,
            instance_length: Some(size),
        }))
        .finish()
}

/// Exactly the checks of the specification: any other name may be that of a recording, or of none.
fn check(stream_id: &str) -> Result<(), ApiError> {
    if stream_id.is_empty() || stream_id.contains("..") || stream_id.contains('/') {
        return Err(ApiError::new(
            Code::InvalidRequest,
            "stream_id: must not be empty and hold neither .. nor /",
        ));
    }
    Ok(())
}

fn not_found() -> ApiError {
    ApiError::new(
        Code::RecordingNotFound,
        "stream_id: there is no such recording",
    )
}

/// Callers who see all tenants must say whose recording they mean.
pub(super) fn several() -> ApiError {
    ApiError::new(
        Code::AmbiguousStreamId,
        "stream_id: several tenants have one of this name; say whose with ?tenant=",
    )
}

pub(super) fn unavailable() -> ApiError {
    ApiError::new(
        Code::RecordingUnavailable,
        "this server keeps no recordings",
    )
}

pub(super) fn failed(error: &StoreError) -> ApiError {
    if let StoreError::NotFound = error {
        return not_found();
    }
    tracing::warn!(%error, "the store of recordings failed");
    match error {
        StoreError::Unavailable { retry_after, .. } => {
            let message = "the store of recordings is away";
            let patience = retry_after.unwrap_or(AWAY);
            ApiError::new(Code::RecordingUnavailable, message).retry_after(patience)
        }
        _ => ApiError::new(Code::StorageError, "the store of recordings failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_the_standard() {
        for (text, asked) in [
            ("bytes=0-0", Asked::Part(0..1)),
            ("bytes=90-", Asked::Part(90..100)),
            ("bytes=90-1000", Asked::Part(90..100)),
            ("bytes=-10", Asked::Part(90..100)),
            ("bytes=-1000", Asked::Part(0..100)),
            ("Bytes= 1 - 2", Asked::Part(1..3)),
            ("bytes=100-", Asked::Nothing),
            ("bytes=-0", Asked::Nothing),
            ("bytes=99999999999999999999-", Asked::Nothing),
            ("bytes=5-99999999999999999999", Asked::Part(5..100)),
            ("bytes=5-4", Asked::All),
            ("bytes=0-1,5-6", Asked::All),
            ("bytes=-", Asked::All),
            ("bytes=a-b", Asked::All),
            ("bytes", Asked::All),
            ("lines=1-2", Asked::All),
        ] {
            assert_eq!(part(text, 100), asked, "{text}");
        }
        assert_eq!(part("bytes=0-", 0), Asked::Nothing);
    }
}
