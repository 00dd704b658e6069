//! The recorder of a session: puts the audio of both sides on one clock ([`RecordingClock`]), encodes it, and writes it to the
//! journal page by page. The session's media tasks bring audio by plain calls ([`Tap`]); a task of its own takes what is
//! due and hands it to the threads that encode and write ([`Writers`]), one piece at a time. The actor controls the task
//! and reports its failure.

mod silencing;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use actix::prelude::*;
use bytes::{Bytes, BytesMut};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use silencing::{Silencing, Timing};
use vivavoce_audio::ogg::{OggError, OggOpusWriter, OpusHead};
use vivavoce_audio::opus::{
    FRAME, MAX_FRAME_PACKET, OpusEncoder, OpusError, OpusSettings, clock_frames, has_rate,
    silent_packets,
};
use vivavoce_audio::recording_clock::{Piece, RecordingClock};
use vivavoce_audio::{Channels, Layout, Pcm, SampleRate};
use vivavoce_recordings::journal::Journal;
use vivavoce_recordings::marks::Mark;
use vivavoce_recordings::redaction::Redaction;
use vivavoce_recordings::writers::{Job, LATE, Writers};
use vivavoce_recordings::{Metadata, RecordingSettings, TranscriptLine};
use vivavoce_seams::SttResult;

/// How often the task takes what is due.
const TICK: Duration = Duration::from_millis(100);
/// How much audio a page holds. With the clock's lag, a tick and the disk's delay a process that is killed loses less than
/// a second.
const PAGE: Duration = Duration::from_millis(100);
/// Pieces after which the task hands over and yields: 1.3 s, more than the input decodes between two yields.
const PIECES_AT_ONCE: usize = 64;
/// The task does not wait for its tick when the clock holds this much. In real time it never does; it drops what is
/// beyond 30 s.
const FULL: Duration = Duration::from_secs(8);
/// The most bytes that wait for the disk: 40 s of stereo at 48 kHz. As much may be in the hands of the writers.
const MAX_UNWRITTEN: usize = 8 << 20;
const MAX_LINES: usize = 1 << 20;
/// How much later than what was said its final may come: what recognisers take.
const LATE_FINAL: Duration = Duration::from_secs(2);

/// How long after a key nothing is kept: the next one may come, and tones last.
const HIDDEN_AFTER_KEY: Duration = Duration::from_secs(2);

/// Where a session's media tasks bring their audio. Clones are the same tap.
#[derive(Clone)]
pub struct Tap(Rc<RefCell<Tapped>>);

struct Tapped {
    clock: RecordingClock,
    start: Instant,
    lines: String,
    /// Nothing is kept of what comes now: the clock goes on in silence.
    paused: bool,
    /// When that was last over.
    resumed: Option<Instant>,
    /// What is not in the transcript.
    redaction: Redaction,
    /// What is silenced of the sound before it is stored, where that is wanted.
    silencing: Option<Silencing>,
    /// When the session left for another server, if it has.
    left: Option<Duration>,
    /// Until when nothing is kept of the input: keys are being pressed.
    hidden_until: Option<Instant>,
    /// Wakes the task.
    full: Rc<Notify>,
}

impl Tapped {
    fn wake(&self) {
        if self.clock.held() >= FULL {
            self.full.notify_one();
        }
    }
}

impl Tap {
    /// A clock that begins at `start`, with the lowest rate of Opus that holds both sides.
    pub fn new(heard: SampleRate, played: SampleRate, channels: Channels, start: Instant) -> Self {
        let wanted = heard.max(played);
        let rates = [8_000_u64, 12_000, 16_000, 24_000, 48_000];
        let rate = rates.into_iter().filter_map(|hz| SampleRate::new(hz).ok());
        let rate = rate.filter(|rate| has_rate(*rate) && *rate >= wanted).min();
        let layout = Layout::new(rate.unwrap_or(SampleRate::HZ_48000), channels);
        Self(Rc::new(RefCell::new(Tapped {
            clock: RecordingClock::new(layout),
            start,
            lines: String::new(),
            paused: false,
            resumed: None,
            redaction: Redaction::default(),
            silencing: None,
            left: None,
            hidden_until: None,
            full: Rc::default(),
        })))
    }

