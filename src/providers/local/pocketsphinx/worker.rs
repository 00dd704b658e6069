//! What runs inside a worker process (`vivavoce stt-worker MODEL`): one recogniser that hears the utterances coming
//! down standard input and reports what it hears on standard output. It knows no session and no time of day, and ends
//! when its input ends, so it never outlives the server.

use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::library::{Decoder, DecoderError, FRAMES_PER_SECOND, Segment};
use super::wire::{Command, HeardWord, Report};

/// The hidden subcommand that starts a worker.
pub const SUBCOMMAND: &str = "stt-worker";
/// Partials come no faster than this.
const PARTIAL_INTERVAL: Duration = Duration::from_millis(100);

/// Why a worker ended before its input did.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The recogniser.
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    /// The pipes to the server, or something on them that is not the protocol.
    #[error("the recogniser's worker and its server do not understand each other: {0}")]
    Wire(#[from] io::Error),
}

/// Serves until standard input ends. Whatever ends it earlier is reported before it is returned.
pub fn run(model: &Path) -> Result<(), WorkerError> {
    let mut reports = take_stdout()?;
    let mut commands = BufReader::new(io::stdin().lock());
    let served = Decoder::load(model)
        .map_err(WorkerError::from)
        .and_then(|decoder| serve(decoder, &mut commands, &mut reports));
    if let Err(error) = &served {
        let message = error.to_string();
        // The server may be gone, which is one reason to be here.
        let _ = report(&mut reports, &Report::Failed { message });
    }
    served
}

/// Standard output for the protocol alone: whatever a library prints there goes to standard error instead.
fn take_stdout() -> io::Result<std::fs::File> {
    use std::os::fd::AsFd;
    let ours = io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    Ok(ours.into())
}

fn serve(
    mut decoder: Decoder,
    commands: &mut impl Read,
    reports: &mut impl Write,
) -> Result<(), WorkerError> {
    report(reports, &Report::Ready)?;
    let mut partial = None;
    while let Some(command) = Command::read(commands)? {
        match (command, &mut partial) {
            (Command::Begin(mean), None) => {
                decoder.begin(&mean)?;
                partial = Some(Partial::new());
            }
            (Command::Audio(samples), Some(partial)) => {
                decoder.hear(&samples)?;
                if let Some(text) = partial.due(|| decoder.hypothesis()) {
                    report(reports, &Report::Partial { text })?;
                }
            }
            (Command::End, Some(_)) => {
                decoder.end()?;
                partial = None;
                let words = decoder.segments().iter().filter_map(heard).collect();
                let mean = decoder.mean();
                report(reports, &Report::Final { words, mean })?;
            }
            _ => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
    }
    Ok(())
}

fn report(to: &mut impl Write, report: &Report) -> io::Result<()> {
    to.write_all(report.to_line()?.as_bytes())
}

/// When to look for a partial, and what the last one was.
struct Partial {
    looked: Instant,
    text: String,
}

impl Partial {
    fn new() -> Self {
        Self {
            looked: Instant::now(),
            text: String::new(),
        }
    }

    fn due(&mut self, hypothesis: impl FnOnce() -> String) -> Option<String> {
        if self.looked.elapsed() < PARTIAL_INTERVAL {
            return None;
        }
        self.looked = Instant::now();
        let text = hypothesis();
        if text == self.text {
            return None;
        }
        self.text.clone_from(&text);
        Some(text)
    }
}

/// A segment as a word: without the number of its pronunciation (`was(2)`), and none for the fillers: `<sil>`,
/// `[NOISE]`, `++COUGH++`.
fn heard(segment: &Segment) -> Option<HeardWord> {
    if segment.entry.starts_with(['<', '[', '+']) {
        return None;
    }
    let word = match segment.entry.split_once('(') {
        Some((word, _)) => word,
        None => &segment.entry,
    };
    Some(HeardWord {
        word: word.to_owned(),
        start: f64::from(segment.first_frame) / FRAMES_PER_SECOND,
        end: f64::from(segment.end_frame) / FRAMES_PER_SECOND,
        confidence: segment.probability,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pronunciations_and_fillers_are_not_words() {
        let word = |entry: &str| {
            let segment = Segment {
                entry: entry.to_owned(),
                first_frame: 25,
                end_frame: 50,
                probability: 0.5,
            };
            heard(&segment).map(|heard| (heard.word, heard.start, heard.end))
        };
        assert_eq!(word("was(2)"), Some(("was".to_owned(), 0.25, 0.5)));
        assert_eq!(word("can't"), Some(("can't".to_owned(), 0.25, 0.5)));
        for filler in ["<s>", "</s>", "<sil>", "[NOISE]", "[SPEECH]", "++COUGH++"] {
            assert_eq!(word(filler), None, "{filler}");
        }
    }
}
