//! A client's peer connection: str0m's `Rtc` in RTP mode with the published track, the receiving sections and the two data
//! channels. When to offer, and what a track id means, is decided by `session`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use livekit_protocol as proto;
use str0m::change::SdpPendingOffer;
use str0m::media::{Direction, MediaKind, Mid, Pt};
use str0m::rtp::{ExtensionValues, RtpPacket, RtpWrite};
use str0m::{Candidate, Event, IceConnectionState, Input, Output, RtcConfig, RtcError};

use vivavoce_rooms::Addresses;
use vivavoce_rooms::codecs::enable_opus;
use vivavoce_rooms::offers::{Answer, Offer, PayloadTypes, Reduced};
use vivavoce_rooms::sdp::{self, SectionKind};
use vivavoce_rooms::webrtc::{Broken, Connection, Delivery, add_channels};
use vivavoce_seams::rooms::link::Frame;

/// Received tracks of one room at most; whoever is in larger rooms chooses whom to hear.
const MOST_SLOTS: usize = 256;
/// Candidates of the server that came before its description.
const MOST_HELD: usize = 64;
/// Messages are taken from the caller's queue while so much waits in front of the channel.
const BACKLOG_BYTES: usize = 256 << 10;
/// Why a peer connection cannot go on.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PcError {
    /// A description that cannot be used.
    #[error("a session description cannot be used: {0}")]
    Description(String),
    /// str0m gave up inside.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// What came.
#[derive(Debug)]
pub enum Arrival {
    /// The state of ICE or DTLS changed; see [`Pc::is_connected`].
    Changed,
    /// Nothing has come for about 15 s.
    Lost,
    /// The other side closed, or the connection failed for good.
    Closed,
    /// A message, and whether on the reliable channel.
    Message(Vec<u8>, bool),
    /// A packet of a received track.
    Rtp(Mid, Box<RtpPacket>),
}

/// What [`Pc::poll`] has next.
pub type Polled = vivavoce_rooms::webrtc::Polled<Arrival>;

/// What an offer shall bring about, beside what there is.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Whether the path is sought anew.
    pub restart: bool,
    /// Further sections to receive audio in.
    pub slots: u32,
    /// The track to be published, by its name in `AddTrackRequest`.
    pub publish: Option<String>,
    /// Whether the two data channels are to be opened.
    pub channels: bool,
    /// Whether there is to be an offer even where nothing changed.
    pub force: bool,
}

struct Pending {
    id: u32,
    offer: SdpPendingOffer,
    slots: Vec<Mid>,
    publish: Option<Mid>,
}

/// A client's peer connection.
pub struct Pc {
    rtc: Connection,
    pending: Option<Pending>,
    next_id: u32,
    described: bool,
    held: Vec<Candidate>,
    slots: Vec<Mid>,
    published: Option<Mid>,
    outgoing: Numbers,
    /// What its payload types stand for.
    payload_types: PayloadTypes,
}

/// The numbers of the published stream: they begin anywhere, below the first rollover (RFC 3711 section 3.3.1).
struct Numbers {
    sequence: u64,
    time_offset: u32,
}

impl Pc {
    /// A connection from these sockets.
    pub fn new(addresses: &[SocketAddr], now: Instant) -> Self {
        let mut config = RtcConfig::new().set_rtp_mode(true).clear_codecs();
        enable_opus(config.codec_config());
        let udp = Addresses {
            udp: addresses.to_vec(),
            tcp: Vec::new(),
        };
        Self {
            rtc: Connection::new(config, &udp, now),
            pending: None,
            next_id: 1,
            described: false,
            held: Vec::new(),
            slots: Vec::new(),
            published: None,
            outgoing: Numbers {
                sequence: fastrand::u64(1..0x8000),
                time_offset: fastrand::u32(..),
            },
            payload_types: PayloadTypes::default(),
        }
    }

    /// Whether ICE and DTLS are up.
    pub fn is_connected(&self) -> bool {
        self.rtc.is_connected()
    }

