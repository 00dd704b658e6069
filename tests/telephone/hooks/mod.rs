//! SIP hooks: who may see and change them, that changes are stored or refused, that replicas share them, and that calls are
//! reported to them.

mod forwarding;
mod kept;
mod shared;
mod table;

use reqwest::Method;
use serde_json::{Value, json};

use crate::auth::{self, HOUSE, OF_A, OF_B};
use crate::harness::Server;
use crate::rooms::{self, ask};

/// What signs for hooks that have no secret of their own.
const COMMON: &str = "what signs for all hooks";

/// Settings of a server with the tenants `a` and `b`, rooms of its own, and hooks on this machine.
fn settings<'a>(tenants: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut settings = vec![
        ("AUTH_REQUIRED", "true"),
        ("AUTH_API_SECRET", HOUSE),
        ("AUTH_API_SECRETS_JSON", tenants),
        ("RTC_MODE", "embedded"),
        ("RTC_API_KEY", rooms::KEY),
        ("RTC_API_SECRET", rooms::SECRET),
        ("SIP_HOOK_SECRET", COMMON),
        ("SIP_ALLOW_INSECURE_HOOKS", "true"),
        ("SIP_ALLOW_PRIVATE_HOOKS", "true"),
        ("SIP_ROOM_PREFIX", "call-"),
    ];
    settings.extend_from_slice(more);
    settings
}

/// A server with these settings over a data folder.
fn server_in(data: tempfile::TempDir, more: &[(&str, &str)]) -> Server {
    let tenants = auth::tenants();
    Server::start_in(data, &settings(&tenants, more))
}

fn server(more: &[(&str, &str)]) -> Server {
    server_in(tempfile::tempdir().unwrap(), more)
}

/// Asks for hooks as somebody; gives the status, and the hosts or the code and message.
async fn hooks(server: &Server, token: &str, method: Method, body: Value) -> (u16, String) {
    let (status, answer) = ask(server, method, "/sip/hooks", Some(token), &body).await;
    let said = match answer["hooks"].as_array() {
        Some(hooks) => {
            let hosts = hooks.iter().map(|hook| hook["host"].as_str().unwrap());
            hosts.collect::<Vec<_>>().join(" ")
        }
        None => format!(
            "{} {}",
            answer["error"].as_str().unwrap(),
            answer["message"]
        ),
    };
    (status, said)
}

/// A hook as it is asked for.
fn hook(host: &str, url: &str) -> Value {
    json!({"host": host, "url": url})
}
