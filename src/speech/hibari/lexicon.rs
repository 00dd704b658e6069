//! How English words are said: two dictionaries (one checked by hand, one larger), the endings -s, -ed and -ing, letters
//! one by one, numbers, and the few words that depend on their neighbours ("the", "to", "a"). The phonemes are those that
//! the voice was trained with, [misaki](https://github.com/hexgrad/misaki)'s; so are the rules (Apache-2.0), written
//! anew.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use icu_normalizer::ComposingNormalizerBorrowed;
use serde::Deserialize;

use super::normalise::capitalised;
use super::numbers;
use super::table::{Object, Table, Text, parse, read};
use crate::worker::SpeechError;

/// The mark of the syllable that is stressed most.
pub const PRIMARY: char = 'ˈ';
/// The mark of one that is stressed less.
pub const SECONDARY: char = 'ˌ';
const VOWELS: &str = "AIOQWYaiuæɑɒɔəɛɜɪʊʌᵻ";
const CONSONANTS: &str = "bdfhjklmnpstvwzðŋɡɹɾʃʒʤʧθ";
const LONG: &str = "AIOQWYʤʧ";
/// Marks at which a sentence pauses.
pub const PAUSES: &str = ";:,.!?—…";
/// In American English a t between one of these and a vowel is a tap.
const BEFORE_TAP: &str = "AIOWYiuæɑəɛɪɹʊʌ";
/// Capitals that are spelt if they are no known word; of more it is a word that somebody shouts.
const LONGEST_INITIALS: usize = 6;
const ORDINALS: [&str; 4] = ["st", "nd", "rd", "th"];
/// Zeros of the decimal digits of scripts in use; the nine others follow each.
const ZEROS: [char; 16] = [
    '\u{660}', '\u{6f0}', '\u{966}', '\u{9e6}', '\u{a66}', '\u{ae6}', '\u{b66}', '\u{be6}',
    '\u{c66}', '\u{ce6}', '\u{d66}', '\u{e50}', '\u{ed0}', '\u{f20}', '\u{1040}', '\u{17e0}',
];

/// Which English.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Accent {
    /// As in the United States.
    American,
    /// As in the south of England.
    British,
}

impl Accent {
    /// The files that it is read with: the checked dictionary and the larger one, the network for words that are in
    /// neither, and its alphabet.
    pub fn files(self) -> [&'static str; 4] {
        match self {
            Self::American => [
                "lexicon_us_gold.json.gz",
                "lexicon_us_silver.json.gz",
                "oov.onnx",
                "oov.json",
            ],
            Self::British => [
                "lexicon_gb_gold.json.gz",
                "lexicon_gb_silver.json.gz",
                "oov_gb.onnx",
                "oov_gb.json",
            ],
        }
    }
}

/// What stands behind a word: sentences are read from their end.
#[derive(Debug, Clone, Copy, Default)]
pub struct Following {
    /// Whether it begins with a vowel; `None` at a pause.
    pub vowel: Option<bool>,
    /// Whether it is "to".
    pub to: bool,
}

impl Following {
    /// What the word before sees of a word with these phonemes.
    pub fn before(self, phonemes: &str, is_to: bool) -> Self {
        let vowel = phonemes.chars().find_map(|c| {
            if PAUSES.contains(c) {
                Some(None)
            } else if VOWELS.contains(c) {
                Some(Some(true))
            } else if CONSONANTS.contains(c) {
                Some(Some(false))
            } else {
                None
            }
        });
        Self {
            vowel: vowel.unwrap_or(self.vowel),
            to: is_to,
        }
    }
}

/// A sign of money that the dictionary reads, and the names of what it counts.
pub fn currency(sign: &str) -> Option<[&'static str; 2]> {
    match sign {
        "$" => Some(["dollar", "cent"]),
        "£" => Some(["pound", "pence"]),
        "€" => Some(["euro", "cent"]),
        _ => None,
    }
}

/// How heavy a word is.
pub fn weight(phonemes: &str) -> usize {
    phonemes
        .chars()
        .map(|c| if LONG.contains(c) { 2 } else { 1 })
        .sum()
}

fn is_stress(c: char) -> bool {
    c == PRIMARY || c == SECONDARY
}

