//! Registrations at PBXs and carriers (RFC 3261 section 10): this server says where calls to an account are to come, again
//! before that expires, and after failures with pauses that grow. Where a registrar has several addresses the next one is
//! tried when one fails. When to do what is a state machine without clock or I/O; [`Registrar`] runs one task per account.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::agent::digest::Credentials;
use super::agent::{Agent, Binding, Protocol, resolve};
use vivavoce_core::backoff::Backoff;
use vivavoce_core::phone::Gateway;
use vivavoce_seams::rooms::telephone::{RegistrationReport, RegistrationState};
use vivavoce_telemetry::metrics;

/// The setting that lists accounts.
pub const SETTING: &str = "sip.registrations_json";
/// The most accounts.
const MAX_ACCOUNTS: usize = 200;
/// What is asked for where an account does not say: an hour, as most telephones do.
const EXPIRES: Duration = Duration::from_hours(1);
const SHORTEST: Duration = Duration::from_mins(1);
const LONGEST: Duration = Duration::from_hours(24);
/// A registration is refreshed so long before it expires, or at four fifths of it.
const MARGIN: Duration = Duration::from_mins(1);
/// A registrar that grants less is asked no more often.
const OFTEN: Duration = Duration::from_secs(10);
/// The pauses after failures, and after a refusal that only somebody can mend.
const PAUSES: Backoff = Backoff::doubling(Duration::from_secs(2), Duration::from_mins(5), 0.3);
const REFUSED: Duration = Duration::from_mins(5);
/// How long one address may take to answer: by then a request over UDP was sent five times.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long signing off may take.
const GOODBYE: Duration = Duration::from_secs(2);

/// An account at a registrar.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    /// Where to register.
    pub registrar: Gateway,
    /// By which transport.
    pub transport: Protocol,
    /// The user of the address of record, which is called there.
    pub user: String,
    /// Its domain; the registrar's host where absent.
    pub domain: String,
    /// For challenges.
    pub credentials: Credentials,
    /// What is asked for.
    pub expires: Duration,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({})", self.registrar)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    registrar: String,
    transport: Option<String>,
    user: String,
    domain: Option<String>,
    auth_username: Option<String>,
    #[serde(default)]
    password: String,
    expires_seconds: Option<u64>,
}

/// Reads the setting. The problems quote no value.
pub fn read(json: &serde_json::Value) -> Result<Vec<Account>, Vec<String>> {
    let serde_json::Value::Array(entries) = json else {
        return Err(vec![format!("{SETTING}: must be a list")]);
    };
    if entries.len() > MAX_ACCOUNTS {
        return Err(vec![format!(
            "{SETTING}: has more than {MAX_ACCOUNTS} entries"
        )]);
    }
    let mut problems = Vec::new();
    let mut accounts: Vec<Account> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let read = account(entry).and_then(|account| {
            let same = |known: &Account| {
                known.registrar == account.registrar && known.user == account.user
            };
            if accounts.iter().any(same) {
                return Err("another entry has the same user and registrar".to_owned());
            }
            Ok(account)
        });
        match read {
            Ok(account) => accounts.push(account),
            Err(problem) => problems.push(format!("{SETTING}: entry {}: {problem}", index + 1)),
        }
    }
    if problems.is_empty() {
        Ok(accounts)
    } else {
        Err(problems)
    }
}

