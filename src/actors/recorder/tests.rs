//! A whole recording in virtual time, from the tap to the file.

use std::fs::File;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use tokio::task::LocalSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;

use super::*;
use vivavoce_audio::decode::{FileDecoder, FileLimits};
use vivavoce_audio::ogg::{OggItem, OggOpusReader};
use vivavoce_audio::recording_clock::impaired_network::{arrivals, impaired_network, is_paused};
use vivavoce_recordings::AUDIO;
use vivavoce_recordings::journal::{FinishedJournal, Journals};
use vivavoce_recordings::redaction::Pattern;
use vivavoce_recordings::writers::Writers;
use vivavoce_seams::Word;

const RATE: SampleRate = SampleRate::HZ_16000;
const CHUNK: usize = 320;

fn metadata() -> Metadata {
    Metadata {
        stream_id: "one".to_owned(),
        tenant: None,
        public: false,
        started_at: 0,
        duration_ms: 0,
        size: 0,
        sha256: String::new(),
        channels: 0,
        participants: Vec::new(),
        complete: false,
        goes_on: false,
        parts: Vec::new(),
        cut: false,
        continues: None,
        file: None,
    }
}

/// Records what `session` brings, and gives the finished file.
async fn recorded<F: Future<Output = ()>>(
    folder: &Path,
    channels: Channels,
    session: impl FnOnce(Tap, Instant) -> F,
) -> std::path::PathBuf {
    recorded_by(folder, channels, None, session).await
}

/// The same without what this leaves out.
async fn recorded_by<F: Future<Output = ()>>(
    folder: &Path,
    channels: Channels,
    redaction: Option<Redaction>,
    session: impl FnOnce(Tap, Instant) -> F,
) -> std::path::PathBuf {
    // In its own time, not the machine's.
    let journals = Journals::open_with(folder.to_owned(), Writers::none()).unwrap();
    let recording = Recording {
        journal: journals
            .begin_part(&metadata(), false, redaction.is_some())
            .unwrap(),
        settings: RecordingSettings {
            channels,
            complexity: 0,
        },
        work: TaskTracker::new().token(),
    };
    let start = Instant::now();
    let tap = Tap::new(RATE, RATE, channels, start)
        .silencing(redaction.is_some())
        .redacting(redaction.unwrap_or_default());
    let ended = CancellationToken::new();
    let local = LocalSet::new();
    let task = local.spawn_local(record(tap.clone(), recording, ended.clone()));
    local
        .run_until(async {
            session(tap, start).await;
            ended.cancel();
            task.await.unwrap().unwrap();
        })
        .await;
    let finished = journals.finish("one").unwrap().unwrap();
    assert!(finished.metadata.complete);
    finished.file(AUDIO)
}

fn tone() -> Pcm {
    let wave = |n: usize| (n as f64 * 440.0 * std::f64::consts::TAU / 16_000.0).sin() * 12_000.0;
    Pcm::new(
        Layout::mono(RATE),
        (0..CHUNK).map(|n| wave(n) as i16).collect(),
    )
}

/// Where a side of the file becomes loud after 50 ms of quiet, in milliseconds.
fn onsets(file: &Path) -> [Vec<u64>; 2] {
    let limits = FileLimits {
        duration: Duration::from_hours(1),
    };
    let mut onsets = [Vec::new(), Vec::new()];
    let mut quiet = [2_400; 2];
    let mut frame = 0;
    for sound in FileDecoder::open(File::open(file).unwrap(), limits).unwrap() {
        let sound = sound.unwrap();
        assert_eq!(
            sound.layout(),
            Layout::new(SampleRate::HZ_48000, Channels::Stereo)
        );
        for samples in sound.samples().chunks(2) {
            for side in 0..2 {
                let loud = samples[side].unsigned_abs() > 2_000;
                if loud && quiet[side] >= 2_400 {
                    onsets[side].push(frame / 48);
                }
                quiet[side] = if loud { 0 } else { quiet[side] + 1 };
            }
            frame += 1;
        }
    }
    onsets
}

