//! Times and dates, and what lasts from one to another.

use std::ops::Range;

use super::super::numbers::{cardinal, ordinal};
use super::super::traced::{Found, Rewriting};
use super::{Normaliser, Rule, number, range, text};

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];
/// A time of the day, or an hour that may be one.
const CLOCK: &str = r"\d{1,2}(?::\d{2})?(?:\s?[AaPp]\.?[Mm]\b\.?)?";

/// The rules; `months` are the names of months as a pattern.
pub(super) fn rules(months: &str) -> Vec<(String, Rule)> {
    let days = DAYS.map(|day| format!("{day}|{}", short(day))).join("|");
    vec![
        (
            format!(r"\b({days})\.?\s?[-–]\s?({days})\b"),
            Normaliser::names,
        ),
        (
            format!(r"\b({months})\.?\s?[-–]\s?({months})\b(?!\.? \d{{1,2}}\b)"),
            Normaliser::names,
        ),
        (
            format!(
                r"(?<![\w.,:/$£€\-])({CLOCK}|[Nn]oon|[Mm]idnight)\s?[-–]\s?(?=({CLOCK})(?!\w))"
            ),
            Normaliser::range_of_times,
        ),
        (
            r"\b(\d{1,2}):(\d{2})(?::(\d{2}))?(?:\s?([AaPp])\.?[Mm]\.?(?![A-Za-z]))?(?!\d)"
                .to_owned(),
            Normaliser::time,
        ),
        (
            r"(?<![\w.:])(\d{1,2}):(\d)(?![\w:]|\.\d)".to_owned(),
            Normaliser::ratio,
        ),
        (
            r"\b(\d{4})-(\d{2})-(\d{2})\b".to_owned(),
            Normaliser::iso_date,
        ),
        (
            r"\b(\d{1,2})/(\d{1,2})/(\d{4}|\d{2})\b".to_owned(),
            Normaliser::numeric_date,
        ),
        (
            r"(?<![\w.])(\d{1,2})\.(\d{1,2})\.(\d{4})(?!\w|\.\d)".to_owned(),
            Normaliser::date_with_points,
        ),
        (
            format!(
                r"\b({months})\.? (\d{{1,2}})(?:st|nd|rd|th)?(?:\s?[-–]\s?(\d{{1,2}})(?:st|nd|rd|th)?)?\b(?![\d:%])(,? \d{{4}}\b)?"
            ),
            Normaliser::month_day,
        ),
        (
            format!(r"\b(the )?(\d{{1,2}}) (?:of )?({months})\b\.?"),
            Normaliser::day_month,
        ),
    ]
}

fn short(name: &str) -> &str {
    name.get(..3).unwrap_or(name)
}

impl Normaliser {
    /// "Mon-Fri" is "Monday to Friday".
    pub(super) fn names(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let whole = |name: &str| {
            let day = DAYS.iter().find(|day| short(day) == short(name));
            day.map_or_else(
                || self.month_called(name).map(str::to_owned),
                |day| Some((*day).to_owned()),
            )
        };
        let (Some(first), Some(last)) = (whole(text(found, 1)), whole(text(found, 2))) else {
            return false;
        };
        new.say_for(&first, range(found, 1));
        new.say_for(" to ", range(found, 1).end..range(found, 2).start);
        new.say_for(&last, range(found, 2));
        true
    }

    /// "9:00-17:00", "9-5 pm": at least one of the two is a time for certain.
    pub(super) fn range_of_times(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let is_time = |clock: &str| clock.contains(|c: char| c == ':' || c.is_alphabetic());
        if !is_time(text(found, 1)) && !is_time(text(found, 2)) {
            return false;
        }
        new.keep(range(found, 1));
        new.say_for(" to ", range(found, 1).end..range(found, 0).end);
        true
    }

    /// "3:1" is "three to one".
    pub(super) fn ratio(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        new.keep(range(found, 1));
        new.say_for(" to ", range(found, 1).end..range(found, 2).start);
        new.keep(range(found, 2));
        true
    }

    /// The day comes first wherever dates are written with points.
    pub(super) fn date_with_points(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let all = range(found, 0);
        self.date(
            new,
            Some((text(found, 3), all.clone())),
            (number(found, 2), all.clone()),
            (number(found, 1), all),
        )
    }

    fn month(&self, number: usize) -> Option<&str> {
        let short = MONTHS.get(number.checked_sub(1)?)?;
        self.tables.months.get(*short).map(String::as_str)
    }

    fn month_called(&self, name: &str) -> Option<&str> {
        let short = name.get(..3)?.to_lowercase();
        self.tables.months.get(&short).map(String::as_str)
    }

    pub(super) fn time(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
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
    pub(super) fn date(
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

    pub(super) fn iso_date(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        // All of it for each word: they are said in another order than they are written.
        let all = range(found, 0);
        self.date(
            new,
            Some((text(found, 1), all.clone())),
            (number(found, 2), all.clone()),
            (number(found, 3), all),
        )
    }

    pub(super) fn numeric_date(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
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

    pub(super) fn month_day(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
        let days = 1..=31;
        let (first, last) = (number(found, 2), found.get(3).map(|_| number(found, 3)));
        let valid = days.contains(&first) && last.is_none_or(|last| days.contains(&last));
        let Some(month) = self.month_called(text(found, 1)).filter(|_| valid) else {
            return false;
        };
        new.say_for(month, range(found, 1));
        let all = range(found, 0);
        let year = found.get(4).map(|year| year.range());
        let day_end = year.as_ref().map_or(all.end, |year| year.start);
        let first_end = if last.is_some() {
            range(found, 2).end
        } else {
            day_end
        };
        new.say_for(
            &format!(" {}", ordinal(first)),
            range(found, 2).start..first_end,
        );
        if let Some(last) = last {
            new.say_for(&format!(" to {}", ordinal(last)), first_end..day_end);
        }
        if let Some(year) = year {
            new.keep(year);
        }
        true
    }

    pub(super) fn day_month(&self, found: &Found<'_>, new: &mut Rewriting<'_>) -> bool {
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
}
