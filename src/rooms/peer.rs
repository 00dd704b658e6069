//! A peer connection: str0m's sans-IO [`Rtc`] in RTP mode as an ICE-lite agent (RFC 8445 section 2.5), its slots, and the
//! queues of its data channels.
//!
//! ICE finds a network path, DTLS authenticates both sides by the certificate fingerprints in SDP (RFC 8827) and keys SRTP
//! (RFC 5764), and SCTP carries the data channels. The connection knows nothing of rooms: what arrives is returned as an
//! [`Arrival`]. Participants in this process have none, see [`super::local`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use str0m::bwe::{Bitrate, BweKind};
use str0m::change::{SdpAnswer, SdpOffer, SdpPendingOffer};
use str0m::channel::ChannelId;
use str0m::config::DtlsCert;
use str0m::format::{Codec, PayloadParams};
use str0m::media::{Direction, KeyframeRequestKind, MediaKind, Mid, Pt, Rid};
use str0m::net::Transmit;
use str0m::rtp::{
    Extension, ExtensionValues, RtpPacket, RtpWrite, Ssrc, VideoOrientation, Vp8Patch,
};
use str0m::{Event, IceConnectionState, Input, Output, RtcConfig, RtcError};

use super::addressees::Names;
use super::fast_path::{FastPath, Lane, Sound};
use super::offers::{DescriptionError, PayloadTypes, Reduced};

use vivavoce_seams::rooms::link::{Packet, Payload, Samples};

use super::codecs::enable_opus;
use super::forwarding::{Selector, Tagged, Target, Verdict};
use super::layers::LayerId;
use super::negotiation::{Slots, Wanted};
use super::paths::{Paths, is_stun};
use super::rtp_rewriting::{Numbers, Pictures, Rebase};
use super::sdp::{self, Edit, SectionKind};
use super::speakers;
use super::srtp;
use super::ssrcs::{Judged, Ssrcs, of_rtp};
use super::video_payload::{DEPENDENCY_DESCRIPTOR, DependencyDescriptor, Descriptors};
pub use super::webrtc::Delivery;
use super::webrtc::{Addresses, Broken, Connection, add_channels};

/// Bytes queued for a reliable channel, beyond which the receiver has to reconnect.
pub const MOST_QUEUED_BYTES: usize = 16 << 20;
/// Clients open three or four channels; further ones are ignored.
const MOST_CHANNELS: usize = 16;
/// str0m's pacer wants to be told the time after each packet, a microsecond later; anything so soon counts as at once.
const AT_ONCE: Duration = Duration::from_micros(10);
/// Until it has said when it wants to be told the time.
const LONGEST_REST: Duration = Duration::from_mins(1);
/// How long a connection that sends is not asked whether there is anything else: a report may be so late. What comes from its client
/// does not wait for that.
const UNASKED: Duration = Duration::from_millis(100);
/// For how long what need not be on time may be put off.
const IDLE_REST: Duration = Duration::from_millis(100);
/// What is sent again if it is asked for: whoever asks for older packets has given up on them. Each packet that is kept is one that
/// goes through the caches of the processor.
const KEPT_FOR: Duration = Duration::from_secs(1);
const MOST_KEPT: usize = 1_000;
/// Of what is sent, by str0m's own default.
const MOST_SENT_AGAIN: Option<f32> = Some(0.15);
/// The interval of loss measurements for connection quality.
const STATS_INTERVAL: Duration = Duration::from_secs(5);

/// What a connection is taken to carry before anything is measured, in bits per second.
const FIRST_ESTIMATE_BPS: u64 = 1_000_000;
/// The number of the dependency descriptor in our own descriptions; a client's offer may say another.
const DESCRIPTOR_ID: u8 = 12;

/// Packets of silence for a track that has not begun: the first may come before its receiver knows the slot.
const MOST_SILENCE: u8 = 5;
/// A frame of Opus that decodes to silence, and what such packets count by: one in each round of housekeeping.
const SILENCE: [u8; 3] = [0xf8, 0xff, 0xfe];
const SILENCE_TICKS: u32 = OPUS_CLOCK_HZ / 1_000 * speakers::INTERVAL_MS;
/// The source of silence, which is no publisher's: its numbers are rewritten as those of a former source.
const SSRC_OF_SILENCE: u32 = 0;

/// Clock rate of Opus (RFC 7587 section 4.1).
const OPUS_CLOCK_HZ: u32 = 48_000;