    /// Whether an offer waits for its answer.
    pub fn awaits_answer(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether the other side has described itself.
    pub fn described(&self) -> bool {
        self.described
    }

    /// Whether the track is published.
    pub fn publishes(&self) -> bool {
        self.published.is_some()
    }

    /// An offer. One that was not answered is forgotten, with what it would have brought about.
    pub fn offer(&mut self, wanted: &Wanted) -> Result<Option<proto::SessionDescription>, PcError> {
        self.pending = None;
        let (known, published) = (&self.slots, self.published);
        let made = self.rtc.guarded(|rtc| {
            let (mut slots, mut publish) = (Vec::new(), None);
            let mut api = rtc.sdp_api();
            if wanted.restart {
                api.ice_restart(true);
            }
            // What was answered as inactive is offered again.
            for mid in known {
                api.set_direction(*mid, Direction::RecvOnly);
            }
            let room = MOST_SLOTS.saturating_sub(known.len());
            for _ in 0..(wanted.slots as usize).min(room) {
                slots.push(api.add_media(MediaKind::Audio, Direction::RecvOnly, None, None, None));
            }
            if let Some(cid) = wanted.publish.as_ref().filter(|_| published.is_none()) {
                let stream = Some("agent".to_owned());
                publish = Some(api.add_media(
                    MediaKind::Audio,
                    Direction::SendOnly,
                    stream,
                    Some(cid.clone()),
                    None,
                ));
            }
            if wanted.channels {
                add_channels(&mut api);
            }
            if let Some(mid) = known.first().filter(|_| wanted.force && !api.has_changes()) {
                // There is no offer without a change.
                api.set_direction(*mid, Direction::Inactive);
                api.set_direction(*mid, Direction::RecvOnly);
            }
            (api.apply(), slots, publish)
        })?;
        let (Some((offer, pending)), slots, publish) = made else {
            return Ok(None);
        };
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1).max(1);
        self.pending = Some(Pending {
            id,
            offer: pending,
            slots,
            publish,
        });
        Ok(Some(proto::SessionDescription {
            r#type: "offer".to_owned(),
            sdp: offer.to_sdp_string(),
            id,
            ..Default::default()
        }))
    }

    /// Takes the answer to the offer that is out, and says which track each section carries. One to another offer is
    /// passed over.
    pub fn answered(
        &mut self,
        answer: &proto::SessionDescription,
    ) -> Result<Option<HashMap<Mid, String>>, PcError> {
        let Some(pending) = self
            .pending
            .take_if(|pending| answer.id == 0 || answer.id == pending.id)
        else {
            return Ok(None);
        };
        let Answer { reduced, parsed } = Answer::read(answer).map_err(unusable)?;
        self.agree(&reduced)?;
        self.rtc
            .guarded(|rtc| rtc.sdp_api().accept_answer(pending.offer, parsed))?
            .map_err(unusable)?;
        self.take_candidates(&answer.sdp);
        self.slots.extend(pending.slots);
        self.published = pending.publish.or(self.published);
        self.remote_described();
        tracks(answer).map(Some)
    }

    /// The answer to the server's offer, and which track each section carries.
    pub fn accept(
        &mut self,
        offer: &proto::SessionDescription,
    ) -> Result<(proto::SessionDescription, HashMap<Mid, String>), PcError> {
        let Offer {
            reduced, parsed, ..
        } = Offer::read(offer).map_err(unusable)?;
        self.agree(&reduced)?;
        let answer = self.rtc.guarded(|rtc| {
            let answer = rtc.sdp_api().accept_offer(parsed)?;
            Ok::<_, RtcError>(answer.to_sdp_string())
        })?;
        let sdp = answer.map_err(unusable)?;
        self.take_candidates(&offer.sdp);
        self.remote_described();
        let answer = proto::SessionDescription {
            r#type: "answer".to_owned(),
            sdp,
            id: offer.id,
            ..Default::default()
        };
        Ok((answer, tracks(offer)?))
    }

    /// A description that contradicts what was agreed is not even tried.
    fn agree(&mut self, described: &Reduced) -> Result<(), PcError> {
        self.payload_types.agree(described).map_err(unusable)
    }

    /// The server's candidates, which are the one thing of use to a client that is left out of a description that was
    /// looked through.
    fn take_candidates(&mut self, sdp: &str) {
        let lines = sdp.lines().map(str::trim_end);
        let candidates = lines.filter_map(|line| line.strip_prefix("a="));
        let candidates = candidates.filter(|line| line.starts_with("candidate:"));
        for line in candidates.take(MOST_HELD) {
            if let Ok(candidate) = Candidate::from_sdp_string(line) {
                let _ = self.rtc.guarded(|rtc| rtc.add_remote_candidate(candidate));
            }
        }
    }

    fn remote_described(&mut self) {
        self.described = true;
        for candidate in std::mem::take(&mut self.held) {
            let _ = self.rtc.guarded(|rtc| rtc.add_remote_candidate(candidate));
        }
    }

    /// A candidate of the server. One that cannot be used is passed over: names, TCP.
    pub fn candidate(&mut self, line: &str) {
        let Ok(candidate) = Candidate::from_sdp_string(line) else {
            return;
        };
        if self.described {
            let _ = self.rtc.guarded(|rtc| rtc.add_remote_candidate(candidate));
        } else if self.held.len() < MOST_HELD {
            self.held.push(candidate);
        }
    }

    /// Whether a datagram is for this connection.
    pub fn accepts(&self, input: &Input<'_>) -> bool {
        self.rtc.accepts(input)
    }

