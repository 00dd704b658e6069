//! The telephones and softphones of a team that may register here (RFC 3261 section 10.3), and where they are. A telephone has
//! one place: it is where it has registered last. Who may register is in the settings; digests are checked by the caller.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;

use super::agent::Protocol;
use super::agent::digest::Credentials;
use super::agent::header::Address;
use vivavoce_auth::TenantId;
use vivavoce_core::phone::Gateway;
use vivavoce_seams::rooms::telephone::PhoneReport;
use vivavoce_telemetry::metrics;

/// The most telephones.
const MOST: usize = 1_000;
/// How long a registration lasts at most, where the telephone does not say, and at least.
pub const LONGEST: Duration = Duration::from_hours(1);
pub const SHORTEST: Duration = Duration::from_mins(1);
/// The longest `Contact` that is kept.
const MOST_CONTACT: usize = 512;
const SETTING: &str = "sip.phones_json";

/// A telephone of the settings.
#[derive(Debug, Clone)]
pub struct Phone {
    /// Its name, with which it logs in, too.
    pub credentials: Credentials,
    /// Whose it is.
    pub tenant: Option<TenantId>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    user: String,
    password: String,
    tenant: Option<String>,
}

/// Reads the setting. The problems quote no value.
pub fn read(json: &serde_json::Value) -> Result<Vec<Phone>, Vec<String>> {
    let serde_json::Value::Array(entries) = json else {
        return Err(vec![format!("{SETTING}: must be a list")]);
    };
    if entries.len() > MOST {
        return Err(vec![format!("{SETTING}: has more than {MOST} entries")]);
    }
    let mut phones: Vec<Phone> = Vec::new();
    let mut problems = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let known = |user: &str| phones.iter().any(|one| one.credentials.username == user);
        match read_one(entry) {
            Ok(phone) if known(&phone.credentials.username) => {
                problems.push(format!(
                    "{SETTING}: entry {}: user: is there twice",
                    index + 1
                ));
            }
            Ok(phone) => phones.push(phone),
            Err(problem) => problems.push(format!("{SETTING}: entry {}: {problem}", index + 1)),
        }
    }
    if problems.is_empty() {
        Ok(phones)
    } else {
        Err(problems)
    }
}

fn read_one(entry: &serde_json::Value) -> Result<Phone, &'static str> {
    let entry = Written::deserialize(entry)
        .map_err(|_| "must be an object with user, password, and perhaps tenant")?;
    let fits = |c: u8| c.is_ascii_alphanumeric() || b"._+*#~!$&'=-".contains(&c);
    if !(1..=64).contains(&entry.user.len()) || !entry.user.bytes().all(fits) {
        return Err("user: must be 1 to 64 letters, digits and . _ + * # ~ ! $ & ' = -");
    }
    if entry.password.len() < 8 {
        return Err("password: must have 8 characters or more");
    }
    let tenant = entry
        .tenant
        .map(|tenant| TenantId::new(&tenant).map_err(|_| "tenant: is no tenant's id"));
    Ok(Phone {
        credentials: Credentials {
            username: entry.user,
            password: entry.password,
        },
        tenant: tenant.transpose()?,
    })
}

/// The telephones; clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Phones(Arc<Mutex<HashMap<String, Entry>>>);

#[derive(Debug)]
struct Entry {
    phone: Phone,
    place: Option<Place>,
}

/// Where a telephone is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The URI of its `Contact`.
    pub contact: String,
    /// How it has registered.
    pub protocol: Protocol,
    /// From where.
    pub source: SocketAddr,
    /// Until when.
    pub until: Instant,
}

/// A telephone that can be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reachable {
    /// The user of its `Contact`.
    pub user: String,
    /// The host of its `Contact`.
    pub host: Gateway,
    /// How it is reached.
    pub protocol: Protocol,
    /// Where it is reached.
    pub source: SocketAddr,
}

impl Phones {
    /// These telephones; none of them is registered.
    pub fn new(phones: Vec<Phone>) -> Self {
        let entries = phones.into_iter().map(|phone| {
            let user = phone.credentials.username.clone();
            (user, Entry { phone, place: None })
        });
        Self(Arc::new(Mutex::new(entries.collect())))
    }

