//! Which numbers may be called: those that the settings allow, and never emergency services, which would not learn the
//! caller's location.

use vivavoce_config::Sip;
use vivavoce_core::phone::PhoneNumber;

/// Numbers by which telephones recognise an emergency call wherever they are (3GPP TS 22.101, section 10.1).
const EMERGENCY: [&str; 8] = ["112", "911", "000", "08", "110", "118", "119", "999"];

/// The numbers of emergency services by country. With 112 or 911 alone, most mobile networks reach them everywhere.
const COUNTRIES: [(&str, &[&str]); 33] = [
    ("AT", &["112", "122", "133", "140", "144"]),
    ("AU", &["000", "106", "112"]),
    ("BE", &["100", "101", "112"]),
    ("BR", &["190", "192", "193", "911", "112"]),
    ("CA", &["911", "112"]),
    ("CH", &["112", "117", "118", "144", "1414"]),
    ("CN", &["110", "119", "120", "122", "112"]),
    ("CZ", &["112", "150", "155", "158"]),
    ("DE", &["110", "112"]),
    ("DK", &["112"]),
    ("ES", &["061", "062", "080", "091", "092", "112"]),
    ("FI", &["112"]),
    ("FR", &["112", "114", "15", "17", "18", "191", "196"]),
    ("GB", &["112", "18000", "999"]),
    ("GR", &["100", "108", "112", "166", "199"]),
    ("IE", &["112", "999"]),
    ("IL", &["100", "101", "102", "112"]),
    ("IN", &["100", "101", "102", "108", "112"]),
    ("IT", &["112", "113", "115", "118"]),
    ("JP", &["110", "118", "119"]),
    ("KR", &["112", "119"]),
    ("LU", &["112", "113"]),
    ("MX", &["911"]),
    ("NL", &["112"]),
    ("NO", &["110", "112", "113"]),
    ("NZ", &["111", "112", "911"]),
    ("PL", &["112", "997", "998", "999"]),
    ("PT", &["112"]),
    ("SE", &["112"]),
    ("SG", &["112", "995", "999"]),
    ("TR", &["110", "112", "155", "156"]),
    ("US", &["911", "112"]),
    ("ZA", &["10111", "10177", "112"]),
];

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
    /// Numbers of emergency services.
    emergency: Vec<String>,
    /// Extensions of a PBX, in which `x` is any digit.
    extensions: Vec<String>,
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
            emergency: EMERGENCY.map(str::to_owned).to_vec(),
            extensions: Vec::new(),
        }
    }

    /// Reads the settings. The problems name the setting.
    pub fn read(settings: &Sip) -> Result<Self, Vec<String>> {
        let prefixes = settings.allowed_destinations.0.iter().map(String::as_str);
        let mut read = Self::new(prefixes);
        let mut problems = Vec::new();
        if !settings.emergency_numbers.0.is_empty() {
            read.emergency.clear();
        }
        for text in &settings.emergency_numbers.0 {
            let country = COUNTRIES
                .iter()
                .find(|(code, _)| code.eq_ignore_ascii_case(text));
            match (country, PhoneNumber::parse(text)) {
                (Some((_, numbers)), _) => {
                    read.emergency
                        .extend(numbers.iter().map(|number| (*number).to_owned()));
                }
                (None, Ok(number)) => read.emergency.push(number.as_str().to_owned()),
                (None, Err(_)) => {
                    let known: Vec<_> = COUNTRIES.iter().map(|(code, _)| *code).collect();
                    problems.push(format!(
                        "sip.emergency_numbers: {text:?} is neither a number nor one of the countries {}",
                        known.join(", ")
                    ));
                }
            }
        }
        for text in &settings.extensions.0 {
            let pattern = text.to_ascii_lowercase();
            let digits = pattern.bytes().all(|c| c.is_ascii_digit() || c == b'x');
            if digits && (1..=8).contains(&pattern.len()) {
                read.extensions.push(pattern);
            } else {
                problems.push(format!(
                    "sip.extensions: {text:?} is not 1 to 8 digits, with x for any digit"
                ));
            }
        }
        if problems.is_empty() {
            Ok(read)
        } else {
            Err(problems)
        }
    }

    /// Whether this number may be called.
    pub fn check(&self, number: &PhoneNumber) -> Result<(), NotAllowed> {
        let number = number.as_str();
        if self
            .extensions
            .iter()
            .any(|pattern| is_like(number, pattern))
        {
            return Ok(());
        }
        // Feature codes around a number do not change who answers.
        let plain = number.trim_matches(['*', '#']);
        if self.emergency.iter().any(|emergency| emergency == plain) {
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

/// Whether a number is one of an extension's pattern.
fn is_like(number: &str, pattern: &str) -> bool {
    let fits =
        |(digit, wanted): (u8, u8)| digit.is_ascii_digit() && (wanted == b'x' || digit == wanted);
    number.len() == pattern.len() && number.bytes().zip(pattern.bytes()).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_config::Config;

    fn read(settings: &[(&str, &str)]) -> Result<Destinations, Vec<String>> {
        let environment = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let config = Config::from_sources(&[], &environment.collect(), None).unwrap();
        Destinations::read(&config.settings.sip)
    }

    #[test]
    fn emergency_numbers_are_those_of_the_country_and_extensions_are_none() {
        let check = |settings: &[(&str, &str)], number: &str| {
            let destinations = read(settings).unwrap();
            destinations.check(&PhoneNumber::parse(number).unwrap())
        };
        assert_eq!(check(&[], "110"), Err(NotAllowed::Emergency));
        let german = [("SIP_EMERGENCY_NUMBERS", "de, 115")];
        for number in ["110", "112", "115", "#112"] {
            assert_eq!(
                check(&german, number),
                Err(NotAllowed::Emergency),
                "{number}"
            );
        }
        assert_eq!(check(&german, "999"), Ok(()));
        let office = [
            ("SIP_EXTENSIONS", "110,2xx"),
            ("SIP_ALLOWED_DESTINATIONS", "+49"),
        ];
        for (number, allowed) in [
            ("110", Ok(())),
            ("299", Ok(())),
            ("2999", Err(NotAllowed::Destination)),
            ("*110", Err(NotAllowed::Emergency)),
            ("112", Err(NotAllowed::Emergency)),
        ] {
            assert_eq!(check(&office, number), allowed, "{number}");
        }
        for wrong in [("SIP_EMERGENCY_NUMBERS", "XX"), ("SIP_EXTENSIONS", "+49")] {
            assert!(read(&[wrong]).unwrap_err()[0].contains("sip."), "{wrong:?}");
        }
    }

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
