//! A client of `/ws` that tests read like prose. It notes when everything came, in the order in which it came, and knows
//! nothing about what should come. What sound is in it, is for [`super::sound`] to say.

use std::fmt;
use std::ops::Index;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::http::StatusCode;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_util::task::AbortOnDropHandle;
use vivavoce::audio::encode::Encoded;

use super::endurance::times;
use crate::harness::{PATIENCE, Server, client, local};

type Socket = WebSocketStream<TcpStream>;
type Sink = Arc<Mutex<SplitSink<Socket, Message>>>;

/// A `config` of the local engines with some fields set.
pub fn config(fields: Value) -> Value {
    let config = json!({
        "type": "config", "stt_config": {"provider": "local"}, "tts_config": {"provider": "local", "model": ""},
    });
    with(config, fields)
}

/// A `config` whose `stt_config` has these fields.
pub fn hears(fields: Value) -> Value {
    config(json!({"stt_config": with(json!({"provider": "local"}), fields)}))
}

/// A `config` whose `tts_config` has these fields.
pub fn says(fields: Value) -> Value {
    config(json!({"tts_config": local(fields)}))
}

/// An object with more fields.
pub fn with(mut object: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else {
        panic!("fields are an object")
    };
    object.as_object_mut().unwrap().extend(fields);
    object
}

/// The answer to a handshake with these headers: 101, or why not.
pub async fn handshake(server: &Server, headers: &[(&str, &str)]) -> reqwest::Response {
    let always = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let mut request = client().get(format!("{}/ws", server.url));
    for &(name, value) in always.iter().chain(headers) {
        request = request.header(name, value);
    }
    request.send().await.unwrap()
}

/// A text frame of the server.
#[derive(Debug, Clone)]
pub struct Event {
    /// When it came.
    pub at: Instant,
    /// How many chunks of sound had come before it.
    pub chunks_before: usize,
    /// The message.
    pub body: Value,
}

impl Event {
    /// Its `type`.
    pub fn kind(&self) -> &str {
        self["type"].as_str().expect("every message has a type")
    }

    /// A field that is a text.
    pub fn text(&self, field: &str) -> &str {
        let text = self[field].as_str();
        text.unwrap_or_else(|| panic!("{field} is no text in {self}"))
    }

    /// A field that is a number of milliseconds.
    pub fn time(&self, field: &str) -> Duration {
        let time = self[field].as_u64();
        Duration::from_millis(time.unwrap_or_else(|| panic!("{field} is no time in {self}")))
    }

    /// A field that is true or false.
    pub fn is(&self, field: &str) -> bool {
        let flag = self[field].as_bool();
        flag.unwrap_or_else(|| panic!("{field} is neither true nor false in {self}"))
    }
}

impl Index<&str> for Event {
    type Output = Value;

    fn index(&self, field: &str) -> &Value {
        &self.body[field]
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.body.fmt(f)
    }
}

/// A binary frame of the server.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// When it came.
    pub at: Instant,
    /// What it holds.
    pub data: Bytes,
}

/// All that has come so far.
#[derive(Debug, Default)]
struct Log {
    events: Vec<Event>,
    sound: Vec<Chunk>,
    pongs: Vec<Instant>,
    /// The code of the server's close frame. Where there was none: 1005, 1006 (RFC 6455, section 7.4.1).
    ended: Option<u16>,
}

fn socket_url(server: &Server) -> String {
    format!("{}/ws", server.url.replacen("http", "ws", 1))
}

/// One socket.
pub struct Session {
    sink: Sink,
    log: watch::Receiver<Log>,
    reads: watch::Sender<bool>,
    /// Holds the other half of the connection, which ends with the session.
    _listener: AbortOnDropHandle<()>,
    /// Events that [`Session::next`] has passed.
    passed: usize,
}

impl Session {
    /// Longer than a server is ahead, and than any pause between two chunks.
    const SILENCE: Duration = Duration::from_millis(400);

