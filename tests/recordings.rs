//! Recordings: what was said is kept, in step, whatever happens to the process. The files are judged by other people's
//! programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vivavoce::audio::{AudioFormat, Encoding, Pcm, SampleRate, linear16};
use vivavoce::emulators::tone_words::speak_with_gap;

use crate::auth::{HOUSE, OF_A, OF_B, with_secrets};
use crate::harness::{Server, assert_error, client, ffprobe, run, stdout, which};
use crate::session::client::{Session, with};
use crate::session::sound::{WIDE, chopped, encoded};
use crate::vendors::{Backed, numbers_in, scripted};

/// The providers that cost nothing, recorded.
const NULL: (&str, &str) = ("NULL_ENABLED", "true");

fn recorded(stream_id: &str, fields: Value) -> Value {
    let config = json!({
        "type": "config", "stream_id": stream_id, "recording": true,
        "stt_config": {"provider": "null"}, "tts_config": {"provider": "null", "model": ""},
    });
    with(config, fields)
}

/// 16 kHz sound of so many milliseconds: 100 ms of tone at the beginning of each second.
fn bursts(ms: usize) -> Pcm {
    let sample = |n: usize| {
        let tone = n % 16_000 < 1_600;
        let wave = (n as f64 * 440.0 * std::f64::consts::TAU / 16_000.0).sin();
        if tone { (wave * 12_000.0) as i16 } else { 0 }
    };
    Pcm::new(WIDE.layout, (0..ms * 16).map(sample).collect())
}

