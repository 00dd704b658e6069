//! The pages of reference that are made from what the program says of itself: messages, errors, REST, webhooks, metrics
//! and the command line. `UPDATE_DOCS=1` writes them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::assert_page;
use super::run::text_of;
use crate::examples::in_repository;
use crate::harness::*;

fn document(name: &str) -> Value {
    serde_json::from_str(&text_of(&in_repository(name))).unwrap()
}

/// A text in a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

fn described(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or_default()
}

/// The definition that a reference names, and its name.
fn referred<'a>(schema: &'a Value, definitions: &'a Value) -> Option<(&'a str, &'a Value)> {
    let alternatives = schema["anyOf"].as_array().into_iter().flatten();
    let reference = std::iter::once(schema)
        .chain(alternatives)
        .find_map(|schema| schema["$ref"].as_str())?;
    let name = reference.rsplit('/').next()?;
    Some((name, &definitions[name]))
}

/// The values of an enumeration.
fn values(schema: &Value) -> Option<Vec<String>> {
    let listed = schema["enum"]
        .as_array()
        .map(|values| values.iter().collect::<Vec<_>>());
    let described = schema["oneOf"].as_array().and_then(|values| {
        let constants = values.iter().map(|value| value.get("const"));
        constants.collect::<Option<Vec<_>>>()
    });
    let values = listed.or(described)?;
    let values = values
        .into_iter()
        .filter(|value| value.as_str().is_some_and(|value| !value.is_empty()));
    Some(
        values
            .map(|value| format!("`{}`", value.as_str().unwrap_or_default()))
            .collect(),
    )
}

/// What a field holds, in words.
fn kind(schema: &Value, definitions: &Value) -> String {
    if let Some((name, definition)) = referred(schema, definitions) {
        return match values(definition) {
            Some(values) => values.join(", "),
            None if definition.get("properties").is_some() => {
                format!("[{name}](#{})", name.to_lowercase())
            }
            None => kind(definition, definitions),
        };
    }
    if let Some(values) = values(schema) {
        return values.join(", ");
    }
    if let Some(value) = schema["const"].as_str() {
        return format!("`{value}`");
    }
    let name = match &schema["type"] {
        Value::Array(names) => names
            .iter()
            .filter_map(Value::as_str)
            .find(|name| *name != "null"),
        name => name.as_str(),
    };
    let bound = |name: &str| schema[name].as_f64().map(|value| format!("{value}"));
    let bounds = match (bound("minimum"), bound("maximum")) {
        (Some(least), Some(most)) => format!(" {least}–{most}"),
        (Some(least), None) if least != "0" => format!(" from {least}"),
        (None, Some(most)) => format!(" to {most}"),
        _ => String::new(),
    };
    match name {
        Some("array") => format!("array of {}", kind(&schema["items"], definitions)),
        Some("string") => "text".to_owned(),
        Some(name) => format!("{name}{bounds}"),
        None => "anything".to_owned(),
    }
}

/// The table of an object's fields, without `type` and `seq`, which all messages have.
fn fields(object: &Value, definitions: &Value) -> String {
    let mut rows = String::new();
    let required = object["required"].as_array();
    for (name, field) in object["properties"].as_object().into_iter().flatten() {
        if ["type", "seq"].contains(&name.as_str()) {
            continue;
        }
        let needed =
            required.is_some_and(|required| required.contains(&Value::from(name.as_str())));
        let default = match &field["default"] {
            Value::Null if needed => "*required*".to_owned(),
            Value::Null => "–".to_owned(),
            value => format!("`{value}`"),
        };
        let meaning = match described(field) {
            "" => referred(field, definitions).map_or("", |(_, definition)| described(definition)),
            says => says,
        };
        let _ = writeln!(
            rows,
            "| `{name}` | {} | {default} | {} |",
            kind(field, definitions),
            cell(meaning)
        );
    }
    if rows.is_empty() {
        return "It has no other fields.\n".to_owned();
    }
    format!("| field | holds | default | meaning |\n|---|---|---|---|\n{rows}")
}

