//! The `vivavoce` program: reads the command line and hands over to one file per subcommand.

use std::process::ExitCode;

fn main() -> ExitCode {
    vivavoce::cli::run()
}
