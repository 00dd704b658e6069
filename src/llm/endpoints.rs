//! Where language models are: those of the settings, by name and tenant, and those that callers bring themselves, where the
//! settings allow that.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::StreamExt;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use reqwest::{Client, Url};
use serde::Deserialize;
use tokio::time::timeout;

use vivavoce_auth::TenantId;
use vivavoce_config::{Secret, Settings};
use vivavoce_core::egress_policy::{EgressPolicy, PublicOnly};
use vivavoce_core::tls_roots::Authorities;

use crate::answer::{self, Answer, LlmError};
use crate::chat::ChatRequest;

/// The longest URL of a caller, in bytes.
const MAX_URL_BYTES: usize = 2_048;
/// The longest refusal that is read.
const MAX_REFUSAL_BYTES: usize = 16 << 10;
/// The most endpoints.
const MAX_ENDPOINTS: usize = 1_000;

/// A model at an address.
#[derive(Clone)]
pub struct Endpoint {
    client: Client,
    /// Of chat completions.
    url: Url,
    key: Option<Secret>,
    model: String,
    /// How long it may be silent.
    patience: Duration,
}

/// URLs and keys may be secrets.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.url.host_str().unwrap_or_default();
        f.debug_struct("Endpoint")
            .field("host", &host)
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

/// An address that a caller brings. Nothing of the server's is sent there.
#[derive(Debug, Clone)]
pub struct ClientEndpoint {
    /// With `/v1` at its end.
    pub url: String,
    /// The caller's own.
    pub key: Option<Secret>,
}

/// Why there is no such endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoEndpoint {
    /// The server has no language model at all.
    #[error("this server has no language model; LLM_URL (llm.url) names one")]
    NotConfigured,
    /// There is none of this name, or not for this tenant.
    #[error("there is no endpoint {0:?} in llm.endpoints_json")]
    Unknown(String),
    /// No model is named anywhere.
    #[error("names no model, and the endpoint has no default (LLM_MODEL, llm.model)")]
    NoModel,
    /// Callers may not bring their own.
    #[error("an address or key of your own needs the setting llm.allow_client_urls")]
    NotAllowed,
    /// The caller's address may not be asked.
    #[error("url {0}")]
    Url(String),
}

/// The language models of the settings, which may change while the server runs.
#[derive(Debug)]
pub struct Endpoints(ArcSwap<Listed>);

#[derive(Debug)]
struct Listed {
    default: Option<Endpoint>,
    named: BTreeMap<String, Named>,
    /// `None` where callers may not bring their own.
    brought: Option<(Client, EgressPolicy)>,
    patience: Duration,
}

/// None at all.
impl Default for Endpoints {
    fn default() -> Self {
        Self(ArcSwap::from_pointee(Listed {
            default: None,
            named: BTreeMap::new(),
            brought: None,
            patience: Duration::from_secs(30),
        }))
    }
}

#[derive(Debug)]
struct Named {
    endpoint: Endpoint,
    /// Whose it is; everybody's where empty.
    tenants: HashSet<TenantId>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    url: String,
    api_key: Option<String>,
    model: Option<String>,
    #[serde(default)]
    tenants: Vec<String>,
}

/// An endpoint as the settings say it.
struct Said {
    url: Url,
    key: Option<Secret>,
    model: String,
    tenants: HashSet<TenantId>,
}

/// The default endpoint, and those with names.
type AllSaid = (Option<Said>, BTreeMap<String, Said>);

/// Problems with the settings.
pub fn problems(settings: &Settings) -> Vec<String> {
    read(settings).1
}

/// What the settings say, and what is wrong with it.
fn read(settings: &Settings) -> (AllSaid, Vec<String>) {
    let llm = &settings.llm;
    let mut problems = Vec::new();
    let default = llm.url.as_ref().map(|url| Said {
        url: url.0.clone(),
        key: llm.api_key.clone(),
        model: llm.model.clone(),
        tenants: HashSet::new(),
    });
    if default.is_none() && llm.api_key.is_some() {
        problems.push("llm.api_key: has no effect without llm.url".to_owned());
    }
    let entries = llm.endpoints_json.as_ref();
    let entries = entries.map(|json| BTreeMap::<String, serde_json::Value>::deserialize(&json.0));
    let entries = entries.transpose().unwrap_or_else(|_| {
        // The parser's own words would quote what may be a secret.
        problems.push("llm.endpoints_json: must be {\"name\": {\"url\", …}, …}".to_owned());
        None
    });
    let entries = entries.unwrap_or_default();
    if entries.len() > MAX_ENDPOINTS {
        problems.push(format!(
            "llm.endpoints_json: has more than {MAX_ENDPOINTS} entries"
        ));
    }
    let mut named = BTreeMap::new();
    for (name, entry) in entries.into_iter().take(MAX_ENDPOINTS) {
        match read_entry(&name, entry) {
            Ok(entry) => {
                named.insert(name, entry);
            }
            Err(problem) => problems.push(format!("llm.endpoints_json: {name:?}: {problem}")),
        }
    }
    ((default, named), problems)
}

