//! The measurements measure: small runs of them, whose numbers must add up.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::*;

#[test]
fn a_small_load_is_carried_and_accounted_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("capacity.json");
    let output = vivavoce([
        "bench",
        "sessions",
        "--sessions",
        "3",
        "--seconds",
        "2",
        "--json",
        file.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let [server, echo] = document["outcomes"].as_array().unwrap().as_slice() else {
        panic!("{document}");
    };
    for outcome in [server, echo] {
        let number = |key: &str| {
            outcome[key]
                .as_f64()
                .unwrap_or_else(|| panic!("{key}: {outcome}"))
        };
        assert_eq!((number("sessions"), number("failures")), (3.0, 0.0));
        // A frame more or less at the edges, for each session.
        let frames = number("frames_sent") - number("frames_expected");
        assert!(frames.abs() <= 6.0, "{outcome}");
        assert!(number("audio_bytes") > 0.0, "{outcome}");
        // So little is used that the system may count it as nothing.
        assert!((0.0..1.0).contains(&number("server_load")), "{outcome}");
        assert!(
            outcome["answer_delay"]["count"].as_u64() > Some(0),
            "{outcome}"
        );
    }
    assert_eq!(
        (&server["of"], &echo["of"]),
        (&"server".into(), &"echo".into())
    );
    // Every frame is accounted for on its way in, and every chunk on its way out.
    for (delay, least) in [("input_delay", 290), ("output_delay", 100)] {
        assert!(server[delay]["count"].as_u64() > Some(least), "{server}");
        assert!(server[delay]["p50_ms"].as_f64() <= server[delay]["p99_ms"].as_f64());
    }
    assert!(stdout(&output).contains("sessions per core"));
}

/// What a mode of `bench` has written of a small run.
fn measured(mode: &str, rounds: &str) -> (String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("times.json");
    let output = vivavoce([
        "bench",
        mode,
        "--rounds",
        rounds,
        "--vendors",
        "google,azure",
        "--json",
        file.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let document = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    (stdout(&output), document)
}

#[test]
fn every_failure_of_a_pair_of_vendors_is_followed_by_the_other() {
    let (shown, document) = measured("fallback", "1");
    let samples = document["samples"].as_array().unwrap();
    // Two pairs, four failures.
    assert_eq!(samples.len(), 8, "{document}");
    for sample in samples {
        assert_ne!(sample["from"], sample["to"]);
        let time = |key: &str| sample[key].as_f64().unwrap();
        assert!(time("visible_ms") > 0.0, "{sample}");
        assert!(time("gap_ms") > 0.0, "{sample}");
    }
    assert!(shown.contains("voice cut off"), "{shown}");
}

#[test]
fn speech_is_timed_at_the_vendor_and_through_the_server() {
    let (shown, document) = measured("vendors", "3");
    let vendors = document["vendors"].as_array().unwrap();
    let names: Vec<_> = vendors.iter().map(|vendor| &vendor["vendor"]).collect();
    assert_eq!(names, ["google", "azure"]);
    for vendor in vendors {
        for times in ["raw_ms", "server_ms"] {
            let times = vendor[times].as_array().unwrap();
            assert_eq!(times.len(), 3, "{vendor}");
            assert!(times.iter().all(|time| time.as_f64() > Some(0.0)));
        }
        assert!(shown.contains(vendor["vendor"].as_str().unwrap()));
    }
}

#[test]
fn sessions_in_rooms_hear_are_heard_and_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agents.json");
    let cycles = if is_long() { "1000" } else { "5" };
    let output = vivavoce([
        "bench",
        "agents",
        "--sessions",
        "2",
        "--seconds",
        "8",
        "--cycles",
        cycles,
        "--json",
        file.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let outcomes = document["outcomes"].as_array().unwrap();
    let links: Vec<_> = outcomes.iter().map(|outcome| &outcome["link"]).collect();
    assert_eq!(links, ["embedded", "livekit"]);
    for outcome in outcomes {
        assert_eq!(outcome["failures"], 0, "{outcome}");
        // Two cycles of each, of which one may be cut off at an edge.
        for delay in ["mouth_to_stt", "tts_to_ear"] {
            assert!(outcome[delay]["count"].as_u64() >= Some(2), "{outcome}");
            assert!(outcome[delay]["p50_ms"].as_f64() > Some(0.0), "{outcome}");
        }
        assert!(
            outcome["lateness"]["count"].as_u64() > Some(200),
            "{outcome}"
        );
        let had = &outcome["cycles"];
        assert_eq!(had["count"].to_string(), cycles);
        for moment in ["before", "after"] {
            for what in ["sessions", "rooms", "participants"] {
                assert_eq!(had[moment][what], 0, "{what} {moment}: {outcome}");
            }
        }
    }
    assert!(stdout(&output).contains("mouth → STT"));
}

#[test]
fn telephones_call_hear_each_other_and_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calls.json");
    let output = vivavoce([
        "bench",
        "calls",
        "--calls",
        "4",
        "--seconds",
        "4",
        "--json",
        file.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let number = |key: &str| {
        document[key]
            .as_f64()
            .unwrap_or_else(|| panic!("{key}: {document}"))
    };
    assert_eq!((number("with_sound"), number("failures")), (4.0, 0.0));
    assert_eq!(document["answered"]["count"], 4, "{document}");
    // Each sends and gets 50 packets a second, and hears a voice in half of them.
    let expected = number("packets_expected");
    for (key, share) in [
        ("packets_sent", 1.0),
        ("packets_received", 1.0),
        ("packets_with_voice", 0.5),
    ] {
        let off = number(key) / (expected * share) - 1.0;
        assert!(off.abs() < 0.25, "{key}: {document}");
    }
    assert_eq!(document["packets_lost_there"], 0, "{document}");
    assert!(number("call_threads_load") > 0.0, "{document}");
    assert!(number("calls_per_core") > 0.0, "{document}");
    assert!(stdout(&output).contains("calls per core"));
}

#[test]
fn a_vendor_that_does_not_exist_is_told_with_those_that_do() {
    for mode in ["fallback", "vendors"] {
        let output = vivavoce(["bench", mode, "--vendors", "acme"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("must be one of deepgram"));
    }
}

#[test]
fn an_interrupted_measurement_shows_what_there_is_and_leaves_no_server() {
    let mut bench = Command::new(VIVAVOCE)
        .args(["bench", "sessions", "--echo", "--sessions", "2"])
        .args(["--seconds", "600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut progress = BufReader::new(bench.stderr.take().unwrap()).lines();
    assert!(progress.any(|line| line.unwrap().starts_with("measuring")));
    let servers = children_of(bench.id(), "vivavoce");
    kill_process(Pid::from_child(&bench), Signal::INT).unwrap();
    let output = bench.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(stdout(&output).contains("sessions per core"));
    assert_eq!(servers.len(), 1);
    let proc = format!("/proc/{}", servers[0]);
    assert!(!std::path::Path::new(&proc).exists());
}
