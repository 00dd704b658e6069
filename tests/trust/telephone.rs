//! Attacks on telephone calls by who sends datagrams: to the ports of sound, and as somebody else to the port of signalling.

use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::telephone::Exchange;
use crate::telephone::hostile::{SDP, answer, invite, memory, socket};
use crate::telephone::rig::PATIENCE;
use crate::telephone::rig::sipp::{Scenario, Sipp};

/// Somebody who may not call.
const STRANGER: &str = "127.0.0.66";
/// Somebody who has nothing to do with it.
const VICTIM: &str = "127.0.0.99";
const CALLED: &str = "+14155550199";

async fn bound(address: &str) -> UdpSocket {
    UdpSocket::bind((address, 0)).await.unwrap()
}

/// What waits in a socket.
fn waiting(socket: &UdpSocket) -> usize {
    let mut buffer = [0; 2_048];
    std::iter::from_fn(|| socket.try_recv(&mut buffer).ok()).count()
}

/// The next answer with this status.
async fn told(socket: &UdpSocket, status: u16) -> String {
    let mut buffer = vec![0; 65_536];
    loop {
        let received = timeout(PATIENCE, socket.recv(&mut buffer)).await;
        let text = String::from_utf8_lossy(&buffer[..received.unwrap().unwrap()]).into_owned();
        if text.starts_with(&format!("SIP/2.0 {status} ")) {
            return text;
        }
    }
}

/// An INVITE that wants sound there.
fn wants_sound_at(local: &str, call: &str, there: &UdpSocket) -> String {
    let there = there.local_addr().unwrap();
    let sdp = SDP
        .replace("c=IN IP4 127.0.0.1", &format!("c=IN IP4 {}", there.ip()))
        .replace("m=audio 9", &format!("m=audio {}", there.port()));
    invite(local, call, &sdp)
}

fn acknowledge(local: &str, call: &str, answer: &str) -> String {
    let to = answer.lines().find(|line| line.starts_with("To:")).unwrap();
    format!(
        "ACK sip:{CALLED}@127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bK{call}ack;rport\r\n\
         From: <sip:x@{local}>;tag=1\r\n{to}\r\nCall-ID: {call}\r\nCSeq: 1 ACK\r\nContent-Length: 0\r\n\r\n"
    )
}

/// A packet of PCMU.
fn packet(sequence: u16) -> Vec<u8> {
    let mut packet = vec![0x80, 0];
    packet.extend(sequence.to_be_bytes());
    packet.extend((160 * u32::from(sequence)).to_be_bytes());
    packet.extend(66_u32.to_be_bytes());
    packet.extend([0x10; 160]);
    packet
}

#[tokio::test]
async fn who_sprays_ports_neither_hears_a_call_nor_is_heard_in_it() {
    let exchange = Exchange::start();
    let (caller, local) = socket(&exchange).await;
    let telephone = bound("127.0.0.1").await;
    let message = wants_sound_at(&local, "sprayed", &telephone);
    caller.send(message.as_bytes()).await.unwrap();
    let answer = told(&caller, 200).await;
    caller
        .send(acknowledge(&local, "sprayed", &answer).as_bytes())
        .await
        .unwrap();
    let media = answer.split_once("m=audio ").unwrap().1;
    let media: u16 = media.split(' ').next().unwrap().parse().unwrap();
    // The telephone only listens for now, as one does that is behind a slow line.
    let thief = bound(STRANGER).await;
    let mut sound = [0; 2_048];
    for sequence in 0..50 {
        for port in [media, media + 1] {
            let sprayed = packet(sequence);
            let sent = thief.send_to(&sprayed, ("127.0.0.1", port)).await;
            sent.unwrap();
        }
        // What is sent comes here all the time: that is the clock.
        let heard = timeout(PATIENCE, telephone.recv(&mut sound)).await;
        heard.unwrap().unwrap();
    }
    assert_eq!(waiting(&thief), 0, "packets of a call went to a stranger");
    // Its own words are heard.
    for sequence in 0..5 {
        let said = packet(sequence);
        let sent = telephone.send_to(&said, ("127.0.0.1", media)).await;
        sent.unwrap();
    }
    let heard = |call: &serde_json::Value| call["media"]["packets_received"] == 5;
    let call = exchange.until("heard", heard).await;
    assert_eq!(call["status"], "active", "{call}");
}

