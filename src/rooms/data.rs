//! Data packets between participants: who gets them, under whose name, in which order, and later for those who join.
//! What is above a packet (chat, streams, RPC) is the clients' own affair and passes through.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use livekit_protocol as proto;
use prost::Message as _;
use proto::data_packet::{Kind, Value};

use super::limits;
use super::participant::{Link, Participant, Side};
use super::peer::{Channel, Delivery};
use super::shapes::Shaped as _;
use super::world::World;
use super::{Now, ParticipantKey, RoomKey};
use vivavoce_telemetry::metrics::{self, RoomInput};

/// For how long, and up to how much, a sender's reliable packets are kept for those whose channels are not open yet.
const KEPT_FOR: Duration = Duration::from_secs(20);
const MOST_KEPT_BYTES: usize = 2 << 20;
const MOST_KEPT: usize = 1_000;

/// What one sender sent: the last number, and the newest packets.
#[derive(Debug, Default)]
pub struct Outbox {
    last_sequence: u32,
    kept: VecDeque<Kept>,
    kept_bytes: usize,
}

#[derive(Debug)]
struct Kept {
    at: Instant,
    destinations: Vec<String>,
    bytes: Bytes,
}

impl Outbox {
    /// The newest number received.
    pub fn last_sequence(&self) -> u32 {
        self.last_sequence
    }

    /// What is kept for those who resume.
    #[cfg(test)]
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Notes a numbered packet; `false` for one that came before.
    fn accept(&mut self, sequence: u32) -> bool {
        let new = sequence > self.last_sequence;
        self.last_sequence = self.last_sequence.max(sequence);
        new
    }

    fn keep(&mut self, destinations: Vec<String>, bytes: Bytes, now: Instant) {
        self.kept_bytes += bytes.len();
        self.kept.push_back(Kept {
            at: now,
            destinations,
            bytes,
        });
        let too_much = |outbox: &Self| {
            let old = outbox
                .kept
                .front()
                .is_some_and(|first| now.saturating_duration_since(first.at) > KEPT_FOR);
            old || outbox.kept_bytes > MOST_KEPT_BYTES || outbox.kept.len() > MOST_KEPT
        };
        while too_much(self) {
            let Some(dropped) = self.kept.pop_front() else {
                break;
            };
            self.kept_bytes -= dropped.bytes.len();
        }
    }

    /// What was meant for this receiver since a moment.
    fn since<'a>(
        &'a self,
        receiver: &'a Participant,
        joined: Instant,
    ) -> impl Iterator<Item = Bytes> + 'a {
        let meant = |kept: &&Kept| {
            kept.destinations.is_empty()
                || kept
                    .destinations
                    .iter()
                    .any(|name| *name == *receiver.identity)
        };
        self.kept
            .iter()
            .filter(move |kept| kept.at >= joined)
            .filter(meant)
            .map(|kept| kept.bytes.clone())
    }
}

impl World {
    /// A message on one of a participant's data channels.
    pub(super) fn message(
        &mut self,
        key: ParticipantKey,
        channel: Channel,
        bytes: &[u8],
        now: Now,
    ) {
        let Some(sender) = self.participants.get_mut(&key) else {
            return;
        };
        if !sender.permission.can_publish_data || bytes.len() > limits::MESSAGE_BYTES {
            return;
        }
        let mut packet = match channel {
            Channel::Other => proto::DataPacket {
                value: Some(Value::User(proto::UserPacket {
                    payload: bytes.to_vec(),
                    ..Default::default()
                })),
                ..Default::default()
            },
            Channel::Reliable | Channel::Lossy => match proto::DataPacket::read(bytes) {
                Ok(packet) => packet,
                Err(excess) => {
                    tracing::debug!(%excess, "a data packet is refused");
                    return metrics::room_input_refused(RoomInput::Message);
                }
            },
        };
        let delivery = if channel == Channel::Lossy {
            Delivery::Lossy
        } else {
            Delivery::Reliable
        };
        if delivery == Delivery::Reliable
            && packet.sequence > 0
            && !sender.outbox.accept(packet.sequence)
        {
            return;
        }
        sign(&mut packet, sender, delivery);
        let (room, destinations) = (sender.room, self.destinations(key, &packet));
        self.deliver(room, Some(key), &packet, destinations, delivery, now);
    }

    /// The identities a packet is meant for; none means everybody.
    #[allow(deprecated)] // clients still write and read the deprecated fields
    fn destinations(&self, key: ParticipantKey, packet: &proto::DataPacket) -> Vec<String> {
        let mut destinations = packet.destination_identities.clone();
        let mut sids: &[String] = &[];
        if let Some(Value::User(user)) = &packet.value {
            destinations.extend_from_slice(&user.destination_identities);
            sids = &user.destination_sids;
        }
        let room = self.participants.get(&key).map(|sender| sender.room);
        for sid in sids {
            let named =
                room.and_then(|room| self.members(room).find(|member| *member.sid == **sid));
            // A sid that is nobody's still is a destination: the packet is not for everybody.
            destinations
                .push(named.map_or_else(|| sid.clone(), |member| member.identity.to_string()));
        }
        destinations.truncate(limits::DESTINATIONS);
        destinations
    }

