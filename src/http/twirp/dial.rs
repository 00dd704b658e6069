//! Translates LiveKit's requests for calls into those of the registry of calls. What embedded rooms do not support was refused
//! by [`super::table`]: nobody should be called otherwise than intended.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

use livekit_protocol as proto;
use proto::{CreateSipParticipantRequest, SipMediaEncryption, TransferSipParticipantRequest};
use proto::{SipMediaConfig, SipOutboundConfig, SipOutboundTrunkInfo};

use super::sip::invalid;
use super::{Failure, support, table};
use crate::sip::calls::MOST_BEEP_SECONDS;
use vivavoce_actors::registry::calls::{DialTrunk, TransferCall, Until};
use vivavoce_auth::{Access, Principal};
use vivavoce_config::{Secret, SipTransport};
use vivavoce_core::phone::{Gateway, PhoneNumber};
use vivavoce_rooms::limits;
use vivavoce_seams::rooms::telephone::{
    Callee, CallerIdentity, Classify, Login, NewCall, TransferTarget, Trunk, attribute, may_send,
};

/// How long a call may ring if the request does not say (LiveKit's default).
const RINGING: Duration = Duration::from_secs(30);
/// The maximum ringing time and call duration (LiveKit's).
const MOST_RINGING: Duration = Duration::from_secs(80);
const MOST_DURATION: Duration = Duration::from_hours(24);
/// The maximum bytes of a text, and the maximum number of a participant's attributes.
const MOST_BYTES: usize = 4_096;
const MOST_ATTRIBUTES: usize = 64;
/// The maximum bytes of a display name (LiveKit's).
const MOST_DISPLAY_NAME: usize = 128;

fn fits(field: &str, text: &str, most: usize) -> Result<(), Failure> {
    if text.len() <= most {
        return Ok(());
    }
    Err(invalid(format!("{field}: must be at most {most} bytes")))
}

/// The same for texts that are written to a SIP header.
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

/// A protobuf duration; `None` if it is absent or zero, which means the same.
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

/// Whether media must be encrypted; what may be is left to the settings. `older` is the field used before there was a
/// media description.
fn encrypted(media: Option<SipMediaConfig>, older: i32, prefix: &str) -> Result<bool, Failure> {
    let (field, wished) = match media.and_then(|media| media.encryption) {
        Some(wished) => ("media.encryption", wished),
        None => ("media_encryption", older),
    };
    match SipMediaEncryption::try_from(wished) {
        Ok(SipMediaEncryption::SipMediaEncryptRequire) => Ok(true),
        Ok(_) => Ok(false),
        Err(_) => Err(invalid(format!("{prefix}{field}: is unknown"))),
    }
}

/// A trunk, the numbers it is for, and whether its calls must be encrypted.
struct ResolvedTrunk {
    trunk: Trunk,
    numbers: Vec<String>,
    encrypted: bool,
}

/// The address of a gateway. Whether it may be private is decided by the registry.
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
        from_domain: None,
        headers: Vec::new(),
        via: None,
        identity: CallerIdentity::default(),
    })
}

/// Headers that INVITEs are to have.
fn headers(field: &str, said: HashMap<String, String>) -> Result<Vec<(String, String)>, Failure> {
    for (name, value) in &said {
        if !may_send(name) {
            return Err(invalid(format!(
                "{field}: {name:?} cannot be sent: names begin with X-, or tell who calls and why"
            )));
        }
        fits_header(field, value, MOST_BYTES)?;
    }
    let mut headers: Vec<_> = said.into_iter().collect();
    headers.sort();
    Ok(headers)
}

/// The domain of `From`.
fn from_domain(field: &str, said: &str) -> Result<Option<String>, Failure> {
    let is_host = |sign: u8| sign.is_ascii_alphanumeric() || b".-_:[]".contains(&sign);
    if !said.bytes().all(is_host) || said.len() > 253 {
        return Err(invalid(format!("{field}: must be a host")));
    }
    Ok((!said.is_empty()).then(|| said.to_owned()))
}

/// A trunk described in the request.
fn inline(told: SipOutboundConfig) -> Result<ResolvedTrunk, Failure> {
    let from_domain = from_domain("trunk.from_host", &told.from_host)?;
    Ok(ResolvedTrunk {
        trunk: Trunk {
            from_domain,
            ..trunk(
                ("trunk.hostname", &told.hostname),
                told.transport,
                told.auth_username,
                told.auth_password,
            )?
        },
        numbers: Vec::new(),
        encrypted: false,
    })
}

