//! Service accounts and their access tokens: a claim signed with the account's key is exchanged for a token (RFC 7523),
//! which is cached until shortly before it expires.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;
use url::Url;

use super::SLUG;
use super::errors::token_refused;
use crate::transport::{Transport, answer};
use vivavoce_auth::signing::Key;
use vivavoce_config::value::Secret;
use vivavoce_seams::{Credential, CredentialField, ErrorKind, ProviderError};

/// The field of `auth`, and of every credential here: the account's JSON.
const FIELD: &str = "credentials";
/// Google's own exchange.
const TOKEN_URI: &str = "https://oauth2.googleapis.com/token";
/// What the tokens are for.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
/// The grant of RFC 7523.
const GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
/// How long a claim holds: the longest that Google takes.
const CLAIM: Duration = Duration::from_hours(1);
/// A token is not used so shortly before its end; earlier by so much a new one is tried for.
const MARGIN: Duration = Duration::from_mins(1);
const EARLY: Duration = Duration::from_mins(5);
/// The longest JSON that is looked at.
const MAX_BYTES: usize = 16 << 10;
/// Accounts whose tokens are kept.
const MANY: usize = 256;
/// What a caller's account must be; the caller is not told more.
const PROBLEM: &str =
    "be the JSON of a service account, with project_id, client_email and an RSA private_key in PEM";

/// What a caller must give.
pub(super) const FIELDS: &[CredentialField] = &[CredentialField {
    name: FIELD,
    check: |value| {
        let account = match value {
            Value::String(text) => Account::parse(text),
            other => Account::parse(&other.to_string()),
        };
        account.map(|account| account.text()).ok_or(PROBLEM)
    },
    is_servers_by_default: false,
}];

/// What is needed of a service account's JSON.
#[derive(Serialize, Deserialize)]
struct Account {
    r#type: String,
    project_id: String,
    client_email: String,
    private_key: String,
    #[serde(default = "google")]
    token_uri: String,
}

fn google() -> String {
    TOKEN_URI.to_owned()
}

impl Account {
    fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_BYTES {
            return None;
        }
        let account: Self = serde_json::from_str(text).ok()?;
        // The project stands in a path; those of domains have a colon.
        let in_project = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:_".contains(&byte);
        let project = (1..=128).contains(&account.project_id.len())
            && account.project_id.bytes().all(in_project);
        let usable = account.r#type == "service_account"
            && project
            && !account.client_email.is_empty()
            && Key::from_pem(account.private_key.as_bytes()).is_ok_and(|key| key.is_rsa());
        usable.then_some(account)
    }

    /// The same for the same account, however its JSON was written.
    fn text(&self) -> String {
        json!(self).to_string()
    }
}

/// The server's own credential, from the text of its file.
pub(super) fn of_server(text: &str) -> Option<Credential> {
    let account = Account::parse(text)?;
    Some(Credential::new([(FIELD, Secret::new(account.text()))]))
}

/// The project that a credential belongs to.
pub(super) fn project_of(credential: &Credential) -> Option<String> {
    Account::parse(credential.get(FIELD)).map(|account| account.project_id)
}

/// An access token.
#[derive(Clone)]
struct Token {
    text: Secret,
    expires: Instant,
}

/// The tokens of the accounts that were used last.
pub(super) struct Tokens {
    transport: Transport,
    /// Hosts beside Google's own at which callers' accounts may have their tokens exchanged.
    trusted: Vec<String>,
    /// Each with its own lock: one exchange at a time per account.
    kept: Cache<[u8; 32], Arc<Mutex<Option<Token>>>>,
}

impl Tokens {
    pub(super) fn new(transport: Transport, trusted: Vec<String>) -> Self {
        Self {
            transport,
            trusted,
            kept: Cache::new(MANY),
        }
    }

