//! What a session says: utterances in order, at the listener's pace, and gone when they are cleared. Everything is
//! measured where the client is.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use vivavoce::audio::{AudioFormat, Encoding, Pcm, SampleRate};

use super::client::{Chunk, Event, Hiccups, Session, config, says, with};
use super::sound::{
    CHUNK, LEAD, OUTPUT, OUTPUT_SECOND, Playout, decoded, duration, likeness, spoken, spoken_with,
    transcribed,
};
use crate::harness::{SENTENCES, Server, client, share_of_words, words};

/// What the protocol allows a server to be late by.
const FRAME: Duration = Duration::from_millis(20);
const SHORT: &str = "Please call me back on Monday morning.";

/// Half a minute of speech.
fn long() -> String {
    SENTENCES.join(" ")
}

/// This and nothing else was said.
fn assert_said(meant: &Pcm, chunks: &[Chunk]) {
    let likeness = likeness(meant, &decoded(chunks, OUTPUT));
    assert!(likeness >= 0.95, "{likeness}");
}

fn assert_within(what: &str, time: Duration, expected: Duration, tolerance: Duration) {
    let off = time.abs_diff(expected);
    assert!(
        off <= tolerance,
        "{what}: {time:?} instead of {expected:?}, more than {tolerance:?} off"
    );
}

#[tokio::test]
async fn an_utterance_is_started_heard_and_complete_when_its_last_sample_was_played() {
    let server = Server::start();
    let expected = spoken(&server, SENTENCES[3], OUTPUT).await.duration();
    let hiccups = Hiccups::watch();
    let mut session = Session::open(&server, config(json!({}))).await;
    session.speak("first", SENTENCES[3]).await;
    let started = session.next("tts_started").await;
    let complete = session.next("tts_playback_complete").await;
    let late = hiccups.worst() + session.round_trip().await;

    assert_eq!(
        (&started["id"], &complete["id"]),
        (&json!("first"), &json!("first"))
    );
    assert_eq!(started.chunks_before, 0, "sound before tts_started");
    let sound = session.sound_of("first");
    assert_eq!(sound.len(), session.sound().len(), "sound after the end");
    let mut lengths = sound.iter().map(|chunk| chunk.data.len());
    assert!(lengths.all(|length| length == OUTPUT_SECOND / 50));
    assert_within("sound", duration(&sound), expected, CHUNK);
    assert_within("duration_ms", complete.time("duration_ms"), expected, CHUNK);

    let played_out = Playout::of(&sound).ends;
    let off = complete.at.max(played_out) - complete.at.min(played_out);
    println!("complete {off:?} from the end, machine {late:?} late");
    assert!(
        off <= FRAME + late,
        "{off:?} from the end, machine {late:?} late"
    );
    let told = complete.time("timestamp") - started.time("timestamp");
    let measured = complete.at - started.at;
    assert_within("timestamps", told, measured, FRAME + late);
    let heard = transcribed(&decoded(&sound, OUTPUT));
    assert!(share_of_words(SENTENCES[3], &heard) >= 0.85, "{heard}");
    session.close().await;
}

#[tokio::test]
async fn utterances_are_said_in_order_and_without_a_gap() {
    let server = Server::start();
    let hiccups = Hiccups::watch();
    let mut session = Session::open(&server, config(json!({}))).await;
    let ids: Vec<String> = (0..6).map(|n| format!("utterance {n}")).collect();
    for (id, text) in ids
        .iter()
        .zip(["One.", "Two.", "Three.", "Four.", "Five.", "Six."])
    {
        session.speak(id, text).await;
    }
    session.completion_of(ids.last().unwrap()).await;
    assert_eq!(session.ended(), ids);
    let started = session.events_of("tts_started");
    let started: Vec<_> = started.iter().map(|event| event.text("id")).collect();
    assert_eq!(started, ids);
    let gap = Playout::of(&session.sound()).longest_gap;
    assert!(gap <= hiccups.worst(), "{gap:?} of nothing to play");
    session.close().await;
}

/// An answer as a language model brings it: words as they come, and what ends them.
fn tokens(id: &str, text: &str) -> Vec<Value> {
    let words = text.split_inclusive(' ').map(str::to_owned);
    let token = |text: String| json!({"type": "speak", "text": text, "flush": false, "id": id});
    let end = json!({"type": "speak", "text": "", "id": id});
    words.map(token).chain([end]).collect()
}

