//! Ids of what is told outside, by which nobody is let in.

/// So many random letters and digits.
pub(crate) fn alphanumeric(length: usize) -> String {
    std::iter::repeat_with(fastrand::alphanumeric)
        .take(length)
        .collect()
}
