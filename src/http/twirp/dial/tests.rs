//! Which requests of LiveKit's clients are translated to which calls, and which are refused by field name.

use serde_json::{Value, json};

use super::super::SIP_SERVICE;
use super::*;

/// The result of a request with these additional fields, over a trunk with those.
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
    let fields = support::find(SIP_SERVICE, "CreateSIPParticipant")?.fields;
    support::check::<CreateSipParticipantRequest>(fields, &said, "")?;
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
        (json!({"headers": {"X-A": "b\r\nVia: c"}}), "headers"),
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
        (json!({"playRingtone": true}), "play_ringtone"),
        (
            json!({"media": {"onlyListedCodecs": true}}),
            "media.only_listed_codecs",
        ),
        (
            json!({"media": {"codecs": [{"name": "PCMU"}]}}),
            "media.codecs",
        ),
        (
            json!({"media": {"mediaTimeout": "1s"}}),
            "media.media_timeout",
        ),
        (
            json!({"trunk": {"hostname": "a", "fromHost": "b>c"}}),
            "trunk.from_host",
        ),
        (json!({"headers": {"Via": "b"}}), "headers"),
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
        (json!({"headers": {"Contact": "b"}}), "trunk.headers"),
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
        (json!({"fromHost": "b c"}), "trunk.from_host"),
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
        (
            json!({"participantAttributes": {"sip.classify": "yes"}}),
            "participant_attributes.sip.classify",
        ),
        (
            json!({"participantAttributes": {"sip.waitForBeep": "60"}}),
            "participant_attributes.sip.classify",
        ),
        (
            json!({"participantAttributes": {"sip.classify": "true", "sip.waitForBeep": "0"}}),
            "participant_attributes.sip.waitForBeep",
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
