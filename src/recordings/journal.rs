//! Journals: one folder per recording, written during the session and removed once everything is stored. Journals that
//! a killed process has left are found at the next start, and the audio is closed after its last complete page.
//!
//! `{root}/{journal}/`, named after the recording and its tenant ([`RecordingLocation::journal`]), contains
//! `session.json` (the metadata at the start), `audio.ogg`, `transcript.jsonl` and, once it is finished,
//! `metadata.json`; the uploader keeps its progress there as well. Until then a `reserve` file keeps free the disk
//! space that finishing needs, so that a journal can be finished on a full disk; but for one of whose sound some is
//! silenced: that is written anew, and waits for space. All functions here block on the disk.
//!
//! Another server may have the same data folder, as when it replaces this one. Whoever writes, finishes or uploads a journal
//! has locked its folder, so that nobody else does; the lock goes with the process.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::Notify;

use super::marks;
use super::recording_location::{self, RecordingLocation};
use super::writers::{Durable, Writers};
use super::{AUDIO, METADATA, Metadata, TRANSCRIPT};
use vivavoce_audio::ogg;
use vivavoce_core::hash::{hex, sha256};
use vivavoce_quotas::Permit;

/// The folder of all journals, below the data folder.
pub const FOLDER: &str = "recordings/.journal";
/// The metadata at the start.
const SESSION: &str = "session.json";
/// Disk space for what is written at the end: a page of silence and `metadata.json`.
const RESERVE: &str = "reserve";
const RESERVE_BYTES: usize = 8 * 1024;
/// Is there if another server's recording follows.
const GOES_ON: &str = "goes_on";
/// Is there since the store has said that the part before is not in it.
const WAITS: &str = "waits";
/// Is there if it is to be joined with the part that it follows.
const JOINS: &str = "joins";
/// What is silenced of the sound ([`marks`]), and the sound without that while it is written.
const MARKS: &str = "marks";
const SILENCED: &str = "audio.silenced";
/// The folder of the files of the part before it, and that of the files of both.
const BEFORE: &str = "before";
const JOINED: &str = "joined";
/// The prefix of a journal's folder while it is being removed.
const GONE: &str = ".gone-";
/// The maximum size of a metadata file.
const MAX_DESCRIPTION: u64 = 64 * 1024;

/// A finished journal, which does not change any more. No other server takes it while this lives.
#[derive(Debug, Clone)]
pub struct FinishedJournal {
    /// Its folder.
    pub folder: PathBuf,
    /// Where its files are.
    files: PathBuf,
    /// The content of `metadata.json`.
    pub metadata: Metadata,
    _lock: Arc<File>,
}

