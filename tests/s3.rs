//! The S3 store against a server that nobody here wrote (moto), with a wire between them that can be cut and can answer
//! in the server's place.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;

use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;
use vivavoce::config::{Config, Settings};
use vivavoce::outgoing::Authorities;
use vivavoce::providers::s3::S3Store;
use vivavoce::providers::{RecordingStore, StoreError, StoredFile};

use crate::harness::*;

const BUCKET: &str = "recordings-of-tests";
const MIB: usize = 1 << 20;

/// The server. Dropping it kills it.
struct Moto {
    child: Child,
    address: String,
}

impl Moto {
    fn start() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut child = Command::new(root.join(".clients/python/bin/moto_server"))
            .args(["-H", "127.0.0.1", "-p", "0"])
            // Half of the tests are about credentials; it believes all but those that it is told not to.
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let address = lines
            .find_map(|line| Some(line.split_once("Running on http://")?.1.trim().to_owned()))
            .unwrap();
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    async fn request(&self, method: reqwest::Method, path: &str) -> reqwest::Response {
        let url = format!("http://{}/{path}", self.address);
        client().request(method, url).send().await.unwrap()
    }

    async fn with_bucket() -> Self {
        let moto = Self::start();
        let made = moto.request(reqwest::Method::PUT, BUCKET).await;
        assert!(made.status().is_success());
        moto
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the wire does.
#[derive(Default)]
struct Faults {
    /// Bytes towards the server until it is cut; below 0 it is never.
    cut_after: AtomicI64,
    /// So many connections are answered 503 SlowDown.
    slow_down: AtomicI64,
}

/// A wire to the server.
struct Wire {
    address: String,
    faults: Arc<Faults>,
    _task: AbortOnDropHandle<()>,
}

impl Wire {
    async fn to(moto: &Moto) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let faults = Arc::new(Faults::default());
        faults.cut_after.store(-1, SeqCst);
        let (server, behind) = (moto.address.clone(), Arc::clone(&faults));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server.clone(), Arc::clone(&behind)));
            }
        });
        Self {
            address,
            faults,
            _task: AbortOnDropHandle::new(task),
        }
    }
}

async fn carry(mut client: TcpStream, server: String, faults: Arc<Faults>) {
    if faults.slow_down.fetch_sub(1, SeqCst) > 0 {
        let body = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
        let mut head = [0; 4096];
        let _ = client.read(&mut head).await;
        let answer = format!(
            "HTTP/1.1 503 Slow Down\r\nretry-after: 7\r\nconnection: close\r\ncontent-type: application/xml\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let _ = client.write_all(answer.as_bytes()).await;
        // Whatever else comes is read, so that the answer is not lost to a reset.
        let _ = tokio::time::timeout(Duration::from_secs(5), async {
            let mut rest = [0; 65_536];
            while client.read(&mut rest).await.is_ok_and(|read| read > 0) {}
        })
        .await;
        return;
    }
    let Ok(mut upstream) = TcpStream::connect(server).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = upstream.split();
    let up = async {
        let mut piece = vec![0; 65_536];
        while let Ok(read @ 1..) = from_client.read(&mut piece).await {
            let left = faults.cut_after.load(SeqCst);
            if left >= 0 {
                if left < read as i64 {
                    return;
                }
                faults.cut_after.fetch_sub(read as i64, SeqCst);
            }
            if to_server.write_all(&piece[..read]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = up => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
}

fn settings(address: &str, more: &[(&str, &str)]) -> Settings {
    let endpoint = format!("http://{address}");
    let flags = [
        ("recording.backend", "s3"),
        ("recording.s3_bucket", BUCKET),
        ("recording.s3_endpoint", &endpoint),
        ("recording.s3_region", "eu-central-1"),
        ("recording.s3_access_key", "key"),
        ("recording.s3_secret_key", "a secret key"),
        ("recording.s3_force_path_style", "true"),
    ];
    let flags = flags.iter().chain(more);
    let flags: Vec<_> = flags
        .map(|&(key, text)| (key.to_owned(), text.to_owned()))
        .collect();
    Config::load(&flags, None).unwrap().settings
}

async fn store(address: &str) -> S3Store {
    let settings = settings(address, &[]);
    S3Store::open(&settings.recording, &Authorities::default())
        .await
        .unwrap()
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
    let moto = Moto::with_bucket().await;
    let store = store(&moto.address).await;
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
    let moto = Moto::with_bucket().await;
    let wire = Wire::to(&moto).await;
    let source = Source::of(25 * MIB);
    // Cut within the third part, for good.
    wire.faults.cut_after.store(18 * MIB as i64, SeqCst);
    let cut = source
        .put(&store(&wire.address).await, "r/a/audio.ogg")
        .await;
    assert!(
        matches!(cut, Err(StoreError::Unavailable { .. })),
        "{cut:?}"
    );
    let progress = std::fs::read_to_string(source.folder.path().join("progress")).unwrap();
    assert!(!progress.contains("secret"), "{progress}");
    // The wire holds again, for less than the whole file; the store is one of another process.
    wire.faults.cut_after.store(12 * MIB as i64, SeqCst);
    let again = store(&wire.address).await;
    source.put(&again, "r/a/audio.ogg").await.unwrap();
    assert!(read(&again, "r/a/audio.ogg", None).await == source.bytes);
}

#[actix_web::test]
async fn what_the_store_says_is_understood() {
    let moto = Moto::with_bucket().await;
    let wire = Wire::to(&moto).await;
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

    let gone = moto
        .request(reqwest::Method::DELETE, &format!("{BUCKET}/r/a/x"))
        .await;
    assert!(gone.status().is_success());
    let gone = moto.request(reqwest::Method::DELETE, BUCKET).await;
    assert!(gone.status().is_success());
    for error in [
        through.head("r/a/x").await.map(drop),
        source.put(&through, "r/a/x").await,
        through.get("r/a/x", None).await.map(drop),
        through.list("r", None, 1).await.map(drop),
    ] {
        let Err(StoreError::Unavailable { message, .. }) = error else {
            panic!("{error:?}");
        };
        assert!(message.contains("bucket"), "{message}");
    }

    drop(moto);
    let away = source.put(&through, "r/a/x").await;
    assert!(
        matches!(away, Err(StoreError::Unavailable { .. })),
        "{away:?}"
    );
}

#[actix_web::test]
async fn credentials_that_the_store_does_not_know_are_denied_and_not_shown() {
    let moto = Moto::with_bucket().await;
    // From now on it believes nobody whom it does not know.
    let url = format!("http://{}/moto-api/reset-auth", moto.address);
    let strict = client().post(url).body("0").send().await.unwrap();
    assert!(strict.status().is_success());
    let denied = Source::of(100)
        .put(&store(&moto.address).await, "r/a/x")
        .await;
    let Err(StoreError::Denied(message)) = denied else {
        panic!("{denied:?}");
    };
    assert!(!message.contains("a secret key"), "{message}");
}