    /// A socket without `config`.
    pub async fn connect(server: &Server) -> Self {
        Self::connect_to(&socket_url(server)).await
    }

    /// A socket of whoever has this token.
    pub async fn connect_as(server: &Server, token: Option<&str>) -> Self {
        let token = token.map_or(String::new(), |token| format!("?api_key={token}"));
        Self::connect_to(&(socket_url(server) + &token)).await
    }

    /// A socket at this URL.
    pub async fn connect_to(url: &str) -> Self {
        let address = url.trim_start_matches("ws://").split('/').next().unwrap();
        for _ in 0..5 {
            let stream = TcpStream::connect(address).await.unwrap();
            if let Some(session) = Self::over(stream, url).await {
                return session;
            }
        }
        panic!("the request came too late each time");
    }

    /// A socket whose kernel takes little that it does not read.
    pub async fn connect_narrow(server: &Server) -> Self {
        let address = server.url.trim_start_matches("http://");
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let stream = socket.connect(address.parse().unwrap()).await.unwrap();
        Self::over(stream, &socket_url(server)).await.unwrap()
    }

    /// `None` where the request came too late, as the machine is busy: it may be made again (RFC 9110 section 15.5.9).
    async fn over(stream: TcpStream, url: &str) -> Option<Self> {
        stream.set_nodelay(true).unwrap();
        let (socket, _) = match tokio_tungstenite::client_async(url, stream).await {
            Err(Error::Http(refused)) if refused.status() == StatusCode::REQUEST_TIMEOUT => {
                return None;
            }
            opened => opened.unwrap(),
        };
        let (sink, stream) = socket.split();
        let (note, log) = watch::channel(Log::default());
        let (reads, may_read) = watch::channel(true);
        let listener = tokio::spawn(listen(stream, note, may_read));
        Some(Self {
            sink: Arc::new(Mutex::new(sink)),
            log,
            reads,
            _listener: AbortOnDropHandle::new(listener),
            passed: 0,
        })
    }

    /// From now on nothing is taken from the connection, but for what is being taken already.
    pub fn stop_reading(&self) {
        self.reads.send_replace(false);
    }

    /// Reads again.
    pub fn go_on_reading(&self) {
        self.reads.send_replace(true);
    }

    /// A socket with this `config`, which the server accepts.
    pub async fn open(server: &Server, config: Value) -> Self {
        let mut session = Self::connect(server).await;
        session.send(config).await;
        session.next("ready").await;
        session
    }

    /// Sends a message.
    pub async fn send(&self, message: Value) {
        self.send_all([Message::text(message.to_string())]).await;
    }

    /// Sends a text, whatever it is.
    pub async fn send_text(&self, text: &str) {
        self.send_all([Message::text(text)]).await;
    }

    /// Sends sound.
    pub async fn send_sound(&self, sound: impl Into<Bytes>) {
        self.send_all([Message::binary(sound)]).await;
    }

    /// Sends frames in one write.
    pub async fn send_all(&self, frames: impl IntoIterator<Item = Message>) {
        let mut sink = self.sink.lock().await;
        for frame in frames {
            sink.feed(frame).await.unwrap();
        }
        sink.flush().await.unwrap();
    }

    /// `speak` with an id.
    pub async fn speak(&self, id: &str, text: &str) {
        self.speak_with(text, json!({"id": id})).await;
    }

    /// `speak` with any fields.
    pub async fn speak_with(&self, text: &str, fields: Value) {
        self.send(with(json!({"type": "speak", "text": text}), fields))
            .await;
    }

    /// A message without fields.
    pub async fn command(&self, kind: &str) {
        self.send(json!({"type": kind})).await;
    }

    /// A message without fields, and when the server had surely read it: a ping in the same write is answered after it.
    pub async fn command_read(&mut self, kind: &str) -> Instant {
        let before = self.log.borrow().pongs.len();
        let command = Message::text(json!({"type": kind}).to_string());
        self.send_all([command, Message::Ping(Bytes::new())]).await;
        self.until("pong", |log| log.pongs.get(before).copied())
            .await
    }

