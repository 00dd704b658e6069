//! Recognition: the sound is cut into utterances here, and each is sent as a file when it has ended. Models that write their
//! answer as they find it are read as it comes, for partials. Utterances are asked for at once and told in their order.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesOrdered;
use reqwest::header::CONTENT_TYPE;
use reqwest::multipart::{Form, Part};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{SLUG, errors};
use crate::local::utterance::{Cut, Ended, UtteranceCutter};
use crate::transport::{Refusal, VendorEndpoint, body};
use vivavoce_audio::format::{Encoding, Layout};
use vivavoce_audio::{linear16, vad, wav};
use vivavoce_seams::parameters::{self, Parameter, converted, ignored, own};
use vivavoce_seams::{
    Accepts, AudioSink, Credential, CredentialField, ErrorKind, ProviderError, SpeechToText,
    SttEvent, SttInput, SttRequest, SttStream, Transcript, Word,
};

/// The model that takes keywords and several languages.
const NEWEST: &str = "gpt-transcribe";
/// Chunks of sound that may wait for the driver.
const CHUNKS_HELD: usize = 64;
/// Events that may wait for the listener.
const EVENTS_HELD: usize = 64;
/// Utterances that are asked for at once; sound waits when there are more.
const ASKED: usize = 4;
/// How long an answer may take: a small machine takes longer than the utterance.
const ANSWER: Duration = Duration::from_secs(30);
/// The largest answer.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// A request that failed for a passing reason is sent once more, after as long as the server says, at most.
const RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(5);
/// Models of which it is known that they tell no times.
const MAX_KNOWN: usize = 64;

/// What becomes of each field of `stt_config`.
const PARAMETERS: &[Parameter] = &[
    own("language", "language"),
    own("languages", "languages[] of gpt-transcribe"),
    own("model", "model"),
    converted("encoding", "decoded, and sent as WAV"),
    converted("sample_rate", "resampled to 16000"),
    converted("channels", "mixed to one"),
    ignored("punctuation", "OpenAI decides by itself"),
    own("keyterms", "keywords[] of gpt-transcribe, else prompt"),
    ignored("diarize", "OpenAI's other models tell no speakers apart"),
    ignored("min_confidence", "OpenAI gives no confidence"),
    own(
        "words",
        "timestamp_granularities[], of models of the Whisper family",
    ),
    own("auth", "Authorization"),
];

/// The recogniser `openai`.
pub(super) struct OpenAiStt {
    endpoint: Arc<VendorEndpoint>,
    /// The model where none is asked for.
    model: String,
    /// Models that have refused `verbose_json`.
    without_times: Arc<Mutex<HashSet<String>>>,
}

impl OpenAiStt {
    pub(super) fn new(endpoint: VendorEndpoint, model: String) -> Self {
        Self {
            endpoint: Arc::new(endpoint),
            model,
            without_times: Arc::default(),
        }
    }

    fn family(&self, model: &str) -> Family {
        Family::of(if model.is_empty() { &self.model } else { model })
    }
}

/// What a model takes, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// `keywords[]`, `languages[]`, and answers as it finds them.
    Transcribe,
    /// Answers as it finds them.
    Streams,
    /// Times of words.
    Whisper,
}

impl Family {
    fn of(model: &str) -> Self {
        let model = model.to_ascii_lowercase();
        if model == NEWEST {
            Self::Transcribe
        } else if model.starts_with("gpt-") {
            Self::Streams
        } else {
            // The model of most servers that people run.
            Self::Whisper
        }
    }
}

#[async_trait]
impl SpeechToText for OpenAiStt {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn accepts(&self) -> Accepts {
        Accepts {
            encodings: &[Encoding::Linear16],
            // That of the detector of speech.
            rates: &[16_000],
            stereo: false,
            stream_limit: None,
        }
    }

