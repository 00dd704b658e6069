//! The socket of Ink 2: it finds the ends of turns itself and tells the turn's text as it grows. It has no command to end
//! a turn, but a time-out that can be set: a turn that shall end now gets the shortest. The model counts in sound, so
//! while a turn is open and we have nothing to send, silence is sent.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use super::errors::{self, Problem};
use super::stt::{CHUNK, bytes_in};
use crate::transport::hearing::{Act, Flow, Protocol};
use crate::transport::websocket::Received;
use vivavoce_audio::format::{AudioFormat, Encoding};
use vivavoce_seams::{ProviderError, SttEvent, Transcript};

/// The vendor closes after three minutes without sound.
const KEEP_ALIVE: Duration = Duration::from_mins(1);
/// Sound in an open turn that is later than this is taken for a pause. Silence in the middle of a word that a slow network
/// has held up would cut it in two.
const LATE: Duration = Duration::from_secs(1);
/// Silence in an open turn is sent in pieces of this length.
const SILENCE: Duration = Duration::from_millis(200);
/// A turn that has not ended after so much silence will not: the vendor's longest time-out is shorter.
const ENOUGH_SILENCE: Duration = Duration::from_secs(12);
/// The silence that ends a turn whatever the model thinks: the vendor's own value, and its least.
const USUAL_TIMEOUT_MS: u32 = 5_600;
const SHORTEST_TIMEOUT_MS: u32 = 640;

/// One stream.
pub(super) struct Turns {
    format: AudioFormat,
    /// Whether somebody is speaking, as far as the vendor knows.
    open: bool,
    /// Whether the turn shall end as soon as it can.
    hurried: bool,
    /// Silence of ours in the open turn.
    silence: Duration,
    /// Whether we have said that there is no more.
    ended: bool,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Message {
    #[serde(rename = "turn.start")]
    Start,
    #[serde(rename = "turn.update", alias = "turn.eager_end")]
    Update { transcript: String },
    #[serde(rename = "turn.end")]
    End { transcript: String },
    #[serde(rename = "error")]
    Error(Problem),
    /// `connected`, `turn.resume` and what the future brings.
    #[serde(other)]
    Unknown,
}

impl Turns {
    pub(super) const fn new(format: AudioFormat) -> Self {
        Self {
            format,
            open: false,
            hurried: false,
            silence: Duration::ZERO,
            ended: false,
        }
    }

    fn set_timeout(ms: u32, act: &mut Act<'_>) {
        act.out
            .json(&json!({"type": "config", "turn": {"end_timeout_ms": ms}}));
    }

    fn turn_ends(&mut self, act: &mut Act<'_>) {
        self.open = false;
        self.silence = Duration::ZERO;
        if std::mem::take(&mut self.hurried) && !self.ended {
            Self::set_timeout(USUAL_TIMEOUT_MS, act);
        }
    }
}

impl Protocol for Turns {
    fn chunk_bytes(&self) -> usize {
        bytes_in(self.format, CHUNK)
    }

    fn audio(&mut self, audio: Bytes, act: &mut Act<'_>) {
        self.silence = Duration::ZERO;
        act.out.binary(audio);
    }

    fn finalize(&mut self, act: &mut Act<'_>) {
        if self.open && !std::mem::replace(&mut self.hurried, true) {
            Self::set_timeout(SHORTEST_TIMEOUT_MS, act);
        }
    }

    fn end(&mut self, act: &mut Act<'_>) {
        self.ended = true;
        act.out.json(&json!({"type": "close"}));
    }

    fn keep_alive(&self) -> Option<Duration> {
        Some(if !self.open || self.silence >= ENOUGH_SILENCE {
            KEEP_ALIVE
        } else if self.hurried || !self.silence.is_zero() {
            SILENCE
        } else {
            LATE
        })
    }

    fn idle(&mut self, act: &mut Act<'_>) {
        self.silence += SILENCE;
        act.out.binary(silence(self.format));
    }

