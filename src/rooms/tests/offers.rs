//! Session descriptions: recorded offers of the three client SDKs, what they publish, and invalid ones.

use std::collections::HashMap;

use livekit_protocol as proto;
use proto::leave_request::Action;
use proto::signal_request::Message as Request;
use proto::signal_response::Message;
use str0m::change::SdpOffer;
use str0m::{RtcConfig, media};

use super::super::Route;
use super::super::events::Event;
use super::super::participant::Side;
use super::super::sdp::{self, Direction, SectionKind};
use super::{BROWSER_JOIN, BROWSER_PUBLISH, BROWSER_UNPUBLISH, Bench, offer};

/// Pion takes a second offer that comes before its transport has begun for a restart of ICE, and never connects.
#[test]
fn who_connects_is_offered_later_tracks_once_it_has_connected() {
    let mut bench = Bench::new(|_| ());
    let first = bench.join("first");
    bench.publish(first);
    let pion = bench.connect(Bench::admission("pion", |_| ()));
    let offers = |bench: &Bench| -> Vec<proto::SessionDescription> {
        let offers = bench.told(pion).iter().filter_map(|message| match message {
            Message::Offer(offer) => Some(offer.clone()),
            _ => None,
        });
        offers.collect()
    };
    let offered = offers(&bench);
    assert_eq!(offered.len(), 1);
    let mut rtc = RtcConfig::new().build(bench.now.instant);
    let description = SdpOffer::from_sdp_string(&offered[0].sdp).unwrap();
    let answer = rtc.sdp_api().accept_offer(description).unwrap();
    let answer = proto::SessionDescription {
        r#type: "answer".into(),
        sdp: answer.to_sdp_string(),
        id: offered[0].id,
        ..Default::default()
    };
    let second = bench.join("second");
    bench.publish(second);
    bench.ask(pion, Request::Answer(answer));
    let third = bench.join("third");
    bench.publish(third);
    assert_eq!(offers(&bench).len(), 1);
    let (pion, now) = (bench.key_of("pion"), bench.now);
    bench.sfu.media_connected(pion, Side::Subscriber, now);
    bench.collect();
    let offered = offers(&bench);
    assert_eq!(offered.len(), 2);
    let sections = |offer: &proto::SessionDescription| offer.sdp.matches("m=audio").count();
    assert_eq!((sections(&offered[0]), sections(&offered[1])), (1, 3));
}

#[test]
fn a_track_is_announced_with_its_section_and_is_gone_with_it() {
    let mut bench = Bench::new(|_| ());
    let bob = bench.join("bob");
    let alice = bench.join("alice");
    bench.forget();
    let track = bench.publish(alice);
    assert!(track.sid.starts_with("TR_AM"));
    let seen = bench.updates(bob).pop().unwrap();
    assert_eq!(
        (
            seen.tracks[0].sid.as_str(),
            seen.tracks[0].mime_type.as_str(),
            seen.tracks[0].mid.as_str()
        ),
        (track.sid.as_str(), "audio/opus", "7")
    );
    bench.ask(
        alice,
        Request::Mute(proto::MuteTrackRequest {
            sid: track.sid.clone(),
            muted: true,
        }),
    );
    assert!(bench.updates(bob).pop().unwrap().tracks[0].muted);
    bench.ask(alice, Request::Offer(offer(BROWSER_UNPUBLISH, 3)));
    let last = bench.updates(bob).pop().unwrap();
    assert!(last.tracks.is_empty() && last.version > seen.version);
    assert_eq!(
        bench.events,
        [
            Event::RoomStarted,
            Event::TrackPublished,
            Event::TrackUnpublished
        ]
    );
}

