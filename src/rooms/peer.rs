//! One peer connection: str0m's `Rtc` in RTP mode and ICE-lite, the slots in which it sends, and the queues in front of
//! its data channels. It knows nothing of rooms; what comes in leaves it as an [`Arrival`].
//! A participant inside the process has none, see [`super::local`].

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use str0m::change::{SdpAnswer, SdpOffer, SdpPendingOffer};
use str0m::channel::{ChannelConfig, ChannelId, Reliability};
use str0m::config::DtlsCert;
use str0m::format::{Codec, PayloadParams};
use str0m::media::{Direction, KeyframeRequestKind, MediaKind, Mid, Pt, Rid};
use str0m::net::Transmit;
use str0m::rtp::{ExtensionValues, RtpPacket, RtpWrite, VideoOrientation};
use str0m::{Candidate, Event, IceConnectionState, Input, Output, Rtc, RtcConfig, RtcError};

use super::offers::{DescriptionError, PayloadTypes, Reduced};

use vivavoce_seams::rooms::link::Packet;

use super::codecs::enable_opus;
use super::forwarding::{Numbers, Rebase};
use super::negotiation::{Slots, Wanted};
use super::sdp::{self, Edit, SectionKind};
use super::ssrcs::Ssrcs;

/// The labels of the data channels that clients know.
pub const RELIABLE: &str = "_reliable";
/// See above.
pub const LOSSY: &str = "_lossy";
/// What a receiver may be behind on its reliable channel before its session is renewed.
pub const MOST_QUEUED_BYTES: usize = 16 << 20;
/// A client opens three or four; more than these are ignored.
const MOST_CHANNELS: usize = 16;
/// Queued messages go out when so little is buffered below.
const LOW_BUFFER_BYTES: usize = 32 << 10;
/// How often the loss that decides on connection quality is looked at.
const STATS_INTERVAL: Duration = Duration::from_secs(5);

/// The clock of Opus (RFC 7587 section 4.1).
const OPUS_CLOCK_HZ: u32 = 48_000;

/// Which channel a message travels on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// In order, again until it arrives.
    Reliable,
    /// Once.
    Lossy,
}

/// What a peer connection brought.
#[derive(Debug)]
pub enum Arrival {
    /// ICE and DTLS are up for the first time.
    Connected,
    /// No packets of the other side for a while.
    Silent,
    /// Packets again.
    Heard,
    /// The other side closed, or the connection failed for good.
    Closed,
    /// A channel that messages can be sent on is open.
    ChannelOpen,
    /// A message on a data channel; unlabelled channels carry raw bytes.
    Message(Channel, Vec<u8>),
    /// Media.
    Rtp {
        mid: Mid,
        rid: Option<Rid>,
        packet: Box<RtpPacket>,
    },
    /// A receiver of this slot needs a picture to start from.
    KeyframeWanted(Mid, KeyframeRequestKind),
    /// The part of the packets of a section that was lost on the way here, 0 to 1.
    Loss(f32),
}

/// Where a message came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// `_reliable`.
    Reliable,
    /// `_lossy`.
    Lossy,
    /// Any other label: bytes of an application.
    Other,
}

/// Why a peer connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The description cannot be used.
    #[error("the session description is refused: {0}")]
    Description(String),
    /// str0m gave up inside.
    #[error("the peer connection failed inside")]
    Broken,
}

/// A media packet on its way through a room.
pub struct Passing<'a> {
    pub ssrc: u32,
    /// Extended.
    pub sequence: u64,
    /// RTP time.
    pub time: u32,
    pub marker: bool,
    pub payload: &'a Arc<[u8]>,
    /// −dBov (RFC 6464).
    pub audio_level: Option<i8>,
    pub voice_activity: Option<bool>,
    pub video_orientation: Option<VideoOrientation>,
    /// What its payload type stands for; of somebody inside the process it is Opus.
    pub format: Option<&'a PayloadParams>,
}

impl Passing<'_> {
    /// As somebody inside the process receives it, at this moment.
    pub fn local(&self, arrived: Instant) -> Packet {
        Packet {
            payload: Arc::clone(self.payload),
            sequence: self.sequence,
            timestamp: self.time,
            marker: self.marker,
            arrived,
        }
    }
}

/// What a server shows to all its clients. Made once: to make one takes as long as to forward a hundred packets.
pub struct Certificate(Option<DtlsCert>);

impl Certificate {
    /// A new one, signed by itself.
    pub fn new() -> Self {
        let provider = str0m::crypto::from_feature_flags();
        Self(provider.dtls_provider.generate_certificate())
    }
}

