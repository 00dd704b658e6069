//! The carriers' side of a call, written after the vendors' pages: it sends a caller's sound as the carrier does, plays what comes
//! at the pace of the telephone, answers marks when it has played so far, and notes everything that is not as the pages say.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};
use vivavoce::audio::g711::Law;
use vivavoce::audio::{SampleRate, linear16};

use crate::harness::{PATIENCE, Server, eventually};

pub const FROM: &str = "+4940987654";
pub const TO: &str = "+4930123456";
/// What the answer document gave.
pub const GIVEN: (&str, &str) = ("campaign", "spring");

const TICK: Duration = Duration::from_millis(20);

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Twilio,
    Telnyx,
    Plivo,
    Vonage,
    Exotel,
    Genesys,
}

impl Kind {
    pub const ALL: [Self; 6] = [
        Self::Twilio,
        Self::Telnyx,
        Self::Plivo,
        Self::Vonage,
        Self::Exotel,
        Self::Genesys,
    ];

    pub fn slug(self) -> &'static str {
        match self {
            Self::Twilio => "twilio",
            Self::Telnyx => "telnyx",
            Self::Plivo => "plivo",
            Self::Vonage => "vonage",
            Self::Exotel => "exotel",
            Self::Genesys => "genesys",
        }
    }

    pub fn rate(self) -> SampleRate {
        match self {
            Self::Vonage => SampleRate::HZ_16000,
            _ => SampleRate::HZ_8000,
        }
    }

    /// The id of the call, as the agent is told.
    pub fn call_id(self) -> &'static str {
        match self {
            Self::Twilio | Self::Exotel => "CA0123",
            Self::Telnyx => "v2:T02llQxIyaRkhf",
            Self::Plivo => "12345678-1234-1234-1234-123456789abc",
            Self::Vonage => "aaaaaaaa-bbbb-cccc-dddd-0123456789ab",
            Self::Genesys => "090eaa2f-72fa-480a-83e0-8667ff89c0ec",
        }
    }

    /// Whether the numbers come with their sign.
    pub fn number(self, number: &str) -> String {
        match self {
            Self::Plivo => number.trim_start_matches('+').to_owned(),
            _ => number.to_owned(),
        }
    }

    /// Whether it tells when it has played.
    fn marks(self) -> bool {
        self != Self::Genesys
    }

    /// What it says first.
    fn beginning(self) -> Vec<Value> {
        let (name, value) = GIVEN;
        match self {
            Self::Twilio => vec![
                json!({"event": "connected", "protocol": "Call", "version": "1.0.0"}),
                json!({"event": "start", "sequenceNumber": "1", "streamSid": "MZ0123", "start": {
                    "accountSid": "AC0123", "streamSid": "MZ0123", "callSid": self.call_id(), "tracks": ["inbound"],
                    "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
                    "customParameters": {"from": FROM, "to": TO, name: value}}}),
            ],
            Self::Telnyx => vec![
                json!({"event": "connected", "version": "1.0.0"}),
                json!({"event": "start", "sequence_number": "1", "stream_id": "32DE0DEA", "start": {
                    "user_id": "3E6F995F", "call_control_id": self.call_id(), "call_session_id": "ff55a038",
                    "from": FROM, "to": TO, "tags": [], "client_state": "", "custom_parameters": {name: value},
                    "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1}}}),
            ],
            Self::Plivo => vec![json!({"event": "start", "sequenceNumber": 1, "start": {
                "callId": self.call_id(), "streamId": "87654321", "accountId": "MA0123", "tracks": ["inbound"],
                "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000}},
                "extra_headers": format!("from={};to={};{name}={value}", self.number(FROM), self.number(TO))})],
            Self::Vonage => vec![
                json!({"event": "websocket:connected", "content-type": "audio/l16;rate=16000",
                "from": FROM, "to": TO, "uuid": self.call_id(), name: value}),
            ],
            Self::Exotel => vec![
                json!({"event": "connected"}),
                json!({"event": "start", "sequence_number": "1", "stream_sid": "MZ0123", "start": {
                    "stream_sid": "MZ0123", "call_sid": self.call_id(), "account_sid": "AC0123", "from": FROM, "to": TO,
                    "custom_parameters": {name: value},
                    "media_format": {"encoding": "audio/x-raw", "sample_rate": "8000", "bit_rate": "16"}}}),
            ],
            Self::Genesys => vec![
                json!({"version": "2", "type": "open", "seq": 1, "serverseq": 0, "id": "e160e428",
                "position": "PT0S", "parameters": {
                    "organizationId": "d7934305", "conversationId": self.call_id(),
                    "participant": {"id": "883efee8", "ani": format!("tel:{FROM}"), "aniName": "", "dnis": format!("tel:{TO}")},
                    "media": [
                        {"type": "audio", "format": "PCMU", "channels": ["external", "internal"], "rate": 8000},
                        {"type": "audio", "format": "PCMU", "channels": ["external"], "rate": 8000}],
                    "inputVariables": {name: value}}}),
            ],
        }
    }

    fn encode(self, samples: &[i16]) -> Vec<u8> {
        match self {
            Self::Vonage | Self::Exotel => linear16::encode(samples).to_vec(),
            _ => {
                let mut codes = Vec::new();
                Law::Mu.compress(samples, &mut codes);
                codes
            }
        }
    }

    fn decode(self, bytes: &[u8]) -> Vec<i16> {
        match self {
            Self::Vonage | Self::Exotel => linear16::samples(bytes),
            _ => {
                let mut samples = Vec::new();
                Law::Mu.expand(bytes, &mut samples);
                samples
            }
        }
    }

    /// Ticks of sound in one message.
    fn ticks(self) -> usize {
        match self {
            Self::Exotel | Self::Genesys => 5,
            _ => 1,
        }
    }
}

/// What is said to the caller's telephone.
enum Command {
    Say(Vec<i16>),
    Press(char),
    HangUp,
    Drop,
    Raw(Message),
}

/// What the caller's telephone has noted.
#[derive(Debug, Default)]
pub struct Noted {
    /// Everything that was played, without the silence where nothing was.
    pub heard: Vec<i16>,
    /// How often what was not played yet was dropped, and how many samples.
    pub clears: usize,
    pub cleared: usize,
    /// Keys that were pressed for the caller.
    pub keys: String,
    /// Marks that were sent back.
    pub marks: Vec<String>,
    /// The last messages with sound and to clear, without what differs from one to the next.
    pub media: Value,
    pub clear: Value,
    /// What is not as the pages say.
    pub odd: Vec<String>,
    /// The close code.
    pub closed: Option<u16>,
}

/// A call.
pub struct Caller {
    pub kind: Kind,
    commands: mpsc::UnboundedSender<Command>,
    noted: Arc<Mutex<Noted>>,
}

/// Opens the socket of a carrier; the status where it is refused.
pub async fn handshake(url: &str, headers: &[(String, String)]) -> Result<Socket, u16> {
    let mut request = url.into_client_request().unwrap();
    for (name, value) in headers {
        let name: tungstenite::http::HeaderName = name.parse().unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    match tokio_tungstenite::connect_async(request).await {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
        Err(error) => panic!("{error}"),
    }
}

/// Where a carrier finds the socket.
pub fn media(server: &Server, kind: Kind) -> String {
    let base = server.url.replace("http://", "ws://");
    format!("{base}/carrier/{}/media", kind.slug())
}

impl Caller {
    /// Calls a server that knows nobody.
    pub async fn call(server: &Server, kind: Kind) -> Self {
        Self::over(kind, handshake(&media(server, kind), &[]).await.unwrap())
    }

    /// Calls by an open socket.
    pub fn over(kind: Kind, socket: Socket) -> Self {
        let (commands, told) = mpsc::unbounded_channel();
        let noted = Arc::default();
        let telephone = Telephone {
            kind,
            noted: Arc::clone(&noted),
            seq: 1,
            server_seq: 0,
            is_open: kind != Kind::Genesys,
            is_stereo: false,
            says: VecDeque::new(),
            plays: VecDeque::new(),
            marks: VecDeque::new(),
            played: 0,
            queued: 0,
        };
        tokio::spawn(telephone.run(socket, told));
        Self {
            kind,
            commands,
            noted,
        }
    }

    pub fn say(&self, samples: Vec<i16>) {
        let _ = self.commands.send(Command::Say(samples));
    }

    pub fn press(&self, key: char) {
        let _ = self.commands.send(Command::Press(key));
    }

    pub fn hang_up(&self) {
        let _ = self.commands.send(Command::HangUp);
    }

    /// The network is gone.
    pub fn drop_socket(&self) {
        let _ = self.commands.send(Command::Drop);
    }

    pub fn send(&self, message: Message) {
        let _ = self.commands.send(Command::Raw(message));
    }

    pub fn noted<T>(&self, look: impl FnOnce(&Noted) -> T) -> T {
        look(&self.noted.lock().unwrap())
    }

    /// Waits until the socket is closed, and gives the code.
    pub async fn closed(&self) -> u16 {
        let waiting = eventually("the socket is not closed", || {
            self.noted(|noted| noted.closed.is_some())
        });
        tokio::time::timeout(PATIENCE, waiting).await.unwrap();
        self.noted(|noted| noted.closed.unwrap())
    }
}

struct Telephone {
    kind: Kind,
    noted: Arc<Mutex<Noted>>,
    seq: u64,
    server_seq: u64,
    is_open: bool,
    /// Sound is sent with that of the other side.
    is_stereo: bool,
    says: VecDeque<i16>,
    plays: VecDeque<i16>,
    /// Marks, and after how many samples of all that came.
    marks: VecDeque<(u64, String)>,
    played: u64,
    queued: u64,
}

impl Telephone {
    async fn run(mut self, mut socket: Socket, mut told: mpsc::UnboundedReceiver<Command>) {
        for message in self.kind.beginning() {
            let _ = socket.send(Message::text(message.to_string())).await;
        }
        let mut ticks = tokio::time::interval(TICK);
        let mut count = 0;
        let code = loop {
            tokio::select! {
                message = socket.next() => match message {
                    Some(Ok(Message::Close(frame))) => {
                        break frame.map_or(1005, |frame| frame.code.into());
                    }
                    Some(Ok(message)) => {
                        for answer in self.take(message) {
                            let _ = socket.send(answer).await;
                        }
                    }
                    Some(Err(_)) | None => break 1006,
                },
                _ = ticks.tick() => {
                    count += 1;
                    for answer in self.play() {
                        let _ = socket.send(answer).await;
                    }
                    if self.is_open && count % self.kind.ticks() == 0 {
                        let message = self.media();
                        let _ = socket.send(message).await;
                    }
                }
                command = told.recv() => match command {
                    Some(Command::Say(samples)) => self.says.extend(samples),
                    Some(Command::Press(key)) => {
                        let message = self.dtmf(key);
                        let _ = socket.send(message).await;
                    }
                    Some(Command::Raw(message)) => {
                        let _ = socket.send(message).await;
                    }
                    Some(Command::HangUp) => {
                        for message in self.stop() {
                            let _ = socket.send(message).await;
                        }
                        if self.kind != Kind::Genesys {
                            let _ = socket.close(None).await;
                        }
                    }
                    Some(Command::Drop) | None => break 1006,
                },
            }
        };
        self.noted.lock().unwrap().closed = Some(code);
    }

    fn next(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// 20 ms, or as much as this carrier sends at once.
    fn media(&mut self) -> Message {
        let samples = self.kind.rate().hz() as usize / 50 * self.kind.ticks();
        let count = samples.min(self.says.len());
        let mut sound: Vec<i16> = self.says.drain(..count).collect();
        sound.resize(samples, 0);
        let mut bytes = self.kind.encode(&sound);
        if self.is_stereo {
            bytes = bytes.into_iter().flat_map(|code| [code, 0xff]).collect();
        }
        let seq = self.next();
        let payload = BASE64.encode(&bytes);
        let told = match self.kind {
            Kind::Vonage | Kind::Genesys => return Message::binary(bytes),
            Kind::Twilio => {
                json!({"event": "media", "sequenceNumber": seq.to_string(), "streamSid": "MZ0123",
                "media": {"track": "inbound", "chunk": seq.to_string(), "timestamp": (seq * 20).to_string(), "payload": payload}})
            }
            Kind::Telnyx => {
                json!({"event": "media", "sequence_number": seq.to_string(), "stream_id": "32DE0DEA",
                "media": {"track": "inbound", "chunk": seq.to_string(), "timestamp": (seq * 20).to_string(), "payload": payload}})
            }
            Kind::Plivo => {
                json!({"event": "media", "sequenceNumber": seq, "streamId": "87654321", "extra_headers": "",
                "media": {"track": "inbound", "timestamp": "1705312200000", "chunk": seq, "payload": payload}})
            }
            Kind::Exotel => {
                json!({"event": "media", "sequence_number": seq.to_string(), "stream_sid": "MZ0123",
                "media": {"chunk": seq.to_string(), "timestamp": (seq * 100).to_string(), "payload": payload}})
            }
        };
        Message::text(told.to_string())
    }

    fn dtmf(&mut self, key: char) -> Message {
        let seq = self.next();
        let key = key.to_string();
        let told = match self.kind {
            Kind::Twilio => {
                json!({"event": "dtmf", "streamSid": "MZ0123", "sequenceNumber": seq.to_string(),
                "dtmf": {"track": "inbound_track", "digit": key}})
            }
            Kind::Telnyx => {
                json!({"event": "dtmf", "stream_id": "32DE0DEA", "sequence_number": seq.to_string(),
                "occurred_at": "2024-02-07T15:59:15.646Z", "dtmf": {"digit": key}})
            }
            Kind::Plivo => json!({"event": "dtmf", "sequenceNumber": seq, "streamId": "87654321",
                "dtmf": {"track": "inbound", "digit": key, "timestamp": "1705312200000"}}),
            Kind::Vonage => json!({"event": "websocket:dtmf", "digit": key, "duration": 260}),
            Kind::Exotel => {
                json!({"event": "dtmf", "sequence_number": seq.to_string(), "stream_sid": "MZ0123",
                "dtmf": {"digit": key, "duration": "100"}})
            }
            Kind::Genesys => self.control("dtmf", json!({"digit": key})),
        };
        Message::text(told.to_string())
    }

    fn control(&self, kind: &str, parameters: Value) -> Value {
        json!({"version": "2", "type": kind, "seq": self.seq, "serverseq": self.server_seq, "id": "e160e428",
            "position": "PT1S", "parameters": parameters})
    }

    fn stop(&mut self) -> Vec<Message> {
        let seq = self.next();
        let told = match self.kind {
            Kind::Twilio => {
                json!({"event": "stop", "sequenceNumber": seq.to_string(), "streamSid": "MZ0123",
                "stop": {"accountSid": "AC0123", "callSid": self.kind.call_id()}})
            }
            Kind::Telnyx => {
                json!({"event": "stop", "sequence_number": seq.to_string(), "stream_id": "32DE0DEA",
                "stop": {"user_id": "3E6F995F", "call_control_id": self.kind.call_id()}})
            }
            Kind::Exotel => {
                json!({"event": "stop", "sequence_number": seq.to_string(), "stream_sid": "MZ0123",
                "stop": {"call_sid": self.kind.call_id(), "account_sid": "AC0123", "reason": "callended"}})
            }
            Kind::Genesys => self.control("close", json!({"reason": "end"})),
            // The end of the socket is all.
            Kind::Plivo | Kind::Vonage => return Vec::new(),
        };
        vec![Message::text(told.to_string())]
    }

    /// Plays a tick, and tells the marks that it has come to.
    fn play(&mut self) -> Vec<Message> {
        let count = (self.kind.rate().hz() as usize / 50).min(self.plays.len());
        self.played += count as u64;
        let sound = self.plays.drain(..count);
        self.noted.lock().unwrap().heard.extend(sound);
        self.due_marks()
    }

    fn due_marks(&mut self) -> Vec<Message> {
        let mut due = Vec::new();
        while self.marks.front().is_some_and(|(at, _)| *at <= self.played) {
            let Some((_, name)) = self.marks.pop_front() else {
                break;
            };
            let seq = self.next();
            let told = match self.kind {
                Kind::Twilio => {
                    json!({"event": "mark", "sequenceNumber": seq.to_string(), "streamSid": "MZ0123", "mark": {"name": name}})
                }
                Kind::Telnyx => {
                    json!({"event": "mark", "sequence_number": seq.to_string(), "stream_id": "32DE0DEA", "mark": {"name": name}})
                }
                Kind::Exotel => {
                    json!({"event": "mark", "sequence_number": seq.to_string(), "stream_sid": "MZ0123", "mark": {"name": name}})
                }
                Kind::Plivo => {
                    json!({"event": "playedStream", "sequenceNumber": seq, "streamId": "87654321", "name": name})
                }
                Kind::Vonage => {
                    json!({"event": "websocket:notify", "payload": serde_json::from_str::<Value>(&name).unwrap()})
                }
                Kind::Genesys => unreachable!("Genesys has no marks"),
            };
            self.noted.lock().unwrap().marks.push(name);
            due.push(Message::text(told.to_string()));
        }
        due
    }

    fn odd(&self, what: impl Into<String>) {
        self.noted.lock().unwrap().odd.push(what.into());
    }

    fn sound(&mut self, bytes: &[u8]) {
        let fits = match self.kind {
            Kind::Exotel => bytes.len() >= 3_200 && bytes.len().is_multiple_of(320),
            Kind::Vonage => bytes.len() == 640,
            Kind::Genesys => !bytes.is_empty() && bytes.len() <= 800,
            _ => bytes.len() == 160,
        };
        if !fits {
            self.odd(format!("{} bytes of sound", bytes.len()));
        }
        let samples = self.kind.decode(bytes);
        self.queued += samples.len() as u64;
        self.plays.extend(samples);
        // What is sent ahead is kept, and by some carriers not for long.
        if self.plays.len() > self.kind.rate().hz() as usize {
            self.odd("more than a second was sent ahead");
        }
    }

    fn mark(&mut self, name: String) {
        if !self.kind.marks() {
            self.odd("a mark");
        }
        self.marks.push_back((self.queued, name));
    }

    fn clear(&mut self) -> Vec<Message> {
        let mut noted = self.noted.lock().unwrap();
        noted.clears += 1;
        noted.cleared += self.plays.len();
        drop(noted);
        self.plays.clear();
        self.played = self.queued;
        match self.kind {
            Kind::Vonage => vec![Message::text(
                json!({"event": "websocket:cleared"}).to_string(),
            )],
            Kind::Plivo => {
                let seq = self.next();
                vec![Message::text(
                    json!({"event": "clearedAudio", "sequenceNumber": seq, "streamId": "87654321"})
                        .to_string(),
                )]
            }
            _ => self.due_marks(),
        }
    }

    /// Keeps what a message looks like.
    fn keep(&self, told: &Value) {
        let mut shape = told.clone();
        if let Some(fields) = shape.as_object_mut() {
            for name in ["seq", "clientseq", "id", "position"] {
                fields.remove(name);
            }
        }
        let mut noted = self.noted.lock().unwrap();
        if shape["media"]["payload"].is_string() {
            shape["media"]["payload"] = "".into();
            noted.media = shape;
        } else if told.to_string().contains("clear") || shape["type"] == "event" {
            noted.clear = shape;
        }
    }

    /// What the server sends.
    fn take(&mut self, message: Message) -> Vec<Message> {
        let text = match message {
            Message::Text(text) => text,
            Message::Binary(bytes) => {
                if !matches!(self.kind, Kind::Vonage | Kind::Genesys) || !self.is_open {
                    self.odd("a binary message");
                }
                self.noted.lock().unwrap().media = "binary".into();
                self.sound(&bytes);
                return Vec::new();
            }
            _ => return Vec::new(),
        };
        let told: Value = serde_json::from_str(&text).unwrap();
        self.keep(&told);
        let payload = |value: &Value| BASE64.decode(value.as_str().unwrap()).unwrap();
        let name = |value: &Value| value.as_str().unwrap().to_owned();
        match self.kind {
            Kind::Twilio | Kind::Telnyx | Kind::Exotel => {
                let stream = match self.kind {
                    Kind::Twilio => told["streamSid"] == "MZ0123",
                    Kind::Exotel => told["stream_sid"] == "MZ0123",
                    _ => true,
                };
                if !stream {
                    self.odd(format!("another stream: {told}"));
                }
                match told["event"].as_str() {
                    Some("media") => self.sound(&payload(&told["media"]["payload"])),
                    Some("mark") => self.mark(name(&told["mark"]["name"])),
                    Some("clear") => return self.clear(),
                    _ => self.odd(told.to_string()),
                }
            }
            Kind::Plivo => {
                if told["streamId"] != "87654321" {
                    self.odd(format!("another stream: {told}"));
                }
                match told["event"].as_str() {
                    Some("playAudio") => {
                        let media = &told["media"];
                        if media["contentType"] != "audio/x-mulaw" || media["sampleRate"] != 8000 {
                            self.odd(told.to_string());
                        }
                        self.sound(&payload(&media["payload"]));
                    }
                    Some("checkpoint") => self.mark(name(&told["name"])),
                    Some("clearAudio") => return self.clear(),
                    Some("sendDTMF") => {
                        let keys = name(&told["dtmf"]);
                        self.noted.lock().unwrap().keys.push_str(&keys);
                    }
                    _ => self.odd(told.to_string()),
                }
            }
            Kind::Vonage => match told["action"].as_str() {
                Some("notify") => self.mark(told["payload"].to_string()),
                Some("clear") => return self.clear(),
                _ => self.odd(told.to_string()),
            },
            Kind::Genesys => {
                self.server_seq += 1;
                let known = told["version"] == "2"
                    && told["id"] == "e160e428"
                    && told["seq"] == self.server_seq
                    && told["clientseq"]
                        .as_u64()
                        .is_some_and(|seq| seq <= self.seq);
                if !known {
                    self.odd(told.to_string());
                }
                match told["type"].as_str() {
                    Some("opened") => {
                        // What it has chosen of what was offered is what it gets.
                        let chosen = &told["parameters"]["media"][0];
                        let channels = &chosen["channels"];
                        let both = *channels == json!(["external", "internal"]);
                        if chosen["format"] != "PCMU" || !both && *channels != json!(["external"]) {
                            self.odd(told.to_string());
                        }
                        self.is_stereo = both;
                        self.is_open = true;
                        let seq = self.next();
                        let ping = json!({"version": "2", "type": "ping", "seq": seq, "serverseq": self.server_seq,
                            "id": "e160e428", "position": "PT0S", "parameters": {}});
                        return vec![Message::text(ping.to_string())];
                    }
                    Some("pong" | "closed") => {}
                    Some("event") if told["parameters"]["entities"][0]["type"] == "barge_in" => {
                        return self.clear();
                    }
                    Some("disconnect") if told["parameters"]["reason"] == "completed" => {
                        return self.stop();
                    }
                    _ => self.odd(told.to_string()),
                }
            }
        }
        Vec::new()
    }
}
