//! The subcommands as a person at a terminal uses them.

use std::process::{Command, Stdio};

use crate::harness::*;

#[test]
fn help_has_examples_for_every_subcommand() {
    for arguments in [
        &["--help"][..],
        &["serve", "--help"],
        &["say", "--help"],
        &["transcribe", "--help"],
        &["check", "--help"],
        &["doctor", "--help"],
        &["print-config", "--help"],
        &["voices", "--help"],
        &["models", "--help"],
        &["bench", "--help"],
        &["bench", "sessions", "--help"],
        &["emulate", "--help"],
        &["recordings", "--help"],
        &["token", "--help"],
        &["sip", "--help"],
        &["sip", "trace", "--help"],
        &["openapi", "--help"],
        &["health", "--help"],
    ] {
        let output = vivavoce(arguments);
        assert!(output.status.success());
        let said = stdout(&output);
        assert!(said.contains("Examples:"), "{arguments:?}");
        // A line of a paragraph that is broken where the source is, and once more by the width of the terminal.
        let paragraphs = said.split("\n\n").filter(|part| !part.contains("\n  "));
        for lines in paragraphs.map(|part| part.lines().collect::<Vec<_>>()) {
            let broken = lines.windows(2).find(|two| {
                let next = two[1].split(' ').next().unwrap_or_default();
                two[0].len() + 1 + next.len() <= 100
            });
            assert!(broken.is_none(), "{arguments:?}: {broken:?}");
        }
    }
    assert!(!stdout(&vivavoce(["--help"])).contains("stt-worker"));
}

#[test]
fn print_config_shows_origins_and_masks_secrets() {
    let output = Command::new(VIVAVOCE)
        .args(["print-config", "--set", "server.port=4000"])
        .env("DEEPGRAM_API_KEY", "marker")
        .current_dir(tempfile::tempdir().unwrap().path())
        .output()
        .unwrap();
    let shown = stdout(&output);
    let line = |key: &str| {
        shown
            .lines()
            .find(|line| line.starts_with(key))
            .unwrap()
            .to_owned()
    };
    assert!(
        line("server.port").ends_with("4000  (command line)"),
        "{shown}"
    );
    assert!(
        line("providers.deepgram.api_key").ends_with("***  (environment DEEPGRAM_API_KEY)"),
        "{shown}"
    );
    assert!(line("cache.ttl_seconds").ends_with("(default)"), "{shown}");
    assert!(!shown.contains("marker"));
}

#[test]
fn check_tells_which_engines_there_are_and_what_to_install_for_the_others() {
    for (models, recogniser) in [
        (models::ears(), "moonshine-tiny-en"),
        ("/nowhere".into(), "pocketsphinx"),
    ] {
        let setting = format!("models.path={}", models.display());
        let output = vivavoce(["check", "--set", &setting]);
        assert!(output.status.success(), "{}", stderr(&output));
        for engine in [recogniser, "flite", "espeak-ng"] {
            assert!(stdout(&output).contains(engine), "{}", stdout(&output));
        }
    }
    let output = Command::new(VIVAVOCE)
        .args(["check", "--set", "providers.local.model_path=/nowhere"])
        .env("PATH", Programs::new().only())
        .current_dir(tempfile::tempdir().unwrap().path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    for package in ["pocketsphinx-en-us", "flite", "espeak-ng"] {
        assert!(stdout(&output).contains(package), "{}", stdout(&output));
    }
}

#[test]
fn check_knows_vendors_examples_and_machines_that_trust_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let run = |command: &str, environment: &[(&str, &str)]| {
        Command::new(VIVAVOCE)
            .arg(command)
            .current_dir(folder.path())
            .env("PATH", folder.path())
            .env("MODELS_PATH", folder.path())
            .envs(environment.iter().copied())
            .output()
            .unwrap()
    };
    let secret = "change-me-0123456789abcdef0123456789abcdef";
    let output = run(
        "check",
        &[
            ("DEEPGRAM_API_KEY", "a key"),
            ("AUTH_REQUIRED", "true"),
            ("AUTH_API_SECRET", secret),
        ],
    );
    let said = stdout(&output) + &stderr(&output);
    assert!(output.status.success(), "{said}");
    for part in ["deepgram  has a credential", "which everybody knows"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!said.contains(secret), "{said}");
    for command in ["check", "serve"] {
        let nobody = [("SSL_CERT_FILE", "/dev/null"), ("SSL_CERT_DIR", "/nowhere")];
        let output = run(command, &nobody);
        assert_eq!(output.status.code(), Some(2), "{command}");
        let said = stderr(&output);
        assert!(
            said.contains("install the Debian package ca-certificates"),
            "{said}"
        );
    }
}