/// A client that asks the address that it is given, and no other.
fn client(builder: reqwest::ClientBuilder) -> Result<Client, Vec<String>> {
    let policy = reqwest::redirect::Policy::none();
    let built = builder.redirect(policy).no_proxy().build();
    built.map_err(|error| vec![format!("llm: {error}")])
}

impl Endpoints {
    /// Reads the settings; on failure all problems.
    pub fn new(settings: &Settings, authorities: &Authorities) -> Result<Self, Vec<String>> {
        let ((default, named), problems) = read(settings);
        if !problems.is_empty() {
            return Err(problems);
        }
        let llm = &settings.llm;
        let patience = llm.timeout_seconds;
        let own = client(authorities.client())?;
        let endpoint = |said: Said| Named {
            endpoint: Endpoint {
                client: own.clone(),
                url: completions(&said.url),
                key: said.key,
                model: said.model,
                patience,
            },
            tenants: said.tenants,
        };
        let egress = EgressPolicy {
            insecure: llm.allow_insecure,
            private: llm.allow_private,
        };
        let brought = llm.allow_client_urls.then(|| {
            let of_strangers = authorities.client();
            if egress.private {
                client(of_strangers)
            } else {
                client(of_strangers.dns_resolver(PublicOnly))
            }
        });
        let listed = Listed {
            default: default.map(|said| endpoint(said).endpoint),
            named: named
                .into_iter()
                .map(|(name, said)| (name, endpoint(said)))
                .collect(),
            brought: brought.transpose()?.map(|client| (client, egress)),
            patience,
        };
        Ok(Self(ArcSwap::from_pointee(listed)))
    }

    /// One that is never asked.
    #[cfg(any(test, feature = "testing"))]
    #[expect(
        clippy::missing_panics_doc,
        clippy::unwrap_used,
        reason = "for tests alone"
    )]
    pub fn for_tests() -> std::sync::Arc<Self> {
        static ONE: std::sync::OnceLock<std::sync::Arc<Endpoints>> = std::sync::OnceLock::new();
        let one = ONE.get_or_init(|| {
            let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
            let environment = [("LLM_URL", "http://127.0.0.1:1/v1"), ("LLM_MODEL", "m")];
            let owned = environment.map(|(name, text)| (name.to_owned(), text.to_owned()));
            let config = vivavoce_config::Config::from_sources(&[], &owned.into(), None).unwrap();
            Self::new(&config.settings, &Authorities::default())
                .unwrap()
                .into()
        });
        std::sync::Arc::clone(one)
    }

    /// What is asked from now on is asked of these.
    pub fn replace(&self, others: Self) {
        self.0.store(others.0.into_inner());
    }

    /// Whether there is any that a caller may name.
    pub fn has_any(&self) -> bool {
        let listed = self.0.load();
        listed.default.is_some() || !listed.named.is_empty()
    }

    /// The endpoint of this name, the default one without; `model` in place of its own.
    pub fn find(
        &self,
        name: Option<&str>,
        model: Option<&str>,
        tenant: Option<&TenantId>,
    ) -> Result<Endpoint, NoEndpoint> {
        let listed = self.0.load();
        let endpoint = match name {
            None => listed.default.as_ref().ok_or(NoEndpoint::NotConfigured)?,
            Some(name) => {
                let named = listed.named.get(name).filter(|named| named.is_for(tenant));
                let unknown = || NoEndpoint::Unknown(name.chars().take(60).collect());
                &named.ok_or_else(unknown)?.endpoint
            }
        };
        endpoint.clone().with_model(model)
    }

    /// What a name of a model means where nothing else names an endpoint: an endpoint's name, `endpoint/model`, else a model
    /// of the default endpoint. `is_default` says which names mean the default model.
    pub fn of_model(
        &self,
        name: Option<&str>,
        tenant: Option<&TenantId>,
        is_default: impl Fn(&str) -> bool,
    ) -> Result<Endpoint, NoEndpoint> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return self.find(None, None, tenant);
        };
        let listed = self.0.load();
        let known = |endpoint: &str| {
            let named = listed.named.get(endpoint);
            named.is_some_and(|named| named.is_for(tenant))
        };
        if known(name) {
            return self.find(Some(name), None, tenant);
        }
        match name.split_once('/') {
            Some((endpoint, model)) if known(endpoint) => {
                self.find(Some(endpoint), Some(model), tenant)
            }
            _ if is_default(name) => {
                // A server with one model takes any name.
                let named = self.find(None, None, tenant);
                named.or_else(|error| match error {
                    NoEndpoint::NoModel => self.find(None, Some(name), tenant),
                    error => Err(error),
                })
            }
            _ => self.find(None, Some(name), tenant),
        }
    }

    /// An endpoint that a caller brings.
    pub fn brought(
        &self,
        brought: &ClientEndpoint,
        model: Option<&str>,
    ) -> Result<Endpoint, NoEndpoint> {
        let listed = self.0.load();
        let (client, egress) = listed.brought.as_ref().ok_or(NoEndpoint::NotAllowed)?;
        let url = read_url(&brought.url).map_err(|problem| NoEndpoint::Url(problem.to_owned()))?;
        egress
            .check(&url)
            .map_err(|denied| NoEndpoint::Url(denied.to_string()))?;
        let endpoint = Endpoint {
            client: client.clone(),
            url: completions(&url),
            key: brought.key.clone(),
            model: String::new(),
            patience: listed.patience,
        };
        endpoint.with_model(model)
    }
}

