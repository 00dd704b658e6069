//! Recordings in an S3 bucket, Amazon's or another's that speaks its protocol. Each object carries its SHA-256 as
//! metadata and as the checksum that the store verifies, and is written only where there is none: with
//! `If-None-Match: *`, behind a look at what is there for stores that do not know it. Large files go up in parts
//! ([`upload`]).

mod connections;
mod errors;
mod upload;

use std::ops::Range;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    SharedHttpClient,
};
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt;
use futures_util::stream;

use connections::OnRuntime;
use errors::store_error;
use vivavoce_config::{HttpUrl, Recording, RecordingBackend};
use vivavoce_core::tls_roots::Authorities;
use vivavoce_seams::{ByteStream, Listing, ObjectInfo, RecordingStore, StoreError, StoredFile};

/// Its name in `recording.backend`.
pub const SLUG: &str = "s3";

/// Where other clouds that have no regions want requests to be signed for.
const USUAL_REGION: &str = "us-east-1";
/// Of the object's metadata (`x-amz-meta-sha256`), in hexadecimal.
const SHA256: &str = "sha256";
const CONNECT: Duration = Duration::from_secs(5);
/// From the beginning of a request to the head of its answer, with a whole part on its way through a narrow line. A
/// connection on which nothing moves is given up much earlier, by the client itself.
const ANSWER: Duration = Duration::from_mins(5);
/// Attempts of one request; how often and when the whole is tried is for others to say.
const ATTEMPTS: u32 = 3;
/// What one request lists at most.
const PAGE: usize = 1000;

/// A bucket.
#[derive(Debug)]
pub struct S3Store {
    client: Client,
    bucket: String,
}

/// What is wrong with the settings of the bucket.
pub fn problems(settings: &Recording) -> Vec<String> {
    let mut problems = Vec::new();
    if settings.s3_access_key.is_some() != settings.s3_secret_key.is_some() {
        problems.push(
            "recording.s3_access_key, recording.s3_secret_key: one needs the other".to_owned(),
        );
    }
    if settings.backend == RecordingBackend::S3 && settings.s3_bucket.is_none() {
        problems.push("recording.s3_bucket: is needed where recording.backend is s3".to_owned());
    }
    problems
}

impl S3Store {
    /// The bucket of the settings; `None` where they name none. Nothing is connected to yet, save for what the default
    /// chain of AWS asks for a region that nobody has set. Its connections live on this runtime.
    pub async fn open(settings: &Recording, authorities: &Authorities) -> Option<Self> {
        let bucket = settings.s3_bucket.clone()?;
        let http = http_client(settings.s3_endpoint.as_ref(), authorities);
        let http = OnRuntime::current(http);
        let region = settings.s3_region.clone();
        let elsewhere = settings
            .s3_endpoint
            .as_ref()
            .map(|_| USUAL_REGION.to_owned());
        let region = region.or(elsewhere).map(Region::new);
        let keys = settings
            .s3_access_key
            .as_ref()
            .zip(settings.s3_secret_key.as_ref());
        let mut config = match (keys, region) {
            (Some((access, secret)), Some(region)) => {
                let keys =
                    Credentials::new(access.expose(), secret.expose(), None, None, "settings");
                aws_sdk_s3::Config::builder()
                    .behavior_version(BehaviorVersion::latest())
                    .region(region)
                    .credentials_provider(keys)
            }
            (keys, region) => {
                let mut chain =
                    aws_config::defaults(BehaviorVersion::latest()).http_client(http.clone());
                if let Some(region) = region {
                    chain = chain.region(region);
                }
                if let Some((access, secret)) = keys {
                    let keys =
                        Credentials::new(access.expose(), secret.expose(), None, None, "settings");
                    chain = chain.credentials_provider(keys);
                }
                aws_sdk_s3::config::Builder::from(&chain.load().await)
            }
        };
        if let Some(HttpUrl(endpoint)) = &settings.s3_endpoint {
            config = config.endpoint_url(endpoint.as_str());
        }
        let config = config
            .http_client(http)
            .force_path_style(settings.s3_force_path_style)
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
            .timeout_config(
                TimeoutConfig::builder()
                    .connect_timeout(CONNECT)
                    .read_timeout(ANSWER)
                    .build(),
            )
            // What is sent carries the SHA-256 that is known already; other clouds do not know the newer checksums.
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .build();
        Some(Self {
            client: Client::from_conf(config),
            bucket,
        })
    }

    async fn bucket_exists(&self) -> bool {
        let asked = self.client.head_bucket().bucket(&self.bucket).send().await;
        match asked.map_err(|error| store_error(&error)) {
            Err(StoreError::NotFound) => false,
            // Whoever may not ask gets to know when it is used.
            Ok(_) | Err(_) => true,
        }
    }
}

/// A client that believes the system's authorities and those of the settings; one without TLS where none is needed, for
/// machines without authorities.
fn http_client(endpoint: Option<&HttpUrl>, authorities: &Authorities) -> SharedHttpClient {
    let plain = endpoint.is_some_and(|HttpUrl(url)| url.scheme() == "http");
    if plain {
        return Builder::new().build_http();
    }
    let mut trusted = TrustStore::default();
    for der in authorities.certificates() {
        trusted = trusted.with_pem_certificate(pem(der));
    }
    // An inner detail of the library can fail in this only where it is built without TLS.
    let context = TlsContext::builder().with_trust_store(trusted).build();
    Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::AwsLc))
        .tls_context(context.unwrap_or_default())
        .build_https()
}

