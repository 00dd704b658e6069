//! The last log lines, for people who look at a running server. Only what is logged at `info` and above: what people say is
//! logged below that. Each line has the id of the request that it is about, where it is about one; a session's is that of
//! the request that opened it.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use vivavoce_core::unix_time::unix_ms;

/// How many lines are kept, and how many bytes of each.
const MAX_LINES: usize = 2_000;
const MAX_LINE_BYTES: usize = 1_000;

static LINES: Mutex<Lines> = Mutex::new(Lines {
    lines: VecDeque::new(),
    written: 0,
});

struct Lines {
    lines: VecDeque<LogLine>,
    written: u64,
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Its number.
    pub number: u64,
    /// When, Unix time in milliseconds.
    pub at: u64,
    /// How bad it is: `ERROR`, `WARN` or `INFO`.
    pub level: &'static str,
    /// The part of the server that says it.
    pub target: &'static str,
    /// What it says, and its fields.
    pub text: String,
    /// The request that it is about; empty where there is none.
    pub request_id: String,
}

/// The last lines after this number for which `wanted` is true, at most `limit`, the oldest first.
pub fn lines(after: u64, limit: usize, wanted: impl Fn(&LogLine) -> bool) -> Vec<LogLine> {
    let kept = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    let news = kept.lines.iter().rev();
    let news = news.take_while(|line| line.number > after);
    let mut lines: Vec<_> = news
        .filter(|line| wanted(line))
        .take(limit)
        .cloned()
        .collect();
    drop(kept);
    lines.reverse();
    lines
}

/// Keeps the lines.
pub(super) struct Tail;

/// The request of a span.
struct RequestOf(String);

#[derive(Default)]
struct Fields {
    message: String,
    others: String,
    request_id: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            "request_id" => write!(self.request_id, "{value:?}"),
            name => write!(self.others, " {name}={value:?}"),
        };
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Tail {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id)
            && !fields.request_id.is_empty()
        {
            span.extensions_mut().insert(RequestOf(fields.request_id));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if *event.metadata().level() > Level::INFO {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let scope = context.event_scope(event);
        let of_span = scope.and_then(|mut scope| {
            scope.find_map(|span| {
                let extensions = span.extensions();
                extensions
                    .get::<RequestOf>()
                    .map(|RequestOf(id)| id.clone())
            })
        });
        let mut text = fields.message + &fields.others;
        if text.len() > MAX_LINE_BYTES {
            text.truncate(text.floor_char_boundary(MAX_LINE_BYTES));
            text.push('…');
        }
        let at = unix_ms(SystemTime::now());
        let mut kept = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        kept.written += 1;
        if kept.lines.len() == MAX_LINES {
            kept.lines.pop_front();
        }
        let number = kept.written;
        kept.lines.push_back(LogLine {
            number,
            at,
            level: event.metadata().level().as_str(),
            target: event.metadata().target(),
            text,
            request_id: of_span.unwrap_or(fields.request_id),
        });
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn a_line_knows_its_request_and_is_not_kept_for_ever() {
        let subscriber = tracing_subscriber::registry().with(Tail);
        tracing::subscriber::with_default(subscriber, || {
            let session = tracing::error_span!("session", request_id = "r-1");
            session.in_scope(|| tracing::warn!(times = 3, "something {}", "odd"));
            session.in_scope(|| tracing::debug!("what was said"));
            tracing::info!("{}", "x".repeat(2 * MAX_LINE_BYTES));
            for _ in 0..MAX_LINES - 2 {
                tracing::info!("filler");
            }
            let of_session = lines(0, 10, |line| line.request_id == "r-1");
            let [line] = &of_session[..] else {
                panic!("{of_session:?}")
            };
            assert_eq!((&*line.text, line.level), ("something odd times=3", "WARN"));
            let long = lines(line.number, MAX_LINES, |line| line.text.starts_with('x'));
            assert!(long[0].text.len() < MAX_LINE_BYTES + 10);
            assert_eq!(lines(line.number, 5, |_| true).len(), 5);
            tracing::info!("one more");
            assert!(lines(0, 10, |line| line.request_id == "r-1").is_empty());
        });
    }
}
