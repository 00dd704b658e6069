//! Egress of embedded rooms by LiveKit's own API client: what it starts is recorded, told and found, also after a killed server.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::Method;
use serde_json::{Value, json};

use super::api_clients::Api;
use super::client::Kind;
use super::events::{Inbox, json_of};
use super::{KEY, SECRET, ask, join, keyed_server, token};
use crate::harness::*;
use crate::s3::S3sFs;
use crate::s3::sessions::{borrowed, into};
use crate::session::sound::tone_in;
use vivavoce::audio::SampleRate;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The settings of a server that tells this address what happens.
fn told(url: &str) -> [(&str, &str); 6] {
    [
        ("RTC_API_KEY", KEY),
        ("RTC_API_SECRET", SECRET),
        ("RTC_WEBHOOK_URLS", url),
        ("WEBHOOKS_ALLOW_INSECURE", "true"),
        ("WEBHOOKS_ALLOW_PRIVATE", "true"),
        ("RTC_MODE", "embedded"),
    ]
}

async fn opened(server: &Server) -> Api {
    Api::open("Python", server, &json!({"key": KEY, "secret": SECRET})).await
}

/// Carries out a call that must succeed.
async fn done(api: &mut Api, name: &str, call: &Value) -> Value {
    let answer = api.call(name, call.clone()).await;
    answer.unwrap_or_else(|error| panic!("{name} {call}: {error:?}"))
}

