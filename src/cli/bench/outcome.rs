//! The result of a measurement: the state before and after, the difference as comparable numbers, and their display.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::histogram::Histogram;
use super::load::{FRAME, Tally};
use super::under_test::Usage;

/// The names of the server's histograms.
pub(super) const INPUT_DELAY: &str = "vivavoce_input_delay_seconds";
pub(super) const OUTPUT_DELAY: &str = "vivavoce_output_delay_seconds";

/// Everything that is counted, at one moment.
#[derive(Debug)]
pub(super) struct State {
    at: Instant,
    server: Option<Usage>,
    load: Usage,
    input_delay: Histogram,
    output_delay: Histogram,
    answers: Histogram,
    frames_sent: u64,
    audio_messages: u64,
    audio_bytes: u64,
    events: u64,
    spoken: u64,
}

impl State {
    /// Now. `server` and `page` are what is known of the server, its page of metrics empty where it has none.
    pub(super) fn now(tally: &Tally, server: Option<Usage>, load: Usage, page: &str) -> Self {
        Self {
            at: Instant::now(),
            server,
            load,
            input_delay: Histogram::on_page(page, INPUT_DELAY),
            output_delay: Histogram::on_page(page, OUTPUT_DELAY),
            answers: tally.answers.buckets().into(),
            frames_sent: tally.frames_sent.load(Relaxed),
            audio_messages: tally.audio_messages.load(Relaxed),
            audio_bytes: tally.audio_bytes.load(Relaxed),
            events: tally.events.load(Relaxed),
            spoken: tally.spoken.load(Relaxed),
        }
    }
}

/// A delay that half, 90 and 99 of 100, and 999 of 1,000 do not exceed. Milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Delay {
    pub(super) p50_ms: f64,
    p90_ms: f64,
    pub(super) p99_ms: f64,
    p999_ms: f64,
    /// Of how many.
    pub(super) count: u64,
}

impl Delay {
    fn between(before: &Histogram, after: &Histogram) -> Option<Self> {
        let grown = after.since(before);
        let ms = |share| Some(grown.quantile(share)?.as_secs_f64() * 1e3);
        Some(Self {
            p50_ms: ms(0.5)?,
            p90_ms: ms(0.9)?,
            p99_ms: ms(0.99)?,
            p999_ms: ms(0.999)?,
            count: grown.count(),
        })
    }
}

/// One of the intervals of a measurement: whoever shares the machine disturbs some of them, and what grows with time shows.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Interval {
    /// When it ended, in seconds from the begin.
    pub(super) until: f64,
    pub(super) server_load: Option<f64>,
    pub(super) bytes_per_session: Option<f64>,
    pub(super) input_p99_ms: Option<f64>,
    pub(super) output_p99_ms: Option<f64>,
    pub(super) answer_p99_ms: Option<f64>,
}

impl Interval {
    /// The larger of the two delays that the server knows of.
    pub(super) fn added_p99_ms(&self) -> Option<f64> {
        self.input_p99_ms
            .zip(self.output_p99_ms)
            .map(|(input, output)| input.max(output))
    }
}

/// What was measured, of one server with one number of sessions. Absent is what cannot be known.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Outcome {
    /// `server` or `echo`.
    pub(super) of: &'static str,
    pub(super) sessions: usize,
    /// How long it was looked at.
    pub(super) seconds: f64,
    /// Cores that the server was busy on.
    pub(super) server_load: Option<f64>,
    /// Seconds per second that it wanted a core which others had. Where this is much, delays are not the server's.
    pub(super) server_waited: Option<f64>,
    /// Sessions that one core would carry.
    pub(super) sessions_per_core: Option<f64>,
    pub(super) bytes_per_session: Option<f64>,
    /// From a frame's arrival to the recogniser.
    pub(super) input_delay: Option<Delay>,
    /// From a chunk being ready and due to the socket's queue.
    pub(super) output_delay: Option<Delay>,
    /// At the client: from `speak` to the first sound, or from a frame to its echo.
    pub(super) answer_delay: Option<Delay>,
    /// Cores that the load was busy on.
    pub(super) generator_load: f64,
    pub(super) frames_sent: u64,
    pub(super) frames_expected: u64,
    pub(super) spoken: u64,
    pub(super) audio_messages: u64,
    pub(super) audio_bytes: u64,
    pub(super) events: u64,
    /// `error` messages and sessions that ended too early.
    pub(super) failures: u64,
    pub(super) course: Vec<Interval>,
}

