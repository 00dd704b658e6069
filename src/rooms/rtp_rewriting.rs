//! Rewriting of RTP sequence numbers and timestamps.
//!
//! A subscriber's slot is one RTP stream to its client, but its source changes: another track is assigned to it, or the
//! publisher reconnects. Each source has its own random numbers (RFC 3550 section 5.1), so the SFU rebases them, and the
//! subscriber sees one continuous stream. `peer` writes the packets.

/// The first outgoing sequence number. It must be below 65,536, or the receiver could not know the rollover counter (RFC
/// 3711 section 3.3.1).
const FIRST_SEQUENCE: u64 = 1_000;

/// Maps the numbers of a source to those of an outgoing stream.
#[derive(Debug, Default)]
pub struct Rebase {
    source: Option<Source>,
    last: Option<Sent>,
}

#[derive(Debug)]
struct Source {
    ssrc: u32,
    sequence_from: u64,
    sequence_to: u64,
    time_from: u32,
    time_to: u32,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    sequence: u64,
    time: u32,
}

/// The numbers of an outgoing packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// Extended sequence number.
    pub sequence: u64,
    /// RTP timestamp.
    pub time: u32,
    /// Whether it is the first packet of its source, and gets the marker bit.
    pub first: bool,
}

impl Rebase {
    /// The outgoing numbers of a packet; `None` if it is older than the first one forwarded.
    ///
    /// A gap in the source stays a gap, which the receiver conceals; a change of source leaves none. `elapsed`, the time
    /// since the last packet in units of the clock, is used when the source changes.
    pub fn numbers(
        &mut self,
        ssrc: u32,
        sequence: u64,
        time: u32,
        elapsed: u32,
    ) -> Option<Numbers> {
        let changed = self
            .source
            .as_ref()
            .is_none_or(|source| source.ssrc != ssrc);
        if changed {
            let (sequence_to, time_to) = match self.last {
                Some(sent) => (sent.sequence + 1, sent.time.wrapping_add(elapsed.max(1))),
                None => (FIRST_SEQUENCE, time),
            };
            self.source = Some(Source {
                ssrc,
                sequence_from: sequence,
                sequence_to,
                time_from: time,
                time_to,
            });
        }
        let source = self.source.as_ref()?;
        let offset = sequence.checked_sub(source.sequence_from)?;
        let numbers = Numbers {
            sequence: source.sequence_to + offset,
            time: source
                .time_to
                .wrapping_add(time.wrapping_sub(source.time_from)),
            first: changed,
        };
        if self
            .last
            .is_none_or(|sent| sent.sequence < numbers.sequence)
        {
            self.last = Some(Sent {
                sequence: numbers.sequence,
                time: numbers.time,
            });
        }
        Some(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_starts_below_the_first_rollover_and_keeps_its_gaps() {
        let mut rebase = Rebase::default();
        let first = rebase.numbers(1, 3_000_000, u32::MAX - 100, 0).unwrap();
        assert_eq!(
            first,
            Numbers {
                sequence: FIRST_SEQUENCE,
                time: u32::MAX - 100,
                first: true
            }
        );
        let lost_two = rebase.numbers(1, 3_000_003, 2_779, 0).unwrap();
        assert_eq!(
            lost_two,
            Numbers {
                sequence: FIRST_SEQUENCE + 3,
                time: 2_779,
                first: false
            }
        );
        let reordered = rebase.numbers(1, 3_000_002, 1_819, 0).unwrap();
        assert_eq!(reordered.sequence, FIRST_SEQUENCE + 2);
    }

    #[test]
    fn another_source_goes_on_where_the_last_ended() {
        let mut rebase = Rebase::default();
        rebase.numbers(1, 10, 100, 0).unwrap();
        rebase.numbers(1, 12, 2_020, 0).unwrap();
        let other = rebase.numbers(2, 77, 5, 960).unwrap();
        assert_eq!(
            other,
            Numbers {
                sequence: FIRST_SEQUENCE + 3,
                time: 2_980,
                first: true
            }
        );
    }

    #[test]
    fn a_packet_from_before_the_first_is_left_out() {
        let mut rebase = Rebase::default();
        rebase.numbers(1, 10, 100, 0).unwrap();
        assert_eq!(rebase.numbers(1, 9, 90, 0), None);
    }
}