impl FinishedJournal {
    /// The path of one of its files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.files.join(name)
    }

    /// Where the files of the part that this one follows are, once they have been fetched.
    pub fn former(&self) -> PathBuf {
        self.folder.join(BEFORE)
    }

    /// The keys of the audio of the parts that were joined.
    pub fn former_audio(&self, prefix: &str) -> io::Result<Option<String>> {
        if !self.is_joined() {
            return Ok(None);
        }
        let former = read_description(&self.former(), METADATA)?;
        let location = RecordingLocation::of(&former);
        let key = location.audio(prefix, &former);
        Ok(Some(key).filter(|key| *key != location.audio(prefix, &self.metadata)))
    }

    /// When the part began with which this one is still to be joined.
    pub fn joins(&self) -> io::Result<Option<u64>> {
        Ok(match self.metadata.continues {
            Some(before) if self.folder.join(JOINS).try_exists()? => Some(before),
            _ => None,
        })
    }

    /// Waits for the part before, or goes on with that. Since when it has.
    pub fn waits(&self) -> io::Result<SystemTime> {
        let path = self.folder.join(WAITS);
        match create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        fs::metadata(path)?.modified()
    }

    /// Forgets what was fetched and joined.
    pub fn part(&self) -> io::Result<()> {
        for folder in [JOINED, BEFORE] {
            remove_if_there(&self.folder.join(folder))?;
        }
        Ok(())
    }

    /// The same with the files of both parts: `write` makes the audio and the transcript in a folder, and says what they are.
    /// Once this returns they survive the process.
    pub fn joined(
        self,
        write: impl FnOnce(&Path) -> io::Result<Metadata>,
    ) -> Result<Self, (Box<Self>, io::Error)> {
        match self.join(write) {
            Ok((files, metadata)) => Ok(Self {
                files,
                metadata,
                ..self
            }),
            Err(error) => Err((Box::new(self), error)),
        }
    }

    fn join(
        &self,
        write: impl FnOnce(&Path) -> io::Result<Metadata>,
    ) -> io::Result<(PathBuf, Metadata)> {
        let files = self.folder.join(JOINED);
        remove_if_there(&files)?;
        DirBuilder::new().mode(0o700).create(&files)?;
        let mut metadata = write(&files)?;
        let complete = metadata.complete;
        let mut audio = open(&files.join(AUDIO))?;
        describe(&mut audio, &mut metadata)?;
        metadata.complete = complete;
        File::open(files.join(TRANSCRIPT))?.sync_all()?;
        write_description(&files, METADATA, &metadata)?;
        sync_folder(&self.folder)?;
        Ok((files, metadata))
    }

    /// Whether its files are those of several parts.
    pub fn is_joined(&self) -> bool {
        self.files != self.folder
    }

    /// The path where the store keeps the upload progress of a file.
    pub fn progress_of(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.progress"))
    }

    /// Removes the journal atomically.
    pub fn remove(&self) -> io::Result<()> {
        remove(&self.folder)
    }
}

/// The folder of the journals.
pub fn root(data_dir: &Path) -> PathBuf {
    data_dir.join(FOLDER)
}

/// All journals of one server. Clones share the same state.
#[derive(Debug, Clone)]
pub struct Journals {
    root: PathBuf,
    live: Arc<Live>,
    writers: Writers,
}

/// Journals in use: being written, or being finished.
#[derive(Debug, Default)]
struct Live {
    names: Mutex<HashSet<String>>,
    ended: Notify,
}

impl Live {
    fn names(&self) -> MutexGuard<'_, HashSet<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a journal exclusively, until the claim is dropped. `None` if it is in use.
    fn claim(self: &Arc<Self>, name: &str) -> Option<Claim> {
        let claimed = self.names().insert(name.to_owned());
        claimed.then(|| Claim {
            live: Arc::clone(self),
            name: name.to_owned(),
            written: false,
            lock: None,
        })
    }
}

/// Locks a folder; `None` if another server has.
fn lock(folder: &Path) -> io::Result<Option<File>> {
    let file = File::open(folder)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// An exclusive claim to a journal.
#[derive(Debug)]
struct Claim {
    live: Arc<Live>,
    name: String,
    /// Whether there will be something to finish once the claim is dropped, which wakes the uploader.
    written: bool,
    /// Keeps other servers from the folder, once it exists.
    lock: Option<File>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Before anybody looks: what is locked is taken for another server's.
        drop(self.lock.take());
        self.live.names().remove(&self.name);
        if self.written {
            self.live.ended.notify_one();
        }
    }
}

impl Journals {
    /// Opens the folder, creating it if it does not exist.
    pub fn open(root: PathBuf) -> io::Result<Self> {
        Self::open_with(root, Writers::start()?)
    }

