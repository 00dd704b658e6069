//! The sound of telephone calls: what an offer and an answer say (RFC 3264), RTP and SRTP between us and the telephone,
//! its keys (RFC 4733), and its sound into and out of a room. Who is called, what a dialog is and who is in the room is
//! left to others.
//!
//! Each call is a task on one of a few media threads. [`CallMedia`] is the handle of one; everything about it may be
//! called from any thread and never waits.

mod arrivals;
mod codec;
mod conceal;
mod consent;
mod description;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod inward;
mod keys;
mod latch;
mod negotiation;
mod outward;
mod ports;
pub mod rtcp;
pub mod rtp;
mod secure;
mod session;
#[cfg(test)]
mod tests;
mod threads;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tokio::sync::mpsc;

use negotiation::Negotiation;
use ports::Ports;
use session::{Session, Start};
use threads::{Call, Threads};

use vivavoce_seams::rooms::link::{PublishSink, TrackAudio};

/// Events that wait to be read; more are lost. Keys come ten a second at most.
const MOST_EVENTS: usize = 128;

/// A codec that a telephone call may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Codec {
    /// G.711 µ-law: North America and Japan.
    Pcmu,
    /// G.711 A-law: everywhere else.
    Pcma,
    /// G.722: 16 kHz, on an RTP clock of 8 kHz (RFC 3551 section 4.5.2).
    G722,
    /// Opus (RFC 7587).
    Opus,
}

impl Codec {
    /// The name in `a=rtpmap`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pcmu => "PCMU",
            Self::Pcma => "PCMA",
            Self::G722 => "G722",
            Self::Opus => "opus",
        }
    }
}

/// Whether media is encrypted with keys from the description (SDES, RFC 4568). They are secret only where signalling
/// is encrypted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Encryption {
    /// Never: an offer that requires it is refused.
    #[default]
    Off,
    /// Where the other side offers it; it is not offered from here.
    Allow,
    /// Always: an offer without it is refused.
    Require,
}

/// How calls sound.
#[derive(Debug, Clone)]
pub struct MediaSettings {
    /// UDP ports: RTP on the even ones, RTCP one above.
    pub ports: RangeInclusive<u16>,
    /// Threads that calls are spread over; at least one.
    pub threads: usize,
    /// After so long without a packet a call that was taken and is not held is told to be [`MediaEvent::Silent`].
    pub timeout: Duration,
    /// Whether media is encrypted.
    pub encryption: Encryption,
    /// What is offered and accepted, preferred ones first.
    pub codecs: Vec<Codec>,
    /// The address that the other side is told in place of the local one of the same family, behind a NAT.
    pub advertised: Vec<IpAddr>,
    /// From where sound may come that no description names and no signalling comes from, once it has proved to be a stream.
    pub sources: Arc<[IpNet]>,
    /// The complexity of the Opus encoder towards the room, 0 (cheap) to 10.
    pub complexity: u8,
}

/// Why no call can have media now.
#[derive(Debug, thiserror::Error)]
pub enum NoPort {
    /// All are in use, or were until a moment ago.
    #[error("all of the media ports {0}-{1} are in use")]
    Exhausted(u16, u16),
    /// The address cannot be listened at.
    #[error("no media port can be opened at {0}: {1}")]
    Address(IpAddr, #[source] io::Error),
}

/// Why a session description cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SdpError {
    /// It is no session description, or too large for one.
    #[error("the session description cannot be read: {0}")]
    Malformed(&'static str),
    /// There is no codec, no address or no encryption that both sides can use.
    #[error("the session description is not acceptable: {0}")]
    Unacceptable(&'static str),
    /// An answer came that nothing was offered for.
    #[error("there is no offer to be answered")]
    NoOffer,
}

impl SdpError {
    /// The SIP status that refuses it.
    pub const fn status(&self) -> u16 {
        match self {
            Self::Malformed(_) | Self::NoOffer => 400,
            Self::Unacceptable(_) => 488,
        }
    }
}

/// What happens to the media of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaEvent {
    /// The first packet came.
    FirstPacket,
    /// A key was pressed, told once.
    Digit {
        /// The event of RFC 4733: 0 to 15.
        code: u8,
        /// `0` to `9`, `*`, `#`, `A` to `D`.
        digit: char,
    },
    /// No packet for [`MediaSettings::timeout`]; told again after as long.
    Silent,
    /// The other side holds the call, or no longer does.
    Held(bool),
    /// The media thread is gone: there will be no sound.
    Lost,
}

/// What a call sounded like until now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MediaReport {
    /// The codec agreed upon last.
    pub codec: Option<Codec>,
    /// Whether media is encrypted.
    pub encrypted: bool,
    /// RTP packets from the telephone.
    pub packets_in: u64,
    /// RTP packets to the telephone.
    pub packets_out: u64,
    /// Packets from the telephone that never came.
    pub lost_in: u64,
    /// Packets to the telephone that it says it lost.
    pub lost_out: u64,
    /// Jitter of the packets from the telephone (RFC 3550 section 6.4.1).
    pub jitter_ms: f32,
    /// Jitter that the telephone sees.
    pub jitter_out_ms: f32,
    /// When the first packet came, after the call's media was opened.
    pub first_in_ms: Option<u32>,
    /// When the first packet went out.
    pub first_out_ms: Option<u32>,
    /// How long sound from the room waits here, to be even.
    pub buffer_ms: f32,
    /// Packets that were no RTP, not authentic, or from somebody else.
    pub refused: u64,
}

