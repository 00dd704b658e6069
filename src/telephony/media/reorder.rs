//! A reorder buffer for the RTP packets of a call, with the statistics of RFC 3550 appendix A (losses, jitter). A packet
//! that was overtaken is waited for briefly; packets in order pass at once. The payloads are the session's.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::rtcp::ReportBlock;

/// How long a missing packet is waited for.
const PATIENCE: Duration = Duration::from_millis(60);
/// How many packets may wait behind a missing one.
const MOST_WAITING: usize = 5;
/// A sequence number at most so far ahead, or less far behind, belongs to the stream.
const MOST_AHEAD: u16 = 3_000;
const MOST_BEHIND: u16 = 100;
/// Extended sequence numbers start here, so that they cannot become negative.
const FIRST: u64 = 1 << 16;

/// A packet that waits for an earlier one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting<T> {
    /// Lost packets before it.
    pub lost: u64,
    /// The packet.
    pub packet: T,
    sequence: u64,
    until: Instant,
}

/// What to do with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// It is the next in order.
    Next,
    /// It begins a stream, unrelated to what came before.
    First,
    /// An earlier one is missing: pass it to [`ReorderBuffer::keep`].
    Early(u64),
    /// It is a duplicate, too late, or out of range: drop it.
    Useless,
}

/// Where a packet is in the stream.
enum Place {
    /// It has this extended sequence number.
    At(u64),
    /// It begins a stream.
    Anew,
    /// It is out of range.
    Nowhere,
}

/// Puts packets in order. See the module.
#[derive(Debug)]
pub struct ReorderBuffer<T> {
    stream: Option<Stream>,
    waiting: VecDeque<Waiting<T>>,
    /// Losses of earlier streams.
    lost_before: u64,
    received: u64,
}

#[derive(Debug)]
struct Stream {
    ssrc: u32,
    /// Extended sequence numbers: the first, then the highest.
    base: u64,
    highest: u64,
    /// The next one to pass.
    next: u64,
    received: u64,
    /// The number that would confirm that the stream has restarted (RFC 3550 appendix A.1, `bad_seq`).
    strange: Option<u16>,
    /// Which of the last 64 numbers were received, the highest in the lowest bit. Only [`ReorderBuffer::pass`] reads it.
    seen: u64,
    transit: Option<i64>,
    /// In 1/16 timestamp units.
    jitter: i64,
    /// Counts at the time of the last report.
    expected_then: u64,
    received_then: u64,
}

impl<T> Default for ReorderBuffer<T> {
    fn default() -> Self {
        Self {
            stream: None,
            waiting: VecDeque::new(),
            lost_before: 0,
            received: 0,
        }
    }
}

impl<T> ReorderBuffer<T> {
    /// Classifies a packet. A new SSRC begins a new stream.
    pub fn note(&mut self, ssrc: u32, number: u16) -> Disposition {
        let sequence = match self.locate(ssrc, number) {
            Place::At(sequence) => sequence,
            Place::Anew => return self.begin(ssrc, number),
            Place::Nowhere => return Disposition::Useless,
        };
        let Some(stream) = &mut self.stream else {
            return Disposition::Useless;
        };
        stream.seen = u64::MAX;
        let double = self.waiting.iter().any(|w| w.sequence == sequence);
        if sequence < stream.next || double {
            return Disposition::Useless;
        }
        stream.highest = stream.highest.max(sequence);
        stream.received += 1;
        self.received += 1;
        if sequence > stream.next {
            return Disposition::Early(sequence);
        }
        stream.next += 1;
        Disposition::Next
    }

    /// Takes a packet that is passed on in order of arrival, whatever is missing before it: its extended sequence number, and
    /// whether it begins a stream. `None` for a duplicate, and for what is too late or out of range. No packet may be waiting.
    pub fn pass(&mut self, ssrc: u32, number: u16) -> Option<(u64, bool)> {
        let sequence = match self.locate(ssrc, number) {
            Place::At(sequence) => sequence,
            Place::Anew => {
                self.begin(ssrc, number);
                return Some((FIRST + u64::from(number), true));
            }
            Place::Nowhere => return None,
        };
        let stream = self.stream.as_mut()?;
        let behind = stream.highest.saturating_sub(sequence);
        if let Some(ahead) = sequence.checked_sub(stream.highest + 1) {
            let shift = u32::try_from(ahead + 1).unwrap_or(u32::MAX);
            stream.seen = stream.seen.checked_shl(shift).unwrap_or(0);
            stream.highest = sequence;
        }
        let bit = 1
            << u32::try_from(behind)
                .ok()
                .filter(|behind| *behind < u64::BITS)?;
        if stream.seen & bit != 0 {
            return None;
        }
        stream.seen |= bit;
        stream.received += 1;
        self.received += 1;
        stream.next = stream.highest + 1;
        Some((sequence, false))
    }

    /// Whether no packet waits for an earlier one.
    pub fn is_settled(&self) -> bool {
        self.waiting.is_empty()
    }

    fn locate(&mut self, ssrc: u32, number: u16) -> Place {
        let Some(stream) = self.stream.as_mut().filter(|stream| stream.ssrc == ssrc) else {
            return Place::Anew;
        };
        let ahead = number.wrapping_sub(stream.highest as u16);
        let sequence = if ahead < MOST_AHEAD {
            stream.highest + u64::from(ahead)
        } else if ahead > u16::MAX - MOST_BEHIND {
            stream.highest - u64::from(ahead.wrapping_neg())
        } else if stream.strange == Some(number) {
            return Place::Anew;
        } else {
            stream.strange = Some(number.wrapping_add(1));
            return Place::Nowhere;
        };
        stream.strange = None;
        Place::At(sequence)
    }

