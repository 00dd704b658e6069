//! The media of telephone calls: SDP offer and answer (RFC 3264), RTP and SRTP (with ICE and DTLS for browsers) between the server and the phone, DTMF (RFC
//! 4733), and the audio in both directions between the phone and a room. Signalling, dialogs and room membership are left
//! to `agent` and `call`.
//!
//! Each call is a task on one of a few media threads. [`CallMedia`] is its handle: its methods can be called from any
//! thread and never block.

mod clip;
mod codec;
mod consent;
mod dtls;
mod dtmf;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod ice;
mod latch;
mod listening;
mod offer_answer;
mod phone_to_room;
mod ports;
mod relay;
mod reorder;
mod room_to_phone;
pub mod rtcp;
pub mod rtp;
mod sdp;
mod session;
mod srtp;
#[cfg(test)]
mod tests;
mod threads;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tokio::sync::mpsc;

use dtls::Identity;
use offer_answer::{Agreement, OfferAnswer};
use ports::Ports;
use session::{Session, Start};
use threads::{Call, Threads};

use crate::classify::{Wanted, phrases};
use vivavoce_core::call::AnswerFinding;
use vivavoce_seams::rooms::link::{PublishSink, Relay, TrackAudio};

/// Events that wait to be read; further ones are dropped. DTMF digits arrive at ten a second at most.
const MOST_EVENTS: usize = 128;

/// A codec of telephone calls.
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
    /// Parses its name.
    pub fn parse(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|codec| codec.name().eq_ignore_ascii_case(name))
    }

    /// Its encoding name in `a=rtpmap`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pcmu => "PCMU",
            Self::Pcma => "PCMA",
            Self::G722 => "G722",
            Self::Opus => "opus",
        }
    }
}

/// Whether media is encrypted with keys from the session description (SDES, RFC 4568). The keys are secret only where
/// signalling is encrypted. Those of a handshake on the media path (DTLS-SRTP) are secret anywhere: who offers one gets one,
/// whatever is said here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Encryption {
    /// Never: an offer that requires encryption is refused.
    #[default]
    Off,
    /// If the other side offers it; the server's own offers do not.
    Allow,
    /// Always: an offer without encryption is refused.
    Require,
}

/// Settings of the media of all calls.
#[derive(Debug, Clone)]
pub struct MediaSettings {
    /// UDP ports: RTP on the even ones, RTCP on the odd ones above.
    pub ports: RangeInclusive<u16>,
    /// Number of media threads; at least one.
    pub threads: usize,
    /// An answered call that is not on hold and receives no packet for so long reports [`MediaEvent::Silent`].
    pub timeout: Duration,
    /// Whether media is encrypted.
    pub encryption: Encryption,
    /// Codecs that are offered and accepted, in order of preference.
    pub codecs: Vec<Codec>,
    /// The addresses put into session descriptions instead of the local address of the same family, when behind a NAT.
    pub advertised: Vec<IpAddr>,
    /// Networks from which media is accepted although neither the session description nor signalling names the address,
    /// once it has proved to be a stream.
    pub sources: Arc<[IpNet]>,
    /// Complexity of the Opus encoder towards the room, 0 (cheap) to 10.
    pub complexity: u8,
    /// Whether two phones that are alone in a room get each other's packets as they are, if they have one codec.
    pub relay: bool,
}

/// Why a call cannot get media ports.
#[derive(Debug, thiserror::Error)]
pub enum NoPort {
    /// All are in use or were released a moment ago.
    #[error("all media ports {0}-{1} are in use")]
    Exhausted(u16, u16),
    /// The address cannot be bound.
    #[error("cannot open a media port at {0}: {1}")]
    Address(IpAddr, #[source] io::Error),
}

/// Why a session description is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SdpError {
    /// It cannot be parsed or exceeds a bound.
    #[error("cannot parse the session description: {0}")]
    Malformed(&'static str),
    /// The two sides have no codec, address family or encryption in common.
    #[error("the session description is not acceptable: {0}")]
    Unacceptable(&'static str),
    /// An answer arrived without a pending offer.
    #[error("there is no pending offer")]
    NoOffer,
}

impl SdpError {
    /// The SIP status code to refuse it with.
    pub const fn status(&self) -> u16 {
        match self {
            Self::Malformed(_) | Self::NoOffer => 400,
            Self::Unacceptable(_) => 488,
        }
    }
}

/// What happened to the media of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaEvent {
    /// The first RTP packet arrived.
    FirstPacket,
    /// A DTMF digit was pressed; reported once.
    Digit {
        /// The event code of RFC 4733: 0 to 15.
        code: u8,
        /// `0` to `9`, `*`, `#`, `A` to `D`.
        digit: char,
    },
    /// No packet for [`MediaSettings::timeout`]; repeated at the same interval.
    Silent,
    /// The other side put the call on hold, or resumed it.
    Held(bool),
    /// It was found out who has answered.
    Found(AnswerFinding),
    /// The media task has ended: there is no more audio.
    Lost,
}

/// Counters and quality of a call's media until now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MediaReport {
    /// The negotiated codec.
    pub codec: Option<Codec>,
    /// Whether media is encrypted.
    pub encrypted: bool,
    /// RTP packets received from the phone.
    pub packets_in: u64,
    /// RTP packets sent to the phone.
    pub packets_out: u64,
    /// Of those, the ones passed on from another phone as they were.
    pub packets_relayed: u64,
    /// Packets from the phone that were lost.
    pub lost_in: u64,
    /// Packets to the phone that it reports as lost.
    pub lost_out: u64,
    /// Interarrival jitter of the packets received (RFC 3550 section 6.4.1).
    pub jitter_ms: f32,
    /// Jitter that the phone reports.
    pub jitter_out_ms: f32,
    /// When the first packet arrived, since the media ports were opened.
    pub first_in_ms: Option<u32>,
    /// When the first packet was sent, since the media ports were opened.
    pub first_out_ms: Option<u32>,
    /// Depth of the deepest jitter buffer of the room's tracks.
    pub buffer_ms: f32,
    /// Packets that were refused: not RTP, not authentic, from an unexpected source, or beyond a rate limit.
    pub refused: u64,
}

