//! The media of one call as a sans-IO state machine: datagrams and time go in; datagrams, Opus frames for the room and
//! events come out. Sockets, threads and clocks are in `threads`, negotiation is in `offer_answer`.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tokio::sync::mpsc;

use super::clip::Clip;
use super::consent::Consent;
use super::dtls::{Association, Handshake, Identity, Keys};
use super::dtmf::{DtmfReceiver, DtmfSender, Sent};
use super::latch::{Latch, Seen};
use super::listening::Listener;
use super::offer_answer::{Agreement, Format};
use super::phone_to_room::RxPipeline;
use super::relay::{self, Inlet, Outlet, Passing};
use super::reorder::{Disposition, ReorderBuffer};
use super::room_to_phone::TxPipeline;
use super::rtp::{self, Header};
use super::srtp::{Crypto, ProtectContext, UnprotectContext};
use super::{Codec, MediaEvent, MediaReport, rtcp};
use crate::classify::Wanted;
use crate::classify::phrases::Meaning;
use vivavoce_audio::Bandwidth;
use vivavoce_audio::track_receiver::TrackReceiver;
use vivavoce_core::token_bucket::TokenBucket;
use vivavoce_seams::rooms::link::{PublishSink, Relay, Relayed, TelephoneKey, TrackAudio};

/// Payload type of comfort noise (RFC 3389). It is treated as a pause.
const COMFORT_NOISE: u8 = 13;
/// 20 ms frames in a second.
const FRAMES_HZ: u32 = 50;
/// DTMF digits that are reported each second, and in a burst: more than any person or machine dials.
const DTMF_PER_SECOND: u32 = 20;
const MOST_DTMF_AT_ONCE: u32 = 40;

/// One of the two UDP ports of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// The even port.
    Rtp,
    /// The odd port above.
    Rtcp,
}

/// Sends datagrams.
pub trait Wire {
    /// Sends a datagram or drops it; never blocks.
    fn send(&mut self, port: Port, to: SocketAddr, datagram: &[u8]);
}

/// The parameters of a call's media that never change.
#[derive(Debug, Clone)]
pub struct Start {
    /// When the ports were opened.
    pub now: Instant,
    /// See [`super::MediaSettings::timeout`].
    pub timeout: Duration,
    /// Address of the signalling peer.
    pub peer: IpAddr,
    /// See [`super::MediaSettings::sources`].
    pub sources: Arc<[IpNet]>,
    /// Complexity of the Opus encoder towards the room, 0 to 10.
    pub complexity: u8,
    /// Our certificate.
    pub identity: Arc<Identity>,
}

/// The media of one call. See the module.
#[derive(Debug)]
pub struct Session {
    start: Start,
    events: mpsc::Sender<MediaEvent>,
    agreement: Option<Agreement>,
    latch: Latch,
    consent: Consent,
    /// Source address of the last RTCP packet.
    rtcp_from: Option<SocketAddr>,
    /// Where the keys come from, if not from descriptions.
    handshake: Option<Handshake>,
    protect: Option<ProtectContext>,
    unprotect: Option<UnprotectContext>,
    reorder: ReorderBuffer<Kept>,
    dtmf_receiver: DtmfReceiver,
    dtmf_allowance: TokenBucket,
    rx: RxPipeline,
    outlet: Outlet,
    inlet: Inlet,
    room: TrackReceiver<TrackAudio>,
    /// What the phone hears, 20 ms at the rate of the call.
    mixed: Vec<i16>,
    /// A sound that is played.
    clip: Option<Clip>,
    tx: Option<TxPipeline>,
    dtmf_sender: DtmfSender,
    stream: Stream,
    /// Packets sent under earlier SSRCs.
    sent_before: u64,
    /// Whether we hold the call, and whether it was answered.
    held: bool,
    answered: bool,
    barrier: Barrier,
    last_in: Instant,
    first_in: Option<Instant>,
    first_out: Option<Instant>,
    next_report: Option<Instant>,
    /// The middle 32 bits of the NTP time in the last sender report received, and when it arrived.
    their_report: Option<(u32, Instant)>,
    /// The newest report block about our stream.
    reported: Option<rtcp::ReportBlock>,
    refused: u64,
    packet: Vec<u8>,
}

