//! What a session hears: speech in real time becomes results, turns and voice activity.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use vivavoce::audio::encode::Encoded;
use vivavoce::audio::{AudioFormat, Channels, Encoding, Layout, Pcm, SampleRate, linear16};

use super::client::{Event, Session, config, hears};
use super::sound::{WIDE, chopped, encoded, sentences, spoken, then, transcribed};
use crate::harness::{SENTENCES, Server, share_of_words};

/// What separates two turns.
const PAUSE: Duration = Duration::from_secs(1);

/// Speakers who are heard at once: more would wait for each other on the fewest cores that these tests are run on.
const SPEAKERS: usize = 3;

/// A server whose recogniser is loaded before somebody speaks, as it is where nothing else was wished.
fn server() -> Server {
    Server::start_with(&[("LOCAL_STT_PRELOAD", "true")])
}

/// What these give, in their order, with no more than [`SPEAKERS`] at once.
async fn in_groups<F: Future>(sessions: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let sessions = stream::iter(sessions).buffered(SPEAKERS);
    sessions.collect().await
}

/// A session that hears this sound and the end of so many turns.
async fn heard(server: &Server, config: Value, sound: Vec<Encoded>, turns: usize) -> Session {
    let mut session = Session::open(server, config).await;
    let speaking = session.hear(sound);
    for _ in 0..turns {
        session.end_of_turn().await;
    }
    speaking.await;
    session
}

/// The sound of each of these texts.
async fn one_by_one(server: &Server, texts: &[&str]) -> Vec<Vec<Encoded>> {
    let mut sounds = Vec::new();
    for text in texts {
        sounds.push(encoded(&spoken(server, text, WIDE).await, WIDE).await);
    }
    sounds
}

/// The results of a session.
struct Heard {
    interim: usize,
    /// What was said in each turn.
    turns: Vec<String>,
}

impl Heard {
    /// Sums up a session, and checks what holds for every one: turns carry the joined finals, each ends once, and the
    /// clock of voice activity runs forward.
    fn by(session: &Session) -> Self {
        let mut heard = Self {
            interim: 0,
            turns: Vec::new(),
        };
        let mut finals: Vec<String> = Vec::new();
        for result in session.events_of("stt_result") {
            let transcript = result.text("transcript");
            let confidence = result["confidence"].as_f64();
            assert!(
                confidence.is_none_or(|c| (0.0..=1.0).contains(&c)),
                "{result}"
            );
            if !result.is("is_final") {
                assert!(!result.is("is_speech_final"), "{result}");
                heard.interim += 1;
                continue;
            }
            if !transcript.is_empty() {
                finals.push(transcript.to_owned());
            }
            if result.is("is_speech_final") {
                assert_eq!(result.text("turn_transcript"), finals.join(" "), "{result}");
                assert!(!finals.is_empty(), "a turn of nothing: {result}");
                heard.turns.push(finals.join(" "));
                finals.clear();
            } else {
                assert!(result["turn_transcript"].is_null(), "{result}");
            }
        }
        assert_eq!(finals, [""; 0], "finals behind the last turn");
        let clock = session.events_of("vad_event");
        assert!(clock.is_sorted_by_key(|event| event.time("timestamp_ms")));
        heard
    }

    fn text(&self) -> String {
        self.turns.join(" ")
    }
}

#[tokio::test]
async fn ten_sentences_are_heard_as_ten_turns_with_nine_words_of_ten() {
    let server = server();
    let server = &server;
    let hear = |texts: &'static [&'static str]| async move {
        let mut session = Session::open(server, config(json!({}))).await;
        session.hear_turns(one_by_one(server, texts).await).await;
        let first = session.events_of("stt_result").remove(0);
        let heard = Heard::by(&session);
        session.close().await;
        (heard, !first.is("is_final"))
    };
    let heard = in_groups(SENTENCES.chunks(2).map(hear)).await;
    let (mut pairs, mut early): (Vec<_>, Vec<_>) = heard.into_iter().unzip();
    // A recogniser on a busy machine has no time for what a sentence may become: whoever was not told is heard again, alone.
    let both = pairs.iter_mut().zip(&mut early);
    for (texts, (pair, early)) in SENTENCES.chunks(2).zip(both) {
        if !*early {
            let (again, is_early) = hear(texts).await;
            (pair.interim, *early) = (again.interim, is_early);
        }
    }
    let before_finals = early.iter().filter(|early| **early).count();
    assert!(before_finals * 2 > early.len(), "{early:?}");
    let turns: usize = pairs.iter().map(|heard| heard.turns.len()).sum();
    assert_eq!(turns, SENTENCES.len());
    let interim: usize = pairs.iter().map(|heard| heard.interim).sum();
    assert!(interim >= 2 * pairs.len(), "{interim}");
    let text = pairs.iter().map(Heard::text).collect::<Vec<_>>().join(" ");
    let share = share_of_words(&SENTENCES.join(" "), &text);
    assert!(share >= 0.9, "{:.0} %: {text}", share * 100.0);
}

