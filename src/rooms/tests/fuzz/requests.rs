//! Requests: signalling messages, joins, descriptions and server API calls.

use std::io::Write as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use livekit_protocol as proto;
use prost::Message as _;
use proto::signal_request::Message as Request;
use proto::signal_response::Message;
use serde_json::{Value, json};

use super::super::super::participant::Side;
use super::super::super::shapes::Shaped as _;
use super::super::super::{
    Admission, ConnectionId, ParticipantChange, RoomMessage, Route, admission, limits, offers,
    token, wire,
};
use super::super::held::Held;
use super::super::{BROWSER_JOIN, BROWSER_PUBLISH, Bench, offer};
use super::Rounds;
use super::mutation::Mutator;

const OFFERS: [&str; 12] = [
    BROWSER_JOIN,
    BROWSER_PUBLISH,
    include_str!("../../testdata/offers/browser-unpublish.sdp"),
    include_str!("../../testdata/offers/browser-again.sdp"),
    include_str!("../../testdata/offers/node-join.sdp"),
    include_str!("../../testdata/offers/node-publish.sdp"),
    include_str!("../../testdata/offers/node-unpublish.sdp"),
    include_str!("../../testdata/offers/node-again.sdp"),
    include_str!("../../testdata/offers/python-join.sdp"),
    include_str!("../../testdata/offers/python-publish.sdp"),
    include_str!("../../testdata/offers/python-unpublish.sdp"),
    include_str!("../../testdata/offers/python-again.sdp"),
];

/// A room with bob, who behaves, and attackers.
struct Siege {
    bench: Bench,
    bob: ConnectionId,
    before: Held,
    attackers: Vec<Option<ConnectionId>>,
}

impl Siege {
    fn new(attackers: usize) -> Self {
        let mut bench = Bench::new(|_| ());
        let bob = bench.join("bob");
        bench.publish(bob);
        // Pretends that his media is connected; otherwise he would be removed after a minute.
        let (key, now) = (bench.key_of("bob"), bench.now);
        bench.sfu.media_connected(key, Side::Publisher, now);
        Self {
            before: bench.sfu.held(),
            bench,
            bob,
            attackers: vec![None; attackers],
        }
    }

    /// The connection of an attacker, which reconnects if it was closed.
    fn attacker(&mut self, which: usize, route: Route, first: Option<&str>) -> ConnectionId {
        if let Some(connection) = self.attackers[which]
            && self.bench.sfu.connections.contains_key(&connection)
        {
            return connection;
        }
        let mut admission = Bench::admission(&format!("mallory{which}"), |claims| {
            claims.video.can_update_own_metadata = Some(true);
        });
        admission.route = route;
        admission.offer = first.map(|sdp| offer(sdp, 1));
        let connection = self.bench.connect(admission);
        self.attackers[which] = Some(connection);
        connection
    }

    /// Advances the time, in which bob sends pings, and drops all messages.
    fn pass(&mut self, time: Duration) {
        self.bench.ask(self.bob, Request::Ping(1));
        self.bench.pass(time);
        self.bench.forget();
        self.bench.closed.clear();
        self.bench.events.clear();
        self.bench.datagrams.clear();
    }

    /// Everyone else leaves; bob is served and nothing is left.
    fn ends_well(mut self) {
        for connection in self.attackers.iter().flatten() {
            self.bench.sfu.disconnected(*connection, self.bench.now);
        }
        // Longer than anyone may take to join.
        for _ in 0..8 {
            self.pass(Duration::from_secs(10));
        }
        self.bench.ask(self.bob, Request::Ping(1));
        assert!(matches!(
            self.bench.told(self.bob).last(),
            Some(Message::Pong(_))
        ));
        assert_eq!(self.bench.sfu.held(), self.before);
    }
}

fn encoded(request: Request) -> Vec<u8> {
    let message = Some(request);
    proto::SignalRequest { message }.encode_to_vec()
}

