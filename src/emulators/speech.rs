//! The emulators' speech: a text as audio in the vendor's format, in pieces with their words. Scripted speech has exact word
//! timestamps, that of the local engine has estimated ones. How pieces become messages is up to the vendor's code.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::mpsc;

use super::engine::{Engine, EngineError, spoken_words};
use super::faults::Effect;
use super::tone_words::{GAP, WORD, number_of, speak_with_gap};
use super::visit::Visit;
use vivavoce_audio::decode::StreamDecoder;
use vivavoce_audio::encode::{Encoded, StreamEncoder};
use vivavoce_audio::{AudioFormat, Encoding, Layout, OfflineResampler, Pcm, SampleRate};
use vivavoce_core::sentences::spoken_lines;
use vivavoce_seams::{TextToSpeech, TtsEvent, TtsRequest};

/// The sound in one piece.
const PIECE: Duration = Duration::from_millis(100);
/// Pieces that are made before they are asked for.
const AHEAD: usize = 4;
/// The shortest silence between two words, however fast they are spoken.
const SHORTEST_GAP: Duration = Duration::from_millis(16);
const PATIENCE: Duration = Duration::from_secs(30);

/// How to say it.
#[derive(Debug, Clone)]
pub struct Saying {
    /// 1.0 is normal. Scripted words come as much closer or farther apart, as far as their tones allow.
    pub speaking_rate: f64,
    /// In which format; the sound of two channels is the same in both.
    pub format: AudioFormat,
}

/// A word within the sound. Times are from the first sample of the speech.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpokenWord {
    /// As written in the text.
    pub word: String,
    /// Where it begins.
    pub start: Duration,
    /// Where it ends.
    pub end: Duration,
}

/// A piece of speech.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Bytes in the format that was asked for. Empty only by a fault.
    pub audio: Bytes,
    /// Where its sound begins.
    pub start: Duration,
    /// How long its sound lasts.
    pub duration: Duration,
    /// The words that begin in it.
    pub words: Vec<SpokenWord>,
}

/// A speech under way. Dropping it ends it.
#[derive(Debug)]
pub struct Speech {
    pieces: mpsc::Receiver<Result<Piece, EngineError>>,
    visit: Visit,
    /// By a fault: what is left over of a piece that was cut within a sample.
    odd: Option<BytesMut>,
    /// By a fault: an empty piece before each.
    empties: bool,
    next: Option<Piece>,
}

impl Visit {
    /// Begins to say a text. Must be called in a runtime.
    pub fn say(&self, text: &str, saying: &Saying) -> Result<Speech, EngineError> {
        let mouth = Mouth::new(saying.format)?;
        let (sender, pieces) = mpsc::channel(AHEAD);
        let speaking = Speaking {
            mouth,
            sender,
            rate: if saying.speaking_rate.is_finite() {
                saying.speaking_rate.clamp(0.25, 4.0)
            } else {
                1.0
            },
        };
        tokio::spawn(speaking.run(self.emulation().engine.clone(), text.to_owned()));
        let has = |wanted: Effect| self.effect(|effect| (*effect == wanted).then_some(()));
        let linear = saying.format.encoding == Encoding::Linear16;
        Ok(Speech {
            pieces,
            visit: self.clone(),
            odd: has(Effect::Odd)
                .filter(|()| linear)
                .map(|()| BytesMut::new()),
            empties: has(Effect::Empty).is_some(),
            next: None,
        })
    }
}

impl Speech {
    /// The next piece; `None` after the last. May be dropped and called again.
    pub async fn next(&mut self) -> Option<Result<Piece, EngineError>> {
        if let Some(piece) = self.next.take() {
            return Some(Ok(piece));
        }
        let mut piece = match self.pieces.recv().await? {
            Ok(piece) => piece,
            Err(error) => return Some(Err(error)),
        };
        self.visit
            .said(piece.words.iter().map(|word| word.word.clone()));
        if let Some(left_over) = &mut self.odd {
            // The last byte of each piece comes with the next; that of the last piece never does.
            left_over.extend_from_slice(&piece.audio);
            piece.audio = left_over
                .split_to(left_over.len().saturating_sub(1))
                .freeze();
        }
        if self.empties {
            let empty = Piece {
                audio: Bytes::new(),
                duration: Duration::ZERO,
                words: Vec::new(),
                ..piece
            };
            self.next = Some(piece);
            return Some(Ok(empty));
        }
        Some(Ok(piece))
    }

