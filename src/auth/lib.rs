//! Authentication and authorisation (protocol, section 5). This crate knows nothing of HTTP: `src/http/auth.rs` extracts
//! credentials from requests and maps errors to responses.
//!
//! # Who calls
//!
//! A token is a shared secret, in a header (`Authorization: Bearer …`) or a query parameter, or anything that a
//! delegated authentication service accepts. There are four kinds of callers:
//!
//! | caller | may access |
//! |---|---|
//! | anybody, while authentication is off | everything |
//! | the operator: a token without a tenant | everything over REST; in a session, what no tenant owns |
//! | a tenant | what it owns |
//! | a session without a token, if `auth.socket` is `public` | what nobody owns |
//!
//! A token of the operator or of a tenant may be one that only reads: [`Access::reads_only`]. It sees the same and changes
//! nothing; `src/http/auth.rs` refuses its requests other than `GET`, and its sockets.
//!
//! # From a token to an access
//!
//! [`Authenticator::identify`] compares the token with the shared secrets, in constant time. If none matches and a
//! service is configured, the answer is [`Decision::AskService`]: the caller reads the request's body and asks. The
//! service gets a JWT (RFC 7519) signed with RS256 or ES256 that contains the token and the request, including its body
//! verbatim. Requests to the service are bounded: 256 in progress, 64 of them for one address, each with a timeout, and
//! answers of at most 64 KiB.
//!
//! The result is an [`Access`], which the rest of the server asks whether a room, recording, session or hook is visible.
//! What is not visible must look as if it did not exist. An access also names the [`Party`](vivavoce_core::party::Party)
//! that the use of resources is counted for.
//!
//! # Sessions
//!
//! A session outlives the request that opened it, so its token is watched: [`Pass`] resolves when the token expires or
//! when the service, asked again at intervals, no longer accepts it. A service that is down does not end sessions.
//!
//! # Example
//!
//! ```
//! use std::collections::HashMap;
//! use vivavoce_auth::{Authenticator, Credentials, Decision, Interface};
//! use vivavoce_config::Config;
//! use vivavoce_core::tls_roots::Authorities;
//!
//! let settings = [
//!     ("AUTH_REQUIRED", "true"),
//!     ("AUTH_API_SECRETS_JSON", r#"[{"id": "shop", "secret": "correct-horse-battery-staple-1234"}]"#),
//! ];
//! let settings: HashMap<_, _> = settings.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
//! let config = Config::from_sources(&[], &settings, None).unwrap();
//! let dialect = config.settings.dialect.words();
//! let authenticator = Authenticator::open(&config.settings.auth, &Authorities::default(), dialect);
//! let authenticator = authenticator.unwrap().expect("authentication is on");
//!
//! let credentials = Credentials {
//!     authorization: vec![b"Bearer correct-horse-battery-staple-1234"],
//!     query: "",
//! };
//! let decision = authenticator.identify(Interface::Rest, &credentials).unwrap();
//! let Decision::Granted(access) = decision else {
//!     unreachable!("there is no service to ask");
//! };
//! assert_eq!(access.tenant().unwrap().as_str(), "shop");
//! assert!(!access.may_see(None));
//! ```

mod access;
mod decisions;
mod methods;
mod room_owner;
mod secrets;
mod service;
pub mod signing;
mod token;
mod token_lifetime;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use access::{Access, Whose};
pub use methods::{problems, warnings};
pub use room_owner::{Owner, Principal, Takeover};
pub use service::AuthRequest;
pub use signing::KeyError;
pub use token::Credentials;
pub use token_lifetime::{Pass, Withdrawn};
pub use vivavoce_core::party::{InvalidTenant, TenantId};

use futures_util::FutureExt;
use tokio::time::Instant;

use arc_swap::ArcSwap;
use methods::Methods;
use secrets::Secrets;
use service::AuthService;
use token::{Holder, Token};
use vivavoce_config::{Auth, SocketAuth};
use vivavoce_core::dialect::Dialect;
use vivavoce_core::tls_roots::Authorities;

/// Why authentication failed. The messages contain nothing of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// There is no token, neither in a header nor in the query.
    #[error(
        "a token is needed: \"Authorization: Bearer <token>\", or api_key=<token> in the query"
    )]
    MissingHeader,
    /// The header is malformed, and the query has no token instead.
    #[error("the Authorization header must be \"Bearer\" and one token")]
    InvalidHeader,
    /// The token is not valid.
    #[error("this token is not accepted")]
    Unauthorized,
    /// The service answered with a 4xx status other than 401.
    #[error("the authentication service refused the request")]
    ServiceRefused,
    /// The service's answer is not valid.
    #[error("the authentication service failed")]
    ServiceFailed,
    /// The service did not answer in time.
    #[error("the authentication service does not answer")]
    ServiceUnavailable,
    /// The signing key file has become unusable.
    #[error("authentication is misconfigured; see the server's log")]
    Config,
    /// Signing failed.
    #[error("the request to the authentication service could not be signed")]
    Signing,
}