/// Waits until all egresses of a server have a status.
async fn have(api: &mut Api, count: usize, status: Option<&str>) -> Vec<Value> {
    let mut items = Vec::new();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while tokio::time::Instant::now() < deadline {
        let listed = done(api, "egress", &json!({})).await;
        items = listed["items"].as_array().cloned().unwrap_or_default();
        // The first status is not said.
        let is = |item: &&Value| item["status"].as_str() == status;
        if items.iter().filter(is).count() == count {
            return items;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{count} egresses are not {status:?}: {items:#?}");
}

/// A recording as samples, mono at 48 kHz, without its first and last moments.
async fn recorded(server: &Server, id: &str, folder: &Path) -> Vec<i16> {
    let url = format!("{}/recording/{id}", server.url);
    let answer = client().get(url).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let file = folder.join(format!("{id}.ogg"));
    std::fs::write(&file, answer.bytes().await.unwrap()).unwrap();
    let probed = ffprobe(&file, &[]);
    assert_eq!(probed["streams"][0]["codec_name"], "opus", "{probed}");
    assert_eq!(probed["streams"][0]["channels"], 1, "{probed}");
    let decoded = run(
        "ffmpeg",
        [
            "-v",
            "error",
            "-i",
            file.to_str().unwrap(),
            "-ar",
            "48000",
            "-f",
            "s16le",
            "-",
        ],
    );
    let samples: Vec<i16> = decoded
        .stdout
        .chunks_exact(2)
        .map(|two| i16::from_le_bytes([two[0], two[1]]))
        .collect();
    samples[24_000..samples.len() - 24_000].to_vec()
}

/// Whether a tone is in a recording; the clients' have an amplitude of 8,000.
fn has(samples: &[i16], hz: f64) -> bool {
    // Packets and clocks make a tone jump, so it is looked for in short parts.
    let parts = samples.chunks_exact(4_800);
    let loud = parts
        .clone()
        .filter(|part| tone_in(part, SampleRate::HZ_48000, hz).0 > 3_000.0);
    let (loud, all) = (loud.count(), parts.count());
    assert!(
        all > 10 && (loud * 10 < all || loud * 10 > all * 8),
        "{hz} Hz: {loud} of {all}"
    );
    loud * 2 > all
}

#[actix_web::test]
async fn livekits_client_records_a_room_a_participant_and_a_track() {
    let inbox = Inbox::default();
    let url = inbox.open();
    let server = Server::start_with(&told(&url));
    let mut api = opened(&server).await;
    let mut ann = join(&server, Kind::Python, "kitchen", "ann").await;
    ann.publish(440).await;
    let mut bob = join(&server, Kind::Python, "kitchen", "bob").await;
    let track = bob.publish(1_000).await;
    ann.hears("bob", 1_000).await;
    let room = json!({"room": "kitchen", "filepath": "calls/{room_name}-{time}"});
    let of_room = done(&mut api, "record room", &room).await;
    let of_ann = json!({"room": "kitchen", "identity": "ann", "filepath": ""});
    let of_ann = done(&mut api, "record participant", &of_ann).await;
    let of_track = json!({"room": "kitchen", "sid": track, "filepath": "{track_id}"});
    let of_track = done(&mut api, "record track", &of_track).await;
    let ids = [of_room, of_ann, of_track].map(|info| {
        assert!(info["status"].is_null(), "it begins: {info}");
        info["egressId"].as_str().unwrap().to_owned()
    });
    have(&mut api, 3, Some("EGRESS_ACTIVE")).await;
    // Nobody sees who records, and everybody that it is recorded.
    let listed = done(&mut api, "list", &json!({"names": ["kitchen"]})).await;
    assert_eq!(listed["rooms"][0]["numParticipants"], 2, "{listed}");
    assert_eq!(listed["rooms"][0]["activeRecording"], true, "{listed}");
    assert_eq!(ann.count("participant_connected", &json!({})), 1);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let stopped = done(&mut api, "stop egress", &json!({"sid": ids[0]})).await;
    assert_eq!(stopped["status"], "EGRESS_ENDING", "{stopped}");
    // The others end with the room.
    done(&mut api, "delete", &json!({"room": "kitchen"})).await;
    let ended = have(&mut api, 3, Some("EGRESS_COMPLETE")).await;
    let number = |value: &Value| value.as_str().unwrap().parse::<i64>().unwrap();
    for info in &ended {
        let file = &info["fileResults"][0];
        assert!(number(&file["duration"]) > 2_500_000_000, "{info}");
        assert!(number(&file["size"]) > 5_000, "{info}");
        assert!(
            number(&info["startedAt"]) < number(&info["endedAt"]),
            "{info}"
        );
        assert!(
            info["details"].is_null() && info["error"].is_null(),
            "{info}"
        );
    }
    let info_of = |id: &str| ended.iter().find(|info| info["egressId"] == *id).unwrap();
    let named = info_of(&ids[0])["fileResults"][0]["filename"]
        .as_str()
        .unwrap();
    assert!(named.starts_with("recordings/calls/kitchen-2"), "{named}");
    let on_disk = server.inside(named);
    assert!(on_disk.exists(), "{}", on_disk.display());
    assert!(server.inside(&format!("recordings/{track}.ogg")).exists());
    assert!(
        server
            .inside(&format!("recordings/{}/audio.ogg", ids[1]))
            .exists()
    );
    let folder = tempfile::tempdir().unwrap();
    for (id, low, high) in [
        (&ids[0], true, true),
        (&ids[1], true, false),
        (&ids[2], false, true),
    ] {
        let samples = recorded(&server, id, folder.path()).await;
        assert_eq!(
            (has(&samples, 440.0), has(&samples, 1_000.0)),
            (low, high),
            "{id}"
        );
    }
    // The file goes with its recording.
    let gone = client().delete(format!("{}/recording/{}", server.url, ids[0]));
    assert_eq!(gone.send().await.unwrap().status(), 200);
    assert!(!on_disk.exists());
    for id in &ids {
        let is_of = |event: &Value| event["egressInfo"]["egressId"] == id.as_str();
        let told = || -> Vec<String> {
            let events = inbox.taken();
            let events = events.iter().map(json_of).filter(is_of);
            events
                .map(|event| {
                    let status = event["egressInfo"]["status"].as_str().unwrap_or("STARTING");
                    format!("{} {status}", event["event"].as_str().unwrap())
                })
                .collect()
        };
        eventually("the end of an egress is not told", || told().len() == 4).await;
        let expected = [
            "egress_started STARTING",
            "egress_updated EGRESS_ACTIVE",
            "egress_updated EGRESS_ENDING",
            "egress_ended EGRESS_COMPLETE",
        ];
        assert_eq!(told(), expected);
    }
}

#[actix_web::test]
async fn an_automatic_egress_of_a_killed_server_loses_at_most_a_second_and_its_end_is_told() {
    let inbox = Inbox::default();
    let url = inbox.open();
    let s3 = S3sFs::start();
    let store = into(&s3.address);
    let settings = [told(&url).as_slice(), &borrowed(&store)].concat();
    let server = Server::start_with(&settings);
    let room = json!({"name": "kitchen", "egress": {
        "room": {"audioOnly": true, "fileOutputs": [{"fileType": "OGG", "filepath": "kitchen"}]},
        "tracks": {"filepath": "tracks/"},
    }});
    let grants = json!({"roomCreate": true});
    for _ in 0..2 {
        let (status, answer) = super::call(&server, "CreateRoom", &grants, &room).await;
        assert_eq!(status, 200, "{answer}");
    }
    let mut api = opened(&server).await;
    let waiting = have(&mut api, 1, None).await;
    assert_eq!(waiting.len(), 1);
    let mut ann = join(&server, Kind::Python, "kitchen", "ann").await;
    let track = ann.publish(440).await;
    let active = have(&mut api, 2, Some("EGRESS_ACTIVE")).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let killed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let data = server.kill();
    ann.kill().await;
    let server = Server::start_in(data, &settings);
    let mut api = opened(&server).await;
    let ended = have(&mut api, 2, Some("EGRESS_COMPLETE")).await;
    let folder = tempfile::tempdir().unwrap();
    for info in &ended {
        let id = info["egressId"].as_str().unwrap();
        let number = |value: &Value| value.as_str().unwrap().parse::<u64>().unwrap();
        let lived = killed - Duration::from_nanos(number(&info["startedAt"]));
        let kept = Duration::from_nanos(number(&info["fileResults"][0]["duration"]));
        println!("{id}: {kept:?} of {lived:?} kept");
        assert!(
            kept + Duration::from_secs(1) >= lived,
            "{kept:?} of {lived:?}"
        );
        assert!(
            info["details"].as_str().unwrap().contains("cut off"),
            "{info}"
        );
        assert!(has(&recorded(&server, id, folder.path()).await, 440.0));
        let is_its_end = |event: Value| {
            event["event"] == "egress_ended" && event["egressInfo"]["egressId"] == id
        };
        let told = || inbox.taken().iter().map(json_of).any(is_its_end);
        eventually("the end of an egress is not told", told).await;
    }
    let names: Vec<&str> = ended
        .iter()
        .map(|info| info["fileResults"][0]["filename"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"recordings/kitchen.ogg"), "{names:?}");
    assert!(s3.object("recordings/kitchen.ogg").exists());
    let of_track = format!("recordings/tracks/{track}-");
    assert!(
        names.iter().any(|name| name.starts_with(&of_track)),
        "{names:?}"
    );
    assert_eq!(active.len(), 2);
}

#[tokio::test]
#[allow(clippy::too_many_lines)] // a table of requests
async fn egresses_need_a_grant_a_room_and_a_name_and_tenants_see_their_own() {
    let server = keyed_server();
    let grants = json!({"roomCreate": true});
    for (name, metadata) in [("kitchen", ""), ("of a", r#"{"auth_id":"a"}"#)] {
        let room = json!({"name": name, "metadata": metadata});
        assert_eq!(
            super::call(&server, "CreateRoom", &grants, &room).await.0,
            200
        );
    }
    let record = json!({"roomRecord": true});
    let call = async |method: &str, who: &Value, body: Value| {
        let path = format!("/twirp/livekit.Egress/{method}");
        let token = token(600, &record, who);
        ask(&server, Method::POST, &path, Some(&token), &body).await
    };
    let operator = json!({});
    let tenant = |id: &str| json!({"vivavoce": {"tenant": id}});
    let path = "/twirp/livekit.Egress/ListEgress";
    let other = token(
        600,
        &json!({"roomAdmin": true, "room": "kitchen"}),
        &operator,
    );
    let (status, _) = ask(&server, Method::POST, path, Some(&other), &json!({})).await;
    assert_eq!(status, 401);
    let room = |name: &str, more: Value| {
        let mut body = json!({"room_name": name, "audio_only": true, "file_outputs": [{}]});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        body
    };
    let file = |path: &str| json!({"file_outputs": [{"filepath": path}]});
    let start = "StartRoomCompositeEgress";
    for (method, who, body, status, part) in [
        (start, &operator, room("cellar", json!({})), 404, "room"),
        (start, &tenant("b"), room("of a", json!({})), 404, "room"),
        (start, &tenant("a"), room("kitchen", json!({})), 404, "room"),
        (
            start,
            &json!({"vivavoce": "public"}),
            room("kitchen", json!({})),
            404,
            "room",
        ),
        (
            start,
            &operator,
            room("kitchen", json!({"audio_only": false})),
            400,
            "audio_only: ",
        ),
        (
            start,
            &operator,
            room("kitchen", json!({"file_outputs": []})),
            400,
            "file_outputs: ",
        ),
        (
            start,
            &operator,
            room("kitchen", file("../x")),
            400,
            "file_outputs.filepath: ",
        ),
        (
            start,
            &operator,
            room("kitchen", file("%61/x")),
            400,
            "file_outputs.filepath: ",
        ),
        (
            start,
            &operator,
            room("kitchen", json!({"video_only": true})),
            400,
            "video_only: ",
        ),
        (
            start,
            &operator,
            room(
                "kitchen",
                json!({"file_outputs": [{"s3": {"bucket": "mine", "secret": "s"}}]}),
            ),
            400,
            "file_outputs.s3: ",
        ),
        (
            "StartParticipantEgress",
            &operator,
            json!({"room_name": "kitchen", "identity": "nobody", "file_outputs": [{}]}),
            404,
            "participant",
        ),
        (
            "StartTrackEgress",
            &operator,
            json!({"room_name": "kitchen", "track_id": "TR_x", "file": {}}),
            404,
            "track",
        ),
        (
            "StartWebEgress",
            &operator,
            json!({"url": "https://a"}),
            501,
            "StartWebEgress",
        ),
        (
            "UpdateLayout",
            &operator,
            json!({"egress_id": "EG_x"}),
            501,
            "UpdateLayout",
        ),
        (
            "StopEgress",
            &operator,
            json!({"egress_id": "EG_x"}),
            404,
            "egress",
        ),
        (
            "StopEgress",
            &operator,
            json!({"egress_id": "../../x"}),
            404,
            "egress",
        ),
    ] {
        let (is, answer) = call(method, who, body.clone()).await;
        assert_eq!(is, status, "{method} {body}: {answer}");
        assert!(
            answer["msg"].as_str().unwrap().contains(part),
            "{method} {body}: {answer}"
        );
    }
    let (status, started) = call(start, &tenant("a"), room("of a", json!({}))).await;
    assert_eq!(status, 200, "{started}");
    let id = started["egressId"].as_str().unwrap();
    let name = started["fileResults"][0]["filename"].as_str().unwrap();
    assert_eq!(name, format!("recordings/%61/{id}/audio.ogg"));
    for (who, seen) in [(&operator, 1), (&tenant("a"), 1), (&tenant("b"), 0)] {
        let (_, listed) = call("ListEgress", who, json!({"active": true})).await;
        let items = listed["items"].as_array().map_or(0, Vec::len);
        assert_eq!(items, seen, "{who}: {listed}");
    }
    let stop = json!({"egress_id": id});
    assert_eq!(call("StopEgress", &tenant("b"), stop.clone()).await.0, 404);
    assert_eq!(call("StopEgress", &tenant("a"), stop.clone()).await.0, 200);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let (_, listed) = call("ListEgress", &tenant("a"), stop.clone()).await;
        if listed["items"][0]["status"] == "EGRESS_ABORTED" {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{listed}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (status, answer) = call("StopEgress", &tenant("a"), stop).await;
    assert_eq!(status, 412, "{answer}");
}
