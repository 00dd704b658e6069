//! Who may come in, and as whom (specification and protocol, section 5): tokens, shared secrets, the question to an
//! authentication service, and [`Access`], which is what the rest of the house gets to see of it. It knows nothing of
//! the web framework: `src/http/auth.rs` brings requests here and takes the answers back.

mod access;
mod decisions;
mod methods;
mod owner;
mod pass;
mod secrets;
mod service;
pub mod signing;
mod token;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use access::{Access, Whose};
pub use methods::{problems, warnings};
pub use owner::{Owner, Principal};
pub use pass::{Pass, Withdrawn};
pub use service::Question;
pub use signing::KeyError;
pub use token::Credentials;
pub use vivavoce_core::party::{InvalidTenant, TenantId};

use futures_util::FutureExt;
use tokio::time::Instant;

use methods::Methods;
use secrets::Secrets;
use service::AuthService;
use token::{Holder, Token};
use vivavoce_config::{Auth, SocketAuth};
use vivavoce_core::outgoing::Authorities;

/// Why somebody is not let in. None of the texts holds anything of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// Neither header nor query.
    #[error(
        "a token is needed: \"Authorization: Bearer <token>\", or api_key=<token> in the query"
    )]
    MissingHeader,
    /// A header that is not understood, and nothing in the query instead.
    #[error("the Authorization header must be \"Bearer\" and one token")]
    InvalidHeader,
    /// A token that opens nothing.
    #[error("this token is not accepted")]
    Unauthorized,
    /// The service answered with a status of 4xx other than 401.
    #[error("the authentication service refused the request")]
    ServiceRefused,
    /// The service answered with something that is no answer.
    #[error("the authentication service failed")]
    ServiceFailed,
    /// The service did not answer (in time).
    #[error("the authentication service does not answer")]
    ServiceUnavailable,
    /// The key file has changed into something that is no key.
    #[error("authentication is set up wrongly; the server's log says how")]
    Config,
    /// The key does not sign.
    #[error("the question to the authentication service could not be signed")]
    Signing,
}

/// Why there is no [`Authenticator`].
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Settings that do not fit together.
    #[error("{}", .0.join("\n"))]
    Settings(Vec<String>),
    /// The key file.
    #[error("auth.signing_key_path: {}: {source}", path.display())]
    Key {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: KeyError,
    },
    /// The client for the service, such as the system's certificates.
    #[error("auth.service_url: {0}")]
    Client(#[from] reqwest::Error),
}

/// Which door somebody stands at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// A protected endpoint.
    Rest,
    /// `GET /ws`.
    Socket,
}

/// What is known before the request's body has been read.
pub enum Step<'a> {
    /// Come in.
    Enter(Access),
    /// The service has to be asked.
    Ask(Inquiry<'a>),
}

/// Decides who comes in.
pub struct Authenticator {
    secrets: Secrets,
    service: Option<Arc<AuthService>>,
    require_tenant: bool,
    socket: SocketAuth,
    /// How often the service is asked again about the token of a session.
    session_recheck: Option<Duration>,
}

impl Authenticator {
    /// What the settings ask for; `None` when nobody needs a token. Reads the key file. `authorities` are believed about
    /// the service.
    pub fn open(settings: &Auth, authorities: &Authorities) -> Result<Option<Self>, SetupError> {
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
            )
        });
        Ok(Some(Self {
            secrets: methods.secrets,
            service: service.transpose()?.map(Arc::new),
            require_tenant: settings.require_tenant,
            socket: settings.socket(),
            session_recheck: Some(settings.session_recheck_seconds)
                .filter(|every| !every.is_zero()),
        }))
    }

    /// Looks at the token; what the secrets do not decide, the service must be asked.
    pub fn identify(
        &self,
        door: Door,
        credentials: &Credentials<'_>,
    ) -> Result<Step<'_>, AuthError> {
        let token = match credentials.token() {
            Err(AuthError::MissingHeader)
                if door == Door::Socket && self.socket == SocketAuth::Public =>
            {
                return Ok(Step::Enter(Access::public()));
            }
            token => token?,
        };
        if let Some(holder) = self.secrets.find(&token) {
            return self.admit(door, holder).map(Step::Enter);
        }
        let service = self.service.as_ref().ok_or(AuthError::Unauthorized)?;
        Ok(Step::Ask(Inquiry {
            authenticator: self,
            service,
            door,
            token,
        }))
    }

    fn admit(&self, door: Door, Holder(tenant): Holder) -> Result<Access, AuthError> {
        match (tenant, door) {
            (Some(tenant), _) => Ok(Access::tenant_only(tenant)),
            (None, _) if self.require_tenant => Err(AuthError::Unauthorized),
            (None, Door::Rest) => Ok(Access::anonymous()),
            (None, Door::Socket) => Ok(Access::operator_session()),
        }
    }
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticator")
            .field("secrets", &self.secrets)
            .field("service", &self.service)
            .field("require_tenant", &self.require_tenant)
            .field("socket", &self.socket)
            .field("session_recheck", &self.session_recheck)
            .finish()
    }
}

