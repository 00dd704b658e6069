//! `vivavoce sip trace`: prints the ladder of a call while it grows, as the server that runs with these settings on this machine
//! tells it.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::Value;

use super::super::Failure;
use super::super::health::{ask, reachable, status, trusting};
use crate::config::Config;

/// How often the server is asked.
const INTERVAL: Duration = Duration::from_millis(300);
/// The messages that follow the end of a call.
const AFTER_THE_END: usize = 4;
/// More than the answer has.
const ANSWER_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce sip trace                    the next call, or the newest one that there is\n  \
    vivavoce sip trace --list             the calls, also those that failed or were refused lately\n  \
    vivavoce sip trace SCL_8f3kQ0aZpX2m   this one: sip_call_id of a call, or trace_id\n\n\
    Asks the server that runs with these settings on this machine. It shows no headers and no bodies; numbers are masked \
    unless sip.trace_numbers says otherwise. Exit status: 0 the call is over as calls are, 1 it has failed or was refused.")]
pub(in super::super) struct Arguments {
    /// The call; default: the newest live one, else the next one
    call: Option<String>,
    /// List the calls that can be shown
    #[arg(long, conflicts_with = "call")]
    list: bool,
    /// Token for the server (default: auth.api_secret of the settings)
    #[arg(long)]
    token: Option<String>,
}

/// The running server.
struct Running {
    address: SocketAddr,
    certificate: Option<CertificateDer<'static>>,
    tls: bool,
    authorization: String,
}

impl Running {
    fn new(config: &Config, arguments: &Arguments) -> Result<Self, Failure> {
        let settings = &config.settings;
        let certificate = settings.server.tls_cert.as_ref().map(|file| {
            CertificateDer::from_pem_file(file)
                .map_err(|error| Failure::usage(format!("server.tls_cert: {error}")))
        });
        let secret = settings.auth.api_secret.as_ref();
        let secret = secret.filter(|_| settings.auth.required);
        let token = match (&arguments.token, secret) {
            (Some(token), _) => Some(token.clone()),
            (None, secret) => secret.map(|secret| secret.expose().to_owned()),
        };
        if token
            .as_ref()
            .is_some_and(|token| token.contains(char::is_control))
        {
            return Err(Failure::usage("--token: has control characters"));
        }
        let authorization = token.map(|token| format!("authorization: Bearer {token}\r\n"));
        Ok(Self {
            address: SocketAddr::new(reachable(settings.server.host), settings.server.port),
            tls: certificate.is_some(),
            certificate: certificate.transpose()?,
            authorization: authorization.unwrap_or_default(),
        })
    }

    /// The answer to a request; `None` where there is no such thing.
    fn get(&self, path: &str) -> Result<Option<Value>, Failure> {
        let tls = self.tls.then(|| trusting(self.certificate.clone()));
        let address = self.address;
        let answer = ask(address, path, tls, &self.authorization, ANSWER_BYTES)
            .map_err(|error| Failure::work(format!("no server at {address}: {error}")))?;
        match status(&answer) {
            Some("200") => {
                let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
                let body = serde_json::from_str(body);
                body.map(Some)
                    .map_err(|_| Failure::work("the server's answer is no JSON"))
            }
            Some("404") => Ok(None),
            Some("401") => Err(Failure::usage(
                "the server wants a token: --token or auth.api_secret",
            )),
            status => Err(Failure::work(format!(
                "{path} at {address} answers {}",
                status.unwrap_or("something that is not HTTP")
            ))),
        }
    }

    fn all(&self) -> Result<Vec<Value>, Failure> {
        let answer = self.get("/sip/traces")?.unwrap_or_default();
        Ok(answer["traces"].as_array().cloned().unwrap_or_default())
    }
}

pub(super) fn run(config: &Config, arguments: &Arguments) -> Result<(), Failure> {
    let running = Running::new(config, arguments)?;
    if arguments.list {
        for trace in running.all()? {
            tell!("{}", summary(&trace));
        }
        return Ok(());
    }
    let id = match &arguments.call {
        Some(id) => id.clone(),
        None => next(&running)?,
    };
    let is_id = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !id.chars().all(is_id) {
        return Err(Failure::usage("CALL: is no id of a call"));
    }
    follow(&running, &id)
}

