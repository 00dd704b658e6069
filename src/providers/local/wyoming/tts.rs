//! Text to speech by a Wyoming server. One that takes text as it is written gets it so, on one connection; any other
//! gets sentence by sentence, each on a connection of its own, because such servers may hang up after one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::wire::Event;
use super::{Connection, Endpoint, Info, Server, TtsVoice, select_program};
use crate::local::voices::{choose, language_tag};
use crate::local::{SLUG, failure};
use vivavoce_audio::format::{AudioFormat, Channels, Encoding, Layout, SampleRate};
use vivavoce_core::sentences::{is_speakable, spoken_lines};
use vivavoce_seams::{
    ErrorKind, ProviderError, Speaks, TextStream, TextToSpeech, TtsEvent, TtsRequest, TtsStream,
    Voice,
};

/// How long the server's description is believed.
const INFO_TTL: Duration = Duration::from_mins(1);
/// How long listing voices may take.
const LIST_LIMIT: Duration = Duration::from_secs(5);
/// Chunks of sound that are held for the listener, usually of 2 kB; beyond them the server waits.
const CHUNKS_HELD: usize = 64;

/// A Wyoming server that speaks.
pub struct WyomingTts {
    endpoint: Endpoint,
    /// The endpoint as text.
    address: String,
    info: Mutex<Option<(Instant, Arc<Info>)>>,
}

/// A voice of a program of the server.
struct ServerVoice {
    program: usize,
    name: String,
    speaker: Option<String>,
    shown: Voice,
}

/// Which program and voice a request means.
#[derive(Debug, Default, PartialEq)]
struct Target {
    /// The program, when it is not the server's first.
    program: Option<String>,
    /// Whether it takes text as it is written.
    streaming: bool,
    /// The `voice` field.
    voice: Option<Value>,
}

impl WyomingTts {
    /// A client; nothing is connected before the first request.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            address: endpoint.to_string(),
            endpoint,
            info: Mutex::default(),
        }
    }

    async fn info(&self, limit: Duration) -> Result<Arc<Info>, ProviderError> {
        let mut known = self.info.lock().await;
        match &*known {
            Some((when, info)) if when.elapsed() < INFO_TTL => Ok(info.clone()),
            _ => {
                let info = Arc::new(self.endpoint.describe(limit).await?);
                *known = Some((Instant::now(), info.clone()));
                Ok(info)
            }
        }
    }
}

impl Info {
    fn tts_voices(&self) -> Vec<ServerVoice> {
        let programs = self.tts.iter().enumerate();
        programs
            .flat_map(|(at, program)| {
                let installed = program.voices.iter().filter(|voice| voice.installed);
                installed.flat_map(move |voice| voices_of(at, &program.name, voice))
            })
            .collect()
    }

    fn tts_target(&self, voice_id: Option<&str>, model: &str) -> Result<Target, ProviderError> {
        let allowed = |program: usize| model.is_empty() || self.tts[program].name == model;
        let program = (0..self.tts.len()).find(|&at| allowed(at)).ok_or_else(|| {
            let model: String = model.chars().take(80).collect();
            let names: Vec<&str> = self.tts.iter().map(|tts| tts.name.as_str()).collect();
            failure(
                ErrorKind::InvalidRequest,
                format!("the server has no model {model:?}; it has {names:?}"),
            )
        })?;
        let mut voices = self.tts_voices();
        voices.retain(|voice| allowed(voice.program));
        let chosen = match voice_id {
            Some(wanted) => Some(choose(voices.iter(), |voice| &voice.shown, wanted)?),
            None => None,
        };
        let program = chosen.map_or(program, |voice| voice.program);
        Ok(Target {
            program: (program > 0).then(|| self.tts[program].name.clone()),
            streaming: self.tts[program].supports_synthesize_streaming,
            voice: chosen.map(|voice| match &voice.speaker {
                Some(speaker) => json!({ "name": voice.name, "speaker": speaker }),
                None => json!({ "name": voice.name }),
            }),
        })
    }
}

/// The voice itself, then its speakers as `voice/speaker`.
fn voices_of(program: usize, tag: &str, voice: &TtsVoice) -> Vec<ServerVoice> {
    let languages: Vec<String> = voice.languages.iter().map(|l| language_tag(l)).collect();
    let speakers = voice.speakers.iter().flatten().map(|s| Some(&s.name));
    std::iter::once(None)
        .chain(speakers)
        .map(|speaker| {
            let name = voice.description.as_ref().unwrap_or(&voice.name);
            let (id, name) = match speaker {
                Some(speaker) => (
                    format!("{}/{speaker}", voice.name),
                    format!("{name}, {speaker}"),
                ),
                None => (voice.name.clone(), name.clone()),
            };
            ServerVoice {
                program,
                name: voice.name.clone(),
                speaker: speaker.cloned(),
                shown: Voice {
                    id,
                    name,
                    language: languages.first().cloned().unwrap_or_default(),
                    languages: languages.clone(),
                    gender: String::new(),
                    accent: String::new(),
                    sample: String::new(),
                    // Known only from the sound itself.
                    sample_rates: Vec::new(),
                    tags: vec![tag.to_owned()],
                },
            }
        })
        .collect()
}