/// The phonemes with more or less stress: -2 none, -0.5 and 0 less, 0.5 and 1 at least some, 2 most.
pub fn stressed(phonemes: &str, stress: Option<f32>) -> String {
    let Some(stress) = stress else {
        return phonemes.to_owned();
    };
    let (primary, secondary) = (phonemes.contains(PRIMARY), phonemes.contains(SECONDARY));
    let weakened = || {
        let kept = phonemes.chars().filter(|&c| c != SECONDARY);
        kept.map(|c| if c == PRIMARY { SECONDARY } else { c })
            .collect()
    };
    let marked = |mark: char| match phonemes.find(|c| VOWELS.contains(c)) {
        Some(at) => {
            let (head, tail) = phonemes.split_at(at);
            format!("{head}{mark}{tail}")
        }
        None => phonemes.to_owned(),
    };
    if stress < -1.0 {
        phonemes.chars().filter(|&c| !is_stress(c)).collect()
    } else if stress <= -1.0 || (stress <= 0.0 && primary) {
        weakened()
    } else if (0.0..=1.0).contains(&stress) && !primary && !secondary {
        marked(SECONDARY)
    } else if stress >= 1.0 && !primary && secondary {
        phonemes.replace(SECONDARY, "ˈ")
    } else if stress > 1.0 && !primary && !secondary {
        marked(PRIMARY)
    } else {
        phonemes.to_owned()
    }
}

/// A dictionary. A word may have several readings: by its part of speech, or at a pause ("None").
struct Dictionary {
    /// For each word the range of its phonemes.
    words: Table<(u32, u32)>,
    /// Phonemes; those of a word with several readings as `\u{1}` and a tag and `=` before each.
    phonemes: String,
}

/// The readings of a word in the file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Readings<'f> {
    One(#[serde(borrow)] Text<'f>),
    Several(#[serde(borrow)] BTreeMap<Text<'f>, Option<Text<'f>>>),
}

/// The readings of a word.
#[derive(Clone, Copy)]
struct Entry<'l>(&'l str);

impl<'l> Entry<'l> {
    #[expect(
        clippy::option_option,
        reason = "a reading may say that the word is spelt"
    )]
    fn reading(self, tag: &str) -> Option<Option<&'l str>> {
        self.0.split('\u{1}').skip(1).find_map(|reading| {
            let (of, phonemes) = reading.split_once('=')?;
            (of == tag).then_some(Some(phonemes).filter(|phonemes| !phonemes.is_empty()))
        })
    }

    /// For a word with this tag, or at a pause. `None` where it shall be spelt.
    fn of(self, tag: Option<&str>, pause: bool) -> Option<&'l str> {
        if !self.0.starts_with('\u{1}') {
            return Some(self.0);
        }
        if pause && let Some(reading) = self.reading("None") {
            return reading;
        }
        let tag = tag.unwrap_or_default();
        self.reading(tag)
            .or_else(|| self.reading(class_of(tag)))
            .or_else(|| self.reading("DEFAULT"))
            .flatten()
    }
}

fn class_of(tag: &str) -> &str {
    for (prefix, class) in [
        ("VB", "VERB"),
        ("NN", "NOUN"),
        ("ADV", "ADV"),
        ("RB", "ADV"),
        ("ADJ", "ADJ"),
        ("JJ", "ADJ"),
    ] {
        if tag.starts_with(prefix) {
            return class;
        }
    }
    tag
}

impl Dictionary {
    fn load(folder: &Path, file: &str) -> Result<Self, SpeechError> {
        let bytes = read(folder, file)?;
        let Object(entries) = parse::<Object<Text<'_>, Readings<'_>>>(folder, file, &bytes)?;
        let mut phonemes = String::new();
        let entries: Vec<(Cow<'_, str>, (u32, u32))> = entries
            .into_iter()
            .map(|(word, readings)| {
                let start = phonemes.len() as u32;
                match readings {
                    Readings::One(said) => phonemes.push_str(&said.0),
                    Readings::Several(readings) => {
                        for (tag, said) in readings {
                            let said = said.map(|said| said.0).unwrap_or_default();
                            phonemes.push_str(&format!("\u{1}{}={said}", tag.0));
                        }
                    }
                }
                (word.0, (start, phonemes.len() as u32))
            })
            .collect();
        phonemes.shrink_to_fit();
        Ok(Self {
            words: Table::new(entries),
            phonemes,
        })
    }

    fn exactly(&self, word: &str) -> Option<Entry<'_>> {
        let (start, end) = self.words.get(word)?;
        Some(Entry(self.phonemes.get(*start as usize..*end as usize)?))
    }

