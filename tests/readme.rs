//! What the README tells a newcomer to type, typed.

use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness::*;

/// The sections of the README with shell blocks, each of which a test runs. The first lines are CI's own.
const RUN: [&str; 7] = [
    "# Vivavoce",
    "First words",
    "Models",
    "Authentication and TLS",
    "Rooms",
    "Telephone",
    "Call hooks",
];

fn sections() -> Vec<String> {
    let readme =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    readme.split("\n## ").map(str::to_owned).collect()
}

/// The lines of the README's shell blocks under a heading, with continued lines joined.
fn commands(heading: &str) -> Vec<String> {
    let sections = sections();
    let section = sections.iter().find(|section| section.starts_with(heading));
    let section = section.unwrap_or_else(|| panic!("the README has no section {heading:?}"));
    let blocks = section
        .split("```sh\n")
        .skip(1)
        .map(|block| block.split("```").next().unwrap());
    let text = blocks.collect::<String>().replace("\\\n", " ");
    let mut commands: Vec<String> = Vec::new();
    for line in text.lines() {
        // A quoted body may have lines.
        match commands.last_mut() {
            Some(last) if last.matches('\'').count() % 2 == 1 => *last += &format!("\n{line}"),
            _ => commands.push(line.to_owned()),
        }
    }
    commands
}

/// The JSON that a `curl` of the README prints when this server is asked.
fn asked(server: &Server, command: &str) -> Value {
    let here = command.replace("http://127.0.0.1:3001", &server.url);
    assert_ne!(here, command, "the server that is asked");
    let output = run("sh", ["-c", &here.replacen("curl", "curl --silent", 1)]);
    let printed = stdout(&output);
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{command}: {error}: {printed}"))
}

fn udp_port() -> (UdpSocket, u16) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

#[test]
fn every_command_of_the_readme_is_run_by_a_test() {
    let sections = sections();
    let with_commands: Vec<&str> = sections
        .iter()
        .filter(|section| section.contains("```sh"))
        .map(|section| section.lines().next().unwrap())
        .collect();
    assert_eq!(with_commands, RUN);
    for command in commands("# Vivavoce") {
        let program = command.split_whitespace().next().unwrap();
        assert!(
            Path::new(env!("CARGO_MANIFEST_DIR")).join(program).exists(),
            "{program}"
        );
    }
}

/// What they do is tested in `models`, by servers that say what they are asked for.
#[test]
fn the_commands_and_models_of_the_readme_exist() {
    let commands = commands("Models");
    let listed = stdout(&vivavoce(["models", "list"]));
    assert!(commands.len() >= 5, "{commands:?}");
    for command in commands {
        let command = command.split('#').next().unwrap().trim();
        let arguments = command.strip_prefix("target/release/vivavoce ").unwrap();
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        if let ["models", "fetch" | "remove", model] = arguments[..] {
            assert!(listed.contains(model), "{model}: {listed}");
        }
        let help = vivavoce(arguments.into_iter().chain(["--help"]));
        assert!(help.status.success(), "{command}: {}", stderr(&help));
    }
}

#[test]
fn the_settings_of_authentication_in_the_readme_are_valid() {
    let mut script = commands("Authentication and TLS");
    assert_eq!(script.len(), 2);
    script.push(format!("{VIVAVOCE} check"));
    let output = run("sh", ["-c", &script.join("\n")]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn the_token_of_the_readme_is_issued_and_its_hook_is_kept() {
    let server = Server::start();
    let [token] = &commands("Rooms")[..] else {
        panic!("one command");
    };
    let token = asked(&server, token);
    assert!(
        token["token"].is_string() && token["rtc_url"].is_string(),
        "{token}"
    );
    let [hook] = &commands("Call hooks")[..] else {
        panic!("one command");
    };
    let hooks = asked(&server, hook).to_string();
    assert!(hooks.contains("sip.example.org"), "{hooks}");
}

#[test]
fn the_telephone_of_the_readme_listens_and_its_call_is_placed() {
    let [listen, call] = &commands("Telephone")[..] else {
        panic!("two commands");
    };
    let settings = listen.strip_suffix(" vivavoce serve").unwrap();
    let (free, port) = udp_port();
    drop(free);
    let settings = settings.replace(":5060", &format!(":{port}"));
    let mut settings: Vec<(&str, &str)> = settings
        .split_whitespace()
        .map(|setting| setting.split_once('=').unwrap())
        .collect();
    // A gateway that says nothing.
    let (gateway, gateway_port) = udp_port();
    let address = format!("127.0.0.1:{gateway_port}");
    settings.push(("SIP_OUTBOUND_ADDRESS", &address));
    let server = Server::start_with(&settings);
    let placed = asked(&server, call);
    assert_eq!(placed["status"], "initiated", "{placed}");
    gateway.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut datagram = [0; 4_096];
    let bytes = gateway.recv(&mut datagram).unwrap();
    let invite = String::from_utf8_lossy(&datagram[..bytes]).into_owned();
    assert!(invite.starts_with("INVITE "), "{invite}");
    let (telephone, own) = udp_port();
    let options = format!(
        "OPTIONS sip:100@127.0.0.1:{port} SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:{own};branch=z9hG4bK1\r\n\
         Max-Forwards: 70\r\nTo: <sip:100@127.0.0.1>\r\nFrom: <sip:ann@127.0.0.1>;tag=1\r\nCall-ID: 1\r\n\
         CSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n"
    );
    telephone
        .send_to(options.as_bytes(), ("127.0.0.1", port))
        .unwrap();
    telephone.set_read_timeout(Some(PATIENCE)).unwrap();
    let bytes = telephone.recv(&mut datagram).unwrap();
    assert!(datagram[..bytes].starts_with(b"SIP/2.0 "));
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
    assert!(stdout(&hello).contains("Hello"), "{}", stdout(&hello));
}
