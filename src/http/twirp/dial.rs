//! Calls as LiveKit's clients ask for them, read into what the registry of calls understands. What embedded rooms cannot
//! do is refused by the name of its field: nobody shall be called otherwise than they were meant to be.

use std::time::Duration;

use livekit_protocol as proto;
use proto::{CreateSipParticipantRequest, SipMediaEncryption, TransferSipParticipantRequest};
use proto::{SipHeaderOptions, SipMediaConfig, SipOutboundConfig, SipOutboundTrunkInfo};

use super::Failure;
use super::sip::invalid;
use crate::actors::registry::calls::{DialTrunk, TransferCall, Until};
use crate::auth::Access;
use crate::config::{Secret, SipTransport};
use crate::phone::{Gateway, PhoneNumber};
use crate::providers::rooms::telephone::{Login, NewCall, TransferTarget, Trunk};
use crate::rooms::limits;

/// How long a call may ring where a request does not say (LiveKit's own).
const RINGING: Duration = Duration::from_secs(30);
/// The longest that it may ring, and a call may last (LiveKit's own).
const MOST_RINGING: Duration = Duration::from_secs(80);
const MOST_DURATION: Duration = Duration::from_hours(24);
/// Bytes of a text, and attributes of a participant.
const MOST_BYTES: usize = 4_096;
const MOST_ATTRIBUTES: usize = 64;
/// Bytes of a display name (LiveKit's own).
const MOST_DISPLAY_NAME: usize = 128;

/// Fields of which none may be used.
fn refuse<'a>(fields: impl IntoIterator<Item = (&'a str, bool)>) -> Result<(), Failure> {
    match fields.into_iter().find(|(_, used)| *used) {
        None => Ok(()),
        Some((field, _)) => Err(invalid(format!("{field}: embedded rooms cannot do that"))),
    }
}

fn fits(field: &str, text: &str, most: usize) -> Result<(), Failure> {
    if text.len() <= most {
        return Ok(());
    }
    Err(invalid(format!("{field}: must be at most {most} bytes")))
}

/// The same for what is written in a header of SIP.
fn fits_header(field: &str, text: &str, most: usize) -> Result<(), Failure> {
    if text.contains(char::is_control) {
        return Err(invalid(format!(
            "{field}: must not have control characters"
        )));
    }
    fits(field, text, most)
}

fn number(field: &str, text: &str) -> Result<PhoneNumber, Failure> {
    PhoneNumber::parse(text).map_err(|problem| invalid(format!("{field}: {problem}")))
}

/// Seconds and nanoseconds as a time; `None` where they say nothing, which zero means too.
fn duration(
    field: &str,
    told: Option<(i64, i32)>,
    most: Duration,
) -> Result<Option<Duration>, Failure> {
    let Some((seconds, nanos)) = told else {
        return Ok(None);
    };
    let (Ok(seconds), Ok(nanos)) = (u64::try_from(seconds), u32::try_from(nanos)) else {
        return Err(invalid(format!("{field}: must not be negative")));
    };
    let told = Duration::new(seconds.min(u64::from(u32::MAX)), nanos.min(999_999_999));
    Ok(Some(told.min(most)).filter(|told| !told.is_zero()))
}

/// Whether the sound must be encrypted. What may be is left to the settings; `older` is what clients said before there was
/// a description of the sound.
fn encrypted(media: Option<SipMediaConfig>, older: i32, prefix: &str) -> Result<bool, Failure> {
    let media = media.unwrap_or_default();
    let patient = media.media_timeout.map(|time| (time.seconds, time.nanos));
    let codecs = media.only_listed_codecs || !media.codecs.is_empty();
    refuse([
        (format!("{prefix}media.codecs").as_str(), codecs),
        (
            format!("{prefix}media.media_timeout").as_str(),
            patient.is_some_and(|time| time != (0, 0)),
        ),
    ])?;
    match SipMediaEncryption::try_from(media.encryption.unwrap_or(older)) {
        Ok(SipMediaEncryption::SipMediaEncryptRequire) => Ok(true),
        Ok(_) => Ok(false),
        Err(_) => Err(invalid(format!("{prefix}media_encryption: is unknown"))),
    }
}