    fn receive(&mut self, message: Received, act: &mut Act<'_>) -> Result<Flow, ProviderError> {
        let text = match message {
            Received::Text(text) => text,
            Received::Binary(_) => return Err(errors::unreadable("binary")),
            Received::Closed(Some((1000, _))) if self.ended => return Ok(Flow::Finished),
            // Without a code it is also what a lost connection looks like: then a turn is still owed its text.
            Received::Closed(None) if self.ended && !self.open => return Ok(Flow::Finished),
            Received::Closed(frame) => return Err(errors::closed(frame)),
        };
        match serde_json::from_str(&text).map_err(errors::unreadable)? {
            Message::Start => self.open = true,
            Message::Update { transcript } => {
                self.open = true;
                act.events.extend(heard(&transcript).map(SttEvent::Partial));
            }
            Message::End { transcript } => {
                self.turn_ends(act);
                act.events.extend(heard(&transcript).map(SttEvent::Final));
                act.events.push(SttEvent::EndOfSpeech);
            }
            Message::Error(problem) => return Err(errors::reported(&problem)),
            Message::Unknown => {}
        }
        Ok(Flow::Continue)
    }
}

/// A piece of silence.
fn silence(format: AudioFormat) -> Vec<u8> {
    let level = match format.encoding {
        Encoding::Mulaw => 0xFF,
        Encoding::Alaw => 0xD5,
        _ => 0,
    };
    vec![level; bytes_in(format, SILENCE)]
}

/// Nothing where nothing was heard.
fn heard(text: &str) -> Option<Transcript> {
    let text = text.trim();
    (!text.is_empty()).then(|| Transcript {
        text: text.to_owned(),
        ..Transcript::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Outgoing;
    use tokio::time::Instant;
    use vivavoce_audio::format::SampleRate;
    use vivavoce_seams::ErrorKind;

    struct Scene {
        protocol: Turns,
        out: Outgoing,
        events: Vec<SttEvent>,
    }

    impl Scene {
        fn new() -> Self {
            let format = AudioFormat::mono(Encoding::Alaw, SampleRate::HZ_8000);
            Self {
                protocol: Turns::new(format),
                out: Outgoing::default(),
                events: Vec::new(),
            }
        }

        fn act<T>(&mut self, step: impl FnOnce(&mut Turns, &mut Act<'_>) -> T) -> T {
            let mut act = Act {
                now: Instant::now(),
                out: &mut self.out,
                events: &mut self.events,
            };
            step(&mut self.protocol, &mut act)
        }

        fn receive(&mut self, text: &str) -> Flow {
            let message = Received::Text(text.to_owned());
            self.act(|protocol, act| protocol.receive(message, act))
                .unwrap()
        }

        fn heard(&mut self) -> Vec<String> {
            let text = |event| match event {
                SttEvent::Partial(heard) => format!("partial {}", heard.text),
                SttEvent::Final(heard) => format!("final {}", heard.text),
                other => format!("{other:?}"),
            };
            self.events.drain(..).map(text).collect()
        }
    }

    #[test]
    fn a_turn_grows_becomes_final_and_ends_the_speech() {
        let mut scene = Scene::new();
        for message in [
            r#"{"type":"connected","request_id":"r"}"#,
            r#"{"type":"turn.start","request_id":"r"}"#,
            r#"{"type":"turn.update","request_id":"r","transcript":"How"}"#,
            r#"{"type":"turn.eager_end","request_id":"r","transcript":"How are"}"#,
            r#"{"type":"turn.resume","request_id":"r"}"#,
            r#"{"type":"turn.end","request_id":"r","transcript":" How are you? "}"#,
            r#"{"type":"turn.end","request_id":"r","transcript":""}"#,
        ] {
            assert_eq!(scene.receive(message), Flow::Continue);
        }
        let heard = [
            "partial How",
            "partial How are",
            "final How are you?",
            "EndOfSpeech",
            "EndOfSpeech",
        ];
        assert_eq!(scene.heard(), heard);
        assert!(scene.out.texts().is_empty());
    }

    #[test]
    fn a_turn_that_shall_end_now_gets_the_shortest_time_out_and_the_next_the_usual_one() {
        let mut scene = Scene::new();
        scene.act(Protocol::finalize);
        assert!(scene.out.texts().is_empty(), "nobody speaks");
        scene.receive(r#"{"type":"turn.start"}"#);
        scene.act(Protocol::finalize);
        scene.act(Protocol::finalize);
        let shortest = r#"{"turn":{"end_timeout_ms":640},"type":"config"}"#;
        assert_eq!(scene.out.texts(), [shortest]);
        scene.receive(r#"{"type":"turn.end","transcript":"yes"}"#);
        let usual = r#"{"turn":{"end_timeout_ms":5600},"type":"config"}"#;
        assert_eq!(scene.out.texts(), [usual]);
    }

    #[test]
    fn silence_is_sent_while_a_turn_is_open_but_not_for_ever() {
        let mut scene = Scene::new();
        assert_eq!(scene.protocol.keep_alive(), Some(KEEP_ALIVE));
        scene.receive(r#"{"type":"turn.start"}"#);
        assert_eq!(scene.protocol.keep_alive(), Some(LATE));
        scene.act(Protocol::idle);
        assert_eq!(scene.protocol.keep_alive(), Some(SILENCE));
        assert_eq!(scene.out.texts(), ["<1600 bytes>"]);
        assert_eq!(silence(scene.protocol.format), [0xD5; 1600]);
        for _ in 0..59 {
            scene.act(Protocol::idle);
        }
        assert_eq!(scene.protocol.keep_alive(), Some(KEEP_ALIVE));
        scene.act(|protocol, act| protocol.audio(Bytes::from_static(&[1]), act));
        assert_eq!(scene.protocol.keep_alive(), Some(LATE));
        scene.act(Protocol::finalize);
        assert_eq!(scene.protocol.keep_alive(), Some(SILENCE));
    }

    #[test]
    fn the_last_turn_comes_before_the_end() {
        let mut scene = Scene::new();
        scene.act(Protocol::end);
        assert_eq!(scene.out.texts(), [r#"{"type":"close"}"#]);
        scene.receive(r#"{"type":"turn.end","transcript":"bye"}"#);
        assert_eq!(scene.heard(), ["final bye", "EndOfSpeech"]);
        let closed = Received::Closed(Some((1000, String::new())));
        let flow = scene.act(|protocol, act| protocol.receive(closed, act));
        assert_eq!(flow.unwrap(), Flow::Finished);
    }

    #[test]
    fn errors_and_early_closes_end_the_stream() {
        let mut scene = Scene::new();
        for (message, kind) in [
            (
                Received::Text(
                    r#"{"type":"error","title":"T","message":"M","status_code":429}"#.to_owned(),
                ),
                ErrorKind::RateLimited { retry_after: None },
            ),
            (Received::Text("{".to_owned()), ErrorKind::Protocol),
            (Received::Binary(Bytes::new()), ErrorKind::Protocol),
            (Received::Closed(None), ErrorKind::Unavailable),
        ] {
            let error = scene.act(|protocol, act| protocol.receive(message, act));
            assert_eq!(error.unwrap_err().kind, kind);
        }
    }
}
