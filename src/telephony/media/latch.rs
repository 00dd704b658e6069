//! Where the telephone's media comes from and is sent to: symmetric RTP (RFC 4961). Many telephones are behind a NAT, and
//! the address in their description is not that from which their packets come; so it is where they come from that counts.
//!
//! Anybody can send packets to a port. The rules against a stranger who takes a call over:
//! 1. The first sender is believed, until one at the address in the description sends: that one is.
//! 2. After that others are not heard, as long as the one who is believed is not silent for a second.
//! 3. A new address in the description begins anew.
//! 4. Where media is encrypted, who has the key is believed, wherever it is.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Silence after which another is believed: a telephone that changes networks is heard again soon.
const SILENCE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub struct Latch {
    described: Option<SocketAddr>,
    believed: Option<(SocketAddr, Instant)>,
}

impl Latch {
    /// What a description says, at the beginning and each time it is agreed upon anew.
    pub fn describe(&mut self, address: Option<SocketAddr>) {
        if address.is_some() && address != self.described {
            self.described = address;
            self.believed = None;
        }
    }

    /// Whether a packet from there is heard.
    pub fn hears(&mut self, from: SocketAddr, authentic: bool, now: Instant) -> bool {
        let believed = match self.believed {
            None => true,
            Some((address, at)) => {
                address == from
                    || authentic
                    || self.described == Some(from)
                    || now.saturating_duration_since(at) >= SILENCE
            }
        };
        if believed {
            self.believed = Some((from, now));
        }
        believed
    }

    /// Where packets go, if that is known.
    pub fn target(&self) -> Option<SocketAddr> {
        self.believed.map(|(address, _)| address).or(self.described)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 4_000))
    }

    #[test]
    fn media_goes_where_it_comes_from() {
        let (mut latch, now) = (Latch::default(), Instant::now());
        assert_eq!(latch.target(), None);
        latch.describe(Some(address(1)));
        assert_eq!(latch.target(), Some(address(1)));
        assert!(latch.hears(address(2), false, now));
        assert_eq!(latch.target(), Some(address(2)));
        // The same again, or none for a while, changes nothing.
        latch.describe(Some(address(1)));
        latch.describe(None);
        assert_eq!(latch.target(), Some(address(2)));
        latch.describe(Some(address(3)));
        assert_eq!(latch.target(), Some(address(3)));
    }

    #[test]
    fn a_stranger_does_not_take_a_call_over() {
        let (mut latch, mut now) = (Latch::default(), Instant::now());
        latch.describe(Some(address(1)));
        // Who was first gives way to who was described.
        assert!(latch.hears(address(9), false, now));
        assert!(latch.hears(address(1), false, now));
        for _ in 0..100 {
            now += Duration::from_millis(20);
            assert!(!latch.hears(address(9), false, now));
            assert!(latch.hears(address(1), false, now));
        }
        assert_eq!(latch.target(), Some(address(1)));
        assert!(!latch.hears(address(9), false, now + SILENCE / 2));
        assert!(latch.hears(address(9), false, now + SILENCE));
    }

    #[test]
    fn who_has_the_key_is_believed_anywhere() {
        let (mut latch, now) = (Latch::default(), Instant::now());
        latch.describe(Some(address(1)));
        assert!(latch.hears(address(1), true, now));
        assert!(latch.hears(address(2), true, now));
        assert_eq!(latch.target(), Some(address(2)));
    }
}
