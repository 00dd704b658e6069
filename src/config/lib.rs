//! The settings: declared once in [`settings`], read here from four sources.
//!
//! # Sources
//!
//! In ascending order of precedence: the default, the settings file (YAML, `vivavoce.yaml`), the environment, and flags.
//! Every setting has a dotted key (`limits.sessions`), used in the file and by `--set`, and a variable
//! (`LIMITS_SESSIONS`). This is the only place that reads the environment. An empty value counts as absent.
//!
//! # Types
//!
//! All sources provide text, which [`value`] parses: durations in seconds (keys end in `_seconds`) or milliseconds
//! (`_ms`), sizes in bytes with optional units, URLs without credentials, lists with commas. A value is parsed once and
//! trusted afterwards. A [`Secret`] cannot be displayed: neither `Debug` nor errors nor `vivavoce print-config` show it,
//! and credentials inside URLs are masked.
//!
//! # Mistakes
//!
//! All problems are reported together, each with the variable, or the file and line, and what would be accepted. Unknown
//! keys are mistakes as well, with a suggestion. Whether valid settings contradict each other is checked by the crates
//! that use them (`problems(&Settings)`).
//!
//! `docs/configuration.md` is generated from the declarations; a settings file may have at most 1 MiB and plain nesting,
//! and its parser has a fuzz target.
//!
//! # Example
//!
//! ```
//! use std::collections::HashMap;
//! use vivavoce_config::Config;
//!
//! let flags = [("limits.sessions".to_owned(), "50".to_owned())];
//! let environment = HashMap::from([
//!     ("LIMITS_SESSIONS".to_owned(), "20".to_owned()),
//!     ("AUTH_API_SECRET".to_owned(), "correct-horse-battery-staple".to_owned()),
//! ]);
//! let config = Config::from_sources(&flags, &environment, None).unwrap();
//! // Flags take precedence over the environment, and secrets are not printed.
//! assert_eq!(config.settings.limits.sessions, 50);
//! assert!(!format!("{:?}", config.settings.auth).contains("correct"));
//!
//! let typo = [("limits.sesions".to_owned(), "50".to_owned())];
//! let error = Config::from_sources(&typo, &HashMap::new(), None).unwrap_err();
//! assert!(error.to_string().contains("did you mean limits.sessions?"));
//! ```

pub mod document;
mod endpoint;
pub mod pip;
mod settings;
pub mod value;
mod yaml;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

pub use endpoint::{Endpoint, EndpointError};
pub use settings::{
    Auth, Cache, Limits, Log, Models, Providers, Recording, Redis, Rtc, Server, Setting, Settings,
    Shutdown, Sip, Storage, TABLE,
};
use settings::{Check, Reader};
use value::SettingValue;
pub use value::{
    AcceptReplaces, ByteSize, HttpUrl, JsonText, List, LogFormat, LogLevel, MediaEncryption,
    Networks, OptionalPort, Percent, PortRange, QueueTimeout, RecordingBackend, RecordingLayout,
    ReferScheme, RoomMode, RtcMode, Secret, SipTransport, SocketAuth, TransferWithoutAgent,
    VendorUrl,
};

/// Parses a settings file, for the fuzz target `settings_file`.
#[doc(hidden)]
pub fn fuzz_yaml(text: &str) {
    let _read = yaml::parse(Path::new("fuzzed.yaml"), text);
}

/// The settings file that is read if none is given and it exists in the current folder.
pub const DEFAULT_FILE: &str = "vivavoce.yaml";

/// The source of a value, in descending order of precedence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// An environment variable.
    Environment(&'static str),
    /// A line of the settings file.
    File(PathBuf, usize),
    /// The default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("command line"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::File(file, line) => write!(f, "{}:{line}", file.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A setting's text and its source. `Debug` never shows the text of a secret.
#[derive(Clone)]
pub struct Resolved {
    /// The declaration.
    pub setting: &'static Setting,
    /// The source of the value.
    pub origin: Origin,
    text: String,
}

impl Resolved {
    /// The value for display; secrets are masked, and so are credentials in URLs.
    pub fn shown(&self) -> Cow<'_, str> {
        if self.setting.secret && !self.text.is_empty() {
            "***".into()
        } else {
            masked(&self.text)
        }
    }
}