/// A stored trunk. One that is older than this server may ask for what no call can be.
#[allow(deprecated)] // of a field: older clients still use it
fn stored(told: SipOutboundTrunkInfo) -> Result<ResolvedTrunk, Failure> {
    support::check(table::OUTBOUND_TRUNK, &told, "trunk.")?;
    Ok(ResolvedTrunk {
        encrypted: encrypted(told.media, told.media_encryption, "trunk.")?,
        trunk: Trunk {
            from_domain: from_domain("trunk.from_host", &told.from_host)?,
            headers: headers("trunk.headers", told.headers)?,
            ..trunk(
                ("trunk.address", &told.address),
                told.transport,
                told.auth_username,
                told.auth_password,
            )?
        },
        numbers: told.numbers,
    })
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

/// Whether it is found out who answers, which LiveKit's request has no field for: attributes of the participant wish it.
fn classify(attributes: &HashMap<String, String>) -> Result<Option<Classify>, Failure> {
    let problem = |name, must| invalid(format!("participant_attributes.{name}: must be {must}"));
    let beep_within = match attributes.get(attribute::WAITS_FOR_BEEP) {
        None => None,
        Some(text) => match text.parse() {
            Ok(seconds @ 1..=MOST_BEEP_SECONDS) => Some(Duration::from_secs(u64::from(seconds))),
            _ => return Err(problem(attribute::WAITS_FOR_BEEP, "from 1 to 300 seconds")),
        },
    };
    match attributes.get(attribute::CLASSIFIES).map(String::as_str) {
        Some("true") => Ok(Some(Classify { beep_within })),
        Some(_) => Err(problem(attribute::CLASSIFIES, "true")),
        None if beep_within.is_some() => Err(problem(attribute::CLASSIFIES, "true for a beep")),
        None => Ok(None),
    }
}

/// The call's participant in the room.
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

/// The caller ID.
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

/// The call that a request describes. `trunk_of` looks up stored trunks.
#[allow(deprecated)] // of a field: older clients still use it
pub(super) fn call(
    mut said: CreateSipParticipantRequest,
    trunk_of: impl FnOnce(&str) -> Result<SipOutboundTrunkInfo, Failure>,
) -> Result<DialTrunk, Failure> {
    check_texts(&said)?;
    let must_be = encrypted(said.media.take(), said.media_encryption, "")?;
    let more = headers("headers", std::mem::take(&mut said.headers))?;
    let mut line = match (said.trunk.take(), said.sip_trunk_id.as_str()) {
        (Some(told), _) => inline(told)?,
        // LiveKit's wording, which clients look for.
        (None, "") => return Err(invalid("sip_trunk_id: missing sip trunk id")),
        (None, id) => stored(trunk_of(id)?)?,
    };
    // Those of the request come before those of the trunk.
    let is_new = |name: &str| {
        !more
            .iter()
            .any(|(other, _)| other.eq_ignore_ascii_case(name))
    };
    line.trunk.headers.retain(|(name, _)| is_new(name));
    line.trunk.headers.extend(more);
    let ringing = said.ringing_timeout.map(|time| (time.seconds, time.nanos));
    let ringing = duration("ringing_timeout", ringing, MOST_RINGING)?;
    let most = said
        .max_call_duration
        .map(|time| (time.seconds, time.nanos));
    let most = duration("max_call_duration", most, MOST_DURATION)?;
    let classify = classify(&said.participant_attributes)?;
    let identity = identity(&said);
    let given = |text: &String| !text.is_empty();
    let call = NewCall {
        name: Some(said.participant_name)
            .filter(given)
            .unwrap_or_else(|| identity.clone()),
        identity,
        room: said.room_name,
        principal: Principal::Operator,
        metadata: said.participant_metadata,
        from: caller(&said.sip_number, &line.numbers)?,
        display_name: said.display_name.filter(given),
        hides_caller: false,
        to: Callee::Number(number("sip_call_to", &said.sip_call_to)?),
        trunk: line.trunk,
        alternatives: Vec::new(),
        attributes: said.participant_attributes.into_iter().collect(),
        hides_numbers: said.hide_phone_number,
        ringing_timeout: ringing.unwrap_or(RINGING),
        max_duration: most.unwrap_or(MOST_DURATION),
        dtmf: said.dtmf,
        classify,
    };
    Ok(DialTrunk {
        call,
        encrypted: must_be || line.encrypted,
        until_answered: said.wait_until_answered,
    })
}

/// The transfer that a request describes.
pub(super) fn transfer(said: TransferSipParticipantRequest) -> Result<TransferCall, Failure> {
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

/// The target of a transfer: a number, or a URI that is passed on as it is.
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
