//! The socket edge: Autobahn's cases 1-7 and 10 against the echo handler, and the promises of protocol section 1 about
//! clients that do not read, say nothing, or say too much. Clients are raw TCP where the wire matters.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use actix_web::dev::ServerHandle;
use actix_web::middleware::from_fn;
use actix_web::{App, HttpRequest, web};
use bytes::Bytes;
use bytestring::ByteString;
use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::Message;
use vivavoce::http::socket::{
    self, Audio, Backlog, Closed, MessageBudget, SocketHandler, SocketSettings, SocketWriter,
};
use vivavoce::http::{Listen, Origins, track_connections};
use vivavoce::quotas::Share;

use crate::harness::{PATIENCE, within};

/// The most at a time.
const CONNECTIONS: usize = 1024;

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CONTINUE: u8 = 0;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// A server in this process with `/echo` and one handler of the test's at `/ws`.
struct Edge {
    address: SocketAddr,
    handle: ServerHandle,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Edge {
    fn echo() -> Self {
        Self::start(settings(), |_| Ignore)
    }

    fn start<H: SocketHandler>(
        settings: SocketSettings,
        handler: impl Fn(SocketWriter) -> H + Clone + Send + 'static,
    ) -> Self {
        let (started, server) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            actix_web::rt::System::new().block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let listen = Listen::of_anybody(listener, CONNECTIONS);
                let app = move || {
                    let (echo, settings, handler) =
                        (settings.clone(), settings.clone(), handler.clone());
                    App::new()
                        .wrap(from_fn(track_connections))
                        .route(
                            "/echo",
                            web::get().to(move |request: HttpRequest, payload: web::Payload| {
                                let answer = socket::echo(&request, payload, &echo)
                                    .map_err(vivavoce::http::handshake::refused);
                                async move { answer }
                            }),
                        )
                        .route(
                            "/ws",
                            web::get().to(move |request: HttpRequest, payload: web::Payload| {
                                let answer =
                                    socket::open(&request, payload, &settings, handler.clone())
                                        .map_err(vivavoce::http::handshake::refused);
                                async move { answer }
                            }),
                        )
                };
                let (address, server) = listen.serve(app).unwrap();
                started.send((address, server.handle())).unwrap();
                server.await.unwrap();
            });
        });
        let (address, handle) = server.recv().unwrap();
        Self {
            address,
            handle,
            thread: Some(thread),
        }
    }

    fn url(&self, path: &str) -> String {
        format!("ws://{}{path}", self.address)
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        drop(self.handle.stop(false));
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(ended.is_some_and(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

fn settings() -> SocketSettings {
    SocketSettings {
        allowed_origins: Origins::new(&["https://app.example".to_owned()]),
        idle_timeout: Duration::from_mins(1),
        message_timeout: Duration::from_secs(30),
        unfinished: Arc::new(MessageBudget::new(64 << 20)),
        backlog: Backlog::new(Share::NONE),
        max_buffered_audio: Duration::from_secs(2),
    }
}

/// A chunk of 20 ms.
fn audio(bytes: Bytes) -> Audio {
    Audio {
        tag: 0,
        duration: Duration::from_millis(20),
        bytes,
    }
}

struct Ignore;

impl SocketHandler for Ignore {
    fn text(&mut self, _: ByteString) {}
    fn binary(&mut self, _: Bytes) {}
    fn closed(self, _: Closed) {}
}

/// One frame as it stands on the wire: first byte, payload.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen(u8, Vec<u8>);

/// A client of bytes.
struct Raw(TcpStream);

impl Raw {
    fn connect(edge: &Edge, path: &str) -> Self {
        Self::connect_with(edge, path, None)
    }

    /// A client whose kernel takes little that it does not read.
    fn narrow(edge: &Edge, path: &str) -> Self {
        Self::connect_with(edge, path, Some(4096))
    }

    fn connect_with(edge: &Edge, path: &str, receive_bytes: Option<usize>) -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.unwrap();
        if let Some(bytes) = receive_bytes {
            socket.set_recv_buffer_size(bytes).unwrap();
        }
        socket.connect(&edge.address.into()).unwrap();
        let mut raw = Self(socket.into());
        raw.0.set_nodelay(true).unwrap();
        raw.0.set_read_timeout(Some(PATIENCE)).unwrap();
        raw.0.set_write_timeout(Some(PATIENCE)).unwrap();
        let head = raw.request(path, "");
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        raw
    }

    /// Sends a handshake and reads the head of the answer.
    fn request(&mut self, path: &str, more: &str) -> String {
        self.0.write_all(handshake(path, more).as_bytes()).unwrap();
        self.head()
    }

    /// Reads the head of an answer.
    fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        String::from_utf8(head).unwrap()
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Writes in pieces; a server that has refused may not take them all.
    fn send_chopped(&mut self, bytes: &[u8], chop: usize) {
        for piece in bytes.chunks(chop) {
            if self.0.write_all(piece).is_err() {
                return;
            }
        }
    }

    fn frame(&mut self) -> std::io::Result<Seen> {
        let mut head = [0; 2];
        self.0.read_exact(&mut head)?;
        let length = match head[1] {
            126 => {
                let mut length = [0; 2];
                self.0.read_exact(&mut length)?;
                u64::from(u16::from_be_bytes(length))
            }
            127 => {
                let mut length = [0; 8];
                self.0.read_exact(&mut length)?;
                u64::from_be_bytes(length)
            }
            short => u64::from(short),
        };
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.0.read_exact(&mut payload)?;
        Ok(Seen(head[0], payload))
    }

    /// All frames up to the close frame, and its code; then the connection must end.
    fn until_end(&mut self) -> (Vec<Seen>, Option<u16>) {
        let mut frames = Vec::new();
        loop {
            let Seen(head, payload) = self.frame().expect("no close frame");
            if head == 0x80 | CLOSE {
                let mut rest = Vec::new();
                let _ = self.0.read_to_end(&mut rest);
                assert_eq!(rest, b"", "bytes after the close frame");
                let code = payload.first_chunk().map(|code| u16::from_be_bytes(*code));
                return (frames, code);
            }
            frames.push(Seen(head, payload));
        }
    }
}

fn handshake(path: &str, more: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost:3001\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
    )
}

/// A client's frame with any first byte.
fn raw_frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        short @ 0..126 => frame.push(0x80 | short as u8),
        middle @ 126..=0xffff => {
            frame.push(0xfe);
            frame.extend((middle as u16).to_be_bytes());
        }
        long => {
            frame.push(0xff);
            frame.extend((long as u64).to_be_bytes());
        }
    }
    let mask = [0x5a, 0x17, 0xc3, 0x88];
    frame.extend(mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(a, b)| a ^ b));
    frame
}