/// Masks possible credentials in URLs: everything before an `@`, even if the text is not a valid URL, the values of the
/// query, and the fragment.
pub fn masked(text: &str) -> Cow<'_, str> {
    let begins = |rest: &str| {
        let scheme = rest
            .trim_start()
            .split_once("://")
            .map(|(scheme, _)| scheme);
        scheme.is_some_and(|scheme| {
            !scheme.is_empty()
                && scheme
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        })
    };
    let may_hide = text.contains(['@', '?']) || (text.contains('#') && text.contains("://"));
    if !may_hide {
        return text.into();
    }
    // A comma ends a URL only if another URL follows.
    let commas = text.match_indices(',').map(|(at, _)| at);
    let ends = commas.filter(|at| begins(&text[at + 1..]));
    let mut masked = String::new();
    let mut start = 0;
    for end in ends.chain([text.len()]) {
        if start > 0 {
            masked.push(',');
        }
        mask_address(&text[start..end], &mut masked);
        start = end + 1;
    }
    masked.into()
}

fn mask_address(address: &str, masked: &mut String) {
    // Everything before the last `@` may be user information: an `@` in the query masks too much, never too little.
    let rest = match address.rsplit_once('@') {
        Some((user, rest)) => {
            let scheme = user.find("://").map_or(0, |at| at + "://".len());
            masked.push_str(&user[..scheme]);
            masked.push_str("***@");
            rest
        }
        None => address,
    };
    let (rest, fragment) = match rest.split_once('#') {
        Some((rest, _)) if address.contains("://") => (rest, "#***"),
        _ => (rest, ""),
    };
    let (path, query) = match rest.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (rest, None),
    };
    masked.push_str(path);
    for (index, field) in query.iter().flat_map(|query| query.split('&')).enumerate() {
        masked.push(if index == 0 { '?' } else { '&' });
        if let Some((name, _)) = field.split_once('=') {
            masked.push_str(name);
            masked.push('=');
        }
        masked.push_str("***");
    }
    masked.push_str(fragment);
}

impl fmt::Debug for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} = {} ({})",
            self.setting.key,
            self.shown(),
            self.origin
        )
    }
}

/// What is read again on SIGHUP: a key, or the beginning of keys where it ends in a dot. Anything else waits for a restart.
pub const RELOADED: [&str; 22] = [
    "agent.",
    "auth.api_secret",
    "auth.api_secrets_json",
    "auth.read_secret",
    "carriers.",
    "limits.recognisers",
    "limits.recordings",
    "limits.requests_per_second",
    "limits.sessions",
    "limits.sessions_per_tenant",
    "limits.syntheses",
    "llm.",
    "providers.",
    "sip.allow_insecure_hooks",
    "sip.allow_private_hooks",
    "sip.claim_unowned_hosts",
    "sip.hook_secret",
    "sip.hooks_json",
    "sip.max_calls",
    "sip.tenant_hosts",
    "webhooks.secret",
    "webhooks.url",
];

/// A setting that has another value in other settings.
#[derive(Debug)]
pub struct Change<'a> {
    /// As it was.
    pub before: &'a Resolved,
    /// As it is.
    pub after: &'a Resolved,
}

impl Change<'_> {
    /// Whether it takes effect without a restart.
    pub fn is_reloaded(&self) -> bool {
        self.after.setting.is_reloaded()
    }
}

impl Setting {
    /// Whether SIGHUP has it read again.
    pub fn is_reloaded(&self) -> bool {
        RELOADED.iter().any(|known| match known.strip_suffix('.') {
            Some(_) => self.key.starts_with(known),
            None => self.key == *known,
        })
    }
}

/// All problems with the settings.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigError(pub Vec<String>);

/// The settings and their sources.
#[derive(Debug, Clone)]
pub struct Config {
    /// The values.
    pub settings: Settings,
    /// Each setting with its source, in the order of the documentation.
    pub resolved: Vec<Resolved>,
}

impl Config {
    /// What is different in other settings.
    pub fn changes<'a>(&'a self, after: &'a Self) -> Vec<Change<'a>> {
        let both = self.resolved.iter().zip(&after.resolved);
        let changed = both.filter(|(before, after)| before.text != after.text);
        changed
            .map(|(before, after)| Change { before, after })
            .collect()
    }

    /// Reads the settings of this process. `flags` are keys with values; `file` is the settings file given on the
    /// command line, otherwise [`DEFAULT_FILE`] in the current folder is used if it exists.
    pub fn load(flags: &[(String, String)], file: Option<&Path>) -> Result<Self, ConfigError> {
        // A value that is not Unicode is not valid for any setting; its lossy conversion fails validation under the
        // right name.
        let environment = std::env::vars_os()
            .map(|(name, text)| {
                (
                    name.to_string_lossy().into_owned(),
                    text.to_string_lossy().into_owned(),
                )
            })
            .collect();
        let file = match file {
            Some(file) => Some(file.to_owned()),
            None => Some(PathBuf::from(DEFAULT_FILE)).filter(|file| file.exists()),
        };
        Self::from_sources(flags, &environment, file.as_deref())
    }

