//! Writes out what a dictionary cannot know: times, dates, money, units, abbreviations, Roman numerals, telephone
//! numbers, addresses on the net, symbols. Plain numbers stay: the [`lexicon`](super::lexicon) reads them in their
//! context. The order of the steps matters: a time is found before a range, a date before a fraction.
//!
//! The words come from `normalize.json` of the model, as its makers trained it with them; the rules follow its Python
//! package (Apache-2.0), except that addresses are read, and money with a sign of its own.

#![expect(clippy::unused_self, reason = "all rules have one signature")]

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use fancy_regex::Regex;
use serde::Deserialize;

use super::numbers::{cardinal, ordinal};
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

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const NUMBER: &str = r"\d+(?:,\d{3})*(?:\.\d+)?";
const MAGNITUDE: &str = r"(hundred|thousand|million|billion|trillion|[kKmMbB]\b)";
const ROMAN: &str =
    r"((?=[IVXLC])M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3}))\b(?![.'’]\w)";
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
    pub fn new(tables: Tables) -> Result<Self, fancy_regex::Error> {
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
        let units = any_of(tables.units.keys().map(String::as_str));
        let titles = keys(&tables.titles);
        let abbreviations = keys(&tables.abbreviations);
        let before_cardinal = any_of(tables.roman_cardinal.iter().map(String::as_str));
        let before_ordinal = any_of(tables.roman_ordinal.iter().map(String::as_str));
        let patterns: [(String, Rule); 25] = [
            (
                r"(?i)(?<![\w.@/-])(?:https?://|www\.)[^\s<>()\[\]]*[\w/]".to_owned(),
                Self::address,
            ),
            (
                r"(?<![\w.@/-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.\w\w+".to_owned(),
                Self::address,
            ),
            (
                r"\b(\d{1,2}):(\d{2})(?::(\d{2}))?(?:\s?([AaPp])\.?[Mm]\.?(?![A-Za-z]))?(?!\d)"
                    .to_owned(),
                Self::time,
            ),
            (r"\b(\d{4})-(\d{2})-(\d{2})\b".to_owned(), Self::iso_date),
            (
                r"\b(\d{1,2})/(\d{1,2})/(\d{4}|\d{2})\b".to_owned(),
                Self::numeric_date,
            ),
            (format!(r"([$£€])({NUMBER})\s?{MAGNITUDE}"), Self::money),
            (format!(r"(?<![\w.])({NUMBER})\s?¢"), Self::cents),
            (
                format!(r"(?<![\w])([¥₹₩]|Rs\.?|USD|EUR|GBP)\s?({NUMBER})(?:\s?{MAGNITUDE})?"),
                Self::money,
            ),
            (
                format!(r"(?<![\w.])(-?{NUMBER})\s?°\s?([CF])?(?![\w])"),
                Self::degrees,
            ),
            (
                format!(r"(?<![\w.])(-?{NUMBER})\s?({units})(?![\w])"),
                Self::unit,
            ),
            (
                format!(r"\b({months})\.? (\d{{1,2}})(?:st|nd|rd|th)?\b(?![\d:%])(,? \d{{4}}\b)?"),
                Self::month_day,
            ),
            (
                format!(r"\b(the )?(\d{{1,2}}) (?:of )?({months})\b\.?"),
                Self::day_month,
            ),
            (format!(r"\b({titles})\.? (?=[A-Z])"), Self::title),
            (
                format!(r"(?<![\w.])({abbreviations})(?![\w])"),
                Self::abbreviation,
            ),
            (r"\b(No|Nos)\. ?(?=\d)".to_owned(), Self::number_of),
            (r"(?<![\w&])#(?=\d)".to_owned(), Self::hash),
            (
                format!(r"\b({before_cardinal}) {ROMAN}"),
                Self::roman_cardinal,
            ),
            (
                format!(r"\b({before_ordinal}) {ROMAN}"),
                Self::roman_ordinal,
            ),
            (
                r"(?<![\w.\-])(?:\(\d{3}\) ?|\d{3}[-. ])?\d{3}[-.]\d{4}(?![\w.\-]\w|\w)".to_owned(),
                Self::telephone,
            ),
            (
                r"(?<![\w])\+\d{1,3}(?:[ -]?\(?\d{1,5}\)?){2,6}(?!\w)".to_owned(),
                Self::telephone,
            ),
            (
                r"(?<![\w./])(\d{1,2})/(\d{1,2})(?![\w/]|\.\w)".to_owned(),
                Self::fraction,
            ),
            (
                r"(?<![\w.\-])(\d{1,4})\s?[-–]\s?(\d{1,4})(?![\w\-%]|\.\w)".to_owned(),
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
        ];
        let rules = patterns.into_iter().map(|(pattern, rule)| {
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

    fn month(&self, number: usize) -> Option<&str> {
        let short = MONTHS.get(number.checked_sub(1)?)?;
        self.tables.months.get(*short).map(String::as_str)
    }

    fn month_called(&self, name: &str) -> Option<&str> {
        let short = name.get(..3)?.to_lowercase();
        self.tables.months.get(&short).map(String::as_str)
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

    fn time(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let (hour, minute) = (number(found, 1), number(found, 2));
        let second = found.get(3).map(|_| number(found, 3));
        if hour > 24 || minute > 59 || second.is_some_and(|second| second > 59) {
            return false;
        }
        let half = found.get(4);
        let mut words = cardinal(hour);
        match minute {
            0 if half.is_none() && second.is_none() => words += " o'clock",
            0 => {}
            1..10 => words += &format!(" oh {}", cardinal(minute)),
            _ => words += &format!(" {}", cardinal(minute)),
        }
        if let Some(second) = second {
            let unit = if second == 1 { "second" } else { "seconds" };
            words += &format!(" and {} {unit}", cardinal(second));
        }
        let clock_end = found.get(3).or(found.get(2)).map_or(0, |group| group.end());
        let all = range(found, 0);
        new.say_for(&words, all.start..clock_end);
        if let Some(half) = half {
            // With full stops, so that it is spelt.
            let stop = if new
                .text()
                .get(all.end..)
                .is_some_and(|rest| rest.starts_with('.'))
            {
                ""
            } else {
                "."
            };
            let letters = format!(" {}.M{stop}", half.as_str().to_uppercase());
            new.say_for(&letters, half.start()..all.end);
        }
        true
    }

    /// "March third, 2024" in the order in which it is said.
    fn date(
        &self,
        new: &mut Rewriting<'_>,
        year: Option<(&str, Range<usize>)>,
        month: (u128, Range<usize>),
        day: (u128, Range<usize>),
    ) -> bool {
        let name = usize::try_from(month.0)
            .ok()
            .and_then(|month| self.month(month));
        let Some(name) = name.filter(|_| (1..=31).contains(&day.0)) else {
            return false;
        };
        new.say_for(name, month.1);
        new.say_for(&format!(" {}", ordinal(day.0)), day.1);
        if let Some((year, at)) = year {
            new.say_for(&format!(", {year}"), at);
        }
        true
    }

    fn iso_date(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        // All of it for each word: they are said in another order than they are written.
        let all = range(found, 0);
        self.date(
            new,
            Some((text(found, 1), all.clone())),
            (number(found, 2), all.clone()),
            (number(found, 3), all),
        )
    }

    fn numeric_date(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let year = match text(found, 3) {
            short if short.len() == 2 && number(found, 3) > 30 => format!("19{short}"),
            short if short.len() == 2 => format!("20{short}"),
            year => year.to_owned(),
        };
        let (first, second) = (number(found, 1), number(found, 2));
        let (month, day) = if first <= 12 {
            (first, second)
        } else {
            (second, first)
        };
        let all = range(found, 0);
        self.date(
            new,
            Some((&year, all.clone())),
            (month, all.clone()),
            (day, all),
        )
    }

    fn month_day(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let day = number(found, 2);
        let Some(month) = self
            .month_called(text(found, 1))
            .filter(|_| (1..=31).contains(&day))
        else {
            return false;
        };
        new.say_for(month, range(found, 1));
        let all = range(found, 0);
        let year = found.get(3).map(|year| year.range());
        let day_end = year.as_ref().map_or(all.end, |year| year.start);
        new.say_for(
            &format!(" {}", ordinal(day)),
            range(found, 2).start..day_end,
        );
        if let Some(year) = year {
            new.keep(year);
        }
        true
    }

    fn day_month(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let day = number(found, 2);
        let Some(month) = self
            .month_called(text(found, 3))
            .filter(|_| (1..=31).contains(&day))
        else {
            return false;
        };
        new.say_for(
            &format!("the {}", ordinal(day)),
            range(found, 0).start..range(found, 2).end,
        );
        new.say_for(&format!(" of {month}"), range(found, 3));
        true
    }

    /// Money that is named behind the number: "three billion dollars".
    fn money(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let sign = text(found, 1).trim_end_matches('.');
        let Some((one, many)) = self.tables.currency.get(sign) else {
            return false;
        };
        let amount = text(found, 2);
        new.keep(range(found, 2));
        match found.get(3) {
            Some(magnitude) => {
                let word = match magnitude.as_str().to_lowercase().as_str() {
                    "k" => "thousand",
                    "m" => "million",
                    "b" => "billion",
                    _ => magnitude.as_str(),
                };
                new.say_for(&format!(" {word}"), magnitude.range());
                new.say_for(&format!(" {many}"), range(found, 1));
            }
            None => {
                let unit = if is_one(amount) { one } else { many };
                new.say_for(&format!(" {unit}"), range(found, 1));
            }
        }
        true
    }

    fn cents(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let Some((one, many)) = self.tables.currency.get("¢") else {
            return false;
        };
        let unit = if is_one(text(found, 1)) { one } else { many };
        new.keep(range(found, 1));
        new.say_for(
            &format!(" {unit}"),
            range(found, 1).end..range(found, 0).end,
        );
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
        new.say_for(&format!(" {unit}"), range(found, 2));
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

    /// Digit by digit, with a pause where there is a mark.
    fn telephone(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let start = range(found, 0).start;
        let mut after = "";
        for (at, c) in text(found, 0).char_indices() {
            let at = start + at..start + at + c.len_utf8();
            match c {
                '0'..='9' => {
                    new.say_for(after, at.clone());
                    new.keep(at);
                    after = " ";
                }
                '+' => new.say_for("plus ", at),
                _ if after == " " => after = ", ",
                _ => {}
            }
        }
        true
    }

    /// ".75" is "point seven five".
    fn fraction_alone(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let digits = range(found, 1);
        new.say_for("point", range(found, 0).start..digits.start);
        self.each_digit(" ", digits, new);
        true
    }

    /// What begins with a zero is no amount: "007" is read digit by digit.
    fn code(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        self.each_digit("", range(found, 0), new);
        true
    }

    #[expect(clippy::unused_self, reason = "as the rules are")]
    fn each_digit(&self, mut before: &str, digits: Range<usize>, new: &mut Rewriting<'_>) {
        for at in digits {
            new.say_for(before, at..at + 1);
            new.keep(at..at + 1);
            before = " ";
        }
    }

    fn fraction(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let (above, below) = (number(found, 1), number(found, 2));
        let all = range(found, 0);
        if 0 < above && above < below && below <= 10 {
            let one = above == 1;
            let part = match below {
                2 => "half".to_owned(),
                4 => "quarter".to_owned(),
                _ => ordinal(below),
            };
            let words = match (below, one) {
                (2, true) => "one half".to_owned(),
                (_, true) => format!("{above} {part}"),
                _ => format!("{above} {part}s"),
            };
            new.say(&words);
            return true;
        }
        if (1..=12).contains(&above) && (1..=31).contains(&below) {
            return self.date(new, None, (above, all.clone()), (below, all));
        }
        new.say(&format!("{above} slash {below}"));
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
