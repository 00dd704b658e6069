//! Sound that goes past str0m: all of it arrives as if it had not.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use str0m_netem::NetemConfig;

use super::stage::{Stage, bad_network};

/// What was forwarded, and what of it past str0m.
fn counted(stage: &Stage) -> (u64, u64) {
    let counters = stage.bench.sfu.counters();
    (counters.forwarded_packets, counters.fast_packets)
}

/// Two who have joined, and the track of the first.
fn two(stage: &mut Stage) -> (usize, usize, str0m::media::Mid) {
    stage.sent_once = Some(HashSet::new());
    let (speaker, listener) = (stage.join("a"), stage.join("b"));
    stage.run(Duration::from_secs(1), &[]);
    let mid = stage.publish(speaker, "cid");
    stage.run(Duration::from_secs(1), &[]);
    (speaker, listener, mid)
}

#[test]
fn most_of_it_goes_past_str0m_and_nothing_is_lost_or_changed() {
    let mut stage = Stage::new(NetemConfig::new());
    let (speaker, listener, mid) = two(&mut stage);
    stage.run(Duration::from_secs(20), &[(speaker, mid)]);
    let (forwarded, fast) = counted(&stage);
    // One every four seconds, and one after each request of ICE.
    assert!(fast * 100 >= forwarded * 97, "{fast} of {forwarded}");
    let heard = stage.clients[listener].heard_of(speaker);
    assert!(heard.len() >= 998, "{}", heard.len());
    assert_eq!(heard, (1..=heard.len() as u64).collect::<Vec<_>>());
    let packets: Vec<_> = stage.clients[listener].heard.iter().collect();
    let numbers: Vec<u64> = packets.iter().map(|(_, packet)| *packet.seq_no).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
    let section = packets[0].0;
    for (in_section, packet) in packets {
        assert_eq!(*in_section, section);
        if packet.payload.starts_with(b"0 says") {
            let said = &packet.header.ext_vals;
            assert_eq!(
                (said.audio_level, said.voice_activity),
                (Some(-10), Some(true))
            );
        }
    }
}

#[test]
fn a_bad_network_makes_nothing_go_twice() {
    let mut stage = Stage::new(bad_network());
    let (speaker, listener) = (stage.join("a"), stage.join("b"));
    stage.sent_once = Some(HashSet::new());
    stage.run(Duration::from_secs(5), &[]);
    let mid = stage.publish(speaker, "cid");
    stage.run(Duration::from_secs(2), &[]);
    stage.run(Duration::from_secs(20), &[(speaker, mid)]);
    let heard = stage.clients[listener].heard_of(speaker).len();
    // Through two links of 5 % loss.
    assert!((820..1_000).contains(&heard), "{heard} of 1000");
    let (forwarded, fast) = counted(&stage);
    assert!(fast * 100 >= forwarded * 95, "{fast} of {forwarded}");
}

#[test]
fn who_asks_for_lost_sound_gets_it_from_str0m() {
    let mut stage = Stage::new(bad_network());
    stage.asks_again = true;
    let (speaker, listener) = (stage.join("a"), stage.join("b"));
    stage.run(Duration::from_secs(5), &[]);
    let mid = stage.publish(speaker, "cid");
    stage.run(Duration::from_secs(2), &[]);
    stage.run(Duration::from_secs(20), &[(speaker, mid)]);
    stage.run(Duration::from_secs(1), &[]);
    let (forwarded, fast) = counted(&stage);
    assert_eq!((fast, forwarded > 900), (0, true), "{forwarded}");
    let mut heard = stage.clients[listener].heard_of(speaker);
    heard.sort_unstable();
    heard.dedup();
    // Without that 5 % of what is forwarded is lost.
    assert!(
        heard.len() as u64 * 100 >= forwarded * 98,
        "{} of {forwarded}",
        heard.len()
    );
}

#[test]
fn who_has_closed_the_connection_is_sent_nothing_more() {
    let mut stage = Stage::new(NetemConfig::new());
    let (speaker, listener, mid) = two(&mut stage);
    stage.run(Duration::from_secs(2), &[(speaker, mid)]);
    stage.clients[listener].rtc.close().unwrap();
    stage.run(Duration::from_millis(100), &[(speaker, mid)]);
    let (_, before) = counted(&stage);
    stage.run(Duration::from_secs(2), &[(speaker, mid)]);
    assert_eq!(counted(&stage).1, before);
}