/// The address at which an offer wants to receive audio.
pub fn address_of(offer: &str) -> Option<IpAddr> {
    let description = sdp::Description::parse(offer).ok()?;
    let mut sections = description.sections.iter();
    let audio = sections.find(|section| section.media == "audio" && section.port > 0)?;
    audio.rtp().map(|rtp| rtp.ip().to_canonical())
}

/// Threads and ports for the media of all calls. They are released when this and every [`CallMedia`] are dropped.
#[derive(Debug)]
pub struct Media {
    settings: MediaSettings,
    identity: Arc<Identity>,
    ports: Arc<Ports>,
    threads: Arc<Threads>,
}

impl Media {
    /// Starts the media threads.
    pub fn start(settings: MediaSettings) -> io::Result<Self> {
        Ok(Self {
            ports: Ports::new(settings.ports.clone()),
            threads: Arc::new(Threads::start(settings.threads)?),
            identity: Arc::new(Identity::new()?),
            settings,
        })
    }

    /// Opens a pair of ports at a local address for one call whose signalling peer is `peer`.
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
            identity: Arc::clone(&self.identity),
        };
        let offer_answer = OfferAnswer::new(&self.settings.codecs, self.settings.encryption, told)
            .with_certificate(self.identity.fingerprint());
        let (tell, events) = mpsc::channel(MOST_EVENTS);
        let call = Call::new(Session::new(start, tell.clone()));
        self.threads.run(Arc::clone(&call), ports, tell);
        Ok(CallMedia {
            offer_answer,
            public_only: false,
            relay: self.settings.relay,
            call,
            events,
            _threads: Arc::clone(&self.threads),
        })
    }
}

/// The media of one call. Dropping it ends the media; its ports stay unused for a while, so that late packets do not reach
/// another call.
#[derive(Debug)]
pub struct CallMedia {
    offer_answer: OfferAnswer,
    public_only: bool,
    relay: bool,
    call: Arc<Call>,
    events: mpsc::Receiver<MediaEvent>,
    _threads: Arc<Threads>,
}

impl CallMedia {
    /// The other side is a browser: offers are such as browsers know.
    pub fn for_browser(&mut self) {
        self.offer_answer.for_browser();
    }

    /// The first offer, or the current one again for a re-INVITE. [`Self::accepted`] takes the answer.
    pub fn offer(&mut self) -> String {
        self.offer_answer.hold(self.call.session().is_held());
        self.offer_answer.offer()
    }

    /// Answers an offer: the first, or a later one of the same call.
    pub fn answer(&mut self, offer: &str) -> Result<String, SdpError> {
        self.offer_answer.hold(self.call.session().is_held());
        let answer = self.offer_answer.answer(offer)?;
        self.agree();
        Ok(answer)
    }

    /// Takes the answer to our offer, from a provisional response too; the newest counts. An answer without a pending offer
    /// changes nothing once media is negotiated.
    pub fn accepted(&mut self, answer: &str) -> Result<(), SdpError> {
        self.offer_answer.accepted(answer)?;
        self.agree();
        Ok(())
    }

    /// Answers the offer of another signalling peer, which takes the place of the one that there is; `encrypted`: only with
    /// encrypted media. After an error everything is as before.
    pub fn answer_another(
        &mut self,
        offer: &str,
        peer: IpAddr,
        encrypted: bool,
    ) -> Result<String, SdpError> {
        let mut next = self.offer_answer.clone();
        next.hold(self.call.session().is_held());
        let answer = next.answer(offer)?;
        let is_encrypted = next.agreement().is_some_and(Agreement::is_encrypted);
        if encrypted && !is_encrypted {
            return Err(SdpError::Unacceptable(
                "the media of this call is encrypted",
            ));
        }
        self.offer_answer = next;
        self.redirect(peer);
        self.agree();
        Ok(answer)
    }

