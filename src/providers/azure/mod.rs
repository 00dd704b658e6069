//! Azure AI Speech: recognition and synthesis over Azure's own framing of a WebSocket ([`usp`]), and the list of voices.
//! This file has the endpoints, credentials and handshakes.

mod errors;
mod stt;
mod tts;
mod usp;
mod voices;

use std::num::NonZeroU32;
use std::sync::Arc;

use reqwest::header::HeaderName;
use serde_json::Value;
use url::Url;

use crate::transport::websocket::Handshake;
use crate::transport::{Transport, Vendor, VendorEndpoint};
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
        is_servers_by_default: true,
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

const VENDOR: Vendor = Vendor {
    slug: SLUG,
    // Regions have hosts of their own, see `regional`.
    address: "https://speech.microsoft.com",
    setting: "AZURE_SPEECH_SUBSCRIPTION_KEY",
    refused: errors::refused,
};

/// Where a direction of Azure is: at the endpoint of the settings, else at the host of each credential's region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    Endpoint,
    Region,
}

impl Location {
    /// The address of a path. `service` is `stt`, `tts`, or `voice` for voices that were made for one customer.
    fn address<const N: usize>(
        self,
        vendor: &VendorEndpoint,
        credential: &Credential,
        service: &str,
        path: [&str; N],
    ) -> Result<Url, ProviderError> {
        match self {
            Self::Endpoint => Ok(vendor.url.at(path)),
            Self::Region => regional(credential, vendor.own(), service, path),
        }
    }
}

/// Adds both directions.
pub fn add_to(table: &mut ProviderTable, settings: &config::Providers, transport: &Transport) {
    table.add_own_credential(own_credential(settings).as_ref());
    if let Some(stt) = stt::AzureStt::new(settings, transport) {
        table.add_speech_to_text(Arc::new(stt));
    }
    if let Some(tts) = tts::AzureTts::new(settings, transport) {
        table.add_text_to_speech(Arc::new(tts));
    }
}

fn own_credential(settings: &config::Providers) -> Option<Credential> {
    let key = settings.azure_subscription_key.clone()?;
    let region = settings.azure_region.clone();
    let region = config::value::Secret::new(region);
    Some(Credential::new([(KEY, key), (REGION, region)]))
}

fn endpoint(
    settings: &config::Providers,
    url: Option<&VendorUrl>,
    streams: Option<NonZeroU32>,
    transport: &Transport,
) -> Option<(VendorEndpoint, Location)> {
    let own = own_credential(settings);
    let location = if url.is_some() {
        Location::Endpoint
    } else {
        Location::Region
    };
    Some((VENDOR.endpoint(url, own, streams, transport)?, location))
}

/// The address of a path at the host of the credential's region, or of the server's own.
fn regional<const N: usize>(
    credential: &Credential,
    own: Option<&Credential>,
    service: &str,
    path: [&str; N],
) -> Result<Url, ProviderError> {
    let own = own.map_or("", |own| own.get(REGION));
    let given = Some(credential.get(REGION)).filter(|given| !given.is_empty());
    let region = region(&given.unwrap_or(own).into()).map_err(|problem| {
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
    use crate::transport::testing::{assert_every_field_has_its_row, transport};
    use serde_json::json;
    use vivavoce_config::value::{Secret, SettingValue};

    fn settings() -> config::Providers {
        config::Config::load(&[], None).unwrap().settings.providers
    }

    fn credential(region: &str) -> Credential {
        Credential::new([(KEY, Secret::new("k")), (REGION, Secret::new(region))])
    }

    #[test]
    fn the_region_decides_the_host_unless_there_is_an_endpoint() {
        let at = |region: &str| regional(&credential(region), None, "tts", ["a", "b"]);
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
        let own = VendorUrl::parse("ws://127.0.0.1:7/base");
        let (vendor, location) = endpoint(&settings(), own.as_ref(), None, &transport()).unwrap();
        let url = location.address(&vendor, &credential("eastus"), "tts", ["a", "b"]);
        let url = url.unwrap();
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
        let mut table = ProviderTable::default();
        add_to(&mut table, &settings(), &transport());
        assert_every_field_has_its_row(&table, SLUG);
    }

    #[test]
    fn a_callers_key_without_a_region_is_used_in_the_servers() {
        let auth = serde_json::from_value(json!({"api_key": "callers"})).unwrap();
        let callers = Credential::of_caller(&auth, CREDENTIAL).unwrap().unwrap();
        let servers = credential("westeurope");
        let url = regional(&callers, Some(&servers), "tts", ["a"]).unwrap();
        assert_eq!(url.as_str(), "https://westeurope.tts.speech.microsoft.com/a");
        assert_eq!(callers.get(KEY), "callers");
        let nowhere = regional(&callers, None, "tts", ["a"]).unwrap_err();
        assert_eq!(nowhere.kind, ErrorKind::InvalidRequest);
    }

    #[test]
    fn without_any_credential_the_settings_name_is_told() {
        let (azure, _) = endpoint(&settings(), None, None, &transport()).unwrap();
        let error = azure.credential(None).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NoCredential);
        assert!(error.message.contains("AZURE_SPEECH_SUBSCRIPTION_KEY"));
        assert!(error.message.contains("auth"));
        let own = credential("eastus");
        assert_eq!(azure.credential(Some(&own)).unwrap().get(KEY), "k");
    }
}
