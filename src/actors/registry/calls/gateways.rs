//! The gateways of the settings: `sip.outbound_address`, or the list of `sip.gateways_json`.

use std::collections::BTreeMap;

use serde::Deserialize;

use vivavoce_config::{Secret, Sip, SipTransport};
use vivavoce_core::phone::{Gateway, PhoneNumber};
use vivavoce_seams::rooms::telephone::{CallerIdentity, Login, Trunk, Via, may_send};

/// The most gateways.
const MAX_GATEWAYS: usize = 100;
/// The most prefixes of one.
const MAX_PREFIXES: usize = 1_000;
const SETTING: &str = "sip.gateways_json";

/// The gateways of the settings.
#[derive(Debug, Clone, Default)]
pub struct Gateways(Vec<Configured>);

#[derive(Debug, Clone)]
struct Configured {
    trunk: Trunk,
    /// How numbers begin that it takes; all where there are none.
    prefixes: Vec<String>,
    priority: u16,
    weight: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    address: String,
    transport: Option<String>,
    username: Option<String>,
    password: Option<String>,
    #[serde(default)]
    prefixes: Vec<String>,
    #[serde(default)]
    priority: u16,
    weight: Option<u16>,
    from_domain: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    proxy: Option<String>,
    identity: Option<String>,
}

impl Configured {
    /// Digits of the longest prefix that the number has; `None` if it takes other numbers.
    fn takes(&self, number: &PhoneNumber) -> Option<usize> {
        let number = number.as_str();
        if self.prefixes.is_empty() {
            return Some(0);
        }
        let matching = self.prefixes.iter().filter(|one| number.starts_with(*one));
        matching.map(String::len).max()
    }
}

impl Gateways {
    /// Reads the settings. The problems quote no value.
    pub fn read(settings: &Sip) -> Result<Self, Vec<String>> {
        let single = settings
            .outbound_address
            .as_deref()
            .and_then(Gateway::parse);
        let Some(json) = &settings.gateways_json else {
            let login = login(
                settings.outbound_auth_username.clone(),
                settings.outbound_auth_password.clone(),
            );
            let single = single.map(|gateway| Configured {
                trunk: trunk(
                    gateway,
                    settings.outbound_transport,
                    login,
                    (None, Vec::new()),
                ),
                prefixes: Vec::new(),
                priority: 0,
                weight: 1,
            });
            return Ok(Self(single.into_iter().collect()));
        };
        if single.is_some() {
            return Err(vec![format!(
                "sip.outbound_address, {SETTING}: one or the other says where calls go"
            )]);
        }
        let serde_json::Value::Array(entries) = &json.0 else {
            return Err(vec![format!("{SETTING}: must be a list")]);
        };
        if entries.len() > MAX_GATEWAYS {
            return Err(vec![format!(
                "{SETTING}: has more than {MAX_GATEWAYS} entries"
            )]);
        }
        let mut problems = Vec::new();
        let mut gateways = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            match read(entry, settings.outbound_transport) {
                Ok(gateway) => gateways.push(gateway),
                Err(problem) => problems.push(format!("{SETTING}: entry {}: {problem}", index + 1)),
            }
        }
        if problems.is_empty() {
            Ok(Self(gateways))
        } else {
            Err(problems)
        }
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Trunk> {
        self.0.iter().map(|one| one.trunk.clone()).collect()
    }

    /// The configured gateway at this address.
    pub(super) fn at(&self, gateway: &Gateway) -> Option<&Trunk> {
        let mut trunks = self.0.iter().map(|configured| &configured.trunk);
        trunks.find(|trunk| {
            let usual = match trunk.transport {
                SipTransport::Tls => 5061,
                SipTransport::Udp | SipTransport::Tcp => 5060,
            };
            trunk.gateway.host == gateway.host
                && trunk.gateway.port.unwrap_or(usual) == gateway.port.unwrap_or(usual)
        })
    }

