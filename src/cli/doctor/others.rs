//! Other servers that the settings name.

use std::io::Write;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sha2::{Digest, Sha256};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use uuid::Uuid;
use vivavoce_replicas::Redis;

use super::PATIENCE;
use super::findings::Finding;
use crate::config::{RecordingBackend, Settings};
use crate::providers::transport::Transport;
use crate::providers::{ErrorKind, StoredFile};
use crate::server;
use crate::tls_roots::Authorities;

/// A name that takes longer is missed by callers.
const SLOW_NAME: Duration = Duration::from_secs(1);

/// A server that the settings name: by which setting, its host and its port, and whether it can be connected to.
struct Named {
    setting: &'static str,
    host: String,
    port: u16,
    by_tcp: bool,
}

fn of_url(setting: &'static str, url: &http::Uri) -> Option<Named> {
    let port = url.port_u16().unwrap_or_else(|| match url.scheme_str() {
        Some("http" | "ws") => 80,
        _ => 443,
    });
    let host = url.host()?.trim_matches(['[', ']']).to_owned();
    Some(Named {
        setting,
        host,
        port,
        by_tcp: true,
    })
}

fn named(settings: &Settings) -> Vec<Named> {
    let recording = &settings.recording;
    let is_s3 = recording.backend == RecordingBackend::S3;
    let url = |url: &Option<crate::config::HttpUrl>| url.as_ref().map(|url| url.0.to_string());
    let urls = [
        ("auth.service_url", url(&settings.auth.service_url)),
        ("llm.url", url(&settings.llm.url)),
        ("webhooks.url", url(&settings.webhooks.url)),
        ("agent.url", settings.agent.url.clone()),
        ("agent.fallback_url", settings.agent.fallback_url.clone()),
        (
            "rtc.url",
            settings.rtc.url.as_ref().map(|url| url.url().to_string()),
        ),
        (
            "telemetry.otlp_endpoint",
            settings.telemetry.otlp_endpoint.clone(),
        ),
        (
            "recording.s3_endpoint",
            url(&recording.s3_endpoint).filter(|_| is_s3),
        ),
    ];
    let mut named: Vec<_> = urls
        .into_iter()
        .filter_map(|(setting, url)| of_url(setting, &url?.parse().ok()?))
        .collect();
    // Without a port a gateway is found by SRV records, which are looked up when a call is made.
    if let Some((host, port)) = settings
        .sip
        .outbound_address
        .as_deref()
        .and_then(|gateway| gateway.rsplit_once(':'))
        && let Ok(port) = port.parse()
    {
        named.push(Named {
            setting: "sip.outbound_address",
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            by_tcp: false,
        });
    }
    named
}

/// Whether names have addresses, and whether somebody is there.
pub(super) async fn names(settings: &Settings) -> Vec<Finding> {
    join_all(named(settings).into_iter().map(look_up)).await
}

async fn look_up(named: Named) -> Finding {
    let Named {
        setting,
        host,
        port,
        by_tcp,
    } = named;
    let what = format!("{setting} {host}:{port}");
    let began = Instant::now();
    let found = timeout(PATIENCE, lookup_host((host.as_str(), port))).await;
    let addresses: Vec<_> = match found {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(error)) => {
            let remedy = format!("correct {setting}, or the name servers in /etc/resolv.conf");
            return Finding::wrong(what, error.to_string(), remedy);
        }
        Err(_) => {
            let remedy = "look at the name servers in /etc/resolv.conf";
            return Finding::wrong(what, "its name is not found in time", remedy);
        }
    };
    let took = began.elapsed();
    if by_tcp {
        let connecting = timeout(PATIENCE, TcpStream::connect(addresses.as_slice())).await;
        let problem = match connecting {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("does not answer".to_owned()),
        };
        if let Some(problem) = problem {
            let remedy =
                format!("start what is to listen there, open the firewall, or correct {setting}");
            return Finding::wrong(what, problem, remedy);
        }
    }
    if took > SLOW_NAME {
        let remedy = "use a resolver nearby: calls and speech wait for it";
        return Finding::warning(
            what,
            format!("its name takes {} ms", took.as_millis()),
            remedy,
        );
    }
    let there = if by_tcp { "answers" } else { "has an address" };
    Finding::good(what, there)
}

