//! What every program tells of its process, under the names that Prometheus' own clients have. Read from proc(5) when the
//! page is asked for; what the kernel does not tell is left out.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

#[derive(Debug)]
pub(super) struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let mut tell = |name: &str, help: &str, metric: &dyn Encodable| {
            metric.encode(&mut encoder, name, help)
        };
        if let Some(times) = Times::read() {
            let cpu = ConstCounter::new(times.cpu_s);
            tell(
                "process_cpu_seconds",
                "Processor time, user and system",
                &cpu,
            )?;
            let start = ConstGauge::new(times.start_s);
            let help = "When the process began, in seconds since 1970";
            tell("process_start_time_seconds", help, &start)?;
            let threads = ConstGauge::new(times.threads);
            tell("process_threads", "Threads", &threads)?;
        }
        if let Some(bytes) = vivavoce_core::memory::resident() {
            let bytes = ConstGauge::new(bytes as f64);
            tell(
                "process_resident_memory_bytes",
                "Memory that is resident",
                &bytes,
            )?;
        }
        if let Some(open) = open_files() {
            tell(
                "process_open_fds",
                "Open file descriptors",
                &ConstGauge::new(open),
            )?;
        }
        if let Some(most) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
            let most = ConstGauge::new(most as f64);
            tell("process_max_fds", "Allowed file descriptors", &most)?;
        }
        Ok(())
    }
}

/// A metric that is told once.
trait Encodable {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str) -> fmt::Result;
}

impl<M: EncodeMetric> Encodable for M {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str) -> fmt::Result {
        let metric = encoder.encode_descriptor(name, help, None, self.metric_type())?;
        EncodeMetric::encode(self, metric)
    }
}

/// What `/proc/self/stat` tells.
#[derive(Debug, PartialEq)]
struct Times {
    cpu_s: f64,
    start_s: f64,
    threads: f64,
}

impl Times {
    fn read() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let system = std::fs::read_to_string("/proc/stat").ok()?;
        Self::parse(&stat, &system, rustix::param::clock_ticks_per_second())
    }

    /// From `/proc/self/stat` and `/proc/stat`, whose times are in `ticks` per second.
    fn parse(stat: &str, system: &str, ticks: u64) -> Option<Self> {
        // The name of the program stands in brackets and may hold anything.
        let (_, fields) = stat.rsplit_once(')')?;
        let field = |number: usize| -> Option<f64> {
            // proc(5) counts from 1; the first one here is the third.
            fields.split_whitespace().nth(number - 3)?.parse().ok()
        };
        let boot = system
            .lines()
            .find_map(|line| line.strip_prefix("btime "))?;
        let boot: f64 = boot.trim().parse().ok()?;
        let ticks = ticks as f64;
        Some(Self {
            cpu_s: (field(14)? + field(15)?) / ticks,
            start_s: boot + field(22)? / ticks,
            threads: field(20)?,
        })
    }
}

fn open_files() -> Option<f64> {
    let files = std::fs::read_dir("/proc/self/fd").ok()?;
    // One of them is this look.
    Some(files.count().saturating_sub(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_whatever_the_program_is_called() {
        let stat = "7 (a) b) R 1 7 7 0 -1 4194304 1 0 0 0 150 50 0 0 20 0 9 0 3000 1 1";
        let system = "cpu 1 2\nbtime 1000\nprocesses 3\n";
        let times = Times {
            cpu_s: 2.0,
            start_s: 1030.0,
            threads: 9.0,
        };
        assert_eq!(Times::parse(stat, system, 100), Some(times));
        assert_eq!(Times::parse("7 (a) R 1", system, 100), None);
        assert_eq!(Times::parse(stat, "", 100), None);
    }

    #[test]
    fn this_process_has_begun_and_uses_something() {
        let times = Times::read().unwrap();
        assert!(times.start_s > 1e9 && times.threads >= 1.0, "{times:?}");
        assert!(open_files().unwrap() >= 3.0);
    }
}
