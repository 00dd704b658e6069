//! A minimal client of a vendor: an open connection, the messages of one utterance written at once, and the first
//! message with audio. The server is compared with it. It shares no code with the server: no pool, no session, no
//! conversion, no decoding.

use futures_util::{SinkExt, StreamExt};
use http::uri::PathAndQuery;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::load::PATIENCE;
use crate::emulators::{Emulators, Vendor};
use crate::providers::google::wire::STREAMING_SYNTHESIZE;
use crate::providers::google::wire::texttospeech::{
    AudioEncoding, Request, StreamingAudioConfig, StreamingInputSource, StreamingSynthesisInput,
    StreamingSynthesizeConfig, StreamingSynthesizeRequest, StreamingSynthesizeResponse,
    VoiceSelectionParams,
};

/// What everybody speaks at, in hertz.
pub(super) const RATE_HZ: u32 = 16_000;
/// Utterances on one of Deepgram's sockets: it bears twenty in a minute, and the server changes after as many.
const DEEPGRAM_UTTERANCES: u32 = 16;
/// The id that Azure's requests have.
const REQUEST: &str = "00000000000000000000000000000001";

/// Why the vendor did not speak.
#[derive(Debug, thiserror::Error)]
pub(super) enum RawError {
    #[error(transparent)]
    Socket(#[from] tungstenite::Error),
    #[error(transparent)]
    Connection(#[from] tonic::transport::Error),
    #[error("{}", .0.message())]
    Call(#[from] tonic::Status),
    #[error("the vendor has ended the connection")]
    Ended,
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Silent,
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A client of one vendor, whose connection stays open as long as the vendor bears it.
pub(super) struct Raw {
    vendor: Vendor,
    address: String,
    connection: Option<Connection>,
    /// Utterances on this connection.
    used: u32,
}

enum Connection {
    Socket(Box<Socket>),
    Channel(Channel),
}

impl Raw {
    pub(super) fn new(vendor: Vendor, emulators: &Emulators) -> Self {
        let address = match vendor {
            Vendor::Google => emulators.grpc,
            _ => emulators.plain,
        };
        Self {
            vendor,
            address: address.to_string(),
            connection: None,
            used: 0,
        }
    }

    /// Has a text spoken to its end: how long the first sound took.
    pub(super) async fn speak(&mut self, text: &str) -> Result<std::time::Duration, RawError> {
        let spoken = timeout(PATIENCE, self.speak_patiently(text)).await;
        spoken.map_err(|_| RawError::Silent)?
    }

    async fn speak_patiently(&mut self, text: &str) -> Result<std::time::Duration, RawError> {
        let asked = Instant::now();
        if self.vendor == Vendor::Deepgram && self.used >= DEEPGRAM_UTTERANCES {
            self.connection = None;
        }
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        self.used += 1;
        let first = match &mut connection {
            Connection::Socket(socket) => converse(self.vendor, self.used, socket, text).await?,
            Connection::Channel(channel) => call(channel.clone(), text).await?,
        };
        self.connection = Some(connection);
        Ok(first - asked)
    }

    async fn connect(&mut self) -> Result<Connection, RawError> {
        self.used = 0;
        if self.vendor == Vendor::Google {
            let endpoint = Endpoint::from_shared(format!("http://{}", self.address))?;
            let channel = endpoint.tcp_nodelay(true).connect().await?;
            return Ok(Connection::Channel(channel));
        }
        let (path, header, value) = door(self.vendor);
        let mut request = format!("ws://{}{path}", self.address).into_client_request()?;
        let headers = request.headers_mut();
        headers.insert(
            HeaderName::from_static(header),
            HeaderValue::from_static(value),
        );
        if self.vendor == Vendor::Cartesia {
            let version = HeaderValue::from_static("2026-08-14");
            headers.insert(HeaderName::from_static("cartesia-version"), version);
        }
        let (mut socket, _) = connect_async_with_config(request, None, true).await?;
        if self.vendor == Vendor::Azure {
            let body = json!({"context": {"system": {"name": "bench"}}});
            let config = azure("speech.config", "application/json", &body.to_string());
            socket.send(config).await?;
        }
        Ok(Connection::Socket(Box::new(socket)))
    }
}

/// The path of a vendor's socket, and the header that opens it.
const fn door(vendor: Vendor) -> (&'static str, &'static str, &'static str) {
    match vendor {
        Vendor::Deepgram => (
            "/v1/speak?model=aura-2-thalia-en&encoding=linear16&sample_rate=16000",
            "authorization",
            "Token key",
        ),
        Vendor::ElevenLabs => (
            "/v1/text-to-speech/JBFqnCBsd6RMkjVDRZzb/multi-stream-input?model_id=eleven_flash_v2_5\
             &output_format=pcm_16000&auto_mode=true&sync_alignment=true&inactivity_timeout=180",
            "xi-api-key",
            "key",
        ),
        Vendor::Azure => (
            "/cognitiveservices/websocket/v2",
            "ocp-apim-subscription-key",
            "key",
        ),
        Vendor::Cartesia | Vendor::Google | Vendor::OpenAi => {
            ("/tts/websocket", "authorization", "Bearer key")
        }
    }
}

/// Says one utterance over a socket to its end: when its first sound came.
async fn converse(
    vendor: Vendor,
    number: u32,
    socket: &mut Socket,
    text: &str,
) -> Result<Instant, RawError> {
    for message in utterance(vendor, number, text) {
        socket.feed(message).await?;
    }
    socket.flush().await?;
    let mut first = None;
    while let Some(message) = socket.next().await {
        let message = message?;
        if first.is_none() && is_sound(vendor, &message) {
            first = Some(Instant::now());
        }
        if is_end(vendor, &message) {
            return first.ok_or(RawError::Ended);
        }
    }
    Err(RawError::Ended)
}

/// What is sent for one utterance.
fn utterance(vendor: Vendor, number: u32, text: &str) -> Vec<Message> {
    let json = |value: Value| Message::text(value.to_string());
    let id = format!("raw{number}");
    match vendor {
        Vendor::Deepgram => vec![
            json(json!({"type": "Speak", "text": text})),
            json(json!({"type": "Flush"})),
        ],
        Vendor::ElevenLabs => vec![
            json(json!({"text": " ", "context_id": id})),
            json(json!({"text": format!("{text} "), "context_id": id})),
            json(json!({"context_id": id, "flush": true})),
            json(json!({"context_id": id, "close_context": true})),
        ],
        Vendor::Azure => {
            let context = json!({"synthesis": {
                "audio": {
                    "outputFormat": "raw-16khz-16bit-mono-pcm",
                    "metadataOptions": {"wordBoundaryEnabled": true},
                },
                "input": {
                    "bidirectionalStreamingMode": true, "language": "en-US",
                    "voiceName": "en-US-AvaMultilingualNeural",
                },
            }});
            vec![
                azure(
                    "synthesis.context",
                    "application/json",
                    &context.to_string(),
                ),
                azure("text.piece", "text/plain", text),
                azure("text.end", "text/plain", ""),
            ]
        }
        Vendor::Cartesia | Vendor::Google | Vendor::OpenAi => vec![json(json!({
            "model_id": "sonic-3.5", "transcript": text, "continue": false, "context_id": id,
            "voice": {"mode": "id", "id": "6ccbfb76-1fc6-48f7-b71d-91ac6298247b"},
            "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": RATE_HZ},
            "add_timestamps": true,
        }))],
    }
}

fn azure(path: &str, content_type: &str, body: &str) -> Message {
    Message::text(format!(
        "Path:{path}\r\nX-RequestId:{REQUEST}\r\nX-Timestamp:2026-11-22T00:00:00.000Z\r\n\
         Content-Type:{content_type}\r\n\r\n{body}"
    ))
}

fn is_sound(vendor: Vendor, message: &Message) -> bool {
    match (vendor, message) {
        (Vendor::Deepgram | Vendor::Azure, Message::Binary(sound)) => !sound.is_empty(),
        (Vendor::ElevenLabs, Message::Text(text)) => text.contains("\"audio\":\""),
        (Vendor::Cartesia, Message::Text(text)) => text.contains("\"type\":\"chunk\""),
        _ => false,
    }
}

fn is_end(vendor: Vendor, message: &Message) -> bool {
    let Message::Text(text) = message else {
        return false;
    };
    text.contains(match vendor {
        Vendor::Deepgram => "\"Flushed\"",
        Vendor::ElevenLabs => "\"isFinal\":true",
        Vendor::Azure => "Path:turn.end",
        Vendor::Cartesia | Vendor::Google | Vendor::OpenAi => "\"type\":\"done\"",
    })
}

/// Says one utterance over gRPC to its end: when its first sound came.
async fn call(channel: Channel, text: &str) -> Result<Instant, RawError> {
    let config = StreamingSynthesizeConfig {
        voice: Some(VoiceSelectionParams {
            language_code: "en-US".to_owned(),
            name: "en-US-Chirp3-HD-Charon".to_owned(),
            model_name: String::new(),
        }),
        streaming_audio_config: Some(StreamingAudioConfig {
            audio_encoding: AudioEncoding::Pcm.into(),
            sample_rate_hertz: RATE_HZ as i32,
            speaking_rate: 1.0,
        }),
    };
    let input = StreamingSynthesisInput {
        input_source: Some(StreamingInputSource::Text(text.to_owned())),
    };
    let requests = [Request::StreamingConfig(config), Request::Input(input)];
    let requests = requests.map(|request| StreamingSynthesizeRequest {
        request: Some(request),
    });
    let mut request = tonic::Request::new(futures_util::stream::iter(requests));
    let token = tonic::metadata::MetadataValue::from_static("Bearer raw");
    request.metadata_mut().insert("authorization", token);
    let mut grpc = Grpc::new(channel);
    grpc.ready().await?;
    let codec = ProstCodec::<StreamingSynthesizeRequest, StreamingSynthesizeResponse>::default();
    let method = PathAndQuery::from_static(STREAMING_SYNTHESIZE);
    let mut answers = grpc.streaming(request, method, codec).await?.into_inner();
    let mut first = None;
    while let Some(answer) = answers.message().await? {
        if !answer.audio_content.is_empty() {
            first.get_or_insert_with(Instant::now);
        }
    }
    first.ok_or(RawError::Ended)
}