    /// A token that holds for a while, within `patience`.
    pub(super) async fn get(
        &self,
        credential: &Credential,
        of_server: bool,
        patience: Duration,
    ) -> Result<Secret, ProviderError> {
        let getting = self.get_patiently(credential, of_server);
        tokio::time::timeout(patience, getting).await.map_err(|_| {
            let problem = format!("no token within {} s", patience.as_secs_f32());
            ProviderError::new(SLUG, ErrorKind::Timeout, problem)
        })?
    }

    async fn get_patiently(
        &self,
        credential: &Credential,
        of_server: bool,
    ) -> Result<Secret, ProviderError> {
        let kept = self.kept.get_or_insert_with(&credential.fingerprint(), || {
            Ok::<_, std::convert::Infallible>(Arc::default())
        });
        let kept: Arc<Mutex<Option<Token>>> = kept.unwrap_or_default();
        let mut kept = kept.lock().await;
        let holds = |token: &Token, margin| token.expires > Instant::now() + margin;
        if let Some(token) = kept.as_ref().filter(|token| holds(token, EARLY)) {
            return Ok(token.text.clone());
        }
        match self.exchange(credential, of_server).await {
            Ok(token) => Ok(kept.insert(token).text.clone()),
            // The old one still holds; the next who asks tries again.
            Err(error) => match kept.as_ref().filter(|token| holds(token, MARGIN)) {
                Some(token) => Ok(token.text.clone()),
                None => Err(error),
            },
        }
    }

    /// The token was refused: the next one is a new one.
    pub(super) fn forget(&self, credential: &Credential) {
        self.kept.remove(&credential.fingerprint());
    }

    async fn exchange(
        &self,
        credential: &Credential,
        of_server: bool,
    ) -> Result<Token, ProviderError> {
        let refused = |problem: &str| ProviderError::new(SLUG, ErrorKind::Auth, problem);
        let account = Account::parse(credential.get(FIELD))
            .ok_or_else(|| refused("the credential is no service account"))?;
        let address = self.address(&account.token_uri, of_server).ok_or_else(|| {
            refused("the token_uri of the credential is not Google's; it is not followed")
        })?;
        let claim = assertion(&account, SystemTime::now())
            .ok_or_else(|| refused("the private key of the credential cannot sign"))?;
        let asked = Instant::now();
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("grant_type", GRANT)
            .append_pair("assertion", &claim)
            .finish();
        let request = self.transport.http().post(address);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let body = answer(SLUG, request.body(form), token_refused).await?;
        let granted: Granted = serde_json::from_slice(&body).map_err(|_| {
            let problem = "the answer to the exchange of the token is not one of OAuth";
            ProviderError::new(SLUG, ErrorKind::Protocol, problem)
        })?;
        let lasts = Duration::from_secs(granted.expires_in).min(CLAIM);
        Ok(Token {
            text: Secret::new(granted.access_token),
            expires: asked + lasts,
        })
    }

    /// Where a claim is exchanged. A caller's account does not send the server to places of the caller's choice.
    fn address(&self, uri: &str, of_server: bool) -> Option<Url> {
        let address = Url::parse(uri).ok()?;
        let trusted = of_server
            || uri == TOKEN_URI
            || (address.path() == "/token"
                && address
                    .host_str()
                    .is_some_and(|host| self.trusted.iter().any(|own| own == host)));
        (trusted && matches!(address.scheme(), "https" | "http")).then_some(address)
    }
}

/// The answer to an exchange.
#[derive(Deserialize)]
struct Granted {
    access_token: String,
    #[serde(default)]
    expires_in: u64,
}

