//! Every operation of the REST side: what it takes, every way that it answers, and examples that the tests send. What
//! all operations of a kind share (who asks, how bodies are refused) is added when an operation is written out.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::{Map, Value, json};
use utoipa::openapi::content::{Content, ContentBuilder};
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::extensions::ExtensionsBuilder;
use utoipa::openapi::header::{Header, HeaderBuilder};
use utoipa::openapi::path::{
    self, HttpMethod, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{
    AllOfBuilder, ArrayBuilder, ObjectBuilder, Schema, SchemaType, Type,
};
use utoipa::openapi::security::SecurityRequirement;
use utoipa::openapi::{Ref, RefOr, Required, Response, ResponseBuilder};

use crate::error::{Body, Code};
use crate::health::Health;
use crate::{inspect, recording, rtc, sessions, sip, speak};
use vivavoce_actors::registry::calls::queues::QueuedCall;
use vivavoce_actors::registry::calls::warm::TransferInfo;
use vivavoce_actors::registry::hooks::WaitingWebhooks;
use vivavoce_recordings::catalogue::Page;
use vivavoce_recordings::search::FoundPage;
use vivavoce_seams::Voice;
use vivavoce_telemetry::metrics;

/// One method of one path.
#[derive(Clone)]
pub(super) struct Operation {
    pub(super) path: &'static str,
    pub(super) method: HttpMethod,
    /// Whether `HEAD` is answered too.
    pub(super) with_head: bool,
    id: &'static str,
    tag: &'static str,
    summary: &'static str,
    says: &'static str,
    protected: bool,
    limited: bool,
    parameters: Vec<Parameter>,
    body: Option<String>,
    answers: BTreeMap<u16, Response>,
    errors: BTreeMap<u16, Vec<Code>>,
    examples: Vec<Example>,
}

/// A request, and how a server that has nobody in a room and no recording answers it; of calls and transfers one that
/// has a gateway, and of transfers one that has placed the call of the example.
#[derive(Clone)]
struct Example {
    name: &'static str,
    body: Value,
    status: u16,
}

/// Everything that a client can ask for.
pub(super) fn all() -> Vec<Operation> {
    [
        server(),
        speech(),
        sessions(),
        rooms(),
        recordings(),
        telephone(),
        inspection(),
        transfers(),
        queues(),
    ]
    .concat()
}

fn server() -> Vec<Operation> {
    let health = |path, id| {
        get(path, id, "Server")
            .answers(200, json_of::<Health>("The server is there."))
            .example("asked", Value::Null, 200)
    };
    vec![
        health("/", "getRoot").summary("Whether the server is there"),
        health("/healthz", "getHealth")
            .summary("Whether the server is alive")
            .never_limited(),
        health("/readyz", "getReadiness")
            .summary("Whether new work is welcome")
            .answers(503, json_of::<Health>("The server is stopping."))
            .never_limited(),
        get("/metrics", "getMetrics", "Server")
            .summary("What the server counts about itself")
            .says("For callers without a tenant. Where `METRICS_ADDRESS` is set it is there, without a token, and not here.")
            .protected()
            .answers(200, media("OpenMetrics text.", &[metrics::MEDIA_TYPE]))
            .refuses(403, &[Code::OperatorOnly])
            .refuses(404, &[Code::NotFound])
            .refuses(500, &[Code::Internal])
            .example("asked", Value::Null, 200),
        get("/openapi.json", "getOpenapi", "Server")
            .summary("This description")
            .answers(200, media("OpenAPI 3.1.", &["application/json"]))
            .example("asked", Value::Null, 200),
        get("/schemas/socket.json", "getSocketSchema", "Server")
            .summary("The messages of the socket, both ways")
            .answers(
                200,
                media("JSON Schema, draft 2020-12.", &["application/schema+json"]),
            )
            .example("asked", Value::Null, 200),
        get("/docs", "getDocs", "Server")
            .summary("This description for people")
            .answers(200, media("A page.", &[HTML]))
            .example("asked", Value::Null, 200),
        get("/console", "getConsole", "Server")
            .summary("A page to watch the server, and to try a session with a microphone")
            .answers(200, media("A page.", &[HTML]))
            .example("asked", Value::Null, 200),
        get("/console/{file}", "getConsoleFile", "Server")
            .summary("What that page is made of")
            .parameter(in_path("file", string(), "Its name.", "console.css"))
            .answers(200, media("A style or a script.", &["text/css; charset=utf-8", "text/javascript; charset=utf-8"]))
            .refuses(404, &[Code::NotFound])
            .example("asked", Value::Null, 200),
    ]
}

const HTML: &str = "text/html; charset=utf-8";

fn speech() -> Vec<Operation> {
    vec![
        get("/voices", "listVoices", "Speech")
            .summary("The voices of each provider")
            .says("Providers without a credential are absent. Lists are at most 10 minutes old.")
            .protected()
            .parameter(query("provider", string(), "Only this provider's.", "local"))
            .answers(200, voices())
            .refuses(400, &[Code::InvalidRequest, Code::UnsupportedProvider])
            .refuses(500, &[Code::ProviderError, Code::Internal])
            .example("of one provider", Value::Null, 200),
        post("/speak", "speak", "Speech")
            .summary("Says a text")
            .says(
                "The content type is the format's own; a request whose `Accept` names `audio/pcm` gets that. Without \
                 anything to speak in the text there are no samples. One answer holds at most 64 MiB.",
            )
            .protected()
            .parameter(query("stream", boolean(), "Whether sound is sent as it is made.", false))
            .takes::<speak::SpeakRequest>()
            .answers(200, sound())
            .refuses(400, &[Code::UnsupportedProvider, Code::ProviderAuth])
            .refuses(429, &[Code::ProviderRateLimited])
            .refuses(500, &[Code::SynthesisFailed, Code::ProviderError, Code::ProviderAuth])
            .refuses(503, &[Code::Overloaded])
            .example("local voice", speak_example(json!({"audio_format": "wav"})), 200)
            .example(
                "telephone",
                speak_example(json!({"audio_format": "mulaw", "sample_rate": 8000, "speaking_rate": 1.25})),
                200,
            )
            .example("unknown provider", speak_example(json!({"provider": "nobody"})), 400)
            .example("nothing to say", json!({"text": "", "tts_config": {"provider": "local", "model": ""}}), 400),
    ]
}

fn speak_example(fields: Value) -> Value {
    let mut config = Map::from_iter([
        ("provider".to_owned(), json!("local")),
        ("model".to_owned(), json!("")),
    ]);
    if let Value::Object(fields) = fields {
        config.extend(fields);
    }
    json!({"text": "Hello, how can I help you?", "tts_config": config})
}

fn sessions() -> Vec<Operation> {
    vec![
        get("/ws", "openSession", "Sessions")
            .summary("Opens a session")
            .says(
                "The handshake of a WebSocket. While authentication is on it needs a token, unless `AUTH_SOCKET=public`; one \
                 that is sent must be good all the same.",
            )
            .without_head()
            .protected()
            .answers(101, plain("The messages of `/schemas/socket.json` follow, and sound in binary messages."))
            .refuses(400, &[Code::InvalidRequest])
            .refuses(403, &[Code::OriginNotAllowed])
            .refuses(503, &[Code::Overloaded])
            .example("without a handshake", Value::Null, 400),
        get("/sessions", "listSessions", "Sessions")
            .summary("The sessions that are open, oldest first")
            .protected()
            .answers(200, json_of::<sessions::SessionList>("The caller's sessions."))
            .refuses(500, &[Code::Internal])
            .example("asked", Value::Null, 200),
        delete("/sessions/{stream_id}", "endSession", "Sessions")
            .summary("Ends a session")
            .says("Answers when the session has gone.")
            .protected()
            .parameter(in_path("stream_id", string(), "Its name.", "my-session"))
            .parameter(whose())
            .answers(200, json_of::<sessions::Ended>("It has gone."))
            .refuses(400, &[Code::InvalidRequest])
            .refuses(404, &[Code::NotFound])
            .refuses(409, &[Code::AmbiguousStreamId])
            .refuses(500, &[Code::Internal])
            .example("unknown", Value::Null, 404),
    ]
}

fn rooms() -> Vec<Operation> {
    let room =
        json!({"room_name": "lobby", "participant_name": "Ada", "participant_identity": "ada"});
    let somebody = json!({"room_name": "lobby", "participant_identity": "ada"});
    let track = json!({"room_name": "lobby", "participant_identity": "ada", "track_sid": "TR_1", "muted": true});
    let provider = [Code::RtcNotConfigured, Code::RtcError];
    vec![
        post("/rtc/token", "createRoomToken", "Rooms")
            .summary("A token to join one room, which is made if there is none")
            .protected()
            .takes::<rtc::TokenRequest>()
            .answers(200, json_of::<rtc::TokenAnswer>("The token."))
            .refuses(403, &[Code::RoomAccessDenied])
            .refuses(500, &provider)
            .example("join", room.clone(), 200)
            .example(
                "without a room",
                json!({"participant_name": "Ada", "participant_identity": "ada"}),
                400,
            ),
        get("/rtc/rooms", "listRooms", "Rooms")
            .summary("The caller's rooms")
            .protected()
            .answers(200, json_of::<rtc::RoomList>("The rooms."))
            .refuses(500, &provider)
            .example("asked", Value::Null, 200),
        get("/rtc/rooms/{room_name}", "getRoom", "Rooms")
            .summary("A room and who is in it")
            .protected()
            .parameter(in_path(
                "room_name",
                string(),
                "As it was created.",
                "lobby",
            ))
            .answers(200, json_of::<rtc::RoomDetails>("The room."))
            .refuses(404, &[Code::RoomNotFound])
            .refuses(500, &provider)
            .example("unknown", Value::Null, 404),
        delete("/rtc/participant", "removeParticipant", "Rooms")
            .summary("Removes somebody from a room")
            .says("Their token stays valid.")
            .protected()
            .takes::<rtc::RemoveRequest>()
            .answers(200, json_of::<rtc::Removed>("They have been removed."))
            .refuses(404, &[Code::RoomNotFound, Code::ParticipantNotFound])
            .refuses(500, &provider)
            .refuses(500, &[Code::RemovalFailed])
            .example("unknown", somebody, 404),
        post("/rtc/participant/mute", "muteTrack", "Rooms")
            .summary("Mutes or unmutes a track")
            .protected()
            .takes::<rtc::MuteRequest>()
            .answers(200, json_of::<rtc::MuteAnswer>("It has been done."))
            .refuses(
                404,
                &[
                    Code::RoomNotFound,
                    Code::ParticipantNotFound,
                    Code::TrackNotFound,
                ],
            )
            .refuses(500, &provider)
            .refuses(500, &[Code::MuteFailed])
            .example("unknown", track, 404)
            .example("without a track", room, 400),
        post("/rtc/webhook", "takeRoomEvent", "Rooms")
            .summary("Takes an event of the room provider")
            .says("The event is JSON as LiveKit's webhooks have it, and carries their signature instead of a token.")
            .answers(200, plain("It was taken."))
            .refuses(400, &[Code::InvalidRequest])
            .refuses(401, &[Code::Unauthorized])
            .refuses(500, &[Code::RtcNotConfigured, Code::RtcError, Code::StorageError])
            .example("unsigned", Value::Null, 401),
    ]
}

/// Whose thing of a `stream_id` is meant.
fn whose() -> Parameter {
    let says = "For callers without a tenant, where several tenants have one of this name: whose, empty for nobody's.";
    // 256 bytes, which so many characters of any kind have at most.
    let id = string()
        .pattern(Some(r"^[^\u0000-\u001f\u007f-\u009f]*$"))
        .max_length(Some(64));
    query("tenant", id, says, "acme")
}

/// What the console asks for.
fn inspection() -> Vec<Operation> {
    let number = |name, says| query(name, integer().minimum(Some(0)), says, 0);
    vec![
        get("/inspect/caller", "getCaller", "Inspection")
            .summary("Who asks, and what that may do")
            .protected()
            .answers(200, json_of::<inspect::Caller>("The caller."))
            .example("asked", Value::Null, 200),
        get("/inspect/sessions", "watchSessions", "Inspection")
            .summary("The sessions, with what they do, and those that have ended lately")
            .says(
                "With `Accept: text/event-stream` as server-sent events: `sessions` has all of them, `changed` those that have \
                 changed since and, in `gone`, the ids of those that are not listed any more, at most once a second. The stream \
                 ends after five minutes; ask again. Of one party at most 8 watch, in all 64.",
            )
            .protected()
            .answers(200, json_of::<inspect::SessionRows>("The caller's sessions."))
            .refuses(500, &[Code::Internal])
            .refuses(503, &[Code::Overloaded])
            .example("asked", Value::Null, 200),
        get("/inspect/sessions/{id}", "getTimeline", "Inspection")
            .summary("What has happened in a session lately")
            .says("What was sent both ways, the newest 400 entries or 48 KiB, and how loud it was in the last half minute.")
            .protected()
            .parameter(in_path("id", string(), "Its number in the list.", "0"))
            .parameter(number("version", "The `version` of the answer before: only what has changed since."))
            .parameter(number("level", "The number of the first level that is wanted."))
            .answers(200, json_of::<inspect::SessionTimeline>("The timeline."))
            .refuses(400, &[Code::InvalidRequest])
            .refuses(404, &[Code::NotFound])
            .refuses(500, &[Code::Internal])
            .example("unknown", Value::Null, 404),
        get("/inspect/recordings", "searchRecordings", "Inspection")
            .summary("Recordings by time and words")
            .says("The newest first of those that were looked through: at most 200 transcripts in one request.")
            .protected()
            .parameter(number("from", "They do not end before this, Unix time in milliseconds."))
            .parameter(query("until", integer().minimum(Some(0)), "They begin before this.", 4_102_444_800_000_i64))
            .parameter(query("words", string().max_length(Some(200)), "All of these are in the transcript, whatever their case.", "refund"))
            .parameter(query("after", string(), "The `next` of the answer before.", "my-session"))
            .answers(200, json_of::<FoundPage>("What was found."))
            .refuses(400, &[Code::InvalidRequest])
            .refuses(500, &[Code::StorageError])
            .refuses(503, &[Code::RecordingUnavailable])
            .example("asked", Value::Null, 200),
        get("/inspect/webhooks", "listWebhooks", "Inspection")
            .summary("The webhooks that wait to be delivered")
            .protected()
            .answers(200, json_of::<WaitingWebhooks>("What waits."))
            .refuses(500, &[Code::Internal])
            .example("asked", Value::Null, 200),
        post("/inspect/webhooks/retry", "retryWebhooks", "Inspection")
            .summary("Sends webhooks that wait again at once")
            .protected()
            .takes::<inspect::RetryRequest>()
            .answers(200, json_of::<inspect::Retried>("They are on their way."))
            .refuses(404, &[Code::NotFound])
            .refuses(500, &[Code::Internal])
            .example("all", json!({}), 200)
            .example("unknown", json!({"id": "0"}), 404),
        get("/inspect/vendors", "listVendors", "Inspection")
            .summary("How the vendors did in the last 15 minutes")
            .says("For callers without a tenant.")
            .protected()
            .answers(200, json_of::<inspect::VendorList>("The vendors."))
            .refuses(403, &[Code::OperatorOnly])
            .example("asked", Value::Null, 200),
        get("/inspect/models", "listModels", "Inspection")
            .summary("The models of local speech")
            .protected()
            .answers(200, json_of::<inspect::ModelList>("The models."))
            .refuses(500, &[Code::Internal])
            .example("asked", Value::Null, 200),
        get("/inspect/settings", "listSettings", "Inspection")
            .summary("The settings in force, without secrets")
            .says("For callers without a tenant.")
            .protected()
            .answers(200, json_of::<inspect::SettingList>("The settings."))
            .refuses(403, &[Code::OperatorOnly])
            .example("asked", Value::Null, 200),
        get("/inspect/log", "getLog", "Inspection")
            .summary("The last lines of the log, of a session or of the server")
            .says("What is logged at `info` and above. For callers with a tenant, of a session alone.")
            .protected()
            .parameter(query("session", string(), "The number of a session: its lines alone. Empty, as when absent, for those of the server.", ""))
            .parameter(query("level", string().enum_values(Some(["error", "warn", "info"])), "At least this bad.", "warn"))
            .parameter(number("after", "The `number` of the last line that is known."))
            .answers(200, json_of::<inspect::LogTail>("The lines."))
            .refuses(400, &[Code::InvalidRequest])
            .refuses(403, &[Code::OperatorOnly])
            .refuses(404, &[Code::NotFound])
            .refuses(500, &[Code::Internal])
            .example("asked", Value::Null, 200),
    ]
}

fn recordings() -> Vec<Operation> {
    let stream_id = || {
        let any_but = ObjectBuilder::new()
            .schema_type(Type::String)
            .min_length(Some(1))
            .pattern(Some(r"^(\.?[^./])*\.?$"));
        in_path("stream_id", any_but, "The session's name.", "my-session")
    };
    vec![
        get("/recordings", "listRecordings", "Recordings")
            .summary("The caller's recordings")
            .protected()
            .says("Those of tenants first, each in the order of their names. A page may be short and still have others behind it: `next` says so.")
            .parameter(query("limit", integer().minimum(Some(1)).maximum(Some(500)), "How many at most, 1 to 500; 50 when absent.", 50))
            .parameter(query("after", string(), "The `next` of the page before.", "my-session"))
            .answers(200, json_of::<Page>("The recordings."))
            .refuses(400, &[Code::InvalidRequest])
            .refuses(500, &[Code::StorageError])
            .refuses(503, &[Code::RecordingUnavailable])
            .example("asked", Value::Null, 200),
        get("/recording/{stream_id}", "getRecording", "Recordings")
            .summary("What was said in a session")
            .says("A recording that is not finished is not found yet; `Retry-After` says when to ask again.")
            .protected()
            .parameter(stream_id())
            .parameter(whose())
            .parameter(in_header("Range", "The part that is wanted, `bytes=first-last`, `bytes=first-` or `bytes=-count`; one part.", "bytes=0-1023"))
            .parameter(in_header("If-Range", "The `ETag` of the recording that the part belongs to; of another one all is sent.", "\"9f86d081884c7d65\""))
            .parameter(in_header("If-None-Match", "The `ETag` of the recording that the caller has.", "\"9f86d081884c7d65\""))
            .answers(200, sound_of_recording("The recording."))
            .answers(206, part_of_recording())
            .refuses(400, &[Code::InvalidRequest])
            .answers(304, plain("It has not changed since `If-None-Match`."))
            .answers(412, plain("It is not the one of `If-Match`."))
            .answers(416, no_part_of_recording())
            .refuses(404, &[Code::RecordingNotFound])
            .refuses(409, &[Code::AmbiguousStreamId])
            .refuses(500, &[Code::StorageError])
            .refuses(503, &[Code::RecordingUnavailable])
            .example("asked", Value::Null, 404),
        get("/recording/{stream_id}/transcript", "getTranscript", "Recordings")
            .summary("What was understood and said in a session, with its times in the recording")
            .says("A JSON object a line: `heard` (a final result), `begins` and `said` (an utterance), each with `at_ms`.")
            .protected()
            .parameter(stream_id())
            .parameter(whose())
            .answers(200, media("The lines.", &["application/x-ndjson"]))
            .refuses(400, &[Code::InvalidRequest])
            .refuses(404, &[Code::RecordingNotFound])
            .refuses(409, &[Code::AmbiguousStreamId])
            .refuses(500, &[Code::StorageError])
            .refuses(503, &[Code::RecordingUnavailable])
            .example("asked", Value::Null, 404),
        delete("/recording/{stream_id}", "deleteRecording", "Recordings")
            .summary("Deletes a recording")
            .protected()
            .parameter(stream_id())
            .parameter(whose())
            .answers(200, json_of::<recording::Deleted>("It is gone."))
            .refuses(400, &[Code::InvalidRequest])
            .refuses(404, &[Code::RecordingNotFound])
            .refuses(409, &[Code::AmbiguousStreamId])
            .refuses(500, &[Code::StorageError])
            .refuses(503, &[Code::RecordingUnavailable])
            .example("asked", Value::Null, 404),
    ]
}

fn transfers() -> Vec<Operation> {
    let transfer = json!({"room_name": "lobby", "participant_identity": "grace", "transfer_to": "+12125550102"});
    let nobody = json!({"room_name": "attic", "participant_identity": "grace", "transfer_to": "+12125550102"});
    let mut warm = transfer.clone();
    warm["mode"] = json!("warm");
    let held = json!({"room_name": "lobby", "participant_identity": "grace"});
    vec![
        post("/sip/transfer", "transferCall", "Telephone")
            .summary("Moves a call to another number")
            .says("Blind: answers once the REFER is accepted, or after 5 s without refusal. Warm: the caller is put on hold and the number is called into the room; answers when that call has been sent on its way, and the two are connected or brought back by requests to `/sip/transfers/{transfer_id}`.")
            .protected()
            .takes::<sip::calls::TransferRequest>()
            .answers(
                200,
                json_of::<sip::calls::TransferAnswer>("It is on its way."),
            )
            .refuses(
                400,
                &[Code::InvalidPhoneNumber, Code::DestinationNotAllowed],
            )
            .refuses(404, &[Code::RoomNotFound, Code::ParticipantNotFound])
            .refuses(503, &[Code::Overloaded])
            .refuses(
                500,
                &[
                    Code::OutboundAddressNotConfigured,
                    Code::RtcNotConfigured,
                    Code::RtcError,
                    Code::TransferFailed,
                ],
            )
            .example("transfer", transfer, 200)
            .example("nobody there", nobody, 404)
            .example("warm transfer", warm, 404),
        get("/sip/transfers", "listTransfers", "Telephone")
            .summary("Warm transfers of the caller's rooms")
            .says("Also those that ended in the last minute; oldest first.")
            .protected()
            .answers(200, json_of::<sip::calls::TransferList>("The transfers."))
            .example("asked", Value::Null, 200),
        get("/sip/transfers/{transfer_id}", "showTransfer", "Telephone")
            .summary("A warm transfer")
            .protected()
            .parameter(in_path("transfer_id", string(), "Its id.", "TRF_0123456789ab"))
            .answers(200, json_of::<TransferInfo>("The transfer."))
            .refuses(404, &[Code::NotFound])
            .example("asked", Value::Null, 404),
        post("/sip/transfers/{transfer_id}/complete", "completeTransfer", "Telephone")
            .summary("Connects the caller and the person of a warm transfer")
            .says("Once the person has answered. The agent is removed from the room half a second later, or stays.")
            .protected()
            .parameter(in_path("transfer_id", string(), "Its id.", "TRF_0123456789ab"))
            .takes::<sip::calls::CompleteRequest>()
            .answers(200, json_of::<TransferInfo>("They are connected."))
            .refuses(404, &[Code::NotFound])
            .refuses(500, &[Code::RtcNotConfigured, Code::TransferFailed])
            .example("the agent leaves", json!({}), 404)
            .example("the agent stays", json!({"agent": "stay"}), 404),
        post("/sip/transfers/{transfer_id}/cancel", "cancelTransfer", "Telephone")
            .summary("Ends a warm transfer")
            .says("The person is hung up, the caller is off hold.")
            .protected()
            .parameter(in_path("transfer_id", string(), "Its id.", "TRF_0123456789ab"))
            .takes::<sip::calls::CancelRequest>()
            .answers(200, json_of::<TransferInfo>("It is cancelled."))
            .refuses(404, &[Code::NotFound])
            .refuses(500, &[Code::RtcNotConfigured, Code::TransferFailed])
            .example("cancel", json!({}), 404),
        post("/sip/hold", "holdCall", "Telephone")
            .summary("Puts a call on hold, or takes it off")
            .says("It is heard by nobody, and hears music, words or nothing in place of the room.")
            .protected()
            .takes::<sip::calls::HoldRequest>()
            .answers(200, json_of::<sip::calls::HoldAnswer>("It is so."))
            .refuses(404, &[Code::RoomNotFound, Code::ParticipantNotFound])
            .refuses(
                500,
                &[Code::RtcNotConfigured, Code::RtcError, Code::CallFailed],
            )
            .example("hold", held, 404),
    ]
}

fn queues() -> Vec<Operation> {
    let name = || {
        in_path(
            "queue_name",
            string(),
            "Its name: 1 to 64 of `A-Z a-z 0-9 . _ -`.",
            "support",
        )
    };
    let caller = json!({"room_name": "lobby", "participant_identity": "grace"});
    let failures = [Code::RtcNotConfigured, Code::RtcError, Code::CallFailed];
    vec![
        get("/sip/queues", "listQueues", "Telephone")
            .summary("The queues in which callers wait")
            .says("Of the caller's tenant, all of them without one; a queue is there while somebody waits in it.")
            .protected()
            .answers(200, json_of::<sip::queues::QueueList>("The queues, and who waits in them."))
            .example("asked", Value::Null, 200),
        post("/sip/queues/{queue_name}/calls", "queueCall", "Telephone")
            .summary("Puts a call into a queue")
            .says("The caller is on hold, and hears its position from time to time, until somebody asks for the next one.")
            .protected()
            .parameter(name())
            .takes::<sip::queues::QueueRequest>()
            .answers(200, json_of::<QueuedCall>("It waits."))
            .refuses(404, &[Code::RoomNotFound, Code::ParticipantNotFound])
            .refuses(500, &failures)
            .refuses(503, &[Code::Overloaded])
            .example("a caller", caller, 404),
        delete("/sip/queues/{queue_name}/calls/{sip_call_id}", "unqueueCall", "Telephone")
            .summary("Takes a call out of a queue")
            .says("The caller is off hold in its room; those behind it move up.")
            .protected()
            .parameter(name())
            .parameter(in_path("sip_call_id", string(), "The call.", "SCL_9fK2"))
            .answers(200, json_of::<QueuedCall>("It waits no longer."))
            .refuses(404, &[Code::NotFound])
            .refuses(500, &failures)
            .example("asked", Value::Null, 404),
        post("/sip/queues/{queue_name}/next", "nextCall", "Telephone")
            .summary("Connects the caller who waits longest")
            .says("To whoever is in a room, into which the call is moved, or to a number, which is called into the room of the caller; then it answers when that call has been sent on its way.")
            .protected()
            .parameter(name())
            .takes::<sip::queues::NextRequest>()
            .answers(200, json_of::<QueuedCall>("It is connected, or being connected."))
            .refuses(400, &[Code::InvalidPhoneNumber, Code::DestinationNotAllowed])
            .refuses(404, &[Code::NotFound, Code::RoomNotFound])
            .refuses(
                500,
                &[
                    Code::OutboundAddressNotConfigured,
                    Code::RtcNotConfigured,
                    Code::RtcError,
                    Code::CallFailed,
                ],
            )
            .refuses(503, &[Code::Overloaded])
            .example("to a number", json!({"transfer_to": "+12125550102"}), 404)
            .example("to a room", json!({"room_name": "attic"}), 404),
    ]
}

fn telephone() -> Vec<Operation> {
    let call = json!({
        "room_name": "lobby", "participant_name": "Grace", "participant_identity": "grace",
        "from_phone_number": "+12125550100", "to_phone_number": "+12125550101",
    });
    let mut through = call.clone();
    through["sip"] = json!({"outbound_address": "sip.example.org:5060"});
    let mut nowhere = call.clone();
    nowhere["to_phone_number"] = json!("+1");
    let hooks = json!([{"host": "calls.example.org", "url": "https://hooks.example.org/calls"}]);
    let list = || json_of::<sip::hooks::HookList>("The hooks that hold now.");
    vec![
        post("/sip/call", "placeCall", "Telephone")
            .summary("Calls a number into a room")
            .says("Answers when the call has been sent on its way, not when it is taken.")
            .protected()
            .takes::<sip::calls::CallRequest>()
            .answers(200, json_of::<sip::calls::CallAnswer>("It is on its way."))
            .refuses(
                400,
                &[Code::InvalidPhoneNumber, Code::DestinationNotAllowed],
            )
            .refuses(404, &[Code::RoomNotFound])
            .refuses(503, &[Code::Overloaded])
            .refuses(
                500,
                &[
                    Code::OutboundAddressNotConfigured,
                    Code::RtcNotConfigured,
                    Code::RtcError,
                    Code::CallFailed,
                ],
            )
            .example("through the server's gateway", call, 200)
            .example("through the caller's gateway", through, 200)
            .example("no telephone number", nowhere, 400),
        get("/sip/traces", "listTraces", "Telephone")
            .summary("Calls whose signalling was seen")
            .says("Calls that there are, those that were refused or have failed within the last hour, those that ended in the last minute. A tenant sees its own.")
            .protected()
            .answers(200, json_of::<sip::traces::TraceList>("The calls, the newest last."))
            .refuses(500, &[Code::Internal])
            .example("asked", Value::Null, 200),
        get("/sip/traces/{trace_id}", "getTrace", "Telephone")
            .summary("The SIP messages of a call")
            .says("First lines, times and addresses; no headers and no bodies. Users of URIs are masked unless `sip.trace_numbers` says otherwise.")
            .protected()
            .parameter(in_path("trace_id", string(), "The id of the trace.", "SCL_abcdefghijkl"))
            .answers(200, json_of::<sip::traces::Trace>("The call and its ladder."))
            .refuses(404, &[Code::NotFound])
            .refuses(500, &[Code::Internal])
            .example("asked", Value::Null, 404),
        get("/sip/hooks", "listHooks", "Telephone")
            .summary("The caller's hooks")
            .protected()
            .answers(200, list())
            .refuses(500, &[Code::StorageError])
            .example("asked", Value::Null, 200),
        post("/sip/hooks", "putHooks", "Telephone")
            .summary("Adds or replaces hooks, all or none")
            .says("A hook is told, signed, of every telephone that joins a room after a call to its host. A tenant's hooks are for hosts that no other has, and that it was granted.")
            .protected()
            .takes::<sip::hooks::HooksRequest>()
            .answers(200, list())
            .refuses(405, &[Code::HookImmutable])
            .refuses(500, &[Code::StorageError])
            .example("add", hooks.clone(), 200)
            .example("add in an object", json!({"hooks": hooks}), 200)
            .example("none", json!([]), 400),
        delete("/sip/hooks", "removeHooks", "Telephone")
            .summary("Removes hooks, all or none")
            .says("A host that the server's settings name too reverts to its setting.")
            .protected()
            .takes::<sip::hooks::HostsRequest>()
            .answers(200, list())
            .refuses(405, &[Code::HookImmutable])
            .refuses(500, &[Code::StorageError])
            .example("remove", json!({"hosts": ["calls.example.org"]}), 200)
            .example("none", json!({"hosts": []}), 400),
    ]
}

const JSON: &str = "application/json";

fn get(path: &'static str, id: &'static str, tag: &'static str) -> Operation {
    Operation {
        with_head: true,
        ..operation(HttpMethod::Get, path, id, tag)
    }
}

fn post(path: &'static str, id: &'static str, tag: &'static str) -> Operation {
    operation(HttpMethod::Post, path, id, tag)
}

fn delete(path: &'static str, id: &'static str, tag: &'static str) -> Operation {
    operation(HttpMethod::Delete, path, id, tag)
}

fn operation(
    method: HttpMethod,
    path: &'static str,
    id: &'static str,
    tag: &'static str,
) -> Operation {
    Operation {
        path,
        method,
        with_head: false,
        id,
        tag,
        summary: "",
        says: "",
        protected: false,
        limited: true,
        parameters: Vec::new(),
        body: None,
        answers: BTreeMap::new(),
        errors: BTreeMap::new(),
        examples: Vec::new(),
    }
}

impl Operation {
    const fn summary(mut self, summary: &'static str) -> Self {
        self.summary = summary;
        self
    }

    const fn says(mut self, says: &'static str) -> Self {
        self.says = says;
        self
    }

    const fn protected(mut self) -> Self {
        self.protected = true;
        self
    }

    const fn never_limited(mut self) -> Self {
        self.limited = false;
        self
    }

    const fn without_head(mut self) -> Self {
        self.with_head = false;
        self
    }

    fn parameter(mut self, parameter: Parameter) -> Self {
        self.parameters.push(parameter);
        self
    }

    /// A JSON body.
    fn takes<T: JsonSchema>(mut self) -> Self {
        self.body = Some(T::schema_name().into_owned());
        self
    }

    fn answers(mut self, status: u16, response: Response) -> Self {
        self.answers.insert(status, response);
        self
    }

    fn refuses(mut self, status: u16, codes: &[Code]) -> Self {
        let known = self.errors.entry(status).or_default();
        // Shared errors and an operation's own may be the same.
        for code in codes {
            if !known.contains(code) {
                known.push(*code);
            }
        }
        self
    }

    fn example(mut self, name: &'static str, body: Value, status: u16) -> Self {
        self.examples.push(Example { name, body, status });
        self
    }

    /// The same by `HEAD`: no bodies.
    pub(super) fn as_head(&self) -> path::Operation {
        let mut head = path::Operation::from(self.clone());
        head.operation_id = Some(
            self.id
                .replacen("get", "head", 1)
                .replacen("list", "headOf", 1)
                .replacen("show", "headOf", 1)
                .replacen("search", "headOfSearched", 1)
                .replacen("watch", "headOfWatched", 1),
        );
        for response in head.responses.responses.values_mut() {
            if let RefOr::T(response) = response {
                response.content.clear();
            }
        }
        head
    }

    /// What is the same for all operations of a kind.
    fn with_shared_errors(mut self) -> Self {
        if self.protected {
            let tokens = [
                Code::MissingAuthHeader,
                Code::InvalidAuthHeader,
                Code::Unauthorized,
                Code::AuthServiceError,
            ];
            self = self
                .refuses(401, &tokens)
                .refuses(500, &[Code::ConfigError, Code::JwtSigningError])
                .refuses(502, &[Code::AuthServiceError])
                .refuses(503, &[Code::AuthServiceUnavailable]);
        }
        if self.limited {
            self = self.refuses(429, &[Code::RateLimited]);
        }
        self = self.refuses(421, &[Code::MisdirectedRequest]);
        // The authentication service is told of every body, needed or not, save of those of GET and HEAD.
        let told = self.protected && self.method != HttpMethod::Get;
        // So is a socket; it has no `HEAD`.
        if told || (self.protected && !self.with_head) {
            self = self.refuses(403, &[Code::ReadOnly]);
        }
        if told || self.body.is_some() {
            self = self
                .refuses(400, &[Code::InvalidRequest])
                .refuses(413, &[Code::PayloadTooLarge])
                .refuses(415, &[Code::UnsupportedMediaType]);
        }
        self
    }

    fn request_body(&self) -> Option<RequestBody> {
        let schema = self.body.as_ref()?;
        let examples = self.examples.iter().map(|example| {
            let summary = format!("{}: {}", example.name, example.status);
            let written = ExampleBuilder::new()
                .summary(summary)
                .value(Some(example.body.clone()));
            (example.name.replace(' ', "-"), written.build())
        });
        let content = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name(schema)))
            .examples_from_iter(examples);
        let body = RequestBodyBuilder::new()
            .required(Some(Required::True))
            .content(JSON, content.build());
        Some(body.build())
    }
}