/// Ten minutes in the long run, one otherwise.
#[tokio::test(start_paused = true)]
async fn both_sides_are_in_step_in_the_file_from_first_to_last() {
    let minutes = std::env::var_os("VIVAVOCE_LONG").map_or(1, |_| 10);
    let seconds = minutes * 60;
    let folder = tempfile::tempdir().unwrap();
    let file = recorded(folder.path(), Channels::Stereo, async |tap, start| {
        let silence = Pcm::new(Layout::mono(RATE), vec![0; CHUNK]);
        let heard = arrivals(seconds * 50, &mut impaired_network(3)).into_iter();
        let heard = heard.map(|(at, chunk)| (at, Some(chunk)));
        let played = (0..seconds).map(|second| (second * 1_000 + 500, None));
        let mut events: Vec<_> = heard.chain(played).collect();
        events.sort_by_key(|(at, _)| *at);
        for (at, event) in events {
            sleep_until(start + Duration::from_millis(at)).await;
            match event {
                Some(chunk) if chunk % 50 < 5 => tap.hear(&tone(), None, Instant::now()),
                Some(_) => tap.hear(&silence, None, Instant::now()),
                None => (0..5).for_each(|chunk| tap.play(&tone(), FRAME * chunk)),
            }
        }
        sleep_until(start + Duration::from_secs(seconds)).await;
    })
    .await;
    let [heard, played] = onsets(&file);
    let expected = (0..seconds).filter(|second| !is_paused(second * 50));
    let expected = [
        expected.map(|second| second * 1_000).collect::<Vec<_>>(),
        (0..seconds).map(|second| second * 1_000 + 500).collect(),
    ];
    for (found, expected) in [heard, played].iter().zip(&expected) {
        assert_eq!(found.len(), expected.len());
        let errors = found.iter().zip(expected);
        let worst = errors
            .map(|(found, expected)| found.abs_diff(*expected))
            .max();
        println!("{} bursts, at most {worst:?} ms off", found.len());
        assert!(worst <= Some(20), "{found:?}");
    }
}

fn redaction() -> Redaction {
    Redaction {
        patterns: vec![Pattern::parse("8642").unwrap()],
        ..Redaction::default()
    }
}

/// A final of these words, and when they begin and end.
fn of_words<const N: usize>(words: [(&str, f64, f64); N]) -> SttResult {
    SttResult {
        transcript: words.map(|(word, ..)| word).join(" "),
        is_final: true,
        is_speech_final: false,
        confidence: None,
        turn_transcript: None,
        words: words
            .map(|(word, start, end)| Word {
                word: word.to_owned(),
                start,
                end,
                confidence: None,
                speaker: None,
            })
            .into(),
        backchannel: false,
        language: None,
        identity: None,
    }
}

/// One with a number that is left out, and when that was spoken, where it is known.
fn with_number(time: Option<f64>) -> SttResult {
    let start = time.unwrap_or_default();
    let mut result = of_words([
        ("8642", start, start + 0.3),
        ("thanks", start + 1.0, start + 1.3),
    ]);
    if time.is_none() {
        result.words.clear();
    }
    result
}

fn without_number() -> SttResult {
    SttResult {
        transcript: "hello".to_owned(),
        ..of_words([])
    }
}

/// In which tenths of a second each side of a file is silent.
fn silences(file: &Path) -> [Vec<usize>; 2] {
    let limits = FileLimits {
        duration: Duration::from_hours(1),
    };
    let mut sides = [Vec::new(), Vec::new()];
    for sound in FileDecoder::open(File::open(file).unwrap(), limits).unwrap() {
        for frame in sound.unwrap().samples().chunks(2) {
            sides[0].push(frame[0]);
            sides[1].push(frame[1]);
        }
    }
    sides.map(|side| {
        let tenths = side.chunks_exact(4_800).enumerate();
        let silent = tenths.filter(|(_, part)| part.iter().all(|one| one.unsigned_abs() < 1_000));
        silent.map(|(at, _)| at).collect()
    })
}