/// An example as it is written: each has a line of its own.
fn example_as_written<'a>(text: &'a str, side: &str, kind: &str) -> &'a str {
    let of_side = text.split_once(&format!("\n  \"{side}\": {{")).unwrap().1;
    let begins = format!("    \"{kind}\": ");
    let line = of_side.lines().find_map(|line| line.strip_prefix(&begins));
    line.unwrap_or_default().trim_end_matches(',')
}

/// A sentence that begins with a capital letter.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters
        .next()
        .map(|letter| letter.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

#[test]
fn the_page_of_messages_says_what_the_schema_does() {
    let schema = document("docs/schemas/socket.json");
    let examples = document("tests/book/messages.json");
    let written = text_of(&in_repository("tests/book/messages.json"));
    let definitions = &schema["$defs"];
    let mut page = String::from(
        "# Messages of the socket\n\nGenerated from [the JSON Schema](../schemas/socket.json) and from the code behind it. Every text message is a \
         JSON object with `type`; binary messages are sound. What the messages *do*, and in which order, is in \
         [the protocol](../protocol.md). `null` means absent. A field that is not named here has no effect, and a `warning` \
         says so.\n\nWith `\"resume\": true` in `config`, every message of the server carries `seq`, which grows.\n",
    );
    let mut used = 0;
    for (side, title) in [("client", "From the client"), ("server", "From the server")] {
        let _ = writeln!(page, "\n## {title}");
        let group = if side == "client" {
            "ClientMessage"
        } else {
            "ServerMessage"
        };
        for reference in definitions[group]["oneOf"].as_array().unwrap() {
            let (_, message) = referred(reference, definitions).unwrap();
            let kind = message["properties"]["type"]["const"].as_str().unwrap();
            let example = &examples[side][kind];
            assert!(
                example.is_object(),
                "tests/book/messages.json has no example of {side} {kind}"
            );
            used += 1;
            let says = described(message);
            let says = says.strip_prefix(&format!("`{kind}`: ")).unwrap_or(says);
            let _ = write!(
                page,
                "\n### `{kind}`\n\n{}\n\n```json {side}\n{}\n```\n\n{}",
                sentence(says),
                example_as_written(&written, side, kind),
                fields(message, definitions)
            );
        }
    }
    let given = |side: &str| examples[side].as_object().unwrap().len();
    assert_eq!(
        given("client") + given("server"),
        used,
        "examples of messages that there are not"
    );
    page.push_str("\n## Objects in messages\n");
    for (name, object) in definitions.as_object().unwrap() {
        if object.get("properties").is_none() || name.ends_with("Message") {
            continue;
        }
        let _ = write!(
            page,
            "\n### {name}\n\n{}\n\n{}",
            described(object),
            fields(object, definitions)
        );
    }
    page.push_str("\n## Words in messages\n");
    for (name, words) in definitions.as_object().unwrap() {
        let Some(words) = words["oneOf"]
            .as_array()
            .filter(|words| words[0].get("const").is_some())
        else {
            continue;
        };
        if name == "ErrorCode" {
            continue;
        }
        let _ = writeln!(
            page,
            "\n### {name}\n\n{}\n\n| word | meaning |\n|---|---|",
            described(&definitions[name])
        );
        for word in words {
            let _ = writeln!(
                page,
                "| `{}` | {} |",
                word["const"].as_str().unwrap(),
                cell(described(word))
            );
        }
    }
    assert_page("docs/reference/messages.md", &page);
}

/// The cause and the remedy of a code: the first paragraph of its description, and the others.
fn cause_and_remedy(code: &Value) -> (String, String) {
    let name = code["const"].as_str().unwrap();
    let (cause, remedy) = described(code)
        .split_once("\n\n")
        .unwrap_or_else(|| panic!("{name} has no remedy"));
    (cell(cause), cell(remedy))
}

#[test]
fn the_page_of_errors_says_what_the_code_does() {
    let api = document("docs/openapi.json");
    let schema = document("docs/schemas/socket.json");
    let mut statuses: BTreeMap<&str, std::collections::BTreeSet<&str>> = BTreeMap::new();
    let operations = api["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|item| item.as_object().unwrap().values());
    let responses = operations.flat_map(|operation| operation["responses"].as_object().unwrap());
    let shared = [
        ("405", "MethodNotAllowed"),
        ("404", "NotFound"),
        ("404", "ModelNotFound"),
    ];
    let shared = shared.map(|(status, name)| (status, &api["components"]["responses"][name]));
    for (status, response) in responses
        .map(|(status, response)| (status.as_str(), response))
        .chain(shared)
    {
        let codes = response["description"].as_str().unwrap_or_default();
        for code in codes.split('`').skip(1).step_by(2) {
            statuses.entry(code).or_default().insert(status);
        }
    }
    let mut page = String::from(
        "# Errors\n\nGenerated from the code. Programs read the code, people the `message`, which names the field or gives the \
         vendor's own words. Every answer has an `x-request-id`; the same id is in the server's log.\n\n## REST\n\n\
         ```json of=\"ErrorBody\"\n{\"error\": \"INVALID_REQUEST\", \"message\": \"tts_config.sample_rate: must be from 8000 to 48000\"}\n```\n\n\
         | code | status | cause | what to do |\n|---|---|---|---|\n",
    );
    for code in api["components"]["schemas"]["Code"]["oneOf"]
        .as_array()
        .unwrap()
    {
        let name = code["const"].as_str().unwrap();
        let (cause, remedy) = cause_and_remedy(code);
        let status: Vec<&str> = statuses[name].iter().copied().collect();
        let _ = writeln!(
            page,
            "| `{name}` | {} | {cause} | {remedy} |",
            status.join(", ")
        );
    }
    page.push_str(
        "\nOpenAI's paths (below `/v1/`) answer [errors in OpenAI's shape](../openai.md).\n\n## Socket\n\n\
         ```json server\n{\"type\": \"error\", \"code\": \"not_configured\", \"message\": \"send config first\", \"fatal\": false, \"in_reply_to\": \"speak\"}\n```\n\n\
         With `fatal` the session ends. `in_reply_to` is the `type` of the message that was refused, `id` the utterance.\n\n\
         | code | cause | what to do |\n|---|---|---|\n",
    );
    for code in schema["$defs"]["ErrorCode"]["oneOf"].as_array().unwrap() {
        let (cause, remedy) = cause_and_remedy(code);
        let _ = writeln!(
            page,
            "| `{}` | {cause} | {remedy} |",
            code["const"].as_str().unwrap()
        );
    }
    page.push_str("\nWarnings (`warning`) and failed transfers (`sip_transfer_error`) have [codes of their own](messages.md#words-in-messages).\n\n");
    page.push_str(CLOSE_CODES);
    assert_page("docs/reference/errors.md", &page);
}

const CLOSE_CODES: &str = "## Close codes of the socket

| code | cause | what to do |
|---|---|---|
| 1000 | the session is over: by you, by `DELETE /sessions/{stream_id}`, or because its room has emptied | nothing |
| 1001 | the server stops | connect again; with `resume`, go on with the session |
| 1002, 1007 | frames that RFC 6455 forbids; text that is not UTF-8 | mend the client |
| 1008 | the token has expired or was revoked, or what was sent is not allowed | get a new token |
| 1009 | a text message over 4 MiB, or a binary one over 1 MiB | send smaller ones |
| 1011 | the server failed, or its room did | connect again; read the log |
| 1012 | the server that runs the session cannot be reached from this one | resume a little later |
| 1013 | too much is queued: the client reads too slowly, or the server is full | read without pausing; connect again later |
| 4404 | the session cannot be resumed | begin a new one with `config` |
| 4408 | no `config` within 30 s, or a message that took longer than that | send `config` first |
| 4409 | nothing was heard from the client for 60 s | answer pings; send sound or silence |
| 4410 | the session goes on at another socket | nothing: you have resumed it |
";

#[test]
fn the_page_of_rest_says_what_the_description_does() {
    let api = document("docs/openapi.json");
    let definitions = &api["components"]["schemas"];
    let mut page = String::from(
        "# REST\n\nGenerated from [the OpenAPI 3.1 description](../openapi.json), which a running server serves at `GET /openapi.json` \
         and shows to people at `GET /docs`. Rules that concern several paths are in [the protocol](../protocol.md#4-rest), codes \
         in [Errors](errors.md). `HEAD` works wherever `GET` does. Make a typed client with your language's generator:\n\n\
         ```sh\nvivavoce openapi > openapi.json\n```\n",
    );
    for tag in api["tags"].as_array().unwrap() {
        let name = tag["name"].as_str().unwrap();
        if name == "Webhooks" {
            continue;
        }
        let _ = writeln!(page, "\n## {name}\n\n{}", described(tag));
        for (path, item) in api["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                if operation["tags"][0] != name || method == "head" {
                    continue;
                }
                page.push_str(&operation_page(path, method, operation, definitions));
            }
        }
    }
    page.push_str("\n## Objects\n");
    for (name, object) in definitions.as_object().unwrap() {
        if object.get("properties").is_some()
            && (!name.ends_with("Webhook") || name == "WaitingWebhook")
            && !name.starts_with("HookNot")
        {
            let _ = write!(
                page,
                "\n### {name}\n\n{}\n\n{}",
                described(object),
                fields(object, definitions)
            );
        }
    }
    assert_page("docs/reference/rest.md", &page);
}

