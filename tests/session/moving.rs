//! Sessions of a server that drains, which go on at another one (protocol, section 1, "Replicas").

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::client::{Session, says, with};
use super::endurance::times;
use super::led::question;
use super::loading::wav;
use super::replicas::{Pair, first_of_a_pair};
use super::resume::{Stubborn, metric};
use super::sound::{OUTPUT, WIDE, decoded, encoded, likeness, sentences, tone};
use crate::harness::{SENTENCES, Server, eventually, local, share_of_words};
use crate::realtime::ChatServer;

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
    let answered = client.session.next("response_done").await;
    assert_eq!(answered["status"], "completed", "{answered}");
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
    let mut client = Stubborn::open(first, json!({"recording": true})).await;
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
