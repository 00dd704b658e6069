//! What comes from the telephone, in order: which packets are new, which never came, how unevenly they come (RFC 3550
//! appendix A). A packet that was overtaken is waited for a moment; the first that is there goes through at once. What is
//! in them is left to others.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::rtcp::ReportBlock;

/// How long an overtaken packet is waited for.
const PATIENCE: Duration = Duration::from_millis(60);
/// How many packets wait behind a missing one.
const MOST_WAITING: usize = 5;
/// A sequence number that is so far ahead, or less far behind, belongs to the stream.
const MOST_AHEAD: u16 = 3_000;
const MOST_BEHIND: u16 = 100;
/// Below this a number would be negative.
const FIRST: u64 = 1 << 16;

/// A packet that waits for one before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting<T> {
    /// Packets before it that never came.
    pub lost: u64,
    /// What it is.
    pub packet: T,
    sequence: u64,
    until: Instant,
}

/// What to do with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It is the next.
    Next,
    /// It is the first of a stream: what was before does not matter.
    First,
    /// One before it is missing: it is to be kept by [`Arrivals::keep`].
    Early(u64),
    /// It came twice, too late, or from elsewhere.
    Useless,
}

/// See the module.
#[derive(Debug)]
pub struct Arrivals<T> {
    stream: Option<Stream>,
    waiting: VecDeque<Waiting<T>>,
    /// Of the streams before.
    lost_before: u64,
    received: u64,
}

#[derive(Debug)]
struct Stream {
    ssrc: u32,
    /// The first number, extended; then the highest.
    base: u64,
    highest: u64,
    /// What goes through next.
    next: u64,
    received: u64,
    /// The next number of a stream that began anew without saying so.
    strange: Option<u16>,
    transit: Option<i64>,
    /// In 1/16 ticks.
    jitter: i64,
    /// At the last report.
    expected_then: u64,
    received_then: u64,
}

impl<T> Default for Arrivals<T> {
    fn default() -> Self {
        Self {
            stream: None,
            waiting: VecDeque::new(),
            lost_before: 0,
            received: 0,
        }
    }
}

impl<T> Arrivals<T> {
    /// Takes note of a packet. A new SSRC begins a new stream.
    pub fn note(&mut self, ssrc: u32, number: u16) -> Place {
        let Some(stream) = self.stream.as_mut().filter(|stream| stream.ssrc == ssrc) else {
            return self.begin(ssrc, number);
        };
        let ahead = number.wrapping_sub(stream.highest as u16);
        let sequence = if ahead < MOST_AHEAD {
            stream.highest + u64::from(ahead)
        } else if ahead > u16::MAX - MOST_BEHIND {
            stream.highest - u64::from(ahead.wrapping_neg())
        } else if stream.strange == Some(number) {
            return self.begin(ssrc, number);
        } else {
            stream.strange = Some(number.wrapping_add(1));
            return Place::Useless;
        };
        stream.strange = None;
        let double = self.waiting.iter().any(|w| w.sequence == sequence);
        if sequence < stream.next || double {
            return Place::Useless;
        }
        stream.highest = stream.highest.max(sequence);
        stream.received += 1;
        self.received += 1;
        if sequence > stream.next {
            return Place::Early(sequence);
        }
        stream.next += 1;
        Place::Next
    }

    fn begin(&mut self, ssrc: u32, number: u16) -> Place {
        self.lost_before = self.lost();
        self.waiting.clear();
        self.received += 1;
        let first = FIRST + u64::from(number);
        self.stream = Some(Stream {
            ssrc,
            base: first,
            highest: first,
            next: first + 1,
            received: 1,
            strange: None,
            transit: None,
            jitter: 0,
            expected_then: 0,
            received_then: 0,
        });
        Place::First
    }

    /// Keeps a packet that is early.
    pub fn keep(&mut self, sequence: u64, packet: T, now: Instant) {
        let later = self.waiting.iter().rev();
        let place = later.take_while(|w| w.sequence > sequence).count();
        let waiting = Waiting {
            lost: 0,
            packet,
            sequence,
            until: now + PATIENCE,
        };
        self.waiting.insert(self.waiting.len() - place, waiting);
    }

    /// The next of those kept whose time has come: nothing is missing before it any more, or is not waited for.
    pub fn next(&mut self, now: Instant) -> Option<Waiting<T>> {
        let stream = self.stream.as_mut()?;
        let first = self.waiting.front()?;
        let lost = first.sequence.saturating_sub(stream.next);
        let impatient = self.waiting.iter().any(|waiting| waiting.until <= now);
        if lost > 0 && !impatient && self.waiting.len() <= MOST_WAITING {
            return None;
        }
        let first = self.waiting.pop_front()?;
        stream.next = first.sequence + 1;
        Some(Waiting { lost, ..first })
    }

