//! The clock under bad input.

use super::impaired_network::{arrivals, impaired_network, is_paused};
use super::*;

const RATE: SampleRate = SampleRate::HZ_16000;
const MS: usize = 16;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn stereo() -> RecordingClock {
    RecordingClock::new(Layout::new(RATE, Channels::Stereo))
}

fn loud(frames: usize) -> Pcm {
    Pcm::new(Layout::mono(RATE), vec![10_000; frames])
}

fn finish(clock: &mut RecordingClock, end: Duration, blocks: &mut Vec<i16>) -> u64 {
    let total = clock.finish(end);
    while clock.take(end, blocks).is_some() {}
    total
}

/// The edges, in milliseconds, at which a side becomes loud.
fn onsets(blocks: &[i16], side: usize) -> Vec<usize> {
    let loud: Vec<_> = blocks
        .iter()
        .skip(side)
        .step_by(2)
        .map(|s| *s > 5_000)
        .collect();
    let mut before = false;
    let mut onsets = Vec::new();
    for (frame, now) in loud.into_iter().enumerate() {
        if now && !before {
            onsets.push(frame / MS);
        }
        before = now;
    }
    onsets
}

/// A sender with 100 ms of tone each second, in chunks of 20 ms. `fate` says when a chunk comes, in milliseconds
/// after it was said, or that it never does. What is played is the same tone, half a second later.
fn converse(seconds: u64, mut fate: impl FnMut(u64) -> Option<u64>) -> (Vec<i16>, u64) {
    let mut clock = stereo();
    let arrivals = arrivals(seconds * 50, &mut fate);
    let mut arrivals = arrivals.into_iter().peekable();
    let mut blocks = Vec::new();
    for now in 0..seconds * 1_000 {
        while let Some((_, chunk)) = arrivals.next_if(|(at, _)| *at <= now) {
            let level = if chunk % 50 < 5 { 10_000 } else { 20 };
            let sound = Pcm::new(Layout::mono(RATE), vec![level; 20 * MS]);
            clock.hear(&sound, None, ms(now));
        }
        if now % 1_000 == 500 {
            for chunk in 0..5 {
                clock.play(&loud(20 * MS), ms(now), ms(chunk * 20));
            }
        }
        if now % 100 == 0 {
            while clock.take(ms(now), &mut blocks).is_some() {}
        }
    }
    let total = finish(&mut clock, ms(seconds * 1_000), &mut blocks);
    (blocks, total)
}

/// By how many milliseconds each burst that was heard lies behind the truth. Those that were played are where they
/// belong.
fn errors(blocks: &[i16], seconds: u64, heard: impl Fn(u64) -> bool) -> Vec<i64> {
    let played: Vec<_> = (0..seconds).map(|n| (n * 1_000 + 500) as usize).collect();
    let found = onsets(blocks, 1);
    assert_eq!(found.len(), played.len());
    for (found, expected) in found.iter().zip(played) {
        assert!(
            found.abs_diff(expected) <= 1,
            "{found} instead of {expected}"
        );
    }
    let expected: Vec<_> = (0..seconds).filter(|n| heard(*n)).collect();
    let found = onsets(blocks, 0);
    assert_eq!(found.len(), expected.len(), "{found:?}");
    let found = found.into_iter().zip(expected);
    found
        .map(|(found, expected)| found as i64 - expected as i64 * 1_000)
        .collect()
}

#[test]
fn sound_that_comes_as_it_is_said_is_where_it_was_said() {
    let (blocks, total) = converse(10, |_| Some(0));
    assert_eq!(errors(&blocks, 10, |_| true), [0; 10]);
    assert_eq!(total, 10 * 16_000);
    assert_eq!(blocks.len(), 2 * 10 * 16_000);
}

#[test]
fn ten_minutes_of_jitter_loss_and_pauses_stay_in_step() {
    let (mut bursts, mut off) = (0, 0);
    for seed in 1..=8 {
        let (blocks, _) = converse(600, impaired_network(seed));
        let errors = errors(&blocks, 600, |second| !is_paused(second * 50));
        assert!(errors.iter().all(|error| error.abs() <= 40), "{errors:?}");
        bursts += errors.len();
        off += errors.iter().filter(|error| error.abs() > 20).count();
        // Nothing adds up.
        let mean = |errors: &[i64]| errors.iter().sum::<i64>() / errors.len() as i64;
        let drift = mean(&errors[..100]) - mean(&errors[errors.len() - 100..]);
        assert!(drift.abs() <= 3, "{drift} ms");
    }
    // What nobody can tell apart in time, without time stamps: a gap and a delay.
    assert!(off * 500 <= bursts * 2, "{off} of {bursts}");
}