/// Ten seconds that both speak, and finals on the way; what the client says is on the left.
#[tokio::test(start_paused = true)]
async fn what_is_left_out_of_the_transcript_is_silent_where_it_was_spoken() {
    // By the times of the words, also with a gap since; and without them since the final before. Words are spoken at 4 s,
    // the finals come at 2 s and 7 s.
    for (times, gap, silent) in [
        (Some(4.0), None, 38..45),
        (None, None, 0..72),
        (Some(4.0), Some(250..300), 38..45),
        (Some(f64::NAN), None, 0..72),
        (Some(100.0), None, 0..72),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = recorded_by(
            folder.path(),
            Channels::Stereo,
            Some(redaction()),
            async |tap, start| {
                let mut heard = Duration::ZERO;
                for chunk in 0..500 {
                    sleep_until(start + FRAME * (chunk + 1)).await;
                    if !gap.clone().is_some_and(|gap| gap.contains(&chunk)) {
                        tap.hear(&tone(), None, Instant::now());
                        heard += FRAME;
                    }
                    tap.play(&tone(), Duration::ZERO);
                    if chunk == 100 {
                        tap.note_final(&without_number(), heard);
                    }
                    if chunk == 350 {
                        tap.note_final(&with_number(times), heard);
                    }
                }
            },
        )
        .await;
        let [left, right] = silences(&file);
        // The codec rings on for some milliseconds.
        let unheard = gap.map_or(0..0, |_| 51..60);
        let expected: Vec<usize> = (0..100)
            .filter(|at| silent.contains(at) || unheard.contains(at))
            .collect();
        assert_eq!(left, expected, "{times:?}");
        assert_eq!(right, Vec::<usize>::new(), "{times:?}");
    }
}

/// As it is read out, with pauses; the final of each group tells the times of its own words.
#[tokio::test(start_paused = true)]
async fn a_number_that_is_read_out_over_several_finals_is_silent() {
    let folder = tempfile::tempdir().unwrap();
    let session = async |tap: Tap, start| {
        for chunk in 0..500 {
            sleep_until(start + FRAME * (chunk + 1)).await;
            tap.hear(&tone(), None, Instant::now());
            let heard = FRAME * (chunk + 1);
            for (group, text) in ["um", "86", "42", "thanks"].into_iter().enumerate() {
                if chunk as usize == 100 + 100 * group {
                    let start = (2 * group) as f64 + 1.0;
                    tap.note_final(&of_words([(text, start, start + 0.3)]), heard);
                }
            }
        }
    };
    let file = recorded_by(folder.path(), Channels::Stereo, Some(redaction()), session).await;
    let [left, _] = silences(&file);
    assert_eq!(
        left,
        [28, 29, 30, 31, 32, 33, 34, 48, 49, 50, 51, 52, 53, 54]
    );
}

/// Each hears the other meanwhile: the second begins before the first has ended.
#[tokio::test(start_paused = true)]
async fn an_utterance_that_says_a_number_is_silent() {
    let folder = tempfile::tempdir().unwrap();
    let session = async |tap: Tap, start| {
        for chunk in 0..500 {
            sleep_until(start + FRAME * (chunk + 1)).await;
            tap.hear(&tone(), None, Instant::now());
            tap.play(&tone(), Duration::ZERO);
            match chunk {
                50 => tap.begins(0),
                150 => tap.begins(1),
                200 => tap.ends(0, "your number is 8642"),
                300 => tap.ends(1, "goodbye"),
                _ => {}
            }
        }
    };
    let file = recorded_by(folder.path(), Channels::Stereo, Some(redaction()), session).await;
    let [left, right] = silences(&file);
    assert_eq!(left, Vec::<usize>::new());
    assert_eq!(right, (8..42).collect::<Vec<_>>());
}

