//! The command line: one file per subcommand, none of them with logic of its own.

mod bench;
mod check;
mod emulate;
mod openapi;
mod print_config;
mod recordings;
mod say;
mod serve;
mod stt_worker;
mod token;
mod transcribe;
mod voices;

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::Config;

/// A real-time voice server: hears, says, and keeps what was said.
#[derive(Debug, Parser)]
#[command(
    name = "vivavoce",
    version,
    propagate_version = true,
    after_help = "Examples:\n  \
        vivavoce serve                          listen on http://127.0.0.1:3001\n  \
        vivavoce serve --port 8080              the same on another port\n  \
        vivavoce say \"Good morning.\" -o hi.mp3  speak into a file\n  \
        vivavoce transcribe meeting.flac        write down what is said in a file\n  \
        vivavoce check                          find mistakes in the settings and missing engines\n\n\
        Every setting is listed in docs/configuration.md. Exit status: 0 done, 1 failed, 2 wrong use or settings."
)]
struct Cli {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct ConfigArgs {
    /// Settings file (default: vivavoce.yaml in the current folder, where it exists)
    #[arg(short, long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sets one setting, above all other sources; may be given again
    #[arg(short, long, global = true, value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the server
    Serve(serve::Arguments),
    /// Checks the settings and looks for the local engines
    Check,
    /// Shows every setting with its value and where it comes from
    PrintConfig,
    /// Lists the voices that there are
    Voices(voices::Arguments),
    /// Speaks a text, aloud or into a file
    Say(say::Arguments),
    /// Writes down what is said in an audio file
    Transcribe(transcribe::Arguments),
    /// Lists and checks what was recorded, and has stored what still waits
    Recordings(recordings::Arguments),
    /// Makes a token with which somebody joins a room
    Token(token::Arguments),
    /// Measures the server under load
    Bench(bench::Arguments),
    /// Runs the vendors' servers on this machine, for development and tests without a key
    Emulate(emulate::Arguments),
    /// Prints the description of the interface (OpenAPI 3.1), for generators of clients
    Openapi(openapi::Arguments),
    /// Recognises speech for a server (started by the server itself)
    #[command(hide = true)]
    SttWorker(stt_worker::Arguments),
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must look like key=value")?;
    Ok((key.trim().to_owned(), value.to_owned()))
}

/// Why a subcommand did not do its work.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    status: u8,
}

impl Failure {
    /// The work failed: exit status 1.
    pub(crate) fn work(message: impl Display) -> Self {
        Self {
            message: message.to_string(),
            status: 1,
        }
    }

    /// It was asked for in a way that cannot be: exit status 2.
    pub(crate) fn usage(message: impl Display) -> Self {
        Self {
            message: message.to_string(),
            status: 2,
        }
    }
}

/// Runs the program.
pub fn run() -> ExitCode {
    // What every client and server of this process encrypts with; nobody can have been here before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let Cli { config, command } = Cli::parse();
    match dispatch(&config, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { message, status }) => {
            for line in message.lines() {
                eprintln!("vivavoce: {line}");
            }
            ExitCode::from(status)
        }
    }
}

fn dispatch(config: &ConfigArgs, command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(arguments) => serve::run(config, &arguments),
        Command::Check => check::run(&load(config, &[])?),
        Command::PrintConfig => {
            print_config::run(&load(config, &[])?);
            Ok(())
        }
        Command::Voices(arguments) => voices::run(&load(config, &[])?, &arguments),
        Command::Say(arguments) => say::run(&load(config, &[])?, arguments),
        Command::Transcribe(arguments) => transcribe::run(&load(config, &[])?, &arguments),
        Command::Recordings(arguments) => recordings::run(&load(config, &[])?, &arguments),
        Command::Token(arguments) => token::run(&load(config, &[])?, &arguments),
        Command::Bench(arguments) => bench::run(config, &arguments),
        Command::Emulate(arguments) => emulate::run(config, &arguments),
        Command::Openapi(arguments) => {
            openapi::run(&arguments);
            Ok(())
        }
        Command::SttWorker(arguments) => stt_worker::run(&arguments),
    }
}

/// The settings, with a subcommand's own flags on top.
fn load(arguments: &ConfigArgs, flags: &[(&str, Option<String>)]) -> Result<Config, Failure> {
    let own = flags
        .iter()
        .filter_map(|(key, value)| Some(((*key).to_owned(), value.clone()?)));
    let flags: Vec<_> = arguments.set.iter().cloned().chain(own).collect();
    crate::server::settings::load(&flags, arguments.config.as_deref()).map_err(Failure::usage)
}

/// A runtime for subcommands that talk to providers.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Failure::work(format!("the runtime did not start: {error}")))
}