    fn credential_fields(&self) -> &'static [CredentialField] {
        super::CREDENTIAL
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    fn ignored_because(&self, field: &str, model: &str, _: &[&str]) -> Option<String> {
        let model = if model.is_empty() { &self.model } else { model };
        match (field, Family::of(model)) {
            ("languages", family) if family != Family::Transcribe => {
                Some(format!("languages: {model} is asked for one language"))
            }
            ("words", family) if family != Family::Whisper => {
                Some(format!("words: {model} tells no times"))
            }
            _ => parameters::ignored_because(PARAMETERS, field),
        }
    }

    fn ends_at_pauses(&self) -> bool {
        true
    }

    fn translates(&self, model: &str) -> bool {
        self.family(model) == Family::Whisper
    }

    fn finds_language(&self, _: &str) -> bool {
        true
    }

    /// Nothing is connected before the first utterance has ended.
    async fn open(&self, mut request: SttRequest) -> Result<SttStream, ProviderError> {
        if request.model.is_empty() {
            request.model.clone_from(&self.model);
        }
        let credential = self.endpoint.credential(request.credential.as_ref())?;
        let (sink, input) = AudioSink::channel(CHUNKS_HELD);
        let (events, heard) = mpsc::channel(EVENTS_HELD);
        let asking = Asking {
            endpoint: Arc::clone(&self.endpoint),
            credential,
            request,
            events: events.clone(),
            without_times: Arc::clone(&self.without_times),
        };
        tokio::spawn(async move {
            tokio::select! {
                () = drive(input, Arc::new(asking)) => {}
                () = events.closed() => {}
            }
        });
        Ok(SttStream {
            sink,
            events: ReceiverStream::new(heard).boxed(),
        })
    }
}

/// An utterance that is cut.
#[derive(Default)]
struct Spoken {
    /// Where it begins, in samples of the stream.
    begin: u64,
    samples: Vec<i16>,
}

impl Spoken {
    fn seconds(&self, samples: u64) -> f64 {
        (self.begin + samples) as f64 / f64::from(vad::RATE.hz())
    }

    fn file(&self) -> Vec<u8> {
        let bytes = linear16::encode(&self.samples);
        let length = u32::try_from(bytes.len()).ok();
        let mut file = wav::header(Layout::mono(vad::RATE), length).to_vec();
        file.extend_from_slice(&bytes);
        file
    }
}

/// What an utterance has come to.
struct Answered {
    heard: Result<Transcript, ProviderError>,
    ended: Ended,
}

/// Cuts the input, asks for each utterance, and tells what was heard, until the input has ended or something has failed.
async fn drive(mut input: mpsc::Receiver<SttInput>, asking: Arc<Asking>) {
    let mut cutter = UtteranceCutter::default();
    let mut spoken = Spoken::default();
    let mut cuts = Vec::new();
    let mut asked: FuturesOrdered<BoxFuture<'static, Answered>> = FuturesOrdered::new();
    let mut in_turn = false;
    let mut open = true;
    while open || !asked.is_empty() {
        tokio::select! {
            Some(answered) = asked.next() => {
                if !asking.tell(answered, &mut in_turn).await {
                    return;
                }
            }
            sound = input.recv(), if open && asked.len() < ASKED => {
                match sound {
                    Some(SttInput::Audio(audio)) => {
                        cutter.push(&linear16::samples(&audio), &mut cuts);
                    }
                    Some(SttInput::Finalize) => cutter.finish(&mut cuts),
                    None => {
                        open = false;
                        cutter.finish(&mut cuts);
                    }
                }
            }
        }
        for cut in cuts.drain(..) {
            match cut {
                Cut::Begin(begin) => {
                    spoken = Spoken {
                        begin,
                        samples: Vec::new(),
                    };
                }
                Cut::Audio(samples) => spoken.samples.extend(samples),
                Cut::End(ended) => {
                    let spoken = std::mem::take(&mut spoken);
                    let asking = Arc::clone(&asking);
                    // Only the first that is awaited may tell what it hears in between.
                    let first = asked.is_empty();
                    asked.push_back(Box::pin(async move {
                        let heard = asking.ask(spoken, first).await;
                        Answered { heard, ended }
                    }));
                }
            }
        }
    }
}

