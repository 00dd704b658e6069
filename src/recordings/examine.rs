//! Whether what the store has of a recording is what was recorded: size and hash of its sound, the structure of its
//! Ogg/Opus stream, and what is known of it.

use futures_util::StreamExt;
use sha2::{Digest, Sha256};

use super::catalogue::metadata;
use super::place::Place;
use super::{AUDIO, Metadata};
use vivavoce_audio::ogg::{OggItem, OggOpusReader};
use vivavoce_core::hash::hex;
use vivavoce_seams::{RecordingStore, StoreError};

/// Frames of Opus in a millisecond.
const FRAMES_PER_MS: u64 = 48;
/// A duration is written in whole milliseconds.
const TOLERANCE_MS: u64 = 1;

/// What is wrong with a recording.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The store could not be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its sound has another size than it had when it was recorded.
    #[error("{AUDIO} has {found} bytes instead of {recorded}")]
    Size {
        /// What the store has.
        found: u64,
        /// What there was.
        recorded: u64,
    },
    /// Its sound is another.
    #[error("{AUDIO} is not what was recorded: its SHA-256 is {found}")]
    Hash {
        /// Of what the store has.
        found: String,
    },
    /// Its sound cannot be played.
    #[error("{AUDIO} is no good Ogg/Opus stream: {0}")]
    Ogg(String),
    /// It lasts longer or shorter than what is known of it says.
    #[error("{AUDIO} lasts {found} ms instead of {recorded}")]
    Duration {
        /// By its pages.
        found: u64,
        /// By its metadata.
        recorded: u64,
    },
}

/// Reads all of it once, a piece at a time.
pub async fn examine(
    store: &dyn RecordingStore,
    prefix: &str,
    place: &Place,
) -> Result<Metadata, Damage> {
    let metadata = metadata(store, prefix, place).await?;
    let mut pieces = store.get(&place.key(prefix, AUDIO), None).await?;
    let (mut size, mut hash) = (0, Sha256::new());
    let mut stream = Stream::default();
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        size += piece.len() as u64;
        hash.update(&piece);
        stream.read(&piece);
    }
    if size != metadata.size {
        let recorded = metadata.size;
        return Err(Damage::Size {
            found: size,
            recorded,
        });
    }
    let found = hex(&hash.finalize());
    if found != metadata.sha256 {
        return Err(Damage::Hash { found });
    }
    let found = stream.end().map_err(Damage::Ogg)?;
    if found.abs_diff(metadata.duration_ms) > TOLERANCE_MS {
        let recorded = metadata.duration_ms;
        return Err(Damage::Duration { found, recorded });
    }
    Ok(metadata)
}

/// A stream that is being read, up to its first mistake.
#[derive(Default)]
struct Stream {
    reader: OggOpusReader,
    frames: u64,
    mistake: Option<String>,
}

impl Stream {
    fn read(&mut self, piece: &[u8]) {
        if self.mistake.is_some() {
            return;
        }
        self.reader.push(piece);
        loop {
            match self.reader.next_item() {
                Ok(Some(OggItem::Packet(packet))) => self.frames += packet.heard.len() as u64,
                Ok(Some(OggItem::Head(_))) => {}
                Ok(None) => return,
                Err(error) => {
                    self.mistake = Some(error.to_string());
                    return;
                }
            }
        }
    }

    /// How long it lasts in milliseconds.
    fn end(self) -> Result<u64, String> {
        if let Some(mistake) = self.mistake {
            return Err(mistake);
        }
        self.reader.finish().map_err(|error| error.to_string())?;
        match self.reader.lost_pages() {
            0 => Ok(self.frames / FRAMES_PER_MS),
            lost => Err(format!("{lost} pages are missing or damaged")),
        }
    }
}