#[test]
fn a_track_that_is_there_is_in_the_first_answer() {
    let mut bench = Bench::new(|_| ());
    let alice = bench.join("alice");
    let sid = bench.join_response(alice).participant.clone().unwrap().sid;
    let track = bench.publish(alice);
    let bob = bench.join("bob");
    let answer = bench
        .told(bob)
        .iter()
        .find_map(|m| {
            if let Message::Answer(answer) = m {
                Some(answer)
            } else {
                None
            }
        })
        .unwrap();
    assert_eq!(
        answer.mid_to_track_id,
        HashMap::from([("0".to_owned(), track.sid.clone())])
    );
    assert!(
        answer
            .sdp
            .contains(&format!("a=msid:{sid}|{0} {0}", track.sid))
    );
    assert_eq!(answer.sdp.matches("a=inactive").count(), 5);
    assert!(
        bench
            .told(alice)
            .iter()
            .any(|m| matches!(m, Message::TrackSubscribed(told) if told.track_sid == track.sid))
    );
    let refused = bench.join_with("carol", |claims| claims.video.can_subscribe = Some(false));
    let answer = bench
        .told(refused)
        .iter()
        .find_map(|m| {
            if let Message::Answer(answer) = m {
                Some(answer)
            } else {
                None
            }
        })
        .unwrap();
    assert!(answer.mid_to_track_id.is_empty());
}

/// An offer with one video section in the one codec that `codec` enables.
fn video_offer(codec: impl FnOnce(RtcConfig) -> RtcConfig, direction: media::Direction) -> String {
    let mut rtc = codec(RtcConfig::new().clear_codecs()).build(std::time::Instant::now());
    let mut api = rtc.sdp_api();
    let (stream, track) = ("s".to_owned(), "cam".to_owned());
    api.add_media(
        media::MediaKind::Video,
        direction,
        Some(stream),
        Some(track),
        None,
    );
    api.apply().unwrap().0.to_sdp_string()
}

#[test]
fn a_codec_that_a_subscriber_does_not_know_is_told_and_harms_nothing() {
    let mut bench = Bench::new(|_| ());
    let alice = bench.join("alice");
    let camera = proto::AddTrackRequest {
        cid: "cam".to_owned(),
        r#type: proto::TrackType::Video as i32,
        source: proto::TrackSource::Camera as i32,
        ..Default::default()
    };
    bench.ask(alice, Request::AddTrack(camera));
    let published = video_offer(
        |config| config.enable_h264(true),
        media::Direction::SendOnly,
    );
    bench.ask(alice, Request::Offer(offer(&published, 2)));
    for (identity, knows) in [("bob", true), ("carol", false)] {
        let received = video_offer(
            |config| config.enable_vp8(true).enable_h264(knows),
            media::Direction::RecvOnly,
        );
        let mut admission = Bench::admission(identity, |_| ());
        admission.route = Route::OneConnection;
        admission.offer = Some(offer(&received, 1));
        let subscriber = bench.connect(admission);
        let refusals = bench
            .told(subscriber)
            .iter()
            .filter_map(|message| match message {
                Message::SubscriptionResponse(answer) => Some(answer.err()),
                _ => None,
            });
        let unsupported = proto::SubscriptionError::SeCodecUnsupported;
        let expected = if knows { vec![] } else { vec![unsupported] };
        assert_eq!(refusals.collect::<Vec<_>>(), expected, "{identity}");
    }
}

#[test]
fn garbage_on_a_connection_closes_it_and_harms_nobody() {
    let mut bench = Bench::new(|_| ());
    let bob = bench.join("bob");
    for garbage in [&b"\xff\xff\xff\xff"[..], b"\x0a\x80"] {
        let alice = bench.join("alice");
        bench.sfu.signal(alice, &garbage.to_vec().into(), bench.now);
        bench.collect();
        assert!(bench.closed.contains(&alice));
    }
    for sdp in [
        "",
        "v=0\r\n",
        "v=0\r\nm=audio 9 X 1\r\n",
        &BROWSER_JOIN[..400],
        "\u{0}\u{1}",
    ] {
        let alice = bench.join("alice");
        bench.ask(alice, Request::Offer(offer(sdp, 5)));
        assert_eq!(
            bench.leave_of(alice).map(|(action, _)| action),
            Some(Action::Reconnect),
            "{sdp:?}"
        );
    }
    bench.ask(bob, Request::Ping(1));
    assert!(matches!(bench.told(bob).last(), Some(Message::Pong(_))));
}

