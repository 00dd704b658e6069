//! `vivavoce bench vendors`: how much later speech begins through the server than with the vendor directly. In each
//! round the same text is spoken twice, by a minimal client and through a session, in alternating order; both use the
//! same emulator over connections that are already open.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backed::Backed;
use super::load::SessionError;
use super::raw::{RATE_HZ, Raw};
use super::session::{Came, Session};
use super::spread::Spread;
use super::under_test::Cores;
use super::{ConfigArgs, Failure};
use crate::emulators::Vendor;
use crate::providers::null::SLUG as NULL;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce bench vendors                                  all five vendors\n  \
    vivavoce bench vendors --rounds 500 --json first.json   more of it, and every single time\n  \
    vivavoce bench vendors --vendors azure --set socket.pacing=true\n\n\
    Raw is from before the messages of an utterance are written on an open connection to the first message with sound. \
    Through the server is from before `speak` is written on an open session to the first binary message; the server's \
    own connection to the vendor is open too (of Deepgram both change theirs after 16 utterances, and dial again within \
    the time). Added is the difference within each round: the session, the vendor's protocol, conversion to 16 kHz \
    linear16, cutting into frames of 20 ms, and one more socket with its two processes. Ctrl-C ends a measurement early.")]
pub(super) struct Arguments {
    /// Rounds per vendor
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Vendors, separated by commas; default: all
    #[arg(long, value_delimiter = ',', value_parser = super::vendor)]
    vendors: Vec<Vendor>,
    /// Write all results to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One vendor's times to the first sound, in the order of the rounds.
#[derive(Serialize)]
struct Outcome {
    vendor: &'static str,
    raw: Option<Spread>,
    server: Option<Spread>,
    added: Option<Spread>,
    raw_ms: Vec<f64>,
    server_ms: Vec<f64>,
}

/// The JSON file.
#[derive(Serialize)]
struct Document {
    version: &'static str,
    vendors: Vec<Outcome>,
}

pub(super) fn run(config: &ConfigArgs, arguments: &Arguments) -> Result<(), Failure> {
    let cores = Cores::divide().map_err(Failure::work)?;
    let runtime = super::runtime(cores.as_ref()).map_err(Failure::work)?;
    let stop = super::stop_token(&runtime).map_err(Failure::work)?;
    let vendors = runtime.block_on(async {
        let backed = Backed::start(config, cores.as_ref()).await?;
        let mut outcomes = Vec::new();
        for vendor in super::chosen(&arguments.vendors) {
            eprintln!("{}", vendor.slug());
            let measured = measure(&backed, vendor, arguments.rounds, &stop).await;
            let named = |problem| Failure::work(format!("{}: {problem}", vendor.slug()));
            outcomes.push(measured.map_err(named)?);
        }
        backed.emulators.stop().await;
        Ok::<_, Failure>(outcomes)
    })?;
    let document = Document {
        version: env!("CARGO_PKG_VERSION"),
        vendors,
    };
    print!("{}", table(&document.vendors));
    match &arguments.json {
        Some(file) => super::write_json(file, &document),
        None => Ok(()),
    }
}

async fn measure(
    backed: &Backed,
    vendor: Vendor,
    rounds: u32,
    stop: &CancellationToken,
) -> Result<Outcome, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let mut raw = Raw::new(vendor, &backed.emulators);
    let config = json!({
        "type": "config",
        "stt_config": {"provider": NULL, "sample_rate": RATE_HZ},
        "tts_config": {"provider": vendor.slug(), "model": "", "sample_rate": RATE_HZ},
        "vad": {"enabled": false},
    });
    let mut session = Session::open(&backed.url, config)
        .await
        .map_err(|error| failed(&error))?;
    let (mut raw_ms, mut server_ms) = (Vec::new(), Vec::new());
    // The first opens the connections.
    for round in 0..=rounds {
        if stop.is_cancelled() {
            break;
        }
        let text = format!("{}.", 1_000 + round % 1_000);
        let server_first = round.is_multiple_of(2);
        let mut server = None;
        if server_first {
            server = Some(through(&mut session, &text).await);
        }
        let direct = raw.speak(&text).await.map_err(|error| failed(&error))?;
        let server = match server {
            Some(server) => server,
            None => through(&mut session, &text).await,
        };
        let server = server.map_err(|error| failed(&error))?;
        if round > 0 {
            raw_ms.push(direct.as_secs_f64() * 1e3);
            server_ms.push(server.as_secs_f64() * 1e3);
        }
    }
    session.close().await;
    Ok(Outcome::new(vendor.slug(), raw_ms, server_ms))
}

/// Has a text spoken by a session to its end: how long the first sound took.
async fn through(session: &mut Session, text: &str) -> Result<Duration, SessionError> {
    let asked = Instant::now();
    session.send(json!({"type": "speak", "text": text})).await?;
    let mut first = None;
    loop {
        let (at, came) = session.next().await?;
        match came {
            Came::Sound(_) => {
                first.get_or_insert(at - asked);
            }
            Came::Event(event) if event["type"] == "error" => {
                return Err(SessionError::Refused(event.to_string()));
            }
            came if came.is("tts_playback_complete", "") => {
                return first.ok_or(SessionError::Silent);
            }
            Came::Event(_) => {}
        }
    }
}

impl Outcome {
    fn new(vendor: &'static str, raw_ms: Vec<f64>, server_ms: Vec<f64>) -> Self {
        let both = server_ms.iter().zip(&raw_ms);
        let added = both.map(|(server, raw)| server - raw);
        Self {
            vendor,
            raw: Spread::of(raw_ms.iter().copied()),
            server: Spread::of(server_ms.iter().copied()),
            added: Spread::of(added),
            raw_ms,
            server_ms,
        }
    }
}

/// Markdown; times are p50 / p99 in ms.
fn table(outcomes: &[Outcome]) -> String {
    let mut table = String::from(
        "| first sound | raw | through the server | **added** | rounds |\n|---|---:|---:|---:|---:|\n",
    );
    for outcome in outcomes {
        let cells = [outcome.raw, outcome.server, outcome.added].map(Spread::shown);
        let rounds = outcome.raw_ms.len();
        table += &format!(
            "| {} | {} | {rounds} |\n",
            outcome.vendor,
            cells.join(" | ")
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_told_round_by_round() {
        let outcome = Outcome::new("v", vec![1.0, 5.0, 3.0], vec![2.0, 5.5, 7.0]);
        let shown = table(&[outcome]);
        assert!(
            shown.contains("| v | 3.0 / 5.0 | 5.5 / 7.0 | 1.0 / 4.0 | 3 |"),
            "{shown}"
        );
    }
}
