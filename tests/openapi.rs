//! The interface as it describes itself: every example is answered as it says, nothing answers that is not described,
//! other people's generators and fuzzers agree with it, and what a session tells fits the schemas.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use futures_util::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::auth::keys::EC;
use crate::auth::service::{AuthService, Reply};
use crate::auth::{HOUSE, KeyFile, OF_A, asking, tenants};
use crate::book::run::body_schema;
use crate::harness::*;
use crate::rooms::ask;
use crate::telephone::Exchange;
use crate::telephone::rig::sipp::{Scenario, Sipp};

/// A document that the server serves.
pub async fn described(server: &Server, path: &str) -> Value {
    let answer = client()
        .get(format!("{}{path}", server.url))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    answer.json().await.unwrap()
}

fn committed(file: &str) -> String {
    std::fs::read_to_string(format!("{}/docs/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Every operation with its path and method.
pub fn operations(api: &Value) -> Vec<(String, Method, Value)> {
    let mut all = Vec::new();
    for (path, item) in api["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let method = method.to_uppercase().parse().unwrap();
            all.push((path.clone(), method, operation.clone()));
        }
    }
    all
}

/// The path of an operation with the examples of its parameters.
pub fn example_url(server: &Server, path: &str, operation: &Value) -> reqwest::Url {
    let mut path = path.to_owned();
    let mut query = Vec::new();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap();
        let value = &parameter["example"];
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        match parameter["in"].as_str().unwrap() {
            "path" => path = path.replace(&format!("{{{name}}}"), &value),
            "header" => {}
            _ => query.push((name.to_owned(), value)),
        }
    }
    let mut url = reqwest::Url::parse(&format!("{}{path}", server.url)).unwrap();
    if !query.is_empty() {
        url.query_pairs_mut().extend_pairs(query);
    }
    url
}

#[tokio::test]
async fn every_example_is_answered_as_it_says() {
    let server = Server::start();
    let api = described(&server, "/openapi.json").await;
    let mut sent = 0;
    for (path, method, operation) in operations(&api) {
        let examples = operation["x-examples"].as_object().unwrap();
        assert!(!examples.is_empty(), "{method} {path} has no example");
        for (name, status) in examples {
            // They need a gateway, see below.
            if CALLS.contains(&path.as_str()) && *status == 200 {
                continue;
            }
            let mut request =
                client().request(method.clone(), example_url(&server, &path, &operation));
            if let Some(content) = operation.pointer("/requestBody/content/application~1json") {
                request = request.json(&content["examples"][name]["value"]);
            }
            let answer = request.send().await.unwrap();
            let got = answer.status().as_u16();
            assert_eq!(json!(got), *status, "{method} {path}: {name}");
            assert!(
                operation["responses"].get(got.to_string()).is_some(),
                "{method} {path}: {got}"
            );
            sent += 1;
        }
    }
    assert!(sent > 50, "{sent}");
}

/// The paths whose examples need somebody who answers.
const CALLS: [&str; 2] = ["/sip/call", "/sip/transfer"];

#[tokio::test]
async fn the_examples_of_the_telephone_are_answered_200_where_there_is_a_gateway() {
    let answers = Scenario::answers()
        .transfers(&["100 Trying", "200 OK"])
        .ended();
    let mut gateway = Sipp::start(answers).await;
    // The caller's own: it says nothing.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let address = gateway.address();
    let exchange = Exchange::with(&[("SIP_OUTBOUND_ADDRESS", &address)]);
    let api = described(&exchange.server, "/openapi.json").await;
    let example = |path: &str, name: &str| {
        let operation = &api["paths"][path]["post"];
        assert_eq!(operation["x-examples"][name], 200, "{path}: {name}");
        operation["requestBody"]["content"]["application/json"]["examples"][name]["value"].clone()
    };
    let asked = async |path: &str, body: Value| {
        let (status, answer) = ask(&exchange.server, Method::POST, path, None, &body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        assert_eq!(answer["status"], "initiated", "{path}: {answer}");
        answer
    };
    let mut through = example("/sip/call", "through-the-caller's-gateway");
    through["sip"]["outbound_address"] = json!(silent);
    through["room_name"] = json!("elsewhere");
    asked("/sip/call", through).await;
    let call = asked(
        "/sip/call",
        example("/sip/call", "through-the-server's-gateway"),
    )
    .await;
    exchange
        .answered(call["sip_call_id"].as_str().unwrap())
        .await;
    asked("/sip/transfer", example("/sip/transfer", "transfer")).await;
    gateway.passed().await;
}

#[test]
fn every_webhook_is_described_with_a_body_that_its_schema_takes() {
    let api: Value = serde_json::from_str(&committed("openapi.json")).unwrap();
    let webhooks = api["webhooks"].as_object().unwrap();
    let names: Vec<&str> = webhooks.keys().map(String::as_str).collect();
    let expected = [
        "call.beep",
        "call.classified",
        "call.status",
        "hook",
        "queue.status",
        "recording.failed",
        "recording.stored",
        "session.ended",
        "transfer.status",
    ];
    assert_eq!(names, expected);
    for (name, item) in webhooks {
        let content = &item["post"]["requestBody"]["content"]["application/json"];
        let reference = content["schema"]["$ref"].as_str().unwrap();
        let schema = body_schema(reference.rsplit('/').next().unwrap());
        let validator = jsonschema::draft202012::new(&schema).unwrap();
        if let Err(error) = validator.validate(&content["example"]) {
            panic!("{name}: {error}");
        }
    }
}

#[tokio::test]
async fn who_needs_a_token_is_described() {
    let secret = "house-0123456789-0123456789-012345";
    let server = Server::start_with(&[
        ("AUTH_REQUIRED", "true"),
        ("AUTH_API_SECRET", secret),
        ("AUTH_SOCKET", "required"),
    ]);
    let api = described(&server, "/openapi.json").await;
    let mut locked = 0;
    for (path, method, operation) in operations(&api) {
        // The signature of what is posted lets it in.
        if path == "/rtc/webhook" {
            continue;
        }
        let url = example_url(&server, &path, &operation);
        let ask = |token: Option<&str>| {
            let request = client().request(method.clone(), url.clone());
            let request = match token {
                Some(token) => request.bearer_auth(token),
                None => request,
            };
            request.json(&json!({})).send()
        };
        let answer = ask(None).await.unwrap();
        let needed = operation.get("security").is_some();
        assert_eq!(answer.status() == 401, needed, "{method} {path}");
        if needed {
            locked += 1;
            let refusal = &operation["responses"]["401"];
            for header in ["WWW-Authenticate", "x-request-id"] {
                assert!(answer.headers().contains_key(header), "{method} {path}");
                assert!(refusal["headers"][header].is_object(), "{method} {path}");
            }
            if method != Method::HEAD {
                assert_error(answer, 401, "missing_auth_header", "").await;
            }
        }
        assert_ne!(ask(Some(secret)).await.unwrap().status(), 401, "{path}");
    }
    assert!(locked > 15, "{locked}");
}

#[tokio::test]
async fn methods_that_are_not_described_are_not_there() {
    let server = Server::start();
    let api = described(&server, "/openapi.json").await;
    for (path, item) in api["paths"].as_object().unwrap() {
        let methods: BTreeSet<String> = item
            .as_object()
            .unwrap()
            .keys()
            .map(|name| name.to_uppercase())
            .collect();
        let (_, operation) = item.as_object().unwrap().iter().next().unwrap();
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] {
            if methods.contains(method) {
                continue;
            }
            let url = example_url(&server, path, operation);
            let answer = client()
                .request(method.parse().unwrap(), url)
                .send()
                .await
                .unwrap();
            assert_eq!(answer.status(), 405, "{method} {path}");
            let allowed = answer.headers()["allow"].to_str().unwrap();
            let allowed: BTreeSet<String> = allowed.split(", ").map(str::to_owned).collect();
            assert_eq!(allowed, methods, "{path}");
        }
    }
}

#[tokio::test]
async fn what_is_served_and_printed_is_what_is_committed() {
    let server = Server::start();
    for (path, file, arguments) in [
        ("/openapi.json", "openapi.json", &["openapi"][..]),
        (
            "/schemas/socket.json",
            "schemas/socket.json",
            &["openapi", "--socket"][..],
        ),
    ] {
        let answer = client()
            .get(format!("{}{path}", server.url))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.text().await.unwrap(), committed(file));
        assert_eq!(stdout(&vivavoce(arguments)), committed(file));
    }
}

