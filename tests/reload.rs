//! SIGHUP: the settings are read again, all or none of them.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::harness::*;
use crate::webhooks::{Receiver, talk};

const OLD: &str = "the-old-secret-of-thirty-two-bytes";
const NEW: &str = "the-new-secret-of-thirty-two-bytes";

/// A server with a file of settings.
struct Reloaded {
    server: Server,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Reloaded {
    fn start(settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("settings.yaml");
        std::fs::write(&file, settings).unwrap();
        let server = Server::start_flagged(&format!("--config '{}'", file.display()), &[]);
        Self {
            server,
            file,
            _folder: folder,
        }
    }

    /// Has it read other settings; waits until its log says this.
    fn reload(&self, settings: &str, said: &str) {
        std::fs::write(&self.file, settings).unwrap();
        let before = self.server.log_so_far().len();
        let pid = i32::try_from(self.server.pid()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
        let told = || {
            self.server.log_so_far()[before..]
                .contains(said)
                .then_some(())
        };
        within(PATIENCE, said, told);
    }

    async fn ask(&self, path: &str, secret: &str) -> (u16, Value) {
        let asked = client().get(format!("{}{path}", self.server.url));
        let answer = asked.bearer_auth(secret).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json().await.unwrap_or_default())
    }
}

fn settings(secret: &str, per_second: u32, host: &str) -> String {
    format!(
        "auth:\n  required: true\n  api_secret: {secret}\nlimits:\n  requests_per_second: {per_second}\n\
         sip:\n  hook_secret: {secret}\n  hooks_json: '[{{\"host\": \"{host}\", \"url\": \"https://hooks.example/\"}}]'\n"
    )
}

#[tokio::test]
async fn secrets_limits_and_hooks_are_taken_over_with_a_line_each() {
    let reloaded = Reloaded::start(&settings(OLD, 1_000, "old.example"));
    assert_eq!(reloaded.ask("/sip/hooks", OLD).await.0, 200);
    assert_eq!(reloaded.ask("/sip/hooks", NEW).await.0, 401);
    let after = settings(NEW, 1, "new.example") + "server:\n  workers: 3\n";
    reloaded.reload(&after, "takes effect at the next start");
    assert_eq!(reloaded.ask("/sip/hooks", OLD).await.0, 401);
    let mut answers = Vec::new();
    for _ in 0..5 {
        answers.push(reloaded.ask("/sip/hooks", NEW).await);
    }
    // The first had the burst of the new rate, which the refused one before has begun to use up.
    let (status, hooks) = &answers[0];
    assert_eq!(*status, 200, "{hooks}");
    assert_eq!(hooks["hooks"][0]["host"], "new.example", "{hooks}");
    assert!(
        answers.iter().any(|(status, _)| *status == 429),
        "{answers:?}"
    );
    let log = reloaded.server.log_so_far();
    for key in [
        "auth.api_secret",
        "limits.requests_per_second",
        "sip.hook_secret",
        "sip.hooks_json",
        "server.workers",
    ] {
        let line = log
            .lines()
            .find(|line| line.contains(&format!("key=\"{key}\"")));
        let line = line.unwrap_or_else(|| panic!("no line about {key}:\n{log}"));
        let waits = line.contains("next start");
        assert_eq!(waits, key == "server.workers", "{line}");
    }
    assert!(!log.contains(OLD) && !log.contains(NEW), "{log}");
}

#[tokio::test]
async fn accounts_at_carriers_come_and_go() {
    let settings = |secret: &str, url: &str| {
        format!(
            "auth:\n  required: true\n  api_secret: {OLD}\ncarriers:\n  public_url: {url}\n  \
             accounts_json: '[{{\"kind\": \"exotel\", \"secret\": \"{secret}\"}}]'\n"
        )
    };
    let answer = async |reloaded: &Reloaded, secret: &str| {
        let url = format!("{}/carrier/exotel/answer/{secret}", reloaded.server.url);
        let answer = client().get(url).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let (old, new) = ("the-old-secret-of-a-path", "the-new-secret-of-a-path");
    let reloaded = Reloaded::start(&settings(old, "https://old.example"));
    let (status, document) = answer(&reloaded, old).await;
    assert!(
        status == 200 && document.contains("wss://old.example/"),
        "{document}"
    );
    assert_eq!(answer(&reloaded, new).await.0, 401);
    // Too short for a secret.
    reloaded.reload(
        &settings("short", "https://new.example"),
        "the settings stay as they were",
    );
    assert_eq!(answer(&reloaded, old).await.0, 200);
    reloaded.reload(&settings(new, "https://new.example"), "carriers.public_url");
    let (status, document) = answer(&reloaded, new).await;
    assert!(
        status == 200 && document.contains("wss://new.example/"),
        "{document}"
    );
    assert_eq!(answer(&reloaded, old).await.0, 401);
    let log = reloaded.server.log_so_far();
    assert!(!log.contains(old) && !log.contains(new), "{log}");
}

#[tokio::test]
async fn settings_that_do_not_fit_change_nothing() {
    let reloaded = Reloaded::start(&settings(OLD, 1_000, "old.example"));
    for bad in [
        settings(NEW, 1_000, "new.example") + "no_such_key: 1\n",
        settings(NEW, 1_000, "new.example") + "agent:\n  url: wss://agents.example\n",
        settings(NEW, 1_000, "not a host"),
        "auth: [".to_owned(),
    ] {
        reloaded.reload(&bad, "the settings stay as they were");
        assert_eq!(reloaded.ask("/sip/hooks", NEW).await.0, 401, "{bad}");
        let (_, hooks) = reloaded.ask("/sip/hooks", OLD).await;
        assert_eq!(hooks["hooks"][0]["host"], "old.example", "{hooks}");
    }
    reloaded.reload(&settings(OLD, 1_000, "old.example"), "nothing has changed");
}

#[tokio::test]
async fn a_new_key_of_a_vendor_is_used_by_what_begins_then() {
    let speak_with = async |reloaded: &Reloaded| {
        let config = json!({"provider": "deepgram", "model": ""});
        let body = json!({"text": "Hello.", "tts_config": config});
        let answer = post_speak(&reloaded.server, body).await;
        let status = answer.status().as_u16();
        (status, answer.text().await.unwrap())
    };
    let reloaded = Reloaded::start("providers: {}\n");
    let (status, problem) = speak_with(&reloaded).await;
    assert!(
        status >= 400 && problem.contains("DEEPGRAM_API_KEY"),
        "{status} {problem}"
    );
    // Nobody listens there: what matters is that it is tried.
    let settings = "providers:\n  deepgram:\n    api_key: a-key\n    tts_url: http://127.0.0.1:1\n";
    reloaded.reload(settings, "providers.deepgram.api_key");
    let (status, problem) = speak_with(&reloaded).await;
    assert!(
        status >= 500 && !problem.contains("DEEPGRAM_API_KEY"),
        "{status} {problem}"
    );
    // The local engine is the one that it was.
    let spoken = speak(&reloaded.server, "Hello.", json!({})).await;
    assert_eq!(spoken.status(), 200);
}

#[tokio::test]
async fn a_new_secret_signs_the_next_webhook_for_a_new_receiver() {
    let mut former = Receiver::checking(OLD, 0, 0);
    let mut next = Receiver::checking(NEW, 0, 0);
    let to = |receiver: &Receiver, secret: &str| {
        format!(
            "providers:\n  \"null\":\n    enabled: true\n\
             webhooks:\n  allow_insecure: true\n  allow_private: true\n  secret: {secret}\n  url: http://127.0.0.1:{}/\n",
            receiver.port
        )
    };
    let reloaded = Reloaded::start(&to(&former, OLD));
    talk(&reloaded.server, "before", "Hello.").await;
    let seen = former.next();
    assert_eq!(
        (&seen["good"], &seen["body"]["stream_id"]),
        (&json!(true), &json!("before"))
    );
    reloaded.reload(&to(&next, NEW), "key=\"webhooks.secret\"");
    talk(&reloaded.server, "after", "Hello.").await;
    let seen = next.next();
    assert_eq!(
        (&seen["good"], &seen["body"]["stream_id"]),
        (&json!(true), &json!("after"))
    );
    let log = reloaded.server.log_so_far();
    assert!(!log.contains("next start"), "{log}");
}
