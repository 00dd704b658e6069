//! Cartesia: recognition with Ink, synthesis with Sonic, both over sockets. This file knows how to get in: addresses,
//! credential, headers. What is said over the sockets is in [`manual`], [`turns`] and [`tts`].

mod errors;
mod manual;
mod stt;
mod tts;
mod turns;
mod voices;

use std::sync::Arc;

use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};

use crate::transport::Transport;
use crate::transport::websocket::Handshake;
use vivavoce_audio::format::Encoding;
use vivavoce_config as config;
use vivavoce_config::value::{Secret, SettingValue, VendorUrl};
use vivavoce_seams::{Credential, CredentialField, ProviderError, ProviderTable};

/// The slug on the wire.
pub const SLUG: &str = "cartesia";

/// The vendor's own address.
const ADDRESS: &str = "https://api.cartesia.ai";
/// Which of its interfaces is spoken here: its own clients of 4.2.0 ask for the same.
const VERSION: (HeaderName, HeaderValue) = (
    HeaderName::from_static("cartesia-version"),
    HeaderValue::from_static("2026-08-14"),
);
const API_KEY: &str = "api_key";
const CREDENTIAL: &[CredentialField] = &[CredentialField::key(API_KEY)];

/// Adds both directions.
pub fn add_to(table: &mut ProviderTable, settings: &config::Providers, transport: &Transport) {
    let key = settings.cartesia_api_key.as_ref();
    let door = |url: &Option<VendorUrl>| {
        Some(Door {
            base: url.clone().or_else(|| VendorUrl::parse(ADDRESS))?,
            own: key.map(credential),
            transport: transport.clone(),
        })
    };
    if let Some(door) = door(&settings.cartesia_stt_url) {
        let permits = transport.permits(SLUG, settings.cartesia_stt_streams);
        table.add_speech_to_text(Arc::new(stt::Ink::new(door, permits)));
    }
    if let Some(door) = door(&settings.cartesia_tts_url) {
        let permits = transport.permits(SLUG, settings.cartesia_tts_streams);
        table.add_text_to_speech(Arc::new(tts::Sonic::new(door, permits)));
    }
}

fn credential(key: &Secret) -> Credential {
    Credential::new([(API_KEY, key.clone())])
}

/// Where the vendor is, and what opens.
#[derive(Debug, Clone)]
struct Door {
    base: VendorUrl,
    /// The server's own credential.
    own: Option<Credential>,
    transport: Transport,
}

impl Door {
    /// The caller's credential, else the server's.
    fn credential(&self, callers: Option<&Credential>) -> Result<Credential, ProviderError> {
        Credential::choose(SLUG, callers, self.own.as_ref(), "CARTESIA_API_KEY")
    }

    /// Names the server's own credential.
    fn fingerprint(&self) -> [u8; 32] {
        Credential::fingerprint_of(self.own.as_ref())
    }
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
    use vivavoce_seams::parameters::{STT_FIELDS, TTS_FIELDS};
    use vivavoce_seams::{ErrorKind, SpeechToText, TextToSpeech};

    fn table() -> ProviderTable {
        let config = config::Config::load(&[], None).unwrap();
        let transport = Transport::new(&vivavoce_core::outgoing::Authorities::default()).unwrap();
        let mut table = ProviderTable::default();
        add_to(&mut table, &config.settings.providers, &transport);
        table
    }

    #[test]
    fn every_field_of_a_config_has_its_row() {
        let table = table();
        let fields = |rows: &[vivavoce_seams::parameters::Parameter]| {
            rows.iter().map(|row| row.field).collect::<Vec<_>>()
        };
        let stt: Arc<dyn SpeechToText> = table.speech_to_text(SLUG).unwrap();
        assert_eq!(fields(stt.parameters()), STT_FIELDS);
        let tts: Arc<dyn TextToSpeech> = table.text_to_speech(SLUG).unwrap();
        assert_eq!(fields(tts.parameters()), TTS_FIELDS);
    }

    #[test]
    fn the_callers_credential_comes_before_the_servers() {
        let door = |own: Option<&str>| Door {
            base: VendorUrl::parse(ADDRESS).unwrap(),
            own: own.map(|key| credential(&Secret::new(key))),
            transport: Transport::new(&vivavoce_core::outgoing::Authorities::default()).unwrap(),
        };
        let callers = credential(&Secret::new("callers"));
        let used = door(Some("servers")).credential(Some(&callers)).unwrap();
        assert_eq!(used.get(API_KEY), "callers");
        let used = door(Some("servers")).credential(None).unwrap();
        assert_eq!(used.get(API_KEY), "servers");
        let missing = door(None).credential(None).unwrap_err();
        assert_eq!(missing.kind, ErrorKind::Auth);
        assert!(missing.message.contains("CARTESIA_API_KEY"));
        assert_ne!(
            door(Some("servers")).fingerprint(),
            door(None).fingerprint()
        );
    }

    #[test]
    fn a_handshake_has_version_and_key_in_headers_and_no_key_in_its_address() {
        let key = credential(&Secret::new("marker"));
        let base = VendorUrl::parse(ADDRESS).unwrap();
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