    /// Sends a packet to everybody it is meant for. A receiver that is too far behind on what must arrive starts anew.
    pub(super) fn deliver(
        &mut self,
        room: RoomKey,
        sender: Option<ParticipantKey>,
        packet: &proto::DataPacket,
        destinations: Vec<String>,
        delivery: Delivery,
        now: Now,
    ) {
        let bytes: Bytes = packet.encode_to_vec().into();
        let members = self
            .rooms
            .get(&room)
            .map(|room| room.members.clone())
            .unwrap_or_default();
        for key in members.into_iter().filter(|key| Some(*key) != sender) {
            let Some(receiver) = self.participants.get_mut(&key) else {
                continue;
            };
            let meant = destinations.is_empty()
                || destinations.iter().any(|name| *name == *receiver.identity);
            // Who is not there yet gets what was kept when its channels open.
            if meant && receiver.was_active && receiver.link.can_receive_data() {
                self.send_to(key, delivery, &bytes);
            }
        }
        if delivery == Delivery::Reliable
            && packet.sequence > 0
            && let Some(sender) = sender.and_then(|sender| self.participants.get_mut(&sender))
        {
            sender.outbox.keep(destinations, bytes, now.instant);
        }
    }

    fn send_to(&mut self, key: ParticipantKey, delivery: Delivery, bytes: &Bytes) {
        let Some(receiver) = self.participants.get_mut(&key) else {
            return;
        };
        let side = receiver.link.down_side();
        let sent = match &mut receiver.link {
            Link::Local(local) => local.media.receive(delivery, bytes),
            link => link
                .down_mut()
                .is_some_and(|peer| peer.send_message(delivery, bytes)),
        };
        if sent {
            self.counters.forwarded_messages += 1;
            self.touch(key, side);
        } else {
            self.counters.slow_receivers += 1;
            self.renew(key, proto::DisconnectReason::UnknownReason);
        }
    }

    /// A data channel of a participant opened: once it can receive, it gets what was sent since it joined.
    pub(super) fn channel_open(&mut self, key: ParticipantKey, side: Side, _now: Now) {
        let Some(receiver) = self.participants.get(&key) else {
            return;
        };
        if side != receiver.link.down_side() || !receiver.link.can_receive_data() {
            return;
        }
        let others = self.members(receiver.room).filter(|other| other.key != key);
        let missed: Vec<Bytes> = others
            .flat_map(|other| other.outbox.since(receiver, receiver.joined))
            .collect();
        for bytes in missed {
            self.send_to(key, Delivery::Reliable, &bytes);
        }
    }

    /// A message of the server's API to a room. `false` when its nonce was seen before.
    #[allow(deprecated)] // clients still write and read the deprecated fields
    pub(super) fn send_from_server(
        &mut self,
        room: RoomKey,
        mut user: proto::UserPacket,
        destinations: Vec<String>,
        delivery: Delivery,
        now: Now,
    ) -> bool {
        const NONCES: usize = 256;
        if let Some(room) = self.rooms.get_mut(&room).filter(|_| !user.nonce.is_empty()) {
            if room.nonces.contains(&user.nonce) {
                return false;
            }
            room.nonces.truncate(NONCES - 1);
            room.nonces.push_front(user.nonce.clone());
        }
        user.destination_identities.clone_from(&destinations);
        #[allow(deprecated)] // older clients still read it
        let packet = proto::DataPacket {
            kind: kind(delivery) as i32,
            destination_identities: destinations.clone(),
            value: Some(Value::User(user)),
            ..Default::default()
        };
        self.deliver(room, None, &packet, destinations, delivery, now);
        true
    }
}

fn kind(delivery: Delivery) -> Kind {
    match delivery {
        Delivery::Reliable => Kind::Reliable,
        Delivery::Lossy => Kind::Lossy,
    }
}

/// Puts the sender's name on a packet, whatever it said. Agents may speak under another's name where that is their
/// work: transcriptions, chat and text streams on behalf of somebody.
#[allow(deprecated)] // older clients still read the deprecated fields
fn sign(packet: &mut proto::DataPacket, sender: &Participant, delivery: Delivery) {
    use proto::participant_info::Kind as ParticipantKind;
    packet.kind = kind(delivery) as i32;
    let (sid, identity) = if sender.visible() {
        (sender.sid.to_string(), sender.identity.to_string())
    } else {
        Default::default()
    };
    let agent = sender.claims.participant_kind() == ParticipantKind::Agent;
    let on_behalf = agent
        && match &mut packet.value {
            Some(Value::ChatMessage(chat)) => {
                chat.generated = true;
                true
            }
            Some(Value::StreamHeader(header)) => match &mut header.content_header {
                Some(proto::data_stream::header::ContentHeader::TextHeader(text)) => {
                    text.generated = true;
                    true
                }
                _ => false,
            },
            Some(Value::StreamChunk(_) | Value::StreamTrailer(_)) => true,
            _ => false,
        };
    if !on_behalf || packet.participant_identity.is_empty() {
        packet.participant_identity.clone_from(&identity);
    }
    packet.participant_sid.clone_from(&sid);
    match &mut packet.value {
        Some(Value::User(user)) => {
            user.participant_sid = sid;
            user.participant_identity = identity;
        }
        Some(Value::Transcription(transcription)) if !agent => {
            transcription.transcribed_participant_identity = identity;
        }
        _ => {}
    }
}
