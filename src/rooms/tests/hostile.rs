//! Attacks on other participants: descriptions and messages that grow when they are parsed, colliding payload types, and
//! updates that a whole room is told. Everyone but the attacker is served as before.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use livekit_protocol as proto;
use prost::Message as _;
use proto::DisconnectReason;
use proto::leave_request::Action;
use proto::signal_request::Message as Request;
use proto::signal_response::Message;
use str0m::RtcConfig;
use str0m::change::SdpOffer;

use super::super::offers::{self, DescriptionError, reduce};
use super::super::shapes::Shaped as _;
use super::super::{ConnectionId, Route, admission, limits, sdp, token};
use super::{BROWSER_JOIN, BROWSER_PUBLISH, Bench, offer};

const RECORDED: [&str; 6] = [
    BROWSER_JOIN,
    BROWSER_PUBLISH,
    include_str!("../testdata/offers/node-join.sdp"),
    include_str!("../testdata/offers/node-publish.sdp"),
    include_str!("../testdata/offers/python-join.sdp"),
    include_str!("../testdata/offers/python-publish.sdp"),
];

/// A description of sections that differ in their mid only.
fn of_sections(count: usize, section: &str) -> String {
    let mids: Vec<String> = (0..count).map(|mid| mid.to_string()).collect();
    let mut text = format!(
        "v=0\r\no=- 1 2 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE {}\r\na=ice-ufrag:abcd\r\n\
         a=ice-pwd:abcdefghijklmnopqrstuvwx\r\na=fingerprint:sha-256 {}\r\na=setup:actpass\r\n",
        mids.join(" "),
        ["AB"; 32].join(":"),
    );
    for mid in mids {
        text.push_str(&section.replace("MID", &mid));
    }
    text
}

const AUDIO: &str = "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\nc=IN IP4 0.0.0.0\r\na=mid:MID\r\na=recvonly\r\n\
                     a=rtcp-mux\r\na=rtpmap:111 opus/48000/2\r\na=fmtp:111 minptime=10;useinbandfec=1\r\n";

/// str0m's answer: the sections with payload types and directions.
fn answered(sdp: &str) -> Vec<String> {
    let mut rtc = RtcConfig::new()
        .set_rtp_mode(true)
        .set_ice_lite(true)
        .clear_codecs()
        .enable_opus(true, false)
        .enable_vp8(true)
        .enable_h264(true)
        .enable_vp9(true)
        .enable_av1(true)
        .build(Instant::now());
    let offer = SdpOffer::from_sdp_string(sdp).unwrap();
    let answer = rtc.sdp_api().accept_offer(offer).unwrap().to_sdp_string();
    let told = |line: &&str| {
        [
            "m=",
            "a=rtpmap",
            "a=fmtp",
            "a=rtcp-fb",
            "a=extmap",
            "a=mid",
            "a=send",
            "a=recv",
            "a=inactive",
        ]
        .iter()
        .any(|start| line.starts_with(start))
    };
    // Bandwidth is estimated for video only.
    let mut is_audio = false;
    let counts = |line: &&str| {
        if let Some(media) = line.strip_prefix("m=") {
            is_audio = media.starts_with("audio");
        }
        !(is_audio
            && (line.ends_with("transport-wide-cc-extensions-01")
                || line.ends_with("transport-cc")))
    };
    let told = answer.lines().filter(told).filter(counts);
    told.map(str::to_owned).collect()
}

#[test]
fn real_offers_are_answered_as_if_nothing_had_been_left_out() {
    for recorded in RECORDED {
        let whole = offer(recorded, 1).sdp;
        let reduced = reduce(&whole).unwrap();
        assert!(reduced.text.len() <= whole.len());
        assert_eq!(answered(&reduced.text), answered(&whole));
        assert_eq!(
            sdp::sections(&reduced.text).unwrap().len(),
            sdp::sections(&whole).unwrap().len()
        );
    }
}

#[test]
fn candidates_cost_nothing_however_many_there_are() {
    let candidates = (0..9_000)
        .map(|n| {
            format!(
                "a=candidate:{n} 1 udp 1 10.1.{}.{} {n} typ host\r\n",
                n / 250,
                n % 250
            )
        })
        .collect::<Vec<_>>()
        .concat();
    let plain = of_sections(2, AUDIO);
    let many = plain.replacen("a=rtcp-mux\r\n", &format!("a=rtcp-mux\r\n{candidates}"), 1);
    assert_eq!(reduce(&many).unwrap(), reduce(&plain).unwrap());
    let mut bench = Bench::new(|_| ());
    let mut admission = Bench::admission("alice", |_| ());
    admission.route = Route::OneConnection;
    let alice = bench.connect(admission);
    bench.forget();
    bench.ask(alice, Request::Offer(offer(&many, 7)));
    assert!(matches!(bench.told(alice)[0], Message::Answer(_)));
}

