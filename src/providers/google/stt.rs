//! Google's recogniser. Google has no finalisation on request, and aborts calls that receive no audio for some seconds. In
//! both cases the call is half-closed, whereupon its last finals arrive, and further audio goes to a new call. A stream is
//! thus a chain of calls whose results are reported in order.

use std::collections::VecDeque;
use std::future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::call::Answers;
use super::wire::STREAMING_RECOGNIZE;
use super::wire::speech::{
    AdaptationPhraseSet, DecodingConfig, ExplicitDecodingConfig, Phrase, PhraseSet,
    RecognitionConfig, RecognitionFeatures, Request, SpeakerDiarizationConfig, SpeechAdaptation,
    SpeechEventType, StreamingRecognitionConfig, StreamingRecognitionFeatures,
    StreamingRecognitionResult, StreamingRecognizeRequest, StreamingRecognizeResponse, WordInfo,
};
use super::{Access, CONNECTING, GoogleEndpoint, SLUG, account};
use crate::transport::Permit;
use vivavoce_audio::format::{AudioFormat, Encoding};
use vivavoce_audio::g711::Law;
use vivavoce_audio::linear16;
use vivavoce_seams::parameters::{Parameter, converted, own};
use vivavoce_seams::{
    Accepts, AudioSink, CredentialField, ErrorKind, FinalDelay, ProviderError, SpeechToText,
    SttEvent, SttInput, SttRequest, SttStream, Transcript, Word,
};

/// Chunks of sound that may wait for the driver.
const CHUNKS_HELD: usize = 64;
/// Events that may wait for the listener.
const EVENTS_HELD: usize = 64;
/// Sound in one message, and the most bytes of it that every version of Google's documents allows.
const CHUNK: Duration = Duration::from_millis(100);
const MAX_CHUNK_BYTES: usize = 15_000;
/// Less sound is sent after so long.
const GATHERING: Duration = Duration::from_millis(200);
/// A call that is sent nothing is ended after so long: Google gives it up after five seconds or more.
const IDLE: Duration = Duration::from_secs(4);
/// How long a call may take to end after its last sound.
const LAST_FINALS: Duration = Duration::from_secs(10);
/// Calls whose answers are awaited at once; sound waits when there are more.
const CALLS: usize = 4;
/// How long somebody may speak without an answer, as [`SpeechToText::answers_within`] means it.
const ANSWER: Duration = Duration::from_secs(3);
/// A call that nobody wants any more has brought its connection under suspicion if it was sent so much loud sound since its last
/// answer: whoever gave it up may have done so for that.
const SUSPICIOUS: Duration = Duration::from_millis(1_500);
/// The mean square above which a message is loud: −40 dBFS.
const LOUD: f64 = 328.0 * 328.0;
/// How much a keyterm counts, of 20.
const BOOST: f32 = 10.0;
/// The sensitivity of endpointing with which finals come soon.
const SHORT: i32 = 3;

/// What becomes of each field of `stt_config`.
const PARAMETERS: &[Parameter] = &[
    own("language", "config.language_codes"),
    own("languages", "config.language_codes"),
    own("model", "config.model"),
    own("encoding", "config.explicit_decoding_config.encoding"),
    own(
        "sample_rate",
        "config.explicit_decoding_config.sample_rate_hertz",
    ),
    converted("channels", "mixed to one"),
    own(
        "punctuation",
        "config.features.enable_automatic_punctuation",
    ),
    own("keyterms", "config.adaptation.phrase_sets"),
    own(
        "diarize",
        "config.features.diarization_config, where the model is not of the chirp family",
    ),
    converted(
        "min_confidence",
        "finals below it are dropped, where the model is not chirp_3, which gives none",
    ),
    own(
        "words",
        "config.features.enable_word_time_offsets, where the model is not chirp_3",
    ),
    own("auth", "a service account"),
];

