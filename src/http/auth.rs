//! Connects the [`Authenticator`] to HTTP: extracts credentials from requests and turns refusals into responses. A
//! protected handler takes an [`Access`] as its first argument and is only reachable through the middleware that
//! provides it; [`protected`] does both.

use actix_web::body::BoxBody;
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::http::{Method, header};
use actix_web::middleware::{Next, from_fn};
use actix_web::web::{self, Bytes};
use actix_web::{FromRequest, Handler, HttpMessage, HttpRequest, Responder, ResponseError};
use std::future::{Ready, ready};

use super::body;
use super::dialect::AskedPath;
use super::entries::{Callers, Handling, Reads, bounds};
use super::error::{ApiError, Code};
use super::limits::{self, Limits};
use super::state::AppState;
use vivavoce_auth::{Access, AuthRequest, Authenticator, Credentials, Decision, Interface, Pass};

/// A handler without authentication.
pub fn public<F, Args>(handler: F) -> Handling
where
    F: Handler<Args>,
    Args: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    Handling::new(Callers::Anybody, move || web::route().to(handler.clone()))
}

/// A handler that requires a token while authentication is on. It is given the caller's access.
pub fn protected<F, Args>(handler: F) -> Handling
where
    F: Handler<Args>,
    Args: FromRequest + BeginsWithAccess + 'static,
    F::Output: Responder + 'static,
{
    Handling::new(Callers::Authenticated, move || {
        web::route().to(handler.clone()).wrap(from_fn(enter))
    })
}

/// Arguments of a handler that begin with the caller's access.
pub trait BeginsWithAccess {}

macro_rules! begins_with_access {
    ($(($($other:ident)*))+) => { $(impl<$($other),*> BeginsWithAccess for (Entered, $($other,)*) {})+ };
}

begins_with_access!(()(A)(A B)(A B C)(A B C D)(A B C D E));

/// The access that the middleware has granted, as an extractor.
pub struct Entered(pub Access);

impl FromRequest for Entered {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let access = request.extensions().get().cloned().map(Self);
        ready(access.ok_or_else(|| {
            ApiError::new(
                Code::Internal,
                "the handler is not behind the authentication middleware",
            )
        }))
    }
}