    /// The bytes alone, as they come, for the body of an answer; after a failure nothing more comes.
    pub fn bytes(self) -> impl Stream<Item = Bytes> {
        stream::unfold(self, |mut speech| async {
            let piece = speech.next().await?.ok()?;
            Some((piece.audio, speech))
        })
    }

    /// All that is left, in one piece; for answers that come as a whole.
    pub async fn whole(mut self) -> Result<Piece, EngineError> {
        let mut audio = BytesMut::new();
        let (mut duration, mut words) = (Duration::ZERO, Vec::new());
        while let Some(piece) = self.next().await {
            let piece = piece?;
            audio.extend_from_slice(&piece.audio);
            duration += piece.duration;
            words.extend(piece.words);
        }
        Ok(Piece {
            audio: audio.freeze(),
            start: Duration::ZERO,
            duration,
            words,
        })
    }
}

/// Nobody listens any more, or the sound cannot be made.
enum Stop {
    Gone,
    Failed(EngineError),
}

impl<E: Into<EngineError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// The task that speaks.
struct Speaking {
    mouth: Mouth,
    sender: mpsc::Sender<Result<Piece, EngineError>>,
    rate: f64,
}

impl Speaking {
    async fn run(mut self, engine: Engine, text: String) {
        let said = match engine {
            Engine::Scripted => self.script(&text).await,
            Engine::Local { tts, .. } => self.local(tts.as_ref(), text).await,
        };
        let said = match said {
            Ok(()) => self.finish().await,
            stopped => stopped,
        };
        if let Err(Stop::Failed(error)) = said {
            let _ = self.sender.send(Err(error)).await;
        }
    }

    async fn script(&mut self, text: &str) -> Result<(), Stop> {
        let gap = (WORD + GAP)
            .div_f64(self.rate)
            .saturating_sub(WORD)
            .max(SHORTEST_GAP);
        for word in spoken_words(text) {
            let sound = speak_with_gap(number_of(word).unwrap_or_default(), self.mouth.rate(), gap);
            let start = self.mouth.position();
            let word = SpokenWord {
                word: word.to_owned(),
                start,
                end: start + WORD,
            };
            self.say(&sound, vec![word]).await?;
        }
        Ok(())
    }

    /// Sentence by sentence: how long one lasts, and with it where its words are, is only known when it is complete.
    async fn local(&mut self, tts: &dyn TextToSpeech, text: String) -> Result<(), Stop> {
        let mut lines = spoken_lines(stream::iter([text]).boxed());
        while let Some(line) = lines.next().await {
            let sound = synthesised(tts, &line, self.rate).await?;
            let sound = OfflineResampler::convert(sound, self.mouth.rate());
            let words = estimated(&line, self.mouth.position(), sound.duration());
            self.say(sound.samples(), words).await?;
        }
        Ok(())
    }

    async fn say(&mut self, samples: &[i16], words: Vec<SpokenWord>) -> Result<(), Stop> {
        self.mouth.words.extend(words);
        let step = self.mouth.rate().frames_in(PIECE).max(1);
        for samples in samples.chunks(step) {
            let encoded = self.mouth.encode(samples).await?;
            self.give(encoded).await?;
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), Stop> {
        let rest = self
            .mouth
            .encoder
            .finish()
            .await
            .map_err(EngineError::from)?;
        // Words whose sound the encoder had kept to itself.
        let piece = self.mouth.piece(rest, Duration::MAX);
        self.send(piece).await
    }

    async fn give(&mut self, encoded: Vec<Encoded>) -> Result<(), Stop> {
        let until = self.mouth.given
            + encoded
                .iter()
                .map(|encoded| encoded.duration)
                .sum::<Duration>();
        let piece = self.mouth.piece(encoded, until);
        self.send(piece).await
    }

    async fn send(&mut self, piece: Option<Piece>) -> Result<(), Stop> {
        match piece {
            Some(piece) => self.sender.send(Ok(piece)).await.map_err(|_| Stop::Gone),
            None => Ok(()),
        }
    }
}

/// Sound on its way into bytes.
struct Mouth {
    encoder: StreamEncoder,
    /// Frames that were said.
    said: usize,
    /// Sound in the pieces that were given.
    given: Duration,
    /// Words that begin in no piece yet.
    words: Vec<SpokenWord>,
}

impl Mouth {
    fn new(format: AudioFormat) -> Result<Self, EngineError> {
        Ok(Self {
            encoder: StreamEncoder::live(format)?,
            said: 0,
            given: Duration::ZERO,
            words: Vec::new(),
        })
    }

