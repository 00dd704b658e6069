//! Writes out what a dictionary cannot know: times, dates, money, units, abbreviations, Roman numerals, telephone
//! numbers, addresses on the net, symbols. Plain numbers stay: the [`lexicon`](super::lexicon) reads them in their
//! context. The order of the steps matters: a time is found before a range, a date before a fraction.
//!
//! The words come from `normalize.json` of the model, as its makers trained it with them; the rules follow its Python
//! package (Apache-2.0), except that addresses are read, and money with a sign of its own.

#![expect(clippy::unused_self, reason = "all rules have one signature")]

mod codes;
mod money;
mod times;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use fancy_regex::Regex;
use serde::Deserialize;

use super::numbers::ordinal;
use super::traced::{Found, Rewriting, Traced};

/// The tables of `normalize.json`.
#[derive(Debug, Deserialize)]
pub struct Tables {
    months: HashMap<String, String>,
    titles: HashMap<String, String>,
    abbreviations: HashMap<String, String>,
    units: HashMap<String, (String, String)>,
    symbols: BTreeMap<String, String>,
    currency: HashMap<String, (String, String)>,
    roman_cardinal: Vec<String>,
    roman_ordinal: Vec<String>,
}

/// Units that the tables do not have.
const UNITS: [(&str, &str, &str); 9] = [
    ("m", "meter", "meters"),
    ("g", "gram", "grams"),
    ("l", "liter", "liters"),
    ("L", "liter", "liters"),
    ("h", "hour", "hours"),
    ("s", "second", "seconds"),
    ("m/s", "meter per second", "meters per second"),
    ("tsp", "teaspoon", "teaspoons"),
    ("tbsp", "tablespoon", "tablespoons"),
];

/// A rule's replacement: it writes, or gives false and the match stays.
type Rule = fn(&Normaliser, &Found<'_>, &mut Rewriting<'_>) -> bool;

/// The rules, ready for use.
pub struct Normaliser {
    tables: Tables,
    rules: Vec<(Regex, Rule)>,
    /// Each symbol with its word.
    symbols: Vec<(Regex, String)>,
    spaces: Regex,
    space_before_mark: Regex,
}

impl std::fmt::Debug for Normaliser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} rules", self.rules.len())
    }
}

const NUMBER: &str = r"\d+(?:,\d{3})*(?:\.\d+)?";
const ROMAN: &str =
    r"((?=[IVXLC])M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3}))\b(?![.'’]\w)";
/// Abbreviations that are words unless a number follows.
const COUNTED: [&str; 6] = ["no.", "nos.", "fig.", "Fig.", "est.", "ed."];
/// Symbols that are only read between two other characters.
const BETWEEN: [&str; 4] = ["=", "<", ">", "~"];

/// Any of these words as a pattern, the longest first.
fn any_of<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    let mut words: Vec<_> = words.into_iter().collect();
    words.sort_by(|one, other| {
        other
            .chars()
            .count()
            .cmp(&one.chars().count())
            .then(one.cmp(other))
    });
    words.dedup();
    let words: Vec<_> = words.into_iter().map(fancy_regex::escape).collect();
    words.join("|")
}

/// The word with its first letter in upper case.
pub fn capitalised(word: &str) -> String {
    let mut chars = word.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string());
    first.unwrap_or_default() + chars.as_str()
}

