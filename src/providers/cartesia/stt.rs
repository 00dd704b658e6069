//! Cartesia's recogniser: chooses the socket of a model and its parameters. Ink-whisper recognises many languages and
//! reports words ([`ink_whisper`](super::ink_whisper)); Ink 2 recognises English and detects turns
//! ([`turns`](super::turns)).

use std::time::Duration;

use async_trait::async_trait;
use reqwest::Url;

use super::ink_whisper::InkWhisper;
use super::turns::Turns;
use super::{CREDENTIAL, SLUG, encoding_name, handshake};
use crate::transport::VendorEndpoint;
use vivavoce_audio::format::{AudioFormat, Encoding};
use vivavoce_seams::parameters::{Parameter, converted, ignored, own};
use vivavoce_seams::{
    Accepts, CredentialField, ErrorKind, FinalDelay, ProviderError, SpeechToText, SttRequest,
    SttStream,
};

/// How long connecting may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The sound that is sent at once; the vendor advises it.
pub(super) const CHUNK: Duration = Duration::from_millis(100);
/// Hears English.
const INK: &str = "ink-2";
/// Hears the other languages.
const WHISPER: &str = "ink-whisper";
/// Where the vendor's name of a language is not that of BCP-47.
const OTHER_NAMES: &[(&str, &str)] = &[("nb", "no"), ("fil", "tl"), ("iw", "he")];

const PARAMETERS: &[Parameter] = &[
    own("language", "language (ink-whisper; ink-2 hears English)"),
    ignored("languages", "one language is heard at a time"),
    own("model", "model"),
    own("encoding", "encoding"),
    own("sample_rate", "sample_rate"),
    converted("channels", "mixed to one"),
    ignored("punctuation", "Ink always punctuates"),
    own("keyterms", "keyterm (ink-2)"),
    ignored("diarize", "speakers are not told apart"),
    ignored("min_confidence", "Ink gives no confidence"),
    own("words", "words (ink-whisper)"),
    own("auth", "Authorization"),
];

/// Cartesia's recogniser.
pub(super) struct Ink {
    vendor: VendorEndpoint,
}

impl Ink {
    pub(super) const fn new(vendor: VendorEndpoint) -> Self {
        Self { vendor }
    }
}

#[async_trait]
impl SpeechToText for Ink {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn answers_within(&self) -> Option<Duration> {
        Some(Duration::from_secs(3))
    }

    fn final_delay(&self) -> FinalDelay {
        FinalDelay::of_ms(299, 328)
    }

    fn accepts(&self) -> Accepts {
        Accepts {
            encodings: &[Encoding::Linear16, Encoding::Mulaw, Encoding::Alaw],
            rates: &[8_000, 16_000, 22_050, 24_000, 44_100, 48_000],
            stereo: false,
            stream_limit: None,
        }
    }

    fn credential_fields(&self) -> &'static [CredentialField] {
        CREDENTIAL
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    async fn open(&self, request: SttRequest) -> Result<SttStream, ProviderError> {
        let asked = Asked::of(&request)?;
        let vendor = &self.vendor;
        let credential = vendor.credential(request.credential.as_ref())?;
        let mut url = vendor.url.at(asked.path().iter().copied());
        asked.put_into(&mut url);
        let handshake = handshake(url, &credential);
        let party = &request.party;
        if asked.whisper {
            let whisper = InkWhisper::new(request.format);
            vendor
                .recognise(handshake, &credential, party, PATIENCE, whisper)
                .await
        } else {
            let turns = Turns::new(request.format);
            vendor
                .recognise(handshake, &credential, party, PATIENCE, turns)
                .await
        }
    }
}

/// What is asked of the vendor.
#[derive(Debug)]
struct Asked<'a> {
    model: &'a str,
    /// ISO 639-1.
    language: String,
    whisper: bool,
    format: AudioFormat,
    keyterms: &'a [String],
}

