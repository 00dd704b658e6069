//! The conversation itself: the order of messages, what is refused and how, and how sessions begin and end.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::client::{Session, config, handshake, hears, says, with};
use super::sound::{OUTPUT, WIDE, duration, encoded, sentences, spoken, spoken_with};
use crate::harness::{SENTENCES, Server, assert_error, client, eventually, local, share_of_words};

const SHORT: &str = "Please call me back on Monday morning.";

/// A `config` with a stream id.
fn named(stream_id: &str) -> Value {
    config(json!({"stream_id": stream_id}))
}

#[tokio::test]
async fn ready_names_the_session() {
    let server = Server::start();
    let mut chosen = Session::connect(&server).await;
    chosen.send(named("Call-7_of.today")).await;
    let mut ready = chosen.next("ready").await;
    let token = ready.body.as_object_mut().unwrap().remove("resume_token");
    // Which server it is of, and a secret.
    let token = token.unwrap();
    let (of, secret) = token.as_str().unwrap().split_once('.').unwrap();
    assert_eq!((of.len(), secret.len()), (32, 64), "{token}");
    assert_eq!(
        ready.body,
        json!({"type": "ready", "stream_id": "Call-7_of.today"})
    );
    let mut ids = Vec::new();
    for _ in 0..2 {
        let mut session = Session::connect(&server).await;
        session
            .send(config(json!({"stream_id": null, "vad": null})))
            .await;
        let ready = session.next("ready").await;
        let id = ready.text("stream_id");
        let dashes: Vec<_> = id.match_indices('-').map(|(at, _)| at).collect();
        assert!(
            dashes == [8, 13, 18, 23] && id.as_bytes()[14] == b'4',
            "{id} is no UUID v4"
        );
        ids.push(id.to_owned());
        session.close().await;
    }
    assert_ne!(ids[0], ids[1]);
    chosen.close().await;
}

#[tokio::test]
async fn nothing_is_done_before_config() {
    let server = Server::start();
    let mut session = Session::connect(&server).await;
    session.speak("early", SHORT).await;
    session.refused("not_configured").await;
    for command in ["clear", "loading_start", "loading_stop"] {
        session.command(command).await;
        session.refused("not_configured").await;
    }
    session.send_sound(vec![0; 640]).await;
    session.refused("not_configured").await;
    session.send(config(json!({}))).await;
    session.next("ready").await;
    session.speak("late", "Yes.").await;
    session.completion_of("late").await;
    assert_eq!(session.ended(), ["late"]);
    session.close().await;
}

#[tokio::test]
async fn a_socket_without_config_is_closed_whatever_else_it_says() {
    let server = Server::start_with(&[("SOCKET_CONFIG_TIMEOUT_SECONDS", "1")]);
    let (mut silent, mut busy) = tokio::join!(Session::connect(&server), Session::connect(&server));
    let opened = Instant::now();
    let configured = Session::open(&server, config(json!({}))).await;
    for _ in 0..3 {
        busy.command("clear").await;
        busy.refused("not_configured").await;
        busy.send(json!({"type": "config"})).await;
        busy.refused("invalid_message").await;
    }
    for session in [&mut silent, &mut busy] {
        let error = session.next("error").await;
        assert_eq!(error["code"], "config_timeout", "{error}");
        assert_eq!(error["fatal"], true, "{error}");
        assert_eq!(session.closed().await, 4408);
        let after = error.at - opened;
        assert!((0.9..3.0).contains(&after.as_secs_f64()), "after {after:?}");
    }
    configured.close().await;
}

