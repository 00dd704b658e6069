//! `tts_config` as it is on the wire (protocol, section 2), and its validated form with all defaults filled in. Used by
//! `/speak` and by the socket.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::alignment::SpokenText;
use super::pronunciation::{Pronunciation, Pronunciations};
use vivavoce_audio::format::{AudioFormat, Encoding, SampleRate};
use vivavoce_core::ssml::Ssml;
use vivavoce_seams::{OwnCredential, canonical_slug};

/// The maximum length of a request's text.
pub const MAX_TEXT_BYTES: usize = 32 * 1024;
/// The maximum length of the text after pronunciations have been applied.
const MAX_SPOKEN_BYTES: usize = 2 * MAX_TEXT_BYTES;
/// The maximum number of pronunciations, and the maximum lengths of words and replacements.
const MAX_PRONUNCIATIONS: usize = 1000;
const MAX_WORD_BYTES: usize = 200;
const MAX_PRONUNCIATION_BYTES: usize = 1000;
/// The maximum number of fallback providers.
const MAX_FALLBACKS: usize = 3;
/// The valid speaking rates.
const SPEAKING_RATES: std::ops::RangeInclusive<f64> = 0.25..=4.0;
/// The valid timeouts, in seconds.
const TIMEOUT_SECONDS: std::ops::RangeInclusive<u64> = 1..=600;

/// Configuration of speech synthesis. `null` means absent; unknown fields are ignored.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct TtsConfig {
    /// The provider's slug, for example `local`.
    #[schemars(required, length(min = 1))]
    provider: Option<String>,
    /// The provider's model; absent or empty means its default.
    model: Option<String>,
    /// A voice from `GET /voices`; default: the provider's default voice.
    voice_id: Option<String>,
    /// The encoding of the audio sent. `opus`, one packet per message, is only available on the socket.
    #[schemars(extend(
        "enum" = ["linear16", "wav", "mulaw", "alaw", "mp3", "ogg_opus", "opus", "", null],
        "default" = "linear16"
    ))]
    audio_format: Option<String>,
    /// The sample rate in Hz; default: 24000, or 8000 for `mulaw` and `alaw`. Which rates are valid depends on the
    /// encoding.
    #[schemars(range(min = 8000, max = 48000))]
    sample_rate: Option<u64>,
    /// The speaking rate; the pitch does not change.
    #[schemars(range(min = 0.25, max = 4.0), extend("default" = 1.0))]
    speaking_rate: Option<f64>,
    /// The caller's own credential for the provider; absent or empty means the server's.
    auth: Option<OwnCredential>,
    /// Timeout for connecting to the provider, in seconds.
    #[schemars(range(min = 1, max = 600), extend("default" = 10))]
    connection_timeout: Option<u64>,
    /// Timeout for the whole synthesis, in seconds.
    #[schemars(range(min = 1, max = 600), extend("default" = 60))]
    request_timeout: Option<u64>,
    /// Whether a session reports each word when its playback begins (`tts_progress`).
    #[schemars(extend("default" = false))]
    progress: Option<bool>,
    /// Pronunciation overrides.
    #[schemars(length(max = 1000))]
    pronunciations: Option<Vec<Pronunciation>>,
    /// Providers to use when this one fails, in this order. They use the `audio_format` and `sample_rate` given here,
    /// and have no fallbacks of their own.
    #[schemars(length(max = 3))]
    fallback: Option<Vec<TtsConfig>>,
}

/// What the text of a request is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TextType {
    /// What is said, as it is written.
    #[default]
    Plain,
    /// A document of SSML.
    Ssml,
}

/// A field with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidField {
    /// The field's path, with dots.
    pub field: &'static str,
    /// The problem.
    pub problem: String,
}

fn too_long_spoken() -> InvalidField {
    let problem =
        format!("with its pronunciations the text is longer than {MAX_SPOKEN_BYTES} bytes");
    invalid("tts_config.pronunciations", problem)
}

fn invalid(field: &'static str, problem: impl Into<String>) -> InvalidField {
    InvalidField {
        field,
        problem: problem.into(),
    }
}

