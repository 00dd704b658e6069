//! The socket of Ink-whisper: transcripts come as additions to the last final one, and the end of speech is for us to
//! tell, by `finalize`. Commands are bare words.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;

use super::errors::{self, Problem};
use super::stt::{CHUNK, bytes_in};
use crate::transport::hearing::{Act, Flow, Protocol};
use crate::transport::websocket::Received;
use vivavoce_audio::format::AudioFormat;
use vivavoce_seams::{ProviderError, SttEvent, Transcript, Word};

/// The vendor closes after three minutes without a message. A command, unlike silence, leaves its times alone.
const KEEP_ALIVE: Duration = Duration::from_mins(1);

/// One stream.
pub(super) struct Manual {
    format: AudioFormat,
    /// Whether we have said that there is no more.
    ended: bool,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Message {
    Transcript(Heard),
    FlushDone,
    Done,
    Error(Problem),
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
struct Heard {
    text: String,
    is_final: bool,
    language: Option<String>,
    words: Option<Vec<Timed>>,
}

/// The documentation shows one word in each entry, the vendor's own client declares lists of them.
#[derive(Deserialize)]
#[serde(untagged)]
enum Timed {
    Word {
        word: String,
        start: f64,
        end: f64,
    },
    Words {
        words: Vec<String>,
        start: Vec<f64>,
        end: Vec<f64>,
    },
}

impl Manual {
    pub(super) const fn new(format: AudioFormat) -> Self {
        Self {
            format,
            ended: false,
        }
    }
}

impl Protocol for Manual {
    fn chunk_bytes(&self) -> usize {
        bytes_in(self.format, CHUNK)
    }

    fn audio(&mut self, audio: Bytes, act: &mut Act<'_>) {
        act.out.binary(audio);
    }

    fn finalize(&mut self, act: &mut Act<'_>) {
        act.out.text("finalize");
    }

    fn end(&mut self, act: &mut Act<'_>) {
        self.ended = true;
        act.out.text("close");
    }

    fn keep_alive(&self) -> Option<Duration> {
        Some(KEEP_ALIVE)
    }

    fn idle(&mut self, act: &mut Act<'_>) {
        act.out.text("finalize");
    }

    fn receive(&mut self, message: Received, act: &mut Act<'_>) -> Result<Flow, ProviderError> {
        let text = match message {
            Received::Text(text) => text,
            Received::Binary(_) => return Err(errors::unreadable("binary")),
            Received::Closed(Some((1000, _))) if self.ended => return Ok(Flow::Finished),
            Received::Closed(frame) => return Err(errors::closed(frame)),
        };
        match serde_json::from_str(&text).map_err(errors::unreadable)? {
            Message::Transcript(heard) => act.events.extend(heard.event()),
            Message::Done if self.ended => return Ok(Flow::Finished),
            Message::Error(problem) => return Err(errors::reported(&problem)),
            Message::Done | Message::FlushDone | Message::Unknown => {}
        }
        Ok(Flow::Continue)
    }
}

impl Heard {
    /// Nothing where nothing was heard.
    fn event(self) -> Option<SttEvent> {
        let text = self.text.trim();
        if text.is_empty() {
            return None;
        }
        let transcript = Transcript {
            text: text.to_owned(),
            confidence: None,
            words: self
                .words
                .into_iter()
                .flatten()
                .flat_map(Timed::words)
                .collect(),
            language: self.language,
            end: None,
        };
        Some(if self.is_final {
            SttEvent::Final(transcript)
        } else {
            SttEvent::Partial(transcript)
        })
    }
}

impl Timed {
    fn words(self) -> Vec<Word> {
        let word = |(word, start, end): (String, f64, f64)| Word {
            word: word.trim().to_owned(),
            start,
            end,
            confidence: None,
            speaker: None,
        };
        match self {
            Self::Word {
                word: said,
                start,
                end,
            } => vec![word((said, start, end))],
            Self::Words { words, start, end } => {
                let times = start.into_iter().zip(end);
                let words = words.into_iter().zip(times);
                words
                    .map(|(said, (start, end))| word((said, start, end)))
                    .collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Outgoing;
    use tokio::time::Instant;
    use vivavoce_audio::format::{Encoding, SampleRate};
    use vivavoce_seams::ErrorKind;

    struct Scene {
        protocol: Manual,
        out: Outgoing,
        events: Vec<SttEvent>,
    }

    impl Scene {
        fn new() -> Self {
            let format = AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000);
            Self {
                protocol: Manual::new(format),
                out: Outgoing::default(),
                events: Vec::new(),
            }
        }

        fn act<T>(&mut self, step: impl FnOnce(&mut Manual, &mut Act<'_>) -> T) -> T {
            let mut act = Act {
                now: Instant::now(),
                out: &mut self.out,
                events: &mut self.events,
            };
            step(&mut self.protocol, &mut act)
        }

        fn receive(&mut self, text: &str) -> Result<Flow, ProviderError> {
            self.act(|protocol, act| protocol.receive(Received::Text(text.to_owned()), act))
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
    fn commands_are_bare_words() {
        let mut scene = Scene::new();
        assert_eq!(scene.protocol.chunk_bytes(), 3200);
        scene.act(|protocol, act| {
            protocol.audio(Bytes::from_static(&[0; 4]), act);
            protocol.finalize(act);
            protocol.idle(act);
            protocol.end(act);
        });
        assert_eq!(
            scene.out.texts(),
            ["<4 bytes>", "finalize", "finalize", "close"]
        );
    }

    #[test]
    fn transcripts_become_partials_and_finals_and_empty_ones_nothing() {
        let mut scene = Scene::new();
        for message in [
            r#"{"type":"transcript","request_id":"r","text":"hel ","is_final":false}"#,
            r#"{"type":"transcript","request_id":"r","text":" hello world ","is_final":true,"duration":1.0,"language":"en"}"#,
            r#"{"type":"transcript","request_id":"r","text":" ","is_final":true}"#,
            r#"{"type":"flush_done","request_id":"r"}"#,
            r#"{"type":"of the future","x":1}"#,
        ] {
            assert_eq!(scene.receive(message).unwrap(), Flow::Continue);
        }
        assert_eq!(scene.heard(), ["partial hel", "final hello world"]);
    }

    #[test]
    fn words_are_read_in_both_of_their_shapes() {
        for words in [
            r#"[{"word":"a","start":0.1,"end":0.2},{"word":"b","start":0.3,"end":0.4}]"#,
            r#"[{"words":["a","b"],"start":[0.1,0.3],"end":[0.2,0.4]}]"#,
        ] {
            let mut scene = Scene::new();
            let message =
                format!(r#"{{"type":"transcript","text":"a b","is_final":true,"words":{words}}}"#);
            scene.receive(&message).unwrap();
            let Some(SttEvent::Final(heard)) = scene.events.pop() else {
                panic!("no final")
            };
            let words: Vec<_> = heard
                .words
                .iter()
                .map(|w| (w.word.as_str(), w.start, w.end))
                .collect();
            assert_eq!(words, [("a", 0.1, 0.2), ("b", 0.3, 0.4)]);
        }
    }

    #[test]
    fn the_last_words_come_before_the_end() {
        let mut scene = Scene::new();
        scene.act(Protocol::end);
        scene
            .receive(r#"{"type":"transcript","text":"bye","is_final":true}"#)
            .unwrap();
        assert_eq!(scene.heard(), ["final bye"]);
        let done = scene
            .receive(r#"{"type":"done","request_id":"r"}"#)
            .unwrap();
        assert_eq!(done, Flow::Finished);
    }

    #[test]
    fn a_socket_that_closes_too_early_is_a_failure() {
        let mut scene = Scene::new();
        let closed = Received::Closed(Some((1000, String::new())));
        let error = scene
            .act(|protocol, act| protocol.receive(closed.clone(), act))
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        scene.act(Protocol::end);
        let flow = scene.act(|protocol, act| protocol.receive(closed, act));
        assert_eq!(flow.unwrap(), Flow::Finished);
    }

    #[test]
    fn errors_and_what_is_no_message_end_the_stream() {
        let mut scene = Scene::new();
        let error = r#"{"type":"error","title":"T","message":"M","status_code":400}"#;
        assert_eq!(
            scene.receive(error).unwrap_err().kind,
            ErrorKind::InvalidRequest
        );
        for text in ["", "{}", "[1]", r#"{"type":"transcript","text":1}"#] {
            assert_eq!(scene.receive(text).unwrap_err().kind, ErrorKind::Protocol);
        }
    }
}