#[test]
fn what_a_description_may_hold_is_bounded() {
    let lines =
        |line: &str, times: usize| of_sections(1, &format!("{AUDIO}{}", line.repeat(times)));
    let numbered = |many: usize, line: fn(usize) -> String| {
        of_sections(
            1,
            &format!(
                "{AUDIO}{}",
                (0..many).map(line).collect::<Vec<_>>().concat()
            ),
        )
    };
    let formats = (96..128).chain(0..30).map(|pt| format!(" {pt}"));
    let formats = formats.collect::<Vec<_>>().concat();
    let all_of_one_codec = (96..128)
        .chain(0..30)
        .map(|pt| format!("a=rtpmap:{pt} VP8/90000\r\n"))
        .collect::<Vec<_>>()
        .concat();
    let rtpmaps = format!(
        "m=video 9 UDP/TLS/RTP/SAVPF{formats}\r\na=mid:MID\r\na=recvonly\r\n{all_of_one_codec}"
    );
    for (text, expected) in [
        (
            lines("a=candidate:1\r\n", 60_000),
            DescriptionError::TooLong,
        ),
        (
            lines(&format!("a=msid:{}\r\n", "x".repeat(3_000)), 1),
            DescriptionError::LongLine,
        ),
        (
            lines("a=extmap:1 urn:x\r\n", 300),
            DescriptionError::TooManyAttributes,
        ),
        (
            of_sections(
                500,
                &AUDIO.replace("a=mid", &format!("{}a=mid", "a=rtcp-rsize\r\n".repeat(40))),
            ),
            DescriptionError::TooManyLines,
        ),
        (of_sections(1, &rtpmaps), DescriptionError::TooManyFormats),
        (
            numbered(20, |n| format!("a=ssrc:{} cname:x\r\n", n + 1)),
            DescriptionError::TooManySsrcs,
        ),
        (
            of_sections(513, AUDIO),
            DescriptionError::Sections(sdp::SdpError::TooManySections),
        ),
    ] {
        assert_eq!(reduce(&text), Err(expected));
    }
}

/// Sections that would make str0m panic, or are invalid, and why they are refused.
fn collisions() -> Vec<(String, DescriptionError)> {
    let video = |formats: &str, lines: &str| {
        let lines = lines
            .split(';')
            .map(|line| format!("a={line}\r\n"))
            .collect::<Vec<_>>()
            .concat();
        format!(
            "m=video 9 UDP/TLS/RTP/SAVPF {formats}\r\na=mid:9\r\na=sendrecv\r\na=rtcp-mux\r\n{lines}"
        )
    };
    let beside_sound = |formats: &str, lines: &str| {
        let text = of_sections(1, &AUDIO.replace("recvonly", "sendrecv")) + &video(formats, lines);
        text.replace("BUNDLE 0", "BUNDLE 0 9")
    };
    use DescriptionError::{Mid, NoOriginal, Reserved, TwoFormats, TwoSections};
    vec![
        (beside_sound("111", "rtpmap:111 VP8/90000"), TwoFormats(111)),
        (
            beside_sound("96", "rtpmap:96 VP8/90000;rtpmap:96 H264/90000"),
            TwoFormats(96),
        ),
        (
            beside_sound(
                "96 97",
                "rtpmap:96 VP8/90000;rtpmap:97 rtx/90000;fmtp:97 apt=97",
            ),
            NoOriginal(97),
        ),
        (
            beside_sound(
                "96 97",
                "rtpmap:96 VP8/90000;rtpmap:97 rtx/90000;fmtp:97 apt=50",
            ),
            NoOriginal(97),
        ),
        (
            beside_sound(
                "96 111",
                "rtpmap:96 VP8/90000;rtpmap:111 rtx/90000;fmtp:111 apt=96",
            ),
            TwoFormats(111),
        ),
        (beside_sound("72", "rtpmap:72 VP8/90000"), Reserved(72)),
        (beside_sound("130", "rtpmap:130 VP8/90000"), Reserved(130)),
        (
            of_sections(1, AUDIO) + AUDIO.replace("MID", "0").as_str(),
            Mid,
        ),
        (of_sections(1, AUDIO).replace("a=mid:0", "a=mid:a-b"), Mid),
        (
            of_sections(2, &format!("{AUDIO}a=ssrc:5 cname:x\r\n")),
            TwoSections,
        ),
    ]
}