/// Headers that begin with `X-` are told without being asked for.
fn asks_for_all_headers(options: i32) -> bool {
    options > SipHeaderOptions::SipXHeaders as i32
}

/// A trunk, the numbers that it is for, and whether its calls must be encrypted.
struct Line {
    trunk: Trunk,
    numbers: Vec<String>,
    encrypted: bool,
}

/// The way to a gateway. Whether it may be private is decided by the registry.
fn trunk(
    (field, address): (&str, &str),
    transport: i32,
    username: String,
    password: String,
) -> Result<Trunk, Failure> {
    let transport = match proto::SipTransport::try_from(transport) {
        Ok(proto::SipTransport::Auto | proto::SipTransport::Udp) => SipTransport::Udp,
        Ok(proto::SipTransport::Tcp) => SipTransport::Tcp,
        Ok(proto::SipTransport::Tls) => SipTransport::Tls,
        Err(_) => return Err(invalid("trunk.transport: is unknown")),
    };
    fits_header("trunk.auth_username", &username, MOST_BYTES)?;
    fits_header("trunk.auth_password", &password, MOST_BYTES)?;
    let gateway = Gateway::parse(address);
    let problem = || invalid(format!("{field}: must be a host and perhaps a port"));
    let login = (!username.is_empty()).then(|| Login {
        username,
        password: Secret::new(password),
    });
    Ok(Trunk {
        gateway: gateway.ok_or_else(problem)?,
        transport,
        login,
        private: false,
    })
}

/// A trunk that comes with a request.
fn inline(told: SipOutboundConfig) -> Result<Line, Failure> {
    refuse([
        (
            "trunk.headers_to_attributes",
            !told.headers_to_attributes.is_empty(),
        ),
        (
            "trunk.attributes_to_headers",
            !told.attributes_to_headers.is_empty(),
        ),
        ("trunk.from_host", !told.from_host.is_empty()),
        (
            "trunk.destination_country",
            !told.destination_country.is_empty(),
        ),
    ])?;
    Ok(Line {
        trunk: trunk(
            ("trunk.hostname", &told.hostname),
            told.transport,
            told.auth_username,
            told.auth_password,
        )?,
        numbers: Vec::new(),
        encrypted: false,
    })
}

/// A trunk that was made before. It may say what nobody here can do for as long as nobody is called by it.
#[allow(deprecated)] // of a field: older clients still use it
fn stored(told: SipOutboundTrunkInfo) -> Result<Line, Failure> {
    refuse([
        ("trunk.headers", !told.headers.is_empty()),
        (
            "trunk.headers_to_attributes",
            !told.headers_to_attributes.is_empty(),
        ),
        (
            "trunk.attributes_to_headers",
            !told.attributes_to_headers.is_empty(),
        ),
        (
            "trunk.include_headers",
            asks_for_all_headers(told.include_headers),
        ),
        ("trunk.from_host", !told.from_host.is_empty()),
        (
            "trunk.destination_country",
            !told.destination_country.is_empty(),
        ),
    ])?;
    Ok(Line {
        encrypted: encrypted(told.media, told.media_encryption, "trunk.")?,
        trunk: trunk(
            ("trunk.address", &told.address),
            told.transport,
            told.auth_username,
            told.auth_password,
        )?,
        numbers: told.numbers,
    })
}

#[allow(deprecated)] // of a field: clients set both
fn refuse_what_cannot_be(said: &CreateSipParticipantRequest) -> Result<(), Failure> {
    refuse([
        ("headers", !said.headers.is_empty()),
        (
            "include_headers",
            asks_for_all_headers(said.include_headers),
        ),
        ("to_user_override", !said.to_user_override.is_empty()),
        ("sip_request_uri", said.sip_request_uri.is_some()),
        ("sip_to_header", said.sip_to_header.is_some()),
        ("sip_from_header", said.sip_from_header.is_some()),
        ("destination", said.destination.is_some()),
        ("play_dialtone", said.play_dialtone || said.play_ringtone),
    ])
}