impl From<Operation> for path::Operation {
    fn from(operation: Operation) -> Self {
        let operation = operation.with_shared_errors();
        let mut written = OperationBuilder::new()
            .tag(operation.tag)
            .operation_id(Some(operation.id))
            .summary(Some(operation.summary))
            .description((!operation.says.is_empty()).then_some(operation.says))
            .request_body(operation.request_body());
        if !operation.parameters.is_empty() {
            written = written.parameters(Some(operation.parameters));
        }
        if operation.protected {
            // Each of them is enough; none is needed where authentication is off.
            let token = |scheme: &str| SecurityRequirement::new(scheme, [] as [&str; 0]);
            written = written.securities(Some([
                token("bearer"),
                token("api_key"),
                SecurityRequirement::default(),
            ]));
        }
        let mut responses = operation.answers;
        for (status, codes) in &operation.errors {
            let refused = refusal(*status, codes);
            responses.entry(*status).or_insert(refused);
        }
        for (status, mut response) in responses {
            let id = header(string(), "The request's own, or a new one.");
            response
                .headers
                .insert("x-request-id".to_owned(), id.into());
            written = written.response(status.to_string(), response);
        }
        let answers = operation.examples.iter();
        let answers: Map<_, _> = answers
            .map(|example| (example.name.replace(' ', "-"), json!(example.status)))
            .collect();
        let examples = ExtensionsBuilder::new().add("x-examples", answers);
        written.extensions(Some(examples.build())).build()
    }
}

