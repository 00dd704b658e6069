//! Allocates the UDP ports of calls: an even one for RTP and the next one for RTCP. A released pair rests for a while, so
//! that late packets of one call do not reach the next.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::NoPort;

/// How long a pair rests: longer than a phone keeps sending after the end of a call.
const REST: Duration = Duration::from_secs(30);
/// Receive buffer of each socket: two seconds of audio.
const SOCKET_BUFFER_BYTES: usize = 64 << 10;

/// The pairs of a port range.
#[derive(Debug)]
pub struct Ports {
    range: RangeInclusive<u16>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Where the search continues, so that recently released ports are used again last.
    next: u16,
    used: HashSet<u16>,
    /// Released ports, with the time from which on they may be used again.
    resting: VecDeque<(Instant, u16)>,
}

/// An open pair of ports.
#[derive(Debug)]
pub struct PortPair {
    /// Non-blocking.
    pub rtp: UdpSocket,
    /// Non-blocking.
    pub rtcp: UdpSocket,
    /// Address of [`Self::rtp`].
    pub address: SocketAddr,
    /// Keeps others from using the pair.
    pub lease: Lease,
}

/// A pair in use. Dropping it lets the pair rest.
#[derive(Debug)]
pub struct Lease {
    ports: Arc<Ports>,
    port: u16,
}

impl Ports {
    /// All pairs of a range.
    pub fn new(range: RangeInclusive<u16>) -> Arc<Self> {
        Arc::new(Self {
            range,
            state: Mutex::default(),
        })
    }

    /// Opens a pair at a local address.
    pub fn open(self: &Arc<Self>, address: IpAddr, now: Instant) -> Result<PortPair, NoPort> {
        let pairs = self.range.len() / 2 + 1;
        for _ in 0..pairs {
            let Some(lease) = self.lease(now) else {
                break;
            };
            let port = lease.port;
            match bind(address, port).and_then(|rtp| Ok((rtp, bind(address, port + 1)?))) {
                Ok((rtp, rtcp)) => {
                    return Ok(PortPair {
                        rtp,
                        rtcp,
                        address: SocketAddr::new(address, port),
                        lease,
                    });
                }
                // Another process uses it: try the next one.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(NoPort::Address(address, error)),
            }
        }
        Err(NoPort::Exhausted(*self.range.start(), *self.range.end()))
    }

    /// The next pair that is free, as far as we know.
    fn lease(self: &Arc<Self>, now: Instant) -> Option<Lease> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((from, port)) = state.resting.front().copied() {
            if from > now {
                break;
            }
            state.resting.pop_front();
            state.used.remove(&port);
        }
        let first = self.range.start().checked_next_multiple_of(2)?;
        let last = self.range.end().checked_sub(1)?;
        let all = (first..=last).step_by(2);
        let start = state.next;
        let after = all.clone().filter(|port| *port >= start);
        let free = after.chain(all).find(|port| !state.used.contains(port));
        // If all others are in use, a resting pair is better than no call.
        let rested_most = || state.resting.pop_front().map(|(_, port)| port);
        let port = free.or_else(rested_most)?;
        state.next = port.saturating_add(2);
        state.used.insert(port);
        drop(state);
        Some(Lease {
            ports: Arc::clone(self),
            port,
        })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self
            .ports
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        state.resting.push_back((Instant::now() + REST, self.port));
    }
}

fn bind(address: IpAddr, port: u16) -> io::Result<UdpSocket> {
    let address = SocketAddr::new(address, port);
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Best effort: the kernel caps it without an error.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    // Marks voice for expedited forwarding (RFC 4594).
    let _ = if address.is_ipv6() {
        socket.set_tclass_v6(0xB8)
    } else {
        socket.set_tos_v4(0xB8)
    };
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// Eight ports that are free at the moment.
    fn range() -> RangeInclusive<u16> {
        let probe = UdpSocket::bind((HERE, 0)).unwrap();
        let port = probe.local_addr().unwrap().port().min(65_000);
        port..=port + 7
    }

    #[test]
    fn a_pair_is_even_and_nobody_elses() {
        let ports = Ports::new(range());
        let now = Instant::now();
        let pairs: Vec<_> = std::iter::from_fn(|| ports.open(HERE, now).ok()).collect();
        assert!((3..=4).contains(&pairs.len()), "{}", pairs.len());
        for pair in &pairs {
            let (rtp, rtcp) = (
                pair.rtp.local_addr().unwrap(),
                pair.rtcp.local_addr().unwrap(),
            );
            assert_eq!(rtp, pair.address);
            assert_eq!((rtp.port() % 2, rtp.port() + 1), (0, rtcp.port()));
        }
        assert!(matches!(ports.open(HERE, now), Err(NoPort::Exhausted(..))));
    }

    #[test]
    fn a_pair_that_was_used_rests_for_as_long_as_there_are_others() {
        let ports = Ports::new(range());
        let now = Instant::now();
        let mut pairs: Vec<_> = std::iter::from_fn(|| ports.open(HERE, now).ok()).collect();
        let port = |pair: &PortPair| pair.address.port();
        let (first, second) = (port(&pairs[0]), port(&pairs[1]));
        // All are in use: resting pairs are taken, the longest-rested first.
        drop(pairs.drain(..2));
        let again = [(); 2].map(|()| ports.open(HERE, now).unwrap());
        assert_eq!(again.each_ref().map(port), [first, second]);
        assert!(matches!(ports.open(HERE, now), Err(NoPort::Exhausted(..))));
        // A free pair is preferred to the one just used.
        drop(again);
        let later = Instant::now() + REST;
        drop(ports.open(HERE, later).unwrap());
        assert_eq!(port(&ports.open(HERE, later).unwrap()), second);
    }

    #[test]
    fn an_address_of_others_is_told_as_such() {
        let ports = Ports::new(range());
        let elsewhere = "192.0.2.1".parse().unwrap();
        let refused = ports.open(elsewhere, Instant::now());
        assert!(matches!(refused, Err(NoPort::Address(address, _)) if address == elsewhere));
    }
}
