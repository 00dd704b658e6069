//! Azure AI Speech: recognition and synthesis over Azure's own framing of a WebSocket ([`usp`]), and the list of voices.
//! Where it is, and what opens it, is the same for all three and is here.

mod errors;
mod stt;
mod tts;
mod usp;
mod voices;

use std::sync::Arc;

use reqwest::header::HeaderName;
use serde_json::Value;
use url::Url;

use crate::transport::speaking::Line;
use crate::transport::websocket::Handshake;
use crate::transport::{Permits, Transport};
use vivavoce_config as config;
use vivavoce_config::value::VendorUrl;
use vivavoce_seams::{Credential, CredentialField, ErrorKind, ProviderError, ProviderTable};

/// The slug on the wire.
pub const SLUG: &str = "azure";

const KEY: &str = "api_key";
const REGION: &str = "region";
const SUBSCRIPTION_KEY: HeaderName = HeaderName::from_static("ocp-apim-subscription-key");
const CONNECTION_ID: HeaderName = HeaderName::from_static("x-connectionid");

const CREDENTIAL: &[CredentialField] = &[
    CredentialField::key(KEY),
    CredentialField {
        name: REGION,
        check: region,
    },
];

/// A region becomes a part of a host name.
fn region(value: &Value) -> Result<String, &'static str> {
    let fits = |text: &&str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (2..=32).contains(&text.len()) && text.bytes().all(plain)
    };
    let text = value.as_str().filter(fits);
    text.map(str::to_owned)
        .ok_or("be 2 to 32 of a-z, 0-9 and -")
}

/// Azure, in both directions.
struct Azure {
    transport: Transport,
    /// The server's own credential.
    credential: Option<Credential>,
    stt_url: Option<VendorUrl>,
    tts_url: Option<VendorUrl>,
    /// Where it speaks, for people and caches.
    endpoint: String,
    stt_permits: Permits,
    line: Arc<Line>,
}

/// Adds both directions.
pub fn add_to(table: &mut ProviderTable, settings: &config::Providers, transport: &Transport) {
    let azure = Arc::new(Azure::new(settings, transport));
    table.add_speech_to_text(azure.clone());
    table.add_text_to_speech(azure);
}

impl Azure {
    fn new(settings: &config::Providers, transport: &Transport) -> Self {
        let credential = settings.azure_subscription_key.clone().map(|key| {
            let region = settings.azure_region.clone();
            Credential::new([(KEY, key), (REGION, config::value::Secret::new(region))])
        });
        let endpoint = match &settings.azure_tts_url {
            Some(url) => url.url().to_string(),
            None => settings.azure_region.clone(),
        };
        Self {
            transport: transport.clone(),
            credential,
            stt_url: settings.azure_stt_url.clone(),
            tts_url: settings.azure_tts_url.clone(),
            endpoint,
            stt_permits: transport.permits(SLUG, settings.azure_stt_streams),
            line: Arc::new(tts::line(transport, settings.azure_tts_streams)),
        }
    }

    /// The caller's credential, else the server's.
    fn credential(&self, own: Option<&Credential>) -> Result<Credential, ProviderError> {
        let servers = self.credential.as_ref();
        Credential::choose(SLUG, own, servers, "AZURE_SPEECH_SUBSCRIPTION_KEY")
    }

    fn stt_url<const N: usize>(
        &self,
        credential: &Credential,
        path: [&str; N],
    ) -> Result<Url, ProviderError> {
        address(self.stt_url.as_ref(), credential, "stt", path)
    }

    /// `service` is `tts`, or `voice` for voices that were made for one customer.
    fn tts_url<const N: usize>(
        &self,
        credential: &Credential,
        service: &str,
        path: [&str; N],
    ) -> Result<Url, ProviderError> {
        address(self.tts_url.as_ref(), credential, service, path)
    }
}

