//! Splits text that arrives incrementally into pieces that can be synthesised one by one: sentences, and parts of
//! very long sentences. The concatenated pieces are the original text.

use futures_util::future::ready;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use unicode_segmentation::{GraphemeCursor, UnicodeSegmentation};

/// The maximum length of a piece, in characters: about 20 seconds of speech.
const MAX_CHARS: usize = 300;

/// Abbreviations whose full stop does not end a sentence, in lower case and without the full stop. Single letters
/// ("J.", "U.S.", "z. B.") and ordinals ("am 5. Mai") need no entry.
const ABBREVIATIONS: &[&str] = &[
    "approx", "apt", "art", "av", "bd", "bzw", "ca", "capt", "cf", "cie", "col", "corp", "dept",
    "dipl", "dr", "dra", "e.g", "est", "etc", "evtl", "fig", "fr", "gen", "ggf", "hr", "i.e",
    "inc", "ing", "jr", "lt", "ltd", "m", "max", "min", "mlle", "mme", "mr", "mrs", "ms", "mt",
    "mwst", "nr", "no", "p.ex", "prof", "rev", "sgt", "sr", "sra", "st", "str", "tel", "usw",
    "vgl", "vol", "vs", "z.b",
];

/// The pieces of a text stream that contain a word, each on one line, as soon as they are complete.
pub fn spoken_lines(
    text: impl Stream<Item = String> + Send + 'static,
) -> BoxStream<'static, String> {
    let mut sentences = Sentences::default();
    text.map(Some)
        .chain(stream::iter([None]))
        .flat_map(move |part| {
            stream::iter(match part {
                Some(part) => sentences.push(&part),
                None => sentences.finish(),
            })
        })
        .filter_map(|piece| ready(is_speakable(&piece).then(|| in_one_line(&piece))))
        .boxed()
}

/// A text buffer from which complete pieces are taken.
#[derive(Debug, Default)]
struct Sentences {
    pending: String,
}

impl Sentences {
    /// Appends text and returns the pieces that are now complete.
    fn push(&mut self, text: &str) -> Vec<String> {
        self.pending.push_str(text);
        self.take(false)
    }

    /// Ends the text and returns what is left.
    fn finish(&mut self) -> Vec<String> {
        self.take(true)
    }

    fn take(&mut self, finished: bool) -> Vec<String> {
        let mut pieces = Vec::new();
        let mut rest = self.pending.as_str();
        while let Some(end) = first_piece(rest, finished) {
            let (piece, after) = rest.split_at(end);
            pieces.push(piece.to_owned());
            rest = after;
        }
        self.pending = rest.to_owned();
        pieces
    }
}

/// The length in bytes of the complete pieces at the start of `text`: text appended later cannot change them.
pub fn complete_len(text: &str) -> usize {
    let mut len = 0;
    while let Some(piece) = first_piece(&text[len..], false) {
        len += piece;
    }
    len
}

/// Splits a finished text into portions of whole sentences, each at most `max_bytes` long unless a single sentence
/// is longer.
pub fn portions(text: &str, max_bytes: usize) -> Vec<&str> {
    let mut portions = Vec::new();
    let (mut start, mut end) = (0, 0);
    while let Some(piece) = first_piece(&text[end..], true).filter(|piece| *piece > 0) {
        if end > start && end + piece - start > max_bytes {
            portions.push(&text[start..end]);
            start = end;
        }
        end += piece;
    }
    if start < text.len() {
        portions.push(&text[start..]);
    }
    portions
}

/// Whether a synthesiser would find a word in the text. Punctuation, spaces and emoji alone are silent.
pub fn is_speakable(text: &str) -> bool {
    text.chars().any(char::is_alphanumeric)
}

/// The text on one line: control characters, including line breaks, become spaces.
fn in_one_line(text: &str) -> String {
    text.trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// The length in bytes of the first complete piece.
fn first_piece(text: &str, finished: bool) -> Option<usize> {
    let limit = text.char_indices().nth(MAX_CHARS).map(|(at, _)| at);
    let mut end = 0;
    for sentence in text.split_sentence_bounds() {
        end += sentence.len();
        if let Some(limit) = limit.filter(|&limit| end > limit) {
            return Some(cut_before(text, limit));
        }
        let last = end == text.len();
        let complete = if last {
            finished || is_closed(sentence)
        } else {
            !may_go_on(sentence)
        };
        if complete {
            return Some(end);
        }
    }
    None
}

/// Whether the sentence is certainly complete although no text follows yet.
fn is_closed(sentence: &str) -> bool {
    let body = sentence.trim_end();
    if sentence.ends_with(['\n', '\u{2029}']) {
        return true;
    }
    let spaced = body.len() < sentence.len();
    let mark = body.trim_end_matches(['"', '\'', ')', ']', '»', '”', '’', '」', '』']);
    match mark.chars().next_back() {
        Some('。' | '！' | '？' | '｡') => true,
        Some('!' | '?' | '…' | '।' | '؟') => spaced,
        Some('.') => spaced && !may_go_on(sentence),
        _ => false,
    }
}

/// Whether the full stop at the end may belong to an abbreviation or an ordinal.
fn may_go_on(sentence: &str) -> bool {
    let Some(body) = sentence.trim_end().strip_suffix('.') else {
        return false;
    };
    if sentence.ends_with(['\n', '\u{2029}']) {
        return false;
    }
    let start = |c: char| c.is_whitespace() || matches!(c, '(' | '"' | '\'' | '[' | '„' | '“');
    let word = body.rsplit(start).next().unwrap_or_default();
    let last_part = word.rsplit('.').next().unwrap_or_default();
    let single_letter =
        last_part.chars().count() == 1 && last_part.chars().all(char::is_alphabetic);
    let ordinal = (1..=2).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_digit());
    single_letter || ordinal || ABBREVIATIONS.contains(&word.to_lowercase().as_str())
}

