//! Digits that are no amount: telephone numbers, codes, versions, addresses of machines; and the keys of a telephone.

use std::ops::Range;

use super::super::traced::{Found, Rewriting};
use super::{Normaliser, Rule, range, text};

/// Words behind which a number is read digit by digit.
const NAMES: &str = "code|pin|PIN|passcode|password|otp|OTP|zip|ZIP|postcode|extension";
/// Words behind which one is if they are called a number: an order may also be one of 500 pieces.
const THINGS: &str = "account|card|order|booking|reference|confirmation|ticket|invoice|tracking|case|serial|member|customer|phone|telephone";
/// Numbers of emergency services and hotlines.
const HOTLINES: &str = "911|999|112|111|101|988|311|411|511|611|711|811|211";
/// Digits from which on a number is a code, unless it is round: amounts of as many have commas.
const LONG: usize = 7;

/// The rules, in their order.
pub(super) fn rules() -> Vec<(String, Rule)> {
    vec![
        (
            r"(?<![\w])\+\d{1,3}(?:[ .-]?\(?\d{1,5}\)?){2,6}(?!\w)".to_owned(),
            Normaliser::telephone,
        ),
        (
            r"(?<![\w.\-])(?:(?:1[-. ])?(?:\(\d{3}\)[ -]?|\d{3}[-. ])\d{3}[-. ]\d{4}|\d{3}[-.]\d{4})(?![\w.\-]\w|\w)"
                .to_owned(),
            Normaliser::telephone,
        ),
        (
            r"(?<![\w.,:/\-])\(?0\d{1,4}\)?(?:[ -]\d{2,6}){1,4}(?![\w:/\-]|[.,]\d)".to_owned(),
            Normaliser::national,
        ),
        (
            format!(
                r"\b((?i:{NAMES})|(?i:{THINGS})(?= (?i:number|no\.|code|id|ending)|:? #))((?: (?i:number|no\.|code|id|is|was|ending|in))*:? #?)(\d{{3,}})(?![\w%:]|[.,]\d)"
            ),
            Normaliser::named_code,
        ),
        (
            format!(r"\b((?i:call|dial|ring|text) )({HOTLINES})(?!\w|[.,:-]\d)"),
            Normaliser::hotline,
        ),
        (
            // Behind one that was read digit by digit.
            format!(r"(?<=\d \d \d)((?:,)? or )({HOTLINES})(?!\w|[.,:-]\d)"),
            Normaliser::hotline,
        ),
        (
            r"(?<![\w.,$£€¥₹:/\-])(\d{7,})(?![\w%:/\-]|[.,]\d| (?:million|billion|percent))".to_owned(),
            Normaliser::long_number,
        ),
        (
            r"(?<![\w.])([vV](?=\d)|(?i:version|release) )?(\d+(?:\.\d+)+)(?!\w|\.\w)".to_owned(),
            Normaliser::version,
        ),
        (
            r"(?i)\b(press|dial|enter|hit|push|or|the(?= [*#] (?:key|button|sign))) ([*#])(?=[\s,.;:!?]|$)"
                .to_owned(),
            Normaliser::key,
        ),
        (
            r"(?i)\b(press|dial|enter|hit|push) ([*])(?=\d)".to_owned(),
            Normaliser::key,
        ),
        (r"\b([CFG])#(?!\w)".to_owned(), Normaliser::sharp),
        (r"\bCO[2₂](?!\w)".to_owned(), Normaliser::carbon_dioxide),
    ]
}

/// How many digits are said at once, so that a listener can write them down: threes, or fours at the end.
fn groups(digits: usize) -> Vec<usize> {
    if digits < 6 {
        return vec![digits];
    }
    let fours = match digits % 3 {
        0 => 0,
        1 => 1,
        _ => 2,
    };
    let mut groups = vec![3; (digits - 4 * fours) / 3];
    groups.extend(std::iter::repeat_n(4, fours));
    groups
}

impl Normaliser {
    /// Digit by digit, with a pause where there is a mark.
    pub(super) fn telephone(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
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

    /// A number that begins with the zero of a trunk.
    pub(super) fn national(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let digits = text(found, 0).bytes().filter(u8::is_ascii_digit).count();
        digits >= LONG && self.telephone(found, new)
    }

    pub(super) fn named_code(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.keep(range(found, 1));
        let between = range(found, 2);
        let sign = text(found, 2).ends_with('#');
        let kept = between.end - usize::from(sign);
        new.keep(between.start..kept);
        if sign {
            new.say_for("number ", kept..between.end);
        }
        self.in_groups(range(found, 3), new);
        true
    }

    pub(super) fn hotline(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.keep(range(found, 1));
        self.each_digit("", range(found, 2), new);
        true
    }

    pub(super) fn long_number(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        if text(found, 1).ends_with("000") {
            return false;
        }
        self.in_groups(range(found, 1), new);
        true
    }

    /// "2.0.1" is "two point zero point one", "192.168.1.1" has dots.
    pub(super) fn version(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let numbers: Vec<&str> = text(found, 2).split('.').collect();
        if found.get(1).is_none() && numbers.len() < 3 {
            return false;
        }
        let machine =
            numbers.len() == 4 && numbers.iter().all(|number| number.parse::<u8>().is_ok());
        if let Some(before) = found.get(1) {
            match before.as_str() {
                "v" | "V" => new.say_for("version ", before.range()),
                _ => new.keep(before.range()),
            }
        }
        let mut at = range(found, 2).start;
        for (nth, number) in numbers.iter().enumerate() {
            if nth > 0 {
                let point = if machine { " dot " } else { " point " };
                new.say_for(point, at..at + 1);
                at += 1;
            }
            new.keep(at..at + number.len());
            at += number.len();
        }
        true
    }

    /// "Press *" and "press #".
    pub(super) fn key(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.keep(range(found, 1));
        let name = if text(found, 2) == "*" {
            " star "
        } else {
            " pound "
        };
        new.say_for(name, range(found, 1).end..range(found, 0).end);
        true
    }

    /// A key of music, or a language for programs.
    pub(super) fn sharp(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.keep(range(found, 1));
        new.say_for(" sharp", range(found, 1).end..range(found, 0).end);
        true
    }

    /// Its capitals are no word, as those of other formulas are not.
    pub(super) fn carbon_dioxide(&self, _: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.say("C O 2");
        true
    }

    /// ".75" is "point seven five".
    pub(super) fn fraction_alone(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let digits = range(found, 1);
        new.say_for("point", range(found, 0).start..digits.start);
        self.each_digit(" ", digits, new);
        true
    }

    /// What begins with a zero is no amount: "007" is read digit by digit.
    pub(super) fn code(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        self.each_digit("", range(found, 0), new);
        true
    }

    #[expect(clippy::unused_self, reason = "as the rules are")]
    pub(super) fn each_digit(
        &self,
        mut before: &str,
        digits: Range<usize>,
        new: &mut Rewriting<'_>,
    ) {
        for at in digits {
            new.say_for(before, at..at + 1);
            new.keep(at..at + 1);
            before = " ";
        }
    }

    fn in_groups(&self, digits: Range<usize>, new: &mut Rewriting<'_>) {
        let (mut at, mut before) = (digits.start, "");
        for group in groups(digits.len()) {
            self.each_digit(before, at..at + group, new);
            (at, before) = (at + group, ", ");
        }
    }
}
