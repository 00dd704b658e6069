//! The settings file: YAML, flattened into dotted keys with the lines they are on.

use std::path::{Path, PathBuf};

use marked_yaml::types::{Marker, Node};
use marked_yaml::{LoadError, LoaderOptions, parse_yaml_with_options};

/// The maximum size of a settings file.
const MAX_BYTES: u64 = 1 << 20;

/// Why a settings file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum YamlError {
    /// The file cannot be opened or read.
    #[error("{file}: {source}", file = file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A syntax error.
    #[error("{file}:{line}: {message}", file = file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The problem.
        message: String,
    },
}

/// A value of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlValue {
    /// The dotted key.
    pub key: String,
    /// The value as text; sequences are joined with commas.
    pub text: String,
    /// The line, from 1.
    pub line: usize,
}

/// Parses a settings file.
pub fn read(file: &Path) -> Result<Vec<YamlValue>, YamlError> {
    let failed = |source| YamlError::Read {
        file: file.to_owned(),
        source,
    };
    let length = std::fs::metadata(file).map_err(failed)?.len();
    if length > MAX_BYTES {
        return Err(failed(std::io::Error::other(format!(
            "{length} bytes are too many for a settings file"
        ))));
    }
    parse(file, &std::fs::read_to_string(file).map_err(failed)?)
}

pub(super) fn parse(file: &Path, text: &str) -> Result<Vec<YamlValue>, YamlError> {
    let syntax = |line, message| YamlError::Syntax {
        file: file.to_owned(),
        line,
        message,
    };
    let without_comments = text.lines().any(|line| {
        let line = line.trim_start();
        !line.is_empty() && !line.starts_with('#') && line != "---"
    });
    if !without_comments {
        return Ok(Vec::new());
    }
    let options = LoaderOptions::default().error_on_duplicate_keys(true);
    let node = parse_yaml_with_options(0, text, options)
        .map_err(|error| syntax(line_of(&error), error.to_string()))?;
    let mut values = Vec::new();
    flatten(&node, String::new(), &mut values).map_err(|(line, message)| syntax(line, message))?;
    Ok(values)
}

fn line_of(error: &LoadError) -> usize {
    use LoadError as E;
    match error {
        E::TopLevelMustBeMapping(marker)
        | E::TopLevelMustBeSequence(marker)
        | E::UnexpectedAnchor(marker)
        | E::MappingKeyMustBeScalar(marker)
        | E::UnexpectedTag(marker)
        | E::ScanError(marker, _) => marker.line(),
        E::DuplicateKey(inner) => inner.key.span().start().map_or(1, Marker::line),
    }
}

fn flatten(node: &Node, key: String, values: &mut Vec<YamlValue>) -> Result<(), (usize, String)> {
    let line = node.span().start().map_or(1, Marker::line);
    match node {
        Node::Mapping(mapping) => mapping.iter().try_for_each(|(name, value)| {
            let key = if key.is_empty() {
                name.as_str().to_owned()
            } else {
                format!("{key}.{}", name.as_str())
            };
            flatten(value, key, values)
        }),
        Node::Scalar(scalar) => {
            // `key:` and `key: null` count as absent, as everywhere in the protocol.
            let text = if scalar.may_coerce() && matches!(scalar.as_str(), "null" | "~") {
                ""
            } else {
                scalar.as_str()
            };
            values.push(YamlValue {
                key,
                text: text.to_owned(),
                line,
            });
            Ok(())
        }
        Node::Sequence(items) => {
            let items = items.iter().map(|item| match item.as_scalar() {
                Some(scalar) if !scalar.as_str().contains(',') => Ok(scalar.as_str()),
                _ => Err((
                    line,
                    format!("{key}: a list may hold plain texts without commas only"),
                )),
            });
            let text = items.collect::<Result<Vec<_>, _>>()?.join(",");
            values.push(YamlValue { key, text, line });
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Result<Vec<YamlValue>, String> {
        parse(Path::new("vivavoce.yaml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn keys_are_flattened_and_remember_their_lines() {
        let values = parsed(
            "# mine\nserver:\n  port: 4000\nrtc:\n  advertised_addresses: [a, b]\ndata_dir: null\n",
        );
        let values = values.unwrap();
        let triples: Vec<_> = values
            .iter()
            .map(|v| (v.key.as_str(), v.text.as_str(), v.line))
            .collect();
        let expected = [
            ("server.port", "4000", 3),
            ("rtc.advertised_addresses", "a,b", 5),
            ("data_dir", "", 6),
        ];
        assert_eq!(triples, expected);
    }

    #[test]
    fn a_file_of_comments_is_an_empty_file() {
        assert_eq!(parsed("# nothing\n\n---\n"), Ok(Vec::new()));
        assert_eq!(parsed(""), Ok(Vec::new()));
    }

    #[test]
    fn a_broken_file_names_its_line() {
        assert!(
            parsed("server:\n  port: [1,\n")
                .unwrap_err()
                .starts_with("vivavoce.yaml:")
        );
        assert!(
            parsed("a: 1\na: 2\n")
                .unwrap_err()
                .contains("vivavoce.yaml:2")
        );
        assert!(parsed("- 1\n- 2\n").is_err());
    }

    proptest! {
        #[test]
        fn no_text_ends_the_process(text in "[a-z:\\[\\]{},&*!|>'\"%@`# \n-]{0,80}") {
            let _ = parsed(&text);
        }
    }
}
