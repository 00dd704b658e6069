//! The forwarded payload: bytes that contain their time of sending, and what receivers count.

use std::time::{Duration, Instant};

use str0m::rtp::RtpPacket;
use tokio::sync::watch;

use super::super::participant::{Media, Phase};

/// What was received while it was measured.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// One for each packet.
    pub(super) delays_ms: Vec<f32>,
    /// The longest datagram.
    pub(super) datagram_bytes: u64,
}

impl Received {
    pub(super) fn count(&mut self, epoch: Instant, sent: Duration, datagram_bytes: usize) {
        let delay = epoch.elapsed().saturating_sub(sent);
        self.delays_ms.push((delay.as_secs_f64() * 1e3) as f32);
        self.datagram_bytes = self.datagram_bytes.max(datagram_bytes as u64);
    }

    pub(super) fn add(&mut self, other: Self) {
        self.delays_ms.extend(other.delays_ms);
        self.datagram_bytes = self.datagram_bytes.max(other.datagram_bytes);
    }
}

/// So many bytes that say when they were sent.
pub(super) fn stamp(epoch: Instant, bytes: usize) -> Vec<u8> {
    let since = u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut stamp = since.to_be_bytes().to_vec();
    stamp.resize(bytes.max(stamp.len()), 0x5a);
    stamp
}

/// When bytes of [`stamp`] were sent, since the epoch.
pub(super) fn sent_at(payload: &[u8]) -> Option<Duration> {
    let since = payload.first_chunk::<8>()?;
    Some(Duration::from_nanos(u64::from_be_bytes(*since)))
}

/// Stamps for sound.
pub(super) struct Stamps {
    /// What send times are counted from.
    pub(super) epoch: Instant,
    /// Of sound in a packet.
    pub(super) bytes: usize,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) received: Received,
}

impl Media for Stamps {
    fn say(&mut self) -> (Vec<u8>, bool) {
        (stamp(self.epoch, self.bytes), true)
    }

    fn hear(&mut self, packet: &RtpPacket, datagram_bytes: usize) {
        if *self.phase.borrow() == Phase::Measured
            && let Some(sent) = sent_at(&packet.payload)
        {
            self.received.count(self.epoch, sent, datagram_bytes);
        }
    }
}
