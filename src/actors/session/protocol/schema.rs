//! The JSON Schema (2020-12) of the socket's messages, both ways, made from the types that read and write them. A
//! message with fields that we do not know is valid either way; a client ignores them as we do.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::{CLIENT_MESSAGES, ServerMessage};

/// What says whom of a room it is about; `stt_result` does so by itself.
const OF_PARTICIPANTS: [&str; 2] = ["vad_event", "interruption"];

/// The whole schema: `ClientMessage`, `ServerMessage` and everything in them under `$defs`.
pub fn socket_schema() -> Value {
    let mut definitions = Map::new();
    let mut reading = SchemaSettings::draft2020_12()
        .for_deserialize()
        .into_generator();
    let sent = CLIENT_MESSAGES.map(|kind| tagged(kind.name, (kind.schema)(&mut reading)));
    let client = one_of(sent.map(Value::from).to_vec(), &mut definitions);
    definitions.extend(reading.take_definitions(true));

    let mut writing = SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator();
    let mut told = alternatives(&mut writing);
    for message in &mut told {
        message["properties"]["seq"] = json!({
            "type": "integer",
            "minimum": 1,
            "description": "The number of the event, where config said resume.",
        });
        let kind = message["properties"]["type"]["const"].as_str();
        if kind.is_some_and(|kind| OF_PARTICIPANTS.contains(&kind)) {
            message["properties"]["identity"] = json!({
                "type": "string",
                "description": "Who it is about, with stt_mode per_participant.",
            });
        }
    }
    let server = one_of(told, &mut definitions);
    definitions.extend(writing.take_definitions(true));

    definitions.insert("ClientMessage".to_owned(), client);
    definitions.insert("ServerMessage".to_owned(), server);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "SocketMessage",
        "description": "A text message of a Vivavoce socket, from either side.",
        "anyOf": [{"$ref": "#/$defs/ClientMessage"}, {"$ref": "#/$defs/ServerMessage"}],
        "$defs": definitions,
    })
}

/// The schema of a message with its `type`, as [`super::ClientMessage::parse`] looks for it.
fn tagged(kind: &str, mut schema: Schema) -> Schema {
    let object = schema.ensure_object();
    let mut properties = Map::from_iter([("type".to_owned(), json!({"const": kind}))]);
    let mut required = vec![json!("type")];
    if let Some(Value::Object(fields)) = object.remove("properties") {
        properties.extend(fields);
    }
    if let Some(Value::Array(names)) = object.remove("required") {
        required.extend(names);
    }
    object.insert("properties".to_owned(), properties.into());
    object.insert("required".to_owned(), required.into());
    schema
}

/// The alternatives of the enum of what we tell.
fn alternatives(generator: &mut SchemaGenerator) -> Vec<Value> {
    let mut schema = <ServerMessage as schemars::JsonSchema>::json_schema(generator);
    match schema.remove("oneOf") {
        Some(Value::Array(alternatives)) => alternatives,
        _ => Vec::new(),
    }
}

/// Gives each message a definition of its own, named after its `type`, so that generators name their types well.
fn one_of(messages: Vec<Value>, definitions: &mut Map<String, Value>) -> Value {
    let mut references = Vec::with_capacity(messages.len());
    for mut message in messages {
        let kind = message["properties"]["type"]["const"].as_str();
        let name = camel_case(kind.unwrap_or_default()) + "Message";
        // A discriminator that is always the same text is a text for those who do not know `const`.
        message["properties"]["type"]["type"] = json!("string");
        message["title"] = json!(name);
        references.push(json!({"$ref": format!("#/$defs/{name}")}));
        definitions.insert(name, message);
    }
    json!({"oneOf": references})
}

