//! What the server says about itself: what must never be in it, and what must.

use std::fmt::Write;
use std::sync::{Arc, Mutex, mpsc};

use actix_web::dev::ServerHandle;
use actix_web::web::Bytes;
use actix_web::{App, HttpResponse, HttpServer, web};
use futures_util::{SinkExt, StreamExt};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use prost::Message as _;
use reqwest::Method;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use vivavoce::config::TABLE;

use crate::harness::*;

/// In every secret.
const SECRET: &str = "mArKeR-7f3a-0123456789";

/// Every secret that can be configured, in its own shape.
fn secrets_of_the_server() -> Vec<(&'static str, String)> {
    let secrets = TABLE.iter().filter(|setting| setting.secret);
    let value = |name: &str| match name {
        "AUTH_API_SECRETS_JSON" => {
            json!([{"id": "a", "secret": format!("{SECRET}-of-a")}]).to_string()
        }
        "SIP_HOOKS_JSON" => {
            json!([{"host": "a.example", "url": "https://a.example/", "secret": SECRET}])
                .to_string()
        }
        "AGENT_ROUTES_JSON" => {
            json!([{"host": "a.example", "url": "wss://a.example/", "secret": SECRET}]).to_string()
        }
        "OPENAI_MODELS_JSON" => json!({"mine": format!("local/{SECRET}")}).to_string(),
        "LLM_ENDPOINTS_JSON" => {
            json!({"a": {"url": "https://a.example/v1", "api_key": SECRET}}).to_string()
        }
        "CARRIERS_ACCOUNTS_JSON" => json!([{"kind": "twilio", "signing_key": SECRET}]).to_string(),
        "SIP_GATEWAYS_JSON" => {
            json!([{"address": "127.0.0.1:9", "username": "a", "password": SECRET}]).to_string()
        }
        "SIP_REGISTRATIONS_JSON" => {
            json!([{"registrar": "127.0.0.1:9", "user": "1", "password": SECRET}]).to_string()
        }
        "SIP_TRUNKS_JSON" => {
            json!({"inbound": [{"auth_username": "a", "auth_password": SECRET}]}).to_string()
        }
        "SIP_PHONES_JSON" => json!([{"user": "desk", "password": SECRET}]).to_string(),
        "RECORDING_TENANTS_JSON" => json!({"a": {"redact_patterns": [SECRET]}}).to_string(),
        // Secrets differ.
        "AUTH_READ_SECRET" => format!("{SECRET}-of-readers"),
        "OPENAI_CLIENT_SECRET_KEY" => SECRET.repeat(2),
        "TURNS_BACKCHANNELS_JSON" => json!({"en": [SECRET]}).to_string(),
        "SIP_TENANT_HOSTS" => json!({"a": ["a.example"]}).to_string(),
        "SIP_TENANT_NUMBERS" => json!({"a": ["+14155550123"]}).to_string(),
        "REDIS_URL" => format!("redis://user:{SECRET}@127.0.0.1:1/"),
        _ => SECRET.to_owned(),
    };
    secrets
        .map(|setting| (setting.env, value(setting.env)))
        .collect()
}

/// A `config` with this language model.
fn led(llm: Value) -> Value {
    let mut led = config("local", json!({}));
    led["agent"] = json!({"llm": llm});
    led
}