/// What `GET /recording/{stream_id}` gives once the recording is stored, in a file.
async fn stored(server: &Server, stream_id: &str) -> PathBuf {
    let url = format!("{}/recording/{stream_id}", server.url);
    let deadline = Instant::now() + crate::harness::PATIENCE;
    loop {
        let response = client().get(&url).send().await.unwrap();
        if response.status() == 200 {
            let file = server.data.path().join(format!("{stream_id}.got.ogg"));
            std::fs::write(&file, response.bytes().await.unwrap()).unwrap();
            return file;
        }
        assert_eq!(response.status(), 404);
        assert!(Instant::now() < deadline, "{stream_id} is never stored");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Neither program has anything to complain about; the seconds that they find.
pub fn judged(file: &Path) -> f64 {
    let probed = ffprobe(file, &[]);
    assert_eq!(probed["streams"][0]["codec_name"], "opus");
    let said = Command::new(which("opusinfo")).arg(file).output().unwrap();
    let text = stdout(&said) + &crate::harness::stderr(&said);
    let lower = text.to_lowercase();
    let complains = ["warning", "error", "hole", "negative"]
        .iter()
        .any(|word| lower.contains(word));
    assert!(said.status.success() && !complains, "{text}");
    let seconds = probed["format"]["duration"].as_str().unwrap();
    seconds.parse().unwrap()
}

/// The two sides, at 48 kHz.
pub fn sides(file: &Path) -> [Vec<i16>; 2] {
    let arguments = [
        "-v",
        "error",
        "-i",
        file.to_str().unwrap(),
        "-f",
        "s16le",
        "-ac",
        "2",
        "-ar",
        "48000",
        "-",
    ];
    let samples = linear16::samples(&run("ffmpeg", arguments).stdout);
    [0, 1].map(|side| samples.iter().skip(side).step_by(2).copied().collect())
}

/// Where a side becomes loud after at least 50 ms of silence, in milliseconds.
fn onsets(side: &[i16]) -> Vec<usize> {
    let mut onsets = Vec::new();
    let mut quiet = 2_400;
    for (n, sample) in side.iter().enumerate() {
        if sample.unsigned_abs() > 2_000 {
            if quiet >= 2_400 {
                onsets.push(n / 48);
            }
            quiet = 0;
        } else {
            quiet += 1;
        }
    }
    onsets
}

fn metadata(server: &Server, stream_id: &str) -> Value {
    let file = server
        .data
        .path()
        .join("recordings")
        .join(stream_id)
        .join("metadata.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

#[tokio::test]
async fn both_sides_of_a_session_are_kept_with_what_was_said() {
    let server = Server::start_with(&[NULL]);
    let mut session = Session::open(&server, recorded("talk", json!({}))).await;
    let not_yet = client()
        .get(format!("{}/recording/talk", server.url))
        .send()
        .await
        .unwrap();
    assert!(not_yet.headers().contains_key("retry-after"));
    assert_error(not_yet, 404, "RECORDING_NOT_FOUND", "not finished").await;
    session.hear(chopped(&bursts(2_500), 640)).await;
    session.speak("one", "This is said at the end.").await;
    session.completion_of("one").await;
    session.close().await;

    let file = stored(&server, "talk").await;
    let seconds = judged(&file);
    let [left, right] = sides(&file);
    let heard = onsets(&left);
    assert_eq!(heard.len(), 3, "{heard:?}");
    let said = onsets(&right);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0] >= heard[2], "{said:?} {heard:?}");
    let metadata = metadata(&server, "talk");
    assert_eq!(metadata["stream_id"], "talk");
    assert_eq!(metadata["complete"], true);
    assert_eq!(metadata["channels"], 2);
    assert_eq!(metadata["size"], std::fs::metadata(&file).unwrap().len());
    let told = metadata["duration_ms"].as_f64().unwrap() / 1_000.0;
    assert!((told - seconds).abs() < 0.01, "{told} {seconds}");
    let transcript = server.data.path().join("recordings/talk/transcript.jsonl");
    let transcript = std::fs::read_to_string(transcript).unwrap();
    let lines: Vec<Value> = transcript
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let said = lines.iter().find(|line| line["type"] == "said").unwrap();
    assert_eq!(
        (&said["id"], &said["text"]),
        (&json!("one"), &json!("This is said at the end."))
    );
    assert_eq!(said["whole"], true);
    // Nothing is left of the journal, and the name is taken for ever.
    let journals = std::fs::read_dir(server.data.path().join("recordings/.journal")).unwrap();
    assert_eq!(journals.count(), 0);
    let mut again = Session::connect(&server).await;
    again.send(recorded("talk", json!({}))).await;
    again.refused("stream_id_in_use").await;
    // Without a recording the name is free.
    again
        .send(recorded("talk", json!({"recording": false})))
        .await;
    again.next("ready").await;
}

#[tokio::test]
async fn a_second_config_turns_recording_on_and_off() {
    let server = Server::start_with(&[NULL, ("RECORDING_LAYOUT", "mono")]);
    let mut session = Session::open(&server, recorded("late", json!({"recording": false}))).await;
    session.hear(chopped(&bursts(200), 640)).await;
    session.send(recorded("late", json!({}))).await;
    session.next("ready").await;
    session.hear(chopped(&bursts(500), 640)).await;
    session
        .send(recorded("late", json!({"recording": false})))
        .await;
    session.next("ready").await;
    let file = stored(&server, "late").await;
    judged(&file);
    assert_eq!(metadata(&server, "late")["channels"], 1);
    session.send(recorded("late", json!({}))).await;
    session.refused("stream_id_in_use").await;
    session.close().await;
}

#[tokio::test]
async fn what_is_said_in_a_pause_of_the_recording_is_nowhere_and_everything_keeps_its_place() {
    let server = Server::start_with(&[NULL]);
    let mut session = Session::open(&server, recorded("paused", json!({}))).await;
    // A burst at the beginning of each of six seconds.
    let hearing = session.hear(chopped(&bursts(6_000), 640));
    let pausing = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        session.command("pause_recording").await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        session.command("resume_recording").await;
    };
    tokio::join!(hearing, pausing);
    let paused = session.next("recording_state").await;
    assert_eq!(paused.text("state"), "paused");
    let resumed = session.next("recording_state").await;
    assert_eq!(resumed.text("state"), "recording");
    let between = resumed.time("position_ms") - paused.time("position_ms");
    assert!(
        between.abs_diff(Duration::from_secs(3)) < Duration::from_millis(500),
        "{between:?}"
    );
    session.close().await;
    let file = stored(&server, "paused").await;
    assert!(judged(&file) > 5.8);
    let [heard, _] = sides(&file);
    // Those at 2, 3 and 4 s are not there; that at 5 s is where it was.
    let onsets = onsets(&heard);
    let [first, second, last] = onsets.as_slice() else {
        panic!("{onsets:?}");
    };
    assert!(second.abs_diff(first + 1_000) < 100, "{onsets:?}");
    assert!(last.abs_diff(first + 5_000) < 100, "{onsets:?}");
    let paused = 48 * (first + 1_800)..48 * (first + 4_200);
    let loudest = heard[paused]
        .iter()
        .map(|sample| sample.unsigned_abs())
        .max();
    assert!(loudest.unwrap() < 200, "{loudest:?}");
    let mut unrecorded = Session::open(&server, recorded("not", json!({"recording": false}))).await;
    unrecorded.command("pause_recording").await;
    unrecorded.refused("recording_unavailable").await;
}

/// The packets of the sound in an Ogg file, by nothing of the server's: lacing values, and the bytes that they count.
fn packets(file: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).unwrap();
    let (mut packets, mut packet, mut at) = (Vec::new(), Vec::new(), 0);
    while let Some(page) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        assert_eq!(&page[..4], b"OggS");
        let lacing = &page[27..27 + usize::from(page[26])];
        let mut body = 27 + lacing.len();
        for value in lacing {
            packet.extend_from_slice(&page[body..body + usize::from(*value)]);
            body += usize::from(*value);
            if *value < 255 {
                packets.push(std::mem::take(&mut packet));
            }
        }
        at += body;
    }
    packets.split_off(2)
}