    /// Reads settings from these sources instead of those of the process.
    pub fn from_sources(
        flags: &[(String, String)],
        environment: &HashMap<String, String>,
        file: Option<&Path>,
    ) -> Result<Self, ConfigError> {
        let mut layers = Layers::default();
        if let Some(file) = file {
            match yaml::read(file) {
                Ok(values) => {
                    for value in values {
                        layers.take(
                            &value.key,
                            value.text,
                            Origin::File(file.to_owned(), value.line),
                        );
                    }
                }
                Err(error) => layers.problems.push(error.to_string()),
            }
        }
        for setting in TABLE {
            if let Some(text) = environment.get(setting.env) {
                layers.take(setting.key, text.clone(), Origin::Environment(setting.env));
            }
        }
        for (key, text) in flags {
            layers.take(key, text.clone(), Origin::Flag);
        }
        let settings = Settings::build(&mut layers);
        match settings {
            Some(settings) if layers.problems.is_empty() => Ok(Self {
                settings,
                resolved: layers.resolved,
            }),
            _ => Err(ConfigError(layers.problems)),
        }
    }
}

/// The text of the highest precedence for each key, and the problems so far.
#[derive(Default)]
struct Layers {
    texts: HashMap<&'static str, (String, Origin)>,
    resolved: Vec<Resolved>,
    problems: Vec<String>,
}

impl Layers {
    /// Sets a text from a source; sources come in ascending order of precedence. An empty text counts as absent.
    fn take(&mut self, key: &str, text: String, origin: Origin) {
        match TABLE.iter().find(|setting| setting.key == key) {
            Some(_) if text.is_empty() => {}
            Some(setting) => {
                self.texts.insert(setting.key, (text, origin));
            }
            None => {
                let near = TABLE
                    .iter()
                    .map(|setting| (strsim::jaro_winkler(key, setting.key), setting.key))
                    .max_by(|a, b| a.0.total_cmp(&b.0));
                let hint = match near {
                    Some((likeness, near)) if likeness > 0.85 => format!("; did you mean {near}?"),
                    _ => String::new(),
                };
                self.problems
                    .push(format!("{origin}: unknown setting {key}{hint}"));
            }
        }
    }
}

