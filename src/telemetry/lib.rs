//! What the server says about itself while it runs: counts in [`metrics`], log lines on standard error, and [`traces`] for a
//! collector. Our own crate
//! logs at the level that is set; all others stay at `warn`, because HTTP and WebSocket crates write headers and
//! bodies when they are allowed to say more.

pub mod metrics;
pub mod traces;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use traces::{TraceError, Traces};
use vivavoce_config::{LogFormat, LogLevel};
use vivavoce_core::outgoing::Authorities;

/// Starts logging for the whole process, and traces where a collector is named, about which `authorities` are believed. A second call changes nothing.
pub fn start(
    level: LogLevel,
    format: LogFormat,
    collector: Option<&str>,
    authorities: &Authorities,
) -> Result<Option<Traces>, TraceError> {
    let ours = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let filter = Targets::new()
        .with_default(LevelFilter::WARN.min(ours))
        // It reports every malformed request as an error: whoever can connect could fill the log.
        .with_target("actix_http", LevelFilter::OFF)
        // So does it, of malformed SIP; and its messages hold numbers.
        .with_target("rsipstack", LevelFilter::OFF)
        // The binary and every crate of the workspace: a target is taken for all that begin with it.
        .with_target("vivavoce", ours);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let spans = collector.map(|endpoint| traces::layer(endpoint, authorities));
    let (spans, traces) = spans.transpose()?.unzip();
    // Tests in one process may start it more than once.
    let _ = tracing_subscriber::registry()
        .with(spans)
        .with(lines.with_filter(filter))
        .try_init();
    Ok(traces)
}