impl Outcome {
    /// What happened between two states. `idle_bytes` is the server's memory without sessions.
    pub(super) fn between(
        of: &'static str,
        sessions: usize,
        idle_bytes: u64,
        [before, after]: [&State; 2],
        failures: u64,
    ) -> Self {
        let time = after.at.duration_since(before.at);
        let cores = |from: Usage, to: Usage| {
            to.cpu.saturating_sub(from.cpu).as_secs_f64() / time.as_secs_f64()
        };
        let server = before.server.zip(after.server);
        let server_load = server.map(|(from, to)| cores(from, to));
        let server_waited = server.map(|(from, to)| {
            to.waited.saturating_sub(from.waited).as_secs_f64() / time.as_secs_f64()
        });
        let grown = after
            .server
            .map(|usage| usage.own_bytes.saturating_sub(idle_bytes));
        let frames = time.as_secs_f64() / FRAME.as_secs_f64() * sessions as f64;
        Self {
            of,
            sessions,
            seconds: time.as_secs_f64(),
            server_load,
            server_waited,
            sessions_per_core: server_load
                .filter(|load| *load > 0.0)
                .map(|load| sessions as f64 / load),
            bytes_per_session: grown.map(|bytes| bytes as f64 / sessions as f64),
            input_delay: Delay::between(&before.input_delay, &after.input_delay),
            output_delay: Delay::between(&before.output_delay, &after.output_delay),
            answer_delay: Delay::between(&before.answers, &after.answers),
            generator_load: cores(before.load, after.load),
            frames_sent: after.frames_sent - before.frames_sent,
            frames_expected: frames.round() as u64,
            spoken: after.spoken - before.spoken,
            audio_messages: after.audio_messages - before.audio_messages,
            audio_bytes: after.audio_bytes - before.audio_bytes,
            events: after.events - before.events,
            failures,
            course: Vec::new(),
        }
    }

    /// What this is as an interval that ends so long after the begin.
    pub(super) fn interval(&self, until: Duration) -> Interval {
        let p99 = |delay: Option<Delay>| delay.map(|delay| delay.p99_ms);
        Interval {
            until: until.as_secs_f64(),
            server_load: self.server_load,
            bytes_per_session: self.bytes_per_session,
            input_p99_ms: p99(self.input_delay),
            output_p99_ms: p99(self.output_delay),
            answer_p99_ms: p99(self.answer_delay),
        }
    }

    /// The largest delay of 99 in 100: of the two that the server knows of, and of what the client waits for an answer.
    pub(super) fn added_p99(&self) -> Option<Duration> {
        let all = [self.input_delay?, self.output_delay?, self.answer_delay?];
        let worst = all.iter().map(|delay| delay.p99_ms).fold(0.0, f64::max);
        Some(Duration::from_secs_f64(worst / 1e3))
    }

    /// Whether the load was what was asked for: a generator that is behind measures itself.
    pub(super) fn is_full_load(&self) -> bool {
        self.frames_sent as f64 >= 0.99 * self.frames_expected as f64
    }
}

/// A row of the table: its title and a cell from an outcome.
type Row = (&'static str, fn(&Outcome) -> String);

const ROWS: &[Row] = &[
    ("sessions", |o| o.sessions.to_string()),
    ("server, cores busy", |o| {
        some(o.server_load, |load| format!("{load:.3}"))
    }),
    ("server, waiting for a core that others had", |o| {
        some(o.server_waited, |waited| format!("{waited:.3}"))
    }),
    ("**sessions per core**", |o| {
        some(o.sessions_per_core, |n| format!("{n:.0}"))
    }),
    ("memory per session, kB", |o| {
        some(o.bytes_per_session, |bytes| format!("{:.1}", bytes / 1e3))
    }),
    ("frame read → recogniser, ms", |o| {
        some(o.input_delay, delay)
    }),
    ("sound due → socket, ms", |o| some(o.output_delay, delay)),
    ("answer at the client, ms", |o| some(o.answer_delay, delay)),
    (
        "the later of both at the server, p99 by the interval, ms",
        |o| spread(o, Interval::added_p99_ms, |ms| format!("{ms:.3}")),
    ),
    ("memory per session by the interval, kB", |o| {
        spread(o, |i| i.bytes_per_session, |b| format!("{:.1}", b / 1e3))
    }),
    ("frames sent of expected", |o| {
        let share = 100.0 * o.frames_sent as f64 / o.frames_expected.max(1) as f64;
        format!("{share:.1} %")
    }),
    ("sound received, messages per session and second", |o| {
        format!(
            "{:.1}",
            o.audio_messages as f64 / o.sessions as f64 / o.seconds
        )
    }),
    ("events per session and second", |o| {
        format!("{:.2}", o.events as f64 / o.sessions as f64 / o.seconds)
    }),
    ("failures", |o| o.failures.to_string()),
    ("generator, cores busy", |o| {
        format!("{:.3}", o.generator_load)
    }),
];

fn some<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), show)
}