    /// Gives it a datagram or the time.
    pub fn handle(&mut self, input: Input<'_>) {
        self.rtc.handle(input);
    }

    /// Says goodbye; what is left to send comes out of [`Self::poll`].
    pub fn close(&mut self) {
        self.rtc.close();
    }

    /// The next thing it has.
    pub fn poll(&mut self, now: Instant) -> Polled {
        loop {
            match self.rtc.poll(now) {
                Output::Timeout(at) => return Polled::Wait(at),
                Output::Transmit(transmit) => return Polled::Transmit(transmit),
                Output::Event(event) => {
                    if let Some(arrival) = self.arrival(event) {
                        return Polled::Arrival(arrival);
                    }
                }
            }
        }
    }

    fn arrival(&mut self, event: Event) -> Option<Arrival> {
        match event {
            Event::IceConnectionStateChange(IceConnectionState::Disconnected) => {
                Some(Arrival::Lost)
            }
            Event::Connected | Event::IceConnectionStateChange(_) => Some(Arrival::Changed),
            Event::Closed => Some(Arrival::Closed),
            Event::ChannelOpen(id, label) => {
                self.rtc.channel_opened(id, &label)?;
                Some(Arrival::Changed)
            }
            Event::ChannelClose(id) => {
                self.rtc.channel_closed(id);
                None
            }
            Event::ChannelData(data) => {
                let reliable = self.rtc.delivery(data.id)? == Delivery::Reliable;
                Some(Arrival::Message(data.data, reliable))
            }
            Event::ChannelBufferedAmountLow(_) => {
                self.rtc.flush();
                Some(Arrival::Changed)
            }
            Event::RtpPacket(packet) => {
                let ssrc = packet.header.ssrc;
                let found = self.rtc.guarded(|rtc| {
                    let mut api = rtc.direct_api();
                    Some(api.stream_rx(&ssrc)?.mid())
                });
                Some(Arrival::Rtp(found.ok()??, Box::new(packet)))
            }
            _ => None,
        }
    }

    /// Whether messages may be given to it.
    pub fn takes_messages(&self) -> bool {
        self.rtc.has_channels() && self.rtc.queued_bytes() < BACKLOG_BYTES
    }

    /// Sends a message. A reliable one waits its turn, a lossy one is left out when there is no room.
    pub fn send(&mut self, message: Bytes, reliable: bool) {
        if reliable {
            self.rtc.send_reliable(message);
        } else {
            self.rtc.send_lossy(&message);
        }
    }

    /// Sends a frame of the published track; `false` when there is none.
    pub fn write(&mut self, frame: Frame, now: Instant) -> bool {
        let (Some(mid), Some(pt), Some(payload)) = (self.published, self.opus(), frame.opus) else {
            return false;
        };
        self.outgoing.sequence += 1;
        let (sequence, time) = (
            self.outgoing.sequence,
            self.outgoing.time_offset.wrapping_add(frame.timestamp),
        );
        let level = frame.level.min(127);
        let extensions = ExtensionValues {
            audio_level: Some(-i8::try_from(level).unwrap_or(i8::MAX)),
            voice_activity: Some(level < 127),
            ..ExtensionValues::default()
        };
        let sent = self.rtc.guarded(|rtc| {
            let mut api = rtc.direct_api();
            let stream = api.stream_tx_by_mid(mid, None)?;
            let packet = RtpWrite::new(pt, sequence.into(), time, now, payload);
            stream.write_rtp(packet.marker(frame.marker).ext_vals(extensions));
            // Nothing leaves str0m before it is told the time.
            rtc.handle_input(Input::Timeout(now)).ok()
        });
        matches!(sent, Ok(Some(())))
    }

    fn opus(&self) -> Option<Pt> {
        let mut known = self.rtc.codecs().params().iter();
        known.next().map(str0m::format::PayloadParams::pt)
    }
}

/// Which track each section carries in which the server sends: by the map beside the description, else by `a=msid`.
fn tracks(description: &proto::SessionDescription) -> Result<HashMap<Mid, String>, PcError> {
    let sections = sdp::sections(&description.sdp).map_err(unusable)?;
    let audio = sections
        .iter()
        .filter(|section| section.kind == SectionKind::Audio && section.direction.sends());
    let named = audio.filter_map(|section| {
        let mapped = description
            .mid_to_track_id
            .get(section.mid)
            .map(String::as_str);
        let track = mapped.or(section.track_id.filter(|id| id.starts_with("TR_")))?;
        Some((section.mid.into(), track.to_owned()))
    });
    Ok(named.collect())
}

fn unusable(error: impl std::fmt::Display) -> PcError {
    PcError::Description(error.to_string())
}
