//! The media of one call as a state machine: datagrams and time go in; datagrams, frames for the room and events come
//! out. Sockets, threads and clocks are `threads`'; what is agreed upon is `negotiation`'s.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tokio::sync::mpsc;

use super::super::allowance::Allowance;
use super::arrivals::{Arrivals, Place};
use super::consent::Consent;
use super::inward::Inward;
use super::keys::{Hearing, Keypad, Sent};
use super::latch::{Latch, Seen};
use super::negotiation::{Agreement, Format};
use super::outward::{Outward, Room};
use super::rtp::{self, Header};
use super::secure::{Crypto, Lock, Unlock};
use super::{MediaEvent, MediaReport, rtcp};
use vivavoce_audio::jitter::FRAME as ROOM_FRAME;
use vivavoce_seams::rooms::link::{PublishSink, TelephoneKey, TrackAudio};

/// Comfort noise (RFC 3389): a pause by another name.
const COMFORT_NOISE: u8 = 13;
/// Frames in a second.
const FRAMES_HZ: u32 = 50;
/// Keys that are told each second, and at once: more than anybody or any machine presses.
const KEYS_PER_SECOND: u32 = 20;
const MOST_KEYS_AT_ONCE: u32 = 40;

/// Which of the two ports of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// The even one.
    Rtp,
    /// The one above.
    Rtcp,
}

/// The way out for datagrams.
pub trait Wire {
    /// Sends, or does not: nobody waits.
    fn send(&mut self, port: Port, to: SocketAddr, datagram: &[u8]);
}

/// What a call's media is from the beginning.
#[derive(Debug, Clone)]
pub struct Start {
    /// When it was opened.
    pub now: Instant,
    /// Silence that is told.
    pub timeout: Duration,
    /// With whom the call is signalled.
    pub peer: IpAddr,
    /// From where media may come that nobody has described.
    pub sources: Arc<[IpNet]>,
    /// Of Opus towards the room, 0 to 10.
    pub complexity: u8,
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    start: Start,
    events: mpsc::Sender<MediaEvent>,
    agreement: Option<Agreement>,
    latch: Latch,
    consent: Consent,
    /// From where RTCP came.
    rtcp_from: Option<SocketAddr>,
    lock: Option<Lock>,
    unlock: Option<Unlock>,
    arrivals: Arrivals<Kept>,
    hearing: Hearing,
    keys: Allowance,
    inward: Inward,
    room: Room,
    outward: Option<Outward>,
    keypad: Keypad,
    stream: Stream,
    /// Packets of the streams before this one.
    sent_before: u64,
    /// Whether we hold the call, whether the room is kept from the telephone, and whether the call was taken.
    held: bool,
    muted: bool,
    answered: bool,
    last_in: Instant,
    first_in: Option<Instant>,
    first_out: Option<Instant>,
    next_report: Option<Instant>,
    /// The time in the last report of the other side, and when it came.
    their_report: Option<(u32, Instant)>,
    /// What the other side reported last.
    reported: Option<rtcp::ReportBlock>,
    refused: u64,
    packet: Vec<u8>,
}

/// A packet that waits for one before it.
#[derive(Debug)]
struct Kept {
    header: Header,
    payload: Vec<u8>,
}

/// What we send.
#[derive(Debug)]
struct Stream {
    ssrc: u32,
    sequence: u16,
    timestamp: u32,
    /// The next packet comes after none.
    marker: bool,
    packets: u64,
    bytes: u64,
}

impl Session {
    /// A call that nothing is agreed upon for.
    pub fn new(start: Start, events: mpsc::Sender<MediaEvent>) -> Self {
        let (now, complexity) = (start.now, start.complexity);
        Self {
            latch: Latch::new(start.peer, Arc::clone(&start.sources)),
            start,
            events,
            agreement: None,
            consent: Consent::given(),
            rtcp_from: None,
            lock: None,
            unlock: None,
            arrivals: Arrivals::default(),
            hearing: Hearing::default(),
            keys: Allowance::new(KEYS_PER_SECOND, MOST_KEYS_AT_ONCE),
            inward: Inward::new(complexity),
            room: Room::default(),
            outward: None,
            keypad: Keypad::default(),
            stream: Stream::new(),
            sent_before: 0,
            held: false,
            muted: false,
            answered: false,
            last_in: now,
            first_in: None,
            first_out: None,
            next_report: None,
            their_report: None,
            reported: None,
            refused: 0,
            packet: Vec::with_capacity(rtp::LARGEST),
        }
    }

