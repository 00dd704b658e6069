//! Deepgram: recognition with Nova or Flux and synthesis with Aura, all over WebSockets. This file has the endpoints,
//! credentials and handshakes; the protocols are in [`nova`], [`flux`] and [`aura`].

mod aura;
mod errors;
mod flux;
mod nova;
mod result_tracker;
mod silence_padding;
mod stt;
mod tts;
mod voices;

use std::sync::Arc;

use reqwest::Url;
use reqwest::header::AUTHORIZATION;

use crate::transport::websocket::Handshake;
use crate::transport::{Transport, Vendor};
use vivavoce_audio::format::{AudioFormat, Encoding};
use vivavoce_config as config;
use vivavoce_config::value::{Secret, VendorUrl};
use vivavoce_seams::{Credential, CredentialField, ProviderTable};

/// The slug on the wire.
pub const SLUG: &str = "deepgram";

const API_KEY: &str = "api_key";
const CREDENTIAL: &[CredentialField] = &[CredentialField::key(API_KEY)];

const VENDOR: Vendor = Vendor {
    slug: SLUG,
    address: "https://api.deepgram.com",
    setting: "DEEPGRAM_API_KEY",
    refused: errors::refused,
};

/// Adds both directions.
pub fn add_to(table: &mut ProviderTable, settings: &config::Providers, transport: &Transport) {
    let own = settings.deepgram_api_key.as_ref().map(credential);
    table.add_own_credential(own.as_ref());
    let endpoint = |url: &Option<VendorUrl>, streams| {
        VENDOR.endpoint(url.as_ref(), own.clone(), streams, transport)
    };
    if let Some(stt) = endpoint(&settings.deepgram_stt_url, settings.deepgram_stt_streams) {
        table.add_speech_to_text(Arc::new(stt::DeepgramStt::new(stt)));
    }
    if let Some(tts) = endpoint(&settings.deepgram_tts_url, settings.deepgram_tts_streams) {
        table.add_text_to_speech(Arc::new(tts::DeepgramTts::new(tts)));
    }
}

fn credential(key: &Secret) -> Credential {
    Credential::new([(API_KEY, key.clone())])
}

fn authorization(credential: &Credential) -> String {
    format!("Token {}", credential.get(API_KEY))
}

fn handshake(url: Url, credential: &Credential) -> Handshake {
    Handshake::new(url).secret(AUTHORIZATION, &authorization(credential))
}

/// The vendor's name of an encoding; those that it is not asked for are converted before.
const fn encoding_name(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Mulaw => "mulaw",
        Encoding::Alaw => "alaw",
        _ => "linear16",
    }
}

/// The bytes of one second of headerless sound.
fn bytes_per_second(format: AudioFormat) -> usize {
    let bytes_per_sample = if format.encoding == Encoding::Linear16 {
        2
    } else {
        1
    };
    format.layout.rate.hz() as usize * format.layout.channels.count() * bytes_per_sample
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::testing::{assert_every_field_has_its_row, transport};
    use vivavoce_seams::ErrorKind;

    #[test]
    fn every_field_of_a_config_has_its_row() {
        let config = config::Config::load(&[], None).unwrap();
        let mut table = ProviderTable::default();
        add_to(&mut table, &config.settings.providers, &transport());
        assert_every_field_has_its_row(&table, SLUG);
    }

    #[test]
    fn the_callers_key_comes_before_the_servers() {
        let callers = credential(&Secret::new("callers"));
        let key = |own: Option<&str>, callers| {
            let own = own.map(|key| credential(&Secret::new(key)));
            let endpoint = VENDOR.endpoint(None, own, None, &transport()).unwrap();
            let used = endpoint.credential(callers);
            used.map(|credential| credential.get(API_KEY).to_owned())
        };
        assert_eq!(key(Some("servers"), Some(&callers)).unwrap(), "callers");
        assert_eq!(key(Some("servers"), None).unwrap(), "servers");
        let missing = key(None, None).unwrap_err();
        assert_eq!(missing.kind, ErrorKind::NoCredential);
        assert!(missing.message.contains("DEEPGRAM_API_KEY"));
    }
}
