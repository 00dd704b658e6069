//! Targets of [`vivavoce_core::fuzzing`]: session descriptions, RTP, RTCP and DTMF.

#[cfg(test)]
use std::net::IpAddr;
use std::net::SocketAddr;
#[cfg(test)]
use std::time::{Duration, Instant};

#[cfg(test)]
use tokio::sync::mpsc;

use super::dtls::Fingerprint;
use super::dtmf::DtmfReceiver;
use super::offer_answer::OfferAnswer;
use super::rtp::{self, Header};
#[cfg(test)]
use super::session::{Port, Session, Start, Wire};
use super::srtp::{Crypto, Suite, UnprotectContext};
use super::{Codec, Encryption, rtcp};
#[cfg(test)]
use vivavoce_core::fuzzing::rounds::fuzz;
use vivavoce_core::fuzzing::{Target, binary, text};

/// The targets of this folder.
pub const TARGETS: [Target; 2] = [
    text("session_description", description, offers),
    binary("rtp_packet", packet, packets),
];

fn offers() -> Vec<Vec<u8>> {
    OFFERS.map(<[u8]>::to_vec).to_vec()
}

const OFFERS: [&[u8]; 5] = [
    b"v=0\r\no=- 1 1 IN IP4 192.0.2.7\r\ns=-\r\nc=IN IP4 192.0.2.7\r\nt=0 0\r\na=sendrecv\r\n\
      m=audio 4000/2 RTP/AVP 0 8 9 96 101 13\r\na=rtpmap:96 opus/48000/2\r\na=fmtp:96 useinbandfec=1\r\n\
      a=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-15\r\na=rtcp:4005 IN IP4 192.0.2.9\r\na=ptime:30\r\na=maxptime:60\r\n\
      a=rtcp-mux\r\nm=video 0 RTP/AVP 31\r\nc=IN IP6 ::\r\n",
    b"v=0\r\no=- 1 1 IN IP4 192.0.2.7\r\ns=-\r\nt=0 0\r\nm=audio 4002 RTP/SAVP 0 110\r\nc=IN IP4 192.0.2.8/127\r\n\
      a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:d0RmdmcmVCspeEc3QGZiNWpVLFJhQX1cfHAwJSoj|2^20|1:32\r\n\
      a=crypto:2 AES_CM_128_HMAC_SHA1_32 inline:BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH\r\na=recvonly\r\n",
    b"v=0\nm=audio 5000 RTP/AVP 0\nc=IN IP4 phone.example\na=inactive\n",
    b"v=0\r\nc=IN IP4 0.0.0.0\r\nm=audio 5000 RTP/AVP 8\r\nm=audio 5002 RTP/AVPF 0\r\na=sendonly\r\n",
    b"v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0\r\na=fingerprint:sha-256 \
      01:23:45:67:89:AB:CD:EF:01:23:45:67:89:AB:CD:EF:01:23:45:67:89:AB:CD:EF:01:23:45:67:89:AB:CD:EF\r\n\
      m=audio 9 UDP/TLS/RTP/SAVPF 111 0 110\r\nc=IN IP4 192.0.2.9\r\na=ice-ufrag:abcd\r\n\
      a=ice-pwd:0123456789012345678901\r\na=setup:actpass\r\na=mid:0\r\na=rtcp-mux\r\na=rtpmap:111 opus/48000/2\r\n\
      a=candidate:1 1 udp 2122260223 192.0.2.9 4000 typ host\r\na=rtpmap:110 telephone-event/48000\r\n",
];

/// Ours, with a certificate that nobody has.
fn negotiation(encryption: Encryption, local: SocketAddr) -> OfferAnswer {
    let call = OfferAnswer::new(&Codec::ALL, encryption, local);
    let fingerprint = format!("sha-256 {}", ["AB"; 32].join(":"));
    match Fingerprint::parse(&fingerprint) {
        Some(fingerprint) => call.with_certificate(fingerprint),
        None => call,
    }
}

fn description(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    for encryption in [Encryption::Off, Encryption::Allow, Encryption::Require] {
        let local = SocketAddr::from(([192, 0, 2, 1], 20_000));
        let mut called = negotiation(encryption, local);
        let answer = called.answer(text);
        if let Ok(answer) = &answer {
            // What we say is read by ourselves, and no longer than what we were told.
            let mut other = negotiation(encryption, local);
            let _understood = other.answer(answer);
            assert!(answer.len() < 2_048 + text.len(), "{answer}");
        }
        let _again = (called.answer(text), called.offer(), called.accepted(text));
        let mut caller = negotiation(encryption, local);
        caller.offer();
        let _accepted = caller.accepted(text);
    }
}

