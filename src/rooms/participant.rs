//! The state of a participant: claims, permissions, publications, subscriptions, and its link. What happens to it is
//! decided in `session`, `signalling`, `media` and `data`.
//!
//! A LiveKit client has either two peer connections, one per direction of media (`/rtc`), or one for both (`/rtc/v1`): see
//! [`Link`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use livekit_protocol as proto;
use proto::participant_info::{KindDetail, State};
use str0m::format::Codec;

use super::adapting::{Adapting, Dynacast, Wish};
use super::admission::Hears;
use super::data::Outbox;
use super::layers::Encoding;
use super::limits;
use super::local::Local;
use super::losses::Losses;
use super::negotiation::TrackSid;
use super::pace::Pace;
use super::peer::Peer;
use super::room::Way;
use super::sdp::SectionKind;
use super::session::TOKEN_INTERVAL;
use super::speakers::LevelMeter;
use super::token::Claims;
use super::{ConnectionId, Now, ParticipantKey, RoomKey};
use vivavoce_telemetry::metrics;

/// A direction of media: one of two peer connections, or both in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// From the client; with one peer connection, also to it.
    Publisher,
    /// To the client.
    Subscriber,
}

/// How media and data reach a participant.
#[derive(Debug)]
pub enum Link {
    /// One peer connection for both directions.
    One(Box<Peer>),
    /// One per direction. That of the publisher is created by its first offer.
    Two {
        /// From the client.
        publisher: Option<Box<Peer>>,
        /// To the client.
        subscriber: Box<Peer>,
    },
    /// None: the participant is in this process.
    Local(Box<Local>),
    /// None: its tracks are those of this participant, who is in another room (see [`super::forwarded`]).
    Forwarded(ParticipantKey),
}

impl Link {
    /// The peer connection of a side.
    pub fn peer_mut(&mut self, side: Side) -> Option<&mut Peer> {
        match (self, side) {
            (Self::One(peer), Side::Publisher) => Some(peer),
            (Self::One(_), Side::Subscriber) | (Self::Local(_) | Self::Forwarded(_), _) => None,
            (Self::Two { publisher, .. }, Side::Publisher) => publisher.as_deref_mut(),
            (Self::Two { subscriber, .. }, Side::Subscriber) => Some(subscriber),
        }
    }

    /// The side that media is sent to the client on.
    pub fn down_side(&self) -> Side {
        match self {
            Self::One(_) | Self::Local(_) | Self::Forwarded(_) => Side::Publisher,
            Self::Two { .. } => Side::Subscriber,
        }
    }

    /// The peer connection that media is sent on.
    pub fn down(&self) -> Option<&Peer> {
        match self {
            Self::One(peer) => Some(peer),
            Self::Two { subscriber, .. } => Some(subscriber),
            Self::Local(_) | Self::Forwarded(_) => None,
        }
    }

    /// Whether data messages can be sent.
    pub fn can_receive_data(&self) -> bool {
        match self {
            Self::Local(_) => true,
            link => link.down().is_some_and(Peer::can_receive_data),
        }
    }

    /// See [`Self::down`].
    pub fn down_mut(&mut self) -> Option<&mut Peer> {
        match self {
            Self::One(peer) => Some(peer),
            Self::Two { subscriber, .. } => Some(subscriber),
            Self::Local(_) | Self::Forwarded(_) => None,
        }
    }

    /// The peer connections that exist.
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

/// A published track, or one that is announced.
#[derive(Debug)]
pub struct Publication {
    /// Its sid.
    pub sid: TrackSid,
    /// The client's own id of it.
    pub cid: String,
    /// What the other participants are told.
    pub info: proto::TrackInfo,
    /// Audio or video.
    pub kind: SectionKind,
    /// Its mid in the publisher's description, once it was offered; from then on the others know the track.
    pub mid: Option<String>,
    /// What it is sent in, if it is video: one for each codec.
    pub encodings: Vec<Encoding>,
    /// The codecs that the publisher has announced, in its order.
    pub codecs: Vec<Codec>,
    /// A further encoding that is announced.
    pub backup: Option<Backup>,
    /// What the publisher was told of those who watch.
    pub dynacast: Dynacast,
    /// Bytes of its description when it was announced.
    pub said: usize,
    /// Its loudness.
    pub meter: LevelMeter,
    /// Whether the publisher was told of a subscriber.
    pub told_subscribed: bool,
    /// When the room was last told of a changed codec.
    pub renamed: Option<Instant>,
}

/// A further encoding of a published track, in another codec, that waits for its section.
#[derive(Debug)]
pub struct Backup {
    /// The client's own id of it.
    pub cid: String,
    /// What the client says of its layers.
    pub layers: Vec<proto::VideoLayer>,
}

impl Publication {
    /// One that is announced.
    pub fn new(sid: TrackSid, info: proto::TrackInfo, kind: SectionKind) -> Self {
        Self {
            sid,
            cid: String::new(),
            info,
            kind,
            mid: None,
            encodings: Vec::new(),
            codecs: Vec::new(),
            backup: None,
            dynacast: Dynacast::default(),
            said: 0,
            meter: LevelMeter::default(),
            told_subscribed: false,
            renamed: None,
        }
    }