/// What is between the phone and its room. The other side does not know of it.
#[derive(Debug, Default)]
struct Barrier {
    /// Whether the phone does not hear the room, nor anything else from here.
    muted: bool,
    /// Whether the phone neither hears the room nor is heard in it.
    apart: bool,
}

/// A packet that waits for an earlier one.
#[derive(Debug)]
struct Kept {
    header: Header,
    payload: Vec<u8>,
}

/// The outgoing RTP stream.
#[derive(Debug)]
struct Stream {
    ssrc: u32,
    sequence: u16,
    timestamp: u32,
    /// Whether the next packet follows a pause.
    marker: bool,
    packets: u64,
    bytes: u64,
}

impl Session {
    /// The media of a call before negotiation.
    pub fn new(start: Start, events: mpsc::Sender<MediaEvent>) -> Self {
        let (now, complexity) = (start.now, start.complexity);
        Self {
            latch: Latch::new(start.peer, Arc::clone(&start.sources)),
            start,
            events,
            agreement: None,
            consent: Consent::given(),
            rtcp_from: None,
            handshake: None,
            protect: None,
            unprotect: None,
            reorder: ReorderBuffer::default(),
            dtmf_receiver: DtmfReceiver::default(),
            dtmf_allowance: TokenBucket::new(DTMF_PER_SECOND, MOST_DTMF_AT_ONCE),
            rx: RxPipeline::new(complexity),
            outlet: Outlet::default(),
            inlet: Inlet::default(),
            room: TrackReceiver::new(Bandwidth::Narrowband),
            mixed: Vec::new(),
            clip: None,
            tx: None,
            dtmf_sender: DtmfSender::default(),
            stream: Stream::new(),
            sent_before: 0,
            held: false,
            answered: false,
            barrier: Barrier::default(),
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

    /// Applies the result of an offer and answer, the first or a later one.
    pub fn agree(&mut self, agreement: &Agreement, now: Instant) {
        let before = self.agreement.replace(agreement.clone());
        let before = before.as_ref();
        let sounds = |a: &Agreement| (a.codec, a.packet_ms);
        if before.map(sounds) != Some(sounds(agreement)) {
            // What was relayed before is no sound of this codec.
            self.inlet.close();
            let Agreement {
                codec, packet_ms, ..
            } = *agreement;
            self.convert(codec.bandwidth());
            self.tx = TxPipeline::new(codec, packet_ms, self.start.complexity)
                .inspect_err(|error| tracing::error!(%error, "cannot create a codec"))
                .ok();
        }
        match &agreement.dtls {
            Some(association) => {
                let before = before.and_then(|before| before.dtls.as_ref());
                self.associate(before, association, now);
            }
            None => {
                self.handshake = None;
                let keys_before = before.and_then(|before| before.crypto.as_ref());
                self.rekey(keys_before, agreement.crypto.as_ref());
            }
        }
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

    /// From now on the phone hears everything at this rate.
    fn convert(&mut self, bandwidth: Bandwidth) {
        let before = self.room.bandwidth();
        if before == bandwidth {
            return;
        }
        self.room.convert(bandwidth);
        self.consent.convert(before, bandwidth);
        if let Some(clip) = &mut self.clip {
            clip.convert(bandwidth);
        }
    }

    /// The keys are those of a handshake, which begins unless it has been made already.
    fn associate(&mut self, before: Option<&Association>, association: &Association, now: Instant) {
        if before.is_some_and(|before| before.is_same(association)) {
            return;
        }
        self.rekey(None, None);
        self.handshake = Some(Handshake::new(&self.start.identity, association, now));
    }

    /// Whether nothing is to be sent or taken, as there are no keys yet.
    const fn awaits_keys(&self) -> bool {
        self.handshake.is_some() && self.protect.is_none()
    }

    /// A key that has not changed keeps its context with the rollover counter (RFC 3711 section 3.3.1): a new context could
    /// not decrypt what arrives, and would reuse the key stream for what is sent.
    fn rekey(&mut self, before: Option<&(Crypto, Crypto)>, keys: Option<&(Crypto, Crypto)>) {
        let Some((ours, theirs)) = keys else {
            self.protect = None;
            self.unprotect = None;
            return;
        };
        if !before.is_some_and(|(before, _)| before.is_same_key(ours)) {
            self.protect = ProtectContext::new(ours);
            // The key may have been used before: a new SSRC never reuses its key stream.
            self.sent_before += self.stream.packets;
            self.stream = Stream::new();
            self.inlet.close();
        }
        if !before.is_some_and(|(_, before)| before.is_same_key(theirs)) {
            self.unprotect = Some(UnprotectContext::new(theirs.clone()));
        }
    }

    /// The call was answered: from now on silence is reported. Early media may be silent for as long as it rings.
    pub fn answered(&mut self, now: Instant) {
        self.answered = true;
        self.last_in = now;
        if let Some(listener) = self.rx.listener() {
            listener.answered();
        }
    }

    /// Listens from now on to who answers.
    pub fn classify(&mut self, wanted: Wanted, now: Instant) {
        let mut listener = Listener::new(wanted, now);
        if self.answered {
            listener.answered();
        }
        self.rx.listen(Some(listener));
    }

    /// What was understood of what the phone has said tells this.
    pub fn words(&mut self, meaning: Meaning) {
        if let Some(listener) = self.rx.listener() {
            listener.words(meaning);
        }
    }

    /// Tells what the listener has found out, until it has found out everything.
    fn tell_findings(&mut self) {
        let Some(listener) = self.rx.listener() else {
            return;
        };
        let findings = listener.take_findings();
        let is_over = listener.is_over();
        if is_over {
            self.rx.listen(None);
        }
        for finding in findings {
            self.tell(MediaEvent::Found(finding));
        }
    }

    /// The call is inbound: until it is acknowledged, nothing is sent, and nothing that arrives is played or reported.
    pub fn await_acknowledgement(&mut self) {
        self.consent = Consent::awaited();
    }

    /// Our answer was acknowledged.
    pub const fn acknowledged(&mut self) {
        self.consent.give();
    }

    /// Publishes the phone's audio.
    pub fn publish(&mut self, sink: PublishSink) {
        self.rx.publish(sink);
    }

    /// Plays a track to the phone.
    pub fn hear(&mut self, sid: &str, identity: &str, audio: TrackAudio) {
        let (identity, sid) = (identity.to_owned(), sid.to_owned());
        if !self.room.add(identity, sid, audio) {
            tracing::warn!("too many tracks in the room: a call does not receive one");
        }
    }

    /// Stops playing a track.
    pub fn forget(&mut self, sid: &str) {
        self.room.remove(sid);
    }

    /// The signalling peer is another one, from which nothing has come yet.
    pub fn redirect(&mut self, peer: IpAddr) {
        self.start.peer = peer;
        self.latch = Latch::new(peer, Arc::clone(&self.start.sources));
        self.agreement = None;
    }

    /// Plays a sound.
    pub fn say(&mut self, sound: Arc<[i16]>) {
        self.play_clip(sound, false);
    }

    /// Plays a sound again and again.
    pub fn repeat(&mut self, sound: Arc<[i16]>) {
        self.play_clip(sound, true);
    }

    fn play_clip(&mut self, sound: Arc<[i16]>, repeats: bool) {
        self.clip = Clip::new(sound, repeats, self.room.bandwidth());
    }

    /// Ends it.
    pub fn hush(&mut self) {
        self.clip = None;
    }

    /// Queues DTMF digits.
    pub fn press(&mut self, digits: &str) {
        self.dtmf_sender.press(digits);
    }

    /// Puts the call on hold, or resumes it.
    pub const fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Whether we hold the call.
    pub const fn is_held(&self) -> bool {
        self.held
    }

    /// Stops or resumes playing the room to the phone.
    pub const fn mute(&mut self, muted: bool) {
        self.barrier.muted = muted;
    }

    /// Parts the phone from the room, or brings them together again; what is said to it by [`Self::say`] it hears.
    pub fn part(&mut self, apart: bool, now: Instant) {
        if std::mem::replace(&mut self.barrier.apart, apart) && !apart {
            self.rx.restart(now);
        }
    }

    /// Takes a datagram received on one of the ports. The first byte says what it is (RFC 7983).
    pub fn receive(
        &mut self,
        port: Port,
        datagram: &[u8],
        from: SocketAddr,
        now: Instant,
        wire: &mut dyn Wire,
    ) {
        if self.agreement.is_none() {
            return;
        }
        let taken = match (port, datagram.first()) {
            (Port::Rtp, Some(0..=3)) => self.receive_check(datagram, from, now, wire),
            (Port::Rtp, Some(20..=63)) => self.receive_handshake(datagram, from, now, wire),
            // Nobody has proven to be the other side.
            _ if self.awaits_keys() => None,
            _ if port == Port::Rtcp || rtp::is_rtcp(datagram) => {
                self.receive_rtcp(datagram, from, now)
            }
            _ => self.receive_rtp(datagram, from, now),
        };
        if taken.is_none() {
            self.refused += 1;
        }
    }

    /// A connectivity check: who has proven itself is where media goes.
    fn receive_check(
        &mut self,
        datagram: &[u8],
        from: SocketAddr,
        now: Instant,
        wire: &mut dyn Wire,
    ) -> Option<()> {
        let association = self.agreement.as_ref()?.dtls.as_ref()?;
        let check = association.ice.as_ref()?.check(datagram, from)?;
        wire.send(Port::Rtp, from, &check.answer);
        if check.nominates || self.latch.target().is_none() {
            self.latch.believe(from, now);
        }
        Some(())
    }

    /// Part of a handshake, which is made with nobody else than whom media may come from.
    fn receive_handshake(
        &mut self,
        datagram: &[u8],
        from: SocketAddr,
        now: Instant,
        wire: &mut dyn Wire,
    ) -> Option<()> {
        let with_ice = self.agreement.as_ref()?.dtls.as_ref()?.ice.is_some();
        let expected = if with_ice {
            self.latch.target() == Some(from)
        } else {
            self.latch.expects(from)
        };
        let handshake = self.handshake.as_mut().filter(|_| expected)?;
        let keys = handshake.receive(datagram, now, |said| wire.send(Port::Rtp, from, said));
        self.shaken(keys.as_ref());
        Some(())
    }

    fn shaken(&mut self, keys: Option<&Keys>) {
        if keys.is_some() {
            self.rekey(None, keys);
        }
    }

    fn receive_rtp(&mut self, packet: &[u8], from: SocketAddr, now: Instant) -> Option<()> {
        let (header, payload) = Header::parse(packet)?;
        let format = self.format(header.payload_type);
        if format.is_none() && header.payload_type != COMFORT_NOISE {
            return None;
        }
        let plain;
        let payload = if let Some(unprotect) = &mut self.unprotect {
            plain = unprotect.rtp(packet, header.ssrc)?;
            let (_, range) = Header::parse(&plain)?;
            plain.get(range)?
        } else {
            packet.get(payload)?
        };
        let seen = Seen {
            from,
            authentic: self.unprotect.is_some(),
            ssrc: header.ssrc,
            sequence: header.sequence,
        };
        if !self.latch.hears(seen, now) {
            return None;
        }
        self.last_in = now;
        // The source is latched on to already, so that a stream that begins early is heard from the ACK on.
        if !self.consent.is_given() {
            return Some(());
        }
        if self.first_in.is_none() {
            self.first_in = Some(now);
            self.tell(MediaEvent::FirstPacket);
        }
        if self.pass_on(format, header, payload, now) {
            return Some(());
        }
        match self.reorder.note(header.ssrc, header.sequence) {
            Disposition::First => {
                self.rx.restart(now);
                self.play(header, payload, 0, now);
            }
            Disposition::Next => self.play(header, payload, 0, now),
            Disposition::Early(sequence) => {
                let payload = payload.to_vec();
                self.reorder.keep(sequence, Kept { header, payload }, now);
            }
            Disposition::Useless => {}
        }
        self.play_kept(now);
        Some(())
    }

    fn play_kept(&mut self, now: Instant) {
        while let Some(kept) = self.reorder.next(now) {
            let Kept { header, payload } = kept.packet;
            self.play(header, &payload, kept.lost, now);
        }
    }

    /// Takes the next packet in order.
    fn play(&mut self, header: Header, payload: &[u8], lost: u64, now: Instant) {
        let Some(agreement) = &self.agreement else {
            return;
        };
        let hears = agreement.hears && !self.held;
        match self.format(header.payload_type) {
            Some(Format::Audio(codec)) => {
                self.time(codec, header, now);
                if hears
                    && !self.barrier.apart
                    && !self.rx.hear(codec, header.timestamp, payload, lost, now)
                {
                    self.refused += 1;
                }
            }
            Some(Format::Dtmf { .. }) => {
                let event = self
                    .dtmf_receiver
                    .hear(header.ssrc, header.timestamp, payload);
                if let Some(key) = event.and_then(TelephoneKey::from_code)
                    && self.dtmf_allowance.take(1.0, now)
                {
                    let (code, digit) = (key.code(), key.sign());
                    self.tell(MediaEvent::Digit { code, digit });
                }
            }
            None => {
                if let Some(listener) = self.rx.listener() {
                    listener.comfort_noise();
                }
            }
        }
    }

    /// Notes when a packet of audio has arrived.
    fn time(&mut self, codec: Codec, header: Header, now: Instant) {
        if header.marker {
            self.reorder.forget_time();
        }
        let elapsed = now.saturating_duration_since(self.start.now);
        let ticks = elapsed.as_micros() * u128::from(codec.clock_hz()) / 1_000_000;
        self.reorder.time(ticks as i64, header.timestamp);
    }

    /// Takes a packet that the other telephone of the room gets as it is; [`Self::take_passing`] gives it away. `false` if it has to be
    /// decoded.
    fn pass_on(
        &mut self,
        format: Option<Format>,
        header: Header,
        payload: &[u8],
        now: Instant,
    ) -> bool {
        let was_open = self.outlet.is_open();
        let audio = match format {
            Some(Format::Audio(codec)) if self.outlet.choose(self.other_phone(codec), now) => {
                if !was_open {
                    self.rx.rest();
                }
                Some(codec)
            }
            Some(Format::Audio(_)) => {
                if was_open {
                    self.rx.restart(now);
                }
                return false;
            }
            _ if was_open => None,
            _ => return false,
        };
        let Some((sequence, anew)) = self.reorder.pass(header.ssrc, header.sequence) else {
            return true;
        };
        if anew || audio.is_none() {
            self.outlet.interrupt();
        }
        let Some(codec) = audio else {
            self.play(header, payload, 0, now);
            return true;
        };
        self.time(codec, header, now);
        let ticks = relay::ticks(codec, payload);
        match ticks.filter(|ticks| self.rx.allows(ticks * 1_000 / codec.clock_hz(), now)) {
            Some(ticks) => self.outlet.put(codec, header, sequence, payload, ticks),
            None => self.refused += 1,
        }
        true
    }

    /// Who could take packets as they are, if nobody here needs their sound.
    fn other_phone(&self, codec: Codec) -> Option<Arc<dyn Relay>> {
        let hears = self.agreement.as_ref()?.hears && !self.held && !self.barrier.apart;
        let free = hears && !self.rx.is_listened_to() && self.reorder.is_settled();
        let other = self.rx.relay().filter(|_| free)?;
        other.takes(codec.name()).then_some(other)
    }

    /// Gives away a packet that is to be passed on, in exchange for an empty buffer; if there is one.
    pub const fn take_passing(&mut self, passing: &mut Passing) -> bool {
        self.outlet.take(passing)
    }

    /// A packet could not be passed on.
    pub fn take_back(&mut self, passing: &Passing, now: Instant) {
        self.outlet.close();
        self.rx.restart(now);
        self.play(passing.header, &passing.payload, 0, now);
    }

    /// The codec in which packets can be relayed to the phone at the moment: it gets nothing but what the other one says.
    pub fn takes_relayed(&self) -> Option<Codec> {
        let agreement = self.agreement.as_ref()?;
        let tones = agreement.dtmf.is_none() && self.dtmf_sender.is_busy();
        let parted = self.held || self.barrier.muted || self.barrier.apart;
        let free = !parted
            && !tones
            && self.clip.is_none()
            && self.consent.is_settled()
            && !self.awaits_keys();
        (free && agreement.sends && self.latch.target().is_some()).then_some(agreement.codec)
    }

    /// Sends a packet of the other phone's to this one. `false` if it has to come through the room.
    pub fn relay(&mut self, packet: &Relayed<'_>, now: Instant, wire: &mut dyn Wire) -> bool {
        let (Some(codec), Some(target)) = (self.takes_relayed(), self.latch.target()) else {
            return false;
        };
        let Some(agreement) = &self.agreement else {
            return false;
        };
        let payload_type = agreement.payload_type;
        let length = agreement.packet_ms * codec.clock_hz() / 1_000;
        if codec.name() != packet.encoding || packet.ticks != length {
            return false;
        }
        // A digit takes the place of sound, here as there.
        if self.dtmf_sender.is_busy() {
            return true;
        }
        let (sequence, timestamp) = (self.stream.sequence, self.stream.timestamp);
        let Some(placed) = self.inlet.place(packet, sequence, timestamp) else {
            return true;
        };
        let mut faded = Vec::new();
        if placed.first {
            self.mix_room(now);
            faded.extend_from_slice(packet.payload);
            if let Some(tx) = &mut self.tx {
                tx.fade_into(&self.mixed, &mut faded);
            }
        }
        let header = Header {
            marker: packet.marker || (placed.newest && self.stream.marker),
            payload_type,
            sequence: placed.sequence,
            timestamp: placed.timestamp,
            ssrc: self.stream.ssrc,
        };
        let payload = if placed.first { &faded } else { packet.payload };
        self.send_packet(header, target, now, wire, |datagram| {
            datagram.extend_from_slice(payload);
            true
        });
        if placed.newest {
            self.stream.timestamp = placed.timestamp.wrapping_add(packet.ticks);
            self.stream.marker = false;
            self.inlet.keep(payload);
        } else {
            self.stream.sequence = sequence;
        }
        true
    }

    /// From now on the phone gets what the room has.
    pub fn stop_relayed(&mut self) {
        if !self.inlet.is_open() {
            return;
        }
        let (missing, kept) = self.inlet.close();
        if let Some(agreement) = &self.agreement {
            let ticks = missing * agreement.codec.clock_hz() / FRAMES_HZ;
            self.stream.timestamp = self.stream.timestamp.wrapping_add(ticks);
            self.stream.marker |= missing > 0;
        }
        if let Some(tx) = &mut self.tx {
            tx.resume(&kept);
        }
    }

    /// 20 ms have passed: whether the phone gets what is relayed.
    fn is_relayed(&mut self) -> bool {
        let goes_on =
            self.inlet.tick() && self.takes_relayed().is_some() && !self.dtmf_sender.is_busy();
        if !goes_on {
            self.stop_relayed();
        }
        goes_on
    }

    fn format(&self, payload_type: u8) -> Option<Format> {
        let mut receives = self.agreement.as_ref()?.receives.iter();
        let (_, format) = receives.find(|(number, _)| *number == payload_type)?;
        Some(*format)
    }

    fn receive_rtcp(&mut self, packet: &[u8], from: SocketAddr, now: Instant) -> Option<()> {
        if !self.consent.is_given() {
            return Some(());
        }
        // Reports are accepted from the latched host only; its RTCP port is unknown.
        let authentic = self.unprotect.is_some();
        if !authentic && self.latch.target()?.ip() != from.ip() {
            return None;
        }
        let reported = match &mut self.unprotect {
            Some(unprotect) => rtcp::parse(&unprotect.rtcp(packet)?, self.stream.ssrc)?,
            None => rtcp::parse(packet, self.stream.ssrc)?,
        };
        self.rtcp_from = Some(from);
        if let Some((_, time)) = reported.sender {
            self.their_report = Some((time, now));
        }
        self.reported = reported.ours.or(self.reported);
        Some(())
    }

    /// Called every 20 ms; `now` is the nominal time of the tick.
    pub fn tick(&mut self, now: Instant, wire: &mut dyn Wire) {
        self.play_kept(now);
        if let Some(handshake) = &mut self.handshake
            && let Some(target) = self.latch.target()
        {
            let keys = handshake.tick(now, |said| wire.send(Port::Rtp, target, said));
            self.shaken(keys.as_ref());
        }
        if let Some(listener) = self.rx.listener() {
            listener.tick(now);
            self.tell_findings();
        }
        if self.is_relayed() {
            self.room.skip(now);
        } else {
            self.send_room(now, wire);
        }
        let Some(agreement) = &self.agreement else {
            return;
        };
        let waits = now.saturating_duration_since(self.last_in) >= self.start.timeout;
        let (sends, hears) = (agreement.sends, agreement.hears && !self.held);
        if waits {
            self.last_in = now;
            // Whoever put us on hold may play music or send nothing at all.
            if self.answered && sends && hears {
                self.tell(MediaEvent::Silent);
            }
        }
        if self.next_report.is_some_and(|due| due <= now) {
            self.send_report(now, false, wire);
        }
    }

    /// Sends the next 20 ms of the room.
    fn send_room(&mut self, now: Instant, wire: &mut dyn Wire) {
        self.mix_room(now);
        if self.held || self.barrier.muted || self.barrier.apart {
            self.mixed.fill(0);
        }
        let plays = !self.held && !self.barrier.muted;
        if let Some(clip) = self.clip.as_mut().filter(|_| plays)
            && !clip.add_to(&mut self.mixed)
        {
            self.clip = None;
        }
        let Some(agreement) = &self.agreement else {
            return;
        };
        // An inbound caller does not hear the room before the call is answered.
        let open =
            agreement.sends && (self.answered || self.consent.is_given()) && !self.awaits_keys();
        match self.latch.target().filter(|_| open) {
            Some(target) if self.consent.pass(&mut self.mixed) => {
                self.send_frame(target, now, wire);
            }
            _ => self.pause(),
        }
    }

    /// The next 20 ms of the room.
    fn mix_room(&mut self, now: Instant) {
        self.mixed.clear();
        self.mixed.resize(self.room.bandwidth().frame(), 0);
        if !self.room.is_empty() {
            self.room.next(now, |_| false, |_, _| {}, &mut self.mixed);
        }
    }

    /// Sends an RTCP BYE.
    pub fn end(&mut self, now: Instant, wire: &mut dyn Wire) {
        self.outlet.close();
        if self.next_report.is_some() {
            self.send_report(now, true, wire);
        }
    }

    /// Advances the RTP clock by 20 ms without sending.
    fn pause(&mut self) {
        let Some(agreement) = &self.agreement else {
            return;
        };
        let ticks = agreement.codec.clock_hz() / FRAMES_HZ;
        self.stream.timestamp = self.stream.timestamp.wrapping_add(ticks);
        self.stream.marker = true;
        if let Some(tx) = &mut self.tx {
            tx.clear();
        }
    }

    fn send_frame(&mut self, target: SocketAddr, now: Instant, wire: &mut dyn Wire) {
        let Some(agreement) = &self.agreement else {
            return;
        };
        let (payload_type, dtmf) = (agreement.payload_type, agreement.dtmf);
        let busy = self.dtmf_sender.is_busy();
        if let Some((payload_type, clock_hz)) = dtmf.filter(|_| busy) {
            match self
                .dtmf_sender
                .next(self.stream.timestamp, clock_hz / FRAMES_HZ)
            {
                Sent::Audio => {}
                Sent::Nothing => return self.pause(),
                Sent::Event {
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
        let Some(mut tx) = self.tx.take() else {
            return;
        };
        let sounding = (busy && dtmf.is_none()).then_some(&mut self.dtmf_sender);
        tx.take(&self.mixed, sounding);
        let mut more = true;
        while more {
            let (marker, timestamp) = (self.stream.marker, self.stream.timestamp);
            let header = self.stream.header(payload_type, marker, timestamp);
            let mut ticks = None;
            self.send_packet(header, target, now, wire, |packet| {
                let start = packet.len();
                ticks = tx.packet(packet);
                packet.len() > start
            });
            more = ticks.is_some();
            self.stream.timestamp = timestamp.wrapping_add(ticks.unwrap_or(0));
            self.stream.marker &= !more;
        }
        self.tx = Some(tx);
    }

    /// Sends a packet unless the payload is empty.
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
            let protected = self.protect.as_mut().map(|protect| protect.rtp(&packet));
            match &protected {
                None => wire.send(Port::Rtp, target, &packet),
                Some(Some(protected)) => wire.send(Port::Rtp, target, protected),
                Some(None) => tracing::debug!("cannot encrypt an RTP packet"),
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
        } else if agreement.dtls.is_some() {
            // The handshake was for the other port.
            return;
        } else {
            let same_host = |address: &SocketAddr| address.ip() == target.ip();
            let above = SocketAddr::new(target.ip(), target.port().saturating_add(1));
            let known = self.rtcp_from.or(agreement.rtcp).filter(same_host);
            (Port::Rtcp, known.unwrap_or(above))
        };
        let elapsed = now.saturating_duration_since(self.start.now).as_nanos();
        // Starts at one second, because a timestamp of 0 in a report block means that there was none.
        let time = (1 << 32) + ((elapsed << 32) / 1_000_000_000) as u64;
        let sent = rtcp::Sent {
            time,
            timestamp: self.stream.timestamp,
            packets: self.stream.packets as u32,
            bytes: self.stream.bytes as u32,
        };
        let mut block = self.reorder.report();
        if let (Some(block), Some((time, at))) = (&mut block, self.their_report) {
            let ago = now.saturating_duration_since(at);
            block.last_report = time;
            block.delay = (ago.as_micros() * 65_536 / 1_000_000) as u32;
        }
        let ssrc = self.stream.ssrc;
        let mut packet = Vec::with_capacity(128);
        rtcp::write(&mut packet, ssrc, Some(sent), block, "vivavoce", goodbye);
        let protected = self.protect.as_mut().map(|protect| protect.rtcp(&packet));
        match &protected {
            None => wire.send(port, target, &packet),
            Some(Some(protected)) => wire.send(port, target, protected),
            Some(None) => tracing::debug!("cannot encrypt an RTCP packet"),
        }
    }

    /// Counters and quality until now.
    pub fn report(&self) -> MediaReport {
        let after = |at: Instant| {
            let ms = at.saturating_duration_since(self.start.now).as_millis();
            u32::try_from(ms).unwrap_or(u32::MAX)
        };
        let agreement = self.agreement.as_ref();
        let per_ms = agreement.map_or(8, |a| a.codec.clock_hz() / 1_000) as f32;
        MediaReport {
            codec: agreement.map(|a| a.codec),
            encrypted: agreement.is_some_and(Agreement::is_encrypted),
            packets_in: self.reorder.received(),
            packets_out: self.sent_before + self.stream.packets,
            packets_relayed: self.inlet.relayed(),
            lost_in: self.reorder.lost(),
            lost_out: self.reported.map_or(0, |block| block.lost.max(0) as u64),
            jitter_ms: self.reorder.jitter() as f32 / per_ms,
            jitter_out_ms: self
                .reported
                .map_or(0.0, |block| block.jitter as f32 / per_ms),
            first_in_ms: self.first_in.map(after),
            first_out_ms: self.first_out.map(after),
            buffer_ms: self.room.depth().as_secs_f32() * 1_000.0,
            refused: self.refused,
        }
    }

    /// Drops the event if the channel is full: rate limits keep a reader far from that.
    fn tell(&self, event: MediaEvent) {
        if self.events.try_send(event).is_err() {
            tracing::debug!("dropped a media event: its queue is full");
        }
    }
}

impl Stream {
    fn new() -> Self {
        Self {
            ssrc: crate::random::u32().max(1),
            // In the lower half, so that SRTP does not take the first wrap for a late packet (RFC 3711 section 3.3.1).
            sequence: (crate::random::u32() & 0x7fff) as u16,
            timestamp: crate::random::u32(),
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
