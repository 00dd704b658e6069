//! Carries the messages of a socket whose session runs at another replica. In both directions a message is read only when
//! the one before has gone on, so that nothing piles up here and a slow client is slow for its session as well.

use std::time::Duration;

use bytestring::ByteString;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message, Utf8Bytes};

use vivavoce_socket::{Audio, Closed, FromClient, Relayed, SocketWriter};

/// As so much counts a message of sound, whose duration is not known here: only a few wait for the client, as what waits
/// here cannot be cut by its session.
const OF_SOUND: Duration = Duration::from_millis(500);
/// The most bytes of a message, which the other replica made.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Small, so that little waits here.
const READ_BUFFER_BYTES: usize = 4 << 10;
/// As a server that has gone: the client may come back where its session is.
const GONE: &str = "the server of the session has gone";
/// How long the other replica may take to close.
const PATIENCE: Duration = Duration::from_secs(2);

/// How the forwarding of a socket has ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The client's socket has gone.
    Client,
    /// The other replica has closed, with this code where there is one.
    Replica(Option<u16>),
}

/// A socket at another replica.
pub struct Passage<S> {
    socket: WebSocketStream<S>,
    /// What the other replica said, as far as that was looked at.
    said: Vec<Result<Message, tungstenite::Error>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Passage<S> {
    /// Says the client's first message there.
    pub async fn open(stream: S, first: ByteString) -> Result<Self, tungstenite::Error> {
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            .max_message_size(Some(MAX_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_MESSAGE_BYTES));
        let mut socket = WebSocketStream::from_raw_socket(stream, Role::Client, Some(config)).await;
        socket.send(Message::text(first.to_string())).await?;
        Ok(Self {
            socket,
            said: Vec::new(),
        })
    }

    /// What the other replica answers first, as `read` reads it; `None` where it does not, and the answer is for the client.
    /// `before` are texts that may come before, whatever the answer.
    pub async fn answer<T>(
        &mut self,
        before: impl Fn(&str) -> bool,
        read: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        loop {
            let said = self.socket.next().await?;
            let mut goes_on = false;
            if let Ok(Message::Text(text)) = &said {
                if let Some(answer) = read(text) {
                    return Some(answer);
                }
                goes_on = before(text);
            }
            self.said.push(said);
            if !goes_on {
                return None;
            }
        }
    }
}

/// Carries messages until either side has gone. `closed` tells how the client's socket has ended, once it has.
pub async fn forward<S: AsyncRead + AsyncWrite + Unpin>(
    passage: Passage<S>,
    mut client: Relayed,
    writer: SocketWriter,
    closed: impl Fn() -> Option<Closed>,
) -> Ended {
    let Passage { socket, said } = passage;
    let (mut to, from) = socket.split();
    let mut from = futures_util::stream::iter(said).chain(from);
    let sending = async {
        let mut sent = Ok(());
        while sent.is_ok()
            && let Some(message) = client.next().await
        {
            let message = match message {
                FromClient::Text(text) => Message::text(text.to_string()),
                FromClient::Binary(bytes) => Message::Binary(bytes),
            };
            sent = to.send(message).await;
        }
        // A connection that broke breaks there as well: the session waits for its client.
        if sent.is_err() {
            return false;
        }
        if let Some(frame) = closed().and_then(|closed| frame(&closed)) {
            let closing = to.send(Message::Close(Some(frame)));
            let _late = tokio::time::timeout(PATIENCE, closing).await;
        }
        true
    };
    let receiving = async {
        loop {
            match from.next().await {
                Some(Ok(Message::Text(text))) => {
                    writer.event_room().await;
                    writer.event(text.to_string());
                }
                Some(Ok(Message::Binary(bytes))) => {
                    writer.audio_room(OF_SOUND).await;
                    let audio = Audio {
                        tag: 0,
                        duration: OF_SOUND,
                        bytes,
                    };
                    // Only a socket that is closing refuses it.
                    let _closing = writer.audio(audio);
                }
                Some(Ok(Message::Close(frame))) => {
                    let (code, reason) = frame.map_or((1000, String::new()), |frame| {
                        (frame.code.into(), frame.reason.to_string())
                    });
                    writer.close(code, reason);
                    return Ended::Replica(Some(code));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => {
                    writer.close(1012, GONE);
                    return Ended::Replica(None);
                }
            }
        }
    };
    tokio::select! {
        biased;
        ended = receiving => ended,
        client_has_gone = sending => {
            if client_has_gone {
                return Ended::Client;
            }
            writer.close(1012, GONE);
            Ended::Replica(None)
        }
    }
}

/// The close frame that tells the other replica how a client has closed; none where its connection broke, or where it may
/// come back without having said so.
fn frame(closed: &Closed) -> Option<CloseFrame> {
    let code = match closed.code {
        1005 => 1000,
        // What a close frame cannot carry (RFC 6455, section 7.4.1), and a client that fell silent.
        1004 | 1006 | 1015 | 4409 => return None,
        code => code,
    };
    Some(CloseFrame {
        code: CloseCode::from(code),
        reason: Utf8Bytes::default(),
    })
}