fn operation_page(path: &str, method: &str, operation: &Value, definitions: &Value) -> String {
    let mut page = String::new();
    let summary = operation["summary"].as_str().unwrap_or_default();
    let _ = write!(
        page,
        "\n### `{} {path}`\n\n{summary}.",
        method.to_uppercase()
    );
    match operation["description"].as_str() {
        Some(says) => _ = writeln!(page, " {says}\n"),
        None => page.push_str("\n\n"),
    }
    let parameters = operation["parameters"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    if !parameters.is_empty() {
        page.push_str("| parameter | in | holds | meaning |\n|---|---|---|---|\n");
        for parameter in parameters {
            let text = |name: &str| parameter[name].as_str().unwrap_or_default();
            let holds = kind(&parameter["schema"], definitions);
            let _ = writeln!(
                page,
                "| `{}` | {} | {holds} | {} |",
                text("name"),
                text("in"),
                cell(text("description"))
            );
        }
        page.push('\n');
    }
    let content = &operation["requestBody"]["content"]["application/json"];
    if let Some((name, schema)) = referred(&content["schema"], definitions) {
        let wanted = |status: &Value| status.as_u64().is_some_and(|status| status < 300);
        let examples = operation["x-examples"].as_object().into_iter().flatten();
        let example = examples
            .filter(|(_, status)| wanted(status))
            .map(|(name, _)| name)
            .next();
        let example = example.or_else(|| content["examples"].as_object()?.keys().next());
        if let Some(example) = example {
            let value = &content["examples"][example]["value"];
            let _ = writeln!(page, "```json of=\"{name}\"\n{value}\n```\n");
        }
        if schema.get("properties").is_some() {
            let _ = writeln!(page, "The body is a [{name}](#{}).\n", name.to_lowercase());
        }
    }
    page.push_str("| answer | |\n|---|---|\n");
    for (status, response) in operation["responses"].as_object().unwrap() {
        let body = &response["content"]["application/json"]["schema"];
        let body = match referred(body, definitions) {
            Some((name, schema)) if schema.get("properties").is_some() => {
                format!(" [{name}](#{})", name.to_lowercase())
            }
            _ => String::new(),
        };
        let _ = writeln!(page, "| {status} | {}{body} |", cell(described(response)));
    }
    page
}

#[test]
fn the_page_of_webhooks_says_what_the_description_does() {
    const PAGE: &str = "docs/reference/webhooks.md";
    const MARK: &str = "<!-- events -->\n";
    let api = document("docs/openapi.json");
    let definitions = &api["components"]["schemas"];
    let written = text_of(&in_repository(PAGE));
    let mut page = written.split(MARK).next().unwrap().to_owned() + MARK;
    for (name, item) in api["webhooks"].as_object().unwrap() {
        let post = &item["post"];
        let content = &post["requestBody"]["content"]["application/json"];
        let (schema, object) = referred(&content["schema"], definitions).unwrap();
        let title = if name == "hook" {
            "Notification of a hook".to_owned()
        } else {
            format!("`{name}`")
        };
        let _ = write!(
            page,
            "\n### {title}\n\n{}\n\n```json of=\"{schema}\"\n{}\n```\n\n{}",
            post["summary"].as_str().unwrap(),
            content["example"],
            fields(object, definitions)
        );
    }
    for name in ["HookParticipant", "HookRoom"] {
        let _ = write!(
            page,
            "\n### {name}\n\n{}",
            fields(&definitions[name], definitions)
        );
    }
    assert_page(PAGE, &page);
}

/// The metrics by their names, each with its kind, its labels and what it says: a running server shows families only once
/// something has happened, so they are read where all of them are declared.
pub fn metrics() -> BTreeMap<String, [String; 3]> {
    let mut metrics = BTreeMap::new();
    let mut files = vec![in_repository("src/telemetry/metrics.rs")];
    let folder = std::fs::read_dir(in_repository("src/telemetry/metrics")).unwrap();
    files.extend(folder.map(|entry| entry.unwrap().path()));
    let texts: Vec<String> = files.iter().map(|file| text_of(file)).collect();
    for text in &texts {
        let text = text.split("#[cfg(test)]").next().unwrap();
        let text = &text.replace("register_with_unit(", "register(");
        for call in text.split("register(").skip(1) {
            let call = call.split(';').next().unwrap();
            let field = call
                .split_once(".clone()")
                .and_then(|(call, _)| Some(call.rsplit_once("self.")?.1));
            let mut texts = call.split('"').skip(1).step_by(2);
            let (Some(field), Some(name), Some(says)) = (field, texts.next(), texts.next()) else {
                continue;
            };
            let declared = text.split_once(&format!("    {field}: "));
            let declared = declared
                .and_then(|(_, rest)| rest.split(",\n").next())
                .unwrap_or_default();
            let (labels, kind) = declared
                .strip_prefix("Family<")
                .and_then(|family| family.trim_end_matches('>').split_once(", "))
                .unwrap_or(("", declared));
            let seconds = if call.contains("Unit::Seconds") {
                "_seconds"
            } else {
                ""
            };
            let kind = match kind {
                kind if kind.starts_with("Counter") => "counter",
                kind if kind.starts_with("Gauge") => "gauge",
                _ => "histogram",
            };
            let labels = labels_of(labels, &texts_of(&files));
            metrics.insert(
                format!("vivavoce_{name}{seconds}"),
                [kind.to_owned(), labels, says.to_owned()],
            );
        }
    }
    metrics.insert(
        "vivavoce_build_info".to_owned(),
        [
            "gauge".to_owned(),
            "`version`".to_owned(),
            "The version that runs; always 1".to_owned(),
        ],
    );
    metrics
}

fn texts_of(files: &[std::path::PathBuf]) -> String {
    files.iter().map(|file| text_of(file)).collect()
}

/// The labels that a set has.
fn labels_of(set: &str, text: &str) -> String {
    if set.is_empty() {
        return "–".to_owned();
    }
    let body = text
        .split_once(&format!("struct {set} {{"))
        .map_or("", |(_, rest)| rest);
    let fields = body.split('}').next().unwrap_or_default().lines();
    let names = fields.filter_map(|line| {
        let line = line.trim();
        let line = line.strip_prefix("pub ").unwrap_or(line);
        let name = line.split_once(": ")?.0;
        (!line.starts_with("//")).then(|| format!("`{name}`"))
    });
    names.collect::<Vec<_>>().join(", ")
}

#[test]
fn the_page_of_metrics_says_what_the_server_does() {
    let server = Server::start();
    let told = stdout(&run("curl", ["-s", &format!("{}/metrics", server.url)]));
    let mut metrics = metrics();
    let mut shown = 0;
    for line in told.lines() {
        let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|line| line.split_once(' '))
        else {
            continue;
        };
        shown += 1;
        if name.starts_with("process_") {
            let help = told.split_once(&format!("# HELP {name} "));
            let help = help
                .and_then(|(_, rest)| rest.lines().next())
                .unwrap_or_default();
            let row = [kind.to_owned(), "–".to_owned(), help.to_owned()];
            metrics.insert(name.to_owned(), row);
        } else {
            let name = name
                .strip_suffix("_info")
                .map_or(name.to_owned(), |name| format!("{name}_info"));
            let known =
                metrics.contains_key(&name) || metrics.contains_key(&format!("{name}_info"));
            assert!(known, "{name} is shown and not declared where metrics are");
        }
    }
    assert!(
        shown > 50 && metrics.len() > 70,
        "{shown} {}",
        metrics.len()
    );
    let mut page = String::from(
        "# Metrics\n\nGenerated from the code. `GET /metrics` is OpenMetrics text; counters are read as `…_total`, histograms as \
         `…_bucket`, `…_sum` and `…_count`, and a series appears when there is something to count. `METRICS_ADDRESS` moves it to \
         an address of its own, without a token. [Operations](../operations.md) has the dashboard and the alerts.\n\n\
         ```sh\ncurl http://127.0.0.1:3001/metrics\n```\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n",
    );
    for (name, [kind, labels, says]) in metrics {
        let _ = writeln!(
            page,
            "| `{name}` | {kind} | {labels} | {} |",
            cell(says.trim_end_matches('.'))
        );
    }
    assert_page("docs/reference/metrics.md", &page);
}

