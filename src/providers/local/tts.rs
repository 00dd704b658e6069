//! Text to speech by what this machine has: neural voices in worker processes (`neural/tts.rs`), and programs, one child
//! per sentence, never more children at once than there are permits; both a sentence ahead of the listener. What each
//! program is called with is in `flite.rs` and `espeak.rs`.

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
use super::neural::Models;
use super::neural::tts::{HIBARI, NeuralVoice, NeuralVoices, PIPER, Piece, speak};
use super::scripts::script_of;
use super::voices::{LocalVoice, choose};
use super::wav::{WavError, WavStream};
use super::{SLUG, failure, program_failure};

/// The voice when none is asked for: Flite's best where it is installed, else eSpeak NG's American.
const DEFAULT_VOICE: &str = "en-US";
/// How long a list of voices is believed.
const LIST_TTL: Duration = Duration::from_mins(1);
/// How long it is believed that there is none: a package installed meanwhile is noticed after this.
const FAILURE_TTL: Duration = Duration::from_millis(500);
/// Both programs keep to these rates of speech within 5 % in every language that was measured; beyond them eSpeak NG
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
/// How many neural workers try a sentence after one that has failed: all of a pool may have been killed just now.
const MOST_SUCCESSORS: usize = 2;

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
    /// Where neural voices are, if they may speak.
    pub models: Option<Models>,
    /// The most workers of a neural model at a time.
    pub workers: usize,
    /// Whether a worker of the usual voice is loaded before the first is asked for.
    pub preload: bool,
    /// What one party may have of the workers.
    pub share: Share,
}

impl Default for LocalTtsSettings {
    /// The environment's `PATH`, and twice as many programs as cores: more gains nothing.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            search_path: std::env::var_os("PATH").unwrap_or_default(),
            concurrency: 2 * cores,
            models: None,
            workers: cores,
            preload: false,
            share: Share::NONE,
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
    permits: FairQueue,
    voices: Arc<Voices>,
    /// The best neural engine that was there at the start: the same request sounds different with another.
    endpoint: &'static str,
}

/// All voices of this machine.
struct Voices {
    search_path: OsString,
    neural: Option<NeuralVoices>,
    lists: [VoiceList; ENGINES.len()],
}

/// A voice, and what speaks with it.
#[derive(Clone)]
enum Source {
    Program(&'static Engine, LocalVoice),
    Neural(NeuralVoice),
}

impl Source {
    fn voice(&self) -> &LocalVoice {
        match self {
            Self::Program(_, voice) => voice,
            Self::Neural(neural) => &neural.voice,
        }
    }

    fn rates(&self) -> RangeInclusive<f64> {
        match self {
            Self::Program(..) => SPEAKING_RATES,
            Self::Neural(neural) => neural.rates(),
        }
    }

    /// Whether it does something sensible with a script that its language is not written in.
    fn reads_any_script(&self) -> bool {
        matches!(self, Self::Program(engine, _) if std::ptr::eq(*engine, &raw const ESPEAK))
    }
}

type Listed = Result<Arc<[LocalVoice]>, ProviderError>;

/// An engine's voices, or why they cannot be had; asked for anew when they are old.
struct VoiceList {
    engine: &'static Engine,
    listed: Mutex<Option<(Instant, Listed)>>,
}

impl VoiceList {
    async fn get(&self, search_path: &OsStr) -> Listed {
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
    /// A synthesiser; nothing is started before the first request, except a worker that shall be loaded ahead of need,
    /// for which this must be called in a runtime.
    pub fn new(settings: LocalTtsSettings) -> Self {
        let LocalTtsSettings { workers, share, .. } = settings;
        let neural = settings.models;
        let neural = neural.map(|models| NeuralVoices::new(models, workers.max(1), share));
        let usual = neural.as_ref().and_then(|neural| {
            let voice = neural.list().first()?.clone();
            if settings.preload {
                tokio::spawn(neural.pool(&voice).tend());
            }
            Some(voice)
        });
        Self {
            // A sentence is said soon: that they take turns is enough.
            permits: FairQueue::new(settings.concurrency.max(1), Share::NONE),
            endpoint: usual.map_or("", |voice| voice.engine()),
            voices: Arc::new(Voices {
                search_path: settings.search_path,
                neural,
                lists: ENGINES.map(|engine| VoiceList {
                    engine,
                    listed: Mutex::default(),
                }),
            }),
        }
    }
}

impl Voices {
    fn neural(&self, model: &str) -> Vec<NeuralVoice> {
        let all = self.neural.as_ref().map(NeuralVoices::list);
        let all = all.iter().flat_map(|voices| voices.iter());
        all.filter(|voice| model.is_empty() || model == voice.engine() || model == voice.model)
            .cloned()
            .collect()
    }

