//! Whole-server measurements of one-shot speech: cache hits per CPU second of the server, beside a bare actix-web
//! handler that returns the same bytes, and the time from start to ready. Prints Markdown for `benches/RESULTS.md`.
//! CPU seconds, not wall-clock time: the load generator shares the machine, but not the account.

// A measurement that cannot be made shall stop.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use actix_web::{App, HttpResponse, HttpServer, web};

const CONNECTIONS: usize = 4;
const REQUESTS_PER_CONNECTION: usize = 5_000;
const ROUNDS: usize = 5;
const STARTS: usize = 20;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(place) = arguments.iter().position(|argument| argument == "--bare") {
        return bare(arguments[place + 1].parse().unwrap());
    }
    println!("### `/speak` cache hits\n");
    println!(
        "| format | bytes | hits per CPU second | bare handler | ratio |\n|---|---|---|---|---|"
    );
    for (format, rate) in [("mp3", 24_000), ("linear16", 24_000)] {
        compare(format, rate);
    }
    println!("\n### From start to ready\n");
    let mut times: Vec<Duration> = (0..STARTS).map(|_| start_to_ready()).collect();
    times.sort();
    println!(
        "{STARTS} starts, process start to first 200 of `/readyz`: median {} ms, worst {} ms",
        times[STARTS / 2].as_millis(),
        times[STARTS - 1].as_millis()
    );
}

/// The bare handler: reads the body, returns the same bytes as the server under test.
fn bare(length: usize) {
    let sound = web::Bytes::from(vec![0x55; length]);
    actix_web::rt::System::new().block_on(async move {
        let app = move || {
            let sound = sound.clone();
            App::new().route(
                "/speak",
                web::post().to(move |_: web::Bytes| {
                    let sound = sound.clone();
                    async move { HttpResponse::Ok().content_type("audio/pcm").body(sound) }
                }),
            )
        };
        let server = HttpServer::new(app).workers(1).bind("127.0.0.1:0").unwrap();
        println!("listens on http://{}", server.addrs()[0]);
        server.run().await.unwrap();
    });
}

fn compare(format: &str, rate: u32) {
    let body = format!(
        r#"{{"text":"The weather is very nice in the summer.","tts_config":{{"provider":"local","model":"","audio_format":"{format}","sample_rate":{rate}}}}}"#
    );
    let data = tempfile::tempdir().unwrap();
    let ours = Running::start(
        Command::new(env!("CARGO_BIN_EXE_vivavoce"))
            .args([
                "serve",
                "--port",
                "0",
                "--set",
                "server.workers=1",
                "--data-dir",
            ])
            .arg(data.path()),
    );
    let length = request(
        &mut TcpStream::connect(&ours.address).unwrap(),
        &body,
        &mut Vec::new(),
    );
    let bare = Running::start(
        Command::new(std::env::current_exe().unwrap()).args(["--bare", &length.to_string()]),
    );
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (server, rates) in [&ours, &bare].into_iter().zip(&mut rates) {
            rates.push(server.hits_per_cpu_second(&body, length));
        }
    }
    let [ours, bare] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[ROUNDS / 2]
    });
    println!(
        "| {format} {rate} Hz | {length} | {ours:.0} | {bare:.0} | {:.2} |",
        ours / bare
    );
}

struct Running {
    child: Child,
    address: String,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let address = lines.find_map(|line| {
            line.split_once("http://")
                .map(|(_, address)| address.to_owned())
        });
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            address: address.unwrap(),
        }
    }

    fn hits_per_cpu_second(&self, body: &str, length: usize) -> f64 {
        let before = self.cpu_seconds();
        std::thread::scope(|scope| {
            for _ in 0..CONNECTIONS {
                scope.spawn(|| {
                    let mut connection = TcpStream::connect(&self.address).unwrap();
                    let mut buffer = Vec::new();
                    for _ in 0..REQUESTS_PER_CONNECTION {
                        assert_eq!(request(&mut connection, body, &mut buffer), length);
                    }
                });
            }
        });
        (CONNECTIONS * REQUESTS_PER_CONNECTION) as f64 / (self.cpu_seconds() - before)
    }

    /// Time on a core of all threads of the process so far.
    fn cpu_seconds(&self) -> f64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let nanos = threads.flatten().map(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("schedstat")).unwrap();
            stat.split_whitespace()
                .next()
                .unwrap()
                .parse::<u64>()
                .unwrap()
        });
        nanos.sum::<u64>() as f64 / 1e9
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One request on a kept connection; the length of the answer's body.
fn request(connection: &mut TcpStream, body: &str, buffer: &mut Vec<u8>) -> usize {
    let length = body.len();
    let head = format!(
        "POST /speak HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    connection.write_all((head + body).as_bytes()).unwrap();
    buffer.clear();
    let (head_end, body_length) = loop {
        read_some(connection, buffer);
        if let Some(end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head = std::str::from_utf8(&buffer[..end])
                .unwrap()
                .to_ascii_lowercase();
            assert!(head.starts_with("http/1.1 200"), "{head}");
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .unwrap();
            break (end + 4, length.parse::<usize>().unwrap());
        }
    };
    while buffer.len() < head_end + body_length {
        read_some(connection, buffer);
    }
    body_length
}

fn read_some(connection: &mut TcpStream, buffer: &mut Vec<u8>) {
    let mut chunk = [0; 16_384];
    let read = connection.read(&mut chunk).unwrap();
    assert!(read > 0, "the server hung up");
    buffer.extend_from_slice(&chunk[..read]);
}

fn start_to_ready() -> Duration {
    let data = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let start = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_vivavoce"))
        .args(["serve", "--port", &port.to_string(), "--data-dir"])
        .arg(data.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let ready = loop {
        let answer = TcpStream::connect(("127.0.0.1", port)).and_then(|mut connection| {
            connection
                .write_all(b"GET /readyz HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")?;
            let mut answer = String::new();
            connection.read_to_string(&mut answer)?;
            Ok(answer)
        });
        if answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")) {
            break start.elapsed();
        }
        #[expect(clippy::disallowed_methods, reason = "this program has one thread")]
        std::thread::sleep(Duration::from_millis(1));
    };
    child.kill().unwrap();
    child.wait().unwrap();
    ready
}
