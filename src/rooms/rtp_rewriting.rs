//! Rewriting of RTP sequence numbers and timestamps.
//!
//! A subscriber's slot is one RTP stream to its client, but its source changes: another track is assigned to it, another layer
//! of it is forwarded, or the publisher reconnects. Each source has its own random numbers (RFC 3550 section 5.1), so the
//! SFU rebases them, and the subscriber sees one continuous stream. `peer` writes the packets.

use std::collections::VecDeque;

use str0m::rtp::{Vp8Descriptor, Vp8Patch};

/// The first outgoing sequence number. It must be below 65,536, or the receiver could not know the rollover counter (RFC
/// 3711 section 3.3.1).
const FIRST_SEQUENCE: u64 = 1_000;
/// Numbers that were left out and are still distinguished, for packets that come late.
const MOST_SKIPS: usize = 512;
/// Where counting of picture ids begins, so that earlier ones have numbers, too.
const FIRST_PICTURE: u64 = 1 << 20;

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
    newest: u64,
    skips: Skips,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    sequence: u64,
    time: u32,
}

/// Numbers of a source that were left out: what follows moves up.
#[derive(Debug, Default)]
struct Skips {
    forgotten: u64,
    recent: VecDeque<u64>,
}

impl Skips {
    /// Leaves out a number above all others.
    fn skip(&mut self, number: u64) {
        if self.recent.len() == MOST_SKIPS {
            self.recent.pop_front();
            self.forgotten += 1;
        }
        self.recent.push_back(number);
    }

    /// How many were left out below a number.
    fn below(&self, number: u64) -> u64 {
        let recent = self.recent.partition_point(|skipped| *skipped < number);
        self.forgotten + recent as u64
    }

    fn has(&self, number: u64) -> bool {
        self.recent.binary_search(&number).is_ok()
    }
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
                newest: sequence,
                skips: Skips::default(),
            });
        }
        let source = self.source.as_mut()?;
        source.newest = source.newest.max(sequence);
        if source.skips.has(sequence) {
            return None;
        }
        let offset = sequence
            .checked_sub(source.sequence_from)?
            .checked_sub(source.skips.below(sequence))?;
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

    /// What comes next is another source, whatever it says.
    pub fn begin_anew(&mut self) {
        self.source = None;
    }

    /// Leaves out a packet on purpose: unlike one that is lost, it leaves no gap.
    pub fn skip(&mut self, ssrc: u32, sequence: u64) {
        let Some(source) = self.source.as_mut().filter(|source| source.ssrc == ssrc) else {
            return;
        };
        // What comes late has its place already.
        if sequence > source.newest {
            source.newest = sequence;
            source.skips.skip(sequence);
        }
    }
}

/// Maps the picture ids and temporal indices of VP8 (RFC 7741 section 4.2), by which decoders tell what they lack, in the same
/// way: pictures that were left out leave no gap.
#[derive(Debug, Default)]
pub struct Pictures {
    source: Option<PictureSource>,
    last: Option<u64>,
    last_index: Option<u8>,
}

#[derive(Debug)]
struct PictureSource {
    ssrc: u32,
    from: u64,
    to: u64,
    newest: u64,
    newest_id: u16,
    index_by: u8,
    skips: Skips,
}

impl PictureSource {
    /// The number of a picture, which continues beyond the bits of its id.
    fn number(&self, id: u16, bits: u16) -> u64 {
        let ahead = id.wrapping_sub(self.newest_id) & bits;
        if ahead <= bits / 2 {
            self.newest + u64::from(ahead)
        } else {
            self.newest.saturating_sub(u64::from(bits - ahead) + 1)
        }
    }

    fn saw(&mut self, number: u64, id: u16) {
        if number > self.newest {
            (self.newest, self.newest_id) = (number, id);
        }
    }
}

impl Pictures {
    /// The outgoing numbers for a payload; `None` leaves it as it is.
    pub fn patch(&mut self, ssrc: u32, payload: &[u8], said: &Vp8Descriptor) -> Option<Vp8Patch> {
        let id = said.picture_id()?;
        let bits = bits_of(payload);
        if self
            .source
            .as_ref()
            .is_none_or(|source| source.ssrc != ssrc)
        {
            let index_by = match (self.last_index, said.tl0_pic_idx()) {
                (Some(last), Some(index)) => last.wrapping_add(1).wrapping_sub(index),
                _ => 0,
            };
            self.source = Some(PictureSource {
                ssrc,
                from: FIRST_PICTURE,
                to: self
                    .last
                    .map_or(FIRST_PICTURE + u64::from(id), |last| last + 1),
                newest: FIRST_PICTURE,
                newest_id: id,
                index_by,
                skips: Skips::default(),
            });
        }
        let source = self.source.as_mut()?;
        let number = source.number(id, bits);
        source.saw(number, id);
        let moved = (number + source.to)
            .checked_sub(source.from)?
            .checked_sub(source.skips.below(number))?;
        self.last = self.last.max(Some(moved));
        let mut patch = said.patch().picture_id((moved & u64::from(bits)) as u16);
        if let Some(index) = said.tl0_pic_idx() {
            let index = index.wrapping_add(source.index_by);
            self.last_index = Some(index);
            patch = patch.tl0_pic_idx(index);
        }
        patch.build().ok()
    }

