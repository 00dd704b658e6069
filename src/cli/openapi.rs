//! `vivavoce openapi`: prints the API description, for client generators.

use std::io::{Write, stdout};

use clap::Args;

use crate::actors::session::socket_schema;
use crate::http::{livekit_api_page, openapi};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce openapi > openapi.json\n  \
    vivavoce openapi --socket > socket.json    the messages of /ws")]
pub(super) struct Arguments {
    /// Print the JSON Schema of the socket's messages instead
    #[arg(long)]
    socket: bool,
    /// Print what embedded rooms have of LiveKit's API instead
    #[arg(long, conflicts_with = "socket")]
    livekit: bool,
}

pub(super) fn run(arguments: &Arguments) {
    let text = if arguments.livekit {
        livekit_api_page()
    } else if arguments.socket {
        openapi::text(&socket_schema())
    } else {
        openapi::text(&openapi::document())
    };
    // A closed pipe is not an error.
    let _ = stdout().write_all(text.as_bytes());
}
