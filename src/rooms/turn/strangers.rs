//! How many answers go to those who have not proven who they are: over UDP an address may be forged, and an answer is larger than a
//! question. Nobody else has to share what is there for one network.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::super::tcp::network;

/// Answers in a second to all of them, and to those of one network.
pub const ANSWERS_TO_STRANGERS: u32 = 2_000;
pub const ANSWERS_TO_NETWORK: u32 = ANSWERS_TO_STRANGERS / 10;
const SECOND: Duration = Duration::from_secs(1);

/// Who was answered in this second: no more networks than answers.
#[derive(Debug, Default)]
pub struct Strangers {
    since: Option<Instant>,
    all: u32,
    by_network: HashMap<IpAddr, u32>,
}

impl Strangers {
    /// Whether one more answer goes to this address.
    pub fn admit(&mut self, address: IpAddr, now: Instant) -> bool {
        let is_over = |since| now.saturating_duration_since(since) >= SECOND;
        if self.since.is_none_or(is_over) {
            self.since = Some(now);
            self.all = 0;
            self.by_network.clear();
        }
        let network = network(address);
        let of_network = self.by_network.get(&network).copied().unwrap_or_default();
        if self.all >= ANSWERS_TO_STRANGERS || of_network >= ANSWERS_TO_NETWORK {
            return false;
        }
        self.all += 1;
        self.by_network.insert(network, of_network + 1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_network_has_its_part_of_the_answers_and_others_have_the_rest() {
        let mut strangers = Strangers::default();
        let mut now = Instant::now();
        let mut admitted = |now, host: &dyn Fn(u16) -> IpAddr| {
            let asked = (0..5_000).filter(|number| strangers.admit(host(*number), now));
            u32::try_from(asked.count()).unwrap()
        };
        let one = |_| IpAddr::from([192, 0, 2, 1]);
        let of_ipv6 = |number| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, number]);
        let many = |number: u16| IpAddr::from([0x2001, 0xdb8, 1, number, 0, 0, 0, 1]);
        for _ in 0..2 {
            assert_eq!(admitted(now, &one), ANSWERS_TO_NETWORK);
            assert_eq!(admitted(now, &of_ipv6), ANSWERS_TO_NETWORK);
            let rest = ANSWERS_TO_STRANGERS - 2 * ANSWERS_TO_NETWORK;
            assert_eq!(admitted(now, &many), rest);
            now += SECOND;
        }
    }
}
