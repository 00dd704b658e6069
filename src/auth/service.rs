//! The authentication service: signing and sending requests about tokens, and interpreting the answers (protocol,
//! section 5). Everything is bounded: concurrent requests, the time of each, the size of an answer.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use dashmap::DashMap;
use reqwest::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use reqwest::{Client, Response, StatusCode, Version, redirect};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use super::decisions::{Decisions, Key};
use super::signing::KeyFile;
use super::token::{Holder, Token};
use super::{AuthError, SetupError};
use vivavoce_config::HttpUrl;
use vivavoce_core::dialect::Dialect;
use vivavoce_core::log_interval::LogInterval;
use vivavoce_core::party::TenantId;
use vivavoce_core::tls_roots::Authorities;

/// The lifetime of a signed request.
const LIFETIME_SECONDS: u64 = 300;
/// The maximum size of an answer.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Concurrent requests; more wait, within their timeout.
const MAX_REQUESTS: usize = 256;
/// Of these, for one address.
const MAX_REQUESTS_PER_ADDRESS: usize = MAX_REQUESTS / 4;
/// Shorter than most servers' keep-alive timeout, so that a connection is not reused just as the server closes it.
const IDLE_CONNECTION: Duration = Duration::from_secs(4);

/// Headers, and prefixes of headers, that are not passed on to the service.
const HIDDEN_HEADERS: &[&str] = &["authorization", "cookie", "host", "x-real-ip"];
const HIDDEN_PREFIXES: &[&str] = &["x-forwarded-", OWN_HEADERS];
/// The prefix of this service's own headers.
const OWN_HEADERS: &str = "x-service-";

/// The request that a token is used for.
#[derive(Clone)]
pub struct AuthRequest {
    pub(super) method: String,
    pub(super) path: String,
    headers: BTreeMap<String, String>,
    pub(super) body: Bytes,
    /// The caller's address or network, for limiting; not passed on to the service.
    caller: Option<IpAddr>,
}

impl AuthRequest {
    /// A request with all its headers; those that are not passed on are removed here.
    pub fn new<'a>(
        method: &str,
        path: &str,
        headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
        body: Bytes,
    ) -> Self {
        let mut told = BTreeMap::<String, String>::new();
        for (name, value) in headers {
            let name = name.to_ascii_lowercase();
            let hidden = HIDDEN_HEADERS.contains(&name.as_str())
                || HIDDEN_PREFIXES
                    .iter()
                    .any(|prefix| name.starts_with(prefix));
            if hidden {
                continue;
            }
            let value = String::from_utf8_lossy(value);
            told.entry(name)
                .and_modify(|values| {
                    values.push_str(", ");
                    values.push_str(&value);
                })
                .or_insert_with(|| value.to_string());
        }
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            headers: told,
            body,
            caller: None,
        }
    }

    /// Counts the request for an address, which may have a limited number in progress.
    pub fn asked_by(self, caller: Option<IpAddr>) -> Self {
        Self { caller, ..self }
    }

    /// The claims about the request. A body that is not JSON is an error: it must not count as absent.
    fn claims(
        &self,
        token: &Token,
        now: SystemTime,
        dialect: &Dialect,
    ) -> serde_json::Result<Vec<u8>> {
        let issued = now
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| now.as_secs());
        let body = Some(&self.body).filter(|body| !body.is_empty());
        let body: Option<&RawValue> = body.map(|body| serde_json::from_slice(body)).transpose()?;
        // Ours are gone already.
        let hidden = dialect.header(OWN_HEADERS);
        let told = self.headers.iter();
        let told = told.map(|(name, value)| (name.as_str(), value.as_str()));
        let told = told.filter(|(name, _)| !name.starts_with(&*hidden));
        serde_json::to_vec(&Claims {
            sub: dialect.subject(),
            iat: issued,
            exp: issued + LIFETIME_SECONDS,
            auth_data: AuthData {
                token: token.expose(),
                request_body: body.map_or(Body::None {}, Body::Json),
                request_headers: told.collect(),
                request_path: &self.path,
                request_method: &self.method,
            },
        })
    }
}

