//! From text to phonemes: written out, cut into words, tagged, looked up from the end to the beginning, because a word
//! depends on what follows it ("the apple", "the pear"). What is said keeps the range of the text that it stands for.
//!
//! `[word](/phonemes/)` is said as its phonemes; of a link in Markdown only the words are.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use fancy_regex::Regex;

use super::lexicon::{Accent, Following, Lexicon, PAUSES, PRIMARY, currency, stressed, weight};
use super::normalise::{Normaliser, Tables, capitalised};
use super::oov::UnknownWords;
use super::table::{broken, parse, read};
use super::tagger::Tagger;
use super::tokenise::Tokeniser;
use super::traced::Traced;
use crate::onnx::Runtime;
use crate::worker::SpeechError;

/// Tags of marks.
const MARK_TAGS: [&str; 11] = [
    ".", ",", "-LRB-", "-RRB-", "``", "\"\"", "''", ":", "$", "#", "NFP",
];
/// Marks that the voice knows.
const MARKS: &str = ";:,.!?—…\"“”";
/// The most parts of a word that are looked up together. No entry of the dictionaries has as many.
const LONGEST_RUN: usize = 16;
/// What joins the parts of a word and is not said.
const JOINTS: &str = "',-._‘’/";

/// The front end for one accent.
#[derive(Debug)]
pub struct Pronouncer {
    normaliser: Normaliser,
    tokeniser: Tokeniser,
    tagger: Tagger,
    lexicon: Lexicon,
    unknown: UnknownWords,
    parts: Regex,
    fallback_parts: Regex,
    link: Regex,
}

/// Something that is said: a word, or a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Phonemes, or the mark itself.
    pub phonemes: String,
    /// Whether a space follows.
    pub space: bool,
    /// The bytes of the text that it stands for.
    pub origin: Range<usize>,
}

/// A word or a part of one on its way to phonemes.
#[derive(Debug, Clone, Default)]
struct Part {
    text: String,
    tag: String,
    space: bool,
    /// Where it is in the written-out text, and in the original.
    place: Range<usize>,
    origin: Range<usize>,
    phonemes: Option<String>,
    /// Whether it begins a word.
    head: bool,
    /// A 2 between letters is "to".
    alias: Option<&'static str>,
    money: Option<String>,
    /// Whether it is told apart from the part before.
    apart: bool,
}

/// Parts that are one word, between two spaces.
struct Group {
    parts: Vec<Part>,
    /// Whether more parts may follow.
    open: bool,
}

impl Pronouncer {
    /// The front end of a model's folder.
    pub fn load(runtime: &Runtime, folder: &Path, accent: Accent) -> Result<Self, SpeechError> {
        const TABLES: &str = "normalize.json";
        const EXCEPTIONS: &str = "tokenizer_exceptions.json";
        let pattern = |error: fancy_regex::Error| broken(&folder.join(TABLES), &error);
        let tables = read(folder, TABLES)?;
        let tables: Tables = parse(folder, TABLES, &tables)?;
        let exceptions = read(folder, EXCEPTIONS)?;
        let exceptions: HashMap<String, Vec<String>> = parse(folder, EXCEPTIONS, &exceptions)?;
        let upper = "A-ZÀ-ÖØ-Þ";
        let lower = "a-zß-öø-ÿ";
        let parts = format!(
            r"^['‘’]+|[{upper}](?=[{upper}][{lower}])|(?:^-)?(?:\d?[,.]?\d)+|[-_]+|['‘’]{{2,}}|[^\W\d_]*?(?:['‘’][^\W\d_])*?[{lower}](?=[{upper}])|[^\W\d_]+(?:['‘’][^\W\d_])*|[^\w\-'‘’]|['‘’]+$"
        );
        Ok(Self {
            normaliser: Normaliser::new(tables).map_err(pattern)?,
            tokeniser: Tokeniser::new(exceptions).map_err(pattern)?,
            tagger: Tagger::load(folder)?,
            lexicon: Lexicon::load(folder, accent)?,
            unknown: UnknownWords::load(runtime, folder, accent)?,
            parts: Regex::new(&parts).map_err(pattern)?,
            fallback_parts: Regex::new(r"[^\W\d_]+(?:['’][^\W\d_]+)*|\d+(?:[,.]\d+)*|[^\w\s]+")
                .map_err(pattern)?,
            link: Regex::new(r"\[([^\]]+)\]\(([^\)]*)\)").map_err(pattern)?,
        })
    }