#[tokio::test]
async fn tokens_in_flight_when_their_utterance_is_cut_are_no_part_of_the_next_one() {
    let server = Server::start();
    let mut session = Session::open(&server, config(json!({}))).await;
    let long = long();
    let mut in_flight = tokens("cut", &long).into_iter();
    for token in in_flight.by_ref().take(60) {
        session.send(token).await;
    }
    let second = |sound: &[Chunk]| duration(sound) > Duration::from_secs(1);
    session.until_sound(Duration::from_secs(20), second).await;
    session.command("clear").await;
    // Its client does not know yet, and the model goes on.
    for token in in_flight {
        session.send(token).await;
    }
    for token in tokens("next", SHORT) {
        session.send(token).await;
    }
    let cut = session.end_of("cut").await;
    assert_eq!(cut.kind(), "tts_interrupted", "{cut}");
    assert!(long.starts_with(cut.text("heard_text")), "{cut}");
    session.completion_of("next").await;
    assert_eq!(session.ended(), ["cut", "next"]);
    let started = session.events_of("tts_started");
    let started: Vec<&str> = started.iter().map(|event| event.text("id")).collect();
    assert_eq!(started, ["cut", "next"]);
    assert_said(
        &spoken(&server, SHORT, OUTPUT).await,
        &session.sound_of("next"),
    );
    let metrics = client().get(format!("{}/metrics", server.url));
    let metrics = metrics.send().await.unwrap().text().await.unwrap();
    let late = metrics
        .lines()
        .find_map(|line| line.strip_prefix("vivavoce_tts_late_texts_total "));
    assert!(late.unwrap().parse::<u64>().unwrap() > 10, "{late:?}");
    session.close().await;
}

#[tokio::test]
async fn another_id_flushes_the_utterance_before_it() {
    let server = Server::start();
    let mut session = Session::open(&server, config(json!({}))).await;
    let part =
        |id: &str, text: &str| json!({"type": "speak", "text": text, "flush": false, "id": id});
    session.send(part("one", "This is the")).await;
    session.send(part("one", " first")).await;
    session.send(part("two", "And this is the second")).await;
    session.completion_of("one").await;
    session.speak("three", SHORT).await;
    session.completion_of("three").await;
    assert_eq!(session.ended(), ["one", "two", "three"]);
    assert_said(
        &spoken(&server, "This is the first", OUTPUT).await,
        &session.sound_of("one"),
    );
    session.close().await;
}

#[tokio::test]
async fn clear_with_an_id_cuts_that_utterance_and_no_other() {
    let server = Server::start();
    let mut session = Session::open(&server, config(json!({}))).await;
    session.speak("first", SHORT).await;
    session.speak("second", SENTENCES[0]).await;
    session.speak("third", "Goodbye.").await;
    let protected = json!({"id": "fourth", "allow_interruption": false});
    session.speak_with("Goodbye again.", protected).await;
    session.next("tts_started").await;
    for id in ["second", "fourth", "nobody"] {
        session.send(json!({"type": "clear", "id": id})).await;
    }
    session.completion_of("fourth").await;
    let kinds: Vec<String> = session
        .events()
        .iter()
        .map(|e| e.kind().to_owned())
        .collect();
    assert!(!kinds.contains(&"error".to_owned()), "{kinds:?}");
    assert_eq!(session.ended(), ["first", "second", "third", "fourth"]);
    assert_eq!(session.end_of("second").await["played_ms"], 0);
    assert_said(
        &spoken(&server, SHORT, OUTPUT).await,
        &session.sound_of("first"),
    );
    session.close().await;
}

#[tokio::test]
async fn an_utterance_without_id_has_events_with_null() {
    let server = Server::start();
    let mut session = Session::open(&server, config(json!({}))).await;
    session.speak_with("Yes.", json!({})).await;
    for kind in ["tts_started", "tts_playback_complete"] {
        let event = session.next(kind).await;
        assert!(event["id"].is_null(), "{event}");
    }
    session.close().await;
}

