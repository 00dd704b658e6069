//! Google's synthesiser. Streaming voices are sent text as it arrives, in a call that is ended before Google aborts it for
//! lack of text; all others are sent sentence by sentence.

use std::collections::VecDeque;
use std::future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::voices::{Chosen, listed};
use super::wire::texttospeech::{
    AudioConfig, AudioEncoding, InputSource, ListVoicesRequest, ListVoicesResponse, Request,
    StreamingAudioConfig, StreamingInputSource, StreamingSynthesisInput, StreamingSynthesizeConfig,
    StreamingSynthesizeRequest, StreamingSynthesizeResponse, SynthesisInput,
    SynthesizeSpeechRequest, SynthesizeSpeechResponse, VoiceSelectionParams,
};
use super::wire::{LIST_VOICES, STREAMING_SYNTHESIZE, SYNTHESIZE_SPEECH};
use super::{Access, CONNECTING, GoogleEndpoint, SLUG, account};
use crate::transport::tts_driver::{FIRST_SOUND, STALLED};
use vivavoce_audio::format::{AudioFormat, Encoding, SampleRate};
use vivavoce_core::sentences::{is_speakable, portions, spoken_lines};
use vivavoce_core::ssml::Ssml;
use vivavoce_seams::parameters::{Parameter, converted, ignored, own};
use vivavoce_seams::{
    CredentialField, ErrorKind, ProviderError, Speaks, TakesSsml, TextStream, TextToSpeech, TtsEvent,
    TtsRequest, TtsStream, Voice,
};

/// Events that may wait for the listener: sound beyond them waits at Google.
const EVENTS_HELD: usize = 64;
/// Text in one message, less than the 5000 bytes that Google takes.
const MAX_TEXT_BYTES: usize = 3_000;
/// The largest document: Google takes so many bytes.
const DOCUMENT_BYTES: usize = 5_000;
/// A call that is sent no text for so long is ended: Google gives it up after five seconds.
const IDLE: Duration = Duration::from_secs(4);

/// What becomes of each field of `tts_config`.
const PARAMETERS: &[Parameter] = &[
    own("model", "voice.model_name"),
    own("voice_id", "voice.name, with the language that is in it"),
    converted("audio_format", "made of PCM"),
    own("sample_rate", "sample_rate_hertz"),
    own(
        "speaking_rate",
        "speaking_rate, from 0.25 to 2; beyond it the sound is stretched",
    ),
    converted("pronunciations", "replaced in the text"),
    ignored("words", "Google tells no times of words"),
    own("auth", "a service account"),
];

/// The synthesiser `google`.
pub(super) struct GoogleTts {
    endpoint: Arc<GoogleEndpoint>,
}

impl GoogleTts {
    pub(super) const fn new(endpoint: Arc<GoogleEndpoint>) -> Self {
        Self { endpoint }
    }
}

#[async_trait]
impl TextToSpeech for GoogleTts {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn endpoint(&self) -> &str {
        self.endpoint.vendor.url.url().as_str()
    }

    fn speaks(&self) -> Speaks {
        Speaks {
            speaking_rates: 0.25..=2.0,
        }
    }

    fn credential_fields(&self) -> &'static [CredentialField] {
        account::FIELDS
    }

    fn credential_fingerprint(&self) -> [u8; 32] {
        self.endpoint.vendor.own_fingerprint()
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    fn takes_ssml(&self) -> Option<TakesSsml> {
        Some(TakesSsml {
            bytes: DOCUMENT_BYTES,
            counts_root: true,
        })
    }

    async fn synthesize_ssml(
        &self,
        request: TtsRequest,
        document: &Ssml,
    ) -> Result<TtsStream, ProviderError> {
        self.speak(request, Given::Document(document.document()))
    }

    async fn synthesize(
        &self,
        request: TtsRequest,
        text: TextStream,
    ) -> Result<TtsStream, ProviderError> {
        self.speak(request, Given::Text(text))
    }

    async fn voices(&self) -> Result<Vec<Voice>, ProviderError> {
        if self.endpoint.vendor.own.is_err() {
            return Ok(Vec::new());
        }
        let access = self.endpoint.access(None)?;
        let channel = self.endpoint.channel(&access, CONNECTING).await?;
        let asking = channel.ask(LIST_VOICES, ListVoicesRequest::default());
        let list: ListVoicesResponse = timeout(CONNECTING, asking)
            .await
            .map_err(|_| error(ErrorKind::Timeout, "did not list its voices in time"))?
            .map_err(|status| self.endpoint.failed(&access, &status))?;
        Ok(list.voices.into_iter().map(listed).collect())
    }
}

/// What is said.
enum Given {
    Text(TextStream),
    /// SSML, which only whole requests take, whatever the voice.
    Document(String),
}

