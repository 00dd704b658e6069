//! `vivavoce emulate`: starts, tells where it listens, and leaves nothing behind.

use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::harness::{client, stderr, vivavoce};

#[tokio::test]
async fn emulators_tell_where_they_are_and_leave_nothing_behind() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_vivavoce"))
        .args(["emulate", "--scripted", "--speed", "10"])
        .args(["--port", "0", "--tls-port", "0", "--grpc-port", "0"])
        .args(["--fault", "deepgram:stt:close=1011@3s"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next_line().await.unwrap().unwrap();
    let (_, plain) = first.split_once("http://").unwrap();
    let (plain, _) = plain.split_once(',').unwrap();
    let (_, authority) = first.split_once("(authority: ").unwrap();
    let (authority, _) = authority.split_once(')').unwrap();

    let url = format!("http://{plain}/control/faults");
    let faults = client().get(url).send().await.unwrap();
    assert_eq!(
        faults.text().await.unwrap(),
        r#"{"faults":["deepgram:stt:close=1011@3000ms"]}"#
    );
    assert!(Path::new(authority).exists());

    let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(child.wait().await.unwrap().success());
    assert!(!Path::new(authority).parent().unwrap().exists());
}

#[test]
fn a_fault_that_is_none_is_explained() {
    let output = vivavoce(["emulate", "--fault", "deepgram:stt:explode"]);
    assert_eq!(output.status.code(), Some(2));
    let message = stderr(&output);
    assert!(message.contains("VENDOR:DIRECTION:FAULT"), "{message}");
}
