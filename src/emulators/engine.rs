//! The emulators' engines: this machine's own, or the scripted code of tone-words. A vendor's code opens a [`Recogniser`] or
//! a [`Speech`] by its visit and turns their events into its own messages; formats, resampling, the record and the faults of
//! recognition and audio are handled here.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio::time::Instant;

use super::clock;
use super::faults::Effect;
use super::tone_words::{Listener, number_of};
use super::visit::Visit;
use vivavoce_audio::decode::{DecodeError, StreamDecoder};
use vivavoce_audio::encode::EncodeError;
use vivavoce_audio::{AudioFormat, Encoding, Layout, Pcm, Resampler, SampleRate, linear16};
use vivavoce_seams::{
    AudioSink, ProviderError, SpeechToText, SttEvent, SttRequest, TextToSpeech, Transcript, Word,
};

/// Words after which an utterance that goes on becomes final piece by piece.
const SEGMENT_WORDS: usize = 20;
/// The shortest silence that ends an utterance: what the listener needs to be sure of the word before it.
const SHORTEST_SILENCE: Duration = Duration::from_millis(20);
/// The shortest sound that is taken for a voice.
const VOICE: Duration = Duration::from_millis(40);
/// How long a local engine may take for what it was asked to make final, also of sound that came at once, on a busy machine.
const FINALIZING: Duration = Duration::from_secs(15);
/// What the local recogniser hears.
const LOCAL_RATE: SampleRate = SampleRate::HZ_16000;

/// Who hears and speaks.
#[derive(Clone)]
pub enum Engine {
    /// Tone-words: see [`super::tone_words`].
    Scripted,
    /// This machine's engines.
    Local {
        /// Hears English at 16 kHz.
        stt: Arc<dyn SpeechToText>,
        /// Speaks.
        tts: Arc<dyn TextToSpeech>,
    },
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scripted => "Scripted",
            Self::Local { .. } => "Local",
        })
    }
}

