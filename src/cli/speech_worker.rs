//! `vivavoce speech-worker`: a process that runs a neural model, started by the server; see `vivavoce-speech`.

use clap::Args;
use vivavoce_speech::worker::{self, Spec};

use super::Failure;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The model, as JSON
    spec: String,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let spec: Spec = serde_json::from_str(&arguments.spec).map_err(Failure::usage)?;
    // Errors have been reported to the server through the protocol, or the server is gone; nobody reads standard error.
    worker::run(&spec).map_err(|_| Failure::work(""))
}