#[allow(deprecated)] // old clients send these
fn requests() -> Vec<Vec<u8>> {
    use proto::simulate_scenario::Scenario;
    let names = || vec!["TR_AMabcdefghijk".to_owned(), "TR_VC2".to_owned()];
    let track = proto::TrackInfo {
        sid: "TR_AMabcdefghijk".into(),
        ..Default::default()
    };
    let mut all = vec![
        Request::Offer(offer(BROWSER_PUBLISH, 2)),
        Request::Answer(proto::SessionDescription {
            r#type: "answer".into(),
            ..offer(BROWSER_JOIN, 3)
        }),
        Request::Trickle(proto::TrickleRequest {
            candidate_init: "{\"candidate\":\"candidate:1 1 UDP 1 192.0.2.9 4000 typ host\"}"
                .into(),
            target: 1,
            r#final: true,
        }),
        Request::AddTrack(proto::AddTrackRequest {
            cid: "mine".into(),
            source: 2,
            layers: vec![proto::VideoLayer::default(); 3],
            simulcast_codecs: vec![proto::SimulcastCodec::default()],
            audio_features: vec![1, 2],
            ..Default::default()
        }),
        Request::Mute(proto::MuteTrackRequest {
            sid: "TR_AMabcdefghijk".into(),
            muted: true,
        }),
        Request::Subscription(proto::UpdateSubscription {
            track_sids: names(),
            subscribe: true,
            participant_tracks: vec![proto::ParticipantTracks {
                participant_sid: "PA_x".into(),
                track_sids: names(),
            }],
        }),
        Request::TrackSetting(proto::UpdateTrackSettings {
            track_sids: names(),
            disabled: true,
            ..Default::default()
        }),
        Request::UpdateLayers(proto::UpdateVideoLayers {
            track_sid: "TR_VC2".into(),
            layers: vec![proto::VideoLayer::default()],
        }),
        Request::SubscriptionPermission(proto::SubscriptionPermission {
            all_participants: false,
            track_permissions: vec![proto::TrackPermission {
                participant_identity: "bob".into(),
                track_sids: names(),
                ..Default::default()
            }],
        }),
        Request::SyncState(proto::SyncState {
            answer: Some(offer(BROWSER_JOIN, 1)),
            subscription: Some(proto::UpdateSubscription::default()),
            publish_tracks: vec![proto::TrackPublishedResponse {
                cid: "mine".into(),
                track: Some(track),
            }],
            datachannel_receive_states: vec![proto::DataChannelReceiveState {
                publisher_sid: "PA_x".into(),
                last_seq: 7,
            }],
            ..Default::default()
        }),
        Request::UpdateMetadata(proto::UpdateParticipantMetadata {
            metadata: "{\"mood\": 1}".into(),
            name: "Mallory".into(),
            attributes: [("a".to_owned(), "b".to_owned())].into(),
            request_id: 4,
        }),
        Request::Ping(1),
        Request::PingReq(proto::Ping {
            timestamp: 1,
            rtt: 2,
        }),
        Request::Leave(proto::LeaveRequest::default()),
        Request::UpdateAudioTrack(proto::UpdateLocalAudioTrack::default()),
        Request::UpdateVideoTrack(proto::UpdateLocalVideoTrack::default()),
    ];
    let scenarios = [
        Scenario::SpeakerUpdate(3),
        Scenario::NodeFailure(true),
        Scenario::Migration(true),
        Scenario::ServerLeave(true),
        Scenario::DisconnectSignalOnResume(true),
        Scenario::DisconnectSignalOnResumeNoMessages(true),
        Scenario::LeaveRequestFullReconnect(true),
    ];
    all.extend(scenarios.map(|scenario| {
        let scenario = Some(scenario);
        Request::Simulate(proto::SimulateScenario { scenario })
    }));
    all.into_iter().map(encoded).collect()
}