    fn begin(&mut self, ssrc: u32, number: u16) -> Disposition {
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
            seen: u64::MAX,
            transit: None,
            jitter: 0,
            expected_then: 0,
            received_then: 0,
        });
        Disposition::First
    }

    /// Keeps an early packet.
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

    /// The next packet kept, once the gap before it is filled or its wait is over.
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

    /// Updates the jitter estimate with an arrival time, in timestamp units. Only for audio packets: DTMF events carry the
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

    /// Skips the next packet in the jitter estimate: there was a pause or a jump.
    pub fn forget_time(&mut self) {
        if let Some(stream) = &mut self.stream {
            stream.transit = None;
        }
    }

    /// Packets received, without duplicates.
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Packets lost.
    pub fn lost(&self) -> u64 {
        self.lost_before + self.stream.as_ref().map_or(0, Stream::lost)
    }

    /// Interarrival jitter in timestamp units.
    pub fn jitter(&self) -> u32 {
        self.stream
            .as_ref()
            .map_or(0, |stream| (stream.jitter >> 4) as u32)
    }

    /// The report block since the last report.
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

    /// Passes packets, `None` being a while without any; returns sequence numbers with the losses before them.
    fn through(reorder: &mut ReorderBuffer<u16>, packets: &[Option<u16>]) -> Vec<(u16, u64)> {
        let mut now = Instant::now();
        let mut through = Vec::new();
        for packet in packets {
            match packet {
                None => now += PATIENCE,
                Some(number) => match reorder.note(1, *number) {
                    Disposition::Next | Disposition::First => through.push((*number, 0)),
                    Disposition::Early(sequence) => reorder.keep(sequence, *number, now),
                    Disposition::Useless => {}
                },
            }
            while let Some(waiting) = reorder.next(now) {
                through.push((waiting.packet, waiting.lost));
            }
        }
        through
    }

    #[test]
    fn packets_in_order_go_through_at_once_and_overtaken_ones_are_put_in_place() {
        let mut reorder = ReorderBuffer::default();
        let packets = [65_534, 0, 65_535, 1, 3, 4, 2, 4, 0].map(Some);
        let numbers: Vec<_> = [65_534, 65_535, 0, 1, 2, 3, 4].map(|n| (n, 0)).into();
        assert_eq!(through(&mut reorder, &packets), numbers);
        assert_eq!((reorder.received(), reorder.lost()), (7, 0));
    }

    #[test]
    fn what_does_not_come_is_not_waited_for_for_long() {
        let mut reorder = ReorderBuffer::default();
        let packets = [Some(7), Some(9), None, Some(8), Some(10)];
        assert_eq!(through(&mut reorder, &packets), [(7, 0), (9, 1), (10, 0)]);
        assert_eq!(reorder.lost(), 1);
        let packets = [12, 13, 14, 15, 16, 17].map(Some);
        let numbers = through(&mut reorder, &packets);
        assert_eq!(numbers[0], (12, 1));
        assert_eq!(numbers.len(), 6);
        let report = reorder.report().unwrap();
        assert_eq!((report.lost, report.highest), (2, 17));
        assert_eq!(report.fraction_lost, (2 * 256 / 11) as u8);
        assert_eq!(reorder.report().unwrap().fraction_lost, 0);
    }

    #[test]
    fn what_is_passed_on_in_order_of_arrival_is_counted_all_the_same() {
        let mut reorder = ReorderBuffer::<u16>::default();
        assert_eq!(reorder.note(1, 65_533), Disposition::First);
        let packets = [65_534, 65_535, 2, 0, 0, 65_535, 1, 5, 65_533];
        let passed =
            packets.map(|number| reorder.pass(1, number).map(|(sequence, _)| sequence as u16));
        let expected = [
            Some(65_534),
            Some(65_535),
            Some(2),
            Some(0),
            None,
            None,
            Some(1),
            Some(5),
            None,
        ];
        assert_eq!(passed, expected);
        assert_eq!((reorder.received(), reorder.lost()), (7, 2));
        // What is put in order again goes on after the highest.
        assert_eq!(reorder.note(1, 6), Disposition::Next);
        assert_eq!(reorder.note(1, 3), Disposition::Useless);
        assert_eq!(reorder.pass(2, 9), Some((FIRST + 9, true)));
        assert!(reorder.pass(2, 2_000).is_some());
        assert_eq!(reorder.pass(2, 1_930), None);
    }

    #[test]
    fn a_stream_that_begins_anew_is_followed_and_a_stray_packet_is_not() {
        let mut reorder = ReorderBuffer::default();
        assert_eq!(through(&mut reorder, &[1, 2, 30_000, 3].map(Some)).len(), 3);
        assert_eq!(reorder.note(1, 40_000), Disposition::Useless);
        assert_eq!(reorder.note(1, 40_001), Disposition::First);
        assert_eq!(reorder.note(2, 5), Disposition::First);
        assert_eq!(reorder.lost(), 0);
    }

    #[test]
    fn jitter_is_that_of_the_standard() {
        let mut reorder = ReorderBuffer::<u16>::default();
        for n in 0..1_000_u32 {
            reorder.note(1, n as u16);
            // Every other packet is 10 ms late: 80 units apart each time.
            reorder.time(i64::from(n * 160 + n % 2 * 80), n.wrapping_mul(160));
        }
        assert!(
            (75..=80).contains(&reorder.jitter()),
            "{}",
            reorder.jitter()
        );
    }
}
