//! The error body, `{"error": code, "message": text}`, and the single place where failures are mapped to statuses
//! (protocol, section 4).

use std::fmt;
use std::time::Duration;

use actix_web::http::{Method, StatusCode, header};
use actix_web::{HttpResponse, ResponseError};
use schemars::JsonSchema;
use serde::Serialize;

use vivavoce_auth::AuthError;
use vivavoce_quotas::{Kind, Refused};
use vivavoce_seams::{ErrorKind, ProviderError};
use vivavoce_synthesis::SynthesisError;

/// The error codes of the REST API. Each has one status, except where client and server errors must be told apart.
/// Those of authentication are in lower case. The first
/// paragraph of each is the cause, the second one the remedy: the page of errors is made from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// The request is invalid.
    ///
    /// Read `message`, which names the field.
    InvalidRequest,
    /// There is no provider of this name.
    ///
    /// Name one of those that `GET /voices` shows, or set its key.
    UnsupportedProvider,
    /// The text is not a telephone number.
    ///
    /// Write it as `+` and 7 to 15 digits, or as an extension of up to 15.
    InvalidPhoneNumber,
    /// This number is never called.
    ///
    /// Allow its beginning in `sip.allowed_destinations`; emergency numbers stay closed.
    DestinationNotAllowed,
    /// A provider rejected a credential, or there is none.
    ///
    /// With 400 mend `auth` of the request, with 500 the key in the settings.
    ProviderAuth,
    /// Pages of this origin may not open a socket.
    ///
    /// Add the origin to `SERVER_CORS_ORIGINS`.
    OriginNotAllowed,
    /// There is no such path.
    ///
    /// Compare it with `GET /openapi.json`.
    NotFound,
    /// There is no model of this name.
    ///
    /// Name one of `GET /v1/models`.
    ModelNotFound,
    /// The path does not support the method.
    ///
    /// Use one of those in `Allow`.
    MethodNotAllowed,
    /// The request is for another host: a server on loopback without a token answers to its own names alone.
    ///
    /// Add the name to `SERVER_ALLOWED_HOSTS`, or set `AUTH_REQUIRED`.
    MisdirectedRequest,
    /// The body is too large.
    ///
    /// Send at most 1 MiB; of a file for transcription 25.
    PayloadTooLarge,
    /// The body does not say that it is JSON.
    ///
    /// Send `Content-Type: application/json`.
    UnsupportedMediaType,
    /// A provider limits its request rate.
    ///
    /// Wait for `Retry-After`, or ask the provider for more.
    ProviderRateLimited,
    /// A limit of this server is reached, or it is stopping.
    ///
    /// Wait for `Retry-After`; `quota` names what is used up.
    Overloaded,
    /// The synthesis failed.
    ///
    /// Read `message`; try another voice, or the text without what it complains about.
    SynthesisFailed,
    /// A provider failed.
    ///
    /// Try again; read `message`, which has its own words.
    ProviderError,
    /// Rooms are off.
    ///
    /// Unset `RTC_MODE=off`.
    RtcNotConfigured,
    /// There is no gateway for calls.
    ///
    /// Set `SIP_OUTBOUND_ADDRESS`, or send `sip.outbound_address`.
    OutboundAddressNotConfigured,
    /// Recordings are off, or their store is unavailable.
    ///
    /// Check `RECORDING_BACKEND`, the bucket, and `vivavoce recordings list`.
    RecordingUnavailable,
    /// Data on this server's disk, or in its Redis, cannot be read or written.
    ///
    /// Check the disk of `DATA_DIR` and `REDIS_URL`; the log has the cause.
    StorageError,
    /// Reserved for callers without a tenant.
    ///
    /// Use `AUTH_API_SECRET`, or `METRICS_ADDRESS`.
    OperatorOnly,
    /// The token may look at things and not change them.
    ///
    /// Use another token of the same tenant, one that is not `read_only`.
    ReadOnly,
    /// The room belongs to somebody else.
    ///
    /// Use another room, or the token of its owner.
    RoomAccessDenied,
    /// There is no such room, or it is not the caller's.
    ///
    /// List your own with `GET /rtc/rooms`; a room ends when it is empty.
    RoomNotFound,
    /// There is no participant of this identity in the room, or it is no telephone where one is needed.
    ///
    /// See `GET /rtc/rooms/{room_name}`.
    ParticipantNotFound,
    /// The participant has no such track.
    ///
    /// See `tracks` of the participant.
    TrackNotFound,
    /// There is no such recording, it is not finished, or it is not the caller's.
    ///
    /// With `Retry-After`, ask again then; else see `GET /recordings`.
    RecordingNotFound,
    /// Several tenants have something of this name, and the caller may see more than one of them.
    ///
    /// Add `?tenant=`.
    AmbiguousStreamId,
    /// The server's settings define a hook for this host.
    ///
    /// Change `SIP_HOOKS_JSON` instead.
    HookImmutable,
    /// The caller sends too many requests, or uses too much at once.
    ///
    /// Wait for `Retry-After`; `quota` names what is used up.
    RateLimited,
    /// The room provider failed.
    ///
    /// Try again; of a LiveKit deployment check `RTC_URL` and its keys.
    RtcError,
    /// The participant could not be removed.
    ///
    /// Try again; read `message`.
    RemovalFailed,
    /// The track could not be muted or unmuted.
    ///
    /// Read `message`; a LiveKit deployment must allow remote unmuting.
    MuteFailed,
    /// The call could not be placed.
    ///
    /// Read `message`; a private gateway needs `SIP_ALLOW_PRIVATE_OUTBOUND`.
    CallFailed,
    /// The call could not be transferred; it goes on.
    ///
    /// Read `message`; the trunk must take REFER.
    TransferFailed,
    /// An internal error.
    ///
    /// Try again; report it with the lines of the log that have the `x-request-id`.
    Internal,
    /// A token is required and none was sent.
    ///
    /// Send `Authorization: Bearer`, or `?api_key=`.
    #[serde(rename = "missing_auth_header")]
    MissingAuthHeader,
    /// The `Authorization` header is malformed.
    ///
    /// Send it once, as `Bearer` and one token.
    #[serde(rename = "invalid_auth_header")]
    InvalidAuthHeader,
    /// The token is not valid.
    ///
    /// Compare it with `AUTH_API_SECRET` and `AUTH_API_SECRETS_JSON`, or ask the authentication service.
    #[serde(rename = "unauthorized")]
    Unauthorized,
    /// The authentication service refused the request (401) or failed (502).
    ///
    /// See the log of that service; the token itself may be good.
    #[serde(rename = "auth_service_error")]
    AuthServiceError,
    /// The authentication service does not answer.
    ///
    /// Check `AUTH_SERVICE_URL` and the network; try again.
    #[serde(rename = "auth_service_unavailable")]
    AuthServiceUnavailable,
    /// Authentication is misconfigured.
    ///
    /// Check the file of `AUTH_SIGNING_KEY_PATH`; run `vivavoce check`.
    #[serde(rename = "config_error")]
    ConfigError,
    /// The request to the authentication service could not be signed.
    ///
    /// Check the key in `AUTH_SIGNING_KEY_PATH`.
    #[serde(rename = "jwt_signing_error")]
    JwtSigningError,
}

