//! How a file gets into the bucket: small ones in one request, large ones in parts of which the file's progress says
//! where they are, so that another attempt, also of another process, sends only what is missing.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart, Part};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::errors::store_error;
use crate::{S3Store, SHA256, StoreError, StoredFile};
use vivavoce_core::hash::hex;

/// The least that a part may have is 5 MiB, and 10,000 parts are the most (Amazon's "multipart upload limits").
const PART_BYTES: u64 = 8 << 20;
const MAX_PARTS: u64 = 10_000;

/// What the progress file holds.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Progress {
    bucket: String,
    key: String,
    sha256: String,
    part_bytes: u64,
    upload_id: String,
    /// What was sent, for stores that do not list checksums.
    parts: Vec<Sent>,
}

/// A part that the store has taken.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Sent {
    number: i32,
    sha256: String,
    e_tag: Option<String>,
}

/// One of the parts of a file.
#[derive(Debug, Clone, Copy)]
struct Piece {
    number: i32,
    from: u64,
    bytes: u64,
}

impl S3Store {
    /// Keeps a file under a key that is free.
    pub(super) async fn upload(&self, key: &str, file: StoredFile<'_>) -> Result<(), StoreError> {
        if file.size <= PART_BYTES {
            self.upload_whole(key, file).await
        } else {
            self.upload_in_parts(key, file).await
        }
    }

    async fn upload_whole(&self, key: &str, file: StoredFile<'_>) -> Result<(), StoreError> {
        let body = read(file.path, 0, file.size).await?;
        let request = self.client.put_object().bucket(&self.bucket).key(key);
        let request = request
            .set_if_none_match(only_new(file))
            .content_type(file.content_type)
            .metadata(SHA256, hex(&file.sha256))
            .checksum_sha256(STANDARD.encode(file.sha256))
            .body(body.into());
        request.send().await.map_err(|error| store_error(&error))?;
        Ok(())
    }

    async fn upload_in_parts(&self, key: &str, file: StoredFile<'_>) -> Result<(), StoreError> {
        let (mut progress, there) = match self.resume(key, file).await? {
            Some(begun) => begun,
            None => (self.begin(key, file).await?, Vec::new()),
        };
        let mut parts = Vec::new();
        for piece in pieces(file.size, progress.part_bytes) {
            let body = read(file.path, piece.from, piece.bytes).await?;
            let checksum = STANDARD.encode(Sha256::digest(&body));
            let known = there
                .iter()
                .find_map(|part| progress.e_tag_of(part, piece, &checksum));
            let e_tag = match known {
                Some(e_tag) => Some(e_tag),
                None => {
                    let e_tag = self.send(&progress, piece, &checksum, body).await?;
                    progress.parts.push(Sent {
                        number: piece.number,
                        sha256: checksum.clone(),
                        e_tag: e_tag.clone(),
                    });
                    note(file.progress, &progress).await;
                    e_tag
                }
            };
            let part = CompletedPart::builder()
                .part_number(piece.number)
                .checksum_sha256(checksum);
            parts.push(part.set_e_tag(e_tag).build());
        }
        self.complete(&progress, file, parts).await
    }

    /// An upload that was begun, with the parts that the store has of it; none where it has forgotten about it.
    async fn resume(
        &self,
        key: &str,
        file: StoredFile<'_>,
    ) -> Result<Option<(Progress, Vec<Part>)>, StoreError> {
        let Ok(text) = tokio::fs::read(file.progress).await else {
            return Ok(None);
        };
        let progress = serde_json::from_slice::<Progress>(&text).ok();
        let ours = |progress: &Progress| {
            progress.bucket == self.bucket
                && progress.key == key
                && progress.sha256 == hex(&file.sha256)
                && progress.part_bytes > 0
        };
        let Some(progress) = progress.filter(ours) else {
            return Ok(None);
        };
        let mut parts = Vec::new();
        let mut behind = None;
        loop {
            let request = self.client.list_parts().bucket(&self.bucket).key(key);
            let request = request
                .upload_id(&progress.upload_id)
                .set_part_number_marker(behind.take());
            let page = match request.send().await.map_err(|error| store_error(&error)) {
                Ok(page) => page,
                Err(StoreError::NotFound) => return Ok(None),
                Err(error) => return Err(error),
            };
            parts.extend(page.parts().iter().cloned());
            behind = page.next_part_number_marker().map(str::to_owned);
            if !page.is_truncated().unwrap_or(false) || behind.is_none() {
                return Ok(Some((progress, parts)));
            }
        }
    }

    async fn begin(&self, key: &str, file: StoredFile<'_>) -> Result<Progress, StoreError> {
        let request = self
            .client
            .create_multipart_upload()
            .bucket(&self.bucket)
            .key(key);
        let begun = request
            .content_type(file.content_type)
            .metadata(SHA256, hex(&file.sha256))
            .checksum_algorithm(ChecksumAlgorithm::Sha256)
            .send();
        let begun = begun.await.map_err(|error| store_error(&error))?;
        let progress = Progress {
            bucket: self.bucket.clone(),
            key: key.to_owned(),
            sha256: hex(&file.sha256),
            part_bytes: part_bytes(file.size),
            upload_id: begun.upload_id().unwrap_or_default().to_owned(),
            parts: Vec::new(),
        };
        note(file.progress, &progress).await;
        Ok(progress)
    }