    /// What both sides agreed upon, at the beginning and each time anew.
    pub fn agree(&mut self, agreement: &Agreement, now: Instant) {
        let before = self.agreement.replace(agreement.clone());
        let before = before.as_ref();
        let sounds = |a: &Agreement| (a.codec, a.packet_ms);
        if before.map(sounds) != Some(sounds(agreement)) {
            let Agreement {
                codec, packet_ms, ..
            } = *agreement;
            self.outward = Outward::new(codec, packet_ms, self.start.complexity)
                .inspect_err(|error| tracing::error!(%error, "a codec cannot be used"))
                .ok();
        }
        let keys_before = before.and_then(|before| before.crypto.as_ref());
        self.rekey(keys_before, agreement.crypto.as_ref());
        self.latch.describe(agreement.rtp, now);
        let held = !agreement.sends;
        if held != before.is_some_and(|before| !before.sends) {
            self.tell(MediaEvent::Held(held));
        }
        let before = before.map(|before| (before.sends, before.hears));
        if before != Some((agreement.sends, agreement.hears)) {
            self.last_in = now;
        }
    }

    /// A key that stays keeps its context with the count of packets (RFC 3711 section 3.3.1): begun anew, it would not
    /// understand what comes, and would lock other packets as some were locked already.
    fn rekey(&mut self, before: Option<&(Crypto, Crypto)>, keys: Option<&(Crypto, Crypto)>) {
        let Some((ours, theirs)) = keys else {
            self.lock = None;
            self.unlock = None;
            return;
        };
        if !before.is_some_and(|(before, _)| before.is_same_key(ours)) {
            self.lock = Lock::new(ours);
            // It may have been in use some time before: never twice for one stream.
            self.sent_before += self.stream.packets;
            self.stream = Stream::new();
        }
        if !before.is_some_and(|(_, before)| before.is_same_key(theirs)) {
            self.unlock = Some(Unlock::new(theirs.clone()));
        }
    }

    /// The call was taken: from now on it is not to be silent. While it rings it may be, however long that takes.
    pub const fn answered(&mut self, now: Instant) {
        self.answered = true;
        self.last_in = now;
    }

    /// The call came from outside: until it is acknowledged, no more packets go out than came.
    pub fn await_acknowledgement(&mut self) {
        self.consent = Consent::awaited();
    }

    /// Our answer has arrived.
    pub const fn acknowledged(&mut self) {
        self.consent.give();
    }

    /// Where the telephone's sound goes.
    pub fn publish(&mut self, sink: PublishSink) {
        self.inward.publish(sink);
    }

    /// Lets the telephone hear somebody's track.
    pub fn hear(&mut self, sid: &str, identity: &str, audio: TrackAudio) {
        if let Err(error) = self.room.hear(sid, identity, audio) {
            tracing::error!(%error, "a track cannot be decoded");
        }
    }

    /// A track has ended.
    pub fn forget(&mut self, sid: &str) {
        self.room.forget(sid);
    }

    /// Presses keys.
    pub fn press(&mut self, digits: &str) {
        self.keypad.press(digits);
    }

    /// Whether nothing is to be heard either way.
    pub const fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// See [`Self::hold`].
    pub const fn is_held(&self) -> bool {
        self.held
    }

    /// Whether the room is kept from the telephone.
    pub const fn mute(&mut self, muted: bool) {
        self.muted = muted;
    }

    /// Takes a datagram that came from somebody to one of the ports.
    pub fn receive(&mut self, port: Port, datagram: &[u8], from: SocketAddr, now: Instant) {
        if self.agreement.is_none() {
            return;
        }
        let taken = if port == Port::Rtcp || rtp::is_rtcp(datagram) {
            self.receive_rtcp(datagram, from, now)
        } else {
            self.receive_rtp(datagram, from, now)
        };
        if taken.is_none() {
            self.refused += 1;
        }
    }

