//! SIGHUP: the settings are read again, and what may change while the server runs is taken over, all of it or nothing
//! (docs/configuration.md). Whatever can fail is done before anything is changed.

use std::io;
use std::sync::Arc;

use actix::Addr;
use actix_web::web;
use tokio::signal::unix::Signal;

use super::{ServerError, reloaded_providers, systemd};
use crate::actors::registry::voices::{ForgetVoices, VoiceRegistry};
use crate::agents::{AgentDialler, AgentRoutes, DialOthers, DialPlan};
use crate::auth::{Authenticator, SharedSecrets};
use crate::config::{Config, ConfigError, Settings};
use crate::hooks::{Configured, Hooks};
use crate::http::carrier::{CarrierSettings, Carriers};
use crate::http::{AppState, Limits};
use crate::llm::Endpoints;
use crate::providers::ProviderTable;
use crate::quotas::Quotas;
use crate::tls_roots::Authorities;
use crate::webhooks::{Receivers, Webhooks};

/// Reads the settings again, as they were read at the start.
pub type Read = Arc<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>;

/// What has settings that may change.
pub(super) struct Reloadable {
    pub(super) providers: Arc<ProviderTable>,
    pub(super) quotas: Quotas,
    pub(super) limits: web::Data<Limits>,
    pub(super) state: web::Data<AppState>,
    pub(super) hooks: Hooks,
    pub(super) webhooks: Webhooks,
    pub(super) voices: Addr<VoiceRegistry>,
    pub(super) agents: Addr<AgentDialler>,
    pub(super) carriers: web::Data<Carriers>,
}

/// What was read, and cannot fail any more.
struct Prepared {
    providers: ProviderTable,
    secrets: Option<SharedSecrets>,
    hooks: Configured,
    agents: Option<DialPlan>,
    llm: Endpoints,
    carriers: CarrierSettings,
}

impl Reloadable {
    /// Reloads whenever the signal comes, for as long as the server runs.
    pub(super) async fn follow(self, mut hangup: Signal, mut current: Config, read: Read) {
        while hangup.recv().await.is_some() {
            systemd::reloads();
            let read = Arc::clone(&read);
            let Ok(after) = tokio::task::spawn_blocking(move || read()).await else {
                // The runtime is shutting down.
                return;
            };
            let after = after.inspect_err(|error| refused(error)).ok();
            let after = after.filter(|after| self.follow_to(&current, after));
            systemd::reloaded(after.is_some());
            current = after.unwrap_or(current);
        }
    }

    /// Takes over what has changed, unless something cannot be.
    fn follow_to(&self, current: &Config, after: &Config) -> bool {
        match self.prepare(current, &after.settings) {
            Ok(prepared) => self.take(prepared, &after.settings),
            Err(error) => {
                refused(&error);
                return false;
            }
        }
        tell(current, after);
        self.show(current, after);
        true
    }

    /// Shows what is in force: those settings that are not read again stay as they were.
    fn show(&self, before: &Config, after: &Config) {
        let both = before.resolved.iter().zip(&after.resolved);
        let shown = both.map(|(before, after)| {
            let taken = after.setting.is_reloaded();
            (if taken { after } else { before }).clone()
        });
        self.state.settings.replace(shown.collect());
    }

    fn prepare(&self, before: &Config, settings: &Settings) -> Result<Prepared, ServerError> {
        let authorities = Authorities::read(settings.outgoing.ca_file.as_deref())?;
        let secrets = self.state.auth.as_ref();
        let secrets = secrets.map(|_| Authenticator::read_secrets(&settings.auth));
        let routes = AgentRoutes::new(settings).map_err(ServerError::Agents)?;
        let plan =
            routes.map(|routes| DialPlan::new(routes, &authorities, settings.dialect.words()));
        Ok(Prepared {
            providers: reloaded_providers(&before.settings, settings, &self.providers)?,
            secrets: secrets
                .transpose()
                .map_err(|problems| io::Error::other(problems.join("\n")))?,
            hooks: Configured::new(settings).map_err(ServerError::Hooks)?,
            agents: plan.transpose()?,
            llm: Endpoints::new(settings, &authorities).map_err(ServerError::Llm)?,
            carriers: CarrierSettings::new(settings).map_err(ServerError::Carriers)?,
        })
    }

    fn take(&self, prepared: Prepared, settings: &Settings) {
        let Prepared {
            providers,
            secrets,
            hooks,
            agents,
            llm,
            carriers,
        } = prepared;
        self.state.llm.replace(llm);
        self.carriers.reload(carriers);
        self.providers.replace(&providers);
        if let (Some(auth), Some(secrets)) = (&self.state.auth, secrets) {
            auth.take_secrets(secrets);
        }
        self.quotas.reload(settings);
        self.limits.reload(settings);
        self.webhooks.reload(Receivers::new(settings, hooks.keys()));
        self.hooks.reload(hooks);
        // Once for each signal.
        self.voices.do_send(ForgetVoices);
        self.agents.do_send(DialOthers(agents));
    }
}

fn refused(error: &dyn std::error::Error) {
    for line in error.to_string().lines() {
        tracing::error!("the settings stay as they were: {line}");
    }
}

/// A line for each change.
fn tell(before: &Config, after: &Config) {
    let changes = before.changes(after);
    if changes.is_empty() {
        tracing::info!("the settings were read again: nothing has changed");
    }
    for change in changes {
        let key = change.after.setting.key;
        let (from, to) = (change.before.shown(), change.after.shown());
        if change.is_reloaded() {
            tracing::info!(key, %from, %to, "a setting has changed");
        } else {
            tracing::warn!(key, %from, %to, "a setting has changed, and takes effect at the next start");
        }
    }
}
