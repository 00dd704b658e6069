//! Runs the blocks of a page as its reader would: one folder for the page, one server, one block after the other.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::fences::{Block, Fate, blocks};
use crate::examples::{in_repository, installed};
use crate::harness::*;
use crate::telephone::rig::ports;

/// The address that pages name.
const ADDRESS: &str = "127.0.0.1:3001";
/// Other ports that pages name: each reader has some of its own in their place.
const PORTS: [u16; 5] = [5060, 8000, 8080, 9090, 11434];
/// What a block may take; a busy machine is slow.
const SECONDS: u32 = 50;

/// A page that is being read.
pub struct Reader<'a> {
    folder: tempfile::TempDir,
    /// Of a page without a server of its own.
    shared: &'a str,
    /// What the page has started, the youngest last.
    servers: Vec<Server>,
    background: RefCell<Vec<Child>>,
    /// The first of its ports.
    ports: u16,
    /// What the last block that ran has printed.
    printed: String,
}

impl<'a> Reader<'a> {
    /// Somebody who has the program on the `PATH`, and a server that runs at this address.
    pub fn new(shared: &'a str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let programs = folder.path().join(".programs");
        std::fs::create_dir(&programs).unwrap();
        let serve = format!(
            "case \"$*\" in serve*) exec {VIVAVOCE} \"$@\" --port 0 --data-dir \"$PAGE_DATA\";; esac\nexec {VIVAVOCE} \"$@\""
        );
        write_script(&programs.join("vivavoce"), &serve);
        // What `./start` ends with.
        write_script(&folder.path().join("start"), "exec vivavoce serve \"$@\"");
        for (name, environment) in [(".venv", "client-python"), (".openai", "python")] {
            let installed = installed(".clients").join(environment);
            std::os::unix::fs::symlink(installed, folder.path().join(name)).unwrap();
        }
        let modules = installed(".clients/node/node_modules");
        std::os::unix::fs::symlink(modules, folder.path().join("node_modules")).unwrap();
        for name in ["clients", "examples", "packaging", "operations"] {
            std::os::unix::fs::symlink(in_repository(name), folder.path().join(name)).unwrap();
        }
        Self {
            folder,
            shared,
            servers: Vec::new(),
            background: RefCell::default(),
            ports: ports(PORTS.len() as u16),
            printed: String::new(),
        }
    }

    /// Reads a page to its end. The error says which block is wrong, and why.
    pub fn read(&mut self, page: &str) -> Result<(), String> {
        for block in blocks(page)? {
            let done = self.block(&block);
            done.map_err(|problem| format!("line {} ({}): {problem}", block.line, block.language))?;
        }
        Ok(())
    }

    fn url(&self) -> &str {
        self.servers
            .last()
            .map_or(self.shared, |server| &server.url)
    }

    /// A block with the server's address in place of the one that pages name.
    fn here(&self, text: &str) -> String {
        let address = self
            .url()
            .trim_start_matches("http://")
            .trim_start_matches("https://");
        let mut text = text
            .replace(ADDRESS, address)
            .replace("localhost:3001", address)
            .replace("target/start/vivavoce", "vivavoce");
        for (port, own) in PORTS.iter().zip(self.ports..) {
            for before in ["127.0.0.1:", "127.0.0.1 ", "PORT="] {
                text = text.replace(&format!("{before}{port}"), &format!("{before}{own}"));
            }
        }
        text
    }