#[test]
fn payload_types_and_names_that_collide_are_refused_and_cost_nobody_anything() {
    let mut bench = Bench::new(|_| ());
    let bob = bench.join("bob");
    for (number, (text, expected)) in collisions().into_iter().enumerate() {
        assert_eq!(reduce(&text), Err(expected.clone()), "{expected:?}");
        let mallory = bench.join("mallory");
        bench.ask(mallory, Request::Offer(offer(&text, 2)));
        let leave = bench.leave_of(mallory);
        assert_eq!(leave.map(|(action, _)| action), Some(Action::Reconnect));
        assert_eq!(bench.sfu.counters().refused_descriptions, number as u64 + 1);
        bench.sfu.disconnected(mallory, bench.now);
    }
    assert_eq!(bench.sfu.counters().broken_connections, 0);
    bench.ask(bob, Request::Ping(1));
    assert!(matches!(bench.told(bob).last(), Some(Message::Pong(_))));
}

#[test]
fn a_payload_type_keeps_its_meaning_from_one_offer_to_the_next() {
    let first = reduce(&of_sections(1, AUDIO)).unwrap();
    let later = of_sections(
        1,
        &AUDIO
            .replace("opus/48000/2", "VP8/90000")
            .replace("audio", "video"),
    );
    let later = reduce(&later).unwrap();
    let mut agreed = offers::PayloadTypes::default();
    agreed.agree(&first).unwrap();
    let before = agreed.clone();
    let refused = agreed.agree(&later);
    assert_eq!(refused, Err(DescriptionError::TwoFormats(111)));
    assert_eq!(agreed, before);
    agreed.agree(&first).unwrap();
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_short_url_does_not_become_a_crowd_of_tracks() {
    for tracks in [524_000, 100_000, limits::TRACKS_PER_PARTICIPANT + 1] {
        // An empty track each: two bytes that compress to almost nothing.
        let request = [0x2A, 0].repeat(tracks);
        let wrapped = proto::WrappedJoinRequest {
            compression: 1,
            join_request: gzipped(&request),
        };
        let wrapped = wrapped.encode_to_vec();
        assert!(wrapped.len() < 2_000);
        let claims = Bench::admission("mallory", |_| ()).claims;
        let keys = super::super::Keys::new([("key", "secret")]);
        let bearer = format!("Bearer {}", token::mint(&claims, &keys).unwrap());
        let query = format!("join_request={}", URL_SAFE.encode(&wrapped));
        let refused = admission::admit(
            Route::OneConnection,
            &query,
            Some(&bearer),
            &keys,
            1_800_000_000,
        );
        assert_eq!(refused.unwrap_err().status, 400, "{tracks}");
    }
}

/// Messages with two bytes per element.
fn swollen() -> Vec<Vec<u8>> {
    let field = |number: u8, inner: Vec<u8>| {
        let mut bytes = vec![number << 3 | 2];
        prost::encode_length_delimiter(inner.len(), &mut bytes).unwrap();
        bytes.extend(inner);
        bytes
    };
    let many = |number: u8| [number << 3 | 2, 0].repeat(400_000);
    vec![
        field(6, many(1)),
        field(6, many(3)),
        field(7, many(1)),
        field(4, many(9)),
        field(4, many(10)),
        field(11, many(2)),
        field(12, many(3)),
        field(12, field(2, many(1))),
        field(15, many(3)),
        field(1, many(4)),
        // Unknown fields.
        field(14, many(1)),
    ]
}

#[test]
fn messages_that_swell_when_they_are_decoded_are_refused_unread() {
    let mut bench = Bench::new(|_| ());
    let bob = bench.join("bob");
    for (number, bytes) in swollen().into_iter().enumerate() {
        let mallory = bench.join("mallory");
        bench.closed.clear();
        bench.sfu.signal(mallory, &bytes.into(), bench.now);
        bench.collect();
        assert_eq!(bench.sfu.counters().refused_signals, number as u64 + 1);
        assert_eq!(
            bench.leave_of(mallory).map(|(action, _)| action),
            Some(Action::Reconnect)
        );
        assert_eq!(bench.closed, [mallory]);
    }
    bench.ask(bob, Request::Ping(1));
    assert!(matches!(bench.told(bob).last(), Some(Message::Pong(_))));
}

#[test]
fn data_packets_that_swell_are_refused_and_real_ones_are_not() {
    for (value, inner) in [(7, 4), (8, 3), (8, 4), (8, 5), (13, 8), (3, 1), (2, 3)] {
        let inner = [inner << 3 | 2, 0].repeat(100_000);
        let mut packet = vec![value << 3 | 2];
        prost::encode_length_delimiter(inner.len(), &mut packet).unwrap();
        packet.extend(inner);
        assert!(proto::DataPacket::read(&packet).is_err(), "{value}");
    }
    let packet = proto::DataPacket {
        destination_identities: (0..100).map(|n| format!("user-{n}")).collect(),
        value: Some(proto::data_packet::Value::User(proto::UserPacket {
            payload: vec![7; 200_000],
            topic: Some("t".to_owned()),
            ..Default::default()
        })),
        ..Default::default()
    };
    assert_eq!(proto::DataPacket::read(&packet.encode_to_vec()), Ok(packet));
}

fn may_update(bench: &mut Bench, identity: &str) -> ConnectionId {
    bench.join_with(identity, |claims| {
        claims.video.can_update_own_metadata = Some(true);
    })
}

fn update(metadata: String) -> Request {
    Request::UpdateMetadata(proto::UpdateParticipantMetadata {
        metadata,
        ..Default::default()
    })
}

#[test]
fn whoever_changes_much_and_often_is_told_of_in_time_and_the_newest_is() {
    let mut bench = Bench::new(|_| ());
    let receivers: Vec<ConnectionId> = (0..3).map(|n| bench.join(&format!("bob{n}"))).collect();
    let mallory = may_update(&mut bench, "mallory");
    bench.forget();
    let told = |bench: &Bench| {
        let updates = bench.updates(receivers[0]);
        updates
            .iter()
            .map(|update| update.metadata.len())
            .sum::<usize>()
            * 4
    };
    for n in 0..2_000 {
        bench.ask(mallory, update(format!("{n} {}", "x".repeat(60_000))));
    }
    let at_once = limits::TOLD_BYTES_AT_ONCE as usize;
    assert!(told(&bench) <= at_once + 500_000, "{}", told(&bench));
    bench.pass(Duration::from_secs(2));
    let newest = bench.updates(receivers[0]).pop().unwrap().metadata;
    assert!(newest.starts_with("1999 "));
    // Everyone else is told of as always.
    bench.forget();
    let alice = may_update(&mut bench, "alice");
    bench.ask(alice, update("a".to_owned()));
    assert_eq!(bench.updates(receivers[0]).pop().unwrap().metadata, "a");
}

#[test]
fn tokens_that_change_are_given_once_a_second() {
    let mut bench = Bench::new(|_| ());
    let mallory = may_update(&mut bench, "mallory");
    bench.pass(Duration::from_secs(2));
    bench.forget();
    let tokens = |bench: &Bench| {
        let told = bench.told(mallory).iter();
        told.filter(|message| matches!(message, Message::RefreshToken(_)))
            .count()
    };
    for n in 0..200 {
        bench.ask(mallory, update(n.to_string()));
    }
    assert_eq!(tokens(&bench), 1);
    bench.pass(Duration::from_secs(5));
    assert_eq!(tokens(&bench), 2);
}

#[test]
fn what_a_room_tells_those_who_join_is_bounded() {
    const SAID: usize = 40_000;
    let mut bench = Bench::new(|_| ());
    let mut inside = 0;
    for n in 0..60 {
        let joined = bench.join_with(&format!("mallory{n}"), |claims| {
            claims.metadata = "x".repeat(SAID);
        });
        match bench.leave_of(joined) {
            None => inside += 1,
            Some(leave) => assert_eq!(leave, (Action::Disconnect, DisconnectReason::JoinFailure)),
        }
    }
    assert_eq!(inside, limits::ROOM_STATE_BYTES / SAID);
    // A participant without metadata can join, and one who is in cannot add any.
    let bob = bench.join("bob");
    assert!(bench.leave_of(bob).is_none());
    let alice = may_update(&mut bench, "alice");
    bench.ask(alice, update("y".repeat(SAID)));
    let refused = bench.told(alice).iter().any(|message| {
        matches!(message, Message::RequestResponse(response)
            if response.reason() == proto::request_response::Reason::LimitExceeded)
    });
    assert!(refused);
}

/// Announces a track whose description is about so long.
fn announce(bench: &mut Bench, who: ConnectionId, cid: &str, bytes: usize) {
    let layer = |_| proto::VideoLayer {
        rid: "r".repeat(1_000),
        ..Default::default()
    };
    let request = proto::AddTrackRequest {
        cid: cid.to_owned(),
        layers: (0..bytes / 1_000).map(layer).collect(),
        ..Default::default()
    };
    bench.ask(who, Request::AddTrack(request));
}

/// Tracks that were refused, and those that were not.
fn announced(bench: &Bench, who: ConnectionId) -> (usize, usize) {
    let told = bench.told(who);
    let refused = |message: &&Message| {
        matches!(message, Message::RequestResponse(response)
            if response.reason() == proto::request_response::Reason::LimitExceeded)
    };
    let published = |message: &&Message| matches!(message, Message::TrackPublished(_));
    let refused = told.iter().filter(refused).count();
    (refused, told.iter().filter(published).count())
}

#[test]
fn what_is_said_of_tracks_counts_towards_what_a_room_may_say() {
    let mut bench = Bench::new(|_| ());
    let mut taken = 0;
    for n in 0..40 {
        let mallory = bench.join(&format!("mallory{n}"));
        for track in 0..10 {
            announce(&mut bench, mallory, &track.to_string(), 10_000);
        }
        let (refused, published) = announced(&bench, mallory);
        assert_eq!(refused + published, 10);
        // One participant alone does not fill the room.
        assert!(published <= limits::TRACKS_BYTES / 10_000);
        taken += published;
    }
    let most = limits::ROOM_STATE_BYTES / 10_000;
    assert!((most - 6..=most).contains(&taken), "{taken}");
    // What is left by those who go is free.
    let bob = may_update(&mut bench, "bob");
    bench.ask(bob, update("x".repeat(60_000)));
    announce(&mut bench, bob, "before", 10_000);
    assert_eq!(announced(&bench, bob), (2, 0));
    for n in 0..8 {
        let name = format!("mallory{n}");
        bench
            .sfu
            .remove_participant("kitchen", &name, bench.now)
            .unwrap();
    }
    bench.ask(bob, update("x".repeat(60_000)));
    announce(&mut bench, bob, "after", 10_000);
    assert_eq!(announced(&bench, bob), (2, 1));
}

/// Subscription permissions with tens of thousands of entries, looked up for each subscriber and track.
#[test]
fn a_long_list_of_who_may_subscribe_costs_no_more_than_a_short_one() {
    let sids = |from: usize| (from..from + 100).map(|n| format!("TR_{n}")).collect();
    let entries = (0..100).map(|n| proto::TrackPermission {
        participant_identity: format!("user-{n}"),
        track_sids: sids(n * 100),
        ..Default::default()
    });
    let said = proto::SubscriptionPermission {
        all_participants: false,
        track_permissions: entries.collect(),
    };
    let permission = super::super::participant::Permission::new(said);
    assert!(permission.allows("TR_4242", "PA_x", "user-42"));
    assert!(!permission.allows("TR_4242", "PA_x", "user-43"));
    // As many lookups as in a room of a thousand with a thousand tracks.
    let began = Instant::now();
    let allowed = (0..1_000_000).filter(|_| permission.allows("TR_1", "PA_x", "user-0"));
    assert_eq!(allowed.count(), 1_000_000);
    // Scanning the list would take a minute.
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn in_a_large_room_everybody_gets_a_new_track_in_the_end() {
    let mut bench = Bench::new(|_| ());
    let listeners: Vec<ConnectionId> = (0..40).map(|n| bench.join(&format!("bob{n}"))).collect();
    let now = bench.now;
    for n in 0..40 {
        let key = bench.key_of(&format!("bob{n}"));
        bench
            .sfu
            .media_connected(key, super::super::participant::Side::Publisher, now);
    }
    let alice = bench.join("alice");
    bench.forget();
    bench.publish(alice);
    bench.pass(Duration::from_secs(1));
    for listener in listeners {
        let asked = bench.told(listener).iter();
        let asked = asked.filter(|told| matches!(told, Message::MediaSectionsRequirement(_)));
        assert_eq!(asked.count(), 1);
    }
}