#[async_trait]
impl TextToSpeech for WyomingTts {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn endpoint(&self) -> &str {
        &self.address
    }

    /// The protocol has no field for it.
    fn speaks(&self) -> Speaks {
        Speaks {
            speaking_rates: 1.0..=1.0,
        }
    }

    /// Returns when the server has said its format, which it does with its first sound.
    async fn synthesize(
        &self,
        request: TtsRequest,
        text: TextStream,
    ) -> Result<TtsStream, ProviderError> {
        let info = timeout(
            request.connection_timeout,
            self.info(request.connection_timeout),
        )
        .await
        .map_err(|_| {
            self.endpoint
                .late("describe itself", request.connection_timeout)
        })??;
        let target = info.tts_target(request.voice_id.as_deref(), &request.model)?;
        let (chunks, mut heard) = mpsc::channel(CHUNKS_HELD);
        let (declare, declared) = oneshot::channel();
        let synthesis = Synthesis {
            endpoint: self.endpoint.clone(),
            target,
            connection_timeout: request.connection_timeout,
            request_timeout: request.request_timeout,
            time_left: request.request_timeout,
            format: None,
            declare: Some(declare),
            chunks,
        };
        let speaking = AbortOnDropHandle::new(tokio::spawn(synthesis.run(text)));
        let (format, first) = match declared.await {
            Ok(format) => (format, None),
            // It ended before there was any sound: it failed, or there was nothing to say.
            Err(_) => match heard.recv().await {
                Some(Ok(event)) => (request.preferred, Some(Ok(event))),
                Some(Err(error)) => return Err(error),
                None => return Err(failure(ErrorKind::Unavailable, "the synthesis broke off")),
            },
        };
        let later = stream::unfold((heard, speaking), async |(mut heard, speaking)| {
            let event = heard.recv().await?;
            Some((event, (heard, speaking)))
        });
        Ok(TtsStream {
            format,
            events: stream::iter(first).chain(later).boxed(),
        })
    }

    async fn voices(&self) -> Result<Vec<Voice>, ProviderError> {
        let info = timeout(LIST_LIMIT, self.info(LIST_LIMIT))
            .await
            .map_err(|_| self.endpoint.late("describe itself", LIST_LIMIT))??;
        Ok(info
            .tts_voices()
            .into_iter()
            .map(|voice| voice.shown)
            .collect())
    }
}

/// Why a synthesis ends early.
enum Broken {
    /// The listener has gone.
    Cancelled,
    Failed(ProviderError),
}

impl From<ProviderError> for Broken {
    fn from(error: ProviderError) -> Self {
        Self::Failed(error)
    }
}

/// The format fields of `audio-start` and `audio-chunk`.
#[derive(Debug, Deserialize)]
struct Pcm {
    rate: u64,
    width: u64,
    channels: u64,
}

/// One synthesis under way.
struct Synthesis {
    endpoint: Endpoint,
    target: Target,
    connection_timeout: Duration,
    request_timeout: Duration,
    /// How long the server may still be waited for. Neither the writer of the text nor the listener uses it up.
    time_left: Duration,
    format: Option<AudioFormat>,
    declare: Option<oneshot::Sender<AudioFormat>>,
    chunks: mpsc::Sender<Result<TtsEvent, ProviderError>>,
}

impl Synthesis {
    async fn run(mut self, text: TextStream) {
        let said = if self.target.streaming {
            self.say_as_written(text).await
        } else {
            self.say_by_sentences(text).await
        };
        let outcome = match said {
            Ok(()) => Ok(TtsEvent::Done),
            Err(Broken::Failed(error)) => Err(error),
            Err(Broken::Cancelled) => return,
        };
        drop(self.declare.take());
        // Whether anybody still listens makes no difference now.
        let _ = self.chunks.send(outcome).await;
    }

    async fn say_by_sentences(&mut self, text: TextStream) -> Result<(), Broken> {
        let mut lines = spoken_lines(text);
        while let Some(line) = lines.next().await {
            self.say(&line).await?;
        }
        Ok(())
    }

    async fn say(&mut self, line: &str) -> Result<(), Broken> {
        let mut connection = self.connect().await?;
        let request = self.with_voice("synthesize", json!({ "text": line }));
        connection.send(request).await?;
        loop {
            let event = self.awaited(&mut connection).await?;
            if event.kind == "audio-stop" {
                return Ok(());
            }
            self.hear(event).await?;
        }
    }