/// An error to be sent.
#[derive(Debug, Clone)]
pub struct ApiError {
    status: StatusCode,
    code: Code,
    message: String,
    retry_after: Option<Duration>,
    allow: Vec<Method>,
    quota: Option<&'static str>,
    /// Whether the connection is closed after it.
    closes: bool,
}

/// The body of every error.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ErrorBody")]
pub(super) struct Body<'a> {
    /// For programs.
    error: Code,
    /// For people.
    message: &'a str,
    /// The quota that is used up, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<&'static str>,
}

/// The `Retry-After` of a caller that has too much: something of its own must end first.
const QUOTA_PATIENCE: Duration = Duration::from_secs(1);

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let code = if refused.is_callers() {
            Code::RateLimited
        } else {
            Code::Overloaded
        };
        Self {
            quota: Some(refused.kind.name()),
            // A caller with too many connections must not keep one open for the refusal.
            closes: refused.kind == Kind::Connections,
            ..Self::new(code, refused.to_string()).retry_after(QUOTA_PATIENCE)
        }
    }
}

impl From<actix::MailboxError> for ApiError {
    fn from(error: actix::MailboxError) -> Self {
        Self::new(
            Code::Internal,
            format!("the part of the server that knows cannot be asked: {error}"),
        )
    }
}

