//! The settings that say how discreet recordings are, for everybody and by tenant.

use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;

use crate::auth::TenantId;
use crate::config;
use crate::recordings::discretion::{Discretion, Rules};
use crate::recordings::redaction::{MOST_PATTERNS, MOST_SIGNS, Pattern, Redaction};

/// The longest announcement.
const MOST_ANNOUNCED: usize = 2_000;
/// A hundred years.
const MOST_DAYS: u32 = 36_500;

/// The rules of a tenant; what is absent is as for everybody.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfTenant {
    retention_days: Option<u32>,
    redact: Option<Vec<String>>,
    redact_patterns: Option<Vec<String>>,
    redact_sound: Option<bool>,
    hide_keys: Option<bool>,
    announcement_text: Option<String>,
}

/// Reads the rules; on failure returns all problems, which quote no pattern.
pub fn read(settings: &config::Recording) -> Result<Discretion, Vec<String>> {
    let mut problems = Vec::new();
    let redaction = redaction(
        &settings.redact.0,
        &settings.redact_patterns.0,
        "recording",
        &mut problems,
    );
    let days = settings.retention_days.map(std::num::NonZero::get);
    let everybody = Rules {
        retention: days.map(age),
        redaction,
        redacts_sound: settings.redact_sound,
        hides_keys: settings.hide_keys,
        announcement: announcement(
            settings.announcement_text.as_deref(),
            "recording",
            &mut problems,
        ),
    };
    let mut tenants = HashMap::new();
    let own = settings.tenants_json.as_ref().map(|json| {
        HashMap::<String, OfTenant>::deserialize(&json.0).map_err(|error| {
            format!(
                "recording.tenants_json: must be {{\"tenant\": {{\"retention_days\"?, \"redact\"?, \
                 \"redact_patterns\"?, \"redact_sound\"?, \"hide_keys\"?, \"announcement_text\"?}}}}: {error}"
            )
        })
    });
    match own {
        None => {}
        Some(Err(problem)) => problems.push(problem),
        Some(Ok(own)) => {
            let mut own: Vec<_> = own.into_iter().collect();
            own.sort_by(|(one, _), (other, _)| one.cmp(other));
            for (tenant, rules) in own {
                let place = format!("recording.tenants_json: {tenant:?}");
                if let Err(error) = TenantId::new(&tenant) {
                    problems.push(format!("recording.tenants_json: a tenant {error}"));
                }
                if rules
                    .retention_days
                    .is_some_and(|days| days == 0 || days > MOST_DAYS)
                {
                    problems.push(format!("{place}.retention_days: must be 1 to {MOST_DAYS}"));
                }
                let words = rules.redact.as_ref().unwrap_or(&settings.redact.0);
                let patterns = rules.redact_patterns.as_ref();
                let patterns = patterns.unwrap_or(&settings.redact_patterns.0);
                let announced = rules.announcement_text.as_deref();
                let rules = Rules {
                    retention: rules.retention_days.map(age).or(everybody.retention),
                    redaction: self::redaction(words, patterns, &place, &mut problems),
                    redacts_sound: rules.redact_sound.unwrap_or(settings.redact_sound),
                    hides_keys: rules.hide_keys.unwrap_or(settings.hide_keys),
                    announcement: match announced {
                        None => everybody.announcement.clone(),
                        Some(text) => announcement(Some(text), &place, &mut problems),
                    },
                };
                tenants.insert(tenant, rules);
            }
        }
    }
    if problems.is_empty() {
        Ok(Discretion { everybody, tenants })
    } else {
        Err(problems)
    }
}

fn age(days: u32) -> Duration {
    Duration::from_hours(24) * days
}

/// Nothing is announced where the text is empty.
fn announcement(text: Option<&str>, place: &str, problems: &mut Vec<String>) -> Option<String> {
    let text = text.map(str::trim).filter(|text| !text.is_empty())?;
    if text.chars().count() > MOST_ANNOUNCED {
        problems.push(format!(
            "{place}.announcement_text: must have at most {MOST_ANNOUNCED} characters"
        ));
    }
    Some(text.to_owned())
}

fn redaction(
    words: &[String],
    patterns: &[String],
    place: &str,
    problems: &mut Vec<String>,
) -> Redaction {
    let mut redaction = Redaction::default();
    for word in words {
        match word.trim() {
            "cards" => redaction.cards = true,
            "numbers" => redaction.numbers = true,
            _ => problems.push(format!("{place}.redact: must be of cards, numbers")),
        }
    }
    if patterns.len() > MOST_PATTERNS {
        problems.push(format!(
            "{place}.redact_patterns: must be at most {MOST_PATTERNS}"
        ));
    }
    for (index, pattern) in patterns.iter().enumerate() {
        match Pattern::parse(pattern) {
            Some(pattern) => redaction.patterns.push(pattern),
            None => problems.push(format!(
                "{place}.redact_patterns: {}: must have 1 to {MOST_SIGNS} of # (a digit), @ (a letter), letters and digits",
                index + 1
            )),
        }
    }
    redaction
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read_of(settings: &[(&str, &str)]) -> Result<Discretion, Vec<String>> {
        let environment = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let config = Config::from_sources(&[], &environment.collect(), None).unwrap();
        read(&config.settings.recording)
    }

    #[test]
    fn a_tenant_has_the_rules_of_everybody_but_where_it_has_its_own() {
        let discretion = read_of(&[
            ("RECORDING_RETENTION_DAYS", "30"),
            ("RECORDING_REDACT", "cards"),
            ("RECORDING_REDACT_SOUND", "true"),
            ("RECORDING_ANNOUNCEMENT_TEXT", "This call is recorded."),
            (
                "RECORDING_TENANTS_JSON",
                r#"{"a": {"retention_days": 1, "announcement_text": "", "redact_sound": false}, "b": {"redact": [], "hide_keys": true}}"#,
            ),
        ])
        .unwrap();
        let day = Duration::from_hours(24);
        let [all, a, b] = [None, Some("a"), Some("b")].map(|tenant| discretion.of(tenant));
        assert_eq!(discretion.of(Some("c")), all);
        assert_eq!(
            (all.retention, a.retention, b.retention),
            (Some(30 * day), Some(day), Some(30 * day))
        );
        assert!(all.redaction.cards && a.redaction.cards && !b.redaction.cards);
        // Of what is not left out no sound is silent.
        assert_eq!([all, a, b].map(Rules::silences), [true, false, false]);
        assert!(all.announcement.is_some() && a.announcement.is_none());
        assert!(b.hides_keys && !a.hides_keys);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (name, value, place) in [
            ("RECORDING_REDACT", "card", "recording.redact"),
            (
                "RECORDING_REDACT_PATTERNS",
                "--",
                "recording.redact_patterns",
            ),
            (
                "RECORDING_TENANTS_JSON",
                r#"{"a": {"days": 1}}"#,
                "recording.tenants_json",
            ),
            (
                "RECORDING_TENANTS_JSON",
                r#"{"a": {"retention_days": 0}}"#,
                "recording.tenants_json: \"a\".retention_days",
            ),
        ] {
            let problems = read_of(&[(name, value)]).unwrap_err();
            assert!(problems[0].starts_with(place), "{problems:?}");
        }
    }
}
