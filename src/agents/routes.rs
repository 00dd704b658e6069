//! Which agent is for which call.

use std::fmt;
use std::time::Duration;

use reqwest::Url;
use serde::Deserialize;

use vivavoce_auth::TenantId;
use vivavoce_config::{Secret, Settings};
use vivavoce_core::egress_policy::EgressPolicy;
use vivavoce_hooks::Host;
use vivavoce_webhooks::MIN_SECRET_BYTES;

/// The most routes: they are looked through for every call.
const MAX_ROUTES: usize = 1_000;
/// The longest URL, in bytes.
const MAX_URL_BYTES: usize = 2_048;

/// What the settings say about agents.
#[derive(Debug, Clone)]
pub struct AgentRoutes {
    listed: Vec<(Selector, AgentRoute)>,
    all: Option<AgentRoute>,
    /// Which addresses may be dialled.
    pub(crate) egress: EgressPolicy,
    /// Whether agents are dialled for people in rooms, too.
    pub(crate) rooms: bool,
    /// How long one attempt may take, until the agent has sent `config`.
    pub(crate) connect_timeout: Duration,
    /// How long it is tried.
    pub(crate) patience: Duration,
    /// What callers hear for whom there is no agent.
    pub(crate) apology: Option<String>,
}

/// An agent.
#[derive(Clone)]
pub struct AgentRoute {
    /// Where it is, and where it is if it is not there; `http` and `https`.
    pub(crate) urls: Vec<Url>,
    /// Signs the handshake.
    pub(crate) secret: Secret,
}

/// URLs may hold secrets.
impl fmt::Debug for AgentRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.urls.iter().filter_map(Url::host_str);
        f.debug_list().entries(hosts).finish()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Selector {
    Number(String),
    Host(Host),
    Tenant(TenantId),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    number: Option<String>,
    host: Option<String>,
    tenant: Option<String>,
    url: String,
    fallback_url: Option<String>,
    secret: Option<String>,
}

