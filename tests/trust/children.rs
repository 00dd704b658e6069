//! Programs that the server runs, and names that tenants share: what is broken into has nothing to take away, and nobody
//! learns of another's recordings or sessions by their names.

use serde_json::{Value, json};

use crate::auth::{HOUSE, OF_A, OF_B, with_secrets};
use crate::harness::{
    Programs, Server, assert_error, client, eventually, local, post_speak, which,
};
use crate::session::client::{Session, config, with};

/// In every secret.
const SECRET: &str = "mArKeR-91cd";
/// All that may be in the environment of a program, what a shell puts there among it.
const GIVEN: [&str; 9] = [
    "PATH",
    "LANG",
    "OPENBLAS_NUM_THREADS",
    "MIMALLOC_ARENA_EAGER_COMMIT",
    "LD_LIBRARY_PATH",
    "ESPEAK_DATA_PATH",
    "PWD",
    "SHLVL",
    "_",
];

fn of(pid: u32, file: &str) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits for a child of this name that is confined, and looks at all that it has of ours.
async fn assert_confined(server: &Server, name: &str) {
    let bounded = |pid: u32| {
        let limits = of(pid, "limits");
        let line = limits
            .lines()
            .find(|line| line.starts_with("Max data size"));
        // It is bounded a moment after it is there.
        line.is_some_and(|line| line.split_whitespace().nth(3) != Some("unlimited"))
            && limits.contains("Max core file size        0                    0")
    };
    eventually("it is not bounded", || {
        server.children(name).into_iter().any(bounded)
    })
    .await;
    let pid = server
        .children(name)
        .into_iter()
        .find(|&pid| bounded(pid))
        .unwrap();
    let environment = of(pid, "environ");
    assert!(!environment.contains(SECRET), "{environment}");
    for variable in environment.split('\0').filter(|one| !one.is_empty()) {
        let (name, _) = variable.split_once('=').unwrap();
        assert!(GIVEN.contains(&name), "{name} is in {environment}");
    }
    let status = of(pid, "status");
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line} is missing in {status}");
    }
}

fn secrets() -> [(&'static str, &'static str); 4] {
    [
        ("DEEPGRAM_API_KEY", SECRET),
        ("AUTH_API_SECRET", SECRET),
        ("RTC_API_SECRET", "mArKeR-91cd-0123456789-0123456789"),
        ("RTC_API_KEY", "key"),
    ]
}

#[tokio::test]
async fn a_synthesiser_that_is_broken_into_finds_no_secret_no_network_and_no_file() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("secret"), SECRET).unwrap();
    // What it finds is its last word, which its caller is told.
    let script = format!(
        "case \"$*\" in *-lv*) exec {flite} -lv;; esac\n\
         read=$(cat {data}/secret 2>/dev/null)\n\
         (echo x > {data}/written) 2>/dev/null && wrote=yes || wrote=no\n\
         bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}' 2>/dev/null && net=open || net=shut\n\
         parent=$(cat /proc/$PPID/environ 2>/dev/null | tr '\\0' ' ')\n\
         echo \"keys=$(env | grep -c mArKeR) parent=$(echo $parent | grep -c mArKeR) read=$read. wrote=$wrote net=$net\" >&2\n\
         exit 1",
        flite = which("flite").display(),
        data = data.path().display(),
        port = listener.local_addr().unwrap().port(),
    );
    let programs = Programs::new().script("flite", &script);
    let path = programs.first();
    let mut environment = secrets().to_vec();
    environment.push(("PATH", &path));
    let server = Server::start_in(data, &environment);
    let body = json!({"text": "Yes.", "tts_config": local(json!({"voice_id": "flite-slt"}))});
    let failed = post_speak(&server, body).await;
    let told: Value = failed.json().await.unwrap();
    let told = told["message"].as_str().unwrap();
    let found = "keys=0 parent=0 read=. wrote=no net=shut";
    assert!(told.contains(found), "{told}");
    assert!(!server.data.path().join("written").exists());
    let nobody = listener.accept().unwrap_err();
    assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn every_program_that_is_run_has_nothing_of_ours() {
    let listing = format!(
        "case \"$*\" in *-lv*) exec {} -lv;; esac",
        which("flite").display()
    );
    let programs = Programs::new().script("flite", &format!("{listing}\nexec sleep 600"));
    let path = programs.first();
    let mut environment = secrets().to_vec();
    environment.push(("PATH", &path));
    environment.push(("LOCAL_STT_PRELOAD", "true"));
    let server = Server::start_with(&environment);
    // A recogniser's worker is kept warm from the start on.
    assert_confined(&server, "vivavoce").await;
    let body = json!({"text": "Yes.", "tts_config": local(json!({"voice_id": "flite-slt"}))});
    let speaking = client()
        .post(format!("{}/speak", server.url))
        .json(&body)
        .send();
    let speaking = tokio::spawn(speaking);
    assert_confined(&server, "sleep").await;
    speaking.abort();
}

#[test]
fn check_says_how_programs_are_confined() {
    let checked = crate::harness::vivavoce(["check"]);
    let said = crate::harness::stdout(&checked);
    assert!(said.contains("programs  confined: "), "{said}");
}

