//! The five programs of the page of webhooks: each takes what a server has signed, and refuses the same with another byte.

use std::process::{Command, Stdio};

use super::fences::blocks;
use super::run::text_of;
use crate::examples::{in_repository, installed};
use crate::harness::*;

/// How a language's program is started, where it can be.
const LANGUAGES: [(&str, &str, &str); 5] = [
    ("python", "verify.py", "python3 verify.py"),
    ("js", "verify.mjs", "node verify.mjs"),
    ("go", "main.go", "go run main.go"),
    ("ruby", "verify.rb", "ruby verify.rb"),
    ("php", "verify.php", "php verify.php"),
];
const SECRET: &str = "a secret of sixteen bytes or more";

/// The first request to a socket: its headers by name, and its body.
fn posted(listener: &std::net::TcpListener) -> (Vec<(String, String)>, String) {
    use std::io::{BufRead, BufReader, Read, Write};
    let (mut socket, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            if line.trim().is_empty() {
                break;
            }
            continue;
        };
        headers.push((name.to_lowercase(), value.to_owned()));
    }
    let length = headers
        .iter()
        .find(|(name, _)| name == "content-length")
        .unwrap()
        .1
        .parse()
        .unwrap();
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    socket
        .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
        .unwrap();
    (headers, String::from_utf8(body).unwrap())
}

#[actix_web::test]
async fn every_program_of_the_page_takes_what_a_server_signs_and_nothing_else() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/events", listener.local_addr().unwrap());
    let server = Server::start_with(&[
        ("WEBHOOKS_URL", &url),
        ("WEBHOOKS_SECRET", SECRET),
        ("WEBHOOKS_ALLOW_INSECURE", "true"),
        ("WEBHOOKS_ALLOW_PRIVATE", "true"),
        ("NULL_ENABLED", "true"),
    ]);
    crate::webhooks::talk(&server, "signed", "Grüße").await;
    let (headers, body) = posted(&listener);
    let header = |name: &str| {
        headers
            .iter()
            .find(|(known, _)| known == name)
            .unwrap()
            .1
            .clone()
    };
    let arguments = [
        "x-service-timestamp",
        "x-service-event-id",
        "x-service-signature",
    ]
    .map(header);
    let page = blocks(&text_of(&in_repository("docs/reference/webhooks.md"))).unwrap();
    let programs: Vec<_> = page.iter().filter(|block| block.is("verifies")).collect();
    assert_eq!(programs.len(), LANGUAGES.len());
    let folder = tempfile::tempdir().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let python = installed(".clients/python/bin");
    let mut ran = Vec::new();
    for (language, file, start) in LANGUAGES {
        let block = programs.iter().find(|block| block.language == language);
        std::fs::write(folder.path().join(file), &block.expect(language).text).unwrap();
        let interpreter = start.split(' ').next().unwrap();
        let is_there = run("sh", ["-c", &format!("command -v {interpreter} || true")]);
        if stdout(&is_there).is_empty() {
            continue;
        }
        let verifies = |body: &str| {
            let mut child = Command::new("sh")
                .args(["-c", &format!("exec {start} \"$@\""), "sh"])
                .args(&arguments)
                .current_dir(folder.path())
                .env("PATH", format!("{}:{path}", python.display()))
                .env("WEBHOOKS_SECRET", SECRET)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut input = child.stdin.take().unwrap();
            std::io::Write::write_all(&mut input, body.as_bytes()).unwrap();
            drop(input);
            child.wait_with_output().unwrap()
        };
        let good = verifies(&body);
        assert!(
            good.status.success(),
            "{language}: {}{}",
            stdout(&good),
            stderr(&good)
        );
        let bad = verifies(&body.replace("signed", "singed"));
        assert!(!bad.status.success(), "{language} takes anything");
        ran.push(language);
    }
    println!("ran: {ran:?}");
    assert!(ran.contains(&"python") && ran.contains(&"js"), "{ran:?}");
}
