//! Parses a query as Deepgram does: keys may be repeated, and an invalid value is refused with a message.

use std::str::FromStr;

/// The pairs of a query.
pub(super) struct Query(Vec<(String, String)>);

/// What is wrong with a query, in words for its sender.
pub(super) type Problem = String;

impl Query {
    /// Of a request.
    pub(super) fn of(text: &str) -> Self {
        let pairs = form_urlencoded::parse(text.as_bytes());
        Self(pairs.into_owned().collect())
    }

    /// The first value of a key.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        let pair = self.0.iter().find(|(name, _)| name == key);
        pair.map(|(_, value)| value.as_str())
    }

    /// Every value of a key.
    pub(super) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let pairs = self.0.iter().filter(move |(name, _)| name == key);
        pairs.map(|(_, value)| value.as_str())
    }

    /// Every key.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Whether a key has a value.
    pub(super) fn has(&self, key: &str) -> bool {
        self.text(key).is_some()
    }

    /// `true` or `false`, else the default.
    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool, Problem> {
        match self.text(key) {
            None => Ok(default),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(other) => Err(format!(
                "Invalid value for {key}: {other}; expected true or false."
            )),
        }
    }

    /// A number between two others.
    pub(super) fn number<T>(&self, key: &str, least: T, most: T) -> Result<Option<T>, Problem>
    where
        T: Copy + FromStr + PartialOrd + std::fmt::Display,
    {
        let Some(text) = self.text(key) else {
            return Ok(None);
        };
        let number = text.parse().ok();
        match number.filter(|number| (&least..=&most).contains(&number)) {
            Some(number) => Ok(Some(number)),
            None => Err(format!(
                "Invalid value for {key}: {text}; expected {least} to {most}."
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_or_refused() {
        let query = Query::of("a=true&b=yes&n=7&k=one+word&k=two%20words&x=1e9");
        assert_eq!(query.flag("a", false), Ok(true));
        assert_eq!(query.flag("c", true), Ok(true));
        assert!(query.flag("b", false).is_err());
        assert_eq!(query.number("n", 1, 7), Ok(Some(7)));
        assert_eq!(query.number("m", 1, 7), Ok(None));
        assert!(query.number("n", 1, 6).is_err());
        assert!(query.number("x", 0.0, 2.0).is_err());
        assert_eq!(
            query.all("k").collect::<Vec<_>>(),
            ["one word", "two words"]
        );
    }
}