/// Where to split a text longer than `limit` bytes: after the last clause, else after the last word, else between
/// two grapheme clusters.
fn cut_before(text: &str, limit: usize) -> usize {
    let head = &text[..limit];
    let last = |ends_here: fn(char, &str) -> bool| {
        head.char_indices()
            .rev()
            .map(|(at, c)| (c, at + c.len_utf8()))
            .find(|&(c, end)| ends_here(c, &head[end..]))
            .map(|(_, end)| end)
    };
    let grapheme = || {
        let mut cursor = GraphemeCursor::new(limit, text.len(), true);
        match cursor.is_boundary(text, 0) {
            Ok(true) => Some(limit),
            _ => cursor.prev_boundary(text, 0).ok().flatten(),
        }
    };
    last(ends_clause)
        .or_else(|| last(|c, _| c.is_whitespace()))
        .or_else(grapheme)
        .filter(|&cut| cut > 0)
        .unwrap_or(limit)
}

/// A decimal comma does not end a clause: a space must follow, except in scripts written without spaces.
fn ends_clause(c: char, after: &str) -> bool {
    match c {
        '，' | '、' | '；' | '：' => true,
        ',' | ';' | ':' | '–' | '—' | ')' => after.starts_with(char::is_whitespace),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_are_whole_sentences_and_together_the_text() {
        let text = "One is here. Two is there! Three? Four.";
        assert_eq!(
            portions(text, 28),
            ["One is here. Two is there! ", "Three? Four."]
        );
        assert_eq!(portions(text, 1000), [text]);
        assert_eq!(portions(text, 1).len(), 4);
        let long = "word ".repeat(1000);
        assert_eq!(portions(&long, 100).concat(), long);
        assert!(portions("", 10).is_empty());
    }
    use proptest::prelude::*;

    fn all(text: &str) -> Vec<String> {
        let mut sentences = Sentences::default();
        let mut pieces = sentences.push(text);
        pieces.extend(sentences.finish());
        pieces.iter().map(|piece| piece.trim().to_owned()).collect()
    }

    #[test]
    fn abbreviations_decimals_and_ordinals_do_not_end_a_sentence() {
        let sentences = [
            "Mr. Smith paid 3.5 million to Dr. J. R. Jones.",
            "He lives in the U.S. Army base!",
            "Wir treffen uns am 5. Mai, z. B. bei Prof. Weiß.",
            "Really?",
            "\"Yes,\" she said.",
        ];
        assert_eq!(all(&sentences.join(" ")), sentences);
    }

    #[test]
    fn sentences_without_spaces_between_them_are_found() {
        assert_eq!(
            all("今天天气很好。我们去散步吧！好吗？"),
            ["今天天气很好。", "我们去散步吧！", "好吗？"]
        );
    }

    #[test]
    fn a_sentence_is_given_out_as_soon_as_it_is_complete() {
        let mut sentences = Sentences::default();
        assert!(sentences.push("Hello wor").is_empty());
        assert!(sentences.push("ld.").is_empty(), "may become a decimal");
        assert_eq!(sentences.push(" "), ["Hello world. "]);
        assert!(sentences.push("Dr. ").is_empty());
        assert_eq!(sentences.push("No is in! How"), ["Dr. No is in! "]);
        assert_eq!(complete_len("Dr. No is in! How"), "Dr. No is in! ".len());
        assert_eq!(sentences.finish(), ["How"]);
        assert!(sentences.finish().is_empty());
    }

    #[test]
    fn a_very_long_sentence_is_cut_at_a_clause_or_between_words() {
        let clauses = "one two three four five six seven 1,5, ".repeat(30);
        let pieces = all(&clauses);
        assert!(pieces.len() > 3);
        assert!(
            pieces.iter().all(|piece| piece.ends_with("1,5,")),
            "{pieces:?}"
        );

        let words = all(&"word ".repeat(200));
        assert!(
            words
                .iter()
                .all(|piece| piece.split(' ').all(|word| word == "word"))
        );
    }

    #[test]
    fn punctuation_and_pictures_alone_are_not_speakable() {
        for silent in ["", " ", "...", "?!", "😀 👍🏽", "\0\u{7}", "—"] {
            assert!(!is_speakable(silent), "{silent:?}");
        }
        assert!(is_speakable("…7") && is_speakable("你") && is_speakable("ß"));
    }

    #[test]
    fn a_line_has_no_control_characters() {
        assert_eq!(in_one_line("\ta\0b\r\nc\u{85}"), "a b  c");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn nothing_is_lost_and_no_piece_is_too_long(
            chunks in prop::collection::vec("(\\PC|[a-z. ,\n]){0,200}", 0..8)
        ) {
            let mut sentences = Sentences::default();
            let mut pieces: Vec<String> = chunks.iter().flat_map(|chunk| sentences.push(chunk)).collect();
            prop_assert!(sentences.pending.chars().count() <= MAX_CHARS);
            pieces.extend(sentences.finish());
            prop_assert_eq!(pieces.concat(), chunks.concat());
            for piece in &pieces {
                prop_assert!((1..=MAX_CHARS).contains(&piece.chars().count()));
            }
        }
    }
}
