//! English number words: cardinals, ordinals, years and decimals, as the voice's text front end spells them ("one
//! thousand, two hundred and thirty-four"). Digits come as text, so that no length is too long: what has more digits
//! than there are names for is read digit by digit.

const SMALL: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
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
const TENS: [&str; 10] = [
    "", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
];
/// The names of the powers of a thousand.
const POWERS: [&str; 12] = [
    "",
    "thousand",
    "million",
    "billion",
    "trillion",
    "quadrillion",
    "quintillion",
    "sextillion",
    "septillion",
    "octillion",
    "nonillion",
    "decillion",
];

fn name<'n>(names: &[&'n str], at: u128) -> &'n str {
    usize::try_from(at)
        .ok()
        .and_then(|at| names.get(at))
        .copied()
        .unwrap_or_default()
}

/// A number below a thousand.
fn hundreds(n: u128) -> String {
    let (hundred, rest) = (n / 100, n % 100);
    let small = match rest {
        0..20 => name(&SMALL, rest).to_owned(),
        _ if rest % 10 == 0 => name(&TENS, rest / 10).to_owned(),
        _ => format!("{}-{}", name(&TENS, rest / 10), name(&SMALL, rest % 10)),
    };
    match (hundred, rest) {
        (0, _) => small,
        (_, 0) => format!("{} hundred", name(&SMALL, hundred)),
        _ => format!("{} hundred and {small}", name(&SMALL, hundred)),
    }
}

/// "one thousand, two hundred and thirty-four".
pub fn cardinal(n: u128) -> String {
    if n < 1000 {
        return hundreds(n);
    }
    let mut groups = Vec::new();
    let (mut rest, mut power) = (n, 0);
    while rest > 0 {
        let group = rest % 1000;
        match POWERS.get(power) {
            Some(&"") if group > 0 => groups.push(hundreds(group)),
            Some(power) if group > 0 => groups.push(format!("{} {power}", hundreds(group))),
            Some(_) => {}
            None => return digits(&n.to_string()),
        }
        rest /= 1000;
        power += 1;
    }
    groups.reverse();
    // Less than a hundred at the end is joined by "and", as in "one thousand and one".
    match groups.split_last() {
        Some((last, before)) if !before.is_empty() && n % 1000 < 100 && !n.is_multiple_of(1000) => {
            format!("{} and {last}", before.join(", "))
        }
        _ => groups.join(", "),
    }
}

/// The number that these digits are, in words.
pub fn cardinal_of(text: &str) -> String {
    text.parse().map_or_else(|_| digits(text), cardinal)
}

/// Digit by digit.
pub fn digits(text: &str) -> String {
    let words = text
        .chars()
        .filter_map(|c| c.to_digit(10))
        .map(|digit| name(&SMALL, digit.into()));
    words.collect::<Vec<_>>().join(" ")
}

/// "twenty-third", "one hundred and first".
pub fn ordinal(n: u128) -> String {
    ordinal_from(&cardinal(n))
}

/// The ordinal of the number that these digits are.
pub fn ordinal_of(text: &str) -> String {
    ordinal_from(&cardinal_of(text))
}

fn ordinal_from(cardinal: &str) -> String {
    let at = cardinal.rfind([' ', '-']).map_or(0, |at| at + 1);
    let (head, last) = cardinal.split_at(at);
    let last = match last {
        "one" => "first".to_owned(),
        "two" => "second".to_owned(),
        "three" => "third".to_owned(),
        "five" => "fifth".to_owned(),
        "eight" => "eighth".to_owned(),
        "nine" => "ninth".to_owned(),
        "twelve" => "twelfth".to_owned(),
        _ => match last.strip_suffix('y') {
            Some(stem) => format!("{stem}ieth"),
            None => format!("{last}th"),
        },
    };
    format!("{head}{last}")
}

/// Four digits as a year: "nineteen oh-five", "two thousand and five", "twenty ten".
pub fn year(text: &str) -> String {
    let Ok(n) = text.parse::<u128>() else {
        return digits(text);
    };
    let (century, rest) = (n / 100, n % 100);
    if century == 0 || (century.is_multiple_of(10) && rest < 10) || century >= 100 {
        return cardinal(n);
    }
    let century = cardinal(century);
    match rest {
        0 => format!("{century} hundred"),
        1..10 => format!("{century} oh-{}", cardinal(rest)),
        _ => format!("{century} {}", cardinal(rest)),
    }
}

/// "three point one four"; zeros at the end of the fraction are not said.
pub fn decimal(text: &str) -> String {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole = if whole.is_empty() { "0" } else { whole };
    let words = cardinal_of(whole);
    match fraction.trim_end_matches('0') {
        "" => words,
        fraction => format!("{words} point {}", digits(fraction)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_words() {
        for (n, words) in [
            (0, "zero"),
            (21, "twenty-one"),
            (100, "one hundred"),
            (1_001, "one thousand and one"),
            (1_234, "one thousand, two hundred and thirty-four"),
            (2_000_000, "two million"),
            (1_000_017, "one million and seventeen"),
            (
                12_345_678,
                "twelve million, three hundred and forty-five thousand, six hundred and seventy-eight",
            ),
        ] {
            assert_eq!(cardinal(n), words);
        }
        for (n, words) in [
            (1, "first"),
            (12, "twelfth"),
            (20, "twentieth"),
            (23, "twenty-third"),
            (101, "one hundred and first"),
            (1000, "one thousandth"),
        ] {
            assert_eq!(ordinal(n), words);
        }
        for (text, words) in [
            ("1905", "nineteen oh-five"),
            ("2005", "two thousand and five"),
            ("2010", "twenty ten"),
            ("1900", "nineteen hundred"),
            ("0042", "forty-two"),
        ] {
            assert_eq!(year(text), words);
        }
        assert_eq!(decimal("3.140"), "three point one four");
        assert_eq!(decimal("2.0"), "two");
    }

    #[test]
    fn a_number_without_a_name_is_read_by_its_digits() {
        let long = "9".repeat(60);
        assert_eq!(cardinal_of(&long), ["nine"; 60].join(" "));
        assert_eq!(cardinal(u128::MAX).split(' ').count(), 39);
    }
}
