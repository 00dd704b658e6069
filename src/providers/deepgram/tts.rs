//! Deepgram's synthesiser: the audio format and the parameters of a request.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::Url;

use super::aura::Aura;
use super::{CREDENTIAL, SLUG, handshake, voices};
use crate::transport::VendorEndpoint;
use crate::transport::tts_driver::{Idle, TtsEndpoint, Utterance};
use vivavoce_audio::format::{AudioFormat, Encoding};
use vivavoce_config::value::VendorUrl;
use vivavoce_seams::parameters::{Parameter, converted, ignored, own};
use vivavoce_seams::{
    CredentialField, OutputFormat, ProviderError, Speaks, TextStream, TextToSpeech, TtsRequest,
    TtsStream, Voice,
};

/// The voice of the vendor's own examples.
const DEFAULT_VOICE: &str = "aura-2-thalia-en";
/// What can be asked for, as `encoding` and `sample_rate`.
pub(super) const FORMATS: &[OutputFormat] = &[
    OutputFormat::new(
        Encoding::Linear16,
        &[8_000, 16_000, 24_000, 32_000, 48_000],
        "linear16",
    ),
    OutputFormat::new(Encoding::Mulaw, &[8_000, 16_000], "mulaw"),
    OutputFormat::new(Encoding::Alaw, &[8_000, 16_000], "alaw"),
];
/// What voices take that can be told how fast to speak.
const SPEEDS: RangeInclusive<f64> = 0.7..=1.5;
/// Which those are: what their names begin with, and end with.
const ADJUSTABLE: (&str, &[&str]) = ("aura-2-", &["-en", "-es"]);
/// The vendor does not say how long it bears a socket on which nothing is said; a session has an hour.
const IDLE: Idle = Idle {
    longest: Duration::from_secs(50),
    keep_alive: None,
    oldest: Duration::from_mins(50),
};

/// What becomes of each field of `tts_config`.
const PARAMETERS: &[Parameter] = &[
    own("model", "model, where there is no voice_id"),
    own("voice_id", "model"),
    own(
        "audio_format",
        "encoding, in /speak; a session's sound is made of linear16",
    ),
    own("sample_rate", "sample_rate"),
    own(
        "speaking_rate",
        "speed: 0.7 to 1.5, Aura-2 in English and Spanish",
    ),
    converted("pronunciations", "replaced in the text"),
    ignored("words", "the vendor does not tell where words are"),
    own("auth", "Authorization"),
];

/// The synthesiser `deepgram`.
pub(super) struct DeepgramTts {
    endpoint: Arc<TtsEndpoint>,
}

impl DeepgramTts {
    pub(super) fn new(vendor: VendorEndpoint) -> Self {
        Self {
            endpoint: Arc::new(TtsEndpoint::new(vendor, Some(IDLE))),
        }
    }
}

#[async_trait]
impl TextToSpeech for DeepgramTts {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn endpoint(&self) -> &str {
        self.endpoint.vendor.url.url().as_str()
    }

    fn speaks(&self) -> Speaks {
        Speaks {
            speaking_rates: SPEEDS,
        }
    }

    fn speaks_as(&self, voice_id: Option<&str>, model: &str) -> Speaks {
        let (begins, ends) = ADJUSTABLE;
        let voice = voice(voice_id, model);
        let adjustable = voice.starts_with(begins) && ends.iter().any(|end| voice.ends_with(end));
        Speaks {
            speaking_rates: if adjustable { SPEEDS } else { 1.0..=1.0 },
        }
    }

    fn credential_fields(&self) -> &'static [CredentialField] {
        CREDENTIAL
    }

    fn credential_fingerprint(&self) -> [u8; 32] {
        self.endpoint.vendor.own_fingerprint()
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    async fn synthesize(
        &self,
        request: TtsRequest,
        text: TextStream,
    ) -> Result<TtsStream, ProviderError> {
        let vendor = &self.endpoint.vendor;
        let credential = vendor.credential(request.credential.as_ref())?;
        let (format, encoding) = OutputFormat::nearest(FORMATS, request.preferred);
        let sample = if format.encoding == Encoding::Linear16 {
            2
        } else {
            1
        };
        let utterance = Utterance {
            handshake: handshake(url(&vendor.url, &request, format, encoding), &credential),
            credential: credential.fingerprint(),
            format,
            protocol: move || Aura::new(sample),
        };
        Ok(self.endpoint.speak(utterance, &request, text))
    }

    async fn voices(&self) -> Result<Vec<Voice>, ProviderError> {
        voices::all(&self.endpoint.vendor).await
    }
}

