//! The agents of `examples/` as their README runs them: they hear a caller, answer, and stop when they are interrupted.
//! The caller is the server's own voice.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use vivavoce::audio::Pcm;

use crate::harness::*;
use crate::session::sound::{WIDE, spoken, then, wav_file};

const SECOND_SENTENCE: &str = "What else can I do for you?";

/// An example that is ready to run.
struct Agent {
    program: PathBuf,
    script: PathBuf,
    /// What it hears, and what it writes.
    folder: tempfile::TempDir,
}

impl Agent {
    fn both() -> [Self; 2] {
        [Self::python(), Self::typescript()]
    }

    fn python() -> Self {
        Self {
            program: installed(".clients/python/bin/python"),
            script: in_repository("examples/agent.py"),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Compiled by the command of the README, with the packages that `./test` has installed.
    fn typescript() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let modules = installed(".clients/typescript/node_modules");
        std::os::unix::fs::symlink(modules, folder.path().join("node_modules")).unwrap();
        for file in ["agent.ts", "package.json"] {
            let example = in_repository("examples").join(file);
            std::fs::copy(example, folder.path().join(file)).unwrap();
        }
        let build = Command::new(which("npm"))
            .args(["run", "--silent", "build"])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(
            build.status.success(),
            "{}\n{}",
            stdout(&build),
            stderr(&build)
        );
        Self {
            program: which("node"),
            script: folder.path().join("agent.js"),
            folder,
        }
    }

    /// Starts it with a WAV file as its microphone.
    fn start(&self, url: &str, sound: &[u8]) -> Child {
        let microphone = self.folder.path().join("microphone.wav");
        std::fs::write(&microphone, sound).unwrap();
        Command::new(&self.program)
            .arg(&self.script)
            .args([&microphone, &self.answer()])
            .env("VIVAVOCE_URL", url)
            .env_remove("VIVAVOCE_TOKEN")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn answer(&self) -> PathBuf {
        self.folder.path().join("answer.wav")
    }

    /// What our own `transcribe` understands of the WAV file that it has written.
    fn said(&self) -> String {
        let answer = self.answer();
        let described = ffprobe(&answer, &[]);
        let stream = &described["streams"][0];
        assert_eq!(stream["codec_name"], "pcm_s16le", "{stream}");
        assert_eq!(stream["sample_rate"], "24000", "{stream}");
        let output = vivavoce(["transcribe".as_ref(), answer.as_os_str()]);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    }
}

pub fn in_repository(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// Something that `./test` installs.
pub fn installed(file: &str) -> PathBuf {
    let file = in_repository(file);
    assert!(
        file.exists(),
        "{} is missing; ./test installs it",
        file.display()
    );
    file
}

fn socket_url(server: &Server) -> String {
    server.url.replacen("http", "ws", 1) + "/ws"
}

/// Two turns of a caller, with a pause between them.
async fn two_turns(server: &Server, pause: Duration) -> Vec<u8> {
    let mut sound = spoken(server, SENTENCES[3], WIDE).await;
    sound = then(sound, &Pcm::silence(WIDE.layout, pause));
    sound = then(sound, &spoken(server, SENTENCES[1], WIDE).await);
    wav_file(&sound)
}

/// The turns that an agent says it has heard.
fn heard(output: &Output) -> Vec<String> {
    let printed = stdout(output);
    let turns = printed
        .lines()
        .filter_map(|line| line.strip_prefix("heard: "));
    turns.map(str::to_owned).collect()
}

fn assert_heard_both_turns(output: &Output) {
    assert!(
        output.status.success(),
        "{}\n{}",
        stdout(output),
        stderr(output)
    );
    let heard = heard(output);
    assert_eq!(heard.len(), 2, "{}", stdout(output));
    for (turn, text) in [SENTENCES[3], SENTENCES[1]].iter().zip(&heard) {
        assert!(share_of_words(turn, text) >= 0.8, "{heard:?}");
    }
}

/// Runs every example agent with a caller who speaks two turns with a pause between them. All agents hear both turns, and
/// say what is `expected`; what else each has printed is for `check`.
async fn assert_agents(pause: Duration, expected: &str, check: impl Fn(&str)) {
    // As it is where nothing else was wished: the first words do not wait for a recogniser to be loaded.
    let server = Server::start_with(&[("LOCAL_STT_PRELOAD", "true")]);
    let sound = two_turns(&server, pause).await;
    // One after the other: what they hear and say is timed by whoever speaks, and not by how busy the machine is.
    for agent in Agent::both() {
        let child = agent.start(&socket_url(&server), &sound);
        let output = child.wait_with_output().unwrap();
        assert_heard_both_turns(&output);
        check(&stdout(&output));
        let said = agent.said();
        assert!(share_of_words(expected, &said) >= 0.8, "{said}");
    }
}

#[tokio::test]
async fn the_example_agents_hear_every_turn_and_speak_an_answer_to_each() {
    // The first answer has been spoken when the second turn begins.
    let pause = Duration::from_secs(10);
    let expected = format!(
        "You said {} {SECOND_SENTENCE} You said {} {SECOND_SENTENCE}",
        SENTENCES[3], SENTENCES[1]
    );
    assert_agents(pause, &expected, |_| {}).await;
}

#[tokio::test]
async fn an_example_agent_that_is_interrupted_stops_and_answers_what_was_said_instead() {
    // The second turn begins in the middle of the first answer.
    let pause = Duration::from_secs(3);
    let expected = format!("You said {} {SECOND_SENTENCE}", SENTENCES[1]);
    assert_agents(pause, &expected, |printed| {
        assert!(printed.contains("confirmed: "), "{printed}");
        let cut = printed
            .lines()
            .find_map(|line| line.strip_prefix("interrupted after: "));
        let cut = cut.unwrap_or_else(|| panic!("it was not interrupted: {printed}"));
        assert!(!cut.contains(SECOND_SENTENCE), "{cut}");
    })
    .await;
}

#[tokio::test]
async fn an_example_agent_says_why_it_cannot_begin() {
    let server = Server::start();
    let mut sound = two_turns(&server, Duration::ZERO).await;
    // Nobody listens there any more.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = format!("ws://{}/ws", port.local_addr().unwrap());
    drop(port);
    for agent in Agent::both() {
        let refused = agent.start(&nowhere, &sound).wait_with_output().unwrap();
        let problem = stderr(&refused);
        assert!(!refused.status.success(), "{problem}");
        assert!(problem.contains(&nowhere), "{problem}");
        assert!(problem.contains("./start"), "{problem}");
    }
    // The sample rate in the header: no server takes this one.
    sound[24..28].copy_from_slice(&96_000_u32.to_le_bytes());
    for agent in Agent::both() {
        let url = socket_url(&server);
        let refused = agent.start(&url, &sound).wait_with_output().unwrap();
        let problem = stderr(&refused);
        assert!(!refused.status.success(), "{problem}");
        assert!(problem.contains("config refused"), "{problem}");
        assert!(problem.contains("stt_config.sample_rate"), "{problem}");
    }
}
