//! Which source address the media of a call is accepted from and sent to: symmetric RTP (RFC 4961). Many phones are behind
//! a NAT, so the address in their session description is not the one that their packets come from; the source address of
//! received packets decides.
//!
//! Anyone can send packets to a port, and there are few ports. Sources are trusted in this order:
//! 1. Whoever has the SRTP key, where media is encrypted, from any address.
//! 2. The address in the session description.
//! 3. Any port of the host in the description, or of the signalling peer: a phone behind a NAT.
//! 4. A host in the networks of the settings, once it has proved to be a stream: consecutive packets for a while. Until
//!    then its packets are dropped.
//!
//! Packets of any other source are dropped, always. A source of a higher rank takes over at once. One of the same or a
//! lower rank takes over once the current source has been silent: a known host after a second, since a NAT may have
//! forgotten the port; a source of rank 4 only from another of rank 4, after ten seconds. A new address in the description
//! starts over; late packets from the previous one are still accepted for a moment, without latching on to it again.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;

/// Silence after which another port of a known host is accepted: a phone whose NAT mapping has expired is heard again soon.
const SILENCE: Duration = Duration::from_secs(1);
/// Silence after which a source of the networks of the settings gives way to another one of them.
const LOST: Duration = Duration::from_secs(10);
/// How long packets of the previous source are accepted after media was moved.
const MOVING: Duration = Duration::from_secs(1);
/// A source in the networks of the settings is accepted after so many consecutive packets …
const PROOF_PACKETS: u32 = 10;
/// … over so long …
const PROOF_TIME: Duration = Duration::from_millis(150);
/// … without a gap longer than this between two …
const PROOF_PAUSE: Duration = Duration::from_millis(200);
/// … and without a larger step in sequence numbers.
const PROOF_STEP: u16 = 5;

/// A packet, before its source is accepted.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Source address.
    pub from: SocketAddr,
    /// Whether it was authenticated by SRTP.
    pub authentic: bool,
    /// Whose stream it is.
    pub ssrc: u32,
    /// Sequence number.
    pub sequence: u16,
}

/// How far a source is trusted; the highest rank is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Nobody,
    /// In a network of the settings.
    Allowed,
    /// The host of the description or of signalling.
    Host,
    Described,
}

/// A source that has yet to prove to be a stream.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    from: SocketAddr,
    ssrc: u32,
    sequence: u16,
    packets: u32,
    since: Instant,
    last: Instant,
}

/// The source that media is accepted from and sent to. See the module.
#[derive(Debug)]
pub struct Latch {
    /// Address of the signalling peer.
    peer: IpAddr,
    /// Further networks that media may come from.
    allowed: Arc<[IpNet]>,
    described: Option<SocketAddr>,
    believed: Option<(SocketAddr, Instant)>,
    candidate: Option<Candidate>,
    /// The previous source, and when media was moved from it.
    former: Option<(SocketAddr, Instant)>,
}

impl Latch {
    /// For a call with this signalling peer.
    pub fn new(peer: IpAddr, allowed: Arc<[IpNet]>) -> Self {
        Self {
            peer: peer.to_canonical(),
            allowed,
            described: None,
            believed: None,
            candidate: None,
            former: None,
        }
    }

    /// Takes the address of a session description, the first or a later one.
    pub fn describe(&mut self, address: Option<SocketAddr>, now: Instant) {
        if address.is_some() && address != self.described {
            self.described = address;
            let before = self.believed.take();
            self.former = before.map(|(address, _)| (address, now));
            self.candidate = None;
        }
    }

    /// Whether a packet is accepted.
    pub fn hears(&mut self, seen: Seen, now: Instant) -> bool {
        let from = seen.from;
        if let Some((address, last)) = &mut self.believed
            && *address == from
        {
            *last = now;
            return true;
        }
        let rank = self.rank(from);
        if seen.authentic {
            // Nobody else has the key.
        } else if self.is_former(from, rank, now) {
            return true;
        } else if !self.may_take_over(rank, now)
            || (rank == Rank::Allowed && !self.proves(seen, now))
        {
            return false;
        }
        self.believed = Some((from, now));
        self.candidate = None;
        true
    }

