//! The worker processes of the recogniser, and how they report: a line of JSON at a time.

use std::path::{Path, PathBuf};

use bytes::BytesMut;
use tokio_util::codec::{Decoder, LinesCodec, LinesCodecError};

use super::wire::{MAX_REPORT_BYTES, Report};
use super::worker::SUBCOMMAND;
pub use crate::local::workers::Deadlines;
use crate::local::workers::{News, Protocol, WireError, WorkerSettings};
use vivavoce_quotas::Share;
use vivavoce_telemetry::metrics;

/// The most memory that a worker may take; one with Debian's model takes 90 MB.
const MEMORY: u64 = 1 << 30;

/// How many workers, of which program, with which patience.
#[derive(Debug, Clone)]
pub struct PoolSettings {
    /// The program that is a worker when it is called with [`SUBCOMMAND`] and the model directory: our own.
    pub program: PathBuf,
    /// The directory that holds the model.
    pub model: PathBuf,
    /// The most workers at a time, each 90 MB; the usual number is one for every core.
    pub size: usize,
    /// Whether one is loaded before the first is asked for.
    pub preload: bool,
    /// How long each step may take.
    pub deadlines: Deadlines,
    /// What one party may have of them.
    pub share: Share,
}

impl PoolSettings {
    /// Where Debian's `pocketsphinx-en-us` puts the model.
    pub const DEBIAN_MODEL: &str = "/usr/share/pocketsphinx/model/en-us";

    /// Workers of `program`, as many as there are cores, with Debian's model.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            model: Self::DEBIAN_MODEL.into(),
            size: std::thread::available_parallelism().map_or(1, usize::from),
            preload: true,
            deadlines: Deadlines::default(),
            share: Share::default(),
        }
    }

    /// What the pool is told.
    pub(super) fn workers(&self) -> WorkerSettings {
        WorkerSettings {
            program: self.program.clone(),
            arguments: vec![SUBCOMMAND.into(), self.model.clone().into()],
            readable: model_files(&self.model),
            memory: MEMORY,
            may_wait: false,
            size: self.size,
            deadlines: self.deadlines,
            share: self.share,
        }
    }
}

/// Where the model is: its folder, and what is linked to from there.
fn model_files(model: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(model).into_iter().flatten().flatten();
    let linked = entries.filter_map(|entry| entry.path().canonicalize().ok());
    std::iter::once(model.to_owned()).chain(linked).collect()
}

/// What the recogniser's workers speak.
#[derive(Debug)]
pub struct Pocketsphinx;

impl Protocol for Pocketsphinx {
    type Report = Report;
    type Codec = Lines;
    const NAME: &str = "recogniser";

    fn busy() -> Option<metrics::Present> {
        Some(metrics::recogniser_works())
    }

    fn news(report: &Report) -> News<'_> {
        match report {
            Report::Ready => News::Ready,
            Report::Failed { message } => News::Failed(message),
            Report::Partial { .. } => News::Other("a partial"),
            Report::Final { .. } => News::Other("a final"),
        }
    }
}

/// Reads a report a line.
#[derive(Debug)]
pub struct Lines(LinesCodec);

impl Default for Lines {
    fn default() -> Self {
        Self(LinesCodec::new_with_max_length(MAX_REPORT_BYTES))
    }
}

impl Decoder for Lines {
    type Item = Report;
    type Error = WireError;

    fn decode(&mut self, bytes: &mut BytesMut) -> Result<Option<Report>, WireError> {
        parse(self.0.decode(bytes))
    }

    fn decode_eof(&mut self, bytes: &mut BytesMut) -> Result<Option<Report>, WireError> {
        parse(self.0.decode_eof(bytes))
    }
}

fn parse(line: Result<Option<String>, LinesCodecError>) -> Result<Option<Report>, WireError> {
    match line {
        Ok(Some(line)) => Report::parse(&line)
            .map(Some)
            .map_err(|error| WireError::Garbage(error.to_string())),
        Ok(None) => Ok(None),
        Err(LinesCodecError::MaxLineLengthExceeded) => {
            Err(WireError::Garbage("a line without end".to_owned()))
        }
        Err(LinesCodecError::Io(error)) => Err(error.into()),
    }
}