    fn block(&mut self, block: &Block) -> Result<(), String> {
        let text = self.here(&block.text);
        if let Some(name) = block.mark("file") {
            let file = self.folder.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, &text).unwrap();
        }
        match (block.fate(), block.language.as_str()) {
            (Fate::Shown, _) => Ok(()),
            (Fate::Parsed, language) => parse(language, &text),
            (Fate::Checked, _) if block.is("output") => has_lines(&self.printed, &text),
            (Fate::Checked, "json") if block.is("answer") => {
                let expected = serde_json::from_str(&text).map_err(|error| error.to_string())?;
                // Of several lines of JSON the first.
                let mut lines = std::iter::once(self.printed.as_str()).chain(self.printed.lines());
                let printed = lines.find_map(|text| serde_json::from_str(text).ok());
                let printed =
                    printed.ok_or_else(|| format!("this is no JSON: {}", self.printed))?;
                has_shape(&printed, &expected, "")
            }
            (Fate::Checked, "json") => message(block, &text),
            (Fate::Checked, "yaml") => self.settings(&text),
            (Fate::Run, "sh") if block.is("serve") => self.serve(&text),
            (Fate::Run, "sh") if block.is("background") => self.start(&text),
            (Fate::Run, "sh") => self.sh(&text),
            // A program that only later commands start.
            (Fate::Run, language) if block.is("file") || block.is("verifies") => {
                parse(language, &text)
            }
            (Fate::Run, "python") => {
                let library = text.contains("vivavoce");
                let environment = if library { ".venv" } else { ".openai" };
                self.program(&format!("{environment}/bin/python"), "snippet.py", &text)
            }
            (Fate::Run, "js") => self.program("node", "snippet.mjs", &text),
            (_, other) => Err(format!("nobody knows how to run {other}: mark it")),
        }
    }

    /// A command as the page's reader gives it.
    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "1", &SECONDS.to_string(), "sh", "-euc", script]);
        self.prepare(&mut command);
        command
    }

    fn prepare(&self, command: &mut Command) {
        let programs = self.folder.path().join(".programs");
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{path}", programs.display()))
            .env("VIVAVOCE_URL", self.url())
            .env("MODELS_PATH", crate::harness::models::ears())
            .env("PAGE_DATA", self.folder.path().join("data"))
            .env("HOST", "127.0.0.1")
            .stdin(Stdio::null());
    }

    fn sh(&mut self, text: &str) -> Result<(), String> {
        let script = text.replace("curl ", "curl -sS --fail-with-body ");
        self.finish(self.command(&script))
    }

    fn program(&mut self, interpreter: &str, name: &str, text: &str) -> Result<(), String> {
        std::fs::write(self.folder.path().join(name), text).unwrap();
        self.finish(self.command(&format!("exec {interpreter} {name}")))
    }

    fn finish(&mut self, mut command: Command) -> Result<(), String> {
        let output = command.output().unwrap();
        self.printed = stdout(&output);
        if output.status.success() {
            return Ok(());
        }
        Err(format!(
            "{}\n{}{}",
            output.status,
            self.printed,
            stderr(&output)
        ))
    }

    fn start(&self, text: &str) -> Result<(), String> {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec {}", with_environment(text))]);
        self.prepare(&mut command);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.background
            .borrow_mut()
            .push(child.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// A server by the page's own command.
    fn serve(&mut self, text: &str) -> Result<(), String> {
        self.servers.clear();
        let (before, last) = last_command(text);
        let mut command = Command::new("sh");
        command.args([
            "-euc",
            &format!("{before}\nexec {}", with_environment(last)),
        ]);
        self.prepare(&mut command);
        let data = tempfile::tempdir().unwrap();
        let log = data.path().join("log");
        command.env("PAGE_DATA", data.path());
        let written = std::fs::File::create(&log).unwrap();
        let server = Server::of_command(command, &[("LOCAL_STT_PRELOAD", "false")], data, written);
        self.servers.push(server?);
        Ok(())
    }

    /// A settings file that the program accepts. Placeholder files of it exist.
    fn settings(&self, text: &str) -> Result<(), String> {
        let file = self.folder.path().join("vivavoce-checked.yaml");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(VIVAVOCE);
        command.args(["check", "--config"]).arg(&file);
        self.prepare(&mut command);
        let output = command.output().unwrap();
        let said = stdout(&output) + &stderr(&output);
        output.status.success().then_some(()).ok_or(said)
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        for child in self.background.get_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The lines before the last command, which may have several, and that command.
fn last_command(text: &str) -> (&str, &str) {
    let text = text.trim_end();
    let mut begins = 0;
    let mut at = 0;
    let mut continued = false;
    for line in text.split_inclusive('\n') {
        let quoted = text[begins..at].matches('\'').count() % 2 == 1;
        if !continued && !quoted {
            begins = at;
        }
        continued = line.trim_end().ends_with('\\');
        at += line.len();
    }
    text.split_at(begins)
}

/// A command that `exec` takes: assignments before it are `env`'s.
fn with_environment(command: &str) -> String {
    format!("env {}", command.trim())
}

/// What a language's own parser says.
fn parse(language: &str, text: &str) -> Result<(), String> {
    let parsed = |mut command: Command| {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut input = child.stdin.take().unwrap();
        // A parser that has ended has said what is wrong.
        let _ = std::io::Write::write_all(&mut input, text.as_bytes());
        drop(input);
        let output = child.wait_with_output().unwrap();
        let said = stdout(&output) + &stderr(&output);
        output.status.success().then_some(()).ok_or(said)
    };
    let python = |script: &str| {
        let mut command = Command::new(installed(".clients/python/bin/python"));
        command.args(["-c", script]);
        command
    };
    let file = |name: &str, program: &str, arguments: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(name), text).unwrap();
        let mut command = Command::new(program);
        command.args(arguments).arg(name).current_dir(folder.path());
        parsed(command)
    };
    let where_installed = |program: &str, parse: &dyn Fn() -> Result<(), String>| {
        let mut is_there = Command::new("sh");
        is_there.args(["-c", &format!("command -v {program}")]);
        let is_there = is_there
            .output()
            .is_ok_and(|output| output.status.success());
        if is_there { parse() } else { Ok(()) }
    };
    match language {
        "sh" => file("script.sh", "sh", &["-n"]),
        "python" => parsed(python("import ast, sys; ast.parse(sys.stdin.read())")),
        "js" => file("script.mjs", "node", &["--check"]),
        "json" => serde_json::from_str::<Value>(text)
            .map(drop)
            .map_err(|error| error.to_string()),
        "yaml" => parsed(python(
            "import sys, yaml; list(yaml.safe_load_all(sys.stdin))",
        )),
        "toml" => parsed(python(
            "import sys, tomllib; tomllib.load(sys.stdin.buffer)",
        )),
        "xml" | "html" if language == "xml" => parsed(python(
            "import sys, xml.dom.minidom as m; m.parseString('<x>' + sys.stdin.read() + '</x>')",
        )),
        "html" => scripts_of(text)
            .iter()
            .try_for_each(|script| parse("js", script)),
        "ini" => parsed(python(
            "import sys, configparser as c; c.RawConfigParser(strict=False, allow_no_value=True).read_string(sys.stdin.read())",
        )),
        "nginx" | "caddy" | "kamailio" => {
            let opened = text.matches('{').count();
            (opened > 0 && opened == text.matches('}').count())
                .then_some(())
                .ok_or("its braces".to_owned())
        }
        "go" => where_installed("gofmt", &|| file("main.go", "gofmt", &["-e", "-l"])),
        "php" => where_installed("php", &|| file("snippet.php", "php", &["-l"])),
        "ruby" => where_installed("ruby", &|| file("snippet.rb", "ruby", &["-c"])),
        other => Err(format!("nobody knows how to parse {other}")),
    }
}

/// The scripts of a page of HTML.
fn scripts_of(html: &str) -> Vec<&str> {
    let parts = html.split("<script").skip(1);
    parts
        .filter_map(|part| part.split_once('>')?.1.split("</script>").next())
        .collect()
}

/// Whether what was printed has these lines, in this order, with `…` for anything.
fn has_lines(printed: &str, expected: &str) -> Result<(), String> {
    let mut rest = printed;
    for part in expected
        .lines()
        .flat_map(|line| line.split('…'))
        .map(str::trim)
    {
        let found = rest.find(part);
        let found = found.ok_or_else(|| format!("{part:?} was not printed: {printed}"))?;
        rest = &rest[found + part.len()..];
    }
    Ok(())
}

/// Whether a value has the fields of another one, with values of their types.
fn has_shape(value: &Value, expected: &Value, at: &str) -> Result<(), String> {
    match (value, expected) {
        (Value::Object(fields), Value::Object(expected)) => {
            expected.iter().try_for_each(|(name, expected)| {
                let value = fields.get(name);
                let value = value.ok_or_else(|| format!("there is no {at}.{name}"))?;
                has_shape(value, expected, &format!("{at}.{name}"))
            })
        }
        (Value::Array(items), Value::Array(expected)) => match (items.first(), expected.first()) {
            (Some(value), Some(expected)) => has_shape(value, expected, &format!("{at}[0]")),
            (None, Some(_)) => Err(format!("{at} is empty")),
            _ => Ok(()),
        },
        (value, expected) => {
            let same = std::mem::discriminant(value) == std::mem::discriminant(expected);
            same.then_some(()).ok_or_else(|| format!("{at} is {value}"))
        }
    }
}

/// A message of the socket, one a line where there are several, or a body of the API.
fn message(block: &Block, text: &str) -> Result<(), String> {
    let whole = serde_json::from_str::<Value>(text).map(|value| vec![value]);
    let values = whole.or_else(|_| {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        lines
            .map(serde_json::from_str)
            .collect::<Result<Vec<Value>, _>>()
    });
    for value in values.map_err(|error| error.to_string())? {
        let schema = match block.mark("of") {
            Some(name) => body_schema(name),
            None if block.is("client") => socket_schema("ClientMessage", &value),
            None if block.is("server") => socket_schema("ServerMessage", &value),
            None => {
                return Err(
                    "say whose message it is: client, server, of=\"…\", or parsed".to_owned(),
                );
            }
        };
        let validator = jsonschema::draft202012::new(&schema).map_err(|error| error.to_string())?;
        if let Err(error) = validator.validate(&value) {
            return Err(format!("{error} at {}: {value}", error.instance_path()));
        }
    }
    Ok(())
}

/// A schema of the API that refuses fields that it does not name.
pub fn body_schema(name: &str) -> Value {
    let text = std::fs::read_to_string(in_repository("docs/openapi.json")).unwrap();
    let api: Value = serde_json::from_str(&text).unwrap();
    let mut schema =
        json!({"components": api["components"], "$ref": format!("#/components/schemas/{name}")});
    strictly(&mut schema["components"]["schemas"]);
    schema
}

/// The schema of a message of one side of the socket, likewise.
fn socket_schema(side: &str, message: &Value) -> Value {
    let text = std::fs::read_to_string(in_repository("docs/schemas/socket.json")).unwrap();
    let mut schema: Value = serde_json::from_str(&text).unwrap();
    strictly(&mut schema["$defs"]);
    let of_type = |reference: &&Value| {
        let name = reference["$ref"]
            .as_str()
            .and_then(|to| to.rsplit('/').next())
            .unwrap_or_default();
        schema["$defs"][name]["properties"]["type"]["const"] == message["type"]
    };
    let messages = schema["$defs"][side]["oneOf"].as_array().unwrap();
    let to = messages
        .iter()
        .find(of_type)
        .map_or(json!(format!("#/$defs/{side}")), |found| {
            found["$ref"].clone()
        });
    let fields = schema.as_object_mut().unwrap();
    fields.remove("anyOf");
    fields.insert("$ref".to_owned(), to);
    schema
}

fn strictly(schemas: &mut Value) {
    for schema in schemas.as_object_mut().unwrap().values_mut() {
        if schema.get("properties").is_some() && schema.get("oneOf").is_none() {
            schema["additionalProperties"] = json!(false);
        }
    }
}

/// Reads pages side by side; gives what is wrong with each. Most blocks wait for sound, or for a process to begin.
pub fn read_all(pages: &[PathBuf], shared: &str) -> BTreeMap<PathBuf, String> {
    let waiting = std::sync::Mutex::new(pages.iter());
    let problems = std::sync::Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let page = waiting.lock().unwrap().next();
                    let Some(page) = page else { break };
                    let began = std::time::Instant::now();
                    let read = Reader::new(shared).read(&text_of(page));
                    let took = began.elapsed();
                    if took > Duration::from_secs(2) {
                        println!("{} took {took:.1?}", page.display());
                    }
                    if let Err(problem) = read {
                        problems.lock().unwrap().insert(page.clone(), problem);
                    }
                }
            });
        }
    });
    problems.into_inner().unwrap()
}