fn packet(input: &[u8]) {
    if let Some((header, payload)) = Header::parse(input) {
        assert!(payload.start <= payload.end && payload.end <= input.len());
        let payload = &input[payload];
        let mut receiver = DtmfReceiver::default();
        let first = receiver.hear(header.ssrc, header.timestamp, payload);
        let again = receiver.hear(header.ssrc, header.timestamp, payload);
        assert!(first.is_none_or(|event| event < 16) && again.is_none());
    }
    let _report = rtcp::parse(input, 7);
    let _kind = rtp::is_rtcp(input);
    if let Some(crypto) = Crypto::new(1, Suite::Sha1_80) {
        let mut unprotect = UnprotectContext::new(crypto);
        // Nobody finds a key by chance.
        assert!(unprotect.rtp(input, 7).is_none() && unprotect.rtcp(input).is_none());
    }
}

fn packets() -> Vec<Vec<u8>> {
    let header = |payload_type, sequence| {
        let mut packet = Vec::new();
        Header {
            marker: false,
            payload_type,
            sequence,
            timestamp: 160 * u32::from(sequence),
            ssrc: 7,
        }
        .write(&mut packet);
        packet
    };
    let mut sound = header(0, 1);
    sound.extend([0x55; 160]);
    let mut key = header(101, 2);
    key.extend([5, 0x8A, 0, 160]);
    let mut opus = header(96, 3);
    opus.extend([0xFC, 0xFF, 0xFE]);
    let mut wide = header(9, 4);
    wide.extend([0x11; 80]);
    let mut extended = header(0, 5);
    extended[0] |= 0x10;
    extended.extend([0xBE, 0xDE, 0, 1, 0x12, 1, 2, 3]);
    let (mut report, mut goodbye) = (Vec::new(), Vec::new());
    let block = rtcp::ReportBlock {
        ssrc: 7,
        lost: 3,
        ..Default::default()
    };
    let sent = rtcp::Sent {
        time: 1 << 40,
        timestamp: 160,
        packets: 1,
        bytes: 160,
    };
    rtcp::write(&mut report, 7, Some(sent), Some(block), "phone", false);
    rtcp::write(&mut goodbye, 7, None, Some(block), "", true);
    vec![sound, key, opus, wide, extended, report, goodbye]
}

/// Nothing is sent.
#[cfg(test)]
struct Nowhere;

#[cfg(test)]
impl Wire for Nowhere {
    fn send(&mut self, _: Port, _: SocketAddr, _: &[u8]) {}
}

#[test]
fn no_datagram_ends_a_call_of_any_codec() {
    let of_browser = std::str::from_utf8(OFFERS[4]).unwrap();
    let without_ice = of_browser.replace("a=ice", "a=no");
    for offer in [
        std::str::from_utf8(OFFERS[0]).unwrap(),
        of_browser,
        &without_ice,
    ] {
        no_datagram_ends_a_call(offer);
    }
}

#[cfg(test)]
fn no_datagram_ends_a_call(offer: &str) {
    let there = SocketAddr::from(([192, 0, 2, 7], 4_000));
    let mut ours = negotiation(Encryption::Off, there);
    ours.answer(&offer.replace("192.0.2.9", "192.0.2.7"))
        .unwrap();
    let agreement = ours.agreement().unwrap().clone();
    let now = Instant::now();
    let (tell, _events) = mpsc::channel(8);
    let start = Start {
        now,
        timeout: Duration::from_secs(30),
        peer: IpAddr::from([192, 0, 2, 7]),
        sources: [].into(),
        complexity: 0,
        identity: std::sync::Arc::new(super::dtls::Identity::new().unwrap()),
    };
    let mut session = Session::new(start, tell);
    session.agree(&agreement, now);
    let state = std::cell::RefCell::new((session, now));
    let mut samples = packets();
    // A binding request, and the head of a handshake's first record.
    let credentials = super::ice::Credentials::random();
    samples.push(super::ice::write_check(&credentials, &credentials, true));
    samples.push(
        [
            &[
                22, 254, 253, 0, 0, 0, 0, 0, 0, 0, 0, 0, 60, 1, 0, 0, 48, 0, 0, 0, 0, 0, 0, 0, 48,
                254, 253,
            ][..],
            &[7; 46],
        ]
        .concat(),
    );
    fuzz("a call's media", 3_000, false, samples, |input| {
        let (session, now) = &mut *state.borrow_mut();
        let port = [Port::Rtp, Port::Rtcp][input.len() % 2];
        session.receive(port, input, there, *now, &mut Nowhere);
        *now += Duration::from_millis(5);
        if input.first().is_some_and(|byte| byte % 4 == 0) {
            session.tick(*now, &mut Nowhere);
        }
    });
}
