//! A room with clients that publish and subscribe: str0m peer connections, each behind a simulated network that may lose,
//! delay and reorder. Everything is in virtual time; used by `media`, `data`, `crowd` and `fuzz`.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use livekit_protocol as proto;
use prost::Message as _;
use proto::signal_request::Message as Request;
use proto::signal_response::Message;
use str0m::change::{SdpAnswer, SdpApi, SdpPendingOffer};
use str0m::channel::{ChannelConfig, ChannelId, Reliability};
use str0m::format::{Codec, PayloadParams};
use str0m::media::{Direction, MediaKind, Mid};
use str0m::net::{Protocol, Receive};
use str0m::rtp::{ExtensionValues, RtpPacket, RtpWrite};
use str0m::{Candidate, Input, Output, Rtc, RtcConfig};
use str0m_netem::{self as netem, Netem, NetemConfig, Probability, RandomLoss};

use super::super::codecs::enable_opus;
use super::super::ssrcs::of_rtp;
use super::super::{ConnectionId, Route};
use super::Bench;

pub const STEP: Duration = Duration::from_millis(5);

pub struct Client {
    pub connection: ConnectionId,
    pub rtc: Rtc,
    pub address: SocketAddr,
    pub identity: String,
    /// Whether it has left.
    pub gone: bool,
    pending: Option<SdpPendingOffer>,
    offers: u32,
    /// Sections of sound and of pictures requested while an offer was pending; an offer is due even for none.
    due: Option<(u32, u32)>,
    /// An unused section that is toggled when an offer should change nothing: str0m makes none without a change.
    spare: Option<(Mid, Direction)>,
    read: usize,
    pub slots: Vec<Mid>,
    /// The map from mid to track in the newest answer.
    pub tracks: HashMap<String, String>,
    pub channels: HashMap<String, ChannelId>,
    pub heard: Vec<(Mid, RtpPacket)>,
    pub messages: Vec<proto::DataPacket>,
    pub sent: u64,
    pub filmed: u64,
    pub filmed_packets: u64,
    pub up: Netem<Vec<u8>>,
    pub down: Netem<Vec<u8>>,
}

/// To whom a media packet was sent, its source and its number.
type Index = (SocketAddr, u32, [u8; 2]);

/// A room with clients that publish and subscribe.
pub struct Stage {
    pub bench: Bench,
    pub clients: Vec<Client>,
    pub network: NetemConfig,
    by_address: HashMap<SocketAddr, usize>,
    /// Whether clients keep their SSRCs to themselves, as browsers do those of simulcast.
    pub unannounced: bool,
    /// Whether those who join ask for lost sound again, as our own links do.
    pub asks_again: bool,
    /// Datagrams of clients, while they are recorded.
    pub recorded: Option<Vec<Vec<u8>>>,
    /// Which media packets were sent, where none must be sent twice and sequence numbers do not begin again.
    pub sent_once: Option<HashSet<Index>>,
}

impl Stage {
    pub fn new(network: NetemConfig) -> Self {
        Self {
            bench: Bench::new(|_| ()),
            clients: vec![],
            network,
            by_address: HashMap::new(),
            unannounced: false,
            asks_again: false,
            recorded: None,
            sent_once: None,
        }
    }

    pub fn join(&mut self, identity: &str) -> usize {
        self.join_in("kitchen", identity)
    }