    /// The other side has proven to be there.
    pub fn believe(&mut self, from: SocketAddr, now: Instant) {
        self.believed = Some((from, now));
        self.candidate = None;
    }

    /// Whether media may come from there.
    pub fn expects(&self, from: SocketAddr) -> bool {
        self.rank(from) > Rank::Nobody
    }

    fn rank(&self, from: SocketAddr) -> Rank {
        let host = from.ip();
        if self.described == Some(from) {
            Rank::Described
        } else if host == self.peer || self.described.is_some_and(|there| there.ip() == host) {
            Rank::Host
        } else if self.allowed.iter().any(|network| network.contains(&host)) {
            Rank::Allowed
        } else {
            Rank::Nobody
        }
    }

    /// Whether a packet was still on its way when media was moved.
    fn is_former(&self, from: SocketAddr, rank: Rank, now: Instant) -> bool {
        rank < Rank::Described
            && self.former.is_some_and(|(address, moved)| {
                address == from && now.saturating_duration_since(moved) < MOVING
            })
    }

    /// Whether a source of this rank may take over from the current one.
    fn may_take_over(&self, rank: Rank, now: Instant) -> bool {
        let Some((believed, last)) = self.believed else {
            return rank > Rank::Nobody;
        };
        let present = self.rank(believed);
        let silence = now.saturating_duration_since(last);
        match rank {
            Rank::Nobody => false,
            Rank::Allowed => present <= Rank::Allowed && silence >= LOST,
            Rank::Host | Rank::Described => rank > present || silence >= SILENCE,
        }
    }

    /// Whether the packets up to this one form a stream. One source at a time can prove itself.
    fn proves(&mut self, seen: Seen, now: Instant) -> bool {
        let Seen {
            from,
            ssrc,
            sequence,
            ..
        } = seen;
        let alive = |candidate: &&mut Candidate| {
            now.saturating_duration_since(candidate.last) <= PROOF_PAUSE
        };
        if let Some(candidate) = self.candidate.as_mut().filter(alive) {
            let step = sequence.wrapping_sub(candidate.sequence);
            if (candidate.from, candidate.ssrc) != (from, ssrc) || !(1..=PROOF_STEP).contains(&step)
            {
                return false;
            }
            candidate.sequence = sequence;
            candidate.packets += 1;
            candidate.last = now;
            let time = now.saturating_duration_since(candidate.since);
            return candidate.packets >= PROOF_PACKETS && time >= PROOF_TIME;
        }
        self.candidate = Some(Candidate {
            from,
            ssrc,
            sequence,
            packets: 1,
            since: now,
            last: now,
        });
        false
    }