fn check_texts(said: &CreateSipParticipantRequest) -> Result<(), Failure> {
    for (field, text) in [
        ("room_name", &said.room_name),
        ("sip_call_to", &said.sip_call_to),
    ] {
        if text.is_empty() {
            return Err(invalid(format!("{field}: is required")));
        }
    }
    for (field, text, most) in [
        ("room_name", &said.room_name, MOST_BYTES),
        ("sip_call_to", &said.sip_call_to, MOST_BYTES),
        (
            "participant_identity",
            &said.participant_identity,
            MOST_BYTES,
        ),
        ("participant_name", &said.participant_name, MOST_BYTES),
        (
            "participant_metadata",
            &said.participant_metadata,
            limits::METADATA_BYTES,
        ),
        ("dtmf", &said.dtmf, MOST_BYTES),
    ] {
        fits(field, text, most)?;
    }
    let attributes = &said.participant_attributes;
    if attributes.len() > MOST_ATTRIBUTES {
        let problem = format!("participant_attributes: must be at most {MOST_ATTRIBUTES}");
        return Err(invalid(problem));
    }
    for text in attributes.iter().flat_map(|(key, value)| [key, value]) {
        fits("participant_attributes", text, MOST_BYTES)?;
    }
    let is_key =
        |sign: char| matches!(sign, '0'..='9' | '*' | '#' | 'A'..='D' | 'a'..='d' | 'w' | 'W');
    if !said.dtmf.chars().all(is_key) {
        return Err(invalid("dtmf: must be of 0-9 * # A-D w"));
    }
    fits_header(
        "display_name",
        said.display_name.as_deref().unwrap_or(""),
        MOST_DISPLAY_NAME,
    )
}

/// Who the call will be in the room.
fn identity(said: &CreateSipParticipantRequest) -> String {
    match said.participant_identity.as_str() {
        "" if said.hide_phone_number => {
            let tail = std::iter::repeat_with(fastrand::alphanumeric).take(12);
            format!("sip_{}", tail.collect::<String>())
        }
        "" => format!("sip_{}", said.sip_call_to),
        identity => identity.to_owned(),
    }
}

/// Whose number is shown.
fn caller(said: &str, numbers: &[String]) -> Result<PhoneNumber, Failure> {
    match (said, numbers.first()) {
        ("", Some(first)) => number("trunk.numbers", first),
        ("", None) => Err(Failure::new(
            "failed_precondition",
            "sip_number: no numbers on outbound trunk",
        )),
        (said, _) => number("sip_number", said),
    }
}

/// The call that a request describes. `trunk_of` knows the trunks that were made before.
#[allow(deprecated)] // of a field: older clients still use it
pub(super) fn call(
    mut said: CreateSipParticipantRequest,
    trunk_of: impl FnOnce(&str) -> Result<SipOutboundTrunkInfo, Failure>,
) -> Result<DialTrunk, Failure> {
    refuse_what_cannot_be(&said)?;
    check_texts(&said)?;
    let must_be = encrypted(said.media.take(), said.media_encryption, "")?;
    let line = match (said.trunk.take(), said.sip_trunk_id.as_str()) {
        (Some(told), _) => inline(told)?,
        // LiveKit's words, which clients look for.
        (None, "") => return Err(invalid("sip_trunk_id: missing sip trunk id")),
        (None, id) => stored(trunk_of(id)?)?,
    };
    let ringing = said.ringing_timeout.map(|time| (time.seconds, time.nanos));
    let ringing = duration("ringing_timeout", ringing, MOST_RINGING)?;
    let most = said
        .max_call_duration
        .map(|time| (time.seconds, time.nanos));
    let most = duration("max_call_duration", most, MOST_DURATION)?;
    let identity = identity(&said);
    let given = |text: &String| !text.is_empty();
    let call = NewCall {
        name: Some(said.participant_name)
            .filter(given)
            .unwrap_or_else(|| identity.clone()),
        identity,
        room: said.room_name,
        metadata: said.participant_metadata,
        from: caller(&said.sip_number, &line.numbers)?,
        display_name: said.display_name.filter(given),
        to: number("sip_call_to", &said.sip_call_to)?,
        trunk: line.trunk,
        attributes: said.participant_attributes.into_iter().collect(),
        hides_numbers: said.hide_phone_number,
        ringing_timeout: ringing.unwrap_or(RINGING),
        max_duration: most.unwrap_or(MOST_DURATION),
        dtmf: said.dtmf,
    };
    Ok(DialTrunk {
        call,
        encrypted: must_be || line.encrypted,
        until_answered: said.wait_until_answered,
    })
}