/// A last (or only) frame.
fn last(opcode: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    raw_frame(0x80 | opcode, payload.as_ref())
}

/// A frame that more fragments follow.
fn part(opcode: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    raw_frame(opcode, payload.as_ref())
}

fn close(code: u16) -> Vec<u8> {
    last(CLOSE, code.to_be_bytes())
}

fn seen(opcode: u8, payload: impl AsRef<[u8]>) -> Seen {
    Seen(0x80 | opcode, payload.as_ref().to_vec())
}

/// What a client sends, what it must get, and the code of the server's close frame.
struct Case {
    name: String,
    wire: Vec<u8>,
    chop: usize,
    frames: Vec<Seen>,
    code: Option<u16>,
}

/// A conversation that the client ends.
fn good(name: impl Into<String>, wire: &[Vec<u8>], frames: Vec<Seen>) -> Case {
    let mut wire = wire.concat();
    wire.extend(close(1000));
    Case {
        name: name.into(),
        wire,
        chop: usize::MAX,
        frames,
        code: Some(1000),
    }
}

/// A conversation that the server must end with this code.
fn bad(name: impl Into<String>, wire: &[Vec<u8>], frames: Vec<Seen>, code: u16) -> Case {
    Case {
        name: name.into(),
        wire: wire.concat(),
        chop: usize::MAX,
        frames,
        code: Some(code),
    }
}

impl Case {
    fn chopped(mut self, chop: usize) -> Self {
        self.chop = chop;
        self.name += &format!(", chopped by {chop}");
        self
    }
}

fn check(cases: Vec<Case>) {
    let edge = Edge::echo();
    assert!(!cases.is_empty());
    for case in cases {
        let mut client = Raw::connect(&edge, "/echo");
        client.send_chopped(&case.wire, case.chop);
        let (frames, code) = client.until_end();
        assert!(frames == case.frames, "{}: other frames", case.name);
        assert_eq!(code, case.code, "{}", case.name);
    }
}

#[test]
fn autobahn_1_messages_of_every_length_come_back() {
    let mut cases = Vec::new();
    for opcode in [TEXT, BINARY] {
        for length in [0, 1, 125, 126, 127, 128, 65_535, 65_536] {
            let payload = vec![b'*'; length];
            for chop in [usize::MAX, 997] {
                let name = format!("opcode {opcode}, {length} bytes");
                let wire = [last(opcode, &payload)];
                cases.push(good(name, &wire, vec![seen(opcode, &payload)]).chopped(chop));
            }
        }
    }
    check(cases);
}