/// What arrived on a peer connection.
#[derive(Debug)]
pub enum Arrival {
    /// ICE and DTLS are connected for the first time.
    Connected,
    /// ICE is disconnected.
    Silent,
    /// ICE is connected again.
    Heard,
    /// The other side has closed the connection, or it has failed.
    Closed,
    /// A data channel for sending is open.
    ChannelOpen,
    /// A message on a data channel; channels without a known label carry raw bytes.
    Message(Channel, Vec<u8>),
    /// A media packet.
    Rtp {
        mid: Mid,
        rid: Option<Rid>,
        packet: Box<RtpPacket>,
    },
    /// The receiver of this slot requests a keyframe.
    KeyframeWanted(Mid, KeyframeRequestKind),
    /// Fraction of a section's packets lost on the way to us, 0 to 1.
    Loss(f32),
    /// The same of sound on the way to the other side, as it reports.
    Missed(f32),
    /// Another bandwidth is estimated for what is sent: see [`Peer::estimate`].
    Estimate,
}

/// The data channel a message arrived on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// `_reliable`.
    Reliable,
    /// `_lossy`.
    Lossy,
    /// Any other label: bytes of the application.
    Other,
}

/// Why a peer connection failed.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The description cannot be used.
    #[error("the session description is refused: {0}")]
    Description(String),
    /// str0m has failed.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// A media packet on its way from a publisher to a subscriber.
pub struct ForwardedPacket<'a> {
    pub ssrc: u32,
    /// Extended sequence number.
    pub sequence: u64,
    /// RTP timestamp.
    pub time: u32,
    pub marker: bool,
    /// As it is on the wire.
    pub payload: Option<&'a Arc<[u8]>>,
    /// As samples, from a participant in this process.
    pub pcm: Option<&'a Samples>,
    /// In −dBov (RFC 6464).
    pub audio_level: Option<i8>,
    pub voice_activity: Option<bool>,
    pub video_orientation: Option<VideoOrientation>,
    /// Codec of its payload type; `None` for local participants, who send Opus.
    pub format: Option<&'a PayloadParams>,
    /// The layer of video.
    pub video: Option<Tagged>,
    /// What receivers of scalable video are told of it.
    pub descriptor: Option<Arc<DependencyDescriptor>>,
}

impl ForwardedPacket<'_> {
    /// As a local participant receives it; `None` if it is there in no form that they take.
    pub fn local(&self, needs_opus: bool, arrived: Instant) -> Option<Packet> {
        let pcm = self.pcm.filter(|_| !needs_opus);
        let payload = match pcm {
            Some(pcm) => Payload::Pcm(pcm.clone()),
            None => Payload::Opus(Arc::clone(self.payload?)),
        };
        Some(Packet {
            payload,
            sequence: self.sequence,
            timestamp: self.time,
            marker: self.marker,
            arrived,
            level: self.audio_level.map(i8::unsigned_abs),
        })
    }
}

/// The DTLS certificate of the server. Made once: making one takes as long as forwarding a hundred packets.
pub struct Certificate(Option<DtlsCert>);

impl Certificate {
    /// A new self-signed certificate.
    pub fn new() -> Self {
        let provider = str0m::crypto::from_feature_flags();
        Self(provider.dtls_provider.generate_certificate())
    }
}

/// The next output of [`Peer::poll`].
pub type Polled = super::webrtc::Polled<Arrival>;

/// A peer connection. See the module.
pub struct Peer {
    rtc: Connection,
    /// When it wants to be told the time, with the next poll.
    pub due: Instant,
    /// When it is polled for that, or put off until then.
    pub deadline: Option<Instant>,
    /// Whether it is queued to be polled.
    pub queued: Queued,
    unsent: Unsent,
    /// Its slots for sending.
    pub slots: Slots,
    /// Whether the client makes one offer and no other: its slots are there for whatever comes.
    pub offered_once: bool,
    outgoing: BTreeMap<Mid, Outgoing>,
    channels: HashMap<ChannelId, Channel>,
    pending_offer: Option<SdpPendingOffer>,
    /// The SSRCs it receives.
    ssrcs: Ssrcs,
    /// The SSRC of each received stream, as of its last packet.
    heard: HashMap<(Mid, Option<Rid>), Ssrc>,
    /// Its payload types.
    payload_types: PayloadTypes,
    /// The bandwidth that is estimated for video, in bits per second, where the client tells what arrives.
    estimate: Option<u64>,
    /// What was last asked of the estimator.
    bitrates: (u64, u64),
    /// Whether there ever was something to send.
    has_sought: bool,
    /// Where the client is heard.
    pub paths: Paths,
    /// By which the client asks for it.
    pub names: Names,
    fast_path: FastPath,
}

