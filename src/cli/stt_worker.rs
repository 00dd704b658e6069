//! `vivavoce stt-worker`: the inside of a recogniser process. A server starts it by itself; see
//! `providers::local::pocketsphinx`.

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
    // What went wrong was told to the server in the protocol, or the server is gone; nobody reads standard error.
    worker::run(&arguments.model).map_err(|_| Failure::work(""))
}
