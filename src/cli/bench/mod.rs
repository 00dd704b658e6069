//! `vivavoce bench`: measurements of a whole server under load. One file for each question: what is asked
//! ([`sessions`]), who asks ([`load`]), who answers ([`under_test`], [`echo`]), and what came out ([`outcome`]).

mod echo;
mod histogram;
mod load;
mod outcome;
mod sessions;
mod under_test;

use clap::{Args, Subcommand};

use super::{ConfigArgs, Failure};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  vivavoce bench sessions\n  vivavoce bench sessions --help")]
pub(super) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Measures how many sessions a core carries, what they cost and how late their sound is
    Sessions(sessions::Arguments),
    /// Sends frames back (started by the measurement itself)
    #[command(hide = true)]
    Echo,
}

pub(super) fn run(config: &ConfigArgs, arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.what {
        What::Sessions(arguments) => sessions::run(config, arguments),
        What::Echo => echo::run().map_err(Failure::work),
    }
}
