//! The trait of participating in a room: a [`RoomLink`] is one participant, whichever provider has the room. It has three
//! parts: events of the room, the track to publish, and requests. Audio passes through bounded rings, as Opus packets or within
//! this process as samples; encoding, jitter buffer, decoding and mixing belong to `audio` and the session.

mod end;
mod relay;
mod ring;

use std::sync::{Arc, Weak};
use std::time::Instant;

use bytes::Bytes;
use livekit_protocol::{ParticipantInfo, RoomConfiguration, TrackInfo};

use end::Shared;
pub use end::{LinkEnd, TrackWriter, Wishes, Woken, pair};
pub use relay::{Relay, Relayed};
use ring::Ring;

pub use vivavoce_audio::bandwidth::Samples;
use vivavoce_audio::jitter::Arrived;
pub use vivavoce_audio::jitter::Payload;
use vivavoce_audio::track_receiver::PacketSource;
use vivavoce_auth::{Principal, Takeover};

/// Frames that wait to be sent: whoever paces them is never so far ahead, and what is older than 200 ms is of no use.
const WAITING_FRAMES: usize = 10;
/// Packets of one track that wait to be read: a second of sound.
const WAITING_PACKETS: usize = 50;
/// Events that wait to be read. A reader that is further behind loses its place, see [`Ending::Overrun`].
const WAITING_EVENTS: usize = 1_024;
/// Bytes of messages among them, beyond which an end that can wait passes on no further ones.
const UNREAD_BYTES: usize = 1 << 20;
/// Bytes of messages that wait to be sent.
const WAITING_BYTES: usize = 4 << 20;
/// Bytes of a message's payload, topic and destinations together: LiveKit's clients take packets of up to 64,000.
pub const MESSAGE_BYTES: usize = 62_000;
/// The clock of Opus in RTP (RFC 7587 section 4.1), whatever the rate of the sound.
pub const CLOCK_HZ: u32 = 48_000;

/// Who joins which room, and how.
#[derive(Debug, Clone)]
pub struct Join {
    /// The room. It is made where it does not exist and the provider makes rooms on joining.
    pub room: String,
    /// Who joins. Somebody of the same identity who is there is put out, save by a session without a token or a caller.
    pub identity: String,
    /// What others read.
    pub name: String,
    /// As what.
    pub kind: JoinKind,
    /// On whose behalf. Only the rooms of this process compare it with their owner.
    pub principal: Principal,
    /// Whose the room becomes before anybody joins, where a call has come in. Only the rooms of this process know it.
    pub owner: Option<Takeover>,
    /// What others and the server read about them, from the beginning.
    pub metadata: String,
    /// Attributes that others read, from the beginning.
    pub attributes: Vec<(String, String)>,
    /// The configuration of the room, where joining makes it. Only the rooms of this process know it.
    pub room_config: Option<Box<RoomConfiguration>>,
    /// Whom to hear.
    pub listen: Listen,
    /// Whether there is sound at all: without, nothing is published and nobody is heard.
    pub audio: bool,
}

/// What a participant is to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JoinKind {
    /// A program that hears and speaks.
    #[default]
    Agent,
    /// Somebody at a telephone.
    Telephone,
    /// The same, who has called and so chosen the identity: nobody is put out for them. Only the rooms of this process
    /// make a difference.
    Caller,
    /// Who records: hears, publishes nothing, and is not shown to the others. The room does not stay for it. Only the rooms
    /// of this process have it.
    Recorder,
    /// Who mixes a room for those who can hear one track only: as a recorder, but what it publishes is heard by them.
    Mixer,
}

impl JoinKind {
    /// As tokens name it.
    pub const fn claim(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Telephone | Self::Caller => "sip",
            Self::Recorder | Self::Mixer => "egress",
        }
    }
}

/// Whose audio tracks are subscribed to. Events tell of everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// Everybody.
    All,
    /// Those of these identities; of none that means nobody.
    Only(Vec<String>),
}

impl Listen {
    /// Whether this identity is heard.
    pub fn hears(&self, identity: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(identities) => identities.iter().any(|name| name == identity),
        }
    }
}

