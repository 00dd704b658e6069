//! Traces for an OTLP collector over HTTP: one trace per request and one per session
//! ([`conversation`](crate::conversation)). They are exported from a thread of their own through a bounded queue; spans
//! are dropped when it is full. Without a collector, none of this runs; there are no spans per audio frame in either case.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, TracerProvider};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{ExporterBuildError, Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tokio::runtime::{Builder, Runtime};
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use vivavoce_core::tls_roots::Authorities;

use crate::conversation::FAILED;

const NAME: &str = "vivavoce";
/// Timeouts of an export, and of the last export at shutdown.
const PATIENCE: Duration = Duration::from_secs(5);
/// The maximum size of the collector's answer.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Why tracing could not be set up. The message begins with the setting's name.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The exporter rejects the settings.
    #[error("telemetry.otlp_endpoint: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// The HTTP client cannot be created.
    #[error("telemetry.otlp_endpoint: {0}")]
    Client(#[from] reqwest::Error),
    /// A thread could not be started.
    #[error("telemetry.otlp_endpoint: {0}")]
    Io(#[from] io::Error),
}

/// The running export.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Flushes the queue; blocks for some seconds at most.
    pub fn finish(self) {
        if let Err(error) = self.0.shutdown_with_timeout(PATIENCE) {
            tracing::warn!(%error, "the last traces could not be exported");
        }
    }
}

/// Gives spans their kind and status. `tracing` has neither, and fields for them would be in every log line.
#[derive(Debug)]
struct Exporter(opentelemetry_otlp::SpanExporter);

impl SpanExporter for Exporter {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        for span in &mut batch {
            span.span_kind = match span.name.as_ref() {
                "request" | "session" => SpanKind::Server,
                "stt" | "tts" => SpanKind::Client,
                _ => SpanKind::Internal,
            };
            let failed = span
                .attributes
                .iter()
                .find(|known| known.key.as_str() == FAILED);
            if let Some(failed) = failed {
                span.status = Status::error(failed.value.to_string());
            }
        }
        self.0.export(batch).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

/// A layer that exports our own spans to the collector at `endpoint` (`/v1/traces` is appended) as those of `service`, and
/// the running export.
pub fn layer<S>(
    endpoint: &str,
    service: &str,
    authorities: &Authorities,
) -> Result<(impl Layer<S>, Traces), TraceError>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(Collector::new(authorities)?)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .with_timeout(PATIENCE)
        .build()?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(Exporter(exporter))
        .with_resource(
            Resource::builder()
                .with_service_name(service.to_owned())
                .build(),
        )
        .build();
    let ours = filter_fn(|of| of.is_span() && of.target().starts_with(NAME));
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer(NAME))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(ours);
    Ok((layer, Traces(provider)))
}

/// Makes a request part of its caller's trace, if its headers contain one (W3C Trace Context). Its span must be new.
pub fn continue_trace(span: &Span, headers: &dyn Extractor) {
    let caller = TraceContextPropagator::new().extract(headers);
    if caller.span().span_context().is_valid() {
        // Fails if tracing is off, and then there is nothing to do.
        let _ = span.set_parent(caller);
    }
}

/// Adds the outcome of a request to its trace (not to its log lines).
pub fn answered(span: &Span, method: &'static str, route: &str, status: u16) {
    span.set_attribute("http.request.method", method);
    span.set_attribute("http.route", route.to_owned());
    span.set_attribute("http.response.status_code", i64::from(status));
    if status >= 500 {
        span.set_attribute(FAILED, status.to_string());
    }
}

/// The collector's client. It is used only on the exporter's thread, which may block.
#[derive(Debug)]
struct Collector {
    client: reqwest::Client,
    runtime: Runtime,
    failing: AtomicBool,
}

impl Collector {
    fn new(authorities: &Authorities) -> Result<Self, TraceError> {
        let client = authorities
            .client()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(PATIENCE)
            .build()?;
        Ok(Self {
            client,
            runtime: Builder::new_current_thread().enable_all().build()?,
            failing: AtomicBool::new(false),
        })
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, reqwest::Error> {
        let mut answer = self.client.execute(request.try_into()?).await?;
        let mut body = BytesMut::new();
        while let Some(chunk) = answer.chunk().await? {
            if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                break;
            }
            body.extend_from_slice(&chunk);
        }
        let mut response = Response::new(body.freeze());
        *response.status_mut() = answer.status();
        Ok(response)
    }

    /// Logs when the collector becomes unavailable and available again, not every failed batch.
    fn log(&self, problem: Option<String>) {
        let failed_before = self.failing.swap(problem.is_some(), Relaxed);
        match problem {
            Some(problem) if !failed_before => {
                tracing::warn!(
                    problem,
                    "the collector does not accept traces; they are dropped"
                );
            }
            None if failed_before => tracing::info!("the collector accepts traces again"),
            _ => {}
        }
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.runtime.block_on(self.send(request));
        // The URL may contain a credential.
        let answer = answer.map_err(reqwest::Error::without_url);
        self.log(match &answer {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(response.status().to_string()),
            Err(error) => Some(error.to_string()),
        });
        Ok(answer?)
    }
}
