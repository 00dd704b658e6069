//! Azure's synthesiser: turns over a WebSocket that is reused. Voices that can are sent text as it arrives (interface v2),
//! all others sentence by sentence as SSML (v1), the only way to set a speaking rate.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream::{self, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};

use super::usp::{self, Incoming, Origin, TICKS_PER_SECOND};
use super::{Location, SLUG};
use crate::transport::Transport;
use crate::transport::tts_driver::{Flow, Idle, Protocol, TtsEndpoint, TtsIo, Utterance};
use crate::transport::websocket::Received;
use vivavoce_audio::format::{AudioFormat, Encoding};
use vivavoce_config as config;
use vivavoce_core::sentences;
use vivavoce_core::ssml::{Ssml, escaped};
use vivavoce_seams::parameters::{Parameter, converted, own};
use vivavoce_seams::{
    CredentialField, ErrorKind, OutputFormat, ProviderError, Speaks, TakesSsml, TextStream, TextToSpeech,
    TtsEvent, TtsRequest, TtsStream, Voice,
};

/// Speaks every language that it hears in the text.
const DEFAULT_VOICE: &str = "en-US-AvaMultilingualNeural";
/// The most text of one turn. A turn's sound must not be longer than ten minutes, and its SSML not than 64 KiB.
const TURN_BYTES: usize = 6_000;
/// The largest document of a client: a turn's SSML has 64 KiB, and it stands in ours.
const DOCUMENT_BYTES: usize = 60_000;
/// What can be asked for: each format has a name of its own.
const FORMATS: &[OutputFormat] = &[
    OutputFormat::new(Encoding::Mulaw, &[8_000], "raw-8khz-8bit-mono-mulaw"),
    OutputFormat::new(Encoding::Alaw, &[8_000], "raw-8khz-8bit-mono-alaw"),
    OutputFormat::new(Encoding::Linear16, &[8_000], "raw-8khz-16bit-mono-pcm"),
    OutputFormat::new(Encoding::Linear16, &[16_000], "raw-16khz-16bit-mono-pcm"),
    OutputFormat::new(Encoding::Linear16, &[22_050], "raw-22050hz-16bit-mono-pcm"),
    OutputFormat::new(Encoding::Linear16, &[24_000], "raw-24khz-16bit-mono-pcm"),
    OutputFormat::new(Encoding::Linear16, &[44_100], "raw-44100hz-16bit-mono-pcm"),
    OutputFormat::new(Encoding::Linear16, &[48_000], "raw-48khz-16bit-mono-pcm"),
];

/// What becomes of each field of `tts_config`.
const PARAMETERS: &[Parameter] = &[
    own("model", "deploymentId, of a custom voice"),
    own("voice_id", "voice name"),
    converted("audio_format", "linear16, mulaw and alaw are Azure's own"),
    converted(
        "sample_rate",
        "8000, 16000, 22050, 24000, 44100 and 48000 are Azure's own",
    ),
    own(
        "speaking_rate",
        "prosody rate, 0.5 to 2; beyond that stretched",
    ),
    converted("pronunciations", "replaced in the text"),
    own("words", "wordBoundaryEnabled"),
    own("auth", "Ocp-Apim-Subscription-Key, region"),
];

/// Azure closes a socket that is idle for five minutes, and any after ten.
const IDLE: Idle = Idle {
    longest: Duration::from_mins(4),
    keep_alive: None,
    oldest: Duration::from_mins(9),
};

/// The synthesiser `azure`.
pub(super) struct AzureTts {
    endpoint: Arc<TtsEndpoint>,
    location: Location,
    /// Where it speaks, for people and caches.
    place: String,
}

impl AzureTts {
    pub(super) fn new(settings: &config::Providers, transport: &Transport) -> Option<Self> {
        let url = settings.azure_tts_url.as_ref();
        let (vendor, location) =
            super::endpoint(settings, url, settings.azure_tts_streams, transport)?;
        let place = match location {
            Location::Endpoint => vendor.url.url().to_string(),
            Location::Region => settings.azure_region.clone(),
        };
        Some(Self {
            endpoint: Arc::new(TtsEndpoint::new(vendor, Some(IDLE))),
            location,
            place,
        })
    }
}

#[async_trait]
impl TextToSpeech for AzureTts {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn endpoint(&self) -> &str {
        &self.place
    }

