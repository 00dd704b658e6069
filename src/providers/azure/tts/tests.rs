//! The protocol message by message.

use super::usp::tests::{origin, said};
use super::*;
use crate::transport::testing::{TtsScene, tts_request};
use vivavoce_audio::format::SampleRate;

fn request(voice: Option<&str>, rate: f64, encoding: Encoding, hz: u32) -> TtsRequest {
    let preferred = AudioFormat::mono(encoding, SampleRate::new(hz).unwrap());
    TtsRequest {
        voice_id: voice.map(str::to_owned),
        speaking_rate: rate,
        ..tts_request(preferred)
    }
}

struct Utter {
    scene: TtsScene<Speech>,
    flow: Flow,
}

impl Utter {
    fn new(voice: Option<&str>, rate: f64) -> Self {
        let style = Style::of(&request(voice, rate, Encoding::Linear16, 16_000));
        Self {
            scene: TtsScene::new(Speech::new(style, origin())),
            flow: Flow::Continue,
        }
    }

    /// Lets the protocol do something; gives what it sends as "path turn: body".
    fn does(
        &mut self,
        step: impl FnOnce(&mut Speech, &mut TtsIo<'_>) -> Result<Flow, ProviderError>,
    ) -> Vec<String> {
        self.flow = self.scene.step(step).unwrap();
        let texts = self.scene.out.texts();
        let sent = texts.into_iter().map(|text| {
            let message = Incoming::text(text).unwrap();
            let turn = message.request.trim_start_matches('0');
            match message.path.as_str() {
                "synthesis.context" | "speech.config" => format!("{} {turn}", message.path),
                path => format!("{path} {turn}: {}", String::from_utf8_lossy(&message.body)),
            }
        });
        sent.collect()
    }

    fn gets(&mut self, text: &str) -> Vec<String> {
        self.does(|protocol, io| {
            protocol.text(text, io);
            Ok(Flow::Continue)
        })
    }

    fn ends(&mut self) -> Vec<String> {
        self.does(|protocol, io| {
            protocol.end(io);
            Ok(Flow::Continue)
        })
    }

    fn is_told(&mut self, path: &str, turn: u64, body: &Value) -> Vec<String> {
        let message = said(path, &origin().request_id(turn), body);
        self.does(|protocol, io| protocol.receive(message, io))
    }

    fn is_sent(&mut self, turn: u64, sound: &[u8]) {
        let id = origin().request_id(turn);
        let message = Received::Binary(origin().audio(&id, None, sound));
        self.does(|protocol, io| protocol.receive(message, io));
    }

    fn sound(&self) -> Vec<u8> {
        let sound = self.scene.events.iter().filter_map(|event| match event {
            TtsEvent::Audio(sound) => Some(sound.to_vec()),
            _ => None,
        });
        sound.flatten().collect()
    }

    fn words(&self) -> Vec<(String, u128)> {
        let words = self.scene.events.iter().filter_map(|event| match event {
            TtsEvent::Word { word, start } => Some((word.clone(), start.as_millis())),
            _ => None,
        });
        words.collect()
    }
}

fn boundary(word: &str, offset: u64, kind: &str) -> Value {
    json!({"Metadata": [
        {"Type": "WordBoundary", "Data": {"Offset": offset, "Duration": 1,
            "text": {"Text": word, "Length": word.len(), "BoundaryType": kind}}},
        {"Type": "SessionEnd", "Data": {"Offset": 1}},
    ]})
}

#[test]
fn a_voice_that_takes_pieces_gets_them_as_they_come() {
    let mut speech = Utter::new(None, 1.0);
    let begun = speech.does(|protocol, io| {
        protocol.begin(io);
        Ok(Flow::Continue)
    });
    assert_eq!(begun, ["speech.config "]);
    assert_eq!(
        speech.gets("Hello <b>"),
        ["synthesis.context a1", "text.piece a1: Hello <b>"]
    );
    assert_eq!(speech.gets(" & bye"), ["text.piece a1:  & bye"]);
    assert_eq!(speech.ends(), ["text.end a1: "]);
    speech.is_sent(1, &[1, 2, 3]);
    speech.is_sent(1, &[4]);
    speech.is_told("turn.end", 1, &json!({}));
    assert_eq!(
        (speech.sound(), speech.flow),
        (vec![1, 2, 3, 4], Flow::Finished)
    );
}

#[test]
fn other_voices_get_sentences_as_ssml_one_turn_after_the_other() {
    let mut speech = Utter::new(Some("de-DE-KatjaNeural"), 1.0);
    assert!(speech.gets("Guten ").is_empty());
    let sent = speech.gets("Tag. Wie geht");
    assert_eq!(sent.len(), 2);
    assert!(
        sent[1].contains("xml:lang='de-DE'><voice name='de-DE-KatjaNeural'>Guten Tag.</voice>"),
        "{sent:?}"
    );
    assert!(speech.gets(" es?").is_empty());
    assert!(speech.ends().is_empty());
    speech.is_sent(1, &vec![0; 32_001]);
    speech.is_told(
        "audio.metadata",
        1,
        &boundary("Guten", 500_000, "WordBoundary"),
    );
    let sent = speech.is_told("turn.end", 1, &json!({}));
    assert!(
        sent[1].starts_with("ssml a2") && sent[1].contains(">Wie geht es?<"),
        "{sent:?}"
    );
    assert_eq!(speech.flow, Flow::Continue);
    speech.is_sent(2, &[7, 7]);
    speech.is_told(
        "audio.metadata",
        2,
        &boundary("Wie", 1_000_000, "WordBoundary"),
    );
    speech.is_told(
        "audio.metadata",
        2,
        &boundary("?", 2_000_000, "PunctuationBoundary"),
    );
    speech.is_told("turn.end", 2, &json!({}));
    assert_eq!(speech.flow, Flow::Finished);
    let sound = speech.sound();
    assert_eq!(sound.len(), 32_002, "half a sample is no sound");
    assert_eq!(sound[32_000..], [7, 7]);
    let words = [("Guten".to_owned(), 50), ("Wie".to_owned(), 1_100)];
    assert_eq!(speech.words(), words);
}

#[test]
fn an_utterance_whose_sound_is_there_when_the_text_ends_is_said() {
    let mut speech = Utter::new(Some("de-DE-KatjaNeural"), 1.0);
    speech.gets("Ja. Nein. ");
    speech.is_told("turn.end", 1, &json!({}));
    assert_eq!(speech.flow, Flow::Continue, "more text may come");
    assert!(speech.ends().is_empty());
    assert!(speech.scene.protocol.is_said());
}

#[test]
fn a_rate_of_speech_is_a_bare_multiplier_in_ssml() {
    let mut speech = Utter::new(None, 0.75);
    speech.gets("Hi.");
    let sent = speech.ends();
    let ssml = "<prosody rate='0.750'>Hi.</prosody></voice></speak>";
    assert!(sent[1].ends_with(ssml), "{sent:?}");
}

#[test]
fn nothing_that_a_caller_sends_becomes_markup() {
    let mut speech = Utter::new(Some("x'/><evil a='Neural"), 1.0);
    speech.gets("1 < 2 & \"3\" > </voice> \u{1}\u{ffff}");
    let sent = speech.ends();
    let ssml = &sent[1];
    assert!(
        ssml.contains("name='x&apos;/&gt;&lt;evil a=&apos;Neural'"),
        "{ssml}"
    );
    let said = ">1 &lt; 2 &amp; &quot;3&quot; &gt; &lt;/voice&gt;   </voice></speak>";
    assert!(ssml.ends_with(said), "{ssml}");
}

#[test]
fn a_long_text_is_said_in_turns_that_azure_takes() {
    let text = "This is a sentence of forty-two characters. ".repeat(400);
    for voice in [None, Some("de-DE-KatjaNeural")] {
        let mut speech = Utter::new(voice, 1.0);
        let mut sent = speech.gets(&text);
        sent.extend(speech.ends());
        let mut turns = 1;
        while speech.flow == Flow::Continue {
            sent.extend(speech.is_told("turn.end", turns, &json!({})));
            turns += 1;
        }
        assert_eq!(turns, 4);
        let given: Vec<_> = sent
            .iter()
            .filter(|message| message.starts_with("text.piece") || message.starts_with("ssml"))
            .collect();
        assert_eq!(given.len(), 3);
        assert!(given.iter().all(|message| message.len() < TURN_BYTES + 400));
        let sentences = given
            .iter()
            .map(|message| message.matches("This is").count());
        assert_eq!(sentences.sum::<usize>(), 400);
    }
}

#[test]
fn an_utterance_that_is_called_off_ends_with_its_turn() {
    let mut speech = Utter::new(None, 1.0);
    speech.gets("Hello ");
    let mut called_off = false;
    let sent = speech.does(|protocol, io| {
        called_off = protocol.cancel(io);
        Ok(Flow::Continue)
    });
    assert!(called_off);
    assert_eq!(sent, [r#"synthesis.control a1: {"action":"stop"}"#]);
    speech.is_told("turn.end", 1, &json!({}));
    assert_eq!(speech.flow, Flow::Finished);
}

#[test]
fn messages_of_another_turn_are_not_ours() {
    let mut speech = Utter::new(None, 1.0);
    speech.gets("Hello");
    speech.is_sent(9, &[1, 2]);
    speech.is_told("turn.end", 9, &json!({}));
    assert!(speech.sound().is_empty());
    assert_eq!(speech.flow, Flow::Continue);
}

#[test]
fn the_format_is_never_labelled_with_a_rate_that_it_does_not_have() {
    let nearest = |encoding, hz: u32| {
        let style = Style::of(&request(None, 1.0, encoding, hz));
        (
            style.format.encoding,
            style.format.layout.rate.hz(),
            style.format_name,
        )
    };
    use Encoding::{Alaw, Linear16, Mp3, Mulaw};
    assert_eq!(
        nearest(Mulaw, 8_000),
        (Mulaw, 8_000, "raw-8khz-8bit-mono-mulaw")
    );
    assert_eq!(
        nearest(Alaw, 8_000),
        (Alaw, 8_000, "raw-8khz-8bit-mono-alaw")
    );
    assert_eq!(
        nearest(Mulaw, 16_000),
        (Linear16, 16_000, "raw-16khz-16bit-mono-pcm")
    );
    assert_eq!(
        nearest(Linear16, 11_025),
        (Linear16, 16_000, "raw-16khz-16bit-mono-pcm")
    );
    assert_eq!(
        nearest(Linear16, 22_050),
        (Linear16, 22_050, "raw-22050hz-16bit-mono-pcm")
    );
    assert_eq!(
        nearest(Mp3, 24_000),
        (Linear16, 24_000, "raw-24khz-16bit-mono-pcm")
    );
    assert_eq!(
        nearest(Linear16, 32_000),
        (Linear16, 44_100, "raw-44100hz-16bit-mono-pcm")
    );
    assert_eq!(
        nearest(Linear16, 96_000),
        (Linear16, 48_000, "raw-48khz-16bit-mono-pcm")
    );
}
