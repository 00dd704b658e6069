//! What a transcript keeps to itself: payment card numbers, long numbers, and patterns of a tenant's, however they are
//! written or spoken. Numbers are found by their digits, whatever stands between these, so that `4111-1111 …` and "four one
//! one one …" are one; a card number is one by its length and its check digit (ISO/IEC 7812-1).

use std::ops::Range;

use vivavoce_seams::SttResult;

/// What stands for what is left out.
pub const LEFT_OUT: &str = "[redacted]";
/// Digits of a card number.
const CARD_DIGITS: std::ops::RangeInclusive<usize> = 13..=19;
/// From so many digits on a number is a long one.
const LONG_NUMBER: usize = 6;
/// The longest pattern, and how many a tenant may have.
pub const MOST_SIGNS: usize = 64;
pub const MOST_PATTERNS: usize = 32;

/// What people say between digits.
const FILLERS: [&str; 12] = [
    "and", "dash", "hyphen", "minus", "space", "uh", "um", "then", "und", "y", "et", "strich",
];
/// Digits as they are spoken. Only a whole number of them is left out, so that words of two languages do no harm.
const UNITS: [&[&str]; 10] = [
    &["zero", "null", "zéro", "cero"],
    &["one", "eins", "ein", "un", "une", "uno", "una"],
    &["two", "zwei", "zwo", "deux", "dos"],
    &["three", "drei", "trois", "tres"],
    &["four", "vier", "quatre", "cuatro"],
    &["five", "fünf", "cinq", "cinco"],
    &["six", "sechs", "seis"],
    &["seven", "sieben", "sept", "siete"],
    &["eight", "acht", "huit", "ocho"],
    &["nine", "neun", "neuf", "nueve"],
];
const TEENS: [&str; 10] = [
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 8] = [
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
];

/// What is left out of a transcript.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Redaction {
    /// Card numbers.
    pub cards: bool,
    /// Numbers of six digits and more.
    pub numbers: bool,
    /// More patterns.
    pub patterns: Vec<Pattern>,
}

/// A pattern: `#` is a digit, `@` a letter, any other letter or digit itself. What else stands between does not matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Vec<char>);

impl Pattern {
    /// Reads one; `None` if it has no sign, or too many.
    pub fn parse(text: &str) -> Option<Self> {
        let signs: Vec<char> = text
            .to_lowercase()
            .chars()
            .filter(|sign| sign.is_alphanumeric() || matches!(sign, '#' | '@'))
            .collect();
        (1..=MOST_SIGNS)
            .contains(&signs.len())
            .then_some(Self(signs))
    }

    fn fits(&self, signs: &[Sign]) -> bool {
        self.0.iter().zip(signs).all(|(wanted, sign)| match wanted {
            '#' => sign.sign.is_ascii_digit(),
            '@' => sign.sign.is_alphabetic(),
            wanted => *wanted == sign.sign,
        })
    }
}

/// A digit or letter, and the part of the text that says it.
#[derive(Debug, Clone)]
struct Sign {
    sign: char,
    part: Range<usize>,
}

impl Redaction {
    /// Whether nothing is left out.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The text without what is left out of it.
    pub fn text(&self, text: &str) -> String {
        let mut kept = String::with_capacity(text.len());
        let mut at = 0;
        for part in self.parts(text) {
            kept += text.get(at..part.start).unwrap_or_default();
            kept += LEFT_OUT;
            at = part.end;
        }
        kept + text.get(at..).unwrap_or_default()
    }

    /// A result of a recogniser, likewise.
    pub fn result(&self, result: &SttResult) -> SttResult {
        let mut result = result.clone();
        result.transcript = self.text(&result.transcript);
        result.turn_transcript = result.turn_transcript.map(|text| self.text(&text));
        let words: Vec<&str> = result.words.iter().map(|word| &*word.word).collect();
        for word in self.of_pieces(&words).into_iter().flatten() {
            if let Some(word) = result.words.get_mut(word) {
                LEFT_OUT.clone_into(&mut word.word);
            }
        }
        result
    }

    /// How much is left out of a text, in pieces that stand apart.
    pub fn count(&self, text: &str) -> usize {
        self.parts(text).len()
    }

