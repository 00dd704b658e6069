//! The OpenAPI 3.1 description of the REST API, generated from the types that handlers read and write and from the list
//! of operations in [`operations`], and both documents as they are served. The messages of the WebSocket are described
//! by [`socket_schema`].

mod operations;
mod webhooks;

use std::sync::LazyLock;

use actix_web::HttpResponse;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};
use utoipa::openapi::info::{Info, License};
use utoipa::openapi::path::{HttpMethod, PathItem, Paths};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::tag::Tag;
use utoipa::openapi::{Components, OpenApi};

use super::body_chunks::BodyChunks;
use super::{error, health, inspect, recording, rtc, sessions, sip, speak};
use vivavoce_actors::registry::calls::queues::QueuedCall;
use vivavoce_actors::registry::calls::warm::TransferInfo;
use vivavoce_actors::registry::hooks::{WaitingWebhook, WaitingWebhooks};
use vivavoce_actors::session::socket_schema;
use vivavoce_recordings::catalogue::Page;
use vivavoce_recordings::search::FoundPage;
use vivavoce_seams::Voice;

/// Where the document contains the schemas of bodies.
const SCHEMAS: &str = "/components/schemas";
/// The same, as references name it.
const SCHEMAS_REFERENCE: &str = "#/components/schemas";

/// The tags.
const TAGS: [(&str, &str); 8] = [
    (
        "Server",
        "Whether it is there, what it counts, and what it can do.",
    ),
    ("Speech", "Text to speech in one request, and the voices."),
    (
        "Sessions",
        "Hearing and speaking at the same time over a WebSocket, and the sessions that are open.",
    ),
    (
        "Rooms",
        "Real-time rooms that LiveKit's clients join: of this process, or of a LiveKit deployment (`RTC_URL`). A server without \
         rooms (`RTC_MODE=off`) answers valid requests with 500 `RTC_NOT_CONFIGURED`.",
    ),
    (
        "Recordings",
        "What was said, as it is kept. A server with `RECORDING_BACKEND=off` answers 503 `RECORDING_UNAVAILABLE`.",
    ),
    (
        "Telephone",
        "Calls, transfers and hooks. Calls need a gateway: of the settings (`SIP_OUTBOUND_ADDRESS`), or of the request.",
    ),
    (
        "Webhooks",
        "What the server posts, signed: events to `WEBHOOKS_URL`, calls to hooks.",
    ),
    (
        "Inspection",
        "What goes on in the server, for people who look: what the console shows. These answers may get more fields, and others \
         may change with a version.",
    ),
];

static DOCUMENT: LazyLock<String> = LazyLock::new(|| text(&document()));
static SOCKET_SCHEMA: LazyLock<String> = LazyLock::new(|| text(&socket_schema()));

/// `GET /openapi.json`.
pub async fn show() -> HttpResponse {
    HttpResponse::Ok()
        .content_type("application/json")
        .body(BodyChunks::of(DOCUMENT.as_str()))
}

/// `GET /schemas/socket.json`.
pub async fn show_socket_schema() -> HttpResponse {
    HttpResponse::Ok()
        .content_type("application/schema+json")
        .body(BodyChunks::of(SOCKET_SCHEMA.as_str()))
}

/// As it is served and committed.
pub fn text(document: &Value) -> String {
    // Maps with string keys can always be serialised.
    serde_json::to_string_pretty(document).unwrap_or_default() + "\n"
}

/// The whole document.
pub fn document() -> Value {
    let mut info = Info::new("Vivavoce", env!("CARGO_PKG_VERSION"));
    info.description = Some(INTRODUCTION.to_owned());
    let mut licence = License::new("Apache-2.0");
    licence.identifier = Some("Apache-2.0".to_owned());
    info.license = Some(licence);

    let mut api = OpenApi::new(info, paths());
    api.tags = Some(TAGS.iter().map(|(name, says)| tag(name, says)).collect());
    api.components = Some(components());
    // Names and numbers can always be serialised.
    let mut document = serde_json::to_value(api).unwrap_or_default();
    let (webhooks, bodies) = webhooks::webhooks();
    let mut schemas = schemas();
    schemas.extend(bodies);
    document["components"]["schemas"] = schemas.into();
    document["webhooks"] = webhooks.into();
    document
}

const INTRODUCTION: &str = "A real-time voice server: it hears (speech to text), says (text to speech), joins rooms and \
    telephone calls, and records what was said.\n\nEvery error has the same body. `null` means absent, and unknown fields \
    are ignored. Answers of the HTTP parser itself (400, 408, 431) have no body. Pages of the origins in \
    `SERVER_CORS_ORIGINS` may ask and read answers. While the server stops, new work is \
    answered 503 `OVERLOADED`.\n\nA token is needed for protected operations when the server is set up with \
    `AUTH_REQUIRED=true`; otherwise they are open. The messages of the socket are described by `/schemas/socket.json`.\n\n\
    Where the server speaks another's protocol, its owner describes it: below `/v1/` OpenAI's audio API and Realtime, below \
    `/twirp/` and `/rtc` LiveKit's, below `/carrier/` those of telephone carriers. The pages `openai.md`, `livekit-api.md` and \
    `carriers.md` of the documentation say what becomes of each part of them.";

fn tag(name: &str, says: &str) -> Tag {
    let mut tag = Tag::new(name);
    tag.description = Some(says.to_owned());
    tag
}

