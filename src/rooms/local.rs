//! Participants in this process: sessions and telephone calls.
//!
//! To the SFU they are participants like any other, with permissions, tracks and signalling, but without a peer connection:
//! no sockets, SDP, ICE or encryption. Frames and RTP payloads pass between the SFU and a [`LocalMedia`] on the
//! media thread of the room, a packet at a time. What one of them says to another is not encoded: a publisher encodes while somebody is in the room who
//! needs it, and gives the samples as they are to all others of its kind.

use std::sync::{Arc, Weak};

use bytes::Bytes;

use super::admission::Admission;
use super::negotiation::{TrackSid, Wanted};
use super::participant::{Link, Participant, Publication};
use super::peer::{Channel, ForwardedPacket};
use super::sdp::SectionKind;
use super::sfu::Sfu;
use super::{ConnectionId, Now, ParticipantKey, RoomKey};

pub use super::peer::Delivery;
use vivavoce_seams::rooms::link::{Forms, Frame, Packet, Relay};

/// The mid of a published track, which has no media section.
pub(super) const SECTION: &str = "local";
/// The SSRC of a published track: each has its own number space.
const SSRC: u32 = 1;

/// Media and messages of a participant in this process. Called on the media thread of its room: implementations must not block.
pub trait LocalMedia: std::fmt::Debug + Send + Sync {
    /// Called after a wake-up, before frames and messages are taken.
    fn awake(&self);

    /// The next frame of the published track.
    fn next_frame(&self) -> Option<Frame>;

    /// The next message to send, an encoded `DataPacket`.
    fn next_message(&self) -> Option<(Delivery, Bytes)>;

    /// A packet of a subscribed track.
    fn hear(&self, track: &str, packet: Packet);

    /// Whether it takes only packets that are encoded.
    fn needs_opus(&self) -> bool {
        false
    }

    /// In which forms others want its frames from now on.
    fn want(&self, _forms: Forms) {}

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
    /// The forms of its frames that it was last told.
    forms: Option<Forms>,
    /// Whether it takes only packets that are encoded.
    pub needs_opus: bool,
    /// Reliable messages that it did not take.
    pub lost_messages: u64,
}

impl Local {
    pub fn new(media: Arc<dyn LocalMedia>) -> Self {
        Self {
            needs_opus: media.needs_opus(),
            media,
            carries: Vec::new(),
            sequence: 0,
            relays: false,
            forms: None,
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

    fn want(&mut self, forms: Forms) {
        if self.forms.replace(forms) != Some(forms) {
            self.media.want(forms);
        }
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

    /// Tells the participants of a room who are in this process in which forms their frames are wanted, and lets them relay to
    /// each other if they are two, and nobody else is there who could hear them. Called whenever that may have changed.
    pub(super) fn pair(&mut self, room: RoomKey, now: Now) {
        let members: Vec<ParticipantKey> = self.members(room).map(|member| member.key).collect();
        let takes_pcm =
            |member: &Participant| matches!(&member.link, Link::Local(local) if !local.needs_opus);
        let take_pcm = self
            .members(room)
            .filter(|member| takes_pcm(member))
            .count();
        let loses = |member: &Participant| match member.link {
            Link::Local(_) | Link::Forwarded(_) => false,
            _ => member.losses.are_expected(now.instant),
        };
        let is_lossy = self.members(room).any(loses);
        for key in &members {
            let other = match *members {
                [one, other] => self.relay_between(*key, if one == *key { other } else { one }),
                _ => None,
            };
            let Some(participant) = self.participants.get_mut(key) else {
                continue;
            };
            // Nobody knows here who takes what in the other rooms.
            let is_forwarded = !participant.forwarded.is_empty();
            let own = usize::from(takes_pcm(participant));
            if let Link::Local(local) = &mut participant.link {
                local.want(Forms {
                    opus: is_forwarded || members.len() - 1 > take_pcm - own,
                    redundancy: is_forwarded || is_lossy,
                    pcm: is_forwarded || take_pcm > own,
                });
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
            payload: frame.opus.as_ref(),
            pcm: frame.pcm.as_ref(),
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