/// A place in a room. It is left when [`LinkControl`] is dropped, or by [`LinkControl::leave`].
#[derive(Debug)]
pub struct RoomLink {
    /// What happens.
    pub events: LinkEvents,
    /// The published track.
    pub publish: PublishSink,
    /// What is wished.
    pub control: LinkControl,
}

/// What happens in a room. Participants and tracks are described in LiveKit's messages.
#[derive(Debug)]
pub enum LinkEvent {
    /// Media is up; always the first, followed by everybody who is there.
    Connected {
        /// The own sid, `PA_…`.
        sid: String,
        /// The own identity.
        identity: String,
    },
    /// The way to the room is lost and sought anew. What is said meanwhile is not heard; messages wait.
    Reconnecting,
    /// It is found.
    Reconnected {
        /// Whether it is the same session. If not, the own sid is another, tracks are subscribed to anew and unreliable
        /// as well as reliable messages of the time between may be lost.
        resumed: bool,
    },
    /// The participant is in another room now. Who is not there has left before, and who is comes after this.
    Moved {
        /// The name of that.
        room: String,
    },
    /// Somebody is in the room.
    ParticipantJoined(Box<ParticipantInfo>),
    /// Name, metadata, attributes or permissions of somebody changed; tracks have events of their own.
    ParticipantUpdated(Box<ParticipantInfo>),
    /// Somebody has left; the tracks ended before.
    ParticipantLeft(Box<ParticipantInfo>),
    /// A track of somebody is in the room.
    TrackPublished {
        /// Whose.
        identity: String,
        /// Which; also video, which is never subscribed to.
        track: Box<TrackInfo>,
    },
    /// A track was muted or unmuted, by its publisher or by the server.
    TrackMuted {
        /// Whose.
        identity: String,
        /// `TR_…`.
        sid: String,
        /// Now.
        muted: bool,
    },
    /// A track has ended, by itself or with its publisher.
    TrackUnpublished {
        /// Whose.
        identity: String,
        /// `TR_…`.
        sid: String,
    },
    /// From now on packets of an audio track arrive. It comes again with a new reader when it was interrupted by a full
    /// reconnect; the reader before it has ended then.
    TrackSubscribed {
        /// Whose.
        identity: String,
        /// `TR_…`.
        sid: String,
        /// Its packets.
        audio: TrackAudio,
    },
    /// Somebody subscribed to the published track, for the first time in this session of the room.
    Listened,
    /// The server muted or unmuted the published track.
    Muted(bool),
    /// A message of another participant, or of the server's API.
    Message(Message),
    /// A key of a telephone.
    Dtmf {
        /// Who pressed it.
        identity: String,
        /// 0 to 9, `*`, `#`, A to D.
        digit: String,
    },
    /// The link has ended; always the last.
    Ended(Ending),
}

impl LinkEvent {
    /// Bytes of its message, where it is one.
    fn bytes(&self) -> usize {
        match self {
            Self::Message(message) => {
                message.payload.len() + message.topic.as_ref().map_or(0, String::len)
            }
            _ => 0,
        }
    }
}

/// Why a link ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ending {
    /// It was left.
    #[error("left")]
    Left,
    /// Somebody of the same identity joined.
    #[error("another participant joined with the same identity")]
    Duplicate,
    /// Put out of the room.
    #[error("removed from the room")]
    Removed,
    /// The room became somebody else's.
    #[error("the room belongs to somebody else now")]
    Disowned,
    /// The room was deleted or closed.
    #[error("the room was deleted")]
    RoomDeleted,
    /// The server stops, or refuses to have it back.
    #[error("the server ended it: {0}")]
    Refused(String),
    /// A quota of our own is used up.
    #[error("{0}")]
    Quota(vivavoce_quotas::Refused),
    /// The way to the server was lost, and not found again in time.
    #[error("the connection was lost: {0}")]
    Network(String),
    /// The events were not read in time.
    #[error("the events of the room were not read in time")]
    Overrun,
}

/// A message that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who sent it; `None` for one of the server's API.
    pub identity: Option<String>,
    /// What it is about.
    pub topic: Option<String>,
    /// What it says.
    pub payload: Bytes,
    /// Whether it came in order and once, or as it happened to.
    pub reliable: bool,
}