impl Normaliser {
    /// The rules with these tables.
    #[expect(clippy::too_many_lines, reason = "a table of rules")]
    pub fn new(mut tables: Tables) -> Result<Self, fancy_regex::Error> {
        for (unit, one, many) in UNITS {
            let names = (one.to_owned(), many.to_owned());
            tables.units.entry(unit.to_owned()).or_insert(names);
        }
        let short = tables.months.keys().map(|month| capitalised(month));
        let names: Vec<String> = tables
            .months
            .values()
            .cloned()
            .chain(short)
            .chain(["Sept".to_owned()])
            .collect();
        let months = any_of(names.iter().map(String::as_str));
        let keys = |map: &HashMap<String, String>| any_of(map.keys().map(String::as_str));
        // "The 1980s", "in her 20s".
        let units = tables.units.keys().map(String::as_str);
        let units = any_of(units.filter(|unit| *unit != "s"));
        let titles = keys(&tables.titles);
        let abbreviations = keys(&tables.abbreviations);
        let before_cardinal = any_of(tables.roman_cardinal.iter().map(String::as_str));
        let before_ordinal = any_of(tables.roman_ordinal.iter().map(String::as_str));
        let written: Vec<(String, Rule)> = vec![
            (
                r"(?i)(?<![\w.@/-])(?:https?://|www\.)[^\s<>()\[\]]*[\w/]".to_owned(),
                Self::address,
            ),
            (
                r"(?<![\w.@/-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.\w\w+".to_owned(),
                Self::address,
            ),
        ];
        let measures: Vec<(String, Rule)> = vec![
            (
                format!(r"(?<![\w.])(-?{NUMBER})\s?°\s?([CF])?(?![\w])"),
                Self::degrees,
            ),
            (
                format!(r"(?<![\w.])(-?{NUMBER})\s?({units})([²³])?(?![\w])"),
                Self::unit,
            ),
            (r"(?<![\w.,])(\d+\.\d+)\s?(s)(?!\w)".to_owned(), Self::unit),
        ];
        let words: Vec<(String, Rule)> = vec![
            (
                r"\b(\d+ (?:[A-Z]\w* ){1,3})(Dr)\.(?= [a-z]|[,;:]|\s*$)".to_owned(),
                Self::drive,
            ),
            (format!(r"\b({titles})\.? (?=[A-Z])"), Self::title),
            (
                format!(r"(?<![\w.])({abbreviations})(?![\w])"),
                Self::abbreviation,
            ),
            (r"\b(No|Nos)\. ?(?=\d)".to_owned(), Self::number_of),
            (r"(?<!\w)([Ee]xt)\.? ?(?=\d)".to_owned(), Self::extension),
        ];
        let numerals: Vec<(String, Rule)> = vec![
            (r"(?<![\w&])#(?=\d)".to_owned(), Self::hash),
            (
                format!(r"\b({before_cardinal}) {ROMAN}"),
                Self::roman_cardinal,
            ),
            (
                format!(r"\b({before_ordinal}) {ROMAN}"),
                Self::roman_ordinal,
            ),
        ];
        let arithmetic: Vec<(String, Rule)> = vec![
            (
                r"(?<![\w.,/])(\d+)(?: (?=\d/\d)| ?(?=[½¼¾]))((\d)/(\d{1,2})(?![\w/])|[½¼¾])"
                    .to_owned(),
                Self::mixed_fraction,
            ),
            (
                r"(?<![\w./])(\d{1,2})/(\d{1,2})(?![\w/]|\.\w)".to_owned(),
                Self::fraction,
            ),
            (r"(?<![A-Za-z])([1-9]\d*)\s?x\s?(?=\d)".to_owned(), Self::by),
            (
                r"(?<![\w.\-])(\d{1,4}%?)\s?[-–]\s?(\d{1,4})(?![\w\-]|\.\w)".to_owned(),
                Self::range,
            ),
            (r"(?<![\w+])\+(?=\d)".to_owned(), Self::plus),
            (
                r"(?<![\w.,])\.(\d+)(?!\w|\.\d)".to_owned(),
                Self::fraction_alone,
            ),
            (
                r"(?<![\w.,:/\-])0\d+(?![\w:/\-]|[.,]\d)".to_owned(),
                Self::code,
            ),
            (r"(?<=\S) --? (?=\S)".to_owned(), Self::dash),
        ];
        let patterns = [
            written,
            times::rules(&months),
            money::rules(),
            measures,
            words,
            codes::rules(),
            numerals,
            arithmetic,
        ];
        let rules = patterns.into_iter().flatten().map(|(pattern, rule)| {
            // Digits of other scripts are read by the lexicon, one by one.
            let pattern = pattern.replace(r"\d", "[0-9]");
            Ok((Regex::new(&pattern)?, rule))
        });
        let symbols = tables.symbols.iter().map(|(symbol, word)| {
            let escaped = fancy_regex::escape(symbol);
            let pattern = if BETWEEN.contains(&symbol.as_str()) {
                format!(r"(?<=\S) ?{escaped} ?(?=\S)")
            } else {
                escaped.into_owned()
            };
            Ok((Regex::new(&pattern)?, word.clone()))
        });
        Ok(Self {
            rules: rules.collect::<Result<_, fancy_regex::Error>>()?,
            symbols: symbols.collect::<Result<_, fancy_regex::Error>>()?,
            spaces: Regex::new(r"\s+")?,
            space_before_mark: Regex::new(r" +([,.;:!?])")?,
            tables,
        })
    }