#[test]
fn sound_that_is_cut_was_not_heard() {
    let mut clock = stereo();
    for chunk in 0..10 {
        clock.play(&loud(20 * MS), ms(1_000), ms(chunk * 20));
    }
    // 50 ms later everything that was not heard yet is cut.
    clock.cut(ms(150));
    let mut blocks = Vec::new();
    finish(&mut clock, ms(2_000), &mut blocks);
    let loud = blocks.iter().skip(1).step_by(2).filter(|s| **s > 0).count();
    assert_eq!(loud, 50 * MS);
    assert_eq!(onsets(&blocks, 1), [1_000]);
}

#[test]
fn a_sender_faster_than_time_loses_nothing() {
    let mut clock = stereo();
    let mut blocks = Vec::new();
    for chunk in 0..3_000_u64 {
        clock.hear(&loud(20 * MS), None, ms(chunk / 100));
        while clock.take(ms(chunk / 100), &mut blocks).is_some() {}
    }
    finish(&mut clock, ms(30), &mut blocks);
    let loud = blocks.iter().step_by(2).filter(|s| **s > 0).count();
    assert_eq!(loud, 3_000 * 20 * MS);
}

#[test]
fn what_waits_is_bounded() {
    let mut clock = stereo();
    for chunk in 0..10_000_u64 {
        clock.hear(&loud(20 * MS), None, Duration::ZERO);
        clock.play(&loud(20 * MS), Duration::ZERO, ms(chunk * 20));
    }
    let waits = clock.heard.ready.len().max(clock.played.ready.len());
    assert!(waits <= clock.max_ready());
    assert!(clock.dropped() > ms(1));
}

#[test]
fn packets_that_wait_are_bounded_in_bytes() {
    let mut clock = RecordingClock::new(Layout::mono(RATE));
    // 2.5 ms and padding.
    let mut packet = vec![0; 50_000];
    packet[0] = 0xE0;
    for _ in 0..1_000 {
        clock.hear(&loud(40), Some(&packet), Duration::ZERO);
    }
    let waiting = clock
        .waiting
        .iter()
        .filter_map(|chunk| chunk.packet.as_ref());
    let passed = clock.passed.pieces.iter();
    let passed = passed.filter_map(|piece| piece.packet.as_ref());
    let bytes: usize = waiting.chain(passed).map(Bytes::len).sum();
    assert!(bytes <= MAX_PACKETS, "{bytes}");
    assert_eq!(bytes, clock.packet_bytes);
    assert!(clock.dropped() > ms(1));
    clock.finish(ms(1));
    while clock.take(ms(1), &mut Vec::new()).is_some() {}
    assert_eq!(clock.packet_bytes, 0);
}

#[test]
fn nothing_is_added_after_the_end() {
    let mut clock = stereo();
    let total = clock.finish(ms(20));
    clock.hear(&loud(20 * MS), None, ms(20));
    clock.play(&loud(20 * MS), ms(20), ms(0));
    assert!(clock.held().is_zero());
    let mut clock = RecordingClock::new(Layout::mono(RATE));
    assert_eq!(clock.finish(ms(20)), total);
    clock.hear(&loud(20 * MS), Some(&[0xF8, 0xFF, 0xFE]), ms(20));
    assert!(clock.held().is_zero());
}

#[test]
fn both_sides_are_mixed_in_mono() {
    let mut clock = RecordingClock::new(Layout::mono(RATE));
    clock.hear(&loud(20 * MS), None, ms(20));
    clock.play(
        &Pcm::new(Layout::mono(RATE), vec![30_000; 20 * MS]),
        ms(0),
        ms(0),
    );
    let mut blocks = Vec::new();
    assert_eq!(finish(&mut clock, ms(20), &mut blocks), 20 * MS as u64);
    assert!(blocks.iter().all(|sample| *sample == i16::MAX));
}

