//! The `vivavoce` program: reads the command line and hands over to one file per subcommand.

use std::process::ExitCode;

/// Of what the program allocates itself; what libraries in C allocate is the C library's. Each piece of sound is a few
/// allocations that live for as long as it is on its way (benches/RESULTS.md, "Sockets without the HTTP server, and
/// an allocator").
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    vivavoce::cli::run()
}