#[tokio::test]
async fn blank_text_is_complete_at_once_whatever_plays() {
    let server = Server::start();
    let mut session = Session::open(&server, config(json!({}))).await;
    for blank in ["", "  \n\t "] {
        session.speak(blank, blank).await;
        let complete = session.completion_of(blank).await;
        assert_eq!(complete["duration_ms"], 0, "{complete}");
    }
    session.speak("long", &long()).await;
    session.next("tts_started").await;
    session.speak("blank", " ").await;
    let complete = session.completion_of("blank").await;
    assert_eq!(complete["duration_ms"], 0, "{complete}");
    assert_eq!(session.ended(), ["", "  \n\t ", "blank"]);
    session.close().await;
}

#[tokio::test]
async fn tokens_are_spoken_sentence_by_sentence_while_the_rest_is_written() {
    let server = Server::start();
    let mut session = Session::open(&server, config(json!({}))).await;
    let text = format!("{} {}", SENTENCES[3], SENTENCES[6]);
    let tokens: Vec<&str> = text.split_inclusive(' ').collect();
    let (now, later) = tokens.split_at(tokens.len() - 3);
    let token = |text: &str| json!({"type": "speak", "text": text, "flush": false, "id": "tokens"});
    for text in now {
        session.send(token(text)).await;
    }
    session.next("tts_started").await;
    // The first sentence is said to its end, and the utterance is not over.
    session.until_silent().await;
    assert_eq!(session.ended(), [""; 0]);
    let before = session.sound().len();
    for text in later {
        session.send(token(text)).await;
    }
    session.speak_with("", json!({"flush": true})).await;
    session.completion_of("tokens").await;
    assert_eq!(session.ended(), ["tokens"]);
    assert_eq!(session.events_of("tts_started").len(), 1);
    let sound = session.sound();
    let first = spoken(&server, SENTENCES[3], OUTPUT).await;
    assert_said(&first, &sound[..before]);
    let second = spoken(&server, SENTENCES[6], OUTPUT).await;
    assert_said(&second, &sound[before..]);
    session.close().await;
}

/// The last of a cleared session's sound, and when the server had read the command.
struct Cleared {
    read: Instant,
    interrupted: Event,
    sound: Vec<Chunk>,
}

async fn clear_after(session: &mut Session, id: &str, bytes: usize) -> Cleared {
    session.received(bytes).await;
    let read = session.command_read("clear").await;
    let interrupted = session.end_of(id).await;
    session.assert_silent_for(Duration::from_millis(400)).await;
    Cleared {
        read,
        interrupted,
        sound: session.sound(),
    }
}

#[tokio::test]
async fn a_cleared_utterance_is_not_heard() {
    let server = Server::start();
    let text = long();
    let whole = spoken(&server, &text, OUTPUT).await.duration();
    let hiccups = Hiccups::watch();
    // At different times, some of them within the lead.
    let sessions = (0..8u32).map(|n| {
        let (server, text, hiccups) = (&server, &text, &hiccups);
        async move {
            let mut session = Session::open(server, config(json!({}))).await;
            session.speak("long", text).await;
            session.speak("next", SHORT).await;
            let bytes = 2_000 + OUTPUT_SECOND * n as usize / 2;
            let cleared = clear_after(&mut session, "long", bytes).await;
            let late = hiccups.worst() + session.round_trip().await;

            let Cleared {
                read,
                interrupted,
                sound,
            } = cleared;
            assert_eq!(interrupted.kind(), "tts_interrupted", "{interrupted}");
            assert_eq!(
                interrupted.chunks_before,
                sound.len(),
                "a byte after {interrupted}"
            );
            let last = sound.last().unwrap().at.saturating_duration_since(read);
            assert!(
                last <= FRAME + late,
                "sound {last:?} after clear, machine {late:?} late"
            );
            let told = interrupted.at.saturating_duration_since(read);
            println!("last sound {last:?}, event {told:?} after clear, machine {late:?} late");
            assert!(
                told <= FRAME + late,
                "told {told:?} after clear, machine {late:?} late"
            );

            let played = interrupted.time("played_ms");
            let by_clock = interrupted.at - sound[0].at;
            let received = duration(&sound);
            assert_within("played_ms", played, by_clock.min(received), FRAME + late);
            assert!(played <= received + Duration::from_millis(1));
            assert_heard(
                text,
                &interrupted,
                played.as_secs_f64() / whole.as_secs_f64(),
            );

            let next = session.end_of("next").await;
            assert_eq!(next.kind(), "tts_interrupted", "{next}");
            assert_eq!(
                (next["played_ms"].as_u64(), next.text("heard_text")),
                (Some(0), "")
            );

            // The session goes on as if nothing had been.
            session.speak("after", "Yes.").await;
            session.completion_of("after").await;
            assert_eq!(session.ended(), ["long", "next", "after"]);
            session.close().await;
        }
    });
    join_all(sessions).await;
}