fn pem(der: &[u8]) -> Vec<u8> {
    let text = STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem.into_bytes()
}

#[async_trait]
impl RecordingStore for S3Store {
    fn slug(&self) -> &'static str {
        SLUG
    }

    async fn identity(&self) -> Result<String, StoreError> {
        // Servers may reach it at different addresses.
        Ok(self.bucket.clone())
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        let asked = self
            .client
            .head_object()
            .bucket(&self.bucket)
            .key(key)
            .send()
            .await;
        match asked.map_err(|error| store_error(&error)) {
            Ok(object) => Ok(ObjectInfo {
                size: object
                    .content_length()
                    .and_then(|size| size.try_into().ok())
                    .unwrap_or(0),
                modified: object
                    .last_modified()
                    .and_then(|at| SystemTime::try_from(*at).ok())
                    .unwrap_or(SystemTime::UNIX_EPOCH),
                sha256: object
                    .metadata()
                    .and_then(|metadata| digest(metadata.get(SHA256)?)),
            }),
            // The answer to a HEAD has no body that could tell the one from the other.
            Err(StoreError::NotFound) if !self.bucket_exists().await => Err(errors::no_bucket()),
            Err(error) => Err(error),
        }
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<ByteStream, StoreError> {
        let wanted = match range {
            Some(range) if range.is_empty() => return Ok(stream::empty().boxed()),
            Some(range) => Some(format!("bytes={}-{}", range.start, range.end - 1)),
            None => None,
        };
        let request = self.client.get_object().bucket(&self.bucket).key(key);
        let object = request
            .set_range(wanted)
            .send()
            .await
            .map_err(|error| store_error(&error))?;
        let pieces = stream::unfold(object.body, |mut body| async move {
            let piece = body.next().await?;
            let piece = piece.map_err(|error| errors::away(&error));
            Some((piece, body))
        });
        Ok(pieces.boxed())
    }

    async fn put(&self, key: &str, file: StoredFile<'_>) -> Result<ObjectInfo, StoreError> {
        match self.head(key).await {
            Ok(there) if file.replaces.is_some() && there.sha256 == file.replaces => {}
            Ok(there) => return same(there, &file),
            Err(StoreError::NotFound) => {}
            Err(error) => return Err(error),
        }
        match self.upload(key, file).await {
            // Somebody was quicker, or an answer was lost on its way and the client has asked again.
            Ok(()) | Err(StoreError::Exists) => same(self.head(key).await?, &file),
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let request = self.client.delete_object().bucket(&self.bucket).key(key);
        match request.send().await.map_err(|error| store_error(&error)) {
            Ok(_) | Err(StoreError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing, StoreError> {
        let folder = format!("{prefix}/");
        // Behind everything that is below it: `~` comes behind all that keys are made of.
        let mut after = after.map(|name| format!("{folder}{name}/~"));
        let mut listing = Listing::default();
        loop {
            let wanted = (limit - listing.names.len()).min(PAGE);
            let request = self.client.list_objects_v2().bucket(&self.bucket);
            let request = request
                .prefix(&folder)
                .delimiter("/")
                .set_start_after(after.take());
            let page = request
                .max_keys(wanted as i32)
                .send()
                .await
                .map_err(|error| store_error(&error))?;
            let folders = page.common_prefixes().iter().filter_map(|one| one.prefix());
            let files = page.contents().iter().filter_map(|one| one.key());
            let mut names: Vec<_> = folders
                .chain(files)
                .filter_map(|key| Some(key.strip_prefix(&folder)?.trim_end_matches('/').to_owned()))
                .filter(|name| !name.is_empty())
                .collect();
            names.sort_unstable();
            listing.more = page.is_truncated().unwrap_or(false);
            let last = names.last().cloned();
            listing.names.extend(names);
            match last {
                Some(last) if listing.more && listing.names.len() < limit => {
                    after = Some(format!("{folder}{last}/~"));
                }
                _ => return Ok(listing),
            }
        }
    }
}

/// What is there counts as kept where it is the same, for somebody may have died between keeping it and saying so.
fn same(there: ObjectInfo, file: &StoredFile<'_>) -> Result<ObjectInfo, StoreError> {
    if there.size == file.size && there.sha256 == Some(file.sha256) {
        Ok(there)
    } else {
        Err(StoreError::Exists)
    }
}

fn digest(hex: &String) -> Option<[u8; 32]> {
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| Some((digit(*high)? << 4 | digit(*low)?) as u8);
    let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
    bytes?.try_into().ok().filter(|_| rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_core::hash::hex;

    #[test]
    fn a_digest_is_read_as_it_is_written_and_nothing_else_is() {
        let bytes: [u8; 32] = std::array::from_fn(|index| (index * 7) as u8);
        assert_eq!(digest(&hex(&bytes)), Some(bytes));
        for text in [
            "",
            "0",
            "zz",
            &"0".repeat(63),
            &"0".repeat(66),
            &"é".repeat(32),
        ] {
            assert_eq!(digest(&text.to_owned()), None, "{text}");
        }
    }
}
