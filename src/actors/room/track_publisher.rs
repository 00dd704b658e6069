//! Publishes a session's speech in its room: makes what the player sends the frames of one track, encoded while somebody is in
//! the room who needs that. The player paces it; nothing is queued here, so that speech that has been cut is not heard.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use vivavoce_audio::opus::{Application, FRAME, OccasionalEncoder, OpusError, OpusSettings};
use vivavoce_audio::pcm::level_dbov;
use vivavoce_audio::{Bandwidth, Layout, SampleRate};
use vivavoce_core::busyness;
use vivavoce_seams::rooms::link::{CLOCK_HZ, Forms, Frame, PublishSink, Samples};

/// The clock of a room.
pub const LAYOUT: Layout = Layout::mono(SampleRate::HZ_48000);
/// How far ahead of real time a frame may leave: one frame, so that a late timer leaves no gap.
pub const LEAD: Duration = Duration::from_millis(40);
/// How long the first speech waits for a subscriber.
const SUBSCRIBER_PATIENCE: Duration = Duration::from_secs(2);
/// A frame that is later than this starts a new talkspurt instead of following the last one.
const GAP: Duration = Duration::from_millis(60);
/// Bits per second: speech is indistinguishable from its original, and forward error correction has room.
const BITRATE_BPS: u32 = 40_000;
/// Packet loss, in percent, that forward error correction is configured for.
const EXPECTED_LOSS_PERCENT: u8 = 10;
/// The encoder's complexity at most while its thread is busy: the highest with which it tries one way to quantise, and not several.
const HURRIED: u8 = 1;

/// The published track of a session; clones are the same track.
#[derive(Clone)]
pub struct TrackPublisher(Rc<Inner>);

struct Inner {
    publish: PublishSink,
    frames: RefCell<Frames>,
    open: Cell<bool>,
    /// Until when a subscriber is waited for.
    patience: Cell<Option<Instant>>,
    opened: Notify,
}

/// Encodes and timestamps frames.
struct Frames {
    bandwidth: Bandwidth,
    complexity: u8,
    encoder: OccasionalEncoder,
    /// RTP timestamp of the next frame, and when it is due if there is no silence in between.
    timestamp: u32,
    due: Option<Instant>,
    /// Whether the next frame is the first one after silence.
    marker: bool,
}

impl TrackPublisher {
    /// A publisher for this track of sound of this bandwidth. `complexity` is the encoder's, 0 (cheap) to 10, while its thread has
    /// the time.
    pub fn new(publish: PublishSink, bandwidth: Bandwidth, complexity: u8) -> Self {
        Self(Rc::new(Inner {
            publish,
            frames: RefCell::new(Frames::new(bandwidth, complexity)),
            open: Cell::new(false),
            patience: Cell::new(None),
            opened: Notify::new(),
        }))
    }

    /// From now on its sound has this bandwidth.
    pub fn set_bandwidth(&self, bandwidth: Bandwidth) {
        self.0.frames.borrow_mut().set_bandwidth(bandwidth);
    }

    /// The track has a subscriber.
    pub fn open(&self) {
        self.0.open.set(true);
        self.0.opened.notify_waiters();
    }

    /// Whether speech may be sent now. The wait for a subscriber begins with the first call.
    pub fn is_open(&self) -> bool {
        if self.0.open.get() {
            return true;
        }
        let now = Instant::now();
        let until = self.patience(now);
        if now >= until {
            self.open();
        }
        self.0.open.get()
    }

    fn patience(&self, now: Instant) -> Instant {
        let until = self.0.patience.get().unwrap_or(now + SUBSCRIBER_PATIENCE);
        self.0.patience.set(Some(until));
        until
    }

    /// Waits until speech may be sent.
    pub async fn opened(&self) {
        loop {
            let opened = self.0.opened.notified();
            if self.is_open() {
                return;
            }
            let until = self.patience(Instant::now());
            tokio::select! {
                () = opened => {}
                () = sleep_until(until) => {}
            }
        }
    }

    /// Sends 20 ms; less is padded with silence.
    pub fn send(&self, samples: &[i16]) -> Result<(), OpusError> {
        self.send_due(samples, Instant::now())
    }

    /// Sends 20 ms that were due at that time. While they follow each other without a pause, it is for the listeners to wait
    /// for those that are late: their jitter buffers learn how late this machine is.
    pub fn send_due(&self, samples: &[i16], due: Instant) -> Result<(), OpusError> {
        let wanted = self.0.publish.wanted();
        let mut frames = self.0.frames.borrow_mut();
        frames.hurry(busyness::is_busy())?;
        self.0.publish.push(frames.next(samples, wanted, due)?);
        Ok(())
    }