/// The model that hears when none is asked for, by location; elsewhere it is [`EVERYWHERE`].
const MODELS: &[(&str, &str)] = &[
    ("us", "chirp_3"),
    ("eu", "chirp_3"),
    ("asia-northeast1", "chirp_3"),
    ("asia-southeast1", "chirp_3"),
    ("us-central1", "chirp_2"),
    ("europe-west4", "chirp_2"),
];
const EVERYWHERE: &str = "latest_long";

/// Languages that Google calls by another name than their usual one.
const LANGUAGES: &[(&str, &str)] = &[
    ("zh", "cmn-Hans-CN"),
    ("zh-CN", "cmn-Hans-CN"),
    ("zh-TW", "cmn-Hant-TW"),
    ("zh-HK", "yue-Hant-HK"),
];

/// The recogniser `google`.
pub(super) struct GoogleStt {
    endpoint: Arc<GoogleEndpoint>,
    location: String,
}

impl GoogleStt {
    pub(super) const fn new(endpoint: Arc<GoogleEndpoint>, location: String) -> Self {
        Self { endpoint, location }
    }
}

#[async_trait]
impl SpeechToText for GoogleStt {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn answers_within(&self) -> Option<Duration> {
        Some(ANSWER)
    }

    fn final_delay(&self) -> FinalDelay {
        FinalDelay::of_ms(878, 1_155)
    }

    fn accepts(&self) -> Accepts {
        Accepts {
            encodings: &[Encoding::Linear16, Encoding::Mulaw, Encoding::Alaw],
            rates: &[],
            stereo: false,
            stream_limit: Some(Duration::from_secs(295)),
        }
    }

    fn credential_fields(&self) -> &'static [CredentialField] {
        account::FIELDS
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    async fn open(&self, request: SttRequest) -> Result<SttStream, ProviderError> {
        let access = self.endpoint.access(request.credential.as_ref())?;
        let config = config(&request, &access, &self.location)?;
        let fingerprint = access.credential.fingerprint();
        let vendor = &self.endpoint.vendor;
        let permit = vendor
            .permit(fingerprint, &request.party, CONNECTING)
            .await?;
        // The first call is begun with the first sound; that there can be one is known now.
        self.endpoint.channel(&access, CONNECTING).await?;
        let (sink, input) = AudioSink::channel(CHUNKS_HELD);
        let (events, heard) = mpsc::channel(EVENTS_HELD);
        let driver = Driver {
            endpoint: Arc::clone(&self.endpoint),
            access,
            config,
            bytes_per_second: bytes_per_second(request.format),
            law: match request.format.encoding {
                Encoding::Mulaw => Some(Law::Mu),
                Encoding::Alaw => Some(Law::A),
                _ => None,
            },
            input,
            events,
            gathered: BytesMut::new(),
            gathered_since: Instant::now(),
            due: Due::Nothing,
            ended: false,
            sent_bytes: 0,
            last_sent: Instant::now(),
            requests: None,
            calls: VecDeque::new(),
            _permit: permit,
        };
        tokio::spawn(driver.run());
        let events = ReceiverStream::new(heard).boxed();
        Ok(SttStream { sink, events })
    }
}

