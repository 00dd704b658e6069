//! What the server reports about itself: [`metrics`], log lines on standard error, and [`traces`] for an OTLP collector.
//!
//! # Privacy
//!
//! What people say is not logged above `debug`. Metric labels contain only fixed sets of values: never a tenant, room,
//! identity or telephone number, so the number of time series is bounded. Of requests, only the route's pattern is
//! recorded. Our own code logs at the configured level. Dependencies log nothing, and at `debug` and below at most
//! warnings: they describe malformed input of anybody, and at lower levels headers and bodies.
//!
//! # Metrics
//!
//! Code reports events by calling a function named after them (`metrics::session_opened()`); names, units and help texts
//! of metrics appear only in [`metrics`]. A call costs a few atomic additions. `GET /metrics` shows them in the
//! OpenMetrics text format. Delays are in seconds and go into buckets from 10 µs to 1 s; the slower operations of
//! providers and requests from 1 ms to 1 min.
//!
//! # For people who look
//!
//! [`log_tail`] keeps the last log lines, [`vendors`] how providers have done lately: both bounded, and for the console.
//!
//! # Traces
//!
//! There is one trace per request and one per session ([`conversation`]), and no span per audio frame. A request's trace
//! continues that of its caller (W3C Trace Context). Spans are exported by a thread of their own through a bounded
//! queue and dropped when it is full; without a collector nothing of this runs.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use vivavoce_telemetry::metrics;
//!
//! let session = metrics::session_opened();
//! metrics::output_delay(Duration::from_micros(350));
//! drop(session);
//! let page = metrics::page().unwrap();
//! assert!(page.contains("vivavoce_sessions_opened_total"));
//! ```

pub mod conversation;
pub mod log_tail;
pub mod metrics;
pub mod traces;
pub mod vendors;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use traces::{TraceError, Traces};
use vivavoce_config::{LogFormat, LogLevel};
use vivavoce_core::tls_roots::Authorities;

/// Starts logging for the whole process, and traces where a collector is named, as those of `service`; `authorities` are
/// believed about it. A second call changes nothing.
pub fn start(
    level: LogLevel,
    format: LogFormat,
    collector: Option<&str>,
    service: &str,
    authorities: &Authorities,
) -> Result<Option<Traces>, TraceError> {
    let ours = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // Parsers of other people's crates warn of every malformed message (HTTP, SIP, STUN, TLS) with its content, so that
    // anybody could fill the log. What matters of it our own code reports.
    let theirs = match level {
        LogLevel::Debug | LogLevel::Trace => LevelFilter::WARN,
        LogLevel::Error | LogLevel::Warn | LogLevel::Info => LevelFilter::OFF,
    };
    let filter = Targets::new()
        .with_default(theirs)
        .with_target("actix_http", LevelFilter::OFF)
        // Its messages contain numbers.
        .with_target("rsipstack", LevelFilter::OFF)
        // The binary and all crates of the workspace: a target matches everything that begins with it.
        .with_target("vivavoce", ours);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let spans = collector.map(|endpoint| traces::layer(endpoint, service, authorities));
    let (spans, traces) = spans.transpose()?.unzip();
    // One filter for all layers: with one for each, every poll of a task in a span asks each filter about that span. What the
    // collector gets does not depend on the level all the same, as our spans are made at `error`.
    // Tests in one process may start it more than once.
    let _ = tracing_subscriber::registry()
        .with(filter)
        .with(spans)
        .with(lines)
        .with(log_tail::Tail)
        .try_init();
    Ok(traces)
}
