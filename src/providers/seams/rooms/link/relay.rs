//! Relaying: two who are alone in a room of this process pass on RTP payloads to each other as they are, without decoding. The
//! room decides who is alone, and the two whether they can; otherwise frames go through the room.

/// An RTP payload that is passed on as it is.
#[derive(Debug, Clone, Copy)]
pub struct Relayed<'a> {
    /// Its format, as `a=rtpmap` names it.
    pub encoding: &'static str,
    /// Its length in timestamp units.
    pub ticks: u32,
    /// Packets of one run continue each other in sequence numbers and timestamps; those of two do not.
    pub run: u32,
    /// The sequence number, extended so that it does not wrap; each is passed on once, in order of arrival.
    pub sequence: u64,
    /// The timestamp.
    pub timestamp: u32,
    /// Whether it is the first after silence.
    pub marker: bool,
    /// The payload.
    pub payload: &'a [u8],
}

/// Who takes payloads in place of frames. Called on the media threads of both; nothing here blocks.
pub trait Relay: std::fmt::Debug + Send + Sync {
    /// Whether it can take payloads in this format at the moment.
    fn takes(&self, encoding: &str) -> bool;

    /// Takes a payload. `false` if it has to come through the room.
    fn relay(&self, packet: &Relayed<'_>) -> bool;

    /// What comes next comes through the room.
    fn stop(&self);
}
