//! The S3 store by itself: what it keeps, what it refuses, and what it makes of a server's failures.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use vivavoce::config::{Config, Settings};
use vivavoce::providers::s3::S3Store;
use vivavoce::providers::{RecordingStore, StoreError, StoredFile};
use vivavoce::tls_roots::Authorities;

use super::{ACCESS_KEY, BUCKET, MIB, Moto, S3sFs, SECRET_KEY, Wire};
use crate::harness::client;

fn settings(address: &str, more: &[(&str, &str)]) -> Settings {
    let endpoint = format!("http://{address}");
    let flags = [
        ("recording.backend", "s3"),
        ("recording.s3_bucket", BUCKET),
        ("recording.s3_endpoint", &endpoint),
        ("recording.s3_region", "eu-central-1"),
        ("recording.s3_access_key", ACCESS_KEY),
        ("recording.s3_secret_key", SECRET_KEY),
        ("recording.s3_force_path_style", "true"),
    ];
    let flags = flags.iter().chain(more);
    let flags: Vec<_> = flags
        .map(|&(key, text)| (key.to_owned(), text.to_owned()))
        .collect();
    Config::load(&flags, None).unwrap().settings
}

async fn store(address: &str) -> S3Store {
    // Settings are large.
    let settings = Box::new(settings(address, &[]));
    let authorities = Authorities::default();
    let store = S3Store::open(&settings.recording, &authorities);
    Box::pin(store).await.unwrap()
}

/// A file that is to be kept, with the place of its progress.
struct Source {
    folder: TempDir,
    bytes: Vec<u8>,
}

impl Source {
    fn of(size: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut random = fastrand::Rng::with_seed(size as u64);
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
            .take(size)
            .collect();
        std::fs::write(folder.path().join("audio.ogg"), &bytes).unwrap();
        Self { folder, bytes }
    }

    async fn put(&self, store: &S3Store, key: &str) -> Result<(), StoreError> {
        let file = StoredFile {
            path: &self.folder.path().join("audio.ogg"),
            size: self.bytes.len() as u64,
            sha256: Sha256::digest(&self.bytes).into(),
            content_type: "audio/ogg",
            progress: &self.folder.path().join("progress"),
            replaces: None,
        };
        let kept = store.put(key, file).await?;
        assert_eq!((kept.size, kept.sha256), (file.size, Some(file.sha256)));
        Ok(())
    }
}

async fn read(store: &S3Store, key: &str, range: Option<std::ops::Range<u64>>) -> Vec<u8> {
    let mut pieces = store.get(key, range).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        bytes.extend_from_slice(&piece.unwrap());
    }
    bytes
}

#[actix_web::test]
async fn what_is_kept_is_read_back_in_ranges_listed_never_overwritten_and_removed() {
    let server = S3sFs::start();
    let store = store(&server.address).await;
    assert!(matches!(
        store.head("r/a/audio.ogg").await,
        Err(StoreError::NotFound)
    ));
    let (small, large) = (Source::of(70_000), Source::of(17 * MIB + 5));
    for (source, name) in [(&small, "a"), (&large, "b")] {
        let key = format!("r/{name}/audio.ogg");
        source.put(&store, &key).await.unwrap();
        // The same again counts as kept, as after an answer that was lost.
        source.put(&store, &key).await.unwrap();
        assert!(read(&store, &key, None).await == source.bytes);
        let part = read(&store, &key, Some(65_530..65_540)).await;
        assert_eq!(part, source.bytes[65_530..65_540]);
    }
    let other = Source::of(10);
    let refused = other.put(&store, "r/a/audio.ogg").await;
    assert!(matches!(refused, Err(StoreError::Exists)), "{refused:?}");
    assert!(read(&store, "r/a/audio.ogg", None).await == small.bytes);

    let page = store.list("r", None, 1).await.unwrap();
    assert_eq!((page.names, page.more), (vec!["a".to_owned()], true));
    let page = store.list("r", Some("a"), 9).await.unwrap();
    assert_eq!((page.names, page.more), (vec!["b".to_owned()], false));
    store.delete("r/a/audio.ogg").await.unwrap();
    store.delete("r/a/audio.ogg").await.unwrap();
    assert!(matches!(
        store.get("r/a/audio.ogg", None).await.err(),
        Some(StoreError::NotFound)
    ));
}