    /// The text with everything written out.
    pub fn normalise(&self, text: &str) -> Traced {
        let mut text = Traced::original(text);
        self.one_space(&mut text);
        let chars: [(&str, &str); 3] = [("’", "'"), ("‒", "-"), ("―", "—")];
        for (from, to) in chars {
            if text.text().contains(from)
                && let Ok(from) = Regex::new(from)
            {
                text.rewrite(&from, |_, new| {
                    new.say(to);
                    true
                });
            }
        }
        for (pattern, rule) in &self.rules {
            text.rewrite(pattern, |found, new| rule(self, found, new));
        }
        for (pattern, word) in &self.symbols {
            text.rewrite(pattern, |_, new| {
                if word.is_empty() {
                    new.say(" ");
                } else {
                    new.say(&format!(" {word} "));
                }
                true
            });
        }
        self.one_space(&mut text);
        text.rewrite(&self.space_before_mark, |found, new| {
            new.keep(range(found, 1));
            true
        });
        text
    }

    fn one_space(&self, text: &mut Traced) {
        text.rewrite(&self.spaces, |_, new| {
            new.say(" ");
            true
        });
    }

    /// Addresses of sites and mailboxes: "ann dot lee at example dot com".
    fn address(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let all = range(found, 0);
        let written = text(found, 0);
        let lower = written.to_lowercase();
        let scheme = ["https://", "http://"]
            .iter()
            .find(|scheme| lower.starts_with(**scheme));
        let skipped = scheme.map_or(0, |scheme| scheme.len());
        let skipped = skipped
            + if lower
                .get(skipped..)
                .is_some_and(|rest| rest.starts_with("www."))
            {
                4
            } else {
                0
            };
        if skipped >= 4 && lower.get(skipped - 4..skipped) == Some("www.") {
            new.say_for(
                "double-u double-u double-u dot ",
                all.start..all.start + skipped,
            );
        }
        let body = written
            .get(skipped..)
            .unwrap_or_default()
            .trim_end_matches('/');
        // What a server is told behind the path is nothing to listen to.
        let body = body.split(['?', '#']).next().unwrap_or_default();
        let mut start = all.start + skipped;
        for piece in body.split_inclusive(['.', '@', '/', '-', '_', '+', ':', '=', '~', '%', '&']) {
            let word = piece.trim_end_matches(|c: char| !c.is_alphanumeric());
            let mark = piece.get(word.len()..).unwrap_or_default();
            new.keep(start..start + word.len());
            let mark_range = start + word.len()..start + piece.len();
            let said = match mark {
                "" => "",
                "." => " dot ",
                "@" => " at ",
                "/" => " slash ",
                "-" => " dash ",
                "_" => " underscore ",
                "+" => " plus ",
                ":" => " colon ",
                "=" => " equals ",
                _ => " ",
            };
            new.say_for(said, mark_range);
            start += piece.len();
        }
        true
    }

    fn degrees(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let mut words = if is_one(text(found, 1)) {
            " degree".to_owned()
        } else {
            " degrees".to_owned()
        };
        match found.get(2).map(|scale| scale.as_str()) {
            Some("C") => words += " Celsius",
            Some("F") => words += " Fahrenheit",
            _ => {}
        }
        new.keep(range(found, 1));
        new.say_for(&words, range(found, 1).end..range(found, 0).end);
        true
    }

    fn unit(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let Some((one, many)) = self.tables.units.get(text(found, 2)) else {
            return false;
        };
        let unit = if is_one(text(found, 1)) { one } else { many };
        new.keep(range(found, 1));
        let power = match text(found, 3) {
            "²" => "square ",
            "³" => "cubic ",
            _ => "",
        };
        new.say_for(
            &format!(" {power}{unit}"),
            range(found, 2).start..range(found, 0).end,
        );
        true
    }

    /// The street, behind its number and name.
    fn drive(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.keep(range(found, 1));
        let ends = new
            .text()
            .get(range(found, 0).end..)
            .is_some_and(|rest| rest.trim().is_empty());
        let drive = if ends { "Drive." } else { "Drive" };
        new.say_for(drive, range(found, 2).start..range(found, 0).end);
        true
    }

    fn title(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let Some(title) = self.tables.titles.get(text(found, 1)) else {
            return false;
        };
        new.say_for(&format!("{title} "), range(found, 0));
        true
    }

