//! `vivavoce openapi`: prints the API description, for client generators.

use std::io::{Write, stdout};

use clap::Args;

use crate::actors::session::socket_schema;
use crate::http::openapi;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Print the JSON Schema of the socket's messages instead
    #[arg(long)]
    socket: bool,
}

pub(super) fn run(arguments: &Arguments) {
    let document = if arguments.socket {
        socket_schema()
    } else {
        openapi::document()
    };
    // A closed pipe is not an error.
    let _ = stdout().write_all(openapi::text(&document).as_bytes());
}
