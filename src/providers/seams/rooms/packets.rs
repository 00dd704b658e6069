//! LiveKit's `DataPacket`s of a participant: outgoing ones are numbered and kept for a resume, incoming ones are
//! deduplicated. Data channels and their queues belong to the links.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use livekit_protocol as proto;
use prost::Message as _;
use proto::data_packet::{Kind, Value};

use super::link::{LinkEvent, Message, Outgoing};
use crate::rooms::shapes::Shaped as _;

/// For how long, and up to how much, reliable packets are kept for a resume.
const KEPT_FOR: Duration = Duration::from_secs(20);
const MOST_KEPT_BYTES: usize = 4 << 20;
/// Senders whose last number is remembered.
const MOST_SENDERS: usize = 4_096;

/// The way out.
#[derive(Debug, Default)]
pub struct Outbox {
    sequence: u32,
    kept: VecDeque<(u32, Instant, Bytes)>,
    kept_bytes: usize,
}

impl Outbox {
    /// The packet of a message. A reliable one is numbered and kept.
    #[allow(deprecated)] // older clients still read the deprecated fields
    pub fn packet(&mut self, message: Outgoing, identity: &str, now: Instant) -> Bytes {
        let value = match message.key {
            Some(key) => Value::SipDtmf(proto::SipDtmf {
                code: key.code().into(),
                digit: key.sign().into(),
            }),
            None => Value::User(proto::UserPacket {
                payload: message.payload.to_vec(),
                topic: message.topic,
                participant_identity: identity.to_owned(),
                destination_identities: message.destinations.clone(),
                ..Default::default()
            }),
        };
        let kind = if message.reliable {
            Kind::Reliable
        } else {
            Kind::Lossy
        };
        if message.reliable {
            self.sequence = self.sequence.wrapping_add(1);
        }
        let packet = proto::DataPacket {
            kind: kind as i32,
            participant_identity: identity.to_owned(),
            destination_identities: message.destinations,
            sequence: if message.reliable { self.sequence } else { 0 },
            value: Some(value),
            ..Default::default()
        };
        let bytes: Bytes = packet.encode_to_vec().into();
        if message.reliable {
            self.keep(bytes.clone(), now);
        }
        bytes
    }

    fn keep(&mut self, bytes: Bytes, now: Instant) {
        self.kept_bytes += bytes.len();
        self.kept.push_back((self.sequence, now, bytes));
        while let Some((_, at, first)) = self.kept.front() {
            if self.kept_bytes <= MOST_KEPT_BYTES && now.saturating_duration_since(*at) <= KEPT_FOR
            {
                break;
            }
            self.kept_bytes -= first.len();
            self.kept.pop_front();
        }
    }

    /// What the server has not got when this was the last that it got.
    pub fn after(&self, sequence: u32) -> impl Iterator<Item = Bytes> {
        let missing = self
            .kept
            .iter()
            .filter(move |(number, ..)| *number > sequence);
        missing.map(|(.., bytes)| bytes.clone())
    }
}

/// The way in.
#[derive(Debug, Default)]
pub struct Inbox {
    last: HashMap<String, u32>,
}

impl Inbox {
    /// What a packet says; nothing if it came before, cannot be read, or is of a kind that means nothing here.
    pub fn read(&mut self, bytes: &[u8], reliable: bool) -> Option<LinkEvent> {
        let packet = proto::DataPacket::read(bytes).ok()?;
        if reliable && packet.sequence > 0 {
            let known = self.last.get(&packet.participant_sid);
            if known.is_some_and(|last| packet.sequence <= *last) {
                return None;
            }
            if known.is_some() || self.last.len() < MOST_SENDERS {
                self.last.insert(packet.participant_sid, packet.sequence);
            }
        }
        match packet.value? {
            Value::User(user) => Some(LinkEvent::Message(Message {
                identity: Some(packet.participant_identity).filter(|identity| !identity.is_empty()),
                topic: user.topic.filter(|topic| !topic.is_empty()),
                payload: user.payload.into(),
                reliable,
            })),
            Value::SipDtmf(dtmf) => Some(LinkEvent::Dtmf {
                identity: packet.participant_identity,
                digit: dtmf.digit,
            }),
            _ => None,
        }
    }

    /// Forgets senders that are not there any more.
    pub fn retain(&mut self, here: impl Fn(&str) -> bool) {
        self.last.retain(|sid, _| here(sid));
    }

    /// The last number of each sender, so that the server sends again what came after it.
    pub fn states(&self) -> Vec<proto::DataChannelReceiveState> {
        let states = self.last.iter();
        states
            .map(|(sid, last)| proto::DataChannelReceiveState {
                publisher_sid: sid.clone(),
                last_seq: *last,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Outgoing {
        Outgoing {
            payload: text.to_owned().into(),
            reliable: true,
            ..Outgoing::default()
        }
    }

    #[test]
    fn what_the_server_has_not_got_is_there_to_be_sent_again() {
        let (mut outbox, mut inbox) = (Outbox::default(), Inbox::default());
        let now = Instant::now();
        let sent: Vec<Bytes> = ["a", "b", "c"]
            .map(|text| outbox.packet(message(text), "me", now))
            .into();
        assert_eq!(outbox.after(1).collect::<Vec<_>>(), sent[1..]);
        let heard = sent
            .iter()
            .chain(&sent[1..])
            .filter_map(|bytes| inbox.read(bytes, true));
        assert_eq!(heard.count(), 3, "each once");
        outbox.packet(message("d"), "me", now + KEPT_FOR + Duration::from_secs(1));
        assert_eq!(outbox.after(0).count(), 1, "what is old is forgotten");
    }

    #[test]
    fn bytes_that_are_no_packet_say_nothing() {
        assert!(Inbox::default().read(&[0xFF; 9], true).is_none());
    }
}
