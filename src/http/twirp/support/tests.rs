//! The table of LiveKit's API beside LiveKit's protocol, what is refused by it, and its page.

use std::fmt;

use livekit_protocol as proto;
use serde::de::value::Error as Unread;
use serde::de::{Deserialize, Error, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::json;

use super::*;

/// Notes which fields a message reads from JSON, and gives none.
struct Names<'n>(&'n mut Vec<&'static str>);

impl<'de> serde::Deserializer<'de> for Names<'_> {
    type Error = Unread;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Unread> {
        Err(Unread::custom("this is no message"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Unread> {
        self.0.extend(fields);
        Err(Unread::custom("the names are known now"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The fields of a message, by their names in the protocol's files.
fn names<T: for<'de> Deserialize<'de> + fmt::Debug>() -> Vec<&'static str> {
    let mut names = Vec::new();
    T::deserialize(Names(&mut names)).unwrap_err();
    names.retain(|name| !name.contains(char::is_uppercase));
    names.sort_unstable();
    names
}

fn listed(fields: &[Field]) -> Vec<&'static str> {
    let names = fields.iter().map(|Field(name, _)| *name);
    // `names` cannot tell such a one from its name in JSON.
    let mut names: Vec<_> = names.filter(|name| *name != "aliOSS").collect();
    names.sort_unstable();
    names
}

/// The parts of a message below these fields.
fn below<'t>(fields: &'t [Field], path: &str) -> &'t [Field] {
    path.split('.').fold(fields, |fields, part| {
        let Some(Field(_, Support::Parts(parts))) = fields.iter().find(|field| field.0 == part)
        else {
            panic!("{path} has no parts");
        };
        parts
    })
}

/// The requests of all methods, and the messages in them of which the table lists the parts.
#[allow(clippy::too_many_lines)] // a table
fn fields_of_the_protocol(method: &str) -> Vec<(&'static str, Vec<&'static str>)> {
    use proto::*;
    fn inbound(at: &'static str) -> Vec<(&'static str, Vec<&'static str>)> {
        vec![(at, names::<SipInboundTrunkInfo>())]
    }
    let media = names::<SipMediaConfig>;
    match method {
        "CreateRoom" => vec![
            ("", names::<CreateRoomRequest>()),
            ("agents", names::<RoomAgentDispatch>()),
            ("egress", names::<RoomEgress>()),
            ("egress.room", names::<RoomCompositeEgressRequest>()),
            ("egress.participant", names::<AutoParticipantEgress>()),
            ("egress.tracks", names::<AutoTrackEgress>()),
        ],
        "StartRoomCompositeEgress" => vec![
            ("", names::<RoomCompositeEgressRequest>()),
            ("file_outputs", names::<EncodedFileOutput>()),
            ("advanced", names::<EncodingOptions>()),
        ],
        "StartParticipantEgress" => vec![("", names::<ParticipantEgressRequest>())],
        "StartTrackEgress" => vec![
            ("", names::<TrackEgressRequest>()),
            ("file", names::<DirectFileOutput>()),
        ],
        "ListEgress" => vec![("", names::<ListEgressRequest>())],
        "StopEgress" => vec![("", names::<StopEgressRequest>())],
        "ListRooms" => vec![("", names::<ListRoomsRequest>())],
        "DeleteRoom" => vec![("", names::<DeleteRoomRequest>())],
        "ListParticipants" => vec![("", names::<ListParticipantsRequest>())],
        "GetParticipant" | "RemoveParticipant" => vec![("", names::<RoomParticipantIdentity>())],
        "MoveParticipant" => vec![("", names::<MoveParticipantRequest>())],
        "ForwardParticipant" => vec![("", names::<ForwardParticipantRequest>())],
        "MutePublishedTrack" => vec![("", names::<MuteRoomTrackRequest>())],
        "UpdateParticipant" => vec![
            ("", names::<UpdateParticipantRequest>()),
            ("permission", names::<ParticipantPermission>()),
        ],
        "UpdateSubscriptions" => vec![
            ("", names::<UpdateSubscriptionsRequest>()),
            ("participant_tracks", names::<ParticipantTracks>()),
        ],
        "SendData" => vec![("", names::<SendDataRequest>())],
        "UpdateRoomMetadata" => vec![("", names::<UpdateRoomMetadataRequest>())],
        "CreateDispatch" => vec![("", names::<CreateAgentDispatchRequest>())],
        "DeleteDispatch" => vec![("", names::<DeleteAgentDispatchRequest>())],
        "ListDispatch" => vec![("", names::<ListAgentDispatchRequest>())],
        "CreateSIPInboundTrunk" => {
            let request = ("", names::<CreateSipInboundTrunkRequest>());
            [vec![request], inbound("trunk")].concat()
        }
        "CreateSIPOutboundTrunk" => vec![
            ("", names::<CreateSipOutboundTrunkRequest>()),
            ("trunk", names::<SipOutboundTrunkInfo>()),
            ("trunk.media", media()),
        ],
        "UpdateSIPInboundTrunk" => {
            let parts = vec![
                ("", names::<UpdateSipInboundTrunkRequest>()),
                ("update", names::<SipInboundTrunkUpdate>()),
            ];
            [parts, inbound("replace")].concat()
        }
        "UpdateSIPOutboundTrunk" => vec![
            ("", names::<UpdateSipOutboundTrunkRequest>()),
            ("replace", names::<SipOutboundTrunkInfo>()),
            ("replace.media", media()),
            ("update", names::<SipOutboundTrunkUpdate>()),
            ("update.media", media()),
        ],
        "GetSIPInboundTrunk" => vec![("", names::<GetSipInboundTrunkRequest>())],
        "GetSIPOutboundTrunk" => vec![("", names::<GetSipOutboundTrunkRequest>())],
        "ListSIPInboundTrunk" => vec![
            ("", names::<ListSipInboundTrunkRequest>()),
            ("page", names::<Pagination>()),
        ],
        "ListSIPOutboundTrunk" => vec![
            ("", names::<ListSipOutboundTrunkRequest>()),
            ("page", names::<Pagination>()),
        ],
        "DeleteSIPTrunk" => vec![("", names::<DeleteSipTrunkRequest>())],
        "CreateSIPDispatchRule" => vec![
            ("", names::<CreateSipDispatchRuleRequest>()),
            ("dispatch_rule", names::<SipDispatchRuleInfo>()),
            ("rule", names::<SipDispatchRule>()),
            (
                "rule.dispatch_rule_direct",
                names::<SipDispatchRuleDirect>(),
            ),
            (
                "rule.dispatch_rule_individual",
                names::<SipDispatchRuleIndividual>(),
            ),
            (
                "rule.dispatch_rule_callee",
                names::<SipDispatchRuleCallee>(),
            ),
        ],
        "UpdateSIPDispatchRule" => vec![
            ("", names::<UpdateSipDispatchRuleRequest>()),
            ("replace", names::<SipDispatchRuleInfo>()),
            ("update", names::<SipDispatchRuleUpdate>()),
        ],
        "ListSIPDispatchRule" => vec![
            ("", names::<ListSipDispatchRuleRequest>()),
            ("page", names::<Pagination>()),
        ],
        "DeleteSIPDispatchRule" => vec![("", names::<DeleteSipDispatchRuleRequest>())],
        "CreateSIPParticipant" => vec![
            ("", names::<CreateSipParticipantRequest>()),
            ("trunk", names::<SipOutboundConfig>()),
            ("media", media()),
        ],
        "TransferSIPParticipant" => vec![("", names::<TransferSipParticipantRequest>())],
        other => panic!("{other}: its request is not known to this test"),
    }
}

#[test]
fn every_field_of_the_protocol_is_in_the_table() {
    let methods = SERVICES.iter().flat_map(|service| service.methods);
    for method in methods.filter(|method| method.missing.is_none()) {
        for (path, expected) in fields_of_the_protocol(method.name) {
            let fields = match path {
                "" => method.fields,
                path => below(method.fields, path),
            };
            assert_eq!(listed(fields), expected, "{} {path}", method.name);
        }
    }
}

/// The field by which a request is refused.
fn refused_by(service: &str, method: &str, said: &Value) -> Option<String> {
    let fields = find(service, method).unwrap().fields;
    let failure = check(fields, said, "").err()?;
    assert_eq!(failure.code, "invalid_argument");
    let (field, problem) = failure.message.split_once(": ").unwrap();
    assert!(!problem.is_empty());
    Some(field.to_owned())
}

#[test]
#[allow(clippy::too_many_lines)] // a table
fn what_would_not_happen_is_refused_by_its_field() {
    let (room, sip) = ("livekit.RoomService", "livekit.SIP");
    let egress = "livekit.Egress";
    for (service, method, said, field) in [
        (
            room,
            "CreateRoom",
            json!({"name": "a", "egress": {"room": {"audioOnly": true, "videoOnly": true}}}),
            "egress.room.video_only",
        ),
        (
            room,
            "CreateRoom",
            json!({"name": "a", "egress": {"tracks": {"s3": {"bucket": "mine"}}}}),
            "egress.tracks.s3",
        ),
        (
            egress,
            "StartRoomCompositeEgress",
            json!({"fileOutputs": [{"fileType": "MP4"}]}),
            "file_outputs.file_type",
        ),
        (
            egress,
            "StartRoomCompositeEgress",
            json!({"fileOutputs": [{"azure": {"accountName": "a"}}]}),
            "file_outputs.azure",
        ),
        (
            egress,
            "StartParticipantEgress",
            json!({"advanced": {"audioBitrate": 128}}),
            "advanced.audio_bitrate",
        ),
        (
            egress,
            "StartTrackEgress",
            json!({"websocketUrl": "wss://somewhere"}),
            "websocket_url",
        ),
        (
            room,
            "CreateRoom",
            json!({"name": "a", "replayEnabled": true}),
            "replay_enabled",
        ),
        (
            room,
            "CreateRoom",
            json!({"name": "a", "roomPreset": "b"}),
            "room_preset",
        ),
        (
            room,
            "RemoveParticipant",
            json!({"revokeTokenTs": "1"}),
            "revoke_token_ts",
        ),
        (
            sip,
            "CreateSIPInboundTrunk",
            json!({"trunk": {"headers": {"a": "b"}}}),
            "trunk.headers",
        ),
        (
            sip,
            "CreateSIPInboundTrunk",
            json!({"trunk": {"includeHeaders": "SIP_ALL_HEADERS"}}),
            "trunk.include_headers",
        ),
        (
            sip,
            "CreateSIPOutboundTrunk",
            json!({"trunk": {"attributesToHeaders": {"a": "b"}}}),
            "trunk.attributes_to_headers",
        ),
        (
            sip,
            "CreateSIPDispatchRule",
            json!({"dispatchRule": {"roomConfig": {"egress": {}}}}),
            "dispatch_rule.room_config.egress",
        ),
        (
            sip,
            "CreateSIPDispatchRule",
            json!({"roomPreset": "a"}),
            "room_preset",
        ),
        (
            sip,
            "UpdateSIPInboundTrunk",
            json!({"update": {"media": {"codecs": [{"name": "opus"}]}}}),
            "update.media.codecs",
        ),
        (
            sip,
            "CreateSIPParticipant",
            json!({"playRingtone": true}),
            "play_ringtone",
        ),
        (
            sip,
            "CreateSIPParticipant",
            json!({"includeHeaders": "SIP_ALL_HEADERS"}),
            "include_headers",
        ),
        (
            sip,
            "TransferSIPParticipant",
            json!({"headers": {"a": "b"}}),
            "headers",
        ),
    ] {
        assert_eq!(
            refused_by(service, method, &said).as_deref(),
            Some(field),
            "{method}"
        );
    }
}

#[test]
fn what_asks_for_nothing_is_taken() {
    let said = json!({
        "name": "a", "egress": null, "replayEnabled": false, "roomPreset": "", "minPlayoutDelay": 100, "syncStreams": true,
        "agents": [{"agentName": "helper"}], "tags": {"a": "b"},
    });
    assert_eq!(refused_by("livekit.RoomService", "CreateRoom", &said), None);
    let said = json!({
        "media": {"mediaTimeout": "0s", "codecs": [], "encryption": "SIP_MEDIA_ENCRYPT_REQUIRE"},
        "includeHeaders": "SIP_X_HEADERS", "krispEnabled": true,
    });
    assert_eq!(
        refused_by("livekit.SIP", "CreateSIPParticipant", &said),
        None
    );
}

#[test]
fn what_is_not_there_says_so() {
    let code = |service: &str, method: &str| find(service, method).err().unwrap().code;
    assert_eq!(code("livekit.Egress", "StartWebEgress"), "unimplemented");
    assert_eq!(code("livekit.Ingress", "CreateIngress"), "unimplemented");
    assert_eq!(code("livekit.RoomService", "PerformRpc"), "unimplemented");
    assert_eq!(code("livekit.RoomService", "MakeCoffee"), "bad_route");
    assert_eq!(code("livekit.Nonsense", "MakeCoffee"), "unimplemented");
}

#[test]
fn the_page_says_what_the_table_does() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/livekit-api.md");
    let rendered = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(file, &rendered).unwrap();
    }
    let committed = std::fs::read_to_string(file).unwrap();
    assert!(
        committed == rendered,
        "docs/livekit-api.md is stale; run UPDATE_DOCS=1 cargo test -p vivavoce-http the_page_says"
    );
}

#[test]
fn what_the_settings_ask_for_in_vain_is_refused_as_by_the_api() {
    let problems = |json: Value| trunk_problems(&Configured::read(&json).unwrap());
    let asked = json!({
        "inbound": [{"numbers": ["+1"], "includeHeaders": "SIP_ALL_HEADERS", "authUsername": "u", "authPassword": "hush"}],
        "outbound": [{"sipTrunkId": "ST_out", "address": "h", "numbers": ["+1"], "destinationCountry": "de"}],
        "rules": [{"rule": {"dispatchRuleDirect": {"roomName": "a"}}, "roomPreset": "big"}],
    });
    let refused = [
        "sip.trunks_json.inbound: \"ST_inbound_0\": include_headers: embedded rooms only know SIP_X_HEADERS",
        "sip.trunks_json.outbound: \"ST_out\": destination_country: embedded rooms cannot do that: calls go where the trunk says",
        "sip.trunks_json.rules: \"SDR_rules_0\": room_preset: embedded rooms cannot do that: there are no presets; send the fields themselves",
    ];
    assert_eq!(problems(asked), refused);
    let works = json!({
        "inbound": [{"numbers": ["+1"], "includeHeaders": "SIP_X_HEADERS"}],
        "rules": [{"rule": {"dispatchRuleDirect": {"roomName": "a"}}, "roomConfig": {"emptyTimeout": 5}}],
    });
    assert!(problems(works).is_empty());
}
