//! The embedded room server: an SFU that unmodified LiveKit clients join.
//!
//! # Rooms in a page
//!
//! In a *room*, *participants* publish *tracks* (a microphone, a camera), subscribe to the tracks of others, and exchange data.
//! The server is a *selective forwarding unit* (SFU, [RFC 7667] section 3.7): it forwards the packets of each track to its
//! subscribers, without decoding or mixing them. A participant uploads once, however many listen, and each subscriber decides
//! what to receive.
//!
//! **Admission.** A client connects by WebSocket with an access token: a JWT, signed with an API key, whose *grants* name the
//! room, the identity and what the participant may do. Joining creates the room if it does not exist.
//!
//! **Signalling.** On this WebSocket, client and server exchange Protobuf messages of [LiveKit's protocol]. The first one, the
//! `JoinResponse`, lists the other participants and their tracks. Later ones announce a track (`AddTrackRequest`), carry
//! session descriptions, choose subscriptions, and tell everyone what has changed. If the connection breaks, the client
//! *resumes* its session with a new one; if that fails, or the server asks for it, it *reconnects* with a new session.
//!
//! **Negotiation.** Media travels over WebRTC *peer connections*: one for both directions, or (older clients) one for publishing
//! and one for subscribing. What they carry is described in SDP ([RFC 8866]), in one media section per track, and negotiated
//! by offer and answer ([RFC 9429]). A section in which the client receives is a *slot*: the server puts one subscribed track
//! at a time into it.
//!
//! **Transport.** ICE ([RFC 8445]) finds a path between client and server; the server is ICE-lite, so it only answers the
//! client's connectivity checks. DTLS authenticates both sides by the certificate fingerprints in SDP and keys SRTP, which
//! encrypts media. All of it shares one UDP port: a datagram is attributed to its participant by source address, or by the
//! ICE user name in a connectivity check. Where a network lets no datagram through, the same goes over TCP ([RFC 6544]), or by
//! the TURN server in this process ([RFC 8656]).
//!
//! **Forwarding.** Each subscriber gets a continuous RTP stream per slot, so sequence numbers and timestamps are rewritten. A
//! subscriber that cannot decode video asks for a *keyframe*, and the request is passed to the publisher. With *simulcast*
//! (or scalable video coding) a publisher sends several resolutions: each subscriber gets the one that it asks for and its
//! bandwidth allows, and a publisher is told of those that nobody wants (*dynacast*).
//!
//! **Data.** Two *data channels* (SCTP over DTLS, [RFC 8831]), a reliable and a lossy one, carry messages between
//! participants: chat, streams, RPC.
//!
//! **Agents.** A *worker* registers agents (LiveKit's agent protocol, on a WebSocket of its own). A *dispatch* requests one of
//! them for a room, and becomes *jobs*, each of which is offered to a worker; the agent then joins as any participant.
//!
//! # In this crate
//!
//! [`RoomServer`] is the handle. Behind it rooms are spread over as many threads as there are cores (`media_thread`): a room and all
//! that belongs to it is on one of them (`threads`), so that what sound passes through is shared by nobody. One thread reads the
//! media port, and passes on what is for others (`addressees`). Where somebody is moved or forwarded to a room of another thread, the
//! smaller of the two rooms goes to the thread of the other first (`relocating`).
//!
//! The state of a thread's rooms, `sfu::Sfu`, is sans-IO: it is given datagrams, messages and the time, and leaves its output to be
//! fetched, so that tests run in virtual time. Peer connections are [str0m]'s, which is sans-IO, too. What is counted or numbered for
//! all threads together is in `shared`.
//!
//! | concept | modules |
//! |---|---|
//! | admission | `admission`, `joining`, `moving`, `forwarded`, `session` |
//! | signalling | `signalling`, `outbound`, `pace`, `turns` |
//! | negotiation | `offers`, `sdp`, `negotiation`, `publishing`, `subscribing` |
//! | transport | `peer`, `paths`, `srtp`, `srtp_sending`, `fast_path`, `ssrcs`, `sockets`, `tcp`, `turn`, `media_thread` |
//! | threads | `threads`, `addressees`, `relocating`, `shared` |
//! | forwarding | `media`, `rtp_rewriting`, `speakers` |
//! | video | `layers`, `video_payload`, `forwarding`, `allocation`, `adapting` |
//! | data | `data` |
//! | participants in this process | `local` |
//! | agent workers | `dispatch`, `workers` |
//! | server API, webhooks | `operations`, `on_behalf`, `events` |
//!
//! WebSockets, HTTP and the server API are left to `http`, voice features to `actors`. A room's owner is in its metadata
//! ([`vivavoce_auth::Owner`]); nobody is in a room whose owner would not admit them.
//!
//! # Example
//!
//! ```no_run
//! use vivavoce_rooms::{Keys, RoomServer, Settings, Sockets, local_addresses};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! // The media port, on all addresses of this host.
//! let sockets = Sockets::bind(&local_addresses(&[])?, 7882)?;
//! let settings = Settings {
//!     keys: Keys::new([("devkey", "a secret of 32 characters or more")]),
//!     ..Settings::default()
//! };
//! let (server, mut events) = RoomServer::start(settings, sockets)?;
//! // Clients join by `RoomServer::connect`; this is what they do.
//! while let Some(event) = events.recv().await {
//!     println!("{} in {}", event.event.name(), event.room.name);
//! }
//! server.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! [LiveKit's protocol]: https://docs.livekit.io/reference/internals/client-protocol/
//! [RFC 6544]: https://www.rfc-editor.org/rfc/rfc6544
//! [RFC 7667]: https://www.rfc-editor.org/rfc/rfc7667
//! [RFC 8445]: https://www.rfc-editor.org/rfc/rfc8445
//! [RFC 8656]: https://www.rfc-editor.org/rfc/rfc8656
//! [RFC 8831]: https://www.rfc-editor.org/rfc/rfc8831
//! [RFC 8866]: https://www.rfc-editor.org/rfc/rfc8866
//! [RFC 9429]: https://www.rfc-editor.org/rfc/rfc9429
//! [str0m]: https://docs.rs/str0m