fn account(entry: &serde_json::Value) -> Result<Account, String> {
    // The error of the parser quotes what may be a secret.
    let entry = Entry::deserialize(entry).map_err(|_| {
        "must be an object with registrar and user, and perhaps transport, domain, auth_username, password and expires_seconds".to_owned()
    })?;
    let registrar = Gateway::parse(&entry.registrar)
        .ok_or_else(|| "registrar: must look like host or host:port".to_owned())?;
    let transport = entry.transport.as_deref().unwrap_or("udp");
    let transport = Protocol::parse(transport)
        .ok_or_else(|| "transport: must be udp, tcp or tls".to_owned())?;
    let is_plain = |text: &str| {
        !text.is_empty()
            && !text.contains(|c: char| c.is_control() || c.is_whitespace() || "<>@;\"".contains(c))
    };
    if !is_plain(&entry.user) {
        return Err("user: must be the user of a SIP URI".to_owned());
    }
    let domain = entry.domain.unwrap_or_else(|| registrar.host.clone());
    if !is_plain(&domain) {
        return Err("domain: must be the host of a SIP URI".to_owned());
    }
    let expires = entry.expires_seconds.map_or(EXPIRES, Duration::from_secs);
    if !(SHORTEST..=LONGEST).contains(&expires) {
        return Err("expires_seconds: must be from 60 to 86400".to_owned());
    }
    Ok(Account {
        transport,
        credentials: Credentials {
            username: entry.auth_username.unwrap_or_else(|| entry.user.clone()),
            password: entry.password,
        },
        user: entry.user,
        domain,
        registrar,
        expires,
    })
}

/// What came of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Registered for so long.
    Registered(Duration),
    /// It must be asked for at least so much (423).
    TooBrief(Duration),
    /// Refused with this status.
    Refused(u16),
    /// There was no answer at any address.
    Unreachable,
}

/// When an account registers again.
#[derive(Debug)]
struct Schedule {
    expires: Duration,
    failures: u32,
}

impl Schedule {
    /// The pause until the next attempt. `jitter` is from 0 to 1.
    fn after(&mut self, outcome: Outcome, jitter: f64) -> Duration {
        match outcome {
            Outcome::Registered(granted) => {
                self.failures = 0;
                let margin = MARGIN.min(granted / 5);
                granted.saturating_sub(margin).max(OFTEN)
            }
            Outcome::TooBrief(least) if least > self.expires && least <= LONGEST => {
                self.expires = least;
                Duration::ZERO
            }
            Outcome::Refused(401 | 403 | 404 | 407) => {
                self.failures = self.failures.saturating_add(1);
                REFUSED
            }
            Outcome::TooBrief(_) | Outcome::Refused(_) | Outcome::Unreachable => {
                let pause = PAUSES.delay(self.failures, jitter);
                self.failures = self.failures.saturating_add(1);
                pause
            }
        }
    }
}

/// The addresses of registrars where this server is registered: calls may come from them.
#[derive(Debug, Clone, Default)]
pub struct Registrars(Arc<Mutex<BTreeSet<(IpAddr, usize)>>>);

impl Registrars {
    fn table(&self) -> MutexGuard<'_, BTreeSet<(IpAddr, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether some account is registered at this address.
    pub fn has(&self, address: IpAddr) -> bool {
        let table = self.table();
        let accounts = (address, 0)..=(address, usize::MAX);
        table.range(accounts).next().is_some()
    }

    /// The account is registered there and nowhere else; nowhere with `None`.
    fn set(&self, account: usize, address: Option<IpAddr>) {
        let mut table = self.table();
        table.retain(|(_, known)| *known != account);
        table.extend(address.map(|address| (address.to_canonical(), account)));
    }
}

/// Keeps accounts registered.
pub struct Registrar {
    reports: Arc<Mutex<Vec<RegistrationReport>>>,
    stop: CancellationToken,
    tasks: Mutex<JoinSet<()>>,
}

impl Registrar {
    /// Begins to register the accounts.
    pub fn start(agent: &Agent, registrars: &Registrars, accounts: Vec<Account>) -> Self {
        let reports = accounts.iter().map(|account| RegistrationReport {
            user: account.user.clone(),
            registrar: account.registrar.to_string(),
            state: RegistrationState::Trying,
            expires_at: None,
        });
        let reports = Arc::new(Mutex::new(reports.collect()));
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for (number, account) in accounts.into_iter().enumerate() {
            let keeping = Keeping {
                agent: agent.clone(),
                registrars: registrars.clone(),
                reports: Arc::clone(&reports),
                number,
                binding: Binding::new(&account),
                account,
            };
            tasks.spawn(keeping.run(stop.clone()));
        }
        Self {
            reports,
            stop,
            tasks: Mutex::new(tasks),
        }
    }