/// The median of the intervals, the least and the most.
fn spread(
    outcome: &Outcome,
    of: impl Fn(&Interval) -> Option<f64>,
    show: impl Fn(f64) -> String,
) -> String {
    let mut values: Vec<f64> = outcome.course.iter().filter_map(of).collect();
    values.sort_by(f64::total_cmp);
    let (Some(least), Some(median), Some(most)) =
        (values.first(), values.get(values.len() / 2), values.last())
    else {
        return some(None, show);
    };
    format!("{} ({} – {})", show(*median), show(*least), show(*most))
}

fn delay(delay: Delay) -> String {
    format!("{:.3} / {:.3}", delay.p50_ms, delay.p99_ms)
}

/// A Markdown table with a column for each outcome; delays are p50 / p99.
pub(super) fn table(outcomes: &[Outcome]) -> String {
    let mut table = String::from("| |");
    for outcome in outcomes {
        // A String takes everything.
        let _ = write!(table, " {} |", outcome.of);
    }
    table += "\n|---|";
    table += &"---|".repeat(outcomes.len());
    for (title, cell) in ROWS {
        let _ = write!(table, "\n| {title} |");
        for outcome in outcomes {
            let _ = write!(table, " {} |", cell(outcome));
        }
    }
    table.push('\n');
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_load_of_a_tenth_of_a_core_makes_ten_times_the_sessions_per_core() {
        let tally = Tally::default();
        let usage = |cpu_ms, own_bytes| Usage {
            cpu: Duration::from_millis(cpu_ms),
            waited: Duration::ZERO,
            own_bytes,
        };
        let bucket = |count| format!("{INPUT_DELAY}_bucket{{le=\"0.001\"}} {count}\n");
        let before = State::now(&tally, Some(usage(500, 0)), usage(0, 0), &bucket(5));
        tokio::time::advance(Duration::from_secs(10)).await;
        tally.frames_sent.fetch_add(50_000, Relaxed);
        tally.answers.observe(Duration::from_micros(1));
        let after = State::now(
            &tally,
            Some(usage(1_500, 11_000_000)),
            usage(5_000, 0),
            &bucket(7),
        );
        let mut outcome = Outcome::between("server", 100, 1_000_000, [&before, &after], 0);
        for seconds in 1..=3 {
            let mut interval = outcome.interval(Duration::from_secs(seconds));
            interval.bytes_per_session = Some(1e5 * seconds as f64);
            interval.output_p99_ms = Some(0.5 + seconds as f64 / 4.0);
            outcome.course.push(interval);
        }
        let shown = table(std::slice::from_ref(&outcome));
        for row in [
            "| server, cores busy | 0.100 |",
            "| **sessions per core** | 1000 |",
            "| memory per session, kB | 100.0 |",
            "| frame read → recogniser, ms | 0.500 / 0.990 |",
            "| sound due → socket, ms | – |",
            "| the later of both at the server, p99 by the interval, ms | 1.000 (0.990 – 1.250) |",
            "| memory per session by the interval, kB | 200.0 (100.0 – 300.0) |",
            "| frames sent of expected | 100.0 % |",
            "| generator, cores busy | 0.500 |",
        ] {
            assert!(shown.contains(row), "{row} is missing in\n{shown}");
        }
        assert!(outcome.is_full_load());
        assert_eq!(outcome.input_delay.unwrap().count, 2);
    }
}