/// Whether a peer connection is queued to be polled for what it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queued {
    No,
    /// It has a part of a picture, and will be when it has the rest, or soon.
    WhenWhole,
    Yes,
}

/// What str0m was given to send. Whether it has anything else costs as much as a packet, and can be asked with the next one.
#[derive(Debug)]
struct Unsent {
    packets: usize,
    /// The last of them has just left.
    have_left: bool,
    /// It is polled until it has no output left, and not until it has sent the packets.
    must_drain: bool,
    /// When that has to be done again: str0m has asked to be told the time then, or was not asked for long.
    drain_at: Instant,
}

impl Unsent {
    /// A packet has left.
    const fn sent(&mut self) {
        self.have_left = self.packets == 1;
        self.packets = self.packets.saturating_sub(1);
    }

    /// Until when it need not be asked for more, if that is so.
    fn rest(&mut self, now: Instant) -> Option<Instant> {
        self.must_drain |= self.drain_at <= now;
        let have_left = std::mem::take(&mut self.have_left);
        (have_left && !self.must_drain).then_some(self.drain_at)
    }

    /// There is no output left, until then.
    const fn drained(&mut self, until: Instant) {
        *self = Self {
            packets: 0,
            have_left: false,
            must_drain: false,
            drain_at: until,
        };
    }
}

/// What became of a packet that is forwarded.
#[derive(Debug)]
pub enum Forwarded {
    /// It is not forwarded.
    Not,
    /// It comes out of [`Peer::poll`]. Of a picture, more is to come unless it is `whole`.
    Queued { whole: bool },
    /// It is to be sent.
    Sent(Transmit),
}

#[derive(Default)]
struct Outgoing {
    /// Packets of silence that were sent before the track's own.
    silence: u8,
    /// Whether the track's own packets have begun.
    begun: bool,
    rebase: Rebase,
    /// Of video.
    pictures: Pictures,
    selector: Selector,
    last: Option<Instant>,
    payload_types: Option<(Option<Pt>, Pt)>,
    /// Of sound, once str0m has had a packet of it.
    lane: Option<Lane>,
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
    /// A connection with these host candidates and this certificate.
    pub fn new(
        certificate: &Certificate,
        addresses: &Addresses,
        names: Names,
        now: Instant,
    ) -> Self {
        let mut config = RtcConfig::new()
            .set_rtp_mode(true)
            .set_ice_lite(true)
            .clear_codecs()
            .enable_vp8(true)
            .enable_h264(true)
            .enable_vp9(true)
            .enable_av1(true)
            .set_extension(
                DESCRIPTOR_ID,
                Extension::with_serializer(DEPENDENCY_DESCRIPTOR, Descriptors),
            )
            .enable_bwe(Some(Bitrate::bps(FIRST_ESTIMATE_BPS)))
            .set_stats_interval(Some(STATS_INTERVAL))
            .set_crypto_provider(srtp::provider());
        enable_opus(config.codec_config());
        if let Certificate(Some(certificate)) = certificate {
            config = config.set_dtls_cert(certificate.clone());
        }
        Self {
            rtc: Connection::new(config, addresses, now),
            due: now,
            deadline: None,
            queued: Queued::No,
            unsent: Unsent {
                packets: 0,
                have_left: false,
                must_drain: true,
                drain_at: now,
            },
            slots: Slots::default(),
            offered_once: false,
            outgoing: BTreeMap::new(),
            channels: HashMap::new(),
            pending_offer: None,
            ssrcs: Ssrcs::default(),
            heard: HashMap::new(),
            payload_types: PayloadTypes::default(),
            estimate: None,
            bitrates: (0, 0),
            has_sought: false,
            paths: Paths::default(),
            names,
            fast_path: FastPath::default(),
        }
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

    /// Answers an offer, whose text is given, too, naming the tracks that the slots carry, and the codec first that the client
    /// prefers in a section.
    pub fn accept_offer(
        &mut self,
        offer: SdpOffer,
        text: &str,
        preferred: &HashMap<String, Codec>,
    ) -> Result<String, PeerError> {
        let answer = self.rtc.guarded(|rtc| {
            let answer = rtc.sdp_api().accept_offer(offer)?;
            Ok::<_, RtcError>(answer.to_sdp_string())
        })?;
        let answer = answer.map_err(description)?;
        self.leave_fast_path();
        let answer = sdp::in_order_of(text, &answer, |mid| preferred.get(mid).copied());
        Ok(self.told(&answer))
    }

    /// An offer for the slots (two peer connections); `None` if nothing has changed, or an offer is pending.
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
        let slots = &mut self.slots;
        let offered = self.rtc.guarded(|rtc| {
            let mut api = rtc.sdp_api();
            if channels {
                add_channels(&mut api);
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
                slots.push(mid.to_string(), wanted.clone());
            }
            api.apply()
        })?;
        let Some((offer, pending)) = offered else {
            return Ok(None);
        };
        self.pending_offer = Some(pending);
        Ok(Some(self.told(&offer.to_sdp_string())))
    }

