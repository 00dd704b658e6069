//! Telephone numbers as clients write them and as they are dialled (protocol, section 4). Which numbers may be dialled
//! is the telephone side's decision.

use std::fmt;

/// What [`PhoneNumber::parse`] takes, as a regular expression.
pub const PATTERN: &str = concat!(
    r"^\s*([Tt][Ee][Ll]:)?[ .()-]*",
    r"(\+[ .()-]*[1-9]([ .()-]*[0-9]){6,14}|[0-9]([ .()-]*[0-9]){0,14}|[0-9*#]([ .()-]*[0-9*#]){0,5})",
    r"[ .()-]*\s*$"
);

/// A number in the form that is dialled.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PhoneNumber(String);

/// What was written is no telephone number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is no telephone number: + and 7 to 15 digits, or 1 to 15 digits, or up to 6 of 0-9 * #")]
pub struct NoPhoneNumber;

impl PhoneNumber {
    /// International (E.164: `+` and 7–15 digits, the first not 0), national or an extension (1–15 digits), or a feature
    /// code (up to 6 of digits, `*` and `#`). A `tel:` before it (RFC 3966) and visual separators do not count.
    pub fn parse(text: &str) -> Result<Self, NoPhoneNumber> {
        let text = text.trim();
        let text = match text.get(..4) {
            Some(scheme) if scheme.eq_ignore_ascii_case("tel:") => &text[4..],
            _ => text,
        };
        let number: String = text
            .chars()
            .filter(|c| !matches!(c, ' ' | '-' | '.' | '(' | ')'))
            .collect();
        let digits = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
        let code = |text: &str| text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'*' | b'#'));
        let valid = match number.strip_prefix('+') {
            Some(rest) => (7..=15).contains(&rest.len()) && digits(rest) && !rest.starts_with('0'),
            None => {
                (1..=15).contains(&number.len()) && digits(&number)
                    || (1..=6).contains(&number.len()) && code(&number)
            }
        };
        valid.then_some(Self(number)).ok_or(NoPhoneNumber)
    }

    /// As it is dialled.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Numbers say who speaks with whom: only their last two digits are shown.
impl fmt::Debug for PhoneNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[self.0.len().saturating_sub(2)..];
        write!(f, "PhoneNumber(…{shown})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_normalised_and_everything_else_is_none() {
        for (written, dialled) in [
            ("+1 (212) 555-0100", "+12125550100"),
            ("tel:+44.20.7946.0000", "+442079460000"),
            ("TEL:1000", "1000"),
            ("030 123456", "030123456"),
            ("*97", "*97"),
            ("#31#", "#31#"),
            ("7", "7"),
            ("123456789012345", "123456789012345"),
        ] {
            assert_eq!(
                PhoneNumber::parse(written).map(|n| n.0).as_deref(),
                Ok(dialled),
                "{written}"
            );
        }
        for written in [
            "",
            " ",
            "tel:",
            "+",
            "+123456",
            "+0123456789",
            "+1234567890123456",
            "1234567890123456",
            "*123456",
            "12a4",
            "+1212555*100",
            "++12125550100",
            "sip:1000@example.org",
            "１２３",
            "tél:1",
        ] {
            assert_eq!(PhoneNumber::parse(written), Err(NoPhoneNumber), "{written}");
        }
    }

    #[test]
    fn a_number_in_a_log_line_tells_little() {
        let number = PhoneNumber::parse("+12125550100").unwrap();
        assert_eq!(format!("{number:?}"), "PhoneNumber(…00)");
    }

    proptest! {
        #[test]
        fn the_pattern_takes_what_parse_takes(text in r"( |tel:|TEL:)?[-0-9+*#. ()x]{0,20}") {
            let schema = serde_json::json!({"pattern": PATTERN});
            let fits = jsonschema::is_valid(&schema, &serde_json::json!(text));
            prop_assert_eq!(fits, PhoneNumber::parse(&text).is_ok(), "{:?}", text);
        }

        #[test]
        fn what_was_normalised_stays_as_it_is(text in "\\PC{0,20}") {
            if let Ok(number) = PhoneNumber::parse(&text) {
                prop_assert_eq!(PhoneNumber::parse(number.as_str()), Ok(number));
            }
        }
    }
}