#[derive(Serialize)]
struct Claims<'a> {
    sub: String,
    iat: u64,
    exp: u64,
    auth_data: AuthData<'a>,
}

#[derive(Serialize)]
struct AuthData<'a> {
    token: &'a str,
    request_body: Body<'a>,
    request_headers: BTreeMap<&'a str, &'a str>,
    request_path: &'a str,
    request_method: &'a str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Body<'a> {
    /// The verbatim text, so that the service sees exactly what the handler will parse.
    Json(&'a RawValue),
    None {},
}

/// The client of the authentication service.
pub(super) struct AuthService {
    url: HttpUrl,
    client: Client,
    key: Arc<KeyFile>,
    patience: Duration,
    slots: Semaphore,
    address_limits: AddressLimits,
    decisions: Option<Decisions>,
    dialect: Arc<Dialect>,
}

impl AuthService {
    pub(super) fn open(
        url: HttpUrl,
        key: PathBuf,
        patience: Duration,
        keep: Duration,
        authorities: &Authorities,
        dialect: Dialect,
    ) -> Result<Self, SetupError> {
        let path = key.clone();
        let key = KeyFile::open(key).map_err(|source| SetupError::Key { path, source })?;
        let client = if url.0.scheme() == "http" {
            // A machine without CA certificates can still use a service over plain HTTP.
            Client::builder().tls_certs_only([])
        } else {
            authorities.client()
        };
        let client = client
            .user_agent(concat!("vivavoce/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            // A proxy from the environment would see every token.
            .no_proxy()
            .pool_idle_timeout(IDLE_CONNECTION);
        Ok(Self {
            url,
            client: client.build()?,
            key: Arc::new(key),
            patience,
            slots: Semaphore::new(MAX_REQUESTS),
            address_limits: AddressLimits::default(),
            decisions: Decisions::new(keep),
            dialect: Arc::new(dialect),
        })
    }

    /// Asks for the holder of a token, or takes the answer from the cache.
    pub(super) async fn ask(
        &self,
        token: Token,
        request: AuthRequest,
    ) -> Result<Holder, AuthError> {
        let kept = self.decisions.as_ref();
        let kept = kept.map(|decisions| (decisions, Key::new(&token, &request)));
        if let Some((decisions, key)) = &kept
            && let Some(holder) = decisions.get(key, Instant::now())
        {
            return Ok(holder);
        }
        let holder = self.ask_anew(token, request).await?;
        if let Some((decisions, key)) = kept {
            decisions.put(key, holder.clone(), Instant::now());
        }
        Ok(holder)
    }

    /// The same, without the cache.
    pub(super) async fn ask_anew(
        &self,
        token: Token,
        request: AuthRequest,
    ) -> Result<Holder, AuthError> {
        let answer = tokio::time::timeout(self.patience, self.put(token, request)).await;
        answer.unwrap_or_else(|_| {
            warn("did not answer in time");
            Err(AuthError::ServiceUnavailable)
        })
    }

    async fn put(&self, token: Token, request: AuthRequest) -> Result<Holder, AuthError> {
        // The semaphores are never closed. The address's own limit comes first, so that nobody waits for it while
        // holding one of the shared slots.
        let queue = request
            .caller
            .map(|caller| self.address_limits.queue(caller));
        let _turn = match &queue {
            Some(queue) => queue.semaphore.acquire().await.ok(),
            None => None,
        };
        let _slot = self.slots.acquire().await;
        let (key, dialect) = (Arc::clone(&self.key), Arc::clone(&self.dialect));
        let now = SystemTime::now();
        let sign = move || {
            let claims = request.claims(&token, now, &dialect);
            key.sign(&claims.map_err(|_| AuthError::Signing)?)
        };
        let signed = tokio::task::spawn_blocking(sign).await;
        let signed = signed.map_err(|_| AuthError::Signing)??;
        let request = self.client.post(self.url.0.clone());
        let request = request.header(CONTENT_TYPE, "application/jwt").body(signed);
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        match status {
            StatusCode::OK => Answer::read(response).await?.holder(),
            StatusCode::UNAUTHORIZED => Err(AuthError::Unauthorized),
            _ if status.is_client_error() => {
                tracing::debug!(%status, "the authentication service refused a request");
                Err(AuthError::ServiceRefused)
            }
            _ => {
                warn(format_args!("failed with status {status}"));
                Err(AuthError::ServiceFailed)
            }
        }
    }
}

/// A semaphore per address, as long as requests from there are in progress or waiting.
#[derive(Default)]
struct AddressLimits(DashMap<IpAddr, Arc<Semaphore>>);

/// A reference to an address's semaphore.
struct Queue<'a> {
    address_limits: &'a AddressLimits,
    caller: IpAddr,
    semaphore: Arc<Semaphore>,
}

impl AddressLimits {
    fn queue(&self, caller: IpAddr) -> Queue<'_> {
        let new = || Arc::new(Semaphore::new(MAX_REQUESTS_PER_ADDRESS));
        let semaphore = Arc::clone(&self.0.entry(caller).or_insert_with(new));
        Queue {
            address_limits: self,
            caller,
            semaphore,
        }
    }
}

impl Drop for Queue<'_> {
    fn drop(&mut self) {
        // Dropped first, so that the last one to leave finds only the table's own reference.
        self.semaphore = Arc::new(Semaphore::new(0));
        let table = &self.address_limits.0;
        table.remove_if(&self.caller, |_, left| Arc::strong_count(left) == 1);
    }
}