    fn abbreviation(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let short = text(found, 1);
        let Some(long) = self.tables.abbreviations.get(short) else {
            return false;
        };
        // "I said no." and "He ate a fig." end with words.
        let rest = new.text().get(range(found, 0).end..).unwrap_or_default();
        let counted = rest
            .trim_start()
            .starts_with(|c: char| c.is_ascii_digit() || "IVX".contains(c));
        if !counted && COUNTED.contains(&short) {
            return false;
        }
        let ends = range(found, 0).end == new.text().len() && short.ends_with('.');
        new.say(&format!("{long}{}", if ends { "." } else { "" }));
        true
    }

    fn number_of(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.say(if text(found, 1) == "No" {
            "Number "
        } else {
            "Numbers "
        });
        true
    }

    fn hash(&self, _: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.say("number ");
        true
    }

    fn plus(&self, _: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.say("plus ");
        true
    }

    fn roman_cardinal(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.keep(range(found, 1));
        new.say_for(&format!(" {}", roman(text(found, 2))), range(found, 2));
        true
    }

    fn roman_ordinal(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.keep(range(found, 1));
        let words = format!(" the {}", ordinal(roman(text(found, 2))));
        new.say_for(&words, range(found, 2));
        true
    }

    fn extension(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.say_for("extension ", range(found, 0));
        true
    }

    fn fraction(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let (above, below) = (number(found, 1), number(found, 2));
        let all = range(found, 0);
        if let Some(words) = part_of(above, below) {
            new.say(&words);
            return true;
        }
        // "24/7" and "50/50".
        let pair = (above, below) == (24, 7) || above == below;
        if pair && above > 12 {
            new.keep(range(found, 1));
            new.say_for(" ", range(found, 1).end..range(found, 2).start);
            new.keep(range(found, 2));
            return true;
        }
        if (1..=12).contains(&above) && (1..=31).contains(&below) {
            return self.date(new, None, (above, all.clone()), (below, all));
        }
        new.say(&format!("{above} slash {below}"));
        true
    }

    /// "1 1/2" and "1½" are "one and a half".
    fn mixed_fraction(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let part = match text(found, 2) {
            "½" => part_of(1, 2),
            "¼" => part_of(1, 4),
            "¾" => part_of(3, 4),
            _ => part_of(number(found, 3), number(found, 4)),
        };
        let Some(part) = part else {
            return false;
        };
        let part = part
            .strip_prefix("one ")
            .map_or(part.clone(), |one| format!("a {one}"));
        new.keep(range(found, 1));
        new.say_for(
            &format!(" and {part}"),
            range(found, 1).end..range(found, 0).end,
        );
        true
    }

    /// "3x4" is "three by four".
    fn by(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.keep(range(found, 1));
        new.say_for(" by ", range(found, 1).end..range(found, 0).end);
        true
    }

    /// A hyphen between two spaces is a dash.
    fn dash(&self, _: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.say(" — ");
        true
    }

    fn range(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.keep(range(found, 1));
        new.say_for(" to ", range(found, 1).end..range(found, 2).start);
        new.keep(range(found, 2));
        true
    }
}

fn text<'t>(found: &Found<'t>, group: usize) -> &'t str {
    found.get(group).map_or("", |group| group.as_str())
}

fn range(found: &Found<'_>, group: usize) -> Range<usize> {
    found.get(group).map_or(0..0, |group| group.range())
}

/// The patterns give at most four digits.
fn number(found: &Found<'_>, group: usize) -> u128 {
    text(found, group).parse().unwrap_or_default()
}

/// A fraction of one in words: "one half", "two thirds".
fn part_of(above: u128, below: u128) -> Option<String> {
    if above == 0 || above >= below || below > 10 {
        return None;
    }
    let part = match below {
        2 => "half".to_owned(),
        4 => "quarter".to_owned(),
        _ => ordinal(below),
    };
    Some(match above {
        1 => format!("one {part}"),
        _ => format!("{above} {part}s"),
    })
}

fn is_one(amount: &str) -> bool {
    matches!(amount, "1" | "1.0" | "-1")
}

fn roman(numeral: &str) -> u128 {
    let value = |c| match c {
        'I' => 1,
        'V' => 5,
        'X' => 10,
        'L' => 50,
        'C' => 100,
        'D' => 500,
        'M' => 1000,
        _ => 0,
    };
    let values: Vec<i32> = numeral.chars().map(value).collect();
    let next = values.iter().skip(1).chain([&0]);
    let sum: i32 = values
        .iter()
        .zip(next)
        .map(|(&value, &next)| if next > value { -value } else { value })
        .sum();
    sum.unsigned_abs().into()
}