fn is_silent(packet: &[u8]) -> bool {
    packet.len() == 3 && packet.ends_with(&[0xFF, 0xFE])
}

#[tokio::test]
async fn opus_of_one_source_is_recorded_as_it_came() {
    let server = Server::start_with(&[NULL, ("RECORDING_LAYOUT", "mono")]);
    let format = AudioFormat::mono(Encoding::Opus, SampleRate::HZ_48000);
    // A tone that rises: no packet is like another, and none is silent.
    let rising = |n: usize| {
        let seconds = n as f64 / 16_000.0;
        ((seconds * (300.0 + 40.0 * seconds) * std::f64::consts::TAU).sin() * 12_000.0) as i16
    };
    let sound = Pcm::new(WIDE.layout, (0..32_000).map(rising).collect());
    let sound = encoded(&sound, format).await;
    let sent: Vec<_> = sound.iter().map(|piece| piece.data.to_vec()).collect();
    let stt = json!({"provider": "null", "encoding": "opus", "sample_rate": 48_000});
    let config = |name| recorded(name, json!({"stt_config": stt}));
    let listening = async {
        let session = Session::open(&server, config("heard")).await;
        let (first, second) = sound.split_at(sound.len() / 2);
        session.hear(first.to_vec()).await;
        // A client that sends nothing for a while.
        tokio::time::sleep(Duration::from_millis(700)).await;
        session.hear(second.to_vec()).await;
        session.close().await;
        let file = stored(&server, "heard").await;
        let seconds = judged(&file);
        assert!(seconds >= 2.6, "{seconds}");
        let found = packets(&file);
        let passed = found.iter().filter(|packet| sent.contains(packet));
        assert!(passed.eq(&sent), "packets are missing or out of order");
        let of_ours = found.iter().filter(|packet| !sent.contains(packet));
        // At most one that is not silent ends the stream.
        assert!(of_ours.filter(|packet| !is_silent(packet)).count() <= 1);
        assert_eq!(metadata(&server, "heard")["channels"], 1);
    };
    // Once something is played both are mixed, in the same file.
    let talking = async {
        let mut session = Session::open(&server, config("talked")).await;
        session.hear(sound.clone()).await;
        session.speak("one", "This is said at the end.").await;
        session.completion_of("one").await;
        session.close().await;
        let file = stored(&server, "talked").await;
        judged(&file);
        let found = packets(&file);
        assert!(sent[..30].iter().all(|packet| found.contains(packet)));
        let mixed = found.iter().filter(|packet| !sent.contains(packet));
        assert!(mixed.filter(|packet| !is_silent(packet)).count() > 25);
    };
    tokio::join!(listening, talking);
}

/// `GET /recordings` gives a, b and c, two at a time.
async fn listed_in_pages(server: &Server) {
    let list = |query: &str| {
        client()
            .get(format!("{}/recordings{query}", server.url))
            .send()
    };
    let names = |page: &Value| -> Vec<String> {
        let all = page["recordings"].as_array().unwrap();
        all.iter()
            .map(|one| one["stream_id"].as_str().unwrap().to_owned())
            .collect()
    };
    let page: Value = list("?limit=2").await.unwrap().json().await.unwrap();
    assert_eq!(
        (names(&page), &page["next"]),
        (vec!["a".to_owned(), "b".to_owned()], &json!("b"))
    );
    let page: Value = list("?limit=2&after=b")
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(
        (names(&page), &page["next"]),
        (vec!["c".to_owned()], &Value::Null)
    );
}