/// Bodies with a secret wherever one may stand, and where it may stand by mistake.
fn bodies() -> Vec<Value> {
    let tts =
        |provider: &str, auth: Value| json!({"provider": provider, "model": "", "auth": auth});
    let say = |tts_config: Value| json!({"text": "Hello.", "tts_config": tts_config});
    let call = json!({"room_name": "a", "participant_name": "b", "participant_identity": "c",
        "from_phone_number": "1", "to_phone_number": "2",
        "sip": {"outbound_address": "sip.example", "auth_username": SECRET, "auth_password": SECRET}});
    vec![
        say(tts("local", json!({}))),
        say(tts("local", json!({"api_key": SECRET}))),
        say(tts("local", json!(SECRET))),
        say(tts("local", json!({(SECRET): SECRET}))),
        say(tts("azure", json!({"api_key": SECRET, "region": "eastus"}))),
        say(tts(
            "google",
            json!({"credentials": {"private_key": SECRET}}),
        )),
        say(tts(
            "google",
            json!({"credentials": json!({"private_key": SECRET}).to_string()}),
        )),
        call.clone(),
        json!({"sip": SECRET}),
        json!({"hooks": [{"host": "a.example", "url": "https://a.example/", "secret": SECRET}]}),
        json!([{"host": "a.example", "url": format!("https://user:{SECRET}@a.example/")}]),
        json!(SECRET),
    ]
}

const PATHS: [&str; 25] = [
    "/",
    "/healthz",
    "/readyz",
    "/metrics",
    "/voices",
    "/speak",
    "/ws",
    "/console",
    "/sessions",
    "/sessions/a",
    "/rtc/token",
    "/rtc/rooms",
    "/rtc/rooms/a",
    "/rtc/participant",
    "/rtc/participant/mute",
    "/rtc/webhook",
    "/recordings",
    "/recording/a",
    "/sip/call",
    "/sip/transfer",
    "/sip/hooks",
    "/openapi.json",
    "/schemas/socket.json",
    "/docs",
    "/nothing",
];

/// Everything that the server answers to every request with secrets in its header, query and body.
async fn answers(server: &Server) -> String {
    let mut answers = String::new();
    for path in PATHS {
        let url = format!(
            "{}{path}?api_key={SECRET}&token={SECRET}&stream={SECRET}",
            server.url
        );
        let ask = |method: Method| {
            let request = client().request(method, &url);
            request
                .bearer_auth(SECRET)
                .header("x-api-key", SECRET)
                .header("cookie", SECRET)
        };
        let mut requests: Vec<_> = bodies()
            .iter()
            .map(|body| ask(Method::POST).json(body))
            .collect();
        requests.extend([Method::GET, Method::DELETE, Method::OPTIONS].map(ask));
        requests.push(ask(Method::POST).body(format!("{{\"{SECRET}\": {SECRET}")));
        requests.push(ask(Method::POST).header("content-type", format!("text/{SECRET}")));
        for request in requests {
            let answer = request.send().await.unwrap();
            let (status, headers) = (answer.status(), answer.headers().clone());
            let body = answer.bytes().await.unwrap();
            writeln!(
                answers,
                "{path} {status} {headers:?} {}",
                String::from_utf8_lossy(&body)
            )
            .unwrap();
        }
    }
    answers
}

/// Everything that a socket with these credentials is told until its session has gone.
async fn session(server: &Server, messages: &[Value]) -> String {
    let url = format!(
        "{}/ws?api_key={SECRET}",
        server.url.replace("http://", "ws://")
    );
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    for message in messages {
        socket
            .send(Message::text(message.to_string()))
            .await
            .unwrap();
    }
    let mut told = String::new();
    while let Some(message) = socket.next().await {
        match message.unwrap() {
            Message::Text(text) => {
                told += text.as_str();
                told.push('\n');
                if text.contains("tts_playback_complete") {
                    socket.close(None).await.unwrap();
                }
            }
            Message::Close(_) => break,
            _ => {}
        }
    }
    told
}

fn config(provider: &str, auth: Value) -> Value {
    json!({"type": "config",
        "stt_config": {"provider": provider, "auth": auth},
        "tts_config": {"provider": provider, "model": "", "auth": auth}})
}

fn saying(text: &str) -> Vec<Value> {
    vec![
        config("local", json!({})),
        json!({"type": "speak", "text": text}),
    ]
}

#[tokio::test]
async fn no_secret_is_in_any_log_line_answer_event_or_count() {
    for auth_required in ["false", "true"] {
        no_secret_is_told(auth_required).await;
    }
}

