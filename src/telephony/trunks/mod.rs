//! Trunks and dispatch rules of LiveKit's SIP API, kept in a file in the data directory, which holds passwords.
//! Authorisation is left to HTTP, validation to `changes`; what they mean for a call is decided in `dispatch`.

mod changes;
mod configured;

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use livekit_protocol as proto;
use proto::{SipDispatchRuleInfo, SipInboundTrunkInfo, SipOutboundTrunkInfo};
use serde::{Deserialize, Serialize};

use super::dispatch::{self, Entered, Facts, Gate, Route};
pub use changes::{InboundChange, OutboundChange, RuleChange};
pub use configured::{Configured, SETTING};

/// In the data directory.
const FILE: &str = "trunks.json";
/// Its largest size; a larger file is not ours.
const MOST_BYTES: u64 = 16 << 20;
/// Limit of trunks of each kind, and of rules.
const MOST: usize = 1_000;
/// What inbound trunks and rules of a file mean: of 0 nothing, they were only kept.
const VERSION: u32 = 1;

/// Why a change was refused.
#[derive(Debug, thiserror::Error)]
pub enum TrunkError {
    /// Its content is invalid.
    #[error("{0}")]
    Invalid(String),
    /// There is no such trunk.
    #[error("requested sip trunk does not exist")]
    NoTrunk,
    /// There is no such rule.
    #[error("requested sip dispatch rule does not exist")]
    NoRule,
    /// The limit is reached.
    #[error("the limit of {MOST} is reached")]
    Full,
    /// The settings name it.
    #[error("it is named by {}, where it is to be changed", configured::SETTING)]
    Configured,
    /// It could not be stored.
    #[error("cannot store it: {0}")]
    Storage(#[from] io::Error),
}

impl TrunkError {
    fn invalid(problem: impl Into<String>) -> Self {
        Self::Invalid(problem.into())
    }
}

/// The trunks and rules. Not `Debug`: they hold passwords.
pub struct Trunks {
    file: PathBuf,
    /// The ids of those that the settings name, which the file does not have.
    configured: HashSet<String>,
    kept: Mutex<Kept>,
}

/// As stored in the file, in order of creation.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Kept {
    version: u32,
    inbound: Vec<SipInboundTrunkInfo>,
    outbound: Vec<SipOutboundTrunkInfo>,
    rules: Vec<SipDispatchRuleInfo>,
}

/// Selects entries of a list; by default all.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only those with these ids.
    pub ids: Vec<String>,
    /// Only those after this id.
    pub after: String,
    /// At most so many; 0 means all.
    pub limit: usize,
}

impl Filter {
    /// The filter of a request.
    pub fn new(ids: Vec<String>, page: Option<proto::Pagination>) -> Self {
        let page = page.unwrap_or_default();
        Self {
            ids,
            after: page.after_id,
            limit: usize::try_from(page.limit).unwrap_or_default(),
        }
    }

    fn of<T: Entry>(self, list: &[T], also: impl Fn(&T) -> bool) -> Vec<T> {
        let Self { ids, after, limit } = self;
        let wanted =
            |entry: &&T| (ids.is_empty() || ids.iter().any(|id| id == entry.id())) && also(entry);
        let behind = list
            .iter()
            .position(|entry| entry.id() == after)
            .map_or(0, |place| place + 1);
        let rest = list.iter().skip(behind).filter(wanted);
        let limit = if limit == 0 { usize::MAX } else { limit };
        rest.take(limit).cloned().collect()
    }
}

/// An entry of a list.
trait Entry: Clone {
    /// Prefix of its ids.
    const PREFIX: &'static str;
    fn id(&self) -> &str;
    fn name_it(&mut self, id: String);
    /// Sets the times of creation and of the last change, in Unix seconds.
    fn stamp(&mut self, created: i64, updated: i64);
    fn created(&self) -> i64;
}