    async fn say_as_written(&mut self, mut text: TextStream) -> Result<(), Broken> {
        let mut first = String::new();
        while !is_speakable(&first) {
            match text.next().await {
                Some(part) => first.push_str(&part),
                None => return Ok(()),
            }
        }
        let mut connection = self.connect().await?;
        connection
            .send(self.with_voice("synthesize-start", json!({})))
            .await?;
        let chunk = |text: String| Event::new("synthesize-chunk", json!({ "text": text }));
        connection.send(chunk(first)).await?;
        loop {
            tokio::select! {
                part = text.next() => match part {
                    Some(part) => connection.send(chunk(part)).await?,
                    None => break,
                },
                event = connection.next() => self.hear(event?).await?,
            }
        }
        connection
            .send(Event::new("synthesize-stop", Value::Null))
            .await?;
        loop {
            let event = self.awaited(&mut connection).await?;
            if event.kind == "synthesize-stopped" {
                return Ok(());
            }
            self.hear(event).await?;
        }
    }

    async fn connect(&self) -> Result<Connection, ProviderError> {
        let mut connection = self.endpoint.connect(self.connection_timeout).await?;
        if let Some(program) = &self.target.program {
            connection.send(select_program(program)).await?;
        }
        Ok(connection)
    }

    fn with_voice(&self, kind: &str, mut data: Value) -> Event {
        if let Some(voice) = &self.target.voice {
            data["voice"] = voice.clone();
        }
        Event::new(kind, data)
    }

    /// The next event, on the server's time.
    async fn awaited(&mut self, connection: &mut Connection) -> Result<Event, ProviderError> {
        let asked = Instant::now();
        let event = timeout(self.time_left, connection.next()).await;
        self.time_left = self.time_left.saturating_sub(asked.elapsed());
        event.unwrap_or_else(|_| Err(self.endpoint.late("speak", self.request_timeout)))
    }

    /// Passes sound on; what is neither sound nor its beginning is of no interest.
    async fn hear(&mut self, event: Event) -> Result<(), Broken> {
        if !matches!(event.kind.as_str(), "audio-start" | "audio-chunk") {
            return Ok(());
        }
        let pcm: Pcm = event
            .parse()
            .map_err(|error| self.endpoint.broken(&error))?;
        let format = format_of(&pcm).ok_or_else(|| self.strange(&format!("{pcm:?}")))?;
        if *self.format.get_or_insert(format) != format {
            return Err(self.strange("sound that changes its format").into());
        }
        if !event
            .payload
            .len()
            .is_multiple_of(2 * format.layout.channels.count())
        {
            return Err(self.strange("part of a sample").into());
        }
        if let Some(declare) = self.declare.take() {
            declare.send(format).map_err(|_| Broken::Cancelled)?;
        }
        if event.payload.is_empty() {
            return Ok(());
        }
        let audio = Ok(TtsEvent::Audio(event.payload));
        let delivered = self.chunks.send(audio).await;
        delivered.map_err(|_| Broken::Cancelled)
    }

    fn strange(&self, what: &str) -> ProviderError {
        failure(
            ErrorKind::Protocol,
            format!("{} sends {what}; 16-bit PCM is expected", self.endpoint),
        )
    }
}

fn format_of(pcm: &Pcm) -> Option<AudioFormat> {
    let rate = SampleRate::new(pcm.rate).ok()?;
    let channels = Channels::try_from(pcm.channels).ok()?;
    (pcm.width == 2).then_some(AudioFormat {
        encoding: Encoding::Linear16,
        layout: Layout::new(rate, channels),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> Info {
        let voice = |name: &str, languages: &[&str], installed| {
            json!({ "name": name, "languages": languages, "installed": installed, "description": null,
                    "speakers": [{ "name": "p1" }] })
        };
        let info = json!({ "tts": [
            { "name": "piper", "voices": [voice("en_US-amy", &["en_US"], true), voice("fr_FR-x", &["fr_FR"], false)],
              "supports_synthesize_streaming": true },
            { "name": "other", "voices": [voice("thorsten", &["de_DE"], true)] },
        ] });
        serde_json::from_value(info).unwrap()
    }

    #[test]
    fn only_installed_voices_are_shown_with_their_speakers() {
        let voices = info().tts_voices();
        let ids: Vec<&str> = voices.iter().map(|v| v.shown.id.as_str()).collect();
        assert_eq!(
            ids,
            ["en_US-amy", "en_US-amy/p1", "thorsten", "thorsten/p1"]
        );
        assert_eq!(voices[0].shown.language, "en-US");
    }

    #[test]
    fn a_voice_is_asked_for_as_the_server_calls_it() {
        let first = info().tts_target(None, "").unwrap();
        assert_eq!(
            first,
            Target {
                streaming: true,
                ..Target::default()
            }
        );
        let german = Target {
            program: Some("other".into()),
            streaming: false,
            voice: Some(json!({ "name": "thorsten", "speaker": "p1" })),
        };
        assert_eq!(info().tts_target(Some("thorsten/p1"), "").unwrap(), german);
        let by_language = info().tts_target(Some("de-DE"), "other").unwrap();
        assert_eq!(by_language.voice, Some(json!({ "name": "thorsten" })));
        for (voice, model) in [
            (Some("thorsten"), "piper"),
            (None, "nope"),
            (Some("fr_FR-x"), ""),
        ] {
            let error = info().tts_target(voice, model).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidRequest);
        }
    }
}
