//! Neural models of `vivavoce models`, each in worker processes of its own (`vivavoce-speech` has the models): which are
//! installed, and what is said to their workers. What is made of the answers is next door: `stt` hears,
//! `tts` speaks, `turn` tells when a speaker has finished.

pub mod stt;
pub mod tts;
pub mod turn;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio_util::codec::Decoder;
use vivavoce_models::Store;
use vivavoce_quotas::Share;
use vivavoce_seams::ErrorKind;
use vivavoce_speech::worker::{self, Kind, Reply, Request, Spec, SpeechError};

use super::workers::{Deadlines, Lease, News, PoolError, Protocol, WireError, WorkerSettings};
use vivavoce_telemetry::metrics;

/// The runtime that all of them need, in the catalogue.
pub const RUNTIME: &str = "onnxruntime";
/// Its library.
const LIBRARY: &str = "libonnxruntime.so";
/// What a worker may read besides its model: the runtime looks how many cores there are, and of what kind.
const MACHINE: [&str; 2] = ["/sys/devices/system/cpu", "/proc/cpuinfo"];
/// The most memory that a worker may take: what the largest recogniser takes while it loads.
const MEMORY: u64 = 3 << 30;

/// Where models are, and who runs them.
#[derive(Debug, Clone)]
pub struct Models {
    /// The program that is a worker when it is called with [`worker::SUBCOMMAND`]: our own.
    program: PathBuf,
    store: Arc<Store>,
}

impl Models {
    /// The models of a folder.
    pub fn new(program: impl Into<PathBuf>, root: &Path) -> Self {
        Self {
            program: program.into(),
            store: Arc::new(Store::new(root)),
        }
    }

    /// The program that is a worker.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The folder of all models.
    pub fn root(&self) -> &Path {
        self.store.root()
    }

    /// The names of all models of the catalogue, and of folders that are not in it.
    pub fn names(&self) -> Vec<String> {
        let known = self.store.catalogue().models().iter();
        let mut names: Vec<String> = known.map(|model| model.name.clone()).collect();
        names.extend(self.store.others());
        names
    }

    /// The folder of a model, where it is installed and can be run.
    pub fn installed(&self, name: &str) -> Option<PathBuf> {
        self.store.installed(RUNTIME)?;
        self.store.installed(name)
    }

    /// Workers of a model that is installed.
    pub fn workers(&self, kind: Kind, folder: &Path, size: usize, share: Share) -> WorkerSettings {
        let runtime = self.root().join(RUNTIME).join(LIBRARY);
        let spec = Spec {
            runtime: runtime.clone(),
            kind,
            folder: folder.to_owned(),
        };
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut readable = vec![real(&runtime), real(folder)];
        readable.extend(MACHINE.map(PathBuf::from));
        WorkerSettings {
            program: self.program.clone(),
            arguments: vec![
                worker::SUBCOMMAND.into(),
                serde_json::to_string(&spec).unwrap_or_default().into(),
            ],
            readable,
            memory: MEMORY,
            // Every pause of every session asks it. Others are waited for by people, beside whatever else the machine does.
            may_wait: kind == Kind::SmartTurn,
            size,
            deadlines: Deadlines {
                // A model of 150 MB is read and prepared within a second or two of an idle core.
                ready: Duration::from_secs(30),
                ..Deadlines::default()
            },
            share,
        }
    }
}

/// What the workers of neural models speak. `NAME` tells in errors what they are.
#[derive(Debug)]
pub struct Speech<const HEARS: bool>;

impl<const HEARS: bool> Protocol for Speech<HEARS> {
    type Report = (Reply, Vec<i16>);
    type Codec = Frames;
    const NAME: &str = if HEARS { "recogniser" } else { "model" };

    fn busy() -> Option<metrics::Present> {
        HEARS.then(metrics::recogniser_works)
    }

    fn news((reply, _): &Self::Report) -> News<'_> {
        match reply {
            Reply::Ready => News::Ready,
            Reply::Failed { message } => News::Failed(message),
            _ => News::Other("an answer"),
        }
    }
}

/// Why a model did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Its worker.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// It cannot do what was asked for; the worker is as good as before.
    #[error("{0}")]
    Refused(String),
    /// The request is not one that can be sent.
    #[error(transparent)]
    Request(#[from] SpeechError),
}

impl AskError {
    /// What it is to a caller.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Pool(error) => error.kind(),
            Self::Refused(_) | Self::Request(_) => ErrorKind::InvalidRequest,
        }
    }

    /// Whether another worker may do what this one did not.
    pub fn may_be_tried_again(&self) -> bool {
        match self {
            Self::Pool(error) => !matches!(error, PoolError::Busy { .. } | PoolError::Start { .. }),
            Self::Refused(_) | Self::Request(_) => false,
        }
    }
}

/// Asks a leased worker something that has one answer, which must come within `limit`, and gives the worker back.
pub async fn ask<P>(
    mut lease: Lease<P>,
    request: &Request,
    sound: &[i16],
    limit: Duration,
) -> Result<Reply, AskError>
where
    P: Protocol<Report = (Reply, Vec<i16>)>,
{
    let frame = worker::frame(request, sound).map_err(SpeechError::from)?;
    lease.send(&frame).await?;
    let report = tokio::time::timeout(limit, lease.report()).await;
    let (reply, _) = report.map_err(|_| super::workers::hung::<P>("answer", limit))??;
    lease.give_back();
    match reply {
        Reply::Refused { message } => Err(AskError::Refused(message)),
        reply => Ok(reply),
    }
}

/// Reads a frame at a time.
#[derive(Debug, Default)]
pub struct Frames;

impl Decoder for Frames {
    type Item = (Reply, Vec<i16>);
    type Error = WireError;

    fn decode(&mut self, bytes: &mut BytesMut) -> Result<Option<Self::Item>, WireError> {
        let Some((prefix, rest)) = bytes.split_first_chunk::<8>() else {
            return Ok(None);
        };
        let (header, sound) = worker::lengths(*prefix)?;
        let Some(frame) = rest.get(..header + sound) else {
            bytes.reserve(8 + header + sound - bytes.len());
            return Ok(None);
        };
        let (header, sound) = frame.split_at(header);
        let parsed = worker::parse(header, sound);
        let length = 8 + frame.len();
        bytes.advance(length);
        Ok(Some(parsed?))
    }
}