/// The first message of each call.
fn config(
    request: &SttRequest,
    access: &Access,
    location: &str,
) -> Result<StreamingRecognizeRequest, ProviderError> {
    let invalid = |problem: &str| ProviderError::new(SLUG, ErrorKind::InvalidRequest, problem);
    let project = account::project_of(&access.credential)
        .ok_or_else(|| invalid("the credential names no project"))?;
    let encoding = match request.format.encoding {
        Encoding::Linear16 => 1,
        Encoding::Mulaw => 2,
        Encoding::Alaw => 3,
        _ => return Err(invalid("accepts linear16, mulaw and alaw")),
    };
    let model = if request.model.is_empty() {
        let of_location = MODELS.iter().find(|(known, _)| *known == location);
        of_location.map_or(EVERYWHERE, |(_, model)| model)
    } else {
        &request.model
    };
    let chirp = model.starts_with("chirp");
    let decoding = ExplicitDecodingConfig {
        encoding,
        sample_rate_hertz: request.format.layout.rate.hz() as i32,
        audio_channel_count: 1,
    };
    let features = RecognitionFeatures {
        // It refuses the whole call when it is asked for them.
        enable_word_time_offsets: model != "chirp_3",
        enable_word_confidence: model != "chirp_3",
        enable_automatic_punctuation: request.punctuation,
        diarization_config: (request.diarize && !chirp).then_some(SpeakerDiarizationConfig {
            min_speaker_count: 1,
            max_speaker_count: 6,
        }),
        ..RecognitionFeatures::default()
    };
    let config = RecognitionConfig {
        features: Some(features),
        adaptation: adaptation(&request.keyterms),
        decoding_config: Some(DecodingConfig::Explicit(decoding)),
        model: model.to_owned(),
        language_codes: language_codes(request),
    };
    let streaming_features = StreamingRecognitionFeatures {
        enable_voice_activity_events: true,
        interim_results: true,
        // Others do not know it.
        endpointing_sensitivity: if model == "chirp_3" { SHORT } else { 0 },
    };
    Ok(StreamingRecognizeRequest {
        recognizer: format!("projects/{project}/locations/{location}/recognizers/_"),
        request: Some(Request::StreamingConfig(StreamingRecognitionConfig {
            config: Some(config),
            streaming_features: Some(streaming_features),
        })),
    })
}

fn language_codes(request: &SttRequest) -> Vec<String> {
    let mut codes: Vec<String> = Vec::new();
    for language in std::iter::once(&request.language).chain(&request.languages) {
        let known = LANGUAGES.iter().find(|(usual, _)| usual == language);
        let code = known.map_or(language.as_str(), |(_, code)| code);
        if !codes.iter().any(|known| known == code) {
            codes.push(code.to_owned());
        }
    }
    codes
}

fn adaptation(keyterms: &[String]) -> Option<SpeechAdaptation> {
    let phrase = |value: &String| Phrase {
        value: value.clone(),
        boost: BOOST,
    };
    let inline = PhraseSet {
        phrases: keyterms.iter().map(phrase).collect(),
    };
    (!keyterms.is_empty()).then(|| SpeechAdaptation {
        phrase_sets: vec![AdaptationPhraseSet {
            inline_phrase_set: Some(inline),
        }],
    })
}

fn bytes_per_second(format: AudioFormat) -> usize {
    let sample = if format.encoding == Encoding::Linear16 {
        2
    } else {
        1
    };
    format.layout.rate.hz() as usize * sample
}

/// What the answers of one call mean.
#[derive(Debug, Default)]
struct ResultTracker {
    /// Where the call's sound begins, in seconds of the stream.
    begins: f64,
    /// What was heard since the last final.
    partial: Option<Transcript>,
    /// The utterance that is spoken has had a final.
    has_final: bool,
    /// The speaker has paused, and the final of what was said has not come yet.
    has_paused: bool,
}

impl ResultTracker {
    fn at(begins: f64) -> Self {
        Self {
            begins,
            ..Self::default()
        }
    }

    fn hear(&mut self, answer: &StreamingRecognizeResponse, events: &mut Vec<SttEvent>) {
        let activity = answer.speech_event_type();
        if activity == SpeechEventType::SpeechActivityBegin {
            (self.has_final, self.has_paused) = (false, false);
        }
        for result in answer.results.iter().filter(|result| result.is_final) {
            self.hear_final(result, events);
        }
        // Stable words first, then those that may still change: together they are what is heard so far.
        let interim = answer.results.iter().filter(|result| !result.is_final);
        self.hear_interim(interim, events);
        let paused = [
            SpeechEventType::SpeechActivityEnd,
            SpeechEventType::EndOfSingleUtterance,
        ];
        if paused.contains(&activity) {
            if self.has_final && self.partial.is_none() {
                events.push(SttEvent::EndOfSpeech);
            } else {
                self.has_paused = true;
            }
        }
    }

