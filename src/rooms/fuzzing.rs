//! Fuzz targets of this crate that need no server: the bounds checked on what clients send before it is decoded.

use std::net::SocketAddr;
use std::sync::Arc;

use livekit_protocol as proto;
use prost::Message as _;

use super::Now;
use super::dispatch::{Dispatcher, WorkerCredentials, WorkerId};
use super::shapes::Shaped as _;
use super::token::{Claims, Keys};
use super::{admission, offers, token, turn, wire};
use vivavoce_auth::{Owner, Principal};
use vivavoce_core::fuzzing::{Target, binary, text};
use vivavoce_quotas::{Party, Share};

/// The targets.
pub const TARGETS: [Target; 7] = [
    text("room_description", description, descriptions),
    binary("room_signal", signal, signals),
    binary("room_join_request", join_request, join_requests),
    binary("room_data_packet", data_packet, data_packets),
    text("room_token", room_token, room_tokens),
    binary("agent_worker_message", worker_message, worker_messages),
    binary("turn_message", turn_message, turn_messages),
];

/// Messages, each after its length, of a client that has an allocation from the first one on that is right.
fn turn_message(mut input: &[u8]) {
    let media = vec![SocketAddr::from(([192, 0, 2, 1], 7_882))];
    let credentials = turn::Credentials::of_secret("secret");
    let policy = Arc::new(turn::Policy::new("vivavoce".to_owned(), credentials, media));
    let mut allocations = turn::Allocations::of_socket(policy);
    let client = SocketAddr::from(([198, 51, 100, 7], 4_000));
    let now = Now::read();
    while let Some((length, rest)) = input.split_first() {
        let (bytes, rest) = rest.split_at(rest.len().min((*length).into()));
        input = rest;
        let outcome = allocations.receive(client, bytes, now);
        assert!(outcome.datagram.is_none(), "nobody has proven who he is");
    }
}

fn turn_messages() -> Vec<Vec<u8>> {
    // Binding; Allocate for UDP; data on a channel.
    let binding = [&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42][..], &[7; 12]].concat();
    let transport = [0, 0x19, 0, 4, 17, 0, 0, 0];
    let allocate = [
        &[0, 3, 0, 8, 0x21, 0x12, 0xa4, 0x42][..],
        &[8; 12],
        &transport,
    ]
    .concat();
    let channel = vec![0x40, 0, 0, 2, 1, 2];
    let stream = [binding, allocate, channel]
        .into_iter()
        .flat_map(|message| {
            let length = u8::try_from(message.len()).unwrap_or(u8::MAX);
            [vec![length], message].concat()
        });
    vec![stream.collect()]
}

fn description(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Ok(reduced) = offers::reduce(&text) {
        assert!(!reduced.text.contains("\na=candidate"), "{}", reduced.text);
        let _again = offers::reduce(&reduced.text);
    }
}

fn descriptions() -> Vec<Vec<u8>> {
    let audio = "v=0\r\no=- 1 2 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0 1\r\nm=audio 9 UDP/TLS/RTP/SAVPF 111 63\r\n\
        c=IN IP4 0.0.0.0\r\na=ice-ufrag:abcd\r\na=ice-pwd:abcdefghijklmnopqrstuvwx\r\na=setup:actpass\r\na=mid:0\r\na=sendonly\r\n\
        a=rtcp-mux\r\na=rtpmap:111 opus/48000/2\r\na=fmtp:111 minptime=10;useinbandfec=1\r\na=rtpmap:63 red/48000/2\r\n\
        a=candidate:1 1 udp 1 192.0.2.1 9 typ host\r\na=ssrc:7 cname:x\r\n\
        m=video 9 UDP/TLS/RTP/SAVPF 96 97\r\na=mid:1\r\na=recvonly\r\na=rtpmap:96 VP8/90000\r\na=rtpmap:97 rtx/90000\r\na=fmtp:97 apt=96\r\n";
    vec![audio.as_bytes().to_vec()]
}

fn signal(input: &[u8]) {
    let _read = proto::SignalRequest::read(input);
    let _json = wire::check_json(input);
}

