//! Removes credentials from the errors of providers. Some vendors repeat the key that they refuse, and their messages reach
//! callers and logs. Every provider of the table is therefore wrapped here; the server's credentials and the caller's own
//! are masked in every encoding.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use futures_util::StreamExt;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::credential::{Credential, CredentialField};
use super::{
    Accepts, FinalDelay, Parameter, ProviderError, Speaks, SpeechToText, SttEvent, SttRequest,
    SttStream, TakesSsml, TextStream, TextToSpeech, TtsRequest, TtsStream, Voice,
};
use vivavoce_config::Secret;
use vivavoce_core::ssml::Ssml;

/// What stands in the place of a credential.
const MASK: &str = "***";
/// Shorter ones are no secrets, and their letters are everywhere.
const SHORTEST: usize = 4;
/// Of a credential of several parts, such as a private key in JSON, parts of this length are secrets of their own.
const SHORTEST_PART: usize = 16;
/// So much of the beginning of a credential at the end of a text that was cut off gives it away.
const SHORTEST_BEGINNING: usize = 6;
/// What comes behind these words is a credential, also one that is nobody's setting: a token that a vendor has given.
const SCHEMES: [&str; 3] = ["bearer", "basic", "token"];
/// A word behind one of them that is not so long is just a word.
const SHORTEST_TOKEN: usize = 12;

/// Takes credentials out of texts. Cheap to clone.
#[derive(Clone, Default)]
pub struct Veil {
    /// Every form of each, the longest first.
    needles: Arc<[String]>,
}

impl std::fmt::Debug for Veil {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Veil").finish_non_exhaustive()
    }
}

impl Veil {
    /// One over these.
    pub fn over<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        let mut needles: Vec<String> = secrets
            .into_iter()
            .flat_map(|secret| forms(secret.expose()))
            .collect();
        needles.sort_unstable_by_key(|needle| (std::cmp::Reverse(needle.len()), needle.clone()));
        needles.dedup();
        Self {
            needles: needles.into(),
        }
    }

    /// A text without them.
    pub fn cover(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for needle in &*self.needles {
            if text.contains(needle.as_str()) {
                text = text.replace(needle.as_str(), MASK);
            }
        }
        for needle in &*self.needles {
            let whole = text.trim_end_matches(['…', '.', '"', '\'']);
            let cut = (SHORTEST_BEGINNING..needle.len())
                .rev()
                .filter_map(|length| needle.get(..length))
                .find(|beginning| whole.ends_with(beginning));
            if let Some(beginning) = cut {
                let start = whole.len() - beginning.len();
                text.replace_range(start..start + beginning.len(), MASK);
            }
        }
        without_tokens(&text)
    }

    fn error(&self, mut error: ProviderError) -> ProviderError {
        error.message = self.cover(&error.message);
        error
    }
}

/// How a secret may be written: as it is, in an address, in Base64, in JSON, and its long parts.
fn forms(secret: &str) -> Vec<String> {
    if secret.len() < SHORTEST {
        return Vec::new();
    }
    let mut forms = vec![
        secret.to_owned(),
        utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string(),
        form_urlencoded::byte_serialize(secret.as_bytes()).collect(),
        STANDARD.encode(secret),
        STANDARD_NO_PAD.encode(secret),
        URL_SAFE.encode(secret),
        URL_SAFE_NO_PAD.encode(secret),
    ];
    let json = serde_json::to_string(secret).unwrap_or_default();
    forms.push(json.trim_matches('"').to_owned());
    // Lines of a key in JSON, as they stand there and as they are.
    let lines = secret.replace("\\n", "\n");
    let parts = lines.split(|c: char| c.is_whitespace() || matches!(c, '"' | '\\' | ',' | ':'));
    let parts = parts.filter(|part| part.len() >= SHORTEST_PART && !part.contains("//"));
    forms.extend(parts.filter(|part| *part != secret).map(str::to_owned));
    forms
}

