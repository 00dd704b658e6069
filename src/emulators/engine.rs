//! The emulators' engines: this machine's own, or the scripted code of tone-words. A vendor's code opens a [`Recogniser`] or
//! a [`Speech`] by its visit and turns their events into its own messages; formats, resampling, the record and the faults of
//! recognition and audio are handled here.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use tokio::time::Instant;

use super::clock;
use super::faults::Effect;
use super::speech::estimated;
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
/// How long a word lasts whose time is not known.
const USUAL_WORD: Duration = Duration::from_millis(350);
/// What is heard at once of a file.
const PIECE: usize = 8 << 10;
/// The silence that ends an utterance in a file.
const PAUSE: Duration = Duration::from_millis(500);
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

/// Everything that is said in a file.
#[derive(Debug, Clone, Default)]
pub struct Whole {
    /// One utterance after the other.
    pub parts: Vec<Transcript>,
    /// How long the sound lasts.
    pub duration: Duration,
}

impl Whole {
    /// As one text.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self.parts.iter().map(|part| part.text.trim()).collect();
        texts.join(" ")
    }

    /// The words of all parts, where they are known.
    pub fn words(&self) -> impl Iterator<Item = &Word> {
        self.parts.iter().flat_map(|part| &part.words)
    }

    /// The mean of the parts' own; nought where nothing was said.
    pub fn confidence(&self) -> f32 {
        let known = self.parts.iter().filter_map(|part| part.confidence);
        known.sum::<f32>() / self.parts.len().max(1) as f32
    }
}

