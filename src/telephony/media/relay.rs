//! Relaying between two telephones that are alone in a room and have one codec: payloads pass from the session of one to that
//! of the other, without decoding, encoding or a jitter buffer. [`Outlet`] is the sending side and [`Inlet`] the receiving
//! side of a session, which has both; the room says who is alone (`rooms::link::Relay`), `threads` carries packets across.
//!
//! Losses, their order and pauses are passed on as they are. What the other side gets is one RTP stream all the same: it has
//! its own SSRC, and its sequence numbers and timestamps go on from those of what was mixed before. Whatever interrupts a
//! run of packets (a DTMF event, a new source, a refusal) begins another run, whose numbers follow the highest of the last.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::Codec;
use super::rtp::Header;
use vivavoce_audio::opus::clock_frames;
use vivavoce_seams::rooms::link::{Relay, Relayed};

/// For how long everything must allow relaying before it begins.
const SETTLED: Duration = Duration::from_millis(500);
/// Without a packet for so many frames of 20 ms, the other side gets what the room has: silence, for want of packets.
const MOST_QUIET: u32 = 10;
/// A timestamp that jumps further than this, in milliseconds, begins another run.
const LONGEST_JUMP_MS: i32 = 10_000;
/// Payloads that are kept to continue their sound: what concealment remembers of G.711.
const KEPT_BYTES: usize = 320;

/// A packet on its way to the other session, and to whom. Its buffer is used again.
#[derive(Debug, Default)]
pub struct Passing {
    to: Option<Weak<dyn Relay>>,
    pub codec: Option<Codec>,
    pub header: Header,
    ticks: u32,
    run: u32,
    sequence: u64,
    pub payload: Vec<u8>,
}

impl Passing {
    /// Hands it over. `false` if it has to come through the room.
    pub fn send(&mut self) -> bool {
        let to = self.to.take().and_then(|to| to.upgrade());
        let relayed = to.zip(self.relayed());
        relayed.is_some_and(|(to, packet)| to.relay(&packet))
    }

    /// A copy for whoever cannot take it at once.
    pub fn copy(packet: &Relayed<'_>, codec: Codec) -> Self {
        let header = Header {
            marker: packet.marker,
            timestamp: packet.timestamp,
            ..Header::default()
        };
        Self {
            to: None,
            codec: Some(codec),
            header,
            ticks: packet.ticks,
            run: packet.run,
            sequence: packet.sequence,
            payload: packet.payload.to_vec(),
        }
    }

    /// The packet.
    pub fn relayed(&self) -> Option<Relayed<'_>> {
        Some(Relayed {
            encoding: self.codec?.name(),
            ticks: self.ticks,
            run: self.run,
            sequence: self.sequence,
            timestamp: self.header.timestamp,
            marker: self.header.marker,
            payload: &self.payload,
        })
    }
}

/// What a session passes on. See the module.
#[derive(Debug, Default)]
pub struct Outlet {
    /// To whom at the moment. Weak: the two sessions would keep each other.
    to: Option<Weak<dyn Relay>>,
    run: u32,
    /// The highest timestamp of the run.
    newest: Option<u32>,
    /// Since when everything allows it.
    since: Option<Instant>,
    passing: Passing,
}

impl Outlet {
    /// Whether packets are passed on.
    pub const fn is_open(&self) -> bool {
        self.to.is_some()
    }

    /// Whom the next packet of audio goes to, if it is to be passed on; `to` is who could take it.
    pub fn choose(&mut self, to: Option<Arc<dyn Relay>>, now: Instant) -> bool {
        let Some(to) = to else {
            self.close();
            return false;
        };
        let since = *self.since.get_or_insert(now);
        if self.to.is_none() {
            if now.saturating_duration_since(since) < SETTLED {
                return false;
            }
            self.interrupt();
        }
        self.to = Some(Arc::downgrade(&to));
        true
    }

    /// What follows goes through the room.
    pub fn close(&mut self) {
        self.since = None;
        if let Some(to) = self.to.take().and_then(|to| to.upgrade()) {
            to.stop();
        }
    }

    /// What follows does not continue what was before.
    pub const fn interrupt(&mut self) {
        self.run = self.run.wrapping_add(1);
        self.newest = None;
    }

    /// The next packet to pass on.
    pub fn put(&mut self, codec: Codec, header: Header, sequence: u64, payload: &[u8], ticks: u32) {
        if let Some(newest) = self.newest {
            let jump = header.timestamp.wrapping_sub(newest).cast_signed();
            let most = LONGEST_JUMP_MS * (codec.clock_hz() / 1_000) as i32;
            if !(-most..=most).contains(&jump) {
                self.interrupt();
            }
        }
        let newest = self.newest.get_or_insert(header.timestamp);
        if header.timestamp.wrapping_sub(*newest).cast_signed() > 0 {
            *newest = header.timestamp;
        }
        let passing = &mut self.passing;
        passing.to.clone_from(&self.to);
        passing.codec = Some(codec);
        passing.header = header;
        passing.ticks = ticks;
        passing.run = self.run;
        passing.sequence = sequence;
        passing.payload.clear();
        passing.payload.extend_from_slice(payload);
    }

    /// Gives away the packet that was put, in exchange for an empty buffer.
    pub const fn take(&mut self, passing: &mut Passing) -> bool {
        if self.passing.to.is_none() {
            return false;
        }
        std::mem::swap(&mut self.passing, passing);
        true
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.close();
    }
}

/// The length of a payload in timestamp units; `None` if it cannot be told.
pub fn ticks(codec: Codec, payload: &[u8]) -> Option<u32> {
    match codec {
        // 64 kbit/s on a clock of 8 kHz: a byte for each tick.
        Codec::Pcmu | Codec::Pcma | Codec::G722 => u32::try_from(payload.len()).ok(),
        Codec::Opus => clock_frames(payload).ok(),
    }
    .filter(|ticks| *ticks > 0)
}