    pub fn join_in(&mut self, room: &str, identity: &str) -> usize {
        let now = self.bench.now.instant;
        let mut config = RtcConfig::new().set_rtp_mode(true).clear_codecs();
        config = if self.asks_again {
            enable_opus(config.codec_config());
            config
        } else {
            config.enable_opus(true, false)
        };
        let mut rtc = config.enable_vp8(true).build(now);
        let port = 1_024 + self.clients.len() as u16;
        let address = SocketAddr::from(([198, 51, 100, 1], port));
        rtc.add_local_candidate(Candidate::host(address, "udp").unwrap());
        let mut api = rtc.sdp_api();
        let slots = (0..3)
            .map(|_| api.add_media(MediaKind::Audio, Direction::RecvOnly, None, None, None))
            .collect();
        api.add_channel("_reliable".to_owned());
        let reliability = Reliability::MaxRetransmits { retransmits: 0 };
        api.add_channel_with_config(ChannelConfig {
            label: "_lossy".to_owned(),
            ordered: false,
            reliability,
            ..ChannelConfig::default()
        });
        let (offer, pending) = api.apply().unwrap();
        let mut admission =
            Bench::admission(identity, |claims| room.clone_into(&mut claims.video.room));
        admission.route = Route::OneConnection;
        admission.offer = Some(super::offer(&offer.to_sdp_string(), 1));
        let connection = self.bench.connect(admission);
        let seed = self.clients.len() as u64;
        self.by_address.insert(address, self.clients.len());
        self.clients.push(Client {
            connection,
            rtc,
            address,
            identity: identity.to_owned(),
            gone: false,
            pending: Some(pending),
            offers: 1,
            due: None,
            spare: None,
            read: 0,
            slots,
            tracks: HashMap::new(),
            channels: HashMap::new(),
            heard: vec![],
            messages: vec![],
            sent: 0,
            filmed: 0,
            filmed_packets: 0,
            up: Netem::new(self.network.seed(seed * 2)),
            down: Netem::new(self.network.seed(seed * 2 + 1)),
        });
        self.clients.len() - 1
    }

    /// Publishes a track of sound; returns its mid.
    pub fn publish(&mut self, who: usize, cid: &str) -> Mid {
        self.publish_kind(who, cid, MediaKind::Audio)
    }

    /// Publishes a track, of sound or of pictures; returns its mid.
    pub fn publish_kind(&mut self, who: usize, cid: &str, kind: MediaKind) -> Mid {
        self.until_answered(who);
        let connection = self.clients[who].connection;
        let (source, r#type) = match kind {
            MediaKind::Audio => (proto::TrackSource::Microphone, proto::TrackType::Audio),
            MediaKind::Video => (proto::TrackSource::Camera, proto::TrackType::Video),
        };
        let track = proto::AddTrackRequest {
            cid: cid.to_owned(),
            source: source as i32,
            r#type: r#type as i32,
            ..Default::default()
        };
        self.bench.ask(connection, Request::AddTrack(track));
        let direction = Direction::SendOnly;
        let (stream, cid) = (Some("s".to_owned()), Some(cid.to_owned()));
        self.offer(who, |api| api.add_media(kind, direction, stream, cid, None))
    }

    /// Unpublishes a track.
    pub fn unpublish(&mut self, who: usize, mid: Mid) {
        self.until_answered(who);
        self.offer(who, |api| api.set_direction(mid, Direction::Inactive));
    }

    /// A client has one pending offer at a time.
    fn until_answered(&mut self, who: usize) {
        for _ in 0..1_000 {
            if self.clients[who].pending.is_none() {
                return;
            }
            self.run(STEP, &[]);
        }
        let client = &self.clients[who];
        let told = self.bench.told(client.connection).iter().rev().take(3);
        panic!(
            "{} gets no answer: {:?}",
            client.identity,
            told.collect::<Vec<_>>()
        );
    }