    fn table(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody may register.
    pub fn is_empty(&self) -> bool {
        self.table().is_empty()
    }

    /// With what a telephone of this name logs in.
    pub fn credentials(&self, user: &str) -> Option<Credentials> {
        let table = self.table();
        table.get(user).map(|entry| entry.phone.credentials.clone())
    }

    /// A telephone is there, or nowhere any more; whether its `Contact` can be used.
    pub fn set(&self, user: &str, place: Option<Place>, now: Instant) -> bool {
        let is_usable =
            |place: &Place| place.contact.len() <= MOST_CONTACT && parts(&place.contact).is_some();
        if !place.as_ref().is_none_or(is_usable) {
            return false;
        }
        let mut table = self.table();
        if let Some(entry) = table.get_mut(user) {
            entry.place = place;
        }
        let here = |entry: &&Entry| entry.at(now).is_some();
        metrics::sip_phones(table.values().filter(here).count());
        true
    }

    /// Where a telephone is.
    pub fn place(&self, user: &str, now: Instant) -> Option<Place> {
        self.table().get(user)?.at(now).cloned()
    }

    /// The telephone of this name, for whom a tenant may call it; the operator may call all.
    pub fn find(&self, user: &str, tenant: Option<&TenantId>, now: Instant) -> Option<Reachable> {
        let table = self.table();
        let entry = table.get(user)?;
        if tenant.is_some() && entry.phone.tenant.as_ref() != tenant {
            return None;
        }
        let place = entry.at(now)?;
        let (user, host) = parts(&place.contact)?;
        Some(Reachable {
            user,
            host,
            protocol: place.protocol,
            source: place.source,
        })
    }

    /// Whether a telephone has registered from there.
    pub fn is_at(&self, protocol: Protocol, source: SocketAddr, now: Instant) -> bool {
        let table = self.table();
        table.values().any(|entry| {
            let place = entry.at(now);
            place.is_some_and(|place| place.protocol == protocol && place.source == source)
        })
    }

    /// All of them, by name.
    pub fn reports(&self, now: Instant) -> Vec<PhoneReport> {
        let table = self.table();
        let mut reports: Vec<_> = table
            .iter()
            .map(|(user, entry)| {
                let place = entry.at(now);
                let left = place.map(|place| place.until.saturating_duration_since(now));
                PhoneReport {
                    user: user.clone(),
                    tenant: entry.phone.tenant.clone(),
                    address: place.map(|place| place.source.to_string()),
                    expires_at: left.and_then(|left| SystemTime::now().checked_add(left)),
                }
            })
            .collect();
        reports.sort_by(|one, other| one.user.cmp(&other.user));
        reports
    }
}

impl Entry {
    fn at(&self, now: Instant) -> Option<&Place> {
        self.place.as_ref().filter(|place| place.until > now)
    }
}

/// User and host of a `Contact`.
fn parts(contact: &str) -> Option<(String, Gateway)> {
    let user = Address::parse(contact).user()?.into_owned();
    let (_, rest) = contact.rsplit_once('@')?;
    let host = rest.split([';', '?', '>']).next()?;
    if user.contains(char::is_control) {
        return None;
    }
    Some((user, Gateway::parse(host)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn telephones_are_read_and_no_password_is_told() {
        let phones = read(&json!([
            {"user": "bob", "password": "s3cret-s3cret"},
            {"user": "+49301234567", "password": "s3cret-s3cret", "tenant": "a"},
        ]));
        let phones = phones.unwrap();
        assert_eq!(phones[1].tenant, Some(TenantId::new("a").unwrap()));
        assert!(!format!("{phones:?}").contains("s3cret"));
        for (entry, problem) in [
            (json!({"user": "b b", "password": "s3cret-s3cret"}), "user"),
            (json!({"user": "b", "password": "s3cret"}), "password"),
            (
                json!({"user": "b", "password": "s3cret-s3cret", "x": 1}),
                "must be an object",
            ),
        ] {
            let problems = read(&json!([entry])).unwrap_err().join("");
            assert!(
                problems.contains(problem) && !problems.contains("s3cret"),
                "{problems}"
            );
        }
        let one = json!({"user": "b", "password": "s3cret-s3cret"});
        assert!(read(&json!([one, one])).unwrap_err()[0].contains("twice"));
    }

    #[test]
    fn a_telephone_is_found_where_it_is_by_those_whose_it_is() {
        let phone = |user: &str, tenant: Option<&str>| Phone {
            credentials: Credentials {
                username: user.to_owned(),
                password: "pw".to_owned(),
            },
            tenant: tenant.map(|tenant| TenantId::new(tenant).unwrap()),
        };
        let phones = Phones::new(vec![phone("bob", Some("a")), phone("eve", None)]);
        let now = Instant::now();
        let place = |contact: &str| {
            Some(Place {
                contact: contact.to_owned(),
                protocol: Protocol::Udp,
                source: "192.0.2.1:5080".parse().unwrap(),
                until: now + LONGEST,
            })
        };
        assert!(phones.set("bob", place("sip:bob-1@10.0.0.1:5070;ob"), now));
        assert!(!phones.set("eve", place("sip:10.0.0.1"), now));
        assert!(!phones.set("eve", place(&format!("sip:{}@h", "e".repeat(600))), now));
        let tenant = |id: &str| TenantId::new(id).unwrap();
        let found = phones.find("bob", Some(&tenant("a")), now).unwrap();
        assert_eq!(
            (found.user.as_str(), found.host.to_string()),
            ("bob-1", "10.0.0.1:5070".to_owned())
        );
        assert!(phones.find("bob", None, now).is_some());
        assert!(phones.find("bob", Some(&tenant("b")), now).is_none());
        assert!(phones.find("eve", None, now).is_none());
        assert!(
            phones.find("bob", None, now + LONGEST).is_none(),
            "it expires"
        );
        phones.set("bob", None, now);
        assert!(phones.find("bob", None, now).is_none());
    }
}
