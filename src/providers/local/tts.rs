//! Text to speech by the programs of this machine: one child per sentence, a sentence ahead of the listener, never
//! more children at once than there are permits. What each program is called with is in `flite.rs` and `espeak.rs`.

use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use vivavoce_audio::format::{AudioFormat, Encoding, Layout};
use vivavoce_core::process::{Limits, Program, ProgramError, RunningProgram};
use vivavoce_core::sentences::spoken_lines;
use vivavoce_quotas::{FairQueue, Party, Share, Slot};
use vivavoce_seams::{
    ErrorKind, ProviderError, Speaks, TextStream, TextToSpeech, TtsEvent, TtsRequest, TtsStream,
    Voice,
};

use super::espeak::ESPEAK;
use super::flite::FLITE;
use super::voices::{LocalVoice, choose};
use super::wav::{WavError, WavStream};
use super::{SLUG, failure, program_failure};

/// The voice when none is asked for: Flite's best where it is installed, else eSpeak NG's American.
const DEFAULT_VOICE: &str = "en-US";
/// How long a list of voices is believed.
const LIST_TTL: Duration = Duration::from_mins(1);
/// How long it is believed that there is none: a package installed meanwhile is noticed after this.
const FAILURE_TTL: Duration = Duration::from_millis(500);
/// Both engines keep to these rates of speech within 5 % in every language that was measured; beyond them eSpeak NG
/// speaks Chinese too slowly.
const SPEAKING_RATES: RangeInclusive<f64> = 0.5..=1.5;
/// What listing voices may cost; it takes some 10 ms and prints some 10 kB.
const LIST_LIMITS: Limits = Limits {
    time: Duration::from_secs(5),
    output: 1 << 20,
};
/// Sentences that are held: the one that is being heard and the next.
const SENTENCES_HELD: usize = 2;
/// Chunks of sound that are held, of at most 16 KiB and usually 4 KiB: more than two of our sentences.
const CHUNKS_HELD: usize = 512;
/// What a sentence may cost: ordinary characters take 0.07 s, but one that is read out by its Unicode name takes 2 s.
const LONGEST_CHARACTER: Duration = Duration::from_secs(3);
/// On top of that, for pauses and the header.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A program that speaks.
pub(super) struct Engine {
    /// The program; its name is also the `model` that asks for it.
    pub program: Program,
    /// What the ids of its voices begin with.
    pub prefix: &'static str,
    /// The arguments that list its voices.
    pub list: &'static [&'static str],
    /// Reads that list, best voice first.
    pub parse_list: fn(&str) -> Vec<LocalVoice>,
    /// How to have one line of text said, at a rate of speech where 1.0 is normal.
    pub say: fn(&LocalVoice, f64, &str) -> Invocation,
}

/// What a program is called with.
pub(super) struct Invocation {
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its standard input, less than a pipe holds.
    pub input: String,
}

/// The engines, the better-understood one first.
static ENGINES: [&Engine; 2] = [&FLITE, &ESPEAK];

/// What the operator may set.
#[derive(Debug, Clone)]
pub struct LocalTtsSettings {
    /// Where the programs are looked for, written like `PATH`.
    pub search_path: OsString,
    /// How many of them may run at once.
    pub concurrency: usize,
}

impl Default for LocalTtsSettings {
    /// The environment's `PATH`, and twice as many programs as cores: more gains nothing.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            search_path: std::env::var_os("PATH").unwrap_or_default(),
            concurrency: 2 * cores,
        }
    }
}

/// Whether an engine is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineState {
    /// Where its program is.
    Found(PathBuf),
    /// The Debian package to install.
    Missing(&'static str),
}

/// The engines by name and whether they are there, without starting them.
pub fn probe(search_path: &OsStr) -> Vec<(&'static str, EngineState)> {
    ENGINES
        .iter()
        .map(|engine| {
            let state = match engine.program.find_in(search_path) {
                Ok(file) => EngineState::Found(file),
                Err(_) => EngineState::Missing(engine.program.package),
            };
            (engine.program.name, state)
        })
        .collect()
}

/// The synthesiser `local`.
pub struct LocalTts {
    search_path: OsString,
    permits: FairQueue,
    lists: [VoiceList; ENGINES.len()],
}

type Voices = Result<Arc<[LocalVoice]>, ProviderError>;

/// An engine's voices, or why they cannot be had; asked for anew when they are old.
struct VoiceList {
    engine: &'static Engine,
    listed: Mutex<Option<(Instant, Voices)>>,
}

impl VoiceList {
    async fn get(&self, search_path: &OsStr) -> Voices {
        let mut listed = self.listed.lock().await;
        if let Some((when, voices)) = &*listed {
            let ttl = if voices.is_ok() {
                LIST_TTL
            } else {
                FAILURE_TTL
            };
            if when.elapsed() < ttl {
                return voices.clone();
            }
        }
        let voices = self
            .read(search_path)
            .await
            .map_err(|error| program_failure(&error));
        *listed = Some((Instant::now(), voices.clone()));
        voices
    }

