//! The baseline: a bare WebSocket server that returns half of the frames and does nothing else, which shows the cost of
//! the sockets themselves. Binary messages that begin with a zero byte are not returned.

use std::io;
use std::net::Ipv4Addr;

use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::accept_async_with_config;
use tokio_tungstenite::tungstenite::{self, Message};

use super::load::socket_config;

/// Serves on a free port, which it prints as a server does, until it is killed.
pub(super) fn run() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        tell!("listens on http://{}", listener.local_addr()?);
        loop {
            let (connection, _) = listener.accept().await?;
            tokio::spawn(serve(connection));
        }
    })
}

/// One connection; its end, whatever the reason, concerns nobody else.
async fn serve(connection: TcpStream) -> Result<(), tungstenite::Error> {
    connection.set_nodelay(true)?;
    let mut socket = accept_async_with_config(connection, Some(socket_config())).await?;
    while let Some(message) = socket.next().await {
        match message? {
            Message::Binary(frame) if frame.first().is_some_and(|&byte| byte != 0) => {
                socket.send(Message::Binary(frame)).await?;
            }
            _ => {}
        }
    }
    Ok(())
}
