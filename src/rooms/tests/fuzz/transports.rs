//! Datagrams from the address of a connected client, and encrypted packets of a connected client.

use std::time::Duration;

use livekit_protocol as proto;
use prost::Message as _;
use proto::data_packet::Value;
use str0m::channel::{ChannelConfig, Reliability};
use str0m::format::PayloadParams;
use str0m::media::Mid;
use str0m::net::Protocol;
use str0m::rtp::{ExtensionValues, RtpWrite, Ssrc};
use str0m_netem::NetemConfig;

use super::super::super::peer::Channel;
use super::super::super::sfu::MOST_ROUTES;
use super::super::Bench;
use super::super::stage::{STEP, Stage, reliable};
use super::Rounds;
use super::mutation::Mutator;

/// Alice publishes, bob subscribes, and mallory is connected like them.
struct Siege {
    stage: Stage,
    alice: usize,
    bob: usize,
    mallory: usize,
    noise: Mid,
    voice: Mid,
}

impl Siege {
    fn new() -> Self {
        let mut stage = Stage::new(NetemConfig::new());
        stage.recorded = Some(vec![]);
        let [alice, bob, mallory] = ["alice", "bob", "mallory"].map(|name| stage.join(name));
        stage.run(Duration::from_secs(1), &[]);
        let voice = stage.publish(alice, "voice");
        let noise = stage.publish(mallory, "noise");
        stage.run(Duration::from_secs(1), &[(alice, voice)]);
        Self {
            stage,
            alice,
            bob,
            mallory,
            noise,
            voice,
        }
    }

    fn pass(&mut self, time: Duration) {
        for who in [self.alice, self.bob, self.mallory] {
            let connection = self.stage.clients[who].connection;
            let ping = proto::signal_request::Message::Ping(1);
            self.stage.bench.ask(connection, ping);
        }
        self.stage.run(time, &[(self.alice, self.voice)]);
        for client in &mut self.stage.clients {
            client.heard.clear();
            client.messages.clear();
        }
        self.stage.recorded = None;
        self.stage.forget();
    }

    /// Bob hears alice as before, by audio and by message.
    fn ends_well(mut self) {
        self.pass(Duration::from_secs(1));
        self.stage
            .run(Duration::from_secs(1), &[(self.alice, self.voice)]);
        let heard = self.stage.clients[self.bob].heard_of(self.alice).len();
        assert!(heard >= 49, "{heard} of 50 packets");
        self.stage.send(self.alice, "_reliable", &reliable(1));
        self.stage.run(Duration::from_secs(1), &[]);
        let messages = &self.stage.clients[self.bob].messages;
        let from_alice = messages
            .iter()
            .filter(|message| message.participant_identity == "alice");
        assert_eq!(from_alice.count(), 1);
    }
}

#[test]
fn datagrams_that_nobody_sends_harm_nobody() {
    let mut rounds = Rounds::new("datagrams", 20_000);
    let mut siege = Siege::new();
    let samples = siege.stage.recorded.take().unwrap();
    let mut inputs = Mutator::new(rounds.seed, samples);
    let before = siege.stage.bench.sfu.held();
    let stranger = "203.0.113.9:999".parse().unwrap();
    let addresses = [siege.alice, siege.bob, siege.mallory]
        .map(|who| siege.stage.clients[who].address)
        .into_iter()
        .chain([stranger])
        .collect::<Vec<_>>();
    while rounds.go_on() {
        let input = inputs.make();
        rounds.trying(&input);
        let source = inputs.rng.choice(&addresses).copied().unwrap();
        let (to, now) = (Bench::world_address(), siege.stage.bench.now);
        siege
            .stage
            .bench
            .sfu
            .receive((Protocol::Udp, source), to, &input, now);
        siege.stage.bench.collect();
        if rounds.done.is_multiple_of(64) {
            siege.pass(STEP);
        }
    }
    let after = siege.stage.bench.sfu.held();
    assert_eq!(after.deadlines, before.deadlines);
    // A replayed connectivity check from another address is as good as the first (RFC 8445 has no replay protection).
    assert!(after.routes <= 3 * MOST_ROUTES, "{after:?}");
    siege.ends_well();
}

/// A packet with any content that a peer connection can send.
fn write_noise(siege: &mut Siege, inputs: &mut Mutator) {
    let noise = siege.noise;
    let now = siege.stage.bench.now.instant;
    let rtc = &mut siege.stage.clients[siege.mallory].rtc;
    let pts: Vec<_> = rtc
        .codec_config()
        .params()
        .iter()
        .map(PayloadParams::pt)
        .collect();
    let pt = if inputs.rng.bool() {
        pts[0]
    } else {
        (inputs.rng.u8(..) & 0x7f).into()
    };
    let ssrc: Ssrc = (inputs.rng.u32(..6) + 1).into();
    let payload = inputs.make();
    let payload = payload[..payload.len().min(1_100)].to_vec();
    let extensions = ExtensionValues {
        audio_level: inputs.rng.bool().then(|| inputs.rng.i8(-127..=0)),
        voice_activity: inputs.rng.bool().then(|| inputs.rng.bool()),
        rid: inputs.rng.bool().then(|| "q".into()),
        ..ExtensionValues::default()
    };
    let mut api = rtc.direct_api();
    if api.stream_tx(&ssrc).is_none() {
        api.declare_stream_tx(ssrc, None, noise, None);
    }
    if let Some(stream) = api.stream_tx(&ssrc) {
        let write = RtpWrite::new(
            pt,
            inputs.rng.u64(..70_000).into(),
            inputs.rng.u32(..),
            now,
            payload,
        );
        stream.write_rtp(write.marker(inputs.rng.bool()).ext_vals(extensions));
    }
}

