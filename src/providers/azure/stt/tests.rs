//! The protocol message by message: what is sent is read back from its frames.

use super::usp::Incoming;
use super::usp::tests::{origin, said};
use super::*;
use crate::transport::testing::{SttScene, stt_request as request};
use vivavoce_audio::format::SampleRate;

/// A stream, what it has sent so far, and what it has told.
struct Stream {
    scene: SttScene<Recognition>,
    flow: Flow,
}

impl Stream {
    fn open(request: &SttRequest) -> Self {
        Self {
            scene: SttScene::new(Recognition::new(request, origin())),
            flow: Flow::Continue,
        }
    }

    /// Lets the protocol do something; gives what it sends as "path turn body".
    fn does(
        &mut self,
        step: impl FnOnce(&mut Recognition, &mut SttIo<'_>) -> Result<Flow, ProviderError>,
    ) -> Vec<String> {
        self.flow = self.scene.step(step).unwrap();
        let sent = self.scene.out.take();
        sent.into_iter()
            .map(|message| shown(message.into_data()))
            .collect()
    }

    /// Seconds of sound, whose bytes are all this number.
    fn hears(&mut self, seconds: f64, mark: u8) -> Vec<String> {
        let sound = vec![mark; (seconds * 32_000.0) as usize];
        self.does(|protocol, io| {
            protocol.audio(sound.into(), io);
            Ok(Flow::Continue)
        })
    }

    fn finalizes(&mut self) -> Vec<String> {
        self.does(|protocol, io| {
            protocol.finalize(io);
            Ok(Flow::Continue)
        })
    }

    fn ends(&mut self) -> Vec<String> {
        self.does(|protocol, io| {
            protocol.end(io);
            Ok(Flow::Continue)
        })
    }

    fn idles(&mut self) -> Vec<String> {
        self.does(|protocol, io| {
            protocol.idle(io);
            Ok(Flow::Continue)
        })
    }

    fn is_told(&mut self, path: &str, turn: u64, body: &Value) -> Vec<String> {
        let id = origin().request_id(turn).to_uppercase();
        let message = said(path, &id, body);
        self.does(|protocol, io| protocol.receive(message, io))
    }

    fn is_told_phrase(&mut self, turn: u64, text: &str, from: f64, until: f64) -> Vec<String> {
        let (offset, duration) = ((from * 1e7) as u64, ((until - from) * 1e7) as u64);
        let word = json!({"Word": text, "Offset": offset, "Duration": duration});
        let best = json!({"Confidence": 0.9, "Lexical": text, "Display": format!("{text}."), "Words": [word]});
        let phrase = json!({"RecognitionStatus": "Success", "Offset": offset, "Duration": duration,
            "DisplayText": format!("{text}."), "NBest": [best]});
        self.is_told("speech.phrase", turn, &phrase)
    }

    /// The turn ends because it was told that it has all of its sound.
    fn is_answered(&mut self, turn: u64) -> Vec<String> {
        self.is_told("speech.endDetected", turn, &json!({"Offset": 1}));
        self.is_told("turn.end", turn, &json!({}))
    }

    /// What was told since the last time.
    fn told(&mut self) -> Vec<String> {
        let told = self.scene.events.drain(..).map(|event| match event {
            SttEvent::Partial(heard) => format!("({})", heard.text),
            SttEvent::Final(heard) => {
                let words = heard.words.iter();
                let words: Vec<_> = words
                    .map(|word| format!("{} {:.1}-{:.1}", word.word, word.start, word.end))
                    .collect();
                format!("{} [{}]", heard.text, words.join(", "))
            }
            SttEvent::EndOfSpeech => "end".to_owned(),
            SttEvent::UtteranceLost(error) => error.to_string(),
        });
        told.collect()
    }
}

fn shown(message: Bytes) -> String {
    let text = message.starts_with(b"Path:");
    let message = if text {
        Incoming::text(String::from_utf8(message.into()).unwrap())
    } else {
        Incoming::binary(message)
    };
    let message = message.unwrap();
    let turn = message.request.trim_start_matches('0');
    match &message.body {
        _ if text => format!("{} {turn}", message.path),
        header if header.starts_with(b"RIFF") => format!("header {turn}"),
        body if body.is_empty() => format!("end {turn}"),
        body => format!("{:.1}s of {} {turn}", body.len() as f64 / 32_000.0, body[0]),
    }
}

#[test]
fn a_turn_begins_with_its_context_and_a_header() {
    let mut stream = Stream::open(&request());
    let begun = stream.does(|protocol, io| {
        protocol.begin(io);
        Ok(Flow::Continue)
    });
    assert_eq!(begun, ["speech.config "]);
    assert_eq!(
        stream.hears(0.1, 1),
        ["speech.context a1", "header a1", "0.1s of 1 a1"]
    );
    assert_eq!(stream.hears(0.1, 2), ["0.1s of 2 a1"]);
}

#[test]
fn what_is_heard_is_told_once_with_its_words() {
    let mut stream = Stream::open(&request());
    stream.hears(2.0, 1);
    stream.is_told("turn.start", 1, &json!({"context": {"serviceTag": "x"}}));
    let heard = json!({"Id": "a", "Text": "hello", "Offset": 1_000_000, "Duration": 1});
    stream.is_told("speech.hypothesis", 1, &heard);
    stream.is_told_phrase(1, "hello", 0.5, 1.0);
    assert_eq!(stream.told(), ["(hello)", "hello. [hello 0.5-1.0]", "end"]);
    let mut plain = Stream::open(&SttRequest {
        punctuation: false,
        ..request()
    });
    plain.hears(2.0, 1);
    plain.is_told_phrase(1, "hello", 0.5, 1.0);
    assert_eq!(plain.told(), ["hello [hello 0.5-1.0]", "end"]);
}

#[test]
fn a_turn_that_azure_ends_is_followed_by_one_that_hears_the_rest_again() {
    let mut stream = Stream::open(&request());
    stream.hears(1.0, 1);
    stream.hears(1.0, 2);
    stream.is_told_phrase(1, "one", 0.2, 1.0);
    stream.is_told("speech.hypothesis", 1, &json!({"Text": "tw"}));
    stream.told();
    let again = stream.is_told("turn.end", 1, &json!({}));
    assert_eq!(again, ["speech.context a2", "header a2", "1.0s of 2 a2"]);
    assert_eq!(stream.told(), ["()"], "the partial is taken back");
    assert_eq!(stream.hears(1.0, 3), ["1.0s of 3 a2"]);
    stream.is_told_phrase(1, "stale", 0.0, 0.5);
    stream.is_told_phrase(2, "two", 0.5, 1.5);
    assert_eq!(stream.told(), ["two. [two 1.5-2.5]", "end"]);
    let again = stream.is_told("turn.end", 2, &json!({}));
    assert_eq!(again, ["speech.context a3", "header a3", "0.5s of 3 a3"]);
}

#[test]
fn a_final_that_is_asked_for_ends_the_turn_and_sound_waits_for_the_next() {
    let mut stream = Stream::open(&request());
    assert!(stream.finalizes().is_empty(), "nothing was said yet");
    stream.hears(1.0, 1);
    assert_eq!(stream.finalizes(), ["end a1"]);
    assert!(stream.finalizes().is_empty());
    assert!(stream.hears(0.5, 2).is_empty());
    assert!(stream.finalizes().is_empty());
    assert!(stream.hears(0.5, 3).is_empty());
    stream.is_told_phrase(1, "one", 0.2, 0.9);
    assert_eq!(
        stream.told(),
        ["one. [one 0.2-0.9]"],
        "no pause of the speaker's"
    );
    let next = stream.is_answered(1);
    assert_eq!(
        next,
        ["speech.context a2", "header a2", "0.5s of 2 a2", "end a2"]
    );
    stream.is_told_phrase(2, "two", 0.1, 0.5);
    assert_eq!(stream.told(), ["two. [two 1.1-1.5]"]);
    let next = stream.is_answered(2);
    assert_eq!(next, ["speech.context a3", "header a3", "0.5s of 3 a3"]);
    assert_eq!(stream.hears(0.5, 4), ["0.5s of 4 a3"]);
}

#[test]
fn after_an_asked_final_without_more_sound_the_next_sound_begins_a_turn() {
    let mut stream = Stream::open(&request());
    stream.hears(1.0, 1);
    stream.finalizes();
    assert!(stream.is_answered(1).is_empty());
    assert_eq!(
        stream.hears(0.5, 2),
        ["speech.context a2", "header a2", "0.5s of 2 a2"]
    );
    assert_eq!(stream.finalizes(), ["end a2"]);
}

#[test]
fn the_stream_ends_when_its_last_words_have_come() {
    let mut stream = Stream::open(&request());
    stream.hears(1.0, 1);
    assert_eq!(stream.ends(), ["end a1"]);
    stream.is_told_phrase(1, "last", 0.2, 0.9);
    assert_eq!(stream.flow, Flow::Continue);
    stream.is_answered(1);
    assert_eq!(
        (stream.flow, stream.told()),
        (Flow::Finished, vec!["last. [last 0.2-0.9]".to_owned()])
    );
}

#[test]
fn sound_that_waits_when_the_stream_ends_is_heard_first() {
    let mut stream = Stream::open(&request());
    stream.hears(1.0, 1);
    stream.finalizes();
    stream.hears(0.5, 2);
    assert!(stream.ends().is_empty());
    let next = stream.is_answered(1);
    assert_eq!(
        next,
        ["speech.context a2", "header a2", "0.5s of 2 a2", "end a2"]
    );
    assert_eq!(stream.flow, Flow::Continue);
    stream.is_answered(2);
    assert_eq!(stream.flow, Flow::Finished);
}

#[test]
fn a_turn_that_azure_has_ended_meanwhile_is_heard_again_once() {
    for ends in [false, true] {
        let mut stream = Stream::open(&request());
        stream.hears(1.0, 1);
        if ends {
            stream.ends();
        } else {
            stream.finalizes();
        }
        let again = ["speech.context a2", "header a2", "1.0s of 1 a2", "end a2"];
        assert_eq!(stream.is_told("turn.end", 1, &json!({})), again);
        assert_eq!(stream.flow, Flow::Continue);
        stream.is_told_phrase(2, "one", 0.2, 0.9);
        assert_eq!(stream.told(), ["one. [one 0.2-0.9]"]);
        assert!(stream.is_told("turn.end", 2, &json!({})).is_empty());
        let finished = if ends { Flow::Finished } else { Flow::Continue };
        assert_eq!(stream.flow, finished);
    }
}

#[test]
fn a_stream_that_owes_nothing_ends_at_once() {
    let mut covered = Stream::open(&request());
    covered.hears(1.0, 1);
    covered.is_told_phrase(1, "all", 0.0, 1.0);
    for mut stream in [Stream::open(&request()), covered] {
        stream.ends();
        assert_eq!(stream.scene.protocol.deadline(), Some(stream.scene.now));
        stream.does(Protocol::tick);
        assert_eq!(stream.flow, Flow::Finished);
    }
}

#[test]
fn a_turn_that_does_not_end_is_an_error() {
    let mut stream = Stream::open(&request());
    stream.hears(1.0, 1);
    stream.finalizes();
    assert_eq!(
        stream.scene.protocol.deadline(),
        Some(stream.scene.now + LAST_WORDS)
    );
    stream.scene.now += LAST_WORDS;
    let error = stream.scene.step(Protocol::tick).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout);
}