    fn speaks(&self) -> Speaks {
        Speaks {
            speaking_rates: 0.5..=2.0,
        }
    }

    fn credential_fields(&self) -> &'static [CredentialField] {
        super::CREDENTIAL
    }

    fn credential_fingerprint(&self) -> [u8; 32] {
        self.endpoint.vendor.own_fingerprint()
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    fn takes_ssml(&self) -> Option<TakesSsml> {
        Some(TakesSsml {
            bytes: DOCUMENT_BYTES,
            counts_root: false,
        })
    }

    async fn synthesize_ssml(
        &self,
        request: TtsRequest,
        document: &Ssml,
    ) -> Result<TtsStream, ProviderError> {
        let style = Style {
            streamed: false,
            marked_up: true,
            ..Style::of(&request)
        };
        let content = document.content();
        self.speak(&request, style, stream::once(ready(content)).boxed())
    }

    async fn synthesize(
        &self,
        request: TtsRequest,
        text: TextStream,
    ) -> Result<TtsStream, ProviderError> {
        let style = Style::of(&request);
        self.speak(&request, style, text)
    }

    async fn voices(&self) -> Result<Vec<Voice>, ProviderError> {
        super::voices::list(&self.endpoint.vendor, self.location).await
    }
}

impl AzureTts {
    fn speak(
        &self,
        request: &TtsRequest,
        style: Style,
        text: TextStream,
    ) -> Result<TtsStream, ProviderError> {
        let vendor = &self.endpoint.vendor;
        let credential = vendor.credential(request.credential.as_ref())?;
        let version = if style.streamed { "v2" } else { "v1" };
        let path = ["cognitiveservices", "websocket", version];
        let service = if request.model.is_empty() {
            "tts"
        } else {
            "voice"
        };
        let mut url = self.location.address(vendor, &credential, service, path)?;
        if !request.model.is_empty() {
            url.query_pairs_mut()
                .append_pair("deploymentId", &request.model);
        }
        // One for the handshake; a socket that is used again keeps its own.
        let handshake = super::handshake(url, &credential, &Origin::new());
        let utterance = Utterance {
            handshake,
            credential: credential.fingerprint(),
            format: style.format,
            protocol: move || Speech::new(style.clone(), Origin::new()),
        };
        Ok(self.endpoint.speak(utterance, request, text))
    }
}

/// How an utterance is said.
#[derive(Debug, Clone)]
struct Style {
    voice: String,
    rate: f64,
    format: AudioFormat,
    /// Azure's name of the format.
    format_name: &'static str,
    /// Whether the text is sent as it comes.
    streamed: bool,
    /// Whether the text is the content of a document.
    marked_up: bool,
}

impl Style {
    fn of(request: &TtsRequest) -> Self {
        let voice = request.voice_id.clone();
        let voice = voice.unwrap_or_else(|| DEFAULT_VOICE.to_owned());
        let (format, format_name) = OutputFormat::nearest(FORMATS, request.preferred);
        // Text streaming does not know a rate of speech.
        let usual = (request.speaking_rate - 1.0).abs() < 1e-3;
        Self {
            marked_up: false,
            streamed: usual && request.model.is_empty() && takes_pieces(&voice),
            voice,
            rate: request.speaking_rate,
            format,
            format_name,
        }
    }

    /// The language of a voice's name: `de-DE-KatjaNeural`.
    fn language(&self) -> &str {
        match self.voice.match_indices('-').nth(1) {
            Some((end, _)) => &self.voice[..end],
            None => "en-US",
        }
    }

    fn ssml(&self, text: &str) -> String {
        let (language, voice) = (escaped(self.language()), escaped(&self.voice));
        let mut said = if self.marked_up {
            text.to_owned()
        } else {
            escaped(text)
        };
        let more = if self.marked_up {
            "xmlns:mstts='http://www.w3.org/2001/mstts' "
        } else {
            ""
        };
        if (self.rate - 1.0).abs() >= 1e-3 {
            // A bare number multiplies; a percentage would be added.
            said = format!("<prosody rate='{:.3}'>{said}</prosody>", self.rate);
        }
        format!(
            "<speak version='1.0' xmlns='http://www.w3.org/2001/10/synthesis' \
             {more}xml:lang='{language}'>\
             <voice name='{voice}'>{said}</voice></speak>"
        )
    }

