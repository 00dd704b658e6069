//! What the server posts to others: the `webhooks` of the OpenAPI description, one per event and the notification of
//! hooks. Each body has a flat schema of its own, made from the types that are serialised, so that generators name a
//! type per event.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use vivavoce_hooks::WebhookEvent;
use vivavoce_hooks::announcement::Announcement;

/// The name of the notification of a hook; its body has no `event`.
const HOOK: &str = "hook";

/// The section, and the schemas that it refers to.
pub(super) fn webhooks() -> (Map<String, Value>, Map<String, Value>) {
    let mut generator = super::settings().for_serialize().into_generator();
    let announcement = Value::from(generator.subschema_for::<Announcement>());
    let mut schemas = generator.take_definitions(true);

    let mut generator = super::settings().for_serialize().into_generator();
    let mut shared = Value::from(<WebhookEvent as JsonSchema>::json_schema(&mut generator));
    let definitions = Value::from(generator.take_definitions(true));
    let mut posted = Map::new();
    let kinds = shared
        .as_object_mut()
        .and_then(|event| event.remove("oneOf"));
    for kind in kinds
        .as_ref()
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let mut body = Fields::default();
        body.add(&shared, &definitions);
        body.add(kind, &definitions);
        let Some(name) = body.properties["event"]["const"]
            .as_str()
            .map(str::to_owned)
        else {
            continue;
        };
        let says = kind["description"].as_str().unwrap_or_default().to_owned();
        let schema = type_name(&name);
        let reference = json!({"$ref": format!("{}/{schema}", super::SCHEMAS_REFERENCE)});
        posted.insert(name.clone(), item(&name, &says, &reference));
        schemas.insert(schema, body.into_schema(&says));
    }
    let says = "A telephone has joined a room after a call to the hook's host (`POST /sip/hooks`).";
    posted.insert(HOOK.to_owned(), item(HOOK, says, &announcement));
    (posted, schemas)
}

/// `recording.stored` as `RecordingStoredWebhook`.
fn type_name(event: &str) -> String {
    let words = event.split('.').map(|word| {
        let mut letters = word.chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    });
    words.collect::<String>() + "Webhook"
}

/// The fields of an object whose schema is composed of others.
#[derive(Default)]
struct Fields {
    properties: Map<String, Value>,
    required: BTreeSet<String>,
}

impl Fields {
    /// Adds what a schema has itself, by reference, and in alternatives; what only some of these have is optional.
    fn add(&mut self, schema: &Value, definitions: &Value) {
        let reference = schema["$ref"].as_str().and_then(|to| to.rsplit('/').next());
        if let Some(name) = reference {
            self.add(&definitions[name], definitions);
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            self.properties.insert(name.clone(), field.clone());
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            self.required.extend(name.as_str().map(str::to_owned));
        }
        let alternatives = schema["oneOf"].as_array().into_iter().flatten();
        let alternatives: Vec<Self> = alternatives
            .map(|schema| {
                let mut one = Self::default();
                one.add(schema, definitions);
                one
            })
            .collect();
        let in_all = |name: &String| alternatives.iter().all(|one| one.required.contains(name));
        let required = alternatives
            .first()
            .into_iter()
            .flat_map(|one| &one.required);
        self.required
            .extend(required.filter(|name| in_all(name)).cloned());
        for (name, field) in alternatives.iter().flat_map(|one| &one.properties) {
            let values = alternatives
                .iter()
                .filter_map(|one| one.properties.get(name)?.get("const"));
            let values: Vec<&Value> = values.collect();
            let field = match values[..] {
                [] => field.clone(),
                _ => json!({"type": "string", "enum": values}),
            };
            self.properties.insert(name.clone(), field);
        }
    }

    fn into_schema(self, says: &str) -> Value {
        json!({
            "type": "object",
            "description": says,
            "properties": self.properties,
            "required": self.required,
        })
    }
}

/// One webhook: a request of the server's, and what answers accept it.
fn item(name: &str, says: &str, schema: &Value) -> Value {
    let header = |name: &str, says: &str, example: &str| {
        json!({
            "name": name, "in": "header", "required": true, "description": says,
            "schema": {"type": "string"}, "example": example,
        })
    };
    let body = json!({"schema": schema, "example": example(name)});
    json!({
        "post": {
            "operationId": format!("posted{}", type_name(name)),
            "tags": ["Webhooks"],
            "summary": says,
            "parameters": [
                header("X-Service-Signature", "`v1=` and HMAC-SHA256 over `v1:{timestamp}:{event id}:{body}`, in hexadecimal.", "v1=4fbdf35b"),
                header("X-Service-Signature-Version", "`v1`.", "v1"),
                header("X-Service-Timestamp", "Unix time of this attempt, in seconds.", "1700000000"),
                header("X-Service-Event-Id", "The same at every attempt.", "0b8e5a52-3f2a-4a47-9c9f-0d8e6f0c1b7a"),
            ],
            "requestBody": {"required": true, "content": {"application/json": body}},
            "responses": {
                "2XX": {"description": "It was taken."},
                "default": {"description": "It was not: it is posted again, with pauses, for `WEBHOOKS_RETRY_SECONDS`."},
            },
        }
    })
}

/// A body as it may come.
fn example(name: &str) -> Value {
    let mut body = match name {
        HOOK => {
            return json!({
                "participant": {"name": "+14155550100", "identity": "sip_+14155550100", "sid": "PA_7Rk2"},
                "room": {"name": "call-+14155550199", "sid": "RM_x3Yd"},
                "from_phone_number": "+14155550100", "to_phone_number": "+14155550199",
                "room_prefix": "call-", "sip_host": "sip.example.org",
                "sip_headers": {"to": "<sip:+14155550199@sip.example.org>"},
            });
        }
        "recording.stored" | "recording.failed" => json!({
            "stream_id": "my-session", "key": "recordings/my-session/audio.ogg", "duration_ms": 61_500,
            "size": 245_760, "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        }),
        "session.ended" => json!({
            "stream_id": "my-session", "reason": "the client closed the socket", "duration_ms": 61_500,
            "stt_seconds": 58.2, "tts_characters": 412,
        }),
        "call.status" => json!({
            "sip_call_id": "SCL_9fK2", "room_name": "support", "participant_identity": "ann",
            "direction": "outbound", "status": "hangup", "cause": "remote", "duration_ms": 42_000,
        }),
        "call.classified" => json!({
            "sip_call_id": "SCL_9fK2", "room_name": "support", "participant_identity": "ann",
            "result": "machine", "confidence": 0.96, "reason": "words", "after_ms": 2_310, "sound_ms": 1_870,
        }),
        "call.beep" => json!({
            "sip_call_id": "SCL_9fK2", "room_name": "support", "participant_identity": "ann",
            "heard": true, "after_ms": 9_480,
        }),
        "queue.status" => json!({
            "queue_name": "support", "sip_call_id": "SCL_9fK2", "room_name": "call-+14155550199",
            "participant_identity": "sip_+14155550100", "status": "waiting", "position": 2, "waited_ms": 0,
        }),
        _ => json!({
            "sip_call_id": "SCL_9fK2", "room_name": "support", "participant_identity": "ann",
            "transfer_to": "+14155550142", "status": "complete",
        }),
    };
    if name == "recording.failed" {
        body["message"] = json!("the store has something else under this key");
    }
    body["event"] = json!(name);
    body["tenant"] = json!("acme");
    body["timestamp"] = json!(1_700_000_000_123_u64);
    body
}
