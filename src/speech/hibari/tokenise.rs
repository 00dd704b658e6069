//! Cuts text into words and marks as spaCy does for English, whose tags the tagger has learnt: a list of exceptions
//! ("can't", "a.m."), then marks are taken off both ends of what stands between two spaces, then what is left is cut at
//! dashes and the like between letters.

use std::collections::HashMap;
use std::ops::Range;

use fancy_regex::Regex;

const LETTER: &str = r"[^\W\d_]";
const LOWER: &str = "a-zß-öø-ÿ";
const UPPER: &str = "A-ZÀ-ÖØ-Þ";
const QUOTES: &str = r#"'"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉"#;
const MARKS: &str = r"…,:;!?¿¡()\[\]{}<>_#*\&。？！，、；：～·";
const SIGNS: &str = "™®©°§¶†‡•";
const MONEY: &str = r"\$|US\$|C\$|A\$|[£€¥฿₽₹₩₪₺₴₦₫₱₲₵₸₼₾₿]";
const UNITS: &str = "km|km²|km³|m|m²|m³|dm|dm²|dm³|cm|cm²|cm³|mm|mm²|mm³|ha|µm|nm|yd|in|ft|kg|g|mg|µg|t|lb|oz|m/s|km/h\
                     |kmh|mph|hPa|Pa|mbar|mb|MB|kb|KB|gb|GB|tb|TB|T|G|M|K|%";
const TOP_LEVEL: &str = "com|org|net|edu|gov|io|co|uk|de|fr|info|biz|us|ca|au|tv|me|ly|ai";

/// The rules.
pub struct Tokeniser {
    /// What is cut otherwise than by rule, and its pieces.
    exceptions: HashMap<String, Vec<String>>,
    prefix: Regex,
    suffix: Regex,
    infix: Regex,
    address: Regex,
}

impl std::fmt::Debug for Tokeniser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} exceptions", self.exceptions.len())
    }
}

/// A word or a mark: where it is in the text, and whether a space follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Bytes of the text.
    pub range: Range<usize>,
    /// Whether a space follows.
    pub space: bool,
}

impl Tokeniser {
    /// The rules with these exceptions.
    pub fn new(exceptions: HashMap<String, Vec<String>>) -> Result<Self, fancy_regex::Error> {
        let prefix = format!(r"^(?:\.\.+|\+(?![0-9])|{MONEY}|[§%=—–{MARKS}{QUOTES}{SIGNS}])");
        let suffix = format!(
            r"(?:……?|\.\.+|['’][sS]|[—–{MARKS}{QUOTES}{SIGNS}]|(?<=[0-9])\+|(?<=°[FfCcKk])\.|(?<=[0-9])(?:{MONEY})|(?<=[0-9])(?:{UNITS})|(?<=[0-9{LOWER}%²\-\+{MARKS}{QUOTES}])\.|(?<=[{UPPER}][{UPPER}])\.)$"
        );
        let infix = format!(
            r"\.\.+|…|[{SIGNS}]|(?<=[0-9])[+\-*^](?=[0-9-])|(?<=[{LOWER}{QUOTES}])\.(?=[{UPPER}{QUOTES}])|(?<={LETTER}),(?={LETTER})|(?<=[^\W_])(?:-|–|—|--|---|——|~)(?={LETTER})|(?<=[^\W_])[:<>=/](?={LETTER})"
        );
        let address = format!(
            r"(?i)^(?:(?:https?|ftp)://|www\.)\S+$|^[\w.+-]+@[\w-]+(?:\.[\w-]+)+$|^(?:[\w-]+\.)+(?:{TOP_LEVEL})(?:/\S*)?$"
        );
        Ok(Self {
            exceptions,
            prefix: Regex::new(&prefix)?,
            suffix: Regex::new(&suffix)?,
            infix: Regex::new(&infix)?,
            address: Regex::new(&address)?,
        })
    }

