//! MP3 encoding with the program `lame`, run as a bounded child process: its library is LGPL and may not be linked.
//! [`super::mp3_decoder`] decodes.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::time::timeout;

use super::format::{Channels, Layout};
use super::linear16;
use vivavoce_core::process::{Limits, Program, ProgramError, RunningProgram};

/// The program.
pub const LAME: Program = Program {
    name: "lame",
    package: "lame",
};
/// The timeout of a push, or of the end; lame needs microseconds.
const STALLED: Duration = Duration::from_secs(5);
/// The limits of a stream: a day of audio at the highest bit rate.
const LIMITS: Limits = Limits {
    time: Duration::from_hours(24),
    output: 2_000_000_000,
};

/// A constant bit rate at which speech is transparent, in kbit/s.
const fn bitrate_kbps(layout: Layout) -> u32 {
    let mono = match layout.rate.hz() {
        0..=24_000 => 64,
        24_001..=32_000 => 80,
        _ => 96,
    };
    match layout.channels {
        Channels::Mono => mono,
        Channels::Stereo => mono * 2,
    }
}

/// A stream encoded by a child. A push that fails, or whose future is dropped, ends the child.
#[derive(Debug)]
pub struct Mp3Encoder {
    layout: Layout,
    program: Program,
    stalled: Duration,
    lame: Option<Running>,
}

#[derive(Debug)]
struct Running {
    program: RunningProgram,
    stdin: ChildStdin,
}

impl Mp3Encoder {
    /// Starts lame. Must be called in a tokio runtime.
    pub fn start(layout: Layout) -> Result<Self, ProgramError> {
        Self::start_program(LAME, &arguments(layout), layout, STALLED)
    }

    fn start_program(
        program: Program,
        arguments: &[String],
        layout: Layout,
        stalled: Duration,
    ) -> Result<Self, ProgramError> {
        let mut running = program.start(arguments, LIMITS)?;
        let stdin = running.take_stdin().ok_or(gone(program))?;
        Ok(Self {
            layout,
            program,
            stalled,
            lame: Some(Running {
                program: running,
                stdin,
            }),
        })
    }

    /// Encodes samples and returns the MP3 data that is ready, often none.
    pub async fn push(&mut self, samples: &[i16]) -> Result<Bytes, ProgramError> {
        let mut lame = self.lame.take().ok_or(gone(self.program))?;
        let mut ready = BytesMut::new();
        let bytes = linear16::encode(samples);
        let written = timeout(self.stalled, lame.write(&bytes, &mut ready));
        match written.await {
            Ok(Ok(true)) => {
                self.lame = Some(lame);
                Ok(ready.freeze())
            }
            Ok(Ok(false)) => Err(gone(self.program)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(self.timed_out()),
        }
    }

    /// The rest of the stream.
    pub async fn finish(&mut self) -> Result<Bytes, ProgramError> {
        let Running { mut program, stdin } = self.lame.take().ok_or(gone(self.program))?;
        drop(stdin);
        match timeout(self.stalled, program.read_all()).await {
            Ok(rest) => rest.map(BytesMut::freeze),
            Err(_) => Err(self.timed_out()),
        }
    }

    /// The duration of this many bytes of MP3.
    pub fn duration_of(&self, bytes: usize) -> Duration {
        let bits = bytes as u64 * 8;
        Duration::from_nanos(bits * 1_000_000 / u64::from(bitrate_kbps(self.layout)))
    }

    fn timed_out(&self) -> ProgramError {
        ProgramError::Timeout {
            name: self.program.name,
            limit: self.stalled,
        }
    }
}

impl Running {
    /// Writes all of `bytes` while reading the output, so that neither pipe can block the other. False if the child has
    /// exited prematurely.
    async fn write(
        &mut self,
        mut bytes: &[u8],
        ready: &mut BytesMut,
    ) -> Result<bool, ProgramError> {
        let mut open = true;
        while open && !bytes.is_empty() {
            tokio::select! {
                read = self.program.read() => open = keep(read, ready)?,
                // A broken pipe is explained by the child's output and exit status, which reading will reveal.
                Ok(written) = self.stdin.write(bytes) => bytes = &bytes[written..],
            }
        }
        while open && let Some(read) = self.program.read().now_or_never() {
            open = keep(read, ready)?;
        }
        Ok(open)
    }
}

/// Appends what was read; false at the end.
fn keep(
    read: Result<Option<Bytes>, ProgramError>,
    ready: &mut BytesMut,
) -> Result<bool, ProgramError> {
    let read = read?;
    if let Some(bytes) = &read {
        ready.extend_from_slice(bytes);
    }
    Ok(read.is_some())
}

fn gone(program: Program) -> ProgramError {
    ProgramError::Io {
        name: program.name,
        source: std::io::ErrorKind::BrokenPipe.into(),
    }
}

fn arguments(layout: Layout) -> Vec<String> {
    let khz = (f64::from(layout.rate.hz()) / 1_000.0).to_string();
    let mode = match layout.channels {
        Channels::Mono => "m",
        Channels::Stereo => "j",
    };
    let kbps = bitrate_kbps(layout).to_string();
    // A Xing tag could only be completed by seeking back (-t: none), and every frame should be written at once
    // (--flush).
    [
        "-r",
        "--signed",
        "--little-endian",
        "--bitwidth",
        "16",
        "-s",
        &khz,
        "-m",
        mode,
        "--resample",
        &khz,
        "--cbr",
        "-b",
        &kbps,
        "-t",
        "--noreplaygain",
        "--flush",
        "--silent",
        "-",
        "-",
    ]
    .map(str::to_owned)
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SampleRate;

    const SH: Program = Program {
        name: "sh",
        package: "dash",
    };
    const LAYOUT: Layout = Layout::mono(SampleRate::HZ_24000);

    fn script(script: &str, stalled: Duration) -> Mp3Encoder {
        let arguments = ["-c".to_owned(), script.to_owned()];
        Mp3Encoder::start_program(SH, &arguments, LAYOUT, stalled).unwrap()
    }

    #[tokio::test]
    async fn a_child_whose_output_is_full_while_we_write_does_not_block_us() {
        // Far more than both pipes can buffer.
        let mut encoder = script("exec cat", STALLED);
        let sound: Vec<i16> = (0..2_000_000).map(|n| n as i16).collect();
        let mut bytes = encoder.push(&sound).await.unwrap().to_vec();
        bytes.extend(encoder.finish().await.unwrap());
        assert!(bytes == linear16::encode(&sound));
    }

    #[tokio::test]
    async fn a_child_that_hangs_is_an_error_in_time_and_is_ended() {
        let mut encoder = script("exec sleep 600", Duration::from_millis(50));
        let error = encoder.push(&vec![0; 1_000_000]).await.unwrap_err();
        assert!(matches!(error, ProgramError::Timeout { .. }), "{error}");
        assert!(encoder.push(&[0]).await.is_err());

        let mut encoder = script("exec sleep 600", Duration::from_millis(50));
        encoder.push(&[0; 10]).await.unwrap();
        let error = encoder.finish().await.unwrap_err();
        assert!(matches!(error, ProgramError::Timeout { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_child_that_dies_says_why() {
        let mut encoder = script("echo 'out of tune' >&2; exit 3", STALLED);
        let sound = vec![0; 1_000_000];
        let error = encoder.push(&sound).await.unwrap_err().to_string();
        assert!(error.contains("out of tune"), "{error}");
        assert!(encoder.finish().await.is_err());

        let mut encoder = script("exit 0", STALLED);
        assert!(encoder.push(&sound).await.is_err());
    }
}