/// Messages that are not of the protocol, and the field that the refusal names.
fn bad_messages() -> Vec<(String, &'static str)> {
    let json = [
        (json!({}), "type"),
        (json!({"type": 5}), "type"),
        (json!({"type": "dance"}), "type"),
        (json!({"type": "speak"}), "text"),
        (json!({"type": "speak", "text": null}), "text"),
        (json!({"type": "speak", "text": 5}), "text"),
        (
            json!({"type": "speak", "text": "x", "flush": "yes"}),
            "flush",
        ),
        (
            json!({"type": "speak", "text": "x", "replace": 1}),
            "replace",
        ),
        (json!({"type": "speak", "text": "x", "id": 7}), "id"),
        (
            json!({"type": "speak", "text": "x", "allow_interruption": "no"}),
            "allow_interruption",
        ),
        (json!({"type": "config"}), "stt_config"),
        (
            json!({"type": "config", "stt_config": {"provider": "local"}}),
            "tts_config",
        ),
        (config(json!({"stream_id": "../up"})), "stream_id"),
        (config(json!({"stream_id": ""})), "stream_id"),
        (config(json!({"stream_id": "x".repeat(129)})), "stream_id"),
        (config(json!({"audio": "yes"})), "audio"),
        (config(json!({"stt_config": {}})), "stt_config.provider"),
        (hears(json!({"sample_rate": 0})), "stt_config.sample_rate"),
        (
            hears(json!({"sample_rate": 7_999})),
            "stt_config.sample_rate",
        ),
        (
            hears(json!({"sample_rate": 48_001})),
            "stt_config.sample_rate",
        ),
        (hears(json!({"sample_rate": -1})), "stt_config.sample_rate"),
        (hears(json!({"channels": 3})), "stt_config.channels"),
        (hears(json!({"encoding": "mp3"})), "stt_config.encoding"),
        (
            config(json!({"tts_config": {"model": ""}})),
            "tts_config.provider",
        ),
        (
            says(json!({"audio_format": "aiff"})),
            "tts_config.audio_format",
        ),
        (
            says(json!({"sample_rate": 96_000})),
            "tts_config.sample_rate",
        ),
        (
            says(json!({"audio_format": "opus", "sample_rate": 44_100})),
            "tts_config.sample_rate",
        ),
        (
            says(json!({"speaking_rate": 9})),
            "tts_config.speaking_rate",
        ),
        (config(json!({"vad": {"threshold": 2}})), "vad.threshold"),
        (config(json!({"vad": {"silence_ms": -1}})), "vad.silence_ms"),
    ];
    let text = [
        "",
        "speak",
        "{\"type\":\"speak\",\"text\":",
        "[]",
        "null",
        "7",
    ];
    let json = json
        .into_iter()
        .map(|(message, field)| (message.to_string(), field));
    let twice = [
        (r#"{"type":"clear","type":"clear"}"#, "type: is given"),
        (
            r#"{"type":"speak","text":"a","text":"b"}"#,
            "text: is given",
        ),
        (
            r#"{"type":"config","stt_config":{"provider":"local","provider":"local"}}"#,
            "stt_config.provider: is given",
        ),
    ];
    json.chain(text.map(|text| (text.to_owned(), "")))
        .chain(twice.map(|(text, field)| (text.to_owned(), field)))
        .collect()
}

#[tokio::test]
async fn a_bad_message_is_refused_by_the_name_of_its_field_and_costs_nothing_else() {
    let server = Server::start();
    let mut fresh = Session::connect(&server).await;
    let mut running = Session::open(&server, config(json!({}))).await;
    for (message, field) in bad_messages() {
        for session in [&mut fresh, &mut running] {
            session.send_text(&message).await;
            let error = session.next("error").await;
            let named = error.text("message").contains(field);
            assert!(named, "{error} does not name {field} of {message}");
            assert_eq!(error["code"], "invalid_message", "{message}: {error}");
            assert_eq!(error["fatal"], false, "{message}");
        }
    }
    fresh.send(config(json!({"unknown": [1, 2]}))).await;
    fresh.next("ready").await;
    for mut session in [fresh, running] {
        session
            .speak_with("Yes.", json!({"id": "x", "mood": "happy"}))
            .await;
        session.completion_of("x").await;
        session.close().await;
    }
}

#[tokio::test]
async fn a_config_that_failed_may_be_tried_again() {
    let server = Server::start();
    let mut session = Session::connect(&server).await;
    for wrong in [
        hears(json!({"provider": "nobody"})),
        says(json!({"provider": "nobody"})),
    ] {
        session
            .send(with(wrong, json!({"stream_id": "again"})))
            .await;
        let error = session.refused("unsupported_provider").await;
        assert!(error.text("message").contains("nobody"), "{error}");
        session.speak("early", SHORT).await;
        session.refused("not_configured").await;
    }
    session.send(named("again")).await;
    session.next("ready").await;
    session.speak("x", "Yes.").await;
    session.completion_of("x").await;
    session.close().await;
}

#[tokio::test]
async fn a_session_without_sound_says_so_once_for_a_stream() {
    let server = Server::start();
    let mut session = Session::open(&server, json!({"type": "config", "audio": false})).await;
    session.speak("x", SHORT).await;
    session.refused("audio_disabled").await;
    for _ in 0..20 {
        session.send_sound(vec![0; 640]).await;
    }
    session.refused("audio_disabled").await;
    // What comes now is the answer to this, not to the twentieth frame.
    session.send_text("{}").await;
    session.refused("invalid_message").await;
    session.close().await;
}

#[tokio::test]
async fn a_name_belongs_to_one_session_at_a_time() {
    let server = Server::start();
    let first = Session::open(&server, named("mine")).await;
    let mut second = Session::connect(&server).await;
    second.send(named("mine")).await;
    second.refused("stream_id_in_use").await;
    second.send(named("yours")).await;
    second.next("ready").await;

    first.close().await;
    let ended = Instant::now();
    let mut third = Session::connect(&server).await;
    loop {
        third.send(named("mine")).await;
        let answer = third.next_of(&["ready", "error"]).await;
        if answer.kind() == "ready" {
            break;
        }
        assert_eq!(answer["code"], "stream_id_in_use");
        assert!(
            ended.elapsed() < Duration::from_secs(5),
            "the name is not free"
        );
    }
    third.close().await;
    second.close().await;
}

#[tokio::test]
async fn the_same_config_again_changes_nothing_but_is_answered() {
    let server = Server::start();
    let speech = sentences(&server, &[SENTENCES[3]], Duration::from_secs(1)).await;
    let mut speech = encoded(&speech, WIDE).await;
    let rest = speech.split_off(speech.len() / 3);
    let mut session = Session::open(&server, named("same")).await;
    session.speak("long", &SENTENCES[..2].join(" ")).await;
    session.next("tts_started").await;
    session.hear(speech).await;
    session.send(named("same")).await;
    let ready = session.next("ready").await;
    assert_eq!(ready["stream_id"], "same");
    session.hear(rest).await;
    let turn = session.end_of_turn().await;
    let text = turn.text("turn_transcript");
    assert!(share_of_words(SENTENCES[3], text) >= 0.85, "{text}");
    let complete = session.completion_of("long").await;
    let whole = spoken(&server, &SENTENCES[..2].join(" "), OUTPUT).await;
    let off = complete.time("duration_ms").abs_diff(whole.duration());
    assert!(
        off <= Duration::from_millis(20),
        "{off:?} of speech missing"
    );
    session.close().await;
}

#[tokio::test]
async fn another_config_changes_what_it_names_and_the_session_goes_on() {
    let server = Server::start();
    let mut session = Session::open(&server, named("changing")).await;
    let expected = spoken(&server, SHORT, OUTPUT).await.duration();
    session.speak("before", SHORT).await;
    let before = session.completion_of("before").await;
    assert!(before.time("duration_ms").abs_diff(expected) <= Duration::from_millis(20));

    // Another voice, format and rate.
    let tts = json!({"voice_id": "flite-rms", "audio_format": "linear16", "sample_rate": 8_000});
    let other = spoken_with(&server, SHORT, tts.clone(), OUTPUT).await;
    let other_bytes = other.samples().len() * 2;
    session
        .send(with(named("changing"), json!({"tts_config": local(tts)})))
        .await;
    assert_eq!(session.next("ready").await["stream_id"], "changing");
    let passed = session.sound().len();
    session.speak("after", SHORT).await;
    session.completion_of("after").await;
    let bytes: usize = session.sound()[passed..]
        .iter()
        .map(|chunk| chunk.data.len())
        .sum();
    assert!(
        bytes.abs_diff(other_bytes) <= 320,
        "{bytes} instead of {other_bytes}"
    );

    // Other ears.
    let stt = json!({"encoding": "linear16", "sample_rate": 48_000, "channels": 2});
    session
        .send(with(hears(stt), json!({"stream_id": "changing"})))
        .await;
    session.next("ready").await;
    let speech = sentences(&server, &[SENTENCES[3]], Duration::from_secs(1)).await;
    let mut format = WIDE;
    format.layout.rate = vivavoce::audio::SampleRate::HZ_48000;
    format.layout.channels = vivavoce::audio::Channels::Stereo;
    session.hear(encoded(&speech, format).await).await;
    let turn = session.end_of_turn().await;
    let text = turn.text("turn_transcript");
    assert!(share_of_words(SENTENCES[3], text) >= 0.85, "{text}");
    session.close().await;
}

#[tokio::test]
async fn a_config_that_cannot_be_carried_out_leaves_the_session_as_it_was() {
    let server = Server::start();
    let mut session = Session::open(&server, named("steady")).await;
    session.speak("long", &SENTENCES[..2].join(" ")).await;
    session.next("tts_started").await;
    session.send(named("other")).await;
    let error = session.refused("invalid_message").await;
    assert!(error.text("message").contains("stream_id"), "{error}");
    session.send(says(json!({"provider": "nobody"}))).await;
    session.refused("unsupported_provider").await;
    session.send(hears(json!({"provider": "nobody"}))).await;
    session.refused("unsupported_provider").await;
    session.send(says(json!({"speaking_rate": 100}))).await;
    session.refused("invalid_message").await;
    session.completion_of("long").await;
    let expected = spoken(&server, &SENTENCES[..2].join(" "), OUTPUT)
        .await
        .duration();
    let off = duration(&session.sound()).abs_diff(expected);
    assert!(off <= Duration::from_millis(20), "{off:?}");
    let ids: Vec<Value> = listed(&server).await;
    assert_eq!(ids, ["steady"]);
    session.close().await;
}

#[tokio::test]
async fn too_large_messages_close_with_1009() {
    let server = Server::start();
    let mut session = Session::open(&server, config(json!({}))).await;
    session.send_sound(vec![0; 1 << 20]).await;
    session.speak("x", "Yes.").await;
    session.completion_of("x").await;
    session.send_sound(vec![0; (1 << 20) + 1]).await;
    assert_eq!(session.closed().await, 1009);
    let mut session = Session::open(&server, config(json!({}))).await;
    session.send_text(&" ".repeat((4 << 20) + 1)).await;
    assert_eq!(session.closed().await, 1009);
}

/// The names in `GET /sessions`.
async fn listed(server: &Server) -> Vec<Value> {
    let answer = client()
        .get(format!("{}/sessions", server.url))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    let body: Value = answer.json().await.unwrap();
    let sessions = body["sessions"].as_array().unwrap();
    assert!(
        sessions
            .iter()
            .all(|session| !session["started_at"].is_null())
    );
    let mut ids: Vec<Value> = sessions.iter().map(|s| s["stream_id"].clone()).collect();
    ids.sort_by_key(Value::to_string);
    ids
}

/// `DELETE /sessions/{stream_id}`.
pub async fn delete(server: &Server, stream_id: &str) -> reqwest::Response {
    let url = format!("{}/sessions/{stream_id}", server.url);
    client().delete(url).send().await.unwrap()
}

#[tokio::test]
async fn sessions_are_listed_and_can_be_ended() {
    let server = Server::start();
    assert_eq!(listed(&server).await, [""; 0]);
    let unconfigured = Session::connect(&server).await;
    let first = Session::open(&server, named("first")).await;
    let mut second = Session::open(&server, named("second")).await;
    assert_eq!(listed(&server).await, ["first", "second"]);
    assert_error(
        delete(&server, "third").await,
        404,
        "NOT_FOUND",
        "stream_id",
    )
    .await;

    second.speak("long", &SENTENCES.join(" ")).await;
    second.next("tts_started").await;
    let answer = delete(&server, "second").await;
    assert_eq!(answer.status(), 200);
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body, json!({"status": "ended", "stream_id": "second"}));
    assert_eq!(second.closed().await, 1000);
    left(&server, &["first"]).await;
    assert_error(
        delete(&server, "second").await,
        404,
        "NOT_FOUND",
        "stream_id",
    )
    .await;
    first.close().await;
    left(&server, &[]).await;
    unconfigured.close().await;
}