    /// Sends the next 20 ms of a stream that keeps its own time: however late this is called, they follow the 20 ms before.
    pub fn send_next(&self, samples: &[i16]) -> Result<(), OpusError> {
        let wanted = self.0.publish.wanted();
        let mut frames = self.0.frames.borrow_mut();
        frames.hurry(busyness::is_busy())?;
        self.0.publish.push(frames.make(samples, wanted)?);
        Ok(())
    }

    /// The next 20 ms of such a stream are silence, of which nothing is sent.
    pub fn send_nothing(&self) {
        self.0.frames.borrow_mut().pause();
    }
}

impl Frames {
    fn new(bandwidth: Bandwidth, complexity: u8) -> Self {
        Self {
            bandwidth,
            complexity,
            encoder: encoder(bandwidth, complexity),
            timestamp: fastrand::u32(..),
            due: None,
            marker: true,
        }
    }

    fn set_bandwidth(&mut self, bandwidth: Bandwidth) {
        if self.bandwidth != bandwidth {
            self.bandwidth = bandwidth;
            self.encoder = encoder(bandwidth, self.complexity);
        }
    }

    /// Encodes well, or quickly.
    fn hurry(&mut self, hurries: bool) -> Result<(), OpusError> {
        let most = if hurries { HURRIED } else { u8::MAX };
        self.encoder.set_complexity(self.complexity.min(most))
    }

    fn next(&mut self, samples: &[i16], wanted: Forms, at: Instant) -> Result<Frame, OpusError> {
        let due = self.due.unwrap_or(at);
        let late = at.saturating_duration_since(due);
        let marker = self.due.is_none() || late > GAP;
        let (due, skipped) = if marker {
            (at, late)
        } else {
            (due, Duration::ZERO)
        };
        self.timestamp = self.timestamp.wrapping_add(clock(skipped));
        self.marker |= marker;
        let frame = self.make(samples, wanted)?;
        self.due = Some(due + FRAME);
        Ok(frame)
    }

    /// The next frame, behind the one before.
    fn make(&mut self, samples: &[i16], wanted: Forms) -> Result<Frame, OpusError> {
        let mut whole = [0; Bandwidth::Fullband.frame()];
        let whole = whole.get_mut(..self.bandwidth.frame()).unwrap_or_default();
        for (to, from) in whole.iter_mut().zip(samples) {
            *to = *from;
        }
        self.encoder.protect(wanted.redundancy)?;
        let frame = Frame {
            opus: self.encoder.encode(whole, wanted.opus)?,
            pcm: wanted.pcm.then(|| Samples::new(whole)).flatten(),
            timestamp: self.timestamp,
            marker: std::mem::take(&mut self.marker),
            level: level_dbov(whole),
        };
        self.timestamp = self.timestamp.wrapping_add(clock(FRAME));
        Ok(frame)
    }

    /// As long as a frame of silence.
    fn pause(&mut self) {
        self.marker = true;
        self.timestamp = self.timestamp.wrapping_add(clock(FRAME));
    }
}

fn encoder(bandwidth: Bandwidth, complexity: u8) -> OccasionalEncoder {
    let settings = OpusSettings {
        application: Application::Voip,
        bitrate_bps: BITRATE_BPS,
        complexity,
        fec_loss_percent: Some(EXPECTED_LOSS_PERCENT),
    };
    OccasionalEncoder::new(Layout::mono(bandwidth.rate()), settings)
}

/// In ticks of the RTP clock.
fn clock(time: Duration) -> u32 {
    let ticks = time.as_micros() * u128::from(CLOCK_HZ) / 1_000_000;
    // The clock wraps.
    (ticks & u128::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a second of a swept tone is encoded to.
    fn encoded(complexity: u8, hurries: bool) -> Vec<Vec<u8>> {
        let wanted = Forms {
            opus: true,
            pcm: false,
            redundancy: false,
        };
        let mut frames = Frames::new(Bandwidth::Fullband, complexity);
        let mut packets = Vec::new();
        for number in 0..50 {
            frames.hurry(hurries).unwrap();
            let samples = (0..960).map(|at| {
                let time = f64::from(number * 960 + at) / 48_000.0;
                ((time * (300.0 + 900.0 * time)).sin() * 8_000.0) as i16
            });
            let samples: Vec<i16> = samples.collect();
            let frame = frames.make(&samples, wanted).unwrap();
            packets.push(frame.opus.unwrap().to_vec());
        }
        packets
    }

    #[test]
    fn who_is_in_a_hurry_encodes_with_less_trouble() {
        let at_ease = encoded(5, false);
        let hurried = encoded(5, true);
        assert_ne!(at_ease, hurried);
        assert_eq!(hurried, encoded(HURRIED, false));
        // Never with more than what was asked for.
        assert_eq!(encoded(0, true), encoded(0, false));
    }
}
