//! `/carrier/{kind}/…`: the doors of telephone carriers (protocol, section 4, "Carriers"). `media` is the WebSocket that a carrier
//! opens for a call, `answer` the document that tells it to. Messages, signatures and documents are those of
//! [`vivavoce_carriers`]; here it is decided who comes in, and a call gets its agent ([`call`]).

mod call;
mod room;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use actix_web::http::{Method, header};
use actix_web::web::Bytes;
use actix_web::{FromRequest, HttpMessage, HttpRequest, HttpResponse, dev, web};

use arc_swap::ArcSwap;

use super::auth::{self, public};
use super::body;
use super::entries::{Callers, Endpoint, Handling, at};
use super::error::{ApiError, Code};
use super::handshake;
use super::limits::{self, Limits};
use super::rtc;
use super::state::AppState;
use super::ws::Sockets;
use call::{CarrierSocket, Incoming};
use room::CallRooms;
use vivavoce_agents::AgentLines;
use vivavoce_auth::{Access, Owner};
use vivavoce_carriers::{
    Account, Accounts, Carrier, MAX_MESSAGE_BYTES, Request, Signature, Stream, UsedSignatures,
    carrier,
};
use vivavoce_config::Settings;
use vivavoce_core::log_interval::LogInterval;
use vivavoce_socket as socket;

/// What the doors of carriers need beside the rest of the server's state.
pub struct Carriers {
    settings: ArcSwap<CarrierSettings>,
    used: Mutex<UsedSignatures>,
    agents: AgentLines,
    config_timeout: std::time::Duration,
    complexity: u8,
}

/// What is read again while the server runs.
pub struct CarrierSettings {
    accounts: Accounts,
    /// Where carriers find this server, `http` or `https`, without a slash at its end.
    public_url: Option<String>,
}

impl CarrierSettings {
    /// On failure all contradictions of the settings.
    pub fn new(settings: &Settings) -> Result<Self, Vec<String>> {
        let url = settings.carriers.public_url.as_ref();
        Ok(Self {
            accounts: Accounts::new(settings)?,
            public_url: url.map(|url| url.0.as_str().trim_end_matches('/').to_owned()),
        })
    }

    /// Where carriers find this server, with the scheme of a socket or of a page.
    fn base(&self, request: &HttpRequest, is_socket: bool) -> String {
        let base = self.public_url.clone();
        let base = base.unwrap_or_else(|| rtc::own_url(request).replacen("ws", "http", 1));
        if is_socket {
            base.replacen("http", "ws", 1)
        } else {
            base
        }
    }
}

impl Carriers {
    /// From valid settings.
    pub fn new(carriers: CarrierSettings, settings: &Settings, agents: AgentLines) -> Self {
        Self {
            settings: ArcSwap::from_pointee(carriers),
            used: Mutex::default(),
            agents,
            config_timeout: settings.socket.config_timeout_seconds,
            complexity: settings.rtc.complexity,
        }
    }

    /// Whoever comes from now on is looked for here; calls that are there stay.
    pub fn reload(&self, settings: CarrierSettings) {
        self.settings.store(Arc::new(settings));
    }

    /// Refuses what was signed for another socket.
    fn use_once(&self, carrier: &dyn Carrier, signature: &Signature) -> Result<(), ApiError> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.take(signature, Instant::now()) {
            return Ok(());
        }
        let carrier = carrier.kind();
        tracing::warn!(carrier, "a signature of a carrier was used before");
        let message = "the carrier's signature was used before";
        Err(ApiError::new(Code::Unauthorized, message))
    }
}

/// The contradictions of the settings.
pub fn problems(settings: &Settings) -> Vec<String> {
    CarrierSettings::new(settings).err().unwrap_or_default()
}

