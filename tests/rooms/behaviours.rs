//! Further features of LiveKit's clients in rooms, a promise each.
//!
//! The behaviours that LiveKit's own tests check are covered here:
//!
//! | behaviour | tested in |
//! |---|---|
//! | connect and become active, two participants, metadata, data, text, RPC, mute, unpublish | `matrix` |
//! | duplicate identity, resume, double resume, full reconnect, escalation, node failure, mute while cut off, room deleted, rejoin after it, refreshed token, ICE restart | `resilience` |
//! | every call of the server API, revoked permission, server-side mute and removal, not found, unimplemented | `api`, `api_clients` |
//! | tokens, header and query, CORS, double slash, gzip bomb, oversize message, body limit, ping, attributes and limits, socket lost before media, absent track | `doors` |
//! | late joiner, mime types, video and simulcast, announced before media, auto-subscribe off, no right to subscribe, subscription permissions, speakers, quality, many tracks, tracks while others join, streams, RPC errors, oversize data, slow receiver | this module |
//! | layers, dynacast, bandwidth, codecs of video | `video` |
//! | webhooks in order and signed | `events` |
//! | unsupported codec (one peer connection), recorded offers, loss and reordering, reliable data across a resume, auto-create off (there is no setting for it), full room, hidden participants, join timeout, room timers | unit tests in `src/rooms` |
//!
//! Not tested yet: an ICE restart whose offer or answer is lost, and an unsupported codec with two peer connections.
//!
//! Not supported, so not tested: several nodes and moving between them, data tracks, data blobs, end-to-end
//! encryption (opaque to the server), codec override for a device, telephone and egress services, failover of API clients.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::client::{Client, Kind};
use super::{call, join, keyed_server, server, token};
use crate::harness::{Server, is_long};

/// Somebody with these grants and options.
async fn join_with(
    server: &Server,
    kind: Kind,
    room: &str,
    identity: &str,
    grants: &Value,
    options: &Value,
) -> Client {
    let mut all = json!({"roomJoin": true, "room": room});
    for (name, value) in grants.as_object().unwrap() {
        all[name] = value.clone();
    }
    let token = token(600, &all, &json!({"sub": identity}));
    let mut client = Client::start(kind, &server.url, identity, &token, options);
    client.connected().await;
    client
}

/// Everybody has got what was sent before: a message that is sent after it came.
async fn settled(from: &mut Client, to: &mut [&mut Client], text: &str) {
    from.command(json!({"do": "send", "text": text})).await;
    for client in to {
        client.wait("data", &json!({"text": text})).await;
    }
}

#[tokio::test]
async fn video_is_seen_by_everybody_and_by_those_who_come_late() {
    let server = keyed_server();
    let room = "cinema";
    let mut python = join(&server, Kind::Python, room, "python").await;
    let mut h264 = join(&server, Kind::Python, room, "h264").await;
    let mut browser = join(&server, Kind::Browser, room, "browser").await;
    python
        .command(json!({"do": "publish_video", "codec": "VP8", "luma": 200}))
        .await;
    h264.command(json!({"do": "publish_video", "codec": "H264", "luma": 90}))
        .await;
    let camera = browser.command(json!({"do": "publish_camera"})).await;
    python.publish(440).await;
    let of = |identity: &str| json!({"identity": identity, "frames": 10});
    for (identity, luma) in [("python", 200.0), ("h264", 90.0)] {
        for kind in Kind::ALL {
            let mut late = join(&server, kind, room, "late").await;
            let seen = late.wait("video", &of(identity)).await;
            let shade = seen["luma"].as_f64().unwrap();
            assert!((shade - luma).abs() < 20.0, "{kind:?}: {seen}");
            assert_eq!(
                (&seen["width"], &seen["height"]),
                (&json!(320), &json!(240))
            );
            late.wait("video", &of("browser")).await;
            late.hears("python", 440).await;
            let known = late.command(json!({"do": "participants"})).await;
            let mime = |identity: &str| {
                let tracks = known["participants"][identity]["tracks"]
                    .as_array()
                    .unwrap();
                let mimes = tracks.iter().map(|track| track["mime"].as_str().unwrap());
                let mut mimes: Vec<_> = mimes.map(str::to_owned).collect();
                mimes.sort();
                mimes
            };
            assert_eq!(mime("python"), ["audio/opus", "video/vp8"]);
            assert_eq!(mime("h264"), ["video/h264"]);
            assert_eq!(mime("browser"), ["video/vp8"]);
            late.leave().await;
        }
    }
    for (client, identity) in [(&mut python, "browser"), (&mut browser, "python")] {
        client.wait("video", &of(identity)).await;
    }
    let admin = json!({"roomAdmin": true, "room": room});
    let whom = json!({"room": room, "identity": "browser"});
    let (_, known) = call(&server, "GetParticipant", &admin, &whom).await;
    let track = &known["tracks"][0];
    assert_eq!(
        (&track["sid"], &track["simulcast"]),
        (&camera["sid"], &json!(true))
    );
    assert!(track["layers"].as_array().unwrap().len() > 1, "{track}");
}

