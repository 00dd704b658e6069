//! Sessions of a server that drains, which go on at another one (protocol, section 1, "Replicas").

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::client::{Session, says, with};
use super::endurance::times;
use super::led::question;
use super::loading::wav;
use super::recorded::{known, stored};
use super::replicas::{Pair, first_of_a_pair};
use super::resume::{Stubborn, metric};
use super::sound::{OUTPUT, WIDE, decoded, encoded, likeness, sentences, tone};
use crate::harness::{
    SENTENCES, Server, client, eventually, local, share_of_words, stdout, vivavoce,
};
use crate::realtime::ChatServer;
use crate::recordings::{judged, sides};
use crate::s3::S3sFs;
use crate::s3::sessions::{borrowed, into};
use crate::webhooks::{self, Receiver, next_of};

/// The server closes the socket of its session, which goes on at another one.
async fn moves<'s>(client: &mut Stubborn<'s>, to: &'s Server) {
    assert_eq!(client.session.closed().await, 1012);
    client.breaks_towards(to).await;
    client.comes_back().await;
}

/// The session is where the server is told to stop; nothing of it is left there.
async fn is_alone(first: &mut Server, taken: usize, second: &Server) {
    assert!(first.ended().success());
    let name = "vivavoce_sessions_taken_over_total";
    assert_eq!(metric(second, name).await, format!("{name} {taken}"));
    let forwarded = "vivavoce_forwarded_sockets";
    assert_eq!(metric(second, forwarded).await, format!("{forwarded} 0"));
}