/// The schema of what we tell, with no room for fields that it does not name.
fn strict_schema() -> jsonschema::Validator {
    let mut schema: Value = serde_json::from_str(&committed("schemas/socket.json")).unwrap();
    for definition in schema["$defs"].as_object_mut().unwrap().values_mut() {
        if definition.get("properties").is_some() {
            definition["additionalProperties"] = json!(false);
        }
    }
    let fields = schema.as_object_mut().unwrap();
    fields.remove("anyOf");
    fields.insert("$ref".to_owned(), json!("#/$defs/ServerMessage"));
    jsonschema::draft202012::new(&schema).unwrap()
}

#[tokio::test]
async fn what_a_session_tells_fits_the_schema() {
    let server = Server::start();
    let heard = speak(
        &server,
        "Please call me back on Monday morning.",
        json!({"sample_rate": 16000}),
    )
    .await;
    let heard = heard.bytes().await.unwrap();
    let url = server.url.replacen("http", "ws", 1) + "/ws";
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    for message in [
        json!({"type": "speak", "text": "too early"}),
        json!({"type": "config", "stt_config": {"provider": "local"}, "tts_config": {"provider": "local", "model": ""}}),
        json!({"type": "speak", "text": "One.", "id": "1"}),
        json!({"type": "speak", "text": ""}),
        json!({"type": "dance"}),
        json!({"type": "send_message", "message": "m", "role": "user"}),
    ] {
        socket
            .send(Message::text(message.to_string()))
            .await
            .unwrap();
    }
    for chunk in heard.chunks(3200).chain([[0; 3200].as_slice()].repeat(30)) {
        socket.send(Message::binary(chunk.to_vec())).await.unwrap();
    }
    let schema = strict_schema();
    let mut awaited: BTreeSet<&str> = [
        "ready",
        "stt_result",
        "vad_event",
        "tts_started",
        "tts_playback_complete",
        "tts_interrupted",
        "error",
    ]
    .into();
    let mut speech_final = false;
    while !awaited.is_empty() || !speech_final {
        let next = tokio::time::timeout(PATIENCE, socket.next()).await;
        let frame = next
            .unwrap_or_else(|_| panic!("{awaited:?} did not come"))
            .unwrap()
            .unwrap();
        let Message::Text(text) = frame else { continue };
        let event: Value = serde_json::from_str(&text).unwrap();
        if let Err(error) = schema.validate(&event) {
            panic!("{event}: {error}");
        }
        if event["type"] == "tts_playback_complete" && event["id"] == "1" {
            let long = json!({"type": "speak", "text": SENTENCES.join(" "), "id": "2"});
            socket.send(Message::text(long.to_string())).await.unwrap();
        }
        if event["type"] == "tts_started" && event["id"] == "2" {
            let clear = json!({"type": "clear"});
            socket.send(Message::text(clear.to_string())).await.unwrap();
        }
        speech_final |= event["is_speech_final"] == true && event["turn_transcript"].is_string();
        awaited.remove(event["type"].as_str().unwrap());
    }
}