/// The media of all calls: threads and ports. It ends when it and all [`CallMedia`] are dropped.
#[derive(Debug)]
pub struct Media {
    settings: MediaSettings,
    ports: Arc<Ports>,
    threads: Arc<Threads>,
}

impl Media {
    /// Starts the media threads.
    pub fn start(settings: MediaSettings) -> io::Result<Self> {
        Ok(Self {
            ports: Ports::new(settings.ports.clone()),
            threads: Arc::new(Threads::start(settings.threads)?),
            settings,
        })
    }

    /// Opens a pair of ports at a local address, for one call that is signalled with `peer`.
    pub fn open(&self, local: IpAddr, peer: IpAddr) -> Result<CallMedia, NoPort> {
        let now = Instant::now();
        let ports = self.ports.open(local, now)?;
        let mut outside = self.settings.advertised.iter();
        let told = outside.find(|address| address.is_ipv4() == local.is_ipv4());
        let told = SocketAddr::new(told.copied().unwrap_or(local), ports.address.port());
        let start = Start {
            now,
            timeout: self.settings.timeout,
            peer: peer.to_canonical(),
            sources: Arc::clone(&self.settings.sources),
            complexity: self.settings.complexity,
        };
        let (tell, events) = mpsc::channel(MOST_EVENTS);
        let call = Call::new(Session::new(start, tell.clone()));
        self.threads.run(Arc::clone(&call), ports, tell);
        Ok(CallMedia {
            negotiation: Negotiation::new(&self.settings.codecs, self.settings.encryption, told),
            public_only: false,
            call,
            events,
            _threads: Arc::clone(&self.threads),
        })
    }
}

/// The media of one call. Dropped, it ends; its ports rest for a while so that nothing of it gets into another call.
#[derive(Debug)]
pub struct CallMedia {
    negotiation: Negotiation,
    public_only: bool,
    call: Arc<Call>,
    events: mpsc::Receiver<MediaEvent>,
    _threads: Arc<Threads>,
}

impl CallMedia {
    /// An offer: the first, or the same again in a re-INVITE. To be followed by [`Self::accepted`].
    pub fn offer(&mut self) -> String {
        self.negotiation.hold(self.call.session().is_held());
        self.negotiation.offer()
    }

    /// The answer to an offer, also to a later one of the same call.
    pub fn answer(&mut self, offer: &str) -> Result<String, SdpError> {
        self.negotiation.hold(self.call.session().is_held());
        let answer = self.negotiation.answer(offer)?;
        self.agree();
        Ok(answer)
    }

    /// What the other side answered, also in a provisional response; the newest counts. What answers no offer changes
    /// nothing once something is agreed upon.
    pub fn accepted(&mut self, answer: &str) -> Result<(), SdpError> {
        self.negotiation.accepted(answer)?;
        self.agree();
        Ok(())
    }

    fn agree(&self) {
        if let Some(mut agreement) = self.negotiation.agreement().cloned() {
            if self.public_only {
                agreement.keep_public();
            }
            self.call.session().agree(&agreement, Instant::now());
        }
    }

    /// The call came from outside: until [`Self::acknowledged`], no more packets go out than came. What is said from the answer
    /// on is kept for a moment.
    pub fn await_acknowledgement(&self) {
        self.call.session().await_acknowledgement();
    }

    /// Our answer has arrived.
    pub fn acknowledged(&self) {
        self.call.session().acknowledged();
    }

    /// The call was taken. Before that no silence is told.
    pub fn answered(&self) {
        self.call.session().answered(Instant::now());
    }

    /// From now on nothing is sent to an address that is not public because a description names it: the other side is
    /// somebody whom the settings do not name.
    pub const fn public_only(&mut self) {
        self.public_only = true;
    }

    /// Where the telephone's sound goes. Until then it is received and dropped.
    pub fn publish(&self, sink: PublishSink) {
        self.call.session().publish(sink);
    }

    /// Lets the telephone hear a track, in place of the one of the same sid if there was one.
    pub fn hear(&self, sid: &str, identity: &str, audio: TrackAudio) {
        tracing::debug!(sid, identity, "the telephone hears a track");
        self.call.session().hear(sid, identity, audio);
    }

    /// A track has ended.
    pub fn forget(&self, sid: &str) {
        self.call.session().forget(sid);
    }

    /// Presses keys: `0` to `9`, `*`, `#`, `A` to `D`, and `w` for a pause of half a second; anything else is left out.
    /// They wait for those before them; more than a hundred do not. Where the other side knows no key events they are
    /// heard as tones.
    pub fn dtmf(&self, digits: &str) {
        self.call.session().press(digits);
    }

    /// Holds the call, or no longer: nothing is heard either way. The next [`Self::offer`] or [`Self::answer`] says so.
    pub fn hold(&self, held: bool) {
        self.call.session().hold(held);
    }

    /// Keeps the room's sound from the telephone, or no longer; what the telephone says is heard.
    pub fn mute_room(&self, muted: bool) {
        self.call.session().mute(muted);
    }

    /// What it was like until now.
    pub fn report(&self) -> MediaReport {
        self.call.session().report()
    }

    /// What happens next; nothing is lost when the future is dropped.
    pub async fn next_event(&mut self) -> MediaEvent {
        match self.events.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }
}

impl Drop for CallMedia {
    fn drop(&mut self) {
        self.call.end();
    }
}
