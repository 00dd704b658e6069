//! Where the telephone's media comes from and is sent to: symmetric RTP (RFC 4961). Many telephones are behind a NAT, and
//! the address in their description is not that from which their packets come; so it is where they come from that counts.
//!
//! Anybody can send packets to a port, and ports are few. Who is believed, the first before the others:
//! 1. Who has the key, where media is encrypted, wherever it is.
//! 2. The address in the description.
//! 3. Any port of the host in the description, or of the host with which the call is signalled: a telephone behind a NAT.
//! 4. A host of the networks that the settings name, once it has proved to be a stream: packets that follow each other, for a
//!    while. Until then it is not heard.
//!
//! Nobody else is heard, ever. A better one is believed at once. One who is as good or worse follows when the one who is
//! believed has been silent: a known host after a second, since a NAT may have forgotten the port; one of 4 only another of 4,
//! after ten. A new address in the description begins anew, and packets that are still on their way from where media was
//! before are heard meanwhile without drawing ours back.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;

/// Silence after which another port is believed: a telephone whose NAT forgot it is heard again soon.
const SILENCE: Duration = Duration::from_secs(1);
/// Silence after which a host of the settings gives way to another of them.
const LOST: Duration = Duration::from_secs(10);
/// For so long packets may still come from where media was before it was moved.
const MOVING: Duration = Duration::from_secs(1);
/// A host of the settings has proved to be a stream after so many packets in a row …
const PROOF_PACKETS: u32 = 10;
/// … over so long …
const PROOF_TIME: Duration = Duration::from_millis(150);
/// … with no pause longer than this between two, …
const PROOF_PAUSE: Duration = Duration::from_millis(200);
/// … and no more numbers left out than this.
const PROOF_STEP: u16 = 5;

/// What is known of a packet before it is believed.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Where it came from.
    pub from: SocketAddr,
    /// Whether it was locked with the key of the other side.
    pub authentic: bool,
    /// Whose stream it is.
    pub ssrc: u32,
    /// Its number.
    pub sequence: u16,
}

/// How well an address is known; the best is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Nobody,
    /// Of a network of the settings.
    Allowed,
    /// Of a host that described or signals.
    Host,
    Described,
}

/// A stream that is to prove itself.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    from: SocketAddr,
    ssrc: u32,
    sequence: u16,
    packets: u32,
    since: Instant,
    last: Instant,
}

/// See the module.
#[derive(Debug)]
pub struct Latch {
    /// With whom the call is signalled.
    peer: IpAddr,
    /// From where media may come besides.
    allowed: Arc<[IpNet]>,
    described: Option<SocketAddr>,
    believed: Option<(SocketAddr, Instant)>,
    candidate: Option<Candidate>,
    /// Where media came from before it was moved, and when that was.
    former: Option<(SocketAddr, Instant)>,
}

impl Latch {
    /// For a call that is signalled with this host.
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

    /// What a description says, at the beginning and each time it is agreed upon anew.
    pub fn describe(&mut self, address: Option<SocketAddr>, now: Instant) {
        if address.is_some() && address != self.described {
            self.described = address;
            let before = self.believed.take();
            self.former = before.map(|(address, _)| (address, now));
            self.candidate = None;
        }
    }

    /// Whether a packet is heard.
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

    /// Whether one who is known so well may take the place of the one who is believed, if there is one.
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

    /// Whether the packets until this one make a stream. One at a time may prove itself.
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

    /// Where packets go, if that is known.
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

    /// Nobody knows anything of it: many addresses, as who sprays has them.
    fn stranger(number: u16) -> SocketAddr {
        SocketAddr::from(([198, 51, 100, number as u8], 1_024 + number))
    }

    /// Of a call that 192.0.2.200 signals; calls come from 203.0.113.0/24 besides.
    struct Line {
        latch: Latch,
        now: Instant,
    }

    impl Line {
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

        /// So many packets of a good stream, one each 20 ms; how many of them are heard.
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
        // Before the telephone says anything, while it speaks, and however long it is silent or held.
        let mut line = Line::new();
        line.describe(address(1));
        for number in 0..300 {
            assert!(!line.hears(stranger(number)));
            assert_eq!(line.latch.target(), Some(address(1)));
        }
        assert_eq!(line.stream(stranger(1), 500), 0);
        assert!(line.hears(address(1)));
        for number in 0..300 {
            line.wait(PACKET);
            assert!(!line.hears(stranger(number)) && line.hears(address(1)));
        }
        for silence in [SILENCE, LOST, 3_600 * LOST] {
            line.wait(silence);
            assert_eq!(line.stream(stranger(1), 100), 0);
            assert_eq!(line.latch.target(), Some(address(1)));
        }
        line.describe(address(2));
        assert_eq!(line.stream(stranger(1), 100), 0);
        assert_eq!(line.latch.target(), Some(address(2)));
    }

    #[test]
    fn a_telephone_that_described_nothing_is_believed_from_its_signalling_host_alone() {
        let mut line = Line::new();
        assert!(!line.hears(stranger(1)));
        assert_eq!(line.latch.target(), None);
        assert!(line.hears(port(address(200), 33_333)));
        assert_eq!(line.latch.target(), Some(port(address(200), 33_333)));
    }

