//! LiveKit's own clients, unmodified, as programs that take commands and report events as lines of JSON
//! (`tests/clients/rooms`). Received audio is measured in its samples.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::Instant;

use crate::harness::events::Events;
use crate::harness::namespaces::Host;
use crate::harness::which;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Whose client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Python,
    Node,
    Browser,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Python, Self::Node, Self::Browser];

    const fn script(self) -> &'static str {
        match self {
            Self::Python => "python_client.py",
            Self::Node => "node_client.mjs",
            Self::Browser => "browser_client.mjs",
        }
    }
}

/// A script of `tests/clients/rooms` with what runs it, where it is to run.
fn interpreted(script: &str, host: Option<&Host>) -> Command {
    let root = env!("CARGO_MANIFEST_DIR");
    let python = script.ends_with("py");
    let environment = match script {
        "agent_worker.py" | "warm_transfer_worker.py" => "livekit-agents",
        "whip_aiortc.py" => "aiortc",
        _ => "python",
    };
    let interpreter = if python {
        PathBuf::from(format!("{root}/.clients/{environment}/bin/python"))
    } else {
        which("node")
    };
    let mut command = host.map_or_else(
        || std::process::Command::new(&interpreter),
        |host| host.command(&interpreter),
    );
    command
        .arg(format!("{root}/tests/clients/rooms/{script}"))
        .env("NODE_CLIENTS", format!("{root}/.clients/node"));
    command.into()
}

/// A client in a room. Dropping it kills it.
pub struct Client {
    pub identity: String,
    pub kind: Kind,
    child: Child,
    stdin: Option<ChildStdin>,
    told: Arc<Events>,
    commands: u64,
    /// Events before this one are not looked at by [`Self::next`].
    seen: usize,
    /// Where it leaves what it needs while it runs; a browser leaves much.
    _folder: tempfile::TempDir,
}

impl Client {
    /// Starts a client, which connects; [`Self::connected`] waits for that.
    pub fn start(kind: Kind, url: &str, identity: &str, token: &str, options: &Value) -> Self {
        Self::run(
            kind.script(),
            kind,
            identity,
            [url, token, &options.to_string()],
        )
    }

    /// The same at a host in a network of its own.
    pub fn start_at(host: &Host, kind: Kind, url: &str, identity: &str, token: &str) -> Self {
        let command = interpreted(kind.script(), Some(host));
        Self::run_command(command, kind, identity, [url, token, "{}"])
    }

    /// Starts any script that takes commands and tells events in this way.
    pub fn run(script: &str, kind: Kind, identity: &str, arguments: [&str; 3]) -> Self {
        Self::run_command(interpreted(script, None), kind, identity, arguments)
    }

