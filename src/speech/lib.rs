//! Neural speech on a CPU: recognisers, voices and a model of the end of turns, as functions from samples to words and
//! back. A model is a folder of files that `vivavoce models` has fetched and verified; still no byte is trusted, and a
//! file that is not what it should be is an error.
//!
//! Nothing here knows a session or the network. Inference is native code that takes whole milliseconds at a time, so it
//! happens in worker processes ([`worker`]): each loads one model, uses one core while it works, and takes down nobody
//! when it crashes.
//!
//! - [`hibari`]: a voice for English; [`piper`]: voices for other languages.
//! - [`recogniser`]: what recognisers are asked and answer; [`whisper`] and [`moonshine`] are two.
//! - [`mel`]: spectrograms as networks of the Whisper family take them.
//! - [`onnx`]: networks in the ONNX format, run by ONNX Runtime, which is loaded at run time.
//! - [`smart_turn`]: whether a speaker has finished.
//! - [`worker`]: what the server and a worker process say to each other.

pub mod hibari;
pub mod mel;
pub mod moonshine;
pub mod onnx;
pub mod piper;
pub mod recogniser;
pub mod smart_turn;
#[cfg(test)]
mod testing;
pub mod tokens;
pub mod whisper;
pub mod worker;