#[test]
fn autobahn_2_pings_are_answered_and_pongs_ignored() {
    let odd: Vec<u8> = vec![0, 255, 254, 253, 252, 251, 0, 255];
    let pings: Vec<_> = (0..10)
        .map(|n| last(PING, format!("payload-{n}")))
        .collect();
    let pongs: Vec<_> = (0..10)
        .map(|n| seen(PONG, format!("payload-{n}")))
        .collect();
    let mut cases: Vec<_> = [vec![], b"Hello".to_vec(), odd, vec![254; 125]]
        .into_iter()
        .flat_map(|payload| {
            [usize::MAX, 1].map(|chop| {
                let wire = [last(PING, &payload)];
                good("ping", &wire, vec![seen(PONG, &payload)]).chopped(chop)
            })
        })
        .collect();
    cases.push(bad("ping of 126", &[last(PING, [254; 126])], vec![], 1002));
    cases.push(good("empty pong", &[last(PONG, "")], vec![]));
    cases.push(good("pong", &[last(PONG, "unasked")], vec![]));
    let wire = [last(PONG, "unasked"), last(PING, "asked")];
    cases.push(good("pong, ping", &wire, vec![seen(PONG, "asked")]));
    cases.push(good("ten pings", &pings, pongs.clone()));
    cases.push(good("ten pings", &pings, pongs).chopped(1));
    check(cases);
}

#[test]
fn autobahn_3_reserved_bits_end_the_connection() {
    let mut cases = Vec::new();
    for bits in 1..8 {
        for opcode in [TEXT, BINARY, CLOSE, PING, PONG] {
            let wrong = raw_frame(0x80 | bits << 4 | opcode, b"Hello");
            let wire = [last(TEXT, "first"), wrong, last(PING, "")];
            for chop in [usize::MAX, 1] {
                let name = format!("reserved bits {bits}, opcode {opcode}");
                cases.push(bad(name, &wire, vec![seen(TEXT, "first")], 1002).chopped(chop));
            }
        }
    }
    check(cases);
}

#[test]
fn autobahn_4_reserved_opcodes_end_the_connection() {
    let mut cases = Vec::new();
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        for payload in ["", "reserved opcode payload"] {
            let wire = [last(TEXT, "first"), last(opcode, payload), last(PING, "")];
            let name = format!("opcode {opcode}");
            cases.push(bad(name, &wire, vec![seen(TEXT, "first")], 1002));
        }
    }
    check(cases);
}

#[test]
fn autobahn_5_fragments_become_messages() {
    let whole = || vec![seen(TEXT, "fragment1fragment2")];
    let ponged = || vec![seen(PONG, "ping"), seen(TEXT, "fragment1fragment2")];
    let two = [part(TEXT, "fragment1"), last(CONTINUE, "fragment2")];
    let between = [two[0].clone(), last(PING, "ping"), two[1].clone()];
    let mut cases = vec![
        bad(
            "fragmented ping",
            &[part(PING, "a"), last(CONTINUE, "b")],
            vec![],
            1002,
        ),
        bad(
            "fragmented pong",
            &[part(PONG, "a"), last(CONTINUE, "b")],
            vec![],
            1002,
        ),
        bad(
            "fragmented close",
            &[part(CLOSE, ""), last(CONTINUE, "")],
            vec![],
            1002,
        ),
    ];
    for chop in [usize::MAX, 1] {
        cases.push(good("two fragments", &two, whole()).chopped(chop));
        cases.push(good("a ping between", &between, ponged()).chopped(chop));
        for fin in [0x80, 0] {
            let wire = [raw_frame(fin | CONTINUE, b"fragment"), last(TEXT, "Hello")];
            cases.push(bad("nothing to continue", &wire, vec![], 1002).chopped(chop));
        }
        for fin in [0x80, 0] {
            let wire = [
                two.concat(),
                raw_frame(fin | CONTINUE, b"fragment3"),
                last(TEXT, "x"),
            ];
            cases.push(bad("continued after its end", &wire, whole(), 1002).chopped(chop));
        }
        let wire = [part(TEXT, "fragment1"), last(TEXT, "fragment2")];
        cases.push(bad("text within a text", &wire, vec![], 1002).chopped(chop));
        let wire = [
            part(TEXT, "1"),
            part(CONTINUE, "2"),
            last(PING, "a"),
            part(CONTINUE, "3"),
            part(CONTINUE, "4"),
            last(PING, "b"),
            last(CONTINUE, "5"),
        ];
        let frames = vec![seen(PONG, "a"), seen(PONG, "b"), seen(TEXT, "12345")];
        cases.push(good("five fragments, two pings", &wire, frames).chopped(chop));
    }
    let wire = [part(BINARY, [0, 255]), last(CONTINUE, [254])];
    cases.push(good(
        "binary fragments",
        &wire,
        vec![seen(BINARY, [0, 255, 254])],
    ));
    check(cases);
}

