//! Relaying: two telephones that are alone in a room get each other's packets as they are. Who comes and goes changes that, and
//! nobody hears it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

use super::rig::PATIENCE;
use super::rig::baresip::{Baresip, Kind};
use super::rig::sipp::{Run, Scenario, Sipp};
use super::{Exchange, PHONE};
use crate::harness::is_long;
use crate::rooms::client::Kind as Client;
use crate::rooms::join;

/// The number that is called, and its room.
const CALLED: &str = "+14155550198";
const LOBBY: &str = "call-+14155550198";
const PACKET: Duration = Duration::from_millis(20);
const SAMPLES: usize = 160;

/// An RTP packet as it came.
struct Heard {
    at: Instant,
    sequence: u16,
    timestamp: u32,
    ssrc: u32,
    sound: Vec<u8>,
}

/// A telephone: SIPp calls, and a socket of the test's has its media, so that each packet is seen.
struct Telephone {
    signalling: Sipp,
    heard: Arc<Mutex<Vec<Heard>>>,
    /// The longest time between two packets that it sent.
    stall: Arc<Mutex<Duration>>,
    identity: String,
    task: AbortHandle,
}

impl Drop for Telephone {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Telephone {
    /// Calls the lobby and plays a tone from the answer on.
    async fn call(exchange: &Exchange, hertz: f32) -> Self {
        let known = identities(&exchange.shown().await);
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        let scenario = Scenario::calls_with_media_port(port).ended();
        let run = Run {
            echo: false,
            ..Run::default()
        };
        let signalling = Sipp::call_with(&scenario, CALLED, &exchange.address(), run);
        let new = |shown: &Value| {
            let is_new = |identity: &String| !known.contains(identity);
            identities(shown).into_iter().find(is_new)
        };
        let identity = exchange.shown_once("telephone", new).await;
        let messages = signalling.messages();
        let ports = messages
            .lines()
            .filter_map(|line| line.strip_prefix("m=audio "));
        let mut ports = ports.filter_map(|line| line.split(' ').next()?.parse::<u16>().ok());
        let server = ports.rfind(|other| *other != port).unwrap();
        socket.connect(("127.0.0.1", server)).await.unwrap();
        let (heard, stall) = (Arc::default(), Arc::default());
        let speaking = speak(socket, hertz, Arc::clone(&heard), Arc::clone(&stall));
        Self {
            signalling,
            heard,
            stall,
            identity,
            task: tokio::spawn(speaking).abort_handle(),
        }
    }
}

/// Those in the lobby who are in a call.
fn identities(shown: &Value) -> Vec<String> {
    let calls = shown["calls"].as_array().into_iter().flatten();
    let active = calls.filter(|call| call["room_name"] == LOBBY && call["status"] == "active");
    active
        .map(|call| call["participant_identity"].as_str().unwrap().to_owned())
        .collect()
}

fn mu_law(sample: i16) -> u8 {
    let sign = if sample < 0 { 0x80 } else { 0 };
    let magnitude = sample.unsigned_abs().min(32_635) + 132;
    let exponent = 15 - magnitude.leading_zeros() as u8 - 7;
    let mantissa = (magnitude >> (exponent + 3)) as u8 & 0xF;
    !(sign | exponent << 4 | mantissa)
}

fn linear(code: u8) -> i16 {
    let code = !code;
    let magnitude = ((i32::from(code & 0xF) << 3) + 132) << ((code >> 4) & 7);
    let sample = (magnitude - 132) as i16;
    if code & 0x80 == 0 { sample } else { -sample }
}

async fn speak(
    socket: UdpSocket,
    hertz: f32,
    heard: Arc<Mutex<Vec<Heard>>>,
    stall: Arc<Mutex<Duration>>,
) {
    let mut ticks = tokio::time::interval(PACKET);
    let mut before = Instant::now();
    let (mut number, mut buffer) = (0_u32, [0; 2_048]);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let mut packet = vec![0x80, 0];
                packet.extend((number as u16).to_be_bytes());
                packet.extend((number * SAMPLES as u32).to_be_bytes());
                packet.extend([1, 2, 3, hertz as u8]);
                let first = number as usize * SAMPLES;
                let phase = |n: usize| (first + n) as f32 * hertz / 8_000.0 * std::f32::consts::TAU;
                packet.extend((0..SAMPLES).map(|n| mu_law((8_000.0 * phase(n).sin()) as i16)));
                // Refused before the answer, as the port is not open then.
                let _ = socket.send(&packet).await;
                number += 1;
                let now = Instant::now();
                let mut longest = stall.lock().unwrap();
                *longest = longest.max(now - before);
                before = now;
            }
            received = socket.recv(&mut buffer) => {
                let Ok(length) = received else { continue };
                let packet = &buffer[..length];
                if length < 12 || packet[1] & 0x7F != 0 {
                    continue;
                }
                let number = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap());
                heard.lock().unwrap().push(Heard {
                    at: Instant::now(),
                    sequence: number(0) as u16,
                    timestamp: number(4),
                    ssrc: number(8),
                    sound: packet[12..].to_vec(),
                });
            }
        }
    }
}