async fn no_secret_is_told(auth_required: &str) {
    let mut secrets = secrets_of_the_server();
    // Numbers are nobody's while nobody is asked for a token.
    secrets.retain(|(name, _)| *name != "SIP_TENANT_NUMBERS" || auth_required == "true");
    assert!(secrets.len() > 5);
    let mut environment: Vec<(&str, &str)> = secrets
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    environment.extend([
        ("LOG_LEVEL", "trace"),
        ("LOG_FORMAT", "json"),
        ("AUTH_REQUIRED", auth_required),
        ("AUTH_SOCKET", "public"),
        // What some of them need beside them.
        ("WEBHOOKS_URL", "http://127.0.0.1:1/"),
        ("WEBHOOKS_ALLOW_INSECURE", "true"),
        ("WEBHOOKS_ALLOW_PRIVATE", "true"),
        ("LLM_URL", "http://127.0.0.1:1/v1"),
        ("RTC_MODE", "embedded"),
        ("RTC_UDP_PORT", "0"),
        ("RTC_API_KEY", "key"),
    ]);
    let mut server = Server::start_logged(&environment);
    let mut told = answers(&server).await;
    let mut messages = vec![
        config("local", json!({"api_key": SECRET})),
        config("local", json!(SECRET)),
        config("azure", json!({"api_key": SECRET, "region": SECRET})),
        json!({"type": "config", "stream_id": format!("../{SECRET}"), "loading_audio": SECRET}),
        led(
            json!({"url": format!("https://{SECRET}.example/v1"), "api_key": SECRET, "model": "m"}),
        ),
        led(json!({"api_key": SECRET})),
    ];
    messages.extend(saying("Hello."));
    let events = session(&server, &messages).await;
    assert!(events.contains("tts_playback_complete"), "{events}");
    told += &events;
    let metrics = client()
        .get(format!("{}/metrics", server.url))
        .bearer_auth(SECRET)
        .send()
        .await
        .unwrap();
    assert_eq!(metrics.status(), 200);
    told += &metrics.text().await.unwrap();
    let log = server.log();
    let detailed = |line: &&str| line.contains(r#""level":"DEBUG""#);
    assert!(
        log.lines().filter(detailed).count() > 40,
        "the server did not say all it can:\n{log}"
    );
    for line in told.lines().chain(log.lines()) {
        assert!(!line.contains(SECRET), "{line}");
    }
}

#[tokio::test]
async fn what_people_say_is_not_logged_unless_it_is_asked_for() {
    let mut server = Server::start_logged(&[]);
    let text = "Zanzibar hippopotamus.";
    speak(&server, text, json!({})).await.bytes().await.unwrap();
    speak(&server, text, json!({"voice_id": "nobody"})).await;
    session(&server, &saying(text)).await;
    let log = server.log().to_lowercase();
    assert!(log.contains("/speak"), "{log}");
    assert!(
        !log.contains("zanzibar") && !log.contains("hippopotamus"),
        "{log}"
    );
}

#[tokio::test]
async fn other_crates_say_no_more_at_trace_than_at_warn() {
    let mut server = Server::start_logged(&[("LOG_LEVEL", "trace"), ("LOG_FORMAT", "json")]);
    session(&server, &saying("Hello.")).await;
    let log = server.log();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let (target, level) = (
            line["target"].as_str().unwrap(),
            line["level"].as_str().unwrap(),
        );
        assert!(
            target.starts_with("vivavoce") || matches!(level, "WARN" | "ERROR"),
            "{line}"
        );
    }
}

