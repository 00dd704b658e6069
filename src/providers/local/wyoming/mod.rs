//! Wyoming.
