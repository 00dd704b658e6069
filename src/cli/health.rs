//! `vivavoce health`: asks the server that runs with these settings on this machine how it is, for health checks in
//! containers that hold no other program that could. Exit status 0: it answers 200.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, Stream};

use super::Failure;
use crate::config::Config;

/// For connecting, and for each read and write.
const PATIENCE: Duration = Duration::from_secs(3);
/// More than the answer has.
const ANSWER_BYTES: u64 = 16 * 1024;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce health           whether the server runs (/healthz)\n  \
    vivavoce health --ready   whether it also takes new work (/readyz)")]
pub(super) struct Arguments {
    /// Fail while the server drains, too
    #[arg(long)]
    ready: bool,
}

pub(super) fn run(config: &Config, arguments: &Arguments) -> Result<(), Failure> {
    let server = &config.settings.server;
    let address = SocketAddr::new(reachable(server.host), server.port);
    let path = if arguments.ready {
        "/readyz"
    } else {
        "/healthz"
    };
    let answer = ask(address, path, server.tls_cert.is_some());
    let answer =
        answer.map_err(|error| Failure::work(format!("no server at {address}: {error}")))?;
    match status(&answer) {
        Some("200") => Ok(()),
        status => Err(Failure::work(format!(
            "{path} at {address} answers {}",
            status.unwrap_or("something that is not HTTP")
        ))),
    }
}

/// The address at which this machine reaches a server that listens at `host`.
fn reachable(host: IpAddr) -> IpAddr {
    match host {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        host => host,
    }
}

/// The status code of an answer.
fn status(answer: &str) -> Option<&str> {
    let (version, rest) = answer.split_once(' ')?;
    version.starts_with("HTTP/1.").then_some(())?;
    rest.get(..3)
}

fn ask(address: SocketAddr, path: &str, tls: bool) -> io::Result<String> {
    let mut socket = TcpStream::connect_timeout(&address, PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    if tls {
        let name = ServerName::from(address.ip());
        let mut connection = ClientConnection::new(Arc::new(trusting_this_machine()), name)
            .map_err(io::Error::other)?;
        exchange(&mut Stream::new(&mut connection, &mut socket), &request)
    } else {
        exchange(&mut socket, &request)
    }
}

fn exchange(connection: &mut (impl Read + Write), request: &str) -> io::Result<String> {
    connection.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    match connection.take(ANSWER_BYTES).read_to_end(&mut answer) {
        // Some ends of connections are reported as errors, behind the answer.
        Err(error) if answer.is_empty() => Err(error),
        _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

/// Any certificate will do: its name is that of the public host, what is asked is at this machine's own address, and nothing
/// secret is sent.
fn trusting_this_machine() -> ClientConfig {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(AnyCertificate(provider));
    ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth()
}

#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_listens_everywhere_is_asked_on_this_machine() {
        for (listens, asked) in [
            ("0.0.0.0", "127.0.0.1"),
            ("::", "::1"),
            ("192.0.2.7", "192.0.2.7"),
        ] {
            let listens = listens.parse().unwrap();
            assert_eq!(reachable(listens).to_string(), asked);
        }
    }

    #[test]
    fn what_is_not_http_has_no_status() {
        assert_eq!(status("HTTP/1.1 503 Service Unavailable\r\n"), Some("503"));
        for answer in ["", "HTTP/1.1", "HTTP/1.1 20", "SSH-2.0 200 no", "ü ü ü ü"] {
            assert_eq!(status(answer), None, "{answer}");
        }
    }
}