    /// The same, with these writer threads.
    pub fn open_with(root: PathBuf, writers: Writers) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&root)?;
        for name in names(&root)? {
            if name.starts_with(GONE) {
                match fs::remove_dir_all(root.join(name)) {
                    // Another server has just removed it.
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        let live = Arc::default();
        Ok(Self {
            root,
            live,
            writers,
        })
    }

    /// The folder of the journals.
    pub fn folder(&self) -> &Path {
        &self.root
    }

    /// Creates a journal. Fails with [`io::ErrorKind::AlreadyExists`] if one of this name and tenant exists.
    pub fn begin(&self, metadata: &Metadata) -> io::Result<Journal> {
        self.begin_part(metadata, false, false)
    }

    /// The same, of a recording that perhaps follows another server's and `joins` that, and of whose sound some is silenced
    /// before it is finished.
    pub fn begin_part(
        &self,
        metadata: &Metadata,
        joins: bool,
        silences: bool,
    ) -> io::Result<Journal> {
        let name = RecordingLocation::journal_of(metadata);
        // Claimed before the folder exists, so that the uploader does not take it for an abandoned journal.
        let claim = self.live.claim(&name);
        let claim = claim.ok_or(io::ErrorKind::AlreadyExists)?;
        self.make(claim, metadata, joins, silences)
    }

    fn make(
        &self,
        mut claim: Claim,
        metadata: &Metadata,
        joins: bool,
        silences: bool,
    ) -> io::Result<Journal> {
        let folder = self.root.join(&claim.name);
        DirBuilder::new().mode(0o700).create(&folder)?;
        claim.lock = Some(lock(&folder)?.ok_or(io::ErrorKind::AlreadyExists)?);
        claim.written = true;
        let opened = write_description(&folder, SESSION, metadata).and_then(|()| {
            let audio = create(&folder.join(AUDIO))?;
            let transcript = create(&folder.join(TRANSCRIPT))?;
            if joins {
                create(&folder.join(JOINS))?;
            }
            // Before there is any sound.
            let marks = silences.then(|| create(&folder.join(MARKS))).transpose()?;
            create(&folder.join(RESERVE))?.write_all(&[0; RESERVE_BYTES])?;
            sync_folder(&folder)?;
            sync_folder(&self.root)?;
            Ok((audio, transcript, marks))
        });
        match opened {
            Ok((audio, transcript, marks)) => Ok(Journal {
                folder,
                metadata: metadata.clone(),
                joins,
                audio: Growing::new(audio),
                transcript: Growing::new(transcript),
                marks: marks.map(Growing::new),
                writers: self.writers.clone(),
                _claim: claim,
                _counted: None,
            }),
            Err(error) => {
                let _left_for_the_next_start = remove(&folder);
                Err(error)
            }
        }
    }

    /// The metadata of a journal of a recording, whether it is in use or not.
    pub fn look_up(&self, location: &RecordingLocation) -> io::Result<Option<Metadata>> {
        if let Some(known) = described(&self.root.join(location.journal()))? {
            return Ok(Some(known));
        }
        let names = names(&self.root)?;
        let part = names.iter().find(|name| location.is_journal_of_part(name));
        part.map_or(Ok(None), |name| described(&self.root.join(name)))
    }

    /// The metadata of the journal in this folder.
    pub fn look_into(&self, name: &str) -> io::Result<Option<Metadata>> {
        described(&self.root.join(name))
    }

    /// The metadata of all journals of a name, whoever they belong to.
    pub fn all_of(&self, stream_id: &str) -> io::Result<Vec<Metadata>> {
        let mut known = Vec::new();
        for name in names(&self.root)? {
            if recording_location::is_journal_of(&name, stream_id) {
                known.extend(described(&self.root.join(name))?);
            }
        }
        Ok(known)
    }

    /// The names of journals not in use, oldest first.
    pub fn ended(&self) -> io::Result<Vec<String>> {
        let mut ended = Vec::new();
        for name in names(&self.root)? {
            if name.starts_with('.') || self.live.names().contains(&name) {
                continue;
            }
            // Another server's, or one that is being uploaded.
            if matches!(lock(&self.root.join(&name)), Ok(None)) {
                continue;
            }
            let known = fs::metadata(self.root.join(&name)).and_then(|known| known.modified());
            ended.push((known.ok(), name));
        }
        ended.sort();
        Ok(ended.into_iter().map(|(_, name)| name).collect())
    }

    /// Waits until a journal has ended.
    pub async fn ends(&self) {
        self.live.ended.notified().await;
    }

    /// Finishes a journal that nobody writes any more: truncates torn data, closes the audio stream and writes the
    /// metadata. Returns `None` if nothing had been recorded (the journal is removed), or if the journal is in use.
    pub fn finish(&self, name: &str) -> io::Result<Option<FinishedJournal>> {
        // It may have been claimed since it was listed; from here on nobody else can claim it.
        let Some(_claim) = self.live.claim(name) else {
            return Ok(None);
        };
        let folder = self.root.join(name);
        if !folder.try_exists()? {
            return Ok(None);
        }
        let Some(lock) = lock(&folder)? else {
            return Ok(None);
        };
        // Another server may have removed it before it was locked here.
        if !folder.try_exists()? {
            return Ok(None);
        }
        let finished = |folder: PathBuf, files, metadata| FinishedJournal {
            folder,
            files,
            metadata,
            _lock: Arc::new(lock),
        };
        for files in [folder.join(JOINED), folder.clone()] {
            if let Ok(metadata) = read_description(&files, METADATA) {
                return Ok(Some(finished(folder, files, metadata)));
            }
        }
        let Ok(mut metadata) = read_description(&folder, SESSION) else {
            // The process died before anything was written.
            remove(&folder)?;
            return Ok(None);
        };
        remove_file_if_there(&folder.join(RESERVE))?;
        metadata.goes_on = folder.join(GOES_ON).try_exists()?;
        let mut audio = open(&folder.join(AUDIO))?;
        describe(&mut audio, &mut metadata)?;
        if silence(&folder)? {
            // A torn stream has been ended by the first look, so that the second one would take it for complete.
            let complete = metadata.complete;
            describe(&mut open(&folder.join(AUDIO))?, &mut metadata)?;
            metadata.complete = complete;
        }
        end_lines(&folder.join(TRANSCRIPT))?;
        write_description(&folder, METADATA, &metadata)?;
        Ok(Some(finished(folder.clone(), folder, metadata)))
    }
}

/// Silences what is marked of the sound; whether there was something. An attempt that was interrupted is begun anew, and
/// another one after it was made changes nothing.
fn silence(folder: &Path) -> io::Result<bool> {
    let stretches = marks::read(&folder.join(MARKS))?;
    if stretches.is_empty() {
        return Ok(false);
    }
    let (audio, silenced) = (folder.join(AUDIO), folder.join(SILENCED));
    remove_file_if_there(&silenced)?;
    let output = create(&silenced)?;
    let muted = ogg::mute(File::open(&audio)?, &stretches, BufWriter::new(&output));
    if let Err(error) = muted.and_then(|()| output.sync_all()) {
        // Others need the space.
        let _left_for_the_next_attempt = fs::remove_file(&silenced);
        return Err(error);
    }
    fs::rename(silenced, audio)?;
    sync_folder(folder)?;
    Ok(true)
}

fn open(audio: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(audio)
}

/// Closes the audio stream after its last complete page, and describes it.
fn describe(audio: &mut File, metadata: &mut Metadata) -> io::Result<()> {
    let repaired = match ogg::repair(audio)? {
        Some(repaired) => repaired,
        // Killed before the first page was written: keep a silent stream.
        None => {
            audio.set_len(0)?;
            audio.seek(SeekFrom::Start(0))?;
            audio.write_all(&ogg::silent_stream().map_err(io::Error::other)?)?;
            let silent = ogg::repair(audio)?.ok_or(io::ErrorKind::InvalidData)?;
            ogg::Repaired {
                was_ended: false,
                ..silent
            }
        }
    };
    audio.sync_data()?;
    metadata.size = repaired.size;
    metadata.duration_ms = repaired.frames / 48;
    metadata.channels = repaired.channels;
    metadata.complete = repaired.was_ended && !metadata.goes_on;
    audio.seek(SeekFrom::Start(0))?;
    metadata.sha256 = hex(&sha256(audio)?);
    Ok(())
}

/// A journal being written. After it is dropped, whatever it contains is finished by the uploader.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    metadata: Metadata,
    joins: bool,
    audio: Growing,
    transcript: Growing,
    /// What is silenced of the sound, where that is wanted.
    marks: Option<Growing>,
    writers: Writers,
    _claim: Claim,
    /// Counts the recording while it is written; afterwards the uploader counts it.
    _counted: Option<Permit>,
}