#[test]
fn signalling_survives_what_no_client_sends() {
    let mut rounds = Rounds::new("signalling", 3_000);
    let mut inputs = Mutator::new(rounds.seed, requests());
    let mut siege = Siege::new(4);
    while rounds.go_on() {
        let which = inputs.rng.usize(..4);
        let route = [Route::OneConnection, Route::TwoConnections][which % 2];
        let first = (route == Route::OneConnection).then_some(BROWSER_JOIN);
        let connection = siege.attacker(which, route, first);
        let input = inputs.make();
        rounds.trying(&input);
        let now = siege.bench.now;
        siege.bench.sfu.signal(connection, &input.into(), now);
        siege.bench.collect();
        if rounds.done.is_multiple_of(16) {
            siege.pass(Duration::from_millis(inputs.rng.u64(1..3_000)));
        }
    }
    siege.ends_well();
}

#[test]
fn descriptions_survive_what_no_client_sends() {
    let mut rounds = Rounds::new("descriptions", 500);
    let samples = OFFERS.map(|sdp| offer(sdp, 1).sdp.into_bytes());
    let mut inputs = Mutator::new(rounds.seed, samples.to_vec());
    let mut siege = Siege::new(4);
    let (mut accepted, mut refused) = (0, 0);
    let outcome = |message: &Message| match message {
        Message::Answer(_) => Some(true),
        Message::Leave(_) => Some(false),
        _ => None,
    };
    while rounds.go_on() {
        let which = inputs.rng.usize(..4);
        let route = [Route::OneConnection, Route::TwoConnections][which % 2];
        let connection = siege.attacker(which, route, None);
        let sdp = inputs.make_text();
        rounds.trying(sdp.as_bytes());
        let description = proto::SessionDescription {
            r#type: "offer".into(),
            sdp,
            id: rounds.done as u32,
            ..Default::default()
        };
        let track = proto::AddTrackRequest {
            cid: format!("c{}", rounds.done),
            r#type: inputs.rng.i32(0..2),
            source: 2,
            ..Default::default()
        };
        siege.bench.ask(connection, Request::AddTrack(track));
        let request = if route == Route::TwoConnections && inputs.rng.bool() {
            Request::Answer(description)
        } else {
            Request::Offer(description)
        };
        siege.bench.ask(connection, request);
        match siege.bench.told(connection).iter().rev().find_map(outcome) {
            Some(true) => accepted += 1,
            _ => refused += 1,
        }
        if inputs.rng.u8(..4) == 0 {
            siege.bench.sfu.disconnected(connection, siege.bench.now);
            siege.pass(Duration::from_millis(inputs.rng.u64(1..300)));
        }
    }
    println!("{accepted} accepted, {refused} refused");
    assert!(accepted > 0 && refused > 0);
    siege.ends_well();
}

/// A reduced description is within bounds, and reducing it again changes nothing.
#[test]
fn looking_descriptions_through_survives_what_no_client_sends() {
    let mut rounds = Rounds::new("reductions", 3_000);
    let samples = OFFERS.map(|sdp| offer(sdp, 1).sdp.into_bytes());
    let mut inputs = Mutator::new(rounds.seed, samples.to_vec());
    let (mut kept, mut refused) = (0, 0);
    while rounds.go_on() {
        let sdp = inputs.make_text();
        rounds.trying(sdp.as_bytes());
        let Ok(reduced) = offers::reduce(&sdp) else {
            refused += 1;
            continue;
        };
        kept += 1;
        assert!(reduced.text.len() <= 2 * limits::DESCRIPTION_BYTES);
        assert!(reduced.text.lines().count() <= limits::DESCRIPTION_LINES);
        assert!(!reduced.text.contains("\na=candidate"));
        let again = offers::reduce(&reduced.text).unwrap();
        assert_eq!(again.text, reduced.text);
        assert_eq!(again.payload_types, reduced.payload_types);
    }
    assert!(kept > 0 && refused > 0, "{kept} kept, {refused} refused");
}