/// Waits until every call of a room has been relayed so many more packets; gives how many each has.
pub async fn relayed(exchange: &Exchange, room: &str, more: u64) -> Vec<u64> {
    let counts = |shown: &Value| -> Vec<u64> {
        let calls = shown["calls"].as_array().into_iter().flatten();
        let active = calls.filter(|call| call["room_name"] == room && call["status"] == "active");
        active
            .map(|call| call["media"]["packets_relayed"].as_u64().unwrap_or(0))
            .collect()
    };
    let before = counts(&exchange.shown().await);
    let grown = |shown: &Value| {
        let counts = counts(shown);
        let all = counts.len() == 2 && before.len() == 2;
        let grown = counts
            .iter()
            .zip(&before)
            .all(|(now, before)| *now >= before + more);
        (all && grown).then_some(counts)
    };
    exchange.shown_once("relay", grown).await
}

/// How many packets each call has been relayed once that is told after somebody has come.
async fn not_relayed(exchange: &Exchange, room: &str) {
    // What is shown is up to a few seconds old.
    let mut before = None;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown = exchange.shown().await;
        let calls = shown["calls"].as_array().unwrap().iter();
        let active = calls.filter(|call| call["room_name"] == room && call["status"] == "active");
        let now: Vec<_> = active
            .map(|call| {
                (
                    call["media"]["packets_relayed"].clone(),
                    call["media"]["packets_sent"].as_u64().unwrap(),
                )
            })
            .collect();
        let rests = |before: &Vec<(Value, u64)>| {
            before.len() == now.len()
                && before
                    .iter()
                    .zip(&now)
                    .all(|(one, other)| one.0 == other.0 && other.1 > one.1)
        };
        if before.as_ref().is_some_and(rests) {
            return;
        }
        assert!(Instant::now() < deadline, "it is still relayed: {shown}");
        let differs = |before: &Vec<(Value, u64)>| {
            before.iter().zip(&now).any(|(one, other)| one.0 != other.0)
        };
        if before.as_ref().is_none_or(differs) {
            before = Some(now);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whoever listens in, and whoever goes, is heard by none of the two: the packets are one stream, and the sound has no gap.
#[tokio::test]
async fn who_comes_into_the_room_of_two_telephones_hears_both_and_neither_notices() {
    let exchange = Exchange::start();
    let mut telephones = vec![Telephone::call(&exchange, 440.0).await];
    telephones.push(Telephone::call(&exchange, 600.0).await);
    relayed(&exchange, LOBBY, 50).await;
    for _ in 0..2 {
        let mut agent = join(&exchange.server, Client::Python, LOBBY, "agent").await;
        agent.hears(&telephones[0].identity, 440).await;
        agent.hears(&telephones[1].identity, 600).await;
        not_relayed(&exchange, LOBBY).await;
        agent.leave().await;
        relayed(&exchange, LOBBY, 50).await;
    }
    for (telephone, hertz) in telephones.iter().zip([600.0, 440.0]) {
        let mut heard = std::mem::take(&mut *telephone.heard.lock().unwrap());
        // The other had not called yet.
        let loud = |heard: &Heard| {
            heard
                .sound
                .iter()
                .any(|code| linear(*code).unsigned_abs() > 4_000)
        };
        let first = heard.iter().position(loud).unwrap();
        heard.drain(..first + 25);
        assert!(heard.len() > 200, "{}", heard.len());
        let mut stall = telephones
            .iter()
            .map(|other| *other.stall.lock().unwrap())
            .max()
            .unwrap();
        for two in heard.windows(2) {
            stall = stall.max(two[1].at - two[0].at);
            assert_eq!(two[1].sequence, two[0].sequence.wrapping_add(1));
            assert_eq!(two[1].ssrc, two[0].ssrc);
        }
        let stall = stall.saturating_sub(PACKET);
        // Beside the stalls of this machine.
        let most = (Duration::from_millis(60) + stall).as_millis() as usize * 8;
        let (mut sound, mut place) = (Vec::new(), heard[0].timestamp);
        for packet in &heard {
            let gap = packet.timestamp.wrapping_sub(place) as usize;
            assert!(gap <= most, "{gap}");
            sound.resize(sound.len() + gap, 0);
            sound.extend(packet.sound.iter().map(|code| linear(*code)));
            place = packet.timestamp.wrapping_add(packet.sound.len() as u32);
        }
        let (mut longest, mut quiet) = (0, 0);
        for window in sound.chunks(40) {
            let peak = window
                .iter()
                .map(|sample| sample.unsigned_abs())
                .max()
                .unwrap();
            quiet = if peak < 1_000 { quiet + 40 } else { 0 };
            longest = longest.max(quiet);
        }
        println!(
            "{hertz} Hz: {} packets, {} ms of silence at most, this machine stalled for {stall:?}",
            heard.len(),
            longest / 8
        );
        assert!(longest <= most, "{longest}");
        let last = &sound[sound.len() - 8_000..];
        let (mut re, mut im, mut energy) = (0.0, 0.0, 0.0);
        for (n, sample) in last.iter().enumerate() {
            let (phase, sample) = (
                n as f32 * hertz / 8_000.0 * std::f32::consts::TAU,
                f32::from(*sample),
            );
            re += sample * phase.cos();
            im += sample * phase.sin();
            energy += sample * sample;
        }
        let share = 2.0 * (re * re + im * im) / (8_000.0 * energy);
        assert!(share > 0.5, "{share}");
    }
    for mut telephone in telephones {
        exchange.hang_up(LOBBY, &telephone.identity).await;
        telephone.signalling.passed().await;
    }
}

/// Two of baresip's telephones in a room: tones, keys, encryption of one leg only, and a session that comes in between.
#[tokio::test]
async fn two_telephones_hear_each_other_and_their_keys_while_they_are_relayed() {
    let exchange = Exchange::with(&[("SIP_MEDIA_ENCRYPTION", "allow")]);
    let mut called = Baresip::of(Kind {
        hertz: 600,
        ..Kind::default()
    })
    .await;
    let mut caller = Baresip::of(Kind {
        encryption: "srtp-mand",
        ..Kind::default()
    })
    .await;
    caller
        .dial(&format!("sip:{CALLED}@{}", exchange.address()))
        .await;
    let active = |call: &Value| call["direction"] == "inbound" && call["status"] == "active";
    exchange.until("an active inbound one", active).await;
    let id = exchange
        .call_to(LOBBY, json!({"outbound_address": called.address()}))
        .await;
    exchange.answered(&id).await;
    relayed(&exchange, LOBBY, 50).await;
    called.hears(440).await;
    caller.hears(600).await;
    caller.press("4#").await;
    for digit in ["4", "#"] {
        assert_eq!(called.next("CALL_DTMF_START").await["param"], digit);
    }
    called.press("7").await;
    assert_eq!(caller.next("CALL_DTMF_START").await["param"], "7");
    let mut session = exchange.session(LOBBY).await;
    not_relayed(&exchange, LOBBY).await;
    caller.press("9").await;
    assert_eq!(session.next("dtmf").await.text("digit"), "9");
    called.hears(440).await;
    caller.hears(600).await;
    session.close().await;
    relayed(&exchange, LOBBY, 50).await;
    called.hears(440).await;
    caller.hears(600).await;
    let calls = exchange.calls().await;
    let mut secret: Vec<_> = calls
        .iter()
        .map(|call| &call["media"]["encrypted"])
        .collect();
    secret.sort_by_key(|secret| secret.as_bool());
    assert_eq!(secret, [&json!(false), &json!(true)]);
    caller.hang_up().await;
    exchange.hang_up(LOBBY, PHONE).await;
    called.next("CALL_CLOSED").await;
}

/// With two codecs there is nothing to relay, and nothing where it is switched off.
#[tokio::test]
async fn telephones_with_two_codecs_are_decoded() {
    for (codec, relay) in [("PCMA/8000", "true"), ("PCMU/8000", "false")] {
        let exchange = Exchange::with(&[("SIP_RELAY", relay)]);
        let mut one = Baresip::of(Kind {
            hertz: 600,
            codec,
            ..Kind::default()
        })
        .await;
        let mut other = Baresip::start().await;
        let id = exchange
            .call_to(LOBBY, json!({"outbound_address": one.address()}))
            .await;
        exchange.answered(&id).await;
        other
            .dial(&format!("sip:{CALLED}@{}", exchange.address()))
            .await;
        one.hears(440).await;
        other.hears(600).await;
        not_relayed(&exchange, LOBBY).await;
        assert_eq!(exchange.answered(&id).await["media"]["packets_relayed"], 0);
        other.hang_up().await;
        exchange.hang_up(LOBBY, PHONE).await;
        one.next("CALL_CLOSED").await;
    }
}

/// Threads that do nothing but keep a core busy.
struct Busy(Vec<std::process::Child>);

impl Busy {
    fn every_core() -> Self {
        let cores = std::thread::available_parallelism().unwrap().get();
        let spin = |_| {
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", "while :; do :; done"]).spawn().unwrap()
        };
        Self((0..cores).map(spin).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = (child.kill(), child.wait());
        }
    }
}

/// Two sockets whose packets a thread passes on and does nothing else with: what the best relay of this machine does.
async fn bare_pair() -> [(UdpSocket, std::net::SocketAddr); 2] {
    let [one, other] = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    let ends = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    let [for_one, for_other] = [&one, &other].map(|socket| socket.local_addr().unwrap());
    let addresses = ends.each_ref().map(|end| end.local_addr().unwrap());
    for (from, out, to) in [
        (
            one.try_clone().unwrap(),
            other.try_clone().unwrap(),
            addresses[1],
        ),
        (other, one, addresses[0]),
    ] {
        std::thread::spawn(move || {
            let mut packet = [0; 2_048];
            // Ends with an empty datagram.
            while let Ok(length @ 1..) = from.recv(&mut packet) {
                let _ = out.send_to(&packet[..length], to);
            }
        });
    }
    let [first, second] = ends.map(|end| {
        end.set_nonblocking(true).unwrap();
        UdpSocket::from_std(end).unwrap()
    });
    first.connect(for_one).await.unwrap();
    second.connect(for_other).await.unwrap();
    [(first, for_one), (second, for_other)]
}

/// Times between two packets, in milliseconds: median, 99 of 100, the longest, and how many are over 60 ms.
fn gaps(heard: &[Heard]) -> String {
    let between = |two: &[Heard]| (two[1].at - two[0].at).as_secs_f64() * 1e3;
    let mut gaps: Vec<f64> = heard.windows(2).map(between).collect();
    gaps.sort_by(f64::total_cmp);
    let at = |share: f64| gaps[((gaps.len() - 1) as f64 * share) as usize];
    let wide = gaps.iter().filter(|gap| **gap > 60.0).count();
    let missing: u64 = heard
        .windows(2)
        .map(|two| {
            u64::from(
                two[1]
                    .sequence
                    .wrapping_sub(two[0].sequence)
                    .wrapping_sub(1),
            )
        })
        .sum();
    format!(
        "{} packets, gaps p50 {:.1}, p99 {:.1}, longest {:.1} ms, {wide} over 60 ms, {missing} missing",
        heard.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    )
}

/// The gaps are printed, beside those of a bare relay at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn three_minutes_beside_a_busy_loop_for_each_core_lose_nothing() {
    if !is_long() {
        return;
    }
    let exchange = Exchange::start();
    let mut telephones = vec![Telephone::call(&exchange, 440.0).await];
    telephones.push(Telephone::call(&exchange, 600.0).await);
    relayed(&exchange, LOBBY, 50).await;
    let mut bare = Vec::new();
    let mut relays = Vec::new();
    for ((socket, relay), hertz) in bare_pair().await.into_iter().zip([440.0, 600.0]) {
        let heard: Arc<Mutex<Vec<Heard>>> = Arc::default();
        let speaking = speak(socket, hertz, Arc::clone(&heard), Arc::default());
        bare.push((heard, tokio::spawn(speaking).abort_handle()));
        relays.push(relay);
    }
    let busy = Busy::every_core();
    telephones
        .iter()
        .for_each(|telephone| telephone.heard.lock().unwrap().clear());
    bare.iter()
        .for_each(|(heard, _)| heard.lock().unwrap().clear());
    tokio::time::sleep(Duration::from_mins(3)).await;
    drop(busy);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    println!("load {}", load.trim());
    let calls = exchange.calls().await;
    for (telephone, (heard, task)) in telephones.iter().zip(&bare) {
        task.abort();
        let (relayed, bare) = (telephone.heard.lock().unwrap(), heard.lock().unwrap());
        println!("vivavoce: {}", gaps(&relayed));
        println!("bare relay: {}", gaps(&bare));
        assert!(relayed.len() > 8_000, "{}", relayed.len());
        let in_order = |two: &[Heard]| two[1].sequence == two[0].sequence.wrapping_add(1);
        assert!(relayed.windows(2).all(in_order));
    }
    for call in &calls {
        assert_eq!(call["media"]["packets_lost"], 0, "{call}");
    }
    let end = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for relay in relays {
        end.send_to(&[], relay).unwrap();
    }
    // SIPp has given up after a minute; the calls have gone on without it.
}