impl fmt::Debug for AuthService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service at {:?}", self.url)
    }
}

/// Logs what is wrong with the service. Every unknown caller's token can cause it.
fn warn(what: impl fmt::Display) {
    static WARNINGS: Mutex<LogInterval> = Mutex::new(LogInterval::new());
    let mut warnings = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let times = warnings.count(Instant::now());
    drop(warnings);
    if let Some(times) = times {
        tracing::warn!(times, "the authentication service {what}");
    }
}

fn unreachable(error: reqwest::Error) -> AuthError {
    let error = error.without_url();
    let cause = std::error::Error::source(&error).map(ToString::to_string);
    let cause = cause.unwrap_or_default();
    warn(format_args!("cannot be reached: {error}: {cause}"));
    AuthError::ServiceUnavailable
}

/// The body of a successful answer, and what its head says about it.
#[derive(Debug, Default)]
struct Answer {
    body: Vec<u8>,
    /// Whether the head says that the body is JSON, or that it is compressed.
    claims_json: bool,
    /// Whether the body ended only with the connection, so that it may be truncated.
    end_unmarked: bool,
}

impl Answer {
    async fn read(mut response: Response) -> Result<Self, AuthError> {
        let headers = response.headers();
        let media_type = headers.get(CONTENT_TYPE);
        let media_type = media_type.is_some_and(|value| is_json(value.as_bytes()));
        let mut answer = Self {
            body: Vec::new(),
            claims_json: media_type || headers.contains_key(CONTENT_ENCODING),
            end_unmarked: response.version() <= Version::HTTP_11
                && !headers.contains_key(CONTENT_LENGTH)
                && !headers.contains_key(TRANSFER_ENCODING),
        };
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            if answer.body.len() + chunk.len() > MAX_ANSWER_BYTES {
                warn("gave an answer that is too long");
                return Err(AuthError::ServiceFailed);
            }
            answer.body.extend_from_slice(&chunk);
        }
        Ok(answer)
    }

    /// Who the answer says that the holder is. No tenant means full access, so anything that may have been meant to name a
    /// tenant but cannot be parsed is an error.
    fn holder(&self) -> Result<Holder, AuthError> {
        use serde_json::Value;
        let failed = |why| {
            warn(format_args!("gave an answer that {why}"));
            AuthError::ServiceFailed
        };
        let start = start(&self.body);
        let text = match start {
            None => true,
            Some(first) => !self.claims_json && !matches!(first, b'{' | b'['),
        };
        if text && self.end_unmarked {
            return Err(failed("may have been truncated"));
        }
        if text {
            return Ok(Holder {
                tenant: None,
                reads_only: false,
            });
        }
        let Ok(Value::Object(answer)) = serde_json::from_slice(&self.body) else {
            return Err(failed("is not a JSON object"));
        };
        let tenant = match answer.get("id") {
            None | Some(Value::Null) => None,
            Some(id) => {
                let id = id.as_str().and_then(|id| TenantId::new(id).ok());
                Some(id.ok_or_else(|| failed("has an id that is not a valid tenant id"))?)
            }
        };
        let reads_only = match answer.get("read_only") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(only)) => *only,
            Some(_) => return Err(failed("has a read_only that is neither true nor false")),
        };
        Ok(Holder { tenant, reads_only })
    }
}