    async fn read(&self, search_path: &OsStr) -> Result<Arc<[LocalVoice]>, ProgramError> {
        let program = &self.engine.program;
        let file = program.find_in(search_path)?;
        let mut lister = program.start_file(&file, self.engine.list, LIST_LIMITS)?;
        let printed = lister.read_all().await?;
        let voices = (self.engine.parse_list)(&String::from_utf8_lossy(&printed));
        Ok(voices.into())
    }
}

impl LocalTts {
    /// A synthesiser; nothing is started before the first request.
    pub fn new(settings: LocalTtsSettings) -> Self {
        Self {
            search_path: settings.search_path,
            // A sentence is said soon: that they take turns is enough.
            permits: FairQueue::new(settings.concurrency.max(1), Share::NONE),
            lists: ENGINES.map(|engine| VoiceList {
                engine,
                listed: Mutex::default(),
            }),
        }
    }

    /// The engine and the voice for a request. An engine that is missing or broken is an error only where no other
    /// has the voice.
    async fn choose(
        &self,
        voice_id: Option<&str>,
        model: &str,
    ) -> Result<(&'static Engine, LocalVoice), ProviderError> {
        let wanted = voice_id.unwrap_or(DEFAULT_VOICE);
        let named = |list: &&VoiceList| wanted.starts_with(list.engine.prefix);
        let anywhere = !self.lists.iter().any(|list| named(&list));
        let mut voices = Vec::new();
        let mut failed = None;
        for list in with_model(&self.lists, model)? {
            if anywhere || named(&list) {
                match list.get(&self.search_path).await {
                    Ok(listed) => {
                        voices.extend(listed.iter().map(|voice| (list.engine, voice.clone())));
                    }
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        match choose(voices.iter(), |(_, voice)| &voice.shown, wanted) {
            Ok(chosen) => Ok(chosen.clone()),
            Err(unknown) => Err(failed.unwrap_or(unknown)),
        }
    }
}

/// The engines that `model` allows: all, or the one that it names.
fn with_model<'a>(lists: &'a [VoiceList], model: &str) -> Result<&'a [VoiceList], ProviderError> {
    if model.is_empty() {
        return Ok(lists);
    }
    let found = lists
        .iter()
        .position(|list| list.engine.program.name == model);
    found.map(|at| &lists[at..=at]).ok_or_else(|| {
        let names = ENGINES.map(|engine| engine.program.name).join(" or ");
        let model: String = model.chars().take(80).collect();
        failure(
            ErrorKind::InvalidRequest,
            format!("there is no model {model:?}; use {names}, or none"),
        )
    })
}

#[async_trait]
impl TextToSpeech for LocalTts {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn speaks(&self) -> Speaks {
        Speaks {
            speaking_rates: SPEAKING_RATES,
        }
    }

    async fn synthesize(
        &self,
        request: TtsRequest,
        text: TextStream,
    ) -> Result<TtsStream, ProviderError> {
        if !SPEAKING_RATES.contains(&request.speaking_rate) {
            let rate = request.speaking_rate;
            return Err(failure(
                ErrorKind::InvalidRequest,
                format!("a speaking rate of {rate} is outside {SPEAKING_RATES:?}"),
            ));
        }
        let choosing = self.choose(request.voice_id.as_deref(), &request.model);
        let (engine, voice) = timeout(request.connection_timeout, choosing)
            .await
            .map_err(|_| failure(ErrorKind::Timeout, "the voices could not be listed in time"))??;
        let file = engine
            .program
            .find_in(&self.search_path)
            .map_err(|error| program_failure(&error))?;
        let format = AudioFormat::mono(Encoding::Linear16, voice.rate);
        let (chunks, heard) = mpsc::channel(CHUNKS_HELD);
        let speaker = Speaker {
            engine,
            file,
            voice,
            speaking_rate: request.speaking_rate,
            permits: self.permits.clone(),
            party: request.party,
            patience: request.connection_timeout,
            time_left: request.request_timeout,
            held: Arc::new(Semaphore::new(SENTENCES_HELD)),
            chunks,
        };
        let speaking = AbortOnDropHandle::new(tokio::spawn(speaker.run(text)));
        let events = stream::unfold((heard, speaking), async |(mut heard, speaking)| {
            let chunk: Chunk = heard.recv().await?;
            Some((chunk.event, (heard, speaking)))
        });
        Ok(TtsStream {
            format,
            events: events.boxed(),
        })
    }