    /// Sends sound as a microphone brings it, each piece when its last sample has been spoken. It begins at once,
    /// whether or not the future is polled.
    pub fn hear<S>(&self, sound: S) -> impl Future<Output = ()> + use<S>
    where
        S: IntoIterator<Item = Encoded, IntoIter: Send> + Send + 'static,
    {
        let sink = Arc::clone(&self.sink);
        let speaking = tokio::spawn(async move {
            let mut due = tokio::time::Instant::now();
            for piece in sound {
                due += piece.duration;
                tokio::time::sleep_until(due).await;
                let sent = sink.lock().await.send(Message::binary(piece.data)).await;
                sent.expect("the server takes sound");
            }
        });
        async move { speaking.await.unwrap() }
    }

    /// Says each of these as a microphone brings it, and is silent (16 kHz, linear16) until its turn has ended, however long
    /// a recogniser on a busy machine takes: a sentence that comes before is part of the same turn. The ends of the turns.
    pub async fn hear_turns(&mut self, sentences: Vec<Vec<Encoded>>) -> Vec<Event> {
        let mut turns = Vec::new();
        for sentence in sentences {
            self.hear(sentence).await;
            let over = Arc::new(AtomicBool::new(false));
            let is_over = Arc::clone(&over);
            let silence = std::iter::repeat_with(|| Encoded {
                data: Bytes::from_static(&[0; 640]),
                duration: Duration::from_millis(20),
            });
            let silent = self.hear(silence.take_while(move |_| !is_over.load(Relaxed)));
            turns.push(self.end_of_turn().await);
            over.store(true, Relaxed);
            silent.await;
        }
        turns
    }

    /// The next event of this kind. Others before it are passed over, but not an error that nobody expects.
    pub async fn next(&mut self, kind: &str) -> Event {
        let event = self.next_of(&[kind, "error"]).await;
        assert_eq!(event.kind(), kind, "{event} came before {kind}");
        event
    }

    /// The next event of one of these kinds. Others before it are passed over.
    pub async fn next_of(&mut self, kinds: &[&str]) -> Event {
        let passed = self.passed;
        let (index, event) = self
            .until(&kinds.join(" or "), |log| {
                let mut news = log.events.iter().enumerate().skip(passed);
                let found = news.find(|(_, event)| kinds.contains(&event.kind()));
                found.map(|(index, event)| (index, event.clone()))
            })
            .await;
        self.passed = index + 1;
        event
    }

    /// The next error, which has this code and does not end the session.
    pub async fn refused(&mut self, code: &str) -> Event {
        let error = self.next("error").await;
        assert_eq!(error["code"], code, "{error}");
        assert_eq!(error["fatal"], false, "{error}");
        assert!(!error.text("message").is_empty(), "{error}");
        error
    }

    /// How the utterance with this id ended: as `tts_playback_complete`, `tts_interrupted` or `error`, whenever that was.
    pub async fn end_of(&mut self, id: &str) -> Event {
        self.until(&format!("the end of {id}"), |log| {
            let mut events = log.events.iter();
            let found = events.find(|event| is_end(event) && event["id"] == id);
            found.cloned()
        })
        .await
    }

    /// The utterance with this id is played to its end.
    pub async fn completion_of(&mut self, id: &str) -> Event {
        let end = self.end_of(id).await;
        assert_eq!(end.kind(), "tts_playback_complete", "{end}");
        end
    }

    /// The first result after those that were passed that ends a turn.
    pub async fn end_of_turn(&mut self) -> Event {
        loop {
            let result = self.next("stt_result").await;
            if result.is("is_speech_final") {
                return result;
            }
        }
    }