/// What passes the check before decoding decodes to about as much as it was.
#[test]
fn looking_messages_through_survives_what_no_client_sends() {
    let mut rounds = Rounds::new("shapes", 5_000);
    let samples = [requests(), join_requests()].concat();
    let mut inputs = Mutator::new(rounds.seed, samples);
    let (mut passed, mut refused) = (0, 0);
    while rounds.go_on() {
        let bytes = inputs.make();
        rounds.trying(&bytes);
        let read = [
            proto::SignalRequest::read(&bytes).is_ok(),
            proto::JoinRequest::read(&bytes).is_ok(),
            proto::DataPacket::read(&bytes).is_ok(),
            proto::SignalResponse::read(&bytes).is_ok(),
            wire::check_json(&bytes).is_ok(),
        ];
        let read = read.iter().filter(|read| **read).count();
        passed += read;
        refused += 5 - read;
    }
    assert!(passed > 0 && refused > 0);
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn join_requests() -> Vec<Vec<u8>> {
    let first = proto::JoinRequest {
        client_info: Some(proto::ClientInfo {
            sdk: 1,
            protocol: 17,
            capabilities: vec![1, 2],
            ..Default::default()
        }),
        connection_settings: Some(proto::ConnectionSettings {
            auto_subscribe: true,
            ..Default::default()
        }),
        metadata: "m".into(),
        participant_attributes: [("a".to_owned(), "b".to_owned())].into(),
        add_track_requests: vec![proto::AddTrackRequest {
            cid: "mine".into(),
            source: 2,
            ..Default::default()
        }],
        publisher_offer: Some(offer(BROWSER_PUBLISH, 1)),
        ..Default::default()
    };
    let resumed = proto::JoinRequest {
        reconnect: true,
        participant_sid: "PA_x".into(),
        sync_state: Some(proto::SyncState::default()),
        publisher_offer: None,
        ..first.clone()
    };
    vec![first.encode_to_vec(), resumed.encode_to_vec()]
}

#[test]
fn joining_survives_what_no_client_sends() {
    let mut rounds = Rounds::new("joins", 1_500);
    let mut inner = Mutator::new(rounds.seed, join_requests());
    let mut siege = Siege::new(4);
    let keys = siege.bench.sfu.settings.keys.clone();
    let bearer = |claims: &token::Claims| format!("Bearer {}", token::mint(claims, &keys).unwrap());
    while rounds.go_on() {
        let which = inner.rng.usize(..4);
        let claims = Bench::admission(&format!("mallory{which}"), |claims| {
            claims.video.can_update_own_metadata = Some(true);
        })
        .claims;
        let compression = inner.rng.i32(0..2);
        let request = inner.make();
        let join_request = if compression == 1 {
            gzipped(&request)
        } else {
            request
        };
        let wrapped = proto::WrappedJoinRequest {
            compression,
            join_request,
        };
        // Sometimes the wrapping is mutated, too.
        let mut wrapped = wrapped.encode_to_vec();
        if inner.rng.u8(..3) == 0 {
            let seed = inner.rng.u64(..);
            wrapped = Mutator::new(seed, vec![wrapped]).make();
        }
        rounds.trying(&wrapped);
        let query = format!("join_request={}", URL_SAFE.encode(&wrapped));
        let bearer = bearer(&claims);
        let admitted = admission::admit(
            Route::OneConnection,
            &query,
            Some(&bearer),
            &keys,
            1_800_000_000,
        );
        if let Ok(admission) = admitted {
            let connection = siege.bench.connect(admission);
            siege.attackers[which] = Some(connection);
            if inner.rng.bool() {
                siege.bench.sfu.disconnected(connection, siege.bench.now);
            }
        }
        if rounds.done.is_multiple_of(16) {
            siege.pass(Duration::from_millis(inner.rng.u64(1..3_000)));
        }
    }
    siege.ends_well();
}

#[test]
fn queries_and_tokens_survive_what_no_client_sends() {
    let mut rounds = Rounds::new("queries", 5_000);
    let keys = super::super::Keys::new([("key", "secret")]);
    let claims = Bench::admission("alice", |_| ()).claims;
    let token = token::mint(&claims, &keys).unwrap();
    let samples = [
        format!(
            "access_token={token}&auto_subscribe=1&sdk=js&protocol=17&capabilities=CAP_PACKET_TRAILER"
        ),
        format!("access_token={token}&reconnect=1&sid=PA_x&room=kitchen&client_protocol=2"),
    ];
    let mut inputs = Mutator::new(rounds.seed, samples.map(String::into_bytes).to_vec());
    let mut admitted = 0;
    while rounds.go_on() {
        let query = inputs.make_text();
        rounds.trying(query.as_bytes());
        for route in [Route::OneConnection, Route::TwoConnections] {
            let admission: Result<Admission, _> =
                admission::admit(route, &query, None, &keys, 1_800_000_000);
            if let Ok(admission) = admission {
                assert_eq!(
                    admission.identity(),
                    "alice",
                    "no change makes another token"
                );
                admitted += 1;
            }
        }
    }
    assert!(admitted > 0);
}

/// Replaces parts of a document by something else.
fn disturb(value: &mut Value, inputs: &mut Mutator) {
    if inputs.rng.u8(..6) == 0 {
        *value = match inputs.rng.u8(..8) {
            0 => Value::Null,
            1 => json!(inputs.edge()),
            2 => json!(-1.5e308),
            3 => json!(inputs.edge().to_string()),
            4 => json!([value.clone(), value.clone()]),
            5 => json!({ "kind": value.clone() }),
            6 => json!("\u{0}\u{feff}".repeat(inputs.rng.usize(..200))),
            _ => json!(true),
        };
        return;
    }
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| disturb(value, inputs)),
        Value::Object(values) => values.values_mut().for_each(|value| disturb(value, inputs)),
        _ => {}
    }
}