impl AgentRoutes {
    /// Reads the settings; `None` without agents. On failure returns all problems.
    pub fn new(settings: &Settings) -> Result<Option<Self>, Vec<String>> {
        let agent = &settings.agent;
        let egress = EgressPolicy {
            insecure: agent.allow_insecure,
            private: agent.allow_private,
        };
        let mut problems = Vec::new();
        let secret = agent.secret.as_ref();
        if secret.is_some_and(is_short) {
            problems.push(format!("agent.secret: {TOO_SHORT}"));
        }
        let mut note = |place: String, read: Result<(Option<Selector>, AgentRoute), String>| {
            read.map_err(|problem| problems.push(format!("{place}: {problem}")))
                .ok()
        };
        let all = agent.url.as_deref().and_then(|url| {
            let fallback = agent.fallback_url.as_deref();
            let read = route(url, fallback, secret.cloned(), egress);
            note("agent.url".to_owned(), read.map(|route| (None, route)))
        });
        let entries = agent.routes_json.as_ref();
        let entries = entries.map_or_else(Vec::new, |json| match &json.0 {
            serde_json::Value::Array(entries) => entries.clone(),
            other => vec![other.clone()],
        });
        let count = entries.len();
        let mut listed = Vec::new();
        for (index, entry) in entries.into_iter().take(MAX_ROUTES).enumerate() {
            let read = read_entry(entry, secret, egress);
            let place = format!("agent.routes_json: entry {}", index + 1);
            let Some((Some(selector), route)) = note(place.clone(), read) else {
                continue;
            };
            if listed.iter().any(|(known, _)| *known == selector) {
                problems.push(format!("{place}: another entry is for the same calls"));
                return Err(problems);
            }
            listed.push((selector, route));
        }
        if count > MAX_ROUTES {
            problems.push(format!(
                "agent.routes_json: has more than {MAX_ROUTES} entries"
            ));
        }
        if agent.fallback_url.is_some() && agent.url.is_none() {
            problems.push("agent.fallback_url: has no effect without agent.url".to_owned());
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let there_is_one = all.is_some() || !listed.is_empty();
        Ok(there_is_one.then(|| Self {
            listed,
            all: all.map(|(_, route)| route),
            egress,
            rooms: agent.rooms,
            connect_timeout: agent.connect_timeout_seconds,
            patience: agent.patience_seconds,
            apology: agent.unavailable_text.clone(),
        }))
    }

    /// The agent for a call to this host and number, which belongs to this tenant: by number first, then by host, then by
    /// tenant.
    pub fn of(
        &self,
        host: Option<&Host>,
        number: Option<&str>,
        tenant: Option<&TenantId>,
    ) -> Option<&AgentRoute> {
        let number = number.map(plain);
        let selectors = [
            number.map(|number| Selector::Number(number.to_owned())),
            host.cloned().map(Selector::Host),
            tenant.cloned().map(Selector::Tenant),
        ];
        let listed = |selector: &Selector| {
            let mut listed = self.listed.iter();
            listed.find(|(known, _)| known == selector)
        };
        let found = selectors.iter().flatten().find_map(listed);
        found.map(|(_, route)| route).or(self.all.as_ref())
    }
}

const TOO_SHORT: &str = "must have 16 bytes or more";
const _: () = assert!(MIN_SECRET_BYTES == 16);

fn is_short(secret: &Secret) -> bool {
    secret.expose().len() < MIN_SECRET_BYTES
}

/// Numbers are the same with and without the sign of the international form.
fn plain(number: &str) -> &str {
    number
        .strip_prefix('+')
        .or_else(|| number.strip_prefix("00"))
        .unwrap_or(number)
}

fn read_entry(
    entry: serde_json::Value,
    secret: Option<&Secret>,
    egress: EgressPolicy,
) -> Result<(Option<Selector>, AgentRoute), String> {
    let entry: Entry = serde_json::from_value(entry).map_err(|_| {
        // The error of the parser quotes what may be a secret.
        "must be an object with url, one of number, host and tenant, and perhaps fallback_url and secret"
            .to_owned()
    })?;
    let selector = match (entry.number, entry.host, entry.tenant) {
        (Some(number), None, None) => Selector::Number(plain(&number).to_owned()),
        (None, Some(host), None) => {
            let parsed = Host::parse(&host);
            Selector::Host(parsed.ok_or("host: must be a name or an address without a port")?)
        }
        (None, None, Some(tenant)) => {
            Selector::Tenant(TenantId::new(&tenant).map_err(|error| format!("tenant: {error}"))?)
        }
        _ => return Err("must have one of number, host and tenant".to_owned()),
    };
    let own = entry.secret.as_deref().map(Secret::new);
    if own.as_ref().is_some_and(is_short) {
        return Err(format!("secret: {TOO_SHORT}"));
    }
    let secret = own.or_else(|| secret.cloned());
    let route = route(&entry.url, entry.fallback_url.as_deref(), secret, egress)?;
    Ok((Some(selector), route))
}

fn route(
    url: &str,
    fallback: Option<&str>,
    secret: Option<Secret>,
    egress: EgressPolicy,
) -> Result<AgentRoute, String> {
    let urls = std::iter::once(url).chain(fallback);
    Ok(AgentRoute {
        urls: urls
            .map(|url| agent_url(url, egress))
            .collect::<Result<_, _>>()?,
        secret: secret.ok_or("needs agent.secret, which signs the handshake")?,
    })
}

/// Validates an agent's URL; an error does not quote it. Its host name is resolved and checked when connecting.
fn agent_url(text: &str, egress: EgressPolicy) -> Result<Url, String> {
    if text.len() > MAX_URL_BYTES {
        return Err(format!("the URL must have {MAX_URL_BYTES} bytes at most"));
    }
    let http = text
        .strip_prefix("wss://")
        .map(|rest| format!("https://{rest}"))
        .or_else(|| {
            text.strip_prefix("ws://")
                .map(|rest| format!("http://{rest}"))
        });
    let url = http.and_then(|http| Url::parse(&http).ok());
    let url = url.ok_or("must be a URL that begins with wss://")?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the URL must not hold a user or a password".to_owned());
    }
    egress.check(&url).map_err(|denied| match denied {
        vivavoce_core::egress_policy::EgressDenied::Insecure => {
            "must begin with wss:// (agent.allow_insecure)".to_owned()
        }
        vivavoce_core::egress_policy::EgressDenied::Private => {
            "must be a public address (agent.allow_private)".to_owned()
        }
    })?;
    Ok(url)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use vivavoce_config::Config;