#[tokio::test]
async fn providers_and_the_cache_are_counted_by_what_they_did() {
    let server = Server::start();
    for _ in 0..2 {
        speak(&server, "Hello.", json!({}))
            .await
            .bytes()
            .await
            .unwrap();
    }
    speak(&server, "Hello.", json!({"voice_id": "nobody"})).await;
    let page = client()
        .get(format!("{}/metrics", server.url))
        .send()
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    for expected in [
        "vivavoce_cache_hits_total 1",
        "vivavoce_cache_misses_total 2",
        "vivavoce_provider_first_byte_seconds_count{task=\"tts\",provider=\"local\"} 1",
        "vivavoce_provider_final_seconds_count{task=\"tts\",provider=\"local\"} 1",
        "vivavoce_provider_errors_total{provider=\"local\",kind=\"invalid_request\"} 1",
        "vivavoce_syntheses_waiting 0",
        "vivavoce_recognisers_busy 0",
    ] {
        assert!(page.contains(expected), "{expected} is missing in\n{page}");
    }
}

/// Where a server that was told to has its metrics.
fn metrics_url(server: &Server) -> String {
    let url = || {
        let log = server.log_so_far();
        let (_, url) = log.split_once("served without a token at ")?;
        Some(url.split_whitespace().next()?.to_owned())
    };
    within(PATIENCE, "nobody said where the metrics are", url)
}

