//! `vivavoce stt-worker`: a recogniser's worker process, started by the server; see `providers::local::pocketsphinx`.

use std::path::PathBuf;

use clap::Args;

use super::Failure;
use crate::providers::local::pocketsphinx::worker;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Folder of the model
    model: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    // Errors have been reported to the server through the protocol, or the server is gone; nobody reads standard error.
    worker::run(&arguments.model).map_err(|_| Failure::work(""))
}