    /// A word in small letters is found capitalised too, and the other way round.
    fn get(&self, word: &str) -> Option<Entry<'_>> {
        if let Some(entry) = self.exactly(word) {
            return Some(entry);
        }
        word.chars().nth(1)?;
        let lower = word.to_lowercase();
        let capitalised = capitalised(&lower);
        if word == lower {
            self.exactly(&capitalised).filter(|_| capitalised != lower)
        } else if word == capitalised {
            self.exactly(&lower)
        } else {
            None
        }
    }

    fn has(&self, word: &str) -> bool {
        self.get(word).is_some()
    }
}

fn without_diaeresis(c: char) -> char {
    match c {
        'ä' => 'a',
        'ë' => 'e',
        'ï' => 'i',
        'ö' => 'o',
        'ü' => 'u',
        'Ä' => 'A',
        'Ë' => 'E',
        'Ï' => 'I',
        'Ö' => 'O',
        'Ü' => 'U',
        c => c,
    }
}

fn is_upper(word: &str) -> bool {
    word == word.to_uppercase()
}

fn is_alphabetic(word: &str) -> bool {
    !word.is_empty() && word.chars().all(char::is_alphabetic)
}

fn is_digits(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit())
}

/// The dictionaries of one accent with their rules.
pub struct Lexicon {
    checked: Dictionary,
    larger: Dictionary,
    accent: Accent,
}

impl std::fmt::Debug for Lexicon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} English", self.accent)
    }
}

/// A word that is looked up.
#[derive(Clone, Copy)]
struct Query<'w> {
    tag: Option<&'w str>,
    stress: Option<f32>,
    /// `None` inside a number, where nothing depends on neighbours.
    following: Option<Following>,
}

const ALONE: Query<'static> = Query {
    tag: None,
    stress: None,
    following: None,
};

impl Lexicon {
    /// The dictionaries of a model's folder.
    pub fn load(folder: &Path, accent: Accent) -> Result<Self, SpeechError> {
        let [checked, larger, ..] = accent.files();
        Ok(Self {
            checked: Dictionary::load(folder, checked)?,
            larger: Dictionary::load(folder, larger)?,
            accent,
        })
    }

    /// The phonemes of a word or number of a sentence; `None` where it is not known.
    pub fn word(
        &self,
        text: &str,
        tag: &str,
        money: Option<&str>,
        at_start: bool,
        following: Following,
    ) -> Option<String> {
        let word = plain(text);
        let stress = if word == word.to_lowercase() {
            None
        } else if is_upper(&word) {
            Some(2.0)
        } else {
            Some(0.5)
        };
        let query = Query {
            tag: Some(tag),
            stress,
            following: Some(following),
        };
        if let Some(said) = self.known_word(&word, query) {
            return Some(self.with_currency(said, money));
        }
        if is_number(&word, at_start) {
            return self.number(&word, money, at_start);
        }
        // "Zürich" is in the dictionaries without its dots.
        let bare: String = word.chars().map(without_diaeresis).collect();
        (bare != word && (self.checked.has(&bare) || self.larger.has(&bare)))
            .then(|| self.look_up(&bare, query))
            .flatten()
    }

    /// The letters one by one, the last stressed most.
    fn spelt(&self, word: &str) -> Option<String> {
        let mut letters = String::new();
        for letter in word.chars().filter(|c| c.is_alphabetic()) {
            let upper: String = letter.to_uppercase().collect();
            letters += self.checked.get(&upper)?.of(None, false)?;
        }
        let letters = stressed(&letters, Some(0.0));
        Some(match letters.rfind(SECONDARY) {
            Some(at) => {
                let (head, tail) = letters.split_at(at);
                let tail = tail.strip_prefix(SECONDARY).unwrap_or(tail);
                format!("{head}{PRIMARY}{tail}")
            }
            None => letters,
        })
    }

