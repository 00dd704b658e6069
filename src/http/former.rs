//! What is asked here and belongs to the server that this one replaces (`vivavoce serve --takeover`): sockets of clients
//! that join its rooms, and requests about rooms, calls and sessions that this server does not have. They are made there once
//! more with the caller's own credentials, which are checked there.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_http::BoxedPayloadStream;
use actix_web::body::{BodyStream, BoxBody, to_bytes};
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::http::{ConnectionType, Method, StatusCode, header};
use actix_web::middleware::Next;
use actix_web::{Error, HttpRequest, HttpResponse, ResponseError, web};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::OptionFuture;
use reqwest::header::HeaderMap;
use reqwest::{Client, Upgraded, Url};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncWriteExt, WriteHalf};
use tokio_util::io::ReaderStream;

use super::auth;
use super::error::{ApiError, Code};
use super::limits::Limits;
use super::state::AppState;
use vivavoce_replicas::{Handshake, SUCCESSOR};
use vivavoce_socket::{DialError, dial};
use vivavoce_takeover::Former;

/// Longer requests are about nothing that may be there.
const MAX_BYTES: usize = 64 << 10;
/// How long the former server may take: longer than a call may ring while a transfer waits for it.
const PATIENCE: Duration = Duration::from_mins(2);
/// The most bytes of its answers.
const MAX_ANSWER_BYTES: usize = 4 << 20;

/// The parameter of LiveKit's clients for their token.
const ACCESS_TOKEN: &str = "access_token";

/// The server that this one replaces.
pub struct AtFormer {
    former: Arc<Former>,
    client: Client,
}

/// What this server is shown by the one that replaces it, at an address that only that one knows.
#[derive(Clone)]
pub struct SuccessorKey(
    /// `None` at addresses that anybody may know.
    pub Option<String>,
);

impl AtFormer {
    /// The client asks this machine only, in plain text.
    pub fn new(former: Arc<Former>) -> reqwest::Result<Self> {
        let client = Client::builder()
            .no_proxy()
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(2))
            .build()?;
        Ok(Self { former, client })
    }

    /// The former server, as long as it runs.
    pub fn is_there(&self) -> bool {
        self.former.is_there()
    }

    /// Whether this room is there.
    pub fn has_room(&self, name: &str) -> bool {
        self.former.has_room(name)
    }

    /// Where a request is made once more, without the token that LiveKit's clients put there.
    fn url(&self, request: &HttpRequest) -> Option<Url> {
        let mut url = Url::parse(&self.former.url).ok()?;
        url.set_path(request.path());
        let query = parameters(request).filter(|(name, _)| name != ACCESS_TOKEN);
        let query: Vec<_> = query.collect();
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Some(url)
    }

    fn headers(&self, request: &HttpRequest) -> HeaderMap {
        let address = request
            .app_data::<web::Data<Limits>>()
            .and_then(|limits| limits.address(request));
        let sent = request.headers().iter();
        let sent = sent.map(|(name, value)| (name.as_str(), value.as_bytes()));
        let in_query = || {
            let token = parameters(request)
                .find(|(name, _)| name == ACCESS_TOKEN)?
                .1;
            Some(format!("Bearer {token}"))
        };
        let bearer = auth::credentials(request).bearer().or_else(in_query);
        Handshake::new(sent, bearer, address).at_former(&self.former)
    }

    /// Carries a socket of a client there and back, byte by byte.
    pub async fn carry(&self, request: &HttpRequest, payload: web::Payload) -> HttpResponse {
        let mut response = match actix_http::ws::handshake(request.head()) {
            Ok(response) => response,
            Err(error) => return Error::from(error).error_response(),
        };
        let Some(url) = self.url(request) else {
            return HttpResponse::BadGateway().finish();
        };
        let stream = match dial(&self.client, url, self.headers(request)).await {
            Ok(stream) => stream,
            Err(DialError::Refused(status)) => {
                let status = StatusCode::from_u16(status.as_u16());
                return HttpResponse::build(status.unwrap_or(StatusCode::BAD_GATEWAY)).finish();
            }
            Err(_) => return HttpResponse::ServiceUnavailable().finish(),
        };
        let (from, to) = tokio::io::split(stream);
        actix_web::rt::spawn(send_all(payload, to));
        let body = BodyStream::new(ReaderStream::new(from));
        let response = response.message_body(body);
        response.map_or_else(
            |error| error.error_response(),
            |response| response.map_into_boxed_body().into(),
        )
    }

    /// Asks there what a request without a body asks.
    pub async fn pass(&self, request: &HttpRequest) -> HttpResponse {
        let repeated = self.url(request).map(|url| Repeated {
            method: reqwest::Method::GET,
            url,
            headers: self.headers(request),
            body: Bytes::new(),
        });
        let answer = OptionFuture::from(repeated.map(|repeated| self.ask(repeated))).await;
        let unreachable = || HttpResponse::ServiceUnavailable().finish();
        answer
            .flatten()
            .map_or_else(unreachable, FormersAnswer::into_response)
    }

    /// Makes a request once more; `None` where nobody answers.
    async fn ask(&self, request: Repeated) -> Option<FormersAnswer> {
        let made = self
            .client
            .request(request.method, request.url)
            .headers(request.headers)
            .timeout(PATIENCE)
            .body(request.body);
        let mut answer = made.send().await.ok()?;
        let status = StatusCode::from_u16(answer.status().as_u16()).ok()?;
        let told = answer.headers().clone();
        let mut body = BytesMut::new();
        while let Some(part) = answer.chunk().await.ok()? {
            body.extend_from_slice(&part);
            if body.len() > MAX_ANSWER_BYTES {
                return None;
            }
        }
        let body = body.freeze();
        Some(FormersAnswer { status, told, body })
    }
}