/// Where the numbers of a run are in the stream that is sent.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    run: u32,
    /// The sequence number and timestamp of its first packet, …
    first: (u64, u32),
    /// … and what they became.
    sent: (u16, u32),
    /// The highest sequence number that was sent.
    highest: u64,
}

/// What a session is passed. See the module.
#[derive(Debug, Default)]
pub struct Inlet {
    anchor: Option<Anchor>,
    /// Frames since the last packet.
    quiet: u32,
    /// The last payloads.
    kept: Vec<u8>,
    /// Packets that were relayed.
    relayed: u64,
}

/// Where a relayed packet is in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    pub sequence: u16,
    pub timestamp: u32,
    /// Whether it is the newest, and so decides what follows.
    pub newest: bool,
    /// Whether it follows something that was not relayed.
    pub first: bool,
}

impl Inlet {
    /// Whether the stream is what is relayed.
    pub const fn is_open(&self) -> bool {
        self.anchor.is_some()
    }

    /// Packets that were relayed until now.
    pub const fn relayed(&self) -> u64 {
        self.relayed
    }

    /// Places a packet; the stream goes on with these numbers. `None` if it is from before its run began here.
    pub fn place(&mut self, packet: &Relayed<'_>, sequence: u16, timestamp: u32) -> Option<Placed> {
        let first = self.anchor.is_none();
        let known = self.anchor.filter(|anchor| anchor.run == packet.run);
        let mut anchor = known.unwrap_or(Anchor {
            run: packet.run,
            first: (packet.sequence, packet.timestamp),
            sent: (sequence, timestamp),
            highest: packet.sequence,
        });
        let ahead = packet.sequence.checked_sub(anchor.first.0)?;
        let newest = known.is_none() || packet.sequence > anchor.highest;
        if newest {
            anchor.highest = packet.sequence;
            self.quiet = 0;
        }
        self.anchor = Some(anchor);
        self.relayed += 1;
        let ticks = packet.timestamp.wrapping_sub(anchor.first.1);
        Some(Placed {
            sequence: anchor.sent.0.wrapping_add((ahead & 0xFFFF) as u16),
            timestamp: anchor.sent.1.wrapping_add(ticks),
            newest,
            first,
        })
    }

    /// Remembers the sound of the newest payload.
    pub fn keep(&mut self, payload: &[u8]) {
        let excess = (self.kept.len() + payload.len()).saturating_sub(KEPT_BYTES);
        self.kept.drain(..excess.min(self.kept.len()));
        self.kept.extend_from_slice(payload);
    }

    /// 20 ms have passed: whether the stream still is what is relayed.
    pub fn tick(&mut self) -> bool {
        self.quiet = self.quiet.saturating_add(1);
        self.is_open() && self.quiet <= MOST_QUIET
    }

    /// The stream is what the room has again. Returns the frames for which nothing was sent, and the last payloads.
    pub fn close(&mut self) -> (u32, Vec<u8>) {
        self.anchor = None;
        // Within the last packet and the wait for the next one nothing is missing.
        let missing = self.quiet.saturating_sub(2);
        (missing, std::mem::take(&mut self.kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn packet(run: u32, sequence: u64, timestamp: u32) -> Relayed<'static> {
        Relayed {
            encoding: "PCMU",
            ticks: 160,
            run,
            sequence,
            timestamp,
            marker: false,
            payload: &[0xFF; 160],
        }
    }

    /// SRTP would send two payloads under one key stream.
    #[test]
    fn no_sequence_number_is_used_twice_whatever_comes_late() {
        let mut inlet = Inlet::default();
        let (mut next, mut time) = (65_530_u16, u32::MAX - 300);
        let mut sent = std::collections::BTreeSet::new();
        let mut place = |packet: &Relayed<'_>| {
            let placed = inlet.place(packet, next, time)?;
            if placed.newest {
                next = placed.sequence.wrapping_add(1);
                time = placed.timestamp.wrapping_add(packet.ticks);
            }
            assert!(sent.insert(placed.sequence), "{placed:?}");
            Some(placed.sequence)
        };
        assert_eq!(place(&packet(1, 100, 0)), Some(65_530));
        assert_eq!(place(&packet(1, 103, 480)), Some(65_533));
        assert_eq!(place(&packet(1, 101, 160)), Some(65_531));
        // A digit was pressed: what follows it is another run, and what comes late is too late.
        assert_eq!(place(&packet(2, 110, 9_000)), Some(65_534));
        assert_eq!(place(&packet(2, 109, 8_840)), None);
        assert_eq!(place(&packet(2, 113, 9_480)), Some(1));
        assert_eq!(place(&packet(2, 112, 9_320)), Some(0));
    }

    #[test]
    fn a_stream_goes_on_where_it_was() {
        let mut inlet = Inlet::default();
        let placed = inlet.place(&packet(7, 5, 1_000), 40, 8_000).unwrap();
        assert_eq!((placed.sequence, placed.timestamp), (40, 8_000));
        assert!(placed.first && placed.newest);
        // A pause of the sender stays one.
        let placed = inlet.place(&packet(7, 6, 3_000), 41, 8_160).unwrap();
        assert_eq!((placed.sequence, placed.timestamp), (41, 10_000));
        assert!(!placed.first);
        assert!((0..MOST_QUIET).all(|_| inlet.tick()));
        assert!(!inlet.tick());
        assert_eq!(inlet.close().0, MOST_QUIET - 1);
        assert!(!inlet.is_open());
    }
}