/// A message to be sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outgoing {
    /// What it is about.
    pub topic: Option<String>,
    /// What it says.
    pub payload: Bytes,
    /// Whether it is sent again until it arrives.
    pub reliable: bool,
    /// Identities; none means everybody.
    pub destinations: Vec<String>,
    /// A key of a telephone instead of a payload.
    pub key: Option<TelephoneKey>,
}

/// A key of a telephone (RFC 4733 section 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TelephoneKey(char);

impl TelephoneKey {
    /// The key with this sign: 0 to 9, `*`, `#`, A to D.
    pub fn new(sign: char) -> Option<Self> {
        let sign = sign.to_ascii_uppercase();
        matches!(sign, '0'..='9' | '*' | '#' | 'A'..='D').then_some(Self(sign))
    }

    /// The key of this event code.
    pub fn from_code(code: u8) -> Option<Self> {
        let sign = b"0123456789*#ABCD".get(usize::from(code))?;
        Some(Self(char::from(*sign)))
    }

    /// Its sign.
    pub const fn sign(self) -> char {
        self.0
    }

    /// Its event code.
    pub fn code(self) -> u8 {
        match self.0 {
            '*' => 10,
            '#' => 11,
            letter @ 'A'..='D' => 12 + (letter as u8 - b'A'),
            digit => digit as u8 - b'0',
        }
    }
}

impl Outgoing {
    fn bytes(&self) -> usize {
        let destinations = self.destinations.iter().map(|name| name.len() + 4);
        self.payload.len()
            + self.topic.as_ref().map_or(0, String::len)
            + destinations.sum::<usize>()
    }
}

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// See [`MESSAGE_BYTES`].
    #[error("the message is larger than {MESSAGE_BYTES} bytes")]
    TooLarge,
    /// Those before it are not sent yet.
    #[error("too many messages wait to be sent to the room")]
    Full,
    /// The link has ended.
    #[error("the room was left")]
    Ended,
}

/// The events, in order. See [`LinkEvent`].
#[derive(Debug)]
pub struct LinkEvents {
    queue: tokio::sync::mpsc::Receiver<LinkEvent>,
    shared: Arc<Shared>,
    told_end: bool,
}

impl LinkEvents {
    /// The next event; `None` after [`LinkEvent::Ended`]. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<LinkEvent> {
        if let Some(event) = self.queue.recv().await {
            let unread = &self.shared.unread_bytes;
            unread.fetch_sub(event.bytes(), std::sync::atomic::Ordering::AcqRel);
            self.shared.read.notify_one();
            return Some(event);
        }
        (!std::mem::replace(&mut self.told_end, true))
            .then(|| LinkEvent::Ended(self.shared.ending().unwrap_or(Ending::Left)))
    }
}

/// In which forms the frames of a published track are wanted: none while nobody is there who could hear them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forms {
    /// As Opus packets.
    pub opus: bool,
    /// Whether packets are lost on their way to somebody, so that each should carry what was in the one before, too.
    pub redundancy: bool,
    /// As samples, which listeners in this process take at any rate.
    pub pcm: bool,
}

/// One 20 ms frame to be published, mono, in the forms that are [wanted](PublishSink::wanted).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The Opus packet; encoded once, whoever hears it.
    pub opus: Option<Arc<[u8]>>,
    /// The samples, at the rate that the publisher has.
    pub pcm: Option<Samples>,
    /// Its place on the clock of [`CLOCK_HZ`]; it goes on through silence, in which nothing need be sent.
    pub timestamp: u32,
    /// Whether it is the first after silence.
    pub marker: bool,
    /// How loud it is, in −dBov: 0 is the loudest, 127 silence (RFC 6464). Others see from it who speaks.
    pub level: u8,
}

/// The way to the published track. Frames leave when they are pushed: the pace is the caller's.
#[derive(Debug)]
pub struct PublishSink {
    shared: Arc<Shared>,
}