/// The middleware of protected routes. A refusal is returned as a response rather than an error, so that the access log
/// knows its route.
async fn enter(
    mut request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse, actix_web::Error> {
    match admit(&mut request).await {
        Ok(access) => {
            request.extensions_mut().insert(access);
            next.call(request).await
        }
        Err(refused) => Ok(request.into_response(refused.error_response())),
    }
}

/// Refuses what changes something to callers who only look.
fn may(access: &Access, changes: bool) -> Result<(), ApiError> {
    if changes && access.reads_only() {
        let message = "this token may look at things and not change them";
        return Err(ApiError::new(Code::ReadOnly, message));
    }
    Ok(())
}

async fn admit(request: &mut ServiceRequest) -> Result<Access, ApiError> {
    let state = request.app_data::<web::Data<AppState>>().cloned();
    let state = state.ok_or_else(|| ApiError::new(Code::Internal, "the server has no state"))?;
    let access = match &state.auth {
        None => Access::anonymous().counted_by(stranger(request.request())),
        Some(authenticator) => {
            let access = identify(authenticator, request).await?;
            limits::authenticated(request.request(), access.tenant())?;
            access
        }
    };
    if let Some(limits) = request.app_data::<web::Data<Limits>>() {
        limits.admit_tenant(&access)?;
    }
    let looks = matches!(*request.method(), Method::GET | Method::HEAD);
    may(&access, !looks)?;
    Ok(access)
}

/// Reads the body only if the authentication service must be told about it, and passes it on to the handler. What
/// handlers would refuse anyway, or could parse differently from the service, is refused before the service is asked.
async fn identify(
    authenticator: &Authenticator,
    request: &mut ServiceRequest,
) -> Result<Access, ApiError> {
    let step = authenticator.identify(Interface::Rest, &credentials(request.request()))?;
    let check = match step {
        Decision::Granted(access) => return Ok(access),
        Decision::AskService(check) => check,
    };
    if let Some(Reads::Upload { .. }) = bounds(request.request()).map(|bounds| bounds.reads) {
        // What is not JSON is not read before its sender is known; the service is asked with an empty object.
        let asked = auth_request(request.request(), Bytes::from_static(b"{}"));
        return Ok(check.ask(asked).await?);
    }
    let (head, payload) = request.parts_mut();
    let body = if matches!(*head.method(), Method::GET | Method::HEAD) {
        Bytes::new()
    } else {
        body::read_json(head, payload).await?
    };
    request.set_payload(Payload::from(body.clone()));
    Ok(check.ask(auth_request(request.request(), body)).await?)
}

/// Authenticates a WebSocket handshake, which whoever only looks at things has no use of; also returns when the token ends, where that is known. The payload is not a
/// body and is left alone.
pub async fn at_socket(
    state: &AppState,
    request: &HttpRequest,
) -> Result<(Access, Option<Pass>), ApiError> {
    let Some(authenticator) = &state.auth else {
        let access = Access::anonymous().counted_by(stranger(request));
        return Ok((access, None));
    };
    let credentials = credentials(request);
    let (access, pass) = match authenticator.identify(Interface::Socket, &credentials)? {
        Decision::Granted(access) => (access, None),
        Decision::AskService(check) => {
            let auth_request = auth_request(request, Bytes::new());
            let (access, pass) = check.ask_for_session(auth_request).await?;
            (access, Some(pass))
        }
    };
    may(&access, true)?;
    // A public socket is also open to callers without a token.
    if credentials.show_token() {
        limits::authenticated(request, access.tenant())?;
        return Ok((access, pass));
    }
    let limits = request.app_data::<web::Data<Limits>>();
    let address = limits.and_then(|limits| limits.caller(request));
    Ok((access.counted_by(address), pass))
}

/// The same where everybody needs a token while authentication is on. `authorization` is what the header would say, from those
/// who cannot send one.
pub(super) async fn at_door(
    state: &AppState,
    request: &HttpRequest,
    authorization: Option<&str>,
) -> Result<(Access, Option<Pass>), ApiError> {
    let Some(authenticator) = &state.auth else {
        let access = Access::anonymous().counted_by(stranger(request));
        return Ok((access, None));
    };
    let mut credentials = credentials(request);
    if let Some(authorization) = authorization {
        credentials.authorization = vec![authorization.as_bytes()];
    }
    let (access, pass) = match authenticator.identify(Interface::Rest, &credentials)? {
        Decision::Granted(access) => (access, None),
        Decision::AskService(check) => {
            let auth_request = auth_request(request, Bytes::from_static(b"{}"));
            let (access, pass) = check.ask_for_session(auth_request).await?;
            (access, Some(pass))
        }
    };
    limits::authenticated(request, access.tenant())?;
    may(&access, true)?;
    Ok((access, pass))
}

/// Authenticates a request of another protocol that shows a token, without its body; `None` where it shows none, or nobody needs
/// one.
pub async fn by_token(state: &AppState, request: &HttpRequest) -> Result<Option<Access>, ApiError> {
    if state.auth.is_none() || !credentials(request).show_token() {
        return Ok(None);
    }
    let (access, _pass) = at_socket(state, request).await?;
    Ok(Some(access))
}

/// The address that a request without a token is counted for while authentication is off.
pub(super) fn stranger(request: &HttpRequest) -> Option<std::net::IpAddr> {
    let limits = request.app_data::<web::Data<Limits>>();
    limits.and_then(|limits| limits.stranger(request))
}

pub(super) fn credentials(request: &HttpRequest) -> Credentials<'_> {
    let headers = request.headers().get_all(header::AUTHORIZATION);
    Credentials {
        authorization: headers.map(header::HeaderValue::as_bytes).collect(),
        query: request.query_string(),
    }
}

fn auth_request(request: &HttpRequest, body: Bytes) -> AuthRequest {
    let headers = request.headers().iter();
    let headers = headers.map(|(name, value)| (name.as_str(), value.as_bytes()));
    let caller = request.app_data::<web::Data<Limits>>();
    let caller = caller.and_then(|limits| limits.caller(request));
    let asked = request.extensions();
    let asked = asked
        .get::<AskedPath>()
        .map(|AskedPath(path)| path.as_str());
    let path = asked.unwrap_or_else(|| limits::path(request));
    AuthRequest::new(request.method().as_str(), path, headers, body).asked_by(caller)
}
