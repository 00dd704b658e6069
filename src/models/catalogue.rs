//! The catalogue: which models there are, of which files each consists, and where the bytes of each file can be had.
//! `catalogue.json` is part of the program; another file with the same layout may take its place (`--catalogue`).

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

/// The catalogue that is part of the program.
const EMBEDDED: &str = include_str!("catalogue.json");

/// No file of a model is larger.
const MAX_FILE_BYTES: u64 = 8 << 30;

/// All models, and the packages that carry their files.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    wheels: Vec<Wheel>,
    models: Vec<ModelEntry>,
}

/// A package of a registry: an archive with one name on every index.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wheel {
    /// The name of its file.
    pub file: String,
    /// The name under which an index lists it.
    pub package: String,
    pub version: String,
    pub size: u64,
    pub sha256: String,
}

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// A library that runs models.
    Engine,
    /// Speech to text.
    Recognition,
    /// Text to speech.
    Synthesis,
    /// The end of turns.
    Turn,
}

impl Task {
    /// The task as the catalogue writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Recognition => "recognition",
            Self::Synthesis => "synthesis",
            Self::Turn => "turn",
        }
    }
}

/// A model.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelEntry {
    /// Its name, which is also that of its folder.
    pub name: String,
    /// What it is for.
    pub task: Task,
    /// What it is, for people.
    pub about: String,
    /// The languages it is for, as BCP 47 tags; `*` for many.
    pub languages: Vec<String>,
    /// The licence of its files, as an SPDX identifier.
    pub licence: String,
    /// What was measured, for people; absent where nothing was.
    #[serde(default)]
    pub quality: Option<String>,
    /// Whether it belongs to the set that is fetched unless others are named.
    #[serde(default)]
    pub default: bool,
    /// Models that it cannot do without.
    #[serde(default)]
    pub needs: Vec<String>,
    files: Vec<FileEntry>,
}

/// A file of a model.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its path below the model's folder.
    pub path: String,
    /// The processors that it is for, where it is machine code.
    #[serde(default)]
    pub architecture: Option<String>,
    /// Its bytes.
    pub size: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
    pub(crate) sources: Vec<Source>,
}

/// Where the bytes of a file can be had.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub(crate) enum Source {
    /// As they are, at an address.
    Url { url: String },
    /// As a member of an archive.
    Member(Member),
    /// As several members, one after the other.
    Parts { parts: Vec<Member> },
}

/// A member of any of several archives that carry the same bytes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Member {
    pub wheels: Vec<String>,
    pub member: String,
}

/// Why a catalogue cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// It is not what it should be.
    #[error("the catalogue of models: {0}")]
    Json(#[from] serde_json::Error),
    /// It contradicts itself.
    #[error("the catalogue of models: {0}")]
    Invalid(String),
}

impl Catalogue {
    /// The catalogue that is part of the program.
    ///
    /// # Panics
    ///
    /// If it is invalid, which a test excludes.
    #[expect(clippy::expect_used, reason = "a constant, and a test parses it")]
    pub fn embedded() -> Self {
        Self::parse(EMBEDDED).expect("the embedded catalogue should be valid")
    }

    /// Reads a catalogue.
    pub fn parse(text: &str) -> Result<Self, CatalogueError> {
        let catalogue: Self = serde_json::from_str(text)?;
        match catalogue.problem() {
            None => Ok(catalogue),
            Some(problem) => Err(CatalogueError::Invalid(problem)),
        }
    }

    /// All models.
    pub fn models(&self) -> &[ModelEntry] {
        &self.models
    }

    /// The model with this name.
    pub fn model(&self, name: &str) -> Option<&ModelEntry> {
        self.models.iter().find(|model| model.name == name)
    }