impl GoogleTts {
    fn speak(&self, request: TtsRequest, given: Given) -> Result<TtsStream, ProviderError> {
        let access = self.endpoint.access(request.credential.as_ref())?;
        let rate = request.preferred.layout.rate.min(SampleRate::MAX_WIRE);
        let (events, said) = mpsc::channel(EVENTS_HELD);
        let utterance = Utterance {
            endpoint: Arc::clone(&self.endpoint),
            access,
            voice: Chosen::new(request.voice_id.as_deref(), &request.model),
            rate,
            request,
            events,
        };
        tokio::spawn(utterance.run(given));
        Ok(TtsStream {
            format: AudioFormat::mono(Encoding::Linear16, rate),
            events: ReceiverStream::new(said).boxed(),
        })
    }
}

/// One utterance.
struct Utterance {
    endpoint: Arc<GoogleEndpoint>,
    access: Access,
    voice: Chosen,
    rate: SampleRate,
    request: TtsRequest,
    events: mpsc::Sender<Result<TtsEvent, ProviderError>>,
}

/// Nobody wants the rest.
struct Unwanted;

/// Why an utterance is not said to its end.
enum Ended {
    Unwanted,
    Failed(ProviderError),
}

impl From<ProviderError> for Ended {
    fn from(error: ProviderError) -> Self {
        Self::Failed(error)
    }
}

impl From<Unwanted> for Ended {
    fn from(_: Unwanted) -> Self {
        Self::Unwanted
    }
}

impl Utterance {
    async fn run(self, given: Given) {
        let last = match self.say(given).await {
            Ok(()) => Ok(TtsEvent::Done),
            Err(Ended::Failed(error)) => Err(error),
            Err(Ended::Unwanted) => return,
        };
        // Nobody may be left to hear it.
        let _ = self.events.send(last).await;
    }

    async fn say(&self, given: Given) -> Result<(), Ended> {
        let fingerprint = self.access.credential.fingerprint();
        let patience = self.request.connection_timeout;
        let vendor = &self.endpoint.vendor;
        let _permit = vendor
            .permit(fingerprint, &self.request.party, patience)
            .await?;
        match given {
            Given::Document(document) => self.say_whole(InputSource::Ssml(document)).await,
            Given::Text(text) if self.voice.streams => self.say_as_it_comes(text).await,
            Given::Text(text) => self.say_by_sentences(text).await,
        }
    }

    async fn sound(&self, audio: Bytes) -> Result<(), Unwanted> {
        if audio.is_empty() {
            return Ok(());
        }
        let sent = self.events.send(Ok(TtsEvent::Audio(audio))).await;
        sent.map_err(|_| Unwanted)
    }

    fn voice(&self) -> VoiceSelectionParams {
        VoiceSelectionParams {
            language_code: self.voice.language.clone(),
            name: self.voice.name.clone(),
            model_name: self.request.model.clone(),
        }
    }

    async fn say_by_sentences(&self, text: TextStream) -> Result<(), Ended> {
        let mut lines = spoken_lines(text);
        loop {
            let line = tokio::select! {
                line = lines.next() => line,
                () = self.events.closed() => return Err(Ended::Unwanted),
            };
            let Some(line) = line else { return Ok(()) };
            self.say_whole(InputSource::Text(line)).await?;
        }
    }

    async fn say_whole(&self, input: InputSource) -> Result<(), Ended> {
        let said = tokio::select! {
            said = timeout(self.request.request_timeout, self.whole(input)) => said,
            () = self.events.closed() => return Err(Ended::Unwanted),
        };
        let late = |_| error(ErrorKind::Timeout, "did not synthesise a sentence in time");
        self.sound(whole_samples(said.map_err(late)??)).await?;
        Ok(())
    }

    async fn whole(&self, input: InputSource) -> Result<Bytes, ProviderError> {
        let patience = self.request.connection_timeout;
        let channel = self.endpoint.channel(&self.access, patience).await?;
        let question = SynthesizeSpeechRequest {
            input: Some(SynthesisInput {
                input_source: Some(input),
            }),
            voice: Some(self.voice()),
            audio_config: Some(AudioConfig {
                audio_encoding: AudioEncoding::Pcm.into(),
                speaking_rate: self.request.speaking_rate,
                sample_rate_hertz: self.rate.hz() as i32,
                ..AudioConfig::default()
            }),
        };
        let answer: Result<SynthesizeSpeechResponse, _> =
            channel.ask(SYNTHESIZE_SPEECH, question).await;
        let answer = answer.map_err(|status| self.endpoint.failed(&self.access, &status))?;
        Ok(answer.audio_content)
    }