impl Journal {
    /// Counts the recording for a party while it is written.
    #[must_use]
    pub fn counted(self, permit: Permit) -> Self {
        Self {
            _counted: Some(permit),
            ..self
        }
    }

    /// The metadata at the start.
    pub const fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The threads that write it.
    pub fn writers(&self) -> &Writers {
        &self.writers
    }

    /// Appends audio pages and transcript lines. Once this returns, they survive the process; they survive a power
    /// failure about half a second later. After an error nothing has been appended.
    pub fn append(&mut self, pages: &[u8], lines: &str) -> io::Result<()> {
        self.audio.append(pages)?;
        self.transcript.append(lines.as_bytes())?;
        for (file, grown) in [(&self.audio, pages.len()), (&self.transcript, lines.len())] {
            if grown > 0 {
                self.writers.sync(&file.file);
            }
        }
        Ok(())
    }

    /// Whether some of the sound may have to be silenced.
    pub const fn silences(&self) -> bool {
        self.marks.is_some()
    }

    /// Appends lines about what is silenced.
    pub fn mark(&mut self, lines: &str) -> io::Result<()> {
        if let Some(marks) = self.marks.as_mut().filter(|_| !lines.is_empty()) {
            marks.append(lines.as_bytes())?;
            self.writers.sync(&marks.file);
        }
        Ok(())
    }