macro_rules! entry {
    ($type:ty, $prefix:literal, $id:ident) => {
        impl Entry for $type {
            const PREFIX: &'static str = $prefix;
            fn id(&self) -> &str {
                &self.$id
            }
            fn name_it(&mut self, id: String) {
                self.$id = id;
            }
            fn stamp(&mut self, created: i64, updated: i64) {
                self.created_at.get_or_insert_default().seconds = created;
                self.updated_at.get_or_insert_default().seconds = updated;
            }
            fn created(&self) -> i64 {
                self.created_at.as_ref().map_or(0, |at| at.seconds)
            }
        }
    };
}

entry!(SipInboundTrunkInfo, "ST_", sip_trunk_id);
entry!(SipOutboundTrunkInfo, "ST_", sip_trunk_id);
entry!(SipDispatchRuleInfo, "SDR_", sip_dispatch_rule_id);

impl Trunks {
    /// Loads the file. If it cannot be parsed it is put aside, so that calls which need none of it still work.
    pub fn open(data_dir: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(data_dir)?;
        let file = data_dir.join(FILE);
        let none = || Kept {
            version: VERSION,
            ..Kept::default()
        };
        let kept = match read(&file) {
            Ok(mut kept) => {
                if kept.version < VERSION {
                    kept.take_effect();
                    write(&file, &kept)?;
                }
                kept
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => none(),
            Err(error) if is_unreadable(&error) => {
                let aside = file.with_extension("unreadable");
                std::fs::rename(&file, &aside)?;
                tracing::warn!(%error, file = %aside.display(), "the trunks file cannot be parsed and was renamed");
                none()
            }
            Err(error) => return Err(error),
        };
        Ok(Self {
            file,
            configured: HashSet::new(),
            kept: Mutex::new(kept),
        })
    }

    /// Adds those that the settings name, in front of all others. The problems quote no value but ids.
    pub fn with(self, configured: &Configured) -> Result<Self, Vec<String>> {
        let mut all = self.kept().clone();
        let ids = (configured.inbound.iter().map(Entry::id))
            .chain(configured.outbound.iter().map(Entry::id))
            .chain(configured.rules.iter().map(Entry::id));
        let ids = ids.map(str::to_owned).collect();
        all.inbound.splice(0..0, configured.inbound.iter().cloned());
        all.outbound
            .splice(0..0, configured.outbound.iter().cloned());
        all.rules.splice(0..0, configured.rules.iter().cloned());
        let among = Configured {
            inbound: all.inbound.clone(),
            outbound: all.outbound.clone(),
            rules: all.rules.clone(),
        };
        let problems = configured.problems(&among);
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            file: self.file,
            configured: ids,
            kept: Mutex::new(all),
        })
    }

    /// What the file says, without any change to it: for somebody who looks at it beside the server.
    pub fn look(data_dir: &Path) -> io::Result<Self> {
        let file = data_dir.join(FILE);
        let kept = match read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Kept::default(),
            kept => kept?,
        };
        Ok(Self {
            file,
            configured: HashSet::new(),
            kept: Mutex::new(kept),
        })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a copy, writes it, and then replaces the current state.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Kept) -> Result<T, TrunkError>,
    ) -> Result<T, TrunkError> {
        let mut held = self.kept();
        let mut kept = held.clone();
        let changed = change(&mut kept)?;
        write(&self.file, &kept.without(&self.configured))?;
        *held = kept;
        Ok(changed)
    }

    /// What the settings name is not changed by anybody else.
    fn is_free(&self, id: &str) -> Result<(), TrunkError> {
        if self.configured.contains(id) {
            Err(TrunkError::Configured)
        } else {
            Ok(())
        }
    }

    /// The trunk of an inbound call.
    pub fn gate(&self, call: &Facts<'_>) -> Gate {
        dispatch::gate(self.kept().inbound.iter(), call)
    }

    /// The rule of an inbound call that comes by this trunk.
    pub fn route(&self, trunk: Option<&str>, call: &Facts<'_>, entered: Entered<'_>) -> Route {
        dispatch::route(self.kept().rules.iter(), trunk, call, entered)
    }

    /// Digits of the longest PIN that a call could be asked for.
    pub fn longest_pin(&self, trunk: Option<&str>, call: &Facts<'_>) -> usize {
        let kept = self.kept();
        let concerned = kept
            .rules
            .iter()
            .filter(|rule| dispatch::concerns(rule, trunk, call).is_ok());
        concerned
            .map(|rule| dispatch::pin(rule).len())
            .max()
            .unwrap_or_default()
    }

    /// Creates an inbound trunk.
    pub fn create_inbound(
        &self,
        trunk: SipInboundTrunkInfo,
    ) -> Result<SipInboundTrunkInfo, TrunkError> {
        self.change(|kept| {
            let trunk = added(&mut kept.inbound, trunk)?;
            changes::check_inbound(&kept.inbound, &trunk)?;
            Ok(trunk)
        })
    }

    /// Creates an outbound trunk.
    pub fn create_outbound(
        &self,
        trunk: SipOutboundTrunkInfo,
    ) -> Result<SipOutboundTrunkInfo, TrunkError> {
        self.change(|kept| {
            changes::check_outbound(&trunk)?;
            added(&mut kept.outbound, trunk)
        })
    }

    /// Creates a dispatch rule.
    pub fn create_rule(
        &self,
        rule: SipDispatchRuleInfo,
    ) -> Result<SipDispatchRuleInfo, TrunkError> {
        self.change(|kept| {
            let rule = added(&mut kept.rules, rule)?;
            changes::check_rule(&kept.rules, &rule)?;
            Ok(rule)
        })
    }

    /// Updates an inbound trunk.
    pub fn update_inbound(
        &self,
        id: &str,
        change: InboundChange,
    ) -> Result<SipInboundTrunkInfo, TrunkError> {
        self.is_free(id)?;
        self.change(|kept| {
            let changed = updated(&mut kept.inbound, id, |trunk| {
                changes::inbound(trunk, change);
            });
            let changed = changed.ok_or(TrunkError::NoTrunk)?;
            changes::check_inbound(&kept.inbound, &changed)?;
            Ok(changed)
        })
    }

    /// Updates an outbound trunk.
    pub fn update_outbound(
        &self,
        id: &str,
        change: OutboundChange,
    ) -> Result<SipOutboundTrunkInfo, TrunkError> {
        self.is_free(id)?;
        self.change(|kept| {
            let changed = updated(&mut kept.outbound, id, |trunk| {
                changes::outbound(trunk, change);
            });
            let changed = changed.ok_or(TrunkError::NoTrunk)?;
            changes::check_outbound(&changed)?;
            Ok(changed)
        })
    }

    /// Updates a dispatch rule.
    pub fn update_rule(
        &self,
        id: &str,
        change: RuleChange,
    ) -> Result<SipDispatchRuleInfo, TrunkError> {
        self.is_free(id)?;
        self.change(|kept| {
            let changed = updated(&mut kept.rules, id, |rule| changes::rule(rule, change));
            let changed = changed.ok_or(TrunkError::NoRule)?;
            changes::check_rule(&kept.rules, &changed)?;
            Ok(changed)
        })
    }

    /// An inbound trunk.
    pub fn inbound(&self, id: &str) -> Option<SipInboundTrunkInfo> {
        self.kept()
            .inbound
            .iter()
            .find(|trunk| trunk.id() == id)
            .cloned()
    }

    /// An outbound trunk.
    pub fn outbound(&self, id: &str) -> Option<SipOutboundTrunkInfo> {
        self.kept()
            .outbound
            .iter()
            .find(|trunk| trunk.id() == id)
            .cloned()
    }

    /// Inbound trunks; with numbers, only those for one of them or for any number.
    pub fn list_inbound(&self, filter: Filter, numbers: &[String]) -> Vec<SipInboundTrunkInfo> {
        filter.of(&self.kept().inbound, |trunk| {
            for_one_of(&trunk.numbers, numbers)
        })
    }

    /// Outbound trunks; with numbers, only those that have one of them or any number.
    pub fn list_outbound(&self, filter: Filter, numbers: &[String]) -> Vec<SipOutboundTrunkInfo> {
        filter.of(&self.kept().outbound, |trunk| {
            for_one_of(&trunk.numbers, numbers)
        })
    }

    /// Dispatch rules; with trunks, only those for one of them or for any trunk.
    pub fn list_rules(&self, filter: Filter, trunks: &[String]) -> Vec<SipDispatchRuleInfo> {
        filter.of(&self.kept().rules, |rule| {
            for_one_of(&rule.trunk_ids, trunks)
        })
    }

    /// Removes a trunk of either kind.
    pub fn delete_trunk(&self, id: &str) -> Result<(), TrunkError> {
        self.is_free(id)?;
        self.change(|kept| {
            let before = kept.inbound.len() + kept.outbound.len();
            kept.inbound.retain(|trunk| trunk.id() != id);
            kept.outbound.retain(|trunk| trunk.id() != id);
            let gone = kept.inbound.len() + kept.outbound.len() < before;
            if gone {
                Ok(())
            } else {
                Err(TrunkError::NoTrunk)
            }
        })
    }

    /// Removes a dispatch rule.
    pub fn delete_rule(&self, id: &str) -> Result<SipDispatchRuleInfo, TrunkError> {
        self.is_free(id)?;
        self.change(|kept| {
            let place = kept.rules.iter().position(|rule| rule.id() == id);
            place
                .map(|place| kept.rules.remove(place))
                .ok_or(TrunkError::NoRule)
        })
    }
}