#[tokio::test]
async fn who_never_called_is_sent_no_sound() {
    let exchange = Exchange::start();
    let (forger, local) = socket(&exchange).await;
    let victim = bound(VICTIM).await;
    let message = wants_sound_at(&local, "amplified", &victim);
    forger.send(message.as_bytes()).await.unwrap();
    // The answer, and its first two repetitions: a second and a half.
    for _ in 0..3 {
        told(&forger, 200).await;
    }
    assert_eq!(waiting(&victim), 0, "packets for who never acknowledged");
}

#[tokio::test]
async fn whoever_never_acknowledged_is_not_heard_and_hears_nothing() {
    let exchange = Exchange::start();
    let (caller, local) = socket(&exchange).await;
    let telephone = bound("127.0.0.1").await;
    let message = wants_sound_at(&local, "forged", &telephone);
    caller.send(message.as_bytes()).await.unwrap();
    let answer = told(&caller, 200).await;
    let media = answer.split_once("m=audio ").unwrap().1;
    let media: u16 = media.split(' ').next().unwrap().parse().unwrap();
    let mut sequence = 0..;
    let mut say = async |packets: usize| {
        for sequence in sequence.by_ref().take(packets) {
            let said = packet(sequence);
            let sent = telephone.send_to(&said, ("127.0.0.1", media)).await;
            sent.unwrap();
        }
    };
    // The answer's repetitions are the clock: a second and a half.
    for _ in 0..2 {
        say(20).await;
        told(&caller, 200).await;
    }
    assert_eq!(waiting(&telephone), 0, "packets for who never acknowledged");
    let agreed = |call: &serde_json::Value| call["media"]["codec"] == "PCMU";
    let call = exchange.until("agreed", agreed).await;
    assert_eq!(call["media"]["packets_received"], 0, "{call}");
    // From its acknowledgement on it is.
    caller
        .send(acknowledge(&local, "forged", &answer).as_bytes())
        .await
        .unwrap();
    let mut sound = [0; 2_048];
    let heard = timeout(PATIENCE, telephone.recv(&mut sound)).await;
    heard.unwrap().unwrap();
    say(5).await;
    let heard = |call: &serde_json::Value| call["media"]["packets_received"] == 5;
    exchange.until("heard", heard).await;
}

#[tokio::test]
async fn calls_that_nobody_acknowledges_keep_nobody_from_calling() {
    let exchange = Exchange::with(&[
        ("SIP_ALLOWED_ADDRESSES", "127.0.0.1,127.0.0.2"),
        ("SIP_MAX_CALLS", "20"),
        ("SIP_MAX_UNACKNOWLEDGED_CALLS", "12"),
        ("SIP_MAX_UNACKNOWLEDGED_CALLS_PER_ADDRESS", "8"),
    ]);
    let forger = bound("127.0.0.2").await;
    forger.connect(exchange.address()).await.unwrap();
    let local = forger.local_addr().unwrap().to_string();
    for number in 0..100 {
        let message = invite(&local, &format!("forged{number}"), SDP);
        forger.send(message.as_bytes()).await.unwrap();
    }
    told(&forger, 503).await;
    let scenario = Scenario::is_answered("").ends();
    Sipp::call(&scenario, CALLED, &exchange.address())
        .passed()
        .await;
    // Even one from the address that is forged, once others have had their time.
    let honest = bound("127.0.0.2").await;
    honest.connect(exchange.address()).await.unwrap();
    let local = honest.local_addr().unwrap().to_string();
    let began = Instant::now();
    for number in 0.. {
        let call = format!("honest{number}");
        if answer(&honest, &invite(&local, &call, SDP), &call).await == 200 {
            break;
        }
        assert!(began.elapsed() < PATIENCE / 3, "nobody gives way");
    }
}