    #[test]
    fn a_telephone_behind_nat_sends_from_the_host_that_signals_on_any_port() {
        // It describes an address of its own network (RFC 3581, RFC 4961).
        let mut line = Line::new();
        line.describe(SocketAddr::from(([10, 0, 0, 7], 4_000)));
        let nat = port(address(200), 61_234);
        assert!(line.hears(nat));
        assert_eq!(line.latch.target(), Some(nat));
        // The same again, or none for a while, changes nothing.
        line.describe(SocketAddr::from(([10, 0, 0, 7], 4_000)));
        line.latch.describe(None, line.now);
        assert_eq!(line.latch.target(), Some(nat));
    }

    #[test]
    fn media_that_is_described_elsewhere_than_it_is_signalled_is_heard_from_there() {
        let mut line = Line::new();
        line.describe(address(1));
        assert!(line.hears(address(1)));
        // Not symmetric: it sends from another port than the one it listens at.
        let mut line = Line::new();
        line.describe(address(1));
        assert!(line.hears(port(address(1), 5_000)));
        // Who listens there and sends from there is better.
        assert!(line.hears(address(1)));
        assert!(!line.hears(port(address(1), 5_000)));
        assert_eq!(line.latch.target(), Some(address(1)));
    }

    #[test]
    fn the_described_and_the_signalling_host_win_at_once_over_whoever_was_latched() {
        for better in [address(1), port(address(1), 5_000), port(address(200), 9)] {
            let mut line = Line::new();
            line.describe(address(1));
            let other = SocketAddr::from(([203, 0, 113, 5], 7_000));
            assert!(line.stream(other, 50) > 0);
            assert_eq!(line.latch.target(), Some(other));
            assert!(line.hears(better), "{better}");
            assert_eq!(line.latch.target(), Some(better));
            // And keeps it: the other one is heard no more, however long the better one is silent.
            assert_eq!(line.stream(other, 50), 0);
            line.wait(100 * LOST);
            assert_eq!(line.stream(other, 50), 0);
            // Again later.
            assert!(line.hears(better));
        }
    }

    #[test]
    fn a_port_that_changes_in_mid_call_is_followed_after_a_second() {
        for described in [address(1), SocketAddr::from(([10, 0, 0, 7], 4_000))] {
            let mut line = Line::new();
            line.describe(described);
            let (before, after) = (port(address(200), 40_000), port(address(200), 40_001));
            assert!(line.hears(before));
            line.wait(SILENCE / 2);
            assert!(!line.hears(after), "two of a host at a time");
            line.wait(SILENCE / 2);
            assert!(line.hears(after));
            assert_eq!(line.latch.target(), Some(after));
        }
    }

    #[test]
    fn a_host_of_the_settings_is_heard_once_it_is_a_stream() {
        let host = SocketAddr::from(([203, 0, 113, 5], 7_000));
        let mut line = Line::new();
        line.describe(address(1));
        assert_eq!(line.stream(host, 50), 50 - PROOF_PACKETS as usize + 1);
        assert_eq!(line.latch.target(), Some(host));
        // Single packets from many, all at once, or of many streams, prove nothing.
        let mut line = Line::new();
        line.describe(address(1));
        for number in 0..300_u16 {
            line.wait(PACKET / 10);
            assert!(!line.hears(SocketAddr::from(([203, 0, 113, number as u8], 7_000))));
        }
        let mut line = Line::new();
        assert!((0..300).all(|n| !line.packet(host, 1, n)), "no time passes");
        let mut line = Line::new();
        for n in 0..300_u16 {
            line.wait(PACKET);
            assert!(!line.packet(host, u32::from(n), n) && !line.packet(host, 1, n * 100));
        }
        assert_eq!(line.latch.target(), None);
    }

    #[test]
    fn a_host_of_the_settings_never_takes_a_stream_from_another_that_is_heard() {
        let (first, second) = ([203, 0, 113, 5], [203, 0, 113, 6]);
        let (first, second) = (
            SocketAddr::from((first, 7_000)),
            SocketAddr::from((second, 7_000)),
        );
        let mut line = Line::new();
        assert!(line.stream(first, 20) > 0);
        for n in 0..500_u16 {
            line.wait(PACKET);
            assert!(line.packet(first, 9, n) && !line.packet(second, 8, n));
        }
        line.wait(LOST);
        assert!(line.stream(second, 20) > 0);
    }

    #[test]
    fn media_that_is_moved_goes_where_it_is_described_and_what_was_on_its_way_does_not_draw_it_back()
     {
        let mut line = Line::new();
        line.describe(address(1));
        let nat = port(address(200), 61_234);
        assert!(line.hears(nat));
        line.describe(address(3));
        assert_eq!(line.latch.target(), Some(address(3)));
        line.wait(MOVING / 2);
        assert!(line.hears(nat), "it was on its way");
        assert_eq!(line.latch.target(), Some(address(3)));
        assert!(line.hears(address(3)));
        assert_eq!(line.latch.target(), Some(address(3)));
        // One that described anew and goes on sending through the same NAT is believed again.
        line.describe(SocketAddr::from(([10, 0, 0, 7], 4_000)));
        assert!(line.hears(nat));
        line.wait(MOVING);
        assert!(line.hears(nat));
        assert_eq!(line.latch.target(), Some(nat));
    }

    #[test]
    fn who_has_the_key_is_believed_anywhere() {
        let mut line = Line::new();
        line.describe(address(1));
        for from in [address(1), stranger(7)] {
            let seen = Seen {
                from,
                authentic: true,
                ssrc: 1,
                sequence: 1,
            };
            assert!(line.latch.hears(seen, line.now));
            assert_eq!(line.latch.target(), Some(from));
        }
    }
}
