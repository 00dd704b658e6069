//! What the tests of the vendors have in common: requests with everything as usual, and a scene on which a protocol is tried
//! message by message, without a socket. A vendor's tests add the messages that they need to the scene of its protocol.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::stt_driver::{self, Flow};
use super::tts_driver;
use super::websocket::Received;
use super::{Outgoing, ProtocolIo, Transport};
use vivavoce_audio::format::{AudioFormat, Encoding, SampleRate};
use vivavoce_core::tls_roots::Authorities;
use vivavoce_quotas::Party;
use vivavoce_seams::parameters::{Parameter, STT_FIELDS, TTS_FIELDS};
use vivavoce_seams::{
    ErrorKind, ProviderError, ProviderTable, SttEvent, SttRequest, Transcript, TtsEvent, TtsRequest,
};

/// A transport that trusts the system's authorities.
pub fn transport() -> Transport {
    Transport::new(&Authorities::default()).unwrap()
}

/// English, linear16 at 16 kHz.
pub fn stt_request() -> SttRequest {
    SttRequest {
        party: Party::Operator,
        language: "en-US".to_owned(),
        model: String::new(),
        punctuation: true,
        format: AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000),
        keyterms: Vec::new(),
        languages: Vec::new(),
        diarize: false,
        translate: false,
        credential: None,
    }
}

/// The default voice at its normal rate, in this format.
pub fn tts_request(preferred: AudioFormat) -> TtsRequest {
    TtsRequest {
        party: Party::Operator,
        voice_id: None,
        model: String::new(),
        speaking_rate: 1.0,
        preferred,
        connection_timeout: Duration::from_secs(1),
        request_timeout: Duration::from_secs(1),
        credential: None,
    }
}

/// Fails unless a vendor's tables have a row for every field of `stt_config` and `tts_config`.
pub fn assert_every_field_has_its_row(table: &ProviderTable, slug: &str) {
    let fields = |rows: &[Parameter]| rows.iter().map(|row| row.field).collect::<Vec<_>>();
    let stt = table.speech_to_text(slug).unwrap();
    assert_eq!(fields(stt.parameters()), STT_FIELDS);
    let tts = table.text_to_speech(slug).unwrap();
    assert_eq!(fields(tts.parameters()), TTS_FIELDS);
}

/// A protocol, what it has sent and not been asked for, and what it has told.
pub struct Scene<P, E> {
    pub protocol: P,
    pub out: Outgoing,
    pub events: Vec<E>,
    pub now: Instant,
}

/// The scene of a recognition protocol.
pub type SttScene<P> = Scene<P, SttEvent>;
/// The scene of a synthesis protocol.
pub type TtsScene<P> = Scene<P, TtsEvent>;

impl<P, E> Scene<P, E> {
    pub fn new(protocol: P) -> Self {
        Self {
            protocol,
            out: Outgoing::default(),
            events: Vec::new(),
            now: Instant::now(),
        }
    }

    /// Lets the protocol do something.
    pub fn step<T>(&mut self, action: impl FnOnce(&mut P, &mut ProtocolIo<'_, E>) -> T) -> T {
        let mut io = ProtocolIo {
            now: self.now,
            out: &mut self.out,
            events: &mut self.events,
        };
        action(&mut self.protocol, &mut io)
    }

    /// What a step sends.
    pub fn does<T>(
        &mut self,
        action: impl FnOnce(&mut P, &mut ProtocolIo<'_, E>) -> T,
    ) -> Vec<String> {
        self.step(action);
        self.out.texts()
    }

    /// The JSON that was sent since the last time.
    pub fn sent(&mut self) -> Vec<Value> {
        let texts = self.out.texts();
        let read = |text: &String| serde_json::from_str(text).unwrap();
        texts.iter().map(read).collect()
    }
}

impl<P: stt_driver::Protocol> SttScene<P> {
    pub fn receive(&mut self, received: Received) -> Result<Flow, ProviderError> {
        self.step(|protocol, io| protocol.receive(received, io))
    }

    /// Where a text message leads.
    pub fn flow(&mut self, text: &str) -> Result<Flow, ErrorKind> {
        let received = Received::Text(text.to_owned());
        self.receive(received).map_err(|error| error.kind)
    }

    /// Where a close leads.
    pub fn closes(&mut self, code: u16, reason: &str) -> Result<Flow, ErrorKind> {
        let received = Received::Closed(Some((code, reason.to_owned())));
        self.receive(received).map_err(|error| error.kind)
    }

    /// What a text message is told as.
    pub fn hears(&mut self, text: &str) -> Vec<String> {
        assert_eq!(self.flow(text), Ok(Flow::Continue), "{text}");
        self.told()
    }

    /// What the protocol makes of its deadline.
    pub fn ticks(&mut self) -> Vec<String> {
        self.step(P::tick).unwrap();
        self.told()
    }

    /// The first transcript that a text message is told as.
    pub fn transcript(&mut self, text: &str) -> Transcript {
        self.flow(text).unwrap();
        match self.events.drain(..).next() {
            Some(SttEvent::Partial(heard) | SttEvent::Final(heard)) => heard,
            other => panic!("{other:?}"),
        }
    }

    /// What was told since the last time.
    pub fn told(&mut self) -> Vec<String> {
        let described = |event| match event {
            SttEvent::Partial(heard) => format!("partial {}", heard.text),
            SttEvent::Final(heard) => format!("final {}", heard.text),
            SttEvent::EndOfSpeech => "end of speech".to_owned(),
            SttEvent::UtteranceLost(error) => format!("lost {error}"),
        };
        self.events.drain(..).map(described).collect()
    }
}

impl<P: tts_driver::Protocol> TtsScene<P> {
    pub fn receive(&mut self, received: Received) -> Result<Flow, ProviderError> {
        self.step(|protocol, io| protocol.receive(received, io))
    }

    /// Where a text message leads.
    pub fn flow(&mut self, text: &str) -> Result<Flow, ErrorKind> {
        let received = Received::Text(text.to_owned());
        self.receive(received).map_err(|error| error.kind)
    }

    /// The sound that has come since the last time, piece by piece.
    pub fn sound(&mut self) -> Vec<Vec<u8>> {
        let sound = |event| match event {
            TtsEvent::Audio(sound) => Some(sound.to_vec()),
            TtsEvent::Word { .. } | TtsEvent::Done => None,
        };
        self.events.drain(..).filter_map(sound).collect()
    }
}
