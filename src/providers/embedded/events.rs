//! What happens in embedded rooms, in the form in which LiveKit tells it.

use livekit_protocol::{ParticipantInfo, Room, WebhookEvent};

use vivavoce_rooms::{Event, RoomEvent};

/// The event as a webhook carries it, with an id of its own. Those of tracks name room and participant only, as LiveKit's
/// do.
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