    /// An offer for an ICE restart (resume with two peer connections).
    pub fn restart_offer(&mut self) -> Result<Option<String>, PeerError> {
        self.pending_offer = None;
        let offered = self.rtc.guarded(|rtc| {
            let mut api = rtc.sdp_api();
            api.ice_restart(true);
            api.apply()
        })?;
        let Some((offer, pending)) = offered else {
            return Ok(None);
        };
        self.pending_offer = Some(pending);
        Ok(Some(self.told(&offer.to_sdp_string())))
    }

    /// Whether an offer is pending.
    pub fn awaits_answer(&self) -> bool {
        self.pending_offer.is_some()
    }

    /// Takes the answer to the pending offer; without one it is ignored.
    pub fn accept_answer(&mut self, answer: SdpAnswer) -> Result<(), PeerError> {
        let Some(pending) = self.pending_offer.take() else {
            return Ok(());
        };
        self.leave_fast_path();
        self.rtc
            .guarded(|rtc| rtc.sdp_api().accept_answer(pending, answer))?
            .map_err(description)
    }

    /// What is known of ways and streams may be different now.
    fn leave_fast_path(&mut self) {
        self.fast_path.leave();
        for outgoing in self.outgoing.values_mut() {
            outgoing.lane = None;
        }
    }