/// The paths.
pub fn endpoints() -> Vec<Endpoint> {
    let carriers = |handling: Handling| handling.for_callers(Callers::Carriers);
    let media = || {
        carriers(public(open)).with_messages(
            MAX_MESSAGE_BYTES,
            "socket.idle_timeout_seconds",
            "limits.sessions",
        )
    };
    let told = || carriers(public(answer));
    let mut endpoints = Vec::new();
    for secret in ["", "/{secret}"] {
        let path = |name: &str| at(format!("/carrier/{{kind}}/{name}{secret}"));
        endpoints.push(path("media").on(Method::GET, media()));
        let answers = path("answer").get(told());
        endpoints.push(answers.on(Method::POST, told().with_body()));
    }
    endpoints
}

/// Who has come.
struct Caller {
    access: Access,
    known: Option<(Account, Signature)>,
}

/// The carrier of the path.
fn carrier_of(request: &HttpRequest) -> Result<&'static dyn Carrier, ApiError> {
    let kind = request.match_info().get("kind").unwrap_or_default();
    carrier(kind).ok_or_else(|| {
        let known: Vec<_> = vivavoce_carriers::CARRIERS
            .iter()
            .map(|carrier| carrier.kind())
            .collect();
        let message = format!("there is no such carrier; there are {}", known.join(", "));
        ApiError::new(Code::NotFound, message)
    })
}

/// A carrier is known by the signature of an account or by its secret, anybody else by a token. Where authentication is off and
/// the carrier has no account, whoever comes is let in.
async fn admit(
    carriers: &CarrierSettings,
    state: &AppState,
    request: &HttpRequest,
    asked: (&dyn Carrier, bool, &BTreeMap<String, String>, &[u8]),
) -> Result<Caller, ApiError> {
    let (carrier, is_socket, form, body) = asked;
    let target = request.uri().path_and_query();
    let target = target.map_or("/", |target| target.as_str());
    let url = format!("{}{target}", carriers.base(request, is_socket));
    let headers = request.headers();
    let only = |name: &str| {
        let mut values = headers.get_all(name);
        let value = values.next().and_then(|value| value.to_str().ok());
        value.filter(|_| values.next().is_none())
    };
    let seen = Request {
        method: request.method().as_str(),
        url: &url,
        header: &only,
        form,
        body,
    };
    let secret = request.match_info().get("secret");
    let known = (is_socket, SystemTime::now());
    let account = carriers.accounts.admit(carrier, &seen, secret, known);
    if let Some((account, signature)) = account {
        let access = match (&account.tenant, &state.auth) {
            (Some(tenant), _) => Access::of_owner(&Owner::Tenant(tenant.clone())),
            (None, Some(_)) => Access::of_owner(&Owner::Operator),
            (None, None) => Access::anonymous(),
        };
        if state.auth.is_some() {
            limits::authenticated(request, access.tenant())?;
        }
        return Ok(Caller {
            access,
            known: Some((account.clone(), signature)),
        });
    }
    if let Some(access) = auth::by_token(state, request).await? {
        return Ok(Caller {
            access,
            known: None,
        });
    }
    if state.auth.is_none() && secret.is_none() && !carriers.accounts.has_some_of(carrier) {
        let access = Access::anonymous().counted_by(auth::stranger(request));
        return Ok(Caller {
            access,
            known: None,
        });
    }
    log_refusal(carrier, &carriers.base(request, is_socket));
    let message = "neither the carrier's signature nor the secret is that of an account of carriers.accounts_json";
    Err(ApiError::new(Code::Unauthorized, message))
}

/// Whoever sets up a carrier looks for what is wrong here: nearly always the address.
fn log_refusal(carrier: &dyn Carrier, base: &str) {
    static REFUSALS: Mutex<LogInterval> = Mutex::new(LogInterval::new());
    let mut refusals = REFUSALS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(times) = refusals.count(Instant::now()) {
        let carrier = carrier.kind();
        tracing::warn!(
            carrier,
            times,
            address = %format_args!("{base}/carrier/{carrier}/…"),
            "neither the signature of a carrier, for this address, nor its secret is that of an account"
        );
    }
}