/// Why the [`Authenticator`] could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Settings contradict each other.
    #[error("{}", .0.join("\n"))]
    Settings(Vec<String>),
    /// The signing key cannot be used.
    #[error("auth.signing_key_path: {}: {source}", path.display())]
    Key {
        /// The key file.
        path: PathBuf,
        /// The cause.
        source: KeyError,
    },
    /// The HTTP client for the service cannot be created, for example because of the system's certificates.
    #[error("auth.service_url: {0}")]
    Client(#[from] reqwest::Error),
}

/// The interface that a caller uses: they treat callers without a token or tenant differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    /// A protected REST endpoint.
    Rest,
    /// `GET /ws`.
    Socket,
}

/// The decision, as far as it is possible before the request's body has been read.
pub enum Decision<'a> {
    /// Access is granted.
    Granted(Access),
    /// The authentication service must be asked.
    AskService(ServiceCheck<'a>),
}

/// Shared secrets that were read and are not known yet.
pub struct SharedSecrets(Arc<Secrets>);

/// Authenticates callers.
pub struct Authenticator {
    secrets: ArcSwap<Secrets>,
    service: Option<Arc<AuthService>>,
    require_tenant: bool,
    socket: SocketAuth,
    /// The interval at which the service is asked again about the token of a session.
    session_recheck: Option<Duration>,
}

impl Authenticator {
    /// An authenticator for these settings; `None` if authentication is off. Reads the signing key. The service's
    /// certificate must be signed by the system's authorities or by `authorities`; it is asked in this dialect.
    pub fn open(
        settings: &Auth,
        authorities: &Authorities,
        dialect: Dialect,
    ) -> Result<Option<Self>, SetupError> {
        let methods = Methods::from_settings(settings).map_err(SetupError::Settings)?;
        if !settings.required {
            return Ok(None);
        }
        let service = methods.service.map(|(url, key)| {
            AuthService::open(
                url,
                key,
                settings.timeout_seconds,
                settings.cache_seconds,
                authorities,
                dialect,
            )
        });
        Ok(Some(Self {
            secrets: ArcSwap::from_pointee(methods.secrets),
            service: service.transpose()?.map(Arc::new),
            require_tenant: settings.require_tenant,
            socket: settings.socket(),
            session_recheck: Some(settings.session_recheck_seconds)
                .filter(|every| !every.is_zero()),
        }))
    }

    /// Reads the shared secrets of other settings, for [`Self::take_secrets`].
    pub fn read_secrets(settings: &Auth) -> Result<SharedSecrets, Vec<String>> {
        let methods = Methods::from_settings(settings)?;
        Ok(SharedSecrets(Arc::new(methods.secrets)))
    }

    /// Knows these shared secrets, and no others, from now on.
    pub fn take_secrets(&self, secrets: SharedSecrets) {
        self.secrets.store(secrets.0);
    }

    /// Checks the token against the shared secrets; if it is none of them, the service must be asked.
    pub fn identify(
        &self,
        interface: Interface,
        credentials: &Credentials<'_>,
    ) -> Result<Decision<'_>, AuthError> {
        let token = match credentials.token() {
            Err(AuthError::MissingHeader)
                if interface == Interface::Socket && self.socket == SocketAuth::Public =>
            {
                return Ok(Decision::Granted(Access::public()));
            }
            token => token?,
        };
        if let Some(holder) = self.secrets.load().find(&token) {
            return self.admit(interface, holder).map(Decision::Granted);
        }
        let service = self.service.as_ref().ok_or(AuthError::Unauthorized)?;
        Ok(Decision::AskService(ServiceCheck {
            authenticator: self,
            service,
            interface,
            token,
        }))
    }

    fn admit(&self, interface: Interface, holder: Holder) -> Result<Access, AuthError> {
        let access = match (holder.tenant, interface) {
            (Some(tenant), _) => Access::tenant_only(tenant),
            (None, _) if self.require_tenant => return Err(AuthError::Unauthorized),
            (None, Interface::Rest) => Access::anonymous(),
            (None, Interface::Socket) => Access::operator_session(),
        };
        Ok(if holder.reads_only {
            access.reading_only()
        } else {
            access
        })
    }
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticator")
            .field("secrets", &self.secrets.load())
            .field("service", &self.service)
            .field("require_tenant", &self.require_tenant)
            .field("socket", &self.socket)
            .field("session_recheck", &self.session_recheck)
            .finish()
    }
}

