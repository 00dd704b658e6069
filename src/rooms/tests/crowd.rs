//! Many participants join, publish, unpublish, subscribe and leave in random order: in the end everyone hears everyone who
//! publishes, and all resources are released.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use livekit_protocol as proto;
use proto::signal_request::Message as Request;
use str0m::media::Mid;
use str0m_netem::NetemConfig;

use super::held::Held;
use super::stage::{STEP, Stage};

/// So many places, each taken or free.
const PLACES: usize = 20;

struct Crowd {
    stage: Stage,
    rng: Rng,
    /// Who is there, and what they publish.
    places: Vec<Option<usize>>,
    voices: BTreeMap<usize, Mid>,
    joined: usize,
}

impl Crowd {
    fn new(seed: u64, network: NetemConfig) -> Self {
        Self {
            stage: Stage::new(network),
            rng: Rng::with_seed(seed),
            places: vec![None; PLACES],
            voices: BTreeMap::new(),
            joined: 0,
        }
    }

    /// One action.
    fn act(&mut self) {
        let place = self.rng.usize(..PLACES);
        let Some(who) = self.places[place] else {
            self.joined += 1;
            self.places[place] = Some(self.stage.join(&format!("p{place}")));
            return;
        };
        match (self.rng.u8(..10), self.voices.get(&who).copied()) {
            (0..4, None) => {
                let mid = self.stage.publish(who, &format!("voice{who}"));
                self.voices.insert(who, mid);
            }
            (0, Some(mid)) => {
                self.stage.unpublish(who, mid);
                self.voices.remove(&who);
            }
            (1..3, Some(_)) => self.choose(who),
            (3, Some(_)) => {
                self.stage.cut(who);
                self.stage.resume(who, vec![]);
            }
            (4..8, _) => self.go(place, true),
            // Vanishing; or the same identity again, while its first session is there.
            (8, _) => self.go(place, false),
            _ => {
                self.go(place, false);
                self.joined += 1;
                self.places[place] = Some(self.stage.join(&format!("p{place}")));
            }
        }
    }

    fn go(&mut self, place: usize, says_so: bool) {
        if let Some(who) = self.places[place].take() {
            self.voices.remove(&who);
            if says_so {
                self.stage.leave(who);
            } else {
                self.stage.cut(who);
                self.stage.vanish(who);
            }
        }
    }

    /// Unsubscribes from some tracks, and subscribes again.
    fn choose(&mut self, who: usize) {
        let sids: Vec<String> = self.stage.clients[who].tracks.values().cloned().collect();
        for subscribe in [false, true] {
            let wish = proto::UpdateSubscription {
                track_sids: sids.iter().take(2).cloned().collect(),
                subscribe,
                ..Default::default()
            };
            let connection = self.stage.clients[who].connection;
            self.stage
                .bench
                .ask(connection, Request::Subscription(wish));
            self.stage.run(STEP, &[]);
        }
    }

    fn pass(&mut self, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let now = left.min(Duration::from_secs(5));
            for who in self.stage.present() {
                let connection = self.stage.clients[who].connection;
                self.stage.bench.ask(connection, Request::Ping(1));
            }
            self.stage.run(now, &[]);
            left -= now;
        }
    }

    /// Everyone present hears everyone who publishes now.
    fn everybody_hears_everybody(&mut self) {
        for client in &mut self.stage.clients {
            client.heard.clear();
        }
        let speakers: Vec<(usize, Mid)> =
            self.voices.iter().map(|(who, mid)| (*who, *mid)).collect();
        self.stage.run(Duration::from_millis(400), &speakers);
        for listener in self.places.clone().iter().flatten() {
            for (speaker, _) in speakers.iter().filter(|(speaker, _)| speaker != listener) {
                let heard = self.stage.clients[*listener].heard_of(*speaker).len();
                let names =
                    [listener, speaker].map(|who| self.stage.clients[*who].identity.clone());
                assert!(
                    heard > 10,
                    "{names:?}: {heard} packets after {} joined",
                    self.joined
                );
            }
        }
    }
}

/// Joins so many, one after the other; all of them leave in the end.
fn come_and_go(seed: u64, most: usize, network: NetemConfig) {
    let mut crowd = Crowd::new(seed, network);
    let mut slots = 0;
    while crowd.joined < most {
        for _ in 0..crowd.rng.usize(1..8) {
            crowd.act();
            let pause = STEP * crowd.rng.u32(..30);
            crowd.stage.run(pause, &[]);
        }
        crowd.pass(Duration::from_secs(3));
        crowd.everybody_hears_everybody();
        let held = crowd.stage.bench.sfu.held();
        slots = slots.max(held.slots);
        // Each has three slots from the start, and one for each other participant who ever published at the same time.
        assert!(
            held.slots <= held.participants * (PLACES + 3),
            "seed {seed}: {held:?}"
        );
        crowd.stage.forget();
    }
    for place in 0..PLACES {
        crowd.go(place, place % 2 == 0);
    }
    // Longer than the timeouts of lost media and of the empty room.
    crowd.pass(Duration::from_mins(1));
    assert_eq!(crowd.stage.bench.sfu.held(), Held::default(), "seed {seed}");
    println!(
        "seed {seed}: {} joined, at most {slots} slots",
        crowd.joined
    );
}

/// Forty joins; with `VIVAVOCE_LONG` two hundred for each of five seeds.
#[test]
fn whoever_comes_is_heard_and_whoever_goes_leaves_nothing() {
    let long = std::env::var_os("VIVAVOCE_LONG").is_some();
    let (seeds, most) = if long { (1..=5, 200) } else { (1..=1, 40) };
    for seed in seeds {
        come_and_go(seed, most, NetemConfig::new());
    }
}

/// The same over networks that delay and reorder.
#[test]
fn a_slow_network_changes_nothing_of_that() {
    let long = std::env::var_os("VIVAVOCE_LONG").is_some();
    let network = NetemConfig::new()
        .latency(Duration::from_millis(40))
        .jitter(Duration::from_millis(15))
        .reorder_gap(20);
    come_and_go(7, if long { 200 } else { 25 }, network);
}