/// A validated `tts_config`.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechConfig {
    /// The provider's slug, with aliases resolved. The provider may not exist.
    pub provider: String,
    /// The provider's model; empty means its default.
    pub model: String,
    /// The provider's voice; `None` means its default.
    pub voice_id: Option<String>,
    /// The format of the audio sent.
    pub format: AudioFormat,
    /// From 0.25 to 4.0.
    pub speaking_rate: f64,
    /// The caller's own credential; empty means the server's.
    pub auth: OwnCredential,
    /// Timeout for connecting.
    pub connection_timeout: Duration,
    /// Timeout for the whole synthesis.
    pub request_timeout: Duration,
    /// Whether a session reports each word.
    pub progress: bool,
    /// Applied to every text. Prepared when the config is validated, and shared by all that speak with it.
    pub pronunciations: Arc<Pronunciations>,
    /// Providers to use when this one fails, in this order.
    pub fallback: Vec<SpeechConfig>,
}

impl TtsConfig {
    /// The default model and voice of a provider, as samples of this rate.
    pub fn of(provider: &str, rate: SampleRate) -> Self {
        Self {
            provider: Some(provider.to_owned()),
            model: Some(String::new()),
            sample_rate: Some(rate.hz().into()),
            ..Self::default()
        }
    }

    /// Validates every field and fills in the defaults.
    pub fn check(self) -> Result<SpeechConfig, InvalidField> {
        let provider = match self.provider.as_deref() {
            None => return Err(invalid("tts_config.provider", "is required")),
            Some("") => return Err(invalid("tts_config.provider", "must not be empty")),
            Some(name) => canonical_slug(name).to_owned(),
        };
        let encoding = match self.audio_format.as_deref() {
            None | Some("") => Encoding::Linear16,
            Some(name) => name
                .parse()
                .map_err(|error| invalid("tts_config.audio_format", format!("{error}")))?,
        };
        let rate = encoding
            .output_rate(self.sample_rate)
            .map_err(|error| invalid("tts_config.sample_rate", error.to_string()))?;
        let speaking_rate = self.speaking_rate.unwrap_or(1.0);
        if !SPEAKING_RATES.contains(&speaking_rate) {
            return Err(invalid(
                "tts_config.speaking_rate",
                "must be from 0.25 to 4.0",
            ));
        }
        Ok(SpeechConfig {
            provider,
            model: self.model.unwrap_or_default(),
            voice_id: self.voice_id.filter(|voice| !voice.is_empty()),
            format: AudioFormat::mono(encoding, rate),
            speaking_rate,
            auth: self.auth.unwrap_or_default(),
            connection_timeout: timeout(
                "tts_config.connection_timeout",
                self.connection_timeout,
                10,
            )?,
            request_timeout: timeout("tts_config.request_timeout", self.request_timeout, 60)?,
            progress: self.progress.unwrap_or(false),
            pronunciations: check_pronunciations(&self.pronunciations.unwrap_or_default())?,
            fallback: check_fallback(self.fallback.unwrap_or_default())?,
        })
    }
}

impl TtsConfig {
    /// Validates an update: absent fields keep their values, but model, voice and credential belong to the provider and
    /// are reset when it changes. The output format cannot change.
    pub fn check_over(mut self, known: &SpeechConfig) -> Result<SpeechConfig, InvalidField> {
        let fixed = "cannot change while the session runs: send config";
        let format = known.format;
        self.audio_format
            .get_or_insert_with(|| format.encoding.name().to_owned());
        self.sample_rate
            .get_or_insert(format.layout.rate.hz().into());
        self.provider.get_or_insert_with(|| known.provider.clone());
        self.speaking_rate.get_or_insert(known.speaking_rate);
        self.progress.get_or_insert(known.progress);
        self.connection_timeout
            .get_or_insert(known.connection_timeout.as_secs());
        self.request_timeout
            .get_or_insert(known.request_timeout.as_secs());
        let (model, voice) = (self.model.is_none(), self.voice_id.is_none());
        let (auth, fallback) = (self.auth.is_none(), self.fallback.is_none());
        let pronunciations = self.pronunciations.is_none();
        self.model.get_or_insert_default();
        let mut checked = self.check()?;
        if checked.format.encoding != format.encoding {
            return Err(invalid("tts_config.audio_format", fixed));
        }
        if checked.format != format {
            return Err(invalid("tts_config.sample_rate", fixed));
        }
        if checked.provider == known.provider {
            if model {
                checked.model.clone_from(&known.model);
            }
            if voice {
                checked.voice_id.clone_from(&known.voice_id);
            }
            if auth {
                checked.auth = known.auth.clone();
            }
        }
        if pronunciations {
            checked.pronunciations = Arc::clone(&known.pronunciations);
        }
        if fallback {
            checked.fallback.clone_from(&known.fallback);
        }
        Ok(checked)
    }
}

