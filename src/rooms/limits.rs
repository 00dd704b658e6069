//! What one client may cost: the bounds of everything that clients can make grow, in one place.

use std::collections::HashMap;

/// Metadata of a room or a participant, as in the Go server.
pub const METADATA_BYTES: usize = 512 << 10;
/// Keys and values of a participant's attributes together.
pub const ATTRIBUTES_BYTES: usize = 64 << 10;
/// Names of rooms and participants, and identities.
pub const NAME_CHARACTERS: usize = 256;
/// A join request, unpacked.
pub const JOIN_REQUEST_BYTES: usize = 1 << 20;
/// One signalling message.
pub const SIGNAL_BYTES: usize = 2 << 20;
/// One data message; clients keep to 64,000 bytes.
pub const MESSAGE_BYTES: usize = 256 << 10;
/// Parameters of a query that are looked at.
pub const QUERY_PARAMETERS: usize = 64;
/// Tracks that one participant has, published or about to be.
pub const TRACKS_PER_PARTICIPANT: usize = 64;
/// Tracks that one participant has chosen or refused by name.
pub const CHOICES_PER_PARTICIPANT: usize = 4_096;
/// Entries in a publisher's list of who may subscribe.
pub const PERMISSIONS_PER_PARTICIPANT: usize = 1_024;
/// Destinations that a data message names.
pub const DESTINATIONS: usize = 1_024;

/// What attributes count for.
#[allow(clippy::implicit_hasher)] // only the maps of the protocol come here
pub fn size_of(attributes: &HashMap<String, String>) -> usize {
    attributes
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum()
}