#[tokio::test]
async fn a_recording_is_given_in_parts_listed_and_deleted() {
    let server = Server::start_with(&[NULL]);
    for name in ["a", "b", "c"] {
        let session = Session::open(&server, recorded(name, json!({}))).await;
        session.hear(chopped(&bursts(300), 640)).await;
        session.close().await;
    }
    let mut whole = Vec::new();
    for name in ["a", "b", "c"] {
        whole = std::fs::read(stored(&server, name).await).unwrap();
    }
    let url = format!("{}/recording/c", server.url);
    let ask = |name: &'static str, value: String| client().get(&url).header(name, value).send();
    let all = client().get(&url).send().await.unwrap();
    let headers = all.headers().clone();
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    assert_eq!(header("content-type"), "audio/ogg");
    assert_eq!(header("content-length"), whole.len().to_string());
    assert_eq!(
        header("content-disposition"),
        "attachment; filename=\"c.ogg\""
    );
    assert_eq!(header("accept-ranges"), "bytes");
    let tag = header("etag");
    let head = client().head(&url).send().await.unwrap();
    assert_eq!(
        (head.status().as_u16(), &head.headers()["content-length"]),
        (200, &headers["content-length"])
    );

    let part = ask("range", "bytes=100-199".to_owned()).await.unwrap();
    assert_eq!(part.status(), 206);
    assert_eq!(
        part.headers()["content-range"],
        format!("bytes 100-199/{}", whole.len())
    );
    assert_eq!(part.bytes().await.unwrap(), whole[100..200]);
    let end = ask("range", "bytes=-50".to_owned()).await.unwrap();
    assert_eq!(end.bytes().await.unwrap(), whole[whole.len() - 50..]);
    let beyond = ask("range", format!("bytes={}-", whole.len()))
        .await
        .unwrap();
    assert_eq!(beyond.status(), 416);
    assert_eq!(
        beyond.headers()["content-range"],
        format!("bytes */{}", whole.len())
    );
    assert_eq!(
        ask("if-none-match", tag.clone()).await.unwrap().status(),
        304
    );
    assert_eq!(
        ask("if-match", "\"other\"".to_owned())
            .await
            .unwrap()
            .status(),
        412
    );
    let both = |if_range: String| {
        client()
            .get(&url)
            .header("range", "bytes=0-9")
            .header("if-range", if_range)
            .send()
    };
    assert_eq!(both(tag).await.unwrap().status(), 206);
    assert_eq!(both("\"other\"".to_owned()).await.unwrap().status(), 200);

    listed_in_pages(&server).await;
    let deleted = client().delete(&url).send().await.unwrap();
    let deleted: Value = deleted.json().await.unwrap();
    assert_eq!(deleted, json!({"status": "deleted", "stream_id": "c"}));
    assert_error(
        client().get(&url).send().await.unwrap(),
        404,
        "RECORDING_NOT_FOUND",
        "",
    )
    .await;
    assert!(!server.data.path().join("recordings/c").exists());
}

/// 500 MB, nearly all of them a hole in a file.
#[tokio::test]
async fn somebody_who_reads_slowly_costs_no_memory() {
    const SIZE: u64 = 500 << 20;
    let server = Server::start_with(&[NULL]);
    let folder = server.data.path().join("recordings/large");
    std::fs::create_dir_all(&folder).unwrap();
    let audio = std::fs::File::create(folder.join("audio.ogg")).unwrap();
    audio.set_len(SIZE).unwrap();
    let metadata = json!({
        "stream_id": "large", "started_at": 0, "duration_ms": 1, "size": SIZE, "sha256": "", "channels": 2,
        "participants": [], "complete": true,
    });
    std::fs::write(folder.join("metadata.json"), metadata.to_string()).unwrap();
    let url = format!("{}/recording/large", server.url);
    let before = crate::limits::resident(&server);
    let mut readers = Vec::new();
    for _ in 0..4 {
        readers.push(client().get(&url).send().await.unwrap());
    }
    let mut most = 0;
    for _ in 0..200 {
        for reader in &mut readers {
            assert!(!reader.chunk().await.unwrap().unwrap().is_empty());
        }
        most = most.max(crate::limits::resident(&server).saturating_sub(before));
    }
    assert!(most < 32 << 20, "{most} bytes for four readers");
    // The rest comes as well.
    let mut last = readers.pop().unwrap();
    assert_eq!(last.headers()["content-length"], SIZE.to_string());
    let rest = last.content_length().unwrap();
    drop(readers);
    let mut read = 0;
    for number in 0.. {
        let Some(piece) = last.chunk().await.unwrap() else {
            break;
        };
        read += piece.len() as u64;
        if number % 100 == 0 {
            most = most.max(crate::limits::resident(&server).saturating_sub(before));
        }
    }
    assert_eq!(read, rest);
    assert!(most < 32 << 20, "{most} bytes for one reader");
}