fn clients(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// Runs a program of others to its end; `./test` installs them.
fn run_client(program: &Path, folder: &Path, arguments: &[&str]) -> String {
    assert!(
        program.exists(),
        "{} is missing; ./test installs it",
        program.display()
    );
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        stdout(&output),
        stderr(&output)
    );
    stdout(&output)
}

/// Runs schemathesis against a server: 5 examples per operation, or 300 with `VIVAVOCE_LONG=1`. Its summary is shown by
/// `--nocapture`.
///
/// Of a locked server it counts 27 cases as skipped: the questions without a token and with two bad ones that it asks of each
/// of the nine operations that succeed. They belong to the check of the first case, and have none of their own.
fn fuzz(server: &Server, token: Option<&str>) {
    let folder = tempfile::tempdir().unwrap();
    let long = is_long();
    let hooks = clients("tests/clients");
    let url = format!("{}/openapi.json", server.url);
    let settings = clients("tests/clients/schemathesis.toml");
    let mut command = Command::new(clients(".clients/python/bin/schemathesis"));
    command
        .args(["--config-file", settings.to_str().unwrap(), "run", &url])
        .args(["--max-examples", if long { "300" } else { "5" }])
        .args(["--seed", "1", "--continue-on-failure", "--no-color"])
        .env("SCHEMATHESIS_HOOKS", "schemathesis_hooks")
        .env("PYTHONPATH", hooks)
        .current_dir(folder.path());
    if let Some(token) = token {
        let header = format!("Authorization: Bearer {token}");
        command.args(["--header", &header]).env("LOCKED", "1");
    }
    let output = command.output().expect("./test installs schemathesis");
    println!("{}", stdout(&output));
    assert!(output.status.success(), "{}", stderr(&output));
}

