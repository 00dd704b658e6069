//! Who may come in: the accounts of `carriers.accounts_json`. A carrier that signs what it sends is known by that, with the key
//! of the account; any other by the secret of the account in the path.

use std::fmt;
use std::time::SystemTime;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use serde::Deserialize;

use super::{Carrier, Request, Signature, carrier};
use vivavoce_config::{Secret, Settings};
use vivavoce_core::party::TenantId;

/// The most accounts: they are looked through for every call.
const MAX_ACCOUNTS: usize = 1_000;
/// The most numbers of one account.
const MAX_NUMBERS: usize = 10_000;
/// The shortest secret in a path.
const MIN_SECRET_BYTES: usize = 16;

/// An account at a carrier.
#[derive(Clone)]
pub struct Account {
    kind: String,
    pub(crate) signing_key: Option<Secret>,
    secret: Option<Secret>,
    numbers: Vec<String>,
    /// Whose calls these are; nobody's are the operator's.
    pub tenant: Option<TenantId>,
    room: Option<String>,
}

/// Keys and secrets are not shown.
impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account")
            .field("kind", &self.kind)
            .field("tenant", &self.tenant)
            .finish_non_exhaustive()
    }
}

/// All accounts.
#[derive(Debug, Clone, Default)]
pub struct Accounts(Vec<Account>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    kind: String,
    signing_key: Option<String>,
    secret: Option<String>,
    #[serde(default)]
    numbers: Vec<String>,
    tenant: Option<String>,
    room: Option<String>,
}

impl Account {
    /// An account with a signing key and nothing else.
    #[cfg(any(test, feature = "testing"))]
    pub fn of(kind: &str, key: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            signing_key: Some(Secret::new(key)),
            secret: None,
            numbers: Vec::new(),
            tenant: None,
            room: None,
        }
    }

    /// Its secret in paths.
    pub fn secret(&self) -> Option<&str> {
        self.secret.as_ref().map(Secret::expose)
    }

    /// The room that a call joins; `None` where calls are in no room.
    pub fn room(&self, call_id: &str, from: Option<&str>, to: Option<&str>) -> Option<String> {
        let room = self.room.as_ref()?;
        let values = [
            call_id,
            from.unwrap_or("anonymous"),
            to.unwrap_or("unknown"),
        ];
        // In one pass: what a caller says of itself is no placeholder.
        let mut name = String::new();
        let mut rest = room.as_str();
        while let Some(place) = rest.find('{') {
            let (before, there) = rest.split_at(place);
            name.push_str(before);
            let known = PLACEHOLDERS.iter().zip(values);
            let found = known
                .into_iter()
                .find(|(known, _)| there.starts_with(*known));
            let (known, value) = found.map_or((1, "{"), |(known, value)| (known.len(), value));
            name.push_str(value);
            rest = there.get(known..).unwrap_or_default();
        }
        Some(name + rest)
    }

    /// The called number of a call that names this one, or none; `None` where the call is for a number of somebody else.
    pub fn called(&self, to: Option<String>) -> Option<Option<String>> {
        match (to, &*self.numbers) {
            (to, []) => Some(to),
            // A secret is for one number, then.
            (None, [one]) => Some(Some(one.clone())),
            (None, _) => Some(None),
            (Some(to), numbers) => {
                let known = numbers.iter().any(|known| plain(known) == plain(&to));
                known.then_some(Some(to))
            }
        }
    }
}

/// What stands for itself in the name of a room.
const PLACEHOLDERS: [&str; 3] = ["{call_id}", "{from}", "{to}"];

/// Numbers are the same with and without the sign of the international form.
fn plain(number: &str) -> &str {
    let number = number.trim();
    number
        .strip_prefix('+')
        .or_else(|| number.strip_prefix("00"))
        .unwrap_or(number)
}

impl Accounts {
    /// Reads the setting. On failure returns all problems, none of which quotes a value.
    pub fn new(settings: &Settings) -> Result<Self, Vec<String>> {
        let Some(json) = &settings.carriers.accounts_json else {
            return Ok(Self::default());
        };
        let serde_json::Value::Array(entries) = &json.0 else {
            return Err(vec!["carriers.accounts_json: must be a list".to_owned()]);
        };
        let mut problems = Vec::new();
        if entries.len() > MAX_ACCOUNTS {
            problems.push(format!(
                "carriers.accounts_json: has more than {MAX_ACCOUNTS} entries"
            ));
        }
        let mut accounts: Vec<Account> = Vec::new();
        for (index, entry) in entries.iter().take(MAX_ACCOUNTS).enumerate() {
            match read(entry) {
                Ok(account) => {
                    let same = |known: &&Account| {
                        known.kind == account.kind
                            && known.secret.is_some()
                            && known.secret == account.secret
                    };
                    if accounts.iter().any(|known| same(&known)) {
                        problems.push(format!(
                            "carriers.accounts_json: entry {}: secret: another entry has the same",
                            index + 1
                        ));
                    }
                    accounts.push(account);
                }
                Err(problem) => problems.push(format!(
                    "carriers.accounts_json: entry {}: {problem}",
                    index + 1
                )),
            }
        }
        if problems.is_empty() {
            Ok(Self(accounts))
        } else {
            Err(problems)
        }
    }