#[tokio::test]
async fn nobody_learns_of_the_recordings_of_another_tenant() {
    let server = with_secrets(&[]);
    for (token, name, place) in [
        (Some(OF_A), "of-a", "%61/of-a"),
        (Some(OF_B), "of-b", "%62/of-b"),
        (Some(HOUSE), "of-nobody", "of-nobody"),
    ] {
        let session = Session::connect_as(&server, token).await;
        session.send(recorded(name, json!({}))).await;
        let mut session = session;
        session.next("ready").await;
        if name == "of-a" {
            // Neither while it goes on nor later.
            let asked = client()
                .get(format!("{}/recording/of-a", server.url))
                .bearer_auth(OF_B);
            let answer = asked.send().await.unwrap();
            assert!(!answer.headers().contains_key("retry-after"));
            assert_eq!(answer.status(), 404);
        }
        session.hear(chopped(&bursts(100), 640)).await;
        session.close().await;
        let file = server
            .data
            .path()
            .join("recordings")
            .join(place)
            .join("metadata.json");
        crate::harness::eventually("it is stored", || file.exists()).await;
    }
    for (token, own) in [(OF_A, "of-a"), (OF_B, "of-b")] {
        let page = client()
            .get(format!("{}/recordings", server.url))
            .bearer_auth(token)
            .send()
            .await
            .unwrap();
        let page: Value = page.json().await.unwrap();
        let all = page["recordings"].as_array().unwrap();
        let names: Vec<_> = all
            .iter()
            .map(|one| one["stream_id"].as_str().unwrap())
            .collect();
        assert_eq!(names, [own]);
        for name in ["of-a", "of-b", "of-nobody"]
            .into_iter()
            .filter(|name| *name != own)
        {
            let url = format!("{}/recording/{name}", server.url);
            for request in [
                client().get(&url),
                client().head(&url),
                client().get(format!("{url}/transcript")),
                client().delete(&url),
            ] {
                assert_eq!(
                    request.bearer_auth(token).send().await.unwrap().status(),
                    404,
                    "{name}"
                );
            }
        }
    }
    for (token, name) in [(OF_A, "of-a"), (OF_B, "of-b")] {
        let url = format!("{}/recording/{name}", server.url);
        assert_eq!(
            client()
                .delete(&url)
                .bearer_auth(token)
                .send()
                .await
                .unwrap()
                .status(),
            200
        );
    }
}

/// 50 moments in the long run, 10 otherwise.
#[tokio::test]
async fn a_killed_server_loses_at_most_the_last_second() {
    let rounds = std::env::var_os("VIVAVOCE_LONG").map_or(10, |_| 50);
    let mut random = fastrand::Rng::with_seed(7);
    let mut data = tempfile::tempdir().unwrap();
    let mut worst = Duration::ZERO;
    for round in 0..rounds {
        let name = format!("round-{round}");
        let server = Server::start_in(data, &[NULL]);
        let session = Session::open(&server, recorded(&name, json!({}))).await;
        let ready = Instant::now();
        session.speak("long", &"word ".repeat(100)).await;
        let moment = Duration::from_millis(random.u64(0..4_000));
        let sound = session.hear(chopped(&bursts(5_000), 640));
        let _cut_short = tokio::time::timeout(moment, sound).await;
        let lived = ready.elapsed();
        data = server.kill();
        let server = Server::start_in(data, &[NULL]);
        let file = stored(&server, &name).await;
        let kept = Duration::from_secs_f64(judged(&file));
        let lost = lived.saturating_sub(kept);
        assert!(
            lost <= Duration::from_secs(1),
            "round {round}: {kept:?} of {lived:?}"
        );
        worst = worst.max(lost);
        assert_eq!(metadata(&server, &name)["complete"], false);
        data = server.into_data();
    }
    println!("{rounds} kills, at most {worst:?} lost");
}