    /// What is said of a text.
    pub fn pronounce(&mut self, text: &str) -> Result<Vec<Said>, SpeechError> {
        let text = self.normaliser.normalise(text);
        let parts = self.tokens(&text);
        let mut groups = self.group(&text, parts);
        let mut following = Following::default();
        for group in groups.iter_mut().rev() {
            following = self.say(&mut group.parts, following)?;
        }
        Ok(groups.into_iter().filter_map(finished).collect())
    }

    /// Words and marks with their tags.
    fn tokens(&self, text: &Traced) -> Vec<Part> {
        let mut tokens = Vec::new();
        let all = text.text();
        let mut at = 0;
        for link in self.link.captures_iter(all).map_while(Result::ok) {
            let (Some(whole), Some(word), Some(target)) = (link.get(0), link.get(1), link.get(2))
            else {
                continue;
            };
            self.tag(text, at..whole.start(), &mut tokens);
            let target = target.as_str();
            let ipa = target
                .strip_prefix('/')
                .and_then(|target| target.strip_suffix('/'));
            match ipa {
                Some(ipa) => tokens.push(Part {
                    text: word.as_str().to_owned(),
                    tag: "NN".to_owned(),
                    space: all[whole.end()..].starts_with(char::is_whitespace),
                    origin: text.origin(whole.range()),
                    phonemes: Some(from_ipa(ipa)),
                    ..Part::default()
                }),
                None => self.tag(text, word.range(), &mut tokens),
            }
            if let Some(last) = tokens.last_mut() {
                last.space |= all[whole.end()..].starts_with(char::is_whitespace);
            }
            at = whole.end();
        }
        self.tag(text, at..all.len(), &mut tokens);
        tell_letters(&mut tokens);
        tokens
    }

    fn tag(&self, text: &Traced, range: Range<usize>, tokens: &mut Vec<Part>) {
        let Some(here) = text.text().get(range.clone()) else {
            return;
        };
        let pieces = self.tokeniser.tokenise(here);
        let words: Vec<&str> = pieces
            .iter()
            .map(|piece| here.get(piece.range.clone()).unwrap_or_default())
            .collect();
        let tags = self.tagger.tag(&words);
        for ((piece, word), tag) in pieces.iter().zip(words).zip(tags) {
            let place = range.start + piece.range.start..range.start + piece.range.end;
            tokens.push(Part {
                text: word.to_owned(),
                tag: tag.to_owned(),
                space: piece.space,
                origin: text.origin(place.clone()),
                place,
                ..Part::default()
            });
        }
    }

