//! The protocol of Ink 2, which detects turns and sends the text of the turn so far. It has no command that ends a turn, but
//! a configurable timeout, which is set to its minimum for a finalisation. The model's clock is the audio, so silence is
//! sent while a turn is open and there is no other audio.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use super::errors::{self, Problem};
use super::stt::{CHUNK, bytes_in};
use crate::transport::stt_driver::{Flow, Protocol, SttIo};
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

    fn set_timeout(ms: u32, io: &mut SttIo<'_>) {
        io.out
            .json(&json!({"type": "config", "turn": {"end_timeout_ms": ms}}));
    }

    fn turn_ends(&mut self, io: &mut SttIo<'_>) {
        self.open = false;
        self.silence = Duration::ZERO;
        if std::mem::take(&mut self.hurried) && !self.ended {
            Self::set_timeout(USUAL_TIMEOUT_MS, io);
        }
    }
}

impl Protocol for Turns {
    fn chunk_bytes(&self) -> usize {
        bytes_in(self.format, CHUNK)
    }

    fn audio(&mut self, audio: Bytes, io: &mut SttIo<'_>) {
        self.silence = Duration::ZERO;
        io.out.binary(audio);
    }

    fn finalize(&mut self, io: &mut SttIo<'_>) {
        if self.open && !std::mem::replace(&mut self.hurried, true) {
            Self::set_timeout(SHORTEST_TIMEOUT_MS, io);
        }
    }

    fn end(&mut self, io: &mut SttIo<'_>) {
        self.ended = true;
        io.out.json(&json!({"type": "close"}));
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

    fn idle(&mut self, io: &mut SttIo<'_>) {
        self.silence += SILENCE;
        io.out.binary(silence(self.format));
    }

    fn receive(&mut self, message: Received, io: &mut SttIo<'_>) -> Result<Flow, ProviderError> {
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
                io.events.extend(heard(&transcript).map(SttEvent::Partial));
            }
            Message::End { transcript } => {
                self.turn_ends(io);
                io.events.extend(heard(&transcript).map(SttEvent::Final));
                io.events.push(SttEvent::EndOfSpeech);
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
    use crate::transport::testing::SttScene;
    use vivavoce_audio::format::SampleRate;
    use vivavoce_seams::ErrorKind;

    fn scene() -> SttScene<Turns> {
        let format = AudioFormat::mono(Encoding::Alaw, SampleRate::HZ_8000);
        SttScene::new(Turns::new(format))
    }

    #[test]
    fn a_turn_grows_becomes_final_and_ends_the_speech() {
        let mut scene = scene();
        for message in [
            r#"{"type":"connected","request_id":"r"}"#,
            r#"{"type":"turn.start","request_id":"r"}"#,
            r#"{"type":"turn.update","request_id":"r","transcript":"How"}"#,
            r#"{"type":"turn.eager_end","request_id":"r","transcript":"How are"}"#,
            r#"{"type":"turn.resume","request_id":"r"}"#,
            r#"{"type":"turn.end","request_id":"r","transcript":" How are you? "}"#,
            r#"{"type":"turn.end","request_id":"r","transcript":""}"#,
        ] {
            assert_eq!(scene.flow(message), Ok(Flow::Continue));
        }
        let heard = [
            "partial How",
            "partial How are",
            "final How are you?",
            "end of speech",
            "end of speech",
        ];
        assert_eq!(scene.told(), heard);
        assert!(scene.out.texts().is_empty());
    }

    #[test]
    fn a_turn_that_shall_end_now_gets_the_shortest_time_out_and_the_next_the_usual_one() {
        let mut scene = scene();
        scene.step(Protocol::finalize);
        assert!(scene.out.texts().is_empty(), "nobody speaks");
        scene.flow(r#"{"type":"turn.start"}"#).unwrap();
        scene.step(Protocol::finalize);
        scene.step(Protocol::finalize);
        let shortest = r#"{"turn":{"end_timeout_ms":640},"type":"config"}"#;
        assert_eq!(scene.out.texts(), [shortest]);
        scene.flow(r#"{"type":"turn.end","transcript":"yes"}"#).unwrap();
        let usual = r#"{"turn":{"end_timeout_ms":5600},"type":"config"}"#;
        assert_eq!(scene.out.texts(), [usual]);
    }

    #[test]
    fn silence_is_sent_while_a_turn_is_open_but_not_for_ever() {
        let mut scene = scene();
        assert_eq!(scene.protocol.keep_alive(), Some(KEEP_ALIVE));
        scene.flow(r#"{"type":"turn.start"}"#).unwrap();
        assert_eq!(scene.protocol.keep_alive(), Some(LATE));
        scene.step(Protocol::idle);
        assert_eq!(scene.protocol.keep_alive(), Some(SILENCE));
        assert_eq!(scene.out.texts(), ["<1600 bytes>"]);
        assert_eq!(silence(scene.protocol.format), [0xD5; 1600]);
        for _ in 0..59 {
            scene.step(Protocol::idle);
        }
        assert_eq!(scene.protocol.keep_alive(), Some(KEEP_ALIVE));
        scene.step(|protocol, io| protocol.audio(Bytes::from_static(&[1]), io));
        assert_eq!(scene.protocol.keep_alive(), Some(LATE));
        scene.step(Protocol::finalize);
        assert_eq!(scene.protocol.keep_alive(), Some(SILENCE));
    }

    #[test]
    fn the_last_turn_comes_before_the_end() {
        let mut scene = scene();
        scene.step(Protocol::end);
        assert_eq!(scene.out.texts(), [r#"{"type":"close"}"#]);
        scene.flow(r#"{"type":"turn.end","transcript":"bye"}"#).unwrap();
        assert_eq!(scene.told(), ["final bye", "end of speech"]);
        let closed = Received::Closed(Some((1000, String::new())));
        let flow = scene.step(|protocol, io| protocol.receive(closed, io));
        assert_eq!(flow.unwrap(), Flow::Finished);
    }

    #[test]
    fn errors_and_early_closes_end_the_stream() {
        let mut scene = scene();
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
            let error = scene.step(|protocol, io| protocol.receive(message, io));
            assert_eq!(error.unwrap_err().kind, kind);
        }
    }
}
