//! `vivavoce bench`: measurements of a whole server. One file per measurement ([`sessions`], [`fallback`], [`vendors`],
//! [`rooms`], [`agents`], [`calls`], [`realtime`]), per kind of client ([`load`] with its [`sound`], [`session`], [`participant`], [`raw`]), per server
//! ([`under_test`], [`backed`], [`echo`]), and for results ([`outcome`], [`spread`]).

mod agents;
mod backed;
mod calls;
mod echo;
mod fallback;
mod histogram;
mod load;
mod outcome;
mod participant;
mod raw;
mod realtime;
mod rooms;
mod session;
mod sessions;
mod sound;
mod spread;
mod under_test;
mod vendors;

use std::io;
use std::path::Path;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use self::under_test::Cores;
use super::{ConfigArgs, Failure};
use crate::emulators::Vendor;
use crate::server::StopSignal;

/// How long fetching a page may take.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  vivavoce bench sessions\n  vivavoce bench fallback\n  vivavoce bench rooms\n  vivavoce bench agents\n  vivavoce bench calls\n  vivavoce bench realtime\n  vivavoce bench vendors --help"
)]
pub(super) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Measure how many sessions a core carries, their cost and their added delay
    Sessions(sessions::Arguments),
    /// Measure the outage when a vendor fails and the next one takes over
    Fallback(fallback::Arguments),
    /// Measure how much later speech begins through the server than with the vendor directly
    Vendors(vendors::Arguments),
    /// Measure the cost of forwarding in a room, compared with a bare UDP relay
    Rooms(rooms::Arguments),
    /// Measure sessions in rooms: their cost, input and output delay, and whether they leak anything
    Agents(agents::Arguments),
    /// Measure telephone calls: how many a core carries, their answer time, and their audio
    Calls(calls::Arguments),
    /// Measure conversations over OpenAI's Realtime interface: how late the first sound is, and what they cost
    Realtime(realtime::Arguments),
    /// Relay datagrams (started by the measurement itself)
    #[command(hide = true)]
    Relay,
    /// Echo frames (started by the measurement itself)
    #[command(hide = true)]
    Echo,
}

pub(super) fn run(config: &ConfigArgs, arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.what {
        What::Sessions(arguments) => sessions::run(config, arguments),
        What::Fallback(arguments) => fallback::run(config, arguments),
        What::Vendors(arguments) => vendors::run(config, arguments),
        What::Rooms(arguments) => rooms::run(config, arguments),
        What::Agents(arguments) => agents::run(config, arguments),
        What::Calls(arguments) => calls::run(config, arguments),
        What::Realtime(arguments) => realtime::run(config, arguments),
        What::Relay => rooms::relay::run().map_err(Failure::work),
        What::Echo => echo::run().map_err(Failure::work),
    }
}

/// A thread for each core of the load.
fn runtime(cores: Option<&Cores>) -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.map_or(1, |cores| cores.for_load))
        .enable_all()
        .build()
}

/// Cancelled by SIGTERM or Ctrl-C, whatever is being done then.
fn stop_token(runtime: &Runtime) -> io::Result<CancellationToken> {
    let _inside = runtime.enter();
    let mut signal = StopSignal::listen()?;
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    runtime.spawn(async move {
        signal.received().await;
        stopped.cancel();
    });
    Ok(stop)
}

fn write_json(file: &Path, document: &impl Serialize) -> Result<(), Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::work(format!("{}: {error}", file.display()));
    let text = serde_json::to_string_pretty(document).map_err(|error| failed(&error))?;
    std::fs::write(file, text + "\n").map_err(|error| failed(&error))
}

/// What a server says under a path, without a credential.
async fn page(address: &str, path: &str) -> io::Result<String> {
    let fetch = async {
        let mut connection = TcpStream::connect(address).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let answer = tokio::time::timeout(PATIENCE, fetch).await??;
    match answer.split_once("\r\n\r\n") {
        Some((head, page)) if head.starts_with("HTTP/1.1 200") => Ok(page.to_owned()),
        _ => Err(io::Error::other(
            answer.lines().next().unwrap_or("no answer").to_owned(),
        )),
    }
}

/// A vendor by its slug.
fn vendor(slug: &str) -> Result<Vendor, String> {
    let known = Vendor::STREAMING.map(Vendor::slug).join(", ");
    slug.parse().map_err(|_| format!("must be one of {known}"))
}

/// The vendors that were named, each once; all of them where none was.
fn chosen(named: &[Vendor]) -> Vec<Vendor> {
    let all = Vendor::STREAMING.into_iter();
    all.filter(|vendor| named.is_empty() || named.contains(vendor))
        .collect()
}