/// The security schemes, and the responses shared by all operations.
fn components() -> Components {
    let mut components = Components::new();
    for (name, response) in operations::elsewhere() {
        components
            .responses
            .insert(name.to_owned(), response.into());
    }
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    let says = "Looked at where the Authorization header is absent or not understood.";
    let query = ApiKeyValue::with_description("api_key", says);
    components.add_security_scheme("api_key", SecurityScheme::ApiKey(ApiKey::Query(query)));
    components
}

/// All operations; a `HEAD` behaves like `GET` without the body.
fn paths() -> Paths {
    let mut paths = Paths::new();
    for operation in operations::all() {
        let item = paths.paths.entry(operation.path.to_owned()).or_default();
        let item: &mut PathItem = item;
        match operation.method {
            HttpMethod::Get => {
                item.head = operation.with_head.then(|| operation.clone().as_head());
                item.get = Some(operation.into());
            }
            HttpMethod::Post => item.post = Some(operation.into()),
            _ => item.delete = Some(operation.into()),
        }
    }
    paths
}

fn settings() -> SchemaSettings {
    SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = SCHEMAS.into())
}

/// The schemas of all bodies, by type name.
fn schemas() -> Map<String, Value> {
    let mut read = settings().for_deserialize().into_generator();
    add::<(
        speak::SpeakRequest,
        rtc::TokenRequest,
        rtc::RemoveRequest,
        rtc::MuteRequest,
        sip::calls::CallRequest,
        sip::calls::TransferRequest,
        sip::calls::CompleteRequest,
        sip::calls::CancelRequest,
        sip::calls::HoldRequest,
        sip::queues::QueueRequest,
        sip::queues::NextRequest,
        sip::hooks::HooksRequest,
        sip::hooks::HostsRequest,
        inspect::RetryRequest,
    )>(&mut read);
    let mut written = settings().for_serialize().into_generator();
    add::<(error::Body<'_>, health::Health, Voice)>(&mut written);
    add::<(sessions::SessionList, sessions::Ended)>(&mut written);
    add::<(Page, recording::Deleted)>(&mut written);
    add::<(
        inspect::Caller,
        inspect::SessionRows,
        inspect::SessionTimeline,
        FoundPage,
        WaitingWebhooks,
        inspect::Retried,
    )>(&mut written);
    add::<(
        inspect::VendorList,
        inspect::ModelList,
        inspect::SettingList,
        inspect::LogTail,
    )>(&mut written);
    add::<(
        rtc::TokenAnswer,
        rtc::RoomList,
        rtc::RoomDetails,
        rtc::Removed,
        rtc::MuteAnswer,
    )>(&mut written);
    add::<(
        sip::calls::CallAnswer,
        sip::calls::TransferAnswer,
        sip::calls::TransferList,
        sip::calls::HoldAnswer,
        sip::hooks::HookList,
        sip::traces::TraceList,
        sip::traces::Trace,
        sip::queues::QueueList,
        QueuedCall,
        TransferInfo,
    )>(&mut written);
    // Types that only others refer to.
    add::<(WaitingWebhook,)>(&mut written);
    let mut schemas = read.take_definitions(true);
    schemas.extend(written.take_definitions(true));
    schemas
}

/// Adds the types of a tuple, and the types they are composed of.
fn add<T: JsonSchema>(generator: &mut SchemaGenerator) {
    let _tuple = T::json_schema(generator);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Entry;

    fn assert_same(file: &str, rendered: &str) {
        let file = format!("{}/../../docs/{file}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::create_dir_all(std::path::Path::new(&file).parent().unwrap()).unwrap();
            std::fs::write(&file, rendered).unwrap();
        }
        let committed = std::fs::read_to_string(&file).unwrap();
        let advice = "is stale; run UPDATE_DOCS=1 cargo test --lib describes";
        assert!(committed == rendered, "{file} {advice}");
    }

    #[test]
    fn the_committed_openapi_document_describes_this_code() {
        assert_same("openapi.json", &text(&document()));
    }

    #[test]
    fn the_committed_schema_of_the_socket_describes_this_code() {
        assert_same("schemas/socket.json", &text(&socket_schema()));
    }

    #[test]
    fn everything_that_is_referred_to_is_there() {
        for document in [document(), socket_schema()] {
            let text = document.to_string();
            let references: Vec<_> = text.split("\"$ref\":\"#").skip(1).collect();
            assert!(references.len() > 20);
            for reference in references {
                let pointer = reference.split('"').next().unwrap();
                assert!(document.pointer(pointer).is_some(), "{pointer}");
            }
        }
    }

    #[test]
    fn every_code_is_documented_with_the_status_that_it_has() {
        let document = document();
        let mut missing: Vec<Value> = Vec::new();
        let text = document["paths"].to_string() + &document["components"]["responses"].to_string();
        for code in document["components"]["schemas"]["Code"]["oneOf"]
            .as_array()
            .unwrap()
        {
            let code = &code["const"];
            if !text.contains(&code.to_string()) {
                missing.push(code.clone());
            }
        }
        assert_eq!(missing, [] as [Value; 0]);
    }

    #[test]
    fn every_operation_is_one_of_the_routes_and_every_route_is_described() {
        let document = document();
        let described: std::collections::BTreeSet<String> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, item)| {
                let methods = item.as_object().unwrap().keys();
                methods.map(move |method| format!("{} {path}", method.to_uppercase()))
            })
            .collect();
        let routes = crate::endpoints().into_iter().flat_map(|endpoint| {
            let path = endpoint.path.replace(":.*}", "}");
            let named = |entry: Entry| format!("{} {path}", entry.method);
            endpoint.entries().map(named).collect::<Vec<_>>()
        });
        assert_eq!(described, routes.collect());
    }
}
