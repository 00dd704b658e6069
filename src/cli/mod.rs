//! The command line: one file per subcommand, none of them with logic of its own.

/// Prints a line. Where nobody reads any more (`| head`), the program ends, as others do.
macro_rules! tell {
    ($($text:tt)*) => {
        $crate::cli::print_line(format_args!($($text)*))
    };
}

#[cfg(feature = "development")]
mod bench;
mod check;
mod doctor;
#[cfg(feature = "development")]
mod emulate;
mod health;
mod models;
mod openapi;
mod print_config;
mod recordings;
mod say;
mod serve;
mod sip;
mod speech_worker;
mod stt_worker;
mod token;
mod transcribe;
mod voices;

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::Config;

/// A real-time voice server: speech-to-text, text-to-speech, rooms, telephone calls and recordings
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
        vivavoce models fetch                   get the models of local speech\n  \
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
    /// Settings file (default: vivavoce.yaml in the current folder, if it exists)
    #[arg(short, long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Overrides a setting; may be repeated
    #[arg(short, long, global = true, value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server
    Serve(serve::Arguments),
    /// Check the settings and the files that they name, and look for the local engines
    #[command(after_help = "Examples:\n  \
        vivavoce check                                   the settings here and in the environment\n  \
        vivavoce -c /etc/vivavoce/vivavoce.yaml check    before a restart, as the server's user\n\n\
        Nothing is created or changed. `vivavoce doctor` looks further: ports, disk, certificates' dates, vendors. \
        Exit status: 0 a server would start, 1 it could neither hear nor speak, as there is no engine and no vendor's key, 2 the settings are wrong, or a file of theirs.")]
    Check,
    /// Look at all that the server needs, and say what to do about what is wrong
    Doctor(doctor::Arguments),
    /// Ask the server that runs with these settings how it is
    Health(health::Arguments),
    /// Show every setting with its value and source
    #[command(after_help = "Examples:\n  \
        vivavoce print-config                        secrets are masked\n  \
        vivavoce print-config | grep -v '(default)'  only what was set")]
    PrintConfig,
    /// List the available voices
    Voices(voices::Arguments),
    /// Synthesise a text and play it, or write it to a file
    Say(say::Arguments),
    /// Transcribe an audio file
    Transcribe(transcribe::Arguments),
    /// List, fetch, verify and remove the models of local speech
    Models(models::Arguments),
    /// List and verify recordings, and retry uploads
    Recordings(recordings::Arguments),
    /// Create a token for joining a room
    Token(token::Arguments),
    /// Say what would become of a telephone call, and what became of one
    Sip(sip::Arguments),
    /// Measure the performance of the server under load
    #[cfg(feature = "development")]
    Bench(bench::Arguments),
    /// Emulate the vendors' servers on this machine, for development and tests without an API key
    #[cfg(feature = "development")]
    Emulate(emulate::Arguments),
    /// (Not in this build) Measure the performance of the server under load
    #[cfg(not(feature = "development"))]
    Bench(NotInThisBuild),
    /// (Not in this build) Emulate the vendors' servers on this machine, for development and tests without an API key
    #[cfg(not(feature = "development"))]
    Emulate(NotInThisBuild),
    /// Print the API description (OpenAPI 3.1), for client generators
    Openapi(openapi::Arguments),
    /// Recognise speech for a server (started by the server itself)
    #[command(hide = true)]
    SttWorker(stt_worker::Arguments),
    /// Run a neural model for a server (started by the server itself)
    #[command(hide = true)]
    SpeechWorker(speech_worker::Arguments),
}

/// The arguments of a subcommand that was left out.
#[cfg(not(feature = "development"))]
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
struct NotInThisBuild {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<std::ffi::OsString>,
}

fn print_line(text: std::fmt::Arguments<'_>) {
    let printed = writeln!(std::io::stdout().lock(), "{text}");
    if printed.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        std::process::exit(0);
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must look like key=value")?;
    Ok((key.trim().to_owned(), value.to_owned()))
}

/// Why a subcommand failed.
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

    /// Invalid usage: exit status 2.
    pub(crate) fn usage(message: impl Display) -> Self {
        Self {
            message: message.to_string(),
            status: 2,
        }
    }
}

/// Runs the program.
pub fn run() -> ExitCode {
    // The process-wide TLS provider; nothing can have installed another one yet.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
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
        Command::Doctor(arguments) => doctor::run(&load(config, &[])?, &arguments),
        Command::Health(arguments) => health::run(&load(config, &[])?, &arguments),
        Command::PrintConfig => {
            print_config::run(&load(config, &[])?);
            Ok(())
        }
        Command::Voices(arguments) => voices::run(&load(config, &[])?, &arguments),
        Command::Say(arguments) => say::run(&load(config, &[])?, arguments),
        Command::Transcribe(arguments) => transcribe::run(&load(config, &[])?, &arguments),
        Command::Models(arguments) => models::run(&load(config, &[])?, &arguments),
        Command::Recordings(arguments) => recordings::run(&load(config, &[])?, &arguments),
        Command::Token(arguments) => token::run(&load(config, &[])?, &arguments),
        Command::Sip(arguments) => sip::run(&load(config, &[])?, &arguments),
        #[cfg(feature = "development")]
        Command::Bench(arguments) => bench::run(config, &arguments),
        #[cfg(feature = "development")]
        Command::Emulate(arguments) => emulate::run(config, &arguments),
        #[cfg(not(feature = "development"))]
        Command::Bench(_) | Command::Emulate(_) => Err(Failure::usage(
            "this build has neither bench nor emulate; `cargo build --release` makes one that has both",
        )),
        Command::Openapi(arguments) => {
            openapi::run(&arguments);
            Ok(())
        }
        Command::SttWorker(arguments) => stt_worker::run(&arguments),
        Command::SpeechWorker(arguments) => speech_worker::run(&arguments),
    }
}

/// The settings, with a subcommand's own flags taking precedence.
fn load(arguments: &ConfigArgs, flags: &[(&str, Option<String>)]) -> Result<Config, Failure> {
    let flags = all_flags(arguments, flags);
    crate::server::settings::load(&flags, arguments.config.as_deref()).map_err(Failure::usage)
}

/// The settings of the command line, those of a subcommand's own flags last.
fn all_flags(arguments: &ConfigArgs, flags: &[(&str, Option<String>)]) -> Vec<(String, String)> {
    let own = flags
        .iter()
        .filter_map(|(key, value)| Some(((*key).to_owned(), value.clone()?)));
    arguments.set.iter().cloned().chain(own).collect()
}

/// A tokio runtime for subcommands that use providers.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Failure::work(format!("the runtime did not start: {error}")))
}