    /// One call after the other, each with the text that has come without a long pause.
    async fn say_as_it_comes(&self, mut text: TextStream) -> Result<(), Ended> {
        loop {
            // Nothing is begun before there is a word to say.
            let mut begun = String::new();
            while !is_speakable(&begun) {
                let piece = tokio::select! {
                    piece = text.next() => piece,
                    () = self.events.closed() => return Err(Ended::Unwanted),
                };
                match piece {
                    Some(piece) => begun.push_str(&piece),
                    None => return Ok(()),
                }
            }
            let mut stretch = Stretch {
                taken: vec![begun],
                text,
                text_ended: false,
                sounded: false,
            };
            let outcome = self.stretch(&mut stretch).await;
            match outcome {
                // A connection that was there before may have died since; one that is new has not.
                Err((Ended::Failed(error), true)) if error.kind == ErrorKind::Unavailable => {
                    tracing::debug!(%error, "a connection was dead");
                    self.stretch(&mut stretch)
                        .await
                        .map_err(|(ended, _)| ended)?;
                }
                outcome => outcome.map_err(|(ended, _)| ended)?,
            }
            if stretch.text_ended {
                return Ok(());
            }
            text = stretch.text;
        }
    }

    /// Says a stretch of the text in one call. True with an error when a new connection may do better.
    async fn stretch(&self, stretch: &mut Stretch) -> Result<(), (Ended, bool)> {
        let patience = self.request.connection_timeout;
        let channel = self.endpoint.channel(&self.access, patience).await;
        let channel = channel.map_err(|error| (Ended::Failed(error), false))?;
        let used_before = channel.used_before();
        let (requests, answers) = channel.call(STREAMING_SYNTHESIZE, self.first_message());
        let mut call = Call {
            requests: Some(requests),
            answers,
            unsent: stretch
                .taken
                .iter()
                .flat_map(|piece| inputs(piece))
                .collect(),
            refused: false,
            samples: Samples::default(),
            last_sent: Instant::now(),
            heard_of: Instant::now(),
        };
        let outcome = self.converse(&mut call, stretch).await;
        outcome.map_err(|ended| (ended, used_before && !stretch.sounded))
    }

    fn first_message(&self) -> StreamingSynthesizeRequest {
        StreamingSynthesizeRequest {
            request: Some(Request::StreamingConfig(StreamingSynthesizeConfig {
                voice: Some(self.voice()),
                streaming_audio_config: Some(StreamingAudioConfig {
                    audio_encoding: AudioEncoding::Pcm.into(),
                    sample_rate_hertz: self.rate.hz() as i32,
                    speaking_rate: self.request.speaking_rate,
                }),
            })),
        }
    }

    async fn converse(&self, call: &mut Call, stretch: &mut Stretch) -> Result<(), Ended> {
        loop {
            if stretch.text_ended && call.unsent.is_empty() {
                call.half_close();
            }
            match self.next(call, stretch).await {
                Next::Unwanted => return Err(Ended::Unwanted),
                Next::Answer(Err(status)) => {
                    return Err(self.endpoint.failed(&self.access, &status).into());
                }
                Next::Answer(Ok(None)) if call.requests.is_some() || !stretch.sounded => {
                    let problem = "ended before all audio was sent";
                    return Err(error(ErrorKind::Unavailable, problem).into());
                }
                Next::Answer(Ok(None)) => return Ok(()),
                Next::Answer(Ok(Some(answer))) => {
                    call.heard_of = Instant::now();
                    let audio = call.samples.whole(answer.audio_content);
                    if !audio.is_empty() {
                        stretch.sounded = true;
                        stretch.taken.clear();
                    }
                    self.sound(audio).await?;
                }
                Next::Room(Some(permit)) => {
                    if let Some(input) = call.unsent.pop_front() {
                        permit.send(input);
                        call.last_sent = Instant::now();
                    }
                }
                // Its answers say why.
                Next::Room(None) => call.refused = true,
                Next::Text(Some(piece)) => {
                    call.unsent.extend(inputs(&piece));
                    if !stretch.sounded {
                        stretch.taken.push(piece);
                    }
                }
                Next::Text(None) => stretch.text_ended = true,
                Next::Deadline if call.requests.is_some() && call.unsent.is_empty() => {
                    call.half_close();
                }
                Next::Deadline => {
                    let problem = "sent nothing while audio was outstanding";
                    return Err(error(ErrorKind::Timeout, problem).into());
                }
            }
        }
    }

    async fn next(&self, call: &mut Call, stretch: &mut Stretch) -> Next {
        let open = call.requests.is_some();
        let must_send = !call.unsent.is_empty();
        let room = call.requests.clone().filter(|_| must_send && !call.refused);
        let has_room = room.is_some();
        let takes_text = open && !must_send && !stretch.text_ended;
        let deadline = if takes_text {
            call.last_sent + IDLE
        } else {
            let patience = if stretch.sounded {
                STALLED
            } else {
                FIRST_SOUND
            };
            call.last_sent.max(call.heard_of) + patience
        };
        tokio::select! {
            biased;
            answer = call.answers.next() => Next::Answer(answer),
            () = self.events.closed() => Next::Unwanted,
            permit = permit(room), if has_room => Next::Room(permit),
            piece = stretch.text.next(), if takes_text => Next::Text(piece),
            () = sleep_until(deadline) => Next::Deadline,
        }
    }
}