    /// Leaves this out of the transcript.
    #[must_use]
    pub fn redacting(self, redaction: Redaction) -> Self {
        self.0.borrow_mut().redaction = redaction;
        self
    }

    /// Silences it as well, if `silences`.
    #[must_use]
    pub fn silencing(self, silences: bool) -> Self {
        self.0.borrow_mut().silencing = silences.then(Silencing::default);
        self
    }

    /// A key was pressed: nothing is kept of the input for a while.
    pub fn hide_key(&self) {
        self.0.borrow_mut().hidden_until = Some(Instant::now() + HIDDEN_AFTER_KEY);
    }

    /// Takes audio of the client that came at `at`, and the Opus packet that it came in.
    pub fn hear(&self, sound: &Pcm, packet: Option<&[u8]>, at: Instant) {
        let tapped = &mut *self.0.borrow_mut();
        if tapped.paused || tapped.hidden_until.is_some_and(|until| at < until) {
            tapped.clock.miss(sound.duration());
            return;
        }
        let at = at.saturating_duration_since(tapped.start);
        if let Some(silencing) = &mut tapped.silencing {
            let until = tapped.clock.heard_until() + sound.duration();
            silencing.hear(until, tapped.clock.position(at));
        }
        tapped.clock.hear(sound, packet, at);
        tapped.wake();
    }

    /// Takes audio that is sent now, to a client that has `unplayed` left to play before it.
    pub fn play(&self, sound: &Pcm, unplayed: Duration) {
        let tapped = &mut *self.0.borrow_mut();
        if tapped.paused {
            return;
        }
        tapped.clock.play(sound, tapped.start.elapsed(), unplayed);
        tapped.wake();
    }

    /// The last part of the audio that was sent will not be played.
    pub fn cut(&self, unheard: Duration) {
        self.0.borrow_mut().clock.cut(unheard);
    }

    /// Keeps nothing of what comes from now on but its time, or everything again. Gives the place in the recording.
    pub fn pause(&self, paused: bool) -> Duration {
        let tapped = &mut *self.0.borrow_mut();
        if tapped.paused && !paused {
            tapped.resumed = Some(Instant::now());
        }
        tapped.paused = paused;
        tapped.clock.position(tapped.start.elapsed())
    }

    pub fn is_paused(&self) -> bool {
        self.0.borrow().paused
    }

    /// The session goes on at another server: the recording ends here and now, and there is more of it. Gives its length.
    pub fn leave(&self) -> Duration {
        let tapped = &mut *self.0.borrow_mut();
        let at = tapped.start.elapsed();
        tapped.left = Some(at);
        tapped.clock.position(at)
    }

    /// Adds a line to the transcript, made from the current millisecond. Beyond the bound lines are dropped.
    pub fn note(&self, line: impl FnOnce(u64) -> String) {
        let tapped = &mut *self.0.borrow_mut();
        if tapped.paused {
            return;
        }
        let at = tapped.clock.position(tapped.start.elapsed());
        let line = line(at.as_millis() as u64);
        if tapped.lines.len() + line.len() <= MAX_LINES {
            tapped.lines.push_str(&line);
        }
    }

    /// Adds a final to the transcript, unless it comes so soon after a pause that it may tell what was said in it. `heard` is
    /// how much audio there has been by now on the clock of the times of its words.
    pub fn note_final(&self, result: &SttResult, heard: Duration) {
        {
            let tapped = &mut *self.0.borrow_mut();
            if let Some(silencing) = &mut tapped.silencing {
                let clock = &tapped.clock;
                let timing = Timing {
                    heard,
                    now: clock.position(tapped.start.elapsed()),
                    place: &|ago| clock.place_of_input(ago),
                };
                silencing.note_final(result, &tapped.redaction, &timing);
            }
        }
        let resumed = self.0.borrow().resumed;
        if resumed.is_some_and(|resumed| resumed.elapsed() < LATE_FINAL) {
            return;
        }
        let redacted = {
            let tapped = self.0.borrow();
            (!tapped.redaction.is_empty()).then(|| tapped.redaction.result(result))
        };
        let result = redacted.as_ref().unwrap_or(result);
        self.note(|at_ms| TranscriptLine::Heard { at_ms, result }.to_json());
    }

    /// A text that was said, as it may be in the transcript.
    pub fn redacted(&self, text: &str) -> String {
        self.0.borrow().redaction.text(text)
    }

