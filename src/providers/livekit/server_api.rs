//! A client of LiveKit's server API: Twirp, which is protobuf over HTTP POST. Each request has its own token that grants
//! only what its method needs. As in LiveKit's SDKs, a request to LiveKit Cloud that fails is retried in another region.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use livekit_protocol as proto;
use prost::Message;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;
use tokio::time::sleep;

use super::SLUG;
use vivavoce_core::backoff::Backoff;
use vivavoce_providers::transport::{AnswerError, Transport, body};
use vivavoce_seams::rooms::token::{Claims, SipGrant, VideoGrant};
use vivavoce_seams::rooms::{ApiKey, RoomError};

/// How long a request may take, unless its method says otherwise.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the token of a request holds.
const TOKEN_LIFETIME: Duration = Duration::from_mins(10);
/// How often one request is sent, the first time included.
const MAX_ATTEMPTS: u32 = 3;
/// The pauses between them.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(200), Duration::from_secs(1), 0.2);
/// How long the list of regions may take.
const REGIONS_TIMEOUT: Duration = Duration::from_secs(2);
/// The domains of LiveKit Cloud, the only deployments with regions.
const CLOUD_DOMAINS: [&str; 2] = [".livekit.cloud", ".livekit.run"];

/// What a request is allowed to do.
#[derive(Debug, Clone, Copy)]
pub enum Grant<'a> {
    /// Creates and deletes rooms.
    RoomCreate,
    /// Lists rooms.
    RoomList,
    /// Everything in this room.
    RoomAdmin(&'a str),
    /// Starts, stops and lists egresses.
    RoomRecord,
    /// Manages SIP trunks and dispatch rules.
    SipAdmin,
    /// Places a call.
    SipCall,
    /// Transfers a call of this room.
    SipTransfer(&'a str),
}

impl Grant<'_> {
    fn claims(self) -> Claims {
        let mut video = VideoGrant::default();
        let mut sip = SipGrant::default();
        match self {
            Self::RoomCreate => video.room_create = true,
            Self::RoomList => video.room_list = true,
            Self::RoomRecord => video.room_record = true,
            Self::SipAdmin => sip.admin = true,
            Self::SipCall => sip.call = true,
            Self::RoomAdmin(room) | Self::SipTransfer(room) => {
                video.room_admin = true;
                room.clone_into(&mut video.room);
                sip.call = matches!(self, Self::SipTransfer(_));
            }
        }
        Claims {
            video,
            sip,
            ..Claims::default()
        }
    }
}

/// Twirp's names of the kinds of errors that are told apart here.
pub mod code {
    pub const ABORTED: &str = "aborted";
    pub const CANCELED: &str = "canceled";
    pub const DEADLINE_EXCEEDED: &str = "deadline_exceeded";
    pub const FAILED_PRECONDITION: &str = "failed_precondition";
    pub const INVALID_ARGUMENT: &str = "invalid_argument";
    pub const MALFORMED: &str = "malformed";
    pub const NOT_FOUND: &str = "not_found";
    pub const OUT_OF_RANGE: &str = "out_of_range";
    pub const RESOURCE_EXHAUSTED: &str = "resource_exhausted";
    pub const UNAVAILABLE: &str = "unavailable";
}

/// A deployment's answer that is an error (<https://twitchtv.github.io/twirp/docs/errors.html>).
#[derive(Debug, Clone, Deserialize, thiserror::Error)]
#[error("{code}: {msg}")]
pub struct TwirpError {
    /// The HTTP status of the answer.
    #[serde(skip)]
    pub status: StatusCode,
    /// What kind, see [`code`].
    pub code: String,
    /// What went wrong, for people.
    pub msg: String,
    /// More of it, such as the SIP status of a call.
    #[serde(default)]
    pub meta: HashMap<String, String>,
}