    fn hear_final(&mut self, result: &StreamingRecognitionResult, events: &mut Vec<SttEvent>) {
        let heard = self.transcript([result]);
        let had_partial = self.partial.take().is_some();
        if !heard.text.is_empty() {
            events.push(SttEvent::Final(heard));
        } else if had_partial {
            // It has come to nothing.
            events.push(SttEvent::Partial(Transcript::default()));
        } else {
            return;
        }
        self.has_final = true;
        if std::mem::take(&mut self.has_paused) {
            events.push(SttEvent::EndOfSpeech);
        }
    }

    fn hear_interim<'a>(
        &mut self,
        results: impl Iterator<Item = &'a StreamingRecognitionResult>,
        events: &mut Vec<SttEvent>,
    ) {
        let heard = self.transcript(results);
        if !heard.text.is_empty() {
            self.partial = Some(heard.clone());
            events.push(SttEvent::Partial(heard));
        }
    }

    /// The call has ended well: what had no final will get none.
    fn finish(self, events: &mut Vec<SttEvent>) {
        events.extend(self.partial.map(SttEvent::Final));
        if self.has_paused {
            events.push(SttEvent::EndOfSpeech);
        }
    }

    fn transcript<'a>(
        &self,
        results: impl IntoIterator<Item = &'a StreamingRecognitionResult>,
    ) -> Transcript {
        let mut heard = Transcript::default();
        for result in results {
            let Some(best) = result.alternatives.first() else {
                continue;
            };
            let end = result.result_end_offset.map(|end| self.seconds(Some(end)));
            heard.end = heard.end.into_iter().chain(end).reduce(f64::max);
            heard.text.push_str(&best.transcript);
            heard.confidence = given(best.confidence);
            heard
                .words
                .extend(best.words.iter().map(|word| self.word(word)));
            if !result.language_code.is_empty() {
                heard.language = Some(result.language_code.clone());
            }
        }
        heard.text = heard.text.trim().to_owned();
        heard
    }

    /// A place in the stream. Nought is not written.
    fn seconds(&self, offset: Option<super::wire::Duration>) -> f64 {
        let offset = offset.map_or(Duration::ZERO, super::wire::Duration::time);
        self.begins + offset.as_secs_f64()
    }

    fn word(&self, word: &WordInfo) -> Word {
        Word {
            word: word.word.clone(),
            start: self.seconds(word.start_offset),
            end: self.seconds(word.end_offset),
            confidence: given(word.confidence),
            speaker: (!word.speaker_label.is_empty()).then(|| word.speaker_label.clone()),
        }
    }
}

/// Google writes nought where it knows none.
fn given(confidence: f32) -> Option<f32> {
    (confidence > 0.0).then_some(confidence.min(1.0))
}

/// A call whose answers are awaited.
struct RecognitionCall {
    answers: Answers<StreamingRecognizeResponse>,
    tracker: ResultTracker,
    /// Loud sound that it was sent since it answered last.
    unanswered: Duration,
    /// Since when it is sent no more.
    half_closed: Option<Instant>,
}

/// What must happen to the sound that was gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// Nothing before there is enough of it.
    Nothing,
    /// It is sent.
    Sending,
    /// It is sent, and then the call is ended.
    HalfClose,
}

struct Driver {
    endpoint: Arc<GoogleEndpoint>,
    access: Access,
    config: StreamingRecognizeRequest,
    bytes_per_second: usize,
    /// How samples are compressed, if they are.
    law: Option<Law>,
    input: mpsc::Receiver<SttInput>,
    events: mpsc::Sender<Result<SttEvent, ProviderError>>,
    gathered: BytesMut,
    gathered_since: Instant,
    due: Due,
    /// Whether the sound has ended.
    ended: bool,
    sent_bytes: usize,
    last_sent: Instant,
    /// The way up of the last call, while it is not half-closed.
    requests: Option<mpsc::Sender<StreamingRecognizeRequest>>,
    /// Oldest first. Only the first is listened to: what the next ones say comes after it.
    calls: VecDeque<RecognitionCall>,
    _permit: Permit,
}