#[test]
fn a_quiet_stream_is_kept_alive_by_turns_of_silence() {
    let mut stream = Stream::open(&request());
    stream.hears(1.0, 1);
    assert_eq!(stream.idles(), ["end a1"]);
    assert!(stream.idles().is_empty(), "its end is on its way");
    stream.is_answered(1);
    let silence = ["speech.context a2", "header a2", "0.1s of 0 a2", "end a2"];
    assert_eq!(stream.idles(), silence);
    assert!(stream.hears(0.5, 2).is_empty());
    stream.is_told(
        "speech.phrase",
        2,
        &json!({"RecognitionStatus": "EndOfDictation", "Offset": 1_000_000}),
    );
    let next = stream.is_told("turn.end", 2, &json!({}));
    assert_eq!(next, ["speech.context a3", "header a3", "0.5s of 2 a3"]);
    stream.is_told_phrase(3, "two", 0.1, 0.4);
    assert_eq!(
        stream.told(),
        ["two. [two 1.1-1.4]", "end"],
        "silence takes no time"
    );
}

#[test]
fn what_is_kept_for_the_next_turn_is_bounded() {
    let mut stream = Stream::open(&request());
    for _ in 0..600 {
        stream.scene.now += CHUNK;
        stream.hears(0.1, 1);
    }
    let kept = stream.scene.protocol.sound.len;
    assert!(
        (5 * 32_000..=6 * 32_000).contains(&kept),
        "nobody was heard: {kept}"
    );
    stream.is_told("speech.startDetected", 1, &json!({"Offset": 1}));
    for _ in 0..600 {
        stream.hears(0.1, 1);
    }
    assert_eq!(stream.scene.protocol.sound.len, 30 * 32_000);
    let again = stream.is_told("turn.end", 1, &json!({}));
    assert_eq!(again.len(), 2 + 300);
    stream.is_told_phrase(2, "late", 0.0, 1.0);
    assert_eq!(stream.told(), ["late. [late 90.0-91.0]", "end"]);
}

