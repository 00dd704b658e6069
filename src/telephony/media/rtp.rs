//! RTP packets (RFC 3550 section 5.1): where the sound in one is, and how one is written. Which packets are believed is
//! left to others.

/// Bytes of the fixed header, which is all that we write.
pub const HEADER: usize = 12;
/// The most bytes of a packet, larger than a datagram that crosses a network in one piece.
pub const LARGEST: usize = 1_500;

/// What the header of a packet says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Whether it begins a talk spurt, or a key.
    pub marker: bool,
    /// 0 to 127.
    pub payload_type: u8,
    /// Counts packets.
    pub sequence: u16,
    /// Of the first sample.
    pub timestamp: u32,
    /// Whose stream it is.
    pub ssrc: u32,
}

/// Whether a datagram on a port shared with RTP is RTCP (RFC 5761 section 4).
pub fn is_rtcp(datagram: &[u8]) -> bool {
    datagram
        .get(1)
        .is_some_and(|kind| (192..224).contains(kind))
}

impl Header {
    /// Reads a packet: its header, and where its payload lies. `None` for what is not RTP. Of an encrypted packet the
    /// padding cannot be told: ask again when it is plain.
    pub fn parse(packet: &[u8]) -> Option<(Self, std::ops::Range<usize>)> {
        let fixed: &[u8; HEADER] = packet.first_chunk()?;
        let [first, second, s0, s1, t0, t1, t2, t3, i0, i1, i2, i3] = *fixed;
        if first >> 6 != 2 || packet.len() > LARGEST {
            return None;
        }
        let mut start = HEADER + 4 * usize::from(first & 0x0F);
        if first & 0x10 != 0 {
            let [_, _, high, low] = *packet.get(start..)?.first_chunk()?;
            start += 4 + 4 * usize::from(u16::from_be_bytes([high, low]));
        }
        let mut end = packet.len();
        if first & 0x20 != 0 {
            end = end.checked_sub(usize::from(*packet.last()?))?;
        }
        let header = Self {
            marker: second & 0x80 != 0,
            payload_type: second & 0x7F,
            sequence: u16::from_be_bytes([s0, s1]),
            timestamp: u32::from_be_bytes([t0, t1, t2, t3]),
            ssrc: u32::from_be_bytes([i0, i1, i2, i3]),
        };
        (start <= end).then_some((header, start..end))
    }

    /// Writes the header of a packet; the payload follows.
    pub fn write(&self, packet: &mut Vec<u8>) {
        packet.extend([0x80, u8::from(self.marker) << 7 | self.payload_type & 0x7F]);
        packet.extend(self.sequence.to_be_bytes());
        packet.extend(self.timestamp.to_be_bytes());
        packet.extend(self.ssrc.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Header = Header {
        marker: true,
        payload_type: 101,
        sequence: 65_535,
        timestamp: 0x8000_0001,
        ssrc: 7,
    };

    #[test]
    fn what_is_written_is_read() {
        let mut packet = Vec::new();
        HEAD.write(&mut packet);
        packet.extend([1, 2, 3]);
        assert_eq!(Header::parse(&packet), Some((HEAD, 12..15)));
    }

    #[test]
    fn sources_extensions_and_padding_are_left_out() {
        let mut packet = Vec::new();
        HEAD.write(&mut packet);
        packet[0] |= 0x20 | 0x10 | 2;
        packet.extend([0; 8]);
        packet.extend([0xBE, 0xDE, 0, 1, 9, 9, 9, 9]);
        packet.extend([42, 43, 0, 0, 3]);
        assert_eq!(Header::parse(&packet), Some((HEAD, 28..30)));
        for length in 0..packet.len() - 1 {
            // Cut anywhere it is something else or nothing, never beyond its end.
            if let Some((_, payload)) = Header::parse(&packet[..length]) {
                assert!(payload.start <= payload.end && payload.end <= length);
            }
        }
        packet[32] = 200;
        assert_eq!(Header::parse(&packet), None);
    }

    #[test]
    fn rtcp_is_told_from_rtp() {
        assert!(is_rtcp(&[0x80, 200]) && is_rtcp(&[0x80, 207]));
        assert!(!is_rtcp(&[0x80, 0x80]) && !is_rtcp(&[0x80, 101]) && !is_rtcp(&[0x80]));
    }
}
