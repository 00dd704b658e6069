//! Events of embedded rooms as LiveKit's webhooks report them.

use livekit_protocol::{ParticipantInfo, Room, WebhookEvent};

use vivavoce_rooms::{Event, RoomEvent};

/// The webhook event, with a unique id. Track events have only the names of room and participant, as LiveKit's have.
pub fn told(event: RoomEvent) -> WebhookEvent {
    let RoomEvent {
        event,
        room,
        participant,
        track,
        at_ms,
        of: _,
    } = event;
    let of_track = matches!(event, Event::TrackPublished | Event::TrackUnpublished);
    let room = if of_track {
        Room {
            sid: room.sid,
            name: room.name,
            ..Room::default()
        }
    } else {
        room
    };
    let participant = participant.map(|participant| {
        if of_track {
            ParticipantInfo {
                sid: participant.sid,
                identity: participant.identity,
                ..ParticipantInfo::default()
            }
        } else {
            participant
        }
    });
    WebhookEvent {
        event: event.name().to_owned(),
        room: Some(room),
        participant,
        track,
        id: format!("EV_{}", uuid::Uuid::new_v4().simple()),
        created_at: at_ms.div_euclid(1_000),
        ..WebhookEvent::default()
    }
}