/// The error's field is the list; the index is part of the problem.
fn check_fallback(wanted: Vec<TtsConfig>) -> Result<Vec<SpeechConfig>, InvalidField> {
    const FIELD: &str = "tts_config.fallback";
    if wanted.len() > MAX_FALLBACKS {
        return Err(invalid(FIELD, format!("must be at most {MAX_FALLBACKS}")));
    }
    let check = |(index, fallback): (usize, TtsConfig)| {
        if fallback
            .fallback
            .as_ref()
            .is_some_and(|list| !list.is_empty())
        {
            return Err(invalid(
                FIELD,
                format!("[{index}].fallback must not be given there"),
            ));
        }
        fallback.check().map_err(|InvalidField { field, problem }| {
            let field = field.strip_prefix("tts_config").unwrap_or(field);
            invalid(FIELD, format!("[{index}]{field} {problem}"))
        })
    };
    wanted.into_iter().enumerate().map(check).collect()
}

fn timeout(
    field: &'static str,
    seconds: Option<u64>,
    default: u64,
) -> Result<Duration, InvalidField> {
    let seconds = seconds.unwrap_or(default);
    if !TIMEOUT_SECONDS.contains(&seconds) {
        return Err(invalid(field, "must be from 1 to 600 seconds"));
    }
    Ok(Duration::from_secs(seconds))
}

fn check_pronunciations(entries: &[Pronunciation]) -> Result<Arc<Pronunciations>, InvalidField> {
    const FIELD: &str = "tts_config.pronunciations";
    if entries.len() > MAX_PRONUNCIATIONS {
        return Err(invalid(
            FIELD,
            format!("must be at most {MAX_PRONUNCIATIONS}"),
        ));
    }
    for (index, entry) in entries.iter().enumerate() {
        let problem = if entry.word.trim().is_empty() {
            "word must not be empty".to_owned()
        } else if entry.word.len() > MAX_WORD_BYTES {
            format!("word must be at most {MAX_WORD_BYTES} bytes")
        } else if entry.pronunciation.len() > MAX_PRONUNCIATION_BYTES {
            format!("pronunciation must be at most {MAX_PRONUNCIATION_BYTES} bytes")
        } else {
            continue;
        };
        return Err(invalid(FIELD, format!("[{index}].{problem}")));
    }
    Ok(Arc::new(Pronunciations::new(entries)))
}

impl SpeechConfig {
    /// The configs to try in order: this one, then each fallback in the same format.
    pub fn choices(&self) -> Vec<Self> {
        let alone = |config: &Self| Self {
            format: self.format,
            fallback: Vec::new(),
            ..config.clone()
        };
        std::iter::once(self)
            .chain(&self.fallback)
            .map(alone)
            .collect()
    }

    /// The text with the pronunciations applied.
    pub fn spoken(&self, text: &str) -> Result<SpokenText, InvalidField> {
        self.pronunciations
            .apply(text, MAX_SPOKEN_BYTES)
            .ok_or_else(too_long_spoken)
    }

    /// The document with the pronunciations applied to its texts, and its text as it is said.
    pub fn spoken_ssml(&self, document: &Ssml) -> Result<(Ssml, SpokenText), InvalidField> {
        let mut spoken = SpokenText::default();
        let replaced = document.replaced(|text, at, verbatim| {
            let said = if verbatim {
                let mut said = SpokenText::default();
                said.keep(text);
                said
            } else {
                self.pronunciations.apply(text, MAX_SPOKEN_BYTES)?
            };
            let text = said.text.clone();
            spoken.append(said, at);
            (spoken.text.len() <= MAX_SPOKEN_BYTES).then_some(text)
        });
        let replaced = replaced.ok_or_else(too_long_spoken)?;
        Ok((replaced, spoken))
    }