    fn named(&self, text: &str) -> String {
        sdp::edit(text, |mid| match self.slots.get(mid) {
            None => Edit::Keep,
            Some(slot) => match &slot.carries {
                None if self.offered_once => Edit::Keep,
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
        let _ = self.rtc.guarded(|rtc| {
            let mut api = rtc.direct_api();
            let (ssrc, rtx) = (api.new_ssrc(), api.new_ssrc());
            let has_rtx = api
                .stream_tx_by_mid(mid, None)
                .is_some_and(|stream| stream.rtx().is_some());
            api.reset_stream_tx(mid, None, ssrc, has_rtx.then_some(rtx));
        });
    }

    /// Edits a description for the client.
    fn told(&mut self, sdp: &str) -> String {
        let ufrag = sdp
            .lines()
            .find_map(|line| line.strip_prefix("a=ice-ufrag:"));
        if let Some(ufrag) = ufrag {
            self.names.tell(ufrag.trim_end());
        }
        self.named(sdp)
    }

    /// Whether a datagram belongs to this connection.
    pub fn accepts(&self, input: &Input<'_>) -> bool {
        self.rtc.accepts(input)
    }

    /// Passes a datagram; `false` if it is dropped because the client has used up its SSRCs.
    pub fn receive(&mut self, input: Input<'_>, datagram: &[u8]) -> bool {
        let ssrc = match self.ssrcs.judge(datagram) {
            Judged::TooMany => return false,
            Judged::Known => None,
            Judged::Unknown(ssrc) => Some(ssrc),
        };
        if is_stun(datagram) {
            self.fast_path.leave();
        }
        // What is lost of what was sent is sent again before all else, and is none of the packets that are waited for.
        if of_rtp(datagram).is_none() {
            self.drain();
        }
        let before = srtp::authentic_packets();
        self.rtc.handle(input);
        if let Some(ssrc) = ssrc {
            if srtp::authentic_packets() == before {
                self.forget_forged(ssrc.into());
            } else {
                self.ssrcs.authenticated(ssrc);
            }
        }
        true
    }

    /// Undoes what str0m concludes from a packet before it authenticates it: that the stream of a mid has this SSRC now, so
    /// that it would no longer know the genuine one.
    fn forget_forged(&mut self, ssrc: Ssrc) {
        let heard = &self.heard;
        let _ = self.rtc.guarded(|rtc| {
            let mut api = rtc.direct_api();
            let Some(stream) = api.stream_rx(&ssrc) else {
                return;
            };
            let (mid, rid, rtx) = (stream.mid(), stream.rid(), stream.rtx());
            api.remove_stream_rx(ssrc);
            if let Some(genuine) = heard.get(&(mid, rid)) {
                let stream = api.expect_stream_rx(*genuine, rtx, mid, rid);
                stream.suppress_nack(rtx.is_none());
            }
        });
    }

    /// Closes the connection; [`Self::poll`] returns what is left to send.
    pub fn close(&mut self) {
        self.fast_path.close();
        self.rtc.close();
    }

    /// The next output.
    pub fn poll(&mut self, now: Instant) -> Polled {
        if let Some(drain_at) = self.unsent.rest(now) {
            return Polled::Wait(drain_at);
        }
        if self.due <= now {
            self.due = now + LONGEST_REST;
            self.rtc.handle(Input::Timeout(now));
        }
        let mut told_again = false;
        loop {
            let output = self.rtc.poll(now);
            // At once, whatever comes of it: they are nobody else's.
            if let Some(keys) = srtp::take_agreed() {
                self.fast_path.take_keys(keys);
            }
            match output {
                // What waits behind a packet need not wait for another poll. The same time again, as str0m takes none that is
                // before what it was told last.
                Output::Timeout(at) if at <= now + AT_ONCE && !told_again => {
                    told_again = true;
                    self.rtc.handle(Input::Timeout(now));
                }
                Output::Timeout(at) => {
                    // With each packet it is told the time, which is all that its pacer and its estimator want.
                    let needs_time = self.rtc.waits_for_bandwidth();
                    let until = now + UNASKED;
                    let until = if needs_time { until } else { until.min(at) };
                    self.unsent.drained(until);
                    return Polled::Wait(self.rest_until(at, now));
                }
                Output::Transmit(mut transmit) => {
                    self.fast_path.follow(&transmit);
                    self.paths.direct(&mut transmit, now);
                    if of_rtp(&transmit.contents).is_some() {
                        self.unsent.sent();
                        // str0m's pacer gives nothing more before it is told the time, which it would ask for next.
                        if self.unsent.packets > 0 {
                            self.due = now;
                        }
                    }
                    return Polled::Transmit(transmit);
                }
                Output::Event(event) => {
                    if let Some(arrival) = self.arrival(event) {
                        return Polled::Arrival(arrival);
                    }
                }
            }
        }
    }

    /// When it is told the time, which it wants to be told then. Its pacer and estimator want that 25 times a second, though there
    /// be nothing to pace or to estimate.
    fn rest_until(&self, at: Instant, now: Instant) -> Instant {
        let only_sends_sound = self.bitrates.1 == 0 && self.heard.is_empty();
        let is_idle = only_sends_sound && self.rtc.waits_for_bandwidth();
        if is_idle { at.max(now + IDLE_REST) } else { at }
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
                self.fast_path.close();
                Some(Arrival::Closed)
            }
            Event::ChannelOpen(id, label) => self
                .channel_open(id, &label)
                .then_some(Arrival::ChannelOpen),
            Event::ChannelClose(id) => {
                self.channels.remove(&id);
                self.rtc.channel_closed(id);
                None
            }
            Event::ChannelData(data) => {
                let channel = *self.channels.get(&data.id)?;
                Some(Arrival::Message(channel, data.data))
            }
            Event::ChannelBufferedAmountLow(_) => {
                self.rtc.flush();
                None
            }
            Event::RtpPacket(packet) => {
                let ssrc = packet.header.ssrc;
                let found = self.rtc.guarded(|rtc| {
                    let mut api = rtc.direct_api();
                    let stream = api.stream_rx(&ssrc)?;
                    Some((stream.mid(), stream.rid()))
                });
                let (mid, rid) = found.ok()??;
                self.heard.insert((mid, rid), ssrc);
                Some(Arrival::Rtp {
                    mid,
                    rid,
                    packet: Box::new(packet),
                })
            }
            Event::KeyframeRequest(request) => {
                Some(Arrival::KeyframeWanted(request.mid, request.kind))
            }
            Event::MediaIngressStats(stats) => stats.loss.map(Arrival::Loss),
            Event::MediaEgressStats(stats) => {
                let share = stats.loss?;
                let kind = self.rtc.guarded(|rtc| Some(rtc.media(stats.mid)?.kind()));
                (kind.ok()?? == MediaKind::Audio).then_some(Arrival::Missed(share))
            }
            Event::EgressBitrateEstimate(BweKind::Twcc {
                estimate,
                can_probe,
            }) => {
                let estimate = can_probe.then(|| estimate.as_u64());
                let changed = std::mem::replace(&mut self.estimate, estimate) != estimate;
                changed.then_some(Arrival::Estimate)
            }
            _ => None,
        }
    }

    fn channel_open(&mut self, id: ChannelId, label: &str) -> bool {
        if self.channels.len() >= MOST_CHANNELS {
            return false;
        }
        // The data-track channel speaks another language; nothing is sent or expected on it.
        if label == "_data_track" {
            return false;
        }
        let opened = self.rtc.channel_opened(id, label);
        let channel = match opened {
            Some(Delivery::Reliable) => Channel::Reliable,
            Some(Delivery::Lossy) => Channel::Lossy,
            None => Channel::Other,
        };
        self.channels.insert(id, channel);
        opened.is_some()
    }

    /// Whether both data channels are open.
    pub fn can_receive_data(&self) -> bool {
        self.rtc.has_channels()
    }

    /// Whether str0m has failed.
    pub fn is_broken(&self) -> bool {
        self.rtc.is_broken()
    }

    /// Sends a message. A reliable one is queued; `false` means that the receiver is too far behind: its queue is dropped
    /// and its channels count as closed. A lossy one is dropped if there is no space.
    pub fn send_message(&mut self, delivery: Delivery, message: &Bytes) -> bool {
        match delivery {
            Delivery::Reliable => {
                if self.rtc.queued_bytes() + message.len() > MOST_QUEUED_BYTES {
                    self.rtc.give_up_channels();
                    return false;
                }
                self.rtc.send_reliable(message.clone());
            }
            Delivery::Lossy => {
                if self.rtc.queued_bytes() == 0 {
                    self.rtc.send_lossy(message);
                }
            }
        }
        true
    }

    /// Bytes queued for the reliable channel.
    #[cfg(test)]
    pub fn queued_bytes(&self) -> usize {
        self.rtc.queued_bytes()
    }

    /// The codec of an incoming payload type.
    pub fn payload(&self, pt: Pt) -> Option<&PayloadParams> {
        self.rtc.codecs().find(|params| params.pt() == pt)
    }

    /// Whether the client has described a codec.
    pub fn knows(&self, codec: Codec) -> bool {
        self.payload_types.has(codec)
    }

    /// See [`Self::estimate`]; `None` where the client does not tell what arrives.
    pub const fn estimate(&self) -> Option<u64> {
        self.estimate
    }

    /// Tells the estimator what there would be to send, and what it may fill up to in order to find out whether that is
    /// possible, both in bits per second.
    /// `paused` is that nothing is forwarded for want of bandwidth.
    pub fn seek(&mut self, filled: u64, desired: u64, paused: bool) {
        // Where there never was video, nothing is probed.
        let before = std::mem::replace(&mut self.bitrates, (filled, desired));
        if before == (filled, desired) {
            return;
        }
        // While nothing was wanted, nothing was found out, and what the estimator goes by is of another time: it can hold on to
        // that for minutes. It begins anew with what it knew, and probes.
        // The same where all video is paused: sound alone teaches it nothing, and with what it fills up it would rise for minutes.
        let tries_again = paused && before.0 == 0 && filled > 0;
        let begins_again = tries_again || (before.1 == 0 && desired > 0 && self.has_sought);
        self.has_sought |= desired > 0;
        let known = self.estimate.unwrap_or(FIRST_ESTIMATE_BPS);
        let _ = self.rtc.guarded(|rtc| {
            if begins_again {
                rtc.bwe().reset(Bitrate::bps(known));
            }
            let (filled, desired) = (Bitrate::bps(filled), Bitrate::bps(desired));
            rtc.bwe().set_bitrate(filled, desired);
        });
    }

    /// What is aimed at in a slot.
    pub fn target(&self, mid: &str) -> Option<Target> {
        self.outgoing.get(&Mid::from(mid))?.selector.target()
    }

    /// Aims at a layer in a slot, see [`Selector::aim`].
    pub fn aim(&mut self, mid: &str, target: Option<Target>, too_much: bool) {
        let outgoing = self.outgoing.entry(mid.into()).or_default();
        outgoing.selector.aim(target, too_much);
    }

    /// The next poll is until it has no output left.
    pub const fn drain(&mut self) {
        self.unsent.must_drain = true;
    }

    /// The layer that a slot needs a keyframe of.
    pub fn needs_keyframe(&self, mid: &str) -> Option<LayerId> {
        let outgoing = self.outgoing.get(&Mid::from(mid))?;
        outgoing.selector.needs_keyframe()
    }

    /// The layer that is forwarded in a slot.
    pub fn current(&self, mid: &str) -> Option<LayerId> {
        self.outgoing.get(&Mid::from(mid))?.selector.current()
    }

    /// Forwards a packet of a track in the slot that carries it, if it is of the layer that is aimed at.
    pub fn forward(
        &mut self,
        track: &str,
        packet: &ForwardedPacket<'_>,
        now: Instant,
    ) -> Forwarded {
        let Some((payload, slot)) = packet.payload.zip(self.slots.carrying(track)) else {
            return Forwarded::Not;
        };
        let mid = slot.id;
        let outgoing = self.outgoing.entry(mid).or_default();
        outgoing.begun = true;
        let mut last = packet.marker;
        if let Some(video) = &packet.video {
            let vp8 = video.part.vp8.as_ref();
            match outgoing.selector.judge(video) {
                Verdict::Drop => return Forwarded::Not,
                Verdict::Skip => {
                    outgoing.rebase.skip(packet.ssrc, packet.sequence);
                    if let Some(said) = vp8 {
                        outgoing.pictures.skip(packet.ssrc, payload, said);
                    }
                    return Forwarded::Not;
                }
                Verdict::Forward { anew, last: ends } => {
                    last |= ends;
                    if anew {
                        outgoing.rebase.begin_anew();
                        outgoing.pictures.begin_anew();
                    }
                }
            }
        }
        self.send(mid, packet, payload, last, now)
    }

    /// Sends a packet of silence in each slot whose track has not begun, as often as [`MOST_SILENCE`] says; whether there
    /// was one.
    pub fn begin_silent_tracks(&mut self, now: Instant) -> bool {
        if !self.rtc.is_connected() {
            return false;
        }
        let carrying = self
            .slots
            .iter()
            .filter(|slot| slot.kind == SectionKind::Audio && slot.carries.is_some());
        let carrying = carrying.map(|slot| slot.id);
        let waits = |mid: &Mid| {
            let outgoing = self.outgoing.get(mid);
            outgoing.is_none_or(|outgoing| !outgoing.begun && outgoing.silence < MOST_SILENCE)
        };
        let waiting: Vec<Mid> = carrying.filter(waits).collect();
        for mid in &waiting {
            let outgoing = self.outgoing.entry(*mid).or_default();
            outgoing.silence += 1;
            let number = outgoing.silence;
            let silence: Arc<[u8]> = SILENCE.into();
            let packet = ForwardedPacket {
                ssrc: SSRC_OF_SILENCE,
                sequence: number.into(),
                time: u32::from(number) * SILENCE_TICKS,
                marker: false,
                payload: None,
                pcm: None,
                audio_level: Some(-127),
                voice_activity: Some(false),
                video_orientation: None,
                format: None,
                video: None,
                descriptor: None,
            };
            // Through str0m, as the track has not begun.
            self.send(*mid, &packet, &silence, false, now);
        }
        !waiting.is_empty()
    }

    fn send(
        &mut self,
        mid: Mid,
        packet: &ForwardedPacket<'_>,
        payload: &Arc<[u8]>,
        last: bool,
        now: Instant,
    ) -> Forwarded {
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
        let Some(numbers) = numbers else {
            return Forwarded::Not;
        };
        let first = outgoing.last.replace(now).is_none();
        let vp8 = packet.video.as_ref().and_then(|video| video.part.vp8);
        let patch = vp8.and_then(|said| outgoing.pictures.patch(packet.ssrc, payload, &said));
        let pt = match outgoing.payload_types {
            Some((from, to)) if from == format.map(PayloadParams::pt) => to,
            _ => {
                let known = self.rtc.codecs();
                let matched = match format {
                    Some(format) => known.match_params(*format),
                    None => known.find(|params| params.spec().codec == Codec::Opus),
                };
                let Some(to) = matched.map(PayloadParams::pt) else {
                    return Forwarded::Not;
                };
                outgoing.payload_types = Some((format.map(PayloadParams::pt), to));
                to
            }
        };
        let video = format.is_some_and(|format| format.spec().codec.is_video());
        let marker = last || (!video && numbers.first);
        // With video, the estimator of bandwidth has to know of all that is sent; and sender reports count from where a source began.
        let is_plain = !video && !numbers.first && outgoing.begun && self.bitrates.1 == 0;
        if let Some(lane) = outgoing.lane.as_ref().filter(|_| is_plain) {
            let sound = Sound {
                pt,
                marker,
                sequence: numbers.sequence,
                time: numbers.time,
                level: packet
                    .audio_level
                    .map(|level| (level, packet.voice_activity == Some(true))),
                payload,
            };
            if let Some(mut transmit) = self.fast_path.send(lane, mid, &sound, now) {
                self.paths.direct(&mut transmit, now);
                return Forwarded::Sent(transmit);
            }
        }
        let written = Written {
            pt,
            payload,
            numbers,
            marker,
            video,
            first,
            patch,
        };
        self.write(mid, &written, packet, now);
        Forwarded::Queued {
            whole: marker || !video,
        }
    }

    fn write(
        &mut self,
        mid: Mid,
        written: &Written<'_>,
        packet: &ForwardedPacket<'_>,
        now: Instant,
    ) {
        let Written {
            pt,
            payload,
            numbers,
            marker,
            video,
            first,
            patch,
        } = *written;
        let mut extensions = ExtensionValues {
            audio_level: packet.audio_level,
            voice_activity: packet.voice_activity,
            video_orientation: packet.video_orientation,
            ..ExtensionValues::default()
        };
        if let Some(descriptor) = &packet.descriptor {
            extensions.user_values.set_arc(Arc::clone(descriptor));
        }
        // A keyframe waits for its turn behind what the path carries, which nobody knows of a client that does not say what
        // arrives.
        let paced = self.estimate.is_some();
        let lane = self.rtc.guarded(|rtc| {
            if let Some(stream) = rtc.direct_api().stream_tx_by_mid(mid, None) {
                if first {
                    stream.set_rtx_cache(MOST_KEPT, KEPT_FOR, MOST_SENT_AGAIN);
                }
                let sent = RtpWrite::new(
                    pt,
                    numbers.sequence.into(),
                    numbers.time,
                    now,
                    Arc::clone(payload),
                );
                if video {
                    stream.set_unpaced(!paced);
                }
                // str0m retransmits only in a retransmission stream.
                let again = stream.rtx().is_some();
                let mut sent = sent.marker(marker).ext_vals(extensions).nackable(again);
                if let Some(patch) = patch {
                    sent = sent.vp8_patch(patch);
                }
                stream.write_rtp(sent);
                self.unsent.packets += 1;
            }
            (!video).then(|| Lane::of(rtc, mid, pt, now))?
        });
        let lane = lane.ok().flatten();
        if !video && let Some(outgoing) = self.outgoing.get_mut(&mid) {
            outgoing.lane = lane;
        }
        // What follows must not overtake it.
        self.fast_path.leave();
        // Nothing leaves str0m before it is told the time.
        self.due = now;
    }

    /// Requests a keyframe of a stream from the other side, by the SSRC of its last packet where there was one.
    pub fn request_keyframe(
        &mut self,
        (mid, rid, ssrc): (&str, Option<&str>, Option<u32>),
        kind: KeyframeRequestKind,
    ) {
        let rid = rid.map(Rid::from);
        let _ = self.rtc.guarded(|rtc| {
            let mut api = rtc.direct_api();
            if let Some(ssrc) = ssrc
                && let Some(stream) = api.stream_rx(&ssrc.into())
            {
                stream.request_keyframe(kind);
            } else if let Some(stream) = api.stream_rx_by_mid(mid.into(), rid) {
                stream.request_keyframe(kind);
            }
        });
    }
}

/// What a packet leaves with.
#[derive(Clone, Copy)]
struct Written<'a> {
    pt: Pt,
    payload: &'a Arc<[u8]>,
    numbers: Numbers,
    marker: bool,
    video: bool,
    /// Of its slot.
    first: bool,
    patch: Option<Vp8Patch>,
}

fn description(error: impl std::fmt::Display) -> PeerError {
    PeerError::Description(error.to_string())
}
