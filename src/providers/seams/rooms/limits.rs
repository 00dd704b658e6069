//! The limits of what a single client may cost: the bounds of everything that clients can make grow.

use std::collections::HashMap;
use std::time::Duration;

/// Metadata of a room or a participant; LiveKit's servers allow 64,000 bytes unless they are told otherwise.
pub const METADATA_BYTES: usize = 64 << 10;
/// Keys and values of a participant's attributes together.
pub const ATTRIBUTES_BYTES: usize = 64 << 10;
/// Attributes of a participant.
pub const ATTRIBUTES: usize = 512;
/// Descriptions of one participant's tracks together; a usual one has some 150 bytes.
pub const TRACKS_BYTES: usize = 64 << 10;
/// Metadata, attributes and tracks of everybody in a room together: whoever joins is told all of it.
pub const ROOM_STATE_BYTES: usize = 2 << 20;
/// Names of rooms and participants, and identities.
pub const NAME_CHARACTERS: usize = 256;
/// A join request, unpacked.
pub const JOIN_REQUEST_BYTES: usize = 256 << 10;
/// One signalling message.
pub const SIGNAL_BYTES: usize = 1 << 20;
/// One data message; clients keep to 64,000 bytes.
pub const MESSAGE_BYTES: usize = 256 << 10;
/// Parameters of a query that are looked at.
pub const QUERY_PARAMETERS: usize = 64;
/// Tracks that one participant has, published or about to be.
pub const TRACKS_PER_PARTICIPANT: usize = 64;
/// Tracks that one participant has chosen or refused by name.
pub const CHOICES_PER_PARTICIPANT: usize = 4_096;
/// Video that one participant has switched off for now.
pub const DISABLED_PER_PARTICIPANT: usize = 1_024;
/// Tracks that one request switches off or on.
pub const SETTINGS_PER_REQUEST: usize = 256;
/// Entries in a publisher's list of who may subscribe.
pub const PERMISSIONS_PER_PARTICIPANT: usize = 1_024;
/// Rooms that one participant is forwarded to: each of its packets goes to the subscribers of all of them.
pub const FORWARDED_TO: usize = 16;
/// Destinations that a data message names.
pub const DESTINATIONS: usize = 1_024;

/// Agent workers of all parties.
pub const AGENT_WORKERS: usize = 1_000;
/// Jobs of agents that have not ended.
pub const AGENT_JOBS: usize = 10_000;
/// Requests for agents in one room.
pub const DISPATCHES_PER_ROOM: usize = 64;
/// Participants of a room who have asked to be reached in one way only.
pub const WAYS_PER_ROOM: usize = 256;
/// One message of a worker.
pub const WORKER_BYTES: usize = 256 << 10;
/// Messages to one worker that wait; one that is further behind is disconnected.
pub const WORKER_WAITING: usize = 4_096;
/// Messages of one worker a second, and at once after a rest; further ones wait.
pub const WORKER_MESSAGES_PER_SECOND: u32 = 200;
/// See [`WORKER_MESSAGES_PER_SECOND`].
pub const WORKER_MESSAGES_AT_ONCE: u32 = 2_000;
/// Metadata that a worker gives its agent, and its attributes together: both travel in a token.
pub const AGENT_TEXT_BYTES: usize = 16 << 10;

/// A session description. One of a browser has some 2,000 bytes for each section of sound.
pub const DESCRIPTION_BYTES: usize = 768 << 10;
/// Lines of a description that are of use, see [`super::offers`].
pub const DESCRIPTION_LINES: usize = 16_384;
/// The same of one section.
pub const SECTION_LINES: usize = 256;
/// One line of a description.
pub const LINE_BYTES: usize = 2_048;
/// The line that names all sections.
pub const GROUP_LINE_BYTES: usize = 16 << 10;
/// Payload types of one section that stand for codecs that are known here; browsers list some twenty.
pub const SECTION_FORMATS: usize = 48;
/// SSRCs that one section announces.
pub const SECTION_SSRCS: usize = 16;

/// Signalling messages of one client that wait to be read. Whoever has more waits to send.
pub const WAITING_REQUESTS: usize = 32;
/// The same in bytes; one message fits.
pub const WAITING_REQUEST_BYTES: usize = SIGNAL_BYTES;
/// Signalling messages that wait for one client. One that is further behind is cut off and resumes.
pub const WAITING_RESPONSES: usize = 1_024;
/// The same in bytes; one message fits whatever its size.
pub const WAITING_RESPONSE_BYTES: usize = 4 << 20;
/// What waits for everybody in a room, and for everybody. Whoever is furthest behind is cut off first.
pub const ROOM_WAITING_BYTES: usize = 32 << 20;
/// The same for the whole server.
pub const SERVER_WAITING_BYTES: usize = 128 << 20;

/// What one participant's changes may make others be told, as bytes times receivers, per second.
pub const TOLD_BYTES_PER_SECOND: u64 = 8 << 20;
/// The same at once, after a rest.
pub const TOLD_BYTES_AT_ONCE: u64 = 4 << 20;
/// A participant is given a new token at most so often.
pub const TOKEN_PAUSE: Duration = Duration::from_secs(1);

/// The rooms' thread forwards everybody's media, so that all other work on it is counted, in units of about this much time:
/// a media section of a description that is negotiated is one.
pub const WORK_UNIT: Duration = Duration::from_micros(20);
/// Units of a join or a resume, without its offer and what the room adds: most of it is the peer connection.
pub const JOIN_WORK: u32 = 50;
/// Bytes of a request that count as one unit, where its media sections do not count for more.
pub const BYTES_PER_WORK_UNIT: usize = 2 << 10;
/// Units a second that one connection's requests get, 2 % of the thread; further ones wait.
pub const CONNECTION_WORK_PER_SECOND: u32 = 1_000;
/// The same at once, after a rest. Publishing 20 tracks one by one where 100 are subscribed to takes 2,500.
pub const CONNECTION_WORK_AT_ONCE: u32 = 4_000;
/// Units a second that all requests of a tenant or an address get together, or, of the operator's connections, those of a
/// room: 20 % of the thread.
pub const PARTY_WORK_PER_SECOND: u32 = 10_000;
/// The same at once, after a rest.
pub const PARTY_WORK_AT_ONCE: u32 = 20_000;
/// The same for joins and resumes: some 200 a second.
pub const JOINS_WORK_PER_SECOND: u32 = 10_000;
/// The same at once: some 200 that lose their connections together are back at once.
pub const JOINS_WORK_AT_ONCE: u32 = 10_000;

/// What attributes count for.
#[allow(clippy::implicit_hasher)] // only the maps of the protocol come here
pub fn size_of(attributes: &HashMap<String, String>) -> usize {
    attributes
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum()
}