    /// Words with rules of their own.
    fn special(&self, word: &str, query: Query<'_>) -> Option<String> {
        let tag = query.tag.unwrap_or_default();
        let vowel = query.following.unwrap_or_default().vowel;
        let noun = tag.starts_with("NN");
        let in_gold = |word: &str| Some(self.checked.get(word)?.of(None, false)?.to_owned());
        if tag == "ADD" && matches!(word, "." | "/") {
            let name = if word == "." { "dot" } else { "slash" };
            let query = Query {
                tag: None,
                stress: Some(-0.5),
                ..query
            };
            return self.look_up(name, query);
        }
        if let Some(name) = symbol(word) {
            let query = Query {
                tag: None,
                stress: None,
                ..query
            };
            return self.look_up(name, query);
        }
        let inner = word.trim_matches('.');
        if inner.contains('.')
            && is_alphabetic(&word.replace('.', ""))
            && word.split('.').all(|part| part.chars().count() < 3)
        {
            return self.spelt(word);
        }
        match word {
            "a" | "A" => Some(if tag == "DT" { "ɐ" } else { "ˈA" }.to_owned()),
            "am" | "Am" | "AM" | "AN" if noun => self.spelt(word),
            "am" | "Am" | "AM" => {
                let strong = vowel.is_none()
                    || word != "am"
                    || query.stress.is_some_and(|stress| stress > 0.0);
                if strong {
                    in_gold("am")
                } else {
                    Some("ɐm".to_owned())
                }
            }
            "an" | "An" | "AN" => Some("ɐn".to_owned()),
            "I" if tag == "PRP" => Some("ˌI".to_owned()),
            "by" | "By" | "BY" if class_of(tag) == "ADV" => Some("bˈI".to_owned()),
            "to" | "To" => self.to(vowel),
            "TO" if matches!(tag, "TO" | "IN") => self.to(vowel),
            "in" | "In" => Some(of_in(vowel, tag)),
            "IN" if tag != "NNP" => Some(of_in(vowel, tag)),
            "the" | "The" => Some(of_the(vowel)),
            "THE" if tag == "DT" => Some(of_the(vowel)),
            "used" | "Used" | "USED" => {
                let habit = matches!(tag, "VBD" | "JJ") && query.following.is_some_and(|f| f.to);
                let entry = self.checked.get("used")?;
                let tag = if habit { "VBD" } else { "DEFAULT" };
                Some(entry.reading(tag).flatten().unwrap_or_default().to_owned())
            }
            _ if tag == "IN" && matches!(word.to_lowercase().as_str(), "vs" | "vs.") => {
                let query = Query {
                    tag: None,
                    stress: None,
                    ..query
                };
                self.look_up("versus", query)
            }
            _ => None,
        }
    }

    fn to(&self, vowel: Option<bool>) -> Option<String> {
        Some(match vowel {
            None => self.checked.get("to")?.of(None, false)?.to_owned(),
            Some(false) => "tə".to_owned(),
            Some(true) => "tʊ".to_owned(),
        })
    }

    /// Whether a word can be looked up, or spelt.
    fn is_known(&self, word: &str) -> bool {
        if self.checked.has(word) || symbol(word).is_some() || self.larger.has(word) {
            return true;
        }
        if !is_alphabetic(word) || !word.is_ascii() {
            return false;
        }
        if word.len() == 1 {
            return true;
        }
        if is_upper(word) && self.checked.has(&word.to_lowercase()) {
            return true;
        }
        word.len() <= LONGEST_INITIALS && word.get(1..).is_some_and(is_upper)
    }

    fn look_up(&self, word: &str, query: Query<'_>) -> Option<String> {
        let shouted = is_upper(word) && !self.checked.has(word);
        let word = if shouted {
            Cow::Owned(word.to_lowercase())
        } else {
            Cow::Borrowed(word)
        };
        let name = shouted && query.tag == Some("NNP");
        let entry = self.checked.get(&word);
        let entry = entry.or_else(|| self.larger.get(&word).filter(|_| !name));
        let pause = query.following.is_some_and(|f| f.vowel.is_none());
        let said = entry.and_then(|entry| entry.of(query.tag, pause));
        match said.filter(|said| !name || said.contains(PRIMARY)) {
            Some(said) => Some(stressed(said, query.stress)),
            None => self
                .spelt(&word)
                .or_else(|| said.map(|said| stressed(said, query.stress))),
        }
    }