/// Valid sequences: Autobahn 6.2 and the valid ones of 6.5-6.22.
const UTF8: &[&[u8]] = &[
    "Hello-µ@ßöäüàá-UTF-8!!".as_bytes(),
    "κόσμε".as_bytes(),
    b"\x00",
    b"\x7f",
    b"\xc2\x80",
    b"\xdf\xbf",
    b"\xe0\xa0\x80",
    b"\xed\x9f\xbf",
    b"\xee\x80\x80",
    b"\xef\xbf\xbd",
    b"\xef\xbf\xbe",
    b"\xef\xbf\xbf",
    b"\xf0\x90\x80\x80",
    b"\xf4\x8f\xbf\xbf",
    b"\xf0\x9f\xbf\xbe",
    b"\xf3\xbf\xbf\xbf",
];

/// Invalid ones: Autobahn 6.3, 6.6 and 6.8-6.20.
const NOT_UTF8: &[&[u8]] = &[
    b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited",
    b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xf4\x90\x80\x80edited",
    b"\xce",
    b"\xce\xba\xe1",
    b"\xf8\x88\x80\x80\x80",
    b"\xfc\x84\x80\x80\x80\x80",
    b"\xf7\xbf\xbf\xbf",
    b"\xfb\xbf\xbf\xbf\xbf",
    b"\xf4\x90\x80\x80",
    b"\x80",
    b"\xbf",
    b"\x80\xbf\x80\xbf",
    b"\xc0 \xc1 \xc2 ",
    b"\xe0 \xef ",
    b"\xf0 \xf7 ",
    b"\xc0",
    b"\xe0\x80",
    b"\xf0\x80\x80",
    b"\xdf",
    b"\xef\xbf",
    b"\xf7\xbf\xbf",
    b"\xfe",
    b"\xff",
    b"\xfe\xfe\xff\xff",
    b"\xc0\xaf",
    b"\xe0\x80\xaf",
    b"\xf0\x80\x80\xaf",
    b"\xc1\xbf",
    b"\xe0\x9f\xbf",
    b"\xf0\x8f\xbf\xbf",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xed\xa0\x80\xed\xb0\x80",
    b"\xed\xaf\xbf\xed\xbf\xbf",
];

/// One fragment per byte.
fn byte_by_byte(payload: &[u8]) -> Vec<u8> {
    let mut wire = part(TEXT, "");
    for byte in payload {
        wire.extend(part(CONTINUE, [*byte]));
    }
    wire.extend(last(CONTINUE, ""));
    wire
}

#[test]
fn autobahn_6_text_is_utf8_or_the_end() {
    let empty = [part(TEXT, ""), part(CONTINUE, ""), last(CONTINUE, "")];
    let middle = [part(TEXT, ""), part(CONTINUE, "middle"), last(CONTINUE, "")];
    let mut cases = vec![
        good("empty fragments", &empty, vec![seen(TEXT, "")]),
        good("empty ends", &middle, vec![seen(TEXT, "middle")]),
    ];
    for payload in UTF8 {
        for wire in [last(TEXT, payload), byte_by_byte(payload)] {
            let name = payload.escape_ascii().to_string();
            cases.push(good(name, &[wire], vec![seen(TEXT, payload)]));
        }
    }
    for payload in NOT_UTF8 {
        for wire in [last(TEXT, payload), byte_by_byte(payload)] {
            let name = payload.escape_ascii().to_string();
            cases.push(bad(name, &[wire, last(TEXT, "after")], vec![], 1007));
        }
    }
    check(cases);
}

