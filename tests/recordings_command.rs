//! `vivavoce recordings` beside a running server: what there is, whether it is whole, and another try for what was
//! given up.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::harness::{Server, VIVAVOCE, client, eventually, stderr, stdout, vivavoce};
use crate::session::client::Session;
use crate::session::recorded::{hears, known, recorded, recording, stored};

const NULL: (&str, &str) = ("NULL_ENABLED", "true");

/// `vivavoce recordings` with the settings of a server.
fn recordings(server: &Server, arguments: &[&str]) -> Output {
    Command::new(VIVAVOCE)
        .arg("recordings")
        .args(arguments)
        .env("DATA_DIR", server.data.path())
        .current_dir(server.data.path())
        .output()
        .unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    let text = stdout(output);
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn a_byte_that_was_changed_in_the_store_is_found_and_its_recording_named() {
    let server = Server::start_with(&[NULL]);
    for name in ["one", "three", "two"] {
        recorded(&server, name).await;
        stored(&server, name).await;
    }
    let good = recordings(&server, &["verify"]);
    assert!(good.status.success(), "{}", stderr(&good));
    assert_eq!(
        stdout(&good),
        "good     one\ngood     three\ngood     two\n"
    );

    let file = server.data.path().join("recordings/two/audio.ogg");
    let mut sound = std::fs::read(&file).unwrap();
    let middle = sound.len() / 2;
    sound[middle] ^= 1;
    std::fs::write(&file, &sound).unwrap();
    let damaged = recordings(&server, &["verify", "--json"]);
    assert_eq!(damaged.status.code(), Some(1));
    let lines = lines(&damaged);
    let judged: Vec<_> = lines
        .iter()
        .map(|line| (&line["stream_id"], &line["good"]))
        .collect();
    assert_eq!(
        judged,
        [
            (&json!("one"), &json!(true)),
            (&json!("three"), &json!(true)),
            (&json!("two"), &json!(false)),
        ]
    );
    let message = lines[2]["message"].as_str().unwrap();
    assert!(
        message.contains("audio.ogg") && message.contains("SHA-256"),
        "{message}"
    );
    assert!(stderr(&damaged).contains("1 of 3"), "{}", stderr(&damaged));

    // One that was asked for by its name: cut short, and one that there never was.
    std::fs::write(&file, &sound[..middle]).unwrap();
    let short = recordings(&server, &["verify", "two", "one"]);
    let bytes = format!(
        "damaged  two  audio.ogg has {middle} bytes instead of {}",
        sound.len()
    );
    assert_eq!(stdout(&short), format!("{bytes}\ngood     one\n"));
    let none = recordings(&server, &["verify", "four"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(stdout(&none).contains("damaged  four  there is no such object"));
}

#[test]
fn where_there_is_no_recording_the_list_says_so() {
    let output = vivavoce(["recordings", "list"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
    assert!(stderr(&output).contains("no recording is in the store"));
}

#[tokio::test]
async fn what_is_stored_and_what_waits_is_listed_and_what_was_given_up_is_tried_again() {
    let server = Server::start_with(&[NULL]);
    recorded(&server, "first").await;
    stored(&server, "first").await;
    let session = Session::open(&server, recording("second")).await;
    hears(&session, 1).await;
    // Somebody else has put something under its key meanwhile.
    let taken = server.data.path().join("recordings/second");
    std::fs::create_dir(&taken).unwrap();
    std::fs::write(taken.join("audio.ogg"), "something else").unwrap();
    session.close().await;
    let given_up = server
        .data
        .path()
        .join("recordings/.journal/second/given_up");
    eventually("it is never given up", || given_up.exists()).await;

    let listed = recordings(&server, &["list", "--json"]);
    assert!(listed.status.success(), "{}", stderr(&listed));
    let lines = lines(&listed);
    let mut first = known(&server, "first");
    first["state"] = json!("stored");
    let second = json!({"stream_id": "second", "state": "given_up", "message": "the key is taken"});
    assert_eq!(lines, [first, second]);
    let text = stdout(&recordings(&server, &["list"]));
    assert!(
        text.starts_with("stored   first  ")
            && text.contains("\ngiven_up second  the key is taken"),
        "{text}"
    );
    // It is neither there for its client nor lost.
    let url = format!("{}/recording/second", server.url);
    assert_eq!(client().get(&url).send().await.unwrap().status(), 404);

    std::fs::remove_dir_all(taken).unwrap();
    let retried = recordings(&server, &["retry", "--json"]);
    assert_eq!(
        self::lines(&retried),
        [json!({"waiting": 1, "given_up": 1})]
    );
    stored(&server, "second").await;
    assert!(recordings(&server, &["verify", "second"]).status.success());
    let nothing = recordings(&server, &["retry", "--json"]);
    eventually("the journal stays", || !given_up.parent().unwrap().exists()).await;
    assert!(nothing.status.success());
}

#[test]
fn a_server_that_keeps_no_recordings_says_so_and_help_helps() {
    let output = Command::new(VIVAVOCE)
        .args(["recordings", "list"])
        .env("RECORDING_BACKEND", "off")
        .current_dir(tempfile::tempdir().unwrap().path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("recording.backend"),
        "{}",
        stderr(&output)
    );
    for (action, says) in [
        ("list", "waits for upload"),
        ("verify", "SHA-256"),
        ("retry", "given up"),
    ] {
        let help = stdout(&vivavoce(["recordings", action, "--help"]));
        assert!(help.contains(says) && help.contains("--json"), "{help}");
    }
}