    /// The pieces of a text that are left out, looked at together; those that belong together as one.
    pub fn of_pieces(&self, pieces: &[&str]) -> Vec<Range<usize>> {
        let mut joined = String::new();
        let mut places = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let start = joined.len();
            joined += piece;
            places.push(start..joined.len());
            joined.push(' ');
        }
        let of_part = |part: Range<usize>| {
            let first = places.partition_point(|place| place.end <= part.start);
            let behind = places.partition_point(|place| place.start < part.end);
            first..behind
        };
        self.parts(&joined).into_iter().map(of_part).collect()
    }

    /// The parts of a text that are left out, in order and apart from each other.
    fn parts(&self, text: &str) -> Vec<Range<usize>> {
        if self.is_empty() {
            return Vec::new();
        }
        let signs = signs(text);
        let mut parts = Vec::new();
        let mut leave_out = |signs: &[Sign]| {
            if let (Some(first), Some(last)) = (signs.first(), signs.last()) {
                parts.push(first.part.start..last.part.end);
            }
        };
        for run in
            signs.chunk_by(|one, other| one.sign.is_ascii_digit() && other.sign.is_ascii_digit())
        {
            let is_number = run.first().is_some_and(|sign| sign.sign.is_ascii_digit());
            if is_number && self.numbers && run.len() >= LONG_NUMBER {
                leave_out(run);
            } else if is_number && self.cards {
                cards(run).for_each(&mut leave_out);
            }
        }
        for pattern in &self.patterns {
            let fitting = signs
                .windows(pattern.0.len())
                .filter(|signs| pattern.fits(signs));
            fitting.for_each(&mut leave_out);
        }
        parts.sort_by_key(|part| (part.start, part.end));
        let mut merged: Vec<Range<usize>> = Vec::new();
        for part in parts {
            match merged.last_mut() {
                Some(last) if part.start <= last.end => last.end = last.end.max(part.end),
                _ => merged.push(part),
            }
        }
        merged
    }
}

/// All that may be card numbers among digits in a row, which may begin and end before and behind one.
fn cards(run: &[Sign]) -> impl Iterator<Item = &[Sign]> {
    let windows = CARD_DIGITS.flat_map(|length| run.windows(length));
    windows.filter(|digits| is_card(digits))
}

fn is_card(digits: &[Sign]) -> bool {
    let values = digits.iter().filter_map(|sign| sign.sign.to_digit(10));
    let values: Vec<u32> = values.collect();
    // Payment cards begin with 2 to 6.
    if !values.first().is_some_and(|first| (2..=6).contains(first)) {
        return false;
    }
    let sum: u32 = values
        .iter()
        .rev()
        .enumerate()
        .map(|(place, value)| match (place % 2, value * 2) {
            (0, _) => *value,
            (_, double) if double > 9 => double - 9,
            (_, double) => double,
        })
        .sum();
    sum.is_multiple_of(10)
}

/// The digits and letters of a text.
fn signs(text: &str) -> Vec<Sign> {
    let mut signs: Vec<Sign> = Vec::new();
    // How often the next digit is meant, and from where on that was said.
    let mut times: Option<(usize, usize)> = None;
    // A ten that a unit may follow.
    let mut ten = false;
    for (part, word) in words(text) {
        let word = word.to_lowercase();
        if FILLERS.contains(&&*word) {
            continue;
        }
        if let Some(count) = match &*word {
            "double" => Some(2),
            "triple" | "treble" => Some(3),
            _ => None,
        } {
            times = Some((count, part.start));
            continue;
        }
        let repeated = times.take();
        let (count, start) = repeated.unwrap_or((1, part.start));
        let part = start..part.end;
        let mut push = |sign: char| {
            signs.push(Sign {
                sign,
                part: part.clone(),
            });
        };
        let after_ten = std::mem::take(&mut ten);
        if let Some(unit) = unit(&word) {
            if after_ten && unit != '0' {
                // The nought of the ten before is this one.
                if let Some(last) = signs.last_mut() {
                    *last = Sign { sign: unit, part };
                }
                continue;
            }
            (0..count).for_each(|_| push(unit));
        } else if let Some(place) = TEENS.iter().position(|teen| *teen == word) {
            push('1');
            push(digit(place));
        } else if let Some(place) = TENS.iter().position(|ten| *ten == word) {
            push(digit(place + 2));
            push('0');
            ten = true;
        } else if matches!(&*word, "o" | "oh")
            && signs.last().is_some_and(|last| last.sign.is_ascii_digit())
        {
            (0..count).for_each(|_| {
                signs.push(Sign {
                    sign: '0',
                    part: part.clone(),
                });
            });
        } else {
            let mut at = part.start;
            let spoken = text.get(part.clone()).unwrap_or_default();
            for sign in spoken.chars() {
                let end = at + sign.len_utf8();
                if let Some(sign) = sign
                    .to_lowercase()
                    .next()
                    .filter(|sign| sign.is_alphanumeric())
                {
                    signs.push(Sign {
                        sign,
                        part: at..end,
                    });
                }
                at = end;
            }
        }
    }
    signs
}

/// Words, and runs of digits, of a text.
fn words(text: &str) -> Vec<(Range<usize>, &str)> {
    let mut words = Vec::new();
    let mut start = None;
    let ends = text.char_indices().chain([(text.len(), ' ')]);
    for (at, sign) in ends {
        match (sign.is_alphanumeric(), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                words.push((from..at, text.get(from..at).unwrap_or_default()));
                start = None;
            }
            _ => {}
        }
    }
    words
}

