//! Character timestamps, derived from word timestamps and cut where the audio is cut. Times are relative to the end of the
//! previous message, so that the durations of all messages add up to the audio.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use crate::speech::{Piece, SpokenWord};

/// A character and when it is heard, from the start of the speech.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Character {
    letter: char,
    start: Duration,
    end: Duration,
}

/// The characters of a speech, as far as its words have come.
#[derive(Debug, Default)]
pub(super) struct Characters {
    /// Those whose sound has not come.
    coming: VecDeque<Character>,
    /// How much sound has gone by since the last message that told characters.
    untold: Duration,
    begun: bool,
}

impl Characters {
    fn add(&mut self, word: &SpokenWord) {
        let count = word.word.chars().count().max(1) as u32;
        let each = (word.end.saturating_sub(word.start)) / count;
        let mut start = word.start;
        for letter in word.word.chars() {
            let end = start + each;
            self.coming.push_back(Character { letter, start, end });
            start = end;
        }
        self.coming.push_back(Character {
            letter: ' ',
            start,
            end: start,
        });
    }

    /// What a message with this piece tells: `alignment` and `normalizedAlignment`, both null where no character begins
    /// in it, unless each message has to tell.
    pub(super) fn of(&mut self, piece: &Piece, each: bool) -> [Value; 2] {
        piece.words.iter().for_each(|word| self.add(word));
        let until = piece.start + piece.duration;
        let ready = self
            .coming
            .iter()
            .take_while(|next| next.start < until)
            .count();
        let mut said: Vec<Character> = self.coming.drain(..ready).collect();
        if said.is_empty() && each && !piece.duration.is_zero() {
            said.push(Character {
                letter: ' ',
                start: piece.start,
                end: until,
            });
        }
        let Some(last) = said.last_mut() else {
            self.untold += piece.duration;
            return [Value::Null, Value::Null];
        };
        last.end = until;
        let from = piece.start.saturating_sub(self.untold);
        self.untold = Duration::ZERO;
        let alignment = told(&said, from);
        let mut normalized = said;
        if !std::mem::replace(&mut self.begun, true) {
            let start = normalized[0].start;
            normalized.insert(
                0,
                Character {
                    letter: ' ',
                    start,
                    end: start,
                },
            );
        }
        [alignment, told(&normalized, from)]
    }

    /// The next speech begins with its own times.
    pub(super) fn next_speech(&mut self) {
        self.coming.clear();
    }
}

fn told(said: &[Character], from: Duration) -> Value {
    let ms = |time: Duration| time.as_millis() as u64;
    let start = |character: &Character| ms(character.start.saturating_sub(from));
    let lasts = |character: &Character| ms(character.end.saturating_sub(from)) - start(character);
    json!({
        "chars": said.iter().map(|character| character.letter).collect::<Vec<_>>(),
        "charStartTimesMs": said.iter().map(start).collect::<Vec<_>>(),
        "charDurationsMs": said.iter().map(lasts).collect::<Vec<_>>(),
    })
}

/// The alignment of HTTP, in seconds from the start of the speech.
pub(super) fn in_seconds(words: &[SpokenWord]) -> Value {
    let mut characters = Characters::default();
    words.iter().for_each(|word| characters.add(word));
    let said = characters.coming;
    let seconds = |time: Duration| time.as_secs_f64();
    json!({
        "characters": said.iter().map(|character| character.letter).collect::<Vec<_>>(),
        "character_start_times_seconds": said.iter().map(|character| seconds(character.start)).collect::<Vec<_>>(),
        "character_end_times_seconds": said.iter().map(|character| seconds(character.end)).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn piece(start_ms: u64, words: &[(&str, u64, u64)]) -> Piece {
        let word = |&(word, start, end): &(&str, u64, u64)| SpokenWord {
            word: word.to_owned(),
            start: Duration::from_millis(start),
            end: Duration::from_millis(end),
        };
        Piece {
            audio: Bytes::new(),
            start: Duration::from_millis(start_ms),
            duration: Duration::from_millis(100),
            words: words.iter().map(word).collect(),
        }
    }

    #[test]
    fn characters_are_told_with_their_sound_and_the_lengths_add_up() {
        let pieces = [
            piece(0, &[]),
            piece(100, &[("ab", 120, 220)]),
            piece(200, &[("c", 250, 300)]),
            piece(300, &[]),
        ];
        let mut characters = Characters::default();
        let told: Vec<[Value; 2]> = pieces
            .iter()
            .map(|piece| characters.of(piece, false))
            .collect();
        assert_eq!(told[0], [Value::Null, Value::Null]);
        assert_eq!(
            told[1][0],
            json!({"chars": ["a", "b"], "charStartTimesMs": [120, 170], "charDurationsMs": [50, 30]})
        );
        assert_eq!(told[1][1]["chars"], json!([" ", "a", "b"]));
        assert_eq!(
            told[2][0],
            json!({"chars": [" ", "c"], "charStartTimesMs": [20, 50], "charDurationsMs": [0, 50]})
        );
        assert_eq!(
            told[3][0],
            json!({"chars": [" "], "charStartTimesMs": [0], "charDurationsMs": [100]})
        );
        let ends: u64 = told
            .iter()
            .filter_map(|[alignment, _]| {
                let starts = alignment["charStartTimesMs"].as_array()?;
                let last = alignment["charDurationsMs"].as_array()?.last()?.as_u64()?;
                Some(starts.last()?.as_u64()? + last)
            })
            .sum();
        assert_eq!(ends, 400);
    }

    #[test]
    fn each_message_tells_when_it_is_asked_to() {
        let mut characters = Characters::default();
        let [alignment, _] = characters.of(&piece(0, &[]), true);
        assert_eq!(
            alignment,
            json!({"chars": [" "], "charStartTimesMs": [0], "charDurationsMs": [100]})
        );
    }
}
