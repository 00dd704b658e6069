//! What fuzz targets are made of, and how a seeded sample of one is run by tests. A target is declared beside the parser that
//! it tries; `src/fuzzing.rs` at the top collects all of them.

pub mod mutation;
pub mod rounds;

/// A parser, and what it is given in earnest.
pub struct Target {
    /// Its name, and that of its file in `fuzz/fuzz_targets`.
    pub name: &'static str,
    /// Takes anything, and may only return.
    pub run: fn(&[u8]),
    /// What well-behaved peers send.
    pub samples: fn() -> Vec<Vec<u8>>,
    /// Whether lines and numbers are worth changing as such.
    pub is_text: bool,
}

/// A target for text.
pub const fn text(name: &'static str, run: fn(&[u8]), samples: fn() -> Vec<Vec<u8>>) -> Target {
    Target {
        name,
        run,
        samples,
        is_text: true,
    }
}

/// A target for bytes.
pub const fn binary(name: &'static str, run: fn(&[u8]), samples: fn() -> Vec<Vec<u8>>) -> Target {
    Target {
        is_text: false,
        ..text(name, run, samples)
    }
}
