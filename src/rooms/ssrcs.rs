//! The synchronisation sources that one client sends media under. str0m remembers, for as long as the client is there, each
//! that it has accepted a packet of, so that somebody has to bound them before it sees them: it tells of media, and not of
//! padding or of a packet sent twice, which it remembers as well.
//!
//! Whoever can send from the client's address and port can use up those that were met in packets, since before its key is
//! tried a packet is anybody's. What descriptions announce, which only the client writes, is counted apart.

use std::collections::HashSet;

/// SSRCs of each kind that a client sends under in its life: an honest one has a few for each track.
const MOST: usize = 4_096;

/// See the module.
#[derive(Debug, Default)]
pub struct Ssrcs {
    announced: HashSet<u32>,
    met: HashSet<u32>,
}

impl Ssrcs {
    /// Whether a datagram may be let in: not one of media under one SSRC too many. Those that are known go on.
    pub fn admit(&mut self, datagram: &[u8]) -> bool {
        of_rtp(datagram)
            .is_none_or(|ssrc| self.announced.contains(&ssrc) || hold(&mut self.met, ssrc))
    }

    /// Whether a description may announce an SSRC.
    pub fn announce(&mut self, ssrc: u32) -> bool {
        hold(&mut self.announced, ssrc)
    }
}

/// Whether an SSRC is among these, or there is a place for it.
fn hold(ssrcs: &mut HashSet<u32>, ssrc: u32) -> bool {
    ssrcs.contains(&ssrc) || (ssrcs.len() < MOST && ssrcs.insert(ssrc))
}

/// The SSRC of a datagram that holds RTP (RFC 7983, without the packet types of RTCP, RFC 5761 section 4).
fn of_rtp(datagram: &[u8]) -> Option<u32> {
    let header = datagram.first_chunk::<12>()?;
    let [first, second, .., a, b, c, d] = *header;
    let rtp = (128..192).contains(&first) && !(192..224).contains(&second);
    rtp.then(|| u32::from_be_bytes([a, b, c, d]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(second: u8, ssrc: u32) -> Vec<u8> {
        let mut packet = vec![0x80, second, 0, 1, 0, 0, 0, 0];
        packet.extend(ssrc.to_be_bytes());
        packet
    }

    #[test]
    fn media_under_ever_new_ssrcs_stay_outside_and_known_ones_go_on() {
        let mut ssrcs = Ssrcs::default();
        let admitted = (0..10_000).filter(|ssrc| ssrcs.admit(&packet(111, *ssrc)));
        assert_eq!(admitted.count(), MOST);
        assert!(ssrcs.admit(&packet(111, 7)));
        assert!(!ssrcs.admit(&packet(128 + 111, 10_001)));
        // Reports, checks, keys and what is too short to be media are not counted.
        for other in [
            packet(200, 10_001),
            vec![0, 1, 0, 0],
            vec![22; 40],
            vec![0x80],
        ] {
            assert!(ssrcs.admit(&other));
        }
    }

    #[test]
    fn forged_media_keeps_nothing_out_that_a_description_announces() {
        let mut ssrcs = Ssrcs::default();
        assert!(ssrcs.announce(20_000));
        for forged in 0..10_000 {
            ssrcs.admit(&packet(111, forged));
        }
        assert!(ssrcs.admit(&packet(111, 20_000)));
        for later in 20_001..20_100 {
            assert!(ssrcs.announce(later) && ssrcs.admit(&packet(111, later)));
        }
        // Nor is what descriptions announce without bound.
        let announced = (30_000..40_000).filter(|ssrc| ssrcs.announce(*ssrc));
        assert_eq!(announced.count(), MOST - 100);
    }
}