enum Next {
    Answer(Result<Option<StreamingRecognizeResponse>, Status>),
    Input(Option<SttInput>),
    /// There is room for a message; `None` when the call takes no more.
    Room(Option<OwnedPermit<StreamingRecognizeRequest>>),
    Deadline,
    Unwanted,
}

impl Driver {
    async fn run(mut self) {
        if let Err(error) = self.converse().await {
            if error.kind == ErrorKind::Timeout {
                self.distrust();
            }
            // Nobody may be left to hear it.
            let _ = self.events.send(Err(error)).await;
        }
    }

    async fn converse(&mut self) -> Result<(), ProviderError> {
        loop {
            if self.requests.is_none() && self.must_send() {
                self.begin().await?;
            }
            match self.next().await {
                Next::Unwanted => {
                    self.distrust();
                    return Ok(());
                }
                Next::Answer(answer) => {
                    if !self.answered(answer).await? {
                        return Ok(());
                    }
                }
                Next::Input(input) => self.take(input),
                Next::Room(permit) => self.send_chunk(permit),
                Next::Deadline => self.tick()?,
            }
            if self.ended && self.due == Due::Nothing && self.calls.is_empty() {
                return Ok(());
            }
        }
    }

    /// Begins the call for the sound that follows.
    async fn begin(&mut self) -> Result<(), ProviderError> {
        let channel = self.endpoint.channel(&self.access, CONNECTING).await?;
        let (requests, answers) = channel.call(STREAMING_RECOGNIZE, self.config.clone());
        self.requests = Some(requests);
        self.last_sent = Instant::now();
        self.calls.push_back(RecognitionCall {
            answers,
            tracker: ResultTracker::at(self.sent_bytes as f64 / self.bytes_per_second as f64),
            unanswered: Duration::ZERO,
            half_closed: None,
        });
        Ok(())
    }

    /// The connection of a call that was given up unanswered may be half open: the next call shall not wait on it, too.
    fn distrust(&self) {
        let silent = |call: &&RecognitionCall| call.unanswered >= SUSPICIOUS;
        for call in self.calls.iter().filter(silent) {
            self.endpoint.shared.channels.distrust(call.answers.lease());
        }
    }

    async fn next(&mut self) -> Next {
        let deadline = self.deadline();
        let must_send = self.must_send();
        let takes_input =
            !self.ended && !must_send && self.due == Due::Nothing && self.calls.len() < CALLS;
        let room = self
            .requests
            .clone()
            .filter(|requests| must_send && !requests.is_closed());
        let has_room = room.is_some();
        tokio::select! {
            biased;
            answer = answer(&mut self.calls) => Next::Answer(answer),
            () = self.events.closed() => Next::Unwanted,
            () = sleep_until(deadline.unwrap_or(self.last_sent)), if deadline.is_some() => Next::Deadline,
            permit = permit(room), if has_room => Next::Room(permit),
            input = self.input.recv(), if takes_input => Next::Input(input),
        }
    }

    fn chunk_bytes(&self) -> usize {
        let bytes = self.bytes_per_second as f64 * CHUNK.as_secs_f64();
        // Whole samples.
        (bytes as usize).min(MAX_CHUNK_BYTES) & !1
    }

    fn must_send(&self) -> bool {
        let enough = self.gathered.len() >= self.chunk_bytes();
        enough || (self.due != Due::Nothing && !self.gathered.is_empty())
    }

    fn deadline(&self) -> Option<Instant> {
        let waits = !self.gathered.is_empty() && !self.must_send();
        let gathered = waits.then(|| self.gathered_since + GATHERING);
        let idle = self.requests.is_some() && !self.must_send();
        let idle = idle.then(|| self.last_sent + IDLE);
        let closed = self.calls.front().and_then(|first| first.half_closed);
        let last_finals = closed.map(|since| since + LAST_FINALS);
        [gathered, idle, last_finals].into_iter().flatten().min()
    }

