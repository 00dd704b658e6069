//! Brings requests to the [`Authenticator`] and its answers to the handlers. A protected handler takes an [`Access`]
//! first, and can be reached only through the middleware that puts it there: both are one call, [`protected`].

use actix_web::body::BoxBody;
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::http::{Method, header};
use actix_web::middleware::{Next, from_fn};
use actix_web::web::{self, Bytes};
use actix_web::{FromRequest, Handler, HttpMessage, HttpRequest, Responder, ResponseError};
use std::future::{Ready, ready};

use super::body;
use super::entries::{Callers, Handling};
use super::error::{ApiError, Code};
use super::limits::{self, Limits};
use super::state::AppState;
use vivavoce_auth::{Access, Authenticator, Credentials, Door, Pass, Question, Step};

/// A handler that anybody may reach.
pub fn public<F, Args>(handler: F) -> Handling
where
    F: Handler<Args>,
    Args: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    Handling::new(Callers::Anybody, move || web::route().to(handler.clone()))
}

/// One that needs a token while authentication is on. It is told who asks.
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

/// Arguments of a handler, the first of which says whose things it may touch.
pub trait BeginsWithAccess {}

macro_rules! begins_with_access {
    ($(($($other:ident)*))+) => { $(impl<$($other),*> BeginsWithAccess for (Entered, $($other,)*) {})+ };
}

begins_with_access!(()(A)(A B)(A B C)(A B C D)(A B C D E));

/// Whoever has come through the middleware, as handlers take it.
pub struct Entered(pub Access);

impl FromRequest for Entered {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let access = request.extensions().get().cloned().map(Self);
        ready(access.ok_or_else(|| ApiError::new(Code::Internal, "nobody asked who is there")))
    }
}

/// The middleware of protected routes. A refusal is an answer like any other, so that whoever observes it learns its
/// route.
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
    Ok(access)
}

/// The body is read only when somebody must be told of it, and given to the handler all the same. What handlers would
/// refuse unread, or could understand otherwise than the service, is refused before anybody is asked.
async fn identify(
    authenticator: &Authenticator,
    request: &mut ServiceRequest,
) -> Result<Access, ApiError> {
    let step = authenticator.identify(Door::Rest, &credentials(request.request()))?;
    let inquiry = match step {
        Step::Enter(access) => return Ok(access),
        Step::Ask(inquiry) => inquiry,
    };
    let (head, payload) = request.parts_mut();
    let body = if matches!(*head.method(), Method::GET | Method::HEAD) {
        Bytes::new()
    } else {
        body::read_json(head, payload).await?
    };
    request.set_payload(Payload::from(body.clone()));
    Ok(inquiry.ask(question(request.request(), body)).await?)
}

/// Who opens a socket, and for how long where that is known. Its payload is not a body, and stays as it is.
pub async fn at_socket(
    state: &AppState,
    request: &HttpRequest,
) -> Result<(Access, Option<Pass>), ApiError> {
    let Some(authenticator) = &state.auth else {
        let access = Access::anonymous().counted_by(stranger(request));
        return Ok((access, None));
    };
    let credentials = credentials(request);
    let (access, pass) = match authenticator.identify(Door::Socket, &credentials)? {
        Step::Enter(access) => (access, None),
        Step::Ask(inquiry) => {
            let question = question(request, Bytes::new());
            let (access, pass) = inquiry.ask_for_session(question).await?;
            (access, Some(pass))
        }
    };
    // A public socket takes those without a token, too.
    if credentials.show_token() {
        limits::authenticated(request, access.tenant())?;
        return Ok((access, pass));
    }
    let limits = request.app_data::<web::Data<Limits>>();
    let address = limits.and_then(|limits| limits.caller(request));
    Ok((access.counted_by(address), pass))
}

/// Whom a request without a token is counted for while nobody needs one.
pub(super) fn stranger(request: &HttpRequest) -> Option<std::net::IpAddr> {
    let limits = request.app_data::<web::Data<Limits>>();
    limits.and_then(|limits| limits.stranger(request))
}

fn credentials(request: &HttpRequest) -> Credentials<'_> {
    let headers = request.headers().get_all(header::AUTHORIZATION);
    Credentials {
        authorization: headers.map(header::HeaderValue::as_bytes).collect(),
        query: request.query_string(),
    }
}

fn question(request: &HttpRequest, body: Bytes) -> Question {
    let headers = request.headers().iter();
    let headers = headers.map(|(name, value)| (name.as_str(), value.as_bytes()));
    let caller = request.app_data::<web::Data<Limits>>();
    let caller = caller.and_then(|limits| limits.caller(request));
    let path = limits::path(request);
    Question::new(request.method().as_str(), path, headers, body).asked_by(caller)
}