#[tokio::test]
async fn metrics_may_have_an_address_of_their_own_and_are_nowhere_else_then() {
    let mut server = Server::start_logged(&[
        ("METRICS_ADDRESS", "localhost:0"),
        ("AUTH_REQUIRED", "true"),
        ("AUTH_API_SECRET", SECRET),
    ]);
    let url = metrics_url(&server);
    let ask = |method: Method, url: &str| client().request(method, url).bearer_auth(SECRET).send();
    let moved = ask(Method::GET, &format!("{}/metrics", server.url)).await;
    assert_error(moved.unwrap(), 404, "NOT_FOUND", "/metrics").await;
    let alone = client().get(&url).send().await.unwrap();
    assert_eq!(alone.status(), 200);
    assert!(alone.headers().contains_key("x-request-id"));
    let page = alone.text().await.unwrap();
    assert!(page.contains(r#"route="none",status="404"} 1"#), "{page}");
    let other = url.replace("/metrics", "/voices");
    assert_error(
        ask(Method::GET, &other).await.unwrap(),
        404,
        "NOT_FOUND",
        "/voices",
    )
    .await;
    let posted = ask(Method::POST, &url).await.unwrap();
    assert_error(posted, 405, "METHOD_NOT_ALLOWED", "GET").await;
    server.terminate();
    assert!(server.ended().success());
    assert!(client().get(&url).send().await.is_err());
}

#[test]
fn an_address_for_metrics_that_is_taken_stops_the_start_by_name() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    for (address, problem) in [
        (address.as_str(), "metrics.address: "),
        (
            "nowhere",
            "metrics.address must be an IP address and a port",
        ),
    ] {
        let output = std::process::Command::new(VIVAVOCE)
            .args(["serve", "--port", "0"])
            .env("METRICS_ADDRESS", address)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(!output.status.success());
        let said = stderr(&output);
        assert!(said.contains(problem) && said.contains(address), "{said}");
    }
}

/// A collector in this process: keeps what it is sent at `/v1/traces`.
pub struct Collector {
    /// `http://host:port`.
    pub url: String,
    received: Arc<Mutex<Vec<Bytes>>>,
    handle: ServerHandle,
}

impl Collector {
    /// One that is at work until it is dropped.
    pub fn start() -> Self {
        let received = Arc::new(Mutex::new(Vec::new()));
        let kept = web::Data::from(Arc::clone(&received));
        let (started, server) = mpsc::channel();
        std::thread::spawn(move || {
            actix_web::rt::System::new().block_on(async move {
                let take = |kept: web::Data<Mutex<Vec<Bytes>>>, body: Bytes| async move {
                    kept.lock().unwrap().push(body);
                    HttpResponse::Ok().finish()
                };
                let server = HttpServer::new(move || {
                    App::new()
                        .app_data(kept.clone())
                        .route("/v1/traces", web::post().to(take))
                });
                let server = server
                    .workers(1)
                    .disable_signals()
                    .bind("127.0.0.1:0")
                    .unwrap();
                let address = server.addrs()[0];
                let server = server.run();
                started.send((address, server.handle())).unwrap();
                server.await.unwrap();
            });
        });
        let (address, handle) = server.recv().unwrap();
        Self {
            url: format!("http://{address}"),
            received,
            handle,
        }
    }

    fn resources(&self) -> Vec<ResourceSpans> {
        let received = self.received.lock().unwrap();
        let requests = received
            .iter()
            .map(|body| ExportTraceServiceRequest::decode(body.clone()).unwrap());
        requests
            .flat_map(|request| request.resource_spans)
            .collect()
    }

    /// Who has sent spans so far.
    fn services(&self) -> Vec<String> {
        let resources = self.resources().into_iter();
        let attributes = resources.flat_map(|sent| sent.resource.unwrap_or_default().attributes);
        let names = attributes.filter(|attribute| attribute.key == "service.name");
        let mut names: Vec<_> = names
            .filter_map(|name| match name.value?.value? {
                AnyValue::StringValue(name) => Some(name),
                _ => None,
            })
            .collect();
        names.dedup();
        names
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        let resources = self.resources().into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        drop(self.handle.stop(false));
    }
}

/// An attribute of a span, as text.
fn attribute(span: &Span, key: &str) -> String {
    let found = span
        .attributes
        .iter()
        .find(|attribute| attribute.key == key);
    format!(
        "{:?}",
        found.and_then(|found| found.value.as_ref()?.value.as_ref())
    )
}

/// A session in which somebody says something and is answered.
async fn conversation(server: &Server) {
    let config = json!({"sample_rate": 16000, "audio_format": "linear16"});
    let speech = speak(server, SENTENCES[0], config)
        .await
        .bytes()
        .await
        .unwrap();
    let url = format!("{}/ws", server.url.replace("http://", "ws://"));
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    let config = json!({"type": "config", "stream_id": "talk-1",
        "stt_config": {"provider": "null"}, "tts_config": {"provider": "null", "model": ""}});
    socket
        .send(Message::text(config.to_string()))
        .await
        .unwrap();
    let silence = vec![0; 3 * 32_000];
    for chunk in speech.chunks(6400).chain(silence.chunks(6400)) {
        socket.send(Message::binary(chunk.to_vec())).await.unwrap();
    }
    let answer = json!({"type": "speak", "text": "Here is the answer."}).to_string();
    let mut answer = Some(Message::text(answer));
    while let Some(message) = socket.next().await {
        let Message::Text(text) = message.unwrap() else {
            continue;
        };
        if text.contains("turn_end")
            && let Some(answer) = answer.take()
        {
            socket.send(answer).await.unwrap();
        }
        if text.contains("tts_playback_complete") {
            break;
        }
    }
    socket.close(None).await.unwrap();
    while socket.next().await.is_some() {}
}

#[tokio::test]
async fn a_session_is_one_trace_with_a_span_per_turn_and_a_request_one_of_its_own() {
    let collector = Collector::start();
    let mut server = Server::start_logged(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url),
        ("OTEL_SERVICE_NAME", "front-desk"),
        ("NULL_ENABLED", "true"),
    ]);
    client()
        .delete(format!("{}/sessions/marker?api_key=marker", server.url))
        .send()
        .await
        .unwrap();
    conversation(&server).await;
    let page = client().get(format!("{}/metrics", server.url));
    let page = page.send().await.unwrap().text().await.unwrap();
    for counted in [
        "vivavoce_turn_first_sound_seconds_count 1",
        "vivavoce_interruptions_total 0",
        "vivavoce_backchannels_total 0",
    ] {
        assert!(page.contains(counted), "{counted} is missing in\n{page}");
    }
    // What is still kept is sent when the server ends.
    server.log();
    assert_eq!(collector.services(), ["front-desk"]);
    let spans = collector.spans();
    let named = |name: &str| {
        spans
            .iter()
            .filter(|span| span.name == name)
            .collect::<Vec<_>>()
    };
    let [session] = named("session")[..] else {
        panic!("{spans:#?}");
    };
    assert!(session.parent_span_id.is_empty());
    assert_eq!(session.kind(), SpanKind::Server);
    assert_eq!(attribute(session, "reason"), "None", "its client has gone");
    // What is done, for whom, and how long it took.
    for (name, kind, known) in [
        (
            "turn",
            SpanKind::Internal,
            &["reason", "first_text_ms", "first_sound_ms", "played_ms"][..],
        ),
        (
            "stt",
            SpanKind::Client,
            &["opened_ms", "gen_ai.provider.name", "gen_ai.operation.name"],
        ),
        (
            "tts",
            SpanKind::Client,
            &[
                "first_sound_ms",
                "gen_ai.provider.name",
                "gen_ai.operation.name",
                "cached",
            ],
        ),
        ("playout", SpanKind::Internal, &["interrupted"]),
    ] {
        let parts = named(name);
        // The last turn may have been cut off with its session.
        let complete = |part: &&&Span| known.iter().all(|key| attribute(part, key) != "None");
        let complete = parts.iter().filter(complete).count();
        assert_eq!(complete, 1, "{name}: {spans:#?}");
        for part in parts {
            assert_eq!(part.kind(), kind);
            assert_eq!(part.trace_id, session.trace_id);
            assert_eq!(part.parent_span_id, session.span_id);
            assert!(session.start_time_unix_nano <= part.start_time_unix_nano);
            assert!(part.end_time_unix_nano <= session.end_time_unix_nano);
            for key in ["stream_id", "gen_ai.conversation.id"] {
                assert!(attribute(part, key).contains("talk-1"), "{part:#?}");
            }
        }
    }
    let requests = named("request");
    let deleting = requests
        .iter()
        .find(|span| attribute(span, "http.route").contains("{stream_id}"));
    let deleting = deleting.expect("the request was not traced");
    assert_ne!(deleting.trace_id, session.trace_id);
    assert!(attribute(deleting, "http.request.method").contains("DELETE"));
    assert!(attribute(deleting, "http.response.status_code").contains("404"));
    assert_eq!(deleting.kind(), SpanKind::Server);
    let all = format!("{spans:?}");
    assert!(!all.contains("marker") && !all.contains("answer."), "{all}");
}