fn calls() -> Vec<Vec<u8>> {
    let calls = [
        json!({"name": "kitchen", "emptyTimeout": 3, "departureTimeout": 2, "maxParticipants": 7, "metadata": "x"}),
        json!({"room": "kitchen", "identity": "bob", "trackSid": "TR_x", "muted": true, "metadata": "y"}),
        json!({"room": "kitchen", "identity": "bob", "name": "Bob", "metadata": "z", "attributes": {"a": "b"},
            "permission": {"canSubscribe": true, "canPublish": true, "canPublishData": true, "canPublishSources": ["MICROPHONE", 2]}}),
        json!({"room": "kitchen", "identity": "bob", "trackSids": ["TR_x"], "subscribe": false,
            "participantTracks": [{"participantSid": "PA_x", "trackSids": ["TR_y"]}]}),
        json!({"room": "kitchen", "data": "AAEC", "kind": "LOSSY", "destinationIdentities": ["bob"], "topic": "t",
            "nonce": "AAAAAAAAAAAAAAAAAAAAAA=="}),
        json!({"names": ["kitchen", "other"]}),
        json!({"room": "kitchen", "identity": "bob", "destinationRoom": "cellar"}),
    ];
    calls.map(|call| call.to_string().into_bytes()).to_vec()
}