    fn receive_rtp(&mut self, packet: &[u8], from: SocketAddr, now: Instant) -> Option<()> {
        let (header, payload) = Header::parse(packet)?;
        let format = self.format(header.payload_type);
        if format.is_none() && header.payload_type != COMFORT_NOISE {
            return None;
        }
        let plain;
        let payload = if let Some(unlock) = &mut self.unlock {
            plain = unlock.rtp(packet, header.ssrc)?;
            let (_, range) = Header::parse(&plain)?;
            plain.get(range)?
        } else {
            packet.get(payload)?
        };
        let seen = Seen {
            from,
            authentic: self.unlock.is_some(),
            ssrc: header.ssrc,
            sequence: header.sequence,
        };
        if !self.latch.hears(seen, now) {
            return None;
        }
        self.consent.heard();
        self.last_in = now;
        if self.first_in.is_none() {
            self.first_in = Some(now);
            self.tell(MediaEvent::FirstPacket);
        }
        match self.arrivals.note(header.ssrc, header.sequence) {
            Place::First => {
                self.inward.restart(now);
                self.play(header, payload, 0, now);
            }
            Place::Next => self.play(header, payload, 0, now),
            Place::Early(sequence) => {
                let payload = payload.to_vec();
                self.arrivals.keep(sequence, Kept { header, payload }, now);
            }
            Place::Useless => {}
        }
        self.play_kept(now);
        Some(())
    }

    fn play_kept(&mut self, now: Instant) {
        while let Some(kept) = self.arrivals.next(now) {
            let Kept { header, payload } = kept.packet;
            self.play(header, &payload, kept.lost, now);
        }
    }

    /// Takes a packet whose turn it is.
    fn play(&mut self, header: Header, payload: &[u8], lost: u64, now: Instant) {
        let Some(agreement) = &self.agreement else {
            return;
        };
        let hears = agreement.hears && !self.held;
        match self.format(header.payload_type) {
            Some(Format::Sound(codec)) => {
                if header.marker {
                    self.arrivals.forget_time();
                }
                let elapsed = now.saturating_duration_since(self.start.now);
                let ticks = elapsed.as_micros() * u128::from(codec.clock_hz()) / 1_000_000;
                self.arrivals.time(ticks as i64, header.timestamp);
                if hears
                    && !self
                        .inward
                        .hear(codec, header.timestamp, payload, lost, now)
                {
                    self.refused += 1;
                }
            }
            Some(Format::Keys { .. }) => {
                let event = self.hearing.hear(header.ssrc, header.timestamp, payload);
                if let Some(key) = event.and_then(TelephoneKey::from_code)
                    && self.keys.take(1.0, now)
                {
                    let (code, digit) = (key.code(), key.sign());
                    self.tell(MediaEvent::Digit { code, digit });
                }
            }
            None => {}
        }
    }

    fn format(&self, payload_type: u8) -> Option<Format> {
        let mut receives = self.agreement.as_ref()?.receives.iter();
        let (_, format) = receives.find(|(number, _)| *number == payload_type)?;
        Some(*format)
    }

    fn receive_rtcp(&mut self, packet: &[u8], from: SocketAddr, now: Instant) -> Option<()> {
        // Only the host that is believed may report: its port is another one.
        let authentic = self.unlock.is_some();
        if !authentic && self.latch.target()?.ip() != from.ip() {
            return None;
        }
        let reported = match &mut self.unlock {
            Some(unlock) => rtcp::parse(&unlock.rtcp(packet)?, self.stream.ssrc)?,
            None => rtcp::parse(packet, self.stream.ssrc)?,
        };
        self.rtcp_from = Some(from);
        if let Some((_, time)) = reported.sender {
            self.their_report = Some((time, now));
        }
        self.reported = reported.ours.or(self.reported);
        Some(())
    }