/// The newest call that there is, or the next one, however it ends.
fn next(running: &Running) -> Result<String, Failure> {
    let id = |trace: &Value| trace["trace_id"].as_str().unwrap_or_default().to_owned();
    let key = |trace: &Value| (id(trace), trace["times"].as_u64());
    let before = running.all()?;
    if let Some(live) = before.iter().rfind(|trace| trace["state"] == "live") {
        return Ok(id(live));
    }
    eprintln!("waiting for a call");
    let before: HashSet<_> = before.iter().map(key).collect();
    loop {
        pause();
        let all = running.all()?;
        if let Some(new) = all.iter().find(|trace| !before.contains(&key(trace))) {
            return Ok(id(new));
        }
    }
}

fn follow(running: &Running, id: &str) -> Result<(), Failure> {
    let mut printed = HashSet::new();
    let mut left = AFTER_THE_END;
    let unknown = || Failure::work(format!("no call {id:?} was seen lately (try --list)"));
    loop {
        let Some(trace) = running.get(&format!("/sip/traces/{id}"))? else {
            // It is over, and was forgotten since.
            return if printed.is_empty() {
                Err(unknown())
            } else {
                Ok(())
            };
        };
        if printed.is_empty() {
            tell!("{}", summary(&trace));
        }
        for message in trace["ladder"].as_array().into_iter().flatten() {
            let key =
                ["at", "direction", "line", "cseq", "remote"].map(|name| message[name].to_string());
            if printed.insert(key) {
                tell!("{}", rung(message));
            }
        }
        printed.insert([const { String::new() }; 5]);
        if trace["state"] != "live" {
            left -= 1;
            if left == 0 {
                tell!("{}", summary(&trace));
                let fine = trace["state"] == "ended";
                return if fine {
                    Ok(())
                } else {
                    Err(Failure::work("the call has failed"))
                };
            }
        }
        pause();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "nothing else runs in this process"
)]
fn pause() {
    std::thread::sleep(INTERVAL);
}

/// One line about a call.
fn summary(trace: &Value) -> String {
    let text = |name: &str| trace[name].as_str().unwrap_or_default();
    let mut line = format!(
        "{} {} {} {}",
        clock(&trace["at"]),
        text("trace_id"),
        text("direction"),
        text("state")
    );
    for (name, value) in [
        ("room", text("room_name").to_owned()),
        (
            "status",
            trace["status"]
                .as_u64()
                .map_or_else(String::new, |status| status.to_string()),
        ),
        ("reason", text("reason").to_owned()),
    ] {
        if !value.is_empty() {
            line += &format!("  {name}: {value}");
        }
    }
    match trace["times"].as_u64() {
        Some(times) if times > 1 => format!("{line}  ({times} times)"),
        _ => line,
    }
}

/// One message of a ladder.
fn rung(message: &Value) -> String {
    let text = |name: &str| message[name].as_str().unwrap_or_default();
    let arrow = if text("direction") == "sent" {
        "-->"
    } else {
        "<--"
    };
    let line = text("line");
    let mut rung = format!(
        "{} {arrow} {}:{}  {line}",
        clock(&message["at"]),
        text("transport"),
        text("remote")
    );
    // A request names its method itself.
    if line.starts_with(|c: char| c.is_ascii_digit()) {
        rung += &format!("  ({})", text("cseq"));
    }
    if !text("note").is_empty() {
        rung += &format!("  [{}]", text("note"));
    }
    match message["times"].as_u64() {
        Some(times) if times > 1 => format!("{rung}  x{times}"),
        _ => rung,
    }
}

/// The time of the day, UTC.
fn clock(at: &Value) -> String {
    let ms = at.as_u64().unwrap_or_default() % 86_400_000;
    let (s, ms) = (ms / 1_000, ms % 1_000);
    format!("{:02}:{:02}:{:02}.{ms:03}", s / 3_600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_ladder_is_read_from_top_to_bottom() {
        let sent = json!({"at": 86_400_123_u64 + 3_600_000, "direction": "sent", "transport": "udp", "remote": "192.0.2.1:5060",
            "line": "488 Not Acceptable Here", "cseq": "1 INVITE", "note": "SDP", "times": 2});
        assert_eq!(
            rung(&sent),
            "01:00:00.123 --> udp:192.0.2.1:5060  488 Not Acceptable Here  (1 INVITE)  [SDP]  x2"
        );
        let trace = json!({"at": 0, "trace_id": "SRF_1", "direction": "inbound", "state": "refused", "status": 403,
            "reason": "why", "times": 1, "room_name": null});
        assert_eq!(
            summary(&trace),
            "00:00:00.000 SRF_1 inbound refused  status: 403  reason: why"
        );
    }
}