    fn run_command(mut command: Command, kind: Kind, identity: &str, arguments: [&str; 3]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = command
            .args(arguments)
            .env("TMPDIR", folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{kind:?}: {error}; ./test installs the clients"));
        let told = Arc::new(Events::default());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let listening = Arc::clone(&told);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Ok(event) = serde_json::from_str::<Value>(&line) {
                    listening.tell(event);
                }
            }
            listening.tell(json!({"event": "ended"}));
        });
        let stdin = child.stdin.take();
        Self {
            identity: identity.to_owned(),
            kind,
            child,
            stdin,
            told,
            commands: 0,
            seen: 0,
            _folder: folder,
        }
    }

    /// Waits until it is in its room; gives the sid.
    pub async fn connected(&mut self) -> String {
        let event = self.wait("connected", &json!({})).await;
        event["sid"].as_str().unwrap().to_owned()
    }

    /// The first event of this name with these fields, of all that there were.
    pub async fn wait(&mut self, name: &str, fields: &Value) -> Value {
        self.find(0, name, fields).await.1
    }

    /// The next one after the last that this gave or [`Self::mark`] was called.
    pub async fn next(&mut self, name: &str, fields: &Value) -> Value {
        let (at, event) = self.find(self.seen, name, fields).await;
        self.seen = at + 1;
        event
    }

    /// [`Self::next`] looks at nothing that was told by now.
    pub fn mark(&mut self) {
        self.seen = self.told.count();
    }

    /// How often something was told.
    pub fn count(&self, name: &str, fields: &Value) -> usize {
        let events = self.told.all();
        events
            .iter()
            .filter(|event| is(event, name, fields))
            .count()
    }

    /// Everything that was told, in order.
    pub fn told(&self) -> Vec<Value> {
        self.told.all()
    }

    /// Everything of this name that was told, in order.
    pub fn all(&self, name: &str) -> Vec<Value> {
        let mut events = self.told.all();
        events.retain(|event| event["event"] == name);
        events
    }

    async fn find(&self, from: usize, name: &str, fields: &Value) -> (usize, Value) {
        let wanted = |event: &Value| is(event, name, fields);
        self.find_by(from, &format!("{name} {fields}"), wanted)
            .await
    }

    /// The first event of any of these names since [`Self::mark`] was called.
    pub async fn first_of(&self, names: &[&str]) -> Value {
        let wanted = |event: &Value| names.iter().any(|name| event["event"] == *name);
        self.find_by(self.seen, &names.join(" or "), wanted).await.1
    }

    async fn find_by(
        &self,
        from: usize,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> (usize, Value) {
        let ends = |event: &Value| wanted(event) || event["event"] == "ended";
        let found = self.told.find(from, PATIENCE, ends).await;
        match found {
            Ok((at, event)) if wanted(&event) => (at, event),
            _ => panic!(
                "{:?} {}: no {what} within {PATIENCE:?}: {:?}",
                self.kind,
                self.identity,
                self.told.all()
            ),
        }
    }

    /// Carries out a command; gives what it brought, or why it failed.
    pub async fn attempt(&mut self, mut command: Value) -> Result<Value, String> {
        self.commands += 1;
        let id = self.commands;
        command["id"] = id.into();
        let line = format!("{command}\n");
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(line.as_bytes()).await.unwrap();
        stdin.flush().await.unwrap();
        let answer = self.answer(id).await;
        match answer["event"].as_str() {
            Some("done") => Ok(answer),
            _ => Err(answer["error"].as_str().unwrap_or_default().to_owned()),
        }
    }

    async fn answer(&self, id: u64) -> Value {
        let found = self.told.find(0, PATIENCE, |event| event["id"] == id).await;
        let kind = self.kind;
        found
            .unwrap_or_else(|_| panic!("{kind:?}: no answer to command {id}"))
            .1
    }

    /// Carries out a command that must succeed.
    pub async fn command(&mut self, command: Value) -> Value {
        let shown = command.to_string();
        let (kind, identity) = (self.kind, self.identity.clone());
        self.attempt(command)
            .await
            .unwrap_or_else(|error| panic!("{kind:?} {identity}: {shown}: {error}"))
    }

    /// Publishes a tone; gives its sid.
    pub async fn publish(&mut self, hertz: u32) -> String {
        let published = self.command(json!({"do": "publish", "hertz": hertz})).await;
        published["sid"].as_str().unwrap().to_owned()
    }

    /// Whether the newest samples received from somebody have this frequency; and what they are.
    pub async fn hears_now(&mut self, identity: &str, hertz: u32) -> (bool, Value) {
        let measured = self
            .command(json!({"do": "measure", "identity": identity}))
            .await;
        let heard = measured["hertz"].as_f64().unwrap_or(-1.0);
        ((heard - f64::from(hertz)).abs() <= 8.0, measured)
    }

    /// Waits until the samples received from somebody have this frequency; 0 is silence or nothing.
    pub async fn hears(&mut self, identity: &str, hertz: u32) {
        let deadline = Instant::now() + PATIENCE;
        let mut measured = Value::Null;
        while Instant::now() < deadline {
            let (is_heard, newest) = self.hears_now(identity, hertz).await;
            if is_heard {
                return;
            }
            measured = newest;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!(
            "{:?} {} hears {measured} from {identity} instead of {hertz} Hz",
            self.kind, self.identity
        );
    }

    /// Waits until the samples received from somebody are not silent.
    pub async fn hears_anything_of(&mut self, identity: &str) {
        let deadline = Instant::now() + PATIENCE;
        let command = json!({"do": "measure", "identity": identity});
        while self.command(command.clone()).await["hertz"] == 0 {
            assert!(
                Instant::now() < deadline,
                "{} hears nothing from {identity}",
                self.identity
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Leaves, and waits until the program has ended.
    pub async fn leave(mut self) {
        drop(self.stdin.take());
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        assert!(
            ended.is_ok(),
            "{:?} {} does not end",
            self.kind,
            self.identity
        );
    }

    /// The process id of the program.
    pub fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// Kills it.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

fn is(event: &Value, name: &str, fields: &Value) -> bool {
    let wanted = fields.as_object().unwrap();
    event["event"] == name && wanted.iter().all(|(key, value)| event[key] == *value)
}