#[tokio::test]
async fn a_track_is_announced_before_it_has_media() {
    let server = server();
    let mut ann = join(&server, Kind::Python, "kitchen", "ann").await;
    let mut bob = join(&server, Kind::Python, "kitchen", "bob").await;
    let track = ann.publish(0).await;
    bob.wait("track_published", &json!({"sid": track})).await;
    bob.wait("track_subscribed", &json!({"sid": track})).await;
    ann.command(json!({"do": "wait_subscribed", "sid": track}))
        .await;
}

#[tokio::test]
async fn without_auto_subscribe_nothing_comes_unasked() {
    let server = keyed_server();
    let mut ann = join(&server, Kind::Python, "kitchen", "ann").await;
    let track = ann.publish(440).await;
    for two in [false, true] {
        for kind in Kind::ALL {
            let options = json!({"auto_subscribe": false, "two": two});
            let mut bob = join_with(&server, kind, "kitchen", "bob", &json!({}), &options).await;
            let second = ann.publish(550).await;
            bob.wait("track_published", &json!({"sid": second})).await;
            settled(&mut ann, &mut [&mut bob], "now").await;
            assert_eq!(bob.count("track_subscribed", &json!({})), 0, "{kind:?}");
            for (on, hertz) in [(true, 440), (false, 0), (true, 440)] {
                bob.command(json!({"do": "subscribe", "sid": track, "on": on}))
                    .await;
                bob.hears("ann", hertz).await;
            }
            assert_eq!(bob.count("track_subscribed", &json!({"sid": second})), 0);
            ann.command(json!({"do": "unpublish", "sid": second})).await;
            bob.leave().await;
        }
    }
}

#[tokio::test]
async fn whoever_may_not_subscribe_hears_nothing_and_is_heard() {
    let server = keyed_server();
    let mut ann = join(&server, Kind::Python, "kitchen", "ann").await;
    ann.publish(440).await;
    let deaf = json!({"canSubscribe": false});
    for two in [false, true] {
        for kind in Kind::ALL {
            let options = json!({"two": two});
            let mut bob = join_with(&server, kind, "kitchen", "bob", &deaf, &options).await;
            ann.mark();
            bob.publish(660).await;
            ann.next("track_subscribed", &json!({"identity": "bob"}))
                .await;
            ann.hears("bob", 660).await;
            assert_eq!(bob.count("track_subscribed", &json!({})), 0, "{kind:?}");
            ann.mark();
            bob.leave().await;
            ann.next("participant_disconnected", &json!({})).await;
        }
    }
}

#[tokio::test]
async fn whoever_may_not_publish_is_refused_and_hears() {
    let server = keyed_server();
    let mut ann = join(&server, Kind::Python, "kitchen", "ann").await;
    ann.publish(440).await;
    let mute = json!({"canPublish": false, "canPublishData": false, "canSubscribe": true});
    let mut bob = join_with(&server, Kind::Browser, "kitchen", "bob", &mute, &json!({})).await;
    let refused = bob.attempt(json!({"do": "publish", "hertz": 660})).await;
    assert!(refused.is_err(), "{refused:?}");
    bob.hears("ann", 440).await;
    let _ = bob.attempt(json!({"do": "send", "text": "not this"})).await;
    settled(&mut ann, &mut [&mut bob], "over").await;
    assert_eq!(ann.count("data", &json!({})), 0);
    assert_eq!(ann.count("track_published", &json!({})), 0);
}

