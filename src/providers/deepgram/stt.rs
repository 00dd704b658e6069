//! Deepgram as a recogniser: which of its two interfaces a request wants, and what becomes of the request's fields.

use std::time::Duration;

use async_trait::async_trait;

use super::{CREDENTIAL, Entrance, SLUG, errors, flux, handshake, nova};
use crate::transport::{Permits, hearing};
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
    own("words", "words"),
    own("auth", "Authorization"),
];

/// The recogniser `deepgram`.
pub(super) struct DeepgramStt {
    entrance: Entrance,
    permits: Permits,
}

impl DeepgramStt {
    pub(super) const fn new(entrance: Entrance, permits: Permits) -> Self {
        Self { entrance, permits }
    }
}

#[async_trait]
impl SpeechToText for DeepgramStt {
    fn slug(&self) -> &'static str {
        SLUG
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
        let entrance = &self.entrance;
        let credential = entrance.credential(request.credential.as_ref())?;
        let flux = request.model.starts_with(flux::PREFIX);
        let url = if flux {
            flux::url(&entrance.address, &request)?
        } else {
            nova::url(&entrance.address, &request)
        };
        let permits = &self.permits;
        let permit = permits
            .acquire(credential.fingerprint(), &request.party, CONNECTING)
            .await?;
        let handshake = handshake(url, &credential);
        let socket = entrance.transport.dial(SLUG, handshake, CONNECTING).await;
        let socket = socket.map_err(|error| error.read(errors::refused))?;
        if flux {
            hearing::open(socket, flux::Flux::new(&request), permit).await
        } else {
            hearing::open(socket, nova::Nova::new(&request), permit).await
        }
    }
}
