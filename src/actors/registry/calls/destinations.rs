//! Which numbers may be called: those that the settings allow, and never emergency services, which would not learn the
//! caller's location.

use vivavoce_core::phone::PhoneNumber;

/// Numbers by which telephones recognise an emergency call wherever they are (3GPP TS 22.101, section 10.1).
const EMERGENCY: [&str; 8] = ["112", "911", "000", "08", "110", "118", "119", "999"];

/// Why a number may not be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAllowed {
    /// It is one of an emergency service.
    #[error("emergency numbers are not called")]
    Emergency,
    /// The settings do not allow it.
    #[error("sip.allowed_destinations does not allow this number")]
    Destination,
}

/// What may be called.
#[derive(Debug, Clone, Default)]
pub struct Destinations {
    /// How numbers begin; all where there are none.
    prefixes: Vec<String>,
}

impl Destinations {
    /// Those that begin like one of these; all where there are none. Visual separators do not count.
    pub fn new<'a>(prefixes: impl IntoIterator<Item = &'a str>) -> Self {
        let dialled = |prefix: &str| -> String {
            let separator = |c: &char| matches!(c, ' ' | '-' | '.' | '(' | ')');
            prefix.chars().filter(|c| !separator(c)).collect()
        };
        let prefixes = prefixes.into_iter().map(dialled);
        Self {
            prefixes: prefixes.filter(|prefix| !prefix.is_empty()).collect(),
        }
    }

    /// Whether this number may be called.
    pub fn check(&self, number: &PhoneNumber) -> Result<(), NotAllowed> {
        let number = number.as_str();
        // Feature codes around a number do not change who answers.
        let plain = number.trim_matches(['*', '#']);
        if EMERGENCY.contains(&plain) {
            return Err(NotAllowed::Emergency);
        }
        let allows = |prefix: &String| number.starts_with(prefix.as_str());
        if self.prefixes.is_empty() || self.prefixes.iter().any(allows) {
            Ok(())
        } else {
            Err(NotAllowed::Destination)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(prefixes: &[&str], number: &str) -> Result<(), NotAllowed> {
        let number = PhoneNumber::parse(number).unwrap();
        Destinations::new(prefixes.iter().copied()).check(&number)
    }

    #[test]
    fn emergency_numbers_are_never_called() {
        for number in [
            "112",
            "911",
            "000",
            "08",
            "110",
            "118",
            "119",
            "999",
            "tel:1-1-2",
            "112#",
            "*#911",
        ] {
            assert_eq!(check(&[], number), Err(NotAllowed::Emergency), "{number}");
            assert_eq!(
                check(&["1", "9", "0"], number),
                Err(NotAllowed::Emergency),
                "{number}"
            );
        }
        for number in ["1121", "0112345678", "+1911555", "100", "080"] {
            assert_eq!(check(&[], number), Ok(()), "{number}");
        }
    }

    #[test]
    fn what_is_allowed_begins_as_the_settings_say() {
        let allowed = ["+49 (30)", "1"];
        for (number, allows) in [
            ("+49 30 1234567", true),
            ("+49 40 1234567", false),
            ("1000", true),
            ("2000", false),
            ("0301234567", false),
        ] {
            assert_eq!(check(&allowed, number).is_ok(), allows, "{number}");
        }
        assert_eq!(check(&[" "], "2000"), Ok(()));
    }
}
