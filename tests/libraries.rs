//! The project's own client libraries, and its plugins for agent frameworks: their tests, with what is installed as people
//! install it, against a running server. Each runs the parts that take seconds; all of them with `--long`.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio_util::task::AbortOnDropHandle;

use crate::auth::HOUSE;
use crate::examples::{in_repository, installed};
use crate::harness::*;
use crate::session::replicas::Pair;
use crate::session::resume::metric;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const KEY: &str = "devkey";
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A port for a page of the tests.
fn free_port() -> u16 {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}

/// A server as the tests of the libraries want one, which lets this page in.
fn server(page: u16) -> Server {
    let origin = format!("http://127.0.0.1:{page}");
    Server::start_with(&[
        ("AUTH_REQUIRED", "true"),
        ("AUTH_API_SECRET", HOUSE),
        ("SERVER_CORS_ORIGINS", &origin),
        ("RTC_TCP_PORT", "0"),
        ("RTC_API_KEY", KEY),
        ("RTC_API_SECRET", SECRET),
    ])
}

/// Runs a program below the repository's root, and shows what it said where it fails.
async fn passes(program: &str, arguments: &[&str], environment: &[(&str, &str)]) {
    let child = Command::new(program)
        .args(arguments)
        .envs(environment.iter().copied())
        .current_dir(ROOT)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let patience = std::time::Duration::from_mins(8);
    let ended = tokio::time::timeout(patience, child).await;
    let output = ended
        .unwrap_or_else(|_| panic!("{program} {arguments:?} hangs"))
        .unwrap_or_else(|error| panic!("{program}: {error}; ./test installs what it needs"));
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}", said.concat());
}

async fn python_library() {
    let server = server(1);
    let mut arguments = vec!["clients/python/run_tests.sh", ".clients/client-python"];
    if !is_long() {
        arguments.extend(["test_readme", "test_client"]);
    }
    let environment = [
        ("VIVAVOCE_URL", server.url.as_str()),
        ("VIVAVOCE_TOKEN", HOUSE),
    ];
    passes("sh", &arguments, &environment).await;
}

async fn typescript_library() {
    let page = free_port();
    let server = server(page);
    let page = page.to_string();
    let mut arguments = vec![
        "clients/typescript/run_tests.sh",
        ".clients/client-typescript",
    ];
    if !is_long() {
        arguments.extend([
            "readme.test.mjs",
            "types.test.mjs",
            "http.test.mjs",
            "browser.test.mjs",
        ]);
    }
    let environment = [
        ("VIVAVOCE_URL", server.url.as_str()),
        ("VIVAVOCE_TOKEN", HOUSE),
        ("VIVAVOCE_PAGE_PORT", &page),
    ];
    passes("sh", &arguments, &environment).await;
}

/// The tests of a plugin; without `--long` those whose names have this in them.
async fn plugin(distribution: &str, environment: &str, sample: &str) {
    let server = server(1);
    let python = format!("{ROOT}/.clients/{environment}/bin/python");
    let mut arguments = vec!["plugins/python/run_tests.py", distribution];
    if !is_long() {
        arguments.extend(["-k", sample]);
    }
    let environment = [
        ("VIVAVOCE_URL", server.url.as_str()),
        ("VIVAVOCE_API_KEY", HOUSE),
        ("LIVEKIT_API_KEY", KEY),
        ("LIVEKIT_API_SECRET", SECRET),
    ];
    passes(&python, &arguments, &environment).await;
}

async fn livekit_plugin() {
    plugin("livekit-plugins-vivavoce", "livekit-agents", "test_agent").await;
}

async fn pipecat_plugin() {
    plugin("pipecat-vivavoce", "pipecat", "test_bot").await;
}

/// Of the libraries each run takes one.
#[tokio::test]
async fn a_client_library_passes_its_tests() {
    for language in some_of(&["python", "typescript"], 1) {
        match language {
            "python" => python_library().await,
            _ => typescript_library().await,
        }
    }
}

/// Likewise of the plugins: an agent of LiveKit's framework hears and speaks, or a bot of Pipecat's.
#[tokio::test]
async fn a_plugin_passes_its_tests() {
    for framework in some_of(&["livekit", "pipecat"], 1) {
        match framework {
            "livekit" => livekit_plugin().await,
            _ => pipecat_plugin().await,
        }
    }
}

/// Lets connections through to one of two servers, as a load balancer does: to the second from [`Door::turn`] on.
struct Door {
    port: u16,
    turned: Arc<AtomicBool>,
    _carrier: AbortOnDropHandle<()>,
}

impl Door {
    async fn to(servers: &[Server; 2]) -> Self {
        let addresses = servers.each_ref().map(|server| {
            let (_, address) = server.url.split_once("//").unwrap();
            address.to_owned()
        });
        let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = front.local_addr().unwrap().port();
        let turned = Arc::new(AtomicBool::new(false));
        let is_turned = Arc::clone(&turned);
        let carrier = tokio::spawn(async move {
            loop {
                let (mut client, _) = front.accept().await.unwrap();
                let to = &addresses[usize::from(is_turned.load(SeqCst))];
                let mut server = TcpStream::connect(to).await.unwrap();
                tokio::spawn(async move {
                    // Ends when both sides have closed.
                    let _ended = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self {
            port,
            turned,
            _carrier: AbortOnDropHandle::new(carrier),
        }
    }
}

/// Each says three sentences while the server is told to stop, and knows of no other.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_the_libraries_go_on_at_another_server() {
    let mut pair = Pair::start();
    let door = Door::to(&pair.servers).await;
    let url = format!("http://127.0.0.1:{}", door.port);
    let folder = tempfile::tempdir().unwrap();
    let script = in_repository("tests/clients/typescript/move.mjs");
    std::fs::copy(script, folder.path().join("move.mjs")).unwrap();
    let modules = installed(".clients/client-typescript/node_modules");
    std::os::unix::fs::symlink(modules, folder.path().join("node_modules")).unwrap();
    let programs = [
        (
            installed(".clients/client-python/bin/python"),
            in_repository("tests/clients/move.py"),
        ),
        (which("node"), folder.path().join("move.mjs")),
    ];
    let mut running = Vec::new();
    for (program, script) in &programs {
        let mut child = Command::new(program)
            .arg(script)
            .arg(&url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(
            lines.next_line().await.unwrap().as_deref(),
            Some("speaking")
        );
        running.push((child, lines));
    }
    door.turned.store(true, SeqCst);
    pair.servers[0].terminate();
    for (mut child, mut lines) in running {
        let line = lines.next_line().await.unwrap().unwrap_or_default();
        assert!(child.wait().await.unwrap().success(), "{line}");
        let said: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            said["ends"],
            json!(["complete", "complete", "complete"]),
            "{said}"
        );
        assert_eq!(said["resumed"], 1, "{said}");
        let [sound, played] = ["sound_ms", "played_ms"].map(|field| said[field].as_f64().unwrap());
        assert!((sound - played).abs() < 100.0, "{said}");
    }
    let [first, second] = &mut pair.servers;
    assert!(first.ended().success());
    let taken = "vivavoce_sessions_taken_over_total";
    assert_eq!(metric(second, taken).await, format!("{taken} 2"));
}
