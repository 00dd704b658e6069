//! The ways on which a client is heard. Of several that ICE has found the best one is used, until it fails; a client whose
//! address has changed on the way (a NAT forgot it, a telephone changed networks) is heard at its next address at once, but
//! the former one takes seconds to fail. Until then what is meant for that goes to where the client is.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use str0m::net::{Protocol, Transmit};

/// A way on which nothing came for so long may be dead. Whoever speaks is heard more often; who only listens asks every two and a
/// half seconds whether it is still there, and may be sent to another port of its own for a moment, where it listens as well.
const SILENT: Duration = Duration::from_secs(1);
/// How often a way that is not only another port of the same client has to be heard meanwhile: clients keep some in reserve, and
/// try them now and then.
const OFTEN: u32 = 3;
/// Clients have few.
const MOST: usize = 16;

/// What a STUN response that all is well begins with.
const SUCCESS: [u8; 2] = [1, 1];

#[derive(Debug)]
struct Heard {
    protocol: Protocol,
    client: SocketAddr,
    server: SocketAddr,
    /// Whether the client has proven there who it is: ICE has answered it.
    proven: bool,
    at: Instant,
    /// How often it was heard since another way was.
    times: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Paths(Vec<Heard>);

impl Paths {
    /// Something came from the client on this way.
    pub fn heard(
        &mut self,
        protocol: Protocol,
        client: SocketAddr,
        server: SocketAddr,
        now: Instant,
    ) {
        let is_it = |heard: &Heard| {
            (heard.protocol, heard.client, heard.server) == (protocol, client, server)
        };
        let known = self.0.iter().position(is_it);
        for other in &mut self.0 {
            if !is_it(other) {
                other.times = 0;
            }
        }
        if let Some(heard) = known.and_then(|at| self.0.get_mut(at)) {
            heard.at = now;
            heard.times = heard.times.saturating_add(1);
            return;
        }
        if self.0.len() >= MOST {
            let oldest = self.0.iter().enumerate().min_by_key(|(_, heard)| heard.at);
            if let Some((at, _)) = oldest {
                self.0.swap_remove(at);
            }
        }
        self.0.push(Heard {
            protocol,
            client,
            server,
            proven: false,
            at: now,
            times: 1,
        });
    }

    /// Something goes to the client: it is sent where that is. What belongs to ICE stays as it is, and proves a way.
    pub fn direct(&mut self, transmit: &mut Transmit, now: Instant) {
        let is_it = |heard: &Heard| {
            (heard.protocol, heard.client, heard.server)
                == (transmit.proto, transmit.destination, transmit.source)
        };
        if is_stun(&transmit.contents) {
            if transmit.contents.starts_with(&SUCCESS)
                && let Some(heard) = self.0.iter_mut().find(|heard| is_it(heard))
            {
                heard.proven = true;
            }
            return;
        }
        let Some(meant) = self.0.iter().find(|heard| is_it(heard)) else {
            return;
        };
        if now.saturating_duration_since(meant.at) < SILENT {
            return;
        }
        let is_alive = |heard: &&Heard| {
            let is_alike = (heard.protocol, heard.server, heard.client.ip())
                == (meant.protocol, meant.server, meant.client.ip());
            heard.proven && heard.at > meant.at && (is_alike || heard.times >= OFTEN)
        };
        let alive = self.0.iter().filter(is_alive).max_by_key(|heard| heard.at);
        if let Some(alive) = alive {
            transmit.proto = alive.protocol;
            transmit.destination = alive.client;
            transmit.source = alive.server;
        }
    }
}

/// By its first byte (RFC 7983); what is empty is nothing else.
pub fn is_stun(datagram: &[u8]) -> bool {
    datagram.first().is_none_or(|first| *first <= 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    struct Stage {
        paths: Paths,
        now: Instant,
    }

    impl Stage {
        fn hears(&mut self, protocol: Protocol, client: &str) {
            self.paths.heard(
                protocol,
                address(client),
                address("192.0.2.1:7882"),
                self.now,
            );
        }

        fn sends(&mut self, contents: &[u8], to: &str) -> (Protocol, SocketAddr) {
            let mut transmit = Transmit {
                proto: Protocol::Udp,
                source: address("192.0.2.1:7882"),
                destination: address(to),
                contents: contents.to_vec().into(),
            };
            self.paths.direct(&mut transmit, self.now);
            (transmit.proto, transmit.destination)
        }

        /// Media for the first way.
        fn media(&mut self) -> (Protocol, SocketAddr) {
            self.sends(&[0x80, 1, 2], FIRST)
        }
    }

    const FIRST: &str = "198.51.100.7:4000";
    const NEXT: &str = "198.51.100.7:5000";

    fn stage() -> Stage {
        let mut stage = Stage {
            paths: Paths::default(),
            now: Instant::now(),
        };
        stage.hears(Protocol::Udp, FIRST);
        stage.sends(&SUCCESS, FIRST);
        stage
    }

    #[test]
    fn a_client_whose_address_has_changed_is_reached_at_the_next_one_a_second_later() {
        let mut stage = stage();
        stage.now += Duration::from_millis(20);
        stage.hears(Protocol::Udp, NEXT);
        stage.now += SILENT;
        assert_eq!(
            stage.media().1,
            address(FIRST),
            "anybody could have sent that"
        );
        stage.sends(&SUCCESS, NEXT);
        assert_eq!(stage.media().1, address(NEXT));
        assert_eq!(
            stage.sends(&[0, 1], FIRST).1,
            address(FIRST),
            "ICE goes where it wants"
        );
        // It is back where it was.
        stage.hears(Protocol::Udp, FIRST);
        assert_eq!(stage.media().1, address(FIRST));
    }

    #[test]
    fn a_way_in_reserve_is_not_taken_for_it_is_tried_now_and_then() {
        let mut stage = stage();
        stage.hears(Protocol::Tcp, NEXT);
        let mut answer = Transmit {
            proto: Protocol::Tcp,
            source: address("192.0.2.1:7882"),
            destination: address(NEXT),
            contents: SUCCESS.to_vec().into(),
        };
        stage.paths.direct(&mut answer, stage.now);
        stage.now += SILENT;
        stage.hears(Protocol::Tcp, NEXT);
        assert_eq!(stage.media(), (Protocol::Udp, address(FIRST)));
        stage.hears(Protocol::Tcp, NEXT);
        assert_eq!(stage.media(), (Protocol::Tcp, address(NEXT)));
    }

    #[test]
    fn the_ways_of_a_client_are_few() {
        let mut stage = stage();
        for port in 5_000..6_000 {
            stage.now += Duration::from_millis(1);
            stage.hears(Protocol::Udp, &format!("198.51.100.7:{port}"));
        }
        assert_eq!(stage.paths.0.len(), MOST);
    }
}