    fn known_word(&self, word: &str, query: Query<'_>) -> Option<String> {
        if let Some(said) = self.special(word, query) {
            return Some(said);
        }
        let lower = word.to_lowercase();
        let in_one_case = is_upper(word) || {
            let mut chars = word.chars();
            chars.next();
            !chars.as_str().chars().any(char::is_uppercase)
        };
        let long = word.chars().count();
        let lowered = long > 1
            && is_alphabetic(&word.replace('\'', ""))
            && word != lower
            && (query.tag != Some("NNP") || long > 7)
            && !self.checked.has(word)
            && !self.larger.has(word)
            && in_one_case
            && (self.checked.has(&lower)
                || self.larger.has(&lower)
                || self.with_s(&lower, query).is_some()
                || self.with_ed(&lower, query).is_some()
                || self.with_ing(&lower, query).is_some());
        let word = if lowered { lower.as_str() } else { word };
        if self.is_known(word) {
            return self.look_up(word, query);
        }
        if let Some(stem) = word.strip_suffix("s'") {
            let owner = format!("{stem}'s");
            if self.is_known(&owner) {
                return self.look_up(&owner, query);
            }
        }
        if let Some(stem) = word.strip_suffix('\'')
            && self.is_known(stem)
        {
            return self.look_up(stem, query);
        }
        let ing = Query {
            stress: query.stress.or(Some(0.5)),
            ..query
        };
        self.with_s(word, query)
            .or_else(|| self.with_ed(word, query))
            .or_else(|| self.with_ing(word, ing))
    }

    fn with_s(&self, word: &str, query: Query<'_>) -> Option<String> {
        let long = word.chars().count();
        let body = word.strip_suffix('s').filter(|_| long >= 3)?;
        let in_y = word.strip_suffix("ies").map(|stem| format!("{stem}y"));
        let in_es = word.strip_suffix("'s").or_else(|| {
            word.strip_suffix("es")
                .filter(|_| long > 4 && in_y.is_none())
        });
        let stem = if !body.ends_with('s') && self.is_known(body) {
            Cow::Borrowed(body)
        } else if let Some(stem) = in_es.filter(|stem| self.is_known(stem)) {
            Cow::Borrowed(stem)
        } else {
            Cow::Owned(in_y.filter(|stem| long > 4 && self.is_known(stem))?)
        };
        self.s(&self.look_up(&stem, query)?)
    }

    /// The phonemes with the ending -s.
    fn s(&self, stem: &str) -> Option<String> {
        let last = stem.chars().next_back()?;
        let ending = if "ptkfθ".contains(last) {
            "s"
        } else if "szʃʒʧʤ".contains(last) {
            match self.accent {
                Accent::American => "ᵻz",
                Accent::British => "ɪz",
            }
        } else {
            "z"
        };
        Some(format!("{stem}{ending}"))
    }

    fn with_ed(&self, word: &str, query: Query<'_>) -> Option<String> {
        let long = word.chars().count();
        let body = word.strip_suffix('d').filter(|_| long >= 4)?;
        let in_ed = word
            .strip_suffix("ed")
            .filter(|stem| long > 4 && !stem.ends_with('e'));
        let stem = if !body.ends_with('d') && self.is_known(body) {
            body
        } else {
            in_ed.filter(|stem| self.is_known(stem))?
        };
        self.ed(&self.look_up(stem, query)?)
    }

    /// The phonemes with the ending -ed.
    fn ed(&self, stem: &str) -> Option<String> {
        let mut backwards = stem.chars().rev();
        let last = backwards.next()?;
        let before = backwards.next();
        let british = self.accent == Accent::British;
        Some(if "pkfθʃsʧ".contains(last) {
            format!("{stem}t")
        } else if last == 'd' {
            format!("{stem}{}d", if british { "ɪ" } else { "ᵻ" })
        } else if last != 't' {
            format!("{stem}d")
        } else if british || before.is_none() {
            format!("{stem}ɪd")
        } else {
            match stem.strip_suffix('t').filter(|_| is_tapped(before)) {
                Some(stem) => format!("{stem}ɾᵻd"),
                None => format!("{stem}ᵻd"),
            }
        })
    }

