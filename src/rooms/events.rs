//! Room events, as webhooks report them ([webhook events]), and the queue through which they leave the media thread.
//! Signing and delivery are in the `webhooks` crate.
//!
//! [webhook events]: https://docs.livekit.io/intro/basics/rooms-participants-tracks/webhooks-events/

use std::sync::{Arc, Mutex, PoisonError};

use livekit_protocol as proto;
use prost::Message as _;
use tokio::sync::mpsc;

use vivavoce_core::party::Party;
use vivavoce_quotas::{Share, Tally};

/// Queued events, in number and in bytes as encoded; further ones are dropped and counted.
const MOST_EVENTS: usize = 4_096;
const MOST_BYTES: u64 = 16 << 20;

/// A kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A room was created.
    RoomStarted,
    /// A room ended.
    RoomFinished,
    /// A participant's media is connected. A join that fails before is not reported as one.
    ParticipantJoined,
    /// A participant left or was removed.
    ParticipantLeft,
    /// A participant left before its media was connected.
    ParticipantConnectionAborted,
    /// A track was published: the others know of it from now on.
    TrackPublished,
    /// A track was unpublished, or its publisher has left.
    TrackUnpublished,
}

impl Event {
    /// Its name in a webhook.
    pub fn name(self) -> &'static str {
        match self {
            Self::RoomStarted => "room_started",
            Self::RoomFinished => "room_finished",
            Self::ParticipantJoined => "participant_joined",
            Self::ParticipantLeft => "participant_left",
            Self::ParticipantConnectionAborted => "participant_connection_aborted",
            Self::TrackPublished => "track_published",
            Self::TrackUnpublished => "track_unpublished",
        }
    }
}

/// An event with its context.
#[derive(Debug, Clone)]
pub struct RoomEvent {
    /// The kind.
    pub event: Event,
    /// The room.
    pub room: proto::Room,
    /// The party that the room counts for.
    pub of: Party,
    /// The participant, if the event is about one.
    pub participant: Option<proto::ParticipantInfo>,
    /// The track, if the event is about one.
    pub track: Option<proto::TrackInfo>,
    /// In Unix milliseconds.
    pub at_ms: i64,
}

impl RoomEvent {
    fn bytes(&self) -> u64 {
        let participant = self
            .participant
            .as_ref()
            .map_or(0, proto::ParticipantInfo::encoded_len);
        let track = self.track.as_ref().map_or(0, proto::TrackInfo::encoded_len);
        (self.room.encoded_len() + participant + track) as u64
    }
}

/// A queue of events, first come, first served. The parties that rooms count for share its capacity, so that the events of
/// one never keep out those of others.
pub(super) fn queue(share: Share) -> (EventSender, EventReceiver) {
    let (sender, receiver) = mpsc::channel(MOST_EVENTS);
    let held = Arc::new(Mutex::new(Held {
        events: Tally::new(MOST_EVENTS as u64, share),
        bytes: Tally::new(MOST_BYTES, share),
    }));
    let sender = EventSender {
        queue: sender,
        held: Arc::clone(&held),
    };
    let receiver = EventReceiver {
        queue: receiver,
        held,
    };
    (sender, receiver)
}

/// What the queued events take up.
#[derive(Debug)]
struct Held {
    events: Tally,
    bytes: Tally,
}

/// The media threads' end.
#[derive(Debug, Clone)]
pub(super) struct EventSender {
    queue: mpsc::Sender<(RoomEvent, u64)>,
    held: Arc<Mutex<Held>>,
}

impl EventSender {
    /// Queues an event, without waiting; `false` if it is dropped.
    pub(super) fn send(&self, event: RoomEvent) -> bool {
        let bytes = event.bytes();
        let of = event.of.clone();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = held.events.check(&of, 1).is_ok() && held.bytes.check(&of, bytes).is_ok();
        // Counted before the receiver can release it.
        let sent = fits && self.queue.try_send((event, bytes)).is_ok();
        if sent {
            held.events.hold(&of, 1);
            held.bytes.hold(&of, bytes);
        }
        sent
    }
}

/// The events of all rooms, in order.
#[derive(Debug)]
pub struct EventReceiver {
    queue: mpsc::Receiver<(RoomEvent, u64)>,
    held: Arc<Mutex<Held>>,
}

impl EventReceiver {
    /// The next event; `None` once the server has stopped and none is left.
    pub async fn recv(&mut self) -> Option<RoomEvent> {
        let (event, bytes) = self.queue.recv().await?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.events.release(&event.of, 1);
        held.bytes.release(&event.of, bytes);
        drop(held);
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use vivavoce_auth::TenantId;

    use super::*;

    fn event(of: &Party, metadata_bytes: usize) -> RoomEvent {
        RoomEvent {
            event: Event::RoomStarted,
            room: proto::Room {
                metadata: "x".repeat(metadata_bytes),
                ..proto::Room::default()
            },
            of: of.clone(),
            participant: None,
            track: None,
            at_ms: 0,
        }
    }

    fn tenant(id: &str) -> Party {
        Party::Tenant(TenantId::new(id).unwrap())
    }

    #[tokio::test]
    async fn a_flood_of_one_tenants_events_keeps_out_no_others_by_number_or_by_size() {
        for bytes in [0, 64 << 10] {
            let (sender, mut receiver) = queue(Share::default());
            let (greedy, modest) = (tenant("greedy"), tenant("modest"));
            let sent = (0..2 * MOST_EVENTS).filter(|_| sender.send(event(&greedy, bytes)));
            let sent = sent.count();
            assert!(sent < MOST_EVENTS, "{sent}");
            assert!(((sent * bytes) as u64) < MOST_BYTES, "{sent} of {bytes}");
            assert!(sender.send(event(&modest, 64 << 10)));
            // What was taken makes room, in order of arrival.
            for _ in 0..sent {
                assert_eq!(receiver.recv().await.unwrap().of, greedy);
            }
            assert_eq!(receiver.recv().await.unwrap().of, modest);
            let held = receiver.held.lock().unwrap();
            assert!(held.events.is_empty() && held.bytes.is_empty());
        }
    }

    #[tokio::test]
    async fn events_that_nobody_receives_are_dropped_and_hold_nothing() {
        let (sender, receiver) = queue(Share::default());
        drop(receiver);
        assert!(!sender.send(event(&Party::Operator, 1)));
        assert!(sender.held.lock().unwrap().events.is_empty());
    }
}