    fn of(&self, carrier: &dyn Carrier) -> impl Iterator<Item = &Account> {
        self.0
            .iter()
            .filter(move |account| account.kind == carrier.kind())
    }

    /// Whether there are accounts at a carrier: whoever comes must have one of them then.
    pub fn has_some_of(&self, carrier: &dyn Carrier) -> bool {
        self.of(carrier).next().is_some()
    }

    /// The account that a request comes from. `path` is the secret in its path. A webhook is known by its signature where the
    /// account has a key, a handshake where the carrier signs those as well; a secret that comes with it must be right, too.
    /// With the signature, whose copies may be no requests of the carrier.
    pub fn admit(
        &self,
        carrier: &dyn Carrier,
        request: &Request<'_>,
        path: Option<&str>,
        (is_socket, now): (bool, SystemTime),
    ) -> Option<(&Account, Signature)> {
        let in_header = if path.is_none() {
            carrier.secret(request)
        } else {
            None
        };
        let given = path.or(in_header.as_deref());
        let given = given.map(|secret| digest(&SHA256, secret.as_bytes()));
        // All are looked at, so that the time does not tell which.
        self.of(carrier).fold(None, |found, account| {
            let known = account
                .secret()
                .map(|secret| digest(&SHA256, secret.as_bytes()));
            let is_right = known.zip(given).map(|(known, given)| {
                verify_slices_are_equal(known.as_ref(), given.as_ref()).is_ok()
            });
            let it_signs = if is_socket {
                carrier.signs_sockets()
            } else {
                carrier.signs_webhooks()
            };
            let signs = account.signing_key.is_some() && it_signs;
            let admitted = if signs {
                let signed = carrier.signed(account, request, now);
                signed.filter(|_| is_right.unwrap_or(true))
            } else {
                // A secret is the same for all calls.
                is_right.unwrap_or(false).then_some(Signature::Repeated)
            };
            admitted.map(|signature| (account, signature)).or(found)
        })
    }
}