    fn with_ing(&self, word: &str, query: Query<'_>) -> Option<String> {
        let long = word.chars().count();
        let body = word.strip_suffix("ing").filter(|_| long >= 5)?;
        let in_e = format!("{body}e");
        let mut backwards = body.chars().rev();
        let (last, before) = (backwards.next(), backwards.next());
        let doubled = last == before && last.is_some_and(|c| "bcdgklmnprstvxz".contains(c));
        let doubled = doubled || (last == Some('k') && before == Some('c'));
        let mut shorter = body.chars();
        shorter.next_back();
        let stem = if long > 5 && self.is_known(body) {
            body
        } else if self.is_known(&in_e) {
            &in_e
        } else if long > 5 && doubled && self.is_known(shorter.as_str()) {
            shorter.as_str()
        } else {
            return None;
        };
        self.ing(&self.look_up(stem, query)?)
    }

    /// The phonemes with the ending -ing.
    fn ing(&self, stem: &str) -> Option<String> {
        let mut backwards = stem.chars().rev();
        let last = backwards.next()?;
        match self.accent {
            Accent::British if matches!(last, 'ə' | 'ː') => None,
            Accent::American if last == 't' && is_tapped(backwards.next()) => {
                let stem = stem.strip_suffix('t').unwrap_or(stem);
                Some(format!("{stem}ɾɪŋ"))
            }
            _ => Some(format!("{stem}ɪŋ")),
        }
    }

    /// A number with what may be attached to it ("3rd", "1990s").
    pub fn number(&self, word: &str, money: Option<&str>, at_start: bool) -> Option<String> {
        let suffix_at = word
            .trim_end_matches(|c: char| c.is_ascii_lowercase() || c == '\'')
            .len();
        let (word, suffix) = word.split_at(suffix_at);
        let mut said = Saying {
            lexicon: self,
            words: Vec::new(),
        };
        let units = money.and_then(currency);
        let ordinal = ORDINALS.contains(&suffix);
        let (word, negative) = match word.strip_prefix('-') {
            Some(word) => (word, true),
            None => (word, false),
        };
        if negative {
            said.word("minus", ALONE);
        }
        let bare = word.replace(',', "");
        if is_digits(word) && ordinal {
            said.words(&numbers::ordinal_of(word));
        } else if !negative && is_digits(word) && word.len() == 4 && units.is_none() {
            said.words(&numbers::year(word));
        } else if !at_start && !word.contains('.') {
            said.code(&bare);
        } else if word.matches('.').count() > 1 || !at_start {
            for part in bare.split('.').filter(|part| !part.is_empty()) {
                let round = part.len() == 2 || part.bytes().skip(1).all(|b| b == b'0');
                if part.starts_with('0') || !round {
                    said.words(&numbers::digits(part));
                } else {
                    said.words(&numbers::cardinal_of(part));
                }
            }
        } else if let Some(units) = units.filter(|_| is_amount(word)) {
            said.money(&bare, units);
        } else if let Some(fraction) = bare.strip_prefix('.') {
            said.words(&format!("point {}", numbers::digits(fraction)));
        } else if bare.contains('.') {
            said.words(&numbers::decimal(&bare));
        } else if ordinal {
            said.words(&numbers::ordinal_of(&bare));
        } else {
            said.words(&numbers::cardinal_of(&bare));
        }
        let said = said.words.join(" ");
        if said.is_empty() {
            return None;
        }
        match suffix {
            "s" | "'s" => self.s(&said),
            "ed" | "'d" => self.ed(&said),
            "ing" => self.ing(&said),
            _ => Some(said),
        }
    }

    fn with_currency(&self, said: String, money: Option<&str>) -> String {
        let name = money.and_then(currency).and_then(|[unit, _]| {
            let many = format!("{unit}s");
            self.with_s(&many, ALONE)
        });
        match name {
            Some(name) => format!("{said} {name}"),
            None => said,
        }
    }
}

/// A number on its way to phonemes.
struct Saying<'l> {
    lexicon: &'l Lexicon,
    words: Vec<String>,
}

