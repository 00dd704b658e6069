//! Deepgram's recogniser: chooses Nova or Flux by the model, and declares what becomes of each field of a request.

use std::time::Duration;

use async_trait::async_trait;

use super::{CREDENTIAL, SLUG, flux, handshake, nova};
use crate::transport::VendorEndpoint;
use vivavoce_audio::format::Encoding;
use vivavoce_seams::parameters::{Parameter, converted, own};
use vivavoce_seams::{
    Accepts, CredentialField, FinalDelay, ProviderError, SpeechToText, SttRequest, SttStream,
};

/// How long a free permit, and then the connection, are waited for.
const CONNECTING: Duration = Duration::from_secs(8);

/// What becomes of each field of `stt_config`.
const PARAMETERS: &[Parameter] = &[
    own("language", "language"),
    own("languages", "language=multi, language_hint"),
    own("model", "model"),
    own("encoding", "encoding"),
    own("sample_rate", "sample_rate"),
    converted("channels", "mixed to one"),
    own("punctuation", "punctuate; Flux always does"),
    own("keyterms", "keyterm; keywords before Nova-3"),
    own("diarize", "diarize_model; not with Flux"),
    converted("min_confidence", "finals below it are dropped; not with Flux, which gives none"),
    own("words", "words"),
    own("auth", "Authorization"),
];

/// The recogniser `deepgram`.
pub(super) struct DeepgramStt {
    vendor: VendorEndpoint,
}

impl DeepgramStt {
    pub(super) const fn new(vendor: VendorEndpoint) -> Self {
        Self { vendor }
    }
}

#[async_trait]
impl SpeechToText for DeepgramStt {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn answers_within(&self) -> Option<Duration> {
        Some(Duration::from_secs(3))
    }

    fn final_delay(&self) -> FinalDelay {
        FinalDelay::of_ms(247, 298)
    }

    fn accepts(&self) -> Accepts {
        Accepts {
            encodings: &[Encoding::Linear16, Encoding::Mulaw, Encoding::Alaw],
            rates: &[],
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
        let vendor = &self.vendor;
        let credential = vendor.credential(request.credential.as_ref())?;
        let party = &request.party;
        if request.model.starts_with(flux::PREFIX) {
            let handshake = handshake(flux::url(&vendor.url, &request)?, &credential);
            let flux = flux::Flux::new(&request);
            vendor
                .recognise(handshake, &credential, party, CONNECTING, flux)
                .await
        } else {
            let handshake = handshake(nova::url(&vendor.url, &request), &credential);
            let nova = nova::Nova::new(&request);
            vendor
                .recognise(handshake, &credential, party, CONNECTING, nova)
                .await
        }
    }
}