/// What [`Peer::poll`] has next.
pub enum Polled {
    /// To be sent.
    Transmit(Transmit),
    /// To be handled.
    Arrival(Arrival),
    /// Nothing until then.
    Wait(Instant),
}

/// A peer connection. See the module.
pub struct Peer {
    rtc: Rtc,
    /// When it wants to be woken.
    pub deadline: Option<Instant>,
    /// Whether it waits in the list of those to be polled.
    pub queued: bool,
    /// What it sends.
    pub slots: Slots,
    outgoing: HashMap<Mid, Outgoing>,
    channels: HashMap<ChannelId, Channel>,
    reliable: Option<ChannelId>,
    lossy: Option<ChannelId>,
    backlog: VecDeque<Bytes>,
    backlog_bytes: usize,
    pending_offer: Option<SdpPendingOffer>,
    /// What media came in under.
    pub ssrcs: Ssrcs,
    /// What its payload types stand for.
    payload_types: PayloadTypes,
    /// The ICE user names that the client was told, the newest first: a restart begins with the former one in force.
    ufrags: [String; 2],
    broken: bool,
    closed_told: bool,
}

#[derive(Default)]
struct Outgoing {
    rebase: Rebase,
    last: Option<Instant>,
    payload_types: Option<(Option<Pt>, Pt)>,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer")
            .field("deadline", &self.deadline)
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

impl Peer {
    /// A connection that is reachable at these addresses and shows this certificate.
    pub fn new(certificate: &Certificate, addresses: &[SocketAddr], now: Instant) -> Self {
        let mut config = RtcConfig::new()
            .set_rtp_mode(true)
            .set_ice_lite(true)
            .clear_codecs()
            .enable_vp8(true)
            .enable_h264(true)
            .set_stats_interval(Some(STATS_INTERVAL));
        enable_opus(config.codec_config());
        if let Certificate(Some(certificate)) = certificate {
            config = config.set_dtls_cert(certificate.clone());
        }
        let mut rtc = config.build(now);
        for address in addresses {
            match Candidate::host(*address, "udp") {
                Ok(candidate) => {
                    rtc.add_local_candidate(candidate);
                }
                Err(error) => {
                    tracing::warn!(%address, %error, "this address cannot be offered to clients");
                }
            }
        }
        Self {
            rtc,
            deadline: None,
            queued: false,
            slots: Slots::default(),
            outgoing: HashMap::new(),
            channels: HashMap::new(),
            reliable: None,
            lossy: None,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            pending_offer: None,
            ssrcs: Ssrcs::default(),
            payload_types: PayloadTypes::default(),
            ufrags: Default::default(),
            broken: false,
            closed_told: false,
        }
    }

    /// str0m asserts a few things that a hostile peer might reach; one participant's end must not be everybody's.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Result<T, PeerError> {
        if self.broken {
            return Err(PeerError::Broken);
        }
        catch_unwind(AssertUnwindSafe(|| work(self))).map_err(|_| {
            self.broken = true;
            tracing::error!("a peer connection panicked and was given up");
            PeerError::Broken
        })
    }

    /// Takes over what a description says of payload types and SSRCs, unless it contradicts what was agreed or is too much.
    pub fn agree(&mut self, described: &Reduced) -> Result<(), DescriptionError> {
        let mut payload_types = self.payload_types.clone();
        payload_types.agree(described)?;
        if !described
            .ssrcs
            .iter()
            .all(|ssrc| self.ssrcs.announce(*ssrc))
        {
            return Err(DescriptionError::TooManySsrcs);
        }
        self.payload_types = payload_types;
        Ok(())
    }

    /// The answer to an offer, with its sections naming what the slots carry.
    pub fn accept_offer(&mut self, offer: SdpOffer) -> Result<String, PeerError> {
        let answer = self.guarded(|peer| {
            let answer = peer.rtc.sdp_api().accept_offer(offer)?;
            Ok::<_, RtcError>(answer.to_sdp_string())
        })?;
        Ok(self.told(&answer.map_err(description)?))
    }