    fn tick(&mut self) -> Result<(), ProviderError> {
        let now = Instant::now();
        let closed = self.calls.front().and_then(|first| first.half_closed);
        if closed.is_some_and(|since| now >= since + LAST_FINALS) {
            return Err(error(ErrorKind::Timeout, "did not end the stream in time"));
        }
        if self.requests.is_some() && now >= self.last_sent + IDLE {
            self.end_call();
        } else if !self.gathered.is_empty() && now >= self.gathered_since + GATHERING {
            self.due = Due::Sending;
        }
        Ok(())
    }

    fn take(&mut self, input: Option<SttInput>) {
        match input {
            Some(SttInput::Audio(audio)) => {
                if self.gathered.is_empty() {
                    self.gathered_since = Instant::now();
                }
                self.gathered.extend_from_slice(&audio);
            }
            Some(SttInput::Finalize) => self.end_call(),
            None => {
                self.ended = true;
                self.end_call();
            }
        }
    }

    /// Everything that was taken so far shall become final.
    fn end_call(&mut self) {
        if self.gathered.is_empty() {
            self.half_close();
        } else {
            self.due = Due::HalfClose;
        }
    }

    fn half_close(&mut self) {
        self.due = Due::Nothing;
        // One that has taken no more for some time has not heard everything.
        let requests = self.requests.take();
        if requests.is_some_and(|requests| !requests.is_closed())
            && let Some(last) = self.calls.back_mut()
        {
            last.half_closed = Some(Instant::now());
        }
    }

    fn send_chunk(&mut self, permit: Option<OwnedPermit<StreamingRecognizeRequest>>) {
        // A call that takes no more says why.
        let Some(permit) = permit else { return };
        let bytes = self.gathered.len().min(self.chunk_bytes());
        let audio: Bytes = self.gathered.split_to(bytes).freeze();
        if let Some(last) = self.calls.back_mut()
            && is_loud(&audio, self.law)
        {
            let time = audio.len() as f64 / self.bytes_per_second as f64;
            last.unanswered += Duration::from_secs_f64(time);
        }
        permit.send(StreamingRecognizeRequest {
            recognizer: String::new(),
            request: Some(Request::Audio(audio)),
        });
        self.sent_bytes += bytes;
        self.last_sent = Instant::now();
        self.gathered_since = self.last_sent;
        if self.gathered.is_empty() {
            match self.due {
                Due::HalfClose => self.half_close(),
                Due::Sending | Due::Nothing => self.due = Due::Nothing,
            }
        }
    }

