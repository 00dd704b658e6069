//! Participants in this process: sessions and telephone calls.
//!
//! To the SFU they are participants like any other, with permissions, tracks and signalling, but without a peer connection:
//! no sockets, SDP, ICE or encryption. Opus frames and RTP payloads pass between the SFU and a [`LocalMedia`] on the media
//! thread, a packet at a time.

use std::sync::{Arc, Weak};

use bytes::Bytes;

use super::admission::Admission;
use super::negotiation::{TrackSid, Wanted};
use super::participant::{Link, Publication};
use super::peer::{Channel, ForwardedPacket};
use super::sdp::SectionKind;
use super::sfu::Sfu;
use super::{ConnectionId, Now, ParticipantKey, RoomKey};

pub use super::peer::Delivery;
use vivavoce_seams::rooms::link::{Frame, Packet, Relay};

/// The mid of a published track, which has no media section.
pub(super) const SECTION: &str = "local";
/// The SSRC of a published track: each has its own number space.
const SSRC: u32 = 1;

/// Media and messages of a participant in this process. Called on the media thread: implementations must not block.
pub trait LocalMedia: std::fmt::Debug + Send + Sync {
    /// Called after a wake-up, before frames and messages are taken.
    fn awake(&self);

    /// The next frame of the published track.
    fn next_frame(&self) -> Option<Frame>;

    /// The next message to send, an encoded `DataPacket`.
    fn next_message(&self) -> Option<(Delivery, Bytes)>;

    /// A packet of a subscribed track.
    fn hear(&self, track: &str, packet: Packet);

    /// Where it takes what is relayed to it, if it can.
    fn relay(&self) -> Option<Weak<dyn Relay>> {
        None
    }

    /// Relays to this one in place of frames; to nobody any more.
    fn relay_to(&self, _other: Option<Weak<dyn Relay>>) {}

    /// A received message, an encoded `DataPacket`. `false` if the participant is too far behind to take it.
    fn receive(&self, delivery: Delivery, message: &Bytes) -> bool;
}

/// A participant in this process. See the module.
#[derive(Debug)]
pub struct Local {
    pub media: Arc<dyn LocalMedia>,
    carries: Vec<TrackSid>,
    sequence: u64,
    /// Whether it was told to whom it may relay.
    relays: bool,
    /// Reliable messages that it did not take.
    pub lost_messages: u64,
}

impl Local {
    pub fn new(media: Arc<dyn LocalMedia>) -> Self {
        Self {
            media,
            carries: Vec::new(),
            sequence: 0,
            relays: false,
            lost_messages: 0,
        }
    }

    /// Whether this track is subscribed to.
    pub fn carries(&self, track: &str) -> bool {
        self.carries.iter().any(|carried| &**carried == track)
    }

    /// Replaces the subscriptions; returns the new ones. Video is not forwarded within the process.
    pub fn follow(&mut self, wanted: &[Wanted]) -> Vec<TrackSid> {
        let audio = wanted
            .iter()
            .filter(|wanted| wanted.kind == SectionKind::Audio);
        let wanted: Vec<TrackSid> = audio.map(|wanted| TrackSid::clone(&wanted.track)).collect();
        let new = wanted
            .iter()
            .filter(|track| !self.carries(track))
            .cloned()
            .collect();
        self.carries = wanted;
        new
    }

    fn relay_to(&mut self, other: Option<Weak<dyn Relay>>) {
        if self.relays || other.is_some() {
            self.relays = other.is_some();
            self.media.relay_to(other);
        }
    }
}

impl Drop for Local {
    /// Whoever was removed is not heard any more.
    fn drop(&mut self) {
        self.relay_to(None);
    }
}

impl Sfu {
    /// Adds a participant in this process. Its media is connected from the start.
    pub fn connect_local(
        &mut self,
        connection: ConnectionId,
        admission: Admission,
        media: Arc<dyn LocalMedia>,
        now: Now,
    ) {
        self.join(
            connection,
            admission,
            None,
            Some(Box::new(Local::new(media))),
            now,
        );
        if let Some(key) = self.connections.get(&connection).copied() {
            self.media_connected(key, super::participant::Side::Publisher, now);
        }
        self.settle(now);
        // A wake-up from before the join was missed.
        self.local_media(connection, now);
    }

    /// Lets the participants of a room relay to each other if they are two, both in this process, and nobody else is there who
    /// could hear them. Called whenever that may have changed.
    pub(super) fn pair(&mut self, room: RoomKey) {
        let members: Vec<ParticipantKey> = self.members(room).map(|member| member.key).collect();
        for key in &members {
            let other = match *members {
                [one, other] => self.relay_between(*key, if one == *key { other } else { one }),
                _ => None,
            };
            let participant = self.participants.get_mut(key);
            if let Some(Link::Local(local)) = participant.map(|participant| &mut participant.link) {
                local.relay_to(other);
            }
        }
    }

    /// Where one takes what the other publishes, if it is subscribed to it.
    fn relay_between(&self, from: ParticipantKey, to: ParticipantKey) -> Option<Weak<dyn Relay>> {
        let from = self.participants.get(&from)?;
        let Link::Local(to) = &self.participants.get(&to)?.link else {
            return None;
        };
        // Whoever is forwarded is heard in other rooms, too.
        if !from.forwarded.is_empty() {
            return None;
        }
        let mut tracks = from.published();
        let track = tracks.find(|publication| publication.mid.as_deref() == Some(SECTION))?;
        let heard = !track.info.muted && to.carries(&track.sid);
        heard.then(|| to.media.relay()).flatten()
    }

    /// Takes frames and messages of a participant in this process.
    pub fn local_media(&mut self, connection: ConnectionId, now: Now) {
        let Some(key) = self.connections.get(&connection).copied() else {
            return;
        };
        let participant = self.participants.get(&key);
        let Some(Link::Local(local)) = participant.map(|participant| &participant.link) else {
            return;
        };
        let media = Arc::clone(&local.media);
        media.awake();
        while let Some(frame) = media.next_frame() {
            self.local_frame(key, &frame, now);
        }
        while let Some((delivery, message)) = media.next_message() {
            let channel = match delivery {
                Delivery::Reliable => Channel::Reliable,
                Delivery::Lossy => Channel::Lossy,
            };
            self.message(key, channel, &message, now);
        }
        self.settle(now);
    }

    fn local_frame(&mut self, key: ParticipantKey, frame: &Frame, now: Now) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        let Link::Local(local) = &mut participant.link else {
            return;
        };
        local.sequence += 1;
        let sequence = local.sequence;
        let is_it = |publication: &&mut Publication| publication.mid.as_deref() == Some(SECTION);
        let Some(publication) = participant.publications.iter_mut().find(is_it) else {
            return;
        };
        publication.meter.observe(frame.level, frame.timestamp);
        if publication.info.muted {
            return;
        }
        let track = TrackSid::clone(&publication.sid);
        let level = i8::try_from(frame.level.min(127)).unwrap_or(i8::MAX);
        let packet = ForwardedPacket {
            ssrc: SSRC,
            sequence,
            time: frame.timestamp,
            marker: frame.marker,
            payload: &frame.payload,
            audio_level: Some(-level),
            voice_activity: Some(frame.level < 127),
            video_orientation: None,
            format: None,
            video: None,
            descriptor: None,
        };
        self.forward(key, &track, &packet, now);
    }
}
