//! The timeline of an utterance's words: its text in the portions that were synthesised one after another, each with its
//! position in the audio, the word times that the provider reports, and the energy of its audio. Where the words of a
//! portion lie is estimated in [`super::words`]; how much was played is the queue's knowledge.

use std::ops::Range;
use std::time::Duration;

use super::words::{self, FRAME, PlacedWord, Sound};

/// How much audio must have come before the words of an unfinished portion are placed again.
const PATIENCE: Duration = Duration::from_millis(200);

/// The words of one utterance.
#[derive(Debug, Default)]
pub(super) struct WordTimeline {
    portions: Vec<Portion>,
    /// Mean magnitude of the frames since the first one that is still needed.
    loudness: Vec<u16>,
    first_frame: usize,
    /// Words that the client has been told of.
    told: usize,
}

#[derive(Debug)]
struct Portion {
    /// Bytes of the utterance's text.
    text: Range<usize>,
    /// Where its audio begins and, once that is known, where it ends.
    start: Duration,
    end: Option<Duration>,
    /// Bytes of the utterance's text, and where in the portion's audio the provider reports that the words there begin.
    told: Vec<(usize, Duration)>,
    /// Its words, placed by text and audio.
    placed: Vec<PlacedWord>,
    /// The number of reported words and the length of audio by which they were placed.
    placed_by: Option<(usize, Duration)>,
}

impl Portion {
    fn place(&mut self, text: &str, loudness: &[u16], duration: Duration) {
        let begin = self.text.start;
        let told: Vec<_> = self
            .told
            .iter()
            .filter_map(|&(byte, start)| Some((byte.checked_sub(begin)?, start)))
            .collect();
        let sound = Sound {
            loudness,
            duration,
            finished: self.end.is_some(),
        };
        let text = text.get(self.text.clone()).unwrap_or_default();
        self.placed = words::place(text, &told, sound);
        self.placed_by = Some((self.told.len(), duration));
    }

    /// Its audio ends there: words that were placed before that was known are placed again.
    const fn end_at(&mut self, at: Duration) {
        if self.end.is_none() {
            self.end = Some(at);
            self.placed_by = None;
        }
    }

    fn is_current(&self, duration: Duration) -> bool {
        self.placed_by.is_some_and(|(told, by)| {
            self.end.is_some() || told == self.told.len() && duration < by + PATIENCE
        })
    }
}

impl WordTimeline {
    /// The audio from `at` on speaks these bytes of the text. Text that is spoken again, or by a fallback, is placed there.
    pub(super) fn begin(&mut self, text: Range<usize>, at: Duration) {
        while let Some(last) = self.portions.last_mut() {
            if last.text.start < text.start {
                last.text.end = last.text.end.min(text.start);
                last.end_at(at);
                break;
            }
            self.portions.pop();
        }
        self.portions.push(Portion {
            text,
            start: at,
            end: None,
            told: Vec::new(),
            placed: Vec::new(),
            placed_by: None,
        });
    }

    /// The provider reports that the word at this byte of the text begins this long after the portion.
    pub(super) fn word(&mut self, byte: usize, start: Duration) {
        if let Some(portion) = self.portions.last_mut().filter(|last| last.end.is_none()) {
            portion.told.push((byte, start));
        }
    }

    /// The current portion ends there. `text` is that of the utterance.
    pub(super) fn end(&mut self, text: &str, at: Duration) {
        if let Some(last) = self.portions.last_mut() {
            last.end_at(at);
        }
        self.place(text, at);
        let needless = (frame_of(at) - self.first_frame.min(frame_of(at))).min(self.loudness.len());
        self.loudness.drain(..needless);
        self.first_frame += needless;
    }

    /// The energy of the next audio.
    pub(super) fn sound(&mut self, loudness: &[u16]) {
        self.loudness.extend_from_slice(loudness);
    }

    /// Places the words that must be placed, with this much audio.
    fn place(&mut self, text: &str, synthesised: Duration) {
        for portion in &mut self.portions {
            let end = portion.end.unwrap_or(synthesised);
            let duration = end.saturating_sub(portion.start);
            if !portion.is_current(duration) {
                let first = frame_of(portion.start).saturating_sub(self.first_frame);
                let loudness = self.loudness.get(first..).unwrap_or_default();
                portion.place(text, loudness, duration);
            }
        }
    }

    /// The text up to the last word that was played whole when `played` of the audio was.
    pub(super) fn heard<'a>(
        &mut self,
        text: &'a str,
        played: Duration,
        synthesised: Duration,
    ) -> &'a str {
        self.place(text, synthesised);
        let mut heard = 0;
        for portion in &self.portions {
            let played = played.saturating_sub(portion.start);
            let length = portion.end.map(|end| end.saturating_sub(portion.start));
            if length.is_some_and(|length| !length.is_zero() && played >= length) {
                heard = portion.text.end;
                continue;
            }
            let whole = portion.placed.iter().rfind(|word| word.end <= played);
            if let Some(word) = whole.filter(|_| !played.is_zero()) {
                heard = portion.text.start + word.text.end;
            }
        }
        text.get(..heard).unwrap_or_default().trim()
    }

    /// The next word of which the client has not been told: its number in the utterance, and its position in the audio.
    pub(super) fn next_word(
        &mut self,
        text: &str,
        synthesised: Duration,
    ) -> Option<(usize, PlacedWord)> {
        self.place(text, synthesised);
        let mut before = 0;
        for portion in &self.portions {
            if let Some(word) = portion.placed.get(self.told - before) {
                let length = portion.end.map(|end| end.saturating_sub(portion.start));
                let start = word.start.min(length.unwrap_or(Duration::MAX));
                let begin = portion.text.start;
                let place = PlacedWord {
                    text: begin + word.text.start..begin + word.text.end,
                    start: portion.start + start,
                    end: portion.start + word.end,
                    estimated: word.estimated,
                };
                return Some((self.told, place));
            }
            before += portion.placed.len();
            self.told = self.told.max(before);
        }
        None
    }

    /// The client has been told of the next word.
    pub(super) const fn tell(&mut self) {
        self.told += 1;
    }
}

