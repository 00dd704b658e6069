//! Cartesia: recognition with Ink and synthesis with Sonic, both over WebSockets. This file has the endpoints, credentials
//! and handshakes; the protocols are in [`ink_whisper`], [`turns`] and [`tts`].

mod errors;
mod ink_whisper;
mod stt;
mod tts;
mod turns;
mod voices;

use std::sync::Arc;

use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};

use crate::transport::websocket::Handshake;
use crate::transport::{Transport, Vendor};
use vivavoce_audio::format::Encoding;
use vivavoce_config as config;
use vivavoce_config::value::{Secret, VendorUrl};
use vivavoce_seams::{Credential, CredentialField, ProviderTable};

/// The slug on the wire.
pub const SLUG: &str = "cartesia";

/// Which of its interfaces is spoken here: its own clients of 4.2.0 ask for the same.
const VERSION: (HeaderName, HeaderValue) = (
    HeaderName::from_static("cartesia-version"),
    HeaderValue::from_static("2026-08-14"),
);
const API_KEY: &str = "api_key";
const CREDENTIAL: &[CredentialField] = &[CredentialField::key(API_KEY)];

const VENDOR: Vendor = Vendor {
    slug: SLUG,
    address: "https://api.cartesia.ai",
    setting: "CARTESIA_API_KEY",
    refused: errors::refused,
};

/// Adds both directions.
pub fn add_to(table: &mut ProviderTable, settings: &config::Providers, transport: &Transport) {
    let own = settings.cartesia_api_key.as_ref().map(credential);
    table.add_own_credential(own.as_ref());
    let endpoint = |url: &Option<VendorUrl>, streams| {
        VENDOR.endpoint(url.as_ref(), own.clone(), streams, transport)
    };
    if let Some(stt) = endpoint(&settings.cartesia_stt_url, settings.cartesia_stt_streams) {
        table.add_speech_to_text(Arc::new(stt::Ink::new(stt)));
    }
    if let Some(tts) = endpoint(&settings.cartesia_tts_url, settings.cartesia_tts_streams) {
        table.add_text_to_speech(Arc::new(tts::Sonic::new(tts)));
    }
}

fn credential(key: &Secret) -> Credential {
    Credential::new([(API_KEY, key.clone())])
}

/// How a socket is asked for.
fn handshake(url: Url, credential: &Credential) -> Handshake {
    let bearer = format!("Bearer {}", credential.get(API_KEY));
    let mut handshake = Handshake::new(url).secret(AUTHORIZATION, &bearer);
    let (name, value) = VERSION;
    handshake.headers.insert(name, value);
    handshake
}

/// The vendor's name of an encoding that it has.
const fn encoding_name(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Mulaw => "pcm_mulaw",
        Encoding::Alaw => "pcm_alaw",
        _ => "pcm_s16le",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::testing::{assert_every_field_has_its_row, transport};
    use vivavoce_config::value::SettingValue;
    use vivavoce_seams::ErrorKind;

    #[test]
    fn every_field_of_a_config_has_its_row() {
        let config = config::Config::load(&[], None).unwrap();
        let mut table = ProviderTable::default();
        add_to(&mut table, &config.settings.providers, &transport());
        assert_every_field_has_its_row(&table, SLUG);
    }

    #[test]
    fn the_callers_credential_comes_before_the_servers() {
        let endpoint = |own: Option<&str>| {
            let own = own.map(|key| credential(&Secret::new(key)));
            VENDOR.endpoint(None, own, None, &transport()).unwrap()
        };
        let callers = credential(&Secret::new("callers"));
        let used = endpoint(Some("servers"))
            .credential(Some(&callers))
            .unwrap();
        assert_eq!(used.get(API_KEY), "callers");
        let used = endpoint(Some("servers")).credential(None).unwrap();
        assert_eq!(used.get(API_KEY), "servers");
        let missing = endpoint(None).credential(None).unwrap_err();
        assert_eq!(missing.kind, ErrorKind::NoCredential);
        assert!(missing.message.contains("CARTESIA_API_KEY"));
        assert_ne!(
            endpoint(Some("servers")).own_fingerprint(),
            endpoint(None).own_fingerprint()
        );
    }

    #[test]
    fn a_handshake_has_version_and_key_in_headers_and_no_key_in_its_address() {
        let key = credential(&Secret::new("marker"));
        let base = VendorUrl::parse(VENDOR.address).unwrap();
        let handshake = handshake(base.at(["tts", "websocket"]), &key);
        assert_eq!(handshake.headers["authorization"], "Bearer marker");
        assert_eq!(handshake.headers["cartesia-version"], "2026-08-14");
        assert_eq!(
            handshake.url.as_str(),
            "https://api.cartesia.ai/tts/websocket"
        );
        assert!(!format!("{handshake:?}").contains("marker"));
    }
}