mod adapting;
mod addressees;
pub mod admission;
mod allocation;
pub mod codecs;
mod data;
pub mod dispatch;
mod events;
mod fast_path;
mod forwarded;
mod forwarding;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod joining;
mod layers;
mod local;
mod losses;
mod media;
mod media_thread;
mod moving;
mod negotiation;
pub mod offers;
mod on_behalf;
mod operations;
mod outbound;
mod pace;
mod participant;
mod paths;
mod peer;
mod publishing;
mod relocating;
mod room;
mod rtp_rewriting;
pub mod sdp;
mod segments;
mod server;
mod session;
mod sfu;
mod shared;
mod signalling;
mod sockets;
mod speakers;
mod srtp;
mod srtp_sending;
mod ssrcs;
mod subscribing;
pub mod tcp;
#[cfg(test)]
mod tests;
mod threads;
pub mod turn;
mod turns;
mod video_payload;
pub mod webrtc;
mod workers;

use std::time::Duration;

pub use admission::{Admission, Hears, Refusal, Route, admit, admit_once, admit_worker, identify};
pub use events::{Event, EventReceiver, RoomEvent};
pub use local::{Delivery, LocalMedia};
pub use on_behalf::OnBehalf;
pub use operations::{OperationError, ParticipantChange, RoomMessage};
pub use room::RoomSettings;
pub use server::{
    Connection, LocalWaker, MediaPorts, Requests, Responses, RoomServer, ServerCounters,
};
pub use sfu::Counters;
pub use sockets::{Sockets, local_addresses};
pub use tcp::Listeners;
pub use token::Keys;
use vivavoce_quotas::Share;
pub use vivavoce_seams::rooms::{Now, limits, shapes, token, wire};
pub use webrtc::Addresses;
pub use workers::{AgentViews, WorkerConnection};

/// A signalling connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// A session of a participant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParticipantKey(u64);

/// A room, from its creation to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoomKey(u64);

/// Settings of a room server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// API keys and secrets: tokens are verified and refreshed with them.
    pub keys: Keys,
    /// The LiveKit server version that is reported: clients compare it, and do without RPC below 1.8.
    pub version: String,
    /// Reported to clients.
    pub node_id: String,
    /// Reported to clients.
    pub region: String,
    /// The addresses of the media port, as clients reach it.
    pub addresses: Addresses,
    /// What clients are told of the TURN server.
    pub turn: Option<turn::Offer>,
    /// Whether an unowned room is claimed by the first tenant who joins.
    pub claim_unowned: bool,
    /// Whether joining a room that does not exist creates it.
    pub auto_create: bool,
    /// Default settings of rooms.
    pub room: RoomSettings,
    /// Limits of rooms and participants.
    pub bounds: Bounds,
    /// Limit of participants per room, whatever the settings of the room.
    pub most_per_room: usize,
    /// Whether the server API may unmute tracks.
    pub remote_unmute: bool,
    /// How long a refreshed token is valid.
    pub token_validity: Duration,
    /// How long a participant whose connection is lost may resume.
    pub grace: Duration,
    /// Threads that rooms are spread over.
    pub threads: usize,
    /// Seed of the generated sids.
    pub seed: u64,
}

/// Limits in total and per party.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Rooms.
    pub rooms: usize,
    /// Participants in all rooms.
    pub participants: usize,
    /// The share of both that one party may have.
    pub share: Share,
}

impl Bounds {
    /// From the server's settings.
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
            addresses: Addresses::default(),
            turn: None,
            claim_unowned: true,
            auto_create: true,
            room: RoomSettings {
                empty_timeout_s: 300,
                departure_timeout_s: 20,
                max_participants: 0,
                metadata: String::new(),
                agents: Vec::new(),
            },
            bounds: Bounds::default(),
            most_per_room: 2_000,
            remote_unmute: false,
            token_validity: Duration::from_mins(10),
            grace: Duration::from_secs(5),
            threads: 1,
            // Ids that participants see are made of it: it must not follow from other numbers of this process.
            seed: getrandom::u64().unwrap_or_else(|_| fastrand::u64(..)),
        }
    }
}