/// The answers that belong to no operation.
pub(super) fn elsewhere() -> [(&'static str, Response); 3] {
    let allow = header(string(), "The methods that the path has.");
    let mut method = refusal(405, &[Code::MethodNotAllowed]);
    method.headers.insert("Allow".to_owned(), allow.into());
    [
        ("MethodNotAllowed", method),
        ("NotFound", refusal(404, &[Code::NotFound])),
        ("ModelNotFound", refusal(404, &[Code::ModelNotFound])),
    ]
}

/// An error with one of these codes.
fn refusal(status: u16, codes: &[Code]) -> Response {
    let code = ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(codes.iter().map(|code| json!(code))));
    let body = AllOfBuilder::new()
        .item(Ref::from_schema_name(Body::schema_name()))
        .item(ObjectBuilder::new().property("error", code));
    let names: Vec<_> = codes
        .iter()
        .filter_map(|code| json!(code).as_str().map(|name| format!("`{name}`")))
        .collect();
    let mut response = ResponseBuilder::new()
        .description(names.join(", "))
        .content(JSON, Content::new(Some(body)));
    if status == 401 {
        response = response.header("WWW-Authenticate", header(string(), "`Bearer`."));
    }
    if matches!(status, 429 | 503) || codes.contains(&Code::RecordingNotFound) {
        response = response.header(
            "Retry-After",
            header(integer(), "Seconds after which to try again."),
        );
    }
    response.build()
}

