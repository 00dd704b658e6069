//! Speech to text by a Wyoming server. Such servers hear one utterance per connection and answer when it has ended,
//! so the stream is cut into utterances here; each is sent as it is spoken. A slow server may still be at work on one
//! utterance while the next is spoken: their events leave in the order of speech.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::wire::Event;
use super::{Connection, Endpoint, Info, Server, select_program};
use crate::local::utterance::{Cut, Ended, UtteranceCutter};
use crate::local::voices::language_tag;
use crate::local::{SLUG, failure};
use vivavoce_audio::format::Encoding;
use vivavoce_audio::linear16;
use vivavoce_audio::vad::RATE;
use vivavoce_seams::parameters::{Parameter, converted, ignored, own};
use vivavoce_seams::{
    Accepts, AudioSink, ErrorKind, ProviderError, SpeechToText, SttEvent, SttInput, SttRequest,
    SttStream, Transcript,
};

/// Chunks of audio that wait for the cutter, and for each utterance's connection.
const CHUNKS_HELD: usize = 64;
/// Utterances that the server may be behind; then the speaker is held up.
const UTTERANCES_HELD: usize = 4;
/// Events of one utterance that wait for the listener.
const EVENTS_HELD: usize = 16;

/// How long the server may take.
#[derive(Debug, Clone, Copy)]
pub struct SttDeadlines {
    /// To accept a connection, and to describe itself.
    pub connect: Duration,
    /// To answer when an utterance has ended, between two parts of its answer too.
    pub answer: Duration,
}

impl Default for SttDeadlines {
    /// Whisper on a small machine takes longer than the utterance itself.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(30),
        }
    }
}

/// A Wyoming server that hears.
pub struct WyomingStt {
    endpoint: Endpoint,
    deadlines: SttDeadlines,
}

impl WyomingStt {
    /// A client; nothing is connected before the first stream.
    pub fn new(endpoint: Endpoint, deadlines: SttDeadlines) -> Self {
        Self {
            endpoint,
            deadlines,
        }
    }
}

/// The protocol carries the model, the language and sound.
const PARAMETERS: &[Parameter] = &[
    own("language", "transcribe.language"),
    ignored("languages", "a Wyoming server is asked for one language"),
    own("model", "transcribe.name"),
    converted("encoding", "decoded to linear16"),
    converted("sample_rate", "resampled to 16000"),
    converted("channels", "mixed to one"),
    ignored("punctuation", "a Wyoming server decides by itself"),
    ignored("keyterms", "a Wyoming server cannot be told any"),
    ignored("diarize", "a Wyoming server tells no speakers apart"),
    ignored("min_confidence", "a Wyoming server gives no confidence"),
    ignored("words", "a Wyoming server gives no times"),
    converted("auth", "it needs none"),
];

#[async_trait]
impl SpeechToText for WyomingStt {
    fn slug(&self) -> &'static str {
        SLUG
    }

    /// The rate that our detector of speech hears; every server converts from it.
    fn accepts(&self) -> Accepts {
        Accepts {
            encodings: &[Encoding::Linear16],
            rates: &[16_000],
            stereo: false,
            stream_limit: None,
        }
    }

    fn ends_at_pauses(&self) -> bool {
        true
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    /// Asks the server what it can hear, so that one that is not there is known now and not with the first word.
    async fn open(&self, request: SttRequest) -> Result<SttStream, ProviderError> {
        let info = self.endpoint.describe(self.deadlines.connect).await?;
        let recogniser = Recogniser {
            endpoint: self.endpoint.clone(),
            deadlines: self.deadlines,
            opening: info.transcribe(&request.language, &request.model)?,
        };
        let (sink, input) = AudioSink::channel(CHUNKS_HELD);
        let (utterances, spoken) = mpsc::channel(UTTERANCES_HELD);
        let cutting = AbortOnDropHandle::new(tokio::spawn(cut(input, recogniser, utterances)));
        let ordered = Ordered {
            spoken,
            current: None,
            in_turn: false,
            _cutting: cutting,
        };
        let events = stream::unfold(ordered, async |mut ordered| {
            let event = ordered.next().await?;
            Some((Ok(event), ordered))
        });
        Ok(SttStream {
            sink,
            events: events.boxed(),
        })
    }
}