#[test]
fn autobahn_7_closing_is_answered_and_final() {
    let long = vec![b'*'; 262_144];
    let reason = |length: usize| [&1000_u16.to_be_bytes()[..], &vec![b'*'; length]].concat();
    let mut cases = vec![
        good(
            "text, close",
            &[last(TEXT, "Hello")],
            vec![seen(TEXT, "Hello")],
        ),
        bad("two closes", &[close(1000), close(1000)], vec![], 1000),
        bad(
            "ping after close",
            &[close(1000), last(PING, "")],
            vec![],
            1000,
        ),
        bad(
            "text after close",
            &[close(1000), last(TEXT, "no")],
            vec![],
            1000,
        ),
        bad(
            "close within a text",
            &[part(TEXT, "a"), close(1000), last(CONTINUE, "b")],
            vec![],
            1000,
        ),
        bad(
            "256 KiB, close, ping",
            &[last(TEXT, &long), close(1000), last(PING, "")],
            vec![seen(TEXT, &long)],
            1000,
        ),
        bad("close of one byte", &[last(CLOSE, "a")], vec![], 1002),
        bad("reason", &[last(CLOSE, reason(10))], vec![], 1000),
        bad("longest reason", &[last(CLOSE, reason(123))], vec![], 1000),
        bad("reason too long", &[last(CLOSE, reason(124))], vec![], 1002),
        bad(
            "reason not UTF-8",
            &[last(CLOSE, b"\x03\xe8\xce\xba\xed\xa0\x80")],
            vec![],
            1002,
        ),
    ];
    let empty = bad("close without a code", &[last(CLOSE, "")], vec![], 0);
    cases.push(Case {
        code: None,
        ..empty
    });
    for code in [
        1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000,
        4999,
    ] {
        cases.push(bad(format!("code {code}"), &[close(code)], vec![], code));
    }
    for code in [
        0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535,
    ] {
        cases.push(bad(format!("code {code}"), &[close(code)], vec![], 1002));
    }
    check(cases);
}

/// RFC 6455 lets a client send once it has the answer to its handshake. One that cannot wait is heard all the same, however
/// much it sends, and wherever the pieces are cut.
#[test]
fn what_comes_with_the_handshake_is_not_lost() {
    let edge = Edge::echo();
    let texts: Vec<String> = (0..60)
        .map(|n: u32| format!("{n:05} ").repeat(900))
        .collect();
    let frames: Vec<_> = texts.iter().map(|text| last(TEXT, text)).collect();
    let early = [frames.concat(), close(1000)].concat();
    for chop in [usize::MAX, 1 << 16, 4_096, 700] {
        let socket = TcpStream::connect(edge.address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = Raw(socket);
        let mut sending = client.0.try_clone().unwrap();
        let wire = [handshake("/echo", "").as_bytes(), &early].concat();
        let sender = std::thread::spawn(move || {
            wire.chunks(chop)
                .all(|piece| sending.write_all(piece).is_ok())
        });
        let head = client.head();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let (heard, code) = client.until_end();
        let expected: Vec<_> = texts.iter().map(|text| seen(TEXT, text)).collect();
        assert!(heard == expected, "{} frames came back", heard.len());
        assert_eq!(code, Some(1000));
        assert!(sender.join().unwrap());
    }
}

#[test]
fn autobahn_10_a_message_in_many_fragments_comes_back_whole() {
    let payload = vec![b'*'; 65_536];
    let mut pieces = payload.chunks(1300).peekable();
    let mut wire = Vec::new();
    let mut opcode = TEXT;
    while let Some(piece) = pieces.next() {
        let first = if pieces.peek().is_none() { 0x80 } else { 0 } | opcode;
        wire.push(raw_frame(first, piece));
        opcode = CONTINUE;
    }
    let wire = wire.concat();
    check(vec![
        good(
            "1300 bytes each",
            std::slice::from_ref(&wire),
            vec![seen(TEXT, &payload)],
        ),
        good("1300 bytes each", &[wire], vec![seen(TEXT, &payload)]).chopped(1009),
    ]);
}

#[test]
fn too_long_messages_close_with_1009_before_they_are_sent() {
    let head =
        |first: u8, length: u64| [&[first, 0xff][..], &length.to_be_bytes(), &[0; 4]].concat();
    let mebibyte = vec![0; 1 << 20];
    check(vec![
        bad("text", &[head(0x81, (4 << 20) + 1)], vec![], 1009),
        bad("binary", &[head(0x82, (1 << 20) + 1)], vec![], 1009),
        bad("largest", &[head(0x82, u64::MAX >> 1)], vec![], 1009),
        bad(
            "fragments",
            &[part(BINARY, &mebibyte), head(0x80, 1)],
            vec![],
            1009,
        ),
        good(
            "binary that fits",
            &[last(BINARY, &mebibyte)],
            vec![seen(BINARY, &mebibyte)],
        ),
    ]);
}

#[test]
fn garbage_instead_of_frames_ends_that_connection_only() {
    let unmasked = vec![0x81, 5, b'H', b'e', b'l', b'l', b'o'];
    let mut noise: Vec<u8> = (0_u32..100_000)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    noise[0] |= 0x70;
    noise[1] |= 0x80;
    check(vec![
        bad("unmasked", &[unmasked], vec![], 1002),
        bad("HTTP", &[b"GET / HTTP/1.1\r\n\r\n".to_vec()], vec![], 1002),
        bad("noise", &[noise], vec![], 1002),
        bad(
            "length without an end",
            &[vec![0x82, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]],
            vec![],
            1009,
        ),
        good(
            "and others go on",
            &[last(TEXT, "Hello")],
            vec![seen(TEXT, "Hello")],
        ),
    ]);
}

/// What `/ws` hears, and how it ended.
enum Heard {
    Text(SocketWriter, String),
    Binary(usize),
    Closed(Closed),
}

/// Hands everything to the test.
struct Report(SocketWriter, mpsc::Sender<Heard>);

impl SocketHandler for Report {
    fn text(&mut self, text: ByteString) {
        let _ = self.1.send(Heard::Text(self.0.clone(), text.to_string()));
    }

    fn binary(&mut self, bytes: Bytes) {
        let _ = self.1.send(Heard::Binary(bytes.len()));
    }

    fn closed(self, closed: Closed) {
        let _ = self.1.send(Heard::Closed(closed));
    }
}

fn reporting(settings: SocketSettings) -> (Edge, mpsc::Receiver<Heard>) {
    let (sender, heard) = mpsc::channel();
    let edge = Edge::start(settings, move |writer| Report(writer, sender.clone()));
    (edge, heard)
}

/// However soon the end of the connection follows.
#[test]
fn what_comes_with_the_handshake_is_heard_from_a_client_that_has_gone() {
    let (edge, heard) = reporting(settings());
    for _ in 0..20 {
        let mut client = TcpStream::connect(edge.address).unwrap();
        let early = [last(TEXT, "a"), last(BINARY, [1; 640]), last(BINARY, [])].concat();
        let wire = [handshake("/ws", "").as_bytes(), &early].concat();
        client.write_all(&wire).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let next = || heard.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(next(), Heard::Text(_, text) if text == "a"));
        assert!(matches!(next(), Heard::Binary(640)));
        assert!(matches!(next(), Heard::Binary(0)));
        assert!(matches!(next(), Heard::Closed(closed) if closed.code == 1006));
        let mut rest = Vec::new();
        let _ = client.read_to_end(&mut rest);
    }
}

