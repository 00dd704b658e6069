//! The media sockets of telephone carriers (protocol, section 4, "Carriers"): their messages as typed events, our commands as
//! their messages, their signatures, and the documents that tell them to open such a socket. All of it is pure: no sockets, no
//! clock but an argument.
//!
//! # Parts
//!
//! * [`Carrier`]: one carrier; [`CARRIERS`] lists them. A new one is a file with an implementation, and a line there.
//! * [`Codec`]: the messages of one socket, translated both ways. It remembers what the carrier wants repeated, such as the id
//!   of the stream.
//! * [`Accounts`]: who may come in, from the settings.
//! * [`Request`]: what a signature is over; [`UsedSignatures`]: those that count no more.
//! * [`InputPace`]: how much a carrier may send.
//!
//! # Example
//!
//! ```
//! use vivavoce_carriers::{Event, Frame, carrier};
//!
//! let mut codec = carrier("twilio").unwrap().codec("");
//! let start = r#"{"event":"start","streamSid":"MZ1","start":{"streamSid":"MZ1","callSid":"CA1",
//!     "customParameters":{"to":"+4930123456"},"mediaFormat":{"encoding":"audio/x-mulaw","sampleRate":8000,"channels":1}}}"#;
//! let Some(Event::Start(start)) = codec.text(start).unwrap() else {
//!     panic!("a call");
//! };
//! assert_eq!(start.to.as_deref(), Some("+4930123456"));
//! let Some(Frame::Text(clear)) = codec.clear() else {
//!     panic!("Twilio can drop what it has not played");
//! };
//! assert_eq!(clear, r#"{"event":"clear","streamSid":"MZ1"}"#);
//! ```

mod accounts;
mod documents;
mod exotel;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod genesys;
mod pace;
mod page;
mod plivo;
mod signatures;
mod telnyx;
mod twilio;
mod used;
mod vonage;
mod wire;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

pub use accounts::{Account, Accounts};
pub use documents::{Document, Stream};
pub use pace::InputPace;
pub use page::page;
pub use signatures::{Request, Signature};
pub use used::UsedSignatures;
pub use vivavoce_core::json::Misfit;

/// The largest message of a carrier that is read: theirs carry 20 to 200 ms of sound.
pub const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// All carriers.
pub static CARRIERS: [&dyn Carrier; 6] = [
    &twilio::Twilio,
    &telnyx::Telnyx,
    &plivo::Plivo,
    &vonage::Vonage,
    &exotel::Exotel,
    &genesys::Genesys,
];

/// The carrier of this name.
pub fn carrier(kind: &str) -> Option<&'static dyn Carrier> {
    CARRIERS.into_iter().find(|carrier| carrier.kind() == kind)
}

/// A carrier.
pub trait Carrier: Sync {
    /// Its name in paths and settings.
    fn kind(&self) -> &'static str;

    /// Its name for people.
    fn name(&self) -> &'static str;

    /// The codec of a new socket, which was opened with this query.
    fn codec(&self, query: &str) -> Box<dyn Codec>;

    /// Whether the handshakes of its sockets are signed.
    fn signs_sockets(&self) -> bool {
        true
    }

    /// Whether its requests for documents are signed.
    fn signs_webhooks(&self) -> bool {
        true
    }

    /// A secret that a header of the request carries.
    fn secret(&self, _: &Request<'_>) -> Option<String> {
        None
    }

    /// Whether its secrets come in a header, and not in a path.
    fn has_secret_in_header(&self) -> bool {
        false
    }

    /// The signature of a request, where the carrier signed it with the key of this account.
    fn signed(
        &self,
        account: &Account,
        request: &Request<'_>,
        now: SystemTime,
    ) -> Option<Signature>;

