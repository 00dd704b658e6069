//! Deepgram: recognition with Nova or Flux, synthesis with Aura, both over sockets. This file knows how to get in:
//! addresses and credentials. What is said over the sockets is in [`nova`], [`flux`] and [`aura`].

mod aura;
mod errors;
mod filler;
mod flux;
mod hearsay;
mod nova;
mod stt;
#[cfg(test)]
mod testing;
mod tts;
mod voices;

use std::sync::Arc;

use reqwest::Url;
use reqwest::header::AUTHORIZATION;

use crate::transport::websocket::Handshake;
use crate::transport::{Permits, Transport};
use vivavoce_audio::format::{AudioFormat, Encoding};
use vivavoce_config as config;
use vivavoce_config::value::{SettingValue, VendorUrl};
use vivavoce_seams::{Credential, CredentialField, ProviderError, ProviderTable};

/// The slug on the wire.
pub const SLUG: &str = "deepgram";

/// The vendor's own address.
const ADDRESS: &str = "https://api.deepgram.com";
const API_KEY: &str = "api_key";
const CREDENTIAL: &[CredentialField] = &[CredentialField::key(API_KEY)];

/// Adds both directions.
pub fn add_to(table: &mut ProviderTable, settings: &config::Providers, transport: &Transport) {
    let key = settings.deepgram_api_key.as_ref();
    let entrance = |url: &Option<VendorUrl>| {
        Some(Entrance {
            address: url.clone().or_else(|| VendorUrl::parse(ADDRESS))?,
            own: key.map(|key| Credential::new([(API_KEY, key.clone())])),
            transport: transport.clone(),
        })
    };
    if let Some(entrance) = entrance(&settings.deepgram_stt_url) {
        let permits = Permits::new(SLUG, settings.deepgram_stt_streams);
        table.add_speech_to_text(Arc::new(stt::DeepgramStt::new(entrance, permits)));
    }
    if let Some(entrance) = entrance(&settings.deepgram_tts_url) {
        let permits = Permits::new(SLUG, settings.deepgram_tts_streams);
        table.add_text_to_speech(Arc::new(tts::DeepgramTts::new(entrance, permits)));
    }
}

/// Where the vendor is, and what opens its door.
#[derive(Debug)]
struct Entrance {
    address: VendorUrl,
    /// The server's own.
    own: Option<Credential>,
    transport: Transport,
}

impl Entrance {
    /// The caller's credential, else the server's.
    fn credential(&self, callers: Option<&Credential>) -> Result<Credential, ProviderError> {
        Credential::choose(SLUG, callers, self.own.as_ref(), "DEEPGRAM_API_KEY")
    }
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
    use vivavoce_config::value::Secret;
    use vivavoce_seams::ErrorKind;
    use vivavoce_seams::parameters::{Parameter, STT_FIELDS, TTS_FIELDS};

    fn entrance(own: Option<&str>) -> Entrance {
        Entrance {
            address: VendorUrl::parse(ADDRESS).unwrap(),
            own: own.map(|key| Credential::new([(API_KEY, Secret::new(key))])),
            transport: Transport::new(&vivavoce_core::outgoing::Authorities::default()).unwrap(),
        }
    }

    #[test]
    fn every_field_of_a_config_has_its_row() {
        let config = config::Config::load(&[], None).unwrap();
        let mut table = ProviderTable::default();
        let transport = Transport::new(&vivavoce_core::outgoing::Authorities::default()).unwrap();
        add_to(&mut table, &config.settings.providers, &transport);
        let fields = |rows: &[Parameter]| rows.iter().map(|row| row.field).collect::<Vec<_>>();
        let stt = table.speech_to_text(SLUG).unwrap();
        assert_eq!(fields(stt.parameters()), STT_FIELDS);
        let tts = table.text_to_speech(SLUG).unwrap();
        assert_eq!(fields(tts.parameters()), TTS_FIELDS);
    }

    #[test]
    fn the_callers_key_comes_before_the_servers() {
        let callers = Credential::new([(API_KEY, Secret::new("callers"))]);
        let key = |own, callers| {
            let credential = entrance(own).credential(callers);
            credential.map(|credential| credential.get(API_KEY).to_owned())
        };
        assert_eq!(key(Some("servers"), Some(&callers)).unwrap(), "callers");
        assert_eq!(key(Some("servers"), None).unwrap(), "servers");
        let missing = key(None, None).unwrap_err();
        assert_eq!(missing.kind, ErrorKind::Auth);
        assert!(missing.message.contains("DEEPGRAM_API_KEY"));
    }
}
