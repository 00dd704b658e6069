//! Word timestamps from character timestamps. ElevenLabs sends these message by message, cut anywhere, even within words;
//! here they are aligned with the text that was sent.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Deserialize;

use vivavoce_seams::TtsEvent;

/// Letters that may be passed over to find the ones that the vendor says next.
const MOST_UNSAID: usize = 400;

/// Characters and their times within the sound of one message. Older servers spell the names with a further `s`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Alignment {
    #[serde(default)]
    chars: Vec<String>,
    #[serde(default, rename = "charStartTimesMs", alias = "charsStartTimesMs")]
    starts_ms: Vec<f64>,
    #[serde(default, rename = "charDurationsMs", alias = "charsDurationsMs")]
    durations_ms: Vec<f64>,
}

impl Alignment {
    /// Its letters, without the spaces, and when each begins.
    fn letters(&self) -> Vec<(char, f64)> {
        self.chars
            .iter()
            .zip(&self.starts_ms)
            .flat_map(|(text, start)| text.chars().map(|letter| (letter, *start)))
            .filter(|(letter, _)| !letter.is_whitespace())
            .collect()
    }

    fn end_ms(&self) -> f64 {
        let characters = self.starts_ms.iter().zip(&self.durations_ms);
        let ends = characters.map(|(start, lasts)| start + lasts);
        ends.fold(0.0, f64::max)
    }
}

/// The words of a text that have not begun yet.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// The letters that are still to be said, each with the word that begins with it.
    letters: VecDeque<(char, Option<String>)>,
    /// Where the sound of the next message begins.
    base_ms: f64,
}

impl Words {
    /// More of the text: whole words.
    pub(super) fn expect(&mut self, text: &str) {
        for word in text.split_whitespace() {
            let mut begins = Some(word.to_owned());
            let letters = word.chars().map(|letter| (letter, begins.take()));
            self.letters.extend(letters);
        }
    }

    /// Tells the words that begin in the sound of a message. Characters that the text does not have next, because the
    /// vendor repeats itself or says something else, begin no word.
    pub(super) fn place(&mut self, alignment: &Alignment, events: &mut Vec<TtsEvent>) {
        let said = alignment.letters();
        if let Some(unsaid) = self.find(&said) {
            self.letters.drain(..unsaid);
            for ((_, word), (_, start_ms)) in self.letters.drain(..said.len()).zip(&said) {
                let start = Duration::try_from_secs_f64((self.base_ms + start_ms) / 1000.0);
                if let (Some(word), Ok(start)) = (word, start) {
                    events.push(TtsEvent::Word { word, start });
                }
            }
        }
        self.base_ms += alignment.end_ms();
    }

    /// How many letters come before those that were said.
    fn find(&self, said: &[(char, f64)]) -> Option<usize> {
        if said.is_empty() {
            return None;
        }
        let last = self.letters.len().checked_sub(said.len())?;
        (0..=last.min(MOST_UNSAID)).find(|&unsaid| {
            let letters = self.letters.range(unsaid..unsaid + said.len());
            letters
                .zip(said)
                .all(|((letter, _), (heard, _))| letter == heard)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A message that says these characters, 10 ms each.
    fn says(text: &str) -> Alignment {
        let count = text.chars().count();
        serde_json::from_value(json!({
            "chars": text.chars().map(String::from).collect::<Vec<_>>(),
            "charStartTimesMs": (0..count).map(|index| index * 10).collect::<Vec<_>>(),
            "charDurationsMs": vec![10; count],
        }))
        .unwrap()
    }

    fn placed(text: &str, messages: &[Alignment]) -> Vec<(String, u128)> {
        let mut words = Words::default();
        words.expect(text);
        let mut events = Vec::new();
        for message in messages {
            words.place(message, &mut events);
        }
        let told = |event| match event {
            TtsEvent::Word { word, start } => (word, start.as_millis()),
            other => panic!("{other:?}"),
        };
        events.into_iter().map(told).collect()
    }

    fn expected(words: &[(&str, u128)]) -> Vec<(String, u128)> {
        let owned = |(word, start): &(&str, u128)| ((*word).to_owned(), *start);
        words.iter().map(owned).collect()
    }

    #[test]
    fn words_are_whole_wherever_messages_are_cut() {
        let text = "Hello, dear world.";
        let whole = expected(&[("Hello,", 0), ("dear", 70), ("world.", 120)]);
        assert_eq!(placed(text, &[says("Hello, dear world. ")]), whole);
        for cut in 1..text.len() {
            let (before, after) = text.split_at(cut);
            assert_eq!(placed(text, &[says(before), says(after)]), whole, "{cut}");
        }
    }

    #[test]
    fn spaces_that_were_not_asked_for_split_nothing() {
        let said = [says(" Hel"), says(" lo,  "), says(" dear")];
        let words = expected(&[("Hello,", 10), ("dear", 110)]);
        assert_eq!(placed("Hello, dear", &said), words);
    }

    #[test]
    fn what_is_repeated_begins_no_word_and_what_is_left_out_holds_none_up() {
        let said = [says("one "), says("one "), says("three")];
        let words = expected(&[("one", 0), ("three", 80)]);
        assert_eq!(placed("one two three", &said), words);
        assert_eq!(placed("one", &[says("four five")]), []);
        assert_eq!(placed("", &[says("one")]), []);
    }

    #[test]
    fn times_that_are_none_are_borne() {
        let short =
            json!({"chars": ["o", "n", "e"], "charStartTimesMs": [-5, 1], "charDurationsMs": []});
        let older =
            json!({"chars": ["on", "e"], "charsStartTimesMs": [7, 9], "charsDurationsMs": [1, 1]});
        let empty = json!({});
        let read = |value| serde_json::from_value::<Alignment>(value).unwrap();
        assert_eq!(placed("one", &[read(empty), read(short)]), []);
        assert_eq!(placed("one", &[read(older)]), expected(&[("one", 7)]));
    }
}
