//! The recorder of a session: what is heard and what leaves is put on one clock ([`Timeline`]), encoded, and written to
//! the journal by pages as they fill. The session's media tasks bring it sound by plain calls ([`Tap`]); a task of its
//! own encodes; writing is the blocking pool's, one piece at a time. The actor steers the task and says when it fails.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use actix::prelude::*;
use bytes::BytesMut;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use crate::audio::ogg::{OggError, OggOpusWriter, OpusHead};
use crate::audio::opus::{
    Application, FRAME, MAX_FRAME_PACKET, OpusEncoder, OpusError, OpusSettings, clock_frames,
    has_rate, silent_packets,
};
use crate::audio::timeline::{Piece, Timeline};
use crate::audio::{Channels, Layout, Pcm, SampleRate};
use crate::recordings::journal::Journal;
use crate::recordings::{Line, Metadata, RecordingSettings};

/// How often the task looks what is due.
const TICK: Duration = Duration::from_millis(50);
/// How much sound a page holds. With the clock's lag, a tick and what the disk takes, what a process that is killed has
/// not written is less than a second.
const PAGE: Duration = Duration::from_millis(100);
/// Blocks after which others have their turn.
const BLOCKS_AT_ONCE: usize = 4;
/// Pages and lines that wait for the disk at most.
const MAX_UNWRITTEN: usize = 4 << 20;
const MAX_LINES: usize = 1 << 20;

/// Where a session's media tasks bring their sound. Clones are the same.
#[derive(Clone)]
pub struct Tap(Rc<RefCell<Tapped>>);

struct Tapped {
    timeline: Timeline,
    start: Instant,
    lines: String,
}

impl Tap {
    /// A clock that begins at `start`, with the least rate of Opus that holds both.
    pub fn new(heard: SampleRate, played: SampleRate, channels: Channels, start: Instant) -> Self {
        let wanted = heard.max(played);
        let rates = [8_000_u64, 12_000, 16_000, 24_000, 48_000];
        let rate = rates.into_iter().filter_map(|hz| SampleRate::new(hz).ok());
        let rate = rate.filter(|rate| has_rate(*rate) && *rate >= wanted).min();
        let layout = Layout::new(rate.unwrap_or(SampleRate::HZ_48000), channels);
        Self(Rc::new(RefCell::new(Tapped {
            timeline: Timeline::new(layout),
            start,
            lines: String::new(),
        })))
    }

    /// Sound that has come at `at`, and the Opus packet that it came in.
    pub fn hear(&self, sound: &Pcm, packet: Option<&[u8]>, at: Instant) {
        let tapped = &mut *self.0.borrow_mut();
        let at = at.saturating_duration_since(tapped.start);
        tapped.timeline.hear(sound, packet, at);
    }

    /// Sound that leaves now, for a listener who has `unplayed` to hear before it.
    pub fn play(&self, sound: &Pcm, unplayed: Duration) {
        let tapped = &mut *self.0.borrow_mut();
        tapped
            .timeline
            .play(sound, tapped.start.elapsed(), unplayed);
    }

    /// The last of what has left will not be heard.
    pub fn cut(&self, unheard: Duration) {
        self.0.borrow_mut().timeline.cut(unheard);
    }

    /// A line for the transcript, at the millisecond that it is given. Beyond the bound lines are dropped.
    pub fn note(&self, line: impl FnOnce(u64) -> String) {
        let tapped = &mut *self.0.borrow_mut();
        let at = tapped.timeline.position(tapped.start.elapsed());
        let line = line(at.as_millis() as u64);
        if tapped.lines.len() + line.len() <= MAX_LINES {
            tapped.lines.push_str(&line);
        }
    }

    /// What was understood.
    pub fn note_final(&self, result: &crate::actors::session::turn::SttResult) {
        self.note(|at_ms| Line::Heard { at_ms, result }.to_json());
    }

    fn layout(&self) -> Layout {
        self.0.borrow().timeline.layout()
    }
}

/// The recording has failed; what there is of it will be kept.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RecordingFailed(pub String);

/// The session has ended, and its recording with it.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct StopRecording;

/// The actor.
pub struct RecorderActor {
    tap: Tap,
    recording: Option<Recording>,
    ended: CancellationToken,
    report: Recipient<RecordingFailed>,
}

/// What is written, and how.
struct Recording {
    journal: Journal,
    settings: RecordingSettings,
    /// The server waits for it when it stops.
    work: TaskTrackerToken,
}