    /// The utterance of this number begins: its sound comes next.
    pub fn begins(&self, utterance: u64) {
        let tapped = &mut *self.0.borrow_mut();
        let now = tapped.clock.position(tapped.start.elapsed());
        if let Some(silencing) = &mut tapped.silencing {
            silencing.begins(utterance, now);
        }
    }

    /// It has ended, of which this was heard.
    pub fn ends(&self, utterance: u64, text: &str) {
        let tapped = &mut *self.0.borrow_mut();
        let now = tapped.clock.position(tapped.start.elapsed());
        if let Some(silencing) = &mut tapped.silencing {
            silencing.ends(utterance, tapped.redaction.count(text) > 0, now);
        }
    }

    fn layout(&self) -> Layout {
        self.0.borrow().clock.layout()
    }

    /// What is due now.
    fn due(&self) -> Due {
        let tapped = &mut *self.0.borrow_mut();
        let at = Instant::now();
        let until = tapped.clock.due(at.saturating_duration_since(tapped.start));
        Due { until, at }
    }
}

/// Until which frame of the clock pieces were due at a moment.
struct Due {
    until: u64,
    at: Instant,
}

/// The recording has failed; what was written of it is kept.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RecordingFailed(pub String);

/// Ends the recording with its session.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct StopRecording;

/// The recorder of one session.
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
    /// A recorder of the audio that the tap takes.
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
        // It outlives the actor: the recording is written to its end.
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
                // Once per recording.
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