/// The claim that is exchanged: who asks, for what, of whom, for how long.
fn assertion(account: &Account, now: SystemTime) -> Option<String> {
    let now = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
    let claims = json!({
        "iss": account.client_email,
        "scope": SCOPE,
        "aud": account.token_uri,
        "iat": now,
        "exp": now + CLAIM.as_secs(),
    });
    let key = Key::from_pem(account.private_key.as_bytes()).ok()?;
    key.sign(claims.to_string().as_bytes())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rsa::pkcs8::{EncodePrivateKey, LineEnding};
    use vivavoce_seams::OwnCredential;

    /// A service account's JSON with a key of its own.
    pub(crate) fn account(token_uri: &str) -> Value {
        static KEY: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
            let key = rsa::RsaPrivateKey::new(&mut rsa::rand_core::OsRng, 2048).unwrap();
            key.to_pkcs8_pem(LineEnding::LF).unwrap().to_string()
        });
        json!({
            "type": "service_account",
            "project_id": "voices-1",
            "private_key_id": "1",
            "private_key": *KEY,
            "client_email": "marker@voices-1.iam.gserviceaccount.com",
            "token_uri": token_uri,
        })
    }

    fn checked(credentials: &Value) -> Result<Option<Credential>, String> {
        let auth = json!({"credentials": credentials});
        let auth: OwnCredential = serde_json::from_value(auth).unwrap();
        Credential::of_caller(&auth, FIELDS)
    }

    #[test]
    fn an_account_is_taken_as_an_object_and_as_text_and_is_the_same() {
        let account = account(TOKEN_URI);
        let object = checked(&account).unwrap().unwrap();
        let text = checked(&Value::String(format!(" {account} ")))
            .unwrap()
            .unwrap();
        assert_eq!(object.fingerprint(), text.fingerprint());
        assert_eq!(project_of(&object).as_deref(), Some("voices-1"));
        let own = of_server(&account.to_string()).unwrap();
        assert_eq!(own.fingerprint(), text.fingerprint());
    }

    #[test]
    fn what_is_no_account_is_refused_without_being_repeated() {
        let with = |field: &str, value: Value| {
            let mut account = account(TOKEN_URI);
            account[field] = value;
            account
        };
        for bad in [
            json!("/etc/marker.json"),
            json!({}),
            json!(7),
            json!("x".repeat(MAX_BYTES + 1)),
            with("type", json!("authorized_user")),
            with("project_id", json!("a/../marker")),
            with("project_id", json!("")),
            with("client_email", json!("")),
            with("private_key", json!("marker")),
            with("private_key", Value::Null),
        ] {
            let refused = checked(&bad).unwrap_err();
            assert!(
                refused.starts_with("credentials must be the JSON"),
                "{refused}"
            );
            assert!(!refused.contains("marker"));
        }
    }

    #[test]
    fn a_callers_account_sends_us_nowhere_but_to_google_and_the_hosts_that_are_set() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let transport = Transport::new(&vivavoce_core::tls_roots::Authorities::default()).unwrap();
        let tokens = Tokens::new(transport, vec!["google.example".to_owned()]);
        for (uri, own, callers) in [
            (TOKEN_URI, true, true),
            ("http://google.example:8080/token", true, true),
            ("https://google.example/other", true, false),
            ("http://169.254.169.254/token", true, false),
            ("https://oauth2.googleapis.com.example/token", true, false),
            ("http://oauth2.googleapis.com/token", true, false),
            ("file:///etc/passwd", false, false),
            ("nonsense", false, false),
        ] {
            assert_eq!(tokens.address(uri, true).is_some(), own, "{uri}");
            assert_eq!(tokens.address(uri, false).is_some(), callers, "{uri}");
        }
    }

    #[test]
    fn a_claim_says_who_asks_for_what_and_for_how_long() {
        use base64::Engine;
        let account = Account::parse(&account(TOKEN_URI).to_string()).unwrap();
        let claim = assertion(&account, UNIX_EPOCH + Duration::from_secs(1000)).unwrap();
        let parts: Vec<_> = claim
            .split('.')
            .map(|part| {
                base64::engine::general_purpose::URL_SAFE_NO_PAD
                    .decode(part)
                    .unwrap()
            })
            .collect();
        let head: Value = serde_json::from_slice(&parts[0]).unwrap();
        let claims: Value = serde_json::from_slice(&parts[1]).unwrap();
        assert_eq!(head["alg"], "RS256");
        assert_eq!(
            claims,
            json!({"iss": account.client_email, "scope": SCOPE, "aud": TOKEN_URI, "iat": 1000, "exp": 4600})
        );
        assert_eq!(parts[2].len(), 256);
    }
}
