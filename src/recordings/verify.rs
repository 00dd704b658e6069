//! Verifies a stored recording: the size and hash of its audio, the structure of the Ogg/Opus stream, and its duration.

use futures_util::StreamExt;
use sha2::{Digest, Sha256};

use super::catalogue::metadata;
use super::recording_location::RecordingLocation;
use super::{AUDIO, Metadata};
use vivavoce_audio::ogg::{OggItem, OggOpusReader};
use vivavoce_core::hash::hex;
use vivavoce_seams::{RecordingStore, StoreError};

/// Opus frames (at 48 kHz) per millisecond.
const FRAMES_PER_MS: u64 = 48;
/// Durations are stored in whole milliseconds.
const TOLERANCE_MS: u64 = 1;

/// What is wrong with a recording.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The audio file has the wrong size.
    #[error("{AUDIO} has {found} bytes instead of {recorded}")]
    Size {
        /// Bytes in the store.
        found: u64,
        /// Bytes when it was recorded.
        recorded: u64,
    },
    /// The audio file has the wrong hash.
    #[error("{AUDIO} is not what was recorded: its SHA-256 is {found}")]
    Hash {
        /// The SHA-256 of what is in the store.
        found: String,
    },
    /// The audio is not a valid Ogg/Opus stream.
    #[error("{AUDIO} is not a valid Ogg/Opus stream: {0}")]
    Ogg(String),
    /// The duration differs from the metadata.
    #[error("{AUDIO} lasts {found} ms instead of {recorded}")]
    Duration {
        /// By the stream's pages.
        found: u64,
        /// By the metadata.
        recorded: u64,
    },
}

/// Streams the audio once and checks it.
pub async fn verify_recording(
    store: &dyn RecordingStore,
    prefix: &str,
    location: &RecordingLocation,
) -> Result<Metadata, VerifyError> {
    let metadata = metadata(store, prefix, location).await?;
    let mut pieces = store.get(&location.audio(prefix, &metadata), None).await?;
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
        return Err(VerifyError::Size {
            found: size,
            recorded,
        });
    }
    let found = hex(&hash.finalize());
    if found != metadata.sha256 {
        return Err(VerifyError::Hash { found });
    }
    let found = stream.end().map_err(VerifyError::Ogg)?;
    if found.abs_diff(metadata.duration_ms) > TOLERANCE_MS {
        let recorded = metadata.duration_ms;
        return Err(VerifyError::Duration { found, recorded });
    }
    Ok(metadata)
}

/// Parses the stream up to its first error.
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

    /// The duration in milliseconds.
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