    /// What another room knows of it. Its packets, layers and levels are those of the publisher.
    pub fn reflected(&self) -> Self {
        Self {
            mid: self.mid.clone(),
            said: self.said,
            ..Self::new(TrackSid::clone(&self.sid), self.info.clone(), self.kind)
        }
    }

    /// Whether a section carries it.
    pub fn is_in(&self, mid: &str) -> bool {
        self.mid.as_deref() == Some(mid)
            || self.encodings.iter().any(|encoding| encoding.mid == mid)
    }
}

/// What happens at the next resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnResume {
    /// Close the socket after the response, as the client has asked for by `simulate`.
    CloseAfter,
    /// Close the socket before any response, as the client has asked for by `simulate`.
    CloseBefore,
    /// Ask for a full reconnect: the session cannot be resumed. The client was told so, but may not have read it.
    StartAnew,
}

/// A participant. See the module.
#[derive(Debug)]
pub struct Participant {
    pub key: ParticipantKey,
    /// Counts them as somebody who is there.
    #[expect(dead_code, reason = "counts until it is dropped")]
    pub present: metrics::Present,
    pub room: RoomKey,
    /// `PA_…`: a new one for each session.
    pub sid: Arc<str>,
    pub identity: Arc<str>,
    pub claims: Claims,
    pub name: String,
    pub metadata: String,
    pub attributes: HashMap<String, String>,
    /// Bytes of metadata and attributes.
    pub said_of_itself: usize,
    pub permission: proto::ParticipantPermission,
    pub client: proto::ClientInfo,
    pub state: State,
    pub version: u32,
    pub joined_at_ms: i64,
    pub disconnect_reason: proto::DisconnectReason,
    /// Its signalling connection, if there is one.
    pub connection: Option<ConnectionId>,
    pub link: Link,
    pub auto_subscribe: bool,
    /// Explicit subscriptions; all other tracks follow `auto_subscribe`.
    pub choices: HashMap<TrackSid, bool>,
    /// What it wants of video tracks.
    pub wishes: HashMap<TrackSid, Wish>,
    /// Video that is paused for want of bandwidth, as it was told.
    pub paused: HashSet<TrackSid>,
    /// How its video adapts.
    pub adapting: Adapting,
    pub publications: Vec<Publication>,
    /// Who may subscribe to its tracks; by default everyone.
    pub subscription_permission: Option<Permission>,
    pub outbox: Outbox,
    /// Whether media was ever connected. Not the current state of ICE, which is down whenever a resume is needed.
    pub was_active: bool,
    /// When it joined.
    pub joined: Instant,
    /// When it is removed unless it resumes.
    pub remove_at: Option<Instant>,
    /// When the last signalling message arrived.
    pub signalled: Instant,
    /// When the next token is due, and when the last one was sent.
    pub refresh_at: Instant,
    pub token_at: Option<Instant>,
    /// The rate limit of its state updates.
    pub pace: Pace,
    /// Since when a requested offer is missing.
    pub offer_asked: Option<Instant>,
    /// Whether a request for more sections is repeated after the next offer.
    pub stale: bool,
    /// When its connection quality is first judged.
    pub judged_from: Option<Instant>,
    /// Of its downlink.
    pub losses: Losses,
    /// The last measured packet loss of its uplink, 0 to 1, and the quality last reported.
    pub loss: f32,
    pub quality: Option<proto::ConnectionQuality>,
    pub on_resume: Option<OnResume>,
    /// Until when it counts as a speaker, as the client has asked for by `simulate`.
    pub simulated_speaker_until: Option<Instant>,
    /// The only way of its media, where it wants one.
    pub way: Option<Way>,
    /// What it hears, if it makes one offer and no other.
    pub once: Option<Hears>,
    /// How loud its tracks were when it was last judged.
    pub level: f32,
    /// Those that stand for it in other rooms.
    pub forwarded: Vec<ParticipantKey>,
}

