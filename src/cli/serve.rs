//! `vivavoce serve`: runs the server, until SIGTERM or Ctrl-C.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::{ConfigArgs, Failure, all_flags, load, models};
use crate::server::check_telephone;
use crate::tls_roots::Authorities;
use crate::{server, telemetry};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce serve --host 0.0.0.0\n  \
    vivavoce serve --port 0 --data-dir /tmp/vivavoce\n  \
    vivavoce serve --takeover\n  \
    PORT=8080 LOCAL_STT_URL=tcp://127.0.0.1:10300 vivavoce serve\n\n\
    SIGTERM or Ctrl-C ends it when running work is done; a second one at once. SIGHUP has it read its settings again.")]
pub(super) struct Arguments {
    /// Address to listen on (server.host)
    #[arg(long)]
    host: Option<IpAddr>,
    /// Port to listen on; 0 picks a free one (server.port)
    #[arg(short, long)]
    port: Option<u16>,
    /// Folder for cache, recordings, spools and keys (data_dir)
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    /// Before it serves, fetch the default models that are not installed; goes on without them where it cannot
    #[arg(long)]
    fetch_models: bool,
    /// Replace the server that runs with the same data folder, without refusing a connection; it ends when its sessions,
    /// rooms and calls have
    #[arg(long)]
    takeover: bool,
    /// Fetch no models; wins over --fetch-models
    #[arg(long)]
    no_models: bool,
}

pub(super) fn run(config: &ConfigArgs, arguments: &Arguments) -> Result<(), Failure> {
    let flags = [
        ("server.host", arguments.host.map(|host| host.to_string())),
        ("server.port", arguments.port.map(|port| port.to_string())),
        (
            "data_dir",
            arguments
                .data_dir
                .as_ref()
                .map(|folder| folder.display().to_string()),
        ),
    ];
    let (file, again) = (config.config.clone(), all_flags(config, &flags));
    let config = load(config, &flags)?;
    let settings = &config.settings;
    let collector = settings.telemetry.otlp_endpoint.as_deref();
    let authorities = Authorities::read(settings.outgoing.ca_file.as_deref());
    let authorities = authorities.map_err(Failure::usage)?;
    check_telephone(settings).map_err(Failure::usage)?;
    if arguments.fetch_models && !arguments.no_models {
        models::fetch_before_serving(&config)?;
    }
    let traces = telemetry::start(
        settings.log.level,
        settings.log.format,
        collector,
        &settings.telemetry.service_name,
        &authorities,
    );
    let traces = traces.map_err(Failure::work)?;
    let read = move || server::settings::load(&again, file.as_deref());
    let ended =
        server::run_reloading(&config, Arc::new(read), arguments.takeover).map_err(Failure::work);
    if let Some(traces) = traces {
        traces.finish();
    }
    ended
}
