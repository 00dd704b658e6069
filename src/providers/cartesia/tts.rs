//! The protocol of Sonic's WebSocket, on which each utterance is a context: text goes up as it arrives, audio and word
//! timestamps come down. Messages name their context, so a socket can be reused at once.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::errors::{self, Problem};
use super::{CREDENTIAL, SLUG, handshake, voices};
use crate::transport::VendorEndpoint;
use crate::transport::tts_driver::{Flow, Idle, Protocol, TtsEndpoint, TtsIo, Utterance};
use crate::transport::websocket::Received;
use vivavoce_audio::format::{AudioFormat, Encoding};
use vivavoce_seams::parameters::{Parameter, converted, own};
use vivavoce_seams::{
    CredentialField, OutputFormat, ProviderError, Speaks, TextStream, TextToSpeech, TtsEvent,
    TtsRequest, TtsStream, Voice,
};

/// The vendor closes a socket after five minutes.
const IDLE: Idle = Idle {
    longest: Duration::from_mins(4),
    keep_alive: None,
    oldest: Duration::from_hours(1),
};
const MODEL: &str = "sonic-3.5";
/// What the vendor's own client speaks with.
const VOICE: &str = "6ccbfb76-1fc6-48f7-b71d-91ac6298247b";
/// What the vendor's models can speak at, in hertz.
const RATES: &[u32] = &[8_000, 16_000, 22_050, 24_000, 44_100, 48_000];
/// What can be asked for, as `output_format`.
pub(super) const FORMATS: &[OutputFormat] = &[
    OutputFormat::new(Encoding::Linear16, RATES, "pcm_s16le"),
    OutputFormat::new(Encoding::Mulaw, RATES, "pcm_mulaw"),
    OutputFormat::new(Encoding::Alaw, RATES, "pcm_alaw"),
];
/// Speeds that they can speak with.
const SPEEDS: std::ops::RangeInclusive<f64> = 0.6..=1.5;
/// How the names of models begin that take no notice of a speed.
const WITHOUT_SPEED: &[&str] = &[
    "sonic-2",
    "sonic-turbo",
    "sonic-english",
    "sonic-multilingual",
];

const PARAMETERS: &[Parameter] = &[
    own("model", "model_id"),
    own("voice_id", "voice.id"),
    converted("audio_format", "from linear16; mulaw and alaw are its own"),
    converted("sample_rate", "from the next higher of its rates"),
    own(
        "speaking_rate",
        "generation_config.speed (0.6–1.5; the rest is stretched)",
    ),
    converted("pronunciations", "substituted in the text"),
    own("words", "add_timestamps"),
    own("auth", "Authorization"),
];

/// Cartesia's synthesiser.
pub(super) struct Sonic {
    endpoint: Arc<TtsEndpoint>,
}

impl Sonic {
    pub(super) fn new(vendor: VendorEndpoint) -> Self {
        Self {
            endpoint: Arc::new(TtsEndpoint::new(vendor, Some(IDLE))),
        }
    }
}

#[async_trait]
impl TextToSpeech for Sonic {
    fn slug(&self) -> &'static str {
        SLUG
    }

    /// `<break>`, `<speed>` and others: https://docs.cartesia.ai/build-with-cartesia/sonic-3/ssml-tags
    fn takes_tags(&self) -> bool {
        true
    }

    fn endpoint(&self) -> &str {
        self.endpoint.vendor.url.url().as_str()
    }

    fn speaks(&self) -> Speaks {
        Speaks {
            speaking_rates: SPEEDS,
        }
    }

    fn speaks_as(&self, _voice_id: Option<&str>, model: &str) -> Speaks {
        let speaking_rates = if has_speed(model) { SPEEDS } else { 1.0..=1.0 };
        Speaks { speaking_rates }
    }

    fn credential_fields(&self) -> &'static [CredentialField] {
        CREDENTIAL
    }

    fn credential_fingerprint(&self) -> [u8; 32] {
        self.endpoint.vendor.own_fingerprint()
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    async fn synthesize(
        &self,
        request: TtsRequest,
        text: TextStream,
    ) -> Result<TtsStream, ProviderError> {
        let vendor = &self.endpoint.vendor;
        let credential = vendor.credential(request.credential.as_ref())?;
        let (format, encoding) = OutputFormat::nearest(FORMATS, request.preferred);
        let asked = asked(&request, format, encoding);
        let utterance = Utterance {
            handshake: handshake(vendor.url.at(["tts", "websocket"]), &credential),
            credential: credential.fingerprint(),
            format,
            protocol: move || Contexts::new(Uuid::new_v4(), asked.clone(), format),
        };
        Ok(self.endpoint.speak(utterance, &request, text))
    }

    async fn voices(&self) -> Result<Vec<Voice>, ProviderError> {
        voices::all(&self.endpoint.vendor).await
    }
}

