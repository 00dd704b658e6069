//! The protocol of Ink-whisper: each transcript continues after the last final, and the client marks the end of speech with
//! `finalize`. Commands are plain words.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;

use super::errors::{self, Problem};
use super::stt::{CHUNK, bytes_in};
use crate::transport::stt_driver::{Flow, Protocol, SttIo};
use crate::transport::websocket::Received;
use vivavoce_audio::format::AudioFormat;
use vivavoce_seams::{ProviderError, SttEvent, Transcript, Word};

/// The vendor closes after three minutes without a message. A command, unlike silence, leaves its times alone.
const KEEP_ALIVE: Duration = Duration::from_mins(1);

/// One stream.
pub(super) struct InkWhisper {
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

impl InkWhisper {
    pub(super) const fn new(format: AudioFormat) -> Self {
        Self {
            format,
            ended: false,
        }
    }
}

impl Protocol for InkWhisper {
    fn chunk_bytes(&self) -> usize {
        bytes_in(self.format, CHUNK)
    }

    fn audio(&mut self, audio: Bytes, io: &mut SttIo<'_>) {
        io.out.binary(audio);
    }

    fn finalize(&mut self, io: &mut SttIo<'_>) {
        io.out.text("finalize");
    }

    fn end(&mut self, io: &mut SttIo<'_>) {
        self.ended = true;
        io.out.text("close");
    }

    fn keep_alive(&self) -> Option<Duration> {
        Some(KEEP_ALIVE)
    }

    fn idle(&mut self, io: &mut SttIo<'_>) {
        io.out.text("finalize");
    }

    fn receive(&mut self, message: Received, io: &mut SttIo<'_>) -> Result<Flow, ProviderError> {
        let text = match message {
            Received::Text(text) => text,
            Received::Binary(_) => return Err(errors::unreadable("binary")),
            Received::Closed(Some((1000, _))) if self.ended => return Ok(Flow::Finished),
            Received::Closed(frame) => return Err(errors::closed(frame)),
        };
        match serde_json::from_str(&text).map_err(errors::unreadable)? {
            Message::Transcript(heard) => io.events.extend(heard.event()),
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
    use crate::transport::testing::SttScene;
    use vivavoce_audio::format::{Encoding, SampleRate};
    use vivavoce_seams::ErrorKind;

    fn scene() -> SttScene<InkWhisper> {
        let format = AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000);
        SttScene::new(InkWhisper::new(format))
    }

    #[test]
    fn commands_are_bare_words() {
        let mut scene = scene();
        assert_eq!(scene.protocol.chunk_bytes(), 3200);
        scene.step(|protocol, io| {
            protocol.audio(Bytes::from_static(&[0; 4]), io);
            protocol.finalize(io);
            protocol.idle(io);
            protocol.end(io);
        });
        assert_eq!(
            scene.out.texts(),
            ["<4 bytes>", "finalize", "finalize", "close"]
        );
    }

    #[test]
    fn transcripts_become_partials_and_finals_and_empty_ones_nothing() {
        let mut scene = scene();
        for message in [
            r#"{"type":"transcript","request_id":"r","text":"hel ","is_final":false}"#,
            r#"{"type":"transcript","request_id":"r","text":" hello world ","is_final":true,"duration":1.0,"language":"en"}"#,
            r#"{"type":"transcript","request_id":"r","text":" ","is_final":true}"#,
            r#"{"type":"flush_done","request_id":"r"}"#,
            r#"{"type":"of the future","x":1}"#,
        ] {
            assert_eq!(scene.flow(message).unwrap(), Flow::Continue);
        }
        assert_eq!(scene.told(), ["partial hel", "final hello world"]);
    }

    #[test]
    fn words_are_read_in_both_of_their_shapes() {
        for words in [
            r#"[{"word":"a","start":0.1,"end":0.2},{"word":"b","start":0.3,"end":0.4}]"#,
            r#"[{"words":["a","b"],"start":[0.1,0.3],"end":[0.2,0.4]}]"#,
        ] {
            let mut scene = scene();
            let message =
                format!(r#"{{"type":"transcript","text":"a b","is_final":true,"words":{words}}}"#);
            scene.flow(&message).unwrap();
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
        let mut scene = scene();
        scene.step(Protocol::end);
        scene
            .flow(r#"{"type":"transcript","text":"bye","is_final":true}"#)
            .unwrap();
        assert_eq!(scene.told(), ["final bye"]);
        let done = scene
            .flow(r#"{"type":"done","request_id":"r"}"#)
            .unwrap();
        assert_eq!(done, Flow::Finished);
    }

    #[test]
    fn a_socket_that_closes_too_early_is_a_failure() {
        let mut scene = scene();
        let closed = Received::Closed(Some((1000, String::new())));
        let error = scene
            .step(|protocol, io| protocol.receive(closed.clone(), io))
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        scene.step(Protocol::end);
        let flow = scene.step(|protocol, io| protocol.receive(closed, io));
        assert_eq!(flow.unwrap(), Flow::Finished);
    }

    #[test]
    fn errors_and_what_is_no_message_end_the_stream() {
        let mut scene = scene();
        let error = r#"{"type":"error","title":"T","message":"M","status_code":400}"#;
        assert_eq!(scene.flow(error).unwrap_err(), ErrorKind::InvalidRequest);
        for text in ["", "{}", "[1]", r#"{"type":"transcript","text":1}"#] {
            assert_eq!(scene.flow(text).unwrap_err(), ErrorKind::Protocol);
        }
    }
}
