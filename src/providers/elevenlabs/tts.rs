//! The protocol of the multi-context WebSocket: each utterance is a context, so that the socket can be reused after the
//! utterance has ended or was cancelled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde_json::json;

use super::alignment::{Alignment, Words};
use super::{CREDENTIAL_FIELDS, KEY, KEY_HEADER, SLUG, errors, voices};
use crate::transport::tts_driver::{Flow, Idle, Protocol, TtsEndpoint, TtsIo, Utterance};
use crate::transport::websocket::{Handshake, Received};
use crate::transport::{VendorEndpoint, shortened};
use vivavoce_audio::format::{AudioFormat, Encoding};
use vivavoce_core::sentences::spoken_lines;
use vivavoce_seams::parameters::{Parameter, converted, own};
use vivavoce_seams::{
    CredentialField, ErrorKind, OutputFormat, ProviderError, Speaks, TextStream, TextToSpeech,
    TtsEvent, TtsRequest, TtsStream, Voice,
};

/// What speaks where nothing is said: the fastest.
const DEFAULT_MODEL: &str = "eleven_flash_v2_5";
/// Who speaks where nothing is said: George, a voice that every account has.
const DEFAULT_VOICE: &str = "JBFqnCBsd6RMkjVDRZzb";
/// Models that the vendor does not let speak on this socket.
const SPEAK_ELSEWHERE: [&str; 2] = ["eleven_v3", "eleven_v4"];
/// What can be asked for, as `output_format`: the name and the rate. 44100 Hz is left out: only dearer plans have it.
pub(super) const FORMATS: &[OutputFormat] = &[
    OutputFormat::new(
        Encoding::Linear16,
        &[8_000, 16_000, 22_050, 24_000, 32_000, 48_000],
        "pcm",
    ),
    OutputFormat::new(Encoding::Mulaw, &[8_000], "ulaw"),
    OutputFormat::new(Encoding::Alaw, &[8_000], "alaw"),
];
/// How long the vendor waits for text: as long as it can be asked to.
const PATIENCE_SECONDS: u64 = 180;
/// A socket is closed by us before the vendor loses its patience.
const IDLE: Idle = Idle {
    longest: Duration::from_secs(PATIENCE_SECONDS - 30),
    keep_alive: None,
    oldest: Duration::from_mins(30),
};
/// Base64 as vendors write it: with padding or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

const PARAMETERS: &[Parameter] = &[
    own("model", "model_id"),
    own("voice_id", "the path"),
    converted(
        "audio_format",
        "made from pcm, ulaw_8000 or alaw_8000 (output_format)",
    ),
    converted(
        "sample_rate",
        "output_format; other rates are resampled from the next one",
    ),
    own("speaking_rate", "voice_settings.speed"),
    converted("pronunciations", "substituted in the text"),
    own("words", "alignment"),
    own("auth", "xi-api-key"),
];

/// The synthesiser.
pub(super) struct Tts {
    endpoint: Arc<TtsEndpoint>,
    /// Numbers the contexts.
    utterances: Arc<AtomicU64>,
}

impl Tts {
    pub(super) fn new(vendor: VendorEndpoint) -> Self {
        Self {
            endpoint: Arc::new(TtsEndpoint::new(vendor, Some(IDLE))),
            utterances: Arc::default(),
        }
    }

    /// Where to knock for such speech.
    fn handshake(
        &self,
        request: &TtsRequest,
        output_format: &str,
        key: &str,
    ) -> Result<Handshake, ProviderError> {
        let refuse =
            |problem: String| Err(ProviderError::new(SLUG, ErrorKind::InvalidRequest, problem));
        let voice = request.voice_id.as_deref().unwrap_or(DEFAULT_VOICE);
        if matches!(voice, "" | "." | "..") {
            return refuse("voice_id: there is no such voice".to_owned());
        }
        let model = Some(request.model.as_str()).filter(|model| !model.is_empty());
        let model = model.unwrap_or(DEFAULT_MODEL);
        if let Some(elsewhere) = SPEAK_ELSEWHERE.iter().find(|name| model.starts_with(*name)) {
            let problem = format!("model: {elsewhere} does not speak over the streaming socket");
            return refuse(problem);
        }
        let url = &self.endpoint.vendor.url;
        let mut url = url.at(["v1", "text-to-speech", voice, "multi-stream-input"]);
        url.query_pairs_mut()
            .append_pair("model_id", model)
            .append_pair("output_format", output_format)
            .append_pair("auto_mode", "true")
            .append_pair("sync_alignment", "true")
            .append_pair("inactivity_timeout", &PATIENCE_SECONDS.to_string());
        Ok(Handshake::new(url).secret(KEY_HEADER, key))
    }
}

