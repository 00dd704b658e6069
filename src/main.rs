//! The `vivavoce` program.

use std::path::Path;
use std::process::ExitCode;

use vivavoce::providers::local::pocketsphinx::worker;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match (arguments.next(), arguments.next()) {
        (Some(command), Some(model)) if command == worker::SUBCOMMAND => {
            match worker::run(Path::new(&model)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
        _ => ExitCode::FAILURE,
    }
}
