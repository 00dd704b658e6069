//! The way out into a room: what the session's player lets leave becomes the frames of the one published track. The pace
//! is the player's; nothing waits here, so that what is cut is not heard.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use vivavoce_audio::opus::{
    Application, FRAME, MAX_FRAME_PACKET, OpusEncoder, OpusError, OpusSettings,
};
use vivavoce_audio::pcm::level_dbov;
use vivavoce_audio::{Layout, SampleRate};
use vivavoce_seams::rooms::link::{CLOCK_HZ, Frame, PublishSink};

/// The sound of a room.
pub const LAYOUT: Layout = Layout::mono(SampleRate::HZ_48000);
/// How far ahead of its time a frame may leave: the one that is next, so that a late timer leaves no gap.
pub const LEAD: Duration = Duration::from_millis(40);
/// Nothing is said before somebody can hear it, for this long at most.
const LISTENER_PATIENCE: Duration = Duration::from_secs(2);
/// Frames that are so late belong to the time when they are said, not behind the last one.
const GAP: Duration = Duration::from_millis(60);
/// Bits per second: speech is indistinguishable from its original, and forward error correction has room.
const BITRATE_BPS: u32 = 40_000;
/// The share of lost packets, in percent, that forward error correction is made for.
const EXPECTED_LOSS_PERCENT: u8 = 10;

/// The mouth of a session in a room; clones are the same.
#[derive(Clone)]
pub struct Mouth(Rc<Inner>);

struct Inner {
    publish: PublishSink,
    frames: RefCell<Frames>,
    open: Cell<bool>,
    /// Until when a listener is waited for.
    patience: Cell<Option<Instant>>,
    opened: Notify,
}

/// Makes frames of sound.
struct Frames {
    encoder: OpusEncoder,
    packet: Vec<u8>,
    /// The next frame's place, and when it is due if nothing is silent between.
    timestamp: u32,
    due: Option<Instant>,
}

impl Mouth {
    /// A mouth that is heard through this track. `complexity` is the encoder's, 0 (cheap) to 10.
    pub fn new(publish: PublishSink, complexity: u8) -> Result<Self, OpusError> {
        let settings = OpusSettings {
            application: Application::Voip,
            bitrate_bps: BITRATE_BPS,
            complexity,
            fec_loss_percent: Some(EXPECTED_LOSS_PERCENT),
        };
        let frames = Frames {
            encoder: OpusEncoder::new(LAYOUT, settings)?,
            packet: vec![0; MAX_FRAME_PACKET],
            timestamp: fastrand::u32(..),
            due: None,
        };
        Ok(Self(Rc::new(Inner {
            publish,
            frames: RefCell::new(frames),
            open: Cell::new(false),
            patience: Cell::new(None),
            opened: Notify::new(),
        })))
    }

    /// Somebody can hear it.
    pub fn open(&self) {
        self.0.open.set(true);
        self.0.opened.notify_waiters();
    }

    /// Whether something may be said now. Whoever asks wants to: from the first time on a listener is waited for.
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
        let until = self.0.patience.get().unwrap_or(now + LISTENER_PATIENCE);
        self.0.patience.set(Some(until));
        until
    }

    /// Waits until something may be said.
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

    /// Says 20 ms, [`LAYOUT`]; what is shorter ends in silence.
    pub fn say(&self, samples: &[i16]) -> Result<(), OpusError> {
        let frame = self.0.frames.borrow_mut().next(samples, Instant::now())?;
        self.0.publish.push(frame);
        Ok(())
    }
}

impl Frames {
    fn next(&mut self, samples: &[i16], now: Instant) -> Result<Frame, OpusError> {
        let due = self.due.unwrap_or(now);
        let late = now.saturating_duration_since(due);
        let marker = self.due.is_none() || late > GAP;
        let (due, skipped) = if marker {
            (now, late)
        } else {
            (due, Duration::ZERO)
        };
        self.timestamp = self.timestamp.wrapping_add(clock(skipped));
        let mut whole = samples.to_vec();
        whole.resize(LAYOUT.samples_in(FRAME), 0);
        let bytes = self.encoder.encode(&whole, &mut self.packet)?;
        let frame = Frame {
            payload: self.packet.get(..bytes).unwrap_or_default().into(),
            timestamp: self.timestamp,
            marker,
            level: level_dbov(&whole),
        };
        self.timestamp = self.timestamp.wrapping_add(clock(FRAME));
        self.due = Some(due + FRAME);
        Ok(frame)
    }
}

/// Ticks of the track's clock.
fn clock(time: Duration) -> u32 {
    let ticks = time.as_micros() * u128::from(CLOCK_HZ) / 1_000_000;
    // The clock wraps.
    (ticks & u128::from(u32::MAX)) as u32
}