/// Whether vendors take our credentials: each is asked for its voices.
pub(super) async fn vendors(settings: &Settings) -> Vec<Finding> {
    let table = match server::providers(settings) {
        Ok(table) => table,
        Err(error) => {
            let remedy = "mend the setting that it names";
            return vec![Finding::wrong("providers", error.to_string(), remedy)];
        }
    };
    let local = [crate::providers::local::SLUG, "null"];
    let vendors = table.all_text_to_speech();
    let vendors = vendors
        .into_iter()
        .filter(|vendor| !local.contains(&vendor.slug()));
    join_all(vendors.map(|vendor| async move {
        let what = format!("provider {}", vendor.slug());
        let began = Instant::now();
        match timeout(PATIENCE, vendor.voices()).await {
            Err(_) => Finding::wrong(
                what,
                "no answer",
                "look at the connection to it, or its status page",
            ),
            Ok(Ok(voices)) if voices.is_empty() => Finding::note(what, "no key of the server's"),
            Ok(Ok(voices)) => {
                let took = began.elapsed().as_millis();
                Finding::good(
                    what,
                    format!("takes the key, {} voices, {took} ms", voices.len()),
                )
            }
            Ok(Err(error)) if error.kind == ErrorKind::NoCredential => {
                Finding::note(what, "no key of the server's")
            }
            Ok(Err(error)) if error.kind == ErrorKind::Auth => {
                let remedy = format!("set another key (providers.{})", vendor.slug());
                Finding::wrong(what, error.to_string(), remedy)
            }
            Ok(Err(error)) => Finding::wrong(
                what,
                error.to_string(),
                "try again later, or look at its status page",
            ),
        }
    }))
    .await
}

/// Whether recordings can be kept and removed.
pub(super) async fn store(settings: &Settings) -> Vec<Finding> {
    if settings.recording.backend != RecordingBackend::S3 {
        return Vec::new();
    }
    let bucket = settings.recording.s3_bucket.as_deref().unwrap_or_default();
    let what = format!("recording.s3_bucket {bucket}");
    let wrong = |problem: String| {
        let remedy = "look at recording.s3_*: the bucket, its region, and rights to put, get, list and delete objects";
        vec![Finding::wrong(what.clone(), problem, remedy)]
    };
    let ca_file = settings.outgoing.ca_file.as_deref();
    let authorities = match Authorities::read(ca_file) {
        Ok(authorities) => authorities,
        Err(error) => return wrong(error.to_string()),
    };
    let Some(store) = server::recording_store(settings, &authorities).await else {
        return Vec::new();
    };
    let began = Instant::now();
    match timeout(PATIENCE, keep_and_remove(settings, store.as_ref())).await {
        Ok(Ok(())) => {
            let took = began.elapsed().as_millis();
            vec![Finding::good(
                what,
                format!("keeps and removes objects, {took} ms"),
            )]
        }
        Ok(Err(problem)) => wrong(problem),
        Err(_) => wrong("no answer".to_owned()),
    }
}

async fn keep_and_remove(
    settings: &Settings,
    store: &dyn crate::providers::RecordingStore,
) -> Result<(), String> {
    const CONTENT: &[u8] = b"vivavoce doctor\n";
    let failed = |error: std::io::Error| error.to_string();
    let folder = tempfile::tempdir().map_err(failed)?;
    let path = folder.path().join("object");
    let mut file = std::fs::File::create(&path).map_err(failed)?;
    file.write_all(CONTENT).map_err(failed)?;
    let prefix = &settings.recording.prefix;
    let key = format!("{prefix}/.doctor-{}", Uuid::new_v4());
    let stored = StoredFile {
        path: &path,
        size: CONTENT.len() as u64,
        sha256: Sha256::digest(CONTENT).into(),
        content_type: "text/plain",
        progress: &folder.path().join("progress"),
        replaces: None,
    };
    let kept = store.put(&key, stored).await;
    kept.map_err(|error| format!("cannot keep: {error}"))?;
    let head = store.head(&key).await;
    head.map_err(|error| format!("cannot read: {error}"))?;
    let removed = store.delete(&key).await;
    removed.map_err(|error| format!("cannot remove: {error}"))
}

pub(super) async fn redis(settings: &Settings) -> Vec<Finding> {
    let Some(url) = &settings.redis.url else {
        return Vec::new();
    };
    let ping = async {
        let authorities = Authorities::read(settings.outgoing.ca_file.as_deref());
        let authorities = authorities.map_err(|error| error.to_string())?;
        let transport = Transport::new(&authorities).map_err(|error| error.to_string())?;
        let mut redis = Redis::new(url, transport.tls())?;
        redis.ping().await.map_err(|error| error.to_string())
    };
    let what = "redis.url";
    let answer = timeout(PATIENCE, ping).await;
    vec![
        match answer.unwrap_or_else(|_| Err("no answer".to_owned())) {
            Ok(took) => Finding::good(what, format!("answers in {} ms", took.as_millis())),
            Err(problem) => Finding::wrong(what, problem, "start it, or correct redis.url"),
        },
    ]
}