impl ApiError {
    /// An error with the code's own status.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let status = match code {
            Code::InvalidRequest
            | Code::UnsupportedProvider
            | Code::InvalidPhoneNumber
            | Code::DestinationNotAllowed => StatusCode::BAD_REQUEST,
            Code::OriginNotAllowed
            | Code::OperatorOnly
            | Code::ReadOnly
            | Code::RoomAccessDenied => StatusCode::FORBIDDEN,
            Code::NotFound
            | Code::ModelNotFound
            | Code::RoomNotFound
            | Code::ParticipantNotFound
            | Code::TrackNotFound
            | Code::RecordingNotFound => StatusCode::NOT_FOUND,
            Code::AmbiguousStreamId => StatusCode::CONFLICT,
            Code::MethodNotAllowed | Code::HookImmutable => StatusCode::METHOD_NOT_ALLOWED,
            Code::MisdirectedRequest => StatusCode::MISDIRECTED_REQUEST,
            Code::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::RateLimited | Code::ProviderRateLimited => StatusCode::TOO_MANY_REQUESTS,
            Code::Overloaded | Code::RecordingUnavailable | Code::AuthServiceUnavailable => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Code::MissingAuthHeader | Code::InvalidAuthHeader | Code::Unauthorized => {
                StatusCode::UNAUTHORIZED
            }
            Code::AuthServiceError => StatusCode::BAD_GATEWAY,
            Code::ProviderAuth
            | Code::SynthesisFailed
            | Code::ProviderError
            | Code::RtcNotConfigured
            | Code::RtcError
            | Code::RemovalFailed
            | Code::MuteFailed
            | Code::CallFailed
            | Code::TransferFailed
            | Code::OutboundAddressNotConfigured
            | Code::StorageError
            | Code::Internal
            | Code::ConfigError
            | Code::JwtSigningError => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self {
            status,
            code,
            message: message.into(),
            retry_after: None,
            allow: Vec::new(),
            quota: None,
            closes: false,
        }
    }

    /// Adds the time after which a retry makes sense.
    pub fn retry_after(mut self, time: Duration) -> Self {
        self.retry_after = Some(time);
        self
    }

    /// A method that this path does not support, with those that it does.
    pub fn method_not_allowed(method: &Method, allow: &[Method]) -> Self {
        let names = allow
            .iter()
            .map(Method::as_str)
            .collect::<Vec<_>>()
            .join(", ");
        let message = format!("{method} is not possible here; use {names}");
        Self::new(Code::MethodNotAllowed, message).allowing(allow)
    }

    /// Adds the supported methods, which every 405 must name (RFC 9110, section 15.5.6).
    pub fn allowing(self, allow: &[Method]) -> Self {
        Self {
            allow: allow.to_vec(),
            ..self
        }
    }

    /// What programs are told.
    pub const fn code(&self) -> Code {
        self.code
    }

    /// A provider's failure; `own_credential` tells whether the caller's own credential was used.
    pub fn provider(error: &ProviderError, own_credential: bool) -> Self {
        let message = error.to_string();
        if !matches!(error.kind, ErrorKind::InvalidRequest) {
            // The cause may quote the end of a program's output, and that the text it was given.
            tracing::warn!(provider = error.provider, kind = ?error.kind, "a provider failed");
            tracing::debug!(provider = error.provider, %message, "a provider failed");
        }
        match error.kind {
            ErrorKind::InvalidRequest => Self::new(Code::InvalidRequest, message),
            ErrorKind::Auth if own_credential => Self {
                status: StatusCode::BAD_REQUEST,
                ..Self::new(Code::ProviderAuth, message)
            },
            ErrorKind::Auth | ErrorKind::NoCredential => Self::new(Code::ProviderAuth, message),
            ErrorKind::RateLimited { retry_after } => Self::new(Code::ProviderRateLimited, message)
                .retry_after(retry_after.unwrap_or(Duration::from_secs(1))),
            ErrorKind::Overloaded => {
                Self::new(Code::Overloaded, message).retry_after(Duration::from_secs(1))
            }
            ErrorKind::Quota
            | ErrorKind::Unavailable
            | ErrorKind::Timeout
            | ErrorKind::Protocol => Self::new(Code::ProviderError, message),
        }
    }
}

