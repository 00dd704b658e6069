//! The protocol of `/v1/listen`: Nova and older models. Results arrive segment by segment, and `speech_final` or
//! `UtteranceEnd` marks the end of speech.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Url;
use serde::Deserialize;
use tokio::time::Instant;

use super::result_tracker::{ResultTracker, VendorWord, words};
use super::silence_padding::SilencePadding;
use super::{bytes_per_second, encoding_name, errors};
use crate::transport::stt_driver::{Flow, Protocol, SttIo};
use crate::transport::websocket::Received;
use vivavoce_config::value::VendorUrl;
use vivavoce_seams::{ProviderError, SttRequest, Transcript};

/// What the vendor recommends.
const DEFAULT_MODEL: &str = "nova-3";
/// Silence that ends an utterance. The vendor's own default of 10 ms would end it between two words.
const ENDPOINTING_MS: &str = "300";
/// The gap between words that ends an utterance where noise keeps silence from being heard: the shortest there is.
const UTTERANCE_END_MS: &str = "1000";
/// Sound in one message, as a part of a second: 50 ms.
const CHUNKS_PER_SECOND: usize = 20;
/// The vendor ends a stream on which nothing came for 10 s.
const KEEP_ALIVE: Duration = Duration::from_secs(4);
/// `KeepAlive` saves only a stream that has heard something. This is enough of it.
const FIRST_SILENCE: Duration = Duration::from_millis(100);

/// Where this request is listened to.
pub(super) fn url(address: &VendorUrl, request: &SttRequest) -> Url {
    let mut url = address.at(["v1", "listen"]);
    let model = match request.model.as_str() {
        "" => DEFAULT_MODEL,
        model => model,
    };
    let others = || {
        let languages = request.languages.iter().map(String::as_str);
        languages.filter(|language| *language != request.language)
    };
    let several = others().next().is_some();
    let language = if several { "multi" } else { &request.language };
    let rate = request.format.layout.rate.hz().to_string();
    let channels = request.format.layout.channels.count().to_string();
    let nova_3 = model.starts_with("nova-3");
    let mut query = url.query_pairs_mut();
    query
        .append_pair("model", model)
        .append_pair("language", language)
        .append_pair("encoding", encoding_name(request.format.encoding))
        .append_pair("sample_rate", &rate)
        .append_pair("channels", &channels)
        .append_pair("interim_results", "true")
        .append_pair("endpointing", ENDPOINTING_MS)
        .append_pair("utterance_end_ms", UTTERANCE_END_MS)
        .append_pair(
            "punctuate",
            if request.punctuation { "true" } else { "false" },
        );
    if several && nova_3 {
        for language in std::iter::once(request.language.as_str()).chain(others()) {
            query.append_pair("language_hint", primary(language));
        }
    }
    for keyterm in &request.keyterms {
        if nova_3 {
            query.append_pair("keyterm", keyterm);
        } else {
            // What follows a colon would be its weight.
            query.append_pair("keywords", &keyterm.replace(':', " "));
        }
    }
    if request.diarize {
        query.append_pair("diarize_model", "latest");
    }
    drop(query);
    url
}

