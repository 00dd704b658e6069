//! What every test needs: a running server of its own, its command line, other people's programs, and word counts.

pub mod events;
pub mod human_speech;
pub mod livekit;
pub mod models;
pub mod namespaces;
pub mod redis;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use futures_util::StreamExt;
use serde_json::{Value, json};
use vivavoce::audio::{AudioFormat, Encoding, SampleRate};
use vivavoce::providers::{TextStream, TtsRequest};
use vivavoce::unix_time::unix_ms;

/// The program under test.
pub const VIVAVOCE: &str = env!("CARGO_BIN_EXE_vivavoce");
/// The longest that anything here may take; reached only when something hangs.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Ten sentences of everyday words.
pub const SENTENCES: [&str; 10] = [
    "The quick brown fox jumps over the lazy dog.",
    "Please call me back on Monday morning.",
    "We are going to the market this afternoon.",
    "The weather is very nice in the summer.",
    "Please bring me a glass of cold water.",
    "My brother lives in a small house near the river.",
    "They want to know what time the train leaves.",
    "There is a letter for you on the kitchen table.",
    "He was looking for his keys all day long.",
    "It takes about an hour to drive to the city.",
];

/// Where the log is kept, in the data folder.
const LOG: &str = "log";

/// A server with a data folder of its own. Dropping it kills it.
pub struct Server {
    child: Child,
    /// `http://host:port`.
    pub url: String,
    /// Its data folder, unless it replaces another server.
    pub data: tempfile::TempDir,
    /// The folder that it works in.
    folder: PathBuf,
}