impl Kept {
    /// What the file has.
    fn without(&self, configured: &HashSet<String>) -> Self {
        fn rest<T: Entry>(list: &[T], configured: &HashSet<String>) -> Vec<T> {
            let kept = list.iter().filter(|entry| !configured.contains(entry.id()));
            kept.cloned().collect()
        }
        Self {
            version: self.version,
            inbound: rest(&self.inbound, configured),
            outbound: rest(&self.outbound, configured),
            rules: rest(&self.rules, configured),
        }
    }

    /// What a former version only kept counts from now on.
    fn take_effect(&mut self) {
        self.version = VERSION;
        for trunk in &self.inbound {
            tracing::warn!(
                trunk = trunk.sip_trunk_id,
                name = trunk.name,
                "an inbound trunk takes effect: calls to its numbers must satisfy it from now on"
            );
            if let Err(problem) = changes::check_inbound(&self.inbound, trunk) {
                tracing::warn!(trunk = trunk.sip_trunk_id, %problem, "the trunk would not be stored today");
            }
        }
        for rule in &self.rules {
            tracing::warn!(
                rule = rule.sip_dispatch_rule_id,
                name = rule.name,
                "a dispatch rule takes effect: it places calls from now on"
            );
            if let Err(problem) = changes::check_rule(&self.rules, rule) {
                tracing::warn!(rule = rule.sip_dispatch_rule_id, %problem, "the rule would not be stored today");
            }
        }
    }
}

