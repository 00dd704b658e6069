//! ElevenLabs: recognition over the Scribe realtime WebSocket, synthesis over the multi-context WebSocket, and the list of
//! voices.

mod alignment;
mod errors;
mod scribe;
mod stt;
mod tts;
mod voices;

use std::sync::Arc;

use reqwest::header::HeaderName;

use crate::transport::{Transport, Vendor};
use vivavoce_config as config;
use vivavoce_config::value::VendorUrl;
use vivavoce_seams::{Credential, CredentialField, ProviderTable};

/// The slug on the wire.
pub const SLUG: &str = "elevenlabs";

/// The header that carries the key.
const KEY_HEADER: HeaderName = HeaderName::from_static("xi-api-key");
const KEY: &str = "api_key";
const CREDENTIAL_FIELDS: &[CredentialField] = &[CredentialField::key(KEY)];

const VENDOR: Vendor = Vendor {
    slug: SLUG,
    address: "https://api.elevenlabs.io",
    setting: "ELEVENLABS_API_KEY",
    refused: errors::refused,
};

/// Adds both directions.
pub fn add_to(table: &mut ProviderTable, settings: &config::Providers, transport: &Transport) {
    let key = settings.elevenlabs_api_key.clone();
    let own = key.map(|key| Credential::new([(KEY, key)]));
    table.add_own_credential(own.as_ref());
    let endpoint = |url: &Option<VendorUrl>, streams| {
        VENDOR.endpoint(url.as_ref(), own.clone(), streams, transport)
    };
    if let Some(stt) = endpoint(
        &settings.elevenlabs_stt_url,
        settings.elevenlabs_stt_streams,
    ) {
        table.add_speech_to_text(Arc::new(stt::Stt::new(stt)));
    }
    if let Some(tts) = endpoint(
        &settings.elevenlabs_tts_url,
        settings.elevenlabs_tts_streams,
    ) {
        table.add_text_to_speech(Arc::new(tts::Tts::new(tts)));
    }
}
