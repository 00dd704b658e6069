//! Where the telephone's media comes from and is sent to: symmetric RTP (RFC 4961). Many telephones are behind a NAT, and
//! the address in their description is not that from which their packets come; so it is where they come from that counts.
//!
//! Anybody can send packets to a port. The rules against a stranger who takes a call over:
//! 1. The first sender is believed, until one at the address in the description sends: that one is.
//! 2. After that others are not heard. When the one who is believed is silent for a second, another port of the same host is,
//!    or of the host in the description, or of that with whom the call is signalled. Nobody else is, however long it is; but
//!    where the one who is believed is none of these, and may have been a stranger, somebody else is after ten seconds.
//! 3. A new address in the description begins anew.
//! 4. Where media is encrypted, who has the key is believed, wherever it is.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Silence after which another port is believed: a telephone whose NAT forgot it is heard again soon.
const SILENCE: Duration = Duration::from_secs(1);

/// Silence after which somebody who is not known gives way to somebody who is not known either.
const LOST: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub struct Latch {
    /// With whom the call is signalled.
    peer: IpAddr,
    described: Option<SocketAddr>,
    believed: Option<(SocketAddr, Instant)>,
}

impl Latch {
    /// For a call that is signalled with this host.
    pub const fn new(peer: IpAddr) -> Self {
        Self {
            peer,
            described: None,
            believed: None,
        }
    }

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
                    || self.may_follow(address.ip(), from.ip(), now.saturating_duration_since(at))
            }
        };
        if believed {
            self.believed = Some((from, now));
        }
        believed
    }

    /// Whether a host may follow the one that was believed, which has been silent for so long.
    fn may_follow(&self, believed: IpAddr, host: IpAddr, silence: Duration) -> bool {
        let described = self.described.map(|address| address.ip());
        let known = |host: IpAddr| host == self.peer || described == Some(host);
        (silence >= SILENCE && (host == believed || known(host)))
            || (silence >= LOST && !known(believed))
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

    /// Of a call that 192.0.2.200 signals.
    fn latch() -> Latch {
        Latch::new(address(200).ip())
    }

    #[test]
    fn media_goes_where_it_comes_from() {
        let (mut latch, now) = (latch(), Instant::now());
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
        let (mut latch, mut now) = (latch(), Instant::now());
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
        // However long nothing comes: who is held, or says nothing, is not given away.
        for silence in [SILENCE / 2, SILENCE, 3_600 * SILENCE] {
            assert!(!latch.hears(address(9), false, now + silence));
        }
        assert_eq!(latch.target(), Some(address(1)));
        latch.describe(Some(address(2)));
        assert!(latch.hears(address(9), false, now + SILENCE));
    }

    #[test]
    fn who_was_silent_is_heard_from_another_port_and_so_are_the_described_and_the_signalling_host()
    {
        let port = |address: SocketAddr| SocketAddr::new(address.ip(), 5_000);
        let now = Instant::now();
        for (described, from) in [(1, 7), (1, 1), (1, 200)] {
            let mut latch = latch();
            latch.describe(Some(address(described)));
            assert!(latch.hears(address(7), false, now));
            let from = port(address(from));
            assert!(!latch.hears(from, false, now + SILENCE / 2));
            assert!(latch.hears(from, false, now + SILENCE), "{from}");
            assert_eq!(latch.target(), Some(from));
        }
    }

    #[test]
    fn a_stranger_who_was_first_gives_way_when_nothing_comes_any_more() {
        let (mut latch, now) = (latch(), Instant::now());
        latch.describe(Some(address(1)));
        assert!(latch.hears(address(9), false, now));
        assert!(!latch.hears(address(2), false, now + SILENCE));
        assert!(latch.hears(address(2), false, now + LOST));
        assert_eq!(latch.target(), Some(address(2)));
    }

    #[test]
    fn who_has_the_key_is_believed_anywhere() {
        let (mut latch, now) = (latch(), Instant::now());
        latch.describe(Some(address(1)));
        assert!(latch.hears(address(1), true, now));
        assert!(latch.hears(address(2), true, now));
        assert_eq!(latch.target(), Some(address(2)));
    }
}
