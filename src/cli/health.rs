//! `vivavoce health`: asks the server that runs with these settings on this machine how it is, for health checks in
//! containers that hold no other program that could. Exit status 0: it answers 200.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, Stream};

use super::Failure;
use crate::config::{Config, Settings};

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
    let path = if arguments.ready {
        "/readyz"
    } else {
        "/healthz"
    };
    let (address, answer) = asked(&config.settings, path);
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

/// Whether a server runs with these settings.
pub(super) fn answers(settings: &Settings) -> bool {
    let (_, answer) = asked(settings, "/healthz");
    answer.is_ok_and(|answer| status(&answer) == Some("200"))
}

/// What the server of these settings answers, and where.
fn asked(settings: &Settings, path: &str) -> (SocketAddr, io::Result<String>) {
    let server = &settings.server;
    let address = SocketAddr::new(reachable(server.host), server.port);
    let tls = server.tls_cert.is_some().then(|| trusting(None));
    (address, ask(address, path, tls, "", ANSWER_BYTES))
}

/// The address at which this machine reaches a server that listens at `host`.
pub(super) fn reachable(host: IpAddr) -> IpAddr {
    match host {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        host => host,
    }
}

/// The status code of an answer.
pub(super) fn status(answer: &str) -> Option<&str> {
    let (version, rest) = answer.split_once(' ')?;
    version.starts_with("HTTP/1.").then_some(())?;
    rest.get(..3)
}

/// Asks a server on this machine; `headers` are lines with their ends.
pub(super) fn ask(
    address: SocketAddr,
    path: &str,
    tls: Option<ClientConfig>,
    headers: &str,
    most: u64,
) -> io::Result<String> {
    let mut socket = TcpStream::connect_timeout(&address, PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n{headers}connection: close\r\n\r\n");
    if let Some(tls) = tls {
        let name = ServerName::from(address.ip());
        let mut connection =
            ClientConnection::new(Arc::new(tls), name).map_err(io::Error::other)?;
        exchange(
            &mut Stream::new(&mut connection, &mut socket),
            &request,
            most,
        )
    } else {
        exchange(&mut socket, &request, most)
    }
}

fn exchange(connection: &mut (impl Read + Write), request: &str, most: u64) -> io::Result<String> {
    connection.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    match connection.take(most).read_to_end(&mut answer) {
        // Some ends of connections are reported as errors, behind the answer.
        Err(error) if answer.is_empty() => Err(error),
        _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

/// Accepts this certificate, whatever its names are: they are those of the public host, and what is asked is at this machine's
/// own address. Without one any will do, where nothing secret is sent.
pub(super) fn trusting(certificate: Option<CertificateDer<'static>>) -> ClientConfig {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Arc::new(OwnCertificate(provider, certificate));
    ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth()
}

#[derive(Debug)]
struct OwnCertificate(Arc<CryptoProvider>, Option<CertificateDer<'static>>);

impl ServerCertVerifier for OwnCertificate {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match &self.1 {
            Some(known) if known != shown => Err(rustls::Error::General(
                "the certificate is not that of server.tls_cert".to_owned(),
            )),
            _ => Ok(ServerCertVerified::assertion()),
        }
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
