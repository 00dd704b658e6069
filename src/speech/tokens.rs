//! Vocabularies of byte-level BPE, as GPT-2 and Whisper have them: a token is some bytes of UTF-8, and the token with the
//! lower number was merged first.

use std::collections::HashMap;
use std::path::Path;

use crate::worker::SpeechError;

/// The longest text that is encoded, in bytes.
const LONGEST_TEXT: usize = 4_096;

/// Tokens and their bytes.
#[derive(Debug)]
pub struct Vocabulary {
    tokens: Vec<Box<[u8]>>,
    numbers: HashMap<Box<[u8]>, u32>,
}

impl Vocabulary {
    /// From a file with a token a line, its bytes spelled in GPT-2's alphabet.
    pub fn load(path: &Path) -> Result<Self, SpeechError> {
        let failed = |cause: String| SpeechError::File {
            file: path.display().to_string(),
            cause,
        };
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let alphabet = alphabet();
        let tokens: Vec<Box<[u8]>> = text.lines().map(|line| spelled(line, &alphabet)).collect();
        if tokens.is_empty() {
            return Err(failed("there are no tokens".to_owned()));
        }
        let mut numbers = HashMap::with_capacity(tokens.len());
        for (number, token) in tokens.iter().enumerate() {
            numbers.entry(token.clone()).or_insert(number as u32);
        }
        Ok(Self { tokens, numbers })
    }

    /// The number of a token.
    pub fn number(&self, token: &str) -> Option<u32> {
        self.numbers.get(token.as_bytes()).copied()
    }

    /// The bytes of a token; none of one that there is not.
    pub fn bytes(&self, token: u32) -> &[u8] {
        self.tokens.get(token as usize).map_or(&[], |token| token)
    }

    /// The text of tokens. Bytes that are no text are replaced.
    pub fn text(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|&token| self.bytes(token))
            .copied()
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The tokens of a text, at most of its first 4 kB: of each word its pieces, the pair that was merged first joined first.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut end = text.len().min(LONGEST_TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut encoded = Vec::new();
        let mut rest = &text[..end];
        while !rest.is_empty() {
            // A word with the space before it.
            let after = rest
                .char_indices()
                .skip(1)
                .find(|(_, letter)| *letter == ' ')
                .map_or(rest.len(), |(at, _)| at);
            let (word, further) = rest.split_at(after);
            self.encode_word(word.as_bytes(), &mut encoded);
            rest = further;
        }
        encoded
    }

    fn encode_word(&self, word: &[u8], encoded: &mut Vec<u32>) {
        // Where the pieces begin, and the end.
        let mut cuts: Vec<usize> = (0..=word.len()).collect();
        let piece = |from: usize, to: usize| self.numbers.get(word.get(from..to)?).copied();
        while cuts.len() > 2 {
            let joined = cuts
                .windows(3)
                .enumerate()
                .filter_map(|(at, cuts)| Some((piece(cuts[0], cuts[2])?, at + 1)))
                .min();
            match joined {
                Some((_, cut)) => drop(cuts.remove(cut)),
                None => break,
            }
        }
        encoded.extend(cuts.windows(2).filter_map(|cuts| piece(cuts[0], cuts[1])));
    }
}

/// GPT-2's spelling of bytes: those that can be seen as themselves, the others as the characters from U+0100 on.
fn alphabet() -> HashMap<char, u8> {
    let seen = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let hidden = (0..=255u8)
        .filter(|&byte| !seen(byte))
        .zip(0x100u32..)
        .filter_map(|(byte, code)| Some((char::from_u32(code)?, byte)));
    (0..=255u8)
        .filter(|&byte| seen(byte))
        .map(|byte| (char::from(byte), byte))
        .chain(hidden)
        .collect()
}

fn spelled(line: &str, alphabet: &HashMap<char, u8>) -> Box<[u8]> {
    line.chars()
        .map(|letter| alphabet.get(&letter).copied())
        .collect::<Option<Vec<u8>>>()
        // A special token may be spelled otherwise.
        .unwrap_or_else(|| line.as_bytes().to_vec())
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use proptest::prelude::*;

    fn vocabulary() -> Vocabulary {
        Vocabulary::load(&testing::model("whisper-tiny.en/vocabulary.txt")).unwrap()
    }

    #[test]
    fn texts_are_encoded_as_gpt_2_does() {
        let vocabulary = vocabulary();
        assert_eq!(vocabulary.encode("Hello world"), [15496, 995]);
        assert_eq!(vocabulary.encode(" the weather"), [262, 6193]);
        assert_eq!(vocabulary.number("<|endoftext|>"), Some(50256));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn what_is_encoded_decodes_to_itself(text in "\\PC{0,40}") {
            let vocabulary = vocabulary();
            prop_assert_eq!(vocabulary.text(&vocabulary.encode(&text)), text);
        }
    }
}
