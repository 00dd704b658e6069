//! Pipecat, whose serializers play the application for the same carriers, judges our callers; and what our door sends looks as what
//! they send.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::agent::Agent;
use super::caller::{Caller, Kind, handshake};
use super::{config, exchange, plays, words};
use crate::examples::{in_repository, installed};
use crate::harness::*;

/// A program of Pipecat's that waits for a call.
struct Application {
    program: std::process::Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    port: u16,
}

impl Application {
    fn start(kind: Kind) -> Self {
        let mut program = Command::new(installed(".clients/pipecat/bin/python"))
            .arg(in_repository("tests/clients/carriers_pipecat.py"))
            .arg(kind.slug())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let port = lines.next().unwrap().unwrap().parse().unwrap();
        Self {
            program,
            lines,
            port,
        }
    }

    /// What it has understood.
    fn report(mut self) -> Value {
        let report = self.lines.next().unwrap().unwrap();
        self.program.wait().unwrap();
        serde_json::from_str(&report).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pipecat_understands_our_callers_and_our_callers_understand_pipecat() {
    let agent = Agent::start().await;
    let backed = exchange(&agent, &[]).await;
    for kind in Kind::ALL {
        let application = Application::start(kind);
        let url = format!("ws://127.0.0.1:{}/", application.port);
        let caller = Caller::over(kind, handshake(&url, &[]).await.unwrap());
        let numbers: Vec<u16> = (700..705).collect();
        caller.say(words(numbers.iter().copied(), kind));
        plays(&caller, &numbers).await;
        caller.press('5');
        caller.press('9');
        eventually("it is not cleared", || {
            caller.noted(|noted| noted.clears == 1)
        })
        .await;
        caller.hang_up();
        tokio::time::sleep(Duration::from_millis(500)).await;
        caller.drop_socket();
        let report = application.report();
        assert_eq!(report["keys"], "59", "{kind:?}: {report}");
        assert!(
            report["samples"].as_u64().unwrap() > u64::from(kind.rate().hz()),
            "{kind:?}: {report}"
        );

        // Our door says the same in the same words.
        let caller = Caller::call(&backed.server, kind).await;
        let mut answered = agent.answer(config()).await;
        answered.speak("a", "1 2 3 4 5 6 7 8").await;
        answered.next("tts_started").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        answered.send(serde_json::json!({"type": "clear"})).await;
        answered.next("tts_interrupted").await;
        eventually("it is not cleared", || {
            caller.noted(|noted| noted.clears == 1)
        })
        .await;
        let (media, clear) = caller.noted(|noted| (noted.media.clone(), noted.clear.clone()));
        assert_eq!(media, report["media"], "{kind:?}");
        assert_eq!(clear, report["clear"], "{kind:?}");
        caller.hang_up();
        answered.until(|event| event["status"] == "hangup").await;
    }
}