/// What a bound of two seconds may take on a machine that does other things; its exact length is tested in virtual time.
const SLACK: Duration = Duration::from_secs(10);

/// The writer of the socket whose client says something.
fn writer_of(client: &mut Raw, heard: &mpsc::Receiver<Heard>) -> SocketWriter {
    client.send(&last(TEXT, "here"));
    match heard.recv_timeout(PATIENCE) {
        Ok(Heard::Text(writer, text)) if text == "here" => writer,
        _ => panic!("the text was not heard"),
    }
}

fn closed(heard: &mpsc::Receiver<Heard>) -> Closed {
    loop {
        if let Heard::Closed(closed) = heard.recv_timeout(PATIENCE).unwrap() {
            return closed;
        }
    }
}

/// Gives 20 ms chunks until no more is taken; returns the bytes that were taken.
fn fill(writer: &SocketWriter, chunk_bytes: usize) -> usize {
    let taken = AtomicUsize::new(0);
    let mut quiet = Instant::now();
    within(PATIENCE, "audio is taken without bound", || {
        if writer
            .audio(audio(Bytes::from(vec![7; chunk_bytes])))
            .is_ok()
        {
            taken.fetch_add(chunk_bytes, Ordering::Relaxed);
            quiet = Instant::now();
        }
        // Full, and the transport takes nothing any more.
        (quiet.elapsed() > Duration::from_millis(300)).then_some(())
    });
    taken.into_inner()
}

