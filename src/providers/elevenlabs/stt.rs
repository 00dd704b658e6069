//! ElevenLabs' recogniser: the parameters of a stream. Its protocol is in `scribe`.

use std::time::Duration;

use async_trait::async_trait;

use super::scribe::Scribe;
use super::{CREDENTIAL_FIELDS, KEY, KEY_HEADER, SLUG};
use crate::transport::VendorEndpoint;
use crate::transport::websocket::Handshake;
use vivavoce_audio::format::{Channels, Encoding};
use vivavoce_seams::parameters::{Parameter, converted, ignored, own};
use vivavoce_seams::{
    Accepts, CredentialField, ErrorKind, FinalDelay, ProviderError, SpeechToText, SttRequest,
    SttStream,
};

/// What is listened with where nothing is said.
const DEFAULT_MODEL: &str = "scribe_v2_realtime";
/// The silence that commits a segment. The vendor's own default of 1.5 s would keep an answer waiting, and whoever pauses
/// for less would not be final for more than a minute.
const SILENCE_SECONDS: &str = "0.5";
/// How long a connection, and a free place for it, may take.
const CONNECTING: Duration = Duration::from_secs(10);

const PARAMETERS: &[Parameter] = &[
    own("language", "language_code"),
    own("languages", "secondary_languages"),
    own("model", "model_id"),
    converted("encoding", "decoded to linear16"),
    converted(
        "sample_rate",
        "audio_format; other rates are resampled to the next one",
    ),
    converted("channels", "mixed to one"),
    ignored("punctuation", "always on"),
    own("keyterms", "keyterms"),
    ignored("diarize", "not on the realtime socket"),
    converted("min_confidence", "finals below it are dropped"),
    own("words", "include_timestamps"),
    own("auth", "xi-api-key"),
];

/// The recogniser.
pub(super) struct Stt {
    vendor: VendorEndpoint,
}

impl Stt {
    pub(super) const fn new(vendor: VendorEndpoint) -> Self {
        Self { vendor }
    }

    /// Where to knock for a stream like this.
    fn handshake(&self, request: &SttRequest, key: &str) -> Handshake {
        let mut url = self.vendor.url.at(["v1", "speech-to-text", "realtime"]);
        let model = Some(request.model.as_str()).filter(|model| !model.is_empty());
        let audio_format = format!("pcm_{}", request.format.layout.rate.hz());
        let mut query = url.query_pairs_mut();
        query
            .append_pair("model_id", model.unwrap_or(DEFAULT_MODEL))
            .append_pair("audio_format", &audio_format)
            .append_pair("commit_strategy", "vad")
            .append_pair("vad_silence_threshold_secs", SILENCE_SECONDS)
            .append_pair("include_timestamps", "true");
        if let Some(language) = language_code(&request.language) {
            query.append_pair("language_code", &language);
        }
        for language in request
            .languages
            .iter()
            .filter_map(|tag| language_code(tag))
        {
            query.append_pair("secondary_languages", &language);
        }
        for term in &request.keyterms {
            query.append_pair("keyterms", term);
        }
        drop(query);
        Handshake::new(url).secret(KEY_HEADER, key)
    }
}

/// The vendor wants ISO 639 and no region: the first part of a BCP-47 tag.
fn language_code(tag: &str) -> Option<String> {
    let language = tag.split(['-', '_']).next().unwrap_or_default();
    (!language.is_empty()).then(|| language.to_ascii_lowercase())
}

#[async_trait]
impl SpeechToText for Stt {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn answers_within(&self) -> Option<Duration> {
        Some(Duration::from_secs(3))
    }

    fn final_delay(&self) -> FinalDelay {
        FinalDelay::of_ms(281, 348)
    }

    fn accepts(&self) -> Accepts {
        Accepts {
            encodings: &[Encoding::Linear16],
            rates: &[8_000, 16_000, 22_050, 24_000, 44_100, 48_000],
            stereo: false,
            stream_limit: None,
        }
    }

    fn credential_fields(&self) -> &'static [CredentialField] {
        CREDENTIAL_FIELDS
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    async fn open(&self, request: SttRequest) -> Result<SttStream, ProviderError> {
        let format = request.format;
        if format.encoding != Encoding::Linear16 || format.layout.channels != Channels::Mono {
            let problem = "accepts only mono linear16 audio";
            return Err(ProviderError::new(SLUG, ErrorKind::InvalidRequest, problem));
        }
        let vendor = &self.vendor;
        let credential = vendor.credential(request.credential.as_ref())?;
        let handshake = self.handshake(&request, credential.get(KEY));
        let scribe = Scribe::new(format.layout.rate);
        vendor
            .recognise(handshake, &credential, &request.party, CONNECTING, scribe)
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::super::VENDOR;
    use super::*;
    use crate::transport::testing::{stt_request as request, transport};
    use vivavoce_config::value::{SettingValue, VendorUrl};
    use vivavoce_seams::parameters::STT_FIELDS;

    fn stt(url: &str) -> Stt {
        let url = VendorUrl::parse(url);
        Stt::new(
            VENDOR
                .endpoint(url.as_ref(), None, None, &transport())
                .unwrap(),
        )
    }

    fn asked(request: &SttRequest) -> String {
        let handshake = stt("https://vendor.example").handshake(request, "marker");
        assert!(handshake.headers["xi-api-key"].is_sensitive());
        handshake.url.to_string()
    }

    #[test]
    fn a_stream_is_asked_for_by_the_vendors_names() {
        assert_eq!(
            asked(&request()),
            "https://vendor.example/v1/speech-to-text/realtime?model_id=scribe_v2_realtime\
             &audio_format=pcm_16000&commit_strategy=vad&vad_silence_threshold_secs=0.5&include_timestamps=true&language_code=en"
        );
    }

    #[test]
    fn what_a_client_says_stays_a_value() {
        let asked = asked(&SttRequest {
            language: "x&token=1".to_owned(),
            model: "m#/../".to_owned(),
            keyterms: vec!["a b&c=d".to_owned()],
            languages: vec!["pt_BR".to_owned(), String::new()],
            ..request()
        });
        assert_eq!(
            asked,
            "https://vendor.example/v1/speech-to-text/realtime?model_id=m%23%2F..%2F\
             &audio_format=pcm_16000&commit_strategy=vad&vad_silence_threshold_secs=0.5&include_timestamps=true\
             &language_code=x%26token%3D1&secondary_languages=pt&keyterms=a+b%26c%3Dd"
        );
        assert!(!asked.contains("marker"));
    }

    #[test]
    fn every_field_has_a_row() {
        let rows: Vec<_> = PARAMETERS.iter().map(|row| row.field).collect();
        assert_eq!(rows, STT_FIELDS);
    }

    #[tokio::test]
    async fn without_a_credential_nothing_is_opened() {
        let refused = stt("http://127.0.0.1:1").open(request()).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NoCredential);
        assert!(refused.message.contains("ELEVENLABS_API_KEY"));
        assert!(refused.message.contains("auth"));
    }
}