/// Parses a call as each known method, carries it out and encodes the response.
fn call(bench: &mut Bench, text: &[u8]) -> usize {
    let (sfu, now) = (&mut bench.sfu, bench.now);
    let mut understood = 0;
    let mut answered = |answer: Vec<u8>| understood += usize::from(!answer.is_empty());
    if let Ok(said) = serde_json::from_slice::<proto::CreateRoomRequest>(text) {
        if let Ok(room) = sfu.create_room(&said, now) {
            answered(serde_json::to_vec(&room).unwrap());
        }
        let _ = sfu
            .delete_room(&said.name, now)
            .is_ok_and(|()| said.name == "kitchen");
    }
    if let Ok(said) = serde_json::from_slice::<proto::ListRoomsRequest>(text) {
        let rooms = sfu.list_rooms(&said.names);
        answered(serde_json::to_vec(&proto::ListRoomsResponse { rooms }).unwrap());
    }
    if let Ok(said) = serde_json::from_slice::<proto::MuteRoomTrackRequest>(text) {
        let _ = sfu.mute_track(&said.room, &said.identity, &said.track_sid, said.muted, now);
    }
    if let Ok(said) = serde_json::from_slice::<proto::ForwardParticipantRequest>(text) {
        let (room, identity, to) = (&said.room, &said.identity, &said.destination_room);
        let _ = sfu.forward_participant(room, identity, to, now);
        if now.unix_ms % 2 == 0 {
            let _ = sfu.move_participant(room, identity, to, now);
        }
    }
    if let Ok(said) = serde_json::from_slice::<proto::UpdateParticipantRequest>(text) {
        let change = ParticipantChange {
            name: Some(said.name),
            metadata: Some(said.metadata),
            attributes: said.attributes,
            permission: said.permission,
        };
        let changed = sfu.update_participant(&said.room, &said.identity, change, now);
        if let Ok(info) = changed {
            answered(serde_json::to_vec(&info).unwrap());
        }
    }
    if let Ok(said) = serde_json::from_slice::<proto::UpdateSubscriptionsRequest>(text) {
        let subscription = proto::UpdateSubscription {
            track_sids: said.track_sids,
            subscribe: said.subscribe,
            participant_tracks: said.participant_tracks,
        };
        let _ = sfu.update_subscriptions(&said.room, &said.identity, &subscription, now);
    }
    if let Ok(said) = serde_json::from_slice::<proto::SendDataRequest>(text) {
        let message = RoomMessage {
            lossy: said.kind() == proto::data_packet::Kind::Lossy,
            payload: said.data,
            topic: said.topic,
            destination_identities: said.destination_identities,
            nonce: said.nonce,
            ..RoomMessage::default()
        };
        let _ = sfu.send_data(&said.room, message, now);
    }
    if let Ok(said) = serde_json::from_slice::<proto::UpdateRoomMetadataRequest>(text) {
        let _ = sfu.update_room_metadata(&said.room, said.metadata, now);
    }
    bench.collect();
    understood
}

#[test]
fn the_servers_api_survives_what_no_client_sends() {
    let mut rounds = Rounds::new("api", 3_000);
    let mut inputs = Mutator::new(rounds.seed, calls());
    // Created rooms end when nobody joins; the kitchen is deleted repeatedly.
    let mut bench = Bench::new(|_| ());
    let mut understood = 0;
    while rounds.go_on() {
        let text = if inputs.rng.bool() {
            inputs.make_text().into_bytes()
        } else {
            let mut value: Value = serde_json::from_slice(&inputs.sample()).unwrap();
            disturb(&mut value, &mut inputs);
            value.to_string().into_bytes()
        };
        rounds.trying(&text);
        if rounds.done.is_multiple_of(8) {
            bench.join("bob");
        }
        understood += call(&mut bench, &text);
        if rounds.done.is_multiple_of(64) {
            bench.pass(Duration::from_mins(1));
            bench.forget();
            bench.datagrams.clear();
            bench.events.clear();
        }
    }
    assert!(understood > 0);
    let rooms: Vec<String> = bench
        .sfu
        .list_rooms(&[])
        .into_iter()
        .map(|room| room.name)
        .collect();
    for room in rooms {
        bench.sfu.delete_room(&room, bench.now).unwrap();
    }
    bench.pass(Duration::from_secs(5));
    assert_eq!(bench.sfu.held(), Held::default());
}
