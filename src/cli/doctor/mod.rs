//! `vivavoce doctor`: looks at everything that a server with these settings needs from its machine and from others, and
//! says what to do about what is wrong. Can be used while the server is running.

mod certificate;
mod findings;
mod machine;
mod others;
mod sockets;
mod time;

use std::io::{Write, stdout};
use std::time::Duration;

use clap::Args;

use self::findings::{Finding, Report};
use super::{Failure, runtime};
use crate::config::Config;

/// For each question to somebody else.
const PATIENCE: Duration = Duration::from_secs(8);

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce doctor                                  all that can be seen from here\n  \
    vivavoce doctor --stun stun.example.com:3478     also whether UDP leaves, and from which address\n  \
    vivavoce doctor --ntp ntp.example.com            also how far the clock is off\n  \
    vivavoce doctor --offline                        this machine alone\n\n\
    Nobody is asked whom the settings do not name, or you. Each vendor with a key is asked for its voices, which costs \
    nothing; the store of recordings is given one small object, which is removed again.\n\n\
    Exit status: 0 nothing is wrong (warnings may be there), 1 something is, 2 wrong use or settings.")]
pub(super) struct Arguments {
    /// Print one JSON object per finding
    #[arg(long)]
    json: bool,
    /// Ask nobody outside of this machine
    #[arg(long, conflicts_with_all = ["stun", "ntp"])]
    offline: bool,
    /// A STUN server, asked which address our UDP comes from
    #[arg(long, value_name = "HOST:PORT")]
    stun: Option<String>,
    /// A time server, asked what time it is
    #[arg(long, value_name = "HOST")]
    ntp: Option<String>,
}

pub(super) fn run(config: &Config, arguments: &Arguments) -> Result<(), Failure> {
    let settings = &config.settings;
    let mut report = Report::new(arguments.json);
    let mut out = stdout().lock();
    let mut tell = |findings: Vec<Finding>| {
        for finding in findings {
            // A closed pipe is not an error: what was found still gives the exit status.
            let _ = report.add(&mut out, &finding);
        }
    };
    tell(machine::engines(settings));
    tell(machine::folders(settings));
    tell(machine::named_files(settings));
    tell(machine::open_files(settings));
    tell(certificate::look(settings));
    tell(sockets::ports(settings));
    tell(sockets::advertised(settings));
    tell(vec![time::synchronised()]);
    if !arguments.offline {
        let runtime = runtime()?;
        if let Some(server) = &arguments.ntp {
            tell(vec![runtime.block_on(time::compare(server))]);
        }
        if let Some(server) = &arguments.stun {
            tell(runtime.block_on(sockets::stun(server, settings)));
        }
        tell(runtime.block_on(others::names(settings)));
        tell(runtime.block_on(others::vendors(settings)));
        tell(runtime.block_on(others::store(settings)));
        tell(runtime.block_on(others::redis(settings)));
    }
    let wrong = report.finish(&mut out);
    let _ = out.flush();
    match wrong {
        0 => Ok(()),
        1 => Err(Failure::work("one thing is wrong")),
        wrong => Err(Failure::work(format!("{wrong} things are wrong"))),
    }
}