    fn rate(&self) -> SampleRate {
        self.encoder.layout().rate
    }

    fn position(&self) -> Duration {
        self.rate().duration_of(self.said)
    }

    async fn encode(&mut self, samples: &[i16]) -> Result<Vec<Encoded>, EngineError> {
        self.said += samples.len();
        let layout = self.encoder.layout();
        let sound =
            Pcm::new(Layout::mono(layout.rate), samples.to_vec()).into_channels(layout.channels);
        Ok(self.encoder.push(&sound).await?)
    }

    /// A piece of what is ready, with the words that begin before `until`; `None` when there is nothing.
    fn piece(&mut self, encoded: Vec<Encoded>, until: Duration) -> Option<Piece> {
        let mut audio = BytesMut::new();
        let mut duration = Duration::ZERO;
        for encoded in encoded {
            audio.extend_from_slice(&encoded.data);
            duration += encoded.duration;
        }
        if audio.is_empty() {
            return None;
        }
        let start = self.given;
        self.given += duration;
        let later = self.words.iter().position(|word| word.start >= until);
        let words = self
            .words
            .drain(..later.unwrap_or(self.words.len()))
            .collect();
        Some(Piece {
            audio: audio.freeze(),
            start,
            duration,
            words,
        })
    }
}

async fn synthesised(tts: &dyn TextToSpeech, line: &str, rate: f64) -> Result<Pcm, EngineError> {
    let rates = tts.speaks().speaking_rates;
    let request = TtsRequest {
        party: vivavoce_core::party::Party::Operator,
        voice_id: None,
        model: String::new(),
        speaking_rate: rate.clamp(*rates.start(), *rates.end()),
        preferred: AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_24000),
        connection_timeout: PATIENCE,
        request_timeout: PATIENCE,
        credential: None,
    };
    let text = stream::iter([line.to_owned()]).boxed();
    let mut speech = tts.synthesize(request, text).await?;
    let mut decoder = StreamDecoder::new(speech.format)?;
    let (mut rate, mut samples) = (speech.format.layout.rate, Vec::new());
    let mut add = |sound: Pcm| {
        rate = sound.rate();
        samples.extend(sound.into_mono().into_samples());
    };
    while let Some(event) = speech.events.next().await {
        if let TtsEvent::Audio(bytes) = event? {
            for sound in decoder.push(&bytes) {
                add(sound?);
            }
        }
    }
    for sound in decoder.finish() {
        add(sound?);
    }
    Ok(Pcm::new(Layout::mono(rate), samples))
}

/// Where the words of a sentence are when every letter takes as long, and a space as long as a letter.
pub(super) fn estimated(line: &str, start: Duration, duration: Duration) -> Vec<SpokenWord> {
    let all = line.chars().count().max(1) as f64;
    let at = |chars: usize| start + duration.mul_f64((chars as f64 / all).min(1.0));
    let mut chars = 0;
    let mut words = Vec::new();
    for part in line.split_inclusive(char::is_whitespace) {
        let word = part.trim_end();
        let begin = chars;
        chars += part.chars().count();
        if number_of(word).is_some() {
            words.push(SpokenWord {
                word: word.to_owned(),
                start: at(begin),
                end: at(begin + word.chars().count()),
            });
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_estimated_in_order_and_within_their_sentence() {
        let words = estimated(
            "a bcd – ef.",
            Duration::from_secs(5),
            Duration::from_secs(11),
        );
        let places: Vec<_> = words
            .iter()
            .map(|word| (word.word.as_str(), word.start.as_secs(), word.end.as_secs()))
            .collect();
        assert_eq!(places, [("a", 5, 6), ("bcd", 7, 10), ("ef.", 13, 16)]);
    }
}