    /// Takes the answer of another signalling peer to our offer, in the same way.
    pub fn accepted_by_another(
        &mut self,
        answer: &str,
        peer: IpAddr,
        public_only: bool,
    ) -> Result<(), SdpError> {
        let mut next = self.offer_answer.clone();
        next.accepted(answer)?;
        self.offer_answer = next;
        self.public_only = public_only;
        self.redirect(peer);
        self.agree();
        Ok(())
    }

    fn agree(&self) {
        if let Some(mut agreement) = self.offer_answer.agreement().cloned() {
            if self.public_only {
                agreement.keep_public();
            }
            self.call.session().agree(&agreement, Instant::now());
        }
    }

    /// The call is inbound: until [`Self::acknowledged`], nothing is sent, and nothing that arrives is played or reported.
    /// Audio for the phone is buffered from the answer on, for a moment.
    pub fn await_acknowledgement(&self) {
        self.call.session().await_acknowledgement();
    }

    /// Our answer was acknowledged.
    pub fn acknowledged(&self) {
        self.call.session().acknowledged();
    }

    /// The call was answered. Silence is reported only from now on.
    pub fn answered(&self) {
        self.call.session().answered(Instant::now());
    }

    /// From now on, no media is sent to a private address that only a session description names, where the settings do not name
    /// the other side.
    pub const fn public_only(&mut self, public_only: bool) {
        self.public_only = public_only;
    }

    /// The call goes to another signalling peer.
    pub fn redirect(&self, peer: IpAddr) {
        self.call.session().redirect(peer.to_canonical());
    }

    /// Publishes the phone's audio. Before that it is received and dropped.
    pub fn publish(&self, sink: PublishSink) {
        if self.relay {
            let call: Weak<Call> = Arc::downgrade(&self.call);
            sink.accept_relayed(call as Weak<dyn Relay>);
        }
        self.call.session().publish(sink);
    }

    /// Plays a track to the phone, in place of one with the same sid.
    pub fn hear(&self, sid: &str, identity: &str, audio: TrackAudio) {
        tracing::debug!(sid, identity, "the call receives a track");
        self.call.session().hear(sid, identity, audio);
    }

    /// Stops playing a track.
    pub fn forget(&self, sid: &str) {
        self.call.session().forget(sid);
    }

    /// Plays a sound to the phone, mono at 48 kHz, beside the room and in place of one that is being played.
    pub fn say(&self, sound: Arc<[i16]>) {
        self.call.session().say(sound);
    }

    /// The same again and again, until [`Self::hush`].
    pub fn repeat(&self, sound: Arc<[i16]>) {
        self.call.session().repeat(sound);
    }

    /// Ends the sound that is being played.
    pub fn hush(&self) {
        self.call.session().hush();
    }

    /// Listens from now on to who answers.
    pub fn classify(&self, wanted: Wanted) {
        self.call.session().classify(wanted, Instant::now());
    }

    /// Tells whoever listens what was understood of what the phone has said.
    pub fn words(&self, text: &str) {
        // Before the call is held: its sound does not wait for a search.
        if let Some(meaning) = phrases::meaning(text) {
            self.call.session().words(meaning);
        }
    }

    /// Queues DTMF digits: `0` to `9`, `*`, `#`, `A` to `D`, and `w` for a pause of half a second; anything else is
    /// skipped. At most a hundred wait. They are sent as tones where the other side has not negotiated `telephone-event`.
    pub fn dtmf(&self, digits: &str) {
        self.call.session().press(digits);
    }

    /// Whether digits are sent as events (RFC 4733); else they are tones.
    pub fn sends_events(&self) -> bool {
        let agreement = self.offer_answer.agreement();
        agreement.is_some_and(|agreement| agreement.dtmf.is_some())
    }

    /// Puts the call on hold, or resumes it: no audio flows either way. The next [`Self::offer`] or [`Self::answer`] tells
    /// the other side.
    pub fn hold(&self, held: bool) {
        self.call.session().hold(held);
    }

    /// Stops or resumes playing the room to the phone; the phone is still heard in the room.
    pub fn mute_room(&self, muted: bool) {
        self.call.session().mute(muted);
    }

    /// Parts the phone from the room, in both directions, or brings them together again. Unlike on hold, the other side does
    /// not know, and hears what is said to it.
    pub fn part(&self, apart: bool) {
        self.call.session().part(apart, Instant::now());
    }

    /// Counters and quality until now.
    pub fn report(&self) -> MediaReport {
        self.call.session().report()
    }

    /// The next event. Cancel safe.
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
