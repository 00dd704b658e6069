//! A participant inside the process: it has rights, tracks and signalling like any other, and no sockets, descriptions or
//! encryption. Its media is taken from and given to a [`LocalMedia`] on the media thread, a packet at a time.

use std::sync::Arc;

use bytes::Bytes;

use super::admission::Admission;
use super::negotiation::{TrackSid, Wanted};
use super::participant::{Link, Publication};
use super::peer::{Channel, Passing};
use super::sdp::SectionKind;
use super::world::World;
use super::{ConnectionId, Now, ParticipantKey};

pub use super::peer::Delivery;
use vivavoce_seams::rooms::link::{Frame, Packet};

/// The section of a track that has none.
pub(super) const SECTION: &str = "local";
/// No RTP stream has it here: there is one per publication.
const SSRC: u32 = 1;

/// Sound and messages of a participant inside the process. Called on the media thread: nothing here may wait.
pub trait LocalMedia: std::fmt::Debug + Send + Sync {
    /// Called before frames and messages are taken after a wake-up.
    fn awake(&self);

    /// The next frame of the track that is published.
    fn next_frame(&self) -> Option<Frame>;

    /// The next message, an encoded `DataPacket`.
    fn next_message(&self) -> Option<(Delivery, Bytes)>;

    /// A packet of a track that was subscribed to.
    fn hear(&self, track: &str, packet: Packet);

    /// A message, an encoded `DataPacket`. `false` when it cannot be taken: the participant is too far behind.
    fn receive(&self, delivery: Delivery, message: &Bytes) -> bool;
}

/// See the module.
#[derive(Debug)]
pub struct Local {
    pub media: Arc<dyn LocalMedia>,
    carries: Vec<TrackSid>,
    sequence: u64,
}

impl Local {
    pub fn new(media: Arc<dyn LocalMedia>) -> Self {
        Self {
            media,
            carries: Vec::new(),
            sequence: 0,
        }
    }

    /// Whether this track is subscribed to.
    pub fn carries(&self, track: &str) -> bool {
        self.carries.iter().any(|carried| &**carried == track)
    }

    /// Takes over what shall be received; returns what is new. Pictures are not for participants inside.
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

impl World {
    /// Somebody inside the process joins. Its media is up from the beginning.
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
        // A wake-up that came before it was in has been missed.
        self.local_media(connection, now);
    }

    /// Somebody inside has frames or messages to send.
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
        let passing = Passing {
            ssrc: SSRC,
            sequence,
            time: frame.timestamp,
            marker: frame.marker,
            payload: &frame.payload,
            audio_level: Some(-level),
            voice_activity: Some(frame.level < 127),
            video_orientation: None,
            format: None,
        };
        self.pass_on(key, &track, &passing, now);
    }
}
