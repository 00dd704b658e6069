//! Sessions whose recordings go to S3: they arrive whole whatever happens to the store, to the way there, or to our own
//! process.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vivavoce::audio::Channels;
use vivavoce::audio::ogg::{OggOpusWriter, OpusHead, PAGE_TIME};

use super::{ACCESS_KEY, BUCKET, MIB, S3sFs, SECRET_KEY, Wire};
use crate::harness::{PATIENCE, Server, client, eventually, ffprobe};
use crate::session::recorded::{left_behind, recorded, stored};

/// The settings of a server that records into the bucket behind this address.
pub fn into(address: &str) -> Vec<(&'static str, String)> {
    let fixed = [
        ("NULL_ENABLED", "true"),
        ("RECORDING_BACKEND", "s3"),
        ("RECORDING_S3_BUCKET", BUCKET),
        ("RECORDING_S3_ACCESS_KEY", ACCESS_KEY),
        ("RECORDING_S3_SECRET_KEY", SECRET_KEY),
        ("RECORDING_S3_FORCE_PATH_STYLE", "true"),
    ];
    let mut all: Vec<_> = fixed.map(|(name, value)| (name, value.to_owned())).into();
    all.push(("RECORDING_S3_ENDPOINT", format!("http://{address}")));
    all
}

/// The settings as a server takes them.
pub fn borrowed<'a>(settings: &'a [(&'static str, String)]) -> Vec<(&'static str, &'a str)> {
    settings
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect()
}

#[actix_web::test]
async fn what_was_said_on_a_socket_is_in_the_bucket_and_given_back_in_parts() {
    let s3 = S3sFs::start();
    let settings = into(&s3.address);
    let server = Server::start_with(&borrowed(&settings));
    recorded(&server, "talk").await;
    let whole = stored(&server, "talk").await;

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.ogg");
    std::fs::write(&file, &whole).unwrap();
    assert_eq!(ffprobe(&file, &[])["streams"][0]["codec_name"], "opus");
    assert!(std::fs::read(s3.object("recordings/talk/audio.ogg")).unwrap() == whole);
    let metadata = std::fs::read(s3.object("recordings/talk/metadata.json")).unwrap();
    let metadata: Value = serde_json::from_slice(&metadata).unwrap();
    assert_eq!(
        (&metadata["size"], &metadata["complete"]),
        (&json!(whole.len()), &json!(true))
    );

    let url = format!("{}/recording/talk", server.url);
    let part = client().get(&url).header("range", "bytes=100-299");
    let part = part.send().await.unwrap();
    assert_eq!(part.status(), 206);
    assert_eq!(
        part.headers()["content-range"],
        format!("bytes 100-299/{}", whole.len())
    );
    assert_eq!(part.bytes().await.unwrap(), whole[100..300]);
    let end = client().get(&url).header("range", "bytes=-50");
    assert_eq!(
        end.send().await.unwrap().bytes().await.unwrap(),
        whole[whole.len() - 50..]
    );
    let beyond = client()
        .get(&url)
        .header("range", format!("bytes={}-", whole.len()));
    assert_eq!(beyond.send().await.unwrap().status(), 416);

    let lines = client()
        .get(format!("{url}/transcript"))
        .send()
        .await
        .unwrap();
    assert_eq!(lines.headers()["content-type"], "application/x-ndjson");
    let kept = std::fs::read(s3.object("recordings/talk/transcript.jsonl")).unwrap();
    assert_eq!(lines.bytes().await.unwrap(), kept);
    let said = kept
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty());
    let said: Vec<Value> = said
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert!(
        said.iter()
            .any(|line| line["type"] == "said" && line["text"] == "Hello."),
        "{said:?}"
    );

    let list: Value = client()
        .get(format!("{}/recordings", server.url))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(list["recordings"], json!([metadata]));
    assert_eq!(client().delete(&url).send().await.unwrap().status(), 200);
    assert_eq!(client().get(&url).send().await.unwrap().status(), 404);
    assert!(!s3.object("recordings/talk/audio.ogg").exists());
}