    /// Cuts tokens further (at capitals inside a word, between letters and digits) and puts together what stands
    /// between two spaces.
    fn group(&self, text: &Traced, tokens: Vec<Part>) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let mut money: Option<String> = None;
        let next_tags: Vec<String> = tokens
            .iter()
            .skip(1)
            .map(|token| token.tag.clone())
            .collect();
        for (nth, token) in tokens.into_iter().enumerate() {
            let mut parts = self.cut(text, token);
            let texts: Vec<String> = parts.iter().map(|part| part.text.clone()).collect();
            let count = parts.len();
            for (at, part) in parts.iter_mut().enumerate() {
                if part.phonemes.is_some() {
                    continue;
                }
                if part.tag == "$" && currency(&part.text).is_some() {
                    money = Some(part.text.clone());
                    part.phonemes = Some(String::new());
                } else if part.tag == ":" && matches!(part.text.as_str(), "-" | "–") {
                    part.phonemes = Some("—".to_owned());
                } else if MARK_TAGS.contains(&part.tag.as_str())
                    && !part.text.chars().all(|c| c.is_ascii_alphabetic())
                {
                    part.phonemes = Some(mark(&part.tag, &part.text));
                } else if money.is_some() {
                    if part.tag == "CD" {
                        let next = next_tags.get(nth).map(String::as_str);
                        if at + 1 == count && next != Some("CD") {
                            part.money.clone_from(&money);
                        }
                    } else {
                        money = None;
                    }
                } else if part.text == "2" && between_letters(&texts, at) {
                    part.alias = Some("to");
                }
            }
            for mut part in parts {
                let fixed = part.alias.is_some() || part.phonemes.is_some();
                match groups.last_mut() {
                    _ if fixed => groups.push(Group {
                        parts: vec![part],
                        open: false,
                    }),
                    Some(group)
                        if group.open && group.parts.last().is_some_and(|last| !last.space) =>
                    {
                        part.head = false;
                        group.parts.push(part);
                    }
                    _ => groups.push(Group {
                        open: !part.space,
                        parts: vec![part],
                    }),
                }
            }
        }
        groups
    }

    fn cut(&self, text: &Traced, token: Part) -> Vec<Part> {
        if token.phonemes.is_some() {
            return vec![token];
        }
        let exact = token.place.len() == token.text.len();
        let mut parts: Vec<Part> = self
            .parts
            .find_iter(&token.text)
            .map_while(Result::ok)
            .map(|found| Part {
                text: found.as_str().to_owned(),
                head: true,
                space: false,
                origin: if exact {
                    let start = token.place.start;
                    text.origin(start + found.start()..start + found.end())
                } else {
                    token.origin.clone()
                },
                ..token.clone()
            })
            .collect();
        match parts.last_mut() {
            Some(last) => last.space = token.space,
            // Nothing in it can be said.
            None => parts.push(Part {
                phonemes: Some(String::new()),
                ..token
            }),
        }
        parts
    }

    /// Finds the phonemes of the parts of a word.
    fn say(&mut self, parts: &mut [Part], following: Following) -> Result<Following, SpeechError> {
        if let [part] = parts {
            let phonemes = match part.phonemes.take() {
                Some(phonemes) => phonemes,
                None => match self.look_up(part, following) {
                    Some(phonemes) => phonemes,
                    None => self.fall_back(&part.text)?,
                },
            };
            let after = following.before(&phonemes, is_to(part));
            part.phonemes = Some(phonemes);
            return Ok(after);
        }
        let mut following = following;
        let mut right = parts.len();
        let mut left = right.saturating_sub(LONGEST_RUN);
        let mut unknown = false;
        // The longest run of parts that the lexicon knows, from the end.
        while left < right {
            let run = parts.get(left..right).unwrap_or_default();
            let free = run
                .iter()
                .all(|part| part.phonemes.is_none() && part.alias.is_none());
            let whole = free.then(|| merged(run));
            let found = whole
                .as_ref()
                .and_then(|whole| Some((self.look_up(whole, following)?, is_to(whole))));
            if let Some((phonemes, to)) = found {
                following = following.before(&phonemes, to);
                give(parts, left..right, phonemes);
                right = left;
                left = right.saturating_sub(LONGEST_RUN);
            } else if left + 1 < right {
                left += 1;
            } else {
                right -= 1;
                let Some(part) = parts.get_mut(right) else {
                    break;
                };
                if part.phonemes.is_none() {
                    if part.text.chars().all(|c| JOINTS.contains(c)) {
                        part.phonemes = Some(String::new());
                    } else {
                        unknown = true;
                        break;
                    }
                }
                left = right.saturating_sub(LONGEST_RUN);
            }
        }
        if unknown {
            let phonemes = self.fall_back(&merged(parts).text)?;
            give(parts, 0..parts.len(), phonemes);
        } else {
            balance(parts);
        }
        Ok(following)
    }

    fn look_up(&self, part: &Part, following: Following) -> Option<String> {
        let text = part.alias.unwrap_or(&part.text);
        let money = part.money.as_deref();
        self.lexicon
            .word(text, &part.tag, money, part.head, following)
    }

    /// Letters by the network, digits as a number, signs by name.
    fn fall_back(&mut self, text: &str) -> Result<String, SpeechError> {
        let mut said: Vec<String> = Vec::new();
        for piece in self.fallback_parts.find_iter(text).map_while(Result::ok) {
            let piece = piece.as_str();
            let first = piece.chars().next();
            let phonemes = if first.is_some_and(char::is_alphabetic) {
                if piece.chars().any(is_foreign) {
                    String::new()
                } else if piece.chars().all(char::is_uppercase) {
                    // The network knows names, not capitals.
                    self.unknown.word(&capitalised(&piece.to_lowercase()))?
                } else {
                    self.unknown.word(piece)?
                }
            } else if first.is_some_and(|c| c.is_ascii_digit()) {
                self.lexicon.number(piece, None, false).unwrap_or_default()
            } else {
                piece.chars().map(sign).collect()
            };
            if !phonemes.is_empty() {
                said.push(phonemes);
            }
        }
        Ok(said.join(" "))
    }
}

/// Whether a letter belongs to a script that English is not written in. Single Greek letters occur in formulas.
pub fn is_foreign(c: char) -> bool {
    c.is_alphabetic()
        && !matches!(c,
            '\0'..='\u{24f}' | '\u{250}'..='\u{2ff}' | '\u{370}'..='\u{3ff}' | '\u{1d00}'..='\u{1dbf}'
            | '\u{1e00}'..='\u{1fff}' | '\u{2071}'..='\u{218f}' | '\u{fb00}'..='\u{fb06}' | '\u{ff21}'..='\u{ff5a}'
            | '\u{1d400}'..='\u{1d7ff}')
}