impl RecorderActor {
    /// A recorder of what the tap brings.
    pub fn new(
        tap: Tap,
        journal: Journal,
        settings: RecordingSettings,
        work: TaskTrackerToken,
        report: Recipient<RecordingFailed>,
    ) -> Self {
        let recording = Recording {
            journal,
            settings,
            work,
        };
        Self {
            tap,
            recording: Some(recording),
            ended: CancellationToken::new(),
            report,
        }
    }
}

impl Actor for RecorderActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        let Some(recording) = self.recording.take() else {
            return;
        };
        // It outlives the actor: what was recorded is written to its end.
        let task = record(self.tap.clone(), recording, self.ended.clone());
        let task = actix::spawn(task.in_current_span());
        context.spawn(task.into_actor(self).map(|ended, recorder, context| {
            let problem = match ended {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(error) => Some(error.to_string()),
            };
            if let Some(problem) = problem {
                tracing::warn!(%problem, "a recording has failed");
                // One per life.
                recorder.report.do_send(RecordingFailed(problem));
            }
            context.stop();
        }));
    }
}

impl Drop for RecorderActor {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

impl Handler<StopRecording> for RecorderActor {
    type Result = ();

    fn handle(&mut self, _: StopRecording, _: &mut Context<Self>) {
        self.ended.cancel();
    }
}

/// Why a recording stopped before its session.
#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error("the journal cannot be written: {0}")]
    Journal(#[from] io::Error),
    #[error(transparent)]
    Opus(#[from] OpusError),
    #[error(transparent)]
    Ogg(#[from] OggError),
    #[error("the disk is too slow")]
    Slow,
}

/// Encodes what is due until the session ends, and then the rest.
async fn record(
    tap: Tap,
    recording: Recording,
    ended: CancellationToken,
) -> Result<(), RecordError> {
    let Recording {
        journal,
        settings,
        work: _work,
    } = recording;
    let mut pages = Pages::new(tap.layout(), settings, &tags(journal.metadata()))?;
    let mut disk = Disk::new(journal);
    pages.begin();
    disk.write(&mut pages.bytes, String::new()).await?;
    loop {
        let over = tokio::select! {
            () = ended.cancelled() => true,
            () = tokio::time::sleep(TICK) => false,
        };
        if over {
            break;
        }
        encode_due(&tap, &mut pages).await?;
        let lines = std::mem::take(&mut tap.0.borrow_mut().lines);
        disk.write(&mut pages.bytes, lines).await?;
    }
    let total = {
        let tapped = &mut *tap.0.borrow_mut();
        tapped.timeline.finish(tapped.start.elapsed())
    };
    encode_due(&tap, &mut pages).await?;
    let lines = std::mem::take(&mut tap.0.borrow_mut().lines);
    let mut bytes = pages.finish(total)?;
    disk.finish(&mut bytes, lines).await
}

/// Encodes what is due, a little at a time.
async fn encode_due(tap: &Tap, pages: &mut Pages) -> Result<(), RecordError> {
    let mut block = Vec::new();
    for number in 1.. {
        block.clear();
        let piece = {
            let tapped = &mut *tap.0.borrow_mut();
            tapped.timeline.take(tapped.start.elapsed(), &mut block)
        };
        match piece {
            Some(Piece::Block) => pages.encode(&block)?,
            Some(Piece::Packet(packet)) => pages.push(&packet)?,
            Some(Piece::Silence(units)) => pages.silence(units)?,
            None => break,
        }
        if number % BLOCKS_AT_ONCE == 0 {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// What the comment header says.
fn tags(metadata: &Metadata) -> Vec<(&'static str, String)> {
    let providers = ["STT_PROVIDER", "TTS_PROVIDER"];
    let providers = providers.into_iter().zip(&metadata.participants);
    let providers = providers.filter_map(|(tag, known)| Some((tag, known.provider.clone()?)));
    let start = SystemTime::UNIX_EPOCH + Duration::from_millis(metadata.started_at);
    [
        ("STREAM_ID", metadata.stream_id.clone()),
        ("START", httpdate::fmt_http_date(start)),
    ]
    .into_iter()
    .chain(providers)
    .collect()
}

/// The encoder, and the pages that it has filled.
struct Pages {
    encoder: OpusEncoder,
    writer: OggOpusWriter,
    packet: Vec<u8>,
    bytes: BytesMut,
    /// Frames of the clock that were encoded.
    encoded: u64,
}

impl Pages {
    fn new(
        layout: Layout,
        settings: RecordingSettings,
        tags: &[(&'static str, String)],
    ) -> Result<Self, RecordError> {
        let bitrate_bps = match layout.channels {
            Channels::Mono => 32_000,
            Channels::Stereo => 48_000,
        };
        let encoder = OpusEncoder::new(
            layout,
            OpusSettings {
                application: Application::Audio,
                bitrate_bps,
                complexity: settings.complexity,
                fec_loss_percent: None,
            },
        )?;
        let head = OpusHead {
            channels: layout.channels,
            pre_skip: encoder.pre_skip(),
            input_hz: layout.rate.hz(),
        };
        let vendor = concat!("vivavoce ", env!("CARGO_PKG_VERSION"));
        let tags: Vec<_> = tags
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let writer = OggOpusWriter::new(head, vendor, &tags, fastrand::u32(..), PAGE)?;
        Ok(Self {
            encoder,
            writer,
            packet: vec![0; MAX_FRAME_PACKET],
            bytes: BytesMut::new(),
            encoded: 0,
        })
    }

    /// The headers, before there is any sound.
    fn begin(&mut self) {
        self.bytes.extend_from_slice(&self.writer.headers());
    }

    fn encode(&mut self, block: &[i16]) -> Result<(), RecordError> {
        let len = self.encoder.encode(block, &mut self.packet)?;
        let packet = self.packet.get(..len).unwrap_or_default();
        self.bytes.extend_from_slice(&self.writer.push(packet)?);
        self.encoded += SampleRate::HZ_48000.frames_in(FRAME) as u64;
        Ok(())
    }

    /// A packet as it is.
    fn push(&mut self, packet: &[u8]) -> Result<(), RecordError> {
        self.encoded += u64::from(clock_frames(packet)?);
        self.bytes.extend_from_slice(&self.writer.push(packet)?);
        Ok(())
    }

    /// Silence between packets, of so many times 2.5 ms.
    fn silence(&mut self, units: u32) -> Result<(), RecordError> {
        for packet in silent_packets(units) {
            self.push(&packet)?;
        }
        Ok(())
    }

    /// The end of the stream behind so many frames.
    fn finish(mut self, frames: u64) -> Result<BytesMut, RecordError> {
        let layout = self.encoder.layout();
        let frames = frames * u64::from(SampleRate::HZ_48000.hz() / layout.rate.hz());
        // The decoder lags behind by the pre-skip: what it holds back may need another block. A stream has one at least.
        let pre_skip = u64::from(self.encoder.pre_skip());
        if frames + pre_skip > self.encoded || self.encoded == 0 {
            let silence = vec![0; self.encoder.frame_samples()];
            self.encode(&silence)?;
        }
        self.bytes
            .extend_from_slice(&self.writer.finish(Some(frames)));
        Ok(self.bytes)
    }
}

/// The journal, which is written by the blocking pool, one piece at a time.
struct Disk {
    idle: Option<Journal>,
    writing: Option<JoinHandle<io::Result<Journal>>>,
    lines: String,
}

impl Disk {
    const fn new(journal: Journal) -> Self {
        Self {
            idle: Some(journal),
            writing: None,
            lines: String::new(),
        }
    }

    /// Begins to write, or lets it wait while the piece before is being written.
    async fn write(&mut self, pages: &mut BytesMut, lines: String) -> Result<(), RecordError> {
        self.lines.push_str(&lines);
        if let Some(writing) = self.writing.take_if(|writing| writing.is_finished()) {
            self.idle = Some(written(writing).await?);
        }
        if pages.len() + self.lines.len() > MAX_UNWRITTEN {
            return Err(RecordError::Slow);
        }
        if (pages.is_empty() && self.lines.is_empty()) || self.idle.is_none() {
            return Ok(());
        }
        if let Some(mut journal) = self.idle.take() {
            let (pages, lines) = (pages.split().freeze(), std::mem::take(&mut self.lines));
            self.writing = Some(tokio::task::spawn_blocking(move || {
                journal.append(&pages, &lines)?;
                Ok(journal)
            }));
        }
        Ok(())
    }

    /// Writes the last piece, and returns when everything is written.
    async fn finish(mut self, pages: &mut BytesMut, lines: String) -> Result<(), RecordError> {
        for last in [false, true] {
            if last {
                self.write(pages, lines.clone()).await?;
            }
            if let Some(writing) = self.writing.take() {
                self.idle = Some(written(writing).await?);
            }
        }
        Ok(())
    }
}

async fn written(writing: JoinHandle<io::Result<Journal>>) -> io::Result<Journal> {
    writing
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)))
}

#[cfg(test)]
mod tests;