/// A voice is a model here; whichever field names it, the more precise one counts.
fn voice<'a>(voice_id: Option<&'a str>, model: &'a str) -> &'a str {
    let named = voice_id.into_iter().chain([model]);
    let mut named = named.filter(|name| !name.is_empty());
    named.next().unwrap_or(DEFAULT_VOICE)
}

fn url(address: &VendorUrl, request: &TtsRequest, format: AudioFormat, encoding: &str) -> Url {
    let mut url = address.at(["v1", "speak"]);
    let mut query = url.query_pairs_mut();
    query
        .append_pair("model", voice(request.voice_id.as_deref(), &request.model))
        .append_pair("encoding", encoding)
        .append_pair("sample_rate", &format.layout.rate.hz().to_string());
    // Voices that know no other speed refuse to be told of it.
    if (request.speaking_rate - 1.0).abs() > f64::EPSILON {
        query.append_pair("speed", &request.speaking_rate.to_string());
    }
    drop(query);
    url
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::testing::{transport, tts_request as request};
    use vivavoce_audio::format::SampleRate;
    use vivavoce_config::value::SettingValue;

    fn mono(encoding: Encoding, hz: u32) -> AudioFormat {
        AudioFormat::mono(encoding, SampleRate::new(hz).unwrap())
    }

    #[test]
    fn sound_comes_at_the_next_rate_that_loses_nothing() {
        use Encoding::{Alaw, Linear16, Mp3, Mulaw, Wav};
        for (preferred, native) in [
            (mono(Linear16, 8_000), mono(Linear16, 8_000)),
            (mono(Linear16, 11_025), mono(Linear16, 16_000)),
            (mono(Wav, 22_050), mono(Linear16, 24_000)),
            (mono(Mp3, 44_100), mono(Linear16, 48_000)),
            (mono(Linear16, 96_000), mono(Linear16, 48_000)),
            (mono(Mulaw, 8_000), mono(Mulaw, 8_000)),
            (mono(Alaw, 16_000), mono(Alaw, 16_000)),
            (mono(Alaw, 24_000), mono(Linear16, 24_000)),
        ] {
            assert_eq!(OutputFormat::nearest(FORMATS, preferred).0, native);
        }
    }

    #[test]
    fn a_request_is_the_vendors_parameters() {
        let address = VendorUrl::parse("https://v.example").unwrap();
        let format = mono(Encoding::Linear16, 24_000);
        let usual = request(format);
        let query = |request: &TtsRequest| {
            let url = url(&address, request, format, "linear16");
            assert_eq!(url.path(), "/v1/speak");
            url.query().unwrap().to_owned()
        };
        let rest = "&encoding=linear16&sample_rate=24000";
        assert_eq!(query(&usual), format!("model=aura-2-thalia-en{rest}"));
        let by_model = TtsRequest {
            model: "aura-asteria-en".into(),
            ..usual.clone()
        };
        assert_eq!(query(&by_model), format!("model=aura-asteria-en{rest}"));
        let by_voice = TtsRequest {
            voice_id: Some("x&y=z".into()),
            speaking_rate: 1.25,
            ..by_model
        };
        assert_eq!(
            query(&by_voice),
            format!("model=x%26y%3Dz{rest}&speed=1.25")
        );
    }

    #[test]
    fn only_voices_that_can_are_told_how_fast_to_speak() {
        let vendor = super::super::VENDOR.endpoint(None, None, None, &transport());
        let tts = DeepgramTts::new(vendor.unwrap());
        let fastest = |voice| *tts.speaks_as(voice, "").speaking_rates.end();
        for (voice, rate) in [
            (None, 1.5),
            (Some("aura-2-celeste-es"), 1.5),
            (Some("aura-2-viktoria-de"), 1.0),
            (Some("aura-asteria-en"), 1.0),
        ] {
            assert!((fastest(voice) - rate).abs() < 1e-9, "{voice:?}");
        }
    }
}