pub fn text_of(page: &Path) -> String {
    std::fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

#[test]
fn the_last_command_of_a_block_is_found() {
    assert_eq!(last_command("vivavoce serve\n"), ("", "vivavoce serve"));
    assert_eq!(
        last_command("export A=1\nB=2 \\\n  vivavoce serve\n"),
        ("export A=1\n", "B=2 \\\n  vivavoce serve")
    );
    assert_eq!(
        last_command("A='[\n1]' vivavoce serve"),
        ("", "A='[\n1]' vivavoce serve")
    );
}

/// What the runner is for: each of these pages is wrong, and is found to be.
#[test]
fn a_page_with_a_wrong_snippet_is_refused() {
    let server = Server::start();
    for (page, problem) in [
        ("```sh\ncurl http://127.0.0.1:3001/nowhere\n```", "404"),
        ("```sh\nvivavoce serv\n```", "unrecognized"),
        ("```sh\nvivavoce voices | grep nobody\n```", "exit status"),
        (
            "```sh\necho one\n```\n```text output\ntwo\n```",
            "was not printed",
        ),
        (
            "```sh\ncurl http://127.0.0.1:3001/healthz\n```\n```json answer\n{\"health\": \"\"}\n```",
            "there is no .health",
        ),
        ("```sh parsed=\"a carrier\"\nif\n```", "script.sh"),
        (
            "```sh serve\nSERVER_PORT_NAME=1 vivavoce serve --no-such-flag\n```",
            "ended",
        ),
        (
            "```python\nimport vivavoce\nvivavoce.nobody\n```",
            "AttributeError",
        ),
        ("```js\nnobody();\n```", "ReferenceError"),
        (
            "```json client\n{\"type\": \"speak\", \"txt\": \"a\"}\n```",
            "text",
        ),
        (
            "```json client\n{\"type\": \"speak\", \"text\": \"a\", \"colour\": 1}\n```",
            "colour",
        ),
        ("```json server\n{\"type\": \"error\"}\n```", "required"),
        ("```json of=\"SpeakRequest\"\n{\"text\": 1}\n```", "text"),
        ("```json\n{}\n```", "say whose"),
        ("```yaml\nserver:\n  hots: 127.0.0.1\n```", "hots"),
        ("```yaml parsed=\"a cluster\"\na: [\n```", "yaml"),
        ("```cobol\nDISPLAY 1.\n```", "nobody knows"),
        ("```xml parsed=\"FreeSWITCH\"\n<a>\n```", "Expat"),
    ] {
        let found = Reader::new(&server.url).read(page);
        let found = found.expect_err(page);
        assert!(found.contains(problem), "{page}: {found}");
    }
}