/// Why a request has failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The deployment answers with an error.
    #[error(transparent)]
    Twirp(#[from] TwirpError),
    /// It cannot be reached, or does not answer in time. Without the URL, which may hold credentials.
    #[error("{}", vivavoce_core::causes::causes(.0))]
    Connection(reqwest::Error),
    /// Something between answers instead of it.
    #[error("the answer is neither of LiveKit's API nor an error of it: HTTP status {0}")]
    Foreign(StatusCode),
    /// Its answer cannot be read.
    #[error("the answer cannot be read: {0}")]
    Answer(String),
    /// There is no token for the request.
    #[error(transparent)]
    Token(#[from] RoomError),
}

impl From<AnswerError> for ApiError {
    fn from(error: AnswerError) -> Self {
        match error {
            AnswerError::Connection(error) => error.into(),
            AnswerError::TooLong => Self::Answer(error.to_string()),
        }
    }
}

impl From<reqwest::Error> for ApiError {
    fn from(error: reqwest::Error) -> Self {
        Self::Connection(error.without_url())
    }
}

impl ApiError {
    /// Whether another region may answer better.
    fn is_regional(&self) -> bool {
        match self {
            Self::Connection(_) => true,
            Self::Twirp(TwirpError { status, .. }) | Self::Foreign(status) => {
                status.is_server_error()
            }
            Self::Answer(_) | Self::Token(_) => false,
        }
    }

    /// The error that the deployment itself has answered with.
    pub const fn twirp(&self) -> Option<&TwirpError> {
        match self {
            Self::Twirp(error) => Some(error),
            _ => None,
        }
    }
}

fn participant(room: &str, identity: &str) -> proto::RoomParticipantIdentity {
    proto::RoomParticipantIdentity {
        room: room.to_owned(),
        identity: identity.to_owned(),
        ..Default::default()
    }
}

/// A client of one deployment's server API.
pub struct ServerApi {
    http: Client,
    url: Url,
    key: ApiKey,
    /// Whether other regions can stand in.
    has_regions: bool,
    /// The regions of the last list, for when the next one cannot be had.
    regions: Mutex<Vec<Url>>,
}

impl ServerApi {
    /// The API of the deployment at `url`.
    pub fn new(url: &Url, key: ApiKey, transport: &Transport) -> Self {
        let host = url.host_str().unwrap_or_default();
        Self {
            http: transport.http().clone(),
            has_regions: CLOUD_DOMAINS.iter().any(|domain| host.ends_with(domain)),
            url: url.clone(),
            key,
            regions: Mutex::default(),
        }
    }

    /// Calls a method, for example `RoomService/ListRooms`.
    pub async fn call<A: Message + Default>(
        &self,
        method: &str,
        grant: Grant<'_>,
        request: &impl Message,
    ) -> Result<A, ApiError> {
        self.call_within(REQUEST_TIMEOUT, method, grant, request)
            .await
    }

    /// The same for a method that takes longer, because it dials.
    pub async fn call_within<A: Message + Default>(
        &self,
        timeout: Duration,
        method: &str,
        grant: Grant<'_>,
        request: &impl Message,
    ) -> Result<A, ApiError> {
        let token = self.key.sign(SLUG, grant.claims(), TOKEN_LIFETIME)?;
        let path = format!("/twirp/livekit.{method}");
        let request = request.encode_to_vec();
        let attempts = if self.has_regions { MAX_ATTEMPTS } else { 1 };
        let mut tried = Vec::new();
        let mut server = self.url.clone();
        loop {
            let mut url = server.clone();
            url.set_path(&path);
            let error = match self.post(url, &token, &request, timeout).await {
                Err(error) if error.is_regional() => error,
                answer => {
                    let read = A::decode(answer?.as_slice());
                    return read.map_err(|error| ApiError::Answer(error.to_string()));
                }
            };
            tried.push(server);
            let failures = tried.len() as u32;
            let next = if failures < attempts {
                self.next_region(&token, &tried).await
            } else {
                None
            };
            let Some(next) = next else {
                return Err(error);
            };
            tracing::warn!(
                %error,
                region = next.host_str(),
                "a request to LiveKit Cloud has failed; it is repeated in another region"
            );
            sleep(BACKOFF.delay(failures - 1, fastrand::f64())).await;
            server = next;
        }
    }

    /// A participant as it is now.
    pub async fn participant(
        &self,
        room: &str,
        identity: &str,
    ) -> Result<proto::ParticipantInfo, ApiError> {
        let request = participant(room, identity);
        self.call(
            "RoomService/GetParticipant",
            Grant::RoomAdmin(room),
            &request,
        )
        .await
    }

    /// Removes a participant from a room.
    pub async fn remove_participant(&self, room: &str, identity: &str) -> Result<(), ApiError> {
        let request = participant(room, identity);
        self.call(
            "RoomService/RemoveParticipant",
            Grant::RoomAdmin(room),
            &request,
        )
        .await
    }

    async fn post(
        &self,
        url: Url,
        token: &str,
        request: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, ApiError> {
        let request = self
            .http
            .post(url)
            .bearer_auth(token)
            .header(CONTENT_TYPE, "application/protobuf")
            .body(request.to_vec())
            .timeout(timeout);
        let mut answer = request.send().await?;
        let status = answer.status();
        let body = body(&mut answer).await?;
        if status == StatusCode::OK {
            return Ok(body);
        }
        Err(match serde_json::from_slice(&body) {
            Ok(error) => ApiError::Twirp(TwirpError { status, ..error }),
            Err(_) => ApiError::Foreign(status),
        })
    }

    /// The nearest region that has not been tried.
    async fn next_region(&self, token: &str, tried: &[Url]) -> Option<Url> {
        let listed = self.list_regions(token).await;
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listed) = listed {
            *regions = listed;
        }
        let host = |url: &Url| {
            (
                url.host_str().map(str::to_owned),
                url.port_or_known_default(),
            )
        };
        let untried = |region: &&Url| tried.iter().all(|tried| host(tried) != host(region));
        regions.iter().find(untried).cloned()
    }

    async fn list_regions(&self, token: &str) -> Option<Vec<Url>> {
        #[derive(Deserialize)]
        struct Regions {
            regions: Vec<Region>,
        }
        #[derive(Deserialize)]
        struct Region {
            url: String,
        }
        let mut url = self.url.clone();
        url.set_path("/settings/regions");
        let request = self.http.get(url).bearer_auth(token);
        let mut answer = request.timeout(REGIONS_TIMEOUT).send().await.ok()?;
        if !answer.status().is_success() {
            return None;
        }
        let body = body(&mut answer).await.ok()?;
        let listed: Regions = serde_json::from_slice(&body).ok()?;
        // They are listed as clients connect: `wss://…`.
        let urls = listed.regions.iter().filter_map(|region| {
            let url = region.url.strip_prefix("ws");
            let url = url.map_or_else(|| region.url.clone(), |rest| format!("http{rest}"));
            Url::parse(&url).ok().filter(Url::has_host)
        });
        Some(urls.collect())
    }
}

#[cfg(test)]
mod tests {
    use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
    use vivavoce_core::tls_roots::Authorities;

    use super::*;

    /// A server of a room API that answers with this status and names these regions.
    fn server(status: u16, regions: Vec<String>) -> (String, web::Data<Mutex<Vec<String>>>) {
        let seen = web::Data::new(Mutex::new(Vec::new()));
        let shared = seen.clone();
        let answers = move |request: HttpRequest, seen: web::Data<Mutex<Vec<String>>>| {
            seen.lock().unwrap().push(request.path().to_owned());
            let regions: Vec<_> = regions
                .iter()
                .map(|url| serde_json::json!({"url": url}))
                .collect();
            let answer = if request.path() == "/settings/regions" {
                HttpResponse::Ok().json(serde_json::json!({"regions": regions}))
            } else if status == 200 {
                let room = proto::Room {
                    name: "kitchen".to_owned(),
                    ..Default::default()
                };
                let answer = proto::ListRoomsResponse { rooms: vec![room] };
                HttpResponse::Ok().body(answer.encode_to_vec())
            } else {
                let status = actix_web::http::StatusCode::from_u16(status).unwrap();
                HttpResponse::build(status).body(r#"{"code":"unavailable","msg":"away"}"#)
            };
            std::future::ready(answer)
        };
        let server = HttpServer::new(move || {
            let app = App::new().app_data(shared.clone());
            app.default_service(web::to(answers.clone()))
        });
        let server = server
            .workers(1)
            .disable_signals()
            .bind(("127.0.0.1", 0))
            .unwrap();
        let url = format!("http://{}", server.addrs()[0]);
        actix_web::rt::spawn(server.run());
        (url, seen)
    }

    fn api(url: &str, has_regions: bool) -> ServerApi {
        let key = ApiKey {
            key: "key".to_owned(),
            secret: "a secret of the deployment".to_owned(),
        };
        let transport = Transport::new(&Authorities::default()).unwrap();
        let api = ServerApi::new(&Url::parse(url).unwrap(), key, &transport);
        ServerApi { has_regions, ..api }
    }

    async fn rooms(api: &ServerApi) -> Result<usize, ApiError> {
        let request = proto::ListRoomsRequest::default();
        let answer: proto::ListRoomsResponse = api
            .call("RoomService/ListRooms", Grant::RoomList, &request)
            .await?;
        Ok(answer.rooms.len())
    }

    #[actix_web::test]
    async fn a_request_that_fails_is_repeated_in_another_region_of_the_cloud() {
        let (second, _) = server(200, Vec::new());
        let (first, seen) = server(503, vec![second.replace("http", "ws")]);
        assert_eq!(rooms(&api(&first, true)).await.unwrap(), 1);
        let path = "/twirp/livekit.RoomService/ListRooms";
        assert_eq!(*seen.lock().unwrap(), [path, "/settings/regions"]);
        let alone = rooms(&api(&first, false)).await.unwrap_err();
        assert_eq!(alone.twirp().unwrap().code, "unavailable");
        assert_eq!(seen.lock().unwrap().len(), 3, "no regions were asked for");
    }

    #[actix_web::test]
    async fn a_refusal_is_not_repeated() {
        let (second, _) = server(200, Vec::new());
        let (first, seen) = server(400, vec![second]);
        let refused = rooms(&api(&first, true)).await.unwrap_err();
        assert_eq!(refused.to_string(), "unavailable: away");
        assert_eq!(seen.lock().unwrap().len(), 1);
    }

    #[test]
    fn a_request_may_do_only_what_it_needs() {
        let claims = Grant::RoomAdmin("kitchen").claims();
        let expected = VideoGrant {
            room_admin: true,
            room: "kitchen".to_owned(),
            ..VideoGrant::default()
        };
        assert_eq!((claims.video, claims.sip), (expected, SipGrant::default()));
        let claims = Grant::SipCall.claims();
        assert_eq!(claims.video, VideoGrant::default());
        assert!(claims.sip.call && !claims.sip.admin);
    }
}
