//! A participant: who it is, what it may do, what it publishes and how it is reached. State only; what happens to it is
//! decided in `session`, `signalling`, `media` and `data`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use livekit_protocol as proto;
use proto::participant_info::State;

use super::data::Outbox;
use super::limits;
use super::local::Local;
use super::negotiation::TrackSid;
use super::pace::Pace;
use super::peer::Peer;
use super::sdp::SectionKind;
use super::speakers::LevelMeter;
use super::token::Claims;
use super::{ConnectionId, ParticipantKey, RoomKey};

/// The two directions of media, which may be two peer connections or one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// From the client; with one connection also to it.
    Publisher,
    /// To the client.
    Subscriber,
}

/// How media and data reach a participant.
#[derive(Debug)]
pub enum Link {
    /// One peer connection for both directions.
    One(Box<Peer>),
    /// One for each. That of the publisher is made by its first offer.
    Two {
        /// From the client.
        publisher: Option<Box<Peer>>,
        /// To the client.
        subscriber: Box<Peer>,
    },
    /// None: the participant is in this process.
    Local(Box<Local>),
}

impl Link {
    /// The peer connection of a side.
    pub fn peer_mut(&mut self, side: Side) -> Option<&mut Peer> {
        match (self, side) {
            (Self::One(peer), Side::Publisher) => Some(peer),
            (Self::One(_), Side::Subscriber) | (Self::Local(_), _) => None,
            (Self::Two { publisher, .. }, Side::Publisher) => publisher.as_deref_mut(),
            (Self::Two { subscriber, .. }, Side::Subscriber) => Some(subscriber),
        }
    }

    /// The side by which media goes to the client.
    pub fn down_side(&self) -> Side {
        match self {
            Self::One(_) | Self::Local(_) => Side::Publisher,
            Self::Two { .. } => Side::Subscriber,
        }
    }

    /// The peer connection to the client.
    pub fn down(&self) -> Option<&Peer> {
        match self {
            Self::One(peer) => Some(peer),
            Self::Two { subscriber, .. } => Some(subscriber),
            Self::Local(_) => None,
        }
    }

    /// Whether messages can be sent to it.
    pub fn can_receive_data(&self) -> bool {
        self.down().is_none_or(Peer::can_receive_data)
    }

    /// See [`Self::down`].
    pub fn down_mut(&mut self) -> Option<&mut Peer> {
        match self {
            Self::One(peer) => Some(peer),
            Self::Two { subscriber, .. } => Some(subscriber),
            Self::Local(_) => None,
        }
    }

    /// All peer connections there are.
    pub fn sides(&self) -> impl Iterator<Item = Side> + use<> {
        let publisher = matches!(
            self,
            Self::One(_)
                | Self::Two {
                    publisher: Some(_),
                    ..
                }
        );
        let subscriber = matches!(self, Self::Two { .. });
        [
            publisher.then_some(Side::Publisher),
            subscriber.then_some(Side::Subscriber),
        ]
        .into_iter()
        .flatten()
    }
}

/// A track that a participant publishes, or is about to.
#[derive(Debug)]
pub struct Publication {
    /// Its sid.
    pub sid: TrackSid,
    /// The client's own name for it.
    pub cid: String,
    /// What others are told of it.
    pub info: proto::TrackInfo,
    /// Audio or video.
    pub kind: SectionKind,
    /// Its section in the publisher's description, once that was offered; others are told from then on.
    pub mid: Option<String>,
    /// The one simulcast layer that is forwarded.
    pub layer: Option<String>,
    /// How loud it is.
    pub meter: LevelMeter,
    /// Whether the publisher was told that somebody subscribed.
    pub told_subscribed: bool,
    /// When a picture to start from was last asked for.
    pub keyframe_asked: Option<Instant>,
    /// When its packets last told another codec than was known.
    pub renamed: Option<Instant>,
}