/// Of a server as it is started, and of one where everything is configured and locked: another one each day.
#[test]
fn a_fuzzer_finds_nothing_that_is_not_described() {
    for fuzz in some_of(&[fuzz_open as fn(), fuzz_locked], 1) {
        fuzz();
    }
}

fn fuzz_open() {
    fuzz(&Server::start(), None);
}

fn fuzz_locked() {
    let file = KeyFile::new(&EC.pkcs8);
    // It knows nobody: whoever comes in does so by a secret.
    let service = AuthService::start(|_| Reply::Answer(401, String::new()));
    let tenants = tenants();
    let server = asking(
        &service,
        &file.path(),
        &[
            ("AUTH_API_SECRET", HOUSE),
            ("AUTH_API_SECRETS_JSON", &tenants),
            ("AUTH_SOCKET", "required"),
            ("AUTH_CACHE_SECONDS", "60"),
            ("LIMITS_REQUESTS_PER_SECOND", "1000000"),
            ("LIMITS_SESSIONS_PER_TENANT", "1000"),
            ("SERVER_CORS_ORIGINS", "https://pages.example"),
            ("SERVER_TRUSTED_PROXIES", "127.0.0.0/8"),
            ("SIP_OUTBOUND_ADDRESS", "sip.example:5060"),
            ("SIP_HOOK_SECRET", "0123456789-0123456789"),
            (
                "SIP_HOOKS_JSON",
                r#"[{"host": "a.example", "url": "https://a.example/"}]"#,
            ),
        ],
    );
    fuzz(&server, Some(OF_A));
}

fn socket_url(server: &Server) -> String {
    server.url.replacen("http", "ws", 1) + "/ws"
}

#[test]
fn types_that_were_generated_for_python_drive_a_session() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let schema = clients("docs/schemas/socket.json");
    run_client(
        &clients(".clients/python/bin/datamodel-codegen"),
        folder.path(),
        &[
            "--input",
            schema.to_str().unwrap(),
            "--input-file-type",
            "jsonschema",
            "--output",
            "socket_messages.py",
            "--output-model-type",
            "pydantic_v2.BaseModel",
            "--disable-timestamp",
        ],
    );
    let script = clients("tests/clients/generated_session.py");
    let came = run_client(
        &clients(".clients/python/bin/python"),
        folder.path(),
        &[script.to_str().unwrap(), &socket_url(&server), "."],
    );
    assert_eq!(
        came.lines().collect::<Vec<_>>(),
        ["ready", "tts_started", "tts_playback_complete"]
    );
}

