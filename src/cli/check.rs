//! `vivavoce check`: whether a server would start with these settings, and what it could do. Invalid settings are
//! reported earlier, when they are loaded. Nothing is created or changed.

use super::Failure;
use crate::auth::{self, Authenticator};
use crate::config::Config;
use crate::process::confinement::Confinement;
use crate::server::{check_telephone, engines, files, with_credentials};
use crate::tls_roots::Authorities;

pub(super) fn run(config: &Config) -> Result<(), Failure> {
    let settings = &config.settings;
    let files = files::look(settings);
    let wrong = files.iter().filter(|file| file.found.is_err());
    let mut problems: Vec<_> = wrong.map(ToString::to_string).collect();
    if problems.is_empty() {
        problems.extend(beyond_files(config).err());
    }
    if !problems.is_empty() {
        // What concerns two settings has been said by both.
        problems.dedup();
        return Err(Failure::usage(problems.join("\n")));
    }
    tell!("settings: good");
    for warning in auth::warnings(&settings.auth) {
        tell!("warning: {warning}");
    }
    for file in &files {
        tell!("{file}");
    }
    let engines = engines(settings);
    for engine in &engines {
        tell!("{engine}");
    }
    tell!("programs  {}", Confinement::of_this_system());
    let missing = engines
        .iter()
        .filter(|engine| engine.found.is_err())
        .count();
    let vendors = with_credentials(&settings.providers);
    for vendor in &vendors {
        tell!("{vendor}  has a credential (`vivavoce doctor` tries it)");
    }
    if missing == engines.len() && vendors.is_empty() {
        return Err(Failure::work(
            "no local engine was found, and no vendor has a credential: this server could neither recognise nor synthesise speech",
        ));
    }
    Ok(())
}

/// What a start checks beside the files that settings name.
fn beyond_files(config: &Config) -> Result<(), String> {
    let settings = &config.settings;
    let authorities = Authorities::read(settings.outgoing.ca_file.as_deref());
    let authorities = authorities.map_err(|error| error.to_string())?;
    let dialect = settings.dialect.words();
    Authenticator::open(&settings.auth, &authorities, dialect)
        .map_err(|error| error.to_string())?;
    check_telephone(settings).map_err(|error| error.to_string())
}