/// The nearest format that can be asked for, and its name.
fn output_format(preferred: AudioFormat) -> (String, AudioFormat) {
    let (format, name) = OutputFormat::nearest(FORMATS, preferred);
    (format!("{name}_{}", format.layout.rate.hz()), format)
}

#[async_trait]
impl TextToSpeech for Tts {
    fn slug(&self) -> &'static str {
        SLUG
    }

    /// `<break>` and `<phoneme>`: https://elevenlabs.io/docs/best-practices/prompting/controls
    fn takes_tags(&self) -> bool {
        true
    }

    fn endpoint(&self) -> &str {
        self.endpoint.vendor.url.url().as_str()
    }

    fn speaks(&self) -> Speaks {
        Speaks {
            speaking_rates: 0.7..=1.2,
        }
    }

    fn credential_fields(&self) -> &'static [CredentialField] {
        CREDENTIAL_FIELDS
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
        let (output_format, format) = output_format(request.preferred);
        let handshake = self.handshake(&request, &output_format, credential.get(KEY))?;
        let speed = request.speaking_rate;
        let utterances = Arc::clone(&self.utterances);
        let utterance = Utterance {
            handshake,
            credential: credential.fingerprint(),
            format,
            protocol: move || {
                let number = utterances.fetch_add(1, Ordering::Relaxed);
                Context::new(number, speed, format)
            },
        };
        // Said as it comes (`auto_mode`), text must come in sentences.
        Ok(self.endpoint.speak(utterance, &request, spoken_lines(text)))
    }

    async fn voices(&self) -> Result<Vec<Voice>, ProviderError> {
        voices::list(&self.endpoint.vendor).await
    }
}

/// One utterance.
struct Context {
    id: String,
    speed: f64,
    words: Words,
    /// The rest of a sample that was cut.
    odd: BytesMut,
    bytes_per_sample: usize,
    ended: bool,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    audio: Option<String>,
    #[serde(default, rename = "isFinal", alias = "is_final")]
    is_final: Option<bool>,
    #[serde(default, rename = "contextId", alias = "context_id")]
    context_id: Option<String>,
    #[serde(default)]
    alignment: Option<Alignment>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default, rename = "message")]
    words: Option<String>,
}

impl Context {
    fn new(number: u64, speed: f64, format: AudioFormat) -> Self {
        let linear = format.encoding == Encoding::Linear16;
        Self {
            id: format!("u{number}"),
            speed,
            words: Words::default(),
            odd: BytesMut::new(),
            bytes_per_sample: if linear { 2 } else { 1 },
            ended: false,
        }
    }

    /// Whole samples; what is cut waits for its other half.
    fn samples(&mut self, audio: Vec<u8>) -> Bytes {
        if self.odd.is_empty() && audio.len().is_multiple_of(self.bytes_per_sample) {
            return audio.into();
        }
        self.odd.extend_from_slice(&audio);
        let whole = self.odd.len() / self.bytes_per_sample * self.bytes_per_sample;
        self.odd.split_to(whole).freeze()
    }

    fn hear(&mut self, message: &Message, io: &mut TtsIo<'_>) -> Result<(), ProviderError> {
        if let Some(alignment) = &message.alignment {
            self.words.place(alignment, io.events);
        }
        let Some(audio) = message.audio.as_deref() else {
            return Ok(());
        };
        let audio = BASE64
            .decode(audio)
            .map_err(|error| garbage(&error.to_string()))?;
        let samples = self.samples(audio);
        if !samples.is_empty() {
            io.events.push(TtsEvent::Audio(samples));
        }
        Ok(())
    }
}

fn garbage(why: &str) -> ProviderError {
    let problem = format!("sent an invalid message: {why}");
    ProviderError::new(SLUG, ErrorKind::Protocol, shortened(&problem))
}

impl Protocol for Context {
    fn begin(&mut self, io: &mut TtsIo<'_>) {
        let mut first = json!({"text": " ", "context_id": self.id});
        if (self.speed - 1.0).abs() > f64::EPSILON {
            first["voice_settings"] = json!({"speed": self.speed});
        }
        io.out.json(&first);
    }

    fn text(&mut self, sentence: &str, io: &mut TtsIo<'_>) {
        self.words.expect(sentence);
        // A text that ends with a space is one whose last word has ended.
        io.out
            .json(&json!({"text": format!("{sentence} "), "context_id": self.id}));
    }

    fn end(&mut self, io: &mut TtsIo<'_>) {
        io.out.json(&json!({"context_id": self.id, "flush": true}));
        // The vendor says what was flushed before it closes the context, and tells then that this was all.
        io.out
            .json(&json!({"context_id": self.id, "close_context": true}));
        self.ended = true;
    }