/// What the former server answered.
struct FormersAnswer {
    status: StatusCode,
    told: HeaderMap,
    body: Bytes,
}

impl FormersAnswer {
    fn into_response(self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status);
        for name in [header::CONTENT_TYPE, header::ACCESS_CONTROL_ALLOW_ORIGIN] {
            if let Some(value) = self.told.get(name.as_str()) {
                response.insert_header((name, value.as_bytes()));
            }
        }
        response.body(self.body)
    }
}

async fn send_all(mut payload: web::Payload, mut to: WriteHalf<Upgraded>) {
    while let Some(Ok(bytes)) = payload.next().await {
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
    // The other side may have gone.
    let _ = to.shutdown().await;
}

fn parameters(request: &HttpRequest) -> form_urlencoded::Parse<'_> {
    form_urlencoded::parse(request.query_string().as_bytes())
}

/// A request to make once more.
struct Repeated {
    method: reqwest::Method,
    url: Url,
    headers: HeaderMap,
    body: Bytes,
}

/// Whether requests with this path are about one room, call or session, which the former server may have.
fn may_be_there(path: &str) -> bool {
    let path = path.trim_start_matches('/');
    [
        "sessions/",
        "rtc/rooms/",
        "rtc/participant",
        "sip/transfer",
        "sip/hold",
        "sip/queues/",
        "twirp/",
    ]
    .iter()
    .any(|prefix| path.starts_with(prefix))
}

/// Whether a request asks for a list of what may be at either server.
fn is_list(method: &Method, path: &str) -> bool {
    let path = path.trim_matches('/');
    match *method {
        Method::GET => matches!(
            path,
            "sessions" | "rtc/rooms" | "sip/transfers" | "sip/queues"
        ),
        Method::POST => path == "twirp/livekit.RoomService/ListRooms",
        _ => false,
    }
}

/// Both servers' answers to a request for a list in one: the items of each list there follow those here. `None` if they
/// cannot be.
fn both(here: &[u8], there: &[u8], media_type: &str) -> Option<Bytes> {
    if media_type.starts_with("application/protobuf") {
        // Encoded messages one after the other are one with the items of both.
        return Some([here, there].concat().into());
    }
    let mut lists: Map<String, Value> = serde_json::from_slice(here).ok()?;
    let others: Map<String, Value> = serde_json::from_slice(there).ok()?;
    for (name, others) in others {
        let list = lists.entry(name).or_insert_with(|| json!([]));
        if let (Value::Array(list), Value::Array(others)) = (list, others) {
            list.extend(others);
        }
    }
    serde_json::to_vec(&lists).ok().map(Bytes::from)
}

/// Adds what is at the former server to a list of what is here.
async fn with_formers(
    response: ServiceResponse,
    there: FormersAnswer,
) -> Result<ServiceResponse, actix_web::Error> {
    let (request, response) = response.into_parts();
    let (response, body) = response.into_parts();
    let here = to_bytes(body).await?;
    let media_type = response.headers().get(header::CONTENT_TYPE);
    let media_type = media_type.and_then(|value| value.to_str().ok());
    let list = both(&here, &there.body, media_type.unwrap_or_default()).unwrap_or(here);
    let response = response.set_body(BoxBody::new(list));
    Ok(ServiceResponse::new(request, response))
}