const fn frame_of(at: Duration) -> usize {
    (at.as_nanos() / FRAME.as_nanos()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn said(text: &str, sound: Duration) -> WordTimeline {
        let mut timeline = WordTimeline::default();
        timeline.begin(0..text.len(), Duration::ZERO);
        timeline.end(text, sound);
        timeline
    }

    #[test]
    fn whole_words_are_heard_in_proportion_to_the_sound() {
        let text = "One two, three four. ";
        let mut timeline = said(text, SECOND * 10);
        let mut heard = |tenths| timeline.heard(text, SECOND * tenths, SECOND * 10);
        assert_eq!(heard(0), "");
        assert_eq!(heard(1), "");
        assert_eq!(heard(3), "One");
        assert_eq!(heard(5), "One two,");
        assert_eq!(heard(10), "One two, three four.");
        let text = "今天天气很好。";
        let mut timeline = said(text, SECOND * 2);
        assert_eq!(timeline.heard(text, SECOND, SECOND * 2), "今天天");
    }

    #[test]
    fn the_first_sound_of_a_long_text_is_not_taken_for_all_of_it() {
        let text = "word ".repeat(60);
        let mut timeline = WordTimeline::default();
        timeline.begin(0..text.len(), Duration::ZERO);
        // 240 letters last some 18 s: a tenth of them in 2 s.
        let heard = timeline.heard(&text, SECOND * 2, SECOND * 2);
        assert_eq!(heard, ["word"; 6].join(" "));
        assert_eq!(WordTimeline::default().heard("", SECOND, SECOND), "");
    }

    #[test]
    fn words_that_were_told_are_exactly_there_and_those_between_are_estimated() {
        let text = "Hello there, dear world";
        let mut timeline = WordTimeline::default();
        timeline.begin(0..text.len(), ms(500));
        timeline.word(0, ms(100));
        timeline.word(6, ms(900));
        timeline.word(18, ms(2_000));
        timeline.end(text, ms(3_000));
        let mut told = Vec::new();
        while let Some((index, word)) = timeline.next_word(text, ms(3_000)) {
            timeline.tell();
            told.push((index, &text[word.text], word.start, word.estimated));
        }
        let [first, second, third, fourth] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!(*first, (0, "Hello", ms(600), false));
        assert_eq!(*second, (1, "there,", ms(1_400), false));
        assert_eq!((third.0, third.1, third.3), (2, "dear", true));
        assert!(third.2 > ms(1_400) && third.2 < ms(2_500));
        assert_eq!(*fourth, (3, "world", ms(2_500), false));
        assert_eq!(timeline.heard(text, ms(1_399), ms(3_000)), "");
        assert_eq!(timeline.heard(text, ms(1_400), ms(3_000)), "Hello");
        assert_eq!(
            timeline.heard(text, ms(2_999), ms(3_000)),
            "Hello there, dear"
        );
        assert_eq!(timeline.heard(text, ms(3_000), ms(3_000)), text);
    }

    #[test]
    fn a_word_ends_where_its_sound_does_and_not_behind_the_pause() {
        let text = "Stop. Go";
        let mut timeline = WordTimeline::default();
        timeline.begin(0..text.len(), Duration::ZERO);
        let mut loudness = vec![1_000; 30];
        loudness.extend([0; 40]);
        loudness.extend([1_000; 30]);
        timeline.sound(&loudness);
        timeline.end(text, SECOND);
        assert_eq!(timeline.heard(text, ms(290), SECOND), "");
        assert_eq!(timeline.heard(text, ms(300), SECOND), "Stop.");
        let (_, stop) = timeline.next_word(text, SECOND).unwrap();
        timeline.tell();
        let (_, go) = timeline.next_word(text, SECOND).unwrap();
        assert_eq!((stop.start, go.start), (ms(0), ms(700)));
    }

    #[test]
    fn an_early_estimate_gives_way_when_the_sound_is_complete() {
        let text = "Hello there, dear old world";
        let mut timeline = WordTimeline::default();
        timeline.begin(0..text.len(), Duration::ZERO);
        let (_, early) = timeline.next_word(text, ms(1_080)).unwrap();
        assert!(early.end > ms(300));
        timeline.end(text, ms(1_080));
        let (_, hello) = timeline.next_word(text, ms(1_080)).unwrap();
        assert_eq!(hello.end.as_millis(), 1_080 * 5 / 22);
    }

    #[test]
    fn what_another_voice_says_again_is_placed_there() {
        let text = "One two three";
        let mut timeline = WordTimeline::default();
        timeline.begin(0..text.len(), Duration::ZERO);
        timeline.word(0, ms(0));
        timeline.word(4, ms(400));
        // The first voice has broken off in its second word.
        timeline.begin(4..text.len(), ms(600));
        timeline.end(text, ms(1_600));
        assert_eq!(timeline.heard(text, ms(600), ms(1_600)), "One");
        assert_eq!(timeline.heard(text, ms(1_600), ms(1_600)), text);
    }
}