/// A recorded session whose words are tone-words.
fn in_tone_words(stream_id: &str) -> Value {
    let fields = json!({
        "stt_config": {"provider": "deepgram", "sample_rate": 16_000},
        "tts_config": {"provider": "deepgram", "model": "", "sample_rate": 16_000},
    });
    recorded(stream_id, fields)
}

/// Settings by which a card and the number 8642 are silent. All tone-words are digits, so that the card is known by these and
/// not by its check digit, which others before it may have as well.
const SILENT_NUMBERS: [(&str, &str); 2] = [
    ("RECORDING_REDACT_PATTERNS", "86 42,4111-1111-1111-1111"),
    ("RECORDING_REDACT_SOUND", "true"),
];

/// Numbers as tone-words with pauses between, and two seconds of silence behind.
fn saying(numbers: &[u16]) -> Pcm {
    let gap = Duration::from_millis(500);
    let words = numbers
        .iter()
        .flat_map(|number| speak_with_gap(*number, SampleRate::HZ_16000, gap));
    let mut samples: Vec<i16> = words.collect();
    samples.resize(samples.len() + 2 * 16_000, 0);
    Pcm::new(WIDE.layout, samples)
}

async fn understands(session: &mut Session, numbers: &[u16]) {
    session.hear(chopped(&saying(numbers), 640)).await;
    let last = numbers.last().unwrap().to_string();
    loop {
        let result = session.next("stt_result").await;
        if result.is("is_final") && result.text("transcript").contains(&last) {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_is_left_out_is_not_heard_in_the_recording() {
    let tenants = json!({"nobody": {"redact_sound": false}}).to_string();
    let settings = [
        &SILENT_NUMBERS[..],
        &[("RECORDING_TENANTS_JSON", &*tenants)],
    ]
    .concat();
    let backed = Backed::with(scripted(&[]).await, &settings);
    let mut session = Session::open(&backed.server, in_tone_words("silent")).await;
    understands(&mut session, &[11, 8642, 22]).await;
    session.speak("a", "55 66").await;
    session.completion_of("a").await;
    understands(&mut session, &[4111, 1111, 1111, 1111]).await;
    session.speak("b", "77 8642 88").await;
    session.completion_of("b").await;
    understands(&mut session, &[33, 44]).await;
    session.close().await;
    let file = stored(&backed.server, "silent").await;
    let seconds = judged(&file);
    let known = metadata(&backed.server, "silent");
    assert_eq!(known["complete"], true);
    assert_eq!(known["size"], file.metadata().unwrap().len());
    let lasted = known["duration_ms"].as_f64().unwrap() / 1_000.0;
    assert!((seconds - lasted).abs() < 0.1, "{seconds} of {lasted}");
    let [heard, said] = sides(&file).map(|side| numbers_in(&side, SampleRate::HZ_48000));
    assert_eq!(heard, [11, 22, 33, 44]);
    assert_eq!(said, [55, 66]);
    // What was on the disk before is gone.
    let journals = backed.server.data.path().join("recordings/.journal");
    assert_eq!(std::fs::read_dir(journals).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_has_understood_when_the_server_dies_is_not_in_the_recording() {
    let backed = Backed::with(scripted(&[]).await, &SILENT_NUMBERS);
    let mut session = Session::open(&backed.server, in_tone_words("killed")).await;
    understands(&mut session, &[11]).await;
    understands(&mut session, &[22]).await;
    // It dies before the final.
    let word = speak_with_gap(8642, SampleRate::HZ_16000, Duration::ZERO);
    let word = Pcm::new(WIDE.layout, word);
    session.hear(chopped(&word, 640)).await;
    let server = Server::start_in(backed.server.kill(), &[NULL]);
    let file = stored(&server, "killed").await;
    judged(&file);
    let [heard, _] = sides(&file).map(|side| numbers_in(&side, SampleRate::HZ_48000));
    assert_eq!(heard.first(), Some(&11), "{heard:?}");
    assert!(!heard.contains(&8642), "{heard:?}");
    assert_eq!(metadata(&server, "killed")["complete"], false);
}