/// Recordings of people that the test command fetches, see `local_stt`.
fn human(file: &str) -> Pcm {
    let folder = std::env::var_os("VIVAVOCE_HUMAN_SPEECH").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join(".clients/human"),
        PathBuf::from,
    );
    let file = folder.join("test/data").join(file);
    let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let data = bytes.windows(4).position(|four| four == b"data");
    let samples = match data {
        Some(at) if bytes.starts_with(b"RIFF") => &bytes[at + 8..],
        _ => &bytes,
    };
    Pcm::new(WIDE.layout, linear16::samples(samples))
}

#[tokio::test]
async fn people_are_heard() {
    const SAID: &[(&str, &str)] = &[
        ("goforward.raw", "go forward ten meters"),
        ("something.raw", "go somewhere and do something"),
        ("cards/001.wav", "ten of clubs"),
        ("cards/003.wav", "seven of clubs"),
        (
            "cards/005.wav",
            "eight of spades four of clubs seven of hearts",
        ),
        (
            "librivox/sense_and_sensibility_01_austen_64kb-0880.wav",
            "he was not an ill disposed young man",
        ),
        (
            "librivox/sense_and_sensibility_01_austen_64kb-0930.wav",
            "he might even have been made amiable himself",
        ),
    ];
    let server = server();
    let speakers = SAID.iter().map(|(file, _)| async {
        let sound = then(human(file), &Pcm::silence(WIDE.layout, 2 * PAUSE));
        let sound = encoded(&sound, WIDE).await;
        // People make pauses: there may be more than one turn.
        let session = heard(&server, config(json!({})), sound, 1).await;
        let heard = Heard::by(&session);
        session.close().await;
        heard.text()
    });
    let text = in_groups(speakers).await.join(" ");
    let said: Vec<_> = SAID.iter().map(|(_, said)| *said).collect();
    let share = share_of_words(&said.join(" "), &text);
    assert!(share >= 0.7, "{:.0} %: {text}", share * 100.0);
}

