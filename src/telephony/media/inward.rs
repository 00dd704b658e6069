//! From the telephone into the room: the sound of packets that are in order becomes Opus frames on the clock of the
//! published track, at once. Nothing waits here: whoever hears the room evens out the network's jitter, which they do
//! anyway, so it costs its delay once. What is lost is made up, a pause stays a pause, silence is not sent.

use std::time::{Duration, Instant};

use super::super::allowance::Allowance;
use super::Codec;
use super::codec::Decoder;
use super::conceal::Concealment;
use vivavoce_audio::Layout;
use vivavoce_audio::opus::{
    Application, FRAME, MAX_FRAME_PACKET, OpusEncoder, OpusError, OpusSettings,
};
use vivavoce_audio::pcm::level_dbov;
use vivavoce_seams::rooms::link::{CLOCK_HZ, Frame, PublishSink};

/// A gap by lost packets that is filled, in milliseconds. What is longer is a pause.
const MOST_LOST_MS: u32 = 100;
/// A pause longer than this, or a step back, is no pause but a clock that was set anew.
const LONGEST_PAUSE_MS: u32 = 10_000;
/// Sound that is not louder is silence …
const SILENCE_DBOV: u8 = 72;
/// … and is sent for so many frames all the same, so that the end of a word is not cut off.
const HANG_OVER: u32 = 15;
/// Milliseconds of sound that are taken each second, and at once: what was held up in a network comes at once, and what comes
/// for longer is more than anybody says, and work that others wait for.
const MOST_MS_PER_SECOND: u32 = 2_000;
const MOST_MS_AT_ONCE: u32 = 3_000;
/// Ticks of a frame.
const FRAME_TICKS: u32 = CLOCK_HZ / 50;

/// See the module.
#[derive(Debug)]
pub struct Inward {
    complexity: u8,
    sink: Option<PublishSink>,
    line: Option<Line>,
    /// The place of the next frame.
    timestamp: u32,
    marker: bool,
    packet: Vec<u8>,
    allowance: Allowance,
}

/// A codec's way to frames.
#[derive(Debug)]
struct Line {
    codec: Codec,
    decoder: Decoder,
    concealment: Concealment,
    encoder: OpusEncoder,
    /// Less than a frame, between two packets.
    sound: Vec<i16>,
    scratch: Vec<i16>,
    /// Where on the telephone's clock the next packet begins, and when it should come.
    next: Option<(u32, Instant)>,
    quiet: u32,
}

impl Inward {
    /// The complexity is that of the Opus encoder for wideband.
    pub fn new(complexity: u8) -> Self {
        Self {
            complexity,
            sink: None,
            line: None,
            timestamp: fastrand::u32(..),
            marker: true,
            packet: vec![0; MAX_FRAME_PACKET],
            allowance: Allowance::new(MOST_MS_PER_SECOND, MOST_MS_AT_ONCE),
        }
    }

    /// Where frames go from now on.
    pub fn publish(&mut self, sink: PublishSink) {
        self.sink = Some(sink);
        self.marker = true;
    }

    /// What comes next has nothing to do with what was; its place is by when it comes.
    pub fn restart(&mut self, now: Instant) {
        if let Some(line) = &mut self.line {
            line.concealment.forget();
            line.sound.clear();
            if let Some((_, due)) = line.next.take() {
                let late = ticks(now.saturating_duration_since(due));
                self.timestamp = self.timestamp.wrapping_add(late);
            }
        }
        self.marker = true;
    }