impl<'a> Asked<'a> {
    fn of(request: &'a SttRequest) -> Result<Self, ProviderError> {
        let language = language(&request.language);
        let model = match request.model.as_str() {
            "" if language == "en" => INK,
            "" => WHISPER,
            model => model,
        };
        // Its socket takes no language: another would be heard as if it were English.
        if model == INK && language != "en" {
            let problem = format!("{INK} hears English only; {WHISPER} hears other languages");
            return Err(ProviderError::new(SLUG, ErrorKind::InvalidRequest, problem));
        }
        Ok(Self {
            model,
            language,
            whisper: model.starts_with(WHISPER),
            format: request.format,
            keyterms: &request.keyterms,
        })
    }

    const fn path(&self) -> &'static [&'static str] {
        if self.whisper {
            &["stt", "websocket"]
        } else {
            &["stt", "turns", "websocket"]
        }
    }

    fn put_into(&self, url: &mut Url) {
        let mut query = url.query_pairs_mut();
        query
            .append_pair("model", self.model)
            .append_pair("encoding", encoding_name(self.format.encoding))
            .append_pair("sample_rate", &self.format.layout.rate.hz().to_string());
        if self.whisper {
            query.append_pair("language", &self.language);
        } else {
            for keyterm in self.keyterms {
                query.append_pair("keyterm", keyterm);
            }
        }
    }
}

/// The vendor's name of a language.
fn language(tag: &str) -> String {
    let primary = tag.split(['-', '_']).next().unwrap_or_default();
    let primary = primary.to_ascii_lowercase();
    let other = OTHER_NAMES.iter().find(|(name, _)| *name == primary);
    other.map_or(primary, |(_, other)| (*other).to_owned())
}

/// The bytes of so much sound.
pub(super) fn bytes_in(format: AudioFormat, time: Duration) -> usize {
    let width = if format.encoding == Encoding::Linear16 {
        2
    } else {
        1
    };
    format.layout.samples_in(time) * width
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::testing::stt_request;
    use vivavoce_audio::format::SampleRate;

    fn request(language: &str, model: &str) -> SttRequest {
        SttRequest {
            language: language.to_owned(),
            model: model.to_owned(),
            format: AudioFormat::mono(Encoding::Mulaw, SampleRate::HZ_8000),
            keyterms: vec!["a&b=c".to_owned(), "Müller".to_owned()],
            ..stt_request()
        }
    }

    fn asked(language: &str, model: &str) -> String {
        let request = request(language, model);
        let asked = Asked::of(&request).unwrap();
        let mut url = Url::parse("http://vendor").unwrap();
        url.path_segments_mut().unwrap().extend(asked.path());
        asked.put_into(&mut url);
        url.as_str().trim_start_matches("http://vendor").to_owned()
    }

    #[test]
    fn english_is_heard_by_turns_and_other_languages_by_whisper() {
        let ink = "/stt/turns/websocket?model=ink-2&encoding=pcm_mulaw&sample_rate=8000&keyterm=a%26b%3Dc&keyterm=M%C3%BCller";
        assert_eq!(asked("en-GB", ""), ink);
        assert_eq!(asked("en", "ink-2"), ink);
        let whisper = |l: &str| {
            format!(
                "/stt/websocket?model=ink-whisper&encoding=pcm_mulaw&sample_rate=8000&language={l}"
            )
        };
        assert_eq!(asked("de-DE", ""), whisper("de"));
        assert_eq!(asked("en-US", "ink-whisper"), whisper("en"));
        assert_eq!(asked("nb-NO", ""), whisper("no"));
        assert_eq!(asked("x&model=y", ""), whisper("x%26model%3Dy"));
    }

    #[test]
    fn another_language_is_not_heard_as_if_it_were_english() {
        let request = request("fr-FR", "ink-2");
        let refused = Asked::of(&request).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidRequest);
        assert!(refused.message.contains("ink-whisper"));
    }
}