    /// The cache key of the audio of `text` under this config: covers every field that affects the audio, the endpoint,
    /// the credential and the tenant. Requests with the same key get the same bytes.
    pub fn cache_key(&self, text: &str, owner: &Owner<'_>) -> CacheKey {
        let mut fields = Vec::with_capacity(512 + text.len());
        let mut field = |bytes: &[u8]| {
            // Length-prefixed, so that different lists of fields never give the same bytes.
            fields.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            fields.extend_from_slice(bytes);
        };
        field(b"vivavoce speech 1");
        field(self.provider.as_bytes());
        field(self.model.as_bytes());
        field(&[u8::from(self.voice_id.is_some())]);
        field(self.voice_id.as_deref().unwrap_or_default().as_bytes());
        field(self.format.encoding.name().as_bytes());
        field(&self.format.layout.rate.hz().to_le_bytes());
        field(&self.speaking_rate.to_le_bytes());
        match self.pronunciations.digest() {
            Some(digest) => field(digest),
            None => field(&0_u64.to_le_bytes()),
        }
        field(owner.endpoint.as_bytes());
        field(&owner.credential);
        field(&[u8::from(owner.tenant.is_some())]);
        field(owner.tenant.unwrap_or_default().as_bytes());
        field(text.as_bytes());
        CacheKey(Sha256::digest(&fields).into())
    }
}

impl CacheKey {
    /// Of a text that is a document of SSML.
    #[must_use]
    pub(super) fn of_ssml(self) -> Self {
        Self(Sha256::digest([&self.0[..], b"ssml"].concat()).into())
    }
}

/// What the cache key depends on besides the request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Owner<'a> {
    /// The provider's endpoint, if it is configurable.
    pub endpoint: &'a str,
    /// A fingerprint of the credential.
    pub credential: [u8; 32],
    /// The tenant.
    pub tenant: Option<&'a str>,
}

/// The key of a cache entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheKey(pub(super) [u8; 32]);

