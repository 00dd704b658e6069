//! Attacks: malformed messages and session descriptions, and floods. None of them ends the process, leaks memory, or keeps
//! others from calling.

use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::Exchange;
use super::rig::PATIENCE;
use super::rig::sipp::{Run, Scenario, Sipp};
use crate::harness::is_long;

const CALLED: &str = "+14155550199";

/// An INVITE from a socket with any body.
pub fn invite(local: &str, call: &str, sdp: &str) -> String {
    let length = sdp.len();
    format!(
        "INVITE sip:{CALLED}@127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bK{call};rport\r\n\
         Max-Forwards: 70\r\nFrom: <sip:x@{local}>;tag=1\r\nTo: <sip:{CALLED}@127.0.0.1>\r\nCall-ID: {call}\r\n\
         CSeq: 1 INVITE\r\nContact: <sip:x@{local}>\r\nContent-Type: application/sdp\r\nContent-Length: {length}\r\n\r\n{sdp}"
    )
}

/// The final answer to what is sent, sent again as long as there is none.
pub async fn answer(socket: &UdpSocket, message: &str, call: &str) -> u16 {
    let mut buffer = vec![0; 65_536];
    for _ in 0..PATIENCE.as_secs() {
        socket.send(message.as_bytes()).await.unwrap();
        while let Ok(Ok(length)) = timeout(Duration::from_secs(1), socket.recv(&mut buffer)).await {
            let text = String::from_utf8_lossy(&buffer[..length]);
            let status = text.strip_prefix("SIP/2.0 ").and_then(|rest| rest.get(..3));
            let status: u16 = status.and_then(|status| status.parse().ok()).unwrap_or(0);
            if text.contains(call) && status >= 200 {
                return status;
            }
        }
    }
    panic!("no answer to {message}");
}

/// A socket that is connected to the server, and its address.
pub async fn socket(exchange: &Exchange) -> (UdpSocket, String) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(exchange.address()).await.unwrap();
    let local = socket.local_addr().unwrap().to_string();
    (socket, local)
}

/// Somebody can still call.
async fn works(exchange: &Exchange) {
    let scenario = Scenario::is_answered("").ends();
    Sipp::call(&scenario, CALLED, &exchange.address())
        .passed()
        .await;
}

/// Reproducible noise (xorshift, Marsaglia 2003).
struct Noise(u64);

impl Noise {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

pub const SDP: &str = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 9 RTP/AVP 0 101\r\n\
                   a=rtpmap:0 PCMU/8000\r\na=rtpmap:101 telephone-event/8000\r\n";

/// Messages that no telephone should send.
fn broken(local: &str) -> Vec<Vec<u8>> {
    let good = invite(local, "broken", SDP);
    let with = |from: &str, to: &str| good.replacen(from, to, 1).into_bytes();
    let mut messages: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"\r\n\r\n".to_vec(),
        vec![0; 1_000],
        vec![0xff; 60_000],
        b"INVITE".to_vec(),
        b"INVITE sip:x SIP/2.0\r\n\r\n".to_vec(),
        b"SIP/2.0 200 OK\r\n\r\n".to_vec(),
        b"SIP/2.0 99999999999999999999 OK\r\n\r\n".to_vec(),
        with("SIP/2.0\r\n", "SIP/9.9\r\n"),
        with("INVITE sip:", "INVITE http://"),
        with("INVITE sip:", "IN\u{0}VITE sip:"),
        with("CSeq: 1 INVITE", "CSeq: 1 BYE"),
        with("CSeq: 1 INVITE", "CSeq: 99999999999999999999 INVITE"),
        with("CSeq: 1 INVITE\r\n", ""),
        with("Call-ID: broken\r\n", ""),
        with("Max-Forwards: 70", "Max-Forwards: -1"),
        with("Max-Forwards: 70", "Max-Forwards: 0"),
        with(";tag=1", ""),
        with("Via: SIP/2.0/UDP", "Via: SIP/2.0/CARRIER-PIGEON"),
        with(";branch=z9hG4bKbroken", ""),
        with(local, "[::ffff"),
        with(local, "999.999.999.999:99999"),
        with("Contact: <sip:", "Contact: <<<<sip:"),
        with("Contact: <sip:x@", "Contact: *"),
        with("From: <sip:", "From: \"\\\" <sip:"),
        with("From: <sip:x", "From: <sip:\u{202e}é%zz"),
        with("Content-Length: ", "Content-Length: -"),
        with("Content-Length: ", "Content-Length: 9999999999"),
        with("Content-Length: ", "Content-Length: x"),
        with("Content-Type: application/sdp", "Content-Type: a/b/c;;;"),
        with(
            "Max-Forwards",
            &format!("X-Long: {}\r\nMax-Forwards", "x".repeat(50_000)),
        ),
        with(
            "Max-Forwards",
            &format!(
                "{}Max-Forwards",
                "Via: SIP/2.0/UDP 127.0.0.1:1;branch=z9hG4bK1\r\n".repeat(800)
            ),
        ),
        with(
            "Max-Forwards",
            &format!(
                "{}Max-Forwards",
                "Record-Route: <sip:127.0.0.1;lr>\r\n".repeat(1_000)
            ),
        ),
    ];
    for method in [
        "ACK",
        "BYE",
        "CANCEL",
        "REFER",
        "NOTIFY",
        "UPDATE",
        "PRACK",
        "INFO",
        "REGISTER",
        "SUBSCRIBE",
        "FOO",
    ] {
        let text = good.replace("INVITE", method);
        messages.push(text.clone().into_bytes());
        messages.push(
            text.replacen("To: <", "To: <sip:a@b>;tag=9 <", 1)
                .into_bytes(),
        );
    }
    messages
}

