//! Somebody makes a sound while the server speaks: coughs and backchannels let it go on, a sentence cuts it.

use std::time::Duration;

use serde_json::json;
use vivavoce::audio::Pcm;

use super::client::{Event, Session, config};
use super::sound::{WIDE, encoded, spoken, then};
use crate::harness::{SENTENCES, Server};

/// Something like a cough: two bursts of noise that begin hard and die away, with the resonance of a throat.
fn cough() -> Pcm {
    let mut seed = 20_261_122_u32;
    let mut throat = [0.0_f64; 2];
    let mut sample = |at: usize| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let noise = f64::from(seed >> 16) / 32_768.0 - 1.0;
        let burst = at % 2_600;
        let loud = (-(burst as f64) / 900.0).exp();
        let voice = if burst % 110 < 8 { 1.5 } else { 0.0 };
        // A resonance at 700 Hz.
        let next = 1.86 * throat[0] - 0.935 * throat[1] + (noise * 0.5 + voice) * loud;
        throat = [next, throat[0]];
        (next * 1_200.0).clamp(-30_000.0, 30_000.0) as i16
    };
    Pcm::new(WIDE.layout, (0..5_200).map(&mut sample).collect())
}

/// The decisions of a session that hears a sound while it speaks.
async fn decided(server: &Server, mode: &str, sound: &Pcm) -> (Vec<Event>, Session) {
    let fields = json!({
        // Long enough for a recogniser on a busy machine: what it has made of half a sound is not what this is about.
        "vad": {"interruption": mode, "interruption_window_ms": 2_000},
        "tts_config": {"provider": "local", "model": "", "progress": true},
    });
    let mut session = Session::open(server, config(fields)).await;
    session.speak("long", &SENTENCES.join(" ")).await;
    // It is in the middle of its first sentence.
    for _ in 0..3 {
        session.next("tts_progress").await;
    }
    let silence = Pcm::silence(WIDE.layout, Duration::from_secs(2));
    let sound = then(sound.clone(), &silence);
    let speaking = session.hear(encoded(&sound, WIDE).await);
    let suspected = session.next("interruption").await;
    let decision = session.next("interruption").await;
    speaking.await;
    (vec![suspected, decision], session)
}

#[tokio::test]
async fn coughs_and_backchannels_let_speech_go_on_and_a_sentence_cuts_it() {
    let server = Server::start();
    let sentence = spoken(
        &server,
        "Wait a minute, I would like to say something.",
        WIDE,
    )
    .await;
    // The local voice spells "mhm".
    let uh_huh = spoken(&server, "uh huh", WIDE).await;
    let okay = spoken(&server, "okay", WIDE).await;
    for mode in ["duck", "pause"] {
        for (name, sound, state) in [
            ("a cough", &cough(), "resumed"),
            ("uh huh", &uh_huh, "resumed"),
            ("okay", &okay, "resumed"),
            ("a sentence", &sentence, "confirmed"),
        ] {
            let (told, mut session) = decided(&server, mode, sound).await;
            let took = told[1].at - told[0].at;
            println!("{mode}: {name}: {} after {took:?}", told[1]);
            assert_eq!(told[0].text("state"), "suspected");
            assert_eq!(told[1].text("state"), state, "{name}");
            if state == "confirmed" {
                let interrupted = session.next("tts_interrupted").await;
                let heard = interrupted.text("heard_text");
                assert!(
                    !heard.is_empty() && SENTENCES[0].starts_with(heard),
                    "{interrupted}"
                );
            } else {
                // What a recogniser makes of such a sound later is its own affair, but not a reason to cut.
                let understood = session.events_of("stt_result");
                let cut = session.events_of("tts_interrupted");
                assert_eq!(cut.len(), 0, "{understood:?}");
                session.command("clear").await;
                session.next("tts_interrupted").await;
            }
            session.close().await;
        }
    }
}