/// Between the look at what is there and the upload somebody else may be quicker: then the server's condition counts.
#[actix_web::test]
async fn two_that_write_one_key_at_once_never_overwrite_each_other() {
    let moto = Moto::with_bucket().await;
    let store = store(&moto.address).await;
    let sources = [Source::of(1_000), Source::of(1_001)];
    let (one, other) = tokio::join!(sources[0].put(&store, "k/a"), sources[1].put(&store, "k/a"));
    let (winner, refused) = if one.is_ok() { (0, other) } else { (1, one) };
    assert!(matches!(refused, Err(StoreError::Exists)), "{refused:?}");
    assert!(read(&store, "k/a", None).await == sources[winner].bytes);
}

#[actix_web::test]
async fn an_upload_that_was_cut_goes_on_with_what_is_missing() {
    let server = S3sFs::start();
    let wire = Wire::to(&server.address).await;
    let source = Source::of(25 * MIB);
    // Cut within the third part, for good.
    wire.cut_after(18 * MIB);
    let cut = source
        .put(&store(&wire.address).await, "r/a/audio.ogg")
        .await;
    assert!(
        matches!(cut, Err(StoreError::Unavailable { .. })),
        "{cut:?}"
    );
    let progress = std::fs::read_to_string(source.folder.path().join("progress")).unwrap();
    assert!(!progress.contains(SECRET_KEY), "{progress}");
    // The wire holds again; the store is one of another process.
    wire.mend();
    let again = store(&wire.address).await;
    source.put(&again, "r/a/audio.ogg").await.unwrap();
    assert_eq!(wire.parts(), [3, 4]);
    assert!(read(&again, "r/a/audio.ogg", None).await == source.bytes);
}

/// A disk that is full has no room for notes.
#[actix_web::test]
async fn an_upload_whose_progress_cannot_be_noted_arrives_all_the_same() {
    let server = S3sFs::start();
    let store = store(&server.address).await;
    let source = Source::of(9 * MIB);
    std::fs::create_dir(source.folder.path().join("progress")).unwrap();
    source.put(&store, "r/a/audio.ogg").await.unwrap();
    assert!(read(&store, "r/a/audio.ogg", None).await == source.bytes);
}

#[actix_web::test]
async fn a_store_that_asks_for_patience_or_is_gone_is_away() {
    let mut server = S3sFs::start();
    let wire = Wire::to(&server.address).await;
    let source = Source::of(100);
    let through = store(&wire.address).await;

    wire.faults.slow_down.store(1_000, SeqCst);
    let slow = source.put(&through, "r/a/x").await;
    let Err(StoreError::Unavailable {
        retry_after: Some(wait),
        ..
    }) = slow
    else {
        panic!("{slow:?}");
    };
    assert_eq!(wait, Duration::from_secs(7));
    wire.faults.slow_down.store(0, SeqCst);
    source.put(&through, "r/a/x").await.unwrap();

    server.kill();
    let away = source.put(&through, "r/a/y").await;
    assert!(
        matches!(away, Err(StoreError::Unavailable { .. })),
        "{away:?}"
    );
    server.start_again();
    source.put(&through, "r/a/y").await.unwrap();
}

#[actix_web::test]
async fn a_bucket_that_has_vanished_is_away_and_said_by_its_name() {
    let moto = Moto::with_bucket().await;
    let store = store(&moto.address).await;
    let source = Source::of(100);
    source.put(&store, "r/a/x").await.unwrap();
    let reset = format!("http://{}/moto-api/reset", moto.address);
    let reset = client().post(reset).send().await.unwrap();
    assert!(reset.status().is_success());
    for error in [
        store.head("r/a/x").await.map(drop),
        source.put(&store, "r/a/x").await,
        store.get("r/a/x", None).await.map(drop),
        store.list("r", None, 1).await.map(drop),
    ] {
        let Err(StoreError::Unavailable { message, .. }) = error else {
            panic!("{error:?}");
        };
        assert!(message.contains("bucket"), "{message}");
    }
}

#[actix_web::test]
async fn credentials_that_the_store_does_not_know_are_denied_and_not_shown() {
    let server = S3sFs::start();
    for (access, secret) in [("another key", SECRET_KEY), (ACCESS_KEY, "another secret")] {
        let keys = [
            ("recording.s3_access_key", access),
            ("recording.s3_secret_key", secret),
        ];
        let settings = settings(&server.address, &keys);
        let authorities = Authorities::default();
        let store = S3Store::open(&settings.recording, &authorities).await;
        let denied = Source::of(100).put(&store.unwrap(), "r/a/x").await;
        let Err(StoreError::Denied(message)) = denied else {
            panic!("{denied:?}");
        };
        assert!(!message.contains(secret), "{message}");
    }
}