#[test]
fn what_was_sent_at_once_is_kept_until_it_would_have_been_noticed() {
    let mut stream = Stream::open(&request());
    for _ in 0..200 {
        stream.hears(0.1, 1);
    }
    let again = stream.is_told("turn.end", 1, &json!({}));
    assert_eq!(again.len(), 2 + 200);
}

#[test]
fn failures_end_the_stream_and_silence_does_not() {
    for (status, kind) in [
        (
            "TooManyRequests",
            ErrorKind::RateLimited { retry_after: None },
        ),
        ("Forbidden", ErrorKind::Auth),
        ("BadRequest", ErrorKind::InvalidRequest),
        ("Error", ErrorKind::Unavailable),
    ] {
        let mut stream = Stream::open(&request());
        stream.hears(0.1, 1);
        let id = origin().request_id(1);
        let message = said("speech.phrase", &id, &json!({"RecognitionStatus": status}));
        let error = stream.scene.receive(message).unwrap_err();
        assert_eq!(error.kind, kind);
    }
    let mut stream = Stream::open(&request());
    stream.hears(1.0, 1);
    stream.is_told("speech.hypothesis", 1, &json!({"Text": "hm"}));
    for status in [
        "NoMatch",
        "InitialSilenceTimeout",
        "BabbleTimeout",
        "Unheard of",
    ] {
        stream.is_told(
            "speech.phrase",
            1,
            &json!({"RecognitionStatus": status, "Offset": 1, "Duration": 1e300}),
        );
    }
    assert_eq!(stream.told(), ["(hm)", "()"]);
}

