//! `vivavoce recordings`: what a server with these settings has recorded, whether it is intact, and what waits for
//! upload. Can be used while the server is running.

use std::io::{BufWriter, Write, stdout};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Failure, runtime};
use crate::actors::session::StreamId;
use crate::config::Config;
use crate::providers::StoreError;
use crate::recordings::recording_location::RecordingLocation;
use crate::recordings::verify::{VerifyError, verify_recording};
use crate::recordings::{AUDIO, catalogue, journal, uploader};
use crate::server;
use crate::tls_roots::Authorities;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce recordings list\n  \
    vivavoce recordings verify                 every recording in the store\n  \
    vivavoce recordings verify call-17 --json  one of them, for programs\n  \
    vivavoce recordings retry                  after the bucket or its credentials are right again\n\n\
    The store is that of the settings (recording.*). Exit status: 0 all is well, 1 something is damaged or the store \
    cannot be asked, 2 wrong use or settings.")]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List what is in the store and what waits for upload
    List(Output),
    /// Read recordings from the store and check their size, SHA-256, Ogg/Opus structure and duration
    Verify {
        /// Only recordings with these names, of any tenant; default: all
        stream_ids: Vec<String>,
        /// Only recordings of this tenant; empty for those without a tenant
        #[arg(long)]
        tenant: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Retry all waiting uploads at once, including those given up; done by the running server, or by the next one
    Retry(Output),
}

#[derive(Debug, Clone, Copy, Args)]
struct Output {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(config: &Config, arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.action {
        Action::List(output) => runtime()?.block_on(list(config, *output)),
        Action::Verify {
            stream_ids,
            tenant,
            output,
        } => runtime()?.block_on(verify(config, stream_ids, tenant.as_deref(), *output)),
        Action::Retry(output) => retry(config, *output),
    }
}

/// A closed pipe is not an error.
fn line(out: &mut impl Write, output: Output, value: &Value, text: &str) {
    let _ = if output.json {
        writeln!(out, "{value}")
    } else {
        writeln!(out, "{text}")
    };
}

async fn opened(config: &Config) -> Result<server::Store, Failure> {
    let ca_file = config.settings.outgoing.ca_file.as_deref();
    let authorities = Authorities::read(ca_file).map_err(Failure::usage)?;
    let store = server::recording_store(&config.settings, &authorities).await;
    store.ok_or_else(|| Failure::usage("recording.backend is off, so there are no recordings"))
}

async fn list(config: &Config, output: Output) -> Result<(), Failure> {
    let store = opened(config).await?;
    let prefix = &config.settings.recording.prefix;
    let mut out = BufWriter::new(stdout().lock());
    let mut listed = 0;
    for place in catalogue::all(&*store, prefix)
        .await
        .map_err(Failure::work)?
    {
        let known = match catalogue::metadata(&*store, prefix, &place).await {
            Ok(known) => known,
            Err(StoreError::NotFound) => continue,
            Err(error) => return Err(Failure::work(error)),
        };
        let seconds = known.duration_ms as f64 / 1000.0;
        let tenant = known.tenant.as_deref().unwrap_or("-");
        let text = format!(
            "stored   {}  {seconds:.1} s  {} bytes  {tenant}",
            known.stream_id, known.size
        );
        let mut value = serde_json::to_value(&known).map_err(Failure::work)?;
        if let Some(fields) = value.as_object_mut() {
            fields.insert("state".to_owned(), "stored".into());
        }
        line(&mut out, output, &value, &text);
        listed += 1;
    }
    for Waiting {
        stream_id,
        tenant,
        why,
    } in waiting(config)?
    {
        let state = if why.is_some() { "given_up" } else { "waiting" };
        let text = match (&tenant, why.as_deref().unwrap_or_default()) {
            (None, why) => format!("{state:8} {stream_id}  {why}"),
            (Some(tenant), why) => format!("{state:8} {stream_id}  {tenant}  {why}"),
        };
        let mut value = json!({"stream_id": stream_id, "state": state, "message": why});
        if let (Some(tenant), Some(fields)) = (tenant, value.as_object_mut()) {
            fields.insert("tenant".to_owned(), tenant.into());
        }
        line(&mut out, output, &value, text.trim_end());
        listed += 1;
    }
    let _ = out.flush();
    if listed == 0 && !output.json {
        // Not on standard output, where there is a line for each.
        eprintln!("no recording is in the store, and none waits for upload");
    }
    Ok(())
}

/// A journal on local disk.
struct Waiting {
    stream_id: String,
    tenant: Option<String>,
    /// Why its upload was given up, if it was.
    why: Option<String>,
}

/// The journals on local disk, including those being written.
fn waiting(config: &Config) -> Result<Vec<Waiting>, Failure> {
    let root = journal::root(&config.settings.storage.data_dir);
    let entries = match std::fs::read_dir(&root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::work(format!("{}: {error}", root.display()))),
    };
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort_unstable();
    let known = |name: String| {
        let folder = root.join(&name);
        // A journal whose metadata cannot be read is listed by the name of its folder.
        let known = journal::described(&folder).ok().flatten();
        let tenant = known.as_ref().and_then(|known| known.tenant.clone());
        Waiting {
            stream_id: known.map_or(name, |known| known.stream_id),
            tenant,
            why: uploader::given_up(&folder),
        }
    };
    Ok(names.into_iter().map(known).collect())
}