    /// An offer of what the slots carry (two peer connections); `None` when nothing changed or one is unanswered.
    pub fn offer(
        &mut self,
        added: &[Wanted],
        silenced: &[String],
        revived: &[String],
        channels: bool,
    ) -> Result<Option<String>, PeerError> {
        if self.pending_offer.is_some() {
            return Ok(None);
        }
        let offered = self.guarded(|peer| {
            let mut api = peer.rtc.sdp_api();
            if channels {
                api.add_channel_with_config(channel(RELIABLE, Delivery::Reliable));
                api.add_channel_with_config(channel(LOSSY, Delivery::Lossy));
            }
            for mid in silenced {
                api.set_direction(mid.as_str().into(), Direction::Inactive);
            }
            for mid in revived {
                api.set_direction(mid.as_str().into(), Direction::SendOnly);
            }
            for wanted in added {
                let kind = if wanted.kind == SectionKind::Video {
                    MediaKind::Video
                } else {
                    MediaKind::Audio
                };
                let stream = format!("{}|{}", wanted.publisher, wanted.track);
                let mid = api.add_media(
                    kind,
                    Direction::SendOnly,
                    Some(stream),
                    Some(wanted.track.to_string()),
                    None,
                );
                peer.slots.push(mid.to_string(), wanted.clone());
            }
            api.apply()
        })?;
        let Some((offer, pending)) = offered else {
            return Ok(None);
        };
        self.pending_offer = Some(pending);
        Ok(Some(self.told(&offer.to_sdp_string())))
    }

    /// An offer that restarts ICE and keeps everything else (resume with two peer connections).
    pub fn restart_offer(&mut self) -> Result<Option<String>, PeerError> {
        self.pending_offer = None;
        let offered = self.guarded(|peer| {
            let mut api = peer.rtc.sdp_api();
            api.ice_restart(true);
            api.apply()
        })?;
        let Some((offer, pending)) = offered else {
            return Ok(None);
        };
        self.pending_offer = Some(pending);
        Ok(Some(self.told(&offer.to_sdp_string())))
    }

    /// Whether an offer waits for its answer.
    pub fn awaits_answer(&self) -> bool {
        self.pending_offer.is_some()
    }

    /// Takes the answer to the offer that is out; one that nobody asked for is ignored.
    pub fn accept_answer(&mut self, answer: SdpAnswer) -> Result<(), PeerError> {
        let Some(pending) = self.pending_offer.take() else {
            return Ok(());
        };
        self.guarded(|peer| peer.rtc.sdp_api().accept_answer(pending, answer))?
            .map_err(description)
    }

    fn named(&self, text: &str) -> String {
        sdp::edit(text, |mid| match self.slots.get(mid) {
            None => Edit::Keep,
            Some(slot) => match &slot.carries {
                None => Edit::Silence,
                Some(wanted) => Edit::Send {
                    participant: &wanted.publisher,
                    track: &wanted.track,
                },
            },
        })
    }

    /// Prepares a slot for another track: a used one gets a new SSRC, see [`super::negotiation`].
    pub fn renew_slot(&mut self, mid: &str, used: bool) {
        let mid: Mid = mid.into();
        self.outgoing.remove(&mid);
        if !used {
            return;
        }
        let _ = self.guarded(|peer| {
            let mut api = peer.rtc.direct_api();
            let (ssrc, rtx) = (api.new_ssrc(), api.new_ssrc());
            let has_rtx = api
                .stream_tx_by_mid(mid, None)
                .is_some_and(|stream| stream.rtx().is_some());
            api.reset_stream_tx(mid, None, ssrc, has_rtx.then_some(rtx));
        });
    }

    /// A description for the client.
    fn told(&mut self, sdp: &str) -> String {
        let ufrag = sdp
            .lines()
            .find_map(|line| line.strip_prefix("a=ice-ufrag:"));
        if let Some(ufrag) = ufrag.map(str::trim_end)
            && self.ufrags[0] != ufrag
        {
            self.ufrags.rotate_right(1);
            ufrag.clone_into(&mut self.ufrags[0]);
        }
        self.named(sdp)
    }

    /// Whether a client that was told of this connection would name it so in STUN.
    pub fn is_called(&self, ufrag: &str) -> bool {
        !ufrag.is_empty() && self.ufrags.iter().any(|told| told == ufrag)
    }

    /// Whether a datagram is for this connection.
    pub fn accepts(&self, input: &Input<'_>) -> bool {
        let accepts = AssertUnwindSafe(|| self.rtc.accepts(input));
        !self.broken && catch_unwind(accepts).unwrap_or(false)
    }

    /// Gives it a datagram or the time.
    pub fn handle(&mut self, input: Input<'_>) {
        let handled = self.guarded(|peer| peer.rtc.handle_input(input));
        if let Ok(Err(error)) = handled {
            tracing::debug!(%error, "a peer connection refused its input");
            self.rtc.disconnect();
        }
    }

