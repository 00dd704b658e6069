//! Emulates Google, as far as its own SDKs and our client use it: gRPC on a listener of its own (h2c), REST and the token
//! exchange beside the other vendors.

mod account;
mod link;
mod messages;
mod refusals;
mod rest;
mod stt;
mod tts;

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::server::Grpc;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use self::link::{Answers, Link};
use self::messages::{
    RECOGNIZE, RECOGNIZE_V1, RecognizeRequest, RecognizeRequestV1, RecognizeResponse,
    RecognizeResponseV1, STREAMING_RECOGNIZE_V1, StreamingRecognizeRequestV1,
    StreamingRecognizeResponseV1,
};
use self::stt::Version;
use super::visit::{Visit, credential};
use super::{Direction, Emulation, Vendor};
use vivavoce_providers::google::wire::{
    LIST_VOICES, STREAMING_RECOGNIZE, STREAMING_SYNTHESIZE, SYNTHESIZE_SPEECH,
};

pub(super) use account::account;
pub(super) use rest::routes;

/// What a connection with TLS begins with: a handshake record (RFC 8446, section 5.1). HTTP/2 begins with a letter.
const HANDSHAKE: u8 = 22;

/// Serves gRPC, without TLS (h2c) or with it as each client likes, until it is told to stop.
pub(super) async fn serve(
    listener: TcpListener,
    mut secure: rustls::ServerConfig,
    emulation: Arc<Emulation>,
    stop: CancellationToken,
) {
    secure.alpn_protocols = vec![b"h2".to_vec()];
    let secure = TlsAcceptor::from(Arc::new(secure));
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => {
                if let Ok((tcp, _)) = accepted {
                    tokio::spawn(accept(tcp, secure.clone(), Arc::clone(&emulation), stop.clone()));
                }
            }
        }
    }
}

/// Finds out whether a connection is secured.
async fn accept(
    tcp: TcpStream,
    secure: TlsAcceptor,
    emulation: Arc<Emulation>,
    stop: CancellationToken,
) {
    let mut first = [0];
    // A client that has gone without a word is none.
    if tcp.peek(&mut first).await.is_err() {
        return;
    }
    let (link, io) = Link::new(tcp);
    if first == [HANDSHAKE] {
        if let Ok(io) = secure.accept(io).await {
            converse(link, io, emulation, stop).await;
        }
    } else {
        converse(link, io, emulation, stop).await;
    }
}

/// Serves one connection.
async fn converse(
    link: Link,
    io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    emulation: Arc<Emulation>,
    stop: CancellationToken,
) {
    let service = hyper::service::service_fn(move |request| {
        let caller = Caller {
            emulation: Arc::clone(&emulation),
            link: link.clone(),
        };
        async move { Ok::<_, std::convert::Infallible>(caller.answer(request).await) }
    });
    let connection =
        http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(io), service);
    tokio::select! {
        // The client has gone, or has sent what is no HTTP/2.
        _ = connection => {}
        () = stop.cancelled() => {}
    }
}

/// Who calls, and by which connection.
#[derive(Clone)]
struct Caller {
    emulation: Arc<Emulation>,
    link: Link,
}

impl Caller {
    async fn answer(self, request: http::Request<Incoming>) -> http::Response<Body> {
        match request.uri().path() {
            STREAMING_RECOGNIZE => {
                self.recognise::<stt::Question, stt::Answer>(
                    Version::V2,
                    STREAMING_RECOGNIZE,
                    request,
                )
                .await
            }
            STREAMING_RECOGNIZE_V1 => {
                self.recognise::<StreamingRecognizeRequestV1, StreamingRecognizeResponseV1>(
                    Version::V1,
                    STREAMING_RECOGNIZE_V1,
                    request,
                )
                .await
            }
            RECOGNIZE => {
                self.recognise_whole::<RecognizeRequest, RecognizeResponse>(
                    Version::V2,
                    RECOGNIZE,
                    request,
                )
                .await
            }
            RECOGNIZE_V1 => {
                self.recognise_whole::<RecognizeRequestV1, RecognizeResponseV1>(
                    Version::V1,
                    RECOGNIZE_V1,
                    request,
                )
                .await
            }
            STREAMING_SYNTHESIZE => {
                let call = tower::service_fn(move |request| {
                    let caller = self.clone();
                    async move { caller.synthesise(request) }
                });
                Grpc::new(ProstCodec::default())
                    .streaming(call, request)
                    .await
            }
            SYNTHESIZE_SPEECH => {
                let call = tower::service_fn(move |request: Request<_>| {
                    let caller = self.clone();
                    async move {
                        let visit = caller.admit(&request, Direction::Tts, SYNTHESIZE_SPEECH)?;
                        let said = tts::whole(&visit, request.into_inner());
                        caller.link.whole(&visit, said).await
                    }
                });
                Grpc::new(ProstCodec::default()).unary(call, request).await
            }
            LIST_VOICES => {
                let call = tower::service_fn(move |request: Request<_>| {
                    let caller = self.clone();
                    async move {
                        let visit = caller.admit(&request, Direction::Voices, LIST_VOICES)?;
                        let voices = tts::voices(&request.into_inner());
                        caller.link.whole(&visit, async { Ok(voices) }).await
                    }
                });
                Grpc::new(ProstCodec::default()).unary(call, request).await
            }
            method => {
                let headers = headers(request.headers());
                self.emulation.unanswered(
                    Some(Vendor::Google),
                    method,
                    "",
                    headers,
                    "no such method",
                );
                Status::unimplemented("Method not found.").into_http()
            }
        }
    }

