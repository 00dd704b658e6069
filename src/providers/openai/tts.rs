//! Synthesis: one request for each line of the text, whose sound is taken as it comes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use reqwest::Response;
use reqwest::header::CONTENT_TYPE;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::{SLUG, errors, voices};
use crate::transport::tts_driver::{FIRST_SOUND, STALLED};
use crate::transport::{Refusal, VendorEndpoint, body};
use vivavoce_audio::decode::StreamDecoder;
use vivavoce_audio::format::{AudioFormat, Encoding, SampleRate};
use vivavoce_audio::linear16;
use vivavoce_core::sentences::spoken_lines;
use vivavoce_seams::parameters::{Parameter, converted, ignored, own};
use vivavoce_seams::{
    Credential, CredentialField, ErrorKind, ProviderError, Speaks, TextStream, TextToSpeech,
    TtsEvent, TtsRequest, TtsStream, Voice,
};

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
    converted("audio_format", "encoded from pcm, of other servers from wav"),
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
    /// The model where none is asked for.
    model: String,
    is_vendors: bool,
}

impl OpenAiTts {
    pub(super) fn new(endpoint: VendorEndpoint, model: String) -> Self {
        Self {
            is_vendors: super::is_vendors(&endpoint),
            endpoint: Arc::new(endpoint),
            model,
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
        let model = if model.is_empty() { &self.model } else { model };
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

    /// At the vendor the format is known; of another server's sound it is when the first of it has come.
    async fn synthesize(
        &self,
        mut request: TtsRequest,
        text: TextStream,
    ) -> Result<TtsStream, ProviderError> {
        let credential = self.endpoint.credential(request.credential.as_ref())?;
        if request.model.is_empty() {
            request.model.clone_from(&self.model);
        }
        let preferred = request.preferred;
        let (events, mut said) = mpsc::channel(EVENTS_HELD);
        let (declare, declared) = oneshot::channel();
        let utterance = Utterance {
            endpoint: Arc::clone(&self.endpoint),
            credential,
            is_vendors: self.is_vendors,
            request,
            rate: None,
            declare: Some(declare),
            events,
        };
        tokio::spawn(utterance.run(text));
        if self.is_vendors {
            return Ok(TtsStream {
                format: AudioFormat::mono(Encoding::Linear16, RATE),
                events: ReceiverStream::new(said).boxed(),
            });
        }
        let (format, first) = match declared.await {
            Ok(rate) => (AudioFormat::mono(Encoding::Linear16, rate), None),
            // It ended before there was any sound: it failed, or there was nothing to say.
            Err(_) => match said.recv().await {
                Some(Ok(event)) => (preferred, Some(Ok(event))),
                Some(Err(error)) => return Err(error),
                None => return Err(late("the synthesis broke off")),
            },
        };
        let later = ReceiverStream::new(said);
        Ok(TtsStream {
            format,
            events: stream::iter(first).chain(later).boxed(),
        })
    }

    async fn voices(&self) -> Result<Vec<Voice>, ProviderError> {
        match (self.endpoint.own(), self.is_vendors) {
            (None, _) => Ok(Vec::new()),
            (Some(_), true) => Ok(voices::own()),
            (Some(_), false) => voices::of_server(&self.endpoint).await,
        }
    }
}

/// One utterance.
struct Utterance {
    endpoint: Arc<VendorEndpoint>,
    credential: Credential,
    is_vendors: bool,
    request: TtsRequest,
    /// Of the sound so far.
    rate: Option<SampleRate>,
    declare: Option<oneshot::Sender<SampleRate>>,
    events: mpsc::Sender<Result<TtsEvent, ProviderError>>,
}

/// How the sound of a line is written.
enum Written {
    /// The vendor's `pcm`, of whose samples the first half of one may be left over.
    Pcm(Option<u8>),
    /// WAV, which says its rate.
    Wav(Box<StreamDecoder>),
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
    async fn run(mut self, text: TextStream) {
        let events = self.events.clone();
        let said = tokio::select! {
            said = self.say(text) => said,
            () = events.closed() => return,
        };
        let last = match said {
            Ok(()) => Ok(TtsEvent::Done),
            Err(Ended::Failed(error)) => Err(error),
            Err(Ended::Unwanted) => return,
        };
        drop(self.declare.take());
        // Nobody may be left to hear it.
        let _ = events.send(last).await;
    }

    async fn say(&mut self, text: TextStream) -> Result<(), Ended> {
        let patience = self.request.connection_timeout;
        let fingerprint = self.credential.fingerprint();
        let permit = self
            .endpoint
            .permit(fingerprint, &self.request.party, patience)
            .await?;
        // What the server may still take. Neither the writer of the text nor the listener uses it up.
        let mut left = self.request.request_timeout;
        let mut lines = spoken_lines(text);
        while let Some(line) = lines.next().await {
            self.say_line(&line, &mut left).await?;
        }
        drop(permit);
        Ok(())
    }

    async fn say_line(&mut self, line: &str, left: &mut Duration) -> Result<(), Ended> {
        let mut answer = self.ask(line, left).await?;
        let mut patience = self.first_sound();
        let mut written = self.written()?;
        let mut has_sound = false;
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
            let audio = self.samples(&mut written, chunk)?;
            has_sound |= !audio.is_empty();
            self.sound(audio).await?;
        }
        if has_sound {
            return Ok(());
        }
        let problem = "answered without any sound";
        Err(ProviderError::new(SLUG, ErrorKind::Protocol, problem).into())
    }

    fn written(&self) -> Result<Written, ProviderError> {
        if self.is_vendors {
            return Ok(Written::Pcm(None));
        }
        let format = AudioFormat::mono(Encoding::Wav, RATE);
        let decoder = StreamDecoder::new(format).map_err(errors::unreadable)?;
        Ok(Written::Wav(Box::new(decoder)))
    }

    /// The whole samples that a piece completes.
    fn samples(&mut self, written: &mut Written, chunk: Bytes) -> Result<Bytes, ProviderError> {
        let decoder = match written {
            Written::Pcm(half) => return Ok(whole_samples(half, chunk)),
            Written::Wav(decoder) => decoder,
        };
        let mut samples = Vec::new();
        for sound in decoder.push(&chunk) {
            let sound = sound.map_err(errors::unreadable)?.into_mono();
            let rate = sound.rate();
            if *self.rate.get_or_insert(rate) != rate {
                return Err(errors::unreadable("the rate of its sound changes"));
            }
            if let Some(declare) = self.declare.take() {
                // Nobody may wait for it any more.
                let _ = declare.send(rate);
            }
            samples.extend(sound.into_samples());
        }
        Ok(linear16::encode(&samples))
    }

    /// How long the server may think before its first sound.
    const fn first_sound(&self) -> Duration {
        if self.is_vendors {
            FIRST_SOUND
        } else {
            OWN_SERVER
        }
    }

    /// The answer whose body is the sound.
    async fn ask(&self, line: &str, left: &mut Duration) -> Result<Response, ProviderError> {
        let Self { request, .. } = self;
        let mut asked = json!({
            "model": request.model,
            "input": line,
            "voice": request.voice_id.as_deref().unwrap_or(voices::DEFAULT),
            "response_format": if self.is_vendors { "pcm" } else { "wav" },
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
        let patience = request.connection_timeout + self.first_sound();
        let answer = timeout(patience.min(*left), sent).await;
        *left = left.saturating_sub(begun.elapsed());
        let mut answer = answer
            .map_err(|_| late("did not answer in time"))?
            .map_err(errors::broken)?;
        let media_type = answer.headers().get(CONTENT_TYPE).cloned();
        let is_text = media_type.is_some_and(|media_type| {
            let text = media_type.to_str().unwrap_or_default();
            text.starts_with("application/json") || text.starts_with("text/")
        });
        if answer.status().is_success() && !is_text {
            return Ok(answer);
        }
        let told = body(&mut answer).await.unwrap_or_default();
        let told = String::from_utf8_lossy(&told).into_owned();
        if answer.status().is_success() {
            let told = crate::transport::shortened(&told);
            return Err(errors::unreadable(format!("it is no sound: {told}")));
        }
        Err(errors::refused(&Refusal {
            status: answer.status(),
            headers: answer.headers().clone(),
            body: told,
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