fn is_to(part: &Part) -> bool {
    match part.text.as_str() {
        "to" | "To" => true,
        "TO" => matches!(part.tag.as_str(), "TO" | "IN"),
        _ => false,
    }
}

/// "A" between letters and digits that are read one by one is a letter: "A B 7", "gate A 7". An article is one in capitals
/// only where a sentence begins with it: "A 7 year old boy".
fn tell_letters(tokens: &mut [Part]) {
    let single = |part: Option<&Part>| {
        part.is_some_and(|part| {
            part.text.len() == 1 && part.text.bytes().all(|b| b.is_ascii_uppercase())
        })
    };
    let number = |part: Option<&Part>| {
        part.is_some_and(|part| {
            !part.text.is_empty() && part.text.bytes().all(|b| b.is_ascii_digit())
        })
    };
    let mark =
        |part: Option<&Part>| part.is_none_or(|part| !part.text.contains(char::is_alphanumeric));
    for at in 0..tokens.len() {
        if tokens.get(at).is_none_or(|part| part.text != "A") {
            continue;
        }
        let before = at.checked_sub(1).and_then(|before| tokens.get(before));
        let (next, second) = (tokens.get(at + 1), tokens.get(at + 2));
        let begins = mark(before) && before.is_none_or(|before| before.text != ",");
        let ends = mark(second) || single(second) || number(second);
        let spelt = (single(next) || number(next)) && (!begins || ends);
        // Whoever says "I" means no letter.
        let goes_on = single(before) && before.is_some_and(|before| before.text != "I");
        if (spelt || goes_on)
            && let Some(part) = tokens.get_mut(at)
        {
            "NN".clone_into(&mut part.tag);
        }
    }
}

fn mark(tag: &str, text: &str) -> String {
    match tag {
        "-LRB-" => "(".to_owned(),
        "-RRB-" => ")".to_owned(),
        "``" => "“".to_owned(),
        "\"\"" | "''" => "”".to_owned(),
        _ => text.chars().filter(|&c| MARKS.contains(c)).collect(),
    }
}

/// Whether the part stands between two letters of other parts ("B2B"), and is the only digit ("QX7A2B").
fn between_letters(texts: &[String], at: usize) -> bool {
    let before = at
        .checked_sub(1)
        .and_then(|at| texts.get(at)?.chars().next_back());
    let after = texts.get(at + 1).and_then(|text| text.chars().next());
    let code = texts
        .iter()
        .enumerate()
        .any(|(nth, text)| nth != at && text.contains(|c: char| c.is_ascii_digit()));
    !code && before.is_some_and(char::is_alphabetic) && after.is_some_and(char::is_alphabetic)
}

/// The first of the parts has the phonemes of all.
fn give(parts: &mut [Part], range: Range<usize>, phonemes: String) {
    let mut phonemes = Some(phonemes);
    for part in parts.get_mut(range).unwrap_or_default() {
        part.phonemes = Some(phonemes.take().unwrap_or_default());
    }
}

/// Parts as one word.
fn merged(parts: &[Part]) -> Part {
    let size = |part: &&Part| -> usize {
        let capital = |c: char| c.is_uppercase();
        part.text
            .chars()
            .map(|c| if capital(c) { 2 } else { 1 })
            .sum()
    };
    let mut text = String::new();
    for (nth, part) in parts.iter().enumerate() {
        text += &part.text;
        if part.space && nth + 1 < parts.len() {
            text.push(' ');
        }
    }
    // The first of the largest.
    let mut largest: Option<&Part> = None;
    for part in parts {
        if largest.is_none_or(|largest| size(&part) > size(&largest)) {
            largest = Some(part);
        }
    }
    Part {
        text,
        tag: largest.map(|part| part.tag.clone()).unwrap_or_default(),
        space: parts.last().is_some_and(|part| part.space),
        head: parts.first().is_some_and(|part| part.head),
        money: parts.iter().filter_map(|part| part.money.clone()).max(),
        ..Part::default()
    }
}