    /// Says goodbye to the other side; what is left to send comes out of [`Self::poll`].
    pub fn close(&mut self) {
        let _ = self.guarded(|peer| peer.rtc.close());
    }

    /// The next thing it has.
    pub fn poll(&mut self, now: Instant) -> Polled {
        loop {
            if self.broken || !self.rtc.is_alive() {
                if self.closed_told {
                    return Polled::Wait(now + Duration::from_hours(24));
                }
                self.closed_told = true;
                return Polled::Arrival(Arrival::Closed);
            }
            match self.guarded(|peer| peer.rtc.poll_output()) {
                Ok(Ok(Output::Timeout(at))) => return Polled::Wait(at),
                Ok(Ok(Output::Transmit(transmit))) => return Polled::Transmit(transmit),
                Ok(Ok(Output::Event(event))) => {
                    if let Some(arrival) = self.arrival(event) {
                        return Polled::Arrival(arrival);
                    }
                }
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a peer connection failed");
                    self.broken = true;
                }
                Err(_) => {}
            }
        }
    }

    fn arrival(&mut self, event: Event) -> Option<Arrival> {
        match event {
            Event::Connected => Some(Arrival::Connected),
            Event::IceConnectionStateChange(IceConnectionState::Disconnected) => {
                Some(Arrival::Silent)
            }
            Event::IceConnectionStateChange(
                IceConnectionState::Connected | IceConnectionState::Completed,
            ) => Some(Arrival::Heard),
            Event::Closed => {
                self.closed_told = true;
                Some(Arrival::Closed)
            }
            Event::ChannelOpen(id, label) => self
                .channel_open(id, &label)
                .then_some(Arrival::ChannelOpen),
            Event::ChannelClose(id) => {
                self.channels.remove(&id);
                self.reliable.take_if(|open| *open == id);
                self.lossy.take_if(|open| *open == id);
                None
            }
            Event::ChannelData(data) => {
                let channel = *self.channels.get(&data.id)?;
                Some(Arrival::Message(channel, data.data))
            }
            Event::ChannelBufferedAmountLow(_) => {
                self.flush();
                None
            }
            Event::RtpPacket(packet) => {
                let ssrc = packet.header.ssrc;
                let mut api = self.rtc.direct_api();
                let stream = api.stream_rx(&ssrc)?;
                Some(Arrival::Rtp {
                    mid: stream.mid(),
                    rid: stream.rid(),
                    packet: Box::new(packet),
                })
            }
            Event::KeyframeRequest(request) => {
                Some(Arrival::KeyframeWanted(request.mid, request.kind))
            }
            Event::MediaIngressStats(stats) => stats.loss.map(Arrival::Loss),
            _ => None,
        }
    }

    fn channel_open(&mut self, id: ChannelId, label: &str) -> bool {
        if self.channels.len() >= MOST_CHANNELS {
            return false;
        }
        let channel = match label {
            RELIABLE => Channel::Reliable,
            LOSSY => Channel::Lossy,
            _ => Channel::Other,
        };
        // The data-track channel speaks another language; nothing is sent or expected on it.
        if label == "_data_track" {
            return false;
        }
        self.channels.insert(id, channel);
        match channel {
            Channel::Reliable => self.reliable = Some(id),
            Channel::Lossy => self.lossy = Some(id),
            Channel::Other => return false,
        }
        let _ = self.guarded(|peer| {
            if let Some(mut open) = peer.rtc.channel(id) {
                open.set_buffered_amount_low_threshold(LOW_BUFFER_BYTES);
            }
        });
        self.flush();
        true
    }

    /// Whether both channels of data are open.
    pub fn can_receive_data(&self) -> bool {
        self.reliable.is_some() && self.lossy.is_some()
    }

    /// Whether it was given up because of a fault inside.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Sends a message. A reliable one waits its turn; `false` means that the receiver is too far behind to go on: what
    /// waited for it is dropped, and it has no open channels any more. A lossy one is left out when there is no room.
    pub fn send_message(&mut self, delivery: Delivery, message: &Bytes) -> bool {
        match delivery {
            Delivery::Reliable => {
                if self.backlog_bytes + message.len() > MOST_QUEUED_BYTES {
                    (self.backlog, self.backlog_bytes) = (VecDeque::new(), 0);
                    (self.reliable, self.lossy) = (None, None);
                    return false;
                }
                self.backlog_bytes += message.len();
                self.backlog.push_back(message.clone());
                self.flush();
            }
            Delivery::Lossy => {
                if let Some(id) = self.lossy.filter(|_| self.backlog.is_empty()) {
                    self.write_channel(id, message);
                }
            }
        }
        true
    }

    /// What waits for its turn on the reliable channel.
    #[cfg(test)]
    pub fn queued_bytes(&self) -> usize {
        self.backlog_bytes
    }

    fn flush(&mut self) {
        let Some(id) = self.reliable else { return };
        while let Some(message) = self.backlog.front().cloned() {
            if !self.write_channel(id, &message) {
                break;
            }
            self.backlog_bytes -= message.len();
            self.backlog.pop_front();
        }
    }

    fn write_channel(&mut self, id: ChannelId, message: &[u8]) -> bool {
        let written = self.guarded(|peer| {
            peer.rtc
                .channel(id)
                .map(|mut channel| channel.write(true, message))
        });
        matches!(written, Ok(Some(Ok(true))))
    }

    /// What the payload type of an incoming packet stands for.
    pub fn payload(&self, pt: Pt) -> Option<&PayloadParams> {
        self.rtc.codec_config().find(|params| params.pt() == pt)
    }

    /// Sends another's packet in a slot, as this receiver's stream.
    pub fn forward(&mut self, mid: &str, packet: &Passing<'_>, now: Instant) {
        let mid: Mid = mid.into();
        let outgoing = self.outgoing.entry(mid).or_default();
        let format = packet.format;
        let clock = format.map_or(OPUS_CLOCK_HZ, |format| format.spec().clock_rate.get());
        let passed = outgoing
            .last
            .map_or(0, |last| now.saturating_duration_since(last).as_millis());
        let elapsed = u32::try_from(passed * u128::from(clock) / 1_000).unwrap_or(u32::MAX);
        let numbers = outgoing
            .rebase
            .numbers(packet.ssrc, packet.sequence, packet.time, elapsed);
        let Some(numbers) = numbers else { return };
        outgoing.last = Some(now);
        let pt = match outgoing.payload_types {
            Some((from, to)) if from == format.map(PayloadParams::pt) => to,
            _ => {
                let known = self.rtc.codec_config();
                let matched = match format {
                    Some(format) => known.match_params(*format),
                    None => known.find(|params| params.spec().codec == Codec::Opus),
                };
                let Some(to) = matched.map(PayloadParams::pt) else {
                    return;
                };
                outgoing.payload_types = Some((format.map(PayloadParams::pt), to));
                to
            }
        };
        self.write(mid, pt, numbers, packet, now);
    }

    fn write(&mut self, mid: Mid, pt: Pt, numbers: Numbers, packet: &Passing<'_>, now: Instant) {
        let video = packet
            .format
            .is_some_and(|format| format.spec().codec.is_video());
        let extensions = ExtensionValues {
            audio_level: packet.audio_level,
            voice_activity: packet.voice_activity,
            video_orientation: packet.video_orientation,
            ..ExtensionValues::default()
        };
        let marker = packet.marker || (!video && numbers.first);
        let _ = self.guarded(|peer| {
            if let Some(stream) = peer.rtc.direct_api().stream_tx_by_mid(mid, None) {
                let sent = RtpWrite::new(
                    pt,
                    numbers.sequence.into(),
                    numbers.time,
                    now,
                    Arc::clone(packet.payload),
                );
                // str0m sends again in a stream of its own only.
                let again = stream.rtx().is_some();
                stream.write_rtp(sent.marker(marker).ext_vals(extensions).nackable(again));
            }
            // Nothing leaves str0m before it is told the time.
            peer.rtc.handle_input(Input::Timeout(now))
        });
    }

    /// Asks the other side for a picture to start from.
    pub fn request_keyframe(&mut self, mid: &str, rid: Option<&str>, kind: KeyframeRequestKind) {
        let rid = rid.map(Rid::from);
        let _ = self.guarded(|peer| {
            let mut api = peer.rtc.direct_api();
            if let Some(stream) = api.stream_rx_by_mid(mid.into(), rid) {
                stream.request_keyframe(kind);
            }
        });
    }
}

fn channel(label: &str, delivery: Delivery) -> ChannelConfig {
    let (ordered, reliability) = match delivery {
        Delivery::Reliable => (true, Reliability::Reliable),
        Delivery::Lossy => (false, Reliability::MaxRetransmits { retransmits: 0 }),
    };
    ChannelConfig {
        label: label.to_owned(),
        ordered,
        reliability,
        ..ChannelConfig::default()
    }
}

fn description(error: impl std::fmt::Display) -> PeerError {
    PeerError::Description(error.to_string())
}