/// What happens when a participant next resumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnResume {
    /// The socket is closed after the answer to the resume, as the client has asked for (`simulate`).
    CloseAfter,
    /// The socket is closed before any message, as the client has asked for.
    CloseBefore,
    /// It is to start anew: its session is of no use any more. It was told so, and may not have heard it.
    StartAnew,
}

/// See the module.
#[derive(Debug)]
pub struct Participant {
    pub key: ParticipantKey,
    pub room: RoomKey,
    /// `PA_…`: a new one for each session.
    pub sid: Arc<str>,
    pub identity: Arc<str>,
    pub claims: Claims,
    pub name: String,
    pub metadata: String,
    pub attributes: HashMap<String, String>,
    pub permission: proto::ParticipantPermission,
    pub client: proto::ClientInfo,
    pub state: State,
    pub version: u32,
    pub joined_at_ms: i64,
    pub disconnect_reason: proto::DisconnectReason,
    /// Its signalling connection, while there is one.
    pub connection: Option<ConnectionId>,
    pub link: Link,
    pub auto_subscribe: bool,
    /// What it asked for by name; everything else follows `auto_subscribe`.
    pub choices: HashMap<TrackSid, bool>,
    /// Video that it does not want to see now.
    pub disabled: Vec<TrackSid>,
    pub publications: Vec<Publication>,
    /// Who may subscribe to its tracks; nobody is excluded without.
    pub subscription_permission: Option<Permission>,
    pub outbox: Outbox,
    /// Whether media was ever up. Not the state of ICE now: that is down in exactly the cases that a resume mends.
    pub was_active: bool,
    /// When it joined.
    pub joined: Instant,
    /// When it is removed unless it comes back.
    pub remove_at: Option<Instant>,
    /// When a signalling message last came.
    pub signalled: Instant,
    /// When the next token is due, and when the newest was given.
    pub refresh_at: Instant,
    pub token_at: Option<Instant>,
    /// What others are told of it, and when.
    pub pace: Pace,
    /// Since when an offer that was asked for is missing.
    pub offer_asked: Option<Instant>,
    /// Whether a request for sections is to be repeated after the next offer.
    pub stale: bool,
    /// From when its connection is judged.
    pub judged_from: Option<Instant>,
    /// The newest loss of its media, 0 to 1, and the quality that was told from it.
    pub loss: f32,
    pub quality: Option<proto::ConnectionQuality>,
    pub on_resume: Option<OnResume>,
    /// Until when it is called a speaker, asked for by the client (`simulate`).
    pub simulated_speaker_until: Option<Instant>,
}

impl Participant {
    /// What others are told of it.
    pub fn info(&self) -> proto::ParticipantInfo {
        proto::ParticipantInfo {
            sid: self.sid.to_string(),
            identity: self.identity.to_string(),
            state: self.state as i32,
            tracks: self
                .published()
                .map(|publication| publication.info.clone())
                .collect(),
            metadata: self.metadata.clone(),
            joined_at: self.joined_at_ms / 1_000,
            joined_at_ms: self.joined_at_ms,
            name: self.name.clone(),
            version: self.version,
            permission: Some(self.permission.clone()),
            is_publisher: self.published().next().is_some(),
            kind: self.claims.participant_kind() as i32,
            attributes: self.attributes.clone(),
            disconnect_reason: self.disconnect_reason as i32,
            client_protocol: self.client.client_protocol,
            capabilities: self.client.capabilities.clone(),
            ..Default::default()
        }
    }

    /// What whoever joins is told of what it says of itself.
    pub fn said_bytes(&self) -> usize {
        self.metadata.len() + limits::size_of(&self.attributes)
    }

    /// The tracks that others know of.
    pub fn published(&self) -> impl Iterator<Item = &Publication> {
        self.publications
            .iter()
            .filter(|publication| publication.mid.is_some())
    }

    /// A publication by its sid.
    pub fn publication_mut(&mut self, sid: &str) -> Option<&mut Publication> {
        self.publications
            .iter_mut()
            .find(|publication| &*publication.sid == sid)
    }

    /// Whether others see it.
    pub fn visible(&self) -> bool {
        !self.permission.hidden
    }