    /// The accounts and how they are.
    pub fn reports(&self) -> Vec<RegistrationReport> {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.clone()
    }

    /// Signs off everywhere.
    pub async fn stop(&self) {
        self.stop.cancel();
        let mut tasks = {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *tasks)
        };
        let signed_off = async { while tasks.join_next().await.is_some() {} };
        let _late = timeout(GOODBYE, signed_off).await;
    }
}

/// The task of one account.
struct Keeping {
    agent: Agent,
    registrars: Registrars,
    reports: Arc<Mutex<Vec<RegistrationReport>>>,
    number: usize,
    account: Account,
    binding: Binding,
}

impl Keeping {
    async fn run(mut self, stop: CancellationToken) {
        let mut schedule = Schedule {
            expires: self.account.expires,
            failures: 0,
        };
        let mut registered = None;
        loop {
            let attempt = self.attempt(schedule.expires, registered);
            let (outcome, address) = tokio::select! {
                attempted = attempt => attempted,
                () = stop.cancelled() => break,
            };
            registered = address;
            self.tell(outcome, address, schedule.failures);
            let pause = schedule.after(outcome, fastrand::f64());
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.cancelled() => break,
            }
        }
        if let Some(address) = registered {
            let signing_off = self.register(address, Duration::ZERO);
            let _late = timeout(GOODBYE, signing_off).await;
        }
    }

    /// Registers at the address where it is registered, or at the first one that answers.
    async fn attempt(
        &mut self,
        expires: Duration,
        known: Option<SocketAddr>,
    ) -> (Outcome, Option<SocketAddr>) {
        let Account {
            registrar,
            transport,
            ..
        } = &self.account;
        let (host, port, transport) = (registrar.host.clone(), registrar.port, *transport);
        let found = resolve::addresses(&host, port, transport).await;
        let mut addresses = found.unwrap_or_default();
        if let Some(known) = known {
            addresses.retain(|address| *address != known);
            addresses.insert(0, known);
        }
        let mut outcome = Outcome::Unreachable;
        for address in addresses {
            let registering = self.register(address, expires);
            let answered = timeout(PATIENCE, registering).await;
            outcome = answered.unwrap_or(Outcome::Unreachable);
            match outcome {
                Outcome::Registered(_) => return (outcome, Some(address)),
                // Another server may do better.
                Outcome::Unreachable | Outcome::Refused(408 | 500..) => {}
                Outcome::TooBrief(_) | Outcome::Refused(_) => break,
            }
        }
        (outcome, None)
    }

    async fn register(&mut self, address: SocketAddr, expires: Duration) -> Outcome {
        let host = self.account.registrar.host.clone();
        let reached = self
            .agent
            .reach(self.account.transport, address, &host)
            .await;
        match reached {
            Ok(reached) => {
                let binding = &mut self.binding;
                self.agent.register(reached, binding, expires).await
            }
            Err(_) => Outcome::Unreachable,
        }
    }

    /// Reports what came of an attempt: to the log when it changes.
    fn tell(&self, outcome: Outcome, address: Option<SocketAddr>, failures: u32) {
        let state = match outcome {
            Outcome::Registered(_) => RegistrationState::Registered,
            Outcome::TooBrief(_) => RegistrationState::Trying,
            Outcome::Refused(status) => RegistrationState::Refused(status),
            Outcome::Unreachable => RegistrationState::Unreachable,
        };
        let expires_at = match outcome {
            Outcome::Registered(granted) => SystemTime::now().checked_add(granted),
            _ => None,
        };
        self.registrars
            .set(self.number, address.map(|address| address.ip()));
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(report) = reports.get_mut(self.number) else {
            return;
        };
        let before = std::mem::replace(&mut report.state, state);
        report.expires_at = expires_at;
        let registrar = report.registrar.clone();
        let up = reports
            .iter()
            .filter(|report| report.state == RegistrationState::Registered);
        metrics::sip_registrations(up.count(), reports.len());
        drop(reports);
        metrics::sip_registered(state.as_str());
        match state {
            _ if before == state && failures > 0 => {}
            RegistrationState::Registered if before != state => {
                tracing::info!(registrar, "registered at a SIP registrar");
            }
            RegistrationState::Registered | RegistrationState::Trying => {}
            RegistrationState::Refused(status) => {
                tracing::warn!(registrar, status, "a SIP registrar refuses an account");
            }
            RegistrationState::Unreachable => {
                tracing::warn!(registrar, "a SIP registrar does not answer");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn accounts_are_read_and_what_is_wrong_is_named_and_never_quoted() {
        let accounts = read(&json!([
            {"registrar": "pbx.example", "user": "101", "password": "pw"},
            {"registrar": "10.0.0.1:5070", "user": "102", "domain": "office", "transport": "tcp", "auth_username": "u102", "expires_seconds": 120},
        ]));
        let accounts = accounts.unwrap();
        assert_eq!(
            (accounts[0].domain.as_str(), accounts[0].expires),
            ("pbx.example", EXPIRES)
        );
        assert_eq!(accounts[0].credentials.username, "101");
        assert_eq!(accounts[1].credentials.username, "u102");
        assert!(!format!("{accounts:?}").contains("pw"));
        for (entry, problem) in [
            (json!({"registrar": "a b", "user": "1"}), "registrar"),
            (json!({"registrar": "a", "user": "1 s3cret"}), "user"),
            (
                json!({"registrar": "a", "user": "1", "transport": "s3cret"}),
                "transport",
            ),
            (
                json!({"registrar": "a", "user": "1", "expires_seconds": 5}),
                "expires_seconds",
            ),
            (
                json!({"registrar": "a", "user": "1", "secret": "s3cret"}),
                "must be an object",
            ),
        ] {
            let problems = read(&json!([entry])).unwrap_err().join("\n");
            assert!(
                problems.contains(&format!("entry 1: {problem}")) && !problems.contains("s3cret"),
                "{problems}"
            );
        }
        let one = json!({"registrar": "a", "user": "1"});
        assert!(read(&json!([one, one])).unwrap_err()[0].contains("entry 2"));
        assert!(read(&json!({})).is_err());
    }

    #[test]
    fn a_registration_is_refreshed_in_time_and_failures_are_pauses_that_grow() {
        let mut schedule = Schedule {
            expires: EXPIRES,
            failures: 0,
        };
        let seconds = Duration::from_secs;
        for (granted, pause) in [(3_600, 3_540), (60, 48), (5, 10)] {
            let after = schedule.after(Outcome::Registered(seconds(granted)), 0.5);
            assert_eq!(after, seconds(pause));
        }
        assert_eq!(
            schedule.after(Outcome::TooBrief(seconds(7_200)), 0.5),
            Duration::ZERO
        );
        assert_eq!(schedule.expires, seconds(7_200));
        // One who asks for what was asked for is broken.
        assert!(schedule.after(Outcome::TooBrief(seconds(7_200)), 0.5) > Duration::ZERO);
        schedule.failures = 0;
        let pauses: Vec<_> = (0..12)
            .map(|_| schedule.after(Outcome::Unreachable, 0.5))
            .collect();
        assert!(
            pauses.windows(2).all(|pair| pair[0] <= pair[1]),
            "{pauses:?}"
        );
        assert!(
            pauses[0] < seconds(4) && pauses[11] <= seconds(400),
            "{pauses:?}"
        );
        assert_eq!(schedule.after(Outcome::Refused(403), 0.5), REFUSED);
    }

    #[test]
    fn calls_may_come_from_where_an_account_is_registered() {
        let registrars = Registrars::default();
        let here: IpAddr = "192.0.2.1".parse().unwrap();
        registrars.set(0, Some(here));
        registrars.set(1, Some(here));
        registrars.set(0, None);
        assert!(registrars.has(here));
        registrars.set(1, Some("192.0.2.2".parse().unwrap()));
        assert!(!registrars.has(here));
    }
}