    /// The models with these names and those that they need, each once and after what it needs. `Err` is a name that is
    /// not in the catalogue.
    pub fn with_needs<'a>(&'a self, names: &[&str]) -> Result<Vec<&'a ModelEntry>, String> {
        let mut models: Vec<&ModelEntry> = Vec::new();
        for name in names {
            let model = self.model(name).ok_or_else(|| (*name).to_owned())?;
            // What is needed needs nothing itself: `problem` sees to that.
            let needs = model.needs.iter().filter_map(|need| self.model(need));
            for one in needs.chain([model]) {
                if models.iter().all(|other| other.name != one.name) {
                    models.push(one);
                }
            }
        }
        Ok(models)
    }

    pub(crate) fn wheel(&self, file: &str) -> Option<&Wheel> {
        self.wheels.iter().find(|wheel| wheel.file == file)
    }

    fn problem(&self) -> Option<String> {
        for wheel in &self.wheels {
            // How wheels are named: PEP 427.
            let stem = format!("{}-{}-", wheel.package.replace('-', "_"), wheel.version);
            let named = is_name(&wheel.file) && wheel.file.starts_with(&stem);
            if !named || !is_sha256(&wheel.sha256) || wheel.size > MAX_FILE_BYTES {
                return Some(format!("{}: name, size or sha256 is wrong", wheel.file));
            }
        }
        for model in &self.models {
            let name = &model.name;
            if !is_name(name) {
                return Some(format!("{name:?} cannot be the name of a model"));
            }
            if self.models.iter().filter(|one| one.name == *name).count() > 1 {
                return Some(format!("{name} is there twice"));
            }
            let plain = |need: &String| self.model(need).is_some_and(|one| one.needs.is_empty());
            if let Some(need) = model.needs.iter().find(|need| !plain(need)) {
                return Some(format!(
                    "{name} needs {need}, which is not there or needs others"
                ));
            }
            for file in &model.files {
                let path = &file.path;
                if !is_inside(path) || !is_sha256(&file.sha256) || file.size > MAX_FILE_BYTES {
                    return Some(format!("{name}/{path}: path, size or sha256 is wrong"));
                }
                let members = file.sources.iter().flat_map(Source::members);
                let mut wheels = members.flat_map(|member| &member.wheels);
                if let Some(unknown) = wheels.find(|wheel| self.wheel(wheel).is_none()) {
                    return Some(format!("{name}/{path}: {unknown} is not among the wheels"));
                }
            }
        }
        None
    }
}

impl ModelEntry {
    /// The files that this machine needs; none if the model is not for its processor.
    pub fn files(&self) -> impl Iterator<Item = &FileEntry> {
        let here = std::env::consts::ARCH;
        self.files
            .iter()
            .filter(move |file| file.architecture.as_deref().is_none_or(|one| one == here))
    }

    /// The bytes of these files.
    pub fn size(&self) -> u64 {
        self.files().map(|file| file.size).sum()
    }
}

impl Source {
    pub(crate) fn members(&self) -> &[Member] {
        match self {
            Self::Url { .. } => &[],
            Self::Member(member) => std::slice::from_ref(member),
            Self::Parts { parts } => parts,
        }
    }
}

/// Whether a text can name a folder or an archive: no hidden one, none elsewhere.
fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
    !text.is_empty() && !text.starts_with('.') && text.bytes().all(allowed)
}

/// Whether a path stays below the folder that it is relative to.
fn is_inside(path: &str) -> bool {
    let mut components = Path::new(path).components();
    !path.is_empty()
        && components
            .all(|one| matches!(one, Component::Normal(name) if name.to_str().is_some_and(is_name)))
}

fn is_sha256(text: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == 64 && text.bytes().all(digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_catalogue_is_valid_and_its_addresses_are_encrypted() {
        let catalogue = Catalogue::parse(EMBEDDED).unwrap();
        for model in catalogue.models() {
            for file in &model.files {
                let name = format!("{}/{}", model.name, file.path);
                assert!(!file.sources.is_empty(), "{name}");
                for source in &file.sources {
                    if let Source::Url { url } = source {
                        assert!(url.starts_with("https://"), "{name}: {url}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_file_can_be_had_from_a_registry_and_every_wheel_serves_a_file() {
        let catalogue = Catalogue::embedded();
        let files = || catalogue.models.iter().flat_map(|model| &model.files);
        for file in files() {
            let members = file.sources.iter().flat_map(Source::members);
            assert!(members.count() > 0, "{}", file.path);
        }
        let used = |wheel: &Wheel| {
            let mut members =
                files().flat_map(|file| file.sources.iter().flat_map(Source::members));
            members.any(|member| member.wheels.contains(&wheel.file))
        };
        for wheel in &catalogue.wheels {
            assert!(used(wheel), "{}", wheel.file);
        }
    }

    #[test]
    fn the_default_set_hears_speaks_and_takes_turns_within_a_hundred_megabytes() {
        let catalogue = Catalogue::embedded();
        let set: Vec<_> = catalogue
            .models()
            .iter()
            .filter(|one| one.default)
            .collect();
        for task in [Task::Engine, Task::Recognition, Task::Synthesis, Task::Turn] {
            assert!(set.iter().any(|model| model.task == task), "{task:?}");
        }
        for model in &set {
            let needed = |need: &String| set.iter().any(|one| one.name == *need);
            assert!(model.needs.iter().all(needed), "{}", model.name);
        }
        // As it lies on disk; packages are compressed.
        let bytes: u64 = set.iter().map(|model| model.size()).sum();
        assert!(bytes < 110_000_000, "{bytes}");
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_refused() {
        for path in ["", "/etc/passwd", "../a", "a/../../b", "a/.b", "."] {
            assert!(!is_inside(path), "{path}");
        }
        assert!(is_inside("voices/en_US.onnx.json"));
        let text = r#"{"wheels": [], "models": [{"name": "../a", "task": "turn", "about": "", "languages": [],
            "licence": "MIT", "files": []}]}"#;
        let error = Catalogue::parse(text).unwrap_err().to_string();
        assert!(error.contains("../a"), "{error}");
    }
}