/// The transfer that a request describes.
pub(super) fn transfer(said: TransferSipParticipantRequest) -> Result<TransferCall, Failure> {
    refuse([
        ("headers", !said.headers.is_empty()),
        ("play_dialtone", said.play_dialtone),
    ])?;
    let ringing = said.ringing_timeout.map(|time| (time.seconds, time.nanos));
    let ringing = duration("ringing_timeout", ringing, MOST_RINGING)?;
    Ok(TransferCall {
        access: Access::anonymous(),
        to: target(&said.transfer_to)?,
        room: said.room_name,
        identity: said.participant_identity,
        ringing_timeout: Some(ringing.unwrap_or(RINGING)),
        until: Until::Done,
    })
}

/// Where a call is moved: a number, or a URI that is passed on as it is.
fn target(text: &str) -> Result<TransferTarget, Failure> {
    let text = text.trim().trim_start_matches('<').trim_end_matches('>');
    let scheme = text
        .split_once(':')
        .map(|(scheme, _)| scheme.to_ascii_lowercase());
    let unsafe_sign =
        |sign: char| sign.is_control() || sign.is_whitespace() || matches!(sign, '<' | '>' | '"');
    match scheme.as_deref() {
        Some("tel") => number("transfer_to", text).map(TransferTarget::Number),
        Some("sip" | "sips") if text.len() <= MOST_BYTES && !text.contains(unsafe_sign) => {
            Ok(TransferTarget::Uri(text.to_owned()))
        }
        _ => Err(invalid("transfer_to: must be a sip:, sips: or tel: URI")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// What becomes of a request with these fields more, over a trunk with those.
    fn read(more: &Value, trunk: &Value) -> Result<DialTrunk, Failure> {
        let with = |mut fields: Value, more: &Value| {
            for (name, value) in more.as_object().unwrap() {
                fields[name] = value.clone();
            }
            fields
        };
        let fields = json!({
            "sipTrunkId": "ST_1", "sipCallTo": "+12125550101", "roomName": "kitchen",
        });
        let stored = json!({"address": "a.example", "numbers": ["+12125550100"]});
        let said = serde_json::from_value(with(fields, more)).unwrap();
        call(said, |_| {
            Ok(serde_json::from_value(with(stored, trunk)).unwrap())
        })
    }

    fn refused(more: &Value, trunk: &Value) -> String {
        let failure = read(more, trunk).unwrap_err();
        assert_eq!(failure.code, "invalid_argument", "{}", failure.message);
        let (field, problem) = failure.message.split_once(": ").unwrap();
        assert!(!problem.is_empty());
        field.to_owned()
    }

    #[test]
    fn what_a_call_cannot_be_is_refused_by_its_field() {
        let nothing = json!({});
        for (more, field) in [
            (json!({"headers": {"X-A": "b"}}), "headers"),
            (
                json!({"includeHeaders": "SIP_ALL_HEADERS"}),
                "include_headers",
            ),
            (json!({"toUserOverride": "x"}), "to_user_override"),
            (json!({"sipRequestUri": {}}), "sip_request_uri"),
            (json!({"sipToHeader": {}}), "sip_to_header"),
            (json!({"sipFromHeader": {}}), "sip_from_header"),
            (json!({"destination": {}}), "destination"),
            (json!({"playDialtone": true}), "play_dialtone"),
            (json!({"playRingtone": true}), "play_dialtone"),
            (json!({"media": {"onlyListedCodecs": true}}), "media.codecs"),
            (
                json!({"media": {"codecs": [{"name": "PCMU"}]}}),
                "media.codecs",
            ),
            (
                json!({"media": {"mediaTimeout": "1s"}}),
                "media.media_timeout",
            ),
            (
                json!({"trunk": {"hostname": "a", "fromHost": "b"}}),
                "trunk.from_host",
            ),
            (
                json!({"trunk": {"hostname": "a", "headersToAttributes": {"X-A": "b"}}}),
                "trunk.headers_to_attributes",
            ),
            (
                json!({"trunk": {"hostname": "a", "attributesToHeaders": {"b": "X-A"}}}),
                "trunk.attributes_to_headers",
            ),
            (
                json!({"trunk": {"hostname": "a", "destinationCountry": "IN"}}),
                "trunk.destination_country",
            ),
        ] {
            assert_eq!(refused(&more, &nothing), field);
        }
        for (trunk, field) in [
            (json!({"headers": {"X-A": "b"}}), "trunk.headers"),
            (
                json!({"headersToAttributes": {"X-A": "b"}}),
                "trunk.headers_to_attributes",
            ),
            (
                json!({"attributesToHeaders": {"b": "X-A"}}),
                "trunk.attributes_to_headers",
            ),
            (
                json!({"includeHeaders": "SIP_ALL_HEADERS"}),
                "trunk.include_headers",
            ),
            (json!({"fromHost": "b"}), "trunk.from_host"),
            (
                json!({"destinationCountry": "IN"}),
                "trunk.destination_country",
            ),
            (
                json!({"media": {"mediaTimeout": "1s"}}),
                "trunk.media.media_timeout",
            ),
        ] {
            assert_eq!(refused(&nothing, &trunk), field);
        }
    }

    #[test]
    fn what_is_wrong_with_a_call_is_told_by_its_field() {
        let long = "x".repeat(MOST_BYTES + 1);
        let many: serde_json::Map<_, _> = (0..=MOST_ATTRIBUTES)
            .map(|index| (index.to_string(), json!("")))
            .collect();
        for (more, field) in [
            (json!({"roomName": ""}), "room_name"),
            (json!({"roomName": long}), "room_name"),
            (json!({"sipCallTo": ""}), "sip_call_to"),
            (json!({"sipCallTo": "x"}), "sip_call_to"),
            (json!({"sipNumber": "x"}), "sip_number"),
            (json!({"sipTrunkId": ""}), "sip_trunk_id"),
            (json!({"participantIdentity": long}), "participant_identity"),
            (json!({"participantName": long}), "participant_name"),
            (
                json!({"participantMetadata": "x".repeat(limits::METADATA_BYTES + 1)}),
                "participant_metadata",
            ),
            (
                json!({"participantAttributes": many}),
                "participant_attributes",
            ),
            (
                json!({"participantAttributes": {"a": long}}),
                "participant_attributes",
            ),
            (json!({"dtmf": "1".repeat(MOST_BYTES + 1)}), "dtmf"),
            (json!({"dtmf": "x"}), "dtmf"),
            (json!({"displayName": "a\r\nX: y"}), "display_name"),
            (json!({"displayName": "x".repeat(129)}), "display_name"),
            (json!({"ringingTimeout": "-1s"}), "ringing_timeout"),
            (json!({"maxCallDuration": "-1s"}), "max_call_duration"),
            (json!({"trunk": {"hostname": "a b"}}), "trunk.hostname"),
            (
                json!({"trunk": {"hostname": "a", "authUsername": "ann\r\nX: y"}}),
                "trunk.auth_username",
            ),
            (
                json!({"trunk": {"hostname": "a", "authPassword": "\n"}}),
                "trunk.auth_password",
            ),
        ] {
            assert_eq!(refused(&more, &json!({})), field);
        }
        let nothing = json!({});
        assert_eq!(
            refused(&nothing, &json!({"authUsername": "\n"})),
            "trunk.auth_username"
        );
        assert_eq!(
            refused(&nothing, &json!({"address": "a b"})),
            "trunk.address"
        );
        assert_eq!(
            refused(&nothing, &json!({"numbers": ["x"]})),
            "trunk.numbers"
        );
    }

    #[test]
    fn times_of_zero_are_those_that_nobody_has_said() {
        let times = |more: Value| {
            let call = read(&more, &json!({})).unwrap().call;
            (call.ringing_timeout, call.max_duration)
        };
        let usual = times(json!({}));
        assert_eq!(usual, (RINGING, MOST_DURATION));
        assert_eq!(
            times(json!({"ringingTimeout": "0s", "maxCallDuration": "0s"})),
            usual
        );
        let short = (Duration::from_millis(500), Duration::from_secs(9));
        assert_eq!(
            times(json!({"ringingTimeout": "0.5s", "maxCallDuration": "9s"})),
            short
        );
        let most = (MOST_RINGING, MOST_DURATION);
        assert_eq!(
            times(json!({"ringingTimeout": "900s", "maxCallDuration": "900000s"})),
            most
        );

        let ringing = |more: Value| {
            let said = serde_json::from_value(more).unwrap();
            transfer(said).unwrap().ringing_timeout
        };
        let to = "tel:+12125550102";
        assert_eq!(
            ringing(json!({"transferTo": to, "ringingTimeout": "0s"})),
            Some(RINGING)
        );
        assert_eq!(
            ringing(json!({"transferTo": to, "ringingTimeout": "7s"})),
            Some(Duration::from_secs(7))
        );
    }

    #[test]
    fn encryption_is_required_where_the_request_or_its_trunk_says_so() {
        let required = |more: Value, trunk: Value| read(&more, &trunk).unwrap().encrypted;
        let (old, new) = ("mediaEncryption", "SIP_MEDIA_ENCRYPT_REQUIRE");
        assert!(!required(json!({}), json!({})));
        assert!(!required(
            json!({old: "SIP_MEDIA_ENCRYPT_ALLOW"}),
            json!({})
        ));
        assert!(required(json!({old: new}), json!({})));
        assert!(required(json!({"media": {"encryption": new}}), json!({})));
        assert!(required(json!({}), json!({old: new})));
        assert!(required(json!({}), json!({"media": {"encryption": new}})));
    }

    #[test]
    fn who_hides_their_number_is_not_called_by_it() {
        let call = |more: Value| read(&more, &json!({})).unwrap().call;
        let shown = call(json!({"displayName": ""}));
        assert_eq!(
            (shown.identity.as_str(), shown.name.as_str()),
            ("sip_+12125550101", "sip_+12125550101")
        );
        assert_eq!((shown.hides_numbers, shown.display_name), (false, None));
        let hidden = call(json!({"hidePhoneNumber": true, "displayName": "Desk"}));
        assert!(hidden.hides_numbers && hidden.identity.starts_with("sip_"));
        assert!(!hidden.identity.contains("5550101") && !hidden.name.contains("5550101"));
        assert_eq!(hidden.display_name.as_deref(), Some("Desk"));
    }

    #[test]
    fn what_a_transfer_cannot_be_is_refused_by_its_field() {
        for (more, field) in [
            (json!({"headers": {"X-A": "b"}}), "headers: "),
            (json!({"playDialtone": true}), "play_dialtone: "),
            (json!({"ringingTimeout": "-1s"}), "ringing_timeout: "),
            (json!({"transferTo": ""}), "transfer_to: "),
        ] {
            let mut said = json!({"transferTo": "tel:+12125550102"});
            for (name, value) in more.as_object().unwrap() {
                said[name] = value.clone();
            }
            let failure = transfer(serde_json::from_value(said).unwrap()).unwrap_err();
            assert_eq!(failure.code, "invalid_argument");
            assert!(failure.message.starts_with(field), "{}", failure.message);
        }
    }

    #[test]
    fn a_call_is_moved_to_a_uri_that_is_one() {
        let number = PhoneNumber::parse("+12125550100").unwrap();
        assert_eq!(
            target("tel:+12125550100").unwrap(),
            TransferTarget::Number(number)
        );
        for uri in ["sip:1000@example.org", "sips:a@b;transport=tls"] {
            assert_eq!(target(uri).unwrap(), TransferTarget::Uri(uri.to_owned()));
        }
        for bad in [
            "",
            "1000",
            "http://a",
            "sip:a@b\r\nX: y",
            "sip:a b",
            "tel:x",
        ] {
            assert_eq!(target(bad).unwrap_err().code, "invalid_argument", "{bad:?}");
        }
    }
}
