//! The settings: declared once in [`settings`], read here from flags, environment, file and defaults, in that order
//! of precedence. This is the only place that reads the environment. Every mistake is reported, with the file and
//! line or the variable where it stands, and none is ever shown with a secret's value.

pub mod document;
mod endpoint;
mod settings;
pub mod value;
mod yaml;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

pub use endpoint::{Endpoint, EndpointError};
pub use settings::{
    Auth, Cache, Limits, Log, Providers, Recording, Redis, Rtc, Server, Setting, Settings,
    Shutdown, Sip, Storage, TABLE,
};
use settings::{Check, Reader};
use value::SettingValue;
pub use value::{
    ByteSize, HttpUrl, JsonText, List, LogFormat, LogLevel, MediaEncryption, Networks, Percent,
    PortRange, RecordingBackend, RecordingLayout, RoomMode, RtcMode, Secret, SipTransport,
    SocketAuth, VendorUrl,
};

/// Reads a text as a settings file, for `fuzzing`.
#[doc(hidden)]
pub fn fuzz_yaml(text: &str) {
    let _read = yaml::parse(Path::new("fuzzed.yaml"), text);
}

/// The file that is read from the current folder when no other is named.
pub const DEFAULT_FILE: &str = "vivavoce.yaml";

/// Where a value comes from, strongest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// An environment variable.
    Environment(&'static str),
    /// A line of the settings file.
    File(PathBuf, usize),
    /// Nobody set it.
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

/// A setting with its text and where that comes from. The text of a secret is never shown by `Debug`.
#[derive(Clone)]
pub struct Resolved {
    /// The declaration.
    pub setting: &'static Setting,
    /// Where the value comes from.
    pub origin: Origin,
    text: String,
}

impl Resolved {
    /// The value for people; a secret is masked, and so is what may be one in an address.
    pub fn shown(&self) -> Cow<'_, str> {
        if self.setting.secret && !self.text.is_empty() {
            "***".into()
        } else {
            masked(&self.text)
        }
    }
}

/// A text without what may be a credential in the addresses of it: what stands before an `@`, also where the address is
/// not one, the values of a query, and what stands behind a `#`.
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
    // A comma ends an address only where another one begins.
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
    // Whatever is before the last one may be who one is: an `@` in a query masks too much, never too little.
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

/// Everything that is wrong with the settings.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigError(pub Vec<String>);

/// The settings and how they came about.
#[derive(Debug, Clone)]
pub struct Config {
    /// The values.
    pub settings: Settings,
    /// Each with its origin, in the order of the documents.
    pub resolved: Vec<Resolved>,
}

impl Config {
    /// Reads the settings of this process: `flags` are keys with their values, `file` is the settings file that was
    /// asked for ([`DEFAULT_FILE`] of the current folder otherwise, where it exists).
    pub fn load(flags: &[(String, String)], file: Option<&Path>) -> Result<Self, ConfigError> {
        // A variable that is not Unicode cannot be a valid value; the lossy text fails its own check by name.
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

/// The strongest text for each key, and what is wrong so far.
#[derive(Default)]
struct Layers {
    texts: HashMap<&'static str, (String, Origin)>,
    resolved: Vec<Resolved>,
    problems: Vec<String>,
}

impl Layers {
    /// Takes a text from a source; sources come weakest first. An empty text unsets nothing: it says nothing.
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