#[tokio::test]
async fn a_voice_that_fails_is_a_span_that_says_so() {
    let collector = Collector::start();
    let mut server = Server::start_logged(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url)]);
    let mut config = config("local", json!({}));
    config["tts_config"]["voice_id"] = json!("nobody");
    let url = format!("{}/ws", server.url.replace("http://", "ws://"));
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    let speak = json!({"type": "speak", "text": "Hello."});
    for message in [config, speak] {
        let message = Message::text(message.to_string());
        socket.send(message).await.unwrap();
    }
    while let Some(message) = socket.next().await {
        if matches!(message.unwrap(), Message::Text(text) if text.contains("\"error\"")) {
            break;
        }
    }
    socket.close(None).await.unwrap();
    while socket.next().await.is_some() {}
    server.log();
    let spans = collector.spans();
    let failed = spans.iter().find(|span| span.name == "tts").unwrap();
    let status = failed.status.clone().unwrap();
    assert_eq!(status.code, StatusCode::Error as i32, "{failed:#?}");
    assert_eq!(status.message, "invalid_request");
    assert!(attribute(failed, "voice").contains("nobody"), "{failed:#?}");
}

#[tokio::test]
async fn the_process_and_its_version_are_told_under_the_usual_names() {
    let server = Server::start();
    let page = client().get(format!("{}/metrics", server.url));
    let page = page.send().await.unwrap().text().await.unwrap();
    let value = |name: &str| {
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = line.unwrap_or_else(|| panic!("{name} is missing in\n{page}"));
        value.parse::<f64>().unwrap()
    };
    assert!(value("process_cpu_seconds_total") > 0.0);
    assert!(value("process_resident_memory_bytes") > 1e6);
    assert!(value("process_start_time_seconds") > 1.7e9);
    assert!(value("process_open_fds") > 3.0);
    assert!(value("process_max_fds") >= value("process_open_fds"));
    let build = format!(
        "vivavoce_build_info{{version=\"{}\"}}",
        env!("CARGO_PKG_VERSION")
    );
    assert!((value(&build) - 1.0).abs() < 1e-9);
    assert!(value("vivavoce_rooms").abs() < 1e-9);
}