/// These sessions are left, 5 s after the end of others at the latest.
pub async fn left(server: &Server, expected: &[&str]) {
    let since = Instant::now();
    while listed(server).await != expected {
        assert!(
            since.elapsed() < Duration::from_secs(5),
            "{:?}",
            listed(server).await
        );
    }
}

#[tokio::test]
async fn more_sessions_than_allowed_are_refused_until_one_ends() {
    let server = Server::start_with(&[("LIMITS_SESSIONS", "2")]);
    let first = Session::open(&server, named("first")).await;
    let second = Session::open(&server, named("second")).await;
    assert_error(handshake(&server, &[]).await, 503, "OVERLOADED", "").await;
    first.close().await;
    left(&server, &["second"]).await;
    Session::open(&server, named("third")).await.close().await;
    second.close().await;
}

#[tokio::test]
async fn more_sockets_without_config_than_allowed_are_refused() {
    let server = Server::start_with(&[("LIMITS_UNCONFIGURED_SOCKETS", "2")]);
    let first = Session::connect(&server).await;
    let mut second = Session::connect(&server).await;
    assert_error(handshake(&server, &[]).await, 503, "OVERLOADED", "").await;
    second.send(config(json!({}))).await;
    second.next("ready").await;
    let third = Session::connect(&server).await;
    assert_error(handshake(&server, &[]).await, 503, "OVERLOADED", "").await;
    for session in [first, second, third] {
        session.close().await;
    }
}