#[tokio::test]
async fn a_publisher_decides_who_hears_it() {
    let server = server();
    let mut ann = join(&server, Kind::Python, "kitchen", "ann").await;
    let mut bob = join(&server, Kind::Browser, "kitchen", "bob").await;
    let mut cid = join(&server, Kind::Node, "kitchen", "cid").await;
    let first = ann.publish(440).await;
    for client in [&mut bob, &mut cid] {
        client.hears("ann", 440).await;
    }
    let told = |status: &str| json!({"sid": first, "status": status});
    for (all, whom, bob_hears, cid_hears, status) in [
        (false, json!([]), 0, 0, Some("not_allowed")),
        (false, json!(["bob"]), 440, 0, Some("allowed")),
        (true, json!([]), 440, 440, None),
        (false, json!(["cid"]), 0, 440, Some("not_allowed")),
    ] {
        bob.mark();
        ann.command(json!({"do": "permit", "all": all, "identities": whom}))
            .await;
        bob.hears("ann", bob_hears).await;
        cid.hears("ann", cid_hears).await;
        if let Some(status) = status {
            bob.next("subscription_permission", &told(status)).await;
        }
    }
    // What is published later follows the same rule.
    ann.publish(550).await;
    cid.hears("ann", 550).await;
    bob.hears("ann", 0).await;
}

#[tokio::test]
async fn speakers_and_the_quality_of_connections_are_told() {
    let server = server();
    for kind in Kind::ALL {
        let room = format!("{kind:?}");
        let mut ann = join(&server, Kind::Python, &room, "ann").await;
        let mut bob = join(&server, kind, &room, "bob").await;
        let track = ann.publish(440).await;
        let speaks = json!({"identities": ["ann"]});
        bob.next("active_speakers_changed", &speaks).await;
        ann.command(json!({"do": "mute", "sid": track})).await;
        let silence = json!({"identities": []});
        bob.next("active_speakers_changed", &silence).await;
        let excellent = if kind == Kind::Browser {
            json!("excellent")
        } else {
            json!(2)
        };
        for identity in ["ann", "bob"] {
            let good = json!({"identity": identity, "quality": excellent});
            bob.wait("connection_quality_changed", &good).await;
        }
    }
}

#[tokio::test]
async fn ten_tracks_of_each_of_two_arrive_at_everybody_while_others_join() {
    // With ten the client for Python falls behind on a machine that is busy with much else: traced, it sent no offer for 50 s
    // after its last one was answered and its track was acknowledged within 10 ms, and answered nothing for 36 s, until it was told
    // to reconnect. Beside one busy core ten pass: `./test --long`.
    let tracks: u32 = if is_long() { 10 } else { 4 };
    let server = server();
    let mut ann = join(&server, Kind::Python, "kitchen", "ann").await;
    let mut bob = join(&server, Kind::Node, "kitchen", "bob").await;
    let mut sids = Vec::new();
    for number in 0..tracks {
        sids.push(ann.publish(300 + 40 * number).await);
        sids.push(bob.publish(320 + 40 * number).await);
        if number == tracks / 2 {
            join(&server, Kind::Node, "kitchen", "passer-by")
                .await
                .leave()
                .await;
        }
    }
    let mut cid = join(&server, Kind::Browser, "kitchen", "cid").await;
    for sid in &sids {
        cid.wait("track_subscribed", &json!({"sid": sid})).await;
    }
    for (client, identity) in [(&mut ann, "bob"), (&mut bob, "ann")] {
        for sid in sids.iter().skip(usize::from(identity == "bob")).step_by(2) {
            client.wait("track_subscribed", &json!({"sid": sid})).await;
        }
    }
    ann.hears("bob", 320 + 40 * (tracks - 1)).await;
    bob.hears("ann", 300 + 40 * (tracks - 1)).await;
}