    fn cancel(&mut self, io: &mut TtsIo<'_>) -> bool {
        // A context that is closing already ends by itself; its name would be that of a new one.
        if !self.ended {
            io.out
                .json(&json!({"context_id": self.id, "close_context": true}));
        }
        true
    }

    fn receive(&mut self, message: Received, io: &mut TtsIo<'_>) -> Result<Flow, ProviderError> {
        let text = match message {
            Received::Text(text) => text,
            Received::Binary(_) => return Ok(Flow::Continue),
            Received::Closed(frame) => return Err(errors::closed(frame.as_ref())),
        };
        let message: Message =
            serde_json::from_str(&text).map_err(|error| garbage(&error.to_string()))?;
        if let Some(name) = &message.error {
            return Err(errors::told(
                name,
                message.words.as_deref().unwrap_or_default(),
            ));
        }
        // What an utterance that was called off still has to say is not for this one.
        if message.context_id.as_ref().is_some_and(|id| *id != self.id) {
            return Ok(Flow::Continue);
        }
        self.hear(&message, io)?;
        Ok(if message.is_final == Some(true) {
            Flow::Finished
        } else {
            Flow::Continue
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::VENDOR;
    use super::*;
    use crate::transport::testing::{TtsScene, transport, tts_request};
    use vivavoce_audio::format::{Layout, SampleRate};
    use vivavoce_config::value::{SettingValue, VendorUrl};
    use vivavoce_seams::parameters::TTS_FIELDS;

    fn tts() -> Tts {
        let url = VendorUrl::parse("wss://vendor.example");
        let vendor = VENDOR.endpoint(url.as_ref(), None, None, &transport());
        Tts::new(vendor.unwrap())
    }

    fn request(voice: Option<&str>, model: &str) -> TtsRequest {
        let preferred = AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_24000);
        TtsRequest {
            voice_id: voice.map(str::to_owned),
            model: model.to_owned(),
            ..tts_request(preferred)
        }
    }

    fn url(voice: Option<&str>, model: &str) -> Result<String, ProviderError> {
        let handshake = tts().handshake(&request(voice, model), "pcm_24000", "marker")?;
        assert!(handshake.headers["xi-api-key"].is_sensitive());
        Ok(handshake.url.to_string())
    }

    impl TtsScene<Context> {
        fn context(speed: f64, encoding: Encoding) -> Self {
            let format = AudioFormat::mono(encoding, SampleRate::HZ_8000);
            Self::new(Context::new(7, speed, format))
        }

        fn told(&mut self, message: &Value) -> Result<Flow, ProviderError> {
            self.receive(Received::Text(message.to_string()))
        }
    }

    #[test]
    fn speech_is_asked_for_by_the_vendors_names_and_clients_values_stay_values() {
        assert_eq!(
            url(None, "").unwrap(),
            "https://vendor.example/v1/text-to-speech/JBFqnCBsd6RMkjVDRZzb/multi-stream-input\
             ?model_id=eleven_flash_v2_5&output_format=pcm_24000&auto_mode=true&sync_alignment=true\
             &inactivity_timeout=180"
        );
        let odd = url(Some("a/../b?c"), "m&n=1").unwrap();
        assert!(odd.contains("/a%2F..%2Fb%3Fc/multi-stream-input?model_id=m%26n%3D1&"));
        for (voice, model) in [
            (Some(".."), ""),
            (Some(""), ""),
            (None, "eleven_v3_conversational"),
            (None, "eleven_v4_turbo"),
        ] {
            let refused = url(voice, model).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::InvalidRequest);
        }
    }

    #[test]
    fn sound_comes_at_a_rate_that_loses_nothing_and_is_called_what_it_is() {
        let rows = [
            (Encoding::Linear16, 8_000u32, "pcm_8000"),
            (Encoding::Linear16, 11_025, "pcm_16000"),
            (Encoding::Wav, 24_000, "pcm_24000"),
            (Encoding::Mp3, 32_000, "pcm_32000"),
            (Encoding::Linear16, 44_100, "pcm_48000"),
            (Encoding::Opus, 48_000, "pcm_48000"),
            (Encoding::Mulaw, 8_000, "ulaw_8000"),
            (Encoding::Alaw, 8_000, "alaw_8000"),
            (Encoding::Mulaw, 16_000, "pcm_16000"),
        ];
        for (encoding, hz, name) in rows {
            let layout = Layout::mono(SampleRate::new(hz).unwrap());
            let (asked, format) = output_format(AudioFormat { encoding, layout });
            assert_eq!(asked, name);
            let rate = format.layout.rate.hz();
            assert!(
                asked.ends_with(&format!("_{rate}")),
                "{asked} is not {rate}"
            );
        }
    }

    #[test]
    fn every_field_has_a_row() {
        let rows: Vec<_> = PARAMETERS.iter().map(|row| row.field).collect();
        assert_eq!(rows, TTS_FIELDS);
    }

    #[test]
    fn an_utterance_is_a_context_of_sentences() {
        let mut spoken = TtsScene::context(1.0, Encoding::Linear16);
        spoken.step(Context::begin);
        for sentence in ["Hello, \"dear\".", "World."] {
            spoken.step(|context, io| context.text(sentence, io));
        }
        spoken.step(Context::end);
        let id = "u7";
        assert_eq!(
            spoken.sent(),
            [
                json!({"text": " ", "context_id": id}),
                json!({"text": "Hello, \"dear\". ", "context_id": id}),
                json!({"text": "World. ", "context_id": id}),
                json!({"context_id": id, "flush": true}),
                json!({"context_id": id, "close_context": true}),
            ]
        );
        let mut fast = TtsScene::context(1.2, Encoding::Linear16);
        fast.step(Context::begin);
        assert_eq!(fast.sent()[0]["voice_settings"], json!({"speed": 1.2}));
    }

    #[test]
    fn a_context_is_closed_once() {
        let mut spoken = TtsScene::context(1.0, Encoding::Linear16);
        let close = json!({"context_id": "u7", "close_context": true});
        assert!(spoken.step(Context::cancel));
        assert_eq!(spoken.sent(), [close]);
        let mut ended = TtsScene::context(1.0, Encoding::Linear16);
        ended.step(Context::end);
        ended.sent();
        assert!(ended.step(Context::cancel));
        assert!(ended.sent().is_empty());
    }

    #[test]
    fn sound_of_this_context_is_heard_and_no_other() {
        let mut spoken = TtsScene::context(1.0, Encoding::Linear16);
        spoken.step(|context, io| context.text("one ", io));
        let stale = json!({"audio": "AAAA", "contextId": "u6", "isFinal": true});
        assert_eq!(spoken.told(&stale).unwrap(), Flow::Continue);
        let flow = spoken.told(&json!({
            "audio": "AQI=", "isFinal": null, "contextId": "u7",
            "alignment": {"chars": ["o", "n", "e"], "charStartTimesMs": [20, 30, 40], "charDurationsMs": [10, 10, 10]},
            "normalizedAlignment": null,
        }));
        assert_eq!(flow.unwrap(), Flow::Continue);
        let [TtsEvent::Word { word, start }, TtsEvent::Audio(audio)] = &spoken.events[..] else {
            panic!("{:?}", spoken.events);
        };
        assert_eq!((word.as_str(), start.as_millis()), ("one", 20));
        assert_eq!(audio[..], [1, 2]);
        let unknown = json!({"flush_done": true, "contextId": "u7"});
        assert_eq!(spoken.told(&unknown).unwrap(), Flow::Continue);
        for done in [
            json!({"isFinal": true, "contextId": "u7"}),
            json!({"is_final": true, "context_id": "u7", "audio": null}),
            json!({"isFinal": true, "audio": ""}),
        ] {
            assert_eq!(spoken.told(&done).unwrap(), Flow::Finished);
        }
    }

    #[test]
    fn a_sample_that_is_cut_is_put_together() {
        let mut spoken = TtsScene::context(1.0, Encoding::Linear16);
        for audio in ["AQID", "", "BA", "BQ=="] {
            spoken.told(&json!({"audio": audio})).unwrap();
        }
        assert_eq!(spoken.sound(), [vec![1, 2], vec![3, 4]]);
        let mut telephone = TtsScene::context(1.0, Encoding::Mulaw);
        telephone.told(&json!({"audio": "AQID"})).unwrap();
        assert_eq!(telephone.sound(), [vec![1, 2, 3]]);
    }

    #[test]
    fn errors_closes_and_garbage_end_an_utterance() {
        let mut spoken = TtsScene::context(1.0, Encoding::Linear16);
        let full = json!({"message": "Maximum simultaneous contexts", "error": "max_active_conversations", "code": 1008});
        let error = spoken.told(&full).unwrap_err();
        assert_eq!(error.kind, ErrorKind::RateLimited { retry_after: None });
        let timeout = "Have not received a new text input within the timeout of 20 seconds";
        let closed = Received::Closed(Some((1008, timeout.to_owned())));
        let error = spoken.step(|context, io| context.receive(closed, io));
        assert_eq!(error.unwrap_err().kind, ErrorKind::Timeout);
        for garbage in ["", "7", r#"{"audio":"?"}"#, r#"{"audio":7}"#] {
            assert_eq!(spoken.flow(garbage), Err(ErrorKind::Protocol), "{garbage}");
        }
    }
}
