//! Participants in this process: sessions and telephone calls.
//!
//! To the SFU they are participants like any other, with permissions, tracks and signalling, but without a peer connection:
//! no sockets, SDP, ICE or encryption. Opus frames and RTP payloads pass between the SFU and a [`LocalMedia`] on the media
//! thread, a packet at a time.

use std::sync::Arc;

use bytes::Bytes;

use super::admission::Admission;
use super::negotiation::{TrackSid, Wanted};
use super::participant::{Link, Publication};
use super::peer::{Channel, ForwardedPacket};
use super::sdp::SectionKind;
use super::sfu::Sfu;
use super::{ConnectionId, Now, ParticipantKey};

pub use super::peer::Delivery;
use vivavoce_seams::rooms::link::{Frame, Packet};

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

    /// A received message, an encoded `DataPacket`. `false` if the participant is too far behind to take it.
    fn receive(&self, delivery: Delivery, message: &Bytes) -> bool;
}

/// A participant in this process. See the module.
#[derive(Debug)]
pub struct Local {
    pub media: Arc<dyn LocalMedia>,
    carries: Vec<TrackSid>,
    sequence: u64,
    /// Reliable messages that it did not take.
    pub lost_messages: u64,
}

impl Local {
    pub fn new(media: Arc<dyn LocalMedia>) -> Self {
        Self {
            media,
            carries: Vec::new(),
            sequence: 0,
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