    fn context(&self) -> Value {
        let mut context = json!({
            "audio": {
                "outputFormat": self.format_name,
                "metadataOptions": {
                    "wordBoundaryEnabled": true, "punctuationBoundaryEnabled": false,
                    "sentenceBoundaryEnabled": false, "bookmarkEnabled": false, "visemeEnabled": false,
                    "sessionEndEnabled": false,
                },
            },
            "language": {"autoDetection": false},
        });
        if self.streamed {
            context["input"] = json!({
                "bidirectionalStreamingMode": true, "voiceName": self.voice, "language": self.language(),
            });
        }
        json!({"synthesis": context})
    }
}

/// Voices of the newer kinds take text as it is written.
fn takes_pieces(voice: &str) -> bool {
    let lower = voice.to_ascii_lowercase();
    lower.contains("multilingualneural") || lower.contains(":dragonhd")
}

/// One utterance: a turn, or several where the text is long or its voice needs whole sentences.
struct Speech {
    style: Style,
    origin: Origin,
    /// Text that no turn was given.
    pending: String,
    complete: bool,
    /// Counts the turns so far.
    turns: u64,
    turn: Option<Turn>,
    /// Bytes of sound of the turns that are over.
    before: u64,
    called_off: bool,
}

struct Turn {
    id: String,
    /// Bytes of text that it was given.
    given: usize,
    text_ended: bool,
    /// Bytes of whole samples so far.
    sound: u64,
    /// The first half of a sample.
    half: Option<u8>,
}

impl Speech {
    fn new(style: Style, origin: Origin) -> Self {
        Self {
            style,
            origin,
            pending: String::new(),
            complete: false,
            turns: 0,
            turn: None,
            before: 0,
            called_off: false,
        }
    }

    /// Gives Azure what it can take now.
    fn advance(&mut self, io: &mut TtsIo<'_>) {
        if self.style.streamed {
            self.stream(io);
        } else {
            self.say_sentences(io);
        }
    }

    /// Text as it comes; a turn that has had enough ends with a sentence.
    fn stream(&mut self, io: &mut TtsIo<'_>) {
        if self.turn.is_none() && !self.pending.trim().is_empty() {
            self.begin_turn(io);
        }
        let Some(turn) = self.turn.as_mut().filter(|turn| !turn.text_ended) else {
            return;
        };
        let room = TURN_BYTES.saturating_sub(turn.given);
        let portion = if self.pending.len() <= room {
            std::mem::take(&mut self.pending)
        } else {
            turn.text_ended = true;
            take_portion(&mut self.pending, room)
        };
        turn.text_ended |= self.complete && self.pending.is_empty();
        turn.given += portion.len();
        let id = Some(turn.id.as_str());
        if !portion.is_empty() {
            io.out
                .text(self.origin.text("text.piece", id, "text/plain", &portion));
        }
        if turn.text_ended {
            io.out
                .text(self.origin.text("text.end", id, "text/plain", ""));
        }
    }

    /// All sentences that are complete, and when the text is, the rest.
    fn say_sentences(&mut self, io: &mut TtsIo<'_>) {
        if self.turn.is_some() {
            return;
        }
        let ready = if self.complete {
            self.pending.len()
        } else if self.style.marked_up {
            // A document is not divided.
            0
        } else {
            sentences::complete_len(&self.pending)
        };
        let rest = self.pending.split_off(ready);
        let portion = if self.style.marked_up {
            std::mem::take(&mut self.pending)
        } else {
            take_portion(&mut self.pending, TURN_BYTES)
        };
        self.pending.push_str(&rest);
        if portion.trim().is_empty() {
            return;
        }
        self.begin_turn(io);
        if let Some(turn) = &mut self.turn {
            let ssml = self.style.ssml(portion.trim());
            let kind = "application/ssml+xml";
            io.out
                .text(self.origin.text("ssml", Some(&turn.id), kind, &ssml));
            turn.text_ended = true;
        }
    }

    fn begin_turn(&mut self, io: &mut TtsIo<'_>) {
        self.turns += 1;
        let id = self.origin.request_id(self.turns);
        let context = self.style.context().to_string();
        let json = "application/json";
        let context = self
            .origin
            .text("synthesis.context", Some(&id), json, &context);
        io.out.text(context);
        self.turn = Some(Turn {
            id,
            given: 0,
            text_ended: false,
            sound: 0,
            half: None,
        });
    }