    /// Waits for so many bytes of sound in all.
    pub async fn received(&mut self, bytes: usize) {
        self.until(&format!("{bytes} bytes of sound"), |log| {
            let came = log.sound.iter().map(|chunk| chunk.data.len());
            (came.sum::<usize>() >= bytes).then_some(())
        })
        .await;
    }

    /// Waits for anything that has not been looked at.
    pub async fn news(&mut self) {
        let news = tokio::time::timeout(PATIENCE, self.log.changed()).await;
        news.expect("something comes")
            .expect("the connection is open");
    }

    /// Watches that no sound comes for a while.
    pub async fn assert_silent_for(&mut self, time: Duration) {
        let before = self.log.borrow().sound.len();
        let sound = self.log.wait_for(|log| log.sound.len() > before);
        let sound = tokio::time::timeout(time, sound).await.is_ok();
        assert!(!sound, "sound came, or the connection ended");
    }

    /// Waits until nothing more has come for longer than a server sends ahead.
    pub async fn until_silent(&mut self) {
        let patience = tokio::time::Instant::now() + PATIENCE;
        let mut last = tokio::time::Instant::now();
        let mut count = self.log.borrow().sound.len();
        while tokio::time::timeout_at(last + Self::SILENCE, self.log.changed())
            .await
            .is_ok_and(|open| open.is_ok())
        {
            let now = self.log.borrow().sound.len();
            if now > count {
                (count, last) = (now, tokio::time::Instant::now());
            }
            assert!(last < patience, "it does not end");
        }
    }

    /// Waits until so many words are final, or there is an error, or it has taken too long.
    pub async fn until_heard(&mut self, words: usize, patience: Duration) {
        let enough = self.log.wait_for(|log| {
            let finals = log.events.iter().filter(|event| {
                event.kind() == "stt_result" && event["is_final"] == Value::Bool(true)
            });
            let heard = finals.map(|event| event.text("transcript").split_whitespace().count());
            let failed = log.events.iter().any(|event| event.kind() == "error");
            failed || log.ended.is_some() || heard.sum::<usize>() >= words
        });
        // Whoever asked looks at what there is.
        let _ = tokio::time::timeout(patience, enough).await;
    }

    /// Waits until the sound so far is enough, or there is an error, or it has taken too long.
    pub async fn until_sound(
        &mut self,
        patience: Duration,
        mut enough: impl FnMut(&[Chunk]) -> bool,
    ) {
        let enough = self.log.wait_for(|log| {
            let failed = log.events.iter().any(|event| event.kind() == "error");
            enough(&log.sound) || failed || log.ended.is_some()
        });
        // Whoever asked looks at what there is.
        let _ = tokio::time::timeout(patience, enough).await;
    }

    /// All events so far.
    pub fn events(&self) -> Vec<Event> {
        self.log.borrow().events.clone()
    }

    /// All events of a kind so far.
    pub fn events_of(&self, kind: &str) -> Vec<Event> {
        let mut events = self.events();
        events.retain(|event| event.kind() == kind);
        events
    }

    /// The ids of the utterances that have ended, in the order of their ends.
    pub fn ended(&self) -> Vec<String> {
        let events = self.events();
        let ends = events.iter().filter(|event| is_end(event));
        ends.map(|event| event.text("id").to_owned()).collect()
    }

    /// All sound so far.
    pub fn sound(&self) -> Vec<Chunk> {
        self.log.borrow().sound.clone()
    }

    /// The sound between the start and the end of the utterance with this id.
    pub fn sound_of(&self, id: &str) -> Vec<Chunk> {
        let events = self.events();
        let place = |what: &str, is: fn(&Event) -> bool| {
            let mut events = events.iter();
            let event = events.find(|event| is(event) && event["id"] == id);
            event
                .unwrap_or_else(|| panic!("{id} has no {what}"))
                .chunks_before
        };
        let start = place("start", |event| event.kind() == "tts_started");
        self.sound()[start..place("end", is_end)].to_vec()
    }