/// What is said to have been heard is a beginning of the text, about as long as the sound.
fn assert_heard(text: &str, interrupted: &Event, share: f64) {
    let heard = interrupted.text("heard_text");
    assert!(text.starts_with(heard.trim_end()), "{heard:?}");
    let (all, heard) = (words(text).len() as f64, words(heard).len() as f64);
    let expected = share * all;
    assert!(
        (heard - expected).abs() <= 3.0 + 0.15 * expected,
        "{heard} words heard, about {expected:.1} spoken: {interrupted}"
    );
}

#[tokio::test]
async fn clear_touches_nothing_that_comes_after_it() {
    let server = Server::start();
    let mut session = Session::open(&server, config(json!({}))).await;
    for id in ["first", "second"] {
        session.command("clear").await;
        session.speak(id, "Yes.").await;
        session.completion_of(id).await;
    }
    assert_eq!(session.ended(), ["first", "second"]);
    session.close().await;
}

#[tokio::test]
async fn an_open_utterance_is_cleared_with_what_was_not_yet_said_of_it() {
    let server = Server::start();
    let mut session = Session::open(&server, config(json!({}))).await;
    let open = json!({"flush": false, "id": "open"});
    let text = format!("{} And then", SENTENCES[3]);
    session.speak_with(&text, open).await;
    session.next("tts_started").await;
    session.command("clear").await;
    let interrupted = session.next("tts_interrupted").await;
    assert_eq!(interrupted["id"], "open");
    session.speak("new", SHORT).await;
    session.completion_of("new").await;
    let expected = spoken(&server, SHORT, OUTPUT).await;
    assert_said(&expected, &session.sound_of("new"));
    session.close().await;
}

#[tokio::test]
async fn replace_clears_first() {
    let server = Server::start();
    let mut session = Session::open(&server, config(json!({}))).await;
    session.speak("old", &long()).await;
    session.speak("waiting", SHORT).await;
    session.received(OUTPUT_SECOND).await;
    session
        .speak_with(SENTENCES[3], json!({"replace": true, "id": "new"}))
        .await;
    session.completion_of("new").await;
    for id in ["old", "waiting"] {
        assert_eq!(session.end_of(id).await.kind(), "tts_interrupted");
    }
    assert_eq!(session.ended(), ["old", "waiting", "new"]);
    // Nothing of the old between its end and the start of the new.
    let events = session.events();
    let place = |kind: &str, id: &str| {
        let mut events = events.iter();
        let event = events.find(|event| event.kind() == kind && event["id"] == id);
        event.unwrap().chunks_before
    };
    assert_eq!(place("tts_interrupted", "old"), place("tts_started", "new"));
    let expected = spoken(&server, SENTENCES[3], OUTPUT).await;
    assert_said(&expected, &session.sound_of("new"));
    session.close().await;
}

#[tokio::test]
async fn a_protected_utterance_is_heard_to_its_end_and_protects_nothing_else() {
    let server = Server::start();
    let expected = spoken(&server, SENTENCES[3], OUTPUT).await;
    let new = spoken(&server, SENTENCES[6], OUTPUT).await;
    let (server, expected, new) = (&server, &expected, &new);
    let cases = [false, true].map(|replace| async move {
        let mut session = Session::open(server, config(json!({}))).await;
        let protected = json!({"allow_interruption": false, "id": "protected"});
        session.speak_with(SENTENCES[3], protected).await;
        session.speak("behind", SHORT).await;
        session.next("tts_started").await;
        if replace {
            session
                .speak_with(SENTENCES[6], json!({"replace": true, "id": "new"}))
                .await;
        } else {
            session.command("clear").await;
            session.speak("new", SENTENCES[6]).await;
        }
        session.completion_of("protected").await;
        let behind = session.end_of("behind").await;
        assert_eq!(behind.kind(), "tts_interrupted", "{behind}");
        session.completion_of("new").await;
        assert_eq!(session.ended(), ["protected", "behind", "new"]);
        assert_said(expected, &session.sound_of("protected"));
        assert_said(new, &session.sound_of("new"));

        // Protection has died with its utterance.
        session.speak("last", &long()).await;
        session.next("tts_started").await;
        session.command("clear").await;
        assert_eq!(session.end_of("last").await.kind(), "tts_interrupted");
        session.close().await;
    });
    join_all(cases).await;
}

