//! Deserialising JSON from outside into our types. An error names the field that is wrong and never repeats its
//! value, which may be a credential or what somebody said.

mod fields;

use serde::de::{DeserializeOwned, IgnoredAny};

pub use fields::{Fields, quoted};

/// Why a text does not deserialise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct Misfit {
    /// The path of the field, with dots and indices; `body` where the text is not valid JSON.
    pub place: String,
    /// What is wrong there.
    pub problem: String,
}

/// Deserialises a text that must be an object.
pub fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, Misfit> {
    // serde would also accept an array of the fields in order.
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'[') {
        let problem = "must be an object".to_owned();
        return Err(Misfit {
            place: "body".to_owned(),
            problem,
        });
    }
    parse_any(text)
}

/// How many values one text may contain: each costs dozens of bytes of memory, however short it is written.
const MAX_VALUES: usize = 1 << 16;

/// Deserialises a text that may be an array, too.
pub fn parse_any<T: DeserializeOwned>(text: &[u8]) -> Result<T, Misfit> {
    // Counting commas bounds the number of values: one precedes every value but the first of an array or object
    // (nesting is bounded by the parser's recursion limit). Commas inside strings only make the estimate higher.
    let commas = text.split(|byte| *byte == b',').count() - 1;
    if commas >= MAX_VALUES {
        let problem = format!("must have fewer than {MAX_VALUES} commas");
        return Err(Misfit {
            place: "body".to_owned(),
            problem,
        });
    }
    // Tracking the path costs more than parsing, so the text is parsed again with tracking only after an error.
    serde_json::from_slice(text).map_err(|error| misfit::<T>(text, &error))
}

fn misfit<T: DeserializeOwned>(text: &[u8], error: &serde_json::Error) -> Misfit {
    // serde_json reports some type errors as syntax errors, such as a number where the name of a variant is
    // expected.
    let broken = !error.is_data() && serde_json::from_slice::<IgnoredAny>(text).is_err();
    // For invalid JSON the line and column say more than a path, which may contain arbitrary keys.
    let path = (!broken).then(|| path::<T>(text)).flatten();
    if let Some(field) = (!broken).then(|| twice(error)).flatten() {
        return Misfit {
            place: path.map_or_else(|| field.clone(), |path| format!("{path}.{field}")),
            problem: "is given more than once".to_owned(),
        };
    }
    let place = path.unwrap_or_else(|| "body".to_owned());
    let problem = problem(error, broken);
    Misfit { place, problem }
}

fn path<T: DeserializeOwned>(text: &[u8]) -> Option<String> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let error = serde_path_to_error::deserialize::<_, T>(&mut json).err()?;
    let path = error.path().to_string();
    (!matches!(path.as_str(), "" | "." | "?")).then_some(path)
}

/// The name of a field that occurs twice in an object. It is one of our field names, not input.
fn twice(error: &serde_json::Error) -> Option<String> {
    let message = error.to_string();
    let (field, _) = message.strip_prefix("duplicate field `")?.split_once('`')?;
    Some(field.to_owned())
}

/// The problem, without repeating the input, which may be a credential or what somebody said.
fn problem(error: &serde_json::Error, broken: bool) -> String {
    let message = error.to_string();
    let at = format!(" at line {} column {}", error.line(), error.column());
    let message = message.strip_suffix(&at).unwrap_or(&message);
    if broken {
        return format!("{message}{at}");
    }
    match message.rsplit_once("expected ") {
        Some((_, expected)) if error.is_data() => format!("must be {}", in_words(expected)),
        None if message.starts_with("missing field") => message.to_owned(),
        _ => "does not fit".to_owned(),
    }
}

/// serde's "expected …" in the terms of JSON.
fn in_words(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0",
        "f32" | "f64" => "a number",
        "a map" => "an object",
        "a sequence" => "an array",
        _ if expected.starts_with("struct ") => "an object",
        _ => expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    struct Outer {
        #[allow(dead_code)]
        list: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    struct Inner {
        #[allow(dead_code)]
        number: u8,
        #[allow(dead_code)]
        #[serde(default)]
        colour: Option<Colour>,
    }

    #[derive(Debug, Deserialize)]
    enum Colour {
        Red,
    }

    #[test]
    fn a_text_of_many_small_values_is_refused_before_they_are_made() {
        let list = |values: usize| format!("[{}0]", "0,".repeat(values - 1));
        assert_eq!(
            parse_any::<Vec<u8>>(list(MAX_VALUES).as_bytes())
                .unwrap()
                .len(),
            MAX_VALUES
        );
        let refused = parse_any::<Vec<u8>>(list(MAX_VALUES + 1).as_bytes()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "body: must have fewer than 65536 commas"
        );
    }

    #[test]
    fn a_misfit_never_repeats_what_was_sent() {
        for text in [
            r#"{"list": "marker"}"#,
            r#"{"list": ["expected marker"]}"#,
            r#"{"list": [{"number": "marker"}]}"#,
        ] {
            let misfit = parse::<Outer>(text.as_bytes()).unwrap_err().to_string();
            assert!(!misfit.contains("marker"), "{misfit}");
            assert!(misfit.contains("must be a"), "{misfit}");
        }
    }

    #[test]
    fn a_field_that_is_given_twice_is_named() {
        for (text, place) in [
            (r#"{"list": [], "list": []}"#, "list"),
            (
                r#"{"list": [{"number": 1}, {"number": 1, "number": "marker"}]}"#,
                "list[1].number",
            ),
            (
                r#"{"list": [{"number": 1, "colour": null, "colour": null}]}"#,
                "list[0].colour",
            ),
        ] {
            let misfit = parse::<Outer>(text.as_bytes()).unwrap_err().to_string();
            assert_eq!(misfit, format!("{place}: is given more than once"));
        }
        // Unknown fields may be repeated.
        let other = br#"{"list": [], "other": 1, "other": 2}"#;
        assert!(parse::<Outer>(other).is_ok());
    }

    #[test]
    fn a_misfit_names_its_place() {
        for (text, place) in [
            (
                r#"{"list": [{"number": 1}, {"number": "x"}]}"#,
                "list[1].number",
            ),
            (r#"{"list": [{"number": 300}]}"#, "list[0].number"),
            (r#"{"list": 5}"#, "list"),
            (
                r#"{"list": [{"number": 1, "colour": 5}]}"#,
                "list[0].colour",
            ),
            (
                r#"{"list": [{"number": 1, "colour": "blue"}]}"#,
                "list[0].colour",
            ),
            ("{", "body"),
            ("", "body"),
            (r#"{"list": []} x"#, "body"),
            ("[[]]", "body"),
            (r#"{"marker": x}"#, "body"),
            (r#"{"list": [{"number": x}]}"#, "body"),
        ] {
            assert_eq!(
                parse::<Outer>(text.as_bytes()).unwrap_err().place,
                place,
                "{text}"
            );
        }
    }
}
