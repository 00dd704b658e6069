//! RTP packets (RFC 3550 section 5.1): parses and writes headers. `latch` decides which sources are accepted.
//!
//! # Why not the `rtp` crate
//!
//! `webrtc-srtp` brings `rtp` 0.17 along. Its header parser panics on a header extension (RFC 8285) whose last element is
//! longer than the rest of the packet, and packets arrive here before anything is authenticated: see
//! [`has_sound_extension`], which keeps such packets away from `webrtc-srtp`, too. Its packets also own their payload as
//! `Bytes`, an allocation and a copy for each packet sent or received; here a header is parsed in place and written into a
//! buffer that is used again.

/// Bytes of the fixed header, which is all that we write.
pub const HEADER: usize = 12;
/// The longest packet: more than the MTU of common networks.
pub const LARGEST: usize = 1_500;

/// Profiles of header extensions with elements (RFC 8285 sections 4.2 and 4.3).
const ONE_BYTE: u16 = 0xBEDE;
const TWO_BYTES: u16 = 0x1000;

/// The fields of a packet's header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Header {
    /// Whether it begins a talk spurt or an event.
    pub marker: bool,
    /// 0 to 127.
    pub payload_type: u8,
    /// Sequence number.
    pub sequence: u16,
    /// Timestamp of the first sample.
    pub timestamp: u32,
    /// Synchronization source.
    pub ssrc: u32,
}

/// Whether a datagram on a port shared with RTP is RTCP (RFC 5761 section 4).
pub fn is_rtcp(datagram: &[u8]) -> bool {
    datagram
        .get(1)
        .is_some_and(|kind| (192..224).contains(kind))
}

/// Whether every element of a header extension (RFC 8285) lies within the packet. The elements are not read here, but
/// `webrtc-srtp` reads them before it authenticates a packet, and panics at one that does not.
pub fn has_sound_extension(packet: &[u8]) -> bool {
    extension_elements(packet).is_none_or(|(profile, mut elements)| {
        while let [head, rest @ ..] = elements {
            let length = match (profile, head) {
                // Padding.
                (_, 0) => 0,
                // The identifier 15 ends the elements (RFC 8285 section 4.2).
                (ONE_BYTE, 0xF0..) => return true,
                (ONE_BYTE, head) => usize::from(head & 0x0F) + 1,
                _ => match rest.first() {
                    Some(length) => usize::from(*length) + 1,
                    None => return false,
                },
            };
            let Some(next) = rest.get(length..) else {
                return false;
            };
            elements = next;
        }
        true
    })
}

/// The profile and the elements of a packet's header extension, if it has one with elements.
fn extension_elements(packet: &[u8]) -> Option<(u16, &[u8])> {
    let first = packet.first().filter(|first| **first & 0x10 != 0)?;
    let extension = packet.get(HEADER + 4 * usize::from(first & 0x0F)..)?;
    let ([p0, p1, high, low], elements) = extension.split_first_chunk()?;
    let profile = u16::from_be_bytes([*p0, *p1]);
    let length = 4 * usize::from(u16::from_be_bytes([*high, *low]));
    let elements = elements.get(..length)?;
    [ONE_BYTE, TWO_BYTES]
        .contains(&profile)
        .then_some((profile, elements))
}

impl Header {
    /// Parses a packet: its header, and the range of its payload. `None` if it is not RTP. The padding of an encrypted
    /// packet is unknown: parse it again once decrypted.
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

    /// Writes the header; the payload follows.
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
            // Truncated anywhere, the payload never reaches beyond the end.
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

    #[test]
    fn an_extension_whose_elements_reach_beyond_it_is_not_sound() {
        let with = |extension: &[u8]| {
            let mut packet = Vec::new();
            HEAD.write(&mut packet);
            packet[0] |= 0x10;
            packet.extend(extension);
            assert!(Header::parse(&packet).is_some());
            has_sound_extension(&packet)
        };
        for sound in [
            &[0xBE, 0xDE, 0, 0][..],
            &[0xBE, 0xDE, 0, 1, 0x10, 7, 0, 0],
            &[0xBE, 0xDE, 0, 1, 0x12, 7, 7, 7],
            &[0xBE, 0xDE, 0, 1, 0x10, 7, 0xFF, 7],
            &[0x10, 0, 0, 1, 1, 2, 7, 7],
            &[0x10, 0, 0, 1, 1, 0, 0, 0],
            &[0, 0, 0, 1, 0x1F, 7, 7, 7],
        ] {
            assert!(with(sound), "{sound:?}");
        }
        for unsound in [
            &[0xBE, 0xDE, 0, 1, 0x1F, 7, 7, 7][..],
            &[0xBE, 0xDE, 0, 1, 0, 0, 0, 0x10],
            &[0x10, 0, 0, 1, 1, 3, 7, 7],
            &[0x10, 0, 0, 1, 0, 0, 0, 1],
        ] {
            assert!(!with(unsound), "{unsound:?}");
        }
        let mut plain = Vec::new();
        HEAD.write(&mut plain);
        assert!(has_sound_extension(&plain));
    }
}
