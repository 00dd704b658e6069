//! Synthesis: one request for each line of the text, whose sound is taken as it comes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use reqwest::Response;
use reqwest::header::CONTENT_TYPE;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::{SLUG, errors, voices};
use crate::transport::tts_driver::{FIRST_SOUND, STALLED};
use crate::transport::{Refusal, VendorEndpoint, body};
use vivavoce_audio::format::{AudioFormat, Encoding, SampleRate};
use vivavoce_core::sentences::spoken_lines;
use vivavoce_seams::parameters::{Parameter, converted, ignored, own};
use vivavoce_seams::{
    Credential, CredentialField, ErrorKind, ProviderError, Speaks, TextStream, TextToSpeech,
    TtsEvent, TtsRequest, TtsStream, Voice,
};

/// The model where none is asked for.
const MODEL: &str = "gpt-4o-mini-tts";
/// Models that know `speed`; others take it and speak as ever.
const WITH_SPEED: &str = "tts-1";
/// `pcm` is linear16 at this rate, mono.
const RATE: SampleRate = SampleRate::HZ_24000;
/// Pieces of sound that wait for the listener.
const EVENTS_HELD: usize = 64;
/// How much longer a server that runs on a small machine may think before its first sound.
const OWN_SERVER: Duration = Duration::from_secs(10);

/// What becomes of each field of `tts_config`.
const PARAMETERS: &[Parameter] = &[
    own("model", "model"),
    own("voice_id", "voice"),
    converted("audio_format", "encoded from pcm"),
    converted("sample_rate", "24000 is the vendor's own"),
    converted(
        "speaking_rate",
        "speed of tts-1 and tts-1-hd; of other models stretched",
    ),
    converted("pronunciations", "replaced in the text"),
    ignored("words", "OpenAI tells no times of words"),
    own("auth", "Authorization"),
];

/// The synthesiser `openai`.
pub(super) struct OpenAiTts {
    endpoint: Arc<VendorEndpoint>,
    own_server: bool,
}

impl OpenAiTts {
    pub(super) fn new(endpoint: VendorEndpoint, own_server: bool) -> Self {
        Self {
            endpoint: Arc::new(endpoint),
            own_server,
        }
    }
}

#[async_trait]
impl TextToSpeech for OpenAiTts {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn endpoint(&self) -> &str {
        self.endpoint.url.url().as_str()
    }

    fn speaks(&self) -> Speaks {
        Speaks {
            speaking_rates: 1.0..=1.0,
        }
    }

    fn speaks_as(&self, _: Option<&str>, model: &str) -> Speaks {
        if model.starts_with(WITH_SPEED) {
            Speaks {
                speaking_rates: 0.25..=4.0,
            }
        } else {
            self.speaks()
        }
    }

    fn credential_fields(&self) -> &'static [CredentialField] {
        super::CREDENTIAL
    }

    fn credential_fingerprint(&self) -> [u8; 32] {
        self.endpoint.own_fingerprint()
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    async fn synthesize(
        &self,
        request: TtsRequest,
        text: TextStream,
    ) -> Result<TtsStream, ProviderError> {
        let credential = self.endpoint.credential(request.credential.as_ref())?;
        let (events, said) = mpsc::channel(EVENTS_HELD);
        let first_sound = if self.own_server {
            OWN_SERVER
        } else {
            FIRST_SOUND
        };
        let utterance = Utterance {
            endpoint: Arc::clone(&self.endpoint),
            credential,
            first_sound,
            request,
            events,
        };
        tokio::spawn(utterance.run(text));
        Ok(TtsStream {
            format: AudioFormat::mono(Encoding::Linear16, RATE),
            events: ReceiverStream::new(said).boxed(),
        })
    }

    async fn voices(&self) -> Result<Vec<Voice>, ProviderError> {
        match (self.endpoint.own(), self.own_server) {
            (None, _) => Ok(Vec::new()),
            (Some(_), false) => Ok(voices::own()),
            (Some(_), true) => voices::of_server(&self.endpoint).await,
        }
    }
}

/// One utterance.
struct Utterance {
    endpoint: Arc<VendorEndpoint>,
    credential: Credential,
    first_sound: Duration,
    request: TtsRequest,
    events: mpsc::Sender<Result<TtsEvent, ProviderError>>,
}

/// Nobody wants the rest, or it has failed.
enum Ended {
    Unwanted,
    Failed(ProviderError),
}

impl From<ProviderError> for Ended {
    fn from(error: ProviderError) -> Self {
        Self::Failed(error)
    }
}