/// A text without what follows the name of a way to authenticate, and without what looks like a JSON web token.
fn without_tokens(text: &str) -> String {
    let mut covered = String::with_capacity(text.len());
    let mut follows = false;
    for piece in text.split_inclusive(|c: char| c.is_whitespace()) {
        let word = piece.trim_end();
        let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let secret = bare.starts_with("eyJ") && bare.len() > 40
            || bare.starts_with("ya29.")
            || follows && bare.len() >= SHORTEST_TOKEN && bare.bytes().any(|b| b.is_ascii_digit());
        if secret {
            covered.push_str(&piece.replacen(bare, MASK, 1));
        } else {
            covered.push_str(piece);
        }
        follows = SCHEMES
            .iter()
            .any(|scheme| bare.eq_ignore_ascii_case(scheme));
    }
    covered
}

/// A provider behind the veil.
pub struct Veiled<P: ?Sized> {
    provider: Arc<P>,
    /// Over the server's own.
    servers: Veil,
}

impl<P: ?Sized> Veiled<P> {
    /// This one.
    pub const fn new(provider: Arc<P>, servers: Veil) -> Self {
        Self { provider, servers }
    }

    /// Over the caller's own as well.
    fn over(&self, callers: Option<&Credential>) -> Both {
        Both {
            servers: self.servers.clone(),
            callers: callers
                .map(|own| Veil::over(own.secrets()))
                .unwrap_or_default(),
        }
    }
}

/// Over the server's credentials and a caller's.
#[derive(Clone)]
struct Both {
    servers: Veil,
    callers: Veil,
}

impl Both {
    /// A synthesis without credentials in its errors.
    fn speech(self, begun: Result<TtsStream, ProviderError>) -> Result<TtsStream, ProviderError> {
        let TtsStream { format, events } = begun.map_err(|error| self.error(error))?;
        let events = events.map(move |event| event.map_err(|error| self.error(error)));
        Ok(TtsStream {
            format,
            events: events.boxed(),
        })
    }

    fn error(&self, error: ProviderError) -> ProviderError {
        self.servers.error(self.callers.error(error))
    }
}

#[async_trait]
impl SpeechToText for Veiled<dyn SpeechToText> {
    fn slug(&self) -> &'static str {
        self.provider.slug()
    }

    fn accepts(&self) -> Accepts {
        self.provider.accepts()
    }

    fn credential_fields(&self) -> &'static [CredentialField] {
        self.provider.credential_fields()
    }

    fn parameters(&self) -> &'static [Parameter] {
        self.provider.parameters()
    }

    fn ignored_because(&self, field: &str, model: &str, spoken: &[&str]) -> Option<String> {
        self.provider.ignored_because(field, model, spoken)
    }

    fn ends_at_pauses(&self) -> bool {
        self.provider.ends_at_pauses()
    }

    fn answers_within(&self) -> Option<Duration> {
        self.provider.answers_within()
    }

    fn translates(&self, model: &str) -> bool {
        self.provider.translates(model)
    }

    fn finds_language(&self, model: &str) -> bool {
        self.provider.finds_language(model)
    }

    fn final_delay(&self) -> FinalDelay {
        self.provider.final_delay()
    }

    async fn open(&self, request: SttRequest) -> Result<SttStream, ProviderError> {
        let veil = self.over(request.credential.as_ref());
        let opened = self.provider.open(request).await;
        let SttStream { sink, events } = opened.map_err(|error| veil.error(error))?;
        let events = events.map(move |event| match event {
            Ok(SttEvent::UtteranceLost(error)) => Ok(SttEvent::UtteranceLost(veil.error(error))),
            Ok(event) => Ok(event),
            Err(error) => Err(veil.error(error)),
        });
        Ok(SttStream {
            sink,
            events: events.boxed(),
        })
    }
}