impl Server {
    /// A server with default settings.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with these environment variables.
    pub fn start_with(environment: &[(&str, &str)]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), environment)
    }

    /// A server over a data folder that may hold something already.
    pub fn start_in(data: tempfile::TempDir, environment: &[(&str, &str)]) -> Self {
        Self::start_logging(data, environment, Stdio::inherit())
    }

    /// A server with these environment variables whose log is kept for [`Self::log`].
    pub fn start_logged(environment: &[(&str, &str)]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(data.path().join(LOG)).unwrap();
        Self::start_logging(data, environment, log)
    }

    /// A server with more flags than every test needs, whose log is kept.
    pub fn start_flagged(flags: &str, environment: &[(&str, &str)]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(data.path().join(LOG)).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec \"$0\" \"$@\" {flags}")]);
        command.arg(VIVAVOCE);
        Self::start_command(command, data, environment, log)
    }

    /// A server that replaces this one: it works in the data folder of this one, which must outlive it, and keeps its log in one
    /// of its own.
    pub fn replaced(&self, environment: &[(&str, &str)]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(data.path().join(LOG)).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" --takeover", VIVAVOCE]);
        let next = Self::start_over(command, data, self.folder.clone(), environment, log);
        assert_eq!(next.url, self.url);
        next
    }

    /// The same, with its log lines somewhere else.
    pub fn start_logging(
        data: tempfile::TempDir,
        environment: &[(&str, &str)],
        log: impl Into<Stdio>,
    ) -> Self {
        Self::start_command(Command::new(VIVAVOCE), data, environment, log)
    }

    /// A server whose log is kept, with folders in its data folder that are small disks, each of a size as `mount` takes
    /// it. Only the server sees them; others go through [`Self::inside`].
    pub fn start_on_disks(disks: &[(&str, &str)], environment: &[(&str, &str)]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(data.path().join(LOG)).unwrap();
        let mut script = String::from("set -e\n");
        for (folder, size) in disks {
            let folder = data.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            script += &format!(
                "mount -t tmpfs -o size={size} tmpfs '{}'\n",
                folder.display()
            );
        }
        // A name space of its own, in which nobody needs to be root to mount.
        let mut command = Command::new(which("unshare"));
        command.args(["--map-root-user", "--mount", "sh", "-c"]);
        command.arg(script + "exec \"$0\" \"$@\"").arg(VIVAVOCE);
        Self::start_command(command, data, environment, log)
    }

    fn start_command(
        command: Command,
        data: tempfile::TempDir,
        environment: &[(&str, &str)],
        log: impl Into<Stdio>,
    ) -> Self {
        let folder = data.path().to_owned();
        Self::start_over(command, data, folder, environment, log)
    }

    /// A server over a folder.
    fn start_over(
        mut command: Command,
        data: tempfile::TempDir,
        folder: PathBuf,
        environment: &[(&str, &str)],
        log: impl Into<Stdio>,
    ) -> Self {
        command
            .args(["serve", "--port", "0", "--data-dir"])
            .arg(&folder)
            .current_dir(&folder)
            // Loading one takes a second of a core, and few tests are about it. Sessions that need one load it.
            .env("LOCAL_STT_PRELOAD", "false");
        let server = Self::of_command(command, environment, data, log);
        let mut server = server.expect("the server ended before it said where it listens");
        server.folder = folder;
        server
    }

    /// A server by a command that brings all of its flags; the error is its end.
    pub fn of_command(
        mut command: Command,
        environment: &[(&str, &str)],
        data: tempfile::TempDir,
        log: impl Into<Stdio>,
    ) -> Result<Self, String> {
        let mut child = command
            // Servers of one machine cannot share the port of rooms.
            .env("RTC_UDP_PORT", "0")
            // Also where the machine has one core alone.
            .env("RTC_THREADS", "2")
            .env("MODELS_PATH", models::ears())
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let url = lines.find_map(|line| {
            // With `LOG_FORMAT=json` it is part of a line of JSON.
            let (_, url) = line.split_once("listens on ")?;
            Some(url.split('"').next().unwrap_or(url).to_owned())
        });
        let Some(url) = url else {
            return Err(format!("it ended: {:?}", child.wait()));
        };
        std::thread::spawn(move || lines.for_each(drop));
        let folder = data.path().to_owned();
        Ok(Self {
            child,
            url,
            data,
            folder,
        })
    }

    /// Ends a server of [`Self::start_logged`] and gives its log.
    pub fn log(&mut self) -> String {
        self.terminate();
        self.ended();
        self.log_so_far()
    }

    /// What a server of [`Self::start_logged`] has logged so far.
    pub fn log_so_far(&self) -> String {
        std::fs::read_to_string(self.data.path().join(LOG))
            .expect("a server that was started with a log")
    }

    /// A folder in its data folder as the server sees it.
    pub fn inside(&self, folder: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid()));
        let data = self.data.path().strip_prefix("/").unwrap();
        root.join(data).join(folder)
    }

    /// The server's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        within(PATIENCE, "the server did not end", || {
            self.child.try_wait().unwrap()
        })
    }

    /// Its data folder, for a next server.
    pub fn into_data(mut self) -> tempfile::TempDir {
        self.terminate();
        self.ended();
        std::mem::replace(&mut self.data, tempfile::tempdir().unwrap())
    }

    /// Kills it where it stands, and gives its data folder to a next server.
    pub fn kill(mut self) -> tempfile::TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.data, tempfile::tempdir().unwrap())
    }

    /// Children of the server whose program has this name.
    pub fn children(&self, name: &str) -> Vec<u32> {
        children_of(self.pid(), name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Children of a process whose program has this name.
pub fn children_of(pid: u32, name: &str) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|child| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        // pid (name) state parent …; the name may hold anything, so the last parenthesis counts.
        let Some((head, tail)) = stat.rsplit_once(')') else {
            return false;
        };
        let parent = tail
            .split_whitespace()
            .nth(1)
            .and_then(|parent| parent.parse().ok());
        parent == Some(pid)
            && head
                .split_once('(')
                .is_some_and(|(_, program)| program == name)
    })
    .collect()
}

/// Whether the long forms of tests are wanted: `./test --long`.
pub fn is_long() -> bool {
    std::env::var_os("VIVAVOCE_LONG").is_some()
}

