//! Disks that are full or cannot be written: recordings stop or wait, sessions go on, and nothing that was kept is lost.
//! The disks are small ones of the server's own.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

use serde_json::json;

use crate::harness::{Server, eventually, ffprobe};
use crate::session::client::{Session, with};
use crate::session::recorded::{hears, left_behind, recorded, recording, stored};

const NULL: (&str, &str) = ("NULL_ENABLED", "true");
/// What takes the room on a disk.
const BALLAST: &str = "ballast";

/// Fills a disk up to so many bytes.
fn fill(disk: &Path, free: u64) {
    let mut file = File::create(disk.join(BALLAST)).unwrap();
    let mut size = 0;
    loop {
        match file.write(&[1; 4096]) {
            Ok(written) => size += written as u64,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
                break;
            }
        }
    }
    file.set_len(size - free).unwrap();
}

fn make_room(disk: &Path) {
    std::fs::remove_file(disk.join(BALLAST)).unwrap();
}

/// Lines of a log that complain.
fn complaints(log: &str) -> Vec<&str> {
    assert!(!log.contains("panicked"), "{log}");
    let is_one = |line: &&str| line.contains("WARN") || line.contains("ERROR");
    log.lines().filter(is_one).collect()
}

#[tokio::test]
async fn a_full_disk_ends_a_recording_once_and_the_session_goes_on() {
    let mut server = Server::start_on_disks(&[("recordings", "256k")], &[NULL]);
    let disk = server.inside("recordings");
    let mut session = Session::open(&server, recording("full")).await;
    hears(&session, 1).await;
    fill(&disk, 8 * 1024);
    let sound = hears(&session, 8);
    let failed = async {
        loop {
            let event = session.next("provider_event").await;
            if event.text("kind") == "recording" {
                return event;
            }
        }
    };
    let (failed, ()) = tokio::join!(failed, sound);
    assert_eq!(
        (failed.text("state"), failed.text("provider")),
        ("failed", "file")
    );
    assert!(failed.text("message").contains("No space left"), "{failed}");

    // It hears and speaks as before, on a disk that is still full.
    session.speak("after", "It goes on.").await;
    session.completion_of("after").await;
    let heard = session.events_of("stt_result").len();
    hears(&session, 2).await;
    let news = session.events_of("stt_result").len();
    assert!(news > heard, "{news} {heard}");
    let told = session.events_of("provider_event");
    let told = told
        .iter()
        .filter(|event| event.text("kind") == "recording");
    assert_eq!(told.count(), 1);
    session.close().await;

    // What there is of it needs no more room to be kept.
    let kept = stored(&server, "full").await;
    let file = server.data.path().join("kept.ogg");
    std::fs::write(&file, kept).unwrap();
    let seconds = ffprobe(&file, &[])["format"]["duration"].clone();
    let seconds: f64 = seconds.as_str().unwrap().parse().unwrap();
    assert!((1.0..9.0).contains(&seconds), "{seconds}");
    // Nothing of another recording fits, which is said, and a session without one is none the worse.
    let mut other = Session::connect(&server).await;
    fill(&disk, 0);
    other.send(recording("other")).await;
    let refused = other.refused("recording_unavailable").await;
    assert!(
        refused.text("message").contains("No space left"),
        "{refused}"
    );
    let without = with(recording("other"), json!({"recording": false}));
    other.send(without).await;
    other.next("ready").await;
    make_room(&disk);
    other.send(recording("other")).await;
    other.next("ready").await;
    other.close().await;
    stored(&server, "other").await;
    let log = server.log();
    let complaints = complaints(&log);
    assert_eq!(complaints.len(), 1, "{complaints:#?}");
    assert!(complaints[0].contains("a recording has failed"));
}

/// What finishing takes was set aside when the recording began; one that has nothing set aside waits for room.
#[tokio::test]
async fn a_recording_of_a_process_that_died_is_finished_on_a_disk_that_is_full() {
    let server = Server::start_on_disks(&[("recordings", "256k")], &[NULL]);
    let disk = server.inside("recordings");
    recorded(&server, "sample").await;
    let sound = stored(&server, "sample").await;
    let live = Session::open(&server, recording("live")).await;
    let journals = disk.join(".journal");
    let reserve = std::fs::read(journals.join("live/reserve")).unwrap();
    live.close().await;
    stored(&server, "live").await;
    for name in ["left", "poor"] {
        let journal = journals.join(format!(".{name}"));
        left_behind(&journal, name, &sound);
        if name == "left" {
            std::fs::write(journal.join("reserve"), &reserve).unwrap();
        }
    }
    fill(&disk, 0);
    let appears = |name: &str| {
        std::fs::rename(journals.join(format!(".{name}")), journals.join(name)).unwrap();
    };
    appears("poor");
    eventually("the one without a reserve is not tried", || {
        server
            .log_so_far()
            .contains("could not be uploaded; retrying later")
    })
    .await;
    appears("left");
    assert!(stored(&server, "left").await == sound);
    make_room(&disk);
    assert!(stored(&server, "poor").await == sound);
}

#[tokio::test]
async fn a_store_that_is_full_gets_everything_when_there_is_room() {
    let settings = [NULL, ("RECORDING_PREFIX", "kept")];
    let mut server = Server::start_on_disks(&[("kept", "64k")], &settings);
    let disk = server.inside("kept");
    fill(&disk, 0);
    recorded(&server, "patient").await;
    eventually("nobody says that the store is full", || {
        server.log_so_far().contains("the store is full")
    })
    .await;
    make_room(&disk);
    assert!(!stored(&server, "patient").await.is_empty());
    let names = std::fs::read_dir(disk.join("patient")).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["audio.ogg", "metadata.json", "transcript.jsonl"]);
    let log = server.log();
    let complaints = complaints(&log);
    assert_eq!(complaints.len(), 1, "{complaints:#?}");
}

#[tokio::test]
async fn journals_that_cannot_be_written_refuse_a_recording_and_nothing_else() {
    let server = Server::start_with(&[NULL]);
    let journals = server.data.path().join("recordings/.journal");
    std::fs::remove_dir(&journals).unwrap();
    std::fs::write(&journals, "in the way").unwrap();
    let mut session = Session::connect(&server).await;
    session.send(recording("a")).await;
    let refused = session.refused("recording_unavailable").await;
    assert!(
        refused
            .text("message")
            .contains("the journal cannot be written"),
        "{refused}"
    );
    session
        .send(with(recording("a"), json!({"recording": false})))
        .await;
    session.next("ready").await;
    std::fs::remove_file(&journals).unwrap();
    std::fs::create_dir(&journals).unwrap();
    session.send(recording("a")).await;
    session.next("ready").await;
    session.close().await;
    stored(&server, "a").await;
}