/// The stress of the parts of a word among each other: half of them are weakened.
fn balance(parts: &mut [Part]) {
    let text: String = merged(parts).text;
    let class = |c: char| {
        if c.is_alphabetic() {
            0
        } else if c.is_ascii_digit() {
            1
        } else {
            2
        }
    };
    let mut classes: Vec<u8> = text
        .chars()
        .filter(|&c| !JOINTS.contains(c))
        .map(class)
        .collect();
    classes.sort_unstable();
    classes.dedup();
    let apart = text.contains([' ', '/']) || classes.len() > 1;
    let count = parts.len();
    for (nth, part) in parts.iter_mut().enumerate() {
        if part.phonemes.is_none() {
            let mut chars = part.text.chars();
            let single = chars.next().filter(|_| chars.next().is_none());
            if nth + 1 == count && single.is_some_and(|c| PAUSES.contains(c)) {
                part.phonemes = Some(part.text.clone());
            } else if part.text.chars().all(|c| JOINTS.contains(c)) {
                part.phonemes = Some(String::new());
            }
        } else if nth > 0 {
            part.apart = apart;
        }
    }
    if apart {
        return;
    }
    let mut heard: Vec<(bool, usize, usize)> = Vec::new();
    for (nth, part) in parts.iter().enumerate() {
        if let Some(phonemes) = part.phonemes.as_deref().filter(|said| !said.is_empty()) {
            heard.push((phonemes.contains(PRIMARY), weight(phonemes), nth));
        }
    }
    let strong = heard.iter().filter(|(primary, ..)| *primary).count();
    let letter = |nth: usize| {
        parts
            .get(nth)
            .is_some_and(|part| part.text.chars().count() == 1)
    };
    let weakened: Vec<usize> = match heard.as_slice() {
        [(_, _, first), (_, _, second)] if letter(*first) => vec![*second],
        [] | [_] => return,
        _ if strong <= heard.len().div_ceil(2) => return,
        _ => {
            heard.sort_unstable();
            heard
                .iter()
                .take(heard.len() / 2)
                .map(|(.., nth)| *nth)
                .collect()
        }
    };
    for nth in weakened {
        if let Some(part) = parts.get_mut(nth) {
            part.phonemes = part
                .phonemes
                .as_deref()
                .map(|said| stressed(said, Some(-0.5)));
        }
    }
}

/// What is said of a word.
fn finished(group: Group) -> Option<Said> {
    let mut phonemes = String::new();
    let mut origin: Option<Range<usize>> = None;
    let mut space = false;
    for part in group.parts {
        let said = part.phonemes.unwrap_or_default();
        let spaced = phonemes.is_empty() || phonemes.ends_with(char::is_whitespace);
        if part.apart && !spaced && !said.is_empty() {
            phonemes.push(' ');
        }
        phonemes += &said;
        space = part.space;
        origin = Some(match origin {
            Some(before) => before.start.min(part.origin.start)..before.end.max(part.origin.end),
            None => part.origin,
        });
    }
    Some(Said {
        phonemes: phonemes.replace('ɾ', "T").replace('ʔ', "t"),
        space,
        origin: origin?,
    })
}

fn sign(c: char) -> &'static str {
    match c {
        '/' => "slˈæʃ",
        '=' => "ˈikwᵊlz",
        '+' => "plˈʌs",
        '&' => "ænd",
        '@' => "æt",
        '%' => "pəɹsˈɛnt",
        '#' => "hˈæʃ",
        '*' => "ˈæstəɹˌɪsk",
        '~' => "tˈɪldə",
        '^' => "kˈɛɹət",
        '<' => "lˈɛs ðən",
        '>' => "ɡɹˈATəɹ ðən",
        '—' => "—",
        _ => "",
    }
}

/// Phonemes of the International Phonetic Alphabet in those that the voice knows, which has letters of its own for
/// diphthongs and affricates.
fn from_ipa(ipa: &str) -> String {
    const LETTERS: [(&str, &str); 22] = [
        ("t͡ʃ", "ʧ"),
        ("d͡ʒ", "ʤ"),
        ("tʃ", "ʧ"),
        ("dʒ", "ʤ"),
        ("eɪ", "A"),
        ("aɪ", "I"),
        ("ɔɪ", "Y"),
        ("oʊ", "O"),
        ("əʊ", "Q"),
        ("aʊ", "W"),
        ("ɝ", "ɜɹ"),
        ("ɚ", "əɹ"),
        ("ɫ", "l"),
        ("l̩", "ᵊl"),
        ("n̩", "ᵊn"),
        ("ɐ", "ɐ"),
        ("g", "ɡ"),
        ("r", "ɹ"),
        (".", ""),
        ("'", "ˈ"),
        ("͡", ""),
        ("‿", ""),
    ];
    let mut said = ipa.to_owned();
    for (ipa, letter) in LETTERS {
        said = said.replace(ipa, letter);
    }
    said
}