    /// Whether it counts as somebody in the room.
    pub fn counts(&self) -> bool {
        use proto::participant_info::Kind;
        self.visible() && !matches!(self.claims.participant_kind(), Kind::Egress)
    }

    /// Whether it may publish from this source.
    pub fn may_publish(&self, source: i32) -> bool {
        let sources = &self.permission.can_publish_sources;
        self.permission.can_publish && (sources.is_empty() || sources.contains(&source))
    }

    /// Changes what it says of itself. Empty texts change nothing, an attribute with an empty value is removed.
    /// The error says what is too large; then nothing is changed. It may say so much more as the room has left.
    pub fn change(
        &mut self,
        name: Option<String>,
        metadata: Option<String>,
        attributes: HashMap<String, String>,
        room_bytes: usize,
    ) -> Result<(), &'static str> {
        let name = name.filter(|name| !name.is_empty());
        let metadata = metadata.filter(|metadata| !metadata.is_empty());
        if name
            .as_ref()
            .is_some_and(|name| name.chars().count() > limits::NAME_CHARACTERS)
        {
            return Err("the name is too long");
        }
        if metadata
            .as_ref()
            .is_some_and(|metadata| metadata.len() > limits::METADATA_BYTES)
        {
            return Err("the metadata is too large");
        }
        let mut changed = self.attributes.clone();
        changed.extend(attributes);
        changed.retain(|_, value| !value.is_empty());
        if limits::size_of(&changed) > limits::ATTRIBUTES_BYTES {
            return Err("the attributes are too large");
        }
        if changed.len() > limits::ATTRIBUTES {
            return Err("there are too many attributes");
        }
        let said_now =
            metadata.as_ref().map_or(self.metadata.len(), String::len) + limits::size_of(&changed);
        if said_now > self.said_bytes() && said_now - self.said_bytes() > room_bytes {
            return Err("the participants of this room have said all that it can keep");
        }
        self.attributes = changed;
        self.name = name.unwrap_or_else(|| std::mem::take(&mut self.name));
        self.metadata = metadata.unwrap_or_else(|| std::mem::take(&mut self.metadata));
        Ok(())
    }

    /// Whether a subscriber may have a track of this participant.
    pub fn allows(&self, track: &str, subscriber_sid: &str, subscriber_identity: &str) -> bool {
        let permission = self.subscription_permission.as_ref();
        permission
            .is_none_or(|permission| permission.allows(track, subscriber_sid, subscriber_identity))
    }
}

/// Who may subscribe to a publisher's tracks. Asked for each subscriber and track, however much it says.
#[derive(Debug)]
pub struct Permission {
    everybody: bool,
    by_sid: HashMap<String, Allowed>,
    by_identity: HashMap<String, Allowed>,
}

/// What one subscriber may have.
#[derive(Debug, Default)]
struct Allowed {
    all: bool,
    tracks: HashSet<String>,
}

impl Permission {
    /// What a publisher said.
    pub fn new(said: proto::SubscriptionPermission) -> Self {
        let mut permission = Self {
            everybody: said.all_participants,
            by_sid: HashMap::new(),
            by_identity: HashMap::new(),
        };
        for entry in said.track_permissions {
            let named = [
                (&mut permission.by_sid, entry.participant_sid),
                (&mut permission.by_identity, entry.participant_identity),
            ];
            for (by, name) in named {
                if !name.is_empty() {
                    let allowed = by.entry(name).or_default();
                    allowed.all |= entry.all_tracks;
                    allowed.tracks.extend(entry.track_sids.iter().cloned());
                }
            }
        }
        permission
    }

    /// Whether a subscriber may have a track.
    pub fn allows(&self, track: &str, sid: &str, identity: &str) -> bool {
        let has = |allowed: Option<&Allowed>| {
            allowed.is_some_and(|allowed| allowed.all || allowed.tracks.contains(track))
        };
        self.everybody || has(self.by_sid.get(sid)) || has(self.by_identity.get(identity))
    }
}
