//! Repetitions, said and invented. People say "no, no, no", and a decoder that has lost the thread writes what it has
//! just written, without end. What is said again has a place of its own in the sound; what is invented has none: the
//! path through the attention ([`words`](super::words)) gives it no time, or silence.

use crate::recogniser::voiced;
use crate::tokens::Vocabulary;

/// Positions that a letter takes at least: nobody says more than forty in a second.
const POSITIONS_PER_LETTER: f64 = 1.25;
/// Positions with a voice that are worth hearing: half a second.
const WORTH: usize = 25;

/// Where in an utterance there is a voice: how many positions have one, up to each of them.
pub struct Voice(Vec<usize>);

impl Voice {
    /// Of samples, of which each position has so many.
    pub fn of(samples: &[i16], position: usize) -> Self {
        let mut voice = vec![0];
        for loud in voiced(samples, position) {
            voice.push(voice.last().copied().unwrap_or_default() + usize::from(loud));
        }
        Self(voice)
    }

    fn between(&self, from: usize, to: usize) -> usize {
        let before = |position: usize| self.0.get(position).or(self.0.last()).copied();
        let (from, to) = (before(from), before(to));
        to.unwrap_or_default()
            .saturating_sub(from.unwrap_or_default())
    }

    /// Whether there is more to hear behind a position.
    pub fn goes_on(&self, position: usize) -> bool {
        self.between(position, usize::MAX) >= WORTH
    }
}

/// A token that says something: its number in the order, the position at which it begins, and its letters.
struct Piece {
    token: usize,
    start: usize,
    letters: Vec<u8>,
}

/// The token with which the end of a text begins that only repeats what is before it and has no time to be said. Whoever
/// goes on with something else has not lost the thread. `starts` are the positions at which the tokens begin and, behind
/// them, the one at which the last ends.
pub fn invented(
    vocabulary: &Vocabulary,
    tokens: &[u32],
    starts: &[usize],
    voice: &Voice,
) -> Option<usize> {
    let mut pieces: Vec<Piece> = tokens
        .iter()
        .zip(starts)
        .enumerate()
        .map(|(token, (&number, &start))| Piece {
            token,
            start,
            letters: letters(vocabulary.bytes(number)),
        })
        .filter(|piece| !piece.letters.is_empty())
        .collect();
    let mut end = starts.last().copied().unwrap_or_default();
    let mut cut = None;
    // What is left may end with another one: "turn it off now, turn it off now, turn it off, turn it off".
    while let Some(at) = timeless_copy(&pieces, end, voice) {
        let piece = pieces.get(at)?;
        (end, cut) = (piece.start, Some(piece.token));
        pieces.truncate(at);
    }
    cut
}

/// The first piece of the first copy that has no time, among those with which the pieces end.
fn timeless_copy(pieces: &[Piece], end: usize, voice: &Voice) -> Option<usize> {
    let start = |piece: usize| pieces.get(piece).map_or(end, |piece| piece.start);
    (1..=pieces.len() / 2).find_map(|length| {
        let pairs = pieces.iter().zip(pieces.get(length..)?);
        let same = pairs
            .rev()
            .take_while(|(one, other)| one.letters == other.letters);
        let first = pieces.len() - length - same.count();
        let mut copies = (first + length..=pieces.len() - length).step_by(length);
        copies.find(|&copy| {
            let said = pieces.get(copy..copy + length).unwrap_or_default();
            let letters: usize = said.iter().map(|piece| characters(&piece.letters)).sum();
            let time = voice.between(start(copy), start(copy + length));
            (time as f64) < letters as f64 * POSITIONS_PER_LETTER
        })
    })
}

/// Bytes of a token without spaces and marks, in small letters: "Turn" and " turn" are one word.
fn letters(bytes: &[u8]) -> Vec<u8> {
    let said = bytes
        .iter()
        .filter(|byte| byte.is_ascii_alphanumeric() || !byte.is_ascii());
    said.map(u8::to_ascii_lowercase).collect()
}

/// Characters that begin among bytes of UTF-8, which may be cut anywhere.
fn characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte & 0xC0 != 0x80).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// The text without what is invented, of tokens with their starts, in an utterance of so many positions that has a voice
    /// up to one of them.
    fn kept(tokens: &[u32], starts: &[usize], voice_ends: usize) -> String {
        let vocabulary = Vocabulary::load(&testing::model("whisper-tiny.en/vocabulary.txt"));
        let vocabulary = vocabulary.unwrap();
        let loud = vec![9_000; voice_ends * 320];
        let samples = [loud, vec![0; 25 * 320]].concat();
        let voice = Voice::of(&samples, 320);
        let from = invented(&vocabulary, tokens, starts, &voice).unwrap_or(tokens.len());
        vocabulary.text(&tokens[..from])
    }

    // Tokens and starts are what whisper-tiny.en gives.
    #[test]
    fn what_is_said_again_has_time_and_stays() {
        let codec = [
            1262, 262, 40481, 734, 11, 40481, 734, 11, 40481, 734, 11, 290, 2438, 428,
        ];
        let starts = [
            0, 32, 54, 64, 106, 123, 132, 158, 166, 167, 181, 195, 195, 208, 244,
        ];
        let text = kept(&codec, &starts, 420);
        assert_eq!(text.matches("codec two").count(), 3, "{text}");
        assert!(text.ends_with("and code this"), "{text}");
        let yes = [
            3363, 11, 3763, 11, 3763, 11, 3763, 11, 3763, 11, 314, 481, 1282,
        ];
        let starts = [0, 11, 18, 28, 28, 38, 38, 46, 46, 57, 71, 77, 81, 92];
        assert!(kept(&yes, &starts, 115).ends_with("I will come"));
        // Five in five tokens.
        let starts = [0, 11, 22, 33, 44, 55];
        assert_eq!(
            kept(&[642, 642, 642, 530, 734], &starts, 60),
            " 5 5 5 one two"
        );
    }

    #[test]
    fn what_is_invented_has_none_and_goes() {
        let starts = [&[0, 49][..], &[53; 4], &[79; 21]].concat();
        assert_eq!(kept(&[16000; 26], &starts, 55), " Message");
        // In the silence behind the word it has time, but nobody speaks there.
        let starts = [&[0, 48][..], &[80; 25]].concat();
        assert_eq!(kept(&[20558; 26], &starts, 50), " Transfer");
        let once = [
            6756, 340, 572, 11, 1210, 340, 572, 11, 1210, 340, 572, 783, 13,
        ];
        let again = [6756, 340, 572, 11, 1210, 340, 572, 783, 13];
        let cut_off = [6756, 340, 572, 11, 1210, 340, 572, 11, 1210, 340];
        let starts = [0, 17, 25, 42, 50, 59, 68, 90, 90, 101, 109, 116, 148];
        let starts = [&starts[..], &[161; 29]].concat();
        let text = kept(
            &[&once[..], &again, &again, &cut_off].concat(),
            &starts,
            140,
        );
        assert_eq!(text, " Turn it off, turn it off, turn it off now.");
    }

    #[test]
    fn there_is_more_to_hear_where_there_is_a_voice() {
        let samples = [vec![9_000; 50 * 320], vec![0; 50 * 320]].concat();
        let voice = Voice::of(&samples, 320);
        assert!(voice.goes_on(0) && voice.goes_on(25));
        assert!(!voice.goes_on(26) && !voice.goes_on(60) && !voice.goes_on(1_000));
    }
}