    /// Whether it follows another server's part and will not be joined with it.
    pub const fn stays_apart(&self) -> bool {
        self.metadata.continues.is_some() && !self.joins
    }

    /// The session goes on at another server, and so does its recording.
    pub fn goes_on(&self) -> io::Result<()> {
        create(&self.folder.join(GOES_ON))?;
        sync_folder(&self.folder)
    }

    /// Removes the journal, because the `config` that asked for it was refused.
    pub fn abandon(self) -> io::Result<()> {
        remove(&self.folder)
    }
}

/// A file to which whole pieces are appended.
#[derive(Debug)]
struct Growing {
    file: Arc<Durable>,
    len: u64,
}

impl Growing {
    fn new(file: File) -> Self {
        let file = Durable::new(file);
        Self { file, len: 0 }
    }

    fn append(&mut self, piece: &[u8]) -> io::Result<()> {
        if piece.is_empty() {
            return Ok(());
        }
        let mut file = self.file.file()?;
        let written = file.write_all(piece);
        if written.is_ok() {
            self.len += piece.len() as u64;
        } else {
            // If this fails too, the torn piece is removed when the journal is finished.
            let _ = file.set_len(self.len);
            let _ = file.seek(SeekFrom::Start(self.len));
        }
        written
    }
}

fn remove_file_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn remove_if_there(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        // Our names are all valid UTF-8.
        names.extend(entry?.file_name().into_string().ok());
    }
    Ok(names)
}