#[test]
fn no_address_is_printed_with_what_it_brings() {
    let printed = std::process::Command::new(crate::harness::VIVAVOCE)
        .arg("print-config")
        .env(
            "WEBHOOKS_URL",
            format!("https://hooks.example/told?token={SECRET}"),
        )
        .env("WEBHOOKS_SECRET", "sixteen bytes and more")
        .env(
            "RTC_WEBHOOK_URLS",
            format!("https://a.example/?k={SECRET},https://b.example/?{SECRET}"),
        )
        .output();
    let printed = crate::harness::stdout(&printed.unwrap());
    assert!(
        printed.contains("https://hooks.example/told?token=***"),
        "{printed}"
    );
    assert!(!printed.contains(SECRET), "{printed}");
}

fn recorded(stream_id: &str) -> Value {
    with(
        config(
            json!({"stt_config": {"provider": "null"}, "tts_config": {"provider": "null", "model": ""}}),
        ),
        json!({"stream_id": stream_id, "recording": true}),
    )
}

#[tokio::test]
async fn two_tenants_use_one_name_and_neither_learns_of_the_other() {
    let server = with_secrets(&[]);
    let mut sessions = Vec::new();
    // At once, and again for each when it is stored: the second of a tenant is refused, never that of another.
    for token in [OF_A, OF_B] {
        let mut session = Session::connect_as(&server, Some(token)).await;
        session.send(recorded("call")).await;
        session.next("ready").await;
        sessions.push(session);
    }
    let ask = |method: reqwest::Method, path: &str, token: &str| {
        client()
            .request(method, format!("{}/{path}", server.url))
            .bearer_auth(token)
            .send()
    };
    let ended = ask(reqwest::Method::DELETE, "sessions/call", HOUSE)
        .await
        .unwrap();
    assert_error(ended, 409, "AMBIGUOUS_STREAM_ID", "?tenant=").await;
    let ended = ask(reqwest::Method::DELETE, "sessions/call?tenant=b", OF_A)
        .await
        .unwrap();
    assert_error(ended, 404, "NOT_FOUND", "").await;
    let ended = ask(reqwest::Method::DELETE, "sessions/call?tenant=a", HOUSE)
        .await
        .unwrap();
    assert_eq!(ended.status(), 200);
    drop(sessions);
    let place = |tenant: &str| {
        server
            .data
            .path()
            .join(format!("recordings/{tenant}/call/metadata.json"))
    };
    eventually("both are stored", || {
        place("%61").exists() && place("%62").exists()
    })
    .await;
    for token in [OF_A, OF_B] {
        let found = ask(reqwest::Method::GET, "recording/call", token)
            .await
            .unwrap();
        assert_eq!(found.status(), 200);
    }
    let found = ask(reqwest::Method::GET, "recording/call", HOUSE)
        .await
        .unwrap();
    assert_error(found, 409, "AMBIGUOUS_STREAM_ID", "?tenant=").await;
    let found = ask(reqwest::Method::GET, "recording/call?tenant=b", HOUSE)
        .await
        .unwrap();
    assert_eq!(found.status(), 200);
    let page = ask(reqwest::Method::GET, "recordings", HOUSE)
        .await
        .unwrap();
    let page: Value = page.json().await.unwrap();
    let tenants: Vec<_> = page["recordings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["tenant"])
        .collect();
    assert_eq!(tenants, ["a", "b"]);
    // Whoever has no tenant has a name of their own as well.
    let mut nobody = Session::connect_as(&server, Some(HOUSE)).await;
    nobody.send(recorded("call")).await;
    nobody.next("ready").await;
    nobody.close().await;
    let deleted = ask(reqwest::Method::DELETE, "recording/call", OF_A)
        .await
        .unwrap();
    assert_eq!(deleted.status(), 200);
    let found = ask(reqwest::Method::GET, "recording/call", OF_A)
        .await
        .unwrap();
    assert_eq!(found.status(), 404);
    assert!(place("%62").exists());
}

#[tokio::test]
async fn what_the_version_before_has_recorded_stays_where_it_is() {
    let server = with_secrets(&[]);
    for (name, tenant) in [("old-a", "a"), ("old-b", "b")] {
        let folder = server.data.path().join("recordings").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("audio.ogg"), "sound").unwrap();
        let known = json!({
            "stream_id": name, "tenant": tenant, "started_at": 0, "duration_ms": 1, "size": 5, "sha256": "",
            "channels": 2, "participants": [], "complete": true,
        });
        std::fs::write(folder.join("metadata.json"), known.to_string()).unwrap();
    }
    let ask = |path: &str, token: &str| {
        client()
            .get(format!("{}/{path}", server.url))
            .bearer_auth(token)
            .send()
    };
    for (token, seen, unseen) in [(OF_A, "old-a", "old-b"), (OF_B, "old-b", "old-a")] {
        let found = ask(&format!("recording/{seen}"), token).await.unwrap();
        assert_eq!(found.text().await.unwrap(), "sound");
        let hidden = ask(&format!("recording/{unseen}"), token).await.unwrap();
        assert_eq!(hidden.status(), 404);
        let page: Value = ask("recordings", token)
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        let listed = page["recordings"].as_array().unwrap();
        assert_eq!((listed.len(), &listed[0]["stream_id"]), (1, &json!(seen)));
    }
    // Its owner cannot have the name again; to another it is as free as any.
    let mut session = Session::connect_as(&server, Some(OF_A)).await;
    session.send(recorded("old-a")).await;
    session.refused("stream_id_in_use").await;
    session.send(recorded("old-b")).await;
    session.next("ready").await;
}