    /// The time that a ping takes to be answered.
    pub async fn round_trip(&mut self) -> Duration {
        let before = self.log.borrow().pongs.len();
        let sent = Instant::now();
        self.send_all([Message::Ping(Bytes::new())]).await;
        let pong = self.until("pong", |log| log.pongs.get(before).copied());
        pong.await - sent
    }

    /// Waits for the server to close; gives its code.
    pub async fn closed(&mut self) -> u16 {
        self.until("the end", |log| log.ended).await
    }

    /// Closes, and waits for the end.
    pub async fn close(mut self) {
        let frame = CloseFrame {
            code: 1000.into(),
            reason: "".into(),
        };
        self.send_all([Message::Close(Some(frame))]).await;
        assert_eq!(self.closed().await, 1000);
    }

    /// Waits until something has come.
    async fn until<T>(&mut self, what: &str, mut find: impl FnMut(&Log) -> Option<T>) -> T {
        let mut found = None;
        let arrival = self.log.wait_for(|log| {
            found = find(log);
            found.is_some() || log.ended.is_some()
        });
        let ended = tokio::time::timeout(PATIENCE, arrival).await.is_ok();
        found.unwrap_or_else(|| {
            let log = self.log.borrow();
            let events: Vec<_> = log.events.iter().map(Event::to_string).collect();
            let why = if ended {
                format!(
                    "the connection ended with {}",
                    log.ended.unwrap_or_default()
                )
            } else {
                format!("{PATIENCE:?} have passed")
            };
            panic!(
                "waiting for {what}: {why} after {} chunks of sound and\n{}",
                log.sound.len(),
                events.join("\n")
            )
        })
    }
}

fn is_end(event: &Event) -> bool {
    let is_failure = event.kind() == "error" && event["played_ms"].is_u64();
    is_failure || matches!(event.kind(), "tts_playback_complete" | "tts_interrupted")
}

/// Notes what comes until nothing more does.
async fn listen(
    mut stream: SplitStream<Socket>,
    note: watch::Sender<Log>,
    mut may_read: watch::Receiver<bool>,
) {
    while may_read.wait_for(|may| *may).await.is_ok() {
        let Some(frame) = stream.next().await else {
            break;
        };
        let at = Instant::now();
        note.send_modify(|log| match frame {
            Ok(Message::Text(text)) => {
                let body = serde_json::from_str(&text).expect("text frames are JSON");
                let chunks_before = log.sound.len();
                log.events.push(Event {
                    at,
                    chunks_before,
                    body,
                });
            }
            Ok(Message::Binary(data)) => log.sound.push(Chunk { at, data }),
            Ok(Message::Pong(_)) => log.pongs.push(at),
            Ok(Message::Close(frame)) => {
                log.ended = Some(frame.map_or(1005, |frame| frame.code.into()));
            }
            Ok(Message::Ping(_) | Message::Frame(_)) | Err(_) => {}
        });
    }
    note.send_modify(|log| {
        log.ended.get_or_insert(1006);
    });
}

/// How late this machine is while it is watched: the latest that a thread was which does little, and that regularly, as
/// a server's does. A server that is later than this is late by itself.
pub struct Hiccups {
    worst_nanos: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Hiccups {
    const STEP: Duration = Duration::from_millis(2);
    /// A thread that only sleeps is never made to wait for long.
    const WORK: Duration = Duration::from_micros(100);

    /// Begins to watch.
    pub fn watch() -> Self {
        let (worst_nanos, over) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (worst, stop) = (Arc::clone(&worst_nanos), Arc::clone(&over));
        std::thread::spawn(move || {
            while !stop.load(Relaxed) {
                let asleep = Instant::now();
                #[expect(clippy::disallowed_methods, reason = "on a thread of its own")]
                std::thread::sleep(Self::STEP);
                let awake = Instant::now();
                while awake.elapsed() < Self::WORK {
                    std::hint::spin_loop();
                }
                let late = asleep.elapsed().saturating_sub(Self::STEP + Self::WORK);
                worst.fetch_max(late.as_nanos() as u64, Relaxed);
            }
        });
        Self { worst_nanos, over }
    }

    /// The worst so far.
    /// In the short run, beside other tests, pauses are longer than one thread sees: only what nothing explains is too much.
    pub fn worst(&self) -> Duration {
        let seen = Duration::from_nanos(self.worst_nanos.load(Relaxed));
        seen.max(Duration::from_millis(times(1_000, 0) as u64))
    }
}

impl Drop for Hiccups {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
    }
}