/// Twenty seconds; with `VIVAVOCE_LONG` ten minutes.
#[tokio::test]
async fn paced_sound_is_never_far_ahead_never_late_and_does_not_drift() {
    let times = std::env::var_os("VIVAVOCE_LONG").map_or(1, |_| 30);
    let server = Server::start();
    let hiccups = Hiccups::watch();
    let mut session = Session::open(&server, config(json!({}))).await;
    let text = vec![SENTENCES[..8].join(" "); times].join(" ");
    session.speak("long", &text).await;
    let started = session.next("tts_started").await;
    // Longer than anything else is waited for.
    let end = loop {
        match session.events_of("tts_playback_complete").pop() {
            Some(end) => break end,
            None => session.news().await,
        }
    };
    let late = hiccups.worst() + session.round_trip().await;
    let sound = session.sound();
    let playout = Playout::of(&sound);
    println!(
        "{:?} of sound: at most {:?} ahead, gap {:?}, machine {late:?} late",
        duration(&sound),
        playout.most_ahead,
        playout.longest_gap
    );
    assert!(
        playout.most_ahead <= LEAD + CHUNK + late,
        "{:?}",
        playout.most_ahead
    );
    assert!(
        playout.longest_gap <= late,
        "nothing to play for {:?}, machine {late:?} late",
        playout.longest_gap
    );
    // The first second fills the lead; then the sound that waits is the same from first to last.
    let (begin, finish) = (
        &playout.ahead[50..100],
        &playout.ahead[playout.ahead.len() - 50..],
    );
    let mean = |ahead: &[Duration]| ahead.iter().sum::<Duration>() / ahead.len() as u32;
    assert_within("lead at the end", mean(finish), mean(begin), FRAME);
    let lasted = end.at - started.at;
    assert_within("paced clock", lasted, duration(&sound), FRAME + late);
    session.close().await;
}

#[tokio::test]
async fn without_pacing_sound_comes_as_fast_as_it_is_made() {
    let server = Server::start_with(&[("SOCKET_PACING", "off")]);
    let text = SENTENCES[..3].join(" ");
    let mut session = Session::open(&server, config(json!({}))).await;
    session.speak("long", &text).await;
    session.completion_of("long").await;
    let sound = session.sound();
    let took = sound.last().unwrap().at - sound[0].at;
    let lasts = duration(&sound);
    assert!(took * 3 < lasts, "{took:?} for {lasts:?} of sound");
    assert_said(&spoken(&server, &text, OUTPUT).await, &sound);
    session.close().await;
}