impl CacheKey {
    /// In lower-case hexadecimal.
    pub fn hex(&self) -> String {
        use std::fmt::Write;
        self.0
            .iter()
            .fold(String::with_capacity(64), |mut text, byte| {
                // Writing to a String cannot fail.
                let _ = write!(text, "{byte:02x}");
                text
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::collections::HashSet;

    #[test]
    fn a_callers_credential_is_not_shown() {
        let config = json!({"provider": "azure", "auth": {"api_key": "marker"}});
        let wire: TtsConfig = serde_json::from_value(config).unwrap();
        let shown = format!("{wire:?} {:?}", wire.clone().check());
        assert!(!shown.contains("marker"), "{shown}");
    }

    fn checked(config: Value) -> Result<SpeechConfig, InvalidField> {
        serde_json::from_value::<TtsConfig>(config).unwrap().check()
    }

    #[test]
    fn an_update_keeps_every_field_that_it_does_not_give() {
        let known = checked(json!({
            "provider": "azure", "model": "m", "voice_id": "v", "audio_format": "mp3", "sample_rate": 16_000,
            "speaking_rate": 1.5, "auth": {"api_key": "k"}, "connection_timeout": 3, "request_timeout": 7,
            "progress": true, "pronunciations": [{"word": "a", "pronunciation": "b"}],
            "fallback": [{"provider": "local", "model": ""}],
        }))
        .unwrap();
        let plain = checked(json!({"provider": "local", "model": ""})).unwrap();
        // Whoever adds a field adds it here.
        let SpeechConfig {
            provider,
            model,
            voice_id,
            format,
            speaking_rate,
            auth,
            connection_timeout,
            request_timeout,
            progress,
            pronunciations,
            fallback,
        } = &known;
        assert!(
            *provider != plain.provider && *model != plain.model && *voice_id != plain.voice_id
        );
        assert!(*format != plain.format && *auth != plain.auth && *fallback != plain.fallback);
        assert!((speaking_rate - plain.speaking_rate).abs() > 0.1 && *progress != plain.progress);
        assert!(*connection_timeout != plain.connection_timeout);
        assert!(*request_timeout != plain.request_timeout);
        assert!(*pronunciations != plain.pronunciations);
        let nothing: TtsConfig = serde_json::from_value(json!({})).unwrap();
        assert_eq!(nothing.check_over(&known).unwrap(), known);
    }

    #[test]
    fn null_means_absent_everywhere() {
        let config = checked(json!({
            "provider": "local", "model": "", "voice_id": null, "audio_format": null, "sample_rate": null,
            "speaking_rate": null, "auth": null, "connection_timeout": null, "request_timeout": null,
            "pronunciations": null,
        }))
        .unwrap();
        assert_eq!(config.format.to_string(), "linear16, 24000 Hz, mono");
        assert_eq!(config.connection_timeout, Duration::from_secs(10));
        assert_eq!(config.request_timeout, Duration::from_mins(1));
    }

    #[test]
    fn a_field_that_cannot_be_is_named() {
        for (config, field) in [
            (json!({"model": ""}), "tts_config.provider"),
            (json!({"provider": "", "model": ""}), "tts_config.provider"),
            (
                json!({"provider": "local", "model": "", "audio_format": "aiff"}),
                "tts_config.audio_format",
            ),
            (
                json!({"provider": "local", "model": "", "sample_rate": 0}),
                "tts_config.sample_rate",
            ),
            (
                json!({"provider": "local", "model": "", "sample_rate": 4_000_000_000u64}),
                "tts_config.sample_rate",
            ),
            (
                json!({"provider": "local", "model": "", "audio_format": "mp3", "sample_rate": 8000}),
                "tts_config.sample_rate",
            ),
            (
                json!({"provider": "local", "model": "", "speaking_rate": 0.2}),
                "tts_config.speaking_rate",
            ),
            (
                json!({"provider": "local", "model": "", "request_timeout": 0}),
                "tts_config.request_timeout",
            ),
            (
                json!({"provider": "local", "model": "", "pronunciations": [{"word": " ", "pronunciation": "x"}]}),
                "tts_config.pronunciations",
            ),
        ] {
            assert_eq!(
                checked(config.clone()).unwrap_err().field,
                field,
                "{config}"
            );
        }
    }

    #[test]
    fn everything_that_shapes_the_sound_is_in_the_key() {
        let base = json!({"provider": "local", "model": ""});
        let variations = [
            json!({}),
            json!({"provider": "azure"}),
            json!({"model": "m"}),
            json!({"voice_id": "v"}),
            json!({"audio_format": "wav"}),
            json!({"sample_rate": 16000}),
            json!({"speaking_rate": 1.1}),
            json!({"pronunciations": [{"word": "a", "pronunciation": "b"}]}),
            json!({"pronunciations": [{"word": "ab", "pronunciation": ""}]}),
        ];
        let mut keys = HashSet::new();
        for variation in &variations {
            let mut config = base.clone();
            config
                .as_object_mut()
                .unwrap()
                .extend(variation.as_object().unwrap().clone());
            keys.insert(
                checked(config)
                    .unwrap()
                    .cache_key("text", &Owner::default()),
            );
        }
        let config = checked(base).unwrap();
        let owners = [
            Owner {
                endpoint: "https://e",
                ..Owner::default()
            },
            Owner {
                credential: [1; 32],
                ..Owner::default()
            },
            Owner {
                tenant: Some(""),
                ..Owner::default()
            },
            Owner {
                tenant: Some("t"),
                ..Owner::default()
            },
        ];
        keys.extend(owners.iter().map(|owner| config.cache_key("text", owner)));
        keys.insert(config.cache_key("text ", &Owner::default()));
        assert_eq!(keys.len(), variations.len() + owners.len() + 1);
    }

    #[test]
    fn pronunciations_are_prepared_once_per_config() {
        let entry = json!([{"word": "SQL", "pronunciation": "sequel"}]);
        let fallback = json!([{"provider": "azure", "model": "", "pronunciations": entry}]);
        let config = checked(json!({
            "provider": "local", "model": "", "pronunciations": entry, "fallback": fallback,
        }));
        let config = config.unwrap();
        let update = |update| serde_json::from_value::<TtsConfig>(update).unwrap();
        let updated = update(json!({"speaking_rate": 2.0}))
            .check_over(&config)
            .unwrap();
        assert!(Arc::ptr_eq(&updated.pronunciations, &config.pronunciations));
        // Whatever is tried for a text, and however often.
        for choices in [config.choices(), updated.choices()] {
            assert!(Arc::ptr_eq(
                &choices[0].pronunciations,
                &config.pronunciations
            ));
            let fallback = &config.fallback[0].pronunciations;
            assert!(Arc::ptr_eq(&choices[1].pronunciations, fallback));
        }
        let updated = update(json!({"pronunciations": []}))
            .check_over(&config)
            .unwrap();
        assert_eq!(updated.spoken("SQL").unwrap().text, "SQL");
    }

    #[test]
    fn timeouts_do_not_shape_the_sound() {
        let one = checked(json!({"provider": "local", "model": "", "request_timeout": 5})).unwrap();
        let other =
            checked(json!({"provider": "local", "model": "", "speaking_rate": 1.0})).unwrap();
        assert_eq!(
            one.cache_key("t", &Owner::default()),
            other.cache_key("t", &Owner::default())
        );
    }
}
