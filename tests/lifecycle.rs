//! Starting and stopping: health, refusal of bad settings, and the end on SIGTERM.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::*;

#[actix_web::test]
async fn health_is_public_and_short() {
    let server = Server::start();
    for path in ["/", "/healthz", "/readyz"] {
        let answer = client()
            .get(format!("{}{path}", server.url))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 200);
        let says = match path {
            "/readyz" => json!({"status": "OK", "models": ["onnxruntime", "moonshine-tiny-en"]}),
            _ => json!({"status": "OK"}),
        };
        assert_eq!(answer.json::<Value>().await.unwrap(), says, "{path}");
        let head = client()
            .head(format!("{}{path}", server.url))
            .send()
            .await
            .unwrap();
        assert_eq!(
            (head.status().as_u16(), head.bytes().await.unwrap().len()),
            (200, 0)
        );
    }
}

#[test]
fn health_asks_the_server_of_the_same_settings() {
    let server = Server::start();
    let port = server.url.rsplit(':').next().unwrap();
    let listens_everywhere = ["--set", "server.host=0.0.0.0"];
    let at = format!("server.port={port}");
    for ready in [&[][..], &["--ready"]] {
        let arguments = [&["health", "--set", &at][..], &listens_everywhere, ready].concat();
        let output = vivavoce(arguments);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    drop(server);
    let output = vivavoce(["health", "--set", &at]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no server at 127.0.0.1"));
}

#[test]
fn sigterm_ends_an_idle_server_with_status_nought() {
    let mut server = Server::start();
    server.terminate();
    assert_eq!(server.ended().code(), Some(0));
}

#[actix_web::test]
async fn a_request_under_way_is_answered_before_the_server_ends_and_new_ones_are_refused() {
    let programs = Programs::new();
    let gate = programs.0.path().join("gate");
    let flite = which("flite");
    let script = format!(
        "case \"$*\" in *-lv*) exec {flite} -lv;; esac\nwhile ! [ -e {gate} ]; do sleep 0.01; done\nexec {flite} \"$@\"",
        flite = flite.display(),
        gate = gate.display(),
    );
    let programs = programs.script("flite", &script);
    let mut server = Server::start_with(&[("PATH", &programs.first())]);
    let request = speak(&server, "The last words.", json!({}));
    let stop = async {
        eventually("no synthesis began", || {
            !server.children("flite").is_empty()
        })
        .await;
        server.terminate();
        let ready = || async {
            let answer = client().get(format!("{}/readyz", server.url)).send().await;
            answer.unwrap().status().as_u16()
        };
        while ready().await != 503 {
            tokio::task::yield_now().await;
        }
        let refused = speak(&server, "More.", json!({})).await;
        assert!(refused.headers().contains_key("retry-after"));
        assert_error(refused, 503, "OVERLOADED", "stopping").await;
        std::fs::write(&gate, "").unwrap();
    };
    let (answer, ()) = tokio::join!(request, stop);
    assert_eq!(answer.status(), 200);
    assert!(answer.bytes().await.unwrap().len() > 10_000);
    assert_eq!(server.ended().code(), Some(0));
}

#[test]
fn bad_settings_stop_the_start_with_file_line_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("vivavoce.yaml");
    std::fs::write(&file, "server:\n  port: eighty\n  hots: 127.0.0.1\n").unwrap();
    for command in ["serve", "check", "print-config"] {
        let output = Command::new(VIVAVOCE)
            .args([command, "--set", "cache.enabled=ture"])
            .env("CACHE_TTL_SECONDS", "for ever")
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{command}");
        let said = stderr(&output);
        for part in [
            "vivavoce.yaml:2: server.port must be a port number from 0 to 65535, not \"eighty\"",
            "vivavoce.yaml:3: unknown setting server.hots; did you mean server.host?",
            "environment CACHE_TTL_SECONDS: cache.ttl_seconds must be a number of seconds",
            "command line: cache.enabled must be true or false, not \"ture\"",
        ] {
            assert!(
                said.contains(part),
                "{command}: {part:?} is missing in {said}"
            );
        }
    }
}

#[test]
fn a_server_that_is_told_to_lock_its_doors_does_not_start_without_locks() {
    let output = Command::new(VIVAVOCE)
        .arg("serve")
        .env("AUTH_REQUIRED", "true")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("auth.required"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_port_that_is_taken_is_named() {
    let server = Server::start();
    let port = server.url.rsplit(':').next().unwrap();
    let output = vivavoce(["serve", "--port", port]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(port), "{}", stderr(&output));
}

#[test]
fn listening_to_the_world_starts_with_a_warning() {
    let data = tempfile::tempdir().unwrap();
    let mut child = Command::new(VIVAVOCE)
        .args(["serve", "--host", "0.0.0.0", "--port", "0", "--data-dir"])
        .arg(data.path())
        .current_dir(data.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    let mut announced = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut announced, &mut first).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let log = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    let warning = log.lines().find(|line| line.contains("WARN"));
    let warning = warning.expect("no warning was logged before the address was announced");
    for open in ["/ws", "/speak", "/sessions", "/voices", "/metrics"] {
        assert!(warning.contains(open), "{warning}");
    }
}

#[test]
fn a_recogniser_that_dies_before_it_is_needed_is_replaced() {
    let server = Server::start_with(&[("LOCAL_STT_PRELOAD", "true")]);
    let warm = || server.children("vivavoce").first().copied();
    let first = within(PATIENCE, "no recogniser was started", warm);
    let pid = rustix::process::Pid::from_raw(first.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    within(PATIENCE, "the dead recogniser was not replaced", || {
        warm().filter(|&worker| worker != first)
    });
}