    /// To be called every 20 ms; `now` is when it was due.
    pub fn tick(&mut self, now: Instant, wire: &mut dyn Wire) {
        self.play_kept(now);
        let mut mixed = [0; ROOM_FRAME];
        self.room.next(now, &mut mixed);
        if self.held || self.muted {
            mixed.fill(0);
        }
        let Some(agreement) = &self.agreement else {
            return;
        };
        let waits = now.saturating_duration_since(self.last_in) >= self.start.timeout;
        let (sends, hears) = (agreement.sends, agreement.hears && !self.held);
        if waits {
            self.last_in = now;
            // Whoever holds us may play music or send nothing at all.
            if self.answered && sends && hears {
                self.tell(MediaEvent::Silent);
            }
        }
        // What is said in the room before a call that came is answered is not for who calls.
        let open = self.answered || self.consent.is_given();
        match self.latch.target().filter(|_| sends && open) {
            Some(target) if self.consent.pass(&mut mixed) => {
                self.send_frame(&mixed, target, now, wire);
            }
            _ => self.pause(),
        }
        if self.next_report.is_some_and(|due| due <= now) {
            self.send_report(now, false, wire);
        }
    }

    /// The call ends: the other side is told.
    pub fn end(&mut self, now: Instant, wire: &mut dyn Wire) {
        if self.next_report.is_some() {
            self.send_report(now, true, wire);
        }
    }

    /// 20 ms in which nothing is sent.
    fn pause(&mut self) {
        let Some(agreement) = &self.agreement else {
            return;
        };
        let ticks = agreement.codec.clock_hz() / FRAMES_HZ;
        self.stream.timestamp = self.stream.timestamp.wrapping_add(ticks);
        self.stream.marker = true;
        if let Some(outward) = &mut self.outward {
            outward.clear();
        }
    }

    fn send_frame(
        &mut self,
        mixed: &[i16; ROOM_FRAME],
        target: SocketAddr,
        now: Instant,
        wire: &mut dyn Wire,
    ) {
        let Some(agreement) = &self.agreement else {
            return;
        };
        let (payload_type, keys) = (agreement.payload_type, agreement.keys);
        let busy = self.keypad.is_busy();
        if let Some((payload_type, clock_hz)) = keys.filter(|_| busy) {
            match self
                .keypad
                .next(self.stream.timestamp, clock_hz / FRAMES_HZ)
            {
                Sent::Sound => {}
                Sent::Nothing => return self.pause(),
                Sent::Key {
                    marker,
                    timestamp,
                    payload,
                } => {
                    let header = self.stream.header(payload_type, marker, timestamp);
                    self.pause();
                    return self.send_packet(header, target, now, wire, |packet| {
                        packet.extend(payload);
                        true
                    });
                }
            }
        }
        let Some(mut outward) = self.outward.take() else {
            return;
        };
        let sounding = (busy && keys.is_none()).then_some(&mut self.keypad);
        outward.take(mixed, sounding);
        let mut more = true;
        while more {
            let (marker, timestamp) = (self.stream.marker, self.stream.timestamp);
            let header = self.stream.header(payload_type, marker, timestamp);
            let mut ticks = None;
            self.send_packet(header, target, now, wire, |packet| {
                let start = packet.len();
                ticks = outward.packet(packet);
                packet.len() > start
            });
            more = ticks.is_some();
            self.stream.timestamp = timestamp.wrapping_add(ticks.unwrap_or(0));
            self.stream.marker &= !more;
        }
        self.outward = Some(outward);
    }

    /// Sends a packet if there is something in it.
    fn send_packet(
        &mut self,
        header: Header,
        target: SocketAddr,
        now: Instant,
        wire: &mut dyn Wire,
        payload: impl FnOnce(&mut Vec<u8>) -> bool,
    ) {
        let mut packet = std::mem::take(&mut self.packet);
        packet.clear();
        header.write(&mut packet);
        if payload(&mut packet) {
            let locked = self.lock.as_mut().map(|lock| lock.rtp(&packet));
            match &locked {
                None => wire.send(Port::Rtp, target, &packet),
                Some(Some(locked)) => wire.send(Port::Rtp, target, locked),
                Some(None) => tracing::debug!("a packet to a telephone could not be encrypted"),
            }
            self.stream.sequence = header.sequence.wrapping_add(1);
            self.stream.packets += 1;
            self.stream.bytes += (packet.len() - rtp::HEADER) as u64;
            self.first_out.get_or_insert(now);
            let interval = Duration::from_secs(rtcp::INTERVAL_S);
            self.next_report.get_or_insert(now + interval);
        }
        self.packet = packet;
    }

