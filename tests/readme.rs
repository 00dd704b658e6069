//! What the README tells a newcomer to type, typed.

use std::process::Command;

use crate::harness::*;

/// The lines of the README's shell blocks under a heading, with continued lines joined.
fn commands(heading: &str) -> Vec<String> {
    let readme =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let section = readme
        .split("\n## ")
        .find(|section| section.starts_with(heading));
    let section = section.unwrap_or_else(|| panic!("the README has no section {heading:?}"));
    let blocks = section
        .split("```sh\n")
        .skip(1)
        .map(|block| block.split("```").next().unwrap());
    let text = blocks.collect::<String>().replace("\\\n", " ");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_first_words_of_the_readme_work_as_they_stand() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let commands = commands("First words");
    assert!(commands.len() >= 6, "{commands:?}");
    for command in commands {
        let here = command
            .replace("http://127.0.0.1:3001", &server.url)
            .replace("target/release/vivavoce", VIVAVOCE);
        let output = Command::new("sh")
            .args(["-c", &here])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}: {}", stderr(&output));
        let printed = stdout(&output);
        if command.contains("transcribe") {
            assert!(
                share_of_words("The weather is very nice in the summer.", &printed) >= 0.8,
                "{printed}"
            );
        }
        if command.contains("voices") {
            assert!(printed.contains("flite-slt"), "{printed}");
        }
    }
    let hello = vivavoce([
        "transcribe".as_ref(),
        folder.path().join("hello.wav").as_os_str(),
    ]);
    assert!(stdout(&hello).contains("hello"), "{}", stdout(&hello));
}