fn plain(says: &str) -> Response {
    Response::new(says)
}

/// A body that JSON Schema says nothing about.
fn media(says: &str, types: &[&str]) -> Response {
    let anything = None::<RefOr<Schema>>;
    let response = ResponseBuilder::new().description(says);
    let with = |response: ResponseBuilder, media: &&str| {
        response.content(*media, Content::new(anything.clone()))
    };
    types.iter().fold(response, with).build()
}

fn json_of<T: JsonSchema>(says: &str) -> Response {
    let content = Content::new(Some(Ref::from_schema_name(T::schema_name())));
    ResponseBuilder::new()
        .description(says)
        .content(JSON, content)
        .build()
}

fn voices() -> Response {
    let list = ArrayBuilder::new().items(Ref::from_schema_name(Voice::schema_name()));
    let by_slug = ObjectBuilder::new()
        .schema_type(Type::Object)
        .additional_properties(Some(RefOr::from(list)));
    let content = Content::new(Some(by_slug));
    let says = "The voices by the slug of their provider.";
    ResponseBuilder::new()
        .description(says)
        .content(JSON, content)
        .build()
}

fn sound() -> Response {
    let formats = ["linear16", "wav", "mulaw", "alaw", "mp3", "ogg_opus"];
    let cached = ["hit", "miss"];
    let mut response = media(
        "The sound.",
        &[
            "audio/pcm",
            "audio/wav",
            "audio/basic",
            "audio/x-alaw-basic",
            "audio/mpeg",
            "audio/ogg",
        ],
    );
    let headers = [
        (
            "x-audio-format",
            header(
                string().enum_values(Some(formats)),
                "What the sound is written in.",
            ),
        ),
        ("x-sample-rate", header(integer(), "Hertz.")),
        (
            "x-cache",
            header(
                string().enum_values(Some(cached)),
                "Whether it had been made before.",
            ),
        ),
        (
            "x-provider",
            header(string(), "Who speaks: the provider, or a fallback."),
        ),
        ("Vary", header(string(), "`accept`.")),
    ];
    let headers = headers.map(|(name, header)| (name.to_owned(), header.into()));
    response.headers.extend(headers);
    response
}