#[tokio::test]
async fn broken_messages_end_nothing() {
    // What is left good in a broken message is a call on trial, and all come from the address of the one that shall work.
    let exchange = Exchange::with(&[
        ("SIP_MAX_UNACKNOWLEDGED_CALLS", "2000"),
        ("SIP_MAX_UNACKNOWLEDGED_CALLS_PER_ADDRESS", "1000"),
        ("SIP_MAX_CALLS_PER_ROOM", "1000"),
    ]);
    let (socket, local) = socket(&exchange).await;
    for message in broken(&local) {
        socket.send(&message).await.unwrap();
        let mut stream = TcpStream::connect(exchange.address()).await.unwrap();
        // The server may hang up on the first byte.
        let _ = stream.write_all(&message).await;
    }
    works(&exchange).await;

    // A good one in which some bytes are others. What is left good in it is a call that nobody acknowledges.
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let rounds = if is_long() { 20_000 } else { 500 };
    for round in 0..rounds {
        let mut message = invite(&local, &format!("noise{round}"), SDP).into_bytes();
        for _ in 0..=noise.next(8) {
            let at = noise.next(message.len());
            message[at] = noise.next(256) as u8;
        }
        if noise.next(4) == 0 {
            message.truncate(noise.next(message.len()));
        }
        socket.send(&message).await.unwrap();
    }
    works(&exchange).await;
}

#[tokio::test]
async fn broken_descriptions_of_sound_are_refused() {
    let exchange = Exchange::start();
    let (socket, local) = socket(&exchange).await;
    let long = SDP.to_owned() + &"a=fmtp:0 x\r\n".repeat(4_000);
    let crypto =
        SDP.replace("RTP/AVP", "RTP/SAVP") + "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:short\r\n";
    let bodies = [
        "v=0\r\n".to_owned(),
        "\0\0\0\0".to_owned(),
        "m=audio\r\n".repeat(100),
        SDP.replace("m=audio 9", "m=audio 99999999"),
        SDP.replace("m=audio 9", "m=audio -1"),
        SDP.replace("m=audio", "m=video"),
        SDP.replace("RTP/AVP 0 101", "RTP/AVP 300 -4 x"),
        SDP.replace("RTP/AVP", "UDP/TLS/RTP/SAVPF"),
        SDP.replace("IN IP4 127.0.0.1", "IN IP6 :::::"),
        crypto,
        long,
    ];
    for (number, body) in bodies.iter().enumerate() {
        let call = format!("sdp{number}");
        let status = answer(&socket, &invite(&local, &call, body), &call).await;
        assert!((400..700).contains(&status), "{status} to {body:.300}");
    }
    works(&exchange).await;
}

/// The memory of the server, in KiB.
pub fn memory(exchange: &Exchange) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", exchange.server.pid())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_flood_from_elsewhere_costs_nothing_but_refusals() {
    let exchange = Exchange::start();
    let flood = |calls, rate| {
        let run = Run {
            host: "127.0.0.66",
            calls,
            rate,
            ..Run::default()
        };
        Sipp::call_with(
            &Scenario::is_refused("", 403),
            CALLED,
            &exchange.address(),
            run,
        )
    };
    // What a server needs once.
    flood(500, 500).passed().await;
    works(&exchange).await;
    let before = memory(&exchange);
    let long = is_long();
    let mut refused = flood(if long { 20_000 } else { 3_000 }, 1_000);
    works(&exchange).await;
    refused.passed().await;
    let grown = memory(&exchange).saturating_sub(before);
    assert!(grown < 16 * 1_024, "{grown} KiB for what was refused");
    let calls = exchange.calls().await;
    assert!(calls.len() == 2, "{calls:?}");
    let path = "/rtc/rooms";
    let (_, rooms) = crate::rooms::ask(
        &exchange.server,
        reqwest::Method::GET,
        path,
        None,
        &Value::Null,
    )
    .await;
    assert!(rooms["rooms"].as_array().unwrap().len() <= 1, "{rooms}");
}
