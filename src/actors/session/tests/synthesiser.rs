//! A synthesiser that says every text as a ramp that never repeats within a scenario, so that a listener notices every
//! sample that is missing, doubled or out of order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use tokio::time::sleep;

use vivavoce_audio::{AudioFormat, Encoding, linear16};
use vivavoce_seams::{
    ErrorKind, ProviderError, Speaks, TextStream, TextToSpeech, TtsEvent, TtsRequest, TtsStream,
    Voice,
};

/// How long a character sounds.
pub const PER_CHARACTER: Duration = Duration::from_millis(40);

/// How a text is said; without a script at once.
#[derive(Debug, Clone, Copy)]
pub enum Way {
    /// The first audio comes so late, and then each 100 ms of audio takes so long.
    Slow(Duration, Duration),
    Fails(ErrorKind),
    /// After so much audio.
    FailsAfter(Duration),
    Panics,
    /// In the middle of whoever asks.
    TakesItsCallerAlong,
}

pub struct Synthesiser {
    slug: &'static str,
    /// Whether it tells where its words begin.
    tells_words: AtomicBool,
    ways: Mutex<VecDeque<Way>>,
    asked: Mutex<Vec<String>>,
    /// Samples so far.
    said: Arc<AtomicUsize>,
    live: Arc<()>,
}

impl Synthesiser {
    pub fn new(slug: &'static str) -> Self {
        Self {
            slug,
            tells_words: AtomicBool::new(true),
            ways: Mutex::default(),
            asked: Mutex::default(),
            said: Arc::default(),
            live: Arc::default(),
        }
    }

    /// It tells no words from now on.
    pub fn tells_no_words(&self) {
        self.tells_words.store(false, Ordering::Relaxed);
    }

    /// How the next texts are said.
    pub fn says(&self, ways: impl IntoIterator<Item = Way>) {
        self.ways.lock().unwrap().extend(ways);
    }

    /// The texts that it was asked for.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// Syntheses under way.
    pub fn live(&self) -> usize {
        Arc::strong_count(&self.live) - 1
    }
}

/// The next samples of the ramp; none of them is silence.
pub fn ramp(from: usize, samples: usize) -> Vec<i16> {
    let next = |n: usize| (n % 30_000) as i16 + 1;
    (from..from + samples).map(next).collect()
}

/// Where the words of a text begin.
fn words(text: &str) -> Vec<TtsEvent> {
    let words = text.split_whitespace();
    let place = |word: &str| {
        let before = word.as_ptr() as usize - text.as_ptr() as usize;
        let start = PER_CHARACTER * text[..before].chars().count() as u32;
        let word = word.to_owned();
        TtsEvent::Word { word, start }
    };
    words.map(place).collect()
}

fn failure(kind: ErrorKind) -> ProviderError {
    ProviderError::new("scripted", kind, "a scripted failure")
}

#[async_trait]
impl TextToSpeech for Synthesiser {
    fn slug(&self) -> &'static str {
        self.slug
    }

    fn endpoint(&self) -> &str {
        let mut ways = self.ways.lock().unwrap();
        let fatal = matches!(ways.front(), Some(Way::TakesItsCallerAlong));
        if fatal {
            ways.pop_front();
        }
        drop(ways);
        assert!(!fatal, "a mistake that takes the caller along");
        ""
    }

    fn speaks(&self) -> Speaks {
        Speaks {
            speaking_rates: 0.25..=4.0,
        }
    }

    async fn synthesize(
        &self,
        request: TtsRequest,
        mut text: TextStream,
    ) -> Result<TtsStream, ProviderError> {
        let text = text.next().await.unwrap_or_default();
        self.asked.lock().unwrap().push(text.clone());
        let way = self.ways.lock().unwrap().pop_front();
        let (first, each) = match way {
            Some(Way::Fails(kind)) => return Err(failure(kind)),
            Some(Way::Panics | Way::TakesItsCallerAlong) => panic!("a synthesiser's mistake"),
            Some(Way::Slow(first, each)) => (first, each),
            Some(Way::FailsAfter(_)) | None => (Duration::ZERO, Duration::ZERO),
        };
        let length = PER_CHARACTER * text.chars().count() as u32;
        let length = match way {
            Some(Way::FailsAfter(sound)) => sound,
            _ => length,
        };
        let end = match way {
            Some(Way::FailsAfter(_)) => Err(failure(ErrorKind::Unavailable)),
            _ => Ok(TtsEvent::Done),
        };
        let rate = request.preferred.layout.rate;
        let (all, piece) = (
            rate.frames_in(length),
            rate.frames_in(Duration::from_millis(100)),
        );
        let (said, live) = (Arc::clone(&self.said), Arc::clone(&self.live));
        let sound = stream::iter((0..all).step_by(piece)).then(move |at| {
            let _held = &live;
            let said = Arc::clone(&said);
            async move {
                sleep(if at == 0 { first } else { each }).await;
                let samples = piece.min(all - at);
                let from = said.fetch_add(samples, Ordering::Relaxed);
                Ok(TtsEvent::Audio(linear16::encode(&ramp(from, samples))))
            }
        });
        let tells = self.tells_words.load(Ordering::Relaxed);
        let words = if tells { words(&text) } else { Vec::new() };
        let sound = stream::iter(words).map(Ok).chain(sound);
        Ok(TtsStream {
            format: AudioFormat::mono(Encoding::Linear16, rate),
            events: sound.chain(stream::iter([end])).boxed(),
        })
    }

    async fn voices(&self) -> Result<Vec<Voice>, ProviderError> {
        Ok(Vec::new())
    }
}