fn digit(value: usize) -> char {
    u32::try_from(value)
        .ok()
        .and_then(|value| char::from_digit(value, 10))
        .unwrap_or('0')
}

fn unit(word: &str) -> Option<char> {
    let place = UNITS.iter().position(|names| names.contains(&word));
    place.map(digit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_seams::Word;

    fn cards() -> Redaction {
        Redaction {
            cards: true,
            ..Redaction::default()
        }
    }

    #[test]
    fn a_card_number_is_left_out_however_it_is_said() {
        let [before, after] = ["My card is ", " and it is valid."];
        for number in [
            "4111111111111111",
            "4111 1111 1111 1111",
            "4111-1111-1111-1111",
            "378282246310005",
            "four one one one one one one one one one one one one one one one",
            "Four one one one, double one double one, triple one one, one one one one",
            "four oh one two eight eight eight eight eight eight eight eight one eight eight one",
            "forty-one eleven 1111 eleven eleven 1111",
            "vier eins eins eins eins eins eins eins eins eins eins eins eins eins eins eins",
        ] {
            let said = format!("{before}{number}{after}");
            let kept = cards().text(&said);
            assert_eq!(kept, format!("{before}{LEFT_OUT}{after}"), "{said}");
        }
    }

    #[test]
    fn other_numbers_stay() {
        for said in [
            // The check digit is wrong.
            "4111 1111 1111 1112",
            "Call me at +1 415 555 0123, extension 12.",
            "One of two, three or four people, in nineteen ninety nine.",
            "Order 123456789012.",
            "",
            "Zwölf Äpfel.",
        ] {
            assert_eq!(cards().text(said), said);
        }
    }

    #[test]
    fn long_numbers_are_left_out_where_that_is_set() {
        let numbers = Redaction {
            numbers: true,
            ..Redaction::default()
        };
        assert_eq!(
            numbers.text("Account 12 34 56, room 12345."),
            format!("Account {LEFT_OUT}, room 12345.")
        );
        assert_eq!(
            numbers.text("it is nine eight seven six five four thank you"),
            format!("it is {LEFT_OUT} thank you")
        );
    }

    #[test]
    fn a_pattern_is_found_whatever_stands_between() {
        let patterns = Redaction {
            patterns: vec![Pattern::parse("KD-####").unwrap()],
            ..Redaction::default()
        };
        for said in ["kd 1234", "K D one two three four", "KD-12 34"] {
            assert_eq!(patterns.text(said), LEFT_OUT, "{said}");
        }
        assert_eq!(patterns.text("kd 123"), "kd 123");
        assert!(Pattern::parse(" - ").is_none());
        assert!(Pattern::parse(&"#".repeat(65)).is_none());
    }

    #[test]
    fn the_words_of_a_result_are_looked_at_together() {
        let words = "card 4111 1111 1111 1111 please".split(' ');
        let word = |word: &str| Word {
            word: word.to_owned(),
            start: 0.0,
            end: 0.0,
            confidence: None,
            speaker: None,
        };
        let result = SttResult {
            transcript: "card 4111 1111 1111 1111 please".to_owned(),
            words: words.map(word).collect(),
            is_final: true,
            is_speech_final: true,
            confidence: None,
            turn_transcript: Some("card 4111 1111 1111 1111 please".to_owned()),
            backchannel: false,
            language: None,
            identity: None,
        };
        let kept = cards().result(&result);
        assert_eq!(kept.transcript, format!("card {LEFT_OUT} please"));
        assert_eq!(kept.turn_transcript.as_ref(), Some(&kept.transcript));
        let words: Vec<&str> = kept.words.iter().map(|word| word.word.as_str()).collect();
        let out = LEFT_OUT;
        assert_eq!(words, ["card", out, out, out, out, "please"]);
    }

    #[test]
    fn a_card_number_is_left_out_of_a_longer_run_of_digits() {
        let card = "4111111111111111";
        for before in 0..100 {
            for after in ["", "7", "22"] {
                let kept = cards().text(&format!("{before}{card}{after}"));
                let digits = kept.chars().filter(char::is_ascii_digit).count();
                assert!(kept.contains(LEFT_OUT) && digits <= 4, "{kept}");
            }
        }
    }

    #[test]
    fn pieces_that_belong_together_are_one() {
        let redaction = Redaction {
            patterns: vec![Pattern::parse("##-##").unwrap()],
            ..Redaction::default()
        };
        let found = |pieces: &[&str]| redaction.of_pieces(pieces);
        let pieces = ["code", "12", "um", "34.", "thanks", "1234", "", "and 56 78"];
        assert_eq!(found(&pieces), [1..4, 5..8]);
        assert_eq!(found(&["1234", "x", "5678"]), [0..1, 2..3]);
        assert!(found(&["12", "3"]).is_empty());
        assert!(found(&[]).is_empty());
    }
}