    /// See [`Rebase::begin_anew`].
    pub fn begin_anew(&mut self) {
        self.source = None;
    }

    /// Leaves out the picture of a payload.
    pub fn skip(&mut self, ssrc: u32, payload: &[u8], said: &Vp8Descriptor) {
        let source = self.source.as_mut().filter(|source| source.ssrc == ssrc);
        let (Some(source), Some(id)) = (source, said.picture_id()) else {
            return;
        };
        let number = source.number(id, bits_of(payload));
        if number > source.newest {
            source.saw(number, id);
            source.skips.skip(number);
        }
    }
}

/// The bits that the picture id of a payload has.
fn bits_of(payload: &[u8]) -> u16 {
    if payload.get(2).is_some_and(|id| id & 0x80 != 0) {
        0x7fff
    } else {
        0x7f
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

    #[test]
    fn what_is_left_out_on_purpose_leaves_no_gap_and_what_comes_late_finds_its_place() {
        let mut rebase = Rebase::default();
        let number = |rebase: &mut Rebase, sequence| {
            let numbers = rebase.numbers(1, sequence, 0, 0);
            numbers.map(|numbers| numbers.sequence - FIRST_SEQUENCE)
        };
        assert_eq!(number(&mut rebase, 10), Some(0));
        rebase.skip(1, 11);
        rebase.skip(1, 12);
        // 13 is late.
        assert_eq!(number(&mut rebase, 14), Some(2));
        rebase.skip(1, 15);
        assert_eq!(number(&mut rebase, 16), Some(3));
        assert_eq!(number(&mut rebase, 13), Some(1));
        assert_eq!(number(&mut rebase, 12), None, "it was left out");
        rebase.skip(1, 13);
        assert_eq!(number(&mut rebase, 17), Some(4));
        for sequence in 18..10_000 {
            rebase.skip(1, sequence);
        }
        assert_eq!(number(&mut rebase, 10_000), Some(5));
    }

    fn picture(id: u16, index: u8) -> Vec<u8> {
        vec![0x90, 0xe0, 0x80 | (id >> 8) as u8, id as u8, index, 0, 1, 2]
    }

    /// The id and the index that leave.
    fn patched(pictures: &mut Pictures, ssrc: u32, payload: &[u8]) -> (u16, u8) {
        let said = Vp8Descriptor::parse(payload).unwrap();
        let patch = pictures.patch(ssrc, payload, &said).unwrap();
        // What a patch does is str0m's own; it is compared with the one that is expected.
        for id in 0..=0x7fff {
            for index in [7, 8, 9, 10, 99, 100] {
                let wanted = said.patch().picture_id(id).tl0_pic_idx(index).build();
                if wanted == Ok(patch) {
                    return (id, index);
                }
            }
        }
        panic!("{patch:?}");
    }

    #[test]
    fn pictures_of_another_source_and_behind_those_left_out_are_numbered_on() {
        let mut pictures = Pictures::default();
        assert_eq!(patched(&mut pictures, 1, &picture(0x7ffe, 7)), (0x7ffe, 7));
        assert_eq!(patched(&mut pictures, 1, &picture(0x7fff, 7)), (0x7fff, 7));
        let left_out = picture(0, 7);
        let said = Vp8Descriptor::parse(&left_out).unwrap();
        pictures.skip(1, &left_out, &said);
        assert_eq!(patched(&mut pictures, 1, &picture(1, 8)), (0, 8));
        assert_eq!(patched(&mut pictures, 1, &picture(0x7fff, 7)), (0x7fff, 7));
        assert_eq!(patched(&mut pictures, 2, &picture(500, 99)), (1, 8));
        assert_eq!(patched(&mut pictures, 2, &picture(501, 100)), (2, 9));
        assert_eq!(patched(&mut pictures, 1, &picture(9, 9)), (3, 10));
    }
}
