//! Neural speech on a CPU: what a model hears, says or thinks of a pause, as functions from samples to words and back.
//!
//! Nothing here does I/O, knows a session or reads a clock. A model is given as the bytes of its files, which
//! `vivavoce-models` has fetched and verified; still no byte is trusted: a file that is not what it should be is an
//! error. Each model is used from one thread at a time and occupies one core while it works.
//!
//! - [`graph`]: a neural network as a graph of operators (ONNX), run by rten.

pub mod graph;