    /// The words and marks of a text.
    pub fn tokenise(&self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = 0;
        for chunk in text.split(char::is_whitespace) {
            let start = at;
            at += chunk.len();
            let space = at < text.len();
            at += text
                .get(at..)
                .and_then(|rest| rest.chars().next())
                .map_or(0, char::len_utf8);
            if chunk.is_empty() {
                continue;
            }
            let cut = self.cut(chunk);
            let mut from = start;
            for (nth, piece) in cut.iter().enumerate() {
                // Every exception is the sum of its pieces; one that is not has all of the chunk for each.
                let exact = text.get(from..from + piece.len()) == Some(*piece);
                let range = if exact {
                    from..from + piece.len()
                } else {
                    start..start + chunk.len()
                };
                from += piece.len();
                pieces.push(Piece {
                    range,
                    space: space && nth + 1 == cut.len(),
                });
            }
        }
        pieces
    }

    fn exception(&self, chunk: &str) -> Option<Vec<&str>> {
        let pieces = self.exceptions.get(chunk)?;
        Some(pieces.iter().map(String::as_str).collect())
    }

    fn cut<'t>(&'t self, chunk: &'t str) -> Vec<&'t str> {
        if let Some(pieces) = self.exception(chunk) {
            return pieces;
        }
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        let mut rest = chunk;
        while !rest.is_empty() && !self.exceptions.contains_key(rest) {
            let prefix = first(&self.prefix, rest);
            let (head, tail) = rest.split_at(prefix.map_or(0, |found| found.end));
            if !head.is_empty() && !tail.is_empty() && self.exceptions.contains_key(tail) {
                before.push(head);
                rest = tail;
                break;
            }
            let suffix = first(&self.suffix, tail).filter(|found| !found.is_empty());
            let suffix_len = suffix.map_or(0, |found| found.len());
            let (body, end) = rest.split_at(rest.len() - suffix_len);
            if !end.is_empty() && !body.is_empty() && self.exceptions.contains_key(body) {
                behind.push(end);
                rest = body;
                break;
            }
            if head.is_empty() && end.is_empty() {
                break;
            }
            if !head.is_empty() {
                before.push(head);
            }
            if !end.is_empty() {
                behind.push(end);
            }
            rest = tail.get(..tail.len() - end.len()).unwrap_or_default();
        }
        let mut pieces = before;
        if let Some(exception) = self.exception(rest) {
            pieces.extend(exception);
        } else if self.address.is_match(rest).unwrap_or_default() {
            pieces.push(rest);
        } else {
            self.cut_inside(rest, &mut pieces);
        }
        pieces.extend(behind.into_iter().rev());
        if pieces.len() > 1 {
            return self.join(chunk, &pieces);
        }
        pieces
    }

    fn cut_inside<'t>(&'t self, rest: &'t str, pieces: &mut Vec<&'t str>) {
        let mut start = 0;
        for found in self.infix.find_iter(rest).map_while(Result::ok) {
            if found.start() == 0 || found.range().is_empty() {
                continue;
            }
            pieces.extend(
                rest.get(start..found.start())
                    .filter(|piece| !piece.is_empty()),
            );
            pieces.push(found.as_str());
            start = found.end();
        }
        pieces.extend(rest.get(start..).filter(|piece| !piece.is_empty()));
    }

    /// Two or three pieces that are an exception together stay together: "Sept" and ".".
    fn join<'t>(&'t self, chunk: &'t str, pieces: &[&'t str]) -> Vec<&'t str> {
        let mut joined = Vec::new();
        let (mut nth, mut at) = (0, 0);
        while let Some(piece) = pieces.get(nth) {
            let together = [3, 2].into_iter().find_map(|count| {
                let length: usize = pieces.get(nth..nth + count)?.iter().map(|p| p.len()).sum();
                let exception = self.exception(chunk.get(at..at + length)?)?;
                Some((count, length, exception))
            });
            match together {
                Some((count, length, exception)) => {
                    joined.extend(exception);
                    nth += count;
                    at += length;
                }
                None => {
                    joined.push(piece);
                    nth += 1;
                    at += piece.len();
                }
            }
        }
        joined
    }
}

fn first(pattern: &Regex, text: &str) -> Option<Range<usize>> {
    pattern.find(text).ok().flatten().map(|found| found.range())
}
