//! Limits the SSRCs that one client sends media under.
//!
//! Each RTP stream has a synchronization source (SSRC, RFC 3550 section 3). str0m remembers every SSRC that it has accepted
//! a packet of for as long as the connection lasts, and reports media, but neither padding nor duplicates, so the SSRCs have
//! to be counted outside it.
//!
//! Whoever can send from the client's address and port can forge packets. So an SSRC counts only once a packet of it was
//! authentic ([`super::srtp`]); those announced in descriptions, which only the client writes, are counted apart.

use std::collections::HashSet;

/// SSRCs of each kind per client: a genuine one has a few per track.
const MOST: usize = 4_096;

/// The SSRCs of one client. See the module.
#[derive(Debug, Default)]
pub struct Ssrcs {
    announced: HashSet<u32>,
    authentic: HashSet<u32>,
}

/// What is known of a datagram before it is authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// No media, or media under a known SSRC.
    Known,
    /// Media under an SSRC of which nothing authentic came yet.
    Unknown(u32),
    /// The same, of a client that has used up its SSRCs.
    TooMany,
}

impl Ssrcs {
    /// Judges a datagram.
    pub fn judge(&self, datagram: &[u8]) -> Judged {
        match of_rtp(datagram) {
            Some(ssrc) if self.announced.contains(&ssrc) || self.authentic.contains(&ssrc) => {
                Judged::Known
            }
            Some(_) if self.authentic.len() >= MOST => Judged::TooMany,
            Some(ssrc) => Judged::Unknown(ssrc),
            None => Judged::Known,
        }
    }

    /// A packet under an unknown SSRC was authentic.
    pub fn authenticated(&mut self, ssrc: u32) {
        hold(&mut self.authentic, ssrc);
    }

    /// Whether a description may announce an SSRC.
    pub fn announce(&mut self, ssrc: u32) -> bool {
        hold(&mut self.announced, ssrc)
    }
}

/// Whether an SSRC is known, or there is space for it.
fn hold(ssrcs: &mut HashSet<u32>, ssrc: u32) -> bool {
    ssrcs.contains(&ssrc) || (ssrcs.len() < MOST && ssrcs.insert(ssrc))
}

/// The SSRC of an RTP packet (RFC 7983, without the packet types of RTCP, RFC 5761 section 4).
pub fn of_rtp(datagram: &[u8]) -> Option<u32> {
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
    fn authentic_media_under_ever_new_ssrcs_stay_outside_and_known_ones_go_on() {
        let mut ssrcs = Ssrcs::default();
        let mut admitted = 0;
        for ssrc in 0..10_000 {
            if ssrcs.judge(&packet(111, ssrc)) == Judged::Unknown(ssrc) {
                ssrcs.authenticated(ssrc);
                admitted += 1;
            }
        }
        assert_eq!(admitted, MOST);
        assert_eq!(ssrcs.judge(&packet(111, 7)), Judged::Known);
        assert_eq!(ssrcs.judge(&packet(128 + 111, 10_001)), Judged::TooMany);
        // Reports, checks, keys and what is too short to be media are not counted.
        for other in [
            packet(200, 10_001),
            vec![0, 1, 0, 0],
            vec![22; 40],
            vec![0x80],
        ] {
            assert_eq!(ssrcs.judge(&other), Judged::Known);
        }
        // Those that a description announces are counted apart, and bounded, too.
        assert!(ssrcs.announce(20_000));
        assert_eq!(ssrcs.judge(&packet(111, 20_000)), Judged::Known);
        let announced = (30_000..40_000).filter(|ssrc| ssrcs.announce(*ssrc));
        assert_eq!(announced.count(), MOST - 1);
    }
}
