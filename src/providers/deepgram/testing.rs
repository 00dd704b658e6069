//! A stage on which a recognition protocol is tried message by message.

use tokio::time::Instant;

use crate::transport::Outgoing;
use crate::transport::hearing::{Act, Flow, Protocol};
use crate::transport::websocket::Received;
use vivavoce_audio::format::{AudioFormat, Encoding, SampleRate};
use vivavoce_seams::{ErrorKind, SttEvent, SttRequest, Transcript};

/// Linear16 at 16 kHz, everything else as usual.
pub(super) fn request() -> SttRequest {
    SttRequest {
        party: vivavoce_quotas::Party::Operator,
        language: "en-US".into(),
        model: String::new(),
        punctuation: true,
        format: AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000),
        keyterms: Vec::new(),
        languages: Vec::new(),
        diarize: false,
        credential: None,
    }
}

pub(super) struct Stage<P> {
    pub(super) protocol: P,
    out: Outgoing,
    events: Vec<SttEvent>,
}

impl<P: Protocol> Stage<P> {
    pub(super) fn new(protocol: P) -> Self {
        Self {
            protocol,
            out: Outgoing::default(),
            events: Vec::new(),
        }
    }

    fn act<T>(&mut self, step: impl FnOnce(&mut P, &mut Act<'_>) -> T) -> T {
        let mut act = Act {
            now: Instant::now(),
            out: &mut self.out,
            events: &mut self.events,
        };
        step(&mut self.protocol, &mut act)
    }

    /// What a step sends.
    pub(super) fn does(&mut self, step: impl FnOnce(&mut P, &mut Act<'_>)) -> Vec<String> {
        self.act(step);
        self.out.texts()
    }

    /// What a text message is told as.
    pub(super) fn hears(&mut self, text: &str) -> Vec<String> {
        assert_eq!(self.flow(text), Ok(Flow::Continue), "{text}");
        self.events
            .drain(..)
            .map(|event| described(&event))
            .collect()
    }

    /// What the protocol makes of its deadline.
    pub(super) fn ticks(&mut self) -> Vec<String> {
        self.act(P::tick).unwrap();
        self.events
            .drain(..)
            .map(|event| described(&event))
            .collect()
    }

    /// The first transcript that a text message is told as.
    pub(super) fn transcript(&mut self, text: &str) -> Transcript {
        self.flow(text).unwrap();
        match self.events.drain(..).next() {
            Some(SttEvent::Partial(heard) | SttEvent::Final(heard)) => heard,
            other => panic!("{other:?}"),
        }
    }

    /// Where a text message leads.
    pub(super) fn flow(&mut self, text: &str) -> Result<Flow, ErrorKind> {
        let received = Received::Text(text.to_owned());
        self.act(|protocol, act| protocol.receive(received, act))
            .map_err(|error| error.kind)
    }

    /// Where a close leads.
    pub(super) fn closes(&mut self, code: u16, reason: &str) -> Result<Flow, ErrorKind> {
        let received = Received::Closed(Some((code, reason.to_owned())));
        self.act(|protocol, act| protocol.receive(received, act))
            .map_err(|error| error.kind)
    }
}

fn described(event: &SttEvent) -> String {
    match event {
        SttEvent::Partial(heard) => format!("partial {}", heard.text),
        SttEvent::Final(heard) => format!("final {}", heard.text),
        SttEvent::EndOfSpeech => "end of speech".to_owned(),
        SttEvent::UtteranceLost(error) => format!("lost {error}"),
    }
}