    /// Takes a packet; `lost` are those before it that never came. `false` where there is more sound than time.
    pub fn hear(
        &mut self,
        codec: Codec,
        timestamp: u32,
        payload: &[u8],
        lost: u64,
        now: Instant,
    ) -> bool {
        if !self.allowance.take(1.0, now) {
            return false;
        }
        if self.line.as_ref().is_none_or(|line| line.codec != codec) {
            self.line = match Line::new(codec, self.complexity) {
                Ok(line) => Some(line),
                Err(error) => {
                    tracing::error!(%error, "a codec cannot be used");
                    None
                }
            };
            self.marker = true;
        }
        let Some(line) = &mut self.line else {
            return true;
        };
        let mut skipped = 0;
        if let Some((expected, due)) = line.next {
            let gap = timestamp.wrapping_sub(expected);
            let per_ms = codec.clock_hz() / 1_000;
            if gap == 0 {
            } else if lost > 0 && gap <= MOST_LOST_MS * per_ms {
                self.allowance.charge(f64::from(gap / per_ms));
                line.conceal(codec.samples(gap));
            } else if gap <= LONGEST_PAUSE_MS * per_ms {
                skipped = gap * (CLOCK_HZ / codec.clock_hz());
            } else {
                skipped = ticks(now.saturating_duration_since(due));
            }
        }
        if skipped > 0 {
            // What waits for the rest of its frame gets silence instead.
            let waiting = line.sound.len();
            if waiting > 0 {
                let whole = line.encoder.frame_samples();
                line.sound.resize(whole, 0);
                let filled = (whole - waiting) as u32 * (FRAME_TICKS / whole as u32);
                skipped = skipped.saturating_sub(filled);
            }
        }
        self.leave();
        self.timestamp = self.timestamp.wrapping_add(skipped);
        self.marker |= skipped > 0;
        let Some(line) = &mut self.line else {
            return true;
        };
        line.scratch.clear();
        line.decoder.decode(payload, &mut line.scratch);
        line.concealment.heard(&mut line.scratch);
        line.sound.extend_from_slice(&line.scratch);
        let samples = line.scratch.len();
        let length = codec.rate().duration_of(samples);
        line.next = Some((timestamp.wrapping_add(codec.ticks(samples)), now + length));
        self.allowance.charge(length.as_secs_f64() * 1_000.0 - 1.0);
        self.leave();
        true
    }

    /// Whole frames leave.
    fn leave(&mut self) {
        let Some(line) = &mut self.line else {
            return;
        };
        let whole = line.encoder.frame_samples();
        let mut start = 0;
        while let Some(frame) = line.sound.get(start..start + whole) {
            start += whole;
            let timestamp = self.timestamp;
            self.timestamp = timestamp.wrapping_add(FRAME_TICKS);
            let level = level_dbov(frame);
            line.quiet = match level {
                SILENCE_DBOV.. => line.quiet.saturating_add(1),
                _ => 0,
            };
            let Some(sink) = self.sink.as_ref().filter(|_| line.quiet <= HANG_OVER) else {
                self.marker = true;
                continue;
            };
            match line.encoder.encode(frame, &mut self.packet) {
                Ok(bytes) => sink.push(Frame {
                    payload: self.packet.get(..bytes).unwrap_or_default().into(),
                    timestamp,
                    marker: std::mem::take(&mut self.marker),
                    level,
                }),
                Err(error) => tracing::debug!(%error, "a frame cannot be encoded"),
            }
        }
        line.sound.drain(..start);
    }
}

impl Line {
    fn new(codec: Codec, complexity: u8) -> Result<Self, OpusError> {
        let rate = codec.rate();
        // What a telephone sends is encoded at its own rate. The bit rates leave nothing to be heard of a second codec;
        // `Audio` is both closer to the original and several times cheaper than the model of speech.
        let settings = OpusSettings {
            application: Application::Audio,
            bitrate_bps: match codec {
                Codec::Pcmu | Codec::Pcma => 32_000,
                Codec::G722 | Codec::Opus => 40_000,
            },
            // What has no more than 4 kHz gains nothing that is heard by a harder search, which costs several times as much.
            complexity: match codec {
                Codec::Pcmu | Codec::Pcma => 0,
                Codec::G722 | Codec::Opus => complexity,
            },
            fec_loss_percent: None,
        };
        let frame = rate.frames_in(FRAME);
        Ok(Self {
            codec,
            decoder: Decoder::new(codec)?,
            concealment: Concealment::new(rate.hz()),
            encoder: OpusEncoder::new(Layout::mono(rate), settings)?,
            sound: Vec::with_capacity(6 * frame),
            scratch: Vec::with_capacity(6 * frame),
            next: None,
            quiet: 0,
        })
    }

    fn conceal(&mut self, samples: usize) {
        self.concealment.conceal(samples, &mut self.sound);
    }
}

/// Ticks of the track's clock in a time, which wraps as the clock does.
fn ticks(time: Duration) -> u32 {
    let ticks = time.as_micros() * u128::from(CLOCK_HZ) / 1_000_000;
    (ticks & u128::from(u32::MAX)) as u32
}
