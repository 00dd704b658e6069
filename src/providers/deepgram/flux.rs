//! The protocol of `/v2/listen`: Flux, which detects turns. Each message has the whole text of the turn so far; the last one
//! is both its final and the end of speech.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Url;
use serde::Deserialize;
use tokio::time::Instant;

use super::nova::primary;
use super::result_tracker::{ResultTracker, VendorWord, words};
use super::silence_padding::SilencePadding;
use super::{SLUG, bytes_per_second, encoding_name, errors};
use crate::transport::stt_driver::{Flow, Protocol, SttIo};
use crate::transport::websocket::Received;
use vivavoce_config::value::VendorUrl;
use vivavoce_seams::{ErrorKind, ProviderError, SttRequest, Transcript};

/// What the names of its models begin with.
pub(super) const PREFIX: &str = "flux";
/// The model that is told its languages.
const MULTILINGUAL: &str = "flux-general-multi";
/// The model that hears one language, and which.
const ENGLISH: (&str, &str) = ("flux-general-en", "en");
/// Milliseconds of sound in one message: what the model works with.
const CHUNK_MS: usize = 80;
/// A turn ends by what is heard, so that in the middle of one the sound must go on.
const WITHIN_A_TURN: Duration = Duration::from_millis(500);
/// Between turns silence only shows that somebody is there.
const BETWEEN_TURNS: Duration = Duration::from_secs(5);
const SIGN_OF_LIFE: Duration = Duration::from_millis(100);