impl Participant {
    /// One that has just come, as its token says.
    pub fn new(
        (key, sid): (ParticipantKey, Arc<str>),
        room: RoomKey,
        claims: Claims,
        link: Link,
        now: Now,
    ) -> Self {
        Self {
            key,
            present: metrics::participant_joined(),
            room,
            sid,
            identity: claims.identity().into(),
            name: claims.name.clone(),
            said_of_itself: claims.metadata.len() + limits::size_of(&claims.attributes),
            metadata: claims.metadata.clone(),
            attributes: claims.attributes.clone(),
            permission: claims.permission(),
            claims,
            client: proto::ClientInfo::default(),
            state: State::Joined,
            version: 0,
            joined_at_ms: now.unix_ms,
            disconnect_reason: proto::DisconnectReason::UnknownReason,
            connection: None,
            link,
            auto_subscribe: true,
            choices: HashMap::new(),
            wishes: HashMap::new(),
            paused: HashSet::new(),
            adapting: Adapting::default(),
            publications: Vec::new(),
            subscription_permission: None,
            outbox: Outbox::default(),
            was_active: false,
            joined: now.instant,
            remove_at: None,
            signalled: now.instant,
            refresh_at: now.instant + TOKEN_INTERVAL,
            token_at: None,
            pace: Pace::default(),
            offer_asked: None,
            stale: false,
            judged_from: None,
            losses: Losses::new(now.instant),
            loss: 0.0,
            quality: None,
            on_resume: None,
            simulated_speaker_until: None,
            way: None,
            once: None,
            level: 0.0,
            forwarded: Vec::new(),
        }
    }

    /// Whose tracks it has, if it is forwarded from another room.
    pub const fn source(&self) -> Option<ParticipantKey> {
        match self.link {
            Link::Forwarded(source) => Some(source),
            _ => None,
        }
    }

    /// What the other participants are told of it.
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
            kind_details: self
                .source()
                .map(|_| KindDetail::Forwarded as i32)
                .into_iter()
                .collect(),
            attributes: self.attributes.clone(),
            disconnect_reason: self.disconnect_reason as i32,
            client_protocol: self.client.client_protocol,
            capabilities: self.client.capabilities.clone(),
            ..Default::default()
        }
    }

    /// Bytes of metadata, attributes and tracks.
    pub fn said_bytes(&self) -> usize {
        self.said_of_itself + self.said_of_tracks()
    }

    /// Bytes of the descriptions of its tracks, announced ones included.
    pub fn said_of_tracks(&self) -> usize {
        let tracks = self.publications.iter();
        tracks.map(|publication| publication.said).sum()
    }

    /// Tracks that the others know.
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

    /// Whether the others see it.
    pub fn visible(&self) -> bool {
        !self.permission.hidden
    }

    /// Whether it counts as a participant of the room.
    pub fn counts(&self) -> bool {
        use proto::participant_info::Kind;
        self.visible() && !matches!(self.claims.participant_kind(), Kind::Egress)
    }

    /// Whether the room exists for it: not for the agent of a job and for who records, which are there for others.
    pub fn keeps_room(&self) -> bool {
        self.claims.agent_job.is_none() && !self.records()
    }

    /// Whether it is one of this server's own recorders or mixers.
    pub fn records(&self) -> bool {
        self.claims.video.recorder && matches!(self.link, Link::Local(_))
    }

    /// Whether it may publish from this source.
    pub fn may_publish(&self, source: i32) -> bool {
        let sources = &self.permission.can_publish_sources;
        self.permission.can_publish && (sources.is_empty() || sources.contains(&source))
    }

    /// Changes name, metadata and attributes. Empty texts change nothing; an empty value removes an attribute. On an error,
    /// which says what is too large, nothing changes. `room_bytes` is what the room has left.
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
        if said_now.saturating_sub(self.said_of_itself) > room_bytes {
            return Err(
                "the metadata, attributes and tracks of this room's participants exceed its limit",
            );
        }
        self.said_of_itself = said_now;
        self.attributes = changed;
        self.name = name.unwrap_or_else(|| std::mem::take(&mut self.name));
        self.metadata = metadata.unwrap_or_else(|| std::mem::take(&mut self.metadata));
        Ok(())
    }

    /// Whether a participant may subscribe to a track of this one.
    pub fn allows(&self, track: &str, subscriber: &Self) -> bool {
        let permission = self.subscription_permission.as_ref();
        self.is_heard_by(subscriber)
            && permission.is_none_or(|permission| {
                permission.allows(track, &subscriber.sid, &subscriber.identity)
            })
    }

    /// Whether a participant may hear this one at all: whoever whispers is heard by those whom the token names.
    pub fn is_heard_by(&self, subscriber: &Self) -> bool {
        match &self.claims.whispers_to {
            None => true,
            Some(to) if to.is_empty() => {
                subscriber.claims.participant_kind() == proto::participant_info::Kind::Agent
            }
            Some(to) => to.iter().any(|identity| **identity == *subscriber.identity),
        }
    }
}

/// Who may subscribe to a publisher's tracks. Lookups take constant time, whatever the size of the request.
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
    /// From a publisher's request.
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