    /// Opens the visit of a call, where it is let in.
    fn admit<T>(
        &self,
        request: &Request<T>,
        direction: Direction,
        method: &str,
    ) -> Result<Visit, Status> {
        let metadata = request.metadata();
        let headers = headers(metadata.as_ref());
        let visit = self
            .emulation
            .visit_by(Vendor::Google, direction, method, headers);
        let key = key(metadata);
        match visit.admit(key) {
            Ok(()) => Ok(visit),
            Err(_) if self.link.refuses(&visit) => Err(Status::unavailable("")),
            Err(refusal) => Err(refusals::status(&refusal, key.is_some())),
        }
    }

    /// Hears a stream.
    async fn recognise<Q, A>(
        self,
        version: Version,
        method: &'static str,
        request: http::Request<Incoming>,
    ) -> http::Response<Body>
    where
        Q: Message + Default + Into<stt::Question> + 'static,
        A: Message + Default + From<stt::Answer> + 'static,
    {
        let call = tower::service_fn(move |request: Request<Streaming<Q>>| {
            let caller = self.clone();
            async move {
                let visit = caller.admit(&request, Direction::Stt, method)?;
                let answers = caller.link.stream(&visit, |answers: Answers<A>| {
                    stt::converse(version, visit.clone(), request.into_inner(), answers)
                });
                Ok::<_, Status>(Response::new(answers))
            }
        });
        let codec: ProstCodec<A, Q> = ProstCodec::default();
        Grpc::new(codec)
            .max_decoding_message_size(stt::MAX_REQUEST_BYTES)
            .streaming(call, request)
            .await
    }

    /// Hears a whole file.
    async fn recognise_whole<Q, A>(
        self,
        version: Version,
        method: &'static str,
        request: http::Request<Incoming>,
    ) -> http::Response<Body>
    where
        Q: Message + Default + Into<RecognizeRequest> + 'static,
        A: Message + Default + From<RecognizeResponse> + 'static,
    {
        let call = tower::service_fn(move |request: Request<Q>| {
            let caller = self.clone();
            async move {
                let visit = caller.admit(&request, Direction::Stt, method)?;
                let heard = stt::whole(version, &visit, request.into_inner().into());
                let heard = async { heard.await.map(A::from) };
                caller.link.whole(&visit, heard).await
            }
        });
        let codec: ProstCodec<A, Q> = ProstCodec::default();
        Grpc::new(codec)
            .max_decoding_message_size(stt::MAX_REQUEST_BYTES)
            .unary(call, request)
            .await
    }

    fn synthesise(
        &self,
        request: Request<Streaming<tts::Question>>,
    ) -> Result<Response<ReceiverStream<Result<tts::Answer, Status>>>, Status> {
        let visit = self.admit(&request, Direction::Tts, STREAMING_SYNTHESIZE)?;
        let answers = self.link.stream(&visit, |answers| {
            tts::converse(visit.clone(), request.into_inner(), answers)
        });
        Ok(Response::new(answers))
    }
}

/// The headers of a call, as they are recorded.
fn headers(headers: &http::HeaderMap) -> impl Iterator<Item = (&str, String)> {
    headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.as_str(), value)
    })
}

/// The token or the API key of a call.
fn key(metadata: &MetadataMap) -> Option<&str> {
    let text = |name| metadata.get(name)?.to_str().ok();
    let key = text("authorization")
        .map(credential)
        .or_else(|| text("x-goog-api-key"));
    key.filter(|key| !key.is_empty())
}