#[async_trait]
impl TextToSpeech for Veiled<dyn TextToSpeech> {
    fn slug(&self) -> &'static str {
        self.provider.slug()
    }

    fn endpoint(&self) -> &str {
        self.provider.endpoint()
    }

    fn speaks(&self) -> Speaks {
        self.provider.speaks()
    }

    fn speaks_as(&self, voice_id: Option<&str>, model: &str) -> Speaks {
        self.provider.speaks_as(voice_id, model)
    }

    fn credential_fields(&self) -> &'static [CredentialField] {
        self.provider.credential_fields()
    }

    fn credential_fingerprint(&self) -> [u8; 32] {
        self.provider.credential_fingerprint()
    }

    fn takes_tags(&self) -> bool {
        self.provider.takes_tags()
    }

    fn takes_ssml(&self) -> Option<TakesSsml> {
        self.provider.takes_ssml()
    }

    fn parameters(&self) -> &'static [Parameter] {
        self.provider.parameters()
    }

    async fn synthesize_ssml(
        &self,
        request: TtsRequest,
        document: &Ssml,
    ) -> Result<TtsStream, ProviderError> {
        let veil = self.over(request.credential.as_ref());
        veil.speech(self.provider.synthesize_ssml(request, document).await)
    }

    async fn synthesize(
        &self,
        request: TtsRequest,
        text: TextStream,
    ) -> Result<TtsStream, ProviderError> {
        let veil = self.over(request.credential.as_ref());
        veil.speech(self.provider.synthesize(request, text).await)
    }

    async fn voices(&self) -> Result<Vec<Voice>, ProviderError> {
        let voices = self.provider.voices().await;
        voices.map_err(|error| self.servers.error(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, TtsEvent};
    use futures_util::stream;
    use std::time::Duration;
    use vivavoce_audio::{AudioFormat, Encoding, SampleRate};
    use vivavoce_core::party::Party;

    const SERVERS: &str = "sErVeR/key+91cd";
    const CALLERS: &str = "cAlLeR-key-7f20";

    /// A vendor that repeats whatever it was given.
    struct Parrot;

    fn said() -> ProviderError {
        let both = format!("bad key {SERVERS}, bad key {CALLERS}");
        ProviderError::new("parrot", ErrorKind::Auth, both)
    }

    #[async_trait]
    impl SpeechToText for Parrot {
        fn slug(&self) -> &'static str {
            "parrot"
        }
        fn accepts(&self) -> Accepts {
            Accepts {
                encodings: &[Encoding::Linear16],
                rates: &[],
                stereo: false,
                stream_limit: None,
            }
        }
        async fn open(&self, request: SttRequest) -> Result<SttStream, ProviderError> {
            if request.model == "refused" {
                return Err(said());
            }
            let (sink, _) = super::super::AudioSink::channel(1);
            let events = [Ok(SttEvent::UtteranceLost(said())), Err(said())];
            let events = stream::iter(events).boxed();
            Ok(SttStream { sink, events })
        }
    }

    #[async_trait]
    impl TextToSpeech for Parrot {
        fn slug(&self) -> &'static str {
            "parrot"
        }
        fn speaks(&self) -> Speaks {
            Speaks {
                speaking_rates: 1.0..=1.0,
            }
        }
        async fn synthesize(
            &self,
            request: TtsRequest,
            _: TextStream,
        ) -> Result<TtsStream, ProviderError> {
            if request.model == "refused" {
                return Err(said());
            }
            let format = request.preferred;
            let events = stream::iter([Ok(TtsEvent::Done), Err(said())]).boxed();
            Ok(TtsStream { format, events })
        }
        async fn voices(&self) -> Result<Vec<Voice>, ProviderError> {
            Err(said())
        }
    }

    fn assert_covered(error: &ProviderError) {
        assert_eq!(error.message, "bad key ***, bad key ***");
    }

    #[tokio::test]
    async fn nothing_that_a_vendor_repeats_of_a_credential_leaves_it() {
        let mut table = super::super::ProviderTable::default();
        table.add_speech_to_text(Arc::new(Parrot));
        table.add_text_to_speech(Arc::new(Parrot));
        let servers = Credential::new([("api_key", Secret::new(SERVERS))]);
        table.add_own_credential(Some(&servers));
        table.veil();
        let credential = Some(Credential::new([("api_key", Secret::new(CALLERS))]));
        let format = AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000);
        let hearing = |model: &str| SttRequest {
            language: String::new(),
            model: model.to_owned(),
            punctuation: true,
            keyterms: Vec::new(),
            languages: Vec::new(),
            diarize: false,
            translate: false,
            credential: credential.clone(),
            format,
            party: Party::Operator,
        };
        let speaking = |model: &str| TtsRequest {
            voice_id: None,
            model: model.to_owned(),
            speaking_rate: 1.0,
            preferred: format,
            connection_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(1),
            credential: credential.clone(),
            party: Party::Operator,
        };
        let stt = table.speech_to_text("parrot").unwrap();
        assert_covered(&stt.open(hearing("refused")).await.unwrap_err());
        let events: Vec<_> = stt.open(hearing("")).await.unwrap().events.collect().await;
        match events.as_slice() {
            [Ok(SttEvent::UtteranceLost(lost)), Err(error)] => [lost, error].map(assert_covered),
            _ => panic!("two events"),
        };
        let tts = table.text_to_speech("parrot").unwrap();
        let text = || stream::empty().boxed();
        assert_covered(
            &tts.synthesize(speaking("refused"), text())
                .await
                .unwrap_err(),
        );
        let events = tts.synthesize(speaking(""), text()).await.unwrap().events;
        let events: Vec<_> = events.collect().await;
        assert_covered(events[1].as_ref().unwrap_err());
        let listed = tts.voices().await.unwrap_err();
        // Nobody's own credential lists voices.
        assert_eq!(listed.message, format!("bad key ***, bad key {CALLERS}"));
    }

    #[test]
    fn a_credential_is_known_however_it_is_written() {
        let secret = Secret::new(SERVERS);
        let veil = Veil::over([&secret]);
        for written in [
            SERVERS,
            "sErVeR%2Fkey%2B91cd",
            &STANDARD.encode(SERVERS),
            &URL_SAFE_NO_PAD.encode(SERVERS),
        ] {
            let covered = veil.cover(&format!("no such key: {written}, really"));
            assert_eq!(covered, "no such key: ***, really");
        }
        // What was cut off shows no beginning of it.
        assert_eq!(veil.cover("no such key: sErVeR/ke…"), "no such key: ***…");
        assert_eq!(veil.cover("nothing of that"), "nothing of that");
        let account = Secret::new(
            "{\"type\": \"service_account\", \"private_key\": \"-----BEGIN\\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\\n\"}",
        );
        let veil = Veil::over([&account]);
        let covered = veil.cover("bad line MIIEvQIBADANBgkqhkiG9w0BAQEFAASC here");
        assert_eq!(covered, "bad line *** here");
    }

    #[test]
    fn a_token_that_is_in_no_setting_is_known_by_what_it_follows() {
        let veil = Veil::default();
        for (said, covered) in [
            (
                "Authorization: Bearer abc123def456ghi: bad",
                "Authorization: Bearer ***: bad",
            ),
            (
                "the token ya29.A0ARrdaM was refused",
                "the token *** was refused",
            ),
            (
                "a token that expired yesterday",
                "a token that expired yesterday",
            ),
            ("Basic authentication is off", "Basic authentication is off"),
        ] {
            assert_eq!(veil.cover(said), covered);
        }
        let jwt = format!("eyJ{}.e30.c2ln", "a1".repeat(20));
        assert_eq!(veil.cover(&format!("bad {jwt}")), "bad ***");
    }
}