impl Saying<'_> {
    fn word(&mut self, word: &str, query: Query<'_>) {
        self.words.extend(self.lexicon.look_up(word, query));
    }

    /// Number words; "and" between them is not said.
    fn words(&mut self, words: &str) {
        for word in words.split(|c: char| !c.is_ascii_lowercase()) {
            let stress = (word == "point").then_some(-2.0);
            if !word.is_empty() && word != "and" {
                self.word(word, Query { stress, ..ALONE });
            }
        }
    }

    /// Digits inside a word, such as a product's name.
    fn code(&mut self, digits: &str) {
        let long = digits.len();
        if digits.starts_with('0') || long > 3 {
            return self.words(&numbers::digits(digits));
        }
        match (digits.get(..1), digits.get(1..)) {
            (Some(hundred), Some(rest)) if long == 3 && rest != "00" => {
                self.words(&numbers::cardinal_of(hundred));
                if let Some(last) = rest.strip_prefix('0') {
                    let weak = Query {
                        stress: Some(-2.0),
                        ..ALONE
                    };
                    self.word("O", weak);
                    self.words(&numbers::cardinal_of(last));
                } else {
                    self.words(&numbers::cardinal_of(rest));
                }
            }
            _ => self.words(&numbers::cardinal_of(digits)),
        }
    }

    /// "nine dollars and ninety-nine cents".
    fn money(&mut self, amount: &str, units: [&str; 2]) {
        let is_nothing = |part: &str| part.bytes().all(|b| b == b'0');
        let mut parts: Vec<(&str, &str)> = amount.split('.').zip(units).collect();
        if let [(whole, _), (cents, _)] = parts.as_slice() {
            if is_nothing(cents) {
                parts.truncate(1);
            } else if is_nothing(whole) {
                parts.remove(0);
            }
        }
        for (nth, (count, unit)) in parts.into_iter().enumerate() {
            if nth > 0 {
                self.word("and", ALONE);
            }
            let count = if count.is_empty() { "0" } else { count };
            self.words(&numbers::cardinal_of(count));
            let one = count.trim_start_matches('0') == "1";
            if one || unit == "pence" {
                self.word(unit, ALONE);
            } else {
                let many = format!("{unit}s");
                self.words.extend(self.lexicon.with_s(&many, ALONE));
            }
        }
    }
}

fn symbol(word: &str) -> Option<&'static str> {
    match word {
        "%" => Some("percent"),
        "&" => Some("and"),
        "+" => Some("plus"),
        "@" => Some("at"),
        _ => None,
    }
}

fn of_in(vowel: Option<bool>, tag: &str) -> String {
    if vowel.is_none() || tag != "IN" {
        "ˈɪn".to_owned()
    } else {
        "ɪn".to_owned()
    }
}

fn of_the(vowel: Option<bool>) -> String {
    if vowel == Some(true) { "ði" } else { "ðə" }.to_owned()
}

fn is_tapped(before: Option<char>) -> bool {
    before.is_some_and(|c| BEFORE_TAP.contains(c))
}

/// Whether a number can be an amount of money: two decimals at most.
fn is_amount(word: &str) -> bool {
    match word.split_once('.') {
        Some((_, cents)) => !cents.contains('.') && cents.len() < 3,
        None => true,
    }
}

fn is_number(word: &str, at_start: bool) -> bool {
    let endings = ["ing", "'d", "ed", "'s", "st", "nd", "rd", "th", "s"];
    let body = endings.iter().find_map(|ending| word.strip_suffix(ending));
    let body = body.unwrap_or(word);
    let body = match body.strip_prefix('-') {
        Some(body) if at_start => body,
        _ => body,
    };
    word.bytes().any(|b| b.is_ascii_digit())
        && body
            .bytes()
            .all(|b| b.is_ascii_digit() || matches!(b, b',' | b'.'))
}

/// The word in ordinary letters and digits.
fn plain(text: &str) -> String {
    if text.is_ascii() {
        return text.to_owned();
    }
    let quoted = text.replace(['‘', '’'], "'");
    let normal = ComposingNormalizerBorrowed::new_nfkc().normalize(&quoted);
    let digit = |c: char| {
        let value = ZEROS.iter().find_map(|&zero| {
            let value = u32::from(c).checked_sub(zero.into())?;
            char::from_digit(value, 10)
        });
        value.unwrap_or(c)
    };
    normal.chars().map(digit).collect()
}