    async fn send(
        &self,
        progress: &Progress,
        piece: Piece,
        checksum: &str,
        body: Bytes,
    ) -> Result<Option<String>, StoreError> {
        let request = self
            .client
            .upload_part()
            .bucket(&self.bucket)
            .key(&progress.key);
        let sent = request
            .upload_id(&progress.upload_id)
            .part_number(piece.number)
            .checksum_sha256(checksum)
            .body(body.into())
            .send();
        Ok(sent
            .await
            .map_err(|error| lost(&error))?
            .e_tag()
            .map(str::to_owned))
    }

    async fn complete(
        &self,
        progress: &Progress,
        file: StoredFile<'_>,
        parts: Vec<CompletedPart>,
    ) -> Result<(), StoreError> {
        let parts = CompletedMultipartUpload::builder()
            .set_parts(Some(parts))
            .build();
        let request = self.client.complete_multipart_upload();
        let request = request
            .bucket(&self.bucket)
            .key(&progress.key)
            .upload_id(&progress.upload_id);
        let request = request.set_if_none_match(only_new(file));
        let sent = request.multipart_upload(parts).send();
        let done = sent.await.map_err(|error| lost(&error));
        if matches!(done, Err(StoreError::Exists)) {
            // Its parts would be paid for as long as they lie there.
            let request = self.client.abort_multipart_upload().bucket(&self.bucket);
            let request = request.key(&progress.key).upload_id(&progress.upload_id);
            if let Err(error) = request.send().await.map_err(|error| store_error(&error)) {
                tracing::warn!(%error, "an upload that is not needed could not be ended");
            }
        }
        done.map(drop)
    }
}

/// The condition that nothing is under the key, unless it was looked at and is to be replaced.
fn only_new(file: StoredFile<'_>) -> Option<String> {
    file.replaces.is_none().then(|| "*".to_owned())
}

/// An upload that the store has forgotten meanwhile is begun anew by the next attempt.
fn lost<E>(
    error: &aws_sdk_s3::error::SdkError<E, aws_sdk_s3::config::http::HttpResponse>,
) -> StoreError
where
    E: aws_sdk_s3::error::ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    match store_error(error) {
        StoreError::NotFound => StoreError::Unavailable {
            retry_after: None,
            message: "the store has forgotten the upload".to_owned(),
        },
        other => other,
    }
}

impl Progress {
    /// The tag of what the store lists where that is this piece of the file. Not every store lists checksums or tags:
    /// what it leaves out is what was noted when it took the part.
    fn e_tag_of(&self, part: &Part, piece: Piece, checksum: &str) -> Option<String> {
        let same_place = part.part_number() == Some(piece.number)
            && part.size().is_some_and(|size| size as u64 == piece.bytes);
        if !same_place {
            return None;
        }
        let sent = self.parts.iter().find(|sent| {
            let same_tag = part.e_tag().is_none() || part.e_tag() == sent.e_tag.as_deref();
            sent.number == piece.number && sent.sha256 == checksum && same_tag
        });
        let e_tag = part.e_tag().map(str::to_owned);
        match part.checksum_sha256() {
            Some(listed) if listed != checksum => None,
            Some(_) => e_tag.or_else(|| sent?.e_tag.clone()),
            None => sent.and_then(|sent| e_tag.or_else(|| sent.e_tag.clone())),
        }
    }
}

fn part_bytes(size: u64) -> u64 {
    PART_BYTES.max(size.div_ceil(MAX_PARTS))
}

fn pieces(size: u64, part_bytes: u64) -> impl Iterator<Item = Piece> {
    let count = size.div_ceil(part_bytes.max(1));
    (0..count).map(move |index| {
        let from = index * part_bytes;
        Piece {
            number: i32::try_from(index + 1).unwrap_or(i32::MAX),
            from,
            bytes: part_bytes.min(size - from),
        }
    })
}

async fn read(path: &Path, from: u64, bytes: u64) -> io::Result<Bytes> {
    let path = path.to_owned();
    let read = move || {
        let mut piece = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
        File::open(path)?.read_exact_at(&mut piece, from)?;
        Ok(piece.into())
    };
    tokio::task::spawn_blocking(read)
        .await
        .map_err(io::Error::other)?
}

/// There as a whole, or not at all. Where it cannot be noted, on a disk that is full, another attempt begins anew; going
/// on is what makes room.
async fn note(path: &Path, progress: &Progress) {
    if let Err(error) = try_to_note(path, progress).await {
        tracing::warn!(%error, "how far an upload has got cannot be noted");
    }
}

async fn try_to_note(path: &Path, progress: &Progress) -> io::Result<()> {
    let text = serde_json::to_vec(progress).map_err(io::Error::other)?;
    let path = path.to_owned();
    let write = move || {
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        io::Write::write_all(&mut file, &text)?;
        file.as_file().sync_all()?;
        file.persist(&path).map(drop).map_err(|error| error.error)
    };
    tokio::task::spawn_blocking(write)
        .await
        .map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_a_file_follow_each_other_to_its_end_within_the_limits() {
        for size in [PART_BYTES + 1, 2 * PART_BYTES, 100 << 30, 1 << 40] {
            let part = part_bytes(size);
            assert!(part >= 5 << 20);
            let mut at = 0;
            for (number, piece) in (1..).zip(pieces(size, part)) {
                assert_eq!((piece.number, piece.from), (number, at));
                at += piece.bytes;
                assert!(number as u64 <= MAX_PARTS && piece.bytes > 0);
            }
            assert_eq!(at, size);
        }
    }
}