fn camel_case(name: &str) -> String {
    let words = name.split('_').map(|word| {
        let mut letters = word.chars();
        let first = letters.next().map(|c| c.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::protocol::ClientMessage;
    use jsonschema::error::ValidationErrorKind;

    /// A message of each kind with every field in it.
    fn full_messages() -> Vec<Value> {
        vec![
            json!({
                "type": "config", "stream_id": "a", "audio": true, "recording": false,
                "stt_config": {
                    "provider": "local", "language": "en-US", "sample_rate": 16000, "channels": 1,
                    "punctuation": true, "encoding": "linear16", "model": "", "auth": {},
                },
                "tts_config": {
                    "provider": "local", "model": "", "voice_id": "v", "audio_format": "linear16",
                    "sample_rate": 24000, "speaking_rate": 1.0, "auth": {}, "progress": false, "connection_timeout": 10,
                    "request_timeout": 60, "pronunciations": [{"word": "a", "pronunciation": "b"}],
                },
                "loading_audio": {
                    "data": "AAAA", "format": "pcm", "sample_rate": 8000, "channels": 1, "volume": 0.5,
                },
                "vad": {
                    "enabled": true, "threshold": 0.5, "silence_ms": 500, "min_speech_ms": 100,
                    "speech_final_timeout_ms": 1800, "max_turn_ms": 0, "noise_suppression": false,
                    "interruption": "duck", "interruption_window_ms": 600,
                },
                "rtc": {
                    "room_name": "r", "enable_recording": false, "recording": "own", "service_participant_identity": "i",
                    "service_participant_name": "n", "listen_participants": ["a"], "stt_mode": "mixed",
                    "delete_room": "auto", "empty_timeout_seconds": 20,
                },
            }),
            json!({
                "type": "update_config",
                "stt_config": {
                    "provider": "local", "language": "en-US", "sample_rate": 16000, "channels": 1,
                    "punctuation": true, "encoding": "linear16", "model": "", "auth": {},
                },
                "tts_config": {
                    "provider": "local", "model": "", "voice_id": "v", "audio_format": "linear16",
                    "sample_rate": 24000, "speaking_rate": 1.0, "auth": {}, "connection_timeout": 10,
                    "request_timeout": 60, "pronunciations": [{"word": "a", "pronunciation": "b"}],
                },
                "vad": {
                    "enabled": true, "threshold": 0.5, "silence_ms": 500, "min_speech_ms": 100,
                    "speech_final_timeout_ms": 1800, "max_turn_ms": 0, "noise_suppression": false,
                },
            }),
            json!({"type": "speak", "text": "x", "flush": true, "allow_interruption": true, "replace": false, "id": "1"}),
            json!({"type": "clear"}),
            json!({"type": "loading_start"}),
            json!({"type": "loading_stop"}),
            json!({"type": "send_message", "message": "m", "role": "user", "topic": "t", "debug": {"any": 1}}),
            json!({"type": "sip_transfer", "transfer_to": "+12125550100", "participant_identity": "p"}),
            // What is for this mode alone is refused where it is absent.
            json!({"type": "sip_transfer", "transfer_to": "1", "mode": "warm"}),
            json!({"type": "complete_transfer", "transfer_id": "TRF_1", "agent": "stay"}),
            json!({"type": "cancel_transfer", "transfer_id": "TRF_1"}),
            json!({"type": "hold", "held": true, "music": false, "participant_identity": "p"}),
            json!({"type": "queue_call", "queue": "q", "participant_identity": "p"}),
            json!({"type": "leave_queue", "participant_identity": "p"}),
            json!({"type": "next_call", "queue": "q"}),
            json!({"type": "hangup", "participant_identity": "p"}),
            json!({"type": "send_dtmf", "digits": "12#", "participant_identity": "p"}),
        ]
    }

    /// Every place in a value, as a JSON pointer.
    fn places(value: &Value, at: &str, places: &mut Vec<String>) {
        let mut below = |name: &str, value: &Value| {
            let place = format!("{at}/{name}");
            self::places(value, &place, places);
            places.push(place);
        };
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| below(name, value)),
            Value::Array(items) => items
                .iter()
                .enumerate()
                .for_each(|(index, value)| below(&index.to_string(), value)),
            _ => {}
        }
    }

    fn json_type(value: &Value) -> &'static str {
        match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        }
    }

    /// As `parse` writes a place.
    fn with_dots(pointer: &str) -> String {
        let mut dotted = String::new();
        for part in pointer.split('/').skip(1) {
            match part.parse::<usize>() {
                Ok(index) => dotted += &format!("[{index}]"),
                Err(_) if dotted.is_empty() => dotted += part,
                Err(_) => dotted += &format!(".{part}"),
            }
        }
        dotted
    }

    /// The schema of one kind of message.
    fn schema_of(message: &Value) -> Value {
        let mut schema = socket_schema();
        let name = camel_case(message["type"].as_str().unwrap()) + "Message";
        let fields = schema.as_object_mut().unwrap();
        fields.remove("anyOf");
        fields.insert("$ref".to_owned(), json!(format!("#/$defs/{name}")));
        schema
    }

    #[test]
    fn every_field_of_every_message_is_in_the_schema() {
        for message in full_messages() {
            let mut schema = schema_of(&message);
            for definition in schema["$defs"].as_object_mut().unwrap().values_mut() {
                if definition.get("properties").is_some() {
                    definition["additionalProperties"] = json!(false);
                }
            }
            let validator = jsonschema::draft202012::new(&schema).unwrap();
            if let Err(error) = validator.validate(&message) {
                panic!("{message}: {error} at {}", error.instance_path());
            }
            ClientMessage::parse(message.to_string().as_bytes()).unwrap();
        }
    }

    #[test]
    fn what_the_schema_refuses_by_its_type_is_refused_by_the_server_with_the_same_field() {
        let others = [
            json!(5),
            json!(-1),
            json!(1.5),
            json!("x"),
            json!(true),
            json!([]),
            json!({}),
            Value::Null,
        ];
        let (mut refused, mut accepted) = (0, 0);
        for message in full_messages() {
            let validator = jsonschema::draft202012::new(&schema_of(&message)).unwrap();
            let mut all = Vec::new();
            places(&message, "", &mut all);
            for (place, other) in all
                .iter()
                .flat_map(|place| others.iter().map(move |other| (place, other)))
            {
                if place == "/type" {
                    continue;
                }
                let mut changed = message.clone();
                *changed.pointer_mut(place).unwrap() = other.clone();
                let parsed = ClientMessage::parse(changed.to_string().as_bytes());
                let mut errors = validator.iter_errors(&changed);
                let by_type = errors.find(|error| {
                    matches!(error.kind(), ValidationErrorKind::Type { .. })
                        || json_type(other) != json_type(message.pointer(place).unwrap())
                });
                if by_type.is_some() {
                    refused += 1;
                    let misfit = parsed.expect_err(&format!("{place} = {other}"));
                    let expected = with_dots(place);
                    assert!(
                        misfit.place.starts_with(&expected),
                        "{place} = {other}: {misfit}"
                    );
                } else if validator.is_valid(&changed) {
                    accepted += 1;
                    let problem = parsed.err().map(|misfit| misfit.to_string());
                    assert_eq!(problem, None, "{place} = {other}");
                }
            }
        }
        assert!(refused > 150 && accepted > 50, "{refused} {accepted}");
    }

    #[test]
    fn what_is_told_fits_the_schema() {
        use crate::session::protocol::{ErrorCode, StreamId};
        let validator = jsonschema::draft202012::new(&socket_schema()).unwrap();
        let valid =
            |message: &ServerMessage| validator.is_valid(&serde_json::to_value(message).unwrap());
        assert!(valid(&ServerMessage::refusal(ErrorCode::Internal, "x")));
        assert!(valid(&ServerMessage::Ready {
            stream_id: StreamId::random(),
            room: None,
            resume_token: String::new(),
        }));
        assert!(!validator.is_valid(&json!({"type": "ready"})));
        assert!(!validator.is_valid(
            &json!({"type": "error", "message": "x", "code": "nonsense", "fatal": false})
        ));
    }

    #[test]
    fn events_of_a_participant_say_whose_they_are() {
        let schema = socket_schema();
        for message in ["SttResultMessage", "VadEventMessage", "InterruptionMessage"] {
            let field = &schema["$defs"][message]["properties"]["identity"];
            assert!(field.is_object(), "{message}");
        }
    }

    #[test]
    fn a_turn_of_a_second_or_more_or_none_is_valid() {
        let with =
            |value: Value| json!({"type": "config", "audio": false, "vad": {"max_turn_ms": value}});
        let validator = jsonschema::draft202012::new(&schema_of(&with(Value::Null))).unwrap();
        for (value, valid) in [
            (json!(0), true),
            (json!(1000), true),
            (Value::Null, true),
            (json!(999), false),
            (json!(1), false),
            (json!(3_600_001), false),
        ] {
            let message = with(value);
            assert_eq!(validator.is_valid(&message), valid, "{message}");
        }
    }

    #[test]
    fn an_update_needs_no_field_of_its_parts() {
        for part in ["stt_config", "tts_config", "vad"] {
            let message = json!({"type": "update_config", part: {}});
            let validator = jsonschema::draft202012::new(&schema_of(&message)).unwrap();
            assert!(validator.is_valid(&message), "{message}");
        }
    }

    #[test]
    fn the_schema_knows_the_names_of_sessions_that_the_server_knows() {
        use crate::session::protocol::StreamId;
        let message = json!({"type": "config"});
        let validator = jsonschema::draft202012::new(&schema_of(&message)).unwrap();
        for name in [
            "a", "7", "A.b_c-d", "a.", "a--b", ".a", "-a", "_a", "a/b", "a..b", "a b", "ä", "",
            "a.b.",
        ] {
            let config = json!({"type": "config", "audio": false, "stream_id": name});
            assert_eq!(
                validator.is_valid(&config),
                StreamId::parse(name).is_ok(),
                "{name:?}"
            );
        }
    }
}