/// The format that the first bytes of a file announce, of those that can be heard.
pub fn announced(file: &[u8]) -> Option<AudioFormat> {
    let encoding = match file {
        [b'R', b'I', b'F', b'F', ..] => Encoding::Wav,
        [b'O', b'g', b'g', b'S', ..] => Encoding::OggOpus,
        [b'I', b'D', b'3', ..] | [0xff, 0xe0..=0xff, ..] => Encoding::Mp3,
        _ => return None,
    };
    Some(AudioFormat::mono(encoding, SampleRate::HZ_16000))
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
            Engine::Local { stt, .. } => Ears::Local(Box::new(
                Local::open(stt.as_ref(), listening.endpointing).await?,
            )),
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

    /// Hears a whole file.
    pub async fn hear(&self, format: AudioFormat, file: &[u8]) -> Result<Whole, EngineError> {
        let listening = Listening {
            format,
            endpointing: Some(PAUSE),
        };
        let mut recogniser = self.listen(listening).await?;
        let mut parts = Vec::new();
        let mut take = |heard: Result<Heard, EngineError>| {
            if let Heard::Final(transcript) = heard? {
                parts.push(transcript);
            }
            Ok::<_, EngineError>(())
        };
        for piece in file.chunks(PIECE) {
            recogniser.push(piece).await?;
            // What was heard so far does not wait until nothing more can be said.
            while let Some(Some(heard)) = recogniser.next().now_or_never() {
                take(heard)?;
            }
        }
        recogniser.finish().await;
        while let Some(heard) = recogniser.next().await {
            take(heard)?;
        }
        let duration = recogniser.position();
        Ok(Whole { parts, duration })
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
        if let Ears::Local(local) = &mut self.ears {
            heard.extend(local.pause(self.position));
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
    endpointing: Option<Duration>,
    speaking: bool,
    /// Where the last final ended.
    heard_until: Duration,
    /// The same, while nothing else was heard: not every engine says when a speaker pauses.
    quiet_from: Option<Duration>,
    /// When a final that was asked for is given up, and how much had been sent before.
    finalizing: Option<(Instant, Duration)>,
}

impl Local {
    async fn open(
        stt: &dyn SpeechToText,
        endpointing: Option<Duration>,
    ) -> Result<Self, ProviderError> {
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
            endpointing,
            speaking: false,
            heard_until: Duration::ZERO,
            quiet_from: None,
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
            Some(Ok(SttEvent::Partial(mut transcript))) => {
                self.begins(&transcript, position, &mut heard);
                self.time(&mut transcript, position);
                self.quiet_from = None;
                heard.push(Heard::Partial(transcript));
            }
            Some(Ok(SttEvent::Final(mut transcript))) => {
                if !transcript.text.is_empty() {
                    self.begins(&transcript, position, &mut heard);
                    self.time(&mut transcript, position);
                    let last = transcript.words.last().map(|word| word.end);
                    let end = last.and_then(|end| Duration::try_from_secs_f64(end).ok());
                    self.heard_until = end.unwrap_or(position);
                    self.quiet_from = Some(self.heard_until);
                    heard.push(Heard::Final(transcript));
                }
                heard.extend(self.finalized());
                heard.extend(self.pause(position));
            }
            Some(Ok(SttEvent::EndOfSpeech)) => {
                self.quiet_from = None;
                if std::mem::replace(&mut self.speaking, false) {
                    heard.push(Heard::EndOfSpeech { at: position });
                }
            }
            Some(Ok(SttEvent::UtteranceLost(error)) | Err(error)) => return Some(Err(error)),
            None => heard.push(self.finalized()?),
        }
        Some(Ok(heard))
    }

    /// Gives words their times, which vendors always tell, where the engine does not.
    fn time(&self, transcript: &mut Transcript, position: Duration) {
        if !transcript.words.is_empty() {
            return;
        }
        let end = transcript
            .end
            .and_then(|end| Duration::try_from_secs_f64(end).ok())
            .unwrap_or(position);
        let count = u32::try_from(spoken_words(&transcript.text).count()).unwrap_or(u32::MAX);
        let lasts = USUAL_WORD
            .saturating_mul(count)
            .min(end.saturating_sub(self.heard_until));
        let words = estimated(&transcript.text, end.saturating_sub(lasts), lasts);
        transcript.words = words
            .into_iter()
            .map(|word| Word {
                word: word.word,
                start: word.start.as_secs_f64(),
                end: word.end.as_secs_f64(),
                confidence: transcript.confidence,
                speaker: None,
            })
            .collect();
    }

    /// The end of an utterance behind which it was silent for long enough.
    fn pause(&mut self, position: Duration) -> Option<Heard> {
        let silence = self.endpointing?;
        let at = self
            .quiet_from
            .take_if(|at| position.saturating_sub(*at) >= silence)?;
        std::mem::replace(&mut self.speaking, false).then_some(Heard::EndOfSpeech { at })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn local(events: Vec<SttEvent>) -> Local {
        let events = futures_util::stream::iter(events.into_iter().map(Ok));
        Local {
            sink: None,
            // An engine goes on after its last event.
            events: events.chain(futures_util::stream::pending()).boxed(),
            resampler: None,
            endpointing: Some(Duration::from_millis(400)),
            speaking: false,
            heard_until: Duration::ZERO,
            quiet_from: None,
            finalizing: None,
        }
    }

    fn said(text: &str, end: f64) -> Transcript {
        Transcript {
            text: text.to_owned(),
            end: Some(end),
            ..Transcript::default()
        }
    }

    #[tokio::test]
    async fn silence_behind_a_final_ends_the_speech_of_an_engine_that_does_not_say_so() {
        let mut local = local(vec![
            SttEvent::Final(said("One two", 1.0)),
            SttEvent::Partial(said("Three", 2.5)),
        ]);
        let at = Duration::from_millis;
        let heard = local.next(at(1_100)).await.unwrap().unwrap();
        assert!(matches!(
            heard[..],
            [Heard::SpeechStarted { .. }, Heard::Final(_)]
        ));
        assert_eq!(local.pause(at(1_300)), None);
        assert_eq!(
            local.pause(at(1_500)),
            Some(Heard::EndOfSpeech { at: at(1_000) })
        );
        assert_eq!(local.pause(at(9_000)), None);
        let heard = local.next(at(2_500)).await.unwrap().unwrap();
        assert!(matches!(
            heard[..],
            [Heard::SpeechStarted { .. }, Heard::Partial(_)]
        ));
        assert_eq!(local.pause(at(9_000)), None);
    }

    #[tokio::test]
    async fn words_without_times_are_told_with_estimated_ones() {
        let mut local = local(vec![SttEvent::Partial(said("One two.", 5.0))]);
        let heard = local.next(Duration::from_secs(5)).await.unwrap().unwrap();
        let Some(Heard::Partial(transcript)) = heard.last() else {
            panic!("{heard:?}");
        };
        let words = &transcript.words;
        assert_eq!((words[0].word.as_str(), words[1].end), ("One", 5.0));
        assert!(words[0].start > 4.0 && words[0].end < words[1].start);
    }

    #[test]
    fn a_file_is_known_by_its_first_bytes() {
        let encoding = |file: &[u8]| announced(file).map(|format| format.encoding);
        assert_eq!(encoding(b"RIFF...."), Some(Encoding::Wav));
        assert_eq!(encoding(&[0xff, 0xfb, 0x90, 0]), Some(Encoding::Mp3));
        assert_eq!(encoding(b"{}"), None);
    }
}