/// Why there is nothing to hear or to say.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// What the client sent is not what it declared.
    #[error("the sound cannot be decoded: {0}")]
    Decode(#[from] DecodeError),
    /// The format that the client asked for cannot be made.
    #[error("the sound cannot be encoded: {0}")]
    Encode(#[from] EncodeError),
    /// A local engine failed.
    #[error(transparent)]
    Provider(#[from] ProviderError),
}

/// What to hear.
#[derive(Debug, Clone)]
pub struct Listening {
    /// What the client sends. A header in it wins; two channels are mixed.
    pub format: AudioFormat,
    /// The silence that ends an utterance; `None` is no silence. The local engine has its own idea of it.
    pub endpointing: Option<Duration>,
}

/// What was heard. Times are from the first sample that was sent.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    /// Somebody begins to speak.
    SpeechStarted {
        /// Where.
        at: Duration,
    },
    /// Everything since the last final, as heard so far.
    Partial(Transcript),
    /// Everything since the last final, as it will stay; never empty.
    Final(Transcript),
    /// The speaker has paused. The final of what was said has come before.
    EndOfSpeech {
        /// Where the sound ended.
        at: Duration,
    },
    /// The answer to [`Recogniser::finalize`]: everything that was sent before is final.
    Finalized {
        /// Up to where: a word that was being spoken is still to come.
        at: Duration,
    },
}

/// An open recogniser.
pub struct Recogniser {
    decoder: StreamDecoder,
    ears: Ears,
    ready: VecDeque<(Instant, Heard)>,
    late: Option<Duration>,
    /// Sound so far.
    position: Duration,
    visit: Visit,
}

enum Ears {
    Scripted(Box<Script>),
    Local(Box<Local>),
}

impl fmt::Debug for Recogniser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recogniser")
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl Visit {
    /// Opens a recogniser.
    pub async fn listen(&self, listening: Listening) -> Result<Recogniser, EngineError> {
        let ears = match &self.emulation().engine {
            Engine::Scripted => Ears::Scripted(Box::new(Script {
                endpointing: listening
                    .endpointing
                    .map(|silence| silence.max(SHORTEST_SILENCE)),
                ..Script::default()
            })),
            Engine::Local { stt, .. } => Ears::Local(Box::new(Local::open(stt.as_ref()).await?)),
        };
        let late = self.effect(|effect| match effect {
            Effect::Late(time) => Some(self.emulation().clock.real(*time)),
            _ => None,
        });
        Ok(Recogniser {
            decoder: StreamDecoder::new(listening.format)?,
            ears,
            ready: VecDeque::new(),
            late,
            position: Duration::ZERO,
            visit: self.clone(),
        })
    }
}

impl Recogniser {
    /// Takes bytes in the declared format, cut anywhere (bare Opus: one packet). What they mean comes from
    /// [`Self::next`], which should be called as often.
    pub async fn push(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        let mut heard = Vec::new();
        let mut decoded = Ok(());
        for sound in self.decoder.push(bytes) {
            match sound {
                Ok(sound) => {
                    self.position += sound.duration();
                    self.ears.hear(&sound.into_mono(), &mut heard).await;
                }
                Err(error) => decoded = Err(error.into()),
            }
        }
        heard.into_iter().for_each(|heard| self.give(heard));
        decoded
    }

    /// How much sound was taken.
    pub const fn position(&self) -> Duration {
        self.position
    }

    /// Asks for a final of everything so far, answered by [`Heard::Finalized`]; the stream goes on.
    pub async fn finalize(&mut self) {
        match &mut self.ears {
            Ears::Scripted(script) => {
                let last = script.take().map(Heard::Final);
                last.into_iter()
                    .chain([Heard::Finalized {
                        at: script.settled(),
                    }])
                    .for_each(|heard| self.give(heard));
            }
            Ears::Local(local) => local.finalize(self.position).await,
        }
    }

    /// Nothing more will be pushed: what is left comes from [`Self::next`], and then `None`.
    pub async fn finish(&mut self) {
        let mut heard = Vec::new();
        // A stream that was cut off ends where it was cut.
        for sound in self.decoder.finish().flatten() {
            self.position += sound.duration();
            self.ears.hear(&sound.into_mono(), &mut heard).await;
        }
        match &mut self.ears {
            Ears::Scripted(script) => script.finish(&mut heard),
            Ears::Local(local) => local.sink = None,
        }
        heard.into_iter().for_each(|heard| self.give(heard));
    }

    /// What was heard next; `None` after the last, once finished. May be dropped and called again.
    pub async fn next(&mut self) -> Option<Result<Heard, EngineError>> {
        loop {
            if let Some((due, _)) = self.ready.front() {
                tokio::time::sleep_until(*due).await;
                return self.ready.pop_front().map(|(_, heard)| Ok(heard));
            }
            let event = match &mut self.ears {
                Ears::Scripted(script) if script.finished => return None,
                Ears::Scripted(_) => std::future::pending().await,
                Ears::Local(local) => local.next(self.position).await,
            };
            match event {
                Some(Ok(heard)) => heard.into_iter().for_each(|heard| self.give(heard)),
                Some(Err(error)) => return Some(Err(error.into())),
                None => return None,
            }
        }
    }

    /// Lines an event up, in the order of the events and not before it is due.
    fn give(&mut self, heard: Heard) {
        let now = Instant::now();
        let mut due = self.ready.back().map_or(now, |(last, _)| now.max(*last));
        match &heard {
            Heard::Final(transcript) => {
                let words = transcript.text.split_whitespace().map(str::to_owned);
                self.visit.heard(words);
                due = self.late.map_or(due, |late| due.max(now + late));
            }
            Heard::EndOfSpeech { .. } | Heard::Finalized { .. } => {
                due = self.late.map_or(due, |late| due.max(now + late));
            }
            Heard::SpeechStarted { .. } | Heard::Partial(_) => {}
        }
        self.ready.push_back((due, heard));
    }
}

impl Ears {
    async fn hear(&mut self, sound: &Pcm, heard: &mut Vec<Heard>) {
        match self {
            Self::Scripted(script) => script.push(sound, heard),
            Self::Local(local) => local.push(sound).await,
        }
    }
}

/// Hears tone-words. The silence that ends an utterance is silence of the sound, not of the clock.
#[derive(Default)]
struct Script {
    endpointing: Option<Duration>,
    /// Made with the first sound, whose header says its rate.
    listener: Option<(SampleRate, Listener)>,
    /// Since the last final.
    words: Vec<Word>,
    /// Where the last word ended.
    heard_until: Duration,
    speaking: bool,
    finished: bool,
}

impl Script {
    fn push(&mut self, sound: &Pcm, heard: &mut Vec<Heard>) {
        let rate = sound.rate();
        // Small steps, so that a pause within a large piece is a pause.
        let step = rate.frames_in(Duration::from_millis(10)).max(1);
        for step in sound.samples().chunks(step) {
            let (_, listener) = self
                .listener
                .get_or_insert_with(|| (rate, Listener::new(rate)));
            let words = listener.hear(step);
            let (position, quiet, sounding) =
                (listener.position(), listener.quiet(), listener.sounding());
            if !self.speaking && sounding >= VOICE {
                self.speaking = true;
                heard.push(Heard::SpeechStarted {
                    at: position - sounding,
                });
            }
            self.words(&words, rate, heard);
            if self.speaking && self.endpointing.is_some_and(|silence| quiet >= silence) {
                self.speaking = false;
                heard.extend(self.take().map(Heard::Final));
                heard.push(Heard::EndOfSpeech {
                    at: position - quiet,
                });
            }
        }
    }

    fn words(
        &mut self,
        words: &[super::tone_words::ToneWord],
        rate: SampleRate,
        heard: &mut Vec<Heard>,
    ) {
        for word in words {
            let seconds = |samples: u64| samples as f64 / f64::from(rate.hz());
            self.heard_until = rate.duration_of(word.end as usize);
            self.words.push(Word {
                word: word.number.to_string(),
                start: seconds(word.start),
                end: seconds(word.end),
                confidence: Some(0.99),
                speaker: None,
            });
            heard.push(Heard::Partial(transcript(&self.words)));
            if self.words.len() >= SEGMENT_WORDS {
                heard.extend(self.take().map(Heard::Final));
            }
        }
    }

    /// Up to where no word is to come any more.
    fn settled(&self) -> Duration {
        match &self.listener {
            Some((_, listener)) if listener.quiet() >= SHORTEST_SILENCE => listener.position(),
            _ => self.heard_until,
        }
    }

    fn take(&mut self) -> Option<Transcript> {
        let words = std::mem::take(&mut self.words);
        (!words.is_empty()).then(|| transcript(&words))
    }

    fn finish(&mut self, heard: &mut Vec<Heard>) {
        if let Some((rate, mut listener)) = self.listener.take() {
            let at = listener.position() - listener.quiet();
            let words = listener.finish();
            self.words(&words, rate, heard);
            heard.extend(self.take().map(Heard::Final));
            if self.speaking {
                heard.push(Heard::EndOfSpeech { at });
            }
        }
        self.finished = true;
    }
}

fn transcript(words: &[Word]) -> Transcript {
    let text: Vec<&str> = words.iter().map(|word| word.word.as_str()).collect();
    Transcript {
        text: text.join(" "),
        confidence: Some(0.99),
        words: words.to_vec(),
        language: None,
        end: words.last().map(|word| word.end),
    }
}

/// Hears with the local engine.
struct Local {
    sink: Option<AudioSink>,
    events: BoxStream<'static, Result<SttEvent, ProviderError>>,
    resampler: Option<Resampler>,
    speaking: bool,
    /// When a final that was asked for is given up, and how much had been sent before.
    finalizing: Option<(Instant, Duration)>,
}

impl Local {
    async fn open(stt: &dyn SpeechToText) -> Result<Self, ProviderError> {
        let stream = stt
            .open(SttRequest {
                party: vivavoce_core::party::Party::Operator,
                language: "en-US".to_owned(),
                model: String::new(),
                punctuation: true,
                format: AudioFormat::mono(Encoding::Linear16, LOCAL_RATE),
                keyterms: Vec::new(),
                languages: Vec::new(),
                diarize: false,
                translate: false,
                credential: None,
            })
            .await?;
        Ok(Self {
            sink: Some(stream.sink),
            events: stream.events,
            resampler: None,
            speaking: false,
            finalizing: None,
        })
    }

    /// A recogniser that has ended tells why by its events.
    async fn push(&mut self, sound: &Pcm) {
        let resampler = self
            .resampler
            .get_or_insert_with(|| Resampler::new(Layout::mono(sound.rate()), LOCAL_RATE));
        let mut samples = Vec::new();
        resampler.push(sound.samples(), &mut samples);
        if let Some(sink) = &self.sink {
            let _ = sink.send(linear16::encode(&samples)).await;
        }
    }

    async fn finalize(&mut self, at: Duration) {
        if let Some(sink) = &self.sink {
            let _ = sink.finalize().await;
        }
        self.finalizing = Some((Instant::now() + FINALIZING, at));
    }

    async fn next(&mut self, position: Duration) -> Option<Result<Vec<Heard>, ProviderError>> {
        let event = tokio::select! {
            event = self.events.next() => event,
            () = clock::at(self.finalizing.map(|(late, _)| late)) => {
                return Some(Ok(self.finalized().into_iter().collect()));
            }
        };
        let mut heard = Vec::new();
        match event {
            Some(Ok(SttEvent::Partial(transcript))) => {
                self.begins(&transcript, position, &mut heard);
                heard.push(Heard::Partial(transcript));
            }
            Some(Ok(SttEvent::Final(transcript))) => {
                if !transcript.text.is_empty() {
                    self.begins(&transcript, position, &mut heard);
                    heard.push(Heard::Final(transcript));
                }
                heard.extend(self.finalized());
            }
            Some(Ok(SttEvent::EndOfSpeech)) => {
                self.speaking = false;
                heard.push(Heard::EndOfSpeech { at: position });
            }
            Some(Ok(SttEvent::UtteranceLost(error)) | Err(error)) => return Some(Err(error)),
            None => heard.push(self.finalized()?),
        }
        Some(Ok(heard))
    }

    /// The answer that is owed, if one is.
    fn finalized(&mut self) -> Option<Heard> {
        let (_, at) = self.finalizing.take()?;
        Some(Heard::Finalized { at })
    }

    fn begins(&mut self, transcript: &Transcript, position: Duration, heard: &mut Vec<Heard>) {
        if !std::mem::replace(&mut self.speaking, true) {
            let start = transcript.words.first().map(|word| word.start);
            let start = start.and_then(|start| Duration::try_from_secs_f64(start).ok());
            heard.push(Heard::SpeechStarted {
                at: start.unwrap_or(position),
            });
        }
    }
}

/// The words of a text that are spoken, as written.
pub(super) fn spoken_words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
        .filter(|word| number_of(word).is_some())
}
