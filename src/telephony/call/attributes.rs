//! The attributes of a call's participant, named as LiveKit names them.

use super::super::agent::header::Address;
use vivavoce_core::phone::PhoneNumber;
use vivavoce_seams::rooms::telephone::{AnswerFinding, attribute};

/// Limit of header attributes per call.
const MOST_HEADERS: usize = 32;
/// Longer values are truncated.
const MOST_CHARS: usize = 1_024;
/// What the attributes of headers begin with that the gateway has added.
pub const HEADER_OF_GATEWAY: &str = "sip.h.x-";
/// Headers that become attributes, besides those that begin with `X-`.
const TOLD: [&str; 6] = [
    "to",
    "from",
    "diversion",
    "p-asserted-identity",
    "p-called-party-id",
    "user-to-user",
];

/// The two ends of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ends {
    /// The number or user of the other side.
    pub outside: String,
    /// Our number.
    pub ours: String,
    /// The host of the other side.
    pub hostname: String,
}

/// The attributes that a call begins with.
pub fn of_call(sip_call_id: &str, status: &str, ends: &Ends) -> Vec<(String, String)> {
    let named = [
        (attribute::CALL_ID, sip_call_id),
        (attribute::CALL_STATUS, status),
        (attribute::PHONE_NUMBER, &ends.outside),
        (attribute::TRUNK_PHONE_NUMBER, &ends.ours),
        (attribute::HOSTNAME, &ends.hostname),
    ];
    named
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The attributes that identify the dialog.
pub fn of_dialog(call_id: &str, tag: Option<&str>) -> Vec<(String, String)> {
    let mut attributes = vec![(attribute::CALL_ID_FULL.to_owned(), call_id.to_owned())];
    attributes.extend(tag.map(|tag| (attribute::CALL_TAG.to_owned(), tag.to_owned())));
    attributes
}

/// The attributes for the headers that others may read: those that begin with `X-`, and those about who called whom. Of
/// several with one name, the first counts.
pub fn of_headers(headers: &[(String, String)]) -> Vec<(String, String)> {
    let mut told: Vec<(String, String)> = Vec::new();
    for (name, value) in headers {
        let name = name.to_ascii_lowercase();
        if !name.starts_with("x-") && !TOLD.contains(&name.as_str()) {
            continue;
        }
        let name = format!("{}{name}", attribute::HEADER);
        if told.len() >= MOST_HEADERS || told.iter().any(|(known, _)| *known == name) {
            continue;
        }
        told.push((name, cut(value)));
    }
    told
}

/// The attributes that tell who has answered.
pub fn of_finding(finding: AnswerFinding) -> Vec<(String, String)> {
    let told = match finding {
        AnswerFinding::Classified(found) => vec![
            (attribute::ANSWERED_BY, found.result.as_str().to_owned()),
            (
                attribute::ANSWERED_BY_CONFIDENCE,
                (f32::from(found.confidence) / 100.0).to_string(),
            ),
            (
                attribute::ANSWERED_BY_REASON,
                found.reason.as_str().to_owned(),
            ),
            (attribute::ANSWERED_BY_AFTER, found.after_ms.to_string()),
            (attribute::ANSWERED_BY_SOUND, found.sound_ms.to_string()),
        ],
        AnswerFinding::Beep { heard, after_ms } => {
            let heard = if heard { "heard" } else { "none" };
            vec![
                (attribute::BEEP, heard.to_owned()),
                (attribute::BEEP_AFTER, after_ms.to_string()),
            ]
        }
    };
    let owned = |(name, value): (&str, String)| (name.to_owned(), value);
    told.into_iter().map(owned).collect()
}

/// The value of a header as an attribute has it.
pub fn cut(value: &str) -> String {
    value.chars().take(MOST_CHARS).collect()
}

/// The user of a URI; telephone numbers are normalised.
pub fn number(user: &str) -> String {
    let plain = PhoneNumber::parse(user).map(|number| number.as_str().to_owned());
    plain.unwrap_or_else(|_| {
        let printable = user
            .chars()
            .filter(|c| !c.is_control() && !c.is_whitespace());
        printable.take(64).collect()
    })
}

/// Number and display name of the caller, from the `From` header.
pub fn caller(headers: &[(String, String)]) -> (String, Option<String>) {
    let from = headers
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case("from"));
    let Some((_, from)) = from else {
        return (String::new(), None);
    };
    let from = Address::parse(from);
    let user = from.user().map(|user| number(&user)).unwrap_or_default();
    let display = from.display.map(readable);
    (user, display.filter(|name| !name.is_empty()))
}

/// A display name without quotes and escapes (RFC 3261 section 25.1, `quoted-string`).
fn readable(name: &str) -> String {
    let inner = name
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    let mut escaped = false;
    let plain = inner.unwrap_or(name).chars().filter(|c| {
        escaped = inner.is_some() && *c == '\\' && !escaped;
        !escaped && !c.is_control()
    });
    plain.take(128).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn only_headers_that_tell_who_called_whom_and_those_of_the_gateway_are_read_by_others() {
        let told = of_headers(&headers(&[
            ("Via", "SIP/2.0/UDP h"),
            ("To", "<sip:1@Host>"),
            ("X-To-IP", "sip.example"),
            ("x-to-ip", "second"),
            ("Authorization", "Digest secret"),
            ("Contact", "<sip:a@10.0.0.1>"),
        ]));
        assert_eq!(
            told,
            headers(&[
                ("sip.h.to", "<sip:1@Host>"),
                ("sip.h.x-to-ip", "sip.example")
            ])
        );
        let many: Vec<_> = (0..99)
            .map(|i| (format!("X-{i}"), "ä".repeat(3_000)))
            .collect();
        let told = of_headers(&many);
        assert_eq!(told.len(), MOST_HEADERS);
        assert_eq!(told[0].1.chars().count(), MOST_CHARS);
    }

    #[test]
    fn who_calls_is_read_from_the_request() {
        let from = |value: &str| caller(&headers(&[("From", value)]));
        assert_eq!(
            from("\"Ann \\\"A\\\"\" <sip:+1.415.555.0100@gw>;tag=1"),
            ("+14155550100".to_owned(), Some("Ann \"A\"".to_owned()))
        );
        assert_eq!(from("<sip:gw.example>;tag=1"), (String::new(), None));
        assert_eq!(from("sip:anonymous@x;tag=1").0, "anonymous");
    }
}
