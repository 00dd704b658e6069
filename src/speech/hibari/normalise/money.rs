//! Amounts of money. The lexicon reads an amount with a sign before it; others are rewritten to that, or named.

use super::super::traced::{Found, Rewriting};
use super::{NUMBER, Normaliser, Rule, is_one, range, text};

const MAGNITUDE: &str = r"(hundred|thousand|million|billion|trillion|[kKmMbB]\b)";
/// What is no thing that has a price: "a $20 is", "a $5 or".
const NO_THING: &str = r"(?!(?:is|was|are|and|or|but|for|to|in|on|at|of|per|a|an|from|with|by|as|if|when|each|more|less|off)\b)";
/// Dollars of other countries.
const DOLLARS: [(&str, &str); 8] = [
    ("CA$", "Canadian"),
    ("C$", "Canadian"),
    ("AU$", "Australian"),
    ("A$", "Australian"),
    ("NZ$", "New Zealand"),
    ("HK$", "Hong Kong"),
    ("S$", "Singapore"),
    ("R$", "Brazilian"),
];

/// The rules, in their order.
pub(super) fn rules() -> Vec<(String, Rule)> {
    vec![
        (
            r"(?<![\w$£€])(-?)([$£€])(-?)(?=\d)".to_owned(),
            Normaliser::minus,
        ),
        (
            format!(r"([$£€])({NUMBER})(\s?[-–]\s?)[$£€]?(?={NUMBER}[kKmMbB]?(?!\w))"),
            Normaliser::money_range,
        ),
        (
            format!(r"(?<![\w])(?:CA|C|AU|A|NZ|HK|S|R)\$({NUMBER})(?:[\s-]?{MAGNITUDE})?"),
            Normaliser::other_dollars,
        ),
        (
            format!(r"(?<![\w])(US\$|USD|EUR|GBP)\s?(?={NUMBER})"),
            Normaliser::sign,
        ),
        (
            format!(r"(?<![\w.,$£€])(\d+,\d{{2}}|{NUMBER})\s?(€|£|\$|USD\b|EUR\b|GBP\b)(?!\d)"),
            Normaliser::sign_behind,
        ),
        (
            format!(r"\b([Aa]n? )([$£€])({NUMBER})(?:[\s-]?{MAGNITUDE})?[ -](?=[a-z]){NO_THING}"),
            Normaliser::price_of,
        ),
        (
            format!(r"([$£€])({NUMBER})[\s-]?{MAGNITUDE}"),
            Normaliser::money,
        ),
        (format!(r"(?<![\w.])({NUMBER})\s?¢"), Normaliser::cents),
        (
            format!(r"(?<![\w])([¥₹₩]|Rs\.?)\s?({NUMBER})(?:\s?{MAGNITUDE})?"),
            Normaliser::money,
        ),
    ]
}

fn magnitude(written: &str) -> &str {
    match written {
        "k" | "K" => "thousand",
        "m" | "M" => "million",
        "b" | "B" => "billion",
        word => word,
    }
}

impl Normaliser {
    /// The minus of "-$5" and "$-5", which is said first.
    pub(super) fn minus(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let signs = range(found, 1).len() + range(found, 3).len();
        if signs != 1 {
            return false;
        }
        let minus = if range(found, 1).is_empty() { 3 } else { 1 };
        new.say_for("minus ", range(found, minus));
        new.keep(range(found, 2));
        true
    }

    /// "$10-20" is "ten to twenty dollars".
    pub(super) fn money_range(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.keep(range(found, 2));
        new.say_for(" to ", range(found, 3));
        new.keep(range(found, 1));
        true
    }

    pub(super) fn other_dollars(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let all = range(found, 0);
        let sign = all.start..range(found, 1).start;
        let written = new.text().get(sign.clone());
        let Some((_, name)) = DOLLARS.iter().find(|(sign, _)| Some(*sign) == written) else {
            return false;
        };
        new.keep(range(found, 1));
        if let Some(word) = found.get(2) {
            new.say_for(&format!(" {}", magnitude(word.as_str())), word.range());
        }
        let unit = if is_one(text(found, 1)) && found.get(2).is_none() {
            "dollar"
        } else {
            "dollars"
        };
        new.say_for(&format!(" {name} {unit}"), sign);
        true
    }

    /// "USD 50" is "$50".
    pub(super) fn sign(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.say_for(sign_of(text(found, 1)), range(found, 0));
        true
    }

    /// "50 €" is "€50", and "9,99 €" too.
    pub(super) fn sign_behind(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let amount = text(found, 1);
        new.say_for(sign_of(text(found, 2)), range(found, 2));
        match amount.split_once(',') {
            Some((whole, cents)) if cents.len() == 2 => {
                new.say_for(&format!("{whole}.{cents}"), range(found, 1));
            }
            _ => new.keep(range(found, 1)),
        }
        true
    }

    /// "a $20 bill" is "a twenty dollar bill".
    pub(super) fn price_of(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let Some((one, _)) = self.tables.currency.get(text(found, 2)) else {
            return false;
        };
        if text(found, 3).contains('.') && found.get(4).is_none() {
            return false;
        }
        new.keep(range(found, 1));
        new.keep(range(found, 3));
        if let Some(word) = found.get(4) {
            new.say_for(&format!(" {}", magnitude(word.as_str())), word.range());
        }
        new.say_for(&format!(" {one} "), range(found, 2));
        true
    }

    /// Money that is named behind the number: "three billion dollars".
    pub(super) fn money(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let sign = text(found, 1).trim_end_matches('.');
        let Some((one, many)) = self.tables.currency.get(sign) else {
            return false;
        };
        let amount = text(found, 2);
        new.keep(range(found, 2));
        match found.get(3) {
            Some(word) => {
                new.say_for(&format!(" {}", magnitude(word.as_str())), word.range());
                new.say_for(&format!(" {many}"), range(found, 1));
            }
            None => {
                let unit = if is_one(amount) { one } else { many };
                new.say_for(&format!(" {unit}"), range(found, 1));
            }
        }
        true
    }

    pub(super) fn cents(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
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
}

fn sign_of(name: &str) -> &str {
    match name {
        "US$" | "USD" => "$",
        "EUR" => "€",
        "GBP" => "£",
        sign => sign,
    }
}