/// A token that only the service can judge.
pub struct ServiceCheck<'a> {
    authenticator: &'a Authenticator,
    service: &'a Arc<AuthService>,
    interface: Interface,
    token: Token,
}

impl ServiceCheck<'_> {
    /// Asks the service about the token and the request it is used for.
    pub async fn ask(self, request: AuthRequest) -> Result<Access, AuthError> {
        let holder = self.service.ask(self.token, request).await?;
        self.authenticator.admit(self.interface, holder)
    }

    /// The same for a session. The future that is also returned resolves when the token is no longer valid.
    ///
    /// If the token looks like a JWT, its `exp` claim ends the session although the signature has not been verified
    /// here: forging it could only shorten one's own session. A token already expired when the service accepted it
    /// shows that the service does not use `exp`, so it is ignored. When the service is asked again, only
    /// [`AuthError::Unauthorized`] or a different tenant end the session: an unavailable or overloaded service must not
    /// cut conversations.
    pub async fn ask_for_session(self, request: AuthRequest) -> Result<(Access, Pass), AuthError> {
        let Self {
            authenticator,
            service,
            interface,
            token,
        } = self;
        let holder = service.ask(token.clone(), request.clone()).await?;
        let access = authenticator.admit(interface, holder.clone())?;
        let expires = token
            .time_left(SystemTime::now())
            .and_then(|left| Instant::now().checked_add(left));
        let service = Arc::clone(service);
        let is_good = async move || {
            let again = service.ask_anew(token.clone(), request.clone()).await;
            match again {
                Ok(now) => now == holder,
                Err(error) => error != AuthError::Unauthorized,
            }
        };
        let pass = token_lifetime::withdrawn(expires, authenticator.session_recheck, is_good);
        Ok((access, pass.boxed_local()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use vivavoce_config::{JsonText, Secret};

    fn settings(tenants: Value) -> Auth {
        Auth {
            required: true,
            api_secret: Some(Secret::new("house")),
            read_secret: None,
            api_secrets_json: Some(JsonText(tenants)),
            service_url: None,
            signing_key_path: None,
            timeout_seconds: Duration::from_secs(5),
            require_tenant: false,
            cache_seconds: Duration::ZERO,
            session_recheck_seconds: Duration::ZERO,
            socket: Some(SocketAuth::Public),
            public_recordings: false,
            claim_unowned_rooms: true,
        }
    }

    fn tenant_a() -> Auth {
        settings(json!([{"id": "a", "secret": "of-a"}]))
    }

    fn at(settings: &Auth, interface: Interface, query: &str) -> Result<Access, AuthError> {
        let authenticator =
            Authenticator::open(settings, &Authorities::default(), Dialect::default())
                .unwrap()
                .unwrap();
        let credentials = Credentials {
            authorization: Vec::new(),
            query,
        };
        match authenticator.identify(interface, &credentials)? {
            Decision::Granted(access) => Ok(access),
            Decision::AskService(_) => panic!("there is no service to ask"),
        }
    }

    #[test]
    fn a_secret_without_tenant_opens_everything_but_a_socket_to_what_is_owned() {
        let settings = tenant_a();
        let a = TenantId::new("a").unwrap();
        for (interface, query, expected) in [
            (Interface::Rest, "api_key=house", Ok(Access::anonymous())),
            (
                Interface::Rest,
                "api_key=of-a",
                Ok(Access::tenant_only(a.clone())),
            ),
            (Interface::Rest, "api_key=x", Err(AuthError::Unauthorized)),
            (Interface::Rest, "", Err(AuthError::MissingHeader)),
            (
                Interface::Socket,
                "api_key=house",
                Ok(Access::operator_session()),
            ),
            (
                Interface::Socket,
                "api_key=of-a",
                Ok(Access::tenant_only(a)),
            ),
            (Interface::Socket, "api_key=x", Err(AuthError::Unauthorized)),
            (Interface::Socket, "", Ok(Access::public())),
        ] {
            assert_eq!(
                at(&settings, interface, query),
                expected,
                "{interface:?} {query}"
            );
        }
    }

    #[test]
    fn a_socket_needs_a_token_unless_somebody_says_otherwise() {
        for socket in [None, Some(SocketAuth::Required)] {
            let settings = Auth {
                socket,
                ..tenant_a()
            };
            let got = at(&settings, Interface::Socket, "");
            assert_eq!(got, Err(AuthError::MissingHeader), "{socket:?}");
        }
        let open = Auth {
            required: false,
            socket: None,
            ..tenant_a()
        };
        assert_eq!(open.socket(), SocketAuth::Public);
        assert_eq!(problems(&open), [] as [String; 0]);
    }

    #[test]
    fn what_a_public_socket_opens_is_said_and_what_has_no_effect_is_refused() {
        let public = tenant_a();
        let said = warnings(&public).join("\n");
        assert!(said.contains("auth.socket is public"), "{said}");
        assert!(!said.contains("record"), "{said}");
        let recording = Auth {
            public_recordings: true,
            ..tenant_a()
        };
        assert!(warnings(&recording).join("\n").contains("record"));
        let closed = Auth {
            socket: None,
            ..tenant_a()
        };
        assert!(!warnings(&closed).join("\n").contains("auth.socket"));
        for useless in [
            Auth {
                socket: None,
                ..recording.clone()
            },
            Auth {
                required: false,
                ..recording.clone()
            },
        ] {
            let problems = problems(&useless).join("\n");
            assert!(
                problems.starts_with("auth.public_recordings: "),
                "{problems}"
            );
        }
    }

    #[test]
    fn where_a_tenant_is_required_a_token_without_one_opens_nothing() {
        let settings = Auth {
            require_tenant: true,
            ..tenant_a()
        };
        let got = at(&settings, Interface::Rest, "api_key=house");
        assert_eq!(got, Err(AuthError::Unauthorized));
        assert!(at(&settings, Interface::Rest, "api_key=of-a").is_ok());
        assert!(
            warnings(&settings)
                .iter()
                .any(|line| line.contains("auth.require_tenant"))
        );
    }

    #[test]
    fn settings_that_do_not_fit_are_named_and_secrets_are_not() {
        for (tenants, part) in [
            (json!([]), "at least one"),
            (json!({"id": "a", "secret": "marker"}), "must be an array"),
            (json!([{"id": "a", "secret": "x"}, {"id": "b"}]), "entry 2"),
            (json!([{"id": 7, "secret": "marker"}]), "entry 1"),
            (
                json!([{"id": "a", "secret": "marker", "marker": 1}]),
                "entry 1",
            ),
            (json!([{"id": "", "secret": "marker"}]), "entry 1: id"),
            (json!([{"id": "a", "secret": "mar ker"}]), "spaces"),
            (json!([{"id": "a", "secret": "house"}]), "another owner"),
            (
                json!([{"id": "a", "secret": "x"}, {"id": "a", "secret": "marker"}]),
                "twice",
            ),
        ] {
            let problems = problems(&settings(tenants)).join("\n");
            assert!(
                problems.starts_with("auth.api_secrets_json: "),
                "{problems}"
            );
            assert!(problems.contains(part), "{problems}");
            assert!(!problems.contains("mar"), "{problems}");
        }
        let half = Auth {
            signing_key_path: Some("key.pem".into()),
            ..tenant_a()
        };
        assert!(problems(&half)[0].starts_with("auth.service_url: "));
    }

    #[test]
    fn a_token_that_reads_sees_the_same_and_is_known_by_that() {
        let settings = Auth {
            read_secret: Some(Secret::new("looks")),
            ..settings(json!([
                {"id": "a", "secret": "of-a"},
                {"id": "a", "secret": "looks-a", "read_only": true},
            ]))
        };
        for (token, access, reads_only) in [
            ("house", Access::anonymous(), false),
            ("looks", Access::anonymous(), true),
            ("of-a", Access::of_tenant("a"), false),
            ("looks-a", Access::of_tenant("a"), true),
        ] {
            let got = at(&settings, Interface::Rest, &format!("api_key={token}")).unwrap();
            assert_eq!(got, access, "{token}");
            assert_eq!(got.reads_only(), reads_only, "{token}");
            assert_eq!(got.counted_by(None).reads_only(), reads_only, "{token}");
        }
    }

    #[test]
    fn short_secrets_are_warned_of_without_being_shown() {
        let warnings = warnings(&tenant_a()).join("\n");
        assert!(warnings.contains("auth.api_secret "), "{warnings}");
        assert!(warnings.contains("the secret of \"a\""), "{warnings}");
        assert!(!warnings.contains("house") && !warnings.contains("of-a"));
    }

    #[test]
    fn an_authenticator_shows_no_secret() {
        let shown = format!(
            "{:?}",
            Authenticator::open(&tenant_a(), &Authorities::default(), Dialect::default())
                .unwrap()
                .unwrap()
        );
        assert!(
            !shown.contains("house") && !shown.contains("of-a"),
            "{shown}"
        );
    }
}