    /// The gateways for a number, in the order in which they are tried: the longest prefix first, then the lowest priority,
    /// then by chance as their weights say.
    pub(super) fn of(&self, number: &PhoneNumber, mut chance: impl FnMut() -> f64) -> Vec<Trunk> {
        let mut found: Vec<_> = self
            .0
            .iter()
            .filter_map(|one| {
                let digits = one.takes(number)?;
                // Efraimidis and Spirakis: the order of these keys is that of drawing without replacement by weight.
                let key = chance().powf(1.0 / f64::from(one.weight.max(1)));
                Some((digits, one.priority, key, one))
            })
            .collect();
        found.sort_by(|one, other| {
            let longest = other.0.cmp(&one.0);
            longest
                .then(one.1.cmp(&other.1))
                .then(other.2.total_cmp(&one.2))
        });
        let trunks = found.into_iter().map(|(.., one)| one.trunk.clone());
        trunks.collect()
    }
}

fn login(username: Option<String>, password: Option<Secret>) -> Option<Login> {
    username.map(|username| Login {
        username,
        password: password.unwrap_or_else(|| Secret::new("")),
    })
}

/// What the operator has named may be private.
fn trunk(
    gateway: Gateway,
    transport: SipTransport,
    login: Option<Login>,
    (from_domain, headers): (Option<String>, Vec<(String, String)>),
) -> Trunk {
    Trunk {
        gateway,
        transport,
        login,
        private: true,
        from_domain,
        headers,
        via: None,
        identity: CallerIdentity::Untold,
    }
}