/// A peer that sends this, answers pings, and gives what came and when.
async fn scripted(frames: Vec<Message>) -> (String, JoinHandle<Vec<(Instant, Message)>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let peer = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        for frame in frames {
            socket.send(frame).await.unwrap();
        }
        let mut came = Vec::new();
        while let Some(Ok(frame)) = socket.next().await {
            came.push((Instant::now(), frame));
        }
        came
    });
    (url, peer)
}

#[tokio::test]
async fn the_client_notes_what_comes_in_its_order() {
    let text = |text: &str| Message::text(text.to_owned());
    let (url, peer) = scripted(vec![
        text(r#"{"type":"tts_started","id":"a"}"#),
        Message::binary(vec![1, 2]),
        Message::binary(vec![3, 4]),
        text(r#"{"type":"tts_interrupted","id":"b"}"#),
        text(r#"{"type":"tts_playback_complete","id":"a"}"#),
        text(r#"{"type":"error","code":"overloaded","message":"no","fatal":false}"#),
    ])
    .await;
    let mut session = Session::connect_to(&url).await;
    assert_eq!(session.completion_of("a").await.chunks_before, 2);
    assert_eq!(session.next("tts_started").await.chunks_before, 0);
    session.refused("overloaded").await;
    assert_eq!(session.ended(), ["b", "a"]);
    assert_eq!(session.sound()[1].data.as_ref(), [3, 4]);
    session.round_trip().await;
    session.until_silent().await;
    session.close().await;
    peer.await.unwrap();
}

#[tokio::test]
async fn the_client_speaks_in_real_time_and_a_command_is_read_before_its_pong() {
    let (url, peer) = scripted(Vec::new()).await;
    let mut session = Session::connect_to(&url).await;
    let piece = || Encoded {
        data: vec![0; 640].into(),
        duration: Duration::from_millis(20),
    };
    let begun = Instant::now();
    let speaking = session.hear(std::iter::repeat_with(piece).take(10));
    let read = session.command_read("clear").await;
    speaking.await;
    session.close().await;
    let came = peer.await.unwrap();
    let sound: Vec<_> = came.iter().filter(|(_, frame)| frame.is_binary()).collect();
    assert_eq!(sound.len(), 10);
    for ((at, _), n) in sound.iter().zip(1u32..) {
        assert!(
            *at >= begun + n * Duration::from_millis(20),
            "piece {n} came early"
        );
    }
    let command = came.iter().find(|(_, frame)| frame.is_text());
    let (at, command) = command.unwrap();
    assert!(*at <= read && command.to_text().unwrap() == r#"{"type":"clear"}"#);
}

#[tokio::test]
#[should_panic(expected = "came before ready")]
async fn the_client_does_not_pass_over_errors() {
    let error = r#"{"type":"error","code":"internal","message":"no","fatal":true}"#;
    let (url, _peer) = scripted(vec![Message::text(error)]).await;
    Session::connect_to(&url).await.next("ready").await;
}

#[tokio::test]
#[should_panic(expected = "the connection ended with 1006")]
async fn the_client_does_not_wait_for_the_dead() {
    let (url, peer) = scripted(Vec::new()).await;
    let mut session = Session::connect_to(&url).await;
    peer.abort();
    session.next("ready").await;
}
