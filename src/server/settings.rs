//! Validation across settings. Each setting is validated by its declaration ([`crate::config`]); which combinations are
//! contradictory is known by the crates that use them.

use std::path::Path;

use crate::actors::registry::calls::{Destinations, Gateways};
use crate::actors::session::backchannel::Lists;
use crate::agents::AgentRoutes;
use crate::config::{Config, ConfigError, RtcMode, Settings};
use crate::providers::{embedded, livekit};
use crate::{auth, hooks, providers, webhooks};

/// Loads the settings of this process like [`Config::load`], and rejects contradictory ones.
pub fn load(flags: &[(String, String)], file: Option<&Path>) -> Result<Config, ConfigError> {
    let config = Config::load(flags, file)?;
    match contradictions(&config.settings) {
        problems if problems.is_empty() => Ok(config),
        problems => Err(ConfigError(problems)),
    }
}

/// The contradictions between valid settings.
fn contradictions(settings: &Settings) -> Vec<String> {
    let mut problems = auth::problems(&settings.auth);
    let server = &settings.server;
    if server.tls_cert.is_some() != server.tls_key.is_some() {
        problems.push("server.tls.cert, server.tls.key: one needs the other".to_owned());
    }
    problems.extend(super::rooms::turn_problems(settings));
    let backchannels = settings.turns.backchannels_json.as_ref();
    if let Err(problem) = Lists::read(backchannels) {
        problems.push(format!("turns.backchannels_json: {problem}"));
    }
    problems.extend(AgentRoutes::new(settings).err().unwrap_or_default());
    problems.extend(
        embedded::sip::phones(&settings.sip)
            .err()
            .unwrap_or_default(),
    );
    let registrations = embedded::sip::registrations(&settings.sip);
    problems.extend(registrations.err().unwrap_or_default());
    if settings.sip.registrations_json.is_some()
        && livekit::mode(&settings.rtc) != RtcMode::Embedded
    {
        problems.push(
            "sip.registrations_json: needs rtc.mode embedded; a deployment's SIP service has accounts of its own"
                .to_owned(),
        );
    }
    match embedded::sip::trunks(&settings.sip) {
        Ok(configured) => problems.extend(crate::http::trunk_problems(&configured)),
        Err(wrong) => problems.extend(wrong),
    }
    if settings.sip.trunks_json.is_some() && livekit::mode(&settings.rtc) != RtcMode::Embedded {
        problems.push(
            "sip.trunks_json: needs rtc.mode embedded; a deployment's SIP service has trunks of its own"
                .to_owned(),
        );
    }
    problems.extend(Gateways::read(&settings.sip).err().unwrap_or_default());
    problems.extend(Destinations::read(&settings.sip).err().unwrap_or_default());
    problems.extend(crate::llm::problems(settings));
    problems.extend(webhooks::problems(settings));
    problems.extend(hooks::problems(settings));
    problems.extend(crate::http::openai::problems(settings));
    problems.extend(crate::http::carrier::problems(settings));
    problems.extend(
        super::discretion::read(&settings.recording)
            .err()
            .unwrap_or_default(),
    );
    problems.extend(providers::s3::problems(&settings.recording));
    problems.extend(providers::livekit::problems(&settings.rtc, &settings.sip));
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn problems(name: &str, text: &str) -> Vec<String> {
        let environment = HashMap::from([(name.to_owned(), text.to_owned())]);
        let config = Config::from_sources(&[], &environment, None).unwrap();
        contradictions(&config.settings)
    }

    #[test]
    fn a_socket_cannot_need_a_token_where_nobody_does() {
        let problems = problems("AUTH_SOCKET", "required");
        assert!(problems[0].starts_with("auth.socket: "), "{problems:?}");
    }

    #[test]
    fn lists_of_backchannels_are_by_language() {
        let problems = problems("TURNS_BACKCHANNELS_JSON", r#"["mhm"]"#);
        let named = |problem: &String| problem.starts_with("turns.backchannels_json: ");
        assert!(problems.iter().any(named), "{problems:?}");
    }

    #[test]
    fn what_a_trunk_asks_for_in_vain_is_named() {
        let trunks =
            r#"{"outbound": [{"address": "h", "numbers": ["+1"], "destination_country": "de"}]}"#;
        let problems = problems("SIP_TRUNKS_JSON", trunks);
        let named = |problem: &String| problem.contains("destination_country: ");
        assert!(problems.iter().any(named), "{problems:?}");
    }

    #[test]
    fn a_server_that_cannot_lock_its_doors_does_not_start_when_told_to() {
        assert!(!problems("AUTH_REQUIRED", "true").is_empty());
    }

    #[test]
    fn the_defaults_go_together() {
        let config = Config::from_sources(&[], &HashMap::new(), None).unwrap();
        assert_eq!(contradictions(&config.settings), Vec::<String>::new());
    }
}