#[test]
fn types_that_were_generated_for_typescript_drive_a_session() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let modules = clients(".clients/typescript/node_modules");
    std::os::unix::fs::symlink(&modules, folder.path().join("node_modules")).unwrap();
    std::fs::write(folder.path().join("package.json"), r#"{"type": "module"}"#).unwrap();
    std::fs::copy(
        clients("tests/clients/typescript/session.ts"),
        folder.path().join("session.ts"),
    )
    .unwrap();
    let schema = clients("docs/schemas/socket.json");
    let tool = |name: &str| modules.join(".bin").join(name);
    let generate = [
        "-i",
        schema.to_str().unwrap(),
        "-o",
        "socket_messages.d.ts",
        "--unreachableDefinitions",
    ];
    run_client(&tool("json2ts"), folder.path(), &generate);
    let check = [
        "--strict",
        "--target",
        "es2022",
        "--module",
        "nodenext",
        "--types",
        "node",
        "session.ts",
    ];
    run_client(&tool("tsc"), folder.path(), &check);
    let came = run_client(
        &which("node"),
        folder.path(),
        &["session.js", &socket_url(&server)],
    );
    assert_eq!(
        came.lines().collect::<Vec<_>>(),
        ["ready", "tts_started", "tts_playback_complete"]
    );
}

/// A generator, its arguments, and what it makes.
type Generator = (&'static str, &'static str, &'static str);

const FOR_TYPESCRIPT: [Generator; 2] = [
    ("openapi-typescript", "openapi.json -o paths.ts", "paths.ts"),
    (
        "openapi-ts",
        "-i openapi.json -o fetch -c @hey-api/client-fetch",
        "fetch/index.ts fetch/client.gen.ts",
    ),
];
const FOR_PYTHON: [Generator; 2] = [
    (
        "openapi-python-client",
        "generate --path openapi.json --output-path client --meta none",
        "client",
    ),
    (
        "datamodel-codegen",
        "--input openapi.json --input-file-type openapi --output models.py --use-annotated \
         --set-default-enum-member --output-model-type pydantic_v2.BaseModel --disable-timestamp",
        "models.py",
    ),
];

/// Generators that people use, two for each language, of which each run takes one. What they make is compiled as strictly as it
/// can be.
#[test]
fn what_generators_make_of_the_description_compiles() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(
        clients("docs/openapi.json"),
        folder.path().join("openapi.json"),
    )
    .unwrap();
    let modules = clients(".clients/openapi-node/node_modules");
    std::os::unix::fs::symlink(&modules, folder.path().join("node_modules")).unwrap();
    let node = |name: &str, arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        run_client(&modules.join(".bin").join(name), folder.path(), &arguments);
    };
    let python = |name: &str, arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        run_client(
            &clients(".clients/openapi/bin").join(name),
            folder.path(),
            &arguments,
        );
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut strict = "--strict --noEmit --skipLibCheck --target es2022 --module esnext \
                --moduleResolution bundler --lib es2022,dom,dom.iterable"
                .to_owned();
            for (name, arguments, files) in some_of(&FOR_TYPESCRIPT, 1) {
                node(name, arguments);
                strict = format!("{strict} {files}");
            }
            node("tsc", &strict);
        });
        let mut checked = "--ignore-missing-imports".to_owned();
        for (name, arguments, files) in some_of(&FOR_PYTHON, 1) {
            python(name, arguments);
            checked = format!("{checked} {files}");
        }
        python("mypy", &checked);
    });
}
