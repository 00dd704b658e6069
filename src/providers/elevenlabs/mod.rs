//! ElevenLabs: recognition by the Scribe realtime socket, synthesis by the socket of many contexts, and the list of
//! voices. What a refusal means is `errors`' knowledge; sockets, permits and pools are the transport's.

mod alignment;
mod errors;
mod scribe;
mod stt;
mod tts;
mod voices;

use std::sync::Arc;

use reqwest::header::HeaderName;

use crate::transport::Transport;
use vivavoce_config as config;
use vivavoce_config::value::{SettingValue, VendorUrl};
use vivavoce_seams::{Credential, CredentialField, ProviderError, ProviderTable};

/// The slug on the wire.
pub const SLUG: &str = "elevenlabs";

/// Where the vendor is.
const VENDOR: &str = "https://api.elevenlabs.io";
/// The header that carries the key.
const KEY_HEADER: HeaderName = HeaderName::from_static("xi-api-key");
const KEY: &str = "api_key";
const CREDENTIAL_FIELDS: &[CredentialField] = &[CredentialField::key(KEY)];

/// Adds both directions.
pub fn add_to(table: &mut ProviderTable, settings: &config::Providers, transport: &Transport) {
    let Some(vendor) = VendorUrl::parse(VENDOR) else {
        return;
    };
    let account = Account(
        settings
            .elevenlabs_api_key
            .clone()
            .map(|key| Credential::new([(KEY, key)])),
    );
    let url = |set: &Option<VendorUrl>| set.clone().unwrap_or_else(|| vendor.clone());
    table.add_speech_to_text(Arc::new(stt::Stt::new(
        account.clone(),
        url(&settings.elevenlabs_stt_url),
        settings.elevenlabs_stt_streams,
        transport.clone(),
    )));
    table.add_text_to_speech(Arc::new(tts::Tts::new(
        account,
        url(&settings.elevenlabs_tts_url),
        settings.elevenlabs_tts_streams,
        transport.clone(),
    )));
}

/// The server's own credential, where it has one.
#[derive(Debug, Clone)]
struct Account(Option<Credential>);

impl Account {
    /// The credential of a request: the caller's own, else the server's.
    fn credential(&self, callers: Option<&Credential>) -> Result<Credential, ProviderError> {
        Credential::choose(SLUG, callers, self.0.as_ref(), "ELEVENLABS_API_KEY")
    }
}