    /// The document that tells the carrier to open a socket. `asked` are the parameters with which it asked for the document.
    fn answer(&self, stream: &Stream<'_>, asked: &BTreeMap<String, String>) -> Document;

    /// How much sound one message to the carrier holds. Sessions send speech ahead by two of them at least.
    fn packet(&self) -> Duration {
        Duration::from_millis(20)
    }

    /// Whether a message must hold that much: the last one of an utterance is filled with silence then.
    fn pads(&self) -> bool {
        false
    }

    /// What becomes of each part of its protocol, for the page.
    fn rows(&self) -> &'static [Row];

    /// How it is set up, for the page.
    fn setup(&self) -> &'static str;
}

/// A part of a carrier's protocol: what it is, and what becomes of it.
#[derive(Debug, Clone, Copy)]
pub struct Row(pub &'static str, pub Becomes, pub &'static str);

/// What becomes of a part of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Becomes {
    /// It has its effect.
    Honoured,
    /// It is read past.
    Ignored,
    /// The socket is closed for it.
    Refused,
}

/// The messages of one socket.
pub trait Codec {
    /// A text message of the carrier; `None` where it needs nothing.
    fn text(&mut self, text: &str) -> Result<Option<Event>, Misfit>;

    /// A binary message of the carrier.
    fn binary(&mut self, _: Bytes) -> Result<Option<Event>, Misfit> {
        Err(misfit("message", "must be text"))
    }

    /// Sound for the caller, in the format of the call.
    fn sound(&mut self, sound: Bytes) -> Frame;

    /// Asks for [`Event::Mark`] once everything before has been played; `None` where the carrier does not tell.
    fn mark(&mut self, name: &str) -> Option<Frame>;

    /// Drops what the carrier has not played yet; `None` where it cannot.
    fn clear(&mut self) -> Option<Frame>;

    /// Presses keys; `None` where the carrier does not take any.
    fn press(&mut self, _digits: &str) -> Option<Frame> {
        None
    }

    /// Ends the call; `None` where the end of the socket does.
    fn hang_up(&mut self) -> Option<Frame> {
        None
    }
}

/// A message to the carrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Text.
    Text(String),
    /// Bytes.
    Binary(Bytes),
}

/// What a carrier says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The call begins. It comes first, and once.
    Start(Box<Start>),
    /// Sound of the caller, in the format of the call.
    Sound(Bytes),
    /// The caller has pressed a key.
    Pressed(char),
    /// What was sent before this mark has been played, or dropped.
    Mark(String),
    /// The call is over.
    Stop,
    /// This is to be sent back.
    Reply(Frame),
    /// This is to be sent back, and the call begins.
    Opened(Frame, Box<Start>),
    /// This is to be sent back, and the call is over.
    Closed(Frame),
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The carrier's id of the call.
    pub call_id: String,
    /// The calling number, where it is told.
    pub from: Option<String>,
    /// The called number, where it is told.
    pub to: Option<String>,
    /// What the answer document gave to the stream, beside the numbers.
    pub parameters: BTreeMap<String, String>,
    /// The sound of the call, both ways.
    pub format: Format,
}

/// How the samples of a call are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// G.711 µ-law.
    Mulaw,
    /// G.711 A-law.
    Alaw,
    /// 16 bits, little-endian.
    Linear16,
}

impl Encoding {
    /// Its name in `stt_config`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mulaw => "mulaw",
            Self::Alaw => "alaw",
            Self::Linear16 => "linear16",
        }
    }
}

/// The sound of a call, one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// How samples are encoded.
    pub encoding: Encoding,
    /// Samples a second.
    pub rate: u32,
}

impl Format {
    /// That of the telephone network in North America and Japan.
    pub const MULAW: Self = Self {
        encoding: Encoding::Mulaw,
        rate: 8_000,
    };

    /// Bytes of a sound of this length.
    pub fn bytes(self, of: Duration) -> usize {
        let samples = u128::from(self.rate) * of.as_millis() / 1_000;
        let bytes = samples
            * if self.encoding == Encoding::Linear16 {
                2
            } else {
                1
            };
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// How long a sound of so many bytes is.
    pub fn duration(self, bytes: usize) -> Duration {
        let second = self.bytes(Duration::from_secs(1)).max(1);
        Duration::from_secs_f64(bytes as f64 / second as f64)
    }
}

fn misfit(place: impl Into<String>, problem: impl Into<String>) -> Misfit {
    Misfit {
        place: place.into(),
        problem: problem.into(),
    }
}