#[test]
fn packets_end_with_the_last_of_them() {
    for end in 100..130 {
        let mut clock = RecordingClock::new(Layout::mono(RATE));
        clock.hear(&loud(20 * MS), Some(&[0xF8, 0xFF, 0xFE]), ms(50));
        let total = clock.finish(ms(end));
        assert_eq!(total, end * MS as u64);
        let mut last = 0;
        while let Some(piece) = clock.take(ms(end), &mut Vec::new()) {
            assert!(last < total, "{piece:?} begins beyond the end, {end}");
            last = clock.frames();
        }
        assert!(last >= total && last - total < 40, "{last} of {total}");
    }
}

#[test]
fn packets_are_passed_on_until_something_is_played() {
    let mut clock = RecordingClock::new(Layout::mono(RATE));
    // 20 ms of silence in the code of CELT, told apart by their padding.
    let packet = |n: u8| [0xF8, 0xFF, 0xFE, n];
    let mut pieces = Vec::new();
    let mut blocks = Vec::new();
    for n in 0..100 {
        let now = ms(u64::from(n) * 20);
        // A gap of 390 ms, for the first one came before it could have been said.
        match n {
            0..20 => clock.hear(&loud(20 * MS), Some(&packet(n)), now),
            40..100 => clock.hear(&loud(20 * MS), Some(&packet(n)), now + ms(10)),
            _ => {}
        }
        if n == 80 {
            clock.play(&loud(20 * MS), now, ms(0));
        }
        pieces.extend(std::iter::from_fn(|| clock.take(now, &mut blocks)));
    }
    assert_eq!(clock.finish(ms(2_000)), 2_000 * MS as u64);
    pieces.extend(std::iter::from_fn(|| clock.take(ms(2_000), &mut blocks)));
    let known = pieces.iter().filter_map(|piece| match piece {
        Piece::Packet(packet) => packet.get(3).copied(),
        _ => None,
    });
    let known: Vec<_> = known.collect();
    let passed: Vec<_> = (0..20).chain(40..=60).collect();
    assert_eq!(known, passed);
    let units = |piece: &Piece| match piece {
        Piece::Silence(units) => *units,
        _ => 0,
    };
    assert_eq!(pieces.iter().map(units).sum::<u32>(), 390 * 2 / 5);
    // From there on there are blocks, and what was heard goes on in them.
    assert_eq!(pieces.iter().rposition(|piece| units(piece) > 0), Some(39));
    assert!(matches!(pieces.last(), Some(Piece::Block)));
    assert!(blocks.iter().take(400 * MS).all(|sample| *sample >= 10_000));
}

#[test]
fn it_is_known_where_input_is() {
    let mut clock = stereo();
    let mut blocks = Vec::new();
    let (mut came, mut bursts) = (0_u64, Vec::new());
    let mut arrivals = arrivals(60 * 50, &mut impaired_network(3))
        .into_iter()
        .peekable();
    for now in 0..60_000 {
        while let Some((_, chunk)) = arrivals.next_if(|(at, _)| *at <= now) {
            came += 20;
            // Some of it is not recorded.
            if (1_000..1_100).contains(&chunk) {
                clock.miss(ms(20));
                continue;
            }
            let level = if chunk % 50 < 5 { 10_000 } else { 20 };
            let sound = Pcm::new(Layout::mono(RATE), vec![level; 20 * MS]);
            clock.hear(&sound, None, ms(now));
            if chunk % 50 == 0 {
                bursts.push((came - 20, clock.place_of_input(ms(20))));
            }
        }
        if now % 100 == 0 {
            while clock.take(ms(now), &mut blocks).is_some() {}
        }
    }
    finish(&mut clock, ms(60_000), &mut blocks);
    let found = onsets(&blocks, 0);
    assert_eq!(found.len(), bursts.len());
    assert!(found.len() > 40, "{found:?}");
    for (found, (at, first)) in found.into_iter().zip(bursts) {
        let found = ms(found as u64);
        let place = clock.place_of_input(ms(came - at));
        assert_eq!(place.start, place.end);
        assert!(place.start.abs_diff(found) <= ms(1), "{place:?} {found:?}");
        // Before it was positioned it was between these, but for quiet samples that were dropped.
        let between = first.start.saturating_sub(ms(30))..first.end + ms(30);
        assert!(between.contains(&found), "{first:?} {found:?}");
    }
}