    use super::*;

    fn read(flags: &[(&str, &str)]) -> Result<Option<AgentRoutes>, Vec<String>> {
        let flags: Vec<_> = flags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let config = Config::from_sources(&flags, &HashMap::new(), None).unwrap();
        AgentRoutes::new(&config.settings)
    }

    const SECRET: (&str, &str) = ("agent.secret", "0123456789abcdef");

    #[test]
    fn a_call_goes_to_the_agent_of_its_number_then_of_its_host_then_of_its_tenant() {
        let routes = r#"[
            {"number": "+4930", "url": "wss://number.example"},
            {"host": "sip.example", "url": "wss://host.example"},
            {"tenant": "acme", "url": "wss://tenant.example", "secret": "another-secret-of-16"}
        ]"#;
        let flags = [
            SECRET,
            ("agent.url", "wss://all.example"),
            ("agent.fallback_url", "wss://second.example"),
            ("agent.routes_json", routes),
        ];
        let routes = read(&flags).unwrap().unwrap();
        let host = Host::parse("sip.example").unwrap();
        let acme = TenantId::new("acme").unwrap();
        let other = TenantId::new("other").unwrap();
        for (host, number, tenant, agent) in [
            (Some(&host), Some("4930"), Some(&acme), "number.example"),
            (Some(&host), Some("+4940"), Some(&acme), "host.example"),
            (None, Some("+4940"), Some(&acme), "tenant.example"),
            (None, Some("+4940"), Some(&other), "all.example"),
            (None, None, None, "all.example"),
        ] {
            let route = routes.of(host, number, tenant).unwrap();
            assert_eq!(route.urls[0].host_str(), Some(agent));
        }
        assert_eq!(routes.of(None, None, None).unwrap().urls.len(), 2);
        assert_eq!(
            format!("{:?}", routes.of(None, None, None).unwrap()),
            r#"["all.example", "second.example"]"#
        );
    }

    #[test]
    fn without_agents_there_are_none_and_what_cannot_be_dialled_is_refused_by_name() {
        assert!(read(&[]).unwrap().is_none());
        for (flags, problem) in [
            (vec![("agent.url", "wss://a.example")], "agent.secret"),
            (
                vec![SECRET, ("agent.url", "ws://a.example")],
                "agent.allow_insecure",
            ),
            (
                vec![SECRET, ("agent.url", "wss://127.0.0.1/")],
                "agent.allow_private",
            ),
            (vec![SECRET, ("agent.url", "https://a.example")], "wss://"),
            (vec![SECRET, ("agent.url", "wss://u:p@a.example")], "user"),
            (
                vec![SECRET, ("agent.fallback_url", "wss://a.example")],
                "agent.fallback_url",
            ),
            (
                vec![("agent.secret", "short"), ("agent.url", "wss://a.example")],
                "16 bytes",
            ),
            (
                vec![
                    SECRET,
                    ("agent.routes_json", r#"[{"url": "wss://a.example"}]"#),
                ],
                "entry 1",
            ),
            (
                vec![
                    SECRET,
                    (
                        "agent.routes_json",
                        r#"[{"host": "a", "url": "wss://a.example"}, {"host": "A", "url": "wss://b.example"}]"#,
                    ),
                ],
                "entry 2",
            ),
        ] {
            let problems = read(&flags).unwrap_err();
            assert!(
                problems.iter().any(|told| told.contains(problem)),
                "{problem}: {problems:?}"
            );
        }
    }
}