#[test]
fn check_opens_what_settings_name_and_makes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let check = |settings: &[&str]| {
        let mut command = Command::new(VIVAVOCE);
        command.arg("check").current_dir(folder.path());
        for setting in settings {
            command.args(["--set", setting]);
        }
        command.output().unwrap()
    };
    let output = check(&["recording.audit_file=accesses"]);
    let said = stdout(&output);
    for line in [
        "data_dir  ./data: is not there yet, and can be made",
        "recording.audit_file  accesses: is not there yet, and can be made",
        "models.path  ./data/models: is not there",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    std::fs::write(folder.path().join("file"), "neither sound nor certificate").unwrap();
    let output = check(&[
        "data_dir=file/data",
        "server.tls.cert=file",
        "server.tls.key=file",
        "rtc.turn.tls_cert=nowhere",
        "rtc.turn.tls_key=nowhere",
        "rtc.turn.tls_port=5349",
        "rtc.turn.domain=turn.example",
        "sip.hold_sound=file",
        "providers.google.credentials=nowhere",
    ]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    for problem in [
        "data_dir: file/data: ",
        "cache.path: file/data/cache: ",
        "server.tls.cert: file: ",
        "rtc.turn.tls_cert: nowhere: ",
        "sip.hold_sound: file: ",
        "providers.google.credentials: nowhere: ",
    ] {
        let lines = said.lines();
        let of_it = lines.filter(|line| line.starts_with(&format!("vivavoce: {problem}")));
        assert_eq!(of_it.count(), 1, "{problem}: {said}");
    }
}

#[test]
fn what_nobody_reads_any_more_ends_without_a_word() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(VIVAVOCE)
        .arg("check")
        .current_dir(tempfile::tempdir().unwrap().path())
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(
        (stderr(&output).as_str(), output.status.code()),
        ("", Some(0))
    );
}

#[test]
fn a_port_or_a_folder_that_somebody_else_has_is_named_with_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let serve = ["serve", "--port", &port, "--set", "rtc.mode=off"];
    let output = vivavoce(serve);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    for part in ["server.port", &port, "--port", "--takeover"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let folder = file.path().join("data").display().to_string();
    let output = vivavoce(["serve", "--port", "0", "--data-dir", &folder]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains(&format!("data_dir: {folder}: ")), "{said}");
}

/// Mistakes that are more than a wrong shape of one value.
#[test]
fn check_and_serve_find_the_same_mistakes_of_the_telephone() {
    for (mistake, names) in [
        ("sip.listen=127.0.0.1:5060", "sip.listen"),
        ("sip.listen=udp:127.0.0.1:99999", "sip.listen"),
        ("sip.listen=tls:127.0.0.1:0", "sip.tls_cert"),
        ("sip.rtp_ports=5500-5500", "sip.rtp_ports"),
    ] {
        for command in ["check", "serve"] {
            let output = vivavoce([command, "--set", mistake]);
            assert_eq!(output.status.code(), Some(2), "{command} {mistake}");
            assert!(stderr(&output).contains(names), "{}", stderr(&output));
        }
    }
}

#[test]
fn what_is_said_is_written_down_again() {
    let folder = tempfile::tempdir().unwrap();
    let (mut said, mut heard) = (String::new(), String::new());
    for (index, sentence) in SENTENCES.iter().enumerate() {
        let file = folder.path().join(format!("{index}.wav"));
        let file = file.to_str().unwrap();
        let output = vivavoce(["say", sentence, "-o", file]);
        assert!(output.status.success(), "{}", stderr(&output));
        let output = vivavoce(["transcribe", file]);
        assert!(output.status.success(), "{}", stderr(&output));
        println!("{sentence}\n  {}", stdout(&output).trim());
        said += &format!("{sentence} ");
        heard += &stdout(&output);
    }
    let share = share_of_words(&said, &heard);
    println!("{:.1} % of the words", share * 100.0);
    assert!(share >= 0.9, "{:.1} % of the words", share * 100.0);
}

#[test]
fn every_kind_of_file_is_written_by_its_name_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    for extension in ["wav", "mp3", "ogg"] {
        let file = folder.path().join(format!("hello.{extension}"));
        let file = file.to_str().unwrap();
        let output = vivavoce(["say", SENTENCES[3], "-o", file]);
        assert!(output.status.success(), "{extension}: {}", stderr(&output));
        let heard = vivavoce(["transcribe", file]);
        let share = share_of_words(SENTENCES[3], &stdout(&heard));
        assert!(share >= 0.85, "{extension}: {}", stdout(&heard));
    }
    let flac = folder.path().join("hello.flac");
    run("sox", [folder.path().join("hello.wav"), flac.clone()]);
    let heard = vivavoce(["transcribe".as_ref(), flac.as_os_str()]);
    assert!(
        share_of_words(SENTENCES[3], &stdout(&heard)) >= 0.85,
        "{}",
        stdout(&heard)
    );
    let refused = vivavoce(["say", "Yes.", "-o", "hello.xyz"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn sound_goes_through_pipes() {
    let mut say = Command::new(VIVAVOCE)
        .args(["say", SENTENCES[1], "-o", "-"])
        .current_dir(tempfile::tempdir().unwrap().path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let transcribe = Command::new(VIVAVOCE)
        .args(["transcribe", "-"])
        .stdin(say.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(say.wait().unwrap().success());
    assert!(transcribe.status.success(), "{}", stderr(&transcribe));
    assert!(
        share_of_words(SENTENCES[1], &stdout(&transcribe)) >= 0.8,
        "{}",
        stdout(&transcribe)
    );
}

#[test]
fn a_file_that_is_no_sound_is_a_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("no.wav");
    for content in [
        &b""[..],
        b"RIFF",
        b"this is no sound at all, only text that goes on for a while",
    ] {
        std::fs::write(&file, content).unwrap();
        let output = vivavoce(["transcribe".as_ref(), file.as_os_str()]);
        assert_eq!(output.status.code(), Some(1), "{content:?}");
        assert!(stderr(&output).contains("no.wav"), "{}", stderr(&output));
    }
    let output = vivavoce(["transcribe", "/nowhere/at/all.wav"]);
    assert!(stderr(&output).contains("/nowhere/at/all.wav"));
}