/// The middleware that asks the former server for what is not here. What a request sends is read by whoever answers it here,
/// once its caller is known, and kept meanwhile.
pub async fn ask_former(
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse, actix_web::Error> {
    let is_replaced = request
        .app_data::<web::Data<AppState>>()
        .is_some_and(|state| state.given.is_cancelled());
    if is_replaced {
        return let_go(request, next).await;
    }
    // Nearly always there is none.
    let state = request.app_data::<web::Data<AppState>>().filter(|state| {
        let former = state.former.as_ref();
        let may_be_there =
            is_list(request.method(), request.path()) || may_be_there(request.path());
        former.is_some_and(|former| former.is_there() && may_be_there)
    });
    let state = state.cloned();
    let Some(former) = state.as_ref().and_then(|state| state.former.as_ref()) else {
        return next.call(request).await;
    };
    let is_list = is_list(request.method(), request.path());
    let (method, url) = (request.method().clone(), former.url(request.request()));
    let headers = former.headers(request.request());
    let (request, payload) = request.into_parts();
    let (payload, kept) = kept(payload);
    let response = next
        .call(ServiceRequest::from_parts(request, payload))
        .await?;
    let asks = if is_list {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    };
    if response.status() != asks {
        return Ok(response);
    }
    let body = kept.borrow_mut().take();
    let method = reqwest::Method::from_bytes(method.as_str().as_bytes()).ok();
    let repeated = url
        .zip(body)
        .zip(method)
        .map(|((url, body), method)| Repeated {
            method,
            url,
            headers,
            body: body.freeze(),
        });
    let Some(repeated) = repeated else {
        return Ok(response);
    };
    match former.ask(repeated).await {
        Some(answer) if is_list && answer.status == StatusCode::OK => {
            with_formers(response, answer).await
        }
        Some(answer) if !is_list && answer.status != StatusCode::NOT_FOUND => {
            Ok(response.into_response(answer.into_response()))
        }
        _ => Ok(response),
    }
}

/// Answers at a server that was replaced. The next request over this connection goes to the one that has its place.
async fn let_go(
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse, actix_web::Error> {
    let mut response = next.call(request).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let head = response.response_mut().head_mut();
        head.set_connection_type(ConnectionType::Close);
    }
    Ok(response)
}

/// What was read of a request; `None` once that is too much.
type KeptBody = Rc<RefCell<Option<BytesMut>>>;

fn kept(payload: Payload) -> (Payload, KeptBody) {
    let kept: KeptBody = Rc::new(RefCell::new(Some(BytesMut::new())));
    let copy = Rc::clone(&kept);
    let payload = payload.map(move |part| {
        let mut kept = copy.borrow_mut();
        if let (Some(so_far), Ok(bytes)) = (kept.as_mut(), &part) {
            so_far.extend_from_slice(bytes);
            if so_far.len() > MAX_BYTES {
                *kept = None;
            }
        }
        part
    });
    let payload: BoxedPayloadStream = Box::pin(payload);
    (Payload::Stream { payload }, kept)
}

/// The middleware of the address that only the successor knows: whoever does not show its key has no business there.
pub async fn check_successor(
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse, actix_web::Error> {
    let key = request.app_data::<web::Data<SuccessorKey>>();
    let Some(key) = key.and_then(|key| key.0.as_deref()) else {
        return next.call(request).await;
    };
    let shown = request.headers().get(SUCCESSOR);
    // Of digests, so that how long it takes tells nothing.
    let is_known =
        shown.is_some_and(|shown| Sha256::digest(key) == Sha256::digest(shown.as_bytes()));
    if is_known {
        return next.call(request).await;
    }
    let refused = ApiError::new(
        Code::OperatorOnly,
        "this address is for the server that replaces this one",
    );
    Ok(request.into_response(refused.error_response()))
}

#[cfg(test)]
mod tests {
    use livekit_protocol::{ListRoomsResponse, Room};
    use prost::Message;

    use super::*;

    #[test]
    fn lists_of_both_servers_are_one() {
        let here = br#"{"sessions": [1], "calls": [], "agents": [7]}"#;
        let there = br#"{"sessions": [2, 3], "calls": [4], "jobs": [5]}"#;
        let list = both(here, there, "application/json").unwrap();
        let list: Value = serde_json::from_slice(&list).unwrap();
        let expected = json!({"sessions": [1, 2, 3], "calls": [4], "agents": [7], "jobs": [5]});
        assert_eq!(list, expected);
        assert_eq!(both(here, b"{", "application/json"), None);

        let rooms = |names: &[&str]| {
            let room = |name: &&str| Room {
                name: (*name).to_owned(),
                ..Room::default()
            };
            let rooms = names.iter().map(room).collect();
            ListRoomsResponse { rooms }
        };
        let (here, there) = (rooms(&["a"]), rooms(&["b", "c"]));
        let list = both(
            &here.encode_to_vec(),
            &there.encode_to_vec(),
            "application/protobuf",
        );
        assert_eq!(
            ListRoomsResponse::decode(list.unwrap()).unwrap(),
            rooms(&["a", "b", "c"])
        );
    }
}
