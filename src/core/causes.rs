//! The text of an error with all that has caused it.

use std::error::Error;
use std::fmt::Write;

/// An error with its chain of causes: the outermost message alone says only that something failed.
pub fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        // Writing into a string does not fail.
        let _ = write!(text, ": {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the door is shut")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn an_error_is_told_with_what_has_caused_it() {
        let inner = std::io::Error::other("the key is lost");
        assert_eq!(causes(&Outer(inner)), "the door is shut: the key is lost");
    }
}