/// Whether an entry for these names, or for everyone if it names none, matches one of the wanted names.
fn for_one_of(named: &[String], wanted: &[String]) -> bool {
    wanted.is_empty() || named.is_empty() || named.iter().any(|name| wanted.contains(name))
}

fn now() -> i64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

fn added<T: Entry>(list: &mut Vec<T>, mut entry: T) -> Result<T, TrunkError> {
    if !entry.id().is_empty() {
        return Err(TrunkError::invalid("its id must be empty"));
    }
    if list.len() >= MOST {
        return Err(TrunkError::Full);
    }
    let tail: String = std::iter::repeat_with(fastrand::alphanumeric)
        .take(12)
        .collect();
    entry.name_it(format!("{}{tail}", T::PREFIX));
    let now = now();
    entry.stamp(now, now);
    list.push(entry.clone());
    Ok(entry)
}

fn updated<T: Entry>(list: &mut [T], id: &str, change: impl FnOnce(&mut T)) -> Option<T> {
    let entry = list.iter_mut().find(|entry| entry.id() == id)?;
    let created = entry.created();
    change(entry);
    entry.name_it(id.to_owned());
    entry.stamp(created, now());
    Some(entry.clone())
}

fn is_unreadable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
    )
}

fn read(file: &Path) -> io::Result<Kept> {
    let mut text = String::new();
    let file = std::fs::File::open(file)?;
    file.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// Replaces the whole file; other users cannot read it.
fn write(file: &Path, kept: &Kept) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let mut part = tempfile::Builder::new()
        .prefix(".part-")
        .tempfile_in(folder)?;
    part.write_all(&serde_json::to_vec(kept)?)?;
    part.as_file().sync_all()?;
    part.persist(file).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn outbound(address: &str) -> SipOutboundTrunkInfo {
        SipOutboundTrunkInfo {
            address: address.to_owned(),
            numbers: vec!["+12125550100".to_owned()],
            auth_username: "ann".to_owned(),
            auth_password: "secret".to_owned(),
            ..Default::default()
        }
    }

    fn inbound(numbers: &[&str]) -> SipInboundTrunkInfo {
        SipInboundTrunkInfo {
            numbers: numbers.iter().map(|number| (*number).to_owned()).collect(),
            ..Default::default()
        }
    }

    fn individual(prefix: &str, pin: &str) -> SipDispatchRuleInfo {
        let rule = proto::sip_dispatch_rule::Rule::DispatchRuleIndividual(
            proto::SipDispatchRuleIndividual {
                room_prefix: prefix.to_owned(),
                pin: pin.to_owned(),
                no_randomness: false,
            },
        );
        SipDispatchRuleInfo {
            rule: Some(proto::SipDispatchRule { rule: Some(rule) }),
            ..Default::default()
        }
    }

    #[test]
    fn what_was_made_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let trunks = Trunks::open(folder.path()).unwrap();
        let trunk = trunks.create_outbound(outbound("sip.example.org")).unwrap();
        assert!(trunk.sip_trunk_id.starts_with("ST_"));
        let rule = trunks.create_rule(individual("call-", "")).unwrap();
        assert!(rule.sip_dispatch_rule_id.starts_with("SDR_"));
        let mode = std::fs::metadata(folder.path().join(FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = Trunks::open(folder.path()).unwrap();
        assert_eq!(again.outbound(&trunk.sip_trunk_id), Some(trunk));
        assert_eq!(again.list_rules(Filter::default(), &[]), [rule]);
    }

    const CONFIGURED: &str = r#"{
        "inbound": [{"sip_trunk_id": "ST_shop", "numbers": ["+1555"], "auth_username": "u", "auth_password": "a-secret"}],
        "rules": [{"trunk_ids": ["ST_shop"], "rule": {"dispatch_rule_direct": {"room_name": "shop", "pin": "12"}}}]}"#;

    fn configured() -> Configured {
        Configured::read(&serde_json::from_str(CONFIGURED).unwrap()).unwrap()
    }

    #[test]
    fn what_the_settings_name_holds_and_is_nobody_elses_to_change() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Trunks::open(folder.path()).unwrap();
        let trunks = open().with(&configured()).unwrap();
        let own = trunks.create_inbound(inbound(&["+1666"])).unwrap();
        let call = Facts {
            from: "+1777",
            to: "+1555",
            source: std::net::Ipv4Addr::LOCALHOST.into(),
        };
        let Gate::Trunk(trunk) = trunks.gate(&call) else {
            panic!("the call comes by no trunk");
        };
        assert_eq!(trunk.auth_password, "a-secret");
        assert_eq!(trunks.longest_pin(Some("ST_shop"), &call), 2);
        for refused in [
            trunks.delete_trunk("ST_shop").err(),
            trunks.delete_rule("SDR_rules_0").err(),
            trunks
                .update_inbound("ST_shop", InboundChange::Replace(inbound(&["+1888"])))
                .err(),
        ] {
            assert!(matches!(refused, Some(TrunkError::Configured)));
        }
        // The file has the other one alone, and what is taken out of the settings is gone.
        assert_eq!(open().list_inbound(Filter::default(), &[]), [own]);
        // Two trunks for one number.
        let clashing = open();
        clashing.create_inbound(inbound(&["+1555"])).unwrap();
        let problems = clashing.with(&configured()).err();
        let problems = problems.unwrap().join("\n");
        assert!(
            problems.starts_with("sip.trunks_json.inbound: \"ST_shop\":"),
            "{problems}"
        );
    }

    #[test]
    fn problems_of_the_settings_name_the_entry_and_quote_no_secret() {
        for (json, problem) in [
            ("[]", "sip.trunks_json: must be an object"),
            (
                r#"{"trunks": []}"#,
                "sip.trunks_json.trunks: there are inbound",
            ),
            (r#"{"rules": 5}"#, "sip.trunks_json.rules: must be a list"),
            (
                r#"{"inbound": [{"auth_passwort": "hush"}]}"#,
                "sip.trunks_json.inbound[0]: unknown field `auth_passwort`",
            ),
            (
                r#"{"rules": [{"rule": {"dispatch_rule_direct": {"room_name": "a", "pinn": "hush"}}}]}"#,
                "sip.trunks_json.rules[0]: unknown field `rule.",
            ),
            (
                r#"{"inbound": [{"numbers": "hush"}]}"#,
                "sip.trunks_json.inbound[0]: a field has another type",
            ),
            (
                r#"{"inbound": [{"numbers": ["+1"], "auth_username": "u"}]}"#,
                "sip.trunks_json.inbound: \"ST_inbound_0\": auth_password: is required",
            ),
            (
                r#"{"outbound": [{"sip_trunk_id": "a", "address": "h", "numbers": ["+1"]}], "inbound": [{"sip_trunk_id": "a", "numbers": ["+1"]}]}"#,
                "sip.trunks_json: two have the id \"a\"",
            ),
            (
                r#"{"rules": [{}]}"#,
                "sip.trunks_json.rules: \"SDR_rules_0\": rule: is required",
            ),
        ] {
            let problems = Configured::read(&serde_json::from_str(json).unwrap())
                .err()
                .unwrap()
                .join("\n");
            assert!(problems.starts_with(problem), "{json}: {problems}");
            assert!(!problems.contains("hush"), "{problems}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), "{").unwrap();
        let trunks = Trunks::open(folder.path()).unwrap();
        assert!(trunks.list_outbound(Filter::default(), &[]).is_empty());
        assert!(folder.path().join("trunks.unreadable").exists());
    }

    #[test]
    fn what_was_refused_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let trunks = Trunks::open(folder.path()).unwrap();
        let first = trunks.create_inbound(inbound(&["+1"])).unwrap();
        assert!(matches!(
            trunks.create_inbound(inbound(&["+1"])),
            Err(TrunkError::Invalid(_))
        ));
        assert!(matches!(
            trunks.create_inbound(inbound(&[])),
            Err(TrunkError::Invalid(_))
        ));
        assert!(matches!(
            trunks.create_outbound(outbound("sip:a@b")),
            Err(TrunkError::Invalid(_))
        ));
        let named = SipOutboundTrunkInfo {
            sip_trunk_id: "ST_x".to_owned(),
            ..outbound("a")
        };
        assert!(matches!(
            trunks.create_outbound(named),
            Err(TrunkError::Invalid(_))
        ));
        trunks.create_rule(individual("a-", "12")).unwrap();
        trunks.create_rule(individual("b-", "13")).unwrap();
        assert!(matches!(
            trunks.create_rule(individual("c-", "12")),
            Err(TrunkError::Invalid(_))
        ));
        assert_eq!(trunks.list_inbound(Filter::default(), &[]), [first]);
        assert_eq!(trunks.list_rules(Filter::default(), &[]).len(), 2);
        assert!(matches!(
            trunks.delete_trunk("ST_none"),
            Err(TrunkError::NoTrunk)
        ));
        assert!(matches!(
            trunks.delete_rule("SDR_none"),
            Err(TrunkError::NoRule)
        ));
    }

    #[test]
    fn an_update_changes_what_it_names_and_a_replacement_everything() {
        let folder = tempfile::tempdir().unwrap();
        let trunks = Trunks::open(folder.path()).unwrap();
        let id = trunks
            .create_outbound(outbound("a.example"))
            .unwrap()
            .sip_trunk_id;
        let update = proto::SipOutboundTrunkUpdate {
            numbers: Some(proto::ListUpdate {
                add: vec!["+2".to_owned()],
                remove: vec!["+12125550100".to_owned()],
                ..Default::default()
            }),
            auth_password: Some("other".to_owned()),
            ..Default::default()
        };
        let changed = trunks
            .update_outbound(&id, OutboundChange::Update(update))
            .unwrap();
        assert_eq!(
            (
                changed.address.as_str(),
                changed.auth_username.as_str(),
                changed.auth_password.as_str()
            ),
            ("a.example", "ann", "other")
        );
        assert_eq!(changed.numbers, ["+2"]);
        let replaced = OutboundChange::Replace(SipOutboundTrunkInfo {
            auth_username: String::new(),
            auth_password: String::new(),
            ..outbound("b.example")
        });
        let changed = trunks.update_outbound(&id, replaced).unwrap();
        assert_eq!(
            (
                changed.sip_trunk_id.as_str(),
                changed.auth_username.as_str()
            ),
            (id.as_str(), "")
        );
        let none = OutboundChange::Update(proto::SipOutboundTrunkUpdate::default());
        assert!(matches!(
            trunks.update_outbound("ST_none", none),
            Err(TrunkError::NoTrunk)
        ));
        trunks.delete_trunk(&id).unwrap();
        assert_eq!(trunks.outbound(&id), None);
    }

    #[test]
    fn lists_are_filtered_and_come_in_pages() {
        let folder = tempfile::tempdir().unwrap();
        let trunks = Trunks::open(folder.path()).unwrap();
        let ids: Vec<String> = (0..4)
            .map(|n| {
                trunks
                    .create_outbound(outbound(&format!("{n}.example")))
                    .unwrap()
                    .sip_trunk_id
            })
            .collect();
        let listed = |filter: Filter, numbers: &[String]| -> Vec<String> {
            let list = trunks.list_outbound(filter, numbers).into_iter();
            list.map(|trunk| trunk.sip_trunk_id).collect()
        };
        assert_eq!(listed(Filter::default(), &[]), ids);
        let page = proto::Pagination {
            after_id: ids[0].clone(),
            limit: 2,
        };
        assert_eq!(listed(Filter::new(Vec::new(), Some(page)), &[]), ids[1..3]);
        assert_eq!(
            listed(Filter::new(vec![ids[3].clone()], None), &[]),
            ids[3..]
        );
        assert!(listed(Filter::default(), &["+4930".to_owned()]).is_empty());
        assert_eq!(listed(Filter::default(), &["+12125550100".to_owned()]), ids);
    }
}