#[test]
fn languages_keyterms_and_speakers_are_asked_for_in_the_context() {
    let request = SttRequest {
        model: "my model&x".into(),
        languages: vec!["de-DE".into()],
        keyterms: vec!["Contoso \"x\"".into()],
        diarize: true,
        ..request()
    };
    let context = context(&request, &origin());
    assert_eq!(
        context["languageId"]["languages"],
        json!(["en-US", "de-DE"])
    );
    assert_eq!(
        context["dgi"]["groups"][0]["items"],
        json!([{"text": "Contoso \"x\""}])
    );
    assert_eq!(
        context["phraseDetection"]["speakerDiarization"]["mode"],
        "Anonymous"
    );
    let mut url = url::Url::parse("wss://h/p").unwrap();
    query(&mut url, &request);
    assert!(url.as_str().ends_with("&cid=my+model%26x"), "{url}");

    let mut stream = Stream::open(&request);
    stream.hears(1.0, 1);
    let word = json!({"Word": "hi", "Offset": 0, "Duration": 1, "Confidence": 0.5});
    stream.is_told(
        "speech.phrase",
        1,
        &json!({"RecognitionStatus": "Success", "SpeakerId": "Guest-1", "DisplayText": "Hi.",
            "PrimaryLanguage": {"Language": "de-DE", "Confidence": "High"},
            "NBest": [{"Display": "Hi.", "Lexical": "hi", "Words": [word]}]}),
    );
    let Some(SttEvent::Final(heard)) = stream.scene.events.first() else {
        panic!("a final")
    };
    assert_eq!(heard.language.as_deref(), Some("de-DE"));
    assert_eq!(heard.words[0].speaker.as_deref(), Some("Guest-1"));
    assert_eq!(heard.words[0].confidence, Some(0.5));
}

#[test]
fn the_header_names_the_encoding_that_is_sent() {
    for (encoding, hz, tag, bits, quiet) in [
        (Encoding::Linear16, 16_000u32, 1, 16, 0),
        (Encoding::Mulaw, 8_000, 7, 8, 0xff),
        (Encoding::Alaw, 8_000, 6, 8, 0xd5),
    ] {
        let format = AudioFormat::mono(encoding, SampleRate::new(hz).unwrap());
        let header = riff_header(format);
        assert_eq!(header.len(), 44);
        assert_eq!((header[20], header[22], header[34]), (tag, 1, bits));
        assert_eq!(header[24..28], hz.to_le_bytes());
        assert_eq!(header[28..32], (hz * u32::from(bits) / 8).to_le_bytes());
        let silence = silence(format, CHUNK);
        assert_eq!(silence.len(), hz as usize / 10 * usize::from(bits) / 8);
        assert!(silence.iter().all(|byte| *byte == quiet));
    }
}