    /// Takes note of when a packet came, in ticks of its clock, for the jitter. Only of those of sound: keys have the
    /// time of their beginning.
    pub fn time(&mut self, arrived: i64, timestamp: u32) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        // Only differences matter, and they are small.
        let transit = i64::from((arrived as u32).wrapping_sub(timestamp).cast_signed());
        if let Some(before) = stream.transit.replace(transit) {
            let difference = i64::from((transit as i32).wrapping_sub(before as i32)).abs();
            stream.jitter += difference - ((stream.jitter + 8) >> 4);
        }
    }

    /// The next packet of sound is no measure of jitter: there was a pause, or a jump.
    pub fn forget_time(&mut self) {
        if let Some(stream) = &mut self.stream {
            stream.transit = None;
        }
    }

    /// Packets that came, doubles not counted.
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Packets that never came.
    pub fn lost(&self) -> u64 {
        self.lost_before + self.stream.as_ref().map_or(0, Stream::lost)
    }

    /// In ticks.
    pub fn jitter(&self) -> u32 {
        self.stream
            .as_ref()
            .map_or(0, |stream| (stream.jitter >> 4) as u32)
    }

    /// What is to be reported, and the beginning of what is to be reported next time.
    pub fn report(&mut self) -> Option<ReportBlock> {
        let stream = self.stream.as_mut()?;
        let expected = stream.highest - stream.base + 1;
        let expected_now = expected - stream.expected_then;
        let received_now = stream.received - stream.received_then;
        stream.expected_then = expected;
        stream.received_then = stream.received;
        let lost_now = expected_now.saturating_sub(received_now);
        Some(ReportBlock {
            ssrc: stream.ssrc,
            fraction_lost: (lost_now * 256)
                .checked_div(expected_now)
                .unwrap_or(0)
                .min(255) as u8,
            lost: stream.lost().min(0x7F_FFFF) as i32,
            highest: (stream.highest - FIRST) as u32,
            jitter: (stream.jitter >> 4) as u32,
            last_report: 0,
            delay: 0,
        })
    }
}

impl Stream {
    fn lost(&self) -> u64 {
        (self.highest - self.base + 1).saturating_sub(self.received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes packets, `None` being a while without any, and gives what goes through: number and losses before it.
    fn through(arrivals: &mut Arrivals<u16>, packets: &[Option<u16>]) -> Vec<(u16, u64)> {
        let mut now = Instant::now();
        let mut through = Vec::new();
        for packet in packets {
            match packet {
                None => now += PATIENCE,
                Some(number) => match arrivals.note(1, *number) {
                    Place::Next | Place::First => through.push((*number, 0)),
                    Place::Early(sequence) => arrivals.keep(sequence, *number, now),
                    Place::Useless => {}
                },
            }
            while let Some(waiting) = arrivals.next(now) {
                through.push((waiting.packet, waiting.lost));
            }
        }
        through
    }

    #[test]
    fn packets_in_order_go_through_at_once_and_overtaken_ones_are_put_in_place() {
        let mut arrivals = Arrivals::default();
        let packets = [65_534, 0, 65_535, 1, 3, 4, 2, 4, 0].map(Some);
        let numbers: Vec<_> = [65_534, 65_535, 0, 1, 2, 3, 4].map(|n| (n, 0)).into();
        assert_eq!(through(&mut arrivals, &packets), numbers);
        assert_eq!((arrivals.received(), arrivals.lost()), (7, 0));
    }

    #[test]
    fn what_does_not_come_is_not_waited_for_for_long() {
        let mut arrivals = Arrivals::default();
        let packets = [Some(7), Some(9), None, Some(8), Some(10)];
        assert_eq!(through(&mut arrivals, &packets), [(7, 0), (9, 1), (10, 0)]);
        assert_eq!(arrivals.lost(), 1);
        let packets = [12, 13, 14, 15, 16, 17].map(Some);
        let numbers = through(&mut arrivals, &packets);
        assert_eq!(numbers[0], (12, 1));
        assert_eq!(numbers.len(), 6);
        let report = arrivals.report().unwrap();
        assert_eq!((report.lost, report.highest), (2, 17));
        assert_eq!(report.fraction_lost, (2 * 256 / 11) as u8);
        assert_eq!(arrivals.report().unwrap().fraction_lost, 0);
    }

    #[test]
    fn a_stream_that_begins_anew_is_followed_and_a_stray_packet_is_not() {
        let mut arrivals = Arrivals::default();
        assert_eq!(
            through(&mut arrivals, &[1, 2, 30_000, 3].map(Some)).len(),
            3
        );
        assert_eq!(arrivals.note(1, 40_000), Place::Useless);
        assert_eq!(arrivals.note(1, 40_001), Place::First);
        assert_eq!(arrivals.note(2, 5), Place::First);
        assert_eq!(arrivals.lost(), 0);
    }

    #[test]
    fn jitter_is_that_of_the_standard() {
        let mut arrivals = Arrivals::<u16>::default();
        for n in 0..1_000_u32 {
            arrivals.note(1, n as u16);
            // Every other packet is 10 ms late: 80 ticks apart each time.
            arrivals.time(i64::from(n * 160 + n % 2 * 80), n.wrapping_mul(160));
        }
        assert!(
            (75..=80).contains(&arrivals.jitter()),
            "{}",
            arrivals.jitter()
        );
    }
}