/// Opens the socket of a call.
pub async fn open(
    state: web::Data<AppState>,
    carriers: web::Data<Carriers>,
    sockets: web::Data<Sockets>,
    limits: web::Data<Limits>,
    request: HttpRequest,
    payload: web::Payload,
) -> actix_web::Result<HttpResponse> {
    let carrier = carrier_of(&request)?;
    let asked = (carrier, true, &BTreeMap::new(), &b""[..]);
    let settings = carriers.settings.load_full();
    let Caller { access, known } = admit(&settings, &state, &request, asked).await?;
    let work = state.begin_work()?;
    limits.admit_tenant(&access)?;
    let (account, signature) = known.unzip();
    let incoming = Incoming {
        carrier,
        account,
        agents: carriers.agents.clone(),
        rooms: CallRooms {
            registry: state.rooms.clone(),
            complexity: carriers.complexity,
        },
        config_timeout: carriers.config_timeout,
        // Each attempt of an agent takes a place of its own; here one must be free.
        session: limits.session(&access)?,
        unconfigured: limits.unconfigured_socket(&request)?,
        access,
        work,
    };
    if let Some(signature) = signature {
        carriers.use_once(carrier, &signature)?;
    }
    let key = incoming.access.party();
    request.extensions_mut().insert(key);
    let codec = carrier.codec(request.query_string());
    socket::open(&request, payload, sockets.settings(), |writer| {
        CarrierSocket::new(incoming, codec, writer)
    })
    .map_err(handshake::refused)
}

/// Parameters of the document's own URL that begin like this are passed on to the call.
const PARAMETER: &str = "parameter.";

/// The document that tells a carrier to open a socket.
pub async fn answer(
    state: web::Data<AppState>,
    carriers: web::Data<Carriers>,
    request: HttpRequest,
    payload: Whole,
) -> Result<HttpResponse, ApiError> {
    let Whole(body) = payload;
    let carrier = carrier_of(&request)?;
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_form = kind.starts_with("application/x-www-form-urlencoded");
    let pairs = |text: &[u8]| -> BTreeMap<String, String> {
        form_urlencoded::parse(text).into_owned().collect()
    };
    let form = if is_form {
        pairs(&body)
    } else {
        BTreeMap::new()
    };
    let carriers = carriers.settings.load_full();
    let caller = admit(&carriers, &state, &request, (carrier, false, &form, &body)).await?;
    let query = pairs(request.query_string().as_bytes());
    let given = query.iter().filter_map(|(name, value)| {
        let name = name.strip_prefix(PARAMETER)?;
        Some((name.to_owned(), value.clone()))
    });
    let given = given.collect();
    let mut asked = query.clone();
    asked.extend(form);
    if kind.starts_with("application/json") {
        let fields: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let fields = fields.as_object().into_iter().flatten();
        asked.extend(
            fields.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))),
        );
    }
    let secret = caller
        .known
        .as_ref()
        .and_then(|(account, _)| account.secret());
    let secret = secret.filter(|_| !carrier.has_secret_in_header());
    let secret = secret
        .map(|secret| format!("/{secret}"))
        .unwrap_or_default();
    let base = carriers.base(&request, true);
    let url = format!("{base}/carrier/{}/media{secret}", carrier.kind());
    let stream = Stream {
        url: &url,
        given: &given,
    };
    let document = carrier.answer(&stream, &asked);
    Ok(HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, document.content_type))
        .insert_header((header::CACHE_CONTROL, "no-store"))
        .body(document.body))
}

/// A body of any kind, or none.
pub struct Whole(Bytes);

impl FromRequest for Whole {
    type Error = ApiError;
    type Future = futures_util::future::LocalBoxFuture<'static, Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, payload: &mut dev::Payload) -> Self::Future {
        let (request, mut payload) = (request.clone(), payload.take());
        Box::pin(async move {
            if request.method() != Method::POST {
                return Ok(Self(Bytes::new()));
            }
            Ok(Self(body::read(&request, &mut payload).await?))
        })
    }
}
