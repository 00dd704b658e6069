//! Google Cloud: recognition with Speech-to-Text v2 and synthesis with Text-to-Speech v1, both over gRPC. This file has what
//! they share: endpoints, credentials, access tokens and connections.

mod account;
mod call;
mod channels;
mod errors;
mod stt;
mod tts;
mod voices;
pub mod wire;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Status};

use crate::transport::{Transport, Vendor, VendorEndpoint};
use vivavoce_config as config;
use vivavoce_config::value::{SettingValue, VendorUrl};
use vivavoce_seams::{Credential, ProviderError, ProviderTable};

/// The slug on the wire.
pub const SLUG: &str = "google";

/// How long connecting may take where the caller does not say.
const CONNECTING: Duration = Duration::from_secs(10);
/// The location that is everywhere: its hosts have no prefix.
const GLOBAL: &str = "global";
/// Where the server's credential is set.
const SETTING: &str = "GOOGLE_APPLICATION_CREDENTIALS";

const VENDOR: Vendor = Vendor {
    slug: SLUG,
    // Each interface has a host of its own, see `host`.
    address: "https://googleapis.com",
    setting: SETTING,
    refused: errors::token_refused,
};

/// What both directions share.
struct Shared {
    channels: channels::Channels,
    tokens: account::Tokens,
}

/// One direction: its address and credential, and the connections and tokens of both.
struct GoogleEndpoint {
    vendor: VendorEndpoint,
    shared: Arc<Shared>,
}

/// Whose credential is used.
#[derive(Debug, Clone)]
struct Access {
    credential: Credential,
    /// It is the server's own, and not a caller's.
    of_server: bool,
}

/// Adds both directions.
pub fn add_to(table: &mut ProviderTable, settings: &config::Providers, transport: &Transport) {
    let set = [&settings.google_stt_url, &settings.google_tts_url];
    let hosts = set.into_iter().flatten();
    let hosts = hosts.filter_map(|url| url.url().host_str().map(str::to_owned));
    let shared = Arc::new(Shared {
        channels: channels::Channels::new(transport),
        tokens: account::Tokens::new(transport.clone(), hosts.collect()),
    });
    let own = own_credential(settings.google_credentials.as_deref());
    let location = &settings.google_location;
    let endpoint = |url: &Option<VendorUrl>, name: &str, streams| {
        let url = url.clone().or_else(|| host(location, name))?;
        let vendor = VENDOR.endpoint(Some(&url), None, streams, transport)?;
        Some(Arc::new(GoogleEndpoint {
            vendor: VendorEndpoint {
                own: own.clone(),
                ..vendor
            },
            shared: Arc::clone(&shared),
        }))
    };
    let (url, streams) = (&settings.google_stt_url, settings.google_stt_streams);
    if let Some(stt) = endpoint(url, "speech", streams) {
        table.add_speech_to_text(Arc::new(stt::GoogleStt::new(stt, location.clone())));
    }
    let (url, streams) = (&settings.google_tts_url, settings.google_tts_streams);
    if let Some(tts) = endpoint(url, "texttospeech", streams) {
        table.add_text_to_speech(Arc::new(tts::GoogleTts::new(tts)));
    }
}

/// Where an interface is for a location. There is one for each location that the settings take.
fn host(location: &str, name: &str) -> Option<VendorUrl> {
    let prefix = match location {
        GLOBAL => String::new(),
        regional => format!("{regional}-"),
    };
    VendorUrl::parse(&format!("https://{prefix}{name}.googleapis.com"))
}

fn own_credential(file: Option<&Path>) -> Result<Credential, String> {
    let file = file.ok_or_else(|| VENDOR.no_credential())?;
    read_credential(file).map_err(|problem| {
        let problem = format!("{SETTING}: {}: {problem}", file.display());
        tracing::error!("{problem}");
        problem
    })
}

fn read_credential(file: &Path) -> Result<Credential, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    account::of_server(&text).ok_or_else(|| "is no service account".to_owned())
}

/// Whether a file holds a service account.
pub fn check_credentials(file: &Path) -> Result<(), String> {
    read_credential(file).map(drop)
}

impl GoogleEndpoint {
    /// The caller's credential, or else the server's.
    fn access(&self, callers: Option<&Credential>) -> Result<Access, ProviderError> {
        Ok(Access {
            credential: self.vendor.credential(callers)?,
            of_server: callers.is_none(),
        })
    }

    /// What a failed call means.
    fn failed(&self, access: &Access, status: &Status) -> ProviderError {
        if status.code() == Code::Unauthenticated {
            self.shared.tokens.forget(&access.credential);
        }
        errors::of_status(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_location_has_its_host() {
        let host = |location: &str| host(location, "speech").unwrap().url().to_string();
        assert_eq!(host(GLOBAL), "https://speech.googleapis.com/");
        assert_eq!(
            host("us-central1"),
            "https://us-central1-speech.googleapis.com/"
        );
    }

    #[test]
    fn a_credential_that_is_not_there_is_called_by_the_name_of_its_setting() {
        let missing = own_credential(None).unwrap_err();
        assert!(missing.contains(SETTING) && missing.contains("auth"));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("account.json");
        assert!(own_credential(Some(&file)).unwrap_err().contains(SETTING));
        std::fs::write(&file, r#"{"private_key":"marker"}"#).unwrap();
        let unusable = own_credential(Some(&file)).unwrap_err();
        assert!(unusable.contains("no service account") && !unusable.contains("marker"));
        let account = account::tests::account("https://oauth2.googleapis.com/token");
        std::fs::write(&file, account.to_string()).unwrap();
        assert!(own_credential(Some(&file)).is_ok());
    }
}
