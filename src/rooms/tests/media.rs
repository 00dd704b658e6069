//! Sound and messages through the world, between peer connections of str0m over a network that loses, delays and
//! reorders. All in virtual time.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use livekit_protocol as proto;
use prost::Message as _;
use proto::signal_request::Message as Request;
use proto::signal_response::Message;
use str0m::change::{SdpAnswer, SdpPendingOffer};
use str0m::channel::{ChannelConfig, ChannelId, Reliability};
use str0m::media::{Direction, MediaKind, Mid};
use str0m::net::{Protocol, Receive};
use str0m::rtp::{ExtensionValues, RtpPacket, RtpWrite};
use str0m::{Candidate, Input, Output, Rtc, RtcConfig};
use str0m_netem::{self as netem, Netem, NetemConfig, Probability, RandomLoss};

use super::super::{ConnectionId, Route};
use super::Bench;

const STEP: Duration = Duration::from_millis(5);

struct Client {
    connection: ConnectionId,
    rtc: Rtc,
    address: SocketAddr,
    pending: Option<SdpPendingOffer>,
    read: usize,
    slots: Vec<Mid>,
    tracks: HashMap<String, String>,
    channels: HashMap<String, ChannelId>,
    heard: Vec<(Mid, RtpPacket)>,
    messages: Vec<proto::DataPacket>,
    sent: u64,
    up: Netem<Vec<u8>>,
    down: Netem<Vec<u8>>,
}

/// A room with clients that speak and listen.
struct Stage {
    bench: Bench,
    clients: Vec<Client>,
    network: NetemConfig,
}

impl Stage {
    fn new(network: NetemConfig) -> Self {
        Self {
            bench: Bench::new(|_| ()),
            clients: vec![],
            network,
        }
    }

    fn join(&mut self, identity: &str) -> usize {
        let now = self.bench.now.instant;
        let mut rtc = RtcConfig::new()
            .set_rtp_mode(true)
            .clear_codecs()
            .enable_opus(true, false)
            .build(now);
        let address: SocketAddr = format!("198.51.100.{}:4000", self.clients.len() + 1)
            .parse()
            .unwrap();
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
        let mut admission = Bench::admission(identity, |_| ());
        admission.route = Route::OneConnection;
        admission.offer = Some(super::offer(&offer.to_sdp_string(), 1));
        let connection = self.bench.connect(admission);
        let seed = self.clients.len() as u64;
        self.clients.push(Client {
            connection,
            rtc,
            address,
            pending: Some(pending),
            read: 0,
            slots,
            tracks: HashMap::new(),
            channels: HashMap::new(),
            heard: vec![],
            messages: vec![],
            sent: 0,
            up: Netem::new(self.network.seed(seed * 2)),
            down: Netem::new(self.network.seed(seed * 2 + 1)),
        });
        self.clients.len() - 1
    }

    fn publish(&mut self, who: usize, cid: &str) -> Mid {
        let connection = self.clients[who].connection;
        let track = proto::AddTrackRequest {
            cid: cid.to_owned(),
            source: proto::TrackSource::Microphone as i32,
            ..Default::default()
        };
        self.bench.ask(connection, Request::AddTrack(track));
        let client = &mut self.clients[who];
        let mut api = client.rtc.sdp_api();
        let mid = api.add_media(
            MediaKind::Audio,
            Direction::SendOnly,
            Some("s".to_owned()),
            Some(cid.to_owned()),
            None,
        );
        let (offer, pending) = api.apply().unwrap();
        client.pending = Some(pending);
        self.bench.ask(
            connection,
            Request::Offer(super::offer(&offer.to_sdp_string(), 2)),
        );
        mid
    }