fn read(entry: &serde_json::Value) -> Result<Account, String> {
    let entry = Entry::deserialize(entry).map_err(|_| {
        // The error of the parser quotes what may be a secret.
        "must be an object with kind, signing_key or secret, and perhaps numbers, tenant and room"
            .to_owned()
    })?;
    let Some(carrier) = carrier(&entry.kind) else {
        let known: Vec<_> = super::CARRIERS
            .iter()
            .map(|carrier| carrier.kind())
            .collect();
        return Err(format!("kind: must be one of {}", known.join(", ")));
    };
    if entry.secret.is_none() && !carrier.signs_sockets() {
        return Err(format!(
            "secret: is needed, because {} does not sign its sockets",
            carrier.name()
        ));
    }
    if entry.signing_key.is_none() && entry.secret.is_none() {
        return Err("needs signing_key or secret".to_owned());
    }
    let signs = carrier.signs_sockets() || carrier.signs_webhooks();
    if entry.signing_key.is_some() && !signs {
        return Err(format!("signing_key: {} signs nothing", carrier.name()));
    }
    let blank = |key: &Option<String>| key.as_ref().is_some_and(|key| key.trim().is_empty());
    if blank(&entry.signing_key) {
        return Err("signing_key: must not be blank".to_owned());
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._~-".contains(&byte);
    if entry
        .secret
        .as_ref()
        .is_some_and(|secret| secret.len() < MIN_SECRET_BYTES || !secret.bytes().all(fits))
    {
        return Err(format!(
            "secret: must have {MIN_SECRET_BYTES} or more letters, digits, . _ ~ -"
        ));
    }
    if entry.numbers.len() > MAX_NUMBERS
        || entry.numbers.iter().any(|number| plain(number).is_empty())
    {
        return Err(format!(
            "numbers: must be at most {MAX_NUMBERS}, none of them blank"
        ));
    }
    if let Some(room) = &entry.room {
        let mut plain = room.clone();
        for placeholder in PLACEHOLDERS {
            plain = plain.replace(placeholder, "");
        }
        if room.trim().is_empty() || plain.contains(['{', '}']) {
            let known = PLACEHOLDERS.join(", ");
            return Err(format!(
                "room: must be a name, in which {known} are replaced"
            ));
        }
    }
    let tenant = entry
        .tenant
        .map(|tenant| TenantId::new(&tenant))
        .transpose();
    Ok(Account {
        kind: entry.kind,
        signing_key: entry.signing_key.map(Secret::new),
        secret: entry.secret.map(Secret::new),
        numbers: entry.numbers,
        tenant: tenant.map_err(|error| format!("tenant: {error}"))?,
        room: entry.room,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use vivavoce_config::Config;

    use super::*;

    fn accounts(json: &str) -> Result<Accounts, Vec<String>> {
        let flags = [("carriers.accounts_json".to_owned(), json.to_owned())];
        let config = Config::from_sources(&flags, &HashMap::new(), None).unwrap();
        Accounts::new(&config.settings)
    }

    fn admitted<'a>(accounts: &'a Accounts, secret: &str) -> Option<&'a Account> {
        let form = BTreeMap::new();
        let request = Request {
            method: "GET",
            url: "wss://a.example/",
            header: &|_| None,
            form: &form,
            body: b"",
        };
        accounts
            .admit(
                carrier("twilio")?,
                &request,
                Some(secret),
                (true, SystemTime::now()),
            )
            .map(|(account, _)| account)
    }

    #[test]
    fn accounts_are_known_by_their_secrets_and_have_their_numbers() {
        let accounts = accounts(
            r#"[{"kind": "twilio", "secret": "0123456789abcdef", "numbers": ["+4930"], "tenant": "shop"},
                {"kind": "twilio", "secret": "0123456789abcdeg"},
                {"kind": "twilio", "secret": "0123456789abcdeh", "signing_key": "key"}]"#,
        );
        let accounts = accounts.unwrap();
        assert!(accounts.has_some_of(carrier("twilio").unwrap()));
        assert!(!accounts.has_some_of(carrier("plivo").unwrap()));
        assert!(admitted(&accounts, "0123456789abcde").is_none());
        // Its signature is missing.
        assert!(admitted(&accounts, "0123456789abcdeh").is_none());
        let shop = admitted(&accounts, "0123456789abcdef").unwrap();
        assert_eq!(shop.tenant, Some(TenantId::new("shop").unwrap()));
        assert_eq!(shop.called(None), Some(Some("+4930".to_owned())));
        assert_eq!(
            shop.called(Some("4930".to_owned())),
            Some(Some("4930".to_owned()))
        );
        assert_eq!(shop.called(Some("+4940".to_owned())), None);
        let house = admitted(&accounts, "0123456789abcdeg").unwrap();
        assert_eq!(
            house.called(Some("+4940".to_owned())),
            Some(Some("+4940".to_owned()))
        );
        assert!(!format!("{accounts:?}").contains("0123"));
    }

    #[test]
    fn a_room_is_named_after_its_call() {
        let room = |name: &str| {
            let json =
                serde_json::json!([{"kind": "twilio", "secret": "0123456789abcdef", "room": name}]);
            let accounts = accounts(&json.to_string()).unwrap();
            let account = admitted(&accounts, "0123456789abcdef").unwrap();
            // Whoever calls has chosen the number.
            account.room("CA1", Some("{to}"), None).unwrap()
        };
        assert_eq!(room("support"), "support");
        assert_eq!(room("{to}-{call_id}-{from}."), "unknown-CA1-{to}.");
    }

    #[test]
    fn what_is_wrong_is_named_and_never_quoted() {
        for (json, problem) in [
            ("{}", "must be a list"),
            (
                r#"[{"kind": "nobody", "secret": "0123456789abcdef"}]"#,
                "entry 1: kind: must be one of twilio",
            ),
            (
                r#"[{"kind": "telnyx", "signing_key": "s3cret"}]"#,
                "secret: is needed",
            ),
            (
                r#"[{"kind": "exotel", "secret": "0123456789abcdef", "signing_key": "s3cret"}]"#,
                "signing_key: Exotel signs nothing",
            ),
            (r#"[{"kind": "twilio"}]"#, "signing_key or secret"),
            (
                r#"[{"kind": "twilio", "secret": "s3cret"}]"#,
                "secret: must have 16",
            ),
            (
                r#"[{"kind": "twilio", "secret": "0123456789abcde/"}]"#,
                "secret: must have 16",
            ),
            (
                r#"[{"kind": "twilio", "signing_key": "s3cret", "tenant": ""}]"#,
                "tenant: ",
            ),
            (
                r#"[{"kind": "twilio", "signing_key": "s3cret", "room": "call-{id}"}]"#,
                "room: must be a name",
            ),
            (
                r#"[{"kind": "twilio", "signing_key": "s3cret", "key": "s3cret"}]"#,
                "must be an object",
            ),
            (
                r#"[{"kind": "twilio", "secret": "0123456789abcdef"}, {"kind": "twilio", "secret": "0123456789abcdef"}]"#,
                "entry 2: secret",
            ),
        ] {
            let problems = accounts(json).unwrap_err().join("\n");
            assert!(
                problems.contains(problem) && !problems.contains("s3cret"),
                "{problems}"
            );
        }
    }
}
