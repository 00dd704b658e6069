//! `vivavoce check`: whether a server would start with these settings, and what it could do. Invalid settings are
//! reported earlier, when they are loaded.

use super::Failure;
use crate::auth::{self, Authenticator};
use crate::config::Config;
use crate::process::confinement::Confinement;
use crate::server::{check_telephone, engines, secure};
use crate::tls_roots::Authorities;

pub(super) fn run(config: &Config) -> Result<(), Failure> {
    // Loading has not read the files that settings refer to.
    let ca_file = config.settings.outgoing.ca_file.as_deref();
    let authorities = Authorities::read(ca_file).map_err(Failure::usage)?;
    let dialect = config.settings.dialect.words();
    Authenticator::open(&config.settings.auth, &authorities, dialect).map_err(Failure::usage)?;
    secure(&config.settings).map_err(Failure::usage)?;
    check_telephone(&config.settings).map_err(Failure::usage)?;
    println!("settings: good");
    for warning in auth::warnings(&config.settings.auth) {
        println!("warning: {warning}");
    }
    let engines = engines(&config.settings);
    for engine in &engines {
        println!("{engine}");
    }
    println!("programs  {}", Confinement::of_this_system());
    let missing = engines
        .iter()
        .filter(|engine| engine.found.is_err())
        .count();
    if missing == engines.len() {
        return Err(Failure::work(
            "no engine was found: this server could neither recognise nor synthesise speech",
        ));
    }
    Ok(())
}
