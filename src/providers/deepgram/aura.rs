//! The protocol of `/v1/speak`: Aura. Deepgram buffers text until it is flushed, and confirms when all audio of a flush has
//! been sent. Audio messages have no id, so everything before `Cleared` belongs to the cancelled utterance.

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde_json::json;

use super::{SLUG, errors};
use crate::transport::shortened;
use crate::transport::tts_driver::{Flow, Protocol, TtsIo};
use crate::transport::websocket::Received;
use vivavoce_seams::{ErrorKind, ProviderError, TtsEvent};

/// The most that may wait to be flushed.
const MAX_CHARS: usize = 2_000;
/// A socket takes 20 flushes in a minute. One that may have had as many is not used again.
const FLUSHES_PER_SOCKET: f32 = 16.0;

const FLUSH: &str = r#"{"type":"Flush"}"#;
const CLEAR: &str = r#"{"type":"Clear"}"#;

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Message {
    Flushed,
    Cleared,
    Warning(Warning),
    Error(errors::Failure),
    #[serde(other)]
    Other,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Warning {
    code: String,
    description: String,
}

/// One utterance.
#[derive(Debug, Default)]
pub(super) struct Aura {
    /// Bytes of a sample.
    sample: usize,
    /// The beginning of a sample whose end has not come.
    cut: BytesMut,
    /// Characters that were sent since the last flush.
    waiting: usize,
    /// The text so far ends in a backslash, which was kept back.
    backslash: bool,
    flushes: u32,
    flushed: u32,
    ended: bool,
    /// Nothing more is wanted, and the vendor was told.
    clearing: bool,
}

impl Aura {
    /// An utterance whose sound has samples of so many bytes.
    pub(super) fn new(sample: usize) -> Self {
        Self {
            sample,
            ..Self::default()
        }
    }

    fn flush(&mut self, io: &mut TtsIo<'_>) {
        self.waiting = 0;
        self.flushes += 1;
        io.out.text(FLUSH);
    }

    /// A backslash before a brace begins a pronunciation, which a text is not meant to hold.
    fn harmless(&mut self, piece: &str) -> String {
        let mut text = String::with_capacity(piece.len());
        for character in piece.chars() {
            if std::mem::take(&mut self.backslash) && !matches!(character, '{' | '}' | '\\') {
                text.push('\\');
            }
            match character {
                '\\' => self.backslash = true,
                other => text.push(other),
            }
        }
        text
    }

    /// Whole samples of what has come.
    fn samples(&mut self, sound: Bytes) -> Bytes {
        if self.cut.is_empty() && sound.len().is_multiple_of(self.sample) {
            return sound;
        }
        self.cut.extend_from_slice(&sound);
        let whole = self.cut.len() - self.cut.len() % self.sample;
        self.cut.split_to(whole).freeze()
    }

    fn sound(&mut self, sound: Bytes, io: &mut TtsIo<'_>) {
        if self.clearing {
            return;
        }
        let sound = self.samples(sound);
        if !sound.is_empty() {
            io.events.push(TtsEvent::Audio(sound));
        }
    }

    fn flow(&self) -> Flow {
        if self.ended && !self.clearing && self.flushed >= self.flushes {
            Flow::Finished
        } else {
            Flow::Continue
        }
    }
}

impl Protocol for Aura {
    fn begin(&mut self, _io: &mut TtsIo<'_>) {}

    fn text(&mut self, piece: &str, io: &mut TtsIo<'_>) {
        let text = self.harmless(piece);
        for part in parts(&text, MAX_CHARS) {
            if self.waiting == 0 && part.trim().is_empty() {
                continue;
            }
            let chars = part.chars().count();
            if self.waiting + chars > MAX_CHARS {
                self.flush(io);
            }
            self.waiting += chars;
            io.out.json(&json!({"type": "Speak", "text": part}));
        }
        // The sound of the first sentence leaves while the others are written.
        if self.flushes == 0 && self.waiting > 0 && ends_a_sentence(&text) {
            self.flush(io);
        }
    }

    fn end(&mut self, io: &mut TtsIo<'_>) {
        self.ended = true;
        if self.waiting > 0 {
            self.flush(io);
        } else if self.flushes == 0 {
            // Nothing was said, and the vendor is asked something that it answers.
            self.clearing = true;
            io.out.text(CLEAR);
        }
    }

    fn cancel(&mut self, io: &mut TtsIo<'_>) -> bool {
        if !std::mem::replace(&mut self.clearing, true) {
            io.out.text(CLEAR);
        }
        true
    }

    fn wear(&self) -> f32 {
        self.flushes as f32 / FLUSHES_PER_SOCKET
    }

    fn receive(&mut self, message: Received, io: &mut TtsIo<'_>) -> Result<Flow, ProviderError> {
        let text = match message {
            Received::Binary(sound) => {
                self.sound(sound, io);
                return Ok(Flow::Continue);
            }
            Received::Text(text) => text,
            Received::Closed(frame) => return Err(errors::closed(frame)),
        };
        match serde_json::from_str(&text).map_err(errors::unreadable)? {
            Message::Flushed => {
                // Half a sample would put everything after it out of step.
                self.cut.clear();
                self.flushed += 1;
                Ok(self.flow())
            }
            Message::Cleared if self.clearing => Ok(Flow::Finished),
            Message::Warning(warning) => warned(&warning).map(|()| Flow::Continue),
            Message::Error(failure) => Err(errors::failed(&failure)),
            Message::Cleared | Message::Other => Ok(Flow::Continue),
        }
    }
}

/// Only a warning about flushes is more than that: the sound that was asked for will not come.
fn warned(warning: &Warning) -> Result<(), ProviderError> {
    let words = format!("{}: {}", warning.code, warning.description);
    let words = shortened(&words);
    if words.to_ascii_lowercase().contains("flush") {
        let kind = ErrorKind::RateLimited { retry_after: None };
        return Err(ProviderError::new(SLUG, kind, words));
    }
    // Its words may repeat what was sent.
    tracing::debug!(provider = SLUG, code = shortened(&warning.code), "warned");
    Ok(())
}

fn ends_a_sentence(text: &str) -> bool {
    let text = text.trim_end_matches(|c: char| c.is_whitespace() || "\"')]»”’".contains(c));
    text.ends_with(['.', '!', '?', '…', '。', '！', '？'])
}

/// The text in parts of at most so many characters, cut behind white space where there is some.
fn parts(text: &str, most: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest
            .char_indices()
            .nth(most)
            .map_or(rest.len(), |(end, _)| {
                let space = rest[..end].rfind(char::is_whitespace);
                let behind =
                    space.and_then(|at| rest[at..].chars().next().map(|c| at + c.len_utf8()));
                behind.unwrap_or(end)
            });
        let (part, after) = rest.split_at(end);
        rest = after;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::testing::TtsScene;

    impl TtsScene<Aura> {
        fn aura() -> Self {
            Self::new(Aura::new(2))
        }

        fn says(&mut self, piece: &str) -> Vec<String> {
            self.does(|aura, io| aura.text(piece, io))
        }

        fn ends(&mut self) -> Vec<String> {
            self.does(Protocol::end)
        }

        fn hears(&mut self, sound: &'static [u8]) -> Vec<Vec<u8>> {
            let received = Received::Binary(Bytes::from_static(sound));
            assert_eq!(self.receive(received).unwrap(), Flow::Continue);
            self.sound()
        }
    }

    fn spoken(text: &str) -> String {
        json!({"type": "Speak", "text": text}).to_string()
    }

    const FLUSHED: &str = r#"{"type":"Flushed","sequence_id":0}"#;
    const CLEARED: &str = r#"{"type":"Cleared","sequence_id":1}"#;

    #[test]
    fn a_text_in_one_piece_is_flushed_once() {
        for text in ["Good morning.", "Good morning"] {
            let mut scene = TtsScene::aura();
            let mut sent = scene.says(text);
            sent.extend(scene.ends());
            assert_eq!(sent, [spoken(text), FLUSH.to_owned()]);
            assert_eq!(
                scene.flow(r#"{"type":"Metadata","request_id":"r"}"#),
                Ok(Flow::Continue)
            );
            assert_eq!(scene.flow(FLUSHED), Ok(Flow::Finished));
        }
    }

    #[test]
    fn the_first_sentence_does_not_wait_for_the_others() {
        let mut scene = TtsScene::aura();
        assert_eq!(scene.says("Well, "), [spoken("Well, ")]);
        assert_eq!(scene.says("yes. "), [spoken("yes. "), FLUSH.to_owned()]);
        assert_eq!(scene.flow(FLUSHED), Ok(Flow::Continue));
        assert_eq!(scene.says("No. "), [spoken("No. ")]);
        assert_eq!(scene.says("\n"), [spoken("\n")]);
        assert_eq!(scene.ends(), [FLUSH]);
        assert_eq!(scene.flow(FLUSHED), Ok(Flow::Finished));
        assert!((scene.protocol.wear() - 2.0 / 16.0).abs() < 1e-6);
    }

    #[test]
    fn a_long_text_is_flushed_before_it_is_too_long() {
        let mut scene = TtsScene::aura();
        let long = "four ".repeat(900);
        let sent = scene.says(&long);
        let texts: Vec<_> = sent.iter().filter(|message| *message != FLUSH).collect();
        assert_eq!((sent.len(), texts.len()), (5, 3));
        let chars = |message: &str| {
            let message: serde_json::Value = serde_json::from_str(message).unwrap();
            message["text"].as_str().unwrap().to_owned()
        };
        assert!(
            texts
                .iter()
                .all(|text| chars(text).chars().count() <= MAX_CHARS)
        );
        assert!(texts.iter().all(|text| chars(text).ends_with("four ")));
        assert_eq!(
            texts.iter().map(|text| chars(text)).collect::<String>(),
            long
        );
        assert_eq!(scene.ends(), [FLUSH]);
        for last in [Flow::Continue, Flow::Continue, Flow::Finished] {
            assert_eq!(scene.flow(FLUSHED), Ok(last));
        }
        let endless: String = "ü".repeat(2 * MAX_CHARS + 1);
        assert_eq!(parts(&endless, MAX_CHARS).count(), 3);
    }

    #[test]
    fn nothing_to_say_comes_to_an_end() {
        let mut scene = TtsScene::aura();
        assert_eq!(scene.says(" \n"), [""; 0]);
        assert_eq!(scene.ends(), [CLEAR]);
        assert_eq!(scene.flow(CLEARED), Ok(Flow::Finished));
    }

    #[test]
    fn a_pronunciation_cannot_be_smuggled_in() {
        for (pieces, text) in [
            (
                &[r#"say \{"word":"x"\} now"#][..],
                r#"say {"word":"x"} now"#,
            ),
            (&[r"\\\{x"], "{x"),
            (&["so \\", "{x"], "so {x"),
            (&[r"C:\temp"], r"C:\temp"),
            (&["C:\\", "temp"], r"C:\temp"),
            (&["{x}"], "{x}"),
        ] {
            let mut aura = Aura::new(2);
            let said: String = pieces.iter().map(|piece| aura.harmless(piece)).collect();
            assert_eq!(said, text);
        }
    }

    #[test]
    fn half_a_sample_shifts_nothing() {
        let mut scene = TtsScene::aura();
        scene.says("One. ");
        assert_eq!(scene.hears(&[1, 2, 3, 4]), [&[1, 2, 3, 4][..]]);
        assert!(scene.hears(&[5]).is_empty());
        assert_eq!(scene.hears(&[6, 7]), [&[5, 6][..]]);
        assert!(scene.hears(&[]).is_empty());
        scene.flow(FLUSHED).unwrap();
        assert_eq!(scene.hears(&[8, 9]), [&[8, 9][..]]);
    }

    #[test]
    fn what_was_called_off_is_not_heard() {
        let mut scene = TtsScene::aura();
        scene.says("Never mind.");
        scene.ends();
        let mut cancelled = false;
        assert_eq!(scene.does(|aura, io| cancelled = aura.cancel(io)), [CLEAR]);
        assert!(cancelled);
        assert!(scene.hears(&[1, 2]).is_empty());
        assert_eq!(scene.flow(FLUSHED), Ok(Flow::Continue));
        assert_eq!(scene.flow(CLEARED), Ok(Flow::Finished));
    }

    #[test]
    fn warnings_of_flushes_are_errors_and_others_are_not() {
        let mut scene = TtsScene::aura();
        scene.says("Hello.");
        let warning = |words| format!(r#"{{"type":"Warning","code":"X","description":"{words}"}}"#);
        assert_eq!(
            scene.flow(&warning("a new version is out")),
            Ok(Flow::Continue)
        );
        let limited = ErrorKind::RateLimited { retry_after: None };
        assert_eq!(
            scene.flow(&warning("Too many Flush messages")),
            Err(limited)
        );
        assert_eq!(
            scene.flow(r#"{"type":"Error","code":"NET-0000"}"#),
            Err(ErrorKind::Unavailable)
        );
        assert_eq!(scene.flow("nonsense"), Err(ErrorKind::Protocol));
        let closed = scene.receive(Received::Closed(Some((1008, "DATA-0000".into()))));
        assert_eq!(closed.unwrap_err().kind, ErrorKind::InvalidRequest);
    }
}