/// What a page of metrics says, as Prometheus' own parser understands it.
struct Read(Value);

impl Read {
    async fn from(server: &Server) -> Self {
        let url = format!("{}/metrics", server.url);
        Self(crate::vendors::client("read_metrics.py", &[&url]).await)
    }

    fn families(&self) -> &Vec<Value> {
        self.0["families"].as_array().unwrap()
    }

    /// The values of the samples of this name that have these labels.
    fn values(&self, name: &str, labels: &Value) -> Vec<f64> {
        let samples = self
            .families()
            .iter()
            .flat_map(|family| family["samples"].as_array().unwrap());
        let has = |sample: &&Value| {
            let wanted = labels.as_object().unwrap();
            let all = wanted
                .iter()
                .all(|(key, value)| sample["labels"][key] == *value);
            sample["name"] == name && all
        };
        samples
            .filter(has)
            .map(|sample| sample["value"].as_f64().unwrap())
            .collect()
    }

    /// What they count together; there is one at least.
    fn count(&self, name: &str, labels: &Value) -> u64 {
        let values = self.values(name, labels);
        assert!(
            !values.is_empty(),
            "{name} {labels} is missing in {:#}",
            self.0
        );
        values.iter().sum::<f64>() as u64
    }
}

#[tokio::test]
async fn prometheus_own_parser_reads_the_metrics_and_what_they_count() {
    let server = Server::start_with(&[("NULL_ENABLED", "true")]);
    let none = json!({});
    let before = Read::from(&server).await;
    assert_eq!(before.count("vivavoce_sessions_opened_total", &none), 0);
    conversation(&server).await;
    for _ in 0..3 {
        client()
            .get(format!("{}/voices", server.url))
            .send()
            .await
            .unwrap();
    }
    client()
        .get(format!("{}/nothing", server.url))
        .send()
        .await
        .unwrap();
    let rtc = json!({"room_name": "kitchen"});
    let config = crate::session::client::config(json!({"rtc": rtc}));
    let session = crate::session::client::Session::open(&server, config).await;

    let during = Read::from(&server).await;
    let media_type = during.0["media_type"].as_str().unwrap();
    assert!(
        media_type.starts_with("application/openmetrics-text"),
        "{media_type}"
    );
    assert_eq!(during.count("vivavoce_sessions", &none), 1);
    assert_eq!(during.count("vivavoce_sessions_opened_total", &none), 2);
    assert_eq!(during.count("vivavoce_sessions_closed_total", &none), 1);
    assert_eq!(during.count("vivavoce_turns_total", &none), 1);
    assert_eq!(
        during.count("vivavoce_turn_first_sound_seconds_count", &none),
        1
    );
    assert_eq!(during.count("vivavoce_rooms", &none), 1);
    assert_eq!(during.count("vivavoce_room_participants", &none), 1);
    let voices = json!({"route": "/voices"});
    assert_eq!(during.count("vivavoce_http_requests_total", &voices), 3);
    assert!(during.count("vivavoce_http_request_duration_seconds_count", &none) >= 6);
    session.close().await;
    let is_left = async {
        loop {
            let after = Read::from(&server).await;
            if after.count("vivavoce_sessions", &none) == 0 {
                return after;
            }
        }
    };
    let after = tokio::time::timeout(PATIENCE, is_left).await.unwrap();
    assert_eq!(after.count("vivavoce_sessions_closed_total", &none), 2);

    for family in after.families() {
        let name = family["name"].as_str().unwrap();
        assert!(
            !family["help"].as_str().unwrap().is_empty(),
            "{name} has no help"
        );
        assert_ne!(family["type"], "unknown", "{name}");
        // Counters never go back.
        for sample in family["samples"].as_array().unwrap() {
            let sample_name = sample["name"].as_str().unwrap();
            if family["type"] == "counter" {
                let earlier = during.values(sample_name, &sample["labels"]);
                let now = sample["value"].as_f64().unwrap();
                assert!(
                    earlier.iter().all(|earlier| *earlier <= now),
                    "{sample_name}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_collector_that_is_away_costs_a_warning_and_nothing_else() {
    let mut server = Server::start_logged(&[(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "http://user:marker@127.0.0.1:1",
    )]);
    let answer = speak(&server, "Hello.", json!({})).await;
    assert_eq!(answer.status(), 200);
    let log = server.log();
    assert_eq!(
        log.matches("the collector does not accept traces").count(),
        1,
        "{log}"
    );
    assert!(!log.contains("marker"), "{log}");
}

#[tokio::test]
async fn a_request_continues_the_trace_of_its_caller() {
    let collector = Collector::start();
    let mut server = Server::start_logged(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url)]);
    let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let unsampled = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let bad = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
    for (path, parents) in [
        ("/voices", vec![good]),
        ("/sessions", vec![bad]),
        ("/healthz", vec![good, good]),
        ("/docs", vec![unsampled]),
    ] {
        let mut request = client().get(format!("{}{path}", server.url));
        for parent in parents {
            request = request.header("traceparent", parent);
        }
        assert_eq!(request.send().await.unwrap().status(), 200);
    }
    server.log();
    let spans = collector.spans();
    let of = |route: &str| {
        let route = format!("\"{route}\"");
        let found = spans
            .iter()
            .find(|span| attribute(span, "http.route").contains(&route));
        found.map(|span| (span.trace_id.clone(), span.parent_span_id.clone()))
    };
    let trace = u128::from_str_radix(&good[3..35], 16).unwrap();
    let parent = u64::from_str_radix(&good[36..52], 16).unwrap();
    let caller = (trace.to_be_bytes().to_vec(), parent.to_be_bytes().to_vec());
    assert_eq!(of("/voices"), Some(caller.clone()));
    for path in ["/sessions", "/healthz"] {
        let (trace, parent) = of(path).unwrap();
        assert!(
            trace != caller.0 && parent.is_empty(),
            "{path} {trace:?} {parent:?}"
        );
    }
    assert_eq!(of("/docs"), None, "its caller does not want it traced");
}

#[tokio::test]
async fn log_lines_of_a_session_carry_the_id_of_its_request() {
    let mut server = Server::start_logged(&[
        ("LOG_LEVEL", "debug"),
        ("LOG_FORMAT", "json"),
        ("SOCKET_CONFIG_TIMEOUT_SECONDS", "0.2"),
    ]);
    let url = format!("{}/ws", server.url.replace("http://", "ws://"));
    let mut request = url.into_client_request().unwrap();
    let id = "conversation-7".parse().unwrap();
    request.headers_mut().insert("x-request-id", id);
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    while socket.next().await.is_some() {}
    let log = server.log();
    for said in ["a session closes its socket", "a socket has closed"] {
        let line = log.lines().find(|line| line.contains(said));
        let line = line.unwrap_or_else(|| panic!("{said:?} is missing in\n{log}"));
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["span"]["name"], "session", "{line}");
        assert_eq!(line["span"]["request_id"], "conversation-7", "{line}");
    }
}
