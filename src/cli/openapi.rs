//! `vivavoce openapi`: the description of the interface, for generators of clients.

use std::io::{Write, stdout};

use clap::Args;

use crate::actors::session::socket_schema;
use crate::http::openapi;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Prints the JSON Schema of the socket's messages instead
    #[arg(long)]
    socket: bool,
}

pub(super) fn run(arguments: &Arguments) {
    let document = if arguments.socket {
        socket_schema()
    } else {
        openapi::document()
    };
    // Whoever reads may have seen enough.
    let _ = stdout().write_all(openapi::text(&document).as_bytes());
}
