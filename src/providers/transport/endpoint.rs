//! The endpoint of a vendor: address, the server's own credential, and a limited number of connections per credential.
//! Whatever else a vendor needs is in its folder.

use std::num::NonZeroU32;
use std::time::Duration;

use reqwest::RequestBuilder;

use super::stt_driver::{self, Protocol};
use super::websocket::{Handshake, Socket};
use super::{Permit, Permits, Refusal, Transport, answer};
use vivavoce_config::value::{SettingValue, VendorUrl};
use vivavoce_quotas::Party;
use vivavoce_seams::{Credential, ErrorKind, ProviderError, SttStream};

/// The constants of a vendor.
#[derive(Debug, Clone, Copy)]
pub struct Vendor {
    /// The slug on the wire.
    pub slug: &'static str,
    /// The vendor's own address.
    pub address: &'static str,
    /// The setting of the server's own credential.
    pub setting: &'static str,
    /// Interprets an HTTP error of a handshake or a request.
    pub refused: fn(&Refusal) -> ProviderError,
}

/// A vendor's endpoint for recognition or synthesis.
#[derive(Debug)]
pub struct VendorEndpoint {
    /// The vendor's constants.
    pub vendor: Vendor,
    /// The base URL.
    pub url: VendorUrl,
    /// The server's own credential, or why there is none.
    pub own: Result<Credential, String>,
    pub transport: Transport,
    /// Limits the connections of each credential.
    pub permits: Permits,
}

impl Vendor {
    /// An endpoint at `url`, by default at the vendor's own address, with at most `streams` connections per credential.
    pub fn endpoint(
        self,
        url: Option<&VendorUrl>,
        own: Option<Credential>,
        streams: Option<NonZeroU32>,
        transport: &Transport,
    ) -> Option<VendorEndpoint> {
        Some(VendorEndpoint {
            vendor: self,
            url: match url {
                Some(url) => url.clone(),
                None => VendorUrl::parse(self.address)?,
            },
            own: own.ok_or_else(|| self.no_credential()),
            transport: transport.clone(),
            permits: transport.permits(self.slug, streams),
        })
    }

    /// The error message where neither the server nor the caller has a credential.
    pub fn no_credential(self) -> String {
        format!("no credential: set {}, or give one in auth", self.setting)
    }
}

impl VendorEndpoint {
    /// The vendor's slug.
    pub const fn slug(&self) -> &'static str {
        self.vendor.slug
    }

    /// The caller's credential, otherwise the server's own.
    pub fn credential(&self, callers: Option<&Credential>) -> Result<Credential, ProviderError> {
        match (callers, &self.own) {
            (Some(callers), _) => Ok(callers.clone()),
            (None, Ok(own)) => Ok(own.clone()),
            (None, Err(problem)) => Err(ProviderError::new(
                self.slug(),
                ErrorKind::NoCredential,
                problem.as_str(),
            )),
        }
    }

    /// The server's own credential.
    pub fn own(&self) -> Option<&Credential> {
        self.own.as_ref().ok()
    }

    /// The fingerprint of the server's own credential; zeros where there is none.
    pub fn own_fingerprint(&self) -> [u8; 32] {
        Credential::fingerprint_of(self.own.as_ref().ok())
    }

    /// Waits for a permit for one more connection with this credential.
    pub async fn permit(
        &self,
        credential: [u8; 32],
        party: &Party,
        patience: Duration,
    ) -> Result<Permit, ProviderError> {
        self.permits.acquire(credential, party, patience).await
    }

    /// Opens a WebSocket within `patience`.
    pub async fn dial(
        &self,
        handshake: Handshake,
        patience: Duration,
    ) -> Result<Socket, ProviderError> {
        let dialled = self.transport.dial(self.slug(), handshake, patience);
        dialled
            .await
            .map_err(|error| error.read(self.vendor.refused))
    }

    /// Opens a recognition stream. Waiting for a permit and connecting may take `patience` each.
    pub async fn recognise(
        &self,
        handshake: Handshake,
        credential: &Credential,
        party: &Party,
        patience: Duration,
        protocol: impl Protocol,
    ) -> Result<SttStream, ProviderError> {
        let permit = self
            .permit(credential.fingerprint(), party, patience)
            .await?;
        let socket = self.dial(handshake, patience).await?;
        stt_driver::open(socket, protocol, permit).await
    }

    /// Sends an HTTP request and returns the body of its response.
    pub async fn answer(&self, request: RequestBuilder) -> Result<Vec<u8>, ProviderError> {
        answer(self.slug(), request, self.vendor.refused).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_config::value::Secret;

    #[test]
    fn the_callers_credential_comes_before_the_servers() {
        let vendor = Vendor {
            slug: "vendor",
            address: "https://vendor.example",
            setting: "VENDOR_API_KEY",
            refused: |refusal| refusal.error("vendor", refusal.kind(), &refusal.body),
        };
        let transport = Transport::new(&vivavoce_core::tls_roots::Authorities::default()).unwrap();
        let credential = |key: &str| Credential::new([("api_key", Secret::new(key))]);
        let callers = credential("callers");
        let used = |own: Option<&str>, callers| {
            let endpoint = vendor.endpoint(None, own.map(credential), None, &transport);
            let used = endpoint.unwrap().credential(callers);
            used.map(|credential| credential.get("api_key").to_owned())
        };
        assert_eq!(used(Some("servers"), Some(&callers)).unwrap(), "callers");
        assert_eq!(used(Some("servers"), None).unwrap(), "servers");
        let missing = used(None, None).unwrap_err();
        assert_eq!(missing.kind, ErrorKind::NoCredential);
        assert!(missing.message.contains("VENDOR_API_KEY") && missing.message.contains("auth"));
    }
}