/// Why a recording has failed.
#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error("the journal cannot be written: {0}")]
    Journal(#[from] io::Error),
    #[error(transparent)]
    Opus(#[from] OpusError),
    #[error(transparent)]
    Ogg(#[from] OggError),
    #[error("it cannot be written as fast as it comes")]
    Slow,
}

/// Writes what is due until the session ends, and then the rest.
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
    pages.begin();
    let mut desk = Desk::new(Scribe { pages, journal });
    desk.hand_over();
    let full = Rc::clone(&tap.0.borrow().full);
    loop {
        let over = tokio::select! {
            biased;
            () = ended.cancelled() => true,
            () = full.notified() => false,
            () = tokio::time::sleep(TICK) => false,
        };
        desk.take_back()?;
        if over {
            break;
        }
        desk.take_due(&tap, &ended).await?;
    }
    let end = {
        let tapped = &mut *tap.0.borrow_mut();
        let ends = tapped.left.unwrap_or_else(|| tapped.start.elapsed());
        End {
            frames: tapped.clock.finish(ends),
            goes_on: tapped.left.is_some(),
        }
    };
    desk.take_rest(&tap).await?;
    desk.finish(end).await
}

/// The tags of the comment header.
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

/// The encoder and the pages that it has filled.
struct Pages {
    encoder: OpusEncoder,
    writer: OggOpusWriter,
    packet: Vec<u8>,
    bytes: BytesMut,
    /// Frames of the clock that have been encoded.
    encoded: u64,
    complexity: u8,
    hurries: bool,
}

impl Pages {
    fn new(
        layout: Layout,
        settings: RecordingSettings,
        tags: &[(&'static str, String)],
    ) -> Result<Self, RecordError> {
        let encoder = OpusEncoder::new(
            layout,
            OpusSettings {
                complexity: settings.complexity,
                ..OpusSettings::recording(layout.channels)
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
            complexity: settings.complexity,
            hurries: false,
        })
    }

    /// The headers, before there is any audio.
    fn begin(&mut self) {
        self.bytes.extend_from_slice(&self.writer.headers());
    }

    /// A recorder that is behind, or whose thread is busy, encodes more cheaply: worse quality is better than a gap.
    fn hurry(&mut self, hurries: bool) -> Result<(), RecordError> {
        if self.hurries != hurries {
            self.hurries = hurries;
            let complexity = if hurries { 0 } else { self.complexity };
            self.encoder.set_complexity(complexity)?;
        }
        Ok(())
    }

    fn add(&mut self, piece: &Sound) -> Result<(), RecordError> {
        match piece {
            Sound::Block(block) => self.encode(block),
            Sound::Packet(packet) => self.push(packet),
            Sound::Silence(units) => self.silence(*units),
        }
    }

    fn encode(&mut self, block: &[i16]) -> Result<(), RecordError> {
        let len = self.encoder.encode(block, &mut self.packet)?;
        let packet = self.packet.get(..len).unwrap_or_default();
        self.bytes.extend_from_slice(&self.writer.push(packet)?);
        self.encoded += SampleRate::HZ_48000.frames_in(FRAME) as u64;
        Ok(())
    }

    /// Copies a packet as it is.
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

    /// Ends the stream after so many frames.
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

/// A piece of the recording that is not encoded yet.
enum Sound {
    /// Of [`FRAME`].
    Block(Box<[i16]>),
    Packet(Bytes),
    /// Of so many times 2.5 ms.
    Silence(u32),
}

impl Sound {
    /// Its size in bytes.
    fn size(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Block(block) => size_of_val(&**block),
                Self::Packet(packet) => packet.len(),
                Self::Silence(_) => 0,
            }
    }
}

/// Encodes and writes: either at rest with its recording, or on a thread of the writers.
struct Scribe {
    pages: Pages,
    journal: Journal,
}

impl Scribe {
    /// Writes, well or quickly, and returns itself unless that was the end.
    fn write(mut self, piece: &Unwritten, quickly: bool) -> Written {
        self.pages.hurry(quickly)?;
        // Before the sound: what has begun is marked by the time that the process may die in it.
        self.journal.mark(&piece.marks)?;
        for sound in &piece.sound {
            self.pages.add(sound)?;
        }
        if let Some(end) = piece.end {
            let pages = self.pages.finish(end.frames)?;
            self.journal.append(&pages, &piece.lines)?;
            self.journal.mark(&Mark::Ended.to_line())?;
            // What goes on is whole as far as it goes.
            if end.goes_on {
                self.journal.goes_on()?;
            }
            return Ok(None);
        }
        let pages = self.pages.bytes.split();
        self.journal.append(&pages, &piece.lines)?;
        Ok(Some(self))
    }
}

/// What is not written yet.
#[derive(Default)]
struct Unwritten {
    sound: Vec<Sound>,
    size: usize,
    lines: String,
    /// What is silenced.
    marks: String,
    /// Where the stream ends, once it does.
    end: Option<End>,
}

/// The end of a recording.
#[derive(Debug, Clone, Copy)]
struct End {
    frames: u64,
    /// Whether it goes on at another server.
    goes_on: bool,
}

impl Unwritten {
    fn is_empty(&self) -> bool {
        self.sound.is_empty()
            && self.lines.is_empty()
            && self.marks.is_empty()
            && self.end.is_none()
    }

    const fn is_too_much(&self) -> bool {
        self.size + self.lines.len() + self.marks.len() > MAX_UNWRITTEN
    }
}

type Written = Result<Option<Scribe>, RecordError>;

/// What waits for the scribe, and how late it is.
struct Desk {
    writers: Writers,
    /// `Some` while nothing of this recording is being written.
    idle: Option<Scribe>,
    writing: Option<oneshot::Receiver<Written>>,
    refused: Option<Job>,
    waiting: Unwritten,
    /// Until when everything that was due has been taken; what is being written was taken until then; and what is on the
    /// disk was.
    taken: Instant,
    handed_over: Instant,
    on_disk: Instant,
    late: bool,
}

impl Desk {
    fn new(scribe: Scribe) -> Self {
        let now = Instant::now();
        Self {
            writers: scribe.journal.writers().clone(),
            idle: Some(scribe),
            writing: None,
            refused: None,
            waiting: Unwritten::default(),
            taken: now,
            handed_over: now,
            on_disk: now,
            late: false,
        }
    }

    /// Takes what is due. Input faster than real time may keep something due for as long as it comes, so what was taken is
    /// handed over meanwhile, and the bound holds meanwhile.
    async fn take_due(&mut self, tap: &Tap, ended: &CancellationToken) -> Result<(), RecordError> {
        let mut now = tap.due();
        loop {
            let all = self.take_some(tap)?;
            if all || tap.0.borrow().clock.frames() >= now.until {
                self.taken = now.at;
                now = tap.due();
            }
            self.take_back()?;
            self.hand_over();
            if self.waiting.is_too_much() {
                return Err(RecordError::Slow);
            }
            if all || ended.is_cancelled() {
                return Ok(());
            }
            tokio::task::yield_now().await;
        }
    }

    /// Takes what is left on a clock that has ended. Nothing is added to it any more, so this can wait for the disk.
    async fn take_rest(&mut self, tap: &Tap) -> Result<(), RecordError> {
        while !self.take_some(tap)? {
            if self.waiting.is_too_much() {
                self.come_to_rest().await?;
            }
            self.take_back()?;
            self.hand_over();
            tokio::task::yield_now().await;
        }
        self.taken = Instant::now();
        Ok(())
    }

    /// Takes some pieces. True if no more are due.
    fn take_some(&mut self, tap: &Tap) -> Result<bool, RecordError> {
        let samples = tap.layout().samples_in(FRAME);
        let tapped = &mut *tap.0.borrow_mut();
        self.waiting.lines.push_str(&tapped.lines);
        tapped.lines.clear();
        if let Some(silencing) = &mut tapped.silencing {
            self.waiting.marks += &silencing.take_marks();
        }
        // A recording is not silently shorter than what was said.
        if !tapped.clock.dropped().is_zero() {
            return Err(RecordError::Slow);
        }
        let now = tapped.start.elapsed();
        for _ in 0..PIECES_AT_ONCE {
            let mut block = Vec::with_capacity(samples);
            let piece = match tapped.clock.take(now, &mut block) {
                Some(Piece::Block) => Sound::Block(block.into()),
                Some(Piece::Packet(packet)) => Sound::Packet(packet),
                Some(Piece::Silence(units)) => Sound::Silence(units),
                None => return Ok(true),
            };
            self.waiting.size += piece.size();
            self.waiting.sound.push(piece);
        }
        Ok(false)
    }

    /// Checks whether the last piece is written, and how late everything is.
    fn take_back(&mut self) -> Result<(), RecordError> {
        if let Some(writing) = &mut self.writing {
            match writing.try_recv() {
                Ok(written) => self.written(written)?,
                Err(oneshot::error::TryRecvError::Empty) => {}
                Err(oneshot::error::TryRecvError::Closed) => return Err(lost()),
            }
        }
        if self.idle.is_some() && self.waiting.is_empty() {
            self.on_disk = self.taken;
        }
        let behind = self.on_disk.elapsed();
        let late = behind > LATE;
        if late && !self.late {
            self.writers.late(behind);
        }
        self.late = late;
        Ok(())
    }

    fn written(&mut self, written: Written) -> Result<(), RecordError> {
        self.writing = None;
        self.idle = written?;
        self.on_disk = self.handed_over;
        Ok(())
    }

    /// Hands over what waits, unless the piece before is still being written.
    fn hand_over(&mut self) {
        if let Some(job) = self.refused.take() {
            self.submit(job);
        }
        let Some(scribe) = self.idle.take() else {
            return;
        };
        if self.waiting.is_empty() && scribe.pages.bytes.is_empty() {
            self.idle = Some(scribe);
            return;
        }
        let piece = std::mem::take(&mut self.waiting);
        let (tell, told) = oneshot::channel();
        self.writing = Some(told);
        self.handed_over = self.taken;
        self.submit(Job {
            work: Box::new(move |quickly| {
                // After a failure nobody waits for it.
                let _ = tell.send(scribe.write(&piece, quickly));
            }),
            since: self.on_disk.into_std(),
        });
    }

    /// Tries again while too much waits.
    fn submit(&mut self, job: Job) {
        self.refused = self.writers.submit(job).err();
    }

    /// Writes the rest, and returns when it is written.
    async fn finish(mut self, end: End) -> Result<(), RecordError> {
        self.waiting.end = Some(end);
        loop {
            self.come_to_rest().await?;
            if self.waiting.end.is_none() {
                return Ok(());
            }
            self.hand_over();
        }
    }

    /// Waits until what was handed over is written.
    async fn come_to_rest(&mut self) -> Result<(), RecordError> {
        while let Some(job) = self.refused.take() {
            tokio::time::sleep(TICK).await;
            self.submit(job);
        }
        if let Some(writing) = self.writing.take() {
            let written = writing.await.map_err(|_| lost())?;
            self.written(written)?;
        }
        Ok(())
    }
}

fn lost() -> RecordError {
    RecordError::Journal(io::Error::other("it could not be written"))
}

#[cfg(test)]
mod tests;