#[test]
fn a_client_that_never_reads_is_heard_and_costs_no_more_than_the_bounds() {
    let (edge, heard) = reporting(settings());
    let mut client = Raw::narrow(&edge, "/ws");
    let writer = writer_of(&mut client, &heard);
    // 100 chunks are 2 s; the rest is what both kernels hold.
    let taken = fill(&writer, 4_000);
    assert!(taken < 100 * 4_000 + 300_000, "{taken} bytes were taken");

    let other = Edge::url(&edge, "/echo");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let slowest = runtime.spawn(async move {
        let (mut other, _) = tokio_tungstenite::connect_async(other).await.unwrap();
        let mut slowest = Duration::ZERO;
        for _ in 0..200 {
            let asked = Instant::now();
            other.send(Message::Ping("?".into())).await.unwrap();
            other.next().await.unwrap().unwrap();
            slowest = slowest.max(asked.elapsed());
        }
        slowest
    });
    let minute = last(BINARY, [1; 640]);
    for _ in 0..3_000 {
        client.send(&minute);
    }
    for _ in 0..3_000 {
        assert!(matches!(
            heard.recv_timeout(PATIENCE),
            Ok(Heard::Binary(640))
        ));
    }
    let slowest = runtime.block_on(slowest).unwrap();
    // Far from any measure of speed: a socket that waits for another would wait for its dismissal.
    assert!(slowest < SLACK, "another socket waited {slowest:?}");

    // It reads at last: what was taken is all there, and nothing else.
    let mut audio = 0;
    while audio < taken {
        match client.frame().unwrap() {
            Seen(0x82, payload) => audio += payload.len(),
            other => assert_eq!(other.0, 0x80 | PING),
        }
    }
    assert_eq!(audio, taken);
    client.send(&close(1000));
    assert_eq!(client.until_end(), (vec![], Some(1000)));
}

#[test]
fn cleared_audio_stays_unheard_and_the_event_keeps_its_place() {
    let (edge, heard) = reporting(settings());
    let mut client = Raw::narrow(&edge, "/ws");
    let writer = writer_of(&mut client, &heard);
    writer.event("before");
    let taken = fill(&writer, 4_000);
    let cut = writer.cut_audio(0);
    assert!(cut > Duration::from_millis(1_900), "only {cut:?} waited");
    writer.event("cleared");
    writer.audio(audio(Bytes::from_static(b"next"))).unwrap();
    writer.close(1000, "done");

    let mut heard_bytes = 0;
    assert_eq!(client.frame().unwrap(), seen(TEXT, "before"));
    loop {
        match client.frame().unwrap() {
            Seen(0x82, payload) => heard_bytes += payload.len(),
            event => break assert_eq!(event, seen(TEXT, "cleared")),
        }
    }
    let cut_bytes = cut.as_millis() as usize / 20 * 4_000;
    assert_eq!(heard_bytes + cut_bytes, taken);
    assert_eq!(client.frame().unwrap(), seen(BINARY, "next"));
    client.send(&close(1000));
    assert_eq!(client.until_end(), (vec![], Some(1000)));
}

#[test]
fn a_client_too_slow_for_its_events_is_closed_with_1013() {
    let (edge, heard) = reporting(settings());
    let mut client = Raw::narrow(&edge, "/ws");
    let writer = writer_of(&mut client, &heard);
    fill(&writer, 4_000);
    for n in 0..10_000 {
        writer.latest("interim", format!("interim {n}"));
    }
    for n in 0..=socket::MAX_EVENTS {
        writer.event(format!("{n}"));
    }
    let end = closed(&heard);
    assert_eq!(end.code, 1013, "{end:?}");
    // Events that it cannot have any more are not sent.
    let (frames, code) = client.until_end();
    assert_eq!(code, Some(1013));
    assert!(frames.iter().all(|frame| frame.0 == 0x82));
}

#[test]
fn a_client_that_does_not_read_its_dismissal_is_dropped_within_two_seconds() {
    let (edge, heard) = reporting(settings());
    let mut client = Raw::narrow(&edge, "/ws");
    let writer = writer_of(&mut client, &heard);
    fill(&writer, 4_000);
    for n in 0..=socket::MAX_EVENTS {
        writer.event(format!("{n}"));
    }
    within(SLACK, "the connection stands", || {
        client.0.take_error().unwrap()
    });
}

#[test]
fn a_client_that_hangs_up_half_way_without_reading_is_dropped() {
    let (edge, heard) = reporting(settings());
    let mut client = Raw::narrow(&edge, "/ws");
    let writer = writer_of(&mut client, &heard);
    fill(&writer, 4_000);
    client.0.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(closed(&heard).code, 1006);
    within(SLACK, "the connection stands", || {
        client.0.take_error().unwrap()
    });
}