    /// The neural voice for a request, where no list of a program's voices is needed to tell.
    fn choose_neural(&self, voice_id: Option<&str>, model: &str) -> Option<NeuralVoice> {
        let voices = self.neural(model);
        if voice_id.is_none() && !model.is_empty() {
            let english = choose(voices.iter(), |voice| &voice.voice.shown, DEFAULT_VOICE).ok();
            return english.or(voices.first()).cloned();
        }
        let wanted = voice_id.unwrap_or(DEFAULT_VOICE);
        let chosen = choose(voices.iter(), |voice| &voice.voice.shown, wanted).ok()?;
        let shown = &chosen.voice.shown;
        let exactly = shown.id == wanted
            || shown.name == wanted
            || shown
                .languages
                .iter()
                .any(|tag| tag.eq_ignore_ascii_case(wanted));
        (exactly || !model.is_empty()).then(|| chosen.clone())
    }

    /// What speaks for a request. An engine that is missing or broken is an error only where no other has the voice.
    async fn choose(&self, voice_id: Option<&str>, model: &str) -> Result<Source, ProviderError> {
        let wanted = voice_id.unwrap_or(DEFAULT_VOICE);
        let known = self
            .lists
            .iter()
            .any(|list| list.engine.program.name == model);
        if !known {
            if let Some(neural) = self.choose_neural(voice_id, model) {
                return Ok(Source::Neural(neural));
            }
            if model == HIBARI || model == PIPER || model.starts_with("piper-") {
                return Err(self.no_neural(wanted, model));
            }
        }
        let named = |list: &&VoiceList| wanted.starts_with(list.engine.prefix);
        let anywhere = !self.lists.iter().any(|list| named(&list));
        let mut voices = Vec::new();
        if !known && anywhere {
            voices.extend(self.neural(model).into_iter().map(Source::Neural));
        }
        let mut failed = None;
        for list in with_model(&self.lists, model)? {
            if anywhere || named(&list) {
                match list.get(&self.search_path).await {
                    Ok(listed) => {
                        let of = |voice: &LocalVoice| Source::Program(list.engine, voice.clone());
                        voices.extend(listed.iter().map(of));
                    }
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        match choose(voices.iter(), |source| &source.voice().shown, wanted) {
            Ok(chosen) => Ok(chosen.clone()),
            Err(unknown) => Err(failed.unwrap_or(unknown)),
        }
    }

    fn no_neural(&self, wanted: &str, model: &str) -> ProviderError {
        let model: String = model.chars().take(80).collect();
        let wanted: String = wanted.chars().take(80).collect();
        let voices = self.neural(&model);
        let message = match voices.first() {
            Some(voice) => format!(
                "the model {model} has no voice {wanted:?}; it has {}",
                voice.voice.shown.id
            ),
            None => format!(
                "the model {model} is not installed: `vivavoce models list` shows what there is"
            ),
        };
        failure(ErrorKind::InvalidRequest, message)
    }

    /// Refuses a text in a script that the voice's language is not written in, and says which voice would say it.
    async fn check_script(&self, text: &str, source: &Source) -> Result<(), ProviderError> {
        let voice = &source.voice().shown;
        let Some(script) = script_of(text).filter(|script| !script.is_of(&voice.language)) else {
            return Ok(());
        };
        if source.reads_any_script() {
            return Ok(());
        }
        let mut able: Vec<Voice> = self
            .neural("")
            .into_iter()
            .map(|neural| neural.voice.shown)
            .collect();
        for list in &self.lists {
            if let Ok(listed) = list.get(&self.search_path).await {
                able.extend(listed.iter().map(|voice| voice.shown.clone()));
            }
        }
        able.retain(|voice| script.is_of(&voice.language));
        let usual = |voice: &&Voice| {
            let primary = voice.language.split(['-', '_']).next().unwrap_or_default();
            script.usual().contains(&primary)
        };
        let found = able.iter().find(usual).or(able.first());
        let instead = match found {
            Some(voice) => format!("the voice_id {:?} ({}) says them", voice.id, voice.language),
            None => "no installed voice says them".to_owned(),
        };
        let message = format!(
            "the text is in {}, which the voice {} ({}) does not know; {instead}",
            script.name(),
            voice.id,
            voice.language
        );
        Err(failure(ErrorKind::InvalidRequest, message))
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
    found.and_then(|at| lists.get(at..=at)).ok_or_else(|| {
        let names = ENGINES.map(|engine| engine.program.name).join(", ");
        let model: String = model.chars().take(80).collect();
        failure(
            ErrorKind::InvalidRequest,
            format!("there is no model {model:?}; use one of {HIBARI}, {PIPER}, {names}, or none"),
        )
    })
}

#[async_trait]
impl TextToSpeech for LocalTts {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn endpoint(&self) -> &str {
        self.endpoint
    }

    fn speaks(&self) -> Speaks {
        self.speaks_as(None, "")
    }

    fn speaks_as(&self, voice_id: Option<&str>, model: &str) -> Speaks {
        let neural = self.voices.choose_neural(voice_id, model);
        Speaks {
            speaking_rates: neural.map_or(SPEAKING_RATES, |voice| voice.rates()),
        }
    }

    async fn synthesize(
        &self,
        request: TtsRequest,
        text: TextStream,
    ) -> Result<TtsStream, ProviderError> {
        let choosing = self
            .voices
            .choose(request.voice_id.as_deref(), &request.model);
        let source = timeout(request.connection_timeout, choosing)
            .await
            .map_err(|_| failure(ErrorKind::Timeout, "the voices could not be listed in time"))??;
        let rates = source.rates();
        if !rates.contains(&request.speaking_rate) {
            let rate = request.speaking_rate;
            return Err(failure(
                ErrorKind::InvalidRequest,
                format!("a speaking rate of {rate} is outside {rates:?}"),
            ));
        }
        if let Source::Program(engine, _) = &source {
            let file = engine.program.find_in(&self.voices.search_path);
            file.map_err(|error| program_failure(&error))?;
        }
        let format = AudioFormat::mono(Encoding::Linear16, source.voice().rate);
        let (chunks, heard) = mpsc::channel(CHUNKS_HELD);
        let speaker = Speaker {
            voices: Arc::clone(&self.voices),
            voice: source.voice().clone(),
            source,
            speaking_rate: request.speaking_rate,
            told: 0,
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
        let all = &self.voices;
        let neural = all.neural("").into_iter();
        let mut voices: Vec<Voice> = neural.map(|neural| neural.voice.shown).collect();
        let mut failed = None;
        for list in &all.lists {
            match list.get(&all.search_path).await {
                Ok(listed) => voices.extend(listed.iter().map(|voice| voice.shown.clone())),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let installed = |(_, state): &(_, EngineState)| matches!(state, EngineState::Found(_));
        match failed {
            Some(error) if voices.is_empty() && probe(&all.search_path).iter().any(installed) => {
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
    voices: Arc<Voices>,
    source: Source,
    voice: LocalVoice,
    speaking_rate: f64,
    /// Samples delivered so far.
    told: usize,
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
        self.voices.check_script(line, &self.source).await?;
        let room = self.held.clone().acquire_owned().await;
        let room = Arc::new(room.map_err(|_| Unsaid::Cancelled)?);
        let started = Instant::now();
        match self.source.clone() {
            Source::Program(engine, _) => self.say_by(engine, line, &room).await?,
            Source::Neural(neural) => {
                let saying = self.say_neurally(&neural, line, &room);
                // Each step of a worker has a deadline of its own; this is the one of the whole synthesis.
                match timeout(self.time_left, saying).await {
                    Ok(said) => self.told += said?,
                    Err(_) => {
                        let limit = self.time_left.as_millis();
                        let message = format!("the sentences were not said within {limit} ms");
                        return Err(failure(ErrorKind::Timeout, message).into());
                    }
                }
            }
        }
        self.time_left = self.time_left.saturating_sub(started.elapsed());
        Ok(())
    }

    async fn say_by(
        &mut self,
        engine: &'static Engine,
        line: &str,
        room: &Arc<OwnedSemaphorePermit>,
    ) -> Result<(), Unsaid> {
        let _permit = self.permit().await?;
        let mut program = self.start(engine, line).await?;
        let mut sound = WavStream::default();
        while let Some(printed) = program.read().await? {
            let samples = sound.push(&printed).map_err(|e| not_sound(engine, &e))?;
            self.check(&sound)?;
            if !samples.is_empty() {
                self.deliver(Ok(TtsEvent::Audio(samples)), Some(room))
                    .await?;
            }
        }
        sound.finish().map_err(|error| not_sound(engine, &error))?;
        Ok(())
    }

    /// Returns how many samples were delivered. A worker that fails before any has successors that say the sentence.
    async fn say_neurally(
        &self,
        neural: &NeuralVoice,
        line: &str,
        room: &Arc<OwnedSemaphorePermit>,
    ) -> Result<usize, Unsaid> {
        let Some(voices) = &self.voices.neural else {
            return Err(failure(ErrorKind::Unavailable, "there is no neural voice").into());
        };
        let search_path = &self.voices.search_path;
        let request = {
            // It may run a program.
            let _permit = self.permit().await?;
            neural
                .request(line, self.speaking_rate, search_path)
                .await?
        };
        let pool = voices.pool(neural);
        let mut successors = MOST_SUCCESSORS;
        let mut said = 0;
        loop {
            let failed = match speak(&pool, &self.party, &request, self.patience).await {
                Ok(mut pieces) => loop {
                    match pieces.recv().await {
                        Some(Ok(Piece::Words(words))) => {
                            for word in words {
                                self.deliver_word(line, &word, room).await?;
                            }
                        }
                        Some(Ok(Piece::Sound(samples))) => {
                            said += samples.len();
                            let bytes = samples.iter().flat_map(|sample| sample.to_le_bytes());
                            let audio = TtsEvent::Audio(bytes.collect());
                            self.deliver(Ok(audio), Some(room)).await?;
                        }
                        Some(Err(error)) => break error,
                        None => return Ok(said),
                    }
                },
                Err(error) => error,
            };
            if successors == 0 || said > 0 || !failed.may_be_tried_again() {
                return Err(failure(failed.kind(), failed.to_string()).into());
            }
            tracing::warn!(error = %failed, "a sentence is said by another worker");
            successors -= 1;
        }
    }

    async fn deliver_word(
        &self,
        line: &str,
        word: &vivavoce_speech::worker::SpokenWord,
        room: &Arc<OwnedSemaphorePermit>,
    ) -> Result<(), Unsaid> {
        let written = line.get(word.start_byte as usize..word.end_byte as usize);
        let Some(written) = written.filter(|word| !word.is_empty()) else {
            return Ok(());
        };
        let before = self.voice.rate.duration_of(self.told);
        let into = Duration::try_from_secs_f64(word.start_seconds).unwrap_or_default();
        let word = TtsEvent::Word {
            word: written.to_owned(),
            start: before + into,
        };
        self.deliver(Ok(word), Some(room)).await
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

    async fn start(
        &self,
        engine: &'static Engine,
        line: &str,
    ) -> Result<RunningProgram, ProgramError> {
        let invocation = (engine.say)(&self.voice, self.speaking_rate, line);
        let longest = LONGEST_PAUSE + LONGEST_CHARACTER * line.chars().count() as u32;
        let longest = longest.div_f64(self.speaking_rate);
        let limits = Limits {
            time: self.time_left,
            output: 2 * Layout::mono(self.voice.rate).samples_in(longest),
        };
        let program = &engine.program;
        let file = program.find_in(&self.voices.search_path)?;
        let mut running = program.start_file(&file, invocation.arguments, limits)?;
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

fn not_sound(engine: &Engine, error: &WavError) -> ProviderError {
    failure(
        ErrorKind::Protocol,
        format!("{}: {error}", engine.program.name),
    )
}