/// The recordings to verify: all, or those with these names and of this tenant. A name that does not exist is looked up
/// as one without a tenant.
async fn wanted(
    store: &server::Store,
    prefix: &str,
    stream_ids: &[String],
    tenant: Option<&str>,
) -> Result<Vec<RecordingLocation>, StoreError> {
    let there = catalogue::all(&**store, prefix).await?;
    let of_tenant = |place: &RecordingLocation| match tenant {
        None => true,
        Some("") => *place == RecordingLocation::top(place.stream_id()),
        Some(tenant) => {
            place.path() == RecordingLocation::new(Some(tenant), place.stream_id()).path()
        }
    };
    let there: Vec<_> = there.into_iter().filter(of_tenant).collect();
    if stream_ids.is_empty() {
        return Ok(there);
    }
    let mut wanted = Vec::new();
    for stream_id in stream_ids {
        let named = there.iter().filter(|place| place.stream_id() == stream_id);
        let before = wanted.len();
        wanted.extend(named.cloned());
        if wanted.len() == before {
            wanted.push(RecordingLocation::new(
                tenant.filter(|tenant| !tenant.is_empty()),
                stream_id,
            ));
        }
    }
    Ok(wanted)
}

async fn verify(
    config: &Config,
    stream_ids: &[String],
    tenant: Option<&str>,
    output: Output,
) -> Result<(), Failure> {
    let store = opened(config).await?;
    let prefix = &config.settings.recording.prefix;
    let wanted = wanted(&store, prefix, stream_ids, tenant).await;
    let wanted = wanted.map_err(Failure::work)?;
    let mut out = BufWriter::new(stdout().lock());
    let mut damaged = 0;
    for place in &wanted {
        let name = place.stream_id();
        let result = match StreamId::parse(name) {
            Ok(_) => verify_recording(&*store, prefix, place).await,
            Err(_) => Err(VerifyError::Store(StoreError::NotFound)),
        };
        match result {
            Ok(_) => line(
                &mut out,
                output,
                &json!({"stream_id": name, "good": true}),
                &format!("good     {name}"),
            ),
            // A folder or a file that an egress was asked to name.
            Err(VerifyError::Store(StoreError::NotFound))
                if stream_ids.is_empty() && !has_audio(&store, prefix, place).await => {}
            Err(damage) => {
                damaged += 1;
                let value =
                    json!({"stream_id": name, "good": false, "message": damage.to_string()});
                line(
                    &mut out,
                    output,
                    &value,
                    &format!("damaged  {name}  {damage}"),
                );
            }
        }
    }
    let _ = out.flush();
    if damaged > 0 {
        return Err(Failure::work(format!(
            "{damaged} of {} are damaged",
            wanted.len()
        )));
    }
    Ok(())
}

/// Whether there is audio where that of a recording is. If the store cannot say, there may be.
async fn has_audio(store: &server::Store, prefix: &str, place: &RecordingLocation) -> bool {
    let known = store.head(&place.key(prefix, AUDIO)).await;
    !matches!(known, Err(StoreError::NotFound))
}

fn retry(config: &Config, output: Output) -> Result<(), Failure> {
    let waiting = waiting(config)?.len();
    let given_up = if waiting == 0 {
        0
    } else {
        let root = journal::root(&config.settings.storage.data_dir);
        uploader::retry(&root).map_err(Failure::work)?
    };
    let text = format!(
        "{waiting} waiting uploads will be retried at once, {given_up} of which had been given up"
    );
    let value = json!({"waiting": waiting, "given_up": given_up});
    line(&mut stdout().lock(), output, &value, &text);
    Ok(())
}