impl Named {
    fn is_for(&self, tenant: Option<&TenantId>) -> bool {
        self.tenants.is_empty() || tenant.is_some_and(|tenant| self.tenants.contains(tenant))
    }
}

fn read_entry(name: &str, entry: serde_json::Value) -> Result<Said, String> {
    if name.is_empty() || name.contains('/') {
        return Err("a name must not be empty, and has no \"/\"".to_owned());
    }
    let entry: Entry = serde_json::from_value(entry).map_err(|_| {
        "must be an object with url, and perhaps api_key, model and tenants".to_owned()
    })?;
    let url = read_url(&entry.url).map_err(|problem| format!("url {problem}"))?;
    let tenants = entry.tenants.iter().map(|tenant| TenantId::new(tenant));
    let tenants: Result<_, _> = tenants.collect();
    let key = entry.api_key.filter(|key| !key.is_empty());
    Ok(Said {
        url,
        key: key.map(Secret::new),
        model: entry.model.unwrap_or_default(),
        tenants: tenants.map_err(|error| format!("tenants: {error}"))?,
    })
}

fn read_url(text: &str) -> Result<Url, &'static str> {
    if text.len() > MAX_URL_BYTES {
        return Err("is longer than 2048 bytes");
    }
    let url = Url::parse(text).map_err(|_| "is no URL")?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("must begin with http:// or https://");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not have a user and password");
    }
    Ok(url)
}

/// Of chat completions below a base URL.
fn completions(base: &Url) -> Url {
    let mut url = base.clone();
    // http and https URLs always have path segments.
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(["chat", "completions"]);
    }
    url
}

impl Endpoint {
    fn with_model(mut self, model: Option<&str>) -> Result<Self, NoEndpoint> {
        if let Some(model) = model.filter(|model| !model.is_empty()) {
            model.clone_into(&mut self.model);
        }
        if self.model.is_empty() {
            return Err(NoEndpoint::NoModel);
        }
        Ok(self)
    }