    /// Where packets are sent, if that is known.
    pub fn target(&self) -> Option<SocketAddr> {
        self.believed.map(|(address, _)| address).or(self.described)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: Duration = Duration::from_millis(20);

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 4_000))
    }

    fn port(address: SocketAddr, port: u16) -> SocketAddr {
        SocketAddr::new(address.ip(), port)
    }

    /// An unknown address, as an attacker uses many of.
    fn stranger(number: u16) -> SocketAddr {
        SocketAddr::from(([198, 51, 100, number as u8], 1_024 + number))
    }

    /// A call with the signalling peer 192.0.2.200, and 203.0.113.0/24 in the settings.
    struct Harness {
        latch: Latch,
        now: Instant,
    }

    impl Harness {
        fn new() -> Self {
            let allowed = ["203.0.113.0/24".parse().unwrap()];
            Self {
                latch: Latch::new(address(200).ip(), Arc::new(allowed)),
                now: Instant::now(),
            }
        }

        fn describe(&mut self, address: SocketAddr) {
            self.latch.describe(Some(address), self.now);
        }

        fn packet(&mut self, from: SocketAddr, ssrc: u32, sequence: u16) -> bool {
            let seen = Seen {
                from,
                authentic: false,
                ssrc,
                sequence,
            };
            self.latch.hears(seen, self.now)
        }

        fn hears(&mut self, from: SocketAddr) -> bool {
            self.packet(from, 1, 1)
        }

        fn wait(&mut self, time: Duration) {
            self.now += time;
        }

        /// A stream of so many packets at 20 ms; how many are accepted.
        fn stream(&mut self, from: SocketAddr, packets: u16) -> usize {
            let heard = (0..packets).filter(|n| {
                self.wait(PACKET);
                self.packet(from, 9, 65_530_u16.wrapping_add(*n))
            });
            heard.count()
        }
    }

    #[test]
    fn who_sprays_ports_is_not_heard_and_draws_nothing_whenever_it_begins() {
        // Before the phone sends, while it sends, and however long it is silent or on hold.
        let mut harness = Harness::new();
        harness.describe(address(1));
        for number in 0..300 {
            assert!(!harness.hears(stranger(number)));
            assert_eq!(harness.latch.target(), Some(address(1)));
        }
        assert_eq!(harness.stream(stranger(1), 500), 0);
        assert!(harness.hears(address(1)));
        for number in 0..300 {
            harness.wait(PACKET);
            assert!(!harness.hears(stranger(number)) && harness.hears(address(1)));
        }
        for silence in [SILENCE, LOST, 3_600 * LOST] {
            harness.wait(silence);
            assert_eq!(harness.stream(stranger(1), 100), 0);
            assert_eq!(harness.latch.target(), Some(address(1)));
        }
        harness.describe(address(2));
        assert_eq!(harness.stream(stranger(1), 100), 0);
        assert_eq!(harness.latch.target(), Some(address(2)));
    }

    #[test]
    fn a_telephone_that_described_nothing_is_believed_from_its_signalling_host_alone() {
        let mut harness = Harness::new();
        assert!(!harness.hears(stranger(1)));
        assert_eq!(harness.latch.target(), None);
        assert!(harness.hears(port(address(200), 33_333)));
        assert_eq!(harness.latch.target(), Some(port(address(200), 33_333)));
    }

    #[test]
    fn a_telephone_behind_nat_sends_from_the_host_that_signals_on_any_port() {
        // It describes a private address (RFC 3581, RFC 4961).
        let mut harness = Harness::new();
        harness.describe(SocketAddr::from(([10, 0, 0, 7], 4_000)));
        let nat = port(address(200), 61_234);
        assert!(harness.hears(nat));
        assert_eq!(harness.latch.target(), Some(nat));
        // The same description again, or none, changes nothing.
        harness.describe(SocketAddr::from(([10, 0, 0, 7], 4_000)));
        harness.latch.describe(None, harness.now);
        assert_eq!(harness.latch.target(), Some(nat));
    }

    #[test]
    fn media_that_is_described_elsewhere_than_it_is_signalled_is_heard_from_there() {
        let mut harness = Harness::new();
        harness.describe(address(1));
        assert!(harness.hears(address(1)));
        // Not symmetric: it sends from another port than it receives on.
        let mut harness = Harness::new();
        harness.describe(address(1));
        assert!(harness.hears(port(address(1), 5_000)));
        // A source that also receives there ranks higher.
        assert!(harness.hears(address(1)));
        assert!(!harness.hears(port(address(1), 5_000)));
        assert_eq!(harness.latch.target(), Some(address(1)));
    }

    #[test]
    fn the_described_and_the_signalling_host_win_at_once_over_whoever_was_latched() {
        for better in [address(1), port(address(1), 5_000), port(address(200), 9)] {
            let mut harness = Harness::new();
            harness.describe(address(1));
            let other = SocketAddr::from(([203, 0, 113, 5], 7_000));
            assert!(harness.stream(other, 50) > 0);
            assert_eq!(harness.latch.target(), Some(other));
            assert!(harness.hears(better), "{better}");
            assert_eq!(harness.latch.target(), Some(better));
            // And keeps it: the other one stays rejected, however long the better one is silent.
            assert_eq!(harness.stream(other, 50), 0);
            harness.wait(100 * LOST);
            assert_eq!(harness.stream(other, 50), 0);
            // Later again.
            assert!(harness.hears(better));
        }
    }

    #[test]
    fn a_port_that_changes_in_mid_call_is_followed_after_a_second() {
        for described in [address(1), SocketAddr::from(([10, 0, 0, 7], 4_000))] {
            let mut harness = Harness::new();
            harness.describe(described);
            let (before, after) = (port(address(200), 40_000), port(address(200), 40_001));
            assert!(harness.hears(before));
            harness.wait(SILENCE / 2);
            assert!(!harness.hears(after), "two of a host at a time");
            harness.wait(SILENCE / 2);
            assert!(harness.hears(after));
            assert_eq!(harness.latch.target(), Some(after));
        }
    }

    #[test]
    fn a_host_of_the_settings_is_heard_once_it_is_a_stream() {
        let host = SocketAddr::from(([203, 0, 113, 5], 7_000));
        let mut harness = Harness::new();
        harness.describe(address(1));
        assert_eq!(harness.stream(host, 50), 50 - PROOF_PACKETS as usize + 1);
        assert_eq!(harness.latch.target(), Some(host));
        // Single packets from many sources, or of many streams, prove nothing.
        let mut harness = Harness::new();
        harness.describe(address(1));
        for number in 0..300_u16 {
            harness.wait(PACKET / 10);
            assert!(!harness.hears(SocketAddr::from(([203, 0, 113, number as u8], 7_000))));
        }
        let mut harness = Harness::new();
        assert!(
            (0..300).all(|n| !harness.packet(host, 1, n)),
            "no time passes"
        );
        let mut harness = Harness::new();
        for n in 0..300_u16 {
            harness.wait(PACKET);
            assert!(!harness.packet(host, u32::from(n), n) && !harness.packet(host, 1, n * 100));
        }
        assert_eq!(harness.latch.target(), None);
    }

    #[test]
    fn a_host_of_the_settings_never_takes_a_stream_from_another_that_is_heard() {
        let (first, second) = ([203, 0, 113, 5], [203, 0, 113, 6]);
        let (first, second) = (
            SocketAddr::from((first, 7_000)),
            SocketAddr::from((second, 7_000)),
        );
        let mut harness = Harness::new();
        assert!(harness.stream(first, 20) > 0);
        for n in 0..500_u16 {
            harness.wait(PACKET);
            assert!(harness.packet(first, 9, n) && !harness.packet(second, 8, n));
        }
        harness.wait(LOST);
        assert!(harness.stream(second, 20) > 0);
    }

    #[test]
    fn media_that_is_moved_goes_where_it_is_described_and_what_was_on_its_way_does_not_draw_it_back()
     {
        let mut harness = Harness::new();
        harness.describe(address(1));
        let nat = port(address(200), 61_234);
        assert!(harness.hears(nat));
        harness.describe(address(3));
        assert_eq!(harness.latch.target(), Some(address(3)));
        harness.wait(MOVING / 2);
        assert!(harness.hears(nat), "it was on its way");
        assert_eq!(harness.latch.target(), Some(address(3)));
        assert!(harness.hears(address(3)));
        assert_eq!(harness.latch.target(), Some(address(3)));
        // A phone with a new description that still sends through the same NAT is accepted again.
        harness.describe(SocketAddr::from(([10, 0, 0, 7], 4_000)));
        assert!(harness.hears(nat));
        harness.wait(MOVING);
        assert!(harness.hears(nat));
        assert_eq!(harness.latch.target(), Some(nat));
    }

    #[test]
    fn who_has_the_key_is_believed_anywhere() {
        let mut harness = Harness::new();
        harness.describe(address(1));
        for from in [address(1), stranger(7)] {
            let seen = Seen {
                from,
                authentic: true,
                ssrc: 1,
                sequence: 1,
            };
            assert!(harness.latch.hears(seen, harness.now));
            assert_eq!(harness.latch.target(), Some(from));
        }
    }
}
