//! JSON from outside into our types. A failure names the place where the text does not fit.

use serde::de::DeserializeOwned;

/// Why a text is not what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct Misfit {
    /// The field, with dots and indices; `body` where the text itself is broken.
    pub place: String,
    /// What is wrong there.
    pub problem: String,
}

/// The value of a text.
pub fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, Misfit> {
    // Following the path costs more than parsing, so it is followed only when there is something to name.
    serde_json::from_slice(text).map_err(|error| misfit::<T>(text, &error))
}

fn misfit<T: DeserializeOwned>(text: &[u8], error: &serde_json::Error) -> Misfit {
    let mut json = serde_json::Deserializer::from_slice(text);
    let path = match serde_path_to_error::deserialize::<_, T>(&mut json) {
        Ok(_) => String::new(),
        Err(error) => error.path().to_string(),
    };
    // Where the text itself is broken there is no path to name.
    let place = if matches!(path.as_str(), "" | "." | "?") {
        "body".to_owned()
    } else {
        path
    };
    Misfit {
        place,
        problem: error.to_string(),
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
            ("{", "body"),
            ("", "body"),
            (r#"{"list": []} x"#, "body"),
        ] {
            assert_eq!(
                parse::<Outer>(text.as_bytes()).unwrap_err().place,
                place,
                "{text}"
            );
        }
    }
}
