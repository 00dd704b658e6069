//! The fast path of sound: packets that are forwarded past str0m.
//!
//! A packet through str0m costs two rounds of a connection's timers and three of its outputs, several times as much as its
//! encryption: str0m asks each part of a connection what it has to do, and paces. Sound needs no pace. Unless its receiver may ask
//! for lost packets again, which only str0m can answer, it is written here, protected with str0m's keys (`srtp_sending`), and goes
//! where str0m's last packet went.
//!
//! str0m has a packet of each stream every few seconds ([`REFRESHED`]): its sender reports extrapolate the time of that (RFC 3550
//! section 6.4.1), and where it goes is where ICE wants it. Whatever could change a way or a stream makes the next packet go
//! through str0m, too: a request of ICE, a description, another source. While there is video, all sound goes through str0m, whose
//! estimator counts what is sent.
//!
//! What str0m does not see it does not count: the counts of packets and octets in sender reports are of those that it sent.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use str0m::Rtc;
use str0m::media::{Mid, Pt};
use str0m::net::{Protocol, Transmit};
use str0m::rtp::Extension;

use super::srtp_sending::Protection;
use super::ssrcs;

/// For how long str0m need not have a packet of a stream.
const REFRESHED: Duration = Duration::from_secs(4);
/// Ids and bytes that an extension has in a header of one byte (RFC 8285 section 4.2).
const ONE_BYTE_IDS: std::ops::RangeInclusive<u8> = 1..=14;
const ONE_BYTE_LENGTH: usize = 16;
/// What says that they have such headers.
const ONE_BYTE_PROFILE: [u8; 2] = [0xbe, 0xde];

/// Where a connection's media goes.
#[derive(Debug, Clone, Copy)]
struct Route {
    protocol: Protocol,
    source: SocketAddr,
    destination: SocketAddr,
}

/// The fast path of a connection. See the module.
#[derive(Debug, Default)]
pub struct FastPath {
    protection: Option<Protection>,
    route: Option<Route>,
}

/// What is known of a stream.
#[derive(Debug)]
pub struct Lane {
    ssrc: u32,
    /// Ids of the header extensions that its receiver knows.
    level: Option<u8>,
    section: Option<u8>,
    /// When str0m is to have a packet again.
    until: Instant,
}

/// A packet of sound.
pub struct Sound<'a> {
    pub pt: Pt,
    pub marker: bool,
    /// Extended sequence number.
    pub sequence: u64,
    /// RTP timestamp.
    pub time: u32,
    /// In −dBov, and whether it is a voice (RFC 6464).
    pub level: Option<(i8, bool)>,
    pub payload: &'a [u8],
}

impl Lane {
    /// As str0m has the stream, of which it is given a packet; `None` if it has none, sends lost packets of it again, or its
    /// receiver wants longer headers than are written here.
    pub fn of(rtc: &mut Rtc, mid: Mid, pt: Pt, now: Instant) -> Option<Self> {
        let known = rtc.codec_config().iter().find(|known| known.pt() == pt)?;
        if known.resend().is_some() {
            return None;
        }
        let ssrc = *rtc.direct_api().stream_tx_by_mid(mid, None)?.ssrc();
        let extensions = rtc.media(mid)?.remote_extmap();
        let level = extensions.id_of(Extension::AudioLevel);
        let section = extensions.id_of(Extension::RtpMid);
        let mut ids = level.iter().chain(&section);
        let fits = ids.all(|id| ONE_BYTE_IDS.contains(id)) && mid.len() <= ONE_BYTE_LENGTH;
        fits.then_some(Self {
            ssrc,
            level,
            section: section.filter(|_| !mid.is_empty()),
            until: now + REFRESHED,
        })
    }

    /// The header of a packet (RFC 3550 section 5.1, RFC 8285 section 4.2).
    fn header(&self, mid: &str, sound: &Sound<'_>) -> Vec<u8> {
        let mut header = Vec::with_capacity(12 + 4 + 4 + ONE_BYTE_LENGTH);
        let has_level = self.level.zip(sound.level);
        let is_extended = has_level.is_some() || self.section.is_some();
        header.push(0x80 | u8::from(is_extended) << 4);
        header.push(u8::from(sound.marker) << 7 | *sound.pt);
        header.extend((sound.sequence as u16).to_be_bytes());
        header.extend(sound.time.to_be_bytes());
        header.extend(self.ssrc.to_be_bytes());
        if !is_extended {
            return header;
        }
        header.extend(ONE_BYTE_PROFILE);
        header.extend([0, 0]);
        let begin = header.len();
        if let Some((id, (level, is_voice))) = has_level {
            header.push(id << 4);
            header.push(u8::from(is_voice) << 7 | level.unsigned_abs() & 0x7f);
        }
        // The receiver may know the section of a new stream by nothing else (RFC 8843 section 9.2).
        if let Some(id) = self.section {
            header.push(id << 4 | (mid.len() - 1) as u8);
            header.extend(mid.as_bytes());
        }
        while !(header.len() - begin).is_multiple_of(4) {
            header.push(0);
        }
        let words = (header.len() - begin) / 4;
        if let Some(length) = header.get_mut(begin - 1) {
            *length = words as u8;
        }
        header
    }
}

impl FastPath {
    /// A handshake has agreed on keys.
    pub fn take_keys(&mut self, protection: Protection) {
        self.protection = Some(protection);
    }

    /// The next packet is str0m's, as where it goes may have changed.
    pub const fn leave(&mut self) {
        self.route = None;
    }

    /// Nothing goes this way any more.
    pub fn close(&mut self) {
        *self = Self::default();
    }

    /// str0m has sent something: if that is media, what follows goes there, too.
    pub fn follow(&mut self, transmit: &Transmit) {
        if ssrcs::of_rtp(&transmit.contents).is_some() {
            self.route = Some(Route {
                protocol: transmit.proto,
                source: transmit.source,
                destination: transmit.destination,
            });
        }
    }

    /// A packet as it is sent; `None` if it is for str0m.
    pub fn send(
        &mut self,
        lane: &Lane,
        mid: Mid,
        sound: &Sound<'_>,
        now: Instant,
    ) -> Option<Transmit> {
        let route = self.route.filter(|_| now < lane.until)?;
        let protection = self.protection.as_mut()?;
        let header = lane.header(&mid, sound);
        let packet = protection.protect(&header, sound.payload, lane.ssrc, sound.sequence)?;
        Some(Transmit {
            proto: route.protocol,
            source: route.source,
            destination: route.destination,
            contents: packet.into(),
        })
    }
}