/// So many of these, in their order, or all of them in a long run. Another choice every day, or that of `VIVAVOCE_SEED`; the seed
/// is printed.
pub fn some_of<T: Clone>(all: &[T], count: usize) -> Vec<T> {
    if is_long() || all.len() <= count {
        return all.to_vec();
    }
    let seed = std::env::var("VIVAVOCE_SEED").ok().map_or_else(
        || unix_ms(SystemTime::now()) / (24 * 60 * 60 * 1_000),
        |seed| seed.parse().expect("VIVAVOCE_SEED is a number"),
    );
    println!("{count} of {} by VIVAVOCE_SEED={seed}", all.len());
    let mut chosen = fastrand::Rng::with_seed(seed).choose_multiple(0..all.len(), count);
    chosen.sort_unstable();
    chosen.into_iter().map(|index| all[index].clone()).collect()
}

/// Waits until `ready` has something. For things without an event of their own, such as the end of a process.
pub fn within<T>(patience: Duration, otherwise: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < deadline, "{otherwise} within {patience:?}");
        #[expect(
            clippy::disallowed_methods,
            reason = "polls what has no event of its own"
        )]
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The same without blocking the runtime, for tests whose client must go on.
pub async fn eventually(otherwise: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !ready() {
        assert!(Instant::now() < deadline, "{otherwise} within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Writes an executable shell script. Another process does it: a file that this one had open for writing would be open in every
/// child that another test forks in that moment, and could not be executed until that child executes something itself
/// ("Text file busy").
pub fn write_script(file: &Path, text: &str) {
    let mut writer = Command::new("sh")
        .args(["-c", "cat >\"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(file)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = writer.stdin.take().unwrap();
    write!(input, "#!/bin/sh\n{text}\n").unwrap();
    drop(input);
    assert!(writer.wait().unwrap().success(), "{}", file.display());
}

/// A folder of programs that stand before the installed ones on the `PATH` of a server.
pub struct Programs(pub tempfile::TempDir);

impl Programs {
    /// No programs.
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A shell script by this name.
    pub fn script(self, name: &str, text: &str) -> Self {
        write_script(&self.0.path().join(name), text);
        self
    }

    /// The installed program by this name.
    pub fn installed(self, name: &str) -> Self {
        std::os::unix::fs::symlink(which(name), self.0.path().join(name)).unwrap();
        self
    }

    /// A `PATH` with these programs and nothing else.
    pub fn only(&self) -> String {
        self.0.path().display().to_string()
    }

    /// A `PATH` with these programs first.
    pub fn first(&self) -> String {
        format!("{}:{}", self.only(), std::env::var("PATH").unwrap())
    }
}

/// Where an installed program is; fails with the package that brings it.
pub fn which(name: &str) -> PathBuf {
    let mut path = std::env::var_os("PATH").unwrap();
    // Where servers are, which is not on everybody's path.
    path.push(":/usr/sbin");
    let packages: HashMap<_, _> = [
        ("ffprobe", "ffmpeg"),
        ("opusinfo", "opus-tools"),
        ("opusenc", "opus-tools"),
        ("unshare", "util-linux"),
        ("nsenter", "util-linux"),
        ("ip", "iproute2"),
        ("tc", "iproute2"),
        ("nft", "nftables"),
        ("sipp", "sip-tester"),
        ("baresip", "baresip-core"),
        ("linphonec", "linphone-cli"),
    ]
    .into();
    let package = packages.get(name).unwrap_or(&name);
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .unwrap_or_else(|| {
            panic!("this test needs the program {name}; install the Debian package {package}")
        })
}

/// Runs an installed program to its end; its failure fails the test.
pub fn run<A: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = A>) -> Output {
    let output = Command::new(which(name)).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Runs our own program to its end in an empty folder.
pub fn vivavoce<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Output {
    let folder = tempfile::tempdir().unwrap();
    Command::new(VIVAVOCE)
        .args(arguments)
        .env("MODELS_PATH", models::ears())
        .current_dir(folder.path())
        .output()
        .unwrap()
}

/// Standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A `tts_config` of the local engines with some fields set.
pub fn local(fields: Value) -> Value {
    let mut config = json!({"provider": "local", "model": ""});
    config
        .as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    config
}

/// `POST /speak`.
pub async fn speak(server: &Server, text: &str, fields: Value) -> reqwest::Response {
    post_speak(server, json!({"text": text, "tts_config": local(fields)})).await
}

/// `POST /speak` with any body.
pub async fn post_speak(server: &Server, body: Value) -> reqwest::Response {
    client()
        .post(format!("{}/speak", server.url))
        .json(&body)
        .send()
        .await
        .unwrap()
}

/// A client that gives up when something hangs.
pub fn client() -> reqwest::Client {
    builder_of_clients().build().unwrap()
}

/// The same with other settings.
pub fn builder_of_clients() -> reqwest::ClientBuilder {
    // The first one in the process stays; all are the same.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    reqwest::Client::builder().timeout(PATIENCE).no_proxy()
}

/// Checks status, code and a part of the message of an error answer.
pub async fn assert_error(response: reqwest::Response, status: u16, code: &str, part: &str) {
    let got = response.status().as_u16();
    let body: Value = response.json().await.unwrap();
    assert_eq!(
        (got, body["error"].as_str().unwrap()),
        (status, code),
        "{body}"
    );
    let message = body["message"].as_str().unwrap();
    assert!(message.contains(part), "{message:?} does not name {part:?}");
    // Of one that is about a quota its name, too.
    let fields = 2 + usize::from(body["quota"].is_string());
    assert_eq!(body.as_object().unwrap().len(), fields, "{body}");
}

/// What `ffprobe` says of a file; any warning of its fails the test. `raw` are the options for headerless sound.
pub fn ffprobe(file: &Path, raw: &[&str]) -> Value {
    let output = Command::new(which("ffprobe"))
        .args(["-v", "warning", "-of", "json", "-count_packets"])
        .args([
            "-show_entries",
            "stream=codec_name,sample_rate,channels,nb_read_packets:format=duration",
        ])
        .args(raw)
        .arg(file)
        .output()
        .unwrap();
    // Of headerless sound it says how it knows the length, which is no complaint.
    let complaints = stderr(&output);
    let mut complaints = complaints
        .lines()
        .filter(|line| !line.contains("Estimating duration"));
    assert!(
        output.status.success() && complaints.next().is_none(),
        "{}",
        stderr(&output)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The words of a text, in lower case, without punctuation.
pub fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric() && c != '\'')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

/// How many words of `said` are in `heard`, in order (longest common subsequence).
pub fn words_in_order(said: &[String], heard: &[String]) -> usize {
    let mut row = vec![0; heard.len() + 1];
    for word in said {
        let mut diagonal = 0;
        for (index, other) in heard.iter().enumerate() {
            let above = row[index + 1];
            row[index + 1] = if word == other {
                diagonal + 1
            } else {
                above.max(row[index])
            };
            diagonal = above;
        }
    }
    row[heard.len()]
}

/// How many words have to be put in, left out or exchanged to make `heard` of `said` (Levenshtein's distance).
pub fn word_errors(said: &[String], heard: &[String]) -> usize {
    let mut row: Vec<usize> = (0..=heard.len()).collect();
    for (line, word) in said.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], line + 1);
        for (index, other) in heard.iter().enumerate() {
            let exchanged = diagonal + usize::from(word != other);
            diagonal = row[index + 1];
            row[index + 1] = exchanged.min(diagonal + 1).min(row[index] + 1);
        }
    }
    row[heard.len()]
}

/// The share of the words of `said` that were heard, 0–1.
pub fn share_of_words(said: &str, heard: &str) -> f64 {
    let said = words(said);
    words_in_order(&said, &words(heard)) as f64 / said.len() as f64
}

/// A request to a synthesiser, with everything at its usual value.
pub fn tts_request(voice: Option<&str>) -> TtsRequest {
    TtsRequest {
        party: vivavoce::quotas::Party::Operator,
        voice_id: voice.map(Into::into),
        model: String::new(),
        speaking_rate: 1.0,
        preferred: AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_24000),
        connection_timeout: Duration::from_secs(10),
        request_timeout: Duration::from_secs(30),
        credential: None,
    }
}

/// Text that comes in parts.
pub fn text_stream(parts: &[&str]) -> TextStream {
    let parts: Vec<String> = parts.iter().map(|&part| part.to_owned()).collect();
    futures_util::stream::iter(parts).boxed()
}
