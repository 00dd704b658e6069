//! A minimal HTTP front end of the embedded server: it accepts signalling connections and can cut them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio_tungstenite::accept_hdr_async;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use url::Url;

use vivavoce_rooms::{Admission, Now, Refusal, RoomServer, Route, admit};

/// The front end. See the module.
pub struct Edge {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    server: RoomServer,
    one: bool,
    down: AtomicBool,
    cut: Notify,
}

impl Edge {
    /// Opens it; with `one` it serves `/rtc/v1`.
    pub fn open(server: RoomServer, one: bool) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            server,
            one,
            down: AtomicBool::new(false),
            cut: Notify::new(),
        });
        let edge = Arc::clone(&shared);
        tokio::spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((tcp, _)) = listener.accept().await {
                if !edge.down.load(Ordering::SeqCst) {
                    tokio::spawn(serve(Arc::clone(&edge), tcp));
                }
            }
        });
        Self { address, shared }
    }

    pub fn url(&self) -> Url {
        format!("ws://{}", self.address).parse().unwrap()
    }

    /// Cuts all sockets without a message.
    pub fn cut(&self) {
        self.shared.cut.notify_waiters();
    }

    /// Cuts all sockets and accepts no others until told otherwise.
    pub fn down(&self, down: bool) {
        self.shared.down.store(down, Ordering::SeqCst);
        if down {
            self.cut();
        }
    }
}

async fn serve(edge: Arc<Shared>, tcp: TcpStream) {
    let cut = edge.cut.notified();
    tokio::select! {
        () = cut => {}
        () = carry(&edge, tcp) => {}
    }
}

async fn carry(edge: &Arc<Shared>, tcp: TcpStream) {
    let (asked, answer) = oneshot::channel();
    let deciding = Arc::clone(edge);
    // The handshake's callback cannot wait, so it checks the token only; the room is asked by a thread.
    #[allow(clippy::result_large_err)] // the refusal is the WebSocket library's
    let handshake = accept_hdr_async(tcp, move |request: &Request, response: Response| {
        let admission = read(&deciding, request).and_then(|admission| {
            let (server, checked) = (deciding.server.clone(), admission.clone());
            let checking = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .build()
                    .unwrap();
                runtime.block_on(async move { server.check(&checked).await })
            });
            checking.join().unwrap().map(|()| admission)
        });
        match admission {
            Ok(admission) => {
                let _ = asked.send(admission);
                Ok(response)
            }
            Err(refusal) => {
                let mut refused = ErrorResponse::new(Some(refusal.text));
                *refused.status_mut() = reqwest::StatusCode::from_u16(refusal.status).unwrap();
                Err(refused)
            }
        }
    });
    let (Ok(socket), Ok(admission)) = (handshake.await, answer.await) else {
        return;
    };
    let Some(mut connection) = edge.server.connect(admission).await else {
        return;
    };
    let (mut sink, mut stream) = socket.split();
    loop {
        tokio::select! {
            message = stream.next() => match message {
                Some(Ok(Message::Binary(bytes))) => { connection.requests.send(bytes).await; }
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                Some(Ok(_)) => {}
            },
            response = connection.responses.next() => match response {
                Some(bytes) => if sink.send(Message::Binary(Bytes::clone(&bytes))).await.is_err() { break },
                None => { let _ = sink.close().await; break }
            },
        }
    }
}

fn read(edge: &Shared, request: &Request) -> Result<Admission, Refusal> {
    let uri = request.uri();
    let route = match uri.path() {
        "/rtc/v1" if edge.one => Route::OneConnection,
        "/rtc" => Route::TwoConnections,
        _ => return Err(Refusal::new(404, "not found")),
    };
    let header = request
        .headers()
        .get("authorization")
        .map(|value| value.to_str().unwrap());
    admit(
        route,
        uri.query().unwrap_or_default(),
        header,
        edge.server.keys(),
        Now::read().unix_s(),
    )
}