impl From<SynthesisError> for ApiError {
    fn from(error: SynthesisError) -> Self {
        match &error {
            SynthesisError::Invalid(field) => Self::new(Code::InvalidRequest, field.to_string()),
            SynthesisError::UnsupportedProvider { .. } => {
                Self::new(Code::UnsupportedProvider, error.to_string())
            }
            SynthesisError::Provider {
                error,
                own_credential,
            } => Self::provider(error, *own_credential),
            SynthesisError::TooLong { .. } => Self::new(Code::InvalidRequest, error.to_string()),
            SynthesisError::Quota(refused) => (*refused).into(),
            SynthesisError::NoMemory => {
                Self::new(Code::Overloaded, error.to_string()).retry_after(Duration::from_secs(5))
            }
            SynthesisError::Conversion(_) | SynthesisError::Abandoned => {
                Self::new(Code::SynthesisFailed, error.to_string())
            }
        }
    }
}

impl From<AuthError> for ApiError {
    fn from(error: AuthError) -> Self {
        let code = match error {
            AuthError::MissingHeader => Code::MissingAuthHeader,
            AuthError::InvalidHeader => Code::InvalidAuthHeader,
            AuthError::Unauthorized => Code::Unauthorized,
            AuthError::ServiceRefused | AuthError::ServiceFailed => Code::AuthServiceError,
            AuthError::ServiceUnavailable => Code::AuthServiceUnavailable,
            AuthError::Config => Code::ConfigError,
            AuthError::Signing => Code::JwtSigningError,
        };
        let answer = Self::new(code, error.to_string());
        match error {
            AuthError::ServiceRefused => Self {
                status: StatusCode::UNAUTHORIZED,
                ..answer
            },
            AuthError::ServiceUnavailable => answer.retry_after(Duration::from_secs(1)),
            _ => answer,
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        self.status
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status);
        if let Some(time) = self.retry_after {
            response.insert_header((
                header::RETRY_AFTER,
                time.as_secs_f64().ceil().max(1.0) as u64,
            ));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
        }
        if self.closes {
            response.force_close();
        }
        if !self.allow.is_empty() {
            response.insert_header(header::Allow(self.allow.clone()));
        }
        let mut response = response.json(Body {
            error: self.code,
            message: &self.message,
            quota: self.quota,
        });
        // For middleware that writes it in another way.
        response.extensions_mut().insert(self.clone());
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_authentication_have_the_codes_and_statuses_of_the_specification() {
        for (error, status, code) in [
            (AuthError::MissingHeader, 401, "missing_auth_header"),
            (AuthError::InvalidHeader, 401, "invalid_auth_header"),
            (AuthError::Unauthorized, 401, "unauthorized"),
            (AuthError::ServiceRefused, 401, "auth_service_error"),
            (AuthError::ServiceFailed, 502, "auth_service_error"),
            (
                AuthError::ServiceUnavailable,
                503,
                "auth_service_unavailable",
            ),
            (AuthError::Config, 500, "config_error"),
            (AuthError::Signing, 500, "jwt_signing_error"),
        ] {
            let answer = ApiError::from(error);
            let named = serde_json::to_value(answer.code).unwrap();
            assert_eq!(
                (answer.status.as_u16(), named.as_str()),
                (status, Some(code))
            );
            let response = answer.error_response();
            let asks = response.headers().contains_key(header::WWW_AUTHENTICATE);
            assert_eq!(asks, status == 401, "{error:?}");
        }
    }
}
