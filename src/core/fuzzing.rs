//! The type of a fuzz target, and how tests run a seeded sample of one. A target is declared beside the parser it
//! exercises; the root package's `src/fuzzing.rs` collects all of them.

pub mod mutation;
pub mod rounds;

/// A fuzz target: a parser and sample inputs.
pub struct Target {
    /// The target's name, which is also that of its file in `fuzz/fuzz_targets`.
    pub name: &'static str,
    /// Runs the parser on arbitrary input. It fails by panicking.
    pub run: fn(&[u8]),
    /// Valid inputs, as well-behaved peers send them: the seed corpus.
    pub samples: fn() -> Vec<Vec<u8>>,
    /// Whether the input is text, so that mutating lines, words and numbers is worthwhile.
    pub is_text: bool,
}

/// A target whose input is text.
pub const fn text(name: &'static str, run: fn(&[u8]), samples: fn() -> Vec<Vec<u8>>) -> Target {
    Target {
        name,
        run,
        samples,
        is_text: true,
    }
}

/// A target whose input is binary.
pub const fn binary(name: &'static str, run: fn(&[u8]), samples: fn() -> Vec<Vec<u8>>) -> Target {
    Target {
        is_text: false,
        ..text(name, run, samples)
    }
}
