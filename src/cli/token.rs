//! `vivavoce token`: creates a LiveKit token for one room, signed with the key pair of the settings or of the data
//! folder.

use std::time::Duration;

use clap::Args;

use super::Failure;
use crate::config::Config;
use crate::providers::{ApiKey, RoomPass};

/// The arguments.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  vivavoce token --room kitchen --identity ann\n\nThe token lets its bearer join this room, publish, subscribe, send data \
        and change its own metadata, and nothing else."
)]
pub(super) struct Arguments {
    /// The room
    #[arg(long, value_parser = named)]
    room: String,
    /// The participant's identity
    #[arg(long, value_parser = named)]
    identity: String,
    /// The display name (default: the identity)
    #[arg(long, value_parser = named)]
    name: Option<String>,
    /// Validity in seconds (default: rtc.token_ttl_seconds)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    ttl: Option<u64>,
}

/// The same limits as `POST /rtc/token`.
fn named(text: &str) -> Result<String, &'static str> {
    match text.chars().count() {
        _ if text.trim().is_empty() => Err("must not be empty"),
        1..=256 => Ok(text.to_owned()),
        _ => Err("must be at most 256 characters"),
    }
}

pub(super) fn run(config: &Config, arguments: &Arguments) -> Result<(), Failure> {
    let settings = &config.settings;
    let key = match ApiKey::from_settings(&settings.rtc) {
        Some(key) => key,
        None => ApiKey::kept(&settings.storage.data_dir)
            .map_err(|error| Failure::work(format!("data_dir: {error}")))?,
    };
    let ttl = arguments.ttl.map(Duration::from_secs);
    let pass = RoomPass {
        room: &arguments.room,
        identity: &arguments.identity,
        name: arguments.name.as_ref().unwrap_or(&arguments.identity),
        lifetime: ttl.unwrap_or(settings.rtc.token_ttl_seconds),
        tenant: None,
        supervises: None,
    };
    tell!("{}", key.token("rtc", &pass).map_err(Failure::work)?);
    Ok(())
}