    /// Lets time pass; every 20 ms the speakers say something.
    fn run(&mut self, time: Duration, speakers: &[(usize, Mid)]) {
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
            for who in 0..self.clients.len() {
                self.follow(who);
                self.exchange(who);
            }
        }
    }

    fn speak(&mut self, who: usize, mid: Mid) {
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

    /// Does what the server asks for.
    fn follow(&mut self, who: usize) {
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
                    client.tracks.extend(answer.mid_to_track_id.clone());
                    let sdp = SdpAnswer::from_sdp_string(&answer.sdp).unwrap();
                    if let Some(pending) = client.pending.take() {
                        client.rtc.sdp_api().accept_answer(pending, sdp).unwrap();
                    }
                }
                Message::MediaSectionsRequirement(need) => {
                    let mut api = client.rtc.sdp_api();
                    for mid in &client.slots {
                        api.set_direction(*mid, Direction::RecvOnly);
                    }
                    for _ in 0..need.num_audios {
                        client.slots.push(api.add_media(
                            MediaKind::Audio,
                            Direction::RecvOnly,
                            None,
                            None,
                            None,
                        ));
                    }
                    if let Some((offer, pending)) = api.apply() {
                        client.pending = Some(pending);
                        let connection = client.connection;
                        self.bench.ask(
                            connection,
                            Request::Offer(super::offer(&offer.to_sdp_string(), 3)),
                        );
                    }
                }
                _ => {}
            }
        }
    }

    /// Moves datagrams both ways through the network.
    fn exchange(&mut self, who: usize) {
        let now = self.bench.now.instant;
        let server = Bench::world_address();
        let client = &mut self.clients[who];
        let (mine, others) = std::mem::take(&mut self.bench.datagrams)
            .into_iter()
            .partition::<Vec<_>, _>(|sent| sent.destination == client.address);
        self.bench.datagrams = others;
        for sent in mine {
            client
                .down
                .handle_input(netem::Input::Packet(now, sent.contents.to_vec()));
        }
        client.down.handle_input(netem::Input::Timeout(now));
        while let Some(netem::Output::Packet(bytes)) = client.down.poll_output() {
            let received = Receive::new(Protocol::Udp, server, client.address, &bytes).unwrap();
            client
                .rtc
                .handle_input(Input::Receive(now, received))
                .unwrap();
            client.poll(now);
        }
        client.rtc.handle_input(Input::Timeout(now)).unwrap();
        client.poll(now);
        client.up.handle_input(netem::Input::Timeout(now));
        while let Some(netem::Output::Packet(bytes)) = client.up.poll_output() {
            self.bench
                .world
                .datagram(client.address, server, &bytes, self.bench.now);
        }
        self.bench.collect();
    }

    fn send(&mut self, who: usize, channel: &str, packet: &proto::DataPacket) {
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
    fn poll(&mut self, now: Instant) {
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

    /// What was heard of somebody, by number, in the order of arrival.
    fn heard_of(&self, who: usize) -> Vec<u64> {
        let said = self
            .heard
            .iter()
            .filter_map(|(_, packet)| std::str::from_utf8(&packet.payload).ok());
        said.filter_map(|text| text.strip_prefix(&format!("{who} says "))?.parse().ok())
            .collect()
    }
}

fn reliable(sequence: u32) -> proto::DataPacket {
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

fn bad_network() -> NetemConfig {
    NetemConfig::new()
        .latency(Duration::from_millis(40))
        .jitter(Duration::from_millis(15))
        .loss(RandomLoss::new(Probability::new(0.05)))
        .reorder_gap(20)
}

#[test]
fn everybody_hears_everybody_and_nobody_itself() {
    let mut stage = Stage::new(NetemConfig::new());
    let all: Vec<usize> = ["a", "b", "c"]
        .into_iter()
        .map(|name| stage.join(name))
        .collect();
    stage.run(Duration::from_secs(1), &[]);
    let mut speakers = vec![];
    for who in &all {
        speakers.push((*who, stage.publish(*who, &format!("cid{who}"))));
        // A client has one offer out at a time.
        stage.run(Duration::from_secs(1), &[]);
    }
    stage.run(Duration::from_secs(2), &speakers);
    for listener in &all {
        for speaker in &all {
            let heard = stage.clients[*listener].heard_of(*speaker);
            let expected: Vec<u64> = if listener == speaker {
                vec![]
            } else {
                (1..=heard.len() as u64).collect()
            };
            assert_eq!(heard, expected);
            assert!(listener == speaker || heard.len() >= 98, "{}", heard.len());
        }
    }
    let speaks = |message: &Message| matches!(message, Message::SpeakersChanged(told) if told.speakers.iter().any(|s| s.active));
    assert!(
        stage
            .bench
            .told(stage.clients[0].connection)
            .iter()
            .any(speaks)
    );
}

#[test]
fn a_bad_network_costs_packets_and_not_the_stream() {
    let mut stage = Stage::new(bad_network());
    let (a, b) = (stage.join("a"), stage.join("b"));
    stage.run(Duration::from_secs(5), &[]);
    let mid = stage.publish(a, "cid");
    stage.run(Duration::from_secs(2), &[]);
    stage.run(Duration::from_secs(20), &[(a, mid)]);
    let heard = stage.clients[b].heard_of(a);
    assert!(
        (820..1_000).contains(&heard.len()),
        "{} of 1000 through two links of 5 % loss",
        heard.len()
    );
    // What the listener gets is numbered as what the speaker sent: losses stay gaps of the same size.
    let numbers: Vec<(u64, u64)> = stage.clients[b]
        .heard
        .iter()
        .map(|(_, p)| *p.seq_no)
        .zip(heard.iter().copied())
        .collect();
    let shift = numbers[0].0 - numbers[0].1;
    assert!(
        numbers
            .iter()
            .all(|(sequence, said)| sequence - said == shift)
    );
}

#[test]
fn reliable_messages_arrive_in_order_signed_and_once() {
    let mut stage = Stage::new(bad_network());
    let (a, b) = (stage.join("a"), stage.join("b"));
    stage.run(Duration::from_secs(6), &[]);
    for sequence in [1, 2, 2, 3, 1, 4] {
        stage.send(a, "_reliable", &reliable(sequence));
    }
    stage.run(Duration::from_secs(6), &[]);
    let got: Vec<u32> = stage.clients[b]
        .messages
        .iter()
        .map(|packet| packet.sequence)
        .collect();
    assert_eq!(got, [1, 2, 3, 4]);
    assert!(
        stage.clients[b]
            .messages
            .iter()
            .all(|packet| packet.participant_identity == "a"
                && packet.participant_sid.starts_with("PA_")
                && packet.participant_sid != "PA_liar")
    );
    assert!(stage.clients[a].messages.is_empty());
}

#[test]
fn a_resume_repeats_no_message_that_is_on_its_way() {
    let mut stage = Stage::new(bad_network());
    let (a, b) = (stage.join("a"), stage.join("b"));
    stage.run(Duration::from_secs(6), &[]);
    for sequence in 1..=4 {
        stage.send(a, "_reliable", &reliable(sequence));
    }
    stage.run(Duration::from_millis(50), &[]);
    let join = stage.bench.join_response(stage.clients[b].connection);
    let of_a = join.other_participants[0].sid.clone();
    let mut again = Bench::admission("b", |_| ());
    again.resume = join.participant.as_ref().map(|b| b.sid.clone());
    let resumed = stage.bench.connect(again);
    // What the client says of itself is old when it arrives.
    let behind = proto::DataChannelReceiveState {
        publisher_sid: of_a,
        last_seq: 1,
    };
    let state = proto::SyncState {
        datachannel_receive_states: vec![behind],
        ..Default::default()
    };
    stage.bench.ask(resumed, Request::SyncState(state));
    stage.send(a, "_reliable", &reliable(5));
    stage.run(Duration::from_secs(6), &[]);
    let got = stage.clients[b].messages.iter();
    let got: Vec<u32> = got.map(|packet| packet.sequence).collect();
    assert_eq!(got, [1, 2, 3, 4, 5]);
}

#[test]
fn a_message_goes_to_those_it_names() {
    let mut stage = Stage::new(NetemConfig::new());
    let (a, b, c) = (stage.join("a"), stage.join("b"), stage.join("c"));
    stage.run(Duration::from_secs(1), &[]);
    stage.send(
        a,
        "_lossy",
        &proto::DataPacket {
            destination_identities: vec!["c".into()],
            ..reliable(0)
        },
    );
    stage.run(Duration::from_secs(1), &[]);
    assert_eq!(
        (
            stage.clients[b].messages.len(),
            stage.clients[c].messages.len()
        ),
        (0, 1)
    );
}

#[test]
fn a_slot_that_is_used_again_sends_under_another_ssrc() {
    let mut stage = Stage::new(NetemConfig::new());
    let (a, b) = (stage.join("a"), stage.join("b"));
    stage.run(Duration::from_secs(1), &[]);
    let mid = stage.publish(a, "cid");
    stage.run(Duration::from_secs(1), &[(a, mid)]);
    let track = stage.clients[b].tracks.values().next().unwrap().clone();
    let connection = stage.clients[b].connection;
    for subscribe in [false, true] {
        let wish = proto::UpdateSubscription {
            track_sids: vec![track.clone()],
            subscribe,
            ..Default::default()
        };
        stage.bench.ask(connection, Request::Subscription(wish));
        stage.run(Duration::from_secs(1), &[(a, mid)]);
    }
    let mut ssrcs: Vec<(Mid, u32)> = stage.clients[b]
        .heard
        .iter()
        .map(|(mid, packet)| (*mid, *packet.header.ssrc))
        .collect();
    ssrcs.dedup();
    assert_eq!(ssrcs.len(), 2, "{ssrcs:?}");
    assert_ne!(ssrcs[0].1, ssrcs[1].1);
}

#[test]
fn lost_media_asks_for_a_resume_and_ends_after_the_grace() {
    let mut stage = Stage::new(NetemConfig::new());
    let (a, b) = (stage.join("a"), stage.join("b"));
    stage.run(Duration::from_secs(2), &[]);
    stage.clients[b].up =
        Netem::new(NetemConfig::new().loss(RandomLoss::new(Probability::new(1.0))));
    let ping = |stage: &mut Stage| {
        for who in [a, b] {
            let connection = stage.clients[who].connection;
            stage.bench.ask(connection, Request::Ping(1));
        }
    };
    for _ in 0..3 {
        stage.run(Duration::from_secs(6), &[]);
        ping(&mut stage);
    }
    let resume = (
        proto::leave_request::Action::Resume,
        proto::DisconnectReason::ConnectionTimeout,
    );
    assert_eq!(
        stage.bench.leave_of(stage.clients[b].connection),
        Some(resume)
    );
    stage.run(Duration::from_secs(6), &[]);
    assert!(stage.bench.world.get_participant("kitchen", "b").is_err());
    assert!(stage.bench.world.get_participant("kitchen", "a").is_ok());
}

#[test]
fn coming_and_going_leaves_nothing_behind() {
    let mut stage = Stage::new(NetemConfig::new());
    let a = stage.join("a");
    stage.run(Duration::from_secs(1), &[]);
    let mid = stage.publish(a, "cid");
    stage.run(Duration::from_millis(500), &[(a, mid)]);
    for _ in 0..12 {
        let guest = stage.join("guest");
        stage.run(Duration::from_secs(1), &[]);
        let theirs = stage.publish(guest, "guest");
        stage.run(Duration::from_secs(1), &[(a, mid), (guest, theirs)]);
        assert!(stage.clients[guest].heard_of(a).len() > 40);
        assert!(
            stage.clients[a].heard_of(guest).len() > 20,
            "{}",
            stage.clients[a].heard_of(guest).len()
        );
        let connection = stage.clients[guest].connection;
        stage
            .bench
            .ask(connection, Request::Leave(proto::LeaveRequest::default()));
        let connection = stage.clients[a].connection;
        stage.bench.ask(connection, Request::Ping(1));
        stage.run(Duration::from_millis(500), &[(a, mid)]);
    }
    assert!(stage.clients[a].slots.len() <= 4, "slots are used again");
    assert_eq!(stage.bench.world.held(), (1, 1, 1, 1));
}
