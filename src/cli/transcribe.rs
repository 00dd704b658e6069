//! `vivavoce transcribe FILE`: transcribes an audio file, a line per utterance, with progress on a terminal.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, Write, stderr, stdin, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use vivavoce_transcription::{ANY_FORMAT, Recorded, Transcription, TranscriptionError};

use super::{Failure, runtime};
use crate::config::Config;
use crate::providers::{SttEvent, SttRequest, Transcript};
use crate::server::providers;

/// The maximum duration.
const LONGEST: Duration = Duration::from_hours(24);
/// The maximum size of standard input.
const MAX_STDIN_BYTES: u64 = 4 << 30;
/// The width of the progress line.
const COLUMNS: usize = 79;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce transcribe meeting.flac\n  \
    vivavoce transcribe call.mp3 --json > call.jsonl\n  \
    vivavoce say \"Hello.\" -o - | vivavoce transcribe -\n\n\
    WAV, MP3, FLAC and Ogg/Opus files are read, whatever they are called.")]
pub(super) struct Arguments {
    /// The audio file; `-` reads standard input
    file: PathBuf,
    /// Print a line of JSON per utterance: text, start and end in seconds, confidence, words
    #[arg(long)]
    json: bool,
    /// The language, as a BCP-47 tag
    #[arg(short, long, default_value = "en-US", value_name = "TAG")]
    language: String,
    /// The provider
    #[arg(short, long, default_value = "local", value_name = "SLUG")]
    provider: String,
    /// The provider's model
    #[arg(long, default_value = "")]
    model: String,
}

pub(super) fn run(config: &Config, arguments: &Arguments) -> Result<(), Failure> {
    let name = arguments.file.display().to_string();
    let named = |error: &dyn std::fmt::Display| Failure::work(format!("{name}: {error}"));
    let file = open(&arguments.file).map_err(|error| named(&error))?;
    let recorded = Recorded::open(file, LONGEST).map_err(|error| named(&error))?;
    runtime()?.block_on(async {
        let table = providers(&config.settings).map_err(Failure::work)?;
        let provider = table.speech_to_text(&arguments.provider).ok_or_else(|| {
            let known = table.speech_to_text_slugs().join(", ");
            Failure::usage(format!(
                "no provider {:?}; there is: {known}",
                arguments.provider
            ))
        })?;
        let request = SttRequest {
            party: crate::quotas::Party::Operator,
            language: arguments.language.clone(),
            model: arguments.model.clone(),
            punctuation: true,
            keyterms: Vec::new(),
            languages: Vec::new(),
            diarize: false,
            translate: false,
            credential: None,
            format: ANY_FORMAT,
        };
        let mut report = Report::new(arguments.json, recorded.duration());
        let begun = Transcription::begin(provider, request, recorded).await;
        let mut transcription = begun.map_err(Failure::work)?;
        while let Some(event) = transcription.next().await {
            let event = event.map_err(|error| {
                report.clear();
                match error {
                    TranscriptionError::File(error) => named(&error),
                    error => Failure::work(error),
                }
            })?;
            report.take(event, transcription.position())?;
        }
        report.clear();
        report.end()
    })
}

/// The file; standard input is copied to a temporary one, because some formats have to be read at the end first.
fn open(file: &Path) -> io::Result<File> {
    if file.as_os_str() != "-" {
        return File::open(file);
    }
    let mut piped = tempfile::tempfile()?;
    if io::copy(&mut stdin().lock().take(MAX_STDIN_BYTES + 1), &mut piped)? > MAX_STDIN_BYTES {
        return Err(io::Error::other(format!(
            "more than {MAX_STDIN_BYTES} bytes"
        )));
    }
    piped.rewind()?;
    Ok(piped)
}

/// The output: utterances on standard output, progress and errors on standard error.
struct Report {
    json: bool,
    progress: bool,
    duration: Option<Duration>,
    /// How much has been sent.
    position: Duration,
    utterances: usize,
    lost: usize,
}

impl Report {
    fn new(json: bool, duration: Option<Duration>) -> Self {
        let progress = stderr().is_terminal();
        Self {
            json,
            progress,
            duration,
            position: Duration::ZERO,
            utterances: 0,
            lost: 0,
        }
    }

    fn take(&mut self, event: SttEvent, position: Duration) -> Result<(), Failure> {
        self.position = position;
        match event {
            SttEvent::Partial(transcript) => self.show(&transcript.text),
            SttEvent::Final(transcript) => {
                self.clear();
                self.utterances += 1;
                self.write(&transcript)
                    .map_err(|error| Failure::work(format!("standard output: {error}")))?;
                self.show("");
            }
            SttEvent::EndOfSpeech => {}
            SttEvent::UtteranceLost(error) => {
                self.clear();
                self.lost += 1;
                eprintln!("vivavoce: an utterance could not be transcribed: {error}");
            }
        }
        Ok(())
    }

    fn write(&self, transcript: &Transcript) -> io::Result<()> {
        let mut out = stdout().lock();
        if !self.json {
            return writeln!(out, "{}", transcript.text);
        }
        let line = json!({
            "text": transcript.text,
            "start": transcript.words.first().map(|word| word.start),
            "end": transcript.words.last().map(|word| word.end),
            "confidence": transcript.confidence,
            "words": transcript.words,
        });
        writeln!(out, "{line}")
    }

    fn show(&self, partial: &str) {
        if !self.progress {
            return;
        }
        let position = self.position;
        let share = match self.duration {
            Some(duration) if !duration.is_zero() => {
                let percent = (100.0 * position.as_secs_f64() / duration.as_secs_f64()).min(100.0);
                format!("{} of {}, {percent:.0} %", clock(position), clock(duration))
            }
            _ => clock(position),
        };
        let line: String = format!("{share}  {partial}")
            .chars()
            .take(COLUMNS)
            .collect();
        // Failing to show progress is not an error.
        let _ = write!(stderr().lock(), "\r\x1b[K{line}");
    }

    fn clear(&self) {
        if self.progress {
            let _ = write!(stderr().lock(), "\r\x1b[K");
        }
    }

    fn end(&self) -> Result<(), Failure> {
        if self.lost > 0 {
            return Err(Failure::work(format!(
                "{} of {} utterances could not be transcribed",
                self.lost,
                self.lost + self.utterances
            )));
        }
        if self.utterances == 0 {
            eprintln!("vivavoce: no speech was found");
        }
        Ok(())
    }
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}