/// The process dies with the last word of the last final understood, and in the middle of an utterance.
#[tokio::test(start_paused = true)]
async fn what_nobody_has_understood_when_it_dies_is_silent() {
    let folder = tempfile::tempdir().unwrap();
    let (sender, died) = oneshot::channel();
    let session = async |tap: Tap, start| {
        for chunk in 0..300 {
            sleep_until(start + FRAME * (chunk + 1)).await;
            tap.hear(&tone(), None, Instant::now());
            tap.play(&tone(), Duration::ZERO);
            match chunk {
                100 => tap.note_final(&of_words([("hello", 0.5, 1.55)]), FRAME * 101),
                200 => tap.begins(0),
                _ => {}
            }
        }
        let copy = tempfile::tempdir().unwrap();
        // What is on the disk by now.
        for file in std::fs::read_dir(folder.path().join("one")).unwrap() {
            let file = file.unwrap();
            let to = copy.path().join("one");
            std::fs::create_dir_all(&to).unwrap();
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
        sender.send(copy).unwrap();
    };
    recorded_by(folder.path(), Channels::Stereo, Some(redaction()), session).await;
    let copy = died.await.unwrap();
    let journals = Journals::open_with(copy.path().to_owned(), Writers::none()).unwrap();
    let finished = journals.finish("one").unwrap().unwrap();
    assert!(!finished.metadata.complete);
    let [left, right] = silences(&finished.file(AUDIO));
    assert_eq!(left.first(), Some(&16));
    assert_eq!(right.first(), Some(&38));
    let length = finished.metadata.duration_ms as usize / 100;
    assert!((45..60).contains(&length), "{length}");
    assert_eq!(left.len(), length - 16);
    assert_eq!(right.len(), length - 38);
    // A second time it is as it was.
    std::fs::remove_file(finished.file("metadata.json")).unwrap();
    drop(finished);
    let finished = journals.finish("one").unwrap().unwrap();
    assert_eq!(silences(&finished.file(AUDIO)), [left, right]);
}

/// The packets of a file.
fn packets(file: &Path) -> Vec<Vec<u8>> {
    let mut reader = OggOpusReader::new();
    reader.push(&std::fs::read(file).unwrap());
    let mut packets = Vec::new();
    while let Some(item) = reader.next_item().unwrap() {
        if let OggItem::Packet(packet) = item {
            packets.push(packet.data.to_vec());
        }
    }
    packets
}

#[tokio::test(start_paused = true)]
async fn packets_of_one_source_are_in_the_file_as_they_came() {
    let mut encoder = OpusEncoder::new(Layout::mono(RATE), OpusSettings::SPEECH).unwrap();
    let mut packet = vec![0; MAX_FRAME_PACKET];
    let sent: Vec<_> = (0..150)
        .map(|_| {
            let len = encoder.encode(tone().samples(), &mut packet).unwrap();
            packet[..len].to_vec()
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let file = recorded(folder.path(), Channels::Mono, async |tap, start| {
        for (number, packet) in sent.iter().enumerate() {
            // A gap of 505 ms.
            let gap = if number < 50 { 0 } else { 505 };
            let at = start + Duration::from_millis((number as u64 + 1) * 20 + gap);
            sleep_until(at).await;
            tap.hear(&tone(), Some(packet), at);
        }
    })
    .await;
    let found = packets(&file);
    let (silent, passed): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|packet| packet.ends_with(&[0xFF, 0xFE]) && packet.len() == 3);
    assert_eq!(passed[..150], sent);
    // What is behind them belongs to the end of the stream.
    assert!(passed.len() <= 151);
    let silent: u32 = silent
        .iter()
        .map(|packet| clock_frames(packet).unwrap())
        .sum();
    assert!(silent >= 48 * 505, "{silent}");
    assert!(silent <= 48 * 525, "{silent}");
}

/// Writers whose threads are all held up until the sender is dropped.
fn held_writers() -> (Writers, Sender<()>) {
    let writers = Writers::start().unwrap();
    let (go, gate) = channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    for _ in 0..16 {
        let gate = Arc::clone(&gate);
        let held = writers.submit(Job {
            work: Box::new(move |_| {
                let _ = gate.lock().unwrap().recv();
            }),
            since: std::time::Instant::now(),
        });
        assert!(held.is_ok());
    }
    (writers, go)
}

/// Starts a recorder in stereo, and gives its task to `session`; then it is finished.
async fn records<F: Future<Output = ()>>(
    writers: Writers,
    session: impl FnOnce(Tap, CancellationToken, tokio::task::JoinHandle<Result<(), RecordError>>) -> F,
) -> FinishedJournal {
    let folder = tempfile::tempdir().unwrap();
    let journals = Journals::open_with(folder.path().to_owned(), writers).unwrap();
    let recording = Recording {
        journal: journals.begin(&metadata()).unwrap(),
        settings: RecordingSettings {
            channels: Channels::Stereo,
            complexity: 0,
        },
        work: TaskTracker::new().token(),
    };
    let tap = Tap::new(RATE, RATE, Channels::Stereo, Instant::now());
    let ended = CancellationToken::new();
    let local = LocalSet::new();
    let task = local.spawn_local(record(tap.clone(), recording, ended.clone()));
    local.run_until(session(tap, ended, task)).await;
    // After a failure a writer may still hold it.
    journals.ends().await;
    journals.finish("one").unwrap().unwrap()
}

/// As much of the tone as the recorder takes in the meantime, so many times.
async fn flood(tap: &Tap, times: usize, mut goes_on: impl FnMut() -> bool) -> Duration {
    let tone = tone();
    let mut sent = Duration::ZERO;
    for _ in 0..times {
        if !goes_on() {
            break;
        }
        for _ in 0..PIECES_AT_ONCE {
            tap.hear(&tone, None, Instant::now());
            sent += FRAME;
        }
        tokio::task::yield_now().await;
    }
    sent
}

#[tokio::test(start_paused = true)]
async fn a_flood_that_is_not_written_fails_the_recording_while_it_lasts() {
    let (writers, go) = held_writers();
    let finished = records(writers, async |tap, _ended, task| {
        // The recorder is behind before the flood begins.
        flood(&tap, 10, || true).await;
        tokio::time::sleep(TICK * 2).await;
        let half_an_hour = 30 * 60 * 50 / PIECES_AT_ONCE;
        let sent = flood(&tap, half_an_hour, || !task.is_finished()).await;
        println!("{} s before it failed", sent.as_secs());
        // 8 MiB are two minutes of this layout.
        assert!(sent < Duration::from_mins(3), "{sent:?}");
        drop(go);
        assert!(matches!(task.await.unwrap(), Err(RecordError::Slow)));
    })
    .await;
    // What was written is kept.
    assert_eq!(finished.metadata.stream_id, "one");
}

#[tokio::test(start_paused = true)]
async fn a_flood_that_is_written_is_recorded_whole() {
    let mut sent = Duration::ZERO;
    let finished = records(Writers::none(), async |tap, ended, task| {
        // More than may wait, before any tick has passed.
        sent = flood(&tap, 5 * 60 * 50 / PIECES_AT_ONCE, || true).await;
        ended.cancel();
        task.await.unwrap().unwrap();
    })
    .await;
    let recorded = Duration::from_millis(finished.metadata.duration_ms);
    println!("{recorded:?} of {sent:?}");
    assert!(recorded.abs_diff(sent) <= FRAME, "{recorded:?} of {sent:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_left_at_the_end_waits_for_the_disk() {
    let mut sent = Duration::ZERO;
    let (writers, go) = held_writers();
    let finished = records(writers, async |tap, ended, task| {
        let two_minutes = 120 * 50 / PIECES_AT_ONCE;
        sent = flood(&tap, two_minutes, || true).await;
        // More than the bound, together.
        for _ in 0..15 * 50 {
            tap.hear(&tone(), None, Instant::now());
            sent += FRAME;
        }
        ended.cancel();
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        assert!(!task.is_finished());
        drop(go);
        task.await.unwrap().unwrap();
    })
    .await;
    let recorded = Duration::from_millis(finished.metadata.duration_ms);
    assert!(recorded.abs_diff(sent) <= FRAME, "{recorded:?} of {sent:?}");
}

#[tokio::test(start_paused = true)]
async fn audio_that_the_clock_cannot_hold_fails_the_recording() {
    records(Writers::none(), async |tap, _ended, task| {
        for _ in 0..40 * 50 {
            tap.hear(&tone(), None, Instant::now());
        }
        assert!(matches!(task.await.unwrap(), Err(RecordError::Slow)));
    })
    .await;
}

/// What a second of two voices becomes at this complexity.
fn encoded(complexity: u8, quickly: bool) -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let journals = Journals::open_with(folder.path().to_owned(), Writers::none()).unwrap();
    let settings = RecordingSettings {
        channels: Channels::Stereo,
        complexity,
    };
    let layout = Layout::new(RATE, Channels::Stereo);
    let mut pages = Pages::new(layout, settings, &[]).unwrap();
    pages.begin();
    let scribe = Scribe {
        pages,
        journal: journals.begin(&metadata()).unwrap(),
    };
    let voice = |n: usize| {
        let at = n as f64 / 16_000.0;
        let glides = 150.0 + 60.0 * (at * 9.0).sin();
        ((at * glides * std::f64::consts::TAU).sin().powi(9) * 9_000.0) as i16
    };
    let sides: Vec<i16> = (0..16_000).flat_map(|n| [voice(n), voice(n / 2)]).collect();
    let blocks = sides.chunks(2 * CHUNK);
    let piece = Unwritten {
        sound: blocks.map(|block| Sound::Block(block.into())).collect(),
        end: Some(End {
            frames: 16_000,
            goes_on: false,
        }),
        ..Unwritten::default()
    };
    assert!(scribe.write(&piece, quickly).unwrap().is_none());
    packets(&journals.finish("one").unwrap().unwrap().file(AUDIO))
}

#[test]
fn what_is_written_quickly_is_encoded_as_quickly_as_possible() {
    let well = encoded(5, false);
    let quickly = encoded(5, true);
    assert!(well.len() >= 50);
    assert_ne!(well, quickly);
    assert_eq!(quickly, encoded(0, false));
}