    /// Without any engine there are no voices; an engine that is there and fails is an error.
    async fn voices(&self) -> Result<Vec<Voice>, ProviderError> {
        let mut voices = Vec::new();
        let mut failed = None;
        for list in &self.lists {
            match list.get(&self.search_path).await {
                Ok(listed) => voices.extend(listed.iter().map(|voice| voice.shown.clone())),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let installed = |(_, state): &(_, EngineState)| matches!(state, EngineState::Found(_));
        match failed {
            Some(error) if voices.is_empty() && probe(&self.search_path).iter().any(installed) => {
                Err(error)
            }
            _ => Ok(voices),
        }
    }
}

/// A piece of the answer on its way to the listener. A sentence is held until its last chunk has been heard.
struct Chunk {
    event: Result<TtsEvent, ProviderError>,
    _sentence: Option<Arc<OwnedSemaphorePermit>>,
}

/// Why a sentence was not said.
enum Unsaid {
    /// The listener has gone.
    Cancelled,
    Failed(ProviderError),
}

impl From<ProviderError> for Unsaid {
    fn from(error: ProviderError) -> Self {
        Self::Failed(error)
    }
}

impl From<ProgramError> for Unsaid {
    fn from(error: ProgramError) -> Self {
        Self::Failed(program_failure(&error))
    }
}

/// One synthesis: says sentence after sentence and reads every program to its end as fast as it prints, so that a
/// slow listener costs neither a permit nor the program's deadline.
struct Speaker {
    engine: &'static Engine,
    file: PathBuf,
    voice: LocalVoice,
    speaking_rate: f64,
    permits: FairQueue,
    party: Party,
    /// How long to wait for a permit.
    patience: Duration,
    /// How long the programs may still work, all sentences together.
    time_left: Duration,
    held: Arc<Semaphore>,
    chunks: mpsc::Sender<Chunk>,
}

impl Speaker {
    async fn run(mut self, text: TextStream) {
        let outcome = match self.say_all(text).await {
            Ok(()) => Ok(TtsEvent::Done),
            Err(Unsaid::Failed(error)) => Err(error),
            Err(Unsaid::Cancelled) => return,
        };
        // Whether anybody still listens makes no difference now.
        let _ = self.deliver(outcome, None).await;
    }

    async fn say_all(&mut self, text: TextStream) -> Result<(), Unsaid> {
        let mut lines = spoken_lines(text);
        while let Some(line) = lines.next().await {
            self.say(&line).await?;
        }
        Ok(())
    }

    async fn say(&mut self, line: &str) -> Result<(), Unsaid> {
        let room = self.held.clone().acquire_owned().await;
        let room = Arc::new(room.map_err(|_| Unsaid::Cancelled)?);
        let _permit = self.permit().await?;
        let started = Instant::now();
        let mut program = self.start(line).await?;
        let mut sound = WavStream::default();
        while let Some(printed) = program.read().await? {
            let samples = sound.push(&printed).map_err(|e| self.not_sound(&e))?;
            self.check(&sound)?;
            if !samples.is_empty() {
                self.deliver(Ok(TtsEvent::Audio(samples)), Some(&room))
                    .await?;
            }
        }
        sound.finish().map_err(|error| self.not_sound(&error))?;
        self.time_left = self.time_left.saturating_sub(started.elapsed());
        Ok(())
    }

    async fn permit(&self) -> Result<Slot, Unsaid> {
        match timeout(self.patience, self.permits.acquire(&self.party)).await {
            Ok(permit) => Ok(permit),
            Err(_) => Err(Unsaid::Failed(failure(
                ErrorKind::Overloaded,
                "all speech programs are busy",
            ))),
        }
    }

    async fn start(&self, line: &str) -> Result<RunningProgram, ProgramError> {
        let invocation = (self.engine.say)(&self.voice, self.speaking_rate, line);
        let longest = LONGEST_PAUSE + LONGEST_CHARACTER * line.chars().count() as u32;
        let longest = longest.div_f64(self.speaking_rate);
        let limits = Limits {
            time: self.time_left,
            output: 2 * Layout::mono(self.voice.rate).samples_in(longest),
        };
        let program = &self.engine.program;
        let mut running = program.start_file(&self.file, invocation.arguments, limits)?;
        if let Some(mut stdin) = running.take_stdin() {
            // One that has ended already says why when it is read.
            let _ = stdin.write_all(invocation.input.as_bytes()).await;
        }
        Ok(running)
    }

    /// The sound must have the rate that was declared.
    fn check(&self, sound: &WavStream) -> Result<(), ProviderError> {
        let declared = Layout::mono(self.voice.rate);
        match sound.layout() {
            Some(layout) if layout != declared => Err(failure(
                ErrorKind::Protocol,
                format!(
                    "{} speaks at {layout} where {declared} was expected",
                    self.voice.shown.id
                ),
            )),
            _ => Ok(()),
        }
    }

    fn not_sound(&self, error: &WavError) -> ProviderError {
        failure(
            ErrorKind::Protocol,
            format!("{}: {error}", self.engine.program.name),
        )
    }

    async fn deliver(
        &self,
        event: Result<TtsEvent, ProviderError>,
        sentence: Option<&Arc<OwnedSemaphorePermit>>,
    ) -> Result<(), Unsaid> {
        let chunk = Chunk {
            event,
            _sentence: sentence.cloned(),
        };
        self.chunks.send(chunk).await.map_err(|_| Unsaid::Cancelled)
    }
}
