//! A bare signalling connection: LiveKit's messages without media, for what real clients never do or do not show.

use base64::Engine;
use futures_util::{SinkExt, StreamExt};
use livekit_protocol as proto;
use prost::Message as _;
use proto::signal_request::Message as Request;
use proto::signal_response::Message as Response;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::harness::{PATIENCE, Server};

/// See the module.
pub struct Signal {
    socket: WebSocketStream<TcpStream>,
}

impl Signal {
    /// Opens `path`, which has its query; the error is the status that refuses it.
    pub async fn open(server: &Server, path: &str) -> Result<Self, u16> {
        let address = server.url.strip_prefix("http://").unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        match tokio_tungstenite::client_async(format!("ws://{address}{path}"), stream).await {
            Ok((socket, _)) => Ok(Self { socket }),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// Joins by `/rtc/v1` without an offer.
    pub async fn join(server: &Server, token: &str) -> (Self, proto::JoinResponse) {
        let request = join_request(&proto::JoinRequest::default(), false);
        let path = format!("/rtc/v1?access_token={token}&join_request={request}");
        let mut signal = Self::open(server, &path).await.unwrap();
        let join = signal
            .until(|response| match response {
                Response::Join(join) => Some(join),
                _ => None,
            })
            .await;
        (signal, join)
    }

    /// Sends bytes as they are.
    pub async fn send_bytes(&mut self, bytes: Vec<u8>) {
        // Whoever is refused may be cut off while it sends.
        let _ = self.socket.send(Message::binary(bytes)).await;
    }

    pub async fn ask(&mut self, request: Request) {
        let request = proto::SignalRequest {
            message: Some(request),
        };
        self.send_bytes(request.encode_to_vec()).await;
    }

    /// The next message; `None` when the socket has ended.
    pub async fn next(&mut self) -> Option<Response> {
        loop {
            let message = tokio::time::timeout(PATIENCE, self.socket.next()).await;
            match message.expect("nothing came for a long time") {
                Some(Ok(Message::Binary(bytes))) => {
                    return proto::SignalResponse::decode(bytes).unwrap().message;
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                Some(Ok(_)) => {}
            }
        }
    }

    /// The first message in which something is found.
    pub async fn until<T>(&mut self, mut found: impl FnMut(Response) -> Option<T>) -> T {
        loop {
            let response = self.next().await.expect("the socket has ended");
            if let Some(found) = found(response) {
                return found;
            }
        }
    }
}

/// The value of the parameter `join_request`.
pub fn join_request(request: &proto::JoinRequest, gzip: bool) -> String {
    wrapped(&request.encode_to_vec(), gzip)
}

/// The same for bytes that may be anything.
pub fn wrapped(bytes: &[u8], gzip: bool) -> String {
    use proto::wrapped_join_request::Compression;
    use std::io::Write;
    let (compression, join_request) = if gzip {
        let best = flate2::Compression::best();
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), best);
        encoder.write_all(bytes).unwrap();
        (Compression::Gzip, encoder.finish().unwrap())
    } else {
        (Compression::None, bytes.to_vec())
    };
    let wrapped = proto::WrappedJoinRequest {
        compression: compression as i32,
        join_request,
    };
    base64::engine::general_purpose::URL_SAFE.encode(wrapped.encode_to_vec())
}