#[test]
fn it_is_closed_while_there_is_video_and_no_longer() {
    let mut stage = Stage::new(NetemConfig::new());
    let (speaker, listener, mid) = two(&mut stage);
    stage.run(Duration::from_secs(2), &[(speaker, mid)]);
    let (_, fast) = counted(&stage);
    // As if there had been some, whose publisher has left.
    for participant in stage.bench.sfu.participants.values_mut() {
        let down = participant.link.down_mut().unwrap();
        down.seek(100_000, 1_000_000, false);
    }
    stage.run(Duration::from_millis(20), &[(speaker, mid)]);
    stage.speak(speaker, mid);
    assert_eq!(counted(&stage).1, fast);
    stage.run(Duration::from_secs(2), &[(speaker, mid)]);
    // It is noticed when the room is looked after.
    let after = counted(&stage);
    assert!(after.1 - fast >= 75, "{fast}, {after:?}");
    let heard = stage.clients[listener].heard_of(speaker);
    assert_eq!(heard, (1..=heard.len() as u64).collect::<Vec<_>>());
}

#[test]
fn sender_reports_tell_the_time_of_sound_that_went_past() {
    let mut stage = Stage::new(NetemConfig::new());
    let (speaker, listener, mid) = two(&mut stage);
    stage.run(Duration::from_secs(30), &[(speaker, mid)]);
    let heard = &stage.clients[listener].heard;
    let mut reported = Vec::new();
    for (_, packet) in heard {
        let Some(report) = packet.last_sender_info else {
            continue;
        };
        if reported.last() == Some(&report.ntp_time) {
            continue;
        }
        reported.push(report.ntp_time);
        // The packet that came next after the report has about the time that the report says.
        let ahead = packet
            .header
            .timestamp
            .wrapping_sub(report.rtp_time.numer() as u32) as i32;
        assert!(
            ahead.abs() <= 2 * 960,
            "{ahead} after {} reports",
            reported.len()
        );
    }
    assert!(reported.len() >= 5, "{}", reported.len());
}

#[test]
fn after_a_restart_of_ice_nothing_goes_where_somebody_was() {
    let mut stage = Stage::new(NetemConfig::new());
    let (speaker, listener, mid) = two(&mut stage);
    stage.run(Duration::from_secs(2), &[(speaker, mid)]);
    stage.cut(listener);
    stage.resume(listener, vec![]);
    stage.run(Duration::from_secs(5), &[(speaker, mid)]);
    let heard = stage.clients[listener].heard_of(speaker);
    assert!(heard.len() >= 345, "{}", heard.len());
    assert_eq!(heard, (1..=heard.len() as u64).collect::<Vec<_>>());
    let (forwarded, fast) = counted(&stage);
    assert!(fast * 100 >= forwarded * 90, "{fast} of {forwarded}");
}

#[test]
fn a_section_that_carries_another_track_is_another_stream() {
    let mut stage = Stage::new(NetemConfig::new());
    let (speaker, listener, mut mid) = two(&mut stage);
    let mut sources = BTreeSet::new();
    for round in 0..3 {
        let before = stage.clients[listener].heard_of(speaker).len();
        stage.run(Duration::from_secs(2), &[(speaker, mid)]);
        let client = &stage.clients[listener];
        let heard = client.heard_of(speaker).len();
        assert!(heard >= before + 98, "{before}, {heard} in round {round}");
        sources.extend(client.heard.iter().map(|(_, packet)| *packet.header.ssrc));
        assert_eq!(sources.len(), round + 1);
        stage.unpublish(speaker, mid);
        stage.run(Duration::from_secs(1), &[]);
        mid = stage.publish(speaker, &format!("cid {round}"));
        stage.run(Duration::from_secs(1), &[]);
    }
    let (forwarded, fast) = counted(&stage);
    assert!(fast * 100 >= forwarded * 90, "{fast} of {forwarded}");
}