#[test]
fn silence_closes_with_4409() {
    let (edge, heard) = reporting(SocketSettings {
        idle_timeout: Duration::from_millis(1_500),
        ..settings()
    });
    let mut client = Raw::connect(&edge, "/ws");
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(2_500) {
        client.send(&last(PONG, ""));
        #[expect(clippy::disallowed_methods, reason = "on a thread of its own")]
        std::thread::sleep(Duration::from_millis(50));
    }
    // Any frame counts as life: still open.
    let writer = writer_of(&mut client, &heard);
    let silent = Instant::now();
    let Seen(head, payload) = client.frame().unwrap();
    assert_eq!((head, &payload[..2]), (0x88, &4409_u16.to_be_bytes()[..]));
    assert!(silent.elapsed() >= Duration::from_millis(1_400));
    assert_eq!(closed(&heard).code, 4409);
    assert!(writer.audio(audio(Bytes::new())).is_err());
}

/// Blocks nothing: each text is a command that takes for ever.
struct Busy;

impl SocketHandler for Busy {
    fn text(&mut self, _: ByteString) {
        actix_web::rt::spawn(std::future::pending::<()>());
    }
    fn binary(&mut self, _: Bytes) {}
    fn closed(self, _: Closed) {}
}

#[tokio::test]
async fn pings_are_answered_while_a_command_is_carried_out() {
    let edge = Edge::start(settings(), |_| Busy);
    let (mut client, _) = tokio_tungstenite::connect_async(edge.url("/ws"))
        .await
        .unwrap();
    client.send(Message::text("work")).await.unwrap();
    client.send(Message::Ping("?".into())).await.unwrap();
    assert_eq!(
        client.next().await.unwrap().unwrap(),
        Message::Pong("?".into())
    );
    client.close(None).await.unwrap();
}

#[test]
fn the_server_closes_with_its_code_and_waits_for_the_answer() {
    let (edge, heard) = reporting(settings());
    let mut client = Raw::connect(&edge, "/ws");
    let writer = writer_of(&mut client, &heard);
    writer.event("last words");
    writer.close(1001, "draining");
    writer.event("too late");
    assert_eq!(client.frame().unwrap(), seen(TEXT, "last words"));
    assert_eq!(client.frame().unwrap(), seen(CLOSE, b"\x03\xe9draining"));
    // What it says meanwhile is not heard.
    client.send(&last(TEXT, "not heard"));
    client.send(&close(1001));
    assert_eq!(
        client.0.read(&mut [0]).unwrap(),
        0,
        "the server ends the connection"
    );
    assert_eq!(closed(&heard).code, 1001);
    assert!(heard.try_recv().is_err());
}

struct Panics;

impl SocketHandler for Panics {
    fn text(&mut self, _: ByteString) {
        panic!("a handler at fault");
    }
    fn binary(&mut self, _: Bytes) {}
    fn closed(self, _: Closed) {}
}

#[test]
fn a_handler_that_panics_ends_its_own_connection_only() {
    let edge = Edge::start(settings(), |_| Panics);
    let mut client = Raw::connect(&edge, "/ws");
    client.send(&last(TEXT, "go"));
    assert!(client.frame().is_err());
    let mut other = Raw::connect(&edge, "/echo");
    other.send(&last(TEXT, "Hello"));
    assert_eq!(other.frame().unwrap(), seen(TEXT, "Hello"));
}

#[test]
fn pages_of_other_origins_may_not_connect() {
    let edge = Edge::echo();
    for (origin, status) in [
        ("http://localhost:3001", "101"),
        ("https://LOCALHOST:3001", "101"),
        ("https://app.example", "101"),
        ("https://app.example.evil.example", "403"),
        ("http://localhost", "403"),
        ("null", "403"),
    ] {
        let mut client = Raw(TcpStream::connect(edge.address).unwrap());
        let head = client.request("/echo", &format!("Origin: {origin}\r\n"));
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{origin}: {head}"
        );
    }
}

#[tokio::test]
async fn requests_that_are_no_handshake_get_our_error_body() {
    let edge = Edge::echo();
    let url = format!("http://{}/echo", edge.address);
    let client = crate::harness::client();
    let plain = client.get(&url).send().await.unwrap();
    crate::harness::assert_error(plain, 400, "INVALID_REQUEST", "handshake").await;
    let foreign = client
        .get(&url)
        .header("origin", "https://evil.example")
        .send();
    crate::harness::assert_error(foreign.await.unwrap(), 403, "ORIGIN_NOT_ALLOWED", "evil").await;
    let old = client
        .get(&url)
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "8")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .send()
        .await
        .unwrap();
    assert_eq!(old.headers()["sec-websocket-version"], "13");
    crate::harness::assert_error(old, 400, "INVALID_REQUEST", "version").await;
}