/// A stretch of the text.
struct Stretch {
    text: TextStream,
    text_ended: bool,
    /// What the text has brought so far, until there is sound: a dead connection's text is said again.
    taken: Vec<String>,
    sounded: bool,
}

/// The call that says it.
struct Call {
    requests: Option<mpsc::Sender<StreamingSynthesizeRequest>>,
    answers: super::call::Answers<StreamingSynthesizeResponse>,
    unsent: VecDeque<StreamingSynthesizeRequest>,
    /// It takes no more.
    refused: bool,
    samples: Samples,
    last_sent: Instant,
    heard_of: Instant,
}

impl Call {
    /// There will be no more text; what was sent is said to its end.
    fn half_close(&mut self) {
        if self.requests.take().is_some() {
            self.last_sent = Instant::now();
        }
    }
}

enum Next {
    Answer(Result<Option<StreamingSynthesizeResponse>, Status>),
    /// There is room for a message; `None` when the call takes no more.
    Room(Option<OwnedPermit<StreamingSynthesizeRequest>>),
    Text(Option<String>),
    Deadline,
    Unwanted,
}

/// A text as messages.
fn inputs(text: &str) -> impl Iterator<Item = StreamingSynthesizeRequest> {
    let portions = portions(text, MAX_TEXT_BYTES).into_iter();
    portions.map(|portion| StreamingSynthesizeRequest {
        request: Some(Request::Input(StreamingSynthesisInput {
            input_source: Some(StreamingInputSource::Text(portion.to_owned())),
        })),
    })
}

async fn permit(
    requests: Option<mpsc::Sender<StreamingSynthesizeRequest>>,
) -> Option<OwnedPermit<StreamingSynthesizeRequest>> {
    match requests {
        Some(requests) => requests.reserve_owned().await.ok(),
        None => future::pending().await,
    }
}

/// Puts samples together again that were cut between two messages.
#[derive(Debug, Default)]
struct Samples {
    half: Option<u8>,
}

impl Samples {
    fn whole(&mut self, audio: Bytes) -> Bytes {
        let mut audio = match self.half.take() {
            None => audio,
            Some(half) => {
                let mut joined = BytesMut::with_capacity(audio.len() + 1);
                joined.extend_from_slice(&[half]);
                joined.extend_from_slice(&audio);
                joined.freeze()
            }
        };
        if audio.len() % 2 == 1 {
            self.half = audio.split_off(audio.len() - 1).first().copied();
        }
        audio
    }
}

/// Half a sample at the end of a sentence would shift the next.
fn whole_samples(mut audio: Bytes) -> Bytes {
    audio.truncate(audio.len() & !1);
    audio
}

fn error(kind: ErrorKind, message: &str) -> ProviderError {
    ProviderError::new(SLUG, kind, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_seams::parameters::TTS_FIELDS;

    #[test]
    fn every_field_has_its_row() {
        let fields: Vec<_> = PARAMETERS.iter().map(|row| row.field).collect();
        assert_eq!(fields, TTS_FIELDS);
    }

    #[test]
    fn a_sample_that_was_cut_between_two_messages_is_whole_again() {
        let sound: Vec<u8> = (0..40).collect();
        for cut in 0..sound.len() {
            for second in cut..sound.len() {
                let mut samples = Samples::default();
                let mut whole = Vec::new();
                for piece in [&sound[..cut], &sound[cut..second], &sound[second..]] {
                    let audio = samples.whole(Bytes::copy_from_slice(piece));
                    assert_eq!(audio.len() % 2, 0);
                    whole.extend_from_slice(&audio);
                }
                assert_eq!(whole, sound);
            }
        }
        assert_eq!(whole_samples(Bytes::from_static(&[1, 2, 3]))[..], [1, 2]);
        assert!(whole_samples(Bytes::new()).is_empty());
    }

    #[test]
    fn a_long_text_is_more_than_one_message_and_all_of_it() {
        let text = "Ein längerer Satz über Grüße. ".repeat(500);
        let mut joined = String::new();
        for input in inputs(&text) {
            let Some(Request::Input(input)) = input.request else {
                panic!("no input");
            };
            let Some(StreamingInputSource::Text(portion)) = input.input_source else {
                panic!("no text");
            };
            assert!(portion.len() <= MAX_TEXT_BYTES);
            joined.push_str(&portion);
        }
        assert_eq!(joined, text);
    }
}