#[tokio::test]
async fn pages_of_other_origins_may_not_connect_unless_they_are_listed() {
    let server = Server::start_with(&[("SERVER_CORS_ORIGINS", "https://app.example")]);
    for (origin, status) in [
        (server.url.as_str(), 101),
        ("https://app.example", 101),
        ("http://app.example", 403),
        ("https://evil.example", 403),
        ("null", 403),
    ] {
        let answer = handshake(&server, &[("origin", origin)]).await;
        assert_eq!(answer.status(), status, "{origin}");
        if status == 403 {
            assert_error(answer, 403, "ORIGIN_NOT_ALLOWED", origin).await;
        }
    }
    assert_eq!(handshake(&server, &[]).await.status(), 101);
}

#[tokio::test]
async fn a_stopping_server_finishes_what_it_says_and_takes_nobody_else() {
    let mut server = Server::start_with(&[("SHUTDOWN_DRAIN_SECONDS", "4")]);
    let sessions = (0..4).map(|_| Session::open(&server, config(json!({}))));
    let mut sessions = join_all(sessions).await;
    for session in &mut sessions {
        session.speak("last words", SENTENCES[3]).await;
        session.next("tts_started").await;
    }
    server.terminate();
    let ready = format!("{}/readyz", server.url);
    loop {
        let answer = client().get(&ready).send().await.unwrap();
        if answer.status() == 503 {
            break;
        }
    }
    assert_error(handshake(&server, &[]).await, 503, "OVERLOADED", "").await;
    for mut session in sessions {
        session.completion_of("last words").await;
        assert_eq!(session.closed().await, 1001);
    }
    let server = tokio::task::spawn_blocking(move || server.ended());
    assert_eq!(server.await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn a_session_that_ends_anyhow_leaves_no_recogniser_behind() {
    let server = Server::start();
    let speech = sentences(&server, &[SENTENCES[3]], Duration::ZERO).await;
    let speech = encoded(&speech, WIDE).await;
    let clean = Session::open(&server, named("clean")).await;
    let cut = Session::open(&server, named("cut")).await;
    let deleted = Session::open(&server, named("deleted")).await;
    for session in [&clean, &cut, &deleted] {
        session.speak("x", SHORT).await;
    }
    let hearing = [&clean, &cut, &deleted].map(|session| session.hear(speech[..40].to_vec()));
    join_all(hearing).await;
    clean.close().await;
    drop(cut);
    delete(&server, "deleted").await;
    drop(deleted);
    left(&server, &[]).await;
    eventually("syntheses are left", || server.children("flite").is_empty()).await;
    // The next one is heard as if nobody had been there.
    let mut next = Session::open(&server, config(json!({}))).await;
    let speech = sentences(&server, &[SENTENCES[3]], Duration::from_secs(1)).await;
    next.hear(encoded(&speech, WIDE).await).await;
    let text = next.end_of_turn().await;
    assert!(share_of_words(SENTENCES[3], text.text("turn_transcript")) >= 0.85);
    next.close().await;
}

#[tokio::test]
async fn an_error_says_what_it_answers() {
    let server = Server::start();
    let mut session = Session::open(&server, config(json!({}))).await;
    for (message, in_reply_to, id) in [
        (
            json!({"type": "speak", "id": "a"}),
            json!("speak"),
            json!("a"),
        ),
        (
            json!({"type": "loading_start"}),
            json!("loading_start"),
            Value::Null,
        ),
        (json!({"type": "hangup"}), json!("hangup"), Value::Null),
        (
            json!({"type": "config", "vad": 5}),
            json!("config"),
            Value::Null,
        ),
        (
            json!({"type": "update_config", "stt_config": {"provider": "nobody"}}),
            json!("update_config"),
            Value::Null,
        ),
        (json!({"type": "dance", "id": "b"}), Value::Null, json!("b")),
    ] {
        session.send(message.clone()).await;
        let error = session.next("error").await;
        assert_eq!(
            (&error["in_reply_to"], &error["id"]),
            (&in_reply_to, &id),
            "{message}: {error}"
        );
        assert!(error["played_ms"].is_null(), "{error}");
    }
    let known = session.events_of("error").pop().unwrap();
    assert!(
        known
            .text("message")
            .contains("update_config, resume, speak, clear"),
        "{known}"
    );
    session.close().await;
}

#[tokio::test]
async fn what_has_no_effect_is_told_once_with_the_remedy() {
    let server = Server::start();
    let misspelt = json!({"colour": "red", "vad": {"treshold": 0.5}});
    let mut session = Session::connect(&server).await;
    session.send(config(misspelt.clone())).await;
    let warning = session.next("warning").await;
    assert_eq!(warning["code"], "unknown_fields", "{warning}");
    assert_eq!(warning["in_reply_to"], "config", "{warning}");
    let message = warning.text("message");
    assert!(
        message.contains("vad.treshold (did you mean threshold?)"),
        "{message}"
    );
    assert!(message.contains("colour"), "{message}");
    session.next("ready").await;

    session
        .send_sound([b"RIFF\0\0\0\0WAVEfmt ".as_slice(), &[0; 640]].concat())
        .await;
    session.send_sound(vec![0; 640]).await;
    assert_eq!(
        session.next("warning").await["code"],
        "container_as_samples"
    );
    session.speak("a", "<speak>Hello.</speak>").await;
    assert_eq!(session.next("warning").await["code"], "markup_as_text");
    session.speak("b", "...").await;
    let warning = session.next("warning").await;
    assert_eq!(
        (&warning["code"], &warning["id"]),
        (&json!("nothing_to_say"), &json!("b"))
    );
    session.speak("c", "<speak>Hello.</speak>").await;
    session.completion_of("c").await;
    assert_eq!(session.events_of("warning").len(), 4);

    session
        .send(config(with(misspelt, json!({"strict": true}))))
        .await;
    let refused = session.refused("invalid_message").await;
    assert!(
        refused.text("message").contains("vad.treshold"),
        "{refused}"
    );
    // What was refused has changed nothing.
    session.send(config(json!({"strict": true}))).await;
    session.next("ready").await;
    session
        .send(json!({"type": "speak", "text": "Hello.", "flsh": true}))
        .await;
    let refused = session.refused("invalid_message").await;
    assert!(
        refused
            .text("message")
            .contains("flsh (did you mean flush?)"),
        "{refused}"
    );
    session.close().await;
}

#[tokio::test]
async fn an_mp3_file_that_has_no_tag_is_told_by_its_frames() {
    let server = Server::start_with(&[("NULL_ENABLED", "true")]);
    let asked = json!({"audio_format": "mp3", "sample_rate": 24_000});
    let file = crate::harness::speak(&server, "A file is no sound.", asked).await;
    let file = file.bytes().await.unwrap();
    // Behind a tag, if there is one, and the first frame, which may be information about the file.
    let frames = file.get(file.len() / 4..).unwrap();
    let hears = hears(json!({"provider": "null"}));
    let mut session = Session::open(&server, hears).await;
    for piece in frames.chunks(640) {
        session.send_sound(piece.to_vec()).await;
    }
    let warning = session.next("warning").await;
    assert_eq!(warning["code"], "container_as_samples", "{warning}");
    assert!(warning.text("message").contains("an MP3 file"), "{warning}");
    session.close().await;
}

#[tokio::test]
async fn a_provider_without_any_credential_is_missing_one() {
    let server = Server::start();
    let mut session = Session::connect(&server).await;
    session.send(hears(json!({"provider": "deepgram"}))).await;
    let refused = session.refused("missing_provider_auth").await;
    assert!(
        refused.text("message").contains("DEEPGRAM_API_KEY"),
        "{refused}"
    );
    session.close().await;
}
