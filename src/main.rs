//! The `vivavoce` program.
fn main() {}