    /// False when nobody listens any more.
    async fn answered(
        &mut self,
        answer: Result<Option<StreamingRecognizeResponse>, Status>,
    ) -> Result<bool, ProviderError> {
        let answer = answer.map_err(|status| self.endpoint.failed(&self.access, &status))?;
        let mut events = Vec::new();
        match (answer, self.calls.front_mut()) {
            (Some(answer), Some(first)) => {
                first.unanswered = Duration::ZERO;
                first.tracker.hear(&answer, &mut events);
            }
            (None, Some(first)) if first.half_closed.is_none() => {
                return Err(error(ErrorKind::Unavailable, "ended the stream"));
            }
            (None, _) => {
                if let Some(first) = self.calls.pop_front() {
                    first.tracker.finish(&mut events);
                }
            }
            (Some(_), None) => {}
        }
        for event in events {
            if self.events.send(Ok(event)).await.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn is_loud(audio: &[u8], law: Option<Law>) -> bool {
    let samples = match law {
        Some(law) => {
            let mut samples = Vec::with_capacity(audio.len());
            law.expand(audio, &mut samples);
            samples
        }
        None => linear16::samples(audio),
    };
    let energy: f64 = samples.iter().map(|&sample| f64::from(sample).powi(2)).sum();
    energy > LOUD * samples.len() as f64
}

async fn answer(
    calls: &mut VecDeque<RecognitionCall>,
) -> Result<Option<StreamingRecognizeResponse>, Status> {
    match calls.front_mut() {
        Some(first) => first.answers.next().await,
        None => future::pending().await,
    }
}

async fn permit(
    requests: Option<mpsc::Sender<StreamingRecognizeRequest>>,
) -> Option<OwnedPermit<StreamingRecognizeRequest>> {
    requests?.reserve_owned().await.ok()
}

fn error(kind: ErrorKind, message: &str) -> ProviderError {
    ProviderError::new(SLUG, kind, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::google::wire::Duration as Offset;
    use crate::google::wire::speech::SpeechRecognitionAlternative;
    use vivavoce_audio::format::SampleRate;
    use vivavoce_seams::parameters::STT_FIELDS;

    fn result(text: &str, is_final: bool) -> StreamingRecognitionResult {
        StreamingRecognitionResult {
            alternatives: vec![SpeechRecognitionAlternative {
                transcript: text.to_owned(),
                confidence: if is_final { 0.5 } else { 0.0 },
                words: Vec::new(),
            }],
            is_final,
            ..StreamingRecognitionResult::default()
        }
    }

    fn results(results: &[(&str, bool)]) -> StreamingRecognizeResponse {
        StreamingRecognizeResponse {
            results: results
                .iter()
                .map(|(text, is_final)| result(text, *is_final))
                .collect(),
            ..StreamingRecognizeResponse::default()
        }
    }

    fn activity(of: SpeechEventType) -> StreamingRecognizeResponse {
        StreamingRecognizeResponse {
            speech_event_type: of.into(),
            ..StreamingRecognizeResponse::default()
        }
    }

    /// What a tracker makes of the answers of a call that ends well.
    fn told(answers: &[StreamingRecognizeResponse]) -> Vec<String> {
        let mut tracker = ResultTracker::at(10.0);
        let mut events = Vec::new();
        for answer in answers {
            tracker.hear(answer, &mut events);
        }
        tracker.finish(&mut events);
        let told = |event: SttEvent| match event {
            SttEvent::Partial(heard) => format!("~{}", heard.text),
            SttEvent::Final(heard) => heard.text,
            SttEvent::EndOfSpeech => ".".to_owned(),
            SttEvent::UtteranceLost(error) => error.to_string(),
        };
        events.into_iter().map(told).collect()
    }

    #[test]
    fn what_is_heard_so_far_is_all_interim_results_together() {
        assert_eq!(
            told(&[
                results(&[("hello", false)]),
                results(&[("hello there", false), (" how", false)]),
                results(&[("hello there", true), (" how are", false)]),
                results(&[(" how are you", true)]),
            ]),
            [
                "~hello",
                "~hello there how",
                "hello there",
                "~how are",
                "how are you"
            ]
        );
    }

    #[test]
    fn the_end_of_speech_comes_behind_the_final_of_what_was_said() {
        use SpeechEventType::{SpeechActivityBegin, SpeechActivityEnd};
        let (begin, end) = (activity(SpeechActivityBegin), activity(SpeechActivityEnd));
        let (interim, last) = (results(&[("one", false)]), results(&[("one", true)]));
        let early = [begin.clone(), interim.clone(), end.clone(), last.clone()];
        assert_eq!(told(&early), ["~one", "one", "."]);
        let late = [begin.clone(), interim, last.clone(), end.clone()];
        assert_eq!(told(&late), ["~one", "one", "."]);
        let unheralded = [begin.clone(), end.clone(), last];
        assert_eq!(told(&unheralded), ["one", "."]);
        let noise = [begin.clone(), end.clone(), begin, end];
        assert_eq!(told(&noise), ["."]);
    }

    #[test]
    fn nothing_is_no_transcript_and_a_last_word_without_final_is_not_lost() {
        assert!(told(&[results(&[("", false)]), results(&[("  ", true)])]).is_empty());
        assert!(told(&[results(&[])]).is_empty());
        let taken_back = [results(&[("mhm", false)]), results(&[("", true)])];
        assert_eq!(told(&taken_back), ["~mhm", "~"]);
        assert_eq!(told(&[results(&[("bye", false)])]), ["~bye", "bye"]);
    }

    #[test]
    fn words_are_at_their_places_in_the_stream() {
        let mut answer = results(&[("one two", true)]);
        let offset = |ms| Some(Offset::from(Duration::from_millis(ms)));
        let word = |text: &str, start, end| WordInfo {
            word: text.to_owned(),
            start_offset: start,
            end_offset: end,
            confidence: 0.25,
            speaker_label: "1".to_owned(),
        };
        answer.results[0].result_end_offset = offset(1_000);
        answer.results[0].language_code = "en-us".to_owned();
        answer.results[0].alternatives[0].words = vec![
            word("one", None, offset(500)),
            word("two", offset(500), offset(750)),
        ];
        let (mut tracker, mut events) = (ResultTracker::at(10.0), Vec::new());
        tracker.hear(&answer, &mut events);
        let [SttEvent::Final(heard)] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!(heard.confidence, Some(0.5));
        assert_eq!(heard.end, Some(11.0));
        assert_eq!(heard.language.as_deref(), Some("en-us"));
        let places: Vec<_> = heard
            .words
            .iter()
            .map(|word| (word.start, word.end))
            .collect();
        assert_eq!(places, [(10.0, 10.5), (10.5, 10.75)]);
        assert_eq!(heard.words[0].confidence, Some(0.25));
        assert_eq!(heard.words[0].speaker.as_deref(), Some("1"));
    }

    fn request() -> SttRequest {
        SttRequest {
            party: vivavoce_quotas::Party::Operator,
            language: "en-US".to_owned(),
            model: String::new(),
            punctuation: true,
            format: AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000),
            keyterms: vec!["Contoso".to_owned()],
            languages: vec!["zh-CN".to_owned(), "en-US".to_owned()],
            diarize: true,
            translate: false,
            credential: None,
        }
    }

    fn asked(request: &SttRequest, location: &str) -> (String, RecognitionConfig) {
        let account = account::tests::account("https://oauth2.googleapis.com/token");
        let access = Access {
            credential: account::of_server(&account.to_string()).unwrap(),
            of_server: true,
        };
        let first = config(request, &access, location).unwrap();
        let Some(Request::StreamingConfig(streaming)) = first.request else {
            panic!("no config");
        };
        (first.recognizer, streaming.config.unwrap())
    }

    #[test]
    fn what_is_asked_for_is_passed_on() {
        let (recognizer, config) = asked(&request(), "global");
        assert_eq!(
            recognizer,
            "projects/voices-1/locations/global/recognizers/_"
        );
        assert_eq!(config.model, "latest_long");
        assert_eq!(config.language_codes, ["en-US", "cmn-Hans-CN"]);
        let phrases = &config.adaptation.unwrap().phrase_sets[0];
        let phrases = &phrases.inline_phrase_set.as_ref().unwrap().phrases;
        assert_eq!(phrases[0].value, "Contoso");
        let features = config.features.unwrap();
        assert!(features.enable_word_time_offsets && features.enable_automatic_punctuation);
        assert!(features.diarization_config.is_some());
        let Some(DecodingConfig::Explicit(decoding)) = config.decoding_config else {
            panic!("no format");
        };
        assert_eq!((decoding.encoding, decoding.sample_rate_hertz), (1, 16_000));
    }

    #[test]
    fn a_location_has_its_model_which_is_not_asked_for_what_it_refuses() {
        for (location, model) in [
            ("eu", "chirp_3"),
            ("us-central1", "chirp_2"),
            ("x", EVERYWHERE),
        ] {
            assert_eq!(asked(&request(), location).1.model, model);
        }
        let features = asked(&request(), "eu").1.features.unwrap();
        assert!(!features.enable_word_time_offsets && !features.enable_word_confidence);
        assert!(features.diarization_config.is_none());
        let chosen = SttRequest {
            model: "telephony".to_owned(),
            ..request()
        };
        assert_eq!(asked(&chosen, "eu").1.model, "telephony");
    }

    #[test]
    fn every_field_has_its_row() {
        let fields: Vec<_> = PARAMETERS.iter().map(|row| row.field).collect();
        assert_eq!(fields, STT_FIELDS);
    }
}