/// A token that only the service can judge.
pub struct Inquiry<'a> {
    authenticator: &'a Authenticator,
    service: &'a Arc<AuthService>,
    door: Door,
    token: Token,
}

impl Inquiry<'_> {
    /// Asks the service about the token and what it is used for.
    pub async fn ask(self, question: Question) -> Result<Access, AuthError> {
        let holder = self.service.ask(self.token, question).await?;
        self.authenticator.admit(self.door, holder)
    }

    /// The same for a session, with what tells it when the token is not good any more.
    ///
    /// A token that looks like a JWT is believed about its end, although nobody has verified it here: whoever forges it
    /// shortens their own session. One that was over when the service accepted it is not what the service goes by.
    /// Later on only [`AuthError::Unauthorized`] or another holder count: a service that is away or busy must not cut
    /// conversations.
    pub async fn ask_for_session(self, question: Question) -> Result<(Access, Pass), AuthError> {
        let Self {
            authenticator,
            service,
            door,
            token,
        } = self;
        let holder = service.ask(token.clone(), question.clone()).await?;
        let access = authenticator.admit(door, holder.clone())?;
        let expires = token
            .time_left(SystemTime::now())
            .and_then(|left| Instant::now().checked_add(left));
        let service = Arc::clone(service);
        let is_good = async move || {
            let again = service.ask_anew(token.clone(), question.clone()).await;
            match again {
                Ok(now) => now == holder,
                Err(error) => error != AuthError::Unauthorized,
            }
        };
        let pass = pass::withdrawn(expires, authenticator.session_recheck, is_good);
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

    fn at(settings: &Auth, door: Door, query: &str) -> Result<Access, AuthError> {
        let authenticator = Authenticator::open(settings, &Authorities::default())
            .unwrap()
            .unwrap();
        let credentials = Credentials {
            authorization: Vec::new(),
            query,
        };
        match authenticator.identify(door, &credentials)? {
            Step::Enter(access) => Ok(access),
            Step::Ask(_) => panic!("there is no service to ask"),
        }
    }

    #[test]
    fn a_secret_without_tenant_opens_everything_but_a_socket_to_what_is_owned() {
        let settings = tenant_a();
        let a = TenantId::new("a").unwrap();
        for (door, query, expected) in [
            (Door::Rest, "api_key=house", Ok(Access::anonymous())),
            (
                Door::Rest,
                "api_key=of-a",
                Ok(Access::tenant_only(a.clone())),
            ),
            (Door::Rest, "api_key=x", Err(AuthError::Unauthorized)),
            (Door::Rest, "", Err(AuthError::MissingHeader)),
            (
                Door::Socket,
                "api_key=house",
                Ok(Access::operator_session()),
            ),
            (Door::Socket, "api_key=of-a", Ok(Access::tenant_only(a))),
            (Door::Socket, "api_key=x", Err(AuthError::Unauthorized)),
            (Door::Socket, "", Ok(Access::public())),
        ] {
            assert_eq!(at(&settings, door, query), expected, "{door:?} {query}");
        }
    }

    #[test]
    fn a_socket_needs_a_token_unless_somebody_says_otherwise() {
        for socket in [None, Some(SocketAuth::Required)] {
            let settings = Auth {
                socket,
                ..tenant_a()
            };
            let got = at(&settings, Door::Socket, "");
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
        let got = at(&settings, Door::Rest, "api_key=house");
        assert_eq!(got, Err(AuthError::Unauthorized));
        assert!(at(&settings, Door::Rest, "api_key=of-a").is_ok());
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
            Authenticator::open(&tenant_a(), &Authorities::default())
                .unwrap()
                .unwrap()
        );
        assert!(
            !shown.contains("house") && !shown.contains("of-a"),
            "{shown}"
        );
    }
}
