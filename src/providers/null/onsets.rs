//! Hears when sound begins: the model `onsets` of the recogniser says one word in the moment in which silence ends. What
//! is said at a known time shows so how long it was on its way.

use std::time::Duration;

use tokio::sync::mpsc;

use vivavoce_audio::format::Layout;
use vivavoce_audio::linear16;
use vivavoce_seams::{SttEvent, SttInput, Transcript, Word};

/// The name of the model.
pub(super) const MODEL: &str = "onsets";
/// What is said.
const WORD: &str = "sound";
/// What is fainter is silence, whatever codecs make of it: −30 dB of full scale.
const FAINTEST: u16 = 1_000;
/// Less silence than this is a part of the sound.
const LEAST_SILENCE: Duration = Duration::from_millis(200);

/// How far the sound has come, and what it was last.
pub(super) struct Onsets {
    layout: Layout,
    frames: u64,
    silence: Duration,
}

/// The next event; `None` when the input has ended.
pub(super) async fn next(
    (mut input, mut onsets): (mpsc::Receiver<SttInput>, Onsets),
) -> Option<(SttEvent, (mpsc::Receiver<SttInput>, Onsets))> {
    loop {
        let event = match input.recv().await? {
            SttInput::Audio(audio) => onsets.hear(&audio),
            // Everything was said already.
            SttInput::Finalize => Some(onsets.says(Vec::new())),
        };
        if let Some(event) = event {
            return Some((event, (input, onsets)));
        }
    }
}

impl Onsets {
    /// Sound of this layout, which begins after silence.
    pub(super) const fn new(layout: Layout) -> Self {
        Self {
            layout,
            frames: 0,
            silence: LEAST_SILENCE,
        }
    }

    fn position(&self) -> Duration {
        self.layout.rate.duration_of(self.frames as usize)
    }

    fn hear(&mut self, audio: &[u8]) -> Option<SttEvent> {
        let start = self.position();
        let bytes_per_frame = 2 * self.layout.channels.count();
        self.frames += (audio.len() / bytes_per_frame) as u64;
        let end = self.position();
        let loud = |sample: i16| sample.unsigned_abs() >= FAINTEST;
        if !linear16::samples(audio).into_iter().any(loud) {
            self.silence += end.saturating_sub(start);
            return None;
        }
        let silence = std::mem::take(&mut self.silence);
        (silence >= LEAST_SILENCE).then(|| {
            self.says(vec![Word {
                word: WORD.to_owned(),
                start: start.as_secs_f64(),
                end: end.as_secs_f64(),
                confidence: Some(1.0),
                speaker: None,
            }])
        })
    }

    fn says(&self, words: Vec<Word>) -> SttEvent {
        SttEvent::Final(Transcript {
            text: words.iter().map(|word| word.word.as_str()).collect(),
            confidence: Some(1.0),
            words,
            language: None,
            end: Some(self.position().as_secs_f64()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_audio::format::SampleRate;

    #[test]
    fn the_begin_of_sound_is_said_once_and_again_after_silence() {
        let mut onsets = Onsets::new(Layout::mono(SampleRate::HZ_16000));
        let mut hear = |amplitude: i16, chunks: usize| -> Vec<u64> {
            let chunk = linear16::encode(&[amplitude; 320]);
            let said = (0..chunks).filter_map(|_| onsets.hear(&chunk));
            let starts = said.map(|event| match event {
                SttEvent::Final(heard) => (heard.words[0].start * 1e3).round() as u64,
                other => panic!("{other:?}"),
            });
            starts.collect()
        };
        assert_eq!(hear(100, 50), [0; 0]);
        assert_eq!(hear(-8_000, 10), [1_000]);
        assert_eq!(hear(0, 9), [0; 0]);
        assert_eq!(hear(8_000, 5), [0; 0], "a pause of 180 ms is none");
        assert_eq!(hear(0, 10), [0; 0]);
        assert_eq!(hear(8_000, 1), [1_680]);
    }
}