fn read(entry: &serde_json::Value, usual: SipTransport) -> Result<Configured, String> {
    // The error of the parser quotes what may be a secret.
    let entry = Entry::deserialize(entry).map_err(|_| {
        "must be an object with address, and perhaps transport, username, password, prefixes, priority, weight, from_domain, headers, proxy and identity".to_owned()
    })?;
    let gateway = Gateway::parse(&entry.address)
        .ok_or_else(|| "address: must look like host or host:port".to_owned())?;
    let transport = match entry.transport.as_deref() {
        None => usual,
        Some("udp") => SipTransport::Udp,
        Some("tcp") => SipTransport::Tcp,
        Some("tls") => SipTransport::Tls,
        Some(_) => return Err("transport: must be udp, tcp or tls".to_owned()),
    };
    if entry.password.is_some() && entry.username.is_none() {
        return Err("username: is needed with a password".to_owned());
    }
    if entry.weight == Some(0) {
        return Err("weight: must be 1 or more".to_owned());
    }
    let is_prefix = |prefix: &String| {
        let digits = prefix.strip_prefix('+').unwrap_or(prefix);
        !prefix.is_empty() && digits.bytes().all(|c| c.is_ascii_digit())
    };
    if entry.prefixes.len() > MAX_PREFIXES || !entry.prefixes.iter().all(is_prefix) {
        return Err(format!(
            "prefixes: must be at most {MAX_PREFIXES}, of digits with or without a + before them"
        ));
    }
    let is_host = |text: &String| {
        !text.is_empty()
            && text
                .bytes()
                .all(|c| c.is_ascii_alphanumeric() || b".-_:[]".contains(&c))
    };
    if !entry.from_domain.as_ref().is_none_or(is_host) {
        return Err("from_domain: must be the host of a SIP URI".to_owned());
    }
    let fits =
        |(name, value): (&String, &String)| may_send(name) && !value.contains(char::is_control);
    if !entry.headers.iter().all(fits) {
        return Err("headers: names must begin with X-, or tell who calls and why (P-Asserted-Identity, Privacy, …)".to_owned());
    }
    let via = match entry.proxy.as_deref().map(Gateway::parse) {
        None => None,
        Some(Some(at)) => Some(Via {
            at,
            routed: true,
            over_websocket: false,
        }),
        Some(None) => return Err("proxy: must look like host or host:port".to_owned()),
    };
    let identity = match entry.identity.as_deref() {
        None | Some("none") => CallerIdentity::Untold,
        Some("asserted") => CallerIdentity::Asserted,
        Some("preferred") => CallerIdentity::Preferred,
        Some(_) => return Err("identity: must be asserted, preferred or none".to_owned()),
    };
    let headers = entry.headers.into_iter().collect();
    let login = login(entry.username, entry.password.map(Secret::new));
    Ok(Configured {
        trunk: Trunk {
            via,
            identity,
            ..trunk(gateway, transport, login, (entry.from_domain, headers))
        },
        prefixes: entry.prefixes,
        priority: entry.priority,
        weight: entry.weight.unwrap_or(1),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use vivavoce_config::Config;

    fn read(settings: &[(&str, &str)]) -> Result<Gateways, Vec<String>> {
        let flags: Vec<_> = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let config = Config::from_sources(&flags, &HashMap::new(), None).unwrap();
        Gateways::read(&config.settings.sip)
    }

    fn order(gateways: &Gateways, number: &str, chances: &[f64]) -> Vec<String> {
        let number = PhoneNumber::parse(number).unwrap();
        let mut chances = chances.iter().copied().cycle();
        let trunks = gateways.of(&number, || chances.next().unwrap());
        trunks
            .iter()
            .map(|trunk| trunk.gateway.to_string())
            .collect()
    }

    #[test]
    fn the_longest_prefix_comes_first_then_priority_then_chance_by_weight() {
        let json = r#"[
            {"address": "any.example", "weight": 9},
            {"address": "other.example"},
            {"address": "later.example", "priority": 5},
            {"address": "de.example:5070", "prefixes": ["+49", "0049"], "username": "me", "password": "pw"},
            {"address": "berlin.example", "prefixes": ["+4930"], "transport": "tls"}
        ]"#;
        let gateways = read(&[("sip.gateways_json", json)]).unwrap();
        assert_eq!(
            order(&gateways, "+49301234567", &[0.5]),
            [
                "berlin.example",
                "de.example:5070",
                "any.example",
                "other.example",
                "later.example"
            ]
        );
        // 0.5 to the ninth root is more than 0.9: it takes much luck to be before the heavier one.
        assert_eq!(
            order(&gateways, "+14155550100", &[0.5, 0.9]),
            ["any.example", "other.example", "later.example"]
        );
        assert_eq!(
            order(&gateways, "+14155550100", &[0.5, 0.95]),
            ["other.example", "any.example", "later.example"]
        );
        let at = |text: &str| gateways.at(&Gateway::parse(text).unwrap());
        assert!(at("berlin.example:5061").is_some() && at("berlin.example:5060").is_none());
        assert!(at("de.example:5070").unwrap().login.is_some());
    }

    #[test]
    fn what_is_wrong_is_named_and_never_quoted() {
        let one = read(&[("sip.outbound_address", "gw.example")]).unwrap();
        assert_eq!(order(&one, "110", &[0.5]), ["gw.example"]);
        for (json, problem) in [
            ("{}", "must be a list"),
            (r#"[{"address": "a b"}]"#, "entry 1: address"),
            (
                r#"[{"address": "a", "password": "s3cret"}]"#,
                "username: is needed",
            ),
            (r#"[{"address": "a", "weight": 0}]"#, "weight"),
            (r#"[{"address": "a", "prefixes": ["+4x"]}]"#, "prefixes"),
            (r#"[{"address": "a", "from_domain": "a>b"}]"#, "from_domain"),
            (
                r#"[{"address": "a", "headers": {"Via": "s3cret"}}]"#,
                "headers",
            ),
            (
                r#"[{"address": "a", "token": "s3cret"}]"#,
                "must be an object",
            ),
        ] {
            let problems = read(&[("sip.gateways_json", json)]).unwrap_err().join("\n");
            assert!(
                problems.contains(problem) && !problems.contains("s3cret"),
                "{problems}"
            );
        }
        let both = [("sip.outbound_address", "a"), ("sip.gateways_json", "[]")];
        assert!(read(&both).unwrap_err()[0].contains("one or the other"));
    }
}