impl Info {
    /// The events that open an utterance in this language, by the named model or the server's default.
    fn transcribe(&self, language: &str, model: &str) -> Result<Vec<Event>, ProviderError> {
        let refuse = |message: String| Err(failure(ErrorKind::InvalidRequest, message));
        let mut models = self
            .asr
            .iter()
            .enumerate()
            .flat_map(|(at, program)| program.models.iter().map(move |model| (at, program, model)))
            .filter(|(_, _, known)| model.is_empty() || known.name == model)
            .peekable();
        if models.peek().is_none() {
            let model: String = model.chars().take(80).collect();
            return refuse(format!("the server has no recogniser {model:?}"));
        }
        let mut heard = Vec::new();
        for (at, program, known) in models {
            let Some(language) = pick_language(language, &known.languages) else {
                heard.extend(known.languages.iter().take(5).map(String::as_str));
                continue;
            };
            let mut data = json!({});
            if !language.is_empty() {
                data["language"] = language.into();
            }
            if !model.is_empty() {
                data["name"] = model.into();
            }
            let select = (at > 0).then(|| select_program(&program.name));
            let transcribe = Event::new("transcribe", data);
            return Ok(select.into_iter().chain([transcribe]).collect());
        }
        let language: String = language.chars().take(40).collect();
        refuse(format!(
            "the server does not hear {language:?}; it hears {}, …",
            heard.join(", ")
        ))
    }
}

/// The server's own name of a language: `en-US` is `en` to Whisper and `en_US` to others. A server that names none
/// takes any.
fn pick_language(wanted: &str, known: &[String]) -> Option<String> {
    if known.is_empty() || wanted.is_empty() {
        return Some(wanted.to_owned());
    }
    let bare = wanted.split(['-', '_']).next().unwrap_or(wanted);
    let find = |tag: &str| {
        known
            .iter()
            .find(|known| language_tag(known).eq_ignore_ascii_case(tag))
    };
    let of_bare = || {
        known
            .iter()
            .find(|known| known.split(['-', '_']).next() == Some(bare))
    };
    find(wanted)
        .or_else(|| find(bare))
        .or_else(of_bare)
        .cloned()
}

/// An utterance as the stream of events sees it.
struct Utterance {
    events: mpsc::Receiver<SttEvent>,
    /// Whether the speaker went on without a pause; told when the utterance has ended.
    ended: mpsc::Receiver<Ended>,
}

/// Cuts the input and starts a connection for every utterance, until the input ends.
async fn cut(
    mut input: mpsc::Receiver<SttInput>,
    recogniser: Recogniser,
    utterances: mpsc::Sender<Utterance>,
) {
    let mut cutter = UtteranceCutter::default();
    let mut connections = JoinSet::new();
    let mut open: Option<(mpsc::Sender<Bytes>, mpsc::Sender<Ended>)> = None;
    let mut cuts = Vec::new();
    loop {
        let input = input.recv().await;
        let last = input.is_none();
        match input {
            Some(SttInput::Audio(audio)) => cutter.push(&linear16::samples(&audio), &mut cuts),
            Some(SttInput::Finalize) | None => cutter.finish(&mut cuts),
        }
        for cut in cuts.drain(..) {
            match cut {
                Cut::Begin(first) => {
                    while connections.try_join_next().is_some() {}
                    let (audio, heard) = mpsc::channel(CHUNKS_HELD);
                    let (events, reported) = mpsc::channel(EVENTS_HELD);
                    let (ended, end) = mpsc::channel(1);
                    connections.spawn(recogniser.clone().hear(first, heard, events));
                    let utterance = Utterance {
                        events: reported,
                        ended: end,
                    };
                    if utterances.send(utterance).await.is_err() {
                        return;
                    }
                    open = Some((audio, ended));
                }
                Cut::Audio(audio) => {
                    if let Some((connection, _)) = &open {
                        // One that has failed has said so in its events.
                        let _ = connection.send(linear16::encode(&audio)).await;
                    }
                }
                Cut::End(why) => {
                    if let Some((_, ended)) = open.take() {
                        let _ = ended.send(why).await;
                    }
                }
            }
        }
        if last {
            break;
        }
    }
    drop(utterances);
    while connections.join_next().await.is_some() {}
}

/// The events of all utterances, in the order of speech.
struct Ordered {
    spoken: mpsc::Receiver<Utterance>,
    current: Option<Utterance>,
    /// Something was reported since the speaker last finished.
    in_turn: bool,
    _cutting: AbortOnDropHandle<()>,
}

impl Ordered {
    async fn next(&mut self) -> Option<SttEvent> {
        loop {
            let Some(utterance) = &mut self.current else {
                self.current = Some(self.spoken.recv().await?);
                continue;
            };
            if let Some(event) = utterance.events.recv().await {
                self.in_turn = true;
                return Some(event);
            }
            let ended = utterance.ended.recv().await;
            self.current = None;
            if self.in_turn && ended != Some(Ended::Length) {
                self.in_turn = false;
                return Some(SttEvent::EndOfSpeech);
            }
        }
    }
}

/// What is needed to have an utterance recognised.
#[derive(Clone)]
struct Recogniser {
    endpoint: Endpoint,
    deadlines: SttDeadlines,
    opening: Vec<Event>,
}

/// What has come of one connection.
#[derive(Default)]
struct Answer {
    text: String,
    language: Option<String>,
    complete: bool,
}

