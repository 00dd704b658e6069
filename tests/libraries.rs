//! The project's own client libraries, and its plugins for agent frameworks: their tests, with what is installed as people
//! install it, against a running server. Each runs the parts that take seconds; all of them with `--long`.

use std::process::Stdio;

use tokio::process::Command;

use crate::auth::HOUSE;
use crate::harness::*;

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