/// The language of a tag, without region and script.
pub(super) fn primary(tag: &str) -> &str {
    tag.split('-').next().unwrap_or(tag)
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Message {
    Results(Results),
    UtteranceEnd,
    Metadata,
    Error(errors::Failure),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Results {
    #[serde(default)]
    start: f64,
    #[serde(default)]
    duration: f64,
    #[serde(default)]
    is_final: bool,
    #[serde(default)]
    speech_final: bool,
    #[serde(default)]
    from_finalize: bool,
    channel: Channel,
}

#[derive(Deserialize)]
struct Channel {
    alternatives: Vec<Alternative>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Alternative {
    transcript: String,
    confidence: Option<f32>,
    languages: Vec<String>,
    words: Vec<VendorWord>,
}

impl Alternative {
    fn transcript(self, padding: &SilencePadding) -> Transcript {
        Transcript {
            text: self.transcript,
            confidence: self.confidence,
            words: words(self.words, padding),
            language: self.languages.into_iter().next(),
            end: None,
        }
    }
}

/// One stream.
pub(super) struct Nova {
    chunk_bytes: usize,
    padding: SilencePadding,
    result_tracker: ResultTracker,
    ended: bool,
}

impl Nova {
    pub(super) fn new(request: &SttRequest) -> Self {
        Self {
            chunk_bytes: bytes_per_second(request.format) / CHUNKS_PER_SECOND,
            padding: SilencePadding::new(request.format),
            result_tracker: ResultTracker::default(),
            ended: false,
        }
    }

    fn results(&mut self, results: Results, io: &mut SttIo<'_>) {
        let best = results.channel.alternatives.into_iter().next();
        let mut heard = best.unwrap_or_default().transcript(&self.padding);
        if results.is_final {
            let end = results.start + results.duration;
            heard.end = Some(self.padding.place(end));
            self.result_tracker.last(heard, results.from_finalize, io);
            self.padding.settle(end);
        } else {
            self.result_tracker.partial(heard, io);
        }
        if results.speech_final {
            self.result_tracker.end_of_speech(io);
        }
    }
}

impl Protocol for Nova {
    fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    fn audio(&mut self, audio: Bytes, io: &mut SttIo<'_>) {
        self.padding.sound(audio.len());
        io.out.binary(audio);
    }

    fn finalize(&mut self, io: &mut SttIo<'_>) {
        self.result_tracker.finalizing(io.now);
        io.out.text(r#"{"type":"Finalize"}"#);
    }

    fn end(&mut self, io: &mut SttIo<'_>) {
        self.ended = true;
        io.out.text(r#"{"type":"CloseStream"}"#);
    }

    fn keep_alive(&self) -> Option<Duration> {
        Some(KEEP_ALIVE)
    }

    fn idle(&mut self, io: &mut SttIo<'_>) {
        if self.padding.is_untouched() {
            io.out.binary(self.padding.silence(FIRST_SILENCE));
        } else {
            io.out.text(r#"{"type":"KeepAlive"}"#);
        }
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
            Received::Closed(Some((1000, _))) if self.ended => return Ok(Flow::Finished),
            Received::Closed(frame) => return Err(errors::closed(frame)),
        };
        match serde_json::from_str(&text).map_err(errors::unreadable)? {
            Message::Results(results) => self.results(results, io),
            Message::UtteranceEnd => self.result_tracker.end_of_speech(io),
            // It sums up the stream and is the last.
            Message::Metadata if self.ended => return Ok(Flow::Finished),
            Message::Error(failure) => return Err(errors::failed(&failure)),
            Message::Metadata | Message::Other => {}
        }
        Ok(Flow::Continue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::testing::{SttScene, stt_request as request};
    use vivavoce_audio::format::{AudioFormat, Encoding, SampleRate};
    use vivavoce_config::value::SettingValue;
    use vivavoce_seams::ErrorKind;

    fn query(request: &SttRequest) -> String {
        let address = VendorUrl::parse("wss://v.example/base").unwrap();
        let url = url(&address, request);
        assert_eq!(url.path(), "/base/v1/listen");
        url.query().unwrap().to_owned()
    }

    #[test]
    fn a_request_is_the_vendors_parameters() {
        assert_eq!(
            query(&request()),
            "model=nova-3&language=en-US&encoding=linear16&sample_rate=16000&channels=1&interim_results=true&\
             endpointing=300&utterance_end_ms=1000&punctuate=true"
        );
        let rich = SttRequest {
            language: "de-CH".into(),
            languages: vec!["en".into(), "de-CH".into()],
            model: "nova-3-medical".into(),
            punctuation: false,
            keyterms: vec!["Zürich & Co:2".into()],
            diarize: true,
            format: AudioFormat::mono(Encoding::Alaw, SampleRate::HZ_8000),
            ..request()
        };
        let query_of_rich = query(&rich);
        for part in [
            "model=nova-3-medical&language=multi&encoding=alaw&sample_rate=8000&",
            "punctuate=false",
            "&language_hint=de&language_hint=en&",
            "&keyterm=Z%C3%BCrich+%26+Co%3A2&",
            "&diarize_model=latest",
        ] {
            assert!(query_of_rich.contains(part), "{query_of_rich}: {part}");
        }
        let older = SttRequest {
            model: "nova-2".into(),
            ..rich
        };
        let older = query(&older);
        assert!(older.contains("&keywords=Z%C3%BCrich+%26+Co+2&"), "{older}");
        assert!(!older.contains("language_hint") && !older.contains("keyterm"));
    }

    #[test]
    fn a_hostile_value_stays_a_value() {
        let hostile = SttRequest {
            model: "x&callback=http://evil.example/#".into(),
            language: "en\r\nHost: evil".into(),
            ..request()
        };
        let query = query(&hostile);
        assert!(query.starts_with(
            "model=x%26callback%3Dhttp%3A%2F%2Fevil.example%2F%23&language=en%0D%0AHost%3A+evil&"
        ));
    }

    fn results(transcript: &str, flags: &str) -> String {
        format!(
            r#"{{"type":"Results","channel_index":[0,1],"start":0.0,"duration":1.0,{flags},"channel":{{"alternatives":[
               {{"transcript":"{transcript}","confidence":0.5,"words":[]}}]}},"metadata":{{}}}}"#
        )
    }

    const INTERIM: &str = r#""is_final":false,"speech_final":false"#;
    const FINAL: &str = r#""is_final":true,"speech_final":false"#;
    const LAST: &str = r#""is_final":true,"speech_final":true"#;
    const ANSWER: &str = r#""is_final":true,"speech_final":false,"from_finalize":true"#;

    fn scene() -> SttScene<Nova> {
        SttScene::new(Nova::new(&request()))
    }

    #[test]
    fn results_become_partials_finals_and_one_end_of_speech() {
        let mut scene = scene();
        assert_eq!(scene.hears(&results("hello", INTERIM)), ["partial hello"]);
        assert_eq!(
            scene.hears(&results("hello there", FINAL)),
            ["final hello there"]
        );
        assert_eq!(scene.hears(&results("good", INTERIM)), ["partial good"]);
        assert_eq!(
            scene.hears(&results("good bye", LAST)),
            ["final good bye", "end of speech"]
        );
        assert_eq!(
            scene.hears(r#"{"type":"UtteranceEnd","channel":[0,1],"last_word_end":2.3}"#),
            [""; 0]
        );
        scene.hears(&results("again", FINAL));
        let end = r#"{"type":"UtteranceEnd","channel":[0,1],"last_word_end":4.3}"#;
        assert_eq!(scene.hears(end), ["end of speech"]);
    }

    #[test]
    fn what_is_empty_is_not_told_unless_it_takes_something_back() {
        let mut scene = scene();
        for flags in [INTERIM, FINAL, LAST, ANSWER] {
            assert_eq!(scene.hears(&results("", flags)), [""; 0]);
        }
        scene.hears(&results("uh", INTERIM));
        assert_eq!(scene.hears(&results("", FINAL)), ["final "]);
        assert_eq!(
            scene.hears(r#"{"type":"SpeechStarted","channel":[0,1],"timestamp":0.3}"#),
            [""; 0]
        );
        assert_eq!(
            scene.hears(r#"{"type":"Whatever","of":["tomorrow"]}"#),
            [""; 0]
        );
    }

    #[test]
    fn a_final_ends_where_the_vendor_says_even_without_words() {
        let mut scene = scene();
        scene.hears(&results("uh", INTERIM));
        let heard = scene.transcript(&results("", FINAL));
        assert_eq!((heard.text.as_str(), heard.end), ("", Some(1.0)));
    }

    #[test]
    fn words_have_their_times_speakers_and_marks() {
        let mut scene = scene();
        let message = r#"{"type":"Results","start":0,"duration":1,"is_final":true,"channel":{"alternatives":[{
            "transcript":"Hello, you.","confidence":0.98,"languages":["en"],"words":[
            {"word":"hello","start":0.5,"end":0.75,"confidence":0.9,"punctuated_word":"Hello,","speaker":0,"language":"en"},
            {"word":"you","start":0.75,"end":1.0}]}]}}"#;
        let heard = scene.transcript(message);
        assert_eq!(heard.language.as_deref(), Some("en"));
        assert_eq!(heard.confidence, Some(0.98));
        let words: Vec<_> = heard
            .words
            .iter()
            .map(|word| {
                (
                    word.word.as_str(),
                    word.start,
                    word.end,
                    word.confidence,
                    word.speaker.as_deref(),
                )
            })
            .collect();
        assert_eq!(
            words,
            [
                ("Hello,", 0.5, 0.75, Some(0.9), Some("0")),
                ("you", 0.75, 1.0, None, None)
            ]
        );
    }

    #[test]
    fn a_finalisation_is_answered_by_words_by_nothing_or_by_time() {
        let mut scene = scene();
        assert_eq!(scene.does(Protocol::finalize), [r#"{"type":"Finalize"}"#]);
        assert_eq!(scene.hears(&results("half", ANSWER)), ["final half"]);
        assert_eq!(scene.protocol.deadline(), None);
        scene.does(Protocol::finalize);
        assert_eq!(scene.hears(&results("", ANSWER)), ["final "]);
        scene.does(Protocol::finalize);
        assert!(scene.protocol.deadline().is_some());
        assert_eq!(scene.ticks(), ["final "]);
        assert_eq!(scene.protocol.deadline(), None);
        // A final that is owed will come, however late.
        scene.does(Protocol::finalize);
        scene.hears(&results("so", INTERIM));
        assert_eq!(scene.ticks(), [""; 0]);
        assert_eq!(scene.hears(&results("so long", ANSWER)), ["final so long"]);
    }

    #[test]
    fn a_stream_that_has_heard_nothing_is_kept_awake_by_silence_that_moves_no_word() {
        let mut scene = scene();
        assert_eq!(scene.does(Protocol::idle), ["<3200 bytes>"]);
        assert_eq!(scene.does(Protocol::idle), [r#"{"type":"KeepAlive"}"#]);
        let sound = Bytes::from_static(&[0; 3200]);
        assert_eq!(
            scene.does(|nova, io| nova.audio(sound, io)),
            ["<3200 bytes>"]
        );
        let heard = scene.transcript(
            r#"{"type":"Results","start":0,"duration":0.2,"is_final":true,"channel":{"alternatives":[{
            "transcript":"hi","words":[{"word":"hi","start":0.1,"end":0.2}]}]}}"#,
        );
        assert!(heard.words[0].start.abs() < 1e-9);
        assert!((heard.words[0].end - 0.1).abs() < 1e-9);
    }

    #[test]
    fn a_stream_ends_with_its_summary_and_not_before() {
        let metadata = r#"{"type":"Metadata","request_id":"r","duration":1.0,"channels":1}"#;
        let mut scene = scene();
        assert_eq!(scene.flow(metadata), Ok(Flow::Continue));
        assert_eq!(scene.closes(1000, ""), Err(ErrorKind::Unavailable));
        assert_eq!(scene.does(Protocol::end), [r#"{"type":"CloseStream"}"#]);
        assert_eq!(
            scene.hears(&results("last words", FINAL)),
            ["final last words"]
        );
        assert_eq!(scene.flow(metadata), Ok(Flow::Finished));
        assert_eq!(scene.closes(1000, ""), Ok(Flow::Finished));
        assert_eq!(scene.closes(1011, "NET-0000"), Err(ErrorKind::Unavailable));
    }

    #[test]
    fn what_is_not_the_protocol_is_an_error_and_no_panic() {
        let mut scene = scene();
        for text in [
            "",
            "null",
            "[]",
            "{}",
            r#"{"type":"Results"}"#,
            r#"{"type":"Results","channel":{"alternatives":7}}"#,
        ] {
            assert_eq!(scene.flow(text), Err(ErrorKind::Protocol), "{text}");
        }
        let error = r#"{"type":"Error","variant":"SchemaError","description":"x","message":"y"}"#;
        assert_eq!(scene.flow(error), Err(ErrorKind::Unavailable));
    }
}