impl Utterance {
    async fn run(self, text: TextStream) {
        let said = tokio::select! {
            said = self.say(text) => said,
            () = self.events.closed() => return,
        };
        let last = match said {
            Ok(()) => Ok(TtsEvent::Done),
            Err(Ended::Failed(error)) => Err(error),
            Err(Ended::Unwanted) => return,
        };
        // Nobody may be left to hear it.
        let _ = self.events.send(last).await;
    }

    async fn say(&self, text: TextStream) -> Result<(), Ended> {
        let patience = self.request.connection_timeout;
        let fingerprint = self.credential.fingerprint();
        let _permit = self
            .endpoint
            .permit(fingerprint, &self.request.party, patience)
            .await?;
        // What the server may still take. Neither the writer of the text nor the listener uses it up.
        let mut left = self.request.request_timeout;
        let mut lines = spoken_lines(text);
        while let Some(line) = lines.next().await {
            self.say_line(&line, &mut left).await?;
        }
        Ok(())
    }

    async fn say_line(&self, line: &str, left: &mut Duration) -> Result<(), Ended> {
        let mut answer = self.ask(line, left).await?;
        let mut patience = self.first_sound;
        let mut half = None;
        loop {
            let asked = Instant::now();
            let chunk = timeout(patience.min(*left), answer.chunk()).await;
            *left = left.saturating_sub(asked.elapsed());
            let chunk = chunk
                .map_err(|_| late("sent nothing while audio was outstanding"))?
                .map_err(errors::broken)?;
            let Some(chunk) = chunk else {
                break;
            };
            patience = STALLED;
            self.sound(whole_samples(&mut half, chunk)).await?;
        }
        Ok(())
    }

    /// The answer whose body is the sound.
    async fn ask(&self, line: &str, left: &mut Duration) -> Result<Response, ProviderError> {
        let Self { request, .. } = self;
        let model = Some(request.model.as_str()).filter(|model| !model.is_empty());
        let mut asked = json!({
            "model": model.unwrap_or(MODEL),
            "input": line,
            "voice": request.voice_id.as_deref().unwrap_or(voices::DEFAULT),
            "response_format": "pcm",
        });
        if (request.speaking_rate - 1.0).abs() > 1e-3 {
            asked["speed"] = request.speaking_rate.into();
        }
        let sent = super::post(&self.endpoint, &self.credential, ["audio", "speech"])?
            .header(CONTENT_TYPE, "application/json")
            .body(asked.to_string())
            // The sound may be long; each of its pieces has a deadline of its own.
            .timeout(request.request_timeout)
            .send();
        let begun = Instant::now();
        let answer = timeout((request.connection_timeout + self.first_sound).min(*left), sent).await;
        *left = left.saturating_sub(begun.elapsed());
        let mut answer = answer
            .map_err(|_| late("did not answer in time"))?
            .map_err(errors::broken)?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let told = body(&mut answer).await.unwrap_or_default();
        Err(errors::refused(&Refusal {
            status: answer.status(),
            headers: answer.headers().clone(),
            body: String::from_utf8_lossy(&told).into_owned(),
        }))
    }

    async fn sound(&self, audio: Bytes) -> Result<(), Ended> {
        if audio.is_empty() {
            return Ok(());
        }
        let sent = self.events.send(Ok(TtsEvent::Audio(audio))).await;
        sent.map_err(|_| Ended::Unwanted)
    }
}

fn late(problem: &str) -> ProviderError {
    ProviderError::new(SLUG, ErrorKind::Timeout, problem)
}

/// Pieces are cut anywhere, also within a sample; the last half is no sound.
fn whole_samples(half: &mut Option<u8>, chunk: Bytes) -> Bytes {
    let mut bytes = match half.take() {
        None => chunk,
        Some(first) => std::iter::once(first).chain(chunk).collect(),
    };
    if bytes.len() % 2 == 1 {
        *half = bytes.last().copied();
        bytes.truncate(bytes.len() - 1);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_whole_however_they_are_cut() {
        let sound: Vec<u8> = (0..101).collect();
        for size in 1..8 {
            let mut half = None;
            let mut heard = Vec::new();
            for chunk in sound.chunks(size) {
                let whole = whole_samples(&mut half, Bytes::copy_from_slice(chunk));
                assert_eq!(whole.len() % 2, 0);
                heard.extend(whole);
            }
            assert_eq!(heard, sound[..100]);
        }
    }
}
