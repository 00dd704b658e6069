//! An agent of the tests: a WebSocket server that the server dials for a call.

use std::net::Ipv4Addr;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::harness::PATIENCE;

pub struct Agent(TcpListener);

/// The agent's side of a call.
pub struct Answered {
    socket: WebSocketStream<TcpStream>,
    /// The first message.
    pub call: Value,
    /// All events since.
    pub events: Vec<Value>,
}

impl Agent {
    pub async fn start() -> Self {
        Self(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap())
    }

    /// The settings of a server that dials this agent.
    pub fn settings(&self) -> [(&'static str, String); 4] {
        [
            (
                "AGENT_URL",
                format!("ws://{}/", self.0.local_addr().unwrap()),
            ),
            ("AGENT_SECRET", "0123456789abcdef".to_owned()),
            ("AGENT_ALLOW_INSECURE", "true".to_owned()),
            ("AGENT_ALLOW_PRIVATE", "true".to_owned()),
        ]
    }

    /// The next call.
    pub async fn accept(&self) -> Answered {
        let accepted = tokio::time::timeout(PATIENCE, self.0.accept()).await;
        let (stream, _) = accepted.expect("nobody dials the agent").unwrap();
        let socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        let mut answered = Answered {
            socket,
            call: Value::Null,
            events: Vec::new(),
        };
        answered.call = answered.next("call").await;
        answered
    }

    /// The same, configured and ready.
    pub async fn answer(&self, config: Value) -> Answered {
        let mut answered = self.accept().await;
        answered.send(config).await;
        answered.next("ready").await;
        answered
    }
}

impl Answered {
    pub async fn send(&mut self, message: Value) {
        let text = Message::text(message.to_string());
        self.socket.send(text).await.unwrap();
    }

    pub async fn send_binary(&mut self, bytes: Vec<u8>) {
        self.socket.send(Message::binary(bytes)).await.unwrap();
    }

    pub async fn speak(&mut self, id: &str, text: &str) {
        self.send(json!({"type": "speak", "id": id, "text": text}))
            .await;
    }

    /// The next event of this type.
    pub async fn next(&mut self, kind: &str) -> Value {
        self.until(|event| event["type"] == kind).await
    }

    /// The next event that fits.
    pub async fn until(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        let found = async {
            while let Some(message) = self.socket.next().await {
                let message = message.unwrap();
                assert!(!message.is_binary(), "the agent is sent sound");
                let Message::Text(text) = message else {
                    continue;
                };
                let event: Value = serde_json::from_str(&text).unwrap();
                self.events.push(event.clone());
                if fits(&event) {
                    return Some(event);
                }
            }
            None
        };
        let found = tokio::time::timeout(PATIENCE, found).await;
        let last = |events: &[Value]| {
            events
                .iter()
                .rev()
                .take(5)
                .map(Value::to_string)
                .collect::<Vec<_>>()
        };
        let found =
            found.unwrap_or_else(|late| panic!("{late}: the last were {:?}", last(&self.events)));
        found.unwrap_or_else(|| panic!("the socket has closed after {:?}", last(&self.events)))
    }

    /// The code with which the server closes, after whatever it still sends.
    pub async fn closed(&mut self) -> u16 {
        let closed = async {
            while let Some(message) = self.socket.next().await {
                match message {
                    Ok(Message::Close(frame)) => {
                        return frame.map_or(1005, |frame| frame.code.into());
                    }
                    Ok(_) => {}
                    Err(_) => return 1006,
                }
            }
            1006
        };
        tokio::time::timeout(PATIENCE, closed)
            .await
            .expect("it does not close")
    }

    /// The agent has done its work.
    pub async fn close(mut self) {
        self.socket.close(None).await.unwrap();
        while self
            .socket
            .next()
            .await
            .is_some_and(|message| message.is_ok())
        {}
    }

    /// The words of all finals.
    pub fn heard(&self) -> Vec<String> {
        let finals = self
            .events
            .iter()
            .filter(|event| event["type"] == "stt_result" && event["is_final"] == true);
        let texts = finals.filter_map(|event| event["transcript"].as_str());
        texts
            .flat_map(str::split_whitespace)
            .map(str::to_owned)
            .collect()
    }
}