#[tokio::test]
async fn streams_and_calls_work_between_all_clients() {
    let server = server();
    let mut clients = Vec::new();
    for kind in Kind::ALL {
        clients.push(join(&server, kind, "kitchen", &format!("{kind:?}")).await);
    }
    for client in &mut clients {
        let known = async |client: &mut Client| {
            let known = client.command(json!({"do": "participants"})).await;
            known["participants"].as_object().unwrap().len()
        };
        while known(client).await < Kind::ALL.len() - 1 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
    for at in 0..clients.len() {
        let mut sender = clients.remove(at);
        let from = sender.identity.clone();
        let long = format!("{from}: {}", "viel. ".repeat(20_000));
        for text in [format!("{from}: kurz, ✓"), long] {
            sender.command(json!({"do": "text", "text": text})).await;
            for client in &mut clients {
                let expected = json!({"text": text, "identity": from});
                client.wait("text_stream", &expected).await;
            }
        }
        let sent = sender
            .command(json!({"do": "bytes", "length": 200_000}))
            .await;
        let expected =
            json!({"sha256": sent["sha256"], "length": 200_000, "identity": from, "name": "noise"});
        for client in &mut clients {
            client.wait("byte_stream", &expected).await;
        }
        for client in &mut clients {
            let to = client.identity.clone();
            for (method, payload, timeout, field, expected) in [
                (
                    "echo",
                    "x".repeat(10_000),
                    10,
                    "payload",
                    json!("x".repeat(10_000)),
                ),
                ("fail", String::new(), 10, "code", json!(101)),
                ("nothing", String::new(), 10, "code", json!(1400)),
                ("sleep", String::new(), 1, "code", json!(1502)),
            ] {
                let call = json!({"do": "rpc", "to": to, "method": method, "payload": payload, "timeout": timeout});
                let answer = sender.command(call).await;
                assert_eq!(
                    answer[field], expected,
                    "{from} calls {method} of {to}: {answer}"
                );
                if method == "fail" {
                    let said = (&answer["message"], &answer["details"]);
                    assert_eq!(said, (&json!("it does not work"), &json!("because")));
                }
            }
        }
        // What is too large is refused, and the connection goes on.
        let refused = sender
            .attempt(json!({"do": "fill", "length": 70_000}))
            .await;
        let others: &mut [&mut Client] = &mut clients.iter_mut().collect::<Vec<_>>();
        settled(&mut sender, others, &format!("{from} goes on")).await;
        if sender.kind != Kind::Browser {
            assert!(refused.is_err(), "{from}: {refused:?}");
        }
        clients.insert(at, sender);
    }
}

#[tokio::test]
async fn whoever_does_not_read_holds_nobody_up() {
    const MESSAGES: u32 = 1_300;
    /// Well below the 20 s after which a participant who does not answer is removed.
    const SILENCE: Duration = Duration::from_secs(15);
    let server = server();
    let mut ann = join(&server, Kind::Python, "kitchen", "ann").await;
    let mut quick = join(&server, Kind::Python, "kitchen", "quick").await;
    let mut slow = join(&server, Kind::Python, "kitchen", "slow").await;
    settled(&mut ann, &mut [&mut quick, &mut slow], "before").await;
    let pid = Pid::from_raw(i32::try_from(slow.pid()).unwrap()).unwrap();
    let stopped = Instant::now();
    kill_process(pid, Signal::STOP).unwrap();
    // More than the server keeps for one receiver, at a pace that the other keeps up with on any machine.
    for from in (0..MESSAGES).step_by(100) {
        ann.command(json!({"do": "burst", "from": from, "count": 100, "length": 15_000}))
            .await;
        let last = format!("{:.<200}", format!("{} ", from + 99));
        quick
            .wait("data", &json!({"length": 15_000, "text": last}))
            .await;
    }
    settled(&mut ann, &mut [&mut quick], "after").await;
    let messages = quick.all("data");
    let numbers = messages
        .iter()
        .filter(|message| message["length"] == 15_000);
    let numbers = numbers.map(|message| {
        let text = message["text"].as_str().unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    });
    assert_eq!(
        numbers.collect::<Vec<u32>>(),
        (0..MESSAGES).collect::<Vec<_>>()
    );
    kill_process(pid, Signal::CONT).unwrap();
    // It lost too much to go on, and starts anew; it may have resumed before it was told so, and what was sent then is
    // lost with the rest.
    if stopped.elapsed() < SILENCE {
        slow.next("reconnected", &json!({})).await;
    } else {
        // On a busy machine it was silent for so long that it counts as gone.
        slow = join(&server, Kind::Python, "kitchen", "slow").await;
    }
    for attempt in 0.. {
        let text = format!("again {attempt}");
        settled(&mut ann, &mut [&mut quick], &text).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        if slow.count("data", &json!({"text": text})) == 1 {
            break;
        }
        assert!(attempt < 20, "nothing reaches the one who starts anew");
    }
}