    fn end_turn(&mut self, io: &mut TtsIo<'_>) -> Flow {
        if let Some(turn) = self.turn.take() {
            self.before += turn.sound;
        }
        if self.called_off {
            return Flow::Finished;
        }
        self.advance(io);
        if self.complete && self.is_said() {
            Flow::Finished
        } else {
            Flow::Continue
        }
    }

    fn bytes_per_sample(&self) -> u64 {
        if self.style.format.encoding == Encoding::Linear16 {
            2
        } else {
            1
        }
    }

    /// Sound in whole samples: what is left of one at a turn's end must not shift the next turn's.
    fn sound(&mut self, sound: Bytes, io: &mut TtsIo<'_>) {
        let whole = self.bytes_per_sample() == 1;
        let Some(turn) = &mut self.turn else { return };
        let mut samples = sound;
        if !whole {
            if let Some(half) = turn.half.take() {
                let mut joined = BytesMut::with_capacity(samples.len() + 1);
                joined.put_u8(half);
                joined.put_slice(&samples);
                samples = joined.freeze();
            }
            if samples.len() % 2 == 1 {
                turn.half = samples.last().copied();
                samples.truncate(samples.len() - 1);
            }
        }
        if !samples.is_empty() {
            turn.sound += samples.len() as u64;
            io.events.push(TtsEvent::Audio(samples));
        }
    }

    fn metadata(&self, message: &Incoming, io: &mut TtsIo<'_>) -> Result<(), ProviderError> {
        let metadata: Metadata = message.json()?;
        let before = self.style.format.layout.rate;
        let before = before.duration_of((self.before / self.bytes_per_sample()) as usize);
        for entry in metadata.metadata {
            let Some(text) = entry.data.text.filter(|text| {
                entry.kind == "WordBoundary"
                    && text.boundary_type.as_deref() != Some("PunctuationBoundary")
            }) else {
                continue;
            };
            let offset = Duration::try_from_secs_f64(entry.data.offset / TICKS_PER_SECOND);
            let offset = offset.map_err(|_| {
                let problem = "sent a word boundary before its audio";
                ProviderError::new(SLUG, ErrorKind::Protocol, problem)
            })?;
            io.events.push(TtsEvent::Word {
                word: text.text,
                start: before.saturating_add(offset),
            });
        }
        Ok(())
    }
}

/// Whole sentences from the beginning, as many as fit; at least one.
fn take_portion(pending: &mut String, most: usize) -> String {
    let first = sentences::portions(pending, most)
        .first()
        .map_or(0, |portion| portion.len());
    let rest = pending.split_off(first);
    std::mem::replace(pending, rest)
}

impl Protocol for Speech {
    fn begin(&mut self, io: &mut TtsIo<'_>) {
        io.out.text(self.origin.config(None));
    }

    fn text(&mut self, piece: &str, io: &mut TtsIo<'_>) {
        self.pending.push_str(piece);
        self.advance(io);
    }

    fn end(&mut self, io: &mut TtsIo<'_>) {
        self.complete = true;
        self.advance(io);
    }

    fn cancel(&mut self, io: &mut TtsIo<'_>) -> bool {
        self.called_off = true;
        let Some(turn) = &self.turn else { return false };
        let stop = json!({"action": "stop"}).to_string();
        let id = Some(turn.id.as_str());
        io.out.text(
            self.origin
                .text("synthesis.control", id, "application/json", &stop),
        );
        true
    }

    fn is_said(&self) -> bool {
        self.turn.is_none() && self.pending.trim().is_empty()
    }

    fn receive(&mut self, message: Received, io: &mut TtsIo<'_>) -> Result<Flow, ProviderError> {
        let current = self.turn.as_ref().map(|turn| turn.id.as_str());
        let message = usp::read(message, current)?;
        if current != Some(message.request.as_str()) {
            // Of a turn that is over.
            return Ok(Flow::Continue);
        }
        match message.path.as_str() {
            "audio" => self.sound(message.body, io),
            "audio.metadata" => self.metadata(&message, io)?,
            "turn.end" => return Ok(self.end_turn(io)),
            _ => {}
        }
        Ok(Flow::Continue)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Metadata {
    #[serde(default)]
    metadata: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "Type")]
    kind: String,
    data: Data,
}

/// An offset is ticks from the start of the turn.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    #[serde(default)]
    offset: f64,
    #[serde(rename = "text")]
    text: Option<Text>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Text {
    text: String,
    boundary_type: Option<String>,
}

#[cfg(test)]
mod tests;