fn remove(folder: &Path) -> io::Result<()> {
    // The same name may be created and removed again before this folder has been deleted.
    static REMOVED: AtomicU64 = AtomicU64::new(0);
    let Some(name) = folder.file_name().and_then(|name| name.to_str()) else {
        return Ok(());
    };
    let number = REMOVED.fetch_add(1, Ordering::Relaxed);
    let gone = folder.with_file_name(format!("{GONE}{number}-{name}"));
    fs::rename(folder, &gone)?;
    fs::remove_dir_all(gone)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The metadata at the start of what is in this folder.
pub fn described(folder: &Path) -> io::Result<Option<Metadata>> {
    match read_description(folder, SESSION) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn write_description(folder: &Path, name: &str, metadata: &Metadata) -> io::Result<()> {
    let unfinished = folder.join(format!("{name}.new"));
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&unfinished)?;
    file.write_all(&serde_json::to_vec_pretty(metadata)?)?;
    file.sync_all()?;
    fs::rename(unfinished, folder.join(name))?;
    sync_folder(folder)
}

fn read_description(folder: &Path, name: &str) -> io::Result<Metadata> {
    let mut text = Vec::new();
    let file = File::open(folder.join(name))?;
    file.take(MAX_DESCRIPTION).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Truncates an incomplete last line.
fn end_lines(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    let mut end = file.seek(SeekFrom::End(0))?;
    let mut piece = [0; 4096];
    while end > 0 {
        let start = end.saturating_sub(piece.len() as u64);
        let piece = &mut piece[..(end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(piece)?;
        if let Some(newline) = piece.iter().rposition(|&byte| byte == b'\n') {
            end = start + newline as u64 + 1;
            break;
        }
        end = start;
    }
    file.set_len(end)?;
    file.sync_data()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use vivavoce_audio::Channels;
    use vivavoce_audio::ogg::{OggOpusWriter, OpusHead, PAGE_TIME};

    pub fn metadata(name: &str) -> Metadata {
        Metadata {
            stream_id: name.to_owned(),
            tenant: None,
            public: false,
            started_at: 1,
            duration_ms: 0,
            size: 0,
            sha256: String::new(),
            channels: 1,
            participants: Vec::new(),
            complete: false,
            goes_on: false,
            parts: Vec::new(),
            cut: false,
            continues: None,
            file: None,
        }
    }

    fn writer() -> OggOpusWriter {
        let head = OpusHead {
            channels: Channels::Mono,
            pre_skip: 312,
            input_hz: 16_000,
        };
        OggOpusWriter::new(head, "vivavoce", &[], 1, PAGE_TIME).unwrap()
    }

    fn pages(writer: &mut OggOpusWriter, packets: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..packets {
            bytes.extend_from_slice(&writer.push(&[31 << 3, 1, 2]).unwrap());
        }
        bytes
    }

    #[test]
    fn what_was_ended_is_complete_and_what_was_not_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let journals = Journals::open(folder.path().join("j")).unwrap();
        for (name, ends) in [("a", true), ("b", false)] {
            let mut journal = journals.begin(&metadata(name)).unwrap();
            let mut writer = writer();
            let pages = pages(&mut writer, 101);
            journal.append(&pages, "{}\n").unwrap();
            if ends {
                journal.append(&writer.finish(None), "{\"half\"").unwrap();
            }
            assert!(!journals.ended().unwrap().contains(&name.to_owned()));
        }
        assert_eq!(journals.ended().unwrap(), ["a", "b"]);
        for (name, ms) in [("a", 2_013), ("b", 1_993)] {
            let finished = journals.finish(name).unwrap().unwrap();
            assert_eq!(finished.metadata.complete, name == "a");
            assert_eq!(finished.metadata.duration_ms, ms);
            let audio = fs::read(finished.file(AUDIO)).unwrap();
            assert_eq!(finished.metadata.size, audio.len() as u64);
            assert_eq!(
                finished.metadata.sha256,
                hex(&sha256(&mut &audio[..]).unwrap())
            );
            assert_eq!(
                fs::read_to_string(finished.file(TRANSCRIPT)).unwrap(),
                "{}\n"
            );
            let found = finished.metadata.clone();
            drop(finished);
            let finished = journals.finish(name).unwrap().unwrap();
            assert_eq!(finished.metadata, found);
            finished.remove().unwrap();
        }
        assert_eq!(journals.ended().unwrap(), [""; 0]);
    }

    #[test]
    fn a_name_is_taken_until_its_journal_is_gone_and_one_without_sound_is_kept_as_silence() {
        let folder = tempfile::tempdir().unwrap();
        let journals = Journals::open(folder.path().to_owned()).unwrap();
        let journal = journals.begin(&metadata("a")).unwrap();
        let again = journals.begin(&metadata("a")).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert!(
            journals
                .look_up(&RecordingLocation::top("a"))
                .unwrap()
                .is_some()
        );
        journal.abandon().unwrap();
        drop(journals.begin(&metadata("a")).unwrap());
        let finished = journals.finish("a").unwrap().unwrap();
        assert_eq!(
            (finished.metadata.duration_ms, finished.metadata.complete),
            (20, false)
        );
        finished.remove().unwrap();
        assert!(
            journals
                .look_up(&RecordingLocation::top("a"))
                .unwrap()
                .is_none()
        );
        fs::create_dir(folder.path().join("b")).unwrap();
        assert!(journals.finish("b").unwrap().is_none());
        assert_eq!(journals.ended().unwrap(), [""; 0]);
    }

    #[test]
    fn a_recording_that_begins_is_nobodys_to_finish_before_it_can_be_seen() {
        let folder = tempfile::tempdir().unwrap();
        let journals = Journals::open(folder.path().to_owned()).unwrap();
        // The order is forced: the claim comes first, then the folder, then its content.
        let claim = journals.live.claim("a").unwrap();
        assert!(!folder.path().join("a").exists());
        fs::create_dir(folder.path().join("a")).unwrap();
        assert_eq!(journals.ended().unwrap(), [""; 0]);
        assert!(journals.finish("a").unwrap().is_none());
        assert!(
            folder.path().join("a").exists(),
            "it was taken for one that was left"
        );
        fs::remove_dir(folder.path().join("a")).unwrap();
        let mut journal = journals.make(claim, &metadata("a"), false, false).unwrap();
        journal.append(&pages(&mut writer(), 101), "").unwrap();
        // It was listed when it had ended, and is being written again.
        assert!(journals.finish("a").unwrap().is_none());
        assert!(!folder.path().join("a").join(METADATA).exists());
        drop(journal);
        assert!(journals.finish("a").unwrap().is_some());
    }

    #[test]
    fn two_servers_with_one_folder_leave_each_other_their_journals() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Journals::open(folder.path().to_owned()).unwrap();
        let (former, new) = (open(), open());
        let mut journal = former.begin(&metadata("a")).unwrap();
        journal.append(&pages(&mut writer(), 101), "").unwrap();
        assert_eq!(new.ended().unwrap(), [""; 0]);
        assert!(new.finish("a").unwrap().is_none());
        drop(journal);
        // It is uploaded by one of them.
        let uploading = former.finish("a").unwrap().unwrap();
        assert_eq!(new.ended().unwrap(), [""; 0]);
        assert!(new.finish("a").unwrap().is_none());
        drop(uploading);
        assert_eq!(new.ended().unwrap(), ["a"]);
        let finished = new.finish("a").unwrap().unwrap();
        assert_eq!(finished.metadata.duration_ms, 1_993);
        finished.remove().unwrap();
        assert!(former.finish("a").unwrap().is_none());
    }

    #[test]
    fn nobody_begins_what_is_being_finished() {
        let folder = tempfile::tempdir().unwrap();
        let journals = Journals::open(folder.path().to_owned()).unwrap();
        let finishing = journals.live.claim("a").unwrap();
        let begun = journals.begin(&metadata("a")).unwrap_err();
        assert_eq!(begun.kind(), io::ErrorKind::AlreadyExists);
        assert!(!folder.path().join("a").exists());
        drop(finishing);
        assert!(journals.begin(&metadata("a")).is_ok());
    }

    /// 10,000 journals in the long run, 400 otherwise, with few distinct names, half of them abandoned; an uploader
    /// takes whatever has ended.
    #[test]
    fn of_many_begun_and_ended_at_once_none_is_lost_or_refused_for_nothing() {
        const THREADS: usize = 8;
        let each = std::env::var_os("VIVAVOCE_LONG").map_or(400, |_| 10_000) / THREADS;
        // In memory where possible: this test is not about the disk.
        let folder = tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .unwrap();
        let journals = Journals::open_with(folder.path().to_owned(), Writers::start().unwrap());
        let journals = &journals.unwrap();
        let over = &std::sync::atomic::AtomicBool::new(false);
        let taken = std::thread::scope(|scope| {
            let uploader = scope.spawn(move || {
                let mut taken = 0;
                loop {
                    let last = over.load(Ordering::Acquire);
                    for name in journals.ended().unwrap() {
                        if let Some(finished) = journals.finish(&name).unwrap() {
                            assert!(finished.metadata.duration_ms > 1_900, "{name} was torn");
                            finished.remove().unwrap();
                            taken += 1;
                        }
                    }
                    if last {
                        return taken;
                    }
                }
            });
            let writing = move |thread: usize| {
                for number in 0..each {
                    // The name is reused while its predecessor is being removed.
                    let name = format!("{thread}-{}", number % 3);
                    let mut journal = loop {
                        match journals.begin(&metadata(&name)) {
                            Ok(journal) => break journal,
                            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                                std::thread::yield_now();
                            }
                            Err(error) => panic!("{error}"),
                        }
                    };
                    if number % 2 == 0 {
                        journal.abandon().unwrap();
                    } else {
                        journal.append(&pages(&mut writer(), 101), "{}\n").unwrap();
                    }
                }
            };
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| scope.spawn(move || writing(thread)))
                .collect();
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
            over.store(true, Ordering::Release);
            uploader.join().unwrap()
        });
        assert_eq!(taken, THREADS * (each / 2));
        assert_eq!(names(folder.path()).unwrap(), [""; 0]);
    }

    /// Simulates disk corruption: truncated, modified and reordered data. Seeded; 20,000 rounds in the long run.
    #[test]
    fn whatever_is_read_back_is_finished_or_an_error_and_never_a_panic() {
        let rounds = std::env::var_os("VIVAVOCE_LONG").map_or(300, |_| 20_000);
        let mut random = fastrand::Rng::with_seed(12);
        let folder = tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .unwrap();
        let journals = Journals::open_with(folder.path().to_owned(), Writers::none()).unwrap();
        for _ in 0..rounds {
            let mut journal = journals.begin(&metadata("a")).unwrap();
            let mut writer = writer();
            let packets = random.usize(0..200);
            let sound = pages(&mut writer, packets);
            journal.append(&sound, "{\"a\": 1}\n{\"b\"").unwrap();
            drop(journal);
            for file in [AUDIO, TRANSCRIPT, SESSION, METADATA] {
                let path = folder.path().join("a").join(file);
                let mut bytes = fs::read(&path).unwrap_or_default();
                for _ in 0..random.usize(0..4) {
                    match random.u8(0..4) {
                        0 => bytes.truncate(random.usize(0..=bytes.len())),
                        1 if !bytes.is_empty() => {
                            let at = random.usize(0..bytes.len());
                            bytes[at] = random.u8(..);
                        }
                        2 => bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(40)),
                        _ => {
                            let by = random.usize(0..=bytes.len());
                            bytes.rotate_left(by);
                        }
                    }
                }
                if file != METADATA || random.u8(0..8) == 0 {
                    fs::write(path, bytes).unwrap();
                }
            }
            if let Ok(Some(finished)) = journals.finish("a") {
                let audio = File::open(finished.file(AUDIO)).unwrap();
                assert!(
                    finished.metadata.size <= audio.metadata().unwrap().len()
                        || !finished.metadata.complete
                );
            }
            let left = folder.path().join("a");
            if left.exists() {
                fs::remove_dir_all(left).unwrap();
            }
        }
    }

    #[test]
    fn what_a_dying_process_was_removing_is_removed_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(".gone-a")).unwrap();
        let journals = Journals::open(folder.path().to_owned()).unwrap();
        assert_eq!(names(folder.path()).unwrap(), [""; 0]);
        assert_eq!(journals.ended().unwrap(), [""; 0]);
    }
}