/// Where this request is listened to. A language that the model would take for English is refused.
pub(super) fn url(address: &VendorUrl, request: &SttRequest) -> Result<Url, ProviderError> {
    let languages = || {
        let first = std::iter::once(&request.language);
        first.chain(&request.languages).map(|tag| primary(tag))
    };
    let (model, only) = ENGLISH;
    if request.model == model
        && let Some(other) = languages().find(|language| !language.eq_ignore_ascii_case(only))
    {
        let problem = format!("{model} does not hear {other:.20}; {MULTILINGUAL} may");
        return Err(ProviderError::new(SLUG, ErrorKind::InvalidRequest, problem));
    }
    let mut url = address.at(["v2", "listen"]);
    let rate = request.format.layout.rate.hz().to_string();
    let mut query = url.query_pairs_mut();
    query
        .append_pair("model", &request.model)
        .append_pair("encoding", encoding_name(request.format.encoding))
        .append_pair("sample_rate", &rate);
    if request.model == MULTILINGUAL {
        let mut hinted = Vec::new();
        for language in languages() {
            if !hinted.contains(&language) {
                query.append_pair("language_hint", language);
                hinted.push(language);
            }
        }
    }
    for keyterm in &request.keyterms {
        query.append_pair("keyterm", keyterm);
    }
    drop(query);
    Ok(url)
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Message {
    Connected,
    TurnInfo(TurnInfo),
    Error(errors::Failure),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct TurnInfo {
    event: Event,
    #[serde(default)]
    transcript: String,
    #[serde(default)]
    words: Vec<VendorWord>,
    audio_window_end: Option<f64>,
    /// As heard, the most frequent first.
    #[serde(default)]
    languages: Vec<String>,
}

#[derive(Deserialize, PartialEq)]
enum Event {
    EndOfTurn,
    /// The turn has begun, grows, or goes on after all.
    #[serde(other)]
    Growing,
}

/// One stream.
pub(super) struct Flux {
    chunk_bytes: usize,
    padding: SilencePadding,
    result_tracker: ResultTracker,
    connected: bool,
    within_a_turn: bool,
    ended: bool,
}

impl Flux {
    pub(super) fn new(request: &SttRequest) -> Self {
        Self {
            chunk_bytes: bytes_per_second(request.format) * CHUNK_MS / 1000,
            padding: SilencePadding::new(request.format),
            result_tracker: ResultTracker::default(),
            connected: false,
            within_a_turn: false,
            ended: false,
        }
    }

    fn turn(&mut self, turn: TurnInfo, io: &mut SttIo<'_>) {
        let words = words(turn.words, &self.padding);
        let end = turn.audio_window_end;
        let heard = Transcript {
            text: turn.transcript,
            words,
            language: turn.languages.into_iter().next(),
            end: end.map(|end| self.padding.place(end)),
            ..Transcript::default()
        };
        self.within_a_turn = turn.event != Event::EndOfTurn;
        if self.within_a_turn {
            self.result_tracker.partial(heard, io);
        } else {
            self.result_tracker.last(heard, true, io);
            self.result_tracker.end_of_speech(io);
            self.padding.settle(end.unwrap_or_default());
        }
    }
}

impl Protocol for Flux {
    fn is_open(&self) -> bool {
        self.connected
    }

    fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    fn audio(&mut self, audio: Bytes, io: &mut SttIo<'_>) {
        self.padding.sound(audio.len());
        io.out.binary(audio);
    }

    fn finalize(&mut self, io: &mut SttIo<'_>) {
        self.result_tracker.finalizing(io.now);
        io.out.text(r#"{"type":"ForceEndTurn"}"#);
    }

    fn end(&mut self, io: &mut SttIo<'_>) {
        self.ended = true;
        io.out.text(r#"{"type":"CloseStream"}"#);
    }

    fn keep_alive(&self) -> Option<Duration> {
        Some(if self.within_a_turn {
            WITHIN_A_TURN
        } else {
            BETWEEN_TURNS
        })
    }

    fn idle(&mut self, io: &mut SttIo<'_>) {
        let silence = if self.within_a_turn {
            WITHIN_A_TURN
        } else {
            SIGN_OF_LIFE
        };
        io.out.binary(self.padding.silence(silence));
    }

    fn deadline(&self) -> Option<Instant> {
        self.result_tracker.deadline()
    }

    fn tick(&mut self, io: &mut SttIo<'_>) -> Result<Flow, ProviderError> {
        self.result_tracker.tick(io);
        Ok(Flow::Continue)
    }

    fn receive(&mut self, message: Received, io: &mut SttIo<'_>) -> Result<Flow, ProviderError> {
        let text = match message {
            Received::Text(text) => text,
            Received::Binary(_) => return Err(errors::unreadable("a binary message")),
            // This interface may leave the code out.
            Received::Closed(None | Some((1000 | 1005, _))) if self.ended => {
                return Ok(Flow::Finished);
            }
            Received::Closed(frame) => return Err(errors::closed(frame)),
        };
        match serde_json::from_str(&text).map_err(errors::unreadable)? {
            Message::Connected => self.connected = true,
            Message::TurnInfo(turn) => self.turn(turn, io),
            Message::Error(failure) => return Err(errors::failed(&failure)),
            Message::Other => {}
        }
        Ok(Flow::Continue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::testing::{SttScene, stt_request as request};
    use vivavoce_config::value::SettingValue;

    fn asks(model: &str, language: &str, languages: &[&str]) -> Result<String, ErrorKind> {
        let address = VendorUrl::parse("https://v.example").unwrap();
        let request = SttRequest {
            model: model.into(),
            language: language.into(),
            languages: languages.iter().map(|&tag| tag.into()).collect(),
            keyterms: vec!["New York".into()],
            ..request()
        };
        let url = url(&address, &request).map_err(|error| error.kind)?;
        assert_eq!(url.path(), "/v2/listen");
        Ok(url.query().unwrap().to_owned())
    }

    #[test]
    fn a_request_is_the_vendors_parameters() {
        assert_eq!(
            asks("flux-general-en", "en-US", &[]).unwrap(),
            "model=flux-general-en&encoding=linear16&sample_rate=16000&keyterm=New+York"
        );
        assert_eq!(
            asks("flux-general-multi", "de-DE", &["en-US", "de-AT"]).unwrap(),
            "model=flux-general-multi&encoding=linear16&sample_rate=16000&language_hint=de&language_hint=en&\
             keyterm=New+York"
        );
    }

    #[test]
    fn a_language_that_would_be_taken_for_english_is_refused() {
        assert_eq!(
            asks("flux-general-en", "de-DE", &[]),
            Err(ErrorKind::InvalidRequest)
        );
        assert_eq!(
            asks("flux-general-en", "en-US", &["fr"]),
            Err(ErrorKind::InvalidRequest)
        );
        assert!(asks("flux-general-en", "EN", &[]).is_ok());
    }

    fn turn(event: &str, transcript: &str) -> String {
        format!(
            r#"{{"type":"TurnInfo","request_id":"r","sequence_id":1,"event":"{event}","turn_index":0,
               "audio_window_start":0.0,"audio_window_end":1.0,"transcript":"{transcript}","words":[],
               "end_of_turn_confidence":0.1}}"#
        )
    }

    fn scene() -> SttScene<Flux> {
        let mut scene = SttScene::new(Flux::new(&request()));
        assert!(!scene.protocol.is_open());
        scene.hears(r#"{"type":"Connected","request_id":"r","sequence_id":0}"#);
        assert!(scene.protocol.is_open());
        scene
    }

    #[test]
    fn a_turn_grows_and_ends_with_its_final() {
        let mut scene = scene();
        for (event, text, events) in [
            ("StartOfTurn", "", &[][..]),
            ("Update", "book", &["partial book"]),
            ("Update", "book a", &["partial book a"]),
            ("EagerEndOfTurn", "book a table", &["partial book a table"]),
            (
                "TurnResumed",
                "book a table for",
                &["partial book a table for"],
            ),
            (
                "EndOfTurn",
                "book a table for two",
                &["final book a table for two", "end of speech"],
            ),
            ("Update", "", &[]),
            ("EndOfTurn", "", &[]),
            ("Nonsense", "next", &["partial next"]),
            ("EndOfTurn", "", &["final ", "end of speech"]),
        ] {
            assert_eq!(scene.hears(&turn(event, text)), events, "{event} {text}");
        }
    }

    #[test]
    fn words_without_times_are_no_words() {
        let mut scene = scene();
        let with = |times: &str| {
            turn("EndOfTurn", "hi").replace(
                r#""words":[]"#,
                &format!(r#""words":[{{"word":"hi","confidence":0.9{times}}}]"#),
            )
        };
        assert!(scene.transcript(&with("")).words.is_empty());
        let heard = scene.transcript(&with(r#","start":0.5,"end":0.75"#));
        assert_eq!((heard.words[0].start, heard.words[0].end), (0.5, 0.75));
    }

    #[test]
    fn sound_goes_on_within_a_turn_and_moves_no_word() {
        let mut scene = scene();
        assert_eq!(scene.does(Protocol::idle), ["<3200 bytes>"]);
        scene.hears(&turn("StartOfTurn", ""));
        assert_eq!(scene.protocol.keep_alive(), Some(WITHIN_A_TURN));
        assert_eq!(scene.does(Protocol::idle), ["<16000 bytes>"]);
        let end = turn("EndOfTurn", "hi").replace(
            r#""words":[]"#,
            r#""words":[{"word":"hi","start":1.0,"end":2.0}]"#,
        );
        let heard = scene.transcript(&end);
        assert!((heard.words[0].start - 0.4).abs() < 1e-9);
        assert_eq!(scene.protocol.keep_alive(), Some(BETWEEN_TURNS));
    }

    #[test]
    fn a_turn_can_be_forced_to_its_end() {
        let mut scene = scene();
        assert_eq!(
            scene.does(Protocol::finalize),
            [r#"{"type":"ForceEndTurn"}"#]
        );
        assert_eq!(
            scene.hears(&turn("EndOfTurn", "so far")),
            ["final so far", "end of speech"]
        );
        scene.does(Protocol::finalize);
        assert_eq!(scene.ticks(), ["final "]);
    }

    #[test]
    fn a_stream_ends_with_its_close() {
        let mut scene = scene();
        assert_eq!(scene.closes(1000, ""), Err(ErrorKind::Unavailable));
        assert_eq!(scene.does(Protocol::end), [r#"{"type":"CloseStream"}"#]);
        assert_eq!(scene.closes(1000, ""), Ok(Flow::Finished));
        assert_eq!(scene.closes(1011, "NET-0000"), Err(ErrorKind::Unavailable));
        let error = r#"{"type":"Error","code":"NET-0001","description":"no sound"}"#;
        assert_eq!(scene.flow(error), Err(ErrorKind::Timeout));
    }
}