fn sound_of_recording(says: &str) -> Response {
    let mut response = media(says, &["audio/ogg"]);
    let headers = [
        (
            "Content-Disposition",
            header(string(), "`attachment` with `{stream_id}.ogg`."),
        ),
        ("Content-Length", header(integer(), "Bytes.")),
        ("ETag", header(string(), "Changes with the recording.")),
        ("Accept-Ranges", header(string(), "`bytes`.")),
    ];
    let headers = headers.map(|(name, header)| (name.to_owned(), header.into()));
    response.headers.extend(headers);
    response
}

fn part_of_recording() -> Response {
    let mut response = sound_of_recording("The part of it that `Range` names.");
    let says = "`bytes first-last/size`: which part it is, and of how much.";
    let range = header(string(), says).into();
    response.headers.insert("Content-Range".to_owned(), range);
    response
}

fn no_part_of_recording() -> Response {
    let mut response = plain("There is nothing where `Range` points.");
    let range = header(string(), "`bytes */size`.").into();
    response.headers.insert("Content-Range".to_owned(), range);
    response
}

fn header(schema: impl Into<RefOr<Schema>>, says: &str) -> Header {
    HeaderBuilder::new()
        .schema(Some(schema.into()))
        .description(Some(says))
        .build()
}

fn query(
    name: &str,
    schema: impl Into<RefOr<Schema>>,
    says: &str,
    example: impl Into<Value>,
) -> Parameter {
    parameter(
        ParameterIn::Query,
        name,
        schema.into(),
        says,
        example.into(),
    )
}

fn in_header(name: &str, says: &str, example: &str) -> Parameter {
    let value = string().into();
    parameter(ParameterIn::Header, name, value, says, example.into())
}

fn in_path(
    name: &str,
    schema: impl Into<RefOr<Schema>>,
    says: &str,
    example: impl Into<Value>,
) -> Parameter {
    parameter(ParameterIn::Path, name, schema.into(), says, example.into())
}

fn parameter(
    place: ParameterIn,
    name: &str,
    schema: RefOr<Schema>,
    says: &str,
    example: Value,
) -> Parameter {
    let required = if place == ParameterIn::Path {
        Required::True
    } else {
        Required::False
    };
    ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .required(required)
        .description(Some(says))
        .schema(Some(schema))
        .example(Some(example))
        .build()
}

fn string() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::new(Type::String))
}

fn integer() -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(0))
}

fn boolean() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Boolean)
}