    fn offer<T>(&mut self, who: usize, change: impl FnOnce(&mut SdpApi<'_>) -> T) -> T {
        let client = &mut self.clients[who];
        let mut api = client.rtc.sdp_api();
        let changed = change(&mut api);
        if !api.has_changes() {
            let (mid, direction) = client.spare.map_or_else(
                || {
                    let direction = Direction::SendOnly;
                    let mid = api.add_media(MediaKind::Video, direction, None, None, None);
                    (mid, direction)
                },
                |(mid, before)| match before {
                    Direction::SendOnly => (mid, Direction::Inactive),
                    _ => (mid, Direction::SendOnly),
                },
            );
            api.set_direction(mid, direction);
            client.spare = Some((mid, direction));
        }
        if let Some((offer, pending)) = api.apply() {
            client.pending = Some(pending);
            client.offers += 1;
            let mut text = offer.to_sdp_string();
            if self.unannounced {
                let lines = text.lines().filter(|line| !line.starts_with("a=ssrc"));
                text = lines.flat_map(|line| [line, "\n"]).collect();
            }
            let offer = super::offer(&text, client.offers);
            let connection = client.connection;
            self.bench.ask(connection, Request::Offer(offer));
        }
        changed
    }

    /// Cuts the signalling connection; not while an answer is on its way, which str0m needs.
    pub fn cut(&mut self, who: usize) {
        self.until_answered(who);
        let connection = self.clients[who].connection;
        let now = self.bench.now;
        self.bench.sfu.disconnected(connection, now);
        self.bench.collect();
    }

    /// The client resumes with a new signalling connection: first what it has received, then an ICE restart.
    pub fn resume(&mut self, who: usize, received: Vec<proto::DataChannelReceiveState>) {
        let client = &self.clients[who];
        let mut admission = Bench::admission(&client.identity, |_| ());
        admission.route = Route::OneConnection;
        admission.resume = Some(String::new());
        let connection = self.bench.connect(admission);
        let client = &mut self.clients[who];
        (client.connection, client.read) = (connection, 0);
        let state = proto::SyncState {
            datachannel_receive_states: received,
            subscription: Some(proto::UpdateSubscription::default()),
            ..Default::default()
        };
        self.bench.ask(connection, Request::SyncState(state));
        self.until_answered(who);
        self.offer(who, |api| api.ice_restart(true));
    }

    /// A participant leaves.
    pub fn leave(&mut self, who: usize) {
        let connection = self.clients[who].connection;
        let goodbye = proto::LeaveRequest::default();
        self.bench.ask(connection, Request::Leave(goodbye));
        self.vanish(who);
    }

    /// A participant vanishes without a message.
    pub fn vanish(&mut self, who: usize) {
        let client = &mut self.clients[who];
        client.gone = true;
        client.heard.clear();
        self.by_address.remove(&client.address);
    }

    /// Handles and drops all messages to clients.
    pub fn forget(&mut self) {
        for who in self.present() {
            self.follow(who);
        }
        self.bench.forget();
        self.bench.closed.clear();
        self.bench.events.clear();
        for client in &mut self.clients {
            client.read = 0;
        }
    }

    /// The clients that are present.
    pub fn present(&self) -> Vec<usize> {
        let all = 0..self.clients.len();
        all.filter(|who| !self.clients[*who].gone).collect()
    }

    /// Advances the time; publishers send every 20 ms.
    pub fn run(&mut self, time: Duration, speakers: &[(usize, Mid)]) {
        let end = self.bench.now.instant + time;
        let mut step = 0;
        while self.bench.now.instant < end {
            self.bench.pass(STEP);
            step += 1;
            if step % 4 == 0 {
                for (who, mid) in speakers {
                    self.speak(*who, *mid);
                }
            }
            for who in self.present() {
                self.follow(who);
                self.exchange(who);
            }
        }
    }

    pub fn speak(&mut self, who: usize, mid: Mid) {
        let now = self.bench.now.instant;
        let client = &mut self.clients[who];
        client.sent += 1;
        let (number, pt) = (client.sent, client.rtc.codec_config().params()[0].pt());
        let extensions = ExtensionValues {
            audio_level: Some(-10),
            voice_activity: Some(true),
            ..ExtensionValues::default()
        };
        if let Some(stream) = client.rtc.direct_api().stream_tx_by_mid(mid, None) {
            let payload = format!("{who} says {number}").into_bytes();
            stream.write_rtp(
                RtpWrite::new(pt, number.into(), number as u32 * 960, now, payload)
                    .ext_vals(extensions),
            );
        }
    }

    /// Films a picture of VP8 in so many packets, each a keyframe's part.
    pub fn film(&mut self, who: usize, mid: Mid, packets: u64) {
        let now = self.bench.now.instant;
        let client = &mut self.clients[who];
        let codecs = client.rtc.codec_config();
        let vp8 = |params: &&PayloadParams| params.spec().codec == Codec::Vp8;
        let pt = codecs.params().iter().find(vp8).unwrap().pt();
        client.filmed += 1;
        let time = client.filmed as u32 * 3_000;
        for part in 1..=packets {
            client.filmed_packets += 1;
            let number = client.filmed_packets;
            // Where a picture begins, and that it is a keyframe (RFC 7741, sections 4.2 and 4.3).
            let descriptor = if part == 1 { 0x10 } else { 0 };
            let mut payload = vec![descriptor, 0];
            payload.resize(1_000, 0);
            if let Some(stream) = client.rtc.direct_api().stream_tx_by_mid(mid, None) {
                let packet = RtpWrite::new(pt, number.into(), time, now, payload);
                stream.write_rtp(packet.marker(part == packets));
            }
        }
    }

    /// Does what the server asks for.
    pub fn follow(&mut self, who: usize) {
        let client = &mut self.clients[who];
        let told: Vec<Message> = self
            .bench
            .told(client.connection)
            .iter()
            .skip(client.read)
            .cloned()
            .collect();
        client.read += told.len();
        for message in told {
            let client = &mut self.clients[who];
            match message {
                Message::Answer(answer) => {
                    client.tracks.clone_from(&answer.mid_to_track_id);
                    let sdp = SdpAnswer::from_sdp_string(&answer.sdp).unwrap();
                    if let Some(pending) = client.pending.take() {
                        client.rtc.sdp_api().accept_answer(pending, sdp).unwrap();
                    }
                }
                Message::MediaSectionsRequirement(need) => {
                    let (sound, pictures) = client.due.get_or_insert_default();
                    *sound += need.num_audios;
                    *pictures += need.num_videos;
                }
                _ => {}
            }
        }
        let client = &mut self.clients[who];
        if client.pending.is_none()
            && let Some((sound, pictures)) = client.due.take()
        {
            let mut slots = client.slots.clone();
            self.offer(who, |api| {
                for mid in &slots {
                    api.set_direction(*mid, Direction::RecvOnly);
                }
                let kinds = [(MediaKind::Audio, sound), (MediaKind::Video, pictures)];
                for (kind, needed) in kinds {
                    let add = |_| api.add_media(kind, Direction::RecvOnly, None, None, None);
                    slots.extend((0..needed).map(add));
                }
            });
            self.clients[who].slots = slots;
        }
    }

    /// Moves datagrams in both directions through the network.
    pub fn exchange(&mut self, who: usize) {
        let now = self.bench.now.instant;
        let server = Bench::world_address();
        for sent in std::mem::take(&mut self.bench.datagrams) {
            if let Some(once) = &mut self.sent_once
                && let Some(ssrc) = of_rtp(&sent.contents)
            {
                let number = [sent.contents[2], sent.contents[3]];
                let is_new = once.insert((sent.destination, ssrc, number));
                assert!(is_new, "an index is used twice, with one key");
            }
            if let Some(to) = self.by_address.get(&sent.destination) {
                let packet = netem::Input::Packet(now, sent.contents.to_vec());
                self.clients[*to].down.handle_input(packet);
            }
        }
        let client = &mut self.clients[who];
        client.down.handle_input(netem::Input::Timeout(now));
        while let Some(netem::Output::Packet(bytes)) = client.down.poll_output() {
            client.receive(server, &bytes, now);
        }
        client.rtc.handle_input(Input::Timeout(now)).unwrap();
        client.poll(now);
        client.up.handle_input(netem::Input::Timeout(now));
        while let Some(netem::Output::Packet(bytes)) = client.up.poll_output() {
            if let Some(recorded) = &mut self.recorded {
                recorded.push(bytes.clone());
            }
            self.bench.sfu.receive(
                (Protocol::Udp, client.address),
                server,
                &bytes,
                self.bench.now,
            );
        }
        self.bench.collect();
    }

    /// Lets all that a client sends now come to the server, past its network.
    pub fn deliver_all(&mut self, who: usize) {
        for datagram in self.sent_by(who) {
            self.deliver(who, &datagram);
        }
    }

    /// What a client sends now, in place of its network.
    pub fn sent_by(&mut self, who: usize) -> Vec<Vec<u8>> {
        let now = self.bench.now.instant;
        let client = &mut self.clients[who];
        client.rtc.handle_input(Input::Timeout(now)).unwrap();
        let mut sent = Vec::new();
        while let Output::Transmit(transmit) = client.rtc.poll_output().unwrap() {
            sent.push(transmit.contents.to_vec());
        }
        sent
    }

    /// Lets a datagram of the server come to a client.
    pub fn hand(&mut self, who: usize, datagram: &[u8]) {
        let now = self.bench.now.instant;
        self.clients[who].receive(Bench::world_address(), datagram, now);
    }

    /// Lets a datagram of a client come to the server.
    pub fn deliver(&mut self, who: usize, datagram: &[u8]) {
        let source = (Protocol::Udp, self.clients[who].address);
        let server = Bench::world_address();
        self.bench
            .sfu
            .receive(source, server, datagram, self.bench.now);
        self.bench.collect();
    }

    pub fn send(&mut self, who: usize, channel: &str, packet: &proto::DataPacket) {
        let client = &mut self.clients[who];
        let id = client.channels[channel];
        assert!(
            client
                .rtc
                .channel(id)
                .unwrap()
                .write(true, &packet.encode_to_vec())
                .unwrap()
        );
    }
}

impl Client {
    fn receive(&mut self, server: SocketAddr, datagram: &[u8], now: Instant) {
        let received = Receive::new(Protocol::Udp, server, self.address, datagram).unwrap();
        self.rtc
            .handle_input(Input::Receive(now, received))
            .unwrap();
        self.poll(now);
    }