#[test]
fn the_page_of_the_command_line_says_what_the_program_does() {
    fn add(page: &mut String, command: &[&str]) {
        let output = vivavoce(command.iter().chain(&["--help"]));
        let help = stdout(&output);
        assert!(output.status.success(), "{command:?}: {help}");
        let name = ["vivavoce"]
            .iter()
            .chain(command)
            .copied()
            .collect::<Vec<_>>()
            .join(" ");
        let level = "#".repeat(command.len().clamp(1, 2) + 1);
        let _ = write!(
            page,
            "\n{level} `{name}`\n\n```text\n{}\n```\n",
            help.trim_end()
        );
        let listed = help.split("\nCommands:\n").nth(1).unwrap_or_default();
        for line in listed.lines().take_while(|line| !line.is_empty()) {
            // Continued lines are indented further.
            let word = line
                .strip_prefix("  ")
                .filter(|rest| !rest.starts_with(' '));
            let word = word.and_then(|rest| rest.split_whitespace().next());
            if let Some(word) = word.filter(|word| *word != "help") {
                let below: Vec<&str> = command.iter().copied().chain([word]).collect();
                add(page, &below);
            }
        }
    }
    let mut page = String::from(
        "# Command line\n\nGenerated from the program: what `--help` prints for each command. Every command takes `--config` and `--set`, \
         and reads [the settings](../configuration.md) from the environment.\n",
    );
    add(&mut page, &[]);
    assert_page("docs/reference/cli.md", &page);
}