#[test]
fn every_recorded_offer_is_answered() {
    let offers = [
        [
            BROWSER_JOIN,
            BROWSER_PUBLISH,
            BROWSER_UNPUBLISH,
            include_str!("../testdata/offers/browser-again.sdp"),
        ],
        [
            include_str!("../testdata/offers/node-join.sdp"),
            include_str!("../testdata/offers/node-publish.sdp"),
            include_str!("../testdata/offers/node-unpublish.sdp"),
            include_str!("../testdata/offers/node-again.sdp"),
        ],
        [
            include_str!("../testdata/offers/python-join.sdp"),
            include_str!("../testdata/offers/python-publish.sdp"),
            include_str!("../testdata/offers/python-unpublish.sdp"),
            include_str!("../testdata/offers/python-again.sdp"),
        ],
    ];
    for chain in offers {
        let mut bench = Bench::new(|_| ());
        let mut admission = Bench::admission("alice", |_| ());
        admission.route = Route::OneConnection;
        admission.offer = Some(offer(chain[0], 1));
        let alice = bench.connect(admission);
        for (id, sdp) in chain.iter().enumerate().skip(1) {
            let source = proto::TrackSource::Microphone as i32;
            bench.ask(
                alice,
                Request::AddTrack(proto::AddTrackRequest {
                    cid: format!("c{id}"),
                    source,
                    ..Default::default()
                }),
            );
            bench.ask(alice, Request::Offer(offer(sdp, id as u32 + 1)));
        }
        let answers: Vec<_> = bench
            .told(alice)
            .iter()
            .filter_map(|m| {
                if let Message::Answer(answer) = m {
                    Some(answer)
                } else {
                    None
                }
            })
            .collect();
        assert_eq!(
            answers.iter().map(|answer| answer.id).collect::<Vec<_>>(),
            [1, 2, 3, 4]
        );
        for (answer, sdp) in answers.iter().zip(chain) {
            let offered = sdp::sections(sdp).unwrap();
            let answered = sdp::sections(&answer.sdp).unwrap();
            assert_eq!(
                offered.iter().map(|s| s.mid).collect::<Vec<_>>(),
                answered.iter().map(|s| s.mid).collect::<Vec<_>>()
            );
            let publishes = offered
                .iter()
                .filter(|s| s.direction.sends() && s.kind != SectionKind::Application);
            for section in publishes {
                let answer = answered.iter().find(|s| s.mid == section.mid).unwrap();
                assert_eq!(answer.direction, Direction::RecvOnly);
            }
            assert!(
                answer.sdp.contains("a=ice-lite") && answer.sdp.contains("192.0.2.1 5000 typ host")
            );
        }
        let tracks = bench
            .sfu
            .get_participant("kitchen", "alice")
            .unwrap()
            .tracks;
        assert!(!tracks.is_empty());
    }
}

#[test]
fn a_publisher_says_who_may_have_its_track() {
    let mut bench = Bench::new(|_| ());
    let alice = bench.join("alice");
    let bob = bench.join("bob");
    let track = bench.publish(alice);
    let only_carol = proto::TrackPermission {
        participant_identity: "carol".into(),
        all_tracks: true,
        ..Default::default()
    };
    let permission = proto::SubscriptionPermission {
        all_participants: false,
        track_permissions: vec![only_carol],
    };
    bench.ask(alice, Request::SubscriptionPermission(permission));
    let refused = |message: &Message| matches!(message, Message::SubscriptionPermissionUpdate(told) if !told.allowed && told.track_sid == track.sid);
    assert!(bench.told(bob).iter().any(refused));
    for (identity, expected) in [("carol", 1), ("dave", 0)] {
        let joined = bench.join(identity);
        let carried = bench.told(joined).iter().find_map(|message| match message {
            Message::Answer(answer) => Some(answer.mid_to_track_id.len()),
            _ => None,
        });
        assert_eq!(carried, Some(expected), "{identity}");
    }
}