#[tokio::test]
async fn every_output_format_is_paced_and_lasts_as_long() {
    /// What encoders put before and behind the sound.
    const CODEC: Duration = Duration::from_millis(130);
    let table: &[(Encoding, u32)] = &[
        (Encoding::Linear16, 8_000),
        (Encoding::Linear16, 11_025),
        (Encoding::Linear16, 48_000),
        (Encoding::Wav, 24_000),
        (Encoding::Mulaw, 8_000),
        (Encoding::Mulaw, 16_000),
        (Encoding::Alaw, 8_000),
        (Encoding::Mp3, 24_000),
        (Encoding::Mp3, 44_100),
        (Encoding::OggOpus, 24_000),
        (Encoding::OggOpus, 48_000),
        (Encoding::Opus, 8_000),
        (Encoding::Opus, 24_000),
        (Encoding::Opus, 48_000),
    ];
    let server = Server::start();
    let meant = spoken(&server, SENTENCES[3], OUTPUT).await;
    let hiccups = Hiccups::watch();
    let sessions = table.iter().map(|&(encoding, hz)| {
        let (server, meant, hiccups) = (&server, &meant, &hiccups);
        async move {
            let fields = json!({"audio_format": encoding, "sample_rate": hz});
            let case = format!("{encoding} at {hz} Hz");
            let format = AudioFormat::mono(encoding, SampleRate::new(hz).unwrap());
            let expected = meant.duration();
            let mut session = Session::open(server, says(fields)).await;
            let mut said = Vec::new();
            // The second is as good as the first.
            for id in ["first", "second"] {
                session.speak(id, SENTENCES[3]).await;
                let complete = session.completion_of(id).await;
                let chunks = session.sound_of(id);
                assert_within(&case, complete.time("duration_ms"), expected, CODEC);
                let took = complete.at - chunks[0].at;
                assert_within(&case, took, expected, CODEC + hiccups.worst());
                let span = chunks.last().unwrap().at - chunks[0].at;
                assert!(span + LEAD + CODEC > expected, "{case}: {span:?}");
                said.push(chunks);
            }
            session.close().await;
            (case, format, said)
        }
    });
    // Looking closely takes time, which is not the clients'.
    for (case, format, said) in join_all(sessions).await {
        for chunks in said {
            let sound = decoded(&chunks, format);
            assert_within(&case, sound.duration(), meant.duration(), CODEC);
            let likeness = likeness(&meant, &sound);
            assert!(likeness >= 0.9, "{case}: {likeness}");
        }
    }
}

#[tokio::test]
async fn more_utterances_than_may_wait_are_refused_and_the_others_are_said() {
    const SENT: usize = 72;
    let server = Server::start();
    let mut session = Session::open(&server, says(json!({"speaking_rate": 4.0}))).await;
    for n in 0..SENT {
        session.speak(&n.to_string(), "No.").await;
    }
    session.completion_of("9").await;
    let refused = session.events_of("error");
    let overloaded = |error: &Event| error["code"] == "overloaded" && error["fatal"] == false;
    assert!(refused.iter().all(overloaded), "{refused:?}");
    let accepted = SENT - refused.len();
    assert!((64..SENT).contains(&accepted), "{accepted} were accepted");

    // The others wait for their turn, and each ends.
    session.command("clear").await;
    while session.ended().len() < accepted {
        session.news().await;
    }
    let ended = session.ended();
    assert!(ended.is_sorted_by_key(|id| id.parse::<usize>().unwrap()));
    assert!(session.events_of("tts_playback_complete").len() >= 10);
    session.speak("after", "No.").await;
    session.completion_of("after").await;
    assert_eq!(session.ended().len(), accepted + 1);
    session.close().await;
}

#[tokio::test]
async fn more_text_than_may_wait_is_refused() {
    let server = Server::start();
    let mut session = Session::open(&server, config(json!({}))).await;
    session.speak("short", SHORT).await;
    session.speak("huge", &"word ".repeat(14_000)).await;
    session.refused("overloaded").await;
    session.completion_of("short").await;
    session.speak("after", "Yes.").await;
    session.completion_of("after").await;
    assert_eq!(session.ended(), ["short", "after"]);
    session.close().await;
}

#[tokio::test]
async fn voice_speed_and_pronunciations_shape_what_is_said() {
    let server = Server::start();
    let table = [
        json!({"voice_id": "flite-rms"}),
        json!({"voice_id": "flite-slt", "speaking_rate": 0.6}),
        json!({"speaking_rate": 3.0}),
        json!({"pronunciations": [{"word": "weather", "pronunciation": "extraordinarily big elephant"}]}),
    ];
    let server = &server;
    let sessions = table.map(|fields: Value| async move {
        let rate = json!({"audio_format": "linear16", "sample_rate": 24_000});
        let asked = with(fields.clone(), rate);
        let expected = spoken_with(server, SENTENCES[3], asked, OUTPUT).await;
        let mut session = Session::open(server, says(fields.clone())).await;
        session.speak("shaped", SENTENCES[3]).await;
        let complete = session.completion_of("shaped").await;
        let lasted = complete.time("duration_ms");
        assert_within(&fields.to_string(), lasted, expected.duration(), CHUNK);
        session.close().await;
        lasted
    });
    let mut durations = join_all(sessions).await;
    durations.sort();
    durations.dedup();
    assert_eq!(durations.len(), 4, "{durations:?}");
}