/// Sends speech that is said to have 16 kHz or `said`, four times as fast as it is heard, and gives the codes of all warnings.
async fn warned_of(server: &Server, samples: &[i16], said: u32) -> Vec<String> {
    let stt = json!({"provider": "null", "sample_rate": said});
    let mut session = Session::open(server, config(json!({"stt_config": stt}))).await;
    for frame in samples.chunks(said as usize / 50) {
        session.send_sound(linear16::encode(frame)).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Behind all sound.
    session.send(json!({"type": "update_config"})).await;
    session.next("ready").await;
    let warnings = session.events_of("warning");
    let told = |warning: &Event| format!("{} {}", warning.text("code"), warning.text("message"));
    let told = warnings.iter().map(told).collect();
    session.close().await;
    told
}

#[tokio::test]
async fn people_who_sound_three_times_too_slow_are_told_so_once_and_others_never() {
    let server = Server::start_with(&[("NULL_ENABLED", "true")]);
    let mut speech = Pcm::silence(WIDE.layout, Duration::ZERO);
    for number in ["0870", "0880", "0890", "0920", "0930"] {
        let file = format!("librivox/sense_and_sensibility_01_austen_64kb-{number}.wav");
        speech = then(speech, &human(&file));
        speech = then(speech, &Pcm::silence(WIDE.layout, PAUSE));
    }
    let at = |hz: u32| {
        let rate = SampleRate::new(hz).unwrap();
        vivavoce::audio::Resampler::convert(speech.clone(), rate).into_samples()
    };
    let (narrow, wide, full) = (at(8_000), at(16_000), at(48_000));
    let (first, second, third, told) = tokio::join!(
        warned_of(&server, &wide, 16_000),
        warned_of(&server, &full, 48_000),
        warned_of(&server, &narrow, 8_000),
        warned_of(&server, &full, 16_000),
    );
    let nothing: [String; 0] = [];
    assert_eq!([first, second, third].concat(), nothing);
    let [told] = &told[..] else {
        panic!("{told:?}");
    };
    assert!(told.starts_with("wrong_sample_rate "), "{told}");
    assert!(told.contains("44100 or 48000"), "{told}");
}

#[tokio::test]
async fn every_input_format_is_heard_in_messages_of_any_length() {
    const fn format(encoding: Encoding, rate: SampleRate, channels: Channels) -> AudioFormat {
        AudioFormat {
            encoding,
            layout: Layout::new(rate, channels),
        }
    }
    let cd = SampleRate::new(44_100u32).unwrap();
    let formats = [
        format(Encoding::Linear16, cd, Channels::Mono),
        format(Encoding::Linear16, SampleRate::HZ_48000, Channels::Stereo),
        format(Encoding::Linear16, SampleRate::HZ_8000, Channels::Mono),
        format(Encoding::Mulaw, SampleRate::HZ_8000, Channels::Mono),
        format(Encoding::Alaw, SampleRate::HZ_8000, Channels::Mono),
        format(Encoding::Opus, SampleRate::HZ_16000, Channels::Mono),
        format(Encoding::Opus, SampleRate::HZ_48000, Channels::Stereo),
        format(Encoding::OggOpus, SampleRate::HZ_48000, Channels::Mono),
    ];
    let server = server();
    let said = SENTENCES[3];
    let speech = sentences(&server, &[said], PAUSE).await;
    let mut cases = Vec::new();
    for format in formats {
        cases.push((format, None, encoded(&speech, format).await));
    }
    // Odd lengths tear samples apart.
    for length in [37, 4_001, 60_001] {
        cases.push((WIDE, Some(length), chopped(&speech, length)));
    }
    let sessions = cases.into_iter().map(|(format, length, sound)| {
        let server = &server;
        async move {
            let layout = format.layout;
            let config = hears(json!({
                "encoding": format.encoding, "sample_rate": layout.rate, "channels": layout.channels,
            }));
            let session = heard(server, config, sound, 1).await;
            let text = Heard::by(&session).text();
            let share = share_of_words(said, &text);
            // The recogniser's model is of wide-band speech.
            let expected = if layout.rate == SampleRate::HZ_8000 { 0.6 } else { 0.85 };
            assert!(share >= expected, "{format}, messages of {length:?}: {text}");
            session.close().await;
        }
    });
    in_groups(sessions).await;
}

#[tokio::test]
async fn sound_right_behind_config_is_heard_from_its_first_word() {
    let server = server();
    let said = SENTENCES[1];
    let speech = sentences(&server, &[said], PAUSE).await;
    let alone = transcribed(&speech);
    let mut sound = encoded(&speech, WIDE).await;
    let later = sound.split_off(sound.len() / 2);

    let mut session = Session::connect(&server).await;
    let config = Message::text(config(json!({})).to_string());
    let sound = sound.into_iter().map(|piece| Message::binary(piece.data));
    session.send_all([config].into_iter().chain(sound)).await;
    let speaking = session.hear(later);
    session.next("ready").await;
    let turn = session.end_of_turn().await;
    speaking.await;
    let text = turn.text("turn_transcript");
    assert!(text.starts_with("Please"), "{text}");
    // As well heard as if the recogniser had waited for it.
    assert_eq!(text, alone.trim());
    let events = session.events();
    assert_eq!(voice(&events)[0].0, "speech_start");
    session.close().await;
}

/// The kinds of voice activity, and where they were.
fn voice(events: &[Event]) -> Vec<(&str, Duration)> {
    let voice = events.iter().filter(|event| event.kind() == "vad_event");
    voice
        .map(|event| (event.text("event"), event.time("timestamp_ms")))
        .collect()
}

/// `place` is at `expected`, as exactly as people could tell.
fn assert_near(place: Duration, expected: Duration) {
    let off = place.abs_diff(expected);
    assert!(
        off < Duration::from_millis(250),
        "at {place:?} and not at {expected:?}"
    );
}

#[tokio::test]
async fn voice_activity_is_told_where_it_was() {
    let server = server();
    let lead_in = PAUSE;
    let speech = spoken(&server, SENTENCES[3], WIDE).await;
    let loud = |sample: &i16| sample.unsigned_abs() > 300;
    let at = |frames: usize| lead_in + WIDE.layout.rate.duration_of(frames);
    let begins = at(speech.samples().iter().position(loud).unwrap());
    let ends = at(speech.samples().iter().rposition(loud).unwrap());
    let sound = then(Pcm::silence(WIDE.layout, lead_in), &speech);
    let sound = then(sound, &Pcm::silence(WIDE.layout, PAUSE));
    let sound = encoded(&sound, WIDE).await;

    // A busy machine may keep the recogniser's last words for long, and the turn is theirs to end.
    let fields = json!({"vad": {"speech_final_timeout_ms": 20_000}});
    let mut session = Session::open(&server, config(fields)).await;
    let speaking = session.hear(sound);
    let end = loop {
        let event = session.next("vad_event").await;
        if event["event"] == "turn_end" {
            break event;
        }
    };
    speaking.await;
    let events = session.events();
    let voice = voice(&events);
    assert_eq!(voice.first().unwrap().0, "speech_start");
    assert_near(voice[0].1, begins);
    let pause = voice.iter().rev().nth(1).unwrap();
    assert_eq!(pause.0, "silence_detected", "{voice:?}");
    assert_near(pause.1, ends);
    for pair in voice.windows(2) {
        let kinds = (pair[0].0, pair[1].0);
        assert!(
            matches!(
                kinds,
                ("speech_start" | "speech_resumed", "silence_detected")
                    | ("silence_detected", "speech_resumed" | "turn_end")
            ),
            "{voice:?}"
        );
        assert!(pair[0].1 <= pair[1].1, "{voice:?}");
    }
    // The recogniser and the pause agree; whoever is first is the reason.
    assert!(
        ["provider", "silence"].contains(&end.text("reason")),
        "{end}"
    );
    let silence = end.time("timestamp_ms") - pause.1;
    assert_eq!(end.time("silence_duration_ms"), silence, "{end}");
    assert!(silence >= PAUSE * 4 / 10, "{end}");
    // The turn's text comes before its end.
    let results = session.events_of("stt_result");
    let last = results.iter().find(|r| r.is("is_speech_final")).unwrap();
    assert!(last.at <= end.at);
    session.close().await;
}

#[tokio::test]
async fn a_short_pause_does_not_end_a_turn() {
    let server = server();
    let said = [SENTENCES[3], SENTENCES[6]];
    let speech = sentences(&server, &said, PAUSE / 10).await;
    let sound = then(speech, &Pcm::silence(WIDE.layout, PAUSE));
    let sound = encoded(&sound, WIDE).await;
    let session = heard(&server, config(json!({})), sound, 1).await;
    let heard = Heard::by(&session);
    assert_eq!(heard.turns.len(), 1, "{:?}", heard.turns);
    let share = share_of_words(&said.join(" "), &heard.text());
    assert!(share >= 0.85, "{}", heard.text());
    let events = session.events();
    let kinds: Vec<_> = voice(&events).into_iter().map(|(kind, _)| kind).collect();
    assert!(kinds.contains(&"speech_resumed"), "{kinds:?}");
    session.close().await;
}

#[tokio::test]
async fn without_voice_activity_detection_the_recogniser_ends_the_turn() {
    let server = server();
    let speech = sentences(&server, &[SENTENCES[3]], 2 * PAUSE).await;
    let sound = encoded(&speech, WIDE).await;
    let off = config(json!({"vad": {"enabled": false}}));
    let session = heard(&server, off, sound, 1).await;
    assert_eq!(Heard::by(&session).turns.len(), 1);
    let events = session.events();
    let kinds: Vec<_> = voice(&events).into_iter().map(|(kind, _)| kind).collect();
    assert!(kinds.iter().all(|&kind| kind == "turn_end"), "{kinds:?}");
    session.close().await;
}

#[tokio::test]
async fn without_models_pocketsphinx_hears() {
    let none = tempfile::tempdir().unwrap();
    let server = Server::start_with(&[("MODELS_PATH", none.path().to_str().unwrap())]);
    let said = SENTENCES[3];
    let speech = one_by_one(&server, &[said]).await;
    let mut session = Session::open(&server, config(json!({}))).await;
    session.hear_turns(speech).await;
    let text = Heard::by(&session).text();
    assert!(share_of_words(said, &text) >= 0.85, "{text}");
    assert_eq!(text, text.to_lowercase(), "another recogniser");
    session.close().await;
}

#[tokio::test]
async fn silence_is_not_speech() {
    let server = server();
    let mut session = Session::open(&server, config(json!({}))).await;
    let silence = Pcm::silence(WIDE.layout, Duration::from_secs(2));
    session.hear(encoded(&silence, WIDE).await).await;
    // Whatever was to be told of the sound has been told when something after it is answered.
    session.speak("then", "").await;
    session.completion_of("then").await;
    let events = session.events();
    let told = ["stt_result", "vad_event"];
    let told = events.iter().find(|event| told.contains(&event.kind()));
    assert!(told.is_none(), "{}", told.unwrap());
    session.close().await;
}

#[tokio::test]
async fn a_session_hears_while_it_speaks() {
    let server = server();
    let said = [SENTENCES[3], SENTENCES[6]];
    let speech = one_by_one(&server, &said).await;
    let mut session = Session::open(&server, config(json!({}))).await;
    let protected = json!({"id": "answer", "allow_interruption": false});
    session.speak_with(&SENTENCES.join(" "), protected).await;
    let turns = session.hear_turns(speech).await;
    let second = turns.last().unwrap();
    let text = Heard::by(&session).text();
    assert!(share_of_words(&said.join(" "), &text) >= 0.85, "{text}");
    // It was still speaking when it had heard both.
    assert_eq!(session.ended(), [""; 0]);
    assert!(session.sound().last().unwrap().at + PAUSE > second.at);
    session.close().await;
}
