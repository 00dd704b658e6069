//! An authentication service: it reads questions from the wire, verifies them with the public keys as its users are
//! told to, and answers what the test says, well or badly. Plain threads and sockets, so that it can also misbehave
//! below HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Validation, decode, decode_header};
use serde_json::Value;

use super::keys::{EC, RSA, TestKey};

/// What the service does with a question.
pub enum Reply {
    /// Answers with a status and a body.
    Answer(u16, String),
    /// Sends this, byte by byte what a test wants, and closes.
    Raw(String),
    /// Sends this, and then nothing for as long as the service lives.
    Stuck(String),
    /// Cuts the connection.
    Reset,
}

/// A good answer.
pub fn ok(body: &str) -> Reply {
    Reply::Answer(200, body.to_owned())
}

/// A question that was verified.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Which key had signed it.
    pub key: &'static str,
    /// Its claims.
    pub claims: Value,
}

impl Seen {
    /// The token that it asks about.
    pub fn token(&self) -> &str {
        self.claims["auth_data"]["token"].as_str().unwrap()
    }
}

type Decide = dyn Fn(&Seen) -> Reply + Send + Sync;

#[derive(Default)]
struct Record {
    /// The `sub` of all questions.
    subject: &'static str,
    seen: Mutex<Vec<Seen>>,
    problems: Mutex<Vec<String>>,
    stuck: Mutex<Vec<TcpStream>>,
    stopping: AtomicBool,
}

/// The service. Dropping it stops it, and fails the test if a question was not as it must be.
pub struct AuthService {
    address: SocketAddr,
    record: Arc<Record>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl AuthService {
    /// A service that decides like this.
    pub fn start(decide: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::asked_as("service-auth", decide)
    }

    /// The same, asked by a service that calls itself so.
    pub fn asked_as(
        subject: &'static str,
        decide: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let record = Arc::new(Record {
            subject,
            ..Record::default()
        });
        let decide: Arc<Decide> = Arc::new(decide);
        let thread = std::thread::spawn({
            let record = Arc::clone(&record);
            move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    if record.stopping.load(Ordering::SeqCst) {
                        return;
                    }
                    let (record, decide) = (Arc::clone(&record), Arc::clone(&decide));
                    std::thread::spawn(move || serve(stream, &record, &*decide));
                }
            }
        });
        Self {
            address,
            record,
            thread: Some(thread),
        }
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://{}/check", self.address)
    }

    /// The questions so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.record.seen.lock().unwrap().clone()
    }

    /// How many questions were signed with this key.
    pub fn signed_with(&self, key: &TestKey) -> usize {
        let seen = self.seen();
        seen.iter().filter(|seen| seen.key == key.name).count()
    }
}

impl Drop for AuthService {
    fn drop(&mut self) {
        self.record.stopping.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let problems = self.record.problems.lock().unwrap();
        assert!(
            problems.is_empty() || std::thread::panicking(),
            "{problems:?}"
        );
    }
}

fn serve(mut stream: TcpStream, record: &Record, decide: &Decide) {
    let reply = match question(&stream, record.subject) {
        // A connection that was opened for nothing.
        Ok(None) => return,
        Ok(Some(seen)) => {
            let reply = decide(&seen);
            record.seen.lock().unwrap().push(seen);
            reply
        }
        Err(problem) => {
            record.problems.lock().unwrap().push(problem);
            Reply::Answer(418, String::new())
        }
    };
    let text = match &reply {
        Reply::Answer(status, body) => format!(
            "HTTP/1.1 {status} Status\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ),
        Reply::Raw(text) | Reply::Stuck(text) => text.clone(),
        Reply::Reset => String::new(),
    };
    // Whoever has enough of a long answer hangs up in its middle.
    let _ = stream.write_all(text.as_bytes());
    match reply {
        Reply::Stuck(_) => record.stuck.lock().unwrap().push(stream),
        Reply::Reset => {
            let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        }
        Reply::Answer(..) | Reply::Raw(_) => {}
    }
}

/// Reads and verifies one; `None` when the client has closed.
fn question(stream: &TcpStream, subject: &str) -> Result<Option<Seen>, String> {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        match reader.read_line(&mut line) {
            Ok(0) | Err(_) if head.is_empty() => return Ok(None),
            Ok(length) if length > 0 => {}
            other => return Err(format!("the head ends in its middle: {other:?}")),
        }
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    if head[0] != "POST /check HTTP/1.1" {
        return Err(format!("unexpected {:?}", head[0]));
    }
    let header = |name: &str| {
        let mut fields = head.iter().filter_map(|line| line.split_once(": "));
        fields
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .ok_or_else(|| format!("{name} is missing in {head:?}"))
    };
    if header("content-type")? != "application/jwt" {
        return Err(format!("content type {:?}", header("content-type")));
    }
    let length: usize = header("content-length")?.parse().map_err(|_| "length")?;
    let mut token = vec![0; length];
    reader
        .read_exact(&mut token)
        .map_err(|error| error.to_string())?;
    verify(&String::from_utf8_lossy(&token), subject).map(Some)
}

/// What the specification tells services to check: the signature, the issuer marker, and the age.
fn verify(token: &str, subject: &str) -> Result<Seen, String> {
    let header = decode_header(token).map_err(|error| error.to_string())?;
    if header.typ.as_deref() != Some("JWT") {
        return Err(format!("typ {:?}", header.typ));
    }
    let key: &TestKey = [&*RSA, &*EC]
        .into_iter()
        .find(|key| key.algorithm == header.alg)
        .ok_or_else(|| format!("algorithm {:?}", header.alg))?;
    let mut validation = Validation::new(key.algorithm);
    validation.sub = Some(subject.to_owned());
    validation.set_required_spec_claims(&["sub", "exp"]);
    let claims: Value = decode(token, &key.public, &validation)
        .map_err(|error| error.to_string())?
        .claims;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let issued = claims["iat"].as_u64().ok_or("iat is no number")?;
    if now.abs_diff(issued) > 60 || claims["exp"] != issued + 300 {
        return Err(format!("iat and exp do not fit: {claims}"));
    }
    let key = key.name;
    Ok(Seen { key, claims })
}