/// The address of a path at the endpoint of the settings, else at the region's.
fn address<const N: usize>(
    endpoint: Option<&VendorUrl>,
    credential: &Credential,
    service: &str,
    path: [&str; N],
) -> Result<Url, ProviderError> {
    if let Some(endpoint) = endpoint {
        return Ok(endpoint.at(path));
    }
    let region = region(&credential.get(REGION).into()).map_err(|problem| {
        let problem = format!("the region must {problem}");
        ProviderError::new(SLUG, ErrorKind::InvalidRequest, problem)
    })?;
    let domain = match region.as_str() {
        china if china.starts_with("china") => "azure.cn",
        government if government.starts_with("usgov") => "azure.us",
        _ => "microsoft.com",
    };
    let address = format!(
        "https://{region}.{service}.speech.{domain}/{}",
        path.join("/")
    );
    Url::parse(&address)
        .map_err(|error| ProviderError::new(SLUG, ErrorKind::InvalidRequest, error.to_string()))
}

fn handshake(url: Url, credential: &Credential, origin: &usp::Origin) -> Handshake {
    let mut handshake = Handshake::new(url).secret(SUBSCRIPTION_KEY, credential.get(KEY));
    if let Ok(id) = origin.connection_id().parse() {
        handshake.headers.insert(CONNECTION_ID, id);
    }
    handshake
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use vivavoce_config::value::{Secret, SettingValue};
    use vivavoce_seams::parameters::{STT_FIELDS, TTS_FIELDS};
    use vivavoce_seams::{SpeechToText, TextToSpeech};

    fn credential(region: &str) -> Credential {
        Credential::new([(KEY, Secret::new("k")), (REGION, Secret::new(region))])
    }

    #[test]
    fn the_region_decides_the_host_unless_there_is_an_endpoint() {
        let at = |region: &str| address(None, &credential(region), "tts", ["a", "b"]);
        for (region, host) in [
            ("eastus", "https://eastus.tts.speech.microsoft.com/a/b"),
            ("chinaeast2", "https://chinaeast2.tts.speech.azure.cn/a/b"),
            (
                "usgovarizona",
                "https://usgovarizona.tts.speech.azure.us/a/b",
            ),
        ] {
            assert_eq!(at(region).unwrap().as_str(), host);
        }
        for region in ["evil.example/", "a", "East US", "x@y", ""] {
            let refused = at(region).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::InvalidRequest, "{region}");
        }
        let own = VendorUrl::parse("ws://127.0.0.1:7/base").unwrap();
        let url = address(Some(&own), &credential("eastus"), "tts", ["a", "b"]).unwrap();
        assert_eq!(url.as_str(), "http://127.0.0.1:7/base/a/b");
    }

    #[test]
    fn a_region_is_checked() {
        assert_eq!(region(&json!("eastus-2")).unwrap(), "eastus-2");
        for bad in [
            json!("a"),
            json!("EASTUS"),
            json!("a.b"),
            json!(7),
            json!("x".repeat(33)),
        ] {
            assert!(region(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_field_of_a_config_is_in_the_tables() {
        let transport = Transport::new(&vivavoce_core::outgoing::Authorities::default()).unwrap();
        let azure = Azure::new(
            &config::Config::load(&[], None).unwrap().settings.providers,
            &transport,
        );
        let fields = |table: &[vivavoce_seams::parameters::Parameter]| {
            table.iter().map(|row| row.field).collect::<Vec<_>>()
        };
        assert_eq!(fields(SpeechToText::parameters(&azure)), STT_FIELDS);
        assert_eq!(fields(TextToSpeech::parameters(&azure)), TTS_FIELDS);
    }

    #[test]
    fn without_any_credential_the_settings_name_is_told() {
        let transport = Transport::new(&vivavoce_core::outgoing::Authorities::default()).unwrap();
        let azure = Azure::new(
            &config::Config::load(&[], None).unwrap().settings.providers,
            &transport,
        );
        let error = azure.credential(None).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Auth);
        assert!(error.message.contains("AZURE_SPEECH_SUBSCRIPTION_KEY"));
        assert!(error.message.contains("auth"));
        let own = credential("eastus");
        assert_eq!(azure.credential(Some(&own)).unwrap().get(KEY), "k");
    }
}