#[tokio::test]
async fn nobody_is_answered_at_an_address_that_only_a_message_names() {
    let exchange = Exchange::start();
    let stranger = bound(STRANGER).await;
    let here = stranger.local_addr().unwrap();
    let victim = UdpSocket::bind((VICTIM, here.port())).await.unwrap();
    stranger.connect(exchange.address()).await.unwrap();
    let astray = |method: &str| {
        let message = invite(&here.to_string(), method, "").replace("INVITE", method);
        message.replace(";rport", &format!(";received={VICTIM}"))
    };
    for method in ["CANCEL", "OPTIONS", "INVITE", "BYE"] {
        stranger.send(astray(method).as_bytes()).await.unwrap();
    }
    // Whoever may call cannot have others answered either.
    let (friend, local) = socket(&exchange).await;
    let message = invite(&local, "astray", SDP).replace(";rport", &format!(";received={VICTIM}"));
    friend.send(message.as_bytes()).await.unwrap();
    // All of them have been looked at when the next is answered.
    assert_eq!(
        answer(
            &friend,
            &invite(&local, "after", "").replace("INVITE", "OPTIONS"),
            "after"
        )
        .await,
        200
    );
    assert_eq!(waiting(&victim), 0);
}

#[tokio::test]
async fn what_is_asked_without_a_call_costs_no_memory() {
    let exchange = Exchange::start();
    let (friend, local) = socket(&exchange).await;
    let ask = async |number: u32| {
        let call = format!("{number:05}{}", "x".repeat(3_000));
        let message = invite(&local, &call, "").replace("INVITE", "OPTIONS");
        let message = message.replace(&format!("z9hG4bK{call}"), &format!("z9hG4bK{number}"));
        // There are so many answers a second: what is not answered is asked again, as by any telephone.
        loop {
            friend.send(message.as_bytes()).await.unwrap();
            let answered = timeout(Duration::from_millis(200), told(&friend, 200));
            if answered.await.is_ok() {
                break;
            }
        }
    };
    for number in 0..500 {
        ask(number).await;
    }
    let before = memory(&exchange);
    for number in 500..3_500 {
        ask(number).await;
    }
    let grown = memory(&exchange).saturating_sub(before);
    assert!(grown < 8 * 1_024, "{grown} KiB for what was answered");
}

#[tokio::test]
async fn a_refusal_is_not_much_longer_than_what_is_refused() {
    let exchange = Exchange::start();
    let stranger = bound(STRANGER).await;
    stranger.connect(exchange.address()).await.unwrap();
    let local = stranger.local_addr().unwrap().to_string();
    // In a response the short name becomes the long one, and a tag is added.
    let short = format!("Max-Forwards: 70\r\n{}", "t:\r\n".repeat(100));
    for field in ["t:", "f:", "i:"] {
        let repeated = short.replace("t:", field);
        let grown = invite(&local, "grown", "").replace("Max-Forwards: 70\r\n", &repeated);
        stranger.send(grown.as_bytes()).await.unwrap();
    }
    let message = invite(&local, "plain", "");
    stranger.send(message.as_bytes()).await.unwrap();
    let mut buffer = vec![0; 65_536];
    let received = timeout(PATIENCE, stranger.recv(&mut buffer)).await;
    let refusal = String::from_utf8_lossy(&buffer[..received.unwrap().unwrap()]).into_owned();
    assert!(refusal.starts_with("SIP/2.0 403 "), "{refusal}");
    assert!(refusal.contains("plain"), "the first answer is {refusal}");
    assert!(refusal.len() < message.len() + 60, "{refusal}");
}