impl Reader for Layers {
    fn read<T: SettingValue>(&mut self, setting: &'static Setting, check: Check<T>) -> Option<T> {
        let (text, origin) = self
            .texts
            .remove(setting.key)
            .unwrap_or_else(|| (setting.default.to_owned(), Origin::Default));
        self.resolved.push(Resolved {
            setting,
            origin: origin.clone(),
            text: text.clone(),
        });
        if text.is_empty()
            && let Some(value) = T::absent()
        {
            return Some(value);
        }
        let shown = if setting.secret {
            String::new()
        } else {
            format!(", not {:?}", masked(&text))
        };
        let Some(value) = T::parse(&text) else {
            self.problems.push(format!(
                "{origin}: {} must be {}{shown}",
                setting.key, setting.shape
            ));
            return None;
        };
        match check(&value) {
            Ok(()) => Some(value),
            Err(rule) => {
                self.problems
                    .push(format!("{origin}: {} must {rule}{shown}", setting.key));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect()
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn every_default_is_valid() {
        let config = Config::from_sources(&[], &HashMap::new(), None).unwrap();
        assert_eq!(config.settings.server.port, 3001);
        assert_eq!(config.resolved.len(), TABLE.len());
    }

    #[test]
    fn flags_beat_the_environment_which_beats_the_file() {
        let file = file("server:\n  port: 1\n  host: 127.0.0.2\ncache:\n  enabled: false\n");
        let environment = environment(&[("PORT", "2"), ("HOST", "127.0.0.3")]);
        let flags = [("server.port".to_owned(), "3".to_owned())];
        let config = Config::from_sources(&flags, &environment, Some(file.path())).unwrap();
        assert_eq!(config.settings.server.port, 3);
        assert_eq!(config.settings.server.host.to_string(), "127.0.0.3");
        assert!(!config.settings.cache.enabled);
        let origin = |key| {
            config
                .resolved
                .iter()
                .find(|r| r.setting.key == key)
                .unwrap()
                .origin
                .to_string()
        };
        assert_eq!(origin("server.port"), "command line");
        assert_eq!(origin("server.host"), "environment HOST");
        assert!(origin("cache.enabled").ends_with(":5"));
        assert_eq!(origin("cache.path"), "default");
    }

    #[test]
    fn every_mistake_is_reported_with_its_place() {
        let file = file("server:\n  prot: 80\ncache:\n  enabled: ture\n");
        let environment = environment(&[("SHUTDOWN_DRAIN_SECONDS", "soon")]);
        let flags = [("limits.syntheses_per_provider".to_owned(), "0".to_owned())];
        let error = Config::from_sources(&flags, &environment, Some(file.path()))
            .unwrap_err()
            .to_string();
        let path = file.path().display();
        for expected in [
            format!("{path}:2: unknown setting server.prot; did you mean server.port?"),
            format!("{path}:4: cache.enabled must be true or false, not \"ture\""),
            "environment SHUTDOWN_DRAIN_SECONDS: shutdown.drain_seconds must be a number of seconds".to_owned(),
            "command line: limits.syntheses_per_provider must be at least 1, not \"0\"".to_owned(),
        ] {
            assert!(error.contains(&expected), "{expected:?} is missing in\n{error}");
        }
    }

    #[test]
    fn secrets_are_masked_everywhere() {
        let environment = environment(&[
            ("DEEPGRAM_API_KEY", "marker"),
            ("AUTH_API_SECRETS_JSON", "marker"),
        ]);
        let error = Config::from_sources(&[], &environment, None).unwrap_err();
        assert!(!format!("{error:?} {error}").contains("marker"));
        let environment = self::environment(&[("SIP_HOOK_SECRET", "a marker of 16 bytes or more")]);
        let config = Config::from_sources(&[], &environment, None).unwrap();
        assert!(!format!("{config:?}").contains("marker"));
    }

    #[test]
    fn who_one_is_in_an_address_is_masked_everywhere() {
        let endpoint = environment(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:marker@h:4318/p")]);
        let config = Config::from_sources(&[], &endpoint, None).unwrap();
        let shown = format!("{:?}", config.resolved);
        assert!(!shown.contains("marker") && shown.contains("http://***@h:4318/p"));
        for address in ["http://marker:p@h/", "http://marker@p@h/", "marker@h"] {
            let wrong = environment(&[("AUTH_SERVICE_URL", address)]);
            let error = Config::from_sources(&[], &wrong, None).unwrap_err();
            assert!(!error.to_string().contains("marker"), "{error}");
        }
    }

    #[test]
    fn what_an_address_brings_with_it_is_masked_everywhere() {
        for (text, shown) in [
            (
                "https://h/p?token=marker&b=marker",
                "https://h/p?token=***&b=***",
            ),
            ("https://h/?marker", "https://h/?***"),
            ("https://h/?a=marker,marker", "https://h/?a=***"),
            (
                "https://h/?a=1, http://u:marker@i/#marker",
                "https://h/?a=***, http://***@i/#***",
            ),
            ("https://h/?to=marker@x", "https://***@x"),
            ("h/?token=marker", "h/?token=***"),
            ("+49,*#", "+49,*#"),
            ("tcp://127.0.0.1:1", "tcp://127.0.0.1:1"),
        ] {
            assert_eq!(masked(text), shown.trim_start(), "{text}");
        }
        let address = "https://h/hook?token=marker";
        let several = format!("{address},{address}");
        let environment = environment(&[
            ("WEBHOOKS_URL", address),
            ("WEBHOOKS_SECRET", "a secret of sixteen bytes"),
            ("RTC_WEBHOOK_URLS", &several),
        ]);
        let config = Config::from_sources(&[], &environment, None).unwrap();
        let shown: Vec<_> = config.resolved.iter().map(Resolved::shown).collect();
        assert!(shown.contains(&"https://h/hook?token=***".into()));
        assert!(!format!("{shown:?} {config:?}").contains("marker"));
        let wrong = self::environment(&[("WEBHOOKS_URL", "htp://h/?token=marker")]);
        let error = Config::from_sources(&[], &wrong, None).unwrap_err();
        assert!(!error.to_string().contains("marker"), "{error}");
    }

    #[test]
    fn origins_are_those_that_a_browser_would_name() {
        let load = |origins| {
            let origins = environment(&[("SERVER_CORS_ORIGINS", origins)]);
            Config::from_sources(&[], &origins, None)
        };
        for good in [
            "https://a.example",
            "http://localhost:5173/, capacitor://localhost",
        ] {
            assert!(load(good).is_ok(), "{good}");
        }
        for bad in [
            "*",
            "null",
            "a.example",
            "https://a.example/path",
            "https://a.example:443",
            "https://u@a.example",
            "https://a.example?b",
        ] {
            let error = load(bad).unwrap_err().to_string();
            assert!(error.contains("server.cors_origins must"), "{error}");
        }
    }
}