/// Whether a model can be told how fast to speak; those before Sonic 3 take no notice.
fn has_speed(model: &str) -> bool {
    model != "sonic" && !WITHOUT_SPEED.iter().any(|old| model.starts_with(old))
}

/// The fields that every message of an utterance repeats.
fn asked(request: &TtsRequest, format: AudioFormat, encoding: &str) -> Value {
    let model = match request.model.as_str() {
        "" => MODEL,
        model => model,
    };
    let mut asked = json!({
        "model_id": model,
        "voice": {"mode": "id", "id": request.voice_id.as_deref().unwrap_or(VOICE)},
        "output_format": {
            "container": "raw",
            "encoding": encoding,
            "sample_rate": format.layout.rate.hz(),
        },
        "add_timestamps": true,
    });
    let speed = request.speaking_rate;
    if (speed - 1.0).abs() > f64::EPSILON {
        asked["generation_config"] = json!({"speed": speed});
    }
    asked
}

/// One utterance: a context, or several where the text pauses for longer than a context lives.
struct Contexts {
    id: Uuid,
    /// Counts the contexts of the utterance.
    number: u32,
    /// Whether the present context owes something.
    open: bool,
    asked: Value,
    format: AudioFormat,
    /// The sound of the contexts before, to whose end the times of this one are added.
    before: Duration,
    /// Bytes of sound in this context.
    bytes: usize,
    ended: bool,
    literal: Literal,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Message {
    Chunk(Chunk),
    Timestamps(Timestamps),
    Done(Done),
    Error(Problem),
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
struct Chunk {
    context_id: Option<String>,
    #[serde(default)]
    data: String,
}

#[derive(Deserialize)]
struct Timestamps {
    context_id: Option<String>,
    word_timestamps: Option<Words>,
}

#[derive(Deserialize)]
struct Words {
    words: Vec<String>,
    start: Vec<f64>,
}

#[derive(Deserialize)]
struct Done {
    context_id: Option<String>,
}

impl Contexts {
    fn new(id: Uuid, asked: Value, format: AudioFormat) -> Self {
        Self {
            id,
            number: 0,
            open: false,
            asked,
            format,
            before: Duration::ZERO,
            bytes: 0,
            ended: false,
            literal: Literal::default(),
        }
    }

    fn context_id(&self) -> String {
        format!("{}-{}", self.id, self.number)
    }

    fn send(&self, transcript: &str, more: bool, io: &mut TtsIo<'_>) {
        let mut message = self.asked.clone();
        message["context_id"] = self.context_id().into();
        message["transcript"] = transcript.into();
        message["continue"] = more.into();
        io.out.json(&message);
    }

    /// Whether a message is of the present context; one without a name can be of no other.
    fn is_of_this(&self, id: Option<&String>) -> bool {
        id.is_none_or(|id| *id == self.context_id())
    }

    fn chunk(&mut self, chunk: &Chunk, io: &mut TtsIo<'_>) -> Result<(), ProviderError> {
        let audio = STANDARD.decode(&chunk.data).map_err(errors::unreadable)?;
        self.bytes += audio.len();
        if !audio.is_empty() {
            io.events.push(TtsEvent::Audio(Bytes::from(audio)));
        }
        Ok(())
    }

    fn words(&self, words: Words, io: &mut TtsIo<'_>) {
        for (word, start) in words.words.into_iter().zip(words.start) {
            if let Ok(start) = Duration::try_from_secs_f64(start) {
                let start = self.before.saturating_add(start);
                io.events.push(TtsEvent::Word { word, start });
            }
        }
    }

    /// The context is over; if the text goes on, so it does in the next.
    fn done(&mut self) -> Flow {
        let width = if self.format.encoding == Encoding::Linear16 {
            2
        } else {
            1
        };
        let frames = std::mem::take(&mut self.bytes) / width;
        self.before += self.format.layout.rate.duration_of(frames);
        self.open = false;
        if self.ended {
            Flow::Finished
        } else {
            Flow::Continue
        }
    }
}

impl Protocol for Contexts {
    fn begin(&mut self, _io: &mut TtsIo<'_>) {}

    fn text(&mut self, piece: &str, io: &mut TtsIo<'_>) {
        if !std::mem::replace(&mut self.open, true) {
            self.number += 1;
        }
        let transcript = self.literal.next(piece);
        self.send(&transcript, true, io);
    }

    fn end(&mut self, io: &mut TtsIo<'_>) {
        self.ended = true;
        if self.open {
            self.send("", false, io);
        }
    }

    fn cancel(&mut self, io: &mut TtsIo<'_>) -> bool {
        if self.open {
            io.out
                .json(&json!({"context_id": self.context_id(), "cancel": true}));
        }
        true
    }

    fn marks_its_messages(&self) -> bool {
        true
    }

    fn is_said(&self) -> bool {
        !self.open
    }

    fn receive(&mut self, message: Received, io: &mut TtsIo<'_>) -> Result<Flow, ProviderError> {
        let text = match message {
            Received::Text(text) => text,
            Received::Binary(_) => return Err(errors::unreadable("binary")),
            Received::Closed(frame) => return Err(errors::closed(frame)),
        };
        match serde_json::from_str(&text).map_err(errors::unreadable)? {
            Message::Chunk(chunk) if self.is_of_this(chunk.context_id.as_ref()) => {
                self.chunk(&chunk, io)?;
            }
            Message::Timestamps(times) if self.is_of_this(times.context_id.as_ref()) => {
                if let Some(words) = times.word_timestamps {
                    self.words(words, io);
                }
            }
            Message::Done(done) if self.is_of_this(done.context_id.as_ref()) => {
                return Ok(self.done());
            }
            Message::Error(problem) if self.is_of_this(problem.context_id.as_ref()) => {
                return Err(errors::reported(&problem));
            }
            // An utterance before this one was called off, and the vendor had something to say of it.
            _ => {}
        }
        Ok(Flow::Continue)
    }
}

/// Text in which nothing is a command: `<<` begins phonemes, and `<` before a letter or a slash a tag.
#[derive(Default)]
struct Literal {
    /// Whether the text so far ends with `<`.
    opened: bool,
}

impl Literal {
    fn next(&mut self, piece: &str) -> String {
        let mut literal = String::with_capacity(piece.len());
        for char in piece.chars() {
            if self.opened && (matches!(char, '<' | '/') || char.is_alphabetic()) {
                literal.push(' ');
            }
            self.opened = char == '<';
            literal.push(char);
        }
        literal
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::testing::{TtsScene, tts_request};
    use vivavoce_audio::format::SampleRate;
    use vivavoce_seams::ErrorKind;

    fn request(model: &str, rate: f64) -> TtsRequest {
        let preferred = AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000);
        TtsRequest {
            model: model.to_owned(),
            speaking_rate: rate,
            ..tts_request(preferred)
        }
    }

    impl TtsScene<Contexts> {
        fn contexts() -> Self {
            let request = request("", 1.0);
            let asked = asked(&request, request.preferred, "pcm_s16le");
            Self::new(Contexts::new(Uuid::nil(), asked, request.preferred))
        }

        fn reads(&mut self, message: &Value) -> Result<Flow, ProviderError> {
            self.receive(Received::Text(message.to_string()))
        }

        fn heard(&mut self) -> Vec<String> {
            let text = |event| match event {
                TtsEvent::Audio(audio) => format!("{} bytes", audio.len()),
                TtsEvent::Word { word, start } => format!("{word} {}", start.as_millis()),
                TtsEvent::Done => "done".to_owned(),
            };
            self.events.drain(..).map(text).collect()
        }
    }

    fn id(number: u32) -> String {
        format!("{}-{number}", Uuid::nil())
    }

    #[test]
    fn every_message_repeats_what_is_asked() {
        let mut scene = TtsScene::contexts();
        scene.step(|protocol, io| {
            protocol.begin(io);
            protocol.text("Hello, ", io);
            protocol.text("you.", io);
            protocol.end(io);
        });
        let expected = |transcript: &str, more: bool| {
            json!({
                "context_id": id(1), "model_id": "sonic-3.5", "transcript": transcript, "continue": more,
                "voice": {"mode": "id", "id": VOICE}, "add_timestamps": true,
                "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 16000},
            })
        };
        let sent = [
            expected("Hello, ", true),
            expected("you.", true),
            expected("", false),
        ];
        assert_eq!(scene.sent(), sent);
    }

    #[test]
    fn sound_and_words_come_and_those_of_others_do_not() {
        let mut scene = TtsScene::contexts();
        scene.step(|protocol, io| {
            protocol.text("Hello", io);
            protocol.end(io);
        });
        let one = id(1);
        for message in [
            json!({"type": "chunk", "context_id": "old", "data": "AAAA", "done": false}),
            json!({"type": "done", "context_id": "old", "done": true}),
            json!({"type": "error", "context_id": "old", "done": true, "status_code": 400}),
            json!({"type": "timestamps", "context_id": one, "word_timestamps": {"words": ["Hello"], "start": [0.25], "end": [0.5]}}),
            json!({"type": "chunk", "context_id": one, "data": "AAAAAA==", "done": false, "status_code": 206, "step_time": 1.0}),
            json!({"type": "chunk", "context_id": one, "data": "", "done": false}),
            json!({"type": "flush_done", "context_id": one, "flush_id": 1}),
            json!({"type": "of the future"}),
        ] {
            assert_eq!(scene.reads(&message).unwrap(), Flow::Continue);
        }
        assert_eq!(scene.heard(), ["Hello 250", "4 bytes"]);
        let done = json!({"type": "done", "context_id": one, "done": true, "status_code": 200});
        assert_eq!(scene.reads(&done).unwrap(), Flow::Finished);
    }

    #[test]
    fn text_that_outlives_a_context_goes_on_in_the_next_and_so_do_its_times() {
        let mut scene = TtsScene::contexts();
        scene.step(|protocol, io| protocol.text("one", io));
        let audio = STANDARD.encode(vec![0; 32_001]);
        scene
            .reads(&json!({"type": "chunk", "context_id": id(1), "data": audio}))
            .unwrap();
        let done = json!({"type": "done", "context_id": id(1)});
        assert_eq!(scene.reads(&done).unwrap(), Flow::Continue);
        scene.step(|protocol, io| protocol.text("two", io));
        let sent = scene.sent();
        assert_eq!(sent[1]["context_id"], id(2));
        let words = json!({"words": ["two"], "start": [0.1], "end": [0.2]});
        scene
            .reads(&json!({"type": "timestamps", "context_id": id(2), "word_timestamps": words}))
            .unwrap();
        assert_eq!(scene.heard(), ["32001 bytes", "two 1100"]);
        let done = json!({"type": "done", "context_id": id(2)});
        assert_eq!(scene.reads(&done).unwrap(), Flow::Continue);
        scene.step(Protocol::end);
        assert!(scene.sent().is_empty() && scene.protocol.is_said());
    }

    #[test]
    fn a_call_off_names_its_context() {
        let mut scene = TtsScene::contexts();
        assert!(scene.step(Protocol::cancel));
        assert!(scene.sent().is_empty(), "nothing was begun");
        scene.step(|protocol, io| protocol.text("one", io));
        scene.sent();
        assert!(scene.step(Protocol::cancel));
        assert_eq!(scene.sent(), [json!({"context_id": id(1), "cancel": true})]);
    }

    #[test]
    fn failures_have_their_kinds() {
        let mut scene = TtsScene::contexts();
        scene.step(|protocol, io| protocol.text("one", io));
        for (message, kind) in [
            (
                json!({"type": "error", "context_id": id(1), "status_code": 404, "title": "T"}),
                ErrorKind::InvalidRequest,
            ),
            (
                json!({"type": "error", "status_code": 402, "title": "T"}),
                ErrorKind::Quota,
            ),
            (
                json!({"type": "chunk", "context_id": id(1), "data": "not base64!"}),
                ErrorKind::Protocol,
            ),
            (json!({"type": "chunk", "data": 7}), ErrorKind::Protocol),
            (json!("no object"), ErrorKind::Protocol),
        ] {
            assert_eq!(scene.reads(&message).unwrap_err().kind, kind, "{message}");
        }
        let closed = Received::Closed(Some((1000, String::new())));
        let error = scene.step(|protocol, io| protocol.receive(closed, io));
        assert_eq!(error.unwrap_err().kind, ErrorKind::Unavailable);
    }

    #[test]
    fn the_nearest_rate_that_loses_nothing_is_asked_for() {
        for (encoding, hz, expected, expected_hz) in [
            (Encoding::Linear16, 8_000, Encoding::Linear16, 8_000),
            (Encoding::Linear16, 11_025, Encoding::Linear16, 16_000),
            (Encoding::Linear16, 32_000, Encoding::Linear16, 44_100),
            (Encoding::Opus, 48_000, Encoding::Linear16, 48_000),
            (Encoding::Mulaw, 8_000, Encoding::Mulaw, 8_000),
            (Encoding::Alaw, 8_000, Encoding::Alaw, 8_000),
            (Encoding::Mulaw, 11_025, Encoding::Linear16, 16_000),
        ] {
            let preferred = AudioFormat::mono(encoding, SampleRate::new(hz as u32).unwrap());
            let (got, _) = OutputFormat::nearest(FORMATS, preferred);
            assert_eq!(
                (got.encoding, got.layout.rate.hz()),
                (expected, expected_hz)
            );
        }
    }

    #[test]
    fn a_speed_is_asked_for_where_it_is_not_the_usual_one() {
        let asked = |rate| {
            let request = request("", rate);
            asked(&request, request.preferred, "pcm_s16le")
        };
        assert_eq!(asked(1.5)["generation_config"], json!({"speed": 1.5}));
        assert!(asked(1.0).get("generation_config").is_none());
        for (model, has) in [
            ("", true),
            ("sonic-3", true),
            ("sonic-latest", true),
            ("sonic-2-2025-03-07", false),
            ("sonic", false),
        ] {
            assert_eq!(has_speed(model), has, "{model}");
        }
    }

    #[test]
    fn nothing_in_a_text_is_a_command() {
        let mut literal = Literal::default();
        for (piece, expected) in [
            ("a < b, 1<2, x<=y", "a < b, 1<2, x<=y"),
            ("<<p|h>>", "< < p|h>>"),
            (
                "<break time=\"1s\"/></spell>",
                "< break time=\"1s\"/>< /spell>",
            ),
            ("cut <", "cut <"),
            ("<p>", " < p>"),
        ] {
            assert_eq!(literal.next(piece), expected);
        }
    }
}