    /// The model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Asks for an answer, and returns it as soon as the endpoint begins it.
    pub async fn answer(&self, request: ChatRequest) -> Result<Answer, LlmError> {
        let body = request.body(&self.model).to_string();
        let mut asked = self
            .client
            .post(self.url.clone())
            .header(reqwest::header::CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream")
            .body(body);
        if let Some(key) = &self.key {
            let bearer = HeaderValue::try_from(format!("Bearer {}", key.expose()));
            let mut bearer =
                bearer.map_err(|_| LlmError::Protocol("has a key that is no header".to_owned()))?;
            bearer.set_sensitive(true);
            asked = asked.header(AUTHORIZATION, bearer);
        }
        let sent = timeout(self.patience, asked.send()).await;
        let response = sent
            .map_err(|_| LlmError::Silent(self.patience))?
            .map_err(|error| LlmError::Unreachable(answer::plain(error)))?;
        let status = response.status();
        if !status.is_success() {
            let mut body = response.bytes_stream();
            let mut read = Vec::new();
            let reading = async {
                while let Some(Ok(bytes)) = body.next().await
                    && read.len() < MAX_REFUSAL_BYTES
                {
                    read.extend_from_slice(&bytes);
                }
            };
            // What has come by then is all that is told.
            let _late = timeout(self.patience, reading).await;
            return Err(answer::refusal(status, &read, self.key.as_ref()));
        }
        let limits = answer::rate_limits(response.headers());
        let bytes = response.bytes_stream().boxed();
        Ok(Answer::new(bytes, limits, self.patience, self.key.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(environment: &[(&str, &str)]) -> Result<Endpoints, Vec<String>> {
        let owned = |&(name, text): &(&str, &str)| (name.to_owned(), text.to_owned());
        let environment = environment.iter().map(owned).collect();
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let config = vivavoce_config::Config::from_sources(&[], &environment, None).unwrap();
        Endpoints::new(&config.settings, &Authorities::default())
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    #[test]
    fn names_lead_to_endpoints_of_their_tenants() {
        let named = r#"{"shop": {"url": "https://a.example/v1", "model": "m", "tenants": ["t"]},
            "all": {"url": "https://b.example/v1"}}"#;
        let known = endpoints(&[
            ("LLM_URL", "http://127.0.0.1:1/v1/"),
            ("LLM_MODEL", "llama"),
            ("LLM_ENDPOINTS_JSON", named),
        ])
        .unwrap();
        let t = tenant("t");
        let of = |name: &str, tenant| {
            let found = known.of_model(Some(name), tenant, |name| name == "gpt-realtime");
            found.map(|endpoint| (endpoint.url.to_string(), endpoint.model))
        };
        let own = |model: &str| {
            Ok((
                "http://127.0.0.1:1/v1/chat/completions".to_owned(),
                model.to_owned(),
            ))
        };
        assert_eq!(of("gpt-realtime", None), own("llama"));
        assert_eq!(of("qwen", None), own("qwen"));
        let shops = |model: &str| {
            Ok((
                "https://a.example/v1/chat/completions".to_owned(),
                model.to_owned(),
            ))
        };
        assert_eq!(of("shop", Some(&t)), shops("m"));
        assert_eq!(of("shop/big", Some(&t)), shops("big"));
        // Nobody else learns that there is one.
        assert_eq!(of("shop", None), own("shop"));
        assert_eq!(of("all", None), Err(NoEndpoint::NoModel));
        let found = known.find(Some("shop"), None, Some(&tenant("u")));
        assert_eq!(found.unwrap_err(), NoEndpoint::Unknown("shop".to_owned()));
    }

    #[test]
    fn a_callers_own_address_must_be_allowed_public_and_without_secrets() {
        let theirs = |url: &str| ClientEndpoint {
            url: url.to_owned(),
            key: None,
        };
        let closed = endpoints(&[("LLM_URL", "http://127.0.0.1:1/v1")]).unwrap();
        let asked = closed.brought(&theirs("https://a.example/v1"), Some("m"));
        assert_eq!(asked.unwrap_err(), NoEndpoint::NotAllowed);
        let open = endpoints(&[("LLM_ALLOW_CLIENT_URLS", "true")]).unwrap();
        for (url, is_refused) in [
            ("https://a.example/v1", false),
            ("http://a.example/v1", true),
            ("https://127.0.0.1/v1", true),
            ("https://user:word@a.example/v1", true),
            ("ftp://a.example", true),
            ("nonsense", true),
        ] {
            let asked = open.brought(&theirs(url), Some("m"));
            assert_eq!(asked.is_err(), is_refused, "{url}");
        }
        assert!(!open.has_any());
        let asked = open.of_model(None, None, |_| false);
        assert_eq!(asked.unwrap_err(), NoEndpoint::NotConfigured);
    }

    #[test]
    fn what_is_wrong_with_the_setting_is_said_without_its_secrets() {
        let problems = endpoints(&[(
            "LLM_ENDPOINTS_JSON",
            r#"{"a": {"url": "x", "api_key": "sk-1"}, "b/c": {"url": "https://a.example"}, "d": {"api_key": "sk-2"}, "e": "sk-3"}"#,
        )])
        .unwrap_err();
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert!(!problems.join(" ").contains("sk-"), "{problems:?}");
        assert!(endpoints(&[("LLM_ENDPOINTS_JSON", "[]")]).is_err());
    }
}
