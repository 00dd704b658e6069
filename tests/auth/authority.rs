//! An authentication service over TLS whose certificate is of an authority that only the settings know.

use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ServerConfig, crypto::aws_lc_rs};

use super::*;

/// An authority, its certificate in a file.
struct Authority {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { folder, issuer }
    }

    fn file(&self) -> String {
        self.folder.path().join("ca.pem").display().to_string()
    }

    /// TLS by a certificate for this name, before a service that has none; its address.
    async fn secure(&self, service: &AuthService, name: &str) -> SocketAddr {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let behind = service.address();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                // A client that does not believe the certificate goes.
                if let Ok(mut secured) = acceptor.accept(tcp).await {
                    let mut plain = TcpStream::connect(behind).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut secured, &mut plain).await;
                }
            }
        });
        address
    }
}

#[actix_web::test]
async fn a_service_with_a_certificate_of_an_authority_of_ones_own_is_believed_where_that_is_set() {
    let file = KeyFile::new(&EC.pkcs8);
    let service = AuthService::start(|_| ok(r#"{"id": "a"}"#));
    let (ours, others) = (Authority::new(), Authority::new());
    let right = ours.secure(&service, "127.0.0.1").await;
    let other_name = ours.secure(&service, "auth.example").await;
    let (ours, others) = (ours.file(), others.file());
    for (address, ca_file, status) in [
        (right, Some(&ours), 200),
        (right, None, 503),
        (right, Some(&others), 503),
        (other_name, Some(&ours), 503),
    ] {
        let asked = service.seen().len();
        let url = format!("https://{address}/check");
        let mut settings = vec![("AUTH_SERVICE_URL", url.as_str())];
        settings.extend(ca_file.map(|file| ("OUTGOING_CA_FILE", file.as_str())));
        let server = asking(&service, &file.path(), &settings);
        let response = get(&server, "/sessions", "t").await;
        if status == 200 {
            assert_eq!(response.status(), 200, "{ca_file:?}");
            assert_eq!(service.seen().len(), asked + 1);
        } else {
            assert_error(response, status, "auth_service_unavailable", "").await;
            assert_eq!(
                service.seen().len(),
                asked,
                "a token was told to a stranger"
            );
        }
    }
}

#[test]
fn a_file_of_authorities_that_cannot_be_used_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["serve", "check"] {
        let output = Command::new(VIVAVOCE)
            .arg(command)
            .env("OUTGOING_CA_FILE", "/nowhere/ca.pem")
            .env("PORT", "0")
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(!output.status.success(), "{command}");
        let said = stderr(&output);
        assert!(said.contains("outgoing.ca_file: /nowhere/ca.pem"), "{said}");
    }
}