impl Recogniser {
    /// Has one utterance recognised. A server that answers before the utterance has ended is asked again for the rest
    /// of it.
    async fn hear(
        self,
        begin: u64,
        mut audio: mpsc::Receiver<Bytes>,
        events: mpsc::Sender<SttEvent>,
    ) {
        let mut sent = begin;
        while let Some(first) = audio.recv().await {
            let heard = self
                .transcribe((first, &mut sent), &mut audio, &events)
                .await;
            let event = match heard {
                Ok(heard) if heard.text.is_empty() => continue,
                Ok(heard) => SttEvent::Final(heard),
                Err(error) => SttEvent::UtteranceLost(error.clone()),
            };
            let lost = matches!(event, SttEvent::UtteranceLost(_));
            if events.send(event).await.is_err() || lost {
                return;
            }
        }
    }

    async fn transcribe(
        &self,
        (first, sent): (Bytes, &mut u64),
        audio: &mut mpsc::Receiver<Bytes>,
        events: &mpsc::Sender<SttEvent>,
    ) -> Result<Transcript, ProviderError> {
        let mut connection = self.endpoint.connect(self.deadlines.connect).await?;
        for event in &self.opening {
            connection.send(event.clone()).await?;
        }
        connection.send(Event::new("audio-start", format())).await?;
        let samples = |audio: &Bytes| audio.len() as u64 / 2;
        *sent += samples(&first);
        connection.send(chunk(first)).await?;
        let mut answer = Answer::default();
        while !answer.complete {
            tokio::select! {
                more = audio.recv() => match more {
                    Some(more) => {
                        *sent += samples(&more);
                        connection.send(chunk(more)).await?;
                    }
                    None => break,
                },
                event = connection.next() => answer.take(&event?, events).await,
            }
        }
        let early = answer.complete;
        connection
            .send(Event::new("audio-stop", Value::Null))
            .await?;
        while !answer.complete {
            answer
                .take(&self.answered(&mut connection).await?, events)
                .await;
        }
        // What an answer covers that came before the end is not known.
        let end = (!early).then(|| RATE.duration_of(*sent as usize).as_secs_f64());
        Ok(Transcript {
            end,
            ..answer.into_transcript()
        })
    }

    async fn answered(&self, connection: &mut Connection) -> Result<Event, ProviderError> {
        let limit = self.deadlines.answer;
        timeout(limit, connection.next())
            .await
            .unwrap_or_else(|_| Err(self.endpoint.late("answer", limit)))
    }
}

impl Answer {
    /// `transcript` has the whole text. A server that streams sends it in parts before, and may send it whole after.
    async fn take(&mut self, event: &Event, events: &mpsc::Sender<SttEvent>) {
        let language = event.text("language").map(language_tag);
        match event.kind.as_str() {
            "transcript-start" => self.language = language,
            "transcript-chunk" => {
                self.text += event.text("text").unwrap_or_default();
                let partial = Transcript {
                    text: self.text.trim().to_owned(),
                    ..Transcript::default()
                };
                // Fails when nobody listens any more, which ends the connection elsewhere.
                let _ = events.send(SttEvent::Partial(partial)).await;
            }
            "transcript" => {
                self.text = event.text("text").unwrap_or_default().to_owned();
                self.language = language.or(self.language.take());
                self.complete = true;
            }
            "transcript-stop" => self.complete = true,
            _ => {}
        }
    }

    fn into_transcript(self) -> Transcript {
        Transcript {
            text: self.text.trim().to_owned(),
            language: self.language,
            ..Transcript::default()
        }
    }
}

fn format() -> Value {
    json!({ "rate": RATE.hz(), "width": 2, "channels": 1 })
}

fn chunk(audio: Bytes) -> Event {
    Event::new("audio-chunk", format()).with_payload(audio)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> Info {
        let info = json!({ "asr": [
            { "name": "whisper", "models": [{ "name": "tiny", "languages": ["en", "de"] }] },
            { "name": "vosk", "models": [{ "name": "small-fr", "languages": ["fr_FR"] }] },
        ] });
        serde_json::from_value(info).unwrap()
    }

    #[test]
    fn the_server_is_asked_in_its_own_names() {
        let asked = |language, model| info().transcribe(language, model).unwrap();
        let transcribe = |data| Event::new("transcribe", data);
        assert_eq!(
            asked("en-US", ""),
            [transcribe(json!({ "language": "en" }))]
        );
        assert_eq!(
            asked("fr", "small-fr"),
            [
                select_program("vosk"),
                transcribe(json!({ "language": "fr_FR", "name": "small-fr" }))
            ]
        );
        assert_eq!(asked("fr-FR", "")[0], select_program("vosk"));
    }

    #[test]
    fn a_language_or_model_that_the_server_lacks_is_refused() {
        for (language, model, named) in [("it", "", "en, de, fr_FR"), ("en", "large", "large")] {
            let error = info().transcribe(language, model).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidRequest);
            assert!(error.message.contains(named), "{error}");
        }
        assert!(Info::default().transcribe("en", "").is_err());
    }
}