    pub fn poll(&mut self, now: Instant) {
        loop {
            match self.rtc.poll_output().unwrap() {
                Output::Timeout(_) => return,
                Output::Transmit(sent) => self
                    .up
                    .handle_input(netem::Input::Packet(now, sent.contents.to_vec())),
                Output::Event(str0m::Event::RtpPacket(packet)) => {
                    let ssrc = packet.header.ssrc;
                    let mid = self.rtc.direct_api().stream_rx(&ssrc).unwrap().mid();
                    self.heard.push((mid, packet));
                }
                Output::Event(str0m::Event::ChannelOpen(id, label)) => {
                    self.channels.insert(label, id);
                }
                Output::Event(str0m::Event::ChannelData(data)) => self
                    .messages
                    .push(proto::DataPacket::decode(&*data.data).unwrap()),
                Output::Event(_) => {}
            }
        }
    }

    /// Packets heard of a publisher, by sequence number, in order of arrival.
    pub fn heard_of(&self, who: usize) -> Vec<u64> {
        let said = self
            .heard
            .iter()
            .filter_map(|(_, packet)| std::str::from_utf8(&packet.payload).ok());
        said.filter_map(|text| text.strip_prefix(&format!("{who} says "))?.parse().ok())
            .collect()
    }
}

pub fn reliable(sequence: u32) -> proto::DataPacket {
    let payload = sequence.to_be_bytes().to_vec();
    let value = Some(proto::data_packet::Value::User(proto::UserPacket {
        payload,
        ..Default::default()
    }));
    proto::DataPacket {
        sequence,
        value,
        participant_sid: "PA_liar".into(),
        participant_identity: "liar".into(),
        ..Default::default()
    }
}

pub fn bad_network() -> NetemConfig {
    NetemConfig::new()
        .latency(Duration::from_millis(40))
        .jitter(Duration::from_millis(15))
        .loss(RandomLoss::new(Probability::new(0.05)))
        .reorder_gap(20)
}