/// The first byte that is neither white space nor part of a byte order mark.
fn start(body: &[u8]) -> Option<u8> {
    let blank = |byte: &u8| {
        byte.is_ascii_whitespace()
            || byte.is_ascii_control()
            || matches!(byte, 0xef | 0xbb | 0xbf | 0xfe | 0xff)
    };
    body.iter().copied().find(|byte| !blank(byte))
}

/// Whether a content type is `application/json`, `text/json` or has the suffix `+json` (RFC 6839, section 3.1).
fn is_json(content_type: &[u8]) -> bool {
    let media_type = content_type.split(|byte| *byte == b';').next();
    let media_type = media_type.unwrap_or_default().trim_ascii();
    let media_type = media_type.to_ascii_lowercase();
    media_type.ends_with(b"/json") || media_type.ends_with(b"+json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claims(headers: &[(&str, &str)], body: &'static str) -> Value {
        let headers = headers
            .iter()
            .map(|(name, value)| (*name, value.as_bytes()));
        let request = AuthRequest::new(
            "POST",
            "/speak",
            headers,
            Bytes::from_static(body.as_bytes()),
        );
        let now = UNIX_EPOCH + Duration::from_millis(1_700_000_000_900);
        let claims = request
            .claims(&Token::new("t").unwrap(), now, &Dialect::default())
            .unwrap();
        serde_json::from_slice(&claims).unwrap()
    }

    #[test]
    fn the_service_is_told_what_the_specification_says() {
        let headers = [
            ("Accept", "audio/wav"),
            ("accept", "audio/mpeg"),
            ("Authorization", "Bearer t"),
            ("Cookie", "c"),
            ("Host", "h"),
            ("X-Real-IP", "1"),
            ("X-Forwarded-For", "1"),
            ("x-forwarded-proto", "https"),
            ("X-Service-Name", "s"),
            ("x-forwarder", "kept"),
        ];
        let expected = json!({
            "sub": "service-auth",
            "iat": 1_700_000_000,
            "exp": 1_700_000_300,
            "auth_data": {
                "token": "t",
                "request_body": {"text": "x"},
                "request_headers": {"accept": "audio/wav, audio/mpeg", "x-forwarder": "kept"},
                "request_path": "/speak",
                "request_method": "POST",
            },
        });
        assert_eq!(claims(&headers, r#"{"text": "x"}"#), expected);
    }

    #[tokio::test]
    async fn an_address_has_a_quarter_of_the_turns_and_leaves_nothing_behind() {
        let address_limits = AddressLimits::default();
        let [one, other] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
        let queues: Vec<_> = (0..=MAX_REQUESTS_PER_ADDRESS)
            .map(|_| address_limits.queue(one))
            .collect();
        let mut held: Vec<_> = queues[1..]
            .iter()
            .map(|queue| queue.semaphore.try_acquire().unwrap())
            .collect();
        assert!(queues[0].semaphore.try_acquire().is_err());
        assert!(address_limits.queue(other).semaphore.try_acquire().is_ok());
        held.pop();
        assert!(queues[0].semaphore.try_acquire().is_ok());
        assert_eq!(address_limits.0.len(), 1);
        drop(held);
        drop(queues);
        assert!(address_limits.0.is_empty());
    }

    #[test]
    fn a_body_is_told_as_it_is_and_never_as_none_when_it_is_there() {
        assert_eq!(claims(&[], "")["auth_data"]["request_body"], json!({}));
        let now = UNIX_EPOCH;
        for body in [&b"{"[..], b"text", b"{} {}", b" ", b"{\"a\": \"\xff\"}"] {
            let request = AuthRequest::new("POST", "/speak", [], Bytes::from_static(body));
            let claims = request.claims(&Token::new("t").unwrap(), now, &Dialect::default());
            assert!(claims.is_err());
        }
        for body in ["[1]", "null", "\"x\""] {
            let told = &claims(&[], body)["auth_data"]["request_body"];
            assert_eq!(told.to_string(), body);
        }
    }

    fn tenant(body: impl AsRef<[u8]>) -> Result<Option<TenantId>, AuthError> {
        let body = body.as_ref().to_vec();
        let answer = Answer {
            body,
            ..Answer::default()
        };
        answer.holder().map(|holder| holder.tenant)
    }

    #[test]
    fn a_tenant_is_a_name_or_none_or_a_failure() {
        for none in ["", " \r\n", "OK", "\"id\"", "<p>", "{}", r#"{"id": null}"#] {
            assert_eq!(tenant(none), Ok(None), "{none}");
        }
        let a = TenantId::new("a").unwrap();
        assert_eq!(tenant(r#"{"id": "a", "name": 1}"#), Ok(Some(a)));
        for wrong in ["7", "true", "{}", "[\"a\"]", "\"\"", "\"a\\u0000\""] {
            let answer = format!("{{\"id\": {wrong}}}");
            assert_eq!(tenant(&answer), Err(AuthError::ServiceFailed), "{wrong}");
        }
    }

    #[test]
    fn what_looks_like_json_and_cannot_be_read_never_counts_as_nobodys() {
        let deep = format!(
            "{{\"id\": \"a\", \"x\": {}{}}}",
            "[".repeat(200),
            "]".repeat(200)
        );
        let wide: Vec<u8> = "{\"id\": \"a\"}"
            .encode_utf16()
            .flat_map(u16::to_be_bytes)
            .collect();
        let marked = [&[0xfe, 0xff], &wide[..]].concat();
        let bodies: [&[u8]; 13] = [
            b"{\"id\":",
            b"{\"id\": \"a\"} x",
            b"{\"id\": \"a\", \"name\": \"\\ud800\"}",
            b"{\"id\": \"a\", \"name\": \"Jos\xe9\"}",
            b"{\"id\": \"a\", \"score\": 1e999}",
            b"{\"id\": \"a\", \"score\": NaN}",
            b"\xef\xbb\xbf{\"id\": \"a\"}",
            b"\n {'id': 'a'}",
            b"[]",
            b"[{\"id\": \"a\"}]",
            deep.as_bytes(),
            &wide,
            &marked,
        ];
        for body in bodies {
            let shown = String::from_utf8_lossy(body);
            assert_eq!(tenant(body), Err(AuthError::ServiceFailed), "{shown}");
        }
    }

    #[test]
    fn what_is_said_to_be_json_must_be_an_object() {
        for body in ["OK", "\"a\"", "7", "null", "\u{1f}\u{8b}\u{8}"] {
            let answer = Answer {
                body: body.into(),
                claims_json: true,
                end_unmarked: false,
            };
            assert_eq!(answer.holder(), Err(AuthError::ServiceFailed), "{body}");
        }
        for yes in [
            "application/json",
            "Text/JSON",
            "application/problem+json; charset=x",
        ] {
            assert!(is_json(yes.as_bytes()), "{yes}");
        }
        for no in ["", "text/html", "application/jsonp", "json"] {
            assert!(!is_json(no.as_bytes()), "{no}");
        }
    }

    #[test]
    fn an_answer_that_may_have_been_cut_off_is_not_nobodys() {
        let cut = |body: &str| {
            let answer = Answer {
                body: body.into(),
                claims_json: false,
                end_unmarked: true,
            };
            answer.holder().map(|holder| holder.tenant)
        };
        for body in ["", " ", "OK", "{\"id\""] {
            assert_eq!(cut(body), Err(AuthError::ServiceFailed), "{body:?}");
        }
        assert_eq!(cut("{}"), Ok(None));
        assert_eq!(cut("{\"id\": \"a\"}"), Ok(TenantId::new("a").ok()));
    }
}