/// What is needed to have utterances recognised.
struct Asking {
    endpoint: Arc<VendorEndpoint>,
    credential: Credential,
    request: SttRequest,
    events: mpsc::Sender<Result<SttEvent, ProviderError>>,
    without_times: Arc<Mutex<HashSet<String>>>,
}

/// A whole answer, as `json` or `verbose_json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    text: String,
    language: Option<String>,
    languages: Option<Vec<Language>>,
    words: Option<Vec<Timed>>,
    segments: Option<Vec<Segment>>,
}

/// Some servers tell the words of each.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Segment {
    words: Option<Vec<Timed>>,
}

#[derive(Debug, Deserialize)]
struct Language {
    code: String,
}

#[derive(Debug, Deserialize)]
struct Timed {
    word: String,
    start: f64,
    end: f64,
}

/// An event of an answer that comes as it is found.
#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
enum Found {
    #[serde(rename = "transcript.text.delta")]
    Delta { delta: String },
    #[serde(rename = "transcript.text.done")]
    Done(Answer),
    #[serde(other)]
    Other,
}

impl Asking {
    /// False when nothing more is to be told.
    async fn tell(&self, answered: Answered, in_turn: &mut bool) -> bool {
        let heard = match answered.heard {
            Ok(heard) => heard,
            Err(error) => {
                // The stream is over; what no final covers is sent again to the next.
                let _ = self.events.send(Err(error)).await;
                return false;
            }
        };
        let mut told = Vec::new();
        if !heard.text.is_empty() {
            *in_turn = true;
            told.push(SttEvent::Final(heard));
        }
        if *in_turn && answered.ended != Ended::Length {
            *in_turn = false;
            told.push(SttEvent::EndOfSpeech);
        }
        for event in told {
            if self.events.send(Ok(event)).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Asks, and where that failed for a passing reason, or because the model tells no times, once more.
    async fn ask(&self, spoken: Spoken, partials: bool) -> Result<Transcript, ProviderError> {
        let error = match self.ask_once(&spoken, partials).await {
            Ok(heard) => return Ok(heard),
            Err(error) => error,
        };
        match error.kind {
            ErrorKind::InvalidRequest if self.wants_times() && is_about_times(&error.message) => {
                let mut known = self.known_without_times();
                if known.len() < MAX_KNOWN {
                    known.insert(self.request.model.clone());
                }
            }
            ErrorKind::RateLimited { retry_after } => {
                let pause = retry_after.unwrap_or(RETRY);
                if pause > LONGEST_RETRY {
                    return Err(error);
                }
                tokio::time::sleep(pause).await;
            }
            ErrorKind::Unavailable => tokio::time::sleep(RETRY).await,
            _ => return Err(error),
        }
        self.ask_once(&spoken, partials).await
    }

    fn known_without_times(&self) -> MutexGuard<'_, HashSet<String>> {
        let known = self.without_times.lock();
        known.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the model is asked for the times of words.
    fn wants_times(&self) -> bool {
        let model = &self.request.model;
        Family::of(model) == Family::Whisper && !self.known_without_times().contains(model)
    }

    async fn ask_once(&self, spoken: &Spoken, partials: bool) -> Result<Transcript, ProviderError> {
        let fingerprint = self.credential.fingerprint();
        let _permit = self
            .endpoint
            .permit(fingerprint, &self.request.party, ANSWER)
            .await?;
        let task = if self.request.translate {
            "translations"
        } else {
            "transcriptions"
        };
        let request = super::post(&self.endpoint, &self.credential, ["audio", task])?;
        let sent = request.multipart(self.form(spoken)?).timeout(ANSWER).send();
        let mut answer = sent.await.map_err(errors::broken)?;
        if !answer.status().is_success() {
            let told = body(&mut answer).await.unwrap_or_default();
            return Err(errors::refused(&Refusal {
                status: answer.status(),
                headers: answer.headers().clone(),
                body: String::from_utf8_lossy(&told).into_owned(),
            }));
        }
        let media_type = answer.headers().get(CONTENT_TYPE);
        let in_events = media_type.is_some_and(|media_type| {
            media_type.as_bytes().starts_with(b"text/event-stream")
        });
        let mut reader = Reader::default();
        let mut whole = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(errors::broken)? {
            if !in_events {
                whole.extend_from_slice(&chunk);
                check_length(whole.len())?;
                continue;
            }
            for found in reader.read(&chunk)? {
                match found {
                    Found::Delta { .. } if partials => {
                        let partial = Transcript {
                            text: reader.said.trim().to_owned(),
                            ..Transcript::default()
                        };
                        // Nobody may be left to hear it.
                        let _ = self.events.send(Ok(SttEvent::Partial(partial))).await;
                    }
                    Found::Delta { .. } | Found::Other => {}
                    Found::Done(answer) => return Ok(transcript(answer, spoken)),
                }
            }
        }
        if in_events {
            return Err(errors::unreadable("it ended before the text was complete"));
        }
        let answer = serde_json::from_slice(&whole).map_err(errors::unreadable)?;
        Ok(transcript(answer, spoken))
    }

    fn form(&self, spoken: &Spoken) -> Result<Form, ProviderError> {
        let SttRequest {
            model,
            language,
            languages,
            keyterms,
            ..
        } = &self.request;
        let family = Family::of(model);
        let file = Part::bytes(spoken.file()).file_name("speech.wav");
        let file = file.mime_str("audio/wav").map_err(errors::broken)?;
        let mut form = Form::new().part("file", file).text("model", model.to_owned());
        // ISO 639-1, which is how BCP-47 begins.
        let plain = |tag: &String| tag.split(['-', '_']).next().unwrap_or(tag).to_owned();
        if family == Family::Transcribe && !languages.is_empty() {
            let all = std::iter::once(language).chain(languages).map(plain);
            for tag in all.filter(|tag| !tag.is_empty()) {
                form = form.text("languages[]", tag);
            }
        } else if !language.is_empty() && !self.request.translate {
            form = form.text("language", plain(language));
        }
        match family {
            Family::Transcribe => {
                for keyterm in keyterms {
                    form = form.text("keywords[]", keyterm.clone());
                }
            }
            _ if keyterms.is_empty() => {}
            _ => form = form.text("prompt", keyterms.join(", ")),
        }
        Ok(match family {
            Family::Transcribe | Family::Streams => form.text("stream", "true"),
            Family::Whisper if self.wants_times() && !self.request.translate => form
                .text("response_format", "verbose_json")
                .text("timestamp_granularities[]", "word"),
            Family::Whisper => form.text("response_format", "json"),
        })
    }
}

/// Whether a refusal is of the format that has times.
fn is_about_times(message: &str) -> bool {
    ["verbose_json", "response_format", "timestamp_granularities"]
        .iter()
        .any(|name| message.contains(name))
}

fn check_length(bytes: usize) -> Result<(), ProviderError> {
    if bytes > MAX_ANSWER_BYTES {
        return Err(errors::unreadable("it is longer than 1 MiB"));
    }
    Ok(())
}

/// What was heard of an utterance, in the time of the stream.
fn transcript(answer: Answer, spoken: &Spoken) -> Transcript {
    let begin = spoken.seconds(0);
    let of_segments = || {
        let segments = answer.segments.into_iter().flatten();
        segments.filter_map(|segment| segment.words).flatten().collect()
    };
    let words: Vec<Timed> = answer.words.unwrap_or_else(of_segments);
    let words = words.into_iter();
    let language = answer.languages.and_then(|languages| {
        let first = languages.into_iter().next()?;
        Some(first.code)
    });
    Transcript {
        text: answer.text.trim().to_owned(),
        confidence: None,
        words: words
            .map(|timed| Word {
                word: timed.word.trim().to_owned(),
                start: begin + timed.start,
                end: begin + timed.end,
                confidence: None,
                speaker: None,
            })
            .collect(),
        // The name of a language is no tag of one.
        language: language.or(answer.language).filter(|tag| tag.len() == 2),
        end: Some(spoken.seconds(spoken.samples.len() as u64)),
    }
}

/// Reads server-sent events (WHATWG HTML, section 9.2), of which only `data` matters here.
#[derive(Debug, Default)]
struct Reader {
    line: Vec<u8>,
    bytes: usize,
    /// All deltas so far.
    said: String,
}

impl Reader {
    fn read(&mut self, chunk: &[u8]) -> Result<Vec<Found>, ProviderError> {
        self.bytes += chunk.len();
        check_length(self.bytes)?;
        let mut found = Vec::new();
        for &byte in chunk {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            let Some(data) = line.strip_prefix(b"data:") else {
                continue;
            };
            let data = data.trim_ascii();
            if data == b"[DONE]" {
                continue;
            }
            let value: serde_json::Value =
                serde_json::from_slice(data).map_err(errors::unreadable)?;
            if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
                let words = error.get("message").and_then(|words| words.as_str());
                let words = crate::transport::shortened(words.unwrap_or("it has failed"));
                return Err(ProviderError::new(SLUG, ErrorKind::Unavailable, words));
            }
            let event = Found::deserialize(value).map_err(errors::unreadable)?;
            if let Found::Delta { delta } = &event {
                self.said.push_str(delta);
            }
            found.push(event);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_come_as_they_are_found_are_read_however_they_are_cut() {
        let sent = "event: x\r\ndata: {\"type\":\"transcript.text.delta\",\"delta\":\"Hel\"}\r\n\r\n\
                    data: {\"type\":\"transcript.text.delta\",\"delta\":\"lo.\"}\n\n\
                    data: {\"type\":\"transcript.text.new\"}\n\n\
                    data: {\"type\":\"transcript.text.done\",\"text\":\"Hello.\",\"languages\":[{\"code\":\"en\"}]}\n\ndata: [DONE]\n";
        for size in [1, 7, 1_000] {
            let mut reader = Reader::default();
            let mut done = None;
            for chunk in sent.as_bytes().chunks(size) {
                for found in reader.read(chunk).unwrap() {
                    if let Found::Done(answer) = found {
                        done = Some(answer);
                    }
                }
            }
            assert_eq!(reader.said, "Hello.");
            let spoken = Spoken {
                begin: 16_000,
                samples: vec![0; 8_000],
            };
            let heard = transcript(done.unwrap(), &spoken);
            assert_eq!((heard.text.as_str(), heard.end), ("Hello.", Some(1.5)));
            assert_eq!(heard.language.as_deref(), Some("en"));
        }
        let failed = Reader::default().read(b"data: {\"error\":{\"message\":\"full\"}}\n");
        assert_eq!(failed.unwrap_err().message, "full");
        assert!(Reader::default().read(b"data: nothing\n").is_err());
    }

    #[test]
    fn words_are_at_their_places_in_the_stream() {
        let answer = r#"{"text":" one two","language":"english",
            "words":[{"word":" one","start":0.1,"end":0.4},{"word":"two","start":0.5,"end":0.9}]}"#;
        let spoken = Spoken {
            begin: 32_000,
            samples: vec![0; 16_000],
        };
        let heard = transcript(serde_json::from_str(answer).unwrap(), &spoken);
        let words: Vec<_> = heard
            .words
            .iter()
            .map(|word| (word.word.as_str(), word.start, word.end))
            .collect();
        assert_eq!(words, [("one", 2.1, 2.4), ("two", 2.5, 2.9)]);
        assert_eq!((heard.language, heard.end), (None, Some(3.0)));
    }

    #[test]
    fn a_model_is_asked_for_what_it_knows() {
        for (model, family) in [
            ("gpt-transcribe", Family::Transcribe),
            ("gpt-4o-mini-transcribe", Family::Streams),
            ("whisper-1", Family::Whisper),
            ("Systran/faster-whisper-small", Family::Whisper),
        ] {
            assert_eq!(Family::of(model), family, "{model}");
        }
    }
}
