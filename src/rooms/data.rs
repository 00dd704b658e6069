//! Data packets between participants.
//!
//! LiveKit clients send data over two data channels of their peer connection (SCTP over DTLS, RFC 8831), labelled
//! `_reliable` and `_lossy`. Each message is a [`DataPacket`]: the SFU reads its destinations, replaces the sender's name
//! by the authenticated one, and forwards it. Chat, streams and RPC are built on top by the clients and pass through
//! unread. A reliable packet has a sequence number of its sender, so that it can be sent to participants that are joining
//! once their channels open, and duplicates after a resume are dropped.
//!
//! [`DataPacket`]: https://github.com/livekit/protocol/blob/main/protobufs/livekit_models.proto

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use livekit_protocol as proto;
use prost::Message as _;
use proto::data_packet::{Kind, Value};

use super::limits;
use super::participant::{Link, Participant, Side};
use super::peer::{Channel, Delivery};
use super::sfu::Sfu;
use super::shapes::Shaped as _;
use super::{Now, ParticipantKey, RoomKey};
use vivavoce_telemetry::metrics::{self, RoomInput};

/// How long, and up to how many bytes, a sender's reliable packets are kept for participants whose channels are not open
/// yet.
const KEPT_FOR: Duration = Duration::from_secs(20);
const MOST_KEPT_BYTES: usize = 2 << 20;
const MOST_KEPT: usize = 1_000;

/// The reliable packets of one sender: the last sequence number, and the newest packets.
#[derive(Debug, Default)]
pub struct Outbox {
    last_sequence: u32,
    kept: VecDeque<Kept>,
    kept_bytes: usize,
}

#[derive(Debug)]
struct Kept {
    at: Instant,
    destinations: HashSet<String>,
    bytes: Bytes,
}

impl Outbox {
    /// The last sequence number received.
    pub fn last_sequence(&self) -> u32 {
        self.last_sequence
    }

    /// Bytes kept.
    #[cfg(test)]
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Takes a sequence number; `false` for a duplicate.
    fn accept(&mut self, sequence: u32) -> bool {
        let new = sequence > self.last_sequence;
        self.last_sequence = self.last_sequence.max(sequence);
        new
    }

    fn keep(&mut self, destinations: HashSet<String>, bytes: Bytes, now: Instant) {
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

    /// The packets for this receiver since a moment.
    fn since<'a>(
        &'a self,
        receiver: &'a Participant,
        joined: Instant,
    ) -> impl Iterator<Item = Bytes> + 'a {
        let meant = |kept: &&Kept| {
            kept.destinations.is_empty() || kept.destinations.contains(&*receiver.identity)
        };
        self.kept
            .iter()
            .filter(move |kept| kept.at >= joined)
            .filter(meant)
            .map(|kept| kept.bytes.clone())
    }
}

impl Sfu {
    /// Handles a message on a data channel of a participant.
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
                    tracing::debug!(%excess, "refused a data packet");
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

    /// The identities that a packet is addressed to; none means everyone. A set, and sids by a map: the work is that of the
    /// names plus that of the members, and not their product.
    #[allow(deprecated)] // clients still write and read the deprecated fields
    fn destinations(&self, key: ParticipantKey, packet: &proto::DataPacket) -> HashSet<String> {
        let mut identities = packet.destination_identities.clone();
        let mut sids: &[String] = &[];
        if let Some(Value::User(user)) = &packet.value {
            identities.extend_from_slice(&user.destination_identities);
            sids = &user.destination_sids;
        }
        if !sids.is_empty() {
            let room = self.participants.get(&key).map(|sender| sender.room);
            let members = room.into_iter().flat_map(|room| self.members(room));
            let identity_of: HashMap<&str, &str> = members
                .map(|member| (&*member.sid, &*member.identity))
                .collect();
            // An unknown sid is a destination all the same: the packet is not for everyone.
            identities.extend(sids.iter().map(|sid| {
                let identity = identity_of.get(sid.as_str());
                identity.map_or_else(|| sid.clone(), |identity| (*identity).to_owned())
            }));
        }
        identities.into_iter().take(limits::DESTINATIONS).collect()
    }

    /// Forwards a packet to its destinations. A receiver whose reliable queue is full has to reconnect.
    pub(super) fn deliver(
        &mut self,
        room: RoomKey,
        sender: Option<ParticipantKey>,
        packet: &proto::DataPacket,
        destinations: HashSet<String>,
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
            let meant = destinations.is_empty() || destinations.contains(&*receiver.identity);
            // Participants whose channels are not open get the kept packets once they are.
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
            // A participant in this process loses the message: to join anew would end calls, and the sender chose the moment.
            if let Link::Local(local) = &mut receiver.link {
                local.lost_messages += 1;
                let lost = local.lost_messages;
                metrics::room_message_dropped();
                // Not for each of thousands: the 1st, 2nd, 4th, 8th …
                if lost.is_power_of_two() {
                    let identity = &*receiver.identity;
                    tracing::warn!(
                        identity,
                        lost,
                        "a participant of this process does not take its messages: reliable ones were lost"
                    );
                }
                return;
            }
            self.renew(key, proto::DisconnectReason::UnknownReason);
        }
    }

    /// A data channel of a participant has opened. Once both are open, it gets the reliable packets sent since it joined.
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

    /// Sends a message of the server API. `false` if its nonce was seen before.
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
        let destinations = destinations.into_iter().collect();
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

/// Sets the sender of a packet to the authenticated one. Agents may speak on behalf of others where that is their purpose:
/// transcriptions, chat and text streams.
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
