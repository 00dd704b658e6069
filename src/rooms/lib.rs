//! The embedded room server: unmodified LiveKit clients join its rooms, hear each other and exchange data.
//!
//! [`RoomServer`] is the handle. Behind it one thread owns the UDP sockets, all peer connections and all state of all
//! rooms; the state is [`world::World`], plain code that is given input and the time and leaves its output to be
//! fetched, so that tests run in virtual time. Signalling comes and goes as bytes through bounded channels: sockets,
//! HTTP and the server's public API are somebody else's, and so is everything about voice. Whose a room is stands in its
//! metadata ([`vivavoce_auth::Owner`]); nobody is in a room whose owner would not admit them.

pub mod admission;
pub mod codecs;
mod data;
mod events;
mod forwarding;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod joining;
mod local;
mod media;
mod media_thread;
mod negotiation;
pub mod offers;
mod on_behalf;
mod operations;
mod outbound;
mod pace;
mod participant;
mod peer;
mod publishing;
mod room;
pub mod sdp;
mod server;
mod session;
mod signalling;
mod sockets;
mod speakers;
mod ssrcs;
mod subscribing;
#[cfg(test)]
mod tests;
mod turns;
mod world;

use std::net::SocketAddr;
use std::time::Duration;

pub use admission::{Admission, Refusal, Route, admit};
pub use events::{Event, RoomEvent};
pub use local::{Delivery, LocalMedia};
pub use on_behalf::OnBehalf;
pub use operations::{OperationError, ParticipantChange, RoomMessage};
pub use room::RoomSettings;
pub use server::{Connection, Requests, Responses, RoomServer, ServerCounters};
pub use sockets::{Sockets, local_addresses};
pub use token::Keys;
use vivavoce_quotas::Share;
pub use vivavoce_seams::rooms::{Now, limits, shapes, token, wire};
pub use world::Counters;

/// One signalling connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// One session of a participant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParticipantKey(u64);

/// One life of a room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoomKey(u64);

/// What a room server is started with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// API keys: tokens are verified and refreshed with them.
    pub keys: Keys,
    /// The version of the LiveKit server whose behaviour this is: clients compare it, and hold back RPC below 1.8.
    pub version: String,
    /// Told to clients.
    pub node_id: String,
    /// Told to clients.
    pub region: String,
    /// Where media is reachable, as clients see it.
    pub addresses: Vec<SocketAddr>,
    /// Whether a room of nobody becomes that of the tenant who joins it first.
    pub claim_unowned: bool,
    /// Whether a join makes a room that does not exist.
    pub auto_create: bool,
    /// What rooms are made with unless somebody says otherwise.
    pub room: RoomSettings,
    /// Rooms and participants at a time.
    pub bounds: Bounds,
    /// Participants of one room at a time, whatever the room is made with.
    pub most_per_room: usize,
    /// Whether the server may undo a mute.
    pub remote_unmute: bool,
    /// For how long a refreshed token is valid.
    pub token_validity: Duration,
    /// For how long somebody whose connection is lost may come back.
    pub grace: Duration,
    /// Seeds the sids.
    pub seed: u64,
}

/// How many there may be at a time, and what one party may have of them.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Rooms.
    pub rooms: usize,
    /// Participants, in all rooms.
    pub participants: usize,
    /// Of both for one party.
    pub share: Share,
}

impl Bounds {
    /// From the settings of the server.
    pub const fn new(settings: &vivavoce_config::Settings) -> Self {
        Self {
            rooms: settings.limits.rooms,
            participants: settings.limits.participants,
            share: Share::of(settings),
        }
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            rooms: 10_000,
            participants: 10_000,
            share: Share::default(),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            keys: Keys::default(),
            version: "1.13.5".to_owned(),
            node_id: "ND_vivavoce".to_owned(),
            region: String::new(),
            addresses: Vec::new(),
            claim_unowned: true,
            auto_create: true,
            room: RoomSettings {
                empty_timeout_s: 300,
                departure_timeout_s: 20,
                max_participants: 0,
                metadata: String::new(),
            },
            bounds: Bounds::default(),
            most_per_room: 2_000,
            remote_unmute: false,
            token_validity: Duration::from_mins(10),
            grace: Duration::from_secs(5),
            seed: fastrand::u64(..),
        }
    }
}