/// Opens, writes and closes unknown channels.
fn write_channels(siege: &mut Siege, inputs: &mut Mutator) {
    let client = &mut siege.stage.clients[siege.mallory];
    let label = inputs
        .rng
        .choice(["_reliable", "_lossy", "_data_track", "", "other"]);
    match inputs.rng.u8(..12) {
        0 => {
            client.rtc.direct_api().create_data_channel(ChannelConfig {
                label: label.unwrap_or_default().to_owned(),
                ordered: inputs.rng.bool(),
                reliability: Reliability::MaxRetransmits { retransmits: 0 },
                ..ChannelConfig::default()
            });
        }
        1 => {
            let open: Vec<_> = client.channels.values().copied().collect();
            if let Some(id) = inputs
                .rng
                .choice(open)
                .filter(|_| client.channels.len() > 8)
            {
                client.rtc.direct_api().close_data_channel(id);
                client.channels.retain(|_, other| *other != id);
            }
        }
        _ => {
            let open: Vec<_> = client.channels.values().copied().collect();
            let input = inputs.make();
            if let Some(id) = inputs.rng.choice(open)
                && let Some(mut channel) = client.rtc.channel(id)
            {
                let _ = channel.write(inputs.rng.bool(), &input[..input.len().min(4_000)]);
            }
        }
    }
}

#[test]
fn a_hostile_peer_harms_only_itself() {
    let mut rounds = Rounds::new("hostile peer", 2_000);
    let mut siege = Siege::new();
    let mut inputs = Mutator::new(rounds.seed, packets());
    while rounds.go_on() {
        rounds.trying(&rounds.done.to_be_bytes());
        for _ in 0..4 {
            write_noise(&mut siege, &mut inputs);
            write_channels(&mut siege, &mut inputs);
        }
        siege.pass(STEP);
    }
    siege.ends_well();
}

fn packets() -> Vec<Vec<u8>> {
    let stream = proto::data_stream::Header {
        stream_id: "s".into(),
        topic: "chat".into(),
        total_length: Some(7),
        content_header: Some(proto::data_stream::header::ContentHeader::TextHeader(
            proto::data_stream::TextHeader::default(),
        )),
        ..Default::default()
    };
    let chunk = proto::data_stream::Chunk {
        stream_id: "s".into(),
        content: vec![1; 40],
        ..Default::default()
    };
    let call = proto::RpcRequest {
        id: "1".into(),
        method: "add".into(),
        payload: "{}".into(),
        response_timeout_ms: 1_000,
        ..Default::default()
    };
    let values = [
        Value::User(proto::UserPacket {
            payload: vec![7; 30],
            topic: Some("t".into()),
            ..Default::default()
        }),
        Value::StreamHeader(stream),
        Value::StreamChunk(chunk),
        Value::StreamTrailer(proto::data_stream::Trailer::default()),
        Value::RpcRequest(call),
        Value::SipDtmf(proto::SipDtmf {
            code: 5,
            digit: "5".into(),
        }),
        Value::Transcription(proto::Transcription {
            transcribed_participant_identity: "bob".into(),
            segments: vec![proto::TranscriptionSegment::default()],
            ..Default::default()
        }),
        Value::ChatMessage(proto::ChatMessage::default()),
        Value::Metrics(proto::MetricsBatch::default()),
    ];
    let packets = values.into_iter().enumerate().map(|(sequence, value)| {
        let packet = proto::DataPacket {
            sequence: sequence as u32,
            destination_identities: vec!["bob".into(); sequence % 2],
            value: Some(value),
            ..Default::default()
        };
        packet.encode_to_vec()
    });
    packets.collect()
}

#[test]
fn data_packets_survive_what_no_client_sends() {
    let mut rounds = Rounds::new("data", 4_000);
    let mut siege = Siege::new();
    let mut inputs = Mutator::new(rounds.seed, packets());
    let mallory = siege.stage.bench.key_of("mallory");
    let sid = siege
        .stage
        .bench
        .sfu
        .get_participant("kitchen", "mallory")
        .unwrap()
        .sid;
    let mut arrived = 0;
    while rounds.go_on() {
        let input = inputs.make();
        rounds.trying(&input);
        let channels = [Channel::Reliable, Channel::Lossy, Channel::Other];
        let channel = inputs.rng.choice(channels).unwrap();
        let now = siege.stage.bench.now;
        siege.stage.bench.sfu.message(mallory, channel, &input, now);
        siege.stage.bench.collect();
        if rounds.done.is_multiple_of(32) {
            siege.stage.run(STEP, &[]);
            for message in &siege.stage.clients[siege.bob].messages {
                arrived += 1;
                assert_eq!(message.participant_sid, sid, "nobody speaks as another");
                assert_eq!(message.participant_identity, "mallory");
            }
            siege.pass(STEP);
        }
    }
    assert!(arrived > 0);
    siege.ends_well();
}