/// The ends of utterances, in order.
fn ends(client: &Stubborn) -> Vec<String> {
    let events = client.all_events();
    let ends = events.iter().filter(|event| {
        let kind = event["type"].as_str().unwrap();
        matches!(kind, "tts_playback_complete" | "tts_interrupted") || event["code"] == "tts_failed"
    });
    ends.map(|event| {
        format!(
            "{} {}",
            event["type"].as_str().unwrap(),
            event["id"].as_str().unwrap()
        )
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_said_at_the_other_server_and_everything_is_heard_once() {
    let mut pair = Pair::start();
    let fast = json!({"tts_config": local(json!({"speaking_rate": 1.3}))});
    // How long the sentences are, one after the other, of a session that stays.
    let mut stays = Session::open(&pair.servers[1], says(json!({"speaking_rate": 1.3}))).await;
    let mut meant = Vec::new();
    for (id, text) in ["a", "b", "c"].iter().zip(SENTENCES) {
        stays.speak(id, text).await;
        meant.push(stays.completion_of(id).await.time("duration_ms"));
    }
    let sound = decoded(&stays.sound(), OUTPUT);
    stays.close().await;

    let [first, second] = &mut pair.servers;
    let count = times(4, 60);
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = Stubborn::open(first, json!({})).await;
        client
            .session
            .send(with(json!({"type": "update_config"}), fast.clone()))
            .await;
        client.session.next("ready").await;
        client.token = client.last_token();
        // One that was cut: what comes late for it is dropped there, too.
        client.session.speak("gone", SENTENCES[3]).await;
        client.session.next("tts_started").await;
        client.session.command("clear").await;
        client.session.next("tts_interrupted").await;
        clients.push(client);
    }
    for client in &clients {
        for (id, text) in ["a", "b", "c"].iter().zip(SENTENCES) {
            client.session.speak(id, text).await;
        }
    }
    let starts = clients.iter_mut().map(|client| client.until_started("a"));
    let starts = join_all(starts).await;
    first.terminate();
    let second = &*second;
    let went = clients.iter_mut().map(|client| async {
        client.session.next("draining").await;
        moves(client, second).await;
        let late = json!({"flush": false, "id": "gone"});
        client.session.speak_with("late", late).await;
        for id in ["b", "c"] {
            client.completion_of(id).await;
        }
    });
    join_all(went).await;
    for (client, start) in clients.iter().zip(starts) {
        let complete = |id| format!("tts_playback_complete {id}");
        let expected = [
            "tts_interrupted gone".to_owned(),
            complete("a"),
            complete("b"),
            complete("c"),
        ];
        assert_eq!(ends(client), expected);
        let events = client.all_events();
        let readies = events.iter().filter(|event| event["type"] == "ready");
        assert_eq!(readies.count(), 3, "{events:?}");
        let numbers: Vec<u64> = events
            .iter()
            .filter_map(|event| event["seq"].as_u64())
            .collect();
        assert!(
            numbers.is_sorted_by(|before, after| before < after),
            "{numbers:?}"
        );
        for (id, meant) in ["a", "b", "c"].iter().zip(&meant) {
            let end = events
                .iter()
                .find(|event| event["type"] == "tts_playback_complete" && event["id"] == *id);
            let said = Duration::from_millis(end.unwrap()["duration_ms"].as_u64().unwrap());
            assert!(
                said.abs_diff(*meant) < Duration::from_millis(40),
                "{id}: {said:?} instead of {meant:?}"
            );
        }
        let heard = decoded(&client.heard()[start..], OUTPUT);
        let off = heard.duration().abs_diff(meant.iter().sum());
        assert!(off < Duration::from_millis(120), "{off:?}");
        let likeness = likeness(&sound, &heard);
        assert!(likeness > 0.9, "{likeness}");
    }
    for client in clients {
        client.session.close().await;
    }
    let [first, second] = &mut pair.servers;
    is_alone(first, count, second).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentence_that_somebody_says_is_heard_to_its_end_and_the_next_one_at_the_other_server() {
    let mut pair = Pair::start();
    let pause = Duration::from_secs(2);
    let mut speech = Vec::new();
    for sentence in &SENTENCES[..2] {
        let sound = sentences(&pair.servers[0], &[sentence], pause).await;
        speech.push(encoded(&sound, WIDE).await);
    }
    let [before, after] = <[_; 2]>::try_from(speech).unwrap();
    let length: Duration = before.iter().map(|piece| piece.duration).sum();
    let [first, second] = &mut pair.servers;
    let mut client = Stubborn::open(first, json!({"stream_id": "moves"})).await;
    // A microphone does not stop because a socket does.
    let saying = tokio::spawn(client.session.hear(before));
    client.session.next("vad_event").await;
    first.terminate();
    client.session.next("draining").await;
    assert_eq!(client.session.closed().await, 1012);
    let _broke = saying.await;
    let said = client.finals();
    assert!(share_of_words(SENTENCES[0], &said) >= 0.8, "{said}");
    moves(&mut client, second).await;
    let begun = client.all_events().len();
    client.session.hear(after).await;
    let meant = SENTENCES[..2].join(" ");
    eventually("words are missing", || {
        share_of_words(&meant, &client.finals()) >= 0.8
    })
    .await;
    // Times go on.
    let events = client.all_events();
    let voice = events[begun..]
        .iter()
        .find(|event| event["type"] == "vad_event")
        .unwrap();
    let at = Duration::from_millis(voice["timestamp_ms"].as_u64().unwrap());
    assert!(at > length - pause, "{at:?} of {length:?}");
    client.session.close().await;
    let [first, second] = &mut pair.servers;
    is_alone(first, 1, second).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_that_the_server_leads_goes_on_with_what_was_said() {
    let model = ChatServer::start();
    let mut pair = Pair::start_with(&[("LLM_URL", &model.url()), ("LLM_MODEL", "small")]);
    let agent = json!({"llm": {"instructions": "You are brief."}, "greeting": "Good morning, this is a test."});
    let sound = question(&pair.servers[1], "Tell me a story about the sea.").await;
    let sound = encoded(&sound, WIDE).await;
    let [first, second] = &mut pair.servers;
    let mut client = Stubborn::open(first, json!({"agent": agent})).await;
    client.session.next("response_started").await;
    first.terminate();
    client.session.next("draining").await;
    let greeted = client.session.next("response_done").await;
    assert_eq!(greeted["status"], "completed", "{greeted}");
    moves(&mut client, second).await;
    // It does not greet again.
    client.session.hear(sound).await;
    // The story is a long one.
    client.session.next("response_text").await;
    let asked = model.requests().await;
    let messages = asked[0]["messages"].as_array().unwrap();
    let roles: Vec<&Value> = messages.iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["system", "assistant", "user"]);
    assert_eq!(messages[1]["content"], "Good morning, this is a test.");
    client.session.close().await;
    let [first, second] = &mut pair.servers;
    is_alone(first, 1, second).await;
}

#[tokio::test]
async fn what_is_said_over_a_loading_sound_does_not_wait_for_a_move() {
    let mut pair = Pair::start();
    let clip = tone(OUTPUT.layout, 440.0, 0.1, Duration::from_millis(300));
    let [first, second] = &mut pair.servers;
    let mut client = Stubborn::open(first, json!({"loading_audio": wav(&clip)})).await;
    client.session.command("loading_start").await;
    client.session.received(4_800).await;
    first.terminate();
    client.session.next("draining").await;
    // By now it would have moved.
    tokio::time::sleep(Duration::from_millis(500)).await;
    client.session.speak("a", SENTENCES[0]).await;
    client.session.completion_of("a").await;
    client.session.command("loading_stop").await;
    moves(&mut client, second).await;
    client.session.close().await;
    let [first, second] = &mut pair.servers;
    is_alone(first, 1, second).await;
}

#[tokio::test]
async fn a_client_that_comes_back_to_the_draining_server_stays_there() {
    let mut pair = Pair::start();
    let [first, _] = &mut pair.servers;
    let mut client = Stubborn::open(first, json!({})).await;
    first.terminate();
    assert_eq!(client.session.closed().await, 1012);
    client.breaks().await;
    client.comes_back().await;
    client.session.speak("a", SENTENCES[0]).await;
    client.session.completion_of("a").await;
    client.session.close().await;
    assert!(pair.servers[0].ended().success());
}

#[tokio::test]
async fn a_session_moves_to_a_server_that_comes_after_the_drain_has_begun() {
    let (mut first, another) = first_of_a_pair();
    let mut client = Stubborn::open(&first, json!({})).await;
    first.terminate();
    client.session.next("draining").await;
    let second = another();
    moves(&mut client, &second).await;
    client.session.speak("a", SENTENCES[0]).await;
    client.session.completion_of("a").await;
    client.session.close().await;
    assert!(first.ended().success());
}

/// How long a client is away that is recorded.
const AWAY: Duration = Duration::from_secs(1);

/// A session that is recorded, moves after its first sentence, and says another one at the second server.
async fn is_recorded_at_both(pair: &mut Pair, name: &str) -> Vec<Value> {
    let [first, second] = &mut pair.servers;
    let fields = json!({"recording": true, "stream_id": name});
    let mut client = Stubborn::open(first, fields).await;
    client.session.speak("a", SENTENCES[0]).await;
    client.session.next("tts_started").await;
    first.terminate();
    client.session.next("draining").await;
    assert_eq!(client.session.closed().await, 1012);
    client.breaks_towards(second).await;
    tokio::time::sleep(AWAY).await;
    client.comes_back().await;
    client.session.speak("b", SENTENCES[1]).await;
    client.completion_of("b").await;
    let events = client.all_events();
    client.session.close().await;
    assert!(pair.servers[0].ended().success());
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn what_two_servers_have_recorded_of_a_session_is_one_recording_in_their_store() {
    let s3 = S3sFs::start();
    let bucket = into(&s3.address);
    let mut receiver = Receiver::start(0, 0);
    let url = format!("http://127.0.0.1:{}/", receiver.port);
    let mut settings = borrowed(&bucket);
    settings.extend(webhooks::settings(&url));
    let mut pair = Pair::start_with(&settings);
    let events = is_recorded_at_both(&mut pair, "one").await;
    let warning = events.iter().find(|event| event["type"] == "warning");
    assert_eq!(warning, None);
    // It is told of as a part, and when it is whole.
    let first = next_of(&mut receiver, "recording.stored");
    assert_eq!(first["body"]["goes_on"], true, "{first}");
    let told = next_of(&mut receiver, "recording.stored");
    assert_eq!(told["body"]["goes_on"], Value::Null, "{told}");
    let second = &pair.servers[1];
    let sound = stored(second, "one").await;
    let get = async |path: &str| {
        let answer = client().get(format!("{}{path}", second.url)).send();
        answer.await.unwrap().text().await.unwrap()
    };
    let list: Value = serde_json::from_str(&get("/recordings").await).unwrap();
    let known = &list["recordings"][0];
    assert_eq!(list["recordings"].as_array().unwrap().len(), 1, "{list}");
    let whole = [&known["complete"], &known["size"], &known["continues"]];
    assert_eq!(whole, [&json!(true), &json!(sound.len()), &Value::Null]);
    assert_eq!(told["body"]["sha256"], known["sha256"], "{told} {known}");
    let lines = get("/recording/one/transcript").await;
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<Value> = lines.collect();
    let said = |kind: &str, id: &str| {
        let line = lines
            .iter()
            .find(|line| line["type"] == kind && line["id"] == id);
        line.unwrap_or_else(|| panic!("{kind} {id}: {lines:?}"))["at_ms"]
            .as_u64()
            .unwrap()
    };
    let places = [
        said("begins", "a"),
        said("said", "a"),
        said("begins", "b"),
        said("said", "b"),
    ];
    assert!(places.is_sorted(), "{places:?}");
    let away = Duration::from_millis(places[2] - places[1]);
    assert!(away >= AWAY, "{places:?}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("one.ogg");
    std::fs::write(&file, &sound).unwrap();
    let seconds = judged(&file);
    assert!(
        seconds * 1_000.0 >= places[3] as f64 - 20.0,
        "{seconds} {places:?}"
    );
    // The second sentence is where the transcript has it.
    let [_, played] = sides(&file);
    let loud = |at: u64| {
        let part = &played[at as usize * 48..][..48 * 400];
        part.iter().any(|sample| sample.unsigned_abs() > 1_000)
    };
    assert!(loud(places[0]) && loud(places[2]), "{places:?}");
    let between = (places[1] + 300) as usize * 48..(places[2] - 50) as usize * 48;
    let noise = played[between]
        .iter()
        .map(|sample| sample.unsigned_abs())
        .max();
    assert!(noise < Some(200), "{noise:?}");
    let heard = vivavoce(["transcribe".as_ref(), file.as_os_str()]);
    let heard = stdout(&heard);
    let meant = SENTENCES[..2].join(" ");
    assert!(share_of_words(&meant, &heard) >= 0.8, "{heard}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_told_if_its_recording_is_in_two_folders() {
    let mut pair = Pair::start();
    let events = is_recorded_at_both(&mut pair, "two").await;
    let [first, second] = &pair.servers;
    let mut told = events.iter().filter(|event| event["type"] == "warning");
    let warning = told.next().unwrap();
    assert_eq!(warning["code"], "recording_divided", "{events:?}");
    assert!(told.next().is_none(), "{events:?}");
    stored(second, "two").await;
    let [before, after] = [first, second].map(|server| known(server, "two"));
    assert_eq!(before["goes_on"], true, "{before}");
    assert_eq!(before["complete"], false, "{before}");
    assert_eq!(after["continues"], before["started_at"], "{after}");
    assert_eq!(after["complete"], true, "{after}");
}

#[tokio::test]
async fn a_server_that_cannot_go_on_with_a_session_says_why() {
    let mut pair = Pair::start_with_first(&[("NULL_ENABLED", "true")]);
    let [first, second] = &mut pair.servers;
    let nothing = json!({"provider": "null", "model": ""});
    let fields = json!({"stt_config": nothing, "tts_config": nothing});
    let mut client = Stubborn::open(first, fields).await;
    first.terminate();
    assert_eq!(client.session.closed().await, 1012);
    client.breaks_towards(second).await;
    client.asks_to_come_back().await;
    client.session.refused("unsupported_provider").await;
    assert_eq!(client.session.closed().await, 1011);
    assert!(pair.servers[0].ended().success());
}

#[tokio::test]
async fn sessions_that_have_to_stay_are_reached_through_the_other_server() {
    let mut pair = Pair::start();
    let [first, second] = &mut pair.servers;
    let mut client = Stubborn::open(first, json!({"rtc": {"room_name": "stays"}})).await;
    client.session.speak("a", SENTENCES[0]).await;
    first.terminate();
    client.session.next("draining").await;
    client.session.completion_of("a").await;
    // Long after it would have moved.
    client
        .session
        .assert_silent_for(Duration::from_secs(1))
        .await;
    client.breaks_towards(second).await;
    client.comes_back().await;
    client.session.speak("b", SENTENCES[1]).await;
    client.session.completion_of("b").await;
    client.session.close().await;
    assert!(pair.servers[0].ended().success());
}
