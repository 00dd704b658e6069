//! `vivavoce voices`: the available voices as a table or as JSON.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write, stdout};

use clap::Args;

use super::{Failure, runtime};
use crate::config::Config;
use crate::providers::Voice;
use crate::server::providers;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  vivavoce voices\n  vivavoce voices --provider local --json")]
pub(super) struct Arguments {
    /// Only voices of this provider
    #[arg(short, long, value_name = "SLUG")]
    provider: Option<String>,
    /// Print JSON, as GET /voices returns it
    #[arg(long)]
    json: bool,
}

pub(super) fn run(config: &Config, arguments: &Arguments) -> Result<(), Failure> {
    let lists = runtime()?.block_on(list(config, arguments.provider.as_deref()))?;
    let mut out = BufWriter::new(stdout().lock());
    let written = if arguments.json {
        serde_json::to_writer_pretty(&mut out, &lists)
            .map_err(std::io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        print_table(&mut out, &lists)
    };
    // A closed pipe is not an error.
    let _ = written.and_then(|()| out.flush());
    Ok(())
}

async fn list(
    config: &Config,
    only: Option<&str>,
) -> Result<BTreeMap<&'static str, Vec<Voice>>, Failure> {
    let table = providers(&config.settings).map_err(Failure::work)?;
    let wanted = match only {
        None => table.all_text_to_speech(),
        Some(slug) => {
            let known = table.text_to_speech_slugs().join(", ");
            let provider = table.text_to_speech(slug);
            vec![provider.ok_or_else(|| {
                Failure::usage(format!("no provider {slug:?}; there is: {known}"))
            })?]
        }
    };
    let mut lists = BTreeMap::new();
    for provider in wanted {
        lists.insert(
            provider.slug(),
            provider.voices().await.map_err(Failure::work)?,
        );
    }
    Ok(lists)
}

fn print_table(out: &mut impl Write, lists: &BTreeMap<&str, Vec<Voice>>) -> std::io::Result<()> {
    let width = lists
        .values()
        .flatten()
        .map(|voice| voice.id.chars().count())
        .max()
        .unwrap_or(0);
    for (provider, voices) in lists {
        for voice in voices {
            writeln!(
                out,
                "{provider}  {:width$}  {:12}  {}",
                voice.id, voice.language, voice.name
            )?;
        }
    }
    Ok(())
}
