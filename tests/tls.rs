//! The server over TLS: requests, sockets, and a certificate that is replaced while it runs.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, crypto::aws_lc_rs};
use tokio_tungstenite::tungstenite::Message;

use crate::harness::*;

/// A folder with a certificate and its key.
struct Pair(tempfile::TempDir);

impl Pair {
    fn new() -> (Self, CertificateDer<'static>) {
        let pair = Self(tempfile::tempdir().unwrap());
        let cert = pair.write();
        (pair, cert)
    }

    /// Writes a new pair and gives its certificate.
    fn write(&self) -> CertificateDer<'static> {
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(self.cert(), pair.cert.pem()).unwrap();
        std::fs::write(self.key(), pair.signing_key.serialize_pem()).unwrap();
        pair.cert.der().clone()
    }

    fn cert(&self) -> PathBuf {
        self.0.path().join("cert.pem")
    }

    fn key(&self) -> PathBuf {
        self.0.path().join("key.pem")
    }

    fn server(&self) -> Server {
        let [cert, key] = [self.cert(), self.key()].map(|file| file.display().to_string());
        Server::start_with(&[("SERVER_TLS_CERT", &cert), ("SERVER_TLS_KEY", &key)])
    }
}

/// A connection of a client that believes this certificate alone; fails with what TLS says.
async fn connect(
    server: &Server,
    cert: &CertificateDer<'static>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(cert.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let address = server.url.strip_prefix("https://").unwrap();
    let tcp = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, tcp)
        .await
}

async fn get(server: &Server, cert: &CertificateDer<'static>, path: &str) -> String {
    let mut connection = connect(server, cert).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn requests_are_answered_over_tls_and_not_without_it() {
    let (pair, cert) = Pair::new();
    let server = pair.server();
    assert!(
        get(&server, &cert, "/healthz")
            .await
            .starts_with("HTTP/1.1 200")
    );
    let plain = server.url.replace("https://", "http://");
    assert!(client().get(plain).send().await.is_err());
}

/// Connections to the server on which nothing, or this, was sent.
async fn connections(server: &Server, count: usize, sent: &[u8]) -> Vec<TcpStream> {
    let address = server.url.strip_prefix("https://").unwrap();
    let mut connections = Vec::new();
    for _ in 0..count {
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection.write_all(sent).await.unwrap();
        connections.push(connection);
    }
    connections
}

#[tokio::test]
async fn handshakes_that_nobody_finishes_keep_nobody_out_where_metrics_have_an_address() {
    let (pair, cert) = Pair::new();
    let [tls_cert, key] = [pair.cert(), pair.key()].map(|file| file.display().to_string());
    let server = Server::start_with(&[
        ("SERVER_TLS_CERT", &tls_cert),
        ("SERVER_TLS_KEY", &key),
        ("METRICS_ADDRESS", "127.0.0.1:0"),
    ]);
    // More for each worker than the listener of the metrics has connections.
    let cores = std::thread::available_parallelism().unwrap().get();
    let held = connections(&server, 80 * cores, b"").await;
    let answer = tokio::time::timeout(Duration::from_secs(2), get(&server, &cert, "/healthz"));
    let answer = answer.await.expect("handshakes wait for those before them");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(held);
}

/// The ClientHello of a client that says to want the host `local*ost`, of which rustls warns.
fn hello_for_no_name() -> Vec<u8> {
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    let name = hello.windows(9).position(|window| window == b"localhost");
    hello[name.unwrap() + 5] = b'*';
    hello
}

#[tokio::test]
async fn what_is_no_handshake_fills_no_log() {
    let (pair, cert) = Pair::new();
    let [tls_cert, key] = [pair.cert(), pair.key()].map(|file| file.display().to_string());
    let mut server =
        Server::start_logged(&[("SERVER_TLS_CERT", &tls_cert), ("SERVER_TLS_KEY", &key)]);
    // A ClientHello for a host whose name is none, and something else.
    let hellos = connections(&server, 50, &hello_for_no_name()).await;
    let others = connections(&server, 50, b"GET / HTTP/1.1\r\n\r\n").await;
    for mut connection in hellos.into_iter().chain(others) {
        // An alert, and the end.
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer).await;
    }
    let answer = get(&server, &cert, "/healthz").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let log = server.log();
    assert!(log.lines().count() < 30, "{log}");
}

#[tokio::test]
async fn a_session_runs_over_tls_to_its_clean_end() {
    let (pair, cert) = Pair::new();
    let server = pair.server();
    let connection = connect(&server, &cert).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async("wss://localhost/ws", connection)
        .await
        .unwrap();
    let config = r#"{"type": "config", "audio": false, "stream_id": "over-tls"}"#;
    socket.send(Message::text(config)).await.unwrap();
    let ready = socket.next().await.unwrap().unwrap();
    assert!(ready.to_text().unwrap().contains("over-tls"), "{ready}");
    socket.close(None).await.unwrap();
    while let Some(message) = socket.next().await {
        let message = message.expect("the connection was cut");
        assert!(message.is_close(), "{message}");
    }
}

#[tokio::test]
async fn the_server_ends_a_session_over_tls_with_its_code() {
    let (pair, cert) = Pair::new();
    let server = pair.server();
    let connection = connect(&server, &cert).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async("wss://localhost/ws", connection)
        .await
        .unwrap();
    let config = r#"{"type": "config", "audio": false, "stream_id": "over-tls"}"#;
    socket.send(Message::text(config)).await.unwrap();
    socket.next().await.unwrap().unwrap();
    let mut other = connect(&server, &cert).await.unwrap();
    let request =
        "DELETE /sessions/over-tls HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    other.write_all(request.as_bytes()).await.unwrap();
    let closed = socket.next().await.unwrap().unwrap();
    let Message::Close(Some(frame)) = closed else {
        panic!("{closed}");
    };
    assert_eq!(u16::from(frame.code), 1000);
    while let Some(message) = socket.next().await {
        message.expect("the connection was cut");
    }
}

#[tokio::test]
async fn a_replaced_certificate_is_shown_to_who_comes_next_and_who_is_there_stays() {
    let (pair, old) = Pair::new();
    let server = pair.server();
    let connection = connect(&server, &old).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async("wss://localhost/ws", connection)
        .await
        .unwrap();
    let new = pair.write();
    let mut attempts = 0;
    while connect(&server, &new).await.is_err() {
        attempts += 1;
        assert!(attempts < 1000, "the new certificate is not shown");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(connect(&server, &old).await.is_err());
    socket.send(Message::Ping("still".into())).await.unwrap();
    assert!(socket.next().await.unwrap().unwrap().is_pong());
}

#[test]
fn a_certificate_that_cannot_be_used_stops_the_start_by_its_setting() {
    let (pair, _) = Pair::new();
    let check = |cert: &str, key: &str, expected: &str| {
        let output = Command::new(VIVAVOCE)
            .args(["serve", "--port", "0", "--data-dir"])
            .arg(pair.0.path())
            .envs([("SERVER_TLS_CERT", cert), ("SERVER_TLS_KEY", key)])
            .output()
            .unwrap();
        assert!(!output.status.success());
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    };
    let [cert, key] = [pair.cert(), pair.key()].map(|file| file.display().to_string());
    check(
        "/nowhere/cert.pem",
        &key,
        "server.tls.cert: /nowhere/cert.pem",
    );
    check(
        &cert,
        "/nowhere/key.pem",
        "server.tls.key: /nowhere/key.pem",
    );
    check(&cert, &cert, "server.tls.key: ");
    check(&cert, "", "one needs the other");
}
