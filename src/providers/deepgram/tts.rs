//! Deepgram as a synthesiser: which sound a request gets, over which socket.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::Url;

use super::aura::Aura;
use super::{CREDENTIAL, Entrance, SLUG, encoding_name, errors, handshake, voices};
use crate::transport::Permits;
use crate::transport::speaking::{Idle, Line, Pool, Utterance};
use vivavoce_audio::format::{AudioFormat, Encoding, SampleRate};
use vivavoce_config::value::VendorUrl;
use vivavoce_seams::parameters::{Parameter, converted, ignored, own};
use vivavoce_seams::{
    Credential, CredentialField, ProviderError, Speaks, TextStream, TextToSpeech, TtsRequest,
    TtsStream, Voice,
};

/// The voice of the vendor's own examples.
const DEFAULT_VOICE: &str = "aura-2-thalia-en";
/// Rates of linear16, ascending.
pub(super) const RATES: &[u32] = &[8_000, 16_000, 24_000, 32_000, 48_000];
/// Rates of µ-law and A-law.
const COMPANDED_RATES: &[u32] = &[8_000, 16_000];
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
    entrance: Entrance,
    line: Arc<Line>,
}

impl DeepgramTts {
    pub(super) fn new(entrance: Entrance, permits: Permits) -> Self {
        let line = Line {
            provider: SLUG,
            transport: entrance.transport.clone(),
            pool: Pool::default(),
            idle: Some(IDLE),
            permits,
            refused: errors::refused,
        };
        Self {
            entrance,
            line: Arc::new(line),
        }
    }
}

#[async_trait]
impl TextToSpeech for DeepgramTts {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn endpoint(&self) -> &str {
        self.entrance.address.url().as_str()
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
        Credential::fingerprint_of(self.entrance.own.as_ref())
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    async fn synthesize(
        &self,
        request: TtsRequest,
        text: TextStream,
    ) -> Result<TtsStream, ProviderError> {
        let credential = self.entrance.credential(request.credential.as_ref())?;
        let format = format(request.preferred);
        let sample = if format.encoding == Encoding::Linear16 {
            2
        } else {
            1
        };
        let utterance = Utterance {
            handshake: handshake(url(&self.entrance.address, &request, format), &credential),
            credential: credential.fingerprint(),
            format,
            protocol: move || Aura::new(sample),
        };
        Ok(self.line.speak(utterance, &request, text))
    }

    async fn voices(&self) -> Result<Vec<Voice>, ProviderError> {
        voices::all(&self.entrance).await
    }
}

/// A voice is a model here; whichever field names it, the more precise one counts.
fn voice<'a>(voice_id: Option<&'a str>, model: &'a str) -> &'a str {
    let named = voice_id.into_iter().chain([model]);
    let mut named = named.filter(|name| !name.is_empty());
    named.next().unwrap_or(DEFAULT_VOICE)
}

/// The vendor's format that is nearest to the preferred one, and loses nothing of it where there is such.
fn format(preferred: AudioFormat) -> AudioFormat {
    let rate = preferred.layout.rate;
    let companded = matches!(preferred.encoding, Encoding::Mulaw | Encoding::Alaw);
    if companded && COMPANDED_RATES.contains(&rate.hz()) {
        return AudioFormat::mono(preferred.encoding, rate);
    }
    let native = RATES.iter().find(|&&hz| hz >= rate.hz());
    let native = native.and_then(|&hz| SampleRate::new(hz).ok());
    AudioFormat::mono(Encoding::Linear16, native.unwrap_or(SampleRate::HZ_48000))
}

fn url(address: &VendorUrl, request: &TtsRequest, format: AudioFormat) -> Url {
    let mut url = address.at(["v1", "speak"]);
    let mut query = url.query_pairs_mut();
    query
        .append_pair("model", voice(request.voice_id.as_deref(), &request.model))
        .append_pair("encoding", encoding_name(format.encoding))
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
    use crate::transport::Transport;
    use vivavoce_config::value::SettingValue;

    fn request(preferred: AudioFormat) -> TtsRequest {
        TtsRequest {
            party: vivavoce_quotas::Party::Operator,
            voice_id: None,
            model: String::new(),
            speaking_rate: 1.0,
            preferred,
            connection_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(1),
            credential: None,
        }
    }

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
            assert_eq!(format(preferred), native);
        }
    }

    #[test]
    fn a_request_is_the_vendors_parameters() {
        let address = VendorUrl::parse("https://v.example").unwrap();
        let format = mono(Encoding::Linear16, 24_000);
        let usual = request(format);
        let query = |request: &TtsRequest| {
            let url = url(&address, request, format);
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
        let entrance = Entrance {
            address: VendorUrl::parse("https://v.example").unwrap(),
            own: None,
            transport: Transport::new(&vivavoce_core::outgoing::Authorities::default()).unwrap(),
        };
        let tts = DeepgramTts::new(entrance, Permits::new(SLUG, None));
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
