//! Traces for a collector that speaks OTLP over HTTP: one for each request and one for each session, whose turns are its
//! spans. They leave from a thread of their own, at most some thousands of spans behind, else they are dropped. Without
//! a collector nothing of this runs; no span is opened per piece of sound either way.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::{Builder, Runtime};
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use vivavoce_core::outgoing::Authorities;

const NAME: &str = "vivavoce";
/// How long the collector may take to accept some spans, and the last ones at the end.
const PATIENCE: Duration = Duration::from_secs(5);
/// More of an answer is not read.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Why nothing can be traced. The message begins with the setting's name.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The settings of the exporter do not fit.
    #[error("telemetry.otlp_endpoint: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// The client of the collector cannot be set up.
    #[error("telemetry.otlp_endpoint: {0}")]
    Client(#[from] reqwest::Error),
    /// The system refused something.
    #[error("telemetry.otlp_endpoint: {0}")]
    Io(#[from] io::Error),
}

/// The export under way.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Sends what has not been sent yet; blocks for some seconds at most.
    pub fn finish(self) {
        if let Err(error) = self.0.shutdown_with_timeout(PATIENCE) {
            tracing::warn!(%error, "the last traces were lost");
        }
    }
}

/// The layer that sends our own spans to the collector at `endpoint` (`/v1/traces` is added), and the export.
pub fn layer<S>(
    endpoint: &str,
    authorities: &Authorities,
) -> Result<(impl Layer<S>, Traces), TraceError>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Collector::new(authorities)?)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .with_timeout(PATIENCE)
        .build()?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_service_name(NAME).build())
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

/// Makes a request part of its caller's trace, where its headers name one (W3C Trace Context). Its span must be new.
pub fn continue_trace(span: &Span, headers: &dyn Extractor) {
    let caller = TraceContextPropagator::new().extract(headers);
    if caller.span().span_context().is_valid() {
        // It fails where nothing is traced, and then there is nothing to continue.
        let _ = span.set_parent(caller);
    }
}

/// A request was answered: tells its trace, and not its log lines, what it was.
pub fn answered(span: &Span, method: &'static str, route: &str, status: u16) {
    span.set_attribute("http.request.method", method);
    span.set_attribute("http.route", route.to_owned());
    span.set_attribute("http.response.status_code", i64::from(status));
}

/// The trace of one session: as long as it is kept the session lives.
#[derive(Debug)]
pub struct SessionTrace {
    session: Span,
    turn: Span,
}

impl SessionTrace {
    /// A session begins. Of what its client has chosen it has the id of its request alone, which is in every log line
    /// of the session.
    pub fn begin(request_id: &str) -> Self {
        Self {
            session: tracing::error_span!(parent: None, "session", request_id),
            turn: Span::none(),
        }
    }

    /// What the log lines of the session belong to.
    pub fn span(&self) -> Span {
        self.session.clone()
    }

    /// Somebody speaks: the turn begins, if it has not.
    pub fn turn_goes_on(&mut self) {
        if self.turn.is_none() {
            let reason = tracing::field::Empty;
            self.turn = tracing::error_span!(parent: &self.session, "turn", reason);
        }
    }

    /// Somebody has finished, for this reason.
    pub fn turn_ends(&mut self, reason: &'static str) {
        self.turn.record("reason", reason);
        self.turn = Span::none();
    }
}

/// The client of the collector, used from the exporter's thread alone: it has nothing to do but wait.
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

    /// Logs when the collector goes and when it comes back, not every batch in between.
    fn log(&self, problem: Option<String>) {
        let failed_before = self.failing.swap(problem.is_some(), Relaxed);
        match problem {
            Some(problem) if !failed_before => {
                tracing::warn!(
                    problem,
                    "the collector does not take traces; they are dropped"
                );
            }
            None if failed_before => tracing::info!("the collector takes traces again"),
            _ => {}
        }
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.runtime.block_on(self.send(request));
        // The address may hold a credential.
        let answer = answer.map_err(reqwest::Error::without_url);
        self.log(match &answer {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(response.status().to_string()),
            Err(error) => Some(error.to_string()),
        });
        Ok(answer?)
    }
}