impl PublishSink {
    /// Sends a frame. While there is no connection the newest 200 ms wait, and what is older is dropped and counted. While
    /// the track is muted frames go nowhere.
    pub fn push(&self, frame: Frame) {
        self.shared.push_frame(frame);
    }

    /// How frames are wanted now. In any other form they are lost.
    pub fn wanted(&self) -> Forms {
        self.shared.wanted()
    }

    /// Frames that were never sent.
    pub fn dropped(&self) -> u64 {
        self.shared.frames.dropped()
    }

    /// From now on this takes what the only other one in the room relays.
    pub fn accept_relayed(&self, relay: Weak<dyn Relay>) {
        self.shared.accept_relayed(relay);
    }

    /// Who takes what is relayed in place of frames: while the room has one listener for this track, who can, and nobody else.
    pub fn relay(&self) -> Option<Arc<dyn Relay>> {
        self.shared.relay()
    }
}

/// One received packet of a track, as it came: late, twice, or out of order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Its sound.
    pub payload: Payload,
    /// The RTP sequence number, extended so that it never wraps.
    pub sequence: u64,
    /// On the clock of [`CLOCK_HZ`], modulo 2³². It goes on through silence (DTX), and jumps where the publisher starts anew.
    pub timestamp: u32,
    /// Whether it is the first after silence.
    pub marker: bool,
    /// When it arrived.
    pub arrived: Instant,
    /// How loud its publisher says it is, as [`Frame::level`].
    pub level: Option<u8>,
}

/// The packets of one subscribed track. The writer never waits: a reader that is a second behind loses the oldest.
#[derive(Debug)]
pub struct TrackAudio {
    ring: Arc<Ring<Packet>>,
}

impl PacketSource for TrackAudio {
    fn next_packet(&mut self) -> Option<Arrived> {
        let packet = self.try_next()?;
        Some(Arrived {
            sequence: packet.sequence,
            timestamp: packet.timestamp,
            payload: packet.payload,
            at: packet.arrived,
            level: packet.level,
        })
    }
}

impl TrackAudio {
    /// The next packet if there is one.
    pub fn try_next(&self) -> Option<Packet> {
        self.ring.pop()
    }

    /// The next packet; `None` once the track has ended and everything was read. Nothing is lost when the future is dropped.
    pub async fn next(&self) -> Option<Packet> {
        self.ring.next().await
    }

    /// Whether no further packet will ever come.
    pub fn ended(&self) -> bool {
        self.ring.ended()
    }

    /// Packets that this reader has lost because it was slow.
    pub fn dropped(&self) -> u64 {
        self.ring.dropped()
    }
}

/// What is wished of a link. Wishes are states: the newest counts, also after a reconnect.
#[derive(Debug)]
pub struct LinkControl {
    shared: Arc<Shared>,
}

impl LinkControl {
    /// Sends a message. It waits while there is no connection.
    pub fn send(&self, message: Outgoing) -> Result<(), SendError> {
        self.shared.push_message(message)
    }

    /// Mutes the published track for everybody, or ends that.
    pub fn mute(&self, muted: bool) {
        self.shared.wish(|wishes| wishes.muted = muted);
    }

    /// Chooses whose audio is subscribed to.
    pub fn listen(&self, listen: Listen) {
        self.shared.wish(|wishes| wishes.listen = listen);
    }

    /// Changes attributes that others read; an empty value removes one. Those that are not named stay.
    pub fn attributes(&self, changes: impl IntoIterator<Item = (String, String)>) {
        self.shared.wish(|wishes| wishes.attributes.extend(changes));
    }

    /// Presses a key of a telephone: for those of these identities who are at one, or for everybody who is.
    pub fn press(&self, key: TelephoneKey, destinations: Vec<String>) -> Result<(), SendError> {
        self.shared.push_message(Outgoing {
            reliable: true,
            destinations,
            key: Some(key),
            ..Outgoing::default()
        })
    }

    /// Leaves; returns when the server was told, or could not be.
    pub async fn leave(self) {
        self.shared.wish(|wishes| wishes.left = true);
        self.shared.ended().await;
    }
}

impl Drop for LinkControl {
    fn drop(&mut self) {
        self.shared.wish(|wishes| wishes.left = true);
    }
}