#[actix_web::test]
async fn a_store_that_dies_gets_what_was_recorded_meanwhile_also_from_another_process() {
    let mut s3 = S3sFs::start();
    let settings = into(&s3.address);
    let server = Server::start_with(&borrowed(&settings));
    recorded(&server, "before").await;
    stored(&server, "before").await;
    s3.kill();
    recorded(&server, "meanwhile").await;
    let server = Server::start_in(server.into_data(), &borrowed(&settings));
    recorded(&server, "later").await;
    let answer = client()
        .get(format!("{}/recording/before", server.url))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 503);
    assert!(answer.headers().contains_key("retry-after"));
    s3.start_again();
    for name in ["before", "meanwhile", "later"] {
        assert!(!stored(&server, name).await.is_empty());
    }
}

#[actix_web::test]
async fn a_bucket_that_vanished_gets_what_waits_when_it_is_made_again() {
    let s3 = S3sFs::start();
    let settings = into(&s3.address);
    let server = Server::start_with(&borrowed(&settings));
    std::fs::remove_dir_all(s3.folder.path().join(BUCKET)).unwrap();
    recorded(&server, "homeless").await;
    let metrics = format!("{}/metrics", server.url);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let told = client()
            .get(&metrics)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        let failed = told.lines().any(|line| {
            line.starts_with("vivavoce_recording_upload_failures_total") && !line.ends_with(" 0")
        });
        if failed {
            break;
        }
        assert!(Instant::now() < deadline, "{told}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    std::fs::create_dir(s3.folder.path().join(BUCKET)).unwrap();
    assert!(!stored(&server, "homeless").await.is_empty());
}

#[actix_web::test]
async fn wrong_credentials_keep_what_was_recorded_until_somebody_has_changed_them() {
    let s3 = S3sFs::start();
    let mut settings = into(&s3.address);
    let wrong = "a secret that is wrong";
    settings.push(("RECORDING_S3_SECRET_KEY", wrong.to_owned()));
    let server = Server::start_logged(&borrowed(&settings));
    for name in ["one", "two"] {
        recorded(&server, name).await;
    }
    // Sessions are told that the store refuses, too, each by a warning; the upload says it once.
    eventually("nobody says that recordings wait", || {
        server
            .log_so_far()
            .contains("recordings wait on local disk")
    })
    .await;
    let log = server.log_so_far();
    assert!(!log.contains(wrong), "{log}");
    assert_eq!(log.matches(" ERROR ").count(), 1, "{log}");
    settings.pop();
    let server = Server::start_in(server.into_data(), &borrowed(&settings));
    for name in ["one", "two"] {
        assert!(!stored(&server, name).await.is_empty());
    }
}

/// A stream of at least so many bytes, with the frames that it has at 48 kHz.
fn long_stream(bytes: usize) -> Vec<u8> {
    let head = OpusHead {
        channels: Channels::Mono,
        pre_skip: 312,
        input_hz: 16_000,
    };
    let mut random = fastrand::Rng::with_seed(25);
    let mut writer = OggOpusWriter::new(head, "a test", &[], 1, PAGE_TIME).unwrap();
    let mut stream = Vec::new();
    while stream.len() < bytes {
        // One frame of 20 ms in CELT, wide band (RFC 6716, section 3.1), whose content nobody decodes.
        let packet: Vec<u8> = std::iter::once(31 << 3)
            .chain(std::iter::repeat_with(|| random.u8(..)).take(1_200))
            .collect();
        stream.extend_from_slice(&writer.push(&packet).unwrap());
    }
    stream.extend_from_slice(&writer.finish(None));
    stream
}

#[actix_web::test]
async fn a_server_that_is_killed_in_the_middle_of_an_upload_sends_only_what_is_missing() {
    let s3 = S3sFs::start();
    let wire = Wire::to(&s3.address).await;
    let settings = into(&wire.address);
    let data = tempfile::tempdir().unwrap();
    let sound = long_stream(25 * MIB);
    left_behind(
        &data.path().join("recordings/.journal/long"),
        "long",
        &sound,
    );
    // Two parts of 8 MiB arrive, the third one stands still.
    wire.faults.stalls.store(true, SeqCst);
    wire.cut_after(18 * MIB);
    let server = Server::start_in(data, &borrowed(&settings));
    eventually("the third part is not begun", || wire.parts() == [1, 2, 3]).await;
    let data = server.kill();
    wire.mend();
    let server = Server::start_in(data, &borrowed(&settings));
    assert!(stored(&server, "long").await == sound);
    assert_eq!(wire.parts(), [3, 4]);
    let journals = server.data.path().join("recordings/.journal");
    eventually("the journal stays", || {
        std::fs::read_dir(&journals).unwrap().count() == 0
    })
    .await;
}
