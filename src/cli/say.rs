//! `vivavoce say TEXT`: synthesises a text to a file, to standard output, or plays it with the first audio player that
//! is installed.

use std::io::{Read, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use clap::Args;
use serde_json::json;

use super::{Failure, runtime};
use crate::config::Config;
use crate::quotas::{Party, Quotas};
use crate::server::{providers, synthesis_settings};
use crate::ssml::Ssml;
use crate::synthesis::{MAX_TEXT_BYTES, SpeechConfig, Synthesizer, TtsConfig};

/// Players that read a WAV file from standard input, in order of preference.
const PLAYERS: &[(&str, &[&str])] = &[
    ("pw-play", &["-"]),
    ("paplay", &[]),
    ("aplay", &["-q", "-"]),
    ("play", &["-q", "-t", "wav", "-"]),
    (
        "ffplay",
        &["-autoexit", "-nodisp", "-loglevel", "error", "-"],
    ),
];

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce say \"Good morning.\"                     aloud, where a player is installed\n  \
    vivavoce say \"Good morning.\" -o morning.mp3      the name decides the format\n  \
    vivavoce say -v espeak-de \"Guten Tag.\" -o tag.wav\n  \
    echo \"From a pipe.\" | vivavoce say - -o - > pipe.wav")]
pub(super) struct Arguments {
    /// The text; `-` reads it from standard input
    text: String,
    /// The output file (.wav, .mp3, .ogg, .pcm, .ulaw, .alaw), or `-` for standard output (WAV unless --format is given)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// A voice listed by `vivavoce voices`
    #[arg(short, long, value_name = "ID")]
    voice: Option<String>,
    /// Speaking rate, 0.25 to 4.0
    #[arg(short, long, default_value_t = 1.0)]
    rate: f64,
    /// linear16, wav, mulaw, alaw, mp3 or ogg_opus, regardless of the file's name
    #[arg(short, long, value_name = "FORMAT", requires = "output")]
    format: Option<String>,
    /// Sample rate in Hz
    #[arg(long, value_name = "HZ")]
    sample_rate: Option<u32>,
    /// The provider
    #[arg(short, long, default_value = "local", value_name = "SLUG")]
    provider: String,
    /// The provider's model
    #[arg(long, default_value = "")]
    model: String,
    /// The text is a document of SSML
    #[arg(long)]
    ssml: bool,
}

pub(super) fn run(config: &Config, arguments: Arguments) -> Result<(), Failure> {
    let text = read_text(arguments.text)?;
    let format = match (&arguments.format, &arguments.output) {
        (Some(format), _) => format.clone(),
        (None, Some(file)) => format_of(file)?.to_owned(),
        (None, None) => "wav".to_owned(),
    };
    let wire = json!({
        "provider": arguments.provider, "model": arguments.model, "voice_id": arguments.voice,
        "audio_format": format, "sample_rate": arguments.sample_rate, "speaking_rate": arguments.rate,
    });
    if !arguments.rate.is_finite() {
        return Err(Failure::usage("--rate must be a number from 0.25 to 4.0"));
    }
    let wire: TtsConfig = serde_json::from_value(wire).map_err(Failure::usage)?;
    let speech = wire.check().map_err(Failure::usage)?;
    let document = arguments.ssml.then(|| Ssml::parse(&text));
    let document = document.transpose().map_err(Failure::usage)?;
    let said = (text.as_str(), document.as_ref());
    let sound = runtime()?.block_on(synthesize(config, speech, said))?;
    match arguments.output {
        Some(file) if file.as_os_str() == "-" => {
            write_all(&mut stdout().lock(), &sound, "standard output")
        }
        Some(file) => {
            let name = file.display().to_string();
            let mut out = std::fs::File::create(&file)
                .map_err(|error| Failure::work(format!("{name}: {error}")))?;
            write_all(&mut out, &sound, &name)
        }
        None => play(&sound),
    }
}

fn read_text(text: String) -> Result<String, Failure> {
    let text = if text == "-" {
        let mut piped = String::new();
        let most = MAX_TEXT_BYTES as u64 + 1;
        stdin()
            .lock()
            .take(most)
            .read_to_string(&mut piped)
            .map_err(Failure::work)?;
        piped
    } else {
        text
    };
    match text.len() {
        _ if text.trim().is_empty() => Err(Failure::usage("there is nothing to say")),
        0..=MAX_TEXT_BYTES => Ok(text),
        _ => Err(Failure::usage(format!(
            "the text is longer than {MAX_TEXT_BYTES} bytes"
        ))),
    }
}

/// The format implied by a file's name.
fn format_of(file: &Path) -> Result<&'static str, Failure> {
    if file.as_os_str() == "-" {
        return Ok("wav");
    }
    let extension = file
        .extension()
        .and_then(|extension| extension.to_str())
        .unwrap_or_default();
    match extension.to_ascii_lowercase().as_str() {
        "wav" => Ok("wav"),
        "mp3" => Ok("mp3"),
        "ogg" | "opus" => Ok("ogg_opus"),
        "pcm" | "raw" => Ok("linear16"),
        "ulaw" | "ul" => Ok("mulaw"),
        "alaw" | "al" => Ok("alaw"),
        _ => Err(Failure::usage(format!(
            "{}: the name tells no format; end it with .wav, .mp3, .ogg or .pcm, or use --format",
            file.display()
        ))),
    }
}

async fn synthesize(
    config: &Config,
    speech: SpeechConfig,
    (text, document): (&str, Option<&Ssml>),
) -> Result<Vec<Bytes>, Failure> {
    let providers = Arc::new(providers(&config.settings).map_err(Failure::work)?);
    let mut settings = synthesis_settings(&config.settings, &Quotas::unlimited());
    // A one-off command needs no cache.
    settings.cache = None;
    let synthesizer = Synthesizer::open(providers, &settings).map_err(Failure::work)?;
    let party = Party::Operator;
    let speech = match document {
        Some(document) => synthesizer.speak_ssml(speech, document, &party).await,
        None => synthesizer.speak(speech, text, &party).await,
    };
    let mut speech = speech.map_err(Failure::work)?;
    speech.whole().await.map_err(Failure::work)
}

fn write_all(out: &mut impl Write, sound: &[Bytes], name: &str) -> Result<(), Failure> {
    let written = sound
        .iter()
        .try_for_each(|chunk| out.write_all(chunk))
        .and_then(|()| out.flush());
    written.map_err(|error| Failure::work(format!("{name}: {error}")))
}

fn play(sound: &[Bytes]) -> Result<(), Failure> {
    for (player, arguments) in PLAYERS {
        let started = Command::new(player)
            .args(*arguments)
            .stdin(Stdio::piped())
            .spawn();
        let Ok(mut child) = started else { continue };
        if let Some(mut stdin) = child.stdin.take() {
            // A player that stops early reports why by its exit status.
            let _ = sound.iter().try_for_each(|chunk| stdin.write_all(chunk));
        }
        let status = child.wait().map_err(Failure::work)?;
        return if status.success() {
            Ok(())
        } else {
            Err(Failure::work(format!(
                "{player} could not play the sound; write it to a file with -o FILE"
            )))
        };
    }
    let names = PLAYERS
        .iter()
        .map(|(name, _)| *name)
        .collect::<Vec<_>>()
        .join(", ");
    Err(Failure::work(format!(
        "no player is installed (looked for {names}); write to a file with -o FILE"
    )))
}
