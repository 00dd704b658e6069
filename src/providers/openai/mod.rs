//! OpenAI's audio API: recognition utterance by utterance and synthesis line by line, over HTTP. Servers that people run
//! themselves speak it too (Speaches, vLLM, whisper.cpp's server, Kokoro-FastAPI, and this one): with an address in the
//! settings no key is needed. This file has the endpoints, credentials and requests.

mod errors;
mod stt;
mod tts;
mod voices;

use std::sync::Arc;

use reqwest::RequestBuilder;
use reqwest::header::{AUTHORIZATION, HeaderValue};

use crate::transport::{Transport, Vendor, VendorEndpoint};
use vivavoce_config as config;
use vivavoce_config::value::{Secret, VendorUrl};
use vivavoce_seams::{Credential, CredentialField, ErrorKind, ProviderError, ProviderTable};

/// The slug on the wire.
pub const SLUG: &str = "openai";

const API_KEY: &str = "api_key";
const CREDENTIAL: &[CredentialField] = &[CredentialField::key(API_KEY)];

const VENDOR: Vendor = Vendor {
    slug: SLUG,
    address: "https://api.openai.com/v1",
    setting: "OPENAI_API_KEY",
    refused: errors::refused,
};

/// Adds both directions.
pub fn add_to(table: &mut ProviderTable, settings: &config::Providers, transport: &Transport) {
    let common = settings.openai_api_key.as_ref();
    let mut endpoint = |url: &Option<VendorUrl>, key: &Option<Secret>, streams| {
        let key = key.as_ref().or(common);
        table.add_own_credential(key.map(credential).as_ref());
        // A server of one's own may need none.
        let own = match (key, url) {
            (Some(key), _) => Some(credential(key)),
            (None, Some(_)) => Some(credential(&Secret::new(""))),
            (None, None) => None,
        };
        VENDOR.endpoint(url.as_ref(), own, streams, transport)
    };
    let stt = endpoint(
        &settings.openai_stt_url,
        &settings.openai_stt_api_key,
        settings.openai_stt_streams,
    );
    let tts = endpoint(
        &settings.openai_tts_url,
        &settings.openai_tts_api_key,
        settings.openai_tts_streams,
    );
    if let Some(stt) = stt {
        let model = settings.openai_stt_model.clone();
        table.add_speech_to_text(Arc::new(stt::OpenAiStt::new(stt, model)));
    }
    if let Some(tts) = tts {
        let model = settings.openai_tts_model.clone();
        table.add_text_to_speech(Arc::new(tts::OpenAiTts::new(tts, model)));
    }
}

/// Whether an endpoint is the vendor's own.
fn is_vendors(endpoint: &VendorEndpoint) -> bool {
    endpoint.url.url().host_str() == Some("api.openai.com")
}

fn credential(key: &Secret) -> Credential {
    Credential::new([(API_KEY, key.clone())])
}

/// The request with the key of this credential, if it has one.
fn authorized(
    request: RequestBuilder,
    credential: &Credential,
) -> Result<RequestBuilder, ProviderError> {
    let key = credential.get(API_KEY);
    if key.is_empty() {
        return Ok(request);
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| {
        let problem = "the key holds characters that no key has";
        ProviderError::new(SLUG, ErrorKind::Auth, problem)
    })?;
    value.set_sensitive(true);
    Ok(request.header(AUTHORIZATION, value))
}

/// A request to a path below the base URL.
fn post(
    vendor: &VendorEndpoint,
    credential: &Credential,
    path: [&str; 2],
) -> Result<RequestBuilder, ProviderError> {
    let request = vendor.transport.http().post(vendor.url.at(path));
    authorized(request, credential)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::testing::{assert_every_field_has_its_row, transport};

    fn table(flags: &[(&str, &str)]) -> ProviderTable {
        let flags: Vec<_> = flags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let config = config::Config::from_sources(&flags, &[].into(), None).unwrap();
        let mut table = ProviderTable::default();
        add_to(&mut table, &config.settings.providers, &transport());
        table
    }

    #[test]
    fn every_field_of_a_config_has_its_row() {
        assert_every_field_has_its_row(&table(&[]), SLUG);
    }

    #[tokio::test]
    async fn a_server_of_ones_own_needs_no_key_and_openai_does() {
        let request = crate::transport::testing::stt_request();
        let stt = |table: &ProviderTable| table.speech_to_text(SLUG).unwrap();
        let error = stt(&table(&[])).open(request.clone()).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::NoCredential);
        assert!(error.message.contains("OPENAI_API_KEY"));
        let own = table(&[("providers.openai.stt_url", "http://127.0.0.1:1/v1")]);
        assert!(stt(&own).open(request).await.is_ok());
    }
}