    fn send_report(&mut self, now: Instant, goodbye: bool, wire: &mut dyn Wire) {
        self.next_report = Some(now + Duration::from_secs(rtcp::INTERVAL_S));
        let (Some(agreement), Some(target)) = (&self.agreement, self.latch.target()) else {
            return;
        };
        let (port, target) = if agreement.rtcp_mux {
            (Port::Rtp, target)
        } else {
            let same_host = |address: &SocketAddr| address.ip() == target.ip();
            let above = SocketAddr::new(target.ip(), target.port().saturating_add(1));
            let known = self.rtcp_from.or(agreement.rtcp).filter(same_host);
            (Port::Rtcp, known.unwrap_or(above))
        };
        let elapsed = now.saturating_duration_since(self.start.now).as_nanos();
        // From one second on, so that no report has the time 0, which means none.
        let time = (1 << 32) + ((elapsed << 32) / 1_000_000_000) as u64;
        let sent = rtcp::Sent {
            time,
            timestamp: self.stream.timestamp,
            packets: self.stream.packets as u32,
            bytes: self.stream.bytes as u32,
        };
        let mut block = self.arrivals.report();
        if let (Some(block), Some((time, at))) = (&mut block, self.their_report) {
            let ago = now.saturating_duration_since(at);
            block.last_report = time;
            block.delay = (ago.as_micros() * 65_536 / 1_000_000) as u32;
        }
        let ssrc = self.stream.ssrc;
        let mut packet = Vec::with_capacity(128);
        rtcp::write(&mut packet, ssrc, Some(sent), block, "vivavoce", goodbye);
        let locked = self.lock.as_mut().map(|lock| lock.rtcp(&packet));
        match &locked {
            None => wire.send(port, target, &packet),
            Some(Some(locked)) => wire.send(port, target, locked),
            Some(None) => tracing::debug!("a report to a telephone could not be encrypted"),
        }
    }

    /// What it was like until now.
    pub fn report(&self) -> MediaReport {
        let after = |at: Instant| {
            let ms = at.saturating_duration_since(self.start.now).as_millis();
            u32::try_from(ms).unwrap_or(u32::MAX)
        };
        let agreement = self.agreement.as_ref();
        let per_ms = agreement.map_or(8, |a| a.codec.clock_hz() / 1_000) as f32;
        MediaReport {
            codec: agreement.map(|a| a.codec),
            encrypted: self.lock.is_some(),
            packets_in: self.arrivals.received(),
            packets_out: self.sent_before + self.stream.packets,
            lost_in: self.arrivals.lost(),
            lost_out: self.reported.map_or(0, |block| block.lost.max(0) as u64),
            jitter_ms: self.arrivals.jitter() as f32 / per_ms,
            jitter_out_ms: self
                .reported
                .map_or(0.0, |block| block.jitter as f32 / per_ms),
            first_in_ms: self.first_in.map(after),
            first_out_ms: self.first_out.map(after),
            buffer_ms: self.room.buffer_ms(),
            refused: self.refused,
        }
    }

    /// Those who do not listen do not hear: nobody presses so many keys.
    fn tell(&self, event: MediaEvent) {
        if self.events.try_send(event).is_err() {
            tracing::debug!("an event of a call's media was not read in time");
        }
    }
}

impl Stream {
    fn new() -> Self {
        Self {
            ssrc: fastrand::u32(1..),
            // In the lower half, so that the first wrap is not taken for an early packet by SRTP (RFC 3711 section
            // 3.3.1).
            sequence: fastrand::u16(..0x8000),
            timestamp: fastrand::u32(..),
            marker: true,
            packets: 0,
            bytes: 0,
        }
    }

    const fn header(&self, payload_type: u8, marker: bool, timestamp: u32) -> Header {
        Header {
            marker,
            payload_type,
            sequence: self.sequence,
            timestamp,
            ssrc: self.ssrc,
        }
    }
}