/// A stream of messages, each after its length, to a server with a room that has a worker's agent.
fn worker_message(mut input: &[u8]) {
    let now = Now::read();
    let keys = Keys::new([("key", "secret")]);
    let mut dispatcher = Dispatcher::new(keys, proto::ServerInfo::default(), Share::default(), 1);
    let worker = WorkerId(1);
    let credentials = WorkerCredentials {
        principal: Principal::Operator,
        party: Party::Operator,
        api_key: "key".to_owned(),
    };
    let _place = dispatcher.connected(worker, credentials, now);
    let room = proto::Room {
        name: "kitchen".to_owned(),
        ..Default::default()
    };
    dispatcher.room_created("kitchen", Owner::Nobody, Vec::new(), now);
    dispatcher.open_room(&room, now);
    while let Some((length, rest)) = input.split_first() {
        let (bytes, rest) = rest.split_at(rest.len().min((*length).into()));
        input = rest;
        if let Ok(message) = proto::WorkerMessage::read(bytes) {
            if let Some(kind) = dispatcher.said(worker, message, now) {
                dispatcher.launch(&room, kind, None, None, now);
            }
            let _told = dispatcher.take_outputs();
        }
    }
    dispatcher.gone(worker, now);
    dispatcher.room_finished("kitchen", now);
}

fn worker_messages() -> Vec<Vec<u8>> {
    use proto::worker_message::Message;
    let register = proto::RegisterWorkerRequest {
        version: "1".to_owned(),
        allowed_permissions: Some(proto::ParticipantPermission::default()),
        ..Default::default()
    };
    let answer = proto::AvailabilityResponse {
        job_id: "AJ_1".to_owned(),
        available: true,
        participant_attributes: [("a".to_owned(), "b".to_owned())].into(),
        ..Default::default()
    };
    let messages = [
        Message::Register(register),
        Message::UpdateWorker(proto::UpdateWorkerStatus {
            status: Some(1),
            load: 0.5,
            ..Default::default()
        }),
        Message::Availability(answer),
        Message::MigrateJob(proto::MigrateJobRequest {
            job_ids: vec!["AJ_1".to_owned()],
        }),
    ];
    let stream = messages.into_iter().flat_map(|message| {
        let message = Some(message);
        let bytes = proto::WorkerMessage { message }.encode_to_vec();
        [vec![u8::try_from(bytes.len()).unwrap_or(u8::MAX)], bytes].concat()
    });
    vec![stream.collect()]
}

fn signals() -> Vec<Vec<u8>> {
    use proto::signal_request::Message;
    let metadata = proto::UpdateParticipantMetadata {
        metadata: "m".to_owned(),
        attributes: [("a".to_owned(), "b".to_owned())].into(),
        ..Default::default()
    };
    let track = proto::AddTrackRequest {
        cid: "mine".to_owned(),
        layers: vec![proto::VideoLayer::default(); 3],
        ..Default::default()
    };
    [
        Message::UpdateMetadata(metadata),
        Message::AddTrack(track),
        Message::Ping(1),
    ]
    .map(|message| {
        let message = Some(message);
        proto::SignalRequest { message }.encode_to_vec()
    })
    .to_vec()
}

fn join_request(input: &[u8]) {
    let _read = admission::decode_join_request(input);
}

fn join_requests() -> Vec<Vec<u8>> {
    let request = proto::JoinRequest {
        metadata: "m".to_owned(),
        participant_attributes: [("a".to_owned(), "b".to_owned())].into(),
        add_track_requests: vec![proto::AddTrackRequest::default()],
        ..Default::default()
    };
    let wrapped = proto::WrappedJoinRequest {
        join_request: request.encode_to_vec(),
        ..Default::default()
    };
    vec![wrapped.encode_to_vec()]
}

fn data_packet(input: &[u8]) {
    let _read = proto::DataPacket::read(input);
}

fn data_packets() -> Vec<Vec<u8>> {
    let user = proto::UserPacket {
        payload: b"hello".to_vec(),
        topic: Some("t".to_owned()),
        ..Default::default()
    };
    let packet = proto::DataPacket {
        value: Some(proto::data_packet::Value::User(user)),
        destination_identities: vec!["ann".to_owned()],
        ..Default::default()
    };
    vec![packet.encode_to_vec()]
}

fn keys() -> Keys {
    Keys::new([("key", "a secret of at least thirty-two bytes")])
}

fn room_token(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let _claims = token::verify(&text, &keys(), 1_000);
}

fn room_tokens() -> Vec<Vec<u8>> {
    let claims = Claims {
        iss: "key".to_owned(),
        ..Claims::default()
    };
    token::mint(&claims, &keys())
        .into_iter()
        .map(String::into_bytes)
        .collect()
}
